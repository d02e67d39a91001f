//! Endpoints of a core provider reporting to queues of this library and taking their receives from
//! it (`owner.rs`), for providers combining several endpoints into one.
//!
//! Buffers of applications must stay valid until the completion, as in any transfer call.
use super::call::{bind, call, close, code, control, set_p2p};
use super::domain::CoreDomain;
use super::owner::{ArrivingMessage, PeerCqs, QueueOwner};
use crate::abi::{
    self, FI_COMPLETION, FI_INJECT, c_enum, fi_addr_t, fi_atomic_attr, fi_av_attr, fi_av_type,
    fi_cntr_attr, fi_cq_attr, fi_cq_format, fi_ioc, fi_msg, fi_msg_atomic, fi_msg_rma,
    fi_msg_tagged, fi_peer_cntr_context, fi_peer_cq_context, fi_peer_srx_context, fi_rma_ioc,
    fi_rma_iov, fi_wait_obj, fid, fid_av, fid_cntr, fid_cq, fid_ep,
};
use crate::atomic::{AtomicKind, Operation};
use crate::boundary::CancelDisabled;
use crate::buf::{IOV_LIMIT, Local, MessageBytes, RecvBuf};
use crate::cq::{Completion, CompletionError, Context};
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use crate::operation::DirectProgress;
use crate::operation::{AtomicOp, ImmediateSendFns, ReadOp, RemoteSegments, SendOp, WriteOp};
use crate::reserved::{ENDS_WAIT, RUNS_PROGRESS, SENDS_AT_ONCE, WITH_DEVICES};
use crate::stack::on_own_stack;
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum bytes of an address returned by a core provider's fi_getname(3).
const MOST_NAME: usize = 1024;

/// Attributes of an endpoint of a core provider.
#[derive(Clone, Copy, Debug)]
pub struct RailAttr {
    /// Kinds of counted operations: FI_SEND, FI_READ, FI_REMOTE_WRITE …
    pub counted: u64,
    /// The endpoint has a wait descriptor, if the core provider supports it.
    pub waits: bool,
    /// A core provider of this library copies complete messages to their receives; else it requests
    /// a receive for each message. Receives in memory of devices are never copied to.
    pub takes_whole: bool,
}

/// Endpoint of a core provider, with the core provider's objects belonging to it alone.
#[derive(Debug)]
pub struct CoreRail<O: QueueOwner> {
    raw: NonNull<fid_ep>,
    srx: NonNull<fid_ep>,
    cq: NonNull<fid_cq>,
    av: NonNull<fid_av>,
    cntrs: Mutex<Vec<NonNull<fid_cntr>>>,
    /// Descriptor that is readable when the core provider has something to do.
    fd: Option<RawFd>,
    /// Functions of a core provider of this library reporting immediately completed messages.
    immediate_sends: Option<ImmediateSendFns>,
    closed: AtomicBool,
    peer_cqs: Box<PeerCqs<O>>,
    domain: Arc<CoreDomain>,
}

// SAFETY: as for `CoreDomain`, of whose domain the objects are.
unsafe impl<O: QueueOwner> Send for CoreRail<O> {}
// SAFETY: as for `CoreDomain`, of whose domain the objects are.
unsafe impl<O: QueueOwner> Sync for CoreRail<O> {}

type AccessMemory = unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> ssize_t;

/// Converts the return value of a transfer call.
fn check(ret: ssize_t) -> Result {
    if ret == 0 { Ok(()) } else { Err(Error::from_code(-ret as c_int)) }
}

/// Returns the object created by an opening call.
fn given<T>(raw: *mut T) -> Result<NonNull<T>> {
    NonNull::new(raw).ok_or(Error::OTHER)
}

/// The descriptors of a buffer's segments (fi_mr_desc(3)).
fn descs(of: Local<'_>) -> [*mut c_void; IOV_LIMIT] {
    let mut descs = [ptr::null_mut(); IOV_LIMIT];
    descs.iter_mut().zip(of).for_each(|(to, segment)| *to = segment.desc as *mut c_void);
    descs
}

