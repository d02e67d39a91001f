//! Transfers of an endpoint of this library made by an endpoint of another provider, the owner
//! (`FI_PEER_TRANSFER` of fi_peer(3)).
//!
//! Each transfer has a record at a fixed address: the transfer's context (FI_CONTEXT2 of
//! fi_getinfo(3)) and the bytes of the message. Both belong to the owner from the call to the end
//! of the transfer. The owner reports the end from any thread, even within the call, and with locks
//! of its own held, so the report calls nothing of the owner's.
//!
//! Each message begins with the id of its sender ([`MemberIds`]). A receive with a source drops
//! messages without the id of its source, and is posted again.
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_PEER_TRANSFER, FI_RECV, FI_SEND, FI_TAGGED, fi_addr_t,
    fi_context2, fi_cq_err_entry, fi_cq_tagged_entry, fi_msg_tagged, fi_ops_transfer_peer,
    fi_peer_transfer_context, fid_ep,
};
use crate::buf::{self, RecvBuf};
use crate::coll::{Identification, MemberIds};
use crate::completions::CompletionSink;
use crate::cq::{Completion, CompletionError, Context};
use crate::eq::FidPtr;
use crate::error::{Error, Result};
use crate::fid_registry::FidRegistry;
use crate::operation::{RecvOp, SendOp};
use crate::reserved::INTERNAL_OP;
use crate::sys::{self, EventFd};
use core::ffi::{c_int, c_void};
use libc::iovec;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use super::call::call;

/// Bytes before each message: the sender's id.
const HEADER: usize = size_of::<u64>();

/// The open endpoints, by the address of their fid.
static ENDPOINTS: FidRegistry<Weak<PeerTransfers>> = FidRegistry::new();

/// A transfer in the owner's hands.
#[repr(C)]
struct TransferRecord {
    /// The owner's, as long as it has the record.
    context: fi_context2,
    /// The message with its header.
    bytes: Box<[u8]>,
    /// The destination or source of the message; FI_ADDR_UNSPEC for any source.
    peer: fi_addr_t,
    tag: u64,
    /// The context of the transfer's completion.
    token: Context,
    /// The buffer for the bytes of a receive; none for a send.
    buffer: Option<RecvBuf>,
}

/// A record at a fixed address.
#[derive(Clone, Copy, Debug)]
struct RecordPtr(NonNull<TransferRecord>);

// SAFETY: a record is used by one thread at a time: the one that posts it, and then the one that takes it out of
// the list of those under way.
unsafe impl Send for RecordPtr {}

/// The records of an endpoint by their place.
#[derive(Debug, Default)]
struct Records {
    under_way: HashMap<usize, RecordPtr>,
    /// Receives to be posted when progress is made.
    unposted: Vec<RecordPtr>,
    closed: bool,
}

/// The owner's endpoint, and its transfers for an endpoint of this library.
pub struct PeerTransfers {
    ep: NonNull<fid_ep>,
    ids: Arc<MemberIds>,
    records: Mutex<Records>,
    /// Held for reading by calls of the owner's endpoint, and for writing by a closing thread to
    /// wait for their end.
    calls: RwLock<()>,
    /// True if there are receives to be posted.
    has_unposted: AtomicBool,
    /// Readable when there are.
    wake: EventFd,
    identification: OnceLock<Arc<Identification>>,
    /// The reports of ended transfers, once the endpoint is enabled.
    sink: OnceLock<CompletionSink>,
}

// SAFETY: the owner's endpoint may be called from any thread that may call the peer's (fi_peer(3)); the rest is
// thread-safe by itself.
unsafe impl Send for PeerTransfers {}
// SAFETY: as above.
unsafe impl Sync for PeerTransfers {}

impl std::fmt::Debug for PeerTransfers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerTransfers({} under way)", self.records().under_way.len())
    }
}

