//! Simulator of endpoints, each with a separate engine, over links in memory ([`rings`]) with
//! delays, splits and cuts. There are no sockets, threads or real time: one seed determines all
//! events and their timing. The operations of endpoints and their expected results are those of all
//! simulators (`ofi_simulation`).
//!
//! Links are wrapped like those of providers ([`PskTransport`](crate::psk_transport::PskTransport),
//! [`ShmUpgrade`](crate::shm_upgrade::ShmUpgrade)). In some worlds their ends perform the shared-memory upgrade, over the system's sockets, and move to
//! memory created by the system. Data there is available at once; the time of each poll is drawn
//! from the seed.
#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod devices;
mod direction;
#[cfg(test)]
mod early_data;
#[cfg(test)]
mod lost_answers;
mod passive;
pub mod rings;
#[cfg(test)]
mod storm;
mod unknown_peer;

use super::arrival::UnexpectedPayload;
use super::ep::{StreamEngineEp, StreamEpKind, StreamIdentity, TargetOf};
use super::handshake::{Handshake, RETRY, UNANSWERED_MOST};
use super::{StreamEngine, StreamRequest, StreamState};
use crate::multi_rail::{MultiRail, RailLink};
use crate::objects::StreamEndpointExt;
use crate::psk_transport::{PskLink, PskTransport};
use crate::secret::PskConfig;
use crate::settings::{LocalSettings, RailSettings, StreamSettings};
use crate::shm_upgrade::{ShmUpgrade, UpgradableLink};
use crate::transport::{ByteLink, FlushTarget};
use ofi_provider::abi::{
    FI_ADDR_UNSPEC, FI_ATOMIC, FI_MULTI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA,
};
use ofi_provider::api::{ConnRequest, RecvOp, Reject, request_of_endpoint};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::lock::Level;
use ofi_provider::mr::MrTable;
use ofi_provider::rx_matcher::{Envelope, Recv, RxMatcher};
use ofi_provider::traffic_class::TrafficClass;
pub use ofi_simulation::SimRandom;
use ofi_simulation::{ConnectedWorld, EndpointRole, NodeEnv, Sim, SimPlan, SimWorld, address};
pub use rings::{RingCursor, Rings, StreamWorld};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

/// Transport of an engine in the simulator: authenticated links upgraded to shared memory, like
/// those of providers.
pub type SimNet = ShmUpgrade<MultiRail<PskTransport<Rings>>>;

/// Link of the simulator.
pub type SimLink = UpgradableLink<RailLink<PskLink<RingCursor>>>;

impl From<Rings> for SimNet {
    fn from(rings: Rings) -> Self {
        Self::new(MultiRail::new(PskTransport::new(rings)))
    }
}

impl ConnectedWorld for OverRings {
    type Request = StreamRequest<SimLink>;

    fn listen(&mut self, node: usize) {
        let passive = passive::RingPassive::new(&self.world, address(node, 0)).unwrap();
        self.passive.push(passive);
    }

    fn request(&mut self, node: usize) -> Option<(Vec<u8>, Self::Request)> {
        self.passive[node].request()
    }

    fn reject(&mut self, request: Self::Request) {
        // The caller may have hung up.
        let _ = request.reject(&[]);
    }

    fn ext(&self, request: Option<Self::Request>) -> StreamEndpointExt<SimLink> {
        let of_endpoint = |request| request_of_endpoint(ConnRequest::keep(request, 0)).unwrap();
        StreamEndpointExt::new(StreamEpKind::Msg, None, request.map(of_endpoint))
    }

    fn stop_listening(&mut self) {
        self.passive.clear();
    }
}

/// Bytes of buffered messages guaranteed to every known peer. It includes the size of the one
/// message blocking its connection.
const SURE: usize = 32 << 10;
const COST_OF_BLOCKED: usize = RxMatcher::<UnexpectedPayload>::COST;

/// Engines over rings.
#[derive(Debug)]
pub struct OverRings {
    world: Arc<Mutex<StreamWorld>>,
    settings: &'static StreamSettings,
    /// A thread of the library sends batched messages.
    batch_flusher: bool,
    /// Many links are sent to and received from together.
    batched: bool,
    /// Nodes sleep until the poller has something to tell.
    dozes: bool,
    /// Engines may not read each other's memory any more at some time.
    forbids: bool,
    /// Passive endpoints of nodes with connected endpoints.
    passive: Vec<passive::RingPassive>,
    /// Buffers may be in memory of devices.
    has_devices: bool,
}

