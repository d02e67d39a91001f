//! A simulator: endpoints, each with an engine of its own, in a world without sockets, threads or
//! real time, in which what happens and when is drawn from one seed.
//!
//! Links delay, split and get cut ([`rings`]); endpoints send, receive, write and read each
//! other's memory, cancel, close, come again, and come to know and forget each other's names;
//! completion queues are small and read late. An [`oracle`] that knows nothing of the engine
//! checks all that is reported, and at the end nothing may be left.
//!
//! `OFI_SIM_SEED=N` runs one seed, which a failing run prints; `OFI_SIM_SEEDS=N` so many, and
//! `OFI_SIM_STEPS=N` goes on with new seeds for so many steps.
mod oracle;
mod rings;

use super::arrival::Unreceived;
use super::ep::{StreamEpKind, StreamIdentity, TargetOf};
use super::{StreamEngine, StreamState};
use crate::net::Visited;
use crate::settings::StreamSettings;
use ofi_provider::abi::{
    FI_ADDR_UNSPEC, FI_ATOMIC, FI_CLAIM, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DISCARD, FI_FENCE,
    FI_INJECT, FI_MORE, FI_MULTI_RECV, FI_PEEK, FI_REMOTE_CQ_DATA, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_RMA, fi_addr_t, fi_cq_attr, fi_cq_err_entry, fi_cq_format, fi_cq_tagged_entry, fi_datatype,
    fi_op, fid_av, fid_cq,
};
use ofi_provider::addr::Addr;
use ofi_provider::api::{AtomicOp, Bindings, ReadOp, RecvOp, RemoteSegments, SendOp, WriteOp};
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::av::Av;
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::cq::{Context, Cq, OnDomain};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::fid::Embeds;
use ofi_provider::inbox::{About, Inbox, Recv};
use ofi_provider::lock::Level;
use ofi_provider::mr::MrTable;
use ofi_provider::object::Parent;
use ofi_provider::peers::NameListener;
use ofi_provider::progress::Progress;
use ofi_provider::receives::PostsReceives;
pub(crate) use oracle::SimRandom;
use oracle::{CLASSES, Deed, OpId, Oracle, ReportedEntry, WINDOW, payload, tag_of};
use rings::address;
pub(crate) use rings::{Rings, StreamWorld};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a seed decides from the beginning.
#[derive(Debug)]
struct StreamSimPlan {
    nodes: usize,
    steps: usize,
    /// One step in so many cuts a link, closes an endpoint, changes an address vector; 0: none
    /// does.
    cuts: usize,
    closes: usize,
    renames: usize,
    /// Largest message.
    largest: usize,
    cq_size: usize,
    tx_size: usize,
    inject_size: usize,
    directed: bool,
    /// Nodes that do not know each other's names at first: one pair in so many.
    strangers: usize,
    courier: bool,
    /// Many links are sent to and received from together.
    together: bool,
    /// Each endpoint is of a process of its own, another one when it comes again.
    processes: bool,
    /// A queue is read in one of so many steps.
    reads: usize,
}

impl StreamSimPlan {
    fn of(random: &mut SimRandom) -> Self {
        let calm = random.below(2) == 0;
        let rare = |random: &mut SimRandom, of: &[usize]| if calm { 0 } else { random.pick(of) };
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
            strangers: random.pick(&[0, 0, 6]),
            courier: random.below(4) > 0,
            together: random.below(5) == 0,
            processes: random.below(2) == 0,
            reads: random.pick(&[3, 8, 30]),
        }
    }
}

/// The parameters that seeds choose from.
fn choices() -> &'static [StreamSettings] {
    static CHOICES: std::sync::OnceLock<Vec<StreamSettings>> = std::sync::OnceLock::new();
    CHOICES.get_or_init(|| {
        let mib = 1 << 20;
        vec![
            StreamSettings { prefetch: 16 << 10, ..StreamSettings::default() },
            StreamSettings { prefetch: 2048, batch: 300, ..StreamSettings::default() },
            StreamSettings { prefetch: 16 << 10, max_saved_size: 500, ..StreamSettings::default() },
            StreamSettings {
                prefetch: 4096,
                max_saved: Some(3),
                max_saved_size: 1500,
                ..StreamSettings::default()
            },
            StreamSettings {
                prefetch: 8192,
                max_unexpected: mib / 8,
                batch: 0,
                ..StreamSettings::default()
            },
            StreamSettings { prefetch: 8192, zerocopy_size: 700, ..StreamSettings::default() },
            StreamSettings {
                prefetch: 8192,
                zerocopy_size: 3000,
                max_saved_size: 5000,
                ..StreamSettings::default()
            },
        ]
    })
}

