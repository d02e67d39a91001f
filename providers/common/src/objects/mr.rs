//! Memory regions (fi_mr(3)) as a table of keys, for providers without registering hardware.
mod devices;
mod known_ranges;

use self::known_ranges::{DeviceRegion, KnownRanges};
use crate::abi::{
    self, FI_CLASS_CNTR, FI_CLASS_EP, FI_CLASS_MR, FI_KEY_NOTAVAIL, c_enum, fi_hmem_iface,
    fi_mr_attr, fi_mr_dmabuf, fi_mr_map_raw, fi_mr_raw_attr, fi_ops, fid, fid_mr,
};
use crate::atomic::{AtomicKind, Operation};
use crate::boundary::ffi_guard_if_memory;
use crate::buf::{GatherList, IoVecs, ScatterList};
use crate::cntr::Cntr;
use crate::device::{DeviceInterfaces, DeviceLocation};
use crate::dmabuf::{DmabufRange, MappedDmabuf, is_mapped_file};
use crate::error::{Error, Result};
use crate::fid::{FidObject, class_of};
use crate::object::{Base, Object, Parent, fid_ops};
use crate::operation::{RemoteSegment, RemoteSegments};
use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Maximum number of segments of a region of any provider (mr_iov_limit).
pub const MAX_REGION_SEGMENTS: usize = 8;

/// One registered region.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Region {
    /// Access rights of the region: FI_SEND, FI_RECV, FI_READ, FI_REMOTE_WRITE …
    access: u64,
    first: RegionSegment,
    /// The segments behind the first.
    more: Box<[RegionSegment]>,
}

/// A segment of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RegionSegment {
    memory: LocalMemory,
    /// The address remote peers use for the first byte: its own with FI_MR_VIRT_ADDR, else the
    /// offset the application gave and the bytes of the segments before it.
    remote_base: u64,
}

/// Memory of this process in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LocalMemory {
    /// Address of the first byte.
    base: usize,
    /// Length in bytes; `base + len` does not overflow.
    len: usize,
}

impl Region {
    /// Returns the region's memory at a remote address: up to `len` bytes within the segment
    /// containing the address. Fails with -FI_EACCES if no segment contains it.
    #[inline]
    fn piece(&self, addr: u64, len: u64) -> Result<LocalMemory> {
        let piece_in = |segment: &RegionSegment| {
            let offset = addr.checked_sub(segment.remote_base)?;
            let space = (segment.memory.len as u64).checked_sub(offset)?;
            // No number is above the segment's length, which is a usize.
            let base = segment.memory.base.wrapping_add(offset as usize);
            (space > 0 || len == 0).then_some(LocalMemory { base, len: space.min(len) as usize })
        };
        let piece = piece_in(&self.first).or_else(|| self.more.iter().find_map(piece_in));
        piece.ok_or(Error::ACCES)
    }
}

/// Memory of a remote segment, piece by piece. If the segment exceeds the region, one of the pieces
/// is an error, and the last.
struct RegionPieces<'a> {
    region: &'a Region,
    addr: u64,
    /// Remaining bytes of the remote segment; `None` at its end.
    left: Option<u64>,
}

impl Iterator for RegionPieces<'_> {
    type Item = Result<LocalMemory>;

    #[inline]
    fn next(&mut self) -> Option<Result<LocalMemory>> {
        let left = self.left.take()?;
        let piece = self.region.piece(self.addr, left);
        if let Ok(LocalMemory { len, .. }) = piece {
            // Each piece ends where its segment does, or the place: there are no more than segments.
            self.addr = self.addr.wrapping_add(len as u64);
            self.left = Some(left - len as u64).filter(|left| *left > 0);
        }
        Some(piece)
    }
}

#[derive(Default)]
struct RegionKeys {
    regions: HashMap<u64, Region>,
    /// Those of `regions` with memory of devices. There they grant peers no right, so every direct
    /// access fails.
    devices: HashMap<u64, DeviceRegion>,
    /// Counters of peers' writes, by the key of the region (fi_mr_bind).
    cntrs: HashMap<u64, Arc<Cntr>>,
    /// Counts of peers' writes maintained by the backing, by key, and the numbers passed on to the
    /// counters.
    counts: HashMap<u64, (Count, u64)>,
    /// Number of keys drawn.
    drawn: u64,
    /// Hash state making keys unpredictable for peers.
    secret: RandomState,
}

