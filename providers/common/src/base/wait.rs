//! Wait object of a queue or counter.
//!
//! All kinds use one epoll instance, with the descriptors of all progress sources and one event
//! descriptor signalled for each written entry. It serves the descriptor handed to the application
//! (FI_WAIT_FD), blocking reads and wait sets. FI_WAIT_MUTEX_COND additionally provides a condition
//! variable for the application.
use crate::abi::{c_enum, fi_mutex_cond, fi_wait_obj, fi_wait_pollfd};
use crate::boundary::{end_if_cancelled, ffi_guard};
use crate::error::{Error, Result};
use crate::primitives::{
    AtomicBool, AtomicU32, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, fence, wake_all,
    yield_now,
};
use crate::progress::{Progress, all_fds};
use crate::sys::{Deadline, Epoll, EventFd, HeldSignals, Interest, fine_now, is_signal};
use crate::worker::{Worker, rest};
use core::ffi::{c_int, c_void};
use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, RawFd};
// For what is a guess: nothing depends on the orders in which threads see it, and the models try none.
use std::sync::atomic as guess;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The kinds of wait object an application can ask for (fi_eq(3), fi_cq(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitKind {
    /// FI_WAIT_NONE: the application polls.
    None,
    /// FI_WAIT_FD, and FI_WAIT_UNSPEC with the choice left to the provider.
    Fd,
    /// FI_WAIT_POLLFD: a list of descriptors, here with a single unchanging one.
    PollFd,
    /// FI_WAIT_MUTEX_COND: the application sleeps on a condition variable itself.
    MutexCond,
    /// FI_WAIT_YIELD: a blocking read yields the processor between polls.
    Yield,
}

impl WaitKind {
    /// Returns the kind for a `wait_obj` field. The caller handles FI_WAIT_SET before this call.
    pub fn from_attr(wait_obj: c_enum<fi_wait_obj>) -> Result<Self> {
        use fi_wait_obj::*;
        Ok(match wait_obj {
            w if w == FI_WAIT_NONE => Self::None,
            w if w == FI_WAIT_UNSPEC || w == FI_WAIT_FD || w == FI_WAIT_SET => Self::Fd,
            w if w == FI_WAIT_MUTEX_COND => Self::MutexCond,
            w if w == FI_WAIT_YIELD => Self::Yield,
            w if w == FI_WAIT_POLLFD => Self::PollFd,
            _ => return Err(Error::INVAL),
        })
    }

    /// FI_GETWAITOBJ: returns the kind of wait object to the application.
    ///
    /// # Safety
    /// `arg` is null or points to an enum fi_wait_obj.
    pub unsafe fn tell(self, arg: *mut c_void) -> Result {
        if arg.is_null() {
            return Err(Error::INVAL);
        }
        let kind = match self {
            Self::None => fi_wait_obj::FI_WAIT_NONE,
            Self::Fd => fi_wait_obj::FI_WAIT_FD,
            Self::PollFd => fi_wait_obj::FI_WAIT_POLLFD,
            Self::MutexCond => fi_wait_obj::FI_WAIT_MUTEX_COND,
            Self::Yield => fi_wait_obj::FI_WAIT_YIELD,
        };
        // SAFETY: by this function's contract.
        unsafe { arg.cast::<c_int>().write(kind as c_int) };
        Ok(())
    }
}

/// Mutex and condition variable of FI_WAIT_MUTEX_COND, locked and waited on by the application
/// itself.
struct MutexCond {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    cond: UnsafeCell<libc::pthread_cond_t>,
    helper: Mutex<SignalHelper>,
    asked: Condvar,
}

/// Thread signalling the condition if the writer of an entry must not wait for the mutex.
#[derive(Debug, Default)]
struct SignalHelper {
    runs: bool,
    asked: bool,
    over: bool,
}

// SAFETY: mutex and condition are made to be used from many threads, through
// pthread calls only; the rest is thread-safe by itself.
unsafe impl Send for MutexCond {}
// SAFETY: mutex and condition are used through pthread calls only; the rest is thread-safe by
// itself.
unsafe impl Sync for MutexCond {}

impl MutexCond {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            cond: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
            helper: Mutex::default(),
            asked: Condvar::new(),
        })
    }

    /// Signals the application's condition variable: now, or, while the application holds the
    /// mutex, after its release. The application may hold the mutex in the very call writing the
    /// entry.
    fn signal(self: &Arc<Self>) {
        // SAFETY: both are initialised and, being in an `Arc`, never move.
        let signalled = unsafe {
            let free = libc::pthread_mutex_trylock(self.mutex.get()) == 0;
            if free {
                libc::pthread_cond_broadcast(self.cond.get());
                libc::pthread_mutex_unlock(self.mutex.get());
            }
            free
        };
        if signalled {
            return;
        }
        let mut helper = self.helper();
        helper.asked = true;
        if !helper.runs {
            let own = self.clone();
            // The helper thread ends by itself when it is not needed any more.
            helper.runs = Worker::start("ofi-cond", move || own.help()).is_ok();
        }
        self.asked.notify_one();
    }

    fn helper(&self) -> MutexGuard<'_, SignalHelper> {
        self.helper.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn help(&self) {
        loop {
            let mut helper = self.helper();
            while !helper.asked && !helper.over {
                let asked = rest(|| self.asked.wait(helper));
                helper = asked.unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            if helper.over {
                return;
            }
            helper.asked = false;
            drop(helper);
            // SAFETY: as in `signal`; the thread has a count of its own.
            unsafe {
                libc::pthread_mutex_lock(self.mutex.get());
                libc::pthread_cond_broadcast(self.cond.get());
                libc::pthread_mutex_unlock(self.mutex.get());
            }
        }
    }
}

