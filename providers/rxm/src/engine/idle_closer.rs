//! End of idle connections at the limit of connections.
//!
//! Two ends with support for [`PacketKind::Close`](crate::wire::PacketKind::Close) agree on the end of an idle connection. The
//! requester has nothing in flight and continues to use the connection. The other end agrees if it has
//! nothing in flight either; its transfers wait from then on ([`Link::Closing`]). The requester closes
//! the connection if it has sent nothing since its request, else it cancels and the other end
//! continues. Packets arrive in order, so neither end closes a connection with messages on the way. If
//! both ends request at the same time, the request of the accepting end is void.
//!
//! Connections to other peers stay open.
//!
//! A peer's request for a connection may be on its way although the peer gave up this attempt for a
//! connection of this end. Accepted after the end of the connection, it would make one without a peer.
//! So an attempt replaced by a connection of the peer stays until the peer has answered it, and is
//! the peer's again after the end of the connection. A peer with any other attempt, also for a further
//! connection, keeps its other connections. With two established connections (crossing calls, or
//! an endpoint connected to itself) either may end; waiting transfers move to the other.
//!
//! Requests waiting for descriptors at one endpoint end idle connections of the other endpoints of
//! the domain as well.
use super::common::clock;
use super::conn::{Link, RxmConn, Waiting};
use super::conn_limit::{ConnSpace, TrafficMark};
use super::ep::RxmEngineEp;
use crate::provider::RXM;
use crate::wire::{CloseStep, HEADER_LEN, Malformed, Parsed, RejectReason, RxmConnReq, RxmHeader};
use ofi_provider::conn_limit::{is_awaited, longest_idle, max_calls, max_closings};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::slab::NONE;
use std::time::{Duration, Instant};

/// Minimum time between two searches for idle connections, and between two samples of the traffic of
/// all connections.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_millis(1);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

impl RxmConn {
    fn traffic_mark(&self) -> TrafficMark {
        [self.sent.get(), self.received.get()]
    }

    /// Returns true if the peer has just opened the connection, and sends its first message.
    fn is_awaited(&self, now: Instant) -> bool {
        #[cfg(test)]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::ClosedInUse) {
            return false;
        }
        let is_new = self.link == Link::Connected
            && self.first == 0
            && !self.usage.is_dialed
            && self.received.get()[0] == 0;
        is_new && is_awaited(self.usage.idle.since(), now)
    }

    /// Returns true if nothing is in flight in either direction, as far as this end knows.
    fn is_idle(&self) -> bool {
        #[cfg(test)]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::ClosedInUse) {
            return self.is_ready();
        }
        let arriving = self.announced + self.partial.len();
        self.is_ready() && !self.stalled && !self.given_up && self.ops + arriving == 0
    }
}

/// Returns the space for connections.
fn conn_space(ep: &RxmEngineEp) -> ConnSpace {
    let (config, queued) = (&ep.common.config, ep.connects.queued());
    let core = ep.core.as_ref().and_then(|core| core.pep.as_ref()).filter(|_| ep.limit.reads_core);
    let core = core.and_then(|pep| pep.conn_usage().ok());
    let own = config.max_connections.map(|max| [ep.common.conn_counts.open(), max, 0]);
    let mut space = ConnSpace { has_space: true, max: usize::MAX, ..ConnSpace::default() };
    for [used, max, waiting] in own.into_iter().chain(core) {
        space.excess = space.excess.max((used + queued + waiting).saturating_sub(max));
        space.has_space &= used < max;
        space.waiting = space.waiting.max(waiting);
        space.is_half_full |= used >= max / 2;
        space.max = space.max.min(max);
    }
    let missing = match ep.limit.shortage.is_pausing(clock()) {
        true => queued.max(1),
        false => ep.common.conn_counts.missing(),
    };
    if missing > 0 {
        space.excess = space.excess.max(missing);
        space.max = space.max.min(ep.common.conn_counts.open());
        space.has_space = false;
    }
    space
}

/// Returns true if another connection may be opened now. Otherwise the peer waits in line until
/// attempts are answered, or connections have ended.
pub(super) fn may_call(ep: &mut RxmEngineEp) -> bool {
    let space = conn_space(ep);
    let may_exceed = ep.limit.may_exceed && !ep.limit.shortage.is_pausing(clock());
    (may_exceed || space.has_space) && ep.connects.has_space(&ep.conns, max_calls(space.max))
}

/// Iterates over the other connections with the peer of a connection, apart from further ones.
fn others_of(ep: &RxmEngineEp, id: u32) -> impl Iterator<Item = (u32, &RxmConn)> {
    let peer = ep.conns[id].peer;
    ep.conns.iter().filter(move |(of, conn)| *of != id && conn.peer == peer && conn.first == 0)
}

