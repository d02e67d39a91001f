//! Shows the activity of processes using the library, refreshed periodically (fi_top(1)).
mod cli;
mod hosts;

use cli::{
    CliOptions, CliSyntax, LookedAt, class_text, complain, endpoint_cells, is_listed, latencies,
    now, print, process_labels, processes_json, quantile, table,
};
use hosts::{DumpSource, missing_text};
use ofi_hosts::job::Job;
use ofi_hosts::parse::COMMON_NOW;
use ofi_stats::doctor::by_key;
use ofi_stats::layout::{ENDPOINT_COUNTERS, EndpointStats, Metric, PeerStats, latency_below};
use ofi_stats::origin::ProcessKey;
use ofi_stats::read::{StatsPage, StatsProcess};
use ofi_stats::show::{address, json, link, link_with_paths, receive, secrecy, short, state, time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
Usage: fi_top [-d SECONDS] [-n TIMES] [-s KEY] [-a] [-p] [-l] [-b] [--json | --metrics] [PID...]
       fi_top [OPTIONS] {--hosts HOST,... | --slurm JOB} [--command COMMAND] [--timeout SECONDS]
       fi_top [OPTIONS] --from FILE...

Shows what processes of this host that use libfabric do: messages and bytes a
second, queues, and what waits; with --hosts those of several hosts.

  -d SECONDS   time between two looks (default 1)
  -n TIMES     end after so many (default: never on a terminal, else 1)
  -s KEY       sort by m, messages (the default), b, bytes, or q, what waits in queues
  -a           endpoints that serve those of a utility provider (ofi_rxm) as well
  -p           a line for each peer as well
  -l           lines that say how many transfers took how long
  -b           plain lines, as when the output is no terminal
  --json       the counters themselves as JSON, once
  --metrics    the counters in the text format of Prometheus, once
  --hosts HOST,...   runs a command for each of these hosts, for each refresh
  --slurm JOB        the same for the nodes of this job, with srun
  --command COMMAND  the command, with {} for the host, without a shell (default
                     'ssh -o BatchMode=yes -- {} fi_ps --dump')
  --timeout SECONDS  time limit of each command (default 30)
  --from FILE        a file written by 'fi_ps --dump', shown once; several times
  -h, --help   this text

Keys on a terminal: m b q sort by messages, bytes, or what waits in queues; p shows
peers or hides them, l how long transfers took; arrows (or j k) choose a line, enter
goes into it, an endpoint or a peer, and u back; x ends.
";

/// Sort key of the lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SortKey {
    Messages,
    Bytes,
    Queues,
}

/// A key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TopKey {
    Char(u8),
    Up,
    Down,
}

/// The terminal while single keys are read from it; as it was when this goes.
struct KeyTerminal(Termios);

impl KeyTerminal {
    fn new() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &now);
        Some(Self(before))
    }

    /// Returns the key pressed within this time.
    fn key(within: Duration) -> Option<TopKey> {
        let first = Self::byte(within)?;
        // An arrow is three bytes, which come together.
        if first != 27 || Self::byte(Duration::from_millis(20)) != Some(b'[') {
            return Some(TopKey::Char(first));
        }
        match Self::byte(Duration::from_millis(20)) {
            Some(b'A') => Some(TopKey::Up),
            Some(b'B') => Some(TopKey::Down),
            _ => None,
        }
    }

    fn byte(within: Duration) -> Option<u8> {
        let limit = Timespec::try_from(within).ok()?;
        let input = io::stdin();
        if !matches!(poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&limit)), Ok(1..)) {
            return None;
        }
        // Not by a buffered reader: what that takes at once is not seen by the next poll.
        let mut key = [0u8];
        let read = rustix::io::read(&input, &mut key).ok()?;
        // The terminal's end is as good as a key that ends the program.
        Some(if read == 0 { 4 } else { key[0] })
    }
}

