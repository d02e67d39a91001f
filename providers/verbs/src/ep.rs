//! The provider's endpoints.
use crate::cm::DATA_MAX;
use crate::engine::{VerbsEngine, WorkSpec};
use crate::hmem;
use crate::sys::{CmId, Verb};
use core::ffi::c_int;
use ofi_provider::abi::*;
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Atomic, AtomicOp, Bindings, Cm, Endpoint, Msg, ReadOp, RecvOp, RemoteSegments, Rma, SendOp,
    Tagged, WriteOp, destination,
};
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::buf::{Local, SendBuf};
use ofi_provider::core_provider::OPT_SOURCE;
use ofi_provider::cq::Context;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Bytes of an atomic operation.
const ATOMIC_SIZE: usize = size_of::<u64>();

/// Endpoint, or shared receive context; its operations are in the engine.
#[derive(Debug)]
pub(crate) struct VerbsEp {
    engine: Arc<VerbsEngine>,
    at: u32,
    /// Destination of fi_connect without an address.
    dest: Option<Addr>,
    /// The endpoint has no connection (FI_EP_DGRAM).
    datagrams: bool,
    /// FI_OPT_FI_HMEM_P2P, with FI_HMEM.
    p2p: Option<AtomicI32>,
}

impl VerbsEp {
    pub(crate) fn new(engine: Arc<VerbsEngine>, at: u32, dest: Option<Addr>) -> Self {
        Self { engine, at, dest, datagrams: false, p2p: None }
    }

    /// -FI_ENOSYS unless this is an endpoint for one connection.
    fn is_msg(&self) -> Result {
        if self.datagrams { Err(Error::NOSYS) } else { Ok(()) }
    }

    /// Returns the endpoint with buffers possibly in accelerator memory (FI_HMEM).
    pub(crate) fn with_hmem(self) -> Self {
        Self { p2p: Some(AtomicI32::new(FI_HMEM_P2P_ENABLED)), ..self }
    }

    /// A datagram endpoint.
    pub(crate) fn datagrams(engine: Arc<VerbsEngine>, at: u32) -> Self {
        Self { engine, at, dest: None, datagrams: true, p2p: None }
    }
}

impl Endpoint for VerbsEp {
    fn opened(&self, fid: FidPtr) {
        self.engine.lock().set_fid(self.at, fid);
    }

    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result {
        if srx.is_some_and(|srx| !Arc::ptr_eq(&self.engine, &srx.engine)) {
            return Err(Error::INVAL);
        }
        self.engine.enable(self.at, bindings, srx.map(|srx| srx.at))
    }

    fn bound_late(&self, bindings: &Bindings) -> Result {
        self.engine.lock().bind(self.at, bindings);
        Ok(())
    }

    fn cancel(&self, _context: Context, _tx: bool) -> Result {
        // A device does not return posted requests.
        Err(Error::NOSYS)
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        if let (FI_OPT_FI_HMEM_P2P, Some(p2p)) = (name, &self.p2p) {
            let bytes = p2p.load(Ordering::Relaxed).to_ne_bytes();
            value[..bytes.len()].copy_from_slice(&bytes);
            return Ok(bytes.len());
        }
        let size = match name {
            FI_OPT_CM_DATA_SIZE => DATA_MAX,
            FI_OPT_MAX_ATOMIC_SIZE if self.engine.atomics() => ATOMIC_SIZE,
            _ => return Err(Error::NOPROTOOPT),
        };
        let bytes = size.to_ne_bytes();
        value[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        if name == OPT_SOURCE && !self.datagrams {
            let source = value.try_into().map(u64::from_ne_bytes).map_err(|_| Error::INVAL)?;
            self.engine.lock().set_source(self.at, source);
            return Ok(());
        }
        let Some(p2p) = &self.p2p else { return Err(Error::NOPROTOOPT) };
        match name {
            FI_OPT_FI_HMEM_P2P => {}
            // An endpoint makes no call of CUDA's: what it may do about it is the same.
            FI_OPT_CUDA_API_PERMITTED if value.len() == size_of::<bool>() => {
                return hmem::load_cuda().map_err(|_| Error::INVAL);
            }
            FI_OPT_CUDA_API_PERMITTED => return Err(Error::INVAL),
            _ => return Err(Error::NOPROTOOPT),
        }
        match value.try_into().map(c_int::from_ne_bytes) {
            // The device works on the memory itself, always.
            Ok(way @ FI_HMEM_P2P_ENABLED..=FI_HMEM_P2P_PREFERRED) => {
                p2p.store(way, Ordering::Relaxed);
                Ok(())
            }
            Ok(FI_HMEM_P2P_DISABLED) => Err(Error::OPNOTSUPP),
            _ => Err(Error::INVAL),
        }
    }

    fn close(&self) {
        self.engine.close(self.at);
    }

    fn size_left(&self, tx: bool) -> Result<usize> {
        Ok(self.engine.lock().size_left(self.at, tx))
    }
}

impl Msg for VerbsEp {
    #[inline]
    fn send(&self, op: SendOp) -> Result {
        if let Some(segment) = op.buf.local().only() {
            if self.engine.send_fast(self.at, segment, op.flags, op.data, op.context)? {
                return Ok(());
            }
        }
        let request = WorkSpec {
            verb: Verb::Send,
            segments: op.buf.local(),
            len: op.buf.len(),
            kind: FI_SEND | FI_MSG,
            flags: op.flags,
            data: op.data,
            context: op.context,
            dest: op.dest,
            fetch: None,
        };
        self.engine.send(self.at, request)
    }

