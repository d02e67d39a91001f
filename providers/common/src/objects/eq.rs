//! Event queues (fi_eq(3)): connection events, asynchronous completions, and events written by the
//! application itself.
use crate::abi::{
    self, FI_CLASS_EQ, fi_eq_attr, fi_eq_cm_entry, fi_eq_entry, fi_eq_err_entry, fi_info, fi_ops,
    fi_ops_eq, fid, fid_eq,
};
use crate::boundary::{end_if_cancelled, ffi_guard, ffi_guard_if_memory};
use crate::buf::copied;
use crate::error::{Error, Result};
use crate::error_text::error_text;
pub use crate::event::{EqEvent, EventError, FidPtr};
use crate::fid::FidObject;
use crate::lock::Lock;
use crate::object::{Base, Object, Parent, fid_ops};
use crate::peer::EqOwner;
use crate::progress::Progress;
use crate::wait::{Blocking, Lazy, Wait, WaitKind, WakeSources, cancellable};
use crate::wait_set::{WaitDescriptor, WaitSet, Waitable};
use core::ffi::{c_char, c_int, c_void};
use libc::ssize_t;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<EqEvent>,
    /// The extra data of the error read last, valid until the next read.
    error_data: Vec<u8>,
}

/// An event queue, as C and providers share it.
#[repr(C)]
pub struct Eq {
    c: fid_eq,
    queue: Lock<EventQueue>,
    count: AtomicUsize,
    may_write: bool,
    wait: Lazy,
    wait_set: Option<Arc<WaitSet>>,
    sources: RwLock<Vec<Weak<dyn Progress>>>,
    /// Owner receiving the events of a queue opened with FI_PEER, as far as fi_eq_write can carry
    /// them; failures are read from this queue (fi_peer(3)).
    owner: Option<EqOwner>,
    /// Values of other objects dropped at the close of the queue.
    held: Mutex<Vec<Box<dyn Any + Send>>>,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for Eq {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for Eq {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_eq> for Eq {}

impl std::fmt::Debug for Eq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Eq({} events)", self.count.load(Ordering::Relaxed))
    }
}

impl Eq {
    /// Opens a queue (fi_eq_open).
    ///
    /// # Safety
    /// With FI_PEER `context` is null or a `struct fi_peer_eq_context` (fi_peer(3));
    /// with FI_WAIT_SET `wait_set` is null or an open one.
    pub unsafe fn open(
        attr: Option<&fi_eq_attr>,
        context: *mut c_void,
        fabric: Parent,
    ) -> Result<Arc<Self>> {
        let (mut flags, mut wait_obj, mut set) = (0, Default::default(), std::ptr::null_mut());
        if let Some(attr) = attr {
            (flags, wait_obj, set) = (attr.flags, attr.wait_obj, attr.wait_set);
        }
        if flags & !(abi::FI_WRITE | abi::FI_AFFINITY | abi::FI_PEER) != 0 {
            return Err(Error::BADFLAGS);
        }
        let (owner, context) = if flags & abi::FI_PEER != 0 {
            // With FI_PEER the context is only for opening.
            // SAFETY: by this function's contract.
            (Some(unsafe { EqOwner::new(context) }?), std::ptr::null_mut())
        } else {
            (None, context)
        };
        let kind = WaitKind::from_attr(wait_obj)?;
        // SAFETY: by this function's contract.
        let wait_set = unsafe { WaitSet::from_attr(wait_obj, set) }?;
        let eq = Arc::new(Self {
            c: fid_eq { fid: Self::fid(context), ops: (&raw const EQ_OPS).cast_mut() },
            queue: Lock::new(EventQueue::default()),
            count: AtomicUsize::new(0),
            may_write: flags & abi::FI_WRITE != 0,
            wait: Lazy::new(kind, wait_set.is_some())?,
            wait_set: wait_set.clone(),
            sources: RwLock::new(Vec::new()),
            owner,
            held: Mutex::default(),
            base: Base::new(fabric),
        });
        if let Some(set) = wait_set {
            set.add(&eq)?;
        }
        Ok(eq)
    }

    /// Adds a progress source driven by reads of the queue.
    pub fn add_source(&self, source: &Arc<dyn Progress>) -> Result {
        let mut sources = self.sources.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        sources.retain(|known| known.strong_count() != 0);
        let known = |known: &Weak<dyn Progress>| {
            known.upgrade().is_some_and(|known| Arc::ptr_eq(&known, source))
        };
        if !sources.iter().any(known) {
            sources.push(Arc::downgrade(source));
            if let Some(wait) = self.wait.made() {
                wait.add_source(&**source)?;
            }
            if let Some(set) = &self.wait_set {
                set.add_source(&**source)?;
            }
        }
        Ok(())
    }

