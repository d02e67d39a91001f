//! Receive queues of another provider, the owner, supplying the receives of local endpoints
//! (`struct fid_peer_srx`, fi_peer(3)).
//!
//! For each message the owner is asked for a receive. If it has none, it gets a note of the
//! message, and later starts it with a receive, or has it dropped. The owner may do so in a thread
//! holding its own locks, while a local thread waits for these. So a started message is only queued
//! here, and processed by the next thread with the engine's lock.
//!
//! As for all objects of owners (`peer.rs`) its functions are called with local locks held.
use super::peer::{object, table};
use crate::abi::{
    fi_addr_t, fi_ops_srx_owner, fi_ops_srx_peer, fi_peer_match_attr, fi_peer_rx_entry,
    fi_peer_srx_context, fid_peer_srx,
};
use crate::boundary::ffi_guard;
use crate::buf::{MessageBytes, RecvBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid_registry::FidRegistry;
use crate::lock::Lock;
use crate::reserved::TAKES_WHOLE;
use crate::sys::EventFd;
use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

const _: () = assert!(size_of::<fi_peer_srx_context>() == 2 * size_of::<usize>());

type GetReceive = unsafe extern "C" fn(
    *mut fid_peer_srx,
    *mut fi_peer_match_attr,
    *mut *mut fi_peer_rx_entry,
) -> c_int;
type QueueReceive = unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int;
type AddrOfEntry = unsafe extern "C" fn(*mut fi_peer_rx_entry) -> fi_addr_t;

/// Passes a completely arrived message without special features to the matching receive, reports
/// it, and returns 1. Returns 0 if nothing was done; the message then takes the general path of
/// fi_peer(3). The arguments are the taker ([`OwnSrxOps::taker`]), a flag for a tagged message, the
/// sender's address in the vector, the tag, and address and length of the bytes. They are passed in
/// registers, to avoid a store-forwarding stall.
pub(crate) type DeliverInlineFn =
    unsafe extern "C" fn(*const c_void, u64, fi_addr_t, u64, *const u8, usize) -> c_int;

/// The table of an owner of this library's.
#[repr(C)]
pub(crate) struct OwnSrxOps {
    /// Public table; its size includes all of this structure.
    pub(crate) ops: fi_ops_srx_owner,
    /// [`TAKES_WHOLE`].
    pub(crate) mark: u64,
    /// Returns the taker of completely arrived messages: queried once and valid as long as the
    /// queue, to shorten the path to the destination.
    pub(crate) taker: unsafe extern "C" fn(*mut fid_peer_srx) -> *const c_void,
    /// Function passing messages to the taker.
    pub(crate) take: DeliverInlineFn,
}

/// Delivery of completely arrived messages to an owner of this library.
#[derive(Clone, Copy, Debug)]
struct InlineDelivery {
    who: *const c_void,
    take: DeliverInlineFn,
}

/// The owner of a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrxOwner {
    srx: NonNull<fid_peer_srx>,
    /// Functions for untagged messages, and for tagged ones.
    get: [GetReceive; 2],
    queue: [QueueReceive; 2],
    for_unknown: Option<unsafe extern "C" fn(*mut fid_peer_srx, Option<AddrOfEntry>)>,
    free: unsafe extern "C" fn(*mut fi_peer_rx_entry),
    /// Taker of completely arrived messages, if the owner belongs to this library.
    taker: Option<InlineDelivery>,
}

// SAFETY: the owner takes calls from any thread (fi_peer(3)).
unsafe impl Send for SrxOwner {}
// SAFETY: the owner takes calls from any thread (fi_peer(3)).
unsafe impl Sync for SrxOwner {}

/// Receive, or note of a message waiting for one, belonging to the owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnersEntry(NonNull<fi_peer_rx_entry>);

// SAFETY: the owner keeps the entry until it is freed, and does not look at it meanwhile.
unsafe impl Send for OwnersEntry {}

/// Answer of an owner for a message.
#[derive(Clone, Copy, Debug)]
pub enum OwnersAnswer {
    /// A receive.
    Receive(OwnersEntry),
    /// Entry for a note of the message ([`SrxOwner::note`]).
    Slot(OwnersEntry),
}

impl OwnersEntry {
    /// Returns the destination of the message, the context of its completion, and flags.
    pub fn receive(self) -> Result<(RecvBuf, Context, u64)> {
        // SAFETY: the entry is the owner's receive, whose memory it lends until the entry is freed.
        unsafe {
            let entry = self.0.as_ref();
            let buf = RecvBuf::from_iov(entry.iov, entry.count)?;
            Ok((buf, Context(entry.context), entry.flags))
        }
    }
}

