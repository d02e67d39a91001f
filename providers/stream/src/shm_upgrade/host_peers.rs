//! Shared-memory links of a net: their entries, doorbells, and requests for upgrades.
use super::link::ShmLinkState;
use super::path::UpgradeTrigger;
use super::shared::{LinkRequest, LinkShared, NetShared, UpgradeEvent};
use crate::link_tokens::LinkTokens;
use crate::settings::StreamSettings;
use crate::transport::{CarrierPoller, LinkClock};
use crate::wire::LocalOffer;
use core::time::Duration;
use ofi_provider::error::{Error, Result};
use ofi_provider::shm_handshake::{RingMemory, ShmConnect, ShmUpgradeListener};
use ofi_provider::slab::Slab;
use ofi_provider::stack::on_own_stack;
use ofi_provider::sys::{Interest, PollEvent, count_forks, generation};
#[cfg(any(test, feature = "sim"))]
use ofi_simulation::{InjectedFault, injected};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;

/// Internal tokens in the poller: the doorbell, pending connections of the shared-memory upgrade,
/// and the responses to local requests, combined with the link's number.
const OWN: u64 = 1 << 63;
const WAKEUP: u64 = OWN | 1 << 32;
const LISTEN_ADDR: u64 = OWN | 2 << 32;
const CALL: u64 = OWN | 3 << 32;

/// Number of doorbell bits used by peers to signal links: the bit of a link is its number modulo
/// this.
const DOORBELL_BITS: u32 = 1024;

/// Delay of pending upgrade requests not accepted for lack of descriptors.
const LISTEN_ADDR_DELAY: Duration = Duration::from_millis(100);

/// Maximum repeated checks for ringing links by a thread not about to sleep, while it re-enables
/// doorbells for other threads.
const MAX_LOOKS: u32 = 64;

/// Events of a carrier connection watched by the poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SocketInterest {
    /// As any link.
    For(Interest),
    /// Only the end, regardless of unread data before it.
    End,
}

impl SocketInterest {
    pub(super) fn add<I>(self, watcher: &impl CarrierPoller<I>, carrier: I, token: u64) -> Result
    where
        I: Copy,
    {
        match self {
            Self::For(interest) => watcher.add(carrier, token, interest),
            Self::End => {
                watcher.add(carrier, token, Interest::NONE)?;
                self.modify(watcher, carrier, token)
            }
        }
    }

    pub(super) fn modify<I>(
        self,
        watcher: &impl CarrierPoller<I>,
        carrier: I,
        token: u64,
    ) -> Result {
        match self {
            Self::For(interest) => watcher.modify(carrier, token, interest),
            Self::End => watcher.modify_to_end(carrier, token),
        }
    }
}

/// State of a link in its net, if both ends are possibly on one host.
#[derive(Debug)]
pub(super) struct LocalEntry<I> {
    /// Identifier of the carrier connection in the poller, valid as long as the link.
    carrier: I,
    shared: Arc<LinkShared>,
    /// Request sent by this end for the shared-memory upgrade, until it is answered.
    call: Option<ShmConnect>,
    token: u64,
    /// The engine watches the link, and for this.
    watched: bool,
    interest: Interest,
    /// Events of the carrier connection watched by the poller, if any.
    registered: Option<SocketInterest>,
    /// The other end rang the doorbell and this is not reported yet; or the memory has not been
    /// found empty since.
    fresh: bool,
    filled: bool,
    /// The link is in [`HostPeers::signs`].
    listed: bool,
}

impl<I> LocalEntry<I> {
    /// Returns the events of the carrier connection to be watched. A link sending through shared
    /// memory, and blocked on space there or on reads of this process's memory, has to be notified
    /// of the end.
    fn wanted(&self) -> SocketInterest {
        let read = self.interest.read;
        match self.shared.sends.get() {
            false => SocketInterest::For(self.interest),
            true if !read => SocketInterest::End,
            true => SocketInterest::For(Interest { read, write: false }),
        }
    }

