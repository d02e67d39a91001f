//! Analyses hanging jobs (fi_doctor(1)).
mod cli;

use cli::{CliOptions, complain, now, print};
use ofi_stats::doctor::{Diagnosis, Finding, cq_blocked, examine, is_waiting};
use ofi_stats::read::StatsProcess;
use ofi_stats::show::json;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: fi_doctor [-i SECONDS] [--json] [PID...]

Looks twice at processes of this host that use libfabric, and says why nothing
moves: the cause first, then what was seen and what to do. Name all processes of a
job that are on this host, or none for all that this user may look at.

  -i SECONDS   time between both looks (default 2)
  --json       the findings as JSON
  -h, --help   this text

Status: 0 without a finding, 1 with one, 2 if nothing could be looked at.
";

fn finding_json(finding: &Finding) -> String {
    format!(
        "{{\"rule\":{},\"pid\":{},\"cause\":{},\"seen\":{},\"advice\":{}}}",
        json(finding.rule.name()),
        finding.process.pid,
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

fn main() -> ExitCode {
    let options = CliOptions::parse("fi_doctor", HELP, &["--json"], &["-i"]);
    let before = options.look("fi_doctor");
    if before.processes.is_empty() {
        if before.left_out > 0 {
            eprint!("{}", before.left_out_text());
        }
        complain("fi_doctor", "no process that uses libfabric can be looked at");
    }
    std::thread::sleep(Duration::from_secs_f64(options.value("-i", 2.0)));
    let pids = before.processes.iter().map(|one| one.pid).collect();
    let mut looked = CliOptions { pids, ..CliOptions::default() }.look("fi_doctor");
    // The second look is at those alone that the first one saw.
    looked.left_out += before.left_out;
    let (before, after) = (&before.processes, &looked.processes);
    let Diagnosis { findings, left_out } = examine(before, after, now());
    if options.has("--json") {
        let mut parts = looked.left_out_json();
        parts.extend((left_out > 0).then(|| (0, format!("{{\"findings\":{left_out}}}"))));
        let parts = parts.into_iter().map(left_out_json);
        let all: Vec<_> = findings.iter().map(finding_json).chain(parts).collect();
        print(&format!("[{}]\n", all.join(",")));
    } else {
        let mut text: String = findings.iter().map(Finding::to_string).collect();
        if findings.is_empty() {
            text = without_findings(before, after);
        }
        if left_out > 0 {
            let _ = writeln!(text, "and {left_out} more findings: name fewer processes");
        }
        print(&(text + &looked.left_out_text()));
    }
    ExitCode::from(u8::from(!findings.is_empty()))
}

/// Returns the text for no finding.
fn without_findings(before: &[StatsProcess], after: &[StatsProcess]) -> String {
    let endpoints = after.iter().flat_map(|process| &process.pages);
    let endpoints = endpoints.flat_map(|page| page.endpoints.iter().map(move |ep| (page, ep)));
    let (all, waiting) = endpoints.fold((0, 0), |(all, waiting), (page, endpoint)| {
        (all + 1, waiting + usize::from(is_waiting(page, endpoint)))
    });
    let mut text = format!(
        "nothing is wrong that can be seen from here: {} processes, {all} endpoints, of which {waiting} \
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
