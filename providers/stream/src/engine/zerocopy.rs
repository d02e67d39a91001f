//! Zero-copy sending of large messages (over sockets: MSG_ZEROCOPY).
//!
//! The kernel sends such bytes without copying them first, so the memory stays in use until the
//! peer's system has them. The message completes when the kernel has released all calls with a part
//! of it ([`ZeroCopyLink::zerocopy_done`]). Only the application's bytes are sent in this way; headers
//! are copied as usual. A peer over shared memory may read large messages directly
//! ([`ShmLink::zcopy_threshold`]); this is handled in the same way.
use super::transfer::TxCompletion;
use crate::transport::ZeroCopyLink;
use std::collections::VecDeque;

/// Maximum consecutive zero-copy calls copied by the kernel after all. Beyond it a connection gives
/// up zero copy. A few copies may have another reason, such as a packet capture.
pub(super) const MAX_COPIED: u32 = 16;

/// Zero-copy message, sent or being sent.
#[derive(Debug)]
struct ZeroCopyTx {
    /// Number of the message's first call, the count of its calls, and the count of those not
    /// released by the kernel.
    first: u32,
    calls: u32,
    pending: u32,
    /// Completion of the message, set once the kernel has all of it; [`TxCompletion::INTERNAL`]
    /// while the peer's acknowledgement is pending.
    finish: Option<TxCompletion>,
    /// Names the message until it is acknowledged; 0 if no acknowledgement is awaited.
    number: u32,
}

/// A connection's zero-copy messages under way.
#[derive(Debug)]
pub(super) struct Zerocopy {
    /// Messages of fewer bytes are copied; usize::MAX once zero-copy was given up.
    pub(super) from: usize,
    /// The number of the next call, as the system counts.
    next: u32,
    /// Consecutive calls copied by the kernel after all.
    pub(super) copied: u32,
    /// Last number assigned to a message.
    named: u32,
    /// Messages under way, in the order they left; only the last may have bytes left to send.
    leaving: VecDeque<ZeroCopyTx>,
}

impl Zerocopy {
    /// The state for a new connection; none if the user does not want zero-copy
    /// ([`zerocopy_size`](crate::settings::StreamSettings::zerocopy_size)) or the link cannot do
    /// without copies.
    pub(super) fn new<L: ZeroCopyLink>(link: &L) -> Option<Box<Self>> {
        let from = link.zerocopy_size();
        let wanted = from != usize::MAX && link.set_zerocopy().is_ok();
        wanted.then(|| Self::exposing(from))
    }

    /// Returns the state for a connection with a peer reading messages of at least this many bytes
    /// directly ([`ShmLink::zcopy_threshold`]).
    pub(super) fn exposing(from: usize) -> Box<Self> {
        Box::new(Self { from, next: 0, copied: 0, named: 0, leaving: VecDeque::new() })
    }

    /// Returns true if a message of `len` bytes is to be sent with zero copy.
    pub(super) fn takes(&self, len: usize) -> bool {
        len >= self.from
    }

