//! Core provider of a utility provider.
//!
//! A utility provider such as `ofi_rxm` finds its core provider with the exported fi_getinfo and
//! opens it with fi_fabric. From there on it uses the same interface as any application: the ops
//! tables of the core provider's objects. So it works over any core provider, of this library or a
//! third-party plug-in, and inside any libfabric.
//!
//! This module calls these tables, so its users are safe code. Objects close on drop, in the right
//! order, because each holds its parent. Memory possibly still accessed by the core provider is
//! held by the completion queue ([`CoreCq`]) until its completion, or until the endpoint is closed.
mod cm;
mod dgram;
mod owner;
mod queue;
mod rail;
mod regions;
mod transfer;
mod wait;

pub use cm::{CoreEq, CoreEvent, CorePassiveEp};
pub use dgram::{CoreAv, CoreDgram, DgramMeans};
pub use owner::{ArrivingMessage, QueueOwner};
pub use queue::{ArrivedPacket, CoreCq, CoreEndpoint, CoreEntry, Done, Entries, SharedRx};
pub use rail::{CoreRail, CoreWaiter};
pub use regions::LinkedRegions;
pub use transfer::PeerTransfers;
pub use wait::CoreWaitSet;

use crate::abi::{
    self, fi_cntr_attr, fi_info, fi_mr_attr, fi_ops, fi_rx_attr, fid, fid_cntr, fid_domain, fid_ep,
    fid_fabric, fid_mr,
};
use crate::boundary::CancelDisabled;
use crate::buf::{RecvBuf, SendBuf};
use crate::error::{Error, Result};
use crate::info::{
    ApiLevel, CORE_PROV_ONLY, GETINFO_HIDDEN, GETINFO_INTERNAL, InfoBuf, InfoChain, InfoQuery,
    InfoRef, dup_raw,
};
use crate::lock::Level;
use crate::mr::{Backing, Count, RegionBacking, RegionRequest, Unbacked, grants_peers};
use crate::stack::on_own_stack;
use core::ffi::{CStr, c_int, c_void};
use libc::iovec;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Option of connected endpoints (fi_setopt(3), 8 bytes): the source reported by the completions of
/// their receives, as returned by fi_cq_readfrom(3). Setting it also makes receives without a tag
/// accept tagged messages, as sent by the `tcp` of 1.17 for its `ofi_rxm`. They are reported with
/// FI_TAGGED and the tag.
pub const OPT_SOURCE: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f01;

/// Option of datagram endpoints (fi_setopt(3)): setting it sends datagrams of one length with one
/// system call; the last one may be shorter. The value is a [`DatagramBatch`] followed by their
/// bytes, reusable at the return. -FI_EAGAIN: none was sent. Any other error: send them one by one.
pub const OPT_SEND_MANY: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f02;

/// Option of datagram endpoints (fi_setopt(3), 8 bytes), to be set before a receive is posted:
/// receives accept several consecutive datagrams of one sender, if they arrive together. Their
/// length is the CQ data of the completion, 0 for a single one. The value is the size in bytes of
/// the kernel's receive buffer for the endpoint.
pub const OPT_RECEIVE_MANY: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f03;

/// Option of datagram endpoints with FI_SOURCE (fi_setopt(3), without a value): the address of a
/// sender in no address vector is stored in the last [`UNKNOWN_SOURCE_LEN`] bytes of the receive's
/// buffer, if the datagrams leave them free. The completion's source is then FI_ADDR_NOTAVAIL.
pub const OPT_UNKNOWN_SOURCES: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f04;

/// Option of connected endpoints (fi_getopt(3), 1 byte): true if the peer is known to have ended
/// the connection, even with data left to receive. While unexpected messages fill their buffer
/// space, no event reports the end.
pub const OPT_PEER_ENDED: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f05;

/// Option of datagram endpoints. Setting it (fi_setopt(3), without a value) makes the endpoint
/// record the destinations of datagrams to closed ports, as reported by their hosts. Reading it
/// (fi_getopt(3), [`UNKNOWN_SOURCE_LEN`] bytes) takes the oldest record, or fails with -FI_EAGAIN
/// if there is none. A forged packet can create a record.
pub const OPT_ICMP_ERRORS: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f06;

