//! Connections over shared memory ([`ShmLink::rx_over_shm`]).
//!
//! Polling such a connection needs no system call. Recently active ones are polled in every
//! progress iteration. The poller is polled rarely then, for the other connections, listeners and
//! disconnects.
//!
//! While only one such connection is active, its poll is the whole work of most iterations
//! ([`PollState::is_quick`](super::poll_state::PollState::is_quick)), as in a ping-pong. The peer of a polled connection just writes. To
//! other connections, and while a thread sleeps and shortly after, it rings a doorbell
//! ([`ShmTransport::is_rung`]).
use super::conn::StreamConn;
use super::io::{COLD_AFTER, EngineIo, LEFT_BEHIND};
use super::state::StreamState;
use crate::transport::{ShmLink, ShmTransport};
use ofi_provider::packet_sink::PacketSink;
use ofi_provider::shm_channel::InlineRecv;

impl<N: ShmTransport> StreamState<N> {
    /// Polls the recently active connections over shared memory. `first`: the result for the only
    /// one, if it was polled. Returns true if nothing else is to be polled in this iteration.
    pub(super) fn poll_shm_conns(
        &mut self,
        first: Option<InlineRecv>,
        sink: Option<&PacketSink<'_>>,
    ) -> bool {
        let io = &mut self.rx.tx.io;
        io.wake_up();
        if io.poll.starts_polling() {
            io.set_polled(true);
        }
        let moved = first == Some(InlineRecv::Took) || self.poll_each_shm_conn(first, sink);
        let io = &mut self.rx.tx.io;
        let checks_doorbells = io.poll.checks_doorbells();
        let only_shm = io.active.sockets().is_empty();
        if moved {
            io.poll.record_progress();
            if !checks_doorbells && only_shm {
                return true;
            }
        }
        let rung = checks_doorbells && io.net.is_rung();
        only_shm && io.poll.may_omit_poll(moved) && !rung
    }

    /// Polls each connection; `first` is the result for the first one, if it was polled. Returns
    /// true if there was progress.
    #[inline(never)]
    fn poll_each_shm_conn(
        &mut self,
        mut first: Option<InlineRecv>,
        sink: Option<&PacketSink<'_>>,
    ) -> bool {
        let (mut moved, mut index) = (false, 0);
        while let Some(&id) = self.rx.tx.io.active.shm().get(index) {
            let moves = match first.take().unwrap_or_else(|| self.rx.read_fast_shm(id, sink)) {
                InlineRecv::Took => true,
                InlineRecv::None => false,
                InlineRecv::Else => self.service_shm_conn(id, sink),
            };
            if moves {
                moved = true;
                // An active connection may have ended, or have ended others.
                index += usize::from(self.rx.tx.io.active.shm().get(index) == Some(&id));
                continue;
            }
            if self.rx.tx.io.active.shm().get(index) != Some(&id) {
                continue;
            }
            index += 1;
            if self.rx.tx.io.conns[id].misses > COLD_AFTER && self.rx.tx.io.mark_shm_idle(id) {
                index -= 1;
            }
        }
        moved
    }

    /// Serves a connection with possibly more than fast-path messages. Returns true if there was
    /// progress.
    fn service_shm_conn(&mut self, id: u32, sink: Option<&PacketSink<'_>>) -> bool {
        let moved = self.service(id, sink);
        if !moved {
            if let Some(conn) = self.rx.tx.io.conns.get_mut(id) {
                conn.misses += 1;
            }
        }
        moved
    }
}

impl<N: ShmTransport> EngineIo<N> {
    /// Adds an active connection over shared memory to the list of connections polled in every
    /// iteration.
    #[cold]
    pub(super) fn mark_shm_active(&mut self, id: u32) {
        if self.active.shm().contains(&id) {
            return;
        }
        self.active.remove_socket(id);
        if !self.active.has_space_for_shm() {
            let misses = |id: &&u32| self.conns.get(**id).map_or(0, |conn| conn.misses);
            let idlest = self.active.shm().iter().max_by_key(misses).copied();
            let idle = |id: &u32| self.conns[*id].misses > LEFT_BEHIND;
            if !idlest.filter(idle).is_some_and(|idlest| self.mark_shm_idle(idlest)) {
                return self.watch(id);
            }
        }
        let poll_streak = self.poll.is_polling();
        if let Some(conn) = self.conns.get_mut(id) {
            conn.goes_local();
            conn.link.set_polled(poll_streak);
            self.active.add_shm(id);
        }
    }

    /// Removes a connection from the list polled in every iteration, unless data has arrived on it.
    pub(super) fn mark_shm_idle(&mut self, id: u32) -> bool {
        let poll_streak = self.poll.is_polling();
        let conn = &mut self.conns[id];
        conn.misses = 0;
        if poll_streak {
            conn.link.set_polled(false);
        }
        if conn.is_ready() {
            conn.link.set_polled(poll_streak);
            return false;
        }
        self.active.remove_shm(id);
        self.watch(id);
        true
    }

    pub(super) fn set_polled(&self, polled: bool) {
        let conns = self.active.shm().iter().filter_map(|id| self.conns.get(*id));
        conns.for_each(|conn| conn.link.set_polled(polled));
    }

    /// The calling thread is about to sleep on the poller's descriptor: false if something has
    /// come.
    pub(super) fn rest(&mut self) -> bool {
        self.poll.add_waiter();
        if !self.net.has_local() {
            return true;
        }
        if self.poll.end_polling() {
            self.set_polled(false);
        }
        // All are asked: what each did before it was looked at no more is settled by that.
        let is_ready =
            |come: bool, id: &u32| self.conns.get(*id).is_some_and(StreamConn::is_ready) | come;
        self.net.rest() && !self.active.shm().iter().fold(false, is_ready)
    }

    /// Marks the calling thread as awake: it makes a progress iteration.
    #[inline(always)]
    pub(super) fn wake_up(&mut self) {
        if self.poll.has_waiters() {
            self.woken();
        }
    }

    /// Wakes the poller because a connection may move to shared memory, possibly the first one. A
    /// sleeping thread has to be notified of it.
    pub(super) fn may_go_local(&self) {
        if !self.poll.has_waiters() {
            self.net.wake();
        }
    }

    #[inline(never)]
    fn woken(&mut self) {
        self.poll.remove_waiter();
        self.may_go_local();
    }
}
