//! Sets of sockets of a link, and events awaited on them.
use crate::settings::RailSettings;
use ofi_provider::sys::Interest;

/// Maximum number of sockets of a link.
pub(super) const RAILS_MAX: usize = RailSettings::MAX;

/// Set of sockets, one bit each.
pub(super) type RailBits = u32;

const _: () = assert!(RAILS_MAX <= RailBits::BITS as usize);
const _: () = assert!(RAILS_MAX as u64 <= WantedEvents::PRIMARY_MASK + 1);

/// Socket events awaited by a link, as one number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct WantedEvents(pub(super) u64);

impl WantedEvents {
    const CONTROL: u64 = 1 << 32;
    const STAGED: u64 = 1 << 33;
    const UNACKNOWLEDGED: u64 = 1 << 34;
    const BLOCKED: u64 = 1 << 35;
    const PRIMARY_SHIFT: u32 = 36;
    const PRIMARY_MASK: u64 = 0xf;
    const UNCONFIRMED_SHIFT: u32 = 40;

    /// Creates the events of a link with `early` sockets, not to be read, and `full` ones, with space
    /// awaited by the sender; without any, it awaits space on the socket `primary`.
    pub(super) fn new(early: RailBits, full: RailBits, primary: usize) -> Self {
        let primary = (primary as u64) << Self::PRIMARY_SHIFT;
        Self(u64::from(early) | u64::from(full) << RAILS_MAX | primary)
    }

    fn set(&mut self, flag: u64, is_set: bool) {
        self.0 |= if is_set { flag } else { 0 };
    }

    /// Control frames wait for space.
    pub(super) fn set_control(&mut self, is_set: bool) {
        self.set(Self::CONTROL, is_set);
    }

    /// Bytes of the stream are read ahead.
    pub(super) fn set_staged(&mut self, is_set: bool) {
        self.set(Self::STAGED, is_set);
    }

    /// The peer has not acknowledged everything.
    pub(super) fn set_unacknowledged(&mut self, is_set: bool) {
        self.set(Self::UNACKNOWLEDGED, is_set);
    }

    /// Sends of the engine do not wait for space in a socket.
    pub(super) fn set_blocked(&mut self, is_set: bool) {
        self.set(Self::BLOCKED, is_set);
    }

    /// The peer has not confirmed these sockets. They are read even if the engine awaits nothing.
    pub(super) fn set_unconfirmed(&mut self, rails: RailBits) {
        self.0 |= u64::from(rails) << Self::UNCONFIRMED_SHIFT;
    }

    /// Returns true if the peer has not acknowledged everything.
    pub(super) fn has_unacknowledged(self) -> bool {
        self.0 & Self::UNACKNOWLEDGED != 0
    }

    /// Returns true if bytes of the stream are read ahead.
    pub(super) fn has_staged(self) -> bool {
        self.0 & Self::STAGED != 0
    }

    /// Returns true if the link awaits nothing but bytes and acknowledgements on its first socket.
    pub(super) fn is_quiet(self) -> bool {
        self.0 & !Self::UNACKNOWLEDGED == 0
    }

    /// Returns the events to be watched on one socket, for an engine awaiting `interest`.
    pub(super) fn of_rail(self, at: usize, interest: Interest) -> Interest {
        let is_early = self.0 >> at & 1 != 0;
        let is_unconfirmed = self.0 >> Self::UNCONFIRMED_SHIFT >> at & 1 != 0;
        let is_full = self.0 >> (RAILS_MAX + at) & 1 != 0;
        // Without a full socket the engine waits for the one of small sends.
        let any_full = self.0 >> RAILS_MAX & ((1 << RAILS_MAX) - 1) != 0;
        let is_blocked = self.0 & Self::BLOCKED != 0;
        let waits = (interest.write && !is_blocked) || self.0 & Self::CONTROL != 0;
        let primary = (self.0 >> Self::PRIMARY_SHIFT & Self::PRIMARY_MASK) as usize;
        let write = waits && (is_full || (!any_full && at == primary));
        Interest { read: (interest.read || is_unconfirmed) && !is_early, write }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_sockets_are_not_read_and_only_full_ones_are_waited_for() {
        let both = Interest { read: true, write: true };
        let wanted = WantedEvents::new(0b10, 0b100, 0);
        assert_eq!(wanted.of_rail(0, both), Interest::READ);
        assert_eq!(wanted.of_rail(1, both), Interest::NONE);
        assert_eq!(wanted.of_rail(2, both), both);
        assert_eq!(WantedEvents::default().of_rail(0, both), both);
        assert_eq!(WantedEvents::default().of_rail(1, both), Interest::READ);
        let mut wanted = WantedEvents::new(0, 0b10, 0);
        wanted.set_control(true);
        assert_eq!(wanted.of_rail(0, Interest::NONE), Interest::NONE);
        assert_eq!(wanted.of_rail(1, Interest::NONE), Interest { read: false, write: true });
    }

    #[test]
    fn unconfirmed_sockets_are_read_without_an_interest_of_the_engine() {
        let mut wanted = WantedEvents::new(0b100, 0, 1);
        wanted.set_unconfirmed(0b110);
        assert!(!wanted.is_quiet());
        let of_rails = [0, 1, 2].map(|at| wanted.of_rail(at, Interest::NONE));
        assert_eq!(of_rails, [Interest::NONE, Interest::READ, Interest::NONE]);
        let write = Interest { read: false, write: true };
        assert_eq!(wanted.of_rail(1, write), Interest { read: true, write: true });
    }

    #[test]
    fn blocked_sends_wait_for_no_socket_and_control_frames_for_the_one_of_small_sends() {
        let both = Interest { read: true, write: true };
        let mut wanted = WantedEvents::new(0, 0, 3);
        assert_eq!((wanted.of_rail(0, both), wanted.of_rail(3, both)), (Interest::READ, both));
        wanted.set_blocked(true);
        assert_eq!(wanted.of_rail(3, both), Interest::READ);
        wanted.set_control(true);
        assert_eq!(wanted.of_rail(3, both), both);
    }
}
