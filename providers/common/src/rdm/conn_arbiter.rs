//! Arbitration of simultaneous connects: rules for two endpoints, both able to connect, to end up
//! with one connection.
//!
//! A peer is connected when there is something to send to it. Two endpoints connecting to each
//! other at the same time must end up with one connection: the request of the smaller address is
//! rejected, or the one of the endpoint able to accept connections if the other cannot. A rejected
//! endpoint waits for the peer's own request, and connects again if none arrives ([`ConnectBackoff`]).
//! This module does not know connections or the time: a provider reports events with their time,
//! and gets the decision.
use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// State of an endpoint's own connection to a peer at the arrival of the peer's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalConnState {
    /// There is no connection of our own.
    None,
    /// The peer rejected the local request; it has to be retried.
    Refused,
    /// The local request is not sent, because there is no link yet: the peer does not know of it.
    Dialing,
    /// Our call is not answered yet.
    Calling,
    /// The connection is made, or accepted by this side.
    Made,
}

/// Process at the other end of a connection, as reported by it. A value of 0 is unknown.
#[derive(Clone, Copy, Default, Debug)]
pub struct ProcessInstance {
    /// The process id.
    pub pid: u32,
    /// Random number distinguishing the process from others with the same process id.
    pub instance: u32,
}

impl ProcessInstance {
    /// Returns true unless these are known to be two processes.
    pub fn may_be(self, other: Self) -> bool {
        let same = |one: u32, other: u32| one == 0 || other == 0 || one == other;
        same(self.pid, other.pid) && same(self.instance, other.instance)
    }
}

/// A peer's call.
#[derive(Clone, Copy, Debug)]
pub struct IncomingConnReq {
    /// The caller's address compared with ours
    /// ([`connect_order`](crate::addr::connect_order)); equal if it is our own endpoint.
    pub order: Ordering,
    /// The caller cannot be called itself.
    pub peer_behind_firewall: bool,
    /// We cannot be called.
    pub behind_firewall: bool,
    /// True if the connecting process may be the one of the existing connection
    /// ([`ProcessInstance::may_be`]).
    pub same_process: bool,
}

/// Decision on a peer's connection request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnReqDecision {
    /// Accept the call: from now on this is the connection to the peer.
    Accept,
    /// Accept the request instead of the local one; queued transfers move to its connection.
    Replace,
    /// Accept the request in addition to the local one: an endpoint connecting to itself has one
    /// connection per direction.
    Crossing,
    /// Refuse the call: ours counts, or the connection is there.
    Reject,
    /// The peer was restarted: end the connection, failing its operations in flight, and accept the
    /// request.
    Restarted,
}

impl IncomingConnReq {
    /// Returns the decision on the request, for this state of the endpoint's own connection to the
    /// peer.
    pub fn answer(&self, own: LocalConnState) -> ConnReqDecision {
        match own {
            LocalConnState::None => ConnReqDecision::Accept,
            _ if self.order == Ordering::Equal => ConnReqDecision::Crossing,
            LocalConnState::Refused | LocalConnState::Dialing => ConnReqDecision::Replace,
            LocalConnState::Calling => match (self.peer_behind_firewall, self.behind_firewall) {
                (true, false) => ConnReqDecision::Replace,
                (false, true) => ConnReqDecision::Reject,
                _ if self.order == Ordering::Less => ConnReqDecision::Reject,
                _ => ConnReqDecision::Replace,
            },
            LocalConnState::Made if self.same_process => ConnReqDecision::Reject,
            LocalConnState::Made => ConnReqDecision::Restarted,
        }
    }
}

/// Backoff times and maximum number of retries after rejections.
#[derive(Clone, Copy, Debug)]
pub struct BackoffPolicy {
    /// Half of the time before the second call; it doubles after each refusal.
    pub delay: Duration,
    /// The longest time between two calls.
    pub longest: Duration,
    /// Maximum number of consecutive rejections; a further one is final.
    pub most: u32,
}

/// Time in seconds for the kernel's connection attempts to a host that answers nothing
/// (tcp_syn_retries of tcp(7)).
pub const KERNEL_CONNECT_TIME: u64 = 127;

impl BackoffPolicy {
    /// Returns the pause after so many consecutive rejections.
    const fn pause(&self, rejections: u32) -> Duration {
        let doublings = if rejections < 16 { rejections } else { 16 };
        let pause = self.delay.saturating_mul(1 << doublings);
        if pause.as_nanos() < self.longest.as_nanos() { pause } else { self.longest }
    }

