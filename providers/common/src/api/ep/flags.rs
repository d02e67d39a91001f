//! The flags of transfers: which a call may carry, and those of the endpoint that it gets.
use super::EpFid;
use crate::abi;
use crate::api::Endpoint;
use crate::error::{Error, Result};
use crate::reserved::{OF_SHARED_RX, OWN_FLAGS, TO_GROUPS};
use std::sync::atomic::Ordering;

/// When a transfer is complete for its sender, other than at once (fi_cq(3)).
pub(super) const LEVELS: u64 = abi::FI_TRANSMIT_COMPLETE
    | abi::FI_DELIVERY_COMPLETE
    | abi::FI_MATCH_COMPLETE
    | abi::FI_COMMIT_COMPLETE;

/// Flags that a send call may carry (fi_msg(3)).
pub(in crate::api) const TX_FLAGS: u64 = abi::FI_COMPLETION
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
pub(in crate::api) const RX_FLAGS: u64 = abi::FI_COMPLETION
    | abi::FI_MORE
    // A receive is complete when its message is in the buffer, so that this adds nothing.
    | abi::FI_TRANSMIT_COMPLETE
    | abi::FI_MULTI_RECV
    | abi::FI_REMOTE_CQ_DATA
    | abi::FI_MSG
    | abi::FI_TAGGED
    | abi::FI_RECV;

/// Default flags that stay set whatever the application sets (FI_SETOPSFLAG).
pub(super) const ALWAYS: u64 = abi::FI_COMPLETION | OF_SHARED_RX | TO_GROUPS;

/// Flags of a receive call that settles what becomes of a message that was
/// reported (fi_msg(3) of 1.x).
pub(super) const SETTLES: u64 = abi::FI_CLAIM | abi::FI_DISCARD;

/// Flags that a tagged receive call may carry besides.
pub(super) const TRX_FLAGS: u64 = abi::FI_PEEK | abi::FI_CLAIM | abi::FI_DISCARD;

impl<E: Endpoint> EpFid<E> {
    /// Reads or changes the default flags of sends or receives, which `flags`
    /// names with FI_TRANSMIT or FI_RECV.
    pub(super) fn op_flags(&self, flags: &mut u64, set: bool) -> Result {
        let which = *flags & (abi::FI_TRANSMIT | abi::FI_RECV);
        let to = match which {
            abi::FI_TRANSMIT => &self.tx_flags,
            abi::FI_RECV => &self.rx_flags,
            _ => return Err(Error::INVAL),
        };
        if set {
            let known = if which == abi::FI_RECV { RX_FLAGS } else { TX_FLAGS };
            let multicast = self.shared.caps & abi::FI_MULTICAST;
            self.only_triggered(*flags & !(which | known | multicast))?;
            let msg = if which == abi::FI_RECV { &self.rx_msg_flags } else { &self.tx_msg_flags };
            // Without selective completion every success is reported.
            let always = msg.load(Ordering::Relaxed) & ALWAYS;
            to.store((*flags & !(which | OWN_FLAGS)) | always, Ordering::Relaxed);
        } else {
            *flags = to.load(Ordering::Relaxed) & !OWN_FLAGS;
        }
        Ok(())
    }

    #[inline]
    pub(in crate::api) fn tx(&self) -> u64 {
        self.tx_flags.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn rx(&self) -> u64 {
        self.rx_flags.load(Ordering::Relaxed)
    }

    /// The flags of a call without any that injects: never a success entry, and no context that
    /// could name a counter. If none is bound either for its kind, FI_SEND or FI_WRITE, it is
    /// complete as soon as the buffer is the application's again, whatever the endpoint's other
    /// transfers wait for: nothing would report an answer from the peer.
    #[inline]
    pub(in crate::api) fn inject_flags(&self, kind: u64) -> u64 {
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
    pub(in crate::api) fn write_flags(&self, flags: u64) -> u64 {
        let counted = self.shared.counted.load(Ordering::Relaxed) & abi::FI_WRITE != 0;
        if E::ACKNOWLEDGES && counted && flags & (LEVELS | abi::FI_INJECT_COMPLETE) == 0 {
            return flags | abi::FI_DELIVERY_COMPLETE;
        }
        flags
    }

    #[inline]
    pub(in crate::api) fn tx_msg(&self, flags: u64) -> Result<u64> {
        if flags & !TX_FLAGS != 0 {
            // The capability FI_MULTICAST and the flag of that name are the same bit.
            self.only_triggered(flags & !(TX_FLAGS | self.shared.caps & abi::FI_MULTICAST))?;
        }
        Ok(flags | self.tx_msg_flags.load(Ordering::Relaxed))
    }

    /// Whether a receive with these flags is for a message that was reported, and
    /// not posted for one to come.
    pub(super) fn settles(&self, flags: u64) -> bool {
        self.shared.buffered && flags & SETTLES != 0 && flags & abi::FI_PEEK == 0
    }

    #[inline]
    pub(super) fn rx_msg(&self, flags: u64, allowed: u64) -> Result<u64> {
        if flags & !allowed != 0 {
            self.only_triggered(flags & !allowed)?;
        }
        Ok(flags | self.rx_msg_flags.load(Ordering::Relaxed))
    }
}