/// Transport below one engine.
#[derive(Debug)]
pub struct StreamUnderlying {
    /// The engine's number in the world.
    slot: usize,
    net: Rings,
    /// Value of `iterations` at the start of the engine's sleep; `None` while it is awake.
    asleep: Option<u64>,
    regions: Arc<MrTable>,
    key: u64,
}

/// A simulation of engines over rings.
pub type RingSim = Sim<OverRings>;

/// Maximum steps of a scripted simulation.
const SCRIPTED_STEPS: usize = 300;

/// Runs a simulation controlled by a script: two thirds of it select the operations of endpoints,
/// the rest the fate of bytes on links. It includes a peer violating the protocol. Panics on any
/// error.
pub fn follow(script: &[u8]) {
    let (ops, links) = script.split_at(script.len() / 3 * 2);
    let draws = [ops, links].map(|script| SimRandom::scripted(script.to_vec()));
    let change = |plan: &mut SimPlan, _: &mut OverRings| {
        (plan.steps, plan.hostile) = (SCRIPTED_STEPS, true);
        // More of both takes time rather than other ways.
        (plan.nodes, plan.largest) = (plan.nodes.min(4), plan.largest.min(6000));
    };
    RingSim::drawn(draws, change).run();
}

impl OverRings {
    fn world(&self) -> MutexGuard<'_, StreamWorld> {
        look(&self.world)
    }

    /// Time passes until a timer expires or a visitor comes; false if none will.
    fn passes(&self) -> bool {
        let mut world = self.world();
        match world.next_event() {
            Some(at) => {
                world.nanos = world.nanos.max(at);
                true
            }
            None => false,
        }
    }
}

impl SimWorld for OverRings {
    type Engine = StreamEngine<SimNet>;
    type Underlying = StreamUnderlying;