/// Converts a cancellable entry point to the type of a table slot. The C type cannot express
/// unwinding. A caller is a C program, or calls the function by its real type, or disables
/// cancellation for the call ([`CancelDisabled`]).
///
/// [`CancelDisabled`]: crate::boundary::CancelDisabled
macro_rules! cancellable {
    ($function:path: fn($($arg:ty),* $(,)?) -> $ret:ty) => {{
        type Unwinds = unsafe extern "C-unwind" fn($($arg),*) -> $ret;
        // SAFETY: the two kinds of function are called in the same way.
        Some(unsafe {
            core::mem::transmute::<Unwinds, unsafe extern "C" fn($($arg),*) -> $ret>($function)
        })
    }};
}
pub(crate) use cancellable;

/// Bit of [`Wait::armed`]: the application may block on the wait object itself. The library is not
/// notified when this ends.
const APPLICATION: usize = 1 << (usize::BITS - 1);

/// Change counter of the descriptor list of FI_WAIT_POLLFD; it is constant.
const POLL_FDS: u64 = 1;

/// Epoll tokens: the wait object's own event descriptor, or a source of progress.
const OWN: u64 = 0;
const SOURCE: u64 = 1;

/// Longest sleep of a blocking call while some of its sources cannot wake it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);

/// Nanoseconds of busy polling before a sleep, if a response is likely to come sooner than a
/// wakeup; also the maximum waiting time of the previous call for this prediction.
const LOOKED_ON: u64 = 200_000;

/// Nanoseconds of polling before a call blocks signals; the following constant limits the time
/// until it unblocks them. Falling asleep may take longer than the former anyway.
const HELD_AFTER: u64 = 5_000;
const HELD_MOST: u64 = 200_000;

/// Maximum doublings of the number of calls sleeping at once after an unsuccessful busy poll.
const DOUBLED_MOST: u32 = 10;

/// Predictor for busy polling of blocking calls.
///
/// A sleep and a wakeup take the kernel microseconds, and tens of them if the processor has to wake
/// as well. With fast responses this would be most of the time. So a call busy-polls if the
/// previous one had its response soon; other threads get the processor meanwhile ([`backoff`]).
/// After an unsuccessful busy poll the next calls sleep at once: two, four, eight… of them, so
/// little is lost if polling never pays.
///
/// [`backoff`]: crate::backoff
#[derive(Debug, Default)]
struct BusyPollBudget {
    /// The last call had its answer soon.
    soon: guess::AtomicBool,
    /// Consecutive unsuccessful busy polls, and the number of calls still to sleep at once for
    /// them.
    empty_polls: guess::AtomicU32,
    skipped: guess::AtomicU32,
    /// End of the busy polling of a call, in nanoseconds of [`fine_now`].
    until: guess::AtomicU64,
}

