//! State guarded by the engine's lock.
use super::batch::Burst;
use super::conn::StreamConn;
use super::ep::StreamEngineEp;
use super::transfer::CopiedPacket;
use super::waiters::Waiters;
use crate::accept_queue::AcceptQueue;
use crate::conn_quota::SimDoorbell;
#[cfg(doc)]
use crate::transport::ByteLink;
use crate::transport::Transport;
use ofi_provider::backoff::PollBackoff;
use ofi_provider::conn_arbiter::ConnectLimiter;
use ofi_provider::mr::MrTable;
use ofi_provider::peer_srx::SrxStartQueue;
use ofi_provider::slab::Slab;
use ofi_provider::stats::EngineStats;
use ofi_provider::sys::PollEvent;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Upper 32 bits of a poller's token, giving the meaning of the lower 32 bits: number of a
/// connection, number of an endpoint with a listener, the engine's timer
/// ([`TIMER_TOKEN`](crate::transport::TIMER_TOKEN)), or number of a pending connection ([`AcceptQueue`]).
pub(super) const TOKEN_CONN: u64 = 0;
pub(super) const TOKEN_LISTENER: u64 = 1 << 32;
pub(super) const TOKEN_CALLER: u64 = 3 << 32;

/// State guarded by the engine's lock.
pub struct StreamState<N: Transport> {
    /// Transport of the engine.
    pub(super) net: N,
    pub(super) conns: Slab<StreamConn<N>>,
    pub(super) eps: Slab<StreamEngineEp>,
    /// Listeners of the endpoints, by endpoint number.
    pub(super) listeners: HashMap<u32, (N::Listener, SimDoorbell)>,
    /// Sockets bound to addresses assigned to endpoints (fi_setname), until the endpoints listen.
    pub(super) bound: HashMap<u32, N::Listener>,
    /// Recently active connections; a single one is polled in every progress iteration.
    pub(super) active: Vec<u32>,
    /// Recently active connections receiving through shared memory ([`ByteLink::rx_over_shm`]),
    /// polled in every progress iteration.
    pub(super) local: Vec<u32>,
    /// Threads prepared to sleep on the poller's descriptor, without a progress iteration since;
    /// empty without connections over shared memory.
    pub(super) waiters: Waiters,
    /// Progress iterations with polls of shared memory since the last sleep of a thread, up to the
    /// number after which peers may omit doorbells.
    pub(super) poll_streak: u32,
    /// Staging buffer for reads from links, of
    /// [`prefetch`](crate::settings::StreamSettings::prefetch) bytes; empty while in use by
    /// [`StreamState::expose_staging`].
    pub(super) staging: Box<[u8]>,
    /// Buffer for a header and a small message sent together at once.
    pub(super) packet: Box<CopiedPacket>,
    /// Connections blocked on space in a completion queue, or on peers not reading their responses.
    pub(super) cq_blocked: Vec<u32>,
    /// Connections blocked by a message without buffer space, with their serial numbers.
    pub(super) rx_blocked: Vec<(u32, u64)>,
    /// Connections recorded as unread, with their serial numbers.
    pub(super) unread: Vec<(u32, u64)>,
    /// Unread connections to be polled by the engine's timer: with operations in progress and an
    /// end possibly not reported by the poller
    /// ([`ByteLink::hides_end`](crate::transport::ByteLink::hides_end)), or with operations awaiting the
    /// peer's responses.
    pub(super) looked_for: Vec<(u32, u64)>,
    /// Connections with batched messages held back.
    pub(super) held: Vec<u32>,
    /// Flush timer: thread sending batched messages if the application makes no call. None if the
    /// application serializes its calls or permits no thread of the library; then messages are held
    /// back only with FI_MORE.
    pub(super) batch_flusher: Option<N::Flusher>,
    /// Progress iterations since the creation of the engine.
    pub(super) iterations: u64,
    /// Value of `iterations` when the flush timer last had to send held messages. If `iterations`
    /// is still the same, the application has not driven progress since, and a message held back
    /// now would wait for the flush timer again.
    pub(super) app_idle: u64,
    /// Batches sent from the application's thread, without the flush timer.
    pub(super) batches: u64,
    /// Progress iterations since any connection was active.
    pub(super) idle: u32,
    /// Polling pattern of the application while there is no progress ([`backoff`]).
    pub(super) looks: PollBackoff,
    /// Progress iterations since the last poll of the poller, and their maximum before the next
    /// poll (`poll_gap`, 1 to [`MAX_POLL_GAP`]).
    pub(super) since_poll: u32,
    pub(super) poll_gap: u32,
    pub(super) events: Vec<PollEvent>,
    /// Endpoints with a paused listener: it could not accept for lack of descriptors or memory, and
    /// is out of the poller until the timer expires.
    pub(super) accept_paused: Vec<u32>,
    /// Expiry time of the timer of `net`; `None` if it is not set. It expires when refused
    /// connections are to be tried again, silent pending connections to be ended, or accept-paused
    /// listeners to accept again.
    pub(super) wakes: Option<Instant>,
    /// Buffers for reads from many connections at once, one per read.
    pub(super) bufs: Vec<Box<[u8]>>,
    /// Progress iteration of the last message sent at once with calls for many connections, and its
    /// time (`left`).
    pub(super) left_in: u64,
    pub(super) left: Burst,
    /// Accepted connections with an incomplete request.
    pub(super) callers: AcceptQueue<N::Link>,
    /// Connections awaiting a response of their peer within a time limit
    /// ([`StreamSettings::connect_timeout`](crate::settings::StreamSettings::connect_timeout)),
    /// with their serial numbers and deadlines, earliest first.
    pub(super) awaited: VecDeque<(u32, u64, Instant)>,
    /// Local connection attempts to RDM peers in progress, and the queued ones: the number of an
    /// endpoint and of its peer. The peer may have been connected or removed since.
    pub(super) calls: ConnectLimiter,
    pub(super) line: VecDeque<(u32, u32)>,
    /// Connections of peers absent from all address vectors at their connection request, with
    /// serial numbers, oldest first.
    pub(super) unknown_conns: VecDeque<(u32, u64)>,
    /// Connections of unknown peers asked to disconnect, with their serial numbers and the deadline
    /// for receiving their remaining data, earliest first.
    pub(super) leaving: VecDeque<(u32, u64, Instant)>,
    /// Connection with its bytes being parsed, or `NONE`: its responses are sent when parsing is
    /// done.
    pub(super) hearing: u32,
    /// Bytes of memory in responses and acknowledgements not read by peers yet, on all connections.
    pub(super) backlog: usize,
    /// Buffered messages started by other providers, if endpoints use receives of such.
    pub(super) started: Option<Arc<SrxStartQueue>>,
    /// Registered memory regions of the domain, readable and writable by peers.
    pub(super) regions: Arc<MrTable>,
    /// Published statistics of the engine, and the time of the next publication (nanoseconds of
    /// [`PollBackoff::last`]).
    pub(super) stats: EngineStats,
    pub(super) show_at: u64,
    /// Progress iterations made by threads of the library.
    pub(super) visits: u64,
    /// The endpoints serve those of a utility provider.
    pub(super) serves: bool,
}
