//! A core provider's connected endpoint (fi_endpoint(3)).
use super::call::{bind, call, check, close, code, control, set_option, set_p2p};
use super::cm::CoreEq;
use super::cntr::CoreCntr;
use super::domain::CoreDomain;
use super::in_flight::{CoreOpKind, InFlightOp};
use super::memory::{CoreBuf, CoreRegion};
use super::options::{OPT_PEER_ENDED, OPT_SOURCE};
use super::post::{post, start_send};
use super::queue::CoreCq;
use super::srx::SharedRx;
use crate::abi::{
    self, FI_ADDR_UNSPEC, fi_addr_t, fi_msg, fi_msg_rma, fi_peer_links, fi_rma_iov, fid, fid_ep,
};
use crate::buf::{IOV_LIMIT, RecvBuf, SendBuf};
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use crate::operation::RemoteSegment;
use crate::stack::on_own_stack;
use core::ffi::{c_int, c_void};
use libc::iovec;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

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

/// Sets [`OPT_SOURCE`].
///
/// # Safety
/// `ep` is an open endpoint.
unsafe fn set_source(ep: NonNull<fid_ep>, source: &fi_addr_t) -> Result {
    // SAFETY: by this function's contract.
    unsafe { set_option(ep, OPT_SOURCE, source) }
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
        self.cq.lock_flights().has_transfers(self.owner)
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
        let ep = Self {
            raw: cq.domain().open_endpoint(info)?,
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
                bind(ep.fid(), srx.fid(), 0)?;
            }
            for (cntr, flags) in cntrs {
                bind(ep.fid(), cntr.fid(), *flags)?;
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
        let Ok(ep) = domain.open_endpoint(info) else { return false };
        let source = 0u64;
        // SAFETY: the endpoint is open until it is closed here, and the value lives for the call.
        unsafe {
            let is_set = set_source(ep, &source).is_ok();
            let _ = close(ep.as_ptr().cast());
            is_set
        }
    }

    /// Makes receives report `source` ([`OPT_SOURCE`]), if the core provider
    /// supports it.
    pub fn set_source(&self, source: fi_addr_t) -> Result {
        // SAFETY: open.
        unsafe { set_source(self.raw, &source) }
    }

    /// Returns true if the core provider knows the peer has ended the connection
    /// ([`OPT_PEER_ENDED`]).
    pub fn peer_has_ended(&self) -> bool {
        let (mut ended, mut len) = (0u8, 1);
        let (level, name) = (abi::FI_OPT_ENDPOINT as c_int, OPT_PEER_ENDED);
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

    /// Keeps devices of peers on this host from reading memory of devices (FI_HMEM_P2P_DISABLED), if
    /// supported.
    pub fn forbid_p2p(&self) -> Result {
        // SAFETY: open.
        unsafe { set_p2p(self.raw, false) }
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
        let head = iovec { iov_base: buf.base().as_ptr().cast(), iov_len: len.min(buf.len()) };
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
        let iov_len = usize::try_from(total).unwrap_or(usize::MAX).min(buf.len());
        let iov = [iovec { iov_base: buf.base().as_ptr().cast(), iov_len }];
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
        if total != buf.len() as u64 {
            return Err((Error::INVAL, buf));
        }
        let iov = [iovec { iov_base: buf.base().as_ptr().cast(), iov_len: buf.len() }];
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
        let added = self.cq.lock_flights().add(buf, what.token, self.owner, CoreOpKind::Transfer);
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
        self.end().into_iter().map(InFlightOp::into_parts).collect()
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
