//! Buffers of the application during their use by the library.
//!
//! A provider touches memory passed to a transfer call only through these types. According to
//! fi_msg(3) the buffer belongs to the library from the call to the completion (for an inject, to
//! the return of the call). Every `unsafe` here relies on this promise of the caller.
use crate::addr::{self, RawAddr};
use crate::error::{Error, Result};
use crate::heap;
use core::alloc::Layout;
use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use libc::iovec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// Send method of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMode {
    /// The system has copied the bytes when the call returns.
    Copied,
    /// The system has copied the bytes when the call returns, and more are about to follow
    /// (MSG_MORE).
    MoreFollows,
    /// The kernel uses the bytes in place until it reports the end of the send (MSG_ZEROCOPY).
    ZeroCopy,
    /// Zero copy, of bytes in the memory region with this key.
    OfRegion(u64),
}

impl CopyMode {
    /// Returns true for a zero-copy send.
    #[inline]
    pub fn is_zcopy(self) -> bool {
        matches!(self, Self::ZeroCopy | Self::OfRegion(_))
    }

    /// Returns the flags of a send call: without blocking and without SIGPIPE.
    #[inline]
    pub fn flags(self) -> libc::c_int {
        let how = match self {
            Self::Copied => 0,
            Self::MoreFollows => libc::MSG_MORE,
            Self::ZeroCopy | Self::OfRegion(_) => libc::MSG_ZEROCOPY,
        };
        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | how
    }
}

/// Maximum number of segments of a transfer (iov_limit of tx_attr and rx_attr, rma_iov_limit),
/// unless a provider offers more ([`SegmentLimit`]).
pub const IOV_LIMIT: usize = 4;

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
    /// All segments, unless there is just one.
    all: Option<Box<Many>>,
}

#[derive(Clone)]
struct Many {
    iov: [iovec; MAX_SEGMENTS],
    descs: [*mut c_void; MAX_SEGMENTS],
    count: usize,
    len: usize,
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
        let mut all = Many { iov: [EMPTY; MAX_SEGMENTS], descs, count, len: 0 };
        for (index, to) in all.iov[..count].iter_mut().enumerate() {
            // SAFETY: `index` is below `count`.
            *to = unsafe { *iov.add(index) };
            all.len = all.len.checked_add(to.iov_len).ok_or(Error::INVAL)?;
        }
        Ok(Self::of(all))
    }

    fn of(all: Many) -> Self {
        let (first, desc) = (all.iov[0], all.descs[0]);
        Self { first, desc, all: (all.count != 1).then(|| Box::new(all)) }
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
        let mut part = Many { iov: [EMPTY; MAX_SEGMENTS], descs, count: 0, len: 0 };
        self.each(from, len, |base, len| {
            part.iov[part.count] = iovec { iov_base: base.cast(), iov_len: len };
            part.count += 1;
            part.len += len;
        });
        Self::of(part)
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
        Ok(Self(Segments::one(buf.cast_mut(), len).checked()?))
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
        (
            Self(Segments::one(base, len)),
            Self(Segments::one(
                base.cast::<u8>().wrapping_add(len).cast(),
                self.0.first.iov_len - len,
            )),
        )
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

/// Received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Length of the datagram in bytes; more than the size of its buffer if the datagram was
    /// truncated.
    pub len: usize,
    /// The sender's address, if it was asked for.
    pub from: Option<SocketAddr>,
    /// If there are several, one behind the other, the length of each but the last; else 0.
    pub segment: usize,
}

/// Largest control message by which the kernel reports the length of each of several coalesced
/// datagrams.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct SegmentMessage([u8; 64]);

