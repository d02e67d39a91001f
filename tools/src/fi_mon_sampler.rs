//! Reads the counters of the hook `monitor` (fi_mon_sampler(1)).
use lexopt::Arg;
use ofi_stats::monitor::{ASKED, ENDED, FILE_LEN, FLAGS_AT, NUMBERS, csv_head, csv_line};
use rustix::fs::{AtFlags, Mode, OFlags, openat, readlinkat, unlinkat};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString, c_int};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::thread::sleep;
use std::time::{Duration, Instant};

const HELP: &str = "\
Usage: fi_mon_sampler [-w MSEC] [-f csv] [-o FOLDER] TARGET

Reads the counters of programs that run with FI_HOOK=monitor. TARGET is one of
their files, or a folder of them, such as /dev/shm/ofi/UID/HOSTNAME.

  -w MSEC      goes on until the programs end, asking each so many milliseconds
  -f csv       the format, of which there is one
  -o FOLDER    writes a file for each of theirs; without it one is written to
               the standard output
  -h           this text
";

/// Timeout for answers in the mode with a single one of each file.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of files read at a time; others follow at their end.
const MOST_FILES: usize = 4096;

/// Maximum number of names of a directory to process.
const MOST_NAMES: usize = 1 << 16;

/// Maximum number of reported errors.
const REPORTS_MAX: usize = 1000;

/// Parsed command line.
struct SampleOptions {
    target: PathBuf,
    watch: Option<Duration>,
    folder: Option<PathBuf>,
}

/// Reason to do nothing: a text, and the exit status.
struct Complaint(String, i32);

fn invalid(text: String) -> Complaint {
    Complaint(text, libc::EINVAL)
}

impl SampleOptions {
    /// Reads the command line; nothing if it only asks for help.
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, Complaint> {
        let (mut target, mut watch, mut folder) = (None, None, None);
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(arg) = parser.next().map_err(|error| invalid(error.to_string()))? {
            let letter = match arg {
                Arg::Short('h') | Arg::Long("help") => return Ok(None),
                Arg::Short(letter @ ('w' | 'f' | 'o')) => letter,
                Arg::Short(letter) => return Err(invalid(format!("There is no option -{letter}"))),
                Arg::Long(name) => return Err(invalid(format!("There is no option --{name}"))),
                Arg::Value(path) => {
                    if target.replace(PathBuf::from(path)).is_some() {
                        return Err(invalid("There is one target: a file or a folder".to_owned()));
                    }
                    continue;
                }
            };
            let value = parser.value().map_err(|_| invalid(format!("-{letter} takes a value")))?;
            let value_text = value.to_string_lossy();
            match letter {
                'w' => {
                    let milliseconds = value_text.parse().ok().filter(|number| *number > 0);
                    let milliseconds = milliseconds
                        .ok_or_else(|| invalid(format!("Invalid watch time '{value_text}'")))?;
                    watch = Some(Duration::from_millis(milliseconds));
                }
                'f' if !value_text.eq_ignore_ascii_case("csv") => {
                    return Err(invalid(format!("Invalid format '{value_text}'")));
                }
                'o' => folder = Some(PathBuf::from(value)),
                _ => {}
            }
        }
        let target = target.ok_or_else(|| invalid("No target path specified!".to_owned()))?;
        Ok(Some(Self { target, watch, folder }))
    }
}

/// Opens a file of a folder; a link at its end is not followed.
fn open_in(folder: &File, name: &OsStr, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(openat(folder, name, flags, Mode::empty())?.into())
}

/// Directory of a target. It stays the same even if its path is replaced: its owner could put a
/// link there leading to files of others.
struct TargetFolder {
    fd: File,
    owner: libc::uid_t,
    path: PathBuf,
}

