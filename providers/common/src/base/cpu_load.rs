//! Load of the system's processors.
use crate::sys::sysconf;
use std::fs::File;
use std::io::Read as _;

/// Returns the number of threads running or ready to run per processor, at least 1 (proc_loadavg(5)).
/// Returns 1 if it is unknown. The call costs some microseconds.
pub(crate) fn threads_per_processor() -> u32 {
    let mut text = [0; 128];
    let read = File::open("/proc/loadavg").and_then(|mut file| file.read(&mut text));
    let threads = read.ok().and_then(|len| ready_threads(text.get(..len)?));
    let processors = u32::try_from(sysconf(libc::_SC_NPROCESSORS_ONLN)).unwrap_or(u32::MAX);
    (threads.unwrap_or(1) / processors.max(1)).max(1)
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
        assert!(threads_per_processor() >= 1);
    }
}
