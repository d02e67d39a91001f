//! Simulator of collectives: up to eight endpoints join sets and run operations over links with
//! delays, while members are killed and restarted. The scenario is drawn from a seed, printed by a
//! failing run and repeated with `OFI_SIM_SEED`.
//!
//! An oracle checks each started and finished join and operation: it finishes once, its result is
//! right, and no member waits when the simulation is quiescent. Restarted members, and ones with a
//! broken group, join again, and eventually succeed.
use super::*;
use crate::buf::RecvBuf;
use crate::cq::{Completion, CompletionError};
use crate::deferred::Outcome;
use crate::notices::Port;
use ofi_simulation::{SimRandom, seeds};
use std::collections::BTreeSet;
use std::fmt::Debug;

/// Task queue of all endpoints. One number is enough, because each endpoint has a separate
/// [`DeferredQueue`].
const TASK_QUEUE: usize = 1;

/// Number of operations run by each group of a set.
const OPERATIONS: usize = 3;

/// Number of repeated joins of all members before they must have succeeded.
const ROUNDS: usize = 6;

/// Packet in flight between two endpoints.
enum SimPacket {
    /// Message between given incarnations of the endpoint and the peer, and the context of a send
    /// completing at its arrival.
    Message { lives: [usize; 2], tag: u64, bytes: Vec<u8>, completes: Option<Context> },
    /// The sender of all before this was killed.
    End { life: usize },
    /// Failed send to an address without an endpoint, made by the peer's incarnation with this
    /// number.
    Refused { life: usize, context: Context },
}

/// Posted receive.
struct PostedHere {
    from: Option<usize>,
    tag: u64,
    buf: RecvBuf,
    context: Context,
}

/// Network state of an endpoint.
struct CollSimAddress {
    later: Arc<DeferredQueue>,
    /// Number of endpoint incarnations at this address.
    life: usize,
    alive: bool,
    posted: Vec<PostedHere>,
    unexpected: Vec<(usize, u64, Vec<u8>)>,
    /// Connected peers, with their incarnations.
    connected: HashMap<usize, usize>,
    /// Sends in flight to each peer, completing at their arrival.
    sending: HashMap<usize, Vec<Context>>,
}

/// Links between all endpoints, in order each.
struct Network {
    dice: SimRandom,
    stops: Vec<CollSimAddress>,
    links: BTreeMap<(usize, usize), VecDeque<SimPacket>>,
    /// True if a send was deferred since the last check by the world.
    put_off: bool,
    /// A fault planted in the simulator, for its own tests.
    fault: Option<Fault>,
}

/// Fault injected by the simulator's own tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// A message vanishes.
    LostMessage,
    /// A byte of a message is another one.
    WrongByte,
    /// The end of a peer is not reported.
    SilentEnd,
}

type SharedNetwork = Arc<Mutex<Network>>;

fn failed(context: Context, error: Error) -> Outcome {
    Err(CompletionError::new(Completion::of(context, 0, 0), error))
}

impl Network {
    fn done(&self, node: usize, outcome: Outcome) {
        self.stops[node].later.done(outcome);
    }

    fn send(&mut self, from: usize, to: usize, tag: u64, buf: &SendBuf, context: Context) {
        let (life, peer) = (self.stops[from].life, &self.stops[to]);
        let (peer_alive, peer_life) = (peer.alive, peer.life);
        if !self.stops[from].connected.contains_key(&to) {
            if !peer_alive {
                // It takes a while until that is known.
                let refused = SimPacket::Refused { life, context };
                self.links.entry((to, from)).or_default().push_back(refused);
                return;
            }
            self.stops[from].connected.insert(to, peer_life);
        }
        let peer_life = self.stops[from].connected[&to];
        let mut bytes = buf.to_boxed().unwrap().into_vec();
        if self.fault == Some(Fault::WrongByte) && bytes.len() > 20 {
            bytes[3] ^= 1;
        }
        let lost = self.fault == Some(Fault::LostMessage) && self.dice.one_in(20);
        let waits = self.dice.one_in(2);
        if waits {
            self.stops[from].sending.entry(to).or_default().push(context);
        }
        if !lost {
            let completes = waits.then_some(context);
            let parcel = SimPacket::Message { lives: [life, peer_life], tag, bytes, completes };
            self.links.entry((from, to)).or_default().push_back(parcel);
        }
        if !waits {
            self.done(from, Ok(Completion::of(context, 0, 0)));
        }
    }

