//! Use of the further connections to a peer ([`FurtherConns`]).
use super::conn::{Link, RxmConn, came_on};
use super::conns::RxmConns;
use super::further::{EARLY_COST, EarlySegment, FurtherConns, MAX_FAILURES, PeerSupport};
use crate::wire::{Malformed, Parsed, RxmHeader, SegmentPart};
use ofi_provider::slab::NONE;

/// Index of a probe among the connections to be started.
pub(super) const PROBE: usize = 0;

impl RxmConns {
    /// Returns the first connection to the peer of this connection; none if it has ended.
    #[inline]
    pub(super) fn first_of(&self, id: u32) -> Option<u32> {
        match self[id].first {
            0 => Some(id),
            first => came_on(self, first).map(|(id, _)| id),
        }
    }

    /// Returns the source named by packets on a connection: its first connection.
    #[inline]
    pub(super) fn named_by(&self, id: u32) -> u64 {
        match self[id].first {
            0 => self.source(id),
            first => first,
        }
    }

    /// Returns the connection for the next transfer without an order: the next further one, or the
    /// first one before the further one is established.
    #[inline(always)]
    pub(super) fn spread(&mut self, first: u32) -> u32 {
        if self.num_msg_eps() == 1 { first } else { self.spread_slow(first) }
    }

    #[inline(never)]
    fn spread_slow(&mut self, first: u32) -> u32 {
        let (source, count) = (self.source(first), self.num_msg_eps());
        let delivers = self.core_delivers();
        let conn = &mut self[first];
        // Peers with knowledge of further connections state their process.
        if conn.first != 0 || conn.process.pid == 0 || conn.link != Link::Connected {
            return first;
        }
        // Writes have to report their end at the peer.
        if !delivers {
            return first;
        }
        let support = if conn.ours { PeerSupport::Supported } else { PeerSupport::Unknown };
        let new = || Box::new(FurtherConns::new(count, support));
        let further = conn.further.get_or_insert_with(new);
        if further.support == PeerSupport::Unknown {
            self.wanted.push((source, PROBE));
            return first;
        } else if further.support != PeerSupport::Supported {
            return first;
        }
        match further.next() {
            None => first,
            Some((NONE, index)) => {
                self.wanted.push((source, index));
                first
            }
            Some((id, _)) => {
                let is_usable = |conn: &RxmConn| conn.link == Link::Connected && conn.ep.is_some();
                if self.get(id).is_some_and(is_usable) { id } else { first }
            }
        }
    }

