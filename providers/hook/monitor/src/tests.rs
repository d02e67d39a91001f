use super::*;
use core::ptr;
use ofi_hook::{Pieces, TransferArgs};
use ofi_stats::monitor::{ASKED, ENDED, FILE_LEN, FLAGS_AT};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A folder of a test's own.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ofi-monitor-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn dir(&self) -> MonitorDir {
        MonitorDir { base: self.0.clone(), dir_mode: 0o1700, file_mode: 0o600 }
    }

    /// The only file below it.
    fn file(&self) -> Option<PathBuf> {
        fn below(folder: &Path) -> Option<PathBuf> {
            let inside = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
            inside.filter_map(|path| if path.is_dir() { below(&path) } else { Some(path) }).next()
        }
        below(&self.0)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn monitor(folder: &TestFolder, ticks: u32, linger: bool) -> CallMonitor {
    let settings = MonitorSettings { dir: folder.dir(), ticks, linger };
    let settings = Box::leak(Box::new(settings));
    CallMonitor::new(MonitorFile::new(&settings.dir, "1_2_3_0_x").unwrap(), settings).unwrap()
}

/// Simulates a successful transfer of `len` bytes.
fn transfer(monitor: &CallMonitor, op: HookOp, len: usize) {
    let args = Args::Transfer(TransferArgs {
        pieces: Pieces::One(ptr::null(), len),
        addr: 0,
        data: 0,
        flags: 0,
        tag: 0,
        ignore: 0,
        raddr: 0,
        key: 0,
        context: ptr::null_mut(),
    });
    // SAFETY: nothing in the call is followed.
    unsafe {
        monitor.leave((), &HookCall { op, object: ptr::null(), format: 0, api_version: 0, args }, 0)
    };
}

/// Reads a file: the count and sum of a row and class, and the flags.
fn read(path: &Path, row: &str, class: usize) -> ([u64; 2], u8) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len(), FILE_LEN);
    let number = |at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
    (cell_indices(row_of(row).unwrap(), class).map(number), bytes[FLAGS_AT])
}

fn ask(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[ASKED], FLAGS_AT as u64).unwrap();
}

#[test]
fn request_returns_counts_since_the_previous_request() {
    let folder = TestFolder::new("asked");
    let monitor = monitor(&folder, 2, false);
    let path = folder.file().unwrap();
    transfer(&monitor, HookOp::Send, 100);
    transfer(&monitor, HookOp::Send, 200);
    assert_eq!(read(&path, "send", 1), ([0, 0], 0), "no request yet");
    ask(&path);
    transfer(&monitor, HookOp::Send, 300);
    assert_eq!(read(&path, "send", 1), ([0, 0], ASKED), "each second call looks");
    transfer(&monitor, HookOp::Recv, 400);
    assert_eq!(read(&path, "send", 1), ([3, 600], 0));
    assert_eq!(read(&path, "recv", 0), ([1, 0], 0), "the length of a buffer is not counted");
    ask(&path);
    transfer(&monitor, HookOp::Send, 64);
    transfer(&monitor, HookOp::Recv, 0);
    assert_eq!(read(&path, "send", 1), ([0, 0], 0));
    assert_eq!(read(&path, "send", 0), ([1, 64], 0));
}

#[test]
fn final_counts_include_unread_ones() {
    let folder = TestFolder::new("end");
    let ended = monitor(&folder, 1, true);
    let path = folder.file().unwrap();
    ask(&path);
    transfer(&ended, HookOp::Write, 5 << 20);
    assert_eq!(read(&path, "write", 8), ([1, 5 << 20], 0));
    transfer(&ended, HookOp::Write, 6 << 20);
    drop(ended);
    assert_eq!(read(&path, "write", 8), ([2, 11 << 20], ENDED));
    // The name may be taken again.
    drop(monitor(&folder, 1, false));
    assert_eq!(folder.file(), None);
}

#[test]
fn files_and_folders_have_the_chosen_modes() {
    let folder = TestFolder::new("modes");
    let _monitor = monitor(&folder, 1, false);
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let path = folder.file().unwrap();
    let host = path.parent().unwrap();
    assert_eq!((mode(&path), mode(host), mode(host.parent().unwrap())), (0o600, 0o1700, 0o1700));
    assert_eq!(mode(&folder.0), 0o1777);
}

#[test]
fn symlink_as_folder_is_not_followed() {
    let (folder, elsewhere) = (TestFolder::new("link"), TestFolder::new("elsewhere"));
    fs::create_dir(&folder.0).unwrap();
    fs::create_dir(&elsewhere.0).unwrap();
    // SAFETY: a number is asked for.
    let user = unsafe { libc::geteuid() };
    std::os::unix::fs::symlink(&elsewhere.0, folder.0.join(user.to_string())).unwrap();
    let refused = MonitorFile::new(&folder.dir(), "x").unwrap_err();
    assert!(refused.to_string().contains("not a folder of this user's"), "{refused}");
    assert_eq!(elsewhere.file(), None);
}
