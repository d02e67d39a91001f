//! Ends of messages, and the resumption of blocked connections.
use super::arrival::{Arrival, StreamUnexpected, UnexpectedPayload};
use super::blocked_conns::PolledConn;
use super::device_fetch::DeviceFetcher;
use super::incoming::{MessageTarget, RxRequest};
use super::rx_path::RxPath;
use crate::transport::{ByteLink, ShmTransport};
use ofi_provider::slab::NONE;

impl<N: ShmTransport> RxPath<N> {
    /// Resumes work blocked on buffer space, on memory, or deferred to the next iteration.
    #[inline(never)]
    pub(super) fn resume_blocked(&mut self) {
        if !self.tx.io.blocked.pollable().is_empty() {
            self.resume_pollable();
        }
        if self.tx.io.blocked.is_any_on_buffer() {
            self.buffer_blocked_rx();
        }
        if !self.tx.batcher.held().is_empty() {
            self.flush_held();
        }
    }

    /// Resumes connections with space in their completion queue again, and those with copies that
    /// may have ended.
    fn resume_pollable(&mut self) {
        for polled in self.tx.io.blocked.take_pollable() {
            let id = match polled {
                PolledConn::OnCq(id) => id,
                PolledConn::OnCopies(name) => {
                    if self.tx.io.conns.named(name).is_some() {
                        DeviceFetcher::new(self).resume_copies(name.0);
                    }
                    continue;
                }
            };
            if self.tx.may_be_fed(id) {
                self.unblock(id);
            } else if self.tx.io.conns.get(id).is_some() {
                self.tx.starve(id);
            }
        }
    }

    /// Finishes the message in progress after all bytes have arrived: reports it, and acknowledges
    /// it if requested. Returns false when the connection is closed.
    pub(super) fn complete_incoming(&mut self, id: u32) -> bool {
        let conn = &mut self.tx.io.conns[id];
        let Some(mut incoming) = conn.incoming.take() else { return true };
        let ep = &mut self.tx.eps[conn.ep];
        let (mut ack, mut delivered) = (incoming.envelope.ack.is_awaited(), incoming.envelope.ack);
        match incoming.target {
            MessageTarget::Posted(recv) => ep.matcher.received(&recv, &incoming.envelope),
            MessageTarget::Discard => {}
            MessageTarget::Device(mut recv) => {
                if !recv.is_copied() {
                    incoming.target = MessageTarget::Device(recv);
                    conn.incoming = Some(incoming);
                    self.tx.io.await_copies(id);
                    return false;
                }
                ack &= self.complete_device(id, &incoming.envelope, *recv);
            }
            MessageTarget::Collected(mut bytes) => {
                let envelope = incoming.envelope;
                ep.matcher.queues.collected(envelope.len);
                bytes.truncate(envelope.len);
                if let Some(recv) = ep.take_posted(&envelope) {
                    ep.deliver(&recv, &envelope, &bytes);
                } else {
                    ack = delivered.take_delivery();
                    let envelope = Arrival { ack: delivered, ..envelope };
                    if let Err(error) =
                        ep.buffer_unexpected(&envelope, StreamUnexpected::Whole(bytes.into()))
                    {
                        self.fail(id, error);
                        return false;
                    }
                }
            }
            MessageTarget::Region(segments) => self.written(&incoming.envelope, &segments),
            MessageTarget::Atomic(request) => {
                ack = false;
                self.carry_out(id, &incoming.envelope, &request, &request.operands);
            }
            MessageTarget::Answer(_, finish) => {
                conn.answered_in = self.tx.io.poll.iterations();
                ep.finish_tx(&finish, Ok(()));
                let sent = self.tx.lift_fence(id);
                self.conclude(sent);
            }
            MessageTarget::Buffered(message) => {
                ack = delivered.take_delivery();
                let whole = ep.matcher.change(incoming.envelope.queue(), message, |buffered| {
                    let StreamUnexpected::Arriving(bytes) = &mut buffered.body else {
                        return false;
                    };
                    buffered.body = StreamUnexpected::Whole(std::mem::take(bytes));
                    buffered.ack = delivered;
                    true
                });
                if whole == Some(true) {
                    ep.is_whole(&incoming.envelope, message);
                }
            }
        }
        if ack {
            let sent = self.tx.acknowledge(id, incoming.envelope.number);
            self.conclude(sent);
        }
        self.tx.io.conns.get(id).is_some()
    }

    /// Resumes a blocked connection: parses its stash, then permits reading again.
    pub(super) fn unblock(&mut self, id: u32) {
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return };
        conn.blocked = false;
        let stash = std::mem::take(&mut conn.stash);
        self.tx.io.mark_active(id);
        if !stash.is_empty() {
            self.tx.io.poll.record_progress();
            self.parse(id, &stash);
        }
        if self.tx.io.conns.get(id).is_some() {
            self.tx.io.watch(id);
        }
    }

    /// Resumes connections blocked by a message without buffer space, if there is space now. The
    /// next messages on them may match posted receives.
    pub(super) fn buffer_blocked_rx(&mut self) {
        for (id, serial) in self.tx.io.blocked.take_on_buffer() {
            let Some(conn) = self.tx.io.conns.named((id, serial)) else {
                continue;
            };
            // If a receive took the message meanwhile, nothing is left to do.
            let Some(RxRequest { envelope, target: MessageTarget::Buffered(number), .. }) =
                &conn.incoming
            else {
                continue;
            };
            let (envelope, number, queue) = (*envelope, *number, envelope.queue());
            let matcher = &mut self.tx.eps[conn.ep].matcher;
            let blocks =
                |buffered: &UnexpectedPayload| matches!(buffered.body, StreamUnexpected::Blocking);
            if matcher.queues.buffered_as(queue, number, blocks) != Some(true) {
                continue;
            }
            // Another message by now, reported by its start: the application says where it goes.
            if matcher
                .buffering
                .state()
                .is_some_and(|buffering| buffering.has_notified(queue, number))
            {
                continue;
            }
            let max = N::Link::settings().max_saved.unwrap_or(usize::MAX);
            // The blocking message is counted itself, hence more than `max`.
            let over = envelope.peer != NONE && matcher.senders.buffered_count(envelope.peer) > max;
            if over || !matcher.may_buffer(&envelope, N::Link::settings().max_unexpected) {
                self.tx.io.blocked.block_on_buffer((id, serial));
                continue;
            }
            match StreamUnexpected::arriving(envelope.len, &[]) {
                Ok(body) => matcher.change(queue, number, |buffered| buffered.body = body),
                Err(error) => {
                    self.fail(id, error);
                    continue;
                }
            };
            if envelope.len > 0 || self.complete_incoming(id) {
                self.unblock(id);
            }
        }
    }
}
