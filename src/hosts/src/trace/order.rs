//! Events of several files in the order of their times.
//!
//! bpftrace prints the events of each processor in order, and those of several processors mixed. A
//! bounded number of events waits for older ones.
use super::line::{Line, MAX_LINE, Probe, Transfer, parse};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, BufRead};

/// Maximum number of events of a file waiting for older ones.
const MAX_WAITING: usize = 1 << 17;

/// Maximum nanoseconds of waiting for older events.
const MAX_AGE: u64 = 5_000_000_000;

/// Maximum number of different names of programs, providers and addresses.
const MAX_NAMES: usize = 1 << 16;

/// Names by number. A name beyond the limit has the number 0.
#[derive(Debug)]
pub struct Names {
    all: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Default for Names {
    fn default() -> Self {
        Self { all: vec!["?".into()], numbers: HashMap::new() }
    }
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.all.len() >= MAX_NAMES {
            return 0;
        }
        let number = self.all.len() as u32;
        self.all.push(name.to_string());
        self.numbers.insert(name.to_string(), number);
        number
    }

    /// Returns the name with this number.
    pub fn get(&self, number: u32) -> &str {
        self.all.get(number as usize).map_or("?", |name| name)
    }
}

/// Kind of an event, with names by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the fields are those of the lines")]
pub enum EventKind {
    Enable { endpoint: u64, address: u32 },
    Send(EventTransfer),
    Refuse { endpoint: u64, context: u64, error: i64 },
    Match(EventTransfer),
    Complete { endpoint: u64, context: u64, flags: u64, len: u64, error: i64 },
    Connect { endpoint: u64, peer: u64, address: u32 },
    Lose { endpoint: u64, error: i64, address: u32 },
}

/// Fields of a transfer, ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the fields are those of the lines")]
pub struct EventTransfer {
    pub endpoint: u64,
    pub peer: u64,
    pub tag: u64,
    pub len: u64,
    pub context: u64,
    pub flags: u64,
}

impl From<Transfer> for EventTransfer {
    fn from(of: Transfer) -> Self {
        let Transfer { endpoint, peer, tag, len, context, flags } = of;
        Self { endpoint, peer, tag, len, context, flags }
    }
}

/// Event of a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Event {
    /// Time in nanoseconds, with the offset of the file.
    pub time: i64,
    /// Number of the line in its file: events of one time stay in their order.
    pub number: u64,
    /// Number of the file.
    pub file: u32,
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
    /// Name of the provider.
    pub provider: u32,
    /// Name of the program.
    pub program: u32,
    /// The probe.
    pub kind: EventKind,
}

/// Counts of lines of all files.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LineCounts {
    /// Lines with an event.
    pub events: u64,
    /// Malformed lines.
    pub malformed: u64,
    /// Events dropped by bpftrace.
    pub lost: u64,
}

/// File of a trace.
struct Input<R> {
    from: R,
    offset: i64,
    line: Vec<u8>,
    lines: u64,
    newest: i64,
    waiting: BinaryHeap<Reverse<Event>>,
    has_ended: bool,
}

