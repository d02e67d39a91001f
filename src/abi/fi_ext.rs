//! `rdma/fi_ext.h`: Exporting and importing objects.

use super::c_enum;
use super::fabric::fid;
use super::fi_log::{fi_log_level, fi_log_subsys};
use super::fi_prov::fi_provider;
use core::ffi::{c_char, c_int, c_void};

/// Where efa's own values start.
pub const FI_PROV_SPECIFIC_EFA: c_int = 0xefa0000;
/// Where tcp's own values start.
pub const FI_PROV_SPECIFIC_TCP: c_int = 0x7cb0000;
/// The line's provider is filtered out (`FI_LOG_PROV`).
pub const FI_LOG_PROV_FILTERED: u64 = 1 << 0;

// Endpoint options of efa.
pub const FI_OPT_EFA_RNR_RETRY: c_int = -251265024;
pub const FI_OPT_EFA_EMULATED_READ: c_int = -251265023;
pub const FI_OPT_EFA_EMULATED_WRITE: c_int = -251265022;
pub const FI_OPT_EFA_EMULATED_ATOMICS: c_int = -251265021;
pub const FI_OPT_EFA_USE_DEVICE_RDMA: c_int = -251265020;
pub const FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES: c_int = -251265019;
pub const FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: c_int = -251265018;
pub const FI_OPT_EFA_HOMOGENEOUS_PEERS: c_int = -251265017;
pub const FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV: c_int = -251265016;

// Endpoint options of tcp, shm, and ofi_rxm over tcp, of this library alone.
/// How the endpoint's peers are reached, as a `fi_peer_links`; cannot be set.
pub const FI_OPT_PEER_LINKS: c_int = -130744576;

/// To how many peers an endpoint is connected (`FI_OPT_PEER_LINKS`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct fi_peer_links {
    /// Peers that are talked to through a network, this host's own included.
    pub network: usize,
    /// Peers of this host that are talked to through memory.
    pub memory: usize,
}

/// What `FI_EXPORT_FID` takes (fi_provider(7)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_fid_export {
    pub fid: *mut *mut fid,
    pub flags: u64,
    pub context: *mut c_void,
}

/// What a memory monitor is told to watch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mem_monitor {
    pub size: usize,
    pub start: Option<unsafe extern "C" fn(*mut fid_mem_monitor) -> c_int>,
    pub stop: Option<unsafe extern "C" fn(*mut fid_mem_monitor)>,
    pub subscribe:
        Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize) -> c_int>,
    pub unsubscribe: Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize)>,
    pub valid: Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize) -> bool>,
}

/// What a memory monitor reports.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mem_notify {
    pub size: usize,
    pub notify: Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize)>,
}

/// A memory monitor that a program gives to the library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mem_monitor {
    pub fid: fid,
    pub export_ops: *mut fi_ops_mem_monitor,
    pub import_ops: *mut fi_ops_mem_notify,
}

/// Where the library's log lines go instead of standard error.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_log {
    pub size: usize,
    pub enabled: Option<
        unsafe extern "C" fn(
            *const fi_provider,
            c_enum<fi_log_level>,
            c_enum<fi_log_subsys>,
            u64,
        ) -> c_int,
    >,
    pub ready: Option<
        unsafe extern "C" fn(
            *const fi_provider,
            c_enum<fi_log_level>,
            c_enum<fi_log_subsys>,
            u64,
            *mut u64,
        ) -> c_int,
    >,
    pub log: Option<
        unsafe extern "C" fn(
            *const fi_provider,
            c_enum<fi_log_level>,
            c_enum<fi_log_subsys>,
            *const c_char,
            c_int,
            *const c_char,
        ),
    >,
}

/// A log that a program gives to the library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_logging {
    pub fid: fid,
    pub ops: *mut fi_ops_log,
}
