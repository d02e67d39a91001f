//! Connection request at a passive endpoint.
use crate::accept_queue::PendingConn;
use crate::conn_quota::{ReservedDescriptor, UnknownPeerConn};
use crate::repeated_requests::{NumberedRequests, RequestLink};
use crate::transport::ByteLink;
use crate::wire::{ByteOrder, CmMessage, CmType, PeerFeatures};
use ofi_provider::error::Result;
use std::sync::{Arc, Weak};

/// Connection request at a passive endpoint, until the application responds.
#[derive(Debug)]
pub struct StreamRequest<L> {
    link: Arc<RequestLink<L>>,
    /// The caller repeats the request after the loss of its socket.
    is_repeated: bool,
    order: ByteOrder,
    /// Protocol extensions of the connecting peer beyond upstream libfabric.
    knows: PeerFeatures,
    /// Counts the connection among those of unknown peers until the application answers.
    _unknown_conn: UnknownPeerConn,
    /// Counts one of the last descriptors of the process.
    _reserved: Option<ReservedDescriptor>,
    /// Counts the request among the unanswered requests of its passive endpoint. The endpoint holds
    /// a weak reference.
    _pending: Arc<()>,
}

impl<L: ByteLink> StreamRequest<L> {
    /// Creates the new request of a caller, among the numbered ones of a passive endpoint. `pending` is
    /// dropped with it, when the application answers.
    pub fn admit(
        numbered: &mut NumberedRequests<L>,
        caller: PendingConn<L>,
        message: &CmMessage,
        pending: Arc<()>,
    ) -> Self {
        let from = caller.from.clone();
        let request = Self::new(caller, message, pending);
        numbered.add(message, &from, &request.link);
        request
    }

    fn new(caller: PendingConn<L>, message: &CmMessage, pending: Arc<()>) -> Self {
        let PendingConn { link, unknown_conn, reserved, .. } = caller;
        Self {
            link: Arc::new(RequestLink::new(link)),
            is_repeated: message.number.is_some(),
            order: message.order,
            knows: message.knows,
            _unknown_conn: unknown_conn,
            _reserved: reserved,
            _pending: pending,
        }
    }

    /// The connection.
    pub fn link(&self) -> &RequestLink<L> {
        &self.link
    }

    /// Returns true if the caller repeats the request after the loss of its socket.
    pub(super) fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Byte order and features of the caller.
    pub(super) fn caller(&self) -> (ByteOrder, PeerFeatures) {
        (self.order, self.knows)
    }
}

impl<L: ByteLink> ofi_provider::api::Reject for StreamRequest<L> {
    fn reject(self, param: &[u8]) -> Result {
        let reason = CmMessage::encode(CmType::Nack, PeerFeatures::default(), param);
        self.link.answer(|link| link.send(&reason).map(|_| Weak::new()))
    }
}

impl<L> Drop for StreamRequest<L> {
    fn drop(&mut self) {
        self.link.close();
    }
}
