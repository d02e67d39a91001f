//! Unit tests of the conversion of traces.
use super::align::{ClockOffset, clock_offsets};
use super::convert::{TraceConverter, TraceSummary};
use super::line::{Line, MAX_LINE, Probe, parse};
use super::order::TraceReader;
use serde_json::Value;

const TCP: &str = "usdt:/opt/ofi/lib/libfabric/libtcp-fi.so:libfabric:x\tjob";

fn send(time: u64, pid: u32, [from, to]: [u64; 2], tag: u64, len: u64, context: u64) -> String {
    format!(
        "send\t{time}\t{pid}\t{pid}\t{from:x}\t{to:x}\t{tag:x}\t{len}\t{context:x}\t808\t{TCP}\n"
    )
}

fn matched(time: u64, pid: u32, [to, from]: [u64; 2], tag: u64, len: u64, context: u64) -> String {
    format!(
        "match\t{time}\t{pid}\t{pid}\t{to:x}\t{from:x}\t{tag:x}\t{len}\t{context:x}\t408\t{TCP}\n"
    )
}

fn complete(time: u64, pid: u32, endpoint: u64, context: u64, flags: u64, error: i64) -> String {
    format!(
        "complete\t{time}\t{pid}\t{pid}\t{endpoint:x}\t{context:x}\t{flags:x}\t8\t{error}\t0\t{TCP}\n"
    )
}

const SEND: u64 = 0x808;
const RECV: u64 = 0x408;

/// Converts texts with offsets; returns the counts and the elements.
fn convert(files: &[(&str, i64)]) -> (TraceSummary, Vec<Value>) {
    let mut json = Vec::new();
    let reader = TraceReader::new(files.iter().map(|(text, offset)| (text.as_bytes(), *offset)));
    let labels: Vec<_> = (0..files.len()).map(|file| format!("host{file}")).collect();
    let summary = TraceConverter::new(&mut json).convert(reader, &labels).unwrap();
    let value: Value = serde_json::from_slice(&json).unwrap();
    (summary, value["traceEvents"].as_array().unwrap().clone())
}

fn of_phase<'a>(all: &'a [Value], phase: &str) -> Vec<&'a Value> {
    all.iter().filter(|element| element["ph"] == phase).collect()
}

#[test]
fn send_and_its_match_in_another_process_have_slices_and_an_arrow() {
    let text = send(1000, 1, [10, 20], 5, 64, 0x100)
        + &complete(2000, 1, 10, 0x100, SEND, 0)
        + &matched(3000, 2, [20, 10], 5, 64, 0x200)
        + &complete(4500, 2, 20, 0x200, RECV, 0);
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!((summary.sends, summary.matches, summary.joined), (1, 1, 1));
    assert_eq!((summary.completions, summary.unfinished, summary.others), (2, 0, 0));
    let slices = of_phase(&all, "X");
    assert_eq!(slices.len(), 2);
    assert_eq!((&slices[0]["name"], &slices[0]["pid"]), (&"send tag 0x5, 64 B".into(), &1.into()));
    assert_eq!((slices[1]["ts"].as_f64(), slices[1]["dur"].as_f64()), (Some(2.0), Some(1.5)));
    let (start, end) = (of_phase(&all, "s"), of_phase(&all, "f"));
    assert_eq!((start.len(), end.len()), (1, 1));
    assert_eq!((&start[0]["tid"], &end[0]["tid"]), (&slices[0]["tid"], &slices[1]["tid"]));
    assert_eq!((&start[0]["pid"], &end[0]["pid"]), (&1.into(), &2.into()));
}

#[test]
fn messages_of_one_tag_are_joined_by_sender_and_in_order() {
    // Two senders, equal tags and lengths; the receiver matches the later sender's message first.
    let text = send(1000, 1, [10, 30], 5, 8, 1)
        + &send(1100, 1, [10, 30], 5, 8, 2)
        + &send(1200, 2, [20, 30], 5, 8, 1)
        + &matched(2000, 3, [30, 20], 5, 8, 1)
        + &matched(2100, 3, [30, 10], 5, 8, 2)
        + &matched(2200, 3, [30, 10], 5, 8, 3);
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!(summary.joined, 3);
    let starts = of_phase(&all, "s");
    let times: Vec<_> = starts.iter().map(|one| one["ts"].as_f64().unwrap()).collect();
    assert_eq!(times, [0.2, 0.0, 0.1]);
}

