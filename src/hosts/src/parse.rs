//! Reads dumps. A dump may have any content: its lines, records and texts are limited, and so are
//! the records of all dumps in total.
use crate::record::record_of;
use crate::{HostDump, VERSION, clean};
use ofi_stats::bounds::LeftOut;
use ofi_stats::layout::{
    EndpointStats, FIRST_ENDPOINTS, MAX_PEERS, MORE_ENDPOINTS, PeerStats, StatsHeader, text_words,
};
use ofi_stats::origin::ProcessOrigin;
use ofi_stats::read::{SocketStats, StatsPage, StatsProcess, SystemStats};
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum bytes of a line.
const MAX_LINE: u64 = 32 << 10;

/// Maximum bytes of a dump.
pub const MAX_BYTES: u64 = 1 << 30;

/// Maximum number of memory segments of a process, as for the processes of this host.
const MAX_PAGES: usize = 16;

/// Maximum number of endpoints of a memory segment.
const MAX_ENDPOINTS: usize = FIRST_ENDPOINTS + MORE_ENDPOINTS;

/// Maximum number of sockets with lost packets of a process.
const MAX_SOCKETS: usize = 65536;

/// Maximum number of letters of the states of threads.
const MAX_THREADS: usize = 1025;

/// Latest time of a host, 73 years after its start.
const MAX_NOW: u64 = 1 << 61;

/// Time of the second read in parsed dumps: those of all hosts are moved to it, so times of
/// different hosts are comparable.
pub const COMMON_NOW: u64 = 1 << 62;

/// Bytes of memory of the records of all dumps.
const MAX_MEMORY: u64 = 2 << 30;

