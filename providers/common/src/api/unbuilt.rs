//! Slots of ops tables that are not built: every slot must hold a function,
//! because the inline calls do not look (reference: fi_provider(7)).
use crate::abi::{
    FI_ENOSYS, FI_EOPBADSTATE, c_enum, fi_addr_t, fi_datatype, fi_ioc, fi_msg, fi_msg_atomic,
    fi_msg_collective, fi_msg_rma, fi_msg_tagged, fi_op, fi_ops_atomic, fi_ops_collective,
    fi_ops_msg, fi_ops_rma, fi_ops_tagged, fi_rx_attr, fi_tx_attr, fid_ep, fid_mc, fid_pep, fid_t,
    fid_xpu_ep,
};
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};
use ofi::unbuilt;

type Ep = *mut fid_ep;
type Buf = *mut c_void;
type ConstBuf = *const c_void;
type Desc = *mut *mut c_void;
type Type = c_enum<fi_datatype>;
type Op = c_enum<fi_op>;

unbuilt! {
    pub(crate) fn no_cancel(fid_t, Buf) -> ssize_t;
    pub(crate) fn no_tx_ctx(Ep, c_int, *mut fi_tx_attr, *mut Ep, Buf) -> c_int;
    pub(crate) fn no_rx_ctx(Ep, c_int, *mut fi_rx_attr, *mut Ep, Buf) -> c_int;
    pub(crate) fn no_size_left(Ep) -> ssize_t;
    pub(crate) fn no_getopt(fid_t, c_int, c_int, Buf, *mut usize) -> c_int;
    pub(crate) fn no_setopt(fid_t, c_int, c_int, ConstBuf, usize) -> c_int;
    pub(crate) fn no_export_xpu(Ep, u64, *mut fid_xpu_ep) -> c_int;

    pub(crate) fn no_getpeer(Ep, Buf, *mut usize) -> c_int;
    pub(crate) fn no_connect(Ep, ConstBuf, ConstBuf, usize) -> c_int;
    pub(crate) fn no_listen(*mut fid_pep) -> c_int;
    pub(crate) fn no_accept(Ep, ConstBuf, usize) -> c_int;
    pub(crate) fn no_reject(*mut fid_pep, fid_t, ConstBuf, usize) -> c_int;
    pub(crate) fn no_shutdown(Ep, u64) -> c_int;
    pub(crate) fn no_join(Ep, ConstBuf, u64, *mut *mut fid_mc, Buf) -> c_int;

    pub(crate) fn read(Ep, Buf, usize, Buf, fi_addr_t, u64, u64, Buf) -> ssize_t;
    pub(crate) fn readv(Ep, *const iovec, Desc, usize, fi_addr_t, u64, u64, Buf) -> ssize_t;
    pub(crate) fn readmsg(Ep, *const fi_msg_rma, u64) -> ssize_t;
    pub(crate) fn write(Ep, ConstBuf, usize, Buf, fi_addr_t, u64, u64, Buf) -> ssize_t;
    pub(crate) fn rma_inject(Ep, ConstBuf, usize, fi_addr_t, u64, u64) -> ssize_t;
    pub(crate) fn writedata(Ep, ConstBuf, usize, Buf, u64, fi_addr_t, u64, u64, Buf) -> ssize_t;
    pub(crate) fn rma_injectdata(Ep, ConstBuf, usize, u64, fi_addr_t, u64, u64) -> ssize_t;

    pub(crate) fn atomic(Ep, ConstBuf, usize, Buf, fi_addr_t, u64, u64, Type, Op, Buf) -> ssize_t;
    pub(crate) fn atomicv(Ep, *const fi_ioc, Desc, usize, fi_addr_t, u64, u64, Type, Op, Buf) -> ssize_t;
    pub(crate) fn atomicmsg(Ep, *const fi_msg_atomic, u64) -> ssize_t;
    pub(crate) fn atomic_inject(Ep, ConstBuf, usize, fi_addr_t, u64, u64, Type, Op) -> ssize_t;
    pub(crate) fn fetch(Ep, ConstBuf, usize, Buf, Buf, Buf, fi_addr_t, u64, u64, Type, Op, Buf) -> ssize_t;
    pub(crate) fn fetchv(Ep, *const fi_ioc, Desc, usize, *mut fi_ioc, Desc, usize, fi_addr_t, u64, u64, Type, Op, Buf) -> ssize_t;
    pub(crate) fn fetchmsg(Ep, *const fi_msg_atomic, *mut fi_ioc, Desc, usize, u64) -> ssize_t;
    pub(crate) fn compare(Ep, ConstBuf, usize, Buf, ConstBuf, Buf, Buf, Buf, fi_addr_t, u64, u64, Type, Op, Buf) -> ssize_t;
    pub(crate) fn comparev(Ep, *const fi_ioc, Desc, usize, *const fi_ioc, Desc, usize, *mut fi_ioc, Desc, usize, fi_addr_t, u64, u64, Type, Op, Buf) -> ssize_t;
    pub(crate) fn comparemsg(Ep, *const fi_msg_atomic, *const fi_ioc, Desc, usize, *mut fi_ioc, Desc, usize, u64) -> ssize_t;
    pub(crate) fn valid(Ep, Type, Op, *mut usize) -> c_int;

    pub(crate) fn barrier(Ep, fi_addr_t, Buf) -> ssize_t;
    pub(crate) fn barrier2(Ep, fi_addr_t, u64, Buf) -> ssize_t;
    pub(crate) fn broadcast(Ep, Buf, usize, Buf, fi_addr_t, fi_addr_t, Type, u64, Buf) -> ssize_t;
    pub(crate) fn exchange(Ep, ConstBuf, usize, Buf, Buf, Buf, fi_addr_t, Type, u64, Buf) -> ssize_t;
    pub(crate) fn reduce_all(Ep, ConstBuf, usize, Buf, Buf, Buf, fi_addr_t, Type, Op, u64, Buf) -> ssize_t;
    pub(crate) fn reduce(Ep, ConstBuf, usize, Buf, Buf, Buf, fi_addr_t, fi_addr_t, Type, Op, u64, Buf) -> ssize_t;
    pub(crate) fn rooted(Ep, ConstBuf, usize, Buf, Buf, Buf, fi_addr_t, fi_addr_t, Type, u64, Buf) -> ssize_t;
    pub(crate) fn collmsg(Ep, *const fi_msg_collective, *mut fi_ioc, Desc, usize, u64) -> ssize_t;
}