/// Nothing happens by itself: the simulator drives the engines.
struct StreamSimProgress;

impl Progress for StreamSimProgress {
    fn progress(&self) {}
    fn wait_fd(&self) -> RawFd {
        -1
    }
    fn may_block(&self) -> bool {
        true
    }
    fn is_serialized(&self) -> bool {
        true
    }
    fn activity(&self) -> u64 {
        0
    }
}

fn parent() -> Parent {
    Parent::new(Arc::new(()), Arc::default())
}

fn queue(size: usize) -> Arc<Cq> {
    let domain = OnDomain {
        parent: parent(),
        progress: Arc::new(StreamSimProgress),
        api_version: ofi_provider::info::API_VERSION,
        level: Level::Serialized,
        on_blocking: Box::new(|_| Ok(())),
        later: None,
    };
    // SAFETY: all zeros are the defaults of an attribute structure.
    let mut attr = unsafe { std::mem::zeroed::<fi_cq_attr>() };
    (attr.size, attr.format) = (size, fi_cq_format::FI_CQ_FORMAT_TAGGED.into());
    // SAFETY: neither a peer nor a wait set.
    unsafe { Cq::open(domain, Some(&attr), std::ptr::null_mut()) }.unwrap()
}

/// The next entry of a queue, by the calls that programs make.
fn read_queue(cq: &Arc<Cq>) -> Option<ReportedEntry> {
    let c: *mut fid_cq = cq.as_c();
    // SAFETY: an open queue and its table; the buffers have room for one entry of its format.
    unsafe {
        let ops = &*(*c).ops;
        let mut entry = std::mem::zeroed::<fi_cq_tagged_entry>();
        let mut src: fi_addr_t = 0;
        let n = ops.readfrom.unwrap()(c, (&raw mut entry).cast(), 1, &raw mut src);
        if n == 1 {
            return Some(ReportedEntry {
                context: entry.op_context as usize,
                flags: entry.flags,
                len: entry.len,
                buf: entry.buf as usize,
                data: entry.data,
                tag: entry.tag,
                src,
                error: None,
            });
        }
        if n != -Error::AVAIL.code() as isize {
            return None;
        }
        let mut entry = std::mem::zeroed::<fi_cq_err_entry>();
        assert_eq!(ops.readerr.unwrap()(c, &raw mut entry, 0), 1);
        Some(ReportedEntry {
            context: entry.op_context as usize,
            flags: entry.flags,
            len: entry.len,
            buf: entry.buf as usize,
            data: entry.data,
            tag: entry.tag,
            src: entry.src_addr,
            error: Some((Error::from_code(entry.err), entry.olen)),
        })
    }
}

/// An endpoint with all it needs.
struct StreamNode {
    engine: Arc<StreamEngine<Rings>>,
    /// The engine's number in the world.
    place: usize,
    ep: u32,
    av: Arc<Av>,
    _names: Arc<NameListener<StreamEngine<Rings>>>,
    queues: [Arc<Cq>; 2],
    regions: Arc<MrTable>,
    memory: Vec<u8>,
}

const KEY: u64 = 5;

struct StreamSim {
    world: Arc<Mutex<StreamWorld>>,
    random: SimRandom,
    plan: StreamSimPlan,
    nodes: Vec<Option<StreamNode>>,
    oracle: Oracle,
}

impl StreamSim {
    fn new(seed: u64) -> Self {
        let mut random = SimRandom::new(seed);
        let plan = StreamSimPlan::of(&mut random);
        rings::choose(Some(&choices()[random.below(choices().len())]));
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let world = StreamWorld::new(*START.get_or_init(Instant::now), SimRandom::new(!seed));
        let nodes = (0..plan.nodes).map(|_| None).collect();
        let oracle = Oracle::new(plan.nodes);
        let mut sim = Self { world, random, plan, nodes, oracle };
        (0..sim.plan.nodes).for_each(|node| sim.begin(node));
        sim
    }