    /// Marks the shared memory as possibly filled, if the link polls it. An event without its own
    /// signal is reported in each iteration until it was polled.
    fn note_filled(&mut self) -> bool {
        let may_receive = self.shared.may_receive.get();
        if may_receive {
            self.filled = true;
            self.shared.drained.set(false);
        }
        may_receive
    }

    /// Records a doorbell of this link's bit, shared with other links. Returns false if it cannot
    /// belong to this link.
    fn gets_sign(&mut self) -> bool {
        let is_its_own = self.note_filled() || self.shared.sends.get();
        self.fresh |= is_its_own;
        is_its_own
    }

    /// Returns true if the engine is to be notified of the other end's doorbell.
    fn is_notified(&self) -> bool {
        (self.fresh && self.watched) || (self.filled && self.interest.read)
    }
}

/// State of a net with shared-memory links on this host, established or attempted.
#[derive(Debug)]
pub(super) struct HostPeers<I> {
    host: RefCell<ShmUpgradeListener>,
    links: RefCell<Slab<LocalEntry<I>>>,
    tokens: LinkTokens,
    /// Links with a rung doorbell.
    signs: RefCell<Vec<u32>>,
    shared: Arc<NetShared>,
    /// Links with sufficient traffic for the upgrade, and the offers of their other ends.
    upgrades: RefCell<Vec<(u32, LocalOffer)>>,
    /// Process owning this state ([`generation`]).
    generation: u32,
    /// Someone may sleep.
    armed: Cell<bool>,
    /// Time since which connections at the handshake socket have not been accepted; `None` while
    /// they are accepted.
    accept_paused: Cell<Option<Instant>>,
    /// Traffic on a link required before the upgrade.
    enough: (u64, u32),
}

impl<I: Copy> HostPeers<I> {
    pub(super) fn new(settings: &StreamSettings, watcher: &impl CarrierPoller<I>) -> Result<Self> {
        count_forks();
        let local = &settings.local;
        let host = ShmUpgradeListener::new(
            RingMemory { ring: local.ring, most: local.memory },
            local.reads,
        )?;
        watcher.add_wakeup(host.doorbell().wakeup_fd(), WAKEUP)?;
        Ok(Self {
            host: RefCell::new(host),
            links: RefCell::default(),
            tokens: LinkTokens::default(),
            signs: RefCell::default(),
            shared: Arc::default(),
            upgrades: RefCell::default(),
            generation: generation(),
            // A thread may be asleep since before there was any peer to notify.
            armed: Cell::new(true),
            accept_paused: Cell::new(None),
            enough: local.talk,
        })
    }

    /// Adds a link watched by the engine for reading, with this token.
    fn add(&self, carrier: I, token: u64) -> (u32, Arc<LinkShared>) {
        self.receive_requests();
        let shared: Arc<LinkShared> = Arc::default();
        let number = self.links.borrow_mut().insert(LocalEntry {
            carrier,
            shared: shared.clone(),
            call: None,
            token,
            watched: true,
            interest: Interest::READ,
            registered: Some(SocketInterest::For(Interest::READ)),
            fresh: false,
            filled: false,
            listed: false,
        });
        self.tokens.insert(token, number);
        (number, shared)
    }

    fn state(
        &self,
        number: u32,
        shared: Arc<LinkShared>,
        offer: Option<LocalOffer>,
    ) -> Box<ShmLinkState> {
        let trigger = UpgradeTrigger::new(offer, self.enough);
        ShmLinkState::new(number, shared, self.shared.clone(), trigger)
    }

    /// Receives requests of links: drops those of ended ones, and notes the others.
    fn receive_requests(&self) {
        for request in self.shared.requests.take() {
            match request {
                LinkRequest::Forget(number) => self.forget(number),
                LinkRequest::Upgrade(number, offer) => {
                    self.upgrades.borrow_mut().push((number, offer));
                }
            }
        }
    }

