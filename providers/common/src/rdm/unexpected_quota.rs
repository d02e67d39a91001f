//! Quota of unexpected messages: bytes of memory that peers may occupy with messages without a receive.
//!
//! A named peer may always occupy [`SURE`] bytes, and beyond that a multiple of the free bytes, so one
//! peer gets most of the space and several get equal shares. Unknown peers share a fraction of the
//! space, of which one peer gets a smaller fraction and half of the bytes left free by all of them.
use std::collections::VecDeque;

/// Fair-share factor: a peer's buffered messages may take up to this multiple of the free bytes.
const FAIR_SHARE: usize = 4;

/// Bytes of buffered messages guaranteed to every named peer.
pub(super) const SURE: usize = 32 << 10;

/// Fraction of the space for all unknown peers together, and for one of them.
const ALL_UNKNOWN_PEERS: usize = 4;
pub(super) const ONE_UNKNOWN_PEER: usize = 256;

/// Maximum number of disconnected unknown peers with buffered messages.
pub(super) const MAX_LEFT: usize = 4096;

/// Bytes of a message and of its sender's messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageCost {
    /// Bytes of memory of the message, and the part of it in addition to the message itself.
    pub(super) cost: usize,
    pub(super) overhead: usize,
    /// Bytes of memory of all buffered messages of its sender, including the message.
    pub(super) sum: usize,
    /// The sender is an unknown peer.
    pub(super) of_unknown_peer: bool,
}

/// Account of the memory of unexpected messages, possibly of several endpoints with shared queues.
#[derive(Debug, Default)]
pub(super) struct UnexpectedQuota {
    /// Bytes of buffered and collected messages. Invariant: `of_unknown_peers <= bytes`.
    bytes: usize,
    /// Bytes of buffered messages of unknown peers.
    of_unknown_peers: usize,
    /// Disconnected unknown peers with buffered messages, oldest first, each as the endpoint's
    /// number and the peer's number there.
    left: VecDeque<(u32, u32)>,
}

impl UnexpectedQuota {
    /// Returns the bytes of all messages.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of messages of unknown peers.
    pub(super) fn of_unknown_peers(&self) -> usize {
        self.of_unknown_peers
    }

    /// Returns true if `cost` more bytes of any sender fit, with a capacity of `most` bytes.
    #[inline]
    pub(super) fn has_space(&self, cost: usize, most: usize) -> bool {
        most.saturating_sub(self.bytes) >= cost
    }

    /// Returns true if a message may be buffered, with a capacity of `most` bytes.
    pub(super) fn admits(&self, message: MessageCost, most: usize) -> bool {
        let MessageCost { cost, sum, of_unknown_peer, .. } = message;
        let free = most.saturating_sub(self.bytes);
        match of_unknown_peer {
            false if sum <= SURE => true,
            _ if cost > free => false,
            false => sum <= free.saturating_mul(FAIR_SHARE),
            true => fits_unknown_peer(message, self.of_unknown_peers, most),
        }
    }

    /// Returns true if a message of an unknown peer would be admitted without the messages of all
    /// other unknown peers.
    pub(super) fn is_excluded_by_unknown_peers(&self, message: MessageCost, most: usize) -> bool {
        message.of_unknown_peer
            && fits_unknown_peer(message, 0, most)
            && self.has_space(message.cost, most)
    }

    /// Returns true if an unknown peer with `sum` bytes of messages exceeds its share of `most` bytes for
    /// all unknown peers.
    pub(super) fn exceeds_share(&self, sum: usize, most: usize) -> bool {
        sum > most.saturating_sub(self.of_unknown_peers) / 2
    }

    /// Accounts for a change of a peer's messages from `before` to `after` bytes.
    #[inline]
    pub(super) fn change(&mut self, before: usize, after: usize, of_unknown_peer: bool) {
        self.bytes = self.bytes + after - before;
        if of_unknown_peer {
            self.of_unknown_peers = self.of_unknown_peers + after - before;
        }
    }

