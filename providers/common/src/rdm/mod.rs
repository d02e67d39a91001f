//! Common parts of reliable datagram endpoints, independent of the transport.
#[allow(unsafe_code)]
pub mod buffered;
pub mod calls;
pub mod closing;
pub mod contexts;
pub mod endpoint;
mod imported;
pub mod inbox;
pub mod multi_recv;
pub mod names;
pub mod peers;
pub mod receives;
