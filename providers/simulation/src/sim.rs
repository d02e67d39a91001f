//! Endpoints controlled by a seed, in a provider's world.
mod calls;

use crate::here;
use crate::oracle::{
    CLASSES, FORGED, OpId, Oracle, OracleOp, ReportedEntry, WINDOW, payload, tag_of,
};
use crate::plan::{EndpointRole, NodeConfig, NodeEnv, SimPlan, SimWorld};
use crate::queues::{parent, queue, read_queue};
use crate::random::SimRandom;
use libc::iovec;
use ofi_provider::abi::{
    FI_ADDR_UNSPEC, FI_CLAIM, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DISCARD, FI_FENCE, FI_INJECT,
    FI_MATCH_COMPLETE, FI_MORE, FI_MULTI_RECV, FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN,
    FI_OPT_MIN_MULTI_RECV, FI_PEEK, FI_REMOTE_CQ_DATA, FI_SOCKADDR_IN, FI_TAGGED, fi_addr_t,
    fi_av_attr, fi_datatype, fi_op, fi_recv_context, fid_av,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{
    Atomic, AtomicOp, Bindings, ContextAttr, Endpoint, Msg, ReadOp, RecvOp, RemoteSegments, Rma,
    RxAttr, SendOp, Tagged, TxAttr, WriteOp,
};
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::av::{Av, AvSharing};
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::cq::{Context, Cq};
use ofi_provider::endpoint::{RdmAttr, RdmEndpoint, RdmEngine};
use ofi_provider::error::{Error, Result};
use ofi_provider::fid::FidObject;
use ofi_provider::info::InfoBuf;
use ofi_provider::reserved::ONLY_TAG;
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Bits of a destination naming the receive context, if nodes have scalable endpoints.
const CONTEXT_BITS: u32 = 4;

/// An endpoint with all it needs.
struct SimNode<W: SimWorld> {
    engine: Arc<W::Engine>,
    underlying: W::Underlying,
    life: u32,
    /// Endpoints in the order of closing.
    all: Vec<RdmEndpoint<W::Engine>>,
    /// Indices of those sending, and of those receiving.
    tx: Vec<usize>,
    rx: Vec<usize>,
    av: Arc<Av>,
    queues: [Arc<Cq>; 2],
    memory: Vec<u8>,
}

impl<W: SimWorld> SimNode<W> {
    fn tx(&self, part: usize) -> &RdmEndpoint<W::Engine> {
        &self.all[self.tx[part]]
    }

    /// Returns the receiving endpoint of a part, or of all.
    fn rx(&self, part: Option<usize>) -> &RdmEndpoint<W::Engine> {
        &self.all[self.rx[part.unwrap_or(0)]]
    }
}

/// Maximum rounds of all nodes spent by a closing node waiting for others.
const DRAIN_ROUNDS: usize = 400;

/// No operation has so large a number, and no structure so small an address.
const LEAST_POINTER: usize = 1 << 20;

/// Key of the nodes' memory, practically impossible to guess.
const KEY: u64 = 0x15_93e7_5ab1_c0d3;

/// Number of nodes in a network.
const NET_SIZE: usize = 250;

/// The address of a part of a node.
pub fn address(node: usize, part: usize) -> SocketAddr {
    let (net, host) = ((node / NET_SIZE) as u8, (node % NET_SIZE) as u8);
    (Ipv4Addr::new(10, 0, net, 1 + host), 7000 + part as u16).into()
}

/// A simulation.
pub struct Sim<W: SimWorld> {
    /// Transport below the engines.
    pub world: W,
    /// Decisions of the seed.
    pub plan: SimPlan,
    random: SimRandom,
    lives: u32,
    nodes: Vec<Option<SimNode<W>>>,
    oracle: Oracle,
    /// Messages reported to nodes with buffered receives and not claimed: the node, the message,
    /// the context of the report, and true if it has a tag.
    reported: Vec<(usize, OpId, usize, bool)>,
    /// Pairs of nodes with writes to be followed by a fence, if they have no order.
    unordered_writes: HashSet<(usize, usize)>,
}

pub(crate) fn context(id: OpId) -> Context {
    Context((id + 1) as *mut _)
}

pub(crate) fn bytes_to_send(bytes: &[u8]) -> SendBuf {
    // SAFETY: the oracle keeps the bytes of all operations; a vector that is moved does not move
    // its bytes.
    unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }.unwrap()
}

