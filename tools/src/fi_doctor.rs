//! Says why nothing moves (fi_doctor(1)).
mod looking;

use looking::{LookOptions, complain, now, print};
use ofi_facts::doctor::{Finding, examine, is_waiting, starved};
use ofi_facts::show::json;
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
        finding.pid,
        json(&finding.cause),
        json(&finding.seen),
        json(finding.rule.advice())
    )
}

fn main() -> ExitCode {
    let options = LookOptions::parse("fi_doctor", HELP, &["--json"], &["-i"]);
    let before = options.look("fi_doctor");
    if before.is_empty() {
        complain("fi_doctor", "no process that uses libfabric can be looked at");
    }
    std::thread::sleep(Duration::from_secs_f64(options.value("-i", 2.0)));
    let after =
        LookOptions { pids: before.iter().map(|one| one.pid).collect(), ..LookOptions::default() };
    let after = after.look("fi_doctor");
    let findings = examine(&before, &after, now());
    if options.has("--json") {
        let findings: Vec<_> = findings.iter().map(finding_json).collect();
        print(&format!("[{}]\n", findings.join(",")));
    } else if findings.is_empty() {
        let endpoints = after.iter().flat_map(|process| &process.pages);
        let endpoints = endpoints.flat_map(|page| page.endpoints.iter().map(move |ep| (page, ep)));
        let (all, waiting) = endpoints.fold((0, 0), |(all, waiting), (page, endpoint)| {
            (all + 1, waiting + usize::from(is_waiting(page, endpoint)))
        });
        print(&format!(
            "nothing is wrong that can be seen from here: {} processes, {all} endpoints, of which {waiting} \
             wait for something\n",
            after.len()
        ));
        for process in starved(&before, &after) {
            print(&format!(
                "{} gets no processor, so that little was seen of it: look for longer (-i)\n",
                process.who()
            ));
        }
    } else {
        print(&findings.iter().map(Finding::to_string).collect::<String>());
    }
    ExitCode::from(u8::from(!findings.is_empty()))
}
