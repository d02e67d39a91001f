//! Runs a command for each host, and reads its output as a dump.
use crate::parse::{DumpError, JobBudget, parse_dump};
use crate::{HostDump, clean};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Default command.
pub const DEFAULT: &str = "ssh -o BatchMode=yes -- {} fi_ps --dump";

/// Maximum number of hosts.
pub const MAX_HOSTS: usize = 65536;

/// Maximum number of concurrent commands.
const MAX_RUNNING: usize = 64;

/// Status of a shell whose program was ended by SIGPIPE, since its output was rejected and closed.
const CLOSED: i32 = 141;

/// Maximum bytes of the output of a command that is no dump.
const MAX_TEXT: u64 = 16 << 20;

/// Maximum bytes stored of the standard error output of a command.
const MAX_COMPLAINT: usize = 4096;

/// Command with `{}` in place of the host, without a shell.
#[derive(Debug)]
pub struct HostCommand {
    words: Vec<String>,
    timeout: Duration,
}

impl HostCommand {
    /// Divides a command at its spaces. The time limit is that of each host.
    pub fn new(command: &str, timeout: Duration) -> Result<Self, &'static str> {
        let words: Vec<_> = command.split_whitespace().map(String::from).collect();
        match words.first() {
            None => Err("the command is empty"),
            Some(_) if !command.contains("{}") => Err("the command has no {} in place of the host"),
            Some(_) => Ok(Self { words, timeout }),
        }
    }

    /// Runs the command for all of these hosts and returns their dumps, or the reasons for missing
    /// ones, in the order of the hosts.
    pub fn run_all(
        &self,
        hosts: &[String],
        budget: &JobBudget,
    ) -> Vec<(String, Result<HostDump, String>)> {
        let results: Vec<_> = hosts.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let (Some(host), Some(result)) = (hosts.get(index), results.get(index)) else {
                    return;
                };
                let read = self.run(host, budget);
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
            }
        };
        thread::scope(|scope| {
            for _ in 1..hosts.len().min(MAX_RUNNING) {
                // With fewer threads it takes longer.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let results = results.into_iter().map(|one| {
            let read = one.into_inner().unwrap_or_else(PoisonError::into_inner);
            read.unwrap_or_else(|| Err("it was not run".into()))
        });
        hosts.iter().cloned().zip(results).collect()
    }

    /// Runs the command for a host.
    fn run(&self, host: &str, budget: &JobBudget) -> Result<HostDump, String> {
        if !is_host_name(host) {
            return Err("it is no name of a host".into());
        }
        let words: Vec<_> = self.words.iter().map(|word| word.replace("{}", host)).collect();
        let (mut child, mut output) = start(&words, self.timeout)?;
        let end = output.end;
        let mut reader = BufReader::with_capacity(64 << 10, &mut output);
        let read = parse_dump(&mut reader, budget);
        if matches!(read, Err(DumpError::Empty | DumpError::NoDump | DumpError::Truncated(_))) {
            output.read_complaint();
        }
        let status = end_command(&mut child, end, read.is_ok() || output.is_late());
        read.map_err(|error| {
            let complaint = output.complaint();
            match (error, status) {
                (DumpError::System(error), _) if error.kind() == io::ErrorKind::TimedOut => {
                    format!("no answer within {} s{complaint}", self.timeout.as_secs_f64())
                }
                (DumpError::Empty | DumpError::NoDump | DumpError::Truncated(_), Some(status))
                    if status.code().is_some_and(|code| code != 0 && code != CLOSED) =>
                {
                    format!("the command ended with {status}{complaint}")
                }
                (DumpError::Empty, _) => format!("the command wrote no output{complaint}"),
                (error, _) => format!("its output is no complete dump: {error}"),
            }
        })
    }
}

/// Starts a program with its arguments.
fn start(words: &[String], timeout: Duration) -> Result<(Child, CommandOutput), String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let started = command.stderr(Stdio::piped()).process_group(0).spawn();
    let mut child = started.map_err(|error| format!("{}: {error}", clean(&words[0])))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let end = Instant::now() + timeout;
    Ok((child, CommandOutput { stdout, stderr, complaint: Vec::new(), end }))
}

/// Runs a program with its arguments and returns its output.
pub(crate) fn output_of(words: &[String], timeout: Duration) -> Result<String, String> {
    let (mut child, mut output) = start(words, timeout)?;
    let (end, program) = (output.end, clean(&words[0]));
    let mut text = Vec::new();
    let read = output.by_ref().take(MAX_TEXT).read_to_end(&mut text);
    let is_late = output.is_late();
    output.read_complaint();
    let status = end_command(&mut child, end, is_late || text.len() as u64 >= MAX_TEXT);
    match (read, status) {
        (Ok(_), Some(status)) if status.success() => {
            String::from_utf8(text).map_err(|_| format!("{program}: its output is no text"))
        }
        (Ok(_), Some(status)) => {
            Err(format!("{program} ended with {status}{}", output.complaint()))
        }
        (Err(error), _) if error.kind() == io::ErrorKind::TimedOut => {
            Err(format!("{program}: no answer within {} s", timeout.as_secs_f64()))
        }
        (Err(error), _) => Err(format!("{program}: {error}")),
        (Ok(_), None) => Err(format!("{program} did not end")),
    }
}