impl Drop for KeyTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Identity of a line across refreshes: the process, the index of its page, the endpoint's serial
/// and, for a peer's line, the peer's.
type LineKey = (ProcessKey, usize, u64, u64);

/// Content of the screen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TopView {
    /// All endpoints.
    All,
    /// One endpoint, with its peers.
    Endpoint(LineKey),
    /// One peer.
    Peer(LineKey),
}

/// A peer's line.
struct PeerLine {
    serial: u64,
    cells: Vec<String>,
}

/// Details of a single peer.
type PeerDetails = Vec<(&'static str, String)>;

/// Selection of an endpoint's peers to show, possibly many.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportedPeers {
    None,
    /// A line for each.
    All,
    /// All details of the one with this serial.
    One(u64),
}

/// Cells of a line, and its sort values.
struct RatedLine {
    key: LineKey,
    cells: Vec<String>,
    peers: Vec<PeerLine>,
    /// Details of the selected peer.
    details: Option<PeerDetails>,
    /// Numbers of transfers by latency.
    times: Vec<(String, u64)>,
    messages: f64,
    bytes: f64,
    queued: u64,
}

/// Returns the rates per second between two reads.
fn rates(before: [u64; 4], after: [u64; 4], nanos: u64) -> [f64; 4] {
    let rate = |at: usize| after[at].wrapping_sub(before[at]) as f64 * 1e9 / nanos.max(1) as f64;
    std::array::from_fn(|at| if nanos == 0 { 0.0 } else { rate(at) })
}

/// Returns a remark about notable conditions.
fn remark(process: &StatsProcess, endpoint: &EndpointStats, iterations: u64, at: u64) -> String {
    let seen = at.saturating_sub(endpoint.written);
    if process.is_stopped() {
        "stopped".into()
    } else if endpoint.rx_queue_size > 0 && endpoint.rx_queue >= endpoint.rx_queue_size {
        "queue full".into()
    } else if iterations == 0
        && !(endpoint.asleep > 0 && process.system.polls)
        && seen > 500_000_000
    {
        format!("no progress for {}", time(seen))
    } else if endpoint.asleep > 0 && process.system.polls && iterations < 10 {
        "asleep".into()
    } else if endpoint.idle > 0 && at.saturating_sub(endpoint.moved) > 1_000_000_000 {
        format!("nothing for {}", time(at.saturating_sub(endpoint.moved)))
    } else {
        String::new()
    }
}

fn lines(
    before: &[StatsProcess],
    after: &[StatsProcess],
    at: u64,
    all: bool,
    choice: &TopChoice,
) -> Vec<RatedLine> {
    let mut lines = Vec::new();
    let before = by_key(before);
    for process in after {
        let old = before.get(&process.key());
        for (index, page) in process.pages.iter().enumerate() {
            let old = old.and_then(|old| old.pages.get(index));
            for endpoint in page.endpoints.iter().filter(|one| is_listed(process, one, all)) {
                let reported_peers =
                    choice.reported_peers((process.key(), index, endpoint.serial, 0));
                lines.push(line(process, index, endpoint, old, at, reported_peers));
            }
        }
    }
    lines
}

