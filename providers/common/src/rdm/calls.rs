//! Who calls whom: the rules by which two endpoints that may both call make one connection.
//!
//! A peer is called when there is something to send to it. Two that call each other at the same
//! time must end up with one connection: the call of the smaller address is refused, or of the
//! one that can be called itself if the other cannot. A refused caller waits for the peer's own
//! call, and calls again if none comes ([`CallRetry`]). Nothing in here knows of connections or
//! of the time: a provider says what happened, and when, and is told what to do.
use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// How far an endpoint's own connection to a peer is when that peer calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnCall {
    /// There is no connection of our own.
    None,
    /// The peer refused our call, which is to be tried again.
    Refused,
    /// Our call is not answered yet.
    Calling,
    /// The connection is made, or accepted by this side.
    Made,
}

/// The process at the other end of a connection, as far as it said. A value of 0 is not known.
#[derive(Clone, Copy, Default, Debug)]
pub struct ProcessMark {
    /// The process id.
    pub pid: u32,
    /// A random number, which tells the process from others that had its process id.
    pub instance: u32,
}

impl ProcessMark {
    /// Whether nothing known says that these are two processes.
    pub fn may_be(self, other: Self) -> bool {
        let same = |one: u32, other: u32| one == 0 || other == 0 || one == other;
        same(self.pid, other.pid) && same(self.instance, other.instance)
    }
}

/// A peer's call.
#[derive(Clone, Copy, Debug)]
pub struct IncomingCall {
    /// The caller's address compared with ours
    /// ([`connect_order`](crate::addr::connect_order)); equal if it is our own endpoint.
    pub order: Ordering,
    /// The caller cannot be called itself.
    pub caller_firewalled: bool,
    /// We cannot be called.
    pub firewalled: bool,
    /// The caller may be the process that the connection we have is with
    /// ([`ProcessMark::may_be`]).
    pub same_process: bool,
}

/// What to do about a peer's call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallAnswer {
    /// Accept the call: from now on this is the connection to the peer.
    Accept,
    /// Accept the call, which counts instead of ours: what waits on ours goes over to it.
    Replace,
    /// Accept the call beside ours: an endpoint that calls itself has one connection for each
    /// direction.
    Beside,
    /// Refuse the call: ours counts, or the connection is there.
    Refuse,
    /// The peer was started anew: end the connection, with all that is under way on it, and
    /// accept the call.
    Restarted,
}

impl IncomingCall {
    /// What to do about the call, if the endpoint's own connection to the caller is so far.
    pub fn answer(&self, own: OwnCall) -> CallAnswer {
        match own {
            OwnCall::None => CallAnswer::Accept,
            _ if self.order == Ordering::Equal => CallAnswer::Beside,
            OwnCall::Refused => CallAnswer::Replace,
            OwnCall::Calling => match (self.caller_firewalled, self.firewalled) {
                (true, false) => CallAnswer::Replace,
                (false, true) => CallAnswer::Refuse,
                _ if self.order == Ordering::Less => CallAnswer::Refuse,
                _ => CallAnswer::Replace,
            },
            OwnCall::Made if self.same_process => CallAnswer::Refuse,
            OwnCall::Made => CallAnswer::Restarted,
        }
    }
}

/// How long a refused caller waits, and how often it calls again.
#[derive(Clone, Copy, Debug)]
pub struct RetryRule {
    /// Half of the time before the second call; it doubles after each refusal.
    pub delay: Duration,
    /// The longest time between two calls.
    pub longest: Duration,
    /// Refusals in a row after which one more is final.
    pub most: u32,
}

/// How many calls are under way at a time. The others wait for their turn, and many of these need
/// not be made any more by then, as the peer has called. A job whose processes call all others at
/// once would have the network lose most of that, and wait for what is sent again.
pub const CALLS_AT_A_TIME: usize = 32;

/// Calls that are not answered for so long do not keep others from being made, if none was answered
/// in that time.
const LONG_CALL: Duration = Duration::from_secs(2);

/// The calls under way, as far as they count for [`CALLS_AT_A_TIME`].
#[derive(Default, Debug)]
pub struct CallPace {
    /// A connection's number, what tells it from others that had or will have that number, and
    /// when it was begun.
    calls: Vec<(u32, u64, Instant)>,
    /// When a call was last seen to be answered.
    answered: Option<Instant>,
}

impl CallPace {
    /// Notes that a call was begun.
    pub fn begun(&mut self, id: u32, mark: u64, now: Instant) {
        self.calls.push((id, mark, now));
    }

    /// Whether another call may be made, of `most` at a time. `is_under_way` says of a connection's
    /// number and mark whether its call is not answered yet.
    pub fn has_room(
        &mut self,
        most: usize,
        now: Instant,
        is_under_way: impl Fn(u32, u64) -> bool,
    ) -> bool {
        if self.calls.len() < most {
            return true;
        }
        let before = self.calls.len();
        self.calls.retain(|&(id, mark, _)| is_under_way(id, mark));
        if self.calls.len() < before {
            self.answered = Some(now);
        } else if self.next_room().is_some_and(|at| at <= now) {
            self.calls.retain(|(.., begun)| now.saturating_duration_since(*begun) < LONG_CALL);
        }
        self.calls.len() < most
    }

