//! Tables of the program's objects: every call of the API, written once.
//!
//! Each row of [`table!`] is a slot: its name and arguments, the call reported to the hook, the
//! arguments visible to the hook, and, if there are objects among the arguments, their conversion.
mod arguments;
mod translate;

use crate::abi::*;
use crate::call::{Args, HookOp, OpenArgs, OpenAttr, RegionArgs, TransferArgs};
use crate::error::Error;
use crate::object::{Fid, HookAnswer, HookedFabric, HookedObject, close, head};
use crate::{Hook, fids};
use arguments::*;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use libc::{iovec, ssize_t};
use ofi_provider::info::version;
use translate::*;

/// The call in a slot of a provider's table; `None` if the table is missing, ends
/// before the slot, or has nothing in it.
macro_rules! slot {
    ($table:expr, $ops:ty, $slot:ident) => {{
        let table: *const $ops = $table;
        let offset = core::mem::offset_of!($ops, $slot);
        if table.is_null() || (*table).size <= offset { None } else { (*table).$slot }
    }};
}
pub(crate) use slot;

/// Defines a function returning a table, and the functions in it.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $table:ident = $ops:ident, $fid:ident.$path:ident
            $(since $since:expr)? $(, $own:ident = $function:ident)?;
        $(
            $slot:ident($this:ident: $first:ty $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty,
            $op:ident, $args:expr $(, |$object:ident, $call:ident| $body:expr)?;
        )+
    ) => {
        $(#[$doc])*
        pub(crate) fn $table<C: Fid, H: Hook>() -> *mut $ops {
            /// First API version with this table in objects.
            const SINCE: u32 = 0 $(+ $since)?;
            $(
                unsafe extern "C" fn $slot<C: Fid, H: Hook>(
                    $this: $first $(, $arg: $type)*
                ) -> $ret {
                    // SAFETY: the call's manual page: an open object of the kind that this
                    // table is given to, and arguments for that call; what is passed on
                    // to the provider is its own object and the same arguments. Its
                    // tables are as long as they say.
                    unsafe {
                        let Some(object) = HookedObject::<C, H>::of($this) else {
                            return HookAnswer::from_error(Error::INVAL);
                        };
                        let inner = object.inner();
                        let call = if object.shared.prov_version >= SINCE {
                            let table = (&raw const (*inner.cast::<$fid>()).$path).read();
                            slot!(table, $ops, $slot)
                        } else {
                            None
                        };
                        object.around(HookOp::$op, $args, || match call {
                            None => HookAnswer::from_error(Error::NOSYS),
                            Some(call) => table!(
                                @call object, inner, call, [$($arg),*] $(, |$object, $call| $body)?
                            ),
                        })
                    }
                }
            )+
            const {
                ptr::from_ref(&$ops {
                    size: size_of::<$ops>(),
                    $($own: Some($function::<C, H>),)?
                    $($slot: Some($slot::<C, H>)),+
                })
                .cast_mut()
            }
        }
    };
    (@call $object:ident, $inner:ident, $call:ident, [$($arg:ident),*]) => {
        $call($inner.cast() $(, $arg)*)
    };
    (
        @call $object:ident, $inner:ident, $slot:ident, [$($arg:ident),*],
        |$o:ident, $call:ident| $body:expr
    ) => {{
        let ($o, $call) = ($object, $slot);
        $body
    }};
}

type HookDatatype = c_enum<fi_datatype>;
type HookOperation = c_enum<fi_op>;

table! {
    /// Calls common to all objects.
    fid_ops = fi_ops, fid.ops, close = close;
    bind(this: *mut fid, other: *mut fid, flags: u64) -> c_int,
        Bind, Args::Bind(other, flags), |object, call| {
            let ret = call(object.inner().cast(), fids::inner(other), flags);
            object.refresh();
            ret
        };
    control(this: *mut fid, command: c_int, arg: *mut c_void) -> c_int,
        Control, Args::None, |object, call| {
            let inner = object.inner().cast::<fid>();
            match command {
                FI_QUEUE_WORK | FI_CANCEL_WORK => deferred(arg.cast()),
                _ => {}
            }
            let base = arg.cast::<fi_mr_modify>();
            let _base = (command == FI_REFRESH
                && !arg.is_null()
                && object.shared.api_version >= version(2, 0))
                .then(|| Swap::new((&raw mut (*base).attr.base_mr).cast::<*mut fid_mr>()));
            // The object to be flushed may be a counter; a work structure stays unchanged.
            let flushed = command == FI_FLUSH_WORK;
            let arg = if flushed { crate::fids::inner(arg.cast::<fid>()).cast() } else { arg };
            let ret = call(inner, command, arg);
            match command {
                FI_ALIAS if !arg.is_null() => {
                    let out = (*arg.cast::<fi_alias>()).fid.cast::<*mut C>();
                    object.opened(ret, out, object.format);
                }
                _ => object.refresh(),
            }
            ret
        };
    ops_open(
        this: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void,
        context: *mut c_void
    ) -> c_int, OpenOps, Args::None;
    tostr(this: *const fid, buf: *mut c_char, len: usize) -> c_int, Tostr, Args::None;
    ops_set(
        this: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void
    ) -> c_int, SetOps, Args::None;
}

