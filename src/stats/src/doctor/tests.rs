//! Unit tests of `doctor`.
use super::examine as diagnose;
use super::pairs::first_ring;
use super::view::*;
use super::*;
use crate::layout::*;
use crate::read::{SocketStats, SystemStats};
use std::time::{Duration, Instant};

const NOW: u64 = 100_000_000_000;

fn examine(before: &[StatsProcess], after: &[StatsProcess], now: u64) -> Vec<Finding> {
    diagnose(before, after, now).findings
}

fn named(pid: u32) -> String {
    format!("10.0.0.{pid}:1")
}

/// Returns a process polling its queues, with an endpoint of this kind; `iterations` at the second
/// read.
fn of(pid: u32, iterations: u64, endpoint: EndpointStats, peers: &[PeerStats]) -> StatsProcess {
    let mut head = StatsHeader::default();
    head.iterations[0] = iterations;
    let endpoint = EndpointStats {
        serial: 1,
        kind: kinds::RDM,
        written: NOW,
        address: text_words(&named(pid)),
        ..endpoint
    };
    let page = StatsPage::new(head, vec![endpoint], peers.to_vec());
    let system = SystemStats {
        program: "test".into(),
        threads: "R".into(),
        descriptors: [10, 1024],
        memory: [1 << 20, u64::MAX],
        ..SystemStats::default()
    };
    StatsProcess::new(pid, system, vec![page])
}

/// Returns a connected peer without pending operations.
fn peer(pid: u32) -> PeerStats {
    PeerStats {
        serial: u64::from(pid) + 1,
        endpoint: 1,
        name: pid.into(),
        state: states::CONNECTED,
        address: text_words(&named(pid)),
        ..PeerStats::default()
    }
}

/// Returns an endpoint waiting only for a message of this peer.
fn receiving(from: u32) -> EndpointStats {
    let mut endpoint = EndpointStats { posted: [0, 1], ..EndpointStats::default() };
    endpoint.receives[0] =
        PendingOpStats { kind: 2, tag: 5, source: from.into(), ignore_or_len: 0 };
    endpoint
}

/// Returns the rules with findings, with all processes polling between the reads except those
/// in `still`.
fn rules(processes: &[StatsProcess], still: &[u32]) -> Vec<(HangCause, u32)> {
    let mut before = processes.to_vec();
    for process in before.iter_mut().filter(|one| !still.contains(&one.pid)) {
        process.pages[0].head.iterations[0] = 0;
    }
    examine(&before, processes, NOW).iter().map(|found| (found.rule, found.process.pid)).collect()
}

#[test]
fn process_without_pending_waits_has_no_finding() {
    let idle = EndpointStats::default();
    let processes = [of(1, 9, idle, &[peer(2)]), of(2, 9, idle, &[peer(1)])];
    assert_eq!(rules(&processes, &[]), []);
    // The same for a computing process without a waiting one.
    let mut computes = processes.to_vec();
    computes[1].pages[0].endpoints[0].written = NOW - 9_000_000_000;
    assert_eq!(rules(&computes, &[2]), []);
}

#[test]
fn process_making_no_calls_is_found_if_another_waits_for_it() {
    let mut processes =
        [of(1, 9, receiving(2), &[peer(2)]), of(2, 9, EndpointStats::default(), &[peer(1)])];
    processes[1].pages[0].endpoints[0].written = NOW - 9_000_000_000;
    assert_eq!(rules(&processes, &[2]), [(HangCause::NoCalls, 2)]);
    // For a second and a half that is no finding.
    processes[1].pages[0].endpoints[0].written = NOW - 1_000_000_000;
    assert_eq!(rules(&processes, &[2]), []);
}

#[test]
fn cpu_starvation_is_distinguished_from_computing() {
    let mut processes =
        [of(1, 9, receiving(2), &[peer(2)]), of(2, 9, EndpointStats::default(), &[peer(1)])];
    processes[1].pages[0].endpoints[0].written = NOW - 9_000_000_000;
    let mut before = processes.to_vec();
    before[0].pages[0].head.iterations[0] = 0;
    let then = Instant::now();
    before[1].system.read_at = Some(then);
    processes[1].system.read_at = Some(then + Duration::from_secs(2));
    (before[1].system.ran, processes[1].system.ran) = (Some(0), Some(BRIEFLY - 1));
    let found = examine(&before, &processes, NOW);
    assert_eq!(found[0].rule, HangCause::NoProcessor);
    assert!(found[0].cause.contains("gets no processor (100 % of the time)"), "{}", found[0]);
    assert_eq!(cq_blocked(&before, &processes).count(), 1);
    processes[1].system.gave_way = 1;
    assert_eq!(examine(&before, &processes, NOW)[0].rule, HangCause::NoCalls);
    processes[1].system.gave_way = 0;
    // With a processor for 5 % of the time it would have made calls, if it made any.
    processes[1].system.ran = Some(100_000_000);
    let found = examine(&before, &processes, NOW);
    assert_eq!(found[0].rule, HangCause::NoCalls);
    let text = "(it computes, and has a processor for 5 % of the time)";
    assert!(found[0].cause.contains(text), "{}", found[0]);
}

