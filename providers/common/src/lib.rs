//! The parts that providers are built from.
pub use ofi::{abi, boundary, error, fid, info};
