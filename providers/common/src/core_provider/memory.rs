//! Memory of transfers: regions registered with a core provider (fi_mr(3)), and internal buffers.
use super::call::{call, close, code};
use super::domain::CoreDomain;
use crate::abi::{self, c_enum, fi_mr_attr, fi_mr_dmabuf, fid, fid_mr};
use crate::buf::{RecvBuf, SendBuf};
use crate::device::{BouncePool, DeviceLocation};
use crate::dmabuf::DmabufRange;
use crate::error::{Error, Result};
use crate::mr::{MemoryKind, RegionRequest};
use core::ffi::c_void;
use libc::iovec;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Memory to register.
#[derive(Clone, Copy)]
pub(super) struct CoreMemory {
    iov: iovec,
    /// Device with the memory, if any.
    location: Option<DeviceLocation>,
    /// File with the memory, as the application has registered it.
    file: Option<DmabufRange>,
}

impl CoreMemory {
    /// Returns the memory of an application's region.
    pub(super) fn of_region(wanted: &RegionRequest) -> Self {
        let iov = iovec { iov_base: wanted.base as *mut c_void, iov_len: wanted.len };
        let file = match wanted.kind {
            MemoryKind::Dmabuf(file) => Some(file),
            MemoryKind::System | MemoryKind::Device(_) => None,
        };
        Self { iov, location: wanted.location, file }
    }

    /// Returns the memory of a segment of a transfer.
    fn of_segment((mut iov, location): (iovec, Option<DeviceLocation>)) -> Self {
        /// Address of empty segments, in place of their own, possibly not registrable.
        static EMPTY: AtomicU64 = AtomicU64::new(0);
        if iov.iov_len == 0 {
            iov.iov_base = EMPTY.as_ptr().cast();
        }
        Self { iov, location, file: None }
    }
}

/// Keys tried before a registration fails because they are taken.
pub(super) const MAX_KEYS: usize = 64;

