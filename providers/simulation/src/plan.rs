//! Plan of a simulation, and the world supplied by a provider.
use crate::here;
use crate::oracle::PARTS;
use crate::random::SimRandom;
use ofi_provider::endpoint::{RdmAttr, RdmEngine};
use std::net::SocketAddr;
use std::sync::Arc;

/// Endpoints of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeConfig {
    /// One.
    Single,
    /// Several endpoints with separate addresses, sharing a receive context.
    Shared,
    /// One with buffered receives.
    Buffered,
    /// One scalable one with several transmit and receive contexts.
    Scalable,
}

/// Initial decisions of a seed.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of steps of the simulation.
    pub steps: usize,
    /// One step in so many cuts a link; 0: none does.
    pub cuts: usize,
    /// One step in so many closes an endpoint, or begins one anew.
    pub closes: usize,
    /// One step in so many changes an address vector.
    pub renames: usize,
    /// Largest message.
    pub largest: usize,
    /// Entries of completion queues.
    pub cq_size: usize,
    /// Transfers under way before -FI_EAGAIN.
    pub tx_size: usize,
    /// Maximum bytes of an injected operation.
    pub inject_size: usize,
    /// A receive's source takes part in matching.
    pub directed: bool,
    /// Nodes initially unknown to each other: one pair in this many.
    pub unknown_peers: usize,
    /// Each endpoint is of a process of its own, another one when it comes again.
    pub processes: bool,
    /// A queue is read in one of so many steps.
    pub reads: usize,
    /// Percentage of operations accessing a peer's memory.
    pub accesses: usize,
    /// Endpoints of a node.
    pub shape: NodeConfig,
    /// Endpoints or contexts of a node.
    pub parts: usize,
    /// Memory for data from peers is denied once in this many times; 0: never.
    pub shortage: usize,
    /// There is a hostile peer outside the nodes violating the protocol, if the world has one.
    pub hostile: bool,
    /// Nodes with buffered receives post tags before the end, too.
    pub tags: bool,
    /// The memory of a receive is in two parts.
    pub split: bool,
    /// Messages are sent with FI_MATCH_COMPLETE as well.
    pub shares_memory: bool,
    /// A match notice of a message implies its receipt.
    pub matched_is_received: bool,
    /// A delivery report of a message implies its receipt.
    pub delivered_is_received: bool,
    /// Reads and writes are executed in the order of posting; else the nodes use fences.
    pub ordered_accesses: bool,
}

impl SimPlan {
    pub(crate) fn of(random: &mut SimRandom) -> Self {
        let calm = random.below(2) == 0;
        let rare = |random: &mut SimRandom, of: &[usize]| if calm { 0 } else { random.pick(of) };
        let shape = match random.below(8) {
            0 => NodeConfig::Shared,
            1 => NodeConfig::Scalable,
            2 => NodeConfig::Buffered,
            _ => NodeConfig::Single,
        };
        let parts = if matches!(shape, NodeConfig::Shared | NodeConfig::Scalable) {
            1 + random.below(PARTS)
        } else {
            1
        };
        Self {
            nodes: 2 + random.pick(&[0, 0, 0, 1, 1, 2, 3, 6]),
            steps: random.pick(&[150, 300, 300, 600]),
            cuts: rare(random, &[0, 60, 200]),
            closes: rare(random, &[0, 0, 100, 250]),
            renames: rare(random, &[0, 0, 80, 250]),
            largest: random.pick(&[64, 2000, 6000, 60_000]),
            cq_size: random.pick(&[4, 16, 64, 256]),
            tx_size: random.pick(&[1, 4, 32, 128]),
            inject_size: random.pick(&[0, 64, 1500]),
            directed: random.below(2) == 0,
            unknown_peers: random.pick(&[0, 0, 6]),
            processes: random.below(2) == 0,
            reads: random.pick(&[3, 8, 30]),
            accesses: 14,
            shape,
            parts,
            shortage: if calm { 0 } else { random.pick(&[0, 0, 0, 30, 200]) },
            hostile: random.one_in(6) && shape != NodeConfig::Buffered,
            tags: random.one_in(2),
            split: false,
            shares_memory: false,
            matched_is_received: false,
            delivered_is_received: false,
            ordered_accesses: true,
        }
    }
}

