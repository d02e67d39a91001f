//! Hang report on standard error, on request of the user (FI_HANG_REPORT, fi_doctor(1)).
//!
//! A thread examines this process from outside, by its published statistics (`stats.rs`), without
//! any code in the engines.
use crate::sys::coarse_now;
use crate::worker::{Worker, rest, unharmed};
use ofi_stats::bounds::LookBounds;
use ofi_stats::doctor::{Finding, examine, standstill};
use ofi_stats::read::{StatsProcess, any_processes, process};
use std::fmt::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval of the examinations.
const LOOK: Duration = Duration::from_millis(500);

/// Time between both samples of an examination.
const EXAMINATION: Duration = Duration::from_secs(2);

/// Maximum number of findings in a report.
const MOST: usize = 5;

/// Starts the thread detecting a hang of this many seconds; 0 starts none. There is one for each
/// statistics memory, so a plug-in without an open domain reports nothing.
pub(super) fn watch(seconds: usize) {
    if seconds == 0 {
        return;
    }
    let after = Duration::from_secs(seconds as u64);
    let own = std::process::id();
    // Without the thread there is no report, and nothing else is missing.
    let _ = Worker::start("ofi-hang", move || {
        unharmed(|| wait_for_hang(own, after));
    });
}

/// Returns when the report is made, or cannot be any more.
fn wait_for_hang(own: u32, after: Duration) {
    let look_at_own = || process(own, &mut LookBounds::default());
    let Ok(mut before) = look_at_own() else { return };
    let mut last = None;
    let mut since = Instant::now();
    loop {
        rest(|| sleep(LOOK));
        let Ok(now) = look_at_own() else { return };
        let still = standstill(&before, &now);
        if still.is_none() || still != last {
            since = Instant::now();
        } else if since.elapsed() >= after {
            return report(own, since);
        }
        (before, last) = (now, still);
    }
}

/// Returns the readable statistics of these processes, this one first. The limits apply to the
/// others.
fn look(own: u32, pids: &[u32]) -> Vec<StatsProcess> {
    let mut bounds = LookBounds::default();
    let others = pids.iter().filter(|pid| **pid != own);
    let pids = std::iter::once(&own).chain(others);
    pids.filter_map(|pid| process(*pid, &mut bounds).ok()).collect()
}

/// Examines the processes of this user on this host and reports the findings about this one.
fn report(own: u32, since: Instant) {
    let before = look(own, &any_processes());
    rest(|| sleep(EXAMINATION));
    let pids: Vec<_> = before.iter().map(|process| process.pid).collect();
    let after = look(own, &pids);
    let findings = examine(&before, &after, coarse_now()).findings;
    eprint!("{}", verdict(own, since.elapsed().as_secs(), &findings));
}

/// Formats the report as one text, so output of other processes cannot interleave.
fn verdict(own: u32, seconds: u64, findings: &[Finding]) -> String {
    let mut text = format!(
        "libfabric:{own}: nothing has moved for {seconds} seconds (FI_HANG_REPORT); run fi_doctor for more\n"
    );
    let concerning = findings.iter().filter(|finding| finding.concerns(own));
    let reported: Vec<_> = concerning.take(MOST).collect();
    // The cause of the hang may be behind several processes waiting for each other.
    let reported = if reported.is_empty() { findings.iter().take(1).collect() } else { reported };
    for finding in &reported {
        let _ = write!(text, "libfabric:{own}: {finding}");
    }
    if reported.is_empty() {
        let _ = writeln!(
            text,
            "libfabric:{own}: no cause can be seen from this process and its user's others on this host"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_stats::doctor::HangCause;
    use ofi_stats::origin::ProcessKey;

    fn finding(pid: u32, waiter: Option<u32>) -> Finding {
        let cause = format!("process {pid} is the cause");
        Finding {
            rule: HangCause::NoCalls,
            process: ProcessKey::local(pid),
            waiter: waiter.map(ProcessKey::local),
            waiters: 1,
            cause,
            seen: "a receive".into(),
        }
    }

    #[test]
    fn report_lists_own_causes_or_else_the_most_certain_one() {
        let findings = [finding(1, Some(2)), finding(3, Some(4)), finding(4, None)];
        let reported = verdict(4, 10, &findings);
        assert!(
            reported.starts_with("libfabric:4: nothing has moved for 10 seconds"),
            "{reported}"
        );
        assert!(
            reported.contains("process 3 is") && reported.contains("process 4 is"),
            "{reported}"
        );
        assert!(!reported.contains("process 1 is"), "{reported}");
        assert!(verdict(9, 10, &findings).contains("process 1 is"));
        assert!(!verdict(9, 10, &findings).contains("process 3 is"));
        assert!(verdict(9, 10, &[]).contains("no cause can be seen"));
    }
}
