//! What the engine stands on: links that carry bytes in order, what tells that they can be read
//! or written, a timer and a clock.
//!
//! The tcp provider has sockets there. An engine over anything else that keeps bytes in order is the
//! same code, built for that type.
use crate::secret::JobSecret;
use crate::settings::StreamSettings;
use crate::wire::LocalOffer;
use core::time::Duration;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{ForeignBytes, GatherList, OnePiece, ScatterList, ShortBytes, Way};
use ofi_provider::error::{Error, Result};
use ofi_provider::facts::EngineFacts;
use ofi_provider::log::peer_text;
use ofi_provider::provider::Provider;
use ofi_provider::ring::ShortCells;
use ofi_provider::sys::{Epoll, Interest, PollEvent, Timer, fine_now};
use std::fmt::{Debug, Display};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Weak;
use std::time::Instant;

/// Most connections that [`Net::send_each`] and [`Net::receive_each`] take at a time.
pub const MAX_EACH: usize = 16;

/// The token of the engine's timer in what [`Net::poll`] reports.
pub const TIMER_TOKEN: u64 = 2 << 32;

/// A notice that the system is done with the zero-copy calls numbered `low` to `high`.
#[derive(Clone, Copy, Debug)]
pub struct ZerocopyDone {
    /// The first call.
    pub low: u32,
    /// The last call.
    pub high: u32,
    /// The system copied the calls' bytes after all.
    pub copied: bool,
}

