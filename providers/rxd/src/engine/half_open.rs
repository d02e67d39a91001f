//! Half-open handshakes: requests answered and not confirmed.
//!
//! A request can be sent with a forged source address, like any packet. Such a request gets one
//! response, and uses one entry here. There are few entries for unknown peers: the newest replaces the
//! oldest. Known peers have an entry each, because the second response to a peer with a replaced one
//! would contradict the first, like that of a restarted endpoint. The entry becomes a connection when a
//! packet arrives with the index from the response.
use super::indices::{IndexUse, PeerIndices, random_number};
use crate::wire::{CTS_LEN, Hello};
use ofi_provider::addr::Addr;
use ofi_provider::error::Result;
use std::collections::HashMap;

/// Entries for requests of unknown peers, and the minimum for known ones.
pub(super) const SLOTS: u32 = if cfg!(test) { 16 } else { 4096 };

/// Content of a request about its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Introduction {
    /// The sender's index for this endpoint.
    pub(super) remote: u32,
    pub(super) hello: Option<Hello>,
}

/// Combined content of the requests from one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Introduced {
    /// All requests have the same content.
    As(Introduction),
    /// They contradict each other: the peer has to be asked.
    InSeveralWays,
}

impl Introduced {
    /// Takes another request into account.
    pub(super) fn and(self, other: Introduction) -> Self {
        if self == Self::As(other) { self } else { Self::InSeveralWays }
    }
}

/// Request answered and not confirmed.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) addr: Addr,
    /// Index required in the peer's packets.
    pub(super) index: u32,
    /// Identifier of the handshake, if it is completed.
    pub(super) nonce: u64,
    pub(super) introduced: Introduced,
}

/// Response queued for the port.
pub(super) struct RequestAnswer {
    pub(super) to: Addr,
    pub(super) packet: [u8; CTS_LEN + Hello::LEN],
    pub(super) len: usize,
}

/// The half-open requests of an endpoint.
#[derive(Default)]
pub(super) struct HalfOpens {
    /// Entries of unknown and of known peers, with the index of the next entry of each.
    slots: [(Vec<Option<HalfOpen>>, u32); 2],
    by_addr: HashMap<Addr, u32>,
}

/// Returns the ring of an entry, and its index there.
fn slot_of(number: u32) -> (usize, usize) {
    match number.checked_sub(SLOTS) {
        None => (0, number as usize),
        Some(at) => (1, at as usize),
    }
}

impl HalfOpens {
    fn slot(&mut self, number: u32) -> Option<&mut Option<HalfOpen>> {
        let (ring, at) = slot_of(number);
        self.slots[ring].0.get_mut(at)
    }

    /// The request in this place.
    pub(super) fn get(&self, number: u32) -> Option<&HalfOpen> {
        let (ring, at) = slot_of(number);
        self.slots[ring].0.get(at)?.as_ref()
    }

    /// Records a request from this address. Returns the index and the nonce of the response, equal
    /// for all requests from one address. `known`: the number of addresses in the address vector, with
    /// this one; `None` for an unknown address.
    pub(super) fn note(
        &mut self,
        addr: &Addr,
        known: Option<usize>,
        by: Introduction,
        indices: &mut PeerIndices,
    ) -> Result<(u32, u64)> {
        if let Some(number) = self.by_addr.get(addr).copied() {
            if let Some(Some(half)) = self.slot(number) {
                half.introduced = half.introduced.and(by);
                return Ok((half.index, half.nonce));
            }
        }
        let (index, nonce) = (indices.draw()?, random_number()?);
        let slots = known.map_or(SLOTS, |known| {
            u32::try_from(known).unwrap_or(u32::MAX).clamp(SLOTS, u32::MAX - SLOTS)
        });
        let (ring, next) = &mut self.slots[usize::from(known.is_some())];
        // There may have been more addresses.
        let at = if *next < slots { *next } else { 0 };
        *next = at + 1;
        if ring.len() <= at as usize {
            ring.resize_with(at as usize + 1, || None);
        }
        let introduced = Introduced::As(by);
        let half = HalfOpen { addr: addr.clone(), index, nonce, introduced };
        let oldest = ring[at as usize].replace(half);
        let number = at + if known.is_some() { SLOTS } else { 0 };
        if let Some(oldest) = oldest {
            indices.free(oldest.index);
            self.by_addr.remove(&oldest.addr);
        }
        self.by_addr.insert(addr.clone(), number);
        indices.set(index, IndexUse::HalfOpen(number));
        Ok((index, nonce))
    }

