//! Endpoints and listeners, memory regions, and completions.
use super::calls::*;
use super::domain::*;
use super::info::*;
use crate::layout::Handle;
use libc::iovec;
use ofi::abi::*;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::Arc;

/// A completion queue.
pub(crate) struct FabricQueue {
    cq: OwnedFid,
    _domain: Arc<FabricDomain>,
}

/// Completion of an operation from a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricCompletion {
    pub(crate) context: Handle,
    pub(crate) length: usize,
    /// 0 or the error.
    pub(crate) code: Code,
}

impl FabricQueue {
    /// Opens a queue with space for `size` entries.
    pub(crate) fn open(domain: &Arc<FabricDomain>, size: usize) -> Result<Self, Code> {
        let mut cq: *mut fid_cq = null_mut();
        let of = domain.domain();
        let mut open = |domain_wait_set: Option<&DomainWaitSet>| {
            let (wait_obj, wait_set) = DomainWaitSet::of_queue(domain_wait_set);
            let mut attr = fi_cq_attr {
                size,
                flags: 0,
                format: c_enum::from_raw(fi_cq_format::FI_CQ_FORMAT_MSG as u32),
                wait_obj,
                signaling_vector: 0,
                wait_cond: c_enum::from_raw(fi_cq_wait_cond::FI_CQ_COND_NONE as u32),
                wait_set,
                xpu_ctx: null_mut(),
            };
            code(call!(-FI_ENOSYS, of, ops, cq_open, &mut attr, &mut cq, null_mut()))
        };
        open(domain.domain_wait_set.as_ref()).or_else(|_| open(None))?;
        Ok(Self { cq: OwnedFid(cq.cast()), _domain: Arc::clone(domain) })
    }

    /// The next completion.
    pub(crate) fn read(&self) -> Option<FabricCompletion> {
        let cq: *mut fid_cq = self.cq.0.cast();
        let mut entry = fi_cq_msg_entry { op_context: null_mut(), flags: 0, len: 0 };
        let again = -(FI_EAGAIN as isize);
        let answer = call!(again, cq, ops, read, (&raw mut entry).cast(), 1);
        if answer == 1 {
            let context = number(entry.op_context);
            return Some(FabricCompletion { context, length: entry.len, code: 0 });
        }
        if answer != -(FI_EAVAIL as isize) {
            return None;
        }
        let mut entry = fi_cq_err_entry {
            op_context: null_mut(),
            flags: 0,
            len: 0,
            buf: null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: null_mut(),
            err_data_size: 0,
            src_addr: 0,
        };
        if call!(0, cq, ops, readerr, &mut entry, 0) != 1 {
            return None;
        }
        let (context, length) = (number(entry.op_context), entry.len);
        Some(FabricCompletion { context, length, code: entry.err.max(1) })
    }
}

/// A registered region.
pub(crate) struct FabricRegion {
    mr: OwnedFid,
    _domain: Arc<FabricDomain>,
}

impl FabricRegion {
    /// Registers memory of the application's under a key of ours, if the provider has none.
    pub(crate) fn register(
        domain: &Arc<FabricDomain>,
        address: u64,
        length: u64,
        access: u64,
        key: u32,
    ) -> Result<Self, Code> {
        let mut mr: *mut fid_mr = null_mut();
        let of = domain.domain();
        let at = std::ptr::with_exposed_provenance::<c_void>(address as usize);
        let length = usize::try_from(length).map_err(|_| FI_EINVAL)?;
        // SAFETY: an open domain and its table; the memory belongs to the application, responsible
        // for it until it frees the region.
        let answer = unsafe {
            match (*(*of).mr).reg {
                Some(reg) => {
                    let (to, key) = (&raw mut mr, key.into());
                    reg(of.cast(), at, length, access, 0, key, 0, to, null_mut())
                }
                None => -FI_ENOSYS,
            }
        };
        code(answer)?;
        Ok(Self { mr: OwnedFid(mr.cast()), _domain: Arc::clone(domain) })
    }

