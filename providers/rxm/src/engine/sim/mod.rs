//! Simulator of endpoints, each with a separate engine, without sockets, threads or real time: one
//! seed determines all events and their timing. The operations of endpoints and their expected
//! results are those of all simulators (`ofi_simulation`).
//!
//! The core provider below the engines is one in memory ([`wires`]), reached like any other by
//! fi_fabric(3) and ops tables. It delays transfers, rejects them for lack of space, and loses
//! connections.
mod wires;

use super::conn::{Link, RxmConn};
use super::idle_closer;
use super::pending::RxmUnexpected;
use super::{Common, LocalPaths, RxmEngine, RxmIdentity, RxmState};
use crate::config::{RxmConfig, config};
use crate::wire::HEADER_LEN;
use ofi_provider::abi::{
    FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_MR_LOCAL, FI_MSG, FI_PROTO_IWARP,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_SEND, FI_SOCKADDR_IN, FI_WRITE, fi_ep_type,
    fi_progress, fi_threading,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{DomainSettings, RemoteSegments};
use ofi_provider::buf::SendBuf;
use ofi_provider::core_provider::{self, CoreRegion};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{API_VERSION, InfoBuf};
use ofi_provider::lock::Level;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_simulation::{
    EndpointRole, InjectedFault, NodeConfig, NodeEnv, Sim, SimPlan, SimRandom, SimWorld, address,
    here, seeds,
};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use wires::{ASKED, HERE, RxmWorld, WirePlan};

/// Core provider's parameters drawn from the seed, in addition to those of its links.
#[derive(Debug)]
struct CorePlan {
    /// The core provider wants memory of transfers registered.
    local_mr: bool,
    /// Sides count each other's receives.
    counted: bool,
    /// Bytes copied at once by the core.
    core_inject: usize,
}

/// Engines over wires.
struct OverWires {
    world: Arc<Mutex<RxmWorld>>,
    core: CorePlan,
    config: RxmConfig,
    wires: WirePlan,
}

/// Core provider below one engine.
struct RxmUnderlying {
    settings: DomainSettings,
    /// Memory exposed to peers, as registered with the core provider.
    region: Vec<CoreRegion>,
    key: u64,
}

type WireSim = Sim<OverWires>;

/// Limits of connections selected by seeds: fewer than the peers of a node in some.
const LIMITS: [Option<usize>; 4] = [None, None, Some(1), Some(3)];

/// Draws the parameters from the seed.
fn draw_config(random: &mut SimRandom) -> RxmConfig {
    let eager_limit = random.pick(&[256, 300, 1024, 16_384]);
    let mut config = config().clone();
    config.eager_limit = eager_limit;
    config.sar_limit = eager_limit * random.pick(&[0, 1, 4, 8]);
    config.comp_per_progress = random.pick(&[1, 4, 16]);
    config.num_msg_eps = random.pick(&[1, 1, 2, 4]);
    config.use_srx = random.pick(&[None, Some(true), Some(false)]);
    config.msg_tx_size = random.pick(&[2, 16, 128]);
    config.msg_rx_size = random.pick(&[None, Some(2), Some(8), Some(64)]);
    config.cm_interval = Duration::ZERO;
    config.rndv_write = random.one_in(3);
    config.direct_send = random.below(2) == 0;
    config.max_connections = random.pick(&LIMITS);
    config
}

/// Returns the info of the core provider of a domain.
fn core_info(plan: &CorePlan, config: &RxmConfig) -> Result<InfoBuf> {
    let mut info = InfoBuf::new()?;
    info.set_caps(FI_MSG | FI_RMA);
    info.set_addr_format(FI_SOCKADDR_IN as u32);
    info.set_prov_name(c"wires")?;
    info.set_fabric_name(c"wires")?;
    info.set_domain_name(c"wires")?;
    info.set_versions(API_VERSION, API_VERSION);
    let tx = info.tx_mut();
    (tx.caps, tx.inject_size) = (FI_MSG | FI_RMA, plan.core_inject);
    (tx.iov_limit, tx.rma_iov_limit, tx.size) = (4, 4, config.msg_tx_size);
    let rx = info.rx_mut();
    (rx.caps, rx.iov_limit, rx.size) = (FI_MSG | FI_RMA, 4, 1024);
    let counted = plan.counted;
    info.edit_ep(|ep| {
        ep.r#type = fi_ep_type::FI_EP_MSG.into();
        ep.protocol = if counted { FI_PROTO_IWARP as u32 } else { 0 };
    });
    let mr_mode = if plan.local_mr { FI_MR_LOCAL } else { 0 };
    info.edit_domain(|domain| {
        domain.threading = fi_threading::FI_THREAD_SAFE.into();
        domain.data_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        domain.control_progress = fi_progress::FI_PROGRESS_MANUAL.into();
        (domain.mr_mode, domain.mr_key_size) = (mr_mode, 8);
    });
    Ok(info)
}

impl OverWires {
    fn world(&self) -> MutexGuard<'_, RxmWorld> {
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl SimWorld for OverWires {
    type Engine = RxmEngine;
    type Underlying = RxmUnderlying;

    fn new(random: &mut SimRandom, own: SimRandom, plan: &mut SimPlan) -> Self {
        let core = CorePlan {
            local_mr: random.one_in(4),
            counted: random.one_in(5),
            core_inject: random.pick(&[0, 100, 200, 4096]),
        };
        let config = draw_config(random);
        let wires = WirePlan {
            rejections: random.pick(&[0, 4, 20]),
            depth: 0,
            late: random.one_in(3),
            acknowledges: random.one_in(3),
            strict: false,
            descriptors: None,
        };
        (plan.shares_memory, plan.hostile) = (true, false);
        Self { world: RxmWorld::new(own, wires), core, config, wires }
    }

    fn begin(&mut self, plan: &mut SimPlan) {
        self.wires.depth = self.config.msg_tx_size;
        self.wires.strict = self.core.counted && self.config.use_srx != Some(true);
        plan.inject_size = plan.inject_size.min(self.config.eager_limit);
        // Written to its receiver, a message has met a receive, which is over a moment later.
        // Where receives are buffered it has met one when it is reported.
        plan.matched_is_received = !self.config.rndv_write && plan.shape != NodeConfig::Buffered;
        plan.delivered_is_received = false;
        plan.ordered_accesses = self.config.num_msg_eps == 1;
        self.world().plan = self.wires;
        HERE.set(Some(self.world.clone()));
    }

    fn engine(&mut self, _plan: &SimPlan, env: NodeEnv<'_>) -> (Arc<RxmEngine>, RxmUnderlying) {
        let info = core_info(&self.core, &self.config).unwrap();
        let mut settings = DomainSettings::new(info.as_ref(), true).unwrap();
        // No thread but the simulation's calls: the engine starts none either.
        settings.level = Level::Serialized;
        let fabric = core_provider::CoreFabric::open(&info).unwrap();
        let domain = core_provider::CoreDomain::open(&fabric, &info).unwrap();
        let (memory, key) = (env.memory, env.key);
        // SAFETY: the memory stays as long as the region.
        let bytes = unsafe { SendBuf::new(memory.as_ptr().cast(), memory.len()) }.unwrap();
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let region = domain.register_send(&bytes, rights, || key).unwrap();
        settings.regions.insert(memory.as_ptr() as usize, memory.len(), rights, 0, key).unwrap();
        let common = Common::new(domain, info, self.config.clone(), &settings);
        let engine = RxmEngine::new(Arc::new(common)).unwrap();
        (engine, RxmUnderlying { settings, region, key })
    }

    fn identity(&self, _role: EndpointRole, local: SocketAddr, attr: RdmAttr) -> RxmIdentity {
        RxmIdentity { local: Addr::Ip(local), attr, local_paths: LocalPaths::ALL, key: Vec::new() }
    }

    fn end(&mut self, engine: Arc<RxmEngine>, underlying: RxmUnderlying) {
        assert_eq!(engine.lock().eps.len(), 0);
        let RxmUnderlying { settings, region, key } = underlying;
        drop(region);
        settings.regions.remove(key);
    }

    fn poll_once(&mut self, engine: &RxmEngine, _underlying: &mut RxmUnderlying) {
        let mut state = engine.lock();
        state.poll_once();
        state.check();
    }

    fn check_idle(&self, engine: &RxmEngine) {
        engine.lock().check_idle();
    }

    fn buffered(&self, engine: &RxmEngine) -> (usize, usize) {
        engine.lock().buffered()
    }

    fn buffered_cost(&self) -> usize {
        // A message may wait in the buffer that it came in, or be announced by the places it is in.
        let packet = self.config.eager_limit + HEADER_LEN;
        RxMatcher::<RxmUnexpected>::COST + packet.max(RemoteSegments::MOST_BYTES)
    }

    fn something_happens(&mut self, _all: bool) -> bool {
        self.world().something_happens()
    }

    fn cut(&mut self, one: usize, other: usize) -> bool {
        self.world().cut(address(one, 0), address(other, 0))
    }

    fn pass(&mut self, nanos: u64) {
        here::pass(nanos);
    }

    /// Refused calls are tried again.
    fn wait(&mut self) {
        here::pass(5_000_000);
    }

    fn be_prompt(&mut self) {
        self.world().prompt = true;
    }

    fn can_continue(&mut self, still: usize) -> bool {
        here::pass(still as u64 * 100_000_000);
        still <= 30
    }

    /// Number of idle progress iterations per check for connection events.
    const ITERATIONS: usize = 20;
    const DELIVERS_AT_CLOSE: bool = true;

    fn has_left(&self, node: usize) -> bool {
        self.world().has_left(address(node, 0).ip())
    }

    fn check_end(&self) {
        let left = self.world().left();
        assert_eq!(left, [0; 4], "endpoints, contexts, listeners, wires that are not closed");
        HERE.set(None);
    }

    fn describe(&self) -> String {
        format!("{:?} {:?} {:?}", self.core, self.config, self.world().happenings())
    }
}

impl RxmState {
    /// Checks the invariants of any time.
    fn check(&self) {
        for (_, ep) in self.eps.iter() {
            assert!(ep.tx.len() <= ep.identity.attr.tx_size, "{} transfers", ep.tx.len());
            let is_unready = |conn: &RxmConn| !matches!(conn.link, Link::Connected | Link::Ended);
            let unready = ep.conns.iter().filter(|(_, conn)| is_unready(conn)).count();
            assert_eq!(ep.conns.unready(), unready, "connections that are not made");
            for (id, conn) in ep.conns.iter() {
                let ops = ep.tx.iter().filter(|(_, op)| op.conn == id).count();
                assert_eq!(conn.ops, ops, "transfers of connection {id}");
                assert_eq!(conn.stalled, ep.conns.stalled().contains(&id), "connection {id}");
            }
            for (id, peer) in ep.peers.iter() {
                let conns = ep.conns.iter().filter(|(_, conn)| conn.peer == id).count();
                assert_eq!(peer.conns as usize, conns, "connections of peer {id}");
                let named = ep.peers.name_of(id) != ofi_provider::abi::FI_ADDR_NOTAVAIL;
                assert!(
                    conns > 0 || named || ep.matcher.senders.has_buffered_from(id),
                    "peer {id} leaks"
                );
            }
        }
    }

    /// Returns the number of buffered messages and their memory.
    fn buffered(&self) -> (usize, usize) {
        let mut buffered = (0, 0);
        for (_, ep) in self.eps.iter() {
            let (count, bytes) = ep.matcher.check_sums();
            // Endpoints with a shared receive context have one sum.
            let bytes = if ep.matcher.queues.is_shared() {
                bytes.saturating_sub(buffered.1)
            } else {
                bytes
            };
            buffered = (buffered.0 + count, buffered.1 + bytes);
        }
        buffered
    }

    /// Checks the invariants of an idle engine.
    fn check_idle(&self) {
        self.check();
        for (_, ep) in self.eps.iter() {
            assert_eq!(
                (ep.tx.len(), ep.fetches.sizes().count(), ep.conns.stalled().len()),
                (0, 0, 0)
            );
            assert!(ep.parked.is_empty() && ep.handed.is_empty());
            for (id, conn) in ep.conns.iter() {
                let left =
                    [conn.waiting.len(), conn.urgent.len(), conn.partial.len(), conn.announced];
                assert_eq!(left, [0; 4], "of connection {id} something is left");
            }
        }
    }
}

fn run(seed: u64) -> usize {
    WireSim::new(seed).run()
}

#[test]
fn injected_faults_are_detected() {
    for (fault, messages) in [
        (InjectedFault::LostCompletion, &["never completes", "before its fence"][..]),
        (InjectedFault::SecondCompletion, &["completes twice"]),
        (InjectedFault::SwappedMessages, &["got message", "passed over", "Protocol error"]),
        (InjectedFault::LeakedConnection, &["connections"]),
        (InjectedFault::WrongByte, &["the bytes of message", "added at"]),
        (
            InjectedFault::ClosedInUse,
            &["failed without a cause", "was lost", "never completes", "there is no end"],
        ),
    ] {
        seeds::finds(fault, messages, run);
    }
}

/// Proves: the core may report the completion of a request after its response has arrived.
#[test]
fn the_late_end_of_a_request_ends_no_other_transfer() {
    for seed in 0..60 {
        let change = |plan: &mut SimPlan, world: &mut OverWires| {
            (world.core.core_inject, plan.accesses) = (0, 40);
            (world.config.msg_tx_size, world.wires.late) = (16, true);
        };
        seeds::attempt(seed, |seed| WireSim::with(seed, change).run());
    }
}

/// A message written by its sender counts as delivered when it has arrived, not when it has left.
#[test]
fn sender_written_message_is_complete_when_delivery_is_reported() {
    for seed in 0..30 {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (world.core.counted, world.wires.acknowledges) = (false, false);
            let config = &mut world.config;
            (config.rndv_write, config.eager_limit, config.sar_limit) = (true, 256, 0);
        });
        let len = 5000;
        let receive = sim.receive_now((1, 0), len);
        let message = sim.send_immediately(0, (1, 0), len, FI_COMPLETION | FI_DELIVERY_COMPLETE);
        while !sim.is_over(message) {
            sim.rounds(1);
            sim.read(0, usize::MAX);
        }
        assert!(sim.holds(receive, message, len), "seed {seed}");
        sim.settle();
        sim.end_all();
    }
}

