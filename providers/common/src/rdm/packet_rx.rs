//! Delivery of messages to the packet sink of a utility provider.
use super::rx_matcher::{RxMatcher, UnexpectedBody};
use crate::buf::MessageBytes;
use crate::packet_sink::PacketSink;

impl<B: UnexpectedBody> RxMatcher<B> {
    /// Passes a completely arrived message without a tag to a packet sink, if no message of the peer
    /// waits for a receive or in the sink's queue. Returns false otherwise, without any effect.
    #[inline(always)]
    pub fn receive_packet(
        &mut self,
        sink: &PacketSink<'_>,
        peer: u32,
        bytes: impl MessageBytes,
    ) -> bool {
        let known = self.senders.get(peer);
        known.buffered == 0
            && !self.senders.has_source_err()
            && self.completions.are_taken_by(sink)
            && sink.deliver(known.id, bytes)
    }
}
