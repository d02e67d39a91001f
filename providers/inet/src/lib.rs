//! Common parts of providers over TCP and UDP sockets under any name: `tcp`, `udp`, `sockets` and
//! `net` are plug-ins of a few lines each.
//!
//! A plug-in supplies its attributes ([`InetPlugIn`]) and its endpoints: connections, and reliable
//! datagrams over them ([`tcp`]), or datagrams ([`udp`]).
#![cfg_attr(not(test), deny(unsafe_code))]
mod plug_in;
pub mod tcp;
pub mod udp;

pub use ofi_stream::cleanup;
pub use plug_in::{InetPlugIn, TCP_PARAMETERS};
