//! Conversion of events to the JSON format of trace viewers.
//!
//! A process of a file is a process of the viewer. Each direction of an endpoint has rows (threads of
//! the viewer), as many as transfers at a time. A slice is a transfer: of a sender from the post to the
//! completion, of a receiver from the match to the completion. An arrow joins a send with its match.
use super::join::{Joiner, SendPoint};
use super::line::flags;
use super::order::{Event, EventKind, EventTransfer, LineCounts, Names, TraceReader};
use crate::clean;
use ofi_stats::show::json;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io::{self, BufRead, Write};

/// Maximum number of endpoints, in each direction.
const MAX_ENDPOINTS: usize = 1 << 16;

/// Maximum number of rows of one direction of an endpoint.
const MAX_ROWS: usize = 1 << 10;

/// Maximum number of transfers in progress.
const MAX_OPEN: usize = 1 << 20;

/// Process numbers of the files are this far apart in the viewer.
const FILE_STEP: u64 = 10_000_000;

/// Counts of a conversion.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TraceSummary {
    /// Counts of the lines.
    pub lines: LineCounts,
    /// Accepted messages.
    pub sends: u64,
    /// Accepted reads, writes and atomic operations.
    pub accesses: u64,
    /// Posts not accepted by the provider.
    pub refused: u64,
    /// Messages with a receive.
    pub matches: u64,
    /// Completions of transfers seen from their beginning.
    pub completions: u64,
    /// Completions of other operations: cancelled receives, and transfers from before the trace.
    pub others: u64,
    /// Established connections.
    pub connects: u64,
    /// Lost connections.
    pub losses: u64,
    /// Messages joined with their match.
    pub joined: u64,
    /// Sends without a match.
    pub unmatched_sends: u64,
    /// Matches without a send.
    pub unmatched_receives: u64,
    /// Transfers without a completion.
    pub unfinished: u64,
    /// Events beyond the limits of this program.
    pub left_out: u64,
}

impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} messages sent, {} matched, {} joined; {} reads, writes and atomic operations",
            self.sends, self.matches, self.joined, self.accesses
        )?;
        writeln!(
            f,
            "{} transfers complete, {} incomplete; {} other completions; {} posts refused",
            self.completions, self.unfinished, self.others, self.refused
        )?;
        write!(f, "{} connections established, {} lost", self.connects, self.losses)?;
        for (count, text) in [
            (self.unmatched_sends, "sends without a match"),
            (self.unmatched_receives, "matches without a send"),
            (self.lines.malformed, "malformed lines"),
            (self.lines.lost, "events dropped by bpftrace"),
            (self.left_out, "events left out, beyond the limits of fi_trace(1)"),
        ] {
            if count > 0 {
                write!(f, "\n{count} {text}")?;
            }
        }
        Ok(())
    }
}

/// One direction of an endpoint of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct RowsKey {
    process: u64,
    provider: u32,
    endpoint: u64,
    receives: bool,
}

/// Rows of one direction of an endpoint.
#[derive(Default)]
struct Rows {
    /// Thread number of each row in the viewer.
    tids: Vec<u64>,
    is_busy: Vec<bool>,
}

/// Operation of a process: transfers of one key complete in their order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct OpenKey {
    process: u64,
    provider: u32,
    endpoint: u64,
    context: u64,
    class: u64,
}

/// Transfer in progress.
#[derive(Clone, Copy, Debug)]
struct OpenTransfer {
    start: i64,
    /// Its row, and the row's number in the viewer.
    row: usize,
    tid: u64,
    thread: u32,
    of: EventTransfer,
    /// Its number among the sends waiting for a match.
    send: Option<u64>,
}

/// Converter of events to JSON.
pub struct TraceConverter<W> {
    out: W,
    is_first: bool,
    base: Option<i64>,
    next_tid: u64,
    next_arrow: u64,
    /// Process of the viewer, with the program and the file.
    processes: BTreeMap<u64, (u32, u32, u32)>,
    rows: BTreeMap<RowsKey, Rows>,
    open: HashMap<OpenKey, VecDeque<OpenTransfer>>,
    open_count: usize,
    /// Key of each thread's last post, by process, thread and provider.
    posts: HashMap<(u64, u32, u32), OpenKey>,
    joiner: Joiner,
    /// Addresses of endpoints.
    addresses: HashMap<u64, u32>,
    summary: TraceSummary,
}

