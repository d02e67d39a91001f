//! Rules about whole processes.
use super::cause::HangCause;
use super::finding::FindingList;
use crate::read::StatsProcess;
use crate::show::short;

/// Remaining bytes within the memory limit below which a process counts as out of memory.
const MEMORY_LEFT: u64 = 1 << 20;

/// Rules about whole processes.
pub(super) fn processes(processes: &[StatsProcess], list: &mut FindingList) {
    for process in processes {
        let system = &process.system;
        let (pid, who) = (process.pid, process.who());
        if process.is_stopped() {
            let by = if system.threads.starts_with('t') { "a debugger" } else { "a signal" };
            let text = || (format!("{who} is stopped by {by}"), String::new());
            list.add(HangCause::Stopped, pid, None, text);
        }
        let [open, most] = system.descriptors;
        if open >= most {
            let cause = format!("{who} has all {most} descriptors open that it may have");
            list.add(HangCause::Descriptors, pid, None, || (cause, String::new()));
        }
        let [has, most] = system.memory;
        if has >= most.saturating_sub(MEMORY_LEFT) {
            let cause = format!(
                "{who} has {} bytes of memory, and may have no more than {}",
                short(has as f64),
                short(most as f64)
            );
            let seen = "an allocation of a MiB would fail".into();
            list.add(HangCause::Memory, pid, None, || (cause, seen));
        }
    }
}
