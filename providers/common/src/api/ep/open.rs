//! Opening endpoints and their aliases, the choice of their ops tables, and closing.
use super::default_flags::DefaultFlags;
use super::fid::{EpFid, TransferTables};
use super::flags::ALWAYS;
use super::message::MessageTables;
use super::shared::{EndpointEnv, EpShared, Parts, Role};
use super::{bind, control};
use crate::abi::{
    self, FI_CLASS_EP, FI_CLASS_RX_CTX, FI_CLASS_SEP, FI_CLASS_SRX_CTX, FI_CLASS_TX_CTX,
    FI_SHARED_CONTEXT, fi_ep_type, fi_ops, fi_ops_msg, fi_ops_tagged, fid, fid_ep,
};
use crate::api::srx_fids::SRX_FIDS;
use crate::api::traits::Endpoint;
use crate::api::unsupported;
use crate::attr::RxAttr;
use crate::boundary::ffi_guard;
use crate::eq::FidPtr;
use crate::error::{Error, Result};
use crate::fid::{FidObject, ops};
use crate::info::InfoRef;
use crate::lock::Level;
use crate::reserved::{OF_SHARED_RX, OWN_FLAGS};
use crate::variable;
use core::ffi::{c_int, c_void};
use std::any::TypeId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<E: Endpoint> EpFid<E> {
    const FID_OPS: &'static fi_ops = &fi_ops {
        bind: Some(bind::bind::<E>),
        control: Some(control::control::<E>),
        ..ops(close::<E>)
    };

    /// Wraps a provider's new endpoint for C.
    pub(crate) fn open(
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
    pub(crate) fn open_srx(
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
        SRX_FIDS.insert(srx.as_c() as usize, TypeId::of::<E>());
        srx
    }

    /// Wraps a provider object with the C interface of an endpoint.
    pub(crate) fn wrap(parts: Parts<E>, context: *mut c_void) -> Arc<Self> {
        let (marked, device) = (parts.has_multicast(), parts.ground.device_flag());
        let [tx, tx_msg, rx, rx_msg] = Self::default_flags(parts.tx_defaults, parts.rx_defaults);
        let (rx, rx_msg) = match parts.role {
            // Each endpoint that takes a shared receive context's receives decides which are
            // reported.
            Role::Srx => (parts.rx_defaults | OF_SHARED_RX, OF_SHARED_RX),
            _ => (rx, rx_msg),
        };
        let flags = [tx | marked, tx_msg | marked, rx, rx_msg].map(|flags| flags | device);
        let shared = EpShared::new(parts);
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
        let c = fid_ep {
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
        };
        let ep = Self::new(c, DefaultFlags::new(flags), shared);
        if let Some(later) = &ep.shared.ground.later {
            if ep.shared.role != Role::Scalable {
                later.opened(ep.as_c() as usize);
            }
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
    pub(crate) fn use_transfer_tables(&self) {
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
        self.set_transfer_tables(&TransferTables {
            msg,
            tagged,
            rma: (has(abi::FI_RMA) && role.sends()).then_some(Self::RMA_OPS),
            collective: (has(abi::FI_COLLECTIVE) && self.shared.ground.later.is_some())
                .then_some(Self::COLLECTIVE_OPS),
            atomic: (has(abi::FI_ATOMIC) && role.sends()).then_some(Self::ATOMIC_OPS),
        });
    }

    pub(super) fn alias(&self, flags: u64) -> Result<Arc<Self>> {
        let mut all = self.flags.all();
        let own = flags & !(abi::FI_TRANSMIT | abi::FI_RECV | OWN_FLAGS);
        match flags & (abi::FI_TRANSMIT | abi::FI_RECV) {
            abi::FI_TRANSMIT => all[0] = own | (all[1] & ALWAYS),
            abi::FI_RECV => all[2] = own | (all[3] & ALWAYS),
            _ => return Err(Error::INVAL),
        }
        Ok(Self::make(self.shared.clone(), self.app_context(), all))
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
            let removed = SRX_FIDS.remove_if(fid as usize, |_| ep.shared.users.check_none());
            removed.unwrap_or_else(|| ep.shared.users.check_none())?;
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
