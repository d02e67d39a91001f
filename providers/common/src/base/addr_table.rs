//! Address tables shared by processes of one user under a name (`name` of fi_av_open(3)).
//!
//! A table is a file in memory, `/dev/shm/NAME`: a header, then records of one size. The k-th
//! record holds the address of fi_addr_t k. Records are read and written with pread(2) and
//! pwrite(2) and never mapped, so a truncated file ends a read early and raises no signal. Records
//! are only appended. The record of a removed address is marked, and its index is never reused.
//!
//! Two locks of the file serialize processes. The kernel releases the locks of a process at its
//! exit. [`USERS`] is shared by all processes with the table open; its exclusive owner is the only
//! user. [`WRITER`] is held by the process changing the table. Readers need no lock: the file grows
//! only after the record is complete.
use crate::addr::Addr;
use crate::error::{Error, Result};
use crate::sys::{FileLock, is_own_user, lock_file, may_have_size};
use core::ffi::CStr;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Directory of the tables, as in upstream libfabric.
const FOLDER: &str = "/dev/shm";

/// Most bytes of a name, as of any file.
const MAX_NAME: usize = 255;

/// Most addresses of a table: 64 MiB.
const MAX_ADDRS: u32 = 1 << 20;

/// Byte locked by every process with the table open.
const USERS: i64 = 0;
/// Byte locked by the process changing the table.
const WRITER: i64 = 1;

/// Attempts of an opener to reopen a file removed during the open.
const TRIES: usize = 1000;

/// Magic number of a file with this table layout.
const MAGIC: [u8; 8] = *b"ofiavtb1";
/// Bytes of the header: [`MAGIC`], the format of the addresses, and zeros.
const HEADER: u64 = 64;

/// Bytes of a record: a checksum of everything but `uses`, the insertion count of the address (0:
/// removed), the length of the address, and its bytes.
const RECORD: usize = 64;
const USES: usize = 4;
const LEN: usize = 8;
const BYTES: usize = 10;

/// Records read by one call.
const CHUNK: usize = 256;

/// Returns the file offset of the record of an index.
fn offset_of(index: u32) -> u64 {
    HEADER + u64::from(index) * RECORD as u64
}

/// Returns the checksum (FNV-1a) of the index and the bytes behind `uses`.
fn check_number(index: u32, rest: &[u8]) -> u32 {
    let bytes = index.to_le_bytes();
    let all = bytes.iter().chain(rest);
    all.fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Returns the record of an address with one insertion.
fn record(index: u32, addr: &Addr) -> Result<[u8; RECORD]> {
    let bytes = addr.to_bytes();
    let mut record = [0; RECORD];
    let slot = record.get_mut(BYTES..BYTES + bytes.len()).ok_or(Error::INVAL)?;
    slot.copy_from_slice(&bytes);
    record[LEN..BYTES].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
    record[USES..LEN].copy_from_slice(&1_u32.to_le_bytes());
    let number = check_number(index, &record[LEN..]);
    record[..USES].copy_from_slice(&number.to_le_bytes());
    Ok(record)
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_le_bytes)
}

/// Returns the address of a record and its insertion count. Returns `None` for a removed or torn
/// record, or an unreachable address or one of another format.
fn parse(index: u32, format: u32, record: &[u8]) -> Option<(Addr, u32)> {
    let uses = number_at(record, USES);
    let rest = record.get(LEN..RECORD)?;
    if uses == 0 || number_at(record, 0) != check_number(index, rest) {
        return None;
    }
    let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
    let addr = Addr::read(format, rest.get(2..2 + len)?).ok()?;
    (addr.is_of(format) && addr.is_reachable()).then(|| (addr.identity(), uses))
}

/// Returns the path of a table. Names follow shm_open(3); a leading slash is ignored.
fn path_of(folder: &Path, name: &CStr) -> Result<PathBuf> {
    let bytes = name.to_bytes();
    let bytes = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let special = matches!(bytes, b"" | b"." | b"..");
    if special || bytes.len() > MAX_NAME || bytes.contains(&b'/') {
        return Err(Error::INVAL);
    }
    Ok(folder.join(OsStr::from_bytes(bytes)))
}

