//! State shared by an endpoint and its aliases.
use crate::abi::{self, fi_ep_type};
use crate::api::bindings::Bindings;
use crate::api::multicast::Multicast;
use crate::api::scalable::Scalable;
use crate::api::stx::Stx;
use crate::api::traits::{Endpoint, Msg};
use crate::buf::SegmentLimit;
use crate::coll::Collectives;
use crate::completions::{CompletionSink, OutstandingOps};
use crate::cq::Cq;
use crate::deferred::DeferredQueue;
use crate::eq::{DomainEq, FidPtr};
use crate::error::{Error, Result};
use crate::mr::MrTable;
use crate::object::{Object, Parent, Users};
use crate::operation::FastRecv;
use crate::progress::Progress;
use crate::reserved::WITH_DEVICES;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Kind of object behind a `struct fid_ep`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
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
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Endpoint | Self::Tx)
    }
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Endpoint | Self::Srx | Self::Rx)
    }
}

/// Resources for new endpoints and contexts.
pub(crate) struct EndpointEnv {
    /// The API version the application asked the fabric for.
    pub(crate) api_version: u32,
    /// The format of the domain's addresses (FI_SOCKADDR_IN, FI_ADDR_STR …).
    pub(crate) addr_format: u32,
    /// Maximum number of segments of a transfer.
    pub(crate) segments: SegmentLimit,
    /// Object not closable before them: the domain, or, for a context, its scalable endpoint,
    /// keeping the domain open.
    pub(crate) parent: Parent,
    pub(crate) progress: Arc<dyn Progress>,
    /// Deferred work of the domain, if it was opened for it.
    pub(crate) later: Option<Arc<DeferredQueue>>,
    /// Event queue of the domain, for endpoints enabled without one.
    pub(crate) eq: DomainEq,
    /// Regions of the domain, for the locations of buffers, if it has FI_HMEM without hardware for
    /// it.
    pub(crate) devices: Option<Arc<MrTable>>,
}

impl EndpointEnv {
    /// Returns the flag of all operations: [`WITH_DEVICES`] or none.
    pub(crate) fn device_flag(&self) -> u64 {
        if self.devices.is_some() { WITH_DEVICES } else { 0 }
    }
}

/// Components of a fid of any role.
pub(crate) struct Parts<E> {
    pub(crate) inner: E,
    pub(crate) role: Role,
    pub(crate) caps: u64,
    pub(crate) ep_type: fi_ep_type,
    /// True for each direction (transmit, receive) in which the info selects shared contexts.
    pub(crate) shares: [bool; 2],
    /// True if the endpoint has buffered receives; their messages are claimed and discarded
    /// (fi_msg(3) of 1.x).
    pub(crate) buffered: bool,
    /// tx_attr.op_flags and rx_attr.op_flags.
    pub(crate) tx_defaults: u64,
    pub(crate) rx_defaults: u64,
    /// tx_attr.size and tx_attr.inject_size, if the endpoint has transfers of its own.
    pub(crate) tx_size: usize,
    pub(crate) inject_size: usize,
    pub(crate) ground: EndpointEnv,
    /// Attributes inherited by contexts, for a scalable endpoint.
    pub(crate) scalable: Option<Scalable>,
    /// The scalable endpoint, if this is a context of one.
    pub(crate) sep: Option<Arc<EpShared<E>>>,
}

/// State shared by an endpoint and its aliases.
pub(crate) struct EpShared<E> {
    parts: Parts<E>,
    /// Objects to be closed first: the endpoints using this shared receive context, or the contexts
    /// of this scalable endpoint.
    pub(crate) users: Arc<Users>,
    /// The shared receive context the endpoint takes its receives from.
    srx: Mutex<Option<Arc<EpShared<E>>>>,
    /// In a shared receive context: the completion queues of its endpoints, by the endpoint's
    /// address (`address`). A context without a queue of its own reports to the first.
    all_users: Mutex<Vec<(usize, Arc<Cq>)>>,
    /// Shared transmit context bound to the endpoint.
    stx: Mutex<Option<Arc<Stx>>>,
    bindings: Mutex<Bindings>,
    pub(crate) enabled: AtomicBool,
    /// The endpoint's receives are another provider's (fi_peer(3)).
    pub(crate) imports: AtomicBool,
    /// Kinds of operations with bound counters, FI_SEND | FI_WRITE …
    counted: AtomicU64,
    /// The endpoint is closing: tasks of the domain may not post to it any more.
    pub(crate) closed: AtomicBool,
    /// The open fids of the endpoint, itself and its aliases; events name the endpoint by the
    /// first.
    fids: Mutex<Vec<FidPtr>>,
    /// The endpoint's collective operations, once it has any.
    pub(crate) collectives: OnceLock<Arc<Collectives>>,
    /// The endpoint's multicast groups, once it is enabled.
    pub(crate) multicast: OnceLock<Multicast>,
}

