//! Memory mapped by two processes: sealed, unnamed, and freed with the last of them.
use crate::error::{Error, Result};
use crate::rights::ReceivedFd;
use crate::ring_layout::{DoorbellWords, RingControl};
use crate::sys::{FIXED_SIZE, check, os_error, sealed_memory};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustix::fs::{FallocateFlags, fallocate, fcntl_get_seals, fstat};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Mapped memory of a sealed descriptor.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    /// Process that mapped it; a child lacks the mapping (MADV_DONTFORK).
    process: u32,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for SharedMemory {}
// SAFETY: what is reached through a shared reference are atomic words (`segment`, `doorbell`).
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory of so many bytes, all zero, and its descriptor for the other process.
    pub(crate) fn create(len: usize) -> Result<(Self, OwnedFd)> {
        let fd = sealed_memory(c"ofi-local", len)?;
        reserve(&fd, len)?;
        Ok((Self::map(&fd, len)?, fd))
    }

    /// Maps the memory of a descriptor received from another process. Fails with -FI_EPROTO if
    /// pages of it could be removed, or if `fits` rejects its length.
    pub(crate) fn open(fd: BorrowedFd<'_>, fits: impl FnOnce(usize) -> bool) -> Result<Self> {
        if !has_seals(fd) {
            return Err(Error::PROTO);
        }
        let size = fstat(fd).map_err(os_error)?.st_size;
        let len = usize::try_from(size).map_err(|_| Error::PROTO)?;
        if !fits(len) {
            return Err(Error::PROTO);
        }
        // Pages that the other process has not got are got here, and not by a signal later.
        reserve(fd, len)?;
        Self::map(&fd, len)
    }

    fn map(fd: &impl AsRawFd, len: usize) -> Result<Self> {
        let (at, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, at an address that the system chooses.
        let base = unsafe { libc::mmap(at, len, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os());
        }
        let base = NonNull::new(base.cast()).ok_or(Error::NOMEM)?;
        let memory = Self { base, len, process: std::process::id() };
        // SAFETY: the range is the mapping's.
        check(unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) })?;
        Ok(memory)
    }
}

/// Returns true if the descriptor is of memory sealed against the removal of pages.
fn has_seals(fd: BorrowedFd<'_>) -> bool {
    // Files of other kinds have no seals.
    fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(FIXED_SIZE))
}

/// Descriptor of memory received from another process. Its close does not block.
#[derive(Debug)]
pub(crate) struct ReceivedMemory(OwnedFd);

impl ReceivedMemory {
    /// -FI_EPROTO if it is of something else, or a page of it could go away.
    pub(crate) fn new(fd: ReceivedFd) -> Result<Self> {
        if !fd.get().is_some_and(has_seals) {
            return Err(Error::PROTO);
        }
        fd.into_known().map(Self).ok_or(Error::PROTO)
    }