/// Reason for rejecting a dump.
#[derive(Debug)]
pub enum DumpError {
    /// The dump has no line.
    Empty,
    /// The first line is not the one of a dump.
    NoDump,
    /// The dump has another version.
    OtherVersion(u64),
    /// The last line is missing.
    Truncated(u64),
    /// A line, by its number, has no meaning.
    Malformed(u64, String),
    /// The dump exceeds a limit.
    TooMuch(&'static str),
    /// The dump cannot be read.
    System(io::Error),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::NoDump => f.write_str("it is no output of fi_ps --dump"),
            Self::OtherVersion(version) => {
                write!(f, "it has version {version}, and this tool reads version {VERSION}")
            }
            Self::Truncated(lines) => write!(f, "it ends after {lines} lines, before its end"),
            Self::Malformed(line, what) => write!(f, "line {line} is malformed: {what}"),
            Self::TooMuch(what) => write!(f, "it exceeds the limit of {what}"),
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

/// Maximum number of processes of all dumps.
const MAX_PROCESSES: u64 = 1 << 17;

/// Memory left for the records of all dumps, and number of processes left.
#[derive(Debug)]
pub struct JobBudget {
    left: AtomicU64,
    processes: AtomicU64,
}

impl Default for JobBudget {
    fn default() -> Self {
        Self { left: AtomicU64::new(MAX_MEMORY), processes: AtomicU64::new(MAX_PROCESSES) }
    }
}

impl JobBudget {
    fn take<T>(&self) -> Result<(), DumpError> {
        subtract(&self.left, size_of::<T>() as u64, "memory of all dumps")
    }

    fn take_process(&self) -> Result<(), DumpError> {
        subtract(&self.processes, 1, "processes of all dumps")
    }
}

/// Subtracts an amount from the rest, or returns an error with the name of the limit.
fn subtract(left: &AtomicU64, amount: u64, name: &'static str) -> Result<(), DumpError> {
    let order = Ordering::Relaxed;
    let taken = left.fetch_update(order, order, |left| left.checked_sub(amount));
    taken.map(drop).map_err(|_| DumpError::TooMuch(name))
}

/// Memory segment being read: at the second read, and the compared part of the first read.
#[derive(Default)]
struct PagePair {
    head: StatsHeader,
    endpoints: Vec<EndpointStats>,
    peers: Vec<PeerStats>,
    earlier_head: StatsHeader,
    earlier_endpoints: Vec<EndpointStats>,
}

/// Process being read.
struct ProcessPair {
    after: StatsProcess,
    before: Option<StatsProcess>,
    page: Option<PagePair>,
}

impl ProcessPair {
    /// Moves the page being read to the process.
    fn end_page(&mut self) {
        let Some(page) = self.page.take() else { return };
        self.after.pages.push(StatsPage::new(page.head, page.endpoints, page.peers));
        if let Some(before) = &mut self.before {
            let earlier = StatsPage::new(page.earlier_head, page.earlier_endpoints, Vec::new());
            before.pages.push(earlier);
        }
    }
}

/// State of the reader of a dump.
struct DumpParser<'b> {
    budget: &'b JobBudget,
    dump: HostDump,
    process: Option<ProcessPair>,
    /// The time of the first read of all processes; only differences count.
    first_read: Instant,
    lines: u64,
}

/// Reads a dump. Its times are moved to [`COMMON_NOW`].
pub fn parse_dump(reader: &mut impl BufRead, budget: &JobBudget) -> Result<HostDump, DumpError> {
    let first_read = Instant::now();
    let (dump, process) = (HostDump::default(), None);
    let mut parser = DumpParser { budget, dump, process, first_read, lines: 0 };
    let (mut line, mut bytes) = (Vec::new(), 0);
    loop {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        bytes += read.map_err(DumpError::System)? as u64;
        if bytes > MAX_BYTES {
            return Err(DumpError::TooMuch("bytes of a dump"));
        }
        let is_complete = line.last() == Some(&b'\n');
        line.truncate(line.len() - usize::from(is_complete));
        if !is_complete && line.len() as u64 == MAX_LINE {
            let error = DumpError::TooMuch("bytes of a line");
            return Err(if parser.lines == 0 { DumpError::NoDump } else { error });
        }
        if !is_complete && line.is_empty() {
            let lines = parser.lines;
            return Err(if lines == 0 { DumpError::Empty } else { DumpError::Truncated(lines) });
        }
        let value = serde_json::from_slice(&line);
        let members = match value {
            Ok(Value::Object(members)) => members,
            _ if parser.lines == 0 => return Err(DumpError::NoDump),
            // The end is missing within the line.
            _ if !is_complete => return Err(DumpError::Truncated(parser.lines)),
            _ => return Err(DumpError::Malformed(parser.lines + 1, "it is no JSON object".into())),
        };
        parser.lines += 1;
        if parser.take_line(&members)? {
            return Ok(parser.dump);
        }
    }
}

impl DumpParser<'_> {
    /// Reads a line, and returns true if it is the last one.
    fn take_line(&mut self, members: &Map<String, Value>) -> Result<bool, DumpError> {
        let line = self.lines;
        if line == 1 {
            let head = members.get("ofi_dump").and_then(Value::as_object);
            return self.begin(head.ok_or(DumpError::NoDump)?).map(|()| false);
        }
        let malformed = |what: String| DumpError::Malformed(line, what);
        if let Some(end) = members.get("end") {
            self.end_process();
            if end.as_u64() != Some(line - 1) {
                return Err(malformed("lines are missing before the end".into()));
            }
            return Ok(true);
        }
        let earlier = members.get("earlier").and_then(Value::as_object);
        for (kind, value) in members {
            let Some(members) = value.as_object().filter(|_| kind != "earlier") else { continue };
            let taken = match kind.as_str() {
                "process" => self.begin_process(members, earlier),
                "socket" => self.add_socket(members),
                "page" => self.begin_page(members, earlier),
                "endpoint" => self.add_endpoint(members, earlier),
                "peer" => self.add_peer(members),
                _ => continue,
            };
            return match taken {
                Ok(()) => Ok(false),
                Err(LineError::Malformed(what)) => Err(malformed(what)),
                Err(LineError::Dump(error)) => Err(error),
            };
        }
        Err(malformed("it has no known member".into()))
    }