/// Other parts of the message succeed after a failed one. Its receive ends as well.
#[test]
fn a_message_fails_with_the_error_of_one_of_its_segments_or_writes() {
    for (seed, written) in (0..60).zip([false, true].into_iter().cycle()) {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (plan.split, world.core.counted) = (true, false);
            let config = &mut world.config;
            (config.rndv_write, config.eager_limit) = (written, 256);
            config.sar_limit = if written { 0 } else { 5000 };
        });
        let (len, flags) = (1000, FI_COMPLETION);
        sim.receive_now((1, 0), len);
        // The connection is made with the first message, whose packets are not to fail.
        let first = sim.send_immediately(0, (1, 0), len, flags);
        while !sim.is_over(first) {
            sim.rounds(1);
            sim.read(0, usize::MAX);
        }
        let receive = sim.receive_now((1, 0), len);
        let message = sim.send_immediately(0, (1, 0), len, flags);
        sim.excuse(0, 1);
        sim.world.world().spoils = if written { FI_WRITE } else { FI_SEND };
        sim.settle();
        assert_eq!(sim.failure(message), Some(Error::ACCES), "seed {seed}");
        assert!(sim.is_over(receive), "seed {seed}");
        sim.end_all();
    }
}

/// Sets up two nodes known to each other, without spontaneous events.
fn two(plan: &mut SimPlan, shape: NodeConfig) {
    (plan.nodes, plan.unknown_peers, plan.shortage) = (2, 0, 0);
    (plan.shape, plan.parts) = (shape, if shape == NodeConfig::Single { 1 } else { 2 });
    plan.tx_size = 16;
}

