//! Threads of the library's own.
use crate::error::{Error, Result};
use crate::process_end;
use crate::sys::is_this_thread;
use core::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::thread::sleep;
use std::time::Duration;

/// A mark that each thread has or not, by a key of pthread_key_create(3). Variables of a thread (`thread_local!`) of a plug-in are allocated
/// by the C library when the thread first uses one, which ends the process without memory; asking for a key's value allocates nothing.
#[derive(Debug)]
pub(crate) struct ThreadMark {
    key: OnceLock<libc::pthread_key_t>,
    /// Called at the end of a thread that has the mark.
    at_end: Option<unsafe extern "C" fn(*mut c_void)>,
}

impl ThreadMark {
    pub(crate) const fn new(at_end: Option<unsafe extern "C" fn(*mut c_void)>) -> Self {
        Self { key: OnceLock::new(), at_end }
    }

    /// The key, made by the first call.
    fn key(&self) -> Result<libc::pthread_key_t> {
        if let Some(key) = self.key.get() {
            return Ok(*key);
        }
        let mut key = 0;
        // SAFETY: the place outlives the call; `at_end` is a function of this library, or of a plug-in with it, which is not
        // unloaded once it has started a thread.
        let code = unsafe { libc::pthread_key_create(&raw mut key, self.at_end) };
        if code != 0 {
            return Err(Error::from_code(code));
        }
        let first = *self.key.get_or_init(|| key);
        if first != key {
            // SAFETY: another thread was first; nothing has this key.
            unsafe { libc::pthread_key_delete(key) };
        }
        Ok(first)
    }

    /// Gives the calling thread the mark. Without memory it goes on without one.
    pub(crate) fn set(&self) {
        if let Ok(key) = self.key() {
            // SAFETY: the key is never deleted; the value is an address of ours, which nothing reads.
            unsafe { libc::pthread_setspecific(key, (&raw const *self).cast()) };
        }
    }

    /// Whether the calling thread has the mark.
    pub(crate) fn is_set(&self) -> bool {
        // SAFETY: the key is never deleted.
        self.key.get().is_some_and(|key| !unsafe { libc::pthread_getspecific(*key) }.is_null())
    }
}

/// The mark of threads that [`Worker::start`] started. Forks wait for one without it also while it sleeps.
static WORKER: ThreadMark = ThreadMark::new(None);

/// Whether [`Worker::start`] started the calling thread.
pub(crate) fn is_worker() -> bool {
    WORKER.is_set()
}

/// How many threads of the library are at work ([`rest`]), and how many times [`FORK`].
static AT_WORK: AtomicU32 = AtomicU32::new(0);

/// What [`AT_WORK`] has for each thread of the application that forks: no thread of the library begins
/// meanwhile.
const FORK: u32 = 1 << 16;

/// How many threads of the library there are.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// How many threads of the library there are.
pub(crate) fn running_workers() -> u32 {
    RUNNING.load(Ordering::Relaxed)
}

/// Counts a thread of the library as long as this lives.
struct Running;