/// Sends datagrams of `stride` bytes each to one address in one system call, without blocking or
/// SIGPIPE; the last may be shorter.
pub fn send_datagrams(socket: RawFd, to: &RawAddr, bytes: &[u8], stride: usize) -> Result {
    let stride = u16::try_from(stride).map_err(|_| Error::MSGSIZE)?;
    let (name, name_len) = crate::addr::as_sockaddr(to);
    let mut dst = SegmentMessage([0; 64]);
    let mut iov = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the kernel only reads the address, the bytes and the control message, all of
        // which outlive the call; the latter has room for the one that is written to it.
        let sent = unsafe {
            let mut message = std::mem::zeroed::<libc::msghdr>();
            message.msg_name = name.cast_mut().cast();
            message.msg_namelen = name_len;
            (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
            if bytes.len() > usize::from(stride) {
                message.msg_control = (&raw mut dst).cast();
                message.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                ((*head).cmsg_level, (*head).cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
                (*head).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                libc::CMSG_DATA(head).cast::<u16>().write_unaligned(stride);
            }
            libc::sendmsg(socket, &raw const message, flags)
        };
        match Error::last_os() {
            _ if sent >= 0 => return Ok(()),
            Error::INTR => {}
            error => return Err(error),
        }
    }
}

/// Returns the length of each of several coalesced datagrams, as reported by the control message; 0
/// for a single datagram.
///
/// # Safety
/// The kernel has filled in the header, and its control message is still valid.
unsafe fn segment_of(message: &libc::msghdr) -> usize {
    // SAFETY: by this function's contract.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if ((*head).cmsg_level, (*head).cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let segment = libc::CMSG_DATA(head).cast::<c_int>().read_unaligned();
                return usize::try_from(segment).unwrap_or(0);
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    0
}

/// Maximum number of datagrams received by one call.
pub const BATCH: usize = 8;

/// Receives datagrams into `bufs`, in order, with one system call and without blocking. Each
/// buffer gets one datagram (or `several` of one sender, if the socket has UDP_GRO). Only the first
/// [`BATCH`] buffers are used. Returns the number of datagrams; a smaller number than buffers means
/// no more have arrived. Fails with -FI_EAGAIN if there is none.
#[inline]
pub fn receive_datagrams<'a>(
    socket: RawFd,
    bufs: impl Iterator<Item = &'a RecvBuf>,
    sources: bool,
    several: bool,
    out: &mut [Datagram; BATCH],
) -> Result<usize> {
    let mut names = [[0u8; addr::MAX_LEN]; BATCH];
    let mut controls = [SegmentMessage([0; 64]); BATCH];
    // SAFETY: all zeros is a valid mmsghdr: no name, no room, no control data.
    let mut messages = unsafe { std::mem::zeroed::<[libc::mmsghdr; BATCH]>() };
    let mut count = 0;
    for dst in bufs.take(BATCH) {
        let header = &mut messages[count].msg_hdr;
        if several {
            header.msg_control = (&raw mut controls[count]).cast();
            header.msg_controllen = size_of::<SegmentMessage>() as _;
        }
        let iov = dst.0.as_slice();
        header.msg_iov = iov.as_ptr().cast_mut();
        header.msg_iovlen = iov.len() as _;
        if sources {
            header.msg_name = names[count].as_mut_ptr().cast();
            header.msg_namelen = addr::MAX_LEN as libc::socklen_t;
        }
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let got = loop {
        // SAFETY: the kernel writes to `count` headers, their names, and the memory of the
        // application, valid for the lifetime of its `RecvBuf`; it only reads the iovecs, borrowed
        // from `bufs`.
        let got = unsafe {
            let (messages, count) = (messages.as_mut_ptr(), count as _);
            libc::recvmmsg(socket, messages, count, flags as _, std::ptr::null_mut())
        };
        match usize::try_from(got) {
            Ok(got) => break got.min(BATCH),
            Err(_) if Error::last_os() == Error::INTR => {}
            Err(_) => return Err(Error::last_os()),
        }
    };
    for at in 0..got {
        let (message, name) = (&messages[at], &names[at]);
        let name_len = (message.msg_hdr.msg_namelen as usize).min(name.len());
        out[at] = Datagram {
            len: message.msg_len as usize,
            from: if sources { addr::from_bytes(&name[..name_len]).ok() } else { None },
            // SAFETY: just filled in.
            segment: if several { unsafe { segment_of(&message.msg_hdr) } } else { 0 },
        };
    }
    Ok(got)
}

/// A datagram, or several of one sender, in memory of the library's.
#[derive(Clone, Copy, Debug)]
pub struct AddressedDatagram {
    /// Bytes of it.
    pub len: usize,
    /// The sender's address.
    pub from: SocketAddr,
    /// Destination IP address, if reported by the socket (IP_PKTINFO, IPV6_RECVPKTINFO).
    pub to: Option<IpAddr>,
    /// If there are several, one behind the other, the length of each but the last; else 0.
    pub segment: usize,
}

/// The control messages of one call as long as they can be: the length of segments and the addresses.
#[repr(C, align(8))]
struct AddressMessages([u8; 128]);

/// Receives one datagram into `dst`, without blocking. Fails with -FI_EAGAIN if there is none, and
/// with -FI_ETRUNC if it exceeded the buffer; it is then lost.
pub fn receive_datagram(socket: RawFd, dst: &mut [u8]) -> Result<AddressedDatagram> {
    let mut name = [0u8; addr::MAX_LEN];
    let mut controls = AddressMessages([0; 128]);
    let mut iov = iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    loop {
        // SAFETY: all zeros is a valid header. The kernel writes to the room, the name and the control
        // messages, all of which outlive the call and are as long as said.
        let (got, message) = unsafe {
            let mut message = std::mem::zeroed::<libc::msghdr>();
            message.msg_name = name.as_mut_ptr().cast();
            message.msg_namelen = name.len() as libc::socklen_t;
            (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
            message.msg_control = (&raw mut controls).cast();
            message.msg_controllen = size_of::<AddressMessages>() as _;
            (libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT), message)
        };
        let Ok(len) = usize::try_from(got) else {
            match Error::last_os() {
                Error::INTR => continue,
                error => return Err(error),
            }
        };
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(Error::TRUNC);
        }
        let name_len = (message.msg_namelen as usize).min(name.len());
        let from = addr::from_bytes(&name[..name_len])?;
        // SAFETY: the kernel has filled the header in, and its control messages are still there.
        let (segment, to) = unsafe { (segment_of(&message), destination_of(&message)) };
        return Ok(AddressedDatagram { len, from, to, segment });
    }
}