#[test]
fn unknown_endpoints_are_joined_by_tag_and_length() {
    let text = send(1000, 1, [10, 99], 5, 8, 1)
        + &send(1100, 1, [10, 40], 5, 8, 2)
        + &matched(1200, 4, [40, 0], 5, 8, 1)
        + &matched(1300, 3, [30, 0], 5, 8, 1);
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!((summary.joined, summary.unmatched_receives), (2, 0));
    let pids: Vec<_> = of_phase(&all, "f").iter().map(|one| one["pid"].clone()).collect();
    assert_eq!(pids, [4, 3]);
    // A message of another length is no match.
    let text = send(1000, 1, [10, 40], 5, 8, 1) + &matched(1200, 4, [40, 10], 5, 9, 1);
    let (summary, _) = convert(&[(&text, 0)]);
    assert_eq!((summary.joined, summary.unmatched_sends, summary.unmatched_receives), (0, 1, 1));
}

#[test]
fn refused_post_is_no_transfer() {
    let refuse = format!("refuse\t1050\t1\t1\ta\t1\t-11\t{TCP}\n");
    let text = send(1000, 1, [10, 20], 5, 8, 1)
        + &refuse
        + &send(1100, 1, [10, 20], 5, 8, 1)
        + &complete(1200, 1, 10, 1, SEND, 0)
        + &matched(1300, 2, [20, 10], 5, 8, 1);
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!((summary.sends, summary.refused, summary.joined), (1, 1, 1));
    assert_eq!((summary.completions, summary.unmatched_sends), (1, 0));
    assert_eq!(of_phase(&all, "X").len(), 2);
}

#[test]
fn overlapping_transfers_have_rows_of_their_own() {
    let text = send(1000, 1, [10, 20], 5, 8, 1)
        + &send(1100, 1, [10, 20], 6, 8, 2)
        + &complete(1200, 1, 10, 1, SEND, 0)
        + &send(1300, 1, [10, 20], 7, 8, 3);
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!(summary.unfinished, 2);
    let rows = |tag: &str| {
        let slices = of_phase(&all, "X");
        let is_it = |one: &&&Value| one["args"]["tag"] == tag;
        slices.iter().find(is_it).unwrap()["tid"].as_u64().unwrap()
    };
    assert_ne!(rows("0x5"), rows("0x6"));
    assert_eq!(rows("0x5"), rows("0x7"));
}

#[test]
fn events_out_of_order_are_sorted_and_hosts_have_their_offset() {
    let one = complete(2000, 1, 10, 1, SEND, 0) + &send(1000, 1, [10, 20], 5, 8, 1);
    let other = matched(501_000, 1, [20, 10], 5, 8, 1) + &complete(502_000, 1, 20, 1, RECV, 0);
    let (summary, all) = convert(&[(&one, 0), (&other, -499_500)]);
    assert_eq!((summary.completions, summary.joined), (2, 1));
    let names: Vec<_> = of_phase(&all, "M").iter().map(|one| one["args"]["name"].clone()).collect();
    assert!(names.contains(&"host1: job 1".into()), "{names:?}");
    let arrow = of_phase(&all, "f");
    assert_eq!((arrow[0]["ts"].as_f64(), arrow[0]["pid"].as_u64()), (Some(0.5), Some(10_000_001)));
}

