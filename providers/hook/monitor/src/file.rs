//! File with the counters for samplers: its location, and its content.
//!
//! It is read and written only by system calls. Mapped memory of a file is lost when another
//! program shortens the file, or when its file system has no space for a page of it; touching it
//! then ends the program.
use ofi_hook::may_have_size;
use ofi_stats::monitor::{ASKED, ENDED, FILE_LEN, FLAGS_AT, NUMBERS};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

/// User settings of files and folders.
#[derive(Clone, Debug)]
pub(crate) struct MonitorDir {
    /// The folder of all users.
    pub(crate) base: PathBuf,
    /// The access mode of the folders below it.
    pub(crate) dir_mode: u32,
    /// The access mode of files.
    pub(crate) file_mode: u32,
}

/// Access mode of the folder of all users, if it does not exist yet: only the creator of an entry
/// may remove it.
const BASE_MODE: u32 = 0o1777;

impl MonitorDir {
    /// The folder for this user's files of this host, and the one above it. Both are there from now on.
    fn folders(&self) -> Result<[MonitorFolder; 2]> {
        let base = MonitorFolder::base(&self.base)?;
        // SAFETY: a number is asked for.
        let user = unsafe { libc::geteuid() };
        let of_user = base.folder(&user.to_string(), self.dir_mode, user)?;
        let of_host = of_user.folder(&host_name()?, self.dir_mode, user)?;
        Ok([of_host, of_user])
    }
}

fn with_path(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn c_name(name: &OsStr) -> Result<CString> {
    Ok(CString::new(name.as_bytes())?)
}

/// Checks the result of a system call, negative on an error.
fn check(answer: libc::c_int) -> Result<libc::c_int> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(answer) }
}

/// Open folder. It stays the same even if its path is replaced: the folder of all users belongs to
/// one of them, able to move entries of others.
#[derive(Debug)]
struct MonitorFolder {
    fd: File,
    path: PathBuf,
}

impl MonitorFolder {
    /// Opens the folder of all users, created if it does not exist. A link in its place is followed
    /// only if it belongs to this user or root.
    fn base(path: &Path) -> Result<Self> {
        let named_error = |error| with_path(path, &error);
        let name = c_name(path.as_os_str())?;
        let made = make(libc::AT_FDCWD, &name, BASE_MODE).map_err(named_error)?;
        // SAFETY: a number is asked for.
        let user = unsafe { libc::geteuid() };
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let mut fd = open(libc::AT_FDCWD, &name, flags, 0).map_err(named_error)?;
        let found = fd.metadata().map_err(named_error)?;
        if found.file_type().is_symlink() {
            if ![0, user].contains(&found.uid()) {
                return Err(named_error(Error::other("a link of another user's is not followed")));
            }
            fd = open(libc::AT_FDCWD, &name, libc::O_PATH | libc::O_DIRECTORY, 0)
                .map_err(named_error)?;
        }
        let folder = Self { fd, path: path.to_owned() };
        if made {
            folder.chosen_mode(BASE_MODE, user).map_err(named_error)?;
        }
        Ok(folder)
    }

    /// Opens a folder in this one, created with this mode if it does not exist. It must belong to
    /// the user, and not be a link.
    fn folder(&self, name: &str, mode: u32, user: u32) -> Result<Self> {
        let path = self.path.join(name);
        let named_error = |error| with_path(&path, &error);
        let name = c_name(OsStr::new(name))?;
        let made = make(self.fd.as_raw_fd(), &name, mode).map_err(named_error)?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let fd = open(self.fd.as_raw_fd(), &name, flags, 0).map_err(named_error)?;
        let found = fd.metadata().map_err(named_error)?;
        if !found.is_dir() || found.uid() != user {
            return Err(named_error(Error::other("not a folder of this user's")));
        }
        let folder = Self { fd, path };
        if made {
            folder.chosen_mode(mode, user).map_err(|error| with_path(&folder.path, &error))?;
        }
        Ok(folder)
    }

    /// Sets the mode of the folder, regardless of the process's mask, if it belongs to this user.
    fn chosen_mode(&self, mode: u32, user: u32) -> Result<()> {
        if self.fd.metadata()?.uid() != user {
            return Ok(());
        }
        // The mode of a file opened with O_PATH can only be set by its name in /proc.
        let same = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        std::fs::set_permissions(same, Permissions::from_mode(mode))
    }

    fn remove(&self, name: &CStr) -> Result<()> {
        // SAFETY: a C string that outlives the call.
        check(unsafe { libc::unlinkat(self.fd.as_raw_fd(), name.as_ptr(), 0) })?;
        Ok(())
    }
}

