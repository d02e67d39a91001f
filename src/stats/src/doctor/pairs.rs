//! Rules about two endpoints with statistics, and about cycles of processes.
use super::cause::HangCause;
use super::finding::FindingList;
use super::view::{EndpointView, HangAnalysis, LASTING, NO_PROCESSOR_SHARE, has_pending, pending};
use crate::layout::{PeerStats, states};
use crate::origin::ProcessKey;
use crate::read::StatsProcess;
use crate::show::{receive, time};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Maximum number of processes of a cycle to name.
const MOST_NAMED: usize = 16;

/// Applies the rules about two endpoints with statistics.
pub(super) fn pairs(analysis: &HangAnalysis<'_>, list: &mut FindingList) {
    let now = analysis.now;
    // Pairs of processes, the first waiting only for a message of the second, both polling
    // their queues.
    let mut alone = Vec::new();
    for (index, view) in analysis.views.iter().enumerate() {
        if !view.quiet || view.is_stopped() || view.serves() {
            continue;
        }
        for peer in view.peers() {
            let Some(at) = analysis.index_at(view, &peer.address) else { continue };
            let other = &analysis.views[at];
            if other.is_stopped() {
                continue;
            }
            let connected = peer.state & 0xff == states::CONNECTED;
            let has_pending_data = has_pending(peer) || !connected;
            let awaited = view.awaits(peer);
            let own = other.process.key() == view.process.key();
            let [viewer, asked] = [view, other].map(|view| view.process.key());
            let waits = view.is_looking() && !own && (has_pending_data || awaited);
            let lasts = now.saturating_sub(peer.moved) > LASTING;
            let silent = waits && !other.is_looking() && other.unseen(now) > LASTING;
            let computes = waits && awaited && lasts && other.is_left_to_threads();
            if (silent || computes) && other.cq_blocked {
                list.add(HangCause::NoProcessor, asked, Some(viewer), || {
                    let cause = format!(
                        "{} could run and gets no processor ({:.0} % of the time), and {} waits for it",
                        other.who(),
                        100.0 * other.runnable_share.min(1.0),
                        view.who()
                    );
                    let seen = format!(
                        "it may use {} processors, and others run there",
                        other.process.system.processors
                    );
                    (cause, seen)
                });
                continue;
            }
            if silent {
                let text = || silence(analysis.now, view, other, peer);
                list.add(HangCause::NoCalls, asked, Some(viewer), text);
                continue;
            }
            if computes {
                list.add(HangCause::Computes, asked, Some(viewer), || {
                    let cause = format!(
                        "{} computes and makes no call, and {} waits for a message of it",
                        other.who(),
                        view.who()
                    );
                    (cause, "a thread of the library makes progress for it".into())
                });
                continue;
            }
            if !view.is_looking() || !other.is_looking() || !connected {
                continue;
            }
            let back = analysis.peers_seen.get(&(at, index)).filter(|back| {
                !own && other.quiet && view.awaits_alone(peer) && other.awaits_alone(back)
            });
            let crossed =
                back.is_some_and(|back| view.keeps_some_of(peer) && other.keeps_some_of(back));
            if has_pending(peer) && lasts && !crossed {
                list.add(HangCause::NotTaken, viewer, Some(asked), || {
                    let cause =
                        format!("{} does not take what {} has for it", other.who(), view.who());
                    (cause, pending(peer))
                });
            } else if awaited && !own {
                let seen = || {
                    let first = view.receives().next().copied().unwrap_or_default();
                    receive(&first, |name| view.named(name))
                };
                if back.is_some() {
                    if asked < viewer {
                        // Said of the other one already.
                        continue;
                    }
                    let rule = if crossed { HangCause::Crossed } else { HangCause::Deadlock };
                    list.add(rule, viewer, Some(asked), || {
                        let second = other.receives().next().copied().unwrap_or_default();
                        let cause = format!(
                            "{} and {} wait for a message of each other",
                            view.who(),
                            other.who()
                        );
                        let seen = format!(
                            "the one receives {}, the other {}",
                            seen(),
                            receive(&second, |name| other.named(name))
                        );
                        (cause, seen)
                    });
                } else {
                    if view.awaits_alone(peer) {
                        alone.push((viewer, asked));
                    }
                    list.add(HangCause::NothingSent, viewer, Some(asked), || {
                        let cause = format!(
                            "{} waits for a message that {} has not sent",
                            view.who(),
                            other.who()
                        );
                        (cause, seen())
                    });
                }
            }
        }
    }
    ring(analysis, &alone, list);
}

