//! Completion queues (fi_cq(3)).
//!
//! A queue is a ring of the requested size. No entry is lost: providers check [`Cq::has_space`]
//! before starting work with an entry. An entry arriving nevertheless (of a transfer already in
//! flight) goes to a list behind the ring. Errors keep their position in the order.
mod calls;

use crate::abi::{
    self, FI_CLASS_CQ, c_enum, fi_addr_t, fi_cq_attr, fi_cq_err_entry, fi_cq_format, fi_ops,
    fi_wait_obj, fid, fid_cq,
};
pub use crate::completion::{Completion, CompletionError, Context};
use crate::cq_format::Format;
use crate::entry_ring::{EntryRing, zeroed};
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::info::version;
use crate::lock::{Level, Lock};
use crate::object::{Base, Object, fid_ops};
pub use crate::on_domain::OnDomain;
use crate::operation::{DirectProgress, DirectRead};
use crate::packet_sink::PacketSink;
use crate::peer::CqOwner;
use crate::progress::Progress;
use crate::progress_source::ProgressSource;
use crate::reserved::{
    DELIVERS_PACKETS, ENDS_WAIT, ERROR_MARK, HAS_ENTRIES, RUNS_PROGRESS, SPARES_CALLERS,
};
use crate::wait::{Blocking, Lazy, Wait, WaitKind, WakeSources};
use crate::wait_set::{WaitDescriptor, WaitSet, Waitable};
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Default size of a queue in entries.
const DEFAULT_SIZE: usize = 1024;

/// A completion queue, as C and providers share it.
#[repr(C)]
pub struct Cq {
    c: fid_cq,
    ring: Lock<EntryRing>,
    /// Slots of the ring read and written so far: written with its lock held, and read without.
    read: AtomicUsize,
    written: AtomicUsize,
    size: usize,
    format: Format,
    wait: Lazy,
    wait_set: Option<Arc<WaitSet>>,
    /// Owner receiving the entries of a queue opened with FI_PEER. The ring of such a queue is
    /// permanently full, so entries bypass it, and its size is unlimited.
    owner: Option<CqOwner>,
    progress: ProgressSource,
    api_version: u32,
    /// Equal to `size` if writing an entry needs only the domain's lock: no waiting thread, no
    /// concurrent reader, and no other owner. Else 0.
    fast_size: usize,
    /// Reading the queue is no cancellation point: see [`SPARES_CALLERS`].
    spares_callers: AtomicBool,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for Cq {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for Cq {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_cq> for Cq {}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cq({:?}, {} of {})", self.format, self.len(), self.size)
    }
}

/// Slot of the next entry to write ([`Cq::next_entry`]).
#[derive(Debug)]
pub struct NextEntry<'a> {
    cq: &'a Cq,
}

impl NextEntry<'_> {
    /// Returns true if the application has read all previous entries.
    #[inline(always)]
    pub fn is_first(&self) -> bool {
        self.cq.len() == 0
    }

    /// Writes the entry.
    #[inline(always)]
    pub fn write(self, entry: Completion) {
        debug_assert!(entry.flags != ERROR_MARK);
        let number = self.cq.written.load(Ordering::Relaxed);
        // SAFETY: no other thread uses the ring while the caller holds the domain's lock, as it promised,
        // and nothing below asks for another reference.
        unsafe { self.cq.ring.alone() }.set(number, entry);
        self.cq.written.store(number + 1, Ordering::Release);
    }
}

/// Result of the fast poll for one entry.
enum Look {
    /// The entry was taken.
    Took,
    /// There is no entry.
    Empty,
    /// There is more to do.
    Else,
    /// A thread sleeps waiting for the lock, now free.
    Wake { took: bool },
}

/// Result of [`Cq::take_one`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The entry was taken.
    One,
    /// There is no entry.
    Empty,
    /// There is more to do.
    Else,
}

