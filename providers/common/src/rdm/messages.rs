//! Messages of a matching engine, and their matches with receives.
use crate::abi::{FI_MSG, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED, fi_addr_t};
use crate::cq::{Completion, Context};
use crate::matching::{Pattern, Unexpected};
use crate::multi_recv::Recv;

/// Pairs of queues in a matching engine: untagged, tagged, and of collective operations.
pub const QUEUES: usize = 3;

/// Index of the queues of tagged messages and receives, the only ones with peeks and claims
/// (fi_tagged(3)); the untagged ones have 0.
pub(super) const TAGGED: usize = 1;

/// Index of the queues of collective operations.
pub(super) const COLLECTIVE: usize = 2;

/// Envelope of a message, as reported by completions.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// True for a tagged message.
    pub tagged: bool,
    /// Tag of a tagged message received as an untagged one.
    pub msg_tag: Option<u64>,
    /// True if the message belongs to a collective operation, or is another internal message of the
    /// library.
    pub collective: bool,
    /// The message's tag; 0 for an untagged one.
    pub tag: u64,
    /// Bytes of the message, arrived or not.
    pub len: usize,
    /// The message's remote CQ data, if it has any.
    pub cq_data: Option<u64>,
    /// Sender: a number chosen by the provider, named by `RxMatcher::set_name`; [`NONE`] for the one
    /// peer of a connected endpoint.
    pub peer: u32,
}

impl Envelope {
    /// Returns the index of the message's pair of queues: 0 untagged, 1 tagged, 2 collective
    /// operations.
    #[inline]
    pub fn queue(&self) -> usize {
        usize::from(self.tagged) + usize::from(self.collective)
    }

    /// Returns the completion of a receive with this message, from `src`.
    pub(super) fn completion(
        &self,
        context: Context,
        buf: usize,
        extra: u64,
        src: fi_addr_t,
    ) -> Completion {
        let tagged = self.tagged || self.msg_tag.is_some();
        let mut flags = FI_RECV | if tagged { FI_TAGGED } else { FI_MSG } | extra;
        if self.cq_data.is_some() {
            flags |= FI_REMOTE_CQ_DATA;
        }
        Completion {
            context,
            flags,
            len: self.len,
            buf,
            data: self.cq_data.unwrap_or(0),
            tag: self.msg_tag.unwrap_or(self.tag),
            src,
        }
    }
}

/// Form of an unexpected message.
pub trait UnexpectedBody {
    /// The bytes of the message, if all of them are here.
    fn bytes(&self) -> Option<&[u8]>;
    /// Returns the memory of the unexpected message with `len` bytes.
    fn cost(&self, len: usize) -> usize;
    /// True if all uses of matching engines sharing queues are under the one lock of an engine.
    /// Otherwise the fast paths are not used with shared queues.
    const ONE_LOCK: bool;
}

/// Unexpected message.
#[derive(Debug)]
pub struct UnexpectedMessage<B> {
    /// The message's description for completions.
    pub envelope: Envelope,
    /// Form of the message.
    pub body: B,
    /// The number of the endpoint the message came to (`RxMatcher::set_owner`).
    pub(super) owner: u32,
    /// fi_addr_t of the sender at this endpoint.
    pub(super) source: fi_addr_t,
    /// Neighbours in the list of the queue's messages of the same sender to the same endpoint.
    pub(super) prev: u32,
    pub(super) next: u32,
}

impl<B: UnexpectedBody> UnexpectedMessage<B> {
    /// Bytes of memory of a buffered message in addition to its own: its entry in tables growing by
    /// doubling, and the allocator's overhead.
    pub(super) const COST: usize = Unexpected::<Self>::COST + 32;

    /// Returns the bytes of memory of the message.
    pub(super) fn cost(&self) -> usize {
        self.body.cost(self.envelope.len) + Self::COST
    }
}

/// A waiting message has met its receive, or is to be discarded.
#[derive(Debug)]
pub struct MatchedMessage {
    /// The queue the message is in ([`Envelope::queue`]).
    pub queue: usize,
    /// The message's number.
    pub message: u32,
    /// The receive it met; none when the message is to be discarded.
    pub recv: Option<Recv>,
    /// Endpoint of the message; its matching engine reports it.
    pub owner: u32,
    /// Match criteria of a multi-receive buffer for further messages: after the delivery of this
    /// one, `RxMatcher::fill` is called.
    pub fills: Option<Pattern>,
}

/// Message peeked at, claimed or discarded, for `RxMatcher::report_seen`.
#[derive(Debug)]
pub struct PeekedMessage {
    /// Endpoint of the message; its matching engine reports it.
    pub owner: u32,
    pub(super) envelope: Envelope,
    pub(super) context: Context,
    pub(super) buf: usize,
    /// Flags of the call: for writing an entry, and for counting the message as received.
    pub(super) flags: u64,
    pub(super) counts: bool,
}

/// Result of posting a receive. The owner's matching engine has to report the seen message first;
/// then the match has to be processed before anything else.
#[derive(Debug, Default)]
pub struct PostOutcome {
    /// Message peeked at, claimed or discarded.
    pub seen: Option<PeekedMessage>,
    /// Message matched by the receive, or to be discarded.
    pub matched: Option<MatchedMessage>,
}

impl PeekedMessage {
    pub(super) fn of<B>(
        buffered: &UnexpectedMessage<B>,
        context: Context,
        flags: u64,
        counts: bool,
    ) -> Self {
        Self { owner: buffered.owner, envelope: buffered.envelope, context, buf: 0, flags, counts }
    }
}
