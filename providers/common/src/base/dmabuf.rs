//! Memory of dma-buf files (FI_MR_DMABUF), mapped into this process. Its bytes move by copies, like
//! those of a device: the exporter is told of each access (`DMA_BUF_IOCTL_SYNC`).
use crate::device::{CopyDirection, CopyTicket, DeviceInterface, DeviceLocation};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Magic number of the file system of dma-bufs (linux/magic.h).
const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// `DMA_BUF_IOCTL_SYNC`, and the flags of its argument (linux/dma-buf.h).
const SYNC: libc::Ioctl = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

/// Part of a dma-buf file, as an application registers it (`struct fi_mr_dmabuf`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmabufRange {
    /// Descriptor of the file, owned by the application.
    pub fd: RawFd,
    /// Offset of the part in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// Address of the file's first byte in the process of the application; 0 without one.
    pub base_addr: usize,
}

impl DmabufRange {
    /// Returns the address of the first byte for the application, if it has one.
    pub fn addr(&self) -> Option<usize> {
        let offset = usize::try_from(self.offset).ok()?;
        self.base_addr.checked_add(offset).filter(|_| self.base_addr != 0)
    }
}

/// Mapping of a part of a file. Its pages stay mapped until the last copy has ended.
struct MappedFile {
    /// Address of the mapping, at the begin of a page, and its length.
    at: usize,
    mapped_len: usize,
    /// Address of the first byte of the part in this mapping.
    first: usize,
    /// Address of this byte for the application; the offset in the file without one.
    named: usize,
    len: usize,
    is_writable: bool,
    /// Own descriptor of a dma-buf file; none for memory of the system.
    file: Option<OwnedFd>,
}

impl MappedFile {
    /// Announces an access of the processor to the exporter, or its end. Fails with -FI_EIO.
    fn sync(&self, flags: u64) -> Result {
        let Some(file) = &self.file else { return Ok(()) };
        // SAFETY: the argument is one number, as the command defines.
        while unsafe { libc::ioctl(file.as_raw_fd(), SYNC, &raw const flags) } != 0 {
            if !matches!(Error::last_os(), Error::INTR | Error::AGAIN) {
                return Err(Error::IO);
            }
        }
        Ok(())
    }

    /// Copies `len` bytes between the memory named `addr` by the application and the host's.
    ///
    /// # Safety
    /// [`DeviceInterface::start_copy`]
    unsafe fn copy(
        &self,
        direction: CopyDirection,
        addr: usize,
        host: *mut u8,
        len: usize,
    ) -> Result {
        let from = addr.checked_sub(self.named).ok_or(Error::FAULT)?;
        if from > self.len || len > self.len - from {
            return Err(Error::FAULT);
        }
        let mapped = (self.first + from) as *mut u8;
        let access = match direction {
            CopyDirection::ToHost => SYNC_READ,
            CopyDirection::ToDevice if self.is_writable => SYNC_WRITE,
            CopyDirection::ToDevice => return Err(Error::ACCES),
        };
        self.sync(access)?;
        // SAFETY: `len` bytes at `mapped` are within the mapping, writable if it says so; the file
        // cannot shrink (`open`). Those at `host` are valid by this function's contract.
        unsafe {
            match direction {
                CopyDirection::ToHost => std::ptr::copy(mapped, host, len),
                CopyDirection::ToDevice => std::ptr::copy(host, mapped, len),
            }
        }
        self.sync(access | SYNC_END)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no copy holds it.
        unsafe { libc::munmap(self.at as *mut _, self.mapped_len) };
    }
}

/// Mappings of this process.
#[derive(Default)]
struct Mappings {
    by_number: HashMap<u32, Arc<MappedFile>>,
    /// End of the range by the address for the application and the number.
    by_addr: BTreeMap<(usize, u32), usize>,
    /// Length of the longest range so far.
    longest: usize,
    /// Number of the last mapping.
    last: u32,
}

static MAPPINGS: LazyLock<RwLock<Mappings>> = LazyLock::new(RwLock::default);

/// Number of mappings with an address for the application.
static NAMED: AtomicUsize = AtomicUsize::new(0);

fn mappings() -> RwLockReadGuard<'static, Mappings> {
    MAPPINGS.read().unwrap_or_else(PoisonError::into_inner)
}

fn mappings_mut() -> RwLockWriteGuard<'static, Mappings> {
    MAPPINGS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Mapped memory of a file, until the value is dropped.
#[derive(Debug)]
pub struct MappedDmabuf {
    number: u32,
    named: Option<usize>,
}

