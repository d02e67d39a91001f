//! Posting of receives to an engine's endpoints, in all forms of the calls: ordinary ones, peeks,
//! claims, discards and tags alone.
//!
//! The match of a buffered message and a receive is processed by the endpoint of the message,
//! possibly another one if endpoints share their receives.
use super::inbox::{Found, Inbox, Meeting, UnexpectedBody};
use crate::abi::FI_PEEK;
use crate::api::RecvOp;
use crate::error::Result;
use crate::imports::StartedMessage;
use crate::reserved::ONLY_TAG;

/// State guarded by an engine's lock, as far as needed for posting receives to its endpoints.
pub trait PostsReceives {
    /// Form of an unexpected message.
    type Kept: UnexpectedBody;

    /// Returns the matching engine of an open endpoint.
    fn inbox(&mut self, ep: u32) -> &mut Inbox<Self::Kept>;
    /// Returns the matching engine of an endpoint, possibly closed by now.
    fn inbox_if_open(&mut self, ep: u32) -> Option<&mut Inbox<Self::Kept>>;
    /// Posts a tag, for messages to be reported with (fi_tagged(3), Buffered Tagged Receives).
    fn post_tag(&mut self, ep: u32, op: &RecvOp);
    /// Looks for messages: the one asked for may be on its way.
    fn look(&mut self);
    /// Passes a buffered message to its matching receive, or drops it if there is none.
    fn meet(&mut self, meeting: Meeting);
    /// Called after all matched messages have been passed to their receives, freeing space for
    /// others.
    fn met(&mut self) {}

    /// Processes buffered messages started by other providers.
    fn take_up(&mut self, started: Vec<StartedMessage>) {
        for one in started {
            match self.inbox_if_open(one.ep).and_then(|inbox| inbox.started(&one)) {
                Some(meeting) => self.meet(meeting),
                // The endpoint is closed.
                None => one.give_back(),
            }
        }
    }

    /// fi_recv and fi_trecv, in all their forms.
    #[inline(always)]
    fn post(&mut self, ep: u32, op: RecvOp, tagged: bool) -> Result {
        match self.inbox(ep).post_plain(op, tagged) {
            Some(op) => self.post_any(ep, op, tagged),
            None => Ok(()),
        }
    }

    /// Posts a receive with a waiting message, or a special one.
    #[inline(never)]
    fn post_any(&mut self, ep: u32, op: RecvOp, tagged: bool) -> Result {
        if op.flags & ONLY_TAG != 0 {
            self.post_tag(ep, &op);
            return Ok(());
        }
        if op.flags & FI_PEEK != 0 {
            self.look();
        }
        let Found { seen, meeting } = self.inbox(ep).post(op, tagged)?;
        if let Some(seen) = seen
            && let Some(inbox) = self.inbox_if_open(seen.owner)
        {
            inbox.report_seen(&seen);
        }
        let mut found = meeting;
        let any = found.is_some();
        while let Some(meeting) = found {
            let (queue, fills) = (meeting.queue, meeting.fills);
            self.meet(meeting);
            found = fills.and_then(|pattern| self.inbox(ep).fill(queue, pattern));
        }
        if any {
            self.met();
        }
        Ok(())
    }
}
