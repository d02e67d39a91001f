//! Sizes, parameters, statistics and the control protocol of fi_perf.
#![allow(dead_code, reason = "modules of the program")]
#[path = "../src/fi_perf/options.rs"]
mod options;
#[path = "../src/fi_perf/pattern.rs"]
mod pattern;
#[path = "../src/fi_perf/sizes.rs"]
mod sizes;
#[path = "../src/fi_perf/stats.rs"]
mod stats;
#[path = "../src/fi_perf/wire.rs"]
mod wire;
use options::{Op, Options, Parameters, Parsed, Role, Test, agree, parse};
use pattern::{fill, is_message};
use sizes::{parse_size, parse_sizes, sizes_text};
use stats::{Histogram, bootstrap, median};
use std::collections::BTreeSet;
use wire::*;

fn options(line: &str) -> Result<Box<Options>, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match parse(&words)? {
        Parsed::Run(options) => Ok(options),
        _ => Err("no run".into()),
    }
}

#[test]
fn sizes_have_suffixes_and_ranges() {
    assert_eq!(parse_sizes("1,64,4K,1M").unwrap(), [1, 64, 4096, 1 << 20]);
    assert_eq!(parse_sizes("0-4").unwrap(), [0, 1, 2, 4]);
    assert_eq!(parse_sizes("1-5").unwrap(), [1, 2, 4, 5]);
    assert_eq!(parse_sizes("8-24+8,1KiB-4k*2").unwrap(), [8, 16, 24, 1024, 2048, 4096]);
    assert_eq!(parse_sizes("all").unwrap().len(), 23);
    assert_eq!(parse_size("1G"), Ok(1 << 30));
    for text in [
        "",
        "x",
        "4Q",
        "-1",
        "2G",
        "1,,2",
        "4-1",
        "1-4*1",
        "1-4+0",
        "0-1G+1",
        "99999999999999999999",
    ] {
        assert!(parse_sizes(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_as_text_are_parsed_to_the_same() {
    let sizes = parse_sizes("0,1,1000,1K,1536,3M,1G").unwrap();
    assert_eq!(sizes_text(&sizes), "0,1,1000,1K,1536,3M,1G");
    assert_eq!(parse_sizes(&sizes_text(&sizes)).unwrap(), sizes);
}

/// Pseudo-random values of all magnitudes.
fn values(count: usize) -> Vec<u64> {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 11
    };
    (0..count).map(|_| next() >> (next() % 50)).collect()
}

#[test]
fn percentiles_are_those_of_sorted_values() {
    for count in [1, 2, 3, 10, 99, 100, 101, 10_000] {
        let mut sorted = values(count);
        let mut histogram = Histogram::default();
        sorted.iter().for_each(|value| histogram.record(*value));
        sorted.sort_unstable();
        for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
            let thousandths = (percent * 100.0_f64).round() as usize;
            let rank = (count * thousandths).div_ceil(10_000).max(1);
            let (exact, found) = (sorted[rank - 1], histogram.percentile(percent));
            assert!(
                found >= exact && found - exact <= exact / 1024,
                "{percent} of {count}: {found} for {exact}"
            );
        }
        assert_eq!((histogram.min(), histogram.max()), (sorted[0], sorted[count - 1]));
        let mean = sorted.iter().map(|v| *v as f64).sum::<f64>() / count as f64;
        assert!((histogram.mean() - mean).abs() <= mean * 1e-9);
    }
}

#[test]
fn the_parts_of_a_histogram_add_up() {
    let all = values(3000);
    let mut whole = Histogram::default();
    let mut parts = [Histogram::default(), Histogram::default()];
    for (at, value) in all.iter().enumerate() {
        whole.record(*value);
        parts[at % 2].record(*value);
    }
    let [mut sum, rest] = parts;
    sum.merge(&rest);
    assert_eq!((sum.total(), sum.min(), sum.max()), (whole.total(), whole.min(), whole.max()));
    assert_eq!(sum.percentile(99.0), whole.percentile(99.0));
    let classes = whole.classes(4);
    assert_eq!(classes.iter().map(|(_, count)| count).sum::<u64>(), 3000);
    assert!(classes.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for (at, (end, count)) in classes.iter().enumerate() {
        let begin = if at == 0 { 0 } else { classes[at - 1].0 + 1 };
        // The ends of classes are ends of buckets.
        let exact = all.iter().filter(|value| (begin..=*end).contains(value)).count();
        assert_eq!(*count, exact as u64, "{begin} to {end}");
    }
}

#[test]
fn a_bootstrap_interval_contains_the_median() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0]), 2.5);
    let same = bootstrap(&[1.5; 9]);
    assert_eq!((same.low, same.median, same.high), (1.5, 1.5, 1.5));
    let spread: Vec<f64> = (0..40).map(|n| 1.0 + f64::from(n) / 100.0).collect();
    let interval = bootstrap(&spread);
    assert!(interval.low < interval.median && interval.median < interval.high);
    assert!(interval.low > 1.05 && interval.high < 1.35, "{interval:?}");
}

