//! Outgoing transfers: their completions, their bytes, and their queues.
use super::arrival::may_allocate;
use super::device_send::{DeviceSend, ReadyBytes};
use crate::wire::{
    COMMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE, REMOTE_CQ_DATA, StreamHeader, StreamOp,
};
use ofi_provider::abi::{
    FI_COMMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_REMOTE_CQ_DATA, FI_REMOTE_READ,
    FI_TRANSMIT_COMPLETE,
};
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::{GatherList, RecvBuf, SendBuf, zeroed};
use ofi_provider::cq::{Completion, Context};
use ofi_provider::device::BouncePool;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::{MrTable, Opened};
use ofi_provider::reserved::INTERNAL_OP;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum message size copied after its header, so one simple send takes both; larger messages are
/// gathered from the application's memory.
pub(crate) const COPY_MAX: usize = 1024;

/// Flags of an operation completing only with the peer's acknowledgement.
pub(super) const ACKED: u64 =
    FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

/// Buffer for a header and a message copied after it.
pub(super) type CopiedPacket = [u8; 40 + COPY_MAX];

/// Completion of a transfer, reported when it is sent or acknowledged by the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxCompletion {
    pub(super) context: Context,
    /// The flags of the completion entry: FI_SEND, FI_TAGGED, FI_RMA …
    pub(super) flags: u64,
    /// A successful completion writes an entry (FI_COMPLETION).
    pub(super) report: bool,
    /// The transfer is complete only when the peer acknowledges it.
    pub(super) acked: bool,
    /// The completion only permits reuse of the buffer (FI_INJECT_COMPLETE).
    pub(super) weak: bool,
    /// The message's size in bytes, for the completion and for counters.
    pub(super) len: usize,
    /// The transfer is the provider's own, such as an acknowledgement: it is neither reported
    /// nor counted as the application's.
    pub(super) internal: bool,
    /// The operation was injected: its bytes are a copy, and no entry reports its success.
    pub(super) inject: bool,
    /// Acknowledged or not, the system may still be using the bytes of the message with this
    /// number ([`Zerocopy::sent_for_ack`]).
    pub(super) exposed: u32,
    /// The peer has refused the transfer. It fails with this error once its bytes are released.
    pub(super) refused: Option<Error>,
}

impl TxCompletion {
    pub(super) const INTERNAL: Self = Self {
        context: Context::NULL,
        flags: 0,
        report: false,
        acked: false,
        weak: false,
        len: 0,
        internal: true,
        inject: false,
        exposed: 0,
        refused: None,
    };

    #[inline]
    pub(super) fn entry(&self) -> Completion {
        Completion::of(self.context, self.flags, self.len)
    }
}

/// A message's bytes while it waits to be sent.
#[derive(Debug)]
pub(super) enum SendBody {
    /// No bytes.
    Empty,
    /// In the application's buffer, borrowed until completion.
    Exposed(SendBuf),
    /// In a copy, because the application has its buffer back (FI_INJECT).
    Copied(Box<[u8]>),
    /// In registered memory read by a peer, with the number of bytes.
    Region(RemoteSegments, usize),
    /// In memory of a device: the application's buffer, or regions read by a peer.
    Device(Box<DeviceSend>),
    /// No bytes, in a request: the buffer receives the response.
    Answer(RecvBuf),
}

impl SendBody {
    /// Returns true if the bytes are read for a peer from registered memory.
    fn is_response(&self) -> bool {
        match self {
            Self::Region(..) => true,
            Self::Device(send) => send.is_response(),
            _ => false,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Empty | Self::Answer(_) => 0,
            Self::Exposed(buf) => buf.len(),
            Self::Copied(bytes) => bytes.len(),
            Self::Region(_, len) => *len,
            Self::Device(send) => send.len(),
        }
    }
}

