//! Interface adaptors.
use crate::fabric::*;
use crate::layout::*;
use std::sync::Arc;

/// An interface adaptor.
pub(crate) struct DatIa {
    pub(crate) provider: usize,
    pub(crate) thread_safe: bool,
    pub(crate) name: String,
    pub(crate) info: FabricInfo,
    pub(crate) domain: Arc<FabricDomain>,
    pub(crate) address: Box<SocketAddress>,
    pub(crate) limits: FabricLimits,
    /// True for a device: its connections end with the first failure.
    pub(crate) is_device: bool,
    pub(crate) private_max: usize,
    /// Endpoints with connections in progress.
    pub(crate) waiting: Vec<Handle>,
}
