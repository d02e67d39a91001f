//! Hang analysis: rules over published statistics of processes, read twice.
//!
//! A rule considers only state equal at both times, so a job with flowing messages has no finding.
//! Findings are ordered by certainty of the cause: a stopped process before the processes waiting
//! for it.
use crate::layout::{ANY, EndpointStats, PeerStats, PendingOpStats, peer_bits, states, words_text};
use crate::read::{StatsPage, StatsProcess, SystemStats};
use crate::show::{address, receive, short, time};
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write};

/// The rules, the surest cause first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HangCause {
    /// A process is stopped by a signal or a debugger.
    Stopped,
    /// A peer cannot be reached, or refuses.
    Unreachable,
    /// A connection is not made to its end.
    HalfMade,
    /// A connection was lost, and receives wait.
    PeerGone,
    /// A process may open no more descriptors.
    Descriptors,
    /// A process may have no more memory.
    Memory,
    /// A process could run, and gets no processor.
    NoProcessor,
    /// A process makes no library call while others wait for it.
    NoCalls,
    /// A process computes while others wait for it, and a thread of the library makes progress.
    Computes,
    /// A completion queue is full.
    QueueFull,
    /// Completions are available and not read.
    QueueUnread,
    /// Two processes wait for each other, both with unexpected messages of the other.
    Crossed,
    /// A receive waits, and only unmatched messages are available.
    Mismatch,
    /// No more messages are accepted because of too many unexpected ones.
    TakesNoMore,
    /// Messages without a posted receive are available.
    NoReceive,
    /// Two processes wait for each other.
    Deadlock,
    /// Bytes wait to be sent and the peer does not accept them.
    NotTaken,
    /// A receive waits for a message never sent.
    NothingSent,
}

impl HangCause {
    /// The rule's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Unreachable => "unreachable",
            Self::HalfMade => "half-made",
            Self::PeerGone => "peer-gone",
            Self::Descriptors => "descriptors",
            Self::Memory => "memory",
            Self::NoProcessor => "no-processor",
            Self::NoCalls => "no-calls",
            Self::Computes => "computes",
            Self::QueueFull => "queue-full",
            Self::QueueUnread => "queue-unread",
            Self::Crossed => "crossed",
            Self::Mismatch => "mismatch",
            Self::TakesNoMore => "takes-no-more",
            Self::NoReceive => "no-receive",
            Self::Deadlock => "deadlock",
            Self::NotTaken => "not-taken",
            Self::NothingSent => "nothing-sent",
        }
    }

    /// Returns the recommended action.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Stopped => "let it go on (kill -CONT, or the debugger's 'continue')",
            Self::Unreachable => {
                "see that the peer runs, that its address is of a network both hosts have (FI_TCP_IFACE), \
                 and that no firewall is between them (FI_TCP_PORT_LOW_RANGE, FI_TCP_PORT_HIGH_RANGE)"
            }
            Self::HalfMade => {
                "if it lasts: a firewall drops what goes there, or the peer's process makes no progress; \
                 run fi_doctor on the peer's host as well"
            }
            Self::PeerGone => {
                "look why that process ended (its output, 'dmesg' for the OOM killer); what it owed \
                 will not come, so end the job"
            }
            Self::Descriptors => "raise 'ulimit -n': each connected peer takes a descriptor",
            Self::Memory => "raise 'ulimit -v', or let the program use less",
            Self::NoProcessor => {
                "start fewer processes on these processors, or end what else runs there; see that ranks are \
                 not all bound to the same ones ('taskset -p PID', mpirun --report-bindings)"
            }
            Self::NoCalls => {
                "with manual progress each process has to read its queues now and then; where it computes \
                 or sleeps so long, ask for FI_PROGRESS_AUTO, or poll in between ('gdb -p PID' shows where it is)"
            }
            Self::Computes => {
                "what is waited for comes when it is done with that ('gdb -p PID' shows where it is); let it send \
                 before, or others wait for less"
            }
            Self::QueueFull => {
                "read the queue: nothing more is received or sent before there is room; or make it larger \
                 (fi_cq_attr.size)"
            }
            Self::QueueUnread => {
                "the program reads another queue, or counts on a counter: what it waits for may be \
                 among those entries"
            }
            Self::Crossed => {
                "both send and neither receives, or with other tags than the other has: compare what both sent with \
                 what they receive (MPI: two MPI_Ssend, or two MPI_Send of large messages)"
            }
            Self::Mismatch => {
                "compare tag, ignored bits and source of the receive with what was sent, on both sides"
            }
            Self::TakesNoMore => {
                "the receiver has to post receives that these messages fit, or the sender to wait until it does"
            }
            Self::NoReceive => {
                "the receiver has to post a receive for it; look what it does instead"
            }
            Self::Deadlock => {
                "one of the two has to send first, or to receive without waiting (MPI: MPI_Sendrecv, MPI_Irecv)"
            }
            Self::NotTaken => {
                "the peer does not read: it makes no progress, or has no memory for more messages without a \
                 receive; run fi_doctor on the peer's host as well"
            }
            Self::NothingSent => {
                "look at the sender: it has sent nothing that this receive would take"
            }
        }
    }
}

