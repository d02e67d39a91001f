//! Load of the system's processors.
use crate::sys::{fine_now, sysconf};
use std::fs::File;
use std::io::Read as _;
use std::sync::OnceLock;

/// Nanoseconds of a value's use.
const READ_AFTER: u64 = 10_000_000;

/// Number of threads running or ready to run per processor (proc_loadavg(5)), read at intervals.
#[derive(Debug, Default)]
pub(crate) struct CpuLoad {
    next: u64,
    load: u32,
}

impl CpuLoad {
    /// Returns the load, at least 1; 1 if it is unknown. Reading the number takes some microseconds, and a
    /// descriptor meanwhile.
    pub(crate) fn get(&mut self) -> u32 {
        let now = fine_now();
        if now >= self.next {
            (self.next, self.load) = (now + READ_AFTER, threads_per_processor());
        }
        self.load
    }
}

fn threads_per_processor() -> u32 {
    let mut text = [0; 128];
    let read = File::open("/proc/loadavg").and_then(|mut file| file.read(&mut text));
    let threads = read.ok().and_then(|len| ready_threads(text.get(..len)?));
    (threads.unwrap_or(1) / processors()).max(1)
}

/// Returns the number of processors, at least 1. The C library reads a file for it, so it is read once.
fn processors() -> u32 {
    static PROCESSORS: OnceLock<u32> = OnceLock::new();
    let count = || u32::try_from(sysconf(libc::_SC_NPROCESSORS_ONLN)).unwrap_or(u32::MAX);
    (*PROCESSORS.get_or_init(count)).max(1)
}

/// Returns the number of threads running or ready to run from the text of `/proc/loadavg`.
fn ready_threads(text: &[u8]) -> Option<u32> {
    let field = text.split(|byte| *byte == b' ').nth(3)?;
    let digits = field.split(|byte| *byte == b'/').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_threads_are_the_first_half_of_the_fourth_field() {
        assert_eq!(ready_threads(b"0.20 0.18 0.12 257/1080 11206\n"), Some(257));
        assert_eq!(ready_threads(b"0.20 0.18 0.12 1"), Some(1));
        for text in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 ", "0 0 0 -1/2", "0 0 0 99999999999/1"] {
            assert_eq!(ready_threads(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn load_is_at_least_one_thread_per_processor() {
        let mut load = CpuLoad::default();
        assert!(load.get() >= 1);
        assert!(load.next > fine_now() - READ_AFTER);
        (load.next, load.load) = (u64::MAX, 7);
        assert_eq!(load.get(), 7);
    }
}