impl MappedDmabuf {
    /// Maps a part of a file, for writing as well if `is_writable`.
    ///
    /// Fails with -FI_EBADF for a descriptor of no file, with -FI_EINVAL if the part is empty or
    /// goes beyond the end of the file, or if the file is neither a dma-buf nor memory of a fixed
    /// minimum size (memfd_create(2) with `F_SEAL_SHRINK`), and with -FI_EACCES if it
    /// may not be written to. Fails with -FI_EOPNOTSUPP if its exporter permits no mapping.
    pub fn open(range: &DmabufRange, is_writable: bool) -> Result<Self> {
        let file = file_of(range)?;
        let offset = usize::try_from(range.offset).map_err(|_| Error::INVAL)?;
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
        let before = offset % page.map_err(|_| Error::OTHER)?;
        let mapped_len = range.len.checked_add(before).ok_or(Error::INVAL)?;
        let begin = libc::off_t::try_from(offset - before).map_err(|_| Error::INVAL)?;
        let prot = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped_len, prot, libc::MAP_SHARED, range.fd, begin)
        };
        if at == libc::MAP_FAILED {
            return Err(match Error::last_os() {
                Error::ACCES | Error::PERM => Error::ACCES,
                Error::NOMEM => Error::NOMEM,
                _ => Error::OPNOTSUPP,
            });
        }
        let at = at as usize;
        let named = range.addr();
        let mapped = MappedFile {
            at,
            mapped_len,
            first: at + before,
            named: named.unwrap_or(offset),
            len: range.len,
            is_writable,
            file,
        };
        Ok(Self::insert(mapped, named))
    }

    fn insert(mapped: MappedFile, named: Option<usize>) -> Self {
        let mut all = mappings_mut();
        loop {
            all.last = all.last.wrapping_add(1);
            if !all.by_number.contains_key(&all.last) {
                break;
            }
        }
        let number = all.last;
        if let Some(addr) = named {
            all.by_addr.insert((addr, number), addr.saturating_add(mapped.len));
            all.longest = all.longest.max(mapped.len);
            NAMED.fetch_add(1, Ordering::Release);
        }
        all.by_number.insert(number, Arc::new(mapped));
        Self { number, named }
    }

    /// Returns the location of the memory. Its addresses are those of the application, or offsets
    /// in the file without one.
    pub fn location(&self) -> DeviceLocation {
        DeviceLocation { interface: &DMABUF, device: self.number }
    }
}

impl Drop for MappedDmabuf {
    fn drop(&mut self) {
        let mut all = mappings_mut();
        if let Some(addr) = self.named {
            all.by_addr.remove(&(addr, self.number));
            NAMED.fetch_sub(1, Ordering::Release);
        }
        let mapped = all.by_number.remove(&self.number);
        drop(all);
        drop(mapped);
    }
}