    fn new(random: &mut SimRandom, own: SimRandom, _plan: &mut SimPlan) -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        let world = StreamWorld::new(*START.get_or_init(Instant::now), own);
        look(&world).apart = random.pick(&[0, 0, 2]);
        Self {
            world,
            settings: {
                // A handshake costs more than most worlds do otherwise.
                let secrecy = match random.below(16) {
                    kind @ 0..2 => 1 + kind,
                    _ => 0,
                };
                &choices()[secrecy][random.below(choices()[secrecy].len())]
            },
            batch_flusher: random.below(4) > 0,
            batched: random.below(5) == 0,
            dozes: random.one_in(3),
            forbids: random.one_in(3),
            passive: Vec::new(),
            has_devices: random.one_in(8),
        }
    }

    fn has_devices(&self) -> bool {
        self.has_devices
    }

    fn begin(&mut self, _plan: &mut SimPlan) {
        rings::choose(Some(self.settings));
    }

    fn engine(
        &mut self,
        _plan: &SimPlan,
        env: NodeEnv<'_>,
    ) -> (Arc<StreamEngine<SimNet>>, StreamUnderlying) {
        let net = Rings::new(&self.world, self.batched);
        let regions = Arc::new(MrTable::new(0));
        let underlying = StreamUnderlying {
            slot: net.node(),
            net: net.clone(),
            asleep: None,
            regions: regions.clone(),
            key: env.key,
        };
        let (memory, rights) = (env.memory, FI_REMOTE_READ | FI_REMOTE_WRITE);
        regions.insert(memory.as_ptr() as usize, memory.len(), rights, 0, env.key).unwrap();
        let engine =
            StreamEngine::new(net.into(), Level::Shared, self.batch_flusher, regions).unwrap();
        (engine, underlying)
    }

    fn identity(&self, role: EndpointRole, local: SocketAddr, attr: RdmAttr) -> StreamIdentity {
        let kind = match role {
            EndpointRole::Rdm => StreamEpKind::Rdm,
            EndpointRole::SharedRx => StreamEpKind::Srx,
            EndpointRole::Connected => StreamEpKind::Msg,
        };
        let (local, target) = (local.into(), TargetOf::new(FI_RMA | FI_ATOMIC));
        StreamIdentity {
            kind,
            behind_firewall: false,
            memory: true,
            local,
            keep_port: false,
            attr,
            target,
            secret: None,
            class: TrafficClass::default(),
            interfaces: self.has_devices.then_some(ofi_simulation::device::INTERFACES),
        }
    }

    fn end(&mut self, engine: Arc<StreamEngine<SimNet>>, underlying: StreamUnderlying) {
        underlying.regions.remove(underlying.key);
        engine.lock().check_empty();
        drop(engine);
        self.world().ended(underlying.slot);
    }

    fn poll_once(&mut self, engine: &StreamEngine<SimNet>, underlying: &mut StreamUnderlying) {
        let flushes = self.world().takes_flush(underlying.slot);
        if flushes {
            engine.flush_deferred();
        }
        let mut state = engine.lock();
        // A call of the application's may have made turns, and so ended the sleep.
        let sleeps = underlying.asleep == Some(state.rx.tx.io.poll.iterations());
        if sleeps && !underlying.net.has_events() && !state.goes_on_by_itself() {
            return;
        }
        state.poll_once();
        if self.forbids && self.world().random.one_in(200) {
            // As when the system does not let a process read another any more.
            state.rx.tx.io.conns.iter().for_each(|(_, conn)| conn.link.stop_reading());
        }
        let sleeps = self.dozes && self.world().random.one_in(2) && state.prepare_to_block();
        underlying.asleep = sleeps.then_some(state.rx.tx.io.poll.iterations());
        state.check();
    }

    fn check_idle(&self, engine: &StreamEngine<SimNet>) {
        engine.lock().check_idle();
    }

    fn buffered(&self, engine: &StreamEngine<SimNet>) -> (usize, usize) {
        engine.lock().buffered()
    }

    fn buffered_cost(&self) -> usize {
        RxMatcher::<UnexpectedPayload>::COST
    }

    fn something_happens(&mut self, all: bool) -> bool {
        self.world().something_arrives(all)
    }

    fn cut(&mut self, one: usize, other: usize) -> bool {
        self.world().cut(&address(one, 0).into(), &address(other, 0).into())
    }

    fn poll_listener(&mut self, random: &mut SimRandom, at: SocketAddr) {
        self.world().poll_listener(random, at);
    }

    fn nanos(&self) -> u64 {
        self.world().nanos
    }

    fn pass(&mut self, nanos: u64) {
        self.world().nanos += nanos;
    }

    fn wait(&mut self) {
        self.passes();
    }

    fn be_prompt(&mut self) {
        let mut world = self.world();
        world.prompt = true;
        // A script may have said that each call gets one byte, which would go on for long.
        world.random = SimRandom::new(1);
        world.unknown_peers_leave();
    }

    fn can_continue(&mut self, still: usize) -> bool {
        // Timers may be set for a much later event, such as the timeout of a silent pending
        // connection. An engine polling memory polls the poller in few of its iterations.
        let quiet = if self.settings.local.enabled { 150 } else { 8 };
        still <= quiet || self.passes()
    }

    const ITERATIONS: usize = 1;
    const DELIVERS_AT_CLOSE: bool = true;

    fn check_end(&self) {
        assert_eq!(self.world().left(), (0, 0), "links and listeners that are not closed");
        rings::choose(None);
    }

    fn describe(&self) -> String {
        format!("{:?}", self.world())
    }
}

/// Returns the modes of peers on one host, selected by seeds: with or without shared memory, with
/// small rings, with exposed buffers, from the first byte on or later, or with no memory for rings.
fn ways() -> [LocalSettings; 7] {
    let off = LocalSettings { memory: usize::MAX / 4, ..LocalSettings::default() };
    let small = LocalSettings { enabled: true, ring: 4096, min: 200, talk: (0, 0), ..off };
    [
        off,
        off,
        small,
        LocalSettings { reads: false, ..small },
        LocalSettings { ring: 64 << 10, min: 3000, talk: (2000, 5), ..small },
        LocalSettings { ring: 8192, min: 1, ..small },
        LocalSettings { memory: 0, ..small },
    ]
}