    /// When the oldest of the calls stops to count if no call is answered, if there are any.
    pub fn next_room(&self) -> Option<Instant> {
        let (.., begun) = self.calls.first()?;
        Some(self.answered.map_or(*begun, |at| at.max(*begun)) + LONG_CALL)
    }
}

/// How often a peer refused our calls, and when the next one is due.
#[derive(Clone, Copy, Default, Debug)]
pub struct CallRetry {
    refusals: u32,
    due: Option<Instant>,
    in_line: bool,
}

impl CallRetry {
    /// The peer refused our call, most likely because it is calling us itself. Returns when to
    /// call again; none if it is not worth it any more, and then the count begins anew.
    pub fn refused(&mut self, now: Instant, rule: &RetryRule) -> Option<Instant> {
        if self.refusals >= rule.most {
            *self = Self::default();
            return None;
        }
        self.refusals += 1;
        let delay = rule.delay.saturating_mul(1 << self.refusals.min(16)).min(rule.longest);
        self.due = Some(now + delay);
        self.due
    }

    /// Counts a refusal whose call is tried again in another way, at once. False if there were
    /// too many.
    pub fn refused_form(&mut self, now: Instant, rule: &RetryRule) -> bool {
        let again = self.refused(now, rule).is_some();
        self.due = again.then_some(now);
        again
    }

    /// Calls at this time, for another reason than a refusal, unless a call is due anyway.
    /// Returns whether that is new.
    pub fn call_at(&mut self, at: Instant) -> bool {
        let new = self.due.is_none();
        self.due.get_or_insert(at);
        new
    }

    /// When the next call is due, if one is.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes that a call waits until others are answered ([`CallPace`]).
    pub fn wait_in_line(&mut self) {
        (self.due, self.in_line) = (None, true);
    }

    /// Whether a call waits until others are answered, which it then does no more.
    pub fn leave_line(&mut self) -> bool {
        std::mem::take(&mut self.in_line)
    }

    /// Whether a call will be made without another reason to.
    pub fn is_waiting(&self) -> bool {
        self.due.is_some() || self.in_line
    }

    /// Refusals in a row so far.
    pub fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Whether it is time to call, which is then no more due.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Notes that a call is under way, so that none is due. The refusals still count.
    pub fn calling(&mut self) {
        (self.due, self.in_line) = (None, false);
    }

    /// Notes that the connection is made.
    pub fn made(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RetryRule = RetryRule {
        delay: Duration::from_millis(1),
        longest: Duration::from_millis(100),
        most: 10,
    };

    fn call(order: Ordering) -> IncomingCall {
        IncomingCall { order, caller_firewalled: false, firewalled: false, same_process: true }
    }

    #[test]
    fn of_two_calls_that_cross_the_larger_addresses_counts() {
        for own in [OwnCall::None, OwnCall::Refused] {
            for order in [Ordering::Less, Ordering::Greater] {
                assert_ne!(call(order).answer(own), CallAnswer::Refuse);
            }
        }
        assert_eq!(call(Ordering::Less).answer(OwnCall::Calling), CallAnswer::Refuse);
        assert_eq!(call(Ordering::Greater).answer(OwnCall::Calling), CallAnswer::Replace);
    }

    #[test]
    fn a_peer_that_cannot_be_called_wins_and_we_do_if_we_cannot_be_called() {
        let firewalled = |caller_firewalled, firewalled, order| {
            IncomingCall { caller_firewalled, firewalled, ..call(order) }.answer(OwnCall::Calling)
        };
        for order in [Ordering::Less, Ordering::Greater] {
            assert_eq!(firewalled(true, false, order), CallAnswer::Replace);
            assert_eq!(firewalled(false, true, order), CallAnswer::Refuse);
            assert_eq!(firewalled(true, true, order), call(order).answer(OwnCall::Calling));
        }
    }

    #[test]
    fn an_endpoint_that_calls_itself_keeps_both_ends() {
        for own in [OwnCall::Calling, OwnCall::Refused, OwnCall::Made] {
            for same_process in [true, false] {
                let call = IncomingCall { same_process, ..call(Ordering::Equal) };
                assert_eq!(call.answer(own), CallAnswer::Beside);
            }
        }
    }

    #[test]
    fn a_connected_peer_is_believed_to_have_restarted_only_if_its_process_is_another() {
        let mark = |pid, instance| ProcessMark { pid, instance };
        for (before, now, same) in [
            (mark(0, 0), mark(7, 1), true),
            (mark(7, 0), mark(7, 1), true),
            (mark(7, 1), mark(7, 1), true),
            (mark(7, 1), mark(7, 2), false),
            (mark(7, 1), mark(8, 1), false),
            (mark(7, 0), mark(8, 0), false),
        ] {
            assert_eq!(before.may_be(now), same, "{before:?} {now:?}");
            let call = IncomingCall { same_process: same, ..call(Ordering::Less) };
            let answer = if same { CallAnswer::Refuse } else { CallAnswer::Restarted };
            assert_eq!(call.answer(OwnCall::Made), answer);
        }
    }

    #[test]
    fn a_refused_caller_waits_twice_as_long_each_time_and_gives_up_in_the_end() {
        let (start, mut retry) = (Instant::now(), CallRetry::default());
        let mut waits = Vec::new();
        while let Some(due) = retry.refused(start, &RULE) {
            waits.push((due - start).as_millis());
            assert!(!retry.take_due(start), "not before its time");
            assert!(retry.take_due(due));
            assert!(!retry.take_due(due), "once");
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 100, 100, 100, 100]);
        assert_eq!((retry.refusals(), retry.due()), (0, None));
    }

