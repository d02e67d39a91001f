//! State between an endpoint and one peer: sequence numbers, windows, acknowledgements, timers.
//!
//! A peer with upstream libfabric accepts packets only in order, and reports only the position of a
//! gap: everything from there on is retransmitted. A peer with this library stores early packets
//! and reports them, so only lost packets are retransmitted. For such a peer the number of packets
//! in flight also follows the capacity of the network.
use super::ack_predictor::AckPredictor;
use super::arriving::Arriving;
use super::budget::Held;
use super::half_open::{Introduced, Introduction};
use super::round_trip::RoundTrip;
use crate::wire::{Ack, Hello, NO_OP, PiggybackAck, RxdBase};
use ofi_provider::abi::fi_addr_t;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Initial number of packets in flight, before the capacity of the network is known.
const FIRST_WINDOW: usize = 16;
/// Minimum number of packets in flight.
const LEAST_WINDOW: usize = 2;
/// A packet is lost if one so many numbers behind it is known to have come.
const REORDERED: u64 = 3;
/// Maximum packets in flight examined per acknowledgement, regardless of the peer's window.
const JUDGED: usize = 256;
/// Number of equal acknowledgements taken as a sign of a gap.
const DOUBLES: u32 = 3;
/// Time until something is sent again: at first, at least and at most.
const FIRST_RTO: Duration = Duration::from_millis(10);
const LEAST_RTO: Duration = Duration::from_millis(2);
const MOST_RTO: Duration = Duration::from_secs(4);
/// Time until a probe is sent to a peer with a pending response, or with a closed window.
const PROBE: Duration = Duration::from_millis(500);
/// Consecutive retransmissions until the peer is considered gone.
const MOST_RETRIES: u32 = 50;
/// Number of closed-port reports of a host until they count, and the time limit of probes to the
/// peer from then on: it may be about to be restarted.
const MAX_ICMP_ERRORS: u32 = 4;
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);
/// Packets permitted in flight beyond the peer's window while it reports early packets, and
/// refusals beyond those.
pub(super) const BEYOND: usize = 64;
pub(super) const ICMP_ERRORS: usize = 64;

/// Silence after which a request of an upstream peer is attributed to another process: the same
/// process would have sent it earlier.
const STALE: Duration = Duration::from_secs(1);

/// Requests without a response until a peer's own statement is trusted, provided that it uses the
/// index from the request.
const UNANSWERED: u32 = 3;

/// State of the handshake with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HandshakeState {
    /// No message was sent or received.
    New,
    /// The request to the peer waits for the responses to others.
    Waiting,
    /// The peer was asked for its index. Its response names the index of the request, to prove its
    /// origin.
    Asking,
    /// The peer's index is known.
    Known,
}

/// Packet sent and not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) op: u32,
    /// Position of the packet in its operation.
    pub(super) packet: u64,
    at: Instant,
    again: bool,
    /// The peer has it, though not all before it.
    here: bool,
    lost: bool,
}

/// Effect of an acknowledgement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    /// More may be sent, or something has to be sent again.
    pub(super) go_on: bool,
}

/// State between the endpoint and one peer.
#[derive(Debug)]
pub(super) struct RxdConn {
    /// The peer's number at the endpoint, and the core's name for it.
    pub(super) peer: u32,
    pub(super) to: fi_addr_t,
    /// Index in packets from the peer to this endpoint, and in packets to the peer.
    pub(super) index: u32,
    pub(super) remote: u32,
    pub(super) stage: HandshakeState,
    /// Identifier of this handshake, for this endpoint and for a peer with this library.
    pub(super) nonce: u64,
    pub(super) hello: Option<Hello>,
    /// The core has confirmed the peer's address as the source of its packets.
    pub(super) verified: bool,
    /// The peer is in no address vector, and counts as such.
    pub(super) unknown: bool,
    /// Content of the peer's requests received while it was being asked.
    pub(super) introduced: Option<Introduced>,