table! {
    /// The calls of a fabric.
    fabric_ops = fi_ops_fabric, fid_fabric.ops;
    domain(
        fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain,
        context: *mut c_void
    ) -> c_int,
        Domain, Args::Open(OpenArgs::new(domain, OpenAttr::Info(info), context)), |object, call| {
            let _info = SwapInfo::new(info);
            let ret = call(object.inner().cast(), info, domain, context);
            object.opened(ret, domain, addr_format(info))
        };
    passive_ep(
        fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep,
        context: *mut c_void
    ) -> c_int,
        PassiveEp, Args::Open(OpenArgs::new(pep, OpenAttr::Info(info), context)), |object, call| {
            let _info = SwapInfo::new(info);
            object.opened(call(object.inner().cast(), info, pep, context), pep, addr_format(info))
        };
    eq_open(
        fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq,
        context: *mut c_void
    ) -> c_int,
        EqOpen, Args::Open(OpenArgs::new(eq, OpenAttr::None, context)), |object, call| {
            let _set = swap_set(attr.as_mut().map(|attr| (attr.wait_obj, &raw mut attr.wait_set)));
            object.opened(call(object.inner().cast(), attr, eq, context), eq, 0)
        };
    wait_open(
        fabric: *mut fid_fabric, attr: *mut fi_wait_attr, wait: *mut *mut fid_wait
    ) -> c_int,
        WaitOpen, Args::Open(OpenArgs::new(wait, OpenAttr::None, ptr::null_mut())),
        |object, call| object.opened(call(object.inner().cast(), attr, wait), wait, 0);
    trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int,
        Trywait, Args::None, |object, call| {
            let count = if fids.is_null() { 0 } else { count.max(0) };
            let mut inner: Vec<_> =
                (0..count as usize).map(|index| fids::inner(*fids.add(index))).collect();
            call(object.inner().cast(), inner.as_mut_ptr(), count)
        };
    domain2(
        fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, flags: u64,
        context: *mut c_void
    ) -> c_int,
        Domain2, Args::Open(OpenArgs::new(domain, OpenAttr::Info(info), context)), |object, call| {
            let _info = SwapInfo::new(info);
            let ret = call(object.inner().cast(), info, domain, flags, context);
            object.opened(ret, domain, addr_format(info))
        };
}

