//! The calls of objects that are not built.
use crate::abi::{
    fi_addr_t, fi_cq_err_entry, fi_xpu_attr, fid_av, fid_cntr, fid_cq, fid_domain, fid_xpu_cntr,
    fid_xpu_cq, fid_xpu_ctx,
};
use core::ffi::{c_int, c_void};
use libc::ssize_t;
use ofi::unbuilt;

type Buf = *mut c_void;
type ConstBuf = *const c_void;

unbuilt! {
    pub(crate) fn no_cq_readfrom(*mut fid_cq, Buf, usize, *mut fi_addr_t) -> ssize_t;
    pub(crate) fn no_cq_readerr(*mut fid_cq, *mut fi_cq_err_entry, u64) -> ssize_t;
    pub(crate) fn no_cq_sread(*mut fid_cq, Buf, usize, ConstBuf, c_int) -> ssize_t;
    pub(crate) fn no_cq_sreadfrom(*mut fid_cq, Buf, usize, *mut fi_addr_t, ConstBuf, c_int) -> ssize_t;
    pub(crate) fn no_cq_signal(*mut fid_cq) -> c_int;
    pub(crate) fn no_cq_export_xpu(*mut fid_cq, u64, *mut fid_xpu_cq) -> c_int;

    pub(crate) fn no_cntr_change(*mut fid_cntr, u64) -> c_int;
    pub(crate) fn no_cntr_wait(*mut fid_cntr, u64, c_int) -> c_int;
    pub(crate) fn no_cntr_export_xpu(*mut fid_cntr, u64, *mut fid_xpu_cntr) -> c_int;

    pub(crate) fn no_insert_auth_key(*mut fid_av, ConstBuf, usize, *mut fi_addr_t, u64) -> c_int;
    pub(crate) fn no_lookup_auth_key(*mut fid_av, fi_addr_t, Buf, *mut usize) -> c_int;

    pub(crate) fn no_xpu_ctx(*mut fid_domain, *mut fi_xpu_attr, *mut *mut fid_xpu_ctx, Buf) -> c_int;
}
