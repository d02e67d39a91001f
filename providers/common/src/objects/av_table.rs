//! The addresses of a vector.
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::addr::Addr;
use crate::addr_table::SharedAddrTable;
use crate::error::{Error, Result};
use crate::slab::Slab;
use std::collections::HashMap;
use std::sync::Weak;

/// Observer of changes of a vector: its endpoints.
pub trait AvObserverHandle: Send + Sync {
    /// `addr` is now known by `index`.
    fn inserted(&self, index: fi_addr_t, addr: &Addr);
    /// Reports the removal of `index`, previously naming `addr`.
    fn removed(&self, index: fi_addr_t, addr: &Addr);
    /// Reports the user id `id` of `index` for completions (FI_AV_USER_ID).
    fn identified(&self, _index: fi_addr_t, _id: fi_addr_t) {}
}

/// An address of a vector.
#[derive(Debug)]
pub(super) struct AvEntry {
    pub(super) addr: Addr,
    pub(super) uses: usize,
    /// Address reported by completions (FI_AV_USER_ID).
    pub(super) id: fi_addr_t,
    /// True if the application declared the address unable to accept connections
    /// (FI_FIREWALL_ADDR).
    pub(super) behind_firewall: bool,
}

/// Addresses of a vector, by index and by address.
#[derive(Default)]
pub(super) struct AvTable {
    pub(super) entries: Slab<AvEntry>,
    pub(super) index: HashMap<Addr, u32>,
    pub(super) listeners: Vec<Weak<dyn AvObserverHandle>>,
    /// Indices of addresses inserted by other processes, and not reported to listeners yet.
    pub(super) unnotified: Vec<u32>,
    /// True if the application chooses the address reported by completions (FI_AV_USER_ID).
    pub(super) user_ids: bool,
}

impl AvTable {
    /// Reserves space for another address. Returns -FI_ENOMEM if there is no memory.
    pub(super) fn make_space(&mut self) -> Result {
        self.entries.try_reserve(1)?;
        self.index.try_reserve(1).map_err(|_| Error::NOMEM)
    }

    /// Returns the address reported by completions for an index without a user id.
    pub(super) fn default_id(&self, index: u32) -> fi_addr_t {
        if self.user_ids { FI_ADDR_NOTAVAIL } else { u64::from(index) }
    }

    /// Copies the new records of `shared`.
    pub(super) fn catch_up(&mut self, shared: &SharedAddrTable) {
        for addr in shared.since(self.entries.slots() as u32) {
            // A removed record takes its index as well.
            let (addr, uses) = addr.map_or((Addr::any(shared.format()), 0), |addr| (addr, 1));
            let entry = AvEntry { addr: addr.clone(), uses, id: 0, behind_firewall: false };
            let index = self.entries.insert(entry);
            self.entries[index].id = self.default_id(index);
            if uses > 0 {
                self.index.insert(addr, index);
                self.unnotified.push(index);
            }
        }
    }

    /// Returns the current address of an index in `shared`: another process may have removed it.
    pub(super) fn look_up(&mut self, shared: &SharedAddrTable, index: u32) -> Option<Addr> {
        if self.entries.get(index).is_none() {
            self.catch_up(shared);
        }
        let (now, entry) = (shared.addr(index)?, self.entries.get_mut(index)?);
        // The record was not all there when it was copied.
        if entry.uses == 0 {
            (entry.addr, entry.uses) = (now.clone(), 1);
            self.index.insert(now.clone(), index);
            self.unnotified.push(index);
        }
        (self.entries[index].addr == now).then_some(now)
    }

    /// Returns the address of an index, if it has one.
    pub(super) fn addr(&self, index: u32) -> Option<&Addr> {
        Some(&self.entries.get(index).filter(|entry| entry.uses > 0)?.addr)
    }

    /// Invalidates an index and returns its address.
    pub(super) fn retire(&mut self, index: u32) -> Option<Addr> {
        let addr = self.addr(index)?.clone();
        self.entries[index].uses = 0;
        if self.index.get(&addr) == Some(&index) {
            self.index.remove(&addr);
        }
        Some(addr)
    }
}
