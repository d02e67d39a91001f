//! Buffers of the application during their use by the library.
//!
//! A provider touches memory passed to a transfer call only through these types. According to
//! fi_msg(3) the buffer belongs to the library from the call to the completion (for an inject, to
//! the return of the call). Every `unsafe` here relies on this promise of the caller.
mod device_segments;

use crate::addr::RawAddr;
use crate::device::DeviceLocation;
use crate::error::{Error, Result};
use crate::heap;
use crate::heap_range;
pub use crate::io_vecs::{CopyMode, GatherList, IOV_LIMIT, IoVecs, RetainedBytes, ScatterList};
use core::alloc::Layout;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::sync::atomic::{Ordering, compiler_fence};
use libc::iovec;
use std::os::fd::RawFd;

/// Maximum number of segments of a transfer of any provider.
pub const MAX_SEGMENTS: usize = 8;

/// Maximum number of segments of the transfers of a domain, at most [`MAX_SEGMENTS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLimit(usize);

impl Default for SegmentLimit {
    fn default() -> Self {
        Self(IOV_LIMIT)
    }
}

impl SegmentLimit {
    /// Returns the limit of a provider offering this number of segments.
    pub fn new(most: usize) -> Self {
        Self(most.min(MAX_SEGMENTS))
    }

    /// The number of segments of a transfer; -FI_EINVAL if they are too many.
    #[inline]
    pub(crate) fn check(self, count: usize) -> Result<usize> {
        if count > self.0 { Err(Error::INVAL) } else { Ok(count) }
    }
}

/// Segment list without an allocation for a single segment. Nearly all transfers have one segment,
/// and a receive is often moved before its match, so one segment is stored inline.
#[derive(Clone)]
struct Segments {
    /// The first segment.
    first: iovec,
    /// The descriptor of its memory (fi_mr_desc(3)).
    desc: *mut c_void,
    /// All segments, unless there is just one, of ordinary memory.
    all: Option<Box<Many>>,
}

/// Locations of segments in memory of devices; none for a segment of ordinary memory.
pub type Locations = [Option<DeviceLocation>; MAX_SEGMENTS];

#[derive(Clone)]
struct Many {
    iov: [iovec; MAX_SEGMENTS],
    descs: [*mut c_void; MAX_SEGMENTS],
    count: usize,
    len: usize,
    /// Locations of the segments if any of them is in memory of a device. The processor then accesses
    /// none of them directly.
    locations: Option<Box<Locations>>,
}

/// A piece of the application's memory, for hardware to use in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalSegment {
    /// The address of the piece.
    pub addr: usize,
    /// Length of the piece in bytes.
    pub len: usize,
    /// The descriptor of its memory (fi_mr_desc(3)), 0 if the application gave none.
    pub desc: usize,
}

/// The pieces of a buffer in their order.
#[derive(Debug, Default)]
pub struct Local<'a> {
    iov: &'a [iovec],
    descs: &'a [*mut c_void],
}

impl Local<'_> {
    /// The only piece, if there is just one left.
    #[inline]
    pub fn only(&self) -> Option<LocalSegment> {
        match (self.iov, self.descs) {
            ([iov], [desc]) => {
                let (addr, desc) = (iov.iov_base as usize, *desc as usize);
                Some(LocalSegment { addr, len: iov.iov_len, desc })
            }
            _ => None,
        }
    }
}

impl Iterator for Local<'_> {
    type Item = LocalSegment;

    #[inline]
    fn next(&mut self) -> Option<LocalSegment> {
        let ((iov, iovs), (desc, descs)) = (self.iov.split_first()?, self.descs.split_first()?);
        (self.iov, self.descs) = (iovs, descs);
        let (addr, desc) = (iov.iov_base as usize, *desc as usize);
        Some(LocalSegment { addr, len: iov.iov_len, desc })
    }
}

