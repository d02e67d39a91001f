//! Where which fact is in the memory: words of 64 bits, in the order of the machine.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 511 | [`HeadFacts`] |
//! | 512 to 4095 | [`FIRST_ENDPOINTS`] records [`EndpointFacts`] |
//! | from 4096 | as many records [`PeerFacts`] as the head says |
//! | behind those | [`MORE_ENDPOINTS`] records of further endpoints |
//!
//! Memory that was never written takes none. The first word of a record is odd while the record is
//! written, and another number afterwards; its second is 0 if the record is free. Whoever changes what
//! a word means, or where it is, changes [`VERSION`].

/// The first word of the memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ofifacts");

/// The version of this layout.
pub const VERSION: u64 = 2;

/// Records of endpoints in the first 4 KiB.
pub const FIRST_ENDPOINTS: usize = 4;

/// Records of endpoints behind the peers'.
pub const MORE_ENDPOINTS: usize = 508;

/// How many peers have a record where the user does not say (FI_STATS_PEERS).
pub const DEFAULT_PEERS: usize = 1024;

/// The most peers that have a record, whatever the user says.
pub const MAX_PEERS: usize = 65536;

/// Engines, one for each domain, that have a word of their own for their turns; others share the last.
pub const ENGINES: usize = 16;

/// How many classes of time transfers are counted in ([`latency_class`]).
pub const LATENCY_CLASSES: usize = 24;

/// The class of a time: 0 of less than a microsecond, N of less than 2 to the power of N microseconds;
/// the last has all that took longer.
pub fn latency_class(nanos: u64) -> usize {
    let micros = nanos / 1000;
    ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_CLASSES - 1)
}

/// The time, in nanoseconds, below which all of a class are; none of the last class.
pub fn latency_below(class: usize) -> Option<u64> {
    (class + 1 < LATENCY_CLASSES).then(|| 1000 << class)
}

/// Bytes of an address as a text.
const ADDRESS: usize = 64;

/// Values that are a fixed number of words.
pub trait Words: Sized {
    /// Writes the words from `at` on, and moves `at` behind them.
    fn put(&self, words: &mut [u64], at: &mut usize);
    /// Reads what [`put`](Self::put) wrote.
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
    /// How many words it has.
    const WORDS: usize;
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
    /// What is said once.
    HeadFacts, 64:
    /// [`MAGIC`].
    magic: u64,
    /// [`VERSION`].
    version: u64,
    /// The process as it knows itself; a forked child has its parent's descriptor with the parent's
    /// number in it.
    process: u64,
    /// Records of peers that there is room for.
    peers: u64,
    /// Records of peers, from the first on, among which all are that were ever used.
    peers_used: u64,
    /// The same of endpoints.
    endpoints_used: u64,
    /// Peers that found no free record, since the beginning.
    peers_left_out: u64,
    /// Endpoints that found no free record, since the beginning.
    endpoints_left_out: u64,
    /// The library's version, fi_version(3).
    library: u64,
    /// The provider's name.
    provider: [u64; 4],
    /// Nanoseconds of CLOCK_MONOTONIC at the beginning.
    began: u64,
    /// Turns of progress that engines made, which is not copied now and then as the rest is, but
    /// written in each turn.
    turns: [u64; ENGINES],
    /// For later versions.
    spare: [[u64; 17]; 2],
}

record! {
    /// A receive that waits, or a message that came before its receive.
    WaitingFacts, 4:
    /// 1 untagged, 2 tagged, 3 the library's own; 0 if there is none.
    kind: u64,
    /// The tag.
    tag: u64,
    /// The tag's bits that a receive ignores; a message's length.
    ignore_or_len: u64,
    /// The `fi_addr_t` of the only sender, or of the message's, [`ANY`] if there is none.
    source: u64,
}

record! {
    /// How often which error was reported.
    ErrorFacts, 2:
    /// The code, positive.
    code: u64,
    /// How often.
    count: u64,
}

record! {
    /// An endpoint. Times are nanoseconds of CLOCK_MONOTONIC.
    EndpointFacts, 112:
    /// See the module.
    sequence: u64,
    /// Tells the endpoint from others that had or will have the record; never 0.
    serial: u64,
    /// One of [`kinds`].
    kind: u64,
    /// The index of its engine's turns.
    engine: u64,
    /// When this was written.
    written: u64,
    /// The engine's turns then.
    turns: u64,
    /// Turns since anything moved.
    idle: u64,
    /// Threads that sleep in a call, or are about to.
    asleep: u64,
    /// When a message or a connection's state last changed, as far as was seen.
    moved: u64,
    /// Messages sent on connections that are no more; those of others are in the peers' records.
    sent: u64,
    /// Bytes of those.
    sent_bytes: u64,
    /// The same of messages received.
    received: u64,
    /// Bytes of those.
    received_bytes: u64,
    /// Receives that wait: untagged, tagged.
    posted: [u64; 2],
    /// Messages that came before their receive: untagged, tagged.
    unexpected: [u64; 2],
    /// Bytes of memory that those take.
    unexpected_bytes: u64,
    /// Operations of the application that are not complete.
    in_flight: u64,
    /// How many of them there may be (tx_attr.size).
    tx_size: u64,
    /// Entries of the completion queue of transmits that nobody has read.
    tx_queue: u64,
    /// How many it is made for.
    tx_queue_size: u64,
    /// The same of the queue of receives.
    rx_queue: u64,
    /// See `tx_queue_size`.
    rx_queue_size: u64,
    /// Whether both are one queue.
    one_queue: u64,
    /// Connections that are not read because the queue has no room.
    starved: u64,
    /// Connections, of all endpoints of the engine.
    connections: u64,
    /// Connections that were lost, and the code of the last one's error.
    lost: [u64; 2],
    /// When the last connection was lost.
    lost_at: u64,
    /// The address of the peer whose connection was lost last.
    lost_peer: [u64; ADDRESS / 8],
    /// Errors by code.
    errors: [ErrorFacts; 4],
    /// The oldest receives that are for one message. Who posts buffers for any number (FI_MULTI_RECV)
    /// takes whatever comes, and waits for nobody.
    receives: [WaitingFacts; 3],
    /// The oldest messages that came before their receive.
    messages: [WaitingFacts; 4],
    /// The endpoint's own address.
    address: [u64; ADDRESS / 8],
    /// The address will not change any more.
    settled: u64,
    /// The endpoint serves a utility provider's, which shows itself what the program knows of.
    serves: u64,
    /// How long transfers took from their call to their completion, by class ([`latency_class`]), of
    /// those that were not complete when the call returned. Few are timed; each stands for as many as
    /// were begun since the one before.
    latency: [u64; LATENCY_CLASSES],
    /// Turns that threads of the library made, beside the application; see `turns`.
    visits: u64,
    /// For later versions.
    spare: [u64; 3],
}

