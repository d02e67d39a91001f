//! Peers of one host: byte streams through memory mapped by both processes.
pub(crate) mod barriers;
#[allow(unsafe_code)]
pub mod cma;
pub mod door;
#[allow(unsafe_code)]
pub mod meet;
#[allow(unsafe_code)]
pub mod ring;
#[allow(unsafe_code)]
pub(crate) mod segment;
pub(crate) mod words;
