//! Transport of the engine: links carrying bytes in order, pollers reporting readable and writable
//! links, a timer and a clock.
//!
//! The tcp provider uses sockets. An engine over any other ordered byte transport is the same code,
//! built for its type.
use crate::secret::PskConfig;
use crate::settings::StreamSettings;
use crate::unconfirmed_answer::UnconfirmedAnswer;
use crate::wire::LocalOffer;
use core::array::from_fn;
use core::time::Duration;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{
    ContiguousSrc, CopyMode, GatherList, InlineBytes, ScatterList, UntrustedBytes,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::provider::Provider;
use ofi_provider::shm_channel::{InlineRecv, ShmChannel};
use ofi_provider::stats::EngineStats;
use ofi_provider::sys::{Epoll, Interest, PollEvent, Timer, fine_now};
use ofi_provider::traffic_class::TrafficClass;
use std::fmt::{Debug, Display};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Weak;
use std::time::Instant;

/// Maximum connections per call of [`Transport::send_each`] and [`Transport::receive_each`].
pub const MAX_EACH: usize = 16;

/// Token of the engine's timer in the events of [`Transport::poll`].
pub const TIMER_TOKEN: u64 = 2 << 32;

/// Notification of the kernel's release of the zero-copy calls numbered `low` to `high`.
#[derive(Clone, Copy, Debug)]
pub struct ZerocopyDone {
    /// The first call.
    pub low: u32,
    /// The last call.
    pub high: u32,
    /// The system copied the calls' bytes after all.
    pub copied: bool,
}

/// Recovery of a link from the loss of its sockets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkRecovery {
    /// The link has no socket at present.
    pub is_resuming: bool,
    /// Number of ended outages.
    pub resumes: u64,
    /// Bytes sent again.
    pub repeated_bytes: u64,
}

/// Encodes the result of a send or receive as one number, returned in a register: the byte count,
/// or the negative error code.
#[inline(always)]
pub(crate) fn as_word(result: Result<usize>) -> isize {
    result.map_or_else(|error| -(error.code() as isize), |n| n as isize)
}

/// Decodes a number made by [`as_word`].
#[inline(always)]
pub(crate) fn from_word(word: isize) -> Result<usize> {
    usize::try_from(word).map_err(|_| Error::from_code(word.wrapping_neg() as i32))
}

