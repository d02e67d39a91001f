//! The fi_collective(3) table for any [`Endpoint`], the join call, and the domain's query of
//! supported operations.
use super::atomic::DatatypeCode;
use super::domain_fid::DomainFid;
use super::ep::fid::EpFid;
use super::ep::shared::EpShared;
use super::mc::Mc;
use super::peer_transfer;
use super::traits::{Domain, Endpoint};
use crate::abi::{
    FI_ADDR_UNSPEC, FI_COLLECTIVE, c_enum, fi_addr_t, fi_atomic_attr, fi_collective_addr,
    fi_collective_attr, fi_collective_op, fi_datatype, fi_ioc, fi_msg_collective, fi_op,
    fi_ops_collective, fid_domain, fid_ep, fid_mc,
};
use crate::addr::Addr;
use crate::atomic::{Operation, size_of_type};
use crate::boundary::{ffi_guard, ffi_guard_transfer};
use crate::buf::{MAX_SEGMENTS, RecvBuf, SegmentLimit, SendBuf};
use crate::coll::{AvSet, CollGroup, CollPlan, Collectives, MAX_MEMBERS, RankOf, Start};
use crate::cq::{Completion, CompletionError, Context};
use crate::error::{Error, Result};
use crate::fid::FidObject;
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};
use std::sync::Arc;

type ReduceOp = c_enum<fi_op>;

impl<E: Endpoint> EpFid<E> {
    pub(super) const COLLECTIVE_OPS: &'static fi_ops_collective = &fi_ops_collective {
        size: size_of::<fi_ops_collective>(),
        barrier: Some(barrier::<E>),
        broadcast: Some(broadcast::<E>),
        alltoall: Some(alltoall::<E>),
        allreduce: Some(allreduce::<E>),
        allgather: Some(allgather::<E>),
        reduce_scatter: Some(reduce_scatter::<E>),
        reduce: Some(reduce::<E>),
        scatter: Some(scatter::<E>),
        gather: Some(gather::<E>),
        msg: Some(msg::<E>),
        barrier2: Some(barrier2::<E>),
    };
}

impl<E: Endpoint> EpShared<E> {
    /// The endpoint's collective operations.
    pub(super) fn collectives(self: &Arc<Self>) -> Result<&Arc<Collectives>> {
        let later = self.ground.later.as_ref().ok_or(Error::NOSYS)?;
        Ok(self.collectives.get_or_init(|| {
            let weak = Arc::downgrade(self);
            let collectives = Collectives::new(weak, later.clone(), self.task_queue());
            let observer = Arc::downgrade(&collectives);
            later.listen(self.task_queue(), move |peer, error| {
                if let Some(collectives) = observer.upgrade() {
                    collectives.lost(peer, error);
                }
            });
            collectives
        }))
    }

    /// Begins a collective operation.
    fn collective(self: &Arc<Self>, group: &CollGroup, call: CollectiveCall) -> Result {
        let collectives = self.collectives()?;
        let CollectiveCall { plan, reduction, source, result, context } = call;
        if plan.input > source.len() || plan.result.len > result.len() {
            return Err(Error::INVAL);
        }
        let (shared, len) = (self.clone(), plan.input.max(plan.result.len));
        let finish = Box::new(move |outcome: Result<&[u8]>| match outcome {
            Ok(bytes) => {
                result.copy_from(0, bytes);
                shared.collected(context, len);
            }
            Err(error) => {
                shared
                    .report(CompletionError::new(Completion::of(context, FI_COLLECTIVE, 0), error));
            }
        });
        collectives.start(group, Start { plan, input: Some(source), reduction, finish })?;
        if let Some(later) = &self.ground.later {
            later.run();
        }
        Ok(())
    }

    /// Reports a completed collective operation. Each one writes an entry, even in a queue bound
    /// with FI_SELECTIVE_COMPLETION: programs wait for it to learn of the end of the buffers' use.
    fn collected(&self, context: Context, len: usize) {
        self.completions().succeed(Completion::of(context, FI_COLLECTIVE, len), true);
    }
}

/// A collective operation, ready to begin.
struct CollectiveCall {
    plan: CollPlan,
    reduction: Option<Operation>,
    source: SendBuf,
    result: RecvBuf,
    context: Context,
}

/// Elements of a call: the number for one member, and the type.
#[derive(Clone, Copy)]
struct CollectiveElements {
    /// Bytes of `count` elements.
    len: usize,
    size: usize,
    datatype: u32,
}

impl CollectiveElements {
    fn new(count: usize, datatype: DatatypeCode) -> Result<Self> {
        let size = size_of_type(datatype.raw())?;
        let len = count.checked_mul(size).filter(|len| *len <= isize::MAX as usize);
        Ok(Self { len: len.ok_or(Error::INVAL)?, size, datatype: datatype.raw() })
    }

