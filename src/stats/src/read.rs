//! Reads published statistics of a process. They may change or vanish during the read, and may have
//! any content.
use crate::NAME;
use crate::bounds::{LeftOut, LookBounds, LookCost, ProcessBounds};
use crate::layout::{
    EndpointStats, FIRST_ENDPOINTS, FactRecord, MAGIC, MAX_PEERS, MORE_ENDPOINTS, PeerStats,
    StatsHeader, VERSION, endpoint_at, peer_at, words_text, words_with,
};
use crate::memory::open_memory;
use crate::origin::{NetworkKey, ProcessKey, ProcessOrigin, namespace_of, rank_of};
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

/// Maximum number of reads of a record changing during the read.
const TRIES: usize = 50;

/// Maximum number of repeated reads of records of one memory segment in total.
const TRIES_IN_SUM: usize = 2000;

/// Maximum number of memory segments read per process: each plug-in has one.
const MAX_PAGES: usize = 16;

/// Maximum number of threads examined per process.
const MAX_THREADS: usize = 1024;

/// Maximum bytes of environment variables read per process.
const MAX_ENVIRONMENT: u64 = 1 << 20;

/// Maximum bytes of records per read.
const PIECE: usize = 64 << 10;

/// Reason for missing statistics.
#[derive(Debug)]
pub enum StatsReadError {
    /// The process ended, or never was.
    Gone,
    /// The kernel does not permit this user to read it.
    NotAllowed,
    /// The process has no such memory: it does not use the library, an older one, or FI_STATS is 0.
    None,
    /// The memory has another layout, of this version.
    OtherVersion(u64),
    /// The memory contains data never written by the library.
    Rubbish(&'static str),
    /// The limits of the pass are reached ([`LookBounds`]) before any memory was found.
    TooMuch,
    /// Another error of the system.
    System(io::Error),
}

impl fmt::Display for StatsReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("there is no such process (any more)"),
            Self::NotAllowed => {
                f.write_str("the process is another user's, or may not be looked at for another reason")
            }
            Self::None => f.write_str(
                "the process shows nothing: it has not opened a domain of this library, or FI_STATS is 0",
            ),
            Self::OtherVersion(version) => write!(
                f,
                "the process has a library that shows other facts (version {version}, this tool knows \
                 {VERSION}): take the tool of that library"
            ),
            Self::TooMuch => f.write_str(
                "the process is left out, beyond the bounds of what is read of it or of all (fi_ps(1))",
            ),
            Self::Rubbish(what) => write!(f, "what the process shows cannot be: {what}"),
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for StatsReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            io::ErrorKind::PermissionDenied => Self::NotAllowed,
            // ESRCH: the process ended meanwhile.
            _ if error.raw_os_error() == Some(3) => Self::Gone,
            _ => Self::System(error),
        }
    }
}

/// Readable memory.
pub trait PublishedMemory {
    /// Reads bytes from `offset` on; fewer at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl PublishedMemory for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }
}

impl PublishedMemory for [u8] {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or(&[]);
        let count = from.len().min(buf.len());
        buf[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }
}

/// The facts of one memory.
#[derive(Clone, Debug, Default)]
pub struct StatsPage {
    /// Data written once.
    pub head: StatsHeader,
    /// The endpoints, each with a serial of its own.
    pub endpoints: Vec<EndpointStats>,
    /// The peers, by endpoint and name.
    peers: Vec<PeerStats>,
    /// Data not read.
    pub left_out: LeftOut,
}

fn words<M: PublishedMemory + ?Sized>(
    memory: &M,
    at: usize,
    count: usize,
) -> Result<Vec<u64>, StatsReadError> {
    const SHORT: StatsReadError = StatsReadError::Rubbish("it ends before its records do");
    let mut bytes = vec![0; 8 * count];
    if memory.read_at(8 * at as u64, &mut bytes)? < bytes.len() {
        return Err(SHORT);
    }
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(bytes.chunks(8).map(word).collect())
}

/// Returns the record with these words, read three times. The inner `None` is a free record, the
/// outer one a concurrent change. The second read is consistent if the first word is equal in the
/// first and the third read.
fn settled<R: FactRecord>(read: [&[u64]; 3]) -> Option<Option<R>> {
    let [sequence, second, third] = read.map(|words| words[0]);
    let still = sequence % 2 == 0 && [second, third] == [sequence; 2];
    still.then(|| (read[1][1] != 0).then(|| R::of_words(read[1])))
}

