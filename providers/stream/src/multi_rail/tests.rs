//! Unit tests of `multi_rail`, over links in memory.
use super::frame::{FRAME_LEN, FrameHeader, FrameType, JoinRequest, SEGMENT_MAX};
use super::*;
use crate::engine::sim::rings::choose;
use crate::engine::sim::{RingCursor, Rings, SimRandom, StreamWorld};
use crate::settings::StreamSettings;
use crate::transport::ZeroCopyLink;
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Instant;

/// Sockets of each link.
const STREAMS: usize = 4;

/// Payload of each frame in bytes.
const SEGMENT: usize = 100;

static SEVERAL: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings {
    rails: RailSettings { streams: STREAMS, threshold: 0, segment: SEGMENT, ..Default::default() },
    ..StreamSettings::default()
});

/// Settings of links surviving the loss of their sockets, with several sockets or one.
static RESUMED: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings {
    rails: RailSettings {
        resume: 60,
        resume_memory: 1,
        long_segment: 7 * SEGMENT,
        ..SEVERAL.rails.clone()
    },
    ..StreamSettings::default()
});
static SINGLE: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings {
    rails: RailSettings { streams: 1, ..RESUMED.rails.clone() },
    ..StreamSettings::default()
});

/// Settings of links with frames of the usual sizes. The second ones are those of versions without
/// long frames.
static LONG: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings {
    rails: RailSettings { resume: 60, ..Default::default() },
    ..StreamSettings::default()
});
static OLD: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings {
    rails: RailSettings { resume_memory: 1 << 20, ..LONG.rails.clone() },
    ..StreamSettings::default()
});

type Net = MultiRail<Rings>;
type Link = RailLink<RingCursor>;

/// Two transports, with a link between them.
struct Pair {
    world: Arc<Mutex<StreamWorld>>,
    server: Net,
    client: Net,
    dialed: Link,
    accepted: Link,
    random: SimRandom,
    /// Bytes passed with zero copy.
    exposed: Vec<Vec<u8>>,
    /// All bytes are copied.
    is_copied: bool,
    sent: usize,
    received: usize,
}

fn byte(at: usize) -> u8 {
    (at * 31 + at / 251) as u8
}

/// Answer to a connection request.
const ANSWER: &[u8] = b"the answer";

fn receive_answer(link: &Link) {
    let (mut answer, mut received) = ([0; ANSWER.len()], 0);
    while received < ANSWER.len() {
        received += link.recv(&mut answer[received..]).unwrap();
    }
    assert_eq!(answer, ANSWER);
}

fn any() -> Addr {
    Addr::from(SocketAddr::from(([10, 9, 0, 1], 0)))
}

impl Pair {
    /// Connects two transports.
    fn new(seed: u64) -> Self {
        Self::with(seed, &SEVERAL)
    }

    /// Connects two transports with these settings.
    fn with(seed: u64, settings: &'static StreamSettings) -> Self {
        Self::between(seed, settings, settings)
    }

    /// Connects two transports with their own settings: the connecting one first.
    fn between(seed: u64, ours: &'static StreamSettings, theirs: &'static StreamSettings) -> Self {
        let pair = Self::unmade(seed, ours);
        pair.client.start_rails(&pair.dialed, 1, true).unwrap();
        choose(Some(theirs));
        pair.server.start_rails(&pair.accepted, 2, false).unwrap();
        pair.dialed.made();
        pair.accepted.made();
        choose(Some(ours));
        pair
    }

    /// Connects two transports with these settings. The accepting end has answered the connection
    /// request, and the connecting end has received the answer.
    fn answered(seed: u64, settings: &'static StreamSettings) -> Self {
        let pair = Self::unmade(seed, settings);
        pair.server.start_rails(&pair.accepted, 2, false).unwrap();
        assert_eq!(pair.accepted.send_answer(ANSWER), Ok(ANSWER.len()));
        pair.accepted.made();
        while pair.world().something_arrives(true) {}
        receive_answer(&pair.dialed);
        pair.client.start_rails(&pair.dialed, 1, true).unwrap();
        pair.dialed.made();
        pair
    }

