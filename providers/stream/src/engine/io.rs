//! Links of an engine: its transport, connections, listeners and pending connections, and their
//! registration with the poller.
//!
//! The poller reports connections not polled directly. Each connection is registered for
//! the events awaited by it.
use super::active_conns::ActiveConns;
use super::blocked_conns::BlockedConns;
use super::conn::{Stage, StreamConn};
use super::conn_limit::ConnLimit;
use super::conn_table::ConnTable;
use super::incoming::HeaderOutcome;
use super::listeners::{ACCEPT_DELAY, Listeners};
use super::poll_state::PollState;
use super::timer::EngineTimer;
use super::tokens::{TOKEN_CALLER, TOKEN_CONN};
use crate::accept_queue::AcceptQueue;
use crate::repeated_requests::NumberedRequests;
use crate::transport::{ByteLink, LinkOp, LinkPoller, ShmLink, ShmTransport};
use ofi_provider::buf::{CopyMode, GatherList};
use ofi_provider::error::Result;
use ofi_provider::sys::{Interest, OwnerProcess, PollEvent};
use std::time::{Duration, Instant};

/// Consecutive empty reads after which a connection becomes idle and leaves the active list.
pub(super) const COLD_AFTER: u32 = 4096;

/// A connection leaves the active list after others moved so many times while it did not.
pub(super) const LEFT_BEHIND: u32 = 16;

/// Polling interval of unread connections with an end possibly not reported by the poller.
const UNREAD_LOOK: Duration = Duration::from_secs(1);

/// Links of an engine.
pub(super) struct EngineIo<N: ShmTransport> {
    /// Transport of the engine.
    pub(super) net: N,
    /// Process that created the engine.
    owner: OwnerProcess,
    pub(super) conns: ConnTable<N>,
    pub(super) poll: PollState,
    /// Connections polled without asking the poller.
    pub(super) active: ActiveConns,
    /// Unread connections.
    pub(super) blocked: BlockedConns,
    pub(super) timer: EngineTimer,
    /// Time of the next check for silent peers; none without a link to be checked.
    pub(super) silence_due: Option<Instant>,
    /// Events of the last poll; empty between polls.
    pub(super) events: Vec<PollEvent>,
    pub(super) listeners: Listeners<N>,
    /// Accepted connections with an incomplete request.
    pub(super) callers: AcceptQueue<N::Link>,
    /// Accepted requests with a number.
    pub(super) numbered: NumberedRequests<N::Link>,
    /// Limit of the connections.
    pub(super) limit: ConnLimit,
}

impl<N: ShmTransport> EngineIo<N> {
    #[inline(always)]
    pub(super) fn new(net: N) -> Self {
        let mut callers = AcceptQueue::new(TOKEN_CALLER, usize::MAX);
        if N::Link::settings().early_data > 0 {
            callers.permit_early_data();
        }
        Self {
            net,
            owner: OwnerProcess::current(),
            conns: ConnTable::default(),
            poll: PollState::new(),
            active: ActiveConns::new(),
            blocked: BlockedConns::default(),
            timer: EngineTimer::default(),
            silence_due: None,
            events: Vec::with_capacity(64),
            listeners: Listeners::default(),
            callers,
            numbered: NumberedRequests::default(),
            limit: ConnLimit::new(N::Link::settings().separate_limit),
        }
    }

    /// Adds a connection and registers it with the poller.
    pub(super) fn add_conn(&mut self, mut conn: StreamConn<N>) -> Result<u32> {
        conn.watched = true;
        self.count_descriptors(&mut conn);
        let (link, interest) = (conn.link.id(), conn.interest);
        let id = self.conns.insert(conn);
        if let Err(error) = self.net.poller().add(link, TOKEN_CONN | u64::from(id), interest) {
            self.conns.remove(id);
            return Err(error);
        }
        self.limit.opened();
        Ok(id)
    }

