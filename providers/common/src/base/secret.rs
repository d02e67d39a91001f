//! Memory for secrets: it is in no core dump and is cleared before it is given back. And the parameters that
//! say where a job's secret is.
use crate::error::{Error, Result};
use crate::param;
use crate::provider::Provider;
use crate::sys::has_more_rights;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};
use std::ffi::OsString;
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

/// The parameter that names the file of a job's secret, and what is said of it.
pub const KEY_FILE: &CStr = c"auth_key_file";
/// See [`KEY_FILE`].
pub const KEY_FILE_HELP: &CStr = c"file with the job's secret: only peers that have it are talked \
    to. Of the user or root, and readable by nobody else; default: none";

/// The variable of the environment that is a job's secret, and its value, for this provider or one whose
/// parameters hold for it. It is no parameter, so that no list shows it, and none in programs that have more
/// rights than their callers.
pub fn key_in_environment(prov: &'static Provider) -> Option<(String, OsString)> {
    prov.and_bases().find_map(|prov| {
        let variable = param::variable_of(prov, c"auth_key");
        let value = std::env::var_os(&variable).filter(|_| !has_more_rights());
        value.map(|value| (variable, value))
    })
}

/// The variable by which the user set a secret for the messages of a provider, which may be another
/// one's and not loaded: in the environment or in libfabric.conf.
pub fn key_variable(prov: &'static Provider) -> Option<String> {
    let file = param::string(prov, KEY_FILE, KEY_FILE_HELP);
    let in_file = file.map(|_| param::variable(prov, KEY_FILE));
    in_file.or_else(|| key_in_environment(prov).map(|(variable, _)| variable))
}

/// Bytes of the stack that are cleared behind what works on secrets: more than it uses, and less than the
/// smallest stacks of threads leave.
const WIPED_STACK: usize = 6 << 10;

/// Does what works on a secret, and clears the part of the stack that it used, where copies of the secret
/// may be.
pub fn with_wiped_stack<R>(work: impl FnOnce() -> R) -> R {
    // A frame of its own, so that all that is used is below this one's.
    #[inline(never)]
    fn run<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
    let result = run(work);
    wipe_stack();
    result
}

/// Clears the stack below the caller's frame.
#[inline(never)]
fn wipe_stack() {
    let mut below = [const { MaybeUninit::<u64>::uninit() }; WIPED_STACK / 8];
    for word in &mut below {
        // SAFETY: a word of this frame.
        unsafe { core::ptr::write_volatile(word.as_mut_ptr(), 0) };
    }
    compiler_fence(Ordering::SeqCst);
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
