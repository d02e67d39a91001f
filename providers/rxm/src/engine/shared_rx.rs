//! Receive buffers in the core's shared receive context.
use super::conn::{RxmConn, Token};
use super::conns::RxmConns;
use super::core_objects::RxmCore;
use super::pending::{MAX_UNEXPECTED, RxmUnexpected};
use ofi_provider::core_provider::CoreBuf;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::slab::NONE;

/// Receive buffers posted to the shared context, and the number to be posted.
#[derive(Default)]
pub(super) struct SharedBuffers {
    posted: usize,
    wanted: usize,
}

impl SharedBuffers {
    /// Sets the number to be posted.
    pub(super) fn set_wanted(&mut self, wanted: usize) {
        self.wanted = wanted;
    }

    /// Returns the number to be posted.
    #[inline(always)]
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns true if fewer are posted than wanted.
    #[inline(always)]
    pub(super) fn is_short(&self) -> bool {
        self.posted < self.wanted
    }

    /// Returns true if some are wanted, and none is posted.
    pub(super) fn has_none(&self) -> bool {
        self.wanted > 0 && self.posted == 0
    }

    /// Records a buffer as used by a packet.
    #[inline(always)]
    pub(super) fn note_used(&mut self) {
        self.posted -= 1;
    }

    /// Posts more buffers to the shared context from now on.
    #[cold]
    pub(super) fn grow(
        &mut self,
        core: Option<&RxmCore>,
        conns: &mut RxmConns,
        matcher: &RxMatcher<RxmUnexpected>,
        most: usize,
    ) {
        self.wanted = (self.wanted * 2).min(most);
        self.post(core, conns, matcher);
    }

    /// Posts receive buffers to the shared context until there are enough.
    pub(super) fn post(
        &mut self,
        core: Option<&RxmCore>,
        conns: &mut RxmConns,
        matcher: &RxMatcher<RxmUnexpected>,
    ) {
        while self.posted < self.wanted && matcher.queues.buffered_bytes() <= MAX_UNEXPECTED {
            let Ok(buf) = conns.buffer() else { return };
            let Some(srx) = core.and_then(|core| core.srx.as_ref()) else { return };
            if let Err((_, buf)) = srx.post(buf, Token::Rx(NONE).to_u64()) {
                conns.release(Some(buf));
                return;
            }
            self.posted += 1;
        }
    }

    /// Posts a buffer to the shared context again, if it is left and wanted there.
    #[inline]
    fn post_again(
        &mut self,
        core: Option<&RxmCore>,
        conns: &mut RxmConns,
        matcher: &RxMatcher<RxmUnexpected>,
        buf: Option<CoreBuf>,
    ) {
        // The commonest case: the buffer goes back as it is.
        if let Some(buf) = buf {
            if self.posted + 1 == self.wanted && matcher.queues.buffered_bytes() <= MAX_UNEXPECTED {
                if let Some(srx) = core.and_then(|core| core.srx.as_ref()) {
                    match srx.post(buf, Token::Rx(NONE).to_u64()) {
                        Ok(()) => self.posted += 1,
                        Err((_, buf)) => conns.release(Some(buf)),
                    }
                    return;
                }
            }
            conns.release(Some(buf));
        }
        self.post(core, conns, matcher);
    }

    /// Reposts a receive buffer to the core: `buf` if it is still available, else another.
    #[inline]
    pub(super) fn reuse(
        &mut self,
        core: Option<&RxmCore>,
        conns: &mut RxmConns,
        matcher: &RxMatcher<RxmUnexpected>,
        conn: u32,
        buf: Option<CoreBuf>,
    ) {
        if conn == NONE {
            self.post_again(core, conns, matcher, buf);
        } else {
            if let Some(RxmConn { rx_posted: 0, rx_wanted, .. }) = conns.get_mut(conn) {
                // The buffers were too few, as with shared ones.
                *rx_wanted = rx_wanted.saturating_mul(2);
            }
            conns.release(buf);
            conns.post_own(conn);
            conns.grant(conn);
        }
    }
}
