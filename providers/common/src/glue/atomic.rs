//! The fi_atomic(3) table for any [`Endpoint`], and fi_query_atomic.
use super::ep::EpFid;
use super::{AtomicOp, Endpoint, RemoteSegment, RemoteSegments};
use crate::abi::{
    self, c_enum, fi_addr_t, fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fi_ops_atomic, fi_rma_ioc,
    fid_ep,
};
use crate::atomic::{self, Kind};
use crate::boundary::{answer, answer_transfer};
use crate::buf::{IOV_LIMIT, RecvBuf, SendBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::Embeds;
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};

/// An array of elements, as calls name it.
#[derive(Clone, Copy)]
struct Elements<'a>(&'a [fi_ioc]);

impl<'a> Elements<'a> {
    /// # Safety
    /// `iov` points to `count` entries that outlive the result, or `count` is 0.
    unsafe fn new(iov: *const fi_ioc, count: usize) -> Result<Self> {
        if count > IOV_LIMIT || (iov.is_null() && count > 0) {
            return Err(Error::INVAL);
        }
        if count == 0 {
            return Ok(Self(&[]));
        }
        // SAFETY: by this function's contract.
        Ok(Self(unsafe { std::slice::from_raw_parts(iov, count) }))
    }

    fn bytes(self, size: usize) -> Result<([iovec; IOV_LIMIT], usize)> {
        let mut iov = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; IOV_LIMIT];
        for (to, from) in iov.iter_mut().zip(self.0) {
            let iov_len = from.count.checked_mul(size).ok_or(Error::INVAL)?;
            *to = iovec { iov_base: from.addr, iov_len };
        }
        Ok((iov, self.0.len()))
    }
}

/// What all the calls have.
struct Call<'a> {
    kind: Kind,
    operand: Elements<'a>,
    compare: Elements<'a>,
    result: Elements<'a>,
    remote: RemoteSegments,
    dest: fi_addr_t,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
    flags: u64,
}

fn one(buf: *const c_void, count: usize) -> [fi_ioc; 1] {
    [fi_ioc { addr: buf.cast_mut(), count }]
}

/// The places a message structure names; lengths are numbers of elements.
///
/// # Safety
/// `iov` points to `count` entries.
unsafe fn places(iov: *const fi_rma_ioc, count: usize) -> Result<RemoteSegments> {
    if count > IOV_LIMIT || (iov.is_null() && count > 0) {
        return Err(Error::INVAL);
    }
    let mut all = RemoteSegments::EMPTY;
    for index in 0..count {
        // SAFETY: by this function's contract.
        let ioc = unsafe { &*iov.add(index) };
        all.push(RemoteSegment { addr: ioc.addr, len: ioc.count as u64, key: ioc.key })?;
    }
    Ok(all)
}

impl<E: Endpoint> EpFid<E> {
    pub(super) const ATOMIC_OPS: &'static fi_ops_atomic = &fi_ops_atomic {
        size: size_of::<fi_ops_atomic>(),
        write: Some(write::<E>),
        writev: Some(writev::<E>),
        writemsg: Some(writemsg::<E>),
        inject: Some(inject::<E>),
        readwrite: Some(readwrite::<E>),
        readwritev: Some(readwritev::<E>),
        readwritemsg: Some(readwritemsg::<E>),
        compwrite: Some(compwrite::<E>),
        compwritev: Some(compwritev::<E>),
        compwritemsg: Some(compwritemsg::<E>),
        writevalid: Some(writevalid::<E>),
        readwritevalid: Some(readwritevalid::<E>),
        compwritevalid: Some(compwritevalid::<E>),
    };

    /// # Safety
    /// The memory of all arrays is lent as fi_atomic(3) says.
    unsafe fn atomic(&self, call: Call<'_>) -> Result {
        let (datatype, op) = (call.datatype.raw(), call.op.raw());
        let most = query(call.kind, datatype, op, self.inner().max_atomic(datatype))?;
        let size = atomic::size_of_type(datatype)?;
        if call.remote.total()? > most {
            return Err(Error::MSGSIZE);
        }
        let total = call.remote.total()?.checked_mul(size).ok_or(Error::INVAL)?;
        // A read has no operand.
        let reads = op == fi_op::FI_ATOMIC_READ as u32;
        let ((operand, n), (compare, m), (result, k)) =
            (call.operand.bytes(size)?, call.compare.bytes(size)?, call.result.bytes(size)?);
        // SAFETY: by this function's contract.
        let (operand, compare, result) = unsafe {
            (
                SendBuf::from_iov(operand.as_ptr(), if reads { 0 } else { n })?,
                SendBuf::from_iov(compare.as_ptr(), m)?,
                RecvBuf::from_iov(result.as_ptr(), k)?,
            )
        };
        let fits = |len: usize, needed: bool| len == if needed { total } else { 0 };
        if !fits(operand.len(), !reads)
            || !fits(compare.len(), call.kind == Kind::Compare)
            || !fits(result.len(), call.kind != Kind::Write)
        {
            return Err(Error::INVAL);
        }
        self.inner().atomic(AtomicOp {
            kind: call.kind,
            datatype,
            op,
            operand,
            compare,
            result,
            remote: call.remote,
            dest: call.dest,
            context: Context(call.context),
            flags: call.flags,
        })
    }

    fn valid(
        &self,
        kind: Kind,
        datatype: c_enum<fi_datatype>,
        op: c_enum<fi_op>,
        count: *mut usize,
    ) -> Result {
        let most = query(kind, datatype.raw(), op.raw(), self.inner().max_atomic(datatype.raw()))?;
        // SAFETY: the caller gives room for a number, or null.
        *unsafe { count.as_mut() }.ok_or(Error::INVAL)? = most;
        Ok(())
    }
}