#[test]
fn connections_and_failures_are_marks() {
    let text = format!("connect\t10\t1\t1\ta\t14\t127.0.0.1:5\t{TCP}\n")
        + &send(1000, 1, [10, 20], 5, 8, 1)
        + &complete(2000, 1, 10, 1, SEND, 104)
        + &format!("lose\t3000\t1\t1\ta\t104\t127.0.0.1:5\t{TCP}\n")
        + &complete(4000, 1, 10, 9, RECV, 125);
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!((summary.connects, summary.losses, summary.others), (1, 1, 1));
    assert!(of_phase(&all, "X")[0]["name"].as_str().unwrap().ends_with("failed"));
    let instants: Vec<_> = of_phase(&all, "i").iter().map(|one| one["name"].clone()).collect();
    assert_eq!(
        instants,
        ["connect 127.0.0.1:5", "lose 127.0.0.1:5 (error 104)", "complete (error 125)"]
    );
}

#[test]
fn malformed_lines_are_counted_and_change_nothing() {
    let good = send(1000, 1, [10, 20], 5, 8, 1);
    let bad = [
        "send\t1\t2\t3\n".to_string(),
        "send\tx\t2\t3\t0\t0\t0\t0\t0\t0\tusdt:a:libfabric:send\tjob\n".into(),
        good.trim_end().to_string() + "\tmore\n",
        "y".repeat(3 * MAX_LINE) + "\n",
        "\u{0}\u{1b}[31m\n".into(),
        "complete\t99999999999999999999\t1\t1\t0\t0\t0\t0\t0\t0\tusdt:a:libfabric:x\tjob\n".into(),
    ];
    let text = bad.concat() + &good + "\nAttaching 3 probes...\nLost 7 events\n" + "no end of line";
    let (summary, all) = convert(&[(&text, 0)]);
    assert_eq!((summary.lines.events, summary.lines.malformed, summary.lines.lost), (1, 7, 7));
    assert_eq!((summary.sends, of_phase(&all, "X").len()), (1, 1));
    let bytes: &[u8] = b"send\t\xff\n";
    assert_eq!(parse(bytes), Line::Malformed);
}

#[test]
fn hostile_names_are_harmless_in_json() {
    let text = "connect\t18446744073709551615\t4294967295\t0\ta\t14\t\"}\\\u{7f}\u{202e}x\tusdt:/a/lib\"-fi.so:libfabric:connect\t\"]}\n";
    let (summary, all) = convert(&[(text, i64::MIN), (text, i64::MAX)]);
    assert_eq!(summary.connects, 2);
    let names = all.iter().filter_map(|one| one["name"].as_str());
    assert!(names.into_iter().all(|name| !name.contains(['\u{7f}', '\u{202e}'])), "{all:?}");
}

#[test]
fn messages_without_a_match_need_no_memory_for_ever() {
    let mut joiner = super::join::Joiner::default();
    let point = super::join::SendPoint { time: 0, pid: 0, tid: 0 };
    for tag in 0..100_000 {
        joiner.sent(1, 2, tag, 8, point);
        assert!(joiner.matched(1, 2, tag, 8).is_some());
    }
    assert_eq!(joiner.sizes(), [0, 0, 0]);
    joiner.sent(1, 2, 3, 8, point);
    assert_eq!((joiner.unmatched(), joiner.sizes()), (1, [1, 1, 1]));
}

#[test]
fn line_of_every_probe_is_parsed() {
    let text = complete(5, 6, 0xa, 0xb, SEND, -22);
    let Line::Event(line) = parse(text.trim_end().as_bytes()) else {
        panic!("a completion");
    };
    assert_eq!((line.time, line.pid, line.provider, line.program), (5, 6, "tcp", "job"));
    let complete = Probe::Complete { endpoint: 0xa, context: 0xb, flags: SEND, len: 8, error: -22 };
    assert_eq!(line.probe, complete);
    let enable = format!("enable\t1\t2\t3\ta\tfi_shm://x\t{TCP}");
    let enabled = Probe::Enable { endpoint: 10, address: "fi_shm://x" };
    assert!(matches!(parse(enable.as_bytes()), Line::Event(line) if line.probe == enabled));
    assert_eq!(parse(b"tick\t5"), Line::Other);
}