#[test]
fn the_command_line_names_a_role_and_parameters() {
    let o = options("-t lat,rate -o read,atomic -S 8,4K -n 10 -bc -W2 --csv 192.0.2.1").unwrap();
    assert_eq!(o.role, Role::Client("192.0.2.1".into()));
    assert_eq!(o.parameters.tests, [Test::Latency, Test::Rate]);
    assert_eq!(o.parameters.ops, [Op::Read, Op::Atomic]);
    assert!(o.parameters.bidir && o.parameters.verify && o.parameters.window == 2);
    assert_eq!(options("").unwrap().role, Role::Local);
    assert_eq!(options("-s").unwrap().role, Role::Server);
    for line in [
        "--server host",
        "--local a",
        "a b",
        "-t lat,lat",
        "-t x",
        "-W 0",
        "-W 5000",
        "--threads 64 --endpoints 3",
        "-T nan",
        "--ack -b",
        "-e dgram -o read",
        "--inject yes -o read",
        "--inject yes -o write",
        "--beside /x host",
        "--mesh a",
        "--mesh a,-b",
        "--nonsense",
        "-n",
        "--csv=1",
    ] {
        assert!(options(line).is_err(), "{line}");
    }
}

#[test]
fn a_server_takes_the_parameters_of_the_client_except_those_it_names() {
    let pairs = |line: &str| {
        let pairs = options(line).unwrap().parameters.pairs();
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Vec<_>>()
    };
    let server = options("--server -W 16 -p tcp").unwrap();
    let theirs = pairs("-W 16 -o read -S 1-4 -n 3 host");
    let agreed = agree(&server.parameters, &server.named, &theirs).unwrap();
    assert_eq!((&agreed.ops[..], agreed.iterations), (&[Op::Read][..], Some(3)));
    assert_eq!(agreed.provider.as_deref(), Some("tcp"));
    let complaint = agree(&server.parameters, &server.named, &pairs("-p shm host")).unwrap_err();
    assert!(complaint.contains("window is 16 at the server and 64 at the client"), "{complaint}");
    assert!(complaint.contains("provider is tcp at the server and shm at the client"));
    let named = BTreeSet::new();
    for (name, value) in [("colour", "red"), ("window", "-1"), ("sizes", "9G"), ("threads", "65")] {
        let pairs = [(name.to_owned(), value.to_owned())];
        assert!(agree(&Parameters::default(), &named, &pairs).is_err(), "{name}");
    }
}

#[test]
fn the_first_bytes_of_another_program_or_version_are_refused() {
    assert_eq!(check_hello(&hello()), Ok(()));
    let mut other = hello();
    other[11] += 1;
    assert!(check_hello(&other).unwrap_err().contains("version 2"));
    assert!(check_hello(b"GET / HTTP/1.1\r\n").unwrap_err().contains("no fi_perf"));
}

#[test]
fn frames_have_a_known_kind_and_a_bounded_length() {
    assert_eq!(parse_head(head(Kind::Start, 24)), Ok((Kind::Start, 24)));
    assert!(parse_head([0, 0, 0, 0]).is_err());
    assert!(parse_head([200, 0, 0, 0]).is_err());
    assert!(parse_head([1, 0xff, 0xff, 0xff]).is_err());
    assert_eq!(parse_head(head(Kind::Bye, MAX_PAYLOAD)), Ok((Kind::Bye, MAX_PAYLOAD)));
    assert!(parse_head(head(Kind::Bye, MAX_PAYLOAD + 1)).is_err());
}