fn line(
    process: &StatsProcess,
    index: usize,
    endpoint: &EndpointStats,
    old: Option<&StatsPage>,
    at: u64,
    reported_peers: ReportedPeers,
) -> RatedLine {
    let page = &process.pages[index];
    let same = |known: &&EndpointStats| known.serial == endpoint.serial;
    let before = old.and_then(|old| Some((old, old.endpoints.iter().find(same)?)));
    let iterations_of =
        |page: &StatsPage| page.head.iterations.get(endpoint.engine as usize).copied().unwrap_or(0);
    let (rate, iterations) = match before {
        None => ([0.0; 4], 1),
        Some((old, known)) => {
            let nanos = endpoint.written.saturating_sub(known.written);
            let rate = rates(old.passed(known), page.passed(endpoint), nanos);
            (rate, iterations_of(page).wrapping_sub(iterations_of(old)))
        }
    };
    let [posted, unexpected] =
        [endpoint.posted, endpoint.unexpected].map(|[m, t]| m.saturating_add(t));
    let queued = endpoint.rx_queue.saturating_add(unexpected).saturating_add(endpoint.in_flight);
    let mut cells = endpoint_cells(process, page, endpoint, rate);
    cells
        .extend([posted, unexpected, endpoint.in_flight, endpoint.rx_queue].map(|n| n.to_string()));
    let (immediate, classes) = latencies(page, endpoint, before);
    cells.extend([0.5, 0.99].map(|part| quantile(immediate, &classes, part)));
    cells.push(remark(process, endpoint, iterations, at));
    let (mut peers, mut details) = (Vec::new(), None);
    if reported_peers != ReportedPeers::None {
        let known = before.map_or(&[][..], |(old, known)| old.peers_of(known));
        let known: HashMap<_, _> = known.iter().map(|peer| (peer.serial, peer)).collect();
        for peer in page.peers_of(endpoint) {
            let rate = peer_rate(peer, known.get(&peer.serial).copied());
            match reported_peers {
                ReportedPeers::One(serial) if serial == peer.serial => {
                    details = Some(peer_details(page, endpoint, peer, rate, at));
                }
                ReportedPeers::All => peers.push(peer_line(peer, rate, at)),
                _ => {}
            }
        }
    }
    let count = |(class, count): (usize, &u64)| (class_text(class), *count);
    let waited = classes.iter().enumerate().filter(|(_, count)| **count > 0).map(count);
    RatedLine {
        key: (process.key(), index, endpoint.serial, 0),
        cells,
        peers,
        details,
        times: std::iter::once(("at once".into(), immediate)).chain(waited).collect(),
        messages: rate[0] + rate[2],
        bytes: rate[1] + rate[3],
        queued,
    }
}

/// Returns the rates per second to and from a peer.
fn peer_rate(peer: &PeerStats, known: Option<&PeerStats>) -> [String; 4] {
    let passed =
        |peer: &PeerStats| [peer.sent, peer.sent_bytes, peer.received, peer.received_bytes];
    let rate = known.map_or([0.0; 4], |known| {
        rates(passed(known), passed(peer), peer.written.saturating_sub(known.written))
    });
    rate.map(short)
}

fn peer_line(peer: &PeerStats, rate: [String; 4], at: u64) -> PeerLine {
    let still = at.saturating_sub(peer.moved);
    let mut cells = vec![String::new(); COLUMNS];
    (cells[1], cells[2], cells[3]) =
        (address(&peer.address), state(peer).into(), link(peer).into());
    cells[5..9].clone_from_slice(&rate);
    cells[11] = peer.unsent.saturating_add(peer.unacknowledged).to_string();
    if still > 1_000_000_000 {
        cells[COLUMNS - 1] = format!("nothing for {}", time(still));
    }
    PeerLine { serial: peer.serial, cells }
}

