//! Collective operations (fi_collective(3)), over the tagged messages of any endpoint supporting
//! internal operations ([`crate::later`]).
//!
//! A [`Collectives`] is the state of one endpoint, a [`CollGroup`] one joined set, and a
//! [`CollRun`] one operation of a group, following its [`plan`]. Runs use separate memory: the
//! application's buffers are read in the call and written at the completion, so a failed operation
//! releases them at once.
//!
//! Everything but the calls themselves runs as tasks of the domain's [`DeferredQueue`], one at a
//! time, without any lock held.
//!
//! Messages have bit 63 of the tag set, so an application requesting collectives has one bit less
//! (mem_tag_format). They have a separate queue in the receiver's matching engine. The lower bits:
//!
//! | bits | in a group | while joining |
//! |---|---|---|
//! | 62 | 0 | 1 |
//! | 61..30 | the group's number | signature of the set |
//! | 29..16 | the operation's number | join number: the count of previous joins of the set |
//! | 15..0 | the sender's rank | the sender's rank |
//!
//! The rank in a message's tag is not trusted by itself: the receive for it names the member's
//! address as its source. Peers not in the address vector are members of no group. Their messages
//! are dropped, except notices.
//!
//! No group has the number 0; its tag is for [`CollNotice`]s. A notice reports a broken group, a
//! failed join, or join numbers. Join numbers are accepted from members only. A notice without a
//! group only proves a member is reachable.
//!
//! # Join numbers
//! Every member counts its joins of a set. So the first call of each matches the first of the
//! others, even if it failed for some before others made it. A process restarted at a former
//! member's address has counted nothing yet. Notices of a terminated member may not have reached
//! all. So a member joining a set for the first time, or after a failure, asks its communication
//! partners for their join number. It continues with the highest one and sends it to partners with
//! a lower one. These continue with it as well: a member asking is no part of their operations in
//! progress. A new member among established ones uses the next higher number, because messages of
//! its predecessor may be pending in the highest. A join failing for one member fails for all, in
//! the call with its number. A member sends the failed join numbers before its own one, and no
//! member skips a number known to have failed.
//!
//! # Failed members
//! Waiting for a message reveals nothing about its sender. So a member first waiting for another
//! one sends it a notice. This establishes a connection or fails, and asks if the process at this
//! address belongs to the group. The engine reports the end of a connection; afterwards no process
//! at this address belongs to the existing groups. A peer asking for a join number belongs to none
//! of the set's groups either. A member detecting a broken group notifies all other members, since
//! they may wait for it. A member notified of a group before it starts to join stores the notice
//! until then.
#[allow(unsafe_code)]
mod area;
mod identity;
mod plan;
#[allow(unsafe_code)]
mod set;
#[cfg(test)]
mod sim;

pub(crate) use area::Area;
pub(crate) use identity::{Identification, MemberIds};
pub(crate) use plan::{Bytes, CollPlan, RankOf};
pub(crate) use set::{AvSet, av_set, peer_av_set};

use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::addr::Addr;
use crate::atomic::Operation;
use crate::buf::SendBuf;
use crate::cq::Context;
use crate::deferred::{DeferredQueue, Outcome, Task};
use crate::error::{Error, Result};
use crate::notices::{NoticeLine, Port};
use crate::reserved::{
    COLLECTIVE_ADDR, COLLECTIVE_TAG, GROUP_SHIFT, JOINING_TAG, OWN_TAG, RANK_BITS, SEQ_BITS,
};
use crate::sys;
use plan::{Exchange, Round};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Maximum number of join notices stored for each sender until the set is joined here.
const MAX_EARLY: usize = 64;
/// Maximum number of join notices stored for all senders not in the address vector together.
const MAX_STRANGE: usize = 1024;
/// Most members of a group.
pub(crate) const MAX_MEMBERS: usize = 1 << RANK_BITS;
/// Number of distinguishable join numbers. This value itself stands for the question for the join
/// number.
const ITERATIONS: u64 = (1 << SEQ_BITS) - 1;
const QUESTION: u64 = ITERATIONS;
/// Error code of an unsolicited notice with a join number.
const UNASKED: i32 = -1;
/// Error code of a notice answering the membership question: its sender does not belong to the
/// group.
const NO_MEMBER: i32 = -2;
/// Placeholder for a receive while waiting for a notice instead of a message.
const BY_NOTICE: Context = Context(usize::MAX as *mut _);
/// Maximum number of operations of a group in flight, limited by their distinguishable numbers.
const MAX_RUNS: usize = 1 << (SEQ_BITS - 2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Called once when an operation is over, with its result.
pub(crate) type CollFinish = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// Notice of a broken group, a failed join, or join numbers, or an empty one.
#[derive(Clone, Copy, Default)]
struct CollNotice {
    /// Number of the group, or 0; in a notice of a join number the name of the set ([`Set::name`]).
    group: u32,
    /// Errno of the failure, 0 without one. [`UNASKED`] in an unsolicited notice of a join number,
    /// [`NO_MEMBER`] in an answer to a membership question.
    error: i32,
    /// The tag of the joining without the sender's rank, or 0.
    joining: u64,
}

impl CollNotice {
    const LEN: usize = 16;

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.group.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.to_be_bytes());
        bytes[8..].copy_from_slice(&self.joining.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, joining @ ..] = *bytes;
        let (group, error) = (u32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]));
        Self { group, error, joining: u64::from_be_bytes(joining) }
    }
}

/// An endpoint's collectives.
pub(crate) struct Collectives {
    port: Weak<dyn Port>,
    later: Arc<DeferredQueue>,
    task_queue: usize,
    notices: Arc<NoticeLine>,
    state: Mutex<CollState>,
}