/// Returns the settings of sockets per link, selected by seeds: one, or several from the first byte on
/// or after some traffic; and one or several of links surviving their loss.
fn rails() -> [RailSettings; 5] {
    let usual = RailSettings::default();
    let several = RailSettings { streams: 4, threshold: 0, segment: 200, ..usual.clone() };
    let (threshold, window) = (3000, u64::MAX);
    let later = RailSettings { streams: 2, threshold, window, segment: 1500, ..usual.clone() };
    let (resume, retain) = (60, 900);
    let (segment, long_segment) = (300, 2000);
    let single = RailSettings { resume, segment, long_segment, retain, ..usual.clone() };
    let both = RailSettings { resume, retain, ..several.clone() };
    [usual, several, later, single, both]
}

/// Limits of connections selected by seeds: fewer than the peers of a node in some.
const LIMITS: [Option<usize>; 4] = [None, None, Some(1), Some(3)];

/// Returns the parameters selected by seeds: for peers without a pre-shared key, for authenticated
/// peers, and for peers with encryption as well.
fn choices() -> &'static [Vec<StreamSettings>; 3] {
    static CHOICES: OnceLock<[Vec<StreamSettings>; 3]> = OnceLock::new();
    CHOICES.get_or_init(|| {
        let mib = 1 << 20;
        let usual = [
            StreamSettings { prefetch: 16 << 10, early_data: 8 << 10, ..StreamSettings::default() },
            StreamSettings { prefetch: 2048, batch: 300, calls: 1, ..StreamSettings::default() },
            StreamSettings {
                prefetch: 16 << 10,
                max_saved_size: 500,
                early_data: 900,
                ..StreamSettings::default()
            },
            StreamSettings {
                prefetch: 4096,
                max_saved: Some(3),
                max_saved_size: 1500,
                ..StreamSettings::default()
            },
            StreamSettings {
                prefetch: 8192,
                max_unexpected: mib / 8,
                calls: 1,
                batch: 0,
                ..StreamSettings::default()
            },
            StreamSettings {
                prefetch: 8192,
                zerocopy_size: 700,
                early_data: usize::MAX,
                ..StreamSettings::default()
            },
            StreamSettings {
                prefetch: 8192,
                zerocopy_size: 3000,
                calls: 2,
                max_saved_size: 5000,
                ..StreamSettings::default()
            },
        ];
        let proven = |encrypt| PskConfig::new(b"the secret of a world", encrypt);
        [PskConfig::default(), proven(false), proven(true)].map(|secret| {
            let all =
                ways().into_iter().flat_map(|local| usual.iter().map(move |usual| (local, usual)));
            let all = all.flat_map(|one| rails().map(|rails| (one, rails)));
            let all = all.flat_map(|one| LIMITS.map(|limit| (one.clone(), limit)));
            all.map(|(((local, usual), rails), max_connections)| StreamSettings {
                local,
                // Early data needs links of one host.
                early_data: if rails == RailSettings::default() { usual.early_data } else { 0 },
                rails,
                max_connections,
                separate_limit: true,
                secret: secret.clone(),
                ..usual.clone()
            })
            .collect()
        })
    })
}

/// Returns the parameters of a seed, among the wanted ones of this secrecy.
#[cfg(test)]
fn choose(
    seed: u64,
    secrecy: usize,
    is_wanted: fn(&StreamSettings) -> bool,
) -> &'static StreamSettings {
    let all: Vec<_> = choices()[secrecy].iter().filter(|one| is_wanted(one)).collect();
    all[seed as usize * 31 % all.len()]
}

