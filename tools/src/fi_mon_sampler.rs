//! Reads what the hook `monitor` has counted (fi_mon_sampler(1)).
use ofi_facts::monitor::{ASKED, ENDED, FILE_LEN, FLAGS_AT, NUMBERS, csv_head, csv_line};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
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

/// How long an answer is waited for if there is only one.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the command line asks for.
struct SampleOptions {
    target: PathBuf,
    watch: Option<Duration>,
    folder: Option<PathBuf>,
}

/// Why nothing is done: a text, and the number that goes with it.
struct Complaint(String, i32);

fn invalid(text: String) -> Complaint {
    Complaint(text, libc::EINVAL)
}

impl SampleOptions {
    /// Reads the command line; nothing if it only asks for help.
    fn parse(args: impl Iterator<Item = OsString>) -> Result<Option<Self>, Complaint> {
        let (mut target, mut watch, mut folder) = (None, None, None);
        let mut args = args;
        while let Some(arg) = args.next() {
            let text = arg.to_string_lossy().into_owned();
            if text == "-h" || text == "--help" {
                return Ok(None);
            }
            // A value may stand in the same word.
            let option = ["-w", "-f", "-o"].into_iter().find(|option| text.starts_with(option));
            let Some(option) = option else {
                if text.starts_with('-') && text.len() > 1 {
                    return Err(invalid(format!("There is no option {text}")));
                }
                if target.replace(PathBuf::from(arg)).is_some() {
                    return Err(invalid("There is one target: a file or a folder".to_owned()));
                }
                continue;
            };
            let value = match &text[option.len()..] {
                "" => args.next().ok_or_else(|| invalid(format!("{option} takes a value")))?,
                value => value.into(),
            };
            let shown = value.to_string_lossy();
            match option {
                "-w" => {
                    let milliseconds = shown.parse().ok().filter(|number| *number > 0);
                    let milliseconds = milliseconds
                        .ok_or_else(|| invalid(format!("Invalid watch time '{shown}'")))?;
                    watch = Some(Duration::from_millis(milliseconds));
                }
                "-f" if !shown.eq_ignore_ascii_case("csv") => {
                    return Err(invalid(format!("Invalid format '{shown}'")));
                }
                "-o" => folder = Some(PathBuf::from(value)),
                _ => {}
            }
        }
        let target = target.ok_or_else(|| invalid("No target path specified!".to_owned()))?;
        Ok(Some(Self { target, watch, folder }))
    }
}

/// A file of the hook's, in memory that is shared with it.
struct MonitorSource {
    memory: NonNull<u8>,
    path: PathBuf,
}

impl MonitorSource {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() || found.len() > FILE_LEN as u64 {
            return Err(io::Error::other("not a file of the hook monitor"));
        }
        if found.len() < FILE_LEN as u64 {
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
            Some(memory) if memory.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { memory, path: path.to_owned() })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn flags(&self) -> &AtomicU8 {
        // SAFETY: the memory has this byte, as long as this value lives; all access is atomic.
        unsafe { self.memory.add(FLAGS_AT).cast().as_ref() }
    }

    /// Asks the program for what it has counted.
    fn ask(&self) {
        self.flags().fetch_or(ASKED, Ordering::AcqRel);
    }

    /// Whether there is an answer, and whether it is the last one.
    fn state(&self) -> (bool, bool) {
        let flags = self.flags().load(Ordering::Acquire);
        let ended = flags & ENDED != 0;
        (flags & ASKED == 0 || ended, ended)
    }

    fn numbers(&self) -> [u64; NUMBERS] {
        // SAFETY: the memory begins with so many numbers, and a page; as above.
        let numbers: &[AtomicU64; NUMBERS] = unsafe { self.memory.cast().as_ref() };
        std::array::from_fn(|place| numbers[place].load(Ordering::Relaxed))
    }
}

impl Drop for MonitorSource {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), FILE_LEN) };
    }
}

/// A file that is read, and where its lines go.
struct MonitorSample {
    source: MonitorSource,
    out: Box<dyn Write>,
}

impl MonitorSample {
    /// Begins to read a file: asks for the first answer.
    fn begin(path: &Path, folder: Option<&Path>) -> io::Result<Self> {
        let source = MonitorSource::open(path)?;
        let mut out: Box<dyn Write> = match folder {
            None => Box::new(io::stdout()),
            Some(folder) => {
                let mut name = path.file_name().unwrap_or_default().to_owned();
                name.push(".csv");
                let to = folder.join(name);
                eprintln!("Writing sampled data to {}", to.display());
                Box::new(File::create(&to).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", to.display()))
                })?)
            }
        };
        out.write_all(csv_head().as_bytes())?;
        if !source.state().1 {
            source.ask();
        }
        Ok(Self { source, out })
    }

    fn line(&mut self) -> io::Result<()> {
        self.out.write_all(csv_line(&self.source.numbers()).as_bytes())?;
        self.out.flush()
    }

    /// Writes an answer, if there is one, and asks for the next. Whether that was all: then nobody
    /// needs the file any more.
    fn look(&mut self) -> io::Result<bool> {
        let (answered, ended) = self.source.state();
        if answered {
            self.line()?;
        }
        match ended {
            true => drop(fs::remove_file(&self.source.path)),
            false if answered => self.source.ask(),
            false => {}
        }
        Ok(ended)
    }

    /// Waits a moment for an answer and writes what there is.
    fn once(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        while !self.source.state().0 && begin.elapsed() < PATIENCE {
            sleep(Duration::from_millis(1));
        }
        let (_, ended) = self.source.state();
        self.line()?;
        if ended {
            let _ = fs::remove_file(&self.source.path);
        }
        Ok(())
    }
}

/// The files of a target: itself, or those in it.
fn files(target: &Path, is_folder: bool) -> Vec<PathBuf> {
    if !is_folder {
        return vec![target.to_owned()];
    }
    let inside = fs::read_dir(target).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = inside.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

fn closed(path: &Path) {
    eprintln!("Closed {}", path.display());
}

/// Reads until everything is done. Whether all could be read.
fn sample(options: &SampleOptions, is_folder: bool) -> bool {
    let mut all = true;
    let folder = options.folder.as_deref();
    let mut complain = |path: &Path, error: io::Error| {
        // Nobody reads the output any more.
        if error.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("{}: {error}", path.display());
        all = false;
    };
    let Some(pause) = options.watch else {
        for path in files(&options.target, is_folder) {
            let read = MonitorSample::begin(&path, folder).and_then(|mut sample| sample.once());
            match read {
                Ok(()) => closed(&path),
                Err(error) => complain(&path, error),
            }
        }
        return all;
    };
    let mut open: BTreeMap<PathBuf, MonitorSample> = BTreeMap::new();
    let mut refused: Vec<PathBuf> = Vec::new();
    loop {
        for path in files(&options.target, is_folder) {
            if open.contains_key(&path) || refused.contains(&path) {
                continue;
            }
            match MonitorSample::begin(&path, folder) {
                Ok(sample) => drop(open.insert(path, sample)),
                Err(error) if is_folder && error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => {
                    complain(&path, error);
                    refused.push(path);
                }
            }
        }
        let mut over = Vec::new();
        for (path, sample) in &mut open {
            match sample.look() {
                Ok(true) => over.push(path.clone()),
                Ok(false) => {}
                Err(error) => {
                    complain(path, error);
                    over.push(path.clone());
                }
            }
        }
        for path in over {
            open.remove(&path);
            closed(&path);
        }
        if !is_folder && open.is_empty() {
            return all;
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
    Ok(sample(&options, found.is_dir()))
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
    fn what_makes_no_sense_is_named() {
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