#[derive(Default)]
struct CollState {
    groups: BTreeMap<u32, Arc<CollGroup>>,
    /// Numbers reserved for groups being created.
    reserved: HashSet<u32>,
    /// Reserved numbers of groups already broken according to a member: the member, the number, and
    /// the error.
    broken: Vec<(fi_addr_t, u32, Error)>,
    runs: Vec<Arc<CollRun>>,
    /// Members with an established connection not ended since.
    reached: HashSet<fi_addr_t>,
    /// Address of each member at the last join of a set.
    addrs: HashMap<fi_addr_t, Addr>,
    /// True if the receive for notices is posted.
    listening: bool,
    /// Joins of the same signature wait for each other, in the order of the calls.
    joins: BTreeMap<u32, VecDeque<Box<dyn FnOnce() + Send>>>,
    /// Sets of addresses joined, or being joined, by the endpoint.
    sets: BTreeMap<Arc<[fi_addr_t]>, Set>,
    /// Questions for the join number of sets not joined yet, answered at their join.
    asked: VecDeque<Question>,
    /// Joins failed at other members and not started here: the reporting member, the tag, and the
    /// error.
    early: Vec<(fi_addr_t, u64, Error)>,
    /// State of the sequence of numbers for new groups.
    seed: u64,
}

impl CollState {
    /// Returns true if a join's number precedes the current one of the set in this endpoint.
    fn is_past(&self, joining: u64) -> bool {
        let round = round_of(joining);
        let same = |set: &&Set| joining_tag(set.signature, round) == joining;
        let mut sets = self.sets.values().filter(same).peekable();
        sets.peek().is_some() && sets.all(|set| is_after(set.round, round))
    }
}

/// Query of a peer for the join number of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Question {
    /// Address of the peer as reported by completions; FI_ADDR_NOTAVAIL if the address vector does
    /// not have it yet.
    from: fi_addr_t,
    /// Rank sent by the peer.
    rank: usize,
    /// Name of the set, known to its members ([`Set::name`]).
    name: u32,
}

/// State of a set joined, or being joined, by the endpoint.
struct Set {
    /// Hash of the addresses of all members, identifying the set among them.
    name: u32,
    /// Hash of the members' ports, identifying the set in tags.
    signature: u32,
    /// The endpoint's own rank.
    rank: usize,
    /// Number of the join in progress, or of the next one.
    round: u64,
    /// True if this endpoint has not taken part in any join of the set yet.
    newcomer: bool,
    /// True while a join is in progress.
    joining: bool,
    /// True if the last join succeeded, so the members agree on the join number.
    agreed: bool,
    /// Known join numbers of members since the begin of a join.
    known: BTreeMap<fi_addr_t, u64>,
    /// Members whose connection ended during a join, and the error.
    lost: HashMap<fi_addr_t, Error>,
}

/// Returns true if a join number follows another one.
fn is_after(round: u64, other: u64) -> bool {
    (1..ITERATIONS / 2).contains(&((round + ITERATIONS - other) % ITERATIONS))
}

impl Set {
    /// Returns the notice for a join number.
    fn notice(&self, round: u64, error: i32) -> CollNotice {
        CollNotice { group: self.name, error, joining: joining_tag(self.signature, round) }
    }

    /// Records the join number of a member and adopts a higher one. Returns the members with a
    /// lower one, to be notified.
    fn learn(&mut self, member: fi_addr_t, round: u64) -> Vec<fi_addr_t> {
        self.known.insert(member, round);
        if is_after(round, self.round) {
            self.round = round;
        }
        // A member that is in the turn which was the last one here may be through with it soon,
        // too.
        let through = !self.joining && self.agreed;
        let least = if through { (self.round + ITERATIONS - 1) % ITERATIONS } else { self.round };
        let behind = self.known.iter().filter(|(_, of)| is_after(least, **of));
        let behind: Vec<_> = behind.map(|(member, _)| *member).collect();
        self.known.extend(behind.iter().map(|member| (*member, self.round)));
        behind
    }
}

/// A joined group.
pub(crate) struct CollGroup {
    number: u32,
    /// Tag of its join.
    joining: u64,
    pub(crate) members: Arc<[fi_addr_t]>,
    pub(crate) member: RankOf,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    next: u64,
    broken: Option<Error>,
    /// Members whose connection ended, and the error. A process with their address started since is
    /// no member.
    lost: HashMap<fi_addr_t, Error>,
}

impl CollGroup {
    /// Returns the address of the group in calls.
    pub(crate) fn addr(&self) -> fi_addr_t {
        COLLECTIVE_ADDR | fi_addr_t::from(self.number)
    }
}

/// An operation under way.
struct CollRun {
    collectives: Arc<Collectives>,
    /// The number of the operation's group; 0 while a group is being made.
    group: u32,
    members: Arc<[fi_addr_t]>,
    /// The tag of the operation's messages without the sender's rank.
    tag: u64,
    rank: usize,
    reduction: Option<Operation>,
    area: Area,
    state: Mutex<RunState>,
}

struct RunState {
    rounds: VecDeque<Round>,
    /// Transfers of this round not posted yet.
    unposted: VecDeque<Exchange>,
    /// Number of posted and incomplete transfers.
    outstanding: usize,
    /// The receives among them, and the rank each is from.
    receives: Vec<(Context, usize)>,
    result: plan::Bytes,
    /// Called when the operation is over; none from then on.
    finish: Option<CollFinish>,
}

/// A collective operation to be started.
pub(crate) struct Start {
    pub(crate) plan: CollPlan,
    pub(crate) input: Option<SendBuf>,
    pub(crate) reduction: Option<Operation>,
    pub(crate) finish: CollFinish,
}

impl Collectives {
    pub(crate) fn new(
        port: Weak<dyn Port>,
        later: Arc<DeferredQueue>,
        task_queue: usize,
    ) -> Arc<Self> {
        // Numbers need not be secret: two groups with the same one are found out.
        let state = CollState { seed: sys::random(), ..CollState::default() };
        let notices = NoticeLine::new(port.clone(), later.clone(), task_queue, COLLECTIVE_TAG);
        Arc::new(Self { port, later, task_queue, notices, state: Mutex::new(state) })
    }