    /// Replaces the lost link of a connection by one being made.
    pub(super) fn replace_link(&mut self, id: u32, link: N::Link) -> Result {
        let Some(conn) = self.conns.get_mut(id) else { return Ok(()) };
        if conn.watched {
            self.net.poller().remove(conn.link.id());
        }
        drop(std::mem::replace(&mut conn.link, link));
        conn.stash = Vec::new();
        conn.stage = Stage::Connecting;
        (conn.watched, conn.interest) = (false, Interest::WRITE);
        self.net.poller().add(conn.link.id(), TOKEN_CONN | u64::from(id), conn.interest)?;
        conn.watched = true;
        Ok(())
    }

    /// Ends both directions of a link before its close: a forked child's copy of the socket would hide
    /// the end from the peer. The child's copy of the engine ends no link of its parent.
    pub(super) fn end_link(&self, link: &N::Link) {
        if self.owner.is_current() {
            link.shutdown();
        }
    }

    /// Pauses a listener after a failed accept: pending connections stay in the system's queue until
    /// the timer expires ([`ACCEPT_DELAY`]).
    pub(super) fn pause_accept(&mut self, ep_id: u32) {
        if !self.listeners.is_open(ep_id) {
            return;
        }
        if self.listeners.pause(&self.net, ep_id) {
            ofi_provider::log_sparsely!(
                N::Link::provider(),
                WARN,
                EP_CTRL,
                "cannot accept a connection: out of file descriptors or memory; \
                 trying again (see RLIMIT_NOFILE)"
            );
        }
        self.wake_in(ACCEPT_DELAY);
    }

    /// Pauses a listener until there is room for another connection. Pending connections stay in the
    /// system's queue.
    pub(super) fn await_space(&mut self, ep_id: u32) {
        self.listeners.pause(&self.net, ep_id);
        let at = self.limit.next_look().unwrap_or_else(|| self.net.now() + ACCEPT_DELAY);
        self.wake_at(at);
    }

    /// Makes the engine's timer expire at this time, unless it expires earlier anyway.
    pub(super) fn wake_at(&mut self, at: Instant) {
        self.timer.set(&self.net, at);
    }

    pub(super) fn wake_in(&mut self, delay: Duration) {
        self.wake_at(self.net.now() + delay);
    }

