//! Findings of rules.
use super::cause::HangCause;
use crate::origin::ProcessKey;
use std::collections::HashSet;
use std::fmt;

/// Result of an analysis rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: HangCause,
    /// Process causing the hang.
    pub process: ProcessKey,
    /// Process waiting because of it, if it is another one with readable statistics.
    pub waiter: Option<ProcessKey>,
    /// Number of processes waiting for this process, directly or through others, if it is a root
    /// cause.
    pub waiters: usize,
    /// The cause, in a line.
    pub cause: String,
    /// Observation.
    pub seen: String,
}

impl Finding {
    /// Returns true if a process of this host is the cause, or waits because of it.
    pub fn concerns(&self, pid: u32) -> bool {
        let process = ProcessKey::local(pid);
        self.process == process || self.waiter == Some(process)
    }
}

impl fmt::Display for Finding {
    /// Writes the cause, the observation, and the recommended action, as complete lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.cause)?;
        if !self.seen.is_empty() {
            writeln!(f, "    seen: {}", self.seen)?;
        }
        writeln!(f, "    do:   {}", self.rule.advice())
    }
}

/// Findings, one for each rule and process.
#[derive(Default)]
pub(super) struct FindingList {
    known: HashSet<(HangCause, ProcessKey)>,
    list: Vec<Finding>,
}

impl FindingList {
    /// Returns all findings.
    pub(super) fn into_list(self) -> Vec<Finding> {
        self.list
    }

    /// Adds a finding. Calls `text` for its cause and observation if it is the first of its kind.
    pub(super) fn add(
        &mut self,
        rule: HangCause,
        process: ProcessKey,
        waiter: Option<ProcessKey>,
        text: impl FnOnce() -> (String, String),
    ) {
        if self.known.insert((rule, process)) {
            let (cause, seen) = text();
            self.list.push(Finding { rule, process, waiter, waiters: 0, cause, seen });
        }
    }
}

/// Result of an analysis.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// The surest causes.
    pub findings: Vec<Finding>,
    /// Number of further findings.
    pub left_out: usize,
}