    fn world(&self) -> MutexGuard<'_, StreamWorld> {
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens a node's endpoint.
    fn begin(&mut self, node: usize) {
        let net = Rings::new(&self.world, self.plan.together);
        let place = net.node();
        let regions = Arc::new(MrTable::new(0));
        let engine =
            StreamEngine::new(net, Level::Shared, self.plan.courier, regions.clone()).unwrap();
        let identity = StreamIdentity {
            kind: StreamEpKind::Rdm,
            firewalled: false,
            local: address(node),
            keep_port: false,
            attr: RdmAttr {
                directed: self.plan.directed,
                tx_size: self.plan.tx_size,
                inject_size: self.plan.inject_size,
                ..RdmAttr::default()
            },
            target: TargetOf::new(FI_RMA | FI_ATOMIC),
        };
        let ep = engine.lock().add_ep(identity);
        // SAFETY: not of a peer.
        let av = unsafe {
            Av::open(parent(), ofi_provider::abi::FI_SOCKADDR_IN as u32, None, std::ptr::null_mut())
        };
        let av = av.unwrap();
        let names = NameListener::listen(&engine, ep, &av);
        let one = queue(self.plan.cq_size);
        let queues = match self.random.below(2) {
            0 => [one.clone(), one],
            _ => [one, queue(self.plan.cq_size)],
        };
        let mut bindings = Bindings { av: Some(av.clone()), ..Bindings::default() };
        bindings.ledger.tx.report_to(queues[0].clone());
        bindings.ledger.rx.report_to(queues[1].clone());
        let memory = vec![0; self.plan.nodes * (WINDOW + 8)];
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        regions.insert(memory.as_ptr() as usize, memory.len(), rights, 0, KEY).unwrap();
        let mut state = engine.lock();
        state.ep(ep).bind(&bindings);
        state.ep(ep).inbox.set_min_multi_recv(512);
        state.listen(ep).unwrap();
        drop(state);
        self.oracle.begins(node);
        self.nodes[node] =
            Some(StreamNode { engine, place, ep, av, _names: names, queues, regions, memory });
        for other in 0..self.plan.nodes {
            if !self.random.one_in(self.plan.strangers) {
                self.insert(node, other, false);
            }
        }
    }

    fn insert(&mut self, node: usize, other: usize, later: bool) {
        self.enter(node);
        let Some(of) = &self.nodes[node] else { return };
        let name = of.av.insert(Addr::Ip(address(other))).unwrap();
        self.oracle.named(node, other, Some(name), later);
    }

    fn remove(&mut self, node: usize, other: usize) {
        let (Some(of), Some(name)) = (&self.nodes[node], self.oracle.name(node, other)) else {
            return;
        };
        let (c, mut name): (*mut fid_av, _) = (of.av.as_c(), name);
        // SAFETY: an open vector and its table.
        let result = unsafe { (*(*c).ops).remove.unwrap()(c, &raw mut name, 1, 0) };
        assert_eq!(result, 0);
        self.oracle.named(node, other, None, true);
    }

    /// Closes a node's endpoint, and checks that nothing of it is left.
    fn end(&mut self, node: usize) {
        self.read(node, usize::MAX);
        self.enter(node);
        let Some(StreamNode { engine, place, ep, regions, av, _names: names, memory, .. }) =
            self.nodes[node].take()
        else {
            return;
        };
        self.oracle.ends(node);
        engine.lock().close_ep(ep);
        regions.remove(KEY);
        engine.lock().check_empty();
        drop((av, names));
        // Until now peers could reach the memory, which is registered.
        drop(memory);
        assert_eq!(Arc::strong_count(&engine), 1, "somebody keeps the engine");
        drop(engine);
        self.world().ended(place);
    }

    /// Reads a node's queues, up to so many entries.
    fn read(&mut self, node: usize, most: usize) {
        let Some(of) = &self.nodes[node] else { return };
        let mut left = most;
        for cq in of.queues.clone() {
            while left > 0
                && let Some(entry) = read_queue(&cq)
            {
                self.oracle.told(node, &entry);
                left -= 1;
            }
        }
        if left > 0 {
            self.oracle.all_is_read(node);
        }
        for id in self.oracle.claims(node) {
            self.claim(node, id);
        }
    }

