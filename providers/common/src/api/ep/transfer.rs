//! The way of every transfer from its call to the provider.
use super::fid::EpFid;
use super::shared::EpShared;
use crate::abi::{
    FI_ATOMIC, FI_MSG, FI_MULTICAST, FI_READ, FI_RECV, FI_RMA, FI_SEND, FI_TAGGED, FI_TRIGGER,
    FI_WRITE, fi_addr_t, fi_ep_type,
};
use crate::addr::Addr;
use crate::api::traits::Endpoint;
use crate::atomic::AtomicKind;
use crate::buf::{RecvBuf, SendBuf};
use crate::call_conditions::CALL_CONDITIONS;
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::heap;
use crate::mr::MrTable;
use crate::operation::{AtomicOp, FastRecv, ReadOp, RecvOp, SendOp, WriteOp};
use crate::probes::{self, TracedTransfer};
use crate::reserved::{TO_GROUPS, WITH_DEVICES, is_group};
use std::mem;

/// Transfer ready to be posted.
#[derive(Clone, Debug)]
pub(crate) enum Transfer {
    Send(SendOp),
    Tsend(SendOp),
    Recv(RecvOp),
    Trecv(RecvOp),
    Read(ReadOp),
    Write(WriteOp),
    Atomic(AtomicOp),
}

impl Transfer {
    pub(crate) fn parts(&mut self) -> (&mut Context, &mut u64) {
        match self {
            Self::Send(op) | Self::Tsend(op) => (&mut op.context, &mut op.flags),
            Self::Recv(op) | Self::Trecv(op) => (&mut op.context, &mut op.flags),
            Self::Read(op) => (&mut op.context, &mut op.flags),
            Self::Write(op) => (&mut op.context, &mut op.flags),
            Self::Atomic(op) => (&mut op.context, &mut op.flags),
        }
    }

    /// The flags of the transfer's completion entry: FI_SEND, FI_TAGGED, FI_RMA …
    pub(crate) fn kind(&self) -> u64 {
        match self {
            Self::Send(_) => FI_SEND | FI_MSG,
            Self::Tsend(_) => FI_SEND | FI_TAGGED,
            Self::Recv(_) => FI_RECV | FI_MSG,
            Self::Trecv(_) => FI_RECV | FI_TAGGED,
            Self::Read(_) => FI_READ | FI_RMA,
            Self::Write(_) => FI_WRITE | FI_RMA,
            Self::Atomic(op) if op.operation.kind() == AtomicKind::Base => FI_WRITE | FI_ATOMIC,
            Self::Atomic(_) => FI_READ | FI_ATOMIC,
        }
    }

    /// Returns the destination of the transfer, its tag and its length in bytes.
    fn target(&self) -> (fi_addr_t, u64, usize) {
        match self {
            Self::Send(op) => (op.dest, 0, op.buf.len()),
            Self::Tsend(op) => (op.dest, op.tag, op.buf.len()),
            Self::Recv(op) | Self::Trecv(op) => (op.src, op.tag, op.buf.len()),
            Self::Read(op) => (op.src, 0, op.buf.len()),
            Self::Write(op) => (op.dest, 0, op.buf.len()),
            Self::Atomic(op) => (op.dest, 0, op.source.len()),
        }
    }

    /// Returns the source buffer of the transfer, if it sends bytes.
    pub(crate) fn source(&mut self) -> Option<&mut SendBuf> {
        match self {
            Self::Send(op) | Self::Tsend(op) => Some(&mut op.buf),
            Self::Write(op) => Some(&mut op.buf),
            Self::Atomic(op) => Some(&mut op.source),
            Self::Recv(_) | Self::Trecv(_) | Self::Read(_) => None,
        }
    }