    /// Returns the device and inode number identifying the memory.
    pub(crate) fn id(&self) -> Result<(u64, u64)> {
        let stat = fstat(self.as_fd()).map_err(os_error)?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

impl AsFd for ReceivedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn reserve(fd: impl AsFd, size: usize) -> Result {
    fallocate(fd, FallocateFlags::empty(), 0, size as u64).map_err(os_error)
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // In a child other memory may be at that address.
        if self.process == std::process::id() {
            // SAFETY: the mapping is ours, and no reference into it exists any more.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Bytes of a page in the layout, independent of the system's page size.
const PAGE: usize = 4096;

/// Minimum bytes of a ring.
pub(crate) const MIN_RING: usize = 4096;
/// Maximum bytes of a ring.
pub(crate) const MAX_RING: usize = 16 << 20;

/// The beginning of a segment.
#[repr(C)]
struct SegmentPage {
    /// Magic number: [`MAGIC`].
    magic: core::sync::atomic::AtomicU64,
    /// Bytes of a ring.
    ring: core::sync::atomic::AtomicU64,
    /// Rings; the first one is written by the segment's creator.
    words: [RingControl; 2],
}

/// Magic number of a segment with this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"ofiring4");
const WORDS: usize = size_of::<SegmentPage>().next_multiple_of(PAGE);

/// Bytes of each ring's copy area behind the words. The writer copies parts of exposed buffers
/// there at the reader's request.
pub(crate) const COPY_BUF: usize = (WORDS - size_of::<SegmentPage>()) / 2 / 64 * 64;
const _: () = assert!(COPY_BUF >= 1024);

/// Bytes of segments mapped by this process.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of segments of this process, created by it or by its peers.
pub(crate) fn mapped_bytes() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// The bytes of a segment with rings of so many.
pub(crate) fn segment_bytes(ring: usize) -> usize {
    WORDS + 2 * ring
}

/// Share of a segment in [`mapped_bytes`].
#[derive(Debug)]
struct MappedBytes(usize);

impl MappedBytes {
    /// None if there were more than `most` in all, then.
    fn claim(bytes: usize, most: usize) -> Option<Self> {
        let more = |mapped: usize| mapped.checked_add(bytes).filter(|all| *all <= most);
        MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(bytes))
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Memory of a pipe: two rings, and the state published by both sides.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    memory: SharedMemory,
    ring: usize,
    /// Index of the ring written by this side.
    own: usize,
    /// Accounting of the segment in the process total.
    _mapped: MappedBytes,
}

impl SharedSegment {
    /// A new segment with rings of so many bytes, a power of two.
    pub(crate) fn create(ring: usize) -> Result<(Self, OwnedFd)> {
        if !Self::is_size(ring) {
            return Err(Error::INVAL);
        }
        let len = segment_bytes(ring);
        let mapped = MappedBytes::claim(len, usize::MAX).ok_or(Error::NOMEM)?;
        let (memory, fd) = SharedMemory::create(len)?;
        let segment = Self { memory, ring, own: 0, _mapped: mapped };
        let page = segment.page();
        page.ring.store(ring as u64, Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
        Ok((segment, fd))
    }

    /// Opens the segment of a descriptor received from another process. Fails with -FI_ENOMEM if
    /// the total would exceed `most` bytes of segments.
    pub(crate) fn open(fd: BorrowedFd<'_>, most: usize) -> Result<Self> {
        let (mut ring, mut mapped) = (0, Err(Error::PROTO));
        let memory = SharedMemory::open(fd, |len| {
            ring = len.saturating_sub(WORDS) / 2;
            if Self::is_size(ring) && len == segment_bytes(ring) {
                mapped = MappedBytes::claim(len, most).ok_or(Error::NOMEM);
            }
            mapped.is_ok()
        });
        let mapped = mapped?;
        let segment = Self { memory: memory?, ring, own: 1, _mapped: mapped };
        let page = segment.page();
        let magic = page.magic.load(Ordering::Acquire);
        let advertised = page.ring.load(Ordering::Relaxed);
        if magic != MAGIC || advertised != ring as u64 {
            return Err(Error::PROTO);
        }
        Ok(segment)
    }

    fn is_size(ring: usize) -> bool {
        ring.is_power_of_two() && (MIN_RING..=MAX_RING).contains(&ring)
    }

    /// Returns true if this process created the mapping, and is not a forked child.
    pub(crate) fn is_here(&self) -> bool {
        self.memory.process == std::process::id()
    }

    /// Bytes of a ring.
    pub(crate) fn ring_size(&self) -> usize {
        self.ring
    }

    fn page(&self) -> &SegmentPage {
        // SAFETY: the mapping is aligned to pages and as long as that; it lives as long as `self`.
        // There are atomic words alone in it, for which any bits are a value.
        unsafe { self.memory.base.cast().as_ref() }
    }

    /// Returns the words of the ring written by this side.
    pub(crate) fn out(&self) -> &RingControl {
        &self.page().words[self.own]
    }

    /// Returns the words of the ring read by this side.
    pub(crate) fn inbound(&self) -> &RingControl {
        &self.page().words[1 - self.own]
    }

    /// Returns the bytes of the ring written by this side.
    pub(crate) fn out_bytes(&self) -> NonNull<u8> {
        self.bytes(self.own)
    }

    /// Returns the bytes of the ring read by this side.
    pub(crate) fn inbound_bytes(&self) -> NonNull<u8> {
        self.bytes(1 - self.own)
    }

    /// Returns the area for copies requested by the other side: [`COPY_BUF`] bytes.
    pub(crate) fn out_copies(&self) -> NonNull<u8> {
        self.copies(self.own)
    }

    /// Returns the area for copies requested by this side.
    pub(crate) fn inbound_copies(&self) -> NonNull<u8> {
        self.copies(1 - self.own)
    }

    fn copies(&self, which: usize) -> NonNull<u8> {
        // SAFETY: the mapping has both behind the words, and then the rings.
        unsafe { self.memory.base.add(size_of::<SegmentPage>() + which * COPY_BUF) }
    }

    fn bytes(&self, which: usize) -> NonNull<u8> {
        // SAFETY: the mapping has both rings behind the words.
        unsafe { self.memory.base.add(WORDS + which * self.ring) }
    }
}

/// Memory of a doorbell.
#[derive(Debug)]
pub(crate) struct SharedDoorbell(SharedMemory);

impl SharedDoorbell {
    /// Creates a doorbell. Returns it with its descriptor for other processes.
    pub(crate) fn create() -> Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create(PAGE)?;
        Ok((Self(memory), fd))
    }

    /// Opens the doorbell of a descriptor received from another process.
    pub(crate) fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self(SharedMemory::open(fd, |len| len == PAGE)?))
    }

    /// Returns the doorbell's words.
    #[inline(always)]
    pub(crate) fn words(&self) -> &DoorbellWords {
        // SAFETY: the mapping is a page and aligned to one, and lives as long as `self`. There are atomic words
        // alone in it, for which any bits are a value.
        unsafe { self.0.base.cast().as_ref() }
    }
}

const _: () = assert!(size_of::<DoorbellWords>() <= PAGE);
