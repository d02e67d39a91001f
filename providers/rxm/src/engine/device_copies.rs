//! Received bytes on their way to memory of devices (FI_HMEM).
//!
//! A packet for such memory is copied to a bounce buffer at its arrival. The copies to the device are
//! polled in every progress iteration, and the receive is complete after the last of them.
use super::common::Common;
use super::pending::RxmUnexpected;
use ofi_provider::buf::RecvBuf;
use ofi_provider::device::BounceBuf;
use ofi_provider::error::{Error, Result};
use ofi_provider::peers::PeerTable;
use ofi_provider::rx_matcher::{Envelope, Recv, RxMatcher};

/// Copies of the bytes of one message.
#[derive(Debug, Default)]
pub(super) struct MessageCopies {
    bounces: Vec<BounceBuf>,
    /// First error of a copy: later bytes are dropped.
    error: Option<Error>,
}

impl MessageCopies {
    /// Starts copies of bytes of the message from byte `at` on; excess bytes are dropped.
    pub(super) fn add(&mut self, common: &Common, to: &RecvBuf, mut at: usize, bytes: &[u8]) {
        let mut left = &bytes[..bytes.len().min(to.len().saturating_sub(at))];
        while !left.is_empty() && self.error.is_none() {
            match copy_part(common, to, at, left) {
                Ok((bounce, len)) => {
                    self.bounces.push(bounce);
                    (at, left) = (at + len, &left[len..]);
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    /// Returns the result of all copies, none if some are in progress.
    fn poll(&mut self) -> Option<Result> {
        let error = &mut self.error;
        self.bounces.retain_mut(|bounce| !bounce.has_ended(error));
        self.bounces.is_empty().then(|| self.error.map_or(Ok(()), Err))
    }
}

/// Starts the copy of some of these bytes. Returns its bounce buffer and the number of bytes.
fn copy_part(common: &Common, to: &RecvBuf, at: usize, bytes: &[u8]) -> Result<(BounceBuf, usize)> {
    let pool = common.bounce.as_ref().ok_or(Error::OPNOTSUPP)?;
    let mut bounce = pool.take_any(bytes.len())?;
    let len = bytes.len().min(bounce.size());
    bounce.bytes_mut()[..len].copy_from_slice(&bytes[..len]);
    to.start_copy(at, len, &mut bounce, 0)?;
    Ok((bounce, len))
}

/// Completely arrived messages of an endpoint with copies in progress.
#[derive(Debug, Default)]
pub(super) struct DeviceCopies(Vec<(Recv, Envelope, MessageCopies)>);

impl DeviceCopies {
    /// Returns true if copies are in progress.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Adds a message: its receive is reported after the end of its copies.
    pub(super) fn add(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        recv: Recv,
        envelope: Envelope,
        copies: MessageCopies,
    ) {
        matcher.senders.start_copies(envelope.peer);
        self.0.push((recv, envelope, copies));
    }

    /// Reports the messages with ended copies.
    pub(super) fn poll(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        peers: &mut PeerTable<()>,
    ) {
        self.0.retain_mut(|(recv, envelope, copies)| {
            match copies.poll() {
                None => return true,
                Some(Ok(())) => matcher.received(recv, envelope),
                Some(Err(error)) => matcher.failed(recv, envelope, error),
            }
            matcher.senders.end_copies(envelope.peer);
            // Its connection may have ended since.
            peers.forget_if_unused(envelope.peer, matcher);
            false
        });
    }

    /// Waits for all copies, and fails their receives.
    pub(super) fn cancel(&mut self, matcher: &mut RxMatcher<RxmUnexpected>) {
        for (recv, envelope, copies) in std::mem::take(&mut self.0) {
            drop(copies);
            matcher.failed(&recv, &envelope, Error::CANCELED);
            matcher.senders.end_copies(envelope.peer);
        }
    }
}
