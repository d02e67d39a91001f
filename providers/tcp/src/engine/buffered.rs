//! Endpoints with buffered receives, for programs of 1.x (fi_msg(3) there):
//! messages are reported as they come, or as they meet a tag, and then claimed or
//! discarded.
//!
//! A message up to the endpoint's limit is kept and reported when all of it is
//! here. Of a longer one only the start is, and the rest waits in its connection
//! until the application says where it is to go; if it waits for a tag it is kept
//! as any message that came before its receive.
use super::State;
use super::ep::Ep;
use super::inbox::{About, Body, Inbox, MAX_UNEXPECTED};
use super::net::Net;
use super::post::TAGGED;
use super::rx::{Begun, Incoming, Target};
use core::ffi::c_int;
use ofi_provider::abi::{FI_DISCARD, FI_MORE};
use ofi_provider::api::RecvOp;
use ofi_provider::buf::RecvBuf;
use ofi_provider::buffered::Buffering;
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::matching::Pattern;
use ofi_provider::multi_recv::Recv;

/// Largest value of FI_OPT_BUFFERED_LIMIT, in bytes.
const MAX_LIMIT: usize = MAX_UNEXPECTED / 4;

/// Largest value of FI_OPT_BUFFERED_MIN, in bytes of a message's start: what surely fits behind
/// a header in the staging buffer.
pub(super) const MAX_START: usize = 1024;

/// The state of an endpoint with buffered receives whose application has set no option.
pub(super) fn buffering() -> Box<Buffering> {
    Box::new(Buffering::new(Buffering::DEFAULT_LIMIT, [MAX_LIMIT, MAX_START]))
}

impl Ep {
    /// Reads FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes; -FI_ENOPROTOOPT without
    /// buffered receives.
    pub(crate) fn buffering(&self, name: c_int) -> Result<usize> {
        self.buffering.as_ref().ok_or(Error::NOPROTOOPT)?.option(name)
    }

    /// Sets FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes; -FI_ENOPROTOOPT without
    /// buffered receives.
    pub(crate) fn set_buffering(&mut self, name: c_int, value: usize) -> Result {
        self.buffering.as_mut().ok_or(Error::NOPROTOOPT)?.set_option(name, value)
    }

    /// Reports a kept message to be claimed or discarded: all of it, or this start. `posted` is
    /// the context of the tag it met, if it waited for one.
    fn announce(
        &mut self,
        inbox: &mut Inbox,
        queue: usize,
        id: u32,
        start: Option<Box<[u8]>>,
        posted: Option<Context>,
    ) {
        let Some(message) = inbox.unexpected[queue].get(id) else { return };
        let about = message.about;
        let (at, more) = match (&start, &message.body) {
            (Some(start), _) => (start.as_ptr(), FI_MORE),
            (None, Body::Whole(bytes)) => (bytes.as_ptr(), 0),
            _ => return,
        };
        let Some(buffering) = &mut self.buffering else { return };
        let context = buffering.tell((queue, id), self.fid, posted, start);
        // From now on no receive or peek finds the message.
        inbox.unexpected[queue].claim(id);
        let entry = self.entry(&about, context, at as usize, more);
        self.ledger.rx.announced(entry, posted.is_some());
    }

    /// All of a kept message is here: reports it, unless the endpoint waits for a tag that
    /// matches it.
    pub(super) fn is_whole(&mut self, inbox: &mut Inbox, queue: usize, id: u32) {
        let Some(buffering) = &mut self.buffering else { return };
        match buffering.take_owed(queue, id) {
            None if buffering.waits(queue == TAGGED) => {}
            posted => self.announce(inbox, queue, id, None, posted),
        }
    }

    /// A kept message that had met a tag will never be complete: fails the tag's operation.
    pub(super) fn fail_owed(
        &mut self,
        inbox: &mut Inbox,
        queue: usize,
        id: u32,
        about: &About,
        error: Error,
    ) {
        if let Some(posted) = self.buffering.as_mut().and_then(|b| b.take_owed(queue, id)) {
            let recv = Recv::new(RecvBuf::none(), posted, 0);
            self.receive_failed(inbox, &recv, about, error);
        }
    }
}

impl<N: Net> State<N> {
    /// Begins a message on an endpoint with buffered receives; `met` is the posted tag that
    /// matches it.
    #[cold]
    pub(super) fn begin_buffered(
        &mut self,
        id: u32,
        about: About,
        behind: &[u8],
        met: Option<Recv>,
    ) -> Result<Begun> {
        let posted = met.map(|recv| recv.context);
        let begun = self.keep_buffered(id, about, behind, posted);
        if let (Err(error), Some(posted)) = (&begun, posted) {
            // Without memory for the message the connection ends, and the tag's operation fails.
            let ep = &self.eps[about.ep];
            let recv = Recv::new(RecvBuf::none(), posted, 0);
            ep.receive_failed(&mut self.inboxes[ep.inbox], &recv, &about, *error);
        }
        begun
    }

