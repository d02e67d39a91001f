//! Two endpoints, or one communicating with itself, for cases not drawn by a simulation: refused
//! accesses, and packets never sent by a peer of this library.
use super::super::conn::HandshakeState;
use super::super::half_open::Introduction;
use super::super::op::{RxdTx, TxData};
use super::super::{RxdEngine, RxdEngineEp, RxdIdentity, RxdLimits};
use super::{LossyNet, LossyPorts, NetPlan, SharedNet, lock};
use crate::config::config;
use crate::wire::{
    BASE_LEN, Cts, DATA, DATA_HEAD, DATA_READ, DELIVER, DELIVERED, DataHead, Hello, MAX_HEAD, MSG,
    NO_OP, READ_REQ, REJECT_REASON, RTS_LEN, Rts, RxdBase, RxdOperation, WRITE,
};
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_COMPLETION, FI_MSG, FI_READ, FI_RMA, FI_SEND,
    FI_SOCKADDR_IN, FI_WRITE, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{Bindings, RecvOp, RemoteSegments};
use ofi_provider::buf::RecvBuf;
use ofi_provider::cq::Context;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::Error;
use ofi_provider::lock::Level;
use ofi_provider::mr::MrTable;
use ofi_simulation::{SimRandom, address, here};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const PACKET: usize = 256;

struct Pair {
    net: SharedNet,
    engines: Vec<Arc<RxdEngine>>,
}

impl Pair {
    /// Creates `count` endpoints, over a network losing one in `loses` packets.
    fn new(count: usize, loses: usize) -> Self {
        Self::over(count, NetPlan { loses, notifies: true, ..NetPlan::CALM })
    }

    /// Creates `count` endpoints, over a network with this plan.
    fn over(count: usize, plan: NetPlan) -> Self {
        let net = Arc::new(Mutex::new(LossyNet {
            random: SimRandom::new(1),
            plan,
            under_way: VecDeque::new(),
            here: BTreeMap::new(),
            next_port: 40_000,
            lost: 0,
        }));
        let open = |node: usize| {
            let limits = RxdLimits {
                format: FI_SOCKADDR_IN as u32,
                packet: PACKET,
                config: config().clone(),
                regions: Arc::new(MrTable::new(0)),
            };
            let ports = Box::new(LossyPorts(net.clone()));
            let engine = RxdEngine::new(limits, ports, Level::Serialized).unwrap();
            let local = Addr::Ip(address(node, 0));
            let attr = RdmAttr { tx_size: 1024, directed: true, ..RdmAttr::default() };
            assert_eq!(engine.add_ep(RxdIdentity { local, attr, own: None }), 0);
            engine.enable(0, &Bindings::default()).unwrap();
            engine
        };
        let engines = (0..count).map(open).collect();
        Self { net, engines }
    }

    fn with<R>(&self, node: usize, each: impl FnOnce(&mut RxdEngineEp) -> R) -> R {
        each(self.engines[node].lock().ep(0))
    }

    /// Returns the connection of an endpoint to another, created if there is none.
    fn conn(&self, node: usize, to: usize) -> u32 {
        self.with(node, |ep| {
            let addr = Addr::Ip(address(to, 0)).identity();
            let peer = ep.peers.peer_at(None, addr, &mut ep.matcher);
            match ep.peers[peer].conn {
                ofi_provider::slab::NONE => ep.new_conn(peer).unwrap(),
                conn => conn,
            }
        })
    }

    /// Has two endpoints get to know each other.
    fn handshake(&mut self, node: usize, to: usize) {
        for (node, to) in [(node, to), (to, node)] {
            let conn = self.conn(node, to);
            if self.with(node, |ep| ep.conns[conn].stage) != HandshakeState::Known {
                self.with(node, |ep| ep.ask(conn));
                self.go_on(1000);
            }
            assert_eq!(self.with(node, |ep| ep.conns[conn].stage), HandshakeState::Known);
        }
    }

    /// Delivers all packets in flight and runs a progress iteration of each endpoint, `times`
    /// times.
    fn go_on(&mut self, times: usize) {
        for _ in 0..times {
            while lock(&self.net).deliver() {}
            for engine in &self.engines {
                let mut state = engine.lock();
                state.poll_once();
                state.check();
            }
            here::pass(1_000_000);
        }
    }

    /// Goes on until nothing is left to do, or for 200 seconds.
    fn finish(&mut self) {
        for _ in 0..20000 {
            let all = 0..self.engines.len();
            if all.clone().all(|node| self.with(node, |ep| ep.tx.ops().is_empty())) {
                break;
            }
            self.go_on(10);
        }
    }