/// A core makes progress for all endpoints of a domain, at a cost growing with their number.
#[test]
fn core_progress_is_called_once_per_iteration_for_all_endpoints() {
    for (shape, parts) in
        [(NodeConfig::Single, 1), (NodeConfig::Scalable, 2), (NodeConfig::Scalable, 4)]
    {
        let mut sim = WireSim::with(1, |plan, _| {
            two(plan, shape);
            (plan.parts, plan.tx_size) = (parts, 4);
        });
        let before = ASKED.get();
        (0..10).for_each(|_| sim.poll_alone(1));
        assert_eq!(ASKED.get() - before, 10, "{parts} endpoints");
        sim.end_all();
    }
}

/// A core endpoint with a failed open for lack of memory leaves its request unanswered.
#[test]
fn connection_request_out_of_memory_is_answered_and_retried() {
    for (seed, shape) in (0..40).zip([NodeConfig::Single, NodeConfig::Scalable].into_iter().cycle())
    {
        let mut sim = WireSim::with(seed, |plan, _| two(plan, shape));
        let part = if shape == NodeConfig::Single { 0 } else { 1 };
        let receive = sim.receive_now((1, part), 2000);
        let message = sim.send_immediately(0, (1, part), 2000, FI_COMPLETION);
        here::have_shortage(1, SimRandom::new(seed));
        while here::take_refused_count() == 0 {
            sim.world.something_happens(false);
            sim.poll_alone(1);
        }
        here::have_shortage(0, SimRandom::new(seed));
        sim.settle();
        assert!(sim.is_over(message) && sim.holds(receive, message, 2000), "seed {seed}");
        sim.end_all();
    }
}

