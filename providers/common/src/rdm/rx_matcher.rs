//! Matching engine: posted receives, unexpected messages, multi-receive buffers, peeks and claims
//! of an endpoint (fi_msg(3), fi_tagged(3)).
//!
//! It matches messages with receives and reports them. The transport of bytes to a buffer, and the
//! form of an unexpected message, are the task of the provider. It is notified of every [`MatchedMessage`]
//! of a message and a receive.
//!
//! Endpoints with a shared receive context (fi_endpoint(3)) have one matching engine each, for the
//! reports, and share one set of [`MatchQueues`].
//!
//! Buffered messages are counted by sender, for the quotas of peers. The provider defines the
//! capacity, and the handling of a message exceeding it.
use super::peer_srx_rx::PeerSrxQueue;
use super::unexpected_quota::{MessageCost, UnexpectedQuota};
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_CLAIM, FI_DISCARD, FI_MORE, FI_MSG, FI_MULTI_RECV,
    FI_PEEK, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED, fi_addr_t,
};
use crate::buf::{MessageBytes, RecvBuf, is_some};
use crate::buffered::Buffering;
use crate::completions::RxCompletions;
use crate::cq::{Completion, CompletionError, Context};
use crate::eq::FidPtr;
use crate::error::{Error, Result};
use crate::lock::{Level, Lock};
use crate::matching::{Pattern, Posted, Unexpected};
pub use crate::multi_recv::Recv;
use crate::multi_recv::{BUFFERED, MultiBufs};
use crate::notices::is_of_unknown_peer;
use crate::operation::RecvOp;
use crate::peer_srx::{SrxOwner, SrxStart, SrxStartQueue};
use crate::reserved::{INTERNAL_OP, ONLY_TAG, OWN_TAG};
use crate::slab::NONE;
use crate::stats::{ANY, EndpointStats, PendingOpStats};
use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::Arc;

/// Envelope of a message, as reported by completions.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// True for a tagged message.
    pub tagged: bool,
    /// Tag of a tagged message received as an untagged one.
    pub msg_tag: Option<u64>,
    /// True if the message belongs to a collective operation, or is another internal message of the
    /// library.
    pub collective: bool,
    /// The message's tag; 0 for an untagged one.
    pub tag: u64,
    /// Bytes of the message, arrived or not.
    pub len: usize,
    /// The message's remote CQ data, if it has any.
    pub cq_data: Option<u64>,
    /// Sender: a number chosen by the provider, named by [`RxMatcher::set_name`]; [`NONE`] for the one
    /// peer of a connected endpoint.
    pub peer: u32,
}

impl Envelope {
    /// Returns the index of the message's pair of queues: 0 untagged, 1 tagged, 2 collective
    /// operations.
    #[inline]
    pub fn queue(&self) -> usize {
        usize::from(self.tagged) + usize::from(self.collective)
    }
}

/// Form of an unexpected message.
pub trait UnexpectedBody {
    /// The bytes of the message, if all of them are here.
    fn bytes(&self) -> Option<&[u8]>;
    /// Returns the memory of the unexpected message with `len` bytes.
    fn cost(&self, len: usize) -> usize;
    /// True if all uses of matching engines sharing queues are under the one lock of an engine.
    /// Otherwise the fast paths are not used with shared queues.
    const ONE_LOCK: bool;
}

/// Unexpected message.
#[derive(Debug)]
pub struct UnexpectedMessage<B> {
    /// The message's description for completions.
    pub envelope: Envelope,
    /// Form of the message.
    pub body: B,
    /// The number of the endpoint the message came to ([`RxMatcher::set_owner`]).
    owner: u32,
    /// fi_addr_t of the sender at this endpoint.
    source: fi_addr_t,
    /// Neighbours in the list of the queue's messages of the same sender to the same endpoint.
    prev: u32,
    next: u32,
}

impl<B: UnexpectedBody> UnexpectedMessage<B> {
    /// Bytes of memory of a buffered message in addition to its own: its entry in tables growing by
    /// doubling, and the allocator's overhead.
    const COST: usize = Unexpected::<Self>::COST + 32;

    fn cost(&self) -> usize {
        self.body.cost(self.envelope.len) + Self::COST
    }
}

/// A waiting message has met its receive, or is to be discarded.
#[derive(Debug)]
pub struct MatchedMessage {
    /// The queue the message is in ([`Envelope::queue`]).
    pub queue: usize,
    /// The message's number.
    pub message: u32,
    /// The receive it met; none when the message is to be discarded.
    pub recv: Option<Recv>,
    /// Endpoint of the message; its matching engine reports it.
    pub owner: u32,
    /// Match criteria of a multi-receive buffer for further messages: after the delivery of this
    /// one, [`RxMatcher::fill`] is called.
    pub fills: Option<Pattern>,
}

/// Message peeked at, claimed or discarded, for [`RxMatcher::report_seen`].
#[derive(Debug)]
pub struct PeekedMessage {
    /// Endpoint of the message; its matching engine reports it.
    pub owner: u32,
    envelope: Envelope,
    context: Context,
    buf: usize,
    /// Flags of the call: for writing an entry, and for counting the message as received.
    flags: u64,
    counts: bool,
}

/// Result of posting a receive. The owner's matching engine has to report the seen message first;
/// then the match has to be processed before anything else.
#[derive(Debug, Default)]
pub struct PostOutcome {
    /// Message peeked at, claimed or discarded.
    pub seen: Option<PeekedMessage>,
    /// Message matched by the receive, or to be discarded.
    pub matched: Option<MatchedMessage>,
}

/// Flags excluding a receive from the fast path of posting.
const SPECIAL: u64 = FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV | INTERNAL_OP | ONLY_TAG;

/// Number of receives posted to a shared receive context up to which a partially arrived message
/// takes none, so complete messages find some.
const SPARE_RECEIVES: usize = 8;

/// Pairs of queues in a matching engine: untagged, tagged, and of collective operations.
pub const QUEUES: usize = 3;

/// Index of the queues of tagged messages and receives, the only ones with peeks and claims
/// (fi_tagged(3)); the untagged ones have 0.
const TAGGED: usize = 1;

/// Index of the queues of collective operations.
const COLLECTIVE: usize = 2;

/// State of a peer in a matching engine.
#[derive(Clone, Copy, Debug)]
struct PeerQuota {
    /// fi_addr_t of the peer for the source of receives, and the one reported by completions.
    name: fi_addr_t,
    id: fi_addr_t,
    /// Number of the peer's buffered messages, the youngest of them in each queue, and their memory
    /// in bytes.
    buffered: u32,
    last: [u32; QUEUES],
    bytes: usize,
}

impl PeerQuota {
    const UNKNOWN_PEER: Self = Self {
        name: FI_ADDR_NOTAVAIL,
        id: FI_ADDR_NOTAVAIL,
        buffered: 0,
        last: [NONE; QUEUES],
        bytes: 0,
    };
}

/// Posted receives and unexpected messages, in [`QUEUES`] pairs.
#[derive(Debug)]
pub struct MatchQueues<B> {
    posted: [Posted<Recv>; QUEUES],
    unexpected: [Unexpected<UnexpectedMessage<B>>; QUEUES],
    /// Tagged messages claimed by FI_PEEK, by the claiming context.
    claimed: HashMap<usize, u32>,
    multi: MultiBufs,
    min_multi_recv: usize,
    /// Memory of buffered and collected messages.
    quota: UnexpectedQuota,
    /// Longest receive requested for the collection of a message ([`RxMatcher::collects`]).
    longest: usize,
}

impl<B> MatchQueues<B> {
    /// Returns queues in separately allocated memory: they are too large for callers' stack frames.
    #[cold]
    #[inline(never)]
    fn boxed(min_multi_recv: usize) -> Box<Self> {
        Box::new(Self::new(min_multi_recv))
    }