impl SrxOwner {
    /// Makes the owner in an application's call start messages of ours.
    ///
    /// # Safety
    /// `context` is null or a `struct fi_peer_srx_context`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Result<Self> {
        // SAFETY: by this function's contract; the owner lends its object to us (fi_peer(3)).
        unsafe {
            let srx = object::<fid_peer_srx>(context)?;
            let ops: &fi_ops_srx_owner = table((*srx.as_ptr()).owner_ops)?;
            let need = || Error::INVAL;
            let own = table((*srx.as_ptr()).owner_ops.cast::<OwnSrxOps>());
            let taker = own
                .ok()
                .filter(|own| own.mark == TAKES_WHOLE)
                .map(|own| InlineDelivery { who: (own.taker)(srx.as_ptr()), take: own.take });
            let owner = Self {
                srx,
                get: [ops.get_msg.ok_or_else(need)?, ops.get_tag.ok_or_else(need)?],
                queue: [ops.queue_msg.ok_or_else(need)?, ops.queue_tag.ok_or_else(need)?],
                for_unknown: ops.foreach_unspec_addr,
                free: ops.free_entry.ok_or_else(need)?,
                taker,
            };
            (*srx.as_ptr()).peer_ops = (&raw const PEER_OPS).cast_mut();
            Ok(owner)
        }
    }

    /// Queries the owner for a receive of a message of `len` bytes from `addr`.
    pub fn get(&self, tagged: bool, addr: fi_addr_t, len: usize, tag: u64) -> Result<OwnersAnswer> {
        const NONE_POSTED: c_int = -libc::ENOENT;
        let mut envelope = fi_peer_match_attr { addr, msg_size: len, tag };
        let mut entry = std::ptr::null_mut();
        let get = self.get[usize::from(tagged)];
        // SAFETY: see the module; both places outlive the call.
        let result = unsafe { get(self.srx.as_ptr(), &raw mut envelope, &raw mut entry) };
        let entry = NonNull::new(entry).map(OwnersEntry).ok_or(Error::NOMEM);
        match result {
            0 => entry.map(OwnersAnswer::Receive),
            NONE_POSTED => entry.map(OwnersAnswer::Slot),
            code => Err(Error::check(code).err().unwrap_or(Error::OTHER)),
        }
    }

    /// Returns true if the owner belongs to this library.
    pub fn is_own(&self) -> bool {
        self.taker.is_some()
    }

    /// Passes a completely arrived message to the matching receive and reports it. Returns false if
    /// nothing was done.
    #[inline]
    pub fn take(&self, tagged: bool, src: fi_addr_t, tag: u64, bytes: impl MessageBytes) -> bool {
        let Some(InlineDelivery { who, take }) = self.taker else { return false };
        // SAFETY: see the module; the message's bytes live for the call.
        unsafe { take(who, tagged.into(), src, tag, bytes.address(), bytes.count()) == 1 }
    }

    /// Stores a note of a message at the owner, in an entry provided by it.
    pub fn note(&self, entry: OwnersEntry, message: NotedMessage) -> Result {
        let NotedMessage { tagged, flags, len, tag, cq_data, .. } = message;
        let addr = message.addr.load(Ordering::Relaxed);
        let at = entry.0.as_ptr();
        // SAFETY: the entry is ours until it is queued; the note is taken back when the owner starts
        // or drops the message.
        unsafe {
            (*at).addr = addr;
            (*at).msg_size = len;
            (*at).tag = tag;
            (*at).cq_data = cq_data.unwrap_or(0);
            (*at).flags |= flags;
            (*at).peer_context = Box::into_raw(Box::new(message)).cast();
            let result = self.queue[usize::from(tagged)](at);
            if result != 0 {
                drop(Box::from_raw((*at).peer_context.cast::<NotedMessage>()));
                (*at).peer_context = std::ptr::null_mut();
            }
            Error::check(result).map(drop)
        }
    }

    /// The sender of a noted message has an address now.
    pub fn name(&self, entry: OwnersEntry, addr: fi_addr_t) {
        // SAFETY: the owner has the entry, with the note, until it starts or drops the message, which
        // we would know of.
        let note = unsafe { (*entry.0.as_ptr()).peer_context.cast::<NotedMessage>().as_ref() };
        if let Some(note) = note {
            note.addr.store(addr, Ordering::Relaxed);
        }
    }

    /// Makes the owner query the addresses of messages with unknown senders.
    pub fn names_changed(&self) {
        if let Some(for_unknown) = self.for_unknown {
            // SAFETY: see the module.
            unsafe { for_unknown(self.srx.as_ptr(), Some(addr_of)) };
        }
    }

    /// Gives an entry back to the owner.
    pub fn free(&self, entry: OwnersEntry) {
        // SAFETY: the entry is the owner's, and ours no more.
        unsafe { (self.free)(entry.0.as_ptr()) };
    }
}

