//! Receives, from the call to the device.
use super::ep::{QpState, VerbsEndpoint};
use super::request::{PostedRecv, post_error};
use super::state::VerbsEngine;
use crate::memory::VerbsMemory;
use crate::sys::Sge;
use ofi_provider::api::RecvOp;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::{Error, Result};

impl VerbsEngine {
    /// Posts a receive. Returns -FI_EAGAIN if there is no space.
    #[inline]
    pub(crate) fn recv(&self, at: u32, op: RecvOp) -> Result {
        let mut state = self.lock();
        state.eps[at].recv(at, &op, self)
    }
}

impl VerbsEndpoint {
    /// Posts a receive as [`VerbsEngine::recv`] does.
    #[inline]
    fn recv(&mut self, at: u32, op: &RecvOp, engine: &VerbsEngine) -> Result {
        let posted = if self.srq.is_some() { self.shared.len() } else { self.posted.items.len() };
        if posted >= self.limits.rx_size {
            return Err(Error::AGAIN);
        }
        if self.conn == QpState::Down {
            return Err(Error::NOTCONN);
        }
        let mut sges = [Sge { addr: 0, length: 0, lkey: 0 }; IOV_LIMIT];
        let (mut count, regions) =
            engine.segments(op.buf.local(), &mut sges, false, VerbsMemory::WRITABLE)?;
        if count > self.limits.rx_iov {
            return Err(Error::INVAL);
        }
        if count == 0 && engine.device.is_iwarp() {
            // siw takes no receive without a segment, but one with an empty segment.
            count = 1;
        }
        let (context, flags) = (op.context, op.flags);
        let item = PostedRecv { context, flags, buf: op.buf.address(), _regions: regions };
        let number = match &self.srq {
            Some(_) => self.shared.insert(item),
            None => {
                let number = self.posted.next();
                self.posted.items.push_back(item);
                number
            }
        };
        let wr_id = u64::from(at) << 32 | u64::from(number);
        let to = &mut sges[..count];
        // SAFETY: the application lends the memory until the completion, which is
        // when `PostedRecv` goes and with it what keeps the memory registered.
        let result = unsafe {
            match &self.srq {
                Some(srq) => srq.recv(wr_id, to),
                None => self.qp().and_then(|qp| qp.recv(wr_id, to)),
            }
        };
        result.map_err(|error| {
            match &self.srq {
                Some(_) => drop(self.shared.remove(number)),
                None => drop(self.posted.items.pop_back()),
            }
            post_error(error)
        })
    }
}
