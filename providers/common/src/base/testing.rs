//! For unit tests of this crate and of providers.
use crate::progress::Progress;
use std::io::Write;
use std::os::fd::RawFd;
use std::panic::Location;

/// Progress of a test without events.
#[derive(Debug)]
pub struct IdleProgress;

impl Progress for IdleProgress {
    fn progress(&self) {}
    fn wait_fd(&self) -> RawFd {
        -1
    }
    fn may_block(&self) -> bool {
        true
    }
    fn is_serialized(&self) -> bool {
        true
    }
    fn activity(&self) -> u64 {
        0
    }
}

/// Records a skipped test for lack of a system facility: on standard error, or as a line of the
/// file named by `OFI_TEST_SKIPS`, for counting.
#[track_caller]
pub fn skip(reason: &str) {
    let at = Location::caller();
    let line = format!("skip {}:{}: {reason}\n", at.file(), at.line());
    let file = std::env::var_os("OFI_TEST_SKIPS");
    let open = |path| std::fs::OpenOptions::new().create(true).append(true).open(path);
    match file.map(open) {
        Some(Ok(mut file)) => file.write_all(line.as_bytes()).expect("a skip is noted"),
        Some(Err(error)) => panic!("OFI_TEST_SKIPS: {error}"),
        None => eprint!("{line}"),
    }
}