const EMPTY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl Segments {
    #[inline]
    fn one(base: *mut c_void, len: usize) -> Self {
        let first = iovec { iov_base: base, iov_len: len };
        Self { first, desc: std::ptr::null_mut(), all: None }
    }

    /// # Safety
    /// `iov` points to `count` readable iovecs, or `count` is 0.
    unsafe fn many(iov: *const iovec, count: usize) -> Result<Self> {
        if count > MAX_SEGMENTS || (count > 0 && iov.is_null()) {
            return Err(Error::INVAL);
        }
        if count == 1 {
            // SAFETY: by this function's contract.
            let one = unsafe { *iov };
            return Ok(Self::one(one.iov_base, one.iov_len));
        }
        let descs = [std::ptr::null_mut(); MAX_SEGMENTS];
        let mut all = Many { iov: [EMPTY; MAX_SEGMENTS], descs, count, len: 0, locations: None };
        for (index, to) in all.iov[..count].iter_mut().enumerate() {
            // SAFETY: `index` is below `count`.
            *to = unsafe { *iov.add(index) };
            all.len = all.len.checked_add(to.iov_len).ok_or(Error::INVAL)?;
        }
        Ok(Self::of(all))
    }

    fn of(all: Many) -> Self {
        let (first, desc) = (all.iov[0], all.descs[0]);
        let is_many = all.count != 1 || all.locations.is_some();
        Self { first, desc, all: is_many.then(|| Box::new(all)) }
    }

    /// # Safety
    /// `descs` is null or points to one for each segment.
    unsafe fn with_descs(mut self, descs: *const *mut c_void) -> Self {
        if descs.is_null() {
            return self;
        }
        match &mut self.all {
            // SAFETY: by this function's contract.
            None => self.desc = unsafe { *descs },
            Some(all) => {
                for (index, to) in all.descs[..all.count].iter_mut().enumerate() {
                    // SAFETY: by this function's contract, `index` is below the number of segments.
                    *to = unsafe { *descs.add(index) };
                }
            }
        }
        self
    }

    #[inline]
    fn local(&self) -> Local<'_> {
        let descs = match &self.all {
            None => std::slice::from_ref(&self.desc),
            Some(all) => &all.descs[..all.count],
        };
        Local { iov: self.as_slice(), descs }
    }

    #[inline]
    fn as_slice(&self) -> &[iovec] {
        match &self.all {
            None => std::slice::from_ref(&self.first),
            Some(all) => &all.iov[..all.count],
        }
    }

    /// Bytes of all segments together.
    #[inline]
    fn len(&self) -> usize {
        self.all.as_ref().map_or(self.first.iov_len, |all| all.len)
    }

    /// Every segment must lie somewhere if it has bytes.
    #[inline]
    fn checked(self) -> Result<Self> {
        let bad = |iov: &iovec| iov.iov_base.is_null() && iov.iov_len > 0;
        if self.as_slice().iter().any(bad) { Err(Error::INVAL) } else { Ok(self) }
    }

    /// Appends the part from byte `from` on, at most `max` bytes, to `out`;
    /// the number of bytes appended.
    fn append<M>(&self, mut from: usize, mut max: usize, out: &mut IoVecs<M>) -> usize {
        debug_assert!(self.locations().is_none(), "memory of devices is copied");
        let mut total = 0;
        for segment in self.as_slice() {
            if from >= segment.iov_len {
                from -= segment.iov_len;
                continue;
            }
            let len = (segment.iov_len - from).min(max);
            if len == 0 || !out.push(segment.iov_base.cast::<u8>().wrapping_add(from), len) {
                break;
            }
            total += len;
            max -= len;
            from = 0;
        }
        total
    }

    /// The `len` bytes from `from` on, as segments of their own.
    fn part(&self, from: usize, len: usize) -> Self {
        let descs = [std::ptr::null_mut(); MAX_SEGMENTS];
        let mut part =
            Many { iov: [EMPTY; MAX_SEGMENTS], descs, count: 0, len: 0, locations: None };
        let mut locations = Locations::default();
        let _ = self.each_located(from, len, |base, len, location| {
            part.iov[part.count] = iovec { iov_base: base.cast(), iov_len: len };
            locations[part.count] = location;
            part.count += 1;
            part.len += len;
            Ok(())
        });
        Self::of(part).with_locations(locations)
    }

    /// Calls `each` with the segments of bytes `from..from + len`.
    #[inline(always)]
    fn each(&self, from: usize, len: usize, mut each: impl FnMut(*mut u8, usize)) {
        if let Some(all) = &self.all {
            all.each(from, len, each);
        } else if from < self.first.iov_len {
            let part = (self.first.iov_len - from).min(len);
            each(self.first.iov_base.cast::<u8>().wrapping_add(from), part);
        }
    }
}

