//! One direction of a link between simulated engines.
use super::SimRandom;
use std::collections::VecDeque;

/// End of one direction of a link, after its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Close {
    /// The sender has closed its end.
    Fin,
    /// The link was cut, or the sender has closed its end with unread bytes.
    Reset,
}

/// One direction of a link.
#[derive(Debug, Default)]
pub(super) struct SimDirection {
    pub(super) bytes: VecDeque<u8>,
    /// So many of the bytes have arrived.
    pub(super) arrived: usize,
    pub(super) close: Option<Close>,
    /// Number of bytes sent.
    pub(super) passed: usize,
    /// The end of the stream has arrived as well.
    pub(super) closed: bool,
    /// Number of bytes sent when the link is reset.
    pub(super) resets_at: Option<usize>,
    /// Number of bytes received until the link dies: all later ones are lost.
    pub(super) dies_at: Option<usize>,
}

impl SimDirection {
    pub(super) fn moves(&self) -> bool {
        self.arrived < self.bytes.len() || (self.close.is_some() && !self.closed)
    }

    pub(super) fn end(&mut self, close: Close) {
        if self.close.is_none() {
            self.close = Some(close);
        }
    }

    /// Removes the bytes lost with the link. Returns true if the link is dead.
    pub(super) fn dies(&mut self) -> bool {
        let Some(lost) = self.dies_at.and_then(|position| self.passed.checked_sub(position)) else {
            return false;
        };
        if self.close.is_none() {
            self.bytes.truncate(self.bytes.len().saturating_sub(lost));
            self.arrived = self.arrived.min(self.bytes.len());
        }
        true
    }

    /// Changes a bit of the data in flight, or duplicates some of it.
    pub(super) fn change(&mut self, random: &mut SimRandom) {
        let at = self.arrived + random.below(self.bytes.len() - self.arrived);
        if random.one_in(3) {
            let again: Vec<_> = self.bytes.range(at..).copied().collect();
            self.bytes.extend(again);
        } else {
            self.bytes[at] ^= 1 << random.below(8);
        }
    }
}
