//! State shared by the links of a net and the net itself.
use crate::mailbox::{Flag, Mailbox};
use crate::wire::LocalOffer;
use ofi_provider::error::Error;
use ofi_provider::shm_channel::ShmChannel;
use ofi_provider::shm_handshake::ShmPeer;

/// Event of the shared-memory upgrade, passed from the net to a link.
#[derive(Debug)]
pub(super) enum UpgradeEvent {
    /// This end has requested the upgrade, and created this pipe.
    Requested(Box<ShmChannel>),
    /// The other end came: the pipe to it.
    Came(Box<ShmChannel>),
    /// The other end answered.
    Answered(ShmPeer),
    /// The other end is not met, for this reason.
    Failed(Error),
}

/// State shared by a link and its net.
#[derive(Debug, Default)]
pub(super) struct LinkShared {
    pub(super) events: Mailbox<UpgradeEvent>,
    /// The poller reported the carrier connection.
    pub(super) carrier: Flag,
    /// Data of the other end may arrive through shared memory: it has access, or is about to get
    /// it.
    pub(super) may_receive: Flag,
    /// True if the last poll of the memory found nothing, or it is not read yet.
    pub(super) drained: Flag,
    /// Bytes leave through memory.
    pub(super) sends: Flag,
}

/// Request of a link to its net.
#[derive(Debug)]
pub(super) enum LinkRequest {
    /// The link with this number has ended.
    Forget(u32),
    /// The link with this number had enough traffic for the upgrade.
    Upgrade(u32, LocalOffer),
}

/// State shared by all links of a net and the net.
#[derive(Debug, Default)]
pub(super) struct NetShared {
    pub(super) requests: Mailbox<LinkRequest>,
    /// A link accepted nothing, so the engine makes a progress iteration
    /// ([`ShmTransport::is_due`](crate::transport::ShmTransport::is_due)).
    pub(super) is_due: Flag,
}
