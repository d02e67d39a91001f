//! Transfers passed to a provider: the requests of fi_send(3), fi_read(3), fi_atomic(3) and similar
//! calls.
use crate::abi::fi_addr_t;
use crate::atomic::Operation;
use crate::buf::{IOV_LIMIT, MAX_SEGMENTS, RecvBuf, RecvSegment, SendBuf};
use crate::completion::Context;
use crate::error::{Error, Result};
use crate::packet_sink::DeliverPacketFn;
use core::ffi::{c_int, c_void};
use libc::ssize_t;

/// One message to send.
#[derive(Clone, Debug)]
pub struct SendOp {
    /// The message's bytes.
    pub buf: SendBuf,
    /// The peer the message is for; ignored on connected endpoints.
    pub dest: fi_addr_t,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// Remote CQ data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
    /// The tag, for tagged messages.
    pub tag: u64,
    /// FI_COMPLETION when a success is to be reported, FI_INJECT when the
    /// buffer is the application's again at return, completion level, FI_MORE …
    pub flags: u64,
}

/// Parts of a [`SendOp`] used by the fast paths of sends; they stay in registers if their address
/// is not passed to a call.
#[derive(Clone, Copy, Debug)]
pub struct FastSend<'a> {
    /// The message's bytes.
    pub buf: &'a SendBuf,
    /// The peer the message is for.
    pub dest: fi_addr_t,
    /// Comes back with the completion.
    pub context: Context,
    /// Remote CQ data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
    /// The tag, for tagged messages.
    pub tag: u64,
    /// As those of the operation.
    pub flags: u64,
}

/// Function sending a message like `fi_send` or, with a tag, `fi_tsend`. Its arguments are the
/// [sender](ImmediateSendFns::who), the buffer with its length and descriptor, the destination, the tag
/// and the context. The last argument is true if the application has read all entries in the queue
/// of its sends, so nothing waits for more of them. Returns 1 if the message is complete, without
/// an entry. Returns 0 if it is in flight, with an entry later. A negative value is an error.
pub(crate) type ImmediateSendFn = unsafe extern "C" fn(
    *const c_void,
    *const c_void,
    usize,
    *mut c_void,
    fi_addr_t,
    u64,
    *mut c_void,
    u64,
) -> c_int;

/// Functions returned by [`SENDS_AT_ONCE`](crate::reserved::SENDS_AT_ONCE).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImmediateSendFns {
    /// Argument of the functions: valid while the endpoint is open, and closer to the sending code
    /// than the endpoint's fid.
    pub(crate) who: *const c_void,
    /// The calls for messages and for tagged ones.
    pub(crate) calls: [ImmediateSendFn; 2],
}

/// Function making progress on the whole domain of a queue. The argument is
/// [`DirectProgress::who`].
pub(crate) type ProgressFn = unsafe extern "C" fn(*const c_void);

/// Function returned by [`RUNS_PROGRESS`](crate::reserved::RUNS_PROGRESS).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectProgress {
    /// Argument of the function: valid while the queue is open, and not its fid if a hook is around
    /// the provider.
    pub(crate) who: *const c_void,
    pub(crate) progress: ProgressFn,
}

/// Function reading a queue like `fi_cq_readfrom`. Messages arriving during the call may be passed to
/// the [`DeliverPacketFn`]. The arguments are the [reader](DirectRead::who), the buffers for entries
/// and sources with the number of entries between, the function and its context.
pub(crate) type DirectReadFn = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    *mut fi_addr_t,
    DeliverPacketFn,
    *mut c_void,
) -> ssize_t;

/// Function returned by [`DELIVERS_PACKETS`](crate::reserved::DELIVERS_PACKETS).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectRead {
    /// Argument of the function: valid while the queue is open.
    pub(crate) who: *const c_void,
    pub(crate) read: DirectReadFn,
}

/// Buffer for one message (or, with FI_MULTI_RECV, several).
#[derive(Clone, Debug)]
pub struct RecvOp {
    /// The buffer the message goes to.
    pub buf: RecvBuf,
    /// The peer a message must be from, FI_ADDR_UNSPEC for any.
    pub src: fi_addr_t,
    /// The tag to match, for tagged receives.
    pub tag: u64,
    /// Ignored bits of the tag.
    pub ignore: u64,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// Flags of the call: FI_COMPLETION, FI_MULTI_RECV, FI_PEEK, FI_CLAIM, FI_DISCARD.
    pub flags: u64,
}

/// [`RecvOp`] with a contiguous buffer, for the fast paths of receives. A path that ends early has nothing
/// to drop, and so no call.
#[derive(Clone, Copy, Debug)]
pub struct FastRecv {
    /// The buffer the message goes to.
    pub buf: RecvSegment,
    /// The peer a message must be from, FI_ADDR_UNSPEC for any.
    pub src: fi_addr_t,
    /// The tag to match, for tagged receives.
    pub tag: u64,
    /// Ignored bits of the tag.
    pub ignore: u64,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// Flags of the call.
    pub flags: u64,
}

/// A place in a peer's memory (struct fi_rma_iov).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteSegment {
    /// Virtual address, or offset into the region, as defined by the peer's mr_mode.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The region's key.
    pub key: u64,
}

