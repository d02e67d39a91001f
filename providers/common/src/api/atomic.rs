//! The fi_atomic(3) table for any [`Endpoint`].
use super::ep::EpFid;
use super::{AtomicOp, Endpoint, RemoteSegment, RemoteSegments, unbuilt};
use crate::abi::{
    self, c_enum, fi_addr_t, fi_atomic_attr, fi_datatype, fi_ioc, fi_msg_atomic, fi_op,
    fi_ops_atomic, fi_rma_ioc, fid_ep,
};
use crate::atomic::{Kind, Operation};
use crate::boundary::{answer, answer_transfer};
use crate::buf::{IOV_LIMIT, RecvBuf, SendBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::Embeds;
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};

type Type = c_enum<fi_datatype>;
type Op = c_enum<fi_op>;
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

    /// The table of an endpoint that is not enabled yet, which can be asked what is valid.
    pub(super) const NOT_ENABLED_ATOMIC_OPS: &'static fi_ops_atomic = &fi_ops_atomic {
        writevalid: Some(valid::<E, { Kind::Base as u8 }>),
        readwritevalid: Some(valid::<E, { Kind::Fetch as u8 }>),
        compwritevalid: Some(valid::<E, { Kind::Compare as u8 }>),
        ..unbuilt::NO_ATOMIC
    };

    fn atomic_op(
        &self,
        operation: Operation,
        operands: [Elements; 3],
        remote: RemoteSegments,
        about: About,
    ) -> Result {
        let mut op = Self::checked_op(operation, operands, remote, about)?;
        if operation.kind() == Kind::Base {
            op.flags = self.write_flags(op.flags);
        }
        self.atomic(op)
    }

    /// Makes the operation of a call after checking that its operands go together.
    fn checked_op(
        operation: Operation,
        [source, compare, result]: [Elements; 3],
        remote: RemoteSegments,
        about: About,
    ) -> Result<AtomicOp> {
        let source = if operation.has_source() { source } else { Elements::NONE };
        let total = remote.total()?;
        let fits = |has: bool, bytes: &Elements| bytes.len() == Ok(if has { total } else { 0 });
        if total == 0
            || !fits(operation.has_source(), &source)
            || !fits(operation.kind() == Kind::Compare, &compare)
            || !fits(operation.fetches(), &result)
        {
            return Err(Error::INVAL);
        }
        match E::max_bytes(operation) {
            0 => return Err(Error::OPNOTSUPP),
            max if total > max => return Err(Error::MSGSIZE),
            _ => {}
        }
        // SAFETY: the entry points below make `Elements` of buffers that the
        // application lends as fi_atomic(3) says.
        let (source, compare, result) = unsafe {
            (
                SendBuf::from_iov(source.iov.as_ptr(), source.count)?,
                SendBuf::from_iov(compare.iov.as_ptr(), compare.count)?,
                RecvBuf::from_iov(result.iov.as_ptr(), result.count)?,
            )
        };
        let About { dest, context, data, flags } = about;
        let context = Context(context);
        Ok(AtomicOp { operation, source, compare, result, remote, dest, context, data, flags })
    }

    /// The operation that message structures describe.
    ///
    /// # Safety
    /// The structures' vectors are readable; their buffers the caller's as
    /// fi_atomic(3) promises.
    pub(super) unsafe fn msg_op(
        kind: Kind,
        msg: &fi_msg_atomic,
        (comparev, compare_count): (*const fi_ioc, usize),
        (resultv, result_count): (*mut fi_ioc, usize),
        flags: u64,
    ) -> Result<AtomicOp> {
        let op = operation(kind, msg.datatype, msg.op)?;
        // SAFETY: by this function's contract.
        let (operands, remote) = unsafe {
            let sources = (msg.msg_iov, msg.iov_count);
            let [source, _, result] = sources_and_results(op, sources, (resultv, result_count))?;
            let operands = [source, Elements::many(comparev, compare_count, op)?, result];
            (operands, places(msg.rma_iov, msg.rma_iov_count, op)?)
        };
        let about = About { dest: msg.addr, context: msg.context, data: msg.data, flags };
        Self::checked_op(op, operands, remote, about)
    }
}

/// Answers how many elements of which size an operation may have; -FI_EOPNOTSUPP for operations
/// that the endpoint does not have.
pub(super) fn query<E: Endpoint>(kind: Kind, datatype: u32, op: u32) -> Result<fi_atomic_attr> {
    let operation = Operation::new(kind, datatype, op)?;
    let size = operation.size();
    match E::max_bytes(operation) / size {
        0 => Err(Error::OPNOTSUPP),
        count => Ok(fi_atomic_attr { count, size }),
    }
}

