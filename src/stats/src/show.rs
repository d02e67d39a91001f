//! Formatting of statistics: output of the tools has no control characters, for any data read.
use crate::layout::{ANY, PeerStats, PendingOpStats, kinds, peer_bits, states, words_text};
use std::fmt::Write;

/// A kind of endpoint.
pub fn kind(kind: u64) -> &'static str {
    match kind {
        kinds::MSG => "msg",
        kinds::RDM => "rdm",
        kinds::SRX => "srx",
        kinds::DGRAM => "dgram",
        _ => "?",
    }
}

/// A state of a peer.
pub fn state(peer: &PeerStats) -> &'static str {
    match peer.state & 0xff {
        states::CONNECTING => "connecting",
        states::ASKED => "asked",
        states::CALLED => "called",
        states::CONNECTED => "connected",
        states::LATER => "refused",
        states::CALLING => "calling",
        states::RESUMING => "resuming",
        _ => "?",
    }
}

/// Returns the kind of a peer's link as text.
pub fn link(peer: &PeerStats) -> &'static str {
    let both = peer_bits::SENDS_LOCALLY | peer_bits::RX_OVER_SHM;
    match peer.state & both {
        0 => "network",
        bits if bits == both => "memory",
        _ => "changing",
    }
}

/// Returns the kind of a peer's link as text, with the number of its sockets and of its subflows
/// over MPTCP.
pub fn link_with_paths(peer: &PeerStats) -> String {
    let counted = |count: u64, name: &str| match count {
        0 => String::new(),
        1 => format!(", 1 {name}"),
        count => format!(", {count} {name}s"),
    };
    [link(peer), &counted(peer.sockets, "socket"), &counted(peer.subflows, "subflow")].concat()
}

/// Returns the authentication and encryption state of a peer as text.
pub fn secrecy(peer: &PeerStats) -> &'static str {
    match peer.state & (peer_bits::SECRET | peer_bits::ENCRYPTED) {
        0 => "open",
        peer_bits::SECRET => "proven",
        _ => "encrypted",
    }
}

/// A number of bytes, or of others, with three digits or so.
pub fn short(number: f64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let (mut number, mut unit) = (number, 0);
    while number >= 9999.5 && unit + 1 < units.len() {
        (number, unit) = (number / 1000.0, unit + 1);
    }
    if unit > 0 && number < 100.0 {
        format!("{number:.1}{}", units[unit])
    } else {
        format!("{number:.0}{}", units[unit])
    }
}

/// Formats nanoseconds as seconds or a longer unit of time.
pub fn time(nanos: u64) -> String {
    let seconds = nanos / 1_000_000_000;
    match seconds {
        0..10 => format!("{:.1} s", nanos as f64 / 1e9),
        10..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns an address as text, or the text for none.
pub fn address(words: &[u64]) -> String {
    let text = words_text(words);
    if text.is_empty() { "?".into() } else { text }
}

/// Returns a waiting receive as text. `source` names its only sender.
pub fn receive(waiting: &PendingOpStats, source: impl Fn(u64) -> String) -> String {
    let mut text = match waiting.kind {
        2 => format!("tag {:#x}", waiting.tag),
        _ => "no tag".to_string(),
    };
    if waiting.kind == 2 && waiting.ignore_or_len != 0 {
        let _ = write!(text, " (bits {:#x} ignored)", waiting.ignore_or_len);
    }
    match waiting.source {
        ANY => text += " from anyone",
        name => text = text + " from " + &source(name),
    }
    text
}

/// A text in JSON, with its quotes.
pub fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            c if c.is_control() => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_short() {
        assert_eq!(short(0.0), "0");
        assert_eq!(short(9999.0), "9999");
        assert_eq!(short(12_345.0), "12.3k");
        assert_eq!(short(4.5e21), "4500E");
        assert_eq!(time(1_500_000_000), "1.5 s");
        assert_eq!(time(180_000_000_000), "3 min");
        assert_eq!(json("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
    }

    #[test]
    fn link_text_has_its_sockets_and_subflows() {
        let text = |sockets, subflows| {
            link_with_paths(&PeerStats { sockets, subflows, ..PeerStats::default() })
        };
        assert_eq!([0, 1].map(|count| text(0, count)), ["network", "network, 1 subflow"]);
        assert_eq!(text(4, 0), "network, 4 sockets");
        assert_eq!(text(1, 3), "network, 1 socket, 3 subflows");
    }

    #[test]
    fn receive_is_printed_with_its_tag_and_source() {
        let waits = PendingOpStats { kind: 2, tag: 5, ignore_or_len: 0xf0, source: ANY };
        assert_eq!(receive(&waits, |_| String::new()), "tag 0x5 (bits 0xf0 ignored) from anyone");
        let waits = PendingOpStats { kind: 1, source: 3, ..waits };
        assert_eq!(receive(&waits, |name| format!("peer {name}")), "no tag from peer 3");
    }
}