impl Many {
    /// See [`Segments::each`]. A separate copy keeps segments in registers if their address is not
    /// passed to a call.
    #[inline(never)]
    fn each(&self, mut from: usize, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        debug_assert!(len == 0 || self.locations.is_none(), "memory of devices is copied");
        for segment in &self.iov[..self.count] {
            if len == 0 {
                return;
            }
            if from >= segment.iov_len {
                from -= segment.iov_len;
                continue;
            }
            let part = (segment.iov_len - from).min(len);
            each(segment.iov_base.cast::<u8>().wrapping_add(from), part);
            len -= part;
            from = 0;
        }
    }
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} segments", self.len(), self.as_slice().len())
    }
}

/// Contiguous bytes to send: only their address and length.
#[derive(Clone, Copy, Debug)]
pub struct ContiguousSrc<'a> {
    at: *const u8,
    len: usize,
    of: PhantomData<&'a SendBuf>,
}

impl ContiguousSrc<'_> {
    /// Returns the address, readable while the buffer is borrowed.
    #[inline(always)]
    pub(crate) fn at(self) -> *const u8 {
        self.at
    }

    /// Returns the number of bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "is_empty has no caller")]
    pub fn len(self) -> usize {
        self.len
    }
}

/// Contiguous destination of a message: only its address and size.
#[derive(Clone, Copy, Debug)]
pub struct ContiguousDst<'a> {
    at: *mut u8,
    len: usize,
    of: PhantomData<&'a RecvBuf>,
}

impl ContiguousDst<'_> {
    /// Returns the capacity in bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "is_empty has no caller")]
    pub fn len(self) -> usize {
        self.len
    }

    /// The address, as completion entries report it.
    #[inline(always)]
    pub fn address(self) -> usize {
        self.at as usize
    }
}

/// Returns true if `n` bytes are within the range of [`copy_some`], 8 to 64.
#[inline(always)]
pub(crate) fn is_some(n: usize) -> bool {
    n.wrapping_sub(8) <= 64 - 8
}

/// Copies [some](is_some) bytes without a call, in pieces. The last ones overlap the first.
///
/// # Safety
/// As for `copy_nonoverlapping`; `n` is [some](is_some).
#[inline(always)]
pub(crate) unsafe fn copy_some(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: each piece is within the first `n` bytes.
    unsafe {
        let piece = |at: usize, len| to.add(at).copy_from_nonoverlapping(from.add(at), len);
        if n > 32 {
            piece(0, 16);
            piece(16, 16);
            piece(n - 32, 16);
            piece(n - 16, 16);
        } else if n >= 16 {
            piece(0, 16);
            piece(n - 16, 16);
        } else {
            piece(0, 8);
            piece(n - 8, 8);
        }
    }
}

/// Copies bytes, without a call for lengths accepted by [`is_some`].
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
pub(crate) unsafe fn copy_any(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        if is_some(n) {
            copy_some(from, to, n);
        } else {
            to.copy_from_nonoverlapping(from, n);
        }
    }
}

/// Copies `n` bytes to a contiguous destination, up to its capacity. `SOME`: all of them fit, and
/// their number is [some](is_some).
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy_buf<const SOME: bool>(from: *const u8, n: usize, dst: ContiguousDst<'_>) {
    // SAFETY: by this function's contract; what does not hold with `SOME` is looked at.
    unsafe {
        if !SOME {
            copy_any(from, dst.at, n.min(dst.len));
        } else if is_some(n) && n <= dst.len {
            copy_some(from, dst.at, n);
        }
    }
}

/// Bytes in memory writable by another process at any time. They can be copied and are never
/// examined in place.
#[derive(Clone, Copy, Debug)]
pub struct UntrustedBytes<'a> {
    at: *const u8,
    len: usize,
    of: PhantomData<&'a u8>,
}

