//! The tables of messages and tagged messages (fi_msg(3), fi_tagged(3)) for any [`Endpoint`].
use super::fid::EpFid;
use super::flags::{RX_FLAGS, SETTLES, TRX_FLAGS};
use super::shared::EpShared;
use crate::abi::{
    self, FI_COMPLETION, fi_addr_t, fi_msg, fi_msg_tagged, fi_ops_msg, fi_ops_tagged, fid_ep,
};
use crate::api::traits::Endpoint;
use crate::api::unsupported;
use crate::boundary::{ffi_guard_nocancel, ffi_guard_segment, ffi_guard_transfer};
use crate::buf::{RecvBuf, RecvSegment, SegmentLimit, SendBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::operation::{FastRecv, ImmediateSendFns, RecvOp, SendOp};
use crate::reserved::ONLY_TAG;
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};
use std::marker::PhantomData;
use std::sync::Arc;

/// Tables of endpoints with locks of the level with this number
/// ([`Msg::level`](crate::api::traits::Msg::level)).
pub(super) struct MessageTables<E, const LEVEL: usize>(PhantomData<E>);

impl<E: Endpoint, const LEVEL: usize> MessageTables<E, LEVEL> {
    pub(super) const MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        size: size_of::<fi_ops_msg>(),
        recv: Some(recv::<E, LEVEL>),
        recvv: Some(recvv::<E>),
        recvmsg: Some(recvmsg::<E>),
        send: Some(send::<E>),
        sendv: Some(sendv::<E>),
        sendmsg: Some(sendmsg::<E>),
        inject: Some(inject::<E>),
        senddata: Some(senddata::<E>),
        injectdata: Some(injectdata::<E>),
    };

    pub(super) const TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        size: size_of::<fi_ops_tagged>(),
        recv: Some(trecv::<E, LEVEL>),
        recvv: Some(trecvv::<E>),
        recvmsg: Some(trecvmsg::<E>),
        send: Some(tsend::<E>),
        sendv: Some(tsendv::<E>),
        sendmsg: Some(tsendmsg::<E>),
        inject: Some(tinject::<E>),
        senddata: Some(tsenddata::<E>),
        injectdata: Some(tinjectdata::<E>),
    };

    /// Tagged calls of an endpoint with buffered receives; they post a tag without a buffer.
    pub(super) const BUFFERED_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: Some(post_tag::<E>),
        recvv: Some(post_tag_v::<E>),
        recvmsg: Some(post_tag_msg::<E>),
        ..*Self::TAGGED_OPS
    };

    /// A shared receive context receives and does nothing else.
    pub(super) const SRX_MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        recv: Some(recv::<E, LEVEL>),
        recvv: Some(recvv::<E>),
        recvmsg: Some(recvmsg::<E>),
        ..unsupported::NO_MSG
    };

    pub(super) const SRX_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: Some(trecv::<E, LEVEL>),
        recvv: Some(trecvv::<E>),
        recvmsg: Some(trecvmsg::<E>),
        ..unsupported::NO_TAGGED
    };

    pub(super) const BUFFERED_SRX_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: Some(post_tag::<E>),
        recvv: Some(post_tag_v::<E>),
        recvmsg: Some(post_tag_msg::<E>),
        ..*Self::SRX_TAGGED_OPS
    };

    /// Table of an endpoint with receives from a shared context: it only sends.
    pub(super) const SEND_MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        recv: unsupported::NO_MSG.recv,
        recvv: unsupported::NO_MSG.recvv,
        recvmsg: unsupported::NO_MSG.recvmsg,
        ..*Self::MSG_OPS
    };

    pub(super) const SEND_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: unsupported::NO_TAGGED.recv,
        recvv: unsupported::NO_TAGGED.recvv,
        recvmsg: unsupported::NO_TAGGED.recvmsg,
        ..*Self::TAGGED_OPS
    };
}

impl<E: Endpoint> EpFid<E> {
    /// Returns the functions of [`SENDS_AT_ONCE`](crate::reserved::SENDS_AT_ONCE), for an endpoint
    /// with reports of all messages and no special features.
    pub(super) fn sends_at_once(&self) -> Result<ImmediateSendFns> {
        match E::SENDS_AT_ONCE && self.tx() == FI_COMPLETION {
            true => Ok(ImmediateSendFns {
                who: Arc::as_ptr(&self.shared).cast(),
                calls: [send_immediate::<E, false>, send_immediate::<E, true>],
            }),
            false => Err(Error::NOSYS),
        }
    }
}