    // Inlined: queues are large, and are to be on the stack of a caller once.
    #[inline(always)]
    fn new(min_multi_recv: usize) -> Self {
        Self {
            posted: Default::default(),
            unexpected: std::array::from_fn(|_| Unexpected::default()),
            claimed: HashMap::new(),
            multi: MultiBufs::default(),
            min_multi_recv,
            quota: UnexpectedQuota::default(),
            longest: 0,
        }
    }
}

/// Queues shared by endpoints. The lock is taken for single calls of a matching engine only, with
/// no other lock held except an engine's.
type SharedQueues<B> = Arc<Lock<MatchQueues<B>>>;

/// Addresses of peers by their numbers, reported for unknown peers by FI_SOURCE_ERR. Few endpoints
/// have them.
#[derive(Debug, Default)]
struct SourceAddrs(HashMap<u32, Vec<u8>>);

/// Location of an endpoint's queues.
#[derive(Debug)]
enum QueueOwnership<B> {
    /// The endpoint has its own queues.
    Own(Box<MatchQueues<B>>),
    /// Queues of a shared receive context, and separate ones for collective operations, created on
    /// first use.
    Shared(SharedQueues<B>, Option<Box<MatchQueues<B>>>),
}

/// Receiving side of an endpoint: its queues, the state of its peers, and its completion sink.
#[derive(Debug)]
pub struct RxMatcher<B> {
    /// The endpoint's number.
    owner: u32,
    /// Completion sink of the receives.
    pub completions: RxCompletions,
    /// A receive's source address takes part in matching (FI_DIRECTED_RECV).
    directed: bool,
    /// Tags with `OWN_TAG` are the library's own and not the application's (FI_COLLECTIVE,
    /// FI_MULTICAST).
    collective: bool,
    /// True if peers without a name count as unknown, with a small quota for buffered messages.
    unknown_peers: bool,
    /// True after the end of the connection: unmatched receives are cancelled at once.
    ended: bool,
    queues: QueueOwnership<B>,
    /// State of buffered receives (FI_BUFFERED_RECV), if the endpoint has them, and the
    /// endpoint's fid.
    buffering: Option<Box<Buffering>>,
    fid: FidPtr,
    /// Shared queues after the endpoint's departure ([`leave`](Self::leave)): receives of theirs
    /// may still be being filled.
    left: Option<SharedQueues<B>>,
    /// True for the matching engine of the shared receive context itself, not of an endpoint using
    /// one.
    hosts: bool,
    /// States of peers, by their numbers.
    peers: Vec<PeerQuota>,
    /// State of the one peer of a connected endpoint, without a number.
    only: PeerQuota,
    /// The addresses of peers, with FI_SOURCE_ERR.
    addrs: Option<Box<SourceAddrs>>,
    /// Another provider's receive queue in use.
    imported: Option<Box<PeerSrxQueue>>,
}

impl<B: UnexpectedBody> RxMatcher<B> {
    /// Returns the matching engine of an endpoint not enabled yet. `directed`: the source of a
    /// receive takes part in matching (FI_DIRECTED_RECV). `source_err`: messages of unknown peers
    /// are reported as errors (FI_SOURCE_ERR). `min_multi_recv`: FI_OPT_MIN_MULTI_RECV, in bytes.
    pub fn new(directed: bool, source_err: bool, min_multi_recv: usize) -> Self {
        Self {
            owner: NONE,
            completions: RxCompletions::default(),
            directed,
            collective: false,
            unknown_peers: true,
            ended: false,
            queues: QueueOwnership::Own(MatchQueues::boxed(min_multi_recv)),
            buffering: None,
            fid: FidPtr(std::ptr::null_mut()),
            left: None,
            hosts: false,
            peers: Vec::new(),
            only: PeerQuota::UNKNOWN_PEER,
            addrs: source_err.then(Box::default),
            imported: None,
        }
    }

    /// Takes receives from another provider's queue from now on (fi_peer(3)). The provider queues
    /// started buffered messages in `started`.
    pub fn import(&mut self, owner: SrxOwner, started: &Arc<SrxStartQueue>) {
        self.imported = Some(Box::new(PeerSrxQueue::new(owner, started)));
    }

    /// Returns true if receives belong to another provider.
    #[inline]
    pub fn is_imported(&self) -> bool {
        self.imported.is_some()
    }

    /// Returns the match for a buffered message started or dropped by its owner, or `None` if the
    /// message is not present any more.
    pub fn started(&mut self, started: &SrxStart) -> Option<MatchedMessage> {
        let SrxStart { queue, message, dropped, entry, .. } = *started;
        let is_here = self.buffered_envelope(queue, message).is_some();
        let imported = self.imported.as_deref_mut().filter(|_| is_here)?;
        let recv = match dropped {
            true => {
                imported.owner.free(entry);
                None
            }
            false => {
                let recv = imported.receive(entry)?;
                self.completions.part();
                Some(recv)
            }
        };
        Some(MatchedMessage { queue, message, recv, owner: self.owner, fills: None })
    }

    /// Calls `act` with the queues containing `queue`: the shared ones, or the endpoint's own.
    #[inline]
    fn with<R>(&mut self, queue: usize, act: impl FnOnce(&mut MatchQueues<B>) -> R) -> R {
        match &mut self.queues {
            QueueOwnership::Own(queues) => act(queues),
            QueueOwnership::Shared(queues, _) if queue != COLLECTIVE => act(&mut queues.lock()),
            QueueOwnership::Shared(_, own) => act(own.get_or_insert_with(|| MatchQueues::boxed(0))),
        }
    }

    /// Calls `look` with the queues containing `queue`: the shared ones, or the endpoint's own.
    #[inline]
    fn look<R>(&self, queue: usize, look: impl FnOnce(&MatchQueues<B>) -> R) -> R {
        match &self.queues {
            QueueOwnership::Own(queues) => look(queues),
            QueueOwnership::Shared(queues, _) if queue != COLLECTIVE => look(&queues.lock()),
            QueueOwnership::Shared(_, Some(own)) => look(own),
            QueueOwnership::Shared(_, None) => look(&MatchQueues::boxed(0)),
        }
    }

    /// Returns true if the receives belong to a shared receive context other than itself.
    fn is_srx_user(&self) -> bool {
        matches!(self.queues, QueueOwnership::Shared(..)) && !self.hosts
    }

    /// Sets the endpoint's number.
    pub fn set_owner(&mut self, owner: u32) {
        self.owner = owner;
    }

    /// The queues of a shared receive context, for endpoints to [`join`](Self::join).
    pub fn expose(&mut self) -> SharedQueues<B> {
        self.hosts = true;
        if let QueueOwnership::Own(own) = &mut self.queues {
            let queues = std::mem::replace(&mut **own, MatchQueues::new(0));
            let level = if B::ONE_LOCK { Level::Serialized } else { Level::Shared };
            self.queues = QueueOwnership::Shared(Arc::new(Lock::with_level(queues, level)), None);
        }
        match &self.queues {
            QueueOwnership::Shared(queues, _) => queues.clone(),
            QueueOwnership::Own(_) => unreachable!("the queues were shared just now"),
        }
    }

    /// Returns true if the matching engine shares queues, or did: it belongs to a shared receive
    /// context, or to an endpoint using one now or before.
    pub fn is_shared(&self) -> bool {
        self.hosts || self.is_srx_user() || self.left.is_some()
    }

    /// Makes the endpoint, without posted receives yet, take its receives from these queues.
    pub fn join(&mut self, queues: SharedQueues<B>) {
        self.queues = QueueOwnership::Shared(queues, None);
    }

