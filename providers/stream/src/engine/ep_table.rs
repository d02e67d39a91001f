//! Endpoints of an engine, by number.
use super::arrival::Arrival;
use super::ep::{StreamEngineEp, StreamEpKind};
use ofi_provider::slab::Slab;
use std::ops::{Index, IndexMut};

/// Table of endpoints.
#[derive(Default)]
pub(super) struct EpTable {
    slots: Slab<StreamEngineEp>,
}

impl EpTable {
    /// Adds an endpoint made from its number.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> StreamEngineEp) -> u32 {
        self.slots.insert_with(make)
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u32) -> Option<&StreamEngineEp> {
        self.slots.get(id)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut StreamEngineEp> {
        self.slots.get_mut(id)
    }

    /// Returns all endpoints with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &StreamEngineEp)> {
        self.slots.iter()
    }

    /// Returns the maximum number of endpoints at any time; all numbers are below it.
    pub(super) fn slots(&self) -> u32 {
        self.slots.slots() as u32
    }

    /// Removes a closed endpoint.
    #[inline(never)]
    pub(super) fn close(&mut self, ep_id: u32) {
        let Some(ep) = self.slots.remove(ep_id) else { return };
        ep.completions.close();
        if !ep.matcher.queues.is_shared() && ep.identity.kind != StreamEpKind::Srx {
            ep.matcher.completions.close();
        }
    }

    /// Returns true if there is space to buffer a message. If necessary, drops messages of
    /// disconnected unknown peers to buffer one of another peer.
    /// `most`: the maximum bytes of all unexpected messages.
    pub(super) fn make_space(&mut self, envelope: &Arrival, most: usize) -> bool {
        loop {
            let matcher = &self[envelope.ep].matcher;
            if matcher.may_buffer(envelope, most) {
                return true;
            }
            if !matcher.is_excluded_by_unknown_peers(envelope, most)
                || !self.drop_oldest_left(envelope.ep)
            {
                return false;
            }
        }
    }

    /// Drops the buffered messages of the unknown peer disconnected first, among those of this
    /// endpoint and of others sharing its matching engine. Returns false if there is none.
    fn drop_oldest_left(&mut self, ep_id: u32) -> bool {
        while let Some((owner, peer)) = self[ep_id].matcher.queues.oldest_left() {
            let Some(ep) = self.get_mut(owner) else { continue };
            let gone = ep.peers.get(peer).is_some_and(|entry| entry.conns == 0);
            if !gone
                || !ep.matcher.senders.is_unknown_peer(peer)
                || !ep.matcher.senders.has_buffered_from(peer)
            {
                continue;
            }
            for (queue, number) in ep.matcher.buffered_from(peer) {
                if !ep.matcher.is_hidden(queue, number) {
                    ep.matcher.take_buffered(queue, number);
                }
            }
            ep.forget_peer_if_unused(peer);
            return true;
        }
        false
    }

    /// Handles the end of a connection of this peer. After an unknown peer's last one, its buffered
    /// messages may be dropped.
    pub(super) fn peer_left(&mut self, ep_id: u32, peer: u32) {
        let ep = &mut self[ep_id];
        if ep.peers.get(peer).is_some_and(|entry| entry.conns == 0)
            && ep.matcher.unknown_peer_left(peer)
        {
            self.drop_oldest_left(ep_id);
        }
    }
}

impl Index<u32> for EpTable {
    type Output = StreamEngineEp;

    #[inline(always)]
    fn index(&self, id: u32) -> &StreamEngineEp {
        &self.slots[id]
    }
}

impl IndexMut<u32> for EpTable {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut StreamEngineEp {
        &mut self.slots[id]
    }
}