// SAFETY of the entry points below: each is reachable only through the ops
// tables of an endpoint of the same `E` that is open, or with null. Buffers and message
// structures are the caller's as fi_msg(3) and fi_tagged(3) promise.

unsafe extern "C" fn send_immediate<E: Endpoint, const TAGGED: bool>(
    who: *const c_void,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
    cq_is_drained: u64,
) -> c_int {
    let sent = ffi_guard_nocancel("a send of another provider's", || -> ssize_t {
        let send = || {
            // SAFETY: see above; any holder of this function has a validated buffer, and the
            // endpoint.
            let (ep, buf) = unsafe { (&*who.cast::<EpShared<E>>(), SendBuf::of(buf, len)) };
            let (buf, context) = (buf.with_desc(desc), Context(context));
            let op = SendOp { buf, dest, context, data: 0, tag, flags: FI_COMPLETION };
            ep.hand(true, |ep| ep.send_immediate(op, TAGGED, cq_is_drained != 0))
        };
        // Turned into C's terms in here, as in `ffi_guard_transfer`.
        match send() {
            Ok(complete) => complete.into(),
            Err(error) => error.to_ret() as ssize_t,
        }
    });
    sent as c_int
}

/// The name of a call of the API.
macro_rules! name {
    ($call:ident) => {
        concat!("fi_", stringify!($call))
    };
}

/// The argument of a tagged call, or 0 in one without tags.
macro_rules! or_0 {
    () => {
        0
    };
    ($argument:ident) => {
        $argument
    };
}

/// Defines the variants of `fi_send` and `fi_tsend`. `$op` builds the operation of a message
/// structure.
macro_rules! sends {
    (
        $method:ident($($tag:ident)?): $send:ident $sendv:ident $inject:ident $senddata:ident
            $injectdata:ident, $sendmsg:ident $op:ident $msg:ty
    ) => {
        unsafe extern "C" fn $send<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            desc: *mut c_void,
            dest: fi_addr_t,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> ssize_t {
            ffi_guard_segment(name!($send), || {
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
                let (buf, context, tag) = (buf.with_desc(desc), Context(context), or_0!($($tag)?));
                ep.$method(SendOp { buf, dest, context, data: 0, tag, flags: ep.tx() })
            })
        }

        unsafe extern "C" fn $sendv<E: Endpoint>(
            ep: *mut fid_ep,
            iov: *const iovec,
            descs: *mut *mut c_void,
            count: usize,
            dest: fi_addr_t,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> ssize_t {
            ffi_guard_transfer(name!($sendv), || {
                // SAFETY: see above.
                let ep = unsafe { EpFid::<E>::from_c(ep) }?;
                let count = ep.segments(count)?;
                // SAFETY: see above.
                let buf = unsafe { SendBuf::from_iov(iov, count)?.with_descs(descs) };
                let (context, tag) = (Context(context), or_0!($($tag)?));
                ep.$method(SendOp { buf, dest, context, data: 0, tag, flags: ep.tx() })
            })
        }

        unsafe extern "C" fn $inject<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            dest: fi_addr_t,
            $($tag: u64,)?
        ) -> ssize_t {
            ffi_guard_segment(name!($inject), || {
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
                let (flags, tag) = (ep.inject_flags(abi::FI_SEND), or_0!($($tag)?));
                ep.$method(SendOp { buf, dest, context: Context::NULL, data: 0, tag, flags })
            })
        }

        unsafe extern "C" fn $senddata<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            desc: *mut c_void,
            data: u64,
            dest: fi_addr_t,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> ssize_t {
            ffi_guard_segment(name!($senddata), || {
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
                let (buf, context, tag) = (buf.with_desc(desc), Context(context), or_0!($($tag)?));
                let flags = ep.tx() | abi::FI_REMOTE_CQ_DATA;
                ep.$method(SendOp { buf, dest, context, data, tag, flags })
            })
        }

        unsafe extern "C" fn $injectdata<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            data: u64,
            dest: fi_addr_t,
            $($tag: u64,)?
        ) -> ssize_t {
            ffi_guard_segment(name!($injectdata), || {
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
                let flags = ep.inject_flags(abi::FI_SEND) | abi::FI_REMOTE_CQ_DATA;
                let (context, tag) = (Context::NULL, or_0!($($tag)?));
                ep.$method(SendOp { buf, dest, context, data, tag, flags })
            })
        }

        /// Returns the operation described by a message structure.
        ///
        /// # Safety
        /// The structure's vectors are readable; its buffers fulfil the promises of fi_msg(3).
        pub(crate) unsafe fn $op(msg: &$msg, most: SegmentLimit, flags: u64) -> Result<SendOp> {
            let count = most.check(msg.iov_count)?;
            // SAFETY: by this function's contract.
            let buf = unsafe { SendBuf::from_iov(msg.msg_iov, count)?.with_descs(msg.desc) };
            let (context, tag) = (Context(msg.context), 0 $(+ msg.$tag)?);
            Ok(SendOp { buf, dest: msg.addr, context, data: msg.data, tag, flags })
        }

        unsafe extern "C" fn $sendmsg<E: Endpoint>(
            ep: *mut fid_ep,
            msg: *const $msg,
            flags: u64,
        ) -> ssize_t {
            ffi_guard_transfer(name!($sendmsg), || {
                // SAFETY: see above.
                let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
                // SAFETY: see above.
                let op = unsafe { $op(msg, ep.most_segments(), ep.tx_msg(flags)?) }?;
                ep.$method(op)
            })
        }
    };
}

