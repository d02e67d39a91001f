//! Records transfers with bpftrace, and converts the record to the JSON of trace viewers
//! (fi_trace(1)).
mod plug_ins;
mod processes;
mod record;

use lexopt::{Arg, ValueExt as _};
use ofi_hosts::trace::align::{ClockOffset, clock_offsets};
use ofi_hosts::trace::convert::{TraceConverter, TraceSummary};
use ofi_hosts::trace::order::TraceReader;
use record::{Recorded, record};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: fi_trace [-o FILE] [-l DIR] -- COMMAND [ARGUMENT...]
       fi_trace [-o FILE] [-s SECONDS] -p PID[,PID...]
       fi_trace [-o FILE] [--align | --offset NSEC] TRACE [[--offset NSEC] TRACE...]
       fi_trace --script [-l DIR] [-p PID[,PID...]]

Shows the messages of libfabric programs in a trace viewer: the time from the post
of each transfer to its completion, and an arrow from each send to its match in
another process. The first form runs a command, the second one observes running
processes; both need bpftrace and root. The third form converts texts that
bpftrace has printed with the script of the fourth form, on one host or several.
FILE opens in Perfetto (https://ui.perfetto.dev) and chrome://tracing.

  -o FILE        the file to write (default trace.json); - for the standard output
  -l DIR         the directory of the plug-ins (default: the one of this program's
                 installation, and those of FI_PROVIDER_PATH)
  -p PID         processes to observe, until they end or Ctrl-C, with their child
                 processes: an mpirun stands for its ranks on this host
  -s SECONDS     observes them for this time
  --offset NSEC  nanoseconds to add to the times of the next TRACE: the difference
                 between the clocks of two hosts
  --align        computes these differences from the messages between the hosts
  --script       prints the script for bpftrace
  -h, --help     this text
  TRACE          output of bpftrace; - for the standard input
";

/// Ends with status 2 after this complaint.
fn complain(what: &str) -> ! {
    eprintln!("fi_trace: {what}");
    std::process::exit(2);
}

/// Parsed command line.
#[derive(Default)]
struct TraceOptions {
    out: Option<PathBuf>,
    plug_ins: Option<PathBuf>,
    pids: Vec<u32>,
    seconds: Option<Duration>,
    script: bool,
    align: bool,
    /// Files with their offsets.
    files: Vec<(PathBuf, i64)>,
    /// Command behind `--`.
    command: Vec<OsString>,
}

impl TraceOptions {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        let mut args: Vec<_> = args.into_iter().collect();
        if let Some(at) = args.iter().position(|arg| arg == "--") {
            options.command = args.split_off(at + 1);
            args.pop();
            if options.command.is_empty() {
                return Err("there is no command behind --".into());
            }
        }
        let mut parser = lexopt::Parser::from_args(args);
        let mut offset = None;
        while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
            let value = |parser: &mut lexopt::Parser, name: &str| {
                parser.value().map_err(|_| format!("{name} takes a value"))
            };
            match arg {
                Arg::Short('h') | Arg::Long("help") => return Ok(None),
                Arg::Long("script") => options.script = true,
                Arg::Long("align") => options.align = true,
                Arg::Short('o') => options.out = Some(value(&mut parser, "-o")?.into()),
                Arg::Short('l') => options.plug_ins = Some(value(&mut parser, "-l")?.into()),
                Arg::Short('p') => {
                    let text = value(&mut parser, "-p")?;
                    let pids = text.to_string_lossy();
                    for pid in pids.split(',') {
                        let pid: u32 = pid.parse().map_err(|_| format!("no process: {pid:?}"))?;
                        options.pids.push(pid);
                    }
                }
                Arg::Short('s') => {
                    let seconds = value(&mut parser, "-s")?.parse::<f64>().ok();
                    let seconds = seconds.filter(|number| (0.0..=1e6).contains(number));
                    let seconds = seconds.ok_or("-s takes a number of seconds")?;
                    options.seconds = Some(Duration::from_secs_f64(seconds));
                }
                Arg::Long("offset") => {
                    let number = value(&mut parser, "--offset")?.parse::<i64>();
                    offset = Some(number.map_err(|_| "--offset takes nanoseconds")?);
                }
                Arg::Value(file) => options.files.push((file.into(), offset.take().unwrap_or(0))),
                Arg::Short(letter) => return Err(format!("there is no option -{letter}.")),
                Arg::Long(name) => return Err(format!("there is no option --{name}.")),
            }
        }
        options.check(offset.is_some())?;
        options.pids = processes::with_children(&options.pids);
        Ok(Some(options))
    }

    fn check(&self, offset_left: bool) -> Result<(), String> {
        let forms = [!self.files.is_empty(), !self.command.is_empty(), !self.pids.is_empty()];
        let count = forms.iter().filter(|form| **form).count();
        if self.script {
            let others = !self.files.is_empty() || !self.command.is_empty();
            return if others { Err("--script takes no files or command".into()) } else { Ok(()) };
        }
        match count {
            0 => return Err("a command, processes or files are missing".into()),
            1 => {}
            _ => return Err("only one of a command, processes and files".into()),
        }
        if offset_left {
            return Err("--offset comes before its file".into());
        }
        if self.align {
            if self.files.len() < 2 || self.files.iter().any(|(file, _)| file == Path::new("-")) {
                return Err("--align takes two files or more".into());
            }
            if self.files.iter().any(|(_, offset)| *offset != 0) {
                return Err("only one of --align and --offset".into());
            }
        }
        if self.seconds.is_some() && self.pids.is_empty() {
            return Err("-s is for -p".into());
        }
        Ok(())
    }

    /// Returns the file to write.
    fn out(&self) -> &Path {
        self.out.as_deref().unwrap_or(Path::new("trace.json"))
    }
}