/// Reads records of one memory.
struct RecordReader<'r, M: ?Sized> {
    memory: &'r M,
    bounds: &'r mut ProcessBounds,
    tries: usize,
    left_out: LeftOut,
}

impl<M: PublishedMemory + ?Sized> RecordReader<'_, M> {
    /// Adds the used ones of `count` records starting at a word.
    fn read<R: FactRecord>(
        &mut self,
        at: usize,
        count: usize,
        cost: LookCost,
        to: &mut Vec<R>,
    ) -> Result<(), StatsReadError> {
        let mut done = 0;
        while done < count {
            let piece = (PIECE / (8 * R::WORDS)).min(count - done);
            let piece = self.bounds.take(cost, piece);
            if piece == 0 {
                self.left_out.records += (count - done) as u64;
                return Ok(());
            }
            let first = at + done * R::WORDS;
            self.read_piece(first, piece, to)?;
            done += piece;
        }
        Ok(())
    }

    fn read_piece<R: FactRecord>(
        &mut self,
        at: usize,
        count: usize,
        to: &mut Vec<R>,
    ) -> Result<(), StatsReadError> {
        let all = || words(self.memory, at, count * R::WORDS);
        let first = all()?;
        if first.chunks(R::WORDS).all(|record| record[1] == 0) {
            return Ok(());
        }
        let (second, third) = (all()?, all()?);
        for index in 0..count {
            let range = index * R::WORDS..(index + 1) * R::WORDS;
            if first[range.start + 1] == 0 {
                continue;
            }
            let read = [&first, &second, &third].map(|words| &words[range.clone()]);
            match settled::<R>(read) {
                Some(record) => to.extend(record),
                None => to.extend(self.read_again::<R>(at + range.start)?),
            }
        }
        Ok(())
    }

    /// Rereads a record changed during the read.
    fn read_again<R: FactRecord>(&mut self, at: usize) -> Result<Option<R>, StatsReadError> {
        for _ in 0..TRIES {
            if self.tries == 0 || self.bounds.take(LookCost::Attempt, 1) == 0 {
                break;
            }
            self.tries -= 1;
            let words = |count| words(self.memory, at, count);
            let (first, second, third) = (words(2)?, words(R::WORDS)?, words(2)?);
            if first[1] == 0 {
                return Ok(None);
            }
            if let Some(record) = settled::<R>([&first, &second, &third]) {
                return Ok(record);
            }
            std::thread::yield_now();
        }
        self.left_out.changing += 1;
        Ok(None)
    }
}

/// Reads the head of a memory segment: its process, and its version.
pub fn read_head<M: PublishedMemory + ?Sized>(memory: &M) -> Result<StatsHeader, StatsReadError> {
    const SHORT: StatsReadError = StatsReadError::Rubbish("it is too short");
    let head = words(memory, 0, StatsHeader::WORDS).map_err(|error| match error {
        StatsReadError::Rubbish(_) => SHORT,
        error => error,
    })?;
    let head = StatsHeader::of_words(&head);
    if head.magic != MAGIC {
        return Err(StatsReadError::Rubbish("it does not begin as it should"));
    }
    if head.version != VERSION {
        return Err(StatsReadError::OtherVersion(head.version));
    }
    if head.peers > MAX_PEERS as u64 || head.peers_used > head.peers {
        return Err(StatsReadError::Rubbish("more peers than there may be"));
    }
    if head.endpoints_used > (FIRST_ENDPOINTS + MORE_ENDPOINTS) as u64 {
        return Err(StatsReadError::Rubbish("more endpoints than there may be"));
    }
    Ok(head)
}

