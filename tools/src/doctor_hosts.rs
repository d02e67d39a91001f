//! fi_doctor over several hosts: the common analysis of their dumps.
use crate::cli::LookedAt;
use crate::hosts::{DumpSource, MissingHost, ReadDumps, missing_text};
use crate::{Examination, FindingKey, finding_json, left_out_json, without_findings};
use ofi_hosts::job::Job;
use ofi_stats::doctor::{Diagnosis, Finding};
use ofi_stats::show::json;
use std::fmt::Write as _;

/// Analyses the processes of several hosts.
pub(crate) fn examine(source: &DumpSource) -> Examination {
    let ReadDumps { dumps, missing } = source.read();
    let is_empty = dumps.is_empty();
    let names: Vec<_> = dumps.iter().map(|(name, _)| name.clone()).collect();
    let job = Job::join(dumps);
    let Diagnosis { findings, left_out } = job.diagnose();
    let mut text = as_text(&job, &findings, left_out, &missing);
    let mut json = as_json(&job, &names, &findings, left_out, &missing);
    let found = findings.iter().map(|one| (one.rule.name(), host_of(&names, one), one.process.pid));
    let absent = missing.iter().map(|(host, _)| ("no-statistics", host.as_str(), 0));
    let keys = found.chain(absent).map(|(rule, host, pid)| (rule, host.to_string(), pid));
    let keys: Vec<FindingKey> = keys.collect();
    let looked = LookedAt { processes: job.after, left_out: 0 };
    text += &looked.left_out_text();
    json.extend(looked.left_out_json().into_iter().map(left_out_json));
    let status = match (findings.is_empty(), is_empty || !missing.is_empty()) {
        (false, _) => 1,
        (true, true) => 2,
        (true, false) => 0,
    };
    Examination { keys, text, json, status }
}

/// Returns the name of a finding's host.
fn host_of<'n>(names: &'n [String], finding: &Finding) -> &'n str {
    let index = (finding.process.host as usize).checked_sub(1);
    index.and_then(|index| names.get(index)).map_or("", String::as_str)
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
    text + &missing_text(missing)
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
    let mut all: Vec<_> = findings
        .iter()
        .map(|one| finding_json(one, &format!(",\"host\":{}", json(host_of(names, one)))))
        .collect();
    all.extend(job.notes.iter().map(|note| observation("note", "", note)));
    all.extend(missing.iter().map(|(host, reason)| observation("no-statistics", host, reason)));
    if left_out > 0 {
        all.push(left_out_json((0, format!("{{\"findings\":{left_out}}}"))));
    }
    all
}
