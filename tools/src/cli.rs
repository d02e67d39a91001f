//! Common part of fi_ps, fi_top and fi_doctor: the selection of processes, the refresh interval,
//! and the messages about unreadable processes.
#![allow(dead_code, reason = "no tool needs all of it")]
use lexopt::{Arg, ValueExt as _};
use ofi_stats::bounds::{LeftOut, LookBounds};
use ofi_stats::layout::{
    ENDPOINT_COUNTERS, EndpointStats, LATENCY_CLASSES, PEER_COUNTERS, PeerStats, PendingOpStats,
    latency_below,
};
use ofi_stats::read::{self, StatsPage, StatsProcess, StatsReadError};
use ofi_stats::show::{address, json, kind, link, secrecy, short, state};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Nanoseconds of CLOCK_MONOTONIC, as processes write them.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Prints. Exits silently if the reader has closed the output, and with status 2 if the output
/// cannot be written, as with a full disk.
pub(crate) fn print(text: &str) {
    let written = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("standard output: {error}");
            std::process::exit(2);
        }
    }
}

/// Ends with status 2 after this complaint.
pub(crate) fn complain(own: &str, what: &str) -> ! {
    eprintln!("{own}: {what}");
    std::process::exit(2);
}

/// Statistics of one pass.
#[derive(Default)]
pub(crate) struct LookedAt {
    pub(crate) processes: Vec<StatsProcess>,
    /// Number of processes skipped entirely because of the limits of a pass.
    pub(crate) left_out: usize,
}

/// Maximum number of processes with a text about unread data.
const MOST_LEFT_OUT: usize = 20;

impl LookedAt {
    /// Returns the partially read processes.
    fn read_in_part(&self) -> impl Iterator<Item = (&StatsProcess, LeftOut)> {
        let all = self.processes.iter().map(|process| (process, process.left_out()));
        all.filter(|(_, left_out)| !left_out.is_nothing())
    }

    /// Returns lines about unread data; normally none.
    pub(crate) fn left_out_text(&self) -> String {
        let mut text = String::new();
        for (process, left_out) in self.read_in_part().take(MOST_LEFT_OUT) {
            let _ = writeln!(text, "left out of {}: {left_out}", process.who());
        }
        let more = self.read_in_part().skip(MOST_LEFT_OUT).count();
        if more > 0 {
            let _ = writeln!(text, "and something of {more} more processes");
        }
        if self.left_out > 0 {
            let _ = writeln!(
                text,
                "left out: {} processes, beyond the bounds of fi_ps(1): name those that matter",
                self.left_out
            );
        }
        text
    }

    /// Returns the unread data as JSON objects, by process; number 0 stands for all skipped
    /// processes.
    pub(crate) fn left_out_json(&self) -> Vec<(u32, String)> {
        let mut all: Vec<_> = self
            .read_in_part()
            .map(|(process, left_out)| (process.pid, left_out_object(&left_out)))
            .collect();
        if self.left_out > 0 {
            all.push((0, format!("{{\"processes\":{}}}", self.left_out)));
        }
        all
    }

    /// The same as lines for Prometheus.
    pub(crate) fn left_out_metrics(&self) -> String {
        let mut text = String::from(
            "# HELP libfabric_left_out What the tool did not read of a process, as there was too much of it or it \
             changed\n# TYPE libfabric_left_out gauge\n",
        );
        for (process, left_out) in self.read_in_part() {
            for (what, count) in left_out.numbers().into_iter().filter(|(_, count)| *count > 0) {
                let labels = process_labels(process);
                let _ = writeln!(text, "libfabric_left_out{{{labels},what=\"{what}\"}} {count}");
            }
        }
        let _ = writeln!(
            text,
            "# HELP libfabric_processes_left_out Processes that the tool did not read\n\
             # TYPE libfabric_processes_left_out gauge\nlibfabric_processes_left_out {}",
            self.left_out
        );
        text
    }
}

fn left_out_object(left_out: &LeftOut) -> String {
    object(&left_out.numbers().map(|(what, count)| (what, count.to_string())))
}

