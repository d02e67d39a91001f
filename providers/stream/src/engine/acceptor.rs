//! Incoming connections: from the listeners of an engine to its pending connections, and from those
//! to connections of peers.
use super::conn::{Stage, StreamConn};
use super::conn_limit::is_out_of_descriptors;
use super::handshake::Handshake;
use super::idle_closer::IdleCloser;
use super::io::EngineIo;
use super::rx_path::RxPath;
use super::unknown_conns::UnknownConns;
use crate::accept_queue::{self, HANDSHAKE_TIMEOUT, PendingConnState};
use crate::conn_quota;
use crate::repeated_requests::RepeatOutcome;
use crate::transport::{ByteLink, LinkListener, ShmTransport};
use crate::wire::RdmHello;
use ofi_provider::abi::FI_ADDR_NOTAVAIL;
use ofi_provider::addr::Addr;
use ofi_provider::conn_arbiter::ProcessInstance;
use ofi_provider::error::Error;

/// Maximum connections accepted at a listener in one progress iteration, so that established
/// connections are served as well.
pub const ACCEPTS: usize = 64;

/// Returns true if accepting failed for lack of descriptors or memory, a temporary condition.
pub fn is_shortage(error: Error) -> bool {
    is_out_of_descriptors(error) || matches!(error, Error::NOBUFS | Error::NOMEM)
}

/// Accepting side of connection management.
pub(super) struct Acceptor<'a, N: ShmTransport> {
    rx: &'a mut RxPath<N>,
    unknown: &'a mut UnknownConns,
}

impl<'a, N: ShmTransport> Acceptor<'a, N> {
    pub(super) fn new(rx: &'a mut RxPath<N>, unknown: &'a mut UnknownConns) -> Self {
        Self { rx, unknown }
    }

    /// Accepts connections waiting at an endpoint's listener, at most [`ACCEPTS`] of them.
    #[inline(never)]
    pub(super) fn accept_all(&mut self, ep_id: u32) {
        for accepted in 0..ACCEPTS {
            if accepted > 0 && !self.rx.tx.io.has_space() {
                // The poller reports whether another connection waits.
                break;
            }
            if !self.make_space(ep_id) {
                self.rx.tx.io.await_space(ep_id);
                return;
            }
            if !self.unknown.bound(self.rx) {
                self.rx.tx.io.pause_accept(ep_id);
                return;
            }
            let Some(listener) = self.rx.tx.io.listeners.get(ep_id) else { return };
            match conn_quota::check_reserve().and_then(|()| listener.accept()) {
                Ok((link, from)) => {
                    let io = &mut self.rx.tx.io;
                    let now = io.net.now();
                    match io.callers.admit(io.net.poller(), link, from, ep_id, now) {
                        (id, PendingConnState::Complete) => self.answer(id),
                        (_, PendingConnState::Incomplete) => io.wake_in(HANDSHAKE_TIMEOUT),
                        (_, PendingConnState::Over) => {}
                    }
                }
                Err(error) if is_out_of_descriptors(error) && self.awaits_end(ep_id) => {
                    self.rx.tx.io.await_space(ep_id);
                    return;
                }
                Err(error) if is_shortage(error) => {
                    let now = self.rx.tx.io.net.now();
                    let callers = &mut self.rx.tx.io.callers;
                    if callers.drop_silent(now) || self.unknown.drop_some(self.rx) {
                        continue;
                    }
                    self.rx.tx.io.pause_accept(ep_id);
                    return;
                }
                Err(error) if error == Error::CONNABORTED || error == Error::INTR => {}
                Err(_) => {
                    // No caller waits at the listener.
                    break;
                }
            }
        }
        let io = &mut self.rx.tx.io;
        io.listeners.resume(&io.net, ep_id);
    }

    /// Closes idle connections after a lack of descriptors. Returns true if some are about to end.
    fn awaits_end(&mut self, ep_id: u32) -> bool {
        let io = &mut self.rx.tx.io;
        let used = io.used_descriptors();
        io.limit.shortage.note(io.net.now(), used);
        self.make_space(ep_id);
        self.rx.tx.io.limit.is_any_ending()
    }

    /// Closes idle connections at the limit, for those waiting at an endpoint's listener. Returns true if
    /// one may be accepted now.
    fn make_space(&mut self, ep_id: u32) -> bool {
        IdleCloser::new(self.rx)
            .make_space(|rx| rx.tx.io.listeners.get(ep_id).map_or(1, LinkListener::waiting))
    }

    /// Reads from a pending connection reported by the poller, and responds to a complete request.
    #[inline(never)]
    pub(super) fn receive(&mut self, id: u32) {
        if self.rx.tx.io.callers.receive(id) == PendingConnState::Complete {
            self.answer(id);
        }
    }