/// Result of an analysis rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: HangCause,
    /// Process causing the hang.
    pub pid: u32,
    /// Process waiting because of it, if it is another one with readable statistics.
    pub waiter: Option<u32>,
    /// The cause, in a line.
    pub cause: String,
    /// Observation.
    pub seen: String,
}

impl Finding {
    /// Returns true if the process is the cause, or waits because of it.
    pub fn concerns(&self, pid: u32) -> bool {
        self.pid == pid || self.waiter == Some(pid)
    }
}

impl fmt::Display for Finding {
    /// Writes the cause, the observation, and the recommended action, as complete lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.cause)?;
        if !self.seen.is_empty() {
            writeln!(f, "    seen: {}", self.seen)?;
        }
        writeln!(f, "    do:   {}", self.rule.advice())
    }
}

/// Minimum duration of a reported state in nanoseconds.
const LASTING: u64 = 1_500_000_000;

/// Remaining bytes within the memory limit below which a process counts as out of memory.
const MEMORY_LEFT: u64 = 1 << 20;

/// Fraction of the interval without a processor above which a process counts as starved.
const KEPT_WAITING: f64 = 0.9;

/// Nanoseconds within which a process making calls makes one. A process running for less than this
/// is undecided. One running longer without a call computes, even with a small share of the time.
const BRIEFLY: u64 = 10_000_000;

/// Maximum number of processes of a cycle to name.
const MOST_NAMED: usize = 16;

/// Most findings of one examination.
const MOST: usize = 100;

/// One endpoint at both times.
struct EndpointView<'f> {
    process: &'f StatsProcess,
    page: &'f StatsPage,
    endpoint: &'f EndpointStats,
    /// Nothing came or went between both times, and nothing was posted.
    quiet: bool,
    /// Progress iterations of its engine between both times.
    turns: u64,
    /// Progress iterations made by the application itself, as far as the endpoint was published.
    calls: u64,
    /// The process ran at both times.
    ran_on: bool,
    /// Fraction of the interval the process was runnable but not running.
    kept_waiting: f64,
    /// True if it was starved nearly all of the time, and ran too briefly for a statement about its
    /// activity.
    cq_blocked: bool,
}

/// Processes at both times, and the second time (CLOCK_MONOTONIC, nanoseconds). Values searched for
/// are in hash tables: a process may publish very many peers, and a linear search for each would
/// take minutes.
struct HangAnalysis<'f> {
    views: Vec<EndpointView<'f>>,
    now: u64,
    /// Indices in `views` by address, of endpoints serving no others.
    by_address: HashMap<[u64; 8], usize>,
    /// Peer of an endpoint whose own statistics are available, by the indices of both.
    peers_seen: HashMap<(usize, usize), &'f PeerStats>,
    /// Processes with an endpoint connecting over a core provider for a reportable time.
    calling: HashSet<u32>,
    /// Processes with a core provider connecting for this time.
    connecting: HashSet<u32>,
}

/// Findings, one for each rule and process.
#[derive(Default)]
struct FindingList {
    known: HashSet<(HangCause, u32)>,
    list: Vec<Finding>,
}

impl FindingList {
    /// Adds a finding. Calls `text` for its cause and observation if it is the first of its kind.
    fn add(
        &mut self,
        rule: HangCause,
        pid: u32,
        waiter: Option<u32>,
        text: impl FnOnce() -> (String, String),
    ) {
        if self.known.insert((rule, pid)) {
            let (cause, seen) = text();
            self.list.push(Finding { rule, pid, waiter, cause, seen });
        }
    }
}

