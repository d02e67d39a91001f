//! Rules for the match criteria of an endpoint's receives.
use crate::abi::{FI_ADDR_UNSPEC, fi_addr_t};
use crate::matching::Pattern;
use crate::operation::RecvOp;
use crate::reserved::OWN_TAG;

/// Rules for the match criteria of an endpoint's receives.
#[derive(Debug)]
pub struct RecvRules {
    /// A receive's source address takes part in matching (FI_DIRECTED_RECV).
    directed: bool,
    /// Tags with `OWN_TAG` are the library's own and not the application's (FI_COLLECTIVE,
    /// FI_MULTICAST).
    collective: bool,
}

impl RecvRules {
    /// `directed`: the source of a receive takes part in matching (FI_DIRECTED_RECV).
    pub(super) fn new(directed: bool) -> Self {
        Self { directed, collective: false }
    }

    /// Sets if the source of a receive takes part in matching (FI_DIRECTED_RECV).
    pub(super) fn set_directed(&mut self, directed: bool) {
        self.directed = directed;
    }

    /// Reserves tags with `OWN_TAG` for the library (FI_COLLECTIVE, FI_MULTICAST).
    pub fn set_collective(&mut self) {
        self.collective = true;
    }

    /// Returns true if a tag on this endpoint belongs to the library itself, not to the application
    /// (fi_collective(3)).
    #[inline]
    pub fn is_internal_tag(&self, tag: u64) -> bool {
        tag & OWN_TAG != 0 && self.collective
    }

    /// Returns the match criteria of a receive. An internal receive is always restricted to its
    /// source, because a message's own statement about its sender is not trusted.
    #[inline(always)]
    pub(super) fn pattern(&self, op: &RecvOp, own: bool) -> Pattern {
        self.pattern_of((op.src, op.tag, op.ignore), own)
    }

    /// Returns the match criteria of a receive with this source, tag, and ignored bits of the tag, as
    /// [`pattern`](Self::pattern) does.
    #[inline(always)]
    pub(super) fn pattern_of(
        &self,
        (src, tag, ignore): (fi_addr_t, u64, u64),
        own: bool,
    ) -> Pattern {
        let chooses = self.directed || own;
        let src = (chooses && src != FI_ADDR_UNSPEC).then_some(src);
        Pattern { src, tag, ignore }
    }
}