record! {
    /// A peer that is talked to, or is to be. Times are nanoseconds of CLOCK_MONOTONIC.
    PeerFacts, 32:
    /// See the module.
    sequence: u64,
    /// Tells the connection from others that had or will have the record; never 0.
    serial: u64,
    /// The serial of the endpoint's record.
    endpoint: u64,
    /// The peer's `fi_addr_t`, [`ANY`] if it has none.
    name: u64,
    /// One of [`states`], in bits 8 and above what [`peer_bits`] say.
    state: u64,
    /// Since when the peer is in that state.
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
    /// Transfers that wait to be sent.
    unsent: u64,
    /// Bytes of the first 16 of them.
    unsent_bytes: u64,
    /// Transfers that are sent, and complete when the peer says so.
    unacknowledged: u64,
    /// Messages announced to the peer that it has not asked for.
    announced: u64,
    /// Messages that the peer announced and that are not asked for.
    at_sender: u64,
    /// Reads of the peer's memory, and atomic operations, without an answer.
    unanswered: u64,
    /// Bytes of the message that is being received which have not come.
    incomplete: u64,
    /// How often the peer refused to be called.
    refused: u64,
    /// The peer's address.
    address: [u64; ADDRESS / 8],
    /// For later versions.
    spare: [u64; 4],
}

/// No `fi_addr_t`: any sender, or one without a name.
pub const ANY: u64 = u64::MAX;

/// Kinds of endpoints, [`EndpointFacts::kind`].
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

/// States of peers, [`PeerFacts::state`].
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
    /// The peer was called over a core provider, whose own record says how far the call came.
    pub const CALLING: u64 = 6;
}

/// What else a peer's state says, in bits.
pub mod peer_bits {
    /// Bytes to the peer go through memory.
    pub const SENDS_LOCALLY: u64 = 1 << 8;
    /// Bytes of the peer come through memory.
    pub const HEARS_LOCALLY: u64 = 1 << 9;
    /// The peer may be of this host, as far as addresses tell.
    pub const SAME_HOST: u64 = 1 << 10;
    /// The peer is not read: a message has nowhere to go.
    pub const BLOCKED: u64 = 1 << 11;
    /// The peer has proven the job's secret.
    pub const SECRET: u64 = 1 << 12;
    /// What goes to the peer is encrypted.
    pub const ENCRYPTED: u64 = 1 << 13;
}

/// Words of the first part.
pub const FIRST_WORDS: usize = 512;

/// The word at which an endpoint's record begins, where there are so many records of peers.
pub fn endpoint_at(index: usize, peers: usize) -> usize {
    match index.checked_sub(FIRST_ENDPOINTS) {
        None => HeadFacts::WORDS + index * EndpointFacts::WORDS,
        Some(further) => peer_at(peers) + further * EndpointFacts::WORDS,
    }
}

/// The word at which a peer's record begins.
pub fn peer_at(index: usize) -> usize {
    FIRST_WORDS + index * PeerFacts::WORDS
}

/// Words of all, where there are so many records of peers.
pub fn words_with(peers: usize) -> usize {
    endpoint_at(FIRST_ENDPOINTS + MORE_ENDPOINTS, peers)
}

/// The words of a text, whose end is cut off if it is too long.
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

/// The text of words, of which nothing is taken for granted: what is no printable ASCII becomes `?`.
pub fn words_text(words: &[u64]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    bytes.map(|byte| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' }).collect()
}

const _: () = assert!(HeadFacts::WORDS + FIRST_ENDPOINTS * EndpointFacts::WORDS <= FIRST_WORDS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_its_words_were_made_of() {
        let peer = PeerFacts {
            serial: 3,
            state: states::CONNECTED | peer_bits::BLOCKED,
            address: text_words("[::1]:5"),
            ..PeerFacts::default()
        };
        let mut words = [0; PeerFacts::WORDS];
        peer.put_words(&mut words);
        assert_eq!(PeerFacts::of_words(&words), peer);
        assert_eq!((words[1], words_text(&words[20..28]).as_str()), (3, "[::1]:5"));
    }

    #[test]
    fn texts_are_cut_at_a_character_and_read_without_control_characters() {
        assert_eq!(words_text(&text_words::<1>("abcdefghij")), "abcdefgh");
        assert_eq!(words_text(&text_words::<1>("abcdefgä")), "abcdefg");
        assert_eq!(words_text(&[u64::from_ne_bytes(*b"a\x1b[2J\n\xffz")]), "a?[2J??z");
    }

    #[test]
    fn times_are_in_classes_that_double() {
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
        assert_eq!(words_with(10), peer_at(10) + MORE_ENDPOINTS * EndpointFacts::WORDS);
    }
}