    /// Returns the group with this address.
    pub(crate) fn group(&self, addr: fi_addr_t) -> Result<Arc<CollGroup>> {
        let number = u32::try_from(addr & !COLLECTIVE_ADDR).map_err(|_| Error::INVAL)?;
        if addr & COLLECTIVE_ADDR == 0 {
            return Err(Error::INVAL);
        }
        lock(&self.state).groups.get(&number).cloned().ok_or(Error::INVAL)
    }

    /// Leaves a group; -FI_EBUSY while an operation of it is under way.
    pub(crate) fn leave(&self, group: &CollGroup) -> Result {
        let mut state = lock(&self.state);
        if state.runs.iter().any(|run| run.group == group.number) {
            return Err(Error::BUSY);
        }
        state.groups.remove(&group.number);
        Ok(())
    }

    /// Drops all operations and groups of a closed endpoint, without finishing them.
    pub(crate) fn close(&self) {
        let gone = std::mem::take(&mut *lock(&self.state));
        for run in &gone.runs {
            drop(lock(&run.state).finish.take());
        }
    }

    /// Begins an operation of a group.
    pub(crate) fn start(self: &Arc<Self>, group: &CollGroup, start: Start) -> Result {
        let mut state = lock(&group.state);
        if let Some(error) = state.broken {
            return Err(error);
        }
        if lock(&self.state).runs.len() >= MAX_RUNS {
            return Err(Error::AGAIN);
        }
        let seq = state.next % (1 << SEQ_BITS);
        let tag = OWN_TAG | u64::from(group.number) << GROUP_SHIFT | seq << RANK_BITS;
        let run = self.run(group.number, &group.members, group.member.rank, tag, start)?;
        state.next += 1;
        drop(state);
        self.go(run);
        Ok(())
    }

    fn run(
        self: &Arc<Self>,
        group: u32,
        members: &Arc<[fi_addr_t]>,
        rank: usize,
        tag: u64,
        start: Start,
    ) -> Result<Arc<CollRun>> {
        let area = Area::new(start.plan.area)?;
        if let Some(input) = &start.input {
            area.fill(&input.part(0, start.plan.input));
        }
        Ok(Arc::new(CollRun {
            collectives: self.clone(),
            group,
            members: members.clone(),
            tag,
            rank,
            reduction: start.reduction,
            area,
            state: Mutex::new(RunState {
                rounds: start.plan.rounds.into(),
                unposted: VecDeque::new(),
                outstanding: 0,
                receives: Vec::new(),
                result: start.plan.result,
                finish: Some(start.finish),
            }),
        }))
    }

    fn go(&self, run: Arc<CollRun>) {
        lock(&self.state).runs.push(run.clone());
        self.task(move || run.advance());
    }

    fn task(&self, task: impl FnMut() -> Result + Send + 'static) {
        self.later.add([Task::new(self.task_queue, task)]);
    }

    /// Creates a group of these members with these addresses; `member` is the own endpoint.
    pub(crate) fn join(
        self: &Arc<Self>,
        members: Arc<[fi_addr_t]>,
        member: RankOf,
        addrs: &[Addr],
        done: impl FnOnce(Result<Arc<CollGroup>>) + Send + 'static,
    ) {
        let (signature, name) = (signature(addrs), name(addrs));
        let (collectives, done) = (self.clone(), Box::new(done));
        let mut state = lock(&self.state);
        for (member, addr) in members.iter().zip(addrs) {
            if state.addrs.insert(*member, addr.clone()).is_some_and(|before| before != *addr) {
                state.reached.remove(member);
            }
        }
        let begin = move || {
            let (round, reserved) = (0, None);
            Join { collectives, members, member, signature, name, round, reserved, done }.begin();
        };
        let waiting = state.joins.entry(signature).or_default();
        waiting.push_back(Box::new(begin));
        if waiting.len() > 1 {
            return;
        }
        drop(state);
        self.next_join(signature);
    }

    /// Starts the join at the head of the list. Its entry stays there, empty, until the end of the
    /// join.
    fn next_join(self: &Arc<Self>, signature: u32) {
        let begin = match lock(&self.state).joins.get_mut(&signature).and_then(VecDeque::front_mut)
        {
            Some(begin) => std::mem::replace(begin, Box::new(|| ())),
            None => return,
        };
        let (collectives, mut begin) = (self.clone(), Some(begin));
        self.task(move || {
            collectives.listen();
            if let Some(begin) = begin.take() {
                begin();
            }
            Ok(())
        });
    }

    fn join_over(self: &Arc<Self>, signature: u32) {
        let mut state = lock(&self.state);
        if let Some(waiting) = state.joins.get_mut(&signature) {
            waiting.pop_front();
            if waiting.is_empty() {
                state.joins.remove(&signature);
            }
        }
        drop(state);
        self.next_join(signature);
    }

    /// Returns the join number of a set.
    fn round(&self, members: &Arc<[fi_addr_t]>) -> u64 {
        lock(&self.state).sets.get(members).map_or(0, |set| set.round)
    }

    /// Returns a number used neither by a group of this endpoint nor by one being created.
    fn new_number(&self) -> u32 {
        let mut state = lock(&self.state);
        loop {
            // Any sequence serves that does not repeat itself soon (a Weyl sequence).
            state.seed = state.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let number = (state.seed >> 32) as u32;
            if number != 0
                && !state.groups.contains_key(&number)
                && !state.reserved.contains(&number)
            {
                return number;
            }
        }
    }

    /// Posts the receive for notices when the endpoint is enabled, because members joining earlier
    /// ask it for its join number.
    pub(crate) fn start_listening(self: &Arc<Self>) {
        let collectives = self.clone();
        self.task(move || {
            collectives.listen();
            Ok(())
        });
    }