/// Up to four runs of elements in the application's memory.
struct Elements {
    iov: [iovec; IOV_LIMIT],
    count: usize,
}

impl Elements {
    const EMPTY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    const NONE: Self = Self { iov: [Self::EMPTY; IOV_LIMIT], count: 0 };

    /// One run of `count` elements at `addr`.
    fn one(addr: *const c_void, count: usize, operation: Operation) -> Result<Self> {
        let mut all = Self::NONE;
        let iov_len = count.checked_mul(operation.size()).ok_or(Error::INVAL)?;
        all.iov[0] = iovec { iov_base: addr.cast_mut(), iov_len };
        all.count = 1;
        Ok(all)
    }

    /// # Safety
    /// `ioc` is null or points to `count` entries.
    unsafe fn many(ioc: *const fi_ioc, count: usize, operation: Operation) -> Result<Self> {
        if count > IOV_LIMIT || (ioc.is_null() && count > 0) {
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

    /// Bytes of all elements.
    fn len(&self) -> Result<usize> {
        let sum =
            self.iov[..self.count].iter().try_fold(0usize, |sum, v| sum.checked_add(v.iov_len));
        sum.ok_or(Error::INVAL)
    }
}

/// No vector of what to compare with, and none of results.
pub(super) const NONE: (*const fi_ioc, usize) = (std::ptr::null(), 0);
pub(super) const NO_RESULT: (*mut fi_ioc, usize) = (std::ptr::null_mut(), 0);

/// The other arguments of a call.
struct About {
    dest: fi_addr_t,
    context: *mut c_void,
    data: u64,
    flags: u64,
}

impl About {
    fn new<E: Endpoint>(ep: &EpFid<E>, dest: fi_addr_t, context: *mut c_void) -> Self {
        Self { dest, context, data: 0, flags: ep.tx() }
    }
}

/// One place in a peer's memory, of as many bytes as `elements` have.
fn at(addr: u64, key: u64, elements: &Elements) -> Result<RemoteSegments> {
    Ok(RemoteSegments::one(addr, elements.len()? as u64, key))
}

/// The places a message structure names.
///
/// # Safety
/// `ioc` is null or points to `count` entries.
unsafe fn places(
    ioc: *const fi_rma_ioc,
    count: usize,
    operation: Operation,
) -> Result<RemoteSegments> {
    if count > IOV_LIMIT || (ioc.is_null() && count > 0) {
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
fn operation(kind: Kind, datatype: Type, op: Op) -> Result<Operation> {
    Operation::new(kind, datatype.raw(), op.raw())
}

// SAFETY of the entry points below: each is reachable only through the ops table
// of an endpoint of the same `E` that is open, or with null. Buffers and message
// structures are the caller's as fi_atomic(3) promises.

unsafe extern "C" fn atomic<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: Type,
    op: Op,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_atomic", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let op = operation(Kind::Base, datatype, op)?;
        let source = Elements::one(buf, count, op)?;
        let remote = at(addr, key, &source)?;
        let operands = [source, Elements::NONE, Elements::NONE];
        ep.atomic_op(op, operands, remote, About::new(ep, dest, context))
    })
}

unsafe extern "C" fn atomicv<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: Desc,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: Type,
    op: Op,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_atomicv", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let op = operation(Kind::Base, datatype, op)?;
        // SAFETY: see above.
        let source = unsafe { Elements::many(iov, count, op) }?;
        let remote = at(addr, key, &source)?;
        let operands = [source, Elements::NONE, Elements::NONE];
        ep.atomic_op(op, operands, remote, About::new(ep, dest, context))
    })
}

unsafe extern "C" fn atomicmsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_atomicmsg", || {
        // SAFETY: see above.
        let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
        let flags = ep.tx_msg(flags & !abi::FI_ATOMIC)?;
        // SAFETY: see above.
        ep.atomic(unsafe { EpFid::<E>::msg_op(Kind::Base, msg, NONE, NO_RESULT, flags) }?)
    })
}