impl BusyPollBudget {
    /// Returns the end of busy polling for a call without a result now; 0 for a sleep.
    fn begin(&self, now: u64) -> u64 {
        if !self.soon.load(Ordering::Relaxed) {
            return 0;
        }
        let skipped = self.skipped.load(Ordering::Relaxed);
        if skipped > 0 {
            self.skipped.store(skipped - 1, Ordering::Relaxed);
            return 0;
        }
        // One is enough. It may have been cancelled, so its time is what counts.
        if now < self.until.load(Ordering::Relaxed) {
            return 0;
        }
        self.until.store(now + LOOKED_ON, Ordering::Relaxed);
        now + LOOKED_ON
    }

    /// Records busy polling without an event, before the caller sleeps.
    #[cold]
    fn on_empty_poll(&self) {
        let empty_polls = (self.empty_polls.load(Ordering::Relaxed) + 1).min(DOUBLED_MOST);
        self.empty_polls.store(empty_polls, Ordering::Relaxed);
        self.skipped.store(1 << empty_polls, Ordering::Relaxed);
    }

    /// Records the result of a call without an immediate one, found while it `looks_on` or later.
    fn answered(&self, began: u64, looks_on: bool) {
        self.soon.store(fine_now().saturating_sub(began) < LOOKED_ON, Ordering::Relaxed);
        self.until.store(0, Ordering::Relaxed);
        if looks_on {
            self.empty_polls.store(0, Ordering::Relaxed);
        }
    }
}

/// Election of the call waiting on a shared wait object.
///
/// Only one blocking call at a time waits on epoll. It alone resets the event and wakes all others
/// afterwards, so none misses an entry because of a faster one.
#[derive(Debug, Default)]
struct WaiterElection {
    /// A call waits on epoll.
    led: bool,
    /// Number of other calls waiting for the leading call.
    followers: usize,
}

/// Sources of progress of a queue, counter or wait set with blocking calls.
pub trait WakeSources {
    /// Returns true if all of them would wake the calling thread. It is about to sleep.
    fn may_block(&self) -> bool;

    /// The calling thread does not sleep any more after its last [`may_block`](Self::may_block).
    fn end_wait(&self);
}

/// Blocking call asleep or about to sleep. `c/cancel.c` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Waiter {
    wait: *const Wait,
    ticket: *const u32,
    /// The call's [`WakeSources`], and the function ending their wait.
    sources: *const c_void,
    end_wait: unsafe extern "C" fn(*const c_void),
    /// Longest sleep in nanoseconds, and the same in milliseconds; negative: for ever.
    nanos: i64,
    ms: i32,
    /// Epoll descriptor of the leading call's sleep; negative in the others.
    epoll: i32,
    /// Value of [`Wait::ticket`]; the others wait for its change.
    seen: u32,
    /// Set if the wait object's own event was signalled.
    signalled: u32,
    /// Set if a signal ended the sleep.
    interrupted: u32,
}

unsafe extern "C-unwind" {
    /// Blocks as described by `waiter`, and calls `abandon` if the thread is cancelled meanwhile
    /// (`c/cancel.c`).
    fn ofi_sleep(waiter: *mut c_void, abandon: unsafe extern "C" fn(*mut c_void));
}

/// Ends the sleep of a cancelled thread like a wakeup, and its wait like a return.
///
/// # Safety
/// `waiter` is a [`Waiter`] whose sleep has begun and not ended.
unsafe extern "C" fn abandon(waiter: *mut c_void) {
    // SAFETY: by this function's contract; the wait object's queue, and so its sources, are not
    // closed while it is called.
    unsafe {
        let waiter = &*waiter.cast::<Waiter>();
        (*waiter.wait).end_sleep(waiter);
        (waiter.end_wait)(waiter.sources);
    }
}

/// Ends the wait of a cancelled thread for these sources.
///
/// # Safety
/// `sources` is an `S`.
unsafe extern "C" fn end_wait<S: WakeSources>(sources: *const c_void) {
    ffi_guard("cancellation", || -> Result {
        // SAFETY: by this function's contract.
        unsafe { &*sources.cast::<S>() }.end_wait();
        Ok(())
    });
}

