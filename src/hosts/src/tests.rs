//! Unit tests of dumps and of their common analysis.
use crate::HostDump;
use crate::job::Job;
use crate::parse::{COMMON_NOW, DumpError, JobBudget, parse_dump};
use crate::write::write_dump;
use ofi_stats::doctor::{Finding, HangCause};
use ofi_stats::layout::{
    EndpointStats, PeerStats, PendingOpStats, StatsHeader, kinds, states, text_words,
};
use ofi_stats::origin::ProcessOrigin;
use ofi_stats::read::{SocketStats, StatsPage, StatsProcess, SystemStats};
use std::time::{Duration, Instant};

const SECOND: u64 = 1_000_000_000;

/// Description of a process of a test: its rank, and its only peer, from which it receives.
#[derive(Clone, Copy)]
struct Rank {
    rank: u32,
    receives_from: Option<u32>,
    makes_calls: bool,
}

/// Number of ranks of a host.
const OF_HOST: u32 = 64;

fn host_of(rank: u32) -> u32 {
    rank / OF_HOST
}

fn address_of(rank: u32) -> String {
    format!("10.0.{}.{}:{}", host_of(rank) / 200, host_of(rank) % 200 + 1, 4000 + rank % OF_HOST)
}

/// Returns a rank at both reads. Its host started `now` ago.
fn process_of(of: Rank, now: u64) -> [StatsProcess; 2] {
    let mut endpoint = EndpointStats {
        serial: 1,
        kind: kinds::RDM,
        written: if of.makes_calls { now } else { now - 300 * SECOND },
        address: text_words(&address_of(of.rank)),
        ..EndpointStats::default()
    };
    let mut peers = Vec::new();
    if let Some(from) = of.receives_from {
        endpoint.posted[1] = 1;
        endpoint.receives[0] =
            PendingOpStats { kind: 2, tag: 5, ignore_or_len: 0, source: from.into() };
        peers.push(PeerStats {
            serial: 2,
            endpoint: 1,
            name: from.into(),
            state: states::CONNECTED,
            since: 1,
            moved: 1,
            address: text_words(&address_of(from)),
            received: 7,
            ..PeerStats::default()
        });
    }
    let origin = ProcessOrigin {
        network: 1,
        pid_space: 2,
        own_pid: (1000 + of.rank % OF_HOST).into(),
        rank: Some(of.rank),
        ..ProcessOrigin::default()
    };
    let then = Instant::now();
    [(false, 0), (true, 2)].map(|(is_second, seconds)| {
        let mut head = StatsHeader { library: 2 << 16 | 6, ..StatsHeader::default() };
        head.iterations[0] = if of.makes_calls && is_second { 9 } else { 1 };
        let page = StatsPage::new(head, vec![endpoint], peers.clone());
        let system = SystemStats {
            program: "solver".into(),
            threads: "R".into(),
            descriptors: [10, 1024],
            memory: [1 << 20, u64::MAX],
            read_at: Some(then + Duration::from_secs(seconds)),
            ran: Some(seconds * SECOND),
            ..SystemStats::default()
        };
        let mut process = StatsProcess::new(1000 + of.rank % OF_HOST, system, vec![page]);
        process.origin = origin.clone();
        process
    })
}

/// Returns the dump of a host, with a start time of its own.
fn dump_of(host: u32, ranks: &[Rank]) -> HostDump {
    let now = (1000 + u64::from(host) * 77_777) * SECOND;
    let of_host = ranks.iter().filter(|one| host_of(one.rank) == host);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for [first, second] in of_host.map(|one| process_of(*one, now)) {
        before.push(first);
        after.push(second);
    }
    HostDump {
        host: format!("node{host}"),
        boot: format!("boot-{host}"),
        tool: "1".into(),
        network: 1,
        time: 1_700_000_000,
        now,
        left_out: 0,
        before,
        after,
    }
}

fn text_of(dump: &HostDump) -> Vec<u8> {
    let mut text = Vec::new();
    write_dump(dump, &mut text).unwrap();
    text
}

