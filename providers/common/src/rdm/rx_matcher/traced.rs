//! Reports of matches to tracers.
use super::{Envelope, MatchedMessage, Recv, RxMatcher, UnexpectedBody};
use crate::probes::{self, TracedTransfer};

impl<B: UnexpectedBody> RxMatcher<B> {
    /// Implements [`take_posted`](Self::take_posted). The caller buffers the message without a
    /// receive if `is_last`. Otherwise it requests one again, and none is in memory of a device.
    #[inline]
    pub(super) fn take_of(&mut self, envelope: &Envelope, is_last: bool) -> Option<Recv> {
        let recv = self.take_untraced(envelope, is_last)?;
        self.trace_match(envelope, &recv);
        Some(recv)
    }

    /// Reports the match of a message and a receive to a tracer, if there is one. The owner of imported
    /// receives reports their matches itself.
    #[inline]
    fn trace_match(&self, envelope: &Envelope, recv: &Recv) {
        if probes::is_enabled() && !self.is_imported() {
            self.trace_match_slow(envelope, recv);
        }
    }

    #[cold]
    fn trace_match_slow(&self, envelope: &Envelope, recv: &Recv) {
        let ids = self.completions.trace_ids();
        let (own, connected) = ids.map_or((0, 0), |ids| (ids.own(), ids.peer()));
        let peer = self.senders.trace_id_of(envelope.peer);
        let fi_addr = self.senders.id_of(envelope.peer);
        let of = envelope.completion(recv.context, 0, 0, fi_addr);
        probes::matched(&TracedTransfer {
            endpoint: own,
            peer: if peer == 0 { connected } else { peer },
            tag: of.tag,
            len: of.len,
            context: recv.context.0 as usize,
            flags: of.flags,
            fi_addr,
        });
    }

    /// Reports the match of a buffered message of this endpoint and a receive to a tracer.
    #[cold]
    pub(in super::super) fn trace_buffered_match(&self, matched: &MatchedMessage) {
        let envelope = self.queues.buffered_envelope(matched.queue, matched.message);
        if let (Some(envelope), Some(recv)) = (envelope, &matched.recv) {
            self.trace_match(&envelope, recv);
        }
    }
}
