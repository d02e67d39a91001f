//! Batched small transfers.
//!
//! A system call costs more than a small message. The first two messages of a burst are sent at
//! once. Messages sent directly after them, before the application polls an empty queue, are
//! written one after the other. They leave with one call: when the batch is full, at the next
//! progress call, or, if the application does neither, when the
//! [`BatchFlusher`](super::batch_flusher::BatchFlusher) expires. They complete when they have left.
//!
//! Small writes to a peer's memory and read requests are batched in the same way, also among
//! messages. The responses to several requests received together leave together after all of them
//! are parsed.
use super::transfer::TxCompletion;
use crate::transport::LinkClock;

/// Most messages in a batch.
pub(crate) const MAX_MESSAGES: usize = 16;

/// Maximum gap in nanoseconds between two messages of a burst.
const BURST: u64 = 20_000;

/// Batch of a connection: encoded transfers not sent, or sent only in part. They precede everything
/// queued in [`StreamConn::tx`](super::conn::StreamConn::tx).
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    sent: usize,
    /// Transfers in the batch.
    count: usize,
    /// Requests to read the peer's memory in the batch, the last entries of
    /// [`StreamConn::reads`](super::conn::StreamConn::reads).
    reads: usize,
    /// Transfers in the batch with a peer acknowledgement, the last entries of
    /// [`StreamConn::unacked`](super::conn::StreamConn::unacked). The peer acknowledges such a
    /// transfer once it has all of it, even if the rest of the batch has not left yet.
    acked: usize,
    /// Transfers to complete when the batch has left.
    finishes: Vec<TxCompletion>,
    /// The batch is held because the application announced more messages (FI_MORE).
    pub(super) more: bool,
    /// When a message left last shortly after others.
    left: Burst,
}

/// End of a burst, in nanoseconds of the clock: a message sent before this time belongs to the
/// burst.
#[derive(Debug, Default)]
pub(super) struct Burst(u64);

impl Burst {
    /// Records the current time as the last send.
    pub(super) fn has_left(&mut self, clock: &impl LinkClock) {
        self.0 = clock.nanos() + BURST;
    }

    /// Returns true if a message about to leave belongs to the burst; otherwise the message may
    /// start one.
    pub(super) fn is_still_bursting(&mut self, clock: &impl LinkClock) -> bool {
        let now = clock.nanos();
        let on = now < self.0;
        if !on {
            self.0 = now + BURST;
        }
        on
    }

    /// Returns true if a message sent now belongs to the burst.
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

    /// Returns true if a message sent now, after others since the last progress call, belongs to a
    /// burst.
    pub(super) fn is_burst(&self, clock: &impl LinkClock) -> bool {
        self.left.is_on(clock)
    }

    /// Returns true if a message about to leave, after others since the last progress call, belongs
    /// to a burst; otherwise it leaves alone and may start one.
    pub(super) fn is_still_bursting(&mut self, clock: &impl LinkClock) -> bool {
        self.left.is_still_bursting(clock)
    }

    /// Records a sent batch, or a message sent shortly after others.
    pub(super) fn has_left(&mut self, clock: &impl LinkClock) {
        self.left.has_left(clock);
    }

    /// Returns true if the batch is to be sent at once: it has the maximum number of transfers, or
    /// at least `enough` bytes ([`StreamSettings::batch`](crate::settings::StreamSettings::batch)).
    pub(super) fn is_full(&self, enough: usize) -> bool {
        self.count >= MAX_MESSAGES || self.bytes.len() >= enough
    }

    /// Adds a message of `len` bytes. Returns the space to copy them to.
    pub(super) fn push(&mut self, header: &[u8], len: usize, finish: TxCompletion) -> &mut [u8] {
        self.finishes.push(finish);
        self.append(header, len)
    }

    /// Adds a request with `len` bytes after its header. It completes only with its response.
    /// Returns the buffer for these bytes.
    pub(super) fn push_read(&mut self, header: &[u8], len: usize) -> &mut [u8] {
        self.reads += 1;
        self.append(header, len)
    }