    /// Operations not started, in order; responses to the peer, independent of those; and the
    /// operation sent in part.
    pub(super) waiting: VecDeque<u32>,
    pub(super) replies: VecDeque<u32>,
    /// Refusals of the peer's requests. They wait for nothing, because acknowledgements wait for
    /// them.
    pub(super) rejects: VecDeque<u32>,
    pub(super) current: Option<u32>,
    /// Operations completely sent, and the number after their last packet.
    pub(super) sent: VecDeque<(u64, u32)>,
    /// Resources held for the peer's requests.
    pub(super) held: Held,
    /// Incomplete operations of the application.
    pub(super) ops: usize,
    /// Oldest unacknowledged number, and the next number to be assigned.
    acked: u64,
    pub(super) next: u64,
    flight: VecDeque<Sent>,
    /// Number of packets in flight received by the peer, and number of lost ones.
    here: usize,
    lost: usize,
    /// No packet in flight before this one is lost.
    first_lost: usize,
    /// Peer's window in packets, with its maximum, and the congestion window.
    window: usize,
    most: usize,
    piggybacked: usize,
    threshold: usize,
    growth: usize,
    doubles: u32,
    /// Losses of packets before this number are those of one event.
    recovered: u64,
    /// Send time of the latest packet known to have arrived.
    newest: Option<Instant>,
    /// A lost packet is to be retransmitted even with a full window. The network delivered some
    /// packets meanwhile, and the retransmission may be the only trigger of further
    /// acknowledgements.
    urgent: bool,
    round_trip: RoundTrip,
    /// Retransmission timeout before the first measurement.
    first_rto: Duration,
    /// Time of the first request to the peer.
    asked: Option<Instant>,
    retries: u32,
    /// Number of closed-port reports for the peer since its last packet.
    pub(super) refused: u32,
    /// Time of the first retransmission of data not acknowledged by the peer.
    silent_since: Option<Instant>,
    pub(super) deadline: Option<Instant>,

    /// Next expected number, and the packets received early.
    pub(super) expected: u64,
    pub(super) early: BTreeMap<u64, Box<[u8]>>,
    /// Operation being received.
    pub(super) arriving: Option<Arriving>,
    /// True if the next packet waits for space.
    pub(super) stalled: bool,
    /// An acknowledgement is due: in the next progress iteration at the latest, or in this one, or
    /// piggybacked on the application's answer.
    pub(super) ack_due: bool,
    pub(super) ack_now: bool,
    pub(super) ack_put_off: bool,
    /// Delayed-acknowledgement heuristic: tracks prompt answers of the application.
    pub(super) ack_predictor: AckPredictor,
    /// Packets received since the last acknowledgement.
    pub(super) came: usize,
    /// True if the peer was notified to stop.
    pub(super) stop_notified: bool,
    /// Refused requests of the peer, by their numbers, and the refusals not received by the peer
    /// yet. Acknowledgements do not go beyond the first.
    pub(super) holds: VecDeque<(u64, u32)>,
    pub(super) last_received: Instant,
    /// The connection is in the list of those with possibly something to send.
    pub(super) is_ready: bool,
}

impl RxdConn {
    /// Creates the connection with a peer with this core name and this index; at most `most`
    /// packets are to be in flight.
    pub(super) fn new(peer: u32, to: fi_addr_t, index: u32, most: usize, now: Instant) -> Self {
        Self {
            peer,
            to,
            index,
            remote: 0,
            stage: HandshakeState::New,
            nonce: 0,
            hello: None,
            verified: false,
            unknown: false,
            introduced: None,
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
            rejects: VecDeque::new(),
            current: None,
            sent: VecDeque::new(),
            held: Held::default(),
            ops: 0,
            acked: 0,
            next: 0,
            flight: VecDeque::new(),
            here: 0,
            lost: 0,
            first_lost: 0,
            window: most,
            most,
            piggybacked: FIRST_WINDOW,
            threshold: usize::MAX,
            growth: 0,
            doubles: 0,
            recovered: 0,
            newest: None,
            urgent: false,
            round_trip: RoundTrip::default(),
            first_rto: FIRST_RTO,
            asked: None,
            retries: 0,
            refused: 0,
            silent_since: None,
            deadline: None,
            expected: 0,
            early: BTreeMap::new(),
            arriving: None,
            stalled: false,
            ack_due: false,
            ack_now: false,
            ack_put_off: false,
            ack_predictor: AckPredictor::default(),
            came: 0,
            stop_notified: false,
            holds: VecDeque::new(),
            last_received: now,
            is_ready: false,
        }
    }