fn parsed(text: &[u8]) -> Result<HostDump, DumpError> {
    parse_dump(&mut &*text, &JobBudget::default())
}

/// Writes and reads the dumps of all hosts of a job.
fn job_of(ranks: &[Rank]) -> Job {
    let last = ranks.iter().map(|one| host_of(one.rank)).max().unwrap();
    let budget = JobBudget::default();
    let dumps = (0..=last).map(|host| {
        let text = text_of(&dump_of(host, ranks));
        let dump = parse_dump(&mut &text[..], &budget).unwrap();
        (dump.host.clone(), dump)
    });
    Job::join(dumps.collect())
}

/// Returns ranks in a chain: each waits for the next, and the last one makes no calls.
fn chain(count: u32) -> Vec<Rank> {
    let rank = |rank| {
        let receives_from = Some(rank + 1).filter(|next| *next < count);
        Rank { rank, receives_from, makes_calls: receives_from.is_some() }
    };
    (0..count).map(rank).collect()
}

fn rules(findings: &[Finding]) -> Vec<HangCause> {
    findings.iter().map(|one| one.rule).collect()
}

#[test]
fn dump_has_all_that_the_analysis_uses() {
    let mut dump = dump_of(1, &[Rank { rank: 70, receives_from: Some(3), makes_calls: true }]);
    dump.left_out = 3;
    let socket = SocketStats { peer: text_words("10.0.0.1:9"), unanswered: 4, repeated: 9 };
    dump.after[0].sockets.push(socket);
    dump.before[0].sockets.push(SocketStats { unanswered: 0, repeated: 5, ..socket });
    dump.after[0].system.polls = true;
    let read = parsed(&text_of(&dump)).unwrap();
    assert_eq!((read.host.as_str(), read.boot.as_str(), read.left_out), ("node1", "boot-1", 3));
    let (was, is) = (&dump.after[0], &read.after[0]);
    assert_eq!((is.pid, is.origin.rank, is.system.polls), (was.pid, Some(70), true));
    assert_eq!((&is.sockets, &read.before[0].sockets), (&was.sockets, &dump.before[0].sockets));
    let spent = |both: [&StatsProcess; 2]| {
        both[1].system.read_at.unwrap() - both[0].system.read_at.unwrap()
    };
    assert_eq!(spent([&read.before[0], is]), Duration::from_secs(2));
    assert_eq!([is.system.ran, read.before[0].system.ran], [Some(2 * SECOND), Some(0)]);
    // The sums of the peers at the first read are in the endpoint.
    let (page, old) = (&is.pages[0], &read.before[0].pages[0]);
    assert_eq!(page.passed(&page.endpoints[0]), old.passed(&old.endpoints[0]));
    assert_eq!([page.passed(&page.endpoints[0])[2], old.peers().len() as u64], [7, 0]);
    // Times are distances to the common time of all hosts.
    assert_eq!(page.endpoints[0].written, COMMON_NOW);
    let silent = dump_of(0, &[Rank { rank: 1, receives_from: None, makes_calls: false }]);
    let read = parsed(&text_of(&silent)).unwrap();
    let written = read.after[0].pages[0].endpoints[0].written;
    assert_eq!(written, COMMON_NOW - 300 * SECOND);
}

#[test]
fn root_cause_is_named_over_hosts_with_all_waiting_processes() {
    let job = job_of(&chain(512));
    let found = job.diagnose().findings;
    assert_eq!((found[0].rule, found[0].waiters), (HangCause::NoCalls, 511));
    let expected = "process 1063 (solver, rank 511) on node7 has made no progress call for 5 min (it computes), and \
                    process 1062 (solver, rank 510) on node7 waits for it (511 processes wait for it directly or \
                    indirectly)";
    assert_eq!(found[0].cause, expected);
    assert!(rules(&found)[1..].iter().all(|rule| *rule == HangCause::NothingSent));
    assert_eq!(job.notes, Vec::<String>::new());
}

