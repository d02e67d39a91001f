//! Layout of the statistics memory: 64-bit words, in the byte order of the machine.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 511 | [`StatsHeader`] |
//! | 512 to 4095 | [`FIRST_ENDPOINTS`] records [`EndpointStats`] |
//! | from 4096 | records [`PeerStats`], their number is in the head |
//! | behind those | [`MORE_ENDPOINTS`] records of further endpoints |
//!
//! Unwritten memory takes no space. The first word of a record is odd during a write, and another
//! number afterwards; its second is 0 if the record is free. A change of a word's meaning or
//! position requires a change of [`VERSION`].

/// The first word of the memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ofifacts");

/// The version of this layout.
pub const VERSION: u64 = 2;

/// Records of endpoints in the first 4 KiB.
pub const FIRST_ENDPOINTS: usize = 4;

/// Records of endpoints behind the peers'.
pub const MORE_ENDPOINTS: usize = 508;

/// Default number of peer records (FI_STATS_PEERS).
pub const DEFAULT_PEERS: usize = 1024;

/// Maximum number of peer records, regardless of the user's setting.
pub const MAX_PEERS: usize = 65536;

/// Engines, one for each domain, with a separate word for their progress iterations; others share
/// the last.
pub const ENGINES: usize = 16;

/// Number of latency classes of transfers ([`latency_class`]).
pub const LATENCY_CLASSES: usize = 24;

/// Returns the class of a time: 0 for less than a microsecond, N for less than 2 to the power of N
/// microseconds; the last class has all longer ones.
pub fn latency_class(nanos: u64) -> usize {
    let micros = nanos / 1000;
    ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_CLASSES - 1)
}

/// Returns the upper limit of a class in nanoseconds, or `None` for the last class.
pub fn latency_below(class: usize) -> Option<u64> {
    (class + 1 < LATENCY_CLASSES).then(|| 1000 << class)
}

/// Bytes of an address as a text.
const ADDRESS: usize = 64;

/// Values with a fixed number of words.
pub trait Words: Sized {
    /// Writes the words from `at` on, and moves `at` behind them.
    fn put(&self, words: &mut [u64], at: &mut usize);
    /// Reads a value written by [`put`](Self::put).
    fn get(words: &[u64], at: &mut usize) -> Self;
}

impl Words for u64 {
    fn put(&self, words: &mut [u64], at: &mut usize) {
        words[*at] = *self;
        *at += 1;
    }

    fn get(words: &[u64], at: &mut usize) -> Self {
        *at += 1;
        words[*at - 1]
    }
}

impl<W: Words, const N: usize> Words for [W; N] {
    fn put(&self, words: &mut [u64], at: &mut usize) {
        self.iter().for_each(|one| one.put(words, at));
    }

    fn get(words: &[u64], at: &mut usize) -> Self {
        std::array::from_fn(|_| W::get(words, at))
    }
}

/// A record: words in a fixed order.
pub trait FactRecord: Copy + Default {
    /// Number of words.
    const WORDS: usize;
    /// Names of its fields, and their numbers of words, in their order.
    const FIELDS: &'static [(&'static str, usize)];
    /// Its words, to as many.
    fn put_words(&self, words: &mut [u64]);
    /// The record of as many words.
    fn of_words(words: &[u64]) -> Self;
}

macro_rules! record {
    ($(#[$doc:meta])* $name:ident, $words:literal: $($(#[$field_doc:meta])* $field:ident: $type:ty,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == 8 * $words);

        impl Words for $name {
            fn put(&self, words: &mut [u64], at: &mut usize) {
                $(self.$field.put(words, at);)*
            }

            fn get(words: &[u64], at: &mut usize) -> Self {
                $(let $field = Words::get(words, at);)*
                Self { $($field),* }
            }
        }

        impl FactRecord for $name {
            const WORDS: usize = $words;
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), size_of::<$type>() / 8),)*];

            fn put_words(&self, words: &mut [u64]) {
                self.put(words, &mut 0);
            }

            fn of_words(words: &[u64]) -> Self {
                Self::get(words, &mut 0)
            }
        }
    };
}