#[test]
fn limits_are_found() {
    let idle = EndpointStats::default();
    let mut process = of(1, 9, idle, &[]);
    process.system.descriptors = [64, 64];
    assert_eq!(rules(&[process.clone()], &[]), [(HangCause::Descriptors, 1)]);
    process.system.descriptors = [63, 64];
    process.system.memory = [(1 << 30) - 4096, 1 << 30];
    assert_eq!(rules(&[process.clone()], &[]), [(HangCause::Memory, 1)]);
    process.system.memory = [1 << 29, 1 << 30];
    assert_eq!(rules(&[process], &[]), []);
}

#[test]
fn peer_blocked_by_unexpected_messages_is_found() {
    let mut endpoint = EndpointStats { unexpected: [0, 70], ..EndpointStats::default() };
    endpoint.messages[0] = PendingOpStats { kind: 2, tag: 1, source: 2, ignore_or_len: 8 };
    let state = states::CONNECTED | peer_bits::BLOCKED;
    let process = of(1, 9, endpoint, &[PeerStats { state, ..peer(2) }]);
    let found = rules(std::slice::from_ref(&process), &[]);
    assert_eq!(found, [(HangCause::TakesNoMore, 1), (HangCause::NoReceive, 1)]);
}

#[test]
fn cycle_of_waiting_processes_is_one_finding() {
    let wait = |pid, of_whom| {
        let others = [1, 2, 3].into_iter().filter(|other| *other != pid).map(peer);
        of(pid, 9, receiving(of_whom), &others.collect::<Vec<_>>())
    };
    let processes = [wait(1, 2), wait(2, 3), wait(3, 1)];
    let mut before = processes.to_vec();
    before.iter_mut().for_each(|process| process.pages[0].head.iterations[0] = 0);
    let found = examine(&before, &processes, NOW);
    assert_eq!(found[0].rule, HangCause::Deadlock, "{found:?}");
    assert!(found[0].cause.starts_with("3 processes wait for messages of each other"));
    // Two of them are a cycle of two, regardless of processes waiting for them.
    let processes = [wait(1, 2), wait(2, 1), wait(3, 1)];
    let found = rules(&processes, &[]);
    assert_eq!(found, [(HangCause::Deadlock, 1), (HangCause::NothingSent, 3)]);
    // A process waiting for one that does not wait is in no cycle.
    let processes =
        [wait(1, 2), wait(2, 3), of(3, 9, EndpointStats::default(), &[peer(1), peer(2)])];
    assert!(rules(&processes, &[]).iter().all(|(rule, _)| *rule == HangCause::NothingSent));
}

#[test]
fn crossed_messages_are_distinguished_from_one_wrong_tag() {
    let keeps = |endpoint: EndpointStats, from: u32| {
        let mut endpoint = EndpointStats { unexpected: [0, 1], ..endpoint };
        endpoint.messages[0] =
            PendingOpStats { kind: 2, tag: 6, source: from.into(), ignore_or_len: 8 };
        endpoint
    };
    let processes = [
        of(1, 9, keeps(receiving(2), 2), &[peer(2)]),
        of(2, 9, keeps(receiving(1), 1), &[peer(1)]),
    ];
    let found = rules(&processes, &[]);
    assert_eq!(found[0], (HangCause::Crossed, 1), "{found:?}");
    let processes =
        [of(1, 9, receiving(2), &[peer(2)]), of(2, 9, keeps(receiving(1), 1), &[peer(1)])];
    let found = rules(&processes, &[]);
    assert_eq!(found[0], (HangCause::Mismatch, 2), "{found:?}");
}

#[test]
fn receives_from_any_source_wait_for_no_process() {
    let server = EndpointStats { posted: [2, 0], ..EndpointStats::default() };
    let mut processes = [of(1, 9, server, &[peer(2)]), of(2, 9, server, &[peer(1)])];
    assert_eq!(rules(&processes, &[]), []);
    processes[1].pages[0].endpoints[0].written = NOW - 9_000_000_000;
    assert_eq!(rules(&processes, &[2]), []);
}