table! {
    /// The calls of a domain.
    domain_ops = fi_ops_domain, fid_domain.ops;
    av_open(
        domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av,
        context: *mut c_void
    ) -> c_int,
        AvOpen, Args::Open(OpenArgs::new(av, OpenAttr::Av(attr), context)),
        |object, call| object.opened(call(object.inner().cast(), attr, av, context), av, 0);
    cq_open(
        domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq,
        context: *mut c_void
    ) -> c_int,
        CqOpen, Args::Open(OpenArgs::new(cq, OpenAttr::Cq(attr), context)), |object, call| {
            let _set = swap_set(attr.as_mut().map(|attr| (attr.wait_obj, &raw mut attr.wait_set)));
            object.opened(call(object.inner().cast(), attr, cq, context), cq, cq_format(attr))
        };
    endpoint(
        domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void
    ) -> c_int,
        Endpoint, Args::Open(OpenArgs::new(ep, OpenAttr::Info(info), context)), |object, call| {
            let _info = SwapInfo::new(info);
            object.opened(call(object.inner().cast(), info, ep, context), ep, addr_format(info))
        };
    scalable_ep(
        domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void
    ) -> c_int,
        ScalableEp, Args::Open(OpenArgs::new(ep, OpenAttr::Info(info), context)), |object, call| {
            let _info = SwapInfo::new(info);
            object.opened(call(object.inner().cast(), info, ep, context), ep, addr_format(info))
        };
    cntr_open(
        domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr,
        context: *mut c_void
    ) -> c_int,
        CntrOpen, Args::Open(OpenArgs::new(cntr, OpenAttr::Cntr(attr), context)), |object, call| {
            let _set = swap_set(attr.as_mut().map(|attr| (attr.wait_obj, &raw mut attr.wait_set)));
            object.opened(call(object.inner().cast(), attr, cntr, context), cntr, 0)
        };
    poll_open(
        domain: *mut fid_domain, attr: *mut fi_poll_attr, poll: *mut *mut fid_poll
    ) -> c_int,
        PollOpen, Args::Open(OpenArgs::new(poll, OpenAttr::None, ptr::null_mut())),
        |object, call| object.opened(call(object.inner().cast(), attr, poll), poll, 0);
    stx_ctx(
        domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx,
        context: *mut c_void
    ) -> c_int,
        StxContext, Args::Open(OpenArgs::new(stx, OpenAttr::None, context)),
        |object, call| object.opened(call(object.inner().cast(), attr, stx, context), stx, 0);
    srx_ctx(
        domain: *mut fid_domain, attr: *mut fi_rx_attr, srx: *mut *mut fid_ep,
        context: *mut c_void
    ) -> c_int,
        SrxContext, Args::Open(OpenArgs::new(srx, OpenAttr::None, context)),
        |object, call| object.opened(call(object.inner().cast(), attr, srx, context), srx, 0);
    query_atomic(
        domain: *mut fid_domain, datatype: HookDatatype, op: HookOperation, attr: *mut fi_atomic_attr,
        flags: u64
    ) -> c_int, QueryAtomic, Args::None;
    query_collective(
        domain: *mut fid_domain, collective: c_enum<fi_collective_op>,
        attr: *mut fi_collective_attr, flags: u64
    ) -> c_int, QueryCollective, Args::None;
    endpoint2(
        domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64,
        context: *mut c_void
    ) -> c_int,
        Endpoint2, Args::Open(OpenArgs::new(ep, OpenAttr::Info(info), context)), |object, call| {
            let _info = SwapInfo::new(info);
            let ret = call(object.inner().cast(), info, ep, flags, context);
            object.opened(ret, ep, addr_format(info))
        };
    xpu_ctx(
        domain: *mut fid_domain, attr: *mut fi_xpu_attr, ctx: *mut *mut fid_xpu_ctx,
        context: *mut c_void
    ) -> c_int, XpuCtx, Args::None;
}