impl Cq {
    /// Opens a queue (fi_cq_open). `attr` fields newer than the caller's version
    /// are not looked at. A null `attr` means all defaults.
    ///
    /// # Safety
    /// With FI_PEER `context` is null or a `struct fi_peer_cq_context` (fi_peer(3));
    /// with FI_WAIT_SET `wait_set` is null or an open one.
    pub unsafe fn open(
        domain: OnDomain,
        attr: Option<&fi_cq_attr>,
        context: *mut c_void,
    ) -> Result<Arc<Self>> {
        const ALLOWED: u64 = abi::FI_AFFINITY | abi::FI_PEER;
        let (mut size, mut format, mut wait_obj) =
            (0, c_enum::default(), c_enum::<fi_wait_obj>::default());
        let mut set = std::ptr::null_mut();
        let mut owner = None;
        if let Some(attr) = attr {
            if attr.flags & !ALLOWED != 0 {
                return Err(Error::BADFLAGS);
            }
            if attr.flags & abi::FI_PEER != 0 {
                // SAFETY: by this function's contract.
                owner = Some(unsafe { CqOwner::new(context) }?);
            }
            (size, format, wait_obj, set) = (attr.size, attr.format, attr.wait_obj, attr.wait_set);
        }
        let format = match format {
            f if f == fi_cq_format::FI_CQ_FORMAT_UNSPEC => Format::Context,
            f if f == fi_cq_format::FI_CQ_FORMAT_CONTEXT => Format::Context,
            f if f == fi_cq_format::FI_CQ_FORMAT_MSG => Format::Msg,
            f if f == fi_cq_format::FI_CQ_FORMAT_DATA => Format::Data,
            f if f == fi_cq_format::FI_CQ_FORMAT_TAGGED => Format::Tagged,
            _ => return Err(Error::INVAL),
        };
        let kind = WaitKind::from_attr(wait_obj)?;
        if kind != WaitKind::None {
            (domain.on_blocking)(kind)?;
        }
        if let Some(owner) = owner {
            return Ok(Self::of_peer(domain, format, owner, Lazy::new(kind, false)?));
        }
        // SAFETY: by this function's contract.
        let wait_set = unsafe { WaitSet::from_attr(wait_obj, set) }?;
        let size = if size == 0 { DEFAULT_SIZE } else { size };
        if size > 1 << 30 {
            return Err(Error::INVAL);
        }
        let slots = zeroed(size.next_power_of_two())?;
        let level = domain.level.number();
        let ring = Lock::with_level(EntryRing::new(slots), domain.level);
        let is_fast = ring.is_alone() && kind == WaitKind::None;
        let cq = Arc::new(Self {
            c: fid_cq { fid: Self::fid(context), ops: (&raw const Self::OPS[level]).cast_mut() },
            ring,
            read: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            size,
            format,
            wait: Lazy::new(kind, wait_set.is_some())?,
            wait_set: wait_set.clone(),
            owner: None,
            progress: ProgressSource::new(domain.progress),
            api_version: domain.api_version,
            fast_size: if is_fast { size } else { 0 },
            spares_callers: AtomicBool::new(false),
            base: Base::new(domain.parent),
        });
        if let Some(set) = wait_set {
            set.add(&cq)?;
        }
        Ok(cq)
    }

    /// Returns a queue with entries going to another provider's queue. The context of its opening
    /// was needed only there. Its wait object reports pending work.
    fn of_peer(domain: OnDomain, format: Format, owner: CqOwner, wait: Lazy) -> Arc<Self> {
        Arc::new(Self {
            c: fid_cq {
                fid: Self::fid(std::ptr::null_mut()),
                ops: (&raw const *Self::PEER_OPS).cast_mut(),
            },
            ring: Lock::with_level(EntryRing::new(Box::default()), domain.level),
            read: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            size: usize::MAX,
            format,
            wait,
            wait_set: None,
            owner: Some(owner),
            progress: ProgressSource::new(domain.progress),
            api_version: domain.api_version,
            fast_size: 0,
            spares_callers: AtomicBool::new(false),
            base: Base::new(domain.parent),
        })
    }