/// One end of a link that carries bytes both ways, each way in order. No call blocks.
pub trait ByteLink: Debug + Send + 'static {
    /// What a poller knows links and listeners by.
    type Id: Copy + Debug + Send;

    /// The provider that the engine's log lines name.
    fn provider() -> &'static Provider;

    /// What the user chose of the engine, the same for all links of this kind. The engine asks for
    /// each message, so the answer must cost nothing.
    fn settings() -> &'static StreamSettings;

    /// What pollers know this link by.
    fn id(&self) -> Self::Id;

    /// Receives bytes that are there: how many, 0 at the end of the stream, -FI_EAGAIN if there
    /// are none now.
    fn recv(&self, room: &mut [u8]) -> Result<usize>;

    /// Sends as many of these bytes as the link takes now; -FI_EAGAIN if it takes none.
    fn send(&self, bytes: &[u8]) -> Result<usize>;

    /// Receives as [`ByteLink::recv`] does, into all the room in a list.
    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize>;

    /// Sends as [`ByteLink::send`] does, all the bytes in a list, in this way.
    /// With [`Way::Uncopied`] the link may read the memory until [`ByteLink::zerocopy_done`] says
    /// that it is done: what is written there meanwhile may be what the other end gets.
    fn send_list(&self, list: &mut GatherList<'_>, way: Way) -> Result<usize>;

    /// The error with which making the link ended, if it did; an error ends the link. It is asked
    /// for until the first bytes are sent.
    fn take_error(&self) -> Result;

    /// The address of this end: the endpoint's, or one by which the link alone is known.
    fn local_addr(&self) -> Result<Addr>;

    /// The address of the other end.
    fn peer_addr(&self) -> Result<Addr>;

    /// Whether the other end may be in a process of this host, as far as addresses tell.
    fn is_on_this_host(&self) -> bool {
        false
    }

    /// The link's descriptor, for the application to look at (FI_GETFD); -FI_ENOSYS if it has
    /// none.
    fn fd(&self) -> Result<RawFd> {
        Err(Error::NOSYS)
    }

    /// A caller at a passive endpoint has this link: it may wait long, for the application's
    /// answer.
    fn waits(&self) {}

    /// Both ends have agreed to exchange messages: the link is set up for that.
    fn made(&self) {}

    /// Whether bytes come through memory that both ends share ([`WithLocal`](crate::local::WithLocal)):
    /// receiving costs little then, even in vain. Once true it stays so.
    #[inline(always)]
    fn hears_locally(&self) -> bool {
        false
    }

    /// Whether bytes leave through memory that both ends share: sending costs little then, so that
    /// nothing is gained by collecting messages.
    #[inline(always)]
    fn sends_locally(&self) -> bool {
        false
    }

    /// [`ByteLink::send`] of the plain message with this number, its remote CQ data if there are some, its
    /// tag if it is tagged, and `body`, all of it, by a link that [sends locally](ByteLink::sends_locally). False if that does not go
    /// now, or not this way; then nothing was sent.
    #[inline(always)]
    fn send_plain(
        &self,
        _id: u8,
        _data: Option<u64>,
        _tag: Option<u64>,
        _body: OnePiece<'_>,
    ) -> bool {
        false
    }

    /// Gives what is short and came through memory to `take`, where it is, as
    /// [`LocalPipe::take_short`](ofi_provider::ring::LocalPipe::take_short) does, by a link that
    /// [hears locally](ByteLink::hears_locally).
    #[inline(always)]
    fn take_short(&self, _take: impl FnMut(ShortBytes<'_>) -> bool) -> ShortCells {
        ShortCells::Else
    }

    /// [`take_short`](ByteLink::take_short) of what is longer, too, as
    /// [`LocalPipe::take_whole`](ofi_provider::ring::LocalPipe::take_whole) does.
    fn take_whole(&self, _take: impl FnMut([u64; 4], ForeignBytes<'_>) -> bool) -> ShortCells {
        ShortCells::Else
    }

    /// Whether the other end has proven the job's secret, and whether what goes there is encrypted.
    fn secrecy(&self) -> [bool; 2] {
        [false; 2]
    }

    /// Tells a link that [hears locally](ByteLink::hears_locally) whether its user receives from it
    /// again and again by itself; until then, and afterwards, the poller tells of what comes.
    fn set_polled(&self, _polled: bool) {}

    /// Whether a link that hears locally has something to tell; if its user `hears`, something to
    /// receive; with bytes that are `unsent`, room for some. Asked after
    /// [`set_polled`](ByteLink::set_polled) and [`Net::rest`] this misses nothing that the poller
    /// does not tell.
    fn has_come(&self, _hears: bool, _unsent: bool) -> bool {
        false
    }

    /// The link is about to be closed with bytes left to send that must leave: gives up memory that
    /// is full, where there is more room elsewhere.
    fn last_words(&self) {}

    /// How many bytes that were sent are still on this host: closing the link may then destroy
    /// them, with the link itself or if the other end sends something. 0 if the link cannot tell.
    fn unacknowledged(&self) -> usize {
        0
    }

    /// Whether the poller may not tell of the end as long as the link is not received from: what comes before it is
    /// with the other end's system.
    fn hides_end(&self) -> bool {
        false
    }

    /// Whether the other end is known to be gone, even if there is something left to receive; false
    /// if the link cannot tell.
    fn has_ended(&self) -> bool {
        false
    }

    /// Asks whether the other end is still there, if nothing came from it lately; the link ends if
    /// it is not.
    fn probe(&self) {}

    /// Ends both directions; the other end sees the end of the stream.
    fn shutdown(&self);

    /// Ends the direction to the other end, which sees the end of the stream; what it sends until
    /// it closes its end can still be received. A link that cannot do that ends both directions.
    fn end_sending(&self) {
        self.shutdown();
    }

    /// Makes closing throw away what was sent and has not left yet.
    fn reset_when_closed(&self) {}

    /// Lets calls send bytes without copying them ([`Way::Uncopied`]), where the link can.
    fn set_zerocopy(&self) -> Result {
        Err(Error::NOSYS)
    }

    /// From how many bytes on a part of a list is better left where it is ([`Way::Uncopied`]) than
    /// sent through the memory that both ends share: the other end reads it there. None if that
    /// does not go, or is not to be.
    fn lends_from(&self) -> Option<usize> {
        None
    }

    /// The memory region with this key is about to be closed: what of it the other end is to read where it
    /// is ([`Way::OfRegion`]), and has not read, is kept elsewhere for it ([`LocalPipe::keep_lent`](ofi_provider::ring::LocalPipe::keep_lent)).
    fn keep_lent(&self, _key: u64, _most: usize) -> Result<usize> {
        Ok(0)
    }

    /// The next notice that uncopied bytes are not in use any more; -FI_EAGAIN if there is none.
    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        Err(Error::AGAIN)
    }
}

/// Who is at the other end of a link, for the log.
pub(crate) fn peer_of<L: ByteLink>(link: &L) -> Option<String> {
    link.peer_addr().ok().map(|addr| addr.for_people())
}

/// Tells of a peer of this host that is not talked to through memory.
#[cold]
pub(crate) fn log_not_in_memory<L: ByteLink>(link: &L, why: &dyn Display) {
    ofi_provider::log_sparsely!(
        L::provider(),
        INFO,
        EP_CTRL,
        "messages with {} do not go through memory: {why}",
        peer_text(peer_of(link))
    );
}

/// A place where others can begin links.
pub trait LinkListener: Debug + Send + 'static {
    /// The links that are begun here.
    type Link: ByteLink;

    /// What pollers know the listener by.
    fn id(&self) -> <Self::Link as ByteLink>::Id;

    /// Takes links from now on, of which so many may wait to be accepted; or changes that number.
    fn listen(&self, backlog: i32) -> Result;

    /// Accepts a link that waits, with the address it comes from: that of the endpoint that began
    /// it, but for the port, which the endpoint names itself. -FI_EAGAIN if none waits,
    /// -FI_ECONNABORTED for one that is not taken, whatever the reason: there may be another.
    fn accept(&self) -> Result<(Self::Link, Addr)>;
}

