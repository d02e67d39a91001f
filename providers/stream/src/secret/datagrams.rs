//! Format of datagrams between endpoints with the same pre-shared key: each is sealed separately.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | magic number of sealed datagrams |
//! | 4 | the version, 1 |
//! | 5 | 1: the sender's socket has its own IP address, and it is authenticated; else 0 |
//! | 6..8 | 0 |
//! | 8..24 | the sender's id: random, drawn when an endpoint is enabled, and anew in a forked child |
//! | 24..32 | the datagram's number among those of the sender, most significant byte first |
//! | 32.. | the message, encrypted, and its tag of 16 bytes |
//!
//! Each sender has its own key: HMAC-SHA-256 under the pre-shared key, of a unique label and the
//! sender's id. So no part of a link's handshake is valid here, nor the other way round. The cipher
//! is ChaCha20-Poly1305 and the nonce is the number: a key of a single sender with a counted number
//! is never used twice.
//!
//! The bytes before the message are authenticated as well, and so are the source and destination
//! addresses. So no datagram can be forwarded to another endpoint, or sent in the name of another
//! address.
//!
//! A receiver stores a [`ReplayWindow`] for each sender of an authentic datagram. There is no
//! handshake, so the first datagram of a sender may be fresh or a replay: see SECURITY.md.
use super::SecretKey;
use super::records::TAG_LEN;
use ofi_provider::error::{Error, Result};
use ofi_provider::sys::{count_forks, fill_random, generation};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

/// Magic number at the start of a sealed datagram.
const DATAGRAM_MARK: [u8; 4] = *b"\xc5OFD";
const DATAGRAM_VERSION: u8 = 1;

/// Bytes before the message.
pub const DATAGRAM_HEAD: usize = 32;

/// Overhead in bytes of a sealed datagram over its message.
pub const DATAGRAM_OVERHEAD: usize = DATAGRAM_HEAD + TAG_LEN;

/// Label hashed before a sender's id.
const DATAGRAM_LABEL: &[u8] = b"libfabric datagrams 1\0";

/// Bytes of a sender's id.
const SENDER_ID_LEN: usize = 16;

/// Maximum senders with a window at a receiver: about 5 MB.
const MAX_SENDERS: usize = 16384;

type SenderId = [u8; SENDER_ID_LEN];

/// Bytes of an address with its port.
const END_LEN: usize = 18;

/// Size of the authenticated data in addition to the message.
const AAD_LEN: usize = DATAGRAM_HEAD + 2 * END_LEN;

/// Reason for dropping a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatagramError {
    /// It is not sealed.
    Unsealed,
    /// It has another version.
    Version,
    /// The sender has a different pre-shared key, or the datagram or its addresses were changed.
    NotAuthentic,
    /// It was received before, or is too old for the replay window.
    Repeated,
    /// There is no memory for another sender.
    NoMemory,
}

impl fmt::Display for DatagramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsealed => {
                "it is not sealed: its sender has no secret, and this process has one"
            }
            Self::Version => "it has another version of sealed datagrams",
            Self::NotAuthentic => {
                "its sender has not the same secret, or it was changed or redirected on its way"
            }
            Self::Repeated => "it came before, or is too late",
            Self::NoMemory => "there is no memory for another sender",
        })
    }
}

/// The key of a sender's datagrams.
fn sender_key(key: &SecretKey, id: &SenderId) -> [u8; 32] {
    key.derive(DATAGRAM_LABEL, id)
}

fn cipher(key: &[u8; 32]) -> LessSafeKey {
    // The length is the cipher's, which is all that is asked of a key.
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("the length of a key"))
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// An address as it is authenticated: IPv4 ones as IPv6 has them.
fn end(ip: IpAddr, port: u16) -> [u8; END_LEN] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut end = [0; END_LEN];
    end[..16].copy_from_slice(&ip.octets());
    end[16..].copy_from_slice(&port.to_be_bytes());
    end
}

