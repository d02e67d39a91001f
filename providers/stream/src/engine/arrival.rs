//! Arriving message: the attributes from its header and its connection, and its buffered form if it
//! is unexpected.
use crate::wire::{COMMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE, StreamHeader};
use ofi_provider::buf::zeroed;
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::rx_matcher::{self, Envelope};
use std::ops::Deref;

/// Checks if memory may be allocated for data from peers. Fails with -FI_ENOMEM while memory is
/// short, or if a simulator requests it.
#[inline(always)]
pub(super) fn may_allocate() -> Result {
    #[cfg(any(test, feature = "sim"))]
    ofi_simulation::here::memory()?;
    heap::ready()
}

/// Maximum bytes allocated for an unexpected message before any of its payload has arrived.
const FIRST_BUF: usize = 1 << 20;

/// Growth factor: the buffer of an unexpected message grows to this multiple of the bytes received.
const MORE_BUF: usize = 4;

/// A message, or a peer's access to our memory, as its header announces it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) envelope: Envelope,
    /// When the sender is to get an acknowledgement.
    pub(super) ack: AckAt,
    /// Number of a message to be acknowledged, among those of its connection.
    pub(super) number: u64,
    /// The acknowledgement is allowed only after the written data is durable (FI_COMMIT_COMPLETE).
    pub(super) commit: bool,
    /// Endpoint addressed by the message, which reports it.
    pub(super) ep: u32,
    /// The connection the message came on, and its serial number, because another connection may
    /// have its index by now.
    pub(super) conn: u32,
    pub(super) serial: u64,
}

impl Deref for Arrival {
    type Target = Envelope;
    #[inline]
    fn deref(&self) -> &Envelope {
        &self.envelope
    }
}

/// When the sender of a transfer gets an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AckAt {
    /// Never, or it has got it already.
    Never,
    /// Once all of the transfer is at this endpoint, in a buffer of the application's or of the
    /// provider's (FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_COMMIT_COMPLETE).
    Delivery,
    /// Once the message has met its receive as well (FI_MATCH_COMPLETE).
    Match,
}

impl AckAt {
    /// Returns the acknowledgement requested by a header.
    #[inline]
    pub(super) fn of(header: &StreamHeader) -> Self {
        if header.flags & MATCH_COMPLETE != 0 {
            Self::Match
        } else if header.flags & (DELIVERY_COMPLETE | COMMIT_COMPLETE) != 0 {
            Self::Delivery
        } else {
            Self::Never
        }
    }

    /// Returns true if an acknowledgement is pending.
    #[inline]
    pub(super) fn is_awaited(self) -> bool {
        self != Self::Never
    }

    /// Returns true if the acknowledgement is due at delivery, and marks it as given.
    #[inline]
    pub(super) fn take_delivery(&mut self) -> bool {
        let due = *self == Self::Delivery;
        if due {
            *self = Self::Never;
        }
        due
    }
}

/// Returns true if the sender of a header waits for an acknowledgement.
pub(super) fn wants_ack(header: &StreamHeader) -> bool {
    AckAt::of(header).is_awaited()
}

/// Received part of an unexpected message.
#[derive(Debug)]
pub(super) enum StreamUnexpected {
    /// All bytes of the message.
    Whole(Box<[u8]>),
    /// Bytes received, in a buffer with space for more.
    Arriving(Box<[u8]>),
    /// Nothing of the message: it blocks its connection, and its bytes wait there.
    Blocking,
    /// Nothing of the message: it waits at its sender, under this number.
    AtSender(u8),
    /// Nothing of the message: its bytes are lost, and its receive fails with this error.
    Lost(Error),
}

impl StreamUnexpected {
    /// Allocates a buffer for a message of `len` bytes with `here` received. Memory is allocated as
    /// data arrives, not by the announced length. Fails with -FI_ENOMEM if there is no memory.
    pub(super) fn arriving(len: usize, here: &[u8]) -> Result<Self> {
        may_allocate()?;
        let mut payload = zeroed(len.min(FIRST_BUF.max(here.len())))?;
        payload[..here.len()].copy_from_slice(here);
        Ok(Self::Arriving(payload))
    }
}

/// Unexpected message in the matching engine: its received part, the handling of the rest, and the
/// pending response to its sender.
#[derive(Debug)]
pub struct UnexpectedPayload {
    pub(super) body: StreamUnexpected,
    /// Acknowledgement from the message's [`Arrival`].
    pub(super) ack: AckAt,
    pub(super) number: u64,
    pub(super) conn: u32,
    pub(super) serial: u64,
}

impl rx_matcher::UnexpectedBody for UnexpectedPayload {
    fn bytes(&self) -> Option<&[u8]> {
        let StreamUnexpected::Whole(bytes) = &self.body else { return None };
        Some(bytes)
    }

    /// A message is counted in full while it arrives.
    fn cost(&self, len: usize) -> usize {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::UncountedBytes) {
            return 0;
        }
        match self.body {
            StreamUnexpected::Whole(_) | StreamUnexpected::Arriving(_) => len,
            StreamUnexpected::Blocking
            | StreamUnexpected::AtSender(_)
            | StreamUnexpected::Lost(_) => 0,
        }
    }

    const ONE_LOCK: bool = true;
}

/// Returns the buffer space after the first `done` bytes of a message of `len`: for all of the
/// rest, or the part allocated by now, always more than zero. Fails with -FI_ENOMEM if there is no
/// memory.
pub(super) fn space_after(payload: &mut Box<[u8]>, done: usize, len: usize) -> Result<&mut [u8]> {
    if done == payload.len() && done < len {
        may_allocate()?;
        let mut more = zeroed(len.min(payload.len() * MORE_BUF).max(done + 1))?;
        more[..done].copy_from_slice(payload);
        *payload = more;
    }
    Ok(&mut payload[done..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_of_a_large_message_grows_with_the_bytes_received() {
        let len = 100 << 20;
        let StreamUnexpected::Arriving(mut payload) =
            StreamUnexpected::arriving(len, &[7; 100]).unwrap()
        else {
            panic!()
        };
        let (mut done, mut grown) = (100, 0);
        while done < len {
            let size = payload.len();
            assert!(size <= (done * MORE_BUF).max(FIRST_BUF));
            let here = space_after(&mut payload, done, len).unwrap().len().min(60_000);
            done += here;
            grown += usize::from(payload.len() != size);
        }
        assert_eq!((payload.len(), &payload[..101]), (len, &[&[7; 100][..], &[0]].concat()[..]));
        assert!(grown <= 4);
    }
}
