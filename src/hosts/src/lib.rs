//! Statistics of the processes of several hosts, and their common analysis.
//!
//! [`write`] writes the statistics of the processes of a host as a text, the dump. [`parse`] reads a
//! dump of any content within limits. [`command`] runs a command for each host and reads its dump.
//! [`slurm`] finds the nodes of a Slurm job. [`job`] joins the dumps of several hosts for the analysis
//! of `ofi_stats`. [`sockets`] reads the retransmissions of TCP connections from the kernel of this
//! host. [`trace`] converts traces of transfers.
//!
//! A dump is a text of lines, each with a JSON object of one member. The first line has the version
//! and the host, the last line the number of lines before it, so an incomplete dump is detected.
//!
//! | member | content |
//! |---|---|
//! | `ofi_dump` | version, host, boot, network namespace, time |
//! | `process` | a process, and as `earlier` its state at the first of two reads |
//! | `socket` | a TCP connection of the process with lost packets |
//! | `page` | a provider of the process |
//! | `endpoint` | an endpoint of the provider |
//! | `peer` | a peer of the provider's endpoints |
//! | `end` | number of lines before this one |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod command;
pub mod job;
pub mod parse;
mod record;
pub mod slurm;
pub mod sockets;
pub mod trace;
pub mod write;

use ofi_stats::read::StatsProcess;

/// Version of the text form.
pub const VERSION: u64 = 1;

/// Statistics of the processes of a host, read twice.
#[derive(Clone, Debug, Default)]
pub struct HostDump {
    /// Name of the host.
    pub host: String,
    /// Number of the boot of its kernel (`/proc/sys/kernel/random/boot_id`); empty if unknown.
    pub boot: String,
    /// Version of the writing program.
    pub tool: String,
    /// Number of the network namespace of this program; 0 if unknown.
    pub network: u64,
    /// Time of the second read in seconds since 1970.
    pub time: u64,
    /// Time of the second read in nanoseconds of the host's CLOCK_MONOTONIC.
    pub now: u64,
    /// Number of processes not read.
    pub left_out: u64,
    /// Processes at the first read.
    pub before: Vec<StatsProcess>,
    /// Processes at the second read.
    pub after: Vec<StatsProcess>,
}

/// Returns a text of another host without control characters and other characters changing the
/// output of a terminal, cut to 64 characters.
pub fn clean(text: &str) -> String {
    let is_printable = |c: char| matches!(c, ' '..='~') || c.is_alphanumeric();
    text.chars().take(64).map(|c| if is_printable(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests;
