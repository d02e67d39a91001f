//! Link with possibly several sockets.
use super::events::{HubRequest, HubShared, LinkShared, RailEvent};
use super::first_frames::RailRequest;
use super::rails::{FastRecv, FastSend, RailChange, RailSet, offer_request};
use super::wanted::WantedEvents;
use crate::forward::forward_link;
use crate::secret::PskConfig;
use crate::settings::RailSettings;
use crate::transport::{AuthenticatedLink, ByteLink, LinkRecovery, ZeroCopyLink, ZerocopyDone};
use crate::unconfirmed_answer::UnconfirmedAnswer;
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::error::{Error, Result};
use ofi_provider::slab::NONE;
use ofi_provider::sys::generation;
use ofi_provider::traffic_class::TrafficClass;
use std::cell::{Cell, OnceCell, RefCell};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Identifier of a link or listener within a [`MultiRail`](super::MultiRail).
#[derive(Clone, Copy, Debug)]
pub struct RailId<I> {
    pub(super) first: I,
    pub(super) number: u32,
}

/// Link with possibly several sockets.
///
/// Until both ends have agreed on frames ([`ByteLink::made`]), and in links without such an
/// agreement, it is its first socket.
#[derive(Debug)]
pub struct RailLink<L: ByteLink> {
    first: L,
    /// The stream consists of frames.
    is_framed: Cell<bool>,
    framed: OnceCell<Box<FramedLink<L>>>,
    /// Pre-shared key of the endpoint's own.
    own: Option<Box<PskConfig>>,
}

/// State of a link with frames.
#[derive(Debug)]
pub(super) struct FramedLink<L> {
    /// Number of the link within its transport.
    number: u32,
    generation: u32,
    shared: Arc<LinkShared<L>>,
    hub: Arc<HubShared<L>>,
    rails: RefCell<RailSet<L>>,
    /// This end connects further sockets.
    connects: bool,
    request: Cell<RequestState>,
    /// Answer to the connection request, until the first frame of the peer has arrived.
    answer: RefCell<Option<Arc<UnconfirmedAnswer>>>,
    /// Class of the packets of all sockets.
    class: Cell<TrafficClass>,
}

/// Progress of the connecting end towards further sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    /// No request yet, with little traffic: the traffic and the time
    /// at the start of the measurement.
    Idle { traffic: u64, since: u64 },
    /// A request was sent, or the peer connects.
    Done,
    /// The link has a single socket.
    Unused,
}

impl<L: ByteLink> FramedLink<L> {
    pub(super) fn new(
        number: u32,
        shared: Arc<LinkShared<L>>,
        hub: Arc<HubShared<L>>,
        connects: bool,
    ) -> Self {
        let since = hub.now();
        let settings = &L::settings().rails;
        let rails = RailSet::new(settings, &hub.log_memory, connects);
        let request = match connects {
            true if settings.count() > 1 => RequestState::Idle { traffic: 0, since },
            true => RequestState::Unused,
            false => RequestState::Done,
        };
        Self {
            number,
            generation: generation(),
            shared,
            hub,
            rails: RefCell::new(rails),
            connects,
            request: Cell::new(request),
            answer: RefCell::default(),
            class: Cell::default(),
        }
    }

    /// Requests further sockets of the peer after sufficient traffic.
    fn request_offer(&self, rails: &mut RailSet<L>) {
        let RequestState::Idle { traffic, since } = self.request.get() else { return };
        let settings: &RailSettings = &L::settings().rails;
        if rails.traffic() - traffic < settings.threshold {
            return;
        }
        let now = self.hub.now();
        if now.saturating_sub(since) > settings.window && settings.threshold > 0 {
            self.request.set(RequestState::Idle { traffic: rails.traffic(), since: now });
            return;
        }
        self.request.set(RequestState::Done);
        match rails.first_frames().has_offered() {
            true => self.push_request(HubRequest::Dial),
            false => rails.push_control(&offer_request()),
        }
    }

    /// Returns the events awaited, if a call may leave out the events of the transport and the
    /// publication of its own: there are no events, and the link awaits nothing unusual.
    #[inline(always)]
    fn quiet(&self) -> Option<WantedEvents> {
        let is_own = self.generation == generation() && !self.shared.events.has_items();
        let is_quiet = is_own && !matches!(self.request.get(), RequestState::Idle { .. });
        Some(self.shared.wanted()).filter(|wanted| is_quiet && wanted.is_quiet())
    }

