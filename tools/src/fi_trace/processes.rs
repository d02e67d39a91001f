//! Child processes, and ranks of jobs.
use std::fs;

/// Variables with the rank of a process: those of Open MPI, PMIx, PMI and Slurm.
const RANKS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Maximum number of processes.
const MAX_PROCESSES: usize = 1 << 12;

/// Returns the parent in the text of `/proc/PID/stat`. The name of the program may have any
/// characters.
fn parent_in(stat: &str) -> Option<u32> {
    let behind_name = stat.rsplit_once(')')?.1;
    behind_name.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns all processes of the host with their parents.
fn all() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with_parent = |pid| {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, parent_in(&String::from_utf8_lossy(&stat))?))
    };
    pids.filter_map(with_parent).collect()
}

/// Returns these processes followed by their descendants.
fn descendants(pids: &[u32], all: &[(u32, u32)]) -> Vec<u32> {
    let mut found = pids.to_vec();
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        let children = all.iter().filter(|(pid, of)| *of == parent && !found.contains(pid));
        let children: Vec<_> = children.map(|(pid, _)| *pid).collect();
        let free = MAX_PROCESSES.saturating_sub(found.len());
        found.extend(children.into_iter().take(free));
        at += 1;
    }
    found
}

/// Returns these processes and their descendants at this time.
pub(crate) fn with_children(pids: &[u32]) -> Vec<u32> {
    if pids.is_empty() { Vec::new() } else { descendants(pids, &all()) }
}

/// Returns the rank in the environment of a process, as in `/proc/PID/environ`.
fn rank_in(environment: &[u8]) -> Option<u32> {
    let value = |name: &str| {
        let mut entries = environment.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| {
            entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
        });
        std::str::from_utf8(value?).ok()?.parse().ok()
    };
    RANKS.iter().find_map(|name| value(name))
}

/// Returns the rank of a running process in its job.
pub(crate) fn rank(pid: u32) -> Option<u32> {
    rank_in(&fs::read(format!("/proc/{pid}/environ")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_found_behind_any_name() {
        assert_eq!(parent_in("12 (a b) c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12 (cat"), None);
    }

    #[test]
    fn descendants_follow_their_ancestors_once() {
        let all = [(2, 1), (3, 2), (4, 2), (5, 4), (6, 1), (7, 99), (8, 8)];
        assert_eq!(descendants(&[2], &all), [2, 3, 4, 5]);
        assert_eq!(descendants(&[4, 2, 8], &all), [4, 2, 8, 5, 3]);
    }

    #[test]
    fn rank_is_that_of_the_launcher() {
        assert_eq!(rank_in(b"A=1\0PMI_RANK=3\0"), Some(3));
        assert_eq!(rank_in(b"SLURM_PROCID=0\0OMPI_COMM_WORLD_RANK=5\0"), Some(5));
        assert_eq!(rank_in(b"PMI_RANK=x\0PMI_RANKS=3"), None);
        assert_eq!(rank(std::process::id()), rank_in(&fs::read("/proc/self/environ").unwrap()));
    }
}