    /// Removes the messages of a closed endpoint from shared queues; later messages take none of
    /// their receives. The caller must hold the lock under which others post there, so no receive
    /// matches a message of a closed endpoint.
    pub fn leave(&mut self) {
        if !self.is_srx_user() {
            return;
        }
        let numbers = (0..self.peers.len() as u32).chain([NONE]);
        for peer in numbers.filter(|peer| self.has_buffered_from(*peer)).collect::<Vec<_>>() {
            for (queue, id) in self.buffered_from(peer) {
                self.take_buffered(queue, id);
                if queue == TAGGED {
                    self.with(TAGGED, |queues| queues.claimed.retain(|_, claimed| *claimed != id));
                }
            }
        }
        let own = QueueOwnership::Own(MatchQueues::boxed(self.min_multi_recv()));
        if let QueueOwnership::Shared(queues, collective) = std::mem::replace(&mut self.queues, own)
        {
            self.left = Some(queues);
            if let (Some(collective), QueueOwnership::Own(own)) = (collective, &mut self.queues) {
                own.posted = collective.posted;
            }
        }
    }

    /// Returns FI_OPT_MIN_MULTI_RECV: a multi-receive buffer with less free space, in bytes, is
    /// released.
    pub fn min_multi_recv(&self) -> usize {
        self.look(0, |queues| queues.min_multi_recv)
    }

    /// Sets FI_OPT_MIN_MULTI_RECV.
    pub fn set_min_multi_recv(&mut self, size: usize) {
        self.with(0, |queues| queues.min_multi_recv = size);
    }

    /// Sets if the source of a receive takes part in matching (FI_DIRECTED_RECV), and if messages
    /// of unknown peers are reported as errors (FI_SOURCE_ERR).
    pub fn choose_sources(&mut self, directed: bool, source_err: bool) {
        self.directed = directed;
        self.addrs = source_err.then(|| self.addrs.take().unwrap_or_default());
    }

    /// Reports completed receives to this completion sink.
    pub fn bind(&mut self, completions: &RxCompletions) {
        self.completions.clone_from(completions);
        if let Some(buffering) = &mut self.buffering {
            buffering.fix();
        }
    }

    /// Reserves tags with `OWN_TAG` for the library (FI_COLLECTIVE, FI_MULTICAST).
    pub fn set_collective(&mut self) {
        self.collective = true;
    }

    /// Treats peers without a name like named ones, on endpoints of applications accepting all
    /// peers.
    pub fn trust_all(&mut self) {
        self.unknown_peers = false;
    }

    /// Records the end of the connection: unmatched receives posted from now on are cancelled.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Returns true if [`end`](Self::end) was called.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns true if a tag on this endpoint belongs to the library itself, not to the application
    /// (fi_collective(3)).
    #[inline]
    pub fn is_internal_tag(&self, tag: u64) -> bool {
        tag & OWN_TAG != 0 && self.collective
    }