/// Converts inputs, with their labels and offsets, to the file of the options. `rank_of` returns the
/// rank of a process in its job.
fn convert<R: BufRead>(
    options: &TraceOptions,
    inputs: Vec<(String, R, i64)>,
    rank_of: Option<fn(u32) -> Option<u32>>,
) -> io::Result<TraceSummary> {
    let (mut labels, mut files) = (Vec::new(), Vec::new());
    for (label, from, offset) in inputs {
        labels.push(label);
        files.push((from, offset));
    }
    let mut reader = TraceReader::new(files);
    if let Some(rank_of) = rank_of {
        reader = reader.with_ranks(rank_of);
    }
    let out: Box<dyn Write> = match options.out() {
        path if path == Path::new("-") => Box::new(io::stdout().lock()),
        path => Box::new(File::create(path)?),
    };
    let out = BufWriter::with_capacity(1 << 18, out);
    TraceConverter::new(out).convert(reader, &labels)
}

/// Prints the counts, or ends with a complaint.
fn conclude(options: &TraceOptions, summary: io::Result<TraceSummary>) {
    match summary {
        Ok(summary) => eprintln!("{summary}"),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => complain(&format!("{}: {error}", options.out().display())),
    }
}

/// Opens a trace; an unreadable one ends the program.
fn open(path: &Path) -> Box<dyn BufRead> {
    if path == Path::new("-") {
        return Box::new(BufReader::new(io::stdin()));
    }
    match File::open(path) {
        Ok(file) => Box::new(BufReader::with_capacity(1 << 18, file)),
        Err(error) => complain(&format!("{}: {error}", path.display())),
    }
}

/// Returns the offsets of all files from the messages between them, and prints them.
fn align(options: &TraceOptions) -> Vec<i64> {
    let found = clock_offsets(options.files.iter().map(|(path, _)| open(path)));
    let found = found.unwrap_or_else(|error| complain(&format!("--align: {error}")));
    let describe = |(path, offset): (&PathBuf, Option<_>)| {
        let path = path.display();
        let Some(ClockOffset { offset, uncertainty, messages }) = offset else {
            eprintln!(
                "{path}: no complete sequence of messages with the other traces; not aligned"
            );
            return 0;
        };
        match uncertainty {
            Some(most) => {
                eprintln!("{path}: offset {offset} ns, +-{most} ns, from {messages} messages");
            }
            None => {
                eprintln!("{path}: offset {offset} ns, from {messages} messages of one direction")
            }
        }
        offset
    };
    let mut offsets = options.files.iter().map(|(path, _)| path).zip(found);
    // The first file has the clock of the trace.
    offsets.next();
    std::iter::once(0).chain(offsets.map(describe)).collect()
}

/// Converts files; an unreadable one ends the program.
fn convert_files(options: &TraceOptions) -> ExitCode {
    let offsets = match options.align {
        true => align(options),
        false => options.files.iter().map(|(_, offset)| *offset).collect(),
    };
    let mut inputs = Vec::new();
    for ((path, _), offset) in options.files.iter().zip(offsets) {
        let label = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        inputs.push((label.into_owned(), open(path), offset));
    }
    let summary = convert(options, inputs, None);
    let is_empty = summary.as_ref().is_ok_and(|summary| summary.lines.events == 0);
    conclude(options, summary);
    if is_empty {
        complain("no line is of the script's form: see fi_trace --script");
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let options = match TraceOptions::parse(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let written = io::stdout().write_all(HELP.as_bytes());
            return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
        Err(text) => complain(&format!("{text} See fi_trace --help")),
    };
    if !options.files.is_empty() {
        return convert_files(&options);
    }
    let found = plug_ins::find(options.plug_ins.as_deref(), &options.pids);
    let found = found.unwrap_or_else(|text| complain(&text));
    let script = plug_ins::script(&found, &options.pids);
    if options.script {
        let written = io::stdout().write_all(script.as_bytes());
        return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    let mut convert = |from| {
        let summary = convert(&options, vec![("trace".into(), from, 0)], Some(processes::rank));
        conclude(&options, summary);
    };
    let recorded = match options.command.split_first() {
        Some((program, arguments)) => {
            record(&script, Recorded::Command(program, arguments), &mut convert)
        }
        None => record(&script, Recorded::Processes(&options.pids, options.seconds), &mut convert),
    };
    match recorded {
        Ok(status) => ExitCode::from(status),
        Err(text) => complain(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<TraceOptions>, String> {
        TraceOptions::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn offset_is_that_of_the_next_file_only() {
        let options = parsed("--offset -5 a b --offset 7 c -o x").unwrap().unwrap();
        let expected = [("a", -5), ("b", 0), ("c", 7)];
        assert_eq!(options.files, expected.map(|(file, offset)| (PathBuf::from(file), offset)));
        assert_eq!(options.out(), Path::new("x"));
    }

    #[test]
    fn options_of_a_command_are_its_own() {
        let options = parsed("-o x -- program -o y").unwrap().unwrap();
        assert_eq!(options.command, ["program", "-o", "y"].map(OsString::from));
        assert!(options.files.is_empty());
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "",
            "--",
            "a -p 1",
            "a -- b",
            "-p x",
            "-p 1, ",
            "-s 5 a",
            "--offset 5",
            "--offset x a",
            "-x",
            "--what",
            "--script a",
            "-o",
            "-s -1 -p 5",
            "--align a",
            "--align a -",
            "--align a --offset 5 b",
            "--align -p 1",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(parsed("--help").unwrap().is_none());
        assert_eq!(parsed("-p 1999999,2999999").unwrap().unwrap().pids, [1_999_999, 2_999_999]);
        assert!(parsed("--align a b").unwrap().unwrap().align);
    }
}
