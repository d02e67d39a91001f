//! Reads what a process shows, which may change meanwhile, end, or be anything.
use crate::NAME;
use crate::layout::{
    EndpointFacts, FIRST_ENDPOINTS, FactRecord, HeadFacts, MAGIC, MAX_PEERS, MORE_ENDPOINTS,
    PeerFacts, VERSION, endpoint_at, peer_at, words_text, words_with,
};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// How often a record that changes while it is read is read again.
const TRIES: usize = 50;

/// Most memories of one process that are looked at: each plug-in has one.
const MAX_PAGES: usize = 16;

/// Most descriptors of one process that are looked at.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// Why there are no facts.
#[derive(Debug)]
pub enum NoFacts {
    /// The process ended, or never was.
    Gone,
    /// The kernel does not let this user look.
    NotAllowed,
    /// The process has no such memory: it does not use the library, an older one, or FI_STATS is 0.
    None,
    /// The memory has another layout, of this version.
    OtherVersion(u64),
    /// The memory holds what the library does not write.
    Rubbish(&'static str),
    /// Another error of the system.
    System(io::Error),
}

impl fmt::Display for NoFacts {
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
            Self::Rubbish(what) => write!(f, "what the process shows cannot be: {what}"),
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for NoFacts {
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

/// Memory that is read.
pub trait ShownMemory {
    /// Reads bytes from `offset` on; fewer at the end.
    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize>;
}

impl ShownMemory for File {
    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, room, offset)
    }
}

impl ShownMemory for [u8] {
    fn read_at(&self, offset: u64, room: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or(&[]);
        let count = from.len().min(room.len());
        room[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }
}

/// The facts of one memory.
#[derive(Clone, Debug, Default)]
pub struct ShownPage {
    /// What is said once.
    pub head: HeadFacts,
    /// The endpoints.
    pub endpoints: Vec<EndpointFacts>,
    /// The peers.
    pub peers: Vec<PeerFacts>,
    /// Records that changed all the time, and are left out.
    pub changing: usize,
}

fn words<M: ShownMemory + ?Sized>(
    memory: &M,
    at: usize,
    count: usize,
) -> Result<Option<Vec<u64>>, NoFacts> {
    let mut bytes = vec![0; 8 * count];
    if memory.read_at(8 * at as u64, &mut bytes)? < bytes.len() {
        return Ok(None);
    }
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(Some(bytes.chunks(8).map(word).collect()))
}

/// A record that is used; none if it is free.
fn record<M: ShownMemory + ?Sized, R: FactRecord>(
    memory: &M,
    at: usize,
    changing: &mut usize,
) -> Result<Option<R>, NoFacts> {
    const SHORT: NoFacts = NoFacts::Rubbish("it ends before its records do");
    for _ in 0..TRIES {
        // The first word is read before all others and after them.
        let before = words(memory, at, 2)?.ok_or(SHORT)?;
        if before[1] == 0 {
            return Ok(None);
        }
        let all = words(memory, at, R::WORDS)?.ok_or(SHORT)?;
        let after = words(memory, at, 1)?.ok_or(SHORT)?;
        let sequence = [before[0], all[0], after[0]];
        if sequence[0] % 2 == 0 && sequence == [sequence[0]; 3] {
            return Ok((all[1] != 0).then(|| R::of_words(&all)));
        }
        std::thread::yield_now();
    }
    *changing += 1;
    Ok(None)
}

/// Reads the head of a memory: whose it is, and of which version.
pub fn read_head<M: ShownMemory + ?Sized>(memory: &M) -> Result<HeadFacts, NoFacts> {
    let head = words(memory, 0, HeadFacts::WORDS)?;
    let head = head.ok_or(NoFacts::Rubbish("it is too short"))?;
    let head = HeadFacts::of_words(&head);
    if head.magic != MAGIC {
        return Err(NoFacts::Rubbish("it does not begin as it should"));
    }
    if head.version != VERSION {
        return Err(NoFacts::OtherVersion(head.version));
    }
    if head.peers > MAX_PEERS as u64 || head.peers_used > head.peers {
        return Err(NoFacts::Rubbish("more peers than there may be"));
    }
    if head.endpoints_used > (FIRST_ENDPOINTS + MORE_ENDPOINTS) as u64 {
        return Err(NoFacts::Rubbish("more endpoints than there may be"));
    }
    Ok(head)
}

/// Reads a memory.
pub fn read<M: ShownMemory + ?Sized>(memory: &M) -> Result<ShownPage, NoFacts> {
    let head = read_head(memory)?;
    let mut page = ShownPage { head, ..ShownPage::default() };
    let peers = head.peers as usize;
    debug_assert!(words_with(peers) > peer_at(peers));
    for index in 0..head.endpoints_used as usize {
        let at = endpoint_at(index, peers);
        page.endpoints.extend(record::<_, EndpointFacts>(memory, at, &mut page.changing)?);
    }
    for index in 0..head.peers_used as usize {
        page.peers.extend(record::<_, PeerFacts>(memory, peer_at(index), &mut page.changing)?);
    }
    Ok(page)
}

impl ShownPage {
    /// The provider's name.
    pub fn provider(&self) -> String {
        words_text(&self.head.provider)
    }

