//! Closing of descriptors with a potentially blocking close: for a disk, a server, or the peer of a
//! socket (SO_LINGER).
//!
//! Any process of the host can send descriptors to a unix socket. The kernel closes unreceived ones
//! with the socket, in the thread closing it. A thread of the application must not block on the
//! choice of another process, so threads of the library close such sockets.
use crate::worker::{Worker, rest};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most threads at a time.
const THREADS: usize = 4;

/// Number of descriptors waiting to be closed at and above which no further ones are accepted
/// ([`is_behind`]).
const MOST_WAITING: usize = 256;

/// Time an idle thread waits for more work.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Closer {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
    /// Process of the threads: a forked child has none.
    process: u32,
}

static CLOSER: Mutex<Closer> =
    Mutex::new(Closer { waiting: VecDeque::new(), threads: 0, idle: 0, process: 0 });
static WORK: Condvar = Condvar::new();

fn closer() -> MutexGuard<'static, Closer> {
    CLOSER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a descriptor in a thread of the library, soon.
#[cold]
pub(crate) fn close_later(fd: OwnedFd) {
    let mut closer = closer();
    let process = std::process::id();
    if closer.process != process {
        (closer.process, closer.threads, closer.idle) = (process, 0, 0);
    }
    closer.waiting.push_back(fd);
    if closer.waiting.len() > closer.idle && closer.threads < THREADS {
        closer.threads += 1;
        drop(closer);
        // Without a thread the next call tries again.
        if Worker::start("ofi-close", work).is_err() {
            self::closer().threads -= 1;
        }
    } else {
        WORK.notify_one();
    }
}

/// Returns true if too many descriptors wait to be closed to accept further ones of other
/// processes.
pub(crate) fn is_behind() -> bool {
    closer().waiting.len() >= MOST_WAITING
}

fn work() {
    rest(|| {
        let mut closer = closer();
        loop {
            if let Some(fd) = closer.waiting.pop_front() {
                drop(closer);
                drop(fd);
                closer = self::closer();
                continue;
            }
            closer.idle += 1;
            let waited = WORK.wait_timeout(closer, IDLE).unwrap_or_else(PoisonError::into_inner);
            closer = waited.0;
            closer.idle -= 1;
            if waited.1.timed_out() && closer.waiting.is_empty() {
                closer.threads -= 1;
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn descriptors_are_closed_by_other_threads_soon() {
        let ends: Vec<_> = (0..3 * THREADS)
            .map(|_| {
                let (end, other) = rustix::pipe::pipe().unwrap();
                close_later(other);
                std::fs::File::from(end)
            })
            .collect();
        for mut end in ends {
            assert_eq!(end.read(&mut [0]).unwrap(), 0);
        }
        assert!(closer().threads <= THREADS && !is_behind());
    }
}