table! {
    /// Calls registering memory.
    mr_ops = fi_ops_mr, fid_domain.mr;
    reg(
        domain: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, key: u64,
        flags: u64, mr: *mut *mut fid_mr, context: *mut c_void
    ) -> c_int,
        MrReg, Args::Region(RegionArgs {
            attr: &mr_attr(&piece(buf, len), 1, access, offset, key, context), flags, out: mr
        }),
        |object, call| {
            let ret = call(
                object.inner().cast(), buf, len, access, offset, key, flags, mr, context
            );
            object.opened(ret, mr, 0)
        };
    regv(
        domain: *mut fid, iov: *const iovec, count: usize, access: u64, offset: u64, key: u64,
        flags: u64, mr: *mut *mut fid_mr, context: *mut c_void
    ) -> c_int,
        MrRegv, Args::Region(RegionArgs {
            attr: &mr_attr(iov, count, access, offset, key, context), flags, out: mr
        }),
        |object, call| {
            let ret = call(
                object.inner().cast(), iov, count, access, offset, key, flags, mr, context
            );
            object.opened(ret, mr, 0)
        };
    regattr(domain: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int,
        MrRegattr, Args::Region(RegionArgs { attr, flags, out: mr }), |object, call| {
            let since_2_0 = object.shared.api_version >= version(2, 0);
            let _key = swap_key(attr, object.shared.api_version);
            let copy = attr.as_ref().filter(|_| since_2_0).map(|attr| fi_mr_attr {
                base_mr: fids::inner(attr.base_mr.cast_mut()),
                ..*attr
            });
            let attr = copy.as_ref().map_or(attr, ptr::from_ref);
            object.opened(call(object.inner().cast(), attr, flags, mr), mr, 0)
        };
}

table! {
    /// The calls of any endpoint.
    ep_ops = fi_ops_ep, fid_ep.ops;
    cancel(ep: *mut fid, context: *mut c_void) -> ssize_t, Cancel, Args::None;
    getopt(ep: *mut fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int,
        Getopt, Args::None;
    setopt(ep: *mut fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int,
        Setopt, Args::None;
    tx_ctx(
        ep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx: *mut *mut fid_ep,
        context: *mut c_void
    ) -> c_int,
        TxContext, Args::Open(OpenArgs::new(tx, OpenAttr::None, context)),
        |object, call| {
            let ret = call(object.inner().cast(), index, attr, tx, context);
            object.opened(ret, tx, object.format)
        };
    rx_ctx(
        ep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx: *mut *mut fid_ep,
        context: *mut c_void
    ) -> c_int,
        RxContext, Args::Open(OpenArgs::new(rx, OpenAttr::None, context)),
        |object, call| {
            let ret = call(object.inner().cast(), index, attr, rx, context);
            object.opened(ret, rx, object.format)
        };
    rx_size_left(ep: *mut fid_ep) -> ssize_t, RxSizeLeft, Args::None;
    tx_size_left(ep: *mut fid_ep) -> ssize_t, TxSizeLeft, Args::None;
    export_xpu(ep: *mut fid_ep, flags: u64, xpu: *mut fid_xpu_ep) -> c_int,
        EpExportXpu, Args::None;
}

table! {
    /// Calls managing connections.
    cm_ops = fi_ops_cm, fid_ep.cm;
    setname(ep: *mut fid, addr: *mut c_void, len: usize) -> c_int, Setname, Args::Address(addr);
    getname(ep: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int,
        Getname, Args::Address(addr);
    getpeer(ep: *mut fid_ep, addr: *mut c_void, len: *mut usize) -> c_int,
        Getpeer, Args::Address(addr);
    connect(ep: *mut fid_ep, addr: *const c_void, param: *const c_void, len: usize) -> c_int,
        Connect, Args::Address(addr);
    listen(pep: *mut fid_pep) -> c_int, Listen, Args::None;
    accept(ep: *mut fid_ep, param: *const c_void, len: usize) -> c_int, Accept, Args::None;
    reject(pep: *mut fid_pep, handle: *mut fid, param: *const c_void, len: usize) -> c_int,
        Reject, Args::None,
        |object, call| call(object.inner().cast(), fids::inner(handle), param, len);
    shutdown(ep: *mut fid_ep, flags: u64) -> c_int, Shutdown, Args::None;
    join(
        ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc,
        context: *mut c_void
    ) -> c_int,
        Join, Args::Open(OpenArgs::new(mc, OpenAttr::None, context)), |object, call| {
            let group = addr.cast::<fi_collective_addr>();
            let named = flags & FI_COLLECTIVE != 0 && !addr.is_null();
            let copy = named.then(|| fi_collective_addr {
                set: fids::inner((*group).set.cast_mut()),
                ..*group
            });
            let addr = copy.as_ref().map_or(addr, |group| ptr::from_ref(group).cast());
            object.opened(call(object.inner().cast(), addr, flags, mc, context), mc, 0)
        };
}

table! {
    /// Messages.
    msg_ops = fi_ops_msg, fid_ep.msg;
    recv(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, addr: fi_addr_t,
        context: *mut c_void
    ) -> ssize_t, Recv, Args::Transfer(TransferArgs { context, ..TransferArgs::of(buf, len, addr) });
    recvv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, context: *mut c_void
    ) -> ssize_t,
        Recvv, Args::Transfer(TransferArgs { context, ..TransferArgs::vector(iov, count, addr) });
    recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t,
        Recvmsg, message(msg, flags & !FI_REMOTE_CQ_DATA), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    send(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, addr: fi_addr_t,
        context: *mut c_void
    ) -> ssize_t, Send, Args::Transfer(TransferArgs { context, ..TransferArgs::of(buf, len, addr) });
    sendv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, context: *mut c_void
    ) -> ssize_t,
        Sendv, Args::Transfer(TransferArgs { context, ..TransferArgs::vector(iov, count, addr) });
    sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> ssize_t,
        Sendmsg, message(msg, flags), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    inject(ep: *mut fid_ep, buf: *const c_void, len: usize, addr: fi_addr_t) -> ssize_t,
        Inject, Args::Transfer(TransferArgs { ..TransferArgs::of(buf, len, addr) });
    senddata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        addr: fi_addr_t, context: *mut c_void
    ) -> ssize_t,
        Senddata, Args::Transfer(TransferArgs { data, context, ..TransferArgs::of(buf, len, addr) });
    injectdata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, addr: fi_addr_t
    ) -> ssize_t, Injectdata, Args::Transfer(TransferArgs { data, ..TransferArgs::of(buf, len, addr) });
}

