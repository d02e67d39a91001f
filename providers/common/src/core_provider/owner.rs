//! Queues of a utility provider used by its core provider for completions and receives
//! (fi_peer(3)): the utility provider is the owner, and the core provider the peer.
//!
//! Each endpoint of a core provider has one [`PeerCqs`]: a completion queue, a receive queue
//! and, if counting is requested, counters. The core provider's calls on them go to a
//! [`QueueOwner`], without pointers and without the core provider's structures. An entry of the
//! receive queue is a record at a stable address. The core provider holds it from its request for a
//! receive until it frees it.
//!
//! The core provider makes these calls with its own locks held. So an owner must not call a core
//! provider from within these calls, nor with a lock held that these calls take.
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_CLASS_PEER_CNTR, FI_CLASS_PEER_CQ, FI_CLASS_PEER_SRX, FI_READ, FI_RECV,
    FI_REMOTE_CQ_DATA, FI_WRITE, fi_addr_t, fi_cq_err_entry, fi_ops, fi_ops_cntr_owner,
    fi_ops_cq_owner, fi_ops_srx_owner, fi_peer_match_attr, fi_peer_rx_entry, fid, fid_ep,
    fid_peer_cntr, fid_peer_cq, fid_peer_srx,
};
use crate::boundary::{ffi_guard, ffi_guard_nocancel};
use crate::buf::{IOV_LIMIT, MessageBytes, RecvBuf, UntrustedBytes};
use crate::cq::{Completion, CompletionError, Context};
use crate::error::{Error, Result};
use crate::fid::ops;
use crate::lock::{Guard, Level, Lock};
use crate::peer_srx::OwnSrxOps;
use crate::reserved::TAKES_WHOLE;
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

/// Message arriving at an endpoint of a core provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrivingMessage {
    /// True for a tagged message.
    pub tagged: bool,
    /// Sender, by its user id in the core provider's address vector; FI_ADDR_NOTAVAIL for a sender
    /// in no vector.
    pub src: fi_addr_t,
    /// Bytes of the message.
    pub len: usize,
    /// The tag of a tagged message.
    pub tag: u64,
    /// The remote CQ data, as far as it is known already.
    pub cq_data: Option<u64>,
}

/// Receiver of all events of a core provider's endpoint.
pub trait QueueOwner: Send + Sync + 'static {
    /// State of a receive stored by the owner while the core provider fills it.
    type Filling: Send;

    /// Returns the oldest receive matching a message.
    fn arrived(&self, message: &ArrivingMessage) -> Option<(RecvBuf, Self::Filling)>;
    /// [`arrived_whole`](Self::arrived_whole) without calls and panics; returns false in any other
    /// case.
    fn arrived_short(&self, message: &ArrivingMessage, bytes: impl MessageBytes) -> bool;
    /// Passes a completely arrived message to the matching receive, and reports it. Returns false
    /// if nothing was done; the core provider then requests a receive.
    fn arrived_whole(&self, message: &ArrivingMessage, bytes: impl MessageBytes) -> bool;
    /// A message waits at the core: its receive starts it, by this number.
    fn waits(&self, message: &ArrivingMessage, entry: u32);
    /// Reports new addresses of senders: `addr_of` returns the one of a waiting message's sender.
    fn named(&self, addr_of: &dyn Fn(u32) -> fi_addr_t);
    /// A receive is complete.
    fn received(&self, filling: Self::Filling, of: &Completion);
    /// A receive failed.
    fn receive_failed(&self, filling: Self::Filling, error: &CompletionError);
    /// A transfer is complete, or a peer wrote to our memory and has CQ data for it.
    fn done(&self, of: Completion);
    /// A transfer failed.
    fn failed(&self, error: CompletionError);
    /// An operation of this kind (FI_SEND, FI_READ, FI_REMOTE_WRITE …) is complete, or failed.
    fn counted(&self, kind: u64, failed: bool);
}

/// State of an entry of the receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecordState {
    /// Unused.
    Free,
    /// The core has it: it asked for a receive and has not queued the entry.
    Given,
    /// The core provider has a message for it, waiting for a receive.
    Waits,
}

/// An entry of the receive queue.
#[repr(C)]
struct RxRecord<F> {
    /// The context of the receive, a `struct fi_context2`: the core may use it as it likes.
    scratch: [usize; 8],
    entry: fi_peer_rx_entry,
    iov: [iovec; IOV_LIMIT],
    desc: [*mut c_void; IOV_LIMIT],
    number: u32,
    tagged: bool,
    state: RecordState,
    /// Receive being filled by the core provider.
    filling: Option<F>,
}

