//! A core provider's completion queue (fi_cq(3)).
use super::call::{call, close, code, control};
use super::domain::CoreDomain;
use super::in_flight::{CoreOpKind, InFlightOp, InFlightOps};
use super::memory::CoreBuf;
use super::wait::CoreWaitSet;
use crate::abi::{
    self, fi_addr_t, fi_cq_attr, fi_cq_err_entry, fi_cq_format, fi_cq_tagged_entry, fi_wait_obj,
    fid, fid_cq,
};
use crate::boundary::CancelDisabled;
use crate::buf::UntrustedBytes;
use crate::error::{Error, Result};
use crate::lock::{Level, Lock, NestedGuard};
use crate::operation::DirectRead;
use crate::packet_sink::deliver_to;
use crate::reserved::{DELIVERS_PACKETS, ENDS_WAIT, HAS_ENTRIES, SPARES_CALLERS};
use core::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Most entries read in one call.
const BATCH: usize = 16;

/// Minimum number of entries of a queue.
const LEAST_ENTRIES: usize = 8;

/// Completed transfer.
#[derive(Debug)]
pub struct Done {
    /// Token of the posted transfer; `None` for an operation of a peer, such as a write with remote
    /// CQ data.
    pub token: Option<u64>,
    /// The buffer of ours the transfer was posted with.
    pub buf: Option<CoreBuf>,
    /// The flags of the completion (fi_cq(3)).
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Remote CQ data.
    pub data: u64,
    /// The message's tag, if `flags` has FI_TAGGED.
    pub tag: u64,
    /// The source, as `CoreEndpoint::set_source` set it for the connection it came on;
    /// FI_ADDR_NOTAVAIL of a failure.
    pub src: fi_addr_t,
    /// The error if the transfer failed.
    pub error: Option<Error>,
}

/// Entries read from a queue, in the core provider's format, in a reusable buffer.
pub struct Entries {
    capacity: [MaybeUninit<fi_cq_tagged_entry>; BATCH],
    from: [fi_addr_t; BATCH],
    /// Index of the next entry to process, and the number written by the core provider.
    next: usize,
    len: usize,
}

// SAFETY: contexts are numbers of ours, and no address is followed.
unsafe impl Send for Entries {}

/// One entry of [`Entries`].
#[derive(Clone, Copy)]
pub struct CoreEntry<'a> {
    pub(super) of: &'a fi_cq_tagged_entry,
    pub(super) src: fi_addr_t,
}

impl Default for Entries {
    fn default() -> Self {
        let capacity = [const { MaybeUninit::uninit() }; BATCH];
        Self { capacity, from: [abi::FI_ADDR_NOTAVAIL; BATCH], next: 0, len: 0 }
    }
}

impl Entries {
    /// Maximum number of entries per read.
    pub const MAX: usize = BATCH;

    /// Records the result of a read of at most `max` entries, and returns their number.
    #[inline(always)]
    fn fill(&mut self, result: isize, max: usize) -> Result<usize> {
        (self.next, self.len) = (0, 0);
        if result < 0 {
            return match Error::from_code(-result as c_int) {
                Error::AGAIN => Ok(0),
                error => Err(error),
            };
        }
        self.len = (result as usize).min(max);
        Ok(self.len)
    }

    /// The next entry, once each.
    #[inline(always)]
    pub fn take_next(&mut self) -> Option<CoreEntry<'_>> {
        if self.next == self.len {
            return None;
        }
        let at = self.next;
        self.next += 1;
        // SAFETY: the core wrote `len` entries, and all up to there are looked at once.
        Some(CoreEntry { of: unsafe { self.capacity[at].assume_init_ref() }, src: self.from[at] })
    }
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entries({} of {})", self.next, self.len)
    }
}

impl std::fmt::Debug for CoreEntry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CoreEntry({:#x}, {} bytes)", self.of.flags, self.of.len)
    }
}