/// The places of a peer's memory as fi_rma(3) has them, and their number.
fn segments(of: &RemoteSegments) -> ([fi_rma_iov; IOV_LIMIT], usize) {
    let mut all = [fi_rma_iov { addr: 0, len: 0, key: 0 }; IOV_LIMIT];
    for (to, one) in all.iter_mut().zip(of.as_slice()) {
        *to = fi_rma_iov { addr: one.addr, len: one.len as usize, key: one.key };
    }
    (all, of.as_slice().len())
}

/// Runs of elements as fi_atomic(3) has them.
fn elements(iov: &[iovec], size: usize) -> [fi_ioc; IOV_LIMIT] {
    let mut all = [fi_ioc { addr: ptr::null_mut(), count: 0 }; IOV_LIMIT];
    for (to, one) in all.iter_mut().zip(iov) {
        *to = fi_ioc { addr: one.iov_base, count: one.iov_len / size };
    }
    all
}

/// Flags of a transfer call equivalent to one without flags.
const FAST: u64 = FI_COMPLETION;

impl<O: QueueOwner> CoreRail<O> {
    /// Permits or forbids devices of peers on this host to read memory of devices
    /// (FI_OPT_FI_HMEM_P2P).
    pub fn permit_p2p(&self, permitted: bool) -> Result {
        // SAFETY: open.
        unsafe { set_p2p(self.raw, permitted) }
    }

    /// Opens an endpoint described by `info`, and enables it.
    pub fn open(
        domain: &Arc<CoreDomain>,
        info: &InfoBuf,
        owner: Arc<O>,
        attr: RailAttr,
    ) -> Result<Self> {
        on_own_stack(|| Self::open_here(domain, info, owner, attr))
    }