fn peer_details(
    page: &StatsPage,
    endpoint: &EndpointStats,
    peer: &PeerStats,
    [sent, sent_bytes, received, received_bytes]: [String; 4],
    at: u64,
) -> PeerDetails {
    let still = at.saturating_sub(peer.moved);
    let name =
        if peer.name == ofi_stats::layout::ANY { "none".into() } else { peer.name.to_string() };
    let of_it = |waiting: &&ofi_stats::layout::PendingOpStats| {
        waiting.kind != 0 && waiting.source == peer.name
    };
    let receives = endpoint.receives.iter().filter(of_it);
    let receives: Vec<_> = receives.map(|one| receive(one, |_| address(&peer.address))).collect();
    vec![
        ("of the endpoint", format!("{} {}", page.provider(), address(&endpoint.address))),
        ("peer", address(&peer.address)),
        ("fi_addr_t", name),
        ("state", format!("{}, for {}", state(peer), time(at.saturating_sub(peer.since)))),
        ("its bytes go through", format!("{} ({})", link_with_paths(peer), secrecy(peer))),
        ("last message", format!("{} ago", time(still))),
        ("sent", format!("{} messages, {} bytes", peer.sent, peer.sent_bytes)),
        ("received", format!("{} messages, {} bytes", peer.received, peer.received_bytes)),
        ("a second, sent", format!("{sent} messages, {sent_bytes} bytes")),
        ("a second, received", format!("{received} messages, {received_bytes} bytes")),
        (
            "not sent yet",
            format!("{} transfers, at least {} bytes", peer.unsent, peer.unsent_bytes),
        ),
        ("sent, not confirmed", peer.unacknowledged.to_string()),
        ("announced to it", peer.announced.to_string()),
        ("announced by it", peer.at_sender.to_string()),
        ("requests without answer", peer.unanswered.to_string()),
        ("bytes still to come", peer.incomplete.to_string()),
        ("receives from it alone", receives.join("; ")),
    ]
}

const HEADING: [&str; 16] = [
    "PID", "PROGRAM", "PROVIDER", "TYPE", "PEERS", "SENT/s", "BYTES/s", "RECV/s", "BYTES/s",
    "POSTED", "UNEXP", "FLIGHT", "UNREAD", "HALF", "99 %", "REMARK",
];

const COLUMNS: usize = HEADING.len();

/// Visible part of the lines.
struct TopScreen {
    text: String,
    /// Selectable lines, in the order of the screen.
    keys: Vec<LineKey>,
}

/// Display settings.
struct TopChoice {
    sort: SortKey,
    peers: bool,
    times: bool,
    view: TopView,
    /// Selected line.
    cursor: Option<LineKey>,
}

impl TopChoice {
    /// Returns the peers to show of the endpoint with this key.
    fn reported_peers(&self, endpoint: LineKey) -> ReportedPeers {
        match self.view {
            TopView::All if self.peers => ReportedPeers::All,
            TopView::Endpoint(key) if key == endpoint => ReportedPeers::All,
            TopView::Peer((process, page, serial, peer))
                if (process, page, serial, 0) == endpoint =>
            {
                ReportedPeers::One(peer)
            }
            _ => ReportedPeers::None,
        }
    }

    fn screen(&self, mut lines: Vec<RatedLine>) -> TopScreen {
        lines.sort_by(|one, other| match self.sort {
            SortKey::Messages => other.messages.total_cmp(&one.messages),
            SortKey::Bytes => other.bytes.total_cmp(&one.bytes),
            SortKey::Queues => other.queued.cmp(&one.queued),
        });
        if let TopView::Peer(_) = self.view {
            let found = lines.iter().find_map(|line| Some((line, line.details.as_ref()?)));
            let text = match found {
                Some((RatedLine { cells, .. }, details)) => {
                    let pid = &cells[0];
                    let rows = details.iter().map(|(name, value)| format!("{name:>24}  {value}"));
                    format!("process {pid}\n{}\n", rows.collect::<Vec<_>>().join("\n"))
                }
                None => "this peer is not connected any more\n".into(),
            };
            return TopScreen { text, keys: Vec::new() };
        }
        let mut rows = vec![HEADING.map(String::from).to_vec()];
        // The keys of rows, and lines that follow a row.
        let (mut keys, mut below) = (vec![None], vec![Vec::new()]);
        for line in lines {
            let inside = self.view == TopView::Endpoint(line.key);
            if self.view != TopView::All && !inside {
                continue;
            }
            let mut times = Vec::new();
            if self.times || inside {
                let all = line.times.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
                times.extend(line.times.iter().filter(|_| all > 0).map(|(class, count)| {
                    let part = *count as f64 / all as f64;
                    let bar = "#".repeat((part * 40.0).round() as usize);
                    format!("{class:>14} {:>6.2} % {bar}", 100.0 * part)
                }));
            }
            rows.push(line.cells);
            keys.push(Some(line.key).filter(|_| !inside));
            below.push(times);
            if self.peers || inside {
                for peer in line.peers {
                    rows.push(peer.cells);
                    keys.push(Some((line.key.0, line.key.1, line.key.2, peer.serial)));
                    below.push(Vec::new());
                }
            }
        }
        let mut text = String::new();
        for ((line, key), below) in table(&rows).lines().zip(&keys).zip(&below) {
            let chosen = key.is_some() && *key == self.cursor;
            text += &if chosen { format!("\x1b[7m{line}\x1b[0m\n") } else { format!("{line}\n") };
            below.iter().for_each(|line| text += &format!("{line}\n"));
        }
        if rows.len() == 1 && self.view != TopView::All {
            text += "this endpoint is no more\n";
        }
        TopScreen { text, keys: keys.into_iter().flatten().collect() }
    }