impl RegionKeys {
    /// Returns an unused key.
    fn draw(&mut self) -> u64 {
        loop {
            self.drawn += 1;
            let key = self.secret.hash_one(self.drawn);
            if key != FI_KEY_NOTAVAIL && !self.regions.contains_key(&key) {
                return key;
            }
        }
    }
}

impl std::fmt::Debug for RegionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} regions, {} counted", self.regions.len(), self.cntrs.len())
    }
}

/// Registration request of an application (struct fi_mr_attr), with one segment.
#[derive(Clone, Copy, Debug)]
pub struct RegionRequest {
    /// The virtual address of the first byte.
    pub base: usize,
    /// Length in bytes; `base + len` does not overflow.
    pub len: usize,
    /// The kind of memory: of the process, a dma-buf file, or a device.
    pub kind: MemoryKind,
    /// Device with the memory, if the interfaces of `memory::hmem` know it.
    pub location: Option<DeviceLocation>,
    /// Access rights of the memory: FI_SEND, FI_RECV, FI_READ, FI_REMOTE_WRITE …
    pub access: u64,
    /// The address of the first byte for peers, unless they use the virtual one.
    pub offset: u64,
    /// Key requested by the application, unless the provider chooses keys (FI_MR_PROV_KEY).
    pub key: u64,
}

/// Kind of memory to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Ordinary memory of the process.
    System,
    /// Memory of a dma-buf file (FI_MR_DMABUF), possibly without an address for the processor.
    Dmabuf(DmabufRange),
    /// Memory of a device, at an address meaningful for this interface.
    Device(c_enum<fi_hmem_iface>),
}

/// Additional registration of regions for access by peers: with hardware, or with the core provider
/// of a utility provider.
pub trait Backing: Send + Sync + std::fmt::Debug {
    /// Registers memory, as fi_mr_regattr(3). Returns the key used by peers, and a value ending the
    /// registration on drop.
    ///
    /// # Safety
    /// The memory stays valid until the returned value is dropped.
    unsafe fn register(&self, wanted: &RegionRequest) -> Result<(u64, Box<dyn RegionBacking>)>;

    /// Returns true if applications may register device memory (FI_HMEM). Otherwise
    /// [`Backing::register`] gets only [`MemoryKind::System`].
    fn hmem(&self) -> bool {
        false
    }
}

/// Function returning the number of completed writes of peers to a region.
pub type Count = Box<dyn Fn() -> u64 + Send + Sync>;

/// Registration of a region with a [`Backing`], ended on drop.
pub trait RegionBacking: Send + Sync {
    /// Starts counting peers' writes to the region.
    fn count(&self) -> Result<Count>;
    /// Returns the descriptor of the region in transfers (fi_mr_desc(3)), or null if they need
    /// none.
    fn desc(&self) -> *mut c_void {
        std::ptr::null_mut()
    }
}

/// User of regions notified before their close: the engine of a domain, possibly still sending
/// their bytes to peers.
pub trait RegionUser: Send + Sync + std::fmt::Debug {
    /// Called before the region of this key is closed: the application has its memory back when
    /// this returns.
    fn closing(&self, key: u64);
}

/// Returns true if regions with these access rights are accessible to peers, and so need a key.
pub fn grants_peers(access: u64) -> bool {
    access & (abi::FI_REMOTE_READ | abi::FI_REMOTE_WRITE) != 0
}

/// Backing of a region without the need for one.
#[derive(Debug)]
pub struct Unbacked;

impl RegionBacking for Unbacked {
    fn count(&self) -> Result<Count> {
        Err(Error::INVAL)
    }
}

/// The regions of a domain.
#[derive(Debug)]
pub struct MrTable {
    mode: c_int,
    /// At least one region has a counter.
    counted: AtomicBool,
    backing: Option<Arc<dyn Backing>>,
    region_user: OnceLock<Weak<dyn RegionUser>>,
    /// Maximum number of segments of a region; 1 with a backing.
    segments: usize,
    /// Interfaces to devices with memory for regions and buffers (FI_HMEM).
    interfaces: Option<DeviceInterfaces>,
    known: Mutex<KnownRanges>,
    keys: Mutex<RegionKeys>,
}