    /// Entries in the ring. Without its lock there may be fewer by now.
    #[inline(always)]
    fn len(&self) -> usize {
        let read = self.read.load(Ordering::Acquire);
        self.written.load(Ordering::Acquire) - read
    }

    /// Returns true if the ring has space for another entry.
    #[inline(always)]
    pub fn has_space(&self) -> bool {
        self.len() < self.size
    }

    /// Records a provider waiting for space for an entry: the read freeing the space makes progress
    /// once more.
    pub fn wait_for_space(&self) {
        self.ring.lock_within().awaited = true;
    }

    /// Returns the number of unread entries and the size of the queue. The caller holds another
    /// lock of the domain.
    pub fn fill(&self) -> [u64; 2] {
        let behind = self.ring.lock_within().behind.len();
        [self.len() + behind, self.size].map(|number| number as u64)
    }

    /// Returns the number of free entries in the ring.
    #[inline]
    pub fn free_entries(&self) -> usize {
        self.size.saturating_sub(self.len())
    }

    /// Returns true if entries go to another provider's queue; reads there are not visible here.
    #[inline]
    pub fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns true if the messages reported here may go to this sink instead: it is for this queue,
    /// and no message waits in it.
    #[inline(always)]
    pub(crate) fn is_drained_by(&self, sink: &PacketSink<'_>) -> bool {
        sink.is_for(std::ptr::from_ref(self).cast()) && self.len() == 0
    }

    /// Returns true if there is something to read.
    #[inline]
    pub fn has_entries(&self) -> bool {
        let read = self.read.load(Ordering::SeqCst);
        self.written.load(Ordering::SeqCst) != read
    }

    /// Writes the entry of a success, and wakes the waiters.
    #[inline(always)]
    pub fn write(&self, entry: Completion) {
        debug_assert_ne!(entry.flags, ERROR_MARK);
        let mut ring = self.ring.lock_within();
        let number = self.written.load(Ordering::Relaxed);
        if number - self.read.load(Ordering::Relaxed) == ring.capacity() {
            drop(ring);
            let Completion { context, flags, len, buf, data, tag, src } = entry;
            return self.write_past_ring((context, flags, len, buf), (data, tag, src));
        }
        ring.set(number, entry);
        self.written.store(number + 1, Ordering::Release);
        drop(ring);
        if self.wait.kind() != WaitKind::None {
            self.wake();
        }
    }