    /// Connects two transports with these settings, without frames.
    fn unmade(seed: u64, settings: &'static StreamSettings) -> Self {
        choose(Some(settings));
        let world = StreamWorld::new(Instant::now(), SimRandom::new(seed));
        let [server, client] = [(); 2].map(|()| Net::new(Rings::new(&world, false)));
        let (listener, at) = server.bind(&any()).unwrap();
        let dialed = client.dial(&any(), false, &at).unwrap();
        while world.lock().unwrap().something_arrives(true) {}
        let (accepted, _) = listener.accept().unwrap();
        client.poller().add(dialed.id(), 1, Interest::READ).unwrap();
        server.poller().add(accepted.id(), 2, Interest::READ).unwrap();
        let (random, exposed) = (SimRandom::new(seed + 1), Vec::new());
        let (is_copied, sent, received) = (false, 0, 0);
        Self { world, server, client, dialed, accepted, random, exposed, is_copied, sent, received }
    }

    fn world(&self) -> MutexGuard<'_, StreamWorld> {
        self.world.lock().unwrap()
    }

    /// Sends some of the numbered bytes, in one way or another.
    fn send(&mut self) {
        let len = 1 + self.random.below(1000);
        let bytes: Vec<u8> = (self.sent..self.sent + len).map(byte).collect();
        let (head, tail) = bytes.split_at(self.random.below(len));
        let mut list = GatherList::default();
        assert!(list.push_bytes(head) && list.push_bytes(tail));
        let may_expose = !self.is_copied && self.dialed.set_zerocopy().is_ok();
        let sent = match self.random.below(if may_expose { 5 } else { 2 }) {
            0 => self.dialed.send(&bytes),
            1 => self.dialed.send_list(&mut list, CopyMode::Copied),
            2 => self.dialed.send_list(&mut list, CopyMode::MoreFollows),
            _ => {
                let sent = self.dialed.send_list(&mut list, CopyMode::ZeroCopy);
                self.exposed.push(bytes);
                sent
            }
        };
        match sent {
            Ok(n) => self.sent += n,
            Err(error) => assert_eq!(error, Error::AGAIN),
        }
    }

    /// Receives bytes, and checks them.
    fn receive(&mut self) {
        let mut buf = vec![0; 1 + self.random.below(700)];
        match self.accepted.recv(&mut buf) {
            Ok(n) => {
                assert!(n > 0, "the stream has not ended");
                let expected: Vec<u8> = (self.received..self.received + n).map(byte).collect();
                assert_eq!(buf[..n], expected, "from byte {}", self.received);
                self.received += n;
            }
            Err(error) => assert_eq!(error, Error::AGAIN),
        }
        assert_eq!(self.dialed.recv(&mut buf), Err(Error::AGAIN));
    }

    /// Runs both ends for some time; with `sends`, more is sent.
    fn run(&mut self, rounds: usize, sends: bool) {
        for _ in 0..rounds {
            if sends && self.random.one_in(2) {
                self.send();
            }
            let all = !sends;
            self.world().something_arrives(all);
            self.world().nanos += 100_000;
            if self.random.one_in(2) {
                self.client.poll(&mut Vec::new());
                self.server.poll(&mut Vec::new());
            }
            self.receive();
        }
    }

    /// Sends until all sockets are connected.
    fn connect_all(&mut self) {
        for _ in 0..1000 {
            if self.world().left().0 >= STREAMS {
                break;
            }
            self.run(10, true);
        }
        self.run(100, true);
        assert_eq!(self.world().left().0, STREAMS);
    }

    /// Receives everything sent.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.received >= self.sent && !self.world().something_arrives(true) {
                break;
            }
            // An engine passes bytes again until the link accepts them.
            if self.dialed.unacknowledged() > 0 && self.dialed.send(&[byte(self.sent)]) == Ok(1) {
                self.sent += 1;
            }
            self.run(1, false);
        }
        // One byte may be sent without being reported.
        assert!((self.sent..=self.sent + 1).contains(&self.received));
    }

    /// Cuts all links.
    fn cut(&mut self) {
        let ends = [self.dialed.local_addr().unwrap(), self.dialed.peer_addr().unwrap()];
        self.world().cut(&ends[0], &ends[1]);
    }

    /// Returns the address of the server's listener for further sockets: the last one.
    fn rail_listener(&self) -> Addr {
        self.world().listener_addrs().pop().unwrap()
    }

    /// Connects an unknown peer to an address, with these first bytes.
    fn unknown_peer(&self, to: &Addr, first: &[u8]) -> RingCursor {
        let net = Rings::new(&self.world, false);
        let link = net.dial(&any(), false, to).unwrap();
        while self.world().something_arrives(true) {}
        assert_eq!(link.send(first), Ok(first.len()));
        while self.world().something_arrives(true) {}
        link
    }
}