impl PeerTransfers {
    /// Reads the owner's context; -FI_EINVAL for null, a small one, or one without an endpoint.
    ///
    /// # Safety
    /// `context` is null or a `struct fi_peer_transfer_context`. Its endpoint stays open until the
    /// peer's is closed.
    pub(crate) unsafe fn new(context: *const fi_peer_transfer_context) -> Result<Arc<Self>> {
        // SAFETY: by this function's contract; the size comes first, and says whether there is more.
        let ep = unsafe {
            if context.is_null() || *context.cast::<usize>() < size_of::<fi_peer_transfer_context>()
            {
                return Err(Error::INVAL);
            }
            // Its tables may come later.
            NonNull::new((*context).ep).ok_or(Error::INVAL)?
        };
        Ok(Arc::new(Self {
            ep,
            ids: Arc::new(MemberIds::new(sys::random())),
            records: Mutex::default(),
            calls: RwLock::new(()),
            has_unposted: AtomicBool::new(false),
            wake: EventFd::new()?,
            identification: OnceLock::new(),
            sink: OnceLock::new(),
        }))
    }

    /// Gives the owner the table for reports of ended transfers.
    ///
    /// # Safety
    /// `context` is the one of [`new`](Self::new).
    pub(crate) unsafe fn answer(
        context: *mut fi_peer_transfer_context,
        ops: &'static fi_ops_transfer_peer,
    ) {
        // SAFETY: by this function's contract: `new` has seen its size.
        unsafe { (*context).peer_ops = ptr::from_ref(ops).cast_mut() };
    }

    /// Records the fid of the endpoint, its name in the owner's calls.
    pub(crate) fn opened(self: &Arc<Self>, fid: *mut fid_ep) {
        ENDPOINTS.insert(fid as usize, Arc::downgrade(self));
    }

    /// Calls `take` for the endpoint of this fid; if there is none, for each until one knows the transfer, since
    /// the owner may have the fid of a hook around the endpoint. -FI_EINVAL if none does.
    fn find<T>(fid: *const fid_ep, take: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let of_endpoint = |of: Weak<Self>| take(&*of.upgrade()?);
        let named = ENDPOINTS.get(fid as usize).and_then(of_endpoint);
        let any = || ENDPOINTS.all().into_iter().find_map(|(_, of)| of_endpoint(of));
        named.or_else(any).ok_or(Error::INVAL)
    }

    /// Sets the sink of ended transfers, before the first transfer.
    pub fn enable(&self, sink: &CompletionSink) {
        let _ = self.sink.set(sink.clone());
    }

    /// Returns the owner's endpoint, known to the owner's address vector.
    pub(crate) fn ep(&self) -> FidPtr {
        FidPtr(self.ep.as_ptr().cast())
    }

    /// The address of the owner's endpoint, as fi_getname(3) tells it.
    pub fn name(&self) -> Result<Vec<u8>> {
        let mut name = [0; 512];
        let mut len = name.len();
        // SAFETY: the owner's endpoint is open as long as ours is; at most `len` bytes are written.
        unsafe {
            let getname = call!(self.ep.as_ref().cm, getname);
            let ret = getname(self.ep.as_ptr().cast(), name.as_mut_ptr().cast(), &raw mut len);
            Error::check(ret)?;
        }
        Ok(name.get(..len).ok_or(Error::TOOSMALL)?.to_vec())
    }

    /// The ids of the endpoint and its peers.
    pub(crate) fn ids(&self) -> &Arc<MemberIds> {
        &self.ids
    }

    /// The exchange of ids, once there is one.
    pub(crate) fn identification(&self) -> &OnceLock<Arc<Identification>> {
        &self.identification
    }

    /// Returns a descriptor, readable while [`post_again`](Self::post_again) has something to do.
    pub fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sends a copy of a message.
    pub fn send(&self, op: &SendOp) -> Result {
        let mut bytes = buf::zeroed(op.buf.len().checked_add(HEADER).ok_or(Error::MSGSIZE)?)?;
        bytes[..HEADER].copy_from_slice(&self.ids.own().to_be_bytes());
        op.buf.copy_to(0, &mut bytes[HEADER..]);
        let (peer, tag, token) = (op.dest, op.tag, op.context);
        let record = RecordPtr::new(TransferRecord {
            context: fi_context2 { internal: [ptr::null_mut(); 8] },
            bytes,
            peer,
            tag,
            token,
            buffer: None,
        });
        self.start(record).inspect_err(|_| drop(record.take()))
    }

