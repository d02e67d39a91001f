//! Exit of a process with only library threads left.
//!
//! A process whose main thread called pthread_exit(3) ends with its last thread. Library threads
//! end with their objects. Such a process never closes them, so they would keep it alive for ever.
//! Therefore the process exits as soon as the application has no thread any more, as glibc ends it
//! with its last thread: by exit(3) with status 0.
use crate::library_thread::{
    ThreadMark, detach, is_worker, mind_forks, rest, running_workers, start,
};
use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Interval of the checks of the main thread while it runs.
const MAIN_PAUSE: Duration = Duration::from_secs(1);

/// Interval of the checks of all threads after the end of the main thread.
const TASKS_PAUSE: Duration = Duration::from_millis(100);

/// The threads of this process, as proc(5) lists them.
const TASKS: &str = "/proc/self/task";

/// Number of the process watched by at most one thread; 0 without a watch. A forked child
/// has another number and no watching thread.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Mark of application threads that have started a library thread.
static STARTER: ThreadMark = ThreadMark::new(Some(end_thread));

/// Arranges for the watch to start at the end of the calling thread of the application. Called by
/// each thread starting a library thread.
pub(crate) fn watch_end_of_thread() {
    if !is_worker() {
        STARTER.set();
    }
}

/// Starts the watch at the end of a thread that has started a library thread.
extern "C" fn end_thread(_value: *mut c_void) {
    let process = std::process::id();
    if running_workers() == 0 || WATCHED.swap(process, Ordering::AcqRel) == process {
        return;
    }
    mind_forks();
    watch_end_of_thread();
    match start("ofi-last", watch) {
        Ok(thread) => detach(thread),
        Err(_) => WATCHED.store(0, Ordering::Release),
    }
}

/// Ends the process when the application has no thread any more; returns when the library has none but
/// this one.
fn watch() {
    let mut empty = 0;
    while running_workers() > 1 {
        let has_main = is_alive(&Path::new(TASKS).join(std::process::id().to_string()));
        let has_other = has_main || has_application_thread(Path::new(TASKS));
        empty = if has_other { 0 } else { empty + 1 };
        // A second look, in case the list changed while it was read.
        if empty == 2 {
            std::process::exit(0);
        }
        rest(|| std::thread::sleep(if has_main { MAIN_PAUSE } else { TASKS_PAUSE }));
    }
    WATCHED.store(0, Ordering::Release);
}

/// Returns true if a thread has not ended, or if its state is unknown.
fn is_alive(task: &Path) -> bool {
    fs::read_to_string(task.join("status"))
        .map_or(true, |status| ListedThread::of(&status).is_alive)
}

/// Returns true if one of these threads belongs to the application, or if they cannot be listed.
fn has_application_thread(tasks: &Path) -> bool {
    let Ok(tasks) = fs::read_dir(tasks) else { return true };
    tasks.into_iter().any(|task| {
        let Ok(task) = task else { return true };
        // A thread of which nothing can be read has ended since.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { return false };
        let task = ListedThread::of(&status);
        task.is_alive && !task.is_of_library
    })
}

/// A thread as proc(5) shows it.
#[derive(PartialEq, Eq, Debug)]
struct ListedThread {
    is_alive: bool,
    /// True for a thread started by the library, or by the kernel for an io_uring: both have such
    /// names and block all signals.
    is_of_library: bool,
}

impl ListedThread {
    /// Reads the lines of a thread's `status`.
    fn of(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or("").trim()
        };
        let named = ["ofi-", "iou-"].iter().any(|start| field("Name").starts_with(start));
        let blocked = u64::from_str_radix(field("SigBlk"), 16).unwrap_or(0);
        Self {
            is_alive: !field("State").starts_with(['Z', 'X']),
            is_of_library: named && blocked & ORDINARY == ORDINARY,
        }
    }
}

/// Blockable signals with a bit among the first 31.
const ORDINARY: u64 = 0x7fff_ffff & !(1 << (libc::SIGKILL - 1)) & !(1 << (libc::SIGSTOP - 1));

#[cfg(test)]
mod tests {
    use super::*;

    fn task(is_alive: bool, is_of_library: bool) -> ListedThread {
        ListedThread { is_alive, is_of_library }
    }

    #[test]
    fn a_thread_is_of_the_library_by_its_name_and_its_blocked_signals() {
        let status = |name: &str, state: &str, blocked: &str| {
            ListedThread::of(&format!(
                "Name:\t{name}\nState:\t{state}\nSigPnd:\t0\nSigBlk:\t{blocked}\n"
            ))
        };
        let all = "fffffffe7ffbfeff";
        assert_eq!(status("ofi-tcp", "S (sleeping)", all), task(true, true));
        assert_eq!(status("iou-wrk-77", "S (sleeping)", "fffffffffffbfeff"), task(true, true));
        assert_eq!(status("ofi-tcp", "S (sleeping)", "0000000000000000"), task(true, false));
        assert_eq!(status("server", "R (running)", all), task(true, false));
        assert_eq!(status("server", "Z (zombie)", "0000000000000000"), task(false, false));
        assert_eq!(ListedThread::of(""), task(true, false));
    }

    #[test]
    fn this_thread_is_one_of_the_application() {
        assert!(is_alive(&Path::new(TASKS).join(std::process::id().to_string())));
        assert!(has_application_thread(Path::new(TASKS)));
        assert!(has_application_thread(Path::new("/proc/self/nothing")));
    }
}