    /// Returns the key used by peers.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: an open region.
        unsafe { (*self.mr.0.cast::<fid_mr>()).key }
    }

    /// Returns the descriptor used by local operations.
    pub(crate) fn descriptor(&self) -> usize {
        // SAFETY: an open region.
        unsafe { (*self.mr.0.cast::<fid_mr>()).mem_desc }.expose_provenance()
    }
}

/// Local memory of an operation: address, length, descriptor.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LocalPiece {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) descriptor: usize,
}

/// Memory of one operation, as stored.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LocalPieces {
    pub(crate) pieces: [LocalPiece; SEGMENTS],
    pub(crate) count: usize,
}

impl LocalPieces {
    /// Leaves so many bytes of them.
    pub(crate) fn shorten(&mut self, mut length: u32) {
        for k in 0..self.count {
            let piece = &mut self.pieces[k];
            piece.length = piece.length.min(length);
            length -= piece.length;
            if length == 0 {
                self.count = if piece.length == 0 { k } else { k + 1 };
                return;
            }
        }
    }
}

/// The same as libfabric takes it.
pub(super) struct Vectors<'a> {
    iov: [iovec; SEGMENTS],
    desc: [*mut c_void; SEGMENTS],
    _of: PhantomData<&'a LocalPieces>,
}

impl Vectors<'_> {
    fn new(of: &LocalPieces) -> Self {
        let piece = |k: usize| of.pieces[k];
        let at = |k| std::ptr::with_exposed_provenance_mut(piece(k).address as usize);
        Self {
            iov: std::array::from_fn(|k| iovec {
                iov_base: at(k),
                iov_len: piece(k).length as usize,
            }),
            desc: std::array::from_fn(|k| {
                std::ptr::with_exposed_provenance_mut(piece(k).descriptor)
            }),
            _of: PhantomData,
        }
    }
}

/// Queue of receives shared by endpoints.
pub(crate) struct SharedReceives {
    ep: OwnedFid,
    _domain: Arc<FabricDomain>,
}

pub(super) fn receive(
    ep: *mut fid_ep,
    pieces: &LocalPieces,
    operation: Handle,
) -> Result<(), Code> {
    let mut v = Vectors::new(pieces);
    let (iov, desc) = (v.iov.as_ptr(), v.desc.as_mut_ptr());
    let (none, count, operation) = (-(FI_ENOSYS as isize), pieces.count, context(operation));
    long_code(call!(none, ep, msg, recvv, iov, desc, count, FI_ADDR_UNSPEC, operation))
}

impl SharedReceives {
    /// Opens a queue with space for `size` receives.
    pub(crate) fn open(
        domain: &Arc<FabricDomain>,
        info: &FabricInfo,
        size: usize,
    ) -> Result<Arc<Self>, Code> {
        // SAFETY: a description that was found has all of its parts.
        let mut attr = unsafe { *(*info.0).rx_attr };
        attr.size = size;
        let mut ep: *mut fid_ep = null_mut();
        let of = domain.domain();
        code(call!(-FI_ENOSYS, of, ops, srx_ctx, &mut attr, &mut ep, null_mut()))?;
        Ok(Arc::new(Self { ep: OwnedFid(ep.cast()), _domain: Arc::clone(domain) }))
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
        receive(self.ep.0.cast(), pieces, operation)
    }
}

/// A connected endpoint with its queues.
pub(crate) struct FabricEndpoint {
    // The fields are dropped in this order: the endpoint before its queues, context and domain.
    ep: OwnedFid,
    pub(crate) requests: FabricQueue,
    pub(crate) receives: FabricQueue,
    _shared: Option<Arc<SharedReceives>>,
    _domain: Arc<FabricDomain>,
}

/// Direction of a remote memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RemoteAccess {
    Read,
    Write,
}