    /// Schedules a timer poll of an unread connection with operations awaiting the peer's
    /// responses.
    pub(super) fn look_for_later(&mut self, id: u32) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.blocked && conn.awaits_answers() {
            self.note_hidden(id, conn.serial);
        }
    }

    fn note_hidden(&mut self, id: u32, serial: u64) {
        if self.blocked.note_hidden((id, serial)) {
            self.wake_in(UNREAD_LOOK);
        }
    }

    /// Records a connection as unread from now on. Operations awaiting responses may be posted
    /// there later by fast paths, without a check; [`look_at_unread`](Self::look_at_unread) finds them.
    pub(super) fn note_unread(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if !std::mem::replace(&mut conn.is_listed_unread, true) {
            self.blocked.note_unread((id, conn.serial));
        }
    }

    /// Checks the connections recorded as unread.
    #[cold]
    pub(super) fn look_at_unread(&mut self) {
        for (id, serial) in self.blocked.take_unread() {
            let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.serial == serial) else {
                continue;
            };
            conn.is_listed_unread = conn.blocked;
            if conn.blocked {
                self.blocked.note_unread((id, serial));
                self.look_for_later(id);
            }
        }
    }

    /// Adds an active connection to the active list: it is read in every iteration while no other
    /// is active. If one call reads several links no connection is on the list: one call polls all,
    /// another reads all of them.
    pub(super) fn mark_active(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.misses = 0;
        if conn.link.rx_over_shm() {
            return self.mark_shm_active(id);
        }
        if !self.active.sockets().iter().all(|only| *only == id) {
            self.leave_behind(id);
        }
        if self.active.sockets().contains(&id) {
            return;
        }
        if self.net.is_ring() || !self.active.add_socket(id) {
            self.watch(id);
        }
    }

    /// Removes other connections from the active list after activity on `moved`, if they have been
    /// idle too long ([`LEFT_BEHIND`]).
    fn leave_behind(&mut self, moved: u32) {
        let mut index = 0;
        while let Some(&id) = self.active.sockets().get(index) {
            let conn = &mut self.conns[id];
            conn.misses += u32::from(id != moved);
            if id != moved && conn.misses > LEFT_BEHIND {
                self.mark_idle(id);
            } else {
                index += 1;
            }
        }
    }

    /// Registers the directly polled connections with the poller for the events awaited by them.
    pub(super) fn watch_looked_at(&mut self) {
        for index in (0..self.active.sockets().len()).rev() {
            let id = self.active.sockets()[index];
            if self.conns.get(id).is_some_and(|conn| conn.link.rx_over_shm()) {
                self.active.remove_socket(id);
                self.mark_shm_active(id);
            } else {
                self.watch(id);
            }
        }
        for index in 0..self.active.shm().len() {
            self.watch(self.active.shm()[index]);
        }
    }

    pub(super) fn mark_idle(&mut self, id: u32) {
        self.active.remove_socket(id);
        self.watch(id);
    }

    /// Registers the connection with the poller for the events awaited by it.
    pub(super) fn watch(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let wanted = Interest {
            read: !conn.blocked && !conn.is_connecting(),
            write: conn.is_connecting() || (conn.is_connected() && conn.has_unsent()),
        };
        // A link without awaited events is removed. Otherwise the poller would keep reporting its
        // end, without effect before the link is read again. But zero-copy notifications are
        // reported for any watched link.
        let watched = wanted != Interest::NONE || conn.is_exposing();
        let unread = (conn.blocked && watched && conn.link.hides_end()).then_some(conn.serial);
        let before = (std::mem::replace(&mut conn.watched, watched), conn.interest);
        conn.interest = wanted;
        let (link, token) = (conn.link.id(), TOKEN_CONN | u64::from(id));
        let poller = self.net.poller();
        let _ = match (before, watched) {
            ((true, interest), true) if interest == wanted => Ok(()),
            ((true, _), true) => poller.modify(link, token, wanted),
            ((true, _), false) => {
                poller.remove(link);
                Ok(())
            }
            ((false, _), true) => poller.add(link, token, wanted),
            ((false, _), false) => Ok(()),
        };
        if let Some(serial) = unread {
            self.note_hidden(id, serial);
        }
    }

    /// Sends batched bytes of a connection, as far as the link accepts them now, and leaves the
    /// completions to the next progress iteration.
    pub(super) fn send_bytes(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.is_connected()) else { return };
        let mut list = GatherList::default();
        list.push_bytes(conn.batch.unsent());
        let op = LinkOp::SendList(&mut list, CopyMode::Copied);
        // An error recurs when the rest is sent.
        let sent = self.net.transfer(&conn.link, op).unwrap_or(0);
        conn.batch.left_early(sent);
    }

    /// [`HeaderOutcome::Taken`] with `n` bytes, or [`HeaderOutcome::Gone`] if the connection has ended
    /// meanwhile.
    pub(super) fn started(&self, id: u32, n: usize) -> HeaderOutcome {
        if self.conns.get(id).is_some() { HeaderOutcome::Taken(n) } else { HeaderOutcome::Gone }
    }

    /// Registers a connection with unsent data with the poller: another thread may sleep on the
    /// poller's descriptor, and this one may not call again.
    pub(super) fn watch_unsent(&mut self, id: u32) {
        if self.conns.get(id).is_some_and(StreamConn::has_unsent) {
            self.watch(id);
        }
    }

    /// Has the copies of a connection polled in every progress iteration until they end.
    pub(super) fn await_copies(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !std::mem::replace(&mut conn.copying, true) {
            self.blocked.await_copies((id, conn.serial));
        }
    }

    /// Schedules the sending of data not accepted by the link.
    pub(super) fn see_to_rest(&mut self, id: u32) {
        if self.conns.get(id).is_some_and(StreamConn::has_unsent) {
            self.mark_active(id);
            self.watch_unsent(id);
        }
    }
}