/// Returns true if a connection may be closed: it is a first one, no request for another one with the
/// peer is on its way, and nothing is in flight. The end of an unknown peer's connection would permit
/// dropping its buffered messages.
fn may_end(ep: &RxmEngineEp, id: u32) -> bool {
    let conn = &ep.conns[id];
    let further = ep.conns.all_further(id);
    let is_idle = |id: &u32| {
        let conn = &ep.conns[*id];
        conn.is_idle()
            && !conn.usage.had_replaced
            && !ep.tx.has_via(*id)
            && !ep.fetches.has_via(*id)
    };
    let senders = &ep.matcher.senders;
    conn.first == 0
        && conn.usage.closes
        && conn.is_idle()
        && further.iter().all(is_idle)
        && conn.further.as_ref().is_none_or(|further| further.early.is_empty())
        && ep.peers.get(conn.peer).is_some_and(|peer| {
            // The peer may have no descriptor for a replaced attempt before this one is closed.
            peer.conns as usize == 1 + further.len()
                || others_of(ep, id).all(|(_, other)| {
                    other.link.is_settled()
                        || other.usage.is_replaced && !conn.usage.is_receive_only
                })
        })
        && !ep.parked.has_from(ep.conns.source(id))
        && !ep.fetches.sizes().any(|(of, _)| of == id)
        && !(senders.is_unknown_peer(conn.peer) && senders.has_buffered_from(conn.peer))
}

/// Closes connections at the limit, those idle longest first.
#[cold]
#[inline(never)]
pub(super) fn limit_connections(ep: &mut RxmEngineEp) {
    let now = clock();
    // Other endpoints of the domain wait for them as well, without a limit of this one, too.
    ep.limit.forget_answered(now, |source| {
        let conn = super::conn::came_on(&ep.conns, source);
        conn.is_some_and(|(_, conn)| conn.usage.requested.is_some())
    });
    let queued = if ep.limit.shortage.is_pausing(now) { ep.connects.queued() } else { 0 };
    let space = conn_space(ep);
    ep.limit.count_missing(&ep.common.conn_counts, queued + space.waiting);
    if space.max == usize::MAX {
        return;
    }
    if space.is_half_full && ep.limit.next_sample.take_due(now, SAMPLE_INTERVAL) {
        sample_traffic(ep, now);
    }
    ep.limit.is_exceeded = space.excess > 0;
    if space.excess == 0 {
        return;
    }
    let excess =
        space.excess.min(max_closings(space.max)).saturating_sub(ep.common.conn_counts.ending());
    if excess == 0 || !ep.limit.next_search.take_due(now, SEARCH_INTERVAL) {
        return;
    }
    sample_traffic(ep, now);
    for id in idle_conns(ep, now, excess) {
        request(ep, id, now);
    }
    let is_any_awaited = || ep.conns.iter().any(|(_, conn)| conn.is_awaited(now));
    if ep.common.conn_counts.ending() == 0 && !is_any_awaited() {
        ep.limit.may_exceed = true;
        let pep = ep.core.as_ref().and_then(|core| core.pep.as_ref());
        if let Some(pep) = pep.filter(|_| space.waiting > 0) {
            // A core provider with this report has the option as well.
            let _ = pep.accept_one_more();
        }
    }
}

fn sample_traffic(ep: &mut RxmEngineEp, now: Instant) {
    for id in ep.conns.indices(|conn| conn.first == 0 && conn.link == Link::Connected) {
        let conn = &mut ep.conns[id];
        let mark = conn.traffic_mark();
        conn.usage.sample(mark, now);
    }
}

/// Returns closable connections, those idle longest first, at most `count` of them.
fn idle_conns(ep: &RxmEngineEp, now: Instant, count: usize) -> Vec<u32> {
    let conns = ep.conns.iter().filter_map(|(id, conn)| {
        let since = conn.usage.idle.since()?;
        (!conn.is_awaited(now) && conn.usage.may_request(now) && may_end(ep, id))
            .then_some((since, id))
    });
    longest_idle(conns, count)
}

/// Requests the end of an idle connection.
pub(super) fn request(ep: &mut RxmEngineEp, id: u32, now: Instant) {
    let number = ep.limit.next_request();
    if send(ep, id, CloseStep::Request, number).is_err() {
        return;
    }
    ep.limit.requested(ep.conns.source(id), &ep.common.conn_counts, now);
    let conn = &mut ep.conns[id];
    conn.usage.requested = Some((number, conn.traffic_mark()));
}

