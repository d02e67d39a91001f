//! Transfers, as they are handed to a provider: what fi_send(3), fi_read(3), fi_atomic(3) and their
//! like ask for.
use crate::abi::{fi_addr_t, fid_cq};
use crate::atomic::Operation;
use crate::buf::{IOV_LIMIT, MAX_SEGMENTS, RecvBuf, SendBuf};
use crate::cq::Context;
use crate::error::{Error, Result};
use core::ffi::{c_int, c_void};

/// One message to send.
#[derive(Clone, Debug)]
pub struct SendOp {
    /// The message's bytes.
    pub buf: SendBuf,
    /// The peer the message is for; ignored on connected endpoints.
    pub dest: fi_addr_t,
    /// The application's pointer that comes back with the completion.
    pub context: Context,
    /// Remote CQ data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
    /// The tag, for tagged messages.
    pub tag: u64,
    /// FI_COMPLETION when a success is to be reported, FI_INJECT when the
    /// buffer is the application's again at return, completion level, FI_MORE …
    pub flags: u64,
}

/// What the short ways of sending look at: a [`SendOp`] in parts, which stay in registers while
/// no call gets their address.
#[derive(Clone, Copy, Debug)]
pub struct PlainSend<'a> {
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

/// A call that sends a message as `fi_send` or, with a tag, `fi_tsend` does: [who](SendsAtOnce::who) sends it, the buffer with
/// its length and descriptor, the destination, the tag, the context, and whether the application has read all
/// entries in the queue of its sends, so that nothing waits for more of them. 1: the message is complete, and
/// no entry is written for it. 0: it is under way, and an entry will be written. Less: an error.
pub(crate) type SendAtOnce = unsafe extern "C" fn(
    *const c_void,
    *const c_void,
    usize,
    *mut c_void,
    fi_addr_t,
    u64,
    *mut c_void,
    u64,
) -> c_int;

/// What [`SENDS_AT_ONCE`](crate::reserved::SENDS_AT_ONCE) gives.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendsAtOnce {
    /// What the calls are called with: it is there as long as the endpoint is open, and nearer to what sends
    /// than the endpoint's fid.
    pub(crate) who: *const c_void,
    /// The calls for messages and for tagged ones.
    pub(crate) calls: [SendAtOnce; 2],
}

/// A call that makes progress on all of the domain of a queue.
pub(crate) type MakesTurn = unsafe extern "C" fn(*mut fid_cq);

/// Room for one message (or, with FI_MULTI_RECV, several).
#[derive(Clone, Debug)]
pub struct RecvOp {
    /// The buffer the message goes to.
    pub buf: RecvBuf,
    /// The peer a message must be from, FI_ADDR_UNSPEC for any.
    pub src: fi_addr_t,
    /// The tag to match, for tagged receives.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// The application's pointer that comes back with the completion.
    pub context: Context,
    /// Flags of the call: FI_COMPLETION, FI_MULTI_RECV, FI_PEEK, FI_CLAIM, FI_DISCARD.
    pub flags: u64,
}

/// A place in a peer's memory (struct fi_rma_iov).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteSegment {
    /// Virtual address, or offset into the region, as the peer's mr_mode says.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The region's key.
    pub key: u64,
}

/// Up to [`MAX_SEGMENTS`] places in a peer's memory. As many as most providers offer are in the list, which
/// is moved often until a transfer is complete.
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

    /// Most bytes of memory that a list takes.
    pub const MOST_BYTES: usize = size_of::<Self>() + size_of::<[RemoteSegment; MAX_SEGMENTS]>();

    /// Bytes of memory that the list takes.
    pub fn memory(&self) -> usize {
        if self.all.is_some() { Self::MOST_BYTES } else { size_of::<Self>() }
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
        let room = match &mut self.all {
            None => self.few.get_mut(self.count),
            Some(all) => all.get_mut(self.count),
        };
        match room {
            Some(room) => *room = segment,
            None => return self.push_behind(segment),
        }
        self.count += 1;
        Ok(())
    }

    /// Adds a place for which the list has no room.
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
    /// The places the bytes go to, which have as many bytes as `buf`.
    pub remote: RemoteSegments,
    /// The peer whose memory it is; ignored on connected endpoints.
    pub dest: fi_addr_t,
    /// The application's pointer that comes back with the completion.
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
    /// The places to read, which have as many bytes as `buf` has room for.
    pub remote: RemoteSegments,
    /// The peer whose memory it is; ignored on connected endpoints.
    pub src: fi_addr_t,
    /// The application's pointer that comes back with the completion.
    pub context: Context,
    /// FI_COMPLETION when a success is to be reported.
    pub flags: u64,
}

/// One atomic operation on a peer's memory. The operands and the results that the operation has are
/// as long as all its places together, at most [`max_bytes`](crate::api::Atomic::max_bytes); the
/// others are empty.
#[derive(Clone, Debug)]
pub struct AtomicOp {
    /// The operation: its kind, datatype and op.
    pub operation: Operation,
    /// The first operand.
    pub source: SendBuf,
    /// The operand that the target is compared with.
    pub compare: SendBuf,
    /// The buffer that the former values go to.
    pub result: RecvBuf,
    /// The places of the target's elements; lengths are in bytes here as well.
    pub remote: RemoteSegments,
    /// The peer whose memory it is; ignored on connected endpoints.
    pub dest: fi_addr_t,
    /// The application's pointer that comes back with the completion.
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
    fn a_list_keeps_its_places_in_order_up_to_the_most_there_can_be() {
        let place = |n: usize| RemoteSegment { addr: n as u64, len: 1, key: 7 };
        let mut list = RemoteSegments::EMPTY;
        for n in 0..MAX_SEGMENTS {
            assert_eq!(list.as_slice(), (0..n).map(place).collect::<Vec<_>>());
            assert_eq!((list.total(), list == list.clone()), (Ok(n), true));
            list.push(place(n)).unwrap();
        }
        assert_eq!(list.push(place(0)), Err(Error::INVAL));
        assert_eq!(list.as_slice().len(), MAX_SEGMENTS);
        assert_eq!(list.memory(), RemoteSegments::MOST_BYTES);
    }
}