    fn known_mut(&mut self, peer: u32) -> &mut PeerQuota {
        if peer == NONE {
            return &mut self.only;
        }
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize(index + 1, PeerQuota::UNKNOWN_PEER);
        }
        &mut self.peers[index]
    }

    #[inline(always)]
    fn known(&self, peer: u32) -> &PeerQuota {
        // A peer of which nothing was said is as unknown as the one of a connected endpoint.
        self.peers.get(peer as usize).unwrap_or(&self.only)
    }

    /// Sets the addresses of a peer, as used by the source of receives and as reported by
    /// completions; FI_ADDR_NOTAVAIL for an unknown peer. The two differ with FI_AV_USER_ID.
    pub fn set_name(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t) {
        let was_unknown_peer = self.is_unknown_peer(peer);
        let known = self.known_mut(peer);
        let before = std::mem::replace(known, PeerQuota { name, id, ..*known });
        let (renamed, identified) = (before.name != name, before.id != id);
        // Receives here choose by the name; another provider, whose receives are imported, knows the
        // sender by the other number alone.
        if before.buffered == 0 || !(renamed || (identified && self.imported.is_some())) {
            return;
        }
        let bytes = before.bytes;
        match (was_unknown_peer, self.is_unknown_peer(peer)) {
            (was, is) if was != is => self.with(0, |queues| queues.quota.reclassify(bytes, is)),
            _ => {}
        }
        for (queue, number) in self.buffered_from(peer) {
            if renamed {
                self.with(queue, |queues| {
                    let unexpected = &mut queues.unexpected[queue];
                    if let Some(buffered) = unexpected.get_mut(number) {
                        buffered.source = name;
                    }
                    unexpected.set_source(number, name);
                });
            }
            if let Some(imported) = &self.imported {
                imported.name((queue, number), id);
            }
        }
        if let Some(imported) = &self.imported {
            imported.owner.names_changed();
        }
    }

    /// Stores a peer's address, reported for unknown peers by FI_SOURCE_ERR.
    pub fn set_addr(&mut self, peer: u32, addr: impl FnOnce() -> Vec<u8>) {
        if let Some(addrs) = &mut self.addrs {
            addrs.0.insert(peer, addr());
        }
    }

    /// Forgets the state of a peer, so its number can be reused.
    pub fn forget(&mut self, peer: u32) {
        self.set_name(peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
        if let Some(addrs) = &mut self.addrs {
            addrs.0.remove(&peer);
        }
    }

    /// Returns a peer's fi_addr_t for the source of receives; FI_ADDR_NOTAVAIL if it has none.
    #[inline]
    pub fn name_of(&self, peer: u32) -> fi_addr_t {
        self.known(peer).name
    }

    /// Returns the source address reported by completions for a peer.
    #[inline]
    pub fn id_of(&self, peer: u32) -> fi_addr_t {
        self.known(peer).id
    }

    /// Returns true if a peer counts as unknown: it has no name, and the endpoint does not trust
    /// all peers ([`trust_all`](Self::trust_all)).
    #[inline]
    pub fn is_unknown_peer(&self, peer: u32) -> bool {
        self.unknown_peers && self.name_of(peer) == FI_ADDR_NOTAVAIL
    }

    /// Bytes of memory of a buffered message in addition to its own.
    pub const COST: usize = UnexpectedMessage::<B>::COST;

    /// Recounts this endpoint's buffered messages and verifies the sums. Returns the number of
    /// messages, and the bytes of all messages in these queues, including the ones being collected.
    /// For tests.
    pub fn check_sums(&self) -> (usize, usize) {
        let numbers = (0..self.peers.len() as u32).chain([NONE]);
        let (mut count, mut bytes, mut of_unknown_peers) = (0, 0, 0);
        for peer in numbers {
            let known = self.known(peer);
            let buffered = self.buffered_from(peer);
            let cost = |(queue, id): &(usize, u32)| {
                self.look(*queue, |queues| {
                    let message = queues.unexpected[*queue].get(*id).expect("it is in the list");
                    assert_eq!((message.envelope.peer, message.owner), (peer, self.owner));
                    message.cost()
                })
            };
            let sum: usize = buffered.iter().map(cost).sum();
            assert_eq!(
                (known.buffered as usize, known.bytes),
                (buffered.len(), sum),
                "of peer {peer}"
            );
            of_unknown_peers += if self.is_unknown_peer(peer) { sum } else { 0 };
            (count, bytes) = (count + buffered.len(), bytes + sum);
        }
        self.look(0, |queues| {
            let sum = queues.quota.of_unknown_peers();
            assert!(queues.quota.bytes() >= bytes && sum >= of_unknown_peers);
            if matches!(self.queues, QueueOwnership::Own(_)) {
                assert_eq!(sum, of_unknown_peers, "bytes of unknown peers");
            }
        });
        (count, self.buffered_bytes())
    }

    /// Publishes the numbers of posted receives and unexpected messages.
    pub fn show(&self, stats: &mut EndpointStats) {
        let kind = |queue: usize| queue as u64 + 1;
        self.look(0, |queues| {
            stats.posted = std::array::from_fn(|queue| queues.posted[queue].len() as u64);
            stats.unexpected = std::array::from_fn(|queue| queues.unexpected[queue].len() as u64);
            stats.unexpected_bytes = queues.quota.bytes() as u64;
            let order = [TAGGED, 0];
            let (most, most_messages) = (stats.receives.len(), stats.messages.len());
            let receives = order.iter().flat_map(|queue| {
                let one = |recv: &Recv| recv.flags & FI_MULTI_RECV == 0;
                let oldest = queues.posted[*queue].oldest(most, one);
                oldest.into_iter().map(|pattern| PendingOpStats {
                    kind: kind(*queue),
                    tag: pattern.tag,
                    ignore_or_len: pattern.ignore,
                    source: pattern.src.unwrap_or(ANY),
                })
            });
            stats.receives.iter_mut().zip(receives).for_each(|(to, from)| *to = from);
            let messages = order.iter().flat_map(|queue| {
                let oldest = queues.unexpected[*queue].oldest(most_messages);
                oldest.map(|message| PendingOpStats {
                    kind: kind(*queue),
                    tag: message.envelope.tag,
                    ignore_or_len: message.envelope.len as u64,
                    source: message.source,
                })
            });
            stats.messages.iter_mut().zip(messages).for_each(|(to, from)| *to = from);
        });
    }

    /// Returns the bytes of memory of unexpected messages.
    #[inline]
    pub fn buffered_bytes(&self) -> usize {
        self.look(0, |queues| queues.quota.bytes())
    }

    fn entry(&self, envelope: &Envelope, context: Context, buf: usize, extra: u64) -> Completion {
        let tagged = envelope.tagged || envelope.msg_tag.is_some();
        let mut flags = FI_RECV | if tagged { FI_TAGGED } else { FI_MSG } | extra;
        if envelope.cq_data.is_some() {
            flags |= FI_REMOTE_CQ_DATA;
        }
        Completion {
            context,
            flags,
            len: envelope.len,
            buf,
            data: envelope.cq_data.unwrap_or(0),
            tag: envelope.msg_tag.unwrap_or(envelope.tag),
            src: self.id_of(envelope.peer),
        }
    }

    /// A receive is filled: returns FI_MULTI_RECV if its completion gives a multi-receive buffer
    /// back, 0 otherwise.
    #[inline]
    fn part_filled(&mut self, recv: &Recv) -> u64 {
        if recv.flags & FI_MULTI_RECV == 0 {
            return 0;
        }
        if recv.import().is_some() {
            // The owner says when the buffer is given back.
            return FI_MULTI_RECV;
        }
        let gives_back = match &self.left {
            Some(left) => left.lock().multi.filled(recv),
            None => self.with(0, |queues| queues.multi.filled(recv)),
        };
        if gives_back == 0 {
            self.completions.part();
        }
        gives_back
    }

    /// Reports a receive with a complete message: as a success, or as an error for a truncated
    /// message (-FI_ETRUNC) or, with FI_SOURCE_ERR, for one of an unknown source
    /// (-FI_EADDRNOTAVAIL).
    #[inline]
    pub fn received(&mut self, recv: &Recv, envelope: &Envelope) {
        let extra = self.part_filled(recv) | (recv.flags & BUFFERED);
        let entry = self.entry(envelope, recv.context, recv.buf.address(), extra);
        if envelope.len > recv.buf.len() {
            let olen = envelope.len - recv.buf.len();
            let of = Completion { len: recv.buf.len(), ..entry };
            self.completions
                .failed(CompletionError { olen, ..CompletionError::new(of, Error::TRUNC) });
        } else if entry.src == FI_ADDR_NOTAVAIL
            && entry.flags & INTERNAL_OP == 0
            && let Some(addrs) = &self.addrs
        {
            // The message is received, but its sender has no fi_addr_t: the error entry has its
            // address.
            let data = addrs.0.get(&envelope.peer).cloned().unwrap_or_default();
            let error = CompletionError::new(entry, Error::ADDRNOTAVAIL);
            self.completions.failed(CompletionError { data, ..error });
        } else {
            // The entry that gives a multi-receive buffer back is always written.
            self.completions
                .done(entry, self.completions.wants(recv.flags) || extra & FI_MULTI_RECV != 0);
        }
        self.release(recv);
    }

    /// Returns a reported receive of another provider to it.
    #[inline]
    fn release(&mut self, recv: &Recv) {
        if let Some(number) = recv.import()
            && let Some(imported) = &mut self.imported
        {
            imported.release(number);
        }
    }

    /// Fast path for a completely arrived message without special features matching the oldest
    /// receive, the most common case. `tag` is the tag of a tagged message, otherwise 0; `data` its
    /// remote CQ data. Returns false in any other case, without any effect.
    ///
    /// Inlined, since it is nearly a leaf function: all calls are in
    /// [`receive_first`](Self::receive_first). Its caller should do nothing else.
    #[inline(always)]
    pub fn recv_fast(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        self.receive_short(peer, tagged, tag, data, bytes)
            || self.receive_first(peer, tagged, tag, data, bytes)
    }

    /// Handles a short message for [`recv_fast`](Self::recv_fast), if no call is needed.
    #[inline(always)]
    pub fn receive_short(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        is_some(bytes.count()) && self.fill_first::<true>(peer, tagged, tag, data, bytes)
    }

    /// Handles messages of any length, and shared queues, for
    /// [`recv_fast`](Self::recv_fast).
    #[inline(never)]
    pub fn receive_first(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        self.fill_first::<false>(peer, tagged, tag, data, bytes)
    }

    /// Implements [`recv_fast`](Self::recv_fast); with `QUICK` it also returns false if a
    /// call is needed.
    #[inline(always)]
    fn fill_first<const QUICK: bool>(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        if self.addrs.is_some() || (tagged && self.is_internal_tag(tag)) {
            return false;
        }
        let known = self.peers.get(peer as usize).unwrap_or(&self.only);
        let completions = &self.completions;
        match &mut self.queues {
            QueueOwnership::Own(queues) => {
                queues.fill_first::<QUICK>(completions, known, tagged, tag, data, bytes)
            }
            QueueOwnership::Shared(queues, _) if B::ONE_LOCK && !QUICK => {
                let mut queues = queues.lock_serialized();
                queues.fill_first::<false>(completions, known, tagged, tag, data, bytes)
            }
            QueueOwnership::Shared(..) => false,
        }
    }

    /// Implements [`recv_fast`](Self::recv_fast) for receives of another provider: one of
    /// this library takes such a message in one call, if it carries no remote CQ data.
    #[inline(always)]
    pub fn receive_imported(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        bytes: impl MessageBytes,
    ) -> bool {
        let id = self.id_of(peer);
        if tagged && self.is_internal_tag(tag) {
            return false;
        }
        let imported = self.imported.as_deref_mut();
        imported.is_some_and(|imported| imported.recv_whole_message(tagged, id, tag, bytes))
    }

    /// Second fast path, after [`recv_fast`](Self::recv_fast) or, for receives of another
    /// provider, [`receive_imported`](Self::receive_imported): passes such a message to any
    /// matching posted receive.
    #[inline(never)]
    pub fn receive_whole(
        &mut self,
        peer: u32,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        let len = bytes.count();
        if !self.completions.has_space()
            || self.buffering.is_some()
            || (tagged && self.is_internal_tag(tag))
        {
            return false;
        }
        let envelope =
            Envelope { tagged, msg_tag: None, collective: false, tag, len, cq_data: data, peer };
        let Some(recv) = self.take_posted(&envelope) else { return false };
        bytes.copy_into(&recv.buf);
        self.received(&recv, &envelope);
        true
    }

    /// Reports a receive with a message failing with `error`.
    pub fn failed(&mut self, recv: &Recv, envelope: &Envelope, error: Error) {
        let extra = self.part_filled(recv) | (recv.flags & BUFFERED);
        let entry = self.entry(envelope, recv.context, recv.buf.address(), extra);
        self.completions.failed(CompletionError::new(entry, error));
        self.release(recv);
    }

    /// Takes the oldest posted receive matching a message. Of a multi-receive buffer it takes the
    /// part needed for the message.
    #[inline]
    pub fn take_posted(&mut self, envelope: &Envelope) -> Option<Recv> {
        let (queue, source) = (envelope.queue(), self.name_of(envelope.peer));
        if let Some(imported) = &mut self.imported
            && queue != COLLECTIVE
        {
            let id = self.peers.get(envelope.peer as usize).unwrap_or(&self.only).id;
            let recv = imported.take(envelope, id)?;
            // It was posted to the owner.
            self.completions.part();
            return Some(recv);
        }
        self.with(queue, |queues| queues.take_posted(queue, source, envelope))
    }

    /// Returns true if an unexpected message is dropped instead of buffered: an internal message
    /// with a sender not in the address vector.
    pub fn drops(&self, envelope: &Envelope) -> bool {
        let PeerQuota { name, buffered, .. } = *self.known(envelope.peer);
        envelope.collective
            && name == FI_ADDR_NOTAVAIL
            && is_of_unknown_peer(envelope.tag, envelope.len, buffered)
    }

    /// Returns true if the unexpected messages of an unknown peer exceed its quota. All unknown
    /// peers together may have `most` bytes here, and one of them up to half of the bytes left free
    /// by all of them.
    pub fn is_too_much(&self, envelope: &Envelope, most: usize) -> bool {
        self.is_unknown_peer(envelope.peer)
            && self
                .look(0, |queues| queues.quota.exceeds_share(self.known(envelope.peer).bytes, most))
    }

    /// Memory of a message and of its sender's messages, including it.
    fn cost_of(&self, envelope: &Envelope) -> MessageCost {
        let overhead = UnexpectedMessage::<B>::COST;
        let cost = envelope.len.saturating_add(overhead);
        MessageCost {
            cost,
            overhead,
            sum: self.known(envelope.peer).bytes.saturating_add(cost),
            of_unknown_peer: self.is_unknown_peer(envelope.peer),
        }
    }

    /// Returns true if this message may be buffered, with a capacity of `most` bytes. An unknown
    /// peer has a small quota.
    pub fn may_buffer(&self, envelope: &Envelope, most: usize) -> bool {
        let message = self.cost_of(envelope);
        self.look(0, |queues| queues.quota.admits(message, most))
    }

    /// Returns true if a message over its quota, with a capacity of `most` bytes, would fit without
    /// the messages of other unknown peers. Named peers never evict messages of disconnected
    /// unknown peers; their own messages wait instead.
    pub fn unknown_peers_keep_out(&self, envelope: &Envelope, most: usize) -> bool {
        let message = self.cost_of(envelope);
        self.look(0, |queues| queues.quota.is_kept_out_by_unknown_peers(message, most))
    }

    /// Returns true if a message without any arrived bytes may be recorded, with a capacity of
    /// `most` bytes for messages. The provider limits their number per peer.
    pub fn may_note(&self, most: usize) -> bool {
        self.look(0, |queues| queues.quota.has_space(UnexpectedMessage::<B>::COST, most))
    }

    /// Returns true if a partially arrived message has to be collected completely before it takes a
    /// receive of a shared receive context: complete messages must not wait for its rest, because
    /// it may never arrive. Nothing is collected while there are plenty of receives. Fails with
    /// -FI_EPROTO if the message is longer than any receive before.
    pub fn collects(&mut self, len: usize, most: usize) -> Result<bool> {
        self.with(0, |queues| {
            let posted = &queues.posted[0];
            if posted.len() > SPARE_RECEIVES {
                return Ok(false);
            }
            if let Some(recv) = posted.first(FI_ADDR_UNSPEC, 0) {
                queues.longest = queues.longest.max(recv.buf.len());
            }
            if len > queues.longest && queues.longest > 0 {
                return Err(Error::PROTO);
            }
            let cost = len.saturating_add(UnexpectedMessage::<B>::COST);
            let collects = queues.longest > 0 && queues.quota.has_space(cost, most);
            if collects {
                queues.quota.change(0, cost, false);
            }
            Ok(collects)
        })
    }

    /// Releases the space of a collected message of `len` bytes, complete or lost.
    pub fn collected(&mut self, len: usize) {
        let cost = UnexpectedMessage::<B>::COST + len;
        self.with(0, |queues| queues.quota.change(cost, 0, false));
    }

    /// Records the disconnection of an unknown peer. Its messages stay for a while: it may have
    /// ended after sending all. Returns true if there are too many such peers, and the messages of
    /// the oldest have to be dropped ([`oldest_left`](Self::oldest_left)).
    pub fn unknown_peer_left(&mut self, peer: u32) -> bool {
        if !self.has_buffered_from(peer) || !self.is_unknown_peer(peer) {
            return false;
        }
        let owner = self.owner;
        self.with(0, |queues| queues.quota.record_left(owner, peer))
    }

    /// Removes the unknown peer disconnected first among the ones with messages to drop: the
    /// endpoint's number, and the peer's number there. It may have a connection or a name by now,
    /// or the number may have been reused.
    pub fn oldest_left(&mut self) -> Option<(u32, u32)> {
        self.with(0, |queues| queues.quota.take_oldest_left())
    }

    /// The waiting messages of a peer, as their queues and numbers, in each queue from the oldest
    /// on.
    pub fn buffered_from(&self, peer: u32) -> Vec<(usize, u32)> {
        let mut buffered = Vec::new();
        let last = self.known(peer).last.into_iter().enumerate();
        for (queue, mut id) in last.filter(|(_, id)| *id != NONE) {
            let first = buffered.len();
            self.look(queue, |queues| {
                while let Some(message) = queues.unexpected[queue].get(id) {
                    buffered.push((queue, id));
                    id = message.prev;
                }
            });
            buffered[first..].reverse();
        }
        buffered
    }

    /// Returns the number of buffered messages of a peer.
    pub fn buffered_count(&self, peer: u32) -> usize {
        self.known(peer).buffered as usize
    }

    /// Returns true if there are buffered messages of this peer.
    pub fn has_buffered_from(&self, peer: u32) -> bool {
        self.known(peer).buffered > 0
    }

    /// Accounts for a change, from `before` to `after` bytes, of the memory of a peer's messages.
    /// All sums are in the possibly shared queues.
    fn recount(&mut self, peer: u32, before: usize, after: usize) {
        let known = self.known_mut(peer);
        known.bytes = known.bytes + after - before;
        let unknown_peer = self.is_unknown_peer(peer);
        self.with(0, |queues| queues.quota.change(before, after, unknown_peer));
    }

    /// Reserves space in the tables for another message to [`buffer_unexpected`](Self::buffer_unexpected). Returns -FI_ENOMEM
    /// if there is no memory.
    pub fn reserve(&mut self, envelope: &Envelope) -> Result {
        self.with(envelope.queue(), |queues| queues.unexpected[envelope.queue()].reserve())
    }

    /// Buffers a message for a later receive and returns its number.
    pub fn buffer_unexpected(&mut self, envelope: Envelope, body: B) -> u32 {
        let queue = envelope.queue();
        let PeerQuota { name: source, last, .. } = *self.known(envelope.peer);
        let (owner, prev) = (self.owner, last[queue]);
        let message = UnexpectedMessage { envelope, body, owner, source, prev, next: NONE };
        let cost = message.cost();
        let id = self.with(queue, |queues| {
            let unexpected = &mut queues.unexpected[queue];
            let id = unexpected.push(envelope.tag, source, message);
            if let Some(before) = unexpected.get_mut(prev) {
                before.next = id;
            }
            id
        });
        let known = self.known_mut(envelope.peer);
        known.buffered += 1;
        known.last[queue] = id;
        let sender = known.id;
        self.recount(envelope.peer, 0, cost);
        if let Some(imported) = &mut self.imported
            && queue != COLLECTIVE
        {
            imported.note(&envelope, sender, owner, id);
        }
        id
    }

    /// Changes the form of an unexpected message, and accounts for its new memory. Returns `None`
    /// if there is no such message.
    pub fn change<R>(
        &mut self,
        queue: usize,
        message: u32,
        change: impl FnOnce(&mut B) -> R,
    ) -> Option<R> {
        let (peer, before, after, result) = self.with(queue, |queues| {
            let buffered = queues.unexpected[queue].get_mut(message)?;
            let before = buffered.cost();
            let result = change(&mut buffered.body);
            Some((buffered.envelope.peer, before, buffered.cost(), result))
        })?;
        if before != after {
            self.recount(peer, before, after);
        }
        Some(result)
    }

    /// Removes a buffered message to this endpoint.
    pub fn take_buffered(&mut self, queue: usize, number: u32) -> Option<UnexpectedMessage<B>> {
        let message = self.with(queue, |queues| {
            let unexpected = &mut queues.unexpected[queue];
            let message = unexpected.remove(number)?;
            if let Some(before) = unexpected.get_mut(message.prev) {
                before.next = message.next;
            }
            if let Some(behind) = unexpected.get_mut(message.next) {
                behind.prev = message.prev;
            }
            Some(message)
        })?;
        if let Some(imported) = &mut self.imported {
            imported.forget((queue, number));
        }
        let known = self.known_mut(message.envelope.peer);
        known.buffered -= 1;
        if message.next == NONE {
            known.last[queue] = message.prev;
        }
        self.recount(message.envelope.peer, message.cost(), 0);
        Some(message)
    }

    /// Records the loss of an incomplete buffered message. If the application relies on it, it
    /// stays in the form set by `lost`, and its claim fails. Otherwise it is removed, and its
    /// matched tag fails with `error`.
    pub fn lose(&mut self, queue: usize, message: u32, lost: impl FnOnce(&mut B), error: Error) {
        if self.is_claimed(queue, message) {
            self.change(queue, message, lost);
        } else if let Some(buffered) = self.take_buffered(queue, message)
            && let Some(buffering) = &mut self.buffering
            && let Some(posted) = buffering.take_pending(queue, message)
        {
            self.failed(&Recv::new(RecvBuf::none(), posted, 0), &buffered.envelope, error);
        }
    }

    /// Returns true if the application relies on this message: it was claimed by a peek, or
    /// reported by buffered receives, or another provider has a note of it.
    pub fn is_claimed(&self, queue: usize, message: u32) -> bool {
        let claimed = |queues: &MatchQueues<B>| queues.claimed.values().any(|of| *of == message);
        (self.imported.is_some() && queue != COLLECTIVE)
            || (queue == TAGGED && self.look(TAGGED, claimed))
            || self
                .buffering
                .as_ref()
                .is_some_and(|buffering| buffering.has_notified(queue, message))
    }

    /// Enables buffered receives (FI_BUFFERED_RECV) on an endpoint without shared queues; `most`
    /// are the maximum values of FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN.
    pub fn enable_buffering(&mut self, most: [usize; 2]) {
        self.buffering = Some(Box::new(Buffering::new(Buffering::DEFAULT_LIMIT, most)));
    }

    /// The state of buffered receives, if the endpoint has them.
    #[inline]
    pub fn buffering(&self) -> Option<&Buffering> {
        self.buffering.as_deref()
    }

    /// The state of buffered receives, to change, if the endpoint has them.
    pub fn buffering_mut(&mut self) -> Option<&mut Buffering> {
        self.buffering.as_deref_mut()
    }

    /// Reads FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes; -FI_ENOPROTOOPT without
    /// buffered receives.
    pub fn buffered_option(&self, name: c_int) -> Result<usize> {
        self.buffering.as_ref().ok_or(Error::NOPROTOOPT)?.option(name)
    }

    /// Sets FI_OPT_BUFFERED_LIMIT or FI_OPT_BUFFERED_MIN, in bytes; -FI_ENOPROTOOPT without
    /// buffered receives.
    pub fn set_buffered_option(&mut self, name: c_int, value: usize) -> Result {
        self.buffering.as_mut().ok_or(Error::NOPROTOOPT)?.set_option(name, value)
    }

    /// Sets the fid naming the endpoint in the contexts of reported messages.
    pub fn set_fid(&mut self, fid: FidPtr) {
        self.fid = fid;
    }

    /// The description of a waiting message.
    pub fn buffered_envelope(&self, queue: usize, message: u32) -> Option<Envelope> {
        self.look(queue, |queues| {
            queues.unexpected[queue].get(message).map(|buffered| buffered.envelope)
        })
    }

    /// Returns the result of `look` for the form of a buffered message, or `None` if there is no
    /// such message.
    pub fn buffered_as<R>(
        &self,
        queue: usize,
        message: u32,
        look: impl FnOnce(&B) -> R,
    ) -> Option<R> {
        self.look(queue, |queues| {
            queues.unexpected[queue].get(message).map(|buffered| look(&buffered.body))
        })
    }

    /// Returns the form of a buffered message in this endpoint's own queues.
    pub fn buffered_body(&self, queue: usize, message: u32) -> Option<&B> {
        let QueueOwnership::Own(queues) = &self.queues else { return None };
        queues.unexpected[queue].get(message).map(|buffered| &buffered.body)
    }

    /// Records the match of a buffered message with the tag posted with this context. It is
    /// reported once enough bytes have arrived; no other receive, tag or peek finds it any more.
    pub fn add_pending(&mut self, queue: usize, message: u32, posted: Context) {
        if let Some(buffering) = &mut self.buffering {
            buffering.add_pending(queue, message, posted);
        }
        self.hide(queue, message);
    }

    /// Hides a message from receives and peeks.
    pub fn hide(&mut self, queue: usize, message: u32) {
        self.with(queue, |queues| queues.unexpected[queue].claim(message));
    }

    /// Returns true if a message is hidden from receives and peeks.
    pub fn is_hidden(&self, queue: usize, message: u32) -> bool {
        (self.imported.is_some() && queue != COLLECTIVE)
            || self.look(queue, |queues| queues.unexpected[queue].is_claimed(message))
    }

    /// Reports a buffered message, to be claimed or discarded: all of it, or this start. `posted`
    /// is the context of the matched tag, if it waited for one. From now on no receive or peek
    /// finds the message.
    pub fn announce(
        &mut self,
        queue: usize,
        message: u32,
        start: Option<Box<[u8]>>,
        posted: Option<Context>,
    ) {
        let Some(envelope) = self.buffered_envelope(queue, message) else { return };
        let here = self.buffered_body(queue, message).and_then(UnexpectedBody::bytes);
        let (at, more) = match (&start, here) {
            (Some(start), _) => (start.as_ptr(), FI_MORE),
            (None, Some(bytes)) => (bytes.as_ptr(), 0),
            (None, None) => return,
        };
        let Some(buffering) = &mut self.buffering else { return };
        let context = buffering.tell((queue, message), self.fid, posted, start);
        self.hide(queue, message);
        self.completions
            .on_rts(self.entry(&envelope, context, at as usize, more), posted.is_some());
    }

    /// Posts a tag on an endpoint with buffered receives and returns the matching message, if one
    /// waits.
    pub fn post_tag(&mut self, op: &RecvOp) -> Option<(u32, Envelope)> {
        let pattern = self.pattern(op, false);
        let message = self.with(TAGGED, |queues| queues.unexpected[TAGGED].find(pattern));
        let Some(message) = message else {
            self.add(TAGGED, pattern, Recv::new(RecvBuf::none(), op.context, op.flags));
            return None;
        };
        Some((message, self.buffered_envelope(TAGGED, message)?))
    }

    /// Handles FI_CLAIM or FI_DISCARD with the context of a reported message. Returns `None` if
    /// there is no such message.
    fn settle_notified(&mut self, op: &RecvOp, queue: usize) -> Option<PostOutcome> {
        let (message, context) = self.buffering.as_mut()?.take(op.context, queue)?;
        let discard = op.flags & FI_DISCARD != 0;
        let recv = (!discard).then(|| Recv::new(op.buf.clone(), context, op.flags));
        self.look(queue, |queues| {
            let matched = queues.match_message(queue, message, recv);
            let buffered = queues.unexpected[queue].get(message).filter(|_| discard);
            // A discarded message is counted like a claimed one; the announcement was its
            // completion entry.
            let seen = buffered.map(|buffered| PeekedMessage::of(buffered, op.context, 0, true));
            Some(PostOutcome { seen, matched })
        })
    }

    /// Returns the match criteria of a receive. An internal receive is always restricted to its
    /// source, because a message's own statement about its sender is not trusted.
    #[inline(always)]
    fn pattern(&self, op: &RecvOp, own: bool) -> Pattern {
        let chooses = self.directed || own;
        let src = (chooses && op.src != FI_ADDR_UNSPEC).then_some(op.src);
        Pattern { src, tag: op.tag, ignore: op.ignore }
    }

    /// The short way of fi_recv and fi_trecv, for the commonest case: the receive asks for nothing
    /// special, and no message waits. In any other case the receive comes back.
    #[inline(always)]
    pub fn post_fast(&mut self, op: RecvOp, tagged: bool) -> Option<RecvOp> {
        if op.flags & SPECIAL != 0 || self.ended {
            return Some(op);
        }
        let pattern = self.pattern(&op, false);
        match &mut self.queues {
            QueueOwnership::Own(queues) => queues.push_first(pattern, op, tagged),
            QueueOwnership::Shared(queues, _) if B::ONE_LOCK => {
                queues.lock_serialized().push_first(pattern, op, tagged)
            }
            QueueOwnership::Shared(..) => Some(op),
        }
    }

    /// Fast path of [`post_fast`](Self::post_fast) without calls and panics: for the endpoint's
    /// own queues with space. Returns false in any other case, without any effect.
    #[inline(always)]
    pub fn try_post_fast(&mut self, op: RecvOp, tagged: bool) -> bool {
        match &self.queues {
            QueueOwnership::Own(queues) if !queues.posted[usize::from(tagged)].is_full() => {
                self.post_fast(op, tagged).is_none()
            }
            _ => false,
        }
    }

    /// fi_recv and fi_trecv in all their forms but tags alone ([`post_tag`](Self::post_tag)).
    /// For FI_PEEK the caller makes progress first: the message asked for may be on its way.
    pub fn post(&mut self, op: RecvOp, tagged: bool) -> Result<PostOutcome> {
        if op.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
            return self.special(op, tagged);
        }
        let collective = op.flags & INTERNAL_OP != 0 && tagged && self.is_internal_tag(op.tag);
        let queue = usize::from(tagged) + usize::from(collective);
        let pattern = self.pattern(&op, collective);
        if op.flags & FI_MULTI_RECV != 0 && !op.buf.is_contiguous() {
            // A multi-receive buffer must be contiguous: messages get its parts front to back.
            return Err(Error::INVAL);
        }
        let recv = Recv::new(op.buf, op.context, op.flags);
        if op.flags & FI_MULTI_RECV != 0 {
            // A multi-receive buffer may take many waiting messages. It is the oldest matching
            // receive for all of them: a message that an older receive matches is not waiting.
            self.with(queue, |queues| queues.posted[queue].push(pattern, recv));
            return Ok(PostOutcome { matched: self.fill(queue, pattern), seen: None });
        }
        let message = self.with(queue, |queues| queues.unexpected[queue].find(pattern));
        let matched = match message {
            Some(message) => {
                self.with(queue, |queues| queues.match_message(queue, message, Some(recv)))
            }
            None => {
                self.add(queue, pattern, recv);
                None
            }
        };
        Ok(PostOutcome { matched, seen: None })
    }

    /// Posts an unmatched receive. If no message can arrive any more it is cancelled: posting stays
    /// possible, because the application may not have read of the end yet.
    fn add(&mut self, queue: usize, pattern: Pattern, recv: Recv) {
        if self.ended {
            self.cancelled(queue, &recv);
        } else {
            self.with(queue, |queues| queues.posted[queue].push(pattern, recv));
        }
    }

    /// Passes the next matching buffered message to a multi-receive buffer just posted. It does so
    /// even without space in the completion queue, because no later call would do it, and the
    /// buffered messages must not be overtaken. Their number is limited.
    pub fn fill(&mut self, queue: usize, pattern: Pattern) -> Option<MatchedMessage> {
        let matched = self.with(queue, |queues| {
            if queues.posted[queue].is_empty() {
                return None;
            }
            let number = queues.unexpected[queue].find(pattern)?;
            let buffered = queues.unexpected[queue].get(number)?;
            let (envelope, source) = (buffered.envelope, buffered.source);
            let recv = queues.take_posted(queue, source, &envelope)?;
            let matched = queues.match_message(queue, number, Some(recv))?;
            Some(MatchedMessage { fills: Some(pattern), ..matched })
        });
        if matched.is_none() && self.ended {
            // The rest of the buffer gets no message any more.
            self.cancel_posted();
        }
        matched
    }

    /// FI_PEEK, FI_CLAIM and FI_DISCARD of tagged receives; with buffered receives FI_CLAIM and
    /// FI_DISCARD of untagged ones, too.
    fn special(&mut self, op: RecvOp, tagged: bool) -> Result<PostOutcome> {
        let (peeks, claims) = (op.flags & FI_PEEK != 0, op.flags & FI_CLAIM != 0);
        if !peeks {
            if let Some(settled) = self.settle_notified(&op, usize::from(tagged)) {
                return Ok(settled);
            }
            if !claims {
                // FI_DISCARD alone names only what was reported.
                let buffers = self.buffering.is_some();
                return Err(if buffers { Error::INVAL } else { Error::BADFLAGS });
            }
            if !tagged {
                return Err(Error::INVAL);
            }
            return self.with(TAGGED, |queues| queues.settle(op));
        }
        if claims && op.flags & FI_DISCARD != 0 {
            return Err(Error::BADFLAGS);
        }
        let pattern = self.pattern(&op, false);
        let found = self.with(TAGGED, |queues| queues.peek(&op, pattern))?;
        if found.seen.is_none() {
            self.report_no_message(&op);
        }
        Ok(found)
    }

    /// Reports a message of this endpoint peeked at, claimed or discarded.
    pub fn report_seen(&self, seen: &PeekedMessage) {
        let entry = self.entry(&seen.envelope, seen.context, seen.buf, 0);
        let wanted = self.completions.wants(seen.flags);
        if seen.counts {
            self.completions.done(entry, wanted);
        } else {
            self.completions.looked_at(entry, wanted);
        }
    }

    /// Reports a peek without a message: an error entry with -FI_ENOMSG.
    fn report_no_message(&self, op: &RecvOp) {
        let of = Completion { tag: op.tag, ..Completion::of(op.context, FI_RECV | FI_TAGGED, 0) };
        self.completions.found_none(CompletionError::new(of, Error::NOMSG));
    }

    /// fi_cancel: takes the receive with this context back.
    pub fn cancel(&mut self, context: Context, internal: bool) {
        let is =
            |recv: &Recv| recv.context == context && (recv.flags & INTERNAL_OP != 0) == internal;
        for queue in 0..QUEUES {
            if let Some(recv) = self.with(queue, |queues| queues.posted[queue].take_if(is)) {
                self.cancelled(queue, &recv);
                return;
            }
        }
    }

    /// Cancels all posted receives, unless they are those of a shared receive context.
    #[inline(never)]
    fn cancel_posted(&mut self) {
        if self.is_srx_user() {
            return;
        }
        for queue in 0..QUEUES {
            for recv in self.with(queue, |queues| queues.posted[queue].drain()) {
                self.cancelled(queue, &recv);
            }
        }
    }

    /// Cancels all posted receives, at the close of the endpoint or the final end of its
    /// connection. Receives of a shared receive context stay until it is closed. Returns the
    /// messages to be discarded.
    #[must_use]
    pub fn cancel_all(&mut self) -> Vec<MatchedMessage> {
        self.cancel_posted();
        if self.buffering.is_some() { self.cancel_pending() } else { Vec::new() }
    }

    /// Cancels incomplete buffered messages with a matched tag: they still count as posted
    /// receives.
    #[inline(never)]
    fn cancel_pending(&mut self) -> Vec<MatchedMessage> {
        let Some(buffering) = &mut self.buffering else { return Vec::new() };
        let mut discarded = Vec::new();
        for (queue, message, posted) in buffering.take_all_pending() {
            self.cancelled(queue, &Recv::new(RecvBuf::none(), posted, 0));
            discarded.extend(self.look(queue, |queues| queues.match_message(queue, message, None)));
        }
        discarded
    }

    /// Forgets messages claimed by a peek, or reported by buffered receives, and returns them to be
    /// discarded.
    #[must_use]
    pub fn unclaim_all(&mut self) -> Vec<MatchedMessage> {
        let mut discarded = self.with(TAGGED, |queues| {
            let claimed = std::mem::take(&mut queues.claimed).into_values();
            claimed
                .filter_map(|message| queues.match_message(TAGGED, message, None))
                .collect::<Vec<_>>()
        });
        if let Some(buffering) = &mut self.buffering {
            for (queue, id) in buffering.take_all_notified() {
                discarded.extend(self.look(queue, |queues| queues.match_message(queue, id, None)));
            }
        }
        discarded
    }

    fn cancelled(&mut self, queue: usize, recv: &Recv) {
        let gives_back = self.with(0, |queues| queues.multi.cancelled(recv));
        if recv.flags & FI_MULTI_RECV != 0 && gives_back == 0 {
            // The buffer is given back by its last part, which is being filled.
            self.completions.part();
        }
        let extra = gives_back | (recv.flags & INTERNAL_OP);
        let flags = FI_RECV | if queue == 0 { FI_MSG } else { FI_TAGGED } | extra;
        let of = Completion { buf: recv.buf.address(), ..Completion::of(recv.context, flags, 0) };
        self.completions.failed(CompletionError::new(of, Error::CANCELED));
    }
}