#[test]
fn message_missing_a_part_for_lack_of_memory_is_not_received() {
    for seed in 0..40 {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (world.config.eager_limit, world.config.sar_limit) = (256, 5000);
        });
        let message = sim.send_immediately(0, (1, 0), 5000, FI_COMPLETION);
        here::have_shortage(6, SimRandom::new(seed));
        for _ in 0..60 {
            // Several parts are there when one of them finds no memory.
            (0..20).for_each(|_| _ = sim.world.something_happens(false));
            sim.rounds(1);
        }
        here::have_shortage(0, SimRandom::new(seed));
        // Its bytes are compared if it comes at all.
        sim.receive_now((1, 0), 5000);
        sim.settle();
        assert!(sim.is_over(message), "seed {seed}");
        sim.end_all();
    }
}

#[test]
fn unknown_peer_is_dropped_with_its_lost_claimed_message() {
    for seed in 0..40 {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (world.config.eager_limit, world.config.sar_limit) = (256, 0);
        });
        sim.forget(1, 0);
        sim.send_immediately(0, (1, 0), 5000, FI_COMPLETION);
        while sim.buffered(1) == 0 {
            sim.rounds(1);
        }
        sim.claim_now(1);
        sim.cut(0, 1);
        sim.rounds(200);
        assert_eq!(sim.buffered(1), 1);
        // The claim is read, and its message is received without success. The idle check then finds
        // no leak.
        sim.settle();
        assert_eq!(sim.buffered(1), 0);
        sim.end_all();
    }
}

