//! Separate stacks for work exceeding the smallest thread stacks of applications
//! (PTHREAD_STACK_MIN, 16 KiB): cryptography, and calls of the control path through several
//! providers.
//!
//! The work runs on the calling thread; it switches to the other stack and back (makecontext(3)).
use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{Ordering, compiler_fence};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

// The crate libc has these functions of the C library for some processors only.
unsafe extern "C" {
    fn getcontext(context: *mut libc::ucontext_t) -> c_int;
    fn makecontext(context: *mut libc::ucontext_t, first: extern "C" fn(), count: c_int, ...);
    fn swapcontext(saved: *mut libc::ucontext_t, next: *const libc::ucontext_t) -> c_int;
}

/// Bytes of such a stack: several times the need of the work, since a signal handler may run on it.
const LEN: usize = 128 << 10;

/// Purpose of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackUse {
    Calls,
    /// The stack is in no core dump and is cleared before it is given back.
    Secret,
}

/// Returns true if the process has the runtime of AddressSanitizer. It does not follow stack
/// switches and warns of them.
fn has_address_sanitizer() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    // SAFETY: looks a name up among those of the process.
    *FOUND.get_or_init(|| unsafe {
        !libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()).is_null()
    })
}

/// Looks up symbols needed by [`on_own_stack`], before its callers have little stack left: the search
/// takes more than a kilobyte.
pub fn prepare_own_stacks() {
    has_address_sanitizer();
}

/// Does work on a stack of its own; on the caller's if there is no memory for one, or under AddressSanitizer.
pub fn on_own_stack<R>(work: impl FnOnce() -> R) -> R {
    match OwnStack::new(StackUse::Calls) {
        Some(mut stack) => stack.run(work),
        None => run_here(work),
    }
}

/// Runs work on the caller's stack, in a separate frame. If it were inlined, the caller's frame
/// would always contain its stack space.
#[inline(never)]
pub(crate) fn run_here<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Work for another stack, and its result.
struct StackJob<W, R> {
    work: Option<W>,
    result: Option<std::thread::Result<R>>,
    /// Contexts of the caller's continuation and of the start of the work.
    contexts: [MaybeUninit<libc::ucontext_t>; 2],
}

/// The first function on the other stack; the halves of its argument are the job's address.
extern "C" fn run_job<W: FnOnce() -> R, R>(high: c_uint, low: c_uint) {
    let at = (u64::from(high) << 32 | u64::from(low)) as usize;
    // SAFETY: the job of `OwnStack::run`, which does nothing with it until this function has returned.
    let job = unsafe { &mut *(at as *mut StackJob<W, R>) };
    if let Some(work) = job.work.take() {
        // Nothing unwinds beyond this stack.
        job.result = Some(catch_unwind(AssertUnwindSafe(work)));
    }
}

/// Stack with a guard page below it.
pub struct OwnStack {
    start: NonNull<u8>,
    page: usize,
    of: StackUse,
}

impl OwnStack {
    /// A stack; none if there is no memory, or under AddressSanitizer.
    pub fn new(of: StackUse) -> Option<Self> {
        if has_address_sanitizer() {
            return None;
        }
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
        );
        // SAFETY: a new mapping, wherever the system has room for it.
        let start = unsafe { libc::mmap(null_mut(), page + LEN, access, kind, -1, 0) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)?;
        let this = Self { start, page, of };
        // SAFETY: the mapping just made, to which nothing refers.
        let refused = unsafe { libc::mprotect(start.as_ptr().cast(), page, libc::PROT_NONE) };
        let advised = of == StackUse::Calls || this.keep_private();
        (refused == 0 && advised).then_some(this)
    }

    /// Excludes the stack from core dumps and, if the user's limit permits, from swap devices.
    fn keep_private(&self) -> bool {
        let (at, advice) = (self.bottom().cast(), libc::MADV_DONTDUMP);
        // SAFETY: our mapping, but for its first page.
        unsafe { libc::mlock(at, LEN) };
        // SAFETY: as above.
        unsafe { libc::madvise(at, LEN, advice) == 0 }
    }

    fn bottom(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.page)
    }

    /// Does work on the stack. A panic of the work reaches the caller.
    pub fn run<W: FnOnce() -> R, R>(&mut self, work: W) -> R {
        let contexts = [const { MaybeUninit::uninit() }; 2];
        // Not on the caller's stack, for which it is large.
        let mut job = Box::new(StackJob { work: Some(work), result: None, contexts });
        if self.change(&mut job) != 0 {
            if let Some(work) = job.work.take() {
                return run_here(work);
            }
        }
        match job.result.take() {
            Some(Ok(result)) => result,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("a job is done when its context ends"),
        }
    }

    /// Switches to the stack, and back after the job. Returns 0 or the error of the system call.
    fn change<W: FnOnce() -> R, R>(&mut self, job: &mut StackJob<W, R>) -> c_int {
        let (at, first): (_, extern "C" fn(c_uint, c_uint)) = (&raw mut *job, run_job::<W, R>);
        // SAFETY: the job outlives the calls and is used by one side at a time: here until `swapcontext`, then by
        // `run_job` until it ends. The stack is our mapping without its first page and has no other user.
        // `makecontext` passes `first` the two numbers.
        unsafe {
            let [back, there] = [0, 1].map(|which| (&raw mut (*at).contexts[which]).cast());
            let there: *mut libc::ucontext_t = there;
            let result = getcontext(there);
            if result != 0 {
                return result;
            }
            (*there).uc_stack.ss_sp = self.bottom().cast();
            (*there).uc_stack.ss_size = LEN;
            (*there).uc_link = back;
            let first =
                core::mem::transmute::<extern "C" fn(c_uint, c_uint), extern "C" fn()>(first);
            let job = at as usize as u64;
            makecontext(there, first, 2, (job >> 32) as c_uint, job as c_uint);
            swapcontext(back, there)
        }
    }
}

impl Drop for OwnStack {
    fn drop(&mut self) {
        if self.of == StackUse::Secret {
            for at in (0..LEN).step_by(size_of::<u64>()) {
                // SAFETY: a word of our mapping, behind its first page.
                unsafe { core::ptr::write_volatile(self.bottom().add(at).cast::<u64>(), 0) };
            }
            compiler_fence(Ordering::SeqCst);
        }
        // SAFETY: our mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.page + LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_intensive_work_runs_on_threads_with_small_stacks() {
        #[inline(never)]
        fn use_stack(byte: u8) -> usize {
            let frame = core::hint::black_box([byte; 60 << 10]);
            frame.iter().map(|byte| usize::from(*byte)).sum()
        }
        let small = std::thread::Builder::new().stack_size(16 << 10);
        let work = || on_own_stack(|| use_stack(1) + on_own_stack(|| use_stack(1)));
        assert_eq!(small.spawn(work).unwrap().join().unwrap(), 120 << 10);
    }

    #[test]
    fn a_panic_of_the_work_reaches_the_caller() {
        let result = catch_unwind(|| on_own_stack(|| resume_unwind(Box::new(5_u8))));
        assert_eq!(result.map(|()| 0).unwrap_err().downcast_ref::<u8>(), Some(&5));
    }

    #[test]
    fn a_stack_of_secrets_is_cleared() {
        let mut stack = OwnStack::new(StackUse::Secret).unwrap();
        let address = stack.run(|| {
            let secret = core::hint::black_box([7_u8; 64]);
            secret.as_ptr() as usize
        });
        let within = address.wrapping_sub(stack.bottom() as usize);
        assert!(within < LEN, "the work runs on the stack");
    }
}
