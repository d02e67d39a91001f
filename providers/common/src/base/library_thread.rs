//! Threads of the library: their start, their marks, and forks of the process while they run.
use crate::error::{Error, Result};
use core::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::thread::sleep;
use std::time::Duration;

/// Boolean mark of threads, by a key of pthread_key_create(3). The C library allocates thread-local
/// variables (`thread_local!`) of a plug-in at their first use and ends the process without memory.
/// Reading the value of a key allocates nothing.
#[derive(Debug)]
pub(crate) struct ThreadMark {
    key: OnceLock<libc::pthread_key_t>,
    /// Function called at the end of a thread with the mark.
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

    /// Returns true if the calling thread has the mark.
    pub(crate) fn is_set(&self) -> bool {
        // SAFETY: the key is never deleted.
        self.key.get().is_some_and(|key| !unsafe { libc::pthread_getspecific(*key) }.is_null())
    }
}

/// Mark of threads started by [`start`]. Forks wait for an unmarked thread even while it
/// sleeps.
static WORKER: ThreadMark = ThreadMark::new(None);

/// Returns true if [`start`] started the calling thread.
pub(crate) fn is_worker() -> bool {
    WORKER.is_set()
}

/// Number of working library threads ([`rest`]), plus a multiple of [`FORK`].
static AT_WORK: AtomicU32 = AtomicU32::new(0);

/// Increment of [`AT_WORK`] for each forking thread of the application: no library thread begins
/// work meanwhile.
const FORK: u32 = 1 << 16;

/// Number of library threads.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Returns the number of library threads.
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

/// Number of checks by a fork for resting library threads; the next constant is the pause between
/// them. After a second it proceeds, because a thread then waits for something only the forking
/// thread can provide.
const FORK_LOOKS: usize = 10_000;
const FORK_PAUSE: Duration = Duration::from_micros(100);

/// Marks a library thread as working, possibly with locks held: the process does not fork
/// meanwhile. In the child such a lock would stay held for ever, by a thread missing there. A
/// single-threaded application may use in a child everything it may use in the parent.
fn begin_work() {
    while AT_WORK.fetch_add(1, Ordering::SeqCst) >= FORK {
        end_work();
        sleep(FORK_PAUSE);
    }
}

/// Marks the thread as holding no lock needed in a forked child.
fn end_work() {
    AT_WORK.fetch_sub(1, Ordering::SeqCst);
}

/// Guard ending the work of the thread, also on a panic.
struct AtWork;

impl Drop for AtWork {
    fn drop(&mut self) {
        end_work();
    }
}

/// Guard resuming the work of the thread after its sleep, also on a panic.
struct AtRest;

impl Drop for AtRest {
    fn drop(&mut self) {
        begin_work();
    }
}

/// Runs `sleep`. If [`start`] started this thread, the process may fork meanwhile. The
/// thread must not hold a lock needed in a forked child.
pub fn rest<R>(sleep: impl FnOnce() -> R) -> R {
    let _rests = is_worker().then(|| {
        end_work();
        AtRest
    });
    sleep()
}

/// Before a fork: waits until the threads of the library rest.
pub(super) extern "C" fn before_fork() {
    AT_WORK.fetch_add(FORK, Ordering::SeqCst);
    for _ in 0..FORK_LOOKS {
        if AT_WORK.load(Ordering::SeqCst) % FORK == 0 {
            return;
        }
        sleep(FORK_PAUSE);
    }
}

pub(super) extern "C" fn after_fork_in_parent() {
    AT_WORK.fetch_sub(FORK, Ordering::SeqCst);
}

/// A child has none of the threads.
extern "C" fn after_fork_in_child() {
    AT_WORK.store(0, Ordering::SeqCst);
    RUNNING.store(0, Ordering::Relaxed);
}

/// Prepares forks of the process, once.
pub(super) fn mind_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (parent, child) = (after_fork_in_parent, after_fork_in_child);
        // SAFETY: the handlers stay as long as this library does; they touch one number, and sleep.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(parent), Some(child)) };
    });
}

/// Runs `work` on a library thread that survives its panic. A panic returns `None` and writes a
/// line to stderr, after the one of Rust's panic hook.
pub fn unharmed<R>(work: impl FnOnce() -> R) -> Option<R> {
    // The work shares only state behind locks, which other threads may leave by a panic as well.
    let result = catch_unwind(AssertUnwindSafe(work));
    if result.is_err() {
        let name = own_name();
        let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy);
        let name = name.as_deref().unwrap_or("a thread of the library's");
        eprintln!("libfabric: internal error on {name}; it goes on, and so does the process");
    }
    result.ok()
}

/// Bytes of a thread name stored by the kernel, including the final zero.
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

/// Work of a thread.
type Work = Box<dyn FnOnce() + Send>;

/// Starts a thread with this name, limited to 15 bytes by the kernel.
pub(super) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<ThreadId> {
    let mut own = [0; NAME_LEN];
    for (to, from) in own[..NAME_LEN - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    WORKER.key()?;
    let running = Running::begin();
    start_thread(NewWorker { name: own, running, work: Box::new(work) })
}

/// Thread of the library, for pthread_join(3) and pthread_detach(3).
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadId(pub(super) libc::pthread_t);

// SAFETY: any thread may name another in a call; the pointer of some C libraries is not followed.
unsafe impl Send for ThreadId {}
// SAFETY: as for `Send`.
unsafe impl Sync for ThreadId {}

/// Arguments of a new thread.
struct NewWorker {
    name: [u8; NAME_LEN],
    running: Running,
    work: Work,
}

/// Starts a thread. The standard library's own call ends the process if one of its allocations
/// fails, because this memory does not come from the allocator of the program.
fn start_thread(new: NewWorker) -> Result<ThreadId> {
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
    // SAFETY: a number or a pointer, which the call below writes.
    let mut thread = unsafe { std::mem::zeroed() };
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
    Ok(ThreadId(thread))
}

/// Lets a thread end without being joined.
pub(super) fn detach(ThreadId(thread): ThreadId) {
    // SAFETY: the caller has the thread from `start`, which nothing else joins or detaches.
    unsafe { libc::pthread_detach(thread) };
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