    /// Returns true if the peer has this library.
    pub(super) fn is_ours(&self) -> bool {
        self.hello.is_some()
    }

    /// Returns true if packets to the peer may carry piggybacked acknowledgements.
    #[inline]
    pub(super) fn carries(&self) -> bool {
        self.hello.is_some_and(|hello| hello.carries)
    }

    /// Returns the due acknowledgement for piggybacking on another packet, if its content permits
    /// it. It counts as sent.
    #[inline]
    pub(super) fn take_piggybacked(&mut self, window: usize) -> Option<PiggybackAck> {
        let in_order = self.early.is_empty() && !self.stalled && !self.stop_notified;
        if !self.ack_due || !in_order || !self.holds.is_empty() {
            return None;
        }
        self.ack_is_sent();
        Some(PiggybackAck { next: self.expected, window: window as u32 })
    }

    /// Marks the due acknowledgement as sent.
    #[inline]
    pub(super) fn ack_is_sent(&mut self) {
        (self.ack_due, self.ack_now, self.ack_put_off, self.came) = (false, false, false, 0);
    }

    /// Returns the number of consecutive retransmissions.
    pub(super) fn retries(&self) -> u32 {
        self.retries
    }

    /// Records a sign of life of the peer: retransmission timers return to those of a peer never
    /// silent.
    pub(super) fn lives(&mut self, now: Instant) {
        self.refused = 0;
        let silent = std::mem::take(&mut self.retries) > 0;
        if silent && !self.flight.is_empty() {
            self.arm(now);
        }
    }

    /// Returns true if the data in flight is retransmitted in time.
    #[cfg(test)]
    pub(super) fn is_in_time(&self, now: Instant) -> bool {
        self.flight.is_empty() || self.deadline.is_some_and(|at| at <= now + self.rto())
    }

    /// Returns true if nothing is in flight or queued to the peer.
    pub(super) fn is_quiet(&self) -> bool {
        self.flight.is_empty() && !self.has_waiting()
    }

    /// Returns true if anything is queued for sending.
    pub(super) fn has_waiting(&self) -> bool {
        let waits = !self.replies.is_empty() || !self.rejects.is_empty();
        self.current.is_some() || waits || !self.waiting.is_empty()
    }

    /// Returns the oldest unacknowledged number.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns the number of packets permitted to be sent now.
    pub(super) fn space(&self) -> usize {
        let most = if self.is_ours() { self.window.min(self.piggybacked) } else { self.window };
        most.saturating_sub(self.flight.len() - self.here - self.lost)
            .min((self.window.max(1) + BEYOND).saturating_sub(self.flight.len()))
    }

    /// Returns true if a refusal is queued and may be sent now. Refusals have extra space when
    /// there is none for anything else. Both sides may have a window full of packets with
    /// acknowledgements waiting for the other side's refusals.
    pub(super) fn may_refuse(&self) -> bool {
        let space = self.window + BEYOND + ICMP_ERRORS;
        !self.rejects.is_empty() && self.window > 0 && self.flight.len() < space
    }

    /// Returns true if a lost packet may be retransmitted now. One is permitted even with a closed
    /// window of the peer, because the peer's next window update may be lost as well.
    pub(super) fn may_repeat(&self) -> bool {
        let silent = self.flight.len() == self.here + self.lost;
        self.lost > 0 && (self.space() > 0 || silent || self.urgent)
    }

    /// Returns the oldest lost packet for retransmission, with its number. It counts as sent now.
    pub(super) fn take_lost(&mut self, now: Instant) -> Option<(u64, Sent)> {
        if self.lost == 0 {
            return None;
        }
        let at = (self.first_lost..self.flight.len()).find(|at| self.flight[*at].lost)?;
        let sent = &mut self.flight[at];
        (sent.lost, sent.again, sent.at) = (false, true, now);
        self.lost -= 1;
        self.first_lost = at + 1;
        self.urgent = false;
        self.arm(now);
        Some((self.acked + at as u64, self.flight[at]))
    }

