//! Further connections to a peer (`FI_OFI_RXM_NUM_MSG_EPS`, fi_rxm(7)).
//!
//! The first connection carries messages, atomic operations and control packets, so they stay in
//! order. Further ones, started on demand, carry reads and writes, the payload of rendezvous
//! messages, and the segments of a message after its first one. Connection requests state the index
//! of a further connection. Packets on any of them name the first one.
use crate::wire::RxmHeader;
use ofi_provider::slab::NONE;

/// Maximum consecutive failures of a further connection: after them it is not started again.
pub(super) const MAX_FAILURES: u8 = 4;

/// Memory of a segment received early, besides its payload, in bytes.
pub(super) const EARLY_COST: usize = size_of::<EarlySegment>();

/// Knowledge of a peer about further connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerSupport {
    /// Nothing is known: a peer of another library. Releases before 2.7 of upstream libfabric take
    /// the request for a further connection for a new first one, and close the old one.
    Unknown,
    /// A request from an address without a first connection is on its way. Releases before 2.7
    /// accept it, others refuse it.
    Probing,
    /// The peer has further connections.
    Supported,
    /// The peer has none.
    Unsupported,
}

/// Segment of a message received before the segments preceding it.
#[derive(Debug)]
pub(super) struct EarlySegment {
    pub(super) header: RxmHeader,
    pub(super) payload: Box<[u8]>,
}

/// Further connections to the peer of a first connection.
#[derive(Debug)]
pub(super) struct FurtherConns {
    /// The connections by their index, from 1 on, with their consecutive failures.
    pub(super) conns: Vec<(u32, u8)>,
    pub(super) support: PeerSupport,
    /// Index of the connection used last.
    last: usize,
    /// Segments received early.
    pub(super) early: Vec<EarlySegment>,
}

impl FurtherConns {
    /// Creates the state for so many connections, the first included.
    pub(super) fn new(count: usize, support: PeerSupport) -> Self {
        let conns = vec![(NONE, 0); count.saturating_sub(1)];
        Self { conns, support, last: 0, early: Vec::new() }
    }

    /// Returns the next connection in turn, [`NONE`] if it is not started, and its index. None if
    /// all have failed.
    pub(super) fn next(&mut self) -> Option<(u32, usize)> {
        for _ in 0..self.conns.len() {
            self.last = if self.last >= self.conns.len() { 1 } else { self.last + 1 };
            let (id, failures) = self.conns[self.last - 1];
            if failures < MAX_FAILURES {
                return Some((id, self.last));
            }
        }
        None
    }

    /// Returns the connection with this index.
    pub(super) fn get(&self, index: usize) -> Option<u32> {
        let (id, _) = *self.conns.get(index.checked_sub(1)?)?;
        (id != NONE).then_some(id)
    }

    /// Returns the connections.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.conns.iter().map(|(id, _)| *id).filter(|id| *id != NONE)
    }
}
