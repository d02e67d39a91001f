//! The command line and the table of fi_pingpong.
use std::time::Duration;
#[path = "../src/fi_pingpong_text.rs"]
#[allow(dead_code)]
mod text;
use text::{Mode, ResultRow, UsageError, parse, short};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn sizes_are_shortened_as_in_the_table_of_every_fi_pingpong() {
    for (n, text) in [
        (64, "64"),
        (1024, "1k"),
        (1280, "1.2k"),
        (5120, "5k"),
        (65536, "64k"),
        (1310720, "1.2m"),
        (20 << 20, "20m"),
        (3 << 30, "3g"),
    ] {
        assert_eq!(short(n), text);
    }
}

#[test]
fn a_row_has_the_columns_of_every_fi_pingpong() {
    let row = ResultRow {
        size: 64,
        sent: 10,
        acknowledged: 10,
        elapsed: Duration::from_nanos(68_204_000),
    };
    assert_eq!(
        row.to_string(),
        "64      10      =10      1.2k        0.07s      0.02    3410.20       0.00"
    );
}

#[test]
fn options_may_be_joined_to_their_values_and_follow_the_server() {
    let o = parse(&words("-p tcp -ermd")).unwrap_err();
    assert_eq!(o.message, "Unknown endpoint : rmd");
    let o = parse(&words("-ptcp 127.0.0.1 -e rdm -cI5 -S all -m tagged -B 1 -P2 -6")).unwrap();
    assert_eq!(o.provider.as_deref(), Some("tcp"));
    assert_eq!(o.server.as_deref(), Some("127.0.0.1"));
    assert!(o.check && o.v6 && o.iterations == 5 && o.size.is_none());
    assert!(o.mode == Mode::Tagged && o.source_port == Some(1) && o.destination_port == 2);
}

#[test]
fn a_fabric_and_a_source_address_can_be_chosen() {
    let o = parse(&words("-f 192.0.2.0/24 -s192.0.2.7 -d eth0")).unwrap();
    assert_eq!(o.fabric.as_deref(), Some("192.0.2.0/24"));
    assert_eq!(o.source.as_deref(), Some("192.0.2.7"));
    assert_eq!((o.domain.as_deref(), o.server), (Some("eth0"), None));
    assert!(parse(&words("-s")).unwrap_err().usage && parse(&words("-f")).unwrap_err().usage);
}

#[test]
fn unknown_options_and_missing_values_print_the_usage() {
    let r = parse(&words("-x")).unwrap_err();
    assert_eq!((r.message.as_str(), r.usage), ("invalid option -- 'x'", true));
    assert!(parse(&words("-p")).unwrap_err().usage);
    assert!(parse(&words("-S foo")).unwrap_err().message.contains("foo"));
    assert_eq!(
        parse(&words("-h")).unwrap_err(),
        UsageError { message: String::new(), usage: true }
    );
}