    /// Returns true if any sent packet is lost.
    #[cfg(test)]
    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// A packet of an operation gets the next number, and is sent.
    pub(super) fn send_next(&mut self, op: u32, packet: u64, now: Instant) -> u64 {
        let sent = Sent { op, packet, at: now, again: false, here: false, lost: false };
        self.flight.push_back(sent);
        let seq = self.next;
        self.next += 1;
        self.arm(now);
        seq
    }

    /// Packets of these numbers were not sent: they are to be sent again.
    pub(super) fn not_sent(&mut self, numbers: Range<u64>) {
        for seq in numbers.start.max(self.acked)..numbers.end {
            self.lose((seq - self.acked) as usize);
        }
    }

    fn lose(&mut self, at: usize) {
        let sent = &mut self.flight[at];
        if !sent.here && !sent.lost {
            sent.lost = true;
            self.lost += 1;
            self.first_lost = self.first_lost.min(at);
        }
    }

    /// Returns the retransmission timeout.
    fn rto(&self) -> Duration {
        let base = self.round_trip.timeout().map_or(self.first_rto, |at| at.max(LEAST_RTO));
        base.saturating_mul(1 << self.retries.min(12)).min(MOST_RTO)
    }

    fn arm(&mut self, now: Instant) {
        // The peer may have been about to be asked for a sign, which is later.
        let at = now + self.rto();
        self.deadline = Some(self.deadline.map_or(at, |before| before.min(at)));
    }

    /// Sets the retransmission timeout before the first measurement, if it is expected to be longer than
    /// the default.
    pub(super) fn expect_rto(&mut self, rto: Option<Duration>) {
        self.first_rto = rto.map_or(FIRST_RTO, |rto| rto.clamp(FIRST_RTO, MOST_RTO));
    }

    /// Sets the time of the next request to the peer.
    pub(super) fn arm_asking(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
        self.deadline = Some(now + self.rto());
    }

    /// Records the response to the request, and returns the time since the first one.
    pub(super) fn measure_request(&mut self, now: Instant) -> Option<Duration> {
        let took = now.saturating_duration_since(self.asked.take()?);
        match self.retries {
            0 => self.round_trip.measure(took),
            // The response may be that to any of them.
            _ => self.expect_rto(Some(took)),
        }
        Some(took)
    }

    /// Returns the time limit of the peer's silence: the user's `limit`, or less if the peer's host
    /// repeatedly reports a closed port. Forged reports can have no other effect, and only on a
    /// silent peer.
    pub(super) fn hold_off(&self, limit: Option<Duration>) -> Option<Duration> {
        if self.refused < MAX_ICMP_ERRORS {
            return limit;
        }
        Some(limit.map_or(REFUSED_TIMEOUT, |limit| limit.min(REFUSED_TIMEOUT)))
    }

    /// The peer's index is known.
    pub(super) fn known(&mut self, remote: u32, hello: Option<Hello>) {
        (self.remote, self.stage, self.hello) = (remote, HandshakeState::Known, hello);
        self.introduced = None;
        (self.retries, self.refused, self.deadline) = (0, 0, None);
    }

    /// Returns true if the requesting peer is another process than the known one at its address.
    pub(super) fn is_replaced(&self, by: Introduction, now: Instant) -> bool {
        match (self.hello, by.hello) {
            (None, None) => {
                self.remote != by.remote
                    || (self.expected > 0
                        && now.saturating_duration_since(self.last_received) >= STALE)
            }
            (before, after) => before != after,
        }
    }

    /// Handles a packet of a peer with a missing response: the peer repeats it on the next request.
    /// Returns true if the handshake is complete now.
    pub(super) fn received_unanswered(&mut self) -> bool {
        match self.introduced {
            Some(Introduced::As(by))
                if self.retries() >= UNANSWERED || self.stage == HandshakeState::Waiting =>
            {
                self.known(by.remote, by.hello);
                true
            }
            _ => false,
        }
    }