impl UntrustedBytes<'_> {
    /// Wraps these bytes.
    ///
    /// # Safety
    /// They are readable for the lifetime chosen by the caller.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *const u8, len: usize) -> Self {
        Self { at, len, of: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "is_empty has no caller")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Copies the first `N` bytes; `None` if there are fewer. The other process may write
    /// concurrently, so a check is valid only for the copy.
    #[inline(always)]
    pub fn first_chunk<const N: usize>(self) -> Option<[u8; N]> {
        (self.len >= N).then(|| {
            // SAFETY: so many bytes are there. They are read once.
            let first = unsafe { self.at.cast::<[u8; N]>().read_unaligned() };
            compiler_fence(Ordering::SeqCst);
            first
        })
    }

    /// Returns the bytes behind the first `n`, with `n` limited to the length.
    #[inline(always)]
    pub fn behind(self, n: usize) -> Self {
        let n = n.min(self.len);
        Self { at: self.at.wrapping_add(n), len: self.len - n, of: PhantomData }
    }
}

/// [`UntrustedBytes`] in memory of at least four words, even if the message is shorter.
#[derive(Clone, Copy, Debug)]
pub struct InlineBytes<'a>(UntrustedBytes<'a>);

impl<'a> InlineBytes<'a> {
    /// Wraps the first bytes of an aligned buffer.
    ///
    /// # Safety
    /// They, and four words, are readable for the lifetime chosen by the caller.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *const u8, len: usize) -> Self {
        // SAFETY: by this function's contract.
        Self(unsafe { UntrustedBytes::new(at, len) })
    }

    /// Copies the first words, up to four. The other process may write concurrently, so a check is
    /// valid only for the checked copy.
    #[inline(always)]
    pub fn words<const N: usize>(self) -> [u64; N] {
        const { assert!(N <= 4) };
        // SAFETY: they are there, and aligned.
        std::array::from_fn(|word| unsafe { self.0.at.cast::<u64>().add(word).read_volatile() })
    }

    /// All bytes.
    #[inline(always)]
    pub fn all(self) -> UntrustedBytes<'a> {
        self.0
    }
}

/// Bytes of a message in any kind of memory.
pub trait MessageBytes: Copy {
    /// Returns the number of bytes.
    fn count(self) -> usize;

    /// Copies them to a buffer; excess bytes are discarded.
    fn copy_into(self, buf: &RecvBuf);

    /// Copies them to a contiguous destination; excess bytes are discarded. `SOME`: their number is
    /// small enough for a copy without a call ([`is_some`]).
    fn copy_into_buf<const SOME: bool>(self, dst: ContiguousDst<'_>);

    /// Returns their address.
    fn address(self) -> *const u8;
}

impl MessageBytes for &[u8] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn copy_into(self, buf: &RecvBuf) {
        buf.copy_from(0, self);
    }

    #[inline(always)]
    fn copy_into_buf<const SOME: bool>(self, dst: ContiguousDst<'_>) {
        // SAFETY: as in `RecvBuf::copy_from`.
        unsafe { copy_buf::<SOME>(self.as_ptr(), self.len(), dst) };
    }

    #[inline(always)]
    fn address(self) -> *const u8 {
        self.as_ptr()
    }
}

impl MessageBytes for UntrustedBytes<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        self.len
    }

    #[inline(always)]
    fn copy_into(self, buf: &RecvBuf) {
        let mut done = 0;
        buf.0.each(0, self.len.min(buf.len()), |part, len| {
            // SAFETY: the application keeps `part..part + len` writable and does not touch it; the
            // bytes are readable, and in no memory of the application's.
            unsafe { std::ptr::copy_nonoverlapping(self.at.add(done), part, len) };
            done += len;
        });
    }

    #[inline(always)]
    fn copy_into_buf<const SOME: bool>(self, dst: ContiguousDst<'_>) {
        // SAFETY: as in `copy_into`.
        unsafe { copy_buf::<SOME>(self.at, self.len, dst) };
    }

    #[inline(always)]
    fn address(self) -> *const u8 {
        self.at
    }
}

/// Bytes the application wants sent.
#[derive(Clone, Debug)]
pub struct SendBuf(Segments);

