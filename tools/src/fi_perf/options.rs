//! Command line of fi_perf, and the parameters common to both ends.
use crate::sizes::{parse_sizes, sizes_text};
use crate::wire::MAX_CHANNELS;
use lexopt::{Arg, ValueExt as _};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Port of the control connection of a server.
pub(crate) const CONTROL_PORT: u16 = 47593;

/// Place of buffers without a device.
const HOST: &str = "host";

/// Declares an enum with a word for each value.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($value:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum $name { $($value),+ }
        impl $name {
            pub(crate) fn word(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
            fn parse(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$value),)+
                    _ => Err(format!("{word:?} is none of {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

words! {
    /// Kind of measurement.
    Test { Latency = "lat", Bandwidth = "bw", Rate = "rate" }
}
words! {
    /// Measured operation.
    Op {
        Msg = "msg",
        Tagged = "tagged",
        Read = "read",
        Write = "write",
        WriteData = "writedata",
        Atomic = "atomic",
        Fetch = "fetch",
        Cswap = "cswap",
    }
}
words! {
    /// Type of endpoint.
    EpKind { Rdm = "rdm", Msg = "msg", Dgram = "dgram" }
}
words! {
    /// Waiting for completions.
    Waiting { Poll = "poll", Block = "block" }
}
words! {
    /// Use of inject calls.
    Inject { Auto = "auto", Yes = "yes", No = "no" }
}
words! {
    /// Completion level.
    Level {
        Default = "default",
        Inject = "inject",
        Transmit = "transmit",
        Delivery = "delivery",
    }
}

impl Op {
    /// Returns true for operations without a receive of the peer's program.
    pub(crate) fn is_one_sided(self) -> bool {
        !matches!(self, Self::Msg | Self::Tagged | Self::WriteData)
    }
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::Atomic | Self::Fetch | Self::Cswap)
    }
    /// Returns true if the operation returns data of the peer.
    pub(crate) fn is_fetching(self) -> bool {
        matches!(self, Self::Read | Self::Fetch | Self::Cswap)
    }
}

/// Parameters common to both ends. The client's are used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) tests: Vec<Test>,
    pub(crate) ops: Vec<Op>,
    /// Sizes; by default those of the test.
    pub(crate) sizes: Option<Vec<u64>>,
    /// Operations of each endpoint; by default as many as fit into `seconds`.
    pub(crate) iterations: Option<u64>,
    pub(crate) seconds: f64,
    pub(crate) warmup: u64,
    pub(crate) window: u64,
    pub(crate) threads: u64,
    pub(crate) endpoints: u64,
    pub(crate) buffers: Option<u64>,
    pub(crate) bidir: bool,
    pub(crate) waiting: Waiting,
    pub(crate) inject: Inject,
    pub(crate) level: Level,
    pub(crate) ack: bool,
    pub(crate) verify: bool,
    pub(crate) provider: Option<String>,
    pub(crate) ep: EpKind,
    /// Number of the CUDA device with the buffers of both ends, if they are not the hosts'.
    pub(crate) device: Option<u32>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            tests: vec![Test::Latency, Test::Bandwidth],
            ops: vec![Op::Tagged],
            sizes: None,
            iterations: None,
            seconds: 1.0,
            warmup: 100,
            window: 64,
            threads: 1,
            endpoints: 1,
            buffers: None,
            bidir: false,
            waiting: Waiting::Poll,
            inject: Inject::Auto,
            level: Level::Default,
            ack: false,
            verify: false,
            provider: None,
            ep: EpKind::Rdm,
            device: None,
        }
    }
}

/// Parses a number within limits.
fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from {min} to {max}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.001..=86400.0).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number from 0.001 to 86400"))
}