#[test]
fn bytes_sent_over_several_sockets_arrive_in_order() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.run(50, true);
        pair.connect_all();
        pair.run(500, true);
        pair.finish();
        assert!(pair.received > 10_000);
    }
}

#[test]
fn further_sockets_are_closed_with_the_link() {
    let mut pair = Pair::new(3);
    pair.connect_all();
    pair.finish();
    let Pair { world, server, client, dialed, accepted, .. } = pair;
    drop((dialed, accepted));
    client.poll(&mut Vec::new());
    server.poll(&mut Vec::new());
    assert_eq!(world.lock().unwrap().left(), (0, 0), "links and listeners");
}

#[test]
fn sockets_with_a_wrong_token_are_refused() {
    let mut pair = Pair::new(4);
    pair.connect_all();
    let at = pair.rail_listener();
    let join = JoinRequest { link: 0, token: [0; 16] };
    let data = FrameHeader::data(0, 1).encode();
    for first in [&join.encode()[..], &JoinRequest { link: u64::MAX, ..join }.encode(), &data] {
        let unknown_peer = pair.unknown_peer(&at, first);
        pair.run(200, true);
        let (mut answer, mut got) = (0, unknown_peer.recv(&mut [0; 64]));
        while let Ok(n @ 1..) = got {
            answer += n;
            got = unknown_peer.recv(&mut [0; 64]);
        }
        assert_eq!(
            answer,
            if first.len() > 20 { 16 } else { 0 },
            "only join requests are answered"
        );
        assert!(matches!(got, Ok(0) | Err(Error::CONNRESET)), "{got:?}");
        drop(unknown_peer);
        assert_eq!(pair.world().left().0, STREAMS);
    }
    pair.finish();
}

#[test]
fn sockets_without_a_join_request_are_bounded_and_do_not_last() {
    let mut pair = Pair::new(5);
    pair.connect_all();
    let at = pair.rail_listener();
    let unknown_peers: Vec<_> = (0..100).map(|_| pair.unknown_peer(&at, b"\x04")).collect();
    pair.run(300, true);
    let ended = |one: &&RingCursor| matches!(one.recv(&mut [0; 64]), Ok(0) | Err(Error::CONNRESET));
    let refused = unknown_peers.iter().filter(ended).count();
    assert_eq!(refused, 100 - 16, "a host has 16 sockets at most");
    pair.world().nanos += 6_000_000_000;
    pair.run(300, true);
    assert_eq!(unknown_peers.iter().filter(ended).count(), 100);
    pair.finish();
}

#[test]
fn frames_with_repeated_bytes_end_the_link() {
    let mut pair = Pair::new(6);
    // The peer sends frames of its own on the first socket.
    let first = pair.dialed.first();
    let frame = |offset| [&FrameHeader::data(offset, 4).encode()[..], b"abcd"].concat();
    assert_eq!(first.send(&[frame(0), frame(2)].concat()), Ok(40));
    while pair.world().something_arrives(true) {}
    let mut buf = [0; 8];
    assert_eq!(pair.accepted.recv(&mut buf), Ok(4));
    assert_eq!(pair.accepted.recv(&mut buf), Err(Error::IO));
    assert_eq!(pair.accepted.recv(&mut buf), Err(Error::IO), "the error is final");
    pair.sent = 0;
}

#[test]
fn frames_beyond_the_next_offset_are_not_delivered() {
    let pair = Pair::new(7);
    let first = pair.dialed.first();
    let frame = [&FrameHeader::data(u64::MAX - 4, 4).encode()[..], b"abcd"].concat();
    assert_eq!(first.send(&frame), Ok(20));
    while pair.world().something_arrives(true) {}
    assert_eq!(pair.accepted.recv(&mut [0; 8]), Err(Error::AGAIN));
}

#[test]
fn unexpected_control_frames_end_the_link() {
    for kind in [FrameType::Join, FrameType::Joined] {
        let pair = Pair::new(8);
        let payload = if kind == FrameType::Join { JoinRequest::LEN } else { 0 };
        let mut frame = FrameHeader::control(kind, payload).encode().to_vec();
        frame.resize(frame.len() + payload, 0);
        assert_eq!(pair.dialed.first().send(&frame), Ok(frame.len()));
        while pair.world().something_arrives(true) {}
        assert_eq!(pair.accepted.recv(&mut [0; 8]), Err(Error::IO), "{kind:?}");
    }
}