impl FabricEndpoint {
    /// Opens an endpoint ready to connect, or to accept the request of the info.
    pub(crate) fn open(
        domain: &Arc<FabricDomain>,
        info: &FabricInfo,
        of: Handle,
        sizes: (usize, usize),
        shared: Option<&Arc<SharedReceives>>,
    ) -> Result<Self, Code> {
        let info = if let Some(shared) = shared {
            let copy = info.copy()?;
            // SAFETY: a description that was found has all of its parts. The copy loses what the
            // request is known by, which is given back.
            unsafe {
                (*(*copy.0).ep_attr).rx_ctx_cnt = FI_SHARED_CONTEXT;
                (*copy.0).handle = (*info.0).handle;
            }
            Some((copy, shared))
        } else {
            None
        }
        .map_or_else(
            || (None, info.0),
            |(copy, _)| {
                let at = copy.0;
                (Some(copy), at)
            },
        );
        let mut ep: *mut fid_ep = null_mut();
        let from = domain.domain();
        code(call!(-FI_ENOSYS, from, ops, endpoint, info.1, &mut ep, context(of)))?;
        let opened = OwnedFid(ep.cast());
        let requests = FabricQueue::open(domain, sizes.0 + 16)?;
        let receives = FabricQueue::open(domain, sizes.1 + 16)?;
        let bind = |to: *mut fid, flags| code(call!(-FI_ENOSYS, opened.0, ops, bind, to, flags));
        bind(domain.eq.0, 0)?;
        bind(requests.cq.0, FI_TRANSMIT)?;
        bind(receives.cq.0, FI_RECV)?;
        if let Some(shared) = shared {
            bind(shared.ep.0, 0)?;
        }
        code(call!(-FI_ENOSYS, opened.0, ops, control, FI_ENABLE, null_mut()))?;
        let _domain = Arc::clone(domain);
        Ok(Self { ep: opened, requests, receives, _shared: shared.cloned(), _domain })
    }

    fn ep(&self) -> *mut fid_ep {
        self.ep.0.cast()
    }

    /// Closes it; its queues report the results of its operations.
    pub(crate) fn into_queues(self) -> (FabricQueue, FabricQueue) {
        let Self { ep, requests, receives, .. } = self;
        drop(ep);
        (requests, receives)
    }

    /// Calls a listener.
    pub(crate) fn connect(&self, peer: &SocketAddress, data: &[u8]) -> Result<(), Code> {
        let (at, data, length) = (peer.0.as_ptr().cast(), data.as_ptr().cast(), data.len());
        code(call!(-FI_ENOSYS, self.ep(), cm, connect, at, data, length))
    }

    /// Accepts the request whose info it was opened with.
    pub(crate) fn accept(&self, data: &[u8]) -> Result<(), Code> {
        code(call!(-FI_ENOSYS, self.ep(), cm, accept, data.as_ptr().cast(), data.len()))
    }

    /// Ends the connection.
    pub(crate) fn shutdown(&self) {
        let _ = call!(0, self.ep(), cm, shutdown, 0);
    }

    /// The endpoint's own address, or its peer's.
    pub(crate) fn address(&self, peer: bool) -> SocketAddress {
        let mut address = SocketAddress::NONE;
        let mut length = address.0.len();
        let at: *mut c_void = address.0.as_mut_ptr().cast();
        if peer {
            let _ = call!(0, self.ep(), cm, getpeer, at, &mut length);
        } else {
            let ep = self.ep();
            // SAFETY: the table of an open endpoint, and room of the length that is said.
            unsafe {
                if let Some(getname) = (*(*ep).cm).getname {
                    getname(ep.cast(), at, &mut length);
                }
            }
        }
        address
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
        receive(self.ep(), pieces, operation)
    }