/// A core provider's completion queue.
#[derive(Debug)]
pub struct CoreCq {
    raw: NonNull<fid_cq>,
    /// Transfers in flight. The lock has the level of the caller's own, possibly with serialized
    /// calls.
    flights: Lock<InFlightOps>,
    /// True if the core provider agreed to no cancellation point in reads of the queue
    /// ([`SPARES_CALLERS`]).
    spares_callers: bool,
    /// Function of the core provider reading the queue with a packet sink ([`DELIVERS_PACKETS`]).
    direct_read: Option<DirectRead>,
    /// Wait set; it must not be closed before the queue.
    _set: Option<Arc<CoreWaitSet>>,
    domain: Arc<CoreDomain>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreCq {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreCq {}

impl CoreCq {
    /// Opens a queue for `size` entries, or the core provider's maximum, in the wait set or else
    /// with a wait descriptor if the core provider supports it. `level`: mutual exclusion of calls.
    pub fn open(
        domain: &Arc<CoreDomain>,
        size: usize,
        level: Level,
        set: Option<&Arc<CoreWaitSet>>,
    ) -> Result<Arc<Self>> {
        let mut size = size.max(LEAST_ENTRIES);
        let open = |wait: fi_wait_obj, size| {
            let mut raw: *mut fid_cq = ptr::null_mut();
            // SAFETY: all zeros is a valid attribute; it lives for the call.
            unsafe {
                let mut attr = std::mem::zeroed::<fi_cq_attr>();
                attr.size = size;
                attr.format = fi_cq_format::FI_CQ_FORMAT_TAGGED.into();
                attr.wait_obj = wait.into();
                attr.wait_set = set.map_or(ptr::null_mut(), |set| set.as_ptr());
                let open = call!(domain.raw().as_ref().ops, cq_open);
                code(open(domain.raw().as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
            }
            NonNull::new(raw).ok_or(Error::OTHER)
        };
        let any = |size| match set {
            Some(_) => open(fi_wait_obj::FI_WAIT_SET, size),
            None => open(fi_wait_obj::FI_WAIT_FD, size)
                .or_else(|_| open(fi_wait_obj::FI_WAIT_NONE, size)),
        };
        let raw = loop {
            match any(size) {
                // The core takes no queue of this size: half of it is tried.
                Err(_) if size / 2 >= LEAST_ENTRIES => size /= 2,
                other => break other?,
            }
        };
        let flights = InFlightOps::new(size);
        // SAFETY: open; a queue that does not know the command refuses it.
        let spares_callers =
            unsafe { control(raw.as_ptr().cast(), SPARES_CALLERS, ptr::null_mut()) }.is_ok();
        let mut direct_read: Option<DirectRead> = None;
        // SAFETY: open; a queue that does not know the command refuses it, and another fills in the
        // function.
        unsafe {
            let to = (&raw mut direct_read).cast();
            let _ = control(raw.as_ptr().cast(), DELIVERS_PACKETS, to);
        }
        Ok(Arc::new(Self {
            raw,
            spares_callers,
            direct_read,
            flights: Lock::with_level(flights, level),
            _set: set.cloned(),
            domain: domain.clone(),
        }))
    }

    pub(super) fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// Returns the domain of the queue.
    pub(super) fn domain(&self) -> &Arc<CoreDomain> {
        &self.domain
    }

    /// Returns the transfers in flight, locked.
    #[inline(always)]
    pub(super) fn lock_flights(&self) -> NestedGuard<'_, InFlightOps> {
        self.flights.lock_within()
    }

    /// A number for another endpoint or context, until [`InFlightOps::take_all`].
    pub(super) fn owner(&self) -> u32 {
        self.flights.lock_within().add_owner()
    }

    /// Returns a descriptor that is readable for a completion, if the core provider has one.
    pub fn fd(&self) -> Option<RawFd> {
        let mut fd: c_int = -1;
        // SAFETY: open; FI_GETWAIT of a queue with FI_WAIT_FD fills an int.
        unsafe { control(self.fid(), abi::FI_GETWAIT, (&raw mut fd).cast::<c_void>()) }.ok()?;
        (fd >= 0).then_some(fd)
    }

    /// Returns the maximum number of transfers in flight; another one fails with -FI_EAGAIN.
    pub fn size(&self) -> usize {
        self.flights.lock_within().capacity()
    }

    /// Transfers under way.
    pub fn in_flight(&self) -> usize {
        self.flights.lock_within().len()
    }

    /// Returns true if there may be something to read, as far as known without progress. It is
    /// false only for a core provider supporting the query ([`HAS_ENTRIES`]).
    pub fn may_have_entries(&self) -> bool {
        // SAFETY: open; a queue that does not know the command refuses it, and none uses the
        // argument.
        let answer = unsafe { control(self.fid(), HAS_ENTRIES, ptr::null_mut()) };
        answer != Err(Error::AGAIN)
    }

    /// The calling thread does not sleep any more for an entry of a queue of this domain. Other core
    /// providers than those of this library are not told.
    pub fn end_wait(&self) {
        // SAFETY: open; a queue that does not know the command refuses it, and none uses the
        // argument.
        let _ = unsafe { control(self.fid(), ENDS_WAIT, ptr::null_mut()) };
    }

    /// Reads up to `max` entries and returns their number. Fails with -FI_EAVAIL if the next entry
    /// is a failure, for [`read_error`](Self::read_error). Any other error concerns the queue of
    /// the core provider itself.
    #[inline(always)]
    pub fn read(&self, max: usize, entries: &mut Entries) -> Result<usize> {
        let max = max.min(BATCH);
        // The core would end a cancelled thread in here, and our callers with it.
        let _uncancelled = (!self.spares_callers).then(CancelDisabled::new);
        // SAFETY: the queue is open and of this format; the room has `max` entries.
        let n = unsafe {
            let read = call!(self.raw.as_ref().ops, readfrom);
            let (capacity, from) = (entries.capacity.as_mut_ptr(), entries.from.as_mut_ptr());
            read(self.raw.as_ptr(), capacity.cast(), max, from)
        };
        entries.fill(n, max)
    }

    /// Reads up to `max` entries like [`read`](Self::read). A core provider of this library passes
    /// messages without a tag arriving meanwhile to `take`, with their source, as long as no
    /// entry waits. A message accepted by `take` (true) uses no posted buffer and no entry.
    #[inline(always)]
    pub fn read_into<F>(&self, max: usize, entries: &mut Entries, mut take: F) -> Result<usize>
    where
        F: FnMut(fi_addr_t, UntrustedBytes<'_>) -> bool,
    {
        let Some(DirectRead { who, read }) = self.direct_read else {
            return self.read(max, entries);
        };
        let max = max.min(BATCH);
        // SAFETY: the queue is open and of this format; the room has `max` entries. `take` is used by
        // the sink alone, and outlives the call.
        let n = unsafe {
            let (capacity, from) = (entries.capacity.as_mut_ptr(), entries.from.as_mut_ptr());
            let context = (&raw mut take).cast();
            read(who, capacity.cast(), max, from, deliver_to::<F>, context)
        };
        entries.fill(n, max)
    }

    /// Returns the transfer completed by an entry, or `None` if its endpoint was closed meanwhile.
    #[inline]
    pub fn done(&self, entry: CoreEntry<'_>) -> Option<Done> {
        let of = entry.of;
        let flight = self.flights.lock_within().take(of.op_context as usize);
        let mut done = done(flight, of.flags, of.len, of.data, None)?;
        done.src = entry.src;
        if of.flags & abi::FI_TAGGED != 0 {
            done.tag = of.tag;
        }
        Some(done)
    }

    /// Reads a failure; none if its endpoint was closed meanwhile, or another thread has read
    /// it.
    #[cold]
    pub fn read_error(&self) -> Result<Option<Done>> {
        // SAFETY: all zeros is a valid entry, without room for more data.
        let entry = unsafe {
            let mut entry = std::mem::zeroed::<fi_cq_err_entry>();
            let read = call!(self.raw.as_ref().ops, readerr);
            let n = read(self.raw.as_ptr(), &mut entry, 0);
            if n < 0 {
                let error = Error::from_code(-n as c_int);
                return if error == Error::AGAIN { Ok(None) } else { Err(error) };
            }
            entry
        };
        let flight = self.flights.lock_within().take(entry.op_context as usize);
        let error = Some(Error::from_code(entry.err));
        Ok(done(flight, entry.flags, entry.len, entry.data, error))
    }

    /// Takes note of a transfer; -FI_EAGAIN when the queue has no entry for it.
    #[inline]
    pub(super) fn depart(
        &self,
        buf: CoreBuf,
        token: u64,
        owner: u32,
        kind: CoreOpKind,
    ) -> core::result::Result<usize, (Error, CoreBuf)> {
        let added = self.flights.lock_within().add(Some(buf), token, owner, kind);
        added.map_err(|buf| (Error::AGAIN, buf.unwrap_or_else(CoreBuf::none)))
    }

    /// Takes back a transfer refused by the core provider; returns its buffer.
    pub(super) fn give_back(&self, context: usize) -> Option<CoreBuf> {
        self.flights.lock_within().take(context)?.into_parts().1
    }

    /// Closes `fid` and takes back the transfers posted to it.
    ///
    /// # Safety
    /// `fid` is the open object whose transfers have this owner.
    pub(super) unsafe fn close_owner(&self, fid: *mut fid, owner: u32) -> Vec<InFlightOp> {
        // SAFETY: by this function's contract.
        let closed = unsafe { close(fid) };
        let flights = self.flights.lock_within().take_all(owner);
        if closed.is_err() {
            // The core may still use the transfers' memory, which is leaked.
            return flights
                .into_iter()
                .map(|mut flight| {
                    flight.leak_buf();
                    flight
                })
                .collect();
        }
        flights
    }
}

/// Returns the transfer completed by an entry of a queue, or `None` if its endpoint was closed
/// meanwhile and its transfers were taken back.
#[inline]
fn done(
    flight: Option<InFlightOp>,
    flags: u64,
    len: usize,
    data: u64,
    error: Option<Error>,
) -> Option<Done> {
    let src = abi::FI_ADDR_NOTAVAIL;
    match flight {
        Some(flight) => {
            let (token, buf) = flight.into_parts();
            Some(Done { token: Some(token), buf, flags, len, data, tag: 0, src, error })
        }
        None if flags & (abi::FI_REMOTE_WRITE | abi::FI_REMOTE_READ) != 0 => {
            Some(Done { token: None, buf: None, flags, len, data, tag: 0, src, error })
        }
        None => None,
    }
}

impl Drop for CoreCq {
    fn drop(&mut self) {
        // SAFETY: each object bound to this one holds a reference on it, so none is left.
        if unsafe { close(self.fid()) }.is_err() {
            let flights = std::mem::take(&mut *self.flights.lock_within());
            std::mem::forget(flights);
        }
    }
}
