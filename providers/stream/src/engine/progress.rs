//! Progress iterations: service of connections, and the preparation of a thread for its sleep.
use super::blocked_conns::PolledConn;
use super::conn::StreamConn;
use super::handshake::Handshake;
use super::io::COLD_AFTER;
use super::rx_fast::FastReadResult;
use super::state::StreamState;
use super::stats;
use super::tokens::{TOKEN_CALLER, TOKEN_CONN, TOKEN_LISTENER};
use super::tx_path::TxPath;
use crate::transport::ShmTransport;
use ofi_provider::packet_sink::PacketSink;
use ofi_provider::shm_channel::InlineRecv;

impl<N: ShmTransport> StreamState<N> {
    /// Runs one progress iteration: resumes connections blocked on queue space, sends batched
    /// messages, and reads the connections reported by the poller or the active one.
    #[inline(never)]
    pub(crate) fn poll_once(&mut self) {
        self.poll_once_inner(None);
    }

    /// [`StreamState::poll_once`], inlined into its caller. Messages go to `sink` if it takes them.
    #[inline(always)]
    pub(super) fn poll_once_inner(&mut self, sink: Option<&PacketSink<'_>>) {
        let io = &mut self.rx.tx.io;
        io.poll.begin_iteration();
        self.publisher.count_iterations(io.poll.iterations());
        // One test for the three, of which there is nearly always none.
        if io.blocked.resumable() | self.rx.tx.batcher.held().len() != 0 {
            self.rx.resume_blocked();
        }
        // Nearly always there is one connection to look at, with messages on it or nothing.
        let io = &mut self.rx.tx.io;
        let first = match *io.active.shm() {
            [only] if io.poll.may_poll_shm_only() && io.active.sockets().is_empty() => {
                let came = self.rx.read_fast_shm(only, sink);
                if self.rx.tx.io.poll.is_quick(came) {
                    return;
                }
                Some(came)
            }
            _ => None,
        };
        if self.rx.tx.io.active.shm().is_empty()
            && !self.rx.tx.io.poll.is_one_of(stats::PUBLISHED_EACH)
        {
            return self.poll_sockets(sink);
        }
        self.look_further(first, sink);
    }

    /// Runs the rest of a progress iteration. `first`: the result of polling the only connection
    /// over shared memory, if it was polled.
    #[inline(never)]
    fn look_further(&mut self, first: Option<InlineRecv>, sink: Option<&PacketSink<'_>>) {
        if self.rx.tx.io.poll.is_one_of(stats::PUBLISHED_EACH) {
            self.show();
            self.rx.tx.io.sample_traffic();
            if self.rx.tx.io.blocked.is_any_unread() {
                self.rx.tx.io.look_at_unread();
            }
        }
        if !self.rx.tx.io.active.shm().is_empty() && self.poll_shm_conns(first, sink) {
            return;
        }
        self.poll_sockets(sink);
    }

    /// Reads the only active connection, or the ones reported by the poller.
    #[inline(always)]
    fn poll_sockets(&mut self, sink: Option<&PacketSink<'_>>) {
        let io = &mut self.rx.tx.io;
        let id = match *io.active.sockets() {
            [only] if io.poll.reads_directly() => only,
            _ => {
                io.poll.begin_poll();
                return self.poll_io(sink);
            }
        };
        let moved = match self.rx.read_fast(id, sink) {
            FastReadResult::Done => {
                self.rx.tx.io.poll.record_progress();
                return;
            }
            FastReadResult::Moved => true,
            FastReadResult::Nothing => false,
            // Reading the link again and again would hinder the system in filling it, and take the
            // large message in small pieces; asking the poller does not.
            FastReadResult::Not
                if self.rx.tx.io.conns.get(id).is_some_and(StreamConn::is_in_large) =>
            {
                self.rx.tx.io.poll.begin_poll();
                return self.poll_io(sink);
            }
            FastReadResult::Not => self.service_any(id),
        };
        // `service` may have taken it off the list.
        if self.rx.tx.io.active.sockets().first() != Some(&id) {
            return;
        }
        if moved {
            self.rx.tx.io.poll.record_progress();
            return;
        }
        let conn = &mut self.rx.tx.io.conns[id];
        conn.misses += 1;
        if conn.misses > COLD_AFTER {
            self.rx.tx.io.mark_idle(id);
        }
    }

