//! Dumps of hosts: any content is read or rejected, joined, analysed and formatted as bounded text
//! without control characters.
use ofi_hosts::job::Job;
use ofi_hosts::parse::{JobBudget, parse_dump};

pub fn run(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let mut text = bytes.to_vec();
    if choice & 1 != 0 {
        // The first and the last line are valid.
        let head: &[u8] = b"{\"ofi_dump\":{\"version\":1,\"host\":\"a\",\"now\":9000000000}}\n";
        text.splice(0..0, head.iter().copied());
        text.push(b'\n');
        let lines = text.split(|byte| *byte == b'\n').count() - 1;
        text.extend(format!("{{\"end\":{lines}}}\n").bytes());
    }
    let read = || parse_dump(&mut &text[..], &JobBudget::default());
    let is_printable = |text: &str| text.len() < 4096 && !text.chars().any(char::is_control);
    let dump = match read() {
        Ok(dump) => dump,
        Err(error) => return assert!(is_printable(&error.to_string()), "{error}"),
    };
    let mut other = dump.clone();
    if choice & 2 != 0 {
        other.boot.push('x');
    }
    let job = Job::join(vec![(dump.host.clone(), dump), ("b".into(), other)]);
    assert!(job.notes.iter().all(|note| is_printable(note)), "{:?}", job.notes);
    for finding in job.diagnose().findings {
        assert!(is_printable(&finding.cause) && is_printable(&finding.seen), "{finding:?}");
    }
}