/// Returns the labels distinguishing a process's series from others.
pub(crate) fn process_labels(process: &StatsProcess) -> String {
    let host = match &*process.origin.host_name {
        "" => String::new(),
        host => format!("host={},", json(host)),
    };
    format!("{host}pid=\"{}\",program={}", process.pid, json(&process.system.program))
}

/// Function reading a process.
type ReadProcess = fn(u32, &mut LookBounds) -> Result<StatsProcess, StatsReadError>;

/// Returns the complaint about an argument without a meaning.
fn unknown(own: &str, arg: &str) -> String {
    format!("what is {arg:?}? See {own} --help")
}

/// Parsed command line.
#[derive(Default)]
pub(crate) struct CliOptions {
    /// Processes; all if none.
    pub(crate) pids: Vec<u32>,
    /// Given options without a value.
    pub(crate) set: Vec<String>,
    /// Options with one.
    pub(crate) values: Vec<(String, f64)>,
    /// Options with a word.
    pub(crate) words: Vec<(String, String)>,
    /// Arguments other than numbers.
    pub(crate) files: Vec<String>,
}

/// Options of a tool.
#[derive(Default)]
pub(crate) struct CliSyntax<'s> {
    /// Those without a value.
    pub(crate) flags: &'s [&'s str],
    /// Those with a number.
    pub(crate) values: &'s [&'s str],
    /// Those with a word.
    pub(crate) words: &'s [&'s str],
    /// Arguments may be names of files as well as numbers of processes.
    pub(crate) takes_files: bool,
}

impl CliOptions {
    /// Reads the command line. `flags` take no value, `values` a number of seconds or times.
    pub(crate) fn parse(own: &str, help: &str, flags: &[&str], values: &[&str]) -> Self {
        Self::parse_with(own, help, &CliSyntax { flags, values, ..CliSyntax::default() })
    }

    /// Like [`parse`](Self::parse), with options taking a word, and names of files.
    pub(crate) fn parse_with(own: &str, help: &str, syntax: &CliSyntax<'_>) -> Self {
        let CliSyntax { flags, values, words, takes_files } = syntax;
        let mut options = Self::default();
        let mut parser = lexopt::Parser::from_env();
        loop {
            let name = match parser.next() {
                Ok(None) => return options,
                Ok(Some(Arg::Short(letter))) => format!("-{letter}"),
                Ok(Some(Arg::Long(name))) => format!("--{name}"),
                Ok(Some(Arg::Value(value))) => match value.to_string_lossy().parse() {
                    Ok(pid) => {
                        options.pids.push(pid);
                        continue;
                    }
                    Err(_) if *takes_files => {
                        options.files.push(value.to_string_lossy().into_owned());
                        continue;
                    }
                    Err(_) => complain(own, &unknown(own, &value.to_string_lossy())),
                },
                // A value for an option without one.
                Err(error) => complain(own, &error.to_string()),
            };
            if matches!(name.as_str(), "-h" | "--help") {
                print(help);
                std::process::exit(0);
            } else if flags.contains(&name.as_str()) {
                options.set.push(name);
            } else if values.contains(&name.as_str()) {
                let value = parser.value().ok().and_then(|value| value.parse::<f64>().ok());
                let fits = value.filter(|value| (0.0..=1e6).contains(value));
                let Some(value) = fits else { complain(own, &format!("{name} takes a number")) };
                options.values.push((name, value));
            } else if words.contains(&name.as_str()) {
                let Ok(word) = parser.value() else {
                    complain(own, &format!("{name} takes a word"));
                };
                options.words.push((name, word.to_string_lossy().into_owned()));
            } else {
                complain(own, &unknown(own, &name));
            }
        }
    }

