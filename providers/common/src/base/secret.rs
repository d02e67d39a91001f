//! Memory for secrets: it is in no core dump and is cleared before it is given back.
use crate::error::{Error, Result};
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};
use std::fmt;

/// Zeroed memory of its own for a secret.
pub struct SecretMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, and is changed through `&mut self` only.
unsafe impl Send for SecretMemory {}
// SAFETY: as above.
unsafe impl Sync for SecretMemory {}

impl SecretMemory {
    /// Memory of `len` bytes, which is not 0.
    pub fn new(len: usize) -> Result<Self> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the system has room for it.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), len, access, kind, -1, 0) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED);
        let memory = Self { start: start.ok_or(Error::NOMEM)?, len };
        // SAFETY: the mapping just made.
        if unsafe { libc::madvise(memory.start.as_ptr().cast(), len, libc::MADV_DONTDUMP) } != 0 {
            return Err(Error::NOMEM);
        }
        // Not to a swap device either, where the user's limit allows that.
        // SAFETY: the mapping just made.
        unsafe { libc::mlock(memory.start.as_ptr().cast(), len) };
        Ok(memory)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is there as long as `self`, and has been zeroed by the system.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and nobody else has them.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Clears the bytes, which the compiler does not leave out.
    pub fn clear(&mut self) {
        for byte in self.bytes_mut() {
            // SAFETY: a byte of the memory, which is ours.
            unsafe { core::ptr::write_volatile(byte, 0) };
        }
        compiler_fence(Ordering::SeqCst);
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        self.clear();
        // SAFETY: our mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for SecretMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretMemory of {} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_kept_from_dumps_and_from_debug_output() {
        let mut memory = SecretMemory::new(100).unwrap();
        memory.bytes_mut()[..6].copy_from_slice(b"secret");
        assert_eq!(format!("{memory:?}"), "SecretMemory of 100 bytes");
        // The flag "dd" of the mapping: not in dumps.
        let (at, maps) =
            (memory.bytes().as_ptr() as usize, std::fs::read_to_string("/proc/self/smaps"));
        let maps = maps.unwrap();
        let mut inside = false;
        let flags = maps.lines().find(|line| {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((low, high)) = range.split_once('-')
                && let Ok(low) = usize::from_str_radix(low, 16)
                && let Ok(high) = usize::from_str_radix(high, 16)
            {
                inside = (low..high).contains(&at);
            }
            inside && line.starts_with("VmFlags:")
        });
        assert!(flags.unwrap().split_whitespace().any(|flag| flag == "dd"));
        memory.clear();
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
    }
}