fn look(world: &Mutex<StreamWorld>) -> MutexGuard<'_, StreamWorld> {
    world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl StreamState<SimNet> {
    /// Returns true if there is work not reported by any poller: recorded by a call of the
    /// application, or enabled by its next read of a queue.
    fn goes_on_by_itself(&self) -> bool {
        !self.rx.tx.batcher.held().is_empty() || self.rx.tx.io.blocked.resumable() != 0
    }

    /// Checks the invariants of any time.
    fn check(&self) {
        let backlog: usize = self.rx.tx.io.conns.iter().map(|(_, conn)| conn.backlog).sum();
        assert_eq!(self.rx.tx.backlog.total(), backlog);
        for (ep_id, ep) in self.rx.tx.eps.iter() {
            assert!(ep.tx_pending <= ep.identity.attr.tx_size, "{} transfers", ep.tx_pending);
            let mut conns = BTreeMap::<u32, usize>::new();
            for (_, conn) in self.rx.tx.io.conns.iter().filter(|(_, conn)| conn.ep == ep_id) {
                *conns.entry(conn.peer).or_default() += 1;
            }
            for (peer_id, peer) in ep.peers.iter() {
                let count = conns.get(&peer_id).copied().unwrap_or(0);
                assert_eq!(peer.conns as usize, count, "connections of peer {peer_id}");
                let used = peer.conns > 0 || !peer.extra.parked.is_empty();
                let named =
                    ep.matcher.senders.name_of(peer_id) != ofi_provider::abi::FI_ADDR_NOTAVAIL;
                assert!(
                    used || named || ep.matcher.senders.has_buffered_from(peer_id),
                    "peer {peer_id} leaks"
                );
            }
            let mut under_way: usize =
                ep.peers.iter().map(|(_, peer)| peer.extra.parked.len()).sum();
            for (_, conn) in self.rx.tx.io.conns.iter().filter(|(_, conn)| conn.ep == ep_id) {
                under_way += conn.transfers();
            }
            assert_eq!(ep.tx_pending, under_way, "transfers that are not complete");
        }
        for (_, conn) in self.rx.tx.io.conns.iter() {
            assert!(conn.stash.len() <= (64 << 10) + 1024, "a stash of {}", conn.stash.len());
        }
    }

    /// Returns the number of buffered messages and their memory. The memory must not exceed the
    /// bound plus the allowance of each peer.
    fn buffered(&self) -> (usize, usize) {
        // Endpoints with a shared receive context have one sum, which is the context's.
        let is_shared = self.rx.tx.eps.iter().any(|(_, ep)| ep.identity.kind == StreamEpKind::Srx);
        // A connected endpoint has one peer, which has no number.
        let peers = |ep: &StreamEngineEp| match ep.identity.kind {
            StreamEpKind::Msg => 1,
            _ => ep.peers.iter().count(),
        };
        let peers: usize = self.rx.tx.eps.iter().map(|(_, ep)| peers(ep)).sum();
        let alternate = peers * SURE + self.rx.tx.io.conns.len() * COST_OF_BLOCKED;
        let bound = SimLink::settings().max_unexpected + alternate;
        let mut buffered = (0, 0);
        for (_, ep) in self.rx.tx.eps.iter() {
            let (count, bytes) = ep.matcher.check_sums();
            let counts = !is_shared || ep.identity.kind == StreamEpKind::Srx;
            buffered = (buffered.0 + count, buffered.1 + if counts { bytes } else { 0 });
            assert!(bytes <= bound, "{bytes} bytes are kept, of {bound}");
        }
        buffered
    }

    /// Checks the invariants of an idle engine.
    fn check_idle(&self) {
        self.check();
        let blocked = self.rx.tx.io.blocked.pollable();
        assert_eq!((self.rx.tx.backlog.total(), blocked), (0, &[][..]));
        assert!(self.rx.tx.eps.iter().all(|(_, ep)| ep.tx_pending == 0));
        assert!(self.rx.tx.batcher.held().is_empty());
        for (id, conn) in self.rx.tx.io.conns.iter() {
            assert!(conn.tx.is_empty() && conn.batch.is_empty() && conn.stash.is_empty());
            assert!(
                conn.incoming.is_none() && !conn.blocked,
                "connection {id} is blocked: {conn:?}"
            );
        }
    }

    /// Checks the invariants after the last endpoint is closed.
    fn check_empty(&self) {
        let left =
            [self.rx.tx.io.conns.len(), self.rx.tx.eps.iter().count(), self.rx.tx.io.callers.len()];
        assert_eq!(left, [0; 3], "connections, endpoints, callers");
        assert!(self.rx.tx.io.listeners.is_empty());
        assert!(self.rx.tx.io.active.sockets().is_empty() && self.rx.tx.batcher.held().is_empty());
        assert!(self.rx.tx.io.blocked.on_cq().next().is_none());
        assert_eq!(self.rx.tx.backlog.total(), 0);
    }
}

