//! Reports of connections to tracers.
use super::conn::StreamConn;
use super::ep::{StreamEngineEp, StreamEpKind};
use crate::transport::{ByteLink, ShmTransport};
use ofi_provider::addr::Addr;
use ofi_provider::probes;

impl StreamEngineEp {
    /// Reports an established connection to a tracer, if there is one. A MSG endpoint gets its numbers
    /// in traces: those of the addresses of its connection.
    pub(super) fn trace_connected<N: ShmTransport>(&self, conn: &StreamConn<N>) {
        let ids = self.matcher.completions.trace_ids();
        if let Some(peer) = self.peers.get(conn.peer) {
            return peer.trace_connected(ids);
        }
        let Some(ids) = ids.filter(|_| self.identity.kind == StreamEpKind::Msg) else { return };
        let id_of = |addr: &Addr| addr.trace_id();
        ids.set_own(conn.link.local_addr().as_ref().map_or(0, id_of));
        ids.set_peer(conn.link.peer_addr().as_ref().map_or(0, id_of));
        if probes::is_enabled() {
            let address = self.published_peer(conn).unwrap_or_default();
            probes::connected(ids.own(), ids.peer(), &address);
        }
    }
}