    /// Polls the sockets, and handles their events. The handlers are not inlined: the sum of their
    /// stack frames exceeds the stack of 16 KiB that a thread may have.
    pub(super) fn poll_io(&mut self, sink: Option<&PacketSink<'_>>) {
        self.take_started();
        self.rx.tx.io.wake_up();
        self.rx.tx.io.watch_looked_at();
        let mut events = std::mem::take(&mut self.rx.tx.io.events);
        self.rx.tx.io.net.poll(&mut events);
        let (mut is_new, mut moved) = (false, false);
        let mut ready = Vec::new();
        for event in events.drain(..) {
            let id = event.token as u32;
            match event.token & !u64::from(u32::MAX) {
                TOKEN_CONN => {
                    // The connection may be gone since the event was reported.
                    if self.rx.tx.io.conns.get(id).is_some() {
                        is_new |= !self.rx.tx.io.active.contains(id);
                        moved = true;
                        self.rx.tx.look_for_end(id);
                        if self.rx.tx.io.net.is_ring() {
                            ready.push(id);
                        } else if self.service(id, sink) {
                            self.rx.tx.io.mark_active(id);
                        }
                    }
                }
                TOKEN_LISTENER => {
                    is_new = true;
                    self.acceptor().accept_all(id);
                }
                TOKEN_CALLER => {
                    is_new = true;
                    self.acceptor().receive(id);
                }
                _ => {
                    is_new = true;
                    self.retry_refused();
                }
            }
        }
        if !ready.is_empty() {
            self.serve_batched(&ready);
        }
        self.rx.tx.io.events = events;
        if self.connector.has_queued() {
            self.connector.call_next(&mut self.rx);
        }
        self.rx.tx.io.poll.end_poll(is_new, moved);
    }

    /// Serves one connection: continues connecting, sends queued data, reads. Returns true if there
    /// was progress.
    #[inline(always)]
    pub(super) fn service(&mut self, id: u32, sink: Option<&PacketSink<'_>>) -> bool {
        match self.rx.read_fast(id, sink) {
            FastReadResult::Done | FastReadResult::Moved => true,
            FastReadResult::Nothing => false,
            FastReadResult::Not => self.service_any(id),
        }
    }

    #[inline(never)]
    fn service_any(&mut self, id: u32) -> bool {
        let was_connected = self.rx.tx.io.conns.is_connected(id);
        let mut moved = self.advance(id);
        if was_connected && self.rx.tx.io.conns.get(id).is_some_and(|conn| !conn.blocked) {
            moved |= self.rx.read(id);
        }
        if moved {
            if let Some(conn) = self.rx.tx.io.conns.get_mut(id) {
                conn.misses = 0;
            }
        }
        moved
    }

    /// Serves a connection except for reading: handshake, zero-copy notifications, queued data.
    /// Returns true if there was progress.
    pub(super) fn advance(&mut self, id: u32) -> bool {
        let Some(conn) = self.rx.tx.io.conns.get(id) else { return false };
        if !conn.is_connected() {
            return Handshake::new(&mut self.rx).advance(id);
        }
        let mut moved = false;
        if conn.is_exposing() {
            moved |= self.rx.reclaim(id);
        }
        if self.rx.tx.io.conns.get(id).is_some_and(StreamConn::has_unsent) {
            moved |= self.rx.flush(id);
        }
        moved
    }

    /// Runs [`StreamState::prepare_to_block`] for a longer sleep: the statistics page shows a
    /// sleeping thread.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        let may = self.prepare_to_block();
        if may {
            self.show();
            self.rx.tx.io.sample_traffic();
        }
        may
    }

    /// Prepares a thread to sleep on the poller's descriptor. Returns true if every event awaited
    /// by the engine will make the descriptor readable.
    pub(super) fn prepare_to_block(&mut self) -> bool {
        // A started message may complete here, and then has to be polled.
        if self.take_started() {
            return false;
        }
        if self.rx.tx.io.blocked.is_any_on_buffer() {
            self.rx.buffer_blocked_rx();
        }
        if !self.rx.tx.batcher.held().is_empty() {
            self.rx.flush_held();
        }
        if self.rx.tx.io.blocked.is_any_unread() {
            self.rx.tx.io.look_at_unread();
        }
        self.rx.tx.io.watch_looked_at();
        if !self.rx.tx.io.rest() {
            return false;
        }
        // A connection that waits for room in a queue goes on when the application reads the
        // queue, which is a call into the library.
        let goes_on = |polled: &PolledConn| match *polled {
            PolledConn::OnCq(id) => self.rx.tx.may_be_fed(id),
            // No descriptor reports the end of a copy.
            PolledConn::OnCopies(name) => self.rx.tx.io.conns.named(name).is_some(),
        };
        !self.rx.tx.io.blocked.pollable().iter().any(goes_on)
    }

    /// Sends batched messages for the flush timer, and records (`app_idle`) if the application was
    /// idle since the timer was armed.
    pub(super) fn flush_app_idle(&mut self) {
        let TxPath { io, eps, batcher, .. } = &mut self.rx.tx;
        if batcher.held().is_empty() {
            return;
        }
        batcher.expire(io.poll.iterations());
        // Resulting completions are passed to another provider only within calls to it. That
        // provider need not support threads of this library, and locks nothing if its application
        // promised serialized calls.
        let is_reported_elsewhere =
            |id| io.conns.get(id).is_some_and(|conn| eps[conn.ep].completions.has_owner());
        let others = batcher.take_held_if(is_reported_elsewhere);
        self.rx.flush_held();
        others.iter().for_each(|id| self.rx.tx.io.send_bytes(*id));
        self.rx.tx.batcher.hold_all(others);
    }
}
