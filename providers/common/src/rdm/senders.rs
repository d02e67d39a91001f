//! Peers of a matching engine: their names, and their buffered messages.
use super::messages::{Envelope, QUEUES};
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::notices::is_of_unknown_peer;
use crate::slab::NONE;
use std::collections::HashMap;

/// State of a peer in a matching engine, as a sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    /// fi_addr_t of the peer for the source of receives, and the one reported by completions.
    pub(super) name: fi_addr_t,
    pub(super) id: fi_addr_t,
    /// Number of the peer's buffered messages, the youngest of them in each queue, and their memory
    /// in bytes.
    pub(super) buffered: u32,
    /// Number of the peer's messages with copies to memory of devices in progress.
    pub(super) copied: u32,
    pub(super) last: [u32; QUEUES],
    pub(super) bytes: usize,
}

impl Sender {
    const UNKNOWN_PEER: Self = Self {
        name: FI_ADDR_NOTAVAIL,
        id: FI_ADDR_NOTAVAIL,
        buffered: 0,
        copied: 0,
        last: [NONE; QUEUES],
        bytes: 0,
    };
}

/// Addresses of peers by their numbers, reported for unknown peers by FI_SOURCE_ERR. Few endpoints
/// have them.
#[derive(Debug, Default)]
struct SourceAddrs(HashMap<u32, Vec<u8>>);

/// Peers of an endpoint, by numbers of the provider's choice.
#[derive(Debug)]
pub struct Senders {
    all: Vec<Sender>,
    /// State of the one peer of a connected endpoint, without a number.
    only: Sender,
    /// True if peers without a name count as unknown, with a small quota for buffered messages.
    distrusts_unknown: bool,
    /// Addresses of peers, with FI_SOURCE_ERR.
    addrs: Option<Box<SourceAddrs>>,
    /// Numbers of peers in traces.
    trace_ids: Vec<u64>,
}

impl Senders {
    /// Returns no peers. `source_err`: messages of unknown peers are reported as errors
    /// (FI_SOURCE_ERR).
    pub(super) fn new(source_err: bool) -> Self {
        Self {
            all: Vec::new(),
            only: Sender::UNKNOWN_PEER,
            distrusts_unknown: true,
            addrs: source_err.then(Box::default),
            trace_ids: Vec::new(),
        }
    }

    pub(super) fn get_mut(&mut self, peer: u32) -> &mut Sender {
        if peer == NONE {
            return &mut self.only;
        }
        let index = peer as usize;
        if self.all.len() <= index {
            self.all.resize(index + 1, Sender::UNKNOWN_PEER);
        }
        &mut self.all[index]
    }

    #[inline(always)]
    pub(super) fn get(&self, peer: u32) -> &Sender {
        // A peer of which nothing was said is as unknown as the one of a connected endpoint.
        self.all.get(peer as usize).unwrap_or(&self.only)
    }