/// Wait object of a queue or counter, and its wakeup sources.
pub struct Wait {
    kind: WaitKind,
    epoll: Epoll,
    event: EventFd,
    mutex_cond: Option<Arc<MutexCond>>,
    /// Waiters to wake for an entry: the number of blocking calls and the ones about to block, and
    /// [`APPLICATION`]. With 0 an entry wakes nothing and costs next to nothing.
    armed: AtomicUsize,
    /// Election among blocking calls: one waits on epoll and wakes the others.
    election: Mutex<WaiterElection>,
    /// Number of wakeups of the call on epoll. It changes under the gate's lock, and the other
    /// calls sleep on it (futex(2)).
    ticket: AtomicU32,
    /// True if the event descriptor was signalled for the application and not reset since, so
    /// another signal is unnecessary.
    notified: AtomicBool,
    /// `fi_cq_signal` was called and no blocking read has noticed yet.
    signalled: AtomicBool,
    /// True if a source could not be added because the kernel limits the nesting of epoll
    /// instances. Blocking calls then poll for entries every [`ACCEPT_PAUSE`].
    accept_paused: AtomicBool,
    looking_on: BusyPollBudget,
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wait({:?})", self.kind)
    }
}

impl Wait {
    /// A wait object of this kind, without sources yet.
    pub fn new(kind: WaitKind) -> Result<Self> {
        let (epoll, event) = (Epoll::new()?, EventFd::new()?);
        epoll.add(event.as_raw_fd(), OWN, Interest::READ)?;
        Ok(Self {
            kind,
            epoll,
            event,
            mutex_cond: (kind == WaitKind::MutexCond).then(MutexCond::new),
            armed: AtomicUsize::new(0),
            election: Mutex::default(),
            ticket: AtomicU32::new(0),
            notified: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
            accept_paused: AtomicBool::new(false),
            looking_on: BusyPollBudget::default(),
        })
    }