/// Decodes each beginning of a payload, and the payload with one more byte: errors, no panics.
fn fails_unless_complete<T>(payload: &[u8], decode: impl Fn(&[u8]) -> Result<T, String>) {
    assert!(decode(payload).is_ok());
    for end in 0..payload.len() {
        assert!(decode(&payload[..end]).is_err(), "{end} of {}", payload.len());
    }
    assert!(decode(&[payload, &[0]].concat()).is_err());
}

#[test]
fn payloads_are_decoded_only_if_complete() {
    fails_unless_complete(&encode_parameters(&Parameters::default().pairs()), decode_parameters);
    let host = Host { name: "a".into(), system: "b".into(), ..Host::default() };
    assert_eq!(Host::decode(&host.encode()).unwrap(), host);
    fails_unless_complete(&host.encode(), Host::decode);
    let offer =
        Offer { provider: "tcp".into(), address: vec![1, 2, 3], max_size: 5, ..Offer::default() };
    assert_eq!(Offer::decode(&offer.encode()).unwrap(), offer);
    fails_unless_complete(&offer.encode(), Offer::decode);
    let channels =
        [ChannelAddress { address: vec![7; 16], base: 1, key: 2 }, ChannelAddress::default()];
    let payload = encode_channels(&channels);
    assert_eq!(decode_channels(&payload, 2).unwrap(), channels);
    fails_unless_complete(&payload, |bytes| decode_channels(bytes, 2));
    assert!(decode_channels(&payload, 1).is_err() && decode_channels(&payload, 3).is_err());
    let start = Start { test: 1, size: 2, count: 3 };
    fails_unless_complete(&start.encode(), Start::decode);
    let mut outcome = Outcome { elapsed_ns: 1, sent: 2, ..Outcome::default() };
    for calls in [None, Some(0), Some(7)] {
        outcome.usage.calls = calls;
        assert_eq!(Outcome::decode(&outcome.encode()).unwrap(), outcome);
    }
    fails_unless_complete(&outcome.encode(), Outcome::decode);
}

#[test]
fn lengths_and_characters_of_the_peer_are_bounded() {
    let long = Encoder::default().bytes(&[b'x'; 2000]).0;
    assert!(Decoder(&long).text().is_err());
    let many = Encoder::default().number(u64::MAX).0;
    assert!(decode_parameters(&many).is_err() && decode_channels(&many, 1).is_err());
    let control = Encoder::default().bytes(b"a\x1b[2Jb\n").0;
    assert_eq!(Decoder(&control).text().unwrap(), "a?[2Jb?");
    assert!(Decoder(&Encoder::default().bytes(&[0xff, 0xfe]).0).text().is_err());
    // A text longer than permitted is shortened at a character.
    let text = Encoder::default().text(&"ä".repeat(1000)).0;
    assert_eq!(Decoder(&text).text().unwrap().chars().count(), 512);
    let offer = Encoder::default().text("p").number(0).text("f").text("d").number(1);
    assert!(Offer::decode(&offer.bytes(&[0; 600]).number(0).number(0).0).is_err());
}

#[test]
fn changed_bytes_of_a_message_are_found() {
    for length in [0, 1, 7, 8, 9, 100, 5000] {
        let mut message = vec![0; length];
        fill(&mut message, 0x0102_0304_0506_0708);
        assert!(is_message(&message, 0x0102_0304_0506_0708));
        for at in 0..length {
            message[at] ^= 1;
            assert!(!is_message(&message, 0x0102_0304_0506_0708), "{at} of {length}");
            message[at] ^= 1;
        }
    }
}

#[test]
fn results_of_parts_add_up() {
    let usage = |calls| Usage { user_ns: 1, calls, ..Usage::default() };
    let part =
        |calls| Outcome { elapsed_ns: 5, sent: 2, usage: usage(calls), ..Outcome::default() };
    let mut sum = Outcome::default();
    sum.add(&part(Some(3)));
    sum.add(&part(Some(4)));
    assert_eq!((sum.elapsed_ns, sum.sent, sum.usage.user_ns, sum.usage.calls), (10, 4, 2, Some(7)));
    sum.add(&part(None));
    assert_eq!(sum.usage.calls, None);
}
