//! Posting of receives to an engine's endpoints, in all forms of the calls: ordinary ones, peeks,
//! claims, discards and tags alone.
//!
//! The match of a buffered message and a receive is processed by the endpoint of the message,
//! possibly another one if endpoints share their receives.
use super::rx_matcher::{MatchedMessage, PostOutcome, RxMatcher, UnexpectedBody};
use crate::abi::FI_PEEK;
use crate::api::RecvOp;
use crate::error::Result;
use crate::peer_srx::SrxStart;
use crate::probes;
use crate::reserved::ONLY_TAG;

/// State guarded by an engine's lock, as far as needed for posting receives to its endpoints.
pub trait PostsReceives {
    /// Form of an unexpected message.
    type Buffered: UnexpectedBody;

    /// Returns the matching engine of an open endpoint.
    fn matcher(&mut self, ep: u32) -> &mut RxMatcher<Self::Buffered>;
    /// Returns the matching engine of an endpoint, possibly closed by now.
    fn matcher_if_open(&mut self, ep: u32) -> Option<&mut RxMatcher<Self::Buffered>>;
    /// Posts a tag, for messages to be reported with (fi_tagged(3), Buffered Tagged Receives).
    fn post_tag(&mut self, ep: u32, op: &RecvOp);
    /// Polls for messages: a requested one may be on its way.
    fn look(&mut self);
    /// Passes a buffered message to its matching receive, or drops it if there is none.
    fn match_message(&mut self, matched: MatchedMessage);
    /// Called after all matched messages have been passed to their receives, freeing space for
    /// others.
    fn after_match(&mut self) {}

    /// Processes buffered messages started by other providers.
    fn take_up(&mut self, started: Vec<SrxStart>) {
        for one in started {
            match self.matcher_if_open(one.ep).and_then(|matcher| matcher.started(&one)) {
                Some(matched) => self.match_traced(matched),
                // The endpoint is closed.
                None => one.give_back(),
            }
        }
    }

    /// Passes a buffered message to its matching receive, and reports the match to a tracer.
    fn match_traced(&mut self, matched: MatchedMessage) {
        if probes::is_enabled() {
            if let Some(matcher) = self.matcher_if_open(matched.owner) {
                matcher.trace_buffered_match(&matched);
            }
        }
        self.match_message(matched);
    }

    /// fi_recv and fi_trecv, in all their forms.
    #[inline(always)]
    fn post(&mut self, ep: u32, op: RecvOp, tagged: bool) -> Result {
        match self.matcher(ep).post_fast(op, tagged) {
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
        let PostOutcome { seen, matched } = self.matcher(ep).post(op, tagged)?;
        if let Some(seen) = seen {
            if let Some(matcher) = self.matcher_if_open(seen.owner) {
                matcher.report_seen(&seen);
            }
        }
        let mut found = matched;
        let any = found.is_some();
        while let Some(matched) = found {
            let (queue, fills) = (matched.queue, matched.fills);
            self.match_traced(matched);
            found = fills.and_then(|pattern| self.matcher(ep).fill(queue, pattern));
        }
        if any {
            self.after_match();
        }
        Ok(())
    }
}
