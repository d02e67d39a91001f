//! Endpoint of the engine: core objects used by it, its peers and connections, and its progress.
use super::common::{Common, clock};
use super::conn::{Link, RxmConn};
use super::conn_limit::ConnLimit;
use super::connect_queue::ConnectQueue;
use super::conns::RxmConns;
use super::core_objects::{LocalPaths, PeerCounts, ReservedPort, RxmCore};
use super::fetches::RxmFetches;
use super::parked::ParkedPackets;
use super::pending::{ContextConnReq, MAX_BUFFERED, MAX_INJECT, RxmUnexpected};
use super::shared_rx::SharedBuffers;
use super::transmit::RxmTransmit;
use crate::provider::RXM;
use crate::wire::HEADER_LEN;
use ofi_provider::abi::{FI_COMPLETION, FI_REMOTE_READ, FI_REMOTE_WRITE, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::api::Bindings;
use ofi_provider::av::Av;
use ofi_provider::contexts::ContextIndex;
use ofi_provider::core_provider::{self, Entries};
use ofi_provider::endpoint::RdmAttr;
use ofi_provider::error::{Error, Result};
use ofi_provider::peers::PeerTable;
use ofi_provider::reserved::INTERNAL_OP;
use ofi_provider::rx_matcher::RxMatcher;
use ofi_provider::slab::NONE;
use ofi_provider::stats::{EndpointSlot, PeersRetired};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

/// Default space below which a multi-receive buffer is returned: the size of the largest message in
/// one packet.
const MIN_MULTI_RECV: usize = 16384;

/// Initial receive buffers, if the core has its own flow control; more follow when these turn out
/// too few.
const FIRST_RX_BUFFERS: usize = 16;

/// Identity of an endpoint from its opening on.
#[derive(Clone, Debug)]
pub(crate) struct RxmIdentity {
    /// The endpoint's own address; the port may be 0 until it listens.
    pub(crate) local: Addr,
    /// Attributes requested by the application.
    pub(crate) attr: RdmAttr,
    /// Paths to peers of this host, permitted to the core.
    pub(crate) local_paths: LocalPaths,
    /// Authorization key, required of peers as well.
    pub(crate) key: Vec<u8>,
}

impl AsMut<RdmAttr> for RxmIdentity {
    fn as_mut(&mut self) -> &mut RdmAttr {
        &mut self.attr
    }
}

/// An endpoint of the engine, or a pair of contexts of a scalable endpoint.
pub(crate) struct RxmEngineEp {
    pub(super) common: Arc<Common>,
    pub(crate) identity: RxmIdentity,
    pub(super) core: Option<RxmCore>,
    /// Holds the address assigned to the endpoint (fi_setname), until the endpoint listens.
    pub(super) bound: ReservedPort,
    /// Counts of peers' reads and writes already passed from the core's counters to the
    /// application's.
    pub(super) counted: PeerCounts,
    pub(super) av: Option<Arc<Av>>,

    pub(crate) matcher: RxMatcher<RxmUnexpected>,
    /// Messages read from their senders, or written by them, and messages to be reported.
    pub(super) fetches: RxmFetches,
    /// Packets received while the completion queue was full.
    pub(super) parked: ParkedPackets,
    /// Connections to end, with this error, once none of their data is parked.
    pub(super) ending: Vec<(u32, Error)>,

    pub(super) peers: PeerTable<()>,
    /// Index of this context within a scalable endpoint.
    pub(crate) context_index: ContextIndex,
    /// Connection requests for other contexts of the scalable endpoint, received here because this
    /// one listens.
    pub(super) handed: Vec<ContextConnReq>,
    pub(crate) conns: RxmConns,
    /// Connection attempts.
    pub(super) connects: ConnectQueue,
    /// Limit of connections.
    pub(super) limit: ConnLimit,

    /// Incomplete transfers.
    pub(crate) tx: RxmTransmit,
    /// Receive buffers posted to the shared context, and the number to be posted.
    pub(super) shared: SharedBuffers,

    /// Entries of the last read of the core's completion queue.
    pub(super) entries: Entries,
    /// Buffer for packets copied by the core.
    pub(super) packet: Box<[u8; MAX_INJECT]>,
    /// Maximum size of a message sent as a packet copied by the core.
    pub(super) fast_max: usize,
    /// Number of messages received in shared buffers.
    pub(super) came: usize,

    /// Completions since the time was looked at.
    pub(super) since_look: usize,
    /// Progress iterations without a completion since the last read of the clock.
    pub(super) idle_iterations: u32,
    pub(super) last_look: Instant,
    /// Transfers wait for a connection or for space, so a helper thread is needed if the
    /// application makes no calls.
    pub(crate) wants_help: bool,
    /// Time of the last check for peers disconnected from unread connections.
    pub(super) last_end_look: Instant,
    /// Connection events were checked at the end of the interval, since the last
    /// [`after_iteration`](super::RxmState::after_iteration).
    pub(super) looked: bool,
    /// True if the next progress iteration is to check for connection events and ended copies,
    /// regardless of the interval.
    pub(super) look_now: bool,
    /// The core's completion queue is being drained ([`drain_core`](Self::drain_core)).
    pub(super) draining: bool,

    /// Traffic of closed connections, for the statistics page.
    pub(super) past: PeersRetired,
    /// Entry of the endpoint in the statistics page, and the next connection to be published.
    pub(super) published: EndpointSlot,
    pub(super) show_next: usize,
}

impl RxmEngineEp {
    pub(super) fn new(id: u32, common: Arc<Common>, identity: RxmIdentity) -> Self {
        let least = MIN_MULTI_RECV.min(common.config.eager_limit);
        let matcher = identity.attr.matcher(id, least, MAX_BUFFERED);
        let fast_max = common.core_inject.min(MAX_INJECT);
        let (conns, tx) = (RxmConns::new(common.clone()), RxmTransmit::new(common.clone()));
        let fetches = RxmFetches::new(common.clone());
        Self {
            fast_max: fast_max.saturating_sub(HEADER_LEN).min(common.config.eager_limit),
            entries: Entries::default(),
            packet: Box::new([0; MAX_INJECT]),
            came: 0,
            common,
            identity,
            core: None,
            bound: ReservedPort::default(),
            counted: PeerCounts::default(),
            av: None,
            matcher,
            fetches,
            parked: ParkedPackets::new(),
            ending: Vec::new(),
            peers: PeerTable::default(),
            context_index: ContextIndex::default(),
            handed: Vec::new(),
            conns,
            connects: ConnectQueue::default(),
            limit: ConnLimit::default(),
            tx,
            shared: SharedBuffers::default(),
            since_look: 0,
            idle_iterations: 0,
            last_look: clock(),
            last_end_look: clock(),
            looked: false,
            look_now: false,
            draining: false,
            wants_help: false,
            past: PeersRetired::default(),
            published: EndpointSlot::default(),
            show_next: 0,
        }
    }

    /// Opens the core's objects for the endpoint, and listens. Returns the descriptors of the
    /// core's queues, if they have any.
    pub(super) fn enable(&mut self, bindings: &Bindings) -> Result<[Option<RawFd>; 2]> {
        self.tx.bind(bindings);
        self.matcher.bind(&bindings.completions.rx);
        self.av.clone_from(&bindings.av);
        self.open(true, self.matcher.completions.counts_peers())
    }

    /// Opens the core's objects for the endpoint: a passive endpoint if it `listens`, and the
    /// counters of peers' reads and writes selected by `counts`.
    pub(super) fn open(&mut self, listens: bool, counts: [bool; 2]) -> Result<[Option<RawFd>; 2]> {
        let common = self.common.clone();
        let fabric = common.domain.fabric();
        let set = common.wait_set.as_ref();
        let eq = core_provider::CoreEq::open(fabric, set)?;
        let open = |shared| {
            let size = common.config.core_cq_size(shared);
            core_provider::CoreCq::open(&common.domain, size, common.level.clone(), set)
        };
        let may_share = common.may_share;
        let mut cq = open(may_share)?;
        let mut info = common.info.as_ref().to_owned()?;
        let srx = RxmCore::open_srx(&common, &cq, &mut info)?;
        if srx.is_none() && may_share && common.config.use_srx.is_none() {
            // Without a shared receive context connections have receives of their own.
            cq = open(false)?;
        }
        info.set_src_addr(Some(&self.identity.local.to_bytes()))?;
        let mut pep = None;
        if listens {
            let new = self.bound.listen(fabric, &info, &eq)?;
            self.identity.local = Addr::from_bytes(&new.name()?)?;
            self.limit.reads_core = new.accept_within_limit().is_ok();
            pep = Some(new);
        }
        self.shared.set_wanted(match srx {
            Some(_) => common.rx_buffers(true).min(FIRST_RX_BUFFERS),
            None => 0,
        });
        let whose = if srx.is_some() { "shared" } else { "of each connection" };
        ofi_provider::log!(
            &RXM,
            INFO,
            EP_CTRL,
            "up to {} receive buffers, {whose}; transmit size of the core {}; {} completions a turn; \
             {} entries in the core's completion queue; waiting by {}",
            common.rx_buffers(srx.is_some()),
            info.tx().size,
            common.config.comp_per_progress,
            cq.size(),
            if common.wait_set.is_some() { "a wait set" } else { "descriptors" }
        );
        let mut cntrs = Vec::new();
        for (wanted, flag) in counts.into_iter().zip([FI_REMOTE_READ, FI_REMOTE_WRITE]) {
            if wanted {
                cntrs.push((core_provider::CoreCntr::open(&common.domain)?, flag));
            }
        }
        self.parked.set_max(cq.size());
        self.core = Some(RxmCore { pep, srx, cntrs, cq, eq });
        self.shared.post(self.core.as_ref(), &mut self.conns, &self.matcher);
        if self.shared.has_none() {
            // Without a single receive nothing would ever come.
            self.core = None;
            return Err(Error::NOMEM);
        }
        Ok(self.core.as_ref().map_or([None; 2], |core| core.fds(&common)))
    }

    /// Checks if another transfer may start now.
    #[inline]
    pub(super) fn may_start(&mut self, flags: u64) -> Result {
        let fits = |ep: &Self| {
            (ep.tx.len() < ep.identity.attr.tx_size || flags & INTERNAL_OP != 0)
                && ep.tx.has_space(flags & FI_COMPLETION != 0)
        };
        if !fits(self) {
            self.poll_once(false);
            if !fits(self) {
                return Err(Error::AGAIN);
            }
        }
        Ok(())
    }

    /// Returns the connection to a peer, started if there is none.
    #[inline]
    pub(super) fn conn_to(&mut self, dest: fi_addr_t) -> Result<u32> {
        let peer = self.peers.find(self.av.as_deref(), dest, &mut self.matcher)?;
        match self.peers[peer].conn {
            NONE => self.call(peer),
            conn => Ok(conn),
        }
    }

    /// Ends the endpoint's connections, and drops its operations without reporting them
    /// (fi_endpoint(3), fi_close).
    #[inline(never)]
    pub(super) fn close(&mut self) {
        self.tx.mute();
        // A receive that the endpoint has taken from a shared context is given back with an error.
        if !self.matcher.queues.is_shared() {
            self.matcher.completions.mute();
        }
        // Injected messages are complete for the application: they leave if they can.
        let connected = |(id, conn): (u32, &RxmConn)| (conn.link == Link::Connected).then_some(id);
        for id in self.conns.iter().filter_map(connected).collect::<Vec<_>>() {
            self.flush(id);
        }
        // Connections are closed first: after that the core uses no memory of the application's.
        self.drain_core();
        self.parked.clear();
        for id in self.conns.indices(|_| true) {
            self.end(id, Error::CANCELED);
        }
        self.core = None;
        self.fetches.copies.cancel(&mut self.matcher);
        for matched in self.matcher.cancel_all() {
            self.fetches.match_message(
                &mut self.matcher,
                &mut self.conns,
                &mut self.peers,
                matched,
            );
        }
        self.tx.close();
        if !self.matcher.queues.is_shared() {
            self.matcher.completions.close();
        }
    }
}
