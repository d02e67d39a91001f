//! Links with both ends possibly on one host, upgraded to shared memory.
//!
//! [`ShmUpgrade`] is a [`Transport`] over another one. Its links are those of the other, called carrier
//! connections, and stay so for peers of other hosts. If both ends declare a possible common host,
//! they perform the shared-memory upgrade ([`ofi_provider::shm_handshake`]) while bytes already flow.
//!
//! Each end then switches by itself, between two writes. It publishes in shared memory the number
//! of bytes sent on the carrier connection, and writes all further ones to a ring there. The
//! receiver reads this number of bytes from the carrier connection and then polls only the ring. So
//! the byte stream is unchanged. The engine uses only two optional queries, to save work
//! ([`ShmLink::rx_over_shm`], [`ShmLink::tx_over_shm`]).
//!
//! The carrier connection stays open: its end is the link's end, reported when the ring is empty.
//! An end about to be closed with more bytes than the ring can hold sends them on the carrier
//! connection ([`ShmLink::send_trailing_on_socket`]). The other end finds them there when the ring is empty.
use crate::objects::LinkProvider;
use crate::secret::PskConfig;
use crate::settings::StreamSettings;
use crate::transport::{
    AuthenticatedLink, ByteLink, CarrierPoller, FlushTarget, LinkClock, LinkListener, LinkOp,
    LinkPoller, Receiving, Sending, ShmLink, ShmTransport, Transport, ZeroCopyLink, ZerocopyDone,
    as_word, forward, from_word, log_not_in_memory, peer_of, receive_each_below, send_each_below,
};
use crate::wire::{LocalOffer, OFFER_LEN, StreamHeader};
use core::time::Duration;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{
    ContiguousSrc, CopyMode, GatherList, InlineBytes, ScatterList, SegmentLimit, UntrustedBytes,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef, ProviderOffer};
use ofi_provider::log::peer_text;
use ofi_provider::provider::Provider;
use ofi_provider::shm_channel::{InlineRecv, JoinedWords, ShmChannel};
use ofi_provider::shm_handshake::{
    RingMemory, SHM_OFFER_LEN, ShmConnect, ShmPeer, ShmUpgradeListener,
};
use ofi_provider::slab::{NONE, Slab};
use ofi_provider::stack::on_own_stack;
use ofi_provider::sys::{Interest, PollEvent, count_forks, generation};
#[cfg(any(test, feature = "sim"))]
use ofi_simulation::InjectedFault;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

const _: () = assert!(OFFER_LEN == SHM_OFFER_LEN);

/// Internal tokens in the poller: the doorbell, pending connections of the shared-memory upgrade,
/// and the responses to local requests, combined with the link's number.
const OWN: u64 = 1 << 63;
const WAKEUP: u64 = OWN | 1 << 32;
const LISTEN_ADDR: u64 = OWN | 2 << 32;
const CALL: u64 = OWN | 3 << 32;

/// Number of doorbell bits used by peers to signal links: the bit of a link is its number modulo
/// this.
const DOORBELL_BITS: u32 = 1024;

/// Delay of pending upgrade requests not accepted for lack of descriptors.
const LISTEN_ADDR_DELAY: Duration = Duration::from_millis(100);

/// Maximum repeated checks for ringing links by a thread not about to sleep, while it re-enables
/// doorbells for other threads.
const MAX_LOOKS: u32 = 64;

/// Maximum bytes received by one call during the shared-memory upgrade.
const SWITCHING_SEGMENT: usize = 8192;

/// Carrier of the bytes of one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkPath {
    /// On the carrier connection, permanently.
    Carrier,
    /// On the carrier connection, and counted: the shared-memory upgrade is about to happen.
    Switching,
    /// In memory.
    Memory,
}

/// Event of the shared-memory upgrade, passed from the net to a link.
#[derive(Debug)]
enum ShmHandshakeEvent {
    /// The other end came: the pipe to it.
    Came(Box<ShmChannel>),
    /// The other end answered.
    Answered(ShmPeer),
    /// The other end is not met, for this reason.
    Failed(Error),
}

/// State shared by a link and its net. The engine's lock guards both.
#[derive(Debug, Default)]
struct LinkShared {
    /// Something is in `changes`.
    has_events: AtomicBool,
    changes: Mutex<Option<ShmHandshakeEvent>>,
    /// Pipe created by this end for the link.
    made: Mutex<Option<Box<ShmChannel>>>,
    /// Request sent by this end for the shared-memory upgrade, until it is answered.
    call: Mutex<Option<ShmConnect>>,
    /// The poller reported the carrier connection.
    carrier: AtomicBool,
    /// Data of the other end may arrive through shared memory: it has access, or is about to get
    /// it.
    may_receive: AtomicBool,
    /// True if the last poll of the memory found nothing, or it is not read yet.
    drained: AtomicBool,
    /// Bytes leave through memory.
    sends: AtomicBool,
}