    /// Posts the receive for notices, once.
    fn listen(self: &Arc<Self>) {
        if !std::mem::replace(&mut lock(&self.state).listening, true) {
            let collectives = Arc::downgrade(self);
            self.notices.listen(move |from, bytes: &[u8; CollNotice::LEN]| {
                if let Some(collectives) = collectives.upgrade() {
                    collectives.noticed(from, &CollNotice::read(bytes));
                }
            });
        }
    }

    /// Returns true if `id` is the address reported by completions for one of these members.
    fn is_among(&self, id: fi_addr_t, members: &[fi_addr_t]) -> bool {
        self.member_of(id, members).is_some()
    }

    /// Returns the rank of the member reported as `id` by completions.
    fn member_of(&self, id: fi_addr_t, members: &[fi_addr_t]) -> Option<usize> {
        let port = self.port.upgrade()?;
        let is = |member: &fi_addr_t| port.id_of(*member) == id;
        members.iter().position(is).filter(|_| id != FI_ADDR_NOTAVAIL)
    }

    fn noticed(self: &Arc<Self>, from: fi_addr_t, notice: &CollNotice) {
        let CollNotice { group, joining, .. } = *notice;
        match notice.error {
            0 if joining == 0 => return self.is_asked_for(from, group),
            0 | UNASKED => return self.round_received(from, notice),
            NO_MEMBER => return self.is_no_member(from, |of| of.number == group),
            _ => {}
        }
        let error = Error::from_code(notice.error.max(1));
        let mut state = lock(&self.state);
        // A member may fail in the last step of joining, of which others see nothing.
        let is_meant = |of: &&Arc<CollGroup>| of.number == group || of.joining == joining;
        let groups: Vec<_> = state.groups.values().filter(is_meant).cloned().collect();
        let runs: Vec<_> = state.runs.iter().filter(|run| run.tag == joining).cloned().collect();
        let same = |of: &&(fi_addr_t, u32, Error)| of.0 == from;
        if state.reserved.contains(&group) && state.broken.iter().filter(same).count() < MAX_EARLY {
            state.broken.push((from, group, error));
        }
        let is_new = groups.is_empty() && runs.is_empty() && !state.is_past(joining);
        if joining != 0 && from != FI_ADDR_NOTAVAIL && is_new {
            let same = |early: &(fi_addr_t, u64, Error)| early.0 == from;
            if state.early.iter().filter(|early| same(early)).count() == MAX_EARLY
                && let Some(oldest) = state.early.iter().position(same)
            {
                state.early.remove(oldest);
            }
            state.early.push((from, joining, error));
        }
        drop(state);
        for group in groups.iter().filter(|group| self.is_among(from, &group.members)) {
            if self.broken(group, error) {
                // The reporting member may end before it has notified all others. So the notice is
                // forwarded to the partners of this member in barriers.
                let notice = CollNotice { group: group.number, error: error.code(), joining: 0 };
                for rank in group.member.adjacent() {
                    self.notify(group.members[rank], &notice);
                }
            }
        }
        for run in runs.iter().filter(|run| self.is_among(from, &run.members)) {
            run.end(Err(error));
        }
    }

    /// Answers the membership question of a member of a group. A process restarted at a member's
    /// address is no member.
    fn is_asked_for(self: &Arc<Self>, from: fi_addr_t, group: u32) {
        let state = lock(&self.state);
        let is_of = state.groups.contains_key(&group) || state.reserved.contains(&group);
        drop(state);
        if group != 0 && !is_of && from != FI_ADDR_NOTAVAIL {
            self.notify(from, &CollNotice { group, error: NO_MEMBER, joining: 0 });
        }
    }

    /// Records the end of a peer's membership in these groups, despite its address of a member.
    /// Operations waiting for it there fail.
    fn is_no_member(self: &Arc<Self>, from: fi_addr_t, is_meant: impl Fn(&CollGroup) -> bool) {
        let state = lock(&self.state);
        let groups: Vec<_> = state.groups.values().filter(|of| is_meant(of)).cloned().collect();
        let runs = state.runs.clone();
        drop(state);
        for group in groups {
            let Some(rank) = self.member_of(from, &group.members) else { continue };
            let (member, error) = (group.members[rank], Error::CONNRESET);
            lock(&group.state).lost.entry(member).or_insert(error);
            for run in runs.iter().filter(|run| run.group == group.number) {
                run.check(member, error);
            }
        }
    }

    /// Handles a notice with a join number: a peer queries or reports the join number of a set.
    fn round_received(self: &Arc<Self>, from: fi_addr_t, notice: &CollNotice) {
        let (name, tag) = (notice.group, notice.joining);
        let round = round_of(tag);
        if tag & JOINING_TAG == 0 {
            return;
        }
        let mut state = lock(&self.state);
        let of_name = |(_, set): &(_, &Set)| set.name == name;
        let set = state.sets.iter().find(of_name).map(|(members, _)| members.clone());
        if round != QUESTION {
            drop(state);
            if let Some(members) = set
                && let Some(rank) = self.member_of(from, &members)
            {
                self.on_round_notice(&members, rank, round, notice.error == UNASKED);
            }
            return;
        }
        let question = Question { from, rank: tag as usize & (MAX_MEMBERS - 1), name };
        match set {
            Some(members) if from != FI_ADDR_NOTAVAIL => {
                drop(state);
                // No group is made before all of its members have their answers.
                self.is_no_member(from, |group| group.members == members);
                self.reply(&members, question);
            }
            // The question is answered when the set is joined: the address vector has the peer
            // then.
            _ if !state.asked.contains(&question) => {
                let most = if from == FI_ADDR_NOTAVAIL { MAX_STRANGE } else { MAX_EARLY };
                let same = |other: &Question| other.from == from;
                if state.asked.iter().filter(|other| same(other)).count() >= most
                    && let Some(oldest) = state.asked.iter().position(same)
                {
                    state.asked.remove(oldest);
                }
                state.asked.push_back(question);
            }
            _ => {}
        }
    }

