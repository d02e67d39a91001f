//! Opens published statistics memory, and nothing else.
//!
//! A user controls the files behind the descriptors of a process, and the text of their links in
//! `/proc`. Opening a FIFO waits for a writer, opening a device may have any effect, and a user's
//! file system (FUSE) may never answer. So a file is verified to be unnamed memory before it is
//! opened.
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

/// Opens the file of a link in `/proc/PID/fd` if it is memory without a name; none if it is anything else.
/// Does not wait for the file's owner.
pub(crate) fn open_memory(link: &Path) -> io::Result<Option<File>> {
    // O_PATH finds the file and does not open it: the file and its file system are asked for nothing.
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(link)?;
    if !is_memory(&found)? {
        return Ok(None);
    }
    // By the descriptor: the link may lead to another file by now. A lease of the owner's would be waited for
    // without O_NONBLOCK.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(same).map(Some)
}

/// Returns true if a file found by O_PATH is unnamed memory. All such files are on one mount of the
/// kernel; nothing else can be added to it.
fn is_memory(found: &File) -> io::Result<bool> {
    match mount_of_memory()? {
        Some(mount) => Ok(mount_of(found)? == Some(mount)),
        // Systems that tell no mount.
        None => Ok(found.metadata()?.is_file()),
    }
}

/// Returns the number of a file's mount, if the kernel reports it. Only the kernel is queried.
fn mount_of(file: &File) -> io::Result<Option<u64>> {
    let envelope = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let mount = envelope.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    Ok(mount.and_then(|number| number.trim().parse().ok()))
}

/// Returns the number of the mount of unnamed memory.
fn mount_of_memory() -> io::Result<Option<u64>> {
    static MOUNT: OnceLock<Option<u64>> = OnceLock::new();
    if let Some(mount) = MOUNT.get() {
        return Ok(*mount);
    }
    let mount = mount_of(&File::from(new_memory()?))?;
    Ok(*MOUNT.get_or_init(|| mount))
}

/// New memory without a name.
fn new_memory() -> io::Result<OwnedFd> {
    // SAFETY: a C string, which the call only reads; the result is checked, then owned once.
    unsafe {
        match libc::memfd_create(c"libfabric-mount".as_ptr(), libc::MFD_CLOEXEC) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn open_own(fd: &impl AsRawFd) -> Option<File> {
        open_memory(format!("/proc/self/fd/{}", fd.as_raw_fd()).as_ref()).unwrap()
    }

    #[test]
    fn memory_without_a_name_is_opened() {
        let mut memory = File::from(new_memory().unwrap());
        memory.write_all(b"shown").unwrap();
        assert_eq!(io::read_to_string(open_own(&memory).unwrap()).unwrap(), "shown");
    }

    #[test]
    fn nothing_else_is_opened() {
        let folder = std::env::temp_dir().join(format!("ofi-stats-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("memfd:libfabric-stats (deleted)");
        let fifo = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string, which the call only reads.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        // Opened in the usual way, as by its link, it waits for a writer.
        assert!(open_own(&options.open(&path).unwrap()).is_none());
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        assert!(open_own(&File::open(&file).unwrap()).is_none());
        assert!(open_own(&File::open(&folder).unwrap()).is_none());
        assert!(open_own(&File::open("/dev/null").unwrap()).is_none());
        assert!(open_own(&UnixStream::pair().unwrap().0).is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