    /// Takes the first connections with further ones to be started, and their indices.
    pub(super) fn take_wanted(&mut self) -> Vec<(u32, usize)> {
        let wanted = std::mem::take(&mut self.wanted);
        let open = |(source, index)| came_on(self, source).map(|(id, _)| (id, index));
        let mut wanted: Vec<_> = wanted.into_iter().filter_map(open).collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|(id, index)| {
            let further = self.get(*id).and_then(|conn| conn.further.as_ref());
            further.is_some_and(|further| match index.checked_sub(1) {
                None => further.support == PeerSupport::Unknown,
                Some(at) => further.conns.get(at).is_some_and(|(id, _)| *id == NONE),
            })
        });
        wanted
    }

    /// Returns the further connection with this index.
    pub(super) fn further(&self, first: u32, index: usize) -> Option<u32> {
        self.get(first)?.further.as_ref()?.get(index)
    }

    /// Returns the further connections of a first one.
    pub(super) fn all_further(&self, first: u32) -> Vec<u32> {
        let further = self.get(first).and_then(|conn| conn.further.as_ref());
        further.map_or_else(Vec::new, |further| further.ids().collect())
    }

    /// Makes a connection the further one with this index.
    pub(super) fn add_further(&mut self, first: u32, index: usize, id: u32) {
        let (source, count) = (self.source(first), self.num_msg_eps());
        (self[id].first, self[id].index) = (source, index as u8);
        let further = &mut self[first].further;
        let new = || Box::new(FurtherConns::new(count, PeerSupport::Supported));
        let further = further.get_or_insert_with(new);
        further.support = PeerSupport::Supported;
        if let Some(entry) = further.conns.get_mut(index - 1) {
            entry.0 = id;
        }
    }

    /// Makes a connection the probe for the support of further ones.
    pub(super) fn add_probe(&mut self, first: u32, id: u32) {
        let source = self.source(first);
        let conn = &mut self[id];
        (conn.first, conn.index, conn.is_probe) = (source, 1, true);
        if let Some(further) = &mut self[first].further {
            further.support = PeerSupport::Probing;
        }
    }

    /// Records the answer to a probe.
    pub(super) fn probe_answered(&mut self, id: u32, support: PeerSupport) {
        let further = self.first_of(id).and_then(|first| self[first].further.as_mut());
        if let Some(further) = further.filter(|f| f.support == PeerSupport::Probing) {
            further.support = support;
        }
    }

    /// Records a further connection as established.
    pub(super) fn further_established(&mut self, id: u32) {
        if let Some((_, failures)) = self.further_entry(id) {
            *failures = 0;
        }
    }

    /// Records a failed attempt. A later one follows, unless the peer `refuses` more connections or
    /// many attempts have failed.
    pub(super) fn further_failed(&mut self, id: u32, refuses: bool) {
        if let Some((_, failures)) = self.further_entry(id) {
            *failures = if refuses { MAX_FAILURES } else { *failures + 1 };
        }
    }

    /// Forgets an ended further connection.
    pub(super) fn remove_further(&mut self, id: u32) {
        if let Some((entry, _)) = self.further_entry(id) {
            *entry = NONE;
        }
    }

    /// Returns true if a segment arrived before one preceding it, on another connection.
    #[inline]
    pub(super) fn is_early(&self, first: u32, header: &RxmHeader) -> bool {
        let conn = &self[first];
        if conn.further.is_none() || header.part() == Some(SegmentPart::First) {
            return false;
        }
        let partial = conn.partial.iter().find(|partial| partial.msg_id == header.msg_id);
        partial.is_none_or(|partial| header.seg_no > partial.next)
    }

    /// Buffers such a segment. `most`: maximum bytes of such segments.
    #[cold]
    pub(super) fn buffer_early(
        &mut self,
        first: u32,
        header: &RxmHeader,
        payload: &[u8],
        most: usize,
    ) -> Parsed {
        let bytes = self.early_bytes + EARLY_COST + payload.len();
        match &mut self[first].further {
            Some(further) if bytes <= most => {
                further.early.push(EarlySegment { header: *header, payload: payload.into() });
                self.early_bytes = bytes;
                Ok(())
            }
            _ => Err(Malformed("too many segments before their message")),
        }
    }

    /// Takes the next segment of a message, if it has arrived.
    pub(super) fn take_early(&mut self, first: u32, msg_id: u64) -> Option<EarlySegment> {
        let conn = self.get_mut(first)?;
        let further = conn.further.as_mut().filter(|further| !further.early.is_empty())?;
        let next = conn.partial.iter().find(|partial| partial.msg_id == msg_id)?.next;
        let is_next =
            |early: &EarlySegment| early.header.msg_id == msg_id && early.header.seg_no == next;
        let at = further.early.iter().position(is_next)?;
        let early = further.early.swap_remove(at);
        self.early_bytes -= EARLY_COST + early.payload.len();
        Some(early)
    }

    /// Drops the early segments of an ended connection.
    pub(super) fn drop_early(&mut self, conn: &mut RxmConn) {
        for early in conn.further.iter_mut().flat_map(|further| further.early.drain(..)) {
            self.early_bytes -= EARLY_COST + early.payload.len();
        }
    }

    fn further_entry(&mut self, id: u32) -> Option<&mut (u32, u8)> {
        let conn = self.get(id).filter(|conn| conn.first != 0)?;
        let (index, first) = (usize::from(conn.index), self.first_of(id)?);
        let further = self.get_mut(first)?.further.as_mut()?;
        further.conns.get_mut(index.checked_sub(1)?).filter(|(entry, _)| *entry == id)
    }
}
