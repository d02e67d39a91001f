//! The file by which samplers read the counters: where it is, and its memory.
use ofi_facts::monitor::{ASKED, ENDED, FILE_LEN, FLAGS_AT, NUMBERS};
use std::ffi::CStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What the user chose of files and folders.
#[derive(Clone, Debug)]
pub(crate) struct MonitorPlace {
    /// The folder of all users.
    pub(crate) base: PathBuf,
    /// The access mode of the folders below it.
    pub(crate) dir_mode: u32,
    /// The access mode of files.
    pub(crate) file_mode: u32,
}

/// The access mode of the folder of all users, if it is not there yet: who has made something in it
/// may remove it, and nobody else.
const BASE_MODE: u32 = 0o1777;

impl MonitorPlace {
    /// The folder for this user's files of this host, which is there from now on.
    fn folder(&self) -> Result<PathBuf> {
        make_folder(&self.base, BASE_MODE)?;
        // SAFETY: a number is asked for.
        let user = unsafe { libc::geteuid() };
        let mut folder = self.base.join(user.to_string());
        make_folder(&folder, self.dir_mode)?;
        check_owner(&folder, user)?;
        folder.push(host_name()?);
        make_folder(&folder, self.dir_mode)?;
        check_owner(&folder, user)?;
        Ok(folder)
    }
}

fn with_path(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes a folder of this mode, whatever the process's mask, if it is not there.
fn make_folder(path: &Path, mode: u32) -> Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| with_path(path, &error))
}

/// Others can make folders where all users' are: a folder that is not this user's, or a link, might
/// lead anywhere.
fn check_owner(path: &Path, user: u32) -> Result<()> {
    let found = fs::symlink_metadata(path).map_err(|error| with_path(path, &error))?;
    if found.is_dir() && found.uid() == user {
        return Ok(());
    }
    Err(Error::other(format!("{}: not a folder of this user's", path.display())))
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

/// The file, in memory that the process shares with samplers.
#[derive(Debug)]
pub(crate) struct MonitorFile {
    memory: ptr::NonNull<u8>,
    path: PathBuf,
    /// The process that made it: a forked child has the same memory, and must not write to it.
    process: u32,
}

// SAFETY: the memory is of this value alone, and only atomic accesses are made to it.
unsafe impl Send for MonitorFile {}
// SAFETY: as above.
unsafe impl Sync for MonitorFile {}

impl MonitorFile {
    /// A new file of this name, full of zeros.
    pub(crate) fn new(place: &MonitorPlace, name: &str) -> Result<Self> {
        let folder = place.folder()?;
        let path = folder.join(name);
        // Samplers look at all files of the folder, so it is put there when it is complete.
        let early = folder.with_file_name(format!(".{name}"));
        let create = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(place.file_mode)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&early)
        };
        let file = match create() {
            // What an earlier process of this number has left.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&early).and_then(|()| create())
            }
            done => done,
        }
        .map_err(|error| with_path(&early, &error))?;
        let made = file
            .set_permissions(Permissions::from_mode(place.file_mode))
            .and_then(|()| file.set_len(FILE_LEN as u64))
            .and_then(|()| map(&file))
            .map(|memory| Self { memory, path, process: std::process::id() })
            .and_then(|made| fs::rename(&early, &made.path).map(|()| made));
        made.map_err(|error| {
            let _ = fs::remove_file(&early);
            with_path(&early, &error)
        })
    }

    fn numbers(&self) -> &[AtomicU64; NUMBERS] {
        // SAFETY: the memory begins with so many numbers, is mapped as long as this value lives, begins
        // a page, and is accessed by atomic operations alone.
        unsafe { self.memory.cast().as_ref() }
    }

    fn flags(&self) -> &AtomicU8 {
        // SAFETY: the memory has this byte behind the numbers; as above.
        unsafe { self.memory.add(FLAGS_AT).cast().as_ref() }
    }

    /// Whether this is another process than the one whose file it is.
    fn is_of_parent(&self) -> bool {
        std::process::id() != self.process
    }

    /// Whether a sampler asks for what was counted.
    pub(crate) fn is_asked(&self) -> bool {
        self.flags().load(Ordering::Acquire) & ASKED != 0 && !self.is_of_parent()
    }

    /// Puts into each place what `counted` takes out of the counters.
    fn replace(&self, counted: impl Fn(usize) -> u64) {
        for (place, number) in self.numbers().iter().enumerate() {
            number.store(counted(place), Ordering::Relaxed);
        }
    }

    /// Gives the sampler that has asked what `counted` takes out of the counters, a number for each
    /// place.
    pub(crate) fn answer(&self, counted: impl Fn(usize) -> u64) {
        self.replace(counted);
        self.flags().fetch_and(!ASKED, Ordering::Release);
    }

    /// Gives what was counted last. If nobody has asked since the last time, what was given then may
    /// not have been read, and comes on top.
    pub(crate) fn end(&self, counted: impl Fn(usize) -> u64) {
        if self.is_of_parent() {
            return;
        }
        if self.flags().load(Ordering::Acquire) & ASKED != 0 {
            self.replace(counted);
        } else {
            for (place, number) in self.numbers().iter().enumerate() {
                number.fetch_add(counted(place), Ordering::Relaxed);
            }
        }
        // At once, so that the last answer is never taken for one that others follow.
        self.flags().store(ENDED, Ordering::Release);
    }

    /// Removes the file; who reads it goes on doing so.
    pub(crate) fn remove(&self) {
        if !self.is_of_parent() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for MonitorFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), FILE_LEN) };
    }
}

fn map(file: &File) -> Result<ptr::NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that is long enough; no memory of ours is touched.
    let memory = unsafe {
        libc::mmap(ptr::null_mut(), FILE_LEN, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if memory == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    ptr::NonNull::new(memory.cast()).ok_or_else(|| Error::from(ErrorKind::OutOfMemory))
}
