//! Peers of an endpoint by address and by name (fi_av(3)).
//!
//! A provider numbers its peers. Each is an address and a receive context there; 0 is the first
//! context, or an endpoint without contexts (fi_endpoint(3)).
use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use crate::addr::Addr;
use crate::av::Av;
use crate::error::{Error, Result};
use crate::slab::NONE;
use std::collections::HashMap;

/// The numbers of an endpoint's peers, by address and by name.
#[derive(Debug, Default)]
pub struct AddressIndex {
    by_addr: HashMap<(Addr, u16), u32>,
    /// Peers' numbers by their index in the address vector, for context 0.
    first: Vec<u32>,
    /// Peers' numbers by index in the address vector, for each other receive context.
    others: Vec<Vec<u32>>,
}

/// Peer of a destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Dest {
    /// A known peer, by number.
    Peer(u32),
    /// Peer not known by this name yet: its name, its address, and its receive context.
    New(fi_addr_t, Addr, u16),
}

impl AddressIndex {
    /// Returns the peer of a destination naming a first context, if it is known: nearly always.
    #[inline(always)]
    pub fn first(&self, dest: fi_addr_t) -> Option<u32> {
        let peer = *self.first.get(usize::try_from(dest).ok()?)?;
        (peer != NONE).then_some(peer)
    }

    /// [`first`](Self::first), or [`NONE`], not a number of any peer.
    #[inline(always)]
    pub fn first_or_none(&self, dest: fi_addr_t) -> u32 {
        usize::try_from(dest).ok().and_then(|dest| self.first.get(dest)).copied().unwrap_or(NONE)
    }

    /// Returns the peer of a destination unknown to [`first`](Self::first): a new one, or a receive
    /// context (fi_rx_addr). Fails with -FI_EINVAL if it names none.
    #[cold]
    pub fn look_up(&self, av: &Av, dest: fi_addr_t) -> Result<Dest> {
        let (name, rx) = av.split(dest);
        let table = rx.checked_sub(1).and_then(|rx| self.others.get(rx));
        let index = usize::try_from(name).ok();
        match table.zip(index).and_then(|(table, index)| table.get(index)) {
            Some(&peer) if peer != NONE => Ok(Dest::Peer(peer)),
            _ => {
                let rx = u16::try_from(rx).map_err(|_| Error::INVAL)?;
                Ok(Dest::New(name, av.get(name)?, rx))
            }
        }
    }

    /// The number of the peer with this address and receive context.
    pub fn at(&self, addr: Addr, rx: u16) -> Option<u32> {
        self.by_addr.get(&(addr, rx)).copied()
    }

    /// All contexts known of the endpoint with this address.
    pub fn all_at(&self, addr: &Addr) -> Vec<u32> {
        (0..=self.others.len() as u16).filter_map(|rx| self.at(addr.clone(), rx)).collect()
    }

    /// Notes the address and receive context of a peer.
    pub fn add(&mut self, addr: Addr, rx: u16, peer: u32) {
        self.by_addr.insert((addr, rx), peer);
    }

    /// Forgets the address of a peer without a name.
    pub fn remove(&mut self, addr: Addr, rx: u16) {
        self.by_addr.remove(&(addr, rx));
    }

    /// Makes a name stand for this peer; FI_ADDR_NOTAVAIL is no name.
    pub fn put(&mut self, name: fi_addr_t, rx: u16, peer: u32) {
        let Ok(index) = usize::try_from(name) else { return };
        if name == FI_ADDR_NOTAVAIL {
            return;
        }
        let table = match usize::from(rx) {
            0 => &mut self.first,
            rx => {
                if self.others.len() < rx {
                    self.others.resize(rx, Vec::new());
                }
                &mut self.others[rx - 1]
            }
        };
        if table.len() <= index {
            table.resize(index + 1, NONE);
        }
        table[index] = peer;
    }

    fn tables(&mut self) -> impl Iterator<Item = &mut Vec<u32>> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The numbers of the peers with this name: the endpoint, and its receive contexts.
    pub fn named(&mut self, name: fi_addr_t) -> Vec<u32> {
        let Ok(name) = usize::try_from(name) else { return Vec::new() };
        let entries = self.tables().filter_map(|table| table.get(name).copied());
        entries.filter(|peer| *peer != NONE).collect()
    }

    /// Removes a name and returns the numbers of its peers.
    pub fn take(&mut self, name: fi_addr_t) -> Vec<u32> {
        let Ok(name) = usize::try_from(name) else { return Vec::new() };
        let entries = self.tables().filter_map(|table| table.get_mut(name));
        entries.map(|at| std::mem::replace(at, NONE)).filter(|peer| *peer != NONE).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_address_and_by_name_until_the_name_is_taken() {
        let addr = Addr::Ip(([127, 0, 0, 1], 7).into());
        let mut names = AddressIndex::default();
        assert_eq!((names.first(3), names.first(FI_ADDR_NOTAVAIL)), (None, None));
        names.add(addr.clone(), 0, 5);
        names.put(3, 0, 5);
        names.add(addr.clone(), 2, 6);
        names.put(3, 2, 6);
        names.put(FI_ADDR_NOTAVAIL, 0, 9);
        assert_eq!((names.first(3), names.first(2), names.first(4)), (Some(5), None, None));
        assert_eq!((names.at(addr.clone(), 2), names.at(addr.clone(), 1)), (Some(6), None));
        assert_eq!(names.all_at(&addr), [5, 6]);
        assert_eq!(names.named(3), [5, 6]);
        assert_eq!(names.take(3), [5, 6]);
        assert_eq!((names.named(3), names.first(3)), (Vec::new(), None));
        names.remove(addr.clone(), 2);
        assert_eq!(names.all_at(&addr), [5]);
    }
}