/// How many elements one operation can have.
fn query(kind: Kind, datatype: u32, op: u32, max: usize) -> Result<usize> {
    atomic::check(kind, datatype, op)?;
    // Operand and comparison travel together.
    let arrays = if kind == Kind::Compare { 2 } else { 1 };
    let count = max / (atomic::size_of_type(datatype)? * arrays);
    if count == 0 { Err(Error::OPNOTSUPP) } else { Ok(count) }
}

/// The answer to fi_query_atomic with these flags: elements, and bytes of each.
pub(super) fn query_atomic(
    datatype: u32,
    op: u32,
    flags: u64,
    max: usize,
) -> Result<(usize, usize)> {
    let kind = match flags & (abi::FI_FETCH_ATOMIC | abi::FI_COMPARE_ATOMIC) {
        abi::FI_FETCH_ATOMIC => Kind::Fetch,
        abi::FI_COMPARE_ATOMIC => Kind::Compare,
        0 => Kind::Write,
        _ => return Err(Error::BADFLAGS),
    };
    Ok((query(kind, datatype, op, max)?, atomic::size_of_type(datatype)?))
}

// SAFETY of the entry points below: each is reachable only through the ops table
// of an endpoint of the same `E` that is open, or with null. Buffers are the
// caller's as fi_atomic(3) promises.

unsafe extern "C" fn write<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
) -> ssize_t {
    let operand = one(buf, count);
    // SAFETY: see above.
    unsafe {
        writev::<E>(
            ep,
            operand.as_ptr(),
            std::ptr::null_mut(),
            1,
            dest,
            addr,
            key,
            datatype,
            op,
            context,
        )
    }
}

unsafe extern "C" fn writev<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_atomicv", || {
        // SAFETY: see above.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let operand = Elements::new(iov, count)?;
            let flags = ep.tx();
            let (kind, none) = (Kind::Write, Elements(&[]));
            let remote = target(operand, addr, key);
            let (compare, result) = (none, none);
            ep.atomic(Call {
                kind,
                operand,
                compare,
                result,
                remote,
                dest,
                datatype,
                op,
                context,
                flags,
            })
        }
    })
}

/// One place, of as many elements as an array has.
fn target(elements: Elements<'_>, addr: u64, key: u64) -> RemoteSegments {
    let count = elements.0.iter().map(|ioc| ioc.count as u64).sum();
    RemoteSegments::one(addr, count, key)
}

unsafe extern "C" fn writemsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_atomicmsg", || {
        // SAFETY: see above.
        unsafe { message::<E>(ep, msg, Kind::Write, Elements(&[]), Elements(&[]), flags) }
    })
}

/// The calls with a structure.
///
/// # Safety
/// See above.
unsafe fn message<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    kind: Kind,
    compare: Elements<'_>,
    result: Elements<'_>,
    flags: u64,
) -> Result {
    // SAFETY: see above.
    unsafe {
        let ep = EpFid::<E>::from_c(ep)?;
        let msg = msg.as_ref().ok_or(Error::INVAL)?;
        let operand = Elements::new(msg.msg_iov, msg.iov_count)?;
        let remote = places(msg.rma_iov, msg.rma_iov_count)?;
        let flags = ep.tx_msg(flags)?;
        let (dest, datatype, op, context) = (msg.addr, msg.datatype, msg.op, msg.context);
        ep.atomic(Call {
            kind,
            operand,
            compare,
            result,
            remote,
            dest,
            datatype,
            op,
            context,
            flags,
        })
    }
}