    /// Adds a source: the wait object wakes when `source` has something to do. A source shared by
    /// several objects of a queue is added once.
    pub fn add_source(&self, source: &dyn Progress) -> Result {
        for fd in all_fds(source) {
            match self.epoll.add(fd, SOURCE, Interest::READ) {
                Err(error) if error.code() == libc::EEXIST => {}
                Err(error) if [libc::EINVAL, libc::ELOOP].contains(&error.code()) => {
                    self.accept_paused.store(true, Ordering::SeqCst);
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// The kind of wait object the application asked for.
    pub fn kind(&self) -> WaitKind {
        self.kind
    }

    /// Returns the descriptor to wait on, as handed out by FI_GETWAIT.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Wakes the waiters after an entry was written. Cheap if no thread blocks.
    #[inline]
    pub fn entry_written(&self) {
        if self.armed.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let alone = self.armed.load(Ordering::SeqCst) == APPLICATION && self.mutex_cond.is_none();
        if alone && self.notified.swap(true, Ordering::SeqCst) {
            // The descriptor stays readable until the application arms it again, and then looks
            // for entries itself: only the first entry costs a system call.
            return;
        }
        self.event.signal();
        if let Some(pair) = &self.mutex_cond {
            pair.signal();
        }
    }

    fn drain(&self) {
        self.event.drain();
        self.notified.store(false, Ordering::SeqCst);
    }

    /// `fi_cq_signal`: makes a blocking read return.
    pub fn signal(&self) {
        self.signalled.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Prepares for the application to block on the object itself: from now on an entry signals.
    /// The caller then checks for existing entries. Fails with -FI_EAGAIN if some source would not
    /// wake the application.
    pub fn arm(&self) -> Result {
        self.drain();
        if self.armed.fetch_or(APPLICATION, Ordering::SeqCst) & !APPLICATION != 0 {
            // The event that was just reset may have been for a call that blocks.
            self.event.signal();
        }
        if self.accept_paused.load(Ordering::SeqCst) { Err(Error::AGAIN) } else { Ok(()) }
    }

    fn election(&self) -> MutexGuard<'_, WaiterElection> {
        self.election.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Prepares a sleep until a possible change or the end of `limit`. Calls `may` after entries
    /// signal. Returns `None`, without a sleep, if it reports something to do.
    fn begin_sleep<S: WakeSources>(
        &self,
        limit: Option<Duration>,
        sources: &S,
        may: impl FnOnce() -> bool,
    ) -> Option<Waiter> {
        self.armed.fetch_add(1, Ordering::SeqCst);
        let seen = self.ticket.load(Ordering::SeqCst);
        let limit = match self.accept_paused.load(Ordering::SeqCst) {
            true => Some(limit.map_or(ACCEPT_PAUSE, |limit| limit.min(ACCEPT_PAUSE))),
            false => limit,
        };
        let can_continue = may();
        let mut election = self.election();
        // Another call may have been woken meanwhile by what this one waits for.
        if !can_continue || self.ticket.load(Ordering::SeqCst) != seen {
            self.armed.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let leads = !election.led;
        election.led = true;
        election.followers += usize::from(!leads);
        let nanos = |limit: Duration| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        Some(Waiter {
            wait: self,
            ticket: self.ticket.as_ptr(),
            sources: std::ptr::from_ref(sources).cast(),
            end_wait: end_wait::<S>,
            nanos: limit.map_or(-1, nanos),
            ms: crate::sys::millis(limit),
            epoll: if leads { self.fd() } else { -1 },
            seen,
            signalled: 0,
            interrupted: 0,
        })
    }

    /// Ends a sleep, however it ended, and wakes the other calls if this one led.
    fn end_sleep(&self, waiter: &Waiter) {
        let leads = waiter.epoll >= 0;
        if waiter.signalled != 0 {
            self.drain();
        }
        // Only after the event is reset are others woken, so that they see what it was for.
        let mut election = self.election();
        if leads {
            election.led = false;
            self.ticket.fetch_add(1, Ordering::SeqCst);
            if election.followers > 0 {
                wake_all(&self.ticket);
            }
        } else {
            election.followers -= 1;
        }
        drop(election);
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Signals again after a successful blocking read if there is `more`, because the read may have
    /// reset the event awaited by another thread or the application.
    fn pass_on(&self, more: impl FnOnce() -> bool) {
        if self.armed.load(Ordering::SeqCst) & APPLICATION != 0 && more() {
            self.event.signal();
        }
    }

    /// FI_GETWAIT: fills in the application's structure for this kind.
    ///
    /// # Safety
    /// `arg` points to an int for FI_WAIT_FD, to a `struct fi_wait_pollfd` with its number of
    /// entries for FI_WAIT_POLLFD, to a `struct fi_mutex_cond` for FI_WAIT_MUTEX_COND.
    pub unsafe fn get(&self, arg: *mut c_void) -> Result {
        if arg.is_null() {
            return Err(Error::INVAL);
        }
        match (self.kind, &self.mutex_cond) {
            (WaitKind::Fd, _) => {
                // SAFETY: by this function's contract.
                unsafe { arg.cast::<c_int>().write(self.fd()) };
                Ok(())
            }
            (WaitKind::PollFd, _) => {
                // SAFETY: by this function's contract.
                let list = unsafe { &mut *arg.cast::<fi_wait_pollfd>() };
                let capacity = std::mem::replace(&mut list.nfds, 1);
                list.change_index = POLL_FDS;
                if capacity == 0 {
                    return Err(Error::TOOSMALL);
                }
                if list.fd.is_null() {
                    return Err(Error::INVAL);
                }
                let entry = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: by this function's contract.
                unsafe { list.fd.write(entry) };
                Ok(())
            }
            (WaitKind::MutexCond, Some(pair)) => {
                // If a source cannot wake the application, its own timeout must.
                let _ = self.arm();
                let pair = fi_mutex_cond { mutex: pair.mutex.get(), cond: pair.cond.get() };
                // SAFETY: by this function's contract.
                unsafe { arg.cast::<fi_mutex_cond>().write(pair) };
                Ok(())
            }
            _ => Err(Error::NODATA),
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        // A forked child has no such thread, which may have been about to look whether it is asked.
        if let Some(pair) = self.mutex_cond.as_ref().filter(|_| !self.epoll.is_inherited()) {
            pair.helper().over = true;
            pair.asked.notify_one();
        }
    }
}

/// Wait object of a queue or counter; its sources are added at the first blocking call. Most are
/// never blocked on, and the kernel limits the nesting of epoll instances.
#[derive(Debug)]
pub struct Lazy {
    kind: WaitKind,
    wait: OnceLock<Wait>,
    /// The sources were added.
    ready: AtomicBool,
}

impl Lazy {
    /// Returns a wait object of this kind; with [`WaitKind::None`] there never is one. Its
    /// descriptors are opened now, so no blocking call lacks them. If it is `in_set`, the
    /// application blocks on the wait set, and they are opened on first use.
    pub fn new(kind: WaitKind, in_set: bool) -> Result<Self> {
        let wait = OnceLock::new();
        if kind != WaitKind::None && !in_set {
            let _ = wait.set(Wait::new(kind)?);
        }
        Ok(Self { kind, wait, ready: AtomicBool::new(false) })
    }

    /// Returns a wait object without support for blocking calls.
    pub fn none() -> Self {
        Self { kind: WaitKind::None, wait: OnceLock::new(), ready: AtomicBool::new(false) }
    }

    /// The kind of wait object the application asked for.
    pub fn kind(&self) -> WaitKind {
        self.kind
    }

    /// The wait object, if its sources were added already: later sources have to be added, too.
    pub fn made(&self) -> Option<&Wait> {
        if self.ready.load(Ordering::SeqCst) { self.wait.get() } else { None }
    }

    /// Returns the wait object for a blocking call, or `None` with [`WaitKind::None`]. The first
    /// call adds the wakeup sources by `sources`.
    pub fn get(&self, sources: impl FnOnce(&Wait) -> Result) -> Result<Option<&Wait>> {
        if self.kind == WaitKind::None {
            return Ok(None);
        }
        let wait = match self.wait.get() {
            Some(wait) => wait,
            None => {
                let wait = Wait::new(self.kind)?;
                self.wait.get_or_init(|| wait)
            }
        };
        if !self.ready.load(Ordering::SeqCst) {
            sources(wait)?;
            self.ready.store(true, Ordering::SeqCst);
            // A thread that writes an entry either sees the wait object, or wrote the entry
            // before the caller looks.
            fence(Ordering::SeqCst);
        }
        Ok(Some(wait))
    }

    /// Wakes the waiters after an entry was written. Cheap if no thread blocks.
    #[inline]
    pub fn entry_written(&self) {
        if let Some(wait) = self.wait.get() {
            wait.entry_written();
        }
    }
}

/// Action of a blocking call before its next poll.
#[derive(Clone, Copy, Debug)]
enum Pause {
    /// The call has its answer.
    Over,
    /// Nothing: the call polls again immediately.
    Again,
    /// The call offers the processor to other threads.
    Yield,
    Sleep(Waiter),
}

/// Blocking call: a loop of polling, progress and sleeping.
///
/// The sleep is outside of the polling code, because the thread may be cancelled there and its
/// stack unwound. An entry point has one of these, without a destructor,
///
/// ```text
/// let mut call = Blocking::new(timeout);
/// loop {
///     let answer = answer_quickly("…", || … call.look(…));
///     if !call.goes_on() { return answer }
/// }
/// ```
///
/// and nothing else with a destructor.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    deadline: Deadline,
    pause: Pause,
    slept: bool,
    /// The call's sources take the thread for one about to sleep ([`WakeSources::may_block`]).
    awaited: bool,
    /// Time of the call's first empty poll, and end of its busy polling, in nanoseconds of
    /// [`fine_now`]; 0 if there was no empty poll, or if there is no busy polling.
    began: u64,
    looks_on: u64,
    /// Time of the last poll, if it read the clock.
    now: u64,
    /// Signals are held back, since then.
    held: Option<(HeldSignals, u64)>,
    /// True if a signal handler ran: the signal ended a sleep, or was blocked before.
    interrupted: bool,
}

impl Blocking {
    /// Returns a call with a timeout of `timeout` milliseconds; negative: none.
    pub fn new(timeout: c_int) -> Self {
        let deadline = Deadline::after_ms(timeout);
        Self {
            deadline,
            pause: Pause::Over,
            slept: false,
            awaited: false,
            began: 0,
            looks_on: 0,
            now: 0,
            held: None,
            interrupted: false,
        }
    }

    /// Polls once. `look` makes progress and returns the result, or -FI_EAGAIN. `ready` reports
    /// without side effects the presence of something to read. `sources` live as long as `wait`.
    ///
    /// Returns -FI_EAGAIN if the call does not [go on](Self::can_continue): its time is over, or
    /// `fi_cq_signal` was called. Returns -FI_EINTR if a signal was handled since the last poll and
    /// there is nothing to read.
    pub fn look<T, S: WakeSources>(
        &mut self,
        wait: Option<&Wait>,
        sources: &S,
        look: impl FnOnce() -> Result<T>,
        ready: impl Fn() -> bool,
    ) -> Result<T> {
        let answer = self.look_and_prepare(wait, sources, look, ready);
        // The look need not have made progress: another thread may have written the entry.
        if self.awaited && matches!(self.pause, Pause::Over) {
            self.awaited = false;
            sources.end_wait();
        }
        answer
    }

    /// Polls once, and prepares the next pause.
    #[inline(always)]
    fn look_and_prepare<T, S: WakeSources>(
        &mut self,
        wait: Option<&Wait>,
        sources: &S,
        look: impl FnOnce() -> Result<T>,
        ready: impl Fn() -> bool,
    ) -> Result<T> {
        if let (Pause::Sleep(waiter), Some(wait)) =
            (std::mem::replace(&mut self.pause, Pause::Over), wait)
        {
            wait.end_sleep(&waiter);
        }
        match look() {
            Err(Error::AGAIN) => {}
            other => {
                if let Some(wait) = wait {
                    if self.began != 0 {
                        wait.looking_on.answered(self.began, self.looks_on != 0);
                    }
                    if self.slept {
                        wait.pass_on(ready);
                    }
                }
                return other;
            }
        }
        if std::mem::take(&mut self.interrupted) {
            return Err(Error::INTR);
        }
        self.pause = match wait {
            Some(wait) if wait.signalled.swap(false, Ordering::SeqCst) => Pause::Over,
            _ if self.deadline.passed() => Pause::Over,
            // Without a wait object fi_cq(3) leaves blocking undefined; we poll, and offer the
            // processor.
            None => Pause::Yield,
            Some(wait) if wait.kind == WaitKind::Yield => Pause::Yield,
            Some(wait) if self.looks_on(wait) => Pause::Again,
            Some(wait) => {
                self.slept = true;
                let waiter = wait.begin_sleep(self.deadline.left(), sources, || {
                    if ready() || wait.signalled.load(Ordering::SeqCst) {
                        return false;
                    }
                    self.awaited = true;
                    sources.may_block()
                });
                waiter.map_or(Pause::Again, Pause::Sleep)
            }
        };
        Err(Error::AGAIN)
    }

    /// Returns true if the call busy-polls instead of sleeping.
    fn looks_on(&mut self, wait: &Wait) -> bool {
        let now = fine_now();
        self.now = now;
        if self.began == 0 {
            self.began = now;
            self.looks_on = wait.looking_on.begin(now);
        }
        if now < self.looks_on {
            return true;
        }
        if std::mem::take(&mut self.looks_on) != 0 {
            wait.looking_on.on_empty_poll();
        }
        false
    }

    /// Pauses and returns true if the call has to poll again. It is a cancellation point.
    ///
    /// # Safety
    /// No frame from the caller's to the program's own has anything to clean up, and the wait
    /// object of the last poll lives until the next.
    #[inline(always)]
    pub unsafe fn can_continue(&mut self) -> bool {
        match &mut self.pause {
            Pause::Over => {
                if let Some((held, _)) = self.held.take() {
                    held.end();
                }
                return false;
            }
            // SAFETY: by this function's contract.
            Pause::Again => unsafe { self.poll() },
            Pause::Yield => {
                yield_now();
                // SAFETY: by this function's contract.
                unsafe { self.poll() };
            }
            Pause::Sleep(waiter) => {
                if let Some((held, _)) = self.held.take() {
                    self.interrupted = held.release();
                }
                // The next look ends a sleep that has begun, whether the thread slept or not.
                if !self.interrupted {
                    // SAFETY: by this function's contract; a sleep that began in `look` ends in
                    // `ofi_sleep`, or by `abandon`.
                    unsafe { ofi_sleep((&raw mut *waiter).cast(), abandon) };
                    self.interrupted = is_signal(waiter.interrupted != 0);
                }
            }
        }
        true
    }

    /// Called between two polls without a sleep: blocks signals once the call has polled for a
    /// while, and unblocks them at intervals.
    ///
    /// # Safety
    /// The contract of [`can_continue`](Self::can_continue).
    #[inline(always)]
    unsafe fn poll(&mut self) {
        let now = match std::mem::take(&mut self.now) {
            0 => fine_now(),
            now => now,
        };
        match self.held {
            None => {
                if self.began == 0 {
                    self.began = now;
                } else if now.saturating_sub(self.began) >= HELD_AFTER {
                    self.held = Some((HeldSignals::hold(), now));
                }
                // SAFETY: by this function's contract.
                unsafe { end_if_cancelled() };
            }
            Some((held, since)) => {
                if now.saturating_sub(since) >= HELD_MOST {
                    self.held = None;
                    self.interrupted = held.release();
                }
                // SAFETY: by this function's contract.
                unsafe { held.end_if_cancelled() };
            }
        }
    }
}

#[cfg(test)]
mod tests;