    /// Starts an operation of so many bytes.
    fn start(&self, node: usize, to: usize, kind: u8, len: usize, key: u64) -> u32 {
        let conn = self.conn(node, to);
        self.with(node, |ep| {
            let flags = match kind {
                MSG => FI_SEND | FI_MSG,
                WRITE => FI_RMA | FI_WRITE,
                _ => FI_RMA | FI_READ,
            };
            let data = TxData::Own(vec![7; if kind == READ_REQ { 0 } else { len }].into());
            let mut tx = RxdTx::new(conn, Context::NULL, flags, FI_COMPLETION, kind, data);
            tx.answer = (kind == READ_REQ).then(RecvBuf::none);
            let head = RxdOperation {
                kind,
                flags: 0,
                tag: 0,
                cq_data: None,
                total: len as u64,
                packets: 0,
                tx_id: 0,
                segments: match kind {
                    MSG => RemoteSegments::EMPTY,
                    _ => RemoteSegments::one(0, len as u64, key),
                },
                atomic: (0, 0),
            };
            let len = if kind == READ_REQ { 0 } else { len };
            ep.start(tx, head, len, FI_COMPLETION).unwrap();
            conn
        })
    }

    /// Adds an endpoint's peer to its address vector, so it is known.
    fn name(&self, node: usize, peer: usize) {
        let addr = Addr::Ip(address(peer, 0));
        self.with(node, |ep| ep.name_inserted(peer as fi_addr_t, &addr));
    }

    /// Posts a receive of zero length for a peer's message.
    fn post(&self, node: usize, src: fi_addr_t) {
        let (buf, context) = (RecvBuf::none(), Context::NULL);
        let op = RecvOp { buf, src, context, tag: 0, ignore: 0, flags: 0 };
        self.with(node, |ep| assert!(ep.matcher.post(op, false).is_ok()));
    }

    /// Injects the next packet in sequence to an endpoint, as if sent by another.
    fn inject(&mut self, from: usize, to: usize, kind: u8, head: DataHead) {
        let conn = self.conn(to, from);
        let base = self.with(to, |ep| {
            let conn = &ep.conns[conn];
            RxdBase { kind, flags: 0, peer: conn.index, seq: conn.expected }
        });
        let mut packet = [0; DATA_HEAD + 8];
        base.write(&mut packet);
        head.write(&mut packet);
        lock(&self.net).send(address(from, 0), address(to, 0), &packet);
        self.go_on(1);
    }

    /// Injects a packet to an endpoint from an unknown address, or from another endpoint's.
    fn inject_from(&mut self, from: usize, to: usize, packet: &[u8]) {
        lock(&self.net).send(address(from, 0), address(to, 0), packet);
        self.go_on(1);
    }

    /// Takes the packets to an address without an endpoint off the network.
    fn taken_at(&self, node: usize) -> Vec<Vec<u8>> {
        let mut net = lock(&self.net);
        let all = std::mem::take(&mut net.under_way);
        let (its, others) = all.into_iter().partition(|(_, to, _)| *to == address(node, 0));
        net.under_way = others;
        let its: VecDeque<(SocketAddr, SocketAddr, Vec<u8>)> = its;
        its.into_iter().map(|(_, _, packet)| packet).collect()
    }

    /// Injects a request of this peer from an address, naming another, or the same.
    fn request(&mut self, from: usize, named: usize, to: usize, by: Introduction) {
        let source = Addr::Ip(address(named, 0)).to_bytes();
        let mut packet = Rts::packet(by.remote.into(), &source, Hello::own(0));
        match by.hello {
            Some(hello) => {
                packet = Rts::packet(by.remote.into(), &source, hello);
            }
            None => {
                packet[2..4].fill(0);
                packet[RTS_LEN - Hello::LEN..].fill(0);
            }
        }
        self.inject_from(from, to, &packet);
    }

    /// Returns the index assigned by an endpoint to a peer without an endpoint.
    fn index_for(&mut self, node: usize, to: usize, nonce: u64) -> u32 {
        self.request(node, node, to, Introduction { remote: 3, hello: Some(Hello::own(nonce)) });
        let packet = self.taken_at(node).pop().unwrap();
        Cts::read(&packet).unwrap().index as u32
    }

