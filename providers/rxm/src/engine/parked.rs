//! Packets received while the completion queue was full.
use super::pending::{MAX_UNEXPECTED, Parked, RxmPacket, RxmUnexpected};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA};
use ofi_provider::core_provider::Done;
use ofi_provider::rx_matcher::RxMatcher;
use std::collections::VecDeque;

/// Packets received while the completion queue was full, and the limit of entries beyond which
/// nothing more is taken from the core: peers' writes have no other bound.
pub(super) struct ParkedPackets {
    parked: VecDeque<Parked>,
    max: usize,
}

impl ParkedPackets {
    pub(super) fn new() -> Self {
        Self { parked: VecDeque::new(), max: usize::MAX }
    }

    /// Sets the limit of entries.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Returns true if fewer entries are stored than permitted.
    #[inline(always)]
    pub(super) fn has_space(&self) -> bool {
        self.parked.len() < self.max
    }

    /// Returns true if packets of this source are stored.
    pub(super) fn has_from(&self, source: u64) -> bool {
        let is_of_it =
            |parked: &Parked| matches!(parked, Parked::Packet(one) if one.source == source);
        self.parked.iter().any(is_of_it)
    }

    /// Stores a packet.
    pub(super) fn push(&mut self, packet: RxmPacket) {
        self.parked.push_back(Parked::Packet(packet));
    }

    /// Returns true if another packet has to be stored: behind others, or because there is no space
    /// to report a message, or to buffer it.
    #[inline(always)]
    pub(super) fn must_wait(&self, matcher: &RxMatcher<RxmUnexpected>) -> bool {
        !self.parked.is_empty() || !may_take(matcher)
    }

    /// Takes the oldest entry, if there is space for it now.
    pub(super) fn pop(&mut self, matcher: &RxMatcher<RxmUnexpected>) -> Option<Parked> {
        if may_take(matcher) { self.parked.pop_front() } else { None }
    }

    /// Drops all entries.
    pub(super) fn clear(&mut self) {
        self.parked.clear();
    }

    /// Reports a peer's write to local memory with data for the completion queue.
    pub(super) fn peer_wrote(&mut self, matcher: &RxMatcher<RxmUnexpected>, done: &Done) {
        if done.flags & FI_REMOTE_CQ_DATA == 0 {
            return;
        }
        if self.parked.is_empty() && matcher.completions.has_space() {
            Self::report_written(matcher, done.data, done.len);
        } else {
            self.parked.push_back(Parked::Written(done.data, done.len));
        }
    }

    /// Reports a write.
    pub(super) fn report_written(matcher: &RxMatcher<RxmUnexpected>, data: u64, len: usize) {
        let flags = FI_RMA | FI_REMOTE_WRITE;
        matcher.completions.peer_notified(flags, len, data, FI_ADDR_NOTAVAIL);
    }
}

/// Returns true if there is space to report a message, and to buffer it.
#[inline]
fn may_take(matcher: &RxMatcher<RxmUnexpected>) -> bool {
    matcher.completions.has_space() && matcher.queues.buffered_bytes() <= MAX_UNEXPECTED
}