    pub(crate) fn has(&self, flag: &str) -> bool {
        self.set.iter().any(|set| set == flag)
    }

    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        let found = self.words.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, word)| word.as_str())
    }

    /// Returns the words of an option given several times.
    pub(crate) fn all_words(&self, name: &str) -> impl Iterator<Item = &str> {
        self.words.iter().filter(move |(known, _)| known == name).map(|(_, word)| word.as_str())
    }

    pub(crate) fn value(&self, name: &str, default: f64) -> f64 {
        let found = self.values.iter().rev().find(|(known, _)| known == name);
        found.map_or(default, |(_, value)| *value)
    }

    pub(crate) fn has_value(&self, name: &str) -> bool {
        self.values.iter().any(|(known, _)| known == name)
    }

    /// Reads the requested processes, or all. Reports unreadable requested ones on standard error.
    pub(crate) fn look(&self, own: &str) -> LookedAt {
        self.look_by(own, read::process)
    }

    /// [`look`](Self::look), with processes read by `read_one`.
    pub(crate) fn look_by(&self, own: &str, read_one: ReadProcess) -> LookedAt {
        let any = self.pids.is_empty();
        let all = if any { read::any_processes() } else { self.pids.clone() };
        let (mut looked, mut bounds) = (LookedAt::default(), LookBounds::default());
        for pid in all {
            match read_one(pid, &mut bounds) {
                Ok(process) => looked.processes.push(process),
                // Most processes do not use the library, or are another user's.
                Err(StatsReadError::None | StatsReadError::Gone | StatsReadError::NotAllowed)
                    if any => {}
                Err(StatsReadError::TooMuch) if any => looked.left_out += 1,
                Err(error) => eprintln!("{own}: {pid}: {error}"),
            }
        }
        looked
    }
}

/// Returns true if an endpoint has a line. An endpoint serving a utility provider's has one only
/// with `all`: the program knows only the latter.
pub(crate) fn is_listed(process: &StatsProcess, endpoint: &EndpointStats, all: bool) -> bool {
    all || endpoint.serves == 0 || process.pages.len() == 1
}

/// Returns the number of an endpoint's transfers complete at the return of their call, then the
/// numbers by latency ([`latency_class`](ofi_stats::layout::latency_class)), since `before`.
pub(crate) fn latencies(
    page: &StatsPage,
    endpoint: &EndpointStats,
    before: Option<(&StatsPage, &EndpointStats)>,
) -> (u64, [u64; LATENCY_CLASSES]) {
    let mut classes = endpoint.latency;
    let mut sent = page.passed(endpoint)[0];
    if let Some((old_page, old)) = before {
        classes.iter_mut().zip(old.latency).for_each(|(now, then)| *now = now.wrapping_sub(then));
        sent = sent.wrapping_sub(old_page.passed(old)[0]);
    }
    let waited = classes.iter().fold(0u64, |sum, more| sum.saturating_add(*more));
    (sent.saturating_sub(waited), classes)
}

/// Returns the time within which this fraction of transfers completed as text; a dash if there are
/// none.
pub(crate) fn quantile(immediate: u64, classes: &[u64; LATENCY_CLASSES], part: f64) -> String {
    let all = classes.iter().fold(immediate, |sum, more| sum.saturating_add(*more));
    if all == 0 {
        return "-".into();
    }
    let wanted = (all as f64 * part).ceil() as u64;
    let mut seen = immediate;
    if seen >= wanted {
        return "at once".into();
    }
    for (class, count) in classes.iter().enumerate() {
        seen = seen.saturating_add(*count);
        if seen >= wanted {
            return class_text(class);
        }
    }
    "-".into()
}

/// The times of a class, in words.
pub(crate) fn class_text(class: usize) -> String {
    match latency_below(class) {
        Some(below @ 0..1_000_000) => format!("<{} us", below / 1000),
        Some(below @ 1_000_000..1_000_000_000) => format!("<{} ms", below / 1_000_000),
        Some(below) => format!("<{} s", below / 1_000_000_000),
        None => ">=4 s".into(),
    }
}

fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn peer_json(peer: &PeerStats) -> String {
    let mut fields = vec![
        ("address", json(&address(&peer.address))),
        ("fi_addr", (peer.name as i64).to_string()),
        ("state", json(state(peer))),
        ("link", json(link(peer))),
        ("secrecy", json(secrecy(peer))),
    ];
    fields.extend(PEER_COUNTERS.iter().map(|one| (one.name, (one.value)(peer).to_string())));
    object(&fields)
}

