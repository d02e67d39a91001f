//! The fi_atomic(3) table for any [`Endpoint`].
use super::ep::fid::EpFid;
use super::traits::Endpoint;
use super::unsupported;
use crate::abi::{
    self, c_enum, fi_addr_t, fi_atomic_attr, fi_datatype, fi_ioc, fi_msg_atomic, fi_op,
    fi_ops_atomic, fi_rma_ioc, fid_ep,
};
use crate::atomic::{AtomicKind, Operation};
use crate::boundary::{ffi_guard, ffi_guard_transfer};
use crate::buf::{MAX_SEGMENTS, RecvBuf, SegmentLimit, SendBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::operation::{AtomicOp, RemoteSegment, RemoteSegments};
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};

pub(super) type DatatypeCode = c_enum<fi_datatype>;
type OpCode = c_enum<fi_op>;
type Desc = *mut *mut c_void;

impl<E: Endpoint> EpFid<E> {
    pub(super) const ATOMIC_OPS: &'static fi_ops_atomic = &fi_ops_atomic {
        size: size_of::<fi_ops_atomic>(),
        write: Some(atomic::<E>),
        writev: Some(atomicv::<E>),
        writemsg: Some(atomicmsg::<E>),
        inject: Some(inject::<E>),
        readwrite: Some(fetch::<E>),
        readwritev: Some(fetchv::<E>),
        readwritemsg: Some(fetchmsg::<E>),
        compwrite: Some(compare::<E>),
        compwritev: Some(comparev::<E>),
        compwritemsg: Some(comparemsg::<E>),
        ..*Self::NOT_ENABLED_ATOMIC_OPS
    };

    /// Table of an endpoint not enabled yet; only its validity queries work.
    pub(super) const NOT_ENABLED_ATOMIC_OPS: &'static fi_ops_atomic = &fi_ops_atomic {
        writevalid: Some(valid::<E, { AtomicKind::Base as u8 }>),
        readwritevalid: Some(valid::<E, { AtomicKind::Fetch as u8 }>),
        compwritevalid: Some(valid::<E, { AtomicKind::Compare as u8 }>),
        ..unsupported::NO_ATOMIC
    };

    fn atomic_op(
        &self,
        operation: Operation,
        operands: [AtomicElements; 3],
        remote: RemoteSegments,
        envelope: AtomicArgs,
    ) -> Result {
        let mut op = Self::checked_op(operation, operands, remote, envelope)?;
        if operation.kind() == AtomicKind::Base {
            op.flags = self.write_flags(op.flags);
        }
        self.atomic(op)
    }

    /// Returns the operation of a call after validating the combination of its operands.
    fn checked_op(
        operation: Operation,
        [source, compare, result]: [AtomicElements; 3],
        remote: RemoteSegments,
        envelope: AtomicArgs,
    ) -> Result<AtomicOp> {
        let source = if operation.has_source() { source } else { AtomicElements::NONE };
        let total = remote.total()?;
        let fits =
            |has: bool, bytes: &AtomicElements| bytes.len() == Ok(if has { total } else { 0 });
        if total == 0
            || !fits(operation.has_source(), &source)
            || !fits(operation.kind() == AtomicKind::Compare, &compare)
            || !fits(operation.fetches(), &result)
        {
            return Err(Error::INVAL);
        }
        match E::max_bytes(operation) {
            0 => return Err(Error::OPNOTSUPP),
            max if total > max => return Err(Error::MSGSIZE),
            _ => {}
        }
        // SAFETY: `AtomicElements` are made of buffers that the application lends.
        let (source, compare, result) = unsafe {
            (
                SendBuf::from_iov(source.iov.as_ptr(), source.count)?,
                SendBuf::from_iov(compare.iov.as_ptr(), compare.count)?,
                RecvBuf::from_iov(result.iov.as_ptr(), result.count)?,
            )
        };
        let AtomicArgs { dest, context, data, flags } = envelope;
        let context = Context(context);
        Ok(AtomicOp { operation, source, compare, result, remote, dest, context, data, flags })
    }

    /// Returns the operation described by message structures.
    ///
    /// # Safety
    /// The structures' vectors are readable; their buffers fulfil the promises of fi_atomic(3).
    pub(super) unsafe fn msg_op(
        kind: AtomicKind,
        msg: &fi_msg_atomic,
        (comparev, compare_count): (*const fi_ioc, usize),
        (resultv, result_count): (*mut fi_ioc, usize),
        most: SegmentLimit,
        flags: u64,
    ) -> Result<AtomicOp> {
        let op = operation(kind, msg.datatype, msg.op)?;
        // SAFETY: by this function's contract.
        let (operands, remote) = unsafe {
            let operands = [
                AtomicElements::sources(msg.msg_iov, msg.iov_count, most, op)?,
                AtomicElements::many(comparev, compare_count, most, op)?,
                AtomicElements::many(resultv, result_count, most, op)?,
            ];
            (operands, segments(msg.rma_iov, msg.rma_iov_count, most, op)?)
        };
        let envelope = AtomicArgs { dest: msg.addr, context: msg.context, data: msg.data, flags };
        Self::checked_op(op, operands, remote, envelope)
    }
}

