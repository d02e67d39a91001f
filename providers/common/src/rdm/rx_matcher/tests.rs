//! Unit tests of `rx_matcher`.
use super::super::match_queues::SPARE_RECEIVES;
use super::super::unexpected_quota::{MAX_LEFT, ONE_UNKNOWN_PEER, SURE};
use super::*;
use crate::abi::FI_COMPLETION;
use crate::abi::{FI_ADDR_UNSPEC, FI_REMOTE_CQ_DATA};
use crate::buf::{Locations, UntrustedBytes};
use crate::cq::Cq;
use crate::cq::testing::queue;
use crate::device::testing::FakeDevice;
use crate::packet_sink::{PacketSink, deliver_to};

/// Unexpected message: its bytes, if arrived, and its memory.
#[derive(Debug)]
struct Waits(Option<Box<[u8]>>, usize);

impl UnexpectedBody for Waits {
    fn bytes(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
    fn cost(&self, _len: usize) -> usize {
        self.1
    }
    const ONE_LOCK: bool = true;
}

const MOST: usize = 256 << 20;
const COST: usize = UnexpectedMessage::<Waits>::COST;

fn message(peer: u32, tag: u64, len: usize) -> Envelope {
    let tagged = true;
    Envelope { tagged, msg_tag: None, collective: false, tag, len, cq_data: None, peer }
}

fn untagged(peer: u32, len: usize) -> Envelope {
    Envelope { tagged: false, ..message(peer, 0, len) }
}

fn context(number: usize) -> Context {
    Context(number as *mut _)
}

/// Memory of receives posted by a test.
struct RecvMemory(Box<[u8; 64]>);

impl RecvMemory {
    fn new() -> Self {
        Self(Box::new([0; 64]))
    }

    fn part(&self, len: usize) -> RecvBuf {
        // SAFETY: a test owns the memory until its matching engine is dropped.
        unsafe { RecvBuf::new(self.0.as_ptr().cast_mut().cast(), len) }.unwrap()
    }
}

/// A receive of this tag from any peer, with these flags.
fn receive(buf: RecvBuf, number: usize, tag: u64, flags: u64) -> RecvOp {
    let src = FI_ADDR_UNSPEC;
    RecvOp { buf, src, tag, ignore: 0, context: context(number), flags: flags | FI_COMPLETION }
}

fn nowhere(number: usize, tag: u64, flags: u64) -> RecvOp {
    receive(RecvBuf::none(), number, tag, flags)
}

/// Matching engine of an endpoint, and the queue of its receive completions.
struct Bound {
    matcher: RxMatcher<Waits>,
    cq: Arc<Cq>,
}

/// Report: the context's number, and the length or the error.
type Reported = (usize, core::result::Result<usize, Error>);

impl Bound {
    fn new() -> Self {
        let mut matcher = RxMatcher::new(true, false, 8);
        let cq = queue();
        matcher.completions.report_to(cq.clone());
        matcher.set_owner(3);
        Self { matcher, cq }
    }

    /// Buffers a message with all bytes arrived.
    fn buffer_unexpected(&mut self, envelope: Envelope) -> u32 {
        let bytes = vec![7; envelope.len].into_boxed_slice();
        self.matcher.buffer_unexpected(envelope, Waits(Some(bytes), envelope.len))
    }

    /// Lets a message take its receive, as a provider does. False if none waits for it.
    fn arrives(&mut self, envelope: Envelope) -> bool {
        let Some(recv) = self.matcher.take_posted(&envelope) else { return false };
        self.matcher.received(&recv, &envelope);
        true
    }