    /// The peers of an endpoint.
    pub fn peers_of(&self, endpoint: &EndpointFacts) -> impl Iterator<Item = &PeerFacts> {
        self.peers.iter().filter(|peer| peer.endpoint == endpoint.serial)
    }

    /// Messages and bytes that an endpoint has sent, then received.
    pub fn passed(&self, endpoint: &EndpointFacts) -> [u64; 4] {
        let past = [endpoint.sent, endpoint.sent_bytes, endpoint.received, endpoint.received_bytes];
        self.peers_of(endpoint).fold(past, |sums, peer| {
            let more = [peer.sent, peer.sent_bytes, peer.received, peer.received_bytes];
            std::array::from_fn(|at| sums[at].wrapping_add(more[at]))
        })
    }
}

/// What the system says of a process.
#[derive(Clone, Debug, Default)]
pub struct SystemFacts {
    /// The program's name, without control characters.
    pub program: String,
    /// The states of its threads, letters of proc_pid_stat(5), the first thread's first.
    pub threads: String,
    /// What the first thread waits for in the kernel, if that is known.
    pub waits_in: String,
    /// A thread sleeps until a descriptor has something to tell, as far as is known.
    pub polls: bool,
    /// Descriptors that are open, and how many may be.
    pub descriptors: [u64; 2],
    /// Processors that the process may use.
    pub processors: u64,
    /// Processor time of all threads, in ticks.
    pub ticks: u64,
    /// How long the first thread had a processor, in nanoseconds; none if that is not known.
    pub ran: Option<u64>,
    /// How often it gave its processor away by itself.
    pub gave_way: u64,
    /// When this was read.
    pub read_at: Option<Instant>,
    /// Bytes of memory that the process has, and may have (RLIMIT_AS).
    pub memory: [u64; 2],
}

/// A process and what it shows.
#[derive(Clone, Debug, Default)]
pub struct ShownProcess {
    /// Its number.
    pub pid: u32,
    /// What the system says.
    pub system: SystemFacts,
    /// What its plug-ins show.
    pub pages: Vec<ShownPage>,
}

impl ShownProcess {
    /// The process as messages name it.
    pub fn who(&self) -> String {
        format!("process {} ({})", self.pid, self.system.program)
    }