/// Reports the maximum number and the size of elements of an operation. Fails with -FI_EOPNOTSUPP
/// for operations not supported by the endpoint.
pub(super) fn query<E: Endpoint>(
    kind: AtomicKind,
    datatype: u32,
    op: u32,
) -> Result<fi_atomic_attr> {
    let operation = Operation::new(kind, datatype, op)?;
    let size = operation.size();
    match E::max_bytes(operation) / size {
        0 => Err(Error::OPNOTSUPP),
        count => Ok(fi_atomic_attr { count, size }),
    }
}

/// Up to [`MAX_SEGMENTS`] runs of elements in the application's memory.
struct AtomicElements {
    iov: [iovec; MAX_SEGMENTS],
    count: usize,
}

impl AtomicElements {
    const EMPTY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    const NONE: Self = Self { iov: [Self::EMPTY; MAX_SEGMENTS], count: 0 };

    /// Returns one run of `count` elements at `addr`.
    ///
    /// # Safety
    /// The elements are valid for the operation, until its completion, as required by fi_atomic(3).
    unsafe fn one(addr: *const c_void, count: usize, operation: Operation) -> Result<Self> {
        let mut all = Self::NONE;
        let iov_len = count.checked_mul(operation.size()).ok_or(Error::INVAL)?;
        all.iov[0] = iovec { iov_base: addr.cast_mut(), iov_len };
        all.count = 1;
        Ok(all)
    }

    /// Returns the element runs in `ioc`.
    ///
    /// # Safety
    /// `ioc` is null or points to `count` entries; their elements fulfil the promises of
    /// fi_atomic(3).
    unsafe fn many(
        ioc: *const fi_ioc,
        count: usize,
        most: SegmentLimit,
        operation: Operation,
    ) -> Result<Self> {
        let count = most.check(count)?;
        if ioc.is_null() && count > 0 {
            return Err(Error::INVAL);
        }
        let mut all = Self::NONE;
        for (index, to) in all.iov[..count].iter_mut().enumerate() {
            // SAFETY: by this function's contract.
            let ioc = unsafe { &*ioc.add(index) };
            let iov_len = ioc.count.checked_mul(operation.size()).ok_or(Error::INVAL)?;
            *to = iovec { iov_base: ioc.addr, iov_len };
        }
        all.count = count;
        Ok(all)
    }

    /// Returns the runs of a call's sources in `ioc`, if the operation has sources at all.
    ///
    /// # Safety The contract of [`AtomicElements::many`], if the operation has sources.
    unsafe fn sources(
        ioc: *const fi_ioc,
        count: usize,
        most: SegmentLimit,
        operation: Operation,
    ) -> Result<Self> {
        if !operation.has_source() {
            return Ok(Self::NONE);
        }
        // SAFETY: by this function's contract.
        unsafe { Self::many(ioc, count, most, operation) }
    }

    /// Bytes of all elements.
    fn len(&self) -> Result<usize> {
        let sum =
            self.iov[..self.count].iter().try_fold(0usize, |sum, v| sum.checked_add(v.iov_len));
        sum.ok_or(Error::INVAL)
    }
}