    /// Receives or drops a message that was claimed.
    fn claim(&mut self, node: usize, id: OpId) {
        let discards = self.random.one_in(4);
        if discards {
            self.oracle.discards(id);
        }
        let flags = FI_COMPLETION | FI_CLAIM | if discards { FI_DISCARD } else { 0 };
        self.look(node, id, (0, 0), flags);
    }

    /// Looks for a tagged message.
    fn peek(&mut self, node: usize) {
        let id = self.oracle.next();
        let (tag, ignore) = self.pattern();
        let (claims, discards) = self.random.pick(&[(false, false), (true, false), (false, true)]);
        let buf = vec![0xbb; self.random.pick(&[0, 64, self.plan.largest])];
        let deed = Deed::Peek { tag, ignore, claims, discards };
        self.oracle.took(node, deed, buf, Box::default(), true, false);
        let flags = FI_COMPLETION
            | FI_PEEK
            | if claims { FI_CLAIM } else { 0 }
            | if discards { FI_DISCARD } else { 0 };
        self.look(node, id, (tag, ignore), flags);
    }

    fn look(&mut self, node: usize, id: OpId, (tag, ignore): (u64, u64), flags: u64) {
        let Some(of) = &self.nodes[node] else { return };
        let bytes = &mut self.oracle.ops[id].buf;
        // SAFETY: the oracle keeps the buffer.
        let buf = unsafe { RecvBuf::new(bytes.as_mut_ptr().cast(), bytes.len()) }.unwrap();
        let context = Context((id + 1) as *mut _);
        let op = RecvOp { buf, src: FI_ADDR_UNSPEC, tag, ignore, context, flags };
        of.engine.lock().post(of.ep, op, true).unwrap();
    }

    /// A tag to receive, and the bits of it that do not matter.
    fn pattern(&mut self) -> (u64, u64) {
        let class = self.random.below(CLASSES as usize + 1) as u64;
        let numbers = tag_of(usize::MAX >> 10, 0);
        (class, numbers | if self.random.one_in(3) { CLASSES } else { 0 })
    }

    /// From now on this node does something.
    fn enter(&self, node: usize) {
        let of = self.nodes[node].as_ref().filter(|_| self.plan.processes);
        PID.set(of.map(|of| 1000 + of.place as u32));
    }

    fn turn(&self, node: usize) {
        self.enter(node);
        let Some(of) = &self.nodes[node] else { return };
        if self.world().takes_visit(of.place) {
            of.engine.visited();
        }
        let mut state = of.engine.lock();
        state.turn();
        state.check();
    }

    /// A node that lives, other than `but` if there is one.
    fn someone(&mut self) -> usize {
        self.random.below(self.plan.nodes)
    }

    fn size(&mut self) -> usize {
        let largest = self.plan.largest;
        let most = self.random.pick(&[0, 64, 64, 64, 1100, largest, largest]).min(largest);
        self.random.below(most + 1)
    }

    fn step(&mut self) {
        self.world().nanos += self.random.below(20_000) as u64;
        let node = self.someone();
        if self.random.one_in(self.plan.reads) {
            let most = self.random.pick(&[1, 4, usize::MAX]);
            return self.read(node, most);
        }
        match self.random.below(100) {
            0..35 => {
                self.world().something_arrives(false);
            }
            35..60 => self.turn(node),
            60..98 => self.act(node),
            _ => {
                self.wait();
            }
        }
        let other = self.someone();
        if self.random.one_in(self.plan.cuts) && node != other {
            let cut = self.world().cut(address(node), address(other));
            if cut {
                self.oracle.hurt(node, other);
            }
        }
        if self.random.one_in(self.plan.closes) {
            match self.nodes[node] {
                Some(_) => self.end(node),
                None => self.begin(node),
            }
        }
        if self.random.one_in(self.plan.renames) {
            match self.oracle.name(node, other) {
                Some(_) => self.remove(node, other),
                None => self.insert(node, other, true),
            }
        }
    }

    /// Time passes until a timer expires or a visitor comes.
    fn wait(&self) -> bool {
        let mut world = self.world();
        match world.next_event() {
            Some(at) => {
                world.nanos = world.nanos.max(at);
                true
            }
            None => false,
        }
    }

