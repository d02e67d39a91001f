//! Emulated system for wait objects: event descriptors, epoll, a stopped clock, and the sleep of
//! `providers/common/c/cancel.c`.
use crate::error::{Error, Result};
use crate::primitives::{AtomicU32, Condvar, Mutex, sleep_while};
use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Default)]
struct Event {
    there: Mutex<bool>,
    came: Condvar,
}

/// Open objects by number. loom runs one thread at a time, so there is no contention.
static OPEN: std::sync::Mutex<Option<HashMap<RawFd, Arc<Event>>>> = std::sync::Mutex::new(None);

fn open<R>(act: impl FnOnce(&mut HashMap<RawFd, Arc<Event>>) -> R) -> R {
    act(OPEN.lock().unwrap().get_or_insert_default())
}

fn add(event: Arc<Event>) -> RawFd {
    open(|open| {
        let fd = (0..).find(|fd| !open.contains_key(fd)).unwrap();
        open.insert(fd, event);
        fd
    })
}

#[derive(Debug)]
pub struct EventFd(RawFd);

impl EventFd {
    pub fn new() -> Result<Self> {
        Ok(Self(add(Arc::default())))
    }
    fn event(&self) -> Arc<Event> {
        open(|open| open[&self.0].clone())
    }
    pub fn signal(&self) {
        let event = self.event();
        *event.there.lock().unwrap() = true;
        event.came.notify_all();
    }
    pub fn drain(&self) {
        *self.event().there.lock().unwrap() = false;
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        open(|open| open.remove(&self.0));
    }
}

pub struct Interest;
impl Interest {
    pub const READ: Self = Self;
}

/// An epoll instance with one event in it.
#[derive(Debug)]
pub struct Epoll(RawFd);

impl Epoll {
    pub fn new() -> Result<Self> {
        Ok(Self(add(Arc::default())))
    }
    /// Nothing forks here.
    pub fn is_inherited(&self) -> bool {
        false
    }
    pub fn add(&self, fd: RawFd, token: u64, _: Interest) -> Result {
        // There is no source but the object's own event here.
        if token != 0 {
            return Err(Error::INVAL);
        }
        open(|open| {
            let event = open[&fd].clone();
            open.insert(self.0, event)
        });
        Ok(())
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        open(|open| open.remove(&self.0));
    }
}

/// Waits until an epoll instance, or the event itself, is readable.
pub fn poll(fd: RawFd) {
    let event = open(|open| open[&fd].clone());
    let mut there = event.there.lock().unwrap();
    while !*there {
        there = event.came.wait(there).unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Deadline;

impl Deadline {
    pub fn after_ms(_: c_int) -> Self {
        Self
    }
    pub fn passed(&self) -> bool {
        false
    }
    pub fn left(&self) -> Option<Duration> {
        None
    }
}

pub fn millis(_: Option<Duration>) -> c_int {
    -1
}

/// `struct ofi_waiter`
#[repr(C)]
struct Waiter {
    wait: *const c_void,
    ticket: *const AtomicU32,
    sources: *const c_void,
    end_wait: *const c_void,
    nanos: i64,
    ms: i32,
    epoll: i32,
    seen: u32,
    signalled: u32,
    interrupted: u32,
}

/// `ofi_sleep` of `cancel.c`, for threads never cancelled.
///
/// # Safety
/// `waiter` is one of `wait.rs`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ofi_sleep(
    waiter: *mut c_void,
    _abandon: unsafe extern "C" fn(*mut c_void),
) {
    // SAFETY: by this function's contract.
    let waiter = unsafe { &mut *waiter.cast::<Waiter>() };
    // SAFETY: it is what `as_ptr` of `primitives.rs` gave.
    let ticket = unsafe { &*waiter.ticket };
    if waiter.epoll >= 0 {
        poll(waiter.epoll);
        waiter.signalled = 1;
    } else {
        sleep_while(ticket, waiter.seen);
    }
}

/// Returns true if a sleep ended with EINTR because of a signal: always, without an io_uring.
pub(crate) fn is_signal(interrupted: bool) -> bool {
    interrupted
}

/// Blocked signals of threads never receiving any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldSignals;

impl HeldSignals {
    pub(crate) fn hold() -> Self {
        Self
    }

    pub(crate) fn release(self) -> bool {
        false
    }

    pub(crate) fn end(self) {}

    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn end_if_cancelled(&self) {}
}

/// Returns the time of a clock making every duration long.
pub(crate) fn fine_now() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NOW: AtomicU64 = AtomicU64::new(1);
    NOW.fetch_add(1_000_000_000, Ordering::Relaxed)
}
