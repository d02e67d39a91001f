//! Shows what processes that use the library do, again and again (fi_top(1)).
mod looking;

use looking::{LookOptions, complain, endpoint_cells, now, print, processes_json, table};
use ofi_facts::layout::EndpointFacts;
use ofi_facts::read::{ShownPage, ShownProcess};
use ofi_facts::show::{address, json, link, short, state, time};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: fi_top [-d SECONDS] [-n TIMES] [-p] [-b] [--json | --metrics] [PID...]

Shows what processes of this host that use libfabric do: messages and bytes a
second, queues, and what waits.

  -d SECONDS   time between two looks (default 1)
  -n TIMES     end after so many (default: never on a terminal, else 1)
  -p           a line for each peer as well
  -b           plain lines, as when the output is no terminal
  --json       the counters themselves as JSON, once
  --metrics    the counters in the text format of Prometheus, once
  -h, --help   this text

Keys on a terminal: m b q sort by messages, bytes, or what waits in queues; p shows
peers or hides them; x ends.
";

/// What the lines are sorted by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SortKey {
    Messages,
    Bytes,
    Queues,
}

/// The terminal while single keys are read from it; as it was when this goes.
struct KeyTerminal(libc::termios);

impl KeyTerminal {
    fn new() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        // SAFETY: all zeros is a valid `termios`; the calls read and write it, and it outlives them.
        unsafe {
            let mut now: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(0, &raw mut now) != 0 {
                return None;
            }
            let before = now;
            now.c_lflag &= !(libc::ICANON | libc::ECHO);
            libc::tcsetattr(0, libc::TCSANOW, &raw const now);
            Some(Self(before))
        }
    }

    /// The key that is pressed within this time.
    fn key(within: Duration) -> Option<u8> {
        let mut fd = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
        let millis = within.as_millis().min(1 << 30) as libc::c_int;
        // SAFETY: one structure, which outlives the call.
        if unsafe { libc::poll(&raw mut fd, 1, millis) } <= 0 {
            return None;
        }
        let mut key = [0];
        matches!(io::stdin().read(&mut key), Ok(1)).then_some(key[0])
    }
}

impl Drop for KeyTerminal {
    fn drop(&mut self) {
        // SAFETY: the structure outlives the call.
        unsafe { libc::tcsetattr(0, libc::TCSANOW, &raw const self.0) };
    }
}

/// A line's cells, and by what it is sorted.
struct RatedLine {
    cells: Vec<String>,
    peers: Vec<Vec<String>>,
    messages: f64,
    bytes: f64,
    queued: u64,
}

/// How much a second, if the records were written at these times.
fn rates(before: [u64; 4], after: [u64; 4], nanos: u64) -> [f64; 4] {
    let rate = |at: usize| after[at].wrapping_sub(before[at]) as f64 * 1e9 / nanos.max(1) as f64;
    std::array::from_fn(|at| if nanos == 0 { 0.0 } else { rate(at) })
}

/// What is worth a remark.
fn remark(process: &ShownProcess, endpoint: &EndpointFacts, turns: u64, at: u64) -> String {
    let seen = at.saturating_sub(endpoint.written);
    if process.is_stopped() {
        "stopped".into()
    } else if endpoint.rx_queue_size > 0 && endpoint.rx_queue >= endpoint.rx_queue_size {
        "queue full".into()
    } else if turns == 0 && !(endpoint.asleep > 0 && process.system.polls) && seen > 500_000_000 {
        format!("no progress for {}", time(seen))
    } else if endpoint.asleep > 0 && process.system.polls && turns < 10 {
        "asleep".into()
    } else if endpoint.idle > 0 && at.saturating_sub(endpoint.moved) > 1_000_000_000 {
        format!("nothing for {}", time(at.saturating_sub(endpoint.moved)))
    } else {
        String::new()
    }
}

fn lines(before: &[ShownProcess], after: &[ShownProcess], at: u64) -> Vec<RatedLine> {
    let mut lines = Vec::new();
    for process in after {
        let old = before.iter().find(|old| old.pid == process.pid);
        for (index, page) in process.pages.iter().enumerate() {
            let old = old.and_then(|old| old.pages.get(index));
            for endpoint in &page.endpoints {
                lines.push(line(process, page, endpoint, old, at));
            }
        }
    }
    lines
}

fn line(
    process: &ShownProcess,
    page: &ShownPage,
    endpoint: &EndpointFacts,
    old: Option<&ShownPage>,
    at: u64,
) -> RatedLine {
    let same = |known: &&EndpointFacts| known.serial == endpoint.serial;
    let before = old.and_then(|old| Some((old, old.endpoints.iter().find(same)?)));
    let turn =
        |page: &ShownPage| page.head.turns.get(endpoint.engine as usize).copied().unwrap_or(0);
    let (rate, turns) = match before {
        None => ([0.0; 4], 1),
        Some((old, known)) => {
            let nanos = endpoint.written.saturating_sub(known.written);
            let rate = rates(old.passed(known), page.passed(endpoint), nanos);
            (rate, turn(page).wrapping_sub(turn(old)))
        }
    };
    let [posted, unexpected] =
        [endpoint.posted, endpoint.unexpected].map(|[m, t]| m.saturating_add(t));
    let queued = endpoint.rx_queue.saturating_add(unexpected).saturating_add(endpoint.in_flight);
    let mut cells = endpoint_cells(process, page, endpoint, rate);
    cells
        .extend([posted, unexpected, endpoint.in_flight, endpoint.rx_queue].map(|n| n.to_string()));
    cells.push(remark(process, endpoint, turns, at));
    let peers = page.peers_of(endpoint).map(|peer| {
        let known =
            before.and_then(|(old, _)| old.peers.iter().find(|known| known.serial == peer.serial));
        let passed = |peer: &ofi_facts::layout::PeerFacts| {
            [peer.sent, peer.sent_bytes, peer.received, peer.received_bytes]
        };
        let rate = known.map_or([0.0; 4], |known| {
            rates(passed(known), passed(peer), peer.written.saturating_sub(known.written))
        });
        let [sent, sent_bytes, received, received_bytes] = rate.map(short);
        let still = at.saturating_sub(peer.moved);
        let mut row = vec![String::new(); 14];
        (row[1], row[2], row[3]) = (address(&peer.address), state(peer).into(), link(peer).into());
        (row[5], row[6], row[7], row[8]) = (sent, sent_bytes, received, received_bytes);
        row[11] = peer.unsent.saturating_add(peer.unacknowledged).to_string();
        if still > 1_000_000_000 {
            row[13] = format!("nothing for {}", time(still));
        }
        row
    });
    RatedLine {
        cells,
        peers: peers.collect(),
        messages: rate[0] + rate[2],
        bytes: rate[1] + rate[3],
        queued,
    }
}

