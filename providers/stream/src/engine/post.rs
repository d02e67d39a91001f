//! Posting of receives, and the other operations of an application on its matching engine: peek,
//! claim, discard, cancel.
use super::arrival::{Arrival, StreamUnexpected, UnexpectedPayload};
use super::incoming::{MessageTarget, RxRequest};
use super::rx_path::RxPath;
use super::state::StreamState;
use crate::transport::ShmTransport;
use ofi_provider::api::RecvOp;
use ofi_provider::peer_srx::{SrxOwner, SrxStartHandler, SrxStartQueue};
use ofi_provider::receives::PostsReceives;
use ofi_provider::rx_matcher::{MatchedMessage, RxMatcher};
use std::sync::Weak;

impl<N: ShmTransport> PostsReceives for StreamState<N> {
    type Buffered = UnexpectedPayload;

    #[inline(always)]
    fn matcher(&mut self, ep: u32) -> &mut RxMatcher<UnexpectedPayload> {
        &mut self.rx.tx.eps[ep].matcher
    }

    #[inline(always)]
    fn matcher_if_open(&mut self, ep: u32) -> Option<&mut RxMatcher<UnexpectedPayload>> {
        self.rx.tx.eps.get_mut(ep).map(|ep| &mut ep.matcher)
    }

    fn post_tag(&mut self, ep: u32, op: &RecvOp) {
        self.rx.post_tag(ep, op);
    }

    fn look(&mut self) {
        // Reads what is in a link already.
        self.poll_once();
    }

    fn match_message(&mut self, matched: MatchedMessage) {
        self.rx.match_message(matched);
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Delivers a buffered message to its matching receive, or drops it if there is none.
    pub(super) fn match_message(
        &mut self,
        MatchedMessage { queue, message, recv, owner, .. }: MatchedMessage,
    ) {
        let Some(ep) = self.tx.eps.get_mut(owner) else { return };
        let Some(buffered) = ep.matcher.take_buffered(queue, message) else { return };
        let (envelope, UnexpectedPayload { body, ack, number, conn, serial }) =
            (buffered.envelope, buffered.body);
        // A message that is whole or lost is reported before its sender may be forgotten.
        match (&body, &recv) {
            (StreamUnexpected::Whole(bytes), Some(recv)) => {
                ep.deliver(recv, &envelope, bytes);
            }
            (StreamUnexpected::Lost(error), Some(recv)) => {
                ep.matcher.failed(recv, &envelope, *error)
            }
            _ => {}
        }
        ep.forget_peer_if_unused(envelope.peer);
        let mut target = match recv {
            Some(recv)
                if !matches!(body, StreamUnexpected::Whole(_) | StreamUnexpected::Lost(_)) =>
            {
                ep.target_of(recv)
            }
            _ => MessageTarget::Discard,
        };
        match body {
            StreamUnexpected::Whole(_) => {
                // The connection the message came on may be over.
                if ack.is_awaited()
                    && self.tx.io.conns.get(conn).is_some_and(|conn| conn.serial == serial)
                {
                    let sent = self.tx.acknowledge(conn, number);
                    self.conclude(sent);
                }
            }
            StreamUnexpected::Arriving(bytes) => {
                let Some(incoming) =
                    self.tx.io.conns.get_mut(conn).and_then(|c| c.incoming.as_mut())
                else {
                    return;
                };
                let here = &bytes[..incoming.done];
                match &mut target {
                    MessageTarget::Posted(recv) => _ = recv.buf.copy_from(0, here),
                    MessageTarget::Device(recv) => recv.feed_all(here),
                    _ => {}
                }
                incoming.target = target;
            }
            StreamUnexpected::Blocking => {
                if let Some(incoming) =
                    self.tx.io.conns.get_mut(conn).and_then(|c| c.incoming.as_mut())
                {
                    incoming.target = target;
                    if incoming.left() == 0 && !self.complete_incoming(conn) {
                        return;
                    }
                    self.unblock(conn);
                }
            }
            StreamUnexpected::AtSender(waiting) => {
                if let Some(entry) = self.tx.io.conns.get_mut(conn) {
                    entry.at_sender.remove(&waiting);
                    let commit = false;
                    let envelope =
                        Arrival { envelope, ack, number, commit, ep: owner, conn, serial };
                    let incoming = RxRequest { envelope, target, done: 0 };
                    entry.expected.insert(waiting, incoming);
                    let sent = self.tx.send_cts(conn, waiting);
                    self.conclude(sent);
                }
            }
            StreamUnexpected::Lost(_) => {}
        }
    }

    /// Has an endpoint take its receives from another provider's queue.
    pub(super) fn import(&mut self, ep: u32, owner: SrxOwner, engine: Weak<dyn SrxStartHandler>) {
        let started = self.started.get_or_insert_with(|| SrxStartQueue::new(engine));
        let devices = Some(&self.tx.regions).filter(|regions| regions.interfaces().is_some());
        self.tx.eps[ep].matcher.import(owner, started, devices.cloned());
    }
}

impl<N: ShmTransport> StreamState<N> {
    /// Continues the buffered messages started by other providers; returns true if there were any.
    #[inline(never)]
    pub(super) fn take_started(&mut self) -> bool {
        let started = self.rx.started.as_ref().and_then(|started| started.take());
        started.map(|started| self.take_up(started)).is_some()
    }

    /// From now on the endpoint takes its receives from this shared receive context.
    pub(crate) fn share_matcher(&mut self, ep_id: u32, srx: u32) {
        let queues = self.rx.tx.eps[srx].matcher.queues.expose();
        self.rx.tx.eps[ep_id].matcher.queues.join(queues);
    }
}
