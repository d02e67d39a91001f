//! Early data: messages sent behind a connection request, before its response.
use super::transfer::{SendBody, TxRequest};
use crate::wire::StreamOp;
use ofi_provider::deferred::is_group_notice;

/// Early data of a connection.
#[derive(Debug, Default)]
pub(super) struct EarlyData {
    /// The request permits early data.
    is_announced: bool,
    /// Bytes sent.
    sent: usize,
}

impl EarlyData {
    /// Records a request announcing early data.
    pub(super) fn announce(&mut self) {
        self.is_announced = true;
    }

    /// Returns true if the request has announced early data.
    pub(super) fn is_announced(&self) -> bool {
        self.is_announced
    }

    /// Returns true if `len` more bytes may be sent, of `most` in all.
    pub(super) fn has_space(&self, len: usize, most: usize) -> bool {
        self.is_announced && self.sent.checked_add(len).is_some_and(|sum| sum <= most)
    }

    /// Returns true if bytes are sent, and the response is not received.
    pub(super) fn has_sent(&self) -> bool {
        self.sent > 0
    }

    pub(super) fn count(&mut self, sent: usize) {
        self.sent += sent;
    }

    /// Ends the early data. Returns the bytes sent, or `None` if there was no request with early data.
    pub(super) fn end(&mut self) -> Option<usize> {
        let Self { is_announced, sent } = std::mem::take(self);
        is_announced.then_some(sent)
    }
}

impl TxRequest {
    /// Returns true if the transfer has the same form for every peer, and is complete once its bytes
    /// are received.
    pub(super) fn can_be_early(&self) -> bool {
        let is_message = matches!(self.header.op, StreamOp::Msg | StreamOp::Tag);
        let is_on_host =
            matches!(self.body, SendBody::Empty | SendBody::Exposed(_) | SendBody::Copied(_));
        let is_notice = is_group_notice(self.finish.flags, self.header.tag);
        is_message && is_on_host && !is_notice && !self.finish.acked && !self.fence
    }

    /// Undoes the sending of the transfer's bytes.
    pub(super) fn restart(&mut self) {
        (self.wire_len, self.sent) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_data_is_bounded_and_needs_an_announcement() {
        let mut early = EarlyData::default();
        assert!(!early.has_space(1, 10));
        early.announce();
        assert!(early.has_space(10, 10) && !early.has_space(11, 10));
        early.count(4);
        assert!(early.has_space(6, 10) && !early.has_space(7, 10));
        assert!(!early.has_space(usize::MAX, usize::MAX));
        assert_eq!(early.end(), Some(4));
        assert!(!early.has_space(1, 10) && !early.has_sent());
        assert_eq!(early.end(), None);
    }
}
