//! Memory of devices (FI_HMEM): the interface to a kind of device, the location of a buffer, and host
//! memory for copies of its bytes.
//!
//! The processor never accesses memory of a device. Its bytes move by copies between the device
//! and a [`BounceBuf`], in progress until a poll finds them complete.
use crate::device_allocation::{DeviceAllocation, DeviceHandle};
use crate::error::{Error, Result};
use std::fmt::{self, Debug};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyDirection {
    /// From the device to the host.
    ToHost,
    /// From the host to the device.
    ToDevice,
}

/// Number of a copy in progress, meaningful for its interface.
#[derive(Debug)]
pub struct CopyTicket(pub usize);

/// Interface to devices of one kind: the calls of their library.
///
/// Errors are -FI_EIO for a failed copy or device, -FI_EFAULT for memory outside of the device,
/// and -FI_ENOMEM; a line of the log names the cause. All calls are thread-safe.
pub trait DeviceInterface: Send + Sync + Debug {
    /// Returns the name of the interface: `cuda`.
    fn name(&self) -> &'static str;

    /// Returns the number of the interface (`enum fi_hmem_iface`).
    fn number(&self) -> u32;

    /// Returns the device with this address in its memory; none for any other address.
    fn device_of(&self, addr: usize) -> Option<u32>;

    /// Returns true if [`device_of`](Self::device_of) has had an error in place of an answer: of a
    /// lost device, or in a forked process.
    fn is_lost(&self) -> bool {
        false
    }

    /// Starts a copy of `len` bytes between the memory of a device at `addr` and the host's.
    ///
    /// # Safety
    /// The bytes at `host` stay valid, and unused by anything else, until
    /// [`poll_copy`](Self::poll_copy) has reported the end of the copy.
    unsafe fn start_copy(
        &self,
        device: u32,
        direction: CopyDirection,
        addr: usize,
        host: *mut u8,
        len: usize,
    ) -> Result<CopyTicket>;

    /// Returns true if the copy is complete, false if it is in progress. After true or an error the
    /// ticket is invalid, and the copy has ended.
    fn poll_copy(&self, device: u32, ticket: &CopyTicket) -> Result<bool>;

    /// Registers host memory for faster copies.
    ///
    /// # Safety
    /// The memory stays valid until [`unpin`](Self::unpin).
    unsafe fn pin(&self, host: *mut u8, len: usize) -> Result;

    /// Ends a registration.
    fn unpin(&self, host: *mut u8);

    /// Returns the allocation with this address. Fails with -FI_EOPNOTSUPP if it is not known.
    fn allocation_of(&self, _device: u32, _addr: usize) -> Result<DeviceAllocation> {
        Err(Error::OPNOTSUPP)
    }

    /// Returns a name of an allocation for other processes, valid until
    /// [`release_handle`](Self::release_handle). Fails with -FI_EOPNOTSUPP if they cannot map it.
    fn export_handle(&self, _device: u32, _allocation: &DeviceAllocation) -> Result<DeviceHandle> {
        Err(Error::OPNOTSUPP)
    }

    /// Ends the use of a name by processes without a mapping of the allocation.
    fn release_handle(&self, _device: u32, _handle: &DeviceHandle) {}

    /// Maps an allocation of another process, said to have `len` bytes, until
    /// [`unmap`](Self::unmap). Returns its device, and its address and true length in this process.
    /// The handle is another process's: any content is possible. `file` is a copy of the file named
    /// by the handle, of any type. Fails with -FI_EOPNOTSUPP if the allocation cannot be mapped.
    fn map_handle(
        &self,
        _handle: &DeviceHandle,
        _file: Option<BorrowedFd<'_>>,
        _len: usize,
    ) -> Result<(u32, DeviceAllocation)> {
        Err(Error::OPNOTSUPP)
    }

    /// Ends the mapping of an allocation at this address ([`map_handle`](Self::map_handle)).
    fn unmap(&self, _device: u32, _base: usize) {}

    /// Starts a copy of `len` bytes between memory of devices of this interface, into memory of
    /// `device`. The end is found by [`poll_copy`](Self::poll_copy).
    ///
    /// # Safety
    /// The bytes at both addresses stay valid, and unused by anything else, until the end of the
    /// copy.
    unsafe fn start_device_copy(
        &self,
        _device: u32,
        _from: usize,
        _to: usize,
        _len: usize,
    ) -> Result<CopyTicket> {
        Err(Error::OPNOTSUPP)
    }
}