/// Message not sent, or sent only in part.
#[derive(Debug)]
pub(super) struct TxRequest {
    pub(super) header: StreamHeader,
    /// The places in the receiver's memory, and the operands of an atomic
    /// operation, ready for the wire.
    pub(super) segments: Box<[u8]>,
    pub(super) body: SendBody,
    /// Encoded header, written when the message is next to be sent; its length is 0 until then.
    pub(super) wire: [u8; 40],
    pub(super) wire_len: usize,
    /// Bytes sent of header, remote segments and body.
    pub(super) sent: usize,
    /// The transfer waits until all before it are complete (FI_FENCE).
    pub(super) fence: bool,
    pub(super) finish: TxCompletion,
}

impl TxRequest {
    pub(super) fn new(header: StreamHeader, body: SendBody, finish: TxCompletion) -> Self {
        let segments = Box::default();
        Self { header, segments, body, wire: [0; 40], wire_len: 0, sent: 0, fence: false, finish }
    }

    /// Returns the bytes of memory used by a queued response: an entry of a queue growing by
    /// doubling, and a copy of its bytes or their segments. 0 for transfers of the application.
    pub(super) fn backlog(&self) -> usize {
        let alternate = match &self.body {
            SendBody::Copied(bytes) => bytes.len(),
            SendBody::Region(segments, _) => segments.memory(),
            SendBody::Device(send) => send.memory(),
            _ => 0,
        };
        if self.finish.internal { 2 * size_of::<Self>() + alternate } else { 0 }
    }

    /// Returns true if the transfer's bytes are in the memory region with this key.
    pub(super) fn reads(&self, key: u64) -> bool {
        matches!(&self.body, SendBody::Region(segments, _) if segments.has_key(key))
    }

    /// Copies the unsent bytes of a response before their memory region is closed. Returns the
    /// bytes of memory used; fails with -FI_ENOBUFS if they were more than `most`.
    pub(super) fn save(&mut self, opened: &Opened<'_>, most: usize) -> Result<usize> {
        let SendBody::Region(segments, len) = &self.body else { return Ok(0) };
        let len = *len;
        if len > most {
            return Err(Error::NOBUFS);
        }
        may_allocate()?;
        let mut bytes = zeroed(len)?;
        let from = self.sent.saturating_sub(self.wire_len + self.segments.len());
        opened.read(segments, FI_REMOTE_READ, from, &mut bytes[from..])?;
        self.body = SendBody::Copied(bytes);
        Ok(len)
    }

    /// Returns true if the transfer has to reach the peer even if its endpoint closes now: it is
    /// complete for the application, or the peer's operation depends on it.
    pub(super) fn is_due(&self) -> bool {
        let answers = self.finish.internal && !self.body.is_response();
        self.finish.inject || self.finish.flags & INTERNAL_OP != 0 || answers
    }

