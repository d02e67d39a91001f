//! Rules about whole processes.
use super::cause::HangCause;
use super::finding::FindingList;
use super::view::by_key;
use crate::origin::ip_of;
use crate::read::{SocketStats, StatsProcess};
use crate::show::{address, short};
use std::collections::HashSet;

/// Remaining bytes within the memory limit below which a process counts as out of memory.
const MEMORY_LEFT: u64 = 1 << 20;

/// Number of consecutive retransmissions without an acknowledgement from which a connection counts
/// as interrupted. A single one occurs on working networks.
const LOST_IN_A_ROW: u64 = 3;

/// Returns the most interrupted connection of a process with the host of a peer. The process may have
/// connections of another purpose.
fn interrupted_socket(process: &StatsProcess) -> Option<&SocketStats> {
    let sockets = process.sockets.iter().filter(|one| one.unanswered >= LOST_IN_A_ROW);
    let mut sockets: Vec<_> = sockets.collect();
    if sockets.is_empty() {
        return None;
    }
    let peers = process.pages.iter().flat_map(|page| page.peers());
    let hosts: HashSet<_> = peers.filter_map(|peer| ip_of(&peer.address)).collect();
    sockets.retain(|socket| ip_of(&socket.peer).is_some_and(|host| hosts.contains(&host)));
    sockets.into_iter().max_by_key(|socket| socket.unanswered)
}

/// Returns the finding about a connection with lost packets.
fn lost_packets(who: &str, socket: &SocketStats, earlier: &[SocketStats]) -> (String, String) {
    let before = earlier.iter().find(|old| old.peer == socket.peer);
    let more = socket.repeated.saturating_sub(before.map_or(0, |old| old.repeated));
    let cause = format!("packets of {who} to {} are lost", address(&socket.peer));
    let seen = format!(
        "sent {} times again without an acknowledgement; {} retransmissions in all, {more} between both times",
        socket.unanswered, socket.repeated
    );
    (cause, seen)
}

/// Rules about whole processes.
pub(super) fn processes(before: &[StatsProcess], after: &[StatsProcess], list: &mut FindingList) {
    let before = by_key(before);
    for process in after {
        let system = &process.system;
        let (pid, who) = (process.key(), process.who());
        if process.is_stopped() {
            let by = if system.threads.starts_with('t') { "a debugger" } else { "a signal" };
            let text = || (format!("{who} is stopped by {by}"), String::new());
            list.add(HangCause::Stopped, pid, None, text);
        }
        if let Some(most) = process.all_descriptors() {
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
        let worst = interrupted_socket(process);
        if let Some(socket) = worst {
            list.add(HangCause::Retransmits, pid, None, || {
                let earlier = before.get(&process.key()).map_or(&[][..], |old| &old.sockets);
                lost_packets(&who, socket, earlier)
            });
        }
    }
}
