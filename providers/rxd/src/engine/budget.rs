//! What is kept because of peers' requests: answers to them, refusals, and notices that a message has
//! met its receive. All of it stays until the peer acknowledges it, and so is bounded, for each peer and
//! in sum, for peers that are in no address vector to less.
use super::conn::{BEYOND, REFUSALS};
use super::ep::RxdEngineEp;
use ofi_provider::error::Error;
use std::ops::{AddAssign, SubAssign};
use std::time::{Duration, Instant};

/// A peer that was not heard for so long makes room for another one.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// What is kept for one peer, or for several.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// Answers and refusals that are not acknowledged.
    pub(super) answers: usize,
    /// Messages that have to meet a receive before their sender is told so, and such notices that are
    /// not acknowledged.
    pub(super) notices: usize,
    /// Bytes of answers that are copied.
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

/// How much may be kept for peers of a kind.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// For all of them.
    sum: Held,
    /// For each, however much is kept for others: with fewer answers two peers that ask each other much
    /// would stop each other.
    sure: usize,
    /// Bytes for each.
    bytes: usize,
}

const KNOWN: Bounds = Bounds {
    sum: Held { answers: 65536, notices: 65536, bytes: 64 << 20 },
    sure: 16,
    bytes: 4 << 20,
};

/// Of peers that are in no address vector.
const UNKNOWN: Bounds = Bounds {
    sum: Held { answers: 16384, notices: 16384, bytes: 8 << 20 },
    sure: 4,
    bytes: 256 << 10,
};

/// Each peer may have this part of what others have left, so that some is left for all.
const PART: usize = 8;

/// Fewest answers to one peer; more than requests can be under way.
const LEAST_ANSWERS: usize = 256;

/// Most messages of one peer that have to meet a receive: more than transfers can be under way.
const NOTICES: usize = 1024;

impl Bounds {
    /// Whether one more may be kept for a peer for which `own` are, of at most `most`, where all of its
    /// kind have `all` of `sum`.
    fn admits(&self, (own, most): (usize, usize), (all, sum): (usize, usize)) -> bool {
        own < most && (own < self.sure || own < sum.saturating_sub(all) / PART)
    }

    /// Whether so many bytes more may be kept for a peer.
    fn admits_bytes(&self, own: Held, all: Held, more: usize) -> bool {
        let free = self.sum.bytes.saturating_sub(all.bytes);
        own.bytes.saturating_add(more) <= self.bytes.min(free / 2)
    }
}

/// What an endpoint keeps because of requests: for peers in the address vector, and for others.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct HeldSums {
    known: Held,
    unknown: Held,
}

impl HeldSums {
    /// What is kept for peers of one kind.
    pub(super) fn of(&mut self, unknown: bool) -> &mut Held {
        if unknown { &mut self.unknown } else { &mut self.known }
    }

    fn look(&self, unknown: bool) -> (Held, Bounds) {
        if unknown { (self.unknown, UNKNOWN) } else { (self.known, KNOWN) }
    }
}

impl RxdEngineEp {
    /// Most answers to one peer that it has not acknowledged.
    fn most_answers(&self) -> usize {
        LEAST_ANSWERS.max(self.limits.config.max_unacked + BEYOND + REFUSALS)
    }

    /// Whether another answer to a peer may be kept.
    pub(super) fn may_answer(&mut self, id: u32) -> bool {
        let most = self.most_answers();
        self.admits_answer(id, most)
    }

    /// Whether another refusal may be kept. There is room for as many as requests can be under way when
    /// there is none for other answers: acknowledgements wait for them.
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

    /// Whether another message may come whose sender is to be told that it has met its receive.
    pub(super) fn may_notify(&mut self, id: u32) -> bool {
        let conn = &self.conns[id];
        let (unknown, own) = (conn.unknown, conn.held.notices);
        let (all, bounds) = self.sums.look(unknown);
        bounds.admits((own, NOTICES), (all.notices, bounds.sum.notices))
    }

    /// Whether so many bytes of an answer may be copied.
    pub(super) fn may_copy(&self, id: u32, bytes: usize) -> bool {
        let conn = &self.conns[id];
        let (all, bounds) = self.sums.look(conn.unknown);
        bounds.admits_bytes(conn.held, all, bytes)
    }

    /// Whether a result of so many bytes may be kept, which cannot be read again: of a few answers in any
    /// case.
    pub(super) fn may_keep_result(&self, id: u32, bytes: usize) -> bool {
        let conn = &self.conns[id];
        let (_, bounds) = self.sums.look(conn.unknown);
        conn.held.answers < bounds.sure || self.may_copy(id, bytes)
    }

    /// Notes that something is kept for a peer.
    pub(super) fn hold(&mut self, id: u32, more: Held) {
        let conn = &mut self.conns[id];
        conn.held += more;
        *self.sums.of(conn.unknown) += more;
    }

    /// Notes that something is not kept any more.
    pub(super) fn release(&mut self, id: u32, less: Held) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.held -= less;
        *self.sums.of(conn.unknown) -= less;
        if less != Held::default() {
            self.to_retry = self.held_back.len();
        }
    }

    /// Whether there may be another peer that is in no address vector. Those that have been silent
    /// for a while make room.
    pub(super) fn has_room_for_unknown(&mut self) -> bool {
        let most = self.limits.config.max_peers;
        if self.unknown >= most {
            self.forget_idle();
        }
        self.unknown < most
    }

    /// Forgets peers that are in no address vector and have been silent, if there are as many as may
    /// be: first those for which nothing is kept.
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

    /// Forgets some peers that are in no address vector, do not acknowledge answers, and have been
    /// silent.
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
            if now.saturating_duration_since(conn.heard) < IDLE {
                let at = conn.heard + IDLE;
                soonest = Some(soonest.map_or(at, |before| before.min(at)));
            } else if which(conn.held) {
                let busy = !conn.is_quiet() || conn.arriving.is_some();
                silent.push((busy, conn.heard, id));
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
    fn each_peer_leaves_some_room_to_others_and_has_a_little_in_any_case() {
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