impl PeekedMessage {
    fn of<B>(buffered: &UnexpectedMessage<B>, context: Context, flags: u64, counts: bool) -> Self {
        Self { owner: buffered.owner, envelope: buffered.envelope, context, buf: 0, flags, counts }
    }
}

impl<B: UnexpectedBody> MatchQueues<B> {
    /// Posts a receive, or returns it if messages wait.
    #[inline(always)]
    fn push_first(&mut self, pattern: Pattern, op: RecvOp, tagged: bool) -> Option<RecvOp> {
        let queue = usize::from(tagged);
        if !self.unexpected[queue].is_empty() {
            return Some(op);
        }
        self.posted[queue].push(pattern, Recv::new(op.buf, op.context, op.flags));
        None
    }

    /// Passes a message to the oldest receive, if it is an ordinary one, matches, and is large
    /// enough, and the completion queue has space. With `QUICK` nothing requiring a call is done.
    #[inline(always)]
    fn fill_first<const QUICK: bool>(
        &mut self,
        completions: &RxCompletions,
        from: &PeerQuota,
        tagged: bool,
        tag: u64,
        data: Option<u64>,
        bytes: impl MessageBytes,
    ) -> bool {
        let len = bytes.count();
        let posted = &mut self.posted[usize::from(tagged)];
        let Some(first) = posted.first_to_take(from.name, tag) else { return false };
        let Some(recv) = first.value() else { return false };
        let (context, flags) = (recv.context, recv.flags);
        let Some(dst) = recv.buf.in_one_piece() else { return false };
        if flags & (FI_MULTI_RECV | INTERNAL_OP | ONLY_TAG) != 0 || dst.len() < len {
            return false;
        }
        let next = if QUICK { completions.next_entry() } else { None };
        if if QUICK { next.is_none() } else { !completions.has_space() } {
            return false;
        }
        bytes.copy_into_buf::<QUICK>(dst);
        let buf = dst.address();
        first.forget();
        let kind = FI_RECV
            | if tagged { FI_TAGGED } else { FI_MSG }
            | if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let data = data.unwrap_or(0);
        let entry = Completion { context, flags: kind, len, buf, data, tag, src: from.id };
        match next {
            Some(next) => completions.succeeded_at(next, entry, completions.wants(flags)),
            None => completions.succeeded(entry, completions.wants(flags)),
        }
        true
    }