table! {
    /// Tagged messages.
    tagged_ops = fi_ops_tagged, fid_ep.tagged;
    recv(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, addr: fi_addr_t,
        tag: u64, ignore: u64, context: *mut c_void
    ) -> ssize_t,
        Trecv, Args::Transfer(TransferArgs { tag, ignore, context, ..TransferArgs::of(buf, len, addr) });
    recvv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void
    ) -> ssize_t,
        Trecvv,
        Args::Transfer(TransferArgs { tag, ignore, context, ..TransferArgs::vector(iov, count, addr) });
    recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t,
        Trecvmsg, tagged_message(msg, flags, true), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    send(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, addr: fi_addr_t,
        tag: u64, context: *mut c_void
    ) -> ssize_t,
        Tsend, Args::Transfer(TransferArgs { tag, context, ..TransferArgs::of(buf, len, addr) });
    sendv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, tag: u64, context: *mut c_void
    ) -> ssize_t,
        Tsendv, Args::Transfer(TransferArgs { tag, context, ..TransferArgs::vector(iov, count, addr) });
    sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> ssize_t,
        Tsendmsg, tagged_message(msg, flags, false), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    inject(ep: *mut fid_ep, buf: *const c_void, len: usize, addr: fi_addr_t, tag: u64) -> ssize_t,
        Tinject, Args::Transfer(TransferArgs { tag, ..TransferArgs::of(buf, len, addr) });
    senddata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        addr: fi_addr_t, tag: u64, context: *mut c_void
    ) -> ssize_t,
        Tsenddata,
        Args::Transfer(TransferArgs { data, tag, context, ..TransferArgs::of(buf, len, addr) });
    injectdata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, addr: fi_addr_t, tag: u64
    ) -> ssize_t,
        Tinjectdata, Args::Transfer(TransferArgs { data, tag, ..TransferArgs::of(buf, len, addr) });
}

table! {
    /// Remote memory accesses.
    rma_ops = fi_ops_rma, fid_ep.rma;
    read(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, addr: fi_addr_t,
        raddr: u64, key: u64, context: *mut c_void
    ) -> ssize_t,
        Read, Args::Transfer(TransferArgs { raddr, key, context, ..TransferArgs::of(buf, len, addr) });
    readv(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, raddr: u64, key: u64, context: *mut c_void
    ) -> ssize_t,
        Readv,
        Args::Transfer(TransferArgs { raddr, key, context, ..TransferArgs::vector(iov, count, addr) });
    readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t,
        Readmsg, remote_message(msg, flags), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    write(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, addr: fi_addr_t,
        raddr: u64, key: u64, context: *mut c_void
    ) -> ssize_t,
        Write, Args::Transfer(TransferArgs { raddr, key, context, ..TransferArgs::of(buf, len, addr) });
    writev(
        ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, raddr: u64, key: u64, context: *mut c_void
    ) -> ssize_t,
        Writev,
        Args::Transfer(TransferArgs { raddr, key, context, ..TransferArgs::vector(iov, count, addr) });
    writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> ssize_t,
        Writemsg, remote_message(msg, flags), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    inject(
        ep: *mut fid_ep, buf: *const c_void, len: usize, addr: fi_addr_t, raddr: u64, key: u64
    ) -> ssize_t,
        InjectWrite, Args::Transfer(TransferArgs { raddr, key, ..TransferArgs::of(buf, len, addr) });
    writedata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        addr: fi_addr_t, raddr: u64, key: u64, context: *mut c_void
    ) -> ssize_t,
        Writedata,
        Args::Transfer(TransferArgs { data, raddr, key, context, ..TransferArgs::of(buf, len, addr) });
    injectdata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, addr: fi_addr_t, raddr: u64,
        key: u64
    ) -> ssize_t,
        InjectWritedata,
        Args::Transfer(TransferArgs { data, raddr, key, ..TransferArgs::of(buf, len, addr) });
}