/// Sends a step of the agreement, before anything queued. Fails if the core has no space now.
fn send(ep: &mut RxmEngineEp, id: u32, step: CloseStep, number: u64) -> Result {
    let mut buf = ep.conns.buffer()?;
    let conn = &ep.conns[id];
    let header = RxmHeader { conn_id: conn.remote_id, ..RxmHeader::of_close(step, number) };
    header.write(&mut buf);
    let link = conn.ep.as_ref().filter(|_| conn.is_ready()).ok_or(Error::AGAIN);
    let sent = match link {
        Ok(link) => link.send(buf, HEADER_LEN, super::conn::Token::Packet.to_u64()),
        Err(error) => Err((error, buf)),
    };
    sent.map_err(|(error, buf)| {
        ep.conns.release(Some(buf));
        error
    })
}

/// Handles a step of the agreement on the end of a connection.
#[cold]
#[inline(never)]
pub(super) fn on_step(ep: &mut RxmEngineEp, id: u32, header: &RxmHeader) -> Parsed {
    let conn = &ep.conns[id];
    // The peer's packets may overtake its acceptance.
    let may_step = conn.usage.closes || conn.link == Link::Calling;
    let step = header.close_step().filter(|_| may_step && conn.first == 0);
    let number = header.msg_id;
    match step.ok_or(Malformed("a step of the end of a connection that is none"))? {
        CloseStep::Request => on_request(ep, id, number),
        CloseStep::Agree => on_agreed(ep, id, number),
        CloseStep::Refuse => {
            let usage = &mut ep.conns[id].usage;
            if usage.requested.is_some_and(|(of, _)| of == number) {
                usage.requested = None;
                usage.rejected(clock());
            }
        }
        CloseStep::Cancel => resume_use(ep, id),
    }
    Ok(())
}

fn on_request(ep: &mut RxmEngineEp, id: u32, number: u64) {
    let usage = &mut ep.conns[id].usage;
    if usage.requested.is_some() {
        if usage.is_dialed {
            // Both ends have sent a request: the peer answers this one.
            return;
        }
        usage.requested = None;
    }
    if may_end(ep, id) && send(ep, id, CloseStep::Agree, number).is_ok() {
        ep.conns.set_closing(id, true);
        return;
    }
    ep.conns.send_control(id, RxmHeader::of_close(CloseStep::Refuse, number), None);
}

fn on_agreed(ep: &mut RxmEngineEp, id: u32, number: u64) {
    let conn = &mut ep.conns[id];
    let Some((_, mark)) = conn.usage.requested.take_if(|(of, _)| *of == number) else { return };
    // Received messages do not matter: the peer sent them before it agreed.
    let is_unused = conn.sent.get() == mark[0];
    if is_unused && may_end(ep, id) {
        ep.limit.closed_idle += 1;
        end_agreed(ep, id);
    } else {
        ep.conns.send_control(id, RxmHeader::of_close(CloseStep::Cancel, number), None);
    }
}

/// Continues the use of a connection after this end had agreed to its end.
fn resume_use(ep: &mut RxmEngineEp, id: u32) {
    if ep.conns[id].link == Link::Closing {
        ep.conns.set_closing(id, false);
        ep.flush(id);
    }
}

/// Handles the end of a connection reported by the core. If this end had agreed to it, its waiting
/// transfers take another connection.
pub(super) fn peer_ended(ep: &mut RxmEngineEp, id: u32, error: Error) {
    let Some(name) = ep.conns.get(id).map(|conn| conn.name(id)) else { return };
    // Data received before the end counts.
    ep.drain_core();
    match super::conn::came_on(&ep.conns, name.into()) {
        Some((_, conn)) if conn.link == Link::Closing => end_agreed(ep, id),
        Some(_) => ep.end(id, error),
        None => {}
    }
}

/// Ends the connection to a peer after an agreement, if the core knows of its end: the peer calls
/// again.
pub(super) fn end_if_closed(ep: &mut RxmEngineEp, id: u32) {
    let is_closing = |ep: &RxmEngineEp| {
        let conn = ep.conns.get(id).filter(|conn| conn.link == Link::Closing);
        conn.and_then(|conn| conn.ep.as_ref()).map(|ep| ep.peer_has_ended())
    };
    if is_closing(ep) == Some(true) {
        peer_ended(ep, id, Error::CONNRESET);
    }
}

/// Ends the connection in place of a replaced attempt, if this end has agreed to its end: the peer has
/// accepted the attempt, so it has closed the connection. Returns false if the attempt stays replaced.
pub(super) fn resume_replaced(ep: &mut RxmEngineEp, attempt: u32) -> bool {
    let by = ep.peers[ep.conns[attempt].peer].conn;
    if ep.conns.get(by).is_some_and(|conn| conn.link == Link::Closing) {
        end_agreed(ep, by);
    }
    ep.conns.get(attempt).is_some_and(|conn| !conn.usage.is_replaced)
}