#[test]
fn repeated_requests_for_addresses_end_the_link() {
    let mut pair = Pair::new(9);
    pair.connect_all();
    pair.finish();
    let request = FrameHeader::control(FrameType::OfferRequest, 0).encode();
    assert_eq!(pair.dialed.first().send(&request), Ok(request.len()));
    while pair.world().something_arrives(true) {}
    assert_eq!(pair.accepted.recv(&mut [0; 8]), Err(Error::IO));
}

#[test]
fn every_byte_arrives_once_although_links_are_cut_at_any_time() {
    for (seed, settings) in (0..60).flat_map(|seed| [(seed, &*RESUMED), (seed + 100, &*SINGLE)]) {
        let mut pair = Pair::with(seed, settings);
        let mut cuts = 0;
        for _ in 0..40 {
            let rounds = 1 + pair.random.below(120);
            pair.run(rounds, true);
            if pair.random.one_in(2) {
                pair.cut();
                cuts += 1;
            }
        }
        pair.run(1000, true);
        pair.finish();
        assert!(pair.received > 2_000 && cuts > 5, "{} bytes, {cuts} cuts", pair.received);
    }
}

#[test]
fn link_resumes_although_the_first_frames_of_the_connecting_end_are_lost() {
    for seed in 0..100 {
        let settings = if seed % 2 == 0 { &SINGLE } else { &RESUMED };
        let mut pair = Pair::answered(seed, settings);
        assert_eq!(pair.accepted.send(b"at once"), Ok(7));
        pair.send();
        pair.cut();
        for _ in 0..seed % 5 {
            pair.server.poll(&mut Vec::new());
            pair.world().something_arrives(true);
            let received = pair.accepted.recv(&mut [0; 0]);
            assert!(received.is_ok() || received == Err(Error::AGAIN), "{received:?}");
        }
        let mut early = Vec::new();
        for _ in 0..10_000 {
            let mut buf = [0; 8];
            let n = pair.dialed.recv(&mut buf).unwrap_or(0);
            early.extend_from_slice(&buf[..n]);
            if early.len() >= 7 {
                break;
            }
            // An engine passes bytes again until the link accepts them.
            if pair.dialed.unacknowledged() > 0 && pair.dialed.send(&[byte(pair.sent)]) == Ok(1) {
                pair.sent += 1;
            }
            pair.client.poll(&mut Vec::new());
            pair.server.poll(&mut Vec::new());
            pair.world().something_arrives(true);
            pair.world().nanos += 100_000;
            let mut first = [0; 1];
            if let Ok(n) = pair.accepted.recv(&mut first) {
                assert_eq!(first[..n], [byte(pair.received)][..n]);
                pair.received += n;
            }
        }
        assert_eq!(early, b"at once", "seed {seed}");
        pair.run(500, true);
        pair.finish();
        assert!(pair.received > 1000 && pair.dialed.recovery().resumes > 0);
    }
}

#[test]
fn accepting_end_without_the_peers_addresses_waits_for_a_short_time() {
    let mut pair = Pair::answered(9, &SINGLE);
    pair.cut();
    let began = pair.world().nanos;
    while pair.world().something_arrives(true) {}
    drop(std::mem::replace(&mut pair.client, Net::new(Rings::new(&pair.world, false))));
    let waited = loop {
        match pair.accepted.recv(&mut [0; 8]) {
            Err(Error::AGAIN) => {}
            ended => {
                assert_eq!(ended, Err(Error::CONNRESET));
                break pair.world().nanos - began;
            }
        }
        pair.world().nanos += 100_000_000;
        pair.server.poll(&mut Vec::new());
    };
    assert!((4_900_000_000..6_000_000_000).contains(&waited), "{waited} ns");
}

#[test]
fn bytes_of_lost_sockets_not_sent_again_are_detected() {
    let messages = ["self.received", "bytes"];
    ofi_simulation::seeds::finds(ofi_simulation::InjectedFault::LostSegment, &messages, |seed| {
        let mut pair = Pair::with(seed, &SINGLE);
        for _ in 0..5 {
            pair.run(50, true);
            pair.cut();
        }
        pair.run(1000, true);
        pair.finish();
    });
}

