//! The course of an operation.
use super::{BY_NOTICE, CollRun, lock};
use crate::abi::fi_addr_t;
use crate::coll::notice::CollNotice;
use crate::coll::plan::Exchange;
use crate::cq::Context;
use crate::deferred::Outcome;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex};

impl CollRun {
    /// Posts transfers and carries out steps as far as possible. Runs only as a task.
    pub(super) fn advance(self: &Arc<Self>) -> Result {
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
    pub(super) fn has_request(&self) -> bool {
        lock(&self.state).receives.iter().any(|(context, _)| *context == BY_NOTICE)
    }

    /// Returns true if the run waits for a notice of the member with this rank.
    pub(super) fn awaits_notice_of(&self, rank: usize) -> bool {
        lock(&self.state).receives.contains(&(BY_NOTICE, rank))
    }

    /// Records the arrival of an awaited notice.
    pub(super) fn received(self: &Arc<Self>, rank: usize) {
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
    pub(super) fn check(self: &Arc<Self>, peer: fi_addr_t, error: Error) {
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
    pub(super) fn end(self: &Arc<Self>, result: Result<&[u8]>) {
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
