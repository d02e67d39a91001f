//! Posting of receives and sends from internal buffers to a core provider.
use super::call::{call, check};
use super::in_flight::CoreOpKind;
use super::memory::CoreBuf;
use super::queue::CoreCq;
use crate::abi::{FI_ADDR_UNSPEC, fi_addr_t, fid_ep};
use crate::error::{Error, Result};
use core::ffi::c_void;
use std::ptr::NonNull;

/// fi_recv(3).
///
/// # Safety
/// `ep` is an open endpoint or context; the memory stays until the completion.
#[inline(always)]
pub(super) unsafe fn recv(
    ep: NonNull<fid_ep>,
    base: *mut u8,
    len: usize,
    desc: *mut c_void,
    context: usize,
) -> Result {
    // SAFETY: by this function's contract.
    unsafe {
        let recv = call!(ep.as_ref().msg, recv);
        let context = context as *mut c_void;
        check(recv(ep.as_ptr(), base.cast(), len, desc, FI_ADDR_UNSPEC, context))
    }
}

/// Posts a receive.
///
/// # Safety
/// `ep` is an open endpoint or context reporting to `cq`.
pub(super) unsafe fn post(
    ep: NonNull<fid_ep>,
    cq: &CoreCq,
    owner: u32,
    buf: CoreBuf,
    token: u64,
    kind: CoreOpKind,
) -> core::result::Result<(), (Error, CoreBuf)> {
    let (base, len, desc) = (buf.base().as_ptr(), buf.len(), buf.desc());
    let context = cq.depart(buf, token, owner, kind)?;
    // SAFETY: by this function's contract; the memory stays with the queue until the
    // completion, or until the endpoint is closed.
    let posted = unsafe { recv(ep, base, len, desc, context) };
    posted.map_err(|error| (error, cq.give_back(context).unwrap_or_else(CoreBuf::none)))
}

/// Posts the first receive, without which nothing can arrive.
///
/// # Safety
/// `ep` is an open endpoint reporting to `cq`.
pub(super) unsafe fn post_first(
    ep: NonNull<fid_ep>,
    cq: &CoreCq,
    owner: u32,
    buf: CoreBuf,
    token: u64,
) -> core::result::Result<(), (Error, CoreBuf)> {
    // SAFETY: by this function's contract.
    unsafe { post(ep, cq, owner, buf, token, CoreOpKind::FirstRecv) }
}

/// Sends the first `len` bytes of `buf`.
///
/// # Safety
/// `ep` is an open endpoint reporting to `cq`.
pub(super) unsafe fn start_send(
    ep: NonNull<fid_ep>,
    cq: &CoreCq,
    owner: u32,
    buf: CoreBuf,
    len: usize,
    to: fi_addr_t,
    token: u64,
) -> core::result::Result<(), (Error, CoreBuf)> {
    let (base, desc, len) = (buf.base().as_ptr(), buf.desc(), len.min(buf.len()));
    let context = cq.depart(buf, token, owner, CoreOpKind::Transfer)?;
    let sent = (|| {
        // SAFETY: by this function's contract; the memory stays with the queue until the
        // completion, or until the endpoint is closed.
        unsafe {
            let send = call!(ep.as_ref().msg, send);
            check(send(ep.as_ptr(), base.cast(), len, desc, to, context as *mut c_void))
        }
    })();
    sent.map_err(|error| (error, cq.give_back(context).unwrap_or_else(CoreBuf::none)))
}