/// Returns the traces of two hosts, the second one with a clock that is behind by 5,000,000, with
/// messages of 1 and 2 that arrive after 1000 and 3000 ns.
fn two_hosts() -> [String; 2] {
    let first = send(10_000_000, 1, [10, 20], 5, 8, 1)
        + &send(10_100_000, 1, [10, 20], 5, 16, 2)
        + &matched(10_203_000, 1, [10, 20], 6, 8, 3);
    let second = matched(5_009_000, 2, [20, 10], 5, 8, 1)
        + &matched(5_101_000, 2, [20, 10], 5, 16, 2)
        + &send(5_200_000, 2, [20, 10], 6, 8, 3);
    [first, second]
}

#[test]
fn clocks_are_aligned_by_messages_of_both_directions() {
    let [first, second] = two_hosts();
    let offsets = clock_offsets([first.as_bytes(), second.as_bytes()]).unwrap();
    let expected = ClockOffset { offset: 5_001_000, uncertainty: Some(2000), messages: 3 };
    assert_eq!(offsets[1], Some(expected));
    let (summary, _) = convert(&[(&first, 0), (&second, expected.offset)]);
    assert_eq!((summary.joined, summary.unmatched_sends), (3, 0));
    // Without the offset the message to the first host has no match.
    assert!(convert(&[(&first, 0), (&second, 5_500_000)]).0.joined < 3);
}

#[test]
fn clock_of_a_third_host_is_aligned_through_the_second() {
    let [first, second] = two_hosts();
    let second = second + &send(5_300_000, 2, [20, 30], 7, 8, 3);
    let third = matched(1000, 3, [30, 20], 7, 8, 1);
    let files = [first.as_bytes(), second.as_bytes(), third.as_bytes(), b""];
    let offsets = clock_offsets(files).unwrap();
    let third = offsets[2].unwrap();
    assert_eq!((third.offset, third.uncertainty), (5_001_000 + 5_299_000, None));
    assert_eq!(offsets[3], None);
}

#[test]
fn incomplete_sequences_and_refused_posts_align_no_clocks() {
    let [first, second] = two_hosts();
    // A message of each sequence is missing in one trace.
    let shorter = first.lines().skip(1).take(1).map(|line| format!("{line}\n")).collect::<String>();
    let offsets = clock_offsets([shorter.as_bytes(), second.as_bytes()]).unwrap();
    assert_eq!(offsets[1], None);
    // A refused post is none.
    let refused = send(9_000_000, 1, [10, 20], 5, 8, 1)
        + &format!("refuse\t9000001\t1\t1\ta\t1\t-11\t{TCP}\n")
        + &first;
    let offsets = clock_offsets([refused.as_bytes(), second.as_bytes()]).unwrap();
    assert_eq!(offsets[1].map(|of| of.offset), Some(5_001_000));
    // Matches before their posts in both directions are those of other messages.
    let early = second.replace("\t5200000\t", "\t5300000\t");
    assert_eq!(clock_offsets([first.as_bytes(), early.as_bytes()]).unwrap()[1], None);
}

#[test]
fn ranks_are_in_the_names_of_processes_and_sort_them() {
    let text = send(1000, 9, [10, 20], 5, 8, 1) + &matched(2000, 7, [20, 10], 5, 8, 1);
    let mut json = Vec::new();
    let reader = TraceReader::new([(text.as_bytes(), 0)]).with_ranks(|pid| (pid == 9).then_some(0));
    TraceConverter::new(&mut json).convert(reader, &["trace".into()]).unwrap();
    let value: Value = serde_json::from_slice(&json).unwrap();
    let metadata = |name: &str| -> Vec<Value> {
        let all = of_phase(value["traceEvents"].as_array().unwrap(), "M");
        let of_name = all.into_iter().filter(|element| element["name"] == name);
        of_name.map(|element| element["args"].clone()).collect()
    };
    let names: Vec<_> = metadata("process_name").iter().map(|args| args["name"].clone()).collect();
    assert_eq!(names, ["job", "rank 0: job"]);
    assert_eq!(metadata("process_sort_index"), [serde_json::json!({ "sort_index": 0 })]);
}
