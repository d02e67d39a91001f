//! Completion of zero-copy transfers after the kernel has released their memory.
use super::rx_path::RxPath;
use super::tx_path::TxPath;
use super::zerocopy::MAX_COPIED;
use crate::transport::{ByteLink, ShmLink, ShmTransport, ZeroCopyLink, ZerocopyDone};
use ofi_provider::sys::Interest;

impl<N: ShmTransport> RxPath<N> {
    /// Runs [`read_notices`](TxPath::read_notices), and sends fenced transfers waiting for the
    /// completed ones.
    #[cold]
    pub(super) fn reclaim(&mut self, id: u32) -> bool {
        let moved = self.tx.read_notices(id);
        if self.tx.io.conns.get(id).is_some_and(|conn| !conn.is_exposing()) {
            let sent = self.tx.lift_fence(id);
            self.conclude(sent);
        }
        moved
    }
}

impl<N: ShmTransport> TxPath<N> {
    /// Reads the link's notifications of released bytes
    /// ([`ZeroCopyLink::zerocopy_done`](crate::transport::ZeroCopyLink::zerocopy_done)), and completes their
    /// messages. Returns true if there were any.
    pub(super) fn read_notices(&mut self, id: u32) -> bool {
        let mut moved = false;
        let Some(conn) = self.io.conns.get_mut(id) else { return false };
        let Some(zerocopy) = &mut conn.zerocopy else { return false };
        while let Ok(ZerocopyDone { low, high, copied }) = conn.link.zerocopy_done() {
            moved = true;
            zerocopy.released(low, high);
            let calls = high.wrapping_sub(low).saturating_add(1);
            zerocopy.copied = if copied { zerocopy.copied.saturating_add(calls) } else { 0 };
            if zerocopy.copied > MAX_COPIED && zerocopy.from != usize::MAX {
                // The system copies anyway, as between processes of one host: zero-copy costs
                // more than it spares.
                zerocopy.from = usize::MAX;
                ofi_provider::log!(
                    N::Link::provider(),
                    INFO,
                    EP_DATA,
                    "the system copied what it need not: no more zero-copy on this connection"
                );
            }
        }
        while let Some(finish) = zerocopy.take_finished() {
            self.eps[conn.ep].finish_tx(&finish, Ok(()));
        }
        if zerocopy.is_busy() {
            return moved;
        }
        let retained = std::mem::take(&mut conn.retained);
        self.backlog.subtract(&mut conn.backlog, retained);
        if conn.link.tx_over_shm() || !self.io.net.is_ring() {
            conn.allow_fast();
        }
        if conn.interest == Interest::NONE {
            self.io.watch(id);
        }
        moved
    }
}
