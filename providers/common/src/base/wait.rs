//! What a caller blocks on: the wait object of a queue or counter.
//!
//! All kinds are built on one epoll instance that holds the descriptors of
//! whatever must be progressed and one event descriptor that is signalled when
//! an entry is written. Descriptor handed to the application (FI_WAIT_FD),
//! blocking reads and wait sets all use it; FI_WAIT_MUTEX_COND also gets a
//! condition variable for the application to sleep on.
use crate::abi::{c_enum, fi_mutex_cond, fi_wait_obj, fi_wait_pollfd};
use crate::boundary::end_if_cancelled;
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
    /// FI_WAIT_FD, and FI_WAIT_UNSPEC, which leaves the choice to us.
    Fd,
    /// FI_WAIT_POLLFD: a list of descriptors, which has one here and never changes.
    PollFd,
    /// FI_WAIT_MUTEX_COND: the application sleeps on a condition variable itself.
    MutexCond,
    /// FI_WAIT_YIELD: a blocking read gives up the processor between looks.
    Yield,
}

impl WaitKind {
    /// The kind for a `wait_obj` field; FI_WAIT_SET is for the caller to look
    /// at first.
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

    /// FI_GETWAITOBJ: tells the application which kind it got.
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

/// The mutex and condition variable of FI_WAIT_MUTEX_COND, which the
/// application locks and waits on itself.
struct MutexCond {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    cond: UnsafeCell<libc::pthread_cond_t>,
    helper: Mutex<SignalHelper>,
    asked: Condvar,
}

/// The thread that signals the condition when the writer of an entry must not wait for the
/// mutex.
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
    /// mutex, as soon as it lets go of it. It may hold the mutex in the very call that writes
    /// the entry.
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

/// An entry point in which the thread may be cancelled, as a slot of a table has it. The C type
/// cannot say that: the caller is a C program, or calls it as what it is, or keeps the thread from
/// being cancelled meanwhile ([`Uncancelled`]).
///
/// [`Uncancelled`]: crate::boundary::Uncancelled
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

/// Bit of [`Wait::armed`]: the application may block on the wait object itself. Nothing tells us
/// when it stops doing so.
const APPLICATION: usize = 1 << (usize::BITS - 1);

/// The number of the list of descriptors of FI_WAIT_POLLFD, which stays the same.
const POLL_FDS: u64 = 1;

/// Epoll tokens: the wait object's own event descriptor, or a source of progress.
const OWN: u64 = 0;
const SOURCE: u64 = 1;

/// Longest sleep of a blocking call while some of its sources cannot wake it.
const DEAF_PAUSE: Duration = Duration::from_millis(1);

/// How many nanoseconds a call looks on before it sleeps, where an answer is likely to come sooner than
/// a sleeper would wake up; and for how long the last call may have waited if it is.
const LOOKED_ON: u64 = 200_000;

/// For how many nanoseconds a call polls before it holds signals back, and how long it does so until it lets
/// them through. Less than the former a call may take to go to sleep anyway.
const HELD_AFTER: u64 = 5_000;
const HELD_MOST: u64 = 200_000;

/// How often the calls that sleep at once after one that looked on in vain are doubled.
const DOUBLED_MOST: u32 = 10;

/// Whether calls that block look on for a while before they sleep.
///
/// To sleep and to be woken takes the system microseconds, and tens of them where the processor has to be
/// woken as well. Where answers come fast that would be most of the time. So a call looks on if the one
/// before had its answer soon; others that want the processor get it meanwhile ([`courtesy`]). Who has
/// looked on in vain lets calls sleep at once: two, four, eight… times, so that little is lost where that
/// never pays.
///
/// [`courtesy`]: crate::courtesy
#[derive(Debug, Default)]
struct LookingOn {
    /// The last call had its answer soon.
    soon: guess::AtomicBool,
    /// Calls that looked on in vain, one after the other, and that are still to sleep at once for it.
    vain: guess::AtomicU32,
    skipped: guess::AtomicU32,
    /// Until when a call looks on, in nanoseconds of [`fine_now`].
    until: guess::AtomicU64,
}

impl LookingOn {
    /// Until when a call that has found nothing now is to look on; 0: it sleeps.
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