const NOWHERE: iovec = iovec { iov_base: ptr::null_mut(), iov_len: 0 };

impl<F> RxRecord<F> {
    fn new(number: u32, srx: *mut fid_peer_srx) -> NonNull<Self> {
        let record = Box::new(Self {
            scratch: [0; 8],
            entry: fi_peer_rx_entry {
                srx,
                addr: FI_ADDR_NOTAVAIL,
                msg_size: 0,
                tag: 0,
                cq_data: 0,
                flags: 0,
                context: ptr::null_mut(),
                count: 0,
                desc: ptr::null_mut(),
                peer_context: ptr::null_mut(),
                owner_context: ptr::null_mut(),
                iov: ptr::null_mut(),
            },
            iov: [NOWHERE; IOV_LIMIT],
            desc: [ptr::null_mut(); IOV_LIMIT],
            number,
            tagged: false,
            state: RecordState::Free,
            filling: None,
        });
        NonNull::from(Box::leak(record))
    }

    /// Converts the entry to the one of a receive.
    ///
    /// # Safety
    /// `this` is a record not accessed by the core provider now.
    unsafe fn fill(this: NonNull<Self>, buf: &RecvBuf, filling: F) {
        let at = this.as_ptr();
        // SAFETY: by this function's contract; a buffer has as many segments as a record at most.
        unsafe {
            let mut count = 0;
            for (segment, part) in buf.iov().iter().zip(buf.local()) {
                (*at).iov[count] = *segment;
                (*at).desc[count] = part.desc as *mut c_void;
                count += 1;
            }
            (*at).entry.count = count;
            (*at).entry.iov = (&raw mut (*at).iov).cast();
            (*at).entry.desc = (&raw mut (*at).desc).cast();
            (*at).entry.context = at.cast();
            (*at).filling = Some(filling);
        }
    }
}

/// The entries of a receive queue, by their numbers.
struct RxRecords<F> {
    all: Vec<NonNull<RxRecord<F>>>,
    free: Vec<u32>,
}

// SAFETY: the records are memory of this library, used only by their holder: the core provider, or
// the thread holding the lock around this.
unsafe impl<F: Send> Send for RxRecords<F> {}

/// Counter of this library updated by a core provider.
struct PeerCntr<O: QueueOwner> {
    c: fid_peer_cntr,
    kind: u64,
    owner: Arc<O>,
}

/// Queues of one core provider endpoint, used by it until it is closed.
pub(super) struct PeerCqs<O: QueueOwner> {
    cq: UnsafeCell<fid_peer_cq>,
    srx: UnsafeCell<fid_peer_srx>,
    owner: Arc<O>,
    records: Lock<RxRecords<O::Filling>>,
    #[allow(clippy::vec_box, reason = "the core has their addresses")]
    cntrs: Mutex<Vec<Box<PeerCntr<O>>>>,
}

// SAFETY: the C structures are written once, by the opening of the core's objects, and then only
// read; the rest is thread-safe by itself.
unsafe impl<O: QueueOwner> Sync for PeerCqs<O> {}
// SAFETY: the C structures point to the queues themselves and to tables that stay.
unsafe impl<O: QueueOwner> Send for PeerCqs<O> {}
// SAFETY: as for `PeerCqs`; the core only calls the table's functions.
unsafe impl<O: QueueOwner> Send for PeerCntr<O> {}

impl<O: QueueOwner> std::fmt::Debug for PeerCqs<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerCqs({} records)", self.records().all.len())
    }
}

/// Calls of an object closed only by its owner.
static FID_OPS: fi_ops = ops(close);

unsafe extern "C" fn close(_fid: *mut fid) -> c_int {
    Error::NOSYS.to_ret()
}

/// Returns a fid of a class. Its context points to the state needed by the functions of its table.
fn owned_fid(class: u32, context: *const c_void) -> fid {
    fid {
        fclass: class as usize,
        context: context.cast_mut(),
        ops: (&raw const FID_OPS).cast_mut(),
    }
}