    fn forget(&self, number: u32) {
        self.host.borrow_mut().withdraw(number);
        self.upgrades.borrow_mut().retain(|(upgraded, _)| *upgraded != number);
        let Some(entry) = self.links.borrow_mut().remove(number) else { return };
        self.tokens.remove(entry.token, number);
        self.signs.borrow_mut().retain(|listed| *listed != number);
    }

    pub(super) fn offer(
        &self,
        watcher: &impl CarrierPoller<I>,
        carrier: I,
        token: u64,
    ) -> Result<(LocalOffer, Box<ShmLinkState>)> {
        self.open(watcher)?;
        let (number, shared) = self.add(carrier, token);
        let offer = self.host.borrow_mut().offer(number).inspect_err(|_| self.forget(number))?;
        Ok((offer, self.state(number, shared, None)))
    }

    /// Opens the listener for shared-memory upgrades of this engine.
    fn open(&self, watcher: &impl CarrierPoller<I>) -> Result {
        let mut host = self.host.borrow_mut();
        match host.open()? {
            // Requests would wait forever without a watcher.
            Some(listen_addr) => {
                watcher.add_fd(listen_addr, LISTEN_ADDR).inspect_err(|_| host.shut())
            }
            None => Ok(()),
        }
    }

    /// Adds a link with an upgrade offer of the other end. The upgrade follows after sufficient
    /// traffic.
    pub(super) fn upgrade(&self, carrier: I, token: u64, offer: &LocalOffer) -> Box<ShmLinkState> {
        let (number, shared) = self.add(carrier, token);
        self.state(number, shared, Some(*offer))
    }

    /// Requests the upgrade of links with sufficient traffic.
    #[inline(never)]
    fn make_calls(&self, watcher: &impl CarrierPoller<I>, events: &mut Vec<PollEvent>) {
        for (number, offer) in self.upgrades.take() {
            if self.links.borrow().get(number).is_none() {
                continue;
            }
            let watch = |fd| watcher.add_fd(fd, CALL | u64::from(number));
            let called = on_own_stack(|| {
                let (call, pipe) = self.host.borrow().call(&offer, number, watch)?;
                Ok((call, Box::new(pipe)))
            });
            match called {
                Ok((call, pipe)) => {
                    if let Some(entry) = self.links.borrow_mut().get_mut(number) {
                        entry.call = Some(call);
                        entry.shared.may_receive.set(true);
                        entry.shared.events.push(UpgradeEvent::Requested(pipe));
                    }
                }
                Err(error) => self.push_on(number, UpgradeEvent::Failed(error), events),
            }
        }
    }

    /// Adds the events of upgraded or soon upgraded links to `events`. Those from `start` on are
    /// the poller's.
    pub(super) fn report(
        &self,
        watcher: &impl CarrierPoller<I>,
        clock: &impl LinkClock,
        events: &mut Vec<PollEvent>,
        start: usize,
    ) {
        self.shared.is_due.set(false);
        self.receive_requests();
        let (mut at, mut callers) = (start, false);
        let mut answers = Vec::new();
        while let Some(event) = events.get(at) {
            match event.token & !u64::from(u32::MAX) {
                WAKEUP => self.host.borrow().doorbell().wake(),
                LISTEN_ADDR => callers = true,
                CALL => answers.push(event.token as u32),
                _ => {
                    if self.is_for_engine(watcher, event) {
                        at += 1;
                    } else {
                        events.swap_remove(at);
                    }
                    continue;
                }
            }
            events.swap_remove(at);
        }
        for number in answers {
            self.receive_reply(watcher, number, events);
        }
        self.make_calls(watcher, events);
        if callers || self.accept_paused.get().is_some() {
            self.let_in(watcher, clock.now(), events);
        }
        self.take_signs();
        if self.armed.get() {
            // Another thread may be asleep: later data has to wake it.
            for _ in 0..MAX_LOOKS {
                if self.host.borrow().doorbell().fall_asleep() {
                    break;
                }
                self.take_signs();
            }
        }
        let mut links = self.links.borrow_mut();
        self.signs.borrow_mut().retain(|number| {
            let Some(entry) = links.get_mut(*number) else { return false };
            entry.filled &= !entry.shared.drained.get();
            if entry.is_notified() {
                events.push(PollEvent { token: entry.token, readable: true, writable: true });
                entry.fresh = false;
            }
            entry.listed = entry.fresh || entry.filled;
            entry.listed
        });
    }