/// List of up to [`MAX_SEGMENTS`] segments of a peer's memory. The number offered by most providers
/// is stored inline, because the list is often moved before its transfer is complete.
#[derive(Clone, Default)]
pub struct RemoteSegments {
    few: [RemoteSegment; IOV_LIMIT],
    count: usize,
    /// All places, if there are more than a few.
    all: Option<Box<[RemoteSegment; MAX_SEGMENTS]>>,
}

impl PartialEq for RemoteSegments {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for RemoteSegments {}

impl std::fmt::Debug for RemoteSegments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl RemoteSegments {
    /// A list without a place.
    pub const EMPTY: Self =
        Self { few: [RemoteSegment { addr: 0, len: 0, key: 0 }; IOV_LIMIT], count: 0, all: None };

    /// Maximum memory of a list, in bytes.
    pub const MOST_BYTES: usize = size_of::<Self>() + size_of::<[RemoteSegment; MAX_SEGMENTS]>();

    /// Returns the bytes of memory of the list.
    pub fn memory(&self) -> usize {
        if self.all.is_some() { Self::MOST_BYTES } else { size_of::<Self>() }
    }

    /// Returns true if a segment is in the region with this key.
    pub fn has_key(&self, key: u64) -> bool {
        self.as_slice().iter().any(|segment| segment.key == key)
    }

    /// A list with one place.
    #[inline]
    pub fn one(addr: u64, len: u64, key: u64) -> Self {
        let mut list = Self::EMPTY;
        list.few[0] = RemoteSegment { addr, len, key };
        list.count = 1;
        list
    }

    /// Adds a place; -FI_EINVAL when it is one too many.
    #[inline]
    pub fn push(&mut self, segment: RemoteSegment) -> Result {
        let slot = match &mut self.all {
            None => self.few.get_mut(self.count),
            Some(all) => all.get_mut(self.count),
        };
        match slot {
            Some(slot) => *slot = segment,
            None => return self.push_behind(segment),
        }
        self.count += 1;
        Ok(())
    }

    /// Adds a segment beyond the inline capacity.
    #[cold]
    fn push_behind(&mut self, segment: RemoteSegment) -> Result {
        if self.all.is_some() {
            return Err(Error::INVAL);
        }
        let mut all = Box::new([RemoteSegment::default(); MAX_SEGMENTS]);
        all[..IOV_LIMIT].copy_from_slice(&self.few);
        all[IOV_LIMIT] = segment;
        (self.all, self.count) = (Some(all), IOV_LIMIT + 1);
        Ok(())
    }

    /// The places.
    #[inline]
    pub fn as_slice(&self) -> &[RemoteSegment] {
        match &self.all {
            None => &self.few[..self.count],
            Some(all) => &all[..self.count],
        }
    }

    /// Bytes in all; -FI_EINVAL when there are more than memory can have.
    pub fn total(&self) -> Result<usize> {
        let sum = self.as_slice().iter().try_fold(0u64, |sum, s| sum.checked_add(s.len));
        let sum = sum.and_then(|sum| usize::try_from(sum).ok());
        sum.filter(|sum| *sum <= isize::MAX as usize).ok_or(Error::INVAL)
    }
}

/// One write to a peer's memory.
#[derive(Clone, Debug)]
pub struct WriteOp {
    /// The bytes to write.
    pub buf: SendBuf,
    /// Destination segments, with the same number of bytes as `buf`.
    pub remote: RemoteSegments,
    /// Peer owning the memory; ignored on connected endpoints.
    pub dest: fi_addr_t,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// Remote CQ data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
    /// Flags as in [`SendOp::flags`].
    pub flags: u64,
}

/// One read of a peer's memory.
#[derive(Clone, Debug)]
pub struct ReadOp {
    /// The buffer the bytes go to.
    pub buf: RecvBuf,
    /// Segments to read, with the same number of bytes as `buf`.
    pub remote: RemoteSegments,
    /// Peer owning the memory; ignored on connected endpoints.
    pub src: fi_addr_t,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// FI_COMPLETION when a success is to be reported.
    pub flags: u64,
}

/// Atomic operation on a peer's memory. The operands and results used by the operation have the
/// same total length as its segments, at most [`max_bytes`](crate::api::Atomic::max_bytes); the
/// others are empty.
#[derive(Clone, Debug)]
pub struct AtomicOp {
    /// The operation: its kind, datatype and op.
    pub operation: Operation,
    /// The first operand.
    pub source: SendBuf,
    /// Operand compared with the target.
    pub compare: SendBuf,
    /// Buffer for the previous values.
    pub result: RecvBuf,
    /// The places of the target's elements; lengths are in bytes here as well.
    pub remote: RemoteSegments,
    /// Peer owning the memory; ignored on connected endpoints.
    pub dest: fi_addr_t,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// Remote CQ data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
    /// Flags as in [`SendOp::flags`].
    pub flags: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_list_preserves_order_up_to_its_maximum() {
        let segment_at = |n: usize| RemoteSegment { addr: n as u64, len: 1, key: 7 };
        let mut list = RemoteSegments::EMPTY;
        for n in 0..MAX_SEGMENTS {
            assert_eq!(list.as_slice(), (0..n).map(segment_at).collect::<Vec<_>>());
            assert_eq!((list.total(), list == list.clone()), (Ok(n), true));
            list.push(segment_at(n)).unwrap();
        }
        assert_eq!(list.push(segment_at(0)), Err(Error::INVAL));
        assert_eq!(list.as_slice().len(), MAX_SEGMENTS);
        assert_eq!(list.memory(), RemoteSegments::MOST_BYTES);
    }
}