    /// Returns the position of the next entry, if there is space for it and [`write`](Self::write)
    /// would only store it there. The caller holds another lock of the domain until it has written
    /// the entry, or has decided against it.
    #[inline(always)]
    pub fn next_entry(&self) -> Option<NextEntry<'_>> {
        let unread = self.written.load(Ordering::Relaxed) - self.read.load(Ordering::Acquire);
        (unread < self.fast_size).then_some(NextEntry { cq: self })
    }

    /// Puts an entry into the ring, or behind it if it is full.
    fn put(&self, ring: &mut EntryRing, entry: Completion) {
        let written = self.written.load(Ordering::Relaxed);
        if written - self.read.load(Ordering::Relaxed) == ring.capacity() {
            ring.awaited = true;
            return ring.behind.push_back(entry);
        }
        *ring.slot(written) = entry;
        self.written.store(written + 1, Ordering::Release);
    }

    /// Writes an entry bypassing the ring: to the owner, responsible for its capacity (fi_peer(3)),
    /// or to the list behind the ring.
    #[cold]
    fn write_past_ring(
        &self,
        (context, flags, len, buf): (Context, u64, usize, usize),
        (data, tag, src): (u64, u64, fi_addr_t),
    ) {
        let entry = Completion { context, flags, len, buf, data, tag, src };
        if let Some(owner) = &self.owner {
            let _ = owner.write(&entry);
            return;
        }
        self.put(&mut self.ring.lock_within(), entry);
        self.wake();
    }

    /// Writes the entry of a failure, in its place among the others.
    #[cold]
    pub fn write_error(&self, error: CompletionError) {
        if let Some(owner) = &self.owner {
            let _ = owner.write_error(&error);
            return;
        }
        let mut ring = self.ring.lock_within();
        self.put(&mut ring, Completion { flags: ERROR_MARK, ..error.of });
        ring.errors.push_back(error);
        drop(ring);
        self.wake();
    }

    #[inline(never)]
    fn wake(&self) {
        if self.wait.kind() == WaitKind::None {
            return;
        }
        // A thread that is about to sleep either sees the entry, or is seen and woken.
        fence(Ordering::SeqCst);
        self.wait.entry_written();
        if let Some(set) = &self.wait_set {
            set.entry_written();
        }
    }

    /// Fast path of a read: takes the only requested or available entry, if nothing else has to be
    /// done. Most successful reads end here. It contains no calls and no panics, so it needs no
    /// stack frame. `LEVEL` is the number of the level of the queue's lock; for another level it
    /// does nothing.
    ///
    /// # Safety
    /// `buf` has space for `count` entries of the queue's format; `src` is null or has space for
    /// `count` addresses.
    #[inline(always)]
    unsafe fn read_one<const LEVEL: usize>(
        &self,
        buf: *mut c_void,
        count: usize,
        src: *mut fi_addr_t,
    ) -> Look {
        // For the levels with a lock more expensive than this check.
        if LEVEL != Level::SERIALIZED && self.len() == 0 {
            return Look::Empty;
        }
        // SAFETY: by this function's contract.
        let take = |ring: &mut EntryRing| unsafe { self.take_one(ring, buf, count, src) };
        let looked = match LEVEL {
            Level::SHARED => self.ring.quickly(take),
            _ => self.ring.try_lock_fast::<LEVEL>().map(|mut ring| (take(&mut ring), false)),
        };
        match looked {
            Some((Taken::One, false)) => Look::Took,
            Some((Taken::Empty, false)) => Look::Empty,
            Some((took, true)) => Look::Wake { took: took == Taken::One },
            _ => Look::Else,
        }
    }

    /// See [`read_one`](Self::read_one).
    ///
    /// # Safety
    /// Its own.
    #[inline(always)]
    unsafe fn take_one(
        &self,
        ring: &mut EntryRing,
        buf: *mut c_void,
        count: usize,
        src: *mut fi_addr_t,
    ) -> Taken {
        let read = self.read.load(Ordering::Relaxed);
        let there = self.written.load(Ordering::Relaxed) - read;
        if there == 0 {
            return Taken::Empty;
        }
        if there.min(count) != 1 || buf.is_null() || ring.awaited {
            return Taken::Else;
        }
        let entry = ring.slot(read);
        if entry.flags == ERROR_MARK {
            return Taken::Else;
        }
        // SAFETY: by this function's contract.
        unsafe {
            self.format.store(buf, 0, entry);
            if !src.is_null() {
                src.write(entry.src);
            }
        }
        self.read.store(read + 1, Ordering::Release);
        Taken::One
    }

    /// Makes progress if there is nothing to read. A read of no entries is an application's request
    /// for progress only.
    #[inline(always)]
    fn look_for(&self, count: usize) {
        if count == 0 || self.len() == 0 {
            self.progress.get().progress();
        }
    }

    /// Copies up to `count` available entries to `buf`, and their sources to `src`.
    ///
    /// # Safety
    /// The contract of [`read_one`](Self::read_one).
    #[inline(never)]
    unsafe fn read_all(
        &self,
        buf: *mut c_void,
        count: usize,
        src: *mut fi_addr_t,
    ) -> Result<usize> {
        if self.len() == 0 {
            return Err(Error::AGAIN);
        }
        if count == 0 {
            return Ok(0);
        }
        if buf.is_null() {
            return Err(Error::INVAL);
        }
        let mut ring = self.ring.lock();
        let mut n = 0;
        while n < count && self.len() != 0 {
            let read = self.read.load(Ordering::Relaxed);
            let entry = ring.slot(read);
            if entry.flags == ERROR_MARK {
                if n == 0 {
                    return Err(Error::AVAIL);
                }
                break;
            }
            // SAFETY: `n < count`, so the entry lies inside the caller's buffers.
            unsafe {
                self.format.store(buf, n, entry);
                if !src.is_null() {
                    src.add(n).write(entry.src);
                }
            }
            self.pop(&mut ring, read);
            n += 1;
        }
        // Another thread may have read the entries meanwhile.
        if n == 0 {
            return Err(Error::AGAIN);
        }
        if ring.awaited {
            ring.awaited = !ring.behind.is_empty();
            drop(ring);
            self.progress.get().progress();
        }
        Ok(n)
    }

    /// Records the read of the slot with this number and moves the next entry from behind the ring.
    fn pop(&self, ring: &mut EntryRing, read: usize) {
        self.read.store(read + 1, Ordering::Release);
        if let Some(entry) = ring.behind.pop_front() {
            self.put(ring, entry);
        }
    }

    /// Performs one poll of a blocking read.
    ///
    /// # Safety
    /// The contract of [`read_one`](Self::read_one).
    unsafe fn sread(
        &self,
        buf: *mut c_void,
        count: usize,
        src: *mut fi_addr_t,
        call: &mut Blocking,
    ) -> Result<usize> {
        call.look(
            self.wait()?,
            self,
            || {
                self.look_for(count);
                // SAFETY: by this function's contract.
                unsafe { self.read_all(buf, count, src) }
            },
            || self.has_entries(),
        )
    }

    fn take_error(&self) -> Option<CompletionError> {
        let mut ring = self.ring.lock();
        let read = self.read.load(Ordering::Relaxed);
        if self.len() == 0 || ring.slot(read).flags != ERROR_MARK {
            return None;
        }
        self.pop(&mut ring, read);
        ring.errors.pop_front()
    }

    /// Reads the error at the head (fi_cq_readerr). Fields newer than the
    /// application's version of the structure are neither read nor written.
    ///
    /// # Safety
    /// `out` points to a `struct fi_cq_err_entry` of the application's version.
    unsafe fn read_error(&self, out: *mut fi_cq_err_entry) -> Result<usize> {
        if out.is_null() {
            return Err(Error::INVAL);
        }
        if self.len() == 0 {
            self.progress.get().progress();
        }
        let error = self.take_error().ok_or(Error::AGAIN)?;
        let newer_than = |major, minor| self.api_version >= version(major, minor);
        // SAFETY: the fields up to err_data are in every version; the two others
        // are touched only when the caller's version has them; the caller's
        // err_data buffer has err_data_size bytes (fi_cq(3)).
        unsafe {
            let of = &error.of;
            (*out).op_context = of.context.0;
            (*out).flags = of.flags;
            (*out).len = of.len;
            (*out).buf = of.buf as *mut c_void;
            (*out).data = of.data;
            (*out).tag = of.tag;
            (*out).olen = error.olen;
            (*out).err = error.error.code();
            (*out).prov_errno = error.prov_errno;
            let capacity = if newer_than(1, 5) { (*out).err_data_size } else { 0 };
            if capacity > 0 && !(*out).err_data.is_null() {
                let len = error.data.len().min(capacity);
                std::ptr::copy_nonoverlapping(error.data.as_ptr(), (*out).err_data.cast(), len);
                (*out).err_data_size = len;
            } else {
                let mut ring = self.ring.lock();
                ring.error_data = error.data;
                let data = &ring.error_data;
                (*out).err_data = if data.is_empty() {
                    std::ptr::null_mut()
                } else {
                    data.as_ptr().cast_mut().cast()
                };
                if newer_than(1, 5) {
                    (*out).err_data_size = data.len();
                }
            }
            if newer_than(1, 20) {
                (*out).src_addr = of.src;
            }
        }
        Ok(1)
    }

    /// Returns the wait object for blocking calls, or `None` if the queue does not support them.
    fn wait(&self) -> Result<Option<&Wait>> {
        self.wait.get(|wait| wait.add_source(&**self.progress.source()))
    }

    /// Makes progress and returns true if there is something to read, for poll sets.
    pub fn poll(&self) -> bool {
        if !self.has_entries() {
            self.progress.get().progress();
        }
        self.has_entries()
    }

    /// Returns the progress source driving the queue.
    pub fn progress_source(&self) -> &Arc<dyn Progress> {
        self.progress.source()
    }
}

