//! Links with both ends possibly on one host.
use super::path::{
    DirectionPath, LinkPath, SocketEnd, SocketTail, UpgradeTrigger, ZeroCopyNumbers,
};
use super::shared::{LinkRequest, LinkShared, NetShared, UpgradeEvent};
use crate::forward::{forward, forward_link};
use crate::transport::{
    AuthenticatedLink, ByteLink, LinkListener, LinkRecovery, ShmLink, ZeroCopyLink, ZerocopyDone,
    as_word, from_word, log_not_in_memory, peer_of,
};
use crate::wire::{LocalOffer, StreamHeader};
use ofi_provider::addr::Addr;
use ofi_provider::buf::{
    ContiguousSrc, CopyMode, GatherList, InlineBytes, ScatterList, UntrustedBytes,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::shm_channel::{InlineRecv, JoinedWords, ShmChannel};
use ofi_provider::shm_handshake::ShmPeer;
use ofi_provider::slab::NONE;
use ofi_provider::sys::OwnerProcess;
use ofi_provider::traffic_class::TrafficClass;
#[cfg(any(test, feature = "sim"))]
use ofi_simulation::{InjectedFault, injected};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Maximum bytes received by one call during the shared-memory upgrade.
const SWITCHING_SEGMENT: usize = 8192;

/// Additional state of a link with both ends possibly on one host.
#[derive(Debug)]
pub(super) struct ShmLinkState {
    /// Number of the link within the net.
    number: u32,
    /// Process owning the link.
    process: OwnerProcess,
    shared: Arc<LinkShared>,
    net: Arc<NetShared>,
    pipe: OnceCell<ShmChannel>,
    /// The other end can be signalled about written data.
    upgraded: Cell<bool>,
    trigger: UpgradeTrigger,
    tail: SocketTail,
    zcopy: ZeroCopyNumbers,
}

impl ShmLinkState {
    pub(super) fn new(
        number: u32,
        shared: Arc<LinkShared>,
        net: Arc<NetShared>,
        trigger: UpgradeTrigger,
    ) -> Box<Self> {
        Box::new(Self {
            number,
            process: OwnerProcess::current(),
            shared,
            net,
            pipe: OnceCell::new(),
            upgraded: Cell::new(false),
            trigger,
            tail: SocketTail::default(),
            zcopy: ZeroCopyNumbers::default(),
        })
    }

    /// Requests the shared-memory upgrade, if traffic was sufficient for this offer.
    #[inline(always)]
    fn request(&self, offer: Option<LocalOffer>) {
        if let Some(offer) = offer {
            self.net.requests.push(LinkRequest::Upgrade(self.number, offer));
        }
    }
}

/// Link with both ends possibly on one host.
#[derive(Debug)]
pub struct UpgradableLink<L: ByteLink> {
    carrier: L,
    tx_path: DirectionPath,
    rx_path: DirectionPath,
    part: OnceCell<Box<ShmLinkState>>,
}

/// Identifier of a link or listener within a [`ShmUpgrade`](super::ShmUpgrade).
#[derive(Clone, Copy, Debug)]
pub struct LocalLinkId<I> {
    pub(super) carrier: I,
    pub(super) number: u32,
}

impl<L: ByteLink> UpgradableLink<L> {
    /// Returns the carrier connection.
    #[inline(always)]
    pub(super) fn carrier(&self) -> &L {
        &self.carrier
    }

    /// Adds the state of the shared-memory upgrade; returns false if the link has it.
    pub(super) fn set_state(&self, state: Box<ShmLinkState>) -> bool {
        self.part.set(state).is_ok()
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> UpgradableLink<L> {
    pub(super) fn new(carrier: L) -> Self {
        let (tx_path, rx_path) = (DirectionPath::new(), DirectionPath::new());
        Self { carrier, tx_path, rx_path, part: OnceCell::new() }
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
        if !part.process.is_current() {
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
        if part.shared.events.has_items() {
            part.shared.events.take().into_iter().for_each(|event| self.receive(part, event));
        }
    }

    #[cold]
    fn receive(&self, part: &ShmLinkState, event: UpgradeEvent) {
        let failed = match event {
            UpgradeEvent::Requested(pipe) => {
                // One is made for a link.
                let _ = part.pipe.set(*pipe);
                return;
            }
            UpgradeEvent::Came(pipe) => {
                let reads = pipe.peer_memory().is_some();
                part.upgraded.set(part.pipe.set(*pipe).is_ok());
                return self.log_reads(reads);
            }
            UpgradeEvent::Answered(peer) => {
                let reads = peer.memory.is_some();
                if let Ok((_, pipe)) = self.pipe() {
                    peer.join(pipe);
                    part.upgraded.set(true);
                }
                return self.log_reads(reads);
            }
            UpgradeEvent::Failed(error) => error,
        };
        self.tx_path.use_socket();
        // After a failure to understand the response, this end may still receive data through
        // shared memory.
        if failed == Error::CONNRESET || part.pipe.get().is_none() {
            self.rx_over_carrier(part);
        }
        log_not_in_memory(&self.carrier, &failed);
    }

    /// Receives on the carrier connection alone from now on.
    fn rx_over_carrier(&self, part: &ShmLinkState) {
        self.rx_path.use_socket();
        part.shared.may_receive.set(false);
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
        // A peer without memory for this end's doorbell stays on the carrier connection.
        let is_joined = part.upgraded.get() && ShmPeer::has_joined(pipe);
        if !is_joined || self.carrier.has_half_sent() {
            return false;
        }
        let Ok(at) = self.tx_path.position() else { return false };
        #[cfg(any(test, feature = "sim"))]
        let at = at ^ u64::from(injected() == Some(InjectedFault::MisplacedWrite));
        pipe.switch_at(at);
        self.tx_path.use_shm();
        part.shared.sends.set(true);
        self.log_path("to");
        true
    }

    /// Sends on a link not carried by the carrier connection alone. Separate from
    /// [`ByteLink::send`], so sends on the carrier connection have all registers available.
    #[inline(never)]
    fn send_alternate_path(&self, bytes: &[u8]) -> isize {
        if self.tx_path.is_shm() {
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
        as_word(match self.tx_path.get() {
            LinkPath::Shm => self.send_memory(bytes),
            _ => self.send_switching(bytes),
        })
    }

    #[cold]
    fn send_switching(&self, bytes: &[u8]) -> Result<usize> {
        let part = self.part()?;
        if self.moves_out(part) {
            return self.send_memory(bytes);
        }
        if part.trigger.wants_poll() {
            part.net.is_due.set(true);
            return Err(Error::AGAIN);
        }
        let sent = self.carrier.send(bytes)?;
        self.tx_path.count(sent);
        part.request(part.trigger.count(sent));
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
        let notified = part.shared.carrier.get() || part.tail.has_end();
        if result == Err(Error::AGAIN) && notified && self.carrier.has_ended() {
            return Err(Error::from_code(libc::EPIPE));
        }
        result
    }

    /// Handles an event of the carrier connection: checks for its end and for more data.
    #[cold]
    fn poll_carrier(&self, part: &ShmLinkState) {
        if part.tail.has_end() {
            return;
        }
        part.shared.carrier.set(false);
        let mut byte = [0];
        let end = match self.carrier.recv(&mut byte) {
            Err(Error::AGAIN | Error::INTR) => return,
            Ok(1) => SocketEnd::Data(byte[0]),
            over => SocketEnd::Over(over),
        };
        part.tail.set_end(end);
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
        part.shared.drained.set(true);
        // This lets an end that only receives learn the peer to notify of free space.
        self.go_on(part);
        if part.shared.carrier.get() || part.tail.has_end() {
            return self.read_on(part, pipe, buf);
        }
        Err(Error::AGAIN)
    }

    /// Reads the data following the empty ring: the link's end, or trailing data on the socket.
    #[cold]
    fn read_on(&self, part: &ShmLinkState, pipe: &ShmChannel, buf: &mut [u8]) -> Result<usize> {
        self.poll_carrier(part);
        if !part.tail.has_end() && !part.tail.has_early() {
            return Err(Error::AGAIN);
        }
        // Ring data written before the end, or before the trailing data, is visible by now.
        match pipe.recv(buf) {
            Err(Error::AGAIN) => {}
            result => return result,
        }
        let early = part.tail.take(buf);
        let end = part.tail.end();
        if end.is_none() {
            // The early bytes continue on the carrier connection, if the other end sends more.
            if part.tail.has_early() {
                part.shared.carrier.set(true);
            } else {
                self.rx_over_carrier(part);
            }
        }
        match end {
            // The early bytes of the socket are read before its end.
            _ if early > 0 => Ok(early),
            Some(SocketEnd::Over(result)) => result,
            Some(SocketEnd::Data(byte)) if !buf.is_empty() => {
                self.rx_over_carrier(part);
                buf[0] = byte;
                Ok(1)
            }
            _ => Err(Error::AGAIN),
        }
    }

    /// Receives on a link not carried by the carrier connection alone, the counterpart of
    /// [`UpgradableLink::send_alternate_path`].
    #[inline(never)]
    fn recv_alternate_path(&self, buf: &mut [u8]) -> isize {
        if self.rx_path.is_shm() {
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
        if self.rx_path.is_socket() {
            return self.carrier.recv(buf);
        }
        let moved = || self.pipe().ok().and_then(|(_, pipe)| pipe.peer_switched_at());
        if self.moves_in(moved())? {
            return self.recv_memory(buf);
        }
        let came = self.carrier.recv(buf);
        // The other end may have moved, filled the ring and said its last words in the meantime.
        let Some(at) = moved() else {
            // A peer switching from now on rings the doorbell.
            let n = came.inspect_err(|_| part.shared.drained.set(true))?;
            self.rx_path.count(n);
            part.request(part.trigger.count(n));
            return Ok(n);
        };
        let n = match came {
            Ok(n) if n > 0 || buf.is_empty() => n,
            Err(Error::AGAIN | Error::INTR) => {
                // A peer already switched, with earlier data still in flight, has rung the
                // doorbell. The link is polled until the data has arrived.
                part.shared.drained.set(false);
                return came;
            }
            // Or the peer has ended since: the data of the ring is read before its end.
            _ => return self.receive_trailing(part, at, came, buf),
        };
        let due = self.rx_path.count_received_to(at, n)?;
        if n > due {
            part.tail.push(&buf[due..n]);
            part.shared.carrier.set(true);
        }
        if due == 0 && n > 0 && self.moves_in(Some(at))? {
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
        if !self.moves_in(Some(at))? {
            return end;
        }
        part.tail.set_end(SocketEnd::Over(end));
        self.recv_memory(buf)
    }

    /// Returns true if receiving goes through shared memory from here on: the other end has
    /// switched its sending there, and all data sent before has arrived.
    fn moves_in(&self, moved: Option<u64>) -> Result<bool> {
        let Some(at) = moved else { return Ok(false) };
        if !self.rx_path.has_received_to(at)? {
            return Ok(false);
        }
        self.rx_path.use_shm();
        self.log_path("from");
        Ok(true)
    }

    /// Takes the pipe's next notification of zero-copy sends, in the numbers of the link.
    fn next_fetched(&self, part: &ShmLinkState) -> Option<ZerocopyDone> {
        if let Some(copied) = part.zcopy.copied() {
            return Some(copied);
        }
        let (_, pipe) = self.pipe().ok()?;
        let done = pipe.zcopy_completed().ok()?;
        Some(part.zcopy.of_ring(done.low, done.high, !pipe.can_expose()))
    }
}

impl<L: ByteLink> Drop for UpgradableLink<L> {
    fn drop(&mut self) {
        if let Some(part) = self.part.get() {
            // No process waits for this end any more, and the net drops it.
            drop(part.shared.events.take());
            part.net.requests.push(LinkRequest::Forget(part.number));
        }
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> ByteLink for UpgradableLink<L> {
    type Id = LocalLinkId<L::Id>;

    forward_link! { carrier: L }

    #[inline(always)]
    fn id(&self) -> LocalLinkId<L::Id> {
        let number = self.part.get().map_or(NONE, |part| part.number);
        LocalLinkId { carrier: self.carrier.id(), number }
    }

    #[inline(always)]
    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        if self.rx_path.is_socket() {
            return self.carrier.recv(buf);
        }
        from_word(self.recv_alternate_path(buf))
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        if self.tx_path.is_socket() {
            return self.carrier.send(bytes);
        }
        from_word(self.send_alternate_path(bytes))
    }

    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        match self.rx_path.get() {
            LinkPath::Socket => self.carrier.recv_list(list),
            LinkPath::Shm => {
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
            LinkPath::Switching(_) => {
                let Some(buf) = list.buf_from(0) else { return Ok(0) };
                let most = buf.len().min(SWITCHING_SEGMENT);
                self.recv_switching(&mut buf[..most])
            }
        }
    }

    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        if self.tx_path.is_socket() {
            // Data to be exposed, at the link's end.
            let exposes = self.part.get().is_none_or(|part| part.zcopy.is_enabled());
            return self.carrier.send_list(list, if exposes { way } else { CopyMode::Copied });
        }
        if !self.tx_path.is_shm() {
            let part = self.part()?;
            if !self.moves_out(part) {
                // A library thread may send the list, and cannot retry it: the iteration follows.
                if part.trigger.wants_poll() {
                    part.net.is_due.set(true);
                }
                let zcopy = way.is_zcopy();
                let way = if zcopy && !part.zcopy.is_enabled() { CopyMode::Copied } else { way };
                let sent = self.carrier.send_list(list, way)?;
                self.tx_path.count(sent);
                part.request(part.trigger.count(sent));
                if zcopy && sent > 0 {
                    part.zcopy.count();
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
        fn send_answer(&self, bytes: &[u8]) -> Result<usize>;
        fn unconfirmed_answer(&self) -> std::sync::Weak<crate::unconfirmed_answer::UnconfirmedAnswer>;
        fn receive_first_frames(&self) -> Result<bool>;
        fn set_traffic_class(&self, class: TrafficClass);
        fn sockets(&self) -> u64;
        fn recovery(&self) -> LinkRecovery;
        fn unacknowledged(&self) -> usize;
        fn is_silent(&self, now: std::time::Instant) -> bool;
        fn probe(&self);
        fn shutdown(&self);
        fn end_sending(&self);
    }

    fn descriptors(&self) -> usize {
        let has_memory = self.part.get().is_some_and(|part| part.upgraded.get());
        self.carrier.descriptors() + usize::from(has_memory)
    }

    fn made(&self) {
        self.carrier.made();
        if self.part.get().is_some() {
            self.tx_path.start_switching();
            self.rx_path.start_switching();
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
        self.rx_path.is_shm()
    }

    #[inline(always)]
    fn tx_over_shm(&self) -> bool {
        self.tx_path.is_shm()
    }

    fn count_early(&self, sent: usize) {
        self.tx_path.count(sent);
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
            part.shared.drained.set(true);
            let shared = &part.shared;
            if shared.events.has_items() || shared.carrier.get() || part.tail.has_end() {
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
        if pipe.is_exposing() && !part.zcopy.has_next() {
            part.zcopy.set_next(self.next_fetched(part));
        }
        part.zcopy.has_next()
            || (rx_path && self.rx_over_shm() && data)
            || (unsent && self.tx_over_shm() && pipe.has_space())
    }

    fn send_trailing_on_socket(&self) {
        self.tx_path.use_socket();
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

    fn device_channel(&self) -> Option<&ShmChannel> {
        if !self.tx_over_shm() {
            return None;
        }
        let (_, pipe) = self.pipe().ok()?;
        pipe.peer_knows_devices().then_some(pipe)
    }

    fn inbound_channel(&self) -> Result<&ShmChannel> {
        match self.pipe() {
            Ok((_, pipe)) if self.rx_over_shm() => Ok(pipe),
            Ok(_) => Err(Error::PROTO),
            Err(error) => Err(error),
        }
    }
}

impl<L: ZeroCopyLink + AuthenticatedLink> ZeroCopyLink for UpgradableLink<L> {
    fn set_zerocopy(&self) -> Result {
        self.carrier.set_zerocopy()?;
        if let Some(part) = self.part.get() {
            part.zcopy.enable();
        }
        Ok(())
    }

    fn zerocopy_size(&self) -> usize {
        self.carrier.zerocopy_size()
    }

    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        let Some(part) = self.part.get() else { return self.carrier.zerocopy_done() };
        if let Some(done) = part.zcopy.take_next().or_else(|| self.next_fetched(part)) {
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
    pub(super) carrier: S,
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

    fn stop_listening(&self) {
        self.carrier.stop_listening();
    }

    fn waiting(&self) -> usize {
        self.carrier.waiting()
    }

    fn accept(&self) -> Result<(Self::Link, Addr)> {
        let (carrier, from) = self.carrier.accept()?;
        Ok((UpgradableLink::new(carrier), from))
    }
}