record! {
    /// Data written once.
    StatsHeader, 64:
    /// [`MAGIC`].
    magic: u64,
    /// [`VERSION`].
    version: u64,
    /// The process as it knows itself; a forked child has its parent's descriptor with the parent's
    /// number in it.
    process: u64,
    /// Number of peer records.
    peers: u64,
    /// Number of peer records, from the first on, containing all ever used.
    peers_used: u64,
    /// The same of endpoints.
    endpoints_used: u64,
    /// Total number of peers without a free record.
    peers_left_out: u64,
    /// Total number of endpoints without a free record.
    endpoints_left_out: u64,
    /// The library's version, fi_version(3).
    library: u64,
    /// The provider's name.
    provider: [u64; 4],
    /// Nanoseconds of CLOCK_MONOTONIC at the beginning.
    began: u64,
    /// Progress iterations of engines, not copied periodically like the rest, but written in each
    /// iteration.
    iterations: [u64; ENGINES],
    /// For later versions.
    spare: [[u64; 17]; 2],
}

record! {
    /// Waiting receive, or unexpected message.
    PendingOpStats, 4:
    /// 1 untagged, 2 tagged, 3 the library's own; 0 if there is none.
    kind: u64,
    /// The tag.
    tag: u64,
    /// Ignored tag bits of a receive, or length of a message.
    ignore_or_len: u64,
    /// The `fi_addr_t` of the only sender, or of the message's, [`ANY`] if there is none.
    source: u64,
}

record! {
    /// Number of reports of an error.
    ErrorStats, 2:
    /// The code, positive.
    code: u64,
    /// Number of reports.
    count: u64,
}

record! {
    /// An endpoint. Times are nanoseconds of CLOCK_MONOTONIC.
    EndpointStats, 112:
    /// See the module.
    sequence: u64,
    /// Number identifying the endpoint among all users of the record; never 0.
    serial: u64,
    /// One of [`kinds`].
    kind: u64,
    /// Index of its engine's progress-iteration counter.
    engine: u64,
    /// When this was written.
    written: u64,
    /// Engine's number of progress iterations at that time.
    iterations: u64,
    /// Progress iterations since the last activity.
    idle: u64,
    /// Threads asleep in a call, or about to sleep.
    asleep: u64,
    /// When a message or a connection's state last changed, as far as was seen.
    moved: u64,
    /// Messages sent on closed connections; the ones of others are in the peers' records.
    sent: u64,
    /// Bytes of those.
    sent_bytes: u64,
    /// The same of messages received.
    received: u64,
    /// Bytes of those.
    received_bytes: u64,
    /// Posted receives: untagged, tagged.
    posted: [u64; 2],
    /// Unexpected messages: untagged, tagged.
    unexpected: [u64; 2],
    /// Bytes of memory of unexpected messages.
    unexpected_bytes: u64,
    /// Incomplete operations of the application.
    in_flight: u64,
    /// Maximum number of incomplete operations (tx_attr.size).
    tx_size: u64,
    /// Unread entries of the transmit completion queue.
    tx_queue: u64,
    /// Size of the transmit completion queue.
    tx_queue_size: u64,
    /// The same of the queue of receives.
    rx_queue: u64,
    /// See `tx_queue_size`.
    rx_queue_size: u64,
    /// 1 if both queues are the same.
    one_queue: u64,
    /// Connections not read for lack of queue space.
    cq_blocked: u64,
    /// Connections, of all endpoints of the engine.
    connections: u64,
    /// Number of lost connections, and the error code of the last one.
    lost: [u64; 2],
    /// When the last connection was lost.
    lost_at: u64,
    /// Address of the peer of the last lost connection.
    lost_peer: [u64; ADDRESS / 8],
    /// Errors by code.
    errors: [ErrorStats; 4],
    /// Oldest receives for one message. A process posting multi-receive buffers (FI_MULTI_RECV)
    /// accepts anything, and waits for no particular message.
    receives: [PendingOpStats; 3],
    /// Oldest unexpected messages.
    messages: [PendingOpStats; 4],
    /// The endpoint's own address.
    address: [u64; ADDRESS / 8],
    /// The address will not change any more.
    settled: u64,
    /// 1 if the endpoint serves a utility provider's; this one publishes the statistics known to
    /// the program.
    serves: u64,
    /// Latencies of transfers from their call to their completion, by class ([`latency_class`]), if
    /// not complete at the return of the call. Few are timed; each represents all started since the
    /// previous one.
    latency: [u64; LATENCY_CLASSES],
    /// Progress iterations made by library threads, in addition to the application; see `iterations`.
    thread_iterations: u64,
    /// Number of connections resumed after the loss of their sockets (FI_TCP_RESUME), and bytes sent
    /// again because of lost sockets.
    resumes: u64,
    /// See `resumes`.
    repeated_bytes: u64,
    /// Number of idle connections closed because of the limit of descriptors
    /// (FI_TCP_MAX_CONNECTIONS).
    closed_idle: u64,
}

