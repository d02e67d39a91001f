//! Sockets of a transport's links beyond the first one of each: listeners, joining and polling.
mod recovery;

use super::events::{HubRequest, HubShared, LinkShared, RailEvent};
use super::frame::{
    ADDRS_MAX, FRAME_LEN, FrameHeader, FrameType, JoinRequest, RailOffer, TOKEN_LEN,
};
use super::link::{FramedLink, RailLink};
use super::redial::Redial;
use super::routes::choose_routes;
use super::timers::SharedTimer;
use super::wanted::RAILS_MAX;
use crate::link_tokens::LinkTokens;
use crate::secret::PskConfig;
use crate::transport::{ByteLink, LinkListener, LinkPoller, Transport, peer_of};
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::malformed::Malformed;
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Interest, PollEvent, fill_random};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of this module in the poller: a kind, the number of a link, listener or socket, and the
/// index of the socket within a link.
const OWN: u64 = 1 << 62;
const KIND_SHIFT: u32 = 56;
const NUMBER_SHIFT: u32 = 8;

/// Maximum sockets without a proven link, in sum and of one host.
const PENDING_MAX: usize = 64;
const PENDING_PER_HOST: usize = 16;

/// Time limit for the exchange of a join request and its answer.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause of a listener after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Memory for bytes to be sent again, in units of one link's.
const LOGS_IN_SUM: usize = 64;

/// Backlog of a listener for further sockets.
const BACKLOG: i32 = 64;

/// Owner of a token in the poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum TokenKind {
    /// A socket of a link.
    Rail = 0,
    Listener = 1,
    /// An accepted socket without a valid join request.
    Pending = 2,
    /// A socket on its way to a link of the peer.
    Dialing = 3,
}

fn token(kind: TokenKind, number: u32, rail: usize) -> u64 {
    OWN | (kind as u64) << KIND_SHIFT | u64::from(number) << NUMBER_SHIFT | rail as u64
}

fn parse_token(token: u64) -> Option<(TokenKind, u32, usize)> {
    if token & (OWN | 1 << 63) != OWN {
        return None;
    }
    let kind = match (token & !OWN) >> KIND_SHIFT {
        0 => TokenKind::Rail,
        1 => TokenKind::Listener,
        2 => TokenKind::Pending,
        3 => TokenKind::Dialing,
        _ => return None,
    };
    Some((kind, (token >> NUMBER_SHIFT) as u32, (token & 0xff) as usize))
}

/// Link with frames, as known to its transport.
#[derive(Debug)]
struct RailEntry<L: ByteLink> {
    shared: Arc<LinkShared<L>>,
    /// Token and events of the engine; no events if the engine does not watch the link.
    token: u64,
    interest: Interest,
    is_watched: bool,
    /// Identifiers of the sockets with their watched events, the first socket first.
    rails: Vec<Option<(L::Id, Option<Interest>)>>,
    own: Option<PskConfig>,
    /// Addresses of both ends.
    local: Addr,
    peer: Option<String>,
    peer_ip: Option<IpAddr>,
    /// Token of the offer to the peer.
    token_offered: Option<[u8; TOKEN_LEN]>,
    /// Offer of the peer.
    offer: Option<RailOffer>,
    /// This end connects further sockets, and has begun to.
    connects: bool,
    has_dialed: bool,
    /// Maximum number of sockets so far, and replacement of lost ones.
    most: usize,
    redial: Option<Redial>,
}

impl<L: ByteLink> RailEntry<L> {
    /// Returns true if the engine waits for bytes, and some are read ahead.
    fn is_readable(&self) -> bool {
        self.interest.read && self.shared.wanted().has_staged()
    }

    /// Returns the number of sockets.
    fn live(&self) -> usize {
        self.rails.iter().flatten().count()
    }

    /// Returns a readable event for the engine.
    fn readable(&self) -> PollEvent {
        PollEvent { token: self.token, readable: true, writable: false }
    }
}

/// Listener for further sockets.
#[derive(Debug)]
struct RailListener<S> {
    listener: S,
    own: Option<PskConfig>,
    at: SocketAddr,
    paused_at: Option<Instant>,
}

/// Socket without a proven link.
#[derive(Debug)]
struct PendingSocket<L> {
    link: L,
    from: Option<IpAddr>,
    since: Instant,
    received: Vec<u8>,
}