/// Returns the destination IP address of a datagram from its message header.
///
/// # Safety
/// The kernel has filled in the header, and its control messages are still in place.
unsafe fn destination_of(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: by this function's contract; control messages of these types have such data.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            match ((*head).cmsg_level, (*head).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = libc::CMSG_DATA(head).cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = libc::CMSG_DATA(head).cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => head = libc::CMSG_NXTHDR(message, head),
            }
        }
    }
    None
}

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

/// Scatter or gather list for one system call, of memory borrowed as `M`.
pub struct IoVecs<M> {
    /// The first `count` elements are written: clearing all would cost more than most lists.
    iov: [MaybeUninit<iovec>; MAX_VECTORS],
    count: usize,
    len: usize,
    memory: PhantomData<M>,
}

/// A list of bytes to send.
pub type GatherList<'a> = IoVecs<&'a [u8]>;

/// List of buffers to receive into.
pub type ScatterList<'a> = IoVecs<&'a mut [u8]>;

impl<M> Default for IoVecs<M> {
    #[inline]
    fn default() -> Self {
        let iov = [const { MaybeUninit::uninit() }; MAX_VECTORS];
        Self { iov, count: 0, len: 0, memory: PhantomData }
    }
}

impl<M> std::fmt::Debug for IoVecs<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} vectors", self.len, self.count)
    }
}

/// Most elements of a list: more than any one message needs, since several small ones share a
/// call.
const MAX_VECTORS: usize = 64;

impl<M> IoVecs<M> {
    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if self.count == MAX_VECTORS {
            return false;
        }
        self.iov[self.count].write(iovec { iov_base: base.cast(), iov_len: len });
        self.count += 1;
        self.len += len;
        true
    }

    /// Appends memory of a registered region. The caller keeps it valid until the list was used.
    pub(crate) fn push_raw(&mut self, base: *mut u8, len: usize) -> bool {
        self.push(base, len)
    }

    /// Returns true if another message fits.
    pub fn has_space(&self) -> bool {
        self.count + IOV_LIMIT < MAX_VECTORS
    }

    /// Bytes of all elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the list has no bytes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the elements with bytes among the `len` bytes from byte `from` on, as address and
    /// length of each part.
    pub(crate) fn parts(
        &self,
        mut from: usize,
        mut len: usize,
    ) -> impl Iterator<Item = (*mut u8, usize)> {
        self.iov[..self.count].iter().filter_map(move |one| {
            // SAFETY: the first `count` elements are written.
            let one = unsafe { one.assume_init() };
            let skipped = from.min(one.iov_len);
            from -= skipped;
            let part = len.min(one.iov_len - skipped);
            len -= part;
            (part > 0).then(|| (one.iov_base.cast::<u8>().wrapping_add(skipped), part))
        })
    }

    /// Returns the list as a struct msghdr for system calls. It points into `self`.
    pub fn message(&mut self) -> libc::msghdr {
        // SAFETY: all zeros is a valid msghdr: no name, no control data.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        message.msg_iov = self.iov.as_mut_ptr().cast();
        message.msg_iovlen = self.count as _;
        message
    }
}