impl<W: Write> TraceConverter<W> {
    /// Returns a converter writing to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            is_first: true,
            base: None,
            next_tid: 1,
            next_arrow: 1,
            processes: BTreeMap::new(),
            rows: BTreeMap::new(),
            open: HashMap::new(),
            open_count: 0,
            posts: HashMap::new(),
            joiner: Joiner::default(),
            addresses: HashMap::new(),
            summary: TraceSummary::default(),
        }
    }

    /// Converts all events. `labels` are the names of the files.
    pub fn convert<R: BufRead>(
        mut self,
        mut reader: TraceReader<R>,
        labels: &[String],
    ) -> io::Result<TraceSummary> {
        self.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        while let Some(event) = reader.next_event()? {
            self.add(&event, &reader.names)?;
        }
        self.summary.lines = reader.counts;
        self.finish(&reader, labels)
    }

    /// Writes an element of the list of events.
    fn element(&mut self, fields: fmt::Arguments<'_>) -> io::Result<()> {
        let start = if self.is_first { "\n{" } else { ",\n{" };
        self.is_first = false;
        self.out.write_all(start.as_bytes())?;
        self.out.write_fmt(fields)?;
        self.out.write_all(b"}")
    }

    fn add(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        self.base.get_or_insert(event.time);
        let process = u64::from(event.file) * FILE_STEP + u64::from(event.pid);
        if self.processes.len() < MAX_ENDPOINTS {
            let known = (event.program, event.file, event.pid);
            self.processes.entry(process).or_insert(known);
        }
        match event.kind {
            EventKind::Enable { endpoint, address } => {
                self.joiner.know(endpoint);
                self.name(endpoint, address);
                let text = format!("enable {}", clean(names.get(address)));
                self.instant(event, process, endpoint, &text)
            }
            EventKind::Send(of) => {
                self.post(event, process, of);
                Ok(())
            }
            EventKind::Refuse { .. } => {
                self.refuse(event, process);
                Ok(())
            }
            EventKind::Match(of) => self.matched(event, process, of),
            EventKind::Complete { endpoint, context, flags, len, error } => {
                self.complete(event, process, (endpoint, context, flags), len, error)
            }
            EventKind::Connect { endpoint, peer, address } => {
                self.summary.connects += 1;
                self.joiner.know(endpoint);
                self.name(peer, address);
                let text = format!("connect {}", clean(names.get(address)));
                self.instant(event, process, endpoint, &text)
            }
            EventKind::Lose { endpoint, error, address } => {
                self.summary.losses += 1;
                let text = format!("lose {} (error {error})", clean(names.get(address)));
                self.instant(event, process, endpoint, &text)
            }
        }
    }

    /// Records the address of an endpoint.
    fn name(&mut self, endpoint: u64, address: u32) {
        if endpoint != 0 && self.addresses.len() < MAX_ENDPOINTS {
            self.addresses.insert(endpoint, address);
        }
    }

    /// Returns a free row of one direction of an endpoint, busy from now on, and its number in the
    /// viewer.
    fn take_row(&mut self, key: RowsKey) -> Option<(usize, u64)> {
        if !self.rows.contains_key(&key) && self.rows.len() >= MAX_ENDPOINTS {
            return None;
        }
        let rows = self.rows.entry(key).or_default();
        let free = rows.is_busy.iter().position(|busy| !busy);
        let row = match free {
            Some(row) => row,
            None if rows.tids.len() >= MAX_ROWS => return None,
            None => {
                rows.tids.push(self.next_tid);
                rows.is_busy.push(false);
                self.next_tid += 1;
                rows.tids.len() - 1
            }
        };
        rows.is_busy[row] = true;
        Some((row, rows.tids[row]))
    }

    fn free_row(&mut self, key: RowsKey, row: usize) {
        if let Some(busy) = self.rows.get_mut(&key).and_then(|rows| rows.is_busy.get_mut(row)) {
            *busy = false;
        }
    }

    /// Starts a transfer; returns its number in the viewer. A transfer beyond the limits is left out.
    fn start(&mut self, event: &Event, key: OpenKey, of: EventTransfer) -> Option<u64> {
        let rows = rows_of(&key);
        let row = if self.open_count < MAX_OPEN { self.take_row(rows) } else { None };
        let Some((row, tid)) = row else {
            self.summary.left_out += 1;
            return None;
        };
        self.open_count += 1;
        self.open.entry(key).or_default().push_back(OpenTransfer {
            start: event.time,
            row,
            tid,
            thread: event.tid,
            of,
            send: None,
        });
        Some(tid)
    }

    fn post(&mut self, event: &Event, process: u64, of: EventTransfer) {
        self.joiner.know(of.endpoint);
        let key = OpenKey {
            process,
            provider: event.provider,
            endpoint: of.endpoint,
            context: of.context,
            class: of.flags & flags::CLASS,
        };
        let is_message = of.flags & flags::SEND != 0;
        *if is_message { &mut self.summary.sends } else { &mut self.summary.accesses } += 1;
        let Some(tid) = self.start(event, key, of) else { return };
        if is_message {
            let point = SendPoint { time: event.time, pid: process, tid };
            let number = self.joiner.sent(of.endpoint, of.peer, of.tag, of.len, point);
            if let Some(last) = self.open.get_mut(&key).and_then(VecDeque::back_mut) {
                last.send = Some(number);
            }
        }
        if self.posts.len() < MAX_ENDPOINTS {
            self.posts.insert((process, event.tid, event.provider), key);
        }
    }

    /// Removes the thread's last post.
    fn refuse(&mut self, event: &Event, process: u64) {
        self.summary.refused += 1;
        let Some(key) = self.posts.remove(&(process, event.tid, event.provider)) else { return };
        let is_message = key.class & flags::SEND != 0;
        let count = if is_message { &mut self.summary.sends } else { &mut self.summary.accesses };
        *count = count.saturating_sub(1);
        if let Some(of) = self.take_open(key, VecDeque::pop_back) {
            if let Some(number) = of.send {
                self.joiner.refused(number);
            }
        }
    }

    /// Takes a transfer with this key, and frees its row.
    fn take_open(
        &mut self,
        key: OpenKey,
        take: impl FnOnce(&mut VecDeque<OpenTransfer>) -> Option<OpenTransfer>,
    ) -> Option<OpenTransfer> {
        let list = self.open.get_mut(&key)?;
        let of = take(list)?;
        if list.is_empty() {
            self.open.remove(&key);
        }
        self.open_count -= 1;
        self.free_row(rows_of(&key), of.row);
        Some(of)
    }

    fn matched(&mut self, event: &Event, process: u64, of: EventTransfer) -> io::Result<()> {
        self.summary.matches += 1;
        self.joiner.know(of.endpoint);
        let key = OpenKey {
            process,
            provider: event.provider,
            endpoint: of.endpoint,
            context: of.context,
            class: flags::RECV,
        };
        let send = self.joiner.matched(of.peer, of.endpoint, of.tag, of.len);
        let Some(tid) = self.start(event, key, of) else { return Ok(()) };
        let at = self.micros(event.time);
        self.element(format_args!(
            "\"ph\":\"i\",\"s\":\"t\",\"name\":\"match\",\"cat\":\"match\",\"pid\":{process},\"tid\":{tid},\"ts\":{at}"
        ))?;
        let Some(send) = send else {
            self.summary.unmatched_receives += 1;
            return Ok(());
        };
        self.summary.joined += 1;
        let arrow = self.next_arrow;
        self.next_arrow += 1;
        // The clocks of two hosts differ: an arrow never points back.
        let (from, to) = (self.micros(send.time), self.micros(event.time.max(send.time)));
        self.element(format_args!(
            "\"ph\":\"s\",\"id\":{arrow},\"name\":\"message\",\"cat\":\"message\",\"pid\":{},\"tid\":{},\"ts\":{from}",
            send.pid, send.tid
        ))?;
        self.element(format_args!(
            "\"ph\":\"f\",\"bp\":\"e\",\"id\":{arrow},\"name\":\"message\",\"cat\":\"message\",\"pid\":{process},\"tid\":{tid},\"ts\":{to}"
        ))
    }

    fn complete(
        &mut self,
        event: &Event,
        process: u64,
        (endpoint, context, op_flags): (u64, u64, u64),
        len: u64,
        error: i64,
    ) -> io::Result<()> {
        let class = op_flags & flags::CLASS;
        let key = OpenKey { process, provider: event.provider, endpoint, context, class };
        let Some(of) = self.take_open(key, VecDeque::pop_front) else {
            self.summary.others += 1;
            let text = match error {
                0 => format!("complete, {len} B"),
                error => format!("complete (error {error})"),
            };
            return self.instant(event, process, endpoint, &text);
        };
        self.summary.completions += 1;
        self.slice(process, &of, event.time, error, false)
    }

    /// Writes a transfer.
    fn slice(
        &mut self,
        process: u64,
        of: &OpenTransfer,
        end: i64,
        error: i64,
        is_unfinished: bool,
    ) -> io::Result<()> {
        let OpenTransfer { start, tid, thread, of, .. } = *of;
        let kind = match of.flags {
            all if all & flags::ATOMIC != 0 => "atomic",
            all if all & flags::RECV != 0 => "receive",
            all if all & flags::SEND != 0 => "send",
            all if all & flags::READ != 0 => "read",
            _ => "write",
        };
        let tag = match of.flags & flags::TAGGED {
            0 => String::new(),
            _ => format!(" tag {:#x}", of.tag),
        };
        let failed = if error == 0 { "" } else { " failed" };
        let unfinished = if is_unfinished { ", incomplete" } else { "" };
        let (at, len, context, peer) = (self.micros(start), of.len, of.context, of.peer);
        // A slice without a duration is invisible.
        let duration = micros_text(end.saturating_sub(start).max(1));
        self.element(format_args!(
            "\"ph\":\"X\",\"name\":\"{kind}{tag}, {len} B{failed}{unfinished}\",\"cat\":\"{kind}\",\"pid\":{process},\"tid\":{tid},\
             \"ts\":{at},\"dur\":{duration},\"args\":{{\"tag\":\"{:#x}\",\"length\":{len},\"context\":\"{context:#x}\",\
             \"peer\":\"{peer:x}\",\"thread\":{thread},\"error\":{error}}}",
            of.tag
        ))
    }

    /// Writes an event of an endpoint without a duration.
    fn instant(
        &mut self,
        event: &Event,
        process: u64,
        endpoint: u64,
        text: &str,
    ) -> io::Result<()> {
        let key = RowsKey { process, provider: event.provider, endpoint, receives: false };
        let first = self.rows.get(&key).and_then(|rows| rows.tids.first().copied());
        let tid = match first {
            Some(tid) => tid,
            None => {
                let Some((row, tid)) = self.take_row(key) else {
                    self.summary.left_out += 1;
                    return Ok(());
                };
                self.free_row(key, row);
                tid
            }
        };
        let (at, text) = (self.micros(event.time), json(text));
        self.element(format_args!(
            "\"ph\":\"i\",\"s\":\"t\",\"name\":{text},\"cat\":\"endpoint\",\"pid\":{process},\"tid\":{tid},\"ts\":{at}"
        ))
    }

    /// Returns a time in microseconds since the first event.
    fn micros(&self, time: i64) -> String {
        micros_text(time.saturating_sub(self.base.unwrap_or(0)))
    }

    /// Writes transfers without a completion, the names of processes and rows, and the end.
    fn finish<R>(mut self, reader: &TraceReader<R>, labels: &[String]) -> io::Result<TraceSummary> {
        let names = &reader.names;
        let last = std::mem::take(&mut self.open);
        let end = last.values().flatten().map(|of| of.start).max().unwrap_or(0);
        for (key, list) in last {
            for of in list {
                self.summary.unfinished += 1;
                self.slice(key.process, &of, end, 0, true)?;
            }
        }
        for (process, (program, file, pid)) in std::mem::take(&mut self.processes) {
            // Viewers add the number of the process, which is its own with a single file.
            let mut program = clean(names.get(program));
            if let Some(rank) = reader.rank(file, pid) {
                program = format!("rank {rank}: {program}");
                self.element(format_args!(
                    "\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{process},\"args\":{{\"sort_index\":{rank}}}"
                ))?;
            }
            let name = json(&match labels.get(file as usize) {
                Some(label) if labels.len() > 1 => format!("{}: {program} {pid}", clean(label)),
                _ => program,
            });
            self.element(format_args!(
                "\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{process},\"args\":{{\"name\":{name}}}"
            ))?;
        }
        for (key, rows) in std::mem::take(&mut self.rows) {
            let RowsKey { process, provider, endpoint, receives } = key;
            let address = match self.addresses.get(&endpoint) {
                Some(address) => clean(names.get(*address)),
                None => format!("{endpoint:x}"),
            };
            let direction = if receives { "receives" } else { "sends" };
            for (number, tid) in rows.tids.iter().enumerate() {
                let more = if number == 0 { String::new() } else { format!(" ({})", number + 1) };
                let provider = clean(names.get(provider));
                let name = json(&format!("{provider} {address} {direction}{more}"));
                self.element(format_args!(
                    "\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{process},\"tid\":{tid},\"args\":{{\"name\":{name}}}"
                ))?;
                self.element(format_args!(
                    "\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{process},\"tid\":{tid},\"args\":{{\"sort_index\":{tid}}}"
                ))?;
            }
        }
        writeln!(self.out, "\n]}}")?;
        self.out.flush()?;
        self.summary.unmatched_sends = self.joiner.unmatched();
        Ok(self.summary)
    }
}

/// Returns the rows of a transfer.
fn rows_of(key: &OpenKey) -> RowsKey {
    RowsKey {
        process: key.process,
        provider: key.provider,
        endpoint: key.endpoint,
        receives: key.class & flags::RECV != 0,
    }
}

/// Returns nanoseconds as a number of microseconds with three decimals.
fn micros_text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let all = nanoseconds.unsigned_abs();
    format!("{sign}{}.{:03}", all / 1000, all % 1000)
}