#[test]
fn every_byte_arrives_once_although_a_link_dies_at_any_position() {
    for position in 0..500 {
        let mut pair = Pair::with(7, &SINGLE);
        pair.run(4, true);
        pair.world().die_after(0, position);
        pair.run(1000, true);
        pair.finish();
        assert!(pair.received > 1_000, "{} bytes", pair.received);
    }
}

/// Receives until the link ends. Returns the result.
fn end_of(pair: &mut Pair) -> Result<usize> {
    for _ in 0..100_000 {
        while pair.world().something_arrives(true) {}
        pair.world().nanos += 1_000_000;
        pair.client.poll(&mut Vec::new());
        match pair.dialed.recv(&mut [0; 64]) {
            Err(Error::AGAIN) => {}
            result => return result,
        }
    }
    panic!("the link does not end");
}

#[test]
fn link_ends_at_once_if_its_peer_is_gone_and_later_if_it_does_not_answer() {
    let mut pair = Pair::with(1, &SINGLE);
    pair.run(100, true);
    pair.cut();
    // The peer's listener exists, but its process makes no progress.
    let began = pair.world().nanos;
    assert_eq!(end_of(&mut pair), Err(Error::CONNRESET));
    assert!(pair.world().nanos - began > 59_000_000_000);
    assert_eq!(pair.dialed.send(b"x"), Err(Error::CONNRESET));

    let mut pair = Pair::with(2, &SINGLE);
    pair.run(100, true);
    pair.cut();
    while pair.world().something_arrives(true) {}
    let any_net = || Net::new(Rings::new(&pair.world, false));
    let (server, _) = (std::mem::replace(&mut pair.server, any_net()), ());
    let (listener, _) = server.bind(&any()).unwrap();
    let (other, _) = (pair.client.dial(&any(), false, &any()).unwrap(), listener);
    drop(server);
    pair.accepted = other;
    let began = pair.world().nanos;
    assert_eq!(end_of(&mut pair), Err(Error::CONNRESET));
    assert!(pair.world().nanos - began < 1_000_000_000);
}

#[test]
fn link_given_up_ends_if_its_next_bytes_were_on_a_lost_socket() {
    let mut pair = Pair::with(8, &SINGLE);
    pair.run(100, false);
    let mut later = FrameHeader::data(1000, 4).encode().to_vec();
    later.resize(later.len() + 4, 0);
    assert_eq!(pair.dialed.first().send(&later), Ok(later.len()));
    while pair.world().something_arrives(true) {}
    assert_eq!(pair.accepted.recv(&mut [0; 8]), Err(Error::AGAIN));
    pair.accepted.reset_when_closed();
    assert_eq!(pair.accepted.recv(&mut [0; 8]), Err(Error::CONNRESET));
}

#[test]
fn orderly_end_of_a_link_is_the_end_of_its_stream() {
    let mut pair = Pair::with(1, &RESUMED);
    pair.connect_all();
    pair.finish();
    pair.accepted.end_sending();
    assert_eq!(end_of(&mut pair), Ok(0));
    assert_eq!(pair.dialed.recv(&mut [0; 8]), Ok(0));
}

#[test]
fn bytes_stored_for_a_peer_without_acknowledgements_are_bounded() {
    let mut pair = Pair::with(1, &SINGLE);
    pair.is_copied = true;
    pair.run(20, false);
    let first = pair.dialed.peer_addr().unwrap();
    for _ in 0..3000 {
        pair.send();
        // The bytes arrive, but the peer does not read them.
        pair.world().take_all(&first);
        pair.client.poll(&mut Vec::new());
    }
    assert!(pair.sent <= 64 << 10, "{} bytes", pair.sent);
}

#[test]
fn impossible_acknowledgements_end_the_link() {
    for frame in [
        FrameHeader::position(FrameType::Ack, u64::MAX),
        FrameHeader::control(FrameType::Hello, 8),
        FrameHeader::control(FrameType::Joined, 0),
    ] {
        let mut pair = Pair::with(8, &SINGLE);
        pair.run(100, false);
        let mut frame = (frame.encode().to_vec(), frame.len);
        frame.0.resize(frame.0.len() + frame.1, 0);
        assert_eq!(pair.dialed.first().send(&frame.0), Ok(frame.0.len()));
        while pair.world().something_arrives(true) {}
        assert_eq!(pair.accepted.recv(&mut [0; 8]), Err(Error::IO));
    }
}