/// Parses the place of the buffers: `host`, `cuda` or `cuda:N`.
fn device(text: &str) -> Result<Option<u32>, String> {
    match text.split_once(':') {
        None if text == HOST => Ok(None),
        None if text == "cuda" => Ok(Some(0)),
        Some(("cuda", which)) => number(which, 0, 1023).map(|number| Some(number as u32)),
        _ => Err(format!("{text:?} is none of host, cuda, cuda:N")),
    }
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{text:?} is neither yes nor no")),
    }
}

fn list<T: PartialEq>(text: &str, parse: fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut all = Vec::new();
    for word in text.split(',') {
        let one = parse(word.trim())?;
        if all.contains(&one) {
            return Err(format!("{word:?} is there twice"));
        }
        all.push(one);
    }
    Ok(all)
}

/// Separates words by commas.
fn joined<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(",")
}

impl Parameters {
    /// Sets a parameter by its name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "test" => self.tests = list(value, Test::parse)?,
            "op" => self.ops = list(value, Op::parse)?,
            "sizes" if value == "default" => self.sizes = None,
            "sizes" => self.sizes = Some(parse_sizes(value)?),
            "iterations" if value == "default" => self.iterations = None,
            "iterations" => self.iterations = Some(number(value, 1, 1 << 40)?),
            "seconds" => self.seconds = seconds(value)?,
            "warmup" => self.warmup = number(value, 0, 1 << 40)?,
            "window" => self.window = number(value, 1, 4096)?,
            "threads" => self.threads = number(value, 1, 64)?,
            "endpoints" => self.endpoints = number(value, 1, 64)?,
            "buffers" if value == "default" => self.buffers = None,
            "buffers" => self.buffers = Some(number(value, 1, 4096)?),
            "bidir" => self.bidir = flag(value)?,
            "wait" => self.waiting = Waiting::parse(value)?,
            "inject" => self.inject = Inject::parse(value)?,
            "completion" => self.level = Level::parse(value)?,
            "ack" => self.ack = flag(value)?,
            "verify" => self.verify = flag(value)?,
            "provider" if value == "default" => self.provider = None,
            "provider" => self.provider = Some(value.into()),
            "ep" => self.ep = EpKind::parse(value)?,
            "device" => self.device = device(value)?,
            _ => return Err(format!("the parameter {name:?} is unknown")),
        }
        Ok(())
    }

    /// Returns all parameters by name.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let optional = |value: Option<u64>| value.map_or("default".into(), |n| n.to_string());
        let flag = |on: bool| String::from(if on { "yes" } else { "no" });
        vec![
            ("test", joined(self.tests.iter().map(|test| test.word()))),
            ("op", joined(self.ops.iter().map(|op| op.word()))),
            ("sizes", self.sizes.as_deref().map_or("default".into(), sizes_text)),
            ("iterations", optional(self.iterations)),
            ("seconds", self.seconds.to_string()),
            ("warmup", self.warmup.to_string()),
            ("window", self.window.to_string()),
            ("threads", self.threads.to_string()),
            ("endpoints", self.endpoints.to_string()),
            ("buffers", optional(self.buffers)),
            ("bidir", flag(self.bidir)),
            ("wait", self.waiting.word().into()),
            ("inject", self.inject.word().into()),
            ("completion", self.level.word().into()),
            ("ack", flag(self.ack)),
            ("verify", flag(self.verify)),
            ("provider", self.provider.clone().unwrap_or("default".into())),
            ("ep", self.ep.word().into()),
            ("device", self.device.map_or(HOST.into(), |number| format!("cuda:{number}"))),
        ]
    }

    /// Returns the parameters for the other end. An end of a version before `device` is asked for
    /// one only if needed.
    pub(crate) fn exchanged(&self) -> Vec<(&'static str, String)> {
        let is_needed = |(name, _): &(&str, String)| *name != "device" || self.device.is_some();
        self.pairs().into_iter().filter(is_needed).collect()
    }

    /// Checks combinations of parameters.
    pub(crate) fn check(&self) -> Result<(), String> {
        let measures = |test| self.tests.contains(&test);
        if self.threads * self.endpoints > MAX_CHANNELS as u64 {
            return Err(format!("more than {MAX_CHANNELS} endpoints"));
        }
        if self.ack && self.bidir && self.ops.iter().any(|op| !op.is_one_sided()) {
            return Err("--ack and --bidir of two-sided operations exclude each other".into());
        }
        if self.ack && self.ep == EpKind::Dgram {
            return Err("--ack needs reliable endpoints".into());
        }
        if self.ep == EpKind::Dgram && self.ops.iter().any(|op| !matches!(op, Op::Msg | Op::Tagged))
        {
            return Err("endpoints of type dgram have only msg and tagged".into());
        }
        if self.inject == Inject::Yes && self.ops.iter().any(|op| op.is_fetching()) {
            return Err("read, fetch and cswap cannot be injected".into());
        }
        let injected = self.inject == Inject::Yes;
        if injected && measures(Test::Latency) && self.ops.iter().any(|op| op.is_one_sided()) {
            return Err("the latency of injected writes and atomics cannot be measured".into());
        }
        if injected && self.verify && self.ops.iter().any(|op| op.is_one_sided()) {
            return Err("--verify needs completions, and injected operations have none".into());
        }
        Ok(())
    }

    /// Returns the sizes of a test.
    pub(crate) fn sizes_of(&self, test: Test, op: Op) -> Vec<u64> {
        let default = match (test, op.is_atomic()) {
            (Test::Rate, _) | (_, true) => vec![8],
            _ => vec![1, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20],
        };
        self.sizes.clone().unwrap_or(default)
    }

    /// Returns the size of the largest transfer.
    pub(crate) fn max_size(&self, op: Op) -> u64 {
        let sizes = self.tests.iter().flat_map(|test| self.sizes_of(*test, op));
        sizes.max().unwrap_or(0).max(16)
    }

    /// Returns the number of different buffers of an endpoint in each direction.
    pub(crate) fn buffer_count(&self, op: Op) -> u64 {
        let default = if self.verify || op.is_atomic() { self.window } else { 1 };
        // A verified buffer has one transfer at a time.
        if self.verify { default } else { self.buffers.unwrap_or(default).min(self.window) }
    }
}