    /// Returns the numbers of all peers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.all.len() as u32).chain([NONE])
    }

    /// Treats peers without a name like named ones, on endpoints of applications accepting all
    /// peers.
    pub fn trust_all(&mut self) {
        self.distrusts_unknown = false;
    }

    /// Sets if messages of unknown peers are reported as errors (FI_SOURCE_ERR).
    pub(super) fn set_source_err(&mut self, source_err: bool) {
        self.addrs = source_err.then(|| self.addrs.take().unwrap_or_default());
    }

    /// Returns true if messages of unknown peers are reported as errors (FI_SOURCE_ERR).
    #[inline(always)]
    pub(super) fn has_source_err(&self) -> bool {
        self.addrs.is_some()
    }

    /// Stores a peer's address, reported for unknown peers by FI_SOURCE_ERR.
    pub fn set_addr(&mut self, peer: u32, addr: impl FnOnce() -> Vec<u8>) {
        if let Some(addrs) = &mut self.addrs {
            addrs.0.insert(peer, addr());
        }
    }

    /// Sets the number of a peer in traces ([`Addr::trace_id`](crate::addr::Addr::trace_id)).
    pub fn set_trace_id(&mut self, peer: u32, id: u64) {
        if peer == NONE {
            return;
        }
        let index = peer as usize;
        if self.trace_ids.len() <= index {
            self.trace_ids.resize(index + 1, 0);
        }
        self.trace_ids[index] = id;
    }

    /// Returns the number of a peer in traces; 0 if it is unknown.
    pub(super) fn trace_id_of(&self, peer: u32) -> u64 {
        self.trace_ids.get(peer as usize).copied().unwrap_or(0)
    }

    /// Returns the address of a peer; `None` without FI_SOURCE_ERR.
    pub(super) fn addr_of(&self, peer: u32) -> Option<Vec<u8>> {
        Some(self.addrs.as_ref()?.0.get(&peer).cloned().unwrap_or_default())
    }

    /// Removes the address of a peer.
    pub(super) fn remove_addr(&mut self, peer: u32) {
        if let Some(addrs) = &mut self.addrs {
            addrs.0.remove(&peer);
        }
    }

    /// Returns a peer's fi_addr_t for the source of receives; FI_ADDR_NOTAVAIL if it has none.
    #[inline]
    pub fn name_of(&self, peer: u32) -> fi_addr_t {
        self.get(peer).name
    }

    /// Returns the source address reported by completions for a peer.
    #[inline]
    pub fn id_of(&self, peer: u32) -> fi_addr_t {
        self.get(peer).id
    }

    /// Returns true if a peer counts as unknown: it has no name, and the endpoint does not trust
    /// all peers ([`trust_all`](Self::trust_all)).
    #[inline]
    pub fn is_unknown_peer(&self, peer: u32) -> bool {
        self.distrusts_unknown && self.name_of(peer) == FI_ADDR_NOTAVAIL
    }

    /// Returns the number of buffered messages of a peer.
    pub fn buffered_count(&self, peer: u32) -> usize {
        self.get(peer).buffered as usize
    }

    /// Returns true if there are messages of this peer, buffered or being copied to memory of
    /// devices.
    pub fn has_buffered_from(&self, peer: u32) -> bool {
        let Sender { buffered, copied, .. } = *self.get(peer);
        buffered > 0 || copied > 0
    }

    /// Records a started copy of a peer's message to memory of a device. The number of the peer
    /// stays its own until the copies have ended.
    pub fn start_copies(&mut self, peer: u32) {
        self.get_mut(peer).copied += 1;
    }

    /// Ends [`start_copies`](Self::start_copies).
    pub fn end_copies(&mut self, peer: u32) {
        let copied = &mut self.get_mut(peer).copied;
        *copied = copied.saturating_sub(1);
    }

    /// Returns true if an unexpected message is dropped instead of buffered: an internal message
    /// with a sender not in the address vector.
    pub fn drops(&self, envelope: &Envelope) -> bool {
        let Sender { name, buffered, .. } = *self.get(envelope.peer);
        envelope.collective
            && name == FI_ADDR_NOTAVAIL
            && is_of_unknown_peer(envelope.tag, envelope.len, buffered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_unknown_until_it_has_a_name_or_all_are_trusted() {
        let mut senders = Senders::new(false);
        assert!(senders.is_unknown_peer(3) && senders.is_unknown_peer(NONE));
        senders.get_mut(3).name = 7;
        assert!(!senders.is_unknown_peer(3) && senders.is_unknown_peer(2));
        assert_eq!(senders.numbers().collect::<Vec<_>>(), [0, 1, 2, 3, NONE]);
        senders.trust_all();
        assert!(!senders.is_unknown_peer(2) && !senders.is_unknown_peer(NONE));
    }

    #[test]
    fn addresses_are_stored_only_for_error_reports() {
        let mut senders = Senders::new(false);
        senders.set_addr(1, || unreachable!("not stored"));
        assert_eq!(senders.addr_of(1), None);
        senders.set_source_err(true);
        senders.set_addr(1, || vec![5]);
        assert_eq!((senders.addr_of(1), senders.addr_of(2)), (Some(vec![5]), Some(vec![])));
        senders.set_source_err(true);
        assert_eq!(senders.addr_of(1), Some(vec![5]));
        senders.remove_addr(1);
        assert_eq!(senders.addr_of(1), Some(vec![]));
    }
}