/// Ends a connection by agreement: nothing is in flight. Its waiting transfers take another one.
fn end_agreed(ep: &mut RxmEngineEp, id: u32) {
    if ep.conns[id].link == Link::Closing {
        ep.conns.set_closing(id, false);
    }
    ofi_provider::log!(&RXM, DEBUG, EP_CTRL, "closing an idle connection");
    let ops = take_unsent(ep, id);
    let conn = &mut ep.conns[id];
    conn.usage.is_closed = true;
    let peer = conn.peer;
    // The peer stays until its transfers have another connection.
    ep.peers.attach(peer);
    let is_usable = |conn: &RxmConn| conn.link.is_established() && !conn.usage.is_receive_only;
    let other = others_of(ep, id)
        .find(|(_, conn)| is_usable(conn))
        .or_else(|| others_of(ep, id).find(|(_, conn)| conn.usage.is_replaced))
        .map(|(of, _)| of);
    ep.end(id, Error::CANCELED);
    ep.limit.ended();
    if let (NONE, Some(other)) = (ep.peers[peer].conn, other) {
        ep.peers[peer].conn = other;
        ep.conns[other].usage.is_replaced = false;
    }
    if !ops.is_empty() {
        let conn = match ep.peers[peer].conn {
            NONE => ep.call(peer),
            conn => Ok(conn),
        };
        match conn {
            Ok(conn) => move_ops(ep, &ops, conn),
            Err(error) => {
                ops.iter().for_each(|op| ep.tx.finish_op(&mut ep.conns, *op, Err(error)));
            }
        }
    }
    ep.peers.detach(peer, NONE);
    ep.peers.forget_if_unused(peer, &mut ep.matcher);
}

/// Takes the transfers waiting in a connection, none of them started, out of it.
pub(super) fn take_unsent(ep: &mut RxmEngineEp, id: u32) -> Vec<u32> {
    let conn = &mut ep.conns[id];
    conn.fenced = false;
    let waiting = std::mem::take(&mut conn.waiting);
    let mut ops = Vec::with_capacity(waiting.len());
    for waiting in waiting {
        match waiting {
            Waiting::Op(op) => ops.push(op),
            other => ep.conns[id].waiting.push_back(other),
        }
    }
    for op in &ops {
        let (conn, op) = (&mut ep.conns[id], &mut ep.tx[*op]);
        conn.ops -= 1;
        conn.atomics -= usize::from(op.answer.is_some());
        (op.conn, op.via) = (NONE, NONE);
    }
    ops
}

/// Has these transfers wait in another connection, or sends them.
pub(super) fn move_ops(ep: &mut RxmEngineEp, ops: &[u32], to: u32) {
    for op in ops {
        let (conn, number, op) = (&mut ep.conns[to], *op, &mut ep.tx[*op]);
        conn.ops += 1;
        conn.atomics += usize::from(op.answer.is_some());
        conn.fenced |= op.fence && conn.waiting.is_empty();
        conn.waiting.push_back(Waiting::Op(number));
        op.conn = to;
    }
    if ep.conns[to].link == Link::Connected {
        ep.flush(to);
    } else {
        ep.wants_help = true;
    }
}

/// Queues a connection attempt.
pub(super) fn wait_in_line(ep: &mut RxmEngineEp, id: u32) {
    ep.conns[id].retry.wait_in_line();
    ep.connects.push(id);
}

/// Starts a connection attempt. Without a descriptor it is queued.
pub(super) fn start_or_wait(ep: &mut RxmEngineEp, id: u32) -> Result {
    let open = ep.common.conn_counts.open();
    let has_descriptors = conn_space(ep).max > 0;
    match if has_descriptors { ep.start_connect(id) } else { Err(Error::MFILE) } {
        Err(Error::MFILE) if ep.limit.shortage.retries(clock(), open) => {
            ep.conns.drop_link(id);
            ep.conns[id].link = Link::Refused;
            wait_in_line(ep, id);
            Ok(())
        }
        started => started.inspect(|()| ep.limit.opened()),
    }
}

/// Accepts a peer's request in place of an attempt of this side, and moves the waiting transfers to its
/// connection. The attempt stays until the peer has answered it.
pub(super) fn replace_attempt(
    ep: &mut RxmEngineEp,
    attempt: u32,
    info: &InfoBuf,
    call: &RxmConnReq,
) {
    let peer = ep.conns[attempt].peer;
    let Ok(id) = ep.conns.new_conn(&mut ep.peers, peer, Link::Accepting) else {
        ep.refuse(info, RejectReason::Unspecified);
        return;
    };
    ep.conns[attempt].usage.is_replaced = true;
    ep.peers[peer].conn = id;
    let ops = take_unsent(ep, attempt);
    // An attempt has no connection: each message counted there waits, and is moved.
    ep.conns[id].sent = std::mem::take(&mut ep.conns[attempt].sent);
    move_ops(ep, &ops, id);
    ep.accept_or_refuse(id, info, call);
}