    fn push_request(&self, request: HubRequest<L>) {
        self.hub.requests.push((self.number, request));
    }

    /// Handles the events from the transport.
    fn take_events(&self, first: &L, rails: &mut RailSet<L>) {
        rails.set_readable(self.shared.take_readable());
        if !self.shared.events.has_items() {
            return;
        }
        for event in self.shared.events.take() {
            match event {
                RailEvent::Joined(at, link) => {
                    let is_repeated = |answer: &Arc<UnconfirmedAnswer>| answer.is_repeated();
                    if self.answer.borrow().as_ref().is_some_and(is_repeated)
                        && rails.first_frames().is_missing()
                    {
                        // The peer has lost it, and this end may not know.
                        rails.lose_rail(0, first, Err(Error::CONNRESET));
                    }
                    link.set_traffic_class(self.class.get());
                    rails.add(at, link, self.connects);
                }
                RailEvent::Offer(frame) => {
                    rails.first_frames().add_offer(&frame);
                    rails.push_control(&frame);
                }
                RailEvent::Check => rails.check_progress(first, self.hub.now()),
                RailEvent::GiveUp => {
                    rails.give_up();
                    self.answer.take();
                }
            }
        }
    }

    /// Passes requests of the peer and the wanted events to the transport.
    fn publish(&self, rails: &mut RailSet<L>) {
        if let Some((requests, changes)) = rails.take_requests() {
            self.pass_requests(requests, changes);
        }
        if self.shared.set_wanted(rails.wanted()) {
            self.push_request(HubRequest::Rewatch);
        }
    }

    /// Passes requests of the peer and changes of the sockets to the transport.
    #[inline(never)]
    fn pass_requests(&self, requests: Vec<RailRequest>, changes: Vec<RailChange<L>>) {
        for request in requests {
            let RailRequest::Offer(offer) = request else {
                self.push_request(HubRequest::Offer);
                continue;
            };
            self.push_request(HubRequest::Offered(offer));
            if self.connects && self.request.get() == RequestState::Done {
                self.push_request(HubRequest::Dial);
            }
        }
        for change in changes {
            self.push_request(HubRequest::Change(change));
        }
    }

    fn with_rails<R>(
        &self,
        first: &L,
        work: impl FnOnce(&mut RailSet<L>) -> Result<R>,
    ) -> Result<R> {
        if self.generation != generation() {
            return Err(Error::OTHER);
        }
        let rails = &mut *self.rails.borrow_mut();
        self.take_events(first, rails);
        rails.receive_confirmations(first);
        let result = work(rails);
        if rails.first_frames().hello().is_some() {
            self.answer.take();
        }
        self.request_offer(rails);
        rails.acknowledge();
        if rails.has_control() {
            // An error is returned again by the next send.
            let _ = rails.flush_control(first);
        }
        self.publish(rails);
        result
    }
}

impl<L: ByteLink> RailLink<L> {
    pub(super) fn new(first: L, own: Option<&PskConfig>) -> Self {
        let own = own.cloned().map(Box::new);
        Self { first, is_framed: Cell::new(false), framed: OnceCell::new(), own }
    }

    /// Returns the first socket.
    pub(super) fn first(&self) -> &L {
        &self.first
    }

    /// Returns the pre-shared key of the endpoint's own.
    pub(super) fn own(&self) -> Option<&PskConfig> {
        self.own.as_deref()
    }

    /// Starts frames with [`ByteLink::made`].
    pub(super) fn set_framed(&self, framed: FramedLink<L>) {
        let _ = self.framed.set(Box::new(framed));
    }

    /// Returns true if the ends have agreed on frames, even before [`ByteLink::made`].
    pub(super) fn has_started(&self) -> bool {
        self.framed.get().is_some()
    }

    /// Returns the state of a link with frames.
    #[inline(always)]
    fn framed(&self) -> Option<&FramedLink<L>> {
        if self.is_framed.get() { self.framed.get().map(|framed| &**framed) } else { None }
    }

    #[inline(never)]
    fn recv_list_framed(
        &self,
        framed: &FramedLink<L>,
        list: &mut ScatterList<'_>,
    ) -> Result<usize> {
        list.fill(|buf| self.recv_framed(framed, buf))
    }