pub(crate) fn space_to_receive(bytes: &mut [u8]) -> RecvBuf {
    // SAFETY: as for bytes to send.
    unsafe { RecvBuf::new(bytes.as_mut_ptr().cast(), bytes.len()) }.unwrap()
}

fn half_space(bytes: &mut [u8]) -> RecvBuf {
    let parts = bytes.split_at_mut(bytes.len() / 2);
    let iov = [parts.0, parts.1]
        .map(|part| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    // SAFETY: as for bytes to send; the vector of parts is copied.
    unsafe { RecvBuf::from_iov(iov.as_ptr(), iov.len()) }.unwrap()
}

impl<W: SimWorld> Sim<W> {
    /// The world of a seed.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, |_, _| {})
    }

    /// Creates the world of a seed, with modifications by `change`.
    pub fn with(seed: u64, change: impl FnOnce(&mut SimPlan, &mut W)) -> Self {
        Self::drawn([SimRandom::new(seed), SimRandom::new(!seed)], change)
    }

    /// Creates a world with events drawn from the first of these generators, and link events from
    /// the second.
    pub fn drawn(
        [mut random, own]: [SimRandom; 2],
        change: impl FnOnce(&mut SimPlan, &mut W),
    ) -> Self {
        here::clear();
        crate::device::clear();
        let mut plan = SimPlan::of(&mut random);
        let mut world = W::new(&mut random, own, &mut plan);
        change(&mut plan, &mut world);
        world.begin(&mut plan);
        here::have_shortage(plan.shortage, SimRandom::new(random.next()));
        if plan.hostile {
            (plan.unknown_peers, plan.renames) = (0, 0);
        }
        let nodes = (0..plan.nodes).map(|_| None).collect();
        let mut oracle = Oracle::new(plan.nodes);
        oracle.named_parts = plan.shape == NodeConfig::Shared;
        oracle.hostile = plan.hostile;
        let (reported, unordered_writes) = (Vec::new(), HashSet::new());
        let lives = 0;
        let mut sim =
            Self { world, plan, random, lives, nodes, oracle, reported, unordered_writes };
        (0..sim.plan.nodes).for_each(|node| sim.begin(node));
        sim
    }

    /// Completions so far.
    pub fn completions(&self) -> usize {
        self.oracle.completions
    }

    /// Names of a node in address vectors.
    fn names(&self) -> usize {
        if self.plan.shape == NodeConfig::Shared { self.plan.parts } else { 1 }
    }

    /// Opens a node's endpoint.
    fn begin(&mut self, node: usize) {
        self.lives += 1;
        let life = self.lives;
        let windows = if self.plan.accesses > 0 { self.plan.nodes } else { 1 };
        let mut memory = vec![0; windows * (WINDOW + 8)];
        let env = NodeEnv { node, life, memory: &mut memory, key: KEY };
        let (engine, underlying) = here::with_memory(|| self.world.engine(&self.plan, env));
        // SAFETY: all zeros are the defaults of an attribute structure.
        let mut attr = unsafe { std::mem::zeroed::<fi_av_attr>() };
        attr.rx_ctx_bits =
            if self.plan.shape == NodeConfig::Scalable { CONTEXT_BITS as _ } else { 0 };
        let (format, null) = (FI_SOCKADDR_IN as u32, std::ptr::null_mut());
        // SAFETY: not of a peer.
        let av = unsafe { Av::open(parent(), format, AvSharing::Never, Some(&mut attr), null) };
        let av = av.unwrap();
        let one = queue(self.plan.cq_size);
        let queues = match self.random.below(2) {
            0 => [one.clone(), one],
            _ => [one, queue(self.plan.cq_size)],
        };
        let mut bindings = Bindings { av: Some(av.clone()), ..Bindings::default() };
        bindings.completions.tx.report_to(queues[0].clone());
        bindings.completions.rx.report_to(queues[1].clone());
        let (all, tx, rx) = here::with_memory(|| self.open(&engine, node, &bindings));
        if self.plan.shape == NodeConfig::Buffered {
            for (option, of) in
                [(FI_OPT_BUFFERED_LIMIT, [64, 1500, 16384]), (FI_OPT_BUFFERED_MIN, [0, 0, 60])]
            {
                let value: usize = self.random.pick(&of);
                all[0].setopt(option, &value.to_ne_bytes()).unwrap();
            }
            all[0].enable(&bindings, None).unwrap();
        }
        for part in rx.iter().copied().collect::<std::collections::BTreeSet<_>>() {
            all[part].setopt(FI_OPT_MIN_MULTI_RECV, &512_usize.to_ne_bytes()).unwrap();
        }
        self.oracle.begins(node);
        self.nodes[node] =
            Some(SimNode { engine, underlying, life, all, tx, rx, av, queues, memory });
        for other in 0..self.plan.nodes {
            for part in 0..self.names() {
                if !self.random.one_in(self.plan.unknown_peers) {
                    self.insert(node, (other, part), false);
                }
            }
        }
    }

    /// Opens and enables a node's endpoints: all of them, with the indices of those sending and
    /// receiving.
    #[allow(clippy::type_complexity)]
    fn open(
        &self,
        engine: &Arc<W::Engine>,
        node: usize,
        bindings: &Bindings,
    ) -> (Vec<RdmEndpoint<W::Engine>>, Vec<usize>, Vec<usize>) {
        let SimPlan { directed, tx_size, inject_size, parts, .. } = self.plan;
        let buffered = self.plan.shape == NodeConfig::Buffered;
        let attr = RdmAttr { directed, buffered, tx_size, inject_size, ..RdmAttr::default() };
        let identity = |part, role| self.world.identity(role, address(node, part), attr.clone());
        let each: Vec<_> = (0..parts).collect();
        let open = |part| {
            let identity = identity(part, EndpointRole::Rdm);
            RdmEndpoint::new(engine.clone(), identity, Default::default())
        };
        match self.plan.shape {
            NodeConfig::Single => {
                let one = open(0);
                one.enable(bindings, None).unwrap();
                (vec![one], vec![0], vec![0])
            }
            // It is enabled when its options are set.
            NodeConfig::Buffered => (vec![open(0)], vec![0], vec![0]),
            NodeConfig::Shared => {
                let of_all = identity(0, EndpointRole::SharedRx);
                let srx = RdmEndpoint::shared_rx(engine.clone(), of_all, Default::default());
                let mut receives = Bindings::default();
                receives.completions.rx = bindings.completions.rx.clone();
                srx.enable(&receives, None).unwrap();
                let mut all: Vec<_> = each.iter().map(|part| open(*part)).collect();
                all.iter().for_each(|one| one.enable(bindings, Some(&srx)).unwrap());
                all.push(srx);
                (all, each, vec![parts; parts])
            }
            NodeConfig::Scalable => {
                let mut info = InfoBuf::new().unwrap();
                info.edit_ep(|ep| (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (parts, parts));
                let of_all = identity(0, EndpointRole::Rdm);
                let whole = RdmEndpoint::scalable(engine.clone(), of_all, info.as_ref()).unwrap();
                let tx = TxAttr { size: tx_size, inject_size, ..TxAttr::default() };
                let caps = if directed { ofi_provider::abi::FI_DIRECTED_RECV } else { 0 };
                let rx = RxAttr { caps, ..RxAttr::default() };
                let mut all = Vec::new();
                for attr in [ContextAttr::Tx(tx), ContextAttr::Rx(rx)] {
                    for index in 0..parts {
                        let context = whole.context(index, &attr).unwrap();
                        context.enable(bindings, None).unwrap();
                        all.push(context);
                    }
                }
                whole.enable(bindings, None).unwrap();
                all.push(whole);
                (all, each, (parts..2 * parts).collect())
            }
        }
    }

    fn insert(&mut self, node: usize, (other, part): (usize, usize), later: bool) {
        self.enter(node);
        let Some(of) = &self.nodes[node] else { return };
        let name = of.av.insert(Addr::Ip(address(other, part))).unwrap();
        self.oracle.named(node, (other, part), Some(name), later);
    }

    fn remove(&mut self, node: usize, other: (usize, usize)) {
        let (Some(of), Some(name)) = (&self.nodes[node], self.oracle.name(node, other)) else {
            return;
        };
        let (c, mut name): (*mut fid_av, _) = (of.av.as_c(), name);
        // SAFETY: an open vector and its table.
        let result = unsafe { (*(*c).ops).remove.unwrap()(c, &raw mut name, 1, 0) };
        assert_eq!(result, 0);
        self.oracle.named(node, other, None, true);
    }

    /// Returns true if data of a node has to reach others before its endpoints close.
    fn has_undelivered(&self, node: usize) -> bool {
        self.enter(node);
        let of = self.nodes[node].as_ref();
        of.is_some_and(|of| of.all.iter().any(|ep| !of.engine.undelivered(ep.id).is_empty()))
    }

    /// Delivers the remaining data of a node's endpoints, as on close; returns false if it does not
    /// finish.
    fn drain(&mut self, node: usize) -> bool {
        for _ in 0..DRAIN_ROUNDS {
            if !self.has_undelivered(node) && self.world.has_left(node) {
                return true;
            }
            self.rounds(1);
        }
        false
    }

    /// Closes a node's endpoint, and checks for leftovers.
    pub fn end(&mut self, node: usize) {
        let drained = W::DELIVERS_AT_CLOSE && self.drain(node);
        self.read(node, usize::MAX);
        self.enter(node);
        let Some(SimNode { engine, underlying, all, av, memory, .. }) = self.nodes[node].take()
        else {
            return;
        };
        self.oracle.ends(node, drained);
        self.reported.retain(|(of, ..)| *of != node);
        all.iter().for_each(Endpoint::close);
        drop((all, av));
        assert_eq!(Arc::strong_count(&engine), 1, "a reference to the engine is left");
        self.world.end(engine, underlying);
        // Until now peers could reach the memory, which is registered.
        drop(memory);
    }

    /// Reads a node's queues, up to so many entries.
    pub fn read(&mut self, node: usize, most: usize) {
        let Some(of) = &self.nodes[node] else { return };
        let mut left = most;
        for cq in of.queues.clone() {
            while left > 0 {
                let Some(entry) = read_queue(&cq) else { break };
                if self.plan.shape == NodeConfig::Buffered && entry.context >= LEAST_POINTER {
                    self.is_notified(node, &entry);
                } else {
                    self.oracle.reported(node, &entry);
                }
                left -= 1;
            }
        }
        if left > 0 {
            self.oracle.cq_is_drained(node);
        }
        for id in self.oracle.claims(node) {
            self.claim(node, id);
        }
    }

    /// Handles the report of a message to a node with buffered receives.
    fn is_notified(&mut self, node: usize, entry: &ReportedEntry) {
        let reported = entry.context as *mut fi_recv_context;
        // SAFETY: the structure is there until the message is claimed or dropped.
        let posted = unsafe { (*reported).context } as usize;
        let message = self.oracle.on_rts(node, entry, posted.checked_sub(1));
        let tagged = entry.flags & FI_TAGGED != 0;
        if message != FORGED && entry.flags & FI_MORE == 0 && entry.len > 0 {
            // SAFETY: an entry of a whole message points to its bytes.
            let bytes = unsafe { std::slice::from_raw_parts(entry.buf as *const u8, entry.len) };
            assert!(bytes == &payload(message, entry.len)[..], "the bytes of message {message}");
        }
        self.reported.push((node, message, entry.context, tagged));
    }

    /// Claims or drops a message reported to its node.
    fn settle_notified(&mut self, at: usize) {
        let (node, message, reported, tagged) = self.reported.swap_remove(at);
        let Some(of) = &self.nodes[node] else { return };
        let discards = self.random.one_in(6);
        let (ep, context) = (of.rx(None), Context(reported as *mut _));
        let (mut buf, mut flags) = (RecvBuf::none(), FI_DISCARD);
        let id = self.oracle.next();
        if discards {
            self.oracle.dropped(message);
        } else {
            let capacity = self.random.pick(&[64, 2000, self.plan.largest, self.plan.largest]);
            let mut bytes = vec![0xbb; capacity];
            (buf, flags) = (space_to_receive(&mut bytes), FI_CLAIM | FI_COMPLETION);
            let oracle_op = OracleOp::Claim { at: Some(0), message, discards };
            self.oracle.took(node, oracle_op, bytes, Box::default(), true, false);
            // SAFETY: as above.
            unsafe { (*(reported as *mut fi_recv_context)).context = (id + 1) as *mut _ };
        }
        let op = RecvOp { buf, src: FI_ADDR_UNSPEC, tag: 0, ignore: 0, context, flags };
        if tagged { ep.trecv(op) } else { ep.recv(op) }.unwrap();
        self.note_shortage(node);
    }

    fn look(&mut self, node: usize, id: OpId, (tag, ignore): (u64, u64), flags: u64) {
        let Some(of) = &self.nodes[node] else { return };
        let at = self.oracle.receiver_of(id);
        let buf = space_to_receive(&mut self.oracle.ops[id].buf);
        let op = RecvOp { buf, src: FI_ADDR_UNSPEC, tag, ignore, context: context(id), flags };
        of.rx(at).trecv(op).unwrap();
        self.note_shortage(node);
    }

    /// Returns a tag to receive, and its bits to be ignored.
    fn pattern(&mut self) -> (u64, u64) {
        let class = self.random.below(CLASSES as usize + 1) as u64;
        let numbers = tag_of(usize::MAX >> 10, 0);
        (class, numbers | if self.random.one_in(3) { CLASSES } else { 0 })
    }

    /// From now on this node does something.
    fn enter(&self, node: usize) {
        let of = self.nodes[node].as_ref().filter(|_| self.plan.processes);
        here::be_of_process(of.map(|of| 1000 + of.life));
    }

    /// A node's engine makes progress.
    pub fn poll_once(&mut self, node: usize) {
        self.enter(node);
        let Some(of) = &mut self.nodes[node] else { return };
        self.world.poll_once(&of.engine, &mut of.underlying);
        self.oracle.check_buffered(
            node,
            self.world.buffered(&of.engine),
            self.world.buffered_cost(),
        );
        self.note_shortage(node);
    }

    /// A node's engine makes progress, and refusals of memory are not looked at.
    pub fn poll_alone(&mut self, node: usize) {
        self.enter(node);
        if let Some(of) = &mut self.nodes[node] {
            self.world.poll_once(&of.engine, &mut of.underlying);
        }
    }

    /// Permits broken links to a node after a denial of memory.
    fn note_shortage(&mut self, node: usize) -> bool {
        let refused = here::take_refused_count() > 0;
        if refused {
            (0..self.plan.nodes).for_each(|other| self.oracle.hurt(node, other));
        }
        refused
    }

    fn someone(&mut self) -> usize {
        self.random.below(self.plan.nodes)
    }

    fn size(&mut self) -> usize {
        let largest = self.plan.largest;
        let most = self.random.pick(&[0, 64, 64, 64, 1100, largest, largest]).min(largest);
        self.random.below(most + 1)
    }

    fn step(&mut self) {
        let nanos = self.random.below(20_000) as u64;
        self.world.pass(nanos);
        let node = self.someone();
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
        if self.plan.hostile && self.random.one_in(4) {
            let part = self.random.below(self.names());
            self.world.poll_listener(&mut self.random, address(node, part));
        }
        let other = self.someone();
        if self.random.one_in(self.plan.cuts) && node != other && self.world.cut(node, other) {
            self.oracle.hurt(node, other);
        }
        if self.random.one_in(self.plan.closes) {
            match self.nodes[node] {
                Some(_) => self.end(node),
                None => self.begin(node),
            }
        }
        if self.random.one_in(self.plan.renames) {
            let names = self.names();
            let other = (other, self.random.below(names));
            match self.oracle.name(node, other) {
                Some(_) => self.remove(node, other),
                None => self.insert(node, other, true),
            }
        }
    }

    /// A node posts an operation.
    fn act(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            return;
        }
        self.enter(node);
        let accesses = self.plan.accesses;
        match self.random.below(86 + accesses) {
            0..40 => self.send_something(node),
            40..80 if self.plan.shape == NodeConfig::Buffered => self.receive_buffered(node),
            40..76 => self.receive(node),
            76..80 => self.peek(node),
            80..86 => self.cancel(node),
            _ => self.access(node),
        }
        self.note_shortage(node);
    }

    /// Returns the destination address of a node for a part of another; none if it knows no name.
    fn dest(&self, node: usize, (other, part): (usize, usize)) -> Option<fi_addr_t> {
        match self.plan.shape {
            NodeConfig::Scalable => {
                let name = self.oracle.name(node, (other, 0))?;
                Some((part as u64) << (64 - CONTEXT_BITS) | name)
            }
            _ => self.oracle.name(node, (other, part)),
        }
    }

    /// Returns a random destination known to a node: the other node, its part, and the address.
    fn known(&mut self, node: usize, first: bool) -> Option<(usize, usize, fi_addr_t)> {
        let other = self.someone();
        let part = if first { 0 } else { self.random.below(self.plan.parts) };
        Some((other, part, self.dest(node, (other, part))?))
    }

    fn op_flags(&mut self) -> (u64, bool) {
        let reports = !self.random.one_in(5);
        let mut flags = if reports { FI_COMPLETION } else { 0 };
        if self.random.one_in(16) {
            flags |= FI_FENCE;
        }
        if self.random.one_in(10) {
            flags |= FI_MORE;
        }
        (flags, reports)
    }

    /// Returns true if an operation was accepted. A full queue may reject one temporarily, and so
    /// may a shortage of memory.
    fn is_taken(&mut self, node: usize, result: Result) -> bool {
        let short = self.note_shortage(node);
        match result {
            Ok(()) => true,
            Err(Error::AGAIN) => false,
            Err(Error::NOMEM) if short => false,
            Err(error) => panic!("an operation is refused: {error}"),
        }
    }

    /// Has a node forget another's name.
    pub fn forget(&mut self, node: usize, other: usize) {
        self.enter(node);
        self.remove(node, (other, 0));
    }

    /// Cuts the links between two nodes.
    pub fn cut(&mut self, node: usize, other: usize) {
        assert!(self.world.cut(node, other));
        self.oracle.hurt(node, other);
    }

    /// Permits failures of operations in progress between two nodes from now on.
    pub fn excuse(&mut self, node: usize, other: usize) {
        self.oracle.hurt(node, other);
    }

    /// A node's engine.
    pub fn engine(&self, node: usize) -> Option<Arc<W::Engine>> {
        self.nodes[node].as_ref().map(|of| of.engine.clone())
    }

    /// Returns the number of messages buffered by a node's engine.
    pub fn buffered(&self, node: usize) -> usize {
        self.nodes[node].as_ref().map_or(0, |of| self.world.buffered(&of.engine).0)
    }

    /// Runs `count` rounds, each with an event on a link and progress of all nodes.
    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.world.something_happens(false);
            self.world.pass(1000);
            (0..self.plan.nodes).for_each(|node| self.poll_once(node));
        }
    }

    /// Returns true if an operation is complete.
    pub fn is_over(&self, id: usize) -> bool {
        self.oracle.ops[id].over
    }

    /// Returns the error of a failed transfer; none if it has not failed.
    pub fn failure(&self, id: usize) -> Option<Error> {
        self.oracle.ops[id].failure
    }

    /// Returns true if the buffer of a receive holds this message.
    pub fn holds(&self, receive: usize, message: usize, len: usize) -> bool {
        self.oracle.ops[receive].buf[..len] == payload(message, len)[..]
    }

    /// Runs all remaining events.
    pub fn settle(&mut self) {
        here::have_shortage(0, SimRandom::new(0));
        self.world.be_prompt();
        let mut still = 0;
        for _ in 0..200_000 {
            let before = self.oracle.completions;
            let mut moved = false;
            while self.world.something_happens(true) {
                moved = true;
            }
            for node in 0..self.plan.nodes {
                (0..W::ITERATIONS).for_each(|_| self.poll_once(node));
                self.read(node, usize::MAX);
                (0..self.reported.len()).rev().for_each(|at| self.settle_notified(at));
            }
            moved |= self.world.something_happens(true) || self.oracle.completions > before;
            still = if moved { 0 } else { still + 1 };
            if !self.world.can_continue(still) {
                return;
            }
        }
        panic!("there is no end: {:?} {}", self.plan, self.world.describe());
    }

    /// Runs all steps, completes all operations, and checks for leftovers. Returns the number of
    /// steps.
    pub fn run(&mut self) -> usize {
        for _ in 0..self.plan.steps {
            if self.random.is_spent() {
                break;
            }
            self.step();
        }
        self.receive_all();
        self.settle();
        // Forged messages may have taken the receives.
        for _ in 0..20 {
            if !self.plan.hostile || !self.receive_all() {
                break;
            }
            self.settle();
        }
        self.oracle.check_end();
        for node in 0..self.plan.nodes {
            self.enter(node);
            for id in self.oracle.receives(node) {
                self.cancel_one(node, id);
            }
            self.read(node, usize::MAX);
            let left = self.oracle.receives(node);
            assert_eq!(left, [], "cancelled receives of {node} do not complete");
            if let Some(of) = &self.nodes[node] {
                let (memory, counters) =
                    of.memory.split_at(of.memory.len() / (WINDOW + 8) * WINDOW);
                self.oracle.check_memory(node, memory, counters);
                // A message of an unknown peer may block its connection forever.
                if !self.plan.hostile {
                    self.world.check_idle(&of.engine);
                }
            }
        }
        self.end_all();
        self.plan.steps
    }

    /// Closes all nodes' endpoints, and checks for leftovers.
    pub fn end_all(&mut self) {
        (0..self.plan.nodes).for_each(|node| self.end(node));
        self.world.check_end();
        here::clear();
    }
}
