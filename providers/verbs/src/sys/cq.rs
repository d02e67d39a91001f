//! Completion queues of devices, and their entries.
use super::device::VerbsDevice;
use super::ret::{check_code, object, set_nonblocking};
use crate::raw;
use core::ffi::{CStr, c_int};
use ofi_provider::error::{Error, Result};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Notification channel of completion queues (ibv_create_comp_channel(3)).
#[derive(Debug)]
pub(crate) struct CompChannel(NonNull<raw::ibv_comp_channel>);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompChannel {}
// SAFETY: as above.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    pub(crate) fn new(device: VerbsDevice) -> Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = object(unsafe { raw::ibv_create_comp_channel(device.0.as_ptr()) })?;
        let channel = Arc::new(Self(channel));
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: open until this is dropped.
        unsafe { self.0.as_ref().fd }
    }

    /// Takes all pending notifications of queues.
    pub(crate) fn drain(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel does not block; the queue it names has not been
        // destroyed, since that waits for its events to be acknowledged, as here.
        unsafe {
            while raw::ibv_get_cq_event(self.0.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                raw::ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: its queues hold counts on it, so none is left.
        unsafe { raw::ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}

/// One work completion (struct ibv_wc), as written by the device's library.
#[repr(transparent)]
pub(crate) struct WorkDone(raw::ibv_wc);

// SAFETY: numbers only.
unsafe impl Send for WorkDone {}

impl WorkDone {
    /// Creates an empty completion.
    fn empty() -> Self {
        // SAFETY: numbers only, so all zeros is a value. (Of a completion that failed a
        // device writes only some of the fields.)
        Self(unsafe { std::mem::zeroed() })
    }

    /// Creates the completion of a request of a failed device.
    pub(crate) fn dead() -> Self {
        Self::failed(raw::ibv_wc_status::IBV_WC_FATAL_ERR)
    }

    /// Creates the completion of a request not accepted by the device.
    pub(crate) fn lost() -> Self {
        Self::failed(raw::ibv_wc_status::IBV_WC_GENERAL_ERR)
    }

    /// Creates a completion with only this status.
    pub(crate) fn failed(status: u32) -> Self {
        let mut done = Self::empty();
        done.0.status = status;
        done
    }

    /// The number of the request.
    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// 0, or an `enum ibv_wc_status`.
    #[inline]
    pub(crate) fn status(&self) -> u32 {
        self.0.status
    }

    pub(crate) fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    /// Returns true if the completion is of a peer's RDMA write with immediate data.
    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        self.0.opcode == raw::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
    }

    /// Bytes received.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// The peer's immediate data.
    #[inline]
    pub(crate) fn data(&self) -> Option<u32> {
        let with_data = self.0.wc_flags & raw::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        with_data.then(|| u32::from_be(self.0.imm_data))
    }

    /// The number of the queue pair.
    #[inline]
    pub(crate) fn qp(&self) -> u32 {
        self.0.qp_num
    }
}

/// Work completions taken at once, at most.
pub(crate) const POLL_MAX: usize = 64;

/// A device's completion queue (ibv_create_cq(3)).
#[derive(Debug)]
pub(crate) struct HwCq {
    pub(super) cq: NonNull<raw::ibv_cq>,
    _channel: Arc<CompChannel>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for HwCq {}
// SAFETY: as above.
unsafe impl Sync for HwCq {}

impl HwCq {
    pub(crate) fn new(
        device: VerbsDevice,
        size: usize,
        channel: &Arc<CompChannel>,
    ) -> Result<Self> {
        let size = c_int::try_from(size).map_err(|_| Error::INVAL)?;
        let ch = channel.0.as_ptr();
        // SAFETY: device and channel are open.
        let cq = unsafe { raw::ibv_create_cq(device.0.as_ptr(), size, ptr::null_mut(), ch, 0) };
        Ok(Self { cq: object(cq)?, _channel: channel.clone() })
    }

    /// The next completion makes the channel readable.
    pub(crate) fn arm(&self) -> Result {
        // SAFETY: the queue is open.
        check_code(unsafe { raw::ibv_req_notify_cq(self.cq.as_ptr(), 0) })
    }

    /// Takes completions, up to the size of `buffer`, at most [`POLL_MAX`].
    #[inline]
    pub(crate) fn poll<'a>(&self, buffer: &'a mut [WorkDone]) -> &'a [WorkDone] {
        let most = buffer.len().min(POLL_MAX) as c_int;
        let first = buffer.as_mut_ptr().cast::<raw::ibv_wc>();
        // SAFETY: the queue is open and writes at most the passed number of entries; `WorkDone` is
        // transparent for them.
        let n = unsafe { raw::ibv_poll_cq(self.cq.as_ptr(), most, first) };
        buffer.get(..usize::try_from(n).unwrap_or(0)).unwrap_or_default()
    }
}

/// Creates a buffer for work completions taken at once: at least one, at most [`POLL_MAX`].
pub(crate) fn bunch(size: usize) -> Box<[WorkDone]> {
    (0..size.clamp(1, POLL_MAX)).map(|_| WorkDone::empty()).collect()
}

impl Drop for HwCq {
    fn drop(&mut self) {
        // SAFETY: endpoints let go of their queue pairs before the engine does of this.
        unsafe { raw::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// The text of a work completion's status.
pub(crate) fn status_text(status: c_int) -> Option<&'static CStr> {
    let status = u32::try_from(status).ok()?;
    // SAFETY: answers a constant string for any number.
    let text = unsafe { raw::ibv_wc_status_str(status) };
    // SAFETY: as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

pub(crate) use raw::ibv_wc_status as status;
