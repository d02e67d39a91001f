//! fi_doctor over several hosts: reads their dumps from files or commands, and prints the common
//! analysis.
use crate::cli::{CliOptions, LookedAt, complain, print};
use crate::{finding_json, left_out_json, without_findings};
use ofi_hosts::command::{DEFAULT, HostCommand, MAX_HOSTS, is_host_name};
use ofi_hosts::job::Job;
use ofi_hosts::parse::{JobBudget, parse_dump};
use ofi_hosts::{HostDump, clean};
use ofi_stats::doctor::{Diagnosis, Finding};
use ofi_stats::show::json;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;
use std::time::Duration;

/// Maximum number of hosts without statistics to list.
const MOST_MISSING: usize = 50;

/// A host or file, with the reason for its missing dump.
type MissingHost = (String, String);

/// Dumps by the name of their host, and missing ones.
#[derive(Default)]
struct ReadDumps {
    dumps: Vec<(String, HostDump)>,
    missing: Vec<MissingHost>,
}

/// Analyses the processes of several hosts.
pub(crate) fn run(options: &CliOptions) -> ExitCode {
    let has_hosts = options.word("--hosts").is_some();
    let files = options.all_words("--from").chain(options.files.iter().map(String::as_str));
    let files: Vec<_> = files.collect();
    if !options.pids.is_empty() || has_hosts && !files.is_empty() {
        complain(
            "fi_doctor",
            "processes, files and hosts exclude each other: see fi_doctor --help",
        );
    }
    if !has_hosts && options.word("--command").is_some() {
        complain("fi_doctor", "--command is for --hosts");
    }
    let read = if has_hosts { from_hosts(options) } else { from_files(&files) };
    let ReadDumps { dumps, missing } = read;
    let is_empty = dumps.is_empty();
    let names: Vec<_> = dumps.iter().map(|(name, _)| name.clone()).collect();
    let job = Job::join(dumps);
    let Diagnosis { findings, left_out } = job.diagnose();
    if options.has("--json") {
        let mut all = as_json(&job, &names, &findings, left_out, &missing);
        let looked = LookedAt { processes: job.after, left_out: 0 };
        all.extend(looked.left_out_json().into_iter().map(left_out_json));
        print(&format!("[{}]\n", all.join(",\n")));
    } else {
        let text = as_text(&job, &findings, left_out, &missing);
        let looked = LookedAt { processes: job.after, left_out: 0 };
        print(&(text + &looked.left_out_text()));
    }
    match (findings.is_empty(), is_empty || !missing.is_empty()) {
        (false, _) => ExitCode::from(1),
        (true, true) => ExitCode::from(2),
        (true, false) => ExitCode::SUCCESS,
    }
}

fn from_hosts(options: &CliOptions) -> ReadDumps {
    let mut known = HashSet::new();
    let hosts = options.all_words("--hosts").flat_map(|list| list.split(','));
    let hosts = hosts.map(str::trim).filter(|host| !host.is_empty() && known.insert(*host));
    let hosts: Vec<_> = hosts.map(String::from).collect();
    if hosts.is_empty() || hosts.len() > MAX_HOSTS {
        complain("fi_doctor", &format!("--hosts takes 1 to {MAX_HOSTS} names"));
    }
    if let Some(host) = hosts.iter().find(|host| !is_host_name(host)) {
        complain("fi_doctor", &format!("{host:?} is no name of a host"));
    }
    let timeout = Duration::from_secs_f64(options.value("--timeout", 30.0));
    let command = HostCommand::new(options.word("--command").unwrap_or(DEFAULT), timeout);
    let command = command.unwrap_or_else(|reason| complain("fi_doctor", reason));
    let mut read = ReadDumps::default();
    for (host, result) in command.run_all(&hosts, &JobBudget::default()) {
        match result {
            Ok(dump) => read.dumps.push((clean(&host), dump)),
            Err(reason) => read.missing.push((clean(&host), reason)),
        }
    }
    read
}

fn from_files(files: &[&str]) -> ReadDumps {
    let (mut read, budget) = (ReadDumps::default(), JobBudget::default());
    let mut known = HashSet::new();
    for file in files {
        let opened = File::open(file).map_err(|error| error.to_string());
        let parsed = opened.and_then(|opened| {
            parse_dump(&mut BufReader::new(opened), &budget).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(dump) if known.insert(dump.host.clone()) => {
                read.dumps.push((dump.host.clone(), dump));
            }
            // Hosts may have the same name, as containers do.
            Ok(dump) => read.dumps.push((format!("{} ({})", dump.host, clean(file)), dump)),
            Err(reason) => read.missing.push((clean(file), reason)),
        }
    }
    read
}

fn as_text(job: &Job, findings: &[Finding], left_out: usize, missing: &[MissingHost]) -> String {
    let mut text: String = findings.iter().map(Finding::to_string).collect();
    if findings.is_empty() && job.hosts > 0 {
        text = without_findings(&job.before, &job.after, &format!(" of {} hosts", job.hosts));
    }
    if left_out > 0 {
        let _ = writeln!(text, "and {left_out} more findings");
    }
    for note in &job.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for (host, reason) in missing.iter().take(MOST_MISSING) {
        let _ = writeln!(text, "no statistics of {host}: {reason}");
    }
    if missing.len() > MOST_MISSING {
        let _ = writeln!(text, "and of {} more hosts", missing.len() - MOST_MISSING);
    }
    text
}

/// Returns an object like the ones of findings for another observation.
fn observation(rule: &str, host: &str, cause: &str) -> String {
    format!(
        "{{\"rule\":{},\"pid\":0,\"waiters\":0,\"cause\":{},\"seen\":\"\",\"advice\":\"\",\"host\":{}}}",
        json(rule),
        json(cause),
        json(host)
    )
}

fn as_json(
    job: &Job,
    names: &[String],
    findings: &[Finding],
    left_out: usize,
    missing: &[MissingHost],
) -> Vec<String> {
    let host_of = |finding: &Finding| {
        let index = (finding.process.host as usize).checked_sub(1);
        index.and_then(|index| names.get(index)).map_or("", String::as_str)
    };
    let mut all: Vec<_> = findings
        .iter()
        .map(|one| finding_json(one, &format!(",\"host\":{}", json(host_of(one)))))
        .collect();
    all.extend(job.notes.iter().map(|note| observation("note", "", note)));
    all.extend(missing.iter().map(|(host, reason)| observation("no-statistics", host, reason)));
    if left_out > 0 {
        all.push(left_out_json((0, format!("{{\"findings\":{left_out}}}"))));
    }
    all
}
