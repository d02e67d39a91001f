//! Endpoints: their messages go to the owner's endpoint, and all else is not there.
use core::ffi::c_int;
use ofi_provider::api::{Atomic, Bindings, Cm, Endpoint, Msg, RecvOp, Rma, SendOp, Tagged};
use ofi_provider::core_provider::PeerTransfers;
use ofi_provider::cq::Context;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::INTERNAL_OP;
use std::sync::Arc;

/// An endpoint. What it sends and receives is the messages of collectives alone.
#[derive(Debug)]
pub(crate) struct OffloadEp(pub(crate) Arc<PeerTransfers>);

impl OffloadEp {
    /// -FI_ENOSYS for messages of the program's, of which there are none.
    fn check_internal(&self, flags: u64) -> Result {
        if flags & INTERNAL_OP == 0 { Err(Error::NOSYS) } else { Ok(()) }
    }
}

impl Endpoint for OffloadEp {
    const LATER: bool = true;
    const TRANSFERS: bool = true;

    fn transfers(&self) -> Option<&PeerTransfers> {
        Some(&self.0)
    }

    fn opened(&self, _fid: FidPtr) {}

    fn enable(&self, bindings: &Bindings, _srx: Option<&Self>) -> Result {
        self.0.enable(&bindings.completions);
        Ok(())
    }

    fn bound_late(&self, _bindings: &Bindings) -> Result {
        // The event queue is asked for when a group is joined.
        Ok(())
    }

    fn cancel(&self, context: Context, internal: bool) -> Result {
        if internal {
            self.0.cancel(context);
        }
        Ok(())
    }

    fn getopt(&self, _name: c_int, _value: &mut [u8]) -> Result<usize> {
        Err(Error::NOPROTOOPT)
    }

    fn setopt(&self, _name: c_int, _value: &[u8]) -> Result {
        Err(Error::NOPROTOOPT)
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Tagged for OffloadEp {
    fn tsend(&self, op: SendOp) -> Result {
        self.check_internal(op.flags)?;
        self.0.send(&op)
    }

    fn trecv(&self, op: RecvOp) -> Result {
        self.check_internal(op.flags)?;
        self.0.receive(&op)
    }
}

impl Msg for OffloadEp {}
impl Rma for OffloadEp {}
impl Atomic for OffloadEp {}

impl Cm for OffloadEp {
    fn getname(&self) -> Result<Vec<u8>> {
        self.0.name()
    }
}