sends!(send(): send sendv inject senddata injectdata, sendmsg send_op fi_msg);
sends!(tsend(tag): tsend tsendv tinject tsenddata tinjectdata, tsendmsg tsend_op fi_msg_tagged);

/// Defines the variants of `fi_recv` and `fi_trecv`. `$allowed` returns the valid flags of a call
/// with a message structure.
macro_rules! receives {
    (
        $method:ident($($tag:ident $ignore:ident)?, $tagged:literal): $recv:ident $slowly:ident $recvv:ident,
            $recvmsg:ident $op:ident $msg:ty, $allowed:expr
    ) => {
        /// Posts a receive at once, in a leaf, or else does more in the function it ends with.
        unsafe extern "C" fn $recv<E: Endpoint, const LEVEL: usize>(
            ep: *mut fid_ep,
            buf: *mut c_void,
            len: usize,
            desc: *mut c_void,
            src: fi_addr_t,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> ssize_t {
            // SAFETY: see above.
            let args = unsafe { (EpFid::<E>::from_c(ep), RecvSegment::new(buf, len, desc)) };
            if let (Ok(ep), buf) = args {
                let (context, flags) = (Context(context), ep.rx());
                let (tag, ignore) = (or_0!($($tag)?), or_0!($($ignore)?));
                let op = FastRecv { buf, src, tag, ignore, context, flags };
                if ep.try_post_fast::<LEVEL>(op, $tagged) {
                    return 0;
                }
            }
            // SAFETY: the arguments are the same.
            unsafe { $slowly::<E>(ep, buf, len, desc, src, $($tag, $ignore,)? context) }
        }

        #[inline(never)]
        unsafe extern "C" fn $slowly<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *mut c_void,
            len: usize,
            desc: *mut c_void,
            src: fi_addr_t,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> ssize_t {
            ffi_guard_transfer(name!($recv), || {
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, RecvBuf::new(buf, len)?) };
                let (buf, context, flags) = (buf.with_desc(desc), Context(context), ep.rx());
                let (tag, ignore) = (or_0!($($tag)?), or_0!($($ignore)?));
                ep.$method(RecvOp { buf, src, tag, ignore, context, flags })
            })
        }

        unsafe extern "C" fn $recvv<E: Endpoint>(
            ep: *mut fid_ep,
            iov: *const iovec,
            descs: *mut *mut c_void,
            count: usize,
            src: fi_addr_t,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> ssize_t {
            ffi_guard_transfer(name!($recvv), || {
                // SAFETY: see above.
                let ep = unsafe { EpFid::<E>::from_c(ep) }?;
                let count = ep.segments(count)?;
                // SAFETY: see above.
                let buf = unsafe { RecvBuf::from_iov(iov, count)?.with_descs(descs) };
                let (context, flags) = (Context(context), ep.rx());
                let (tag, ignore) = (or_0!($($tag)?), or_0!($($ignore)?));
                ep.$method(RecvOp { buf, src, tag, ignore, context, flags })
            })
        }

        /// Returns the receive described by a message structure.
        ///
        /// # Safety
        /// The structure's vectors are readable; its buffers fulfil the promises of fi_msg(3).
        pub(crate) unsafe fn $op(msg: &$msg, most: SegmentLimit, flags: u64) -> Result<RecvOp> {
            // FI_PEEK may have a buffer for the message's beginning; FI_DISCARD has none,
            // regardless of the structure.
            let peeks = flags & abi::FI_PEEK != 0;
            let nowhere = flags & abi::FI_DISCARD != 0 || (peeks && msg.iov_count == 0);
            let buf = if nowhere {
                RecvBuf::none()
            } else {
                let count = most.check(msg.iov_count)?;
                // SAFETY: by this function's contract.
                unsafe { RecvBuf::from_iov(msg.msg_iov, count)?.with_descs(msg.desc) }
            };
            let (tag, ignore) = (0 $(+ msg.$tag)?, 0 $(+ msg.$ignore)?);
            let (src, context) = (msg.addr, Context(msg.context));
            Ok(RecvOp { buf, src, tag, ignore, context, flags })
        }

        unsafe extern "C" fn $recvmsg<E: Endpoint>(
            ep: *mut fid_ep,
            msg: *const $msg,
            flags: u64,
        ) -> ssize_t {
            ffi_guard_transfer(name!($recvmsg), || {
                // SAFETY: see above.
                let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
                let allowed: fn(&EpFid<E>, u64) -> u64 = $allowed;
                let flags = ep.rx_msg(flags, allowed(ep, flags))?;
                // SAFETY: see above.
                let op = unsafe { $op(msg, ep.most_segments(), flags) }?;
                ep.$method(op)
            })
        }
    };
}