impl<'a> GatherList<'a> {
    /// Appends bytes of ours; false when the list is full.
    pub fn push_bytes(&mut self, bytes: &'a [u8]) -> bool {
        bytes.is_empty() || self.push(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Copies bytes of the list from byte `from` on to `dst` and returns the number copied.
    pub fn copy_to(&self, from: usize, dst: &mut [u8]) -> usize {
        let mut done = 0;
        for (at, len) in self.parts(from, dst.len()) {
            // SAFETY: the list borrows this memory, or what lends it does (`SendBuf`, `Opened`);
            // nothing else of ours writes to it, and `dst` is as long.
            unsafe { at.copy_to_nonoverlapping(dst[done..done + len].as_mut_ptr(), len) };
            done += len;
        }
        done
    }

    /// Sends the list on a socket by the given method, without blocking or SIGPIPE. Returns the
    /// number of bytes accepted. With [`CopyMode::ZeroCopy`], writes to the memory before the kernel
    /// reports the end of the send may reach the peer.
    pub fn send_by(&mut self, socket: i32, way: CopyMode) -> Result<usize> {
        let n = if let (1, first) = (self.count, &self.iov[0]) {
            let no_addr = std::ptr::null::<libc::sockaddr>();
            // SAFETY: one is written. Its memory is alive, since the list borrows it, or what
            // lends it (`SendBuf`, `Opened`); the kernel only reads it, and holds the pages itself
            // if it does so later.
            unsafe {
                let first = first.assume_init();
                libc::sendto(socket, first.iov_base, first.iov_len, way.flags(), no_addr, 0)
            }
        } else {
            let message = self.message();
            // SAFETY: `message` points into `self`, whose memory is alive as above; the kernel
            // only reads it.
            unsafe { libc::sendmsg(socket, &raw const message, way.flags()) }
        };
        usize::try_from(n).map_err(|_| Error::last_os())
    }
}

impl<'a> ScatterList<'a> {
    /// Appends a buffer of the library. Returns false if the list is full.
    pub fn push_buf(&mut self, dst: &'a mut [u8]) -> bool {
        dst.is_empty() || self.push(dst.as_mut_ptr(), dst.len())
    }

    /// Copies bytes to the buffers of the list from byte `from` on and returns the number copied.
    pub fn copy_from(&mut self, from: usize, bytes: &[u8]) -> usize {
        let mut done = 0;
        for (at, len) in self.parts(from, bytes.len()) {
            // SAFETY: the list borrows this memory to be written to, or what lends it does
            // (`RecvBuf`, `Opened`); `bytes` is as long.
            unsafe { at.copy_from_nonoverlapping(bytes[done..done + len].as_ptr(), len) };
            done += len;
        }
        done
    }

    /// Returns the contiguous buffer space from byte `from` on, if there is any.
    pub fn buf_from(&mut self, from: usize) -> Option<&mut [u8]> {
        let (at, len) = self.parts(from, usize::MAX - from).next()?;
        // SAFETY: the list borrows this memory for writing, or its provider does (`RecvBuf`,
        // `Opened`). Nothing else touches it until its operation completes.
        Some(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }

    /// Fills the list from its start by calls of `receive`. Each call stores bytes in the given
    /// space and returns their number. Ends with a call filling less than its space. Returns an
    /// error only if it is the first result; otherwise the next call of `receive` reports it again.
    pub fn fill(&mut self, mut receive: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let mut done = 0;
        while let Some(dst) = self.buf_from(done) {
            let len = dst.len();
            match receive(dst) {
                Ok(n) => {
                    done += n;
                    if n < len {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Receives into the list without blocking; 0 is the end of the stream.
    pub fn receive(&mut self, socket: i32) -> Result<usize> {
        let mut message = self.message();
        // SAFETY: `message` points into `self`, whose memory is alive and for the kernel to write
        // to, since the list borrows it, or what lends it (`RecvBuf`, `Opened`).
        let n = unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(n).map_err(|_| Error::last_os())
    }
}

#[cfg(test)]
mod tests;
