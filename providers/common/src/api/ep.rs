//! `struct fid_ep` for any [`Endpoint`].
use super::multicast::Multicast;
use super::sep::Scalable;
use super::stx::Stx;
use super::{Endpoint, RecvOp, RxAttr, SendOp, bytes, copy_out, mc, unbuilt};
use crate::abi::{
    self, FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EP, FI_CLASS_EQ, FI_CLASS_RX_CTX,
    FI_CLASS_SEP, FI_CLASS_SRX_CTX, FI_CLASS_STX_CTX, FI_CLASS_TX_CTX, fi_addr_t, fi_alias,
    fi_ep_type, fi_msg, fi_msg_tagged, fi_ops, fi_ops_cm, fi_ops_ep, fi_ops_msg, fi_ops_tagged,
    fid, fid_ep, fid_t,
};
use crate::addr;
use crate::av::Av;
use crate::boundary::{answer, answer_transfer};
use crate::buf::{RecvBuf, SendBuf};
use crate::buffered;
use crate::cntr::Cntr;
use crate::coll::Room;
use crate::cq::{Context, Cq};
use crate::eq::{Eq, FidPtr};
use crate::error::{Error, Result};
use crate::fid::{Embeds, class_of, ops};
use crate::info::InfoRef;
use crate::later::Later;
use crate::ledger::{Ledger, Tally};
use crate::object::{Object, Parent, Users};
use crate::progress::Progress;
use crate::reserved::{OF_SHARED_RX, ONLY_TAG, OWN_FLAGS, TO_GROUPS};
use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// What the application bound to an endpoint (fi_ep_bind).
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// Queues and counters, and the way to what the domain does later.
    pub ledger: Ledger,
    /// The event queue for connection events.
    pub eq: Option<Arc<Eq>>,
    /// The address vector of the endpoint's peers.
    pub av: Option<Arc<Av>>,
}

/// When a transfer is complete for its sender, other than at once (fi_cq(3)).
const LEVELS: u64 = abi::FI_TRANSMIT_COMPLETE
    | abi::FI_DELIVERY_COMPLETE
    | abi::FI_MATCH_COMPLETE
    | abi::FI_COMMIT_COMPLETE;

/// Which kind of object a `struct fid_ep` is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// An endpoint.
    Endpoint,
    /// A shared receive context (fi_srx_context), which only receives.
    Srx,
    /// A scalable endpoint, which has contexts and transfers nothing itself.
    Scalable,
    /// A transmit context of a scalable endpoint.
    Tx,
    /// A receive context of a scalable endpoint.
    Rx,
}

impl Role {
    pub(super) fn sends(self) -> bool {
        matches!(self, Self::Endpoint | Self::Tx)
    }
    pub(super) fn receives(self) -> bool {
        matches!(self, Self::Endpoint | Self::Srx | Self::Rx)
    }
}

/// What endpoints and contexts are opened on.
pub(super) struct Ground {
    /// The API version the application asked the fabric for.
    pub(super) api_version: u32,
    /// The object that cannot be closed before them: the domain, or, for a context, its scalable
    /// endpoint, which keeps the domain.
    pub(super) parent: Parent,
    pub(super) progress: Arc<dyn Progress>,
    /// What the domain does when no lock is held, if it was opened for such.
    pub(super) later: Option<Arc<Later>>,
}

/// What a fid is made of, whatever its role.
pub(super) struct Parts<E> {
    pub(super) inner: E,
    pub(super) role: Role,
    pub(super) caps: u64,
    pub(super) ep_type: fi_ep_type,
    /// The endpoint has buffered receives, whose messages are claimed and discarded (fi_msg(3)
    /// of 1.x).
    pub(super) buffered: bool,
    /// tx_attr.op_flags and rx_attr.op_flags.
    pub(super) tx_defaults: u64,
    pub(super) rx_defaults: u64,
    /// tx_attr.size and tx_attr.inject_size, if the endpoint has transfers of its own.
    pub(super) tx_size: usize,
    pub(super) inject_size: usize,
    pub(super) ground: Ground,
    /// What contexts inherit, if this is a scalable endpoint.
    pub(super) scalable: Option<Scalable>,
    /// The scalable endpoint, if this is a context of one.
    pub(super) sep: Option<Arc<Shared<E>>>,
}

/// The fids of open shared receive contexts, and their type, which tells the provider: a fid
/// that the application binds is looked up here before it is believed.
static SRX_FIDS: Mutex<Vec<(usize, TypeId)>> = Mutex::new(Vec::new());

fn srx_fids() -> MutexGuard<'static, Vec<(usize, TypeId)>> {
    SRX_FIDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What an endpoint and its aliases share.
pub(super) struct Shared<E> {
    parts: Parts<E>,
    /// Objects that must be closed first: the endpoints that use this shared receive context, or
    /// the contexts of this scalable endpoint.
    pub(super) users: Arc<Users>,
    /// The shared receive context the endpoint takes its receives from.
    srx: Mutex<Option<Arc<Shared<E>>>>,
    /// In a shared receive context: the completion queues of its endpoints, by the endpoint's
    /// address (`place`). A context without a queue of its own reports to the first.
    sharers: Mutex<Vec<(usize, Arc<Cq>)>>,
    /// The shared transmit context that the endpoint is bound to.
    stx: Mutex<Option<Arc<Stx>>>,
    bindings: Mutex<Bindings>,
    pub(super) enabled: AtomicBool,
    /// The kinds of operations that counters are bound for, FI_SEND | FI_WRITE …
    counted: AtomicU64,
    /// The endpoint is closing: tasks of the domain may not post to it any more.
    pub(super) closed: AtomicBool,
    /// The open fids of the endpoint, itself and its aliases; events name the endpoint by the
    /// first.
    fids: Mutex<Vec<FidPtr>>,
    /// The endpoint's collective operations, once it has any.
    pub(super) room: OnceLock<Arc<Room>>,
    /// The endpoint's multicast groups, once it is enabled.
    pub(super) multicast: OnceLock<Multicast>,
}

impl<E> Parts<E> {
    /// The directions of the endpoint's capabilities: FI_SEND, FI_RECV or both; if neither is
    /// named, both.
    pub(super) fn directions(&self) -> u64 {
        const BOTH: u64 = abi::FI_SEND | abi::FI_RECV;
        match (self.role, self.caps & BOTH) {
            (Role::Tx, _) => abi::FI_SEND,
            (Role::Rx, _) => abi::FI_RECV,
            (_, 0) => BOTH,
            (_, named) => named,
        }
    }
}

/// The parts an endpoint was made of never change.
impl<E> Deref for Shared<E> {
    type Target = Parts<E>;
    fn deref(&self) -> &Parts<E> {
        &self.parts
    }
}

/// An endpoint, as C holds it.
#[repr(C)]
pub struct EpFid<E> {
    /// The C structure. Its ops tables of transfers change once, when the endpoint is enabled.
    c: UnsafeCell<fid_ep>,
    /// Default flags of sends (`tx_`) and receives (`rx_`): of calls without flags of their own,
    /// and those added to calls that have flags (`_msg_`).
    tx_flags: AtomicU64,
    tx_msg_flags: AtomicU64,
    rx_flags: AtomicU64,
    rx_msg_flags: AtomicU64,
    pub(super) shared: Arc<Shared<E>>,
}