/// One end of a link carrying bytes in both directions, in order in each direction. No call blocks.
pub trait ByteLink: Debug + Send + 'static {
    /// Identifier of links and listeners in a poller.
    type Id: Copy + Debug + Send;

    /// Returns the provider named in the engine's log lines.
    fn provider() -> &'static Provider;

    /// Returns the user's settings of the engine, the same for all links of this kind. The engine
    /// reads them for each message, so the call must cost nothing.
    fn settings() -> &'static StreamSettings;

    /// Returns the identifier of this link in pollers.
    fn id(&self) -> Self::Id;

    /// Receives the available bytes. Returns their number, 0 at the end of the stream, or
    /// -FI_EAGAIN if there are none now.
    fn recv(&self, buf: &mut [u8]) -> Result<usize>;

    /// Sends as many of these bytes as the link takes now; -FI_EAGAIN if it takes none.
    fn send(&self, bytes: &[u8]) -> Result<usize>;

    /// Receives like [`ByteLink::recv`], into all buffers of a list.
    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize>;

    /// Sends all bytes of a list like [`ByteLink::send`], in this mode. With [`CopyMode::ZeroCopy`] the
    /// link may read the memory until [`ByteLink::zerocopy_done`] reports its release: data written
    /// there meanwhile may reach the other end.
    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize>;

    /// Returns the error of link establishment, if it failed; an error ends the link. It is queried
    /// until the first bytes are sent.
    fn take_error(&self) -> Result;

    /// Returns the address of this end: the endpoint's, or one identifying only the link.
    fn local_addr(&self) -> Result<Addr>;

    /// The address of the other end.
    fn peer_addr(&self) -> Result<Addr>;

    /// Returns true if the other end may be in a process of this host, judged by addresses.
    fn is_on_this_host(&self) -> bool {
        false
    }

    /// Returns the link's descriptor, for the application (FI_GETFD); -FI_ENOSYS if it has none.
    fn fd(&self) -> Result<RawFd> {
        Err(Error::NOSYS)
    }

    /// A caller at a passive endpoint has this link: it may wait long, for the application's
    /// answer.
    fn waits(&self) {}

    /// Sends the answer to the connection request of the other end, before [`made`](Self::made). Other
    /// first bytes of the link may be sent by the same call, to arrive with the answer.
    fn send_answer(&self, bytes: &[u8]) -> Result<usize> {
        self.send(bytes)
    }

    /// Returns the answer sent by [`send_answer`](Self::send_answer), if a later link can continue this
    /// one after the loss of the answer. It is dropped when the other end has received the answer.
    fn unconfirmed_answer(&self) -> Weak<UnconfirmedAnswer> {
        Weak::new()
    }

    /// Receives the first bytes of the link behind the answer, needed for its continuation after the
    /// loss of sockets. Returns false while some are missing. Nothing is sent before
    /// [`made`](Self::made).
    fn receive_first_frames(&self) -> Result<bool> {
        Ok(true)
    }

    /// Sets up the link for messages, after both ends have agreed to exchange them.
    fn made(&self) {}

    /// Sets the class of the link's packets, if it has any.
    fn set_traffic_class(&self, _class: TrafficClass) {}

    /// Returns true if the host of the other end does not acknowledge bytes, sent to it several times.
    /// False if unknown.
    fn is_stalled(&self) -> bool {
        false
    }

    /// Returns the number of network paths of the link (subflows of MPTCP, RFC 8684); 0 for a link
    /// with a single path. The call may cost a system call.
    fn subflows(&self) -> u64 {
        0
    }

    /// Returns the number of sockets of a link with frames
    /// ([`MultiRail`](crate::multi_rail::MultiRail)); 0 for other links.
    fn sockets(&self) -> u64 {
        0
    }

    /// Returns the number of descriptors used by the link.
    fn descriptors(&self) -> usize {
        1
    }

    /// Returns the state of a link with frames after the loss of sockets.
    fn recovery(&self) -> LinkRecovery {
        LinkRecovery::default()
    }

    /// Returns the engine's time limit for connecting a link without a limit of its own.
    fn connect_limit(&self) -> Option<Duration> {
        None
    }

    /// Returns the number of sent bytes still on this host. Closing the link may destroy them, with
    /// the link itself or when the other end sends something. 0 if unknown.
    fn unacknowledged(&self) -> usize;

    /// Returns true if the other end is known to be gone, even if there is data left to receive;
    /// false if unknown.
    fn has_ended(&self) -> bool;

    /// Returns the interval for [`ByteLink::is_silent`], if this link does not end by itself after the
    /// peer's system stops answering.
    fn silence_interval(&self) -> Option<Duration> {
        None
    }

    /// Returns true if the peer's system has left sent data unacknowledged for the user's time limit.
    /// The engine calls it at the [interval](ByteLink::silence_interval), and ends a silent link.
    fn is_silent(&self, _now: Instant) -> bool {
        false
    }

    /// Probes the other end if nothing was received from it lately; the link ends if there is no
    /// reply.
    fn probe(&self) {}

    /// Ends both directions; the other end sees the end of the stream.
    fn shutdown(&self);

    /// Ends the direction to the other end, reported there as the end of the stream. Data of the
    /// other end can be received until it closes. A link without this feature ends both directions.
    fn end_sending(&self) {
        self.shutdown();
    }

    /// Discards unsent data on close.
    fn reset_when_closed(&self) {}
}

/// Link with zero-copy sends, if it supports them. By default it does not.
pub trait ZeroCopyLink: ByteLink {
    /// Enables zero-copy sends ([`CopyMode::ZeroCopy`]); fails with -FI_ENOSYS if they are not
    /// supported.
    fn set_zerocopy(&self) -> Result {
        Err(Error::NOSYS)
    }

    /// Returns the minimum size in bytes of messages worth a zero-copy send.
    fn zerocopy_size(&self) -> usize {
        Self::settings().zerocopy_size
    }

    /// Returns the next notification of released zero-copy bytes; fails with -FI_EAGAIN if there is
    /// none.
    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        Err(Error::AGAIN)
    }
}

/// Link of peers with an optional pre-shared key ([`PskTransport`](crate::psk_transport::PskTransport)).
pub trait AuthenticatedLink: ByteLink {
    /// Returns two flags: the other end has proven the job's pre-shared key; data sent to it is
    /// encrypted.
    fn secrecy(&self) -> [bool; 2];

    /// Returns true if one byte is still to be passed again, although the other end receives it
    /// with the bytes before.
    fn has_half_sent(&self) -> bool;
}