/// Bytes of a sender's address with [`OPT_UNKNOWN_SOURCES`], padded with zeros.
pub const UNKNOWN_SOURCE_LEN: usize = crate::addr::MAX_LEN;

/// Header of the datagrams in the value of [`OPT_SEND_MANY`].
#[derive(Clone, Copy, Debug)]
pub struct DatagramBatch {
    /// Destination of the datagrams.
    pub to: abi::fi_addr_t,
    /// Their length; the last may be shorter.
    pub stride: u64,
}

impl DatagramBatch {
    /// The length of it.
    pub const LEN: usize = 16;

    /// Reads it, and the datagrams behind it; -FI_EINVAL if there are none.
    pub fn read(value: &[u8]) -> Result<(Self, &[u8])> {
        let (head, datagrams) = value.split_first_chunk::<{ Self::LEN }>().ok_or(Error::INVAL)?;
        let (to, stride) = head.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes);
        let (to, stride) = (number(to), number(stride));
        match (to, stride) {
            (Ok(to), Ok(stride)) if stride > 0 && !datagrams.is_empty() => {
                Ok((Self { to, stride }, datagrams))
            }
            _ => Err(Error::INVAL),
        }
    }

    /// Writes it.
    pub fn write(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.to.to_ne_bytes());
        buf[8..Self::LEN].copy_from_slice(&self.stride.to_ne_bytes());
    }
}

/// Returns the core providers matching the query (fi_getinfo(3)). Fails with -FI_ENODATA if there
/// is none.
pub fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    find(query, CORE_PROV_ONLY)
}

/// Returns the providers matching the query: core and utility providers, including ones hidden from
/// applications by the user (FI_PROVIDER).
pub fn getinfo_any(query: &InfoQuery<'_>) -> Result<InfoChain> {
    find(query, GETINFO_HIDDEN)
}

/// Calls fi_getinfo(3) with these flags in addition to those of the query.
fn find(query: &InfoQuery<'_>, more: u64) -> Result<InfoChain> {
    let InfoQuery { version, node, service, flags, hints } = *query;
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let flags = flags | GETINFO_INTERNAL | more;
    let mut list: *mut fi_info = ptr::null_mut();
    // SAFETY: the strings and hints live for the call. We are linked to the
    // function as of FABRIC_1.3, which reads the fields of that generation only,
    // and whose answer has no others.
    unsafe {
        let (node, service) = (text(node), text(service));
        let hints = hints.map_or(ptr::null(), InfoRef::as_ptr);
        let list_at = &mut list;
        code(on_own_stack(|| abi::fi_getinfo(version, node, service, flags, hints, list_at)))?;
        let mut chain = InfoChain::new();
        let mut result = Ok(());
        let mut next = list;
        while let Some(info) = next.as_ref() {
            match InfoBuf::from_level(info, ApiLevel::V1_3) {
                Ok(copy) => chain.push(copy),
                Err(error) => result = Err(error),
            }
            next = info.next;
        }
        abi::fi_freeinfo(list);
        result.map(|()| chain)
    }
}

/// Returns a copy of an info created by a core provider, such as the one of a connection request.
///
/// # Safety
/// `info` is null or belongs to the library that loaded this plug-in.
unsafe fn copy_info(info: *const fi_info) -> Result<InfoBuf> {
    if info.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract; no library makes infos older than its
    // release says.
    unsafe {
        let copy = dup_raw(info, ApiLevel::of_release(abi::fi_version()).min(ApiLevel::V1_3));
        InfoBuf::from_raw(copy?.as_ptr())
    }
}

/// Keys tried before a registration fails because they are taken.
const MAX_KEYS: usize = 64;

/// The table of every object, and a call in it.
///
/// # Safety
/// `fid` is a live object of a core provider's.
unsafe fn fi_ops_of<'a>(fid: *mut fid) -> Result<&'a fi_ops> {
    // SAFETY: by this function's contract.
    unsafe { (*fid).ops.as_ref() }.ok_or(Error::NOSYS)
}

/// fi_close(3).
///
/// # Safety
/// `fid` is a live object of a core provider, and not in use any more.
unsafe fn close(fid: *mut fid) -> Result {
    // SAFETY: by this function's contract.
    unsafe { code(fi_ops_of(fid)?.close.ok_or(Error::NOSYS)?(fid)) }
}

