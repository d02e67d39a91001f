//! `struct fid_ep` for any [`Endpoint`].
mod bind;
mod control;
mod flags;
mod message;
mod transfer;

pub use bind::Bindings;
pub(super) use control::give_name;
pub(super) use flags::{RX_FLAGS, TX_FLAGS};
pub(super) use message::{recv_op, send_op, trecv_op, tsend_op};
pub(super) use transfer::Transfer;

use super::multicast::Multicast;
use super::sep::Scalable;
use super::stx::Stx;
use super::{Endpoint, RxAttr, unsupported};
use crate::abi::{
    self, FI_CLASS_EP, FI_CLASS_RX_CTX, FI_CLASS_SEP, FI_CLASS_SRX_CTX, FI_CLASS_TX_CTX,
    FI_SHARED_CONTEXT, fi_ep_type, fi_ops, fi_ops_msg, fi_ops_tagged, fid, fid_ep,
};
use crate::boundary::ffi_guard;
use crate::buf::SegmentLimit;
use crate::coll::Collectives;
use crate::completions::{CompletionSink, OutstandingOps};
use crate::cq::Cq;
use crate::deferred::DeferredQueue;
use crate::eq::{DomainEq, FidPtr};
use crate::error::{Error, Result};
use crate::fid::{FidObject, ops};
use crate::info::InfoRef;
use crate::lock::Level;
use crate::object::{Object, Parent, Users};
use crate::progress::Progress;
use crate::reserved::{OF_SHARED_RX, OWN_FLAGS};
use crate::variable;
use core::ffi::{c_int, c_void};
use message::MessageTables;
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Kind of object behind a `struct fid_ep`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// An endpoint.
    Endpoint,
    /// Shared receive context (fi_srx_context), for receives only.
    Srx,
    /// Scalable endpoint, with contexts and without own transfers.
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

/// Resources for new endpoints and contexts.
pub(super) struct EndpointEnv {
    /// The API version the application asked the fabric for.
    pub(super) api_version: u32,
    /// The format of the domain's addresses (FI_SOCKADDR_IN, FI_ADDR_STR …).
    pub(super) addr_format: u32,
    /// Maximum number of segments of a transfer.
    pub(super) segments: SegmentLimit,
    /// Object not closable before them: the domain, or, for a context, its scalable endpoint,
    /// keeping the domain open.
    pub(super) parent: Parent,
    pub(super) progress: Arc<dyn Progress>,
    /// Deferred work of the domain, if it was opened for it.
    pub(super) later: Option<Arc<DeferredQueue>>,
    /// Event queue of the domain, for endpoints enabled without one.
    pub(super) eq: DomainEq,
}

/// Components of a fid of any role.
pub(super) struct Parts<E> {
    pub(super) inner: E,
    pub(super) role: Role,
    pub(super) caps: u64,
    pub(super) ep_type: fi_ep_type,
    /// True for each direction (transmit, receive) in which the info selects shared contexts.
    pub(super) shares: [bool; 2],
    /// True if the endpoint has buffered receives; their messages are claimed and discarded
    /// (fi_msg(3) of 1.x).
    pub(super) buffered: bool,
    /// tx_attr.op_flags and rx_attr.op_flags.
    pub(super) tx_defaults: u64,
    pub(super) rx_defaults: u64,
    /// tx_attr.size and tx_attr.inject_size, if the endpoint has transfers of its own.
    pub(super) tx_size: usize,
    pub(super) inject_size: usize,
    pub(super) ground: EndpointEnv,
    /// Attributes inherited by contexts, for a scalable endpoint.
    pub(super) scalable: Option<Scalable>,
    /// The scalable endpoint, if this is a context of one.
    pub(super) sep: Option<Arc<EpShared<E>>>,
}

/// Fids of open shared receive contexts, and their type, identifying the provider. A fid bound by
/// the application is looked up here before its use.
static SRX_FIDS: Mutex<Vec<(usize, TypeId)>> = Mutex::new(Vec::new());

fn srx_fids() -> MutexGuard<'static, Vec<(usize, TypeId)>> {
    SRX_FIDS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// State shared by an endpoint and its aliases.
