//! The fi_rma(3) table for any [`Endpoint`].
use super::ep::fid::EpFid;
use super::traits::Endpoint;
use crate::abi::{self, fi_addr_t, fi_msg_rma, fi_ops_rma, fid_ep};
use crate::boundary::ffi_guard_transfer;
use crate::buf::{RecvBuf, SegmentLimit, SendBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::operation::{ReadOp, RemoteSegment, RemoteSegments, WriteOp};
use core::ffi::c_void;
use libc::{iovec, ssize_t};

impl<E: Endpoint> EpFid<E> {
    pub(super) const RMA_OPS: &'static fi_ops_rma = &fi_ops_rma {
        size: size_of::<fi_ops_rma>(),
        read: Some(read::<E>),
        readv: Some(readv::<E>),
        readmsg: Some(readmsg::<E>),
        write: Some(write::<E>),
        writev: Some(writev::<E>),
        writemsg: Some(writemsg::<E>),
        inject: Some(inject::<E>),
        writedata: Some(writedata::<E>),
        injectdata: Some(injectdata::<E>),
    };

    fn read_op(
        &self,
        buf: RecvBuf,
        remote: RemoteSegments,
        src: fi_addr_t,
        context: *mut c_void,
        flags: u64,
    ) -> Result {
        if remote.total()? != buf.len() {
            return Err(Error::INVAL);
        }
        self.read(ReadOp { buf, remote, src, context: Context(context), flags })
    }

    fn write_op(
        &self,
        buf: SendBuf,
        remote: RemoteSegments,
        dest: fi_addr_t,
        context: *mut c_void,
        data: u64,
        flags: u64,
    ) -> Result {
        if remote.total()? != buf.len() {
            return Err(Error::INVAL);
        }
        let flags = self.write_flags(flags);
        self.write(WriteOp { buf, remote, dest, context: Context(context), data, flags })
    }
}

/// The places a message structure names.
///
/// # Safety
/// `msg.rma_iov` points to `msg.rma_iov_count` entries.
unsafe fn remote(msg: &fi_msg_rma, most: SegmentLimit) -> Result<RemoteSegments> {
    let count = most.check(msg.rma_iov_count)?;
    if msg.rma_iov.is_null() && count > 0 {
        return Err(Error::INVAL);
    }
    let mut all = RemoteSegments::EMPTY;
    for index in 0..count {
        // SAFETY: by this function's contract.
        let iov = unsafe { &*msg.rma_iov.add(index) };
        all.push(RemoteSegment { addr: iov.addr, len: iov.len as u64, key: iov.key })?;
    }
    Ok(all)
}

// SAFETY of the entry points below: each is reachable only through the ops table
// of an endpoint of the same `E` that is open, or with null. Buffers are the
// caller's as fi_rma(3) promises.

unsafe extern "C" fn read<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_read", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, RecvBuf::new(buf, len)?.with_desc(desc)) };
        ep.read_op(buf, RemoteSegments::one(addr, len as u64, key), src, context, ep.tx())
    })
}

unsafe extern "C" fn readv<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const iovec,
    descs: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_readv", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let count = ep.segments(count)?;
        // SAFETY: see above.
        let buf = unsafe { RecvBuf::from_iov(iov, count)?.with_descs(descs) };
        let remote = RemoteSegments::one(addr, buf.len() as u64, key);
        ep.read_op(buf, remote, src, context, ep.tx())
    })
}

/// Returns the read described by a message structure.
///
/// # Safety
/// The structure's vectors are readable; its buffers fulfil the promises of fi_rma(3).
pub(super) unsafe fn read_op(msg: &fi_msg_rma, most: SegmentLimit, flags: u64) -> Result<ReadOp> {
    let count = most.check(msg.iov_count)?;
    // SAFETY: by this function's contract.
    let (buf, remote) = unsafe {
        (RecvBuf::from_iov(msg.msg_iov, count)?.with_descs(msg.desc), remote(msg, most)?)
    };
    if remote.total()? != buf.len() {
        return Err(Error::INVAL);
    }
    Ok(ReadOp { buf, remote, src: msg.addr, context: Context(msg.context), flags })
}

/// Returns the write described by a message structure.
///
/// # Safety The contract of [`read_op`].
pub(super) unsafe fn write_op(msg: &fi_msg_rma, most: SegmentLimit, flags: u64) -> Result<WriteOp> {
    let count = most.check(msg.iov_count)?;
    // SAFETY: by this function's contract.
    let (buf, remote) = unsafe {
        (SendBuf::from_iov(msg.msg_iov, count)?.with_descs(msg.desc), remote(msg, most)?)
    };
    if remote.total()? != buf.len() {
        return Err(Error::INVAL);
    }
    let context = Context(msg.context);
    Ok(WriteOp { buf, remote, dest: msg.addr, context, data: msg.data, flags })
}

unsafe extern "C" fn readmsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
) -> ssize_t {
    ffi_guard_transfer("fi_readmsg", || {
        // SAFETY: see above; the message structure is the caller's.
        unsafe {
            let (ep, msg) = (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?);
            let op = read_op(msg, ep.most_segments(), ep.tx_msg(flags)?)?;
            ep.read(op)
        }
    })
}

unsafe extern "C" fn write<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_write", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?.with_desc(desc)) };
        ep.write_op(buf, RemoteSegments::one(addr, len as u64, key), dest, context, 0, ep.tx())
    })
}

unsafe extern "C" fn writev<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const iovec,
    descs: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_writev", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let count = ep.segments(count)?;
        // SAFETY: see above.
        let buf = unsafe { SendBuf::from_iov(iov, count)?.with_descs(descs) };
        let remote = RemoteSegments::one(addr, buf.len() as u64, key);
        ep.write_op(buf, remote, dest, context, 0, ep.tx())
    })
}

unsafe extern "C" fn writemsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_rma,
    flags: u64,
) -> ssize_t {
    ffi_guard_transfer("fi_writemsg", || {
        // SAFETY: see above; the message structure is the caller's.
        unsafe {
            let (ep, msg) = (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?);
            let op = write_op(msg, ep.most_segments(), ep.tx_msg(flags)?)?;
            ep.write(op)
        }
    })
}

unsafe extern "C" fn inject<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
) -> ssize_t {
    ffi_guard_transfer("fi_inject_write", || {
        // SAFETY: see above.
        let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
        let remote = RemoteSegments::one(addr, len as u64, key);
        ep.write_op(buf, remote, dest, std::ptr::null_mut(), 0, ep.inject_flags(abi::FI_WRITE))
    })
}

unsafe extern "C" fn writedata<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_writedata", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?.with_desc(desc)) };
        let remote = RemoteSegments::one(addr, len as u64, key);
        ep.write_op(buf, remote, dest, context, data, ep.tx() | abi::FI_REMOTE_CQ_DATA)
    })
}

unsafe extern "C" fn injectdata<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
) -> ssize_t {
    ffi_guard_transfer("fi_inject_writedata", || {
        // SAFETY: see above.
        let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
        let remote = RemoteSegments::one(addr, len as u64, key);
        let flags = ep.inject_flags(abi::FI_WRITE) | abi::FI_REMOTE_CQ_DATA;
        ep.write_op(buf, remote, dest, std::ptr::null_mut(), data, flags)
    })
}