impl EndpointStats {
    /// Position of `asleep` among the words.
    pub const ASLEEP: usize = std::mem::offset_of!(Self, asleep) / 8;
}

record! {
    /// Peer with a connection, existing or pending. Times are nanoseconds of CLOCK_MONOTONIC.
    PeerStats, 32:
    /// See the module.
    sequence: u64,
    /// Number identifying the connection among all users of the record; never 0.
    serial: u64,
    /// The serial of the endpoint's record.
    endpoint: u64,
    /// The peer's `fi_addr_t`, [`ANY`] if it has none.
    name: u64,
    /// One of [`states`], and in bits 8 and above the flags of [`peer_bits`].
    state: u64,
    /// Time of the peer's change to this state.
    since: u64,
    /// When a message last came or went, as far as was seen.
    moved: u64,
    /// When this was written.
    written: u64,
    /// Messages sent.
    sent: u64,
    /// Bytes sent.
    sent_bytes: u64,
    /// Messages received.
    received: u64,
    /// Bytes received.
    received_bytes: u64,
    /// Transfers waiting to be sent.
    unsent: u64,
    /// Bytes of the first 16 of them.
    unsent_bytes: u64,
    /// Transfers sent and waiting for the peer's acknowledgement.
    unacknowledged: u64,
    /// Messages announced to the peer and not requested by it.
    announced: u64,
    /// Messages announced by the peer and not requested yet.
    at_sender: u64,
    /// Reads of the peer's memory, and atomic operations, without an answer.
    unanswered: u64,
    /// Missing bytes of the message being received.
    incomplete: u64,
    /// Number of connection requests rejected by the peer.
    refused: u64,
    /// The peer's address.
    address: [u64; ADDRESS / 8],
    /// Number of subflows of a connection over MPTCP; 0 for other connections.
    subflows: u64,
    /// Number of sockets of a connection with frames (FI_TCP_STREAMS); 0 for other connections.
    sockets: u64,
    /// Number of times the connection was resumed after the loss of its sockets (FI_TCP_RESUME).
    resumes: u64,
    /// Bytes sent again because of lost sockets.
    repeated_bytes: u64,
}

/// Value of a counter, of one or two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterValue {
    /// One number.
    Single(u64),
    /// Numbers of untagged and of tagged operations.
    UntaggedTagged([u64; 2]),
    /// Used entries of a queue, and its size.
    UsedSize([u64; 2]),
}

impl CounterValue {
    /// Returns the value as JSON: a number, or an array of two.
    pub fn json(self) -> String {
        match self {
            Self::Single(number) => number.to_string(),
            Self::UntaggedTagged([first, second]) | Self::UsedSize([first, second]) => {
                format!("[{first},{second}]")
            }
        }
    }

    /// Returns the value as one number: of operations the sum, of a queue the used entries.
    pub fn total(self) -> u64 {
        match self {
            Self::Single(number) | Self::UsedSize([number, _]) => number,
            Self::UntaggedTagged([first, second]) => first.saturating_add(second),
        }
    }
}

