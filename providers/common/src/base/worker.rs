//! Threads of the library's own.
use crate::error::Result;
use crate::library_thread::{ThreadId, mind_forks, start};
use crate::process_end;
use crate::sys::is_this_thread;

pub use crate::library_thread::{rest, unharmed};

/// Thread working concurrently with the application until its end is requested.
///
/// Signal handlers of the application do not run on it. A forked process has a copy of this struct,
/// but no such thread. It does not keep the process alive after the end of all application threads
/// ([`process_end`]). The thread has to sleep in [`rest`], or else forks wait for it.
#[derive(Debug)]
pub struct Worker {
    thread: Option<ThreadId>,
    /// Process of the thread.
    process: u32,
}

impl Worker {
    /// Starts a thread with this name, limited to 15 bytes by the kernel.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Self> {
        mind_forks();
        process_end::watch_end_of_thread();
        let thread = start(name, work)?;
        Ok(Self { thread: Some(thread), process: std::process::id() })
    }

    /// Requests the end of the thread by `tell` and waits for it. A forked process does neither:
    /// the request may reach the parent by shared state, and the thread does not exist there.
    pub fn end(&mut self, tell: impl FnOnce()) {
        let Some(ThreadId(thread)) = self.thread.take() else { return };
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
    /// Detaches a thread not ended yet.
    fn drop(&mut self) {
        if let Some(ThreadId(thread)) = self.thread.take() {
            if self.process == std::process::id() {
                // SAFETY: as in `end`.
                unsafe { libc::pthread_detach(thread) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library_thread::{after_fork_in_parent, before_fork};
    use crate::sys::forked;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};
    use std::thread::sleep;
    use std::time::Duration;

    /// Locks of a worker busy most of the time.
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

    /// The end of one fork is not the end of another fork started meanwhile by another thread.
    #[test]
    fn no_worker_begins_before_the_last_of_two_forks_is_over() {
        let started = Arc::new(AtomicBool::new(false));
        let begins = started.clone();
        before_fork();
        before_fork();
        after_fork_in_parent();
        let mut worker =
            Worker::start("test", move || begins.store(true, Ordering::SeqCst)).unwrap();
        sleep(Duration::from_millis(20));
        let early = started.load(Ordering::SeqCst);
        after_fork_in_parent();
        worker.end(|| ());
        assert!(!early && started.load(Ordering::SeqCst));
    }

    #[test]
    fn worker_ends_only_on_request() {
        let (tell, notified) = channel::<()>();
        let (say, received) = channel();
        let mut worker = Worker::start("test", move || {
            say.send(rest(|| notified.recv())).unwrap();
        })
        .unwrap();
        assert!(received.try_recv().is_err());
        worker.end(|| tell.send(()).unwrap());
        assert_eq!(received.try_recv(), Ok(Ok(())));
        worker.end(|| panic!("it has ended"));
    }
}
