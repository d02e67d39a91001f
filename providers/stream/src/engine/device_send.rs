//! Memory of devices as source of messages (FI_HMEM).
//!
//! Bytes pass through bounce buffers of the endpoint: several copies are in progress while the link
//! sends other bytes. A message without a copied byte is polled in every progress iteration
//! ([`BlockedConns::await_copies`](super::blocked_conns::BlockedConns::await_copies)).
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::{GatherList, SendBuf, zeroed};
use ofi_provider::device::{BounceBuf, BouncePool, DeviceLocation};
use ofi_provider::error::{Error, Result};
use ofi_provider::shm_channel::{DeviceCell, DeviceCellKind};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum bounce buffers of a message at a time.
pub(super) const MAX_AHEAD: usize = 4;

/// Returns a buffer of the pool, or one beyond its limit for a transfer that has none otherwise.
/// Returns none if it has. Fails with -FI_ENOMEM.
pub(super) fn take_buf(
    pool: &Arc<BouncePool>,
    len: usize,
    has_other: bool,
) -> Result<Option<BounceBuf>> {
    match pool.take(len) {
        None if !has_other => pool.take_extra().map(Some),
        taken => Ok(taken),
    }
}

/// Bytes of a message in a bounce buffer.
#[derive(Debug)]
struct StagedBytes {
    /// Position of the first byte in the message.
    from: usize,
    len: usize,
    bounce: BounceBuf,
    /// The copy is complete.
    is_copied: bool,
}

/// Body of a message in memory of a device.
#[derive(Debug)]
pub(super) struct DeviceSend {
    source: SendBuf,
    /// Regions of the source, if a peer reads it.
    segments: Option<RemoteSegments>,
    /// Bytes copied or being copied, in order.
    staged: VecDeque<StagedBytes>,
    /// Position behind the last byte with a started copy.
    started: usize,
    /// Error of a failed copy.
    error: Option<Error>,
    /// The way of the bytes is decided ([`set_cells`](Self::set_cells)).
    is_planned: bool,
    /// Cells to be sent before or in place of the bytes
    /// ([`device_export`](super::device_export)).
    cells: VecDeque<DeviceCell>,
}

/// Bytes of a message ready to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadyBytes {
    /// All remaining ones.
    All,
    /// Some of them.
    Some,
    /// None: a copy is in progress.
    None,
}

impl DeviceSend {
    /// Returns a body read from the application's buffer, or from regions for a peer.
    pub(super) fn new(source: SendBuf, segments: Option<RemoteSegments>) -> Self {
        let (staged, cells) = (VecDeque::new(), VecDeque::new());
        Self { source, segments, staged, started: 0, error: None, is_planned: false, cells }
    }

    /// Returns true if the way of the bytes is decided: by a plan, or by started copies.
    pub(super) fn is_planned(&self) -> bool {
        self.is_planned || self.started > 0
    }

    /// Returns the parts of the body in memory of devices; none if a part is elsewhere, or if a
    /// peer reads several segments.
    pub(super) fn parts(&self) -> Option<Vec<(DeviceLocation, usize, usize)>> {
        let is_one = self.segments.as_ref().is_none_or(|all| all.as_slice().len() == 1);
        self.source.device_parts().filter(|_| is_one)
    }

    /// Decides the way of the bytes: these cells are sent before or in place of them.
    pub(super) fn set_cells(&mut self, cells: Vec<DeviceCell>) {
        self.is_planned = true;
        self.cells = cells.into();
    }

    /// Returns the next cell to be sent.
    pub(super) fn next_cell(&self) -> Option<&DeviceCell> {
        self.cells.front()
    }

    /// Records the next cell as sent. Returns the number of bytes of the body in it.
    pub(super) fn sent_cell(&mut self) -> usize {
        let cell = self.cells.pop_front();
        cell.filter(|cell| cell.kind == DeviceCellKind::Buffer).map_or(0, |cell| cell.len as usize)
    }

