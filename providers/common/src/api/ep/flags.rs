//! Flags of transfers: valid flags of each call, and the endpoint's default flags.
use super::fid::EpFid;
use crate::abi;
use crate::api::traits::Endpoint;
use crate::error::{Error, Result};
use crate::reserved::{OF_SHARED_RX, OWN_FLAGS, TO_GROUPS, WITH_DEVICES};
use std::sync::atomic::Ordering;

/// When a transfer is complete for its sender, other than at once (fi_cq(3)).
pub(super) const LEVELS: u64 = abi::FI_TRANSMIT_COMPLETE
    | abi::FI_DELIVERY_COMPLETE
    | abi::FI_MATCH_COMPLETE
    | abi::FI_COMMIT_COMPLETE;

/// Valid flags of a send call (fi_msg(3)).
pub(crate) const TX_FLAGS: u64 = abi::FI_COMPLETION
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

/// Valid flags of a receive call.
pub(crate) const RX_FLAGS: u64 = abi::FI_COMPLETION
    | abi::FI_MORE
    // A receive is complete when its message is in the buffer, so that this adds nothing.
    | abi::FI_TRANSMIT_COMPLETE
    | abi::FI_MULTI_RECV
    | abi::FI_REMOTE_CQ_DATA
    | abi::FI_MSG
    | abi::FI_TAGGED
    | abi::FI_RECV;

/// Default flags not clearable by the application (FI_SETOPSFLAG).
pub(super) const ALWAYS: u64 = abi::FI_COMPLETION | OF_SHARED_RX | TO_GROUPS | WITH_DEVICES;

/// Flags of a receive call deciding the fate of a reported message (fi_msg(3) of 1.x).
pub(super) const SETTLES: u64 = abi::FI_CLAIM | abi::FI_DISCARD;

/// Additional valid flags of a tagged receive call.
pub(super) const TRX_FLAGS: u64 = abi::FI_PEEK | abi::FI_CLAIM | abi::FI_DISCARD;

impl<E: Endpoint> EpFid<E> {
    /// Reads or changes the default flags of sends or receives, selected by FI_TRANSMIT or FI_RECV
    /// in `flags`.
    pub(super) fn op_flags(&self, flags: &mut u64, set: bool) -> Result {
        let which = *flags & (abi::FI_TRANSMIT | abi::FI_RECV);
        let (to, msg) = self.flags.of_direction(which).ok_or(Error::INVAL)?;
        if set {
            let known = if which == abi::FI_RECV { RX_FLAGS } else { TX_FLAGS };
            let multicast = self.shared.caps & abi::FI_MULTICAST;
            self.only_triggered(*flags & !(which | known | multicast))?;
            // Without selective completion every success is reported.
            let always = msg & ALWAYS;
            to.store((*flags & !(which | OWN_FLAGS)) | always, Ordering::Relaxed);
        } else {
            *flags = to.load(Ordering::Relaxed) & !OWN_FLAGS;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn tx(&self) -> u64 {
        self.flags.tx()
    }

    #[inline]
    pub(super) fn rx(&self) -> u64 {
        self.flags.rx()
    }

    /// Returns the flags of an inject call: never a success entry, and no context with a counter.
    /// Without a counter bound for its kind either, FI_SEND or FI_WRITE, it completes as soon as
    /// the buffer is reusable. The endpoint's completion level for other transfers does not matter,
    /// because a peer's answer would be reported nowhere.
    #[inline]
    pub(crate) fn inject_flags(&self, kind: u64) -> u64 {
        const NEVER: u64 = abi::FI_COMPLETION | abi::FI_TRIGGER;
        let counted = self.shared.is_counted(kind);
        let not = if counted { NEVER } else { NEVER | LEVELS };
        (self.tx() & !not) | abi::FI_INJECT
    }

    /// Returns the flags of a write, or of an atomic operation without results. An application
    /// counting these operations sees neither entries nor later messages, only the count. So the
    /// count has to prove the data has arrived (OpenSHMEM's quiet), unless another completion level
    /// is requested.
    #[inline]
    pub(crate) fn write_flags(&self, flags: u64) -> u64 {
        let counted = self.shared.is_counted(abi::FI_WRITE);
        if E::ACKNOWLEDGES && counted && flags & (LEVELS | abi::FI_INJECT_COMPLETE) == 0 {
            return flags | abi::FI_DELIVERY_COMPLETE;
        }
        flags
    }

    #[inline]
    pub(crate) fn tx_msg(&self, flags: u64) -> Result<u64> {
        if flags & !TX_FLAGS != 0 {
            // The capability FI_MULTICAST and the flag of that name are the same bit.
            self.only_triggered(flags & !(TX_FLAGS | self.shared.caps & abi::FI_MULTICAST))?;
        }
        Ok(flags | self.flags.tx_msg())
    }

    /// Returns true if a receive with these flags is for a reported message, instead of one for a
    /// later message.
    pub(super) fn settles(&self, flags: u64) -> bool {
        self.shared.buffered && flags & SETTLES != 0 && flags & abi::FI_PEEK == 0
    }

    #[inline]
    pub(super) fn rx_msg(&self, flags: u64, allowed: u64) -> Result<u64> {
        if flags & !allowed != 0 {
            self.only_triggered(flags & !allowed)?;
        }
        Ok(flags | self.flags.rx_msg())
    }
}
