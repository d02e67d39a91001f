//! Joining a set of members.
use super::{BY_NOTICE, CollFinish, CollGroup, Collectives, GroupState, Start, lock};
use crate::abi::fi_addr_t;
use crate::addr::Addr;
use crate::atomic::Operation;
use crate::coll::join_set::{ITERATIONS, QUESTION, Set, extract, joining_tag, name, signature};
use crate::coll::notice::CollNotice;
use crate::coll::plan::{CollPlan, RankOf};
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

impl Collectives {
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
            let broken: Vec<_> = extract(&mut state.broken, |(_, of, _)| *of == number);
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

#[cfg(test)]
mod tests;
