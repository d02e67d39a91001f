//! Memory of another process, read where it is (process_vm_readv(2)).
use crate::error::{Error, Result};
use crate::sys::{check, random};
use core::ptr::NonNull;
use libc::iovec;

/// A random word of this process, by which a peer that reads memory here knows that it reads that of
/// this process, and not of another that has got its number since. Children have it not.
#[derive(Debug)]
pub struct MemoryToken {
    page: NonNull<u64>,
    len: usize,
    value: u64,
    process: u32,
}

// SAFETY: the page is written once, before anybody else knows of it.
unsafe impl Send for MemoryToken {}
// SAFETY: as above.
unsafe impl Sync for MemoryToken {}

impl MemoryToken {
    /// A new one.
    pub fn new() -> Result<Self> {
        let len = crate::sys::sysconf(libc::_SC_PAGESIZE).max(1);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the system chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os());
        }
        let page = NonNull::new(base.cast::<u64>()).ok_or(Error::NOMEM)?;
        let token = Self { page, len, value: random(), process: std::process::id() };
        // SAFETY: the mapping is a page of ours, which nobody else knows of.
        unsafe {
            check(libc::madvise(base, len, libc::MADV_DONTFORK))?;
            page.write(token.value);
        }
        Ok(token)
    }

    /// Where the word is, for a peer ([`PeerMemory::open`]).
    pub fn address(&self) -> u64 {
        self.page.as_ptr() as u64
    }

    /// The word, for a peer ([`PeerMemory::open`]).
    pub fn value(&self) -> u64 {
        self.value
    }
}

impl Drop for MemoryToken {
    fn drop(&mut self) {
        // In a child other memory may be at that address.
        if self.process == std::process::id() {
            // SAFETY: the mapping is ours, and nobody has a reference into it.
            unsafe { libc::munmap(self.page.as_ptr().cast(), self.len) };
        }
    }
}

/// The memory of a peer's process, which this process may read.
#[derive(Debug)]
pub struct PeerMemory {
    process: libc::pid_t,
    address: u64,
    value: u64,
}

impl PeerMemory {
    /// The memory of the process that has this number (by SO_PEERCRED, not by its own words), if this process may read
    /// it, and finds the word that the peer said is there ([`MemoryToken`]).
    pub fn open(process: i32, address: u64, value: u64) -> Result<Self> {
        let memory = Self { process, address, value };
        // What a peer behind another namespace of processes has.
        if process <= 0 {
            return Err(Error::PERM);
        }
        // SAFETY: there is no part.
        unsafe { memory.read(std::iter::empty(), 0) }?;
        Ok(memory)
    }

    /// Reads memory of the peer's from `from` on into these parts: -FI_EPROTO if there is none, or not all.
    ///
    /// # Safety
    /// The parts' memory is valid for writing.
    pub(crate) unsafe fn read(
        &self,
        parts: impl Iterator<Item = (*mut u8, usize)>,
        from: u64,
    ) -> Result<usize> {
        let mut word = 0u64;
        let mut local = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 65];
        let (mut count, mut len) = (0, 0);
        for ((base, part), to) in parts.zip(&mut local[..64]) {
            *to = iovec { iov_base: base.cast(), iov_len: part };
            len += part;
            count += 1;
        }
        let own = size_of_val(&word);
        local[count] = iovec { iov_base: (&raw mut word).cast(), iov_len: own };
        // The word comes last: the process is the right one, then, that the bytes were read of.
        let remote = [
            iovec { iov_base: from as *mut _, iov_len: len },
            iovec { iov_base: self.address as *mut _, iov_len: own },
        ];
        // SAFETY: the local parts are valid for writing; the system checks the peer's.
        let n = unsafe {
            let (local_count, remote_count) = (count as libc::c_ulong + 1, 2);
            let (to, from) = (local.as_ptr(), remote.as_ptr());
            libc::process_vm_readv(self.process, to, local_count, from, remote_count, 0)
        };
        match usize::try_from(n) {
            Err(_) => Err(match Error::last_os() {
                Error::FAULT => Error::PROTO,
                gone if gone.code() == libc::ESRCH => Error::CONNRESET,
                error => error,
            }),
            Ok(n) if n == len + own && word == self.value => Ok(len),
            Ok(n) if n == len + own => Err(Error::CONNRESET),
            Ok(_) => Err(Error::PROTO),
        }
    }
}