// SAFETY: the C part changes only in `enable`, which fi_endpoint(3) orders
// before any transfer; `E` is Send + Sync by its trait, the rest by itself.
unsafe impl<E: Endpoint> Sync for EpFid<E> {}
// SAFETY: the C part changes only in `enable`, before any transfer; `E` is Send + Sync by its
// trait, the rest by itself.
unsafe impl<E: Endpoint> Send for EpFid<E> {}
// SAFETY: repr(C) with the C struct first (UnsafeCell is transparent); made only
// by `make`, in an `Arc`.
unsafe impl<E: Endpoint> Embeds<fid_ep> for EpFid<E> {}

impl<E> std::fmt::Debug for EpFid<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EpFid")
    }
}

/// Flags that a send call may carry (fi_msg(3)).
pub(super) const TX_FLAGS: u64 = abi::FI_COMPLETION
    | abi::FI_INJECT
    | abi::FI_MORE
    | abi::FI_REMOTE_CQ_DATA
    | abi::FI_INJECT_COMPLETE
    | abi::FI_TRANSMIT_COMPLETE
    | abi::FI_DELIVERY_COMPLETE
    | abi::FI_MATCH_COMPLETE
    | abi::FI_COMMIT_COMPLETE
    | abi::FI_FENCE
    | abi::FI_RMA
    | abi::FI_READ
    | abi::FI_WRITE
    // Some applications repeat what the call itself says.
    | abi::FI_MSG
    | abi::FI_TAGGED
    | abi::FI_SEND;

/// Flags that a receive call may carry.
pub(super) const RX_FLAGS: u64 = abi::FI_COMPLETION
    | abi::FI_MORE
    // A receive is complete when its message is in the buffer, so that this adds nothing.
    | abi::FI_TRANSMIT_COMPLETE
    | abi::FI_MULTI_RECV
    | abi::FI_REMOTE_CQ_DATA
    | abi::FI_MSG
    | abi::FI_TAGGED
    | abi::FI_RECV;

/// Default flags that stay set whatever the application sets (FI_SETOPSFLAG).
const ALWAYS: u64 = abi::FI_COMPLETION | OF_SHARED_RX | TO_GROUPS;

/// Flags of a receive call that settles what becomes of a message that was
/// reported (fi_msg(3) of 1.x).
const SETTLES: u64 = abi::FI_CLAIM | abi::FI_DISCARD;

/// Flags that a tagged receive call may carry besides.
const TRX_FLAGS: u64 = abi::FI_PEEK | abi::FI_CLAIM | abi::FI_DISCARD;

impl<E: Endpoint> EpFid<E> {
    const FID_OPS: &'static fi_ops =
        &fi_ops { bind: Some(bind::<E>), control: Some(control::<E>), ..ops(close::<E>) };

