//! Sending large messages from where they are, without a copy (over sockets: MSG_ZEROCOPY).
//!
//! The system sends such bytes without copying them first, so they stay the application's message
//! until the peer's system has them: the message is complete when the system says
//! ([`ByteLink::zerocopy_done`]) that it is done with every call that had a part of it. Only bytes
//! the application lent go this way; headers are copied as ever. A peer that bytes go to through
//! memory may read large messages where they are ([`ByteLink::lends_from`]), which is the same here.
use super::transfer::TransferFinish;
use crate::net::ByteLink;
use std::collections::VecDeque;

/// Calls in a row whose bytes the system copied after all, beyond which a connection gives up
/// zero-copy. A few copies may have another reason, such as a packet capture.
pub(super) const MAX_COPIED: u32 = 16;

/// A message that left, or is leaving, without being copied.
#[derive(Debug)]
struct Leaving {
    /// The number of the message's first call, how many calls it took, and how many of these the
    /// system is not done with.
    first: u32,
    calls: u32,
    pending: u32,
    /// What to complete, set once the system has all of the message; [`TransferFinish::INTERNAL`] while
    /// the peer is still to acknowledge it.
    finish: Option<TransferFinish>,
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
    /// Calls in a row whose bytes were copied after all.
    pub(super) copied: u32,
    /// The last number that names a message.
    named: u32,
    /// Messages under way, in the order they left; only the last may have bytes left to send.
    leaving: VecDeque<Leaving>,
}

impl Zerocopy {
    /// The state for a new connection; none if the user does not want zero-copy
    /// ([`zerocopy_size`](crate::settings::StreamSettings::zerocopy_size)) or the link cannot do
    /// without copies.
    pub(super) fn new<L: ByteLink>(link: &L) -> Option<Box<Self>> {
        let from = L::settings().zerocopy_size;
        let wanted = from != usize::MAX && link.set_zerocopy().is_ok();
        wanted.then(|| Self::lending(from))
    }

    /// The state for a connection whose peer reads messages of this many bytes or more where they
    /// are ([`ByteLink::lends_from`]).
    pub(super) fn lending(from: usize) -> Box<Self> {
        Box::new(Self { from, next: 0, copied: 0, named: 0, leaving: VecDeque::new() })
    }

    /// Whether a message of `len` bytes is to leave without being copied.
    pub(super) fn takes(&self, len: usize) -> bool {
        len >= self.from
    }

    /// Notes that a zero-copy call took bytes of the message that is leaving.
    pub(super) fn called(&mut self) {
        match self.leaving.back_mut().filter(|last| last.finish.is_none()) {
            Some(last) => {
                last.calls += 1;
                last.pending += 1;
            }
            None => {
                let first = self.next;
                let (finish, number) = (None, 0);
                self.leaving.push_back(Leaving { first, calls: 1, pending: 1, finish, number });
            }
        }
        self.next = self.next.wrapping_add(1);
    }

    /// All of the message that was leaving is with the system; gives `finish`
    /// back if it is over with that: no part of it is in use, and nothing before
    /// it, because messages are over in the order they leave.
    pub(super) fn sent(&mut self, finish: TransferFinish) -> Option<TransferFinish> {
        match self.leaving.back_mut() {
            Some(last) if last.finish.is_none() => last.finish = Some(finish),
            Some(_) => {
                let first = self.next;
                let finish = Some(finish);
                let copied = Leaving { first, calls: 0, pending: 0, finish, number: 0 };
                self.leaving.push_back(copied);
            }
            None => return Some(finish),
        }
        // The system may have been done with its calls before the last of it left.
        self.take_finished()
    }

    /// All of the message that was leaving is with the system, and the peer is to acknowledge
    /// it: the number it has here as long as the system uses its bytes, or 0. A peer may say
    /// that it has what it has not read yet, so that both must be awaited.
    pub(super) fn sent_for_ack(&mut self) -> u32 {
        let Some(last) = self.leaving.back_mut().filter(|last| last.finish.is_none()) else {
            return 0;
        };
        self.named = self.named.checked_add(1).unwrap_or(1);
        (last.finish, last.number) = (Some(TransferFinish::INTERNAL), self.named);
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
        finish: TransferFinish,
    ) -> Option<TransferFinish> {
        match self.leaving.iter_mut().find(|message| message.number == number) {
            Some(message) => {
                message.finish = Some(finish);
                None
            }
            None => Some(finish),
        }
    }

    /// Notes that the system is done with calls `low` to `high`, which it may say in any order.
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
    pub(super) fn take_finished(&mut self) -> Option<TransferFinish> {
        let over = |message: &mut Leaving| message.pending == 0 && message.finish.is_some();
        self.leaving.pop_front_if(over)?.finish
    }

    /// How many transfers of the application are complete when the system is done with them.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn transfers(&self) -> usize {
        let own = |message: &&Leaving| message.finish.as_ref().is_some_and(|one| !one.internal);
        self.leaving.iter().filter(own).count()
    }

    /// Whether the system still uses memory that the application lent.
    pub(super) fn is_busy(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes out all messages the system has completely, over or not, because the connection
    /// ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = TransferFinish> + '_ {
        self.leaving.drain(..).filter_map(|message| message.finish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::cq::Context;

    fn finish(n: usize) -> TransferFinish {
        TransferFinish { context: Context(n as *mut _), ..TransferFinish::INTERNAL }
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
    fn a_message_whose_end_is_copied_is_over_when_that_has_left() {
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
        assert_eq!(finished(&mut z), [1, 0], "the other one is nobody's before it is acknowledged");
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