table! {
    /// Atomics.
    atomic_ops = fi_ops_atomic, fid_ep.atomic;
    write(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, addr: fi_addr_t,
        raddr: u64, key: u64, datatype: HookDatatype, op: HookOperation, context: *mut c_void
    ) -> ssize_t,
        Atomic,
        Args::Transfer(TransferArgs {
            raddr, key, context, ..TransferArgs::array(buf, count, datatype, addr)
        });
    writev(
        ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
        addr: fi_addr_t, raddr: u64, key: u64, datatype: HookDatatype, op: HookOperation,
        context: *mut c_void
    ) -> ssize_t,
        Atomicv,
        Args::Transfer(TransferArgs {
            raddr, key, context, ..TransferArgs::elements(iov, count, datatype, addr)
        });
    writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> ssize_t,
        Atomicmsg, atomic_message(msg, flags), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, flags)
        };
    inject(
        ep: *mut fid_ep, buf: *const c_void, count: usize, addr: fi_addr_t, raddr: u64, key: u64,
        datatype: HookDatatype, op: HookOperation
    ) -> ssize_t,
        InjectAtomic,
        Args::Transfer(TransferArgs { raddr, key, ..TransferArgs::array(buf, count, datatype, addr) });
    readwrite(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, addr: fi_addr_t, raddr: u64, key: u64,
        datatype: HookDatatype, op: HookOperation, context: *mut c_void
    ) -> ssize_t,
        FetchAtomic,
        Args::Transfer(TransferArgs {
            raddr, key, context, ..TransferArgs::array(buf, count, datatype, addr)
        });
    readwritev(
        ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
        result: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, addr: fi_addr_t,
        raddr: u64, key: u64, datatype: HookDatatype, op: HookOperation, context: *mut c_void
    ) -> ssize_t,
        FetchAtomicv,
        Args::Transfer(TransferArgs {
            raddr, key, context, ..TransferArgs::elements(iov, count, datatype, addr)
        });
    readwritemsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, result: *mut fi_ioc,
        result_desc: *mut *mut c_void, result_count: usize, flags: u64
    ) -> ssize_t,
        FetchAtomicmsg, atomic_message(msg, flags), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(object.inner().cast(), msg, result, result_desc, result_count, flags)
        };
    compwrite(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        compare: *const c_void, compare_desc: *mut c_void, result: *mut c_void,
        result_desc: *mut c_void, addr: fi_addr_t, raddr: u64, key: u64, datatype: HookDatatype,
        op: HookOperation, context: *mut c_void
    ) -> ssize_t,
        CompareAtomic,
        Args::Transfer(TransferArgs {
            raddr, key, context, ..TransferArgs::array(buf, count, datatype, addr)
        });
    compwritev(
        ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
        compare: *const fi_ioc, compare_desc: *mut *mut c_void, compare_count: usize,
        result: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, addr: fi_addr_t,
        raddr: u64, key: u64, datatype: HookDatatype, op: HookOperation, context: *mut c_void
    ) -> ssize_t,
        CompareAtomicv,
        Args::Transfer(TransferArgs {
            raddr, key, context, ..TransferArgs::elements(iov, count, datatype, addr)
        });
    compwritemsg(
        ep: *mut fid_ep, msg: *const fi_msg_atomic, compare: *const fi_ioc,
        compare_desc: *mut *mut c_void, compare_count: usize, result: *mut fi_ioc,
        result_desc: *mut *mut c_void, result_count: usize, flags: u64
    ) -> ssize_t,
        CompareAtomicmsg, atomic_message(msg, flags), |object, call| {
            if let Some(msg) = msg.as_ref() { trigger(flags, msg.context); }
            call(
                object.inner().cast(), msg, compare, compare_desc, compare_count, result,
                result_desc, result_count, flags
            )
        };
    writevalid(ep: *mut fid_ep, datatype: HookDatatype, op: HookOperation, count: *mut usize) -> c_int,
        Atomicvalid, Args::None;
    readwritevalid(ep: *mut fid_ep, datatype: HookDatatype, op: HookOperation, count: *mut usize) -> c_int,
        FetchAtomicvalid, Args::None;
    compwritevalid(ep: *mut fid_ep, datatype: HookDatatype, op: HookOperation, count: *mut usize) -> c_int,
        CompareAtomicvalid, Args::None;
}

table! {
    /// Collective operations, available in endpoints since 1.9.
    collective_ops = fi_ops_collective, fid_ep.collective since version(1, 9);
    barrier(ep: *mut fid_ep, group: fi_addr_t, context: *mut c_void) -> ssize_t,
        Barrier, Args::None;
    broadcast(
        ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void, group: fi_addr_t,
        root: fi_addr_t, datatype: HookDatatype, flags: u64, context: *mut c_void
    ) -> ssize_t, Broadcast, Args::None;
    alltoall(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, datatype: HookDatatype,
        flags: u64, context: *mut c_void
    ) -> ssize_t, Alltoall, Args::None;
    allreduce(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, datatype: HookDatatype,
        op: HookOperation, flags: u64, context: *mut c_void
    ) -> ssize_t, Allreduce, Args::None;
    allgather(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, datatype: HookDatatype,
        flags: u64, context: *mut c_void
    ) -> ssize_t, Allgather, Args::None;
    reduce_scatter(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, datatype: HookDatatype,
        op: HookOperation, flags: u64, context: *mut c_void
    ) -> ssize_t, ReduceScatter, Args::None;
    reduce(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: HookDatatype, op: HookOperation, flags: u64, context: *mut c_void
    ) -> ssize_t, Reduce, Args::None;
    scatter(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: HookDatatype, flags: u64, context: *mut c_void
    ) -> ssize_t, Scatter, Args::None;
    gather(
        ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: HookDatatype, flags: u64, context: *mut c_void
    ) -> ssize_t, Gather, Args::None;
    msg(
        ep: *mut fid_ep, msg: *const fi_msg_collective, result: *mut fi_ioc,
        result_desc: *mut *mut c_void, result_count: usize, flags: u64
    ) -> ssize_t, Collective, Args::None;
    barrier2(ep: *mut fid_ep, group: fi_addr_t, flags: u64, context: *mut c_void) -> ssize_t,
        Barrier2, Args::None;
}