/// Returns the finding about a process without calls while another one waits for it.
fn silence(
    now: u64,
    view: &EndpointView<'_>,
    other: &EndpointView<'_>,
    peer: &PeerStats,
) -> (String, String) {
    let how = match other.process.system.threads.chars().next() {
        Some('R') if other.runnable_share > NO_PROCESSOR_SHARE => format!(
            "it computes, and has a processor for {:.0} % of the time",
            100.0 * (1.0 - other.runnable_share)
        ),
        Some('R') => "it computes".to_string(),
        Some('D') => "it waits for a device".to_string(),
        _ if other.process.system.waits_in.is_empty() => "it sleeps".to_string(),
        _ => format!("it sleeps in {}", other.process.system.waits_in),
    };
    let cause = format!(
        "{} has made no progress call for {} ({how}), and {} waits for it",
        other.who(),
        time(other.unseen(now)),
        view.who()
    );
    let pending = pending(peer);
    let seen = match view.receives().next() {
        _ if !pending.is_empty() => pending,
        Some(one) => format!("a receive waits: {}", receive(one, |name| view.named(name))),
        None => "the connection is not made".into(),
    };
    (cause, seen)
}

/// Finds a cycle of processes, each waiting for the next, and the last for the first.
fn ring(analysis: &HangAnalysis<'_>, waits: &[(ProcessKey, ProcessKey)], list: &mut FindingList) {
    let Some(ring) = first_ring(waits) else { return };
    let name = |key: &ProcessKey, name: fn(&StatsProcess) -> String| {
        let view = analysis.views.iter().find(|view| view.process.key() == *key);
        view.map_or_else(|| format!("process {}", key.pid), |view| name(view.process))
    };
    list.add(HangCause::Deadlock, ring[0], ring.get(1).copied(), || {
        let first = name(&ring[0], StatsProcess::who);
        let mut others: Vec<_> =
            ring.iter().skip(1).take(MOST_NAMED).map(|key| name(key, StatsProcess::number)).collect();
        if ring.len() > MOST_NAMED + 1 {
            others.push(format!("{} more", ring.len() - MOST_NAMED - 1));
        }
        let cause = format!(
            "{} processes wait for messages of each other, in a ring: {first} waits for {}, and that for {first}",
            ring.len(),
            others.join(", that for "),
        );
        (cause, "each receives from the next alone".into())
    });
}

/// Returns the first cycle among processes waiting for others; only the first wait of a process
/// counts.
pub(super) fn first_ring<K: Copy + Eq + Hash>(waits: &[(K, K)]) -> Option<Vec<K>> {
    let mut next = HashMap::new();
    for (waiter, of) in waits {
        next.entry(*waiter).or_insert(*of);
    }
    // From where each way was gone, by its first process.
    let (mut gone, mut in_rings) = (HashMap::new(), HashSet::new());
    for (first, _) in waits {
        if gone.contains_key(first) {
            continue;
        }
        let mut at = *first;
        while !gone.contains_key(&at) {
            gone.insert(at, *first);
            let Some(of) = next.get(&at) else { break };
            at = *of;
        }
        // The way came to where it was before.
        if gone.get(&at) == Some(first) && next.contains_key(&at) {
            while in_rings.insert(at) {
                at = next[&at];
            }
        }
    }
    let (first, _) = waits.iter().find(|(pid, _)| in_rings.contains(pid))?;
    let mut ring = vec![*first];
    let mut at = next[first];
    while at != *first {
        ring.push(at);
        at = next[&at];
    }
    Some(ring)
}