    /// Returns true if an event of a link's carrier connection is to be passed to the engine.
    fn is_for_engine(&self, watcher: &impl CarrierPoller<I>, event: &PollEvent) -> bool {
        let Some(number) = self.tokens.get(event.token) else { return true };
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return true };
        entry.shared.carrier.set(true);
        // The link may have moved to memory since it was watched.
        let wanted = entry.wanted();
        if let Some(registered) = entry.registered {
            if registered != wanted {
                entry.registered = Some(wanted);
                let _ = wanted.modify(watcher, entry.carrier, entry.token);
            }
        }
        event.readable || matches!(wanted, SocketInterest::For(Interest { write: true, .. }))
    }

    /// Returns true if all doorbells have been reported to the engine.
    fn is_quiet(&self) -> bool {
        let links = self.links.borrow();
        let is_notified = |number: &u32| {
            links.get(*number).is_some_and(|entry| {
                entry.is_notified() && (entry.fresh || !entry.shared.drained.get())
            })
        };
        !self.signs.borrow().iter().any(is_notified)
    }

    /// Collects the links with a rung doorbell.
    fn take_signs(&self) {
        let mut rung = Vec::new();
        self.host.borrow().doorbell().ready(&mut rung);
        if rung.is_empty() {
            return;
        }
        let (mut links, mut signs) = (self.links.borrow_mut(), self.signs.borrow_mut());
        let slots = links.slots() as u32;
        for bit in rung {
            #[cfg(any(test, feature = "sim"))]
            if injected() == Some(InjectedFault::LostSign) {
                continue;
            }
            for number in (bit..slots).step_by(DOORBELL_BITS as usize) {
                let Some(entry) = links.get_mut(number) else { continue };
                if !entry.gets_sign() {
                    continue;
                }
                if !std::mem::replace(&mut entry.listed, true) {
                    signs.push(number);
                }
            }
        }
    }

    /// Queues an event for the engine about a link with a change of its shared-memory upgrade.
    fn push_on(&self, number: u32, event: UpgradeEvent, events: &mut Vec<PollEvent>) {
        if let Some(entry) = self.links.borrow().get(number) {
            entry.shared.events.push(event);
            events.push(PollEvent { token: entry.token, readable: true, writable: false });
        }
    }

    #[inline(never)]
    fn receive_reply(
        &self,
        watcher: &impl CarrierPoller<I>,
        number: u32,
        events: &mut Vec<PollEvent>,
    ) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        let Some(call) = &mut entry.call else { return };
        let received = match on_own_stack(|| self.host.borrow_mut().accept(call)) {
            Ok(peer) => UpgradeEvent::Answered(peer),
            Err(Error::AGAIN | Error::INTR) => return,
            Err(error) => UpgradeEvent::Failed(error),
        };
        watcher.remove_fd(call.fd());
        entry.call = None;
        drop(links);
        self.push_on(number, received, events);
    }

    #[inline(never)]
    fn let_in(&self, watcher: &impl CarrierPoller<I>, now: Instant, events: &mut Vec<PollEvent>) {
        if self
            .accept_paused
            .get()
            .is_some_and(|since| now.duration_since(since) < LISTEN_ADDR_DELAY)
        {
            return;
        }
        let mut host = self.host.borrow_mut();
        let mut changes = Vec::new();
        let failed = RefCell::new(Vec::new());
        let watch = |unknown_conn| {
            // A descriptor without a watch is served when the next connection arrives.
            let _ = watcher.add_fd(unknown_conn, LISTEN_ADDR);
        };
        let upgraded = |number, pipe| {
            if let Some(entry) = self.links.borrow().get(number) {
                entry.shared.may_receive.set(true);
            }
            changes.push((number, UpgradeEvent::Came(Box::new(pipe))));
        };
        let lost = |number, error| failed.borrow_mut().push((number, UpgradeEvent::Failed(error)));
        let result = on_own_stack(|| host.receive(watch, upgraded, lost));
        let listen_addr = host.listen_addr();
        drop(host);
        for (number, one) in changes.into_iter().chain(failed.into_inner()) {
            self.push_on(number, one, events);
        }
        let Some(listen_addr) = listen_addr else { return };
        match (result, self.accept_paused.get()) {
            (Ok(()), Some(_)) => {
                self.accept_paused.set(None);
                let _ = watcher.add_fd(listen_addr, LISTEN_ADDR);
            }
            (Err(_), before) => {
                // The poller would tell of the callers again and again.
                if before.is_none() {
                    watcher.remove_fd(listen_addr);
                }
                self.accept_paused.set(Some(now));
            }
            (Ok(()), None) => {}
        }
    }

    /// Records the engine's watch of a link, with its token and events. If the link may move to
    /// memory, returns the events of the carrier connection watched before, and those to be watched
    /// from now on.
    pub(super) fn watch(
        &self,
        number: u32,
        token: u64,
        interest: Interest,
    ) -> Option<(Option<SocketInterest>, SocketInterest)> {
        let mut links = self.links.borrow_mut();
        let entry = links.get_mut(number)?;
        self.tokens.replace(&mut entry.token, token, number);
        let reads_again = interest.read && !(entry.watched && entry.interest.read);
        (entry.watched, entry.interest) = (true, interest);
        if reads_again && entry.note_filled() {
            // Data received meanwhile rings no further doorbell.
            if !std::mem::replace(&mut entry.listed, true) {
                self.signs.borrow_mut().push(number);
            }
            if self.armed.get() {
                // Another thread may sleep.
                self.host.borrow().doorbell().rouse();
            }
        }
        let wanted = entry.wanted();
        Some((entry.registered.replace(wanted), wanted))
    }

    /// Records the end of the engine's watch of a link.
    pub(super) fn unwatch(&self, number: u32) {
        if let Some(entry) = self.links.borrow_mut().get_mut(number) {
            (entry.watched, entry.interest, entry.registered) = (false, Interest::NONE, None);
        }
    }

    /// Returns true if this process owns the state.
    #[inline(always)]
    pub(super) fn is_own(&self) -> bool {
        self.generation == generation()
    }

    /// Returns true if a doorbell has rung ([`ShmTransport::is_rung`](crate::transport::ShmTransport::is_rung)).
    #[inline(always)]
    pub(super) fn is_rung(&self) -> bool {
        self.host.borrow().doorbell().is_ready()
    }

    /// Returns true if a link waits for a progress iteration.
    pub(super) fn is_due(&self) -> bool {
        self.shared.is_due.get()
    }

    /// Implements [`ShmTransport::rest`](crate::transport::ShmTransport::rest).
    pub(super) fn rest(&self) -> bool {
        self.armed.set(true);
        self.is_quiet() && self.host.borrow().doorbell().fall_asleep()
    }

    /// Implements [`ShmTransport::wake`](crate::transport::ShmTransport::wake).
    pub(super) fn wake(&self) {
        self.armed.set(false);
        self.host.borrow().doorbell().wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_bit_is_ignored_by_links_without_shared_memory() {
        let mut entry = LocalEntry {
            carrier: (),
            shared: Arc::default(),
            call: None,
            token: 0,
            watched: true,
            interest: Interest::READ,
            registered: None,
            fresh: false,
            filled: false,
            listed: false,
        };
        assert!(!entry.gets_sign() && !entry.is_notified());
        // There may be space again, reported once.
        entry.shared.sends.set(true);
        assert!(entry.gets_sign() && entry.fresh && !entry.filled);
        entry.shared.may_receive.set(true);
        assert!(entry.gets_sign() && entry.filled && entry.is_notified());
    }
}