/// Waiting message, as named by its owner's entry.
#[derive(Debug)]
pub struct NotedMessage {
    /// Queue for the start of the message.
    pub started: Weak<SrxStartQueue>,
    /// Endpoint, queue and number of the waiting message.
    pub ep: u32,
    /// See `ep`.
    pub queue: usize,
    /// See `ep`.
    pub message: u32,
    /// True for a tagged message.
    pub tagged: bool,
    /// FI_REMOTE_CQ_DATA, if the message has such data.
    pub flags: u64,
    /// Bytes of the message.
    pub len: usize,
    /// The message's tag.
    pub tag: u64,
    /// The message's remote CQ data, if it has any.
    pub cq_data: Option<u64>,
    /// The sender's address, FI_ADDR_NOTAVAIL as long as it has none.
    pub addr: AtomicU64,
}

/// Message started or dropped by an owner.
#[derive(Debug)]
pub struct SrxStart {
    /// The owner's entry.
    pub entry: OwnersEntry,
    /// True if the message has to be dropped.
    pub dropped: bool,
    /// Endpoint, queue and number of the waiting message.
    pub ep: u32,
    /// See `ep`.
    pub queue: usize,
    /// See `ep`.
    pub message: u32,
}

impl SrxStart {
    /// Returns the entry of a message no longer present.
    pub fn give_back(&self) {
        // SAFETY: the entry's queue is the owner's, which has a function to free entries
        // ([`SrxOwner::new`]).
        unsafe {
            let srx = self.entry.0.as_ref().srx.as_ref();
            let free = srx.and_then(|srx| srx.owner_ops.as_ref()).and_then(|ops| ops.free_entry);
            if let Some(free) = free {
                free(self.entry.0.as_ptr());
            }
        }
    }
}

/// Receiver of started messages: an engine.
pub trait SrxStartHandler: Send + Sync {
    /// Processes started messages. If another thread has the engine's lock, makes sure no thread
    /// sleeps before they are processed ([`SrxStartWaker`]).
    fn start_now(&self);
}

/// Wakes the threads sleeping until an engine has work, if a message is started while another
/// thread has the engine's lock.
///
/// This other thread may not check for started messages: it may be in a send, while a third thread
/// sleeps after its check. So the starting thread queues the message, and then signals if it does
/// not get the lock. A thread about to sleep first resets the signal, and processes messages queued
/// afterwards, with the lock. If it reset a signal, the signalled message had been queued before
/// and is found. If not, the descriptor is readable and no thread sleeps. The descriptor exists
/// before any sleep on it, and a fence separates each side's store from its check of the other's.
/// So a thread finding no descriptor has queued the message before the other's check.
#[derive(Debug, Default)]
pub struct SrxStartWaker {
    fd: OnceLock<Option<EventFd>>,
    signalled: AtomicBool,
}

impl SrxStartWaker {
    /// Returns the descriptor that is readable from a signal to [`undo`](Self::undo).
    pub fn fd(&self) -> Option<RawFd> {
        self.fd.get_or_init(|| EventFd::new().ok()).as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Calls `take_up` for started messages, with the engine's lock, unless another thread has it.
    /// In this case no thread sleeps before they are processed.
    pub fn take_up_or_signal<S>(&self, state: &Lock<S>, take_up: impl FnOnce(&mut S)) {
        match state.lock_if_idle() {
            Some(mut state) => take_up(&mut state),
            None => self.signal(),
        }
    }

    /// A message was put down, and another thread has the lock.
    #[cold]
    fn signal(&self) {
        fence(Ordering::SeqCst);
        if let Some(Some(fd)) = self.fd.get() {
            fd.signal();
            // Noted last: a signal that is noted and not given yet would stay when it is undone.
            self.signalled.store(true, Ordering::SeqCst);
        }
    }

    /// Resets the signal before the calling thread sleeps; it then processes started messages.
    pub fn undo(&self) {
        if self.signalled.swap(false, Ordering::SeqCst) {
            if let Some(Some(fd)) = self.fd.get() {
                fd.drain();
            }
        }
        fence(Ordering::SeqCst);
    }
}

/// Messages of an engine started by owners and not processed yet.
pub struct SrxStartQueue {
    any: AtomicBool,
    list: Mutex<Vec<SrxStart>>,
    engine: Weak<dyn SrxStartHandler>,
}

impl std::fmt::Debug for SrxStartQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StartedMessages({:?})", self.any)
    }
}