// SAFETY: the application lends the memory to the library, not to a thread of it.
unsafe impl Send for SendBuf {}

impl SendBuf {
    /// A contiguous buffer of bytes to send.
    ///
    /// # Safety
    /// `len` bytes at `buf` stay readable until the transfer is complete.
    #[inline]
    pub unsafe fn new(buf: *const c_void, len: usize) -> Result<Self> {
        match buf.is_null() {
            false => Ok(Self(Segments::one(buf.cast_mut(), len))),
            true => Self::null(len),
        }
    }

    #[cold]
    fn null(len: usize) -> Result<Self> {
        if len == 0 { Ok(Self::none()) } else { Err(Error::INVAL) }
    }

    /// Returns a buffer of zero length.
    pub fn none() -> Self {
        Self(Segments::one(std::ptr::null_mut(), 0))
    }

    /// [`new`](Self::new) of a buffer already validated by it.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline]
    pub(crate) unsafe fn of(buf: *const c_void, len: usize) -> Self {
        Self(Segments::one(buf.cast_mut(), len))
    }

    /// Fills `to` with the bytes starting at byte `from`.
    #[inline(always)]
    pub fn copy_to(&self, from: usize, to: &mut [u8]) {
        debug_assert!(from + to.len() <= self.len());
        let (mut done, dst) = (0, to.as_mut_ptr());
        // SAFETY: the application keeps `part..part + len` readable; `to` has room for it, since the
        // parts add up to `to.len()`; a buffer of ours does not overlap the application's.
        let mut copy = |part, len| unsafe {
            copy_any(part, dst.add(done), len);
            done += len;
        };
        match self.in_one_piece() {
            Some(ContiguousSrc { at, len, .. }) if from == 0 => copy(at, to.len().min(len)),
            _ => self.0.each(from, to.len(), |part, len| copy(part, len)),
        }
    }

    /// All bytes, if they are in one piece.
    #[inline(always)]
    pub fn in_one_piece(&self) -> Option<ContiguousSrc<'_>> {
        let iovec { iov_base, iov_len: len } = self.0.first;
        self.0.all.is_none().then_some(ContiguousSrc { at: iov_base.cast(), len, of: PhantomData })
    }

    /// A copy of all bytes, for when the application keeps its buffer; -FI_ENOMEM if there is no memory for it.
    pub fn to_boxed(&self) -> Result<Box<[u8]>> {
        let mut bytes = zeroed(self.len())?;
        self.copy_to(0, &mut bytes);
        Ok(bytes)
    }

    /// Sends the bytes as one datagram, without blocking or SIGPIPE. The kernel
    /// has copied them when this returns.
    #[inline]
    pub fn send_to(&self, socket: RawFd, to: &RawAddr) -> Result {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (name, name_len) = crate::addr::as_sockaddr(to);
        loop {
            // SAFETY: the kernel only reads the application's segments and the
            // address, all of which outlive the call.
            let sent = unsafe {
                if let [only] = self.0.as_slice() {
                    libc::sendto(socket, only.iov_base, only.iov_len, flags, name, name_len)
                } else {
                    let mut message = std::mem::zeroed::<libc::msghdr>();
                    message.msg_name = name.cast_mut().cast();
                    message.msg_namelen = name_len;
                    message.msg_iov = self.0.as_slice().as_ptr().cast_mut();
                    message.msg_iovlen = self.0.as_slice().len() as _;
                    libc::sendmsg(socket, &raw const message, flags)
                }
            };
            match Error::last_os() {
                _ if sent >= 0 => return Ok(()),
                Error::INTR => {}
                error => return Err(error),
            }
        }
    }

    /// Appends the bytes from byte `from` on to a gather list and returns their number.
    pub fn gather<'a>(&'a self, from: usize, out: &mut GatherList<'a>) -> usize {
        self.0.append(from, usize::MAX, out)
    }
}

/// Contiguous [`RecvBuf`] without a destructor.
#[derive(Clone, Copy, Debug)]
pub struct RecvSegment {
    segment: iovec,
    desc: *mut c_void,
}

