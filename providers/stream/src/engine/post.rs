//! Posting of receives, and the other operations of an application on its matching engine: peek,
//! claim, discard, cancel.
use super::arrival::{Arrival, StreamUnexpected, Unreceived};
use super::incoming::{Incoming, MessageTarget};
use super::state::StreamState;
use crate::net::Net;
use ofi_provider::api::RecvOp;
use ofi_provider::error::Error;
use ofi_provider::imports::{SrxOwner, StartedMessages, StartsMessages};
use ofi_provider::inbox::{Inbox, Meeting};
use ofi_provider::receives::PostsReceives;
use std::sync::Weak;

impl<N: Net> PostsReceives for StreamState<N> {
    type Kept = Unreceived;

    #[inline(always)]
    fn inbox(&mut self, ep: u32) -> &mut Inbox<Unreceived> {
        &mut self.eps[ep].inbox
    }

    #[inline(always)]
    fn inbox_if_open(&mut self, ep: u32) -> Option<&mut Inbox<Unreceived>> {
        self.eps.get_mut(ep).map(|ep| &mut ep.inbox)
    }

    fn post_tag(&mut self, ep: u32, op: &RecvOp) {
        StreamState::post_tag(self, ep, op);
    }

    fn look(&mut self) {
        // Reads what is in a link already.
        self.turn();
    }

    fn meet(&mut self, meeting: Meeting) {
        StreamState::meet(self, meeting);
    }
}

impl<N: Net> StreamState<N> {
    /// Delivers a buffered message to its matching receive, or drops it if there is none.
    fn meet(&mut self, Meeting { queue, message, recv, owner, .. }: Meeting) {
        let Some(ep) = self.eps.get_mut(owner) else { return };
        let Some(kept) = ep.inbox.take_kept(queue, message) else { return };
        let (about, Unreceived { body, ack, number, conn, serial }) = (kept.about, kept.body);
        // A message that is whole or lost is reported before its sender may be forgotten.
        match (&body, &recv) {
            (StreamUnexpected::Whole(bytes), Some(recv)) => {
                recv.buf.copy_from(0, bytes);
                ep.inbox.received(recv, &about);
            }
            (StreamUnexpected::Lost, Some(recv)) => ep.inbox.failed(recv, &about, Error::CONNRESET),
            _ => {}
        }
        ep.forget_peer_if_unused(about.peer);
        let target = |recv| Option::map_or(recv, MessageTarget::Discard, MessageTarget::Posted);
        match body {
            StreamUnexpected::Whole(_) => {
                // The connection the message came on may be over.
                if ack.is_awaited()
                    && self.conns.get(conn).is_some_and(|conn| conn.serial == serial)
                {
                    self.acknowledge(conn, number);
                }
            }
            StreamUnexpected::Arriving(bytes) => {
                let Some(incoming) = self.conns.get_mut(conn).and_then(|c| c.incoming.as_mut())
                else {
                    return;
                };
                if let Some(recv) = &recv {
                    recv.buf.copy_from(0, &bytes[..incoming.done]);
                }
                incoming.target = target(recv);
            }
            StreamUnexpected::Blocking => {
                if let Some(incoming) = self.conns.get_mut(conn).and_then(|c| c.incoming.as_mut()) {
                    incoming.target = target(recv);
                    if incoming.left() == 0 && !self.complete_incoming(conn) {
                        return;
                    }
                    self.unblock(conn);
                }
            }
            StreamUnexpected::AtSender(waiting) => {
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.at_sender.remove(&waiting);
                    let commit = false;
                    let about = Arrival { about, ack, number, commit, ep: owner, conn, serial };
                    let incoming = Incoming { about, target: target(recv), done: 0 };
                    entry.expected.insert(waiting, incoming);
                    self.ask_for(conn, waiting);
                }
            }
            StreamUnexpected::Lost => {}
        }
    }

    /// Has an endpoint take its receives from another provider's queue.
    pub(super) fn import(&mut self, ep: u32, owner: SrxOwner, engine: Weak<dyn StartsMessages>) {
        let started = self.started.get_or_insert_with(|| StartedMessages::new(engine));
        self.eps[ep].inbox.import(owner, started);
    }

    /// Continues the buffered messages started by other providers; returns true if there were any.
    pub(super) fn take_started(&mut self) -> bool {
        let started = self.started.as_ref().and_then(|started| started.take());
        started.map(|started| self.take_up(started)).is_some()
    }

    /// Takes all posted receives back, as when a connection is over for good.
    pub(super) fn cancel_all(&mut self, ep_id: u32) {
        let taken = self.eps[ep_id].inbox.cancel_all();
        taken.into_iter().for_each(|meeting| self.meet(meeting));
    }

    /// Drops all posted receives and claimed messages without further reports.
    pub(super) fn empty_inbox(&mut self, ep_id: u32) {
        self.cancel_all(ep_id);
        let unclaimed = self.eps[ep_id].inbox.unclaim_all();
        unclaimed.into_iter().for_each(|meeting| self.meet(meeting));
    }

    /// From now on the endpoint takes its receives from this shared receive context.
    pub(crate) fn share_inbox(&mut self, ep_id: u32, srx: u32) {
        let queues = self.eps[srx].inbox.lend();
        self.eps[ep_id].inbox.join(queues);
    }
}
