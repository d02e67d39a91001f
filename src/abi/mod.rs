//! The C ABI and nothing else: one file per public header, in C's own names. `build.rs` turns each
//! file into `include/rdma/<file>.h`.
//!
//! C has one namespace for the types of all headers, and its structures point to each other across
//! headers (a `fid_ep` to the tables of `fi_rma.h`, with calls on a `fid_ep`). So the files
//! are parts of this one module.
//!
//! Structures carry raw pointers and are exactly the ones passed by a C caller; their safe views
//! are in [`crate::info`] and in `ofi_provider::api`.
#![allow(non_camel_case_types, non_snake_case, reason = "the names are C's")]
#![allow(clippy::type_complexity, reason = "a slot's type is written where the slot is")]

mod calls;
#[macro_use]
mod enums;

pub use enums::c_enum;

use core::ffi::{CStr, c_char, c_int, c_void};
use libc::{iovec, pollfd, pthread_cond_t, pthread_mutex_t, ssize_t};

include!("fabric.rs");
include!("fabric_types.rs");
include!("fi_atomic.rs");
include!("fi_cm.rs");
include!("fi_collective.rs");
include!("fi_domain.rs");
include!("fi_endpoint.rs");
include!("fi_eq.rs");
include!("fi_errno.rs");
include!("fi_ext.rs");
include!("fi_ext_efa.rs");
include!("fi_log.rs");
include!("fi_peer.rs");
include!("fi_profile.rs");
include!("fi_prov.rs");
include!("fi_rma.rs");
include!("fi_tagged.rs");
include!("fi_trigger.rs");
include!("fi_xpu.rs");
include!("fi_xpu_device.rs");

c_enums! {
    fi_av_type, fi_bus_type, fi_cntr_events, fi_collective_op,
    fi_cq_format, fi_cq_wait_cond, fi_datatype, fi_ep_type,
    fi_hmem_iface, fi_link_state, fi_log_level, fi_log_subsys,
    fi_op, fi_op_type, fi_param_type, fi_profile_type,
    fi_progress, fi_resource_mgmt, fi_threading, fi_trigger_event,
    fi_type, fi_wait_obj, fi_xpu_provider,
}