/// True if this process maps allocations of other processes ([`BouncePool::set_shares`]).
static SHARES: AtomicBool = AtomicBool::new(false);

/// Returns true if an endpoint of this process maps allocations of other processes.
pub(crate) fn offers_sharing() -> bool {
    SHARES.load(Ordering::Relaxed)
}

/// Device with the memory of a buffer.
#[derive(Clone, Copy)]
pub struct DeviceLocation {
    /// Interface of the device.
    pub interface: &'static dyn DeviceInterface,
    /// Number of the device.
    pub device: u32,
}

impl Debug for DeviceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.interface.name(), self.device)
    }
}

impl PartialEq for DeviceLocation {
    fn eq(&self, other: &Self) -> bool {
        (self.interface.number(), self.device) == (other.interface.number(), other.device)
    }
}

impl Eq for DeviceLocation {}

/// Interfaces to the devices of this process, in the order of their use.
pub type DeviceInterfaces = &'static [&'static dyn DeviceInterface];

/// Returns the device with an address in its memory; none for ordinary memory. Memory unreadable by
/// the processor is on a lost device, if there is one: its copies fail.
pub fn location_of(interfaces: DeviceInterfaces, addr: usize) -> Option<DeviceLocation> {
    let known = interfaces.iter().find_map(|&interface| {
        interface.device_of(addr).map(|device| DeviceLocation { interface, device })
    });
    if known.is_some() {
        return known;
    }
    let lost = *interfaces.iter().find(|interface| interface.is_lost())?;
    (!is_readable(addr)).then_some(DeviceLocation { interface: lost, device: 0 })
}

/// Returns false if a read of the byte at this address would end the process.
#[cold]
fn is_readable(addr: usize) -> bool {
    let mut byte = 0u8;
    let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: 1 };
    // SAFETY: the kernel writes one byte to `to`, and checks the other address.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    read == 1 || Error::last_os() != Error::FAULT
}

/// Smallest size of a bounce buffer in bytes.
const MIN_SIZE: usize = 4096;

/// Largest size of a bounce buffer in bytes.
pub const MAX_SIZE: usize = 256 << 10;

/// Size of a buffer beyond the limit of its pool, in bytes.
const EXTRA_SIZE: usize = 64 << 10;

/// Number of sizes of bounce buffers.
const CLASSES: usize = (MAX_SIZE / MIN_SIZE).ilog2() as usize + 1;

/// Host memory for the copies of an endpoint.
pub struct BouncePool {
    interfaces: DeviceInterfaces,
    /// Maximum bytes of all buffers, except those of [`take_extra`](Self::take_extra).
    limit: usize,
    /// Maximum duration of a copy; a longer one counts as failed.
    timeout: Duration,
    /// Allocations are shared with other processes of the host.
    shares: AtomicBool,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Unused buffers by their size.
    free: [Vec<PoolBuf>; CLASSES],
    /// Bytes of all buffers.
    allocated: usize,
}

/// Address of a buffer of a pool.
struct PoolBuf(NonNull<u8>);

// SAFETY: the memory is the pool's, not a thread's.
unsafe impl Send for PoolBuf {}

impl Debug for BouncePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.state().allocated, self.limit)
    }
}

/// Returns the size class of a buffer for `len` bytes.
fn class_of(len: usize) -> usize {
    let size = len.clamp(MIN_SIZE, MAX_SIZE).next_power_of_two();
    (size / MIN_SIZE).ilog2() as usize
}

/// Returns the size in bytes of the buffers of a class.
fn size_of_class(class: usize) -> usize {
    MIN_SIZE << class
}

impl BouncePool {
    /// Returns a pool without buffers yet. `limit` is a number of bytes; copies fail after
    /// `timeout`.
    pub fn new(interfaces: DeviceInterfaces, limit: usize, timeout: Duration) -> Arc<Self> {
        let shares = AtomicBool::new(false);
        Arc::new(Self { interfaces, limit, timeout, shares, state: Mutex::default() })
    }

    /// Permits or forbids sharing of allocations with other processes of the host, forbidden at
    /// first.
    pub fn set_shares(&self, shares: bool) {
        self.shares.store(shares, Ordering::Relaxed);
        if shares {
            SHARES.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if allocations are shared with other processes of the host.
    pub fn shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed)
    }

