//! Rules about one endpoint.
use super::cause::HangCause;
use super::finding::FindingList;
use super::view::{EndpointView, HangAnalysis, LASTING, has_pending, pending};
use crate::layout::{ANY, PendingOpStats, peer_bits, states};
use crate::show::{address, receive, time};
use std::fmt::Write;

/// Errors for unreachable peers: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH.
const UNREACHED: [(u64, &str); 4] = [
    (111, "the connection is refused"),
    (110, "no answer comes"),
    (113, "there is no way to the host"),
    (101, "there is no way to the network"),
];

/// Endpoints considered by a rule, except for those of stopped processes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// Not those serving a utility provider's: messages and receives are in the statistics of the
    /// latter.
    Own,
    /// Those of the second kind with nothing changed between both times.
    Quiet,
}

type EndpointRule = fn(&HangAnalysis<'_>, &EndpointView<'_>, &mut FindingList);

/// The rules, in their order.
const RULES: [(Scope, EndpointRule); 6] = [
    (Scope::All, connections),
    (Scope::Own, errors),
    (Scope::Quiet, lost),
    (Scope::Quiet, queues),
    (Scope::Quiet, receives),
    (Scope::Quiet, untaken),
];

/// Applies the rules to all endpoints.
pub(super) fn endpoints(analysis: &HangAnalysis<'_>, list: &mut FindingList) {
    for view in analysis.views.iter().filter(|view| !view.is_stopped()) {
        for (scope, rule) in RULES {
            let is_covered = match scope {
                Scope::All => true,
                Scope::Own => !view.serves(),
                Scope::Quiet => !view.serves() && view.quiet,
            };
            if is_covered {
                rule(analysis, view, list);
            }
        }
    }
}

/// Connections being made, and refused ones.
fn connections(analysis: &HangAnalysis<'_>, view: &EndpointView<'_>, list: &mut FindingList) {
    let now = analysis.now;
    let (pid, who) = (view.process.key(), view.who());
    // A process not polling is known only by an earlier state of its connections.
    for peer in view.peers().iter().filter(|_| view.is_looking()) {
        let to = || address(&peer.address);
        let since = now.saturating_sub(peer.since);
        let lasts = since > LASTING;
        let is_connecting = match peer.state & 0xff {
            states::CALLING => analysis.connecting.contains(&pid),
            state => state == states::CONNECTING,
        };
        match peer.state & 0xff {
            states::LATER if lasts => list.add(HangCause::Unreachable, pid, None, || {
                let seen = format!("called {} times; {} messages wait", peer.refused, peer.unsent);
                (format!("{who} is refused by {}", to()), seen)
            }),
            states::RESUMING if lasts => list.add(HangCause::Unreachable, pid, None, || {
                let cause = format!(
                    "{who} has lost its connection with {}, and has not reached it again for {}",
                    to(),
                    time(since)
                );
                let wait = peer.unsent;
                (cause, format!("the connection is being resumed; {wait} messages wait for it"))
            }),
            states::CONNECTING if view.serves() && analysis.calling.contains(&pid) => {}
            _ if lasts && is_connecting => list.add(HangCause::HalfMade, pid, None, || {
                let cause = format!(
                    "{who} gets no answer from the network at {}, for {}",
                    to(),
                    time(since)
                );
                let wait = peer.unsent;
                (cause, format!("the connection is being made; {wait} messages wait for it"))
            }),
            states::ASKED | states::CALLING if lasts && !view.serves() => {
                let asked = analysis.at(view, &peer.address);
                // An asked peer with statistics makes no calls: the rule about pairs reports it.
                if asked.is_some_and(|asked| !asked.is_looking()) {
                    continue;
                }
                let key = asked.map(|asked| asked.process.key());
                list.add(HangCause::HalfMade, pid, key, || {
                    let most = asked.and_then(|asked| asked.process.all_descriptors());
                    let why = most.map_or_else(String::new, |most| {
                        format!(": all {most} descriptors that it may have are open")
                    });
                    let cause = format!(
                        "{who} has called {}, which has not answered for {}{why}",
                        to(),
                        time(since)
                    );
                    (cause, format!("{} messages wait for the answer", peer.unsent))
                });
            }
            _ => {}
        }
    }
}

/// Operations failed because a peer is not reached.
fn errors(_analysis: &HangAnalysis<'_>, view: &EndpointView<'_>, list: &mut FindingList) {
    let (pid, who) = (view.process.key(), view.who());
    let endpoint = view.endpoint;
    for error in endpoint.errors {
        let known = UNREACHED.iter().find(|(code, _)| *code == error.code);
        if let Some((_, text)) = known.filter(|_| view.quiet && error.count > 0) {
            list.add(HangCause::Unreachable, pid, None, || {
                let seen = format!("{} operations failed with error {}", error.count, error.code);
                (format!("{who} did not reach a peer: {text}"), seen)
            });
        }
    }
}

/// Receives after a lost connection.
fn lost(analysis: &HangAnalysis<'_>, view: &EndpointView<'_>, list: &mut FindingList) {
    let now = analysis.now;
    let (pid, who) = (view.process.key(), view.who());
    let endpoint = view.endpoint;
    if endpoint.lost[0] > 0 && view.waits_for_receive() {
        let ago = time(now.saturating_sub(endpoint.lost_at));
        let cause = format!(
            "{who} lost the connection with {}, {ago} ago, and waits for messages",
            address(&endpoint.lost_peer)
        );
        let seen = format!(
            "{} connections lost, the last with error {}; {} receives wait",
            endpoint.lost[0],
            endpoint.lost[1],
            endpoint.posted.iter().fold(0u64, |sum, more| sum.saturating_add(*more))
        );
        list.add(HangCause::PeerGone, pid, None, || (cause, seen));
    }
}