impl WakeSources for Cq {
    fn may_block(&self) -> bool {
        self.progress.get().may_block()
    }

    fn end_wait(&self) {
        self.progress.get().end_wait();
    }
}

impl WaitDescriptor for Cq {
    fn try_wait(&self) -> Result {
        self.wait()?.ok_or(Error::INVAL)?.arm()?;
        if !self.has_entries() {
            self.progress.get().progress();
        }
        if self.has_entries() || !self.progress.get().may_block() {
            Err(Error::AGAIN)
        } else {
            Ok(())
        }
    }
}

impl Waitable for Cq {
    fn poll_member(&self) -> bool {
        self.poll()
    }

    fn progress_member(&self) {
        self.poll();
    }

    fn is_ready(&self) -> bool {
        self.has_entries()
    }

    fn poll_context(&self) -> *mut c_void {
        self.context()
    }

    fn source_of_set(&self) -> Option<&dyn Progress> {
        Some(&**self.progress_source())
    }
}

static FID_OPS: fi_ops = fid_ops::<Cq, _>();

impl Object<fid_cq> for Cq {
    const CLASS: c_int = FI_CLASS_CQ;
    const CLOSE: &'static str = "fi_close(cq)";
    const CONTROL: &'static str = "fi_control(cq)";

    fn table() -> &'static fi_ops {
        &FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }

    fn closed(this: &mut Arc<Self>, fid: *mut fid) {
        if let Some(set) = &this.wait_set {
            set.remove(fid);
        }
    }

    unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result {
        match command {
            abi::FI_GETWAIT => {
                let wait = self.wait()?.ok_or(Error::NODATA)?;
                // SAFETY: FI_GETWAIT passes what the wait object needs (fi_cq(3)).
                unsafe { wait.get(arg) }
            }
            SPARES_CALLERS => {
                self.spares_callers.store(true, Ordering::Relaxed);
                Ok(())
            }
            // SAFETY: the command passes null, or room for the function.
            RUNS_PROGRESS => match unsafe { arg.cast::<Option<DirectProgress>>().as_mut() } {
                Some(to) => {
                    self.spares_callers.store(true, Ordering::Relaxed);
                    let who = std::ptr::from_ref(self).cast();
                    *to = Some(DirectProgress { who, progress: Self::RUN_PROGRESS });
                    Ok(())
                }
                None => Err(Error::NOSYS),
            },
            // SAFETY: the command passes null, or room for the function.
            DELIVERS_PACKETS => match unsafe { arg.cast::<Option<DirectRead>>().as_mut() } {
                Some(to) if self.owner.is_none() => {
                    let who = std::ptr::from_ref(self).cast();
                    *to = Some(DirectRead { who, read: Self::READ_INTO });
                    Ok(())
                }
                _ => Err(Error::NOSYS),
            },
            ENDS_WAIT => {
                self.end_wait();
                Ok(())
            }
            HAS_ENTRIES => self.has_entries().then_some(()).ok_or(Error::AGAIN),
            // SAFETY: FI_GETWAITOBJ passes an enum fi_wait_obj.
            abi::FI_GETWAITOBJ => unsafe { self.wait.kind().tell(arg) },
            _ => Err(Error::NOSYS),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests;