    fn open_here(
        domain: &Arc<CoreDomain>,
        info: &InfoBuf,
        owner: Arc<O>,
        RailAttr { counted, waits, takes_whole }: RailAttr,
    ) -> Result<Self> {
        let peer_cqs = PeerCqs::new(owner, domain.level(), takes_whole);
        let mut opened = OpenedObjects::default();
        // SAFETY: the domain is open; attributes and contexts live for the calls, and the queues until
        // the objects are closed.
        unsafe {
            let ops = domain.raw().as_ref().ops;
            let mut raw: *mut fid_av = ptr::null_mut();
            let mut attr = std::mem::zeroed::<fi_av_attr>();
            attr.r#type = fi_av_type::FI_AV_TABLE.into();
            attr.flags = abi::FI_AV_USER_ID;
            let open = call!(ops, av_open);
            code(open(domain.raw().as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
            let av = opened.note(given(raw)?);

            let (cq, fd) = open_cq(domain, &peer_cqs, waits)?;
            opened.note(cq);

            let mut raw: *mut fid_ep = ptr::null_mut();
            let mut attr = *info.rx();
            attr.op_flags = abi::FI_PEER;
            let mut context =
                fi_peer_srx_context { size: size_of::<fi_peer_srx_context>(), srx: peer_cqs.srx() };
            let open = call!(ops, srx_ctx);
            let context = (&raw mut context).cast();
            code(open(domain.raw().as_ptr(), &mut attr, &mut raw, context))?;
            let srx = opened.note(given(raw)?);

            let raw = opened.note(domain.open_endpoint(info)?);

            let fid = raw.as_ptr().cast::<fid>();
            bind(fid, av.as_ptr().cast(), 0)?;
            bind(
                fid,
                cq.as_ptr().cast(),
                abi::FI_TRANSMIT | abi::FI_RECV | abi::FI_SELECTIVE_COMPLETION,
            )?;
            bind(fid, srx.as_ptr().cast(), 0)?;
            let mut rail = Self {
                raw,
                srx,
                cq,
                av,
                cntrs: Mutex::default(),
                fd,
                immediate_sends: None,
                closed: AtomicBool::new(false),
                peer_cqs,
                domain: domain.clone(),
            };
            opened.keep();
            rail.count(counted)?;
            control(fid, abi::FI_ENABLE, ptr::null_mut())?;
            // Others refuse what they do not know.
            let _ = control(fid, SENDS_AT_ONCE, (&raw mut rail.immediate_sends).cast());
            Ok(rail)
        }
    }

    /// Has these kinds of operations counted as well.
    pub fn count(&self, kinds: u64) -> Result {
        for kind in (0..u64::BITS).map(|bit| 1 << bit).filter(|kind| kinds & kind != 0) {
            // SAFETY: all zeros is a valid attribute but for the flag; the counter is ours until the
            // core's is closed; both objects are open and of one domain.
            unsafe {
                let mut raw: *mut fid_cntr = ptr::null_mut();
                let mut attr = std::mem::zeroed::<fi_cntr_attr>();
                attr.wait_obj = fi_wait_obj::FI_WAIT_NONE.into();
                attr.flags = abi::FI_PEER;
                let mut context = fi_peer_cntr_context {
                    size: size_of::<fi_peer_cntr_context>(),
                    cntr: self.peer_cqs.cntr(kind),
                };
                let open = call!(self.domain.raw().as_ref().ops, cntr_open);
                let context = (&raw mut context).cast();
                code(open(self.domain.raw().as_ptr(), &mut attr, &mut raw, context))?;
                let cntr = given(raw)?;
                self.cntrs.lock().unwrap_or_else(PoisonError::into_inner).push(cntr);
                bind(self.fid(), cntr.as_ptr().cast(), kind)?;
            }
        }
        Ok(())
    }

    fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// The endpoint's own address (fi_getname(3)).
    pub fn name(&self) -> Result<Vec<u8>> {
        let mut name = vec![0; MOST_NAME];
        let mut len = name.len();
        // SAFETY: open; the room is as long as said.
        unsafe {
            let getname = call!(self.raw.as_ref().cm, getname);
            code(getname(self.fid(), name.as_mut_ptr().cast(), &mut len))?;
        }
        name.truncate(len);
        Ok(name)
    }

    /// Inserts an address in the core provider's format; messages from it are reported as from `id`
    /// (FI_AV_USER_ID). Returns the address for sends.
    pub fn insert(&self, addr: &[u8], id: fi_addr_t) -> Result<fi_addr_t> {
        let mut name = id;
        // An address is copied to where one of any format may be read, with zeros behind it.
        let mut name_buf = vec![0u64; addr.len().max(MOST_NAME) / 8 + 2];
        // SAFETY: open; the room is longer than the address and lives for the call, as the name.
        let inserted = unsafe {
            let bytes = name_buf.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(addr.as_ptr(), bytes, addr.len());
            let insert = call!(self.av.as_ref().ops, insert);
            let flags = abi::FI_AV_USER_ID;
            insert(self.av.as_ptr(), bytes.cast(), 1, &mut name, flags, ptr::null_mut())
        };
        match inserted {
            1 => Ok(name),
            error if error < 0 => Err(Error::from_code(-error)),
            _ => Err(Error::INVAL),
        }
    }

    /// Forgets a name.
    pub fn remove(&self, mut name: fi_addr_t) {
        let _ = (|| {
            // SAFETY: open; the name lives for the call.
            unsafe {
                let remove = call!(self.av.as_ref().ops, remove);
                code(remove(self.av.as_ptr(), &mut name, 1, 0))
            }
        })();
    }

    /// Makes progress (fi_cq_read(3) of no entries).
    pub fn progress(&self) {
        // Another library's queue may be a cancellation point.
        let _uncancelled = CancelDisabled::new();
        // SAFETY: open.
        unsafe { progress(self.cq) };
    }

    /// Returns a descriptor that is readable when the core provider has something to do, if it has
    /// one.
    pub fn fd(&self) -> Option<RawFd> {
        self.fd
    }

    /// Returns true if a caller may sleep until the descriptor is readable (fi_trywait(3)).
    pub fn may_block(&self) -> bool {
        // SAFETY: open, and of this domain.
        unsafe { may_block(&self.domain, self.cq) }
    }

    /// Sends a message to a name of the core's. True if it is complete: then the core reports nothing.
    /// `cq_is_drained`: the application has read all entries in the queue of its sends.
    #[inline(always)]
    pub fn send(
        &self,
        to: fi_addr_t,
        op: SendOp,
        tagged: bool,
        cq_is_drained: bool,
    ) -> Result<bool> {
        if op.flags == FAST {
            if let (Some(one), Some(ImmediateSendFns { who, calls })) =
                (op.buf.local().only(), &self.immediate_sends)
            {
                let (buf, desc) = (one.addr as *const c_void, one.desc as *mut c_void);
                let send = calls[usize::from(tagged)];
                // SAFETY: as in `send_by_table`.
                return match unsafe {
                    send(*who, buf, one.len, desc, to, op.tag, op.context.0, cq_is_drained.into())
                } {
                    0 => Ok(false),
                    1 => Ok(true),
                    code => Err(Error::from_code(-code)),
                };
            }
        }
        self.send_by_table(to, op, tagged).map(|()| false)
    }

    // Takes the operation itself, so that the short way, which does not come here, need not put it together.
    #[inline(never)]
    fn send_by_table(&self, to: fi_addr_t, op: SendOp, tagged: bool) -> Result {
        let context = op.context.0;
        // SAFETY: open; the application lends the buffer until the completion, or, injected, for the
        // call; vectors live for the call.
        unsafe {
            if let Some(one) = op.buf.local().only() {
                if op.flags & !FAST & !FI_INJECT == 0 {
                    let (ep, buf, desc) =
                        (self.raw.as_ptr(), one.addr as *const c_void, one.desc as *mut c_void);
                    match op.flags {
                        FAST if tagged => {
                            let send = call!(self.raw.as_ref().tagged, send);
                            return check(send(ep, buf, one.len, desc, to, op.tag, context));
                        }
                        FAST => {
                            let send = call!(self.raw.as_ref().msg, send);
                            return check(send(ep, buf, one.len, desc, to, context));
                        }
                        FI_INJECT if tagged => {
                            let inject = call!(self.raw.as_ref().tagged, inject);
                            return check(inject(ep, buf, one.len, to, op.tag));
                        }
                        FI_INJECT => {
                            let inject = call!(self.raw.as_ref().msg, inject);
                            return check(inject(ep, buf, one.len, to));
                        }
                        _ => {}
                    }
                }
            }
            let (iov, flags) = (op.buf.iov(), op.flags & !WITH_DEVICES);
            let mut desc = descs(op.buf.local());
            if tagged {
                let message = fi_msg_tagged {
                    msg_iov: iov.as_ptr(),
                    desc: desc.as_mut_ptr(),
                    iov_count: iov.len(),
                    addr: to,
                    tag: op.tag,
                    ignore: 0,
                    context,
                    data: op.data,
                };
                let send = call!(self.raw.as_ref().tagged, sendmsg);
                check(send(self.raw.as_ptr(), &raw const message, flags))
            } else {
                let message = fi_msg {
                    msg_iov: iov.as_ptr(),
                    desc: desc.as_mut_ptr(),
                    iov_count: iov.len(),
                    addr: to,
                    context,
                    data: op.data,
                };
                let send = call!(self.raw.as_ref().msg, sendmsg);
                check(send(self.raw.as_ptr(), &raw const message, flags))
            }
        }
    }

    /// Reads memory of a peer with this name.
    pub fn read(&self, from: fi_addr_t, op: &ReadOp) -> Result {
        let (iov, mut desc) = (op.buf.iov(), descs(op.buf.local()));
        // SAFETY: open; the application lends the buffer until the completion.
        unsafe {
            let read = call!(self.raw.as_ref().rma, readmsg);
            self.access(read, (iov, &mut desc), (from, &op.remote), (op.context, 0), op.flags)
        }
    }

    /// Writes to memory of a peer with this name.
    pub fn write(&self, to: fi_addr_t, op: &WriteOp) -> Result {
        let (iov, mut desc) = (op.buf.iov(), descs(op.buf.local()));
        // SAFETY: as in `read`.
        unsafe {
            let write = call!(self.raw.as_ref().rma, writemsg);
            self.access(write, (iov, &mut desc), (to, &op.remote), (op.context, op.data), op.flags)
        }
    }

    /// Makes a call reading or writing a peer's memory.
    ///
    /// # Safety
    /// The buffer belongs to the call until the completion.
    unsafe fn access(
        &self,
        call: AccessMemory,
        (iov, desc): (&[iovec], &mut [*mut c_void; IOV_LIMIT]),
        (addr, remote): (fi_addr_t, &RemoteSegments),
        (context, data): (Context, u64),
        flags: u64,
    ) -> Result {
        let (remote, count) = segments(remote);
        let message = fi_msg_rma {
            msg_iov: iov.as_ptr(),
            desc: desc.as_mut_ptr(),
            iov_count: iov.len(),
            addr,
            rma_iov: remote.as_ptr(),
            rma_iov_count: count,
            context: context.0,
            data,
        };
        // SAFETY: by this function's contract; vectors live for the call.
        unsafe { check(call(self.raw.as_ptr(), &raw const message, flags & !WITH_DEVICES)) }
    }

    /// Starts an atomic operation on memory of a peer with this name.
    pub fn atomic(&self, to: fi_addr_t, op: &AtomicOp) -> Result {
        let size = op.operation.size();
        let remote = op.remote.as_slice();
        let mut segments = [fi_rma_ioc { addr: 0, count: 0, key: 0 }; IOV_LIMIT];
        for (to, one) in segments.iter_mut().zip(remote) {
            *to = fi_rma_ioc { addr: one.addr, count: one.len as usize / size, key: one.key };
        }
        let sources = elements(op.source.iov(), size);
        let compared = elements(op.compare.iov(), size);
        let mut results = elements(op.result.iov(), size);
        let mut desc = [ptr::null_mut(); IOV_LIMIT];
        let (datatype, number) = (op.operation.datatype(), op.operation.op());
        let message = fi_msg_atomic {
            msg_iov: sources.as_ptr(),
            desc: desc.as_mut_ptr(),
            iov_count: if op.operation.has_source() { op.source.segments() } else { 0 },
            addr: to,
            rma_iov: segments.as_ptr(),
            rma_iov_count: remote.len(),
            datatype: c_enum::from_raw(datatype.into()),
            op: c_enum::from_raw(number.into()),
            context: op.context.0,
            data: op.data,
        };
        let ep = self.raw.as_ptr();
        let results_at = results.as_mut_ptr();
        let (result_count, compare_count) = (op.result.segments(), op.compare.segments());
        // SAFETY: as in `read`.
        unsafe {
            let (mut of_results, mut of_compared) = (desc, desc);
            let of_results = of_results.as_mut_ptr();
            let table = self.raw.as_ref().atomic;
            check(match op.operation.kind() {
                AtomicKind::Base => call!(table, writemsg)(ep, &raw const message, op.flags),
                AtomicKind::Fetch => {
                    let fetch = call!(table, readwritemsg);
                    fetch(ep, &raw const message, results_at, of_results, result_count, op.flags)
                }
                AtomicKind::Compare => call!(table, compwritemsg)(
                    ep,
                    &raw const message,
                    compared.as_ptr(),
                    of_compared.as_mut_ptr(),
                    compare_count,
                    results_at,
                    of_results,
                    result_count,
                    op.flags,
                ),
            })
        }
    }

    /// Makes the core provider move a waiting message ([`QueueOwner::waits`]) to a receive.
    pub fn start(&self, entry: u32, buf: &RecvBuf, filling: O::Filling) {
        self.peer_cqs.start(entry, buf, filling);
    }

    /// Makes the core provider drop a waiting message.
    pub fn discard(&self, entry: u32) {
        self.peer_cqs.discard(entry);
    }

    /// Closes the core provider's endpoint: its operations are reported as cancelled, if at all,
    /// and nothing is reported afterwards. Only calls on addresses may follow.
    pub fn shut(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            // SAFETY: open until here.
            let _ = unsafe { close(self.fid()) };
        }
    }
}

impl<O: QueueOwner> Drop for CoreRail<O> {
    fn drop(&mut self) {
        self.shut();
        let cntrs = std::mem::take(self.cntrs.get_mut().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the endpoint that used them is closed; the queues of ours go after them.
        unsafe {
            for cntr in cntrs {
                let _ = close(cntr.as_ptr().cast());
            }
            let _ = close(self.srx.as_ptr().cast());
            let _ = close(self.cq.as_ptr().cast());
            let _ = close(self.av.as_ptr().cast());
        }
    }
}

/// Objects of a core provider, closed again if not all of them can be opened.
#[derive(Default)]
struct OpenedObjects(Vec<*mut fid>);

impl OpenedObjects {
    fn note<T>(&mut self, object: NonNull<T>) -> NonNull<T> {
        self.0.push(object.as_ptr().cast());
        object
    }

    fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for OpenedObjects {
    fn drop(&mut self) {
        while let Some(fid) = self.0.pop() {
            // SAFETY: open, and nothing uses it: what was opened later is closed.
            let _ = unsafe { close(fid) };
        }
    }
}

/// fi_cq_read(3) of no entries.
///
/// # Safety
/// The queue is open.
#[inline]
unsafe fn progress(cq: NonNull<fid_cq>) {
    // SAFETY: by this function's contract; no entries are read.
    unsafe {
        if let Some(read) = cq.as_ref().ops.as_ref().and_then(|ops| ops.read) {
            read(cq.as_ptr(), ptr::null_mut(), 0);
        }
    }
}

/// fi_trywait(3).
///
/// # Safety
/// The queue is open, and of this domain.
unsafe fn may_block(domain: &CoreDomain, cq: NonNull<fid_cq>) -> bool {
    let mut fids = [cq.as_ptr().cast::<fid>()];
    // SAFETY: by this function's contract.
    unsafe { domain.fabric().try_wait(&mut fids) }.is_ok()
}

/// Progress and waiting for all endpoints of a core provider's domain: a queue without bound
/// objects. Providers of this library have one engine per domain, so one poll is sufficient for any
/// number of endpoints.
#[derive(Debug)]
pub struct CoreWaiter {
    cq: NonNull<fid_cq>,
    /// Function making progress.
    progress: DirectProgress,
    fd: RawFd,
    _exposed: Box<PeerCqs<NoOwner>>,
    domain: Arc<CoreDomain>,
}

// SAFETY: as for `CoreDomain`, of whose domain the object is.
unsafe impl Send for CoreWaiter {}
// SAFETY: as for `CoreDomain`, of whose domain the object is.
unsafe impl Sync for CoreWaiter {}

impl CoreWaiter {
    /// One for this domain, if its provider is one of this library's.
    pub fn open(domain: &Arc<CoreDomain>) -> Option<Self> {
        let peer_cqs = PeerCqs::new(Arc::new(NoOwner), domain.level(), true);
        // SAFETY: the queues live until the core's queue is closed.
        let (cq, fd) = unsafe { open_cq(domain, &peer_cqs, true) }.ok()?;
        let mut progress: Option<DirectProgress> = None;
        // SAFETY: open; a queue that does not know the command refuses it.
        let known =
            unsafe { control(cq.as_ptr().cast(), RUNS_PROGRESS, (&raw mut progress).cast()) }
                .is_ok();
        match (fd, progress) {
            (Some(fd), Some(progress)) if known => {
                Some(Self { cq, progress, fd, _exposed: peer_cqs, domain: domain.clone() })
            }
            _ => {
                // SAFETY: open, and nothing uses it.
                let _ = unsafe { close(cq.as_ptr().cast()) };
                None
            }
        }
    }