    /// Handles a key. Returns false if it ends the program. `keys` are those of the selectable
    /// lines.
    fn press(&mut self, key: TopKey, keys: &[LineKey]) -> bool {
        let at = self.cursor.and_then(|cursor| keys.iter().position(|key| *key == cursor));
        let go = |to: usize| keys.get(to.min(keys.len().saturating_sub(1))).copied();
        match key {
            TopKey::Char(b'm') => self.sort = SortKey::Messages,
            TopKey::Char(b'b') => self.sort = SortKey::Bytes,
            TopKey::Char(b'q') => self.sort = SortKey::Queues,
            TopKey::Char(b'p') => self.peers = !self.peers,
            TopKey::Char(b'l') => self.times = !self.times,
            TopKey::Down | TopKey::Char(b'j') => self.cursor = go(at.map_or(0, |at| at + 1)),
            TopKey::Up | TopKey::Char(b'k') => self.cursor = go(at.unwrap_or(0).saturating_sub(1)),
            TopKey::Char(b'\n' | b'\r') => {
                let chosen = at.and_then(|at| keys.get(at));
                if let Some(key) = chosen {
                    self.view =
                        if key.3 == 0 { TopView::Endpoint(*key) } else { TopView::Peer(*key) };
                    self.cursor = None;
                }
            }
            TopKey::Char(b'u') => {
                self.view = match self.view {
                    TopView::Peer((process, page, endpoint, _)) => {
                        TopView::Endpoint((process, page, endpoint, 0))
                    }
                    _ => TopView::All,
                };
                self.cursor = None;
            }
            TopKey::Char(b'x' | 4) => return false,
            TopKey::Char(_) => {}
        }
        true
    }
}

/// The counters, as Prometheus' textfile collector takes them.
fn metrics(looked: &LookedAt) -> String {
    let mut text = String::new();
    let series = series(&looked.processes);
    for counter in ENDPOINT_COUNTERS {
        let Some(Metric { name, kind, help }) = &counter.metric else { continue };
        let _ = writeln!(text, "# HELP libfabric_{name} {help}\n# TYPE libfabric_{name} {kind}");
        for (labels, page, endpoint) in &series {
            let value = (counter.value)(endpoint, page.passed(endpoint)).total();
            let _ = writeln!(text, "libfabric_{name}{{{labels}}} {value}");
        }
    }
    let name = "transfer_seconds";
    let _ = writeln!(
        text,
        "# HELP libfabric_{name} How long transfers took; the sum is an estimate\n# TYPE libfabric_{name} histogram"
    );
    for (labels, page, endpoint) in &series {
        let (immediate, classes) = latencies(page, endpoint, None);
        let (mut count, mut sum) = (immediate, 0.0);
        let _ = writeln!(text, "libfabric_{name}_bucket{{{labels},le=\"0\"}} {count}");
        for (class, more) in classes.iter().enumerate() {
            count = count.saturating_add(*more);
            let below = latency_below(class).map(|nanos| nanos as f64 / 1e9);
            // In the middle of the class.
            sum += *more as f64 * below.unwrap_or(8.0) * 0.75;
            let le = below.map_or("+Inf".into(), |below| format!("{below}"));
            let _ = writeln!(text, "libfabric_{name}_bucket{{{labels},le=\"{le}\"}} {count}");
        }
        let _ = writeln!(text, "libfabric_{name}_sum{{{labels}}} {sum:.6}");
        let _ = writeln!(text, "libfabric_{name}_count{{{labels}}} {count}");
    }
    text + &looked.left_out_metrics()
}

