//! Threads of the library's own.
use crate::error::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

/// Runs `work` on a thread of the library that goes on even if `work` panics; then the result is
/// none, and a line goes to stderr, behind that of Rust's panic hook.
pub fn unharmed<R>(work: impl FnOnce() -> R) -> Option<R> {
    // Such work uses what is behind locks, whose other users may panic as well.
    let result = catch_unwind(AssertUnwindSafe(work));
    if result.is_err() {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread of the library's");
        eprintln!("libfabric: internal error on {name}; it goes on, and so does the process");
    }
    result.ok()
}

/// A thread that works beside the application until it is told to end.
///
/// Signals are the application's: its handlers do not run on it. A forked process
/// has a copy of this, but no such thread.
#[derive(Debug)]
pub struct Worker {
    thread: Option<JoinHandle<()>>,
    /// The process that the thread runs in.
    process: u32,
}

impl Worker {
    /// Starts a thread with this name.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Self> {
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            block_signals();
            work();
        })?;
        Ok(Self { thread: Some(thread), process: std::process::id() })
    }

    /// `tell` tells the thread to end; waits until it has. In a fork of its process
    /// it is neither told, because what tells it may be shared with that process,
    /// nor waited for.
    pub fn end(&mut self, tell: impl FnOnce()) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // The thread does not exist in this process: there is nothing to join.
            return std::mem::forget(thread);
        }
        tell();
        // The thread itself may drop the last reference to what it works for, and must not join
        // itself.
        if thread.thread().id() != std::thread::current().id() {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    /// A thread that was not ended goes on by itself.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            self.end(|| ());
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
    use std::sync::mpsc::channel;

    #[test]
    fn a_worker_ends_when_it_is_told_and_not_before() {
        let (tell, told) = channel::<()>();
        let (say, said) = channel();
        let mut worker = Worker::start("test", move || {
            say.send(told.recv()).unwrap();
        })
        .unwrap();
        assert!(said.try_recv().is_err());
        worker.end(|| tell.send(()).unwrap());
        assert_eq!(said.try_recv(), Ok(Ok(())));
        worker.end(|| panic!("it has ended"));
    }
}
