//! Buffered receives of 1.x (fi_msg(3) as of 1.7 to 1.22): messages arrive in the provider's
//! buffers, and the application claims or discards reported messages.
//!
//! Untagged messages are reported at arrival. A tagged message waits until the application posts a
//! matching tag, and is reported with its context (fi_tagged(3), Buffered Tagged Receives).
use crate::abi::{FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN, fi_recv_context};
use crate::cq::Context;
use crate::eq::FidPtr;
use crate::error::{Error, Result};
pub use crate::variable::{VARIABLE_MSG, bits, is_asked};
use core::ffi::c_int;
use std::cell::UnsafeCell;
use std::collections::HashMap;

/// Structure at the address identifying a reported message in a claim or discard. Until then the
/// application may write to its member `context`.
#[derive(Debug)]
struct RecvContext(Box<UnsafeCell<fi_recv_context>>);

// SAFETY: shared references give out nothing but the address; what is behind it
// is read only by `into_context`, which owns it.
unsafe impl Sync for RecvContext {}
// SAFETY: what is behind the address is used by its one owner; the pointers in it are the
// application's, for the application.
unsafe impl Send for RecvContext {}

impl RecvContext {
    /// Returns a context for a message to this endpoint, with the context of the posted tag if it
    /// matched one.
    fn new(ep: FidPtr, context: Context) -> Self {
        let context = fi_recv_context { ep: ep.0.cast(), context: context.0 };
        Self(Box::new(UnsafeCell::new(context)))
    }

    /// The address of the structure, as the application knows it.
    fn address(&self) -> Context {
        Context(self.0.get().cast())
    }

    /// Returns the context stored in the structure by the application for the completion of its
    /// claim.
    fn into_context(self) -> Context {
        Context(self.0.into_inner().context)
    }
}

/// Reported message, neither claimed nor discarded yet.
#[derive(Debug)]
struct ReportedMessage {
    queue: usize,
    message: u32,
    context: RecvContext,
    /// Start of the message referenced by its entry, if the message has not fully arrived.
    _start: Option<Box<[u8]>>,
}

/// State of an endpoint with buffered receives: its options, and its reported messages. A message
/// is identified by its queue in the engine and its number there.
#[derive(Debug)]
pub struct Buffering {
    /// Messages up to this many bytes are reported whole (FI_OPT_BUFFERED_LIMIT).
    limit: usize,
    /// Minimum bytes reported with a long message (FI_OPT_BUFFERED_MIN).
    start: usize,
    /// The largest values of `limit` and `start`.
    most: [usize; 2],
    /// The endpoint is enabled: the options cannot be set any more.
    fixed: bool,
    /// Reported messages, by the address of the context passed to the application.
    reported: HashMap<usize, ReportedMessage>,
    /// Messages matched by a posted tag, to be reported once enough bytes have arrived, with the
    /// context of the tag.
    due: HashMap<(usize, u32), Context>,
}

impl Buffering {
    /// Default FI_OPT_BUFFERED_LIMIT of an endpoint in bytes, as in upstream libfabric.
    pub const DEFAULT_LIMIT: usize = 16384;

    /// The state of an endpoint with this limit to begin with; `most` are the largest limit and
    /// start.
    pub fn new(limit: usize, most: [usize; 2]) -> Self {
        Self {
            limit: limit.min(most[0]),
            start: 0,
            most,
            fixed: false,
            reported: HashMap::new(),
            due: HashMap::new(),
        }
    }

    /// Reads FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes.
    pub fn option(&self, name: c_int) -> Result<usize> {
        match name {
            FI_OPT_BUFFERED_LIMIT => Ok(self.limit),
            FI_OPT_BUFFERED_MIN => Ok(self.start),
            _ => Err(Error::NOPROTOOPT),
        }
    }