    /// Returns the bytes of this number of elements for each of `members` members. Fails on
    /// overflow.
    fn times(self, members: usize) -> Result<usize> {
        // Some operations need more than twice as much memory.
        let most = isize::MAX as usize / 4;
        self.len.checked_mul(members).filter(|len| *len <= most).ok_or(Error::MSGSIZE)
    }
}

/// The rank of the root.
fn rank_of(group: &CollGroup, root: fi_addr_t) -> Result<usize> {
    group.members.iter().position(|member| *member == root).ok_or(Error::INVAL)
}

/// The plan of a member for this operation, with this many bytes per member.
fn plan(
    coll: fi_collective_op,
    group: &CollGroup,
    root: fi_addr_t,
    elements: CollectiveElements,
    op: u32,
) -> Result<(CollPlan, Option<Operation>)> {
    use fi_collective_op::*;
    let (member, len) = (group.member, elements.len);
    elements.times(group.members.len())?;
    let reduction = match coll {
        FI_ALLREDUCE | FI_REDUCE_SCATTER | FI_REDUCE => {
            Some(Operation::reduction(elements.datatype, op)?)
        }
        _ => None,
    };
    let plan = match coll {
        FI_BARRIER => member.barrier(),
        FI_BROADCAST => member.broadcast(rank_of(group, root)?, len),
        FI_ALLTOALL => member.alltoall(len),
        FI_ALLREDUCE => member.allreduce(len, elements.size),
        FI_ALLGATHER => member.allgather(len),
        FI_REDUCE_SCATTER => member.reduce_scatter(len),
        FI_REDUCE => member.reduce(rank_of(group, root)?, len),
        FI_SCATTER => member.scatter(rank_of(group, root)?, len),
        FI_GATHER => member.gather(rank_of(group, root)?, len),
    };
    Ok((plan, reduction))
}

/// Arguments of a call with contiguous buffers.
struct ContiguousArgs {
    coll: fi_collective_op,
    buf: *const c_void,
    result: *mut c_void,
    elements: CollectiveElements,
    group: fi_addr_t,
    root: fi_addr_t,
    op: u32,
    /// Flags argument; `None` for a call without it.
    flags: Option<u64>,
    context: *mut c_void,
}

impl ContiguousArgs {
    /// # Safety
    /// `ep` is null or an open endpoint of this type. The buffers are valid as required by
    /// fi_collective(3).
    unsafe fn begin<E: Endpoint>(self, ep: *mut fid_ep) -> Result {
        // SAFETY: by this function's contract.
        let ep = unsafe { EpFid::<E>::from_c(ep.cast_const()) }?;
        if let Some(flags) = self.flags {
            ep.tx_msg(flags & !FI_COLLECTIVE)?;
        }
        let group = ep.shared.collectives()?.group(self.group)?;
        let (plan, reduction) = plan(self.coll, &group, self.root, self.elements, self.op)?;
        // SAFETY: by this function's contract: they are as long as the operation needs.
        let (source, result) = unsafe {
            (SendBuf::new(self.buf, plan.input)?, RecvBuf::new(self.result, plan.result.len)?)
        };
        let context = Context(self.context);
        ep.shared.collective(&group, CollectiveCall { plan, reduction, source, result, context })
    }
}

const NO_ELEMENTS: CollectiveElements =
    CollectiveElements { len: 0, size: 1, datatype: FI_VOID_NUMBER };
const FI_VOID_NUMBER: u32 = fi_datatype::FI_VOID as u32;
const NOOP: u32 = fi_op::FI_NOOP as u32;

// SAFETY of the entry points below: each is reachable only through the tables of an
// endpoint of the same `E` that is open, or with null. Buffers and message structures
// are the caller's as fi_collective(3) promises.

unsafe extern "C" fn barrier<E: Endpoint>(
    ep: *mut fid_ep,
    group: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: see above.
    ffi_guard_transfer("fi_barrier", || unsafe {
        simple_barrier(group, None, context).begin::<E>(ep)
    })
}

unsafe extern "C" fn barrier2<E: Endpoint>(
    ep: *mut fid_ep,
    group: fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_barrier2", || {
        // SAFETY: see above.
        unsafe { simple_barrier(group, Some(flags), context).begin::<E>(ep) }
    })
}

fn simple_barrier(group: fi_addr_t, flags: Option<u64>, context: *mut c_void) -> ContiguousArgs {
    ContiguousArgs {
        coll: fi_collective_op::FI_BARRIER,
        buf: std::ptr::null(),
        result: std::ptr::null_mut(),
        elements: NO_ELEMENTS,
        group,
        root: FI_ADDR_UNSPEC,
        op: NOOP,
        flags,
        context,
    }
}