impl MrTable {
    /// Returns the region table of a domain with this `mr_mode`.
    ///
    /// FI_MR_BASIC is equivalent to keys chosen by the provider and virtual addresses for peers.
    /// FI_MR_SCALABLE requires nothing.
    pub fn new(mr_mode: c_int) -> Self {
        let mode = match mr_mode {
            abi::FI_MR_BASIC => abi::FI_MR_VIRT_ADDR | abi::FI_MR_ALLOCATED | abi::FI_MR_PROV_KEY,
            abi::FI_MR_SCALABLE => 0,
            mode => mode,
        };
        let (counted, region_user) = (AtomicBool::new(false), OnceLock::new());
        let (known, keys) = (Mutex::default(), Mutex::default());
        let (backing, interfaces) = (None, None);
        Self { mode, counted, backing, region_user, segments: 1, interfaces, known, keys }
    }

    /// A table of the same domain's without regions.
    pub(crate) fn like(&self) -> Self {
        let (backing, segments, interfaces) =
            (self.backing.clone(), self.segments, self.interfaces);
        Self { backing, segments, interfaces, ..Self::new(self.mode) }
    }

    /// Sets the number of segments of a region offered by the provider (mr_iov_limit), at most
    /// [`MAX_REGION_SEGMENTS`].
    #[must_use]
    pub fn with_segments(self, most: usize) -> Self {
        Self { segments: most.min(MAX_REGION_SEGMENTS), ..self }
    }

    /// Sets the observer called before a region is closed.
    pub fn set_region_user(&self, region_user: Weak<dyn RegionUser>) {
        let _ = self.region_user.set(region_user);
    }

    /// Returns a table with regions also registered with `backing`; it chooses their keys.
    pub fn backed(mr_mode: c_int, backing: Arc<dyn Backing>) -> Self {
        Self { backing: Some(backing), ..Self::new(mr_mode) }
    }

    /// Returns true if regions may be of device memory (FI_HMEM).
    pub(crate) fn hmem(&self) -> bool {
        self.interfaces.is_some() || self.backing.as_ref().is_some_and(|backing| backing.hmem())
    }

    fn keys(&self) -> MutexGuard<'_, RegionKeys> {
        self.keys.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Registers a region and returns its key: FI_KEY_NOTAVAIL if the region grants peers no right.
    /// Fails with -FI_ENOKEY if the key chosen by the application is in use.
    pub fn insert(
        &self,
        base: usize,
        len: usize,
        access: u64,
        offset: u64,
        wanted: u64,
    ) -> Result<u64> {
        self.insert_segments(&[LocalMemory { base, len }], &[], access, offset, wanted)
    }

    /// As [`insert`](Self::insert), of a region of several segments. `locations` has those of the
    /// segments, if any is in memory of a device.
    fn insert_segments(
        &self,
        memory: &[LocalMemory],
        locations: &[Option<DeviceLocation>],
        access: u64,
        offset: u64,
        wanted: u64,
    ) -> Result<u64> {
        if !grants_peers(access) {
            // Peers cannot name such a region, so a key that was requested for it stays free.
            return Ok(FI_KEY_NOTAVAIL);
        }
        let device = self.device_region(memory, locations, access);
        let region = self.region(memory, if device.is_some() { 0 } else { access }, offset)?;
        let mut keys = self.keys();
        let key = if self.mode & abi::FI_MR_PROV_KEY != 0 { keys.draw() } else { wanted };
        if keys.regions.contains_key(&key) {
            return Err(Error::NOKEY);
        }
        keys.regions.insert(key, region);
        if let Some(device) = device {
            keys.devices.insert(key, device);
        }
        Ok(key)
    }

    /// Returns the remote address of the first byte of a segment at `offset` in a region.
    fn remote_base(&self, memory: &LocalMemory, offset: u64) -> u64 {
        if self.mode & abi::FI_MR_VIRT_ADDR != 0 { memory.base as u64 } else { offset }
    }