/// Tells which links can be read or written, and which listeners have callers.
pub trait LinkPoller<Id> {
    /// Starts watching a link or listener; what is told of it carries `token`.
    fn add(&self, id: Id, token: u64, interest: Interest) -> Result;

    /// Changes what a watched link is watched for.
    fn modify(&self, id: Id, token: u64, interest: Interest) -> Result;

    /// Stops watching a link or listener. What is gone is not watched any more.
    fn remove(&self, id: Id);
}

/// A poller of links whose ends may share memory ([`WithLocal`](crate::local::WithLocal)).
pub trait WitnessPoller<Id>: LinkPoller<Id> {
    /// From now on tells of a watched link's end alone, whatever there is to read before it.
    fn modify_to_end(&self, id: Id, token: u64) -> Result;

    /// Tells when a descriptor can be read that is no link, until it is closed.
    fn add_fd(&self, fd: RawFd, token: u64) -> Result;

    /// Tells each time that such a descriptor is written to, until it is closed; nobody reads it.
    fn add_bell(&self, fd: RawFd, token: u64) -> Result;

    /// Stops watching such a descriptor.
    fn remove_fd(&self, fd: RawFd);
}

/// Whatever has a descriptor is watched by epoll.
impl LinkPoller<RawFd> for Epoll {
    #[inline(always)]
    fn add(&self, fd: RawFd, token: u64, interest: Interest) -> Result {
        Self::add(self, fd, token, interest)
    }

    #[inline(always)]
    fn modify(&self, fd: RawFd, token: u64, interest: Interest) -> Result {
        Self::modify(self, fd, token, interest)
    }

    #[inline(always)]
    fn remove(&self, fd: RawFd) {
        Self::remove(self, fd);
    }
}

impl WitnessPoller<RawFd> for Epoll {
    fn modify_to_end(&self, fd: RawFd, token: u64) -> Result {
        Self::modify_to_end(self, fd, token)
    }

    fn add_fd(&self, fd: RawFd, token: u64) -> Result {
        Self::add(self, fd, token, Interest::READ)
    }

    fn add_bell(&self, fd: RawFd, token: u64) -> Result {
        Self::add_edge(self, fd, token)
    }

    fn remove_fd(&self, fd: RawFd) {
        Self::remove(self, fd);
    }
}

/// What tells of links that have descriptors, and of the engine's timer: one epoll instance.
#[derive(Debug)]
pub struct Watch {
    epoll: Epoll,
    timer: Timer,
}

impl Watch {
    /// A new one, which watches the timer alone.
    pub fn new() -> Result<Self> {
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(timer.as_raw_fd(), TIMER_TOKEN, Interest::READ)?;
        Ok(Self { epoll, timer })
    }