    #[inline]
    fn recv(&self, op: RecvOp) -> Result {
        self.engine.recv(self.at, op)
    }
}

impl Tagged for VerbsEp {}

/// Returns the single segment of a peer's memory expressible to a device.
fn remote_segment(remote: &RemoteSegments) -> Result<(u64, u32)> {
    match remote.as_slice() {
        [] => Ok((0, 0)),
        [one] => Ok((one.addr, u32::try_from(one.key).map_err(|_| Error::INVAL)?)),
        _ => Err(Error::INVAL),
    }
}

impl Rma for VerbsEp {
    fn read(&self, op: ReadOp) -> Result {
        let (addr, key) = remote_segment(&op.remote)?;
        let request = WorkSpec {
            verb: Verb::Read { addr, key },
            segments: op.buf.local(),
            len: op.buf.len(),
            kind: FI_READ | FI_RMA,
            flags: op.flags & !(FI_INJECT | FI_REMOTE_CQ_DATA),
            data: 0,
            context: op.context,
            dest: FI_ADDR_UNSPEC,
            fetch: None,
        };
        self.engine.send(self.at, request)
    }

    fn write(&self, op: WriteOp) -> Result {
        let (addr, key) = remote_segment(&op.remote)?;
        let request = WorkSpec {
            verb: Verb::Write { addr, key },
            segments: op.buf.local(),
            len: op.buf.len(),
            kind: FI_WRITE | FI_RMA,
            flags: op.flags,
            data: op.data,
            context: op.context,
            dest: FI_ADDR_UNSPEC,
            fetch: None,
        };
        self.engine.send(self.at, request)
    }
}

/// An operand of eight bytes; 0 if there is none.
fn operand(buf: &SendBuf) -> u64 {
    let mut bytes = [0; ATOMIC_SIZE];
    let len = buf.len().min(ATOMIC_SIZE);
    buf.copy_to(0, &mut bytes[..len]);
    u64::from_ne_bytes(bytes)
}

/// Returns true if devices have this operation: they add and compare whole words.
fn has(operation: Operation) -> bool {
    let integer = [fi_datatype::FI_INT64 as u8, fi_datatype::FI_UINT64 as u8];
    let op = operation.op();
    integer.contains(&operation.datatype())
        && match operation.kind() {
            AtomicKind::Base => op == fi_op::FI_SUM as u8,
            // Reading is adding nothing.
            AtomicKind::Fetch => op == fi_op::FI_SUM as u8 || op == fi_op::FI_ATOMIC_READ as u8,
            AtomicKind::Compare => op == fi_op::FI_CSWAP as u8,
        }
}

impl Atomic for VerbsEp {
    const OFFERED: bool = true;

    fn max_bytes(operation: Operation) -> usize {
        if has(operation) { ATOMIC_SIZE } else { 0 }
    }

    fn atomic(&self, op: AtomicOp) -> Result {
        let (addr, key) = remote_segment(&op.remote)?;
        let operation = op.operation;
        let verb = match operation.kind() {
            AtomicKind::Compare => Verb::CompareSwap {
                addr,
                key,
                compare: operand(&op.compare),
                swap: operand(&op.source),
            },
            _ => Verb::FetchAdd { addr, key, add: operand(&op.source) },
        };
        let way = if operation.fetches() { FI_READ } else { FI_WRITE };
        let request = WorkSpec {
            verb,
            segments: Local::default(),
            len: op.remote.total()?,
            kind: way | FI_ATOMIC,
            // A device has no immediate data for these.
            flags: op.flags & !FI_REMOTE_CQ_DATA,
            data: 0,
            context: op.context,
            dest: FI_ADDR_UNSPEC,
            fetch: operation.fetches().then_some(op.result),
        };
        self.engine.send(self.at, request)
    }
}

impl Cm for VerbsEp {
    fn getname(&self) -> Result<Vec<u8>> {
        let state = self.engine.lock();
        if self.datagrams {
            return Ok(state.ud_name(self.at, self.engine.device)?.to_bytes().to_vec());
        }
        let local = state.id(self.at)?.local().ok_or(Error::ADDRNOTAVAIL)?;
        Ok(local.to_bytes())
    }

    fn setname(&self, name: &[u8]) -> Result {
        if self.datagrams {
            // The device chooses.
            return Err(Error::NOSYS);
        }
        let local = Addr::from_bytes(name)?;
        // A bound identifier stays bound; another one takes the new address.
        let id = CmId::new(&self.engine.channel, self.at as usize, &local)?;
        id.bind(&local)?;
        self.engine.lock().rename(self.at, id)
    }

    fn getpeer(&self) -> Result<Vec<u8>> {
        let state = self.engine.lock();
        if !state.is_connected(self.at) {
            return Err(Error::NOTCONN);
        }
        let peer = state.id(self.at)?.peer().ok_or(Error::NOTCONN)?;
        Ok(peer.to_bytes())
    }

    fn connect(&self, to: Option<&[u8]>, param: &[u8]) -> Result {
        self.is_msg()?;
        let to = destination(to, self.dest.as_ref(), Addr::from_bytes)?;
        self.engine.lock().connect(self.at, &to, param)
    }

    fn accept(&self, param: &[u8]) -> Result {
        self.is_msg()?;
        self.engine.lock().accept(self.at, param)
    }

    fn shutdown(&self) -> Result {
        self.is_msg()?;
        self.engine.lock().shutdown(self.at)
    }
}