/// Full completion queues, and unread ones.
fn queues(_analysis: &HangAnalysis<'_>, view: &EndpointView<'_>, list: &mut FindingList) {
    let (pid, who) = (view.process.key(), view.who());
    let endpoint = view.endpoint;
    let queues = [
        ("receives", endpoint.rx_queue, endpoint.rx_queue_size),
        ("transmits", endpoint.tx_queue, endpoint.tx_queue_size),
    ];
    let published = if endpoint.one_queue == 1 { &queues[..1] } else { &queues[..] };
    for (i, (of, entries, size)) in published.iter().enumerate() {
        let of = if endpoint.one_queue == 1 { "" } else { &format!(" of {of}") };
        if *size > 0 && entries >= size {
            let cause = format!("the completion queue{of} of {who} is full and is not read");
            let seen = format!(
                "{entries} entries, made for {size}; {} connections wait for room",
                endpoint.cq_blocked
            );
            list.add(HangCause::QueueFull, pid, None, || (cause, seen));
        } else if *entries > 0 && view.is_looking() && (i == 0 || endpoint.one_queue == 1) {
            let cause =
                format!("{who} does not read the {entries} entries of its completion queue{of}");
            let seen =
                format!("it makes progress by other calls, {} times in between", view.iterations);
            list.add(HangCause::QueueUnread, pid, None, || (cause, seen));
        }
    }
}

/// Messages without a matching receive.
fn receives(analysis: &HangAnalysis<'_>, view: &EndpointView<'_>, list: &mut FindingList) {
    let now = analysis.now;
    let (pid, who) = (view.process.key(), view.who());
    let endpoint = view.endpoint;
    if view.is_looking() {
        if let Some((rule, cause, seen)) = mismatch(view) {
            list.add(rule, pid, None, || (cause, seen));
        }
        let receives: u64 = view.receives().count() as u64;
        let buffered: u64 =
            endpoint.unexpected.iter().fold(0, |sum, more| sum.saturating_add(*more));
        let blocked = view.peers().iter().find(|peer| peer.state & peer_bits::BLOCKED != 0);
        if let Some(peer) = blocked.filter(|peer| now.saturating_sub(peer.moved) > LASTING) {
            let cause = format!(
                "{who} takes no more messages of {}: it keeps {buffered} that have no receive",
                address(&peer.address)
            );
            let seen = format!("they take {} bytes", endpoint.unexpected_bytes);
            list.add(HangCause::TakesNoMore, pid, None, || (cause, seen));
        }
        if receives == 0 && buffered > 0 {
            let first = view.messages().next().copied().unwrap_or_default();
            list.add(HangCause::NoReceive, pid, None, || {
                let cause =
                    format!("{who} posts no receive for {buffered} messages that have come");
                (cause, format!("the first has {}", message(view, &first)))
            });
        }
    }
}

/// Data not taken by peers without statistics.
fn untaken(analysis: &HangAnalysis<'_>, view: &EndpointView<'_>, list: &mut FindingList) {
    let now = analysis.now;
    let (pid, who) = (view.process.key(), view.who());
    for peer in view.peers() {
        let still = now.saturating_sub(peer.moved) > LASTING;
        let connected = peer.state & 0xff == states::CONNECTED;
        if connected && has_pending(peer) && still && analysis.at(view, &peer.address).is_none() {
            list.add(HangCause::NotTaken, pid, None, || {
                let cause = format!(
                    "{} does not take what {who} has for it, for {}",
                    address(&peer.address),
                    time(now - peer.moved)
                );
                (cause, pending(peer))
            });
        }
    }
}

/// Returns an unexpected message as text.
fn message(view: &EndpointView<'_>, message: &PendingOpStats) -> String {
    let mut text = match message.kind {
        2 => format!("tag {:#x}", message.tag),
        _ => "no tag".to_string(),
    };
    let _ = write!(text, ", {} bytes", message.ignore_or_len);
    match message.source {
        ANY => text += ", of a peer without a name",
        name => text = text + ", of " + &view.named(name),
    }
    text
}

/// Finds a waiting receive with nearly matching messages.
fn mismatch(view: &EndpointView<'_>) -> Option<(HangCause, String, String)> {
    let near = |wanted: &PendingOpStats, came: &PendingOpStats| {
        if wanted.kind != came.kind {
            return Some((65, "one of both has no tag".to_string()));
        }
        let bits = (wanted.tag ^ came.tag) & !wanted.ignore_or_len;
        let source = wanted.source == ANY || wanted.source == came.source;
        match (bits, source) {
            (0, true) => None,
            (0, false) => Some((
                64,
                format!(
                    "the tag fits, the sender does not: the receive takes {} alone",
                    view.named(wanted.source)
                ),
            )),
            (bits, true) => Some((
                bits.count_ones(),
                format!("the sender fits, the tag does not: they differ in the bits {bits:#x}"),
            )),
            // Another message of another sender says nothing.
            (_, false) => None,
        }
    };
    let pairs = view.receives().flat_map(|wanted| {
        view.messages().filter_map(move |came| Some((wanted, came, near(wanted, came)?)))
    });
    let (wanted, came, (_, why)) = pairs.min_by_key(|(_, _, (distance, _))| *distance)?;
    let cause = format!(
        "{} waits for a message with {}, and has one with {}",
        view.who(),
        receive(wanted, |name| view.named(name)),
        message(view, came)
    );
    Some((HangCause::Mismatch, cause, why))
}
