//! Ends of connections to peers without an answering system.
use super::io::EngineIo;
use super::rx_path::RxPath;
use crate::transport::{ByteLink, ShmTransport, peer_of};
use ofi_provider::error::Error;
use ofi_provider::log::peer_text;
use std::time::Instant;

impl<N: ShmTransport> EngineIo<N> {
    /// Schedules the checks of an established connection, if its link needs them.
    pub(super) fn check_silence_later(&mut self, id: u32) {
        let Some(interval) = self.conns[id].link.silence_interval() else { return };
        let at = self.net.now() + interval;
        if self.silence_due.is_none_or(|due| at < due) {
            self.silence_due = Some(at);
            self.wake_at(at);
        }
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Ends the connections to silent peers, if a check is due. Returns the time of the next one.
    pub(super) fn end_silent(&mut self, now: Instant) -> Option<Instant> {
        let due = self.tx.io.silence_due?;
        if due > now {
            return Some(due);
        }
        let conns = &self.tx.io.conns;
        for id in conns.indices(|conn| conn.is_connected() && conn.link.is_silent(now)) {
            // Data received before counts.
            self.read(id);
            let Some(conn) = self.tx.io.conns.get(id) else { continue };
            ofi_provider::log_sparsely!(
                N::Link::provider(),
                WARN,
                EP_CTRL,
                "the system of {} does not answer: what waits for it fails",
                peer_text(peer_of(&conn.link))
            );
            self.fail(id, Error::TIMEDOUT);
        }
        let intervals = self.tx.io.conns.iter().filter(|(_, conn)| conn.is_connected());
        let next = intervals.filter_map(|(_, conn)| conn.link.silence_interval()).min();
        self.tx.io.silence_due = next.map(|interval| now + interval);
        self.tx.io.silence_due
    }
}
