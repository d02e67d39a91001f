//! What a caller blocks on: the wait object of a queue or counter.
//!
//! All kinds are built on one epoll instance that holds the descriptors of
//! whatever must be progressed and one event descriptor that is signalled when
//! an entry is written. Descriptor handed to the application (FI_WAIT_FD),
//! blocking reads and wait sets all use it; FI_WAIT_MUTEX_COND also gets a
//! condition variable for the application to sleep on.
use crate::abi::{c_enum, fi_mutex_cond, fi_wait_obj};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::sys::{Deadline, Epoll, EventFd, Interest};
use core::ffi::{c_int, c_void};
use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kinds of wait object an application can ask for (fi_eq(3), fi_cq(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// FI_WAIT_NONE: the application polls.
    None,
    /// FI_WAIT_FD, and FI_WAIT_UNSPEC, which leaves the choice to us.
    Fd,
    /// FI_WAIT_MUTEX_COND.
    MutexCond,
    /// FI_WAIT_YIELD: a blocking read gives up the processor between looks.
    Yield,
}

impl Kind {
    /// The kind for a `wait_obj` field; FI_WAIT_SET is for the caller to look
    /// at first, FI_WAIT_POLLFD is not built.
    pub fn from_attr(wait_obj: c_enum<fi_wait_obj>) -> Result<Self> {
        use fi_wait_obj::*;
        Ok(match wait_obj {
            w if w == FI_WAIT_NONE => Self::None,
            w if w == FI_WAIT_UNSPEC || w == FI_WAIT_FD || w == FI_WAIT_SET => Self::Fd,
            w if w == FI_WAIT_MUTEX_COND => Self::MutexCond,
            w if w == FI_WAIT_YIELD => Self::Yield,
            w if w == FI_WAIT_POLLFD => return Err(Error::NOSYS),
            _ => return Err(Error::INVAL),
        })
    }
}

/// The mutex and condition variable of FI_WAIT_MUTEX_COND, which the
/// application locks and waits on itself.
struct MutexCond {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    cond: UnsafeCell<libc::pthread_cond_t>,
}

// SAFETY: both are made to be used from many threads, through pthread calls only.
unsafe impl Send for MutexCond {}
// SAFETY: as above.
unsafe impl Sync for MutexCond {}

impl MutexCond {
    fn new() -> Box<Self> {
        Box::new(Self {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            cond: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
        })
    }

    fn signal(&self) {
        // SAFETY: both are initialised and, being boxed, never move.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            libc::pthread_cond_broadcast(self.cond.get());
            libc::pthread_mutex_unlock(self.mutex.get());
        }
    }
}

/// Where the wait object of a queue is, and what wakes it.
pub struct Wait {
    kind: Kind,
    epoll: Epoll,
    event: EventFd,
    mutex_cond: Option<Box<MutexCond>>,
    /// Somebody blocks, or is about to: the next entry must signal.
    armed: AtomicBool,
    /// `fi_cq_signal` was called and no blocking read has noticed yet.
    signalled: AtomicBool,
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wait({:?})", self.kind)
    }
}

impl Wait {
    /// A wait object of this kind, woken by nothing yet.
    pub fn new(kind: Kind) -> Result<Self> {
        let (epoll, event) = (Epoll::new()?, EventFd::new()?);
        epoll.add(event.as_raw_fd(), 0, Interest::READ)?;
        Ok(Self {
            kind,
            epoll,
            event,
            mutex_cond: (kind == Kind::MutexCond).then(MutexCond::new),
            armed: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
        })
    }

    /// Also wakes when `source` has something to do. A source that several
    /// objects of a queue share is added once.
    pub fn add_source(&self, source: &dyn Progress) -> Result {
        match self.epoll.add(source.wait_fd(), 1, Interest::READ) {
            Err(error) if error.code() == libc::EEXIST => Ok(()),
            other => other,
        }
    }

    /// What the application asked for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// An entry was written. Cheap when nobody blocks.
    #[inline]
    pub fn entry_written(&self) {
        if self.armed.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.event.signal();
        if let Some(pair) = &self.mutex_cond {
            pair.signal();
        }
    }

    /// `fi_cq_signal`: makes a blocking read return.
    pub fn signal(&self) {
        self.signalled.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Prepares for blocking: from now on an entry signals. The caller then
    /// looks whether it has entries already.
    pub fn arm(&self) {
        self.event.drain();
        // An application that holds a condition variable is woken by every
        // entry, because nothing tells us when it blocks again.
        self.armed.store(true, Ordering::SeqCst);
    }

    fn disarm(&self) {
        if self.mutex_cond.is_none() {
            self.armed.store(false, Ordering::SeqCst);
        }
    }

    /// Blocks until something may have changed or `limit` is over.
    fn block(&self, limit: Option<Duration>) -> Result {
        self.epoll.wait(limit, |_| ()).map(|_| ())
    }

    /// FI_GETWAIT: fills what the application passed for this kind.
    ///
    /// # Safety
    /// `arg` points to an int for FI_WAIT_FD, to a `struct fi_mutex_cond` for
    /// FI_WAIT_MUTEX_COND.
    pub unsafe fn get(&self, arg: *mut c_void) -> Result {
        if arg.is_null() {
            return Err(Error::INVAL);
        }
        match (self.kind, &self.mutex_cond) {
            (Kind::Fd, _) => {
                // SAFETY: by this function's contract.
                unsafe { arg.cast::<c_int>().write(self.fd()) };
                Ok(())
            }
            (Kind::MutexCond, Some(pair)) => {
                self.arm();
                let pair = fi_mutex_cond { mutex: pair.mutex.get(), cond: pair.cond.get() };
                // SAFETY: by this function's contract.
                unsafe { arg.cast::<fi_mutex_cond>().write(pair) };
                Ok(())
            }
            _ => Err(Error::NODATA),
        }
    }
}

/// The loop of every blocking read: look, progress, and sleep in between.
///
/// `look` answers what was found, or -FI_EAGAIN; it is also what progresses.
/// `ready` tells without side effects whether there is something to read,
/// `sources_may_block` whether what is progressed would wake a sleeper.
/// Returns -FI_EAGAIN when the time is over or after `fi_cq_signal`.
pub fn blocking<T>(
    wait: Option<&Wait>,
    timeout: c_int,
    sources_may_block: impl Fn() -> bool,
    mut look: impl FnMut() -> Result<T>,
    ready: impl Fn() -> bool,
) -> Result<T> {
    let deadline = Deadline::after_ms(timeout);
    loop {
        match look() {
            Err(Error::AGAIN) => {}
            other => return other,
        }
        let Some(wait) = wait else {
            // No wait object: fi_cq(3) leaves this undefined; we poll kindly.
            if deadline.passed() {
                return Err(Error::AGAIN);
            }
            std::thread::yield_now();
            continue;
        };
        if wait.signalled.swap(false, Ordering::SeqCst) {
            wait.event.drain();
            return Err(Error::AGAIN);
        }
        if deadline.passed() {
            return Err(Error::AGAIN);
        }
        if wait.kind == Kind::Yield {
            std::thread::yield_now();
            continue;
        }
        wait.arm();
        let quiet = !ready() && !wait.signalled.load(Ordering::SeqCst);
        if quiet && sources_may_block() {
            wait.block(deadline.left())?;
        }
        wait.disarm();
    }
}