/// The message's start cannot be fetched, because its connection is over; the next one takes its
/// number while both wait to be reported behind an older message.
#[test]
fn message_lost_before_its_report_causes_no_duplicate_report() {
    for seed in 0..150 {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Buffered);
            plan.tags = false;
            (world.core.counted, world.wires.rejections) = (false, 0);
            let config = &mut world.config;
            (config.rndv_write, config.eager_limit, config.sar_limit) = (false, 256, 0);
        });
        sim.send_immediately(0, (1, 0), 5000, FI_COMPLETION);
        while sim.buffered(1) == 0 {
            sim.rounds(1);
        }
        for len in [5000, 100, 100] {
            sim.send_immediately(0, (1, 0), len, FI_COMPLETION);
        }
        // The second message comes, and the connection ends, before the node looks again; the
        // first message's start may not be there yet.
        for _ in 0..12 {
            sim.world.something_happens(false);
        }
        sim.cut(0, 1);
        while sim.world.something_happens(false) {}
        // The reported results are compared with the actual ones.
        sim.settle();
        sim.end_all();
    }
}

#[test]
fn telling_of_receives_comes_to_an_end_however_few_there_are() {
    for (seed, size) in (0..40).zip([2, 3, 4, 5].into_iter().cycle()) {
        let change = |_: &mut SimPlan, world: &mut OverWires| {
            world.core.counted = true;
            (world.config.use_srx, world.config.msg_rx_size) = (Some(false), Some(size));
        };
        seeds::attempt(seed, |seed| WireSim::with(seed, change).run());
    }
}

