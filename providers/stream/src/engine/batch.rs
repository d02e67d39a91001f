//! Small transfers that leave together.
//!
//! A system call costs more than a small message. The first two messages of a
//! burst leave at once; those that the application sends right behind them,
//! before it looks at a queue that has nothing for it, are written one behind the
//! other and leave with one call: when enough of them are there, at the next
//! progress, or, if the application does neither, when the [`Courier`](super::courier::Courier) comes.
//! They are complete when they have left. Small writes to a peer's memory and
//! requests to read it do the same, among messages; and what a peer asks for with
//! several requests that came together leaves together when all are understood.
use super::transfer::TransferFinish;
use crate::net::LinkClock;

/// Most messages in a batch.
const MAX_MESSAGES: usize = 16;

/// Messages that follow each other within so many nanoseconds are a burst.
const BURST: u64 = 20_000;

/// A connection's batch: encoded transfers that are not sent, or only in part. They go before
/// all that is queued in [`StreamConn::tx`](super::conn::StreamConn::tx).
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    sent: usize,
    /// Transfers in the batch.
    count: usize,
    /// Requests to read the peer's memory among them, which are the last in
    /// [`StreamConn::reads`](super::conn::StreamConn::reads).
    reads: usize,
    /// Transfers among them that the peer is to acknowledge, which are the last in
    /// [`StreamConn::unacked`](super::conn::StreamConn::unacked): a peer that has all of such a
    /// transfer acknowledges it, even if the rest of the batch has not left yet.
    acked: usize,
    /// What to complete when the batch has left.
    finishes: Vec<TransferFinish>,
    /// The batch is held because the application announced more messages (FI_MORE).
    pub(super) more: bool,
    /// When a message left last shortly after others.
    left: Burst,
}

/// Tells a burst: until when another message belongs to it, by the nanoseconds of the clock.
#[derive(Debug, Default)]
pub(super) struct Burst(u64);

impl Burst {
    /// Notes that a message has left now.
    pub(super) fn has_left(&mut self, clock: &impl LinkClock) {
        self.0 = clock.nanos() + BURST;
    }

    /// Whether a message that is about to leave belongs to the burst; otherwise it may begin one.
    pub(super) fn goes_on(&mut self, clock: &impl LinkClock) -> bool {
        let now = clock.nanos();
        let on = now < self.0;
        if !on {
            self.0 = now + BURST;
        }
        on
    }

    /// Whether a message that is sent now belongs to the burst.
    pub(super) fn is_on(&self, clock: &impl LinkClock) -> bool {
        clock.nanos() < self.0
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of the batch, sent or not.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a message that is sent now, after others since the last progress, belongs to a
    /// burst.
    pub(super) fn is_burst(&self, clock: &impl LinkClock) -> bool {
        self.left.is_on(clock)
    }

    /// Whether a message that is about to leave, after others since the last progress, belongs to a
    /// burst; otherwise it leaves alone, and may begin one.
    pub(super) fn goes_on(&mut self, clock: &impl LinkClock) -> bool {
        self.left.goes_on(clock)
    }

    /// Notes that the batch has left, or a message shortly after others.
    pub(super) fn has_left(&mut self, clock: &impl LinkClock) {
        self.left.has_left(clock);
    }

    /// Whether the batch has enough transfers, or as many bytes as are `enough`
    /// ([`StreamSettings::batch`](crate::settings::StreamSettings::batch)), to be sent at once.
    pub(super) fn is_full(&self, enough: usize) -> bool {
        self.count >= MAX_MESSAGES || self.bytes.len() >= enough
    }

    /// Adds a message of `len` bytes; returns the room to copy them to.
    pub(super) fn push(&mut self, header: &[u8], len: usize, finish: TransferFinish) -> &mut [u8] {
        self.finishes.push(finish);
        self.append(header, len)
    }

    /// Adds a request with `len` bytes behind its header, which is complete only when it is
    /// answered; returns the room for these bytes.
    pub(super) fn push_read(&mut self, header: &[u8], len: usize) -> &mut [u8] {
        self.reads += 1;
        self.append(header, len)
    }

    /// Adds a transfer of `len` bytes that is complete only when it is acknowledged; returns the
    /// room for these bytes.
    pub(super) fn push_acked(&mut self, header: &[u8], len: usize) -> &mut [u8] {
        self.acked += 1;
        self.append(header, len)
    }

    fn append(&mut self, header: &[u8], len: usize) -> &mut [u8] {
        self.count += 1;
        self.bytes.extend_from_slice(header);
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        &mut self.bytes[at..]
    }

    /// Whether all bytes have left, and the transfers are only to be completed.
    pub(super) fn has_gone(&self) -> bool {
        !self.bytes.is_empty() && self.unsent().is_empty()
    }

    /// Notes that so many bytes have left, of transfers that are completed later.
    pub(super) fn left_early(&mut self, sent: usize) {
        self.sent += sent.min(self.unsent().len());
    }

    /// The bytes of the batch that are not sent yet.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Takes `sent` bytes off the batch, or what it has. True when nothing is left, and then
    /// [`finished`](Self::finished) gives the transfers that have left.
    pub(super) fn account(&mut self, sent: &mut usize) -> bool {
        let part = (*sent).min(self.bytes.len() - self.sent);
        self.sent += part;
        *sent -= part;
        if self.sent < self.bytes.len() {
            return false;
        }
        self.bytes.clear();
        (self.sent, self.count, self.reads, self.acked, self.more) = (0, 0, 0, 0, false);
        true
    }

    /// Takes out the finishes of the batch's messages.
    pub(super) fn finished(&mut self) -> std::vec::Drain<'_, TransferFinish> {
        self.finishes.drain(..)
    }