    /// Returns the time from the first rejection to the final one.
    pub const fn total(&self) -> Duration {
        let (mut total, mut rejections) = (Duration::ZERO, 0);
        while rejections < self.most {
            rejections += 1;
            total = total.saturating_add(self.pause(rejections));
        }
        total
    }
}

/// Maximum number of concurrent connects. Others are queued, and many are not necessary later,
/// because the peer has connected. In a job with all processes connecting to all others at once,
/// the network would drop most requests, and the retransmissions would take long.
pub const CALLS_AT_A_TIME: usize = 32;

/// Maximum number of concurrent connects to peers that have answered all before: then the connects of
/// one process to many peers wait for the answers of as many at a time, not for 32 after 32.
pub const MOST_CALLS_AT_A_TIME: usize = 1024;

/// Time after which unanswered connects no longer delay others, if none was answered within it.
const LONG_CALL: Duration = Duration::from_secs(2);

/// State of a call, for the number of concurrent ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallState {
    /// The peer has not answered yet.
    Pending,
    /// The peer has accepted, and the connection exists.
    Made,
    /// The peer has rejected the call, or the connection is over.
    Failed,
}

/// The calls under way, as far as they count for [`CALLS_AT_A_TIME`].
#[derive(Default, Debug)]
pub struct ConnectLimiter {
    /// Number of concurrent calls permitted beyond the initial one: grows by one with each call accepted,
    /// and is halved when calls fail or expire.
    grown: usize,
    /// Number of a connection, its mark distinguishing reuses of the number, and its start time.
    calls: Vec<(u32, u64, Instant)>,
    /// When a call was last seen to be answered.
    answered: Option<Instant>,
}

impl ConnectLimiter {
    /// Records a started connect.
    pub fn started(&mut self, id: u32, mark: u64, now: Instant) {
        self.calls.push((id, mark, now));
    }

    /// Returns true if another connect may start. The maximum in flight starts at `first`, and grows to
    /// `most`. `state_of` returns the state of the call with a given connection number and mark.
    pub fn has_space(
        &mut self,
        first: usize,
        most: usize,
        now: Instant,
        state_of: impl Fn(u32, u64) -> CallState,
    ) -> bool {
        if self.calls.len() < (first + self.grown).min(most) {
            return true;
        }
        let (before, mut failed) = (self.calls.len(), 0);
        self.calls.retain(|&(id, mark, _)| {
            let state = state_of(id, mark);
            failed += usize::from(state == CallState::Failed);
            state == CallState::Pending
        });
        let answered = before - self.calls.len();
        if answered > 0 {
            self.answered = Some(now);
        } else if self.next_slot().is_some_and(|at| at <= now) {
            self.calls.retain(|(.., started)| now.saturating_duration_since(*started) < LONG_CALL);
            failed = before - self.calls.len();
        }
        self.grown = match failed {
            0 => (self.grown + answered).min(most.saturating_sub(first)),
            _ => self.grown / 2,
        };
        self.calls.len() < (first + self.grown).min(most)
    }

    /// Halves the growth: the network or the peers cannot keep up with the calls.
    pub fn slow_down(&mut self) {
        self.grown /= 2;
    }

    /// When the oldest of the calls stops to count if no call is answered, if there are any.
    pub fn next_slot(&self) -> Option<Instant> {
        let (.., started) = self.calls.first()?;
        Some(self.answered.map_or(*started, |at| at.max(*started)) + LONG_CALL)
    }
}

/// Number of rejections by a peer, and the time of the next retry.
#[derive(Clone, Copy, Default, Debug)]
pub struct ConnectBackoff {
    rejections: u32,
    /// Consecutive connections ended by the peer without an answer, counted as rejections, too.
    unanswered: u32,
    due: Option<Instant>,
    in_line: bool,
}

impl ConnectBackoff {
    /// The peer refused our call, most likely because it is calling us itself. Returns when to
    /// call again; none if it is not worth it any more, and then the count begins anew.
    pub fn refused(&mut self, now: Instant, rule: &BackoffPolicy) -> Option<Instant> {
        self.unanswered = 0;
        self.call_again(now, rule, self.rejections >= rule.most)
    }