    /// Returns the region of these segments, at least one. Fails with -FI_EINVAL if its last bytes
    /// have no remote address.
    fn region(&self, memory: &[LocalMemory], access: u64, offset: u64) -> Result<Region> {
        let (first, more) = memory.split_first().ok_or(Error::INVAL)?;
        let segment = |memory: &LocalMemory, offset| RegionSegment {
            memory: *memory,
            remote_base: self.remote_base(memory, offset),
        };
        let mut begin = offset;
        let mut behind = Vec::with_capacity(more.len());
        for (before, memory_of) in memory.iter().zip(more) {
            begin = begin.checked_add(before.len as u64).ok_or(Error::INVAL)?;
            behind.push(segment(memory_of, begin));
        }
        Ok(Region { access, first: segment(first, offset), more: behind.into() })
    }

    /// Removes the region of a key.
    pub fn remove(&self, key: u64) {
        let mut keys = self.keys();
        keys.regions.remove(&key);
        keys.devices.remove(&key);
        drop(keys);
        self.uncount(key);
    }

    /// Has a counter count peers' writes to the region.
    fn count(&self, key: u64, cntr: Arc<Cntr>) -> Result {
        let mut keys = self.keys();
        if !keys.regions.contains_key(&key) || keys.cntrs.contains_key(&key) {
            return Err(Error::INVAL);
        }
        cntr.add_user();
        keys.cntrs.insert(key, cntr);
        self.counted.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the counting of peers' writes to a region.
    fn uncount(&self, key: u64) {
        let mut keys = self.keys();
        keys.counts.remove(&key);
        if let Some(cntr) = keys.cntrs.remove(&key) {
            cntr.remove_user();
        }
    }

    /// Returns true if regions have counters for writes ([`pass_counts_on`](Self::pass_counts_on)).
    #[inline(always)]
    pub fn has_counters(&self) -> bool {
        self.counted.load(Ordering::Acquire)
    }

    /// Adds to the regions' counters the writes counted by the backing since the last call.
    #[inline(always)]
    pub fn pass_counts_on(&self) {
        if self.counted.load(Ordering::Acquire) {
            self.pass_on();
        }
    }

    #[cold]
    fn pass_on(&self) {
        let keys = &mut *self.keys();
        for (key, (count, passed)) in &mut keys.counts {
            let now = count();
            if let Some(cntr) = keys.cntrs.get(key) {
                (*passed..now).for_each(|_| cntr.completed(0));
            }
            *passed = now;
        }
    }

    /// Counts a peer's completed write to `remote`.
    pub fn written(&self, remote: &RemoteSegments) {
        if !self.counted.load(Ordering::Acquire) {
            return;
        }
        let keys = self.keys();
        for (index, segment) in remote.as_slice().iter().enumerate() {
            // A write counts once for a region, however many of its places are in the region.
            let again = remote.as_slice()[..index].iter().any(|other| other.key == segment.key);
            if let Some(cntr) = keys.cntrs.get(&segment.key).filter(|_| !again) {
                cntr.completed(segment.len as usize);
            }
        }
    }

    /// Opens the table for a remote peer's access. No region can be closed while
    /// it is open, so keep it short.
    pub fn open(&self) -> Opened<'_> {
        Opened(self.keys())
    }
}

/// Table locked for access to the memory of its regions.
///
/// The application keeps the memory of a region valid until fi_close of the region returns
/// (fi_mr(3)), and fi_close waits for the drop of this value. Every `unsafe` here relies on it.
/// Concurrent accesses of the application to the memory are its own responsibility, as with any
/// remote access: bytes are only copied.
#[derive(Debug)]
pub struct Opened<'a>(MutexGuard<'a, RegionKeys>);