    /// Records a zero-copy call for the message being sent.
    pub(super) fn called(&mut self) {
        match self.leaving.back_mut().filter(|last| last.finish.is_none()) {
            Some(last) => {
                last.calls += 1;
                last.pending += 1;
            }
            None => {
                let first = self.next;
                let (finish, number) = (None, 0);
                self.leaving.push_back(ZeroCopyTx { first, calls: 1, pending: 1, finish, number });
            }
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Records the message being sent as completely passed to the kernel. Returns `finish` if the
    /// message is complete: no part of it is in use, and nothing before it, because messages
    /// complete in order.
    pub(super) fn sent(&mut self, finish: TxCompletion) -> Option<TxCompletion> {
        match self.leaving.back_mut() {
            Some(last) if last.finish.is_none() => last.finish = Some(finish),
            Some(_) => {
                let first = self.next;
                let finish = Some(finish);
                let copied = ZeroCopyTx { first, calls: 0, pending: 0, finish, number: 0 };
                self.leaving.push_back(copied);
            }
            None => return Some(finish),
        }
        // The system may have been done with its calls before the last of it left.
        self.take_finished()
    }

    /// Records the message being sent, with a pending acknowledgement, as completely passed to the
    /// kernel. Returns its number while the kernel uses its bytes, or 0. A peer may acknowledge
    /// data before reading it, so both events must be awaited.
    pub(super) fn sent_for_ack(&mut self) -> u32 {
        let Some(last) = self.leaving.back_mut().filter(|last| last.finish.is_none()) else {
            return 0;
        };
        self.named = self.named.checked_add(1).unwrap_or(1);
        (last.finish, last.number) = (Some(TxCompletion::INTERNAL), self.named);
        match self.take_finished() {
            Some(_) => 0,
            None => self.named,
        }
    }

    /// The peer acknowledged the message of this number; gives `finish` back if the system
    /// is done with it.
    pub(super) fn acknowledged(
        &mut self,
        number: u32,
        finish: TxCompletion,
    ) -> Option<TxCompletion> {
        match self.leaving.iter_mut().find(|message| message.number == number) {
            Some(message) => {
                message.finish = Some(finish);
                None
            }
            None => Some(finish),
        }
    }

    /// Records the release of calls `low` to `high` by the kernel, in any order.
    pub(super) fn released(&mut self, low: u32, high: u32) {
        for message in &mut self.leaving {
            let of_it = (0..message.calls)
                .map(|call| message.first.wrapping_add(call))
                .filter(|call| call.wrapping_sub(low) <= high.wrapping_sub(low))
                .count() as u32;
            message.pending = message.pending.saturating_sub(of_it);
        }
    }

    /// Takes out the oldest message if it is over.
    pub(super) fn take_finished(&mut self) -> Option<TxCompletion> {
        let over = |message: &&ZeroCopyTx| message.pending == 0 && message.finish.is_some();
        self.leaving.front().filter(over)?;
        self.leaving.pop_front()?.finish
    }

    /// Returns the number of the application's transfers completing with the kernel's release.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn transfers(&self) -> usize {
        let own = |message: &&ZeroCopyTx| message.finish.as_ref().is_some_and(|one| !one.internal);
        self.leaving.iter().filter(own).count()
    }

    /// Returns true if the kernel still uses memory of the application.
    pub(super) fn is_busy(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes out all messages the system has completely, over or not, because the connection
    /// ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = TxCompletion> + '_ {
        self.leaving.drain(..).filter_map(|message| message.finish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::cq::Context;

    fn finish(n: usize) -> TxCompletion {
        TxCompletion { context: Context(n as *mut _), ..TxCompletion::INTERNAL }
    }

    fn finished(zerocopy: &mut Zerocopy) -> Vec<usize> {
        std::iter::from_fn(|| zerocopy.take_finished()).map(|f| f.context.0 as usize).collect()
    }

    #[test]
    fn messages_are_over_in_their_order_when_all_their_calls_are_in_any() {
        // The numbers pass from the largest to zero.
        let mut z =
            Zerocopy { from: 1, next: u32::MAX - 1, copied: 0, named: 0, leaving: VecDeque::new() };
        (0..3).for_each(|_| z.called());
        assert!(z.sent(finish(1)).is_none());
        z.called();
        z.released(1, 1);
        assert!(finished(&mut z).is_empty(), "the second is not sent completely");
        assert!(z.sent(finish(2)).is_none());
        assert!(z.sent(finish(3)).is_none(), "it was copied, but those before it are not over");
        z.released(u32::MAX, 0);
        assert!(finished(&mut z).is_empty());
        z.released(u32::MAX - 1, u32::MAX - 1);
        assert_eq!(finished(&mut z), [1, 2, 3]);
        assert!(!z.is_busy());
        assert!(z.sent(finish(4)).is_some(), "nothing is before it");
    }

    #[test]
    fn message_with_a_copied_end_completes_once_the_copy_is_sent() {
        let mut z = Zerocopy { from: 1, next: 0, copied: 0, named: 0, leaving: VecDeque::new() };
        z.called();
        z.released(0, 0);
        assert!(finished(&mut z).is_empty());
        assert!(z.sent(finish(1)).is_some_and(|over| over.context.0 as usize == 1));
        assert!(!z.is_busy());
    }

    #[test]
    fn an_acknowledged_message_is_over_when_the_system_is_done_with_it_as_well() {
        let mut z =
            Zerocopy { from: 1, next: 0, copied: 0, named: u32::MAX, leaving: VecDeque::new() };
        z.called();
        let first = z.sent_for_ack();
        assert_ne!(first, 0);
        // The message is acknowledged, but the system still uses its bytes.
        assert!(z.acknowledged(first, finish(1)).is_none());
        assert!(finished(&mut z).is_empty());
        z.called();
        let second = z.sent_for_ack();
        z.released(0, 1);
        assert_eq!(finished(&mut z), [1, 0], "the other one is held until its acknowledgement");
        assert!(z.acknowledged(second, finish(2)).is_some());
        assert!(!z.is_busy());
        // No number for a message that was copied after all, or released before the last of it
        // left.
        assert_eq!(z.sent_for_ack(), 0);
        z.called();
        z.released(2, 2);
        assert_eq!(z.sent_for_ack(), 0);
    }
}
