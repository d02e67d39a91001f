//! The udp provider: FI_EP_DGRAM endpoints over UDP sockets.
//!
//! One datagram is one message, without a header. It is also the smallest
//! complete provider, to start a new one from: [`info`] says what it offers,
//! `domain` has fabric and domain, `ep` the endpoints,
//! `socket` their sockets, `group` their multicast groups.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod domain;
mod ep;
mod group;
pub mod info;
mod socket;
