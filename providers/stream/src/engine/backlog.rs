//! Bytes of memory in responses and acknowledgements not read by peers yet.
//!
//! Each connection has its own sum, and an engine the sum of all.

/// Bytes of memory for responses and acknowledgements guaranteed to any connection. Beyond it
/// further requests are not read. This always holds for unknown peers, since no local transfers to
/// them can be waiting; for known peers it holds once all connections together use [`MAX_BACKLOG`].
const FAIR_BACKLOG: usize = 512 << 10;

/// Bytes of memory for responses and acknowledgements of all connections. Beyond it connections
/// above [`FAIR_BACKLOG`] are not read.
const MAX_BACKLOG: usize = 128 << 20;

/// Sum over all connections of an engine.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    total: usize,
}

impl Backlog {
    /// Adds bytes to the sum of a connection and to the total.
    pub(super) fn add(&mut self, of_conn: &mut usize, bytes: usize) {
        *of_conn += bytes;
        self.total += bytes;
    }

    /// Subtracts bytes from both sums.
    #[inline]
    pub(super) fn subtract(&mut self, of_conn: &mut usize, bytes: usize) {
        *of_conn -= bytes;
        self.total -= bytes;
    }

    /// Subtracts all bytes of a connection.
    pub(super) fn clear(&mut self, of_conn: &mut usize) {
        self.total -= std::mem::take(of_conn);
    }

    /// Returns the sum of all connections.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Returns the bytes still allowed for all connections together.
    pub(super) fn left(&self) -> usize {
        MAX_BACKLOG.saturating_sub(self.total)
    }

    /// Returns true if a connection with this sum is not to be read.
    #[inline]
    pub(super) fn is_exceeded(&self, of_conn: usize, is_unknown: impl FnOnce() -> bool) -> bool {
        of_conn > FAIR_BACKLOG && (self.total > MAX_BACKLOG || is_unknown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_peer_has_more_than_its_share_while_all_have_not_too_much() {
        let (mut backlog, mut one, mut other) = (Backlog::default(), 0, 0);
        backlog.add(&mut one, FAIR_BACKLOG);
        assert!(!backlog.is_exceeded(one, || true));
        backlog.add(&mut one, 1);
        assert!(!backlog.is_exceeded(one, || false) && backlog.is_exceeded(one, || true));
        backlog.add(&mut other, MAX_BACKLOG);
        assert!(backlog.is_exceeded(one, || false) && backlog.left() == 0);
        backlog.subtract(&mut one, 1);
        assert!(!backlog.is_exceeded(one, || true));
        backlog.clear(&mut other);
        assert_eq!((backlog.total(), one, other), (FAIR_BACKLOG, FAIR_BACKLOG, 0));
        assert_eq!(backlog.left(), MAX_BACKLOG - FAIR_BACKLOG);
    }
}