    /// A call has looked on in vain, and sleeps.
    #[cold]
    fn in_vain(&self) {
        let vain = (self.vain.load(Ordering::Relaxed) + 1).min(DOUBLED_MOST);
        self.vain.store(vain, Ordering::Relaxed);
        self.skipped.store(1 << vain, Ordering::Relaxed);
    }

    /// A call that found nothing at first has its answer, while it `looks_on` or later.
    fn answered(&self, began: u64, looks_on: bool) {
        self.soon.store(fine_now().saturating_sub(began) < LOOKED_ON, Ordering::Relaxed);
        self.until.store(0, Ordering::Relaxed);
        if looks_on {
            self.vain.store(0, Ordering::Relaxed);
        }
    }
}

/// How the calls that block at the same time share one wait object.
///
/// Only one call at a time waits on epoll; it alone resets the event, and wakes all others
/// afterwards, so that none misses an entry because another was faster.
#[derive(Debug, Default)]
struct SleepGate {
    /// A call waits on epoll.
    led: bool,
    /// How many other calls wait for that call.
    followers: usize,
}

/// A blocking call that is about to sleep, or sleeps. `c/cancel.c` has the same structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Sleeper {
    wait: *const Wait,
    turn: *const u32,
    /// Longest sleep in nanoseconds, and the same in milliseconds; negative: for ever.
    nanos: i64,
    ms: i32,
    /// The epoll descriptor that the leading call sleeps on; negative in the others.
    epoll: i32,
    /// The value of [`Wait::turn`] whose change the others wait for.
    seen: u32,
    /// Set if the wait object's own event was signalled.
    signalled: u32,
    /// Set if a signal ended the sleep.
    interrupted: u32,
}

unsafe extern "C-unwind" {
    /// Sleeps as `sleeper` says, and calls `abandon` if the thread is cancelled meanwhile
    /// (`c/cancel.c`).
    fn ofi_sleep(sleeper: *mut c_void, abandon: unsafe extern "C" fn(*mut c_void));
}

/// Ends the sleep of a thread that is cancelled, as if it had woken up.
///
/// # Safety
/// `sleeper` is a [`Sleeper`] whose sleep has begun and not ended.
unsafe extern "C" fn abandon(sleeper: *mut c_void) {
    // SAFETY: by this function's contract; the wait object's queue is not closed while
    // it is called.
    unsafe {
        let sleeper = &*sleeper.cast::<Sleeper>();
        (*sleeper.wait).end_sleep(sleeper);
    }
}