    /// The network loses packets: fewer are to be under way.
    fn back_off(&mut self, to: usize) {
        self.threshold = ((self.flight.len() - self.here) / 2).max(LEAST_WINDOW);
        self.piggybacked = to.min(self.threshold);
        self.growth = 0;
        self.recovered = self.next;
    }

    /// Packets arrived: more may be under way.
    fn grow(&mut self, count: usize) {
        if self.piggybacked < self.threshold {
            self.piggybacked += count;
        } else {
            self.growth += count;
            while self.growth >= self.piggybacked {
                self.growth -= self.piggybacked;
                self.piggybacked += 1;
            }
        }
        self.piggybacked = self.piggybacked.min(self.window.max(FIRST_WINDOW));
    }

    /// Takes an acknowledgement of all before `next`. None if it cannot be one.
    pub(super) fn take_ack(&mut self, next: u64, ack: Ack, now: Instant) -> Option<Acked> {
        if next > self.next {
            return None;
        }
        if next < self.acked {
            // An old one.
            return Some(Acked::default());
        }
        let before = self.space();
        // The peer's window may exceed the number of packets stored here.
        self.window = self.most.min(ack.window as usize);
        self.lives(now);
        let count = (next - self.acked) as usize;
        let recovering = next < self.recovered;
        let had = self.here;
        if count > 0 {
            // The last says how long the network took, unless it was known before to have come.
            (0..count).for_each(|at| self.arrived(at, now, at + 1 == count));
            self.flight.drain(..count);
            self.first_lost = self.first_lost.saturating_sub(count);
            self.here -= count;
            self.acked = next;
            self.doubles = 0;
            if !recovering {
                self.grow(count);
            }
            self.deadline = None;
        } else if !self.flight.is_empty() {
            self.doubles += 1;
        }
        if !self.flight.is_empty() {
            if self.is_ours() {
                let taken = self.flight.len().min(ack.taken as usize);
                (0..taken).for_each(|at| self.arrived(at, now, false));
                self.note_here(ack.here, recovering, now);
                self.urgent |= self.lost > 0 && self.here + count > had;
            } else if self.doubles >= DOUBLES && !recovering {
                self.doubles = 0;
                (0..self.flight.len()).for_each(|at| self.lose(at));
                self.recovered = self.next;
            }
            self.arm(now);
        }
        Some(Acked { go_on: self.space() > before || self.lost > 0 || self.may_refuse() })
    }

    /// Marks a packet as received by the peer; `measures`: this is its first acknowledgement,
    /// suitable for a round-trip measurement.
    fn arrived(&mut self, at: usize, now: Instant, measures: bool) {
        let sent = &mut self.flight[at];
        if std::mem::replace(&mut sent.here, true) {
            return;
        }
        self.here += 1;
        let (lost, again, sent) = (std::mem::take(&mut sent.lost), sent.again, sent.at);
        self.lost -= usize::from(lost);
        let took = now.saturating_duration_since(sent);
        // Word of a packet that counted as lost is late; of one that was sent twice it may be word
        // of the first, if it comes sooner than word of the second can.
        let of_first = again && took < self.round_trip.mean().map_or(FIRST_RTO, |mean| mean / 2);
        if !lost && !of_first {
            self.newest = self.newest.max(Some(sent));
        }
        if measures && !lost && !again {
            self.round_trip.measure(took);
        }
    }

    /// Records the packets received by the peer after the expected one, and the packets thereby
    /// lost: those numbered well before the latest arrival, and those sent well before it.
    fn note_here(&mut self, mut bits: u64, recovering: bool, now: Instant) {
        let mut last = None;
        while bits != 0 {
            let at = bits.trailing_zeros() as usize + 1;
            bits &= bits - 1;
            if at >= self.flight.len() {
                break;
            }
            self.arrived(at, now, bits == 0);
            last = Some(at);
        }
        if last.is_none() && !recovering {
            return;
        }
        let hold_off = self.round_trip.timeout().unwrap_or(FIRST_RTO);
        let behind = last.map_or(0, |last| (last + 1).saturating_sub(REORDERED as usize));
        let overtaken = self.round_trip.mean().map_or(FIRST_RTO, |mean| mean / 2);
        let mut any = false;
        for at in 0..self.flight.len().min(JUDGED) {
            let sent = self.flight[at];
            // One that was sent again may be on its way.
            let passed = at < behind && !(sent.again && now < sent.at + hold_off);
            let late = self.newest.is_some_and(|newest| newest > sent.at + overtaken);
            if (passed || late) && !sent.here && !sent.lost {
                self.lose(at);
                any = true;
            }
        }
        if any && self.acked >= self.recovered {
            self.back_off(usize::MAX);
        }
    }

