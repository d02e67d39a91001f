//! Links with both ends possibly on one host, upgraded to shared memory.
//!
//! [`WithLocal`] is a [`Net`] over another one. Its links are those of the other, called carrier
//! connections, and stay so for peers of other hosts. If both ends declare a possible common host,
//! they perform the shared-memory upgrade ([`ofi_provider::meet`]) while bytes already flow.
//!
//! Each end then switches by itself, between two writes. It publishes in shared memory the number
//! of bytes sent on the carrier connection, and writes all further ones to a ring there. The
//! receiver reads this number of bytes from the carrier connection and then polls only the ring. So
//! the byte stream is unchanged. The engine uses only two optional queries, to save work
//! ([`ByteLink::hears_locally`], [`ByteLink::sends_locally`]).
//!
//! The carrier connection stays open: its end is the link's end, reported when the ring is empty.
//! An end about to be closed with more bytes than the ring can hold sends them on the carrier
//! connection ([`ByteLink::last_words`]). The other end finds them there when the ring is empty.
//!
//! If the processes of a job have a pre-shared key ([`crate::secret`]), the ends of a link
//! authenticate each other on the carrier connection before the engine receives or sends a byte.
//! With encryption, the carrier connection always carries records.
use crate::net::{
    ByteLink, LinkClock, LinkListener, LinkOp, LinkPoller, Net, Receiving, Sending, Visited,
    WitnessPoller, ZerocopyDone, log_not_in_memory, peer_of,
};
use crate::objects::LinkProvider;
use crate::secret::proof::{Disbelief, ProofExchange};
use crate::secret::records::{RECORD_MAX, RecordStream};
use crate::secret::{JobSecret, SecretKey};
use crate::settings::StreamSettings;
use crate::wire::{LocalOffer, OFFER_LEN, StreamHeader};
use core::time::Duration;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{
    ForeignBytes, GatherList, OnePiece, ScatterList, SegmentLimit, ShortBytes, Way,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef, ProviderOffer};
use ofi_provider::log::peer_text;
use ofi_provider::meet::{MEETING_OFFER_LEN, MeetingCall, MeetingHost, MetPeer, RingMemory};
use ofi_provider::provider::Provider;
use ofi_provider::ring::{JoinedWords, LocalPipe, ShortCells};
use ofi_provider::slab::{NONE, Slab};
use ofi_provider::stack::on_own_stack;
use ofi_provider::sys::{Interest, PollEvent, count_forks, generation};
#[cfg(any(test, feature = "sim"))]
use ofi_simulation::PlantedFault;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

const _: () = assert!(OFFER_LEN == MEETING_OFFER_LEN);

/// Internal tokens in the poller: the doorbell, pending connections of the shared-memory upgrade,
/// and the responses to local requests, combined with the link's number.
const OWN: u64 = 1 << 63;
const BELL: u64 = OWN | 1 << 32;
const PLACE: u64 = OWN | 2 << 32;
const CALL: u64 = OWN | 3 << 32;

/// Number of doorbell bits used by peers to signal links: the bit of a link is its number modulo
/// this.
const DOOR_BITS: u32 = 1024;

/// Delay of pending upgrade requests not accepted for lack of descriptors.
const PLACE_DELAY: Duration = Duration::from_millis(100);

/// Maximum repeated checks for ringing links by a thread not about to sleep, while it re-enables
/// doorbells for other threads.
const MAX_LOOKS: u32 = 64;

/// Maximum bytes received by one call during the shared-memory upgrade.
const MEETING_PIECE: usize = 8192;

/// Maximum size in bytes of a first message waiting for the authentication handshake.
const FIRST_MAX: usize = 4096;

/// Carrier of the bytes of one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    /// On the witness, for ever.
    Witness,
    /// On the witness, and counted: the ends are about to meet.
    Meeting,
    /// In memory.
    Memory,
    /// On the carrier connection, after an incomplete authentication handshake, or in encrypted
    /// records.
    Secret,
}

/// Event of the shared-memory upgrade, passed from the net to a link.
#[derive(Debug)]
enum MeetingNews {
    /// The other end came: the pipe to it.
    Came(Box<LocalPipe>),
    /// The other end answered.
    Answered(MetPeer),
    /// The other end is not met, for this reason.
    Failed(Error),
}

/// State shared by a link and its net. The engine's lock guards both.
#[derive(Debug, Default)]
struct LinkNews {
    /// Something is in `news`.
    has_news: AtomicBool,
    news: Mutex<Option<MeetingNews>>,
    /// Pipe created by this end for the link.
    made: Mutex<Option<Box<LocalPipe>>>,
    /// Request sent by this end for the shared-memory upgrade, until it is answered.
    call: Mutex<Option<MeetingCall>>,
    /// The poller told of the witness.
    witness: AtomicBool,
    /// Data of the other end may arrive through shared memory: it has access, or is about to get
    /// it.
    may_hear: AtomicBool,
    /// The last look at the memory found nothing, or it is not read yet.
    drained: AtomicBool,
    /// Bytes leave through memory.
    sends: AtomicBool,
}

/// Returns true if an error reports a disconnect of the other end.
fn has_hung_up(error: Error) -> bool {
    error == Error::CONNRESET || error.code() == libc::EPIPE
}