    fn keep_buffered(
        &mut self,
        id: u32,
        about: About,
        behind: &[u8],
        posted: Option<Context>,
    ) -> Result<Begun> {
        let conn = &mut self.conns[id];
        let ep = &mut self.eps[conn.ep];
        let inbox = &mut self.inboxes[ep.inbox];
        let Some(buffering) = &mut ep.buffering else { return Ok(Begun::Gone) };
        let queue = about.queue();
        let waits = posted.is_none() && buffering.waits(about.tagged);
        if buffering.is_long(about.len) && !waits {
            let start = behind[..buffering.wanted(about.len).min(behind.len())].into();
            let message = ep.keep(inbox, about, Body::Blocking)?;
            ep.announce(inbox, queue, message, Some(start), posted);
            conn.incoming = Some(Incoming { about, target: Target::Kept(message), done: 0 });
            return Ok(Begun::Blocked);
        }
        let (message, begun) = self.begin_kept(id, about, behind)?;
        let ep = &mut self.eps[about.ep];
        let inbox = &mut self.inboxes[ep.inbox];
        if let (Some(posted), Some(buffering)) = (posted, &mut ep.buffering) {
            // No other tag may match the message.
            inbox.unexpected[queue].claim(message);
            buffering.owe(queue, message, posted);
        }
        if matches!(begun, Begun::Taken(here) if here == about.len) {
            ep.is_whole(inbox, queue, message);
        }
        Ok(begun)
    }

    /// Posts a tag whose messages are to be reported (fi_tagged(3), Buffered Tagged Receives).
    pub(super) fn post_tag(&mut self, ep_id: u32, op: &RecvOp, pattern: Pattern) {
        let ep = &mut self.eps[ep_id];
        if let Some(buffering) = &mut ep.buffering {
            buffering.post_tags();
        }
        let ended = ep.ended;
        let inbox = &mut self.inboxes[ep.inbox];
        let Some(id) = inbox.unexpected[TAGGED].find(pattern) else {
            let recv = Recv::new(RecvBuf::none(), op.context, op.flags);
            match ended {
                true => self.cancelled(ep_id, TAGGED, &recv),
                false => inbox.posted[TAGGED].push(pattern, recv),
            }
            return;
        };
        let ep = &mut self.eps[ep_id];
        let (Some(message), Some(buffering)) =
            (inbox.unexpected[TAGGED].get(id), &mut ep.buffering)
        else {
            return;
        };
        let about = &message.about;
        // The bytes that are here: at least the start, which came with the header.
        let here = match &message.body {
            Body::Whole(bytes) | Body::Arriving(bytes) => &bytes[..],
            Body::Blocking => {
                let conn = self.conns.get(about.conn).filter(|conn| conn.serial == about.serial);
                conn.map_or(&[][..], |conn| &conn.stash)
            }
            Body::AtSender(_) | Body::Lost => &[],
        };
        let long = buffering.is_long(about.len);
        let start = long.then(|| here[..buffering.wanted(about.len).min(here.len())].into());
        if long || matches!(message.body, Body::Whole(_)) {
            ep.announce(inbox, TAGGED, id, start, Some(op.context));
        } else {
            inbox.unexpected[TAGGED].claim(id);
            buffering.owe(TAGGED, id, op.context);
        }
    }

    /// FI_CLAIM or FI_DISCARD with the context that a message was reported with:
    /// whether there is such a message.
    pub(super) fn settle_announced(&mut self, ep_id: u32, op: &RecvOp, queue: usize) -> bool {
        let ep = &mut self.eps[ep_id];
        let Some(buffering) = &mut ep.buffering else { return false };
        let Some((id, context)) = buffering.take(op.context, queue) else { return false };
        if op.flags & FI_DISCARD == 0 {
            let recv = Recv::new(op.buf.clone(), context, op.flags);
            self.take_message(ep_id, queue, id, Some(recv));
            return true;
        }
        let inbox = &self.inboxes[ep.inbox];
        if let Some(message) = inbox.unexpected[queue].get(id) {
            // A discarded message is counted like a claimed one; the announcement was its
            // completion entry.
            ep.ledger.rx.done(ep.entry(&message.about, op.context, 0, 0), false);
        }
        self.take_message(ep_id, queue, id, None);
        true
    }
}
