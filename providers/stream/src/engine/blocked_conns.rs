//! Unread connections: blocked on space in a completion queue or on buffer space, and those with
//! an end reported by nothing else.
use std::mem::take;

/// Number of a connection and its serial number: another connection may have the number by now.
pub(super) type ConnName = (u32, u64);

/// Connection to continue in a progress iteration, unless it is still blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PolledConn {
    /// Blocked on space in a completion queue, or on peers not reading their responses.
    OnCq(u32),
    /// With copies of memory of devices in progress.
    OnCopies(ConnName),
}

/// Lists of unread connections.
#[derive(Debug, Default)]
pub(super) struct BlockedConns {
    /// Connections to continue in a progress iteration.
    pollable: Vec<PolledConn>,
    /// Connections blocked by a message without buffer space.
    on_buffer: Vec<ConnName>,
    /// Connections recorded as unread.
    unread: Vec<ConnName>,
    /// Unread connections to be polled by the engine's timer: with operations in progress and an
    /// end possibly not reported by the poller
    /// ([`ShmLink::hides_end`](crate::transport::ShmLink::hides_end)), or with operations awaiting the
    /// peer's responses.
    hidden: Vec<ConnName>,
}

impl BlockedConns {
    /// Returns 0 if no connection may continue in the next progress iteration.
    #[inline(always)]
    pub(super) fn resumable(&self) -> usize {
        self.pollable.len() | self.on_buffer.len()
    }

    pub(super) fn block_on_cq(&mut self, id: u32) {
        self.pollable.push(PolledConn::OnCq(id));
    }

    /// Records a connection with copies of memory of devices in progress; the caller does so once
    /// per connection.
    pub(super) fn await_copies(&mut self, conn: ConnName) {
        self.pollable.push(PolledConn::OnCopies(conn));
    }

    /// Connections blocked on space in a completion queue.
    pub(super) fn on_cq(&self) -> impl Iterator<Item = u32> {
        self.pollable.iter().filter_map(|polled| match polled {
            PolledConn::OnCq(id) => Some(*id),
            PolledConn::OnCopies(_) => None,
        })
    }

    /// Connections to continue in a progress iteration.
    pub(super) fn pollable(&self) -> &[PolledConn] {
        &self.pollable
    }

    pub(super) fn take_pollable(&mut self) -> Vec<PolledConn> {
        take(&mut self.pollable)
    }

    pub(super) fn block_on_buffer(&mut self, conn: ConnName) {
        self.on_buffer.push(conn);
    }

    pub(super) fn is_any_on_buffer(&self) -> bool {
        !self.on_buffer.is_empty()
    }

    pub(super) fn take_on_buffer(&mut self) -> Vec<ConnName> {
        take(&mut self.on_buffer)
    }

    /// Records a connection as unread from now on; the caller does so once per connection.
    pub(super) fn note_unread(&mut self, conn: ConnName) {
        self.unread.push(conn);
    }

    pub(super) fn is_any_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(super) fn take_unread(&mut self) -> Vec<ConnName> {
        take(&mut self.unread)
    }

    /// Records an unread connection to be polled by the timer. Returns true if it was not recorded.
    pub(super) fn note_hidden(&mut self, conn: ConnName) -> bool {
        let new = !self.hidden.contains(&conn);
        if new {
            self.hidden.push(conn);
        }
        new
    }

    pub(super) fn is_any_hidden(&self) -> bool {
        !self.hidden.is_empty()
    }

    pub(super) fn take_hidden(&mut self) -> Vec<ConnName> {
        take(&mut self.hidden)
    }

    /// Removes an ended connection. The other lists hold serial numbers.
    pub(super) fn remove(&mut self, id: u32) {
        self.pollable.retain(|blocked| *blocked != PolledConn::OnCq(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_connection_is_not_resumed_and_a_hidden_one_is_listed_once() {
        let mut blocked = BlockedConns::default();
        blocked.block_on_cq(1);
        blocked.block_on_cq(2);
        blocked.remove(1);
        let left = PolledConn::OnCq(2);
        assert_eq!((blocked.pollable(), blocked.resumable()), (&[left][..], 1));
        assert_eq!((blocked.take_pollable(), blocked.resumable()), (vec![left], 0));
        blocked.block_on_buffer((3, 7));
        assert!(blocked.is_any_on_buffer() && blocked.resumable() != 0);
        assert_eq!(
            [(3, 7), (3, 7), (3, 8)].map(|one| blocked.note_hidden(one)),
            [true, false, true]
        );
        assert_eq!(blocked.take_hidden(), [(3, 7), (3, 8)]);
        assert!(!blocked.is_any_hidden());
    }
}
