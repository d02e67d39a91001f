//! Wire formats of the engine: connection messages and transfer headers.
//!
//! The formats are those of upstream libfabric's tcp provider (protocol version 3), byte for byte;
//! the tests hold golden bytes. Some features are missing in this protocol. They are used only with
//! peers declaring them in their connection message: atomic operations ([`PeerFeatures::atomics`]),
//! numbered acknowledgements ([`PeerFeatures::acks`]), and offers of the shared-memory upgrade
//! ([`PeerFeatures::local`]).
//!
//! The module has no access to links, and trusts no input: an inconsistent header is [`Malformed`],
//! and its connection is closed.
mod cm_message;
mod header;

pub use cm_message::*;
pub use header::*;
pub use ofi_provider::malformed::{Malformed, Parsed};

#[cfg(test)]
mod tests;