/// Returns the client's parameters if they agree with those named on the server's command line. A
/// provider named by the server alone is used.
pub(crate) fn agree(
    own: &Parameters,
    named: &BTreeSet<String>,
    pairs: &[(String, String)],
) -> Result<Parameters, String> {
    let mut agreed = Parameters::default();
    for (name, value) in pairs {
        agreed.set(name, value).map_err(|error| format!("parameter {name}: {error}"))?;
    }
    agreed.check()?;
    if agreed.provider.is_none() {
        agreed.provider.clone_from(&own.provider);
    }
    let pairs = own.pairs().into_iter().zip(agreed.pairs());
    let differ: Vec<String> = pairs
        .filter(|((name, here), (_, there))| named.contains(*name) && here != there)
        .map(|((name, here), (_, there))| {
            format!("{name} is {here} at the server and {there} at the client")
        })
        .collect();
    if differ.is_empty() {
        Ok(agreed)
    } else {
        Err(format!("different parameters: {}", differ.join("; ")))
    }
}

/// Form of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Table,
    Csv,
    Json,
}

/// Task of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Both ends on this host.
    Local,
    Server,
    /// Server for one client, on the socket at the standard input.
    Inherited,
    Client(String),
    Mesh(Vec<String>),
}

/// The command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) parameters: Parameters,
    /// Parameters named on the command line.
    pub(crate) named: BTreeSet<String>,
    pub(crate) role: Role,
    pub(crate) once: bool,
    pub(crate) listen: Option<String>,
    pub(crate) port: u16,
    pub(crate) domain: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) format: Format,
    pub(crate) histogram: bool,
    pub(crate) samples: Option<PathBuf>,
    pub(crate) timeout: f64,
    pub(crate) compared: Option<PathBuf>,
    pub(crate) repeats: u64,
    pub(crate) remote_shell: String,
}