impl Opened<'_> {
    /// Returns the memory of a remote segment. Fails with -FI_EINVAL for an unknown key, and with
    /// -FI_EACCES for a missing right.
    #[inline]
    fn pieces(&self, segment: &RemoteSegment, right: u64) -> Result<RegionPieces<'_>> {
        let region = self.0.regions.get(&segment.key).ok_or(Error::INVAL)?;
        if region.access & right != right {
            return Err(Error::ACCES);
        }
        Ok(RegionPieces { region, addr: segment.addr, left: Some(segment.len) })
    }

    /// Checks a peer's right to all of `remote`. Fails with -FI_EINVAL for an unknown key, and with
    /// -FI_EACCES for a range or right not granted.
    pub fn check(&self, remote: &RemoteSegments, right: u64) -> Result {
        for segment in remote.as_slice() {
            self.pieces(segment, right)?.try_for_each(|piece| piece.map(|_| ()))?;
        }
        Ok(())
    }

    /// Calls `each` with the memory of bytes `from..from + max` of `remote`.
    fn each(
        &self,
        remote: &RemoteSegments,
        right: u64,
        mut from: usize,
        mut max: usize,
        mut each: impl FnMut(*mut u8, usize),
    ) -> Result {
        for segment in remote.as_slice() {
            for piece in self.pieces(segment, right)? {
                let LocalMemory { base, len } = piece?;
                if from >= len {
                    from -= len;
                    continue;
                }
                let part = (len - from).min(max);
                if part == 0 {
                    return Ok(());
                }
                each((base + from) as *mut u8, part);
                max -= part;
                from = 0;
            }
        }
        Ok(())
    }

    /// Copies `bytes` to `remote`, beginning at byte `at` of these.
    pub fn write(&self, remote: &RemoteSegments, right: u64, at: usize, bytes: &[u8]) -> Result {
        let mut done = 0;
        self.each(remote, right, at, bytes.len(), |to, len| {
            // SAFETY: see the type: `len` bytes at `to` are valid; `bytes` is
            // ours and has them, since the parts add up to its length at most.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(done), to, len) };
            done += len;
        })
    }

    /// Fills `to` with bytes of `remote`, beginning at byte `at` of these.
    pub fn read(&self, remote: &RemoteSegments, right: u64, at: usize, to: &mut [u8]) -> Result {
        let mut done = 0;
        self.each(remote, right, at, to.len(), |from, len| {
            // SAFETY: see the type: `len` bytes at `from` are valid; `to` is ours and has
            // room for them, since the parts add up to its length at most.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(done), len) };
            done += len;
        })
    }

    /// Makes data written to `remote` durable, if they are in persistent memory
    /// (FI_COMMIT_COMPLETE, FI_RMA_PMEM).
    pub fn commit(&self, remote: &RemoteSegments, right: u64) -> Result {
        self.each(remote, right, 0, usize::MAX, |base, len| {
            // SAFETY: see the type: `len` bytes at `base` are valid.
            unsafe { crate::sys::persist(base, len) };
        })
    }

    /// Applies an atomic operation to the elements in `remote`, in order. `source` and `compare`
    /// are the operands, as far as the operation has them; `fetched` receives the previous values
    /// if it fetches.
    ///
    /// An error changes nothing. Fails with -FI_EINVAL for an unknown key, if segments and operands
    /// are not the same number of whole elements, and if an element crosses segments of its region.
    /// Fails with -FI_EACCES for a range or right not granted.
    pub fn atomic(
        &self,
        operation: Operation,
        remote: &RemoteSegments,
        source: &[u8],
        compare: &[u8],
        fetched: &mut [u8],
    ) -> Result {
        let (total, size) = (remote.total()?, operation.size());
        let fits = |has: bool, len: usize| len == if has { total } else { 0 };
        if !fits(operation.has_source(), source.len())
            || !fits(operation.kind() == AtomicKind::Compare, compare.len())
            || !fits(operation.fetches(), fetched.len())
            || remote.as_slice().iter().any(|segment| segment.len % size as u64 != 0)
        {
            return Err(Error::INVAL);
        }
        let right = operation.rights();
        self.check(remote, right)?;
        let mut whole = true;
        self.each(remote, right, 0, total, |_, len| whole &= len % size == 0)?;
        if !whole {
            return Err(Error::INVAL);
        }
        let mut done = 0;
        self.each(remote, right, 0, total, |base, len| {
            // Each operand has as many bytes as all places together, or none.
            let part = |bytes: usize| done.min(bytes)..(done + len).min(bytes);
            let (from, with) = (part(source.len()), part(compare.len()));
            let to = part(fetched.len());
            // SAFETY: see the type: `len` bytes at `base` are valid. Other atomic
            // operations on them wait for the table; what the application does
            // that is not atomic is its own affair (fi_atomic(3)).
            unsafe {
                operation.apply(base, len, &source[from], &compare[with], &mut fetched[to]);
            }
            done += len;
        })
    }

    /// Appends bytes `from..from + max` of `remote` to a gather list for a send and returns their
    /// number.
    pub fn gather<'a>(
        &'a self,
        remote: &RemoteSegments,
        right: u64,
        from: usize,
        max: usize,
        list: &mut GatherList<'a>,
    ) -> Result<usize> {
        self.append(remote, right, from, max, list)
    }

    /// Appends bytes `from..from + max` of `remote` to a scatter list for a receive and returns
    /// their number.
    pub fn scatter<'a>(
        &'a self,
        remote: &RemoteSegments,
        right: u64,
        from: usize,
        max: usize,
        list: &mut ScatterList<'a>,
    ) -> Result<usize> {
        self.append(remote, right, from, max, list)
    }

    fn append<M>(
        &self,
        remote: &RemoteSegments,
        right: u64,
        from: usize,
        max: usize,
        list: &mut IoVecs<M>,
    ) -> Result<usize> {
        let mut total = 0;
        self.each(remote, right, from, max, |base, len| {
            if list.push_raw(base, len) {
                total += len;
            }
        })?;
        Ok(total)
    }
}