    fn recv(&mut self, node: usize, receive: PostedHere) {
        let fits = |(from, tag, _): &(usize, u64, Vec<u8>)| {
            *tag == receive.tag && receive.from.is_none_or(|wanted| wanted == *from)
        };
        let stop = &mut self.stops[node];
        match stop.unexpected.iter().position(fits) {
            Some(at) => {
                let (from, _, bytes) = stop.unexpected.remove(at);
                self.fill(node, &receive, from, &bytes);
            }
            None => stop.posted.push(receive),
        }
    }

    fn fill(&self, node: usize, receive: &PostedHere, from: usize, bytes: &[u8]) {
        receive.buf.copy_from(0, bytes);
        let of = Completion::of(receive.context, 0, bytes.len());
        self.done(node, Ok(Completion { src: from as u64, tag: receive.tag, ..of }));
    }

    /// Moves the first parcel of a link on.
    fn deliver(&mut self, from: usize, to: usize) {
        let Some(parcel) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return;
        };
        match parcel {
            SimPacket::Message { lives: [life, to_life], tag, bytes, completes } => {
                let stop = &mut self.stops[to];
                if !stop.alive || stop.life != to_life {
                    // The sender is notified of it together with the end.
                    return;
                }
                stop.connected.insert(from, life);
                let fits = |receive: &PostedHere| {
                    tag == receive.tag && receive.from.is_none_or(|wanted| wanted == from)
                };
                match stop.posted.iter().position(fits) {
                    Some(at) => {
                        let receive = stop.posted.remove(at);
                        self.fill(to, &receive, from, &bytes);
                    }
                    None => stop.unexpected.push((from, tag, bytes)),
                }
                if let Some(context) = completes {
                    if self.stops[from].life == life {
                        let sending = self.stops[from].sending.entry(to).or_default();
                        sending.retain(|other| *other != context);
                        self.done(from, Ok(Completion::of(context, 0, 0)));
                    }
                }
            }
            SimPacket::Refused { life, context } => {
                if self.stops[to].life == life {
                    self.done(to, failed(context, Error::CONNREFUSED));
                }
            }
            SimPacket::End { life } => {
                let stop = &mut self.stops[to];
                if !stop.alive || stop.connected.get(&from) != Some(&life) {
                    return;
                }
                stop.connected.remove(&from);
                let sends = stop.sending.remove(&from).unwrap_or_default();
                for context in sends {
                    self.done(to, failed(context, Error::CONNRESET));
                }
                if self.fault != Some(Fault::SilentEnd) {
                    let internal_ops = crate::deferred::InternalOps {
                        later: self.stops[to].later.clone(),
                        task_queue: TASK_QUEUE,
                    };
                    internal_ops.lost(from as u64, Error::CONNRESET);
                }
            }
        }
    }

    /// Kills an endpoint: some of its sent messages still arrive, followed by its end.
    fn kill(&mut self, node: usize) {
        self.stops[node].alive = false;
        let life = self.stops[node].life;
        for peer in 0..self.stops.len() {
            if peer == node {
                continue;
            }
            let link = self.links.entry((node, peer)).or_default();
            // The ends of its predecessors are on their way all the same.
            let mut arrive = self.dice.below(link.len() + 1);
            link.retain(|parcel| {
                arrive = arrive.saturating_sub(1);
                arrive > 0 || matches!(parcel, SimPacket::End { .. })
            });
            link.push_back(SimPacket::End { life });
        }
    }
}

/// Access of an endpoint to the network.
struct SimPort {
    node: usize,
    life: usize,
    network: SharedNetwork,
}

impl SimPort {
    /// The network, as long as the endpoint is not killed.
    fn network(&self) -> Option<MutexGuard<'_, Network>> {
        let network = lock(&self.network);
        let stop = &network.stops[self.node];
        (stop.alive && stop.life == self.life).then_some(network)
    }
}

impl Port for SimPort {
    fn send(&self, to: fi_addr_t, tag: u64, buf: SendBuf, context: Context) -> Result {
        let Some(mut network) = self.network() else { return Err(Error::CANCELED) };
        if network.dice.one_in(8) {
            network.put_off = true;
            return Err(Error::AGAIN);
        }
        network.send(self.node, to as usize, tag, &buf, context);
        Ok(())
    }

