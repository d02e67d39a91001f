//! Connected endpoints (FI_EP_MSG) controlled by a seed: they connect, accept, reject, send,
//! receive, with or without a shared receive context, shut down and close, and connection requests
//! cross.
use crate::here;
use crate::oracle::{CLASSES, OpId, Oracle, OracleOp, payload, tag_of};
use crate::plan::{EndpointRole, NodeEnv, SimPlan, SimWorld};
use crate::queues::{next_event, parent, queue, read_queue};
use crate::random::SimRandom;
use crate::sim::{address, bytes_to_send, context, space_to_receive};
use ofi_provider::abi::{
    FI_ADDR_UNSPEC, FI_COMPLETION, FI_CONNECTED, FI_DELIVERY_COMPLETE, FI_FENCE, FI_INJECT,
    FI_MORE, FI_MULTI_RECV, FI_OPT_MIN_MULTI_RECV, FI_REMOTE_CQ_DATA, FI_SHUTDOWN,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{Bindings, Cm, Endpoint, Msg, RecvOp, SendOp, Tagged};
use ofi_provider::cq::Cq;
use ofi_provider::endpoint::{RdmAttr, RdmEndpoint, RdmEngine};
use ofi_provider::eq::{Eq, FidPtr};
use ofi_provider::error::Error;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Simulated time without a completion after which a simulation has settled: an hour.
const QUIET_NANOS: u64 = 3_600_000_000_000;

/// World with connected endpoints of its engines.
pub trait ConnectedWorld: SimWorld {
    /// A caller's request.
    type Request;

    /// A node's passive endpoint listens.
    fn listen(&mut self, node: usize);
    /// Returns the oldest request received by a node, with the connecting peer's data.
    fn request(&mut self, node: usize) -> Option<(Vec<u8>, Self::Request)>;
    /// A request is rejected.
    fn reject(&mut self, request: Self::Request);
    /// Creates the state of an endpoint opened for a request, or for connecting.
    fn ext(&self, request: Option<Self::Request>) -> <Self::Engine as RdmEngine>::InternalOps;
    /// Passive endpoints are closed.
    fn stop_listening(&mut self);
}

/// Stage of an endpoint's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndStage {
    Calling,
    Made,
    Over,
}

/// Endpoint, with its peer.
struct ConnectedEnd<E: RdmEngine> {
    ep: RdmEndpoint<E>,
    /// Number naming it in events.
    number: usize,
    stage: EndStage,
}

struct ConnectedNode<W: SimWorld> {
    engine: Arc<W::Engine>,
    underlying: W::Underlying,
    srx: Option<RdmEndpoint<W::Engine>>,
    /// Ends by the other node and part: 0 if this node connected, 1 if it accepted.
    ends: BTreeMap<(usize, usize), ConnectedEnd<W::Engine>>,
    queues: [Arc<Cq>; 2],
    eq: Arc<Eq>,
    memory: Vec<u8>,
}

/// A simulation of connected endpoints.
pub struct ConnectedSim<W: ConnectedWorld> {
    world: W,
    plan: SimPlan,
    random: SimRandom,
    nodes: Vec<ConnectedNode<W>>,
    oracle: Oracle,
    numbers: usize,
    /// Endpoints of posted receives; those not listed are in the shared context.
    posted: HashMap<OpId, (usize, usize)>,
    /// Each request is accepted, and no connection may fail or end.
    all_connect: bool,
}

