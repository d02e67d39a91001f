//! The C ABI and nothing else: one module per public header, in C's own names. `build.rs` turns
//! each module into `include/rdma/<module>.h`.
//!
//! Structures carry raw pointers and are exactly the ones passed by a C caller; their safe views
//! are in [`crate::info`] and in `ofi_provider::api`.
#![allow(non_camel_case_types, non_snake_case, reason = "the names are C's")]
#![allow(clippy::type_complexity, reason = "a slot's type is written where the slot is")]

mod calls;
#[macro_use]
mod enums;
pub mod fabric;
pub mod fi_atomic;
pub mod fi_cm;
pub mod fi_collective;
pub mod fi_domain;
pub mod fi_endpoint;
pub mod fi_eq;
pub mod fi_errno;
pub mod fi_ext;
pub mod fi_ext_efa;
pub mod fi_log;
pub mod fi_peer;
pub mod fi_profile;
pub mod fi_prov;
pub mod fi_rma;
pub mod fi_tagged;
pub mod fi_trigger;
pub mod fi_xpu;
pub mod fi_xpu_device;

pub use enums::c_enum;
pub use fabric::*;
pub use fi_atomic::*;
pub use fi_cm::*;
pub use fi_collective::*;
pub use fi_domain::*;
pub use fi_endpoint::*;
pub use fi_eq::*;
pub use fi_errno::*;
pub use fi_ext::*;
pub use fi_ext_efa::*;
pub use fi_log::*;
pub use fi_peer::*;
pub use fi_profile::*;
pub use fi_prov::*;
pub use fi_rma::*;
pub use fi_tagged::*;
pub use fi_trigger::*;
pub use fi_xpu::*;