impl<R: BufRead> Input<R> {
    /// Reads a line without its end; false at the end of the file. A line over the limit is empty
    /// and counts as malformed.
    fn read_line(&mut self, counts: &mut LineCounts) -> io::Result<bool> {
        self.line.clear();
        let mut is_long = false;
        let mut is_any = false;
        loop {
            let part = match self.from.fill_buf() {
                Ok(part) => part,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if part.is_empty() {
                break;
            }
            is_any = true;
            let end = part.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(part.len());
            if self.line.len() + taken > MAX_LINE {
                is_long = true;
                self.line.clear();
            } else if !is_long {
                self.line.extend_from_slice(&part[..taken]);
            }
            self.from.consume(taken + usize::from(end.is_some()));
            if end.is_some() {
                break;
            }
        }
        if is_long {
            counts.malformed += 1;
            self.line.clear();
        }
        self.lines += 1;
        Ok(is_any)
    }

    /// Reads until the oldest waiting event needs to wait no more, or to the end.
    fn fill(
        &mut self,
        file: u32,
        names: &mut Names,
        counts: &mut LineCounts,
        mut ranks: Option<&mut Ranks>,
    ) -> io::Result<()> {
        while !self.has_ended {
            let oldest = self.waiting.peek().map(|Reverse(event)| event.time);
            let is_due = oldest.is_some_and(|time| self.newest.abs_diff(time) > MAX_AGE);
            if is_due || self.waiting.len() >= MAX_WAITING {
                return Ok(());
            }
            self.has_ended = !self.read_line(counts)?;
            let line = match parse(&self.line) {
                Line::Event(line) => line,
                Line::Lost(lost) => {
                    counts.lost = counts.lost.saturating_add(lost);
                    continue;
                }
                Line::Other => continue,
                Line::Malformed => {
                    counts.malformed += 1;
                    continue;
                }
            };
            counts.events += 1;
            if let Some(ranks) = &mut ranks {
                ranks.note(file, line.pid);
            }
            let time = i64::try_from(line.time).unwrap_or(i64::MAX).saturating_add(self.offset);
            self.newest = self.newest.max(time);
            let kind = match line.probe {
                Probe::Enable { endpoint, address } => {
                    EventKind::Enable { endpoint, address: names.number(address) }
                }
                Probe::Send(of) => EventKind::Send(of.into()),
                Probe::Match(of) => EventKind::Match(of.into()),
                Probe::Refuse { endpoint, context, error } => {
                    EventKind::Refuse { endpoint, context, error }
                }
                Probe::Complete { endpoint, context, flags, len, error } => {
                    EventKind::Complete { endpoint, context, flags, len, error }
                }
                Probe::Connect { endpoint, peer, address } => {
                    EventKind::Connect { endpoint, peer, address: names.number(address) }
                }
                Probe::Lose { endpoint, error, address } => {
                    EventKind::Lose { endpoint, error, address: names.number(address) }
                }
            };
            self.waiting.push(Reverse(Event {
                time,
                number: self.lines,
                file,
                pid: line.pid,
                tid: line.tid,
                provider: names.number(line.provider),
                program: names.number(line.program),
                kind,
            }));
        }
        Ok(())
    }
}

/// Ranks of processes in their jobs.
struct Ranks {
    rank_of: fn(u32) -> Option<u32>,
    /// Rank by file and process.
    known: HashMap<(u32, u32), Option<u32>>,
}

impl Ranks {
    /// Looks up the rank of a process at its first event, while it exists.
    fn note(&mut self, file: u32, pid: u32) {
        if self.known.len() < MAX_NAMES {
            self.known.entry((file, pid)).or_insert_with(|| (self.rank_of)(pid));
        }
    }
}

/// Events of several files.
pub struct TraceReader<R> {
    inputs: Vec<Input<R>>,
    ranks: Option<Ranks>,
    /// Names of programs, providers and addresses.
    pub names: Names,
    /// Counts of the lines read so far.
    pub counts: LineCounts,
}

impl<R> TraceReader<R> {
    /// Returns the rank of a process of a file, if it is known.
    pub(super) fn rank(&self, file: u32, pid: u32) -> Option<u32> {
        self.ranks.as_ref()?.known.get(&(file, pid)).copied().flatten()
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads these files. Their times are increased by the offsets, in nanoseconds.
    pub fn new(files: impl IntoIterator<Item = (R, i64)>) -> Self {
        let inputs = files.into_iter().map(|(from, offset)| Input {
            from,
            offset,
            line: Vec::new(),
            lines: 0,
            newest: i64::MIN,
            waiting: BinaryHeap::new(),
            has_ended: false,
        });
        Self {
            inputs: inputs.collect(),
            ranks: None,
            names: Names::default(),
            counts: LineCounts::default(),
        }
    }

    /// Finds the ranks of processes. `rank_of` is called with each process as its first line is read.
    #[must_use]
    pub fn with_ranks(mut self, rank_of: fn(u32) -> Option<u32>) -> Self {
        self.ranks = Some(Ranks { rank_of, known: HashMap::new() });
        self
    }

    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the next event, or `None` at the end of all files.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        let mut first: Option<(usize, Event)> = None;
        for (file, input) in self.inputs.iter_mut().enumerate() {
            let ranks = self.ranks.as_mut();
            input.fill(file as u32, &mut self.names, &mut self.counts, ranks)?;
            if let Some(Reverse(event)) = input.waiting.peek() {
                if first.is_none_or(|(_, first)| event.time < first.time) {
                    first = Some((file, *event));
                }
            }
        }
        let Some((file, event)) = first else { return Ok(None) };
        self.inputs[file].waiting.pop();
        Ok(Some(event))
    }
}
