//! The queues of one endpoint: its own ones, or those of a shared receive context.
use super::match_queues::MatchQueues;
use super::messages::{COLLECTIVE, Envelope, UnexpectedBody, UnexpectedMessage};
use crate::error::Result;
use crate::lock::{Level, Lock};
use crate::multi_recv::Recv;
use crate::stats::EndpointStats;
use std::sync::Arc;

/// Queues shared by endpoints. The lock is taken for single calls of a matching engine only, with
/// no other lock held except an engine's.
pub(super) type SharedQueues<B> = Arc<Lock<MatchQueues<B>>>;

/// Location of an endpoint's queues.
#[derive(Debug)]
pub(super) enum QueueOwnership<B> {
    /// The endpoint has its own queues.
    Own(Box<MatchQueues<B>>),
    /// Queues of a shared receive context, and separate ones for collective operations, created on
    /// first use.
    Shared(SharedQueues<B>, Option<Box<MatchQueues<B>>>),
}

/// The queues of one endpoint.
#[derive(Debug)]
pub struct EndpointQueues<B> {
    location: QueueOwnership<B>,
    /// Shared queues after the endpoint's departure ([`leave`](Self::leave)): receives of theirs
    /// may still be being filled.
    left: Option<SharedQueues<B>>,
    /// True for the matching engine of the shared receive context itself, not of an endpoint using
    /// one.
    hosts: bool,
}

impl<B: UnexpectedBody> EndpointQueues<B> {
    /// Returns own queues. `min_multi_recv`: FI_OPT_MIN_MULTI_RECV, in bytes.
    pub(super) fn new(min_multi_recv: usize) -> Self {
        let own = MatchQueues::boxed(min_multi_recv);
        Self { location: QueueOwnership::Own(own), left: None, hosts: false }
    }

    /// Returns the location of the queues.
    #[inline(always)]
    pub(super) fn location(&self) -> &QueueOwnership<B> {
        &self.location
    }

    /// Returns the location of the queues, to change them.
    #[inline(always)]
    pub(super) fn location_mut(&mut self) -> &mut QueueOwnership<B> {
        &mut self.location
    }

    /// Calls `act` with the queues containing `queue`: the shared ones, or the endpoint's own.
    #[inline]
    pub(super) fn with<R>(
        &mut self,
        queue: usize,
        act: impl FnOnce(&mut MatchQueues<B>) -> R,
    ) -> R {
        match &mut self.location {
            QueueOwnership::Own(queues) => act(queues),
            QueueOwnership::Shared(queues, _) if queue != COLLECTIVE => act(&mut queues.lock()),
            QueueOwnership::Shared(_, own) => act(own.get_or_insert_with(|| MatchQueues::boxed(0))),
        }
    }

    /// Calls `look` with the queues containing `queue`: the shared ones, or the endpoint's own.
    #[inline]
    pub(super) fn look<R>(&self, queue: usize, look: impl FnOnce(&MatchQueues<B>) -> R) -> R {
        match &self.location {
            QueueOwnership::Own(queues) => look(queues),
            QueueOwnership::Shared(queues, _) if queue != COLLECTIVE => look(&queues.lock()),
            QueueOwnership::Shared(_, Some(own)) => look(own),
            QueueOwnership::Shared(_, None) => look(&MatchQueues::boxed(0)),
        }
    }

    /// Returns true if the receives belong to a shared receive context other than itself.
    pub(super) fn is_srx_user(&self) -> bool {
        matches!(self.location, QueueOwnership::Shared(..)) && !self.hosts
    }

    /// The queues of a shared receive context, for endpoints to [`join`](Self::join).
    pub fn expose(&mut self) -> Arc<Lock<MatchQueues<B>>> {
        self.hosts = true;
        if let QueueOwnership::Own(own) = &mut self.location {
            let queues = std::mem::replace(&mut **own, MatchQueues::new(0));
            let level = if B::ONE_LOCK { Level::Serialized } else { Level::Shared };
            self.location = QueueOwnership::Shared(Arc::new(Lock::with_level(queues, level)), None);
        }
        match &self.location {
            QueueOwnership::Shared(queues, _) => queues.clone(),
            QueueOwnership::Own(_) => unreachable!("the queues were shared just now"),
        }
    }

    /// Returns true if the matching engine shares queues, or did: it belongs to a shared receive
    /// context, or to an endpoint using one now or before.
    pub fn is_shared(&self) -> bool {
        self.hosts || self.is_srx_user() || self.left.is_some()
    }