    #[inline]
    fn take_posted(
        &mut self,
        queue: usize,
        source: fi_addr_t,
        envelope: &Envelope,
    ) -> Option<Recv> {
        let posted = &mut self.posted[queue];
        let taken = posted.take(source, envelope.tag)?;
        Some(self.multi.part_of(posted, taken, envelope.len, self.min_multi_recv))
    }

    fn match_message(
        &self,
        queue: usize,
        message: u32,
        recv: Option<Recv>,
    ) -> Option<MatchedMessage> {
        let owner = self.unexpected[queue].get(message)?.owner;
        Some(MatchedMessage { queue, message, recv, owner, fills: None })
    }

    /// FI_PEEK, alone or with FI_CLAIM or FI_DISCARD.
    fn peek(&mut self, op: &RecvOp, pattern: Pattern) -> Result<PostOutcome> {
        let unexpected = &mut self.unexpected[TAGGED];
        let Some(number) = unexpected.find(pattern) else { return Ok(PostOutcome::default()) };
        let Some(message) = unexpected.get(number) else { return Ok(PostOutcome::default()) };
        // As much of the message as the caller has room for, if it is here; the entry
        // names the buffer only when something was put there.
        let copied = message.body.bytes().map_or(0, |bytes| op.buf.copy_from(0, bytes));
        let buf = if copied > 0 { op.buf.address() } else { 0 };
        let seen =
            Some(PeekedMessage { buf, ..PeekedMessage::of(message, op.context, op.flags, false) });
        if op.flags & FI_CLAIM != 0 {
            if self.claimed.contains_key(&(op.context.0 as usize)) {
                return Err(Error::INVAL);
            }
            unexpected.claim(number);
            self.claimed.insert(op.context.0 as usize, number);
        }
        let discards = op.flags & FI_DISCARD != 0;
        let matched = discards.then(|| self.match_message(TAGGED, number, None)).flatten();
        Ok(PostOutcome { seen, matched })
    }

    /// Handles FI_CLAIM of a message claimed by a peek, to receive or to drop it.
    fn settle(&mut self, op: RecvOp) -> Result<PostOutcome> {
        let number = self.claimed.remove(&(op.context.0 as usize)).ok_or(Error::INVAL)?;
        if op.flags & FI_DISCARD == 0 {
            // The completion is that of any receive: only buffered messages are marked with
            // FI_CLAIM.
            let recv = Recv::new(op.buf, op.context, op.flags & !FI_CLAIM);
            return Ok(PostOutcome {
                matched: self.match_message(TAGGED, number, Some(recv)),
                seen: None,
            });
        }
        let buffered = self.unexpected[TAGGED].get(number);
        let seen = buffered.map(|message| PeekedMessage::of(message, op.context, op.flags, true));
        Ok(PostOutcome { matched: self.match_message(TAGGED, number, None), seen })
    }
}

#[cfg(test)]
mod tests;