    /// Returns the interfaces to the devices.
    pub fn interfaces(&self) -> DeviceInterfaces {
        self.interfaces
    }

    /// Returns the maximum duration of a copy.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns a buffer for `len` bytes, or for the first of them. Returns none at the limit of the
    /// pool, and without memory.
    pub fn take(self: &Arc<Self>, len: usize) -> Option<BounceBuf> {
        let most = class_of((self.limit / 4).max(MIN_SIZE));
        let class = class_of(len).min(most);
        let mut state = self.state();
        let found = state.free[class].pop().or_else(|| self.add(&mut state, class))?;
        drop(state);
        Some(BounceBuf::new(found.0, size_of_class(class), Some(class), self))
    }

    /// Adds a buffer of this class to the pool, in place of unused ones of other classes if there
    /// is no space.
    fn add(&self, state: &mut PoolState, class: usize) -> Option<PoolBuf> {
        let size = size_of_class(class);
        while state.allocated + size > self.limit {
            let other = (0..CLASSES).rev().find(|other| !state.free[*other].is_empty())?;
            let unused = state.free[other].pop()?;
            state.allocated -= size_of_class(other);
            self.release(unused.0, size_of_class(other));
        }
        let at = map(size)?;
        for interface in self.interfaces {
            // SAFETY: the memory stays mapped until `release` has ended the registration. Copies
            // work without it as well.
            let _ = unsafe { interface.pin(at.as_ptr(), size) };
        }
        state.allocated += size;
        Some(PoolBuf(at))
    }

    /// Returns a small buffer beyond the limit, for a transfer without any. Fails with
    /// -FI_ENOMEM.
    pub fn take_extra(self: &Arc<Self>) -> Result<BounceBuf> {
        let at = map(EXTRA_SIZE).ok_or(Error::NOMEM)?;
        Ok(BounceBuf::new(at, EXTRA_SIZE, None, self))
    }

    /// Returns a buffer for `len` bytes, or for the first of them, if need be beyond the limit. Fails
    /// with -FI_ENOMEM.
    pub fn take_any(self: &Arc<Self>, len: usize) -> Result<BounceBuf> {
        self.take(len).map_or_else(|| self.take_extra(), Ok)
    }

    fn release(&self, at: NonNull<u8>, size: usize) {
        for interface in self.interfaces {
            interface.unpin(at.as_ptr());
        }
        unmap(at, size);
    }
}

impl Drop for BouncePool {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.state());
        for (class, free) in state.free.into_iter().enumerate() {
            free.into_iter().for_each(|unused| self.release(unused.0, size_of_class(class)));
        }
    }
}

/// Maps anonymous memory; none if there is not enough.
fn map(size: usize) -> Option<NonNull<u8>> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) }
}

fn unmap(at: NonNull<u8>, size: usize) {
    // SAFETY: the memory is one mapping of `map`, and nothing refers to it any more.
    unsafe { libc::munmap(at.as_ptr().cast(), size) };
}

/// Copies in progress.
#[derive(Debug)]
pub(crate) struct CopySet {
    copies: Vec<(DeviceLocation, CopyTicket)>,
    /// Maximum duration of a copy; a longer one counts as failed.
    timeout: Duration,
    /// End of the time for the oldest copy in progress.
    deadline: Option<Instant>,
    /// First error of the copies.
    error: Option<Error>,
}