fn aad(head: &[u8; DATAGRAM_HEAD], from: &SocketAddr, to: &SocketAddr) -> [u8; AAD_LEN] {
    let mut from = end(from.ip(), from.port());
    if head[5] == 0 {
        from[..16].fill(0);
    }
    let mut aad = [0; AAD_LEN];
    let (bytes, ends) = aad.split_at_mut(DATAGRAM_HEAD);
    bytes.copy_from_slice(head);
    let (first, second) = ends.split_at_mut(END_LEN);
    first.copy_from_slice(&from);
    second.copy_from_slice(&end(to.ip(), to.port()));
    aad
}

/// Seals the datagrams of one endpoint.
pub struct DatagramSealer {
    secret: Arc<SecretKey>,
    /// The address of the endpoint's socket.
    from: SocketAddr,
    id: SenderId,
    key: LessSafeKey,
    /// The number of the next datagram.
    next: u64,
    /// Process owning the id.
    generation: u32,
}

impl fmt::Debug for DatagramSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSealer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl DatagramSealer {
    /// Creates the sealer of an endpoint with this socket address.
    pub fn new(secret: &Arc<SecretKey>, from: SocketAddr) -> Result<Self> {
        count_forks();
        let generation = generation();
        let (id, key) = Self::draw(secret)?;
        Ok(Self { secret: secret.clone(), from, id, key, next: 0, generation })
    }

    fn draw(secret: &SecretKey) -> Result<(SenderId, LessSafeKey)> {
        let mut id = SenderId::default();
        fill_random(&mut id)?;
        Ok((id, cipher(&sender_key(secret, &id))))
    }

    /// Goes on as another sender in a forked child, and when there are no more numbers.
    #[cold]
    fn renew(&mut self) -> Result {
        let generation = generation();
        (self.id, self.key) = Self::draw(&self.secret)?;
        (self.next, self.generation) = (0, generation);
        Ok(())
    }

    /// Seals a datagram in place: the message has [`DATAGRAM_HEAD`] bytes before it, and space for
    /// the tag behind it. Returns -FI_EINVAL if there is no such space.
    pub fn seal(&mut self, to: &SocketAddr, datagram: &mut [u8]) -> Result {
        if self.generation != generation() || self.next == u64::MAX {
            self.renew()?;
        }
        let (head, rest) = datagram.split_first_chunk_mut::<DATAGRAM_HEAD>().ok_or(Error::INVAL)?;
        let (message, tag) = rest.split_last_chunk_mut::<TAG_LEN>().ok_or(Error::INVAL)?;
        head[..4].copy_from_slice(&DATAGRAM_MARK);
        // Datagrams sent from a socket bound to a group's address carry another source address.
        let is_bound = !self.from.ip().is_unspecified() && !self.from.ip().is_multicast();
        head[4..8].copy_from_slice(&[DATAGRAM_VERSION, u8::from(is_bound), 0, 0]);
        head[8..24].copy_from_slice(&self.id);
        head[24..].copy_from_slice(&self.next.to_be_bytes());
        let aad = Aad::from(aad(head, &self.from, to));
        let number = self.next;
        self.next += 1;
        let made = self.key.seal_in_place_separate_tag(nonce(number), aad, message);
        tag.copy_from_slice(made.map_err(|_| Error::INVAL)?.as_ref());
        Ok(())
    }
}

/// Numbers covered by a window, in words of 64; the oldest word is in part overwritten.
const WINDOW_WORDS: usize = 32;

/// Maximum lateness of a datagram, as a distance in numbers from the latest one.
pub const WINDOW: u64 = (WINDOW_WORDS as u64 - 1) * 64;

/// Received numbers of a sender, as in RFC 6479.
#[derive(Clone, Debug)]
struct ReplayWindow {
    /// Largest number received.
    last: u64,
    /// Bits of numbers, each in the word with the index modulo the number of words.
    words: [u64; WINDOW_WORDS],
}

impl ReplayWindow {
    /// Creates the window of a sender with this number in its first received datagram.
    fn new(first: u64) -> Self {
        let mut window = Self { last: first, words: [0; WINDOW_WORDS] };
        window.note(first);
        window
    }

