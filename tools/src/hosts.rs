//! Common part of fi_doctor and fi_top for several hosts: reads their dumps from files or commands.
#![allow(dead_code, reason = "no tool needs all of it")]
use crate::cli::{CliOptions, complain};
use ofi_hosts::command::{DEFAULT, HostCommand, MAX_HOSTS, is_host_name};
use ofi_hosts::parse::{JobBudget, parse_dump};
use ofi_hosts::slurm::{slurm_command, slurm_hosts};
use ofi_hosts::{HostDump, clean};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::time::Duration;

/// Maximum number of hosts without statistics to list.
const MOST_MISSING: usize = 50;

/// A host or file, with the reason for its missing dump.
pub(crate) type MissingHost = (String, String);

/// Dumps by the name of their host, and missing ones.
#[derive(Default)]
pub(crate) struct ReadDumps {
    pub(crate) dumps: Vec<(String, HostDump)>,
    pub(crate) missing: Vec<MissingHost>,
}

/// Source of the dumps of several hosts.
pub(crate) enum DumpSource {
    /// Files written by `fi_ps --dump`.
    Files(Vec<String>),
    /// A command for each of these hosts.
    Hosts(Vec<String>, HostCommand),
}

impl DumpSource {
    /// Returns the source requested by the options, or `None` for this host alone. Complains about
    /// options that exclude each other.
    pub(crate) fn new(own: &str, options: &CliOptions) -> Option<Self> {
        let files = options.all_words("--from").map(String::from);
        let files: Vec<_> = files.chain(options.files.iter().cloned()).collect();
        let (hosts, job) = (options.word("--hosts"), options.word("--slurm"));
        let sources = [hosts.is_some(), job.is_some(), !files.is_empty(), !options.pids.is_empty()];
        if sources.iter().filter(|is_given| **is_given).count() > 1 {
            let text = "processes, files, hosts and jobs exclude each other: see";
            complain(own, &format!("{text} {own} --help"));
        }
        let timeout = Duration::from_secs_f64(options.value("--timeout", 30.0));
        let (hosts, default) = match (hosts, job) {
            (Some(_), _) => (named_hosts(own, options), DEFAULT.to_string()),
            (None, Some(job)) => match slurm_hosts(job, timeout) {
                Ok(hosts) => (hosts, slurm_command(job)),
                Err(reason) => complain(own, &reason),
            },
            (None, None) if options.word("--command").is_some() => {
                complain(own, "--command is for --hosts and --slurm")
            }
            (None, None) => return (!files.is_empty()).then_some(Self::Files(files)),
        };
        let command = HostCommand::new(options.word("--command").unwrap_or(&default), timeout);
        Some(Self::Hosts(hosts, command.unwrap_or_else(|reason| complain(own, reason))))
    }

    /// Reads all dumps.
    pub(crate) fn read(&self) -> ReadDumps {
        match self {
            Self::Files(files) => from_files(files),
            Self::Hosts(hosts, command) => from_hosts(hosts, command),
        }
    }
}

fn named_hosts(own: &str, options: &CliOptions) -> Vec<String> {
    let mut known = HashSet::new();
    let hosts = options.all_words("--hosts").flat_map(|list| list.split(','));
    let hosts = hosts.map(str::trim).filter(|host| !host.is_empty() && known.insert(*host));
    let hosts: Vec<_> = hosts.map(String::from).collect();
    if hosts.is_empty() || hosts.len() > MAX_HOSTS {
        complain(own, &format!("--hosts takes 1 to {MAX_HOSTS} names"));
    }
    if let Some(host) = hosts.iter().find(|host| !is_host_name(host)) {
        complain(own, &format!("{host:?} is no name of a host"));
    }
    hosts
}

fn from_hosts(hosts: &[String], command: &HostCommand) -> ReadDumps {
    let mut read = ReadDumps::default();
    for (host, result) in command.run_all(hosts, &JobBudget::default()) {
        match result {
            Ok(dump) => read.dumps.push((clean(&host), dump)),
            Err(reason) => read.missing.push((clean(&host), reason)),
        }
    }
    read
}

fn from_files(files: &[String]) -> ReadDumps {
    let (mut read, budget) = (ReadDumps::default(), JobBudget::default());
    let mut known = HashSet::new();
    for file in files {
        let opened = File::open(file).map_err(|error| error.to_string());
        let parsed = opened.and_then(|opened| {
            parse_dump(&mut BufReader::new(opened), &budget).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(dump) if known.insert(dump.host.clone()) => {
                read.dumps.push((dump.host.clone(), dump));
            }
            // Hosts may have the same name, as containers do.
            Ok(dump) => read.dumps.push((format!("{} ({})", dump.host, clean(file)), dump)),
            Err(reason) => read.missing.push((clean(file), reason)),
        }
    }
    read
}

/// Returns a line for each host without a dump, up to a limit.
pub(crate) fn missing_text(missing: &[MissingHost]) -> String {
    let mut text = String::new();
    for (host, reason) in missing.iter().take(MOST_MISSING) {
        let _ = writeln!(text, "no statistics of {host}: {reason}");
    }
    if missing.len() > MOST_MISSING {
        let _ = writeln!(text, "and of {} more hosts", missing.len() - MOST_MISSING);
    }
    text
}
