//! Memory of transfers and of their contexts.
use crate::device::Device;
use crate::failure::{During as _, Outcomes};
use ofi::abi::fi_context2;
use ofi::error::Error;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Owner of memory.
enum Home {
    Host(Layout),
    Device(&'static Device),
}

/// Byte of new memory of the host.
const FIRST_BYTE: u8 = 1;

/// Memory read and written by the library while transfers use it: of the host, aligned to
/// pages, or of a device.
pub(crate) struct Memory {
    base: NonNull<u8>,
    length: usize,
    home: Home,
}

// SAFETY: memory has no thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates memory of the host.
    pub(crate) fn new(length: usize) -> Outcomes<Self> {
        let layout = Layout::from_size_align(length.max(1), 4096).map_err(|_| Error::NOMEM);
        let layout = layout.during("buffers")?;
        // SAFETY: the length is not 0.
        let base = NonNull::new(unsafe { alloc(layout) });
        let base = base.ok_or(Error::NOMEM).during("buffers")?;
        // Pages never written are all the same page of zeroes, which stays in the processor's cache.
        // SAFETY: the memory has so many bytes.
        unsafe { base.write_bytes(FIRST_BYTE, layout.size()) };
        Ok(Self { base, length: layout.size(), home: Home::Host(layout) })
    }

    /// Allocates memory of a device.
    pub(crate) fn on(device: &'static Device, length: usize) -> Outcomes<Self> {
        let length = length.max(1);
        Ok(Self { base: device.allocate(length)?, length, home: Home::Device(device) })
    }

    pub(crate) fn at(&self, offset: usize) -> *mut c_void {
        assert!(offset < self.length);
        self.base.as_ptr().wrapping_add(offset).cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the number of the device, if it is memory of one.
    pub(crate) fn device(&self) -> Option<u32> {
        match &self.home {
            Home::Host(_) => None,
            Home::Device(device) => Some(device.number),
        }
    }

    /// Passes bytes without a transfer in progress to a function. Those of a device are a copy,
    /// copied back afterwards.
    pub(crate) fn with<T>(
        &mut self,
        offset: usize,
        length: usize,
        f: impl FnOnce(&mut [u8]) -> T,
    ) -> T {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        let base = self.base.as_ptr().wrapping_add(offset);
        if let Home::Device(device) = &self.home {
            let mut bytes = vec![0; length];
            let copied = device.read(base, &mut bytes);
            let result = f(&mut bytes);
            // The bytes are those of the check: without them there is no result.
            if let Err(failure) = copied.and_then(|()| device.write(base, &bytes)) {
                eprintln!("fi_perf: {failure}");
                std::process::exit(1);
            }
            return result;
        }
        // SAFETY: the range is within the memory, which is the host's. Bytes of a remote process
        // written meanwhile are written by the kernel or another process, as a measurement of
        // one-sided operations checks them after its end.
        f(unsafe { std::slice::from_raw_parts_mut(base, length) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.home {
            // SAFETY: allocated with this layout.
            Home::Host(layout) => unsafe { dealloc(self.base.as_ptr(), *layout) },
            Home::Device(device) => device.free(self.base),
        }
    }
}

/// Contexts of transfers, of 64 bytes each.
pub(crate) struct Contexts {
    count: usize,
    memory: Memory,
}

impl Contexts {
    pub(crate) fn new(count: usize) -> Outcomes<Self> {
        let memory = Memory::new(count * size_of::<fi_context2>())?;
        Ok(Self { count, memory })
    }

    pub(crate) fn get(&self, index: usize) -> *mut c_void {
        self.memory.at(index * size_of::<fi_context2>())
    }

    /// Returns the number of a context reported by a completion.
    #[inline]
    pub(crate) fn index(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).wrapping_sub(self.memory.base.as_ptr() as usize);
        let index = offset / size_of::<fi_context2>();
        (index < self.count).then_some(index)
    }
}