    /// Returns true if an application can block on the queue.
    pub fn can_block(&self) -> bool {
        self.wait.kind() != WaitKind::None
    }

    /// Adds an event, and wakes the waiters.
    pub fn write(&self, event: EqEvent) {
        let event = match &self.owner {
            None => event,
            Some(owner) => match owner.write(event) {
                Ok(()) => return,
                Err(event) => event,
            },
        };
        let mut queue = self.queue.lock();
        queue.events.push_back(event);
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(queue);
        if self.can_block() {
            // A thread that is about to sleep either sees the event, or is seen and woken.
            fence(Ordering::SeqCst);
            self.wait.entry_written();
            if let Some(set) = &self.wait_set {
                set.entry_written();
            }
        }
    }

    /// Drops a value when the queue is closed, and not before.
    pub(crate) fn hold_until_closed(&self, value: Box<dyn Any + Send>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(value);
    }

    /// Returns the handles of a passive endpoint's connection requests with unread events.
    pub(crate) fn unread_requests(&self, fid: FidPtr) -> Vec<usize> {
        let queue = self.queue.lock();
        let handle = |event: &EqEvent| match event {
            EqEvent::Cm { fid: of, info: Some(info), .. } if *of == fid => {
                Some(info.as_ref().handle() as usize)
            }
            _ => None,
        };
        queue.events.iter().filter_map(handle).collect()
    }

    /// Drops the events of an object being closed.
    pub fn forget(&self, fid: FidPtr) {
        let mut queue = self.queue.lock();
        queue.events.retain_mut(|event| event.object().is_none_or(|object| *object != fid));
        self.count.store(queue.events.len(), Ordering::SeqCst);
    }

    /// Makes an object's events name another handle of it, because this one is being closed.
    pub(crate) fn rename(&self, fid: FidPtr, heir: FidPtr) {
        let mut queue = self.queue.lock();
        let objects = queue.events.iter_mut().filter_map(EqEvent::object);
        objects.filter(|object| **object == fid).for_each(|object| *object = heir);
    }

    fn each_source(&self, each: &mut dyn FnMut(&Arc<dyn Progress>)) {
        // The sources are collected first: making progress may add sources to this very queue.
        let sources: Vec<_> = {
            let sources = self.sources.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            sources.iter().filter_map(Weak::upgrade).collect()
        };
        sources.iter().for_each(each);
    }

    /// Returns the wait object for blocking calls, or `None` if the queue does not support them.
    fn wait(&self) -> Result<Option<&Wait>> {
        // Held until the wait object is there: a source that comes meanwhile is added to it
        // afterwards.
        let sources = self.sources.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.wait.get(|wait| {
            let mut sources = sources.iter().filter_map(Weak::upgrade);
            sources.try_for_each(|source| wait.add_source(&*source))
        })
    }

    fn progress(&self) {
        self.each_source(&mut |source| source.progress());
    }