fn screen(mut lines: Vec<RatedLine>, key: SortKey, with_peers: bool) -> String {
    lines.sort_by(|one, other| match key {
        SortKey::Messages => other.messages.total_cmp(&one.messages),
        SortKey::Bytes => other.bytes.total_cmp(&one.bytes),
        SortKey::Queues => other.queued.cmp(&one.queued),
    });
    let heading = [
        "PID", "PROGRAM", "PROVIDER", "TYPE", "PEERS", "SENT/s", "BYTES/s", "RECV/s", "BYTES/s",
        "POSTED", "UNEXP", "FLIGHT", "UNREAD", "REMARK",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for line in lines {
        rows.push(line.cells);
        if with_peers {
            rows.extend(line.peers);
        }
    }
    table(&rows)
}

/// The counters, as Prometheus' textfile collector takes them.
fn metrics(processes: &[ShownProcess]) -> String {
    type Value = fn(&ShownPage, &EndpointFacts) -> u64;
    let known: [(&str, &str, &str, Value); 9] = [
        ("sent_messages_total", "counter", "Messages sent", |page, ep| page.passed(ep)[0]),
        ("sent_bytes_total", "counter", "Bytes sent", |page, ep| page.passed(ep)[1]),
        ("received_messages_total", "counter", "Messages received", |page, ep| page.passed(ep)[2]),
        ("received_bytes_total", "counter", "Bytes received", |page, ep| page.passed(ep)[3]),
        ("posted_receives", "gauge", "Receives that wait", |_, ep| {
            ep.posted[0].saturating_add(ep.posted[1])
        }),
        ("unexpected_messages", "gauge", "Messages that came before their receive", |_, ep| {
            ep.unexpected[0].saturating_add(ep.unexpected[1])
        }),
        ("in_flight", "gauge", "Operations that are not complete", |_, ep| ep.in_flight),
        (
            "unread_completions",
            "gauge",
            "Entries of the receive queue that nobody read",
            |_, ep| ep.rx_queue,
        ),
        ("lost_connections_total", "counter", "Connections that were lost", |_, ep| ep.lost[0]),
    ];
    let mut text = String::new();
    for (name, of, help, value) in known {
        let _ = writeln!(text, "# HELP libfabric_{name} {help}\n# TYPE libfabric_{name} {of}");
        for process in processes {
            for page in &process.pages {
                for endpoint in &page.endpoints {
                    let _ = writeln!(
                        text,
                        "libfabric_{name}{{pid=\"{}\",program={},provider={},address={}}} {}",
                        process.pid,
                        json(&process.system.program),
                        json(&page.provider()),
                        json(&address(&endpoint.address)),
                        value(page, endpoint)
                    );
                }
            }
        }
    }
    text
}

fn main() -> ExitCode {
    let flags = ["-p", "-b", "--json", "--metrics"];
    let options = LookOptions::parse("fi_top", HELP, &flags, &["-d", "-n"]);
    let mut before = options.look("fi_top");
    if options.has("--json") || options.has("--metrics") {
        let text = if options.has("--json") { processes_json(&before) } else { metrics(&before) };
        print(&text);
        return ExitCode::SUCCESS;
    }
    if before.is_empty() {
        complain("fi_top", "no process that uses libfabric can be looked at");
    }
    let terminal = !options.has("-b") && io::stdout().is_terminal();
    let times = options.value("-n", if terminal { f64::INFINITY } else { 1.0 });
    let wait = Duration::from_secs_f64(options.value("-d", 1.0).max(0.05));
    let keys = if terminal { KeyTerminal::new() } else { None };
    let (mut sort, mut peers, mut shown) = (SortKey::Messages, options.has("-p"), 0.0);
    while shown < times {
        let mut ended = false;
        if keys.is_some() {
            match KeyTerminal::key(wait) {
                Some(b'm') => sort = SortKey::Messages,
                Some(b'b') => sort = SortKey::Bytes,
                Some(b'q') => sort = SortKey::Queues,
                Some(b'p') => peers = !peers,
                Some(b'x' | 4) => ended = true,
                _ => {}
            }
        } else {
            std::thread::sleep(wait);
        }
        if ended {
            break;
        }
        let after = options.look("fi_top");
        if after.is_empty() {
            break;
        }
        let text = screen(lines(&before, &after, now()), sort, peers);
        print(&if terminal { format!("\x1b[H\x1b[2J{text}") } else { text });
        before = after;
        shown += 1.0;
    }
    drop(keys);
    ExitCode::SUCCESS
}