pub(super) struct EpShared<E> {
    parts: Parts<E>,
    /// Objects to be closed first: the endpoints using this shared receive context, or the contexts
    /// of this scalable endpoint.
    pub(super) users: Arc<Users>,
    /// The shared receive context the endpoint takes its receives from.
    srx: Mutex<Option<Arc<EpShared<E>>>>,
    /// In a shared receive context: the completion queues of its endpoints, by the endpoint's
    /// address (`address`). A context without a queue of its own reports to the first.
    all_users: Mutex<Vec<(usize, Arc<Cq>)>>,
    /// Shared transmit context bound to the endpoint.
    stx: Mutex<Option<Arc<Stx>>>,
    bindings: Mutex<Bindings>,
    pub(super) enabled: AtomicBool,
    /// The endpoint's receives are another provider's (fi_peer(3)).
    pub(super) imports: AtomicBool,
    /// Kinds of operations with bound counters, FI_SEND | FI_WRITE …
    counted: AtomicU64,
    /// The endpoint is closing: tasks of the domain may not post to it any more.
    pub(super) closed: AtomicBool,
    /// The open fids of the endpoint, itself and its aliases; events name the endpoint by the
    /// first.
    fids: Mutex<Vec<FidPtr>>,
    /// The endpoint's collective operations, once it has any.
    pub(super) collectives: OnceLock<Arc<Collectives>>,
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
impl<E> Deref for EpShared<E> {
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
    /// Default flags of sends (`tx_`) and receives (`rx_`): of calls without a flags argument, and
    /// the ones added to calls with one (`_msg_`).
    tx_flags: AtomicU64,
    tx_msg_flags: AtomicU64,
    rx_flags: AtomicU64,
    rx_msg_flags: AtomicU64,
    pub(super) shared: Arc<EpShared<E>>,
}

// SAFETY: the C part changes only in `enable`, which fi_endpoint(3) orders
// before any transfer; `E` is Send + Sync by its trait, the rest by itself.
unsafe impl<E: Endpoint> Sync for EpFid<E> {}
// SAFETY: the C part changes only in `enable`, before any transfer; `E` is Send + Sync by its
// trait, the rest by itself.
unsafe impl<E: Endpoint> Send for EpFid<E> {}
// SAFETY: repr(C) with the C struct first (UnsafeCell is transparent); made only
// by `make`, in an `Arc`.
unsafe impl<E: Endpoint> FidObject<fid_ep> for EpFid<E> {}

impl<E> std::fmt::Debug for EpFid<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EpFid")
    }
}

impl<E: Endpoint> EpFid<E> {
    const FID_OPS: &'static fi_ops = &fi_ops {
        bind: Some(bind::bind::<E>),
        control: Some(control::control::<E>),
        ..ops(close::<E>)
    };

    /// Wraps a provider's new endpoint for C.
    pub(super) fn open(
        inner: E,
        info: InfoRef<'_>,
        ground: EndpointEnv,
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
                shares: info.ep().map_or([false; 2], |ep| {
                    [ep.tx_ctx_cnt, ep.rx_ctx_cnt].map(|count| count == FI_SHARED_CONTEXT)
                }),
                buffered: E::BUFFERS && variable::is_asked(info, ground.api_version),
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
        ground: EndpointEnv,
        context: *mut c_void,
    ) -> Arc<Self> {
        let both = abi::FI_MSG | abi::FI_TAGGED;
        let srx = Self::wrap(
            Parts {
                inner,
                role: Role::Srx,
                caps: if rx.caps & both == 0 { both } else { rx.caps & both },
                ep_type: fi_ep_type::FI_EP_UNSPEC,
                shares: [false; 2],
                buffered: false,
                tx_defaults: 0,
                rx_defaults: rx.op_flags & !OWN_FLAGS,
                tx_size: 0,
                inject_size: 0,
                ground: EndpointEnv { later: None, ..ground },
                scalable: None,
                sep: None,
            },
            context,
        );
        srx_fids().push((srx.as_c() as usize, TypeId::of::<E>()));
        srx
    }

    /// Wraps a provider object with the C interface of an endpoint.
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
        let shared = Arc::new(EpShared {
            // A shared receive context needs nothing bound to it to take receives.
            enabled: AtomicBool::new(parts.role == Role::Srx),
            imports: AtomicBool::new(false),
            counted: AtomicU64::new(0),
            parts,
            users: Arc::default(),
            srx: Mutex::new(None),
            all_users: Mutex::default(),
            stx: Mutex::new(None),
            bindings: Mutex::new(Bindings {
                completions: CompletionSink::new(),
                ..Bindings::default()
            }),
            closed: AtomicBool::new(false),
            fids: Mutex::default(),
            collectives: OnceLock::new(),
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

    fn make(shared: Arc<EpShared<E>>, context: *mut c_void, flags: [u64; 4]) -> Arc<Self> {
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
            0 => &unsupported::NO_ATOMIC,
            _ if !shared.role.sends() => &unsupported::NO_ATOMIC,
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
                msg: (&raw const unsupported::NOT_ENABLED_MSG).cast_mut(),
                rma: (&raw const unsupported::NO_RMA).cast_mut(),
                tagged: (&raw const unsupported::NOT_ENABLED_TAGGED).cast_mut(),
                atomic: std::ptr::from_ref(atomic).cast_mut(),
                collective: (&raw const unsupported::NO_COLLECTIVE).cast_mut(),
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

    /// The ops tables of messages, tagged and not, for the endpoint's role.
    fn message_tables<const LEVEL: usize>(&self) -> (&'static fi_ops_msg, &'static fi_ops_tagged) {
        type Of<E, const LEVEL: usize> = MessageTables<E, LEVEL>;
        let buffered = self.shared.buffered;
        let sends_only = || self.srx().is_some() || self.shared.imports.load(Ordering::Acquire);
        match self.shared.role {
            Role::Scalable => (&unsupported::NO_MSG, &unsupported::NO_TAGGED),
            Role::Rx if buffered => {
                (Of::<E, LEVEL>::SRX_MSG_OPS, Of::<E, LEVEL>::BUFFERED_SRX_TAGGED_OPS)
            }
            Role::Srx | Role::Rx => (Of::<E, LEVEL>::SRX_MSG_OPS, Of::<E, LEVEL>::SRX_TAGGED_OPS),
            Role::Tx => (Of::<E, LEVEL>::SEND_MSG_OPS, Of::<E, LEVEL>::SEND_TAGGED_OPS),
            Role::Endpoint if sends_only() => {
                (Of::<E, LEVEL>::SEND_MSG_OPS, Of::<E, LEVEL>::SEND_TAGGED_OPS)
            }
            Role::Endpoint if buffered => {
                (Of::<E, LEVEL>::MSG_OPS, Of::<E, LEVEL>::BUFFERED_TAGGED_OPS)
            }
            Role::Endpoint => (Of::<E, LEVEL>::MSG_OPS, Of::<E, LEVEL>::TAGGED_OPS),
        }
    }

    /// Sets the ops tables of the transfers promised by the endpoint's capabilities.
    fn use_transfer_tables(&self) {
        let has = |cap| self.shared.caps & cap != 0;
        let role = self.shared.role;
        let (msg, tagged) = match self.shared.inner.level() {
            Level::SERIALIZED => self.message_tables::<{ Level::SERIALIZED }>(),
            Level::GATED => self.message_tables::<{ Level::GATED }>(),
            _ => self.message_tables::<{ Level::SHARED }>(),
        };
        // Programs name the capabilities that they optimize for, and send messages as well. Contexts
        // have the capabilities that were asked of them.
        let serves = |cap| has(cap) || role == Role::Endpoint;
        let msg = if serves(abi::FI_MSG) { msg } else { &unsupported::NO_MSG };
        let tagged = if serves(abi::FI_TAGGED) { tagged } else { &unsupported::NO_TAGGED };
        // SAFETY: transfers come after enabling, in one thread or ordered by the application
        // (fi_endpoint(3)), so there are no concurrent reads of the fields.
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

    fn srx(&self) -> MutexGuard<'_, Option<Arc<EpShared<E>>>> {
        self.shared.srx.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.shared.bindings()
    }

    /// Removes a fid, of the endpoint or an alias, from the list of open ones. Returns true if it
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
            abi::FI_TRANSMIT => all[0] = own | (all[1] & flags::ALWAYS),
            abi::FI_RECV => all[2] = own | (all[3] & flags::ALWAYS),
            _ => return Err(Error::INVAL),
        }
        // SAFETY: the context is set by the application or never.
        let context = unsafe { (*self.c.get()).fid.context };
        Ok(Self::make(self.shared.clone(), context, all))
    }

    /// Returns the maximum number of segments of a transfer.
    #[inline]
    pub(super) fn most_segments(&self) -> SegmentLimit {
        self.shared.ground.segments
    }

    /// The number of segments of a call; -FI_EINVAL if they are too many.
    #[inline]
    pub(super) fn segments(&self, count: usize) -> Result<usize> {
        self.most_segments().check(count)
    }

    #[inline]
    pub(super) fn inner(&self) -> &E {
        &self.shared.inner
    }
}