    /// A node posts an operation.
    fn act(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            return;
        }
        self.enter(node);
        match self.random.below(100) {
            0..40 => self.send(node),
            40..76 => self.receive(node),
            76..80 => self.peek(node),
            80..94 => self.access(node),
            _ => self.cancel(node),
        }
    }

    /// A node that this one knows, with its name.
    fn known(&mut self, node: usize) -> Option<(usize, u64)> {
        let other = self.someone();
        Some((other, self.oracle.name(node, other)?))
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

    fn send(&mut self, node: usize) {
        let Some((to, dest)) = self.known(node) else { return };
        let (id, len) = (self.oracle.next(), self.size());
        let (mut flags, reports) = self.op_flags();
        let tagged = self.random.below(3) > 0;
        let tag = tag_of(id, self.random.below(CLASSES as usize + 1) as u64);
        if !tagged && len < 8 || self.random.one_in(8) {
            flags |= FI_REMOTE_CQ_DATA;
        }
        let acked = self.random.one_in(8);
        flags |= if acked { FI_DELIVERY_COMPLETE } else { 0 };
        let inject = len <= self.plan.inject_size && self.random.one_in(3);
        flags |= if inject { FI_INJECT } else { 0 };
        let tag = if tagged { tag } else { 0 };
        let mut bytes = payload(id, len);
        let Some(of) = &self.nodes[node] else { return };
        // SAFETY: the oracle keeps the bytes until the message is sent; a vector that is moved
        // does not move its bytes.
        let buf = unsafe { SendBuf::new(bytes.as_ptr().cast(), len) }.unwrap();
        let context = Context((id + 1) as *mut _);
        let op = SendOp { buf, dest, context, data: id as u64, tag, flags };
        let result = of.engine.lock().send(of.ep, &op, tagged);
        if took(result) {
            if inject {
                bytes.fill(0xee);
            }
            let deed = Deed::Send { to, tagged, tag, len, acked, taken: false };
            self.oracle.took(node, deed, bytes, Box::default(), reports, flags & FI_FENCE != 0);
        }
    }

    fn receive(&mut self, node: usize) {
        let id = self.oracle.next();
        let tagged = self.random.below(3) > 0;
        let multi = self.random.one_in(10);
        let room = match multi {
            true => 512 + self.random.below(4 * self.plan.largest),
            false => self.random.pick(&[64, 2000, self.plan.largest.max(64)]),
        };
        let (mut src, mut from) = (FI_ADDR_UNSPEC, None);
        if self.plan.directed
            && self.random.one_in(3)
            && let Some((other, name)) = self.known(node)
        {
            (src, from) = (name, Some(other));
        }
        let pattern = self.pattern();
        self.post(node, id, tagged, (src, from), pattern, (room, multi));
    }

    fn post(
        &mut self,
        node: usize,
        id: OpId,
        tagged: bool,
        (src, from): (u64, Option<usize>),
        (tag, ignore): (u64, u64),
        (room, multi): (usize, bool),
    ) {
        let Some(of) = &self.nodes[node] else { return };
        let (tag, ignore) = if tagged { (tag, ignore) } else { (0, 0) };
        let mut bytes = vec![0xdd; room];
        // SAFETY: the oracle keeps the buffer; a vector that is moved does not move its bytes.
        let buf = unsafe { RecvBuf::new(bytes.as_mut_ptr().cast(), room) }.unwrap();
        let context = Context((id + 1) as *mut _);
        let flags = FI_COMPLETION | if multi { FI_MULTI_RECV } else { 0 };
        let deed = Deed::Receive { tagged, from, tag, ignore, multi, filled: Vec::new() };
        self.oracle.took(node, deed, bytes, Box::default(), true, false);
        let op = RecvOp { buf, src, tag, ignore, context, flags };
        of.engine.lock().post(of.ep, op, tagged).unwrap();
    }

    /// A write, a read or an atomic operation.
    fn access(&mut self, node: usize) {
        let Some((to, dest)) = self.known(node) else { return };
        let id = self.oracle.next();
        let (mut flags, reports) = self.op_flags();
        let fenced = flags & FI_FENCE != 0;
        let len = self.size().min(WINDOW);
        let at = self.random.below(WINDOW - len + 1);
        let remote = RemoteSegments::one((node * WINDOW + at) as u64, len as u64, KEY);
        let context = Context((id + 1) as *mut _);
        let kind = self.random.below(3);
        let told = kind == 0 && self.random.one_in(4) && len > 0;
        let amount = self.random.next();
        let nodes = self.plan.nodes;
        let Some(of) = &self.nodes[node] else { return };
        let mut state = of.engine.lock();
        match kind {
            0 => {
                let bytes = payload(id, len);
                flags |= if told { FI_REMOTE_CQ_DATA } else { 0 };
                flags |= if amount.is_multiple_of(4) { FI_DELIVERY_COMPLETE } else { 0 };
                // SAFETY: as for a message's bytes.
                let buf = unsafe { SendBuf::new(bytes.as_ptr().cast(), len) }.unwrap();
                let data = id as u64;
                let op = WriteOp { buf, remote, dest, context, data, flags };
                let result = state.write(of.ep, op);
                drop(state);
                if took(result) {
                    self.oracle.wrote(node, to, at, &bytes);
                    if told {
                        self.oracle.tells(node, to, data);
                    }
                    let deed = Deed::Write { to };
                    self.oracle.took(node, deed, bytes, Box::default(), reports, fenced);
                }
            }
            1 => {
                let mut bytes = vec![0xcc; len];
                // SAFETY: as for a receive's buffer.
                let buf = unsafe { RecvBuf::new(bytes.as_mut_ptr().cast(), len) }.unwrap();
                let op = ReadOp { buf, remote, src: dest, context, flags };
                let result = state.read_remote(of.ep, op);
                drop(state);
                if took(result) {
                    let expect = self.oracle.expect(node, to, at, len);
                    let deed = Deed::Read { to, at, expect, any: vec![false; len] };
                    self.oracle.took(node, deed, bytes, Box::default(), reports, fenced);
                }
            }
            _ => {
                let (bytes, mut fetched) = (amount.to_ne_bytes().to_vec(), Box::new(0u64));
                let fetches = amount.is_multiple_of(2);
                let atomic = if fetches { AtomicKind::Fetch } else { AtomicKind::Base };
                let (datatype, sum) = (fi_datatype::FI_UINT64 as u32, fi_op::FI_SUM as u32);
                let operation = Operation::new(atomic, datatype, sum).unwrap();
                let counter = (nodes * WINDOW + node * 8) as u64;
                // SAFETY: as above; a box that is moved does not move what is in it.
                let (source, compare, result) = unsafe {
                    (
                        SendBuf::new(bytes.as_ptr().cast(), 8).unwrap(),
                        SendBuf::new(std::ptr::null(), 0).unwrap(),
                        match fetches {
                            true => RecvBuf::new((&raw mut *fetched).cast(), 8).unwrap(),
                            false => RecvBuf::none(),
                        },
                    )
                };
                let remote = RemoteSegments::one(counter, 8, KEY);
                let op = AtomicOp {
                    operation,
                    source,
                    compare,
                    result,
                    remote,
                    dest,
                    context,
                    data: 0,
                    flags,
                };
                let result = state.atomic(of.ep, op);
                drop(state);
                if took(result) {
                    let before = self.oracle.adds(node, to, amount);
                    let deed = Deed::Add { to, before };
                    let buf = if fetches { Vec::new() } else { bytes };
                    self.oracle.took(node, deed, buf, fetched, reports, fenced);
                }
            }
        }
    }

    fn cancel(&mut self, node: usize) {
        let receives = self.oracle.receives(node);
        if !receives.is_empty() {
            let one = self.random.pick(&receives);
            self.cancel_one(node, one);
        }
    }

    fn cancel_one(&mut self, node: usize, id: OpId) {
        if let Some(of) = &self.nodes[node] {
            of.engine.lock().ep(of.ep).inbox.cancel(Context((id + 1) as *mut _), false);
        }
    }

    /// Lets everything happen that still can.
    fn settle(&mut self) {
        self.world().prompt = true;
        let mut still = 0;
        for _ in 0..200_000 {
            let before = self.oracle.completions;
            let mut moved = false;
            while self.world().something_arrives(true) {
                moved = true;
            }
            for node in 0..self.plan.nodes {
                self.turn(node);
                self.read(node, usize::MAX);
            }
            moved |= self.world().something_arrives(true) || self.oracle.completions > before;
            still = if moved { 0 } else { still + 1 };
            // Timers may be for what happens much later, such as the end of a silent caller.
            if still > 8 && !self.wait() {
                return;
            }
        }
        panic!("there is no end: {:?}", self.world());
    }

    fn run(&mut self) -> usize {
        for _ in 0..self.plan.steps {
            self.step();
        }
        // What waits for a receive gets one.
        for node in 0..self.plan.nodes {
            for tagged in [false, true] {
                let (count, bytes) = self.oracle.waiting(node, tagged);
                if count > 0 && self.nodes[node].is_some() {
                    let id = self.oracle.next();
                    let room = (bytes + 512 + 1024, true);
                    self.post(node, id, tagged, (FI_ADDR_UNSPEC, None), (0, u64::MAX >> 1), room);
                }
            }
        }
        self.settle();
        self.oracle.check_end();
        for node in 0..self.plan.nodes {
            self.enter(node);
            for id in self.oracle.receives(node) {
                self.cancel_one(node, id);
            }
            self.read(node, usize::MAX);
            assert_eq!(
                self.oracle.receives(node),
                [],
                "cancelled receives of {node} do not complete"
            );
            if let Some(of) = &self.nodes[node] {
                let (memory, counters) = of.memory.split_at(self.plan.nodes * WINDOW);
                self.oracle.check_memory(node, memory, counters);
                of.engine.lock().check_idle(of.ep);
            }
        }
        (0..self.plan.nodes).for_each(|node| self.end(node));
        assert_eq!(self.world().left(), (0, 0), "links and listeners that are not closed");
        self.plan.steps
    }
}