    /// Injects operation packets of a peer without an endpoint, in this range of numbers, each with
    /// one byte.
    fn inject_ops(
        &mut self,
        from: usize,
        to: usize,
        op: &RxdOperation,
        index: u32,
        seqs: Range<u64>,
    ) {
        for seq in seqs {
            let mut head = [0; MAX_HEAD];
            let len = op.write(&mut head);
            let mut packet = vec![0; BASE_LEN];
            RxdBase { kind: op.kind, flags: op.flags, peer: index, seq }.write(&mut packet);
            packet.extend_from_slice(&head[..len]);
            packet.extend_from_slice(&[7][..usize::from(op.kind != READ_REQ)]);
            lock(&self.net).send(address(from, 0), address(to, 0), &packet);
        }
        // Some come in each turn.
        let arrived = |pair: &Self| lock(&pair.net).here.values().all(|here| here.is_empty());
        self.go_on(1);
        while !arrived(self) {
            self.go_on(1);
        }
    }

    /// Returns the peer's number for an endpoint's oldest operation.
    fn number(&self, node: usize) -> u32 {
        self.with(node, |ep| ep.tx.ops().iter().next().unwrap().1.tx_id)
    }

    /// Returns the number of incomplete operations.
    fn left(&self, node: usize) -> usize {
        self.with(node, |ep| ep.tx.own())
    }
}

#[test]
fn large_message_without_receive_does_not_block_other_messages() {
    let mut pair = Pair::new(3, 0);
    pair.handshake(1, 0);
    pair.handshake(2, 0);
    pair.name(0, 1);
    pair.name(0, 2);
    pair.start(1, 0, MSG, 8 << 20, 0);
    pair.go_on(1000);
    let buffered = pair.with(0, |ep| ep.matcher.queues.buffered_bytes());
    assert_eq!(pair.left(1), 1, "there is no room for all of it");
    assert!(buffered > 1 << 20, "{buffered} bytes of it are kept");
    pair.post(0, 2);
    pair.start(2, 0, MSG, 0, 0);
    pair.go_on(100);
    assert_eq!(pair.left(2), 0, "a message meets its receive while {buffered} bytes are kept");
    assert!(buffered <= 3 << 20, "{buffered} bytes are kept");
}

#[test]
fn failing_response_sends_exactly_one_rejection() {
    let mut pair = Pair::new(2, 0);
    pair.handshake(0, 1);
    let back = pair.conn(1, 0);
    let rejects = pair.with(1, |ep| {
        let (data, space) = (TxData::Region(RemoteSegments::one(0, 8, BAD)), PACKET - DATA_HEAD);
        ep.tx.start_answer(&mut ep.conns, RxdTx::of_peer(back, 77, data, 10 * space, space));
        ep.poll_once();
        let packets = lock(&pair.net);
        let kinds = packets.under_way.iter().map(|(_, _, packet)| packet[1]);
        kinds.filter(|kind| *kind == REJECT_REASON).count()
    });
    assert_eq!(rejects, 1);
    pair.finish();
}

#[test]
fn resent_packets_of_a_response_without_data_are_rejections() {
    let (data, space) = (TxData::Region(RemoteSegments::one(0, 8, BAD)), PACKET - DATA_HEAD);
    let mut answer = RxdTx::of_peer(0, 77, data, 10 * space, space);
    let regions = MrTable::new(0);
    let mut kind = |packet, again| {
        let base = RxdBase { kind: DATA_READ, flags: 0, peer: 0, seq: packet };
        let mut built = [0; PACKET];
        answer.build(&regions, (packet, again), base, true, &mut built);
        built[1]
    };
    // The peer may have the first of these, and does not look at it; the second is lost.
    assert_eq!([kind(2, true), kind(5, true)], [REJECT_REASON; 2]);
    assert_eq!([kind(7, false), kind(8, false)], [REJECT_REASON, NO_OP]);
    assert_eq!(kind(8, true), REJECT_REASON);
}

#[test]
fn rejected_operation_does_not_affect_the_next_one() {
    let mut pair = Pair::new(2, 0);
    pair.handshake(0, 1);
    pair.start(0, 1, READ_REQ, 0, BAD);
    let number = pair.number(0);
    pair.finish();
    pair.start(0, 1, MSG, 2000, 0);
    pair.inject(1, 0, REJECT_REASON, DataHead { tx_id: number, rx_id: 1, segment: u64::MAX });
    let errors: Vec<_> = pair.with(0, |ep| ep.tx.ops().iter().map(|(_, op)| op.error).collect());
    assert_eq!(errors, [None]);
}