/// Link upgradable to memory shared by both ends ([`ShmUpgrade`](crate::shm_upgrade::ShmUpgrade)).
pub trait ShmLink: ByteLink {
    /// Returns true if bytes arrive through memory shared by both ends: receiving costs little then,
    /// even if it finds nothing. Once true it stays so.
    fn rx_over_shm(&self) -> bool;

    /// Returns true if bytes are sent through memory shared by both ends: sending costs little
    /// then, and batching messages gains nothing.
    fn tx_over_shm(&self) -> bool;

    /// Counts bytes sent before [`ByteLink::made`], directly after it.
    fn count_early(&self, sent: usize);

    /// Runs [`ByteLink::send`] for a whole message without special attributes: this number,
    /// optional remote CQ data, an optional tag, and `body`, on a link sending [through shared
    /// memory](ShmLink::tx_over_shm). Returns false if it is not possible now, or not in this
    /// way; then nothing was sent.
    fn send_fast(
        &self,
        id: u8,
        data: Option<u64>,
        tag: Option<u64>,
        body: ContiguousSrc<'_>,
    ) -> bool;

    /// Passes short data in shared memory to `take`, without a copy, like
    /// [`ShmChannel::recv_inline`](ofi_provider::shm_channel::ShmChannel::recv_inline), on a link receiving
    /// [through shared memory](ShmLink::rx_over_shm).
    fn recv_inline(&self, take: impl FnMut(InlineBytes<'_>) -> bool) -> InlineRecv;

    /// Runs [`recv_inline`](ShmLink::recv_inline) for longer data as well, like
    /// [`ShmChannel::recv_whole_message`](ofi_provider::shm_channel::ShmChannel::recv_whole_message).
    fn recv_whole_message(
        &self,
        take: impl FnMut([u64; 4], UntrustedBytes<'_>) -> bool,
    ) -> InlineRecv;

    /// Notifies a link receiving [through shared memory](ShmLink::rx_over_shm) if its user polls
    /// it continually by itself. Otherwise the poller reports arriving data.
    fn set_polled(&self, polled: bool);

    /// Returns true if a link over shared memory has an event: if its user `receives`, data to
    /// receive; with `unsent` bytes, space for some. If called after
    /// [`set_polled`](ShmLink::set_polled) and [`ShmTransport::rest`], it misses no event not
    /// reported by the poller.
    fn is_ready(&self, receives: bool, unsent: bool) -> bool;

    /// Prepares closing a link with unsent bytes to be delivered: stops using full shared memory if
    /// another carrier has more space.
    fn send_trailing_on_socket(&self);

    /// Returns true if the poller may not report the end while the link is not read: the data
    /// before it is still in the other end's system.
    fn hides_end(&self) -> bool;

    /// Returns the minimum size of a list segment for exposure ([`CopyMode::ZeroCopy`]) instead of a
    /// copy through shared memory: the other end reads it directly. None if this is impossible or
    /// disabled.
    fn zcopy_threshold(&self) -> Option<usize>;

    /// Copies the parts of the memory region with this key, about to be closed, to other memory:
    /// those exposed to the other end ([`CopyMode::OfRegion`]) and not read by it
    /// ([`ShmChannel::copy_exposed`](ofi_provider::shm_channel::ShmChannel::copy_exposed)).
    fn copy_exposed(&self, key: u64, most: usize) -> Result<usize>;

    /// Returns the shared memory, if both directions go through it and the other end knows cells about
    /// memory of devices.
    fn device_channel(&self) -> Option<&ShmChannel>;

    /// Returns the shared memory of a link receiving through it.
    fn inbound_channel(&self) -> Result<&ShmChannel>;
}

/// Describes the other end of a link, for the log.
pub(crate) fn peer_of<L: ByteLink>(link: &L) -> Option<String> {
    link.peer_addr().ok().map(|addr| addr.for_people())
}

/// Logs the use of a socket instead of shared memory for a peer of this host.
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

/// Listener accepting links.
pub trait LinkListener: Debug + Send + 'static {
    /// Links accepted here.
    type Link: ByteLink;

    /// Returns the identifier of the listener in pollers.
    fn id(&self) -> <Self::Link as ByteLink>::Id;

    /// Starts listening with this backlog, or changes the backlog.
    fn listen(&self, backlog: i32) -> Result;

    /// Ends listening. Connection requests are refused from now on, even if a forked child has a copy
    /// of the listener. A child's copy ends nothing.
    fn stop_listening(&self);

    /// Returns the number of links waiting to be accepted. 1 if it is unknown.
    fn waiting(&self) -> usize {
        1
    }

    /// Accepts a waiting link, with its source address: the address of the connecting endpoint
    /// except for the port, named by the endpoint itself. Fails with -FI_EAGAIN if none waits, and
    /// with -FI_ECONNABORTED for a link not accepted for any reason: there may be another.
    fn accept(&self) -> Result<(Self::Link, Addr)>;
}

/// Poller reporting readable and writable links, and listeners with pending connections.
pub trait LinkPoller<Id> {
    /// Starts watching a link or listener; its events carry `token`.
    fn add(&self, id: Id, token: u64, interest: Interest) -> Result;

    /// Changes the watched events of a link.
    fn modify(&self, id: Id, token: u64, interest: Interest) -> Result;

    /// Stops watching a link or listener. A closed one is not watched any more.
    fn remove(&self, id: Id);
}

/// Poller of links with possibly shared memory ([`ShmUpgrade`](crate::shm_upgrade::ShmUpgrade)).
pub trait CarrierPoller<Id>: LinkPoller<Id> {
    /// Reports only the end of a watched link from now on, regardless of unread data before it.
    fn modify_to_end(&self, id: Id, token: u64) -> Result;

    /// Reports a readable descriptor other than a link, until it is closed.
    fn add_fd(&self, fd: RawFd, token: u64) -> Result;

    /// Reports each write to such a descriptor, until it is closed; its data is never read.
    fn add_wakeup(&self, fd: RawFd, token: u64) -> Result;

    /// Stops watching such a descriptor.
    fn remove_fd(&self, fd: RawFd);
}

/// Watches any descriptor with epoll.
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

impl CarrierPoller<RawFd> for Epoll {
    fn modify_to_end(&self, fd: RawFd, token: u64) -> Result {
        Self::modify_to_end(self, fd, token)
    }

    fn add_fd(&self, fd: RawFd, token: u64) -> Result {
        Self::add(self, fd, token, Interest::READ)
    }

    fn add_wakeup(&self, fd: RawFd, token: u64) -> Result {
        Self::add_edge(self, fd, token)
    }

    fn remove_fd(&self, fd: RawFd) {
        Self::remove(self, fd);
    }
}

/// Poller of links with descriptors, and of the engine's timer: one epoll instance.
#[derive(Debug)]
pub struct Watch {
    epoll: Epoll,
    timer: Timer,
}

impl Watch {
    /// Creates a poller watching only the timer.
    pub fn new() -> Result<Self> {
        let (epoll, timer) = (Epoll::new()?, Timer::new()?);
        epoll.add(timer.as_raw_fd(), TIMER_TOKEN, Interest::READ)?;
        Ok(Self { epoll, timer })
    }

    /// [`Transport::poller`].
    #[inline(always)]
    pub fn poller(&self) -> &Epoll {
        &self.epoll
    }

    /// [`Transport::poll`].
    #[inline(always)]
    pub fn poll(&self, events: &mut Vec<PollEvent>) {
        let _ = self.epoll.wait(Some(Duration::ZERO), |event| events.push(event));
    }

    /// [`Transport::wait_fd`].
    pub fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// [`Transport::set_timer`].
    pub fn set_timer(&self, delay: Duration) {
        self.timer.set(delay);
    }

    /// [`Transport::clear_timer`].
    pub fn clear_timer(&self) {
        self.timer.set(Duration::ZERO);
    }
}

/// Monotonic clock.
pub trait LinkClock {
    /// The time now.
    #[inline(always)]
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns the same time in nanoseconds, for queries with each message.
    #[inline(always)]
    fn nanos(&self) -> u64 {
        fine_now()
    }
}

/// Flush timer: sends batched messages later if the application makes no call.
pub trait FlushTimer: Debug + Send {
    /// Arms the flush timer, if it is not armed; returns false if the timer is not available.
    /// `done` counts the application's own progress on batched messages.
    fn order(&mut self, done: u64) -> bool;

    /// Returns true if the application has made no progress since the timer was armed.
    fn is_needed(&self, done: u64) -> bool;
}

/// Target of the flush timer: an engine over any transport.
pub trait FlushTarget: Send + Sync {
    /// Sends held messages from a thread of the library; false if another thread holds the
    /// engine's lock and so makes progress itself.
    fn flush_deferred(&self) -> bool;
}

/// Network of links, below an engine.
pub trait Transport: LinkClock + Debug + Send + Sized + 'static {
    /// Links of connections.
    type Link: ByteLink;
    /// Listeners for links of peers.
    type Listener: LinkListener<Link = Self::Link>;
    /// Poller of links and listeners.
    type Poller: LinkPoller<<Self::Link as ByteLink>::Id>;
    /// Flush timer of the engine.
    type Flusher: FlushTimer;

    /// Returns the poller of the engine's links and listeners.
    fn poller(&self) -> &Self::Poller;

    /// Adds the events of watched links and listeners, and of the timer ([`TIMER_TOKEN`]), to
    /// `events`.
    fn poll(&self, events: &mut Vec<PollEvent>);

    /// Returns a descriptor, readable when [`Transport::poll`] has an event to report.
    fn wait_fd(&self) -> RawFd;

    /// Makes the timer expire after `delay`; it is never set for zero.
    fn set_timer(&self, delay: Duration);

    /// The timer has expired, and does not expire again until it is set.
    fn clear_timer(&self);

    /// A visitor of the engine ([`FlushTarget::flush_deferred`]), for when a visit is ordered.
    fn start_flusher(&self, engine: Weak<dyn FlushTarget>) -> Result<Self::Flusher>;

    /// Starts a link to an address, from `local` if it is an address of the same kind; with
    /// `keep_port` from its port as well. The link is established in the background. An immediate
    /// failure is an error of the call; [`ByteLink::take_error`] returns later ones.
    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link>;

    /// Creates a listener with an address not in use by another listener. A missing port or name is
    /// chosen. Returns the address for connecting peers. Peers cannot connect before
    /// [`LinkListener::listen`].
    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)>;