    /// Sets FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes.
    pub fn set_option(&mut self, name: c_int, value: usize) -> Result {
        let (limit, most) = match name {
            FI_OPT_BUFFERED_LIMIT => (&mut self.limit, self.most[0]),
            FI_OPT_BUFFERED_MIN => (&mut self.start, self.most[1]),
            _ => return Err(Error::NOPROTOOPT),
        };
        if self.fixed {
            return Err(Error::OPBADSTATE);
        }
        *limit = match value {
            // SIZE_MAX asks for as much as there can be.
            usize::MAX => most,
            value if value <= most => value,
            _ => return Err(Error::MSGSIZE),
        };
        Ok(())
    }

    /// Called when the endpoint is enabled: fixes the options.
    pub fn fix(&mut self) {
        self.fixed = true;
    }

    /// Returns true if a message of `len` bytes is reported by its start, with FI_MORE.
    pub fn is_long(&self, len: usize) -> bool {
        len > self.limit
    }

    /// Returns the number of bytes of a message of `len` bytes required for its report.
    pub fn wanted(&self, len: usize) -> usize {
        if self.is_long(len) { len.min(self.start) } else { len }
    }

    /// Records a message matched by a posted tag, to be reported once enough bytes have arrived.
    pub fn add_pending(&mut self, queue: usize, message: u32, context: Context) {
        self.due.insert((queue, message), context);
    }

    /// Takes out a message of [`add_pending`](Self::add_pending); returns the context its tag was posted with.
    pub fn take_pending(&mut self, queue: usize, message: u32) -> Option<Context> {
        self.due.remove(&(queue, message))
    }

    /// Takes out all messages of [`add_pending`](Self::add_pending), with the contexts their tags were posted
    /// with.
    pub fn take_all_pending(&mut self) -> impl Iterator<Item = (usize, u32, Context)> + use<> {
        let due = std::mem::take(&mut self.due);
        due.into_iter().map(|((queue, message), context)| (queue, message, context))
    }

    /// Records a reported message and returns the context for its entry, identifying it in a claim
    /// or discard. `posted` is the context of its tag, if it matched one; `start` the bytes
    /// referenced by its entry, if these are not the message itself.
    pub fn tell(
        &mut self,
        (queue, message): (usize, u32),
        ep: FidPtr,
        posted: Option<Context>,
        start: Option<Box<[u8]>>,
    ) -> Context {
        let context = match posted {
            Some(posted) => RecvContext::new(FidPtr(std::ptr::null_mut()), posted),
            None => RecvContext::new(ep, Context::NULL),
        };
        let address = context.address();
        self.reported
            .insert(address.0 as usize, ReportedMessage { queue, message, context, _start: start });
        address
    }

    /// Removes the message identified by the context of its entry. Returns its number, and the
    /// context stored in the structure by the application.
    pub fn take(&mut self, context: Context, queue: usize) -> Option<(u32, Context)> {
        let key = context.0 as usize;
        self.reported.get(&key).filter(|reported| reported.queue == queue)?;
        self.reported
            .remove(&key)
            .map(|reported| (reported.message, reported.context.into_context()))
    }

    /// Returns true if a message was reported and is neither claimed nor discarded yet.
    pub fn has_notified(&self, queue: usize, message: u32) -> bool {
        self.reported
            .values()
            .any(|reported| (reported.queue, reported.message) == (queue, message))
    }

    /// Removes all messages reported and neither claimed nor discarded.
    pub fn take_all_notified(&mut self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let reported = std::mem::take(&mut self.reported);
        reported.into_values().map(|reported| (reported.queue, reported.message))
    }
}

/// Buffered receives of an endpoint, if it has them.
#[derive(Debug)]
pub struct BufferedRecv {
    state: Option<Box<Buffering>>,
    /// The endpoint's fid, in the contexts of reported messages.
    fid: FidPtr,
}

impl Default for BufferedRecv {
    fn default() -> Self {
        Self { state: None, fid: FidPtr(std::ptr::null_mut()) }
    }
}

impl BufferedRecv {
    /// Enables buffered receives (FI_BUFFERED_RECV) on an endpoint without shared queues; `most`
    /// are the maximum values of FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN.
    pub fn enable(&mut self, most: [usize; 2]) {
        self.state = Some(Box::new(Buffering::new(Buffering::DEFAULT_LIMIT, most)));
    }