    /// Answers a question for the join number. The receiver is the member reported by completions,
    /// or the one with the rank sent by the peer if the peer was not in the address vector then.
    fn reply(self: &Arc<Self>, members: &Arc<[fi_addr_t]>, question: Question) {
        let rank = match question.from {
            FI_ADDR_NOTAVAIL => Some(question.rank),
            from => self.member_of(from, members),
        };
        if let Some(to) = rank.and_then(|rank| members.get(rank)) {
            self.answer(members, *to);
        }
    }

    /// Sends to a member the number of the current join, or of the next one not known to fail.
    fn answer(self: &Arc<Self>, members: &Arc<[fi_addr_t]>, to: fi_addr_t) {
        let mut state = lock(&self.state);
        let early = self.failed_elsewhere(&state, members);
        let Some(set) = state.sets.get_mut(members) else { return };
        let mut round = set.round;
        if set.joining && set.lost.contains_key(&to) {
            // The one that takes part in this turn is the peer's predecessor at this address.
            round = (round + 1) % ITERATIONS;
        }
        let mut failed = Vec::new();
        while !set.joining && early.contains(&joining_tag(set.signature, round)) {
            failed.push(joining_tag(set.signature, round));
            round = (round + 1) % ITERATIONS;
        }
        set.known.insert(to, round);
        let notice = set.notice(round, 0);
        drop(state);
        // The member may be in a join skipped here, and not have received its failure.
        for joining in failed {
            let error = Error::CONNRESET.code();
            self.notify(to, &CollNotice { group: 0, error, joining });
        }
        self.notify(to, &notice);
    }

    /// Processes the join number of a member.
    fn on_round_notice(
        self: &Arc<Self>,
        members: &Arc<[fi_addr_t]>,
        rank: usize,
        round: u64,
        unasked: bool,
    ) {
        let mut state = lock(&self.state);
        let runs: Vec<_> =
            state.runs.iter().filter(|r| r.group == 0 && r.members == *members).cloned().collect();
        let awaited = runs.iter().any(|run| run.awaits_notice_of(rank));
        let early = self.failed_elsewhere(&state, members);
        let Some(set) = state.sets.get_mut(members).filter(|_| awaited || unasked) else {
            // An answer that comes late has no meaning any more.
            return;
        };
        if unasked && !set.joining && early.contains(&joining_tag(set.signature, set.round)) {
            // The next call fails in the turn that this would skip.
            return;
        }
        let before = set.round;
        let behind = set.learn(members[rank], round);
        let (raised, notice, own) = (set.round != before, set.notice(set.round, UNASKED), set.rank);
        let (passed, left) = (joining_tag(set.signature, before), set.joining);
        drop(state);
        let requests = runs.iter().any(|run| run.has_request());
        for run in runs {
            if requests {
                run.received(rank);
            } else if raised {
                // The joining goes on in the new turn.
                run.end(Err(Error::AGAIN));
            }
        }
        if raised && !requests {
            // Any member may wait for us in a turn that is left or skipped here: it goes on as well.
            self.tell(members, own, &notice);
            if left {
                // Members may be through with the turn that is left here.
                let error = Error::CONNRESET.code();
                self.tell(members, own, &CollNotice { group: 0, error, joining: passed });
            }
        } else {
            behind.iter().for_each(|to| self.notify(*to, &notice));
        }
    }

    /// Completes the exchange of join numbers; this endpoint continues with the highest. A new
    /// member among ones past its own number uses the next higher one, because messages of its
    /// predecessor may still be pending in the highest.
    fn come_new(self: &Arc<Self>, members: &Arc<[fi_addr_t]>, counted: u64) {
        let mut state = lock(&self.state);
        let Some(set) = state.sets.get_mut(members) else { return };
        if !std::mem::take(&mut set.newcomer) || set.round == counted {
            return;
        }
        set.round = (set.round + 1) % ITERATIONS;
        let (round, notice) = (set.round, set.notice(set.round, UNASKED));
        let behind: Vec<_> = set
            .known
            .iter_mut()
            .map(|(to, of)| {
                *of = round;
                *to
            })
            .collect();
        drop(state);
        behind.iter().for_each(|to| self.notify(*to, &notice));
    }

    /// Returns the tags of the joins of a set that failed at other members and were not started
    /// here.
    fn failed_elsewhere(&self, state: &CollState, members: &[fi_addr_t]) -> BTreeSet<u64> {
        let of_set = state.early.iter().filter(|(from, ..)| self.is_among(*from, members));
        of_set.map(|(_, tag, _)| *tag).collect()
    }

    /// Returns the error of a join failed elsewhere before its begin here, if it did.
    fn failed_early(&self, tag: u64, members: &[fi_addr_t]) -> Option<Error> {
        let early: Vec<_> =
            lock(&self.state).early.extract_if(.., |(_, joining, _)| *joining == tag).collect();
        early.into_iter().find(|(from, ..)| self.is_among(*from, members)).map(|(.., error)| error)
    }

    /// Sends a notice to all members but the one of this rank.
    fn tell(self: &Arc<Self>, members: &[fi_addr_t], rank: usize, notice: &CollNotice) {
        for (_, member) in members.iter().enumerate().filter(|(other, _)| *other != rank) {
            self.notify(*member, notice);
        }
    }

    /// Sends a notice; an unreachable member counts as lost.
    fn notify(self: &Arc<Self>, to: fi_addr_t, notice: &CollNotice) {
        let collectives = self.clone();
        self.notices.send(to, notice.write(), move |result| {
            if let Err(error) = result {
                collectives.lost(to, error);
            }
        });
    }

    /// Fails the operations waiting for a peer whose connection ended or could not be established.
    pub(crate) fn lost(self: &Arc<Self>, name: fi_addr_t, error: Error) {
        let mut state = lock(&self.state);
        state.reached.remove(&name);
        let of_it = |group: &&Arc<CollGroup>| group.members.contains(&name);
        let groups: Vec<_> = state.groups.values().filter(of_it).cloned().collect();
        for (_, set) in state.sets.iter_mut().filter(|(of, set)| set.joining && of.contains(&name))
        {
            set.lost.insert(name, error);
        }
        let runs = state.runs.clone();
        drop(state);
        for group in groups {
            lock(&group.state).lost.insert(name, error);
        }
        for run in runs {
            run.check(name, error);
        }
    }

