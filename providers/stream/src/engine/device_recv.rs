//! Memory of devices as target of messages (FI_HMEM).
//!
//! Bytes pass through bounce buffers of the endpoint: several copies are in progress while the link
//! receives other bytes. After the last byte the copies are polled in every progress iteration, and
//! the message is complete when all have ended.
use super::device_send::{MAX_AHEAD, take_buf};
use super::transfer::TxCompletion;
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::RecvBuf;
use ofi_provider::device::{BounceBuf, BouncePool};
use ofi_provider::device_sharing::{MappedAllocation, SharedCopies};
use ofi_provider::error::{Error, Result};
use ofi_provider::rx_matcher::Recv;
use std::collections::VecDeque;
use std::sync::Arc;

/// Least useful space of a bounce buffer for a read from the link, in bytes.
const MIN_SPACE: usize = 4096;

/// Purpose of bytes received for memory of a device.
#[derive(Debug)]
pub(super) enum DeviceTarget {
    /// A posted receive.
    Posted(Recv),
    /// A peer's write to regions.
    Region(RemoteSegments),
    /// The response to a local read.
    Answer(TxCompletion),
}

/// Bytes received for memory of a device.
#[derive(Debug)]
pub(super) struct DeviceRecv {
    buf: RecvBuf,
    pub(super) target: DeviceTarget,
    pool: Arc<BouncePool>,
    /// Bounce buffer with space, and the number of its bytes in use.
    filling: Option<(BounceBuf, usize)>,
    /// Bounce buffers without space, with copies in progress.
    copying: VecDeque<BounceBuf>,
    /// Copies from a buffer in a mapped allocation of the peer.
    shared: Option<SharedCopies>,
    /// First error of a copy: later bytes are dropped.
    error: Option<Error>,
}

impl DeviceRecv {
    pub(super) fn new(buf: RecvBuf, target: DeviceTarget, pool: &Arc<BouncePool>) -> Self {
        let (filling, copying) = (None, VecDeque::new());
        let pool = pool.clone();
        Self { buf, target, pool, filling, copying, shared: None, error: None }
    }

    /// Starts copies of the `len` bytes of a mapped allocation from byte `from` on, to those of the
    /// message from byte `at` on. Returns false, without a copy, if the target is not memory of
    /// devices of the same interface.
    pub(super) fn start_shared(
        &mut self,
        at: usize,
        mapped: &Arc<MappedAllocation>,
        from: u64,
        len: usize,
    ) -> bool {
        let mut copies = SharedCopies::new(&self.pool, mapped);
        if self.error.is_some() {
            return true;
        }
        let started = self.buf.start_shared_copy(at, mapped, from, len, &mut copies);
        self.error = started.err();
        self.shared = Some(copies);
        started != Ok(false)
    }

    /// Returns true if no copy from a mapped allocation is in progress.
    pub(super) fn is_shared_copied(&mut self) -> bool {
        let Some(copies) = &mut self.shared else { return true };
        if copies.has_ended(&mut self.error) {
            self.shared = None;
        }
        self.shared.is_none()
    }

    /// Removes the bounce buffers with ended copies.
    fn collect(&mut self) {
        let error = &mut self.error;
        self.copying.retain_mut(|bounce| !bounce.has_ended(error));
    }

    /// Returns space for up to `wanted` bytes, of no byte while copies have to end first. Returns
    /// none without memory: the message has failed, and its bytes are to be dropped.
    pub(super) fn space(&mut self, wanted: usize) -> Option<&mut [u8]> {
        self.collect();
        let is_used_up =
            |(bounce, used): &mut (BounceBuf, usize)| bounce.size() - *used < wanted.min(MIN_SPACE);
        self.copying.extend(self.filling.take_if(is_used_up).map(|(bounce, _)| bounce));
        if self.filling.is_none() && self.copying.len() < MAX_AHEAD {
            match take_buf(&self.pool, wanted, !self.copying.is_empty()) {
                Ok(taken) => self.filling = taken.map(|bounce| (bounce, 0)),
                Err(error) => {
                    self.fail(error);
                    return None;
                }
            }
        }
        let Some((bounce, used)) = &mut self.filling else { return Some(&mut []) };
        let end = (*used + wanted).min(bounce.size());
        Some(&mut bounce.bytes_mut()[*used..end])
    }

    /// Starts the copy of `len` bytes received in the space: those of the message from byte `at`
    /// on.
    pub(super) fn received(&mut self, at: usize, len: usize) {
        let Some((bounce, used)) = &mut self.filling else { return };
        if self.error.is_none() {
            self.error = self.buf.start_copy(at, len, bounce, *used).err();
        }
        *used += len;
    }

    /// Takes bytes of the message from byte `at` on. Returns their number, 0 while copies have to
    /// end first. Without memory the message fails, and its bytes are dropped.
    pub(super) fn feed(&mut self, at: usize, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let Some(dst) = self.space(bytes.len() - done) else { return bytes.len() };
            let len = dst.len();
            if len == 0 {
                break;
            }
            dst.copy_from_slice(&bytes[done..done + len]);
            self.received(at + done, len);
            done += len;
        }
        done
    }

    /// Takes all of the first bytes of the message, and waits for copies if there is no space.
    pub(super) fn feed_all(&mut self, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            match self.feed(done, &bytes[done..]) {
                0 => std::thread::yield_now(),
                len => done += len,
            }
        }
    }

    /// Returns true if no copy is in progress.
    pub(super) fn is_copied(&mut self) -> bool {
        self.copying.extend(self.filling.take().map(|(bounce, _)| bounce));
        self.collect();
        let is_shared_copied = self.is_shared_copied();
        self.copying.is_empty() && is_shared_copied
    }

    /// Waits for the copies in progress, and returns the target with the first error.
    pub(super) fn finish(mut self) -> (DeviceTarget, Result) {
        while !self.is_copied() {
            std::thread::yield_now();
        }
        (self.target, self.error.map_or(Ok(()), Err))
    }

    /// Marks the message as failed.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// Returns true if a peer writes to the region with this key.
    pub(super) fn writes(&self, key: u64) -> bool {
        match &self.target {
            DeviceTarget::Region(segments) => segments.has_key(key),
            _ => false,
        }
    }
}

/// Stores bytes in a receive buffer. Bytes for memory of a device are copied through a bounce
/// buffer, and the call waits for it.
pub(super) fn store(buf: &RecvBuf, bytes: &[u8], pool: Option<&Arc<BouncePool>>) -> Result {
    match pool {
        Some(pool) if buf.is_device() => {
            let mut bounce = take_buf(pool, bytes.len(), false)?.ok_or(Error::NOMEM)?;
            buf.copy_through(0, bytes, &mut bounce)
        }
        _ => {
            buf.copy_from(0, bytes);
            Ok(())
        }
    }
}