    /// Returns true if any reaction of the peer is awaited, so its silence must be limited.
    pub(super) fn waits_for_peer(&self) -> bool {
        let unsent = self.ops > 0 || self.has_waiting() || self.arriving.is_some();
        unsent || !self.early.is_empty() || !self.flight.is_empty()
    }

    /// Sets the time of a probe to the peer, if nothing in flight would cause a response.
    pub(super) fn arm_probe(&mut self, now: Instant) {
        if self.deadline.is_none() && self.stage == HandshakeState::Known && self.waits_for_peer() {
            self.deadline = Some(now + PROBE);
        }
    }

    /// Returns a probe packet, with a number not expected by the peer, if nothing is in flight. The
    /// peer responds with its expected number.
    pub(super) fn probe(&self) -> Option<RxdBase> {
        let seq = self.acked.wrapping_sub(1);
        let base = RxdBase { kind: NO_OP, flags: 0, peer: self.remote, seq };
        self.flight.is_empty().then_some(base)
    }

    /// Called when the deadline has passed. False if the peer is gone: if it was asked
    /// [`MOST_RETRIES`] times, or has been silent for `limit`.
    pub(super) fn expired(&mut self, now: Instant, limit: Option<Duration>) -> bool {
        self.deadline = None;
        if self.stage == HandshakeState::Known && !self.waits_for_peer() {
            return true;
        }
        self.retries += 1;
        if self.retries == 1 {
            self.silent_since = Some(now);
        }
        let over = limit.zip(self.silent_since).map(|(limit, since)| since + limit);
        if self.retries > MOST_RETRIES || over.is_some_and(|over| over <= now) {
            return false;
        }
        // The time is not over between two retries.
        let next = |pause| over.map_or(now + pause, |over| over.min(now + pause));
        if self.flight.is_empty() && self.stage == HandshakeState::Known {
            self.deadline = Some(next(self.rto().max(PROBE)));
            return true;
        }
        (0..self.flight.len()).for_each(|at| self.lose(at));
        if self.lost == 0 {
            if let Some(oldest) = self.flight.front_mut() {
                // The peer has all of them; its acknowledgement of taking them is lost. The peer
                // repeats it for any retransmitted packet.
                oldest.here = false;
                self.here -= 1;
                self.lose(0);
            }
        }
        if !self.flight.is_empty() {
            self.back_off(LEAST_WINDOW);
        }
        self.deadline = Some(next(self.rto()));
        true
    }