impl RecvSegment {
    /// A buffer to receive into, with the descriptor of its memory (fi_mr_desc(3)).
    ///
    /// # Safety
    /// As for [`RecvBuf::new`].
    #[inline(always)]
    pub unsafe fn new(buf: *mut c_void, len: usize, desc: *mut c_void) -> Self {
        let len = if buf.is_null() { 0 } else { len };
        Self { segment: iovec { iov_base: buf, iov_len: len }, desc }
    }

    /// Returns true if the buffer is known to be in memory of the host.
    #[inline(always)]
    pub(crate) fn is_in_heap(&self) -> bool {
        heap_range::contains(self.segment.iov_base as usize)
    }
}

impl From<RecvSegment> for RecvBuf {
    #[inline(always)]
    fn from(RecvSegment { segment, desc }: RecvSegment) -> Self {
        Self(Segments { first: segment, desc, all: None })
    }
}

/// Buffer of the application for a message.
#[derive(Clone, Debug)]
pub struct RecvBuf(Segments);

// SAFETY: as for `SendBuf`.
unsafe impl Send for RecvBuf {}

impl RecvBuf {
    /// A contiguous buffer to receive into.
    ///
    /// # Safety
    /// `len` bytes at `buf` stay writable, and untouched by the application,
    /// until the transfer is complete.
    #[inline]
    pub unsafe fn new(buf: *mut c_void, len: usize) -> Result<Self> {
        // A null buffer has no capacity, regardless of its length: applications post such receives
        // for messages without bytes.
        let len = if buf.is_null() { 0 } else { len };
        Ok(Self(Segments::one(buf, len)))
    }

    /// Returns a buffer of zero length, as used by a peek.
    pub fn none() -> Self {
        Self(Segments::one(std::ptr::null_mut(), 0))
    }

    /// Returns true if the buffer is contiguous, as [`split`](Self::split) requires.
    pub fn is_contiguous(&self) -> bool {
        self.0.as_slice().len() <= 1
    }

    /// All of it, if it is in one piece.
    #[inline(always)]
    pub fn in_one_piece(&self) -> Option<ContiguousDst<'_>> {
        let iovec { iov_base, iov_len: len } = self.0.first;
        self.0.all.is_none().then_some(ContiguousDst { at: iov_base.cast(), len, of: PhantomData })
    }

    /// The address of the first segment, as completion entries report it.
    #[inline]
    pub fn address(&self) -> usize {
        self.0.first.iov_base as usize
    }

    /// Copies `from` into the buffer at byte `at`; excess bytes are discarded. Returns the number
    /// of bytes copied.
    #[inline(always)]
    pub fn copy_from(&self, at: usize, from: &[u8]) -> usize {
        let len = from.len().min(self.len().saturating_sub(at));
        let mut done = 0;
        self.0.each(at, len, |part, len| {
            // SAFETY: the application keeps `part..part + len` writable and does
            // not touch it; `from` is ours and does not overlap it.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(done), part, len) };
            done += len;
        });
        done
    }

    /// Appends up to `max` bytes of the buffer, from byte `at` on, to a scatter list and returns
    /// their number.
    pub fn scatter<'a>(&'a self, at: usize, max: usize, out: &mut ScatterList<'a>) -> usize {
        self.0.append(at, max, out)
    }

    /// Splits a contiguous buffer into its first `len` bytes and the rest. Used to consume a
    /// multi-receive buffer (FI_MULTI_RECV, fi_msg(3)).
    pub fn split(&self, len: usize) -> (Self, Self) {
        let len = len.min(self.0.first.iov_len);
        let base = self.0.first.iov_base;
        let first = Self(Segments::one(base, len));
        let behind = base.cast::<u8>().wrapping_add(len).cast();
        let rest = Self(Segments::one(behind, self.0.first.iov_len - len));
        match self.0.locations() {
            None => (first, rest),
            Some(&all) => (first.with_locations(all), rest.with_locations(all)),
        }
    }
}