/// Result of parsing the command line.
pub(crate) enum Parsed {
    Run(Box<Options>),
    Help,
    Version,
}

/// Options of a parameter with a value: their letters and long names.
const VALUES: [(Option<char>, &str, &str); 16] = [
    (Some('t'), "test", "test"),
    (Some('o'), "op", "op"),
    (Some('S'), "sizes", "sizes"),
    (Some('n'), "iterations", "iterations"),
    (Some('T'), "seconds", "seconds"),
    (Some('w'), "warmup", "warmup"),
    (Some('W'), "window", "window"),
    (None, "threads", "threads"),
    (None, "endpoints", "endpoints"),
    (None, "buffers", "buffers"),
    (None, "wait", "wait"),
    (None, "inject", "inject"),
    (None, "completion", "completion"),
    (Some('p'), "provider", "provider"),
    (Some('e'), "ep", "ep"),
    (Some('D'), "device", "device"),
];
/// Options of a parameter without a value.
const FLAGS: [(Option<char>, &str); 3] =
    [(Some('b'), "bidir"), (None, "ack"), (Some('c'), "verify")];

/// Parses the command line.
pub(crate) fn parse(arguments: &[String]) -> Result<Parsed, String> {
    let mut o = Options {
        parameters: Parameters::default(),
        named: BTreeSet::new(),
        role: Role::Local,
        once: false,
        listen: None,
        port: CONTROL_PORT,
        domain: None,
        source: None,
        format: Format::Table,
        histogram: false,
        samples: None,
        timeout: 60.0,
        compared: None,
        repeats: 10,
        remote_shell: "ssh".into(),
    };
    let mut roles = Vec::new();
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let (letter, long) = match arg {
            Arg::Short(letter) => (Some(letter), String::new()),
            Arg::Long(long) => (None, long.to_owned()),
            Arg::Value(host) => {
                roles.push(Role::Client(host.to_string_lossy().into_owned()));
                continue;
            }
        };
        let option = letter.map_or_else(|| format!("--{long}"), |letter| format!("-{letter}"));
        let is = |short: Option<char>, name: &str| {
            letter.map_or(name == long, |letter| short == Some(letter))
        };
        let mut value = || {
            let value = parser.value().map_err(|error| error.to_string())?;
            value.string().map_err(|error| error.to_string())
        };
        if let Some((_, _, name)) = VALUES.iter().find(|(short, name, _)| is(*short, name)) {
            let value = value()?;
            o.parameters.set(name, &value).map_err(|error| format!("{option}: {error}"))?;
            o.named.insert((*name).into());
        } else if let Some((_, name)) = FLAGS.iter().find(|(short, name)| is(*short, name)) {
            o.parameters.set(name, "yes")?;
            o.named.insert((*name).into());
        } else if is(Some('h'), "help") {
            return Ok(Parsed::Help);
        } else if is(Some('V'), "version") {
            return Ok(Parsed::Version);
        } else if is(None, "local") {
            roles.push(Role::Local);
        } else if is(Some('s'), "server") {
            roles.push(Role::Server);
        } else if is(None, "inherited") {
            roles.push(Role::Inherited);
        } else if is(None, "mesh") {
            let hosts: Vec<String> = value()?.split(',').map(String::from).collect();
            if hosts.len() < 2 || hosts.iter().any(|host| host.is_empty() || host.starts_with('-'))
            {
                return Err("--mesh takes two hosts or more".into());
            }
            roles.push(Role::Mesh(hosts));
        } else if is(None, "once") {
            o.once = true;
        } else if is(Some('l'), "listen") {
            o.listen = Some(value()?);
        } else if is(Some('P'), "port") {
            o.port =
                number(&value()?, 0, 65535).map_err(|error| format!("{option}: {error}"))? as u16;
        } else if is(Some('d'), "domain") {
            o.domain = Some(value()?);
        } else if is(None, "source") {
            o.source = Some(value()?);
        } else if is(None, "csv") {
            o.format = Format::Csv;
        } else if is(None, "json") {
            o.format = Format::Json;
        } else if is(Some('H'), "histogram") {
            o.histogram = true;
        } else if is(None, "samples") {
            o.samples = Some(value()?.into());
        } else if is(None, "timeout") {
            o.timeout = seconds(&value()?).map_err(|error| format!("{option}: {error}"))?;
        } else if is(None, "beside") {
            o.compared = Some(value()?.into());
        } else if is(None, "rounds") {
            o.repeats = number(&value()?, 2, 1000).map_err(|error| format!("{option}: {error}"))?;
        } else if is(None, "rsh") {
            o.remote_shell = value()?;
        } else {
            return Err(format!("the option {option} is unknown"));
        }
    }
    if roles.len() > 1 {
        return Err("HOST, --local, --server and --mesh exclude each other".into());
    }
    o.role = roles.pop().unwrap_or(Role::Local);
    if o.compared.is_some() && o.role != Role::Local {
        return Err(
            "--beside compares on this host: it takes neither HOST, --server nor --mesh".into()
        );
    }
    if o.port == 0 && !matches!(o.role, Role::Server) {
        return Err("port 0 is for servers".into());
    }
    o.parameters.check()?;
    Ok(Parsed::Run(Box::new(o)))
}