impl<O: QueueOwner> PeerCqs<O> {
    const CQ_OPS: &'static fi_ops_cq_owner = &fi_ops_cq_owner {
        size: size_of::<fi_ops_cq_owner>(),
        write: Some(write::<O>),
        writeerr: Some(write_error::<O>),
    };
    const SRX_OPS: &'static OwnSrxOps = &OwnSrxOps {
        ops: fi_ops_srx_owner {
            size: size_of::<OwnSrxOps>(),
            get_msg: Some(get::<O, false>),
            get_tag: Some(get::<O, true>),
            queue_msg: Some(queue::<O>),
            queue_tag: Some(queue::<O>),
            foreach_unspec_addr: Some(foreach_unspec_addr::<O>),
            free_entry: Some(free::<O>),
        },
        mark: TAKES_WHOLE,
        taker: taker::<O>,
        take: recv_whole_message::<O>,
    };
    const CNTR_OPS: &'static fi_ops_cntr_owner = &fi_ops_cntr_owner {
        size: size_of::<fi_ops_cntr_owner>(),
        inc: Some(count::<O, false>),
        incerr: Some(count::<O, true>),
    };

    /// [`SRX_OPS`](Self::SRX_OPS) without the functions for complete messages.
    const REQUEST_SRX_OPS: &'static OwnSrxOps = &OwnSrxOps { mark: 0, ..*Self::SRX_OPS };

    /// Returns queues with calls going to `owner`, of a core provider with calls needing locks of
    /// this level. `takes_whole`: the core provider may pass complete messages.
    pub(super) fn new(owner: Arc<O>, level: Level, takes_whole: bool) -> Box<Self> {
        let srx_ops = if takes_whole { Self::SRX_OPS } else { Self::REQUEST_SRX_OPS };
        let none = || owned_fid(0, ptr::null());
        let mut peer_cqs = Box::new(Self {
            cq: UnsafeCell::new(fid_peer_cq {
                fid: none(),
                owner_ops: ptr::from_ref(Self::CQ_OPS).cast_mut(),
            }),
            srx: UnsafeCell::new(fid_peer_srx {
                ep_fid: fid_ep {
                    fid: none(),
                    ops: ptr::null_mut(),
                    cm: ptr::null_mut(),
                    msg: ptr::null_mut(),
                    rma: ptr::null_mut(),
                    tagged: ptr::null_mut(),
                    atomic: ptr::null_mut(),
                    collective: ptr::null_mut(),
                },
                owner_ops: ptr::from_ref(srx_ops).cast::<fi_ops_srx_owner>().cast_mut(),
                peer_ops: ptr::null_mut(),
            }),
            owner,
            records: Lock::with_level(RxRecords { all: Vec::new(), free: Vec::new() }, level),
            cntrs: Mutex::default(),
        });
        let at = (&raw const *peer_cqs).cast::<c_void>();
        peer_cqs.cq.get_mut().fid = owned_fid(FI_CLASS_PEER_CQ as u32, at);
        peer_cqs.srx.get_mut().ep_fid.fid = owned_fid(FI_CLASS_PEER_SRX as u32, at);
        peer_cqs
    }

    /// The completion queue, for fi_cq_open(3) with FI_PEER.
    pub(super) fn cq(&self) -> *mut fid_peer_cq {
        self.cq.get()
    }

    /// The receive queue, for fi_srx_context(3) with FI_PEER.
    pub(super) fn srx(&self) -> *mut fid_peer_srx {
        self.srx.get()
    }

    /// A counter of operations of this kind, for fi_cntr_open(3) with FI_PEER.
    pub(super) fn cntr(&self, kind: u64) -> *mut fid_peer_cntr {
        let mut cntr = Box::new(PeerCntr {
            c: fid_peer_cntr {
                fid: owned_fid(FI_CLASS_PEER_CNTR as u32, ptr::null()),
                owner_ops: ptr::from_ref(Self::CNTR_OPS).cast_mut(),
            },
            kind,
            owner: self.owner.clone(),
        });
        let at = &raw mut *cntr;
        // SAFETY: the counter is new, and not shared yet.
        let c = unsafe {
            (*at).c.fid.context = at.cast();
            &raw mut (*at).c
        };
        self.cntrs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(cntr);
        c
    }

    #[inline]
    fn records(&self) -> Guard<'_, RxRecords<O::Filling>> {
        self.records.lock()
    }

    /// Returns an unused record.
    fn take(&self) -> NonNull<RxRecord<O::Filling>> {
        let mut records = self.records();
        if let Some(number) = records.free.pop() {
            return records.all[number as usize];
        }
        let record = RxRecord::new(records.all.len() as u32, self.srx());
        records.all.push(record);
        record
    }

    /// The record of this number, if a message waits there.
    fn waiting(&self, entry: u32) -> Result<NonNull<RxRecord<O::Filling>>> {
        let record = self.records().all.get(entry as usize).copied().ok_or(Error::INVAL)?;
        // SAFETY: a record that is ours, as long as the queues are there.
        match unsafe { (*record.as_ptr()).state } {
            RecordState::Waits => Ok(record),
            _ => Err(Error::INVAL),
        }
    }

    /// Makes the core provider move a waiting message to a receive.
    pub(super) fn start(&self, entry: u32, buf: &RecvBuf, filling: O::Filling) {
        let Ok(record) = self.waiting(entry) else { return };
        let at = record.as_ptr();
        // SAFETY: the entry is with us until it is started; the core set its table when it opened the
        // receive queue, and the queues live as long as its endpoint.
        let started = unsafe {
            RxRecord::fill(record, buf, filling);
            (*at).state = RecordState::Given;
            let peer = (*self.srx.get()).peer_ops.as_ref();
            let start =
                peer.and_then(|ops| if (*at).tagged { ops.start_tag } else { ops.start_msg });
            start.ok_or(Error::NOSYS).and_then(|start| Error::check(start(&raw mut (*at).entry)))
        };
        match started {
            Ok(_) | Err(Error::INPROGRESS) => {}
            Err(error) => self.give_back(record, error),
        }
    }

    /// Makes the core provider drop a waiting message.
    pub(super) fn discard(&self, entry: u32) {
        let Ok(record) = self.waiting(entry) else { return };
        let at = record.as_ptr();
        // SAFETY: as in `start`.
        let dropped = unsafe {
            (*at).state = RecordState::Given;
            let peer = (*self.srx.get()).peer_ops.as_ref();
            let discard =
                peer.and_then(|ops| if (*at).tagged { ops.discard_tag } else { ops.discard_msg });
            discard
                .ok_or(Error::NOSYS)
                .and_then(|discard| Error::check(discard(&raw mut (*at).entry)))
        };
        if let Err(error) = dropped {
            self.give_back(record, error);
        }
    }

    /// Takes a record back. A receive not reported yet fails.
    fn give_back(&self, record: NonNull<RxRecord<O::Filling>>, error: Error) {
        // SAFETY: the core has given the record back, so that it is ours alone.
        let filling = unsafe {
            let at = record.as_ptr();
            if (*at).state == RecordState::Free {
                return;
            }
            (*at).state = RecordState::Free;
            let filling = (*at).filling.take();
            self.records().free.push((*at).number);
            filling
        };
        if let Some(filling) = filling {
            let of = Completion::of(Context::NULL, FI_RECV, 0);
            self.owner.receive_failed(filling, &CompletionError::new(of, error));
        }
    }
}

