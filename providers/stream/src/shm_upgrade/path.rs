//! Small states of an upgradable link: the path of each direction, the switch to shared memory, the
//! end of the socket, and the numbers of zero-copy sends.
use crate::transport::ZerocopyDone;
use crate::wire::LocalOffer;
use ofi_provider::error::{Error, Result};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Carrier of the bytes of one direction of a link, sent or received.
///
/// | variant | data | left by |
/// |---|---|---|
/// | `Socket` | none | [`start_switching`](DirectionPath::start_switching), before the first byte |
/// | `Switching` | bytes so far: the position of the switch, if it happens now | the switch of this direction, or a failed upgrade |
/// | `Shm` | none: both directions share the [`ShmChannel`](ofi_provider::shm_channel::ShmChannel) | data or an end on the carrier connection behind that of the ring |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkPath {
    /// On the carrier connection, permanently.
    Socket,
    /// On the carrier connection, and counted: the shared-memory upgrade is about to happen.
    Switching(u64),
    /// In memory.
    Shm,
}

/// The path of one direction of a link.
#[derive(Debug)]
pub(super) struct DirectionPath(Cell<LinkPath>);

impl DirectionPath {
    pub(super) fn new() -> Self {
        Self(Cell::new(LinkPath::Socket))
    }

    #[inline(always)]
    pub(super) fn get(&self) -> LinkPath {
        self.0.get()
    }

    #[inline(always)]
    pub(super) fn is_socket(&self) -> bool {
        self.0.get() == LinkPath::Socket
    }

    #[inline(always)]
    pub(super) fn is_shm(&self) -> bool {
        self.0.get() == LinkPath::Shm
    }

    pub(super) fn use_socket(&self) {
        self.0.set(LinkPath::Socket);
    }

    pub(super) fn use_shm(&self) {
        self.0.set(LinkPath::Shm);
    }

    /// Counts bytes from here on.
    pub(super) fn start_switching(&self) {
        self.0.set(LinkPath::Switching(0));
    }

    /// Counts `n` bytes on the carrier connection. Other paths do not count.
    pub(super) fn count(&self, n: usize) {
        if let LinkPath::Switching(before) = self.0.get() {
            self.0.set(LinkPath::Switching(before + n as u64));
        }
    }

    /// Returns the number of bytes on the carrier connection; -FI_EOTHER if they are not counted.
    pub(super) fn position(&self) -> Result<u64> {
        match self.0.get() {
            LinkPath::Switching(position) => Ok(position),
            LinkPath::Socket | LinkPath::Shm => Err(Error::OTHER),
        }
    }

    /// Returns true if all bytes before the other end's switch, at this position, have arrived.
    /// Fails with -FI_EPROTO if more have arrived.
    pub(super) fn has_received_to(&self, at: u64) -> Result<bool> {
        let position = self.position()?;
        if at < position { Err(Error::PROTO) } else { Ok(at == position) }
    }

    /// Counts those of `n` received bytes before the other end's switch at this position, and
    /// returns their number. The others follow the ring's bytes in the stream. Fails with -FI_EPROTO if the position
    /// was passed before.
    pub(super) fn count_received_to(&self, at: u64, n: usize) -> Result<usize> {
        let due = at.checked_sub(self.position()?).ok_or(Error::PROTO)?;
        let due = usize::try_from(due).unwrap_or(usize::MAX).min(n);
        self.count(due);
        Ok(due)
    }
}

/// Trigger of the request for the upgrade: enough traffic in both directions together.
#[derive(Debug)]
pub(super) struct UpgradeTrigger {
    /// Offer of the other end for the shared-memory upgrade, until there was enough traffic.
    offer: Cell<Option<LocalOffer>>,
    /// Traffic required before the upgrade, in bytes and calls.
    enough: (u64, u32),
    bytes: Cell<u64>,
    calls: Cell<u32>,
}

impl UpgradeTrigger {
    pub(super) fn new(offer: Option<LocalOffer>, enough: (u64, u32)) -> Self {
        Self { offer: Cell::new(offer), enough, bytes: Cell::new(0), calls: Cell::new(0) }
    }