impl TargetFolder {
    /// Opens the directory. Links in its path are followed only if they belong to root or to the
    /// user running this program.
    fn open(path: &Path) -> io::Result<Self> {
        const MOST_LINKS: u32 = 40;
        let user = geteuid().as_raw();
        let mut at = File::open(if path.is_absolute() { "/" } else { "." })?;
        let mut names: Vec<OsString> = Vec::new();
        let push = |names: &mut Vec<OsString>, path: &Path| {
            names.extend(path.components().rev().filter_map(|part| match part {
                Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
                _ => None,
            }));
        };
        push(&mut names, path);
        let mut links = 0;
        while let Some(name) = names.pop() {
            let next = open_in(&at, &name, OFlags::PATH)?;
            let status = next.metadata()?;
            if !status.is_symlink() {
                at = next;
                continue;
            }
            links += 1;
            if links > MOST_LINKS || ![0, user].contains(&status.uid()) {
                let text = format!("the link {} is not followed", Path::new(&name).display());
                return Err(io::Error::other(text));
            }
            // An empty name is the link that is open itself (readlinkat(2)).
            let to = read_link(&next)?;
            if to.is_absolute() {
                at = File::open("/")?;
            }
            push(&mut names, &to);
        }
        let fd = open_in(&at, OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let owner = fd.metadata()?.uid();
        Ok(Self { fd, owner, path: path.to_owned() })
    }

    /// Returns the names in the directory, sorted.
    fn names(&self) -> Vec<OsString> {
        let listed = fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let files = listed.into_iter().flatten().flatten();
        let files = files.take(MOST_NAMES);
        let files = files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut names: Vec<_> = files.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    }

    /// Returns true if the directory was removed, so another one may have replaced it.
    fn is_removed(&self) -> bool {
        self.fd.metadata().is_ok_and(|status| status.nlink() == 0)
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }
}

/// Returns the target of an open link.
fn read_link(link: &File) -> io::Result<PathBuf> {
    let text = readlinkat(link, c"", Vec::new())?;
    Ok(OsString::from_vec(text.into_bytes()).into())
}

/// A file of the hook's.
struct MonitorSource {
    file: File,
    /// Mapping of the file, for the one operation impossible by reads and writes: a change of a
    /// byte concurrently changed by the program. This process never accesses it, since a truncation
    /// of the file would then end it.
    memory: NonNull<u8>,
    /// Identity of the file.
    identity: (u64, u64),
    folder: Rc<TargetFolder>,
    name: OsString,
}

impl MonitorSource {
    /// Opens a file of a directory, if it belongs to the directory's owner: its user may have put
    /// anything there. `or_own`: a file of the user running this program is accepted as well.
    fn open(folder: &Rc<TargetFolder>, name: &OsStr, or_own: bool) -> io::Result<Self> {
        let file = open_in(&folder.fd, name, OFlags::RDWR)?;
        let status = file.metadata()?;
        let own = or_own && status.uid() == geteuid().as_raw();
        if status.uid() != folder.owner && !own || status.nlink() != 1 {
            return Err(io::Error::other("not a file of the folder's owner alone"));
        }
        if !status.is_file() || status.len() > FILE_LEN as u64 {
            return Err(io::Error::other("not a file of the hook monitor"));
        }
        if status.len() < FILE_LEN as u64 {
            // Or not yet: some hooks make it longer after they have made it.
            let text = "too short for a file of the hook monitor";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of this length; no memory of ours is touched.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), FILE_LEN, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(memory.cast::<u8>()) {
            Some(memory) if memory.as_ptr().cast() != libc::MAP_FAILED => Ok(Self {
                file,
                memory,
                identity: (status.dev(), status.ino()),
                folder: folder.clone(),
                name: name.to_owned(),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Requests the counts from the program: sets a bit by the kernel (FUTEX_WAKE_OP of futex(2)).
    /// This fails with an error if the file has no memory any more.
    fn ask(&self) -> io::Result<()> {
        const { assert!(FLAGS_AT % 4 == 0 && FLAGS_AT + 4 <= FILE_LEN) };
        let first = u32::from_ne_bytes([ASKED, 0, 0, 0]);
        let operation = (libc::FUTEX_OP_OR << 28) | ((first as c_int & 0xfff) << 12);
        // SAFETY: the word lies within the mapping, which only the system accesses; no thread sleeps there.
        let answer = unsafe {
            let word = self.memory.add(FLAGS_AT).as_ptr();
            let how = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, word, how, 0, 0usize, word, operation)
        };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns two flags: an answer is available, and it is the last one.
    fn state(&self) -> io::Result<(bool, bool)> {
        let mut flags = [0];
        self.file.read_exact_at(&mut flags, FLAGS_AT as u64)?;
        // Data written by the program before them is read after them.
        fence(Ordering::Acquire);
        let ended = flags[0] & ENDED != 0;
        Ok((flags[0] & ASKED == 0 || ended, ended))
    }

    fn numbers(&self) -> io::Result<[u64; NUMBERS]> {
        let mut bytes = [0; NUMBERS * size_of::<u64>()];
        self.file.read_exact_at(&mut bytes, 0)?;
        let mut numbers = [0; NUMBERS];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *number = u64::from_ne_bytes(bytes.try_into().map_err(io::Error::other)?);
        }
        Ok(numbers)
    }

    /// Removes the file, unless there is another one of its name by now.
    fn remove(&self) -> io::Result<()> {
        let now = open_in(&self.folder.fd, &self.name, OFlags::PATH)?.metadata()?;
        if (now.dev(), now.ino()) != self.identity {
            return Ok(());
        }
        Ok(unlinkat(&self.folder.fd, self.name.as_os_str(), AtFlags::empty())?)
    }
}

impl Drop for MonitorSource {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), FILE_LEN) };
    }
}

