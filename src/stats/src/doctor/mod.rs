//! Hang analysis: rules over published statistics of processes, read twice.
//!
//! A rule considers only state equal at both times, so a job with flowing messages has no finding.
//! Findings are ordered by certainty of the cause: a stopped process before the processes waiting
//! for it.
//!
//! [`cause`] is the table of causes. The rules are, by family, in [`processes`], [`endpoints`] and
//! [`pairs`]; [`waits`] counts the processes waiting for a root cause.
mod cause;
mod endpoints;
mod finding;
mod follow;
mod pairs;
mod processes;
mod view;
mod waits;

pub use cause::HangCause;
pub use finding::{Diagnosis, Finding};
pub use follow::with_peers;
pub use view::{by_key, cq_blocked};

use crate::layout::{EndpointStats, peer_bits, words_text};
use crate::read::{StatsPage, StatsProcess};
use finding::FindingList;
use std::cmp::Reverse;
use std::collections::HashSet;
use view::{HangAnalysis, has_pending, views, waits_for_one};
use waits::WaitGraph;

/// Most findings of one examination.
const MOST: usize = 100;

/// Analyses the statistics of processes read twice. `now` is the time of the second read, in
/// nanoseconds of CLOCK_MONOTONIC.
pub fn examine(before: &[StatsProcess], after: &[StatsProcess], now: u64) -> Diagnosis {
    let analysis = HangAnalysis::new(views(before, after), now);
    let mut found = FindingList::default();
    processes::processes(before, after, &mut found);
    endpoints::endpoints(&analysis, &mut found);
    pairs::pairs(&analysis, &mut found);
    let mut findings = found.into_list();
    let of_rule = |rule, findings: &[Finding]| -> HashSet<_> {
        findings.iter().filter(|one| one.rule == rule).map(|one| one.process).collect()
    };
    let mismatched = of_rule(HangCause::Mismatch, &findings);
    findings.retain(|one| one.rule != HangCause::NothingSent || !mismatched.contains(&one.process));
    let graph = WaitGraph::new(&analysis);
    graph.count_waiters(&mut findings);
    graph.find_unseen(&analysis, &mut findings);
    // A stopped process that no process waits for may be of another job.
    let is_idle_stop = |one: &Finding| one.rule == HangCause::Stopped && one.waiters == 0;
    findings.sort_by_key(|one| (is_idle_stop(one), one.rule, Reverse(one.waiters), one.process));
    let left_out = findings.len().saturating_sub(MOST);
    findings.truncate(MOST);
    Diagnosis { findings, left_out }
}

/// Returns the values changing with any activity at the waiting and polled endpoints of a process,
/// or `None` if there is no such endpoint.
pub fn standstill(before: &StatsProcess, after: &StatsProcess) -> Option<Vec<[u64; 10]>> {
    let mut still = Vec::new();
    for (old, page) in before.pages.iter().zip(&after.pages) {
        for endpoint in &page.endpoints {
            let iterations_of =
                |page: &StatsPage| page.head.iterations.get(endpoint.engine as usize).copied();
            let looks = iterations_of(old) != iterations_of(page) || endpoint.asleep > 0;
            if endpoint.serves == 0 && looks && is_waiting(page, endpoint) {
                let [sent, sent_bytes, received, received_bytes] = page.passed(endpoint);
                let [[posted, tagged], [buffered, buffered_tagged]] =
                    [endpoint.posted, endpoint.unexpected];
                let serial = endpoint.serial;
                still.push([
                    serial,
                    sent,
                    sent_bytes,
                    received,
                    received_bytes,
                    posted,
                    tagged,
                    buffered,
                    buffered_tagged,
                    endpoint.rx_queue,
                ]);
            }
        }
    }
    (!still.is_empty()).then_some(still)
}

/// Returns true if an endpoint waits for anything, without details.
pub fn is_waiting(page: &StatsPage, endpoint: &EndpointStats) -> bool {
    waits_for_one(endpoint)
        || endpoint.in_flight > 0
        || page
            .peers_of(endpoint)
            .iter()
            .any(|peer| has_pending(peer) || peer.state & peer_bits::BLOCKED != 0)
}

/// The provider's name and the endpoint's address.
pub fn title(page: &StatsPage, endpoint: &EndpointStats) -> String {
    format!("{} {}", page.provider(), words_text(&endpoint.address))
}

#[cfg(test)]
mod tests;