    fn recv(&self, from: fi_addr_t, tag: u64, buf: RecvBuf, context: Context) -> Result {
        let Some(mut network) = self.network() else { return Err(Error::CANCELED) };
        let from = (from != crate::abi::FI_ADDR_UNSPEC).then_some(from as usize);
        network.recv(self.node, PostedHere { from, tag, buf, context });
        Ok(())
    }

    fn cancel(&self, context: Context) {
        let Some(mut network) = self.network() else { return };
        let posted = &mut network.stops[self.node].posted;
        if let Some(at) = posted.iter().position(|receive| receive.context == context) {
            posted.remove(at);
            network.done(self.node, failed(context, Error::CANCELED));
        }
    }

    fn id_of(&self, member: fi_addr_t) -> fi_addr_t {
        member
    }
}

/// Operation number `index` of a group and its expected result, the same for all members.
struct CollScenario {
    kind: usize,
    root: usize,
    len: usize,
}

impl CollScenario {
    fn new(group: u32, index: usize, of: usize) -> Self {
        let mut dice = SimRandom::new(u64::from(group) << 8 | index as u64);
        let len = [0, 8, 64, 24 << 10][dice.below(4)];
        Self { kind: dice.below(9), root: dice.below(of), len }
    }

    /// The input of a member.
    fn input(&self, group: u32, index: usize, rank: usize, of: usize) -> Vec<u8> {
        let seed = rank * 37 + index * 11 + group as usize % 251;
        // After 256 bytes they are the same again; copies take less time.
        let some: Vec<_> = (0..256).map(|at| (seed + at * 7) as u8).collect();
        let mut all = some.repeat((self.len * of).div_ceil(some.len()));
        all.truncate(self.len * of);
        all
    }

    fn plan(&self, member: RankOf) -> CollPlan {
        let Self { root, len, .. } = *self;
        match self.kind {
            0 => member.barrier(),
            1 => member.broadcast(root, len),
            2 => member.reduce(root, len),
            3 => member.allreduce(len, 1),
            4 => member.allgather(len),
            5 => member.alltoall(len),
            6 => member.reduce_scatter(len),
            7 => member.scatter(root, len),
            _ => member.gather(root, len),
        }
    }

    /// Returns the expected result of a member from the inputs of all members.
    fn result(&self, rank: usize, inputs: &[Vec<u8>]) -> Vec<u8> {
        let Self { root, len, .. } = *self;
        let block = |of: usize, at: usize| &inputs[of][at * len..(at + 1) * len];
        let highest = |at: usize, len: usize| -> Vec<u8> {
            let mut most = inputs[0][at..at + len].to_vec();
            for input in inputs {
                most.iter_mut().zip(&input[at..at + len]).for_each(|(m, i)| *m = *i.max(m));
            }
            most
        };
        let all = |at: usize| (0..inputs.len()).flat_map(|of| block(of, at).to_vec()).collect();
        match self.kind {
            1 if rank != root => block(root, 0).to_vec(),
            2 if rank == root => highest(0, len),
            3 => highest(0, len),
            4 => all(0),
            5 => all(rank),
            6 => highest(rank * len, len),
            7 => block(root, rank).to_vec(),
            8 if rank == root => all(0),
            _ => Vec::new(),
        }
    }
}

/// Progress of a member with its set.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MemberProgress {
    /// The member is to join.
    Outside,
    Joining,
    /// The member is in a group of this number, has so many operations behind it, and has the
    /// next under way or not.
    Inside(u32, usize, bool),
    /// An operation failed, or joining did.
    Failed,
    Through,
}

struct Member {
    progress: MemberProgress,
    group: Option<Arc<CollGroup>>,
    /// Number of join requests to the member.
    joins: usize,
}

impl Member {
    fn new() -> Self {
        Self { progress: MemberProgress::Outside, group: None, joins: 0 }
    }
}

/// State shared by the oracle and the member scripts: the progress of each member of each set.
#[derive(Default)]
struct Board {
    /// By node and set.
    members: BTreeMap<(usize, usize), Member>,
    /// Ranks having started each operation of a group.
    started: HashMap<(u32, usize), BTreeSet<usize>>,
    complaints: Vec<String>,
}

