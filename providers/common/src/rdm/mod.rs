//! Common parts of reliable datagram endpoints, independent of the transport.
pub mod address_index;
#[allow(unsafe_code)]
pub mod buffered;
pub mod closing;
pub mod conn_arbiter;
pub mod conn_limit;
pub mod contexts;
pub mod endpoint;
mod endpoint_queues;
mod hmem_options;
mod match_queues;
mod messages;
pub mod multi_recv;
mod packet_rx;
mod peer_srx_rx;
pub mod peers;
pub mod receives;
mod recv_rules;
pub mod rx_matcher;
mod senders;
mod unexpected_quota;
