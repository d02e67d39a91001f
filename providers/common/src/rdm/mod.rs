//! Common parts of reliable datagram endpoints, independent of the transport.
pub mod address_index;
#[allow(unsafe_code)]
pub mod buffered;
pub mod closing;
pub mod conn_arbiter;
pub mod contexts;
pub mod endpoint;
pub mod multi_recv;
mod peer_srx_rx;
pub mod peers;
pub mod receives;
pub mod rx_matcher;
mod unexpected_quota;