#[test]
fn frame_sent_in_part_is_completed_although_the_log_is_full() {
    static SMALL_LOG: LazyLock<StreamSettings> = LazyLock::new(|| StreamSettings {
        rails: RailSettings { resume_memory: 1, ..LONG.rails.clone() },
        ..StreamSettings::default()
    });
    let mut pair = Pair::with(4, &SMALL_LOG);
    pair.run(50, false);
    let bytes: Vec<u8> = (0..200 << 10).map(byte).collect();
    for _ in 0..10_000 {
        // The engine sends again when the link reports space.
        let mut events = Vec::new();
        pair.client.poll(&mut events);
        let is_writable = pair.sent == 0 || events.iter().any(|event| event.writable);
        if is_writable && pair.sent < bytes.len() {
            let mut list = GatherList::default();
            list.push_bytes(&bytes[pair.sent..]);
            pair.sent += pair.dialed.send_list(&mut list, CopyMode::Copied).unwrap_or(0);
            let both = Interest { read: true, write: true };
            pair.client.poller().modify(pair.dialed.id(), 1, both).unwrap();
        }
        pair.server.poll(&mut Vec::new());
        pair.world().something_arrives(true);
        pair.receive();
    }
    assert_eq!(pair.received, bytes.len());
}

#[test]
fn incomplete_frame_of_a_socket_does_not_delay_its_repetition_on_another_one() {
    let mut pair = Pair::with(3, &RESUMED);
    pair.connect_all();
    pair.finish();
    let offset = pair.received as u64;
    let frame = |from: u64, to: u64| {
        let header = FrameHeader::data(offset + from, (to - from) as usize);
        let bytes: Vec<u8> = (offset + from..offset + to).map(|at| byte(at as usize)).collect();
        [&header.encode()[..], &bytes].concat()
    };
    // The first socket delivers no more.
    pair.dialed.first().send(&frame(0, 90)[..FRAME_LEN + 10]).unwrap();
    let mut others = 0;
    pair.dialed.for_others(|other| {
        if others == 0 {
            other.send(&frame(0, 40)).unwrap();
            other.send(&frame(40, 60)).unwrap();
        }
        others += 1;
    });
    assert_eq!(others, STREAMS - 1);
    pair.sent = pair.received + 60;
    for _ in 0..1000 {
        while pair.world().something_arrives(true) {}
        pair.server.poll(&mut Vec::new());
        pair.receive();
    }
    assert_eq!(pair.received, pair.sent);
}

/// Sends bytes with zero copy. Returns the frames received by the socket of the peer.
fn frames_of(pair: &Pair, bytes: &[u8]) -> Vec<FrameHeader> {
    let (mut sent, mut received) = (0, Vec::new());
    let mut buf = vec![0; 4 << 10];
    loop {
        if sent < bytes.len() {
            let mut list = GatherList::default();
            list.push_bytes(&bytes[sent..]);
            sent += pair.dialed.send_list(&mut list, CopyMode::ZeroCopy).unwrap_or(0);
        }
        while pair.world().something_arrives(true) {}
        match pair.accepted.first().recv(&mut buf) {
            Ok(n) => received.extend_from_slice(&buf[..n]),
            Err(error) if sent < bytes.len() => assert_eq!(error, Error::AGAIN),
            Err(_) => break,
        }
    }
    let (mut frames, mut at) = (Vec::new(), 0);
    while at < received.len() {
        let header = FrameHeader::parse(received[at..].first_chunk().unwrap()).unwrap();
        at += FRAME_LEN + header.len;
        frames.push(header);
    }
    frames
}

#[test]
fn long_frames_are_sent_to_peers_permitting_them_only() {
    let bytes = vec![7; 3 * SEGMENT_MAX + 5];
    for (theirs, lens) in
        [(&LONG, vec![bytes.len()]), (&OLD, vec![SEGMENT_MAX, SEGMENT_MAX, SEGMENT_MAX, 5])]
    {
        let pair = Pair::between(5, &LONG, theirs);
        while pair.world().something_arrives(true) {}
        // The first frame of the peer.
        assert_eq!(pair.dialed.recv(&mut [0; 8]), Err(Error::AGAIN));
        let frames = frames_of(&pair, &bytes);
        let data = || frames.iter().filter(|frame| frame.kind == FrameType::Data);
        assert_eq!(data().map(|frame| frame.len).collect::<Vec<_>>(), lens);
        assert_eq!(data().filter(|frame| frame.wants_ack).count(), 1);
        assert!(data().next_back().is_some_and(|last| last.wants_ack));
    }
}