    fn begin(&mut self, head: &Map<String, Value>) -> Result<(), DumpError> {
        let version = number(head, "version");
        if version != VERSION {
            return Err(DumpError::OtherVersion(version));
        }
        self.dump.host = clean(text(head, "host"));
        self.dump.boot = clean(text(head, "boot"));
        self.dump.tool = clean(text(head, "tool"));
        self.dump.network = number(head, "network");
        self.dump.time = number(head, "time");
        self.dump.now = number(head, "now");
        self.dump.left_out = number(head, "left_out");
        if self.dump.now > MAX_NOW {
            return Err(DumpError::Malformed(1, "its time cannot be".into()));
        }
        Ok(())
    }

    /// Moves the process being read to the dump.
    fn end_process(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        process.end_page();
        self.dump.before.extend(process.before);
        self.dump.after.push(process.after);
    }

    fn begin_process(
        &mut self,
        members: &Map<String, Value>,
        earlier: Option<&Map<String, Value>>,
    ) -> Result<(), LineError> {
        self.end_process();
        self.budget.take_process()?;
        self.budget.take::<[StatsProcess; 2]>()?;
        let pid = u32::try_from(number(members, "pid")).ok().filter(|pid| *pid > 0);
        let pid = pid.ok_or_else(|| LineError::Malformed("the process has no number".into()))?;
        let mut after = StatsProcess::new(pid, system_of(members), Vec::new());
        after.system.read_at = Some(self.first_read);
        after.origin = ProcessOrigin {
            network: number(members, "network"),
            pid_space: number(members, "pid_space"),
            own_pid: number(members, "own_pid"),
            rank: members.get("rank").and_then(Value::as_u64).and_then(|rank| rank.try_into().ok()),
            ..ProcessOrigin::default()
        };
        if let Some(left_out) = members.get("left_out").and_then(Value::as_object) {
            after.set_left_out(LeftOut::of_numbers(|name| number(left_out, name)));
        }
        let before = earlier.map(|earlier| {
            let mut before = StatsProcess::new(pid, system_of(earlier), Vec::new());
            before.origin = after.origin.clone();
            before.system.read_at = Some(self.first_read);
            let interval = Duration::from_nanos(number(earlier, "interval").min(MAX_NOW));
            after.system.read_at = self.first_read.checked_add(interval);
            before
        });
        self.process = Some(ProcessPair { after, before, page: None });
        Ok(())
    }

    fn process(&mut self) -> Result<&mut ProcessPair, LineError> {
        self.process.as_mut().ok_or_else(|| LineError::Malformed("it is of no process".into()))
    }

    fn page(&mut self) -> Result<&mut PagePair, LineError> {
        let page = self.process()?.page.as_mut();
        page.ok_or_else(|| LineError::Malformed("it is of no page".into()))
    }

    fn add_socket(&mut self, members: &Map<String, Value>) -> Result<(), LineError> {
        self.budget.take::<[SocketStats; 2]>()?;
        let process = self.process()?;
        if process.after.sockets.len() >= MAX_SOCKETS {
            return Err(DumpError::TooMuch("sockets of a process").into());
        }
        let peer = text_words(text(members, "peer"));
        let socket = SocketStats {
            peer,
            unanswered: number(members, "unanswered"),
            repeated: number(members, "repeated"),
        };
        process.after.sockets.push(socket);
        if let Some(before) = &mut process.before {
            let repeated = number(members, "earlier");
            before.sockets.push(SocketStats { peer, repeated, unanswered: 0 });
        }
        Ok(())
    }