    /// Returns true if the transfer is fenced (FI_FENCE) and not started.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence && self.wire_len == 0
    }

    /// Returns true if the transfer responds to a peer's read from a region, and is not started.
    pub(super) fn is_waiting_answer(&self) -> bool {
        self.wire_len == 0 && self.body.is_response()
    }

    /// Returns the position of the transfer in the queue of its connection, usually the end. A
    /// transfer without bytes that resumes the peer precedes bytes not started yet, because the
    /// direction from the peer stalls until then. Requests precede responses; acknowledgements and
    /// other notices precede all bytes.
    pub(super) fn position_in(&self, queue: &VecDeque<Self>) -> usize {
        let stays = |one: &Self| match self.body {
            SendBody::Answer(_) if !self.fence => !one.is_waiting_answer(),
            SendBody::Empty if self.is_notice() => one.wire_len > 0 || one.body.len() == 0,
            _ => true,
        };
        queue.iter().rposition(stays).map_or(0, |at| at + 1)
    }

    /// Returns true if the transfer notifies the peer about one of the peer's transfers, named by a
    /// number, or about the oldest one, in order.
    fn is_notice(&self) -> bool {
        self.header.is_ack() || matches!(self.header.op, StreamOp::Cts | StreamOp::WriteRefused)
    }

    /// Converts remote segments from local to network byte order, for a peer with a different byte
    /// order. Nothing of the message is sent yet.
    pub(super) fn convert_segments(&mut self) {
        if cfg!(target_endian = "little") && self.wire_len == 0 {
            self.segments.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        }
    }

    pub(super) fn total(&self) -> usize {
        let body = if self.header.op == StreamOp::TagRts { 0 } else { self.body.len() };
        self.wire_len + self.segments.len() + body
    }

    /// Advances the copies of a body in memory of a device ([`DeviceSend::advance`]); an announcement
    /// of the message needs none.
    pub(super) fn advance_copies(&mut self, pool: Option<&Arc<BouncePool>>) -> Result<ReadyBytes> {
        let sent = self.sent.saturating_sub(self.head_len());
        match (&mut self.body, pool) {
            (SendBody::Device(send), Some(pool)) if self.header.op != StreamOp::TagRts => {
                send.advance(sent, pool)
            }
            _ => Ok(ReadyBytes::All),
        }
    }

    /// Returns the bytes of header and remote segments.
    pub(super) fn head_len(&self) -> usize {
        self.wire_len + self.segments.len()
    }

    /// Returns true if the header and remote segments are sent and the body is next.
    pub(super) fn is_at_body(&self) -> bool {
        self.wire_len > 0 && self.sent >= self.wire_len + self.segments.len()
    }

    /// Appends the unsent bytes of header and remote segments to a gather list.
    pub(super) fn gather_head<'a>(&'a self, list: &mut GatherList<'a>) {
        let header = self.sent.min(self.wire_len);
        list.push_bytes(&self.wire[header..self.wire_len]);
        let segments = (self.sent - header).min(self.segments.len());
        list.push_bytes(&self.segments[segments..]);
    }

    /// Appends the unsent bytes of the message to a gather list. `opened` is the table of memory
    /// regions. It is opened by the first message in need of it, and stays open until the list is
    /// sent.
    pub(super) fn gather<'a, 'r>(
        &'a self,
        list: &mut GatherList<'a>,
        regions: &'r MrTable,
        opened: &'a OnceCell<Opened<'r>>,
    ) -> Result {
        self.gather_head(list);
        let from = self.sent.saturating_sub(self.wire_len + self.segments.len());
        if self.header.op == StreamOp::TagRts {
            // Only the announcement of a message that waits here is sent now.
            return Ok(());
        }
        match &self.body {
            SendBody::Empty | SendBody::Answer(_) => {}
            SendBody::Exposed(buf) => {
                buf.gather(from, list);
            }
            SendBody::Copied(bytes) => {
                list.push_bytes(&bytes[from..]);
            }
            SendBody::Device(send) => send.gather(from, list),
            SendBody::Region(segments, len) => {
                let opened = opened.get_or_init(|| regions.open());
                opened.gather(segments, FI_REMOTE_READ, from, len - from, list)?;
            }
        }
        Ok(())
    }
}

/// When a transfer is sent, relative to others on its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TxSchedule {
    /// At once: nothing waits before the transfer, and it does not follow others closely.
    First,
    /// At once: nothing waits before the transfer, though others left just before.
    Next,
    /// In a batch, with transfers before it or possibly after it.
    Batched,
    /// From the connection's queue, in order.
    InOrder,
}

/// Connection or queue of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// Sent, or queued, on this connection.
    Conn(u32),
    /// Queued for this peer until the next connection attempt.
    Later(u32),
}

/// Returns the header flags of a transfer, and true if it completes only with the peer's
/// acknowledgement.
#[inline]
pub(super) fn level(op_flags: u64) -> (u16, bool) {
    let mut flags = 0;
    if op_flags & FI_REMOTE_CQ_DATA != 0 {
        flags |= REMOTE_CQ_DATA;
    }
    let acked = op_flags & ACKED != 0;
    if acked {
        let commit = op_flags & FI_COMMIT_COMPLETE != 0;
        let matched = op_flags & FI_MATCH_COMPLETE != 0;
        flags |= if commit { COMMIT_COMPLETE } else { DELIVERY_COMPLETE };
        flags |= if matched { MATCH_COMPLETE } else { 0 };
    }
    (flags, acked)
}