/// Segments, and payload read or written, take the further connections, of either side's making.
#[test]
fn large_messages_use_further_connections() {
    for (seed, count) in (0..40).zip([1, 2, 4].into_iter().cycle()) {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (plan.tx_size, world.core.counted) = (64, false);
            let config = &mut world.config;
            config.max_connections = None;
            (config.num_msg_eps, config.eager_limit, config.sar_limit) = (count, 256, 2000);
        });
        let mut sent = Vec::new();
        for round in 0..20 {
            let (len, from) = ([1000, 5000][round / 2 % 2], round % 2);
            let receive = sim.receive_now((1 - from, 0), len);
            let message = sim.send_immediately(from, (1 - from, 0), len, FI_COMPLETION);
            sent.push((receive, message, len));
            while !sim.is_over(message) {
                sim.rounds(1);
                sim.read(from, usize::MAX);
            }
        }
        sim.settle();
        for (receive, message, len) in sent {
            assert!(sim.holds(receive, message, len), "seed {seed}");
        }
        for node in 0..2 {
            let engine = sim.engine(node).unwrap();
            let conns = engine.lock().eps.iter().map(|(_, ep)| ep.conns.len()).sum::<usize>();
            assert_eq!(conns, count, "seed {seed}");
        }
        sim.end_all();
    }
}

/// A peer of another library is probed before the first request for a further connection.
#[test]
fn other_libraries_are_probed_for_further_connections() {
    for seed in 0..20 {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (plan.tx_size, world.core.counted) = (64, false);
            let config = &mut world.config;
            config.max_connections = None;
            (config.num_msg_eps, config.eager_limit, config.sar_limit) = (2, 256, 2000);
        });
        for (round, conns) in [1, 1, 2, 2].into_iter().enumerate() {
            let receive = sim.receive_now((1, 0), 100 + round * 900);
            let message = sim.send_immediately(0, (1, 0), 100 + round * 900, FI_COMPLETION);
            sim.settle();
            assert!(sim.is_over(message) && sim.holds(receive, message, 100 + round * 900));
            let engine = sim.engine(0).unwrap();
            for (_, ep) in engine.lock().eps.iter_mut() {
                assert_eq!(ep.conns.len(), conns, "seed {seed}, round {round}");
                let ids = ep.conns.indices(|_| true);
                ids.into_iter().for_each(|id| ep.conns[id].ours = false);
            }
        }
        sim.end_all();
    }
}