/// Reads a memory within the bounds of a process.
pub fn read<M: PublishedMemory + ?Sized>(
    memory: &M,
    bounds: &mut ProcessBounds,
) -> Result<StatsPage, StatsReadError> {
    let head = read_head(memory)?;
    let mut reader =
        RecordReader { memory, bounds, tries: TRIES_IN_SUM, left_out: LeftOut::default() };
    let (mut endpoints, mut peers) = (Vec::new(), Vec::new());
    let buf = head.peers as usize;
    debug_assert!(words_with(buf) > peer_at(buf));
    let used = head.endpoints_used as usize;
    let first = used.min(FIRST_ENDPOINTS);
    reader.read(endpoint_at(0, buf), first, LookCost::Endpoint, &mut endpoints)?;
    let further = endpoint_at(FIRST_ENDPOINTS, buf);
    reader.read(further, used - first, LookCost::Endpoint, &mut endpoints)?;
    reader.read(peer_at(0), head.peers_used as usize, LookCost::Peer, &mut peers)?;
    let left_out = reader.left_out;
    Ok(StatsPage { left_out, ..StatsPage::new(head, endpoints, peers) })
}

impl StatsPage {
    /// The facts of these records. Of endpoints with one serial the first counts.
    pub fn new(
        head: StatsHeader,
        mut endpoints: Vec<EndpointStats>,
        mut peers: Vec<PeerStats>,
    ) -> Self {
        let mut known = HashSet::new();
        endpoints.retain(|endpoint| known.insert(endpoint.serial));
        peers.sort_by_key(|peer| (peer.endpoint, peer.name));
        Self { head, endpoints, peers, left_out: LeftOut::default() }
    }

    /// The provider's name.
    pub fn provider(&self) -> String {
        words_text(&self.head.provider)
    }

    /// All peers, by endpoint and name.
    pub fn peers(&self) -> &[PeerStats] {
        &self.peers
    }

    /// The peers of an endpoint, by name.
    pub fn peers_of(&self, endpoint: &EndpointStats) -> &[PeerStats] {
        let from = self.peers.partition_point(|peer| peer.endpoint < endpoint.serial);
        let count = self.peers[from..].partition_point(|peer| peer.endpoint == endpoint.serial);
        &self.peers[from..from + count]
    }

    /// Returns the peer of an endpoint with this name.
    pub fn peer_by_name(&self, endpoint: &EndpointStats, name: u64) -> Option<&PeerStats> {
        let peers = self.peers_of(endpoint);
        let at = peers.partition_point(|peer| peer.name < name);
        peers.get(at).filter(|peer| peer.name == name)
    }

    /// Returns the messages and bytes sent, then received, by an endpoint.
    pub fn passed(&self, endpoint: &EndpointStats) -> [u64; 4] {
        let past = [endpoint.sent, endpoint.sent_bytes, endpoint.received, endpoint.received_bytes];
        self.peers_of(endpoint).iter().fold(past, |sums, peer| {
            let more = [peer.sent, peer.sent_bytes, peer.received, peer.received_bytes];
            std::array::from_fn(|at| sums[at].wrapping_add(more[at]))
        })
    }
}

/// State of a process reported by the kernel.
#[derive(Clone, Debug, Default)]
pub struct SystemStats {
    /// The program's name, without control characters.
    pub program: String,
    /// The states of its threads, letters of proc_pid_stat(5), the first thread's first.
    pub threads: String,
    /// Kernel function in which the first thread waits, if known.
    pub waits_in: String,
    /// A thread sleeps until a descriptor has something to tell, as far as is known.
    pub polls: bool,
    /// Number of open descriptors, and their limit.
    pub descriptors: [u64; 2],
    /// Number of processors usable by the process.
    pub processors: u64,
    /// Processor time of all threads, in ticks.
    pub ticks: u64,
    /// CPU time of the first thread in nanoseconds; `None` if unknown.
    pub ran: Option<u64>,
    /// Number of voluntary context switches.
    pub gave_way: u64,
    /// When this was read.
    pub read_at: Option<Instant>,
    /// Bytes of memory of the process, and their limit (RLIMIT_AS).
    pub memory: [u64; 2],
}

/// Process with its published statistics.
#[derive(Clone, Debug, Default)]
pub struct StatsProcess {
    /// Its number.
    pub pid: u32,
    /// State reported by the kernel.
    pub system: SystemStats,
    /// Statistics published by its plug-ins.
    pub pages: Vec<StatsPage>,
    /// Its host, namespaces and rank.
    pub origin: ProcessOrigin,
    /// Its TCP connections with lost packets.
    pub sockets: Vec<SocketStats>,
    /// Data of the process as a whole not read.
    left_out: LeftOut,
}

/// TCP connection with lost packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketStats {
    /// Address of the other end, as text in words.
    pub peer: [u64; 8],
    /// Number of consecutive retransmissions without an acknowledgement.
    pub unanswered: u64,
    /// Total number of retransmissions.
    pub repeated: u64,
}

