//! Analyses hanging jobs (fi_doctor(1)).
mod cli;
mod doctor_hosts;
mod hosts;

use cli::{CliOptions, CliSyntax, LookedAt, complain, now, print};
use hosts::DumpSource;
use ofi_hosts::sockets::add_sockets;
use ofi_stats::doctor::{Diagnosis, Finding, cq_blocked, examine, is_waiting, with_peers};
use ofi_stats::read::StatsProcess;
use ofi_stats::show::json;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: fi_doctor [-i SECONDS] [--watch SECONDS] [--json] [PID...]
       fi_doctor [--json] [--from] FILE...
       fi_doctor [--watch SECONDS] [--json] [--timeout SECONDS] [--command COMMAND]
                 {--hosts HOST,... | --slurm JOB}

Reads the statistics of processes with libfabric on this host twice, and reports
the cause of a hang, the observations that show it, and the advised action. With
the number of a process, its peers on this host are included; without a number,
all processes readable by this user are. A job on several hosts needs the files
written by 'fi_ps --dump' on each of them, the names of the hosts, or the number
of its Slurm job.

  -i SECONDS         time between both looks (default 2)
  --watch SECONDS    looks again after this pause, until the end of the processes
                     named or of this program, and prints changed findings
  --json             the findings as JSON
  --from FILE        a file of another host, also one whose name is a number
  --hosts HOST,...   runs a command for each of these hosts
  --slurm JOB        the same for the nodes of this job, with srun
  --command COMMAND  the command, with {} for the host, without a shell (default
                     'ssh -o BatchMode=yes -- {} fi_ps --dump')
  --timeout SECONDS  time limit of each command (default 30)
  -h, --help         this text

Status: 0 without a finding, 1 with one, 2 if nothing could be looked at, or
without a finding if something of several hosts is missing.
";

const SYNTAX: CliSyntax<'static> = CliSyntax {
    flags: &["--json"],
    values: &["-i", "--timeout", "--watch"],
    words: &["--from", "--hosts", "--slurm", "--command"],
    takes_files: true,
};

/// Returns a finding as JSON, with further members.
fn finding_json(finding: &Finding, more: &str) -> String {
    format!(
        "{{\"rule\":{},\"pid\":{},\"waiters\":{},\"cause\":{},\"seen\":{},\"advice\":{}{more}}}",
        json(finding.rule.name()),
        finding.process.pid,
        finding.waiters,
        json(&finding.cause),
        json(&finding.seen),
        json(finding.rule.advice())
    )
}

/// Returns unread data as an object like the ones of findings.
fn left_out_json((pid, what): (u32, String)) -> String {
    format!(
        "{{\"rule\":\"left-out\",\"pid\":{pid},\"cause\":\"too much to read\",\"seen\":\"\",\"advice\":\"name fewer \
         processes\",\"left_out\":{what}}}"
    )
}

/// Reads the requested processes and their peers on this host, or all.
fn first_look(options: &CliOptions) -> LookedAt {
    let mut named = options.look("fi_doctor");
    if !options.pids.is_empty() && !named.processes.is_empty() {
        let others = CliOptions::default().look("fi_doctor");
        named.processes = with_peers(named.processes, others.processes);
    }
    named
}

