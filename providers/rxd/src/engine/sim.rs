//! Simulator of endpoints, each with a separate engine, over a network losing, duplicating and
//! reordering packets, without sockets, threads or real time. One seed determines all events and
//! their timing. The operations of endpoints and their expected results are those of all simulators
//! (`ofi_simulation`).
mod pair;

use super::arriving::RxdUnexpected;
use super::budget::Held;
use super::conn::HandshakeState;
use super::indices::IndexUse;
use super::port::{PacketPort, PacketSource, PortSource};
use super::{RxdEngine, RxdIdentity, RxdLimits, RxdState};
use crate::config::{RxdConfig, config};
use crate::wire::{Hello, RTS_LEN, Rts};
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SOCKADDR_IN, fi_addr_t,
};
use ofi_provider::addr::Addr;
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::lock::Level;
use ofi_provider::mr::MrTable;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_simulation::{
    EndpointRole, InjectedFault, NodeConfig, NodeEnv, Sim, SimPlan, SimRandom, SimWorld, here,
    seeds,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// Faults of the network, each once in this many packets; 0: never.
#[derive(Clone, Copy, Debug)]
struct NetPlan {
    loses: usize,
    doubles: usize,
    reorders: usize,
    /// Sends refused for lack of space.
    refuses: usize,
    /// Requests forged in the name of an endpoint, with or without its source address.
    forges: usize,
    /// The core reports the sources of packets.
    notifies: bool,
}

impl NetPlan {
    /// Network without faults and without reported sources.
    const CALM: Self =
        Self { loses: 0, doubles: 0, reorders: 0, refuses: 0, forges: 0, notifies: false };
}

/// Network: packets in flight, and those arrived, by address.
#[derive(Debug)]
struct LossyNet {
    random: SimRandom,
    plan: NetPlan,
    under_way: VecDeque<(SocketAddr, SocketAddr, Vec<u8>)>,
    here: BTreeMap<SocketAddr, VecDeque<(SocketAddr, Vec<u8>)>>,
    next_port: u16,
    lost: usize,
}

type SharedNet = Arc<Mutex<LossyNet>>;

fn lock(net: &SharedNet) -> MutexGuard<'_, LossyNet> {
    net.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl LossyNet {
    fn send(&mut self, from: SocketAddr, to: SocketAddr, packet: &[u8]) {
        if self.random.one_in(self.plan.forges) {
            self.forge(to);
        }
        if self.random.one_in(self.plan.loses) {
            self.lost += 1;
            return;
        }
        let copies = 1 + usize::from(self.random.one_in(self.plan.doubles));
        for _ in 0..copies {
            let at = match self.random.one_in(self.plan.reorders) {
                true => self.random.below(self.under_way.len() + 1),
                false => self.under_way.len(),
            };
            self.under_way.insert(at, (from, to, packet.to_vec()));
        }
    }

    /// Sends a request in the name of some endpoint.
    fn forge(&mut self, to: SocketAddr) {
        let named = self.random.below(self.here.len());
        let Some(named) = self.here.keys().nth(named).copied() else { return };
        let source = Addr::Ip(named).to_bytes();
        let index = 1 + self.random.below(5) as u64;
        let mut packet = Rts::packet(index, &source, Hello::own(self.random.below(4) as u64));
        if self.random.one_in(2) {
            // As one of the original.
            packet[2..4].fill(0);
            packet[RTS_LEN - Hello::LEN..].fill(0);
        }
        let elsewhere = (Ipv4Addr::new(192, 0, 2, 9), 7).into();
        let from = if self.random.one_in(2) { named } else { elsewhere };
        self.under_way.push_back((from, to, packet.to_vec()));
    }

    /// A packet arrives; false if none is under way.
    fn deliver(&mut self) -> bool {
        let Some((from, to, packet)) = self.under_way.pop_front() else { return false };
        if let Some(here) = self.here.get_mut(&to) {
            here.push_back((from, packet));
        }
        true
    }
}

/// An endpoint's way to the network.
struct LossyPort {
    net: SharedNet,
    local: SocketAddr,
    names: Vec<Option<SocketAddr>>,
    by_addr: HashMap<SocketAddr, fi_addr_t>,
}

impl PacketPort for LossyPort {
    fn name(&self) -> Result<Vec<u8>> {
        Ok(Addr::Ip(self.local).to_bytes())
    }

    fn resolve(&mut self, addr: &Addr) -> Result<fi_addr_t> {
        let addr = addr.ip()?;
        let name = self.names.len() as fi_addr_t;
        self.names.push(Some(addr));
        self.by_addr.insert(addr, name);
        Ok(name)
    }

    fn forget(&mut self, to: fi_addr_t) {
        if let Some(addr) = self.names[to as usize].take() {
            if self.by_addr.get(&addr) == Some(&to) {
                self.by_addr.remove(&addr);
            }
        }
    }

    fn send(&mut self, to: fi_addr_t, packets: &[u8], stride: usize) -> Result {
        let to = self.names[to as usize].expect("a name that is not forgotten");
        let mut net = lock(&self.net);
        for packet in packets.chunks(stride) {
            let refuses = net.plan.refuses;
            if net.random.one_in(refuses) {
                return Err(Error::AGAIN);
            }
            net.send(self.local, to, packet);
        }
        Ok(())
    }

    fn receive(&mut self, each: &mut dyn FnMut(&PacketSource, &[u8])) -> (usize, bool) {
        let came = {
            let mut net = lock(&self.net);
            let most = 1 + net.random.below(16);
            let here = net.here.get_mut(&self.local).expect("an open port");
            let most = most.min(here.len());
            here.drain(..most).collect::<Vec<_>>()
        };
        let notifies = lock(&self.net).plan.notifies;
        for (from, packet) in &came {
            let name = self.by_addr.get(from).copied();
            let source = match name {
                _ if !notifies => PacketSource::Unnamed,
                Some(name) => PacketSource::Named(name),
                None => PacketSource::At(Addr::Ip(*from)),
            };
            each(&source, packet);
        }
        (came.len(), false)
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn may_block(&self) -> bool {
        true
    }
}

impl Drop for LossyPort {
    fn drop(&mut self) {
        lock(&self.net).here.remove(&self.local);
    }
}

/// Port source for the engines of a world.
struct LossyPorts(SharedNet);

impl PortSource for LossyPorts {
    fn open(&self, identity: &RxdIdentity) -> Result<Box<dyn PacketPort>> {
        let mut local = identity.local.ip()?;
        let mut net = lock(&self.0);
        if local.port() == 0 {
            net.next_port += 1;
            local.set_port(net.next_port);
        }
        if net.here.insert(local, VecDeque::new()).is_some() {
            return Err(Error::ADDRINUSE);
        }
        drop(net);
        let (names, by_addr) = (Vec::new(), HashMap::new());
        Ok(Box::new(LossyPort { net: self.0.clone(), local, names, by_addr }))
    }
}

/// Engines over a network of packets.
struct OverPackets {
    net: SharedNet,
    packet: usize,
    config: RxdConfig,
    /// Engines have helpers.
    helped: bool,
}

/// Memory of one engine exposed to peers.
struct RxdRegion {
    regions: Arc<MrTable>,
    key: u64,
}

type PacketSim = Sim<OverPackets>;

impl SimWorld for OverPackets {
    type Engine = RxdEngine;
    type Underlying = RxdRegion;

    fn new(random: &mut SimRandom, own: SimRandom, plan: &mut SimPlan) -> Self {
        let calm = random.one_in(4);
        let rate = |random: &mut SimRandom| if calm { 0 } else { random.pick(&[0, 5, 20, 100]) };
        let net = NetPlan {
            loses: rate(random),
            doubles: rate(random),
            reorders: rate(random),
            refuses: rate(random),
            forges: rate(random),
            notifies: random.one_in(2),
        };
        let mut config = config().clone();
        config.max_unacked = random.pick(&[2, 16, 128]);
        config.spin_count = random.pick(&[0, 1, 1000]);
        // Nothing cuts a peer off for good.
        (plan.cuts, plan.hostile, plan.shares_memory, plan.shortage) = (0, false, true, 0);
        (plan.shape, plan.parts) = (NodeConfig::Single, 1);
        (plan.matched_is_received, plan.delivered_is_received) = (true, false);
        let net = LossyNet {
            random: own,
            plan: net,
            under_way: VecDeque::new(),
            here: BTreeMap::new(),
            next_port: 40_000,
            lost: 0,
        };
        let packet = random.pick(&[256, 512, 1472]);
        let helped = random.one_in(2);
        Self { net: Arc::new(Mutex::new(net)), packet, config, helped }
    }

    fn begin(&mut self, plan: &mut SimPlan) {
        plan.inject_size = plan.inject_size.min(crate::info::inject_size(self.packet));
    }

    fn engine(&mut self, _plan: &SimPlan, env: NodeEnv<'_>) -> (Arc<RxdEngine>, RxdRegion) {
        let regions = Arc::new(MrTable::new(0));
        let (memory, key) = (env.memory, env.key);
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        regions.insert(memory.as_ptr() as usize, memory.len(), rights, 0, key).unwrap();
        let limits = RxdLimits {
            format: FI_SOCKADDR_IN as u32,
            packet: self.packet,
            config: self.config.clone(),
            regions: regions.clone(),
        };
        // No thread but the simulation's calls: the engine starts none either.
        let ports = Box::new(LossyPorts(self.net.clone()));
        let engine = RxdEngine::new(limits, ports, Level::Serialized).unwrap();
        if self.helped {
            engine.helper.pretend();
        }
        (engine, RxdRegion { regions, key })
    }

    fn identity(&self, _role: EndpointRole, local: SocketAddr, attr: RdmAttr) -> RxdIdentity {
        RxdIdentity { local: Addr::Ip(local), attr, own: None }
    }

    fn end(&mut self, engine: Arc<RxdEngine>, underlying: RxdRegion) {
        assert_eq!(engine.lock().eps.len(), 0);
        underlying.regions.remove(underlying.key);
    }

    fn poll_once(&mut self, engine: &RxdEngine, _underlying: &mut RxdRegion) {
        let mut state = engine.lock();
        let looks = {
            let random = &mut lock(&self.net).random;
            (self.helped && random.one_in(8)).then(|| random.one_in(2))
        };
        match looks {
            Some(idle) => {
                state.help(idle);
            }
            None => {
                state.poll_once();
            }
        }
        state.check();
    }

    fn check_idle(&self, engine: &RxdEngine) {
        engine.lock().check_idle();
    }

    fn buffered(&self, engine: &RxdEngine) -> (usize, usize) {
        let state = engine.lock();
        let sums = state.eps.iter().map(|(_, ep)| ep.matcher.check_sums());
        sums.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    fn buffered_cost(&self) -> usize {
        // The memory of a message that is arriving grows by doubling.
        RxMatcher::<RxdUnexpected>::COST + 128 * 1024
    }

    fn something_happens(&mut self, all: bool) -> bool {
        let mut net = lock(&self.net);
        let count = if all { net.under_way.len().max(1) } else { 1 };
        (0..count).fold(false, |any, _| net.deliver() | any)
    }

    fn cut(&mut self, _one: usize, _other: usize) -> bool {
        false
    }

    fn pass(&mut self, nanos: u64) {
        here::pass(nanos);
    }

    fn wait(&mut self) {
        here::pass(5_000_000);
    }

    fn be_prompt(&mut self) {
        let mut net = lock(&self.net);
        let notifies = net.plan.notifies;
        net.plan = NetPlan { notifies, ..NetPlan::CALM };
    }

    /// Continues until peers considered gone are given up.
    fn can_continue(&mut self, still: usize) -> bool {
        here::pass(still as u64 * 50_000_000);
        still <= 130
    }

    const ITERATIONS: usize = 2;

    const DELIVERS_AT_CLOSE: bool = true;

    fn check_end(&self) {
        assert_eq!(lock(&self.net).here.len(), 0, "ports that are not closed");
    }

    fn describe(&self) -> String {
        let net = lock(&self.net);
        let (plan, config, helped) = (net.plan, &self.config, self.helped);
        format!("{plan:?} {config:?}, helped: {helped}, {} lost", net.lost)
    }
}

impl RxdState {
    /// Checks the invariants of any time.
    fn check(&mut self) {
        for (_, ep) in self.eps.iter_mut() {
            let mut sums = [Held::default(); 2];
            assert!(ep.tx.own() <= ep.local.identity().attr.tx_size, "{} transfers", ep.tx.own());
            let early: usize = ep
                .conns
                .iter()
                .flat_map(|(_, conn)| conn.early.values().map(|packet| packet.len()))
                .sum();
            assert_eq!(ep.conns.early_bytes(), early, "bytes of packets that came early");
            for (id, conn) in ep.conns.iter() {
                assert!(conn.early.len() <= ep.limits.config.max_unacked, "more than the window");
                let waits = conn.stage == HandshakeState::Known && ep.limits.config.retry;
                assert!(!waits || conn.is_in_time(ep.now), "connection {id} is not seen to");
                let mut held = Held::default();
                let answers = ep.tx.ops().iter().filter(|(_, op)| op.conn == id && !op.is_own());
                answers.for_each(|(_, op)| held += op.held());
                // Notices are expected before they are sent.
                assert!(conn.held.notices >= held.notices);
                held.notices = conn.held.notices;
                assert_eq!(conn.held, held, "what is kept for connection {id}");
                let unknown = ep.peers.name_of(conn.peer) == FI_ADDR_NOTAVAIL;
                assert_eq!(conn.unknown, unknown, "of connection {id}");
                sums[usize::from(unknown)] += held;
                assert_eq!(ep.conns.index_use(conn.index), Some(IndexUse::Conn(id)));
            }
            let [known, unknown] = sums;
            assert_eq!((known, unknown), ep.conns.sums(), "what is kept");
            let unknown = ep.conns.iter().filter(|(_, conn)| conn.unknown).count();
            assert_eq!(ep.conns.unknown(), unknown, "connections with unknown peers");
            let (indices, half_open) = ep.conns.index_counts();
            assert_eq!(indices, ep.conns.iter().count() + half_open, "indices");
            for (id, peer) in ep.peers.iter() {
                let conns = ep.conns.iter().filter(|(_, conn)| conn.peer == id).count();
                assert_eq!(peer.conns as usize, conns, "connections of peer {id}");
                let named = ep.peers.name_of(id) != FI_ADDR_NOTAVAIL;
                assert!(
                    conns > 0 || named || ep.matcher.senders.has_buffered_from(id),
                    "peer {id} leaks"
                );
            }
        }
    }

    /// Checks the invariants of an idle engine.
    fn check_idle(&mut self) {
        self.check();
        for (_, ep) in self.eps.iter() {
            assert_eq!((ep.tx.own(), ep.tx.ops().len()), (0, 0), "transfers are left");
            assert_eq!(ep.conns.stalled_count(), 0);
            assert_eq!(ep.conns.early_bytes(), 0);
            for (id, conn) in ep.conns.iter() {
                assert!(conn.is_quiet() && conn.arriving.is_none(), "of connection {id}");
            }
        }
    }
}

fn run(seed: u64) -> usize {
    PacketSim::new(seed).run()
}

#[test]
fn messages_arrive_whole_once_and_in_order_despite_packet_faults() {
    seeds::run_all(300, run);
}

#[test]
fn injected_faults_are_detected() {
    for (fault, messages) in [
        (InjectedFault::LostCompletion, &["never completes", "before its fence", "is left"][..]),
        (InjectedFault::SecondCompletion, &["completes twice"]),
    ] {
        seeds::finds(fault, messages, run);
    }
}
