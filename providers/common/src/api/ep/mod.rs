//! `struct fid_ep` for any [`Endpoint`](super::traits::Endpoint).
mod bind;
pub(super) mod control;
mod default_flags;
pub(super) mod fid;
pub(super) mod flags;
pub(super) mod message;
mod open;
pub(super) mod shared;
pub(super) mod transfer;

pub use fid::EpFid;