/// Returns true for a name without spaces and without the beginning of an option.
pub fn is_host_name(host: &str) -> bool {
    let is_part = |c: char| !c.is_whitespace() && !c.is_control();
    !host.is_empty() && host.len() <= 255 && !host.starts_with('-') && host.chars().all(is_part)
}

/// Ends a command with all processes of its group, and returns its status if it ended by itself. A
/// command with closed output has a second for its end, unless it `is_done`.
fn end_command(child: &mut Child, end: Instant, is_done: bool) -> Option<std::process::ExitStatus> {
    let mut status = None;
    let patient = Instant::now() + Duration::from_secs(1);
    while !is_done && status.is_none() && Instant::now() < end.min(patient) {
        status = child.try_wait().ok().flatten();
        if status.is_none() {
            thread::sleep(Duration::from_millis(5));
        }
    }
    // The number is the group's as long as its first process is not waited for, or another one lives.
    if let Some(group) = Pid::from_raw(child.id() as i32).filter(|_| status.is_none()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    status
}

/// Output of a command, with a time limit.
struct CommandOutput {
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    complaint: Vec<u8>,
    end: Instant,
}

impl CommandOutput {
    fn is_late(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Waits until an output is readable, reads from standard error, and returns true if standard
    /// output is readable.
    fn wait(&mut self) -> io::Result<bool> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut polled: Vec<_> = Vec::with_capacity(2);
        polled.extend(self.stdout.as_ref().map(|out| PollFd::new(out, PollFlags::IN)));
        let outputs = polled.len();
        polled.extend(self.stderr.as_ref().map(|out| PollFd::new(out, PollFlags::IN)));
        if polled.is_empty() {
            return Ok(true);
        }
        poll(&mut polled, Some(&timeout))?;
        let ready: Vec<_> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        if ready[outputs..].first() == Some(&true) {
            self.read_stderr();
        }
        Ok(ready[..outputs].first() == Some(&true))
    }

    fn read_stderr(&mut self) {
        let mut part = [0; 4096];
        let read = self.stderr.as_mut().map_or(Ok(0), |stderr| stderr.read(&mut part));
        match read {
            Ok(0) | Err(_) => self.stderr = None,
            Ok(count) => {
                let wanted = count.min(MAX_COMPLAINT - self.complaint.len());
                self.complaint.extend(&part[..wanted]);
            }
        }
    }

    /// Reads standard error to its end, for a short time.
    fn read_complaint(&mut self) {
        self.stdout = None;
        self.end = self.end.min(Instant::now() + Duration::from_secs(1));
        while self.stderr.is_some() && self.wait().is_ok() {}
    }

    /// Returns the last line of standard error as text.
    fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.complaint);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.map_or_else(String::new, |line| {
            let line: String = line.trim().chars().take(200).collect();
            let parts: Vec<_> = line.split(' ').map(clean).collect();
            format!(": {}", parts.join(" "))
        })
    }
}

impl Read for CommandOutput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.wait()? {
                return self.stdout.as_mut().map_or(Ok(0), |stdout| stdout.read(buf));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, seconds: u64) -> String {
        let command = HostCommand::new(command, Duration::from_secs(seconds)).unwrap();
        let hosts = ["node1".to_string()];
        let all = command.run_all(&hosts, &JobBudget::default());
        all.into_iter().next().unwrap().1.unwrap_err()
    }

    #[test]
    fn failing_commands_are_reported_with_their_reason() {
        assert!(run("/nowhere/at/all {}", 60).starts_with("/nowhere/at/all: No such file"));
        assert_eq!(run("true {}", 60), "the command wrote no output");
        assert_eq!(run("false {}", 60), "the command ended with exit status: 1");
        assert_eq!(
            run("echo {}", 60),
            "its output is no complete dump: it is no output of fi_ps --dump"
        );
        let missing = run("cat /nowhere/{}", 60);
        assert_eq!(
            missing,
            "the command ended with exit status: 1: cat: /nowhere/node1: No such file or directory"
        );
        assert_eq!(
            run("cat /dev/zero {}", 60),
            "its output is no complete dump: it is no output of fi_ps --dump"
        );
    }

    #[test]
    fn silent_command_is_ended_at_its_time_limit() {
        let script = std::env::temp_dir().join(format!("ofi-silent-{}", std::process::id()));
        std::fs::write(&script, "sleep 1000 & echo waits >&2; sleep 1000\n").unwrap();
        let command = format!("sh {} {{}}", script.display());
        assert_eq!(run(&command, 1), "no answer within 1 s: waits");
        std::fs::remove_file(script).unwrap();
    }

    #[test]
    fn names_of_hosts_are_no_options() {
        for name in ["-oProxyCommand=x", "", "a b", "a\x1b[2J", "a\n"] {
            assert!(!is_host_name(name), "{name:?}");
        }
        assert!(["node1", "user@10.0.0.1", "fe80::1%eth0"].into_iter().all(is_host_name));
        assert!(HostCommand::new("", Duration::ZERO).is_err());
        assert!(HostCommand::new("ssh host fi_ps", Duration::ZERO).is_err());
    }
}
