//! Direct reads of another process's memory (process_vm_readv(2)).
use crate::error::{Error, Result};
use crate::rights::ReceivedFd;
use crate::stats::coarse_now;
use crate::sys::{check, random};
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use libc::iovec;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Nanoseconds for which a pid is trusted after a check of its process. Before its reuse the kernel
/// has to assign all other pids, 32,767 or more. The maximum rate of new processes is a few per
/// microsecond and a thousand processors.
const SAME_FOR: u64 = 10_000_000;

/// Number of bytes from which the process is checked at each read: the check is then negligible.
const ALWAYS_ASKED: usize = 1 << 20;

/// Random word of this process. A peer reading memory of this process checks it, to detect a reuse
/// of the pid by another process. Children do not have it.
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
        // SAFETY: the mapping is our page, unknown to other code.
        unsafe {
            check(libc::madvise(base, len, libc::MADV_DONTFORK))?;
            page.write(token.value);
        }
        Ok(token)
    }

    /// Returns the address of the word, for a peer ([`PeerMemory::open`]).
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
            // SAFETY: the mapping is ours, and no reference into it exists.
            unsafe { libc::munmap(self.page.as_ptr().cast(), self.len) };
        }
    }
}

/// Memory of a peer's process, readable by this process.
#[derive(Debug)]
pub struct PeerMemory {
    process: libc::pid_t,
    address: u64,
    value: u64,
    /// When the process was found to be the right one ([`coarse_now`]).
    found: Cell<Option<u64>>,
}

impl PeerMemory {
    /// Opens the memory of the process with this pid (by SO_PEERCRED, not as sent by the peer).
    /// Fails if this process may not read it, or if the word advertised by the peer is not there
    /// ([`MemoryToken`]).
    pub fn open(process: i32, address: u64, value: u64) -> Result<Self> {
        let memory = Self { process, address, value, found: Cell::new(None) };
        // Pid of a peer in another pid namespace.
        if process <= 0 {
            return Err(Error::PERM);
        }
        // SAFETY: there is no part.
        unsafe { memory.read(std::iter::empty(), 0) }?;
        Ok(memory)
    }