    /// Counts bytes of one send or receive. Returns the other end's offer, once, after enough
    /// traffic.
    pub(super) fn count(&self, n: usize) -> Option<LocalOffer> {
        self.bytes.set(self.bytes.get() + n as u64);
        self.calls.set(self.calls.get().saturating_add(1));
        if self.bytes.get() < self.enough.0 && self.calls.get() < self.enough.1 {
            return None;
        }
        self.offer.take()
    }

    /// Returns true if the engine is to run a progress iteration, because the upgrade needs one. No byte
    /// is sent before it, or it follows the bytes. This happens at the 4th, 8th, 16th ... call, because
    /// some links are never upgraded.
    pub(super) fn wants_poll(&self) -> bool {
        let calls = self.calls.get().saturating_add(1);
        if calls < 4 || !calls.is_power_of_two() {
            return false;
        }
        self.calls.set(calls);
        true
    }
}

/// End of a link read through shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum SocketEnd {
    /// End of the carrier connection, as a result of [`ByteLink::recv`](crate::transport::ByteLink::recv).
    Over(Result<usize>),
    /// More data on the carrier connection, beginning with this byte.
    Data(u8),
}

/// Data and end of the carrier connection, to be read after the ring.
#[derive(Debug, Default)]
pub(super) struct SocketTail {
    /// Bytes received before the switch of this direction.
    early: RefCell<VecDeque<u8>>,
    end: Cell<Option<SocketEnd>>,
}

impl SocketTail {
    pub(super) fn push(&self, early: &[u8]) {
        self.early.borrow_mut().extend(early);
    }

    /// Moves early bytes to `buf`; returns their number.
    pub(super) fn take(&self, buf: &mut [u8]) -> usize {
        let mut early = self.early.borrow_mut();
        let n = buf.len().min(early.len());
        buf.iter_mut().zip(early.drain(..n)).for_each(|(to, byte)| *to = byte);
        n
    }

    pub(super) fn has_early(&self) -> bool {
        !self.early.borrow().is_empty()
    }

    pub(super) fn end(&self) -> Option<SocketEnd> {
        self.end.get()
    }

    #[inline(always)]
    pub(super) fn has_end(&self) -> bool {
        self.end.get().is_some()
    }

    pub(super) fn set_end(&self, end: SocketEnd) {
        self.end.set(Some(end));
    }
}

/// Numbers of the zero-copy sends of a link: those of the carrier connection, followed by those of
/// the ring.
#[derive(Debug, Default)]
pub(super) struct ZeroCopyNumbers {
    /// Zero-copy sends accepted by the carrier connection.
    on_socket: Cell<u32>,
    /// True if the carrier connection sends without copying. Otherwise its zero-copy sends complete
    /// immediately; `reported` is the number reported as complete.
    is_enabled: Cell<bool>,
    reported: Cell<u32>,
    /// Notification of the ring taken early, to be reported next.
    next: Cell<Option<ZerocopyDone>>,
}

impl ZeroCopyNumbers {
    pub(super) fn enable(&self) {
        self.is_enabled.set(true);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled.get()
    }

    /// Counts a zero-copy send accepted by the carrier connection.
    pub(super) fn count(&self) {
        self.on_socket.set(self.on_socket.get().wrapping_add(1));
    }

    /// Returns the notification of sends copied by the carrier connection, if they are not
    /// reported.
    pub(super) fn copied(&self) -> Option<ZerocopyDone> {
        let end = self.on_socket.get();
        if self.is_enabled.get() || self.reported.get() == end {
            return None;
        }
        let low = self.reported.replace(end);
        Some(ZerocopyDone { low, high: end.wrapping_sub(1), copied: true })
    }

    /// Converts the ring's numbers `low` to `high` to those of the link.
    pub(super) fn of_ring(&self, low: u32, high: u32, copied: bool) -> ZerocopyDone {
        let before = self.on_socket.get();
        ZerocopyDone { low: low.wrapping_add(before), high: high.wrapping_add(before), copied }
    }