/// Returns true if the current simulator test injects this fault.
#[cfg(any(test, feature = "sim"))]
fn is_planted(fault: PlantedFault) -> bool {
    ofi_simulation::planted() == Some(fault)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Encodes the result of a send or receive as one number, returned in a register: the byte count,
/// or the negative error code.
#[inline(always)]
fn as_word(result: Result<usize>) -> isize {
    result.map_or_else(|error| -(error.code() as isize), |n| n as isize)
}

/// Decodes a number made by [`as_word`].
#[inline(always)]
fn from_word(word: isize) -> Result<usize> {
    usize::try_from(word).map_err(|_| Error::from_code(word.wrapping_neg() as i32))
}

impl LinkNews {
    fn tell(&self, news: MeetingNews) {
        *locked(&self.news) = Some(news);
        self.has_news.store(true, Ordering::Relaxed);
    }
}

/// Numbers of ended links to be dropped by the net, and of links due for the shared-memory upgrade.
#[derive(Debug, Default)]
struct LeftLinks {
    any: AtomicBool,
    numbers: Mutex<Vec<u32>>,
    any_talking: AtomicBool,
    talking: Mutex<Vec<(u32, LocalOffer)>>,
    /// A link accepted nothing, so the engine makes a progress iteration ([`Net::is_due`]).
    due: AtomicBool,
}

/// End of a link read through shared memory.
#[derive(Clone, Copy, Debug)]
enum WitnessEnd {
    /// The witness has ended so: [`ByteLink::recv`]'s result.
    Over(Result<usize>),
    /// There is more on the witness, beginning with this byte.
    Words(u8),
}

/// Additional state of a link with both ends possibly on one host.
#[derive(Debug)]
struct LocalPart {
    /// Number of the link within the net.
    number: u32,
    /// Process owning the link ([`generation`]).
    generation: u32,
    news: Arc<LinkNews>,
    left: Arc<LeftLinks>,
    pipe: OnceCell<LocalPipe>,
    /// The other end's offer to meet, until enough was said.
    offer: Cell<Option<LocalOffer>>,
    /// Traffic required before the upgrade, in bytes and calls.
    enough: (u64, u32),
    calls: Cell<u32>,
    /// The other end can be signalled about written data.
    met: Cell<bool>,
    /// Bytes sent to and received from the witness since messages may flow.
    sent: Cell<u64>,
    got: Cell<u64>,
    /// Bytes received on the carrier connection, to be read after those in the ring.
    behind: RefCell<VecDeque<u8>>,
    end: Cell<Option<WitnessEnd>>,
    /// Zero-copy sends accepted by the carrier connection; the numbers of the pipe follow.
    uncopied: Cell<u32>,
    /// The witness sends without copying. Otherwise its uncopied sends are over at once: notice
    /// was given of so many.
    zerocopy: Cell<bool>,
    noticed: Cell<u32>,
    fetched: Cell<Option<ZerocopyDone>>,
}

/// Link with both ends possibly on one host.
#[derive(Debug)]
pub struct LocalLink<L: ByteLink> {
    witness: L,
    sends: Cell<Course>,
    hears: Cell<Course>,
    part: OnceCell<Box<LocalPart>>,
    secret: OnceCell<Box<SecretPart>>,
}

/// Additional state of a link with a pre-shared key.
#[derive(Debug)]
struct SecretPart {
    /// Process owning the link ([`generation`]): another process would use the same nonces for
    /// other bytes.
    generation: u32,
    /// Pre-shared key to be proven.
    key: Arc<SecretKey>,
    /// Both ends encrypt.
    encrypts: bool,
    state: RefCell<SecretState>,
}

/// Data on the carrier connection of a link with a pre-shared key.
#[derive(Debug)]
enum SecretState {
    /// Authentication handshake, followed by data already sent: the first message of the connecting
    /// end.
    Proving(ProofExchange, Vec<u8>),
    /// Unsent rest of the handshake and the first message, followed by plain bytes.
    Leaving(Vec<u8>),
    /// Bytes as they are.
    Plain,
    /// Encrypted records. With `true` the last byte to be sent was not reported as sent, and is
    /// passed again.
    Encrypted(RecordStream, bool),
    /// The other end is not believed.
    Over(Error),
}

/// Identifier of a link or listener within a [`WithLocal`].
#[derive(Clone, Copy, Debug)]
pub struct LocalLinkId<I> {
    witness: I,
    number: u32,
}

impl LocalPart {
    /// Counts traffic on the carrier connection, and schedules the shared-memory upgrade after a
    /// sufficient amount.
    fn talks(&self) {
        self.calls.set(self.calls.get().saturating_add(1));
        let said = self.sent.get() + self.got.get();
        if said < self.enough.0 && self.calls.get() < self.enough.1 {
            return;
        }
        if let Some(offer) = self.offer.take() {
            locked(&self.left.talking).push((self.number, offer));
            self.left.any_talking.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if nothing is to be sent now, to make the engine run a progress iteration. The
    /// upgrade needs one. This happens before the 4th, 8th, 16th ... call, since some links are
    /// never upgraded.
    fn wants_turn(&self) -> bool {
        let calls = self.calls.get().saturating_add(1);
        if calls < 4 || !calls.is_power_of_two() {
            return false;
        }
        self.calls.set(calls);
        self.left.due.store(true, Ordering::Relaxed);
        true
    }
}

impl<L: ByteLink> LocalLink<L> {
    /// Creates a link; `begin` starts this end's part of the authentication handshake with the
    /// job's pre-shared key.
    fn new(witness: L, chosen: &JobSecret, begin: BeginProof) -> Result<Self> {
        let secret = OnceCell::new();
        let course = match chosen.key() {
            None => Course::Witness,
            Some(key) => {
                count_forks();
                let exchange = begin(key, chosen.encrypts()).map_err(|_| Error::IO)?;
                let state = RefCell::new(SecretState::Proving(exchange, Vec::new()));
                let encrypts = chosen.encrypts();
                let (generation, key) = (generation(), key.clone());
                let part = SecretPart { generation, key, encrypts, state };
                let _ = secret.set(Box::new(part));
                Course::Secret
            }
        };
        let course = Cell::new(course);
        Ok(Self { witness, sends: course.clone(), hears: course, part: OnceCell::new(), secret })
    }

    /// Returns the key state of a link with a pre-shared key, in its owning process.
    fn secret(&self) -> Result<&SecretPart> {
        let secret = self.secret.get().ok_or(Error::OTHER)?;
        if secret.generation == generation() { Ok(secret) } else { Err(Error::OTHER) }
    }

    /// Returns true if the link uses exactly this pre-shared key, or no key if there is none.
    fn is_for(&self, secret: &JobSecret) -> bool {
        let part = self.secret.get();
        secret.is_same(part.map(|part| &*part.key), self.encrypts())
    }

    /// Returns true if the carrier connection carries encrypted records.
    fn encrypts(&self) -> bool {
        self.secret.get().is_some_and(|secret| secret.encrypts)
    }

    /// Returns the carrier of bytes outside shared memory.
    fn ground(&self) -> Course {
        if self.encrypts() { Course::Secret } else { Course::Witness }
    }

    /// Returns true if one byte is still to be passed again, although the other end receives it
    /// with the bytes before.
    fn has_half_sent(&self) -> bool {
        let Some(secret) = self.secret.get() else { return false };
        matches!(&*secret.state.borrow(), SecretState::Encrypted(records, owes)
            if *owes || !records.unsent().is_empty())
    }

    /// [`ByteLink::send`] on the witness, in records if it carries those.
    fn send_below(&self, bytes: &[u8]) -> Result<usize> {
        if self.secret.get().is_none() { self.witness.send(bytes) } else { self.send_secret(bytes) }
    }

    fn recv_below(&self, room: &mut [u8]) -> Result<usize> {
        if self.secret.get().is_none() { self.witness.recv(room) } else { self.recv_secret(room) }
    }

    fn send_list_below(&self, list: &mut GatherList<'_>, way: Way) -> Result<usize> {
        if !self.encrypts() {
            return self.witness.send_list(list, way);
        }
        self.send_list_secret(list)
    }

    #[inline(never)]
    fn send_list_secret(&self, list: &GatherList<'_>) -> Result<usize> {
        let secret = self.secret()?;
        if let SecretState::Encrypted(records, owes) = &mut *secret.state.borrow_mut() {
            return self.send_records(records, owes, list.len(), |from, room| {
                list.copy_to(from, room);
            });
        }
        // First bytes of a link.
        let mut room = vec![0; FIRST_MAX.min(list.len())];
        let n = list.copy_to(0, &mut room);
        self.send_secret(&room[..n])
    }

    #[inline(never)]
    fn recv_list_secret(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        list.fill(|room| self.recv_secret(room))
    }

    /// Goes on with the proof: true when it is complete, false when the other end hung up first.
    fn prove(&self, state: &mut SecretState, encrypts: bool) -> Result<bool> {
        while let SecretState::Proving(exchange, first) = state {
            while !exchange.unsent().is_empty() {
                match self.witness.send(exchange.unsent()) {
                    Ok(n) => exchange.sent(n),
                    Err(error) if has_hung_up(error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            if exchange.is_proven() {
                let first = std::mem::take(first);
                let keys = exchange.take_keys();
                *state = match keys {
                    Some(keys) if encrypts => {
                        let mut records = RecordStream::new(keys);
                        if !first.is_empty() {
                            let fill = |room: &mut [u8]| room.copy_from_slice(&first);
                            records.seal(first.len(), fill).map_err(|_| Error::IO)?;
                        }
                        SecretState::Encrypted(records, false)
                    }
                    _ => SecretState::Leaving(first),
                };
                break;
            }
            let mut room = [0; 64];
            let most = exchange.wants().min(room.len());
            let n = match self.witness.recv(&mut room[..most]) {
                Ok(0) => 0,
                Err(error) if has_hung_up(error) => 0,
                heard => heard?,
            };
            if n == 0 {
                if exchange.is_unanswered() {
                    self.log_disbelief(&"it hung up and showed no secret; it may have none");
                }
                return Ok(false);
            }
            if let Err(why) = exchange.hear(&room[..n]) {
                // The other end learns why, if it takes that now.
                let _ = self.witness.send(exchange.unsent());
                self.log_disbelief(&why);
                *state = SecretState::Over(Error::ACCES);
                return Err(Error::ACCES);
            }
        }
        if let SecretState::Leaving(left) = state {
            while !left.is_empty() {
                match self.witness.send(left) {
                    Ok(n) => drop(left.drain(..n)),
                    Err(error) if has_hung_up(error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            *state = SecretState::Plain;
            self.sends.set(Course::Witness);
            self.hears.set(Course::Witness);
        }
        if let SecretState::Over(error) = state { Err(*error) } else { Ok(true) }
    }

    #[cold]
    fn log_disbelief(&self, why: &dyn Display) {
        ofi_provider::log_sparsely!(
            L::provider(),
            WARN,
            EP_CTRL,
            "refusing the connection with {}: {why} (FI_{}_AUTH_KEY_FILE, auth_key)",
            peer_text(peer_of(&self.witness)),
            L::provider().name().to_string_lossy().to_uppercase()
        );
    }

    /// [`ByteLink::send`] on the witness of a link with a secret.
    #[inline(never)]
    fn send_secret(&self, bytes: &[u8]) -> Result<usize> {
        let secret = self.secret()?;
        let mut state = secret.state.borrow_mut();
        if let SecretState::Proving(exchange, first) = &mut *state
            && first.is_empty()
            && !bytes.is_empty()
            && bytes.len() <= FIRST_MAX
            && exchange.takes_first()
        {
            // First message of the connecting end: it waits here for the handshake, because there
            // is nothing else to wait for. The sender of it then waits for readable data.
            while !exchange.unsent().is_empty() {
                let n = self.witness.send(exchange.unsent())?;
                exchange.sent(n);
            }
            first.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        match self.prove(&mut state, secret.encrypts) {
            Ok(true) => {}
            Ok(false) => return Err(Error::from_code(libc::EPIPE)),
            Err(error) => return Err(error),
        }
        match &mut *state {
            SecretState::Plain => self.witness.send(bytes),
            SecretState::Encrypted(records, owes) => {
                self.send_records(records, owes, bytes.len(), |from, room| {
                    room.copy_from_slice(&bytes[from..from + room.len()]);
                })
            }
            _ => Err(Error::AGAIN),
        }
    }

    /// Sends the rest of the records.
    fn flush_records(&self, records: &mut RecordStream) -> Result {
        while !records.unsent().is_empty() {
            let n = self.witness.send(records.unsent())?;
            records.sent(n);
        }
        Ok(())
    }

    /// Returns the unsent bytes of a record sent in part. Some of them may have been reported as
    /// sent.
    fn unsent_of_record(&self) -> usize {
        let Ok(secret) = self.secret() else { return 0 };
        match &*secret.state.borrow() {
            SecretState::Encrypted(records, _) => records.unsent().len(),
            _ => 0,
        }
    }

    /// Sends the rest of a record at the close of a link, if the kernel accepts it now. Engines
    /// wait for this before ([`ByteLink::unacknowledged`]).
    #[cold]
    fn send_last_record(&self) {
        let Ok(secret) = self.secret() else { return };
        let SecretState::Encrypted(records, _) = &mut *secret.state.borrow_mut() else { return };
        let _ = self.flush_records(records);
    }

    /// Sends bytes in encrypted records. A sender stores the bytes not reported as sent, and passes
    /// them again when there is space. So all bytes but the last are reported for a record sent in
    /// part. `copy` copies some of the `len` bytes from an offset on.
    fn send_records(
        &self,
        records: &mut RecordStream,
        owes: &mut bool,
        len: usize,
        copy: impl Fn(usize, &mut [u8]),
    ) -> Result<usize> {
        self.flush_records(records)?;
        let before = usize::from(*owes && len > 0);
        if before == 1 {
            *owes = false;
        }
        let mut done = before;
        while done < len {
            let n = RECORD_MAX.min(len - done);
            records.seal(n, |room| copy(done, room)).map_err(|_| Error::IO)?;
            done += n;
            match self.flush_records(records) {
                Ok(()) => {}
                Err(Error::AGAIN | Error::INTR) => {
                    *owes = true;
                    done -= 1;
                    return if done == 0 { Err(Error::AGAIN) } else { Ok(done) };
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// [`ByteLink::recv`] from the witness of a link with a secret.
    #[inline(never)]
    fn recv_secret(&self, room: &mut [u8]) -> Result<usize> {
        let secret = self.secret()?;
        let mut state = secret.state.borrow_mut();
        match self.prove(&mut state, secret.encrypts) {
            Ok(true) => {}
            Ok(false) => return Ok(0),
            // A link that is being made has nothing to receive.
            Err(Error::NOTCONN) => return Err(Error::AGAIN),
            Err(error) => return Err(error),
        }
        match &mut *state {
            SecretState::Plain => self.witness.recv(room),
            SecretState::Encrypted(records, _) => self.recv_records(records, room),
            _ => Err(Error::AGAIN),
        }
    }

    fn recv_records(&self, records: &mut RecordStream, room: &mut [u8]) -> Result<usize> {
        // Rest of the first message; the engine passes other bytes again.
        let _ = self.flush_records(records);
        let mut done = records.take(room);
        while done < room.len() {
            let wanted = records.room(room.len() - done).len();
            let n = match self.witness.recv(records.room(room.len() - done)) {
                // Received data is reported first; the end or the error is returned again later.
                Ok(0) | Err(_) if done > 0 => break,
                Ok(0) if records.is_within() => return Err(Error::CONNRESET),
                came => came?,
            };
            if n == 0 {
                return Ok(0);
            }
            match records.came(n, &mut room[done..]) {
                Ok(opened) => done += opened,
                Err(_) => {
                    self.log_disbelief(&"what it sent was changed on the way");
                    return Err(Error::IO);
                }
            }
            done += records.take(&mut room[done..]);
            // A call that brought less than it might have found all there is.
            if done > 0 && n < wanted {
                break;
            }
        }
        if records.is_at_end()
            && let Ok(more @ 1..) = self.witness.recv(records.room(0))
            && records.came(more, &mut []).is_err()
        {
            return Err(Error::IO);
        }
        Ok(done)
    }

    /// Returns the shared-memory state of a link about to move, or already moved, to shared memory.
    #[inline(always)]
    fn part(&self) -> Result<&LocalPart> {
        self.part.get().map(|part| &**part).ok_or(Error::OTHER)
    }

    /// Returns the shared memory of an upgraded link.
    #[inline(always)]
    fn pipe(&self) -> Result<(&LocalPart, &LocalPipe)> {
        let part = self.part()?;
        // A forked child has not got the memory.
        if part.generation != generation() {
            return Err(Error::OTHER);
        }
        Ok((part, part.pipe.get().ok_or(Error::OTHER)?))
    }

    /// Does not read the other end's memory from here on ([`LocalPipe::stop_reading`]).
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn stop_reading(&self) {
        if let Ok((_, pipe)) = self.pipe() {
            pipe.stop_reading();
        }
    }

    /// Goes on with the meeting, if there is news of it.
    fn go_on(&self, part: &LocalPart) {
        if part.news.has_news.load(Ordering::Relaxed) {
            self.hear_news(part);
        }
    }

    #[cold]
    fn hear_news(&self, part: &LocalPart) {
        part.news.has_news.store(false, Ordering::Relaxed);
        if let Some(pipe) = locked(&part.news.made).take() {
            // One is made for a link.
            let _ = part.pipe.set(*pipe);
        }
        let failed = match locked(&part.news.news).take() {
            Some(MeetingNews::Came(pipe)) => {
                let reads = pipe.can_read();
                part.met.set(part.pipe.set(*pipe).is_ok());
                return self.log_reads(reads);
            }
            Some(MeetingNews::Answered(peer)) => {
                let reads = peer.memory.is_some();
                if let Ok((_, pipe)) = self.pipe() {
                    peer.join(pipe);
                    part.met.set(true);
                }
                return self.log_reads(reads);
            }
            Some(MeetingNews::Failed(error)) => error,
            None => return,
        };
        self.sends.set(self.ground());
        // After a failure to understand the response, this end may still receive data through
        // shared memory.
        if failed == Error::CONNRESET || part.pipe.get().is_none() {
            self.hears_witness(part);
        }
        log_not_in_memory(&self.witness, &failed);
    }

    /// Nothing comes through memory, from here on.
    fn hears_witness(&self, part: &LocalPart) {
        self.hears.set(self.ground());
        part.news.may_hear.store(false, Ordering::Relaxed);
    }

    /// Logs if this process may read large messages in the other's memory.
    fn log_reads(&self, reads: bool) {
        ofi_provider::log!(
            L::provider(),
            INFO,
            EP_CTRL,
            "large messages of {} {}",
            peer_text(peer_of(&self.witness)),
            if reads { "are read where they are" } else { "are copied, its memory is not read" }
        );
    }

    #[cold]
    fn log_course(&self, whither: &str) {
        ofi_provider::log!(
            L::provider(),
            INFO,
            EP_CTRL,
            "{} is on this host: messages {whither} it go through memory from now on",
            peer_text(peer_of(&self.witness))
        );
    }

    /// Switches sending to shared memory, if possible, without sending a byte. Returns true if
    /// sending goes through shared memory from here on.
    fn moves_out(&self, part: &LocalPart) -> bool {
        self.go_on(part);
        let Ok((_, pipe)) = self.pipe() else { return false };
        if !part.met.get() || self.has_half_sent() {
            return false;
        }
        let at = part.sent.get();
        #[cfg(any(test, feature = "sim"))]
        let at = at ^ u64::from(is_planted(PlantedFault::WrongPlace));
        pipe.switch_at(at);
        self.sends.set(Course::Memory);
        part.news.sends.store(true, Ordering::Relaxed);
        self.log_course("to");
        true
    }

    /// Sends on a link not carried by the carrier connection alone. Separate from
    /// [`ByteLink::send`], so sends on the carrier connection have all registers available.
    #[inline(never)]
    fn send_beside(&self, bytes: &[u8]) -> isize {
        if self.sends.get() == Course::Memory
            && let Ok((_, pipe)) = self.pipe()
            && pipe.send_short(bytes)
        {
            return bytes.len() as isize;
        }
        self.send_beside_closely(bytes)
    }

    #[inline(never)]
    fn send_beside_closely(&self, bytes: &[u8]) -> isize {
        as_word(match self.sends.get() {
            Course::Secret => self.send_secret(bytes),
            Course::Memory => self.send_memory(bytes),
            _ => self.send_meeting(bytes),
        })
    }

    #[cold]
    fn send_meeting(&self, bytes: &[u8]) -> Result<usize> {
        let part = self.part()?;
        if self.moves_out(part) {
            return self.send_memory(bytes);
        }
        if part.wants_turn() {
            return Err(Error::AGAIN);
        }
        let sent = self.send_below(bytes)?;
        part.sent.set(part.sent.get() + sent as u64);
        part.talks();
        Ok(sent)
    }

    fn send_memory(&self, bytes: &[u8]) -> Result<usize> {
        let (part, pipe) = self.pipe()?;
        let result = pipe.send(bytes);
        if matches!(result, Ok(sent) if sent == bytes.len()) {
            return result;
        }
        self.sent_short(part, result)
    }

    /// The ring took not all bytes: the rest waits, unless the other end is gone.
    #[cold]
    fn sent_short(&self, part: &LocalPart, result: Result<usize>) -> Result<usize> {
        let told = part.news.witness.load(Ordering::Relaxed) || part.end.get().is_some();
        if result == Err(Error::AGAIN) && told && self.witness.has_ended() {
            return Err(Error::from_code(libc::EPIPE));
        }
        result
    }

    /// Handles an event of the carrier connection: checks for its end and for more data.
    #[cold]
    fn look_at_witness(&self, part: &LocalPart) {
        if part.end.get().is_some() {
            return;
        }
        part.news.witness.store(false, Ordering::Relaxed);
        let mut byte = [0];
        let end = match self.recv_below(&mut byte) {
            Err(Error::AGAIN | Error::INTR) => return,
            Ok(1) => WitnessEnd::Words(byte[0]),
            over => WitnessEnd::Over(over),
        };
        part.end.set(Some(end));
    }

    #[inline(always)]
    fn recv_memory(&self, room: &mut [u8]) -> Result<usize> {
        let (part, pipe) = self.pipe()?;
        match pipe.recv(room) {
            Err(Error::AGAIN) => self.found_nothing(part, pipe, room),
            result => result,
        }
    }

    /// Nothing is in the ring.
    #[inline(always)]
    fn found_nothing(&self, part: &LocalPart, pipe: &LocalPipe, room: &mut [u8]) -> Result<usize> {
        part.news.drained.store(true, Ordering::Relaxed);
        // An end that sends nothing hears here of whom to tell that it has made room.
        self.go_on(part);
        if part.news.witness.load(Ordering::Relaxed) || part.end.get().is_some() {
            return self.read_on(part, pipe, room);
        }
        Err(Error::AGAIN)
    }

    /// Reads the data following the empty ring: the link's end, or trailing data on the socket.
    #[cold]
    fn read_on(&self, part: &LocalPart, pipe: &LocalPipe, room: &mut [u8]) -> Result<usize> {
        self.look_at_witness(part);
        if part.end.get().is_none() && part.behind.borrow().is_empty() {
            return Err(Error::AGAIN);
        }
        // Ring data written before the end, or before the trailing data, is visible by now.
        match pipe.recv(room) {
            Err(Error::AGAIN) => {}
            result => return result,
        }
        let behind = self.take_behind(part, room);
        let end = part.end.get();
        if end.is_none() {
            // The words that came early go on on the witness, if the other end says more.
            if part.behind.borrow().is_empty() {
                self.hears_witness(part);
            } else {
                part.news.witness.store(true, Ordering::Relaxed);
            }
        }
        match end {
            // At the link's end, what was taken for words while the ends were about to meet is the last.
            _ if behind > 0 => Ok(behind),
            Some(WitnessEnd::Over(result)) => result,
            Some(WitnessEnd::Words(byte)) if !room.is_empty() => {
                self.hears_witness(part);
                room[0] = byte;
                Ok(1)
            }
            _ => Err(Error::AGAIN),
        }
    }

    /// Takes bytes received too early on the carrier connection.
    fn take_behind(&self, part: &LocalPart, room: &mut [u8]) -> usize {
        let mut behind = part.behind.borrow_mut();
        let n = room.len().min(behind.len());
        room.iter_mut().zip(behind.drain(..n)).for_each(|(to, byte)| *to = byte);
        n
    }

    /// Receives on a link not carried by the carrier connection alone, the counterpart of
    /// [`LocalLink::send_beside`].
    #[inline(never)]
    fn recv_beside(&self, room: &mut [u8]) -> isize {
        if self.hears.get() == Course::Memory {
            return as_word(self.recv_memory(room));
        }
        self.recv_beside_closely(room)
    }

    #[cold]
    fn recv_beside_closely(&self, room: &mut [u8]) -> isize {
        as_word(match self.hears.get() {
            Course::Secret => self.recv_secret(room),
            _ => self.recv_meeting(room),
        })
    }

    #[cold]
    fn recv_meeting(&self, room: &mut [u8]) -> Result<usize> {
        let part = self.part()?;
        self.go_on(part);
        let before = part.got.get();
        let moved = || self.pipe().ok().and_then(|(_, pipe)| pipe.peer_switched_at());
        if self.moves_in(part, moved())? {
            return self.recv_memory(room);
        }
        let came = self.recv_below(room);
        // The other end may have moved, filled the ring and said its last words in the meantime.
        let Some(at) = moved() else {
            // A peer switching from now on rings the doorbell.
            let n = came.inspect_err(|_| part.news.drained.store(true, Ordering::Relaxed))?;
            part.got.set(before + n as u64);
            part.talks();
            return Ok(n);
        };
        let n = match came {
            Ok(n) if n > 0 || room.is_empty() => n,
            Err(Error::AGAIN | Error::INTR) => {
                // A peer already switched, with earlier data still in flight, has rung the
                // doorbell. The link is polled until the data has arrived.
                part.news.drained.store(false, Ordering::Relaxed);
                return came;
            }
            // Or it has ended since: what it wrote to the ring comes first.
            _ => return self.hear_last(part, at, came, room),
        };
        let due = at.checked_sub(before).ok_or(Error::PROTO)?;
        let due = usize::try_from(due).unwrap_or(usize::MAX).min(n);
        part.got.set(before + due as u64);
        if n > due {
            part.behind.borrow_mut().extend(&room[due..n]);
            part.news.witness.store(true, Ordering::Relaxed);
        }
        if due == 0 && n > 0 && self.moves_in(part, Some(at))? {
            return self.recv_memory(room);
        }
        Ok(due)
    }

    /// Reads the data written to the ring by the other end, after its switch at this byte and
    /// before the end of the carrier connection.
    fn hear_last(
        &self,
        part: &LocalPart,
        at: u64,
        end: Result<usize>,
        room: &mut [u8],
    ) -> Result<usize> {
        if !self.moves_in(part, Some(at))? {
            return end;
        }
        part.end.set(Some(WitnessEnd::Over(end)));
        self.recv_memory(room)
    }

    /// Returns true if receiving goes through shared memory from here on: the other end has
    /// switched its sending there, and all data sent before has arrived.
    fn moves_in(&self, part: &LocalPart, moved: Option<u64>) -> Result<bool> {
        let Some(at) = moved else { return Ok(false) };
        if at < part.got.get() {
            return Err(Error::PROTO);
        }
        if at > part.got.get() {
            return Ok(false);
        }
        self.hears.set(Course::Memory);
        self.log_course("from");
        Ok(true)
    }

    /// Takes the pipe's next notice of uncopied sends, in the numbers of the link.
    fn next_fetched(&self, part: &LocalPart) -> Option<ZerocopyDone> {
        let copied = part.uncopied.get();
        if !part.zerocopy.get() && part.noticed.get() != copied {
            let low = part.noticed.replace(copied);
            return Some(ZerocopyDone { low, high: copied.wrapping_sub(1), copied: true });
        }
        let (_, pipe) = self.pipe().ok()?;
        let done = pipe.uncopied_done().ok()?;
        let before = part.uncopied.get();
        Some(ZerocopyDone {
            low: done.low.wrapping_add(before),
            high: done.high.wrapping_add(before),
            copied: !pipe.can_lend(),
        })
    }
}

impl<L: ByteLink> Drop for LocalLink<L> {
    fn drop(&mut self) {
        self.send_last_record();
        if let Some(part) = self.part.get() {
            // Nothing waits for this end any more, and the net drops it.
            locked(&part.news.call).take();
            locked(&part.news.news).take();
            locked(&part.news.made).take();
            locked(&part.left.numbers).push(part.number);
            part.left.any.store(true, Ordering::Relaxed);
        }
    }
}

impl<L: ByteLink> ByteLink for LocalLink<L> {
    type Id = LocalLinkId<L::Id>;

    fn provider() -> &'static Provider {
        L::provider()
    }

    #[inline(always)]
    fn settings() -> &'static StreamSettings {
        L::settings()
    }

    #[inline(always)]
    fn id(&self) -> LocalLinkId<L::Id> {
        let number = self.part.get().map_or(NONE, |part| part.number);
        LocalLinkId { witness: self.witness.id(), number }
    }

    #[inline(always)]
    fn recv(&self, room: &mut [u8]) -> Result<usize> {
        if self.hears.get() == Course::Witness {
            return self.witness.recv(room);
        }
        from_word(self.recv_beside(room))
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        if self.sends.get() == Course::Witness {
            return self.witness.send(bytes);
        }
        from_word(self.send_beside(bytes))
    }

    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        if self.hears.get() == Course::Witness {
            return self.witness.recv_list(list);
        }
        match self.hears.get() {
            Course::Witness | Course::Secret => self.recv_list_secret(list),
            Course::Memory => {
                let (part, pipe) = self.pipe()?;
                match pipe.recv_list(list) {
                    Err(Error::AGAIN) => {
                        let mut room = [0; 512];
                        let most = room.len().min(list.len());
                        let n = self.found_nothing(part, pipe, &mut room[..most])?;
                        Ok(list.copy_from(0, &room[..n]))
                    }
                    result => result,
                }
            }
            Course::Meeting => {
                let Some(room) = list.room_from(0) else { return Ok(0) };
                let most = room.len().min(MEETING_PIECE);
                self.recv_meeting(&mut room[..most])
            }
        }
    }

    fn send_list(&self, list: &mut GatherList<'_>, way: Way) -> Result<usize> {
        if self.sends.get() == Course::Witness {
            // Data to be exposed, at the link's end.
            let lends = self.part.get().is_none_or(|part| part.zerocopy.get());
            return self.witness.send_list(list, if lends { way } else { Way::Copied });
        }
        if self.sends.get() == Course::Secret {
            return self.send_list_below(list, Way::Copied);
        }
        if self.sends.get() == Course::Meeting {
            let part = self.part()?;
            if !self.moves_out(part) {
                let uncopied = way.is_uncopied();
                let way = if uncopied && !part.zerocopy.get() { Way::Copied } else { way };
                let sent = self.send_list_below(list, way)?;
                part.sent.set(part.sent.get() + sent as u64);
                part.talks();
                if uncopied && sent > 0 {
                    part.uncopied.set(part.uncopied.get().wrapping_add(1));
                }
                return Ok(sent);
            }
        }
        let (part, pipe) = self.pipe()?;
        let result = pipe.send_list(list, way);
        if matches!(result, Ok(sent) if sent == list.len()) {
            return result;
        }
        self.sent_short(part, result)
    }

    fn take_error(&self) -> Result {
        self.witness.take_error()
    }

    fn local_addr(&self) -> Result<Addr> {
        self.witness.local_addr()
    }

    fn peer_addr(&self) -> Result<Addr> {
        self.witness.peer_addr()
    }

    fn is_on_this_host(&self) -> bool {
        self.witness.is_on_this_host()
    }

    fn fd(&self) -> Result<RawFd> {
        self.witness.fd()
    }

    fn waits(&self) {
        self.witness.waits();
    }

    fn made(&self) {
        self.witness.made();
        if self.part.get().is_some() {
            self.sends.set(Course::Meeting);
            self.hears.set(Course::Meeting);
        }
    }

    #[inline(always)]
    fn hears_locally(&self) -> bool {
        self.hears.get() == Course::Memory
    }

    fn secrecy(&self) -> [bool; 2] {
        [self.secret.get().is_some(), self.encrypts()]
    }

    #[inline(always)]
    fn sends_locally(&self) -> bool {
        self.sends.get() == Course::Memory
    }

    #[inline(always)]
    fn send_plain(&self, id: u8, data: Option<u64>, tag: Option<u64>, body: OnePiece<'_>) -> bool {
        let Ok((_, pipe)) = self.pipe() else { return false };
        let (head, _) = StreamHeader::plain_words(id, tag.is_some(), data.is_some(), body.len());
        pipe.send_joined(JoinedWords::new(head, [data, tag]), body)
    }

    #[inline(always)]
    fn take_short(&self, take: impl FnMut(ShortBytes<'_>) -> bool) -> ShortCells {
        if !self.hears_locally() {
            return ShortCells::Else;
        }
        let Ok((part, pipe)) = self.pipe() else { return ShortCells::Else };
        let taken = pipe.take_short(take);
        if taken == ShortCells::None {
            part.news.drained.store(true, Ordering::Relaxed);
            let told = &part.news;
            if told.has_news.load(Ordering::Relaxed)
                || told.witness.load(Ordering::Relaxed)
                || part.end.get().is_some()
            {
                return ShortCells::Else;
            }
        }
        taken
    }

    fn take_whole(&self, take: impl FnMut([u64; 4], ForeignBytes<'_>) -> bool) -> ShortCells {
        match self.pipe() {
            Ok((_, pipe)) if self.hears_locally() => pipe.take_whole(take),
            _ => ShortCells::Else,
        }
    }

    fn set_polled(&self, polled: bool) {
        if let Ok((_, pipe)) = self.pipe() {
            pipe.set_polled(polled);
            fence(Ordering::SeqCst);
        }
    }

    fn has_come(&self, hears: bool, unsent: bool) -> bool {
        let Ok((part, pipe)) = self.pipe() else { return false };
        // Comes first: it sees to it that nothing was missed.
        let data = pipe.has_data();
        if pipe.is_lending() && part.fetched.get().is_none() {
            part.fetched.set(self.next_fetched(part));
        }
        part.fetched.get().is_some()
            || (hears && self.hears_locally() && data)
            || (unsent && self.sends_locally() && pipe.has_room())
    }

    fn last_words(&self) {
        self.sends.set(self.ground());
    }

    fn unacknowledged(&self) -> usize {
        self.witness.unacknowledged() + self.unsent_of_record()
    }

    fn hides_end(&self) -> bool {
        // Data sent before the other end's switch may exceed the capacity of the carrier
        // connection. This end sends nothing there, so the other end's system does not report the
        // exit of the process.
        self.sends_locally() && !self.hears_locally()
    }

    fn has_ended(&self) -> bool {
        self.witness.has_ended()
            || (self.hides_end() && self.pipe().is_ok_and(|(_, pipe)| pipe.peer_is_gone()))
    }

    fn probe(&self) {
        self.witness.probe();
    }

    fn shutdown(&self) {
        self.witness.shutdown();
    }

    fn end_sending(&self) {
        self.witness.end_sending();
    }

    fn reset_when_closed(&self) {
        self.witness.reset_when_closed();
        if let Ok((_, pipe)) = self.pipe() {
            pipe.withdraw();
        }
    }

    fn set_zerocopy(&self) -> Result {
        if self.encrypts() {
            return Err(Error::NOSYS);
        }
        self.witness.set_zerocopy()?;
        if let Some(part) = self.part.get() {
            part.zerocopy.set(true);
        }
        Ok(())
    }

    fn lends_from(&self) -> Option<usize> {
        if !self.sends_locally() {
            return None;
        }
        let (_, pipe) = self.pipe().ok()?;
        pipe.can_lend().then(|| L::settings().local.min)
    }

    fn keep_lent(&self, key: u64, most: usize) -> Result<usize> {
        let Ok((_, pipe)) = self.pipe() else { return Ok(0) };
        pipe.keep_lent(key, most)
    }

    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        let Some(part) = self.part.get() else { return self.witness.zerocopy_done() };
        if let Some(done) = part.fetched.take().or_else(|| self.next_fetched(part)) {
            return Ok(done);
        }
        self.witness.zerocopy_done()
    }
}

/// Listener of links with both ends possibly on one host.
#[derive(Debug)]
pub struct LocalListener<S> {
    witness: S,
    secret: JobSecret,
}

impl<S: LinkListener> LinkListener for LocalListener<S> {
    type Link = LocalLink<S::Link>;

    fn id(&self) -> LocalLinkId<<S::Link as ByteLink>::Id> {
        LocalLinkId { witness: self.witness.id(), number: NONE }
    }

    fn listen(&self, backlog: i32) -> Result {
        self.witness.listen(backlog)
    }

    fn accept(&self) -> Result<(Self::Link, Addr)> {
        let (witness, from) = self.witness.accept()?;
        Ok((LocalLink::new(witness, &self.secret, ProofExchange::called)?, from))
    }
}

/// Events of a carrier connection watched by the poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WitnessWatch {
    /// As any link.
    For(Interest),
    /// Only the end, regardless of unread data before it.
    End,
}

impl WitnessWatch {
    fn add<I>(self, watcher: &impl WitnessPoller<I>, witness: I, token: u64) -> Result
    where
        I: Copy,
    {
        match self {
            Self::For(interest) => watcher.add(witness, token, interest),
            Self::End => {
                watcher.add(witness, token, Interest::NONE)?;
                self.modify(watcher, witness, token)
            }
        }
    }

    fn modify<I>(self, watcher: &impl WitnessPoller<I>, witness: I, token: u64) -> Result {
        match self {
            Self::For(interest) => watcher.modify(witness, token, interest),
            Self::End => watcher.modify_to_end(witness, token),
        }
    }
}

/// State of a link in its net, if both ends are possibly on one host.
#[derive(Debug)]
struct LocalEntry<I> {
    /// Identifier of the carrier connection in the poller, valid as long as the link.
    witness: I,
    news: Arc<LinkNews>,
    token: u64,
    /// The engine watches the link, and for this.
    watched: bool,
    interest: Interest,
    /// Events of the carrier connection watched by the poller, if any.
    shown: Option<WitnessWatch>,
    /// The other end rang the doorbell and this is not reported yet; or the memory has not been
    /// found empty since.
    fresh: bool,
    filled: bool,
    /// The link is in [`HostPeers::signs`].
    listed: bool,
}

impl<I> LocalEntry<I> {
    /// Returns the events of the carrier connection to be watched. A link sending through shared
    /// memory, and blocked on space there or on reads of this process's memory, has to be notified
    /// of the end.
    fn wanted(&self) -> WitnessWatch {
        let read = self.interest.read;
        match self.news.sends.load(Ordering::Relaxed) {
            false => WitnessWatch::For(self.interest),
            true if !read => WitnessWatch::End,
            true => WitnessWatch::For(Interest { read, write: false }),
        }
    }

    /// Marks the shared memory as possibly filled, if the link polls it. An event without its own
    /// signal is reported in each iteration until it was polled.
    fn note_filled(&mut self) -> bool {
        let may_hear = self.news.may_hear.load(Ordering::Relaxed);
        if may_hear {
            self.filled = true;
            self.news.drained.store(false, Ordering::Relaxed);
        }
        may_hear
    }

    /// Records a doorbell of this link's bit, shared with other links. Returns false if it cannot
    /// belong to this link.
    fn gets_sign(&mut self) -> bool {
        let is_its_own = self.note_filled() || self.news.sends.load(Ordering::Relaxed);
        self.fresh |= is_its_own;
        is_its_own
    }

    /// Returns true if the engine is to be notified of the other end's doorbell.
    fn is_told(&self) -> bool {
        (self.fresh && self.watched) || (self.filled && self.interest.read)
    }
}

/// State of a net with shared-memory links on this host, established or attempted.
#[derive(Debug)]
struct HostPeers<I> {
    host: RefCell<MeetingHost>,
    links: RefCell<Slab<LocalEntry<I>>>,
    by_token: RefCell<HashMap<u64, u32>>,
    /// Links with a rung doorbell.
    signs: RefCell<Vec<u32>>,
    left: Arc<LeftLinks>,
    /// Process owning this state ([`generation`]).
    generation: u32,
    /// Someone may sleep.
    armed: Cell<bool>,
    /// Since when callers at the meeting place have not been let in.
    deaf: Cell<Option<Instant>>,
    /// Traffic on a link required before the upgrade.
    enough: (u64, u32),
}

/// Net with links upgradable to shared memory.
#[derive(Debug)]
pub struct WithLocal<N: Net> {
    net: N,
    neighbours: OnceCell<Box<HostPeers<WitnessId<N>>>>,
    secret: JobSecret,
}

/// Makes an end's part in the proof of a secret.
type BeginProof = fn(&SecretKey, bool) -> core::result::Result<ProofExchange, Disbelief>;

/// Identifier of carrier connections in a net's poller.
type WitnessId<N> = <<N as Net>::Link as ByteLink>::Id;

impl<I: Copy> HostPeers<I> {
    fn new(settings: &StreamSettings, watcher: &impl WitnessPoller<I>) -> Result<Self> {
        count_forks();
        let local = &settings.local;
        let host =
            MeetingHost::new(RingMemory { ring: local.ring, most: local.memory }, local.reads)?;
        watcher.add_bell(host.door().bell_fd(), BELL)?;
        Ok(Self {
            host: RefCell::new(host),
            links: RefCell::default(),
            by_token: RefCell::default(),
            signs: RefCell::default(),
            left: Arc::default(),
            generation: generation(),
            // A thread may sleep since before there was anybody to be told of.
            armed: Cell::new(true),
            deaf: Cell::new(None),
            enough: local.talk,
        })
    }

    /// Adds a link watched by the engine for reading, with this token.
    fn add(&self, witness: I, token: u64) -> (u32, Arc<LinkNews>) {
        self.forget_who_left();
        let news: Arc<LinkNews> = Arc::default();
        let number = self.links.borrow_mut().insert(LocalEntry {
            witness,
            news: news.clone(),
            token,
            watched: true,
            interest: Interest::READ,
            shown: Some(WitnessWatch::For(Interest::READ)),
            fresh: false,
            filled: false,
            listed: false,
        });
        self.by_token.borrow_mut().insert(token, number);
        (number, news)
    }

    fn part(&self, number: u32, news: Arc<LinkNews>, offer: Option<LocalOffer>) -> Box<LocalPart> {
        Box::new(LocalPart {
            number,
            generation: generation(),
            news,
            left: self.left.clone(),
            pipe: OnceCell::new(),
            offer: Cell::new(offer),
            enough: self.enough,
            calls: Cell::new(0),
            met: Cell::new(false),
            sent: Cell::new(0),
            got: Cell::new(0),
            behind: RefCell::default(),
            end: Cell::new(None),
            uncopied: Cell::new(0),
            zerocopy: Cell::new(false),
            noticed: Cell::new(0),
            fetched: Cell::new(None),
        })
    }

    fn forget_who_left(&self) {
        if self.left.any.swap(false, Ordering::Relaxed) {
            for number in std::mem::take(&mut *locked(&self.left.numbers)) {
                self.forget(number);
            }
        }
    }

    fn forget(&self, number: u32) {
        self.host.borrow_mut().withdraw(number);
        locked(&self.left.talking).retain(|(talking, _)| *talking != number);
        let Some(entry) = self.links.borrow_mut().remove(number) else { return };
        let mut by_token = self.by_token.borrow_mut();
        if by_token.get(&entry.token) == Some(&number) {
            by_token.remove(&entry.token);
        }
        self.signs.borrow_mut().retain(|listed| *listed != number);
    }

    fn offer(
        &self,
        watcher: &impl WitnessPoller<I>,
        witness: I,
        token: u64,
    ) -> Result<(LocalOffer, Box<LocalPart>)> {
        self.open(watcher)?;
        let (number, news) = self.add(witness, token);
        let offer = self.host.borrow_mut().offer(number).inspect_err(|_| self.forget(number))?;
        Ok((offer, self.part(number, news, None)))
    }

    /// Opens the listener for shared-memory upgrades of this engine.
    fn open(&self, watcher: &impl WitnessPoller<I>) -> Result {
        let mut host = self.host.borrow_mut();
        match host.open()? {
            // Requests would wait forever without a watcher.
            Some(place) => watcher.add_fd(place, PLACE).inspect_err(|_| host.shut()),
            None => Ok(()),
        }
    }

    /// Adds a link with an upgrade offer of the other end. The upgrade follows after sufficient
    /// traffic.
    fn meet(&self, witness: I, token: u64, offer: &LocalOffer) -> Box<LocalPart> {
        let (number, news) = self.add(witness, token);
        self.part(number, news, Some(*offer))
    }

    /// Requests the upgrade of links with sufficient traffic.
    #[inline(never)]
    fn make_calls(&self, watcher: &impl WitnessPoller<I>, events: &mut Vec<PollEvent>) {
        if !self.left.any_talking.swap(false, Ordering::Relaxed) {
            return;
        }
        for (number, offer) in std::mem::take(&mut *locked(&self.left.talking)) {
            let Some(news) = self.links.borrow().get(number).map(|entry| entry.news.clone()) else {
                continue;
            };
            let watch = |fd| watcher.add_fd(fd, CALL | u64::from(number));
            let called = on_own_stack(|| {
                let (call, pipe) = self.host.borrow().call(&offer, number, watch)?;
                Ok((call, Box::new(pipe)))
            });
            match called {
                Ok((call, pipe)) => {
                    news.may_hear.store(true, Ordering::Relaxed);
                    *locked(&news.call) = Some(call);
                    *locked(&news.made) = Some(pipe);
                    news.has_news.store(true, Ordering::Relaxed);
                }
                Err(error) => self.push_on(number, MeetingNews::Failed(error), events),
            }
        }
    }

    /// Adds the events of upgraded or soon upgraded links to `events`. Those from `start` on are
    /// the poller's.
    fn tell(
        &self,
        watcher: &impl WitnessPoller<I>,
        clock: &impl LinkClock,
        events: &mut Vec<PollEvent>,
        start: usize,
    ) {
        self.left.due.store(false, Ordering::Relaxed);
        self.forget_who_left();
        let (mut at, mut callers) = (start, false);
        let mut answers = Vec::new();
        while let Some(event) = events.get(at) {
            match event.token & !u64::from(u32::MAX) {
                BELL => self.host.borrow().door().wake(),
                PLACE => callers = true,
                CALL => answers.push(event.token as u32),
                _ => {
                    if self.is_for_engine(watcher, event) {
                        at += 1;
                    } else {
                        events.swap_remove(at);
                    }
                    continue;
                }
            }
            events.swap_remove(at);
        }
        for number in answers {
            self.hear_answer(watcher, number, events);
        }
        self.make_calls(watcher, events);
        if callers || self.deaf.get().is_some() {
            self.let_in(watcher, clock.now(), events);
        }
        self.take_signs();
        if self.armed.get() {
            // Another thread may sleep: it is woken by what comes from now on.
            for _ in 0..MAX_LOOKS {
                if self.host.borrow().door().fall_asleep() {
                    break;
                }
                self.take_signs();
            }
        }
        let mut links = self.links.borrow_mut();
        self.signs.borrow_mut().retain(|number| {
            let Some(entry) = links.get_mut(*number) else { return false };
            entry.filled &= !entry.news.drained.load(Ordering::Relaxed);
            if entry.is_told() {
                events.push(PollEvent { token: entry.token, readable: true, writable: true });
                entry.fresh = false;
            }
            entry.listed = entry.fresh || entry.filled;
            entry.listed
        });
    }

    /// Returns true if an event of a link's carrier connection is to be passed to the engine.
    fn is_for_engine(&self, watcher: &impl WitnessPoller<I>, event: &PollEvent) -> bool {
        let Some(number) = self.by_token.borrow().get(&event.token).copied() else { return true };
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return true };
        entry.news.witness.store(true, Ordering::Relaxed);
        // The link may have moved to memory since it was watched.
        let wanted = entry.wanted();
        if let Some(shown) = entry.shown
            && shown != wanted
        {
            entry.shown = Some(wanted);
            let _ = wanted.modify(watcher, entry.witness, entry.token);
        }
        event.readable || matches!(wanted, WitnessWatch::For(Interest { write: true, .. }))
    }

    /// Returns true if all doorbells have been reported to the engine.
    fn is_quiet(&self) -> bool {
        let links = self.links.borrow();
        let is_told = |number: &u32| {
            links.get(*number).is_some_and(|entry| {
                entry.is_told() && (entry.fresh || !entry.news.drained.load(Ordering::Relaxed))
            })
        };
        !self.signs.borrow().iter().any(is_told)
    }

    /// Collects the links with a rung doorbell.
    fn take_signs(&self) {
        let mut rung = Vec::new();
        self.host.borrow().door().ready(&mut rung);
        if rung.is_empty() {
            return;
        }
        let (mut links, mut signs) = (self.links.borrow_mut(), self.signs.borrow_mut());
        let slots = links.slots() as u32;
        for bit in rung {
            #[cfg(any(test, feature = "sim"))]
            if is_planted(PlantedFault::LostSign) {
                continue;
            }
            for number in (bit..slots).step_by(DOOR_BITS as usize) {
                let Some(entry) = links.get_mut(number) else { continue };
                if !entry.gets_sign() {
                    continue;
                }
                if !std::mem::replace(&mut entry.listed, true) {
                    signs.push(number);
                }
            }
        }
    }

    /// The engine is to look at this link: there is news of its meeting.
    fn push_on(&self, number: u32, news: MeetingNews, events: &mut Vec<PollEvent>) {
        if let Some(entry) = self.links.borrow().get(number) {
            entry.news.tell(news);
            events.push(PollEvent { token: entry.token, readable: true, writable: false });
        }
    }

    #[inline(never)]
    fn hear_answer(
        &self,
        watcher: &impl WitnessPoller<I>,
        number: u32,
        events: &mut Vec<PollEvent>,
    ) {
        let Some(news) = self.links.borrow().get(number).map(|entry| entry.news.clone()) else {
            return;
        };
        let mut call = locked(&news.call);
        let Some(called) = &mut *call else { return };
        let heard = match on_own_stack(|| self.host.borrow_mut().hear(called)) {
            Ok(peer) => MeetingNews::Answered(peer),
            Err(Error::AGAIN | Error::INTR) => return,
            Err(error) => MeetingNews::Failed(error),
        };
        watcher.remove_fd(called.fd());
        *call = None;
        drop(call);
        self.push_on(number, heard, events);
    }

    #[inline(never)]
    fn let_in(&self, watcher: &impl WitnessPoller<I>, now: Instant, events: &mut Vec<PollEvent>) {
        if self.deaf.get().is_some_and(|since| now.duration_since(since) < PLACE_DELAY) {
            return;
        }
        let mut host = self.host.borrow_mut();
        let mut news = Vec::new();
        let failed = RefCell::new(Vec::new());
        let watch = |guest| {
            // One that cannot be watched is heard when the next comes.
            let _ = watcher.add_fd(guest, PLACE);
        };
        let met = |number, pipe| {
            if let Some(entry) = self.links.borrow().get(number) {
                entry.news.may_hear.store(true, Ordering::Relaxed);
            }
            news.push((number, MeetingNews::Came(Box::new(pipe))));
        };
        let lost = |number, error| failed.borrow_mut().push((number, MeetingNews::Failed(error)));
        let result = on_own_stack(|| host.receive(watch, met, lost));
        let place = host.place();
        drop(host);
        for (number, one) in news.into_iter().chain(failed.into_inner()) {
            self.push_on(number, one, events);
        }
        let Some(place) = place else { return };
        match (result, self.deaf.get()) {
            (Ok(()), Some(_)) => {
                self.deaf.set(None);
                let _ = watcher.add_fd(place, PLACE);
            }
            (Err(_), before) => {
                // The poller would tell of the callers again and again.
                if before.is_none() {
                    watcher.remove_fd(place);
                }
                self.deaf.set(Some(now));
            }
            (Ok(()), None) => {}
        }
    }
}

impl<N> WithLocal<N>
where
    N: Net<Poller: WitnessPoller<WitnessId<N>>>,
{
    /// A net on another one.
    pub fn new(net: N) -> Self {
        Self::with_secret(net, N::Link::settings().secret.clone())
    }

    /// Creates a net over another one, with links restricted to peers with this pre-shared key.
    pub fn with_secret(net: N, secret: JobSecret) -> Self {
        Self { net, neighbours: OnceCell::new(), secret }
    }

    /// Returns the state for shared-memory upgrades, created on first use.
    fn neighbours(&self) -> Result<&HostPeers<WitnessId<N>>> {
        if self.neighbours.get().is_some() {
            return self.known().ok_or(Error::OTHER);
        }
        let new = HostPeers::new(N::Link::settings(), self.net.poller())?;
        Ok(self.neighbours.get_or_init(|| Box::new(new)))
    }

    /// Returns the state of established or attempted upgrades; none in a forked child, because it
    /// has no access to the memory.
    #[inline(always)]
    fn known(&self) -> Option<&HostPeers<WitnessId<N>>> {
        let known = self.neighbours.get().map(Box::as_ref);
        known.filter(|known: &&HostPeers<_>| known.generation == generation())
    }

    fn is_wanted() -> bool {
        N::Link::settings().local.enabled
    }

    /// Records the engine's watch of a link, with its token and events. If the link may move to
    /// memory, returns the events of the carrier connection watched before, and those to be watched
    /// from now on.
    fn watches(
        &self,
        id: LocalLinkId<WitnessId<N>>,
        token: u64,
        interest: Interest,
    ) -> Option<(Option<WitnessWatch>, WitnessWatch)> {
        let neighbours = self.known()?;
        let mut links = neighbours.links.borrow_mut();
        let entry = links.get_mut(id.number)?;
        if entry.token != token {
            neighbours.by_token.borrow_mut().remove(&entry.token);
            neighbours.by_token.borrow_mut().insert(token, id.number);
            entry.token = token;
        }
        let reads_again = interest.read && !(entry.watched && entry.interest.read);
        (entry.watched, entry.interest) = (true, interest);
        if reads_again && entry.note_filled() {
            // Data received meanwhile rings no further doorbell.
            if !std::mem::replace(&mut entry.listed, true) {
                neighbours.signs.borrow_mut().push(id.number);
            }
            if neighbours.armed.get() {
                // Another thread may sleep.
                neighbours.host.borrow().door().rouse();
            }
        }
        let wanted = entry.wanted();
        Some((entry.shown.replace(wanted), wanted))
    }
}

impl<N> LinkPoller<LocalLinkId<WitnessId<N>>> for WithLocal<N>
where
    N: Net<Poller: WitnessPoller<WitnessId<N>>>,
{
    fn add(&self, id: LocalLinkId<WitnessId<N>>, token: u64, interest: Interest) -> Result {
        let wanted = self.watches(id, token, interest);
        let wanted = wanted.map_or(WitnessWatch::For(interest), |(_, wanted)| wanted);
        wanted.add(self.net.poller(), id.witness, token)
    }

    fn modify(&self, id: LocalLinkId<WitnessId<N>>, token: u64, interest: Interest) -> Result {
        match self.watches(id, token, interest) {
            // Events in shared memory need no call.
            Some((before, wanted)) if before == Some(wanted) => Ok(()),
            Some((_, wanted)) => wanted.modify(self.net.poller(), id.witness, token),
            None => self.net.poller().modify(id.witness, token, interest),
        }
    }

    fn remove(&self, id: LocalLinkId<WitnessId<N>>) {
        if let Some(neighbours) = self.known()
            && let Some(entry) = neighbours.links.borrow_mut().get_mut(id.number)
        {
            (entry.watched, entry.interest, entry.shown) = (false, Interest::NONE, None);
        }
        self.net.poller().remove(id.witness);
    }
}

impl<N: Net> LinkClock for WithLocal<N> {
    #[inline(always)]
    fn now(&self) -> Instant {
        self.net.now()
    }

    #[inline(always)]
    fn nanos(&self) -> u64 {
        self.net.nanos()
    }
}

impl<N> Net for WithLocal<N>
where
    N: Net<Poller: WitnessPoller<WitnessId<N>>>,
{
    type Link = LocalLink<N::Link>;
    type Listener = LocalListener<N::Listener>;
    type Poller = Self;
    type Visits = N::Visits;

    #[inline(always)]
    fn poller(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn poll(&self, events: &mut Vec<PollEvent>) {
        let start = events.len();
        self.net.poll(events);
        if let Some(neighbours) = self.known() {
            neighbours.tell(self.net.poller(), &self.net, events, start);
        }
    }

    fn wait_fd(&self) -> RawFd {
        self.net.wait_fd()
    }

    fn set_timer(&self, delay: Duration) {
        self.net.set_timer(delay);
    }

    fn clear_timer(&self) {
        self.net.clear_timer();
    }

    fn visits(&self, engine: Weak<dyn Visited>) -> Result<N::Visits> {
        self.net.visits(engine)
    }

    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link> {
        self.dial_as(None, local, keep_port, to)
    }

    fn dial_as(
        &self,
        own: Option<&JobSecret>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        let witness = self.net.dial(local, keep_port, to)?;
        LocalLink::new(witness, own.unwrap_or(&self.secret), ProofExchange::caller)
    }

    fn bind_as(&self, own: Option<&JobSecret>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (witness, at) = self.net.bind(at)?;
        Ok((LocalListener { witness, secret: own.unwrap_or(&self.secret).clone() }, at))
    }

    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)> {
        self.bind_as(None, at)
    }

    fn process(&self) -> u32 {
        self.net.process()
    }

    fn may_be_local(&self, link: &Self::Link) -> bool {
        // Calls for several links exclude shared memory.
        Self::is_wanted() && !self.is_ring() && link.witness.is_on_this_host()
    }

    fn offer(&self, link: &Self::Link, token: u64) -> Option<LocalOffer> {
        if !self.may_be_local(link) {
            return None;
        }
        let witness = link.witness.id();
        let offered = self
            .neighbours()
            .and_then(|neighbours| neighbours.offer(self.net.poller(), witness, token));
        match offered {
            Ok((offer, part)) => link.part.set(part).is_ok().then_some(offer),
            Err(error) => {
                log_not_in_memory(&link.witness, &error);
                None
            }
        }
    }

    fn meet(&self, link: &Self::Link, token: u64, offer: &LocalOffer) {
        if !self.may_be_local(link) {
            return;
        }
        let witness = link.witness.id();
        match self.neighbours().map(|neighbours| neighbours.meet(witness, token, offer)) {
            Ok(part) => {
                // There is one meeting for a link.
                let _ = link.part.set(part);
            }
            Err(error) => log_not_in_memory(&link.witness, &error),
        }
    }

    #[inline(always)]
    fn is_rung(&self) -> bool {
        self.known().is_some_and(|known| known.host.borrow().door().is_ready())
    }

    #[inline(always)]
    fn has_local(&self) -> bool {
        self.known().is_some()
    }

    fn is_due(&self) -> bool {
        self.known().is_some_and(|known| known.left.due.load(Ordering::Relaxed))
    }

    fn rest(&self) -> bool {
        let Some(neighbours) = self.known() else { return true };
        neighbours.armed.set(true);
        neighbours.is_quiet() && neighbours.host.borrow().door().fall_asleep()
    }

    fn wake(&self) {
        if let Some(neighbours) = self.known() {
            neighbours.armed.set(false);
            neighbours.host.borrow().door().wake();
        }
    }

    #[inline(always)]
    fn is_ring(&self) -> bool {
        self.net.is_ring()
    }

    #[inline(always)]
    fn transfer(&mut self, link: &Self::Link, op: LinkOp<'_, '_>) -> Result<usize> {
        if self.is_ring() { self.net.transfer(&link.witness, op) } else { op.on(link) }
    }

    // With calls for several links none of them moves ([`Net::may_be_local`]).
    fn send_each(&mut self, sends: &mut [Sending<'_, Self::Link>]) {
        let mut witnesses: Vec<_> = sends
            .iter()
            .map(|one| Sending { link: &one.link.witness, bytes: one.bytes, result: one.result })
            .collect();
        self.net.send_each(&mut witnesses);
        let results: Vec<_> = witnesses.into_iter().map(|one| one.result).collect();
        sends.iter_mut().zip(results).for_each(|(one, result)| one.result = result);
    }

    fn receive_each(&mut self, receives: &mut [Receiving<'_, Self::Link>]) {
        let (mut witnesses, mut results) = (Vec::new(), Vec::new());
        for one in receives {
            let link = &one.link.witness;
            witnesses.push(Receiving { link, room: &mut *one.room, result: one.result });
            results.push(&mut one.result);
        }
        self.net.receive_each(&mut witnesses);
        results.into_iter().zip(witnesses).for_each(|(result, one)| *result = one.result);
    }
}

impl<N> LinkProvider for WithLocal<N>
where
    N: LinkProvider + Net<Poller: WitnessPoller<WitnessId<N>>>,
{
    const CONTEXTS: bool = N::CONTEXTS;

    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        N::getinfo(query)
    }

    fn offers() -> Result<Vec<ProviderOffer>> {
        N::offers()
    }

    fn segments() -> SegmentLimit {
        N::segments()
    }

    fn region_segments() -> usize {
        N::region_segments()
    }

    fn address(info: InfoRef<'_>) -> Result<Addr> {
        N::address(info)
    }

    fn open() -> Result<Self> {
        Self::open_with(&N::Link::settings().secret)
    }

    fn open_passive() -> Result<Self> {
        Self::open_passive_with(&N::Link::settings().secret)
    }

    fn own_secret(key: &[u8]) -> Result<JobSecret> {
        N::Link::settings().secret.with_program_key(N::Link::provider(), key)
    }

    fn open_with(secret: &JobSecret) -> Result<Self> {
        secret.check(N::Link::provider())?;
        Ok(Self::with_secret(N::open()?, secret.clone()))
    }

    fn open_passive_with(secret: &JobSecret) -> Result<Self> {
        secret.check(N::Link::provider())?;
        Ok(Self::with_secret(N::open_passive()?, secret.clone()))
    }

    fn is_for(link: &Self::Link, own: Option<&JobSecret>) -> bool {
        link.is_for(own.unwrap_or(&N::Link::settings().secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_bit_is_ignored_by_links_without_shared_memory() {
        let mut entry = LocalEntry {
            witness: (),
            news: Arc::default(),
            token: 0,
            watched: true,
            interest: Interest::READ,
            shown: None,
            fresh: false,
            filled: false,
            listed: false,
        };
        assert!(!entry.gets_sign() && !entry.is_told());
        // There may be room again, of which is told once.
        entry.news.sends.store(true, Ordering::Relaxed);
        assert!(entry.gets_sign() && entry.fresh && !entry.filled);
        entry.news.may_hear.store(true, Ordering::Relaxed);
        assert!(entry.gets_sign() && entry.filled && entry.is_told());
    }
}