impl<O: QueueOwner> Drop for PeerCqs<O> {
    fn drop(&mut self) {
        for record in self.records().all.drain(..) {
            // SAFETY: made by `RxRecord::new`; the core's endpoint is closed.
            drop(unsafe { Box::from_raw(record.as_ptr()) });
        }
    }
}

// SAFETY of the functions below: each is reachable only through the tables of queues that `new` made,
// which the core has until its endpoint is closed; the context of the fids is what was set there.
// Entries are records of these queues.

/// Returns the queues of a fid.
///
/// # Safety
/// `fid` is one of the objects of a [`PeerCqs`].
unsafe fn queues<'a, O: QueueOwner>(fid: *const fid) -> Result<&'a PeerCqs<O>> {
    // SAFETY: by this function's contract.
    unsafe {
        let fid = fid.as_ref().ok_or(Error::INVAL)?;
        fid.context.cast::<PeerCqs<O>>().as_ref().ok_or(Error::INVAL)
    }
}

/// Returns the queues and the record of an entry.
///
/// # Safety
/// `entry` is null or was returned by [`get`].
unsafe fn record<'a, O: QueueOwner>(
    entry: *mut fi_peer_rx_entry,
) -> Result<(&'a PeerCqs<O>, NonNull<RxRecord<O::Filling>>)> {
    // SAFETY: by this function's contract; the owner's context is the record.
    unsafe {
        let entry = entry.as_ref().ok_or(Error::INVAL)?;
        let record = NonNull::new(entry.owner_context.cast()).ok_or(Error::INVAL)?;
        Ok((queues::<O>(entry.srx.cast())?, record))
    }
}