/// Result of an analysis.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// The surest causes.
    pub findings: Vec<Finding>,
    /// Number of further findings.
    pub left_out: usize,
}

/// Errors for unreachable peers: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH.
const UNREACHED: [(u64, &str); 4] = [
    (111, "the connection is refused"),
    (110, "no answer comes"),
    (113, "there is no way to the host"),
    (101, "there is no way to the network"),
];

impl<'f> EndpointView<'f> {
    fn peers(&self) -> &'f [PeerStats] {
        self.page.peers_of(self.endpoint)
    }

    /// Returns true if a thread of the process polls its queues, or sleeps until an event.
    fn is_looking(&self) -> bool {
        // A thread asleep before may do something else now.
        self.turns > 0 || (self.endpoint.asleep > 0 && self.process.system.polls)
    }

    fn is_stopped(&self) -> bool {
        self.process.is_stopped()
    }

    fn who(&self) -> String {
        self.process.who()
    }

    /// Returns the peer named by a `fi_addr_t` as text.
    fn named(&self, name: u64) -> String {
        match self.page.peer_by_name(self.endpoint, name) {
            Some(peer) => format!("peer {name} ({})", address(&peer.address)),
            None => format!("peer {name}"),
        }
    }

    fn receives(&self) -> impl Iterator<Item = &'f PendingOpStats> {
        self.endpoint.receives.iter().filter(|waiting| waiting.kind != 0)
    }

    fn messages(&self) -> impl Iterator<Item = &'f PendingOpStats> {
        self.endpoint.messages.iter().filter(|waiting| waiting.kind != 0)
    }

    /// Returns true if a receive for one message waits.
    fn waits_for_receive(&self) -> bool {
        waits_for_one(self.endpoint)
    }

    /// Returns true if all known receives wait for this peer, or for any peer.
    fn awaits(&self, peer: &PeerStats) -> bool {
        self.waits_for_receive()
            && self.receives().all(|one| one.source == ANY || one.source == peer.name)
    }

    /// No message of another peer would do for its receives.
    fn awaits_alone(&self, peer: &PeerStats) -> bool {
        let named = self.receives().all(|one| one.source == peer.name);
        self.awaits(peer) && (named || self.peers().len() == 1)
    }

    /// Messages of this peer came, and no receive takes them.
    fn keeps_some_of(&self, peer: &PeerStats) -> bool {
        self.messages().any(|message| message.source == peer.name)
    }

    /// Returns true if only threads of the library poll the queues: the application runs, and makes
    /// no call.
    fn is_left_to_threads(&self) -> bool {
        self.endpoint.visits > 0 && self.calls == 0 && self.ran_on
    }

    /// Returns true if the endpoint serves a utility provider's: messages and receives are in the
    /// statistics of the latter.
    fn serves(&self) -> bool {
        self.endpoint.serves != 0
    }

    /// Returns the time since the last publication.
    fn unseen(&self, now: u64) -> u64 {
        now.saturating_sub(self.endpoint.written)
    }
}

/// Returns true if a receive for one message waits.
fn waits_for_one(endpoint: &EndpointStats) -> bool {
    endpoint.receives.iter().any(|waiting| waiting.kind != 0)
}

/// Returns true if local operations wait for a peer.
fn is_owed(peer: &PeerStats) -> bool {
    peer.unsent > 0
        || peer.unacknowledged > 0
        || peer.announced > 0
        || peer.unanswered > 0
        || peer.incomplete > 0
}

/// Returns the operations waiting for a peer as text.
fn pending(peer: &PeerStats) -> String {
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
fn share_kept_waiting(before: &SystemStats, after: &SystemStats) -> f64 {
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
fn is_starved(before: &SystemStats, after: &SystemStats) -> bool {
    let ran = after.ran.zip(before.ran).map(|(now, then)| now.saturating_sub(then));
    share_kept_waiting(before, after) > KEPT_WAITING && ran.is_some_and(|ran| ran < BRIEFLY)
}

/// Returns the processes starved between both reads, with little known of them.
pub fn cq_blocked<'p>(
    before: &'p [StatsProcess],
    after: &'p [StatsProcess],
) -> impl Iterator<Item = &'p StatsProcess> {
    let before = by_pid(before);
    after.iter().filter(move |process| {
        before.get(&process.pid).is_some_and(|old| is_starved(&old.system, &process.system))
    })
}

