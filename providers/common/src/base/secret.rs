//! Memory for secrets, excluded from core dumps and cleared before its release, and the parameters
//! for the pre-shared key of a job.
use crate::error::{Error, Result};
use crate::param;
use crate::provider::Provider;
use crate::stack::{OwnStack, StackUse, run_here};
use crate::sys::has_more_rights;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence};
use std::ffi::OsString;
use std::fmt;

/// Separately allocated, zeroed memory for a secret.
pub struct SecretMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, and is changed through `&mut self` only.
unsafe impl Send for SecretMemory {}
// SAFETY: as above.
unsafe impl Sync for SecretMemory {}

impl SecretMemory {
    /// Returns memory of `len` bytes; `len` is not 0.
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
        // SAFETY: as in `bytes`, and there is no other reference to them.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Clears the bytes; the compiler does not remove the stores.
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

/// Parameter with the file of the job's pre-shared key, and its description.
pub const KEY_FILE: &CStr = c"auth_key_file";
/// See [`KEY_FILE`].
pub const KEY_FILE_HELP: &CStr = c"file with the job's secret: only peers that have it are talked \
    to. Of the user or root, and readable by nobody else; default: none";

/// Returns the environment variable with the job's pre-shared key, and its value, for this provider
/// or one sharing its parameters. The variable is not a parameter, so no list shows it. It is
/// ignored in programs with more privileges than their callers.
pub fn key_in_environment(prov: &'static Provider) -> Option<(String, OsString)> {
    prov.and_bases().find_map(|prov| {
        let variable = param::variable_of(prov, c"auth_key");
        let value = std::env::var_os(&variable).filter(|_| !has_more_rights());
        value.map(|value| (variable, value))
    })
}

/// Returns the variable by which the user set a pre-shared key for the messages of a provider,
/// possibly another one and not loaded: in the environment or in libfabric.conf.
pub fn key_variable(prov: &'static Provider) -> Option<String> {
    let file = param::string(prov, KEY_FILE, KEY_FILE_HELP);
    let in_file = file.map(|_| param::variable(prov, KEY_FILE));
    in_file.or_else(|| key_in_environment(prov).map(|(variable, _)| variable))
}

/// Value in separate memory, cleared on drop. Copies made before it was stored are not cleared, see
/// [`with_wiped_stack`].
pub struct WipedBox<T> {
    memory: Box<MaybeUninit<T>>,
}

impl<T> WipedBox<T> {
    /// Moves a value into such memory.
    pub fn new(value: T) -> Self {
        Self { memory: Box::new(MaybeUninit::new(value)) }
    }
}

impl<T> Deref for WipedBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a value from the beginning on, until the drop.
        unsafe { self.memory.assume_init_ref() }
    }
}

impl<T> DerefMut for WipedBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.memory.assume_init_mut() }
    }
}

impl<T> WipedBox<T> {
    /// Drops the value and clears its memory.
    ///
    /// # Safety
    /// Nothing else is done with the box afterwards.
    unsafe fn wipe(&mut self) {
        let bytes = self.memory.as_mut_ptr().cast::<u8>();
        // SAFETY: a value until here, which is not used from here on; the bytes are its memory's.
        unsafe {
            self.memory.assume_init_drop();
            for at in 0..size_of::<T>() {
                core::ptr::write_volatile(bytes.add(at), 0);
            }
        }
        compiler_fence(Ordering::SeqCst);
    }
}

impl<T> Drop for WipedBox<T> {
    fn drop(&mut self) {
        // SAFETY: the memory is given back next.
        unsafe { self.wipe() };
    }
}

/// Bytes of the stack cleared after work on secrets: more than the work uses, and less than the
/// smallest thread stacks provide.
const WIPED_STACK: usize = 4 << 10;

/// Runs work on a secret and clears its part of the stack, since copies of the secret may be there.
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

/// Runs work on a secret on a separate stack, for callers with a possibly too small stack. This
/// stack is excluded from core dumps and cleared afterwards, since copies of the secret may be
/// there.
pub fn on_wiped_stack<R>(work: impl FnOnce() -> R) -> R {
    match OwnStack::new(StackUse::Secret) {
        Some(mut stack) => stack.run(work),
        None => run_here(|| with_wiped_stack(work)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_wiped_box_is_cleared_after_its_value_is_dropped() {
        struct Noisy<'a>([u8; 64], &'a core::cell::Cell<u8>);
        impl Drop for Noisy<'_> {
            fn drop(&mut self) {
                self.1.set(self.0[63]);
            }
        }
        let seen = core::cell::Cell::new(0);
        let mut value = WipedBox::new(Noisy([7; 64], &seen));
        value.0[63] = 8;
        assert_eq!((value.0[0], seen.get()), (7, 0));
        let memory: *const [u8; 64] = &raw const value.0;
        let mut wiped = core::mem::ManuallyDrop::new(value);
        // The memory is looked at before it is given back: as the drop does, but for that.
        // SAFETY: dropped once, here; the box's memory is leaked.
        unsafe {
            wiped.wipe();
            assert!((*memory).iter().all(|byte| *byte == 0));
        }
        assert_eq!(seen.get(), 8);
    }

    #[test]
    fn secret_memory_is_excluded_from_dumps_and_debug_output() {
        let mut memory = SecretMemory::new(100).unwrap();
        memory.bytes_mut()[..6].copy_from_slice(b"secret");
        assert_eq!(format!("{memory:?}"), "SecretMemory of 100 bytes");
        // The flag "dd" of the mapping: not in dumps.
        let (at, maps) =
            (memory.bytes().as_ptr() as usize, std::fs::read_to_string("/proc/self/smaps"));
        let maps = maps.unwrap();
        let mut inside = false;
        let flags = maps.lines().find(|line| {
            if let Some((range, _)) = line.split_once(' ') {
                if let Some((low, high)) = range.split_once('-') {
                    if let Ok(low) = usize::from_str_radix(low, 16) {
                        if let Ok(high) = usize::from_str_radix(high, 16) {
                            inside = (low..high).contains(&at);
                        }
                    }
                }
            }
            inside && line.starts_with("VmFlags:")
        });
        assert!(flags.unwrap().split_whitespace().any(|flag| flag == "dd"));
        memory.clear();
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
    }
}
