//! The collective operations of an endpoint.
mod join;
mod noticed;
mod run;
#[cfg(test)]
mod sim;

use super::area::Area;
use super::join_set::{Set, is_after, joining_tag, round_of};
use super::notice::CollNotice;
use super::plan::{Bytes, CollPlan, Exchange, RankOf, Round};
use crate::abi::fi_addr_t;
use crate::addr::Addr;
use crate::atomic::Operation;
use crate::buf::SendBuf;
use crate::cq::Context;
use crate::deferred::{DeferredQueue, Task};
use crate::error::{Error, Result};
use crate::notices::{NoticeLine, Port};
use crate::reserved::{COLLECTIVE_ADDR, COLLECTIVE_TAG, GROUP_SHIFT, OWN_TAG, RANK_BITS, SEQ_BITS};
use crate::sys;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Placeholder for a receive while waiting for a notice instead of a message.
const BY_NOTICE: Context = Context(usize::MAX as *mut _);
/// Maximum number of operations of a group in flight, limited by their distinguishable numbers.
const MAX_RUNS: usize = 1 << (SEQ_BITS - 2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Called once when an operation is over, with its result.
pub(crate) type CollFinish = Box<dyn FnOnce(Result<&[u8]>) + Send>;

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
    result: Bytes,
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
}