#[test]
fn peer_with_fewer_connections_is_not_called_again() {
    for seed in 0..20 {
        let mut sim = WireSim::with(seed, |plan, world| {
            two(plan, NodeConfig::Single);
            (plan.tx_size, world.core.counted) = (64, false);
            let config = &mut world.config;
            config.max_connections = None;
            (config.num_msg_eps, config.eager_limit, config.sar_limit) = (4, 256, 2000);
        });
        // The other node knows the first connection only.
        sim.engine(1).unwrap().lock().eps.iter_mut().for_each(|(_, ep)| ep.conns.limit_to(1));
        for _ in 0..20 {
            let receive = sim.receive_now((1, 0), 1000);
            let message = sim.send_immediately(0, (1, 0), 1000, FI_COMPLETION);
            sim.settle();
            assert!(sim.is_over(message) && sim.holds(receive, message, 1000), "seed {seed}");
        }
        let engine = sim.engine(0).unwrap();
        let mut state = engine.lock();
        for (_, ep) in state.eps.iter_mut() {
            assert_eq!(ep.conns.len(), 1, "seed {seed}");
            let first = ep.conns.indices(|_| true)[0];
            (0..10).for_each(|_| assert_eq!(ep.conns.spread(first), first));
            assert!(ep.conns.wanted.is_empty(), "seed {seed}");
        }
        drop(state);
        drop(engine);
        sim.end_all();
    }
}

/// Sets up three nodes with at most one connection each.
fn limited(seed: u64) -> WireSim {
    WireSim::with(seed, |plan, world| {
        two(plan, NodeConfig::Single);
        plan.nodes = 3;
        (world.config.max_connections, world.config.num_msg_eps) = (Some(1), 1);
        world.wires.rejections = 0;
    })
}

/// Sends a message and waits for its completion.
fn exchange(sim: &mut WireSim, from: usize, to: usize) {
    let receive = sim.receive_now((to, 0), 100);
    let message = sim.send_immediately(from, (to, 0), 100, FI_COMPLETION);
    while !sim.is_over(message) {
        sim.rounds(1);
        sim.read(from, usize::MAX);
    }
    while !sim.is_over(receive) {
        sim.rounds(1);
        sim.read(to, usize::MAX);
    }
    assert!(sim.holds(receive, message, 100));
}

/// Returns the number of a node's connections, and of those closed at the limit.
fn conns(sim: &WireSim, node: usize) -> (usize, u64) {
    let engine = sim.engine(node).unwrap();
    let state = engine.lock();
    let eps = state.eps.iter();
    eps.fold((0, 0), |sum, (_, ep)| (sum.0 + ep.conns.len(), sum.1 + ep.limit.closed_idle))
}

#[test]
fn idle_connection_is_closed_at_the_limit_and_opened_by_the_next_message() {
    for seed in 0..20 {
        let mut sim = limited(seed);
        for (closed, to) in [1, 2, 1, 2].into_iter().enumerate() {
            exchange(&mut sim, 0, to);
            assert_eq!(conns(&sim, 0), (1, closed as u64), "seed {seed}: after a message to {to}");
        }
        sim.settle();
        sim.end_all();
    }
}

/// An endpoint connected to itself has both ends of the connection.
#[test]
fn connection_of_an_endpoint_to_itself_is_closed_at_the_limit() {
    for seed in 0..20 {
        let mut sim = limited(seed);
        for to in [0, 1, 0, 2] {
            exchange(&mut sim, 0, to);
            sim.rounds(40);
        }
        let (open, closed) = conns(&sim, 0);
        assert!(open == 1 && closed > 1, "seed {seed}: {open} open, {closed} closed");
        sim.settle();
        sim.end_all();
    }
}

#[test]
fn accepting_end_closes_its_idle_connection_as_well() {
    for seed in 0..20 {
        let mut sim = limited(seed);
        for from in [1, 2, 1, 2] {
            exchange(&mut sim, from, 0);
        }
        sim.settle();
        assert_eq!(conns(&sim, 0).0, 1, "seed {seed}");
        sim.end_all();
    }
}