/// Maps an error of opening a file: a symbolic link or a non-regular file counts as a missing file.
fn error(error: &std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ELOOP | libc::EISDIR | libc::ENXIO) | None => Error::INVAL,
        Some(code) => Error::from_code(code),
    }
}

/// Checks for a file owned and accessible only by this user. Fails with -FI_EACCES if other users
/// own it or have access, and with -FI_EINVAL if it is not a regular file with one name.
fn is_own(file: &Metadata) -> Result {
    if !file.file_type().is_file() || file.nlink() > 1 {
        return Err(Error::INVAL);
    }
    if !is_own_user(file.uid()) || file.mode() & 0o077 != 0 {
        return Err(Error::ACCES);
    }
    Ok(())
}

/// Address table shared with other processes of this user.
#[derive(Debug)]
pub(crate) struct SharedAddrTable {
    file: File,
    path: PathBuf,
    /// The format of the addresses (FI_SOCKADDR_*).
    format: u32,
    read_only: bool,
    /// Process that opened the table, 0 before the open. A forked child shares the locks and
    /// changes nothing.
    process: u32,
    /// Serializes threads of this process, because file locks are per process.
    writing: Mutex<()>,
}

impl SharedAddrTable {
    /// Opens the table of a name: an existing one if `read_only`, else one created if missing. A
    /// table left behind by terminated processes is read as it is. The first opener with write
    /// access starts it anew. Fails with -FI_EINVAL if there is none to read, if the file is no
    /// table, or for addresses of another format, and with -FI_EACCES for a table of another user.
    pub(crate) fn open(name: &CStr, format: u32, read_only: bool) -> Result<Self> {
        Self::open_in(Path::new(FOLDER), name, format, read_only)
    }