#[test]
fn unsolicited_response_is_ignored_and_contradiction_disconnects() {
    let mut pair = Pair::new(2, 0);
    pair.handshake(0, 1);
    let expected =
        |pair: &Pair, conn| pair.with(0, |ep| ep.conns.get(conn).map(|conn| conn.expected));
    let conn = pair.conn(0, 1);
    pair.inject(1, 0, DATA_READ, DataHead { tx_id: 77, rx_id: 0, segment: 0 });
    pair.inject(1, 0, REJECT_REASON, DataHead { tx_id: 77, rx_id: 1, segment: u64::MAX });
    assert_eq!(expected(&pair, conn), Some(2), "packets of numbers 0 and 1");
    pair.inject(1, 0, DATA, DataHead { tx_id: 0, rx_id: 0, segment: 0 });
    assert_eq!(expected(&pair, conn), None, "data of no operation");
}

#[test]
fn an_answer_from_elsewhere_does_not_end_a_connection() {
    let mut pair = Pair::new(2, 0);
    pair.handshake(0, 1);
    let conn = pair.conn(0, 1);
    pair.start(1, 0, MSG, 8, 0);
    pair.go_on(10);
    let (index, verified) = pair.with(0, |ep| (ep.conns[conn].index, ep.conns[conn].verified));
    assert!(verified);
    let hello = Some(Hello::own(3));
    let (packet, len) = Cts { of: index.into(), index: 9, hello }.packet();
    pair.inject_from(7, 0, &packet[..len]);
    assert_eq!(pair.with(0, |ep| ep.conns.get(conn).map(|conn| conn.index)), Some(index));
}

#[test]
fn peer_cannot_complete_an_operation_still_being_sent() {
    let mut pair = Pair::new(2, 0);
    pair.handshake(0, 1);
    pair.start(0, 1, MSG, 100_000, 0);
    pair.with(0, |ep| ep.tx.ops_mut().iter_mut().for_each(|(_, op)| op.deliver = true));
    let tx_id = pair.number(0);
    pair.inject(1, 0, DELIVERED, DataHead { tx_id, rx_id: 0, segment: 0 });
    assert_eq!(pair.left(0), 1);
    // A retransmitted packet of a finished operation contains nothing of others' packets.
    let over = RxdTx::new(0, Context::NULL, 0, 0, MSG, TxData::None);
    let mut space = [1; 8];
    over.copy(&MrTable::new(0), 0, &mut space).unwrap();
    assert_eq!(space, [0; 8]);
}

#[test]
fn ended_connection_is_in_no_waiting_list() {
    let mut pair = Pair::new(2, 0);
    pair.handshake(0, 1);
    let conn = pair.conn(0, 1);
    pair.with(0, |ep| {
        ep.conns[conn].stalled = true;
        ep.conns.stalled_mut().push(conn);
        ep.drop_conn(conn, Error::CONNRESET);
        assert_eq!(ep.conns.stalled_count(), 0);
    });
}

/// Creates a packet proving a peer's knowledge of its index.
fn sign(index: u32, seq: u64) -> [u8; BASE_LEN] {
    let mut packet = [0; BASE_LEN];
    RxdBase { kind: NO_OP, flags: 0, peer: index, seq }.write(&mut packet);
    packet
}

#[test]
fn restarted_peer_gets_a_new_connection_once_it_uses_new_index() {
    for notifies in [true, false] {
        let mut pair = Pair::over(1, NetPlan { notifies, ..NetPlan::CALM });
        let first = pair.index_for(5, 0, 1);
        pair.inject_from(5, 0, &sign(first, 0));
        let conn = pair.conn(0, 5);
        let name = pair.with(0, |ep| ep.conns[conn].to);
        pair.start(0, 5, MSG, 8, 0);
        let next = pair.index_for(5, 0, 2);
        assert_ne!(first, next);
        assert_eq!((pair.conn(0, 5), pair.left(0)), (conn, 1), "it is not believed yet");
        pair.inject_from(5, 0, &sign(next, 0));
        assert_eq!(pair.left(0), 0, "what was under way to the one before fails");
        let conn = pair.conn(0, 5);
        let is_now = pair.with(0, |ep| {
            let conn = &ep.conns[conn];
            (conn.index, conn.expected, conn.to != FI_ADDR_NOTAVAIL, conn.stage)
        });
        assert_eq!(is_now, (next, 1, true, HandshakeState::Known));
        pair.inject_from(5, 0, &sign(next, 1));
        assert_eq!(pair.with(0, |ep| ep.conns[conn].expected), 2);
        if notifies {
            assert_eq!(pair.with(0, |ep| ep.conns[conn].to), name, "the port's name stays");
        }
        assert_eq!(pair.with(0, |ep| ep.conns.of_index(first)), None);
    }
}