    /// Returns true if the endpoint has buffered receives.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.state.is_some()
    }

    /// Returns the state of buffered receives, if the endpoint has them.
    #[inline]
    pub fn state(&self) -> Option<&Buffering> {
        self.state.as_deref()
    }

    /// Returns the state of buffered receives, to change, if the endpoint has them.
    pub fn state_mut(&mut self) -> Option<&mut Buffering> {
        self.state.as_deref_mut()
    }

    /// Reads FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes; -FI_ENOPROTOOPT without
    /// buffered receives.
    pub fn option(&self, name: c_int) -> Result<usize> {
        self.state.as_ref().ok_or(Error::NOPROTOOPT)?.option(name)
    }

    /// Sets FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes; -FI_ENOPROTOOPT without
    /// buffered receives.
    pub fn set_option(&mut self, name: c_int, value: usize) -> Result {
        self.state.as_mut().ok_or(Error::NOPROTOOPT)?.set_option(name, value)
    }

    /// Sets the fid naming the endpoint in the contexts of reported messages.
    pub fn set_fid(&mut self, fid: FidPtr) {
        self.fid = fid;
    }

    /// Records a reported message, like [`Buffering::tell`]. Returns `None` without buffered
    /// receives.
    pub(super) fn report(
        &mut self,
        message: (usize, u32),
        posted: Option<Context>,
        start: Option<Box<[u8]>>,
    ) -> Option<Context> {
        let fid = self.fid;
        Some(self.state.as_mut()?.tell(message, fid, posted, start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(n: usize) -> Context {
        Context(n as *mut _)
    }

    #[test]
    fn a_message_is_settled_once_by_the_context_it_was_reported_with() {
        let mut buffering = Buffering::new(100, [1000, 10]);
        let ep = FidPtr(std::ptr::dangling_mut());
        let first = buffering.tell((0, 7), ep, None, None);
        let second = buffering.tell((1, 7), ep, Some(context(0x50)), Some(vec![1].into()));
        assert!(buffering.has_notified(0, 7) && buffering.has_notified(1, 7));
        // The other kind of call does not find it, nor any other context.
        assert!(buffering.take(first, 1).is_none());
        assert!(buffering.take(context(0x50), 1).is_none());
        assert_eq!(buffering.take(first, 0).map(|taken| taken.0), Some(7));
        assert!(buffering.take(first, 0).is_none());
        // A claim reports the context posted with the tag, unless it was changed.
        assert_eq!(buffering.take(second, 1).map(|(id, c)| (id, c.0 as usize)), Some((7, 0x50)));
        assert!(!buffering.has_notified(1, 7));
    }

    #[test]
    fn of_a_message_past_the_limit_its_start_is_wanted() {
        let mut buffering = Buffering::new(Buffering::DEFAULT_LIMIT, [1000, 10]);
        assert_eq!(buffering.option(FI_OPT_BUFFERED_LIMIT), Ok(1000));
        buffering.set_option(FI_OPT_BUFFERED_LIMIT, 100).unwrap();
        buffering.set_option(FI_OPT_BUFFERED_MIN, usize::MAX).unwrap();
        assert_eq!(buffering.set_option(FI_OPT_BUFFERED_MIN, 11), Err(Error::MSGSIZE));
        assert_eq!([0, 100, 101].map(|len| buffering.wanted(len)), [0, 100, 10]);
        assert!(!buffering.is_long(100) && buffering.is_long(101));
        buffering.fix();
        assert_eq!(buffering.set_option(FI_OPT_BUFFERED_MIN, 1), Err(Error::OPBADSTATE));
    }

    #[test]
    fn matched_message_keeps_its_context_until_reported() {
        let mut buffering = Buffering::new(100, [1000, 10]);
        buffering.add_pending(1, 3, context(1));
        assert!(buffering.take_pending(1, 4).is_none());
        assert!(buffering.take_pending(1, 3).is_some() && buffering.take_pending(1, 3).is_none());
    }
}