/// Creates a folder; returns true if it did not exist before.
fn make(at: libc::c_int, name: &CStr, mode: u32) -> Result<bool> {
    // SAFETY: a C string that outlives the call.
    match check(unsafe { libc::mkdirat(at, name.as_ptr(), mode) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn open(at: libc::c_int, name: &CStr, flags: libc::c_int, mode: u32) -> Result<File> {
    let flags = flags | libc::O_CLOEXEC;
    // The system call itself, in which no thread is cancelled.
    // SAFETY: a C string that outlives the call; the result is checked, then owned once.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, at, name.as_ptr(), flags, mode);
        let fd = check(libc::c_int::try_from(fd).unwrap_or(-1))?;
        Ok(File::from_raw_fd(fd))
    }
}

fn host_name() -> Result<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the call writes into `name` as far as it goes.
    if unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0 {
        return Err(Error::last_os_error());
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(Error::other)?;
    // No name of a host has a slash, so that it is one folder.
    let name = name.to_string_lossy().replace('/', "_");
    Ok(if matches!(&*name, "" | "." | "..") { "_".to_owned() } else { name })
}

/// The file.
#[derive(Debug)]
pub(crate) struct MonitorFile {
    /// None after the end.
    file: Option<File>,
    /// Identity of the file: a program may close descriptors of the library, and reuse their
    /// numbers for other files.
    identity: (u64, u64),
    folder: MonitorFolder,
    name: CString,
    /// Process that created it: a forked child has the same file, and must not write to it.
    process: u32,
}

fn identity_of(file: &File) -> Result<(u64, u64)> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}

impl MonitorFile {
    /// Creates a file with this name, filled with zeros, with all its space allocated.
    pub(crate) fn new(dir: &MonitorDir, name: &str) -> Result<Self> {
        Self::new_in(dir.folders()?, dir.file_mode, name)
    }

    /// The same in a folder, made in the one above it.
    fn new_in([folder, above]: [MonitorFolder; 2], mode: u32, name: &str) -> Result<Self> {
        // Samplers look at all files of the folder, so it is put there when it is complete.
        let early = c_name(OsStr::new(&format!(".{name}")))?;
        let name = c_name(OsStr::new(name))?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let create = || open(above.fd.as_raw_fd(), &early, flags, mode);
        let made = create().or_else(|error| match error.kind() {
            // File left by an earlier process with this number.
            ErrorKind::AlreadyExists => above.remove(&early).and_then(|()| create()),
            _ => Err(error),
        });
        let made = made.and_then(|file| {
            let filled = fill(&file, mode).and_then(|()| {
                let [from, to] = [&above, &folder].map(|folder| folder.fd.as_raw_fd());
                // SAFETY: C strings that outlive the call.
                check(unsafe { libc::renameat(from, early.as_ptr(), to, name.as_ptr()) })
            });
            match filled.and_then(|_| identity_of(&file)) {
                Ok(identity) => Ok((file, identity)),
                Err(error) => {
                    let _ = above.remove(&early);
                    Err(error)
                }
            }
        });
        let path = || folder.path.join(OsStr::from_bytes(name.as_bytes()));
        let (file, identity) = made.map_err(|error| with_path(&path(), &error))?;
        Ok(Self { file: Some(file), identity, folder, name, process: std::process::id() })
    }

    /// Returns the file, if the descriptor still refers to it and this is the process that created
    /// it.
    fn own(&self) -> Option<&File> {
        let file = self.file.as_ref().filter(|_| std::process::id() == self.process)?;
        identity_of(file).is_ok_and(|identity| identity == self.identity).then_some(file)
    }

    fn flags(file: &File) -> Option<u8> {
        let mut flags = [0];
        file.read_exact_at(&mut flags, FLAGS_AT as u64).ok()?;
        // Accesses of a sampler before its request are visible to the following code.
        fence(Ordering::Acquire);
        Some(flags[0])
    }

    /// Returns true if a sampler requests the counters, judged by one read of the file.
    pub(crate) fn is_asked(&self) -> bool {
        let file = self.file.as_ref().filter(|_| std::process::id() == self.process);
        file.and_then(Self::flags).is_some_and(|flags| flags & ASKED != 0)
    }

    /// Writes the numbers, then the flags; writes nothing if the size limit of files has become too
    /// small.
    fn write(file: &File, numbers: &[u64], flags: u8) {
        if !may_have_size(FILE_LEN) {
            return;
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        if file.write_all_at(&bytes, 0).is_ok() {
            // A sampler that sees the flags sees the numbers.
            fence(Ordering::Release);
            let _ = file.write_all_at(&[flags], FLAGS_AT as u64);
        }
    }

    /// Responds to a sampler's request with the numbers taken by `counted` from the counters, one
    /// per index.
    pub(crate) fn answer(&self, counted: impl Fn(usize) -> u64) {
        let Some(file) = self.own() else { return };
        let Some(flags) = Self::flags(file).filter(|flags| flags & ASKED != 0) else { return };
        let numbers: Vec<u64> = (0..NUMBERS).map(counted).collect();
        Self::write(file, &numbers, flags & !ASKED);
    }

    /// Writes the final counts. Without a request since the last response, the previous numbers may
    /// be unread, and are added.
    pub(crate) fn end(&self, counted: impl Fn(usize) -> u64) {
        let Some(file) = self.own() else { return };
        let Some(flags) = Self::flags(file) else { return };
        let mut numbers: Vec<u64> = (0..NUMBERS).map(counted).collect();
        if flags & ASKED == 0 {
            let mut bytes = vec![0; NUMBERS * size_of::<u64>()];
            if file.read_exact_at(&mut bytes, 0).is_ok() {
                for (number, given) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
                    let given = given.try_into().expect("chunks have eight bytes");
                    *number = number.wrapping_add(u64::from_ne_bytes(given));
                }
            }
        }
        // At once, so that the last answer is never taken for one that others follow.
        Self::write(file, &numbers, ENDED);
    }

    /// Removes the file; a sampler with the file open can still read it.
    pub(crate) fn remove(&self) {
        if std::process::id() == self.process {
            let _ = self.folder.remove(&self.name);
        }
    }
}

impl Drop for MonitorFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            if !identity_of(&file).is_ok_and(|identity| identity == self.identity) {
                // The program has closed it, and the number may be of another file.
                let _ = file.into_raw_fd();
            }
        }
    }
}

