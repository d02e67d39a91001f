//! Connections of unknown peers at the endpoints of an engine.
//!
//! Their number is bounded for the whole process ([`conn_quota`]). Some of them are asked to
//! disconnect when there are too many.
use super::blocked_conns::ConnName;
use super::conn::StreamConn;
use super::conn_table::ConnTable;
use super::io::EngineIo;
use super::rx_path::RxPath;
use crate::conn_quota;
use crate::transport::{ByteLink, ShmTransport};
use ofi_provider::error::Error;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Divisor for the number of unknown peers asked to disconnect at a time when there are too many.
const UNKNOWN_CONNS_PER_CLOSING: usize = 8;

/// Wait after asking unknown peers to disconnect before more are asked. A peer polling its
/// connection has disconnected by then. The others would otherwise block pending connections until
/// their timeout.
const NOTICE: Duration = Duration::from_millis(250);

/// Time during which data is still read from an unknown peer asked to disconnect. Its program may
/// not have noticed the request yet, and may take its sent data for delivered.
const FAREWELL: Duration = Duration::from_secs(3);

/// Connections of peers absent from all address vectors at their connection request.
#[derive(Debug, Default)]
pub(super) struct UnknownConns {
    /// Connections not asked to disconnect, oldest first.
    present: VecDeque<ConnName>,
    /// Connections asked to disconnect, with their serial numbers and the deadline for receiving
    /// their remaining data, earliest first.
    leaving: VecDeque<(u32, u64, Instant)>,
}

impl UnknownConns {
    /// Adds a new connection, if its peer is in no address vector.
    pub(super) fn add<N: ShmTransport>(&mut self, conns: &ConnTable<N>, new: u32) {
        let is_unknown = |conn: &&StreamConn<N>| conn.unknown_conn.is_some();
        let Some(conn) = conns.get(new).filter(is_unknown) else { return };
        self.present.push_back((new, conn.serial));
        if self.present.len() > 2 * conns.len() {
            self.forget_known(conns);
        }
    }

    /// Limits the descriptors used by unknown peers: closes some connections if the process has too
    /// many of them. Returns true if another connection may be accepted; if not, connections wait
    /// in the backlog.
    pub(super) fn bound<N: ShmTransport>(&mut self, rx: &mut RxPath<N>) -> bool {
        // An upper bound of their number, which saves looking at each.
        if !conn_quota::are_too_many(self.count(&rx.tx.io)) {
            return true;
        }
        self.forget_known(&rx.tx.io.conns);
        !conn_quota::are_too_many(self.count(&rx.tx.io))
            || rx.tx.io.callers.drop_oldest()
            || self.drop_some(rx)
    }

    fn count<N: ShmTransport>(&self, io: &EngineIo<N>) -> usize {
        self.present.len() + self.leaving.len() + io.callers.len()
    }

    /// Removes connections from the lists if they have ended or their peer is in the address vector
    /// now.
    fn forget_known<N: ShmTransport>(&mut self, conns: &ConnTable<N>) {
        let is_unknown =
            |conn: ConnName| conns.named(conn).is_some_and(|conn| conn.unknown_conn.is_some());
        self.present.retain(|conn| is_unknown(*conn));
        self.leaving.retain(|(id, serial, _)| is_unknown((*id, *serial)));
    }

    /// Closes connections of unknown peers asked to disconnect after their time limit. Returns true
    /// if there were any.
    fn end_farewells<N: ShmTransport>(&mut self, rx: &mut RxPath<N>) -> bool {
        let now = rx.tx.io.net.now();
        let mut ended = false;
        while let Some(&(id, ..)) = self.leaving.front().filter(|(.., until)| *until <= now) {
            self.leaving.pop_front();
            rx.fail(id, Error::CONNABORTED);
            ended = true;
        }
        ended
    }

    /// Asks unknown peers without a transfer of the application in progress to disconnect: first
    /// the oldest of the sources with most connections, then the oldest of all. Returns true if a
    /// connection has ended; the peers asked disconnect soon.
    pub(super) fn drop_some<N: ShmTransport>(&mut self, rx: &mut RxPath<N>) -> bool {
        self.forget_known(&rx.tx.io.conns);
        let mut ended = self.end_farewells(rx);
        let now = rx.tx.io.net.now();
        let many = conn_quota::many();
        let most = self.present.len() / UNKNOWN_CONNS_PER_CLOSING + 1;
        let asked = |until: Instant| now + FAREWELL < until + NOTICE;
        let just_asked = self.leaving.iter().rev().take_while(|(.., until)| asked(*until)).count();
        let mut left = most.saturating_sub(just_asked);
        let before = left;
        for crowds in [true, false] {
            let mut at = 0;
            while left > 0 {
                let Some(&(id, serial)) = self.present.get(at) else { break };
                at += 1;
                let Some(unknown_conn) =
                    rx.tx.io.conns.get(id).and_then(|conn| conn.unknown_conn.as_ref())
                else {
                    continue;
                };
                if !unknown_conn.may_go(now)
                    || (crowds && conn_quota::count_from(unknown_conn.source()) <= many)
                {
                    continue;
                }
                // Received data is read first: a message may match a posted receive.
                if rx.tx.io.conns.get(id).is_some_and(|conn| conn.is_connected() && !conn.blocked) {
                    rx.read(id);
                }
                let Some(conn) = rx.tx.io.conns.get(id).filter(|conn| !conn.is_in_use()) else {
                    continue;
                };
                left -= 1;
                if conn.is_connected() {
                    conn.link.end_sending();
                    rx.tx.end_sending(id, Error::CONNABORTED);
                    self.leaving.push_back((id, serial, now + FAREWELL));
                    at -= 1;
                    self.present.remove(at);
                } else {
                    rx.fail(id, Error::CONNABORTED);
                    ended = true;
                }
            }
            if left < before {
                break;
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn_quota::UnknownPeerConn;
    use crate::engine::conn::Stage;
    use crate::engine::sim::{Rings, SimNet, SimRandom, StreamWorld};
    use crate::transport::Transport;
    use ofi_provider::addr::Addr;
    use std::net::SocketAddr;

    #[test]
    fn connections_of_known_peers_and_ended_ones_are_forgotten() {
        let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
        let net = SimNet::from(Rings::new(&world, false));
        let (mut conns, mut unknown) = (ConnTable::default(), UnknownConns::default());
        let addr = |port| Addr::from(SocketAddr::from(([10, 9, 0, 1], port)));
        let add = |conns: &mut ConnTable<SimNet>, unknown: &mut UnknownConns, is_unknown: bool| {
            let link = net.dial(&addr(0), false, &addr(7)).unwrap();
            let mut conn = StreamConn::new(link, Stage::Called, 0);
            conn.unknown_conn = is_unknown.then_some(UnknownPeerConn::new(&addr(7)));
            let id = conns.insert(conn);
            unknown.add(conns, id);
            id
        };
        let known = add(&mut conns, &mut unknown, false);
        let [named, ended, left] = [(); 3].map(|()| add(&mut conns, &mut unknown, true));
        assert_eq!(unknown.present.len(), 3, "{known} is of a known peer");
        conns[named].unknown_conn = None;
        drop(conns.remove(ended));
        unknown.forget_known(&conns);
        assert_eq!(unknown.present, [(left, conns[left].serial)]);
        // Entries of ended connections are not kept for ever.
        for _ in 0..20 {
            let id = add(&mut conns, &mut unknown, true);
            conns.remove(id);
        }
        assert!(unknown.present.len() <= 2 * (conns.len() + 1));
    }
}