    fn position(number: u64) -> (usize, u64) {
        let word = (number / 64) % WINDOW_WORDS as u64;
        (word as usize, 1 << (number % 64))
    }

    /// Returns true if a number was not received before, as far as the window covers it.
    fn is_new(&self, number: u64) -> bool {
        if number > self.last {
            return true;
        }
        let (word, bit) = Self::position(number);
        self.last - number < WINDOW && self.words[word] & bit == 0
    }

    /// Records a new number.
    fn note(&mut self, number: u64) {
        if number > self.last {
            let (before, now) = (self.last / 64, number / 64);
            let passed = (now - before).min(WINDOW_WORDS as u64);
            for word in 0..passed {
                self.words[((now - word) % WINDOW_WORDS as u64) as usize] = 0;
            }
            self.last = number;
        }
        let (word, bit) = Self::position(number);
        self.words[word] |= bit;
    }
}

/// State of a sender at a receiver.
struct Sender {
    key: [u8; 32],
    window: ReplayWindow,
    /// When a datagram came last, in datagrams.
    last_opened: u64,
}

/// Opener of the datagrams received by one endpoint.
pub struct DatagramOpener {
    secret: Arc<SecretKey>,
    /// Senders of authentic datagrams.
    senders: HashMap<SenderId, Sender>,
    most: usize,
    /// Number of authentic datagrams, and of dropped ones.
    opened: u64,
    dropped: u64,
}

impl fmt::Debug for DatagramOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramOpener")
            .field("senders", &self.senders.len())
            .field("opened", &self.opened)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

impl DatagramOpener {
    /// Creates an opener of an endpoint with this pre-shared key.
    pub fn new(secret: &Arc<SecretKey>) -> Self {
        Self {
            secret: secret.clone(),
            senders: HashMap::new(),
            most: MAX_SENDERS,
            opened: 0,
            dropped: 0,
        }
    }

    /// Returns the number of dropped datagrams.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Opens a datagram in place; returns the range of its message. A forged one changes only the
    /// count, and costs no more than one read of it.
    pub fn open(
        &mut self,
        from: &SocketAddr,
        to: &SocketAddr,
        datagram: &mut [u8],
    ) -> core::result::Result<Range<usize>, DatagramError> {
        let opened = self.try_open(from, to, datagram);
        match opened {
            Ok(_) => self.opened += 1,
            Err(_) => self.dropped += 1,
        }
        opened
    }

    fn try_open(
        &mut self,
        from: &SocketAddr,
        to: &SocketAddr,
        datagram: &mut [u8],
    ) -> core::result::Result<Range<usize>, DatagramError> {
        let (head, rest) =
            datagram.split_first_chunk_mut::<DATAGRAM_HEAD>().ok_or(DatagramError::Unsealed)?;
        let (message, tag) =
            rest.split_last_chunk_mut::<TAG_LEN>().ok_or(DatagramError::Unsealed)?;
        match head {
            [a, b, c, d, DATAGRAM_VERSION, 0 | 1, 0, 0, ..]
                if [*a, *b, *c, *d] == DATAGRAM_MARK => {}
            [a, b, c, d, ..] if [*a, *b, *c, *d] == DATAGRAM_MARK => {
                return Err(DatagramError::Version);
            }
            _ => return Err(DatagramError::Unsealed),
        }
        let mut id = SenderId::default();
        id.copy_from_slice(&head[8..24]);
        let mut number = [0; 8];
        number.copy_from_slice(&head[24..]);
        let number = u64::from_be_bytes(number);
        let known = self.senders.get(&id);
        if known.is_some_and(|sender| !sender.window.is_new(number)) {
            return Err(DatagramError::Repeated);
        }
        let key = known.map_or_else(|| sender_key(&self.secret, &id), |sender| sender.key);
        let len = message.len();
        let tag = Tag::from(*tag);
        let aad = Aad::from(aad(head, from, to));
        let opened = cipher(&key).open_in_place_separate_tag(nonce(number), aad, tag, message, 0..);
        if opened.is_err() {
            return Err(DatagramError::NotAuthentic);
        }
        self.note(id, key, number)?;
        Ok(DATAGRAM_HEAD..DATAGRAM_HEAD + len)
    }