/// A memory region, as C holds it.
#[repr(C)]
pub struct Mr {
    c: fid_mr,
    table: Arc<MrTable>,
    /// Registration with the backing, ended on drop.
    backing: Option<Box<dyn RegionBacking>>,
    /// The address remote peers use for the first byte.
    remote_base: u64,
    /// Names of its ranges in a domain with devices.
    ranges: Vec<(usize, u64)>,
    /// Its memory, if it is that of a mapped file.
    file: Option<MappedDmabuf>,
    base: Base,
}

// SAFETY: nothing of the region's object changes after `open`.
unsafe impl Sync for Mr {}
// SAFETY: nothing of it changes after `open`.
unsafe impl Send for Mr {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_mr> for Mr {}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mr(key {})", self.c.key)
    }
}

/// Returns the memory described by `attr`, and its segments if there are up to `most`; `hmem`: the
/// domain has FI_HMEM.
///
/// # Safety
/// `attr.mr_iov` points to `attr.iov_count` iovecs, or with FI_MR_DMABUF to a fi_mr_dmabuf; either
/// may be null.
unsafe fn wanted(
    attr: &fi_mr_attr,
    flags: u64,
    hmem: bool,
    most: usize,
) -> Result<(RegionRequest, WantedSegments)> {
    const ACCESS: u64 = abi::FI_MSG
        | abi::FI_RMA
        | abi::FI_TAGGED
        | abi::FI_ATOMIC
        | abi::FI_COLLECTIVE
        | abi::FI_SEND
        | abi::FI_RECV
        | abi::FI_READ
        | abi::FI_WRITE
        | abi::FI_REMOTE_READ
        | abi::FI_REMOTE_WRITE;
    let dmabuf = flags & abi::FI_MR_DMABUF != 0;
    // Unknown flags and access bits ask for nothing, but with FI_MR_DMABUF `mr_iov` points to
    // another structure.
    if dmabuf && !hmem {
        return Err(Error::BADFLAGS);
    }
    if attr.mr_iov.is_null() {
        return Err(Error::INVAL);
    }
    let mut segments = WantedSegments::default();
    let kind = if dmabuf {
        // SAFETY: by this function's contract.
        let fi_mr_dmabuf { fd, offset, len, base_addr } = unsafe { *attr.mr_iov.cast() };
        let start = usize::try_from(offset).map_err(|_| Error::INVAL)?;
        let base_addr = base_addr as usize;
        segments.push(base_addr.checked_add(start).ok_or(Error::INVAL)?, len)?;
        MemoryKind::Dmabuf(DmabufRange { fd, offset, len, base_addr })
    } else {
        if attr.iov_count == 0 || attr.iov_count > most {
            return Err(Error::INVAL);
        }
        for index in 0..attr.iov_count {
            // SAFETY: by this function's contract.
            let iov = unsafe { *attr.mr_iov.add(index) };
            segments.push(iov.iov_base as usize, iov.iov_len)?;
        }
        // Memory that a device's interface allocated on the host is treated as ordinary memory.
        let host = !hmem || flags & abi::FI_HMEM_HOST_ALLOC != 0;
        match attr.iface {
            iface if host || iface == fi_hmem_iface::FI_HMEM_SYSTEM => MemoryKind::System,
            iface => MemoryKind::Device(iface),
        }
    };
    let LocalMemory { base, len } = segments.all[0];
    let (access, offset, key) = (attr.access & ACCESS, attr.offset, attr.requested_key);
    let location = None;
    Ok((RegionRequest { base, len, kind, location, access, offset, key }, segments))
}