    /// Returns true if there is something to read.
    pub(crate) fn has_events(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Reads the next event (fi_eq_read).
    ///
    /// # Safety
    /// `event` points to a `uint32_t`, `buf` has `len` bytes.
    unsafe fn read(
        &self,
        event: *mut u32,
        buf: *mut c_void,
        len: usize,
        flags: u64,
    ) -> Result<usize> {
        if event.is_null() || (buf.is_null() && len > 0) {
            return Err(Error::INVAL);
        }
        if !self.has_events() {
            self.progress();
        }
        let mut queue = self.queue.lock();
        let (number, size) = match queue.events.front() {
            None => return Err(Error::AGAIN),
            Some(EqEvent::Error(_)) => return Err(Error::AVAIL),
            Some(EqEvent::Cm { event, data, .. }) => {
                (*event, size_of::<fi_eq_cm_entry>() + data.len())
            }
            Some(EqEvent::Done { event, .. }) => (*event, size_of::<fi_eq_entry>()),
            Some(EqEvent::Written { event, bytes }) => (*event, bytes.len()),
        };
        // CM data that does not fit is cut, as the interface has it: the entry
        // itself must fit.
        let least = match queue.events.front() {
            Some(EqEvent::Cm { .. }) => size_of::<fi_eq_cm_entry>(),
            _ => size,
        };
        if len < least {
            return Err(Error::TOOSMALL);
        }
        let peek = flags & abi::FI_PEEK != 0;
        let size = size.min(len);
        // SAFETY: `size` bytes are written, which the caller's buffer has; C
        // aligns its entries, which start the buffer.
        unsafe {
            event.write(number);
            match queue.events.front_mut() {
                Some(EqEvent::Cm { fid, info, data, .. }) => {
                    let entry = buf.cast::<fi_eq_cm_entry>();
                    (*entry).fid = fid.0;
                    // A peek must leave the info for the real read.
                    (*entry).info = match info {
                        Some(info) if peek => info.as_ptr().cast_mut(),
                        Some(_) | None => std::ptr::null_mut::<fi_info>(),
                    };
                    std::ptr::copy_nonoverlapping(
                        data.as_ptr(),
                        buf.cast::<u8>().add(size_of::<fi_eq_cm_entry>()),
                        size - size_of::<fi_eq_cm_entry>(),
                    );
                    if !peek {
                        if let Some(info) = info.take() {
                            (*entry).info = info.into_raw();
                        }
                    }
                }
                Some(EqEvent::Done { fid, context, data, .. }) => {
                    buf.cast::<fi_eq_entry>().write(fi_eq_entry {
                        fid: fid.0,
                        context: context.0,
                        data: *data,
                    });
                }
                Some(EqEvent::Written { bytes, .. }) => {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), size);
                }
                Some(EqEvent::Error(_)) | None => {}
            }
        }
        if !peek {
            queue.events.pop_front();
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(size)
    }

    /// Reads the error at the head (fi_eq_readerr).
    ///
    /// # Safety
    /// `out` points to a `struct fi_eq_err_entry`.
    unsafe fn read_error(&self, out: *mut fi_eq_err_entry, flags: u64) -> Result<usize> {
        if out.is_null() {
            return Err(Error::INVAL);
        }
        let mut queue = self.queue.lock();
        let Some(EqEvent::Error(_)) = queue.events.front() else { return Err(Error::AGAIN) };
        let peek = flags & abi::FI_PEEK != 0;
        let taken = if peek { None } else { queue.events.pop_front() };
        if taken.is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        let queue = &mut *queue;
        let Some(EqEvent::Error(error)) = taken.as_ref().or(queue.events.front()) else {
            return Err(Error::AGAIN);
        };
        // SAFETY: `out` is the caller's; its err_data buffer, if any, has
        // err_data_size bytes (fi_eq(3)).
        unsafe {
            (*out).fid = error.fid.0;
            (*out).context = error.context.0;
            (*out).data = error.data;
            (*out).err = error.error.code();
            (*out).prov_errno = error.prov_errno;
            let capacity = (*out).err_data_size;
            if capacity > 0 && !(*out).err_data.is_null() {
                let len = error.err_data.len().min(capacity);
                std::ptr::copy_nonoverlapping(error.err_data.as_ptr(), (*out).err_data.cast(), len);
                (*out).err_data_size = len;
            } else {
                queue.error_data.clone_from(&error.err_data);
                (*out).err_data_size = queue.error_data.len();
                (*out).err_data = if queue.error_data.is_empty() {
                    std::ptr::null_mut()
                } else {
                    queue.error_data.as_ptr().cast_mut().cast()
                };
            }
        }
        Ok(size_of::<fi_eq_err_entry>())
    }

    /// Makes progress and returns true if there is something to read.
    pub fn poll(&self) -> bool {
        if !self.has_events() {
            self.progress();
        }
        self.has_events()
    }
}

impl WakeSources for Eq {
    fn may_block(&self) -> bool {
        let mut all = true;
        self.each_source(&mut |source| all &= source.may_block());
        all
    }

    fn end_wait(&self) {
        self.each_source(&mut |source| source.end_wait());
    }
}

impl WaitDescriptor for Eq {
    fn try_wait(&self) -> Result {
        self.wait()?.ok_or(Error::INVAL)?.arm()?;
        if !self.has_events() {
            self.progress();
        }
        if !self.has_events() && self.may_block() { Ok(()) } else { Err(Error::AGAIN) }
    }
}

impl Waitable for Eq {
    fn poll_member(&self) -> bool {
        self.poll()
    }

    fn progress_member(&self) {
        self.poll();
    }

    fn is_ready(&self) -> bool {
        self.has_events()
    }