/// A message's bytes, copied if the application wants its buffer back at once. `pool`: bounce
/// buffers for memory of devices.
pub(super) fn body_of(
    buf: &SendBuf,
    inject: bool,
    pool: Option<&Arc<BouncePool>>,
) -> Result<SendBody> {
    Ok(match buf.len() {
        0 => SendBody::Empty,
        _ if buf.is_device() => {
            let mut send = DeviceSend::new(buf.clone(), None);
            match pool.filter(|_| inject) {
                Some(pool) => SendBody::Copied(send.copy_rest(0, pool)?),
                None => SendBody::Device(Box::new(send)),
            }
        }
        _ if inject => SendBody::Copied(buf.to_boxed()?),
        _ => SendBody::Exposed(buf.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ByteOrder;
    use ofi_provider::api::RemoteSegment;

    #[test]
    fn segments_written_before_the_answer_get_the_peers_byte_order() {
        let segments = [RemoteSegment { addr: 1, len: 2, key: 3 }; 2];
        let bytes = |order| StreamHeader::write_segments(order, &segments);
        let mut outgoing = TxRequest::new(
            StreamHeader::of(StreamOp::ReadReq),
            SendBody::Empty,
            TxCompletion::INTERNAL,
        );
        outgoing.segments = bytes(ByteOrder::Native);
        outgoing.convert_segments();
        assert_eq!(outgoing.segments, bytes(ByteOrder::Network));
    }

    #[test]
    fn requests_precede_responses_not_yet_started() {
        let transfer = |body, started: usize| {
            let header = StreamHeader::of(StreamOp::ReadReq);
            let wire_len = 16 * started;
            TxRequest { wire_len, ..TxRequest::new(header, body, TxCompletion::INTERNAL) }
        };
        // SAFETY: no bytes are at this address.
        let nowhere = || unsafe { RecvBuf::new(std::ptr::null_mut(), 0) }.unwrap();
        let answer = |started| transfer(SendBody::Region(RemoteSegments::EMPTY, 9000), started);
        let request = || transfer(SendBody::Answer(nowhere()), 0);
        let message = || transfer(SendBody::Empty, 0);
        let fenced = || TxRequest { fence: true, ..request() };
        let position = |new: TxRequest, queue: Vec<TxRequest>| new.position_in(&queue.into());
        assert_eq!(position(request(), vec![]), 0);
        assert_eq!(position(request(), vec![answer(0), answer(0)]), 0);
        assert_eq!(position(request(), vec![answer(1), answer(0), answer(0)]), 1);
        assert_eq!(position(request(), vec![request(), answer(0)]), 1, "requests keep their order");
        assert_eq!(position(request(), vec![answer(0), message(), answer(0)]), 2);
        assert_eq!(position(request(), vec![answer(0), message()]), 2);
        assert_eq!(position(fenced(), vec![answer(0)]), 1);
        assert_eq!(position(message(), vec![answer(0)]), 1);
    }

    #[test]
    fn acknowledgements_go_before_bytes_and_keep_their_order() {
        let transfer = |header, body| TxRequest::new(header, body, TxCompletion::INTERNAL);
        let ack = || transfer(StreamHeader::ack_oldest(), SendBody::Empty);
        let refused = || transfer(StreamHeader::refuse_read(1), SendBody::Empty);
        let bytes = || {
            let body = SendBody::Copied([0; 9].into());
            transfer(StreamHeader::of(StreamOp::Write), body)
        };
        let started = || TxRequest { wire_len: 16, ..bytes() };
        let position = |new: TxRequest, queue: Vec<TxRequest>| new.position_in(&queue.into());
        assert_eq!(position(ack(), vec![]), 0);
        assert_eq!(position(ack(), vec![started(), bytes(), bytes()]), 1);
        assert_eq!(position(ack(), vec![bytes(), ack(), bytes()]), 2);
        assert_eq!(position(refused(), vec![bytes(), bytes()]), 2, "reads are answered in order");
        assert_eq!(position(bytes(), vec![bytes()]), 1);
    }
}
