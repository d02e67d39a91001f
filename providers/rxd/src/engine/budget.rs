//! Limits on memory held for peers' requests: responses to them, refusals, and match notices. All
//! of it stays until the peer acknowledges it. So it is bounded, for each peer and in sum, with
//! lower bounds for unknown peers.
use std::ops::{AddAssign, SubAssign};
use std::time::Duration;

/// Silence after which an unknown peer may be replaced by another one.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// Resources held for one peer, or for several.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// Unacknowledged responses and refusals.
    pub(super) answers: usize,
    /// Messages with a match notice to be sent to their sender, and unacknowledged match notices.
    pub(super) notices: usize,
    /// Bytes of copied responses.
    pub(super) bytes: usize,
}

impl Held {
    /// An answer with so many bytes of its own.
    pub(super) fn answer(bytes: usize) -> Self {
        Self { answers: 1, notices: 0, bytes }
    }

    /// A notice.
    pub(super) const NOTICE: Self = Self { answers: 0, notices: 1, bytes: 0 };
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Self) {
        self.answers += other.answers;
        self.notices += other.notices;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Held {
    fn sub_assign(&mut self, other: Self) {
        self.answers -= other.answers;
        self.notices -= other.notices;
        self.bytes -= other.bytes;
    }
}

/// Limits for one kind of peers.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// For all of them.
    sum: Held,
    /// Guaranteed minimum for each peer, independent of the others: with fewer responses two peers
    /// with many requests to each other would block each other.
    sure: usize,
    /// Bytes for each.
    bytes: usize,
}

const KNOWN: Bounds = Bounds {
    sum: Held { answers: 65536, notices: 65536, bytes: 64 << 20 },
    sure: 16,
    bytes: 4 << 20,
};

/// Limits for unknown peers.
const UNKNOWN: Bounds = Bounds {
    sum: Held { answers: 16384, notices: 16384, bytes: 8 << 20 },
    sure: 4,
    bytes: 256 << 10,
};

/// Divisor of the free rest available to each peer, so that some is left for all.
const PART: usize = 8;

/// Maximum messages of one peer with a match notice: more than the maximum of transfers in flight.
const NOTICES: usize = 1024;

impl Bounds {
    /// Returns true if one more item may be held for a peer holding `own`, of at most `most`, while
    /// all peers of its kind hold `all` of `sum`.
    fn admits(&self, (own, most): (usize, usize), (all, sum): (usize, usize)) -> bool {
        own < most && (own < self.sure || own < sum.saturating_sub(all) / PART)
    }

    /// Returns true if `more` bytes may be held for a peer.
    fn admits_bytes(&self, own: Held, all: Held, more: usize) -> bool {
        let free = self.sum.bytes.saturating_sub(all.bytes);
        own.bytes.saturating_add(more) <= self.bytes.min(free / 2)
    }
}

/// Resources held by an endpoint for requests: for peers in the address vector, and for others.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HeldSums {
    known: Held,
    unknown: Held,
}

impl HeldSums {
    /// Returns the resources held for peers of one kind.
    pub(super) fn of(&mut self, unknown: bool) -> &mut Held {
        if unknown { &mut self.unknown } else { &mut self.known }
    }

    fn look(&self, unknown: bool) -> (Held, Bounds) {
        if unknown { (self.unknown, UNKNOWN) } else { (self.known, KNOWN) }
    }

    /// Returns true if another response may be held, of at most `most`, for a peer holding `own`.
    pub(super) fn admits_answer(&self, unknown: bool, own: Held, most: usize) -> bool {
        let (all, bounds) = self.look(unknown);
        bounds.admits((own.answers, most), (all.answers, bounds.sum.answers))
    }

    /// Returns true if another message with a match notice may be received.
    pub(super) fn admits_notice(&self, unknown: bool, own: Held) -> bool {
        let (all, bounds) = self.look(unknown);
        bounds.admits((own.notices, NOTICES), (all.notices, bounds.sum.notices))
    }

    /// Returns true if this number of bytes of a response may be copied.
    pub(super) fn admits_copy(&self, unknown: bool, own: Held, bytes: usize) -> bool {
        let (all, bounds) = self.look(unknown);
        bounds.admits_bytes(own, all, bytes)
    }

    /// Returns true if a non-repeatable result of this size may be held: for a few responses
    /// always.
    pub(super) fn admits_result(&self, unknown: bool, own: Held, bytes: usize) -> bool {
        let (_, bounds) = self.look(unknown);
        own.answers < bounds.sure || self.admits_copy(unknown, own, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_quota_leaves_space_to_others_and_has_a_minimum() {
        let (mut all, mut peers) = (0, Vec::new());
        for _ in 0..2000 {
            let mut own = 0;
            while UNKNOWN.admits((own, 256), (all, UNKNOWN.sum.answers)) {
                (own, all) = (own + 1, all + 1);
            }
            peers.push(own);
        }
        assert_eq!(peers[0], 256);
        assert!(peers.is_sorted_by(|one, next| one >= next));
        assert_eq!(*peers.last().unwrap(), UNKNOWN.sure);
        assert!(all <= UNKNOWN.sum.answers + 2000 * UNKNOWN.sure, "{all} are kept");
    }

    #[test]
    fn bytes_are_bounded_for_each_and_in_sum() {
        let (mut all, mut most) = (Held::default(), 0);
        for _ in 0..2000 {
            let mut own = Held::default();
            while UNKNOWN.admits_bytes(own, all, 65536) {
                own += Held::answer(65536);
                all += Held::answer(65536);
            }
            most = most.max(own.bytes);
        }
        assert_eq!(most, UNKNOWN.bytes);
        assert!(all.bytes <= UNKNOWN.sum.bytes);
        all -= Held::answer(65536);
        assert!(!UNKNOWN.admits_bytes(Held::default(), all, usize::MAX));
    }
}
