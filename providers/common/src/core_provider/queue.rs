//! Transfers of a core provider: completion queues, endpoints, shared receive
//! contexts.
use super::{
    CoreBuf, CoreCntr, CoreDomain, CoreEq, CoreRegion, CoreWaitSet, bind, call, close, code,
    control,
};
use crate::abi::{
    self, FI_ADDR_UNSPEC, fi_addr_t, fi_cq_attr, fi_cq_err_entry, fi_cq_format, fi_cq_tagged_entry,
    fi_msg, fi_msg_rma, fi_peer_links, fi_rma_iov, fi_rx_attr, fi_wait_obj, fid, fid_cq, fid_ep,
};
use crate::boundary::CancelDisabled;
use crate::buf::{IOV_LIMIT, RecvBuf, SendBuf};
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use crate::lock::{Level, Lock, NestedGuard};
use crate::operation::RemoteSegment;
use crate::reserved::{HAS_ENTRIES, SPARES_CALLERS};
use crate::slab::{NONE, Slab};
use crate::stack::on_own_stack;
use core::ffi::{c_int, c_void};
use libc::iovec;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Most entries read in one call.
const BATCH: usize = 16;

/// Flags absent in entries of messages handled by [`SharedRx::arrived`].
const SPECIAL: u64 = abi::FI_REMOTE_WRITE | abi::FI_REMOTE_CQ_DATA | abi::FI_TAGGED;

/// Minimum number of entries of a queue.
const LEAST_ENTRIES: usize = 8;

/// A transfer under way.
#[derive(Debug)]
pub(super) struct InFlightOp {
    /// Internal buffer of the transfer, if any.
    buf: Option<CoreBuf>,
    token: u64,
    /// The endpoint or shared receive context the transfer was posted to.
    owner: u32,
    kind: CoreOpKind,
    /// Distinguishes the transfer from earlier ones in the same slot.
    number: u32,
    /// Neighbours in the list of its owner's transfers.
    prev: u32,
    next: u32,
}

/// Share of a completion queue available to a kind of transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CoreOpKind {
    /// Anything but a receive: all free entries.
    Transfer,
    /// First receive of an endpoint, without which nothing can arrive: up to half of the queue.
    FirstRecv,
    /// A further receive of its endpoint: up to a quarter.
    MoreRecv,
}

/// Transfers in flight, never more than entries of the queue, because a core provider need not
/// store excess ones.
#[derive(Debug, Default)]
struct InFlightOps {
    slab: Slab<InFlightOp>,
    /// The last transfer of each owner.
    owners: Slab<u32>,
    numbers: u32,
    /// Entries of the queue.
    capacity: usize,
    /// Number of receives among the transfers.
    receives: usize,
}

impl InFlightOps {
    #[inline]
    fn add(
        &mut self,
        buf: Option<CoreBuf>,
        token: u64,
        owner: u32,
        kind: CoreOpKind,
    ) -> core::result::Result<usize, Option<CoreBuf>> {
        let fits = self.slab.len() < self.capacity
            && match kind {
                CoreOpKind::Transfer => true,
                CoreOpKind::FirstRecv => self.receives < self.capacity / 2,
                CoreOpKind::MoreRecv => self.receives < self.capacity / 4,
            };
        if !fits {
            return Err(buf);
        }
        self.receives += usize::from(kind != CoreOpKind::Transfer);
        // Never 0, so that no context is null.
        self.numbers = self.numbers.wrapping_add(1).max(1);
        let number = self.numbers;
        let prev = self.owners.get(owner).copied().unwrap_or(NONE);
        let flight = InFlightOp { buf, token, owner, kind, number, prev, next: NONE };
        let id = self.slab.insert(flight);
        if let Some(prev) = self.slab.get_mut(prev) {
            prev.next = id;
        }
        if let Some(last) = self.owners.get_mut(owner) {
            *last = id;
        }
        Ok((u64::from(number) << 32 | u64::from(id)) as usize)
    }

    /// Returns the transfer named by a completion's context, if it is in flight.
    #[inline(always)]
    fn get(&self, context: usize) -> Option<&InFlightOp> {
        let (number, id) = ((context as u64 >> 32) as u32, context as u32);
        self.slab.get(id).filter(|flight| flight.number == number)
    }

    /// Removes the transfer named by a completion's context.
    #[inline]
    fn take(&mut self, context: usize) -> Option<InFlightOp> {
        self.get(context)?;
        self.remove(context as u32)
    }