table! {
    /// The calls of an address vector.
    av_ops = fi_ops_av, fid_av.ops;
    insert(
        av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
        context: *mut c_void
    ) -> c_int, AvInsert, Args::None;
    insertsvc(
        av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t,
        flags: u64, context: *mut c_void
    ) -> c_int, AvInsertsvc, Args::None;
    insertsym(
        av: *mut fid_av, node: *const c_char, nodes: usize, service: *const c_char,
        services: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void
    ) -> c_int, AvInsertsym, Args::None;
    remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int,
        AvRemove, Args::None;
    lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, len: *mut usize) -> c_int,
        AvLookup, Args::None;
    straddr(
        av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize
    ) -> *const c_char, AvStraddr, Args::None;
    av_set(
        av: *mut fid_av, attr: *mut fi_av_set_attr, set: *mut *mut fid_av_set,
        context: *mut c_void
    ) -> c_int,
        AvSet, Args::Open(OpenArgs::new(set, OpenAttr::None, context)),
        |object, call| object.opened(call(object.inner().cast(), attr, set, context), set, 0);
    insert_auth_key(
        av: *mut fid_av, key: *const c_void, len: usize, fi_addr: *mut fi_addr_t, flags: u64
    ) -> c_int, AvInsertAuthKey, Args::None;
    lookup_auth_key(
        av: *mut fid_av, fi_addr: fi_addr_t, key: *mut c_void, len: *mut usize
    ) -> c_int, AvLookupAuthKey, Args::None;
    set_user_id(av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64) -> c_int,
        AvSetUserId, Args::None;
    lookup2(
        av: *mut fid_av, fi_addr: fi_addr_t, buf: *mut c_void, len: *mut usize, flags: u64,
        ctx: *mut fid_xpu_ctx
    ) -> c_int, AvLookup2, Args::None;
}

table! {
    /// The calls of an address vector set.
    av_set_ops = fi_ops_av_set, fid_av_set.ops;
    set_union(set: *mut fid_av_set, other: *const fid_av_set) -> c_int,
        AvSetUnion, Args::None,
        |object, call| call(object.inner().cast(), fids::inner(other.cast_mut()));
    intersect(set: *mut fid_av_set, other: *const fid_av_set) -> c_int,
        AvSetIntersect, Args::None,
        |object, call| call(object.inner().cast(), fids::inner(other.cast_mut()));
    diff(set: *mut fid_av_set, other: *const fid_av_set) -> c_int,
        AvSetDiff, Args::None,
        |object, call| call(object.inner().cast(), fids::inner(other.cast_mut()));
    insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int, AvSetInsert, Args::None;
    remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int, AvSetRemove, Args::None;
    addr(set: *mut fid_av_set, addr: *mut fi_addr_t) -> c_int, AvSetAddr, Args::None;
}

table! {
    /// The calls of a completion queue.
    cq_ops = fi_ops_cq, fid_cq.ops;
    read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> ssize_t,
        CqRead, Args::Completions(buf, ptr::null());
    readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src: *mut fi_addr_t) -> ssize_t,
        CqReadfrom, Args::Completions(buf, src);
    readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> ssize_t,
        CqReaderr, Args::Error(buf);
    sread(
        cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int
    ) -> ssize_t, CqSread, Args::Completions(buf, ptr::null());
    sreadfrom(
        cq: *mut fid_cq, buf: *mut c_void, count: usize, src: *mut fi_addr_t,
        cond: *const c_void, timeout: c_int
    ) -> ssize_t, CqSreadfrom, Args::Completions(buf, src);
    signal(cq: *mut fid_cq) -> c_int, CqSignal, Args::None;
    strerror(
        cq: *mut fid_cq, prov_errno: c_int, data: *const c_void, buf: *mut c_char, len: usize
    ) -> *const c_char, CqStrerror, Args::None;
    export_xpu(cq: *mut fid_cq, flags: u64, xpu: *mut fid_xpu_cq) -> c_int,
        CqExportXpu, Args::None;
}

table! {
    /// The calls of a counter.
    cntr_ops = fi_ops_cntr, fid_cntr.ops;
    read(cntr: *mut fid_cntr) -> u64, CntrRead, Args::None;
    readerr(cntr: *mut fid_cntr) -> u64, CntrReaderr, Args::None;
    add(cntr: *mut fid_cntr, value: u64) -> c_int, CntrAdd, Args::None;
    set(cntr: *mut fid_cntr, value: u64) -> c_int, CntrSet, Args::None;
    wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int,
        CntrWait, Args::Threshold(threshold, timeout);
    adderr(cntr: *mut fid_cntr, value: u64) -> c_int, CntrAdderr, Args::None;
    seterr(cntr: *mut fid_cntr, value: u64) -> c_int, CntrSeterr, Args::None;
    export_xpu(cntr: *mut fid_cntr, flags: u64, xpu: *mut fid_xpu_cntr) -> c_int,
        CntrExportXpu, Args::None;
}