impl<W: ConnectedWorld> ConnectedSim<W> {
    /// The world of a seed.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, |_, _| {})
    }

    /// The world of a seed without rejections and without ends of connections: each connection must be
    /// established. `change` may exclude other causes of a failure.
    pub fn connecting(seed: u64, change: impl FnOnce(&mut SimPlan, &mut W)) -> Self {
        let never = usize::MAX >> 1;
        let mut sim = Self::with(seed, |plan, world| {
            (plan.shortage, plan.cuts, plan.closes) = (0, never, never);
            change(plan, world);
        });
        sim.all_connect = true;
        sim
    }

    fn with(seed: u64, change: impl FnOnce(&mut SimPlan, &mut W)) -> Self {
        here::clear();
        let (mut random, own) = (SimRandom::new(seed), SimRandom::new(!seed));
        let mut plan = SimPlan::of(&mut random);
        let mut world = W::new(&mut random, own, &mut plan);
        change(&mut plan, &mut world);
        world.begin(&mut plan);
        here::have_shortage(plan.shortage, SimRandom::new(random.next()));
        let oracle = Oracle::new(plan.nodes);
        let (nodes, posted) = (Vec::new(), HashMap::new());
        let (numbers, all_connect) = (0, false);
        let mut sim = Self { world, plan, random, nodes, oracle, numbers, posted, all_connect };
        (0..sim.plan.nodes).for_each(|node| here::with_memory(|| sim.begin(node)));
        sim
    }

    fn begin(&mut self, node: usize) {
        let mut memory = vec![0; 8];
        let env = NodeEnv { node, life: node as u32, memory: &mut memory, key: 5 };
        let (engine, underlying) = self.world.engine(&self.plan, env);
        self.world.listen(node);
        let one = queue(self.plan.cq_size);
        let queues = match self.random.below(2) {
            0 => [one.clone(), one],
            _ => [one, queue(self.plan.cq_size)],
        };
        let srx = self.random.one_in(3).then(|| {
            let identity =
                self.world.identity(EndpointRole::SharedRx, address(node, 0), RdmAttr::default());
            let srx = RdmEndpoint::shared_rx(engine.clone(), identity, self.world.ext(None));
            let mut bindings = Bindings::default();
            bindings.completions.rx.report_to(queues[1].clone());
            srx.setopt(FI_OPT_MIN_MULTI_RECV, &512_usize.to_ne_bytes()).unwrap();
            srx.enable(&bindings, None).unwrap();
            srx
        });
        // SAFETY: neither a peer nor a wait set.
        let eq = unsafe { Eq::open(None, std::ptr::null_mut(), parent()) }.unwrap();
        self.oracle.begins(node);
        let ends = BTreeMap::new();
        self.nodes.push(ConnectedNode { engine, underlying, srx, ends, queues, eq, memory });
    }

    /// Opens an endpoint to another node, either connecting to it or accepting its request.
    fn open(&mut self, node: usize, other: usize, request: Option<W::Request>) {
        let SimPlan { tx_size, inject_size, .. } = self.plan;
        let attr = RdmAttr { tx_size, inject_size, ..RdmAttr::default() };
        let part = usize::from(request.is_some());
        let identity = self.world.identity(EndpointRole::Connected, address(node, 1), attr);
        let ext = self.world.ext(request);
        let of = &mut self.nodes[node];
        let ep = RdmEndpoint::new(of.engine.clone(), identity, ext);
        self.numbers += 1;
        let number = self.numbers;
        ep.opened(FidPtr(number as *mut _));
        let mut bindings = Bindings { eq: Some(of.eq.clone()), ..Bindings::default() };
        bindings.completions.tx.report_to(of.queues[0].clone());
        bindings.completions.rx.report_to(of.queues[1].clone());
        if of.srx.is_none() {
            ep.setopt(FI_OPT_MIN_MULTI_RECV, &512_usize.to_ne_bytes()).unwrap();
        }
        ep.enable(&bindings, of.srx.as_ref()).unwrap();
        let result = match part {
            0 => ep.connect(Some(&Addr::Ip(address(other, 0)).to_bytes()), &[node as u8]),
            _ => ep.accept(&[]),
        };
        let failed = result.is_err();
        of.ends.insert((other, part), ConnectedEnd { ep, number, stage: EndStage::Calling });
        if failed {
            // There was no memory, or the caller has hung up.
            assert!(!self.all_connect, "a request is not sent or accepted: {result:?}");
            self.oracle.hurt(node, other);
            self.close(node, (other, part));
        }
        self.note_shortage(node);
    }

    /// Closes an endpoint: the operations posted there may or may not complete.
    fn close(&mut self, node: usize, at: (usize, usize)) {
        self.read(node, usize::MAX);
        let Some(end) = self.nodes[node].ends.remove(&at) else { return };
        self.oracle.hurt(node, at.0);
        end.ep.close();
        drop(end);
        // Receives of a shared context that were being filled are reported.
        self.read(node, usize::MAX);
        let posted = &self.posted;
        self.oracle.end_closes(node, at, |id| posted.get(&id) == Some(&at));
    }

    fn note_shortage(&mut self, node: usize) -> bool {
        let refused = here::take_refused_count() > 0;
        if refused {
            (0..self.plan.nodes).for_each(|other| self.oracle.hurt(node, other));
        }
        refused
    }

    fn read(&mut self, node: usize, most: usize) {
        let mut left = most;
        for cq in self.nodes[node].queues.clone() {
            while left > 0 {
                let Some(entry) = read_queue(&cq) else { break };
                self.oracle.reported(node, &entry);
                left -= 1;
            }
        }
        if left > 0 {
            self.oracle.cq_is_drained(node);
        }
        while let Some((event, number)) = next_event(&self.nodes[node].eq) {
            self.happened(node, event, number);
        }
    }

    /// Handles an event of an endpoint from the event queue; a failure has no event.
    fn happened(&mut self, node: usize, event: Option<u32>, number: usize) {
        let mut ends = self.nodes[node].ends.iter_mut();
        let Some((&(other, _), end)) = ends.find(|(_, end)| end.number == number) else {
            panic!("an event of an endpoint that is closed");
        };
        let is_failed = event.is_none_or(|event| u64::from(event) == u64::from(FI_SHUTDOWN as u32));
        assert!(!(is_failed && self.all_connect), "a connection fails: {event:?}");
        end.stage = match (event.map(u64::from), end.stage) {
            (Some(event), EndStage::Calling) if event == u64::from(FI_CONNECTED as u32) => {
                EndStage::Made
            }
            (Some(event), EndStage::Made) if event == u64::from(FI_SHUTDOWN as u32) => {
                self.oracle.may_end(node, other);
                EndStage::Over
            }
            (None, EndStage::Calling) => EndStage::Over,
            (event, stage) => panic!("event {event:?} of an endpoint that is {stage:?}"),
        };
    }

    fn poll_once(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        self.world.poll_once(&of.engine, &mut of.underlying);
        let buffered = self.world.buffered(&of.engine);
        self.oracle.check_buffered(node, buffered, self.world.buffered_cost());
        self.note_shortage(node);
    }

    /// Returns a random endpoint of a node in a matching stage.
    fn end_of(&mut self, node: usize, is: impl Fn(EndStage) -> bool) -> Option<(usize, usize)> {
        let ends = self.nodes[node].ends.iter().filter(|(_, end)| is(end.stage));
        let ends: Vec<_> = ends.map(|(at, _)| *at).collect();
        (!ends.is_empty()).then(|| self.random.pick(&ends))
    }

    fn act(&mut self, node: usize) {
        match self.random.below(100) {
            0..6 => {
                let other = self.random.below(self.plan.nodes);
                if !self.nodes[node].ends.contains_key(&(other, 0)) {
                    self.open(node, other, None);
                }
            }
            6..14 => self.answer(node),
            14..55 => self.send(node),
            55..92 => self.receive(node),
            92..96 => {
                let receives = self.oracle.receives(node);
                if !receives.is_empty() {
                    let one = self.random.pick(&receives);
                    self.cancel(node, one);
                }
            }
            96..98 => {
                if let Some(at) = self.end_of(node, |stage| stage == EndStage::Over) {
                    self.close(node, at);
                }
            }
            _ if self.random.one_in(self.plan.closes / 30) => {
                let Some(at) = self.end_of(node, |stage| stage != EndStage::Over) else { return };
                if self.random.one_in(2) {
                    return self.close(node, at);
                }
                self.oracle.hurt(node, at.0);
                self.nodes[node].ends[&at].ep.shutdown().unwrap();
            }
            _ => {}
        }
        self.note_shortage(node);
    }

    /// Accepts or rejects a caller.
    fn answer(&mut self, node: usize) {
        let Some((data, request)) = self.world.request(node) else { return };
        let other = usize::from(data[0]);
        let at = (other, 1);
        if self.nodes[node].ends.get(&at).is_some_and(|end| end.stage == EndStage::Over) {
            self.close(node, at);
        }
        if self.nodes[node].ends.contains_key(&at) || (!self.all_connect && self.random.one_in(6)) {
            return self.world.reject(request);
        }
        self.open(node, other, Some(request));
    }

    fn send(&mut self, node: usize) {
        let Some((to, part)) = self.end_of(node, |stage| stage == EndStage::Made) else { return };
        let id = self.oracle.next();
        let largest = self.plan.largest;
        let most = self.random.pick(&[0, 64, 64, 1100, largest, largest]).min(largest);
        let len = self.random.below(most + 1);
        let reports = !self.random.one_in(5);
        let tagged = self.random.below(3) > 0;
        let class = self.random.below(CLASSES as usize + 1) as u64;
        let tag = if tagged { tag_of(id, class) } else { 0 };
        let delivered = self.random.one_in(8);
        let inject = len <= self.plan.inject_size && self.random.one_in(3);
        let data = !tagged && len < 8 || self.random.one_in(8);
        let fenced = self.random.one_in(16);
        let mut flags = 0;
        for (flag, is_set) in [
            (FI_COMPLETION, reports),
            (FI_REMOTE_CQ_DATA, data),
            (FI_DELIVERY_COMPLETE, delivered),
            (FI_INJECT, inject),
            (FI_FENCE, fenced),
            (FI_MORE, self.random.one_in(10)),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mut bytes = payload(id, len);
        let (buf, data) = (bytes_to_send(&bytes), id as u64);
        let op = SendOp { buf, dest: 0, context: context(id), data, tag, flags };
        let ep = &self.nodes[node].ends[&(to, part)].ep;
        let result = if tagged { ep.tsend(op) } else { ep.send(op) };
        let short = self.note_shortage(node);
        match result {
            Ok(()) => {}
            Err(Error::AGAIN) => return,
            Err(Error::NOMEM) if short => return,
            // The event reporting it is not read yet.
            Err(Error::NOTCONN) => return self.oracle.may_end(node, to),
            Err(error) => panic!("a message is refused: {error}"),
        }
        if inject {
            bytes.fill(0xee);
        }
        let order = (part, 1 - part);
        let acked = delivered && self.plan.delivered_is_received;
        let oracle_op = OracleOp::Send { to, order, tagged, tag, len, acked, taken: false };
        self.oracle.took(node, oracle_op, bytes, Box::default(), reports, fenced);
    }

    fn receive(&mut self, node: usize) {
        let tagged = self.random.below(3) > 0;
        let multi = self.random.one_in(10);
        let capacity = match multi {
            true => 512 + self.random.below(4 * self.plan.largest),
            false => self.random.pick(&[64, 2000, self.plan.largest.max(64)]),
        };
        let class = self.random.below(CLASSES as usize + 1) as u64;
        let ignore = tag_of(usize::MAX >> 10, 0);
        let ignore = ignore | if self.random.one_in(3) { CLASSES } else { 0 };
        let at = match self.nodes[node].srx {
            Some(_) => None,
            None => match self.end_of(node, |stage| stage != EndStage::Over) {
                None => return,
                at => at,
            },
        };
        self.post(node, at, tagged, (class, ignore), (capacity, multi));
    }

    fn post(
        &mut self,
        node: usize,
        at: Option<(usize, usize)>,
        tagged: bool,
        (tag, ignore): (u64, u64),
        (capacity, multi): (usize, bool),
    ) {
        let id = self.oracle.next();
        let (tag, ignore) = if tagged { (tag, ignore) } else { (0, 0) };
        let mut bytes = vec![0xdd; capacity];
        let buf = space_to_receive(&mut bytes);
        let flags = FI_COMPLETION | if multi { FI_MULTI_RECV } else { 0 };
        let from = at.map(|(other, _)| (other, None));
        let part = at.map(|(_, part)| part);
        let oracle_op =
            OracleOp::Receive { at: part, tagged, from, tag, ignore, multi, filled: Vec::new() };
        self.oracle.took(node, oracle_op, bytes, Box::default(), true, false);
        self.posted.extend(at.map(|at| (id, at)));
        let op = RecvOp { buf, src: FI_ADDR_UNSPEC, tag, ignore, context: context(id), flags };
        let ep = self.receiver(node, at);
        if tagged { ep.trecv(op) } else { ep.recv(op) }.unwrap();
        self.note_shortage(node);
    }

    fn receiver(&self, node: usize, at: Option<(usize, usize)>) -> &RdmEndpoint<W::Engine> {
        let of = &self.nodes[node];
        match at {
            Some(at) => &of.ends[&at].ep,
            None => of.srx.as_ref().expect("what is posted nowhere else is posted there"),
        }
    }

    fn cancel(&self, node: usize, id: OpId) {
        let at = self.posted.get(&id).copied();
        self.receiver(node, at).cancel(context(id), false).unwrap();
    }

    fn step(&mut self) {
        let nanos = self.random.below(20_000) as u64;
        self.world.pass(nanos);
        let node = self.random.below(self.plan.nodes);
        if self.random.one_in(self.plan.reads) {
            let most = self.random.pick(&[1, 4, usize::MAX]);
            return self.read(node, most);
        }
        match self.random.below(100) {
            0..35 => {
                self.world.something_happens(false);
            }
            35..60 => self.poll_once(node),
            60..98 => self.act(node),
            _ => self.world.wait(),
        }
        let other = self.random.below(self.plan.nodes);
        if self.random.one_in(self.plan.cuts) && node != other && self.world.cut(node, other) {
            self.oracle.hurt(node, other);
        }
    }

    /// Runs until nothing moves, or only timers expire for an hour: a connection without space for an
    /// unexpected message is looked at again and again until it gets a receive.
    fn settle(&mut self) {
        let (mut still, mut completed_at) = (0, self.world.nanos());
        for _ in 0..200_000 {
            let before = self.oracle.completions;
            let mut moved = false;
            while self.world.something_happens(true) {
                moved = true;
            }
            for node in 0..self.plan.nodes {
                self.answer(node);
                self.poll_once(node);
                self.read(node, usize::MAX);
            }
            let has_completed = self.oracle.completions > before;
            if has_completed {
                completed_at = self.world.nanos();
            }
            moved |= self.world.something_happens(true) || has_completed;
            still = if moved { 0 } else { still + 1 };
            let quiet = self.world.nanos() - completed_at;
            if !self.world.can_continue(still) || quiet > QUIET_NANOS {
                return;
            }
        }
        panic!("there is no end: {:?} {}", self.plan, self.world.describe());
    }

    /// Runs all steps, completes all operations, and checks for leftovers. Returns the number of
    /// steps.
    pub fn run(&mut self) -> usize {
        (0..self.plan.steps).for_each(|_| self.step());
        here::have_shortage(0, SimRandom::new(0));
        self.world.be_prompt();
        self.settle();
        let mut ends = self.nodes.iter().flat_map(|node| node.ends.values());
        assert!(!self.all_connect || ends.all(|end| end.stage == EndStage::Made), "no connection");
        for node in 0..self.plan.nodes {
            // Waiting messages get a receive.
            let mut segments = vec![None];
            if self.nodes[node].srx.is_none() {
                let made = |end: &ConnectedEnd<_>| end.stage != EndStage::Over;
                let ends = self.nodes[node].ends.iter().filter(|(_, end)| made(end));
                segments = ends.map(|(at, _)| Some(*at)).collect();
            }
            for at in segments {
                for tagged in [false, true] {
                    let part = at.map(|(_, part)| part);
                    let (count, bytes) = self.oracle.waiting(node, part, tagged);
                    if count > 0 {
                        let capacity = (bytes + 512 + 1024, true);
                        self.post(node, at, tagged, (0, u64::MAX >> 1), capacity);
                    }
                }
            }
        }
        self.settle();
        self.oracle.check_end();
        for node in 0..self.plan.nodes {
            for id in self.oracle.receives(node) {
                self.cancel(node, id);
            }
            self.read(node, usize::MAX);
            let left = self.oracle.receives(node);
            assert_eq!(left, [], "cancelled receives of {node} do not complete");
            self.world.check_idle(&self.nodes[node].engine);
        }
        for node in 0..self.plan.nodes {
            while let Some((at, _)) = self.nodes[node].ends.first_key_value() {
                let at = *at;
                self.close(node, at);
            }
        }
        self.world.stop_listening();
        for node in std::mem::take(&mut self.nodes) {
            let ConnectedNode { engine, underlying, srx, eq, memory, .. } = node;
            srx.iter().for_each(Endpoint::close);
            drop((srx, eq));
            assert_eq!(Arc::strong_count(&engine), 1, "a reference to the engine is left");
            self.world.end(engine, underlying);
            drop(memory);
        }
        self.world.check_end();
        here::clear();
        self.plan.steps
    }
}