    /// A caller's request is complete: the caller becomes a peer, waits until the address vector
    /// holds its address ([`only_known`](crate::settings::StreamSettings::only_known)), or is
    /// refused.
    pub(super) fn answer(&mut self, id: u32) {
        if self.rx.tx.io.callers.is_withdrawn(id) {
            return self.rx.tx.io.callers.drop(id);
        }
        let Some((request, from)) = self.rx.tx.io.callers.request(id) else { return };
        let hello = match RdmHello::parse(&request.data) {
            Ok(hello) => hello,
            Err(why) => {
                accept_queue::log_rejection::<N::Link>(
                    format_args!("of {}", from.for_people()),
                    why,
                );
                self.rx.tx.io.callers.drop(id);
                return;
            }
        };
        let addr = from.at_port(hello.port).identity();
        let process = ProcessInstance { pid: hello.pid, instance: request.instance };
        let is_first = request.contexts.are_first();
        if self.holds(id, &addr) {
            return;
        }
        let EngineIo { net, callers, numbered, .. } = &mut self.rx.tx.io;
        if numbered.handle_repeated(callers, net.poller(), id) == RepeatOutcome::Handled {
            return self.rx.tx.io.wake_in(HANDSHAKE_TIMEOUT);
        }
        if is_first && self.is_before_end(id, &addr, process) {
            return;
        }
        let io = &mut self.rx.tx.io;
        let Some((caller, request)) = io.callers.take(io.net.poller(), id) else { return };
        let from = caller.from.clone();
        let mut conn = StreamConn::new(caller.link, Stage::Called, caller.called);
        conn.unknown_conn = Some(caller.unknown_conn);
        (conn.order, conn.knows) = (request.order, request.knows);
        let serial = conn.serial;
        if let Ok(id) = self.rx.tx.io.add_conn(conn) {
            Handshake::new(self.rx).rdm_request(id, &request, &hello, addr);
            let EngineIo { conns, numbered, .. } = &mut self.rx.tx.io;
            if let Some(conn) = conns.named((id, serial)) {
                numbered.add_answered(&request, &from, conn.link.unconfirmed_answer());
            }
            self.unknown.add(&self.rx.tx.io.conns, id);
        }
    }

    /// Returns true if a pending connection from this address has to wait until the address vector
    /// contains it. The wait is at most [`HANDSHAKE_TIMEOUT`], as for an incomplete request.
    fn holds(&mut self, id: u32, addr: &Addr) -> bool {
        if !N::Link::settings().only_known {
            return false;
        }
        let av =
            self.rx.tx.io.callers.called_by(id).and_then(|ep| self.rx.tx.eps.get(ep)?.av.as_ref());
        if av.is_some_and(|av| av.find(addr.clone()) != FI_ADDR_NOTAVAIL) {
            return false;
        }
        ofi_provider::log_sparsely!(
            N::Link::provider(),
            INFO,
            EP_CTRL,
            "{addr} calls and is not in the address vector; it has to wait ({})",
            N::Link::settings().only_known_by
        );
        self.rx.tx.io.callers.hold(self.rx.tx.io.net.poller(), id, addr.clone());
        self.rx.tx.io.wake_in(HANDSHAKE_TIMEOUT);
        true
    }

    /// Returns true if a pending connection has to wait, because an earlier one with its peer is about
    /// to end and still read: messages keep their order. The request may also be of an attempt given
    /// up by the peer before the earlier connection was made.
    #[inline(never)]
    fn is_before_end(&mut self, id: u32, addr: &Addr, process: ProcessInstance) -> bool {
        let earlier = |rx: &RxPath<N>| {
            let ep = rx.tx.eps.get(rx.tx.io.callers.called_by(id)?)?;
            let peer = ep.peers.get(ep.peers.find_at(addr)?)?;
            Some((peer.extra.closing?, peer.extra.process.may_be(process)))
        };
        let Some((conn, _)) = earlier(self.rx) else { return false };
        if self.rx.tx.io.conns.get(conn).is_some_and(|conn| !conn.blocked) {
            self.rx.read(conn);
        }
        match earlier(self.rx) {
            Some((_, true)) => {
                self.rx.tx.io.callers.hold(self.rx.tx.io.net.poller(), id, addr.clone());
                self.rx.tx.io.wake_in(HANDSHAKE_TIMEOUT);
                true
            }
            // The peer has restarted.
            Some((conn, false)) => {
                self.rx.fail(conn, Error::CONNRESET);
                false
            }
            None => false,
        }
    }

    /// Responds to held pending connections, if they need not wait any more.
    pub(super) fn look_at_held(&mut self) {
        for id in self.rx.tx.io.callers.held() {
            self.receive(id);
        }
    }

    /// Responds to a held pending connection from this address, now contained in the address
    /// vector.
    pub(super) fn admit_held(&mut self, ep_id: u32, addr: &Addr) {
        if N::Link::settings().only_known {
            for id in self.rx.tx.io.callers.held_as(ep_id, addr) {
                self.receive(id);
            }
        }
    }
}
