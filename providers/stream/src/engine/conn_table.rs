//! Connections of an engine, by number.
use super::blocked_conns::ConnName;
use super::conn::StreamConn;
use crate::transport::ShmTransport;
use ofi_provider::slab::Slab;
use std::ops::{Index, IndexMut};

/// Table of connections. A number is reused after the end of its connection; the pair of number and
/// serial number is not.
#[derive(Debug)]
pub(super) struct ConnTable<N: ShmTransport> {
    slots: Slab<StreamConn<N>>,
}

impl<N: ShmTransport> Default for ConnTable<N> {
    fn default() -> Self {
        Self { slots: Slab::default() }
    }
}

impl<N: ShmTransport> ConnTable<N> {
    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if there are no connections.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the maximum number of connections at any time; all numbers are below it.
    pub(super) fn slots(&self) -> u32 {
        self.slots.slots() as u32
    }

    pub(super) fn insert(&mut self, conn: StreamConn<N>) -> u32 {
        self.slots.insert(conn)
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, id: u32) -> Option<StreamConn<N>> {
        self.slots.remove(id)
    }

    #[inline(always)]
    pub(super) fn get(&self, id: u32) -> Option<&StreamConn<N>> {
        self.slots.get(id)
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut StreamConn<N>> {
        self.slots.get_mut(id)
    }

    /// Returns the connection with this number and serial number, if it has not ended.
    pub(super) fn named(&self, (id, serial): ConnName) -> Option<&StreamConn<N>> {
        self.get(id).filter(|conn| conn.serial == serial)
    }

    /// Returns true if the connection exists and is established.
    #[inline]
    pub(super) fn is_connected(&self, id: u32) -> bool {
        self.get(id).is_some_and(StreamConn::is_connected)
    }

    /// Returns all connections with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &StreamConn<N>)> {
        self.slots.iter()
    }

    /// Returns all connections with their numbers, as mutable references.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut StreamConn<N>)> {
        self.slots.iter_mut()
    }

    /// Returns the numbers of the connections selected by `is_meant`.
    pub(super) fn indices(&self, is_meant: impl Fn(&StreamConn<N>) -> bool) -> Vec<u32> {
        self.slots.indices(is_meant)
    }
}

impl<N: ShmTransport> Index<u32> for ConnTable<N> {
    type Output = StreamConn<N>;

    #[inline(always)]
    fn index(&self, id: u32) -> &StreamConn<N> {
        &self.slots[id]
    }
}

impl<N: ShmTransport> IndexMut<u32> for ConnTable<N> {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut StreamConn<N> {
        &mut self.slots[id]
    }
}