type SharedBoard = Arc<Mutex<Board>>;

impl Board {
    fn complain(&mut self, what: impl Debug) {
        self.complaints.push(format!("{what:?}"));
    }
}

struct CollNode {
    collectives: Arc<Collectives>,
    _port: Arc<SimPort>,
    later: Arc<DeferredQueue>,
    life: usize,
}

struct CollWorld {
    dice: SimRandom,
    network: SharedNetwork,
    board: SharedBoard,
    nodes: Vec<CollNode>,
    sets: Vec<Arc<[fi_addr_t]>>,
    kills: usize,
    /// Maximum number of joins of each member.
    joins: usize,
}

fn addr_of(node: usize) -> Addr {
    Addr::Ip(([127, 0, 0, 1], 2000 + node as u16).into())
}

impl CollWorld {
    fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut dice = SimRandom::new(seed);
        let count = 2 + dice.below(7);
        let network = Arc::new(Mutex::new(Network {
            dice: SimRandom::new(!seed),
            stops: Vec::new(),
            links: BTreeMap::new(),
            put_off: false,
            fault,
        }));
        let mut nodes = Vec::new();
        for node in 0..count {
            let later = DeferredQueue::new().unwrap();
            lock(&network).stops.push(CollSimAddress {
                later: later.clone(),
                life: 0,
                alive: true,
                posted: Vec::new(),
                unexpected: Vec::new(),
                connected: HashMap::new(),
                sending: HashMap::new(),
            });
            nodes.push(Self::begin(&network, node, 0, later));
        }
        let mut sets = vec![(0..count as u64).collect::<Arc<[fi_addr_t]>>()];
        if dice.one_in(2) {
            let few: BTreeSet<u64> =
                (0..2 + dice.below(3)).map(|_| dice.below(count) as u64).collect();
            sets.push(few.into_iter().collect());
        }
        let kills = if dice.one_in(2) { dice.below(4) } else { 0 };
        let board = Arc::new(Mutex::new(Board::default()));
        for (set, members) in sets.iter().enumerate() {
            for node in members.iter() {
                lock(&board).members.insert((*node as usize, set), Member::new());
            }
        }
        Self { dice, network, board, nodes, sets, kills, joins: usize::MAX }
    }

    /// An endpoint begins at an address.
    fn begin(
        network: &SharedNetwork,
        node: usize,
        life: usize,
        later: Arc<DeferredQueue>,
    ) -> CollNode {
        let port = Arc::new(SimPort { node, life, network: network.clone() });
        let weak: Weak<dyn Port> = Arc::downgrade(&(port.clone() as Arc<dyn Port>));
        let collectives = Collectives::new(weak, later.clone(), TASK_QUEUE);
        // The numbers of groups are those of the seed as well.
        lock(&collectives.state).seed = lock(network).dice.next();
        collectives.start_listening();
        let listening = Arc::downgrade(&collectives);
        later.listen(TASK_QUEUE, move |peer, error| {
            if let Some(collectives) = listening.upgrade() {
                collectives.lost(peer, error);
            }
        });
        CollNode { collectives, _port: port, later, life }
    }

    /// Kills an endpoint, and begins another one at its address.
    fn restart(&mut self, node: usize) {
        lock(&self.network).kill(node);
        self.nodes[node].collectives.close();
        self.nodes[node].later.leave(TASK_QUEUE);
        let (later, life) = (DeferredQueue::new().unwrap(), self.nodes[node].life + 1);
        let mut network = lock(&self.network);
        let stop = &mut network.stops[node];
        (stop.later, stop.life, stop.alive) = (later.clone(), life, true);
        (stop.posted, stop.unexpected) = (Vec::new(), Vec::new());
        (stop.connected, stop.sending) = (HashMap::new(), HashMap::new());
        drop(network);
        self.nodes[node] = Self::begin(&self.network, node, life, later);
        for ((of, _), member) in &mut lock(&self.board).members {
            if *of == node {
                *member = Member::new();
            }
        }
    }

    /// Has a member of a set do its next thing; false if it has nothing to do.
    fn act(&mut self, node: usize, set: usize) -> bool {
        let mut board = lock(&self.board);
        let member = board.members.get_mut(&(node, set)).unwrap();
        let progress = member.progress.clone();
        match progress {
            MemberProgress::Outside | MemberProgress::Failed if member.joins < self.joins => {
                member.joins += 1;
                if let Some(group) = member.group.take() {
                    let _ = self.nodes[node].collectives.leave(&group);
                }
                member.progress = MemberProgress::Joining;
                drop(board);
                self.join(node, set);
            }
            MemberProgress::Inside(number, index, false) if index < OPERATIONS => {
                member.progress = MemberProgress::Inside(number, index, true);
                let group = member.group.clone().unwrap();
                board.started.entry((number, index)).or_default().insert(group.member.rank);
                drop(board);
                self.operate(node, set, &group, index);
            }
            MemberProgress::Inside(_, OPERATIONS, false) => {
                member.progress = MemberProgress::Through
            }
            _ => return false,
        }
        true
    }

    fn join(&self, node: usize, set: usize) {
        let members = self.sets[set].clone();
        let addrs: Vec<_> = members.iter().map(|member| addr_of(*member as usize)).collect();
        let rank = members.iter().position(|member| *member as usize == node).unwrap();
        let (board, life) = (self.board.clone(), self.nodes[node].life);
        let (network, of) = (self.network.clone(), members.len());
        self.nodes[node].collectives.join(members, RankOf { rank, of }, &addrs, move |result| {
            if lock(&network).stops[node].life != life {
                return;
            }
            let mut board = lock(&board);
            let member = board.members.get_mut(&(node, set)).unwrap();
            if member.progress != MemberProgress::Joining {
                let was = format!("{node} joined {set} twice: {:?}", member.progress);
                return board.complain(was);
            }
            match result {
                Ok(group) => {
                    member.progress = MemberProgress::Inside(group.number, 0, false);
                    member.group = Some(group);
                }
                Err(_) => member.progress = MemberProgress::Failed,
            }
        });
    }

    fn operate(&self, node: usize, set: usize, group: &Arc<CollGroup>, index: usize) {
        let (number, RankOf { rank, of }) = (group.number, group.member);
        let deal = CollScenario::new(number, index, of);
        let inputs: Vec<_> = (0..of).map(|rank| deal.input(number, index, rank, of)).collect();
        let own = inputs[rank].clone();
        let plan = deal.plan(group.member);
        // SAFETY: the call reads the bytes before it returns.
        let input = unsafe { SendBuf::new(own.as_ptr().cast(), plan.input) }.unwrap();
        let (board, life, network) =
            (self.board.clone(), self.nodes[node].life, self.network.clone());
        let finish: CollFinish = Box::new(move |result| {
            if lock(&network).stops[node].life != life {
                return;
            }
            let mut board = lock(&board);
            let all = board.started.get(&(number, index)).is_some_and(|ranks| ranks.len() == of);
            let member = board.members.get_mut(&(node, set)).unwrap();
            if member.progress != MemberProgress::Inside(number, index, true) {
                let was = format!("{node}: {index} of {number} is over in {:?}", member.progress);
                return board.complain(was);
            }
            member.progress = match result {
                Ok(_) => MemberProgress::Inside(number, index + 1, false),
                Err(_) => MemberProgress::Failed,
            };
            let Ok(bytes) = result else { return };
            if bytes != deal.result(rank, &inputs) {
                board.complain(format!("{node} got another result of {}", deal.kind));
            }
            if deal.kind == 0 && !all {
                board.complain(format!("{node} is through a barrier before all came"));
            }
        });
        let highest = Some(Operation::highest_byte());
        let start = Start { plan, input: Some(input), reduction: highest, finish };
        if self.nodes[node].collectives.start(group, start).is_err() {
            // The group is broken.
            let mut board = lock(&self.board);
            board.members.get_mut(&(node, set)).unwrap().progress = MemberProgress::Failed;
        }
    }

    /// Runs without a member and without a replacement: each of the others joins `ROUNDS` times, at
    /// any time, and each join has to fail.
    fn run_without(mut self, gone: usize) {
        self.kills = 0;
        lock(&self.network).kill(gone);
        self.nodes[gone].collectives.close();
        self.nodes[gone].later.leave(TASK_QUEUE);
        self.sets.truncate(1);
        lock(&self.board).members.retain(|(node, set), _| *node != gone && *set == 0);
        self.joins = ROUNDS;
        self.settle();
        for ((node, _), member) in &lock(&self.board).members {
            assert_eq!(member.progress, MemberProgress::Failed, "{node} waits for ever");
            let buffered = &lock(&self.nodes[*node].collectives.state).early;
            assert!(buffered.is_empty(), "{node} keeps {buffered:?}");
        }
    }

    /// Performs one of the possible steps of the world. Returns false if it is quiescent.
    fn step(&mut self) -> bool {
        let links: Vec<_> = {
            let network = lock(&self.network);
            network.links.iter().filter(|(_, link)| !link.is_empty()).map(|(at, _)| *at).collect()
        };
        let members: Vec<_> = lock(&self.board).members.keys().copied().collect();
        if self.kills > 0 && self.dice.one_in(150) {
            self.kills -= 1;
            let node = self.dice.below(self.nodes.len());
            self.restart(node);
        }
        match self.dice.below(3) {
            0 if !links.is_empty() => {
                let (from, to) = links[self.dice.below(links.len())];
                lock(&self.network).deliver(from, to);
            }
            1 => {
                let (node, set) = members[self.dice.below(members.len())];
                self.act(node, set);
            }
            _ => {
                let node = self.dice.below(self.nodes.len());
                self.nodes[node].later.run();
            }
        }
        let complaints = &lock(&self.board).complaints;
        assert!(complaints.is_empty(), "{complaints:?}");
        !links.is_empty()
    }

    /// Goes on until nothing moves any more.
    fn settle(&mut self) {
        loop {
            while self.step() {}
            for node in &self.nodes {
                node.later.run();
            }
            let members: Vec<_> = lock(&self.board).members.keys().copied().collect();
            let mut moved = false;
            for (node, set) in members {
                moved |= self.act(node, set);
                self.nodes[node].later.run();
            }
            let mut network = lock(&self.network);
            let quiet = network.links.values().all(VecDeque::is_empty);
            if quiet && !moved && !std::mem::take(&mut network.put_off) {
                return;
            }
        }
    }

    fn run(mut self) {
        self.settle();
        // Members that are through do not know of those that begin anew.
        for _ in 0..ROUNDS {
            self.kills = 0;
            let all = |board: &Board| {
                board.members.values().all(|member| member.progress == MemberProgress::Through)
            };
            if all(&lock(&self.board)) {
                break;
            }
            for member in lock(&self.board).members.values_mut() {
                if member.progress == MemberProgress::Through {
                    member.progress = MemberProgress::Failed;
                }
            }
            self.settle();
        }
        let board = lock(&self.board);
        for ((node, set), member) in &board.members {
            let progress = &member.progress;
            assert_eq!(*progress, MemberProgress::Through, "{node} of set {set} waits for ever");
        }
        drop(board);
        lock(&self.board).members.clear();
        for node in self.nodes.drain(..) {
            assert!(lock(&node.collectives.state).runs.is_empty(), "an operation is left");
            node.collectives.close();
            node.later.leave(TASK_QUEUE);
            assert_eq!(
                Arc::strong_count(&node.collectives),
                1,
                "something keeps an endpoint's side"
            );
        }
    }
}

/// Runs the world of a seed and returns its number of members.
fn run(seed: u64, fault: Option<Fault>) -> usize {
    let world = CollWorld::new(seed, fault);
    let members = lock(&world.board).members.len();
    world.run();
    members
}

#[test]
fn joining_leaving_and_restarting_members_get_correct_results() {
    seeds::run_all(300, |seed| run(seed, None));
}

#[test]
fn all_calls_to_join_a_set_fail_while_a_member_is_gone() {
    seeds::run_all(300, |seed| {
        let world = CollWorld::new(seed, None);
        let gone = seed as usize % world.nodes.len();
        let members = world.nodes.len();
        world.run_without(gone);
        members
    });
}

#[test]
fn simulator_detects_injected_faults() {
    for fault in [Fault::LostMessage, Fault::WrongByte, Fault::SilentEnd] {
        let found = seeds::found(200, |seed| run(seed, Some(fault)));
        assert!(found.is_some(), "{fault:?} is not found");
    }
}
