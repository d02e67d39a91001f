//! Operations being received, and buffered messages.
use ofi_provider::api::RemoteSegments;
use ofi_provider::error::Error;
use ofi_provider::rx_matcher::{Envelope, Recv, RxMatcher, UnexpectedBody};

/// Receiver of a match notice: the local index of the sender, and the message's number there; none
/// if it is not requested.
pub(super) type Deliver = Option<(u32, u32)>;

/// Form of a buffered unexpected message.
#[derive(Debug)]
pub(crate) enum RxdUnexpected {
    /// All of the message is here.
    Whole(Box<[u8]>, Deliver),
    /// The message is arriving on this connection.
    Partial { bytes: Vec<u8>, conn: u32 },
    /// The message's connection ended before the message was here.
    Lost,
}

impl UnexpectedBody for RxdUnexpected {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Whole(bytes, _) => Some(bytes),
            Self::Partial { .. } | Self::Lost => None,
        }
    }

    fn cost(&self, _len: usize) -> usize {
        match self {
            Self::Whole(bytes, _) => bytes.len(),
            Self::Partial { bytes, .. } => bytes.capacity(),
            Self::Lost => 0,
        }
    }

    const ONE_LOCK: bool = true;
}

/// Target of the data of an operation being received.
#[derive(Debug)]
pub(super) enum RxdTarget {
    /// To a receive.
    Recv(Recv, Envelope),
    /// A buffered message in this queue of the matching engine, with this number.
    Buffered(usize, u32, Envelope),
    /// To our memory.
    Memory(RemoteSegments, Option<u64>),
    /// To nothing.
    Nowhere,
}

/// Operation being received.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) target: RxdTarget,
    /// Bytes received, and their total.
    pub(super) got: usize,
    pub(super) total: usize,
    /// Packets still to arrive.
    pub(super) left: u64,
    /// The sender does not wait for its end.
    pub(super) lazy: bool,
    pub(super) deliver: Deliver,
}

impl Arriving {
    /// Drops the operation after the end of its connection.
    pub(super) fn lose(self, matcher: &mut RxMatcher<RxdUnexpected>, error: Error) {
        match self.target {
            RxdTarget::Recv(recv, envelope) => matcher.failed(&recv, &envelope, error),
            RxdTarget::Buffered(queue, number, _) => {
                matcher.lose(queue, number, |body| *body = RxdUnexpected::Lost, error);
            }
            RxdTarget::Memory(..) | RxdTarget::Nowhere => {}
        }
    }
}