unsafe extern "C" fn inject<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
) -> ssize_t {
    answer_transfer("fi_inject_atomic", || {
        // SAFETY: see above.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let array = one(buf, count);
            let operand = Elements(&array);
            let (kind, none, context) = (Kind::Write, Elements(&[]), std::ptr::null_mut());
            let (remote, flags) = (target(operand, addr, key), ep.inject_flags());
            let (compare, result) = (none, none);
            ep.atomic(Call {
                kind,
                operand,
                compare,
                result,
                remote,
                dest,
                datatype,
                op,
                context,
                flags,
            })
        }
    })
}

unsafe extern "C" fn readwrite<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
) -> ssize_t {
    let none = std::ptr::null();
    // SAFETY: see above.
    unsafe {
        compwrite::<E>(
            ep,
            buf,
            count,
            desc,
            none,
            std::ptr::null_mut(),
            result,
            result_desc,
            dest,
            addr,
            key,
            datatype,
            op,
            context,
        )
    }
}

unsafe extern "C" fn readwritev<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_fetch_atomicv", || {
        // SAFETY: see above.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let operand = Elements::new(iov, count)?;
            let (compare, result) = (Elements(&[]), Elements::new(result, result_count)?);
            let (kind, remote, flags) = (Kind::Fetch, target(result, addr, key), ep.tx());
            ep.atomic(Call {
                kind,
                operand,
                compare,
                result,
                remote,
                dest,
                datatype,
                op,
                context,
                flags,
            })
        }
    })
}

unsafe extern "C" fn readwritemsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_fetch_atomicmsg", || {
        // SAFETY: see above.
        unsafe {
            let result = Elements::new(result, result_count)?;
            message::<E>(ep, msg, Kind::Fetch, Elements(&[]), result, flags)
        }
    })
}

/// Without a comparison: fi_fetch_atomic.
unsafe extern "C" fn compwrite<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_compare_atomic", || {
        let arrays = (one(buf, count), one(compare, count), one(result, count));
        let (operand, result) = (Elements(&arrays.0), Elements(&arrays.2));
        let (kind, compare) = match compare.is_null() {
            true => (Kind::Fetch, Elements(&[])),
            false => (Kind::Compare, Elements(&arrays.1)),
        };
        // SAFETY: see above.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let (remote, flags) = (target(result, addr, key), ep.tx());
            ep.atomic(Call {
                kind,
                operand,
                compare,
                result,
                remote,
                dest,
                datatype,
                op,
                context,
                flags,
            })
        }
    })
}

unsafe extern "C" fn compwritev<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compare: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_compare_atomicv", || {
        // SAFETY: see above.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let operand = Elements::new(iov, count)?;
            let compare = Elements::new(compare, compare_count)?;
            let result = Elements::new(result, result_count)?;
            let (kind, remote, flags) = (Kind::Compare, target(operand, addr, key), ep.tx());
            ep.atomic(Call {
                kind,
                operand,
                compare,
                result,
                remote,
                dest,
                datatype,
                op,
                context,
                flags,
            })
        }
    })
}

unsafe extern "C" fn compwritemsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    compare: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_compare_atomicmsg", || {
        // SAFETY: see above.
        unsafe {
            let compare = Elements::new(compare, compare_count)?;
            let result = Elements::new(result, result_count)?;
            message::<E>(ep, msg, Kind::Compare, compare, result, flags)
        }
    })
}

unsafe extern "C" fn writevalid<E: Endpoint>(
    ep: *mut fid_ep,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    count: *mut usize,
) -> c_int {
    answer("fi_atomicvalid", || {
        // SAFETY: see above.
        unsafe { EpFid::<E>::from_c(ep) }?.valid(Kind::Write, datatype, op, count)
    })
}

unsafe extern "C" fn readwritevalid<E: Endpoint>(
    ep: *mut fid_ep,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    count: *mut usize,
) -> c_int {
    answer("fi_fetch_atomicvalid", || {
        // SAFETY: see above.
        unsafe { EpFid::<E>::from_c(ep) }?.valid(Kind::Fetch, datatype, op, count)
    })
}

unsafe extern "C" fn compwritevalid<E: Endpoint>(
    ep: *mut fid_ep,
    datatype: c_enum<fi_datatype>,
    op: c_enum<fi_op>,
    count: *mut usize,
) -> c_int {
    answer("fi_compare_atomicvalid", || {
        // SAFETY: see above.
        unsafe { EpFid::<E>::from_c(ep) }?.valid(Kind::Compare, datatype, op, count)
    })
}