    pub(super) fn has_next(&self) -> bool {
        self.next.get().is_some()
    }

    pub(super) fn set_next(&self, next: Option<ZerocopyDone>) {
        self.next.set(next);
    }

    pub(super) fn take_next(&self) -> Option<ZerocopyDone> {
        self.next.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trigger(enough: (u64, u32)) -> UpgradeTrigger {
        UpgradeTrigger::new(Some([7; crate::wire::OFFER_LEN]), enough)
    }

    #[test]
    fn offer_is_returned_once_after_enough_bytes_or_calls() {
        let by_bytes = trigger((100, u32::MAX));
        assert!(by_bytes.count(60).is_none() && by_bytes.count(39).is_none());
        assert!(by_bytes.count(1).is_some() && by_bytes.count(1).is_none());
        let by_calls = trigger((u64::MAX, 2));
        assert!(by_calls.count(0).is_none() && by_calls.count(0).is_some());
    }

    #[test]
    fn progress_is_wanted_before_ever_fewer_calls() {
        let trigger = trigger((u64::MAX, u32::MAX));
        let mut wanted = Vec::new();
        for call in 1..40 {
            // A call is counted either here or by its traffic.
            if trigger.wants_poll() {
                wanted.push(call);
            } else {
                assert!(trigger.count(1).is_none());
            }
        }
        assert_eq!(wanted, [4, 8, 16, 32]);
    }

    #[test]
    fn only_a_switching_direction_counts_its_bytes() {
        let path = DirectionPath::new();
        path.count(5);
        assert_eq!((path.get(), path.position()), (LinkPath::Socket, Err(Error::OTHER)));
        path.start_switching();
        path.count(5);
        path.count(2);
        assert_eq!((path.get(), path.position()), (LinkPath::Switching(7), Ok(7)));
        path.use_shm();
        path.count(1);
        assert!(path.is_shm() && path.position() == Err(Error::OTHER));
        path.use_socket();
        assert!(path.is_socket() && path.has_received_to(0) == Err(Error::OTHER));
    }

    #[test]
    fn bytes_behind_the_switch_of_the_other_end_are_not_counted() {
        let path = DirectionPath::new();
        path.start_switching();
        path.count(10);
        assert_eq!(path.has_received_to(15), Ok(false));
        assert_eq!(path.count_received_to(15, 3), Ok(3));
        assert_eq!(path.count_received_to(15, 20), Ok(2));
        assert_eq!((path.has_received_to(15), path.count_received_to(15, 1)), (Ok(true), Ok(0)));
        // A switch before bytes that have arrived is a violation.
        assert_eq!(path.has_received_to(14), Err(Error::PROTO));
        assert_eq!(path.count_received_to(14, 1), Err(Error::PROTO));
    }

    #[test]
    fn early_bytes_of_the_socket_are_taken_in_order() {
        let tail = SocketTail::default();
        assert!(!tail.has_early() && !tail.has_end());
        tail.push(b"abc");
        tail.push(b"de");
        let mut buf = [0; 4];
        assert_eq!((tail.take(&mut buf), &buf), (4, b"abcd"));
        assert_eq!((tail.has_early(), tail.take(&mut buf), buf[0]), (true, 1, b'e'));
        tail.set_end(SocketEnd::Data(9));
        assert!(!tail.has_early() && matches!(tail.end(), Some(SocketEnd::Data(9))));
    }

    #[test]
    fn zero_copy_numbers_of_the_ring_follow_those_of_the_socket() {
        let numbers = ZeroCopyNumbers::default();
        assert!(numbers.copied().is_none());
        numbers.count();
        numbers.count();
        let done = numbers.copied().unwrap();
        assert_eq!((done.low, done.high, done.copied), (0, 1, true));
        assert!(numbers.copied().is_none(), "they are reported once");
        let done = numbers.of_ring(0, 3, false);
        assert_eq!((done.low, done.high, done.copied), (2, 5, false));
        // The kernel reports sends that it does not copy.
        numbers.enable();
        numbers.count();
        assert!(numbers.copied().is_none());
    }
}