/// fi_ep_bind(3).
///
/// # Safety
/// Both are live objects of one core provider's.
unsafe fn bind(fid: *mut fid, to: *mut fid, flags: u64) -> Result {
    // SAFETY: by this function's contract.
    unsafe { code(fi_ops_of(fid)?.bind.ok_or(Error::NOSYS)?(fid, to, flags)) }
}

/// fi_control(3).
///
/// # Safety
/// `fid` is a live object of a core provider, and `arg` is valid for the command.
unsafe fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> Result {
    // SAFETY: by this function's contract.
    unsafe { code(fi_ops_of(fid)?.control.ok_or(Error::NOSYS)?(fid, command, arg)) }
}

/// Converts the return value of a core provider's call.
fn code(ret: c_int) -> Result {
    Error::check(ret).map(drop)
}

/// The call of an ops table, or -FI_ENOSYS when the core has none.
macro_rules! call {
    ($table:expr, $name:ident) => {
        $table.as_ref().ok_or(Error::NOSYS)?.$name.ok_or(Error::NOSYS)?
    };
}
use call;

/// A core provider's fabric.
#[derive(Debug)]
pub struct CoreFabric(NonNull<fid_fabric>);

// SAFETY: what a core provider with FI_THREAD_SAFE hands out may be used from
// any thread, and every domain here is opened with that.
unsafe impl Send for CoreFabric {}
// SAFETY: what a core provider with FI_THREAD_SAFE hands out may be used from
// any thread, and every domain here is opened with that.
unsafe impl Sync for CoreFabric {}

impl CoreFabric {
    /// Opens the fabric of `info` (fi_fabric(3)).
    pub fn open(info: &InfoBuf) -> Result<Arc<Self>> {
        let mut raw: *mut fid_fabric = ptr::null_mut();
        let mut attr = *info.fabric();
        // SAFETY: the attribute and its names live for the call.
        unsafe { code(abi::fi_fabric(&mut attr, &mut raw, ptr::null_mut()))? };
        NonNull::new(raw).map(|raw| Arc::new(Self(raw))).ok_or(Error::OTHER)
    }

    /// Returns true if a caller may sleep until a descriptor of these queues is readable
    /// (fi_trywait(3)).
    pub fn may_block(&self, cqs: &[&CoreCq], eq: Option<&CoreEq>) -> bool {
        let mut fids: Vec<*mut fid> = cqs.iter().map(|cq| cq.fid()).collect();
        fids.extend(eq.map(CoreEq::fid));
        // SAFETY: all are open objects of this fabric.
        unsafe { self.try_wait(&mut fids) }.is_ok()
    }

    /// fi_trywait(3).
    ///
    /// # Safety
    /// All are open objects of this fabric.
    unsafe fn try_wait(&self, fids: &mut [*mut fid]) -> Result {
        // SAFETY: by this function's contract.
        unsafe {
            let trywait = call!(self.0.as_ref().ops, trywait);
            code(trywait(self.0.as_ptr(), fids.as_mut_ptr(), fids.len() as c_int))
        }
    }
}

impl Drop for CoreFabric {
    fn drop(&mut self) {
        // SAFETY: everything opened on it holds a count on this, so nothing is left.
        let _ = unsafe { close(self.0.as_ptr().cast()) };
    }
}

/// A core provider's domain.
#[derive(Debug)]
pub struct CoreDomain {
    raw: NonNull<fid_domain>,
    /// True if memory of transfers must be registered (FI_MR_LOCAL).
    local: bool,
    /// True if peers address memory by its virtual address (FI_MR_VIRT_ADDR).
    virt_addr: bool,
    /// True if calls are promised to be serialized (FI_THREAD_DOMAIN).
    serialized: bool,
    fabric: Arc<CoreFabric>,
}

// SAFETY: an object of a core provider with FI_THREAD_SAFE, which may be used from any thread, or with
// FI_THREAD_DOMAIN, where the application has promised that and no thread of ours calls.
unsafe impl Send for CoreDomain {}
// SAFETY: as for `Send`.
unsafe impl Sync for CoreDomain {}