impl<E> EpShared<E> {
    /// Returns a number identifying this endpoint while it is open: its address.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the endpoint's fid in events.
    pub(super) fn fid(&self) -> Option<FidPtr> {
        self.fids().first().copied()
    }

    fn fids(&self) -> MutexGuard<'_, Vec<FidPtr>> {
        self.fids.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn bindings(&self) -> MutexGuard<'_, Bindings> {
        self.bindings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the counter of operations passed to the provider, in builds counting them.
    #[inline(always)]
    fn outstanding(&self, sends: bool) -> OutstandingOps {
        if !cfg!(debug_assertions) {
            return OutstandingOps::default();
        }
        let completions = &self.bindings().completions;
        if sends { completions.tx.outstanding.clone() } else { completions.rx.outstanding.clone() }
    }

    /// Passes an operation to the provider. The provider completes it once, unless it rejects it
    /// here.
    #[inline(always)]
    pub(super) fn hand<T>(&self, sends: bool, post: impl FnOnce(&E) -> Result<T>) -> Result<T> {
        let outstanding = self.outstanding(sends);
        outstanding.posted();
        let result = post(&self.inner);
        if result.is_err() {
            outstanding.refused();
        }
        result
    }
}

impl<E> Drop for EpShared<E> {
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
        for cq in [&bindings.completions.tx.cq, &bindings.completions.rx.cq].into_iter().flatten() {
            cq.remove_user();
        }
        bindings.completions.cntrs().for_each(|cntr| cntr.remove_user());
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
    ffi_guard("fi_close(ep)", || {
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
                let address = ep.shared.address();
                // An endpoint can always leave the context, which could only refuse a new queue.
                let _ = srx.change_users(|all| all.retain(|(sharer, _)| *sharer != address));
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