impl super::conn::StreamConn<SimNet> {
    /// Returns the number of incomplete transfers of the application.
    fn transfers(&self) -> usize {
        let own = |finish: &super::transfer::TxCompletion| usize::from(!finish.internal);
        let answer = match &self.incoming {
            Some(incoming) if incoming.is_answer() => 1,
            _ => 0,
        };
        self.batch.finishes().iter().map(own).sum::<usize>()
            + self.tx.iter().map(|one| own(&one.finish)).sum::<usize>()
            + self.zerocopy.as_ref().map_or(0, |zerocopy| zerocopy.transfers())
            + self.unacked.iter().flatten().count()
            + self.waiting.len()
            + self.reads.len()
            + answer
    }
}

/// Removes the second of the receives matching a message, if there are two and no message is
/// buffered.
pub(super) fn take_second(
    matcher: &mut RxMatcher<UnexpectedPayload>,
    envelope: &Envelope,
) -> Option<Recv> {
    let first = matcher.take_posted(envelope)?;
    if first.flags & FI_MULTI_RECV != 0 || matcher.queues.buffered_bytes() > 0 {
        return Some(first);
    }
    let Some(second) = matcher.take_posted(envelope) else { return Some(first) };
    let Recv { buf, context, flags, .. } = first;
    let (src, ignore) = (FI_ADDR_UNSPEC, u64::MAX);
    let again = RecvOp { buf, src, tag: envelope.tag, ignore, context, flags };
    assert!(matcher.post_fast(again, envelope.tagged).is_none());
    Some(second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CloseStep, StreamHeader};
    use ofi_provider::abi::{FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_MORE};
    use ofi_provider::error::Error;
    use ofi_simulation::{ConnectedSim, InjectedFault, NodeConfig, here, seeds};

    fn run(seed: u64) -> usize {
        RingSim::new(seed).run()
    }

    fn connect(seed: u64) -> usize {
        ConnectedSim::<OverRings>::new(seed).run()
    }

    #[test]
    fn injected_faults_are_detected() {
        for (fault, messages) in [
            (InjectedFault::LostCompletion, &["never completes", "before its fence"][..]),
            (InjectedFault::SecondCompletion, &["completes twice"]),
            (
                InjectedFault::SwappedMatch,
                &["got message", "passed over", "of one source only", "does not match"],
            ),
            (InjectedFault::LeakedPeer, &["leaks"]),
            (InjectedFault::UncountedBytes, &["of peer", "subtract with overflow"]),
            (InjectedFault::WrongByte, &["the bytes of message", "read "]),
            (
                InjectedFault::MisplacedWrite,
                &["failed without a cause", "there is no end", "was lost", "never completes"],
            ),
            (InjectedFault::LostSign, &["never completes", "waits", "was lost"]),
        ] {
            seeds::finds(fault, messages, run);
        }
        let messages = &["failed without a cause", "was lost", "never completes"];
        seeds::finds(InjectedFault::ClosedInUse, messages, |seed| {
            let change = |plan: &mut SimPlan, world: &mut OverRings| {
                (plan.nodes, plan.cuts, plan.shape, plan.parts) = (6, 0, NodeConfig::Single, 1);
                world.settings = choose(seed, 0, |one| one.max_connections.is_some());
                world.batched = false;
            };
            RingSim::with(seed, change).run();
        });
    }

    #[test]
    fn faults_injected_into_connections_are_detected() {
        for (fault, messages) in [
            (InjectedFault::LostCompletion, &["never completes", "before its fence"][..]),
            (InjectedFault::SecondCompletion, &["completes twice"]),
            (InjectedFault::SwappedMatch, &["got message", "passed over", "does not match"]),
            (InjectedFault::WrongByte, &["the bytes of message"]),
        ] {
            seeds::finds(fault, messages, connect);
        }
    }

    /// Sets up two nodes known to each other, without spontaneous events.
    pub(super) fn two(plan: &mut SimPlan) {
        (plan.nodes, plan.unknown_peers, plan.shortage) = (2, 0, 0);
        (plan.shape, plan.parts, plan.tx_size) = (NodeConfig::Single, 1, 16);
    }

    /// It may be refused again and again, or there may be no descriptor to call with.
    #[test]
    fn a_peer_without_a_name_is_forgotten_when_calling_it_comes_to_nothing() {
        for (short, answer) in [(false, Some(Vec::new())), (false, None), (true, None)] {
            let mut sim = RingSim::with(1, |plan, _| two(plan));
            let message = sim.send_immediately(0, (1, 0), 100, FI_COMPLETION);
            sim.forget(0, 1);
            sim.excuse(0, 1);
            let (engine, mut rejections) = (sim.engine(0).unwrap(), 0);
            while !sim.is_over(message) {
                let mut state = engine.lock();
                let calling = state.rx.tx.io.conns.iter().map(|(id, _)| id).next();
                if let Some(id) = calling {
                    rejections += 1;
                    Handshake::new(&mut state.rx).on_reject(id, answer.clone());
                }
                drop(state);
                here::have_shortage(usize::from(short), SimRandom::new(1));
                sim.world.passes();
                // Checks that nothing is known of a peer that has neither name nor transfers.
                sim.poll_once(0);
                sim.read(0, usize::MAX);
            }
            let most = if answer.is_some() { RETRY.most } else { UNANSWERED_MOST };
            assert_eq!(rejections, if short { 1 } else { most + 1 });
            drop(engine);
            sim.settle();
            sim.end_all();
        }
    }

    /// The link has space for a part of the batch only, or for all of it, depending on the seed.
    #[test]
    fn a_message_is_acknowledged_before_the_rest_of_its_batch_has_left() {
        let mut early = 0;
        for seed in 0..60 {
            let mut sim = RingSim::with(seed, |plan, world| {
                two(plan);
                plan.cq_size = 64;
                (world.settings, world.batched, world.batch_flusher) =
                    (&choices()[0][0], false, true);
            });
            (0..6).for_each(|_| _ = sim.receive_now((1, 0), 1000));
            sim.send_immediately(0, (1, 0), 100, FI_COMPLETION);
            sim.rounds(40);
            let acked = FI_COMPLETION | FI_DELIVERY_COMPLETE;
            let first = sim.send_immediately(0, (1, 0), 900, acked | FI_MORE);
            for flags in [FI_COMPLETION | FI_MORE, acked | FI_MORE, FI_COMPLETION | FI_MORE, acked]
            {
                sim.send_immediately(0, (1, 0), 900, flags);
            }
            let engine = sim.engine(0).unwrap();
            for _ in 0..12 {
                sim.rounds(1);
                sim.read(0, usize::MAX);
                let mut state = engine.lock();
                let held = state.rx.tx.io.conns.iter().find(|(_, conn)| !conn.batch.is_empty());
                let Some(id) = held.map(|(id, _)| id).filter(|_| sim.is_over(first)) else {
                    continue;
                };
                early += 1;
                if seed % 2 == 0 {
                    // All that is not complete fails, once.
                    sim.excuse(0, 1);
                    state.rx.fail(id, Error::CONNRESET);
                }
                break;
            }
            drop(engine);
            sim.settle();
            sim.end_all();
        }
        assert!(early > 1, "{early}");
    }

    #[test]
    fn cut_between_two_nodes_ends_their_link_and_its_operations() {
        let mut sim = RingSim::with(1, |plan, world| {
            two(plan);
            world.settings = &choices()[0][0];
        });
        sim.send_immediately(0, (1, 0), 100, FI_COMPLETION);
        sim.rounds(40);
        let (engine, acked) = (sim.engine(0).unwrap(), FI_COMPLETION | FI_DELIVERY_COMPLETE);
        let message = sim.send_immediately(0, (1, 0), 100, acked);
        sim.rounds(40);
        assert!(!sim.is_over(message) && engine.lock().rx.tx.io.conns.len() == 1);
        sim.cut(0, 1);
        sim.rounds(40);
        sim.read(0, usize::MAX);
        assert!(sim.is_over(message) && engine.lock().rx.tx.io.conns.is_empty());
        drop(engine);
        sim.settle();
        sim.end_all();
    }

    /// Three nodes with at most one connection each, over sockets.
    fn limited() -> RingSim {
        let limited = choices()[0].iter().find(|one| one.max_connections == Some(1)).unwrap();
        RingSim::with(1, |plan, world| {
            two(plan);
            plan.nodes = 3;
            (world.settings, world.batched, world.batch_flusher) = (limited, false, true);
        })
    }

    /// Sends a message and waits for its completion.
    pub(super) fn exchange(sim: &mut RingSim, from: usize, to: usize) {
        sim.receive_now((to, 0), 100);
        let message = sim.send_immediately(from, (to, 0), 100, FI_COMPLETION);
        while !sim.is_over(message) {
            sim.rounds(40);
            sim.read(from, usize::MAX);
            if !sim.is_over(message) {
                sim.world.passes();
            }
        }
    }

    /// Returns the number of a node's connections, and of those closed at the limit.
    pub(super) fn conns(sim: &RingSim, node: usize) -> (usize, u64) {
        let engine = sim.engine(node).unwrap();
        let state = engine.lock();
        let closed = state.rx.tx.eps.iter().map(|(_, ep)| ep.closed_idle).sum();
        (state.rx.tx.io.conns.len(), closed)
    }

    #[test]
    fn idle_connection_is_closed_at_the_limit_and_opened_by_the_next_message() {
        let mut sim = limited();
        for (closed, to) in [1, 2, 1, 2].into_iter().enumerate() {
            exchange(&mut sim, 0, to);
            assert_eq!(conns(&sim, 0), (1, closed as u64), "after a message to {to}");
        }
        sim.settle();
        sim.end_all();
    }

    #[test]
    fn connection_with_an_unacknowledged_message_stays_beyond_the_limit() {
        let mut sim = limited();
        let message = sim.send_immediately(0, (1, 0), 100, FI_COMPLETION | FI_MATCH_COMPLETE);
        sim.rounds(40);
        exchange(&mut sim, 0, 2);
        assert!(!sim.is_over(message));
        assert_eq!(conns(&sim, 0), (2, 0));
        sim.settle();
        sim.end_all();
    }

    #[test]
    fn peer_that_requests_the_end_again_and_again_is_served_when_it_sends() {
        let mut sim = limited();
        exchange(&mut sim, 0, 1);
        for number in 0..200 {
            let engine = sim.engine(1).unwrap();
            let mut state = engine.lock();
            let (id, _) = state.rx.tx.io.conns.iter().next().unwrap();
            state.rx.tx.send_internal(id, StreamHeader::close(CloseStep::Request, number)).unwrap();
            drop(state);
            sim.rounds(if number % 10 == 0 { 40 } else { 1 });
        }
        sim.rounds(40);
        sim.receive_now((1, 0), 100);
        let message = sim.send_immediately(0, (1, 0), 100, FI_COMPLETION);
        sim.rounds(40);
        sim.read(0, usize::MAX);
        assert!(!sim.is_over(message), "it waits for the end of the connection");
        exchange(&mut sim, 1, 0);
        sim.rounds(40);
        sim.read(0, usize::MAX);
        assert!(sim.is_over(message));
        assert_eq!(conns(&sim, 0), (1, 0));
        sim.settle();
        sim.end_all();
    }

    #[test]
    fn a_script_is_followed_and_its_end_ends_the_steps() {
        follow(&[]);
        let mut random = SimRandom::new(5);
        for len in [10, 300, 3000] {
            follow(&random.bytes(len));
        }
        // Random operations over links that deliver one byte at a time.
        for _ in 0..20 {
            follow(&[random.bytes(600), vec![0; 300]].concat());
        }
    }

    /// Connected endpoints call, accept, reject, shut down and close.
    #[test]
    fn random_connection_events_complete_each_operation_once() {
        seeds::run_all(200, connect);
    }

    #[test]
    fn a_seed_does_the_same_each_time() {
        for seed in [3, 77, 1234] {
            let ran = [(); 2].map(|()| {
                let mut sim = RingSim::new(seed);
                sim.run();
                let nanos = sim.world.world().nanos;
                (nanos, sim.completions())
            });
            assert_eq!(ran[0], ran[1], "seed {seed}");
        }
    }

    #[test]
    fn random_endpoint_events_complete_each_operation_once() {
        seeds::run_all(200, run);
    }
    #[test]
    fn scripts_of_earlier_fuzzing_run_without_an_error() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/stream_sim");
        let scripts: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
        assert!(!scripts.is_empty());
        for script in scripts {
            super::follow(&std::fs::read(script.unwrap().path()).unwrap());
        }
    }
}