/// The table of endpoints without remote memory access.
pub(crate) static NO_RMA: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(readv),
    writemsg: Some(readmsg),
    inject: Some(rma_inject),
    writedata: Some(writedata),
    injectdata: Some(rma_injectdata),
};

/// The table of endpoints without atomic operations.
pub(crate) static NO_ATOMIC: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(atomic),
    writev: Some(atomicv),
    writemsg: Some(atomicmsg),
    inject: Some(atomic_inject),
    readwrite: Some(fetch),
    readwritev: Some(fetchv),
    readwritemsg: Some(fetchmsg),
    compwrite: Some(compare),
    compwritev: Some(comparev),
    compwritemsg: Some(comparemsg),
    writevalid: Some(valid),
    readwritevalid: Some(valid),
    compwritevalid: Some(valid),
};

/// The table of endpoints without collective operations.
pub(crate) static NO_COLLECTIVE: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(exchange),
    allreduce: Some(reduce_all),
    allgather: Some(exchange),
    reduce_scatter: Some(reduce_all),
    reduce: Some(reduce),
    scatter: Some(rooted),
    gather: Some(rooted),
    msg: Some(collmsg),
    barrier2: Some(barrier2),
};

/// `refusing! { name(types); }`: functions that answer `-CODE`, for tables whose
/// only difference is the code.
macro_rules! refusing {
    ($($name:ident($($arg:ty),* $(,)?);)+) => {$(
        unsafe extern "C" fn $name<const CODE: c_int>($(_: $arg),*) -> ssize_t {
            -(CODE as ssize_t)
        }
    )+};
}

refusing! {
    x_recv(Ep, Buf, usize, Buf, fi_addr_t, Buf);
    x_recvv(Ep, *const iovec, Desc, usize, fi_addr_t, Buf);
    x_msg(Ep, *const fi_msg, u64);
    x_send(Ep, ConstBuf, usize, Buf, fi_addr_t, Buf);
    x_inject(Ep, ConstBuf, usize, fi_addr_t);
    x_senddata(Ep, ConstBuf, usize, Buf, u64, fi_addr_t, Buf);
    x_injectdata(Ep, ConstBuf, usize, u64, fi_addr_t);
    x_trecv(Ep, Buf, usize, Buf, fi_addr_t, u64, u64, Buf);
    x_trecvv(Ep, *const iovec, Desc, usize, fi_addr_t, u64, u64, Buf);
    x_tmsg(Ep, *const fi_msg_tagged, u64);
    x_tsend(Ep, ConstBuf, usize, Buf, fi_addr_t, u64, Buf);
    x_tsendv(Ep, *const iovec, Desc, usize, fi_addr_t, u64, Buf);
    x_tinject(Ep, ConstBuf, usize, fi_addr_t, u64);
    x_tsenddata(Ep, ConstBuf, usize, Buf, u64, fi_addr_t, u64, Buf);
    x_tinjectdata(Ep, ConstBuf, usize, u64, fi_addr_t, u64);
}

const fn refusing_msg<const CODE: c_int>() -> fi_ops_msg {
    fi_ops_msg {
        size: size_of::<fi_ops_msg>(),
        recv: Some(x_recv::<CODE>),
        recvv: Some(x_recvv::<CODE>),
        recvmsg: Some(x_msg::<CODE>),
        send: Some(x_send::<CODE>),
        sendv: Some(x_recvv::<CODE>),
        sendmsg: Some(x_msg::<CODE>),
        inject: Some(x_inject::<CODE>),
        senddata: Some(x_senddata::<CODE>),
        injectdata: Some(x_injectdata::<CODE>),
    }
}

const fn refusing_tagged<const CODE: c_int>() -> fi_ops_tagged {
    fi_ops_tagged {
        size: size_of::<fi_ops_tagged>(),
        recv: Some(x_trecv::<CODE>),
        recvv: Some(x_trecvv::<CODE>),
        recvmsg: Some(x_tmsg::<CODE>),
        send: Some(x_tsend::<CODE>),
        sendv: Some(x_tsendv::<CODE>),
        sendmsg: Some(x_tmsg::<CODE>),
        inject: Some(x_tinject::<CODE>),
        senddata: Some(x_tsenddata::<CODE>),
        injectdata: Some(x_tinjectdata::<CODE>),
    }
}

/// Messages the endpoint's caps do not have.
pub(crate) static NO_MSG: fi_ops_msg = refusing_msg::<{ FI_ENOSYS }>();
/// Tagged messages the endpoint's caps do not have.
pub(crate) static NO_TAGGED: fi_ops_tagged = refusing_tagged::<{ FI_ENOSYS }>();
/// Messages on an endpoint that is not enabled yet.
pub(crate) static NOT_ENABLED_MSG: fi_ops_msg = refusing_msg::<{ FI_EOPBADSTATE }>();
/// Tagged messages on an endpoint that is not enabled yet.
pub(crate) static NOT_ENABLED_TAGGED: fi_ops_tagged = refusing_tagged::<{ FI_EOPBADSTATE }>();