    /// Adds a transfer of `len` bytes. It completes only with its acknowledgement. Returns the
    /// buffer for these bytes.
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

    /// Returns true if all bytes have left, and only the completions are pending.
    pub(super) fn batch_is_sent(&self) -> bool {
        !self.bytes.is_empty() && self.unsent().is_empty()
    }

    /// Counts `sent` bytes as sent, of transfers completed later.
    pub(super) fn left_early(&mut self, sent: usize) {
        self.sent += sent.min(self.unsent().len());
    }

    /// Returns the unsent bytes of the batch.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Subtracts `sent` bytes from the batch, or all of its bytes if there are fewer. Returns true
    /// when nothing is left; then [`finished`](Self::finished) returns the transfers sent.
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
    pub(super) fn finished(&mut self) -> std::vec::Drain<'_, TxCompletion> {
        self.finishes.drain(..)
    }

    /// Returns the completion actions of the batch's transfers.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn finishes(&self) -> &[TxCompletion] {
        &self.finishes
    }

    /// Returns the completion actions of a discarded batch, the number of its read requests, and
    /// the number of its transfers to be acknowledged.
    pub(super) fn into_finishes(self) -> (Vec<TxCompletion>, usize, usize) {
        (self.finishes, self.reads, self.acked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clock set by the test.
    struct TestClock(std::cell::Cell<u64>);

    impl LinkClock for TestClock {
        fn nanos(&self) -> u64 {
            self.0.get()
        }
    }

    #[test]
    fn messages_form_a_burst_from_the_second_close_one() {
        let (clock, mut batch) = (TestClock(BURST.into()), Batch::default());
        let mut after = |micros: u64| {
            clock.0.set(clock.0.get() + micros * 1000);
            (batch.is_still_bursting(&clock), batch.is_burst(&clock))
        };
        // A single message may start a burst; late messages are single again.
        assert_eq!([0, 21, 20, 1000].map(&mut after), [(false, true); 4]);
        assert_eq!([19, 0].map(&mut after), [(true, true); 2]);
        assert_eq!(after(2), (false, true), "the burst is over unless something leaves with it");
    }

    #[test]
    fn bytes_sent_early_complete_at_the_next_accounting_only() {
        let mut batch = Batch::default();
        assert!(!batch.batch_is_sent());
        batch.push(b"header", 2, TxCompletion::INTERNAL).copy_from_slice(b"ab");
        batch.left_early(3);
        assert_eq!((batch.unsent(), batch.batch_is_sent()), (&b"derab"[..], false));
        batch.left_early(9);
        assert!(batch.batch_is_sent() && !batch.is_empty() && batch.finishes().len() == 1);
        // A message joining now is the only unsent data.
        batch.push(b"next", 0, TxCompletion::INTERNAL);
        assert_eq!((batch.unsent(), batch.batch_is_sent()), (&b"next"[..], false));
        batch.left_early(4);
        assert!(batch.account(&mut 0) && batch.finished().count() == 2);
        assert!(batch.is_empty() && !batch.batch_is_sent());
    }

    #[test]
    fn requests_count_in_a_batch_and_stay_pending_after_its_send() {
        let mut batch = Batch::default();
        batch.push(b"header", 2, TxCompletion::INTERNAL).copy_from_slice(b"ab");
        batch.push_read(b"asks", 1).copy_from_slice(b"c");
        assert_eq!(batch.unsent(), b"headerabasksc");
        for count in 3..=MAX_MESSAGES {
            assert!(!batch.is_full(9000));
            if count % 2 == 0 {
                batch.push_read(b"x", 0);
            } else {
                batch.push(b"y", 0, TxCompletion::INTERNAL);
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
        // A batch that will never be sent returns its number of transfers waiting for the peer.
        batch.push_acked(b"gone", 0);
        let mut all = batch.unsent().len();
        assert!(batch.account(&mut all));
        batch.push_read(b"asks", 0);
        (0..2).for_each(|_| assert!(batch.push_acked(b"told", 0).is_empty()));
        let (finishes, reads, acked) = batch.into_finishes();
        assert_eq!((finishes.len(), reads, acked), (0, 1, 2));
    }
}
