//! Endpoints and processes at both times, as seen by rules.
use crate::layout::{ANY, EndpointStats, PeerStats, PendingOpStats, states};
use crate::origin::{AddressIndex, ProcessKey};
use crate::read::{StatsPage, StatsProcess, SystemStats};
use crate::show::address;
use std::collections::{HashMap, HashSet};

/// Minimum duration of a reported state in nanoseconds.
pub(super) const LASTING: u64 = 1_500_000_000;

/// Fraction of the interval without a processor above which a process counts as starved.
pub(super) const NO_PROCESSOR_SHARE: f64 = 0.9;

/// Nanoseconds within which a process making calls makes one. A process running for less than this
/// is undecided. One running longer without a call computes, even with a small share of the time.
pub(super) const BRIEFLY: u64 = 10_000_000;

/// One endpoint at both times.
pub(super) struct EndpointView<'f> {
    pub(super) process: &'f StatsProcess,
    pub(super) page: &'f StatsPage,
    pub(super) endpoint: &'f EndpointStats,
    /// Nothing came or went between both times, and nothing was posted.
    pub(super) quiet: bool,
    /// Progress iterations of its engine between both times.
    pub(super) iterations: u64,
    /// Progress iterations made by the application itself, as far as the endpoint was published.
    pub(super) calls: u64,
    /// The process ran at both times.
    pub(super) ran_on: bool,
    /// Fraction of the interval the process was runnable but not running.
    pub(super) runnable_share: f64,
    /// True if it was starved nearly all of the time, and ran too briefly for a statement about its
    /// activity.
    pub(super) cq_blocked: bool,
}

/// Processes at both times, and the second time (CLOCK_MONOTONIC, nanoseconds). Values searched for
/// are in hash tables: a process may publish very many peers, and a linear search for each would
/// take minutes.
pub(super) struct HangAnalysis<'f> {
    pub(super) views: Vec<EndpointView<'f>>,
    pub(super) now: u64,
    /// Indices in `views` by address, of endpoints serving no others.
    by_address: AddressIndex,
    /// Peer of an endpoint whose own statistics are available, by the indices of both.
    pub(super) peers_seen: HashMap<(usize, usize), &'f PeerStats>,
    /// Processes with an endpoint connecting over a core provider for a reportable time.
    pub(super) calling: HashSet<ProcessKey>,
    /// Processes with a core provider connecting for this time.
    pub(super) connecting: HashSet<ProcessKey>,
}

impl<'f> EndpointView<'f> {
    pub(super) fn peers(&self) -> &'f [PeerStats] {
        self.page.peers_of(self.endpoint)
    }

    /// Returns true if a thread of the process polls its queues, or sleeps until an event.
    pub(super) fn is_looking(&self) -> bool {
        // A thread asleep before may do something else now.
        self.iterations > 0 || (self.endpoint.asleep > 0 && self.process.system.polls)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.process.is_stopped()
    }

    pub(super) fn who(&self) -> String {
        self.process.who()
    }

    /// Returns the peer named by a `fi_addr_t` as text.
    pub(super) fn named(&self, name: u64) -> String {
        match self.page.peer_by_name(self.endpoint, name) {
            Some(peer) => format!("peer {name} ({})", address(&peer.address)),
            None => format!("peer {name}"),
        }
    }

    pub(super) fn receives(&self) -> impl Iterator<Item = &'f PendingOpStats> {
        self.endpoint.receives.iter().filter(|waiting| waiting.kind != 0)
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &'f PendingOpStats> {
        self.endpoint.messages.iter().filter(|waiting| waiting.kind != 0)
    }

    /// Returns true if a receive for one message waits.
    pub(super) fn waits_for_receive(&self) -> bool {
        waits_for_one(self.endpoint)
    }

    /// Returns true if all known receives wait for this peer, or for any peer.
    pub(super) fn awaits(&self, peer: &PeerStats) -> bool {
        self.waits_for_receive()
            && self.receives().all(|one| one.source == ANY || one.source == peer.name)
    }

    /// No message of another peer would do for its receives.
    pub(super) fn awaits_alone(&self, peer: &PeerStats) -> bool {
        let named = self.receives().all(|one| one.source == peer.name);
        self.awaits(peer) && (named || self.peers().len() == 1)
    }

    /// Messages of this peer came, and no receive takes them.
    pub(super) fn keeps_some_of(&self, peer: &PeerStats) -> bool {
        self.messages().any(|message| message.source == peer.name)
    }

    /// Returns true if only threads of the library poll the queues: the application runs, and makes
    /// no call.
    pub(super) fn is_left_to_threads(&self) -> bool {
        self.endpoint.thread_iterations > 0 && self.calls == 0 && self.ran_on
    }

    /// Returns true if the endpoint serves a utility provider's: messages and receives are in the
    /// statistics of the latter.
    pub(super) fn serves(&self) -> bool {
        self.endpoint.serves != 0
    }

    /// Returns the time since the last publication.
    pub(super) fn unseen(&self, now: u64) -> u64 {
        now.saturating_sub(self.endpoint.written)
    }
}

