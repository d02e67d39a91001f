//! Received notices and ended connections.
use super::{CollGroup, CollRun, CollState, Collectives, Question, lock};
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::coll::join_set::{ITERATIONS, QUESTION, Set, extract, joining_tag, round_of};
use crate::coll::notice::{CollNotice, NO_MEMBER, UNASKED};
use crate::coll::plan::MAX_MEMBERS;
use crate::error::Error;
use crate::reserved::JOINING_TAG;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of join notices stored for each sender until the set is joined here.
const MAX_EARLY: usize = 64;
/// Maximum number of join notices stored for all senders not in the address vector together.
const MAX_STRANGE: usize = 1024;

impl Collectives {
    /// Returns true if `id` is the address reported by completions for one of these members.
    pub(super) fn is_among(&self, id: fi_addr_t, members: &[fi_addr_t]) -> bool {
        self.member_of(id, members).is_some()
    }

    /// Returns the rank of the member reported as `id` by completions.
    fn member_of(&self, id: fi_addr_t, members: &[fi_addr_t]) -> Option<usize> {
        let port = self.port.upgrade()?;
        let is = |member: &fi_addr_t| port.id_of(*member) == id;
        members.iter().position(is).filter(|_| id != FI_ADDR_NOTAVAIL)
    }

    pub(super) fn noticed(self: &Arc<Self>, from: fi_addr_t, notice: &CollNotice) {
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
            if state.early.iter().filter(|early| same(early)).count() == MAX_EARLY {
                if let Some(oldest) = state.early.iter().position(same) {
                    state.early.remove(oldest);
                }
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
            if let Some(members) = set {
                if let Some(rank) = self.member_of(from, &members) {
                    self.on_round_notice(&members, rank, round, notice.error == UNASKED);
                }
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
                if state.asked.iter().filter(|other| same(other)).count() >= most {
                    if let Some(oldest) = state.asked.iter().position(same) {
                        state.asked.remove(oldest);
                    }
                }
                state.asked.push_back(question);
            }
            _ => {}
        }
    }

    /// Answers a question for the join number. The receiver is the member reported by completions,
    /// or the one with the rank sent by the peer if the peer was not in the address vector then.
    pub(super) fn reply(self: &Arc<Self>, members: &Arc<[fi_addr_t]>, question: Question) {
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
    pub(super) fn come_new(self: &Arc<Self>, members: &Arc<[fi_addr_t]>, counted: u64) {
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
    pub(super) fn failed_early(&self, tag: u64, members: &[fi_addr_t]) -> Option<Error> {
        let early = extract(&mut lock(&self.state).early, |(_, joining, _)| *joining == tag);
        early.into_iter().find(|(from, ..)| self.is_among(*from, members)).map(|(.., error)| error)
    }

    /// Sends a notice to all members but the one of this rank.
    pub(super) fn tell(self: &Arc<Self>, members: &[fi_addr_t], rank: usize, notice: &CollNotice) {
        for (_, member) in members.iter().enumerate().filter(|(other, _)| *other != rank) {
            self.notify(*member, notice);
        }
    }

    /// Sends a notice; an unreachable member counts as lost.
    pub(super) fn notify(self: &Arc<Self>, to: fi_addr_t, notice: &CollNotice) {
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
    pub(super) fn broken(&self, group: &CollGroup, error: Error) -> bool {
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