    /// Accounts for a peer with `bytes` of messages that became known, or unknown.
    pub(super) fn reclassify(&mut self, bytes: usize, is_unknown: bool) {
        if is_unknown {
            self.of_unknown_peers += bytes;
        } else {
            self.of_unknown_peers -= bytes;
        }
    }

    /// Records the disconnection of an unknown peer with buffered messages. Returns true if there
    /// are more than [`MAX_LEFT`] of them.
    pub(super) fn record_left(&mut self, owner: u32, peer: u32) -> bool {
        self.left.push_back((owner, peer));
        self.left.len() > MAX_LEFT
    }

    /// Removes the unknown peer that disconnected first.
    pub(super) fn take_oldest_left(&mut self) -> Option<(u32, u32)> {
        self.left.pop_front()
    }
}

/// Returns true if an unknown peer's message may be buffered, in addition to `of_unknown_peers` bytes of all
/// unknown peers, with a capacity of `most` bytes. A message without data always fits an empty share.
fn fits_unknown_peer(message: MessageCost, of_unknown_peers: usize, most: usize) -> bool {
    let free = (most / ALL_UNKNOWN_PEERS).saturating_sub(of_unknown_peers);
    let share = free.min(most / ONE_UNKNOWN_PEER).max(message.overhead);
    message.cost <= free && message.sum <= share
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64 << 20;

    fn of_peer(cost: usize, sum: usize) -> MessageCost {
        MessageCost { cost, overhead: 100, sum, of_unknown_peer: false }
    }

    fn of_unknown(cost: usize, sum: usize) -> MessageCost {
        MessageCost { cost, overhead: 100, sum, of_unknown_peer: true }
    }

    #[test]
    fn named_peers_have_a_guaranteed_share_and_a_multiple_of_the_free_space() {
        let mut quota = UnexpectedQuota::default();
        quota.change(0, MOST - 1000, false);
        assert!(quota.admits(of_peer(SURE, SURE), MOST), "guaranteed, beyond the capacity");
        assert!(!quota.admits(of_peer(1001, SURE + 1), MOST), "more than is free");
        assert!(!quota.admits(of_peer(500, SURE + 1), MOST), "more than four times the free space");
        quota.change(MOST - 1000, MOST / 2, false);
        assert!(quota.admits(of_peer(500, MOST), MOST));
    }

    #[test]
    fn unknown_peers_have_a_fraction_of_the_space() {
        let mut quota = UnexpectedQuota::default();
        let one = MOST / ONE_UNKNOWN_PEER;
        assert!(quota.admits(of_unknown(100, one), MOST));
        assert!(!quota.admits(of_unknown(100, one + 1), MOST));
        quota.change(0, MOST / ALL_UNKNOWN_PEERS, true);
        assert!(!quota.admits(of_unknown(100, 100), MOST));
        assert!(quota.is_excluded_by_unknown_peers(of_unknown(100, 100), MOST));
        assert!(!quota.is_excluded_by_unknown_peers(of_peer(100, 100), MOST));
        assert!(quota.exceeds_share(100, MOST / ALL_UNKNOWN_PEERS));
        quota.reclassify(MOST / ALL_UNKNOWN_PEERS, false);
        assert_eq!((quota.of_unknown_peers(), quota.bytes()), (0, MOST / ALL_UNKNOWN_PEERS));
        assert!(quota.admits(of_unknown(100, 100), MOST));
    }

    #[test]
    fn disconnected_unknown_peers_are_removed_oldest_first() {
        let mut quota = UnexpectedQuota::default();
        for peer in 0..MAX_LEFT as u32 {
            assert!(!quota.record_left(1, peer));
        }
        assert!(quota.record_left(2, 0));
        assert_eq!(quota.take_oldest_left(), Some((1, 0)));
    }
}