unsafe extern "C" fn broadcast<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *mut c_void,
    count: usize,
    _desc: *mut c_void,
    group: fi_addr_t,
    root: fi_addr_t,
    datatype: DatatypeCode,
    flags: u64,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_transfer("fi_broadcast", || {
        let elements = CollectiveElements::new(count, datatype)?;
        let (coll, flags) = (fi_collective_op::FI_BROADCAST, Some(flags));
        let call = ContiguousArgs {
            coll,
            buf,
            result: buf,
            elements,
            group,
            root,
            op: NOOP,
            flags,
            context,
        };
        // SAFETY: see above.
        unsafe { call.begin::<E>(ep) }
    })
}

/// Calls with two buffers: with or without a root, and an operation.
macro_rules! calls {
    ($($name:ident, $entry:literal, $coll:ident $(, to $root:ident)? $(, by $op:ident)?;)+) => {$(
        #[allow(unused_mut, unused_assignments, reason = "some calls have no root or operation")]
        unsafe extern "C" fn $name<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            _desc: *mut c_void,
            result: *mut c_void,
            _result_desc: *mut c_void,
            group: fi_addr_t,
            $($root: fi_addr_t,)?
            datatype: DatatypeCode,
            $($op: ReduceOp,)?
            flags: u64,
            context: *mut c_void,
        ) -> ssize_t {
            ffi_guard_transfer($entry, || {
                let (mut at, mut number) = (FI_ADDR_UNSPEC, NOOP);
                $(at = $root;)?
                $(number = $op.raw();)?
                let elements = CollectiveElements::new(count, datatype)?;
                let (coll, flags) = (fi_collective_op::$coll, Some(flags));
                let (root, op) = (at, number);
                let call = ContiguousArgs { coll, buf, result, elements, group, root, op, flags, context };
                // SAFETY: see above.
                unsafe { call.begin::<E>(ep) }
            })
        }
    )+};
}

calls! {
    alltoall, "fi_alltoall", FI_ALLTOALL;
    allgather, "fi_allgather", FI_ALLGATHER;
    scatter, "fi_scatter", FI_SCATTER, to root;
    gather, "fi_gather", FI_GATHER, to root;
    allreduce, "fi_allreduce", FI_ALLREDUCE, by op;
    reduce_scatter, "fi_reduce_scatter", FI_REDUCE_SCATTER, by op;
    reduce, "fi_reduce", FI_REDUCE, to root, by op;
}

/// The bytes of several runs of elements.
///
/// # Safety
/// `ioc` is null or points to `count` entries.
unsafe fn runs(
    ioc: *const fi_ioc,
    count: usize,
    most: SegmentLimit,
    size: usize,
) -> Result<[iovec; MAX_SEGMENTS]> {
    let count = most.check(count)?;
    if ioc.is_null() && count > 0 {
        return Err(Error::INVAL);
    }
    let mut all = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_SEGMENTS];
    for (index, to) in all[..count].iter_mut().enumerate() {
        // SAFETY: by this function's contract.
        let ioc = unsafe { &*ioc.add(index) };
        let iov_len = ioc.count.checked_mul(size).ok_or(Error::INVAL)?;
        *to = iovec { iov_base: ioc.addr, iov_len };
    }
    Ok(all)
}

/// The operation of this number.
fn collective_op(number: u32) -> Result<fi_collective_op> {
    use fi_collective_op::*;
    const ALL: [fi_collective_op; 9] = [
        FI_BARRIER,
        FI_BROADCAST,
        FI_ALLTOALL,
        FI_ALLREDUCE,
        FI_ALLGATHER,
        FI_REDUCE_SCATTER,
        FI_REDUCE,
        FI_SCATTER,
        FI_GATHER,
    ];
    ALL.get(number as usize).copied().ok_or(Error::OPNOTSUPP)
}

unsafe extern "C" fn msg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_collective,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> ssize_t {
    ffi_guard_transfer("fi_collective_msg", || {
        // SAFETY: see above.
        let (ep, msg) =
            unsafe { (EpFid::<E>::from_c(ep.cast_const())?, msg.as_ref().ok_or(Error::INVAL)?) };
        ep.tx_msg(flags & !FI_COLLECTIVE)?;
        let coll = collective_op(msg.coll.raw())?;
        let group = ep.shared.collectives()?.group(msg.coll_addr)?;
        let is = |of: fi_collective_op| coll == of;
        let size =
            if is(fi_collective_op::FI_BARRIER) { 1 } else { size_of_type(msg.datatype.raw())? };
        // SAFETY: see above: broadcasts have one buffer for both.
        let (source, result) = unsafe {
            let (to, to_count) = match is(fi_collective_op::FI_BROADCAST) {
                true => (msg.msg_iov, msg.iov_count),
                false => (resultv.cast_const(), result_count),
            };
            let most = ep.most_segments();
            let from = runs(msg.msg_iov, msg.iov_count, most, size)?;
            let to = runs(to, to_count, most, size)?;
            (
                SendBuf::from_iov(from.as_ptr(), msg.iov_count)?,
                RecvBuf::from_iov(to.as_ptr(), to_count)?,
            )
        };
        let members = group.members.len();
        let len = match coll {
            fi_collective_op::FI_BARRIER => 0,
            fi_collective_op::FI_SCATTER => result.len(),
            fi_collective_op::FI_ALLTOALL | fi_collective_op::FI_REDUCE_SCATTER => {
                if source.len() % (members * size) != 0 {
                    return Err(Error::INVAL);
                }
                source.len() / members
            }
            _ => source.len(),
        };
        let elements = CollectiveElements { len, size, datatype: msg.datatype.raw() };
        let (plan, reduction) = plan(coll, &group, msg.root_addr, elements, msg.op.raw())?;
        let context = Context(msg.context);
        ep.shared.collective(&group, CollectiveCall { plan, reduction, source, result, context })
    })
}

