//! What providers over TCP and UDP sockets are made of, whatever their names: `tcp`, `udp`, `sockets`
//! and `net` are plug-ins of a few lines each.
//!
//! A plug-in says what it is ([`InetPlugIn`]) and which endpoints it has: connections, and reliable
//! datagrams over them ([`tcp`]), or datagrams ([`udp`]).
#![cfg_attr(not(test), deny(unsafe_code))]
mod plug_in;
pub mod tcp;
pub mod udp;

pub use ofi_stream::cleanup;
pub use plug_in::{InetPlugIn, TCP_PARAMETERS};