    #[inline(never)]
    fn recv_framed(&self, framed: &FramedLink<L>, dst: &mut [u8]) -> Result<usize> {
        // Fast path of a single frame on a link without other work: saves the exchange with the
        // transport.
        if framed.quiet().is_some() {
            let result = framed.rails.borrow_mut().recv_fast(&self.first, dst);
            match result {
                FastRecv::Received(n) => return Ok(n),
                FastRecv::WithAck(n) => return framed.with_rails(&self.first, |_| Ok(n)),
                FastRecv::Nothing => return Err(Error::AGAIN),
                FastRecv::Not => {}
                FastRecv::Ended(ended) => {
                    let end = |rails: &mut RailSet<L>| rails.recv_end(&self.first, ended, dst);
                    return framed.with_rails(&self.first, end);
                }
            }
        }
        self.recv_slow(framed, dst)
    }

    #[inline(never)]
    fn recv_slow(&self, framed: &FramedLink<L>, dst: &mut [u8]) -> Result<usize> {
        framed.with_rails(&self.first, |rails| rails.recv(&self.first, dst))
    }

    #[inline(never)]
    fn send_bytes_framed(&self, framed: &FramedLink<L>, bytes: &[u8]) -> Result<usize> {
        // Fast path of small messages behind unacknowledged ones, on a link without other work: saves
        // the exchange with the transport.
        if framed.quiet().is_some_and(WantedEvents::has_unacknowledged) {
            let result = framed.rails.borrow_mut().send_fast(&self.first, bytes);
            match result {
                FastSend::Sent => return Ok(bytes.len()),
                FastSend::InPart => {
                    return framed.with_rails(&self.first, |_| match bytes.len() {
                        1 => Err(Error::AGAIN),
                        len => Ok(len - 1),
                    });
                }
                FastSend::Not => {}
                FastSend::Failed(error) => {
                    return framed.with_rails(&self.first, |rails| rails.fail_fast(error));
                }
            }
        }
        self.send_bytes_slow(framed, bytes)
    }

    // A list would enlarge the stack frames of all callers.
    #[inline(never)]
    fn send_bytes_slow(&self, framed: &FramedLink<L>, bytes: &[u8]) -> Result<usize> {
        let mut list = GatherList::default();
        list.push_bytes(bytes);
        self.send_framed(framed, &list, CopyMode::Copied)
    }

    #[inline(never)]
    fn send_framed(
        &self,
        framed: &FramedLink<L>,
        list: &GatherList<'_>,
        mode: CopyMode,
    ) -> Result<usize> {
        let now = framed.hub.now();
        framed.with_rails(&self.first, |rails| rails.send(&self.first, list, mode, now))
    }

    /// Ends the stream to the peer, as far as the sockets accept it, if the link can be resumed.
    fn end_stream(&self) {
        if let Some(framed) = self.framed() {
            let _ = framed.with_rails(&self.first, |rails| {
                rails.end_sending(&self.first);
                Ok(())
            });
        }
    }

    /// Passes each socket but the first to `each`.
    pub(super) fn for_others(&self, each: impl FnMut(&L)) {
        if let Some(framed) = self.framed() {
            framed.rails.borrow().for_others(each);
        }
    }
}

impl<L: ByteLink> Drop for RailLink<L> {
    fn drop(&mut self) {
        if let Some(framed) = self.framed.get() {
            self.end_stream();
            framed.push_request(HubRequest::Forget);
        }
    }
}

impl<L: ByteLink> ByteLink for RailLink<L> {
    type Id = RailId<L::Id>;

    forward_link! { first: L }

    #[inline(always)]
    fn id(&self) -> RailId<L::Id> {
        let number = self.framed.get().map_or(NONE, |framed| framed.number);
        RailId { first: self.first.id(), number }
    }

