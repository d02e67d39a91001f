//! Requests: what is asked of the engine, and what it keeps of each while the device has it.
//!
//! The requests of a queue pair wait in a [`Fifo`], in the order of their posting, and the number
//! that the device knows a request by is its place there. The device does not report the success of
//! a request that has no completion entry: such a request is complete when one behind it is.
use crate::memory::OfDevice;
use crate::sys::{IbvRegion, Pd, Sge, Verb, access};
use ofi_provider::abi::fi_addr_t;
use ofi_provider::buf::{Local, RecvBuf};
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr_cache::Cached;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The bit of a request's number that is set when it is a send, read, write or atomic
/// operation, and not a receive. The number is the lower half of what the device is given
/// with the request (`wr_id`); the endpoint's index is the upper half.
pub(super) const SEND: u32 = 1 << 31;

/// Regions of the registration cache that a posted operation uses, where the application
/// gave no descriptor.
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
    /// Where an atomic operation's former value goes.
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
    /// What only few operations need.
    pub(super) extra: Option<Box<ExtraRequestState>>,
}

impl VerbsTransfer {
    /// Whether it is a part of an operation that is complete when another request is.
    pub(super) fn is_part(&self) -> bool {
        self.flags == 0
    }
}

/// What few of the operations under way have.
pub(super) struct ExtraRequestState {
    pub(super) _regions: UsedRegions,
    /// Where an atomic operation's former value goes, and the place in the scratch memory
    /// where the device puts it.
    pub(super) fetch: Option<(RecvBuf, usize)>,
}

/// A posted receive.
pub(super) struct PostedRecv {
    pub(super) context: Context,
    pub(super) flags: u64,
    pub(super) buf: usize,
    pub(super) _regions: UsedRegions,
}

/// Operations in the order of their posting, by numbers that wrap around below [`SEND`].
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
    /// The number of the next operation that is added.
    pub(super) fn next(&self) -> u32 {
        self.first.wrapping_add(self.items.len() as u32) & !SEND
    }

    /// How many operations there are up to and including the one with this number; 0 if there
    /// is none.
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

/// Memory where the device puts the results of atomic operations, one place for each
/// request that can be under way.
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

    /// The place of that index, as a request names it.
    pub(super) fn sge(&self, index: usize) -> Sge {
        let addr = (&raw const self.words[index]) as u64;
        Sge { addr, length: size_of::<u64>() as u32, lkey: self.region.lkey() }
    }
}

/// The error of a request that the device did not take: a full queue of the device has room
/// again soon.
pub(super) fn post_error(error: Error) -> Error {
    if error == Error::NOMEM { Error::AGAIN } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_fifo_go_round_and_name_what_is_in_it() {
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