    pub(super) const EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        size: size_of::<fi_ops_ep>(),
        cancel: Some(cancel::<E>),
        getopt: Some(getopt::<E>),
        setopt: Some(setopt::<E>),
        tx_ctx: Some(unbuilt::no_tx_ctx),
        rx_ctx: Some(unbuilt::no_rx_ctx),
        rx_size_left: Some(rx_size_left::<E>),
        tx_size_left: Some(tx_size_left::<E>),
        export_xpu: Some(unbuilt::no_export_xpu),
    };

    const CM_OPS: &'static fi_ops_cm = &fi_ops_cm {
        size: size_of::<fi_ops_cm>(),
        setname: Some(setname::<E>),
        getname: Some(getname::<E>),
        getpeer: Some(getpeer::<E>),
        connect: Some(connect::<E>),
        listen: Some(unbuilt::no_listen),
        accept: Some(accept::<E>),
        reject: Some(unbuilt::no_reject),
        shutdown: Some(shutdown::<E>),
        join: Some(mc::join::<E>),
    };

    const MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        size: size_of::<fi_ops_msg>(),
        recv: Some(recv::<E>),
        recvv: Some(recvv::<E>),
        recvmsg: Some(recvmsg::<E>),
        send: Some(send::<E>),
        sendv: Some(sendv::<E>),
        sendmsg: Some(sendmsg::<E>),
        inject: Some(inject::<E>),
        senddata: Some(senddata::<E>),
        injectdata: Some(injectdata::<E>),
    };

    const TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        size: size_of::<fi_ops_tagged>(),
        recv: Some(trecv::<E>),
        recvv: Some(trecvv::<E>),
        recvmsg: Some(trecvmsg::<E>),
        send: Some(tsend::<E>),
        sendv: Some(tsendv::<E>),
        sendmsg: Some(tsendmsg::<E>),
        inject: Some(tinject::<E>),
        senddata: Some(tsenddata::<E>),
        injectdata: Some(tinjectdata::<E>),
    };

    /// The tagged calls of an endpoint with buffered receives, which post a tag without a
    /// buffer.
    const BUFFERED_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: Some(post_tag::<E>),
        recvv: Some(post_tag_v::<E>),
        recvmsg: Some(post_tag_msg::<E>),
        ..*Self::TAGGED_OPS
    };

    /// A shared receive context receives and does nothing else.
    const SRX_EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        rx_size_left: Some(unbuilt::no_size_left),
        tx_size_left: Some(unbuilt::no_size_left),
        ..*Self::EP_OPS
    };

    const SRX_MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        recv: Some(recv::<E>),
        recvv: Some(recvv::<E>),
        recvmsg: Some(recvmsg::<E>),
        ..unbuilt::NO_MSG
    };

    const SRX_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: Some(trecv::<E>),
        recvv: Some(trecvv::<E>),
        recvmsg: Some(trecvmsg::<E>),
        ..unbuilt::NO_TAGGED
    };

    const BUFFERED_SRX_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: Some(post_tag::<E>),
        recvv: Some(post_tag_v::<E>),
        recvmsg: Some(post_tag_msg::<E>),
        ..*Self::SRX_TAGGED_OPS
    };

    /// An endpoint that takes its receives from a shared context only sends.
    const SEND_MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        recv: unbuilt::NO_MSG.recv,
        recvv: unbuilt::NO_MSG.recvv,
        recvmsg: unbuilt::NO_MSG.recvmsg,
        ..*Self::MSG_OPS
    };

    const SEND_TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        recv: unbuilt::NO_TAGGED.recv,
        recvv: unbuilt::NO_TAGGED.recvv,
        recvmsg: unbuilt::NO_TAGGED.recvmsg,
        ..*Self::TAGGED_OPS
    };

    /// Wraps a provider's new endpoint for C.
    pub(super) fn open(
        inner: E,
        info: InfoRef<'_>,
        ground: Ground,
        context: *mut c_void,
    ) -> Arc<Self> {
        let ep_type = match info.ep_type() {
            t if t == fi_ep_type::FI_EP_MSG => fi_ep_type::FI_EP_MSG,
            t if t == fi_ep_type::FI_EP_DGRAM => fi_ep_type::FI_EP_DGRAM,
            _ => fi_ep_type::FI_EP_RDM,
        };
        Self::wrap(
            Parts {
                inner,
                role: Role::Endpoint,
                caps: info.caps(),
                ep_type,
                buffered: E::BUFFERS && buffered::is_asked(info, ground.api_version),
                tx_defaults: info.tx().map_or(0, |tx| tx.op_flags & !OWN_FLAGS),
                rx_defaults: info.rx().map_or(0, |rx| rx.op_flags & !OWN_FLAGS),
                tx_size: info.tx().map_or(0, |tx| tx.size),
                inject_size: info.tx().map_or(0, |tx| tx.inject_size),
                ground,
                scalable: None,
                sep: None,
            },
            context,
        )
    }

    /// Wraps a provider's new shared receive context for C.
    pub(super) fn open_srx(
        inner: E,
        rx: RxAttr,
        ground: Ground,
        context: *mut c_void,
    ) -> Arc<Self> {
        let both = abi::FI_MSG | abi::FI_TAGGED;
        let srx = Self::wrap(
            Parts {
                inner,
                role: Role::Srx,
                caps: if rx.caps & both == 0 { both } else { rx.caps & both },
                ep_type: fi_ep_type::FI_EP_UNSPEC,
                buffered: false,
                tx_defaults: 0,
                rx_defaults: rx.op_flags & !OWN_FLAGS,
                tx_size: 0,
                inject_size: 0,
                ground: Ground { later: None, ..ground },
                scalable: None,
                sep: None,
            },
            context,
        );
        srx_fids().push((srx.as_c() as usize, TypeId::of::<E>()));
        srx
    }

    /// Wraps anything of a provider's that is like an endpoint for C.
    pub(super) fn wrap(parts: Parts<E>, context: *mut c_void) -> Arc<Self> {
        let marked = parts.has_multicast();
        let [tx, tx_msg, rx, rx_msg] = Self::default_flags(parts.tx_defaults, parts.rx_defaults);
        let (rx, rx_msg) = match parts.role {
            // Each endpoint that takes a shared receive context's receives decides which are
            // reported.
            Role::Srx => (parts.rx_defaults | OF_SHARED_RX, OF_SHARED_RX),
            _ => (rx, rx_msg),
        };
        let flags = [tx | marked, tx_msg | marked, rx, rx_msg];
        let shared = Arc::new(Shared {
            // A shared receive context needs nothing bound to it to take receives.
            enabled: AtomicBool::new(parts.role == Role::Srx),
            counted: AtomicU64::new(0),
            parts,
            users: Arc::default(),
            srx: Mutex::new(None),
            sharers: Mutex::default(),
            stx: Mutex::new(None),
            bindings: Mutex::new(Bindings { ledger: Ledger::new(), ..Bindings::default() }),
            closed: AtomicBool::new(false),
            fids: Mutex::default(),
            room: OnceLock::new(),
            multicast: OnceLock::new(),
        });
        let ep = Self::make(shared, context, flags);
        ep.inner().opened(FidPtr(ep.as_c().cast()));
        ep
    }

    /// The flags of calls without and with flags of their own, of sends and of
    /// receives, as long as no selective completion is asked for.
    fn default_flags(tx: u64, rx: u64) -> [u64; 4] {
        [tx | abi::FI_COMPLETION, abi::FI_COMPLETION, rx | abi::FI_COMPLETION, abi::FI_COMPLETION]
    }

    fn make(shared: Arc<Shared<E>>, context: *mut c_void, flags: [u64; 4]) -> Arc<Self> {
        let [tx, tx_msg, rx, rx_msg] = flags.map(AtomicU64::new);
        let enabled = shared.enabled.load(Ordering::Acquire);
        let (class, ops) = match shared.role {
            Role::Endpoint => (FI_CLASS_EP, Self::EP_OPS),
            Role::Srx => (FI_CLASS_SRX_CTX, Self::SRX_EP_OPS),
            Role::Scalable => (FI_CLASS_SEP, Self::SEP_EP_OPS),
            Role::Tx => (FI_CLASS_TX_CTX, Self::EP_OPS),
            Role::Rx => (FI_CLASS_RX_CTX, Self::SRX_EP_OPS),
        };
        let atomic = match shared.caps & abi::FI_ATOMIC {
            0 => &unbuilt::NO_ATOMIC,
            _ if !shared.role.sends() => &unbuilt::NO_ATOMIC,
            _ => Self::NOT_ENABLED_ATOMIC_OPS,
        };
        let ep = Arc::new(Self {
            c: UnsafeCell::new(fid_ep {
                fid: fid {
                    fclass: class as usize,
                    context,
                    ops: std::ptr::from_ref(Self::FID_OPS).cast_mut(),
                },
                ops: std::ptr::from_ref(ops).cast_mut(),
                cm: std::ptr::from_ref(Self::CM_OPS).cast_mut(),
                msg: (&raw const unbuilt::NOT_ENABLED_MSG).cast_mut(),
                rma: (&raw const unbuilt::NO_RMA).cast_mut(),
                tagged: (&raw const unbuilt::NOT_ENABLED_TAGGED).cast_mut(),
                atomic: std::ptr::from_ref(atomic).cast_mut(),
                collective: (&raw const unbuilt::NO_COLLECTIVE).cast_mut(),
            }),
            tx_flags: tx,
            tx_msg_flags: tx_msg,
            rx_flags: rx,
            rx_msg_flags: rx_msg,
            shared,
        });
        ep.shared.fids().push(FidPtr(ep.as_c().cast()));
        if let Some(later) = &ep.shared.ground.later
            && ep.shared.role != Role::Scalable
        {
            later.opened(ep.as_c() as usize);
        }
        if enabled || ep.shared.role == Role::Scalable {
            ep.use_transfer_tables();
        }
        ep
    }

    /// Sets the ops tables of the transfers that the endpoint's capabilities promise.
    fn use_transfer_tables(&self) {
        let has = |cap| self.shared.caps & cap != 0;
        let role = self.shared.role;
        let (msg, tagged) = match role {
            Role::Scalable => (&unbuilt::NO_MSG, &unbuilt::NO_TAGGED),
            Role::Rx if self.shared.buffered => (Self::SRX_MSG_OPS, Self::BUFFERED_SRX_TAGGED_OPS),
            Role::Srx | Role::Rx => (Self::SRX_MSG_OPS, Self::SRX_TAGGED_OPS),
            Role::Tx => (Self::SEND_MSG_OPS, Self::SEND_TAGGED_OPS),
            Role::Endpoint if self.srx().is_some() => (Self::SEND_MSG_OPS, Self::SEND_TAGGED_OPS),
            Role::Endpoint if self.shared.buffered => (Self::MSG_OPS, Self::BUFFERED_TAGGED_OPS),
            Role::Endpoint => (Self::MSG_OPS, Self::TAGGED_OPS),
        };
        let msg = if has(abi::FI_MSG) { msg } else { &unbuilt::NO_MSG };
        let tagged = if has(abi::FI_TAGGED) { tagged } else { &unbuilt::NO_TAGGED };
        // SAFETY: transfers come after enabling, in one thread or ordered by the
        // application (fi_endpoint(3)); nobody reads the fields now.
        unsafe {
            let c = self.c.get();
            (*c).msg = std::ptr::from_ref(msg).cast_mut();
            (*c).tagged = std::ptr::from_ref(tagged).cast_mut();
            if has(abi::FI_RMA) && role.sends() {
                (*c).rma = std::ptr::from_ref(Self::RMA_OPS).cast_mut();
            }
            if has(abi::FI_COLLECTIVE) && self.shared.ground.later.is_some() {
                (*c).collective = std::ptr::from_ref(Self::COLLECTIVE_OPS).cast_mut();
            }
            if has(abi::FI_ATOMIC) && role.sends() {
                (*c).atomic = std::ptr::from_ref(Self::ATOMIC_OPS).cast_mut();
            }
        }
    }

    fn srx(&self) -> MutexGuard<'_, Option<Arc<Shared<E>>>> {
        self.shared.srx.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.shared.bindings()
    }

    fn bind_cq(&self, cq: Arc<Cq>, flags: u64) -> Result {
        if flags & !(abi::FI_TRANSMIT | abi::FI_RECV | abi::FI_SELECTIVE_COMPLETION) != 0 {
            return Err(Error::BADFLAGS);
        }
        let role = self.shared.role;
        if flags & (abi::FI_TRANSMIT | abi::FI_RECV) == 0
            || (flags & abi::FI_TRANSMIT != 0 && !role.sends())
            || (flags & abi::FI_RECV != 0 && !role.receives())
        {
            return Err(Error::INVAL);
        }
        // With FI_SELECTIVE_COMPLETION a success is reported only if the call asks for it, or
        // the endpoint's default flags do for a call without flags.
        let selective = flags & abi::FI_SELECTIVE_COMPLETION != 0;
        let mut bindings = self.bindings();
        let (tx, rx) = (flags & abi::FI_TRANSMIT != 0, flags & abi::FI_RECV != 0);
        if (tx && bindings.ledger.tx.cq.is_some()) || (rx && bindings.ledger.rx.cq.is_some()) {
            return Err(Error::INVAL);
        }
        if tx {
            cq.add_user();
            bindings.ledger.tx.cq = Some(cq.clone());
            if selective {
                let marked = self.shared.has_multicast();
                self.tx_flags.store(self.shared.tx_defaults | marked, Ordering::Relaxed);
                self.tx_msg_flags.store(marked, Ordering::Relaxed);
            }
        }
        if rx {
            cq.add_user();
            bindings.ledger.rx.cq = Some(cq);
            bindings.ledger.rx.set_selective(selective);
            if selective && role != Role::Srx {
                self.rx_flags.store(self.shared.rx_defaults, Ordering::Relaxed);
                self.rx_msg_flags.store(0, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Binds an object that may be bound even after the endpoint is enabled, if the provider
    /// agrees.
    fn bind_any_time(&self, bind: impl FnOnce(&mut Bindings) -> Result) -> Result {
        let mut bindings = self.bindings();
        let mut more = bindings.clone();
        bind(&mut more)?;
        if self.shared.enabled.load(Ordering::Acquire) && self.shared.role != Role::Srx {
            self.inner().bound_late(&self.completed(more.clone()))?;
        }
        *bindings = more;
        Ok(())
    }

    /// -FI_EINVAL for an object that was opened on another domain: progress there is none here,
    /// and calls are serialized for each domain by itself (FI_THREAD_DOMAIN).
    fn own<T>(&self, object: T, is_of: impl FnOnce(&T, &Ground) -> bool) -> Result<T> {
        if is_of(&object, &self.shared.ground) { Ok(object) } else { Err(Error::INVAL) }
    }

    fn bind_cntr(&self, cntr: &Arc<Cntr>, flags: u64) -> Result {
        const KINDS: [u64; 6] = [
            abi::FI_SEND,
            abi::FI_RECV,
            abi::FI_READ,
            abi::FI_WRITE,
            abi::FI_REMOTE_READ,
            abi::FI_REMOTE_WRITE,
        ];
        let all = KINDS.iter().fold(0, |all, kind| all | kind);
        if flags & !all != 0 {
            return Err(Error::BADFLAGS);
        }
        let out = abi::FI_SEND | abi::FI_READ | abi::FI_WRITE;
        let foreign = match self.shared.role {
            Role::Endpoint | Role::Srx => 0,
            Role::Tx => all & !out,
            Role::Rx => out,
            Role::Scalable => all,
        };
        if flags == 0 || flags & foreign != 0 {
            return Err(Error::INVAL);
        }
        self.bind_any_time(|bindings| {
            let Ledger { tx, rx } = &mut bindings.ledger;
            let slots = [
                &mut tx.cntr,
                &mut rx.cntr,
                &mut tx.reads,
                &mut tx.writes,
                &mut rx.peers_reads,
                &mut rx.peers_writes,
            ];
            for (_, slot) in KINDS.iter().zip(slots).filter(|(kind, _)| flags & *kind != 0) {
                if slot.is_some() {
                    return Err(Error::INVAL);
                }
                *slot = Some(cntr.clone());
            }
            Ok(())
        })?;
        KINDS.iter().filter(|kind| flags & *kind != 0).for_each(|_| cntr.add_user());
        self.shared.counted.fetch_or(flags, Ordering::Relaxed);
        Ok(())
    }

    fn bind_eq(&self, eq: &Arc<Eq>) -> Result {
        self.bind_any_time(|bindings| {
            if bindings.eq.is_some() {
                return Err(Error::INVAL);
            }
            if !self.shared.ground.progress.is_serialized() {
                eq.add_source(&self.shared.ground.progress)?;
            }
            bindings.eq = Some(eq.clone());
            Ok(())
        })?;
        eq.add_user();
        Ok(())
    }

    /// Binds a shared receive context (fi_ep_bind with a FI_CLASS_SRX_CTX fid).
    fn bind_srx(&self, fid: *mut fid) -> Result {
        let known = (fid as usize, TypeId::of::<E>());
        // Held until the context counts its new user, so that it cannot be closed meanwhile.
        let fids = srx_fids();
        if !fids.contains(&known) || self.shared.role != Role::Endpoint {
            return Err(Error::INVAL);
        }
        let mut slot = self.srx();
        if slot.is_some() {
            return Err(Error::INVAL);
        }
        // SAFETY: the list has it, so it is an open context of this type.
        let srx = unsafe { Self::from_c(fid.cast::<fid_ep>()) }?;
        if !srx.shared.ground.parent.is_same(&self.shared.ground.parent) {
            return Err(Error::INVAL);
        }
        srx.shared.users.add();
        *slot = Some(srx.shared.clone());
        self.bindings().ledger.rx.tally = srx.bindings().ledger.rx.tally.clone();
        Ok(())
    }

    /// # Safety
    /// `bfid` points to a live fid.
    unsafe fn bind(&self, bfid: *mut fid, flags: u64) -> Result {
        // SAFETY: by this function's contract; the class says what to look for.
        unsafe {
            match class_of(bfid).map(|class| class as c_int) {
                // A counter may be bound late: some programs bind one to an endpoint that is in
                // use already.
                Some(FI_CLASS_CNTR) => {
                    let cntr =
                        self.own(Cntr::from_fid(bfid)?, |cntr, on| cntr.is_beside(&on.parent))?;
                    self.bind_cntr(&cntr, flags)
                }
                Some(FI_CLASS_EQ)
                    if matches!(self.shared.role, Role::Endpoint | Role::Scalable) =>
                {
                    self.bind_eq(&Eq::from_fid(bfid)?)
                }
                _ if self.shared.enabled.load(Ordering::Acquire)
                    && self.shared.role != Role::Srx =>
                {
                    Err(Error::OPBADSTATE)
                }
                Some(FI_CLASS_SRX_CTX) => self.bind_srx(bfid),
                Some(FI_CLASS_STX_CTX) if self.shared.role == Role::Endpoint => {
                    let stx =
                        self.own(Stx::from_fid(bfid)?, |stx, on| stx.is_beside(&on.parent))?;
                    self.shared.bind_stx(stx)
                }
                Some(FI_CLASS_CQ) => {
                    let cq = self.own(Cq::from_fid(bfid)?, |cq, on| cq.is_beside(&on.parent))?;
                    self.bind_cq(cq, flags)
                }
                // Contexts have the vector of their scalable endpoint.
                _ if !matches!(self.shared.role, Role::Endpoint | Role::Scalable) => {
                    Err(Error::INVAL)
                }
                Some(FI_CLASS_AV) => {
                    let av = self.own(Av::from_fid(bfid)?, |av, on| av.is_beside(&on.parent))?;
                    let mut bindings = self.bindings();
                    if bindings.av.is_some() {
                        return Err(Error::INVAL);
                    }
                    av.add_user();
                    bindings.av = Some(av);
                    Ok(())
                }
                _ => Err(Error::INVAL),
            }
        }
    }

    /// The endpoint's bindings, completed by those of its shared receive context or scalable
    /// endpoint.
    fn completed(&self, mut bindings: Bindings) -> Bindings {
        bindings.ledger.set_aside(self.shared.aside());
        if let Some(srx) = &*self.srx() {
            // Objects bound to the shared context serve endpoints that have none of their own.
            let (own, shared) = (&mut bindings.ledger.rx, &srx.bindings().ledger.rx);
            if own.cq.is_none() {
                own.cq.clone_from(&shared.cq);
                own.reported = shared.reported;
            }
            if own.cntr.is_none() {
                own.cntr.clone_from(&shared.cntr);
            }
        }
        if let Some(sep) = &self.shared.sep {
            bindings.av.clone_from(&sep.bindings().av);
        }
        bindings
    }

    fn enable(&self) -> Result {
        if self.shared.enabled.load(Ordering::Acquire) {
            return Ok(());
        }
        let bindings = self.bindings().clone();
        let srx = self.srx().clone();
        if let Some(srx) = &srx {
            let own = bindings.ledger.rx.cq.iter().map(|cq| (self.shared.place(), cq.clone()));
            srx.change_sharers(|sharers| sharers.extend(own))?;
        }
        if let Some(sep) = &self.shared.sep {
            sep.enable_scalable()?;
        }
        let bindings = self.completed(bindings);
        if self.shared.role == Role::Scalable {
            return self.shared.enable_scalable();
        }
        let either =
            |cq: &Option<Arc<Cq>>, cntr: &Option<Arc<Cntr>>| cq.is_some() || cntr.is_some();
        let directions = self.shared.directions();
        let (send, recv) = (directions & abi::FI_SEND != 0, directions & abi::FI_RECV != 0);
        if (send && !either(&bindings.ledger.tx.cq, &bindings.ledger.tx.cntr))
            || (recv && !either(&bindings.ledger.rx.cq, &bindings.ledger.rx.cntr))
        {
            return Err(Error::NOCQ);
        }
        match self.shared.ep_type {
            fi_ep_type::FI_EP_MSG if bindings.eq.is_none() => return Err(Error::NOEQ),
            fi_ep_type::FI_EP_RDM | fi_ep_type::FI_EP_DGRAM if bindings.av.is_none() => {
                return Err(Error::NOAV);
            }
            _ => {}
        }
        self.inner().enable(&bindings, srx.as_ref().map(|srx| &srx.inner))?;
        self.shared.enabled.store(true, Ordering::Release);
        self.use_transfer_tables();
        self.shared.hear_of_groups()
    }

    /// Reads or changes the default flags of sends or receives, which `flags`
    /// names with FI_TRANSMIT or FI_RECV.
    fn op_flags(&self, flags: &mut u64, set: bool) -> Result {
        let which = *flags & (abi::FI_TRANSMIT | abi::FI_RECV);
        let to = match which {
            abi::FI_TRANSMIT => &self.tx_flags,
            abi::FI_RECV => &self.rx_flags,
            _ => return Err(Error::INVAL),
        };
        if set {
            let msg = if which == abi::FI_RECV { &self.rx_msg_flags } else { &self.tx_msg_flags };
            // Without selective completion every success is reported.
            let always = msg.load(Ordering::Relaxed) & ALWAYS;
            to.store((*flags & !(which | OWN_FLAGS)) | always, Ordering::Relaxed);
        } else {
            *flags = to.load(Ordering::Relaxed) & !OWN_FLAGS;
        }
        Ok(())
    }

    /// Takes a fid, of the endpoint or an alias, off the list of open ones; returns whether it
    /// was the last. If events named the endpoint by it, they name another open one from now on.
    fn leave(&self, fid: FidPtr) -> bool {
        let mut fids = self.shared.fids();
        let names = fids.first() == Some(&fid);
        fids.retain(|open| *open != fid);
        let Some(&heir) = fids.first() else { return true };
        if names {
            self.inner().opened(heir);
            if let Some(eq) = &self.bindings().eq {
                eq.rename(fid, heir);
            }
        }
        false
    }

    fn alias(&self, flags: u64) -> Result<Arc<Self>> {
        let load = |flags: &AtomicU64| flags.load(Ordering::Relaxed);
        let mut all = [
            load(&self.tx_flags),
            load(&self.tx_msg_flags),
            load(&self.rx_flags),
            load(&self.rx_msg_flags),
        ];
        let own = flags & !(abi::FI_TRANSMIT | abi::FI_RECV | OWN_FLAGS);
        match flags & (abi::FI_TRANSMIT | abi::FI_RECV) {
            abi::FI_TRANSMIT => all[0] = own | (all[1] & ALWAYS),
            abi::FI_RECV => all[2] = own | (all[3] & ALWAYS),
            _ => return Err(Error::INVAL),
        }
        // SAFETY: the context is set by the application or never.
        let context = unsafe { (*self.c.get()).fid.context };
        Ok(Self::make(self.shared.clone(), context, all))
    }

    #[inline]
    pub(super) fn tx(&self) -> u64 {
        self.tx_flags.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn inner(&self) -> &E {
        &self.shared.inner
    }

    #[inline]
    fn rx(&self) -> u64 {
        self.rx_flags.load(Ordering::Relaxed)
    }

    /// The flags of a call without any that injects: never a success entry, and
    /// no context that could name a counter. If none is bound either for its kind,
    /// FI_SEND or FI_WRITE, it is complete as soon as the buffer is the application's
    /// again, whatever the endpoint's other transfers wait for: an answer from the peer
    /// would be news to nobody.
    #[inline]
    pub(super) fn inject_flags(&self, kind: u64) -> u64 {
        const NEVER: u64 = abi::FI_COMPLETION | abi::FI_TRIGGER;
        let counted = self.shared.counted.load(Ordering::Relaxed) & kind != 0;
        let not = if counted { NEVER } else { NEVER | LEVELS };
        (self.tx() & !not) | abi::FI_INJECT
    }

    /// The flags of a write, or of an atomic operation that fetches nothing. Who counts
    /// them has neither entries nor messages behind them to go by, only the count, which
    /// is to say that what was written is there (OpenSHMEM's quiet): unless another
    /// completion level is asked for.
    #[inline]
    pub(super) fn write_flags(&self, flags: u64) -> u64 {
        let counted = self.shared.counted.load(Ordering::Relaxed) & abi::FI_WRITE != 0;
        if E::ACKNOWLEDGES && counted && flags & (LEVELS | abi::FI_INJECT_COMPLETE) == 0 {
            return flags | abi::FI_DELIVERY_COMPLETE;
        }
        flags
    }

    #[inline]
    pub(super) fn tx_msg(&self, flags: u64) -> Result<u64> {
        if flags & !TX_FLAGS != 0 {
            // The capability FI_MULTICAST and the flag of that name are the same bit.
            self.only_triggered(flags & !(TX_FLAGS | self.shared.caps & abi::FI_MULTICAST))?;
        }
        Ok(flags | self.tx_msg_flags.load(Ordering::Relaxed))
    }

    /// Whether a receive with these flags is for a message that was reported, and
    /// not posted for one to come.
    fn settles(&self, flags: u64) -> bool {
        self.shared.buffered && flags & SETTLES != 0 && flags & abi::FI_PEEK == 0
    }

    #[inline]
    fn rx_msg(&self, flags: u64, allowed: u64) -> Result<u64> {
        if flags & !allowed != 0 {
            self.only_triggered(flags & !allowed)?;
        }
        Ok(flags | self.rx_msg_flags.load(Ordering::Relaxed))
    }
}

impl<E: Endpoint> Shared<E> {
    /// Changes the list of endpoints' queues of a shared receive context. Cancelled receives are
    /// reported to one of these, which cannot be closed while an endpoint has it.
    fn change_sharers(&self, change: impl FnOnce(&mut Vec<(usize, Arc<Cq>)>)) -> Result {
        let mut sharers = self.sharers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut sharers);
        let mut bindings = self.bindings().clone();
        if bindings.ledger.rx.cq.is_none()
            && let Some((_, cq)) = sharers.first()
        {
            bindings.ledger.rx.cq = Some(cq.clone());
            self.inner.enable(&bindings, None)?;
        }
        Ok(())
    }

    /// Enables a scalable endpoint, by itself or with the first of its contexts: peers can reach
    /// it from now on.
    fn enable_scalable(&self) -> Result {
        // The lock is held throughout, since several threads may enable contexts.
        let bindings = self.bindings();
        if self.enabled.load(Ordering::Acquire) {
            return Ok(());
        }
        if bindings.av.is_none() {
            return Err(Error::NOAV);
        }
        let mut complete = bindings.clone();
        complete.ledger.set_aside(self.aside());
        self.inner.enable(&complete, None)?;
        self.enabled.store(true, Ordering::Release);
        Ok(())
    }
}

impl<E> Shared<E> {
    fn bind_stx(&self, stx: Arc<Stx>) -> Result {
        let mut slot = self.stx.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if slot.is_some() {
            return Err(Error::INVAL);
        }
        stx.add_user();
        *slot = Some(stx);
        Ok(())
    }

    /// A number that tells this endpoint from others while it is open: its address.
    fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn fids(&self) -> MutexGuard<'_, Vec<FidPtr>> {
        self.fids.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The tally of operations that are handed to the provider, in builds that count them.
    #[inline(always)]
    fn tally(&self, sends: bool) -> Tally {
        if !cfg!(debug_assertions) {
            return Tally::default();
        }
        let ledger = &self.bindings().ledger;
        if sends { ledger.tx.tally.clone() } else { ledger.rx.tally.clone() }
    }

    /// Hands an operation to the provider, which completes it once, unless it refuses it here.
    #[inline(always)]
    pub(super) fn hand(&self, sends: bool, post: impl FnOnce(&E) -> Result) -> Result {
        let tally = self.tally(sends);
        tally.posted();
        let result = post(&self.inner);
        if result.is_err() {
            tally.refused();
        }
        result
    }
}

impl<E> Drop for Shared<E> {
    fn drop(&mut self) {
        let srx = self.srx.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(srx) = srx {
            srx.users.remove();
        }
        let stx = self.stx.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(stx) = stx {
            stx.remove_user();
        }
        let bindings = self.bindings.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for cq in [&bindings.ledger.tx.cq, &bindings.ledger.rx.cq].into_iter().flatten() {
            cq.remove_user();
        }
        bindings.ledger.cntrs().for_each(|cntr| cntr.remove_user());
        if let Some(eq) = &bindings.eq {
            eq.remove_user();
        }
        if let Some(av) = &bindings.av {
            av.remove_user();
        }
    }
}

// SAFETY of the entry points below: each is reachable only through the ops
// tables of an endpoint of the same `E` that is open, or with null. Buffers are
// the caller's as fi_msg(3) and fi_tagged(3) promise.

unsafe extern "C" fn close<E: Endpoint>(fid: *mut fid) -> c_int {
    answer("fi_close(ep)", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        if ep.shared.role == Role::Srx {
            let mut fids = srx_fids();
            ep.shared.users.check_none()?;
            fids.retain(|(known, _)| *known != fid as usize);
        }
        if ep.shared.role == Role::Scalable {
            ep.shared.users.check_none()?;
        }
        if let Some(later) = &ep.shared.ground.later {
            later.closed(fid as usize);
        }
        if ep.leave(FidPtr(fid)) {
            ep.shared.stop_later();
            ep.shared.inner.close();
            ep.shared.leave_later();
            let srx = ep.srx().clone();
            if let Some(srx) = srx {
                let place = ep.shared.place();
                // An endpoint can always leave the context, which could only refuse a new queue.
                let _ = srx.change_sharers(|all| all.retain(|(sharer, _)| *sharer != place));
            }
            if let Some(eq) = &ep.bindings().eq {
                eq.forget(FidPtr(fid));
            }
        }
        // SAFETY: see above; nothing of ours uses it any more.
        drop(unsafe { EpFid::<E>::take(fid.cast::<fid_ep>()) });
        Ok(())
    })
}

unsafe extern "C" fn bind<E: Endpoint>(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    answer("fi_ep_bind", || {
        // SAFETY: see above; `bfid` is an open object of the application's or null.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        // SAFETY: see above.
        unsafe { ep.bind(bfid, flags) }?;
        if ep.shared.role == Role::Srx {
            // The endpoint is enabled already, so the provider is told of the new binding here.
            let bindings = ep.bindings().clone();
            ep.inner().enable(&bindings, None)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn control<E: Endpoint>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    answer("fi_control(ep)", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        match command {
            abi::FI_ENABLE => ep.enable(),
            abi::FI_GETOPSFLAG | abi::FI_SETOPSFLAG => {
                // SAFETY: both pass a pointer to the flags (fi_endpoint(3)).
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(Error::INVAL)?;
                ep.op_flags(flags, command == abi::FI_SETOPSFLAG)
            }
            abi::FI_GET_FD => {
                // SAFETY: FI_GET_FD passes a pointer to an int (fi_control(3)).
                let to = unsafe { arg.cast::<c_int>().as_mut() }.ok_or(Error::INVAL)?;
                *to = ep.inner().fd()?;
                Ok(())
            }
            abi::FI_ALIAS => {
                // SAFETY: FI_ALIAS passes a struct fi_alias (fi_endpoint(3)).
                let alias = unsafe { arg.cast::<fi_alias>().as_ref() }.ok_or(Error::INVAL)?;
                if alias.fid.is_null() {
                    return Err(Error::INVAL);
                }
                let ep = ep.alias(alias.flags)?;
                // SAFETY: checked above.
                unsafe { alias.fid.write(ep.into_c().cast()) };
                Ok(())
            }
            // SAFETY: `arg` is what the command asks for, as fi_control(3) says.
            _ => unsafe { ep.inner().control(command, arg) },
        }
    })
}

unsafe extern "C" fn cancel<E: Endpoint>(fid: fid_t, context: *mut c_void) -> ssize_t {
    answer_transfer("fi_cancel", || {
        // SAFETY: see above.
        let shared = &unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?.shared;
        if shared.cancel_triggered(context) {
            return Ok(());
        }
        shared.inner.cancel(Context(context), false)
    })
}

unsafe extern "C" fn getopt<E: Endpoint>(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    answer("fi_getopt", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        if level != abi::FI_OPT_ENDPOINT {
            return Err(Error::NOPROTOOPT);
        }
        if value.is_null() || len.is_null() {
            return Err(Error::INVAL);
        }
        let mut bytes = [0; 64];
        let n = ep.inner().getopt(name, &mut bytes)?;
        // SAFETY: the caller gives `*len` bytes at `value`.
        if unsafe { copy_out(&bytes[..n], value, len) } { Ok(()) } else { Err(Error::TOOSMALL) }
    })
}

unsafe extern "C" fn setopt<E: Endpoint>(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    answer("fi_setopt", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        if level != abi::FI_OPT_ENDPOINT {
            return Err(Error::NOPROTOOPT);
        }
        if value.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: the caller gives `len` bytes at `value`.
        ep.inner().setopt(name, unsafe { bytes(value, len) })
    })
}

unsafe extern "C" fn rx_size_left<E: Endpoint>(ep: *mut fid_ep) -> ssize_t {
    // SAFETY: see above.
    answer("fi_rx_size_left", || unsafe { EpFid::<E>::from_c(ep) }?.inner().size_left(false))
}

unsafe extern "C" fn tx_size_left<E: Endpoint>(ep: *mut fid_ep) -> ssize_t {
    // SAFETY: see above.
    answer("fi_tx_size_left", || unsafe { EpFid::<E>::from_c(ep) }?.inner().size_left(true))
}

unsafe extern "C" fn setname<E: Endpoint>(fid: fid_t, addr: *mut c_void, len: usize) -> c_int {
    answer("fi_setname", || {
        // SAFETY: see above; the caller gives `len` bytes at `addr`.
        unsafe {
            let ep = EpFid::<E>::from_c(fid.cast::<fid_ep>())?;
            ep.inner().setname(bytes(addr, len))
        }
    })
}

/// Copies an address to the caller's buffer, as fi_getname and fi_getpeer do.
///
/// # Safety
/// `len` is null or points to the bytes that `addr` has.
pub(super) unsafe fn give_name(name: &[u8], addr: *mut c_void, len: *mut usize) -> Result {
    if len.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract.
    if unsafe { copy_out(name, addr, len) } { Ok(()) } else { Err(Error::TOOSMALL) }
}

unsafe extern "C" fn getname<E: Endpoint>(fid: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    answer("fi_getname", || {
        // SAFETY: see above; the buffer is the caller's.
        unsafe {
            let name = EpFid::<E>::from_c(fid.cast::<fid_ep>())?.inner().getname()?;
            give_name(&name, addr, len)
        }
    })
}

unsafe extern "C" fn getpeer<E: Endpoint>(
    ep: *mut fid_ep,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    answer("fi_getpeer", || {
        // SAFETY: see above; the buffer is the caller's.
        unsafe {
            let name = EpFid::<E>::from_c(ep)?.inner().getpeer()?;
            give_name(&name, addr, len)
        }
    })
}

unsafe extern "C" fn connect<E: Endpoint>(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    param_len: usize,
) -> c_int {
    answer("fi_connect", || {
        // SAFETY: see above; `addr` is null or a socket address, `param` has
        // `param_len` bytes.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let addr = if addr.is_null() { None } else { Some(addr::bytes_at(addr)?) };
            ep.enable()?;
            ep.inner().connect(addr, bytes(param, param_len))
        }
    })
}

unsafe extern "C" fn accept<E: Endpoint>(
    ep: *mut fid_ep,
    param: *const c_void,
    param_len: usize,
) -> c_int {
    answer("fi_accept", || {
        // SAFETY: see above; `param` has `param_len` bytes.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            ep.enable()?;
            ep.inner().accept(bytes(param, param_len))
        }
    })
}