/// Segments of a region to register.
#[derive(Default)]
struct WantedSegments {
    all: [LocalMemory; MAX_REGION_SEGMENTS],
    count: usize,
}

impl WantedSegments {
    /// Adds a segment; -FI_EINVAL if it goes beyond the last address, or is one too many.
    fn push(&mut self, base: usize, len: usize) -> Result {
        base.checked_add(len).ok_or(Error::INVAL)?;
        *self.all.get_mut(self.count).ok_or(Error::INVAL)? = LocalMemory { base, len };
        self.count += 1;
        Ok(())
    }

    fn as_slice(&self) -> &[LocalMemory] {
        &self.all[..self.count]
    }
}

impl Mr {
    /// Registers the memory described by `attr` (fi_mr_regattr). `attr.iface` is read only with
    /// FI_HMEM.
    ///
    /// # Safety
    /// `attr.mr_iov` points to `attr.iov_count` iovecs, or with FI_MR_DMABUF to a fi_mr_dmabuf;
    /// either may be null.
    pub unsafe fn open(
        table: Arc<MrTable>,
        domain: Parent,
        attr: &fi_mr_attr,
        flags: u64,
    ) -> Result<Arc<Self>> {
        // SAFETY: by this function's contract.
        let (wanted, segments) = unsafe { wanted(attr, flags, table.hmem(), table.segments) }?;
        let RegionRequest { access, offset, .. } = wanted;
        let memory = segments.as_slice();
        let remote_base = table.remote_base(memory.first().ok_or(Error::INVAL)?, offset);
        let (locations, file) = table.checked_locations(memory, wanted.kind, access)?;
        let (key, backing) = match &table.backing {
            None => (table.insert_segments(memory, &locations, access, offset, wanted.key)?, None),
            Some(backing) => {
                let wanted = RegionRequest { location: locations[0], ..wanted };
                // SAFETY: the application keeps the memory valid until it has closed
                // the region (fi_mr(3)), which drops what comes back here.
                let (key, guard) = unsafe { backing.register(&wanted) }?;
                if key != FI_KEY_NOTAVAIL {
                    table.insert_backed(memory, &locations, access, offset, key)?;
                }
                (key, Some(guard))
            }
        };
        let mut ranges = Vec::new();
        if table.interfaces.is_some() {
            let mut known = table.known();
            for (memory, location) in memory.iter().zip(&locations) {
                // A mapped file is found by its address, if it has one.
                let location = location.filter(|location| !is_mapped_file(location));
                ranges.extend(
                    location.map(|location| known.insert(memory.base, memory.len, location)),
                );
            }
        }
        Ok(Arc::new(Self {
            ranges,
            file,
            c: fid_mr {
                fid: Self::fid(attr.context),
                mem_desc: backing.as_ref().map_or(std::ptr::null_mut(), |backing| backing.desc()),
                key,
            },
            table,
            backing,
            remote_base,
            base: Base::new(domain),
        }))
    }
}

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), ..fid_ops::<Mr, _>() };

impl Object<fid_mr> for Mr {
    const CLASS: c_int = FI_CLASS_MR;
    const CLOSE: &'static str = "fi_close(mr)";
    const CONTROL: &'static str = "fi_control(mr)";

