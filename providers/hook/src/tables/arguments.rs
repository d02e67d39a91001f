//! Arguments of calls as hooks see them.
use crate::abi::*;
use crate::call::{Args, TransferArgs};
use core::ffi::c_void;
use core::ptr;
use libc::iovec;

/// # Safety
/// `attr` is null or valid.
pub(super) unsafe fn cq_format(attr: *const fi_cq_attr) -> u32 {
    // SAFETY: by this function's contract; only what every version has.
    let format = if attr.is_null() { 0 } else { unsafe { (*attr).format.raw() } };
    // An unspecified format means entries of contexts (fi_cq(3)).
    format.max(fi_cq_format::FI_CQ_FORMAT_CONTEXT as u32)
}

/// One piece of memory as a vector has it.
pub(super) fn piece(buf: *const c_void, len: usize) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: len }
}

/// The arguments of `fi_mr_reg` and `fi_mr_regv` as attributes.
pub(super) fn mr_attr(
    mr_iov: *const iovec,
    iov_count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    context: *mut c_void,
) -> fi_mr_attr {
    fi_mr_attr {
        mr_iov,
        iov_count,
        access,
        offset,
        requested_key,
        context,
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
        iface: c_enum::default(),
        device: fi_mr_attr__device { reserved: 0 },
        hmem_data: ptr::null_mut(),
        page_size: 0,
        base_mr: ptr::null(),
        sub_mr_cnt: 0,
    }
}

/// # Safety
/// `msg` is null or valid.
pub(super) unsafe fn message(msg: *const fi_msg, flags: u64) -> Args {
    // SAFETY: by this function's contract.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Args::None };
    Args::Transfer(TransferArgs {
        data: if flags & FI_REMOTE_CQ_DATA != 0 { msg.data } else { 0 },
        flags,
        context: msg.context,
        ..TransferArgs::vector(msg.msg_iov, msg.iov_count, msg.addr)
    })
}

/// # Safety
/// `msg` is null or valid.
pub(super) unsafe fn tagged_message(msg: *const fi_msg_tagged, flags: u64, receive: bool) -> Args {
    // SAFETY: by this function's contract.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Args::None };
    Args::Transfer(TransferArgs {
        data: if !receive && flags & FI_REMOTE_CQ_DATA != 0 { msg.data } else { 0 },
        flags,
        tag: msg.tag,
        ignore: if receive { msg.ignore } else { 0 },
        context: msg.context,
        ..TransferArgs::vector(msg.msg_iov, msg.iov_count, msg.addr)
    })
}

/// # Safety
/// `msg` is null or valid.
pub(super) unsafe fn remote_message(msg: *const fi_msg_rma, flags: u64) -> Args {
    // SAFETY: by this function's contract; a vector has its elements or is null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return Args::None };
        let remote = msg.rma_iov.as_ref().filter(|_| msg.rma_iov_count > 0);
        Args::Transfer(TransferArgs {
            data: if flags & FI_REMOTE_CQ_DATA != 0 { msg.data } else { 0 },
            flags,
            raddr: remote.map_or(0, |remote| remote.addr),
            key: remote.map_or(0, |remote| remote.key),
            context: msg.context,
            ..TransferArgs::vector(msg.msg_iov, msg.iov_count, msg.addr)
        })
    }
}

/// # Safety
/// `msg` is null or valid.
pub(super) unsafe fn atomic_message(msg: *const fi_msg_atomic, flags: u64) -> Args {
    // SAFETY: by this function's contract; a vector has its elements or is null.
    unsafe {
        let Some(msg) = msg.as_ref() else { return Args::None };
        let remote = msg.rma_iov.as_ref().filter(|_| msg.rma_iov_count > 0);
        Args::Transfer(TransferArgs {
            data: if flags & FI_REMOTE_CQ_DATA != 0 { msg.data } else { 0 },
            flags,
            raddr: remote.map_or(0, |remote| remote.addr),
            key: remote.map_or(0, |remote| remote.key),
            context: msg.context,
            ..TransferArgs::elements(msg.msg_iov, msg.iov_count, msg.datatype, msg.addr)
        })
    }
}
