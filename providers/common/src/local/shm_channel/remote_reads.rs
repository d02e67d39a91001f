//! State of reading the peer's exposed buffers.
use crate::ring_layout::CopyRequest;
use core::cell::Cell;

/// Partially read exposed buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialGet {
    pub(super) len: u64,
    pub(super) done: u64,
}

/// State of reading the peer's exposed buffers, and of requests for copies of parts unreadable for
/// this end.
#[derive(Debug, Default)]
pub(super) struct RemoteReads {
    /// The next exposed buffer, after a partial read.
    partial: Cell<Option<PartialGet>>,
    /// The system does not let this end read the other's memory any more.
    unreadable: Cell<bool>,
    /// Pending request for a copy of a part of the exposed buffer, the last one, and the last one
    /// of the peer.
    request: Cell<Option<CopyRequest>>,
    last_request: Cell<Option<CopyRequest>>,
    answered: Cell<Option<CopyRequest>>,
}

impl RemoteReads {
    /// Returns the buffer being read, or the start of one with the length given by `len`.
    pub(super) fn partial_or(&self, len: impl FnOnce() -> u64) -> PartialGet {
        self.partial.get().unwrap_or_else(|| PartialGet { len: len(), done: 0 })
    }

    /// Returns true if a part of the next buffer was read.
    #[inline(always)]
    pub(super) fn has_partial(&self) -> bool {
        self.partial.get().is_some()
    }

    /// Records the read parts of a buffer. Returns true if the buffer is complete.
    pub(super) fn read_up_to(&self, partial: PartialGet) -> bool {
        let is_complete = partial.done >= partial.len;
        self.partial.set((!is_complete).then_some(partial));
        is_complete
    }

    /// Ends reads of the peer's memory.
    pub(super) fn stop_reading(&self) {
        self.unreadable.set(true);
    }

    /// Returns true if reads of the peer's memory have ended.
    pub(super) fn is_stopped(&self) -> bool {
        self.unreadable.get()
    }

    /// Returns the pending request for a copy.
    #[inline]
    pub(super) fn pending_request(&self) -> Option<CopyRequest> {
        self.request.get()
    }

    /// Records a request, made by `make` after the last one.
    pub(super) fn make_request(
        &self,
        make: impl FnOnce(Option<CopyRequest>) -> CopyRequest,
    ) -> CopyRequest {
        let request = make(self.last_request.get());
        self.request.set(Some(request));
        self.last_request.set(Some(request));
        request
    }

    /// Records the use of a requested copy.
    pub(super) fn end_request(&self) {
        self.request.set(None);
    }

    /// Returns the last request of the peer.
    pub(super) fn last_of_peer(&self) -> Option<CopyRequest> {
        self.answered.get()
    }

    /// Records a request of the peer.
    pub(super) fn answer(&self, request: CopyRequest) {
        self.answered.set(Some(request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partially_read_buffer_is_remembered_until_it_is_complete() {
        let reads = RemoteReads::default();
        let partial = reads.partial_or(|| 10);
        assert!(!reads.read_up_to(PartialGet { done: 4, ..partial }) && reads.has_partial());
        let partial = reads.partial_or(|| unreachable!("its length is known"));
        assert_eq!((partial.len, partial.done), (10, 4));
        assert!(reads.read_up_to(PartialGet { done: 10, ..partial }) && !reads.has_partial());
    }
}