impl CoreDomain {
    /// Opens the domain described by `info` (fi_domain(3)).
    pub fn open(fabric: &Arc<CoreFabric>, info: &InfoBuf) -> Result<Arc<Self>> {
        let mut raw: *mut fid_domain = ptr::null_mut();
        // SAFETY: the fabric is open; the core only reads the info, during the call.
        unsafe {
            let open = call!(fabric.0.as_ref().ops, domain);
            let info = info.as_ptr().cast_mut();
            code(on_own_stack(|| open(fabric.0.as_ptr(), info, &mut raw, ptr::null_mut())))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        let (mode, mr_mode) = (info.mode(), info.domain().mr_mode);
        let local = mode & abi::FI_LOCAL_MR != 0 || mr_mode & abi::FI_MR_LOCAL != 0;
        let basic = mr_mode == abi::FI_MR_BASIC;
        let virt_addr = basic || mr_mode & abi::FI_MR_VIRT_ADDR != 0;
        let serialized = info.domain().threading == abi::fi_threading::FI_THREAD_DOMAIN;
        Ok(Arc::new(Self { raw, local, virt_addr, serialized, fabric: fabric.clone() }))
    }

    /// Returns the level of locks taken only by calls for this domain, and by calls from there.
    pub fn level(&self) -> Level {
        if self.serialized { Level::Serialized } else { Level::Shared }
    }

    /// The fabric it is opened on.
    pub fn fabric(&self) -> &Arc<CoreFabric> {
        &self.fabric
    }

    /// Returns true if memory of every transfer must be registered.
    pub fn wants_local(&self) -> bool {
        self.local
    }

    fn register(
        self: &Arc<Self>,
        iov: iovec,
        access: u64,
        offset: u64,
        key: u64,
    ) -> Result<CoreRegion> {
        let mut raw: *mut fid_mr = ptr::null_mut();
        // SAFETY: all zeros is a valid attribute; the one vector lives for the call.
        unsafe {
            let mut attr = std::mem::zeroed::<fi_mr_attr>();
            (attr.mr_iov, attr.iov_count) = (&raw const iov, 1);
            (attr.access, attr.offset, attr.requested_key) = (access, offset, key);
            let register = call!(self.raw.as_ref().mr, regattr);
            code(register(self.raw.as_ptr().cast(), &raw const attr, 0, &mut raw))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        let base = if self.virt_addr { iov.iov_base as u64 } else { offset };
        Ok(CoreRegion { raw, base, len: iov.iov_len, domain: self.clone() })
    }

    /// Registers every segment of a send buffer, for peers to read or for the core provider to send
    /// from. `key` creates the requested keys.
    pub fn register_send(
        self: &Arc<Self>,
        buf: &SendBuf,
        access: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<Vec<CoreRegion>> {
        buf.iov().iter().map(|iov| self.register_any(*iov, access, 0, &mut key)).collect()
    }

    /// Registers every segment of a receive buffer, like [`register_send`](Self::register_send).
    pub fn register_recv(
        self: &Arc<Self>,
        buf: &RecvBuf,
        access: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<Vec<CoreRegion>> {
        buf.iov().iter().map(|iov| self.register_any(*iov, access, 0, &mut key)).collect()
    }

    /// Registers memory under a free key.
    fn register_any(
        self: &Arc<Self>,
        iov: iovec,
        access: u64,
        offset: u64,
        mut key: impl FnMut() -> u64,
    ) -> Result<CoreRegion> {
        for _ in 0..MAX_KEYS {
            match self.register(iov, access, offset, key()) {
                // The key is taken, by the application or an old transfer: another is tried.
                Err(Error::NOKEY) => {}
                other => return other,
            }
        }
        Err(Error::NOKEY)
    }

    /// Returns an internal buffer, registered if the core provider requires it.
    pub fn buffer(self: &Arc<Self>, len: usize, mut key: impl FnMut() -> u64) -> Result<CoreBuf> {
        let mut buf = CoreBuf::new(len)?;
        if self.local {
            let iov = iovec { iov_base: buf.base.as_ptr().cast(), iov_len: len };
            let access = abi::FI_SEND | abi::FI_RECV | abi::FI_READ | abi::FI_WRITE;
            buf.region = Some(Box::new(self.register_any(iov, access, 0, &mut key)?));
        }
        Ok(buf)
    }

    /// Opens a shared receive context (fi_srx_context(3)).
    fn srx(&self, attr: &fi_rx_attr) -> Result<NonNull<fid_ep>> {
        let mut raw: *mut fid_ep = ptr::null_mut();
        let mut attr = *attr;
        // SAFETY: the domain is open, the attribute lives for the call.
        unsafe {
            let open = call!(self.raw.as_ref().ops, srx_ctx);
            code(open(self.raw.as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
        }
        NonNull::new(raw).ok_or(Error::OTHER)
    }
}

impl Drop for CoreDomain {
    fn drop(&mut self) {
        // SAFETY: everything opened on it holds a count on this, so nothing is left.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}

/// The application's regions, as a domain's table has them registered.
#[derive(Debug)]
pub struct Regions {
    domain: Arc<CoreDomain>,
    /// Keys for FI_MR_BASIC over a core provider with fewer requirements: the keys are chosen here,
    /// and addresses are virtual all the same.
    basic: Option<CoreKeys>,
}

/// Keys not guessable by peers, for a core provider with keys chosen by its user.
#[derive(Debug)]
pub struct CoreKeys {
    drawn: AtomicU64,
    secret: RandomState,
    /// Valid bits of the core provider's keys.
    mask: u64,
}

impl CoreKeys {
    /// Returns keys for a core provider with keys of this many bytes (domain_attr.mr_key_size).
    pub fn new(key_size: usize) -> Self {
        let mask = match u32::try_from(key_size) {
            Ok(size @ 1..8) => (1 << (8 * size)) - 1,
            _ => u64::MAX,
        };
        Self { drawn: AtomicU64::new(0), secret: RandomState::new(), mask }
    }

    /// Returns another key, possibly in use.
    pub fn draw(&self) -> u64 {
        let key = self.secret.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed)) & self.mask;
        // FI_KEY_NOTAVAIL is no key.
        if key == abi::FI_KEY_NOTAVAIL { self.draw() } else { key }
    }
}

impl Regions {
    /// Returns regions of an application with this `mr_mode`, registered in this domain, with keys
    /// of `key_size` bytes.
    pub fn new(domain: Arc<CoreDomain>, mr_mode: c_int, key_size: usize) -> Self {
        let basic = mr_mode == abi::FI_MR_BASIC && !domain.virt_addr;
        Self { domain, basic: basic.then(|| CoreKeys::new(key_size)) }
    }
}

impl Backing for Regions {
    unsafe fn register(&self, wanted: &RegionRequest) -> Result<(u64, Box<dyn RegionBacking>)> {
        let RegionRequest { base, len, access, offset, key, .. } = *wanted;
        // Transfers pass the core no descriptor of the application's, so it knows of what peers use alone.
        if !grants_peers(access) {
            return Ok((abi::FI_KEY_NOTAVAIL, Box::new(Unbacked)));
        }
        let iov = iovec { iov_base: base as *mut c_void, iov_len: len };
        let region = match &self.basic {
            None => self.domain.register(iov, access, offset, key)?,
            Some(keys) => self.domain.register_any(iov, access, base as u64, || keys.draw())?,
        };
        Ok((region.key(), Box::new(CoreRegistration { region, cntr: OnceLock::new() })))
    }
}

/// One of the application's regions. Fields close in this order.
struct CoreRegistration {
    region: CoreRegion,
    /// The counter of peers' writes to the region.
    cntr: OnceLock<Arc<CoreCntr>>,
}

impl RegionBacking for CoreRegistration {
    fn count(&self) -> Result<Count> {
        let cntr = CoreCntr::open(&self.region.domain)?;
        let (mr, to) = (self.region.raw.as_ptr().cast(), cntr.raw.as_ptr().cast());
        // SAFETY: both are open, and on one domain.
        unsafe { bind(mr, to, abi::FI_REMOTE_WRITE) }?;
        self.cntr.set(cntr.clone()).map_err(|_| Error::INVAL)?;
        Ok(Box::new(move || cntr.read()))
    }
}

/// A region registered with a core provider, until it is dropped (fi_mr(3)).
#[derive(Debug)]
pub struct CoreRegion {
    raw: NonNull<fid_mr>,
    /// Remote address of the region's first byte, as used by peers.
    base: u64,
    len: usize,
    domain: Arc<CoreDomain>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreRegion {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreRegion {}

impl CoreRegion {
    /// The region's key.
    pub fn key(&self) -> u64 {
        // SAFETY: open; the core does not change it.
        unsafe { self.raw.as_ref().key }
    }

    /// Returns the remote address of the region's first byte, as used by peers.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Length of the region in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn desc(&self) -> *mut c_void {
        // SAFETY: as in `key`.
        unsafe { self.raw.as_ref().mem_desc }
    }
}

impl Drop for CoreRegion {
    fn drop(&mut self) {
        // SAFETY: open, and ours.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}

/// Counter of a core provider, for successes only.
#[derive(Debug)]
pub struct CoreCntr {
    raw: NonNull<fid_cntr>,
    _domain: Arc<CoreDomain>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreCntr {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreCntr {}

impl CoreCntr {
    /// Opens a counter (fi_cntr_open(3)).
    pub fn open(domain: &Arc<CoreDomain>) -> Result<Arc<Self>> {
        let mut raw: *mut fid_cntr = ptr::null_mut();
        // SAFETY: all zeros but for the wait object is a valid attribute, which
        // lives for the call.
        unsafe {
            let mut attr = std::mem::zeroed::<fi_cntr_attr>();
            attr.wait_obj = abi::fi_wait_obj::FI_WAIT_NONE.into();
            let open = call!(domain.raw.as_ref().ops, cntr_open);
            code(open(domain.raw.as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        Ok(Arc::new(Self { raw, _domain: domain.clone() }))
    }

    /// The counter's value.
    pub fn read(&self) -> u64 {
        let _uncancelled = CancelDisabled::new();
        // SAFETY: open.
        unsafe {
            let read = self.raw.as_ref().ops.as_ref().and_then(|table| table.read);
            read.map_or(0, |read| read(self.raw.as_ptr()))
        }
    }
}

impl Drop for CoreCntr {
    fn drop(&mut self) {
        // SAFETY: what is bound to it holds a count on this, so nothing is left.
        let _ = unsafe { close(self.raw.as_ptr().cast()) };
    }
}

/// Internal buffer for sends and receives of a core provider.
///
/// It is passed on with a transfer and comes back with its completion.
#[derive(Debug)]
pub struct CoreBuf {
    base: NonNull<u8>,
    len: usize,
    /// In a box: few cores want it, and buffers are moved about a lot.
    region: Option<Box<CoreRegion>>,
}

// SAFETY: plain memory that this alone owns.
unsafe impl Send for CoreBuf {}
// SAFETY: plain memory that this alone owns, and shared access only reads.
unsafe impl Sync for CoreBuf {}

impl CoreBuf {
    fn layout(len: usize) -> Layout {
        // No more than malloc gives by itself: with more, the system's zero pages
        // would be written to before they are needed.
        Layout::from_size_align(len.max(1), 16).unwrap_or(Layout::new::<u64>())
    }

    /// A zeroed buffer of `len` bytes; -FI_ENOMEM if there is no memory.
    fn new(len: usize) -> Result<Self> {
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) });
        Ok(Self { base: base.ok_or(Error::NOMEM)?, len, region: None })
    }

    /// Returns a buffer without memory, replacing a lost one.
    fn none() -> Self {
        let layout = Self::layout(0);
        Self::new(0).unwrap_or_else(|_| handle_alloc_error(layout))
    }

    fn desc(&self) -> *mut c_void {
        self.region.as_ref().map_or(ptr::null_mut(), |region| region.desc())
    }

    /// Copies the application's data and returns the copy, to be sent instead. The transfer must
    /// keep this buffer until it is complete.
    pub fn copy_of(&mut self, sent: &SendBuf) -> Result<SendBuf> {
        let bytes = self.get_mut(..sent.len()).ok_or(Error::MSGSIZE)?;
        sent.copy_to(0, bytes);
        // SAFETY: the transfer keeps this until it is complete, and the bytes stay where they
        // are when this is moved.
        unsafe { SendBuf::new(bytes.as_ptr().cast(), bytes.len()) }
    }
}

impl Deref for CoreBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, without other accesses while the buffer is held here:
        // the core provider returned it with the completion.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for CoreBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes without other accesses, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for CoreBuf {
    fn drop(&mut self) {
        drop(self.region.take());
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.len)) };
    }
}