/// Returns the endpoints, each with unique labels: Prometheus rejects a file with two equal series,
/// and a process may publish two endpoints with one address.
fn series(processes: &[StatsProcess]) -> Vec<(String, &StatsPage, &EndpointStats)> {
    let (mut series, mut known) = (Vec::new(), HashSet::new());
    for process in processes {
        for (index, page) in process.pages.iter().enumerate() {
            for endpoint in &page.endpoints {
                let mut labels = format!(
                    "{},provider={},address={}",
                    process_labels(process),
                    json(&page.provider()),
                    json(&address(&endpoint.address)),
                );
                if !known.insert(labels.clone()) {
                    let _ = write!(labels, ",endpoint=\"{index}.{}\"", endpoint.serial);
                }
                series.push((labels, page, endpoint));
            }
        }
    }
    series
}

/// Both reads of a refresh.
struct Refresh {
    before: LookedAt,
    after: LookedAt,
    at: u64,
    /// Lines about hosts without statistics.
    missing: String,
    /// Number of hosts with statistics; 0 for this host alone.
    hosts: usize,
}

/// Reads the processes of several hosts. A dump has both reads.
fn refresh_hosts(source: &DumpSource) -> Refresh {
    let read = source.read();
    let Job { before, after, hosts, .. } = Job::join(read.dumps);
    Refresh {
        before: LookedAt { processes: before, left_out: 0 },
        after: LookedAt { processes: after, left_out: 0 },
        at: COMMON_NOW,
        missing: missing_text(&read.missing),
        hosts,
    }
}

/// Reads the processes of this host, after an earlier read.
fn refresh_host(options: &CliOptions, before: LookedAt) -> Refresh {
    let after = options.look("fi_top");
    Refresh { before, after, at: now(), missing: String::new(), hosts: 0 }
}

/// Keys of the terminal, and their effect on the screen.
struct Screen {
    keys: Option<KeyTerminal>,
    choice: TopChoice,
    /// Selectable lines of the displayed refresh.
    chosen: Vec<LineKey>,
    all: bool,
    terminal: bool,
}

impl Screen {
    fn show(&mut self, displayed: &Refresh) {
        self.chosen = show(&self.choice, displayed, self.all, self.terminal);
    }

    /// Handles the keys pressed until a time. Returns false if one ends the program.
    fn handle_keys(&mut self, until: Instant, displayed: Option<&Refresh>) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.keys.is_none() {
                std::thread::sleep(left);
                return true;
            }
            let Some(key) = KeyTerminal::key(left) else { return true };
            if !self.choice.press(key, &self.chosen) {
                return false;
            }
            if let Some(displayed) = displayed {
                self.show(displayed);
            }
        }
    }
}

/// Reads several hosts while keys are handled. Returns `None` if a key ends the program.
fn read_hosts(
    source: &DumpSource,
    screen: &mut Screen,
    displayed: Option<&Refresh>,
) -> Option<Refresh> {
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| refresh_hosts(source));
        while !reader.is_finished() {
            if !screen.handle_keys(Instant::now() + Duration::from_millis(50), displayed) {
                // The commands would delay the end until their time limit.
                screen.keys.take();
                std::process::exit(0);
            }
        }
        reader.join().ok()
    })
}