/// Socket to a peer, until the peer has accepted it for a link.
#[derive(Debug)]
struct DialingSocket<L> {
    link: L,
    number: u32,
    to: IpAddr,
    since: Instant,
    request: Vec<u8>,
    is_sent: bool,
    received: Vec<u8>,
}

/// Reason for the failure of a further socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JoinFailure {
    /// The peer has no link with this token.
    Rejected,
    Socket(Error),
}

impl From<Error> for JoinFailure {
    fn from(error: Error) -> Self {
        Self::Socket(error)
    }
}

/// Sockets of a transport's links beyond the first one of each.
#[derive(Debug)]
pub(super) struct RailHub<N: Transport> {
    shared: Arc<HubShared<N::Link>>,
    links: RefCell<Slab<RailEntry<N::Link>>>,
    tokens: LinkTokens,
    listeners: RefCell<Vec<RailListener<N::Listener>>>,
    pending: RefCell<Slab<PendingSocket<N::Link>>>,
    dialing: RefCell<Slab<DialingSocket<N::Link>>>,
    /// Links with bytes read ahead.
    staged: RefCell<Vec<u32>>,
    /// Events for the engine, reported by the next poll.
    queued: RefCell<Vec<PollEvent>>,
    has_paused: Cell<bool>,
    /// Links with unacknowledged bytes, and links with lost sockets.
    unacknowledged: RefCell<Vec<u32>>,
    redialing: RefCell<Vec<u32>>,
    /// Time of the next check of links with unacknowledged bytes, in nanoseconds.
    check_at: Cell<Option<u64>>,
}

impl<N: Transport> Default for RailHub<N> {
    fn default() -> Self {
        let log_memory = N::Link::settings().rails.resume_memory.saturating_mul(LOGS_IN_SUM);
        Self {
            shared: Arc::new(HubShared::new(log_memory)),
            links: RefCell::default(),
            tokens: LinkTokens::default(),
            listeners: RefCell::default(),
            pending: RefCell::default(),
            dialing: RefCell::default(),
            staged: RefCell::default(),
            queued: RefCell::default(),
            has_paused: Cell::new(false),
            unacknowledged: RefCell::default(),
            redialing: RefCell::default(),
            check_at: Cell::new(None),
        }
    }
}

impl<N: Transport> RailHub<N> {
    /// Adds a link watched by the engine for reading, with this token. `connects`: this end connects
    /// further sockets.
    #[inline(never)]
    pub(super) fn add(
        &self,
        net: &N,
        link: &RailLink<N::Link>,
        token: u64,
        connects: bool,
    ) -> Result {
        self.take_requests(net);
        let first = link.first();
        let entry = RailEntry {
            shared: Arc::default(),
            token,
            interest: Interest::READ,
            is_watched: true,
            rails: vec![Some((first.id(), Some(Interest::READ)))],
            own: link.own().cloned(),
            local: first.local_addr()?,
            peer: peer_of(first),
            peer_ip: first.peer_addr().and_then(|peer| peer.ip()).ok().map(|peer| peer.ip()),
            token_offered: None,
            offer: None,
            connects,
            has_dialed: !connects,
            most: 1,
            redial: None,
        };
        let shared = entry.shared.clone();
        let number = self.links.borrow_mut().insert(entry);
        self.tokens.insert(token, number);
        self.shared.set_now(net.nanos());
        link.set_framed(FramedLink::new(number, shared, self.shared.clone(), connects));
        if N::Link::settings().rails.resume > 0 {
            self.answer(net, number);
        }
        Ok(())
    }