    /// Makes progress for all endpoints of the domain.
    #[inline(always)]
    pub fn progress(&self) {
        // SAFETY: the queue is open, and so is the argument of the function.
        unsafe { (self.progress.progress)(self.progress.who) };
    }

    /// Returns a descriptor that is readable when there is something to do.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Returns true if a caller may sleep until the descriptor is readable (fi_trywait(3)).
    pub fn may_block(&self) -> bool {
        // SAFETY: open, and of this domain.
        unsafe { may_block(&self.domain, self.cq) }
    }

    /// The calling thread does not sleep any more after its last [`may_block`](Self::may_block).
    pub fn end_wait(&self) {
        // SAFETY: open, and a queue knowing the command, without an argument.
        let _ = unsafe { control(self.cq.as_ptr().cast(), ENDS_WAIT, ptr::null_mut()) };
    }
}

impl Drop for CoreWaiter {
    fn drop(&mut self) {
        // SAFETY: open until here.
        let _ = unsafe { close(self.cq.as_ptr().cast()) };
    }
}

/// Owner of queues without bound objects, and without events.
#[derive(Debug)]
struct NoOwner;

impl QueueOwner for NoOwner {
    type Filling = ();

    fn arrived(&self, _message: &ArrivingMessage) -> Option<(RecvBuf, ())> {
        None
    }
    fn arrived_short(&self, _message: &ArrivingMessage, _bytes: impl MessageBytes) -> bool {
        false
    }
    fn arrived_whole(&self, _message: &ArrivingMessage, _bytes: impl MessageBytes) -> bool {
        false
    }
    fn waits(&self, _message: &ArrivingMessage, _entry: u32) {}
    fn named(&self, _addr_of: &dyn Fn(u32) -> fi_addr_t) {}
    fn received(&self, (): (), _of: &Completion) {}
    fn receive_failed(&self, (): (), _error: &CompletionError) {}
    fn done(&self, _of: Completion) {}
    fn failed(&self, _error: CompletionError) {}
    fn counted(&self, _kind: u64, _failed: bool) {}
}

/// Opens the completion queue of a rail, with a wait descriptor if requested and supported by the
/// core provider.
///
/// # Safety
/// The queues live until the core provider's queue is closed.
unsafe fn open_cq<O: QueueOwner>(
    domain: &Arc<CoreDomain>,
    peer_cqs: &PeerCqs<O>,
    waits: bool,
) -> Result<(NonNull<fid_cq>, Option<RawFd>)> {
    let open = |wait: fi_wait_obj| {
        let mut raw: *mut fid_cq = ptr::null_mut();
        // SAFETY: all zeros but for what is set is a valid attribute; it and the context live for the
        // call, and the queue as this function's contract says.
        unsafe {
            let mut attr = std::mem::zeroed::<fi_cq_attr>();
            attr.flags = abi::FI_PEER;
            attr.format = fi_cq_format::FI_CQ_FORMAT_TAGGED.into();
            attr.wait_obj = wait.into();
            let mut context =
                fi_peer_cq_context { size: size_of::<fi_peer_cq_context>(), cq: peer_cqs.cq() };
            let open = call!(domain.raw().as_ref().ops, cq_open);
            let context = (&raw mut context).cast();
            code(open(domain.raw().as_ptr(), &mut attr, &mut raw, context))?;
        }
        given(raw)
    };
    if waits {
        if let Ok(cq) = open(fi_wait_obj::FI_WAIT_FD) {
            let mut fd: c_int = -1;
            // SAFETY: open; FI_GETWAIT of a queue with FI_WAIT_FD fills an int.
            let asked = unsafe {
                control(cq.as_ptr().cast(), abi::FI_GETWAIT, (&raw mut fd).cast::<c_void>())
            };
            if asked.is_ok() && fd >= 0 {
                return Ok((cq, Some(fd)));
            }
            // SAFETY: open, and nothing uses it.
            let _ = unsafe { close(cq.as_ptr().cast()) };
        }
    }
    Ok((open(fi_wait_obj::FI_WAIT_NONE)?, None))
}

impl CoreDomain {
    /// Returns the maximum bytes of elements of an atomic operation (fi_query_atomic(3)); 0 if the
    /// core provider does not support it.
    pub fn max_atomic(&self, operation: Operation) -> usize {
        let flags = match operation.kind() {
            AtomicKind::Base => 0,
            AtomicKind::Fetch => abi::FI_FETCH_ATOMIC,
            AtomicKind::Compare => abi::FI_COMPARE_ATOMIC,
        };
        let asked = (|| -> Result<usize> {
            // SAFETY: the domain is open; all zeros is a valid attribute, which lives for the call.
            unsafe {
                let mut attr = std::mem::zeroed::<fi_atomic_attr>();
                let (datatype, op) = (operation.datatype(), operation.op());
                let (datatype, op) =
                    (c_enum::from_raw(datatype.into()), c_enum::from_raw(op.into()));
                let query = call!(self.raw().as_ref().ops, query_atomic);
                code(query(self.raw().as_ptr(), datatype, op, &mut attr, flags))?;
                Ok(attr.count.saturating_mul(operation.size()))
            }
        })();
        asked.unwrap_or(0)
    }
}
