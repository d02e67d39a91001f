//! Delivery of arriving messages to the utility provider reading their completion queue.
//!
//! `ofi_rxm` receives packets in buffers of its own, and copies each message from there to its
//! receive. While it reads an empty queue it passes a function as well. The engine making progress
//! for this read passes a completely arrived message to the function, in its place of arrival. A
//! message declined by the function takes a posted buffer and completes through the queue.
use crate::abi::fi_addr_t;
use crate::boundary::ffi_guard_nocancel;
use crate::buf::{MessageBytes, UntrustedBytes};
use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use libc::ssize_t;

/// Function of a packet sink. The arguments are its context, the source of the message, and address
/// and length of the bytes. Returns 1 if the message was delivered, and any other value if nothing
/// was done.
pub(crate) type DeliverPacketFn =
    unsafe extern "C" fn(*mut c_void, fi_addr_t, *const u8, usize) -> c_int;

/// Function of a utility provider for the messages arriving during one call.
#[derive(Clone, Copy, Debug)]
pub struct PacketSink<'a> {
    /// Address of the queue read by the utility provider.
    queue: *const c_void,
    deliver: DeliverPacketFn,
    context: *mut c_void,
    of: PhantomData<&'a mut ()>,
}

impl PacketSink<'_> {
    /// Returns a sink for the messages of the queue at this address.
    ///
    /// # Safety
    /// For the lifetime chosen by the caller `deliver` may be called with `context` by this thread.
    pub(crate) unsafe fn new(
        queue: *const c_void,
        deliver: DeliverPacketFn,
        context: *mut c_void,
    ) -> Self {
        Self { queue, deliver, context, of: PhantomData }
    }

    /// Returns true if the sink is for the messages of the queue at this address.
    #[inline(always)]
    pub(crate) fn is_for(&self, queue: *const c_void) -> bool {
        self.queue == queue
    }

    /// Passes a completely arrived message to the function. Returns false if nothing was done.
    #[inline(always)]
    pub(crate) fn deliver(&self, source: fi_addr_t, bytes: impl MessageBytes) -> bool {
        // SAFETY: by the contract of `new`; the bytes live for the call.
        unsafe { (self.deliver)(self.context, source, bytes.address(), bytes.count()) == 1 }
    }
}

/// [`DeliverPacketFn`] calling a closure of this type, its context. A panic of the closure counts as
/// a declined message.
///
/// # Safety
/// `context` points to a closure `F` without another user; `len` bytes at `first` are readable.
pub(crate) unsafe extern "C" fn deliver_to<F>(
    context: *mut c_void,
    source: fi_addr_t,
    first: *const u8,
    len: usize,
) -> c_int
where
    F: FnMut(fi_addr_t, UntrustedBytes<'_>) -> bool,
{
    let delivered = ffi_guard_nocancel("a message of a core provider", || -> ssize_t {
        // SAFETY: by this function's contract.
        let (take, bytes) = unsafe { (&mut *context.cast::<F>(), UntrustedBytes::new(first, len)) };
        take(source, bytes).into()
    });
    delivered as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `work` with a sink passing messages to `take`.
    fn with_sink<F: FnMut(fi_addr_t, UntrustedBytes<'_>) -> bool>(
        mut take: F,
        work: impl FnOnce(PacketSink<'_>),
    ) {
        let queue = std::ptr::without_provenance(8);
        // SAFETY: the closure outlives the call, and is used by the sink alone.
        work(unsafe { PacketSink::new(queue, deliver_to::<F>, (&raw mut take).cast()) });
    }

    #[test]
    fn sink_passes_messages_of_its_queue_to_the_closure() {
        let mut came = Vec::new();
        let take = |source, bytes: UntrustedBytes<'_>| {
            came.push((source, bytes.first_chunk::<2>(), bytes.len()));
            bytes.len() > 1
        };
        with_sink(take, |sink| {
            assert!(sink.is_for(std::ptr::without_provenance(8)));
            assert!(!sink.is_for(std::ptr::without_provenance(16)));
            assert!(sink.deliver(7, &b"abc"[..]));
            assert!(!sink.deliver(8, &b"d"[..]));
        });
        assert_eq!(came, [(7, Some(*b"ab"), 3), (8, None, 1)]);
    }

    #[test]
    fn panicking_closure_declines_the_message() {
        let take = |_, _: UntrustedBytes<'_>| panic!("no message is wanted");
        with_sink(take, |sink| assert!(!sink.deliver(7, &b"abc"[..])));
    }
}