#[test]
fn connection_with_an_unmatched_message_stays_beyond_the_limit() {
    for seed in 0..20 {
        let mut sim = limited(seed);
        let message = sim.send_immediately(0, (1, 0), 100, FI_COMPLETION | FI_MATCH_COMPLETE);
        sim.rounds(40);
        exchange(&mut sim, 0, 2);
        assert!(!sim.is_over(message));
        assert_eq!(conns(&sim, 0), (2, 0), "seed {seed}");
        sim.settle();
        sim.end_all();
    }
}

/// Peers of another library, or of an earlier release, do not agree on the end of a connection.
#[test]
fn connection_to_a_peer_without_the_agreement_stays_beyond_the_limit() {
    for seed in 0..20 {
        let mut sim = limited(seed);
        exchange(&mut sim, 0, 1);
        for (_, ep) in sim.engine(0).unwrap().lock().eps.iter_mut() {
            let ids = ep.conns.indices(|_| true);
            ids.into_iter().for_each(|id| ep.conns[id].usage.closes = false);
        }
        (0..3).for_each(|_| exchange(&mut sim, 0, 2));
        assert_eq!(conns(&sim, 0), (2, 0), "seed {seed}");
        exchange(&mut sim, 0, 1);
        sim.settle();
        sim.end_all();
    }
}

#[test]
fn transfers_held_for_the_end_of_a_connection_leave_when_the_peer_uses_it() {
    for seed in 0..20 {
        let mut sim = limited(seed);
        exchange(&mut sim, 0, 1);
        let engine = sim.engine(1).unwrap();
        for (_, ep) in engine.lock().eps.iter_mut() {
            // The peer requests the end, and uses the connection before the answer.
            let id = ep.conns.indices(|_| true)[0];
            idle_closer::request(ep, id, here::now());
        }
        drop(engine);
        exchange(&mut sim, 1, 0);
        exchange(&mut sim, 0, 1);
        assert_eq!((conns(&sim, 0).1, conns(&sim, 1).1), (0, 0), "seed {seed}");
        sim.settle();
        sim.end_all();
    }
}

/// Each node has few descriptors for connections, and any configured limit.
#[test]
fn endpoints_with_few_descriptors_complete_each_operation_once() {
    for seed in (90..120).chain([403]) {
        let change = |plan: &mut SimPlan, world: &mut OverWires| {
            (plan.shortage, plan.cuts, plan.closes, plan.parts) = (0, 0, 0, 1);
            plan.shape = NodeConfig::Single;
            plan.nodes = 8;
            world.wires.descriptors = Some([6, 7, 8, 4, 5][seed as usize % 5]);
            world.config.num_msg_eps = 1;
        };
        seeds::attempt(seed, |seed| WireSim::with(seed, change).run());
    }
}

/// Contexts of scalable endpoints, connections of an endpoint to itself, and crossing calls use
/// several descriptors.
#[test]
fn endpoints_of_any_kind_with_few_descriptors_complete_each_operation_once() {
    let few = [(14, 142), (12, 103), (12, 142), (10, 166), (10, 338), (8, 142), (8, 453)];
    for (descriptors, seed) in few.into_iter().chain([53, 109, 142].map(|seed| (16, seed))) {
        let change = |_: &mut SimPlan, world: &mut OverWires| {
            world.wires.descriptors = Some(descriptors);
        };
        seeds::attempt(seed, |seed| WireSim::with(seed, change).run());
    }
}

#[test]
fn a_seed_does_the_same_each_time() {
    for seed in [3, 77, 1234] {
        let ran = [(); 2].map(|()| {
            let mut sim = WireSim::new(seed);
            sim.run();
            sim.completions()
        });
        assert_eq!(ran[0], ran[1], "seed {seed}");
    }
}

#[test]
fn random_endpoint_events_complete_each_operation_once() {
    seeds::run_all(200, run);
}