/// Name and description of a counter in the metrics of fi_top(1).
#[derive(Debug)]
pub struct Metric {
    /// Name without the prefix `libfabric_`.
    pub name: &'static str,
    /// Type of Prometheus: `counter` or `gauge`.
    pub kind: &'static str,
    /// Description.
    pub help: &'static str,
}

/// Counter of an endpoint's record, as the tools show it.
#[derive(Debug)]
pub struct EndpointCounter {
    /// Name in JSON.
    pub name: &'static str,
    /// Description of the metric, if it is one.
    pub metric: Option<Metric>,
    /// Returns the value. The numbers are the messages and bytes sent, and those received, of all
    /// connections.
    pub value: fn(&EndpointStats, [u64; 4]) -> CounterValue,
}

/// Counter of a peer's record, as the tools show it.
#[derive(Debug)]
pub struct PeerCounter {
    /// Name in JSON.
    pub name: &'static str,
    /// Returns the value.
    pub value: fn(&PeerStats) -> u64,
}

/// Counters of endpoints, in the order of fi_top's JSON and metrics.
pub const ENDPOINT_COUNTERS: &[EndpointCounter] = {
    use CounterValue::{Single, UntaggedTagged, UsedSize};
    type Value = fn(&EndpointStats, [u64; 4]) -> CounterValue;
    const fn without_metric(name: &'static str, value: Value) -> EndpointCounter {
        EndpointCounter { name, metric: None, value }
    }
    const fn with_metric(
        name: &'static str,
        metric: &'static str,
        kind: &'static str,
        help: &'static str,
        value: Value,
    ) -> EndpointCounter {
        EndpointCounter { name, metric: Some(Metric { name: metric, kind, help }), value }
    }
    &[
        without_metric("written", |ep, _| Single(ep.written)),
        without_metric("iterations", |ep, _| Single(ep.iterations)),
        without_metric("asleep", |ep, _| Single(ep.asleep)),
        with_metric("sent", "sent_messages_total", "counter", "Messages sent", |_, passed| {
            Single(passed[0])
        }),
        with_metric("sent_bytes", "sent_bytes_total", "counter", "Bytes sent", |_, passed| {
            Single(passed[1])
        }),
        with_metric(
            "received",
            "received_messages_total",
            "counter",
            "Messages received",
            |_, passed| Single(passed[2]),
        ),
        with_metric(
            "received_bytes",
            "received_bytes_total",
            "counter",
            "Bytes received",
            |_, passed| Single(passed[3]),
        ),
        with_metric("posted", "posted_receives", "gauge", "Receives that wait", |ep, _| {
            UntaggedTagged(ep.posted)
        }),
        with_metric(
            "unexpected",
            "unexpected_messages",
            "gauge",
            "Messages that came before their receive",
            |ep, _| UntaggedTagged(ep.unexpected),
        ),
        without_metric("unexpected_bytes", |ep, _| Single(ep.unexpected_bytes)),
        with_metric(
            "in_flight",
            "in_flight",
            "gauge",
            "Operations that are not complete",
            |ep, _| Single(ep.in_flight),
        ),
        without_metric("tx_queue", |ep, _| UsedSize([ep.tx_queue, ep.tx_queue_size])),
        with_metric(
            "rx_queue",
            "unread_completions",
            "gauge",
            "Unread entries of the receive queue",
            |ep, _| UsedSize([ep.rx_queue, ep.rx_queue_size]),
        ),
        with_metric(
            "lost",
            "lost_connections_total",
            "counter",
            "Connections that were lost",
            |ep, _| Single(ep.lost[0]),
        ),
        with_metric(
            "resumes",
            "resumed_connections_total",
            "counter",
            "Connections resumed after the loss of their sockets",
            |ep, _| Single(ep.resumes),
        ),
        with_metric(
            "repeated_bytes",
            "repeated_bytes_total",
            "counter",
            "Bytes sent again because of lost sockets",
            |ep, _| Single(ep.repeated_bytes),
        ),
        with_metric(
            "closed_idle",
            "closed_idle_connections_total",
            "counter",
            "Idle connections closed because of the limit of descriptors",
            |ep, _| Single(ep.closed_idle),
        ),
    ]
};