/// Returns a waiting receive or message as JSON, or `None` for a free entry.
fn waiting_json(waiting: &PendingOpStats) -> Option<String> {
    let last = waiting.ignore_or_len.to_string();
    (waiting.kind != 0).then(|| {
        object(&[
            ("tagged", (waiting.kind == 2).to_string()),
            ("tag", waiting.tag.to_string()),
            ("ignore_or_len", last),
            ("fi_addr", (waiting.source as i64).to_string()),
        ])
    })
}

fn endpoint_json(page: &StatsPage, endpoint: &EndpointStats) -> String {
    let passed = page.passed(endpoint);
    let errors = endpoint.errors.iter().filter(|error| error.count > 0);
    let mut fields = vec![
        ("address", json(&address(&endpoint.address))),
        ("kind", json(kind(endpoint.kind))),
        ("serves", (endpoint.serves != 0).to_string()),
    ];
    fields.extend(
        ENDPOINT_COUNTERS.iter().map(|one| (one.name, (one.value)(endpoint, passed).json())),
    );
    fields.extend([
        ("latency", list(endpoint.latency.iter().map(u64::to_string))),
        ("receives", list(endpoint.receives.iter().filter_map(waiting_json))),
        ("messages", list(endpoint.messages.iter().filter_map(waiting_json))),
        ("errors", list(errors.map(|error| format!("[{},{}]", error.code, error.count)))),
        ("peers", list(page.peers_of(endpoint).iter().map(peer_json))),
    ]);
    object(&fields)
}

/// Processes in JSON.
pub(crate) fn processes_json(looked: &LookedAt) -> String {
    let page = |page: &StatsPage| {
        object(&[
            ("provider", json(&page.provider())),
            (
                "library",
                json(&format!("{}.{}", page.head.library >> 16, page.head.library & 0xffff)),
            ),
            ("peers_left_out", page.head.peers_left_out.to_string()),
            ("endpoints_left_out", page.head.endpoints_left_out.to_string()),
            ("endpoints", list(page.endpoints.iter().map(|ep| endpoint_json(page, ep)))),
        ])
    };
    let mut left_out: HashMap<_, _> = looked.left_out_json().into_iter().collect();
    let mut process = |process: &StatsProcess| {
        let mut fields = vec![
            ("pid", process.pid.to_string()),
            ("program", json(&process.system.program)),
            ("threads", json(&process.system.threads)),
            ("providers", list(process.pages.iter().map(page))),
        ];
        if !process.origin.host_name.is_empty() {
            fields.push(("host", json(&process.origin.host_name)));
        }
        fields.extend(left_out.remove(&process.pid).map(|what| ("left_out", what)));
        object(&fields)
    };
    // Processes of which nothing is known but how many there are have one object, of the number 0.
    let others = (looked.left_out > 0).then(StatsProcess::default);
    list(looked.processes.iter().chain(&others).map(&mut process)) + "\n"
}

/// Returns the first cells of an endpoint's row: process, program, provider, type, peers, and the
/// sent and received messages and bytes, as numbers of any unit.
pub(crate) fn endpoint_cells(
    process: &StatsProcess,
    page: &StatsPage,
    endpoint: &EndpointStats,
    passed: [f64; 4],
) -> Vec<String> {
    let mut cells = vec![
        process.number(),
        process.system.program.clone(),
        page.provider(),
        kind(endpoint.kind).to_string(),
        page.peers_of(endpoint).len().to_string(),
    ];
    cells.extend(passed.map(short));
    cells
}

/// Rows under a heading, in columns as wide as they need; numbers to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|c| c.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let number = rows.get(1).and_then(|row| row.get(at)).is_some_and(|cell| {
                cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains([':', '.'])
                    || cell.ends_with(['k', 'M', 'G'])
                        && cell.starts_with(|c: char| c.is_ascii_digit())
            });
            let wide = widths[at];
            let _ = if number {
                write!(line, "{cell:>wide$}  ")
            } else {
                write!(line, "{cell:<wide$}  ")
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