receives!(
    recv(, false): recv recv_slowly recvv, recvmsg recv_op fi_msg,
    |ep, flags| if ep.settles(flags) { RX_FLAGS | SETTLES } else { RX_FLAGS }
);
receives!(
    trecv(tag ignore, true): trecv trecv_slowly trecvv, trecvmsg trecv_op fi_msg_tagged,
    |_, _| RX_FLAGS | TRX_FLAGS
);

/// Posts a tag to an endpoint with buffered receives: nothing is written anywhere.
///
/// # Safety
/// See above.
unsafe fn tag<E: Endpoint>(
    ep: *mut fid_ep,
    src: fi_addr_t,
    [tag, ignore]: [u64; 2],
    context: *mut c_void,
) -> Result {
    // SAFETY: by this function's contract.
    let ep = unsafe { EpFid::<E>::from_c(ep) }?;
    let (context, flags) = (Context(context), ep.rx() | ONLY_TAG);
    ep.trecv(RecvOp { buf: RecvBuf::none(), src, tag, ignore, context, flags })
}

unsafe extern "C" fn post_tag<E: Endpoint>(
    ep: *mut fid_ep,
    _buf: *mut c_void,
    _len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    tag_bits: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: see above.
    ffi_guard_transfer("fi_trecv", || unsafe { tag::<E>(ep, src, [tag_bits, ignore], context) })
}

unsafe extern "C" fn post_tag_v<E: Endpoint>(
    ep: *mut fid_ep,
    _iov: *const iovec,
    _descs: *mut *mut c_void,
    _count: usize,
    src: fi_addr_t,
    tag_bits: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    // SAFETY: see above.
    ffi_guard_transfer("fi_trecvv", || unsafe { tag::<E>(ep, src, [tag_bits, ignore], context) })
}

unsafe extern "C" fn post_tag_msg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_tagged,
    flags: u64,
) -> ssize_t {
    if flags & TRX_FLAGS != 0 {
        // SAFETY: as this function.
        return unsafe { trecvmsg::<E>(ep, msg, flags) };
    }
    ffi_guard_transfer("fi_trecvmsg", || {
        // SAFETY: see above; the message structure is the caller's.
        let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
        let flags = ep.rx_msg(flags, RX_FLAGS)? | ONLY_TAG;
        ep.trecv(RecvOp {
            buf: RecvBuf::none(),
            src: msg.addr,
            tag: msg.tag,
            ignore: msg.ignore,
            context: Context(msg.context),
            flags,
        })
    })
}