/// Returns the rank of the endpoint with this address among the members. An endpoint with a
/// wildcard address is identified by its port.
fn own_rank(own: &Addr, members: &[Addr]) -> Result<usize> {
    if let Some(rank) = members.iter().position(|member| member == own) {
        return Ok(rank);
    }
    let same = |(rank, member): (usize, &Addr)| (member.port() == own.port()).then_some(rank);
    let mut candidates = members.iter().enumerate().filter_map(same);
    match (own.is_any(), candidates.next(), candidates.next()) {
        (true, Some(rank), None) => Ok(rank),
        _ => Err(Error::INVAL),
    }
}

/// Joins the group of a set (fi_join_collective).
///
/// # Safety
/// The set in `to` is null or an open one of the application's; `out` can be written to.
pub(super) unsafe fn join<E: Endpoint>(
    shared: &Arc<EpShared<E>>,
    to: &fi_collective_addr,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> Result {
    if E::TRANSFERS {
        // SAFETY: by this function's contract.
        return unsafe { peer_transfer::join(shared, to, out, context) };
    }
    // SAFETY: by this function's contract.
    let set = unsafe { AvSet::from_fid(to.set) }?;
    let bindings = shared.bindings();
    let eq = bindings.eq.clone().ok_or(Error::NOEQ)?;
    if !bindings.av.as_ref().is_some_and(|av| Arc::ptr_eq(av, set.av())) {
        return Err(Error::INVAL);
    }
    drop(bindings);
    let members: Arc<[fi_addr_t]> = set.list().clone().into();
    if members.len() > MAX_MEMBERS {
        return Err(Error::INVAL);
    }
    let addrs = members.iter().map(|member| set.av().get(*member)).collect::<Result<Vec<_>>>()?;
    let own = Addr::read(set.av().format(), &shared.inner.getname()?)?.identity();
    let member = RankOf { rank: own_rank(&own, &addrs)?, of: members.len() };
    let collectives = shared.collectives()?;
    let mc = Mc::open(shared, eq, context);
    let (joining, context) = (mc.clone(), Context(context));
    // SAFETY: by this function's contract. Before the event, which another thread may
    // read first.
    unsafe { out.write(mc.into_c()) };
    collectives.join(members, member, &addrs, move |result| joining.joined(context, result));
    Ok(())
}

/// fi_query_collective.
pub(super) unsafe extern "C" fn query<D: Domain>(
    domain: *mut fid_domain,
    coll: c_enum<fi_collective_op>,
    attr: *mut fi_collective_attr,
    _flags: u64,
) -> c_int {
    ffi_guard("fi_query_collective", || {
        // SAFETY: reachable only through the table of an open domain of the same `D`,
        // or with null; the attributes are the caller's or null.
        let (domain, attr) = unsafe {
            (DomainFid::<D>::from_c(domain.cast_const())?, attr.as_mut().ok_or(Error::INVAL)?)
        };
        if domain.deferred_work().is_none() {
            return Err(Error::NOSYS);
        }
        let (datatype, op) = (attr.datatype.raw(), attr.op.raw());
        let size = match collective_op(coll.raw())? {
            fi_collective_op::FI_BARRIER => {
                if datatype != FI_VOID_NUMBER || op != NOOP {
                    return Err(Error::OPNOTSUPP);
                }
                0
            }
            fi_collective_op::FI_ALLREDUCE
            | fi_collective_op::FI_REDUCE_SCATTER
            | fi_collective_op::FI_REDUCE => Operation::reduction(datatype, op)?.size(),
            _ => size_of_type(datatype)?,
        };
        let count = (isize::MAX as usize / 4).checked_div(size).unwrap_or(0);
        attr.datatype_attr = fi_atomic_attr { count, size };
        attr.max_members = MAX_MEMBERS;
        attr.mode = 0;
        Ok(())
    })
}
