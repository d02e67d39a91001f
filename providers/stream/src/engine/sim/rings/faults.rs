//! Faults of links in the simulated world.
use super::super::direction::Close;
use super::{Making, Pipe, RingCursor, SimRandom, StreamWorld};
use crate::transport::ByteLink;
use ofi_provider::addr::Addr;
use std::net::IpAddr;

/// Time until a lost connection request is repeated for the first time, as by Linux; it doubles.
pub(crate) const FIRST_REPEAT: u64 = 1_000_000_000;

/// Losses of connection requests at listeners: of one in so many, and of those without space in
/// the queue of the listener. 0: none.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ListenerLosses {
    pub(crate) one_in: usize,
    pub(crate) backlog: usize,
    /// Number of lost requests.
    pub(crate) count: usize,
}

impl ListenerLosses {
    /// Returns true if the listener with so many connections in its queue loses the next one.
    pub(super) fn lose_request(&mut self, random: &mut SimRandom, waiting: usize) -> bool {
        let is_full = self.backlog > 0 && waiting >= self.backlog;
        let loses = is_full || random.one_in(self.one_in);
        self.count += usize::from(loses);
        loses
    }

    /// Returns the time of the first repeated request.
    pub(super) fn next_dial<'a>(&self, pipes: impl Iterator<Item = &'a Pipe>) -> Option<u64> {
        let lost = pipes.filter(|pipe| pipe.making == Making::Dialing && pipe.repeats.lost > 0);
        lost.map(|pipe| pipe.repeats.at).min()
    }
}

/// The next links, dying after a number of bytes sent by their accepting end.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DyingLinks {
    /// Number of links.
    pub(crate) count: usize,
    /// Number of bytes of each.
    pub(crate) position: usize,
}

impl DyingLinks {
    /// Returns the number of bytes of the next link; `None` if it does not die.
    pub(super) fn next_position(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        Some(self.position)
    }
}

/// Repeats of a connection request: the number of lost requests, and the time of the next one.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct DialRepeats {
    lost: u32,
    pub(super) at: u64,
}

impl DialRepeats {
    /// Repeats a lost request later.
    pub(super) fn dial_later(&mut self, nanos: u64) {
        self.at = nanos + (FIRST_REPEAT << self.lost);
        self.lost = (self.lost + 1).min(6);
    }
}

impl StreamWorld {
    /// Cuts a link between two addresses, if there is one: from each direction a part of the data
    /// in flight is lost, and everything after it. If peers encrypt, bytes are sometimes changed in
    /// transit before the disconnect. Links with early data lose no response, like sockets of one host.
    /// Returns true if there was a link, unless the loss of all such links has no effect on the
    /// connection.
    pub(crate) fn cut(&mut self, one: &Addr, other: &Addr) -> bool {
        // A link's end that called has a port of its own.
        let host = |addr: &Addr| addr.ip().map(|addr| addr.ip());
        let ends = [host(one), host(other)];
        let between = |pipe: &Pipe| {
            let [from, to] = pipe.addrs.each_ref().map(host);
            [from, to] == ends || [to, from] == ends
        };
        let mut any = false;
        let resume = RingCursor::settings().rails.resume > 0 && !self.batched;
        let apart = self.apart;
        let encrypts = RingCursor::settings().secret.encrypts();
        let has_early = RingCursor::settings().early_data > 0;
        for pipe in self.pipes.iter_mut().flatten().filter(|pipe| between(pipe)) {
            if has_early && pipe.making == Making::Made && !pipe.made[0] {
                continue;
            }
            if pipe.making == Making::Dialing {
                pipe.making = Making::Refused;
                // A refused first socket is final, even with resumed links.
                any = true;
            }
            let changed = (encrypts && self.random.one_in(2)).then(|| self.random.below(2));
            for (side, direction) in pipe.directions.iter_mut().enumerate() {
                let lost = direction.bytes.len() - direction.arrived;
                if changed == Some(side) && lost > 0 {
                    direction.change(&mut self.random);
                    direction.end(Close::Fin);
                    continue;
                }
                let remaining = direction.arrived + self.random.below(lost + 1);
                direction.bytes.truncate(remaining);
                direction.end(Close::Reset);
            }
            let is_remote = !RingCursor::settings().local.enabled || !is_local(&pipe.addrs, apart);
            // Changed bytes end a connection: before the answer there is nothing to be resumed.
            let has_agreed = pipe.made[0] || changed.is_none();
            any |= !(resume && is_remote && has_agreed);
        }
        any
    }

    /// Resets the first link after so many bytes sent by this end.
    #[cfg(test)]
    pub(crate) fn die_after(&mut self, side: usize, position: usize) {
        let Some(Some(pipe)) = self.pipes.first_mut() else { return };
        let direction = &mut pipe.directions[side];
        let before = direction.passed - direction.bytes.len();
        direction.bytes.truncate(position.saturating_sub(before));
        direction.arrived = direction.arrived.min(direction.bytes.len());
        pipe.directions.iter_mut().for_each(|direction| direction.end(Close::Reset));
    }

    /// Resets the first link as its first end sends more than `bytes` further bytes. The peer receives
    /// these.
    #[cfg(test)]
    pub(crate) fn reset_after(&mut self, bytes: usize) {
        let Some(Some(pipe)) = self.pipes.first_mut() else { return };
        let direction = &mut pipe.directions[0];
        direction.resets_at = Some(direction.passed + bytes);
        pipe.capacity = pipe.capacity.max(bytes);
    }

    /// Takes all bytes on the way to an address out of the links.
    #[cfg(test)]
    pub(crate) fn take_all(&mut self, to: &Addr) {
        for pipe in self.pipes.iter_mut().flatten().filter(|pipe| pipe.addrs[1] == *to) {
            pipe.directions[0].bytes.clear();
            pipe.directions[0].arrived = 0;
        }
    }
}

/// Returns true if the nodes with these addresses are on one host.
pub(super) fn is_local(addrs: &[Addr; 2], apart: usize) -> bool {
    let node = |addr: &Addr| match addr.ip().map(|addr| addr.ip()) {
        Ok(IpAddr::V4(ip)) => usize::from(ip.octets()[3]),
        _ => 0,
    };
    apart == 0 || addrs.iter().map(node).sum::<usize>() % apart != 0
}