/// Sets the permissions of a file and fills it with zeros to its final size, so its space is
/// allocated.
fn fill(file: &File, mode: u32) -> Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    if !may_have_size(FILE_LEN) {
        return Err(ErrorKind::FileTooLarge.into());
    }
    file.write_all_at(&[0; FILE_LEN], 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    /// A folder of a test's own, and the place below it.
    fn dir(name: &str) -> (PathBuf, MonitorDir) {
        let path = std::env::temp_dir().join(format!("ofi-place-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        let base = path.join("base");
        (path, MonitorDir { base, dir_mode: 0o1700, file_mode: 0o600 })
    }

    #[test]
    fn moved_folder_leads_to_no_other_folder() {
        let (path, dir) = dir("moved");
        let folders = dir.folders().unwrap();
        // As the owner of the base may do, even if it is another user.
        let [host, above] = folders.each_ref().map(|folder| folder.path.clone());
        let elsewhere = path.join("elsewhere");
        fs::create_dir_all(elsewhere.join(host.file_name().unwrap())).unwrap();
        fs::rename(&above, path.join("moved")).unwrap();
        symlink(&elsewhere, &above).unwrap();
        let file = MonitorFile::new_in(folders, 0o600, "one").unwrap();
        let made = path.join("moved").join(host.file_name().unwrap()).join("one");
        assert!(made.exists() && !host.join("one").exists());
        file.remove();
        assert!(!made.exists());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn symlink_as_base_is_followed_only_if_owned_by_the_user() {
        let (path, dir) = dir("base");
        fs::create_dir(path.join("real")).unwrap();
        symlink("real", &dir.base).unwrap();
        assert!(dir.folders().is_ok());
        // Only root can give it to another user.
        if lchown(&dir.base, Some(65534), None).is_ok() {
            let refused = dir.folders().unwrap_err().to_string();
            assert!(refused.contains("another user's"), "{refused}");
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn truncated_file_does_not_crash_the_program() {
        let (path, dir) = dir("shorter");
        let file = MonitorFile::new(&dir, "one").unwrap();
        let at = file.folder.path.join("one");
        fs::write(&at, "").unwrap();
        assert!(!file.is_asked());
        file.answer(|_| 1);
        file.end(|_| 1);
        assert_eq!(fs::read(at).unwrap(), []);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn file_with_a_reused_descriptor_is_left_unchanged() {
        let (path, dir) = dir("closed");
        let file = MonitorFile::new(&dir, "one").unwrap();
        let other = path.join("other");
        fs::write(&other, vec![ASKED; FILE_LEN]).unwrap();
        let own = file.file.as_ref().unwrap().as_raw_fd();
        let opened = File::options().read(true).write(true).open(&other).unwrap();
        // SAFETY: descriptors alone.
        assert_eq!(unsafe { libc::dup2(opened.as_raw_fd(), own) }, own);
        file.answer(|_| 1);
        file.end(|_| 1);
        drop(file);
        assert!(fs::read(&other).unwrap().iter().all(|byte| *byte == ASKED));
        // SAFETY: a descriptor of this test, which is closed once.
        assert_eq!(unsafe { libc::close(own) }, 0, "it is still open");
        fs::remove_dir_all(path).unwrap();
    }
}