unsafe extern "C" fn shutdown<E: Endpoint>(ep: *mut fid_ep, flags: u64) -> c_int {
    answer("fi_shutdown", || {
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above.
        unsafe { EpFid::<E>::from_c(ep) }?.inner().shutdown()
    })
}

/// The four ways to say what to send, for `fi_send` and for `fi_tsend`.
macro_rules! transmit {
    ($send:ident, $sendv:ident, $sendmsg:ident, $inject:ident, $senddata:ident, $injectdata:ident,
     $method:ident, $op:ident, $variant:ident, $msg:ty, $names:expr, ($($tag:ident: $tag_ty:ty)?), $msg_tag:expr) => {
        #[allow(unused_mut, unused_assignments, reason = "untagged calls have no tag to set")]
        unsafe extern "C" fn $send<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            desc: *mut c_void,
            dest: fi_addr_t,
            $($tag: $tag_ty,)?
            context: *mut c_void,
        ) -> ssize_t {
            answer_transfer($names[0], || {
                let mut the_tag = 0;
                $(the_tag = $tag;)?
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?.with_desc(desc)) };
                ep.$method(SendOp {
                    buf, dest, context: Context(context), data: 0, tag: the_tag, flags: ep.tx(),
                })
            })
        }

        #[allow(unused_mut, unused_assignments, reason = "untagged calls have no tag to set")]
        unsafe extern "C" fn $sendv<E: Endpoint>(
            ep: *mut fid_ep,
            iov: *const iovec,
            descs: *mut *mut c_void,
            count: usize,
            dest: fi_addr_t,
            $($tag: $tag_ty,)?
            context: *mut c_void,
        ) -> ssize_t {
            answer_transfer($names[1], || {
                let mut the_tag = 0;
                $(the_tag = $tag;)?
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::from_iov(iov, count)?.with_descs(descs)) };
                ep.$method(SendOp {
                    buf, dest, context: Context(context), data: 0, tag: the_tag, flags: ep.tx(),
                })
            })
        }

        /// The operation that a message structure describes.
        ///
        /// # Safety
        /// The structure's vectors are readable; its buffers the caller's as fi_msg(3)
        /// promises.
        pub(super) unsafe fn $op(msg: &$msg, flags: u64) -> Result<SendOp> {
            let tag: fn(&$msg) -> u64 = $msg_tag;
            Ok(SendOp {
                // SAFETY: by this function's contract.
                buf: unsafe { SendBuf::from_iov(msg.msg_iov, msg.iov_count)?.with_descs(msg.desc) },
                dest: msg.addr,
                context: Context(msg.context),
                data: msg.data,
                tag: tag(msg),
                flags,
            })
        }

        unsafe extern "C" fn $sendmsg<E: Endpoint>(
            ep: *mut fid_ep,
            msg: *const $msg,
            flags: u64,
        ) -> ssize_t {
            answer_transfer($names[2], || {
                // SAFETY: see above; the message structure is the caller's.
                let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
                // SAFETY: see above.
                let op = unsafe { $op(msg, ep.tx_msg(flags)?) }?;
                ep.$method(op)
            })
        }

        #[allow(unused_mut, unused_assignments, reason = "untagged calls have no tag to set")]
        unsafe extern "C" fn $inject<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            dest: fi_addr_t,
            $($tag: $tag_ty,)?
        ) -> ssize_t {
            answer_transfer($names[3], || {
                let mut the_tag = 0;
                $(the_tag = $tag;)?
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
                ep.$method(SendOp {
                    buf, dest, context: Context::NULL, data: 0, tag: the_tag, flags: ep.inject_flags(abi::FI_SEND),
                })
            })
        }

        #[allow(unused_mut, unused_assignments, reason = "untagged calls have no tag to set")]
        unsafe extern "C" fn $senddata<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            desc: *mut c_void,
            data: u64,
            dest: fi_addr_t,
            $($tag: $tag_ty,)?
            context: *mut c_void,
        ) -> ssize_t {
            answer_transfer($names[4], || {
                let mut the_tag = 0;
                $(the_tag = $tag;)?
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?.with_desc(desc)) };
                ep.$method(SendOp {
                    buf, dest, context: Context(context), data, tag: the_tag,
                    flags: ep.tx() | abi::FI_REMOTE_CQ_DATA,
                })
            })
        }

        #[allow(unused_mut, unused_assignments, reason = "untagged calls have no tag to set")]
        unsafe extern "C" fn $injectdata<E: Endpoint>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            data: u64,
            dest: fi_addr_t,
            $($tag: $tag_ty,)?
        ) -> ssize_t {
            answer_transfer($names[5], || {
                let mut the_tag = 0;
                $(the_tag = $tag;)?
                // SAFETY: see above.
                let (ep, buf) = unsafe { (EpFid::<E>::from_c(ep)?, SendBuf::new(buf, len)?) };
                ep.$method(SendOp {
                    buf, dest, context: Context::NULL, data, tag: the_tag,
                    flags: ep.inject_flags(abi::FI_SEND) | abi::FI_REMOTE_CQ_DATA,
                })
            })
        }
    };
}