/// Absent vector of compare operands, and of results.
pub(super) const NONE: (*const fi_ioc, usize) = (std::ptr::null(), 0);
pub(super) const NO_RESULT: (*mut fi_ioc, usize) = (std::ptr::null_mut(), 0);

/// The other arguments of a call.
struct AtomicArgs {
    dest: fi_addr_t,
    context: *mut c_void,
    data: u64,
    flags: u64,
}

impl AtomicArgs {
    fn new<E: Endpoint>(ep: &EpFid<E>, dest: fi_addr_t, context: *mut c_void) -> Self {
        Self { dest, context, data: 0, flags: ep.tx() }
    }
}

/// The places a message structure names.
///
/// # Safety
/// `ioc` is null or points to `count` entries.
unsafe fn segments(
    ioc: *const fi_rma_ioc,
    count: usize,
    most: SegmentLimit,
    operation: Operation,
) -> Result<RemoteSegments> {
    let count = most.check(count)?;
    if ioc.is_null() && count > 0 {
        return Err(Error::INVAL);
    }
    let mut all = RemoteSegments::EMPTY;
    for index in 0..count {
        // SAFETY: by this function's contract.
        let ioc = unsafe { &*ioc.add(index) };
        let len = (ioc.count as u64).checked_mul(operation.size() as u64).ok_or(Error::INVAL)?;
        all.push(RemoteSegment { addr: ioc.addr, len, key: ioc.key })?;
    }
    Ok(all)
}

/// The operation of a call.
fn operation(kind: AtomicKind, datatype: DatatypeCode, op: OpCode) -> Result<Operation> {
    Operation::new(kind, datatype.raw(), op.raw())
}

// SAFETY of the entry points below: each is reachable only through the ops table
// of an endpoint of the same `E` that is open, or with null. Buffers and message
// structures are the caller's as fi_atomic(3) promises.

/// Completes an operation with inject semantics (without `$context`), or any other one.
macro_rules! envelope {
    ($ep:ident $dest:ident) => {{
        let envelope = AtomicArgs::new($ep, $dest, std::ptr::null_mut());
        AtomicArgs { flags: $ep.inject_flags(abi::FI_WRITE), ..envelope }
    }};
    ($ep:ident $dest:ident $context:ident) => {
        AtomicArgs::new($ep, $dest, $context)
    };
}

/// Defines calls with their operands as arguments between the endpoint and the peer. `$operands`
/// maps them to source, compare operand and result.
macro_rules! by_arguments {
    ($(
        $name:ident: $call:literal, $kind:ident($($arg:ident: $type:ty),*)$($context:ident)?,
            |$op:ident, $most:ident| $operands:expr;
    )+) => {$(
        unsafe extern "C" fn $name<E: Endpoint>(
            ep: *mut fid_ep,
            $($arg: $type,)*
            dest: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: DatatypeCode,
            op: OpCode,
            $($context: *mut c_void,)?
        ) -> ssize_t {
            ffi_guard_transfer($call, || {
                // SAFETY: see above.
                let ep = unsafe { EpFid::<E>::from_c(ep) }?;
                let ($op, $most) = (operation(AtomicKind::$kind, datatype, op)?, ep.most_segments());
                // SAFETY: see above.
                let operands: [AtomicElements; 3] = unsafe { $operands };
                let widest = if $op.fetches() { &operands[2] } else { &operands[0] };
                let remote = RemoteSegments::one(addr, widest.len()? as u64, key);
                ep.atomic_op($op, operands, remote, envelope!(ep dest $($context)?))
            })
        }
    )+};
}

type VoidPtr = *mut c_void;
type ConstBuf = *const c_void;