    fn begin_page(
        &mut self,
        members: &Map<String, Value>,
        earlier: Option<&Map<String, Value>>,
    ) -> Result<(), LineError> {
        self.budget.take::<[StatsPage; 2]>()?;
        let head = record_of(members)?;
        let earlier_head = earlier.map(record_of).transpose()?.unwrap_or_default();
        let process = self.process()?;
        process.end_page();
        if process.after.pages.len() >= MAX_PAGES {
            return Err(DumpError::TooMuch("pages of a process").into());
        }
        process.page = Some(PagePair { head, earlier_head, ..PagePair::default() });
        Ok(())
    }

    fn add_endpoint(
        &mut self,
        members: &Map<String, Value>,
        earlier: Option<&Map<String, Value>>,
    ) -> Result<(), LineError> {
        self.budget.take::<[EndpointStats; 2]>()?;
        let mut endpoint: EndpointStats = record_of(members)?;
        let mut earlier: Option<EndpointStats> = earlier.map(record_of).transpose()?;
        self.move_times([&mut endpoint.written, &mut endpoint.moved, &mut endpoint.lost_at]);
        if let Some(earlier) = &mut earlier {
            self.move_times([&mut earlier.written]);
        }
        let page = self.page()?;
        if page.endpoints.len() >= MAX_ENDPOINTS {
            return Err(DumpError::TooMuch("endpoints of a page").into());
        }
        page.endpoints.push(endpoint);
        page.earlier_endpoints.extend(earlier);
        Ok(())
    }

    fn add_peer(&mut self, members: &Map<String, Value>) -> Result<(), LineError> {
        self.budget.take::<PeerStats>()?;
        let mut peer: PeerStats = record_of(members)?;
        self.move_times([&mut peer.since, &mut peer.moved, &mut peer.written]);
        let page = self.page()?;
        if page.peers.len() >= MAX_PEERS {
            return Err(DumpError::TooMuch("peers of a page").into());
        }
        page.peers.push(peer);
        Ok(())
    }

    /// Moves times of the host to the common time; 0 is no time.
    fn move_times<const N: usize>(&self, times: [&mut u64; N]) {
        for time in times.into_iter().filter(|time| **time != 0) {
            *time = COMMON_NOW - self.dump.now + (*time).min(self.dump.now);
        }
    }
}

/// Reason for rejecting a line.
enum LineError {
    Malformed(String),
    Dump(DumpError),
}

impl From<DumpError> for LineError {
    fn from(error: DumpError) -> Self {
        Self::Dump(error)
    }
}

impl From<String> for LineError {
    fn from(what: String) -> Self {
        Self::Malformed(what)
    }
}

/// Returns a number; 0 if there is none.
fn number(members: &Map<String, Value>, name: &str) -> u64 {
    members.get(name).and_then(Value::as_u64).unwrap_or(0)
}

fn text<'m>(members: &'m Map<String, Value>, name: &str) -> &'m str {
    members.get(name).and_then(Value::as_str).unwrap_or("")
}

/// Returns two numbers; the second one, a limit, is the greatest if there are none.
fn used_and_limit(members: &Map<String, Value>, name: &str) -> [u64; 2] {
    match members.get(name).and_then(Value::as_array).map(Vec::as_slice) {
        Some([used, limit]) => [used.as_u64().unwrap_or(0), limit.as_u64().unwrap_or(u64::MAX)],
        _ => [0, u64::MAX],
    }
}

/// Returns the kernel's state of a process.
fn system_of(members: &Map<String, Value>) -> SystemStats {
    let threads = text(members, "threads").chars().take(MAX_THREADS);
    SystemStats {
        program: clean(text(members, "program")),
        threads: threads.filter(char::is_ascii_alphabetic).collect(),
        waits_in: clean(text(members, "waits_in")),
        polls: members.get("polls").and_then(Value::as_bool).unwrap_or(false),
        descriptors: used_and_limit(members, "descriptors"),
        processors: number(members, "processors"),
        ticks: number(members, "ticks"),
        ran: members.get("ran").and_then(Value::as_u64),
        gave_way: number(members, "gave_way"),
        read_at: None,
        memory: used_and_limit(members, "memory"),
    }
}
