//! Rights of peers to local memory.
use super::conn::StreamConn;
use super::ep::StreamEngineEp;
use crate::transport::{ByteLink, ShmTransport, peer_of};
use crate::wire::{StreamHeader, StreamOp};
use ofi_provider::abi::FI_REMOTE_READ;
use ofi_provider::api::RemoteSegments;
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::mr::MrTable;

/// Error of [`StreamConn::grant`] for permitted access to regions with memory of devices: the bytes
/// are copied.
pub(super) const DEVICE_MEMORY: Error = Error::FAULT;

impl<N: ShmTransport> StreamConn<N> {
    /// Returns the remote segments of local memory named by a header. For a write their length must
    /// equal the announced length; otherwise it fails with -FI_EPROTO.
    pub(super) fn local_segments(
        &self,
        header: &StreamHeader,
        bytes: &[u8],
    ) -> Result<RemoteSegments> {
        let segments = header.read_segments(bytes, self.order).map_err(|_| Error::PROTO)?;
        let total = segments.total()?;
        if header.op == StreamOp::Write && total as u64 != header.len {
            Err(Error::PROTO)
        } else {
            Ok(segments)
        }
    }

    /// Checks if the endpoint permits peers to read or write memory at all (FI_REMOTE_READ,
    /// FI_REMOTE_WRITE). Otherwise it fails with -FI_EACCES, and the access is to be refused.
    pub(super) fn admit_access(&self, ep: &StreamEngineEp, right: u64) -> Result {
        if ep.identity.target.rma & right != 0 {
            return Ok(());
        }
        ofi_provider::log_sparsely!(
            N::Link::provider(),
            WARN,
            EP_DATA,
            "{} asked for memory of an endpoint that was opened without {}",
            peer_text(peer_of(&self.link)),
            if right == FI_REMOTE_READ { "FI_REMOTE_READ" } else { "FI_REMOTE_WRITE" }
        );
        Err(Error::ACCES)
    }

    /// Checks the peer's right to the remote segments, and writes `bytes` there. Logs an error; the
    /// access is then to be [refused](super::tx_path::TxPath::refuse). Fails with [`DEVICE_MEMORY`],
    /// without a log line, if some memory is a device's.
    pub(super) fn grant(
        &self,
        regions: &MrTable,
        segments: &RemoteSegments,
        right: u64,
        bytes: &[u8],
    ) -> Result {
        let opened = regions.open();
        let checked = opened.check(segments, right);
        let written = checked.and_then(|()| match bytes {
            [] => Ok(()),
            bytes => opened.write(segments, right, 0, bytes),
        });
        if written.is_err() && opened.device_source(segments, right).is_ok() {
            return Err(DEVICE_MEMORY);
        }
        drop(opened);
        written.inspect_err(|error| {
            ofi_provider::log_sparsely!(
                N::Link::provider(),
                WARN,
                EP_DATA,
                "{} asked for memory it has no right to ({error}): {segments:?}",
                peer_text(peer_of(&self.link))
            );
        })
    }
}