impl CoreDomain {
    /// Registers memory under this key.
    pub(super) fn register(
        self: &Arc<Self>,
        memory: CoreMemory,
        access: u64,
        offset: u64,
        key: u64,
    ) -> Result<CoreRegion> {
        let CoreMemory { iov, location, file } = memory;
        let file = file.map(|DmabufRange { fd, offset, len, base_addr }| {
            let base_addr = base_addr as *mut c_void;
            fi_mr_dmabuf { fd, offset, len, base_addr }
        });
        let flags = if file.is_some() { abi::FI_MR_DMABUF } else { 0 };
        let mut raw: *mut fid_mr = ptr::null_mut();
        // SAFETY: all zeros is a valid attribute; the one vector, or with the flag the one file, lives
        // for the call.
        unsafe {
            let mut attr = std::mem::zeroed::<fi_mr_attr>();
            (attr.mr_iov, attr.iov_count) = (&raw const iov, 1);
            if let Some(file) = &file {
                attr.mr_iov = ptr::from_ref(file).cast();
            }
            (attr.access, attr.offset, attr.requested_key) = (access, offset, key);
            if let Some(DeviceLocation { interface, device }) = location {
                attr.iface = c_enum::from_raw(interface.number());
                attr.device.reserved = u64::from(device);
            }
            let register = call!(self.raw().as_ref().mr, regattr);
            code(register(self.raw().as_ptr().cast(), &raw const attr, flags, &mut raw))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        let base = if self.has_virt_addr() { iov.iov_base as u64 } else { offset };
        Ok(CoreRegion { raw, base, len: iov.iov_len, domain: self.clone() })
    }

    /// Registers every segment of a send buffer, for peers to read or for the core provider to send
    /// from. `key` creates the requested keys.
    pub fn register_send(
        self: &Arc<Self>,
        buf: &SendBuf,
        access: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<Vec<CoreRegion>> {
        let memory = buf.located().map(CoreMemory::of_segment);
        memory.map(|memory| self.register_any(memory, access, 0, &mut key)).collect()
    }

    /// Registers every segment of a receive buffer, like [`register_send`](Self::register_send).
    pub fn register_recv(
        self: &Arc<Self>,
        buf: &RecvBuf,
        access: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<Vec<CoreRegion>> {
        let memory = buf.located().map(CoreMemory::of_segment);
        memory.map(|memory| self.register_any(memory, access, 0, &mut key)).collect()
    }

    /// Registers memory under a free key.
    pub(super) fn register_any(
        self: &Arc<Self>,
        memory: CoreMemory,
        access: u64,
        offset: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<CoreRegion> {
        for _ in 0..MAX_KEYS {
            match self.register(memory, access, offset, key()) {
                // The key is taken, by the application or an old transfer: another is tried.
                Err(Error::NOKEY) => {}
                other => return other,
            }
        }
        Err(Error::NOKEY)
    }

    /// Returns an internal buffer, registered if the core provider requires it.
    pub fn buffer(self: &Arc<Self>, len: usize, mut key: impl FnMut() -> u64) -> Result<CoreBuf> {
        let mut buf = CoreBuf::new(len)?;
        if self.wants_local() {
            let iov = iovec { iov_base: buf.base.as_ptr().cast(), iov_len: len };
            let access = abi::FI_SEND | abi::FI_RECV | abi::FI_READ | abi::FI_WRITE;
            let memory = CoreMemory::of_segment((iov, None));
            buf.region = Some(Box::new(self.register_any(memory, access, 0, &mut key)?));
        }
        Ok(buf)
    }
}

/// A region registered with a core provider, until it is dropped (fi_mr(3)).
#[derive(Debug)]
pub struct CoreRegion {
    raw: NonNull<fid_mr>,
    /// Remote address of the region's first byte, as used by peers.
    base: u64,
    len: usize,
    domain: Arc<CoreDomain>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreRegion {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreRegion {}

impl CoreRegion {
    pub(super) fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    pub(super) fn domain(&self) -> &Arc<CoreDomain> {
        &self.domain
    }

    /// The region's key.
    pub fn key(&self) -> u64 {
        // SAFETY: open; the core does not change it.
        unsafe { self.raw.as_ref().key }
    }

    /// Returns the remote address of the region's first byte, as used by peers.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Length of the region in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn desc(&self) -> *mut c_void {
        // SAFETY: as in `key`.
        unsafe { self.raw.as_ref().mem_desc }
    }
}

impl Drop for CoreRegion {
    fn drop(&mut self) {
        // SAFETY: open, and ours.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}

/// Internal buffer for sends and receives of a core provider.
///
/// It is passed on with a transfer and comes back with its completion.
#[derive(Debug)]
pub struct CoreBuf {
    base: NonNull<u8>,
    len: usize,
    /// In a box: few cores want it, and buffers are moved about a lot.
    region: Option<Box<CoreRegion>>,
}

// SAFETY: plain memory that this alone owns.
unsafe impl Send for CoreBuf {}
// SAFETY: plain memory that this alone owns, and shared access only reads.
unsafe impl Sync for CoreBuf {}

impl CoreBuf {
    fn layout(len: usize) -> Layout {
        // No more than malloc gives by itself: with more, the system's zero pages
        // would be written to before they are needed.
        Layout::from_size_align(len.max(1), 16).unwrap_or(Layout::new::<u64>())
    }

    /// A zeroed buffer of `len` bytes; -FI_ENOMEM if there is no memory.
    fn new(len: usize) -> Result<Self> {
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) });
        Ok(Self { base: base.ok_or(Error::NOMEM)?, len, region: None })
    }

    /// Returns the address of the first byte.
    #[inline(always)]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns a buffer without memory, replacing a lost one.
    pub(super) fn none() -> Self {
        let layout = Self::layout(0);
        Self::new(0).unwrap_or_else(|_| handle_alloc_error(layout))
    }

    pub(super) fn desc(&self) -> *mut c_void {
        self.region.as_ref().map_or(ptr::null_mut(), |region| region.desc())
    }

    /// Copies the application's data and returns the copy, to be sent instead. The transfer must
    /// keep this buffer until it is complete.
    pub fn copy_of(&mut self, sent: &SendBuf) -> Result<SendBuf> {
        let bytes = self.get_mut(..sent.len()).ok_or(Error::MSGSIZE)?;
        sent.copy_to(0, bytes);
        self.as_send(sent.len())
    }

    /// Copies the application's data like [`copy_of`](Self::copy_of), from memory of a device
    /// through a buffer of `pool`. It waits for the copies, and fails as they do.
    pub fn copy_of_device(&mut self, sent: &SendBuf, pool: &Arc<BouncePool>) -> Result<SendBuf> {
        let bytes = self.get_mut(..sent.len()).ok_or(Error::MSGSIZE)?;
        sent.copy_through(0, bytes, &mut pool.take_any(bytes.len())?)?;
        self.as_send(sent.len())
    }

    /// Returns the first `len` bytes as a buffer to send.
    fn as_send(&self, len: usize) -> Result<SendBuf> {
        let bytes = self.get(..len).ok_or(Error::MSGSIZE)?;
        // SAFETY: the transfer keeps this until it is complete, and the bytes stay where they
        // are when this is moved.
        unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }
    }
}

impl Deref for CoreBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, without other accesses while the buffer is held here:
        // the core provider returned it with the completion.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for CoreBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes without other accesses, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for CoreBuf {
    fn drop(&mut self) {
        drop(self.region.take());
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.len)) };
    }
}
