//! Messages, remote memory access and atomic operations over links that carry bytes in order.
//!
//! [`engine`] does the work, for any kind of link: a provider implements the traits of [`net`] for
//! the links it has; [`local`] lets peers of one host talk through memory whatever these are. [`objects`] are its fabrics, domains and endpoints, [`offer`] is what they can
//! do, and [`settings`] are what a provider lets its users choose. [`wire`] holds the formats, which
//! are those of the original's tcp provider; [`callers`] and [`guests`] keep strangers within bounds.
//! docs/new-provider.md is the way to a provider of one's own.
#![cfg_attr(not(any(test, feature = "sim")), forbid(unsafe_code))]
#![warn(missing_docs)]
pub mod callers;
pub mod contract;
pub mod engine;
pub mod guests;
pub mod local;
pub mod net;
pub mod objects;
pub mod offer;
pub mod secret;
pub mod settings;
pub mod wire;

/// What a provider of the engine's does when the process ends
/// ([`Provider::with_cleanup`](ofi_provider::provider::Provider::with_cleanup)): sends what is held
/// back, as injected messages are complete for the application, which may end without a further
/// call.
pub extern "C" fn cleanup() {
    // A panic must not leave a destructor of the process.
    let _ = std::panic::catch_unwind(engine::flush_all);
}