#[test]
fn long_frames_are_received_in_parts_and_acknowledged_as_a_whole() {
    let mut pair = Pair::between(6, &LONG, &LONG);
    pair.run(50, false);
    let bytes: Vec<u8> = (0..5 * SEGMENT_MAX).map(byte).collect();
    let mut acked = 0;
    while pair.received < bytes.len() {
        if pair.sent < bytes.len() {
            let mut list = GatherList::default();
            list.push_bytes(&bytes[pair.sent..]);
            pair.sent += pair.dialed.send_list(&mut list, CopyMode::ZeroCopy).unwrap_or(0);
        }
        pair.run(1, false);
        if pair.received < bytes.len() {
            acked += usize::from(pair.dialed.zerocopy_done().is_ok());
        }
    }
    pair.run(100, false);
    assert_eq!(acked, 0, "no part of the frame is acknowledged before its end");
    assert!(pair.dialed.zerocopy_done().is_ok());
    assert_eq!(pair.dialed.unacknowledged(), 0);
}

#[test]
fn answer_is_unconfirmed_until_the_first_frame_of_the_connecting_end() {
    let mut pair = Pair::answered(1, &SINGLE);
    assert!(pair.accepted.unconfirmed_answer().upgrade().is_some());
    pair.run(20, false);
    assert!(pair.accepted.unconfirmed_answer().upgrade().is_none());
    let pair = Pair::answered(1, &SEVERAL);
    assert!(pair.accepted.unconfirmed_answer().upgrade().is_none(), "it cannot be repeated");
}

#[test]
fn connecting_end_needs_all_first_frames_of_the_accepting_end() {
    for position in ANSWER.len().. {
        let pair = Pair::unmade(1, &SINGLE);
        pair.server.start_rails(&pair.accepted, 2, false).unwrap();
        assert_eq!(pair.accepted.send_answer(ANSWER), Ok(ANSWER.len()));
        let all = pair.accepted.unconfirmed_answer().upgrade().unwrap().repeat().len();
        pair.world().die_after(1, position);
        while pair.world().something_arrives(true) {}
        receive_answer(&pair.dialed);
        pair.client.start_rails(&pair.dialed, 1, true).unwrap();
        let received = pair.dialed.receive_first_frames();
        assert_eq!(received, if position < all { Err(Error::CONNRESET) } else { Ok(true) });
        if position == all {
            return;
        }
    }
}

/// The answer is lost with the first link, and sent again on another one. The accepting
/// end may not know of the loss.
#[test]
fn every_byte_arrives_once_after_a_repeated_answer() {
    for (seed, is_known) in [(1, true), (2, false)] {
        let mut pair = Pair::unmade(seed, &SINGLE);
        pair.server.start_rails(&pair.accepted, 2, false).unwrap();
        assert_eq!(pair.accepted.send_answer(ANSWER), Ok(ANSWER.len()));
        pair.accepted.made();
        if is_known {
            pair.world().die_after(1, 0);
        }
        pair.client.poller().remove(pair.dialed.id());
        let (listener, at) = pair.server.bind(&any()).unwrap();
        let dialed = pair.client.dial(&any(), false, &at).unwrap();
        // A lost socket sends no end.
        let _lost = std::mem::replace(&mut pair.dialed, dialed);
        pair.client.poller().add(pair.dialed.id(), 1, Interest::READ).unwrap();
        while pair.world().something_arrives(true) {}
        let (again, _) = listener.accept().unwrap();
        let answer = pair.accepted.unconfirmed_answer().upgrade().unwrap().repeat();
        assert_eq!(again.send(&answer), Ok(answer.len()));
        again.end_sending();
        while pair.world().something_arrives(true) {}
        receive_answer(&pair.dialed);
        pair.client.start_rails(&pair.dialed, 1, true).unwrap();
        assert_eq!(pair.dialed.receive_first_frames(), Ok(true));
        pair.dialed.made();
        pair.run(1000, true);
        pair.finish();
        assert!(pair.received > 1_000, "{} bytes", pair.received);
    }
}
