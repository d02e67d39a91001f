//! Recently active connections: the engine polls them without asking the poller.

/// Most connections on the list of sockets. Only a single active connection is read without asking
/// the poller; from two on the poller is asked, so a longer list would gain nothing.
const MAX_SOCKETS: usize = 2;

/// Maximum connections over shared memory polled in every progress iteration: such a poll costs
/// about as much as the one system call for a further connection.
const MAX_SHM: usize = 64;

/// Numbers of the recently active connections.
#[derive(Debug)]
pub(super) struct ActiveConns {
    /// Connections over sockets; a single one is polled in every progress iteration.
    sockets: Vec<u32>,
    /// Connections receiving through shared memory
    /// ([`ShmLink::rx_over_shm`](crate::transport::ShmLink::rx_over_shm)), polled in every
    /// progress iteration.
    shm: Vec<u32>,
}

impl ActiveConns {
    pub(super) fn new() -> Self {
        Self { sockets: Vec::with_capacity(MAX_SOCKETS), shm: Vec::new() }
    }

    /// The active connections over sockets.
    #[inline(always)]
    pub(super) fn sockets(&self) -> &[u32] {
        &self.sockets
    }

    /// The active connections over shared memory.
    #[inline(always)]
    pub(super) fn shm(&self) -> &[u32] {
        &self.shm
    }

    /// Returns true if the connection is active.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.sockets.contains(&id) || self.shm.contains(&id)
    }

    /// Adds a connection over a socket; returns false if there is no space.
    pub(super) fn add_socket(&mut self, id: u32) -> bool {
        let has_space = self.sockets.len() < MAX_SOCKETS;
        if has_space {
            self.sockets.push(id);
        }
        has_space
    }

    /// Adds a connection over shared memory, after its link has moved there.
    pub(super) fn add_shm(&mut self, id: u32) {
        self.shm.push(id);
    }

    /// Returns true if there is space for another connection over shared memory.
    pub(super) fn has_space_for_shm(&self) -> bool {
        self.shm.len() < MAX_SHM
    }

    pub(super) fn remove_socket(&mut self, id: u32) {
        self.sockets.retain(|socket| *socket != id);
    }

    pub(super) fn remove_shm(&mut self, id: u32) {
        self.shm.retain(|shm| *shm != id);
    }

    /// Removes an ended connection.
    pub(super) fn remove(&mut self, id: u32) {
        self.remove_socket(id);
        self.remove_shm(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_bounded_and_forget_an_ended_connection() {
        let mut active = ActiveConns::new();
        assert_eq!([1, 2, 3].map(|id| active.add_socket(id)), [true, true, false]);
        while active.has_space_for_shm() {
            active.add_shm(10 + active.shm().len() as u32);
        }
        assert_eq!(active.shm().len(), MAX_SHM);
        assert!(active.contains(1) && active.contains(10) && !active.contains(3));
        active.remove(1);
        active.remove(10);
        assert!(!active.contains(1) && !active.contains(10) && active.has_space_for_shm());
        assert_eq!(active.sockets(), [2]);
    }
}