    fn open_in(folder: &Path, name: &CStr, format: u32, read_only: bool) -> Result<Self> {
        let path = path_of(folder, name)?;
        for _ in 0..TRIES {
            let mut options = OpenOptions::new();
            // A reader may be the last one to close the table, for which it needs the lock of a writer.
            options.read(true).write(true).mode(0o600);
            options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
            let file = match options.open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound && !read_only => {
                    match options.create_new(true).open(&path) {
                        Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                        made => made?,
                    }
                }
                found => found.map_err(|io| error(&io))?,
            };
            is_own(&file.metadata()?)?;
            // Nothing is removed of what is refused: a table is this process's when it has joined.
            let (process, path, writing) = (0, path.clone(), Mutex::new(()));
            let mut table = Self { file, path, format, read_only, process, writing };
            if table.join()? {
                table.process = std::process::id();
                return Ok(table);
            }
        }
        Err(Error::BUSY)
    }

    /// Becomes one of the table's users; false if the name was removed meanwhile.
    fn join(&self) -> Result<bool> {
        let alone = !self.read_only && self.lock(USERS, FileLock::Exclusive, false).is_ok();
        if !alone {
            self.lock(USERS, FileLock::Shared, true)?;
        }
        if self.file.metadata()?.nlink() == 0 {
            return Ok(false);
        }
        let started = self.begin(alone);
        if alone {
            self.lock(USERS, FileLock::Shared, true)?;
        }
        started.map(|()| true)
    }

    /// Validates the table file. If `alone`, replaces a table left behind by other processes with a
    /// new one.
    fn begin(&self, alone: bool) -> Result {
        if self.read_only {
            return self.check_header(self.format);
        }
        let _writing = self.write_lock()?;
        let empty = self.file.metadata()?.len() == 0;
        if !empty {
            let mut magic = [0; MAGIC.len()];
            let read = self.file.read_exact_at(&mut magic, 0);
            read.map_err(|_| Error::INVAL)?;
            if magic != MAGIC {
                return Err(Error::INVAL);
            }
        }
        if empty || alone {
            self.file.set_len(0)?;
            self.put(0, &header(self.format))?;
        }
        self.check_header(self.format)
    }

    fn check_header(&self, format: u32) -> Result {
        let mut found = [0; HEADER as usize];
        self.file.read_exact_at(&mut found, 0).map_err(|_| Error::INVAL)?;
        if found == header(format) { Ok(()) } else { Err(Error::INVAL) }
    }

    /// Writes bytes, within the file size limit.
    fn put(&self, at: u64, bytes: &[u8]) -> Result {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(bytes.len()));
        if !end.is_some_and(may_have_size) {
            return Err(Error::from_code(libc::EFBIG));
        }
        Ok(self.file.write_all_at(bytes, at)?)
    }

    fn lock(&self, byte: i64, lock: FileLock, wait: bool) -> Result {
        lock_file(self.file.as_fd(), byte, lock, wait)
    }

    fn write_lock(&self) -> Result<WriterLock<'_>> {
        let threads = self.writing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.lock(WRITER, FileLock::Exclusive, true)?;
        Ok(WriterLock { table: self, _threads: threads })
    }

    /// The format of its addresses.
    pub(crate) fn format(&self) -> u32 {
        self.format
    }

    /// Returns the number of records.
    fn count(&self) -> u32 {
        let bytes = self.file.metadata().map_or(0, |file| file.len());
        let records = bytes.saturating_sub(HEADER) / RECORD as u64;
        u32::try_from(records).unwrap_or(MAX_ADDRS).min(MAX_ADDRS)
    }

    /// Returns the addresses from this index on, in order; `None` for each removed or invalid one.
    pub(crate) fn since(&self, first: u32) -> Vec<Option<Addr>> {
        let (count, mut addrs) = (self.count(), Vec::new());
        let mut chunk = vec![0; CHUNK * RECORD];
        let mut next = first;
        while next < count {
            let wanted = CHUNK.min((count - next) as usize) * RECORD;
            let got = self.file.read_at(&mut chunk[..wanted], offset_of(next)).unwrap_or(0);
            if got < RECORD {
                break;
            }
            for record in chunk[..got].chunks_exact(RECORD) {
                addrs.push(parse(next, self.format, record).map(|(addr, _)| addr));
                next += 1;
            }
        }
        addrs
    }

    /// Returns the current address of an index and its insertion count.
    fn entry(&self, index: u32) -> Option<(Addr, u32)> {
        let mut record = [0; RECORD];
        self.file.read_exact_at(&mut record, offset_of(index)).ok()?;
        parse(index, self.format, &record).filter(|_| index < MAX_ADDRS)
    }

    /// The address of an index, if it has one now.
    pub(crate) fn addr(&self, index: u32) -> Option<Addr> {
        self.entry(index).map(|(addr, _)| addr)
    }

    /// Keeps other writers away as long as the result lives. -FI_EACCES if the table is only read, or if it
    /// was opened by a parent of this process.
    pub(crate) fn write(&self) -> Result<SharedAddrWriter<'_>> {
        if self.read_only || self.process != std::process::id() {
            return Err(Error::ACCES);
        }
        Ok(SharedAddrWriter(self.write_lock()?))
    }
}

fn header(format: u32) -> [u8; HEADER as usize] {
    let mut header = [0; HEADER as usize];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&format.to_le_bytes());
    header
}

impl Drop for SharedAddrTable {
    /// The last one to close a table removes its name.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // Two processes closing at the same time would both find the lock of the other one, so each gives up
        // its own first.
        let _ = self.lock(USERS, FileLock::Open, false);
        if self.lock(USERS, FileLock::Exclusive, false).is_ok() {
            let same = |at: Metadata, own: Metadata| (at.dev(), at.ino()) == (own.dev(), own.ino());
            let at_path = std::fs::symlink_metadata(&self.path).ok();
            if at_path.zip(self.file.metadata().ok()).is_some_and(|(at, own)| same(at, own)) {
                // The name may be gone by now, and a name that stays is begun anew by the next one.
                let _ = std::fs::remove_file(&self.path);
            }
        }
        // A child may have the descriptor, and the lock with it.
        let _ = self.lock(USERS, FileLock::Open, false);
    }
}