/// File being read, and the output for its lines.
struct MonitorSample {
    source: MonitorSource,
    out: Box<dyn Write>,
}

impl MonitorSample {
    /// Begins to read a file: asks for the first answer.
    fn begin(source: MonitorSource, tables: Option<&Path>) -> io::Result<Self> {
        let mut out: Box<dyn Write> = match tables {
            None => Box::new(io::stdout()),
            Some(tables) => {
                let mut name = source.name.clone();
                name.push(".csv");
                let to = tables.join(name);
                let table = File::create(&to).map_err(|error| match error {
                    error if lacks_descriptors(&error) => error,
                    error => io::Error::new(error.kind(), format!("{}: {error}", to.display())),
                })?;
                eprintln!("Writing sampled data to {}", to.display());
                Box::new(table)
            }
        };
        out.write_all(csv_head().as_bytes())?;
        if !source.state()?.1 {
            source.ask()?;
        }
        Ok(Self { source, out })
    }

    fn line(&mut self) -> io::Result<()> {
        self.out.write_all(csv_line(&self.source.numbers()?).as_bytes())?;
        self.out.flush()
    }

    /// Writes an answer, if there is one, and requests the next. Returns true if it was the last
    /// one; the file is then no longer needed.
    fn look(&mut self) -> io::Result<bool> {
        let (answered, ended) = self.source.state()?;
        if answered {
            self.line()?;
        }
        match ended {
            true => drop(self.source.remove()),
            false if answered => self.source.ask()?,
            false => {}
        }
        Ok(ended)
    }

    /// Writes the available data, and removes a file after its last data.
    fn finish(&mut self) -> io::Result<()> {
        let (_, ended) = self.source.state()?;
        self.line()?;
        if ended {
            let _ = self.source.remove();
        }
        Ok(())
    }

    /// Returns true if nothing more has to be waited for.
    fn is_answered(&self) -> bool {
        self.source.state().map_or(true, |(answered, _)| answered)
    }
}

/// Source of samples: the files of a directory, or one of them.
struct SampleTarget {
    folder: Rc<TargetFolder>,
    only: Option<OsString>,
}

impl SampleTarget {
    fn open(path: &Path, is_folder: bool) -> io::Result<Self> {
        if is_folder {
            return Ok(Self { folder: Rc::new(TargetFolder::open(path)?), only: None });
        }
        let name = path.file_name().ok_or(io::ErrorKind::NotFound)?.to_owned();
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        Ok(Self { folder: Rc::new(TargetFolder::open(folder)?), only: Some(name) })
    }

    fn names(&self) -> Vec<OsString> {
        match &self.only {
            Some(name) => vec![name.clone()],
            None => self.folder.names(),
        }
    }

    fn begin(&self, name: &OsStr, tables: Option<&Path>) -> io::Result<MonitorSample> {
        let source = MonitorSource::open(&self.folder, name, self.only.is_some())?;
        MonitorSample::begin(source, tables)
    }

    /// Opens the current directory if the previous one was removed.
    fn renew(&mut self) {
        if self.folder.is_removed() {
            if let Ok(folder) = TargetFolder::open(&self.folder.path) {
                self.folder = Rc::new(folder);
            }
        }
    }
}

fn closed(path: &Path) {
    eprintln!("Closed {}", path.display());
}

/// Number of reported errors.
#[derive(Default)]
struct ReportedErrors(usize);

impl ReportedErrors {
    /// Reports an error with a file. The number of reports is limited, because the owner of the
    /// files can cause any number of errors.
    fn tell(&mut self, path: &Path, error: &io::Error) {
        // The reader has closed the output.
        if error.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        self.0 += 1;
        match self.0 {
            ..=REPORTS_MAX => eprintln!("{}: {error}", path.display()),
            reported if reported == REPORTS_MAX + 1 => eprintln!("further errors are not told"),
            _ => {}
        }
    }
}

/// Raises the limit of descriptors to its maximum: each file being read takes two.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Returns true if the process has no free descriptor, a temporary condition.
fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Reads until everything is done. Returns true if all files could be read.
fn sample(options: &SampleOptions, target: SampleTarget) -> bool {
    match options.watch {
        None => sample_once(&target, options.folder.as_deref()),
        Some(pause) => sample_on(target, options.folder.as_deref(), pause),
    }
}