    /// Has the bytes from byte `sent` on sent as copies, without cells.
    pub(super) fn drop_cells(&mut self, sent: usize) {
        self.cells.clear();
        self.started = self.started.max(sent);
    }

    /// Returns the key of the region of a response.
    pub(super) fn key(&self) -> Option<u64> {
        self.segments.as_ref()?.as_slice().first().map(|segment| segment.key)
    }

    /// Returns copied bytes from byte `from` on, as many as are contiguous.
    pub(super) fn copied(&self, from: usize) -> &[u8] {
        let holds = |one: &&StagedBytes| one.is_copied && from - one.from < one.len;
        let mut staged = self.staged.iter().rev();
        staged
            .find(|one| one.from <= from)
            .filter(holds)
            .map_or(&[], |one| &one.bounce.bytes()[from - one.from..one.len])
    }

    pub(super) fn len(&self) -> usize {
        self.source.len()
    }

    /// Returns true if the body is a response to a peer's read.
    pub(super) fn is_response(&self) -> bool {
        self.segments.is_some()
    }

    /// Returns the bytes of memory of the regions' names.
    pub(super) fn memory(&self) -> usize {
        self.segments.as_ref().map_or(0, RemoteSegments::memory)
    }

    /// Returns true if a peer reads the region with this key.
    pub(super) fn reads(&self, key: u64) -> bool {
        self.segments.as_ref().is_some_and(|segments| segments.has_key(key))
    }

    /// Releases the buffers of the `sent` first bytes, starts copies of later ones, and polls them.
    /// A failed copy is an error from then on.
    pub(super) fn advance(&mut self, sent: usize, pool: &Arc<BouncePool>) -> Result<ReadyBytes> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let advanced = self.advance_copies(sent, pool);
        self.error = advanced.err();
        advanced
    }

    fn advance_copies(&mut self, sent: usize, pool: &Arc<BouncePool>) -> Result<ReadyBytes> {
        while self.staged.front().is_some_and(|first| first.from + first.len <= sent) {
            self.staged.pop_front();
        }
        while self.staged.len() < MAX_AHEAD && self.started < self.len() {
            let left = self.len() - self.started;
            let Some(mut bounce) = take_buf(pool, left, !self.staged.is_empty())? else { break };
            let (from, len) = (self.started, left.min(bounce.size()));
            self.source.start_copy(from, len, &mut bounce)?;
            self.started += len;
            self.staged.push_back(StagedBytes { from, len, bounce, is_copied: false });
        }
        let mut ready = sent;
        for one in &mut self.staged {
            one.is_copied = one.is_copied || one.bounce.poll()?;
            if !one.is_copied {
                break;
            }
            ready = one.from + one.len;
        }
        Ok(match ready {
            ready if ready == self.len() => ReadyBytes::All,
            ready if ready > sent => ReadyBytes::Some,
            _ => ReadyBytes::None,
        })
    }

    /// Appends the copied bytes from byte `from` on to a gather list.
    pub(super) fn gather<'a>(&'a self, from: usize, list: &mut GatherList<'a>) {
        for one in self.staged.iter().take_while(|one| one.is_copied) {
            let skipped = from.saturating_sub(one.from).min(one.len);
            list.push_bytes(&one.bounce.bytes()[skipped..one.len]);
        }
    }

    /// Copies the bytes from byte `from` on to memory of the engine, and waits for it. Returns
    /// space for all bytes with these filled in.
    pub(super) fn copy_rest(&mut self, from: usize, pool: &Arc<BouncePool>) -> Result<Box<[u8]>> {
        self.staged.clear();
        self.cells.clear();
        let mut bytes = zeroed(self.len())?;
        let mut bounce = take_buf(pool, self.len(), false)?.ok_or(Error::NOMEM)?;
        self.source.copy_through(from, &mut bytes[from..], &mut bounce)?;
        Ok(bytes)
    }
}