transmit!(
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
    send,
    send_op,
    Send,
    fi_msg,
    ["fi_send", "fi_sendv", "fi_sendmsg", "fi_inject", "fi_senddata", "fi_injectdata"],
    (),
    |_| 0
);
transmit!(
    tsend, tsendv, tsendmsg, tinject, tsenddata, tinjectdata, tsend, tsend_op,
    Tsend, fi_msg_tagged,
    ["fi_tsend", "fi_tsendv", "fi_tsendmsg", "fi_tinject", "fi_tsenddata", "fi_tinjectdata"],
    (tag: u64), |msg| msg.tag
);

unsafe extern "C" fn recv<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_recv", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, RecvBuf::new(buf, len)?.with_desc(desc)) };
        let (context, flags) = (Context(context), ep.rx());
        ep.recv(RecvOp { buf, src, tag: 0, ignore: 0, context, flags })
    })
}

unsafe extern "C" fn recvv<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const iovec,
    descs: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_recvv", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, RecvBuf::from_iov(iov, count)?.with_descs(descs)) };
        let (context, flags) = (Context(context), ep.rx());
        ep.recv(RecvOp { buf, src, tag: 0, ignore: 0, context, flags })
    })
}

unsafe extern "C" fn recvmsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_recvmsg", || {
        // SAFETY: see above; the message structure is the caller's.
        let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
        let allowed = if ep.settles(flags) { RX_FLAGS | SETTLES } else { RX_FLAGS };
        // SAFETY: see above.
        let op = unsafe { recv_op(msg, ep.rx_msg(flags, allowed)?) }?;
        ep.recv(op)
    })
}