table! {
    /// The calls of an event queue.
    eq_ops = fi_ops_eq, fid_eq.ops;
    read(eq: *mut fid_eq, kind: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> ssize_t,
        EqRead, Args::None, |object, call| {
            let ret = call(object.inner().cast(), kind, buf, len, flags);
            if ret > 0 && !kind.is_null() { event::<H>(*kind, buf, ret); }
            ret
        };
    readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> ssize_t,
        EqReaderr, Args::None, |object, call| {
            let ret = call(object.inner().cast(), buf, flags);
            if ret > 0 && !buf.is_null() { outside::<H>(&raw mut (*buf).fid); }
            ret
        };
    write(eq: *mut fid_eq, kind: u32, buf: *const c_void, len: usize, flags: u64) -> ssize_t,
        EqWrite, Args::None;
    sread(
        eq: *mut fid_eq, kind: *mut u32, buf: *mut c_void, len: usize, timeout: c_int,
        flags: u64
    ) -> ssize_t,
        EqSread, Args::None, |object, call| {
            let ret = call(object.inner().cast(), kind, buf, len, timeout, flags);
            if ret > 0 && !kind.is_null() { event::<H>(*kind, buf, ret); }
            ret
        };
    strerror(
        eq: *mut fid_eq, prov_errno: c_int, data: *const c_void, buf: *mut c_char, len: usize
    ) -> *const c_char, EqStrerror, Args::None;
}

table! {
    /// The calls of a poll set.
    poll_ops = fi_ops_poll, fid_poll.ops;
    poll(poll: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int,
        Poll, Args::None;
    poll_add(poll: *mut fid_poll, other: *mut fid, flags: u64) -> c_int,
        PollAdd, Args::None, |object, call| call(object.inner().cast(), fids::inner(other), flags);
    poll_del(poll: *mut fid_poll, other: *mut fid, flags: u64) -> c_int,
        PollDel, Args::None, |object, call| call(object.inner().cast(), fids::inner(other), flags);
}

table! {
    /// The calls of a wait set.
    wait_ops = fi_ops_wait, fid_wait.ops;
    wait(wait: *mut fid_wait, timeout: c_int) -> c_int, Wait, Args::None;
}

/// Defines the program's object of each kind: a head, the hook's tables, and the fields read
/// directly.
macro_rules! objects {
    ($($fid:ident {$($table:ident: $ops:ident),*} $(reads $($field:ident),+)?;)+) => {$(
        // SAFETY: a struct of the API that starts with a fid.
        unsafe impl Fid for $fid {
            unsafe fn outer<H: Hook>(inner: *mut Self, _shared: &HookedFabric<H>) -> Self {
                // SAFETY: by this function's contract.
                unsafe {
                    Self {
                        fid: head::<Self, H>(inner),
                        $($table: $ops::<Self, H>(),)*
                        $($($field: (&raw const (*inner).$field).read(),)+)?
                    }
                }
            }

            unsafe fn refresh(_outer: *mut Self, _inner: *mut Self) {
                // SAFETY: by this function's contract.
                $($(unsafe { (*_outer).$field = (*_inner).$field; })+)?
            }
        }
    )+};
}

objects! {
    fid_domain { ops: domain_ops, mr: mr_ops };
    fid_ep {
        ops: ep_ops, cm: cm_ops, msg: msg_ops, rma: rma_ops, tagged: tagged_ops,
        atomic: atomic_ops, collective: collective_ops
    };
    fid_pep { ops: ep_ops, cm: cm_ops };
    fid_stx { ops: ep_ops };
    fid_av { ops: av_ops };
    fid_av_set { ops: av_set_ops };
    fid_mr {} reads mem_desc, key;
    fid_mc {} reads fi_addr;
    fid_cq { ops: cq_ops };
    fid_cntr { ops: cntr_ops };
    fid_eq { ops: eq_ops };
    fid_poll { ops: poll_ops };
    fid_wait { ops: wait_ops };
}

// SAFETY: a struct of the API that starts with a fid.
unsafe impl Fid for fid_fabric {
    unsafe fn outer<H: Hook>(inner: *mut Self, shared: &HookedFabric<H>) -> Self {
        // SAFETY: by this function's contract.
        let fid = unsafe { head::<Self, H>(inner) };
        Self { fid, ops: fabric_ops::<Self, H>(), api_version: shared.api_version }
    }
}