by_arguments! {
    atomic: "fi_atomic", Base(buf: ConstBuf, count: usize, _desc: VoidPtr) context,
        |op, _most| [AtomicElements::one(buf, count, op)?, AtomicElements::NONE, AtomicElements::NONE];
    atomicv: "fi_atomicv", Base(iov: *const fi_ioc, _desc: Desc, count: usize) context,
        |op, most| [AtomicElements::many(iov, count, most, op)?, AtomicElements::NONE, AtomicElements::NONE];
    inject: "fi_inject_atomic", Base(buf: ConstBuf, count: usize),
        |op, _most| [AtomicElements::one(buf, count, op)?, AtomicElements::NONE, AtomicElements::NONE];
    fetch: "fi_fetch_atomic", Fetch(
        buf: ConstBuf, count: usize, _desc: VoidPtr, result: VoidPtr, _result_desc: VoidPtr
    ) context,
        |op, _most| [
            AtomicElements::one(buf, count, op)?, AtomicElements::NONE, AtomicElements::one(result, count, op)?
        ];
    fetchv: "fi_fetch_atomicv", Fetch(
        iov: *const fi_ioc, _desc: Desc, count: usize,
        resultv: *mut fi_ioc, _result_desc: Desc, result_count: usize
    ) context,
        |op, most| [
            AtomicElements::sources(iov, count, most, op)?, AtomicElements::NONE,
            AtomicElements::many(resultv, result_count, most, op)?
        ];
    compare: "fi_compare_atomic", Compare(
        buf: ConstBuf, count: usize, _desc: VoidPtr, compare: ConstBuf, _compare_desc: VoidPtr,
        result: VoidPtr, _result_desc: VoidPtr
    ) context,
        |op, _most| [
            AtomicElements::one(buf, count, op)?, AtomicElements::one(compare, count, op)?,
            AtomicElements::one(result, count, op)?
        ];
    comparev: "fi_compare_atomicv", Compare(
        iov: *const fi_ioc, _desc: Desc, count: usize,
        comparev: *const fi_ioc, _compare_desc: Desc, compare_count: usize,
        resultv: *mut fi_ioc, _result_desc: Desc, result_count: usize
    ) context,
        |op, most| [
            AtomicElements::sources(iov, count, most, op)?, AtomicElements::many(comparev, compare_count, most, op)?,
            AtomicElements::many(resultv, result_count, most, op)?
        ];
}

/// Defines calls with a message structure; the compare operand and the location of the result are
/// arguments.
macro_rules! by_message {
    ($(
        $name:ident: $call:literal, $kind:ident($($arg:ident: $type:ty),*), $with:expr, $result:expr;
    )+) => {$(
        unsafe extern "C" fn $name<E: Endpoint>(
            ep: *mut fid_ep,
            msg: *const fi_msg_atomic,
            $($arg: $type,)*
            flags: u64,
        ) -> ssize_t {
            ffi_guard_transfer($call, || {
                // SAFETY: see above.
                let ep = unsafe { EpFid::<E>::from_c(ep) }?;
                // SAFETY: see above.
                let msg = unsafe { msg.as_ref() }.ok_or(Error::INVAL)?;
                let flags = ep.tx_msg(flags & !abi::FI_ATOMIC)?;
                // SAFETY: see above.
                let op = unsafe { EpFid::<E>::msg_op(AtomicKind::$kind, msg, $with, $result, ep.most_segments(), flags) }?;
                ep.atomic(op)
            })
        }
    )+};
}

by_message! {
    atomicmsg: "fi_atomicmsg", Base(), NONE, NO_RESULT;
    fetchmsg: "fi_fetch_atomicmsg", Fetch(
        resultv: *mut fi_ioc, _result_desc: Desc, result_count: usize
    ), NONE, (resultv, result_count);
    comparemsg: "fi_compare_atomicmsg", Compare(
        comparev: *const fi_ioc, _compare_desc: Desc, compare_count: usize,
        resultv: *mut fi_ioc, _result_desc: Desc, result_count: usize
    ), (comparev, compare_count), (resultv, result_count);
}

unsafe extern "C" fn valid<E: Endpoint, const KIND: u8>(
    ep: *mut fid_ep,
    datatype: DatatypeCode,
    op: OpCode,
    count: *mut usize,
) -> c_int {
    let kind = match KIND {
        0 => AtomicKind::Base,
        1 => AtomicKind::Fetch,
        _ => AtomicKind::Compare,
    };
    ffi_guard("fi_atomicvalid", || {
        if ep.is_null() || count.is_null() {
            return Err(Error::INVAL);
        }
        let attr = query::<E>(kind, datatype.raw(), op.raw())?;
        // SAFETY: not null, and the caller's.
        unsafe { count.write(attr.count) };
        Ok(())
    })
}
