//! Recording with bpftrace, during a command or of running processes.
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time for the attachment of all probes.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between the end of a command and the end of the recording, for the last events.
const SETTLE: Duration = Duration::from_millis(300);

/// Time between two looks at the target.
const POLL: Duration = Duration::from_millis(50);

/// Target of a recording.
pub(crate) enum Recorded<'a> {
    /// A command with its arguments.
    Command(&'a OsStr, &'a [OsString]),
    /// Processes, until their end or for a time.
    Processes(&'a [u32], Option<Duration>),
}

/// Output of bpftrace; signals the first line after the attachment.
pub(crate) struct Output {
    from: BufReader<ChildStdout>,
    attached: Option<Sender<()>>,
}

impl Read for Output {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.from.read(buf)
    }
}

impl BufRead for Output {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let part = self.from.fill_buf()?;
        // The script's time signals come once all probes are attached.
        if self.attached.is_some() && part.windows(5).any(|here| here == b"tick\t") {
            if let Some(attached) = self.attached.take() {
                let _ = attached.send(());
            }
        }
        Ok(part)
    }

    fn consume(&mut self, count: usize) {
        self.from.consume(count);
    }
}

/// Starts bpftrace in a process group of its own: Ctrl-C ends it by this program only.
fn start(script: &str) -> Result<Child, String> {
    let mut command = Command::new("bpftrace");
    command.arg("-e").arg(script).stdin(Stdio::null()).process_group(0);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in [("BPFTRACE_PERF_RB_PAGES", "1024"), ("BPFTRACE_MAX_PROBES", "4096")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "bpftrace is not installed (package bpftrace)".to_string(),
        _ => format!("bpftrace: {error}"),
    })
}

/// Returns true for a message of bpftrace without consequences: bpftrace works without locked memory
/// since Linux 5.11, and the kernel removes its probes with the process, also without a tracefs.
fn is_harmless(message: &str) -> bool {
    message.contains("couldn't set RLIMIT_MEMLOCK")
        || message.contains("failed to detach probe")
        || message.contains("/uprobe_events): No such file")
}

/// Prints the messages of bpftrace, without the harmless ones.
fn pass_messages(from: impl Read) {
    let mut lines = BufReader::new(from).split(b'\n');
    while let Some(Ok(line)) = lines.next() {
        let line = String::from_utf8_lossy(&line);
        if !is_harmless(&line) {
            eprintln!("{line}");
        }
    }
}

/// Waits until all probes are attached.
fn wait_attached(bpftrace: &mut Child, attached: &Receiver<()>) -> Result<(), String> {
    let start = Instant::now();
    loop {
        if attached.recv_timeout(POLL).is_ok() {
            return Ok(());
        }
        if let Ok(Some(status)) = bpftrace.try_wait() {
            return Err(format!("bpftrace could not attach to the probes ({status})"));
        }
        if start.elapsed() > ATTACH_TIMEOUT {
            let _ = bpftrace.kill();
            return Err("bpftrace takes too long to attach to the probes".into());
        }
    }
}

/// Ends bpftrace; its last events are printed before.
fn stop(bpftrace: &Child) {
    // SAFETY: no memory is involved; the process is ours and has not been waited for.
    unsafe { libc::kill(bpftrace.id() as libc::pid_t, libc::SIGINT) };
}

/// Returns the status of this program for the status of a command, as shells do.
fn status_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    u8::try_from(code.unwrap_or(1)).unwrap_or(1)
}

/// Runs or observes the target; returns the status of this program.
fn observe(target: &Recorded<'_>, bpftrace: &mut Child) -> Result<u8, String> {
    match target {
        Recorded::Command(program, arguments) => {
            let mut command = Command::new(program);
            let child = command.args(*arguments).spawn();
            let mut child =
                child.map_err(|error| format!("{}: {error}", program.to_string_lossy()))?;
            let status = child.wait().map_err(|error| error.to_string())?;
            Ok(status_of(status))
        }
        Recorded::Processes(pids, time) => {
            let start = Instant::now();
            let exists = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
            while pids.iter().any(exists) && time.is_none_or(|time| start.elapsed() < time) {
                // bpftrace ends if it fails.
                if matches!(bpftrace.try_wait(), Ok(Some(_))) || interrupt::is_pending() {
                    break;
                }
                thread::sleep(POLL);
            }
            Ok(0)
        }
    }
}

/// Ctrl-C ends a recording and not this program.
mod interrupt {
    use std::sync::atomic::{AtomicBool, Ordering};

    static PENDING: AtomicBool = AtomicBool::new(false);

    extern "C" fn note(_signal: libc::c_int) {
        PENDING.store(true, Ordering::Relaxed);
    }

    /// Notes signals from now on.
    pub(super) fn prepare() {
        let handler = note as extern "C" fn(libc::c_int);
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the handler only stores a flag.
            unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        }
    }

    pub(super) fn is_pending() -> bool {
        PENDING.load(Ordering::Relaxed)
    }
}

/// Records a target with this script and converts the output meanwhile. Returns the status of this
/// program.
pub(crate) fn record(
    script: &str,
    target: Recorded<'_>,
    convert: &mut (dyn FnMut(Output) + Send),
) -> Result<u8, String> {
    let mut bpftrace = start(script)?;
    interrupt::prepare();
    let (sender, attached) = channel();
    let from = bpftrace.stdout.take().ok_or("bpftrace has no output")?;
    let output = Output { from: BufReader::with_capacity(1 << 18, from), attached: Some(sender) };
    let messages = bpftrace.stderr.take();
    let result = thread::scope(|scope| {
        scope.spawn(|| convert(output));
        scope.spawn(|| messages.map(pass_messages));
        let result =
            wait_attached(&mut bpftrace, &attached).and_then(|()| observe(&target, &mut bpftrace));
        thread::sleep(SETTLE);
        if matches!(bpftrace.try_wait(), Ok(None)) {
            stop(&bpftrace);
        }
        result
    });
    let _ = bpftrace.wait();
    result
}