/// Text of `--help`.
pub(crate) const HELP: &str = "\
Usage: fi_perf [OPTIONS]           both ends on this host (--local)
       fi_perf [OPTIONS] --server  one end, for clients on other hosts
       fi_perf [OPTIONS] HOST      the other end: measures, and prints the results
       fi_perf [OPTIONS] --mesh A,B,C   each pair of these hosts, started with ssh

Measurements:
  -t, --test LIST        lat, bw, rate: half round trip, bandwidth, message rate (lat,bw)
  -o, --op LIST          msg, tagged, read, write, writedata, atomic, fetch, cswap (tagged)
  -S, --sizes LIST       as in 1,64,4K,1M, 1-1M (doubled), 64-1K+64, all
  -n, --iterations N     operations of each endpoint and size
  -T, --seconds S        or as many as take S seconds (1)
  -w, --warmup N         operations before the measurement (100)
  -W, --window N         transfers in flight in bw and rate (64)
      --ack              bw and rate wait for each window to end
  -b, --bidir            both ends send
      --threads N        threads of each end, with a domain each (1)
      --endpoints N      endpoints of each thread (1)
      --buffers N        different buffers in use (1; with --verify one for each transfer)
      --wait poll|block  poll the completion queue, or sleep until a completion (poll)
      --inject auto|yes|no   inject calls; auto: for lat, if the size permits (auto)
      --completion inject|transmit|delivery   completion level (the provider's default)
  -c, --verify           check all data
Endpoints:
  -p, --provider NAME    as in tcp, shm, 'tcp;ofi_rxm'
  -e, --ep rdm|msg|dgram type of endpoint (rdm)
  -d, --domain NAME      domain of this end
  -D, --device PLACE     memory of the buffers: host, cuda, cuda:N (host)
      --source ADDRESS   source address of this end's endpoints
Output:
      --csv, --json      instead of a table
  -H, --histogram        latencies by class
      --samples FILE     every latency, one a line
      --beside DIR       compare with the libfabric.so.1 in DIR, in turns
      --rounds N         turns of each library (10)
Connection:
  -s, --server           serve clients until stopped
      --once             end after one client
  -l, --listen ADDRESS   address of the control port (all)
  -P, --port PORT        control port (47593)
      --timeout S        longest wait for the other end without any progress (60)
      --rsh COMMAND      starts the ends of --mesh (ssh)
  -h, --help
  -V, --version
";