/// The receive that a message structure describes.
///
/// # Safety The contract of [`send_op`].
pub(super) unsafe fn recv_op(msg: &fi_msg, flags: u64) -> Result<RecvOp> {
    let buf = if flags & abi::FI_DISCARD != 0 {
        RecvBuf::none()
    } else {
        // SAFETY: by this function's contract.
        unsafe { RecvBuf::from_iov(msg.msg_iov, msg.iov_count)?.with_descs(msg.desc) }
    };
    let context = Context(msg.context);
    Ok(RecvOp { buf, src: msg.addr, tag: 0, ignore: 0, context, flags })
}

/// The tagged receive that a message structure describes.
///
/// # Safety The contract of [`send_op`].
pub(super) unsafe fn trecv_op(msg: &fi_msg_tagged, flags: u64) -> Result<RecvOp> {
    // FI_PEEK may have a buffer for the message's beginning; FI_DISCARD has none, whatever the
    // structure says.
    let peeks = flags & abi::FI_PEEK != 0;
    let nowhere = flags & abi::FI_DISCARD != 0 || (peeks && msg.iov_count == 0);
    let buf = if nowhere {
        RecvBuf::none()
    } else {
        // SAFETY: by this function's contract.
        unsafe { RecvBuf::from_iov(msg.msg_iov, msg.iov_count)?.with_descs(msg.desc) }
    };
    let (context, src) = (Context(msg.context), msg.addr);
    Ok(RecvOp { buf, src, tag: msg.tag, ignore: msg.ignore, context, flags })
}

