//! Shared receive contexts of a core provider (fi_srx_context(3)).
use super::in_flight::{CoreOpKind, InFlightOps};
use super::memory::CoreBuf;
use super::post::{post, recv};
use super::queue::{CoreCq, CoreEntry};
use crate::abi::{self, fi_addr_t, fi_rx_attr, fid, fid_ep};
use crate::buf::UntrustedBytes;
use crate::error::{Error, Result};
use crate::lock::NestedGuard;
use core::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// Flags absent in entries of messages handled by [`SharedRx::arrived`].
const SPECIAL: u64 = abi::FI_REMOTE_WRITE | abi::FI_REMOTE_CQ_DATA | abi::FI_TAGGED;

/// Shared receive context of a core provider.
#[derive(Debug)]
pub struct SharedRx {
    raw: NonNull<fid_ep>,
    owner: u32,
    cq: Arc<CoreCq>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for SharedRx {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for SharedRx {}

impl SharedRx {
    /// Opens a context for endpoints reporting to `cq`.
    pub fn open(cq: &Arc<CoreCq>, attr: &fi_rx_attr) -> Result<Arc<Self>> {
        let raw = cq.domain().srx(attr)?;
        Ok(Arc::new(Self { raw, owner: cq.owner(), cq: cq.clone() }))
    }

    pub(super) fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// Fast path of the most common case: returns a message in a buffer of this context, to be
    /// parsed in place. Returns `None` for any other entry; it has to be passed to
    /// [`CoreCq::done`].
    #[inline(always)]
    pub fn arrived(&self, entry: CoreEntry<'_>) -> Option<ArrivedPacket<'_>> {
        let of = entry.of;
        if of.flags & SPECIAL != 0 {
            return None;
        }
        let context = of.op_context as usize;
        let flights = self.cq.lock_flights();
        let flight = flights.get(context).filter(|flight| flight.owner() == self.owner)?;
        let buf = flight.buf()?;
        let (base, capacity, desc) = (buf.base(), buf.len(), buf.desc());
        let (len, source) = (of.len.min(capacity), entry.src);
        Some(ArrivedPacket {
            srx: self,
            _flights: flights,
            base,
            capacity,
            len,
            desc,
            context,
            source,
        })
    }

    /// Posts a buffer for a message of any endpoint.
    pub fn post(&self, buf: CoreBuf, token: u64) -> core::result::Result<(), (Error, CoreBuf)> {
        // SAFETY: open.
        unsafe { post(self.raw, &self.cq, self.owner, buf, token, CoreOpKind::FirstRecv) }
    }
}

/// A message in a buffer of a shared receive context ([`SharedRx::arrived`]). If it is not posted
/// again, nothing has happened.
#[derive(Debug)]
pub struct ArrivedPacket<'a> {
    srx: &'a SharedRx,
    /// Guard keeping the buffer in place.
    _flights: NestedGuard<'a, InFlightOps>,
    base: NonNull<u8>,
    capacity: usize,
    len: usize,
    desc: *mut c_void,
    context: usize,
    /// Source of the message, as reported by the core.
    pub source: fi_addr_t,
}

impl ArrivedPacket<'_> {
    /// The message.
    #[inline(always)]
    pub fn bytes(&self) -> UntrustedBytes<'_> {
        // SAFETY: the buffer has `capacity` bytes, at least `len`, and belongs to the transfer. The
        // transfer stays in the table while the lock is held.
        unsafe { UntrustedBytes::new(self.base.as_ptr(), self.len) }
    }

    /// Posts the buffer again unchanged. Returns the buffer if the core has no space for it.
    #[inline(always)]
    pub fn post_again(self) -> core::result::Result<(), CoreBuf> {
        let Self { srx, _flights: flights, base, capacity, desc, context, .. } = self;
        drop(flights);
        // SAFETY: open; the memory stays with the queue until the next completion.
        match unsafe { recv(srx.raw, base.as_ptr(), capacity, desc, context) } {
            Ok(()) => Ok(()),
            Err(_) => srx.cq.give_back(context).map_or(Ok(()), Err),
        }
    }
}

impl Drop for SharedRx {
    fn drop(&mut self) {
        // SAFETY: open; its endpoints hold a count on this, so none is left.
        drop(unsafe { self.cq.close_owner(self.fid(), self.owner) });
    }
}
