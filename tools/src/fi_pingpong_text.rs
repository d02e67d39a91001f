//! Command line and output of fi_pingpong: the same words and columns as every other fi_pingpong.
use lexopt::Arg;
use ofi::abi::fi_ep_type;
use std::fmt;
use std::time::Duration;

/// Port of a server's control connection.
pub(crate) const CONTROL_PORT: u16 = 47592;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Msg,
    Tagged,
}

/// The command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) source_port: Option<u16>,
    pub(crate) destination_port: u16,
    pub(crate) domain: Option<String>,
    pub(crate) fabric: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) provider: Option<String>,
    pub(crate) endpoint: fi_ep_type,
    pub(crate) iterations: usize,
    pub(crate) size: Option<usize>,
    pub(crate) check: bool,
    pub(crate) mode: Mode,
    pub(crate) verbose: bool,
    pub(crate) v6: bool,
    pub(crate) server: Option<String>,
}

pub(crate) fn usage(program: &str) -> String {
    format!(
        "Usage:
  {program} [OPTIONS]\t\tstart server
  {program} [OPTIONS] <srv_addr>\tconnect to server

Ping pong client and server

Options:
 -B <src_port>        source control port number (server: 47592, client: auto)
 -P <dst_port>        destination control port number (client: 47592)
 -d <domain>          domain name
 -f <fabric>          fabric name
 -s <source address>  source address associated with domain name
 -p <provider>        specific provider name eg sockets, verbs
 -e <ep_type>         endpoint type: msg|rdm|dgram (dgram)
 -I <number>          number of iterations (10)
 -S <size>            specific transfer size or 'all' (all)
 -c                   enables data_integrity checks
 -m <transmit mode>   transmit mode type: msg|tagged (msg)
 -h                   display this help output
 -v                   enable debugging output
 -6                   use IPv6 address
"
    )
}

/// Action requested by the command line instead of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsageError {
    pub(crate) message: String,
    pub(crate) usage: bool,
}

pub(crate) fn parse(arguments: &[String]) -> std::result::Result<Options, UsageError> {
    let refuse = |message: String, usage| UsageError { message, usage };
    let mut o = Options {
        source_port: None,
        destination_port: CONTROL_PORT,
        domain: None,
        fabric: None,
        source: None,
        provider: None,
        endpoint: fi_ep_type::FI_EP_DGRAM,
        iterations: 10,
        size: None,
        check: false,
        mode: Mode::Msg,
        verbose: false,
        v6: false,
        server: None,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(arg) = parser.next().map_err(|error| refuse(error.to_string(), true))? {
        let letter = match arg {
            Arg::Short('c') => {
                o.check = true;
                continue;
            }
            Arg::Short('v') => {
                o.verbose = true;
                continue;
            }
            Arg::Short('6') => {
                o.v6 = true;
                continue;
            }
            Arg::Short('h') => return Err(refuse(String::new(), true)),
            Arg::Short(letter @ ('B' | 'P' | 'd' | 'f' | 's' | 'p' | 'e' | 'I' | 'S' | 'm')) => {
                letter
            }
            Arg::Short(letter) => {
                return Err(refuse(format!("invalid option -- '{letter}'"), true));
            }
            // getopt(3) without long options takes the second dash for an option.
            Arg::Long(_) => return Err(refuse("invalid option -- '-'".to_owned(), true)),
            Arg::Value(server) => {
                o.server.get_or_insert_with(|| server.to_string_lossy().into_owned());
                continue;
            }
        };
        let value = parser
            .value()
            .map_err(|_| refuse(format!("option requires an argument -- '{letter}'"), true))?;
        let value = value.to_string_lossy().into_owned();
        let bad = || refuse(format!("Error parsing \"{value}\": Invalid argument"), false);
        match letter {
            'B' => o.source_port = Some(value.parse().map_err(|_| bad())?),
            'P' => o.destination_port = value.parse().map_err(|_| bad())?,
            'd' => o.domain = Some(value),
            'f' => o.fabric = Some(value),
            's' => o.source = Some(value),
            'p' => o.provider = Some(value),
            'e' => {
                o.endpoint = match value.to_ascii_lowercase().as_str() {
                    "msg" => fi_ep_type::FI_EP_MSG,
                    "rdm" => fi_ep_type::FI_EP_RDM,
                    "dgram" => fi_ep_type::FI_EP_DGRAM,
                    _ => return Err(refuse(format!("Unknown endpoint : {value}"), false)),
                }
            }
            'I' => o.iterations = value.parse().map_err(|_| bad())?,
            'S' if value.eq_ignore_ascii_case("all") => o.size = None,
            'S' => o.size = Some(value.parse().map_err(|_| bad())?),
            _ => {
                o.mode = match value.to_ascii_lowercase().as_str() {
                    "msg" => Mode::Msg,
                    "tagged" => Mode::Tagged,
                    _ => return Err(refuse(format!("Unknown transmit mode : {value}"), false)),
                }
            }
        }
    }
    Ok(o)
}

pub(crate) const HEADING: &str =
    "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec";

/// Measurement of one size.
pub(crate) struct ResultRow {
    pub(crate) size: usize,
    pub(crate) sent: usize,
    pub(crate) acknowledged: usize,
    pub(crate) elapsed: Duration,
}

/// 64, 1.2k, 20m: at most one decimal, of powers of 1024.
pub(crate) fn short(n: u64) -> String {
    let (unit, suffix) = match n {
        n if n >= 1 << 30 => (1u64 << 30, "g"),
        n if n >= 1 << 20 => (1 << 20, "m"),
        n if n >= 1 << 10 => (1 << 10, "k"),
        _ => (1, ""),
    };
    match (n / unit, n % unit * 10 / unit) {
        (whole, 0) => format!("{whole}{suffix}"),
        (whole, tenth) => format!("{whole}.{tenth}{suffix}"),
    }
}

impl fmt::Display for ResultRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let acknowledged = match self.acknowledged.checked_sub(self.sent) {
            Some(0) => format!("={}", self.sent),
            Some(more) => format!("+{more}"),
            None => format!("-{}", self.sent - self.acknowledged),
        };
        let transfers = 2 * self.sent;
        let total = self.size as u64 * transfers as u64;
        let us = self.elapsed.as_secs_f64() * 1e6;
        let per = us / transfers as f64;
        write!(
            f,
            "{:<8}{:<8}{:<9}{:<8}{:8.2}s{:10.2}{:11.2}{:11.2}",
            short(self.size as u64),
            self.sent,
            acknowledged,
            short(total),
            us / 1e6,
            total as f64 / us,
            per,
            1.0 / per
        )
    }
}