    /// Records the end of a connection before the peer's answer. Returns the time of the next attempt, as
    /// [`refused`](Self::refused) does, or `None` after `most` consecutive ends.
    pub fn ended_unanswered(
        &mut self,
        now: Instant,
        rule: &BackoffPolicy,
        most: u32,
    ) -> Option<Instant> {
        self.unanswered += 1;
        self.call_again(now, rule, self.rejections >= rule.most || self.unanswered > most)
    }

    fn call_again(
        &mut self,
        now: Instant,
        rule: &BackoffPolicy,
        is_final: bool,
    ) -> Option<Instant> {
        if is_final {
            *self = Self::default();
            return None;
        }
        self.rejections += 1;
        self.due = Some(now + rule.pause(self.rejections));
        self.due
    }

    /// Counts a rejection with an immediate retry in another form. Returns false if there were too
    /// many.
    pub fn refused_form(&mut self, now: Instant, rule: &BackoffPolicy) -> bool {
        let again = self.refused(now, rule).is_some();
        self.due = again.then_some(now);
        again
    }

    /// Schedules a connect at this time, for another reason than a rejection, unless one is
    /// scheduled already. Returns true if it is new.
    pub fn call_at(&mut self, at: Instant) -> bool {
        let new = self.due.is_none();
        self.due.get_or_insert(at);
        new
    }

    /// When the next call is due, if one is.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records a connect waiting for the answers to others ([`ConnectLimiter`]).
    pub fn wait_in_line(&mut self) {
        (self.due, self.in_line) = (None, true);
    }

    /// Returns true if a connect was waiting for the answers to others, and removes it from the
    /// line.
    pub fn leave_line(&mut self) -> bool {
        std::mem::take(&mut self.in_line)
    }

    /// Returns true if a connect will be made without further reason.
    pub fn is_waiting(&self) -> bool {
        self.due.is_some() || self.in_line
    }

    /// Refusals in a row so far.
    pub fn rejections(&self) -> u32 {
        self.rejections
    }

    /// Returns true if a connect is due, and clears it.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Records a connect in flight, so none is due. Rejections remain counted.
    pub fn calling(&mut self) {
        (self.due, self.in_line) = (None, false);
    }

    /// Records the established connection.
    pub fn made(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: BackoffPolicy = BackoffPolicy {
        delay: Duration::from_millis(1),
        longest: Duration::from_millis(100),
        most: 10,
    };

    fn call(order: Ordering) -> IncomingConnReq {
        IncomingConnReq {
            order,
            peer_behind_firewall: false,
            behind_firewall: false,
            same_process: true,
        }
    }

    #[test]
    fn crossing_connects_are_decided_by_the_larger_address() {
        for own in [LocalConnState::None, LocalConnState::Refused] {
            for order in [Ordering::Less, Ordering::Greater] {
                assert_ne!(call(order).answer(own), ConnReqDecision::Reject);
            }
        }
        assert_eq!(call(Ordering::Less).answer(LocalConnState::Calling), ConnReqDecision::Reject);
        assert_eq!(
            call(Ordering::Greater).answer(LocalConnState::Calling),
            ConnReqDecision::Replace
        );
    }

    #[test]
    fn side_unable_to_accept_connections_wins_a_crossing() {
        let behind_firewall = |peer_behind_firewall, behind_firewall, order| {
            IncomingConnReq { peer_behind_firewall, behind_firewall, ..call(order) }
                .answer(LocalConnState::Calling)
        };
        for order in [Ordering::Less, Ordering::Greater] {
            assert_eq!(behind_firewall(true, false, order), ConnReqDecision::Replace);
            assert_eq!(behind_firewall(false, true, order), ConnReqDecision::Reject);
            assert_eq!(
                behind_firewall(true, true, order),
                call(order).answer(LocalConnState::Calling)
            );
        }
    }

    #[test]
    fn endpoint_connecting_to_itself_keeps_both_ends() {
        for own in [LocalConnState::Calling, LocalConnState::Refused, LocalConnState::Made] {
            for same_process in [true, false] {
                let call = IncomingConnReq { same_process, ..call(Ordering::Equal) };
                assert_eq!(call.answer(own), ConnReqDecision::Crossing);
            }
        }
    }

    #[test]
    fn a_connected_peer_is_believed_to_have_restarted_only_if_its_process_is_another() {
        let mark = |pid, instance| ProcessInstance { pid, instance };
        for (before, now, same) in [
            (mark(0, 0), mark(7, 1), true),
            (mark(7, 0), mark(7, 1), true),
            (mark(7, 1), mark(7, 1), true),
            (mark(7, 1), mark(7, 2), false),
            (mark(7, 1), mark(8, 1), false),
            (mark(7, 0), mark(8, 0), false),
        ] {
            assert_eq!(before.may_be(now), same, "{before:?} {now:?}");
            let call = IncomingConnReq { same_process: same, ..call(Ordering::Less) };
            let answer = if same { ConnReqDecision::Reject } else { ConnReqDecision::Restarted };
            assert_eq!(call.answer(LocalConnState::Made), answer);
        }
    }

    #[test]
    fn a_refused_caller_waits_twice_as_long_each_time_and_gives_up_in_the_end() {
        let (start, mut retry) = (Instant::now(), ConnectBackoff::default());
        let mut waits = Vec::new();
        while let Some(due) = retry.refused(start, &RULE) {
            waits.push((due - start).as_millis());
            assert!(!retry.take_due(start), "not before its time");
            assert!(retry.take_due(due));
            assert!(!retry.take_due(due), "once");
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 100, 100, 100, 100]);
        assert_eq!(RULE.total().as_millis(), waits.iter().sum());
        assert_eq!((retry.rejections(), retry.due()), (0, None));
    }