impl SrxStartQueue {
    /// An empty list, for this engine.
    pub fn new(engine: Weak<dyn SrxStartHandler>) -> Arc<Self> {
        Arc::new(Self { any: AtomicBool::new(false), list: Mutex::default(), engine })
    }

    fn list(&self) -> MutexGuard<'_, Vec<SrxStart>> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Queues a started message.
    pub(crate) fn put(&self, started: SrxStart) {
        self.list().push(started);
        self.any.store(true, Ordering::Release);
    }

    /// Takes all started messages in order, if any; `None` costs one load.
    #[inline]
    pub fn take(&self) -> Option<Vec<SrxStart>> {
        let any = self.any.load(Ordering::Acquire) && self.any.swap(false, Ordering::Acquire);
        any.then(|| std::mem::take(&mut *self.list()))
    }
}

static PEER_OPS: fi_ops_srx_peer = fi_ops_srx_peer {
    size: size_of::<fi_ops_srx_peer>(),
    start_msg: Some(start),
    start_tag: Some(start),
    discard_msg: Some(discard),
    discard_tag: Some(discard),
};

/// # Safety
/// `entry` was queued with a note of this library; the note is used once.
unsafe fn settled(entry: *mut fi_peer_rx_entry, dropped: bool) -> Result {
    let entry = NonNull::new(entry).ok_or(Error::INVAL)?;
    // SAFETY: by this function's contract.
    let note = unsafe {
        let context = std::mem::replace(&mut (*entry.as_ptr()).peer_context, std::ptr::null_mut());
        let note = NonNull::new(context.cast::<NotedMessage>()).ok_or(Error::INVAL)?;
        Box::from_raw(note.as_ptr())
    };
    let started = note.started.upgrade().ok_or(Error::CANCELED)?;
    let NotedMessage { ep, queue, message, .. } = *note;
    let entry = OwnersEntry(entry);
    started.put(SrxStart { entry, dropped, ep, queue, message });
    if let Some(engine) = started.engine.upgrade() {
        engine.start_now();
    }
    Ok(())
}

unsafe extern "C" fn start(entry: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: the owner starts what was queued, once (fi_peer(3)).
    ffi_guard("start of a message", || unsafe { settled(entry, false) })
}

unsafe extern "C" fn discard(entry: *mut fi_peer_rx_entry) -> c_int {
    // SAFETY: the owner drops what was queued, once (fi_peer(3)).
    ffi_guard("discard of a message", || unsafe { settled(entry, true) })
}

unsafe extern "C" fn addr_of(entry: *mut fi_peer_rx_entry) -> fi_addr_t {
    // SAFETY: the owner asks of what was queued with a note of ours.
    let note =
        unsafe { entry.as_ref().and_then(|e| e.peer_context.cast::<NotedMessage>().as_ref()) };
    note.map_or(crate::abi::FI_ADDR_NOTAVAIL, |note| note.addr.load(Ordering::Relaxed))
}

/// Open receive queues by the fids usable for binding: the one returned by fi_srx_context, and the
/// owner's own.
static OPENED: FidRegistry<SrxOwner> = FidRegistry::new();

/// Records this fid as an owner's receive queue.
pub(crate) fn open(fid: usize, owner: SrxOwner) {
    OPENED.retain(|_, old| old.srx != owner.srx);
    OPENED.insert(fid, owner);
}

/// Forgets such a fid.
pub(crate) fn close(fid: usize) {
    OPENED.remove(fid);
}

/// Returns the owner of the receive queue with this fid.
pub(crate) fn find(fid: usize) -> Option<SrxOwner> {
    let is_own = |(_, owner): &(usize, SrxOwner)| owner.srx.addr().get() == fid;
    OPENED.get(fid).or_else(|| OPENED.all().into_iter().find(is_own).map(|(_, owner)| owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn srx_start_wakes_waiters_until_one_of_them_polls() {
        let wake = SrxStartWaker::default();
        wake.signal();
        let fd = wake.fd().unwrap();
        assert!(!is_readable(fd), "no thread could sleep");
        for _ in 0..2 {
            wake.signal();
            wake.signal();
            assert!(is_readable(fd) && wake.fd() == Some(fd));
            wake.undo();
            assert!(!is_readable(fd));
            wake.undo();
        }
    }
}
