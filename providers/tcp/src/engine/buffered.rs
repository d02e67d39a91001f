//! Endpoints with buffered receives, for programs of 1.x (fi_msg(3) there):
//! messages are reported as they come, and then claimed or discarded.
//!
//! A message up to the endpoint's limit is kept and reported when all of it is
//! here. Of a longer one only the start is, and the rest waits in its connection
//! until the application says where it is to go.
use super::State;
use super::ep::Ep;
use super::inbox::{Body, Inbox, MAX_UNEXPECTED};
use core::ffi::c_int;
use ofi_provider::abi::{FI_DISCARD, FI_MORE, FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN};
use ofi_provider::buffered::RecvContext;
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::RecvOp;
use ofi_provider::multi_recv::Recv;

/// The limit of an endpoint whose application sets none, as the original's.
const DEFAULT_LIMIT: usize = 16384;

/// The largest limit.
const MAX_LIMIT: usize = MAX_UNEXPECTED / 4;

/// The longest start of a message: what surely fits behind a header in the
/// engine's room for reading.
pub(super) const MAX_START: usize = 1024;

/// How an endpoint buffers.
#[derive(Debug)]
pub(super) struct Buffering {
    /// Messages up to this are reported whole.
    pub(super) limit: usize,
    /// At least so much of others is reported with them.
    pub(super) start: usize,
    /// The endpoint is enabled: nothing can be set any more.
    pub(super) fixed: bool,
}

impl Default for Buffering {
    fn default() -> Self {
        Self { limit: DEFAULT_LIMIT, start: 0, fixed: false }
    }
}

/// A message that was reported and is neither claimed nor discarded yet.
#[derive(Debug)]
pub(super) struct Announced {
    queue: usize,
    id: u32,
    context: RecvContext,
    /// What its entry pointed to, if the message itself is not here.
    _start: Box<[u8]>,
}

impl Announced {
    /// Where it is kept: untagged or tagged, and its number.
    pub(super) fn place(&self) -> (usize, u32) {
        (self.queue, self.id)
    }
}

impl Ep {
    /// FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN.
    pub(crate) fn buffering(&self, name: c_int) -> Result<usize> {
        match (&self.buffering, name) {
            (Some(buffering), FI_OPT_BUFFERED_LIMIT) => Ok(buffering.limit),
            (Some(buffering), FI_OPT_BUFFERED_MIN) => Ok(buffering.start),
            _ => Err(Error::NOPROTOOPT),
        }
    }

    /// Sets one of them.
    pub(crate) fn set_buffering(&mut self, name: c_int, value: usize) -> Result {
        let buffering = self.buffering.as_mut().ok_or(Error::NOPROTOOPT)?;
        let (place, most) = match name {
            FI_OPT_BUFFERED_LIMIT => (&mut buffering.limit, MAX_LIMIT),
            FI_OPT_BUFFERED_MIN => (&mut buffering.start, MAX_START),
            _ => return Err(Error::NOPROTOOPT),
        };
        if buffering.fixed {
            return Err(Error::OPBADSTATE);
        }
        *place = match value {
            // As much as there can be.
            usize::MAX => most,
            value if value <= most => value,
            _ => return Err(Error::MSGSIZE),
        };
        Ok(())
    }

    /// Reports a kept message, of which there is all or this start.
    pub(super) fn announce(&self, inbox: &mut Inbox, queue: usize, id: u32, start: Box<[u8]>) {
        let Some(message) = inbox.unexpected[queue].get(id) else { return };
        let (at, more) = match &message.body {
            Body::Whole(bytes) => (bytes.as_ptr(), 0),
            _ => (start.as_ptr(), FI_MORE),
        };
        let context = RecvContext::new(self.fid);
        let address = context.address();
        let entry = self.entry(&message.about, address, at as usize, more);
        // No receive finds it any more.
        inbox.unexpected[queue].claim(id);
        let announced = Announced { queue, id, context, _start: start };
        inbox.announced.insert(address.0 as usize, announced);
        if let Some(cq) = &self.rx_cq {
            cq.write(entry);
        }
    }
}

impl State {
    /// FI_CLAIM or FI_DISCARD with the context that a message was reported with.
    pub(super) fn settle_announced(&mut self, ep_id: u32, op: RecvOp, queue: usize) -> Result {
        let ep = &self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        let key = op.context.0 as usize;
        if inbox.announced.get(&key).is_none_or(|announced| announced.queue != queue) {
            return Err(Error::INVAL);
        }
        let Some(Announced { id, context, .. }) = inbox.announced.remove(&key) else {
            return Err(Error::INVAL);
        };
        if op.flags & FI_DISCARD == 0 {
            let recv = Recv::new(op.buf, context.into_context(), op.flags);
            self.take_message(ep_id, queue, id, Some(recv));
            return Ok(());
        }
        if let Some(message) = inbox.unexpected[queue].get(id) {
            // Counted, as is what is claimed; its entry was the announcement.
            ep.rx_done(ep.entry(&message.about, op.context, 0, 0), false);
        }
        self.take_message(ep_id, queue, id, None);
        Ok(())
    }
}