/// Reads an answer of each file, as many at a time as may be open.
fn sample_once(target: &SampleTarget, tables: Option<&Path>) -> bool {
    let mut reported = ReportedErrors::default();
    let names = target.names();
    let mut rest = &names[..];
    while !rest.is_empty() {
        let mut open = Vec::new();
        while let Some((name, others)) = rest.split_first().filter(|_| open.len() < MOST_FILES) {
            match target.begin(name, tables) {
                Ok(sample) => open.push((name, sample)),
                // It comes again behind those that are open.
                Err(error) if lacks_descriptors(&error) && !open.is_empty() => break,
                Err(error) => reported.tell(&target.folder.path_of(name), &error),
            }
            rest = others;
        }
        let begin = Instant::now();
        let waits = |open: &[(_, MonitorSample)]| !open.iter().all(|(_, one)| one.is_answered());
        while waits(&open) && begin.elapsed() < FLUSH_DELAY {
            sleep(Duration::from_millis(1));
        }
        for (name, mut sample) in open {
            let path = target.folder.path_of(name);
            match sample.finish() {
                Ok(()) => closed(&path),
                Err(error) => reported.tell(&path, &error),
            }
        }
    }
    reported.0 == 0
}

/// Reads the answers of all files, again and again, until the only one ends.
fn sample_on(mut target: SampleTarget, tables: Option<&Path>, pause: Duration) -> bool {
    let mut reported = ReportedErrors::default();
    let mut open: BTreeMap<OsString, MonitorSample> = BTreeMap::new();
    let mut refused: BTreeSet<OsString> = BTreeSet::new();
    loop {
        target.renew();
        let names: BTreeSet<_> = target.names().into_iter().collect();
        // Missing names are removed, so the list has no more entries than the directory.
        refused.retain(|name| names.contains(name));
        for name in names {
            if open.contains_key(&name) || refused.contains(&name) {
                continue;
            }
            if open.len() >= MOST_FILES {
                break;
            }
            match target.begin(&name, tables) {
                Ok(sample) => drop(open.insert(name, sample)),
                Err(error) if lacks_descriptors(&error) && !open.is_empty() => break,
                Err(error)
                    if target.only.is_none() && error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => {
                    reported.tell(&target.folder.path_of(&name), &error);
                    refused.insert(name);
                }
            }
        }
        let mut over = Vec::new();
        for (name, sample) in &mut open {
            match sample.look() {
                Ok(true) => over.push(name.clone()),
                Ok(false) => {}
                Err(error) => {
                    reported.tell(&target.folder.path_of(name), &error);
                    over.push(name.clone());
                    refused.insert(name.clone());
                }
            }
        }
        for name in over {
            open.remove(&name);
            closed(&target.folder.path_of(&name));
        }
        if target.only.is_some() && open.is_empty() {
            return reported.0 == 0;
        }
        sleep(pause);
    }
}

fn run() -> Result<bool, Complaint> {
    let Some(options) = SampleOptions::parse(std::env::args_os().skip(1))? else {
        let _ = io::stdout().write_all(HELP.as_bytes());
        return Ok(true);
    };
    let found = fs::metadata(&options.target).map_err(|_| {
        Complaint(format!("Could not stat {}", options.target.display()), libc::ENOENT)
    })?;
    if found.is_dir() && options.folder.is_none() {
        let text = "Target is a directory, cannot use stdout as output!".to_owned();
        return Err(Complaint(text, libc::ENOENT));
    }
    let target = SampleTarget::open(&options.target, found.is_dir()).map_err(|error| {
        Complaint(format!("{}: {error}", options.target.display()), libc::ENOENT)
    })?;
    raise_descriptors();
    Ok(sample(&options, target))
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Complaint(text, number)) => {
            eprintln!("{text}");
            if number == libc::EINVAL {
                eprint!("{HELP}");
            }
            // As the original's, which ends with a negative number.
            ExitCode::from((-number) as u8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<SampleOptions>, String> {
        SampleOptions::parse(words.iter().map(Into::into)).map_err(|Complaint(text, _)| text)
    }

    #[test]
    fn values_stand_behind_their_option_or_in_the_same_word() {
        for words in [&["-w", "20", "-o", "x", "y"][..], &["y", "-w20", "-ox", "-f", "CSV"]] {
            let options = parse(words).ok().flatten().unwrap();
            assert_eq!(options.watch, Some(Duration::from_millis(20)));
            assert_eq!((options.target, options.folder), ("y".into(), Some("x".into())));
        }
        assert!(matches!(parse(&["-h", "-w"]), Ok(None)));
    }

    #[test]
    fn invalid_arguments_are_named_in_the_error() {
        for (words, named) in [
            (&["-w", "0", "y"][..], "'0'"),
            (&["-w"], "-w"),
            (&["-f", "xml", "y"], "'xml'"),
            (&["-x", "y"], "-x"),
            (&["y", "z"], "one target"),
            (&[], "No target"),
        ] {
            assert!(parse(words).err().unwrap().contains(named), "{words:?}");
        }
    }
}
