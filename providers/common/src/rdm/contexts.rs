//! Bookkeeping of scalable endpoints for providers: the existing contexts, and the open ones
//! (fi_endpoint(3)).
//!
//! The transmit and the receive context with one index are one endpoint of a provider's engine, so
//! their operations use the code of any endpoint.
use crate::attr::ContextAttr;
use crate::av::AvObserverHandle;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard};

/// Most transmit contexts, and most receive contexts, of an endpoint.
pub const MAX_CONTEXTS: usize = 64;

/// The two sides of a pair of contexts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextSide {
    /// The transmit context.
    Transmit,
    /// The receive context.
    Receive,
}

/// Transmit and receive context communicating over a separate connection, as named by calls. An
/// endpoint without contexts uses the first ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Contexts {
    /// The caller's transmit context.
    pub tx: u16,
    /// The called endpoint's receive context.
    pub rx: u16,
}

impl Contexts {
    /// Returns true if both are context 0, so endpoints connect as without contexts.
    pub fn are_first(self) -> bool {
        self == Self::default()
    }
}

/// Position of an engine's endpoint among the context pairs of a scalable endpoint. An endpoint
/// without contexts has the first position.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ContextIndex {
    /// Index of the pair. The first one also listens, and communicates with endpoints without
    /// contexts.
    index: u16,
    /// In the first one: the engine's numbers of all receive contexts, by index.
    receivers: Vec<u32>,
}

impl ContextIndex {
    /// Returns the positions of the endpoints with these numbers; the first `receivers` of them
    /// receive.
    pub fn all(ids: &[u32], receivers: usize) -> impl Iterator<Item = (u32, Self)> {
        let receivers = ids[..receivers.min(ids.len())].to_vec();
        let context_index = move |(index, id): (u16, &u32)| {
            let receivers = if index == 0 { receivers.clone() } else { Vec::new() };
            (*id, Self { index, receivers })
        };
        (0..).zip(ids).map(context_index)
    }

    /// Returns the contexts of a connection from here to a peer's receive context.
    pub fn to(&self, rx: u16) -> Contexts {
        Contexts { tx: self.index, rx }
    }

    /// Returns the endpoint for a connection request to receive context `rx`: `own`, the listening
    /// one, for the first, as requested by endpoints without contexts. Returns `None` if there is
    /// no such context.
    pub fn receiver(&self, rx: u16, own: u32) -> Option<u32> {
        match usize::from(rx) {
            0 => Some(own),
            rx => self.receivers.get(rx).copied(),
        }
    }
}

/// State shared by a scalable endpoint and its contexts. Thread-safe.
pub struct Group {
    ids: Vec<u32>,
    /// Numbers of transmit and receive contexts.
    counts: [usize; 2],
    /// Bit sets of the open transmit and receive contexts.
    open: Mutex<[u64; 2]>,
    /// Listeners for changes of the address vector.
    names: Mutex<Vec<Arc<dyn AvObserverHandle>>>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({:?})", self.ids)
    }
}

/// Kind of an application's endpoint: scalable, a context of a scalable one, or neither.
#[derive(Debug)]
pub enum EndpointKind {
    /// Endpoint without contexts.
    Whole,
    /// The scalable endpoint itself.
    Scalable(Arc<Group>),
    /// The context of this index.
    Context(Arc<Group>, ContextSide, usize),
}

impl Group {
    /// Returns the contexts of an endpoint with these numbers of transmit and receive contexts; 0
    /// stands for one. `add` creates the given number of endpoints in the engine, the first ones
    /// with receives, and returns their numbers. Fails with -FI_EINVAL for more than
    /// [`MAX_CONTEXTS`].
    pub fn new(counts: [usize; 2], add: impl FnOnce(u16, usize) -> Vec<u32>) -> Result<Self> {
        let counts = counts.map(|count| count.max(1));
        let [tx, rx] = counts;
        let most = u16::try_from(tx.max(rx)).map_err(|_| Error::INVAL)?;
        if usize::from(most) > MAX_CONTEXTS {
            return Err(Error::INVAL);
        }
        let (open, names) = (Mutex::default(), Mutex::default());
        Ok(Self { ids: add(most, rx), counts, open, names })
    }

    /// The engine's numbers of the contexts, by index.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    fn open(&self) -> MutexGuard<'_, [u64; 2]> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens the context of this index; returns its number in the engine. -FI_EINVAL if there is
    /// none, -FI_EBUSY if it is open already.
    pub fn take(&self, index: usize, attr: &ContextAttr) -> Result<(u32, ContextSide)> {
        let half = match attr {
            ContextAttr::Tx(_) => ContextSide::Transmit,
            ContextAttr::Rx(_) => ContextSide::Receive,
        };
        if index >= self.counts[half as usize] {
            return Err(Error::INVAL);
        }
        let (mut open, bit) = (self.open(), 1 << index);
        if open[half as usize] & bit != 0 {
            return Err(Error::BUSY);
        }
        open[half as usize] |= bit;
        Ok((self.ids[index], half))
    }

    /// Closes a context by `close`, called with its number in the engine; it can be opened again.
    pub fn give_back(&self, half: ContextSide, index: usize, close: impl FnOnce(u32)) {
        let mut open = self.open();
        close(self.ids[index]);
        open[half as usize] &= !(1 << index);
    }

    /// Keeps a listener of the address vector for as long as the endpoint is open.
    pub fn keep(&self, name: Arc<dyn AvObserverHandle>) {
        self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{RxAttr, TxAttr};

    #[test]
    fn contexts_are_open_once_and_counted_each_kind_for_itself() {
        let (tx, rx) = (ContextAttr::Tx(TxAttr::default()), ContextAttr::Rx(RxAttr::default()));
        let group = Group::new([3, 0], |most, receivers| {
            assert_eq!((most, receivers), (3, 1));
            vec![7, 8, 9]
        });
        let group = group.unwrap();
        assert_eq!(group.take(2, &tx), Ok((9, ContextSide::Transmit)));
        assert_eq!(group.take(2, &tx), Err(Error::BUSY));
        assert_eq!(group.take(3, &tx), Err(Error::INVAL));
        assert_eq!(group.take(0, &rx), Ok((7, ContextSide::Receive)));
        assert_eq!(group.take(1, &rx), Err(Error::INVAL));
        group.give_back(ContextSide::Transmit, 2, |id| assert_eq!(id, 9));
        assert_eq!(group.take(2, &tx), Ok((9, ContextSide::Transmit)));
        assert!(Group::new([MAX_CONTEXTS + 1, 1], |_, _| Vec::new()).is_err());
    }

    #[test]
    fn calls_find_the_receive_context_they_are_for() {
        let indices: Vec<_> = ContextIndex::all(&[4, 9, 7], 2).collect();
        assert_eq!(indices.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [4, 9, 7]);
        let (listener, last) = (&indices[0].1, &indices[2].1);
        let found = [0, 1, 2, 3].map(|rx| listener.receiver(rx, 4));
        assert_eq!(found, [Some(4), Some(9), None, None]);
        assert_eq!(last.to(1), Contexts { tx: 2, rx: 1 });
        assert!(ContextIndex::default().to(0).are_first());
        assert_eq!(ContextIndex::default().receiver(1, 4), None);
    }
}