    #[test]
    fn a_connection_that_is_made_forgets_refusals() {
        let (now, mut retry) = (Instant::now(), CallRetry::default());
        retry.refused(now, &RULE);
        retry.refused(now, &RULE);
        retry.calling();
        assert_eq!((retry.refusals(), retry.due()), (2, None));
        retry.made();
        assert_eq!(retry.refused(now, &RULE), Some(now + Duration::from_millis(2)));
        assert!(!retry.call_at(now), "a call is due already");
        assert!(retry.refused_form(now, &RULE));
        assert!(retry.take_due(now), "a call in another form is due at once");
        assert!(retry.call_at(now));
    }

    #[test]
    fn calls_are_made_some_at_a_time_and_those_without_an_answer_hinder_nobody_for_long() {
        let (now, mut pace) = (Instant::now(), CallPace::default());
        assert_eq!(pace.next_room(), None);
        for id in 0..3 {
            assert!(pace.has_room(3, now, |_, _| true));
            pace.begun(id, 7, now);
        }
        assert!(!pace.has_room(3, now, |_, _| true));
        let soon = now + LONG_CALL / 2;
        assert!(pace.has_room(3, soon, |id, mark| (id, mark) != (1, 7)), "one was answered");
        pace.begun(1, 8, soon);
        // As long as some are answered, the others count.
        let later = pace.next_room().unwrap();
        assert_eq!(later, soon + LONG_CALL);
        assert!(!pace.has_room(3, later - Duration::from_millis(1), |_, _| true));
        assert!(pace.has_room(3, later, |_, _| true));
        assert!(pace.calls.is_empty());
    }

    #[test]
    fn a_call_waits_in_line_once() {
        let mut retry = CallRetry::default();
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
        own: OwnCall,
        retry: CallRetry,
        wants: bool,
        given_up: bool,
        /// The number of the call that made the connection.
        by: usize,
    }

    #[derive(Clone, Copy, Debug)]
    enum SentCall {
        Call,
        Accepted,
        Refused,
    }

    /// Two endpoints that call each other as they like over a net that delays each message by
    /// itself: they agree on one connection, whatever the order in which messages come.
    #[test]
    fn two_that_call_each_other_agree_on_one_connection_in_every_order() {
        let rule = RetryRule { most: 100, ..RULE };
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
                own: OwnCall::None,
                retry: CallRetry::default(),
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
                    let first = side.own == OwnCall::None && side.wants;
                    let again = side.own == OwnCall::Refused && side.retry.take_due(now);
                    if (first || again) && draw(3) > 0 {
                        calls += 1;
                        (side.own, side.by) = (OwnCall::Calling, calls);
                        net.push((1 - me, calls, SentCall::Call));
                    } else if again {
                        side.retry.call_at(now);
                    }
                }
                now += Duration::from_millis(draw(3) as u64);
                if net.is_empty() {
                    let done = sides.iter().all(|side| match side.own {
                        OwnCall::Made => true,
                        OwnCall::None => !side.wants,
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
                        CallAnswer::Accept | CallAnswer::Replace => {
                            (side.own, side.by) = (OwnCall::Made, of);
                            side.retry.made();
                            net.push((1 - to, of, SentCall::Accepted));
                        }
                        CallAnswer::Refuse => net.push((1 - to, of, SentCall::Refused)),
                        other => panic!("{other:?} in seed {seed}"),
                    },
                    // A call that the peer's replaced has no connection that could hear.
                    SentCall::Accepted if side.own == OwnCall::Calling && side.by == of => {
                        side.own = OwnCall::Made;
                        side.retry.made();
                    }
                    SentCall::Refused if side.own == OwnCall::Calling && side.by == of => {
                        match side.retry.refused(now, &rule) {
                            Some(_) => side.own = OwnCall::Refused,
                            None => side.given_up = true,
                        }
                    }
                    SentCall::Accepted | SentCall::Refused => {}
                }
            }
            let [one, other] = sides;
            assert!(!one.given_up && !other.given_up, "seed {seed}: {sides:?}");
            assert_eq!((one.own, other.own), (OwnCall::Made, OwnCall::Made), "seed {seed}");
            assert_eq!(one.by, other.by, "seed {seed}: one connection");
        }
    }
}
