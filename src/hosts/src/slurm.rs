//! Nodes of a job of Slurm, and the command run on each of them.
use crate::command::{MAX_HOSTS, output_of};
use std::time::Duration;

/// Returns true for the number of a job, of a task of an array (`7_1`) or of a part (`7+1`).
fn is_job_number(job: &str) -> bool {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '_' | '+');
    job.len() <= 64 && job.starts_with(|c: char| c.is_ascii_digit()) && job.chars().all(is_part)
}

/// Returns the command that writes a dump on a node of a job, for
/// [`HostCommand::new`](crate::command::HostCommand::new).
pub fn slurm_command(job: &str) -> String {
    format!("srun --jobid={job} --overlap --nodes=1 --ntasks=1 --nodelist={{}} fi_ps --dump")
}

/// Returns the names of the nodes of a running job, from squeue and scontrol. The time limit is that
/// of each of both.
pub fn slurm_hosts(job: &str, timeout: Duration) -> Result<Vec<String>, String> {
    if !is_job_number(job) {
        return Err(format!("{job:?} is no number of a Slurm job"));
    }
    let run = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(|word| (*word).to_string()).collect();
        output_of(&words, timeout)
    };
    // A line for each task of an array; one that does not run yet has no nodes.
    let lists = run(&["squeue", "--noheader", "--format=%N", &format!("--jobs={job}")])?;
    let lists: Vec<_> = lists.split_whitespace().filter(|list| !list.starts_with('-')).collect();
    if lists.is_empty() {
        return Err(format!("job {job} has no nodes: it does not run"));
    }
    let names = run(&["scontrol", "show", "hostnames", &lists.join(",")])?;
    let mut names: Vec<_> = names.split_whitespace().map(String::from).collect();
    names.sort_unstable();
    names.dedup();
    match names.len() {
        0 => Err(format!("scontrol names no node of {}", crate::clean(&lists.join(",")))),
        1..=MAX_HOSTS => Ok(names),
        more => Err(format!("job {job} has {more} nodes, more than {MAX_HOSTS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_jobs_are_no_options() {
        for job in ["", "-x", "7 8", "7;id", "$(id)", "_1", "7,8", "x"] {
            assert!(slurm_hosts(job, Duration::ZERO).unwrap_err().contains("no number"), "{job:?}");
        }
        assert!(["7", "1234_5", "7+1"].into_iter().all(is_job_number));
    }
}