#[test]
fn job_of_ten_thousand_processes_is_analysed() {
    let job = job_of(&chain(10_000));
    assert_eq!((job.hosts, job.after.len()), (157, 10_000));
    let diagnosis = job.diagnose();
    assert_eq!(diagnosis.findings[0].waiters, 9999);
    assert!(diagnosis.findings[0].cause.contains("rank 9999) on node156"));
    assert_eq!(diagnosis.findings.len() + diagnosis.left_out, 9999);
}

#[test]
fn healthy_job_has_no_finding() {
    let mut dump = dump_of(0, &chain(2)[..1]);
    dump.after[0].pages[0] = {
        let page = &dump.after[0].pages[0];
        let mut peers = page.peers().to_vec();
        peers[0].received += 1;
        StatsPage::new(page.head, page.endpoints.clone(), peers)
    };
    let job = Job::join(vec![("node0".into(), parsed(&text_of(&dump)).unwrap())]);
    assert_eq!(job.diagnose().findings, []);
}

#[test]
fn host_without_statistics_is_named_as_the_cause() {
    // Rank 127 of host 1 makes no calls, and host 1 has no dump.
    let dump = parsed(&text_of(&dump_of(0, &chain(128)))).unwrap();
    let found = Job::join(vec![("node0".into(), dump)]).diagnose().findings;
    let expected = "64 processes wait, directly or indirectly, for processes at 10.0.0.2, of which there are no statistics";
    assert_eq!((found[0].rule, found[0].cause.as_str()), (HangCause::Unseen, expected));
}

#[test]
fn containers_of_one_kernel_have_each_process_once() {
    // Both dumps have the processes of both network namespaces.
    let mut dump = dump_of(0, &chain(2));
    for processes in [&mut dump.before, &mut dump.after] {
        processes[1].origin.network = 2;
    }
    let mut other = dump.clone();
    other.network = 2;
    let dumps = [("a", dump), ("b", other)];
    let dumps = dumps.map(|(name, dump)| (name.to_string(), parsed(&text_of(&dump)).unwrap()));
    let job = Job::join(dumps.into());
    let hosts: Vec<_> = job.after.iter().map(StatsProcess::number).collect();
    assert_eq!(hosts, ["1000 on a", "1001 on b"]);
    let found = job.diagnose().findings;
    assert_eq!(rules(&found), [HangCause::NoCalls]);
    assert!(found[0].cause.starts_with("process 1001 (solver, rank 1) on b has made no"));
}

#[test]
fn differing_versions_and_times_are_notes() {
    let mut dumps = [dump_of(0, &chain(130)), dump_of(1, &chain(130)), dump_of(2, &chain(130))];
    for process in &mut dumps[1].after {
        process.pages[0].head.library = 2 << 16 | 5;
    }
    dumps[2].time += 100;
    dumps[0].left_out = 1;
    let dumps = dumps.map(|dump| (dump.host.clone(), parsed(&text_of(&dump)).unwrap()));
    let job = Job::join(dumps.into());
    let expected = [
        "the library's versions differ: 2.5 on node1; 2.6 on node0, node2",
        "the first dump was made 100 s before the last one: states between both may have changed",
        "not all processes were read on node0",
    ];
    assert_eq!(job.notes, expected);
}

#[test]
fn incomplete_dumps_are_detected_at_every_byte() {
    let text = text_of(&dump_of(0, &chain(3)));
    assert!(parsed(&text).is_ok() && parsed(&text[..text.len() - 1]).is_ok());
    for length in 0..text.len() - 1 {
        let error = parsed(&text[..length]).unwrap_err();
        let is_detected =
            matches!(error, DumpError::Empty | DumpError::NoDump | DumpError::Truncated(_));
        assert!(is_detected, "{length}: {error}");
    }
    // A line is missing.
    let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let error = parsed(&[&lines[..2], &lines[3..]].concat().concat()).unwrap_err();
    assert!(error.to_string().contains("malformed"), "{error}");
}