unsafe extern "C" fn get<O: QueueOwner, const TAGGED: bool>(
    srx: *mut fid_peer_srx,
    envelope: *mut fi_peer_match_attr,
    out: *mut *mut fi_peer_rx_entry,
) -> c_int {
    ffi_guard_nocancel("a message that arrives", || -> Result<c_int> {
        // SAFETY: see above; the core's arguments live for the call.
        unsafe {
            let peer_cqs = queues::<O>(srx.cast())?;
            let (envelope, out) = (envelope.as_ref().ok_or(Error::INVAL)?, out.as_mut());
            let out = out.ok_or(Error::INVAL)?;
            let message = ArrivingMessage {
                tagged: TAGGED,
                src: envelope.addr,
                len: envelope.msg_size,
                tag: if TAGGED { envelope.tag } else { 0 },
                cq_data: None,
            };
            let found = peer_cqs.owner.arrived(&message);
            let record = peer_cqs.take();
            let at = record.as_ptr();
            (*at).state = RecordState::Given;
            (*at).tagged = TAGGED;
            let entry = &mut (*at).entry;
            (entry.addr, entry.msg_size, entry.tag) = (message.src, message.len, message.tag);
            (entry.cq_data, entry.flags, entry.count) = (0, 0, 0);
            (entry.context, entry.peer_context) = (ptr::null_mut(), ptr::null_mut());
            entry.owner_context = at.cast();
            *out = &raw mut (*at).entry;
            match found {
                Some((buf, filling)) => {
                    RxRecord::fill(record, &buf, filling);
                    Ok(0)
                }
                None => Err(Error::from_code(libc::ENOENT)),
            }
        }
    })
}

unsafe extern "C" fn taker<O: QueueOwner>(srx: *mut fid_peer_srx) -> *const c_void {
    // SAFETY: see above: the queue is one of ours, as only providers of this library call.
    unsafe { Arc::as_ptr(&(*(*srx).ep_fid.fid.context.cast::<PeerCqs<O>>()).owner).cast() }
}

/// Fast path of messages without calls and panics: saves the stack frame.
unsafe extern "C" fn recv_whole_message<O: QueueOwner>(
    taker: *const c_void,
    tagged: u64,
    src: fi_addr_t,
    tag: u64,
    first: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the owner, which [`taker`] gave; the bytes live for the call, and are the core's.
    let (owner, bytes) = unsafe { (&*taker.cast::<O>(), UntrustedBytes::new(first, len)) };
    let message = ArrivingMessage { tagged: tagged != 0, src, len, tag, cq_data: None };
    if owner.arrived_short(&message, bytes) {
        return 1;
    }
    // SAFETY: by this function's contract.
    unsafe { take_longer::<O>(taker, tagged, src, tag, first, len) }
}

/// [`recv_whole_message`] for any message.
///
/// # Safety
/// As for [`recv_whole_message`].
#[inline(never)]
unsafe extern "C" fn take_longer<O: QueueOwner>(
    taker: *const c_void,
    tagged: u64,
    src: fi_addr_t,
    tag: u64,
    first: *const u8,
    len: usize,
) -> c_int {
    let taken = ffi_guard_nocancel("a whole message that arrives", || -> ssize_t {
        // SAFETY: as in `recv_whole_message`.
        let (owner, bytes) = unsafe { (&*taker.cast::<O>(), UntrustedBytes::new(first, len)) };
        let message = ArrivingMessage { tagged: tagged != 0, src, len, tag, cq_data: None };
        owner.arrived_whole(&message, bytes).into()
    });
    taken as c_int
}

unsafe extern "C" fn queue<O: QueueOwner>(entry: *mut fi_peer_rx_entry) -> c_int {
    ffi_guard("a message that waits", || {
        // SAFETY: see above; the core has filled the entry in.
        unsafe {
            let (peer_cqs, record) = record::<O>(entry)?;
            let at = record.as_ptr();
            let entry = &(*at).entry;
            let message = ArrivingMessage {
                tagged: (*at).tagged,
                src: entry.addr,
                len: entry.msg_size,
                tag: if (*at).tagged { entry.tag } else { 0 },
                cq_data: (entry.flags & FI_REMOTE_CQ_DATA != 0).then_some(entry.cq_data),
            };
            let number = (*at).number;
            (*at).state = RecordState::Waits;
            peer_cqs.owner.waits(&message, number);
        }
        Ok(())
    })
}

