//! Default flags of an endpoint's operations.
use crate::abi::{FI_RECV, FI_TRANSMIT};
use std::sync::atomic::{AtomicU64, Ordering};

/// Default flags of sends (`tx`) and receives (`rx`): of calls without a flags argument, and the
/// ones added to calls with one (`_msg`).
pub(super) struct DefaultFlags {
    tx: AtomicU64,
    tx_msg: AtomicU64,
    rx: AtomicU64,
    rx_msg: AtomicU64,
}

impl DefaultFlags {
    /// Returns these flags: `tx`, `tx_msg`, `rx` and `rx_msg`.
    pub(super) fn new(flags: [u64; 4]) -> Self {
        let [tx, tx_msg, rx, rx_msg] = flags.map(AtomicU64::new);
        Self { tx, tx_msg, rx, rx_msg }
    }

    /// Returns all flags, in the order of [`new`](Self::new).
    pub(super) fn all(&self) -> [u64; 4] {
        [self.tx(), self.tx_msg(), self.rx(), self.rx_msg()]
    }

    #[inline]
    pub(super) fn tx(&self) -> u64 {
        self.tx.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn tx_msg(&self) -> u64 {
        self.tx_msg.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn rx(&self) -> u64 {
        self.rx.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn rx_msg(&self) -> u64 {
        self.rx_msg.load(Ordering::Relaxed)
    }

    /// Replaces the flags of sends: of calls without and with a flags argument.
    pub(super) fn set_tx(&self, tx: u64, tx_msg: u64) {
        self.tx.store(tx, Ordering::Relaxed);
        self.tx_msg.store(tx_msg, Ordering::Relaxed);
    }

    /// Replaces the flags of receives: of calls without and with a flags argument.
    pub(super) fn set_rx(&self, rx: u64, rx_msg: u64) {
        self.rx.store(rx, Ordering::Relaxed);
        self.rx_msg.store(rx_msg, Ordering::Relaxed);
    }

    /// Returns the flags of one direction, FI_TRANSMIT or FI_RECV: of calls without a flags
    /// argument, and the ones added to calls with one.
    pub(super) fn of_direction(&self, direction: u64) -> Option<(&AtomicU64, u64)> {
        match direction {
            FI_TRANSMIT => Some((&self.tx, self.tx_msg())),
            FI_RECV => Some((&self.rx, self.rx_msg())),
            _ => None,
        }
    }
}