    #[test]
    fn consecutive_ends_without_an_answer_are_final_before_rejections() {
        let (mut refused, now) = (ConnectBackoff::default(), Instant::now());
        let mut is_retried = |answered: bool| match answered {
            true => refused.refused(now, &RULE).is_some(),
            false => refused.ended_unanswered(now, &RULE, 2).is_some(),
        };
        for (answered, expected) in [
            (false, true),
            (false, true),
            (true, true),
            (false, true),
            (false, true),
            (false, false),
            (false, true),
        ] {
            assert_eq!(is_retried(answered), expected);
        }
    }

    #[test]
    fn established_connection_resets_the_rejection_count() {
        let (now, mut retry) = (Instant::now(), ConnectBackoff::default());
        retry.refused(now, &RULE);
        retry.refused(now, &RULE);
        retry.calling();
        assert_eq!((retry.rejections(), retry.due()), (2, None));
        retry.made();
        assert_eq!(retry.refused(now, &RULE), Some(now + Duration::from_millis(2)));
        assert!(!retry.call_at(now), "a call is due already");
        assert!(retry.refused_form(now, &RULE));
        assert!(retry.take_due(now), "a call in another form is due at once");
        assert!(retry.call_at(now));
    }

    #[test]
    fn concurrent_connects_are_limited_and_unanswered_ones_expire() {
        let (now, mut pace) = (Instant::now(), ConnectLimiter::default());
        assert_eq!(pace.next_slot(), None);
        let pending = |_, _| CallState::Pending;
        for id in 0..3 {
            assert!(pace.has_space(3, 3, now, pending));
            pace.started(id, 7, now);
        }
        assert!(!pace.has_space(3, 3, now, pending));
        let soon = now + LONG_CALL / 2;
        let one =
            |id, mark| if (id, mark) == (1, 7) { CallState::Made } else { CallState::Pending };
        assert!(pace.has_space(3, 3, soon, one), "one was answered");
        pace.started(1, 8, soon);
        // As long as some are answered, the others count.
        let later = pace.next_slot().unwrap();
        assert_eq!(later, soon + LONG_CALL);
        assert!(!pace.has_space(3, 3, later - Duration::from_millis(1), pending));
        assert!(pace.has_space(3, 3, later, pending));
        assert!(pace.calls.is_empty());
    }

    #[test]
    fn accepted_connects_permit_more_at_a_time_and_failed_ones_fewer() {
        let (now, mut pace, mut id) = (Instant::now(), ConnectLimiter::default(), 0);
        // Starts as many as there may be, all earlier ones being in this state.
        let mut start = |state| {
            let first = id;
            let state_of = |of, _| if of < first { state } else { CallState::Pending };
            while pace.has_space(4, 20, now, state_of) {
                pace.started(id, 7, now);
                id += 1;
            }
            pace.calls.len()
        };
        let made = [(); 4].map(|()| start(CallState::Made));
        assert_eq!(made, [4, 8, 16, 20]);
        assert_eq!([(); 3].map(|()| start(CallState::Failed)), [12, 8, 6]);
        assert_eq!(start(CallState::Pending), 6);
    }