    fn table() -> &'static fi_ops {
        &FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }

    fn closed(this: &mut Arc<Self>, _fid: *mut fid) {
        let key = this.c.key;
        let region_user = this.table.region_user.get().filter(|_| key != FI_KEY_NOTAVAIL);
        if let Some(region_user) = region_user.and_then(Weak::upgrade) {
            region_user.closing(key);
        }
        this.table.remove(key);
        for range in &this.ranges {
            this.table.known().remove(range);
        }
        // The application held the only reference.
        drop(Arc::get_mut(this).map(|mr| (mr.backing.take(), mr.file.take())));
    }

    unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result {
        match command {
            // A region is enabled from the start, and cached nowhere, so that it is never stale.
            abi::FI_ENABLE | abi::FI_REFRESH => Ok(()),
            abi::FI_GET_RAW_MR => {
                // SAFETY: the command passes a struct fi_mr_raw_attr, whose pointers are null or of what
                // they are named for (fi_mr(3)).
                unsafe { self.get_raw(arg.cast::<fi_mr_raw_attr>().as_ref().ok_or(Error::INVAL)?) }
            }
            _ => Err(Error::NOSYS),
        }
    }
}

impl Mr {
    /// fi_mr_raw_attr: the raw key is the key.
    ///
    /// # Safety
    /// `attr.raw_key` has `*attr.key_size` bytes; each pointer is null or valid for its purpose.
    unsafe fn get_raw(&self, attr: &fi_mr_raw_attr) -> Result {
        if attr.flags != 0 {
            return Err(Error::BADFLAGS);
        }
        if self.c.key == FI_KEY_NOTAVAIL {
            return Err(Error::NOKEY);
        }
        // SAFETY: by this function's contract.
        unsafe {
            let space = attr.key_size.as_mut().ok_or(Error::INVAL)?;
            let key = self.c.key.to_ne_bytes();
            if std::mem::replace(space, key.len()) < key.len() {
                return Err(Error::TOOSMALL);
            }
            if attr.raw_key.is_null() || attr.base_addr.is_null() {
                return Err(Error::INVAL);
            }
            attr.raw_key.copy_from_nonoverlapping(key.as_ptr(), key.len());
            attr.base_addr.write(self.remote_base);
        }
        Ok(())
    }
}

/// fi_mr_map_raw: the key of a peer's raw key.
///
/// # Safety
/// `map.raw_key` has `map.key_size` bytes, and `map.key` is of a number; either may be null.
pub(crate) unsafe fn map_raw(map: &fi_mr_map_raw) -> Result {
    if map.flags != 0 {
        return Err(Error::BADFLAGS);
    }
    if map.raw_key.is_null() || map.key.is_null() || map.key_size != size_of::<u64>() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract; the bytes may be anywhere.
    unsafe { map.key.write(map.raw_key.cast::<u64>().read_unaligned()) };
    Ok(())
}

// SAFETY of the entry points below: each is reachable only through the ops table
// of a region that `open` made and `close` has not taken back, or with null.

unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    ffi_guard_if_memory("fi_mr_bind", || {
        // SAFETY: the application binds an object it has open, or null.
        match unsafe { class_of(bfid) }.map(|class| class as c_int) {
            _ if fid.is_null() => Err(Error::INVAL),
            None => Err(Error::INVAL),
            // Every endpoint of the domain can use a region, so that binding it to one has no
            // effect.
            Some(FI_CLASS_EP) => Ok(()),
            Some(FI_CLASS_CNTR) if flags & !abi::FI_REMOTE_WRITE == 0 => {
                // SAFETY: see above; the class says what it is.
                let (mr, cntr) = unsafe { (Mr::from_c(fid.cast())?, Cntr::from_fid(bfid)?) };
                mr.table.count(mr.c.key, cntr)?;
                if let Some(backing) = &mr.backing {
                    let count = backing.count().inspect_err(|_| mr.table.uncount(mr.c.key))?;
                    mr.table.keys().counts.insert(mr.c.key, (count, 0));
                }
                Ok(())
            }
            // A region has no completion queue of its own, and only peers' writes can be
            // counted.
            Some(_) => Err(Error::NOSYS),
        }
    })
}

#[cfg(test)]
mod tests;
