//! Messages, remote memory access and atomic operations over links carrying bytes in order.
//!
//! [`engine`] implements the protocol for any kind of link. A provider implements the traits of
//! [`transport`] for its links; [`psk_transport`] authenticates the peers of any of them, and
//! [`shm_upgrade`] lets peers of one host use shared memory. [`objects`] are its fabrics, domains
//! and endpoints, [`attrs`] lists their capabilities, and [`settings`] the user's parameters.
//! [`wire`] holds the formats, equal to those of upstream libfabric's tcp provider.
//! [`paths`] lists paths by size. [`accept_queue`] and [`conn_quota`] limit unknown peers. See
//! docs/new-provider.md for writing another provider.
#![cfg_attr(not(any(test, feature = "sim")), forbid(unsafe_code))]
#![warn(missing_docs)]
pub mod accept_queue;
pub mod attrs;
pub mod conn_quota;
pub mod engine;
mod forward;
mod link_tokens;
mod mailbox;
pub mod multi_rail;
pub mod objects;
pub mod paths;
pub mod psk_transport;
pub mod repeated_requests;
pub mod secret;
pub mod settings;
pub mod shm_upgrade;
pub mod transport;
pub mod transport_conformance;
pub mod unconfirmed_answer;
pub mod wire;

/// Cleanup function of the engine's providers at process exit
/// ([`Provider::with_cleanup`](ofi_provider::provider::Provider::with_cleanup)). Sends batched
/// data: injected messages are complete for the application, and it may exit without a further
/// call.
pub extern "C" fn cleanup() {
    // A panic must not leave a destructor of the process.
    let _ = std::panic::catch_unwind(engine::flush_all);
}