    /// Posts a message.
    pub(crate) fn send(&self, pieces: &LocalPieces, operation: Handle) -> Result<(), Code> {
        let mut v = Vectors::new(pieces);
        let (iov, desc) = (v.iov.as_ptr(), v.desc.as_mut_ptr());
        let (none, count, operation) = (-(FI_ENOSYS as isize), pieces.count, context(operation));
        long_code(call!(none, self.ep(), msg, sendv, iov, desc, count, FI_ADDR_UNSPEC, operation))
    }

    /// Posts an access of remote memory.
    pub(crate) fn access(
        &self,
        which: RemoteAccess,
        pieces: &LocalPieces,
        (address, key): (u64, u64),
        operation: Handle,
    ) -> Result<(), Code> {
        let mut v = Vectors::new(pieces);
        let (iov, desc, count) = (v.iov.as_ptr(), v.desc.as_mut_ptr(), pieces.count);
        let (ep, none, peer) = (self.ep(), -(FI_ENOSYS as isize), FI_ADDR_UNSPEC);
        let operation = context(operation);
        long_code(match which {
            RemoteAccess::Read => {
                call!(none, ep, rma, readv, iov, desc, count, peer, address, key, operation)
            }
            RemoteAccess::Write => {
                call!(none, ep, rma, writev, iov, desc, count, peer, address, key, operation)
            }
        })
    }
}

/// A listener.
pub(crate) struct FabricListener {
    pep: OwnedFid,
    _domain: Arc<FabricDomain>,
}

impl FabricListener {
    /// Listens at the description's address and this port; 0 takes any.
    pub(crate) fn open(
        domain: &Arc<FabricDomain>,
        info: &FabricInfo,
        port: u16,
        of: Handle,
    ) -> Result<Arc<Self>, Code> {
        let mut info = info.copy()?;
        info.set_port(port);
        let mut pep: *mut fid_pep = null_mut();
        let fabric: *mut fid_fabric = domain.fabric.0.cast();
        code(call!(-FI_ENOSYS, fabric, ops, passive_ep, info.0, &mut pep, context(of)))?;
        let opened = OwnedFid(pep.cast());
        code(call!(-FI_ENOSYS, opened.0, ops, bind, domain.eq.0, 0))?;
        code(call!(-FI_ENOSYS, pep, cm, listen))?;
        Ok(Arc::new(Self { pep: opened, _domain: Arc::clone(domain) }))
    }

    /// The port it listens at.
    pub(crate) fn port(&self) -> u16 {
        let mut address = SocketAddress::NONE;
        let mut length = address.0.len();
        let pep: *mut fid_pep = self.pep.0.cast();
        // SAFETY: the table of an open listener, and room of the length that is said.
        unsafe {
            if let Some(getname) = (*(*pep).cm).getname {
                getname(self.pep.0, address.0.as_mut_ptr().cast(), &mut length);
            }
        }
        address.port()
    }

    /// Returns the maximum bytes of data in requests and answers.
    pub(crate) fn data_limit(&self) -> usize {
        let pep: *mut fid_pep = self.pep.0.cast();
        let (mut size, mut length) = (0usize, size_of::<usize>());
        // SAFETY: the table of an open listener, and room for a number.
        let answer = unsafe {
            let table = (*pep).ops;
            match if table.is_null() { None } else { (*table).getopt } {
                Some(getopt) => getopt(
                    self.pep.0,
                    FI_OPT_ENDPOINT,
                    FI_OPT_CM_DATA_SIZE,
                    (&raw mut size).cast(),
                    &mut length,
                ),
                None => -FI_ENOSYS,
            }
        };
        if answer == 0 { size } else { 0 }
    }

    /// Rejects a connection request.
    pub(crate) fn reject(&self, request: &FabricInfo, data: &[u8]) {
        let pep: *mut fid_pep = self.pep.0.cast();
        // SAFETY: the description of a request of this listener's.
        let handle = unsafe { (*request.0).handle };
        let _ = call!(0, pep, cm, reject, handle, data.as_ptr().cast(), data.len());
    }
}