unsafe extern "C" fn trecv<E: Endpoint>(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_trecv", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, RecvBuf::new(buf, len)?.with_desc(desc)) };
        let (context, flags) = (Context(context), ep.rx());
        ep.trecv(RecvOp { buf, src, tag, ignore, context, flags })
    })
}

unsafe extern "C" fn trecvv<E: Endpoint>(
    ep: *mut fid_ep,
    iov: *const iovec,
    descs: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> ssize_t {
    answer_transfer("fi_trecvv", || {
        // SAFETY: see above.
        let (ep, buf) =
            unsafe { (EpFid::<E>::from_c(ep)?, RecvBuf::from_iov(iov, count)?.with_descs(descs)) };
        let (context, flags) = (Context(context), ep.rx());
        ep.trecv(RecvOp { buf, src, tag, ignore, context, flags })
    })
}

unsafe extern "C" fn trecvmsg<E: Endpoint>(
    ep: *mut fid_ep,
    msg: *const fi_msg_tagged,
    flags: u64,
) -> ssize_t {
    answer_transfer("fi_trecvmsg", || {
        // SAFETY: see above; the message structure is the caller's.
        let (ep, msg) = unsafe { (EpFid::<E>::from_c(ep)?, msg.as_ref().ok_or(Error::INVAL)?) };
        // SAFETY: see above.
        let op = unsafe { trecv_op(msg, ep.rx_msg(flags, RX_FLAGS | TRX_FLAGS)?) }?;
        ep.trecv(op)
    })
}

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
    answer_transfer("fi_trecv", || unsafe { tag::<E>(ep, src, [tag_bits, ignore], context) })
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
    answer_transfer("fi_trecvv", || unsafe { tag::<E>(ep, src, [tag_bits, ignore], context) })
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
    answer_transfer("fi_trecvmsg", || {
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