impl StatsProcess {
    /// Returns a process with this data.
    pub fn new(pid: u32, system: SystemStats, pages: Vec<StatsPage>) -> Self {
        Self { pid, system, pages, ..Self::default() }
    }

    /// Returns the data not read of the process and all of its pages.
    pub fn left_out(&self) -> LeftOut {
        self.pages.iter().fold(self.left_out, |mut sum, page| {
            sum.add(&page.left_out);
            sum
        })
    }

    /// Sets the data of the process as a whole not read.
    pub fn set_left_out(&mut self, left_out: LeftOut) {
        self.left_out = left_out;
    }

    /// Returns its key among the processes of several hosts.
    pub fn key(&self) -> ProcessKey {
        ProcessKey { host: self.origin.host, pid: self.pid }
    }

    /// Returns its network namespace.
    pub fn network(&self) -> NetworkKey {
        NetworkKey { kernel: self.origin.kernel, namespace: self.origin.network }
    }

    /// The process as messages name it.
    pub fn who(&self) -> String {
        let rank = self.origin.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
        format!("process {} ({}{rank}){}", self.pid, self.system.program, self.of_host())
    }

    /// The process number, with the host if it is another one.
    pub fn number(&self) -> String {
        format!("{}{}", self.pid, self.of_host())
    }

    fn of_host(&self) -> String {
        match &*self.origin.host_name {
            "" => String::new(),
            name => format!(" on {name}"),
        }
    }

    /// Returns the limit of descriptors if all of them are open.
    pub fn all_descriptors(&self) -> Option<u64> {
        let [open, most] = self.system.descriptors;
        (open >= most).then_some(most)
    }

    /// It is stopped, by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        self.system.threads.starts_with(['T', 't'])
    }
}

/// Returns a kernel file as text. Some of these files contain names of programs and threads as
/// bytes; invalid characters are replaced.
fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A text of the system's without control characters, cut.
fn clean(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    text.trim_end_matches('\n').chars().take(64).map(printable).collect()
}

/// A value of a file of lines `NAME: VALUE`.
fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns the number of processors in a list like `0-3,8`.
fn listed(list: &str) -> u64 {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
        Some(to.saturating_sub(from) + 1)
    };
    list.split(',').filter_map(range).sum()
}

/// Returns true if a thread in this state, waiting in this kernel function if known, may sleep
/// until a descriptor is ready.
fn may_poll(state: Option<char>, waits_in: &str) -> bool {
    state == Some('S') && (waits_in.is_empty() || waits_in.contains("poll"))
}

/// Returns the number of open descriptors of a process: as reported by the kernel, or counted as
/// far as possible.
fn count_descriptors(pid: u32) -> io::Result<u64> {
    let folder = format!("/proc/{pid}/fd");
    // The length of the folder, since Linux 6.2.
    let advertised = fs::metadata(&folder)?.len();
    if advertised > 0 {
        return Ok(advertised);
    }
    let most = ProcessBounds::alone().take(LookCost::Descriptor, usize::MAX);
    Ok(fs::read_dir(&folder)?.take(most).count() as u64)
}

