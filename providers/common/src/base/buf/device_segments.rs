//! Buffers with segments in memory of devices (FI_HMEM): their locations, and copies of their bytes.
use super::{EMPTY, Locations, MAX_SEGMENTS, Many, RecvBuf, Segments, SendBuf};
use crate::device::{BounceBuf, CopyDirection, DeviceLocation};
use crate::device_sharing::{MappedAllocation, SharedCopies};
use crate::error::Result;

impl Segments {
    /// Sets the locations of the segments. Even a single segment is stored in `all` then, so the
    /// fast paths of a single segment do not take it.
    pub(super) fn with_locations(self, locations: Locations) -> Self {
        if locations.iter().all(Option::is_none) {
            return self;
        }
        let mut all = match self.all {
            Some(all) => *all,
            None => {
                let (mut iov, mut descs) =
                    ([EMPTY; MAX_SEGMENTS], [std::ptr::null_mut(); MAX_SEGMENTS]);
                (iov[0], descs[0]) = (self.first, self.desc);
                Many { iov, descs, count: 1, len: self.first.iov_len, locations: None }
            }
        };
        all.locations = Some(Box::new(locations));
        Self::of(all)
    }

    /// Returns the locations of the segments, if any of them is in memory of a device.
    #[inline]
    pub(super) fn locations(&self) -> Option<&Locations> {
        self.all.as_ref()?.locations.as_deref()
    }

    /// Calls `each` with the segments of bytes `from..from + len` and their locations.
    pub(super) fn each_located(
        &self,
        mut from: usize,
        mut len: usize,
        mut each: impl FnMut(*mut u8, usize, Option<DeviceLocation>) -> Result,
    ) -> Result {
        for (index, segment) in self.as_slice().iter().enumerate() {
            if from >= segment.iov_len {
                from -= segment.iov_len;
                continue;
            }
            let part = (segment.iov_len - from).min(len);
            if part == 0 {
                break;
            }
            let location = self.locations().and_then(|locations| locations[index]);
            each(segment.iov_base.cast::<u8>().wrapping_add(from), part, location)?;
            len -= part;
            from = 0;
        }
        Ok(())
    }

    /// Starts copies between `len` bytes from byte `at` on and the bytes of a bounce buffer from
    /// byte `from` on; bytes beyond the end are ignored. Bytes in ordinary memory are copied at
    /// once.
    ///
    /// # Safety
    /// The memory of segments without a location is readable, or writable with
    /// [`CopyDirection::ToDevice`].
    unsafe fn bounce(
        &self,
        at: usize,
        len: usize,
        direction: CopyDirection,
        bounce: &mut BounceBuf,
        mut from: usize,
    ) -> Result {
        self.each_located(at, len, |addr, len, location| {
            match location {
                Some(location) => bounce.start_copy(location, direction, addr as usize, from, len),
                // SAFETY: by this function's contract.
                None => unsafe { bounce.copy_host(direction, addr, from, len) },
            }?;
            from += len;
            Ok(())
        })
    }
}

impl SendBuf {
    /// Starts copies of `len` bytes from byte `at` on to a bounce buffer with space for them.
    /// Bytes in ordinary memory are copied at once. Errors are those of
    /// [`BounceBuf::start_copy`].
    pub fn start_copy(&self, at: usize, len: usize, bounce: &mut BounceBuf) -> Result {
        // SAFETY: the application keeps its memory readable.
        unsafe { self.0.bounce(at, len, CopyDirection::ToHost, bounce, 0) }
    }

    /// Fills `to` with the bytes from byte `at` on, by copies through `bounce`. It waits for each.
    /// Errors are those of [`BounceBuf::poll`].
    pub fn copy_through(&self, at: usize, to: &mut [u8], bounce: &mut BounceBuf) -> Result {
        let (mut at, size) = (at, bounce.size());
        for part in to.chunks_mut(size) {
            self.start_copy(at, part.len(), bounce)?;
            bounce.wait()?;
            part.copy_from_slice(&bounce.bytes()[..part.len()]);
            at += part.len();
        }
        Ok(())
    }

    /// Returns the parts of the buffer in memory of devices; none if a part is elsewhere.
    pub fn device_parts(&self) -> Option<Vec<(DeviceLocation, usize, usize)>> {
        let parts = self.located().filter(|(iov, _)| iov.iov_len > 0);
        parts.map(|(iov, location)| Some((location?, iov.iov_base as usize, iov.iov_len))).collect()
    }

    /// Returns a buffer of `len` bytes of a mapped allocation, from byte `from` on; none beyond its
    /// end. The caller keeps the allocation mapped until the end of its copies.
    pub fn of_mapped(mapped: &MappedAllocation, from: u64, len: usize) -> Option<Self> {
        let addr = mapped.address(from, len)?;
        let mut locations = Locations::default();
        locations[0] = Some(mapped.location());
        // SAFETY: memory of a device, accessed by copies alone.
        let buf = unsafe { Self::new(addr as *mut _, len) }.ok()?;
        Some(buf.with_locations(locations))
    }
}

impl RecvBuf {
    /// Starts copies to the buffer at byte `at` of the `len` bytes of a mapped allocation from byte
    /// `from` on; bytes beyond the end of the buffer are ignored. Returns false, without a copy, if
    /// a part of them is not for memory of a device of the same interface. Errors are those of
    /// [`SharedCopies::start_copy`].
    pub fn start_shared_copy(
        &self,
        at: usize,
        mapped: &MappedAllocation,
        mut from: u64,
        len: usize,
        copies: &mut SharedCopies,
    ) -> Result<bool> {
        let number = mapped.location().interface.number();
        let mut is_same = true;
        self.0.each_located(at, len, |_, _, location| {
            is_same &= location.is_some_and(|one| one.interface.number() == number);
            Ok(())
        })?;
        if !is_same {
            return Ok(false);
        }
        self.0.each_located(at, len, |addr, len, location| {
            if let Some(location) = location {
                // SAFETY: the application keeps its memory writable and does not touch it.
                unsafe { copies.start_copy(from, location, addr as usize, len) }?;
            }
            from += len as u64;
            Ok(())
        })?;
        Ok(true)
    }

    /// Starts copies of `len` bytes of a bounce buffer, from byte `from` on, to the buffer at byte
    /// `at`; bytes beyond its end are ignored. Bytes in ordinary memory are copied at once. Errors
    /// are those of [`BounceBuf::start_copy`].
    pub fn start_copy(&self, at: usize, len: usize, bounce: &mut BounceBuf, from: usize) -> Result {
        // SAFETY: the application keeps its memory writable and does not touch it.
        unsafe { self.0.bounce(at, len, CopyDirection::ToDevice, bounce, from) }
    }

    /// Copies `from` into the buffer at byte `at`, through `bounce`; excess bytes are discarded. It
    /// waits for each copy. Errors are those of [`BounceBuf::poll`].
    pub fn copy_through(&self, at: usize, from: &[u8], bounce: &mut BounceBuf) -> Result {
        let (mut at, size) = (at, bounce.size());
        for part in from.chunks(size) {
            bounce.bytes_mut()[..part.len()].copy_from_slice(part);
            self.start_copy(at, part.len(), bounce, 0)?;
            bounce.wait()?;
            at += part.len();
        }
        Ok(())
    }
}
