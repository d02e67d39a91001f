//! Scalable endpoints, as glue sees them: which contexts there are, and which of
//! them are open (fi_endpoint(3)).
use crate::engine::{Engine, Half, Identity};
use crate::ep::Names;
use ofi_provider::abi::{FI_DIRECTED_RECV, FI_SOURCE_ERR};
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{Bindings, ContextAttr};
use std::sync::{Arc, Mutex, MutexGuard};

/// Transmit, and receive, contexts that an endpoint may have.
pub(crate) const MAX_CONTEXTS: usize = 64;

/// A scalable endpoint and its contexts share this.
#[derive(Debug)]
pub(crate) struct Group {
    /// The engine's endpoints, one for each index.
    pub(crate) ids: Vec<u32>,
    /// How many transmit and receive contexts there are.
    counts: [usize; 2],
    /// Which of them are open.
    open: Mutex<[u64; 2]>,
    /// They hear of insertions into the address vector.
    names: Mutex<Vec<Arc<Names>>>,
}

/// What an endpoint of the application's is of a scalable one.
#[derive(Debug)]
pub(crate) enum Part {
    /// An endpoint that is not scalable.
    Whole,
    /// The scalable endpoint itself.
    Scalable(Arc<Group>),
    /// The context of this index.
    Context(Arc<Group>, Half, usize),
}

impl Group {
    /// The contexts of an endpoint that is to have so many; 0 stands for one.
    pub(crate) fn new(engine: &Engine, identity: &Identity, counts: [usize; 2]) -> Result<Self> {
        let counts = counts.map(|count| count.max(1));
        let [tx, rx] = counts;
        let most = u16::try_from(tx.max(rx)).map_err(|_| Error::INVAL)?;
        if usize::from(most) > MAX_CONTEXTS {
            return Err(Error::INVAL);
        }
        let ids = engine.lock().add_contexts(identity, most, rx);
        Ok(Self { ids, counts, open: Mutex::default(), names: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, [u64; 2]> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The context of this index is open from now on; its number in the engine.
    pub(crate) fn take(
        &self,
        engine: &Engine,
        index: usize,
        attr: &ContextAttr,
    ) -> Result<(u32, Half)> {
        let half = match attr {
            ContextAttr::Tx(_) => Half::Transmit,
            ContextAttr::Rx(_) => Half::Receive,
        };
        if index >= self.counts[half as usize] {
            return Err(Error::INVAL);
        }
        let (mut open, bit) = (self.open(), 1 << index);
        if open[half as usize] & bit != 0 {
            return Err(Error::BUSY);
        }
        open[half as usize] |= bit;
        let id = self.ids[index];
        let mut state = engine.lock();
        let ep = state.ep(id);
        match attr {
            ContextAttr::Tx(tx) => ep.limit_sends(tx.size, tx.inject_size),
            ContextAttr::Rx(rx) => {
                ep.choose_sources(rx.caps & FI_DIRECTED_RECV != 0, rx.caps & FI_SOURCE_ERR != 0);
            }
        }
        Ok((id, half))
    }

    /// The context is closed.
    pub(crate) fn give_back(&self, engine: &Engine, half: Half, index: usize) {
        let mut open = self.open();
        engine.lock().close_half(self.ids[index], half);
        open[half as usize] &= !(1 << index);
    }

    /// The endpoint is reachable from now on.
    pub(crate) fn enable(&self, engine: &Arc<Engine>, bindings: &Bindings) -> Result {
        let mut names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut state = engine.lock();
        for id in &self.ids {
            state.ep(*id).bind(bindings);
            names.extend(bindings.av.as_ref().map(|av| Names::listen(engine, *id, av)));
        }
        state.listen_for(&self.ids)
    }

    /// The endpoint is closed, after all its contexts.
    pub(crate) fn close(&self, engine: &Engine) {
        let mut state = engine.lock();
        self.ids.iter().for_each(|id| state.close_ep(*id));
    }
}
