//! Scalable endpoints: one address with several transmit and receive contexts
//! (fi_endpoint(3)).
use super::ep::fid::EpFid;
use super::ep::shared::{EndpointEnv, Parts, Role};
use super::scalable::Scalable;
use super::traits::Endpoint;
use crate::abi::{FI_TRIGGER, fi_ep_type, fi_ops_ep, fi_rx_attr, fi_tx_attr, fid_ep};
use crate::attr::{ContextAttr, RxAttr, TxAttr};
use crate::boundary::ffi_guard_if_memory;
use crate::error::{Error, Result};
use crate::fid::{FidObject, enosys_stub};
use crate::info::InfoRef;
use crate::object::Parent;
use crate::variable;
use core::ffi::{c_int, c_void};
use std::sync::Arc;

impl<E: Endpoint> EpFid<E> {
    pub(super) const SEP_EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        cancel: enosys_stub(),
        tx_ctx: Some(tx_ctx::<E>),
        rx_ctx: Some(rx_ctx::<E>),
        rx_size_left: enosys_stub(),
        tx_size_left: enosys_stub(),
        ..*Self::EP_OPS
    };

    /// Wraps a provider's new scalable endpoint for C.
    pub(super) fn open_scalable(
        inner: E,
        info: InfoRef<'_>,
        ground: EndpointEnv,
        context: *mut c_void,
    ) -> Arc<Self> {
        let tx = info.tx().map_or_else(TxAttr::default, |tx| TxAttr {
            caps: tx.caps,
            op_flags: tx.op_flags,
            msg_order: tx.msg_order,
            inject_size: tx.inject_size,
            size: tx.size,
            iov_limit: tx.iov_limit,
            rma_iov_limit: tx.rma_iov_limit,
        });
        let rx = info.rx().map_or_else(RxAttr::default, |rx| RxAttr {
            caps: rx.caps,
            op_flags: rx.op_flags,
            msg_order: rx.msg_order,
            size: rx.size,
            iov_limit: rx.iov_limit,
        });
        let parts = Parts {
            inner,
            role: Role::Scalable,
            caps: info.caps(),
            ep_type: fi_ep_type::FI_EP_RDM,
            shares: [false; 2],
            buffered: E::BUFFERS && variable::is_asked(info, ground.api_version),
            tx_defaults: tx.op_flags,
            rx_defaults: rx.op_flags,
            tx_size: 0,
            inject_size: 0,
            // The scalable endpoint hands this on to its contexts, which may have triggered
            // operations.
            ground: EndpointEnv {
                later: ground.later.filter(|_| info.caps() & FI_TRIGGER != 0),
                ..ground
            },
            scalable: Some(Scalable::new(tx, rx)),
            sep: None,
        };
        Self::wrap(parts, context)
    }

    /// Opens a context of this scalable endpoint.
    fn context(&self, index: c_int, attr: &ContextAttr, context: *mut c_void) -> Result<Arc<Self>> {
        let sep = &*self.shared;
        let index = usize::try_from(index).map_err(|_| Error::INVAL)?;
        let inner = sep.inner.context(index, attr)?;
        let (role, caps, tx_defaults, rx_defaults) = match attr {
            ContextAttr::Tx(tx) => (Role::Tx, tx.caps, tx.op_flags, 0),
            ContextAttr::Rx(rx) => (Role::Rx, rx.caps, 0, rx.op_flags),
        };
        let parts = Parts {
            inner,
            role,
            caps,
            ep_type: sep.ep_type,
            shares: [false; 2],
            buffered: sep.buffered,
            tx_defaults,
            rx_defaults,
            tx_size: 0,
            inject_size: 0,
            ground: EndpointEnv {
                api_version: sep.ground.api_version,
                addr_format: sep.ground.addr_format,
                segments: sep.ground.segments,
                parent: Parent::new(sep.ground.parent.object().clone(), sep.users.clone()),
                progress: sep.ground.progress.clone(),
                later: sep.ground.later.clone().filter(|_| caps & FI_TRIGGER != 0),
                eq: sep.ground.eq.clone(),
                devices: sep.ground.devices.clone(),
            },
            scalable: None,
            sep: Some(self.shared.clone()),
        };
        Ok(Self::wrap(parts, context))
    }

    /// Returns the attributes inherited by contexts; only a scalable endpoint has them.
    fn inherited(&self) -> Result<&Scalable> {
        self.shared.scalable.as_ref().ok_or(Error::INVAL)
    }
}

// SAFETY of the entry points below: each is reachable only through the ops table
// of a scalable endpoint of the same `E` that is open, or with null. Of the
// attributes, which are the caller's or null, only fields that every version has
// are used.

unsafe extern "C" fn tx_ctx<E: Endpoint>(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi_tx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_tx_context", || {
        if out.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: see above.
        unsafe {
            let sep = EpFid::<E>::from_c(sep)?;
            let attr = ContextAttr::Tx(sep.inherited()?.tx_context(attr.as_mut())?);
            out.write(sep.context(index, &attr, context)?.into_c());
        }
        Ok(())
    })
}

unsafe extern "C" fn rx_ctx<E: Endpoint>(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_rx_context", || {
        if out.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: see above.
        unsafe {
            let sep = EpFid::<E>::from_c(sep)?;
            let attr = ContextAttr::Rx(sep.inherited()?.rx_context(attr.as_mut())?);
            out.write(sep.context(index, &attr, context)?.into_c());
        }
        Ok(())
    })
}