    /// Makes the endpoint, without posted receives yet, take its receives from these queues.
    pub fn join(&mut self, queues: Arc<Lock<MatchQueues<B>>>) {
        self.location = QueueOwnership::Shared(queues, None);
    }

    /// Makes later messages take no receives of shared queues. The messages were removed from them.
    pub(super) fn leave(&mut self) {
        let own = QueueOwnership::Own(MatchQueues::boxed(self.min_multi_recv()));
        if let QueueOwnership::Shared(queues, collective) =
            std::mem::replace(&mut self.location, own)
        {
            self.left = Some(queues);
            if let (Some(mut collective), QueueOwnership::Own(own)) =
                (collective, &mut self.location)
            {
                own.take_over_posted(&mut collective);
            }
        }
    }

    /// Records a filled part of a multi-receive buffer. Returns FI_MULTI_RECV if it is the
    /// last, else 0.
    #[inline]
    pub(super) fn fill_part(&mut self, recv: &Recv) -> u64 {
        match &self.left {
            Some(left) => left.lock().fill_part(recv),
            None => self.with(0, |queues| queues.fill_part(recv)),
        }
    }

    /// Publishes the numbers of posted receives and unexpected messages.
    pub fn show(&self, stats: &mut EndpointStats) {
        self.look(0, |queues| queues.show(stats));
    }

    /// Returns FI_OPT_MIN_MULTI_RECV: a multi-receive buffer with less free space, in bytes, is
    /// released.
    pub fn min_multi_recv(&self) -> usize {
        self.look(0, |queues| queues.min_multi_recv())
    }

    /// Sets FI_OPT_MIN_MULTI_RECV.
    pub fn set_min_multi_recv(&mut self, size: usize) {
        self.with(0, |queues| queues.set_min_multi_recv(size));
    }

    /// Returns the bytes of memory of unexpected messages.
    #[inline]
    pub fn buffered_bytes(&self) -> usize {
        self.look(0, |queues| queues.quota().bytes())
    }

    /// Returns true if a message without any arrived bytes may be recorded, with a capacity of
    /// `most` bytes for messages. The provider limits their number per peer.
    pub fn may_note(&self, most: usize) -> bool {
        self.look(0, |queues| queues.quota().has_space(UnexpectedMessage::<B>::COST, most))
    }

    /// Returns true if a partially arrived message has to be collected completely before it takes a
    /// receive of a shared receive context: complete messages must not wait for its rest, because
    /// it may never arrive. Nothing is collected while there are plenty of receives. Fails with
    /// -FI_EPROTO if the message is longer than any receive before.
    pub fn collects(&mut self, len: usize, most: usize) -> Result<bool> {
        self.with(0, |queues| queues.collects(len, most))
    }

    /// Releases the space of a collected message of `len` bytes, complete or lost.
    pub fn collected(&mut self, len: usize) {
        let cost = UnexpectedMessage::<B>::COST + len;
        self.with(0, |queues| queues.quota_mut().change(cost, 0, false));
    }

    /// Removes the unknown peer disconnected first among the ones with messages to drop: the
    /// endpoint's number, and the peer's number there. It may have a connection or a name by now,
    /// or the number may have been reused.
    pub fn oldest_left(&mut self) -> Option<(u32, u32)> {
        self.with(0, |queues| queues.quota_mut().take_oldest_left())
    }

    /// Reserves space in the tables for another message to buffer. Returns -FI_ENOMEM
    /// if there is no memory.
    pub fn reserve(&mut self, envelope: &Envelope) -> Result {
        self.with(envelope.queue(), |queues| queues.reserve(envelope.queue()))
    }

    /// The description of a waiting message.
    pub fn buffered_envelope(&self, queue: usize, message: u32) -> Option<Envelope> {
        self.look(queue, |queues| queues.message(queue, message).map(|buffered| buffered.envelope))
    }

    /// Returns the result of `look` for the form of a buffered message, or `None` if there is no
    /// such message.
    pub fn buffered_as<R>(
        &self,
        queue: usize,
        message: u32,
        look: impl FnOnce(&B) -> R,
    ) -> Option<R> {
        self.look(queue, |queues| {
            queues.message(queue, message).map(|buffered| look(&buffered.body))
        })
    }

    /// Returns the form of a buffered message in this endpoint's own queues.
    pub fn buffered_body(&self, queue: usize, message: u32) -> Option<&B> {
        let QueueOwnership::Own(queues) = &self.location else { return None };
        queues.message(queue, message).map(|buffered| &buffered.body)
    }

    /// Hides a message from receives and peeks.
    pub fn hide(&mut self, queue: usize, message: u32) {
        self.with(queue, |queues| queues.hide(queue, message));
    }
}
