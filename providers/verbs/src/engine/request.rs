//! Requests to the engine, and their state while the device has them.
//!
//! The requests of a queue pair wait in a [`Fifo`], in the order of posting. The device's number of
//! a request is its index there. The device does not report the success of a request without a
//! completion entry: such a request is complete when a later one is.
use crate::memory::OfDevice;
use crate::sys::{CmId, IbvRegion, Pd, Sge, Verb, access};
use ofi_provider::abi::fi_addr_t;
use ofi_provider::buf::{Local, RecvBuf};
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr_cache::Cached;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bit of a request's number, set for a send, read, write or atomic operation, and clear for a
/// receive. The number is the lower half of the `wr_id` passed to the device with the request; the
/// endpoint's index is the upper half.
pub(super) const SEND: u32 = 1 << 31;

/// Regions of the registration cache used by a posted operation, if the application passed no
/// descriptor.
pub(super) type UsedRegions = Option<Box<[Cached<OfDevice>]>>;

/// A send, read, write or atomic operation, as the engine takes it.
pub(crate) struct WorkSpec<'a> {
    pub(crate) verb: Verb,
    pub(crate) segments: Local<'a>,
    pub(crate) len: usize,
    /// FI_SEND | FI_MSG …
    pub(crate) kind: u64,
    /// The flags of the call: FI_MORE, FI_INJECT …
    pub(crate) flags: u64,
    pub(crate) data: u64,
    pub(crate) context: Context,
    /// The receiver of a datagram.
    pub(crate) dest: fi_addr_t,
    /// Buffer for an atomic operation's former value.
    pub(crate) fetch: Option<RecvBuf>,
}

/// A send, read, write or atomic operation under way.
pub(super) struct VerbsTransfer {
    pub(super) context: Context,
    /// FI_SEND | FI_MSG …
    pub(super) flags: u64,
    pub(super) len: usize,
    /// The device reports its success.
    pub(super) signalled: bool,
    /// The status and the vendor's error, once the device has reported its completion.
    pub(super) done: Option<(u32, u32)>,
    /// The operation's success gets an entry in the completion queue.
    pub(super) report: bool,
    /// Additional state of a few operations.
    pub(super) extra: Option<Box<ExtraRequestState>>,
}

impl VerbsTransfer {
    /// Returns true if it is a part of an operation completed by another request.
    pub(super) fn is_part(&self) -> bool {
        self.flags == 0
    }
}

/// Additional state of a few operations in progress.
pub(super) struct ExtraRequestState {
    pub(super) _regions: UsedRegions,
    /// Buffer for an atomic operation's former value, and the index of the device's result in the
    /// scratch memory.
    pub(super) fetch: Option<(RecvBuf, usize)>,
}

/// A posted receive.
pub(super) struct PostedRecv {
    pub(super) context: Context,
    pub(super) flags: u64,
    pub(super) buf: usize,
    pub(super) _regions: UsedRegions,
}

/// Operations in the order of posting, with numbers wrapping around below [`SEND`].
pub(super) struct Fifo<T> {
    pub(super) items: VecDeque<T>,
    /// The number of the first operation.
    pub(super) first: u32,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), first: 0 }
    }
}

impl<T> Fifo<T> {
    /// Returns the number of the next operation to be added.
    pub(super) fn next(&self) -> u32 {
        self.first.wrapping_add(self.items.len() as u32) & !SEND
    }

    /// Returns the number of operations up to and including the one with this number; 0 if there is
    /// none.
    pub(super) fn up_to(&self, number: u32) -> usize {
        let count = (number.wrapping_sub(self.first) & !SEND) as usize + 1;
        if count <= self.items.len() { count } else { 0 }
    }

    /// Takes the first operation out.
    pub(super) fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.first = self.first.wrapping_add(1) & !SEND;
        Some(item)
    }
}

/// Memory for the device's results of atomic operations, one word for each request possibly in
/// progress.
pub(super) struct Scratch {
    // Dropped first, so that the device is done with the memory before that is freed.
    region: IbvRegion,
    pub(super) words: Box<[AtomicU64]>,
}

impl Scratch {
    pub(super) fn new(pd: &Arc<Pd>, count: usize) -> Result<Self> {
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let bytes = size_of_val(&words[..]);
        let region = IbvRegion::new(pd, words.as_ptr() as usize, bytes, access::LOCAL_WRITE)?;
        Ok(Self { region, words })
    }

    /// Returns the scatter/gather element for the word with this index.
    pub(super) fn sge(&self, index: usize) -> Sge {
        let addr = (&raw const self.words[index]) as u64;
        Sge { addr, length: size_of::<u64>() as u32, lkey: self.region.lkey() }
    }
}

/// Returns the error of a request not accepted by the device: a full queue of the device soon has
/// space again.
pub(super) fn post_error(error: Error) -> Error {
    if error == Error::NOMEM { Error::AGAIN } else { error }
}

/// Connection request to be sent, with its data.
pub(super) struct PendingConnReq {
    /// The endpoint's index.
    pub(super) at: u32,
    pub(super) id: Arc<CmId>,
    pub(super) data: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_numbers_wrap_around_and_identify_its_entries() {
        let mut fifo = Fifo { items: VecDeque::new(), first: !SEND - 1 };
        for item in 0..4 {
            assert_eq!(fifo.next(), (!SEND - 1).wrapping_add(item) & !SEND);
            fifo.items.push_back(item);
        }
        assert_eq!((fifo.up_to(!SEND - 1), fifo.up_to(!SEND), fifo.up_to(1)), (1, 2, 4));
        assert_eq!((fifo.up_to(2), fifo.up_to(!SEND - 2)), (0, 0));
        assert_eq!((fifo.pop(), fifo.pop(), fifo.pop()), (Some(0), Some(1), Some(2)));
        assert_eq!((fifo.up_to(1), fifo.up_to(0), fifo.next()), (1, 0, 2));
    }
}