/// Guard excluding other writers of a table.
#[derive(Debug)]
struct WriterLock<'a> {
    table: &'a SharedAddrTable,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for WriterLock<'_> {
    fn drop(&mut self) {
        let _ = self.table.lock(WRITER, FileLock::Open, false);
    }
}

/// Write access to a table, held by one writer.
#[derive(Debug)]
pub(crate) struct SharedAddrWriter<'a>(WriterLock<'a>);

impl SharedAddrWriter<'_> {
    /// Appends an address, expecting it to get the index `index`. Fails with -FI_EIO if the file
    /// was truncated, since indices would be reused, and with -FI_ENOSPC if the table is full.
    pub(crate) fn append(&self, index: u32, addr: &Addr) -> Result {
        let table = self.0.table;
        if table.check_header(table.format).is_err() || table.count() != index {
            return Err(Error::IO);
        }
        if index >= MAX_ADDRS {
            return Err(Error::NOSPC);
        }
        table.put(offset_of(index), &record(index, addr)?)
    }

    /// Counts one more insertion of an address; false if the index is not the address's any more.
    pub(crate) fn use_again(&self, index: u32, addr: &Addr) -> Result<bool> {
        let Some((now, uses)) = self.0.table.entry(index) else { return Ok(false) };
        if now != *addr {
            return Ok(false);
        }
        self.set_uses(index, uses.checked_add(1).ok_or(Error::NOSPC)?)?;
        Ok(true)
    }

    /// Decrements the insertion count of the address of an index and returns the new count. Fails
    /// with -FI_EINVAL if there is none.
    pub(crate) fn release(&self, index: u32) -> Result<u32> {
        let (_, uses) = self.0.table.entry(index).ok_or(Error::INVAL)?;
        self.set_uses(index, uses - 1)?;
        Ok(uses - 1)
    }

    fn set_uses(&self, index: u32, uses: u32) -> Result {
        self.0.table.put(offset_of(index) + USES as u64, &uses.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
    use std::collections::HashSet;
    use std::os::unix::fs::PermissionsExt;

    const FORMAT: u32 = FI_SOCKADDR_IN as u32;

    /// A folder of its own, removed at the end.
    struct TableFolder(PathBuf);

    impl TableFolder {
        fn new() -> Self {
            let name = format!("ofi-addr-table-{}-{:x}", std::process::id(), crate::sys::random());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn open(&self, read_only: bool) -> Result<SharedAddrTable> {
            SharedAddrTable::open_in(&self.0, c"table", FORMAT, read_only)
        }

        fn file(&self) -> PathBuf {
            self.0.join("table")
        }
    }

    impl Drop for TableFolder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn ip(text: &str) -> Addr {
        Addr::Ip(text.parse().unwrap())
    }

    /// The table's file is closed as if its process had been killed.
    fn killed(mut table: SharedAddrTable) {
        table.process = 0;
    }

    #[test]
    fn appended_address_has_the_same_index_for_all_openers() {
        let folder = TableFolder::new();
        let (writer, reader) = (folder.open(false).unwrap(), folder.open(true).unwrap());
        let (a, b) = (ip("10.0.0.1:1"), ip("10.0.0.2:1"));
        writer.write().unwrap().append(0, &a).unwrap();
        assert_eq!(reader.since(0), [Some(a.clone())]);
        let other = folder.open(false).unwrap();
        other.write().unwrap().append(1, &b).unwrap();
        assert_eq!(reader.since(1), [Some(b.clone())]);
        assert_eq!((writer.addr(0), writer.addr(1), writer.addr(2)), (Some(a), Some(b), None));
        assert_eq!(reader.write().err(), Some(Error::ACCES));
    }

    #[test]
    fn an_address_goes_when_it_was_released_as_often_as_used_and_its_index_stays_free() {
        let folder = TableFolder::new();
        let table = folder.open(false).unwrap();
        let (a, b) = (ip("10.0.0.1:1"), ip("10.0.0.2:1"));
        let writer = table.write().unwrap();
        writer.append(0, &a).unwrap();
        assert_eq!((writer.use_again(0, &a), writer.use_again(0, &b)), (Ok(true), Ok(false)));
        assert_eq!((writer.release(0), writer.release(0)), (Ok(1), Ok(0)));
        assert_eq!((writer.release(0), writer.use_again(0, &a)), (Err(Error::INVAL), Ok(false)));
        assert_eq!(writer.append(0, &b), Err(Error::IO));
        writer.append(1, &b).unwrap();
        assert_eq!(table.since(0), [None, Some(b)]);
    }

    #[test]
    fn the_last_one_to_close_a_table_removes_its_name() {
        let folder = TableFolder::new();
        assert_eq!(folder.open(true).err(), Some(Error::INVAL));
        let (writer, reader) = (folder.open(false).unwrap(), folder.open(true).unwrap());
        let mode = folder.file().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(writer);
        assert!(folder.file().exists());
        drop(reader);
        assert!(!folder.file().exists());
    }

    #[test]
    fn one_of_two_closing_at_the_same_time_removes_the_name() {
        let folder = TableFolder::new();
        for _ in 0..300 {
            let tables = [(); 2].map(|()| folder.open(false).unwrap());
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for table in tables {
                    scope.spawn(|| {
                        both.wait();
                        drop(table);
                    });
                }
            });
            assert!(!folder.file().exists());
        }
    }

    #[test]
    fn table_of_ended_processes_is_readable_and_reset_by_a_writer() {
        let folder = TableFolder::new();
        let table = folder.open(false).unwrap();
        table.write().unwrap().append(0, &ip("10.0.0.1:1")).unwrap();
        killed(table);
        let reader = folder.open(true).unwrap();
        assert_eq!(reader.since(0).len(), 1);
        // The indices of a reader have to stay.
        let writer = folder.open(false).unwrap();
        assert_eq!(writer.since(0).len(), 1);
        killed(writer);
        killed(reader);
        let format = FI_SOCKADDR_IN6 as u32;
        let writer = SharedAddrTable::open_in(&folder.0, c"table", format, false).unwrap();
        assert_eq!(writer.since(0), []);
        drop(writer);
        // One that ended before it had written the header.
        File::create(folder.file()).unwrap();
        std::fs::set_permissions(folder.file(), std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(folder.open(true).err(), Some(Error::INVAL));
        assert!(folder.open(false).is_ok());
    }

    #[test]
    fn foreign_or_malformed_table_is_refused_and_unchanged() {
        let folder = TableFolder::new();
        let (path, private) = (folder.file(), std::fs::Permissions::from_mode(0o600));
        let refused = |error| {
            let before = std::fs::read(&path).unwrap_or_default();
            for read_only in [true, false] {
                assert_eq!(folder.open(read_only).err(), Some(error), "{read_only}");
            }
            assert_eq!(std::fs::read(&path).unwrap_or_default(), before);
        };
        for bytes in [b"garbage".to_vec(), vec![0x55; 4096], MAGIC[..5].to_vec(), vec![0; 100]] {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, private.clone()).unwrap();
            refused(Error::INVAL);
        }
        let table = [header(FORMAT).to_vec(), vec![0; 64]].concat();
        std::fs::write(&path, &table).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        refused(Error::ACCES);
        std::fs::set_permissions(&path, private).unwrap();
        let other = folder.0.join("other");
        std::fs::hard_link(&path, &other).unwrap();
        refused(Error::INVAL);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        refused(Error::INVAL);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(folder.0.join("nowhere"), &path).unwrap();
        refused(Error::INVAL);
        assert!(!folder.0.join("nowhere").exists());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused(Error::INVAL);
        std::fs::remove_dir(&path).unwrap();
        let table = folder.open(false).unwrap();
        let format = FI_SOCKADDR_IN6 as u32;
        for read_only in [true, false] {
            let wrong = SharedAddrTable::open_in(&folder.0, c"table", format, read_only);
            assert_eq!(wrong.err(), Some(Error::INVAL));
        }
        drop(table);
    }

    #[test]
    fn garbage_in_a_table_names_nothing_and_a_cut_off_one_is_not_added_to() {
        let folder = TableFolder::new();
        let (writer, reader) = (folder.open(false).unwrap(), folder.open(true).unwrap());
        for index in 0..600 {
            writer.write().unwrap().append(index, &ip("10.0.0.1:1")).unwrap();
        }
        assert_eq!(reader.since(0).iter().flatten().count(), 600);
        let file = OpenOptions::new().write(true).open(folder.file()).unwrap();
        file.write_all_at(&[7; 3], offset_of(5) + 20).unwrap();
        // A good record in another one's place, and one of no address.
        file.write_all_at(&record(8, &ip("10.0.0.1:1")).unwrap(), offset_of(7)).unwrap();
        file.write_all_at(&record(9, &ip("10.0.0.1:0")).unwrap(), offset_of(9)).unwrap();
        file.write_all_at(&record(11, &ip("[::1]:1")).unwrap(), offset_of(11)).unwrap();
        file.write_all_at(&[1; 10], offset_of(600)).unwrap();
        let addrs = reader.since(0);
        let gone: Vec<_> = (0..600).filter(|index| addrs[*index].is_none()).collect();
        assert_eq!((addrs.len(), gone), (600, vec![5, 7, 9, 11]));
        assert_eq!((reader.addr(4), reader.addr(5)), (Some(ip("10.0.0.1:1")), None));
        file.set_len(HEADER + 100).unwrap();
        assert_eq!((reader.since(0).len(), reader.since(5).len()), (1, 0));
        assert_eq!(reader.addr(3), None);
        assert_eq!(writer.write().unwrap().append(600, &ip("10.0.0.2:1")), Err(Error::IO));
        file.set_len(0).unwrap();
        assert_eq!(reader.since(0), []);
        assert_eq!(writer.write().unwrap().append(0, &ip("10.0.0.2:1")), Err(Error::IO));
        assert_eq!(writer.write().unwrap().release(0), Err(Error::INVAL));
    }

    #[test]
    fn writers_at_once_give_each_index_to_one_address() {
        let folder = TableFolder::new();
        let all = folder.open(false).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let folder = &folder;
                scope.spawn(move || {
                    let table = folder.open(false).unwrap();
                    for port in 1..=100 {
                        let writer = table.write().unwrap();
                        let next = table.since(0).len() as u32;
                        let addr = ([10, 0, 0, thread], port).into();
                        writer.append(next, &Addr::Ip(addr)).unwrap();
                    }
                });
            }
        });
        let addrs: HashSet<_> = all.since(0).into_iter().flatten().collect();
        assert_eq!(addrs.len(), 400);
    }

    #[test]
    fn concurrent_opens_and_closes_share_one_current_table() {
        let folder = TableFolder::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let table = folder.open(false).unwrap();
                        let count = table.since(0).len() as u32;
                        if let Ok(writer) = table.write() {
                            let next = table.since(0).len() as u32;
                            assert!(next >= count);
                            writer.append(next, &ip("10.0.0.1:1")).unwrap();
                        }
                        let here = folder.file().symlink_metadata().unwrap().ino();
                        assert_eq!(table.file.metadata().unwrap().ino(), here);
                    }
                });
            }
        });
        assert!(!folder.file().exists());
    }

    #[test]
    fn names_are_those_of_files() {
        let folder = Path::new("/dev/shm");
        let long = |len| std::ffi::CString::new(vec![b'x'; len]).unwrap();
        for bad in [c"".to_owned(), c".".to_owned(), c"..".into(), c"a/b".into(), c"//a".into()] {
            assert_eq!(path_of(folder, &bad), Err(Error::INVAL), "{bad:?}");
        }
        assert_eq!(path_of(folder, c"/a b"), Ok("/dev/shm/a b".into()));
        assert!(path_of(folder, &long(255)).is_ok());
        assert_eq!(path_of(folder, &long(256)), Err(Error::INVAL));
    }
}