    #[test]
    fn a_call_waits_in_line_once() {
        let mut retry = ConnectBackoff::default();
        assert!(!retry.is_waiting() && !retry.leave_line());
        retry.wait_in_line();
        assert!(retry.is_waiting() && retry.leave_line() && !retry.leave_line());
        retry.wait_in_line();
        retry.made();
        assert!(!retry.is_waiting(), "the peer has called");
    }

    /// One of two endpoints, as a provider would hold its connection to the other.
    #[derive(Clone, Copy, Debug)]
    struct CallingSide {
        own: LocalConnState,
        retry: ConnectBackoff,
        wants: bool,
        given_up: bool,
        /// Number of the connect that established the connection.
        by: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum SentCall {
        Call,
        Accepted,
        Refused,
    }

    /// Two endpoints connect to each other at random over a network with random delays of each
    /// message: they agree on one connection, for any order of the messages.
    #[test]
    fn mutual_connects_agree_on_one_connection_in_any_order() {
        let rule = BackoffPolicy { most: 100, ..RULE };
        for seed in 1..20_000u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut draw = |below: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random as usize % below
            };
            let mut now = Instant::now();
            let side = CallingSide {
                own: LocalConnState::None,
                retry: ConnectBackoff::default(),
                wants: false,
                given_up: false,
                by: 0,
            };
            let mut sides = [side; 2];
            sides[draw(2)].wants = true;
            let also = draw(2);
            sides[also].wants |= draw(4) > 0;
            // to whom, of which call, what
            let mut net: Vec<(usize, usize, SentCall)> = Vec::new();
            let mut calls = 0;
            for _ in 0..10_000 {
                for (me, side) in sides.iter_mut().enumerate() {
                    let first = side.own == LocalConnState::None && side.wants;
                    let again = side.own == LocalConnState::Refused && side.retry.take_due(now);
                    if (first || again) && draw(3) > 0 {
                        calls += 1;
                        (side.own, side.by) = (LocalConnState::Dialing, calls);
                    } else if again {
                        side.retry.call_at(now);
                    }
                    if side.own == LocalConnState::Dialing && draw(3) > 0 {
                        side.own = LocalConnState::Calling;
                        net.push((1 - me, side.by, SentCall::Call));
                    }
                }
                now += Duration::from_millis(draw(3) as u64);
                if net.is_empty() {
                    let done = sides.iter().all(|side| match side.own {
                        LocalConnState::Made => true,
                        LocalConnState::None => !side.wants,
                        _ => false,
                    });
                    if done {
                        break;
                    }
                    continue;
                }
                let (to, of, sent) = net.swap_remove(draw(net.len()));
                let order = [Ordering::Greater, Ordering::Less][to];
                let side = &mut sides[to];
                match sent {
                    SentCall::Call => match call(order).answer(side.own) {
                        ConnReqDecision::Accept | ConnReqDecision::Replace => {
                            (side.own, side.by) = (LocalConnState::Made, of);
                            side.retry.made();
                            net.push((1 - to, of, SentCall::Accepted));
                        }
                        ConnReqDecision::Reject => net.push((1 - to, of, SentCall::Refused)),
                        other => panic!("{other:?} in seed {seed}"),
                    },
                    // A call that the peer's replaced has no connection that could hear.
                    SentCall::Accepted if side.own == LocalConnState::Calling && side.by == of => {
                        side.own = LocalConnState::Made;
                        side.retry.made();
                    }
                    SentCall::Refused if side.own == LocalConnState::Calling && side.by == of => {
                        match side.retry.refused(now, &rule) {
                            Some(_) => side.own = LocalConnState::Refused,
                            None => side.given_up = true,
                        }
                    }
                    SentCall::Accepted | SentCall::Refused => {}
                }
            }
            let [one, other] = sides;
            assert!(!one.given_up && !other.given_up, "seed {seed}: {sides:?}");
            assert_eq!(
                (one.own, other.own),
                (LocalConnState::Made, LocalConnState::Made),
                "seed {seed}"
            );
            assert_eq!(one.by, other.by, "seed {seed}: one connection");
        }
    }
}