    /// Returns the number of requests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_addr.len()
    }

    /// Removes the request of this address; its index belongs to the caller from now on.
    pub(super) fn take(&mut self, addr: &Addr) -> Option<HalfOpen> {
        let number = self.by_addr.remove(addr)?;
        self.slot(number)?.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> Addr {
        Addr::Ip(([127, 0, 0, 1], port).into())
    }

    const ONE: Introduction = Introduction { remote: 1, hello: None };
    const OTHER: Introduction = Introduction { remote: 2, hello: None };

    #[test]
    fn requests_of_one_address_share_an_index_and_are_remembered_to_contradict_each_other() {
        let (mut halves, mut indices) = (HalfOpens::default(), PeerIndices::default());
        let first = halves.note(&addr(1), None, ONE, &mut indices).unwrap();
        assert_eq!(halves.note(&addr(1), None, ONE, &mut indices), Ok(first));
        let Some(IndexUse::HalfOpen(number)) = indices.get(first.0) else { panic!("no place") };
        assert_eq!(halves.get(number).unwrap().introduced, Introduced::As(ONE));
        let other = halves.note(&addr(2), None, ONE, &mut indices).unwrap();
        assert!(other.0 != first.0 && other.1 != first.1);
        // The current content of the address vector does not matter.
        assert_eq!(halves.note(&addr(1), Some(1), OTHER, &mut indices), Ok(first));
        assert_eq!(halves.note(&addr(1), Some(1), ONE, &mut indices), Ok(first));
        let half = halves.take(&addr(1)).unwrap();
        assert_eq!((half.index, half.introduced), (first.0, Introduced::InSeveralWays));
        assert!(halves.take(&addr(1)).is_none() && halves.get(number).is_none());
    }

    #[test]
    fn oldest_half_open_entry_is_evicted_but_known_peers_stay() {
        let (mut halves, mut indices) = (HalfOpens::default(), PeerIndices::default());
        let known = halves.note(&addr(9), Some(1), ONE, &mut indices).unwrap();
        let all = SLOTS as u16 * 3;
        let given: Vec<_> = (100..100 + all)
            .map(|port| halves.note(&addr(port), None, ONE, &mut indices).unwrap().0)
            .collect();
        let left = given.iter().filter(|index| indices.get(**index).is_some()).count();
        assert_eq!(left, SLOTS as usize);
        assert!(given[given.len() - left..].iter().all(|index| indices.get(*index).is_some()));
        assert_eq!(indices.len(), left + 1);
        assert_eq!(halves.by_addr.len(), left + 1);
        assert_eq!(halves.note(&addr(9), Some(1), ONE, &mut indices), Ok(known));
    }

    #[test]
    fn each_known_peer_has_an_entry() {
        let (mut halves, mut indices) = (HalfOpens::default(), PeerIndices::default());
        let all = SLOTS as u16 * 3;
        for round in 0..2 {
            let given: Vec<_> = (100..100 + all)
                .map(|port| {
                    halves.note(&addr(port), Some(all.into()), ONE, &mut indices).unwrap().0
                })
                .collect();
            assert!(given.iter().all(|index| indices.get(*index).is_some()), "round {round}");
            assert_eq!(indices.len(), all.into());
        }
        // Fewer addresses are in the vector now.
        halves.note(&addr(1), Some(1), ONE, &mut indices).unwrap();
        assert_eq!((indices.len(), halves.len()), (all.into(), all.into()));
    }
}