    /// Breaks a group: all its operations fail, those under way and later ones. False if it is
    /// broken already.
    fn broken(&self, group: &CollGroup, error: Error) -> bool {
        if lock(&group.state).broken.replace(error).is_some() {
            return false;
        }
        let of_group = |run: &&Arc<CollRun>| run.group == group.number;
        let runs: Vec<_> = lock(&self.state).runs.iter().filter(of_group).cloned().collect();
        for run in runs {
            run.end(Err(error));
        }
        true
    }
}

/// Returns a hash of the members' ports in rank order, distinguishing sets in tags. Addresses can
/// look different from different hosts, ports cannot. Sets with the same hash are joined one after
/// the other.
fn signature(addrs: &[Addr]) -> u32 {
    hash(addrs.len(), addrs.iter().map(|addr| u64::from(addr.port())))
}

/// Returns a hash of all member addresses: the name of the set among members seeing the same
/// addresses.
fn name(addrs: &[Addr]) -> u32 {
    let parts = addrs.iter().flat_map(|addr| match addr {
        Addr::Ip(addr) => {
            let ip = match addr.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let ip = u128::from(ip);
            vec![u64::from(addr.port()), (ip >> 64) as u64, ip as u64]
        }
        addr => addr.to_bytes().into_iter().map(u64::from).collect(),
    });
    hash(addrs.len(), parts)
}