/// Role of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointRole {
    /// An endpoint of reliable datagrams.
    Rdm,
    /// A shared receive context.
    SharedRx,
    /// A connected endpoint.
    Connected,
}

/// Position of an engine: its node, a unique number, and the memory exposed to peers under
/// [`key`](Self::key).
#[derive(Debug)]
pub struct NodeEnv<'a> {
    /// The node.
    pub node: usize,
    /// The engine's number.
    pub life: u32,
    /// Memory for peers, valid until the engine's world has [ended](SimWorld::end) it.
    pub memory: &'a mut [u8],
    /// The memory's key.
    pub key: u64,
}

/// Transport of a provider below its engines in a simulation, with checks of their state.
pub trait SimWorld: Sized {
    /// Engines under test.
    type Engine: RdmEngine;
    /// State of an engine's transport.
    type Underlying;

    /// Creates the world of a seed: draws its own parameters from `random`, and later events from
    /// `own`.
    fn new(random: &mut SimRandom, own: SimRandom, plan: &mut SimPlan) -> Self;
    /// Starts after all decisions. The world may change the parts not supported by it.
    fn begin(&mut self, _plan: &mut SimPlan) {}
    /// A new engine.
    fn engine(&mut self, plan: &SimPlan, env: NodeEnv<'_>)
    -> (Arc<Self::Engine>, Self::Underlying);
    /// Returns the identity of an endpoint with this role and address, from its opening on.
    fn identity(
        &self,
        role: EndpointRole,
        local: SocketAddr,
        attr: RdmAttr,
    ) -> <Self::Engine as RdmEngine>::Identity;
    /// Ends an engine and its transport, after all its endpoints are closed, and checks for
    /// leftovers. This is the last reference to it.
    fn end(&mut self, engine: Arc<Self::Engine>, underlying: Self::Underlying);

    /// Runs a progress iteration of an engine, and checks the invariants of any time.
    fn poll_once(&mut self, engine: &Self::Engine, underlying: &mut Self::Underlying);
    /// Checks the invariants of an idle engine.
    fn check_idle(&self, engine: &Self::Engine);
    /// Returns the number of messages buffered by an engine, and their memory.
    fn buffered(&self, engine: &Self::Engine) -> (usize, usize);
    /// Returns the maximum cost of a buffered message in addition to its bytes.
    fn buffered_cost(&self) -> usize;

    /// Returns true if endpoints take buffers in memory of devices ([`device`](crate::device)).
    fn has_devices(&self) -> bool {
        false
    }
    /// Returns true if all data passed by a node's engine to its transport has left the node.
    fn has_left(&self, _node: usize) -> bool {
        true
    }
    /// Executes an event on a link, or with `all` all possible events; returns false if none is
    /// possible.
    fn something_happens(&mut self, all: bool) -> bool;
    /// Cuts the links between two nodes; returns true if there was any.
    fn cut(&mut self, one: usize, other: usize) -> bool;
    /// Acts as a hostile peer at this address.
    fn poll_listener(&mut self, _random: &mut SimRandom, _at: SocketAddr) {}
    /// Returns the simulated time, in nanoseconds.
    fn nanos(&self) -> u64 {
        here::nanos()
    }
    /// A step of time.
    fn pass(&mut self, nanos: u64);
    /// Time passes until something is due.
    fn wait(&mut self);
    /// Nothing is late or refused any more.
    fn be_prompt(&mut self);
    /// Nothing moved in so many rounds: false if nothing will ever.
    fn can_continue(&mut self, still: usize) -> bool;
    /// Progress iterations of a node in each round of all nodes.
    const ITERATIONS: usize;
    /// Data accepted by a node reaches the others although its endpoints close.
    const DELIVERS_AT_CLOSE: bool = false;
    /// Nothing may be left when all nodes have ended.
    fn check_end(&self);
    /// Describes a world without termination, for diagnosis.
    fn describe(&self) -> String;
}