/// The wait object of a queue or counter, and what wakes it.
pub struct Wait {
    kind: WaitKind,
    epoll: Epoll,
    event: EventFd,
    mutex_cond: Option<Arc<MutexCond>>,
    /// What an entry must wake: the number of calls that block or are about to, and
    /// [`APPLICATION`]. With 0 an entry wakes nothing and costs next to nothing.
    armed: AtomicUsize,
    /// Of several calls that block, one waits on epoll and wakes the others.
    gate: Mutex<SleepGate>,
    /// Counts how often the call on epoll has woken up. It changes under the gate's lock, and
    /// the other calls sleep on it (futex(2)).
    turn: AtomicU32,
    /// The event descriptor is signalled for the application and was not reset since, so that it
    /// need not be signalled again.
    told: AtomicBool,
    /// `fi_cq_signal` was called and no blocking read has noticed yet.
    signalled: AtomicBool,
    /// A source could not be added, because the kernel limits how epoll instances nest: blocking
    /// calls then look for entries every [`DEAF_PAUSE`].
    deaf: AtomicBool,
    looking_on: LookingOn,
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
            gate: Mutex::default(),
            turn: AtomicU32::new(0),
            told: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            looking_on: LookingOn::default(),
        })
    }

    /// Adds a source: the wait object wakes when `source` has something to do. A source that
    /// several objects of a queue share is added once.
    pub fn add_source(&self, source: &dyn Progress) -> Result {
        for fd in all_fds(source) {
            match self.epoll.add(fd, SOURCE, Interest::READ) {
                Err(error) if error.code() == libc::EEXIST => {}
                Err(error) if [libc::EINVAL, libc::ELOOP].contains(&error.code()) => {
                    self.deaf.store(true, Ordering::SeqCst);
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

    /// The descriptor to wait on, which FI_GETWAIT gives out.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Wakes the threads that wait, after an entry was written. Cheap when no thread blocks.
    #[inline]
    pub fn entry_written(&self) {
        if self.armed.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let alone = self.armed.load(Ordering::SeqCst) == APPLICATION && self.mutex_cond.is_none();
        if alone && self.told.swap(true, Ordering::SeqCst) {
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
        self.told.store(false, Ordering::SeqCst);
    }

    /// `fi_cq_signal`: makes a blocking read return.
    pub fn signal(&self) {
        self.signalled.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Prepares for the application to block on the object itself: from now on
    /// an entry signals. The caller then looks whether it has entries already.
    /// -FI_EAGAIN if not everything would wake the application.
    pub fn arm(&self) -> Result {
        self.drain();
        if self.armed.fetch_or(APPLICATION, Ordering::SeqCst) & !APPLICATION != 0 {
            // The event that was just reset may have been for a call that blocks.
            self.event.signal();
        }
        if self.deaf.load(Ordering::SeqCst) { Err(Error::AGAIN) } else { Ok(()) }
    }

    fn gate(&self) -> MutexGuard<'_, SleepGate> {
        self.gate.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Prepares a sleep until something may have changed or `limit` is over. Returns none, and
    /// no sleep begins, if `may`, asked once entries signal, says that there is something to do.
    fn begin_sleep(&self, limit: Option<Duration>, may: impl FnOnce() -> bool) -> Option<Sleeper> {
        self.armed.fetch_add(1, Ordering::SeqCst);
        let seen = self.turn.load(Ordering::SeqCst);
        let limit = match self.deaf.load(Ordering::SeqCst) {
            true => Some(limit.map_or(DEAF_PAUSE, |limit| limit.min(DEAF_PAUSE))),
            false => limit,
        };
        let goes_on = may();
        let mut gate = self.gate();
        // Another call may have been woken meanwhile by what this one waits for.
        if !goes_on || self.turn.load(Ordering::SeqCst) != seen {
            self.armed.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let leads = !gate.led;
        gate.led = true;
        gate.followers += usize::from(!leads);
        let nanos = |limit: Duration| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        Some(Sleeper {
            wait: self,
            turn: self.turn.as_ptr(),
            nanos: limit.map_or(-1, nanos),
            ms: crate::sys::millis(limit),
            epoll: if leads { self.fd() } else { -1 },
            seen,
            signalled: 0,
            interrupted: 0,
        })
    }

    /// Ends a sleep, however it ended, and wakes the other calls if this one led.
    fn end_sleep(&self, sleeper: &Sleeper) {
        let leads = sleeper.epoll >= 0;
        if sleeper.signalled != 0 {
            self.drain();
        }
        // Only after the event is reset are others woken, so that they see what it was for.
        let mut gate = self.gate();
        if leads {
            gate.led = false;
            self.turn.fetch_add(1, Ordering::SeqCst);
            if gate.followers > 0 {
                wake_all(&self.turn);
            }
        } else {
            gate.followers -= 1;
        }
        drop(gate);
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// After a blocking read that has what it wanted: signals again if there is `more`, because
    /// the read may have reset the event that another thread, or the application, waits for.
    fn pass_on(&self, more: impl FnOnce() -> bool) {
        if self.armed.load(Ordering::SeqCst) & APPLICATION != 0 && more() {
            self.event.signal();
        }
    }

    /// FI_GETWAIT: fills what the application passed for this kind.
    ///
    /// # Safety
    /// `arg` points to an int for FI_WAIT_FD, to a `struct fi_wait_pollfd` with as many entries as
    /// that says for FI_WAIT_POLLFD, to a `struct fi_mutex_cond` for FI_WAIT_MUTEX_COND.
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
                let room = std::mem::replace(&mut list.nfds, 1);
                list.change_index = POLL_FDS;
                if room == 0 {
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

/// The wait object of a queue or counter, to which sources are added when a call first blocks on
/// it: most are never blocked on, and the kernel limits how many epoll instances nest.
#[derive(Debug)]
pub struct Lazy {
    kind: WaitKind,
    wait: OnceLock<Wait>,
    /// The sources were added.
    ready: AtomicBool,
}

impl Lazy {
    /// A wait object of this kind; with [`WaitKind::None`] there never is one. Its descriptors are
    /// opened now, so that no blocking call lacks them, unless it is `in_set`: then the
    /// application blocks on the wait set, and they are opened if ever needed.
    pub fn new(kind: WaitKind, in_set: bool) -> Result<Self> {
        let wait = OnceLock::new();
        if kind != WaitKind::None && !in_set {
            let _ = wait.set(Wait::new(kind)?);
        }
        Ok(Self { kind, wait, ready: AtomicBool::new(false) })
    }

    /// A wait object that no call can block on.
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

    /// The wait object, to block on; `None` with [`WaitKind::None`]. `sources` adds what wakes it,
    /// the first time.
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

    /// Wakes the threads that wait, after an entry was written. Cheap when no thread blocks.
    #[inline]
    pub fn entry_written(&self) {
        if let Some(wait) = self.wait.get() {
            wait.entry_written();
        }
    }
}

/// What a blocking call does before it looks again.
#[derive(Clone, Copy, Debug)]
enum Pause {
    /// The call has its answer.
    Over,
    /// Nothing: the call looks again at once.
    Again,
    /// The call offers the processor to other threads.
    Yield,
    Sleep(Sleeper),
}

/// A call that blocks: it looks, progresses, and sleeps in between.
///
/// The sleep is outside of what looks, because the thread may be cancelled there, which
/// unwinds the stack: an entry point has one of these, which has nothing to clean up,
///
/// ```text
/// let mut call = Blocking::new(timeout);
/// loop {
///     let answer = answer_quickly("…", || … call.look(…));
///     if !call.goes_on() { return answer }
/// }
/// ```
///
/// and nothing else that has.
#[derive(Clone, Copy, Debug)]
pub struct Blocking {
    deadline: Deadline,
    pause: Pause,
    slept: bool,
    /// When the call found nothing for the first time, and until when it looks on, in nanoseconds of
    /// [`fine_now`]; 0: it has not, or does not.
    began: u64,
    looks_on: u64,
    /// The time of the last look, if it asked for the time.
    now: u64,
    /// Signals are held back, since then.
    held: Option<(HeldSignals, u64)>,
    /// A handler ran for a signal that ended a sleep, or was held back.
    interrupted: bool,
}

impl Blocking {
    /// A call that gives up after `timeout` milliseconds; negative: never.
    pub fn new(timeout: c_int) -> Self {
        let deadline = Deadline::after_ms(timeout);
        Self {
            deadline,
            pause: Pause::Over,
            slept: false,
            began: 0,
            looks_on: 0,
            now: 0,
            held: None,
            interrupted: false,
        }
    }

    /// One look of the call. `look` makes progress and answers what was found, or -FI_EAGAIN;
    /// `ready` tells without side effects whether there is something to read;
    /// `sources_may_block` tells whether all sources of progress would wake a sleeper.
    ///
    /// -FI_EAGAIN is the answer if the call does not [go on](Self::goes_on): its time is
    /// over, or `fi_cq_signal` was called. -FI_EINTR is the answer if a signal was handled
    /// since the last look, and there is nothing to read.
    pub fn look<T>(
        &mut self,
        wait: Option<&Wait>,
        sources_may_block: impl Fn() -> bool,
        look: impl FnOnce() -> Result<T>,
        ready: impl Fn() -> bool,
    ) -> Result<T> {
        if let (Pause::Sleep(sleeper), Some(wait)) =
            (std::mem::replace(&mut self.pause, Pause::Over), wait)
        {
            wait.end_sleep(&sleeper);
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
                let sleeper = wait.begin_sleep(self.deadline.left(), || {
                    !ready() && !wait.signalled.load(Ordering::SeqCst) && sources_may_block()
                });
                sleeper.map_or(Pause::Again, Pause::Sleep)
            }
        };
        Err(Error::AGAIN)
    }

    /// Whether the call looks on in place of sleeping.
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
            wait.looking_on.in_vain();
        }
        false
    }

    /// Pauses, and says whether the call is to look again; the thread may be cancelled
    /// in here.
    ///
    /// # Safety
    /// No frame from the caller's to the program's own has anything to clean up, and the
    /// wait object of the last look lives until the next.
    #[inline(always)]
    pub unsafe fn goes_on(&mut self) -> bool {
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
            Pause::Sleep(sleeper) => {
                if let Some((held, _)) = self.held.take() {
                    self.interrupted = held.release();
                }
                // The next look ends a sleep that has begun, whether the thread slept or not.
                if !self.interrupted {
                    // SAFETY: by this function's contract; a sleep that began in `look` ends in
                    // `ofi_sleep`, or by `abandon`.
                    unsafe { ofi_sleep((&raw mut *sleeper).cast(), abandon) };
                    self.interrupted = is_signal(sleeper.interrupted != 0);
                }
            }
        }
        true
    }

    /// Between two looks without a sleep: holds signals back once the call has polled for a while, and lets
    /// them through at intervals.
    ///
    /// # Safety
    /// As of [`goes_on`](Self::goes_on).
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
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn blocking<T>(
        wait: Option<&Wait>,
        timeout: c_int,
        sources_may_block: impl Fn() -> bool,
        look: impl Fn() -> Result<T>,
        ready: impl Fn() -> bool,
    ) -> Result<T> {
        let mut call = Blocking::new(timeout);
        loop {
            let answer = call.look(wait, &sources_may_block, &look, &ready);
            // SAFETY: nobody cancels the threads of tests.
            if !unsafe { call.goes_on() } {
                return answer;
            }
        }
    }

    /// Takes one of `left`, waiting for ever.
    fn take(wait: &Wait, left: &AtomicUsize, timeout: c_int) -> Result {
        let one = |n: usize| n.checked_sub(1);
        blocking(
            Some(wait),
            timeout,
            || true,
            || match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one) {
                Ok(_) => Ok(()),
                Err(_) => Err(Error::AGAIN),
            },
            || left.load(Ordering::SeqCst) > 0,
        )
    }

    fn put(wait: &Wait, left: &AtomicUsize, count: usize) {
        left.fetch_add(count, Ordering::SeqCst);
        wait.entry_written();
    }

    #[test]
    fn calls_look_on_where_answers_come_soon_and_ever_more_rarely_in_vain() {
        let looking_on = LookingOn::default();
        let answered = |ago: u64, looks_on| looking_on.answered(fine_now() - ago, looks_on);
        let begin = || looking_on.begin(fine_now()) != 0;
        assert!(!begin());
        answered(LOOKED_ON + 1, false);
        assert!(!begin());
        answered(0, false);
        assert!(begin());
        assert!(!begin(), "one is enough");
        answered(0, true);
        for doubled in 1..=DOUBLED_MOST + 1 {
            assert!(begin());
            looking_on.in_vain();
            answered(0, false);
            let slept = 1 << doubled.min(DOUBLED_MOST);
            assert!((0..slept).all(|_| !begin()), "{slept}");
        }
        assert!(begin());
        answered(0, true);
        assert!(begin());
        looking_on.in_vain();
        answered(LOOKED_ON + 1, false);
        assert!((0..10).all(|_| !begin()));
    }

    #[test]
    fn a_call_that_looks_on_sleeps_in_the_end_and_has_its_answer_before() {
        let wait = Wait::new(WaitKind::Fd).unwrap();
        wait.looking_on.answered(fine_now(), false);
        let looks = std::cell::Cell::new(0);
        let answer_at = |at: u32| {
            looks.set(0);
            let look = || {
                looks.set(looks.get() + 1);
                if looks.get() == at { Ok(()) } else { Err(Error::AGAIN) }
            };
            blocking(Some(&wait), 50, || true, look, || false)
        };
        // The answer comes with nothing that would wake a sleeper.
        assert_eq!(answer_at(5), Ok(()));
        assert_eq!(answer_at(u32::MAX), Err(Error::AGAIN));
        assert!(looks.get() > 2 && wait.looking_on.vain.load(Ordering::Relaxed) == 1);
        // This one sleeps at once.
        assert_eq!(answer_at(u32::MAX), Err(Error::AGAIN));
        assert_eq!(looks.get(), 2);
    }

    /// The answers of a call in whose looks, from the second on, `at` nanoseconds after the first a signal comes.
    fn interrupted(wait: Option<&Wait>, at: u64) -> Result {
        extern "C" fn handler(_: c_int) {}
        // SAFETY: the handler does nothing; no other test has to do with this signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGWINCH, &raw const action, std::ptr::null_mut());
        }
        let (first, looks) = (fine_now(), std::cell::Cell::new(0));
        let look = || {
            looks.set(looks.get() + 1);
            while looks.get() == 2 && fine_now() < first + at {}
            if looks.get() == 3 {
                // SAFETY: a signal for this thread alone.
                unsafe { libc::raise(libc::SIGWINCH) };
            }
            Err(Error::AGAIN)
        };
        blocking(wait, 3000, || true, look, || false)
    }

    #[test]
    fn a_signal_that_comes_while_a_call_looks_on_ends_it() {
        // A thread that gets no processor at the wrong moment sleeps before its third look, or has
        // the signal before it holds signals back.
        for kind in [Some(WaitKind::Fd), Some(WaitKind::Yield), None] {
            let ends = (0..20).any(|_| {
                let wait = kind.map(|kind| Wait::new(kind).unwrap());
                wait.iter().for_each(|wait| wait.looking_on.answered(fine_now(), false));
                interrupted(wait.as_ref(), 2 * HELD_AFTER) == Err(Error::INTR)
            });
            assert!(ends, "{kind:?}");
        }
    }

    #[test]
    fn a_caller_sleeps_on_until_an_entry_although_another_gave_up_meanwhile() {
        let (wait, left) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| tell.send(take(&wait, &left, -1)));
            while wait.armed.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(take(&wait, &left, 20), Err(Error::AGAIN));
            put(&wait, &left, 1);
            let answer = told.recv_timeout(Duration::from_secs(20));
            // Ends a sleeper that missed it, so that the test can fail.
            put(&wait, &left, 1);
            wait.signal();
            assert_eq!(answer, Ok(Ok(())));
        });
    }

    #[test]
    fn every_one_of_many_callers_gets_its_entry() {
        const CALLERS: usize = 6;
        let (wait, left) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                let tell = tell.clone();
                let (wait, left) = (&wait, &left);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let _ = tell.send(take(wait, left, -1));
                    }
                });
            }
            for round in 0..CALLERS * 50 / 3 {
                put(&wait, &left, 3);
                for _ in 0..3 {
                    let answer = told.recv_timeout(Duration::from_secs(20));
                    if answer != Ok(Ok(())) {
                        left.fetch_add(CALLERS * 50, Ordering::SeqCst);
                        wait.signal();
                    }
                    assert_eq!(answer, Ok(Ok(())), "in round {round}");
                }
            }
        });
    }

    #[test]
    fn waiters_for_different_things_all_wake_up() {
        let (wait, value) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
        let reach = |goal: usize| {
            let there = || value.load(Ordering::SeqCst) >= goal;
            let look = || if there() { Ok(()) } else { Err(Error::AGAIN) };
            blocking(Some(&wait), 20_000, || true, look, there)
        };
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (1..=4)
                .map(|nth| scope.spawn(move || (1..=50).try_for_each(|n| reach(n * nth))))
                .collect();
            for _ in 0..200 {
                value.fetch_add(1, Ordering::SeqCst);
                wait.entry_written();
                std::thread::yield_now();
            }
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Ok(()));
            }
        });
    }

    #[test]
    fn entries_signal_the_descriptor_once_until_it_is_armed_again() {
        let wait = Wait::new(WaitKind::Fd).unwrap();
        let readable = || {
            let mut readable = false;
            wait.epoll.wait(Some(Duration::ZERO), |_| readable = true).unwrap();
            readable
        };
        wait.entry_written();
        assert!(!readable());
        for _ in 0..2 {
            wait.arm().unwrap();
            wait.entry_written();
            assert!(readable());
            // Taken back unnoticed, to see that the next one does not signal.
            wait.event.drain();
            wait.entry_written();
            assert!(!readable());
        }
        wait.signal();
        wait.arm().unwrap();
        assert!(!readable());
    }

    #[test]
    fn who_polls_the_descriptor_hears_of_what_a_blocking_call_left() {
        let (wait, left) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
        wait.arm().unwrap();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| take(&wait, &left, -1));
            while wait.armed.load(Ordering::SeqCst) == APPLICATION {
                std::thread::yield_now();
            }
            put(&wait, &left, 2);
            assert_eq!(taker.join().unwrap(), Ok(()));
        });
        let events = wait.epoll.wait(Some(Duration::ZERO), |_| ()).unwrap();
        assert_eq!((left.load(Ordering::SeqCst), events), (1, 1));
    }
}