#[test]
fn request_is_answered_at_its_source_not_at_its_claimed_address() {
    let mut pair = Pair::new(1, 0);
    pair.request(7, 5, 0, Introduction { remote: 9, hello: None });
    assert_eq!((pair.taken_at(5).len(), pair.taken_at(7).len()), (0, 1));
    // So it is if the endpoint has a connection with the sender already.
    let index = pair.index_for(6, 0, 1);
    pair.inject_from(6, 0, &sign(index, 0));
    pair.taken_at(6);
    pair.request(6, 5, 0, Introduction { remote: 9, hello: None });
    assert_eq!((pair.taken_at(5).len(), pair.taken_at(6).len()), (0, 1));
}

#[test]
fn claimed_address_gets_one_shorter_packet_per_request() {
    let mut pair = Pair::over(1, NetPlan::CALM);
    for hello in [None, Some(Hello::own(4))] {
        pair.request(7, 5, 0, Introduction { remote: 9, hello });
        let packets = pair.taken_at(5);
        assert!(packets.len() == 1 && packets[0].len() < RTS_LEN, "{packets:?}");
    }
    // With any guessed index, no other data goes there.
    let read = RxdOperation { kind: READ_REQ, ..operation(0, 8, 1) };
    for index in (0..200).chain([1 << 20, 1 << 31, u32::MAX]) {
        pair.inject_ops(7, 0, &read, index, 0..1);
    }
    pair.go_on(20_000);
    assert_eq!((pair.taken_at(5).len(), pair.with(0, |ep| ep.conns.len())), (0, 0));
    // Nor is a group asked, or anybody at all.
    for addr in ["224.0.0.1:5", "255.255.255.255:5", "0.0.0.0:5", "127.0.0.1:0"] {
        let addr = Addr::Ip(addr.parse().unwrap());
        let packet = Rts::packet(9, &addr.to_bytes(), Hello::own(3));
        pair.inject_from(7, 0, &packet);
        assert!(lock(&pair.net).under_way.is_empty(), "{addr}");
    }
}

/// An operation with one byte of so many, to memory with this key.
fn operation(key: u64, total: u64, packets: u64) -> RxdOperation {
    let segments = RemoteSegments::one(0, total, key);
    let (kind, flags, tag, cq_data, tx_id, atomic) = (WRITE, 0, 0, None, 1, (0, 0));
    RxdOperation { kind, flags, tag, cq_data, total, packets, tx_id, segments, atomic }
}

#[test]
fn forged_request_does_not_affect_the_named_peer() {
    for (notifies, hello) in [true, false]
        .into_iter()
        .flat_map(|notifies| [(notifies, None), (notifies, Some(Hello::own(5)))])
    {
        let mut pair = Pair::over(2, NetPlan { notifies, ..NetPlan::CALM });
        let forged = Introduction { remote: 9, hello };
        // Before the two know each other, with a source that is forged as well.
        pair.request(1, 1, 0, forged);
        pair.post(1, 0);
        pair.name(1, 0);
        pair.start(0, 1, MSG, 8, 0);
        pair.request(1, 1, 0, forged);
        pair.finish();
        assert_eq!(pair.left(0), 0);
        let conn = pair.conn(0, 1);
        let of = |pair: &Pair| pair.with(0, |ep| ep.conns.get(conn).map(|conn| conn.index));
        let before = of(&pair);
        assert!(before.is_some());
        // And while they talk.
        pair.start(0, 1, MSG, 2000, 0);
        pair.request(1, 1, 0, forged);
        pair.start(1, 0, MSG, 2000, 0);
        pair.request(1, 1, 0, forged);
        pair.finish();
        assert_eq!((pair.left(0), pair.left(1), of(&pair)), (0, 0, before));
        assert!(pair.with(0, |ep| ep.matcher.queues.buffered_bytes()) > 2000);
    }
}

#[test]
fn contradictory_introductions_make_the_endpoint_ask_the_peer() {
    for notifies in [true, false] {
        let mut pair = Pair::over(2, NetPlan { notifies, ..NetPlan::CALM });
        pair.request(0, 0, 1, Introduction { remote: 9, hello: None });
        pair.start(0, 1, MSG, 8, 0);
        pair.finish();
        assert_eq!((pair.left(0), pair.left(1)), (0, 0));
        pair.go_on(1000);
        assert!(pair.with(1, |ep| ep.matcher.queues.buffered_bytes()) > 0, "the message came");
        let (there, here) = (pair.conn(1, 0), pair.conn(0, 1));
        let index = pair.with(0, |ep| ep.conns[here].index);
        assert_eq!(pair.with(1, |ep| ep.conns[there].remote), index);
    }
}