    /// Marks the memory of devices among the buffers of the transfer. Fails with -FI_EOPNOTSUPP if
    /// the transfer cannot have such memory: an atomic operation.
    fn locate(&mut self, regions: &MrTable) -> Result {
        match self {
            Self::Send(SendOp { buf, .. })
            | Self::Tsend(SendOp { buf, .. })
            | Self::Write(WriteOp { buf, .. }) => {
                let locations = regions.locations(buf.iov());
                *buf = mem::replace(buf, SendBuf::none()).with_locations(locations);
            }
            Self::Recv(RecvOp { buf, .. })
            | Self::Trecv(RecvOp { buf, .. })
            | Self::Read(ReadOp { buf, .. }) => {
                let locations = regions.locations(buf.iov());
                *buf = mem::replace(buf, RecvBuf::none()).with_locations(locations);
            }
            Self::Atomic(op) => {
                let bufs = [op.source.iov(), op.compare.iov(), op.result.iov()];
                if bufs.iter().any(|iov| regions.locations(iov).iter().any(Option::is_some)) {
                    return Err(Error::OPNOTSUPP);
                }
            }
        }
        Ok(())
    }

    /// Returns true if a buffer of the transfer is in memory of a device.
    fn has_devices(&self) -> bool {
        match self {
            Self::Send(SendOp { buf, .. })
            | Self::Tsend(SendOp { buf, .. })
            | Self::Write(WriteOp { buf, .. }) => buf.is_device(),
            Self::Recv(RecvOp { buf, .. })
            | Self::Trecv(RecvOp { buf, .. })
            | Self::Read(ReadOp { buf, .. }) => buf.is_device(),
            Self::Atomic(_) => false,
        }
    }

    /// Returns true if the transfer sends, and is no receive.
    pub(crate) fn sends(&self) -> bool {
        !matches!(self, Self::Recv(_) | Self::Trecv(_))
    }

    pub(crate) fn post<E: Endpoint>(self, ep: &E) -> Result {
        match self {
            Self::Send(op) => ep.send(op),
            Self::Tsend(op) => ep.tsend(op),
            Self::Recv(op) => ep.recv(op),
            Self::Trecv(op) => ep.trecv(op),
            Self::Read(op) => ep.read(op),
            Self::Write(op) => ep.write(op),
            Self::Atomic(op) => ep.atomic(op),
        }
    }
}

/// Flags of operations with more steps than the provider's call.
const SPECIAL: u64 = FI_TRIGGER | TO_GROUPS | WITH_DEVICES;

/// Operation possibly with memory of devices.
trait Located {
    /// Returns true if all buffers are known to be in memory of the host.
    fn is_in_heap(&self) -> bool;
}

macro_rules! located {
    ($($op:ty)*) => {$(
        impl Located for $op {
            #[inline(always)]
            fn is_in_heap(&self) -> bool {
                self.buf.is_in_heap()
            }
        }
    )*};
}

located!(SendOp RecvOp ReadOp WriteOp);

impl Located for AtomicOp {
    fn is_in_heap(&self) -> bool {
        false
    }
}

/// Passes transfers to the provider, except ones waiting for a counter, by flags of the call or of
/// its endpoint, ones possibly for a group, ones possibly with memory of devices, and all while memory
/// is short or a tracer is attached.
macro_rules! start {
    ($($name:ident $variant:ident $op:ty, $sends:literal);*) => {
        impl<E: Endpoint> EpFid<E> {
            $(
                #[inline(always)]
                pub(crate) fn $name(&self, mut op: $op) -> Result {
                    if op.flags & SPECIAL != 0 || CALL_CONDITIONS.has_any() {
                        let is_host = op.flags & SPECIAL == WITH_DEVICES && op.is_in_heap();
                        if !is_host || CALL_CONDITIONS.has_any() {
                            return self.start(Transfer::$variant(op));
                        }
                        op.flags &= !WITH_DEVICES;
                    }
                    self.shared.hand($sends, |ep| ep.$name(op))
                }
            )*
        }
    };
}

start!(
    send Send SendOp, true; tsend Tsend SendOp, true;
    recv Recv RecvOp, false; trecv Trecv RecvOp, false;
    read Read ReadOp, true; write Write WriteOp, true; atomic Atomic AtomicOp, true
);