#[test]
fn computing_process_is_found_despite_a_progress_thread() {
    let computes =
        EndpointStats { iterations: 100, thread_iterations: 60, ..EndpointStats::default() };
    let mut processes = [of(1, 9, receiving(2), &[peer(2)]), of(2, 9, computes, &[peer(1)])];
    let mut before = processes.to_vec();
    before.iter_mut().for_each(|process| process.pages[0].head.iterations[0] = 0);
    before[1].pages[0].endpoints[0].written = NOW - 1_000_000_000;
    let first = |before: &[_], processes: &[_]| examine(before, processes, NOW)[0].rule;
    assert_eq!(first(&before, &processes), HangCause::Computes);
    // One that makes calls itself has only not sent.
    let mut calls = before.clone();
    calls[1].pages[0].endpoints[0].iterations = 90;
    assert_eq!(first(&calls, &processes), HangCause::NothingSent);
    // So has one of which nothing was shown, but that it made turns.
    let mut slow = before.clone();
    slow[1].pages[0].endpoints[0].written = NOW;
    assert_eq!(first(&slow, &processes), HangCause::NothingSent);
    // The activity of a process almost without a processor is unknown.
    let then = Instant::now();
    before[1].system.read_at = Some(then);
    processes[1].system.read_at = Some(then + Duration::from_secs(2));
    (before[1].system.ran, processes[1].system.ran) = (Some(0), Some(BRIEFLY - 1));
    assert_eq!(first(&before, &processes), HangCause::NoProcessor);
    processes[1].system.ran = Some(BRIEFLY);
    assert_eq!(first(&before, &processes), HangCause::Computes);
}

#[test]
fn only_connections_are_reported_for_underlying_endpoints() {
    let mut core = EndpointStats { serves: 1, posted: [16, 0], ..EndpointStats::default() };
    core.receives[0] = PendingOpStats { kind: 1, source: ANY, ..PendingOpStats::default() };
    let processes = [of(1, 9, core, &[peer(2)]), of(2, 9, core, &[peer(1)])];
    assert_eq!(rules(&processes, &[]), []);
    let connecting = PeerStats { state: states::CONNECTING, since: 1, ..peer(7) };
    let process = of(1, 9, core, &[connecting]);
    let found = rules(std::slice::from_ref(&process), &[]);
    assert_eq!(found, [(HangCause::HalfMade, 1)]);
    // The endpoint above knows whom it calls, which the core may not.
    let calling = PeerStats { state: states::CALLING, since: 1, ..peer(7) };
    let mut both = of(1, 9, EndpointStats::default(), &[calling]);
    both.pages.push(process.pages[0].clone());
    let core = both.pages[1].clone();
    let unnamed = PeerStats { address: [0; 8], ..core.peers()[0] };
    both.pages[1] = StatsPage::new(core.head, core.endpoints, vec![unnamed]);
    let mut before = vec![both.clone()];
    before[0].pages.iter_mut().for_each(|page| page.head.iterations[0] = 0);
    let found = examine(&before, &[both], NOW);
    assert_eq!(found.len(), 1);
    let expected = "gets no answer from the network at 10.0.0.7:1";
    assert!(found[0].cause.contains(expected), "{}", found[0]);
}

#[test]
fn process_without_descriptors_comes_before_its_callers() {
    let asked = PeerStats { state: states::ASKED, since: 1, ..peer(9) };
    let mut processes = vec![of(9, 9, receiving(2), &[])];
    processes[0].system.descriptors = [64, 64];
    processes.extend((1..4).map(|pid| of(pid, 9, EndpointStats::default(), &[asked])));
    let mut before = processes.clone();
    before.iter_mut().for_each(|process| process.pages[0].head.iterations[0] = 0);
    let found = examine(&before, &processes, NOW);
    assert_eq!((found[0].rule, found[0].process.pid), (HangCause::Descriptors, 9));
    let callers: Vec<_> = found
        .iter()
        .filter(|one| one.rule == HangCause::HalfMade)
        .map(ToString::to_string)
        .collect();
    assert_eq!(callers.len(), 3);
    for caller in callers {
        assert!(caller.contains("all 64 descriptors that it may have are open"), "{caller}");
    }
}

#[test]
fn stale_connection_states_of_a_computing_process_are_ignored() {
    let calling = PeerStats { state: states::CALLING, since: 1, ..peer(7) };
    let process = of(1, 9, EndpointStats::default(), &[calling]);
    assert_eq!(rules(std::slice::from_ref(&process), &[]), [(HangCause::HalfMade, 1)]);
    assert_eq!(rules(&[process], &[1]), []);
}

#[test]
fn underlying_endpoint_is_never_reported_as_stalled() {
    let core = EndpointStats { serves: 1, posted: [16, 0], ..EndpointStats::default() };
    let process = of(1, 9, core, &[]);
    assert_eq!(standstill(&of(1, 0, core, &[]), &process), None);
    let process = of(1, 9, receiving(2), &[]);
    assert!(standstill(&of(1, 0, receiving(2), &[]), &process).is_some());
}