/// Whether an operation was taken. What is full may refuse one for a while.
fn took(result: Result) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::AGAIN) => false,
        Err(error) => panic!("an operation is refused: {error}"),
    }
}

impl StreamState<Rings> {
    /// What must hold at any time.
    fn check(&self) {
        let owed: usize = self.conns.iter().map(|(_, conn)| conn.owed).sum();
        assert_eq!(self.owed, owed);
        for (ep_id, ep) in self.eps.iter() {
            assert!(ep.tx_pending <= ep.identity.attr.tx_size, "{} transfers", ep.tx_pending);
            for (peer_id, peer) in ep.peers.iter() {
                let conns = self.conns.iter().filter(|(_, c)| c.ep == ep_id && c.peer == peer_id);
                assert_eq!(peer.conns as usize, conns.count(), "connections of peer {peer_id}");
                let used = peer.conns > 0 || !peer.extra.parked.is_empty();
                let named = ep.inbox.name_of(peer_id) != ofi_provider::abi::FI_ADDR_NOTAVAIL;
                assert!(used || named || ep.inbox.keeps_from(peer_id), "peer {peer_id} leaks");
            }
            let mut under_way: usize =
                ep.peers.iter().map(|(_, peer)| peer.extra.parked.len()).sum();
            for (_, conn) in self.conns.iter().filter(|(_, conn)| conn.ep == ep_id) {
                under_way += conn.transfers();
            }
            assert_eq!(ep.tx_pending, under_way, "transfers that are not complete");
        }
        for (_, conn) in self.conns.iter() {
            assert!(conn.stash.len() <= (64 << 10) + 1024, "a stash of {}", conn.stash.len());
        }
    }

