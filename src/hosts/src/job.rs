//! Joins the dumps of several hosts.
use crate::HostDump;
use ofi_stats::doctor::{Diagnosis, examine};
use ofi_stats::read::StatsProcess;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Number of host names in a note.
const MOST_NAMED: usize = 8;

/// Difference of the times of dumps in seconds for a note.
const LATE: u64 = 60;

/// Processes of several hosts, read twice.
#[derive(Debug, Default)]
pub struct Job {
    /// Processes at the first read.
    pub before: Vec<StatsProcess>,
    /// Processes at the second read.
    pub after: Vec<StatsProcess>,
    /// Observations without effect on the status: differing versions and times.
    pub notes: Vec<String>,
    /// Number of hosts.
    pub hosts: usize,
}

/// Identifies a process by its kernel, its namespace of processes and its number there, from
/// whatever container it was read. Without a namespace, by the dump and the number.
type Identity = (u32, u64, u64);

impl Job {
    /// Joins the dumps of hosts, each with the name of the host or of its file.
    ///
    /// Hosts may be network namespaces or containers of one kernel, so a dump may contain processes
    /// of others. Such a process belongs to the dump made in its network namespace.
    pub fn join(dumps: Vec<(String, HostDump)>) -> Self {
        let kernels = kernels(&dumps);
        let mut owners: HashMap<Identity, (bool, usize)> = HashMap::new();
        for (index, (_, dump)) in dumps.iter().enumerate() {
            for process in &dump.after {
                let is_near = process.origin.network == dump.network;
                let owner = owners.entry(identity(kernels[index], index, process));
                let owner = owner.or_insert((is_near, index));
                if is_near && !owner.0 {
                    *owner = (true, index);
                }
            }
        }
        let mut job = Self { hosts: dumps.len(), notes: notes(&dumps), ..Self::default() };
        for (index, (name, dump)) in dumps.into_iter().enumerate() {
            let name: Arc<str> = name.into();
            let mut own = HashSet::new();
            for (is_after, processes) in [(true, dump.after), (false, dump.before)] {
                for mut process in processes {
                    let identity = identity(kernels[index], index, &process);
                    let is_own = owners.get(&identity).is_some_and(|owner| owner.1 == index);
                    // A process has one number in a dump.
                    if !is_own || (is_after && !own.insert(process.pid)) {
                        continue;
                    }
                    process.origin.host = index as u32 + 1;
                    process.origin.host_name = Arc::clone(&name);
                    process.origin.kernel = kernels[index];
                    if is_after { &mut job.after } else { &mut job.before }.push(process);
                }
            }
        }
        job
    }

    /// Analyses the processes of all hosts.
    pub fn diagnose(&self) -> Diagnosis {
        examine(&self.before, &self.after, crate::parse::COMMON_NOW)
    }
}

fn identity(kernel: u32, dump: usize, process: &StatsProcess) -> Identity {
    match process.origin.pid_space {
        // Numbers of kernels are less.
        0 => (u32::MAX - dump as u32, 0, process.pid.into()),
        space => (kernel, space, process.origin.own_pid),
    }
}

/// Returns a number for the kernel of each dump.
fn kernels(dumps: &[(String, HostDump)]) -> Vec<u32> {
    let mut known = HashMap::new();
    let kernels = dumps.iter().enumerate().map(|(index, (_, dump))| {
        let number = index as u32 + 1;
        match dump.boot.as_str() {
            "" => number,
            boot => *known.entry(boot).or_insert(number),
        }
    });
    kernels.collect()
}

/// Returns some of these names as text.
fn names(mut all: Vec<&str>) -> String {
    all.sort_unstable();
    all.dedup();
    let more = all.len().saturating_sub(MOST_NAMED);
    all.truncate(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    all.join(", ") + &more
}

fn notes(dumps: &[(String, HostDump)]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut versions: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (name, dump) in dumps {
        for page in dump.after.iter().flat_map(|process| &process.pages) {
            let hosts = versions.entry(page.head.library).or_default();
            if hosts.last() != Some(&name.as_str()) {
                hosts.push(name);
            }
        }
    }
    if versions.len() > 1 {
        let each = versions.into_iter().map(|(version, hosts)| {
            format!("{}.{} on {}", version >> 16, version & 0xffff, names(hosts))
        });
        let each: Vec<_> = each.take(MOST_NAMED).collect();
        notes.push(format!("the library's versions differ: {}", each.join("; ")));
    }
    let mut tools: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    dumps.iter().for_each(|(name, dump)| tools.entry(&dump.tool).or_default().push(name));
    if tools.len() > 1 {
        let each = tools.into_iter().map(|(tool, hosts)| format!("{tool} on {}", names(hosts)));
        let each: Vec<_> = each.take(MOST_NAMED).collect();
        notes.push(format!("the versions of fi_ps differ: {}", each.join("; ")));
    }
    let times = || dumps.iter().map(|(_, dump)| dump.time).filter(|time| *time > 0);
    if let (Some(first), Some(last)) = (times().min(), times().max()) {
        if last - first >= LATE {
            notes.push(format!(
                "the first dump was made {} s before the last one: states between both may have changed",
                last - first
            ));
        }
    }
    let left_out: Vec<_> =
        dumps.iter().filter(|(_, dump)| dump.left_out > 0).map(|(name, _)| &**name).collect();
    if !left_out.is_empty() {
        notes.push(format!("not all processes were read on {}", names(left_out)));
    }
    let none: Vec<_> =
        dumps.iter().filter(|(_, dump)| dump.after.is_empty()).map(|(name, _)| &**name).collect();
    if !none.is_empty() {
        notes.push(format!("no process that uses libfabric was readable on {}", names(none)));
    }
    notes
}
