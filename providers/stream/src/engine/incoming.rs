//! Message being received: its target buffer and its progress.
use super::arrival::{Arrival, StreamUnexpected, UnexpectedPayload, may_allocate, space_after};
use super::device_recv::{DeviceRecv, DeviceTarget};
use super::transfer::TxCompletion;
use ofi_provider::abi::FI_REMOTE_WRITE;
use ofi_provider::api::RemoteSegments;
use ofi_provider::atomic::Operation;
use ofi_provider::buf::RecvBuf;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::MrTable;
use ofi_provider::rx_matcher::{Recv, RxMatcher};

/// The rest of a message is read straight into its place if it has so many bytes or more.
pub(super) const DIRECT_MIN: usize = 4096;

/// Bytes read beyond the end of a large message: enough for the next header.
pub(super) const AHEAD_OF_LARGE: usize = 256;

/// A peer's atomic operation on our memory.
#[derive(Debug)]
pub(super) struct AtomicRequest {
    /// The operation, or the error to answer if it is not supported or not allowed.
    pub(super) operation: Result<Operation>,
    pub(super) segments: RemoteSegments,
    /// The operands, as far as they have arrived: for each as many bytes as `segments` has.
    pub(super) operands: Box<[u8]>,
}

/// Target of the bytes of a message.
#[derive(Debug)]
pub(super) enum MessageTarget {
    /// To the buffer of a posted receive.
    Posted(Recv),
    /// Data for the unexpected message buffered under this number.
    Buffered(u32),
    /// Into this vector until the message is complete, and only then takes a receive
    /// ([`collects`](ofi_provider::rx_matcher::RxMatcher::collects)).
    Collected(Vec<u8>),
    /// To registered memory, for a peer's write.
    Region(RemoteSegments),
    /// The operands of a peer's atomic operation, executed when all have arrived.
    Atomic(Box<AtomicRequest>),
    /// To the buffer of our own read of a peer's memory, or of our atomic operation.
    Answer(RecvBuf, TxCompletion),
    /// To memory of a device.
    Device(Box<DeviceRecv>),
    /// Nowhere: the bytes are read and dropped.
    Discard,
}

/// Message with bytes still to arrive.
#[derive(Debug)]
pub(super) struct RxRequest {
    pub(super) envelope: Arrival,
    pub(super) target: MessageTarget,
    pub(super) done: usize,
}

/// Result of starting the operation announced by a header.
pub(super) enum HeaderOutcome {
    /// The message has started, with this number of bytes consumed behind the header.
    Taken(usize),
    /// The message blocks its connection until there is a receive or space; nothing behind the
    /// header was consumed.
    Blocked,
    /// The message cannot start for lack of space in a completion queue, or of memory for answers:
    /// the header is to be parsed again later.
    CqBlocked,
    /// The header is to be parsed again when more of the message has come.
    Short,
    /// The connection has ended meanwhile.
    Gone,
}

/// The result of one read.
pub(super) enum Got {
    /// The link had nothing.
    Nothing,
    /// Bytes came, and there may be more.
    More,
    /// All available bytes were read, or the connection has ended or is blocked.
    Last,
}

impl RxRequest {
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.envelope.len - self.done
    }

    /// Returns true if the bytes are the response to a local read or atomic operation.
    pub(super) fn is_answer(&self) -> bool {
        match &self.target {
            MessageTarget::Answer(..) => true,
            MessageTarget::Device(recv) => matches!(recv.target, DeviceTarget::Answer(_)),
            _ => false,
        }
    }

    /// Counts `len` bytes that were read directly to their place.
    pub(super) fn received(&mut self, len: usize) {
        if let MessageTarget::Device(recv) = &mut self.target {
            recv.received(self.done, len);
        }
        self.done += len;
    }

    /// Copies bytes to the message. Returns the number of bytes used by it, 0 if copies of memory of
    /// a device have to end first.
    pub(super) fn feed(
        &mut self,
        matcher: &mut RxMatcher<UnexpectedPayload>,
        regions: &MrTable,
        bytes: &[u8],
    ) -> Result<usize> {
        let mut n = self.left().min(bytes.len());
        match &mut self.target {
            MessageTarget::Posted(recv) => {
                recv.buf.copy_from(self.done, &bytes[..n]);
            }
            MessageTarget::Buffered(message) => {
                let fed: Option<Result> =
                    matcher.change(self.envelope.queue(), *message, |buffered| {
                        let StreamUnexpected::Arriving(to) = &mut buffered.body else {
                            return Ok(());
                        };
                        let mut rest = &bytes[..n];
                        while !rest.is_empty() {
                            let done = self.done + n - rest.len();
                            let dst = space_after(to, done, self.envelope.len)?;
                            let part = dst.len().min(rest.len());
                            dst[..part].copy_from_slice(&rest[..part]);
                            rest = &rest[part..];
                        }
                        Ok(())
                    });
                fed.unwrap_or(Ok(()))?;
            }
            MessageTarget::Collected(to) => {
                buf_for(to, self.done, n)?.copy_from_slice(&bytes[..n]);
            }
            MessageTarget::Region(segments) => {
                regions.open().write(segments, FI_REMOTE_WRITE, self.done, &bytes[..n])?;
            }
            MessageTarget::Atomic(request) => {
                request.operands[self.done..self.done + n].copy_from_slice(&bytes[..n]);
            }
            MessageTarget::Answer(buf, _) => {
                buf.copy_from(self.done, &bytes[..n]);
            }
            MessageTarget::Device(recv) => n = recv.feed(self.done, &bytes[..n]),
            MessageTarget::Discard => {}
        }
        self.done += n;
        Ok(n)
    }
}

/// Returns the space for `wanted` more bytes of a collected message, after the `done` bytes
/// received.
pub(super) fn buf_for(bytes: &mut Vec<u8>, done: usize, wanted: usize) -> Result<&mut [u8]> {
    let end = done + wanted;
    if bytes.len() < end {
        may_allocate()?;
        bytes.try_reserve(end - bytes.len()).map_err(|_| Error::NOMEM)?;
        bytes.resize(end, 0);
    }
    Ok(&mut bytes[done..end])
}
