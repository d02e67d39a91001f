//! Two endpoints, or one that talks to itself, and what a simulation does not draw: accesses that are
//! refused, and packets that no peer of this library sends.
use super::super::conn::Acquaintance;
use super::super::tx::{RxdTx, TxData};
use super::super::{RxdEngine, RxdEngineEp, RxdIdentity, RxdLimits};
use super::{LossyNet, LossyPorts, NetPlan, SharedNet, lock};
use crate::config::config;
use crate::wire::{
    Cts, DATA, DATA_HEAD, DATA_READ, DELIVERED, DataHead, Greeting, MSG, NO_OP, READ_REQ, REFUSAL,
    Rts, RxdBase, RxdOperation, WRITE,
};
use ofi_provider::abi::{
    FI_COMPLETION, FI_MSG, FI_READ, FI_RMA, FI_SEND, FI_SOCKADDR_IN, FI_WRITE, fi_addr_t,
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
use std::sync::{Arc, Mutex};

const PACKET: usize = 256;

struct Pair {
    net: SharedNet,
    engines: Vec<Arc<RxdEngine>>,
}

impl Pair {
    /// So many endpoints, over a network that loses one in so many packets.
    fn new(count: usize, loses: usize) -> Self {
        let plan = NetPlan { loses, doubles: 0, reorders: 0, refuses: 0, tells: true };
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
            assert_eq!(engine.add_ep(RxdIdentity { local, attr }), 0);
            engine.enable(0, &Bindings::default()).unwrap();
            engine
        };
        let engines = (0..count).map(open).collect();
        Self { net, engines }
    }

    fn with<R>(&self, node: usize, each: impl FnOnce(&mut RxdEngineEp) -> R) -> R {
        each(self.engines[node].lock().ep(0))
    }

    /// The connection of an endpoint to another, which is made if there is none.
    fn conn(&self, node: usize, to: usize) -> u32 {
        self.with(node, |ep| {
            let addr = Addr::Ip(address(to, 0)).identity();
            let peer = ep.peers.peer_at(None, addr, &mut ep.inbox);
            match ep.peers[peer].conn {
                ofi_provider::slab::NONE => ep.new_conn(peer).unwrap(),
                conn => conn,
            }
        })
    }

    /// Has an endpoint get to know another.
    fn meet(&mut self, node: usize, to: usize) {
        let conn = self.conn(node, to);
        self.with(node, |ep| ep.ask(conn));
        self.go_on(1000);
        assert_eq!(self.with(node, |ep| ep.conns[conn].stage), Acquaintance::Known);
    }

    /// All that is under way arrives, and each endpoint makes a turn; so many times.
    fn go_on(&mut self, times: usize) {
        for _ in 0..times {
            while lock(&self.net).deliver() {}
            for engine in &self.engines {
                let mut state = engine.lock();
                state.turn();
                state.check();
            }
            here::pass(1_000_000);
        }
    }

    /// Goes on until nothing is left to do, or for 200 seconds.
    fn finish(&mut self) {
        for _ in 0..20000 {
            let all = 0..self.engines.len();
            if all.clone().all(|node| self.with(node, |ep| ep.ops.is_empty())) {
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
                places: match kind {
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

    /// Gives an endpoint's peer a name, so that it is no stranger.
    fn name(&self, node: usize, peer: usize) {
        let addr = Addr::Ip(address(peer, 0));
        self.with(node, |ep| ep.name_inserted(peer as fi_addr_t, &addr));
    }

    /// Posts a receive without room for a peer's message.
    fn post(&self, node: usize, src: fi_addr_t) {
        let (buf, context) = (RecvBuf::none(), Context::NULL);
        let op = RecvOp { buf, src, context, tag: 0, ignore: 0, flags: 0 };
        self.with(node, |ep| assert!(ep.inbox.post(op, false).is_ok()));
    }

    /// A packet comes to an endpoint whose turn it is, as if another had sent it.
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

    /// A packet comes to an endpoint from an address of which it knows nothing, or from another's.
    fn inject_from(&mut self, from: usize, to: usize, packet: &[u8]) {
        lock(&self.net).send(address(from, 0), address(to, 0), packet);
        self.go_on(1);
    }

    /// The number by which a peer names an endpoint's oldest operation.
    fn number(&self, node: usize) -> u32 {
        self.with(node, |ep| ep.ops.iter().next().unwrap().1.tx_id)
    }

    /// Operations that are not complete.
    fn left(&self, node: usize) -> usize {
        self.with(node, |ep| ep.own_ops)
    }
}

#[test]
fn a_large_message_that_nobody_waits_for_stops_no_other_that_somebody_does() {
    let mut pair = Pair::new(3, 0);
    pair.meet(1, 0);
    pair.meet(2, 0);
    pair.name(0, 1);
    pair.name(0, 2);
    pair.start(1, 0, MSG, 8 << 20, 0);
    pair.go_on(1000);
    let kept = pair.with(0, |ep| ep.inbox.kept_bytes());
    assert_eq!(pair.left(1), 1, "there is no room for all of it");
    assert!(kept > 1 << 20, "{kept} bytes of it are kept");
    pair.post(0, 2);
    pair.start(2, 0, MSG, 0, 0);
    pair.go_on(100);
    assert_eq!(pair.left(2), 0, "a message meets its receive while {kept} bytes are kept");
    assert!(kept <= 3 << 20, "{kept} bytes are kept");
}

#[test]
fn an_answer_that_ends_half_way_says_so_once() {
    let mut pair = Pair::new(2, 0);
    pair.meet(0, 1);
    let back = pair.conn(1, 0);
    let refusals = pair.with(1, |ep| {
        let (data, room) = (TxData::Region(RemoteSegments::one(0, 8, BAD)), PACKET - DATA_HEAD);
        ep.start_answer(RxdTx::of_peer(back, 77, data, 10 * room, room));
        ep.turn();
        let packets = lock(&pair.net);
        let kinds = packets.under_way.iter().map(|(_, _, packet)| packet[1]);
        kinds.filter(|kind| *kind == REFUSAL).count()
    });
    assert_eq!(refusals, 1);
    pair.finish();
}

#[test]
fn whatever_is_lost_of_an_answer_whose_data_are_gone_is_refused() {
    let (data, room) = (TxData::Region(RemoteSegments::one(0, 8, BAD)), PACKET - DATA_HEAD);
    let mut answer = RxdTx::of_peer(0, 77, data, 10 * room, room);
    let regions = MrTable::new(0);
    let mut kind = |packet, again| {
        let base = RxdBase { kind: DATA_READ, flags: 0, peer: 0, seq: packet };
        let mut built = [0; PACKET];
        answer.build(&regions, (packet, again), base, true, &mut built);
        built[1]
    };
    // The peer may have the first of these, and does not look at it; the second is lost.
    assert_eq!([kind(2, true), kind(5, true)], [REFUSAL; 2]);
    assert_eq!([kind(7, false), kind(8, false)], [REFUSAL, NO_OP]);
    assert_eq!(kind(8, true), REFUSAL);
}

#[test]
fn what_is_said_of_an_operation_does_not_concern_the_next_one() {
    let mut pair = Pair::new(2, 0);
    pair.meet(0, 1);
    pair.start(0, 1, READ_REQ, 0, BAD);
    let number = pair.number(0);
    pair.finish();
    pair.start(0, 1, MSG, 2000, 0);
    pair.inject(1, 0, REFUSAL, DataHead { tx_id: number, rx_id: 1, segment: u64::MAX });
    let errors: Vec<_> = pair.with(0, |ep| ep.ops.iter().map(|(_, op)| op.error).collect());
    assert_eq!(errors, [None]);
}

#[test]
fn an_answer_to_nothing_is_passed_over_and_what_contradicts_itself_ends_the_connection() {
    let mut pair = Pair::new(2, 0);
    pair.meet(0, 1);
    let expected =
        |pair: &Pair, conn| pair.with(0, |ep| ep.conns.get(conn).map(|conn| conn.expected));
    let conn = pair.conn(0, 1);
    pair.inject(1, 0, DATA_READ, DataHead { tx_id: 77, rx_id: 0, segment: 0 });
    pair.inject(1, 0, REFUSAL, DataHead { tx_id: 77, rx_id: 1, segment: u64::MAX });
    assert_eq!(expected(&pair, conn), Some(2), "packets of numbers 0 and 1");
    pair.inject(1, 0, DATA, DataHead { tx_id: 0, rx_id: 0, segment: 0 });
    assert_eq!(expected(&pair, conn), None, "data of no operation");
}

#[test]
fn an_answer_from_elsewhere_does_not_end_a_connection() {
    let mut pair = Pair::new(2, 0);
    pair.meet(0, 1);
    let conn = pair.conn(0, 1);
    pair.start(1, 0, MSG, 8, 0);
    pair.go_on(10);
    let (index, verified) = pair.with(0, |ep| (ep.conns[conn].index, ep.conns[conn].verified));
    assert!(verified);
    let greeting = Some(Greeting::own(3));
    let (packet, len) = Cts { of: index.into(), index: 9, greeting }.packet();
    pair.inject_from(7, 0, &packet[..len]);
    assert_eq!(pair.with(0, |ep| ep.conns.get(conn).map(|conn| conn.index)), Some(index));
}

#[test]
fn an_operation_that_is_being_sent_is_not_ended_by_the_peer() {
    let mut pair = Pair::new(2, 0);
    pair.meet(0, 1);
    pair.start(0, 1, MSG, 100_000, 0);
    pair.with(0, |ep| ep.ops.iter_mut().for_each(|(_, op)| op.deliver = true));
    let tx_id = pair.number(0);
    pair.inject(1, 0, DELIVERED, DataHead { tx_id, rx_id: 0, segment: 0 });
    assert_eq!(pair.left(0), 1);
    // What is sent again of one that is over has nothing of others' packets.
    let over = RxdTx::new(0, Context::NULL, 0, 0, MSG, TxData::None);
    let mut room = [1; 8];
    over.copy(&MrTable::new(0), 0, &mut room).unwrap();
    assert_eq!(room, [0; 8]);
}

#[test]
fn a_connection_that_ends_leaves_nothing() {
    let mut pair = Pair::new(2, 0);
    pair.meet(0, 1);
    let conn = pair.conn(0, 1);
    pair.with(0, |ep| {
        ep.conns[conn].stalled = true;
        ep.stalled.push(conn);
        ep.drop_conn(conn, Error::CONNRESET);
        assert!(ep.stalled.is_empty());
    });
}

#[test]
fn a_peer_that_was_started_again_at_once_is_named_once() {
    let mut pair = Pair::new(1, 0);
    let source = Addr::Ip(address(5, 0)).to_bytes();
    for nonce in [1, 2] {
        let packet = Rts::packet(3, &source, Greeting::own(nonce));
        lock(&pair.net).send(address(5, 0), address(0, 0), &packet);
    }
    while lock(&pair.net).deliver() {}
    // In one turn, if the network gives both.
    pair.with(0, |ep| {
        let mut port = ep.port.take().unwrap();
        let (mut packets, mut from) = (Vec::new(), 0);
        while packets.len() < 2 {
            port.receive(&mut |name, packet| {
                from = name;
                packets.push(packet.to_vec());
            });
        }
        packets.iter().for_each(|packet| ep.packet_came(from, packet));
        ep.port = Some(port);
    });
    pair.go_on(1);
    let conn = pair.conn(0, 5);
    assert_eq!(pair.with(0, |ep| ep.conns[conn].to), 0, "the first name that the port gives");
}

/// A key of no region.
const BAD: u64 = 99;

#[test]
fn refused_accesses_of_both_sides_all_end() {
    // Of one packet and of many; fewer and more than a window of them.
    let all = [(1, 8), (1, 100_000), (300, 8), (40, 1000)];
    for ((count, len), loses) in all.into_iter().flat_map(|of| [(of, 0), (of, 10)]) {
        let mut pair = Pair::new(2, loses);
        pair.meet(0, 1);
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
    pair.meet(0, 0);
    for len in [8, 8, 10_000] {
        pair.start(0, 0, WRITE, len, BAD);
    }
    pair.finish();
    assert_eq!(pair.left(0), 0);
}