    /// [`Net::poller`].
    #[inline(always)]
    pub fn poller(&self) -> &Epoll {
        &self.epoll
    }

    /// [`Net::poll`].
    #[inline(always)]
    pub fn poll(&self, events: &mut Vec<PollEvent>) {
        let _ = self.epoll.wait(Some(Duration::ZERO), |event| events.push(event));
    }

    /// [`Net::wait_fd`].
    pub fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// [`Net::set_timer`].
    pub fn set_timer(&self, delay: Duration) {
        self.timer.set(delay);
    }

    /// [`Net::clear_timer`].
    pub fn clear_timer(&self) {
        self.timer.set(Duration::ZERO);
    }
}

/// A clock that only goes forward.
pub trait LinkClock {
    /// The time now.
    #[inline(always)]
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// The same time in nanoseconds, for what is asked with each message.
    #[inline(always)]
    fn nanos(&self) -> u64 {
        fine_now()
    }
}

/// Sends what is held back when the application makes no call: visits the engine later.
pub trait LateVisits: Debug + Send {
    /// Orders a visit after a while, if none is ordered yet; false if no visitor can come. `done`
    /// counts what the application itself does to send held messages.
    fn order(&mut self, done: u64) -> bool;

    /// Whether the application has done nothing since the visit was ordered.
    fn is_needed(&self, done: u64) -> bool;
}

/// An engine, whatever it stands on, as its late visitor knows it.
pub trait Visited: Send + Sync {
    /// Sends held messages from a thread of the library; false if another thread holds the
    /// engine's lock and so makes progress itself.
    fn visited(&self) -> bool;
}