impl Running {
    fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often a fork looks whether the library's threads rest, and how long it waits each time. It goes on
/// without them after a second: then one waits for what only a thread that forks can give.
const FORK_LOOKS: usize = 10_000;
const FORK_PAUSE: Duration = Duration::from_micros(100);

/// A thread of the library is at work, and may hold locks: the process does not fork meanwhile. The
/// child would find them held for ever, by a thread that it does not have, and an application without
/// threads of its own may use everything in a child that it may use in the parent.
fn begin_work() {
    while AT_WORK.fetch_add(1, Ordering::SeqCst) >= FORK {
        end_work();
        sleep(FORK_PAUSE);
    }
}

/// The thread holds no lock that a forked child may ask for.
fn end_work() {
    AT_WORK.fetch_sub(1, Ordering::SeqCst);
}

/// Ends the thread's work, although that may panic.
struct AtWork;

impl Drop for AtWork {
    fn drop(&mut self) {
        end_work();
    }
}

/// Has the thread at work again after its sleep, although that may panic.
struct AtRest;

impl Drop for AtRest {
    fn drop(&mut self) {
        begin_work();
    }
}

/// Sleeps, as `sleep` does; if [`Worker::start`] started this thread, the process may fork meanwhile. It holds
/// no lock that a forked child may ask for.
pub fn rest<R>(sleep: impl FnOnce() -> R) -> R {
    let _rests = is_worker().then(|| {
        end_work();
        AtRest
    });
    sleep()
}

/// Before a fork: waits until the threads of the library rest.
extern "C" fn before_fork() {
    AT_WORK.fetch_add(FORK, Ordering::SeqCst);
    for _ in 0..FORK_LOOKS {
        if AT_WORK.load(Ordering::SeqCst).is_multiple_of(FORK) {
            return;
        }
        sleep(FORK_PAUSE);
    }
}

extern "C" fn after_fork_in_parent() {
    AT_WORK.fetch_sub(FORK, Ordering::SeqCst);
}

/// A child has none of the threads.
extern "C" fn after_fork_in_child() {
    AT_WORK.store(0, Ordering::SeqCst);
    RUNNING.store(0, Ordering::Relaxed);
    process_end::after_fork_in_child();
}

fn mind_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (parent, child) = (after_fork_in_parent, after_fork_in_child);
        // SAFETY: the handlers stay as long as this library does; they touch one number, and sleep.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(parent), Some(child)) };
    });
}

/// Runs `work` on a thread of the library that goes on even if `work` panics; then the result is
/// none, and a line goes to stderr, behind that of Rust's panic hook.
pub fn unharmed<R>(work: impl FnOnce() -> R) -> Option<R> {
    // Such work uses what is behind locks, whose other users may panic as well.
    let result = catch_unwind(AssertUnwindSafe(work));
    if result.is_err() {
        let name = own_name();
        let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy);
        let name = name.as_deref().unwrap_or("a thread of the library's");
        eprintln!("libfabric: internal error on {name}; it goes on, and so does the process");
    }
    result.ok()
}

/// What the system keeps of a thread's name, with the zero behind it.
const NAME_LEN: usize = 16;

/// The name of the calling thread.
fn own_name() -> [u8; NAME_LEN] {
    let mut name = [0; NAME_LEN];
    // SAFETY: the room is as long as it is said to be.
    unsafe {
        libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast::<c_char>(), NAME_LEN)
    };
    name
}

/// Bytes of the stack of a thread of the library, as many as threads of Rust's standard library have.
const STACK: usize = 2 << 20;

/// What a thread has to do.
type Work = Box<dyn FnOnce() + Send>;

/// What a new thread gets from the one that starts it.
struct NewWorker {
    name: [u8; NAME_LEN],
    running: Running,
    work: Work,
}

/// Starts a thread. The standard library's own call ends the process when an allocation of it fails, since it
/// takes memory that the allocator of the program is not asked for.
fn start_thread(new: NewWorker) -> Result<libc::pthread_t> {
    extern "C" fn run(new: *mut c_void) -> *mut c_void {
        // SAFETY: a box of this type, which is this thread's from now on.
        let NewWorker { name, running: _running, work } =
            *unsafe { Box::from_raw(new.cast::<NewWorker>()) };
        // SAFETY: a C string, cut off to what the system takes.
        unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr().cast::<c_char>()) };
        block_signals();
        WORKER.set();
        begin_work();
        let _works = AtWork;
        // A panic ends the thread; Rust's panic hook has said so.
        _ = catch_unwind(AssertUnwindSafe(work));
        std::ptr::null_mut()
    }
    let new = Box::into_raw(Box::new(new));
    let mut thread = 0;
    // SAFETY: attributes are initialized before they are used, and destroyed; `new` is the new thread's, or, if there
    // is none, taken back.
    unsafe {
        let mut attr = std::mem::zeroed::<libc::pthread_attr_t>();
        let mut code = libc::pthread_attr_init(&raw mut attr);
        if code == 0 {
            libc::pthread_attr_setstacksize(&raw mut attr, STACK);
            code = libc::pthread_create(&raw mut thread, &raw const attr, run, new.cast());
            libc::pthread_attr_destroy(&raw mut attr);
        }
        if code != 0 {
            drop(Box::from_raw(new));
            return Err(Error::from_code(code));
        }
    }
    Ok(thread)
}