fn main() -> ExitCode {
    let flags = ["-a", "-p", "-l", "-b", "--json", "--metrics"];
    let (values, words) =
        (["-d", "-n", "--timeout"], ["-s", "--hosts", "--slurm", "--command", "--from"]);
    let syntax = CliSyntax { flags: &flags, values: &values, words: &words, takes_files: false };
    let options = CliOptions::parse_with("fi_top", HELP, &syntax);
    let source = DumpSource::new("fi_top", &options);
    if options.has("--json") || options.has("--metrics") {
        let (looked, missing) = match &source {
            Some(source) => {
                let read = refresh_hosts(source);
                (read.after, read.missing)
            }
            None => (options.look("fi_top"), String::new()),
        };
        eprint!("{missing}");
        let json = options.has("--json");
        print(&if json { processes_json(&looked) } else { metrics(&looked) });
        return ExitCode::from(if missing.is_empty() { 0 } else { 2 });
    }
    let sort = match options.word("-s") {
        None | Some("m") => SortKey::Messages,
        Some("b") => SortKey::Bytes,
        Some("q") => SortKey::Queues,
        Some(_) => complain("fi_top", "-s takes m, b or q"),
    };
    let mut before = LookedAt::default();
    if source.is_none() {
        before = options.look("fi_top");
        if before.processes.is_empty() {
            eprint!("{}", before.left_out_text());
            complain("fi_top", "no process that uses libfabric can be looked at");
        }
    }
    let terminal = !options.has("-b") && io::stdout().is_terminal();
    let unchanging = matches!(source, Some(DumpSource::Files(_))) && !terminal;
    let default = if terminal { f64::INFINITY } else { 1.0 };
    let times = if unchanging { 1.0 } else { options.value("-n", default) };
    let wait = Duration::from_secs_f64(options.value("-d", 1.0).max(0.05));
    let (has, all) = (|flag| options.has(flag), options.has("-a"));
    let choice =
        TopChoice { sort, peers: has("-p"), times: has("-l"), view: TopView::All, cursor: None };
    let keys = if terminal { KeyTerminal::new() } else { None };
    let mut screen = Screen { keys, choice, chosen: Vec::new(), all, terminal };
    let mut displayed: Option<Refresh> = None;
    let mut refreshes = 0.0;
    while refreshes < times {
        // The first refresh of several hosts needs no earlier one.
        let until = Instant::now()
            + if source.is_some() && displayed.is_none() { Duration::ZERO } else { wait };
        if !screen.handle_keys(until, displayed.as_ref()) {
            break;
        }
        let next = match &source {
            Some(source) => match read_hosts(source, &mut screen, displayed.as_ref()) {
                Some(next) => next,
                None => break,
            },
            None => {
                let before =
                    displayed.take().map_or_else(|| std::mem::take(&mut before), |old| old.after);
                refresh_host(&options, before)
            }
        };
        if source.is_none() && next.after.processes.is_empty() {
            break;
        }
        screen.show(&next);
        displayed = Some(next);
        refreshes += 1.0;
    }
    let is_missing =
        displayed.is_some_and(|displayed| !displayed.missing.is_empty() && displayed.hosts == 0);
    ExitCode::from(if is_missing { 2 } else { 0 })
}

/// Shows the lines and returns the keys of the selectable ones.
fn show(choice: &TopChoice, displayed: &Refresh, all: bool, terminal: bool) -> Vec<LineKey> {
    let Refresh { before, after, at, missing, .. } = displayed;
    let lines = lines(&before.processes, &after.processes, *at, all, choice);
    let TopScreen { text, keys } = choice.screen(lines);
    let text = text + &after.left_out_text() + missing;
    print(&if terminal { format!("\x1b[H\x1b[2J{text}") } else { text });
    keys
}