    /// Notes an authentic datagram.
    fn note(
        &mut self,
        id: SenderId,
        key: [u8; 32],
        number: u64,
    ) -> core::result::Result<(), DatagramError> {
        if let Some(sender) = self.senders.get_mut(&id) {
            sender.window.note(number);
            sender.last_opened = self.opened;
            return Ok(());
        }
        if self.senders.len() >= self.most {
            self.forget_silent();
        }
        self.senders.try_reserve(1).map_err(|_| DatagramError::NoMemory)?;
        let window = ReplayWindow::new(number);
        self.senders.insert(id, Sender { key, window, last_opened: self.opened });
        Ok(())
    }

    /// Removes the eighth of the senders with the oldest last datagram.
    #[cold]
    fn forget_silent(&mut self) {
        let mut last_opened: Vec<u64> =
            self.senders.values().map(|sender| sender.last_opened).collect();
        let eighth = last_opened.len() / 8;
        let (_, oldest_buffered, _) = last_opened.select_nth_unstable(eighth);
        let oldest_buffered = *oldest_buffered;
        // The receive times differ, so at least one sender is removed.
        self.senders.retain(|_, sender| sender.last_opened > oldest_buffered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::PskConfig;

    const A: &str = "192.0.2.1:1000";
    const B: &str = "192.0.2.2:2000";

    fn at(addr: &str) -> SocketAddr {
        addr.parse().unwrap()
    }

    fn secret(bytes: &[u8]) -> Arc<SecretKey> {
        PskConfig::new(bytes, false).key().unwrap().clone()
    }

    /// Returns a sealer at A and an opener with the same pre-shared key.
    fn pair() -> (DatagramSealer, DatagramOpener) {
        let secret = secret(b"the secret of a job");
        (DatagramSealer::new(&secret, at(A)).unwrap(), DatagramOpener::new(&secret))
    }

    fn sealed(sealer: &mut DatagramSealer, to: &str, message: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; DATAGRAM_HEAD];
        datagram.extend_from_slice(message);
        datagram.resize(message.len() + DATAGRAM_OVERHEAD, 0);
        sealer.seal(&at(to), &mut datagram).unwrap();
        datagram
    }

    /// The message of a datagram from A to B.
    fn opened(
        opener: &mut DatagramOpener,
        datagram: &[u8],
    ) -> core::result::Result<Vec<u8>, DatagramError> {
        let mut datagram = datagram.to_vec();
        let message = opener.open(&at(A), &at(B), &mut datagram)?;
        Ok(datagram[message].to_vec())
    }

    #[test]
    fn a_message_comes_once_and_nothing_of_it_can_be_read_on_the_way() {
        let (mut sealer, mut opener) = pair();
        for message in [&b""[..], b"x", b"words of a confidential datagram."] {
            let datagram = sealed(&mut sealer, B, message);
            assert_eq!(datagram.len(), message.len() + DATAGRAM_OVERHEAD);
            let is_in = |part: &[u8]| datagram.windows(part.len()).any(|w| w == part);
            assert!(message.len() < 8 || !is_in(&message[..8]));
            assert_eq!(opened(&mut opener, &datagram).as_deref(), Ok(message));
            assert_eq!(opened(&mut opener, &datagram), Err(DatagramError::Repeated));
        }
        // The same bytes are others each time.
        assert_ne!(sealed(&mut sealer, B, b"x")[32..], sealed(&mut sealer, B, b"x")[32..]);
        assert_eq!((opener.opened, opener.dropped(), opener.senders.len()), (3, 3, 1));
        assert_eq!(sealer.seal(&at(B), &mut [0; DATAGRAM_OVERHEAD - 1]), Err(Error::INVAL));
    }

    /// Expected values of another implementation: hmac, hashlib and the package "cryptography" of
    /// Python.
    #[test]
    fn datagram_bytes_match_another_implementation() {
        let (mut sealer, _) = pair();
        sealer.id = *b"0123456789abcdef";
        sealer.key = cipher(&sender_key(&sealer.secret, &sealer.id));
        sealer.next = 5;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&sealed(&mut sealer, B, b"message")), KNOWN);
    }

    const KNOWN: &str = "c54f4644010100003031323334353637383961626364656600000000000000059820836835a2e43b\
        fb264cd508d7b68f14ee858ad0abed";

    #[test]
    fn every_changed_byte_is_noticed_and_a_short_datagram_is_none() {
        let (mut sealer, mut opener) = pair();
        let datagram = sealed(&mut sealer, B, b"message");
        for at in 0..datagram.len() {
            for bit in [1, 0x80] {
                let mut changed = datagram.clone();
                changed[at] ^= bit;
                assert!(opened(&mut opener, &changed).is_err(), "byte {at}");
            }
            assert!(opened(&mut opener, &datagram[..at]).is_err(), "{at} bytes");
        }
        assert!(opened(&mut opener, &[&datagram[..], b"!"].concat()).is_err());
        // Nothing is stored for these, and the correct one is still accepted.
        assert_eq!(opener.senders.len(), 0);
        assert!(opened(&mut opener, &datagram).is_ok());
        for at in 24..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert!(opened(&mut opener, &changed).is_err(), "byte {at} of a known sender's");
        }
        let next = sealed(&mut sealer, B, b"next");
        assert!(opened(&mut opener, &next).is_ok(), "the window moves with authentic ones alone");
    }

    #[test]
    fn datagrams_of_other_keys_or_without_a_key_are_refused() {
        let (mut sealer, _) = pair();
        let mut other = DatagramOpener::new(&secret(b"the secret of another job"));
        let datagram = sealed(&mut sealer, B, b"message");
        assert_eq!(opened(&mut other, &datagram), Err(DatagramError::NotAuthentic));
        let (_, mut opener) = pair();
        for plaintext in [&b""[..], b"plain", &[0; 100]] {
            assert_eq!(opened(&mut opener, plaintext), Err(DatagramError::Unsealed));
        }
        let mut later = datagram;
        later[4] = 2;
        assert_eq!(opened(&mut opener, &later), Err(DatagramError::Version));
        assert_eq!((other.senders.len(), opener.senders.len()), (0, 0));
    }

    #[test]
    fn a_datagram_is_good_for_its_addresses_alone() {
        let (mut sealer, mut opener) = pair();
        let datagram = sealed(&mut sealer, B, b"message");
        for (from, to) in [
            (A, "192.0.2.2:2001"),
            (A, "192.0.2.3:2000"),
            (B, A),
            ("192.0.2.9:1000", B),
            ("192.0.2.1:1001", B),
        ] {
            let refused = opener.open(&at(from), &at(to), &mut datagram.clone());
            assert_eq!(refused, Err(DatagramError::NotAuthentic), "{from} {to}");
        }
        // Sockets of IPv6 see addresses of IPv4 in the form that IPv6 has for them.
        let (from, to) = ("[::ffff:192.0.2.1]:1000", "[::ffff:192.0.2.2]:2000");
        assert!(opener.open(&at(from), &at(to), &mut datagram.clone()).is_ok());
        // A socket without an address of its own has one that the system chooses.
        sealer.from = at("0.0.0.0:1000");
        let datagram = sealed(&mut sealer, B, b"message");
        for (from, good) in [("192.0.2.9:1001", false), ("192.0.2.9:1000", true)] {
            let result = opener.open(&at(from), &at(B), &mut datagram.clone());
            assert_eq!(result.is_ok(), good, "{from}");
        }
        let (mut sealer, mut opener) = pair();
        let mut datagram = sealed(&mut sealer, B, b"message");
        datagram[5] = 0;
        let refused = opener.open(&at("192.0.2.9:1000"), &at(B), &mut datagram);
        assert_eq!(refused, Err(DatagramError::NotAuthentic), "what is bound stays bound");
    }

    #[test]
    fn a_window_takes_each_number_once_as_far_back_as_it_reaches() {
        let mut window = ReplayWindow::new(5000);
        assert!(!window.is_new(5000) && window.is_new(4999) && window.is_new(5000 - WINDOW + 1));
        assert!(!window.is_new(5000 - WINDOW));
        window.note(4999);
        window.note(5000 + 64);
        assert!(!window.is_new(4999) && !window.is_new(5000) && window.is_new(5001));
        // Far ahead: all that was is too old.
        window.note(1_000_000);
        assert!(!window.is_new(5001) && window.is_new(999_999) && window.is_new(1_000_000 - 1900));
        let mut last = ReplayWindow::new(u64::MAX - 1);
        assert!(last.is_new(u64::MAX) && !last.is_new(0));
        last.note(u64::MAX);
        assert!(!last.is_new(u64::MAX));
    }

    /// Compares the window with a set of all received numbers.
    #[test]
    fn replay_window_agrees_with_a_set_of_received_numbers() {
        let mut seed = 1u64;
        let mut random = |most: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % most
        };
        let (mut window, mut came) = (ReplayWindow::new(0), std::collections::HashSet::from([0]));
        let mut highest = 0;
        for _ in 0..200_000 {
            let number = match random(50) {
                0 => highest + random(5000),
                _ => (highest + random(70)).saturating_sub(random(WINDOW + 200)),
            };
            let is_new = !came.contains(&number) && (number > highest || highest - number < WINDOW);
            assert_eq!(window.is_new(number), is_new, "{number} of {highest}");
            if is_new {
                window.note(number);
                came.insert(number);
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn numbers_are_not_used_twice_when_they_end() {
        let (mut sealer, mut opener) = pair();
        sealer.next = u64::MAX - 1;
        let first = sealer.id;
        for _ in 0..3 {
            let datagram = sealed(&mut sealer, B, b"message");
            assert!(opened(&mut opener, &datagram).is_ok());
        }
        assert!(sealer.id != first && sealer.next == 2 && opener.senders.len() == 2);
    }

    #[test]
    fn a_forked_child_is_another_sender() {
        let (mut sealer, mut opener) = pair();
        let before = sealed(&mut sealer, B, b"parent's");
        // SAFETY: the child makes no call of the library's but this, and ends by _exit.
        let status = unsafe {
            match libc::fork() {
                0 => {
                    let mut datagram = [0; DATAGRAM_OVERHEAD];
                    let done = sealer.seal(&at(B), &mut datagram);
                    let other = datagram[8..24] != before[8..24] && datagram[24..32] == [0; 8];
                    libc::_exit(i32::from(done.is_err() || !other))
                }
                child => {
                    let mut status = -1;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    status
                }
            }
        };
        assert_eq!(status, 0);
        let after = sealed(&mut sealer, B, b"parent's");
        assert_eq!(before[8..24], after[8..24]);
        assert!(opened(&mut opener, &before).is_ok() && opened(&mut opener, &after).is_ok());
    }

    #[test]
    fn longest_silent_senders_are_dropped_at_the_limit() {
        let (mut first, mut opener) = pair();
        opener.most = 64;
        for _ in 0..1000 {
            let (mut sealer, _) = pair();
            let datagram = sealed(&mut sealer, B, b"message");
            assert!(opened(&mut opener, &datagram).is_ok());
            assert!(opener.senders.len() <= 64);
            let datagram = sealed(&mut first, B, b"message");
            assert!(opened(&mut opener, &datagram).is_ok());
            assert_eq!(opened(&mut opener, &datagram), Err(DatagramError::Repeated));
        }
        // Forged ones of any number of senders leave nothing.
        let (known, senders) = (sealed(&mut first, B, b"message"), opener.senders.len());
        for id in 0..1000u32 {
            let mut forged = known.clone();
            forged[8..12].copy_from_slice(&id.to_ne_bytes());
            assert_eq!(opened(&mut opener, &forged), Err(DatagramError::NotAuthentic));
        }
        assert_eq!((opener.senders.len(), opener.dropped()), (senders, 2000));
    }
}