/// All that an engine stands on.
pub trait Net: LinkClock + Debug + Send + Sized + 'static {
    /// The links that connections run over.
    type Link: ByteLink;
    /// Where peers begin links to us.
    type Listener: LinkListener<Link = Self::Link>;
    /// What watches links and listeners.
    type Poller: LinkPoller<<Self::Link as ByteLink>::Id>;
    /// What visits the engine when the application makes no call.
    type Visits: LateVisits;

    /// What watches the engine's links and listeners.
    fn poller(&self) -> &Self::Poller;

    /// Adds what has happened to watched links and listeners, and to the timer
    /// ([`TIMER_TOKEN`]), to `events`.
    fn poll(&self, events: &mut Vec<PollEvent>);

    /// A descriptor that is readable when [`Net::poll`] has something to tell.
    fn wait_fd(&self) -> RawFd;

    /// Makes the timer expire after `delay`; it is never set for zero.
    fn set_timer(&self, delay: Duration);

    /// The timer has expired, and does not expire again until it is set.
    fn clear_timer(&self);

    /// A visitor of the engine ([`Visited::visited`]), for when a visit is ordered.
    fn visits(&self, engine: Weak<dyn Visited>) -> Result<Self::Visits>;

    /// Begins a link to an address, from `local` if that names an address of its kind; with
    /// `keep_port` from that port as well. The link is made in the background. An error of the call
    /// fails what is sent at once; [`ByteLink::take_error`] tells of those that come later.
    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link>;

    /// Makes a listener of an address that nobody else listens at; what the address leaves open, a
    /// port or the name, is chosen. Returns the address as peers call it. Nobody can call before
    /// [`LinkListener::listen`].
    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)>;

    /// As [`dial`](Self::dial), for an endpoint with a secret of its own, if it has one. Nets whose
    /// links prove no secrets begin no such link.
    fn dial_as(
        &self,
        own: Option<&JobSecret>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        if own.is_some() { Err(Error::NOSYS) } else { self.dial(local, keep_port, to) }
    }

    /// As [`bind`](Self::bind), for an endpoint with a secret of its own, if it has one.
    fn bind_as(&self, own: Option<&JobSecret>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        if own.is_some() { Err(Error::NOSYS) } else { self.bind(at) }
    }

    /// Where an engine on this shows others what it does.
    fn facts() -> EngineFacts {
        EngineFacts::new(Self::Link::provider())
    }

    /// The number by which peers tell this process from another one at the same address.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// Whether the other end of a link that was dialed may be on this host, and would be met here if
    /// it offered that ([`Net::meet`]).
    fn may_be_local(&self, _link: &Self::Link) -> bool {
        false
    }

    /// Offers the other end of an accepted link, which may be on this host, to meet here: what it
    /// needs for that. Bytes may flow meanwhile, once [`ByteLink::made`] was called; if the ends meet,
    /// later ones go through memory. None if that is not wanted. What is told of the link from now on
    /// carries `token`; it is watched for reading.
    fn offer(&self, _link: &Self::Link, _token: u64) -> Option<LocalOffer> {
        None
    }

    /// Meets the other end of a link that was dialed, as it offers; otherwise as
    /// [`Net::offer`].
    fn meet(&self, _link: &Self::Link, _token: u64, _offer: &LocalOffer) {}

    /// Whether there is news of links that hear locally, which [`Net::poll`] would tell. Asked in
    /// every turn, so the answer must cost next to nothing.
    #[inline(always)]
    fn is_rung(&self) -> bool {
        false
    }

    /// Whether any link of this net may be one through memory, so that [`Net::rest`] and
    /// [`Net::wake`] have to be called.
    #[inline(always)]
    fn has_local(&self) -> bool {
        false
    }

    /// Whether a link that took nothing ([`ByteLink::send`]) did so to have the engine make a turn:
    /// who only sends, and finds each completion at once, makes none, and meets nobody.
    fn is_due(&self) -> bool {
        false
    }

    /// Someone is about to sleep on [`Net::wait_fd`]: what comes through memory makes it readable
    /// from now on, until [`Net::wake`]. False if something has come already.
    fn rest(&self) -> bool {
        true
    }

    /// Nobody sleeps any more, and the net is polled again and again.
    fn wake(&self) {}

    /// Whether several links are sent to and received from with one call
    /// ([`Net::send_each`], [`Net::receive_each`]).
    #[inline(always)]
    fn is_ring(&self) -> bool {
        false
    }

    /// Sends or receives on one link, by the way of calls for several links if there is one.
    #[inline(always)]
    fn transfer(&mut self, link: &Self::Link, op: LinkOp<'_, '_>) -> Result<usize> {
        op.on(link)
    }

    /// Sends to up to [`MAX_EACH`] links with one call, and notes what became of each send.
    fn send_each(&mut self, sends: &mut [Sending<'_, Self::Link>]) {
        for one in sends {
            one.result = one.link.send(one.bytes);
        }
    }

    /// Receives from up to [`MAX_EACH`] links with one call, and notes what became of each
    /// receive.
    fn receive_each(&mut self, receives: &mut [Receiving<'_, Self::Link>]) {
        for one in receives {
            one.result = one.link.recv(one.room);
        }
    }
}

/// One send or receive, for [`Net::transfer`].
#[derive(Debug)]
pub enum LinkOp<'a, 'b> {
    /// [`ByteLink::recv`].
    Receive(&'a mut [u8]),
    /// [`ByteLink::recv_list`].
    ReceiveList(&'a mut ScatterList<'b>),
    /// [`ByteLink::send_list`].
    SendList(&'a mut GatherList<'b>, Way),
}

impl LinkOp<'_, '_> {
    /// Does it by the link's own call.
    #[inline(always)]
    pub fn on(self, link: &impl ByteLink) -> Result<usize> {
        match self {
            Self::Receive(room) => link.recv(room),
            Self::ReceiveList(list) => link.recv_list(list),
            Self::SendList(list, way) => link.send_list(list, way),
        }
    }
}

/// One send of several.
#[derive(Debug)]
pub struct Sending<'a, L> {
    /// The link to send to.
    pub link: &'a L,
    /// The bytes to send.
    pub bytes: &'a [u8],
    /// Bytes that were sent; -FI_EAGAIN until then.
    pub result: Result<usize>,
}

/// One receive of several.
#[derive(Debug)]
pub struct Receiving<'a, L> {
    /// The link to receive from.
    pub link: &'a L,
    /// The room for what comes.
    pub room: &'a mut [u8],
    /// Bytes that have come; -FI_EAGAIN until then.
    pub result: Result<usize>,
}