    /// Posts a receive, and matches it with buffered messages, as a provider does.
    fn post(&mut self, op: RecvOp, tagged: bool) -> Result {
        let Some(op) = self.matcher.post_fast(op, tagged) else { return Ok(()) };
        let PostOutcome { seen, matched: mut found } = self.matcher.post(op, tagged)?;
        seen.iter().for_each(|seen| self.matcher.report_seen(seen));
        while let Some(MatchedMessage { queue, message, recv, owner, fills }) = found {
            assert_eq!(owner, 3);
            let buffered = self.matcher.take_buffered(queue, message).unwrap();
            if let Some(recv) = recv {
                recv.buf.copy_from(0, buffered.body.bytes().unwrap());
                self.matcher.received(&recv, &buffered.envelope);
            }
            found = fills.and_then(|pattern| self.matcher.fill(queue, pattern));
        }
        Ok(())
    }

    fn reported(&self) -> Vec<Reported> {
        let entries = std::iter::from_fn(|| self.cq.take());
        let describe = |entry: core::result::Result<Completion, CompletionError>| match entry {
            Ok(of) => (of.context.0 as usize, Ok(of.len)),
            Err(error) => (error.of.context.0 as usize, Err(error.error)),
        };
        entries.map(describe).collect()
    }
}

#[test]
fn messages_and_receives_match_oldest_first() {
    let mut bound = Bound::new();
    bound.matcher.set_name(1, 10, 11);
    for (number, tag) in [(1, 5), (2, 5), (3, 6)] {
        bound.post(nowhere(number, tag, 0), true).unwrap();
    }
    bound.post(RecvOp { src: 10, ignore: u64::MAX, ..nowhere(4, 0, 0) }, true).unwrap();
    assert!(bound.arrives(message(0, 6, 0)));
    assert!(bound.arrives(message(1, 5, 0)) && bound.arrives(message(1, 5, 0)));
    // The last receive is for one peer only.
    assert!(!bound.arrives(message(0, 7, 0)));
    assert!(!bound.arrives(untagged(1, 0)) && bound.arrives(message(1, 7, 0)));
    assert_eq!(bound.reported(), [3, 1, 2, 4].map(|number| (number, Ok(0))));
    // Messages that came before their receives.
    for len in [1, 2, 3] {
        bound.buffer_unexpected(message(len as u32 % 2, 5, len));
    }
    let memory = RecvMemory::new();
    bound.post(RecvOp { src: 10, ..receive(memory.part(8), 1, 5, 0) }, true).unwrap();
    bound.post(receive(memory.part(1), 2, 5, 0), true).unwrap();
    assert_eq!(bound.reported(), [(1, Ok(1)), (2, Err(Error::TRUNC))]);
    assert_eq!(
        (bound.matcher.senders.buffered_count(1), bound.matcher.senders.buffered_count(0)),
        (1, 0)
    );
}

#[test]
fn fast_paths_match_like_the_slow_paths() {
    let mut bound = Bound::new();
    bound.matcher.set_name(1, 10, 11);
    let memory = RecvMemory::new();
    assert!(!bound.matcher.recv_fast(1, true, 5, None, &[1][..]));
    for (number, tag) in [(1, 5), (2, 6), (3, 5)] {
        let op = receive(memory.part(2), number, tag, 0);
        assert!(bound.matcher.post_fast(op, true).is_none());
    }
    assert!(!bound.matcher.recv_fast(1, false, 0, None, &[1][..]));
    // One that is not the oldest, and one that is too short.
    for (tag, bytes) in [(6, &[2, 3][..]), (5, &[4, 5, 6])] {
        assert!(!bound.matcher.recv_fast(1, true, tag, None, bytes));
        assert!(bound.matcher.receive_whole(1, true, tag, None, bytes));
    }
    assert!(!bound.matcher.receive_whole(1, true, 6, None, &[1][..]));
    assert!(bound.matcher.recv_fast(1, true, 5, None, &[9][..]));
    assert_eq!(bound.reported(), [(2, Ok(2)), (1, Err(Error::TRUNC)), (3, Ok(1))]);
    assert_eq!(memory.0[..3], [9, 5, 0]);
    // Remote CQ data are reported by both.
    for number in [1, 2] {
        assert!(bound.matcher.post_fast(receive(memory.part(2), number, 5, 0), true).is_none());
    }
    assert!(bound.matcher.recv_fast(1, true, 5, Some(77), &[1][..]));
    assert!(bound.matcher.receive_whole(1, true, 5, Some(77), &[1][..]));
    let entry = |cq: &Cq| match cq.take() {
        Some(Ok(of)) => (of.flags, of.data, of.tag, of.len),
        _ => panic!("no success"),
    };
    let wanted = (FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA, 77, 5, 1);
    assert_eq!((entry(&bound.cq), entry(&bound.cq)), (wanted, wanted));
    // A buffered message is not overtaken.
    bound.buffer_unexpected(message(1, 5, 0));
    assert!(bound.matcher.post_fast(nowhere(1, 6, 0), true).is_some());
    assert!(bound.matcher.post_fast(nowhere(1, 6, FI_PEEK), false).is_some());
    assert!(bound.matcher.post_fast(nowhere(1, 6, 0), false).is_none());
}

#[test]
fn fast_paths_leave_memory_of_devices_to_the_slow_path() {
    let (mut bound, memory) = (Bound::new(), RecvMemory::new());
    let location = FakeDevice::new(None).location();
    let on_device = |number, flags| {
        let mut locations = Locations::default();
        locations[0] = Some(location);
        receive(memory.part(4).with_locations(locations), number, 5, flags)
    };
    for (number, flags) in [(1, 0), (2, FI_MULTI_RECV)] {
        bound.post(on_device(number, flags), true).unwrap();
        bound.post(receive(memory.part(4), 3, 5, 0), true).unwrap();
        // The receive stays the oldest one.
        for bytes in [&[9][..], &[9; 4], &[9; 8]] {
            assert!(!bound.matcher.recv_fast(1, true, 5, None, bytes));
            assert!(!bound.matcher.receive_whole(1, true, 5, None, bytes));
        }
        assert!(bound.arrives(message(1, 5, 4)));
        assert!(bound.matcher.recv_fast(1, true, 5, None, &[8][..]));
        assert_eq!(bound.reported(), [(number, Ok(4)), (3, Ok(1))]);
        assert_eq!(memory.0[..2], [8, 0]);
    }
}

#[test]
fn a_multi_receive_buffer_is_given_back_with_its_last_part() {
    let mut bound = Bound::new();
    bound.buffer_unexpected(untagged(0, 10));
    bound.buffer_unexpected(untagged(0, 20));
    let memory = RecvMemory::new();
    bound.post(receive(memory.part(64), 1, 0, FI_MULTI_RECV), false).unwrap();
    assert_eq!(memory.0[29..31], [7, 0]);
    // Two messages at a time, of which the second is here first and uses the buffer up.
    let (third, fourth) = (untagged(0, 10), untagged(0, 20));
    let [one, two] = [third, fourth].map(|envelope| bound.matcher.take_posted(&envelope).unwrap());
    assert!(bound.matcher.take_posted(&fourth).is_none());
    bound.matcher.received(&two, &fourth);
    bound.matcher.failed(&one, &third, Error::CONNRESET);
    let flags = |cq: &Cq| match cq.take() {
        Some(Ok(of)) => of.flags & FI_MULTI_RECV != 0,
        Some(Err(error)) => error.of.flags & FI_MULTI_RECV != 0,
        None => panic!("an entry is missing"),
    };
    assert_eq!([(); 4].map(|()| flags(&bound.cq)), [false, false, false, true]);
}

#[test]
fn cancelled_multi_receive_buffer_waits_for_its_current_part() {
    let mut bound = Bound::new();
    let memory = RecvMemory::new();
    bound.post(receive(memory.part(64), 1, 0, FI_MULTI_RECV), false).unwrap();
    let envelope = untagged(0, 10);
    let part = bound.matcher.take_posted(&envelope).unwrap();
    bound.matcher.cancel(context(1), false);
    let Some(Err(error)) = bound.cq.take() else { panic!("no error") };
    assert_eq!((error.error, error.of.flags & FI_MULTI_RECV), (Error::CANCELED, 0));
    bound.matcher.received(&part, &envelope);
    let Some(Ok(of)) = bound.cq.take() else { panic!("no entry") };
    assert_ne!(of.flags & FI_MULTI_RECV, 0);
    assert!(bound.matcher.take_posted(&envelope).is_none());
}

#[test]
fn a_message_can_be_looked_at_claimed_and_discarded() {
    let mut bound = Bound::new();
    let memory = RecvMemory::new();
    bound.post(nowhere(1, 5, FI_PEEK), true).unwrap();
    bound.buffer_unexpected(message(0, 5, 4));
    bound.buffer_unexpected(message(0, 5, 6));
    bound.post(receive(memory.part(2), 2, 5, FI_PEEK), true).unwrap();
    bound.post(nowhere(3, 5, FI_PEEK | FI_CLAIM), true).unwrap();
    assert_eq!(bound.reported(), [(1, Err(Error::NOMSG)), (2, Ok(4)), (3, Ok(4))]);
    assert_eq!(memory.0[..3], [7, 7, 0]);
    // No other receive finds the claimed message, and one context claims one message.
    let again = bound.post(nowhere(3, 5, FI_PEEK | FI_CLAIM), true);
    assert_eq!(again, Err(Error::INVAL));
    bound.post(nowhere(4, 5, FI_PEEK | FI_DISCARD), true).unwrap();
    bound.post(nowhere(5, 5, FI_PEEK), true).unwrap();
    assert_eq!(bound.reported(), [(4, Ok(6)), (5, Err(Error::NOMSG))]);
    bound.post(receive(memory.part(8), 3, 0, FI_CLAIM), true).unwrap();
    let Some(Ok(of)) = bound.cq.take() else { panic!("no entry") };
    assert_eq!((of.context, of.len, of.flags & FI_CLAIM), (context(3), 4, 0));
    assert_eq!(bound.post(nowhere(3, 0, FI_CLAIM), true), Err(Error::INVAL));
    // One that was claimed can be dropped.
    bound.buffer_unexpected(message(0, 6, 1));
    bound.post(nowhere(3, 6, FI_PEEK | FI_CLAIM), true).unwrap();
    bound.post(nowhere(3, 6, FI_CLAIM | FI_DISCARD), true).unwrap();
    assert_eq!(bound.reported(), [(3, Ok(1)), (3, Ok(1))]);
    assert_eq!(
        (bound.matcher.senders.buffered_count(0), bound.matcher.queues.buffered_bytes()),
        (0, 0)
    );
    let both = bound.post(nowhere(3, 6, FI_PEEK | FI_CLAIM | FI_DISCARD), true);
    assert_eq!(both, Err(Error::BADFLAGS));
    assert_eq!(bound.post(nowhere(3, 6, FI_DISCARD), true), Err(Error::BADFLAGS));
    assert_eq!(bound.post(nowhere(3, 6, FI_CLAIM), false), Err(Error::INVAL));
}

#[test]
fn claimed_but_unreceived_messages_are_discarded_at_the_end() {
    let mut bound = Bound::new();
    let id = bound.buffer_unexpected(message(0, 5, 4));
    bound.post(nowhere(3, 5, FI_PEEK | FI_CLAIM), true).unwrap();
    let left = bound.matcher.unclaim_all();
    let left: Vec<_> = left.iter().map(|of| (of.message, of.recv.is_none())).collect();
    assert_eq!(left, [(id, true)]);
    assert!(bound.matcher.unclaim_all().is_empty());
}

#[test]
fn lost_message_stays_only_if_claimed() {
    let mut bound = Bound::new();
    let [claimed, other] = [5, 6].map(|tag| bound.buffer_unexpected(message(0, tag, 4)));
    bound.post(nowhere(3, 5, FI_PEEK | FI_CLAIM), true).unwrap();
    for id in [claimed, other] {
        bound.matcher.lose(TAGGED, id, |body| *body = Waits(None, 0), Error::CONNRESET);
    }
    let here = |body: &Waits| body.bytes().is_some();
    assert_eq!(bound.matcher.queues.buffered_as(TAGGED, claimed, here), Some(false));
    assert_eq!(bound.matcher.queues.buffered_as(TAGGED, other, here), None);
    assert_eq!(
        (bound.matcher.senders.buffered_count(0), bound.matcher.queues.buffered_bytes()),
        (1, COST)
    );
}

#[test]
fn buffered_message_has_the_current_address_of_its_sender() {
    let mut bound = Bound::new();
    for peer in [0, 1] {
        bound.buffer_unexpected(message(peer, 5, peer as usize + 1));
    }
    bound.matcher.set_name(1, 10, 11);
    bound.matcher.set_name(0, 20, 20);
    assert_eq!((bound.matcher.senders.name_of(1), bound.matcher.senders.id_of(1)), (10, 11));
    let memory = RecvMemory::new();
    let of = |src, number| RecvOp { src, ..receive(memory.part(8), number, 5, 0) };
    bound.matcher.forget(0);
    bound.post(of(20, 1), true).unwrap();
    bound.post(of(10, 2), true).unwrap();
    let Some(Ok(entry)) = bound.cq.take() else { panic!("no entry") };
    assert_eq!((entry.context, entry.len, entry.src), (context(2), 2, 11));
    // No peer has the name 20 any more.
    assert!(bound.cq.take().is_none());
    assert_eq!(bound.matcher.senders.buffered_count(0), 1);
}

#[test]
fn receive_is_cancelled_if_no_message_can_arrive() {
    let mut bound = Bound::new();
    bound.buffer_unexpected(untagged(0, 4));
    bound.matcher.end();
    let memory = RecvMemory::new();
    bound.post(receive(memory.part(64), 1, 0, FI_MULTI_RECV), false).unwrap();
    bound.post(nowhere(2, 5, 0), true).unwrap();
    let cancelled = Err(Error::CANCELED);
    assert_eq!(bound.reported(), [(1, Ok(4)), (1, cancelled), (2, cancelled)]);
}

#[test]
fn unknown_peers_message_carries_its_address_on_request() {
    let mut bound = Bound::new();
    bound.matcher.choose_sources(false, true);
    bound.matcher.senders.set_addr(0, || b"here".to_vec());
    bound.matcher.set_name(1, 10, 10);
    for number in [1, 2] {
        bound.post(nowhere(number, 5, 0), true).unwrap();
    }
    assert!(bound.matcher.receive_whole(0, true, 5, None, &[][..]));
    assert!(bound.matcher.receive_whole(1, true, 5, None, &[][..]));
    let Some(Err(error)) = bound.cq.take() else { panic!("no error") };
    assert_eq!((error.error, &error.data[..]), (Error::ADDRNOTAVAIL, &b"here"[..]));
    assert_eq!(bound.reported(), [(2, Ok(0))]);
}

#[test]
fn endpoints_share_receives_and_leave_with_their_own_messages() {
    let mut context_of_all = Bound::new();
    let queues = context_of_all.matcher.queues.expose();
    let mut endpoints = [1, 2].map(|owner| {
        let mut bound = Bound::new();
        bound.matcher.set_owner(owner);
        bound.matcher.queues.join(queues.clone());
        bound.matcher.set_name(0, u64::from(owner) * 10, 0);
        bound
    });
    let host = &mut context_of_all.matcher;
    assert!(host.post_fast(nowhere(1, 5, 0), true).is_none());
    assert!(endpoints[1].matcher.recv_fast(0, true, 5, None, &[][..]));
    assert_eq!(endpoints[1].reported(), [(1, Ok(0))]);
    for (at, tag) in [(0, 5), (1, 5), (0, 6)] {
        endpoints[at].buffer_unexpected(message(0, tag, 4));
    }
    assert_eq!(host.queues.buffered_bytes(), 3 * (4 + COST));
    // The peer of one endpoint is not that of the other, though it has the same number.
    let found = host.post(RecvOp { src: 20, ..nowhere(2, 5, 0) }, true).unwrap();
    let matched = found.matched.unwrap();
    assert_eq!((matched.owner, matched.queue), (2, TAGGED));
    let claimed = host.post(nowhere(3, 6, FI_PEEK | FI_CLAIM), true).unwrap();
    assert_eq!(claimed.seen.map(|seen| seen.owner), Some(1));
    let [one, two] = &mut endpoints;
    one.matcher.leave();
    assert!(one.matcher.queues.is_shared() && !one.matcher.recv_fast(0, true, 5, None, &[][..]));
    assert_eq!(host.post(nowhere(3, 0, FI_CLAIM), true).err(), Some(Error::INVAL));
    assert_eq!(
        (one.matcher.senders.buffered_count(0), two.matcher.senders.buffered_count(0)),
        (0, 1)
    );
    assert_eq!(host.queues.buffered_bytes(), 4 + COST);
    // Receives of the context stay until it is closed itself.
    assert!(host.post_fast(nowhere(4, 5, 0), false).is_none());
    assert!(two.matcher.cancel_all().is_empty() && host.cancel_all().is_empty());
    assert_eq!(context_of_all.reported(), [(4, Err(Error::CANCELED))]);
}

/// Fills a matching engine with messages of a peer and returns the number accepted.
fn fill(matcher: &mut RxMatcher<Waits>, peer: u32, len: usize) -> usize {
    let mut count = 0;
    while matcher.may_buffer(&message(peer, count as u64, len), MOST) {
        matcher.buffer_unexpected(message(peer, count as u64, len), Waits(None, len));
        count += 1;
    }
    count
}

fn named() -> RxMatcher<Waits> {
    let mut matcher = RxMatcher::new(false, false, 64);
    (0..100).for_each(|peer| matcher.set_name(peer, peer.into(), peer.into()));
    matcher
}

#[test]
fn one_peer_gets_most_of_the_buffer_and_others_a_minimum() {
    let mut matcher = named();
    assert!(fill(&mut matcher, 1, 1000) * 1000 > MOST / 2);
    for peer in 2..100 {
        assert!(matcher.may_buffer(&message(peer, 0, 64), MOST), "peer {peer}");
        fill(&mut matcher, peer, 1000);
    }
    assert!(matcher.queues.buffered_bytes() <= MOST + 100 * SURE);
    // A hundred thousand small messages of a peer are nothing special.
    const { assert!(COST * 100_000 < MOST / 2) };
}

#[test]
fn unknown_peers_leave_buffer_space_to_known_peers() {
    let mut matcher = RxMatcher::new(false, false, 64);
    for peer in 0..1000 {
        fill(&mut matcher, peer, 8);
        assert!(matcher.senders.get(peer).bytes <= MOST / 256);
    }
    assert!(matcher.queues.buffered_bytes() <= MOST / 4);
    matcher.set_name(2000, 1, 1);
    let large = |peer| message(peer, 0, 100 << 20);
    assert!(matcher.may_buffer(&large(2000), MOST) && !matcher.may_buffer(&large(0), MOST));
    matcher.set_name(0, 7, 7);
    assert!(matcher.may_buffer(&large(0), MOST), "it has a name now");
    matcher.senders.trust_all();
    assert!(matcher.may_buffer(&large(1), MOST));
}

#[test]
fn known_peer_at_the_limit_blocks_unknown_ones_without_eviction() {
    let mut matcher = named();
    let (named, unknown_peer) = (message(1, 0, MOST), message(2000, 0, 8));
    fill(&mut matcher, 1, 1000);
    while !matcher.may_buffer(&message(1, 0, 1000), MOST) && matcher.may_buffer(&unknown_peer, MOST)
    {
        matcher.buffer_unexpected(message(1, 0, 100_000), Waits(None, 100_000));
    }
    assert!(!matcher.may_buffer(&named, MOST) && !matcher.may_buffer(&unknown_peer, MOST));
    assert!(
        !matcher.is_excluded_by_unknown_peers(&named, MOST),
        "no unknown peer is dropped for it"
    );
    assert!(
        !matcher.is_excluded_by_unknown_peers(&unknown_peer, MOST),
        "that others go would not help"
    );
    let mut matcher = RxMatcher::new(false, false, 64);
    for peer in 0..1000 {
        fill(&mut matcher, peer, 8);
    }
    assert!(
        !matcher.may_buffer(&unknown_peer, MOST)
            && matcher.is_excluded_by_unknown_peers(&unknown_peer, MOST)
    );
    let large = message(2000, 0, MOST / ONE_UNKNOWN_PEER);
    assert!(!matcher.is_excluded_by_unknown_peers(&large, MOST), "it would not be kept anyway");
}

#[test]
fn unknown_peers_with_larger_quota_leave_half_to_others() {
    const MOST: usize = 4_000_000;
    let mut matcher = named();
    let fill = |matcher: &mut RxMatcher<Waits>, peer| {
        let mut buffered = Vec::new();
        while !matcher.is_too_much(&message(peer, 0, 0), MOST) && buffered.len() < 5_000 {
            buffered.push(matcher.buffer_unexpected(message(peer, 0, 0), Waits(None, 3000)));
        }
        buffered
    };
    let (one, two) = (fill(&mut matcher, 100), fill(&mut matcher, 101));
    assert!(one.len() > two.len() && one.len() < 600 && two.len() > 100, "{}", one.len());
    assert_eq!(fill(&mut matcher, 2).len(), 5_000);
    assert!(matcher.queues.look(0, |queues| queues.quota().of_unknown_peers()) <= MOST);
    assert_eq!(matcher.buffered_from(101).len(), two.len());
    // Messages of a peer with an address are no longer an unknown peer's, and taken ones are not
    // counted.
    matcher.set_name(100, 200, 200);
    assert_eq!(
        matcher.queues.look(0, |queues| queues.quota().of_unknown_peers()),
        matcher.senders.get(101).bytes
    );
    for message in two {
        matcher.change(TAGGED, message, |body| body.1 = 5);
        assert!(matcher.take_buffered(TAGGED, message).is_some());
    }
    assert_eq!(
        (
            matcher.queues.look(0, |queues| queues.quota().of_unknown_peers()),
            matcher.senders.get(101).bytes
        ),
        (0, 0)
    );
    matcher.forget(100);
    assert_eq!(
        matcher.queues.look(0, |queues| queues.quota().of_unknown_peers()),
        matcher.senders.get(100).bytes
    );
}

#[test]
fn all_of_a_sender_and_nothing_else_is_found_without_a_look_at_others() {
    let mut matcher = named();
    let ids: Vec<_> = (0..100)
        .map(|n| matcher.buffer_unexpected(message(n % 3, n.into(), 0), Waits(None, 0)))
        .collect();
    // Some go, from the ends and the middle of the sender's list.
    for gone in [0, 3, 51, 99] {
        assert!(matcher.take_buffered(TAGGED, ids[gone]).is_some());
    }
    let left: Vec<_> = matcher.buffered_from(0).into_iter().map(|(_, id)| id).collect();
    let wanted: Vec<_> =
        (0..100).step_by(3).filter(|n| ![0, 3, 51, 99].contains(n)).map(|n| ids[n]).collect();
    assert_eq!(left, wanted);
    for peer in 0..3 {
        for (queue, id) in matcher.buffered_from(peer) {
            matcher.take_buffered(queue, id);
        }
        assert!(matcher.buffered_from(peer).is_empty() && !matcher.senders.has_buffered_from(peer));
    }
    assert_eq!(matcher.queues.buffered_bytes(), 0);
}

#[test]
fn a_message_is_collected_only_while_receives_are_few_and_as_long_as_one_was() {
    let mut matcher = named();
    assert_eq!(matcher.queues.collects(10, MOST), Ok(false), "no receive was there yet");
    let memory = RecvMemory::new();
    let post = |matcher: &mut RxMatcher<Waits>| {
        assert!(matcher.post_fast(receive(memory.part(64), 1, 0, 0), false).is_none());
    };
    post(&mut matcher);
    assert_eq!(matcher.queues.collects(64, MOST), Ok(true));
    assert_eq!(matcher.queues.buffered_bytes(), 64 + COST);
    assert_eq!(matcher.queues.collects(65, MOST), Err(Error::PROTO));
    assert_eq!(matcher.queues.collects(64, 64 + COST), Ok(false), "there is no room for another");
    matcher.queues.collected(64);
    assert_eq!(matcher.queues.buffered_bytes(), 0);
    (0..SPARE_RECEIVES).for_each(|_| post(&mut matcher));
    assert_eq!(matcher.queues.collects(64, MOST), Ok(false));
}

#[test]
fn disconnected_unknown_peers_are_listed_in_order_of_leaving() {
    let mut matcher = named();
    matcher.set_owner(3);
    for peer in [100, 101, 5] {
        matcher.buffer_unexpected(message(peer, 0, 0), Waits(None, 0));
    }
    // One with a name, and one that left nothing, are not to make room.
    for peer in [5, 102, 101, 100] {
        assert!(!matcher.unknown_peer_left(peer));
    }
    let mut left = std::iter::from_fn(|| matcher.queues.oldest_left());
    assert!(left.by_ref().eq([(3, 101), (3, 100)]));
    assert!(
        (0..=MAX_LEFT)
            .map(|_| matcher.unknown_peer_left(100))
            .eq((0..=MAX_LEFT).map(|n| n == MAX_LEFT))
    );
}

/// Returns a sink passing the messages of a queue to `take`.
fn sink_of<'a, F>(cq: &Cq, take: &'a mut F) -> PacketSink<'a>
where
    F: FnMut(fi_addr_t, UntrustedBytes<'_>) -> bool,
{
    let context = std::ptr::from_mut(take).cast();
    // SAFETY: the closure outlives the sink, which alone uses it.
    unsafe { PacketSink::new(std::ptr::from_ref(cq).cast(), deliver_to::<F>, context) }
}

#[test]
fn packet_sink_takes_messages_of_a_peer_while_none_of_them_waits() {
    let (mut bound, memory) = (Bound::new(), RecvMemory::new());
    let mut came = Vec::new();
    let mut take = |source, bytes: UntrustedBytes<'_>| {
        came.push((source, bytes.len()));
        bytes.len() > 3
    };
    let cq = bound.cq.clone();
    let sink = sink_of(&cq, &mut take);
    let arrives =
        |bound: &mut Bound, peer, len| bound.matcher.receive_packet(&sink, peer, &[0; 8][..len]);
    bound.matcher.set_name(1, 11, 21);
    assert!(arrives(&mut bound, 1, 8));
    assert!(!arrives(&mut bound, 1, 3), "the sink declines it");
    bound.buffer_unexpected(untagged(1, 4));
    assert!(!arrives(&mut bound, 1, 7), "an earlier message of the peer waits for a receive");
    assert!(arrives(&mut bound, 2, 6));
    bound.post(receive(memory.part(8), 5, 0, 0), false).unwrap();
    assert!(!arrives(&mut bound, 2, 7), "the entry of an earlier message is unread");
    assert_eq!(bound.reported(), [(5, Ok(4))]);
    assert!(arrives(&mut bound, 1, 5));
    assert_eq!(came, [(21, 8), (21, 3), (FI_ADDR_NOTAVAIL, 6), (21, 5)]);
    let mut never = |_, _: UntrustedBytes<'_>| unreachable!("it is the sink of another queue");
    let other = queue();
    let sink = sink_of(&other, &mut never);
    assert!(!bound.matcher.receive_packet(&sink, 1, &[0; 8][..]));
}