/// Returns true if a receive for one message waits.
pub(super) fn waits_for_one(endpoint: &EndpointStats) -> bool {
    endpoint.receives.iter().any(|waiting| waiting.kind != 0)
}

/// Returns true if local operations wait for a peer.
pub(super) fn has_pending(peer: &PeerStats) -> bool {
    peer.unsent > 0
        || peer.unacknowledged > 0
        || peer.announced > 0
        || peer.unanswered > 0
        || peer.incomplete > 0
}

/// Returns the operations waiting for a peer as text.
pub(super) fn pending(peer: &PeerStats) -> String {
    let parts = [
        (peer.unsent, "not sent yet"),
        (peer.unacknowledged, "sent and not confirmed"),
        (peer.announced, "announced and not asked for"),
        (peer.unanswered, "requests without an answer"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let mut text: Vec<_> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    if peer.incomplete > 0 {
        text.push(format!("{} bytes of a message have not come", peer.incomplete));
    }
    text.join(", ")
}

/// Returns the fraction of the interval the process was runnable but not running; 0 if it slept.
fn compute_runnable_share(before: &SystemStats, after: &SystemStats) -> f64 {
    let could_run = [before, after].iter().all(|system| system.threads.starts_with('R'));
    let (Some(then), Some(now)) = (before.read_at, after.read_at) else { return 0.0 };
    let (Some(old), Some(ran)) = (before.ran, after.ran) else { return 0.0 };
    if !could_run || before.gave_way != after.gave_way {
        return 0.0;
    }
    let nanos = now.saturating_duration_since(then).as_nanos() as f64;
    1.0 - (ran.saturating_sub(old) as f64 / nanos.max(1.0)).min(1.0)
}

/// Returns true if a process was starved between both reads, so little is known of it.
fn lacks_processor(before: &SystemStats, after: &SystemStats) -> bool {
    let ran = after.ran.zip(before.ran).map(|(now, then)| now.saturating_sub(then));
    compute_runnable_share(before, after) > NO_PROCESSOR_SHARE
        && ran.is_some_and(|ran| ran < BRIEFLY)
}

/// Returns the processes starved between both reads, with little known of them.
pub fn cq_blocked<'p>(
    before: &'p [StatsProcess],
    after: &'p [StatsProcess],
) -> impl Iterator<Item = &'p StatsProcess> {
    let before = by_key(before);
    after.iter().filter(move |process| {
        before.get(&process.key()).is_some_and(|old| lacks_processor(&old.system, &process.system))
    })
}

/// Processes by their key.
pub fn by_key(processes: &[StatsProcess]) -> HashMap<ProcessKey, &StatsProcess> {
    processes.iter().rev().map(|process| (process.key(), process)).collect()
}