/// Rule, host and process of a finding.
type FindingKey = (&'static str, String, u32);

/// Result of an examination.
struct Examination {
    keys: Vec<FindingKey>,
    text: String,
    /// The findings as objects.
    json: Vec<String>,
    status: u8,
}

impl Examination {
    fn print(&self, as_json: bool, separator: &str) {
        if as_json {
            print(&format!("[{}]\n", self.json.join(separator)));
        } else {
            print(&self.text);
        }
    }
}

/// Examines the processes of this host, or returns `None` if there are none.
fn examine_host(options: &CliOptions) -> Option<Examination> {
    let mut before = first_look(options);
    add_sockets(&mut before.processes);
    if before.processes.is_empty() {
        if before.left_out > 0 {
            eprint!("{}", before.left_out_text());
        }
        return None;
    }
    std::thread::sleep(Duration::from_secs_f64(options.value("-i", 2.0)));
    let pids = before.processes.iter().map(|one| one.pid).collect();
    let mut looked = CliOptions { pids, ..CliOptions::default() }.look("fi_doctor");
    add_sockets(&mut looked.processes);
    // The second look is at those alone that the first one saw.
    looked.left_out += before.left_out;
    let (before, after) = (&before.processes, &looked.processes);
    let Diagnosis { findings, left_out } = examine(before, after, now());
    let mut parts = looked.left_out_json();
    parts.extend((left_out > 0).then(|| (0, format!("{{\"findings\":{left_out}}}"))));
    let parts = parts.into_iter().map(left_out_json);
    let json = findings.iter().map(|finding| finding_json(finding, "")).chain(parts).collect();
    let mut text: String = findings.iter().map(Finding::to_string).collect();
    if findings.is_empty() {
        text = without_findings(before, after, "");
    }
    if left_out > 0 {
        let _ = writeln!(text, "and {left_out} more findings: name fewer processes");
    }
    let keys = findings.iter().map(|one| (one.rule.name(), String::new(), one.process.pid));
    Some(Examination {
        keys: keys.collect(),
        text: text + &looked.left_out_text(),
        json,
        status: u8::from(!findings.is_empty()),
    })
}

/// Examines again and again, and prints what is found whenever it differs. Ends when no named
/// process exists any more.
fn watch(examine: impl Fn() -> Option<Examination>, pause: f64, options: &CliOptions) -> ExitCode {
    let (mut printed, mut status): (Option<Vec<FindingKey>>, u8) = (None, 0);
    loop {
        let one = match examine() {
            Some(one) => one,
            None if !options.pids.is_empty() => return ExitCode::from(status),
            None => Examination {
                keys: Vec::new(),
                text: "no process that uses libfabric can be looked at\n".into(),
                json: Vec::new(),
                status: 0,
            },
        };
        let mut keys = one.keys.clone();
        keys.sort_unstable();
        if printed.as_ref() != Some(&keys) {
            let as_json = options.has("--json");
            if !as_json {
                print(&format!("{}{}:\n", if printed.is_some() { "\n" } else { "" }, utc()));
            }
            one.print(as_json, ",");
            printed = Some(keys);
        }
        status = status.max(u8::from(one.status == 1));
        std::thread::sleep(Duration::from_secs_f64(pause));
    }
}

/// Returns the time of day.
fn utc() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs()) % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn main() -> ExitCode {
    let options = CliOptions::parse_with("fi_doctor", HELP, &SYNTAX);
    let source = DumpSource::new("fi_doctor", &options);
    let examine = || match &source {
        Some(source) => Some(doctor_hosts::examine(source)),
        None => examine_host(&options),
    };
    if options.has_value("--watch") {
        if matches!(source, Some(DumpSource::Files(_))) {
            complain("fi_doctor", "--watch is for processes and hosts: files do not change");
        }
        return watch(examine, options.value("--watch", 0.0), &options);
    }
    let Some(one) = examine() else {
        complain("fi_doctor", "no process that uses libfabric can be looked at");
    };
    one.print(options.has("--json"), if source.is_some() { ",\n" } else { "," });
    ExitCode::from(one.status)
}

/// Returns the text for no finding.
fn without_findings(before: &[StatsProcess], after: &[StatsProcess], of_hosts: &str) -> String {
    let endpoints = after.iter().flat_map(|process| &process.pages);
    let endpoints = endpoints.flat_map(|page| page.endpoints.iter().map(move |ep| (page, ep)));
    let (all, waiting) = endpoints.fold((0, 0), |(all, waiting), (page, endpoint)| {
        (all + 1, waiting + usize::from(is_waiting(page, endpoint)))
    });
    let mut text = format!(
        "nothing is wrong that can be seen from here: {} processes{of_hosts}, {all} endpoints, of which {waiting} \
         wait for something\n",
        after.len()
    );
    for process in cq_blocked(before, after) {
        let _ = writeln!(
            text,
            "{} gets no processor, so that little was seen of it: look for longer (-i)",
            process.who()
        );
    }
    text
}