    /// What is to be done for the batch's transfers when it has left.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn finishes(&self) -> &[TransferFinish] {
        &self.finishes
    }

    /// The finishes of a batch that will never leave, how many requests to read it has, and how
    /// many transfers that are to be acknowledged.
    pub(super) fn into_finishes(self) -> (Vec<TransferFinish>, usize, usize) {
        (self.finishes, self.reads, self.acked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that the test sets.
    struct TestClock(std::cell::Cell<u64>);

    impl LinkClock for TestClock {
        fn nanos(&self) -> u64 {
            self.0.get()
        }
    }

    #[test]
    fn messages_are_a_burst_from_the_second_on_that_follows_another_closely() {
        let (clock, mut batch) = (TestClock(BURST.into()), Batch::default());
        let mut after = |micros: u64| {
            clock.0.set(clock.0.get() + micros * 1000);
            (batch.goes_on(&clock), batch.is_burst(&clock))
        };
        // Who is alone may begin one; those that come late are alone again.
        assert_eq!([0, 21, 20, 1000].map(&mut after), [(false, true); 4]);
        assert_eq!([19, 0].map(&mut after), [(true, true); 2]);
        assert_eq!(after(2), (false, true), "the burst is over unless something leaves with it");
    }

    #[test]
    fn what_left_early_is_completed_by_the_next_account_and_not_before() {
        let mut batch = Batch::default();
        assert!(!batch.has_gone());
        batch.push(b"header", 2, TransferFinish::INTERNAL).copy_from_slice(b"ab");
        batch.left_early(3);
        assert_eq!((batch.unsent(), batch.has_gone()), (&b"derab"[..], false));
        batch.left_early(9);
        assert!(batch.has_gone() && !batch.is_empty() && batch.finishes().len() == 1);
        // What joins then is all that is left to send.
        batch.push(b"next", 0, TransferFinish::INTERNAL);
        assert_eq!((batch.unsent(), batch.has_gone()), (&b"next"[..], false));
        batch.left_early(4);
        assert!(batch.account(&mut 0) && batch.finished().count() == 2);
        assert!(batch.is_empty() && !batch.has_gone());
    }

    #[test]
    fn requests_count_among_what_leaves_together_and_are_not_over_with_that() {
        let mut batch = Batch::default();
        batch.push(b"header", 2, TransferFinish::INTERNAL).copy_from_slice(b"ab");
        batch.push_read(b"asks", 1).copy_from_slice(b"c");
        assert_eq!(batch.unsent(), b"headerabasksc");
        for count in 3..=MAX_MESSAGES {
            assert!(!batch.is_full(9000));
            if count % 2 == 0 {
                batch.push_read(b"x", 0);
            } else {
                batch.push(b"y", 0, TransferFinish::INTERNAL);
            }
        }
        assert!(batch.is_full(9000));
        let mut sent = 5;
        assert!(!batch.account(&mut sent));
        assert_eq!(batch.unsent()[..4], *b"raba");
        let mut rest = batch.unsent().len() + 3;
        assert!(batch.account(&mut rest));
        assert_eq!((sent, rest), (0, 3));
        assert_eq!(batch.finished().count(), MAX_MESSAGES / 2);
        assert!(batch.is_empty() && !batch.is_full(9000));
        // A batch that will never leave tells how many of its transfers wait for the peer.
        batch.push_acked(b"gone", 0);
        let mut all = batch.unsent().len();
        assert!(batch.account(&mut all));
        batch.push_read(b"asks", 0);
        (0..2).for_each(|_| assert!(batch.push_acked(b"told", 0).is_empty()));
        let (finishes, reads, acked) = batch.into_finishes();
        assert_eq!((finishes.len(), reads, acked), (0, 1, 2));
    }
}