    /// Copies a descriptor of the peer's process: a file of any type. Fails with -FI_EPROTO if it has no
    /// such descriptor, with -FI_ECONNRESET if the process has ended, and with -FI_EOPNOTSUPP if the
    /// system does not permit it.
    pub fn copy_file(&self, file: RawFd) -> Result<ReceivedFd> {
        let open = |call: libc::c_long, of: libc::c_long, file: libc::c_long| {
            // SAFETY: no memory is involved; a new descriptor is owned once.
            let fd = unsafe { libc::syscall(call, of, file, 0 as libc::c_long) };
            match RawFd::try_from(fd) {
                // SAFETY: as above.
                Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
                _ => Err(Error::last_os()),
            }
        };
        let other = |error: Error| match error.code() {
            libc::ESRCH => Error::CONNRESET,
            libc::EBADF => Error::PROTO,
            _ => Error::OPNOTSUPP,
        };
        let process = open(libc::SYS_pidfd_open, self.process.into(), 0).map_err(other)?;
        // The pid names the peer's process still, so it did when it was opened.
        self.found.set(None);
        let mut byte = 0u8;
        let part = std::iter::once((&raw mut byte, 1));
        // SAFETY: the part is one byte of this function.
        unsafe { self.read(part, self.address) }?;
        let copy = open(libc::SYS_pidfd_getfd, process.as_raw_fd().into(), file.into());
        copy.map(ReceivedFd::new).map_err(other)
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
        let mut local = [const { MaybeUninit::<iovec>::uninit() }; 65];
        let (mut count, mut len) = (0, 0);
        for ((base, part), to) in parts.zip(&mut local[..64]) {
            to.write(iovec { iov_base: base.cast(), iov_len: part });
            len += part;
            count += 1;
        }
        let own = size_of_val(&word);
        local[count].write(iovec { iov_base: (&raw mut word).cast(), iov_len: own });
        // The word comes last: the process is the right one, then, that the bytes were read of.
        let remote = [
            iovec { iov_base: from as *mut _, iov_len: len },
            iovec { iov_base: self.address as *mut _, iov_len: own },
        ];
        let now = coarse_now();
        let is_fresh = |found: u64| now.saturating_sub(found) < SAME_FOR;
        let verifies = len >= ALWAYS_ASKED || !self.found.get().is_some_and(is_fresh);
        let (more, wanted) = if verifies { (1, len + own) } else { (0, len) };
        // SAFETY: the local parts, of which the first `count` and one are set, are valid for writing; the
        // system checks the peer's.
        let n = unsafe {
            let (local_count, remote_count) = (count as libc::c_ulong + more, 1 + more);
            let (to, from) = (local.as_ptr().cast(), remote.as_ptr());
            libc::process_vm_readv(self.process, to, local_count, from, remote_count, 0)
        };
        match usize::try_from(n) {
            Err(_) => Err(match Error::last_os() {
                Error::FAULT => Error::PROTO,
                gone if gone.code() == libc::ESRCH => Error::CONNRESET,
                error => error,
            }),
            Ok(n) if n != wanted => Err(Error::PROTO),
            Ok(_) if !verifies => Ok(len),
            Ok(_) if word == self.value => {
                self.found.set(Some(now));
                Ok(len)
            }
            Ok(_) => Err(Error::CONNRESET),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_replaced_process_is_not_read() {
        let token = MemoryToken::new().unwrap();
        let memory = PeerMemory::open(std::process::id() as i32, token.address(), token.value());
        let Ok(memory) = memory else {
            return crate::testing::skip("processes may not read each other's memory here");
        };
        let (from, mut to) = ([5u8; 100], vec![0u8; ALWAYS_ASKED]);
        let read = |to: &mut [u8], from: &[u8]| {
            let part = std::iter::once((to.as_mut_ptr(), to.len()));
            // SAFETY: the part is of a slice.
            unsafe { memory.read(part, from.as_ptr() as u64) }
        };
        assert_eq!((read(&mut to[..100], &from), to[..100] == from), (Ok(100), true));
        // SAFETY: the page is this test's.
        unsafe { token.page.write(!token.value()) };
        let large = vec![7; ALWAYS_ASKED];
        assert_eq!(read(&mut to, &large), Err(Error::CONNRESET));
        std::thread::sleep(std::time::Duration::from_nanos(SAME_FOR * 3));
        assert_eq!(read(&mut to[..100], &from), Err(Error::CONNRESET));
    }

    #[test]
    fn descriptors_of_a_peer_are_copied_while_it_is_the_same_process() {
        let token = MemoryToken::new().unwrap();
        let memory = PeerMemory::open(std::process::id() as i32, token.address(), token.value());
        let Ok(memory) = memory else {
            return crate::testing::skip("processes may not read each other's memory here");
        };
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let copied = match memory.copy_file(writer.as_raw_fd()) {
            Err(Error::OPNOTSUPP) => return crate::testing::skip("no pidfd_getfd(2)"),
            copied => copied.unwrap().into_known().unwrap(),
        };
        assert_ne!(copied.as_raw_fd(), writer.as_raw_fd());
        std::io::Write::write_all(&mut std::fs::File::from(copied), b"by the copy").unwrap();
        std::io::Write::write_all(&mut writer, b"!").unwrap();
        drop(writer);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "by the copy!");
        for unknown in [RawFd::MAX, -1, i32::MIN] {
            assert_eq!(memory.copy_file(unknown).err(), Some(Error::PROTO), "{unknown}");
        }
        // SAFETY: the page is this test's.
        unsafe { token.page.write(!token.value()) };
        assert_eq!(memory.copy_file(0).err(), Some(Error::CONNRESET));
    }
}
