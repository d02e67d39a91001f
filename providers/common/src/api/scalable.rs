//! Attributes of a scalable endpoint and of its contexts.
use crate::abi::{FI_NAMED_RX_CTX, fi_rx_attr, fi_tx_attr};
use crate::attr::{RxAttr, TxAttr};
use crate::error::{Error, Result};

/// Attributes inherited by the contexts of a scalable endpoint.
#[derive(Debug)]
pub(crate) struct Scalable {
    tx: TxAttr,
    rx: RxAttr,
}

/// Returns the limit of a context: the requested value, or the endpoint's own if 0 is requested.
/// Fails with -FI_EINVAL if the request exceeds it.
fn bound(wanted: usize, have: usize) -> Result<usize> {
    match wanted {
        0 => Ok(have),
        wanted if wanted <= have => Ok(wanted),
        _ => Err(Error::INVAL),
    }
}

/// Returns the bits of a context: the requested ones, or all of the endpoint if none is requested.
/// Fails with -FI_EINVAL if a requested bit is missing in the endpoint.
fn subset(wanted: u64, have: u64) -> Result<u64> {
    match wanted {
        0 => Ok(have),
        wanted if wanted & !have == 0 => Ok(wanted),
        _ => Err(Error::INVAL),
    }
}

impl Scalable {
    pub(super) fn new(tx: TxAttr, rx: RxAttr) -> Self {
        Self { tx, rx }
    }

    /// Replaces the requested attributes by the ones granted to a transmit context, and returns
    /// these.
    pub(super) fn tx_context(&self, attr: Option<&mut fi_tx_attr>) -> Result<TxAttr> {
        let Some(attr) = attr else { return Ok(self.tx) };
        let get = TxAttr {
            caps: subset(attr.caps, self.tx.caps)?,
            op_flags: if attr.op_flags == 0 { self.tx.op_flags } else { attr.op_flags },
            msg_order: subset(attr.msg_order, self.tx.msg_order)?,
            inject_size: bound(attr.inject_size, self.tx.inject_size)?,
            size: bound(attr.size, self.tx.size)?,
            iov_limit: bound(attr.iov_limit, self.tx.iov_limit)?,
            rma_iov_limit: bound(attr.rma_iov_limit, self.tx.rma_iov_limit)?,
        };
        (attr.caps, attr.mode, attr.op_flags) = (get.caps, 0, get.op_flags);
        (attr.msg_order, attr.inject_size, attr.size) = (get.msg_order, get.inject_size, get.size);
        (attr.iov_limit, attr.rma_iov_limit) = (get.iov_limit, get.rma_iov_limit);
        Ok(get)
    }

    /// Replaces the requested attributes by the ones granted to a receive context, and returns
    /// these.
    pub(super) fn rx_context(&self, attr: Option<&mut fi_rx_attr>) -> Result<RxAttr> {
        let Some(attr) = attr else { return Ok(self.rx) };
        let get = RxAttr {
            // That it can be named is no matter of its own: programs ask for it all the same.
            caps: subset(attr.caps & !FI_NAMED_RX_CTX, self.rx.caps)?,
            op_flags: if attr.op_flags == 0 { self.rx.op_flags } else { attr.op_flags },
            msg_order: subset(attr.msg_order, self.rx.msg_order)?,
            size: bound(attr.size, self.rx.size)?,
            iov_limit: bound(attr.iov_limit, self.rx.iov_limit)?,
        };
        (attr.caps, attr.mode, attr.op_flags) = (get.caps, 0, get.op_flags);
        (attr.msg_order, attr.size, attr.iov_limit) = (get.msg_order, get.size, get.iov_limit);
        Ok(get)
    }
}