/// Returns true if the current simulator test injects this fault.
#[cfg(any(test, feature = "sim"))]
fn is_injected(fault: InjectedFault) -> bool {
    ofi_simulation::injected() == Some(fault)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl LinkShared {
    fn tell(&self, changes: ShmHandshakeEvent) {
        *locked(&self.changes) = Some(changes);
        self.has_events.store(true, Ordering::Relaxed);
    }
}

/// Numbers of ended links to be dropped by the net, and of links due for the shared-memory upgrade.
#[derive(Debug, Default)]
struct ClosedLinks {
    any: AtomicBool,
    numbers: Mutex<Vec<u32>>,
    any_talking: AtomicBool,
    talking: Mutex<Vec<(u32, LocalOffer)>>,
    /// A link accepted nothing, so the engine makes a progress iteration ([`ShmTransport::is_due`]).
    due: AtomicBool,
}

/// End of a link read through shared memory.
#[derive(Clone, Copy, Debug)]
enum SocketEnd {
    /// End of the carrier connection, as a result of [`ByteLink::recv`].
    Over(Result<usize>),
    /// More data on the carrier connection, beginning with this byte.
    Words(u8),
}

/// Additional state of a link with both ends possibly on one host.
#[derive(Debug)]
struct ShmLinkState {
    /// Number of the link within the net.
    number: u32,
    /// Process owning the link ([`generation`]).
    generation: u32,
    changes: Arc<LinkShared>,
    left: Arc<ClosedLinks>,
    pipe: OnceCell<ShmChannel>,
    /// Offer of the other end for the shared-memory upgrade, until there was enough traffic.
    offer: Cell<Option<LocalOffer>>,
    /// Traffic required before the upgrade, in bytes and calls.
    enough: (u64, u32),
    calls: Cell<u32>,
    /// The other end can be signalled about written data.
    upgraded: Cell<bool>,
    /// Bytes sent to and received from the carrier connection since messages may flow.
    sent: Cell<u64>,
    got: Cell<u64>,
    /// Bytes received on the carrier connection, to be read after those in the ring.
    behind: RefCell<VecDeque<u8>>,
    end: Cell<Option<SocketEnd>>,
    /// Zero-copy sends accepted by the carrier connection; the numbers of the pipe follow.
    zcopy: Cell<u32>,
    /// True if the carrier connection sends without copying. Otherwise its zero-copy sends complete
    /// immediately; `noticed` is the number reported as complete.
    zerocopy: Cell<bool>,
    noticed: Cell<u32>,
    fetched: Cell<Option<ZerocopyDone>>,
}

/// Link with both ends possibly on one host.
#[derive(Debug)]
pub struct UpgradableLink<L: ByteLink> {
    carrier: L,
    sends: Cell<LinkPath>,
    rx_path: Cell<LinkPath>,
    part: OnceCell<Box<ShmLinkState>>,
}

/// Identifier of a link or listener within a [`ShmUpgrade`].
#[derive(Clone, Copy, Debug)]
pub struct LocalLinkId<I> {
    carrier: I,
    number: u32,
}

impl ShmLinkState {
    /// Counts traffic on the carrier connection, and schedules the shared-memory upgrade after a
    /// sufficient amount.
    fn talks(&self) {
        self.calls.set(self.calls.get().saturating_add(1));
        let traffic = self.sent.get() + self.got.get();
        if traffic < self.enough.0 && self.calls.get() < self.enough.1 {
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
    fn wants_poll(&self) -> bool {
        let calls = self.calls.get().saturating_add(1);
        if calls < 4 || !calls.is_power_of_two() {
            return false;
        }
        self.calls.set(calls);
        self.left.due.store(true, Ordering::Relaxed);
        true
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> UpgradableLink<L> {
    fn new(carrier: L) -> Self {
        let path = Cell::new(LinkPath::Carrier);
        Self { carrier, sends: path.clone(), rx_path: path, part: OnceCell::new() }
    }

    /// Returns the shared-memory state of a link about to move, or already moved, to shared memory.
    #[inline(always)]
    fn part(&self) -> Result<&ShmLinkState> {
        self.part.get().map(|part| &**part).ok_or(Error::OTHER)
    }

    /// Returns the shared memory of an upgraded link.
    #[inline(always)]
    fn pipe(&self) -> Result<(&ShmLinkState, &ShmChannel)> {
        let part = self.part()?;
        // A forked child has not got the memory.
        if part.generation != generation() {
            return Err(Error::OTHER);
        }
        Ok((part, part.pipe.get().ok_or(Error::OTHER)?))
    }

    /// Does not read the other end's memory from here on ([`ShmChannel::stop_reading`]).
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn stop_reading(&self) {
        if let Ok((_, pipe)) = self.pipe() {
            pipe.stop_reading();
        }
    }

    /// Continues the shared-memory upgrade, if there are events for it.
    fn go_on(&self, part: &ShmLinkState) {
        if part.changes.has_events.load(Ordering::Relaxed) {
            self.receive_events(part);
        }
    }

    #[cold]
    fn receive_events(&self, part: &ShmLinkState) {
        part.changes.has_events.store(false, Ordering::Relaxed);
        if let Some(pipe) = locked(&part.changes.made).take() {
            // One is made for a link.
            let _ = part.pipe.set(*pipe);
        }
        let failed = match locked(&part.changes.changes).take() {
            Some(ShmHandshakeEvent::Came(pipe)) => {
                let reads = pipe.can_read();
                part.upgraded.set(part.pipe.set(*pipe).is_ok());
                return self.log_reads(reads);
            }
            Some(ShmHandshakeEvent::Answered(peer)) => {
                let reads = peer.memory.is_some();
                if let Ok((_, pipe)) = self.pipe() {
                    peer.join(pipe);
                    part.upgraded.set(true);
                }
                return self.log_reads(reads);
            }
            Some(ShmHandshakeEvent::Failed(error)) => error,
            None => return,
        };
        self.sends.set(LinkPath::Carrier);
        // After a failure to understand the response, this end may still receive data through
        // shared memory.
        if failed == Error::CONNRESET || part.pipe.get().is_none() {
            self.rx_over_carrier(part);
        }
        log_not_in_memory(&self.carrier, &failed);
    }

    /// Nothing comes through memory, from here on.
    fn rx_over_carrier(&self, part: &ShmLinkState) {
        self.rx_path.set(LinkPath::Carrier);
        part.changes.may_receive.store(false, Ordering::Relaxed);
    }

    /// Logs if this process may read large messages in the other's memory.
    fn log_reads(&self, reads: bool) {
        ofi_provider::log!(
            L::provider(),
            INFO,
            EP_CTRL,
            "large messages of {} {}",
            peer_text(peer_of(&self.carrier)),
            if reads { "are read where they are" } else { "are copied, its memory is not read" }
        );
    }

    #[cold]
    fn log_path(&self, whither: &str) {
        ofi_provider::log!(
            L::provider(),
            INFO,
            EP_CTRL,
            "{} is on this host: messages {whither} it go through memory from now on",
            peer_text(peer_of(&self.carrier))
        );
    }

    /// Switches sending to shared memory, if possible, without sending a byte. Returns true if
    /// sending goes through shared memory from here on.
    fn moves_out(&self, part: &ShmLinkState) -> bool {
        self.go_on(part);
        let Ok((_, pipe)) = self.pipe() else { return false };
        if !part.upgraded.get() || self.carrier.has_half_sent() {
            return false;
        }
        let at = part.sent.get();
        #[cfg(any(test, feature = "sim"))]
        let at = at ^ u64::from(is_injected(InjectedFault::MisplacedWrite));
        pipe.switch_at(at);
        self.sends.set(LinkPath::Memory);
        part.changes.sends.store(true, Ordering::Relaxed);
        self.log_path("to");
        true
    }

    /// Sends on a link not carried by the carrier connection alone. Separate from
    /// [`ByteLink::send`], so sends on the carrier connection have all registers available.
    #[inline(never)]
    fn send_alternate_path(&self, bytes: &[u8]) -> isize {
        if self.sends.get() == LinkPath::Memory {
            if let Ok((_, pipe)) = self.pipe() {
                if pipe.send_short(bytes) {
                    return bytes.len() as isize;
                }
            }
        }
        self.send_alternate_path_slow(bytes)
    }

    #[inline(never)]
    fn send_alternate_path_slow(&self, bytes: &[u8]) -> isize {
        as_word(match self.sends.get() {
            LinkPath::Memory => self.send_memory(bytes),
            _ => self.send_switching(bytes),
        })
    }

    #[cold]
    fn send_switching(&self, bytes: &[u8]) -> Result<usize> {
        let part = self.part()?;
        if self.moves_out(part) {
            return self.send_memory(bytes);
        }
        if part.wants_poll() {
            return Err(Error::AGAIN);
        }
        let sent = self.carrier.send(bytes)?;
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
    fn sent_short(&self, part: &ShmLinkState, result: Result<usize>) -> Result<usize> {
        let notified = part.changes.carrier.load(Ordering::Relaxed) || part.end.get().is_some();
        if result == Err(Error::AGAIN) && notified && self.carrier.has_ended() {
            return Err(Error::from_code(libc::EPIPE));
        }
        result
    }

    /// Handles an event of the carrier connection: checks for its end and for more data.
    #[cold]
    fn poll_carrier(&self, part: &ShmLinkState) {
        if part.end.get().is_some() {
            return;
        }
        part.changes.carrier.store(false, Ordering::Relaxed);
        let mut byte = [0];
        let end = match self.carrier.recv(&mut byte) {
            Err(Error::AGAIN | Error::INTR) => return,
            Ok(1) => SocketEnd::Words(byte[0]),
            over => SocketEnd::Over(over),
        };
        part.end.set(Some(end));
    }

    #[inline(always)]
    fn recv_memory(&self, buf: &mut [u8]) -> Result<usize> {
        let (part, pipe) = self.pipe()?;
        match pipe.recv(buf) {
            Err(Error::AGAIN) => self.found_nothing(part, pipe, buf),
            result => result,
        }
    }

    /// Nothing is in the ring.
    #[inline(always)]
    fn found_nothing(
        &self,
        part: &ShmLinkState,
        pipe: &ShmChannel,
        buf: &mut [u8],
    ) -> Result<usize> {
        part.changes.drained.store(true, Ordering::Relaxed);
        // This lets an end that only receives learn the peer to notify of free space.
        self.go_on(part);
        if part.changes.carrier.load(Ordering::Relaxed) || part.end.get().is_some() {
            return self.read_on(part, pipe, buf);
        }
        Err(Error::AGAIN)
    }

    /// Reads the data following the empty ring: the link's end, or trailing data on the socket.
    #[cold]
    fn read_on(&self, part: &ShmLinkState, pipe: &ShmChannel, buf: &mut [u8]) -> Result<usize> {
        self.poll_carrier(part);
        if part.end.get().is_none() && part.behind.borrow().is_empty() {
            return Err(Error::AGAIN);
        }
        // Ring data written before the end, or before the trailing data, is visible by now.
        match pipe.recv(buf) {
            Err(Error::AGAIN) => {}
            result => return result,
        }
        let behind = self.take_behind(part, buf);
        let end = part.end.get();
        if end.is_none() {
            // The early bytes continue on the carrier connection, if the other end sends more.
            if part.behind.borrow().is_empty() {
                self.rx_over_carrier(part);
            } else {
                part.changes.carrier.store(true, Ordering::Relaxed);
            }
        }
        match end {
            // At the link's end, what was taken for words while the ends were about to meet is the last.
            _ if behind > 0 => Ok(behind),
            Some(SocketEnd::Over(result)) => result,
            Some(SocketEnd::Words(byte)) if !buf.is_empty() => {
                self.rx_over_carrier(part);
                buf[0] = byte;
                Ok(1)
            }
            _ => Err(Error::AGAIN),
        }
    }

    /// Takes bytes received too early on the carrier connection.
    fn take_behind(&self, part: &ShmLinkState, buf: &mut [u8]) -> usize {
        let mut behind = part.behind.borrow_mut();
        let n = buf.len().min(behind.len());
        buf.iter_mut().zip(behind.drain(..n)).for_each(|(to, byte)| *to = byte);
        n
    }

    /// Receives on a link not carried by the carrier connection alone, the counterpart of
    /// [`UpgradableLink::send_alternate_path`].
    #[inline(never)]
    fn recv_alternate_path(&self, buf: &mut [u8]) -> isize {
        if self.rx_path.get() == LinkPath::Memory {
            return as_word(self.recv_memory(buf));
        }
        self.recv_alternate_path_slow(buf)
    }

    #[cold]
    fn recv_alternate_path_slow(&self, buf: &mut [u8]) -> isize {
        as_word(self.recv_switching(buf))
    }

    #[cold]
    fn recv_switching(&self, buf: &mut [u8]) -> Result<usize> {
        let part = self.part()?;
        self.go_on(part);
        let before = part.got.get();
        let moved = || self.pipe().ok().and_then(|(_, pipe)| pipe.peer_switched_at());
        if self.moves_in(part, moved())? {
            return self.recv_memory(buf);
        }
        let came = self.carrier.recv(buf);
        // The other end may have moved, filled the ring and said its last words in the meantime.
        let Some(at) = moved() else {
            // A peer switching from now on rings the doorbell.
            let n = came.inspect_err(|_| part.changes.drained.store(true, Ordering::Relaxed))?;
            part.got.set(before + n as u64);
            part.talks();
            return Ok(n);
        };
        let n = match came {
            Ok(n) if n > 0 || buf.is_empty() => n,
            Err(Error::AGAIN | Error::INTR) => {
                // A peer already switched, with earlier data still in flight, has rung the
                // doorbell. The link is polled until the data has arrived.
                part.changes.drained.store(false, Ordering::Relaxed);
                return came;
            }
            // Or it has ended since: what it wrote to the ring comes first.
            _ => return self.receive_trailing(part, at, came, buf),
        };
        let due = at.checked_sub(before).ok_or(Error::PROTO)?;
        let due = usize::try_from(due).unwrap_or(usize::MAX).min(n);
        part.got.set(before + due as u64);
        if n > due {
            part.behind.borrow_mut().extend(&buf[due..n]);
            part.changes.carrier.store(true, Ordering::Relaxed);
        }
        if due == 0 && n > 0 && self.moves_in(part, Some(at))? {
            return self.recv_memory(buf);
        }
        Ok(due)
    }

    /// Reads the data written to the ring by the other end, after its switch at this byte and
    /// before the end of the carrier connection.
    fn receive_trailing(
        &self,
        part: &ShmLinkState,
        at: u64,
        end: Result<usize>,
        buf: &mut [u8],
    ) -> Result<usize> {
        if !self.moves_in(part, Some(at))? {
            return end;
        }
        part.end.set(Some(SocketEnd::Over(end)));
        self.recv_memory(buf)
    }

    /// Returns true if receiving goes through shared memory from here on: the other end has
    /// switched its sending there, and all data sent before has arrived.
    fn moves_in(&self, part: &ShmLinkState, moved: Option<u64>) -> Result<bool> {
        let Some(at) = moved else { return Ok(false) };
        if at < part.got.get() {
            return Err(Error::PROTO);
        }
        if at > part.got.get() {
            return Ok(false);
        }
        self.rx_path.set(LinkPath::Memory);
        self.log_path("from");
        Ok(true)
    }

    /// Takes the pipe's next notification of zero-copy sends, in the numbers of the link.
    fn next_fetched(&self, part: &ShmLinkState) -> Option<ZerocopyDone> {
        let copied = part.zcopy.get();
        if !part.zerocopy.get() && part.noticed.get() != copied {
            let low = part.noticed.replace(copied);
            return Some(ZerocopyDone { low, high: copied.wrapping_sub(1), copied: true });
        }
        let (_, pipe) = self.pipe().ok()?;
        let done = pipe.zcopy_completed().ok()?;
        let before = part.zcopy.get();
        Some(ZerocopyDone {
            low: done.low.wrapping_add(before),
            high: done.high.wrapping_add(before),
            copied: !pipe.can_expose(),
        })
    }
}

impl<L: ByteLink> Drop for UpgradableLink<L> {
    fn drop(&mut self) {
        if let Some(part) = self.part.get() {
            // Nothing waits for this end any more, and the net drops it.
            locked(&part.changes.call).take();
            locked(&part.changes.changes).take();
            locked(&part.changes.made).take();
            locked(&part.left.numbers).push(part.number);
            part.left.any.store(true, Ordering::Relaxed);
        }
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> ByteLink for UpgradableLink<L> {
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
        LocalLinkId { carrier: self.carrier.id(), number }
    }

    #[inline(always)]
    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        if self.rx_path.get() == LinkPath::Carrier {
            return self.carrier.recv(buf);
        }
        from_word(self.recv_alternate_path(buf))
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        if self.sends.get() == LinkPath::Carrier {
            return self.carrier.send(bytes);
        }
        from_word(self.send_alternate_path(bytes))
    }

    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        match self.rx_path.get() {
            LinkPath::Carrier => self.carrier.recv_list(list),
            LinkPath::Memory => {
                let (part, pipe) = self.pipe()?;
                match pipe.recv_list(list) {
                    Err(Error::AGAIN) => {
                        let mut buf = [0; 512];
                        let most = buf.len().min(list.len());
                        let n = self.found_nothing(part, pipe, &mut buf[..most])?;
                        Ok(list.copy_from(0, &buf[..n]))
                    }
                    result => result,
                }
            }
            LinkPath::Switching => {
                let Some(buf) = list.buf_from(0) else { return Ok(0) };
                let most = buf.len().min(SWITCHING_SEGMENT);
                self.recv_switching(&mut buf[..most])
            }
        }
    }

    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        if self.sends.get() == LinkPath::Carrier {
            // Data to be exposed, at the link's end.
            let exposes = self.part.get().is_none_or(|part| part.zerocopy.get());
            return self.carrier.send_list(list, if exposes { way } else { CopyMode::Copied });
        }
        if self.sends.get() == LinkPath::Switching {
            let part = self.part()?;
            if !self.moves_out(part) {
                let zcopy = way.is_zcopy();
                let way = if zcopy && !part.zerocopy.get() { CopyMode::Copied } else { way };
                let sent = self.carrier.send_list(list, way)?;
                part.sent.set(part.sent.get() + sent as u64);
                part.talks();
                if zcopy && sent > 0 {
                    part.zcopy.set(part.zcopy.get().wrapping_add(1));
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

    forward! { carrier:
        fn take_error(&self) -> Result;
        fn local_addr(&self) -> Result<Addr>;
        fn peer_addr(&self) -> Result<Addr>;
        fn is_on_this_host(&self) -> bool;
        fn fd(&self) -> Result<RawFd>;
        fn waits(&self);
        fn unacknowledged(&self) -> usize;
        fn probe(&self);
        fn shutdown(&self);
        fn end_sending(&self);
    }

    fn made(&self) {
        self.carrier.made();
        if self.part.get().is_some() {
            self.sends.set(LinkPath::Switching);
            self.rx_path.set(LinkPath::Switching);
        }
    }

    fn has_ended(&self) -> bool {
        self.carrier.has_ended()
            || (self.hides_end() && self.pipe().is_ok_and(|(_, pipe)| pipe.peer_is_gone()))
    }

    fn reset_when_closed(&self) {
        self.carrier.reset_when_closed();
        if let Ok((_, pipe)) = self.pipe() {
            pipe.withdraw();
        }
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> ShmLink for UpgradableLink<L> {
    #[inline(always)]
    fn rx_over_shm(&self) -> bool {
        self.rx_path.get() == LinkPath::Memory
    }

    #[inline(always)]
    fn tx_over_shm(&self) -> bool {
        self.sends.get() == LinkPath::Memory
    }

    #[inline(always)]
    fn send_fast(
        &self,
        id: u8,
        data: Option<u64>,
        tag: Option<u64>,
        body: ContiguousSrc<'_>,
    ) -> bool {
        let Ok((_, pipe)) = self.pipe() else { return false };
        let (head, _) = StreamHeader::fast_words(id, tag.is_some(), data.is_some(), body.len());
        pipe.send_header_and_body(JoinedWords::new(head, [data, tag]), body)
    }

    #[inline(always)]
    fn recv_inline(&self, take: impl FnMut(InlineBytes<'_>) -> bool) -> InlineRecv {
        if !self.rx_over_shm() {
            return InlineRecv::Else;
        }
        let Ok((part, pipe)) = self.pipe() else { return InlineRecv::Else };
        let taken = pipe.recv_inline(take);
        if taken == InlineRecv::None {
            part.changes.drained.store(true, Ordering::Relaxed);
            let notified = &part.changes;
            if notified.has_events.load(Ordering::Relaxed)
                || notified.carrier.load(Ordering::Relaxed)
                || part.end.get().is_some()
            {
                return InlineRecv::Else;
            }
        }
        taken
    }

    fn recv_whole_message(
        &self,
        take: impl FnMut([u64; 4], UntrustedBytes<'_>) -> bool,
    ) -> InlineRecv {
        match self.pipe() {
            Ok((_, pipe)) if self.rx_over_shm() => pipe.recv_whole_message(take),
            _ => InlineRecv::Else,
        }
    }

    fn set_polled(&self, polled: bool) {
        if let Ok((_, pipe)) = self.pipe() {
            pipe.set_polled(polled);
            fence(Ordering::SeqCst);
        }
    }

    fn is_ready(&self, rx_path: bool, unsent: bool) -> bool {
        let Ok((part, pipe)) = self.pipe() else { return false };
        // Comes first: it sees to it that nothing was missed.
        let data = pipe.has_data();
        if pipe.is_exposing() && part.fetched.get().is_none() {
            part.fetched.set(self.next_fetched(part));
        }
        part.fetched.get().is_some()
            || (rx_path && self.rx_over_shm() && data)
            || (unsent && self.tx_over_shm() && pipe.has_space())
    }

    fn send_trailing_on_socket(&self) {
        self.sends.set(LinkPath::Carrier);
    }

    fn hides_end(&self) -> bool {
        // Data sent before the other end's switch may exceed the capacity of the carrier
        // connection. This end sends nothing there, so the other end's system does not report the
        // exit of the process.
        self.tx_over_shm() && !self.rx_over_shm()
    }

    fn zcopy_threshold(&self) -> Option<usize> {
        if !self.tx_over_shm() {
            return None;
        }
        let (_, pipe) = self.pipe().ok()?;
        pipe.can_expose().then(|| L::settings().local.min)
    }

    fn copy_exposed(&self, key: u64, most: usize) -> Result<usize> {
        let Ok((_, pipe)) = self.pipe() else { return Ok(0) };
        pipe.copy_exposed(key, most)
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> ZeroCopyLink for UpgradableLink<L> {
    fn set_zerocopy(&self) -> Result {
        self.carrier.set_zerocopy()?;
        if let Some(part) = self.part.get() {
            part.zerocopy.set(true);
        }
        Ok(())
    }

    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        let Some(part) = self.part.get() else { return self.carrier.zerocopy_done() };
        if let Some(done) = part.fetched.take().or_else(|| self.next_fetched(part)) {
            return Ok(done);
        }
        self.carrier.zerocopy_done()
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> AuthenticatedLink for UpgradableLink<L> {
    forward! { carrier:
        fn secrecy(&self) -> [bool; 2];
        fn has_half_sent(&self) -> bool;
    }
}

/// Listener of links with both ends possibly on one host.
#[derive(Debug)]
pub struct LocalListener<S> {
    carrier: S,
}

impl<S> LinkListener for LocalListener<S>
where
    S: LinkListener<Link: ZeroCopyLink + AuthenticatedLink>,
{
    type Link = UpgradableLink<S::Link>;

    fn id(&self) -> LocalLinkId<<S::Link as ByteLink>::Id> {
        LocalLinkId { carrier: self.carrier.id(), number: NONE }
    }

    fn listen(&self, backlog: i32) -> Result {
        self.carrier.listen(backlog)
    }

    fn accept(&self) -> Result<(Self::Link, Addr)> {
        let (carrier, from) = self.carrier.accept()?;
        Ok((UpgradableLink::new(carrier), from))
    }
}

/// Events of a carrier connection watched by the poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SocketInterest {
    /// As any link.
    For(Interest),
    /// Only the end, regardless of unread data before it.
    End,
}

impl SocketInterest {
    fn add<I>(self, watcher: &impl CarrierPoller<I>, carrier: I, token: u64) -> Result
    where
        I: Copy,
    {
        match self {
            Self::For(interest) => watcher.add(carrier, token, interest),
            Self::End => {
                watcher.add(carrier, token, Interest::NONE)?;
                self.modify(watcher, carrier, token)
            }
        }
    }

    fn modify<I>(self, watcher: &impl CarrierPoller<I>, carrier: I, token: u64) -> Result {
        match self {
            Self::For(interest) => watcher.modify(carrier, token, interest),
            Self::End => watcher.modify_to_end(carrier, token),
        }
    }
}

/// State of a link in its net, if both ends are possibly on one host.
#[derive(Debug)]
struct LocalEntry<I> {
    /// Identifier of the carrier connection in the poller, valid as long as the link.
    carrier: I,
    changes: Arc<LinkShared>,
    token: u64,
    /// The engine watches the link, and for this.
    watched: bool,
    interest: Interest,
    /// Events of the carrier connection watched by the poller, if any.
    registered: Option<SocketInterest>,
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
    fn wanted(&self) -> SocketInterest {
        let read = self.interest.read;
        match self.changes.sends.load(Ordering::Relaxed) {
            false => SocketInterest::For(self.interest),
            true if !read => SocketInterest::End,
            true => SocketInterest::For(Interest { read, write: false }),
        }
    }

    /// Marks the shared memory as possibly filled, if the link polls it. An event without its own
    /// signal is reported in each iteration until it was polled.
    fn note_filled(&mut self) -> bool {
        let may_receive = self.changes.may_receive.load(Ordering::Relaxed);
        if may_receive {
            self.filled = true;
            self.changes.drained.store(false, Ordering::Relaxed);
        }
        may_receive
    }

    /// Records a doorbell of this link's bit, shared with other links. Returns false if it cannot
    /// belong to this link.
    fn gets_sign(&mut self) -> bool {
        let is_its_own = self.note_filled() || self.changes.sends.load(Ordering::Relaxed);
        self.fresh |= is_its_own;
        is_its_own
    }

    /// Returns true if the engine is to be notified of the other end's doorbell.
    fn is_notified(&self) -> bool {
        (self.fresh && self.watched) || (self.filled && self.interest.read)
    }
}

/// State of a net with shared-memory links on this host, established or attempted.
#[derive(Debug)]
struct HostPeers<I> {
    host: RefCell<ShmUpgradeListener>,
    links: RefCell<Slab<LocalEntry<I>>>,
    by_token: RefCell<HashMap<u64, u32>>,
    /// Links with a rung doorbell.
    signs: RefCell<Vec<u32>>,
    left: Arc<ClosedLinks>,
    /// Process owning this state ([`generation`]).
    generation: u32,
    /// Someone may sleep.
    armed: Cell<bool>,
    /// Time since which connections at the handshake socket have not been accepted; `None` while
    /// they are accepted.
    accept_paused: Cell<Option<Instant>>,
    /// Traffic on a link required before the upgrade.
    enough: (u64, u32),
}

/// Net with links upgradable to shared memory.
#[derive(Debug)]
pub struct ShmUpgrade<N: Transport> {
    net: N,
    host_peers: OnceCell<Box<HostPeers<CarrierId<N>>>>,
}

/// Identifier of carrier connections in a net's poller.
type CarrierId<N> = <<N as Transport>::Link as ByteLink>::Id;

impl<I: Copy> HostPeers<I> {
    fn new(settings: &StreamSettings, watcher: &impl CarrierPoller<I>) -> Result<Self> {
        count_forks();
        let local = &settings.local;
        let host = ShmUpgradeListener::new(
            RingMemory { ring: local.ring, most: local.memory },
            local.reads,
        )?;
        watcher.add_wakeup(host.doorbell().wakeup_fd(), WAKEUP)?;
        Ok(Self {
            host: RefCell::new(host),
            links: RefCell::default(),
            by_token: RefCell::default(),
            signs: RefCell::default(),
            left: Arc::default(),
            generation: generation(),
            // A thread may be asleep since before there was any peer to notify.
            armed: Cell::new(true),
            accept_paused: Cell::new(None),
            enough: local.talk,
        })
    }

    /// Adds a link watched by the engine for reading, with this token.
    fn add(&self, carrier: I, token: u64) -> (u32, Arc<LinkShared>) {
        self.drop_closed_links();
        let changes: Arc<LinkShared> = Arc::default();
        let number = self.links.borrow_mut().insert(LocalEntry {
            carrier,
            changes: changes.clone(),
            token,
            watched: true,
            interest: Interest::READ,
            registered: Some(SocketInterest::For(Interest::READ)),
            fresh: false,
            filled: false,
            listed: false,
        });
        self.by_token.borrow_mut().insert(token, number);
        (number, changes)
    }

    fn part(
        &self,
        number: u32,
        changes: Arc<LinkShared>,
        offer: Option<LocalOffer>,
    ) -> Box<ShmLinkState> {
        Box::new(ShmLinkState {
            number,
            generation: generation(),
            changes,
            left: self.left.clone(),
            pipe: OnceCell::new(),
            offer: Cell::new(offer),
            enough: self.enough,
            calls: Cell::new(0),
            upgraded: Cell::new(false),
            sent: Cell::new(0),
            got: Cell::new(0),
            behind: RefCell::default(),
            end: Cell::new(None),
            zcopy: Cell::new(0),
            zerocopy: Cell::new(false),
            noticed: Cell::new(0),
            fetched: Cell::new(None),
        })
    }

    fn drop_closed_links(&self) {
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
        watcher: &impl CarrierPoller<I>,
        carrier: I,
        token: u64,
    ) -> Result<(LocalOffer, Box<ShmLinkState>)> {
        self.open(watcher)?;
        let (number, changes) = self.add(carrier, token);
        let offer = self.host.borrow_mut().offer(number).inspect_err(|_| self.forget(number))?;
        Ok((offer, self.part(number, changes, None)))
    }

    /// Opens the listener for shared-memory upgrades of this engine.
    fn open(&self, watcher: &impl CarrierPoller<I>) -> Result {
        let mut host = self.host.borrow_mut();
        match host.open()? {
            // Requests would wait forever without a watcher.
            Some(listen_addr) => {
                watcher.add_fd(listen_addr, LISTEN_ADDR).inspect_err(|_| host.shut())
            }
            None => Ok(()),
        }
    }

    /// Adds a link with an upgrade offer of the other end. The upgrade follows after sufficient
    /// traffic.
    fn upgrade(&self, carrier: I, token: u64, offer: &LocalOffer) -> Box<ShmLinkState> {
        let (number, changes) = self.add(carrier, token);
        self.part(number, changes, Some(*offer))
    }

    /// Requests the upgrade of links with sufficient traffic.
    #[inline(never)]
    fn make_calls(&self, watcher: &impl CarrierPoller<I>, events: &mut Vec<PollEvent>) {
        if !self.left.any_talking.swap(false, Ordering::Relaxed) {
            return;
        }
        for (number, offer) in std::mem::take(&mut *locked(&self.left.talking)) {
            let Some(changes) = self.links.borrow().get(number).map(|entry| entry.changes.clone())
            else {
                continue;
            };
            let watch = |fd| watcher.add_fd(fd, CALL | u64::from(number));
            let called = on_own_stack(|| {
                let (call, pipe) = self.host.borrow().call(&offer, number, watch)?;
                Ok((call, Box::new(pipe)))
            });
            match called {
                Ok((call, pipe)) => {
                    changes.may_receive.store(true, Ordering::Relaxed);
                    *locked(&changes.call) = Some(call);
                    *locked(&changes.made) = Some(pipe);
                    changes.has_events.store(true, Ordering::Relaxed);
                }
                Err(error) => self.push_on(number, ShmHandshakeEvent::Failed(error), events),
            }
        }
    }

    /// Adds the events of upgraded or soon upgraded links to `events`. Those from `start` on are
    /// the poller's.
    fn tell(
        &self,
        watcher: &impl CarrierPoller<I>,
        clock: &impl LinkClock,
        events: &mut Vec<PollEvent>,
        start: usize,
    ) {
        self.left.due.store(false, Ordering::Relaxed);
        self.drop_closed_links();
        let (mut at, mut callers) = (start, false);
        let mut answers = Vec::new();
        while let Some(event) = events.get(at) {
            match event.token & !u64::from(u32::MAX) {
                WAKEUP => self.host.borrow().doorbell().wake(),
                LISTEN_ADDR => callers = true,
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
            self.receive_reply(watcher, number, events);
        }
        self.make_calls(watcher, events);
        if callers || self.accept_paused.get().is_some() {
            self.let_in(watcher, clock.now(), events);
        }
        self.take_signs();
        if self.armed.get() {
            // Another thread may sleep: it is woken by what comes from now on.
            for _ in 0..MAX_LOOKS {
                if self.host.borrow().doorbell().fall_asleep() {
                    break;
                }
                self.take_signs();
            }
        }
        let mut links = self.links.borrow_mut();
        self.signs.borrow_mut().retain(|number| {
            let Some(entry) = links.get_mut(*number) else { return false };
            entry.filled &= !entry.changes.drained.load(Ordering::Relaxed);
            if entry.is_notified() {
                events.push(PollEvent { token: entry.token, readable: true, writable: true });
                entry.fresh = false;
            }
            entry.listed = entry.fresh || entry.filled;
            entry.listed
        });
    }

    /// Returns true if an event of a link's carrier connection is to be passed to the engine.
    fn is_for_engine(&self, watcher: &impl CarrierPoller<I>, event: &PollEvent) -> bool {
        let Some(number) = self.by_token.borrow().get(&event.token).copied() else { return true };
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return true };
        entry.changes.carrier.store(true, Ordering::Relaxed);
        // The link may have moved to memory since it was watched.
        let wanted = entry.wanted();
        if let Some(registered) = entry.registered {
            if registered != wanted {
                entry.registered = Some(wanted);
                let _ = wanted.modify(watcher, entry.carrier, entry.token);
            }
        }
        event.readable || matches!(wanted, SocketInterest::For(Interest { write: true, .. }))
    }

    /// Returns true if all doorbells have been reported to the engine.
    fn is_quiet(&self) -> bool {
        let links = self.links.borrow();
        let is_notified = |number: &u32| {
            links.get(*number).is_some_and(|entry| {
                entry.is_notified()
                    && (entry.fresh || !entry.changes.drained.load(Ordering::Relaxed))
            })
        };
        !self.signs.borrow().iter().any(is_notified)
    }

    /// Collects the links with a rung doorbell.
    fn take_signs(&self) {
        let mut rung = Vec::new();
        self.host.borrow().doorbell().ready(&mut rung);
        if rung.is_empty() {
            return;
        }
        let (mut links, mut signs) = (self.links.borrow_mut(), self.signs.borrow_mut());
        let slots = links.slots() as u32;
        for bit in rung {
            #[cfg(any(test, feature = "sim"))]
            if is_injected(InjectedFault::LostSign) {
                continue;
            }
            for number in (bit..slots).step_by(DOORBELL_BITS as usize) {
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

    /// Queues an event for the engine about a link with a change of its shared-memory upgrade.
    fn push_on(&self, number: u32, changes: ShmHandshakeEvent, events: &mut Vec<PollEvent>) {
        if let Some(entry) = self.links.borrow().get(number) {
            entry.changes.tell(changes);
            events.push(PollEvent { token: entry.token, readable: true, writable: false });
        }
    }

    #[inline(never)]
    fn receive_reply(
        &self,
        watcher: &impl CarrierPoller<I>,
        number: u32,
        events: &mut Vec<PollEvent>,
    ) {
        let Some(changes) = self.links.borrow().get(number).map(|entry| entry.changes.clone())
        else {
            return;
        };
        let mut call = locked(&changes.call);
        let Some(called) = &mut *call else { return };
        let received = match on_own_stack(|| self.host.borrow_mut().accept(called)) {
            Ok(peer) => ShmHandshakeEvent::Answered(peer),
            Err(Error::AGAIN | Error::INTR) => return,
            Err(error) => ShmHandshakeEvent::Failed(error),
        };
        watcher.remove_fd(called.fd());
        *call = None;
        drop(call);
        self.push_on(number, received, events);
    }

    #[inline(never)]
    fn let_in(&self, watcher: &impl CarrierPoller<I>, now: Instant, events: &mut Vec<PollEvent>) {
        if self
            .accept_paused
            .get()
            .is_some_and(|since| now.duration_since(since) < LISTEN_ADDR_DELAY)
        {
            return;
        }
        let mut host = self.host.borrow_mut();
        let mut changes = Vec::new();
        let failed = RefCell::new(Vec::new());
        let watch = |unknown_conn| {
            // A descriptor without a watch is served when the next connection arrives.
            let _ = watcher.add_fd(unknown_conn, LISTEN_ADDR);
        };
        let upgraded = |number, pipe| {
            if let Some(entry) = self.links.borrow().get(number) {
                entry.changes.may_receive.store(true, Ordering::Relaxed);
            }
            changes.push((number, ShmHandshakeEvent::Came(Box::new(pipe))));
        };
        let lost =
            |number, error| failed.borrow_mut().push((number, ShmHandshakeEvent::Failed(error)));
        let result = on_own_stack(|| host.receive(watch, upgraded, lost));
        let listen_addr = host.listen_addr();
        drop(host);
        for (number, one) in changes.into_iter().chain(failed.into_inner()) {
            self.push_on(number, one, events);
        }
        let Some(listen_addr) = listen_addr else { return };
        match (result, self.accept_paused.get()) {
            (Ok(()), Some(_)) => {
                self.accept_paused.set(None);
                let _ = watcher.add_fd(listen_addr, LISTEN_ADDR);
            }
            (Err(_), before) => {
                // The poller would tell of the callers again and again.
                if before.is_none() {
                    watcher.remove_fd(listen_addr);
                }
                self.accept_paused.set(Some(now));
            }
            (Ok(()), None) => {}
        }
    }
}

impl<N> ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    /// A net on another one.
    pub fn new(net: N) -> Self {
        Self { net, host_peers: OnceCell::new() }
    }

    /// Returns the state for shared-memory upgrades, created on first use.
    fn host_peers(&self) -> Result<&HostPeers<CarrierId<N>>> {
        if self.host_peers.get().is_some() {
            return self.known().ok_or(Error::OTHER);
        }
        let new = HostPeers::new(N::Link::settings(), self.net.poller())?;
        Ok(self.host_peers.get_or_init(|| Box::new(new)))
    }

    /// Returns the state of established or attempted upgrades; none in a forked child, because it
    /// has no access to the memory.
    #[inline(always)]
    fn known(&self) -> Option<&HostPeers<CarrierId<N>>> {
        let known = self.host_peers.get().map(Box::as_ref);
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
        id: LocalLinkId<CarrierId<N>>,
        token: u64,
        interest: Interest,
    ) -> Option<(Option<SocketInterest>, SocketInterest)> {
        let host_peers = self.known()?;
        let mut links = host_peers.links.borrow_mut();
        let entry = links.get_mut(id.number)?;
        if entry.token != token {
            host_peers.by_token.borrow_mut().remove(&entry.token);
            host_peers.by_token.borrow_mut().insert(token, id.number);
            entry.token = token;
        }
        let reads_again = interest.read && !(entry.watched && entry.interest.read);
        (entry.watched, entry.interest) = (true, interest);
        if reads_again && entry.note_filled() {
            // Data received meanwhile rings no further doorbell.
            if !std::mem::replace(&mut entry.listed, true) {
                host_peers.signs.borrow_mut().push(id.number);
            }
            if host_peers.armed.get() {
                // Another thread may sleep.
                host_peers.host.borrow().doorbell().rouse();
            }
        }
        let wanted = entry.wanted();
        Some((entry.registered.replace(wanted), wanted))
    }
}

impl<N> LinkPoller<LocalLinkId<CarrierId<N>>> for ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    fn add(&self, id: LocalLinkId<CarrierId<N>>, token: u64, interest: Interest) -> Result {
        let wanted = self.watches(id, token, interest);
        let wanted = wanted.map_or(SocketInterest::For(interest), |(_, wanted)| wanted);
        wanted.add(self.net.poller(), id.carrier, token)
    }

    fn modify(&self, id: LocalLinkId<CarrierId<N>>, token: u64, interest: Interest) -> Result {
        match self.watches(id, token, interest) {
            // Events in shared memory need no call.
            Some((before, wanted)) if before == Some(wanted) => Ok(()),
            Some((_, wanted)) => wanted.modify(self.net.poller(), id.carrier, token),
            None => self.net.poller().modify(id.carrier, token, interest),
        }
    }

    fn remove(&self, id: LocalLinkId<CarrierId<N>>) {
        if let Some(host_peers) = self.known() {
            if let Some(entry) = host_peers.links.borrow_mut().get_mut(id.number) {
                (entry.watched, entry.interest, entry.registered) = (false, Interest::NONE, None);
            }
        }
        self.net.poller().remove(id.carrier);
    }
}

impl<N: Transport> LinkClock for ShmUpgrade<N> {
    forward! { net:
        fn now(&self) -> Instant;
        fn nanos(&self) -> u64;
    }
}

impl<N> Transport for ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    type Link = UpgradableLink<N::Link>;
    type Listener = LocalListener<N::Listener>;
    type Poller = Self;
    type Flusher = N::Flusher;

    #[inline(always)]
    fn poller(&self) -> &Self {
        self
    }

    #[inline(always)]
    fn poll(&self, events: &mut Vec<PollEvent>) {
        let start = events.len();
        self.net.poll(events);
        if let Some(host_peers) = self.known() {
            host_peers.tell(self.net.poller(), &self.net, events, start);
        }
    }

    forward! { net:
        fn wait_fd(&self) -> RawFd;
        fn set_timer(&self, delay: Duration);
        fn clear_timer(&self);
        fn start_flusher(&self, engine: Weak<dyn FlushTarget>) -> Result<N::Flusher>;
        fn process(&self) -> u32;
        fn is_ring(&self) -> bool;
    }

    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link> {
        self.net.dial(local, keep_port, to).map(UpgradableLink::new)
    }

    fn dial_as(
        &self,
        own: Option<&PskConfig>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        self.net.dial_as(own, local, keep_port, to).map(UpgradableLink::new)
    }

    fn bind_as(&self, own: Option<&PskConfig>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (carrier, at) = self.net.bind_as(own, at)?;
        Ok((LocalListener { carrier }, at))
    }

    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (carrier, at) = self.net.bind(at)?;
        Ok((LocalListener { carrier }, at))
    }

    #[inline(always)]
    fn transfer(&mut self, link: &Self::Link, op: LinkOp<'_, '_>) -> Result<usize> {
        if self.is_ring() { self.net.transfer(&link.carrier, op) } else { op.on(link) }
    }

    // With calls for several links none of them moves ([`ShmTransport::may_be_local`]).
    fn send_each(&mut self, sends: &mut [Sending<'_, Self::Link>]) {
        send_each_below(&mut self.net, sends, |link| &link.carrier);
    }

    fn receive_each(&mut self, receives: &mut [Receiving<'_, Self::Link>]) {
        receive_each_below(&mut self.net, receives, |link| &link.carrier);
    }
}

impl<N> ShmTransport for ShmUpgrade<N>
where
    N: Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    fn may_be_local(&self, link: &Self::Link) -> bool {
        // Calls for several links exclude shared memory.
        Self::is_wanted() && !self.is_ring() && link.carrier.is_on_this_host()
    }

    fn offer_shm_upgrade(&self, link: &Self::Link, token: u64) -> Option<LocalOffer> {
        if !self.may_be_local(link) {
            return None;
        }
        let carrier = link.carrier.id();
        let offered = self
            .host_peers()
            .and_then(|host_peers| host_peers.offer(self.net.poller(), carrier, token));
        match offered {
            Ok((offer, part)) => link.part.set(part).is_ok().then_some(offer),
            Err(error) => {
                log_not_in_memory(&link.carrier, &error);
                None
            }
        }
    }

    fn start_shm_upgrade(&self, link: &Self::Link, token: u64, offer: &LocalOffer) {
        if !self.may_be_local(link) {
            return;
        }
        let carrier = link.carrier.id();
        match self.host_peers().map(|host_peers| host_peers.upgrade(carrier, token, offer)) {
            Ok(part) => {
                // There is only one shared-memory upgrade for a link.
                let _ = link.part.set(part);
            }
            Err(error) => log_not_in_memory(&link.carrier, &error),
        }
    }

    #[inline(always)]
    fn is_rung(&self) -> bool {
        self.known().is_some_and(|known| known.host.borrow().doorbell().is_ready())
    }

    #[inline(always)]
    fn has_local(&self) -> bool {
        self.known().is_some()
    }

    fn is_due(&self) -> bool {
        self.known().is_some_and(|known| known.left.due.load(Ordering::Relaxed))
    }

    fn rest(&self) -> bool {
        let Some(host_peers) = self.known() else { return true };
        host_peers.armed.set(true);
        host_peers.is_quiet() && host_peers.host.borrow().doorbell().fall_asleep()
    }

    fn wake(&self) {
        if let Some(host_peers) = self.known() {
            host_peers.armed.set(false);
            host_peers.host.borrow().doorbell().wake();
        }
    }
}

impl<N> LinkProvider for ShmUpgrade<N>
where
    N: LinkProvider
        + Transport<Link: ZeroCopyLink + AuthenticatedLink, Poller: CarrierPoller<CarrierId<N>>>,
{
    const CONTEXTS: bool = N::CONTEXTS;

    forward! { N:
        fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain>;
        fn offers() -> Result<Vec<ProviderOffer>>;
        fn segments() -> SegmentLimit;
        fn region_segments() -> usize;
        fn address(info: InfoRef<'_>) -> Result<Addr>;
        fn own_secret(key: &[u8]) -> Result<PskConfig>;
    }

    fn open() -> Result<Self> {
        N::open().map(Self::new)
    }

    fn open_passive() -> Result<Self> {
        N::open_passive().map(Self::new)
    }

    fn open_with(secret: &PskConfig) -> Result<Self> {
        N::open_with(secret).map(Self::new)
    }

    fn open_passive_with(secret: &PskConfig) -> Result<Self> {
        N::open_passive_with(secret).map(Self::new)
    }

    fn is_for(link: &Self::Link, own: Option<&PskConfig>) -> bool {
        N::is_for(&link.carrier, own)
    }
}

#[cfg(test)]
mod tests;
