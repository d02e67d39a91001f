//! Lists of memory for scattering and gathering system calls.
use crate::error::{Error, Result};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use libc::iovec;

/// Maximum number of segments of a transfer (iov_limit of tx_attr and rx_attr, rma_iov_limit),
/// unless a provider offers more ([`SegmentLimit`]).
pub const IOV_LIMIT: usize = 4;

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
    /// Adds a vector. Returns false if the list is full.
    pub(super) fn push(&mut self, base: *mut u8, len: usize) -> bool {
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

    /// Appends `len` bytes of this list, from byte `from` on, to another list. Returns false if that
    /// list is full.
    pub fn share<'b>(&self, from: usize, len: usize, out: &mut GatherList<'b>) -> bool
    where
        'a: 'b,
    {
        self.parts(from, len).all(|(at, len)| out.push(at, len))
    }

    /// Returns `len` bytes of the list from byte `from` on, to be read again after this call: the
    /// sender of a list with [`CopyMode::ZeroCopy`] leaves the memory in place until the link reports its
    /// release.
    pub fn retain(&self, from: usize, len: usize) -> RetainedBytes {
        RetainedBytes(self.parts(from, len).map(|(at, len)| (RetainedPtr(at), len)).collect())
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

/// Address of memory of a zero-copy send.
#[derive(Debug)]
struct RetainedPtr(*mut u8);

// SAFETY: the memory is only read, and its owner leaves it in place for any thread
// ([`GatherList::retain`]).
unsafe impl Send for RetainedPtr {}

/// Memory of a zero-copy send, readable until its release is reported ([`GatherList::retain`]).
#[derive(Debug)]
pub struct RetainedBytes(Vec<(RetainedPtr, usize)>);

impl RetainedBytes {
    /// Appends `len` bytes from byte `from` on to a list. Returns false if the list is full.
    pub fn gather<'a>(
        &'a self,
        mut from: usize,
        mut len: usize,
        list: &mut GatherList<'a>,
    ) -> bool {
        self.0.iter().all(|(at, size)| {
            let skipped = from.min(*size);
            from -= skipped;
            let part = len.min(size - skipped);
            len -= part;
            part == 0 || list.push(at.0.wrapping_add(skipped), part)
        })
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
