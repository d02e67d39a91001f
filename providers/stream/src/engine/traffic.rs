//! Counting of messages on connections.
use crate::wire::{ACK, StreamHeader, StreamOp};
use ofi_provider::stats::TrafficCounter;

/// Counts the traffic of a header: messages, and the bytes of messages and memory accesses.
#[inline]
pub(super) fn count_header(passed: &TrafficCounter, header: &StreamHeader) {
    match header.op {
        // The bytes of an announced message come with `Data`.
        StreamOp::TagRts | StreamOp::Cts | StreamOp::ReadReq | StreamOp::Close => {}
        StreamOp::Msg if header.op_data == ACK => {}
        _ => drop(passed.one(usize::try_from(header.len).unwrap_or(0))),
    }
}