    /// Records the events of a link awaited by the engine (`None`: it does not watch the link),
    /// and registers its sockets. Returns false if the link has no frames.
    #[inline(never)]
    pub(super) fn watch(&self, net: &N, number: u32, watch: Option<(u64, Interest)>) -> bool {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return false };
        match watch {
            Some((token, interest)) => {
                self.tokens.replace(&mut entry.token, token, number);
                (entry.is_watched, entry.interest) = (true, interest);
            }
            None => (entry.is_watched, entry.interest) = (false, Interest::NONE),
        }
        rewatch(net, number, entry);
        true
    }

    /// Handles the events of the poller, those from `start` on, and requests of links.
    #[inline(never)]
    pub(super) fn poll(
        &self,
        net: &N,
        timer: &SharedTimer,
        events: &mut Vec<PollEvent>,
        start: usize,
    ) {
        let now = net.nanos();
        self.shared.set_now(now);
        self.take_requests(net);
        for mut event in events.split_off(start) {
            let Some((kind, number, rail)) = parse_token(event.token) else {
                self.note_first(&mut event);
                events.push(event);
                continue;
            };
            match kind {
                TokenKind::Rail => self.note_rail(net, number, rail, event, events),
                TokenKind::Listener => self.accept_all(net, number as usize),
                TokenKind::Pending => self.receive_join(net, number, events),
                TokenKind::Dialing => self.advance_dialing(net, number, events),
            }
        }
        if !self.pending.borrow().is_empty() || !self.dialing.borrow().is_empty() {
            self.expire(net);
        }
        if self.has_paused.get() {
            self.resume_listeners(net);
        }
        self.check_links(now, events);
        self.redial_links(net, now);
        events.append(&mut self.queued.borrow_mut());
        timer.set_own(net, self.next_time());
        self.report_staged(events);
    }

    /// Prepares a sleep. Returns false if the engine has something to read.
    #[inline(never)]
    pub(super) fn rest(&self, net: &N, timer: &SharedTimer) -> bool {
        self.take_requests(net);
        timer.set_own(net, self.next_time());
        let links = self.links.borrow();
        let is_readable = |number: &u32| links.get(*number).is_some_and(RailEntry::is_readable);
        self.queued.borrow().is_empty() && !self.staged.borrow().iter().any(is_readable)
    }

    /// Reports links with bytes read ahead.
    fn report_staged(&self, events: &mut Vec<PollEvent>) {
        let links = self.links.borrow();
        self.staged.borrow_mut().retain(|number| {
            let Some(entry) = links.get(*number) else { return false };
            if entry.is_readable() {
                events.push(PollEvent { token: entry.token, readable: true, writable: false });
            }
            entry.shared.wanted().has_staged()
        });
    }

    /// Records an event of a link's first socket.
    fn note_first(&self, event: &mut PollEvent) {
        let Some(number) = self.tokens.get(event.token) else { return };
        let links = self.links.borrow();
        let Some(entry) = links.get(number) else { return };
        if event.readable {
            entry.shared.set_readable(1);
        }
        if event.writable && !entry.interest.write {
            // For a control frame: the engine sends nothing, but it reads.
            event.readable = true;
        }
    }

    /// Records an event of another socket, and passes it to the engine.
    fn note_rail(
        &self,
        net: &N,
        number: u32,
        rail: usize,
        event: PollEvent,
        events: &mut Vec<PollEvent>,
    ) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        let Some(Some((id, watched))) = entry.rails.get_mut(rail) else { return };
        if event.readable {
            entry.shared.set_readable(1 << rail);
        }
        if event.readable && *watched == Some(Interest::NONE) {
            *watched = None;
            // The end of a socket that is not to be read yet would be reported again and again.
            net.poller().remove(*id);
        }
        // For a control frame: the engine sends nothing, but it reads.
        let readable = event.readable || (event.writable && !entry.interest.write);
        events.push(PollEvent { token: entry.token, readable, writable: event.writable });
    }

    /// Handles the requests of links.
    #[inline(never)]
    fn take_requests(&self, net: &N) {
        let requests = self.shared.requests.take();
        // The sockets of a closed link are not watched again: their descriptors may be in use.
        for (number, request) in &requests {
            if matches!(request, HubRequest::Forget) {
                self.forget(net, *number);
            }
        }
        for (number, request) in requests {
            match request {
                HubRequest::Offer => self.answer(net, number),
                HubRequest::Offered(offer) => {
                    if let Some(entry) = self.links.borrow_mut().get_mut(number) {
                        entry.offer = Some(offer);
                    }
                }
                HubRequest::Dial => self.dial_all(net, number),
                HubRequest::Change(change) => self.note_change(net, number, change),
                HubRequest::GiveUp => self.give_up(number, &"the peer calls anew"),
                HubRequest::Rewatch => self.note_wanted(net, number),
                HubRequest::Forget => {}
            }
        }
    }

    /// Records the events awaited by a link.
    fn note_wanted(&self, net: &N, number: u32) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        rewatch(net, number, entry);
        let wanted = entry.shared.wanted();
        let mut staged = self.staged.borrow_mut();
        if wanted.has_staged() && !staged.contains(&number) {
            staged.push(number);
        }
        if wanted.has_unacknowledged() {
            let mut unacknowledged = self.unacknowledged.borrow_mut();
            if !unacknowledged.contains(&number) {
                unacknowledged.push(number);
            }
            if self.check_at.get().is_none() {
                self.check_at.set(Some(self.shared.now() + recovery::CHECK_INTERVAL));
            }
        }
    }

    fn forget(&self, net: &N, number: u32) {
        let Some(entry) = self.links.borrow_mut().remove(number) else { return };
        self.tokens.remove(entry.token, number);
        self.staged.borrow_mut().retain(|staged| *staged != number);
        remove_all(&mut self.dialing.borrow_mut(), |one| one.number == number);
        if self.links.borrow().is_empty() {
            // No peer has a reason to connect.
            self.listeners.borrow().iter().for_each(|open| open.listener.stop_listening());
            self.close(net);
        }
    }

    /// Closes all listeners, and the sockets without a link.
    pub(super) fn close(&self, net: &N) {
        for open in self.listeners.take() {
            if open.paused_at.is_none() {
                net.poller().remove(open.listener.id());
            }
        }
        drop((self.pending.take(), self.dialing.take()));
    }

    /// Answers a peer's request for addresses.
    #[inline(never)]
    fn answer(&self, net: &N, number: u32) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        let is_wanted = !entry.connects || N::Link::settings().rails.resume > 0;
        if entry.token_offered.is_some() || !is_wanted {
            return;
        }
        let mut token = [0; TOKEN_LEN];
        let offer = fill_random(&mut token).and_then(|()| {
            let addrs = self.listen(net, entry.own.as_ref(), &entry.local)?;
            Ok(RailOffer { join: JoinRequest { link: u64::from(number), token }, addrs })
        });
        match offer {
            Ok(offer) => {
                entry.token_offered = Some(token);
                entry.shared.events.push(RailEvent::Offer(offer.encode()));
                self.queued.borrow_mut().push(entry.readable());
            }
            Err(error) => log_single::<N::Link>(entry.peer.clone(), &error),
        }
    }

    /// Opens the listeners for sockets of a link. Returns their addresses.
    fn listen(&self, net: &N, own: Option<&PskConfig>, local: &Addr) -> Result<Vec<SocketAddr>> {
        let settings = &N::Link::settings().rails;
        let mut ips = settings.addrs.clone();
        if ips.is_empty() {
            ips.push(local.ip()?.ip());
        }
        ips.truncate(ADDRS_MAX);
        let mut listeners = self.listeners.borrow_mut();
        let mut addrs = Vec::new();
        let mut last = Error::ADDRNOTAVAIL;
        for ip in ips {
            let is_open =
                |open: &&RailListener<_>| open.at.ip() == ip && is_same_key(open.own.as_ref(), own);
            if let Some(open) = listeners.iter().find(is_open) {
                addrs.push(open.at);
                continue;
            }
            match self.open_listener(net, own, ip, listeners.len()) {
                Ok(open) => {
                    addrs.push(open.at);
                    listeners.push(open);
                }
                Err(error) => last = error,
            }
        }
        if addrs.is_empty() { Err(last) } else { Ok(addrs) }
    }

    fn open_listener(
        &self,
        net: &N,
        own: Option<&PskConfig>,
        ip: IpAddr,
        number: usize,
    ) -> Result<RailListener<N::Listener>> {
        let (listener, at) = net.bind_as(own, &Addr::Ip(SocketAddr::new(ip, 0)))?;
        listener.listen(BACKLOG)?;
        let at = at.ip()?;
        let token = token(TokenKind::Listener, number as u32, 0);
        net.poller().add(listener.id(), token, Interest::READ)?;
        Ok(RailListener { listener, own: own.cloned(), at, paused_at: None })
    }

    /// Connects further sockets of a link to the addresses offered by the peer.
    #[inline(never)]
    fn dial_all(&self, net: &N, number: u32) {
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        if std::mem::replace(&mut entry.has_dialed, true) {
            return;
        }
        let (Some(offer), Ok(local)) = (&entry.offer, entry.local.ip()) else { return };
        let settings = &N::Link::settings().rails;
        let count = settings.count().saturating_sub(1);
        let routes = choose_routes(&settings.addrs, count, local.ip(), &offer.addrs);
        let mut failed = None;
        for (from, to) in routes {
            if let Err(error) = self.dial(net, number, entry, offer, from, to) {
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            log_single::<N::Link>(entry.peer.clone(), &error);
        }
    }

    fn dial(
        &self,
        net: &N,
        number: u32,
        entry: &RailEntry<N::Link>,
        offer: &RailOffer,
        from: IpAddr,
        to: SocketAddr,
    ) -> Result {
        let from = Addr::Ip(SocketAddr::new(from, 0));
        let link = net.dial_as(entry.own.as_ref(), &from, false, &Addr::Ip(to))?;
        let id = link.id();
        let slot = self.dialing.borrow_mut().insert(DialingSocket {
            link,
            number,
            to: to.ip(),
            since: net.now(),
            request: offer.join.encode(),
            is_sent: false,
            received: Vec::new(),
        });
        let watched = net.poller().add(id, token(TokenKind::Dialing, slot, 0), Interest::WRITE);
        watched.inspect_err(|_| drop(self.dialing.borrow_mut().remove(slot)))
    }

    /// Accepts the sockets waiting at a listener.
    #[inline(never)]
    fn accept_all(&self, net: &N, at: usize) {
        let mut listeners = self.listeners.borrow_mut();
        let Some(open) = listeners.get_mut(at) else { return };
        // A bounded number, so that a peer cannot keep this thread here.
        for _ in 0..PENDING_MAX {
            match open.listener.accept() {
                Ok((link, from)) => self.add_pending(net, link, &from),
                Err(Error::CONNABORTED | Error::INTR) => {}
                Err(Error::AGAIN) => break,
                Err(_) => {
                    net.poller().remove(open.listener.id());
                    open.paused_at = Some(net.now());
                    self.has_paused.set(true);
                    break;
                }
            }
        }
    }

    fn add_pending(&self, net: &N, link: N::Link, from: &Addr) {
        let from = from.ip().ok().map(|from| from.ip().to_canonical());
        let mut pending = self.pending.borrow_mut();
        let of_host = pending.iter().filter(|(_, one)| one.from == from).count();
        if pending.len() >= PENDING_MAX || of_host >= PENDING_PER_HOST {
            return;
        }
        let id = link.id();
        let slot =
            pending.insert(PendingSocket { link, from, since: net.now(), received: Vec::new() });
        let token = token(TokenKind::Pending, slot, 0);
        if net.poller().add(id, token, Interest::READ).is_err() {
            pending.remove(slot);
        }
    }

    /// Receives a join request on an accepted socket.
    #[inline(never)]
    fn receive_join(&self, net: &N, slot: u32, events: &mut Vec<PollEvent>) {
        let mut pending = self.pending.borrow_mut();
        let Some(one) = pending.get_mut(slot) else { return };
        match receive_frame(&one.link, &mut one.received, FrameType::Join) {
            Ok(None) => return,
            Ok(Some(())) => {}
            Err(why) => {
                log_refused(&one.link, &why);
                pending.remove(slot);
                return;
            }
        }
        let Some(PendingSocket { link, received, .. }) = pending.remove(slot) else { return };
        drop(pending);
        net.poller().remove(link.id());
        let Ok(request) = JoinRequest::parse(&received[FRAME_LEN..]) else { return };
        let mut links = self.links.borrow_mut();
        let number = u32::try_from(request.link).unwrap_or(u32::MAX);
        let entry = links.get_mut(number).filter(|entry| {
            entry.token_offered.is_some_and(|token| is_same_token(&token, &request.token))
        });
        let Some(entry) = entry else {
            log_refused(&link, &"the token is wrong");
            let _ = link.send(&FrameHeader::control(FrameType::Rejected, 0).encode());
            return;
        };
        let answer = FrameHeader::control(FrameType::Joined, 0).encode();
        if entry.live() >= RAILS_MAX || link.send(&answer) != Ok(answer.len()) {
            return;
        }
        add_rail(net, number, entry, link, events);
    }

    /// Continues connecting a further socket.
    #[inline(never)]
    fn advance_dialing(&self, net: &N, slot: u32, events: &mut Vec<PollEvent>) {
        let mut dialing = self.dialing.borrow_mut();
        let Some(one) = dialing.get_mut(slot) else { return };
        let failed = match self.try_join(net, slot, one) {
            Ok(false) => return,
            Ok(true) => None,
            Err(failure) => Some(failure),
        };
        let Some(DialingSocket { link, number, to, .. }) = dialing.remove(slot) else { return };
        drop(dialing);
        net.poller().remove(link.id());
        let mut links = self.links.borrow_mut();
        let Some(entry) = links.get_mut(number) else { return };
        let (error, is_rejected) = match failed {
            None => return add_rail(net, number, entry, link, events),
            Some(JoinFailure::Rejected) => (Error::CONNREFUSED, true),
            Some(JoinFailure::Socket(error)) => (error, false),
        };
        let Some(redial) = &mut entry.redial else {
            return log_single::<N::Link>(entry.peer.clone(), &error);
        };
        // A rejection is final if the peer has this address itself.
        let is_final = error == Error::CONNREFUSED && entry.peer_ip == Some(to);
        if is_rejected || (is_final && redial.refused(self.shared.now())) {
            drop(links);
            self.give_up(number, &"it is gone");
        }
    }

    /// Sends the join request and receives the answer. Returns true after the answer.
    fn try_join(
        &self,
        net: &N,
        slot: u32,
        one: &mut DialingSocket<N::Link>,
    ) -> core::result::Result<bool, JoinFailure> {
        one.link.take_error()?;
        if !one.is_sent {
            match one.link.send(&one.request) {
                Ok(n) if n == one.request.len() => one.is_sent = true,
                Ok(_) => return Err(Error::IO.into()),
                Err(Error::AGAIN | Error::NOTCONN | Error::INTR) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            net.poller().modify(
                one.link.id(),
                token(TokenKind::Dialing, slot, 0),
                Interest::READ,
            )?;
        }
        match receive_frame(&one.link, &mut one.received, FrameType::Joined) {
            Ok(received) => Ok(received.is_some()),
            Err(_) => {
                let header = one.received.first_chunk().map(FrameHeader::parse);
                let is_rejected = |header: &FrameHeader| header.kind == FrameType::Rejected;
                let is_rejected =
                    header.is_some_and(|header| header.as_ref().is_ok_and(is_rejected));
                Err(if is_rejected { JoinFailure::Rejected } else { Error::CONNRESET.into() })
            }
        }
    }

    /// Ends sockets not joined in time.
    #[inline(never)]
    fn expire(&self, net: &N) {
        let now = net.now();
        let is_late = |since: Instant| now.saturating_duration_since(since) > JOIN_TIMEOUT;
        remove_all(&mut self.pending.borrow_mut(), |one| is_late(one.since));
        for one in remove_all(&mut self.dialing.borrow_mut(), |one| is_late(one.since)) {
            let links = self.links.borrow();
            if let Some(entry) = links.get(one.number).filter(|entry| entry.redial.is_none()) {
                log_single::<N::Link>(entry.peer.clone(), &Error::from_code(libc::ETIMEDOUT));
            }
        }
    }

    /// Watches paused listeners again.
    fn resume_listeners(&self, net: &N) {
        let now = net.now();
        let mut is_any_paused = false;
        for (number, open) in self.listeners.borrow_mut().iter_mut().enumerate() {
            let Some(since) = open.paused_at else { continue };
            let token = token(TokenKind::Listener, number as u32, 0);
            let is_over = now.saturating_duration_since(since) >= ACCEPT_PAUSE;
            if is_over && net.poller().add(open.listener.id(), token, Interest::READ).is_ok() {
                open.paused_at = None;
            } else {
                is_any_paused = true;
            }
        }
        self.has_paused.set(is_any_paused);
    }
}

/// Removes and returns the values accepted by `is`.
fn remove_all<T>(slab: &mut Slab<T>, is: impl Fn(&T) -> bool) -> Vec<T> {
    slab.indices(is).into_iter().filter_map(|slot| slab.remove(slot)).collect()
}

/// Adds a socket to a link.
fn add_rail<L: ByteLink>(
    net: &impl Transport<Link = L>,
    number: u32,
    entry: &mut RailEntry<L>,
    link: L,
    events: &mut Vec<PollEvent>,
) {
    let free = entry.rails.iter().skip(1).position(Option::is_none).map(|at| at + 1);
    let at = free.unwrap_or(entry.rails.len());
    if at >= RAILS_MAX {
        return;
    }
    if free.is_none() {
        entry.rails.push(None);
    }
    link.made();
    entry.rails[at] = Some((link.id(), None));
    entry.most = entry.most.max(entry.live());
    entry.shared.events.push(RailEvent::Joined(at, link));
    if let Some(redial) = &mut entry.redial {
        redial.add_joined();
    }
    rewatch(net, number, entry);
    // Even if the engine reads nothing: the socket is used after an exchange with the peer.
    events.push(entry.readable());
}

/// Registers the sockets of a link with the poller for the awaited events.
fn rewatch<L: ByteLink>(net: &impl Transport<Link = L>, number: u32, entry: &mut RailEntry<L>) {
    let wanted = entry.shared.wanted();
    for (at, rail) in entry.rails.iter_mut().enumerate() {
        let Some((id, watched)) = rail else { continue };
        let interest = wanted.of_rail(at, entry.interest);
        let token = if at == 0 { entry.token } else { token(TokenKind::Rail, number, at) };
        // The engine watches the end of the first socket.
        let is_watched = interest != Interest::NONE || (entry.is_watched && watched.is_some());
        let result = match (*watched, is_watched) {
            (Some(before), true) if before == interest => Ok(()),
            (Some(_), true) => net.poller().modify(*id, token, interest),
            (None, true) => net.poller().add(*id, token, interest),
            (Some(_), false) => {
                net.poller().remove(*id);
                Ok(())
            }
            (None, false) => Ok(()),
        };
        *watched = (is_watched && result.is_ok()).then_some(interest);
    }
}

/// Receives one frame of this kind, and not a byte more. Returns `None` while a part is missing.
fn receive_frame(
    link: &impl ByteLink,
    received: &mut Vec<u8>,
    kind: FrameType,
) -> core::result::Result<Option<()>, Malformed> {
    loop {
        let wanted = match received.first_chunk() {
            None => FRAME_LEN,
            Some(header) => {
                let header = FrameHeader::parse(header)?;
                if header.kind != kind {
                    return Err(Malformed("the first frame is of another kind"));
                }
                FRAME_LEN + header.len
            }
        };
        if received.len() >= FRAME_LEN && received.len() == wanted {
            return Ok(Some(()));
        }
        let mut buf = [0; FRAME_LEN + JoinRequest::LEN];
        match link.recv(&mut buf[..wanted - received.len()]) {
            Ok(0) => return Err(Malformed("the socket ended before its first frame")),
            Ok(n) => received.extend_from_slice(&buf[..n]),
            Err(Error::AGAIN | Error::INTR) => return Ok(None),
            Err(_) => return Err(Malformed("the socket failed before its first frame")),
        }
    }
}

/// Returns true if two endpoints use the same pre-shared key of their own, or none.
fn is_same_key(one: Option<&PskConfig>, other: Option<&PskConfig>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.is_same(other.key().map(|key| &**key), other.encrypts()),
        _ => false,
    }
}

