//! Processes waiting for others, directly or through others.
use super::cause::HangCause;
use super::finding::Finding;
use super::view::{EndpointView, HangAnalysis, LASTING, has_pending};
use crate::layout::{ANY, PeerStats, states};
use crate::origin::{ProcessKey, ip_of};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

/// Maximum number of waits followed for all counts; beyond it only direct ones are counted.
const MOST_STEPS: usize = 20_000_000;

/// Maximum number of findings about hosts without statistics.
const MOST_UNSEEN: usize = 20;

/// Waiting processes by the process waited for.
pub(super) struct WaitGraph {
    waiters: HashMap<ProcessKey, Vec<ProcessKey>>,
}

/// Processes waiting for peers at addresses without statistics, by the address of their host.
type UnseenHosts = BTreeMap<IpAddr, HashSet<ProcessKey>>;

impl WaitGraph {
    /// Returns the waits of all endpoints without any change between both reads.
    pub(super) fn new(analysis: &HangAnalysis<'_>) -> Self {
        let mut waits = HashSet::new();
        for view in analysis.views.iter().filter(|view| is_waiter(view)) {
            for peer in view.peers() {
                let Some(other) = analysis.at(view, &peer.address) else { continue };
                if other.process.key() != view.process.key() && waits_for(view, peer, other) {
                    waits.insert((other.process.key(), view.process.key()));
                }
            }
        }
        Self::of_waits(waits)
    }

    /// Returns a graph of pairs: a process, and another one waiting for it.
    fn of_waits(waits: impl IntoIterator<Item = (ProcessKey, ProcessKey)>) -> Self {
        let mut waiters: HashMap<_, Vec<_>> = HashMap::new();
        waits.into_iter().for_each(|(of, waiter)| waiters.entry(of).or_default().push(waiter));
        Self { waiters }
    }

    /// Adds findings about hosts without statistics, in an analysis of several hosts.
    pub(super) fn find_unseen(&self, analysis: &HangAnalysis<'_>, findings: &mut Vec<Finding>) {
        let mut steps = MOST_STEPS;
        let mut hosts: Vec<_> = unseen_hosts(analysis).into_iter().collect();
        hosts.sort_by_key(|(_, waiters)| Reverse(waiters.len()));
        for (host, waiters) in hosts.into_iter().take(MOST_UNSEEN) {
            let Some(first) = waiters.iter().min().copied() else { continue };
            let name = analysis.views.iter().find(|view| view.process.key() == first);
            let name = name.map_or_else(String::new, EndpointView::who);
            let direct = waiters.len();
            let count = self.reached(waiters, &mut steps).max(direct);
            let cause = match count {
                1 => format!(
                    "{name} waits for a process at {host}, of which there are no statistics"
                ),
                _ => format!(
                    "{count} processes wait, directly or indirectly, for processes at {host}, of which there are no \
                     statistics"
                ),
            };
            let seen = format!("{direct} wait directly, the first of them is {name}");
            let rule = HangCause::Unseen;
            findings.push(Finding {
                rule,
                process: first,
                waiter: None,
                waiters: count,
                cause,
                seen,
            });
        }
    }

    /// Adds the numbers of waiting processes to the findings about root causes, processes
    /// without waits of their own.
    pub(super) fn count_waiters(&self, findings: &mut [Finding]) {
        let (mut steps, mut counted) = (MOST_STEPS, HashMap::new());
        for finding in findings {
            if !is_root(finding.rule) {
                continue;
            }
            let process = finding.process;
            let count = *counted.entry(process).or_insert_with(|| self.count(process, &mut steps));
            finding.waiters = count;
            finding.cause += &match (count, finding.rule) {
                (0, _) => String::new(),
                (1, HangCause::Stopped) => ", and 1 process waits for it".into(),
                // The cause names it.
                (1, _) => String::new(),
                (count, HangCause::Stopped) => {
                    format!(", and {count} processes wait for it directly or indirectly")
                }
                (count, _) => format!(" ({count} processes wait for it directly or indirectly)"),
            };
        }
    }

    /// Counts the processes waiting for this one, directly or through others.
    fn count(&self, process: ProcessKey, steps: &mut usize) -> usize {
        let direct = self.waiters.get(&process).map_or(0, Vec::len);
        direct.max(self.reached(HashSet::from([process]), steps) - 1)
    }

    /// Counts these processes and the ones waiting for them, directly or through others.
    fn reached(&self, mut known: HashSet<ProcessKey>, steps: &mut usize) -> usize {
        let mut next: Vec<_> = known.iter().copied().collect();
        while let Some(of) = next.pop() {
            for waiter in self.waiters.get(&of).into_iter().flatten() {
                if *steps == 0 {
                    return known.len();
                }
                *steps -= 1;
                if known.insert(*waiter) {
                    next.push(*waiter);
                }
            }
        }
        known.len()
    }
}

/// Returns true for causes in a process without waits of its own.
fn is_root(rule: HangCause) -> bool {
    matches!(
        rule,
        HangCause::Stopped | HangCause::NoProcessor | HangCause::NoCalls | HangCause::Computes
    )
}

/// Returns the waits for hosts without statistics; none in an analysis of one host.
fn unseen_hosts(analysis: &HangAnalysis<'_>) -> UnseenHosts {
    let mut hosts = UnseenHosts::new();
    for view in
        analysis.views.iter().filter(|view| view.process.origin.host != 0 && is_waiter(view))
    {
        for peer in view.peers() {
            let is_waited_for = has_pending(peer) || view.awaits_alone(peer);
            let lasts = analysis.now.saturating_sub(peer.moved) > LASTING;
            if !is_waited_for || !lasts || analysis.at(view, &peer.address).is_some() {
                continue;
            }
            if let Some(host) = ip_of(&peer.address).filter(|host| !host.is_loopback()) {
                hosts.entry(host).or_default().insert(view.process.key());
            }
        }
    }
    hosts
}

fn is_waiter(view: &EndpointView<'_>) -> bool {
    view.quiet && !view.is_stopped() && !view.serves() && view.is_looking()
}

/// Returns true if an endpoint waits for this peer. Receives from any sender wait for the peers
/// without progress.
fn waits_for(view: &EndpointView<'_>, peer: &PeerStats, other: &EndpointView<'_>) -> bool {
    let is_still = other.is_stopped() || !other.is_looking() || other.is_left_to_threads();
    let is_connected = peer.state & 0xff == states::CONNECTED;
    has_pending(peer)
        || (!is_connected && is_still)
        || view.awaits(peer) && (is_still || view.receives().all(|one| one.source != ANY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { host: pid % 3, pid }
    }

    #[test]
    fn waiters_are_counted_through_chains_and_cycles() {
        let chain = (1..512).map(|pid| (key(pid), key(pid + 1)));
        let graph = WaitGraph::of_waits(chain.chain([(key(4), key(2)), (key(900), key(901))]));
        let count = |pid| graph.count(key(pid), &mut { MOST_STEPS });
        assert_eq!([count(1), count(511), count(512), count(900)], [511, 1, 0, 1]);
        // A process of the cycle waits for itself through the others, which does not count.
        assert_eq!(count(2), 510);
        assert_eq!(graph.count(key(1), &mut 0), 1);
    }
}