unsafe extern "C" fn inject<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: Type,
    op: Op,
) -> ssize_t {
    answer_transfer("fi_inject_atomic", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let op = operation(Kind::Base, datatype, op)?;
        let source = Elements::one(buf, count, op)?;
        let remote = at(addr, key, &source)?;
        let operands = [source, Elements::NONE, Elements::NONE];
        let about = About::new(ep, dest, std::ptr::null_mut());
        ep.atomic_op(op, operands, remote, About { flags: ep.inject_flags(abi::FI_WRITE), ..about })
    })
}

unsafe extern "C" fn fetch<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: Type,
    op: Op,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_fetch_atomic", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let op = operation(Kind::Fetch, datatype, op)?;
        let (source, result) = (Elements::one(buf, count, op)?, Elements::one(result, count, op)?);
        let remote = at(addr, key, &result)?;
        let operands = [source, Elements::NONE, result];
        ep.atomic_op(op, operands, remote, About::new(ep, dest, context))
    })
}

unsafe extern "C" fn fetchv<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: Desc,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: Type,
    op: Op,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_fetch_atomicv", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let op = operation(Kind::Fetch, datatype, op)?;
        // SAFETY: see above.
        let operands = unsafe { sources_and_results(op, (iov, count), (resultv, result_count)) }?;
        let remote = at(addr, key, &operands[2])?;
        ep.atomic_op(op, operands, remote, About::new(ep, dest, context))
    })
}

unsafe extern "C" fn fetchmsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_fetch_atomicmsg", || {
        // SAFETY: see above.
        let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
        let flags = ep.tx_msg(flags & !abi::FI_ATOMIC)?;
        // SAFETY: see above.
        ep.atomic(unsafe {
            EpFid::<E>::msg_op(Kind::Fetch, msg, NONE, (resultv, result_count), flags)
        }?)
    })
}

unsafe extern "C" fn compare<E: Endpoint>(
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
    datatype: Type,
    op: Op,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_compare_atomic", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(ep) }?;
        let op = operation(Kind::Compare, datatype, op)?;
        let one = |buf| Elements::one(buf, count, op);
        let operands = [one(buf)?, one(compare)?, one(result)?];
        let remote = at(addr, key, &operands[0])?;
        ep.atomic_op(op, operands, remote, About::new(ep, dest, context))
    })
}

unsafe extern "C" fn comparev<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: Desc,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: Desc,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    dest: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: Type,
    op: Op,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_compare_atomicv", || {
        // SAFETY: see above.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let op = operation(Kind::Compare, datatype, op)?;
            let [source, _, result] =
                sources_and_results(op, (iov, count), (resultv, result_count))?;
            let operands = [source, Elements::many(comparev, compare_count, op)?, result];
            let remote = at(addr, key, &operands[0])?;
            ep.atomic_op(op, operands, remote, About::new(ep, dest, context))
        }
    })
}

unsafe extern "C" fn comparemsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: Desc,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_compare_atomicmsg", || {
        // SAFETY: see above.
        let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
        let flags = ep.tx_msg(flags & !abi::FI_ATOMIC)?;
        // SAFETY: see above.
        ep.atomic(unsafe {
            EpFid::<E>::msg_op(
                Kind::Compare,
                msg,
                (comparev, compare_count),
                (resultv, result_count),
                flags,
            )
        }?)
    })
}

/// The operands of a call that fetches, without what it compares with.
///
/// # Safety
/// Each pointer is null or points to as many entries as is said with it.
unsafe fn sources_and_results(
    operation: Operation,
    (iov, count): (*const fi_ioc, usize),
    (resultv, result_count): (*mut fi_ioc, usize),
) -> Result<[Elements; 3]> {
    // SAFETY: by this function's contract.
    let result = unsafe { Elements::many(resultv, result_count, operation) }?;
    let source = match operation.has_source() {
        // SAFETY: by this function's contract.
        true => unsafe { Elements::many(iov, count, operation) }?,
        false => Elements::NONE,
    };
    Ok([source, Elements::NONE, result])
}

unsafe extern "C" fn valid<E: Endpoint, const KIND: u8>(
    ep: *mut fid_ep,
    datatype: Type,
    op: Op,
    count: *mut usize,
) -> c_int {
    let kind = match KIND {
        0 => Kind::Base,
        1 => Kind::Fetch,
        _ => Kind::Compare,
    };
    answer("fi_atomicvalid", || {
        if ep.is_null() || count.is_null() {
            return Err(Error::INVAL);
        }
        let attr = query::<E>(kind, datatype.raw(), op.raw())?;
        // SAFETY: not null, and the caller's.
        unsafe { count.write(attr.count) };
        Ok(())
    })
}