#[test]
fn malformed_dumps_have_distinct_errors() {
    let head = "{\"ofi_dump\":{\"version\":1,\"now\":5}}\n";
    let error = |rest: &str| parsed(format!("{head}{rest}").as_bytes()).unwrap_err().to_string();
    assert_eq!(error("{\"peer\":{}}\n"), "line 2 is malformed: it is of no process");
    assert_eq!(error("{\"process\":{}}\n"), "line 2 is malformed: the process has no number");
    assert_eq!(error("{\"process\":5}\n"), "line 2 is malformed: it has no known member");
    assert_eq!(error("hello\n"), "line 2 is malformed: it is no JSON object");
    assert_eq!(error("{\"end\":7}\n"), "line 2 is malformed: lines are missing before the end");
    let process = "{\"process\":{\"pid\":1}}\n";
    assert_eq!(
        error(&format!("{process}{{\"endpoint\":{{}}}}\n")),
        "line 3 is malformed: it is of no page"
    );
    let pages = "{\"page\":{}}\n".repeat(18);
    assert_eq!(error(&format!("{process}{pages}")), "it exceeds the limit of pages of a process");
    let endpoints = "{\"endpoint\":{}}\n".repeat(513);
    let error_of_endpoints = error(&format!("{process}{{\"page\":{{}}}}\n{endpoints}"));
    assert_eq!(error_of_endpoints, "it exceeds the limit of endpoints of a page");
    let nested = format!("{{\"x\":{}}}\n", "[".repeat(10_000));
    assert_eq!(error(&nested), "line 2 is malformed: it is no JSON object");
    let long = format!("{{\"x\":\"{}\"}}\n", "a".repeat(40_000));
    assert_eq!(error(&long), "it exceeds the limit of bytes of a line");
    assert!(matches!(parsed("\u{1b}]0;x".as_bytes()), Err(DumpError::NoDump)));
    let future = parsed(b"{\"ofi_dump\":{\"version\":9}}\n").unwrap_err().to_string();
    assert_eq!(future, "it has version 9, and this tool reads version 1");
}

#[test]
fn records_of_all_dumps_are_limited_in_total() {
    let mut text = String::from("{\"ofi_dump\":{\"version\":1}}\n{\"process\":{\"pid\":1}}\n");
    text += &("{\"page\":{}}\n".to_string() + &"{\"endpoint\":{}}\n".repeat(400)).repeat(15);
    let text = (text.clone() + "{\"end\":6017}\n").into_bytes();
    let budget = JobBudget::default();
    let read = |_| parse_dump(&mut &text[..], &budget).map(drop);
    let results: Vec<_> = (0..1000).map(read).take_while(Result::is_ok).collect();
    assert!((100..900).contains(&results.len()), "{}", results.len());
}

#[test]
fn processes_of_all_dumps_are_limited_in_total() {
    let head = "{\"ofi_dump\":{\"version\":1}}\n";
    let text = format!("{head}{}", "{\"process\":{\"pid\":1}}\n".repeat(140_000));
    let error = parsed(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "it exceeds the limit of processes of all dumps");
}

#[test]
fn texts_of_other_hosts_are_printed_without_escape_sequences() {
    let mut dump = dump_of(0, &chain(2));
    dump.host = "node\u{1b}[2J\u{202e}\n0".into();
    dump.after[1].system.program = format!("\u{1b}]0;x\u{7}{}", "y".repeat(200));
    let address = dump.after[1].pages[0].endpoints[0].address;
    let text = String::from_utf8(text_of(&dump)).unwrap();
    let raw = ofi_stats::layout::words_text(&address);
    let text = text.replace(&raw, "10.0.0.9:\\u001b[2J");
    let read = parsed(text.as_bytes()).unwrap();
    let name = read.host.clone();
    assert_eq!(name, "node?[2J??0");
    let found = Job::join(vec![(name, read)]).diagnose().findings;
    assert!(!found.is_empty());
    for finding in found {
        let text = finding.cause + &finding.seen;
        assert!(text.chars().all(|c| matches!(c, ' '..='~')) && text.len() < 4096, "{text}");
    }
}
