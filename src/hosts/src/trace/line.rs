//! Lines of a trace: fields between tabs.
//!
//! | probe | fields after it |
//! |---|---|
//! | all | time in nanoseconds, process, thread |
//! | `enable` | endpoint, address |
//! | `send`, `match` | endpoint, peer, tag, length, context, flags |
//! | `refuse` | endpoint, context, error |
//! | `complete` | endpoint, context, flags, length, error, queue |
//! | `connect` | endpoint, peer, address |
//! | `lose` | endpoint, error, address |
//! | all | name of the probe with the path of its plug-in, name of the thread |
//!
//! Endpoints, peers, tags, contexts, flags and queues are hexadecimal, other numbers decimal.
use std::str;

/// Maximum bytes of a line.
pub const MAX_LINE: usize = 4096;

/// Kinds of operations in flags, as in `rdma/fabric.h`.
pub mod flags {
    /// FI_TAGGED.
    pub const TAGGED: u64 = 1 << 3;
    /// FI_ATOMIC.
    pub const ATOMIC: u64 = 1 << 4;
    /// FI_READ.
    pub const READ: u64 = 1 << 8;
    /// FI_WRITE.
    pub const WRITE: u64 = 1 << 9;
    /// FI_RECV.
    pub const RECV: u64 = 1 << 10;
    /// FI_SEND.
    pub const SEND: u64 = 1 << 11;
    /// The direction or kind of an operation, equal in its post and its completion.
    pub const CLASS: u64 = READ | WRITE | RECV | SEND;
}

/// Fields of the probes `send` and `match`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Number of the endpoint, equal in all processes; 0 if unknown.
    pub endpoint: u64,
    /// Number of the peer; 0 if unknown.
    pub peer: u64,
    /// The tag.
    pub tag: u64,
    /// Length in bytes.
    pub len: u64,
    /// Context of the operation.
    pub context: u64,
    /// Kind of the operation.
    pub flags: u64,
}

/// Probe with its fields.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are those of the table above")]
pub enum Probe<'a> {
    Enable { endpoint: u64, address: &'a str },
    Send(Transfer),
    Refuse { endpoint: u64, context: u64, error: i64 },
    Match(Transfer),
    Complete { endpoint: u64, context: u64, flags: u64, len: u64, error: i64 },
    Connect { endpoint: u64, peer: u64, address: &'a str },
    Lose { endpoint: u64, error: i64, address: &'a str },
}

/// Line of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceLine<'a> {
    /// Time in nanoseconds of the host's clock.
    pub time: u64,
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
    /// The probe.
    pub probe: Probe<'a>,
    /// Name of the provider, from the file name of the plug-in.
    pub provider: &'a str,
    /// Name of the thread.
    pub program: &'a str,
}

/// Content of a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line<'a> {
    /// Event of a probe.
    Event(TraceLine<'a>),
    /// Number of events dropped by bpftrace.
    Lost(u64),
    /// Line without an event: an empty one, a message of bpftrace, or a time signal.
    Other,
    /// Any other text.
    Malformed,
}

/// Fields of a line, taken one by one.
struct Fields<'a>(str::Split<'a, char>);

impl<'a> Fields<'a> {
    fn text(&mut self) -> Option<&'a str> {
        self.0.next()
    }
    fn number(&mut self) -> Option<u64> {
        self.text()?.parse().ok()
    }
    fn hex(&mut self) -> Option<u64> {
        u64::from_str_radix(self.text()?, 16).ok()
    }
    fn signed(&mut self) -> Option<i64> {
        self.text()?.parse().ok()
    }
    fn small(&mut self) -> Option<u32> {
        self.text()?.parse().ok()
    }
    fn transfer(&mut self) -> Option<Transfer> {
        Some(Transfer {
            endpoint: self.hex()?,
            peer: self.hex()?,
            tag: self.hex()?,
            len: self.number()?,
            context: self.hex()?,
            flags: self.hex()?,
        })
    }
}

/// Returns the name of the provider in the name of a probe:
/// `usdt:/usr/lib/libfabric/libtcp-fi.so:libfabric:send`.
fn provider_of(probe: &str) -> Option<&str> {
    let path = probe.strip_prefix("usdt:")?.split_once(":libfabric:")?.0;
    let file = path.rsplit('/').next()?;
    let name = file.strip_prefix("lib").unwrap_or(file);
    Some(name.split("-fi.so").next().unwrap_or(name))
}

/// Parses a line without its end.
pub fn parse(line: &[u8]) -> Line<'_> {
    let Ok(text) = str::from_utf8(line) else { return Line::Malformed };
    if text.is_empty() || text.starts_with("Attaching ") || text.starts_with("tick\t") {
        return Line::Other;
    }
    if let Some(lost) = text.strip_prefix("Lost ").and_then(|rest| rest.strip_suffix(" events")) {
        return lost.parse().map_or(Line::Malformed, Line::Lost);
    }
    event(text).map_or(Line::Malformed, Line::Event)
}

fn event(text: &str) -> Option<TraceLine<'_>> {
    let mut fields = Fields(text.split('\t'));
    let name = fields.text()?;
    let (time, pid, tid) = (fields.number()?, fields.small()?, fields.small()?);
    let probe = match name {
        "enable" => Probe::Enable { endpoint: fields.hex()?, address: fields.text()? },
        "send" => Probe::Send(fields.transfer()?),
        "match" => Probe::Match(fields.transfer()?),
        "refuse" => Probe::Refuse {
            endpoint: fields.hex()?,
            context: fields.hex()?,
            error: fields.signed()?,
        },
        "complete" => {
            let (endpoint, context, flags) = (fields.hex()?, fields.hex()?, fields.hex()?);
            let (len, error) = (fields.number()?, fields.signed()?);
            fields.hex()?;
            Probe::Complete { endpoint, context, flags, len, error }
        }
        "connect" => {
            Probe::Connect { endpoint: fields.hex()?, peer: fields.hex()?, address: fields.text()? }
        }
        "lose" => Probe::Lose {
            endpoint: fields.hex()?,
            error: fields.signed()?,
            address: fields.text()?,
        },
        _ => return None,
    };
    let provider = provider_of(fields.text()?)?;
    let program = fields.text()?;
    fields.text().is_none().then_some(TraceLine { time, pid, tid, probe, provider, program })
}