    /// Posts a receive. One without a source is posted again later after a failure of the owner's.
    pub fn receive(&self, op: &RecvOp) -> Result {
        let bytes = buf::zeroed(op.buf.len().checked_add(HEADER).ok_or(Error::MSGSIZE)?)?;
        let record = RecordPtr::new(TransferRecord {
            context: fi_context2 { internal: [ptr::null_mut(); 8] },
            bytes,
            peer: op.src,
            tag: op.tag,
            token: op.context,
            buffer: Some(op.buf.clone()),
        });
        match self.start(record) {
            Err(error) if op.src != FI_ADDR_UNSPEC || self.records().closed => {
                drop(record.take());
                Err(error)
            }
            Err(_) => {
                self.post_later(record);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Passes a record to the owner; an error leaves it with the caller.
    fn start(&self, record: RecordPtr) -> Result {
        let _calls = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        let mut records = self.records();
        if records.closed {
            return Err(Error::CANCELED);
        }
        records.under_way.insert(record.key(), record);
        drop(records);
        let started = self.call(record);
        if started.is_err() {
            self.records().under_way.remove(&record.key());
        }
        started
    }

    fn call(&self, record: RecordPtr) -> Result {
        // SAFETY: the owner's endpoint is open as long as ours is (fi_peer(3)); the record stays where it is
        // until it is taken out of the list. Its bytes are the owner's from now on.
        unsafe {
            let at = record.0.as_ptr();
            let bytes = &raw mut *(*at).bytes;
            let iov = iovec { iov_base: bytes.cast(), iov_len: bytes.len() };
            let sends = (*at).buffer.is_none();
            let message = fi_msg_tagged {
                msg_iov: &raw const iov,
                desc: ptr::null_mut(),
                iov_count: 1,
                addr: (*at).peer,
                tag: (*at).tag,
                ignore: 0,
                context: at.cast(),
                data: 0,
            };
            let ep = self.ep;
            let ret = if sends {
                let send = call!(ep.as_ref().tagged, sendmsg);
                send(ep.as_ptr(), &raw const message, FI_PEER_TRANSFER)
            } else {
                let receive = call!(ep.as_ref().tagged, recvmsg);
                receive(ep.as_ptr(), &raw const message, FI_PEER_TRANSFER)
            };
            Error::check(ret as c_int).map(drop)
        }
    }

    /// Has a receive posted by the next progress. Any lock may be held.
    fn post_later(&self, record: RecordPtr) {
        self.records().unposted.push(record);
        self.has_unposted.store(true, Ordering::Release);
        self.wake.signal();
    }

    /// Posts receives again after a dropped message, or after a failure of the owner's. No lock may
    /// be held.
    pub fn post_again(&self) {
        if !self.has_unposted.swap(false, Ordering::AcqRel) {
            return;
        }
        self.wake.drain();
        let records = std::mem::take(&mut self.records().unposted);
        for record in records {
            if self.start(record).is_err() {
                let mut all = self.records();
                if all.closed {
                    // Reported as cancelled with the others.
                    drop(record.take());
                    continue;
                }
                all.unposted.push(record);
                self.has_unposted.store(true, Ordering::Release);
            }
        }
    }

    /// Cancels a receive. The owner reports its end.
    pub fn cancel(&self, token: Context) {
        let records = self.records();
        let is_meant = |record: &RecordPtr| {
            // SAFETY: it is in the list, which is locked: nothing takes it meanwhile, and these fields do
            // not change.
            unsafe {
                let at = record.0.as_ptr();
                (*at).token == token && (*at).buffer.is_some()
            }
        };
        let found = records.under_way.values().find(|record| is_meant(record)).copied();
        drop(records);
        if let Some(record) = found {
            self.cancel_record(record);
        }
    }

    fn cancel_record(&self, record: RecordPtr) {
        // SAFETY: the owner's endpoint is open as long as ours is; it looks for the place among its receives,
        // and does not follow it otherwise.
        unsafe {
            let ep = self.ep.as_ptr();
            if let Some(cancel) = (*ep).ops.as_ref().and_then(|ops| ops.cancel) {
                cancel(ep.cast(), record.0.as_ptr().cast());
            }
        }
    }

    /// Cancels all receives, and reports every transfer as cancelled. The memory of transfers
    /// without an end by then is leaked, because the owner may still use it.
    pub fn close(&self) {
        ENDPOINTS.retain(|_, of| !ptr::addr_eq(of.as_ptr(), self));
        let receives: Vec<_> = {
            let mut records = self.records();
            records.closed = true;
            // SAFETY: in the list, which is locked; the field does not change.
            let is_receive = |record: &&RecordPtr| unsafe { (*record.0.as_ptr()).buffer.is_some() };
            records.under_way.values().filter(is_receive).copied().collect()
        };
        drop(self.calls.write().unwrap_or_else(PoisonError::into_inner));
        for record in receives {
            if self.records().under_way.contains_key(&record.key()) {
                self.cancel_record(record);
            }
        }
        let (under_way, unposted) = {
            let mut records = self.records();
            (std::mem::take(&mut records.under_way), std::mem::take(&mut records.unposted))
        };
        let report = |record: RecordPtr| {
            // SAFETY: no longer in a list, so that nothing else takes it; the fields do not change.
            let (token, receives) = unsafe {
                let at = record.0.as_ptr();
                ((*at).token, (*at).buffer.take().is_some())
            };
            let of = Completion::of(token, flags_of(receives), 0);
            self.fail(receives, CompletionError::new(of, Error::CANCELED));
        };
        under_way.into_values().for_each(report);
        for record in unposted {
            report(record);
            drop(record.take());
        }
    }

    /// Removes the record of an ended transfer.
    fn ended(&self, context: *mut c_void) -> Option<RecordPtr> {
        self.records().under_way.remove(&(context as usize))
    }

    /// Takes the end of a transfer. Any lock may be held. -FI_EINVAL for an unknown transfer.
    ///
    /// # Safety
    /// `entry` is null or an entry of the owner's.
    pub(crate) unsafe fn complete(fid: *const fid_ep, entry: *const fi_cq_tagged_entry) -> Result {
        // SAFETY: by this function's contract.
        let entry = unsafe { entry.as_ref() }.ok_or(Error::INVAL)?;
        Self::find(fid, |this| {
            let record = this.ended(entry.op_context)?;
            this.succeed(record, entry.len);
            Some(())
        })
    }

    /// Reports the success of a transfer of `len` bytes.
    fn succeed(&self, record: RecordPtr, len: usize) {
        // SAFETY: out of the list, so it is this thread's alone; the owner has let go of it.
        let of = unsafe { record.0.as_ref() };
        let Some(buffer) = &of.buffer else {
            let done = Completion::of(of.token, flags_of(false), 0);
            drop(record.take());
            if let Some(sink) = self.sink.get() {
                sink.tx.done(done, true);
            }
            return;
        };
        let Some(src) = self.sender(of, len) else { return self.post_later(record) };
        let payload = &of.bytes[HEADER..len];
        buffer.copy_from(0, payload);
        let mut done = Completion::of(of.token, flags_of(true), payload.len());
        (done.src, done.tag) = (src, of.tag);
        drop(record.take());
        if let Some(sink) = self.sink.get() {
            sink.rx.done(done, true);
        }
    }

    /// The sender of the message of `len` bytes in a record; none if the receive is not for it.
    fn sender(&self, of: &TransferRecord, len: usize) -> Option<fi_addr_t> {
        let bytes = of.bytes.get(..len)?;
        let id = u64::from_be_bytes(*bytes.first_chunk::<HEADER>()?);
        if of.peer == FI_ADDR_UNSPEC {
            return Some(self.ids.addr_of(id).unwrap_or(FI_ADDR_NOTAVAIL));
        }
        (self.ids.of(of.peer) == Some(id)).then_some(of.peer)
    }

    /// Takes the failure of a transfer. Any lock may be held. -FI_EINVAL for an unknown transfer.
    ///
    /// # Safety
    /// `entry` is null or an entry of the owner's.
    pub(crate) unsafe fn comperr(fid: *const fid_ep, entry: *const fi_cq_err_entry) -> Result {
        // SAFETY: by this function's contract: these fields are the beginning of the structure in every version.
        let (context, error) = unsafe {
            if entry.is_null() {
                return Err(Error::INVAL);
            }
            ((*entry).op_context, (*entry).err)
        };
        Self::find(fid, |this| {
            let record = this.ended(context)?.take();
            let receives = record.buffer.is_some();
            let of = Completion::of(record.token, flags_of(receives), 0);
            let error = Error::from_code(if error > 0 { error } else { Error::IO.code() });
            this.fail(receives, CompletionError::new(of, error));
            Some(())
        })
    }

    fn fail(&self, receives: bool, error: CompletionError) {
        match self.sink.get() {
            Some(sink) if receives => sink.rx.failed(error),
            Some(sink) => sink.tx.failed(error),
            None => {}
        }
    }
}

impl Drop for PeerTransfers {
    fn drop(&mut self) {
        self.close();
    }
}

/// The flags of a transfer's completion.
fn flags_of(receives: bool) -> u64 {
    INTERNAL_OP | FI_TAGGED | if receives { FI_RECV } else { FI_SEND }
}

impl RecordPtr {
    fn new(record: TransferRecord) -> Self {
        Self(NonNull::from(Box::leak(Box::new(record))))
    }

    /// Returns the record's address, its key in the list.
    fn key(self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Takes the record back from the owner.
    fn take(self) -> Box<TransferRecord> {
        // SAFETY: what `new` leaked; the caller has it out of the lists, and the owner has let go of it.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{fi_ops, fi_ops_ep, fi_ops_tagged, fid};
    use crate::buf::SendBuf;
    use crate::deferred::{DeferredQueue, InternalOps, Outcome};
    use crate::fid::ops;
    use libc::ssize_t;

    /// A call of the owner's endpoint.
    struct Posted {
        context: usize,
        at: usize,
        len: usize,
        tag: u64,
        peer: fi_addr_t,
        sends: bool,
    }

    /// An owner's endpoint with a list of its calls.
    #[repr(C)]
    struct Owner {
        ep: fid_ep,
        posted: Vec<Posted>,
        cancelled: Vec<usize>,
        /// The answer of the next calls.
        answer: ssize_t,
    }

    unsafe fn post(
        ep: *mut fid_ep,
        message: *const fi_msg_tagged,
        flags: u64,
        sends: bool,
    ) -> ssize_t {
        assert_eq!(flags, FI_PEER_TRANSFER);
        // SAFETY: the test's own endpoint, and a message of the call's.
        unsafe {
            let (owner, message) = (&mut *ep.cast::<Owner>(), &*message);
            if owner.answer == 0 {
                let iov = &*message.msg_iov;
                owner.posted.push(Posted {
                    context: message.context as usize,
                    at: iov.iov_base as usize,
                    len: iov.iov_len,
                    tag: message.tag,
                    peer: message.addr,
                    sends,
                });
            }
            owner.answer
        }
    }

    unsafe extern "C" fn sendmsg(
        ep: *mut fid_ep,
        message: *const fi_msg_tagged,
        flags: u64,
    ) -> ssize_t {
        // SAFETY: as the call has it.
        unsafe { post(ep, message, flags, true) }
    }

    unsafe extern "C" fn recvmsg(
        ep: *mut fid_ep,
        message: *const fi_msg_tagged,
        flags: u64,
    ) -> ssize_t {
        // SAFETY: as the call has it.
        unsafe { post(ep, message, flags, false) }
    }

    unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> ssize_t {
        // SAFETY: the test's own endpoint.
        unsafe { (*fid.cast::<Owner>()).cancelled.push(context as usize) };
        0
    }

    unsafe extern "C" fn close(_fid: *mut fid) -> c_int {
        0
    }

    static FID_OPS: fi_ops = ops(close);

    struct World {
        transfers: Arc<PeerTransfers>,
        owner: Box<Owner>,
        tables: Box<(fi_ops_ep, fi_ops_tagged)>,
        later: Arc<DeferredQueue>,
        ended: Arc<Mutex<Vec<Outcome>>>,
    }

    impl World {
        fn new() -> Self {
            // SAFETY: tables of no functions, and an endpoint of no tables.
            let (mut tables, ep) = unsafe {
                (
                    Box::new(std::mem::zeroed::<(fi_ops_ep, fi_ops_tagged)>()),
                    std::mem::zeroed::<fid_ep>(),
                )
            };
            tables.0.cancel = Some(cancel);
            tables.1.sendmsg = Some(sendmsg);
            tables.1.recvmsg = Some(recvmsg);
            let mut owner =
                Box::new(Owner { ep, posted: Vec::new(), cancelled: Vec::new(), answer: 0 });
            owner.ep.fid.ops = (&raw const FID_OPS).cast_mut();
            (owner.ep.ops, owner.ep.tagged) = (&raw mut tables.0, &raw mut tables.1);
            let context = fi_peer_transfer_context {
                size: size_of::<fi_peer_transfer_context>(),
                info: ptr::null_mut(),
                ep: (&raw mut *owner).cast(),
                peer_ops: ptr::null_mut(),
            };
            // SAFETY: a whole context, whose endpoint stays.
            let transfers = unsafe { PeerTransfers::new(&raw const context) }.unwrap();
            transfers.opened(ptr::from_ref(&*tables).cast_mut().cast());
            let later = DeferredQueue::new().unwrap();
            let mut sink = CompletionSink::default();
            sink.set_internal_ops(Some(InternalOps { later: later.clone(), task_queue: 1 }));
            transfers.enable(&sink);
            Self { transfers, owner, tables, later, ended: Arc::default() }
        }

        /// Stands for the fid of the endpoint.
        fn fid(&self) -> *const fid_ep {
            ptr::from_ref(&*self.tables).cast()
        }

        /// Returns a context with a recorded outcome.
        fn token(&self) -> Context {
            let ended = self.ended.clone();
            self.later.expect(1, move |outcome| ended.lock().unwrap().push(outcome))
        }

        fn send(&self, bytes: &[u8], to: fi_addr_t) -> Result {
            // SAFETY: the bytes outlive the call, which copies them.
            let buf = unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }.unwrap();
            let (context, data) = (self.token(), 0);
            self.transfers.send(&SendOp {
                buf,
                dest: to,
                context,
                data,
                tag: 7,
                flags: INTERNAL_OP,
            })
        }

        fn receive(&self, buffer: &mut [u8], src: fi_addr_t) -> Result {
            // SAFETY: the buffer is the test's, which keeps it until the end.
            let buf = unsafe { RecvBuf::new(buffer.as_mut_ptr().cast(), buffer.len()) }.unwrap();
            let (context, ignore) = (self.token(), 0);
            self.transfers.receive(&RecvOp {
                buf,
                src,
                tag: 9,
                ignore,
                context,
                flags: INTERNAL_OP,
            })
        }

        /// The owner's endpoint has received these bytes.
        fn arrive(&mut self, bytes: &[u8]) -> Result {
            let at = self.owner.posted.iter().position(|posted| !posted.sends).unwrap();
            let Posted { context, at, len, .. } = self.owner.posted.remove(at);
            assert!(bytes.len() <= len);
            // SAFETY: the buffer that was handed over with the receive.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            self.complete(context, bytes.len())
        }

        fn complete(&self, context: usize, len: usize) -> Result {
            let entry = fi_cq_tagged_entry {
                op_context: context as *mut c_void,
                flags: 0,
                len,
                buf: ptr::null_mut(),
                data: 0,
                tag: 0,
            };
            // SAFETY: an entry of the test's.
            unsafe { PeerTransfers::complete(self.fid(), &raw const entry) }
        }

        fn ended(&self) -> Vec<Result<(usize, fi_addr_t)>> {
            self.later.run();
            let all = std::mem::take(&mut *self.ended.lock().unwrap());
            all.into_iter()
                .map(|outcome| outcome.map(|of| (of.len, of.src)).map_err(|error| error.error))
                .collect()
        }
    }

    fn message(id: u64, payload: &[u8]) -> Vec<u8> {
        [&id.to_be_bytes()[..], payload].concat()
    }

    #[test]
    fn a_message_begins_with_the_sender_s_id_and_completes_once() {
        let world = World::new();
        world.send(b"hello", 3).unwrap();
        let posted = &world.owner.posted[0];
        assert!(posted.sends && posted.tag == 7 && posted.peer == 3);
        // SAFETY: the record that was handed over, which has not ended.
        let sent = unsafe { std::slice::from_raw_parts(posted.at as *const u8, posted.len) };
        assert_eq!(sent, message(world.transfers.ids().own(), b"hello"));
        assert_eq!(world.ended(), []);
        assert_eq!(world.complete(posted.context, 0), Ok(()));
        assert_eq!(world.ended(), [Ok((0, FI_ADDR_NOTAVAIL))]);
        assert_eq!(world.complete(posted.context, 0), Err(Error::INVAL));
    }

    #[test]
    fn a_receive_that_names_a_peer_takes_that_peer_s_message_alone() {
        let mut world = World::new();
        world.transfers.ids().learn(3, 33);
        world.transfers.ids().learn(4, 44);
        let mut buffer = [0; 4];
        world.receive(&mut buffer, 3).unwrap();
        for wrong in [message(44, b"no"), message(99, b"no"), b"short".to_vec(), Vec::new()] {
            world.arrive(&wrong).unwrap();
            assert_eq!((world.ended(), world.owner.posted.len()), (vec![], 0));
            world.transfers.post_again();
            assert_eq!(world.owner.posted.len(), 1);
        }
        world.arrive(&message(33, b"yes")).unwrap();
        assert_eq!(world.ended(), [Ok((3, 3))]);
        assert_eq!(&buffer, b"yes\0");
    }

    #[test]
    fn a_message_for_anyone_names_its_sender_if_the_id_is_known() {
        let mut world = World::new();
        world.transfers.ids().learn(3, 33);
        let mut buffer = [0; 4];
        for (id, src) in [(33, 3), (99, FI_ADDR_NOTAVAIL)] {
            world.receive(&mut buffer, FI_ADDR_UNSPEC).unwrap();
            world.arrive(&message(id, b"note")).unwrap();
            assert_eq!(world.ended(), [Ok((4, src))]);
        }
    }

    #[test]
    fn a_receive_for_anyone_that_the_owner_does_not_take_yet_is_posted_later() {
        let mut world = World::new();
        let mut buffer = [0; 4];
        world.owner.answer = Error::OPBADSTATE.to_ret() as ssize_t;
        assert_eq!(world.receive(&mut buffer, 3), Err(Error::OPBADSTATE));
        world.receive(&mut buffer, FI_ADDR_UNSPEC).unwrap();
        world.transfers.post_again();
        assert!(world.owner.posted.is_empty());
        world.owner.answer = 0;
        world.transfers.post_again();
        assert_eq!(world.owner.posted.len(), 1);
        world.arrive(&message(1, b"x")).unwrap();
        assert_eq!(world.ended(), [Ok((1, FI_ADDR_NOTAVAIL))]);
    }

    #[test]
    fn a_failure_of_the_owner_s_is_the_transfer_s() {
        let world = World::new();
        let mut buffer = [0; 4];
        world.send(b"x", 3).unwrap();
        world.receive(&mut buffer, 3).unwrap();
        for posted in &world.owner.posted {
            // SAFETY: numbers and null pointers.
            let mut entry = unsafe { std::mem::zeroed::<fi_cq_err_entry>() };
            entry.op_context = posted.context as *mut c_void;
            entry.err = Error::HOSTUNREACH.code();
            // SAFETY: an entry of the test's.
            unsafe {
                assert_eq!(PeerTransfers::comperr(ptr::null(), &raw const entry), Ok(()));
                assert_eq!(
                    PeerTransfers::comperr(world.fid(), &raw const entry),
                    Err(Error::INVAL)
                );
            }
        }
        assert_eq!(world.ended(), [Err(Error::HOSTUNREACH); 2]);
    }

    #[test]
    fn closing_takes_receives_back_and_ends_all_that_is_under_way() {
        let world = World::new();
        let mut buffer = [0; 4];
        world.receive(&mut buffer, 3).unwrap();
        world.send(b"x", 3).unwrap();
        world.transfers.close();
        assert_eq!(world.owner.cancelled, [world.owner.posted[0].context]);
        assert_eq!(world.ended(), [Err(Error::CANCELED); 2]);
        // A later end is refused, and so is a new transfer.
        assert_eq!(world.complete(world.owner.posted[1].context, 0), Err(Error::INVAL));
        assert_eq!(world.send(b"x", 3), Err(Error::CANCELED));
        assert_eq!(world.receive(&mut buffer, FI_ADDR_UNSPEC), Err(Error::CANCELED));
    }
}
