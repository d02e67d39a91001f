//! Peers of one host: byte streams through memory mapped by both processes.
pub(crate) mod barriers;
#[allow(unsafe_code)]
pub mod cma;
pub mod doorbell;
pub(crate) mod ring_layout;
#[allow(unsafe_code)]
pub(crate) mod segment;
#[allow(unsafe_code)]
pub mod shm_channel;
#[allow(unsafe_code)]
pub mod shm_handshake;
