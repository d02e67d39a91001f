//! Recovery of links from stalled and lost sockets.
use super::super::events::RailEvent;
use super::super::rails::RailChange;
use super::super::redial::{Redial, RedialAction, log_given_up, log_resumed, log_resuming};
use super::super::routes::choose_routes;
use super::{RailEntry, RailHub, remove_all};
use crate::transport::{ByteLink, LinkPoller, Transport};
use ofi_provider::sys::PollEvent;
use std::fmt::Display;

/// Interval in nanoseconds of checks of links with unacknowledged bytes.
pub(super) const CHECK_INTERVAL: u64 = 500_000_000;

/// Maximum time in seconds without a socket for a link without addresses of the peer: only the peer can
/// connect another one, and its end is not noticed.
const UNKNOWN_PEER_MAX: u32 = 5;

impl<N: Transport> RailHub<N> {
    /// Has links with unacknowledged bytes look for stalled sockets, at intervals.
    pub(super) fn check_links(&self, now: u64, events: &mut Vec<PollEvent>) {
        if self.check_at.get().is_none_or(|at| now < at) {
            return;
        }
        let links = self.links.borrow();
        self.unacknowledged.borrow_mut().retain(|number| {
            let Some(entry) = links.get(*number) else { return false };
            entry.shared.events.push(RailEvent::Check);
            events.push(entry.readable());
            entry.shared.wanted().has_unacknowledged()
        });
        let is_any = !self.unacknowledged.borrow().is_empty();
        self.check_at.set(is_any.then_some(now + CHECK_INTERVAL));
    }

    /// Records a change of a link's sockets.
    pub(super) fn note_change(&self, net: &N, number: u32, change: RailChange<N::Link>) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        match change {
            RailChange::Lost(at, _link) => {
                if let Some((id, Some(_))) = entry.rails.get_mut(at).and_then(Option::take) {
                    net.poller().remove(id);
                }
                if let Some(redial) = &mut entry.redial {
                    redial.clear_joined();
                }
                let resume = N::Link::settings().rails.resume;
                if resume == 0 {
                    return;
                }
                let is_last = entry.live() == 0;
                if !is_last && !entry.connects {
                    // The peer replaces it.
                    return;
                }
                let most = if entry.offer.is_none() { UNKNOWN_PEER_MAX } else { u32::MAX };
                let limit = is_last.then(|| u64::from(resume.min(most)) * 1_000_000_000);
                drop(links);
                self.start_redial(net, number, limit);
            }
            RailChange::Stalled => {
                drop(links);
                self.start_redial(net, number, None);
            }
            RailChange::Opened(repeated) => {
                let Some(redial) = &mut entry.redial else { return };
                redial.clear_joined();
                if redial.end_outage() {
                    let nanos = self.shared.now().saturating_sub(redial.since());
                    log_resumed::<N::Link>(entry.peer.clone(), nanos, repeated);
                }
                if !entry.connects || entry.live() >= entry.most {
                    entry.redial = None;
                }
            }
        }
    }

    /// Starts to replace lost sockets of a link. `limit`: time in nanoseconds until a link without
    /// any is given up.
    pub(super) fn start_redial(&self, net: &N, number: u32, limit: Option<u64>) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        let now = net.nanos();
        if limit.is_some() {
            log_resuming::<N::Link>(entry.peer.clone());
        }
        let redial = entry.redial.get_or_insert_with(|| Redial::new(now));
        redial.limit(now, limit);
        let mut redialing = self.redialing.borrow_mut();
        if !redialing.contains(&number) {
            redialing.push(number);
        }
    }

    /// Calls the peers of links with lost sockets, at growing intervals, and gives links up in the
    /// end.
    pub(super) fn redial_links(&self, net: &N, now: u64) {
        if self.redialing.borrow().is_empty() {
            return;
        }
        let mut links = self.links.borrow_mut();
        let mut late = Vec::new();
        self.redialing.borrow_mut().retain(|number| {
            let Some(entry) = links.get_mut(*number) else { return false };
            let is_dialing = self.dialing.borrow().iter().any(|(_, one)| one.number == *number);
            let Some(redial) = &mut entry.redial else { return false };
            match redial.next_action(now, is_dialing) {
                RedialAction::Wait => true,
                RedialAction::Dial => {
                    self.redial(net, *number, entry);
                    true
                }
                RedialAction::GiveUp => {
                    late.push(*number);
                    false
                }
            }
        });
        drop(links);
        for number in late {
            self.give_up(number, &"it was not reached in time (FI_TCP_RESUME)");
        }
    }

    /// Calls the peer of a link once by every route.
    fn redial(&self, net: &N, number: u32, entry: &RailEntry<N::Link>) {
        let (Some(offer), Ok(local)) = (&entry.offer, entry.local.ip()) else { return };
        let addrs = &N::Link::settings().rails.addrs;
        for (from, to) in choose_routes(addrs, addrs.len().max(1), local.ip(), &offer.addrs) {
            // The next attempt follows.
            let _ = self.dial(net, number, entry, offer, from, to);
        }
    }

    /// Has a link end because its peer is gone.
    pub(super) fn give_up(&self, number: u32, why: &dyn Display) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        entry.redial = None;
        log_given_up::<N::Link>(entry.peer.clone(), why);
        entry.shared.events.push(RailEvent::GiveUp);
        self.queued.borrow_mut().push(entry.readable());
        drop(links);
        remove_all(&mut self.dialing.borrow_mut(), |one| one.number == number);
    }

    /// Returns the time in nanoseconds of the next work without an event.
    pub(super) fn next_time(&self) -> Option<u64> {
        let links = self.links.borrow();
        let redialing = self.redialing.borrow();
        let redials = redialing
            .iter()
            .filter_map(|number| Some(links.get(*number)?.redial.as_ref()?.next_time()));
        redials.chain(self.check_at.get()).min()
    }
}