impl SystemStats {
    /// Returns the kernel's state of this process within the limits of a process, and records the
    /// parts not read.
    fn of(
        pid: u32,
        bounds: &mut ProcessBounds,
        left_out: &mut LeftOut,
    ) -> Result<Self, StatsReadError> {
        let read = |file: &str| read_text(format!("/proc/{pid}/{file}"));
        let stat = read("stat")?;
        // The program's name is in parentheses, and may hold some.
        let (_, behind) = stat.rsplit_once(')').ok_or(StatsReadError::Gone)?;
        let fields: Vec<_> = behind.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let status = read("status").unwrap_or_default();
        let mut threads: String = fields.first().copied().unwrap_or("?").chars().take(1).collect();
        let waits_in = clean(&read("wchan").unwrap_or_default()).replace('0', "");
        let mut polls = may_poll(threads.chars().next(), &waits_in);
        for (index, task) in fs::read_dir(format!("/proc/{pid}/task"))?.flatten().enumerate() {
            if index == MAX_THREADS || bounds.take(LookCost::Thread, 1) == 0 {
                left_out.threads = true;
                break;
            }
            if task.file_name().to_string_lossy().parse() == Ok(pid) {
                continue;
            }
            let stat = read_text(task.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next());
            threads.extend(state);
            let waits = read_text(task.path().join("wchan")).unwrap_or_default();
            polls |= may_poll(state, waits.trim_matches('0'));
        }
        let limits = read("limits").unwrap_or_default();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let limit = limit.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let most = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
        let most = most.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let size = value(&status, "VmSize").and_then(|size| size.split_whitespace().next());
        let size = size.and_then(|size| size.parse::<u64>().ok()).unwrap_or(0);
        // The kernel updates its waiting time only when it runs.
        let times = read("schedstat").unwrap_or_default();
        let ran = times.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        let gave_way = value(&status, "voluntary_ctxt_switches");
        let open = count_descriptors(pid)?;
        Ok(Self {
            program: clean(&read("comm").unwrap_or_default()),
            threads,
            waits_in,
            polls,
            descriptors: [open, limit.unwrap_or(u64::MAX)],
            processors: value(&status, "Cpus_allowed_list").map_or(0, listed),
            ticks: ticks(11) + ticks(12),
            ran,
            gave_way: gave_way.and_then(|count| count.parse().ok()).unwrap_or(0),
            read_at: Some(Instant::now()),
            memory: [size.saturating_mul(1024), most.unwrap_or(u64::MAX)],
        })
    }
}

/// Returns the opened memory segments published, or inherited, by a process, without duplicates.
fn memories(
    process: &str,
    bounds: &mut ProcessBounds,
    left_out: &mut LeftOut,
) -> Result<Vec<File>, StatsReadError> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let link = format!("/memfd:{NAME} (deleted)");
    let mut refused = None;
    for fd in fs::read_dir(format!("/proc/{process}/fd"))? {
        let path = fd?.path();
        if bounds.take(LookCost::Descriptor, 1) == 0 {
            left_out.descriptors = true;
            break;
        }
        let Ok(target) = fs::read_link(&path) else { continue };
        if target.as_os_str() != link.as_str() {
            continue;
        }
        if found.len() == MAX_PAGES {
            left_out.memories += 1;
            continue;
        }
        match open_memory(&path) {
            Ok(Some(file)) => {
                let envelope = file.metadata()?;
                if known.insert((envelope.dev(), envelope.ino())) {
                    found.push(file);
                }
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if found.is_empty() => Err(error.into()),
        _ => Ok(found),
    }
}

/// Returns the pid of a process in its own namespace, and its user.
fn own_number_and_user(pid: u32) -> (u64, u32) {
    let status = read_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = value(&status, "NSpid").and_then(|line| line.split_whitespace().next_back());
    let user = value(&status, "Uid").and_then(|line| line.split_whitespace().next());
    let number = numbers.and_then(|number| number.parse().ok()).unwrap_or(pid.into());
    (number, user.and_then(|user| user.parse().ok()).unwrap_or(u32::MAX))
}

/// Reads all published statistics of a process, and its state in the kernel, within the limits of a
/// pass.
pub fn process(pid: u32, look: &mut LookBounds) -> Result<StatsProcess, StatsReadError> {
    let mut process = process_by(pid, look, SystemStats::of)?;
    process.origin = origin(pid);
    Ok(process)
}

/// Returns the namespaces and the rank of a process, as far as they are readable.
fn origin(pid: u32) -> ProcessOrigin {
    let namespace = |name: &str| {
        let link = fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap_or_default();
        namespace_of(&link.to_string_lossy())
    };
    let mut environment = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        // A part will do.
        let _ = file.take(MAX_ENVIRONMENT).read_to_end(&mut environment);
    }
    ProcessOrigin {
        network: namespace("net"),
        pid_space: namespace("pid"),
        own_pid: own_number_and_user(pid).0,
        rank: rank_of(&environment),
        ..ProcessOrigin::default()
    }
}

/// Reads all published statistics of a process, and only its name from the kernel.
pub fn process_by_name(pid: u32, look: &mut LookBounds) -> Result<StatsProcess, StatsReadError> {
    process_by(pid, look, |pid, _, _| {
        let name = read_text(format!("/proc/{pid}/comm"))?;
        Ok(SystemStats { program: clean(&name), ..SystemStats::default() })
    })
}