impl<E> Parts<E> {
    /// The directions of the endpoint's capabilities: FI_SEND, FI_RECV or both; if neither is
    /// named, both.
    pub(crate) fn directions(&self) -> u64 {
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

impl<E: Msg> EpShared<E> {
    /// Passes a receive to the provider, as [`hand`](Self::hand) does, with [`Msg::try_post_fast`]. The code
    /// of a closure might become a call.
    #[inline(always)]
    pub(crate) fn try_post_fast<const LEVEL: usize>(&self, op: FastRecv, tagged: bool) -> bool {
        let outstanding = self.outstanding(false);
        outstanding.posted();
        let is_posted = self.inner.try_post_fast::<LEVEL>(op, tagged);
        if !is_posted {
            outstanding.refused();
        }
        is_posted
    }
}

impl<E> EpShared<E> {
    /// Returns the state of a new endpoint without bindings.
    pub(crate) fn new(parts: Parts<E>) -> Arc<Self> {
        Arc::new(Self {
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
        })
    }

    /// Returns a number identifying this endpoint while it is open: its address.
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the endpoint's fid in events.
    pub(crate) fn fid(&self) -> Option<FidPtr> {
        self.fids().first().copied()
    }

    pub(super) fn fids(&self) -> MutexGuard<'_, Vec<FidPtr>> {
        self.fids.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn bindings(&self) -> MutexGuard<'_, Bindings> {
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
    pub(crate) fn hand<T>(&self, sends: bool, post: impl FnOnce(&E) -> Result<T>) -> Result<T> {
        let outstanding = self.outstanding(sends);
        outstanding.posted();
        let result = post(&self.inner);
        if result.is_err() {
            outstanding.refused();
        }
        result
    }

    /// Returns the shared receive context the endpoint takes its receives from.
    pub(crate) fn srx(&self) -> MutexGuard<'_, Option<Arc<Self>>> {
        self.srx.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records bound counters of these kinds of operations, FI_SEND | FI_WRITE …
    pub(crate) fn count(&self, kinds: u64) {
        self.counted.fetch_or(kinds, Ordering::Relaxed);
    }

    /// Returns true if a counter counts operations of this kind.
    #[inline]
    pub(crate) fn is_counted(&self, kind: u64) -> bool {
        self.counted.load(Ordering::Relaxed) & kind != 0
    }

    /// Binds a shared transmit context.
    pub(crate) fn bind_stx(&self, stx: Arc<Stx>) -> Result {
        let mut slot = self.stx.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if slot.is_some() {
            return Err(Error::INVAL);
        }
        stx.add_user();
        *slot = Some(stx);
        Ok(())
    }

    /// Returns true if a shared transmit context is bound.
    pub(crate) fn has_stx(&self) -> bool {
        self.stx.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_some()
    }
}

impl<E: Endpoint> EpShared<E> {
    /// Changes the list of endpoint queues of a shared receive context. Cancelled receives are
    /// reported to one of these; it cannot be closed while an endpoint uses it.
    pub(crate) fn change_users(&self, change: impl FnOnce(&mut Vec<(usize, Arc<Cq>)>)) -> Result {
        let mut users = self.all_users.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut users);
        let mut bindings = self.bindings().clone();
        if bindings.completions.rx.cq.is_none() {
            if let Some((_, cq)) = users.first() {
                bindings.completions.rx.cq = Some(cq.clone());
                self.inner.enable(&bindings, None)?;
            }
        }
        Ok(())
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