fn hash(len: usize, parts: impl Iterator<Item = u64>) -> u32 {
    let mix = |hash: u64, part: u64| {
        let hash = (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ hash >> 32
    };
    parts.fold(0xcbf2_9ce4_8422_2325 ^ len as u64, mix) as u32
}

/// Returns the tag of a join, without the sender's rank.
fn joining_tag(signature: u32, round: u64) -> u64 {
    OWN_TAG | JOINING_TAG | u64::from(signature) << GROUP_SHIFT | round << RANK_BITS
}

/// Returns the join number in the tag of a join or a query.
fn round_of(joining: u64) -> u64 {
    joining >> RANK_BITS & ((1 << SEQ_BITS) - 1)
}

/// Returns a member's vote on a proposed number: a flag for an existing group with this number, the
/// number, and its complement. The result of the vote is the highest value of each byte. It equals
/// each member's own vote if, and only if, all have the same number.
fn ballot(taken: bool, number: u32) -> [u8; BALLOT] {
    let mut vote = [u8::from(taken); BALLOT];
    vote[1..5].copy_from_slice(&number.to_be_bytes());
    vote[5..].copy_from_slice(&(!number).to_be_bytes());
    vote
}

const BALLOT: usize = 9;

/// Group being created: rank 0 proposes a number, and every member sends the received number and
/// reports if it has a group with this number already. No member continues before all have arrived.
struct Join {
    collectives: Arc<Collectives>,
    members: Arc<[fi_addr_t]>,
    member: RankOf,
    signature: u32,
    name: u32,
    round: u64,
    /// The number reserved for the group.
    reserved: Option<u32>,
    done: Box<dyn FnOnce(Result<Arc<CollGroup>>) + Send>,
}

impl Join {
    /// The tag of the joining's messages without the sender's rank.
    fn tag(&self) -> u64 {
        joining_tag(self.signature, self.round)
    }

    /// Returns the ranks of the partners of this member in a join.
    fn partners(&self) -> BTreeSet<usize> {
        let plans = [self.member.broadcast(0, 4), self.member.allreduce(BALLOT, 1)];
        plans.iter().flat_map(CollPlan::others).collect()
    }

    fn begin(self) {
        let new = || Set {
            name: self.name,
            signature: self.signature,
            rank: self.member.rank,
            round: 0,
            newcomer: true,
            joining: true,
            agreed: false,
            known: BTreeMap::new(),
            lost: HashMap::new(),
        };
        let mut state = lock(&self.collectives.state);
        let set = state.sets.entry(self.members.clone()).or_insert_with(new);
        if set.name != self.name {
            // The set has other members now, which have the places of former ones in the address
            // vector.
            *set = new();
        }
        set.joining = true;
        set.lost.clear();
        let agreed = set.agreed;
        let name = self.name;
        let asked: Vec<_> = state.asked.iter().filter(|of| of.name == name).copied().collect();
        state.asked.retain(|of| of.name != name);
        drop(state);
        asked.into_iter().for_each(|question| self.collectives.reply(&self.members, question));
        if agreed || self.member.of == 1 { self.enter() } else { self.ask() }
    }

    /// Asks the partners of this member for their join number.
    fn ask(mut self) {
        self.round = self.collectives.round(&self.members);
        if let Some(error) = self.collectives.failed_early(self.tag(), &self.members) {
            return self.over(Err(error));
        }
        let others = self.partners();
        let (collectives, members) = (self.collectives.clone(), self.members.clone());
        let joining = joining_tag(self.signature, QUESTION) | self.member.rank as u64;
        let question = CollNotice { group: self.name, error: 0, joining };
        let nothing = CollPlan::nothing();
        self.step(nothing, &[], None, others.iter().copied().collect(), |join, _| {
            join.collectives.come_new(&join.members, join.round);
            join.enter();
        });
        for other in others {
            lock(&collectives.state).reached.insert(members[other]);
            collectives.notify(members[other], &question);
        }
    }

    /// Takes part in the set's current join.
    fn enter(mut self) {
        self.round = self.collectives.round(&self.members);
        match self.collectives.failed_early(self.tag(), &self.members) {
            Some(error) => self.over(Err(error)),
            None => self.propose(),
        }
    }

    /// Runs one step of joining: an operation, or waiting for notices.
    fn step(
        self,
        plan: CollPlan,
        input: &[u8],
        reduction: Option<Operation>,
        notified: Vec<usize>,
        then: impl FnOnce(Self, &[u8]) + Send + 'static,
    ) {
        let (tag, rank) = (self.tag(), self.member.rank);
        let (collectives, members) = (self.collectives.clone(), self.members.clone());
        let slot = Arc::new(Mutex::new(Some(self)));
        let of_finish = slot.clone();
        let finish: CollFinish = Box::new(move |result| {
            let Some(mut join) = lock(&of_finish).take() else { return };
            match result {
                Ok(bytes) => then(join, bytes),
                // The joining failed in a turn that the other members are past.
                Err(_) if join.collectives.round(&join.members) != join.round => {
                    join.release();
                    join.enter();
                }
                Err(error) => join.over(Err(error)),
            }
        });
        let start = Start { plan, input: None, reduction, finish };
        match collectives.run(0, &members, rank, tag, start) {
            Ok(run) => {
                run.area.write(0, input);
                let mut state = lock(&run.state);
                state.outstanding = notified.len();
                state.receives = notified.into_iter().map(|from| (BY_NOTICE, from)).collect();
                drop(state);
                collectives.go(run);
            }
            Err(error) => {
                let notice =
                    CollNotice { error: error.code(), joining: tag, ..CollNotice::default() };
                collectives.tell(&members, rank, &notice);
                if let Some(join) = lock(&slot).take() {
                    join.over(Err(error));
                }
            }
        }
    }

    fn propose(self) {
        let plan = self.member.broadcast(0, 4);
        if self.member.rank == 0 {
            let number = self.collectives.new_number();
            self.step(plan, &number.to_be_bytes(), None, Vec::new(), move |join, _| {
                join.vote(number)
            });
        } else {
            self.step(plan, &[], None, Vec::new(), |join, bytes| {
                join.vote(bytes.try_into().map_or(0, u32::from_be_bytes));
            });
        }
    }

    fn vote(mut self, number: u32) {
        let mut state = lock(&self.collectives.state);
        let taken =
            number == 0 || state.groups.contains_key(&number) || !state.reserved.insert(number);
        drop(state);
        self.reserved = (!taken).then_some(number);
        let plan = self.member.allreduce(BALLOT, 1);
        let highest = Operation::highest_byte();
        let vote = ballot(taken, number);
        self.step(plan, &vote, Some(highest), Vec::new(), move |mut join, verdict| {
            if verdict != ballot(false, number) {
                join.release();
                return join.propose();
            }
            let mut state = lock(&join.collectives.state);
            let lost = state.sets.get(&join.members).map(|set| set.lost.clone());
            let broken: Vec<_> = state.broken.extract_if(.., |(_, of, _)| *of == number).collect();
            drop(state);
            let member_sends =
                broken.iter().find(|(by, ..)| join.collectives.is_among(*by, &join.members));
            let group = Arc::new(CollGroup {
                number,
                joining: join.tag(),
                members: join.members.clone(),
                member: join.member,
                state: Mutex::new(GroupState {
                    next: 0,
                    broken: member_sends.map(|(.., error)| *error),
                    lost: lost.unwrap_or_default(),
                }),
            });
            lock(&join.collectives.state).groups.insert(number, group.clone());
            join.over(Ok(group));
        });
    }

    fn release(&mut self) {
        if let Some(number) = self.reserved.take() {
            let mut state = lock(&self.collectives.state);
            state.reserved.remove(&number);
            state.broken.retain(|(_, of, _)| *of != number);
        }
    }

    fn over(mut self, result: Result<Arc<CollGroup>>) {
        self.release();
        if let Err(error) = result {
            // Members that ask for the turn hear that this one has failed before they hear of the
            // next, also when the news of it that another sent is late.
            let notice = CollNotice { group: 0, error: error.code(), joining: self.tag() };
            for rank in self.partners() {
                self.collectives.notify(self.members[rank], &notice);
            }
        }
        let mut state = lock(&self.collectives.state);
        if let Some(set) = state.sets.get_mut(&self.members) {
            set.joining = false;
            set.known.clear();
            set.agreed = result.is_ok();
            if set.round == self.round {
                set.round = (self.round + 1) % ITERATIONS;
            }
        }
        let mut early = std::mem::take(&mut state.early);
        early.retain(|(_, joining, _)| !state.is_past(*joining));
        state.early = early;
        drop(state);
        self.collectives.join_over(self.signature);
        (self.done)(result);
    }
}

impl CollRun {
    /// Posts transfers and carries out steps as far as possible. Runs only as a task.
    fn advance(self: &Arc<Self>) -> Result {
        loop {
            let mut state = lock(&self.state);
            if state.finish.is_none() {
                return Ok(());
            }
            if let Some(transfer) = state.unposted.front().copied() {
                drop(state);
                match self.post(transfer) {
                    // `end` may have dropped the transfer.
                    Ok(()) => drop(lock(&self.state).unposted.pop_front()),
                    Err(Error::AGAIN) => return Err(Error::AGAIN),
                    Err(error) => self.fail(error),
                }
                continue;
            }
            if state.outstanding > 0 {
                return Ok(());
            }
            let Some(round) = state.rounds.pop_front() else {
                let result = state.result;
                drop(state);
                self.end(Ok(self.area.bytes(result)));
                return Ok(());
            };
            // Receives are posted first, so that messages do not become unexpected messages.
            let is_recv = |t: &&Exchange| matches!(t, Exchange::Recv { .. });
            let recvs = round.transfers.iter().filter(is_recv);
            let sends = round.transfers.iter().filter(|t| !is_recv(t));
            state.unposted = recvs.chain(sends).copied().collect();
            drop(state);
            for step in round.steps {
                self.area.step(step, self.reduction);
            }
        }
    }

    fn post(self: &Arc<Self>, transfer: Exchange) -> Result {
        let port = self.collectives.port.upgrade().ok_or(Error::CANCELED)?;
        let run = self.clone();
        match transfer {
            Exchange::Send { to, part } => {
                let peer = self.members[to];
                let context = self
                    .collectives
                    .later
                    .expect(self.collectives.task_queue, move |outcome| run.over(None, outcome));
                lock(&self.state).outstanding += 1;
                let result =
                    port.send(peer, self.tag | self.rank as u64, self.area.send(part), context);
                if result.is_err() {
                    lock(&self.state).outstanding -= 1;
                    self.collectives.later.unexpect(context);
                }
                result
            }
            Exchange::Recv { from, part } => {
                let peer = self.members[from];
                let slot = Arc::new(Mutex::new(Context::NULL));
                let own = slot.clone();
                let context =
                    self.collectives.later.expect(self.collectives.task_queue, move |outcome| {
                        let context = *lock(&own);
                        run.over(Some((context, part.len)), outcome);
                    });
                *lock(&slot) = context;
                let mut state = lock(&self.state);
                state.outstanding += 1;
                state.receives.push((context, from));
                drop(state);
                // Any peer may have written the rank in the tag, so the receive names its
                // source.
                let (tag, buf) = (self.tag | from as u64, self.area.recv(part));
                let result = port.recv(peer, tag, buf, context);
                if result.is_err() {
                    let mut state = lock(&self.state);
                    state.outstanding -= 1;
                    state.receives.retain(|(posted, _)| *posted != context);
                    self.collectives.later.unexpect(context);
                    return result;
                }
                self.look_after(peer);
                Ok(())
            }
        }
    }

    /// Verifies that a peer with an awaited message is reachable: an empty notice establishes a
    /// connection, or fails.
    fn look_after(self: &Arc<Self>, peer: fi_addr_t) {
        let state = lock(&self.collectives.state);
        let group = state.groups.get(&self.group).cloned();
        let set = state.sets.get(&self.members);
        let lost = set.filter(|_| group.is_none()).and_then(|set| set.lost.get(&peer).copied());
        drop(state);
        let lost = match group {
            Some(group) => lock(&group.state).lost.get(&peer).copied(),
            None => lost,
        };
        if let Some(error) = lost {
            // Messages that came before the connection ended count; by the time the task runs
            // they are known.
            let run = self.clone();
            self.collectives.task(move || {
                run.check(peer, error);
                Ok(())
            });
        } else if lock(&self.collectives.state).reached.insert(peer) {
            // The notice makes a connection; if it fails, `lost` is called. If another process has
            // the member's address by now, the answer says so.
            self.collectives
                .notify(peer, &CollNotice { group: self.group, ..CollNotice::default() });
        }
    }

    /// Returns true if the run waits for notices instead of messages.
    fn has_request(&self) -> bool {
        lock(&self.state).receives.iter().any(|(context, _)| *context == BY_NOTICE)
    }

    /// Returns true if the run waits for a notice of the member with this rank.
    fn awaits_notice_of(&self, rank: usize) -> bool {
        lock(&self.state).receives.contains(&(BY_NOTICE, rank))
    }

    /// Records the arrival of an awaited notice.
    fn received(self: &Arc<Self>, rank: usize) {
        let mut state = lock(&self.state);
        let before = state.receives.len();
        state.receives.retain(|receive| *receive != (BY_NOTICE, rank));
        state.outstanding -= before - state.receives.len();
        drop(state);
        let run = self.clone();
        self.collectives.task(move || run.advance());
    }

    /// Takes the outcome of a transfer, and goes on.
    fn over(self: &Arc<Self>, receive: Option<(Context, usize)>, outcome: Outcome) {
        let mut state = lock(&self.state);
        state.outstanding -= 1;
        if let Some((context, _)) = receive {
            state.receives.retain(|(posted, _)| *posted != context);
        }
        if state.finish.is_none() {
            return;
        }
        drop(state);
        match (outcome, receive) {
            (Err(error), _) => self.fail(error.error),
            // A message of another length: the members disagree about the operation.
            (Ok(of), Some((_, len))) if of.len != len => self.fail(Error::TRUNC),
            (Ok(_), _) => {
                let run = self.clone();
                self.collectives.task(move || run.advance());
            }
        }
    }

    /// Fails the run if it waits for a message of this peer; the peer's connection has ended.
    fn check(self: &Arc<Self>, peer: fi_addr_t, error: Error) {
        let waits = lock(&self.state).receives.iter().any(|(_, from)| self.members[*from] == peer);
        if waits {
            self.fail(error);
        }
    }

    /// Fails the run and breaks its group, since other members would otherwise wait for this one
    /// forever.
    fn fail(self: &Arc<Self>, error: Error) {
        if lock(&self.state).finish.is_none() {
            return;
        }
        let group = lock(&self.collectives.state).groups.get(&self.group).cloned();
        let mut notice = CollNotice { group: self.group, error: error.code(), joining: 0 };
        match &group {
            // The reporting member has notified the others as well.
            Some(group) if lock(&group.state).broken.is_some() => return self.end(Err(error)),
            Some(_) => {}
            None => notice.joining = self.tag,
        }
        self.end(Err(error));
        if let Some(group) = group {
            self.collectives.broken(&group, error);
        }
        self.collectives.tell(&self.members, self.rank, &notice);
    }

    /// Ends the run with this result. Its memory stays until the last transfer is over.
    fn end(self: &Arc<Self>, result: Result<&[u8]>) {
        let mut state = lock(&self.state);
        let Some(finish) = state.finish.take() else { return };
        state.rounds.clear();
        state.unposted.clear();
        let receives: Vec<_> = state.receives.iter().map(|(context, _)| *context).collect();
        drop(state);
        if let Some(port) = self.collectives.port.upgrade() {
            receives.into_iter().for_each(|context| port.cancel(context));
        }
        lock(&self.collectives.state).runs.retain(|run| !Arc::ptr_eq(run, self));
        finish(result);
    }
}

#[cfg(test)]
mod tests;