    /// Like [`dial`](Self::dial), for an endpoint with an optional pre-shared key of its own. A net
    /// without authentication starts no such link.
    fn dial_as(
        &self,
        own: Option<&PskConfig>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        if own.is_some() { Err(Error::NOSYS) } else { self.dial(local, keep_port, to) }
    }

    /// Like [`bind`](Self::bind), for an endpoint with a separate pre-shared key, if it has one.
    fn bind_as(&self, own: Option<&PskConfig>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        if own.is_some() { Err(Error::NOSYS) } else { self.bind(at) }
    }

    /// Returns the statistics page entry for an engine over this transport.
    fn stats() -> EngineStats {
        EngineStats::new(Self::Link::provider())
    }

    /// Returns the number distinguishing this process from another one at the same address.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// Returns true if one call sends to and receives from several links ([`Transport::send_each`],
    /// [`Transport::receive_each`]).
    #[inline(always)]
    fn is_ring(&self) -> bool {
        false
    }

    /// Sends or receives on one link, by the way of calls for several links if there is one.
    #[inline(always)]
    fn transfer(&mut self, link: &Self::Link, op: LinkOp<'_, '_>) -> Result<usize> {
        op.on(link)
    }

    /// Sends to up to [`MAX_EACH`] links with one call, and stores the result of each send.
    fn send_each(&mut self, sends: &mut [Sending<'_, Self::Link>]) {
        for one in sends {
            one.result = one.link.send(one.bytes);
        }
    }

    /// Receives from up to [`MAX_EACH`] links with one call, and stores the result of each receive.
    fn receive_each(&mut self, receives: &mut [Receiving<'_, Self::Link>]) {
        for one in receives {
            one.result = one.link.recv(one.buf);
        }
    }
}

/// Transport with possibly several sockets for a link
/// ([`MultiRail`](crate::multi_rail::MultiRail)). By default a link has one.
pub trait RailTransport: Transport {
    /// Returns true if this end of a link exchanges frames, if the other end does as well.
    fn offers_rails(&self, _link: &Self::Link) -> bool {
        false
    }

    /// Has a link exchange frames after [`ByteLink::made`], by agreement of both ends. `connects`:
    /// this end connects further sockets. Later events of the link carry `token`; it is watched for
    /// reading.
    fn start_rails(&self, _link: &Self::Link, _token: u64, _connects: bool) -> Result {
        Err(Error::NOSYS)
    }

    /// Returns true if any link exchanges frames.
    #[inline(always)]
    fn has_rails(&self) -> bool {
        false
    }

    /// Prepares for a thread sleeping on [`Transport::wait_fd`]. Returns false if
    /// [`Transport::poll`] has events to report.
    fn prepare_sleep(&self) -> bool {
        true
    }
}

/// Transport of an engine, with links upgradable to shared memory.
pub trait ShmTransport: RailTransport<Link: ShmLink + ZeroCopyLink + AuthenticatedLink> {
    /// Returns true if the other end of an outgoing link may be on this host, and the upgrade would
    /// be accepted if offered ([`ShmTransport::start_shm_upgrade`]).
    fn may_be_local(&self, link: &Self::Link) -> bool;

    /// Offers the shared-memory upgrade to the other end of an accepted link, possibly on this
    /// host. Returns the offer. Bytes may flow meanwhile, after [`ByteLink::made`]; after the
    /// upgrade, later ones go through memory. None if this is not wanted. Later events of the link
    /// carry `token`; it is watched for reading.
    fn offer_shm_upgrade(&self, link: &Self::Link, token: u64) -> Option<LocalOffer>;

    /// Accepts the upgrade offer for an outgoing link; otherwise like
    /// [`ShmTransport::offer_shm_upgrade`].
    fn start_shm_upgrade(&self, link: &Self::Link, token: u64, offer: &LocalOffer);

    /// Returns true if links over shared memory have events for [`Transport::poll`]. It is called in
    /// every progress iteration, so the call must cost next to nothing.
    fn is_rung(&self) -> bool;

    /// Returns true if any link of this net may use shared memory, and [`ShmTransport::rest`] and
    /// [`ShmTransport::wake`] have to be called.
    fn has_local(&self) -> bool;

    /// Returns true if a link accepted nothing ([`ByteLink::send`]) to make the engine run a
    /// progress iteration. An application that only sends, and finds each completion at once, makes
    /// none, so its links would never be upgraded.
    fn is_due(&self) -> bool;

    /// Prepares for a thread sleeping on [`Transport::wait_fd`]: data in shared memory makes it readable
    /// from now on, until [`ShmTransport::wake`]. Returns false if data has arrived already.
    fn rest(&self) -> bool;

    /// Ends the sleep of all threads: the net is polled continually from now on.
    fn wake(&self);
}

/// One send or receive, for [`Transport::transfer`].
#[derive(Debug)]
pub enum LinkOp<'a, 'b> {
    /// [`ByteLink::recv`].
    Receive(&'a mut [u8]),
    /// [`ByteLink::recv_list`].
    ReceiveList(&'a mut ScatterList<'b>),
    /// [`ByteLink::send_list`].
    SendList(&'a mut GatherList<'b>, CopyMode),
}

impl LinkOp<'_, '_> {
    /// Does it by the link's own call.
    #[inline(always)]
    pub fn on(self, link: &impl ByteLink) -> Result<usize> {
        match self {
            Self::Receive(buf) => link.recv(buf),
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
    /// Bytes sent; -FI_EAGAIN until then.
    pub result: Result<usize>,
}

/// One receive of several.
#[derive(Debug)]
pub struct Receiving<'a, L> {
    /// The link to receive from.
    pub link: &'a L,
    /// Buffer for received data.
    pub buf: &'a mut [u8],
    /// Bytes received; -FI_EAGAIN until then.
    pub result: Result<usize>,
}

/// Runs [`Transport::send_each`] of a carrier for links over it.
pub(crate) fn send_each_below<N: Transport, L>(
    net: &mut N,
    sends: &mut [Sending<'_, L>],
    carrier: fn(&L) -> &N::Link,
) {
    for sends in sends.chunks_mut(MAX_EACH) {
        let mut below: [_; MAX_EACH] = from_fn(|at| {
            let one = &sends[at.min(sends.len() - 1)];
            Sending { link: carrier(one.link), bytes: one.bytes, result: one.result }
        });
        net.send_each(&mut below[..sends.len()]);
        let results = below.map(|one| one.result);
        sends.iter_mut().zip(results).for_each(|(one, result)| one.result = result);
    }
}

/// Runs [`Transport::receive_each`] of a carrier for links over it.
pub(crate) fn receive_each_below<N: Transport, L>(
    net: &mut N,
    receives: &mut [Receiving<'_, L>],
    carrier: fn(&L) -> &N::Link,
) {
    for receives in receives.chunks_mut(MAX_EACH) {
        let (last, count) = (receives[receives.len() - 1].link, receives.len());
        let mut each = receives.iter_mut();
        let mut below: [_; MAX_EACH] = from_fn(|_| match each.next() {
            Some(one) => {
                Receiving { link: carrier(one.link), buf: &mut *one.buf, result: one.result }
            }
            None => Receiving { link: carrier(last), buf: &mut [], result: Err(Error::AGAIN) },
        });
        net.receive_each(&mut below[..count]);
        let results = below.map(|one| one.result);
        receives.iter_mut().zip(results).for_each(|(one, result)| one.result = result);
    }
}