    #[inline(always)]
    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        match self.framed() {
            None => self.first.recv(buf),
            Some(framed) => self.recv_framed(framed, buf),
        }
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        match self.framed() {
            None => self.first.send(bytes),
            Some(framed) => self.send_bytes_framed(framed, bytes),
        }
    }

    #[inline(always)]
    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        match self.framed() {
            None => self.first.recv_list(list),
            Some(framed) => self.recv_list_framed(framed, list),
        }
    }

    #[inline(always)]
    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        match self.framed() {
            None => self.first.send_list(list, way),
            Some(framed) => self.send_framed(framed, list, way),
        }
    }

    fn has_ended(&self) -> bool {
        let Some(framed) = self.framed() else { return self.first.has_ended() };
        framed.with_rails(&self.first, |rails| Ok(rails.look_for_end(&self.first))) == Ok(true)
    }

    fn send_answer(&self, bytes: &[u8]) -> Result<usize> {
        match self.framed.get() {
            None => self.first.send(bytes),
            Some(framed) => framed.with_rails(&self.first, |rails| {
                if let Some(frames) = rails.first_frames().own_with_offer() {
                    let answer = UnconfirmedAnswer::new([bytes, frames].concat());
                    framed.answer.replace(Some(Arc::new(answer)));
                }
                rails.send_with_first_frames(&self.first, bytes)
            }),
        }
    }

    fn unconfirmed_answer(&self) -> Weak<UnconfirmedAnswer> {
        let framed = self.framed.get();
        let answer = framed.and_then(|framed| framed.answer.borrow().as_ref().map(Arc::downgrade));
        answer.unwrap_or_default()
    }

    fn receive_first_frames(&self) -> Result<bool> {
        let Some(framed) = self.framed.get() else { return Ok(true) };
        // Own frames prove their arrival: none is sent now.
        framed.rails.borrow_mut().receive_first_frames(&self.first)
    }

    fn made(&self) {
        self.first.made();
        let Some(framed) = self.framed.get() else { return };
        self.is_framed.set(true);
        // The first frame. An error is returned again by the next send.
        let _ = framed.with_rails(&self.first, |rails| {
            if framed.connects {
                // Those of the peer have arrived with its answer. The link can then be resumed.
                let _ = rails.receive_first_frames(&self.first);
            }
            rails.flush_control(&self.first)
        });
    }

    fn set_traffic_class(&self, class: TrafficClass) {
        self.first.set_traffic_class(class);
        if let Some(framed) = self.framed.get() {
            framed.class.set(class);
        }
    }

    fn sockets(&self) -> u64 {
        self.framed().map_or(0, |framed| framed.rails.borrow().count() as u64)
    }

    fn descriptors(&self) -> usize {
        self.framed().map_or(1, |framed| framed.rails.borrow().count().max(1))
    }

    fn recovery(&self) -> LinkRecovery {
        let framed = self.framed();
        framed.map_or_else(LinkRecovery::default, |framed| framed.rails.borrow().recovery())
    }

    fn unacknowledged(&self) -> usize {
        match self.framed() {
            None => self.first.unacknowledged(),
            Some(framed) => framed.rails.borrow().unacknowledged(&self.first),
        }
    }

    fn is_silent(&self, now: Instant) -> bool {
        match self.framed() {
            None => self.first.is_silent(now),
            Some(framed) => {
                let fail = |rails: &mut RailSet<L>| rails.fail_silent(&self.first, now);
                framed.with_rails(&self.first, fail).is_err()
            }
        }
    }

    fn probe(&self) {
        self.first.probe();
        self.for_others(L::probe);
        if let Some(framed) = self.framed() {
            if framed.rails.borrow().is_resuming() {
                // The peer has asked for a new link, so it does not resume this one.
                framed.push_request(HubRequest::GiveUp);
            }
        }
    }

    fn shutdown(&self) {
        self.end_stream();
        self.first.shutdown();
        self.for_others(L::shutdown);
    }

    fn end_sending(&self) {
        self.end_stream();
        self.first.end_sending();
        self.for_others(L::end_sending);
    }

    fn reset_when_closed(&self) {
        if let Some(framed) = self.framed() {
            // The application gets its buffers back.
            framed.rails.borrow_mut().give_up();
        }
        self.first.reset_when_closed();
        self.for_others(L::reset_when_closed);
    }
}

impl<L: AuthenticatedLink> AuthenticatedLink for RailLink<L> {
    fn secrecy(&self) -> [bool; 2] {
        self.first.secrecy()
    }

    fn has_half_sent(&self) -> bool {
        self.framed().is_none() && self.first.has_half_sent()
    }
}

impl<L: ZeroCopyLink> ZeroCopyLink for RailLink<L> {
    fn set_zerocopy(&self) -> Result {
        match self.framed.get() {
            None => self.first.set_zerocopy(),
            Some(framed) if framed.rails.borrow().may_retain() => Ok(()),
            // Frames would have to be stored until the kernel has released them.
            Some(_) => Err(Error::NOSYS),
        }
    }

    fn zerocopy_size(&self) -> usize {
        let size = self.first.zerocopy_size();
        match self.framed.get() {
            Some(framed) if framed.rails.borrow().may_retain() => {
                size.min(L::settings().rails.retain)
            }
            _ => size,
        }
    }

    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        match self.framed() {
            None => self.first.zerocopy_done(),
            Some(framed) => framed.rails.borrow_mut().take_done_calls(),
        }
    }
}
