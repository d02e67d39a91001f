//! Posting receives, and what else an application does with its inbox: look,
//! claim, discard, take back.
use super::State;
use super::arrival::{Arrival, Body, Unreceived};
use super::net::Net;
use super::rx::{Incoming, Target};
use ofi_provider::abi::FI_PEEK;
use ofi_provider::api::RecvOp;
use ofi_provider::error::{Error, Result};
use ofi_provider::inbox::{Found, Meeting};
use ofi_provider::reserved::ONLY_TAG;

impl<N: Net> State<N> {
    /// fi_recv and fi_trecv, in all their forms.
    #[inline(always)]
    pub(crate) fn post(&mut self, ep_id: u32, op: RecvOp, tagged: bool) -> Result {
        match self.eps[ep_id].inbox.post_plain(op, tagged) {
            Some(op) => self.post_any(ep_id, op, tagged),
            None => Ok(()),
        }
    }

    #[inline(never)]
    fn post_any(&mut self, ep_id: u32, op: RecvOp, tagged: bool) -> Result {
        if op.flags & ONLY_TAG != 0 {
            self.post_tag(ep_id, &op);
            return Ok(());
        }
        if op.flags & FI_PEEK != 0 {
            // The message asked for may be in a socket already.
            self.turn();
        }
        let Found { seen, meeting: mut found } = self.eps[ep_id].inbox.post(op, tagged)?;
        if let Some(seen) = seen {
            self.eps[seen.owner].inbox.report_seen(&seen);
        }
        while let Some(meeting) = found {
            let (queue, fills) = (meeting.queue, meeting.fills);
            self.meet(meeting);
            found = fills.and_then(|pattern| self.eps[ep_id].inbox.fill(queue, pattern));
        }
        Ok(())
    }

    /// Gives a kept message to the receive that it met, or drops it if there is none.
    fn meet(&mut self, Meeting { queue, message, recv, owner, .. }: Meeting) {
        let Some(ep) = self.eps.get_mut(owner) else { return };
        let Some(kept) = ep.inbox.take_kept(queue, message) else { return };
        let (about, Unreceived { body, ack, number, conn, serial }) = (kept.about, kept.body);
        // A message that is whole or lost is reported before its sender may be forgotten.
        match (&body, &recv) {
            (Body::Whole(bytes), Some(recv)) => {
                recv.buf.copy_from(0, bytes);
                ep.inbox.received(recv, &about);
            }
            (Body::Lost, Some(recv)) => ep.inbox.failed(recv, &about, Error::CONNRESET),
            _ => {}
        }
        ep.forget_peer_if_unused(about.peer);
        let target = |recv| Option::map_or(recv, Target::Discard, Target::Posted);
        match body {
            Body::Whole(_) => {
                // The connection the message came on may be over.
                if ack && self.conns.get(conn).is_some_and(|conn| conn.serial == serial) {
                    self.acknowledge(conn, number);
                }
            }
            Body::Arriving(bytes) => {
                let Some(incoming) = self.conns.get_mut(conn).and_then(|c| c.incoming.as_mut())
                else {
                    return;
                };
                if let Some(recv) = &recv {
                    recv.buf.copy_from(0, &bytes[..incoming.done]);
                }
                incoming.target = target(recv);
            }
            Body::Blocking => {
                if let Some(incoming) = self.conns.get_mut(conn).and_then(|c| c.incoming.as_mut()) {
                    incoming.target = target(recv);
                    if incoming.left() == 0 && !self.complete_incoming(conn) {
                        return;
                    }
                    self.unblock(conn);
                }
            }
            Body::AtSender(waiting) => {
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.at_sender.remove(&waiting);
                    let commit = false;
                    let about = Arrival { about, ack, number, commit, ep: owner, conn, serial };
                    let incoming = Incoming { about, target: target(recv), done: 0 };
                    entry.expected.insert(waiting, incoming);
                    self.ask_for(conn, waiting);
                }
            }
            Body::Lost => {}
        }
    }

    /// Takes all posted receives back, as when a connection is over for good.
    pub(super) fn cancel_all(&mut self, ep_id: u32) {
        for meeting in self.eps[ep_id].inbox.cancel_all() {
            self.meet(meeting);
        }
    }

    /// Forgets all posted receives, and what the application claimed; nothing is
    /// reported any more.
    pub(super) fn empty_inbox(&mut self, ep_id: u32) {
        self.cancel_all(ep_id);
        for meeting in self.eps[ep_id].inbox.unclaim_all() {
            self.meet(meeting);
        }
    }

    /// From now on the endpoint takes its receives from this shared receive context.
    pub(crate) fn share_inbox(&mut self, ep_id: u32, srx: u32) {
        let queues = self.eps[srx].inbox.lend();
        self.eps[ep_id].inbox.join(queues);
    }
}