/// Counters of peers, in the order of fi_top's JSON.
pub const PEER_COUNTERS: &[PeerCounter] = &[
    PeerCounter { name: "since", value: |peer| peer.since },
    PeerCounter { name: "moved", value: |peer| peer.moved },
    PeerCounter { name: "sent", value: |peer| peer.sent },
    PeerCounter { name: "sent_bytes", value: |peer| peer.sent_bytes },
    PeerCounter { name: "received", value: |peer| peer.received },
    PeerCounter { name: "received_bytes", value: |peer| peer.received_bytes },
    PeerCounter { name: "unsent", value: |peer| peer.unsent },
    PeerCounter { name: "unsent_bytes", value: |peer| peer.unsent_bytes },
    PeerCounter { name: "unacknowledged", value: |peer| peer.unacknowledged },
    PeerCounter { name: "announced", value: |peer| peer.announced },
    PeerCounter { name: "unanswered", value: |peer| peer.unanswered },
    PeerCounter { name: "incomplete", value: |peer| peer.incomplete },
    PeerCounter { name: "subflows", value: |peer| peer.subflows },
    PeerCounter { name: "sockets", value: |peer| peer.sockets },
    PeerCounter { name: "resumes", value: |peer| peer.resumes },
    PeerCounter { name: "repeated_bytes", value: |peer| peer.repeated_bytes },
];

/// No `fi_addr_t`: any sender, or one without a name.
pub const ANY: u64 = u64::MAX;

/// Kinds of endpoints, [`EndpointStats::kind`].
pub mod kinds {
    /// FI_EP_MSG.
    pub const MSG: u64 = 1;
    /// FI_EP_RDM.
    pub const RDM: u64 = 2;
    /// A shared receive context.
    pub const SRX: u64 = 3;
    /// FI_EP_DGRAM.
    pub const DGRAM: u64 = 4;
}

/// States of peers, [`PeerStats::state`].
pub mod states {
    /// The link is being made.
    pub const CONNECTING: u64 = 1;
    /// The connection was asked for, and the peer has not answered.
    pub const ASKED: u64 = 2;
    /// The peer asked, and has no answer yet.
    pub const CALLED: u64 = 3;
    /// Messages flow.
    pub const CONNECTED: u64 = 4;
    /// The peer refused, and is called again later.
    pub const LATER: u64 = 5;
    /// Connecting over a core provider; the state of the connect is in the core provider's own
    /// record.
    pub const CALLING: u64 = 6;
    /// All sockets of the connection are lost, and it is being resumed (FI_TCP_RESUME).
    pub const RESUMING: u64 = 7;
}

/// Flags of a peer's state.
pub mod peer_bits {
    /// Bytes to the peer go through memory.
    pub const SENDS_LOCALLY: u64 = 1 << 8;
    /// Bytes of the peer come through memory.
    pub const RX_OVER_SHM: u64 = 1 << 9;
    /// The peer may be of this host, as far as addresses tell.
    pub const SAME_HOST: u64 = 1 << 10;
    /// The peer is not read: a message has nowhere to go.
    pub const BLOCKED: u64 = 1 << 11;
    /// The peer has proven possession of the job's pre-shared key.
    pub const SECRET: u64 = 1 << 12;
    /// Data sent to the peer is encrypted.
    pub const ENCRYPTED: u64 = 1 << 13;
}

/// Words of the first part.
pub const FIRST_WORDS: usize = 512;

/// Returns the first word of an endpoint's record, for this number of peer records.
pub fn endpoint_at(index: usize, peers: usize) -> usize {
    match index.checked_sub(FIRST_ENDPOINTS) {
        None => StatsHeader::WORDS + index * EndpointStats::WORDS,
        Some(further) => peer_at(peers) + further * EndpointStats::WORDS,
    }
}