unsafe extern "C" fn foreach_unspec_addr<O: QueueOwner>(
    srx: *mut fid_peer_srx,
    addr_of: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> fi_addr_t>,
) {
    ffi_guard("addresses of senders", || -> Result {
        // SAFETY: see above.
        let peer_cqs = unsafe { queues::<O>(srx.cast()) }?;
        let addr_of = addr_of.ok_or(Error::INVAL)?;
        peer_cqs.owner.named(&|entry| {
            peer_cqs.waiting(entry).map_or(FI_ADDR_NOTAVAIL, |record| {
                // SAFETY: the core has a message for this entry, and gave the function for such.
                unsafe { addr_of(&raw mut (*record.as_ptr()).entry) }
            })
        });
        Ok(())
    });
}

unsafe extern "C" fn free<O: QueueOwner>(entry: *mut fi_peer_rx_entry) {
    ffi_guard_nocancel("an entry that comes back", || -> Result {
        // SAFETY: see above; the core gives the entry back.
        let (peer_cqs, record) = unsafe { record::<O>(entry) }?;
        peer_cqs.give_back(record, Error::CANCELED);
        Ok(())
    });
}

/// Returns true if these flags of a completion entry are those of a receive.
fn is_receive(flags: u64) -> bool {
    flags & FI_RECV != 0 && flags & (FI_READ | FI_WRITE) == 0
}

/// Returns the receive of a completion's context, or `None` if it was reported already.
///
/// # Safety
/// `context` is the one of a receive of the receive queue.
unsafe fn reported<F>(context: *mut c_void) -> Option<F> {
    // SAFETY: by this function's contract it is a record, and the core that reports it has it.
    unsafe { context.cast::<RxRecord<F>>().as_mut()?.filling.take() }
}

unsafe extern "C" fn write<O: QueueOwner>(
    cq: *mut fid_peer_cq,
    context: *mut c_void,
    flags: u64,
    len: usize,
    buf: *mut c_void,
    data: u64,
    tag: u64,
    src: fi_addr_t,
) -> ssize_t {
    let written = ffi_guard_nocancel("a completion of a core", || -> Result {
        // SAFETY: see above.
        let peer_cqs = unsafe { queues::<O>(cq.cast()) }?;
        let buf = buf as usize;
        let of = Completion { context: Context(context), flags, len, buf, data, tag, src };
        if is_receive(flags) {
            // SAFETY: see above: all receives of the endpoint are of the receive queue.
            if let Some(filling) = unsafe { reported::<O::Filling>(context) } {
                peer_cqs.owner.received(filling, &of);
            }
        } else {
            peer_cqs.owner.done(of);
        }
        Ok(())
    });
    written as ssize_t
}

unsafe extern "C" fn write_error<O: QueueOwner>(
    cq: *mut fid_peer_cq,
    entry: *const fi_cq_err_entry,
) -> ssize_t {
    let written = ffi_guard("an error of a core", || {
        // SAFETY: see above; the entry and its data live for the call.
        unsafe {
            let peer_cqs = queues::<O>(cq.cast())?;
            let entry = entry.as_ref().ok_or(Error::INVAL)?;
            let data = match entry.err_data.is_null() {
                true => Vec::new(),
                false => {
                    let data = entry.err_data.cast::<u8>();
                    std::slice::from_raw_parts(data, entry.err_data_size).to_vec()
                }
            };
            let of = Completion {
                context: Context(entry.op_context),
                flags: entry.flags,
                len: entry.len,
                buf: entry.buf as usize,
                data: entry.data,
                tag: entry.tag,
                src: entry.src_addr,
            };
            let error = CompletionError {
                of,
                olen: entry.olen,
                error: Error::from_code(entry.err),
                prov_errno: entry.prov_errno,
                data,
            };
            if is_receive(entry.flags) {
                if let Some(filling) = reported::<O::Filling>(entry.op_context) {
                    peer_cqs.owner.receive_failed(filling, &error);
                }
            } else {
                peer_cqs.owner.failed(error);
            }
        }
        Ok(())
    });
    written as ssize_t
}

unsafe extern "C" fn count<O: QueueOwner, const FAILED: bool>(cntr: *mut fid_peer_cntr) {
    // SAFETY: see above: the context is the counter.
    let cntr = unsafe { cntr.as_ref().and_then(|c| c.fid.context.cast::<PeerCntr<O>>().as_ref()) };
    ffi_guard_nocancel("a count of a core", || -> Result {
        let cntr = cntr.ok_or(Error::INVAL)?;
        cntr.owner.counted(cntr.kind, FAILED);
        Ok(())
    });
}