    #[inline]
    fn remove(&mut self, id: u32) -> Option<InFlightOp> {
        let flight = self.slab.remove(id)?;
        self.receives -= usize::from(flight.kind != CoreOpKind::Transfer);
        if let Some(prev) = self.slab.get_mut(flight.prev) {
            prev.next = flight.next;
        }
        if let Some(next) = self.slab.get_mut(flight.next) {
            next.prev = flight.prev;
        } else if let Some(last) = self.owners.get_mut(flight.owner) {
            *last = flight.prev;
        }
        Some(flight)
    }

    /// The transfers of one owner, the last first.
    fn of(&self, owner: u32) -> impl Iterator<Item = (u32, &InFlightOp)> {
        let mut id = self.owners.get(owner).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let this = id;
            let flight = self.slab.get(this)?;
            id = flight.prev;
            Some((this, flight))
        })
    }

    /// Removes all transfers of one owner, in the order of their posting; the owner posts no more.
    fn take_all(&mut self, owner: u32) -> Vec<InFlightOp> {
        let mut ids: Vec<_> = self.of(owner).map(|(id, _)| id).collect();
        ids.reverse();
        let flights = ids.into_iter().filter_map(|id| self.remove(id)).collect();
        self.owners.remove(owner);
        flights
    }
}

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
    /// The source, as [`CoreEndpoint::set_source`] set it for the connection it came on;
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
    of: &'a fi_cq_tagged_entry,
    src: fi_addr_t,
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
                let open = call!(domain.raw.as_ref().ops, cq_open);
                code(open(domain.raw.as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
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
        let flights = InFlightOps { capacity: size, ..Default::default() };
        // SAFETY: open; a queue that does not know the command refuses it.
        let spares_callers =
            unsafe { control(raw.as_ptr().cast(), SPARES_CALLERS, ptr::null_mut()) }.is_ok();
        Ok(Arc::new(Self {
            raw,
            spares_callers,
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

    /// A number for another endpoint or context, until [`InFlightOps::take_all`].
    pub(super) fn owner(&self) -> u32 {
        self.flights.lock_within().owners.insert(NONE)
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
        self.flights.lock_within().capacity
    }

    /// Transfers under way.
    pub fn in_flight(&self) -> usize {
        self.flights.lock_within().slab.len()
    }

    /// Returns true if there may be something to read, as far as known without progress. It is
    /// false only for a core provider supporting the query ([`HAS_ENTRIES`]).
    pub fn may_have_entries(&self) -> bool {
        // SAFETY: open; a queue that does not know the command refuses it, and none uses the
        // argument.
        let answer = unsafe { control(self.fid(), HAS_ENTRIES, ptr::null_mut()) };
        answer != Err(Error::AGAIN)
    }

    /// Reads up to `max` entries and returns their number. Fails with -FI_EAVAIL if the next entry
    /// is a failure, for [`read_error`](Self::read_error). Any other error concerns the queue of
    /// the core provider itself.
    #[inline(always)]
    pub fn read(&self, max: usize, entries: &mut Entries) -> Result<usize> {
        let max = max.min(BATCH);
        (entries.next, entries.len) = (0, 0);
        // The core would end a cancelled thread in here, and our callers with it.
        let _uncancelled = (!self.spares_callers).then(CancelDisabled::new);
        // SAFETY: the queue is open and of this format; the room has `max` entries.
        let n = unsafe {
            let read = call!(self.raw.as_ref().ops, readfrom);
            let (capacity, from) = (entries.capacity.as_mut_ptr(), entries.from.as_mut_ptr());
            read(self.raw.as_ptr(), capacity.cast(), max, from)
        };
        if n < 0 {
            return match Error::from_code(-n as c_int) {
                Error::AGAIN => Ok(0),
                error => Err(error),
            };
        }
        entries.len = (n as usize).min(max);
        Ok(entries.len)
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
    fn depart(
        &self,
        buf: CoreBuf,
        token: u64,
        owner: u32,
        kind: CoreOpKind,
    ) -> core::result::Result<usize, (Error, CoreBuf)> {
        let added = self.flights.lock_within().add(Some(buf), token, owner, kind);
        added.map_err(|buf| (Error::AGAIN, buf.unwrap_or_else(CoreBuf::none)))
    }

    fn give_back(&self, context: usize) -> Option<CoreBuf> {
        self.flights.lock_within().take(context)?.buf
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
                    std::mem::forget(flight.buf.take());
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
        Some(InFlightOp { buf, token, .. }) => {
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
        // SAFETY: what is bound to it holds a count on this, so nothing is left.
        if unsafe { close(self.fid()) }.is_err() {
            let flights = std::mem::take(&mut *self.flights.lock_within());
            std::mem::forget(flights);
        }
    }
}

/// Shared receive context of a core provider.
#[derive(Debug)]
pub struct SharedRx {
    raw: NonNull<fid_ep>,
    owner: u32,
    cq: Arc<CoreCq>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for SharedRx {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for SharedRx {}

impl SharedRx {
    /// Opens a context for endpoints reporting to `cq`.
    pub fn open(cq: &Arc<CoreCq>, attr: &fi_rx_attr) -> Result<Arc<Self>> {
        let raw = cq.domain.srx(attr)?;
        Ok(Arc::new(Self { raw, owner: cq.owner(), cq: cq.clone() }))
    }

    /// Fast path of the most common case: returns a message in a buffer of this context, to be
    /// parsed in place. Returns `None` for any other entry; it has to be passed to
    /// [`CoreCq::done`].
    #[inline(always)]
    pub fn arrived(&self, entry: CoreEntry<'_>) -> Option<ArrivedPacket<'_>> {
        let of = entry.of;
        if of.flags & SPECIAL != 0 {
            return None;
        }
        let context = of.op_context as usize;
        let flights = self.cq.flights.lock_within();
        let flight = flights.get(context).filter(|flight| flight.owner == self.owner)?;
        let buf = flight.buf.as_ref()?;
        let (base, capacity, desc) = (buf.base, buf.len, buf.desc());
        let (len, source) = (of.len.min(capacity), entry.src);
        Some(ArrivedPacket {
            srx: self,
            _flights: flights,
            base,
            capacity,
            len,
            desc,
            context,
            source,
        })
    }

    /// Posts a buffer for a message of any endpoint.
    pub fn post(&self, buf: CoreBuf, token: u64) -> core::result::Result<(), (Error, CoreBuf)> {
        // SAFETY: open.
        unsafe { post(self.raw, &self.cq, self.owner, buf, token, CoreOpKind::FirstRecv) }
    }
}

/// A message in a buffer of a shared receive context ([`SharedRx::arrived`]). If it is not posted
/// again, nothing has happened.
#[derive(Debug)]
pub struct ArrivedPacket<'a> {
    srx: &'a SharedRx,
    /// Guard keeping the buffer in place.
    _flights: NestedGuard<'a, InFlightOps>,
    base: NonNull<u8>,
    capacity: usize,
    len: usize,
    desc: *mut c_void,
    context: usize,
    /// Source of the message, as reported by the core.
    pub source: fi_addr_t,
}

impl ArrivedPacket<'_> {
    /// The message.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer has `capacity` bytes, at least `len`, and belongs to the transfer. The
        // transfer stays in the table while the lock is held.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// Posts the buffer again unchanged. Returns the buffer if the core has no space for it.
    #[inline(always)]
    pub fn post_again(self) -> core::result::Result<(), CoreBuf> {
        let Self { srx, _flights: flights, base, capacity, desc, context, .. } = self;
        drop(flights);
        // SAFETY: open; the memory stays with the queue until the next completion.
        match unsafe { recv(srx.raw, base.as_ptr(), capacity, desc, context) } {
            Ok(()) => Ok(()),
            Err(_) => srx.cq.give_back(context).map_or(Ok(()), Err),
        }
    }
}

impl Drop for SharedRx {
    fn drop(&mut self) {
        // SAFETY: open; its endpoints hold a count on this, so none is left.
        drop(unsafe { self.cq.close_owner(self.raw.as_ptr().cast(), self.owner) });
    }
}

/// fi_recv(3).
///
/// # Safety
/// `ep` is an open endpoint or context; the memory stays until the completion.
#[inline(always)]
unsafe fn recv(
    ep: NonNull<fid_ep>,
    base: *mut u8,
    len: usize,
    desc: *mut c_void,
    context: usize,
) -> Result {
    // SAFETY: by this function's contract.
    unsafe {
        let recv = call!(ep.as_ref().msg, recv);
        let context = context as *mut c_void;
        check(recv(ep.as_ptr(), base.cast(), len, desc, FI_ADDR_UNSPEC, context))
    }
}

/// Posts a receive.
///
/// # Safety
/// `ep` is an open endpoint or context reporting to `cq`.
unsafe fn post(
    ep: NonNull<fid_ep>,
    cq: &CoreCq,
    owner: u32,
    buf: CoreBuf,
    token: u64,
    kind: CoreOpKind,
) -> core::result::Result<(), (Error, CoreBuf)> {
    let (base, len, desc) = (buf.base.as_ptr(), buf.len, buf.desc());
    let context = cq.depart(buf, token, owner, kind)?;
    // SAFETY: by this function's contract; the memory stays with the queue until the
    // completion, or until the endpoint is closed.
    let posted = unsafe { recv(ep, base, len, desc, context) };
    posted.map_err(|error| (error, cq.give_back(context).unwrap_or_else(CoreBuf::none)))
}

/// Posts the first receive, without which nothing can arrive.
///
/// # Safety
/// `ep` is an open endpoint reporting to `cq`.
pub(super) unsafe fn post_first(
    ep: NonNull<fid_ep>,
    cq: &CoreCq,
    owner: u32,
    buf: CoreBuf,
    token: u64,
) -> core::result::Result<(), (Error, CoreBuf)> {
    // SAFETY: by this function's contract.
    unsafe { post(ep, cq, owner, buf, token, CoreOpKind::FirstRecv) }
}

/// Sends the first `len` bytes of `buf`.
///
/// # Safety
/// `ep` is an open endpoint reporting to `cq`.
pub(super) unsafe fn start_send(
    ep: NonNull<fid_ep>,
    cq: &CoreCq,
    owner: u32,
    buf: CoreBuf,
    len: usize,
    to: fi_addr_t,
    token: u64,
) -> core::result::Result<(), (Error, CoreBuf)> {
    let (base, desc, len) = (buf.base.as_ptr(), buf.desc(), len.min(buf.len));
    let context = cq.depart(buf, token, owner, CoreOpKind::Transfer)?;
    let sent = (|| {
        // SAFETY: by this function's contract; the memory stays with the queue until the
        // completion, or until the endpoint is closed.
        unsafe {
            let send = call!(ep.as_ref().msg, send);
            check(send(ep.as_ptr(), base.cast(), len, desc, to, context as *mut c_void))
        }
    })();
    sent.map_err(|error| (error, cq.give_back(context).unwrap_or_else(CoreBuf::none)))
}

/// Sets [`OPT_SOURCE`](super::OPT_SOURCE).
///
/// # Safety
/// `ep` is an open endpoint.
unsafe fn set_source(ep: NonNull<fid_ep>, source: &fi_addr_t) -> Result {
    // SAFETY: by this function's contract.
    unsafe { set_option(ep, super::OPT_SOURCE, source) }
}

/// Sets an option of level FI_OPT_ENDPOINT (fi_setopt(3)).
///
/// # Safety
/// `ep` is an open endpoint.
unsafe fn set_option<T>(ep: NonNull<fid_ep>, name: c_int, value: &T) -> Result {
    let (value, len) = (std::ptr::from_ref(value).cast::<u8>(), size_of_val(value));
    // SAFETY: by this function's contract; a value of any type has bytes that can be read.
    unsafe { set_bytes(ep, name, std::slice::from_raw_parts(value, len)) }
}

/// Sets an option of level FI_OPT_ENDPOINT to these bytes.
///
/// # Safety
/// `ep` is an open endpoint.
pub(super) unsafe fn set_bytes(ep: NonNull<fid_ep>, name: c_int, value: &[u8]) -> Result {
    let level = abi::FI_OPT_ENDPOINT as c_int;
    // SAFETY: by this function's contract; the value lives for the call.
    unsafe {
        let setopt = call!(ep.as_ref().ops, setopt);
        code(setopt(ep.as_ptr().cast(), level, name, value.as_ptr().cast(), value.len()))
    }
}

/// Remote memory access, without its memory.
struct Access {
    write: bool,
    data: u64,
    flags: u64,
    token: u64,
}

/// Returns the descriptors of a transfer's registered memory for the core provider.
fn descriptors(regions: &[CoreRegion]) -> [*mut c_void; IOV_LIMIT] {
    let mut desc = [ptr::null_mut(); IOV_LIMIT];
    for (desc, region) in desc.iter_mut().zip(regions) {
        *desc = region.desc();
    }
    desc
}

fn check(ret: libc::ssize_t) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::from_code(-ret as c_int)) }
}

/// A core provider's connected endpoint.
#[derive(Debug)]
pub struct CoreEndpoint {
    raw: NonNull<fid_ep>,
    owner: u32,
    eq: Arc<CoreEq>,
    cq: Arc<CoreCq>,
    /// Shared receive context; it must not be closed before the endpoint.
    srx: Option<Arc<SharedRx>>,
    _cntrs: Vec<Arc<CoreCntr>>,
    /// Number of messages the peer has receives for, or [`UNCOUNTED`].
    credits: AtomicU32,
    open: bool,
}

/// The value of the credits while the peer's receives are not counted.
const UNCOUNTED: u32 = u32::MAX;

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreEndpoint {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreEndpoint {}

impl CoreEndpoint {
    /// Returns true if transfers other than receives are in flight, to be completed by the queue.
    /// Its cost is linear in the number of posted receives.
    pub fn has_transfers(&self) -> bool {
        let flights = self.cq.flights.lock_within();
        flights.of(self.owner).any(|(_, flight)| flight.kind == CoreOpKind::Transfer)
    }

    /// Opens an endpoint described by `info`, and enables it. Events name it by `token`. Counters
    /// count according to their flags (fi_endpoint(3)).
    pub fn open(
        info: &InfoBuf,
        eq: &Arc<CoreEq>,
        cq: &Arc<CoreCq>,
        srx: Option<&Arc<SharedRx>>,
        cntrs: &[(Arc<CoreCntr>, u64)],
        token: u64,
    ) -> Result<Self> {
        on_own_stack(|| Self::open_here(info, eq, cq, srx, cntrs, token))
    }

    fn open_here(
        info: &InfoBuf,
        eq: &Arc<CoreEq>,
        cq: &Arc<CoreCq>,
        srx: Option<&Arc<SharedRx>>,
        cntrs: &[(Arc<CoreCntr>, u64)],
        token: u64,
    ) -> Result<Self> {
        let mut raw: *mut fid_ep = ptr::null_mut();
        let domain = &cq.domain;
        // SAFETY: the domain is open; the core only reads the info, during the call.
        let raw = unsafe {
            let open = call!(domain.raw.as_ref().ops, endpoint);
            let info = info.as_ptr().cast_mut();
            code(open(domain.raw.as_ptr(), info, &mut raw, ptr::null_mut()))?;
            NonNull::new(raw).ok_or(Error::OTHER)?
        };
        let ep = Self {
            raw,
            owner: cq.owner(),
            eq: eq.clone(),
            cq: cq.clone(),
            srx: srx.cloned(),
            _cntrs: cntrs.iter().map(|(cntr, _)| cntr.clone()).collect(),
            credits: AtomicU32::new(UNCOUNTED),
            open: true,
        };
        eq.name(ep.fid(), token);
        // SAFETY: all are open and of one fabric.
        unsafe {
            bind(ep.fid(), eq.fid(), 0)?;
            bind(ep.fid(), cq.fid(), abi::FI_TRANSMIT | abi::FI_RECV)?;
            if let Some(srx) = &ep.srx {
                bind(ep.fid(), srx.raw.as_ptr().cast(), 0)?;
            }
            for (cntr, flags) in cntrs {
                bind(ep.fid(), cntr.raw.as_ptr().cast(), *flags)?;
            }
            control(ep.fid(), abi::FI_ENABLE, ptr::null_mut())?;
        }
        Ok(ep)
    }

    fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// Returns true if receives of the core provider's connected endpoints report their source,
    /// with shared buffers or without, once set by [`set_source`](Self::set_source).
    pub fn gives_source(domain: &CoreDomain, info: &InfoBuf) -> bool {
        on_own_stack(|| Self::gives_source_here(domain, info))
    }

    fn gives_source_here(domain: &CoreDomain, info: &InfoBuf) -> bool {
        let mut raw: *mut fid_ep = ptr::null_mut();
        let source = 0u64;
        // SAFETY: the domain is open; the core only reads the info, during the call. The
        // endpoint is open until it is closed here, and the value lives for the call.
        unsafe {
            let asked = (|| {
                let open = call!(domain.raw.as_ref().ops, endpoint);
                let info = info.as_ptr().cast_mut();
                code(open(domain.raw.as_ptr(), info, &mut raw, ptr::null_mut()))?;
                let ep = NonNull::new(raw).ok_or(Error::OTHER)?;
                set_source(ep, &source)
            })();
            if !raw.is_null() {
                let _ = close(raw.cast());
            }
            asked.is_ok()
        }
    }

    /// Makes receives report `source` ([`OPT_SOURCE`](super::OPT_SOURCE)), if the core provider
    /// supports it.
    pub fn set_source(&self, source: fi_addr_t) -> Result {
        // SAFETY: open.
        unsafe { set_source(self.raw, &source) }
    }

    /// Returns true if the core provider knows the peer has ended the connection
    /// ([`OPT_PEER_ENDED`](super::OPT_PEER_ENDED)).
    pub fn peer_has_ended(&self) -> bool {
        let (mut ended, mut len) = (0u8, 1);
        let (level, name) = (abi::FI_OPT_ENDPOINT as c_int, super::OPT_PEER_ENDED);
        // SAFETY: open; the room for the value is as long as said, and lives for the call.
        let is_read: Result = (|| unsafe {
            let getopt = call!(self.raw.as_ref().ops, getopt);
            let value = (&raw mut ended).cast();
            code(getopt(self.raw.as_ptr().cast(), level, name, value, &mut len))
        })();
        is_read.is_ok() && ended != 0
    }

    /// Prevents the core provider from using shared memory with a peer of this host, if supported.
    pub fn forbid_memory(&self) -> Result {
        // SAFETY: open; the value lives for the call.
        unsafe { set_option(self.raw, abi::FI_OPT_SHARED_MEMORY_PERMITTED, &false) }
    }

    /// Returns true if the connection uses shared memory of this host (FI_OPT_PEER_LINKS).
    pub fn is_in_memory(&self) -> bool {
        self.peer_links().is_ok_and(|links| links.memory > 0)
    }

    fn peer_links(&self) -> Result<fi_peer_links> {
        let mut links = fi_peer_links::default();
        let mut len = size_of_val(&links);
        let (level, name) = (abi::FI_OPT_ENDPOINT as c_int, abi::FI_OPT_PEER_LINKS);
        // SAFETY: open; the value and its length live for the call.
        unsafe {
            let getopt = call!(self.raw.as_ref().ops, getopt);
            code(getopt(self.fid(), level, name, (&raw mut links).cast(), &mut len))?;
        }
        Ok(links)
    }

    /// Starts connecting to `addr` (fi_connect(3)).
    pub fn connect(&self, addr: &[u8], data: &[u8]) -> Result {
        // SAFETY: open; address and data live for the call.
        unsafe {
            let connect = call!(self.raw.as_ref().cm, connect);
            let addr = addr.as_ptr().cast();
            code(connect(self.raw.as_ptr(), addr, data.as_ptr().cast(), data.len()))
        }
    }

    /// Accepts the request of its info (fi_accept(3)).
    pub fn accept(&self, data: &[u8]) -> Result {
        // SAFETY: open; the data live for the call.
        unsafe {
            let accept = call!(self.raw.as_ref().cm, accept);
            code(accept(self.raw.as_ptr(), data.as_ptr().cast(), data.len()))
        }
    }

    /// Posts a buffer for a message; `first` if nothing can come without it.
    pub fn post(
        &self,
        buf: CoreBuf,
        token: u64,
        first: bool,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        let kind = if first { CoreOpKind::FirstRecv } else { CoreOpKind::MoreRecv };
        // SAFETY: open.
        unsafe { post(self.raw, &self.cq, self.owner, buf, token, kind) }
    }

    /// Sets the number of messages the peer has receives for; further ones wait for
    /// [`add_credits`](Self::add_credits). The last credit is reserved for
    /// [`send_urgent`](Self::send_urgent). Calls on one endpoint are serialized.
    pub fn count_credits(&self, credits: u32) {
        self.credits.store(credits.min(UNCOUNTED - 1), Relaxed);
    }

    /// Records further receives posted by the peer.
    pub fn add_credits(&self, credits: u32) {
        let now = self.credits.load(Relaxed);
        if now != UNCOUNTED {
            self.credits.store(now.saturating_add(credits).min(UNCOUNTED - 1), Relaxed);
        }
    }

    /// Returns true if the peer has more than `reserve` receives.
    #[inline]
    fn has_credit(&self, reserve: u32) -> bool {
        self.credits.load(Relaxed) > reserve
    }

    /// Records a message consuming one of the peer's receives.
    #[inline]
    fn took_credit(&self) {
        let credits = self.credits.load(Relaxed);
        if credits != UNCOUNTED {
            self.credits.store(credits - 1, Relaxed);
        }
    }

    /// Sends a message copied by the core provider at once, without a completion.
    #[inline(always)]
    pub fn inject(&self, bytes: &[u8]) -> Result {
        if !self.has_credit(1) {
            return Err(Error::AGAIN);
        }
        // SAFETY: open; the bytes live for the call, which is as long as the core
        // needs them.
        unsafe {
            let inject = call!(self.raw.as_ref().msg, inject);
            check(inject(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len(), FI_ADDR_UNSPEC))?;
        }
        self.took_credit();
        Ok(())
    }

    /// Sends the first `len` bytes of `buf`.
    #[inline]
    pub fn send(
        &self,
        buf: CoreBuf,
        len: usize,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        self.send_keeping(1, buf, len, token)
    }

    /// Sends the first `len` bytes of `buf`, even if this uses the peer's last receive. The message
    /// reports receives posted by this endpoint.
    pub fn send_urgent(
        &self,
        buf: CoreBuf,
        len: usize,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        self.send_keeping(0, buf, len, token)
    }

    #[inline]
    fn send_keeping(
        &self,
        reserve: u32,
        buf: CoreBuf,
        len: usize,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        if !self.has_credit(reserve) {
            return Err((Error::AGAIN, buf));
        }
        // SAFETY: open, and it reports to this queue.
        unsafe { start_send(self.raw, &self.cq, self.owner, buf, len, FI_ADDR_UNSPEC, token) }?;
        self.took_credit();
        Ok(())
    }

    /// Sends the first `len` bytes of `buf` followed by `payload`, owned by the transfer until the
    /// completion. `regions` are those of its segments, if required by the core provider.
    pub fn send_with(
        &self,
        buf: CoreBuf,
        len: usize,
        payload: &SendBuf,
        regions: &[CoreRegion],
        flags: u64,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        if !self.has_credit(1) {
            return Err((Error::AGAIN, buf));
        }
        let head = iovec { iov_base: buf.base.as_ptr().cast(), iov_len: len.min(buf.len) };
        let mut iov = [head; IOV_LIMIT + 1];
        let mut desc = [ptr::null_mut(); IOV_LIMIT + 1];
        desc[0] = buf.desc();
        let parts = payload.iov();
        iov[1..=parts.len()].copy_from_slice(parts);
        for (desc, region) in desc[1..].iter_mut().zip(regions) {
            *desc = region.desc();
        }
        let context = self.cq.depart(buf, token, self.owner, CoreOpKind::Transfer)?;
        let message = fi_msg {
            msg_iov: iov.as_ptr(),
            desc: desc.as_mut_ptr(),
            iov_count: parts.len() + 1,
            addr: FI_ADDR_UNSPEC,
            context: context as *mut c_void,
            data: 0,
        };
        let sent = (|| {
            // SAFETY: open; the library's memory stays with the queue until the completion, and the
            // application's is valid until then; the vectors live for the call.
            unsafe {
                let send = call!(self.raw.as_ref().msg, sendmsg);
                check(send(self.raw.as_ptr(), &raw const message, flags | abi::FI_COMPLETION))
            }
        })();
        sent.map_err(|error| (error, self.taken_back(context)))?;
        self.took_credit();
        Ok(())
    }

    fn taken_back(&self, context: usize) -> CoreBuf {
        self.cq.give_back(context).unwrap_or_else(CoreBuf::none)
    }

    /// Reads a peer's memory into the application's, owned by the transfer until the completion. At
    /// most [`IOV_LIMIT`] remote segments.
    pub fn read(
        &self,
        to: &RecvBuf,
        regions: &[CoreRegion],
        from: &[RemoteSegment],
        flags: u64,
        token: u64,
    ) -> Result {
        let (iov, what) = (to.iov(), Access { write: false, data: 0, flags, token });
        self.rma(iov, &descriptors(regions), from, what, None).map_err(|(error, _)| error)
    }

    /// Writes the application's memory, owned by the transfer until the completion, to a peer's. At
    /// most [`IOV_LIMIT`] remote segments.
    pub fn write(
        &self,
        from: &SendBuf,
        regions: &[CoreRegion],
        to: &[RemoteSegment],
        data: u64,
        flags: u64,
        token: u64,
    ) -> Result {
        let (iov, what) = (from.iov(), Access { write: true, data, flags, token });
        self.rma(iov, &descriptors(regions), to, what, None).map_err(|(error, _)| error)
    }

    /// Writes a buffer of ours to a peer's memory: as many bytes as `to` has.
    pub fn write_own(
        &self,
        buf: CoreBuf,
        to: &[RemoteSegment],
        data: u64,
        flags: u64,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        let total = to.iter().fold(0u64, |sum, iov_out| sum.saturating_add(iov_out.len));
        let iov_len = usize::try_from(total).unwrap_or(usize::MAX).min(buf.len);
        let iov = [iovec { iov_base: buf.base.as_ptr().cast(), iov_len }];
        let mut desc = descriptors(&[]);
        desc[0] = buf.desc();
        let what = Access { write: true, data, flags, token };
        self.rma(&iov, &desc, to, what, Some(buf))
            .map_err(|(error, buf)| (error, buf.unwrap_or_else(CoreBuf::none)))
    }

    /// Fills `buf` with bytes of a peer's memory.
    pub fn read_own(
        &self,
        buf: CoreBuf,
        from: &[RemoteSegment],
        flags: u64,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        let total = from.iter().fold(0u64, |sum, iov_out| sum.saturating_add(iov_out.len));
        if total != buf.len as u64 {
            return Err((Error::INVAL, buf));
        }
        let iov = [iovec { iov_base: buf.base.as_ptr().cast(), iov_len: buf.len }];
        let mut desc = descriptors(&[]);
        desc[0] = buf.desc();
        let what = Access { write: false, data: 0, flags, token };
        self.rma(&iov, &desc, from, what, Some(buf))
            .map_err(|(error, buf)| (error, buf.unwrap_or_else(CoreBuf::none)))
    }

    fn rma(
        &self,
        iov: &[iovec],
        desc: &[*mut c_void; IOV_LIMIT],
        remote: &[RemoteSegment],
        what: Access,
        buf: Option<CoreBuf>,
    ) -> core::result::Result<(), (Error, Option<CoreBuf>)> {
        let mut segments = [fi_rma_iov { addr: 0, len: 0, key: 0 }; IOV_LIMIT];
        if remote.len() > IOV_LIMIT {
            return Err((Error::INVAL, buf));
        }
        for (iov_out, segment) in segments.iter_mut().zip(remote) {
            let Ok(len) = usize::try_from(segment.len) else { return Err((Error::INVAL, buf)) };
            *iov_out = fi_rma_iov { addr: segment.addr, len, key: segment.key };
        }
        let added =
            self.cq.flights.lock_within().add(buf, what.token, self.owner, CoreOpKind::Transfer);
        let context = added.map_err(|buf| (Error::AGAIN, buf))?;
        let message = fi_msg_rma {
            msg_iov: iov.as_ptr(),
            desc: desc.as_ptr().cast_mut(),
            iov_count: iov.len(),
            addr: FI_ADDR_UNSPEC,
            rma_iov: segments.as_ptr(),
            rma_iov_count: remote.len(),
            context: context as *mut c_void,
            data: what.data,
        };
        let flags = what.flags | abi::FI_COMPLETION;
        let started = (|| {
            // SAFETY: open; the memory is valid, or stays with the queue, until the completion; the
            // vectors live for the call, and are only read by it.
            unsafe {
                let table = self.raw.as_ref().rma;
                let call = if what.write { call!(table, writemsg) } else { call!(table, readmsg) };
                check(call(self.raw.as_ptr(), &raw const message, flags))
            }
        })();
        started.map_err(|error| (error, self.cq.give_back(context)))
    }

    /// Closes the endpoint. Returns the tokens of the transfers in flight in the order of their
    /// posting; no completion for them follows.
    pub fn close(mut self) -> Vec<(u64, Option<CoreBuf>)> {
        self.end().into_iter().map(|flight| (flight.token, flight.buf)).collect()
    }

    fn end(&mut self) -> Vec<InFlightOp> {
        if !std::mem::replace(&mut self.open, false) {
            return Vec::new();
        }
        self.eq.forget(self.fid());
        // SAFETY: open until here.
        unsafe { self.cq.close_owner(self.fid(), self.owner) }
    }
}

impl Drop for CoreEndpoint {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