/// Returns the first word of a peer's record.
pub fn peer_at(index: usize) -> usize {
    FIRST_WORDS + index * PeerStats::WORDS
}

/// Returns the total number of words, for this number of peer records.
pub fn words_with(peers: usize) -> usize {
    endpoint_at(FIRST_ENDPOINTS + MORE_ENDPOINTS, peers)
}

/// Returns a text as words, truncated if it is too long.
pub fn text_words<const N: usize>(text: &str) -> [u64; N] {
    let mut cut = text.len().min(8 * N);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut words = [0; N];
    for (word, part) in words.iter_mut().zip(text.as_bytes()[..cut].chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        *word = u64::from_ne_bytes(bytes);
    }
    words
}

/// Returns the text of untrusted words; all but printable ASCII becomes `?`.
pub fn words_text(words: &[u64]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    bytes.map(|byte| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' }).collect()
}

const _: () = assert!(StatsHeader::WORDS + FIRST_ENDPOINTS * EndpointStats::WORDS <= FIRST_WORDS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_conversion_to_words_and_back() {
        let peer = PeerStats {
            serial: 3,
            state: states::CONNECTED | peer_bits::BLOCKED,
            address: text_words("[::1]:5"),
            ..PeerStats::default()
        };
        let mut words = [0; PeerStats::WORDS];
        peer.put_words(&mut words);
        assert_eq!(PeerStats::of_words(&words), peer);
        assert_eq!((words[1], words_text(&words[20..28]).as_str()), (3, "[::1]:5"));
    }

    #[test]
    fn texts_are_cut_at_a_character_and_read_without_control_characters() {
        assert_eq!(words_text(&text_words::<1>("abcdefghij")), "abcdefgh");
        assert_eq!(words_text(&text_words::<1>("abcdefgä")), "abcdefg");
        assert_eq!(words_text(&[u64::from_ne_bytes(*b"a\x1b[2J\n\xffz")]), "a?[2J??z");
    }

    #[test]
    fn counter_has_a_json_form_and_a_single_number() {
        let pair = CounterValue::UntaggedTagged([2, 3]);
        assert_eq!((pair.json().as_str(), pair.total()), ("[2,3]", 5));
        let queue = CounterValue::UsedSize([2, 1024]);
        assert_eq!((queue.json().as_str(), queue.total()), ("[2,1024]", 2));
        assert_eq!(CounterValue::UntaggedTagged([u64::MAX, 1]).total(), u64::MAX);
    }

    #[test]
    fn names_of_counters_are_unique() {
        let names = ENDPOINT_COUNTERS.iter().map(|counter| counter.name);
        let metrics = ENDPOINT_COUNTERS.iter().filter_map(|counter| counter.metric.as_ref());
        let peers = PEER_COUNTERS.iter().map(|counter| counter.name);
        for names in [
            names.collect::<Vec<_>>(),
            metrics.map(|metric| metric.name).collect(),
            peers.collect(),
        ] {
            let unique: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(unique.len(), names.len());
        }
    }

    #[test]
    fn latency_classes_double_in_width() {
        let class = |micros: u64| latency_class(micros * 1000);
        assert_eq!(
            [class(0), class(1), class(2), class(3), class(4), class(1000)],
            [0, 1, 2, 2, 3, 10]
        );
        assert_eq!(latency_class(999), 0);
        assert_eq!(latency_class(u64::MAX), LATENCY_CLASSES - 1);
        for class in 0..LATENCY_CLASSES - 1 {
            let below = latency_below(class).unwrap();
            assert_eq!([latency_class(below - 1), latency_class(below)], [class, class + 1]);
        }
        assert_eq!(latency_below(LATENCY_CLASSES - 1), None);
    }

    #[test]
    fn records_do_not_overlap() {
        assert_eq!(endpoint_at(FIRST_ENDPOINTS, 10), peer_at(10));
        assert_eq!(peer_at(0) * 8, 4096);
        assert_eq!(words_with(10), peer_at(10) + MORE_ENDPOINTS * EndpointStats::WORDS);
    }
}