/// Checks the part of a file. Returns an own descriptor of a dma-buf file,
/// none for memory of the system. Fails as [`MappedDmabuf::open`].
fn file_of(range: &DmabufRange) -> Result<Option<OwnedFd>> {
    // SAFETY: both are plain numbers, filled in by the calls.
    let (stat, system) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let mut system: libc::statfs = std::mem::zeroed();
        if libc::fstat(range.fd, &raw mut stat) != 0
            || libc::fstatfs(range.fd, &raw mut system) != 0
        {
            return Err(Error::last_os());
        }
        (stat, system)
    };
    let size = u64::try_from(stat.st_size).map_err(|_| Error::INVAL)?;
    let end = range.offset.checked_add(range.len as u64).ok_or(Error::INVAL)?;
    if range.len == 0 || end > size {
        return Err(Error::INVAL);
    }
    #[allow(clippy::unnecessary_cast)]
    if system.f_type as i64 == DMA_BUF_MAGIC {
        // SAFETY: the calls above have shown that it is open; the application keeps it so for the
        // registration.
        let file = unsafe { BorrowedFd::borrow_raw(range.fd) };
        return file.try_clone_to_owned().map(Some).map_err(Error::from);
    }
    // SAFETY: asks for a number.
    let seals = unsafe { libc::fcntl(range.fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 { Err(Error::INVAL) } else { Ok(None) }
}

/// Interface to mapped memory of dma-buf files. A device is one mapping.
pub static DMABUF: DmabufInterface = DmabufInterface;

/// Returns true if a location is in mapped memory of a file.
pub fn is_mapped_file(location: &DeviceLocation) -> bool {
    location.interface.number() == DMABUF.number()
}

/// [`DMABUF`]
#[derive(Debug)]
pub struct DmabufInterface;

impl DeviceInterface for DmabufInterface {
    fn name(&self) -> &'static str {
        "dmabuf"
    }

    /// Returns FI_HMEM_SYSTEM: the memory is registered without an interface, or with its file.
    fn number(&self) -> u32 {
        0
    }

    fn device_of(&self, addr: usize) -> Option<u32> {
        // Saves the lock in processes without such memory.
        if NAMED.load(Ordering::Acquire) == 0 {
            return None;
        }
        let all = mappings();
        let before = all.by_addr.range(..=(addr, u32::MAX)).rev();
        let near = before.take_while(|((base, _), _)| addr - base < all.longest);
        near.filter(|(_, end)| addr < **end).map(|((_, number), _)| *number).next()
    }

    unsafe fn start_copy(
        &self,
        device: u32,
        direction: CopyDirection,
        addr: usize,
        host: *mut u8,
        len: usize,
    ) -> Result<CopyTicket> {
        let mapped = mappings().by_number.get(&device).cloned().ok_or(Error::FAULT)?;
        // SAFETY: by this function's contract.
        unsafe { mapped.copy(direction, addr, host, len) }?;
        Ok(CopyTicket(0))
    }

    fn poll_copy(&self, _device: u32, _ticket: &CopyTicket) -> Result<bool> {
        Ok(true)
    }

    unsafe fn pin(&self, _host: *mut u8, _len: usize) -> Result {
        Ok(())
    }

    fn unpin(&self, _host: *mut u8) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_int;

    /// Memory of the system of this size, with these seals.
    fn memory(size: i64, seals: c_int) -> OwnedFd {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor, ours from here on.
        unsafe {
            let fd = libc::memfd_create(c"dmabuf".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0 && libc::ftruncate64(fd, size) == 0);
            assert!(seals == 0 || libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    fn range(file: &OwnedFd, offset: u64, len: usize, base_addr: usize) -> DmabufRange {
        DmabufRange { fd: file.as_raw_fd(), offset, len, base_addr }
    }

    fn copy(
        location: DeviceLocation,
        direction: CopyDirection,
        at: usize,
        host: &mut [u8],
    ) -> Result {
        // SAFETY: the bytes are valid for the call, and this interface copies at once.
        unsafe {
            let (from, len) = (host.as_mut_ptr(), host.len());
            location.interface.start_copy(location.device, direction, at, from, len).map(|_| ())
        }
    }

    #[test]
    fn part_of_a_file_is_copied_by_its_address_until_it_is_dropped() {
        let file = memory(64 << 10, libc::F_SEAL_SHRINK);
        let (base, offset) = (0x7000_0000, 5000);
        let whole = MappedDmabuf::open(&range(&file, 0, 64 << 10, base), true).unwrap();
        let part = MappedDmabuf::open(&range(&file, offset, 100, base), true).unwrap();
        let at = base + 5000;
        copy(part.location(), CopyDirection::ToDevice, at + 3, &mut [1, 2, 3]).unwrap();
        let mut found = [0; 5];
        copy(whole.location(), CopyDirection::ToHost, at + 2, &mut found).unwrap();
        assert_eq!(found, [0, 1, 2, 3, 0]);
        for (from, len) in [(at - 1, 1), (at, 101), (at + 100, 1), (usize::MAX, 2)] {
            let mut host = vec![0; len];
            let copied = copy(part.location(), CopyDirection::ToHost, from, &mut host);
            assert_eq!(copied, Err(Error::FAULT), "{from:#x}");
        }
        // An address behind the part is found in the range around it.
        assert_eq!(DMABUF.device_of(at + 99), Some(part.number));
        assert_eq!(DMABUF.device_of(at + 100), Some(whole.number));
        assert_eq!(DMABUF.device_of(base - 1), None);
        assert_eq!(DMABUF.device_of(base + (64 << 10)), None);
        let old = part.location();
        drop(part);
        assert_eq!(copy(old, CopyDirection::ToHost, at, &mut [0]), Err(Error::FAULT));
        assert_eq!(DMABUF.device_of(at), Some(whole.number));
    }

    #[test]
    fn file_without_an_address_has_its_offsets_and_is_not_looked_up() {
        let file = memory(0x20_0000, libc::F_SEAL_SHRINK);
        let part = MappedDmabuf::open(&range(&file, 0x10_0000, 100, 0), true).unwrap();
        copy(part.location(), CopyDirection::ToDevice, 0x10_0001, &mut [7]).unwrap();
        let mut found = [0; 2];
        copy(part.location(), CopyDirection::ToHost, 0x10_0000, &mut found).unwrap();
        assert_eq!(found, [0, 7]);
        assert_ne!(DMABUF.device_of(0x10_0001), Some(part.number));
    }

    #[test]
    fn parts_beyond_the_end_and_other_files_are_refused() {
        let file = memory(8192, libc::F_SEAL_SHRINK);
        let refused =
            |range: DmabufRange| MappedDmabuf::open(&range, true).map(|_| ()).unwrap_err();
        for (offset, len) in [(0, 0), (0, 8193), (8192, 1), (8191, 2), (u64::MAX, 2), (1 << 63, 1)]
        {
            assert_eq!(refused(range(&file, offset, len, 0)), Error::INVAL, "{offset} {len}");
        }
        assert_eq!(refused(range(&memory(8192, 0), 0, 1, 0)), Error::INVAL);
        assert_eq!(refused(DmabufRange { fd: -1, ..range(&file, 0, 1, 0) }), Error::BADF);
    }

    #[test]
    fn memory_mapped_for_reading_is_not_written_to() {
        let file = memory(4096, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE);
        let writable = MappedDmabuf::open(&range(&file, 0, 100, 0), true);
        assert_eq!(writable.map(|_| ()).unwrap_err(), Error::ACCES);
        let file = memory(4096, libc::F_SEAL_SHRINK);
        let part = MappedDmabuf::open(&range(&file, 0, 100, 0), false).unwrap();
        assert_eq!(copy(part.location(), CopyDirection::ToHost, 0, &mut [0]), Ok(()));
        let written = copy(part.location(), CopyDirection::ToDevice, 0, &mut [0]);
        assert_eq!(written, Err(Error::ACCES));
    }
}
