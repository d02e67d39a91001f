//! Open shared receive contexts.
use crate::fid_registry::FidRegistry;
use std::any::TypeId;

/// Types of the open shared receive contexts, identifying the provider.
pub(super) static SRX_FIDS: FidRegistry<TypeId> = FidRegistry::new();
