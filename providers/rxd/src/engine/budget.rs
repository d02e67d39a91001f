//! Limits on memory held for peers' requests: responses to them, refusals, and match notices. All
//! of it stays until the peer acknowledges it. So it is bounded, for each peer and in sum, with
//! lower bounds for unknown peers.
use super::conn::{BEYOND, ICMP_ERRORS};
use super::ep::RxdEngineEp;
use ofi_provider::error::Error;
use std::ops::{AddAssign, SubAssign};
use std::time::{Duration, Instant};

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

/// Fewest answers to one peer; more than requests can be under way.
const LEAST_ANSWERS: usize = 256;

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
}

impl RxdEngineEp {
    /// Returns the maximum unacknowledged responses to one peer.
    fn most_answers(&self) -> usize {
        LEAST_ANSWERS.max(self.limits.config.max_unacked + BEYOND + ICMP_ERRORS)
    }

    /// Returns true if another response to a peer may be held.
    pub(super) fn may_answer(&mut self, id: u32) -> bool {
        let most = self.most_answers();
        self.admits_answer(id, most)
    }

    /// Returns true if another refusal may be held. Refusals have their own space, for the maximum
    /// number of requests in flight, when there is none for other responses: acknowledgements wait
    /// for them.
    pub(super) fn may_refuse(&mut self, id: u32) -> bool {
        let most = 2 * self.most_answers();
        self.admits_answer(id, most)
    }

    fn admits_answer(&mut self, id: u32, most: usize) -> bool {
        let conn = &self.conns[id];
        let (unknown, own) = (conn.unknown, conn.held.answers);
        let (all, bounds) = self.sums.look(unknown);
        let admits = bounds.admits((own, most), (all.answers, bounds.sum.answers));
        if !admits && own < most && unknown {
            self.forget_silent_holders();
        }
        admits
    }

    /// Returns true if another message with a match notice may be received.
    pub(super) fn may_notify(&mut self, id: u32) -> bool {
        let conn = &self.conns[id];
        let (unknown, own) = (conn.unknown, conn.held.notices);
        let (all, bounds) = self.sums.look(unknown);
        bounds.admits((own, NOTICES), (all.notices, bounds.sum.notices))
    }

    /// Returns true if this number of bytes of a response may be copied.
    pub(super) fn may_copy(&self, id: u32, bytes: usize) -> bool {
        let conn = &self.conns[id];
        let (all, bounds) = self.sums.look(conn.unknown);
        bounds.admits_bytes(conn.held, all, bytes)
    }

    /// Returns true if a non-repeatable result of this size may be held: for a few responses
    /// always.
    pub(super) fn may_keep_result(&self, id: u32, bytes: usize) -> bool {
        let conn = &self.conns[id];
        let (_, bounds) = self.sums.look(conn.unknown);
        conn.held.answers < bounds.sure || self.may_copy(id, bytes)
    }

    /// Records resources held for a peer.
    pub(super) fn hold(&mut self, id: u32, more: Held) {
        let conn = &mut self.conns[id];
        conn.held += more;
        *self.sums.of(conn.unknown) += more;
    }

    /// Records resources no longer held for a peer.
    pub(super) fn release(&mut self, id: u32, less: Held) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.held -= less;
        *self.sums.of(conn.unknown) -= less;
        if less != Held::default() {
            self.to_retry = self.held_back.len();
        }
    }

    /// Returns true if another unknown peer is permitted. Peers silent for a while are dropped to
    /// make space.
    pub(super) fn has_space_for_unknown(&mut self) -> bool {
        let most = self.limits.config.max_peers;
        if self.unknown >= most {
            self.forget_idle();
        }
        self.unknown < most
    }

    /// Drops silent unknown peers, if their number has reached the limit: first those without held
    /// resources.
    #[cold]
    pub(super) fn forget_idle(&mut self) {
        let most = self.limits.config.max_peers;
        if self.unknown < most {
            return;
        }
        // Some more than needed, so that it is not looked for them each time.
        let count = self.unknown - most + 1 + most / 16;
        self.forget_silent(0, count, |_| true);
    }

    /// Drops some unknown peers with unacknowledged responses after a period of silence.
    #[cold]
    fn forget_silent_holders(&mut self) {
        self.forget_silent(1, self.limits.config.max_peers / 16 + 1, |held| held.answers > 0);
    }

    /// The search of this number.
    fn forget_silent(&mut self, search: usize, count: usize, which: impl Fn(Held) -> bool) {
        if self.next_search[search].is_some_and(|at| self.now < at) {
            return;
        }
        let now = self.now;
        let mut soonest: Option<Instant> = None;
        let mut silent = Vec::new();
        for (id, conn) in self.conns.iter() {
            if !conn.unknown || conn.ops > 0 {
                continue;
            }
            if now.saturating_duration_since(conn.last_received) < IDLE {
                let at = conn.last_received + IDLE;
                soonest = Some(soonest.map_or(at, |before| before.min(at)));
            } else if which(conn.held) {
                let busy = !conn.is_quiet() || conn.arriving.is_some();
                silent.push((busy, conn.last_received, id));
            }
        }
        if silent.len() <= count {
            // Not before another one can have become silent.
            self.next_search[search] = Some(soonest.unwrap_or(now + IDLE));
        }
        silent.sort_unstable();
        silent.truncate(count);
        for (_, _, id) in silent {
            self.drop_conn(id, Error::CONNRESET);
        }
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
