//! Requests for further connections ([`FurtherConns`](super::further::FurtherConns)), of this side and
//! of peers.
use super::conn::{Link, own_addr, packet_id, process_of};
use super::ep::RxmEngineEp;
use super::spread::PROBE;
use crate::wire::{RejectReason, RxmConnReq};
use ofi_provider::addr::{Addr, connect_order};
use ofi_provider::conn_arbiter::{ConnReqDecision, IncomingConnReq, LocalConnState};
use ofi_provider::info::InfoBuf;

/// Listening port stated by probes ([`PeerSupport`](super::further::PeerSupport)); no endpoint has it.
pub(super) const PROBE_PORT: u16 = 1;

/// Starts the further connections in demand. Contexts of scalable endpoints have none.
#[cold]
#[inline(never)]
pub(super) fn start_wanted(ep: &mut RxmEngineEp) {
    for (first, index) in ep.conns.take_wanted() {
        let peer = ep.conns[first].peer;
        let contexts = ep.context_index.to(ep.peers[peer].rx);
        if !contexts.are_first() || !ep.connects.has_space(&ep.conns, usize::MAX) {
            continue;
        }
        let Ok(id) = ep.conns.new_conn(&mut ep.peers, peer, Link::Calling) else { continue };
        ep.conns[id].own = ep.conns[first].own;
        match index {
            PROBE => ep.conns.add_probe(first, id),
            _ => ep.conns.add_further(first, index, id),
        }
        if let Err(error) = ep.start_connect(id) {
            ep.conns.further_failed(id, false);
            ep.ended(id, error);
        }
    }
}

/// Answers a peer's request for a further connection.
#[cold]
#[inline(never)]
pub(super) fn answer(ep: &mut RxmEngineEp, info: &InfoBuf, addr: &Addr, call: &RxmConnReq) {
    let index = usize::from(call.index);
    let peer = ep.peers.find_at(addr);
    if peer.is_none() {
        // As upstream libfabric answers.
        return ep.refuse(info, RejectReason::Refused);
    }
    let first = peer.and_then(|peer| ep.peers.get(peer)).map(|peer| peer.conn);
    let known = first.and_then(|first| ep.conns.get(first)).filter(|conn| {
        let is_made = matches!(conn.link, Link::Accepting | Link::Connected);
        is_made && conn.remote_id == packet_id(call.conn_id)
    });
    let (Some(peer), Some(first), Some(known)) = (peer, first, known) else {
        return ep.refuse(info, RejectReason::Unspecified);
    };
    if index >= ep.conns.num_msg_eps() || known.process.pid != process_of(call.conn_id).pid {
        return ep.refuse(info, RejectReason::Refused);
    }
    let own = ep.conns.further(first, index);
    let incoming = IncomingConnReq {
        order: connect_order(addr, &own_addr(&ep.identity.local, info)),
        peer_behind_firewall: false,
        behind_firewall: false,
        same_process: true,
    };
    let state = own.map_or(LocalConnState::None, |id| ep.conns[id].own_call());
    match (incoming.answer(state), own) {
        (ConnReqDecision::Accept, _) => {
            match ep.conns.new_conn(&mut ep.peers, peer, Link::Accepting) {
                Ok(id) => {
                    ep.conns.add_further(first, index, id);
                    ep.accept_or_refuse(id, info, call);
                }
                Err(_) => ep.refuse(info, RejectReason::Unspecified),
            }
        }
        (ConnReqDecision::Replace, Some(id)) => {
            ep.conns[id].usage.had_replaced = true;
            ep.conns.drop_link(id);
            ep.accept_or_refuse(id, info, call);
        }
        _ => ep.refuse(info, RejectReason::Already),
    }
}