    fn poll_context(&self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// An event queue adds its sources as it learns of them.
    fn source_of_set(&self) -> Option<&dyn Progress> {
        None
    }
}

static FID_OPS: fi_ops = fid_ops::<Eq, _>();

impl Object<fid_eq> for Eq {
    const CLASS: c_int = FI_CLASS_EQ;
    const CLOSE: &'static str = "fi_close(eq)";
    const CONTROL: &'static str = "fi_control(eq)";

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
        let held = std::mem::take(&mut *this.held.lock().unwrap_or_else(PoisonError::into_inner));
        drop(held);
    }

    unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result {
        match command {
            // SAFETY: FI_GETWAIT passes what the wait object needs (fi_eq(3)).
            abi::FI_GETWAIT => unsafe { self.wait()?.ok_or(Error::NODATA)?.get(arg) },
            // SAFETY: FI_GETWAITOBJ passes an enum fi_wait_obj.
            abi::FI_GETWAITOBJ => unsafe { self.wait.kind().tell(arg) },
            _ => Err(Error::NOSYS),
        }
    }
}

static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: cancellable!(read: fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> ssize_t),
    readerr: Some(readerr),
    write: Some(write),
    sread: cancellable!(sread: fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> ssize_t),
    strerror: Some(eq_strerror),
};

// SAFETY of the entry points below: each is reachable only through the ops table
// of a queue that `open` made and `close` has not taken back, or with null.

unsafe extern "C-unwind" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    let answer = ffi_guard("fi_eq_read", || {
        // SAFETY: see above; the buffers are the caller's.
        unsafe { Eq::from_c(eq)?.read(event, buf, len, flags) }
    });
    if answer == Error::AGAIN.to_ret() as ssize_t {
        // SAFETY: nothing here is cleaned up, nor in what the program calls us by.
        unsafe { end_if_cancelled() };
    }
    answer
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, out: *mut fi_eq_err_entry, flags: u64) -> ssize_t {
    ffi_guard("fi_eq_readerr", || {
        // SAFETY: see above; the entry is the caller's.
        unsafe { Eq::from_c(eq)?.read_error(out, flags) }
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> ssize_t {
    ffi_guard_if_memory("fi_eq_write", || {
        // SAFETY: see above.
        let eq = unsafe { Eq::from_c(eq) }?;
        if !eq.may_write {
            // The queue was opened without FI_WRITE.
            return Err(Error::INVAL);
        }
        if buf.is_null() && len > 0 {
            return Err(Error::INVAL);
        }
        let bytes = if len == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller gives `len` readable bytes.
            copied(unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) })?.into_vec()
        };
        eq.write(EqEvent::Written { event, bytes });
        Ok(len)
    })
}

unsafe extern "C-unwind" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> ssize_t {
    let mut call = Blocking::new(timeout);
    loop {
        let answer = ffi_guard("fi_eq_sread", || {
            // SAFETY: see above.
            let eq = unsafe { Eq::from_c(eq) }?;
            if !eq.can_block() {
                return Err(Error::NOSYS);
            }
            call.look(
                eq.wait()?,
                eq,
                // SAFETY: the buffers are the caller's.
                || unsafe { eq.read(event, buf, len, flags) },
                || eq.has_events(),
            )
        });
        // SAFETY: nothing here is cleaned up, nor in what the program calls us by; the
        // queue is not closed while it is read.
        if !unsafe { call.can_continue() } {
            return answer;
        }
    }
}

unsafe extern "C" fn eq_strerror(
    _eq: *mut fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: `buf` is null or has `len` bytes, as the caller says.
    unsafe { error_text(prov_errno, buf, len) }
}

/// Event queue bound to a domain by the application, if any; it cannot be closed before the domain
/// (fi_domain(3)).
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainEq(Arc<OnceLock<Arc<Eq>>>);

impl DomainEq {
    /// Returns the queue, for an object without its own one.
    pub(crate) fn get(&self) -> Option<&Arc<Eq>> {
        self.0.get()
    }

    /// Binds a queue: -FI_EINVAL if there is one.
    pub(crate) fn set(&self, eq: Arc<Eq>) -> Result {
        eq.add_user();
        self.0.set(eq).map_err(|eq| {
            eq.remove_user();
            Error::INVAL
        })
    }

    /// Lets go of the queue: the domain is closed.
    pub(crate) fn leave(&self) {
        if let Some(eq) = self.get() {
            eq.remove_user();
        }
    }
}