/// Processes by their number.
pub fn by_pid(processes: &[StatsProcess]) -> HashMap<u32, &StatsProcess> {
    processes.iter().rev().map(|process| (process.pid, process)).collect()
}

/// Analyses the statistics of processes read twice. `now` is the time of the second read, in
/// nanoseconds of CLOCK_MONOTONIC.
pub fn examine(before: &[StatsProcess], after: &[StatsProcess], now: u64) -> Diagnosis {
    let mut views = Vec::new();
    let before = by_pid(before);
    for process in after {
        let earlier = before.get(&process.pid).copied();
        let kept_waiting =
            earlier.map_or(0.0, |earlier| share_kept_waiting(&earlier.system, &process.system));
        let cq_blocked = earlier.is_some_and(|old| is_starved(&old.system, &process.system));
        let runs = |process: &StatsProcess| process.system.threads.starts_with('R');
        let ran_on = runs(process) && earlier.is_some_and(runs);
        for (index, page) in process.pages.iter().enumerate() {
            let earlier = earlier.and_then(|earlier| earlier.pages.get(index));
            for endpoint in &page.endpoints {
                let old = earlier.and_then(|earlier| {
                    let same = |old: &&EndpointStats| old.serial == endpoint.serial;
                    Some((earlier, earlier.endpoints.iter().find(same)?))
                });
                let own_calls = |of: &EndpointStats| of.turns.wrapping_sub(of.visits);
                let (quiet, turns) = match old {
                    Some((earlier, old)) => {
                        let iterations_of = |page: &StatsPage| {
                            page.head.turns.get(endpoint.engine as usize).copied().unwrap_or(0)
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
                    _ => turns,
                };
                views.push(EndpointView {
                    process,
                    page,
                    endpoint,
                    quiet,
                    turns,
                    calls,
                    ran_on,
                    kept_waiting,
                    cq_blocked,
                });
            }
        }
    }
    let examination = HangAnalysis::new(views, now);
    let mut found = FindingList::default();
    processes(after, &mut found);
    for index in 0..examination.views.len() {
        examination.endpoint(index, &mut found);
    }
    examination.pairs(&mut found);
    let mut findings = found.list;
    findings.sort_by_key(|finding| (finding.rule, finding.pid));
    let mismatched: HashSet<_> =
        findings.iter().filter(|one| one.rule == HangCause::Mismatch).map(|one| one.pid).collect();
    findings.retain(|one| one.rule != HangCause::NothingSent || !mismatched.contains(&one.pid));
    let left_out = findings.len().saturating_sub(MOST);
    findings.truncate(MOST);
    Diagnosis { findings, left_out }
}

/// Rules about whole processes.
fn processes(processes: &[StatsProcess], list: &mut FindingList) {
    for process in processes {
        let system = &process.system;
        let (pid, who) = (process.pid, process.who());
        if process.is_stopped() {
            let by = if system.threads.starts_with('t') { "a debugger" } else { "a signal" };
            let text = || (format!("{who} is stopped by {by}"), String::new());
            list.add(HangCause::Stopped, pid, None, text);
        }
        let [open, most] = system.descriptors;
        if open >= most {
            let cause = format!("{who} has all {most} descriptors open that it may have");
            list.add(HangCause::Descriptors, pid, None, || (cause, String::new()));
        }
        let [has, most] = system.memory;
        if has >= most.saturating_sub(MEMORY_LEFT) {
            let cause = format!(
                "{who} has {} bytes of memory, and may have no more than {}",
                short(has as f64),
                short(most as f64)
            );
            let seen = "an allocation of a MiB would fail".into();
            list.add(HangCause::Memory, pid, None, || (cause, seen));
        }
    }
}

impl<'f> HangAnalysis<'f> {
    fn new(views: Vec<EndpointView<'f>>, now: u64) -> Self {
        let (mut by_address, mut peers_seen) = (HashMap::new(), HashMap::new());
        for (index, view) in views.iter().enumerate() {
            if !view.serves() && view.endpoint.address[0] != 0 {
                by_address.entry(view.endpoint.address).or_insert(index);
            }
        }
        let (mut calling, mut connecting) = (HashSet::new(), HashSet::new());
        for (index, view) in views.iter().enumerate() {
            for peer in view.peers() {
                if let Some(other) = by_address.get(&peer.address) {
                    peers_seen.entry((index, *other)).or_insert(peer);
                }
                let lasts = now.saturating_sub(peer.since) > LASTING;
                match (peer.state & 0xff, view.serves()) {
                    (states::CALLING, false) if lasts => calling.insert(view.process.pid),
                    (states::CONNECTING, true) if lasts => connecting.insert(view.process.pid),
                    _ => false,
                };
            }
        }
        Self { views, now, by_address, peers_seen, calling, connecting }
    }

    /// Returns the endpoint with this address among the ones with statistics.
    fn at(&self, wanted: &[u64; 8]) -> Option<&EndpointView<'f>> {
        self.by_address.get(wanted).and_then(|index| self.views.get(*index))
    }

    /// Rules about one endpoint.
    fn endpoint(&self, index: usize, list: &mut FindingList) {
        let now = self.now;
        let view = &self.views[index];
        if view.is_stopped() {
            return;
        }
        let (pid, who, endpoint) = (view.process.pid, view.who(), view.endpoint);

        // A process not polling is known only by an earlier state of its connections.
        for peer in view.peers().iter().filter(|_| view.is_looking()) {
            let to = || address(&peer.address);
            let since = now.saturating_sub(peer.since);
            let lasts = since > LASTING;
            let is_connecting = match peer.state & 0xff {
                states::CALLING => self.connecting.contains(&pid),
                state => state == states::CONNECTING,
            };
            match peer.state & 0xff {
                states::LATER if lasts => list.add(HangCause::Unreachable, pid, None, || {
                    let seen =
                        format!("called {} times; {} messages wait", peer.refused, peer.unsent);
                    (format!("{who} is refused by {}", to()), seen)
                }),
                states::CONNECTING if view.serves() && self.calling.contains(&pid) => {}
                _ if lasts && is_connecting => list.add(HangCause::HalfMade, pid, None, || {
                    let cause = format!(
                        "{who} gets no answer from the network at {}, for {}",
                        to(),
                        time(since)
                    );
                    let wait = peer.unsent;
                    (cause, format!("the connection is being made; {wait} messages wait for it"))
                }),
                // An asked peer with statistics makes no calls: the rule about pairs reports it.
                states::ASKED | states::CALLING
                    if lasts
                        && !view.serves()
                        && self.at(&peer.address).is_none_or(|at| at.is_looking()) =>
                {
                    list.add(HangCause::HalfMade, pid, None, || {
                        let cause = format!(
                            "{who} has called {}, which has not answered for {}",
                            to(),
                            time(since)
                        );
                        (cause, format!("{} messages wait for the answer", peer.unsent))
                    });
                }
                _ => {}
            }
        }
        if view.serves() {
            return;
        }
        for error in endpoint.errors {
            let known = UNREACHED.iter().find(|(code, _)| *code == error.code);
            if let Some((_, text)) = known.filter(|_| view.quiet && error.count > 0) {
                list.add(HangCause::Unreachable, pid, None, || {
                    let seen =
                        format!("{} operations failed with error {}", error.count, error.code);
                    (format!("{who} did not reach a peer: {text}"), seen)
                });
            }
        }
        if !view.quiet {
            return;
        }
        if endpoint.lost[0] > 0 && view.waits_for_receive() {
            let ago = time(now.saturating_sub(endpoint.lost_at));
            let cause = format!(
                "{who} lost the connection with {}, {ago} ago, and waits for messages",
                address(&endpoint.lost_peer)
            );
            let seen = format!(
                "{} connections lost, the last with error {}; {} receives wait",
                endpoint.lost[0],
                endpoint.lost[1],
                endpoint.posted.iter().fold(0u64, |sum, more| sum.saturating_add(*more))
            );
            list.add(HangCause::PeerGone, pid, None, || (cause, seen));
        }
        let queues = [
            ("receives", endpoint.rx_queue, endpoint.rx_queue_size),
            ("transmits", endpoint.tx_queue, endpoint.tx_queue_size),
        ];
        let published = if endpoint.one_queue == 1 { &queues[..1] } else { &queues[..] };
        for (i, (of, entries, size)) in published.iter().enumerate() {
            let of = if endpoint.one_queue == 1 { "" } else { &format!(" of {of}") };
            if *size > 0 && entries >= size {
                let cause = format!("the completion queue{of} of {who} is full and is not read");
                let seen = format!(
                    "{entries} entries, made for {size}; {} connections wait for room",
                    endpoint.cq_blocked
                );
                list.add(HangCause::QueueFull, pid, None, || (cause, seen));
            } else if *entries > 0 && view.is_looking() && (i == 0 || endpoint.one_queue == 1) {
                let cause = format!(
                    "{who} does not read the {entries} entries of its completion queue{of}"
                );
                let seen =
                    format!("it makes progress by other calls, {} times in between", view.turns);
                list.add(HangCause::QueueUnread, pid, None, || (cause, seen));
            }
        }
        if view.is_looking() {
            if let Some((rule, cause, seen)) = mismatch(view) {
                list.add(rule, pid, None, || (cause, seen));
            }
            let receives: u64 = view.receives().count() as u64;
            let buffered: u64 =
                endpoint.unexpected.iter().fold(0, |sum, more| sum.saturating_add(*more));
            let blocked = view.peers().iter().find(|peer| peer.state & peer_bits::BLOCKED != 0);
            if let Some(peer) = blocked.filter(|peer| now.saturating_sub(peer.moved) > LASTING) {
                let cause = format!(
                    "{who} takes no more messages of {}: it keeps {buffered} that have no receive",
                    address(&peer.address)
                );
                let seen = format!("they take {} bytes", endpoint.unexpected_bytes);
                list.add(HangCause::TakesNoMore, pid, None, || (cause, seen));
            }
            if receives == 0 && buffered > 0 {
                let first = view.messages().next().copied().unwrap_or_default();
                list.add(HangCause::NoReceive, pid, None, || {
                    let cause =
                        format!("{who} posts no receive for {buffered} messages that have come");
                    (cause, format!("the first has {}", message(view, &first)))
                });
            }
        }
        for peer in view.peers() {
            let still = now.saturating_sub(peer.moved) > LASTING;
            let connected = peer.state & 0xff == states::CONNECTED;
            if connected && is_owed(peer) && still && self.at(&peer.address).is_none() {
                list.add(HangCause::NotTaken, pid, None, || {
                    let cause = format!(
                        "{} does not take what {who} has for it, for {}",
                        address(&peer.address),
                        time(now - peer.moved)
                    );
                    (cause, pending(peer))
                });
            }
        }
    }

    /// Applies the rules about two endpoints with statistics.
    fn pairs(&self, list: &mut FindingList) {
        let now = self.now;
        // Pairs of processes, the first waiting only for a message of the second, both polling
        // their queues.
        let mut alone = Vec::new();
        for (index, view) in self.views.iter().enumerate() {
            if !view.quiet || view.is_stopped() || view.serves() {
                continue;
            }
            for peer in view.peers() {
                let Some(&at) = self.by_address.get(&peer.address) else { continue };
                let other = &self.views[at];
                if other.is_stopped() {
                    continue;
                }
                let connected = peer.state & 0xff == states::CONNECTED;
                let owes_data = is_owed(peer) || !connected;
                let awaited = view.awaits(peer);
                let own = other.process.pid == view.process.pid;
                let [viewer, asked] = [view, other].map(|view| view.process.pid);
                let waits = view.is_looking() && !own && (owes_data || awaited);
                let lasts = now.saturating_sub(peer.moved) > LASTING;
                let silent = waits && !other.is_looking() && other.unseen(now) > LASTING;
                let computes = waits && awaited && lasts && other.is_left_to_threads();
                if (silent || computes) && other.cq_blocked {
                    list.add(HangCause::NoProcessor, asked, Some(viewer), || {
                        let cause = format!(
                            "{} could run and gets no processor ({:.0} % of the time), and {} waits for it",
                            other.who(),
                            100.0 * other.kept_waiting.min(1.0),
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
                    let text = || self.silence(view, other, peer);
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
                let back = self.peers_seen.get(&(at, index)).filter(|back| {
                    !own && other.quiet && view.awaits_alone(peer) && other.awaits_alone(back)
                });
                let crossed =
                    back.is_some_and(|back| view.keeps_some_of(peer) && other.keeps_some_of(back));
                if is_owed(peer) && lasts && !crossed {
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
        self.ring(&alone, list);
    }

    /// Returns the finding about a process without calls while another one waits for it.
    fn silence(
        &self,
        view: &EndpointView<'_>,
        other: &EndpointView<'_>,
        peer: &PeerStats,
    ) -> (String, String) {
        let how = match other.process.system.threads.chars().next() {
            Some('R') if other.kept_waiting > KEPT_WAITING => format!(
                "it computes, and has a processor for {:.0} % of the time",
                100.0 * (1.0 - other.kept_waiting)
            ),
            Some('R') => "it computes".to_string(),
            Some('D') => "it waits for a device".to_string(),
            _ if other.process.system.waits_in.is_empty() => "it sleeps".to_string(),
            _ => format!("it sleeps in {}", other.process.system.waits_in),
        };
        let cause = format!(
            "{} has made no progress call for {} ({how}), and {} waits for it",
            other.who(),
            time(other.unseen(self.now)),
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
    fn ring(&self, waits: &[(u32, u32)], list: &mut FindingList) {
        let Some(ring) = first_ring(waits) else { return };
        let who = |pid: &u32| {
            let view = self.views.iter().find(|view| view.process.pid == *pid);
            view.map_or_else(|| format!("process {pid}"), EndpointView::who)
        };
        list.add(HangCause::Deadlock, ring[0], ring.get(1).copied(), || {
            let first = who(&ring[0]);
            let mut others: Vec<_> =
                ring.iter().skip(1).take(MOST_NAMED).map(|pid| pid.to_string()).collect();
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
}

/// Returns the first cycle among processes waiting for others; only the first wait of a process
/// counts.
fn first_ring(waits: &[(u32, u32)]) -> Option<Vec<u32>> {
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

/// Returns an unexpected message as text.
fn message(view: &EndpointView<'_>, message: &PendingOpStats) -> String {
    let mut text = match message.kind {
        2 => format!("tag {:#x}", message.tag),
        _ => "no tag".to_string(),
    };
    let _ = write!(text, ", {} bytes", message.ignore_or_len);
    match message.source {
        ANY => text += ", of a peer without a name",
        name => text = text + ", of " + &view.named(name),
    }
    text
}

/// Finds a waiting receive with nearly matching messages.
fn mismatch(view: &EndpointView<'_>) -> Option<(HangCause, String, String)> {
    let near = |wanted: &PendingOpStats, came: &PendingOpStats| {
        if wanted.kind != came.kind {
            return Some((65, "one of both has no tag".to_string()));
        }
        let bits = (wanted.tag ^ came.tag) & !wanted.ignore_or_len;
        let source = wanted.source == ANY || wanted.source == came.source;
        match (bits, source) {
            (0, true) => None,
            (0, false) => Some((
                64,
                format!(
                    "the tag fits, the sender does not: the receive takes {} alone",
                    view.named(wanted.source)
                ),
            )),
            (bits, true) => Some((
                bits.count_ones(),
                format!("the sender fits, the tag does not: they differ in the bits {bits:#x}"),
            )),
            // Another message of another sender says nothing.
            (_, false) => None,
        }
    };
    let pairs = view.receives().flat_map(|wanted| {
        view.messages().filter_map(move |came| Some((wanted, came, near(wanted, came)?)))
    });
    let (wanted, came, (_, why)) = pairs.min_by_key(|(_, _, (distance, _))| *distance)?;
    let cause = format!(
        "{} waits for a message with {}, and has one with {}",
        view.who(),
        receive(wanted, |name| view.named(name)),
        message(view, came)
    );
    Some((HangCause::Mismatch, cause, why))
}

/// Returns the values changing with any activity at the waiting and polled endpoints of a process,
/// or `None` if there is no such endpoint.
pub fn standstill(before: &StatsProcess, after: &StatsProcess) -> Option<Vec<[u64; 10]>> {
    let mut still = Vec::new();
    for (old, page) in before.pages.iter().zip(&after.pages) {
        for endpoint in &page.endpoints {
            let iterations_of =
                |page: &StatsPage| page.head.turns.get(endpoint.engine as usize).copied();
            let looks = iterations_of(old) != iterations_of(page) || endpoint.asleep > 0;
            if endpoint.serves == 0 && looks && is_waiting(page, endpoint) {
                let [sent, sent_bytes, received, received_bytes] = page.passed(endpoint);
                let [[posted, tagged], [buffered, kept_tagged]] =
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
                    kept_tagged,
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
            .any(|peer| is_owed(peer) || peer.state & peer_bits::BLOCKED != 0)
}

/// The provider's name and the endpoint's address.
pub fn title(page: &StatsPage, endpoint: &EndpointStats) -> String {
    format!("{} {}", page.provider(), words_text(&endpoint.address))
}

#[cfg(test)]
mod tests;