/// Methods of both kinds of buffer.
macro_rules! borrowed {
    ($($buffer:ident)*) => {$(
        impl $buffer {
            /// Returns a buffer of up to [`MAX_SEGMENTS`] segments.
            ///
            /// # Safety
            /// `iov` points to `count` iovecs, valid during this call. Their memory fulfils the
            /// contract of [`new`](Self::new).
            pub unsafe fn from_iov(iov: *const iovec, count: usize) -> Result<Self> {
                // SAFETY: by this function's contract.
                Ok(Self(unsafe { Segments::many(iov, count) }?.checked()?))
            }

            /// Adds the descriptor (fi_mr_desc(3)) of its one segment.
            #[inline]
            #[must_use]
            pub fn with_desc(mut self, desc: *mut c_void) -> Self {
                self.0.desc = desc;
                self
            }

            /// Adds the descriptor (fi_mr_desc(3)) of each segment.
            ///
            /// # Safety
            /// `descs` is null or points to one for each segment.
            #[must_use]
            pub unsafe fn with_descs(self, descs: *const *mut c_void) -> Self {
                // SAFETY: by this function's contract.
                Self(unsafe { self.0.with_descs(descs) })
            }

            /// Sets the locations of the segments in memory of devices, in their order.
            #[must_use]
            pub fn with_locations(self, locations: Locations) -> Self {
                Self(self.0.with_locations(locations))
            }

            /// Returns true if a segment is in memory of a device. Such a buffer is accessed only by
            /// copies.
            #[inline]
            pub fn is_device(&self) -> bool {
                self.0.locations().is_some()
            }

            /// Returns true if the buffer is one segment known to be in memory of the host.
            #[inline(always)]
            pub(crate) fn is_in_heap(&self) -> bool {
                self.0.all.is_none() && heap_range::contains(self.0.first.iov_base as usize)
            }

            /// Returns the segments with their locations in memory of devices.
            pub(crate) fn located(
                &self,
            ) -> impl Iterator<Item = (iovec, Option<DeviceLocation>)> + '_ {
                let locations = self.0.locations();
                let location = move |index: usize| locations.and_then(|all| all[index]);
                self.iov().iter().enumerate().map(move |(index, iov)| (*iov, location(index)))
            }

            /// Returns the segments and their registrations. The hardware uses them until the
            /// transfer is complete, under the application's promise for the buffer.
            #[inline]
            pub fn local(&self) -> Local<'_> {
                self.0.local()
            }

            /// Bytes of all segments together.
            #[inline]
            pub fn len(&self) -> usize {
                self.0.len()
            }

            /// Returns true if there is none.
            pub fn is_empty(&self) -> bool {
                self.0.len() == 0
            }

            /// The `len` bytes from `from` on, as a buffer of their own.
            pub fn part(&self, from: usize, len: usize) -> Self {
                Self(self.0.part(from, len))
            }

            /// Returns the number of segments of the buffer.
            pub fn segments(&self) -> usize {
                self.0.as_slice().len()
            }

            /// The segments, for a core provider's vectors.
            pub(crate) fn iov(&self) -> &[iovec] {
                self.0.as_slice()
            }
        }
    )*};
}

borrowed!(SendBuf RecvBuf);

/// Returns `len` zero bytes. Fails with -FI_ENOMEM if there is no memory: a size named by a peer
/// must lead to an error, not to an abort.
pub fn zeroed(len: usize) -> Result<Box<[u8]>> {
    if len == 0 {
        return Ok(Box::default());
    }
    heap::ready()?;
    let layout = Layout::array::<u8>(len).map_err(|_| Error::NOMEM)?;
    // SAFETY: `layout` is not of size 0. What is not null is memory of that layout, and the
    // bytes in it are initialized: a box of so many bytes owns it from here on.
    unsafe {
        let at = std::alloc::alloc_zeroed(layout);
        if at.is_null() {
            return Err(Error::NOMEM);
        }
        Ok(Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, len)))
    }
}

/// Returns a copy of bytes whose number a peer or the program determines. Fails with -FI_ENOMEM if
/// there is no memory for it.
pub fn copied(bytes: &[u8]) -> Result<Box<[u8]>> {
    heap::ready()?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Error::NOMEM)?;
    copy.extend_from_slice(bytes);
    Ok(copy.into_boxed_slice())
}

#[cfg(test)]
mod tests;