fn process_by(
    pid: u32,
    look: &mut LookBounds,
    system: fn(u32, &mut ProcessBounds, &mut LeftOut) -> Result<SystemStats, StatsReadError>,
) -> Result<StatsProcess, StatsReadError> {
    // Most processes are other users', which is seen at once.
    fs::read_dir(format!("/proc/{pid}/fd"))?;
    let (own, user) = own_number_and_user(pid);
    let mut bounds = look.begin(user);
    let mut left_out = LeftOut::default();
    let read = pages(&pid.to_string(), own, &mut bounds, &mut left_out).and_then(|pages| {
        let system = system(pid, &mut bounds, &mut left_out)?;
        Ok(StatsProcess { left_out, ..StatsProcess::new(pid, system, pages) })
    });
    look.end(bounds);
    read
}

/// Reads all published statistics of this process.
pub fn own_pages() -> Result<Vec<StatsPage>, StatsReadError> {
    let (bounds, left_out) = (&mut ProcessBounds::alone(), &mut LeftOut::default());
    pages("self", std::process::id().into(), bounds, left_out)
}

/// Reads all published statistics of a process with the pid `own` in its namespace.
fn pages(
    process: &str,
    own: u64,
    bounds: &mut ProcessBounds,
    left_out: &mut LeftOut,
) -> Result<Vec<StatsPage>, StatsReadError> {
    let memories = memories(process, bounds, left_out)?;
    let mut pages = Vec::new();
    let mut last =
        if left_out.descriptors { StatsReadError::TooMuch } else { StatsReadError::None };
    if !memories.is_empty() && bounds.take(LookCost::Process, 1) == 0 {
        return Err(StatsReadError::TooMuch);
    }
    for memory in memories {
        // A forked child that has not started another program has its parent's.
        if read_head(&memory).is_ok_and(|head| head.process != own) {
            continue;
        }
        match read(&memory, bounds) {
            Ok(page) => pages.push(page),
            Err(error) => last = error,
        }
    }
    if pages.is_empty() {
        return Err(last);
    }
    Ok(pages)
}