/// Returns the endpoints of processes read twice.
pub(super) fn views<'f>(
    before: &[StatsProcess],
    after: &'f [StatsProcess],
) -> Vec<EndpointView<'f>> {
    let mut views = Vec::new();
    let before = by_key(before);
    for process in after {
        let earlier = before.get(&process.key()).copied();
        let runnable_share =
            earlier.map_or(0.0, |earlier| compute_runnable_share(&earlier.system, &process.system));
        let cq_blocked = earlier.is_some_and(|old| lacks_processor(&old.system, &process.system));
        let runs = |process: &StatsProcess| process.system.threads.starts_with('R');
        let ran_on = runs(process) && earlier.is_some_and(runs);
        for (index, page) in process.pages.iter().enumerate() {
            let earlier = earlier.and_then(|earlier| earlier.pages.get(index));
            for endpoint in &page.endpoints {
                let old = earlier.and_then(|earlier| {
                    let same = |old: &&EndpointStats| old.serial == endpoint.serial;
                    Some((earlier, earlier.endpoints.iter().find(same)?))
                });
                let own_calls =
                    |of: &EndpointStats| of.iterations.wrapping_sub(of.thread_iterations);
                let (quiet, iterations) = match old {
                    Some((earlier, old)) => {
                        let iterations_of = |page: &StatsPage| {
                            page.head.iterations.get(endpoint.engine as usize).copied().unwrap_or(0)
                        };
                        let same = earlier.passed(old) == page.passed(endpoint)
                            && old.posted == endpoint.posted
                            && old.unexpected == endpoint.unexpected;
                        (same, iterations_of(page).wrapping_sub(iterations_of(earlier)))
                    }
                    None => (false, 1),
                };
                // An application's turns are shown now and then, and those of threads at once.
                let calls = match old {
                    Some((_, old)) if old.written != endpoint.written => {
                        own_calls(endpoint).wrapping_sub(own_calls(old))
                    }
                    _ => iterations,
                };
                views.push(EndpointView {
                    process,
                    page,
                    endpoint,
                    quiet,
                    iterations,
                    calls,
                    ran_on,
                    runnable_share,
                    cq_blocked,
                });
            }
        }
    }
    views
}

impl<'f> HangAnalysis<'f> {
    pub(super) fn new(views: Vec<EndpointView<'f>>, now: u64) -> Self {
        let (mut by_address, mut peers_seen) = (AddressIndex::default(), HashMap::new());
        for (index, view) in views.iter().enumerate() {
            if !view.serves() {
                by_address.insert(view.process.network(), &view.endpoint.address, index);
            }
        }
        let (mut calling, mut connecting) = (HashSet::new(), HashSet::new());
        for (index, view) in views.iter().enumerate() {
            for peer in view.peers() {
                if let Some(other) = by_address.find(view.process.network(), &peer.address) {
                    peers_seen.entry((index, other)).or_insert(peer);
                }
                let lasts = now.saturating_sub(peer.since) > LASTING;
                match (peer.state & 0xff, view.serves()) {
                    (states::CALLING, false) if lasts => calling.insert(view.process.key()),
                    (states::CONNECTING, true) if lasts => connecting.insert(view.process.key()),
                    _ => false,
                };
            }
        }
        Self { views, now, by_address, peers_seen, calling, connecting }
    }

    /// Returns the index of the endpoint known to this one by an address, among the ones with
    /// statistics.
    pub(super) fn index_at(&self, view: &EndpointView<'_>, wanted: &[u64; 8]) -> Option<usize> {
        self.by_address.find(view.process.network(), wanted)
    }

    /// Returns the endpoint known to this one by an address.
    pub(super) fn at(
        &self,
        view: &EndpointView<'_>,
        wanted: &[u64; 8],
    ) -> Option<&EndpointView<'f>> {
        self.index_at(view, wanted).and_then(|index| self.views.get(index))
    }
}