impl<E: Endpoint> EpFid<E> {
    /// Passes a receive to the provider if no further work is needed ([`Msg::try_post_fast`]).
    #[inline(always)]
    pub(super) fn try_post_fast<const LEVEL: usize>(&self, mut op: FastRecv, tagged: bool) -> bool {
        if op.flags & SPECIAL != 0 {
            if op.flags & SPECIAL != WITH_DEVICES || !op.buf.is_in_heap() {
                return false;
            }
            op.flags &= !WITH_DEVICES;
        }
        self.shared.try_post_fast::<LEVEL>(op, tagged)
    }

    /// Hands a transfer to the provider, to the counter it waits for, or to a group. Memory of
    /// devices among its buffers is marked.
    fn start(&self, mut op: Transfer) -> Result {
        heap::ready().map_err(|_| Error::AGAIN)?;
        if let Some(regions) = &self.shared.ground.devices {
            op.locate(regions)?;
        }
        let has_devices = op.has_devices();
        let (_, flags) = op.parts();
        let (triggered, multicast) = (*flags & FI_TRIGGER != 0, *flags & FI_MULTICAST != 0);
        *flags &= !(TO_GROUPS | FI_MULTICAST | if has_devices { 0 } else { WITH_DEVICES });
        match op {
            Transfer::Send(SendOp { dest, .. }) | Transfer::Tsend(SendOp { dest, .. })
                if triggered && is_group(dest) =>
            {
                Err(Error::OPNOTSUPP)
            }
            Transfer::Send(op) if is_group(op.dest) => self.shared.send_to_group(op, false),
            Transfer::Tsend(op) if is_group(op.dest) => self.shared.send_to_group(op, true),
            _ if multicast => Err(Error::INVAL),
            op if triggered => self.trigger(op),
            op => self.shared.hand_transfer(op),
        }
    }
}

impl<E: Endpoint> EpShared<E> {
    /// Passes a transfer to the provider, and to a tracer.
    pub(crate) fn hand_transfer(&self, op: Transfer) -> Result {
        if op.sends() && probes::is_enabled() {
            return self.hand_traced(op);
        }
        self.hand(op.sends(), |ep| op.post(ep))
    }

    #[cold]
    fn hand_traced(&self, mut op: Transfer) -> Result {
        let flags = op.kind();
        let (fi_addr, tag, len) = op.target();
        let context = op.parts().0.0 as usize;
        let (endpoint, peer) = self.trace_ids(fi_addr);
        probes::sent(&TracedTransfer { endpoint, peer, tag, len, context, flags, fi_addr });
        let result = self.hand(true, |ep| op.post(ep));
        if let Err(error) = result {
            probes::refused(endpoint, context, error.code().into());
        }
        result
    }

    /// Returns the numbers of the endpoint and of the peer of a destination in traces; 0 if unknown.
    fn trace_ids(&self, dest: fi_addr_t) -> (u64, u64) {
        let bindings = self.bindings();
        let ids = bindings.completions.trace_ids();
        let (own, connected) = ids.map_or((0, 0), |ids| (ids.own(), ids.peer()));
        if connected != 0 {
            return (own, connected);
        }
        let av = bindings.av.clone();
        drop(bindings);
        let av = av.or_else(|| self.sep.as_ref()?.bindings().av.clone());
        let addr = av.and_then(|av| av.get(av.split(dest).0).ok());
        (own, addr.map_or(0, |addr| addr.trace_id()))
    }

    /// Publishes the number of the endpoint in traces, after the endpoint has got its address.
    pub(super) fn publish_trace_id(&self) {
        if self.ep_type == fi_ep_type::FI_EP_MSG {
            // A connection has other addresses.
            return;
        }
        let Ok(name) = self.inner.getname() else { return };
        let Ok(addr) = Addr::read(self.ground.addr_format, &name) else { return };
        let id = addr.trace_id();
        if let Some(ids) = self.bindings().completions.trace_ids() {
            ids.set_own(id);
        }
        if probes::is_enabled() {
            probes::enabled(id, &addr.for_people());
        }
    }
}