/// Compares tokens in constant time.
fn is_same_token(one: &[u8; TOKEN_LEN], other: &[u8; TOKEN_LEN]) -> bool {
    one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

/// Logs a link's lack of sockets.
#[cold]
fn log_single<L: ByteLink>(peer: Option<String>, why: &dyn Display) {
    ofi_provider::log_sparsely!(
        L::provider(),
        WARN,
        EP_CTRL,
        "the connection with {} has fewer sockets than wanted: {why}",
        peer_text(peer)
    );
}

/// Logs the refusal of a socket without a link.
#[cold]
fn log_refused<L: ByteLink>(link: &L, why: &dyn Display) {
    ofi_provider::log_sparsely!(
        L::provider(),
        WARN,
        EP_CTRL,
        "refusing a further socket of {}: {why}",
        peer_text(peer_of(link))
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_owners() {
        let owners = [
            (TokenKind::Rail, 7, 3),
            (TokenKind::Listener, 0, 0),
            (TokenKind::Pending, u32::MAX, 255),
            (TokenKind::Dialing, 1, 0),
        ];
        for (kind, number, rail) in owners {
            assert_eq!(parse_token(token(kind, number, rail)), Some((kind, number, rail)));
        }
        assert_eq!(parse_token(1 << 63 | 2 << 32), None);
        assert_eq!(parse_token(5), None);
    }
}