    /// Returns the bit mask of packets received after the expected one, for an acknowledgement.
    pub(super) fn early_bits(&self) -> u64 {
        let ahead = |seq: &u64| seq.checked_sub(self.expected + 1).filter(|ahead| *ahead < 64);
        self.early.keys().filter_map(ahead).fold(0, |bits, ahead| bits | 1 << ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(ours: bool) -> (RxdConn, Instant) {
        let now = Instant::now();
        let mut conn = RxdConn::new(0, 0, 1, 128, now);
        conn.known(7, ours.then_some(Hello::own(1)));
        (conn, now)
    }

    fn send(conn: &mut RxdConn, count: usize, now: Instant) -> usize {
        let space = conn.space().min(count);
        (0..space).for_each(|packet| {
            conn.send_next(0, packet as u64, now);
        });
        space
    }

    const OPEN: Ack = Ack { window: 128, here: 0, taken: 0 };

    #[test]
    fn rejections_shorten_the_timeout_until_the_peer_responds() {
        let now = Instant::now();
        let mut conn = RxdConn::new(0, 0, 1, 128, now);
        conn.refused = MAX_ICMP_ERRORS - 1;
        assert_eq!(conn.hold_off(None), None);
        conn.refused += 1;
        assert_eq!(conn.hold_off(None), Some(REFUSED_TIMEOUT));
        assert_eq!(conn.hold_off(Some(Duration::from_secs(1))), Some(Duration::from_secs(1)));
        conn.lives(now);
        assert_eq!(conn.hold_off(None), None);
    }

    #[test]
    fn the_original_gets_all_of_its_window_and_after_a_gap_all_behind_it_again() {
        let (mut conn, now) = conn(false);
        assert_eq!(send(&mut conn, 1000, now), 128);
        conn.take_ack(10, OPEN, now).unwrap();
        for _ in 0..100 {
            conn.take_ack(10, OPEN, now).unwrap();
        }
        let again: Vec<_> =
            std::iter::from_fn(|| conn.take_lost(now)).map(|(seq, _)| seq).collect();
        assert_eq!(again, (10..128).collect::<Vec<_>>(), "once, however often it says so");
        conn.take_ack(128, Ack { window: 0, here: 0, taken: 0 }, now).unwrap();
        assert_eq!(conn.space(), 0);
        assert!(conn.take_ack(129, OPEN, now).is_none());
    }

    #[test]
    fn peer_of_this_library_gets_only_lost_packets_again() {
        let (mut conn, now) = conn(true);
        assert_eq!(send(&mut conn, 1000, now), FIRST_WINDOW);
        conn.take_ack(16, OPEN, now).unwrap();
        assert_eq!(send(&mut conn, 1000, now), 2 * FIRST_WINDOW);
        // 16 and 18 are lost, and 19 to 23 came.
        conn.take_ack(16, Ack { window: 128, here: 0b111_1101, taken: 0 }, now).unwrap();
        let again: Vec<_> =
            std::iter::from_fn(|| conn.take_lost(now)).map(|(seq, _)| seq).collect();
        assert_eq!(again, [16, 18]);
        assert!(conn.piggybacked < 2 * FIRST_WINDOW, "fewer are under way after a loss");
        conn.take_ack(24, OPEN, now).unwrap();
        assert!(!conn.has_lost());
    }

    const TRIP: Duration = Duration::from_micros(100);

    /// Creates a connection with round trips of TRIP and `count` packets in flight; returns their
    /// send time as well.
    fn moving(count: usize) -> (RxdConn, Instant) {
        let (mut conn, now) = conn(true);
        assert_eq!(send(&mut conn, 1000, now), FIRST_WINDOW);
        let now = now + TRIP;
        conn.take_ack(16, OPEN, now).unwrap();
        assert_eq!(send(&mut conn, count, now), count);
        (conn, now)
    }

    fn lost(conn: &mut RxdConn, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| conn.take_lost(now)).map(|(seq, _)| seq).collect()
    }

    #[test]
    fn send_shortens_the_deadline_set_for_a_probe() {
        let (mut conn, now) = moving(1);
        conn.ops = 1;
        conn.take_ack(17, OPEN, now).unwrap();
        conn.arm_probe(now);
        assert_eq!(conn.deadline, Some(now + PROBE));
        send(&mut conn, 1, now);
        assert!(conn.deadline.unwrap() < now + PROBE / 10);
    }

    #[test]
    fn lost_packets_are_found_once_and_in_order() {
        let (mut conn, now) = moving(32);
        conn.not_sent(20..24);
        assert_eq!(conn.take_lost(now).unwrap().0, 20);
        // One before it, one behind it, and itself.
        conn.not_sent(18..19);
        conn.not_sent(30..31);
        conn.not_sent(20..21);
        conn.take_ack(18, OPEN, now).unwrap();
        assert_eq!(lost(&mut conn, now), [18, 20, 21, 22, 23, 30]);
        assert!(!conn.has_lost());
        conn.not_sent(40..41);
        conn.take_ack(25, OPEN, now).unwrap();
        assert_eq!(lost(&mut conn, now), [40]);
    }

    #[test]
    fn large_peer_window_does_not_exceed_the_in_flight_limit() {
        let (mut conn, now) = conn(false);
        conn.take_ack(0, Ack { window: 1 << 20, here: 0, taken: 0 }, now).unwrap();
        assert_eq!(send(&mut conn, 1000, now), 128);
    }

    #[test]
    fn round_trip_estimate_ignores_packets_delayed_by_loss() {
        let (mut conn, now) = moving(8);
        let now = now + TRIP;
        conn.take_ack(16, Ack { window: 128, here: 0b111_1111, taken: 0 }, now).unwrap();
        assert_eq!(lost(&mut conn, now), [16]);
        // The retransmitted packet is lost as well, and arrives long after.
        let now = now + 1000 * TRIP;
        conn.take_ack(24, OPEN, now).unwrap();
        assert!(conn.round_trip.mean().unwrap() < 2 * TRIP);
    }

    #[test]
    fn a_lost_packet_is_sent_again_though_as_many_are_under_way_as_may_be() {
        let (mut conn, now) = moving(32);
        let now = now + TRIP;
        // 17 to 19 came: fewer are to be under way than are.
        conn.take_ack(16, Ack { window: 128, here: 0b111, taken: 0 }, now).unwrap();
        assert_eq!(conn.space(), 0);
        assert!(conn.may_repeat());
        assert_eq!(conn.take_lost(now).unwrap().0, 16);
        conn.not_sent(16..17);
        assert!(!conn.may_repeat(), "one for each word of the peer's");
    }

    #[test]
    fn packets_sent_long_before_acknowledged_ones_count_as_lost() {
        let (mut conn, now) = moving(16);
        let now = now + TRIP;
        // Packet 16 and all after 19 are not acknowledged.
        conn.take_ack(16, Ack { window: 128, here: 0b111, taken: 0 }, now).unwrap();
        assert_eq!(lost(&mut conn, now), [16]);
        let now = now + TRIP;
        conn.take_ack(20, OPEN, now).unwrap();
        assert_eq!(lost(&mut conn, now), (20..32).collect::<Vec<_>>());
    }

    #[test]
    fn peer_is_probed_if_its_last_acknowledgement_is_lost() {
        let (mut conn, now) = conn(true);
        assert_eq!(send(&mut conn, 3, now), 3);
        // 1 and 2 came before 0, after which there was no room for them at once.
        conn.take_ack(0, Ack { window: 128, here: 0b11, taken: 0 }, now).unwrap();
        conn.take_ack(1, Ack { window: 0, here: 0b1, taken: 0 }, now).unwrap();
        assert!(!conn.has_lost());
        let now = conn.deadline.unwrap();
        assert!(conn.expired(now, None) && conn.may_repeat());
        assert_eq!(conn.take_lost(now).unwrap().0, 1);
    }

    #[test]
    fn a_silent_peer_is_asked_less_and_less_often_and_then_given_up() {
        let (mut conn, mut now) = conn(true);
        send(&mut conn, 1, now);
        let (first, mut tries, mut pauses) = (now, 0, Vec::new());
        loop {
            let at = conn.deadline.unwrap();
            pauses.push(at - now);
            now = at;
            if !conn.expired(now, None) {
                break;
            }
            assert!(conn.take_lost(now).is_some());
            tries += 1;
        }
        assert_eq!(tries, MOST_RETRIES);
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= MOST_RTO));
        assert!(now - first > Duration::from_secs(100));
    }

    #[test]
    fn silent_peer_is_dropped_exactly_at_the_limit() {
        let limit = Duration::from_secs(3);
        let (mut conn, mut now) = conn(true);
        send(&mut conn, 1, now);
        let first = conn.deadline.unwrap();
        loop {
            now = conn.deadline.unwrap();
            if !conn.expired(now, Some(limit)) {
                break;
            }
            assert!(conn.take_lost(now).is_some());
        }
        assert_eq!(now - first, limit);
    }

    #[test]
    fn any_sign_of_the_peer_makes_it_a_living_one() {
        let (mut conn, mut now) = conn(true);
        send(&mut conn, 2, now);
        for _ in 0..3 * MOST_RETRIES {
            now = conn.deadline.unwrap();
            assert!(conn.expired(now, None));
            conn.take_ack(0, Ack { window: 0, here: 0, taken: 0 }, now).unwrap();
        }
    }
}