    /// What must hold when nothing moves any more.
    fn check_idle(&self, ep: u32) {
        self.check();
        let ep = &self.eps[ep];
        assert_eq!((ep.tx_pending, self.owed, self.starved.len()), (0, 0, 0));
        assert!(self.held.is_empty());
        for (id, conn) in self.conns.iter() {
            assert!(conn.tx.is_empty() && conn.batch.is_empty() && conn.stash.is_empty());
            assert!(
                conn.incoming.is_none() && !conn.blocked,
                "connection {id} is blocked: {conn:?}"
            );
        }
    }

    /// What must hold when the last endpoint is closed.
    fn check_empty(&self) {
        let left = [self.conns.len(), self.eps.len(), self.callers.len()];
        assert_eq!(left, [0; 3], "connections, endpoints, callers");
        assert!(self.listeners.is_empty() && self.deaf.is_empty());
        assert!(self.hot.is_empty() && self.held.is_empty() && self.starved.is_empty());
        assert_eq!(self.owed, 0);
    }
}

impl super::conn::StreamConn<Rings> {
    /// Transfers of the application that are not complete.
    fn transfers(&self) -> usize {
        let own = |finish: &super::transfer::TransferFinish| usize::from(!finish.internal);
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

/// Runs one seed; panics where something is wrong. Returns how many steps it took.
fn run(seed: u64) -> usize {
    let result = catch_unwind(AssertUnwindSafe(|| StreamSim::new(seed).run()));
    rings::choose(None);
    PID.set(None);
    result.unwrap_or_else(|panic| {
        eprintln!("OFI_SIM_SEED={seed} does it again");
        std::panic::resume_unwind(panic)
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// A fault for the simulator to find, which only the simulator's own tests have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamPlantedFault {
    LostCompletion,
    SecondCompletion,
    SwappedMatch,
    LeakedPeer,
    WrongByte,
}

std::thread_local! {
    static PLANTED: Cell<Option<StreamPlantedFault>> = const { Cell::new(None) };
    static ASKED: Cell<u32> = const { Cell::new(0) };
    static PID: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The process that the endpoint belongs to which does something now, if each has its own.
pub(super) fn pid() -> Option<u32> {
    PID.get()
}

/// The fault that is planted, once in so many calls.
pub(super) fn planted() -> Option<StreamPlantedFault> {
    let fault = PLANTED.get()?;
    ASKED.set(ASKED.get().wrapping_add(1));
    ASKED.get().is_multiple_of(5).then_some(fault)
}

/// The second of the receives that match a message, where there are two and no message waits.
pub(super) fn take_second(inbox: &mut Inbox<Unreceived>, about: &About) -> Option<Recv> {
    let first = inbox.take_posted(about)?;
    if first.flags & FI_MULTI_RECV != 0 || inbox.kept_bytes() > 0 {
        return Some(first);
    }
    let Some(second) = inbox.take_posted(about) else { return Some(first) };
    let Recv { buf, context, flags, .. } = first;
    let (src, ignore) = (FI_ADDR_UNSPEC, u64::MAX);
    let again = RecvOp { buf, src, tag: about.tag, ignore, context, flags };
    assert!(inbox.post_plain(again, about.tagged).is_none());
    Some(second)
}

/// What the simulator says of a planted fault, and how many seeds that took.
fn found(fault: StreamPlantedFault) -> (u64, String) {
    PLANTED.set(Some(fault));
    for seed in 0..500 {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            PLANTED.set(None);
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            return (seed, text.unwrap_or_default());
        }
    }
    panic!("{fault:?} is not found");
}

#[test]
fn planted_faults_are_found() {
    for (fault, says) in [
        (StreamPlantedFault::LostCompletion, &["never completes"][..]),
        (StreamPlantedFault::SecondCompletion, &["completes twice"]),
        (StreamPlantedFault::SwappedMatch, &["got message", "passed over"]),
        (StreamPlantedFault::LeakedPeer, &["leaks"]),
        (StreamPlantedFault::WrongByte, &["the bytes of message"]),
    ] {
        let (seed, text) = found(fault);
        eprintln!("{fault:?}: seed {seed}: {}", text.lines().next().unwrap_or(""));
        let right = says.iter().any(|says| text.contains(says));
        assert!(right, "{fault:?} is found as something else: {text}");
    }
}

#[test]
fn a_seed_does_the_same_each_time() {
    for seed in [3, 77, 1234] {
        let ran = [(); 2].map(|()| {
            let mut sim = StreamSim::new(seed);
            sim.run();
            let nanos = sim.world().nanos;
            (nanos, sim.oracle.completions)
        });
        rings::choose(None);
        assert_eq!(ran[0], ran[1], "seed {seed}");
    }
}

#[test]
fn whatever_happens_to_endpoints_each_operation_completes_once_and_nothing_is_left() {
    if let Some(seed) = number("OFI_SIM_SEED") {
        run(seed);
        return;
    }
    let (seeds, most) = (number("OFI_SIM_SEEDS"), number("OFI_SIM_STEPS"));
    let first = number("OFI_SIM_FIRST").unwrap_or(0);
    let (mut steps, mut seed) = (0, first);
    let started = Instant::now();
    while match (seeds, most) {
        (_, Some(most)) => steps < most,
        (seeds, None) => seed - first < seeds.unwrap_or(200),
    } {
        steps += run(seed) as u64;
        seed += 1;
    }
    let took = started.elapsed().max(Duration::from_millis(1));
    eprintln!("{} seeds, {steps} steps in {took:?}", seed - first);
}