#[test]
fn simultaneous_introductions_connect_both_peers() {
    for loses in [0, 3] {
        let mut pair = Pair::new(2, loses);
        pair.start(0, 1, MSG, 8, 0);
        pair.start(1, 0, MSG, 8, 0);
        pair.finish();
        assert_eq!((pair.left(0), pair.left(1)), (0, 0));
    }
}

#[test]
fn state_for_a_peer_without_acknowledgements_is_bounded() {
    let mut pair = Pair::new(1, 0);
    let index = pair.index_for(7, 0, 1);
    pair.inject_ops(7, 0, &operation(BAD, 1, 1), index, 0..5000);
    let conn = pair.conn(0, 7);
    let buffered = pair.with(0, |ep| (ep.conns[conn].held.answers, ep.conns[conn].expected));
    assert_eq!(buffered, (512, 512), "refusals, and requests that are taken");
    // Notices, of another peer.
    let index = pair.index_for(8, 0, 1);
    (0..3000).for_each(|_| pair.post(0, FI_ADDR_UNSPEC));
    let segments = RemoteSegments::EMPTY;
    let message = RxdOperation { kind: MSG, flags: DELIVER, segments, ..operation(0, 1, 1) };
    pair.inject_ops(8, 0, &message, index, 0..2000);
    let conn = pair.conn(0, 8);
    let buffered = pair.with(0, |ep| (ep.conns[conn].held.notices, ep.conns[conn].expected));
    assert_eq!(buffered, (1024, 1024), "notices, and messages that are taken");
    // They go with their peers.
    here::pass(400_000_000_000);
    pair.go_on(20);
    here::pass(400_000_000_000);
    for _ in 0..100 {
        here::pass(10_000_000_000);
        pair.go_on(1);
    }
    assert_eq!(pair.with(0, |ep| (ep.tx.ops().len(), ep.conns.len())), (0, 0));
}

#[test]
fn silent_unknown_peers_are_evicted_for_new_ones() {
    let mut pair = Pair::new(1, 0);
    let most = pair.with(0, |ep| {
        ep.limits.config.max_peers = 8;
        ep.limits.config.max_peers
    });
    let mut last = 0;
    for node in 100..150 {
        here::pass(6_000_000_000 / most as u64);
        let index = pair.index_for(node, 0, 1);
        pair.inject_from(node, 0, &sign(index, 0));
        last = index;
    }
    let there = pair.with(0, |ep| (ep.conns.unknown(), ep.conns.of_index(last).is_some()));
    assert!(there.0 <= most && there.1, "{there:?}");
    // Those that were in the vector as well.
    for node in 151..250 {
        pair.name(0, node);
        pair.conn(0, node);
    }
    here::pass(6_000_000_000);
    for node in 151..250 {
        pair.with(0, |ep| ep.name_removed(node));
    }
    assert!(pair.with(0, |ep| ep.conns.len()) <= most);
}

/// A key of no region.
const BAD: u64 = 99;

#[test]
fn refused_accesses_of_both_sides_all_end() {
    // Operations of one packet and of many; fewer and more than a window of them.
    let all = [(1, 8), (1, 100_000), (300, 8), (40, 1000)];
    for ((count, len), loses) in all.into_iter().flat_map(|of| [(of, 0), (of, 10)]) {
        let mut pair = Pair::new(2, loses);
        pair.handshake(0, 1);
        let before = pair.conn(1, 0);
        for _ in 0..count {
            pair.start(0, 1, WRITE, len, BAD);
            pair.start(1, 0, WRITE, len, BAD);
        }
        pair.finish();
        assert_eq!((pair.left(0), pair.left(1)), (0, 0), "of {count} writes of {len} bytes each");
        assert_eq!(pair.conn(1, 0), before);
    }
}

#[test]
fn refused_accesses_to_oneself_all_end() {
    let mut pair = Pair::new(1, 0);
    pair.handshake(0, 0);
    for len in [8, 8, 10_000] {
        pair.start(0, 0, WRITE, len, BAD);
    }
    pair.finish();
    assert_eq!(pair.left(0), 0);
}