    /// It is stopped, by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        self.system.threads.starts_with(['T', 't'])
    }
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

/// How many processors a list like `0-3,8` names.
fn listed(list: &str) -> u64 {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
        Some(to.saturating_sub(from) + 1)
    };
    list.split(',').filter_map(range).sum()
}

/// Whether a thread in this state, which waits there in the kernel if that is known, may sleep until a
/// descriptor has something to tell.
fn may_poll(state: Option<char>, waits_in: &str) -> bool {
    state == Some('S') && (waits_in.is_empty() || waits_in.contains("poll"))
}

impl SystemFacts {
    /// What the system says of this process.
    pub fn of(pid: u32) -> Result<Self, NoFacts> {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
        let stat = read("stat")?;
        // The program's name is in parentheses, and may hold some.
        let (_, behind) = stat.rsplit_once(')').ok_or(NoFacts::Gone)?;
        let fields: Vec<_> = behind.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let status = read("status").unwrap_or_default();
        let mut threads: String = fields.first().copied().unwrap_or("?").chars().take(1).collect();
        let waits_in = clean(&read("wchan").unwrap_or_default()).replace('0', "");
        let mut polls = may_poll(threads.chars().next(), &waits_in);
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten().take(1024) {
            if task.file_name().to_string_lossy().parse() == Ok(pid) {
                continue;
            }
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next());
            threads.extend(state);
            let waits = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
            polls |= may_poll(state, waits.trim_matches('0'));
        }
        let limits = read("limits").unwrap_or_default();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let limit = limit.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let most = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
        let most = most.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let size = value(&status, "VmSize").and_then(|size| size.split_whitespace().next());
        let size = size.and_then(|size| size.parse::<u64>().ok()).unwrap_or(0);
        // How long it waited to run is written there only once it does.
        let times = read("schedstat").unwrap_or_default();
        let ran = times.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        let gave_way = value(&status, "voluntary_ctxt_switches");
        let open = fs::read_dir(format!("/proc/{pid}/fd"))?.take(MAX_DESCRIPTORS).count() as u64;
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

/// The memories that a process shows, or has inherited, opened.
fn memories(process: &str) -> Result<Vec<File>, NoFacts> {
    let mut found = Vec::new();
    let link = format!("/memfd:{NAME} (deleted)");
    for fd in fs::read_dir(format!("/proc/{process}/fd"))?.take(MAX_DESCRIPTORS) {
        let path = fd?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if target.as_os_str() != link.as_str() {
            continue;
        }
        // What looks so may be anything, but not what opening waits for: a link of /proc to memory.
        match File::open(&path) {
            Ok(file) => found.push(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        if found.len() == MAX_PAGES {
            break;
        }
    }
    Ok(found)
}

/// The number that a process has in its own namespace.
fn own_number(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = value(&status, "NSpid").and_then(|line| line.split_whitespace().next_back());
    numbers.and_then(|number| number.parse().ok()).unwrap_or(pid.into())
}

/// Whether a process shows anything; quick.
pub fn shows(pid: u32) -> bool {
    memories(&pid.to_string()).is_ok_and(|found| !found.is_empty())
}

/// Reads all that a process shows, and what the system says of it.
pub fn process(pid: u32) -> Result<ShownProcess, NoFacts> {
    let pages = pages(&pid.to_string(), own_number(pid))?;
    Ok(ShownProcess { pid, system: SystemFacts::of(pid)?, pages })
}

/// Reads all that a process shows, and of what the system says its name alone.
pub fn process_by_name(pid: u32) -> Result<ShownProcess, NoFacts> {
    let pages = pages(&pid.to_string(), own_number(pid))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
    let system = SystemFacts { program: clean(&name), ..SystemFacts::default() };
    Ok(ShownProcess { pid, system, pages })
}

/// Reads all that this process shows.
pub fn own_pages() -> Result<Vec<ShownPage>, NoFacts> {
    pages("self", std::process::id().into())
}

/// Reads all that a process shows that knows itself by the number `own`.
fn pages(process: &str, own: u64) -> Result<Vec<ShownPage>, NoFacts> {
    let memories = memories(process)?;
    let mut pages = Vec::new();
    let mut last = NoFacts::None;
    for memory in memories {
        match read(&memory) {
            // A forked child that has not started another program has its parent's.
            Ok(page) if page.head.process != own => {}
            Ok(page) => pages.push(page),
            Err(error) => last = error,
        }
    }
    if pages.is_empty() {
        return Err(last);
    }
    Ok(pages)
}

/// The processes that there are.
pub fn any_processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    pids
}

/// The processes that may be looked at and show something.
pub fn all_processes() -> Vec<u32> {
    any_processes().into_iter().filter(|pid| shows(*pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{kinds, text_words};

    fn memory(head: HeadFacts) -> Vec<u64> {
        let mut words = vec![0; words_with(4)];
        head.put_words(&mut words[..HeadFacts::WORDS]);
        words
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn good() -> HeadFacts {
        HeadFacts {
            magic: MAGIC,
            version: VERSION,
            peers: 4,
            peers_used: 2,
            endpoints_used: 1,
            provider: text_words("tcp"),
            ..HeadFacts::default()
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let mut words = memory(good());
        let endpoint =
            EndpointFacts { sequence: 2, serial: 1, kind: kinds::RDM, ..Default::default() };
        let at = endpoint_at(0, 4);
        endpoint.put_words(&mut words[at..at + EndpointFacts::WORDS]);
        let peer = PeerFacts { sequence: 4, serial: 2, endpoint: 1, sent: 7, ..Default::default() };
        peer.put_words(&mut words[peer_at(1)..peer_at(2)]);
        let page = read(&bytes(&words)[..]).unwrap();
        assert_eq!((page.endpoints.len(), page.peers.len(), page.changing), (1, 1, 0));
        assert_eq!((page.passed(&page.endpoints[0])[0], page.provider().as_str()), (7, "tcp"));
    }

    #[test]
    fn a_record_that_is_being_written_is_left_out() {
        let mut words = memory(good());
        let peer = PeerFacts { sequence: 5, serial: 2, ..Default::default() };
        peer.put_words(&mut words[peer_at(0)..peer_at(1)]);
        let page = read(&bytes(&words)[..]).unwrap();
        assert_eq!((page.peers.len(), page.changing), (0, 1));
    }

    #[test]
    fn other_versions_and_rubbish_are_told_apart() {
        let is = |head| read(&bytes(&memory(head))[..]).unwrap_err().to_string();
        assert!(is(HeadFacts { version: 9, ..good() }).contains("version 9"));
        assert!(is(HeadFacts { magic: 1, ..good() }).contains("cannot be"));
        assert!(is(HeadFacts { peers: u64::MAX, ..good() }).contains("more peers"));
        assert!(is(HeadFacts { endpoints_used: 1 << 40, ..good() }).contains("more endpoints"));
        assert!(matches!(read(&[0; 100][..]), Err(NoFacts::Rubbish("it is too short"))));
        let cut = bytes(&memory(HeadFacts { peers_used: 4, ..good() }));
        assert!(matches!(read(&cut[..peer_at(3) * 8]), Err(NoFacts::Rubbish(_))));
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!([listed("0-3,8"), listed("5"), listed(""), listed("x-9")], [5, 1, 0, 0]);
    }
}
