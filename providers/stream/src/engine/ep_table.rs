//! Endpoints of an engine, by number.
use super::arrival::Arrival;
use super::ep::{StreamEngineEp, StreamEpKind};
use std::ops::{Index, IndexMut};

const MISSING: &str = "the number of an endpoint is used only before its close";

/// Table of endpoints. Each is in its own memory: the fast paths find it by one load. In a slab, a
/// test of the kind of slot would precede it.
#[derive(Default)]
pub(super) struct EpTable {
    slots: Vec<Option<Box<StreamEngineEp>>>,
    /// All slots below this one are occupied.
    first_vacant: usize,
}

impl EpTable {
    /// Adds an endpoint made from its number.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> StreamEngineEp) -> u32 {
        let vacant = self.slots[self.first_vacant..].iter().position(Option::is_none);
        let at = vacant.map_or(self.slots.len(), |distance| self.first_vacant + distance);
        self.first_vacant = at + 1;
        let ep = Some(Box::new(make(at as u32)));
        match self.slots.get_mut(at) {
            Some(slot) => *slot = ep,
            None => self.slots.push(ep),
        }
        at as u32
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u32) -> Option<&StreamEngineEp> {
        self.slots.get(id as usize)?.as_deref()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut StreamEngineEp> {
        self.slots.get_mut(id as usize)?.as_deref_mut()
    }

    /// Returns all endpoints with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &StreamEngineEp)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(id, slot)| Some((id as u32, slot.as_deref()?)))
    }

    /// Publishes the number of threads about to sleep.
    pub(super) fn show_asleep(&mut self, threads: u64) {
        self.slots.iter_mut().flatten().for_each(|ep| ep.published.set_asleep(threads));
    }

    /// Returns the maximum number of endpoints at any time; all numbers are below it.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Removes a closed endpoint.
    #[inline(never)]
    pub(super) fn close(&mut self, ep_id: u32) {
        let Some(slot) = self.slots.get_mut(ep_id as usize) else { return };
        let Some(ep) = slot.take() else { return };
        self.first_vacant = self.first_vacant.min(ep_id as usize);
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
        self.get(id).expect(MISSING)
    }
}

impl IndexMut<u32> for EpTable {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut StreamEngineEp {
        self.get_mut(id).expect(MISSING)
    }
}
