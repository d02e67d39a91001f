//! State guarded by the engine's lock.
use super::conn_request::AwaitedRepeats;
use super::connector::Connector;
use super::rx_path::RxPath;
use super::staging::Staging;
use super::stats::StatsPublisher;
use super::unknown_conns::UnknownConns;
use crate::transport::{FlushTarget, ShmTransport};
use ofi_provider::error::Result;
use ofi_provider::mr::MrTable;
use std::sync::{Arc, Weak};

/// State guarded by the engine's lock.
///
/// Data flows through three layers: links of connections and their poller
/// ([`EngineIo`](super::io::EngineIo)), sending on them ([`TxPath`](super::tx_path::TxPath)), and
/// receiving, including responses ([`RxPath`]). This type adds the rest: progress iterations, the
/// calls of the application, and connection management.
pub struct StreamState<N: ShmTransport> {
    pub(super) rx: RxPath<N>,
    pub(super) connector: Connector,
    pub(super) unknown: UnknownConns,
    pub(super) repeats: AwaitedRepeats<N::Link>,
    pub(super) publisher: StatsPublisher,
}

impl<N: ShmTransport> StreamState<N> {
    #[inline(always)]
    pub(super) fn new(net: N, regions: Arc<MrTable>, staging: Staging) -> Self {
        Self {
            rx: RxPath::new(net, regions, staging),
            connector: Connector::default(),
            unknown: UnknownConns::default(),
            repeats: AwaitedRepeats::default(),
            publisher: StatsPublisher::new(N::stats()),
        }
    }

    /// Starts the flush timer.
    pub(super) fn start_flusher(&mut self, target: Weak<dyn FlushTarget>) -> Result {
        let tx = &mut self.rx.tx;
        tx.batcher.set_flusher(tx.io.net.start_flusher(target)?);
        Ok(())
    }

    /// Publishes the current statistics.
    #[cold]
    #[inline(never)]
    pub(super) fn show(&mut self) {
        self.publisher.show(&mut self.rx.tx);
    }
}