/// Returns all processes.
pub fn any_processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{kinds, text_words};

    fn memory(head: StatsHeader) -> Vec<u64> {
        let mut words = vec![0; words_with(4)];
        head.put_words(&mut words[..StatsHeader::WORDS]);
        words
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn good() -> StatsHeader {
        StatsHeader {
            magic: MAGIC,
            version: VERSION,
            peers: 4,
            peers_used: 2,
            endpoints_used: 1,
            provider: text_words("tcp"),
            ..StatsHeader::default()
        }
    }

    #[test]
    fn written_page_is_read_back() {
        let mut words = memory(good());
        let endpoint =
            EndpointStats { sequence: 2, serial: 1, kind: kinds::RDM, ..Default::default() };
        let at = endpoint_at(0, 4);
        endpoint.put_words(&mut words[at..at + EndpointStats::WORDS]);
        let peer = PeerStats { sequence: 4, serial: 2, endpoint: 1, sent: 7, ..Default::default() };
        peer.put_words(&mut words[peer_at(1)..peer_at(2)]);
        let page = read(&bytes(&words)[..], &mut ProcessBounds::untimed()).unwrap();
        assert_eq!(
            (page.endpoints.len(), page.peers.len(), page.left_out),
            (1, 1, LeftOut::default())
        );
        assert_eq!((page.passed(&page.endpoints[0])[0], page.provider().as_str()), (7, "tcp"));
    }

    #[test]
    fn record_being_written_is_omitted() {
        let mut words = memory(good());
        let peer = PeerStats { sequence: 5, serial: 2, ..Default::default() };
        peer.put_words(&mut words[peer_at(0)..peer_at(1)]);
        let page = read(&bytes(&words)[..], &mut ProcessBounds::untimed()).unwrap();
        assert_eq!((page.peers.len(), page.left_out.changing), (0, 1));
    }

    #[test]
    fn other_versions_and_malformed_pages_have_distinct_errors() {
        let read = |bytes: &[u8]| read(bytes, &mut ProcessBounds::untimed());
        let is = |head| read(&bytes(&memory(head))).unwrap_err().to_string();
        assert!(is(StatsHeader { version: 9, ..good() }).contains("version 9"));
        assert!(is(StatsHeader { magic: 1, ..good() }).contains("cannot be"));
        assert!(is(StatsHeader { peers: u64::MAX, ..good() }).contains("more peers"));
        assert!(is(StatsHeader { endpoints_used: 1 << 40, ..good() }).contains("more endpoints"));
        assert!(matches!(read(&[0; 100]), Err(StatsReadError::Rubbish("it is too short"))));
        let cut = bytes(&memory(StatsHeader { peers_used: 4, ..good() }));
        assert!(matches!(read(&cut[..peer_at(3) * 8]), Err(StatsReadError::Rubbish(_))));
    }

    #[test]
    fn of_more_records_than_a_process_may_show_the_rest_is_left_out() {
        let mut words = memory(good());
        let peer = PeerStats { sequence: 2, serial: 2, endpoint: 1, ..Default::default() };
        for index in 0..2 {
            peer.put_words(&mut words[peer_at(index)..peer_at(index + 1)]);
        }
        let mut bounds = ProcessBounds::untimed();
        let all = bounds.take(LookCost::Peer, usize::MAX);
        let mut bounds = ProcessBounds::untimed();
        bounds.take(LookCost::Peer, all - 1);
        // An endpoint costs more than is left.
        let page = read(&bytes(&words)[..], &mut bounds).unwrap();
        assert_eq!((page.peers.len(), page.left_out.records), (1, 2));
        assert_eq!(read(&bytes(&words)[..], &mut bounds).unwrap().left_out.records, 3);
    }

    #[test]
    fn rereads_of_unstable_records_are_bounded_in_total() {
        struct CountedMemory(Vec<u8>, std::cell::Cell<usize>);
        impl PublishedMemory for CountedMemory {
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
                self.1.set(self.1.get() + 1);
                self.0.read_at(offset, buf)
            }
        }
        let head = StatsHeader { peers: 1 << 12, peers_used: 1 << 12, ..good() };
        let mut words = vec![0; words_with(1 << 12)];
        head.put_words(&mut words[..StatsHeader::WORDS]);
        for index in 0..1 << 12 {
            words[peer_at(index)..][..2].copy_from_slice(&[1, 1]);
        }
        let memory = CountedMemory(bytes(&words), Default::default());
        let page = read(&memory, &mut ProcessBounds::untimed()).unwrap();
        assert_eq!((page.peers.len(), page.left_out.changing), (0, 1 << 12));
        assert!(memory.1.get() < 3 * TRIES_IN_SUM + 1000, "{} reads", memory.1.get());
    }

    #[test]
    fn peers_are_of_one_endpoint_each() {
        let endpoint = |serial| EndpointStats { serial, ..EndpointStats::default() };
        let peer =
            |serial, endpoint, name| PeerStats { serial, endpoint, name, ..Default::default() };
        let endpoints = vec![endpoint(3), endpoint(1), endpoint(3)];
        let peers = vec![peer(4, 3, 9), peer(5, 1, 2), peer(6, 3, 7), peer(7, 2, 1)];
        let page = StatsPage::new(StatsHeader::default(), endpoints, peers);
        assert_eq!(page.endpoints.iter().map(|one| one.serial).collect::<Vec<_>>(), [3, 1]);
        let serials = |at: usize| page.peers_of(&page.endpoints[at]).iter().map(|one| one.serial);
        assert_eq!([serials(0).collect::<Vec<_>>(), serials(1).collect()], [vec![6, 4], vec![5]]);
        let named = |name| page.peer_by_name(&page.endpoints[0], name).map(|one| one.serial);
        assert_eq!([named(9), named(7), named(2)], [Some(4), Some(6), None]);
    }

    #[test]
    fn the_name_of_a_program_may_be_cut_within_a_character() {
        let before = fs::read("/proc/self/comm").unwrap();
        fs::write("/proc/self/comm", b"caf\xc3").unwrap();
        let (mut bounds, mut left_out) = (ProcessBounds::untimed(), LeftOut::default());
        let stats = SystemStats::of(std::process::id(), &mut bounds, &mut left_out).unwrap();
        fs::write("/proc/self/comm", before).unwrap();
        assert_eq!(stats.program, "caf\u{fffd}");
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!([listed("0-3,8"), listed("5"), listed(""), listed("x-9")], [5, 1, 0, 0]);
    }
}