impl CopySet {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { copies: Vec::new(), timeout, deadline: None, error: None }
    }

    /// Adds a started copy.
    pub(crate) fn push(&mut self, location: DeviceLocation, ticket: CopyTicket) {
        self.copies.push((location, ticket));
        self.deadline.get_or_insert_with(|| Instant::now() + self.timeout);
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.copies.is_empty()
    }

    /// [`BounceBuf::poll`].
    fn poll(&mut self) -> Result<bool> {
        let (mut error, mut left) = (self.error, Vec::new());
        for (location, ticket) in self.copies.drain(..) {
            match location.interface.poll_copy(location.device, &ticket) {
                Ok(true) => {}
                Ok(false) => left.push((location, ticket)),
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        self.copies = left;
        self.error = error;
        if self.copies.is_empty() {
            self.deadline = None;
            return self.error.map_or(Ok(true), Err);
        }
        match self.deadline {
            Some(deadline) if Instant::now() > deadline => Err(Error::TIMEDOUT),
            _ => Ok(false),
        }
    }

    /// [`BounceBuf::has_ended`].
    pub(crate) fn has_ended(&mut self, error: &mut Option<Error>) -> bool {
        self.poll().unwrap_or_else(|failed| {
            error.get_or_insert(failed);
            true
        })
    }

    /// Waits until no copy is in progress. Fails as [`poll`](Self::poll).
    pub(crate) fn wait(&mut self) -> Result {
        while !self.poll()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Host memory with copies between it and devices. Dropping it waits for these.
pub struct BounceBuf {
    at: NonNull<u8>,
    size: usize,
    /// Size class in its pool; none for a buffer beyond the pool's limit.
    class: Option<usize>,
    pool: Arc<BouncePool>,
    copies: CopySet,
}

// SAFETY: the memory is the value's own, not a thread's.
unsafe impl Send for BounceBuf {}

impl Debug for BounceBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:?}", self.size, self.copies)
    }
}

impl BounceBuf {
    fn new(at: NonNull<u8>, size: usize, class: Option<usize>, pool: &Arc<BouncePool>) -> Self {
        let copies = CopySet::new(pool.timeout);
        Self { at, size, class, pool: pool.clone(), copies }
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Starts a copy between `len` bytes of the buffer from byte `from` on and the memory of a
    /// device at `addr`. Fails with -FI_EINVAL beyond the end of the buffer, else as
    /// [`DeviceInterface::start_copy`].
    pub fn start_copy(
        &mut self,
        location: DeviceLocation,
        direction: CopyDirection,
        addr: usize,
        from: usize,
        len: usize,
    ) -> Result {
        if from > self.size || len > self.size - from {
            return Err(Error::INVAL);
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the bytes are within the buffer. It is not reused before its copies have ended,
        // and never if they do not end; callers touch no bytes of a copy in progress.
        let ticket = unsafe {
            let host = self.at.as_ptr().add(from);
            location.interface.start_copy(location.device, direction, addr, host, len)
        }?;
        self.copies.push(location, ticket);
        Ok(())
    }

    /// Copies host memory of the application to or from the buffer, like
    /// [`start_copy`](Self::start_copy).
    ///
    /// # Safety
    /// `len` bytes at `addr` are readable, or for [`CopyDirection::ToDevice`] writable.
    pub(crate) unsafe fn copy_host(
        &mut self,
        direction: CopyDirection,
        addr: *mut u8,
        from: usize,
        len: usize,
    ) -> Result {
        if from > self.size || len > self.size - from {
            return Err(Error::INVAL);
        }
        // SAFETY: by this function's contract; the bytes are within the buffer.
        unsafe {
            let host = self.at.as_ptr().add(from);
            match direction {
                CopyDirection::ToHost => host.copy_from_nonoverlapping(addr, len),
                CopyDirection::ToDevice => addr.copy_from_nonoverlapping(host, len),
            }
        }
        Ok(())
    }

    /// Returns true if no copy is in progress. The error of a failed copy is reported once all have
    /// ended: -FI_ETIMEDOUT if one does not end in time, else as
    /// [`DeviceInterface::poll_copy`].
    pub fn poll(&mut self) -> Result<bool> {
        self.copies.poll()
    }

    /// Returns true after the end of all copies. An error of one is stored, unless `error` has one.
    pub fn has_ended(&mut self, error: &mut Option<Error>) -> bool {
        self.copies.has_ended(error)
    }

    /// Waits until no copy is in progress. Fails as [`poll`](Self::poll).
    pub fn wait(&mut self) -> Result {
        self.copies.wait()
    }

    /// Returns the bytes of the buffer, except those of copies in progress.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is mapped and initialized, and no copy writes to the bytes used by
        // callers.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.size) }
    }

    /// Returns the bytes of the buffer for writing, except those of copies in progress.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.size) }
    }
}

impl Drop for BounceBuf {
    fn drop(&mut self) {
        let _ = self.wait();
        if self.copies.is_busy() {
            // The device may still use the memory, so it is left to it.
            return;
        }
        match self.class {
            Some(class) => self.pool.state().free[class].push(PoolBuf(self.at)),
            None => unmap(self.at, self.size),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