/// A thread that works beside the application until it is told to end.
///
/// Signals are the application's: its handlers do not run on it. A forked process
/// has a copy of this, but no such thread. The thread does not keep the process alive once all threads of
/// the application have ended ([`process_end`]). The thread sleeps in [`rest`]: else forks wait for it.
#[derive(Debug)]
pub struct Worker {
    thread: Option<libc::pthread_t>,
    /// The process that the thread runs in.
    process: u32,
}

impl Worker {
    /// Starts a thread with this name, of which the system keeps 15 bytes.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Self> {
        mind_forks();
        process_end::watch_end_of_thread();
        let mut own = [0; NAME_LEN];
        for (to, from) in own[..NAME_LEN - 1].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        WORKER.key()?;
        let running = Running::begin();
        let thread = start_thread(NewWorker { name: own, running, work: Box::new(work) })?;
        Ok(Self { thread: Some(thread), process: std::process::id() })
    }

    /// `tell` tells the thread to end; waits until it has. In a fork of its process
    /// it is neither told, because what tells it may be shared with that process,
    /// nor waited for.
    pub fn end(&mut self, tell: impl FnOnce()) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // The thread does not exist in this process: there is nothing to join.
            return;
        }
        tell();
        // The thread itself may drop the last reference to what it works for, and must not join
        // itself.
        let own = is_this_thread(thread);
        // SAFETY: the thread was neither joined nor detached yet, and is from here on, since nothing has its name any more.
        unsafe {
            match own {
                true => libc::pthread_detach(thread),
                false => libc::pthread_join(thread, std::ptr::null_mut()),
            }
        };
    }
}

impl Drop for Worker {
    /// A thread that was not ended goes on by itself.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && self.process == std::process::id()
        {
            // SAFETY: as in `end`.
            unsafe { libc::pthread_detach(thread) };
        }
    }
}

fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used, and only
    // this thread's mask changes.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::forked;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    /// The locks of a worker that works most of the time.
    #[test]
    fn a_forked_child_finds_no_lock_held_by_a_worker() {
        let (lock, over) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
        let (held, stop) = (lock.clone(), over.clone());
        let mut worker = Worker::start("test", move || {
            while !stop.load(Ordering::Relaxed) {
                let guard = held.lock().unwrap();
                sleep(Duration::from_millis(1));
                drop(guard);
                rest(|| sleep(Duration::from_micros(10)));
            }
        })
        .unwrap();
        for _ in 0..20 {
            assert_eq!(forked(|| lock.try_lock().is_err().into()), 0);
            sleep(Duration::from_micros(300));
        }
        worker.end(|| over.store(true, Ordering::Relaxed));
    }

    /// The end of one fork is not that of another, which another thread has begun meanwhile.
    #[test]
    fn no_worker_begins_before_the_last_of_two_forks_is_over() {
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        before_fork();
        before_fork();
        after_fork_in_parent();
        let mut worker =
            Worker::start("test", move || begins.store(true, Ordering::SeqCst)).unwrap();
        sleep(Duration::from_millis(20));
        let early = begun.load(Ordering::SeqCst);
        after_fork_in_parent();
        worker.end(|| ());
        assert!(!early && begun.load(Ordering::SeqCst));
    }

    #[test]
    fn a_worker_ends_when_it_is_told_and_not_before() {
        let (tell, told) = channel::<()>();
        let (say, said) = channel();
        let mut worker = Worker::start("test", move || {
            say.send(rest(|| told.recv())).unwrap();
        })
        .unwrap();
        assert!(said.try_recv().is_err());
        worker.end(|| tell.send(()).unwrap());
        assert_eq!(said.try_recv(), Ok(Ok(())));
        worker.end(|| panic!("it has ended"));
    }
}