#[test]
fn a_process_has_one_finding_of_each_rule_however_many_peers_it_shows() {
    let connecting = |pid| PeerStats { state: states::CONNECTING, since: 1, ..peer(pid) };
    let peers: Vec<_> = (1000..60_000).map(connecting).collect();
    let process = of(1, 9, EndpointStats::default(), &peers);
    assert_eq!(rules(std::slice::from_ref(&process), &[]), [(HangCause::HalfMade, 1)]);
}

#[test]
fn findings_over_the_limit_are_counted() {
    let stopped = |pid| {
        let mut process = of(pid, 9, EndpointStats::default(), &[]);
        process.system.threads = "T".into();
        process
    };
    let processes: Vec<_> = (1..=MOST as u32 + 7).map(stopped).collect();
    let diagnosis = diagnose(&processes, &processes, NOW);
    assert_eq!((diagnosis.findings.len(), diagnosis.left_out), (MOST, 7));
}

#[test]
fn cycles_are_found_at_the_end_of_longer_chains() {
    assert_eq!(first_ring::<u32>(&[]), None);
    assert_eq!(first_ring(&[(3, 1), (3, 1), (1, 2)]), None);
    assert_eq!(first_ring(&[(9, 2), (1, 2), (2, 3), (3, 1), (3, 9)]), Some(vec![1, 2, 3]));
    assert_eq!(first_ring(&[(7, 8), (5, 6), (8, 9), (9, 8), (6, 5)]), Some(vec![5, 6]));
    // Each start of a long way is gone once.
    let way: Vec<_> = (0..200_000).map(|pid| (pid, pid + 1)).collect();
    assert_eq!(first_ring(&way), None);
}

#[test]
fn peers_of_a_process_are_followed_through_other_peers() {
    let idle = EndpointStats::default();
    let all = || {
        vec![
            of(1, 9, idle, &[peer(2)]),
            of(2, 9, idle, &[peer(1), peer(3)]),
            of(3, 9, idle, &[peer(2)]),
            of(4, 9, idle, &[peer(5)]),
            of(5, 9, idle, &[peer(4)]),
        ]
    };
    let followed = |pid: usize| {
        let found = with_peers(vec![all().swap_remove(pid - 1)], all());
        let mut pids: Vec<_> = found.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids
    };
    assert_eq!([followed(1), followed(3), followed(5)], [vec![1, 2, 3], vec![1, 2, 3], vec![4, 5]]);
}

#[test]
fn root_cause_is_first_with_the_number_of_waiting_processes() {
    // 1 waits for 2, and that for 3, which makes no calls; 9 is stopped, and no process waits for it.
    let mut processes = vec![
        of(1, 9, receiving(2), &[peer(2)]),
        of(2, 9, receiving(3), &[peer(1), peer(3)]),
        of(3, 9, EndpointStats::default(), &[peer(2)]),
        of(9, 9, EndpointStats::default(), &[]),
    ];
    processes[2].pages[0].endpoints[0].written = NOW - 9_000_000_000;
    processes[3].system.threads = "T".into();
    let mut before = processes.clone();
    before[..2].iter_mut().for_each(|process| process.pages[0].head.iterations[0] = 0);
    let found = examine(&before, &processes, NOW);
    let rules: Vec<_> = found.iter().map(|one| (one.rule, one.process.pid, one.waiters)).collect();
    let expected =
        [(HangCause::NoCalls, 3, 2), (HangCause::NothingSent, 1, 0), (HangCause::Stopped, 9, 0)];
    assert_eq!(rules, expected);
    let text = "process 2 (test) waits for it (2 processes wait for it directly or indirectly)";
    assert!(found[0].cause.ends_with(text), "{}", found[0]);
    // The same for a stopped process.
    processes[2].system.threads = "T".into();
    let found = examine(&before, &processes, NOW);
    let text = "process 3 (test) is stopped by a signal, and 2 processes wait for it directly or indirectly";
    assert_eq!(found[0].cause, text);
}

#[test]
fn lost_packets_are_found_from_three_in_a_row() {
    let mut process = of(1, 9, EndpointStats::default(), &[peer(9)]);
    let socket =
        |unanswered| SocketStats { peer: text_words("10.0.0.9:4"), unanswered, repeated: 5 };
    process.sockets = vec![socket(2), socket(1)];
    assert_eq!(rules(std::slice::from_ref(&process), &[]), []);
    process.sockets.push(socket(3));
    let found = examine(&[], std::slice::from_ref(&process), NOW);
    assert_eq!(found[0].cause, "packets of process 1 (test) to 10.0.0.9:4 are lost");
    assert_eq!(found.len(), 1);
    // A connection with a host without a peer has another purpose.
    process.sockets[2].peer = text_words("10.0.0.8:4");
    assert_eq!(rules(&[process], &[]), []);
}
