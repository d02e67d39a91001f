//! All that an engine keeps under its lock.
use super::batch::Burst;
use super::conn::StreamConn;
use super::ep::StreamEngineEp;
use super::sleepers::Sleepers;
use super::transfer::CopiedPacket;
use crate::callers::Callers;
use crate::guests::Door;
#[cfg(doc)]
use crate::net::ByteLink;
use crate::net::Net;
use ofi_provider::calls::CallPace;
use ofi_provider::courtesy::Looks;
use ofi_provider::facts::EngineFacts;
use ofi_provider::imports::StartedMessages;
use ofi_provider::mr::MrTable;
use ofi_provider::slab::Slab;
use ofi_provider::sys::PollEvent;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// The upper 32 bits of a poller's token: what the lower 32 bits number, a connection, the endpoint
/// whose listener it is, the engine's timer ([`TIMER_TOKEN`](crate::net::TIMER_TOKEN)), or a caller
/// ([`Callers`]).
pub(super) const TOKEN_CONN: u64 = 0;
pub(super) const TOKEN_LISTENER: u64 = 1 << 32;
pub(super) const TOKEN_CALLER: u64 = 3 << 32;

/// What the engine's lock guards.
pub struct StreamState<N: Net> {
    /// What the engine stands on.
    pub(super) net: N,
    pub(super) conns: Slab<StreamConn<N>>,
    pub(super) eps: Slab<StreamEngineEp>,
    /// Where peers call the endpoints, by the endpoints' numbers.
    pub(super) listeners: HashMap<u32, (N::Listener, Door)>,
    /// Sockets that have the addresses which endpoints were assigned (fi_setname), until the endpoints listen.
    pub(super) bound: HashMap<u32, N::Listener>,
    /// Connections that moved lately; one alone is looked at in every turn.
    pub(super) hot: Vec<u32>,
    /// Connections that hear through memory ([`ByteLink::hears_locally`]) and moved lately: they are
    /// looked at in every turn.
    pub(super) local: Vec<u32>,
    /// Threads that prepared to sleep on the poller's descriptor and have not made a turn since;
    /// empty without connections through memory.
    pub(super) sleepers: Sleepers,
    /// Turns that looked at connections through memory since a thread slept last, up to those after
    /// which their peers need give no signs.
    pub(super) awake: u32,
    /// The buffer that links are read into, of
    /// [`prefetch`](crate::settings::StreamSettings::prefetch) bytes; empty while it is lent
    /// ([`StreamState::lend_staging`]).
    pub(super) staging: Box<[u8]>,
    /// The buffer in which a header and a small message are put together that are sent at once.
    pub(super) packet: Box<CopiedPacket>,
    /// Connections that wait for room in a completion queue, or for their peers to take
    /// what waits for them.
    pub(super) starved: Vec<u32>,
    /// Connections that a message without room blocks, with their serial numbers.
    pub(super) crowded: Vec<(u32, u64)>,
    /// Connections that were not read when they were noted, with their serial numbers.
    pub(super) unread: Vec<(u32, u64)>,
    /// Connections that are not read, have something under way, and of whose end the poller may not tell
    /// ([`ByteLink::hides_end`](crate::net::ByteLink::hides_end)), or with operations that await the peer's answers. The
    /// engine's timer looks at them.
    pub(super) looked_for: Vec<(u32, u64)>,
    /// Connections with messages that are held back to leave together.
    pub(super) held: Vec<u32>,
    /// The thread that sends held messages if the application makes no call. None if the
    /// application serializes its calls or wants no thread of the library; then no message is
    /// held back without FI_MORE.
    pub(super) courier: Option<N::Visits>,
    /// Turns of progress since the engine was made.
    pub(super) turns: u64,
    /// The value of `turns` when the courier last had to send held messages. If `turns` is still
    /// the same, the application has not driven progress since, and a message held back now
    /// would wait for the courier again.
    pub(super) forsaken: u64,
    /// Batches that were sent from the application's thread, without the courier.
    pub(super) batches: u64,
    /// Turns since any connection moved.
    pub(super) idle: u32,
    /// How the application polls while nothing moves ([`courtesy`]).
    pub(super) looks: Looks,
    /// Turns since the poller was asked, and how many may pass before it is asked again
    /// (`poll_gap`, 1 to [`MAX_POLL_GAP`]).
    pub(super) since_poll: u32,
    pub(super) poll_gap: u32,
    pub(super) events: Vec<PollEvent>,
    /// Endpoints whose listener could not accept for want of descriptors or memory, and is out of
    /// the poller until the timer expires.
    pub(super) deaf: Vec<u32>,
    /// When the timer of `net` expires; none if it is not set. It expires when refused connections
    /// are to be tried again, silent callers to be ended, or deaf listeners to accept again.
    pub(super) wakes: Option<Instant>,
    /// Buffers for what is read from many connections at once, one for each read.
    pub(super) rooms: Vec<Box<[u8]>>,
    /// The turn in which a message last left at once where many are sent to with one call, and
    /// when that was (`left`).
    pub(super) left_in: u64,
    pub(super) left: Burst,
    /// Accepted connections whose request is not complete yet.
    pub(super) callers: Callers<N::Link>,
    /// Connections whose peers are to answer within a time
    /// ([`StreamSettings::connect_timeout`](crate::settings::StreamSettings::connect_timeout)), with their
    /// serial numbers and the ends of that, earliest first.
    pub(super) awaited: VecDeque<(u32, u64, Instant)>,
    /// Our calls of RDM peers that are under way, and those that wait for their turn: the number of
    /// an endpoint and of its peer, which may have been called or forgotten since.
    pub(super) calls: CallPace,
    pub(super) line: VecDeque<(u32, u32)>,
    /// Connections of peers that called and were in no address vector then, with the
    /// connections' serial numbers, oldest first.
    pub(super) guests: VecDeque<(u32, u64)>,
    /// Connections of strangers that were asked to go, with their serial numbers and the time
    /// until which what they still say is received, earliest first.
    pub(super) leaving: VecDeque<(u32, u64, Instant)>,
    /// The connection whose bytes are being parsed, or `NONE`: its answers are sent when that is
    /// done.
    pub(super) hearing: u32,
    /// Bytes of memory that answers and acknowledgements take which wait, on all connections,
    /// for peers to read them.
    pub(super) owed: usize,
    /// Kept messages that other providers started, if endpoints take receives from such.
    pub(super) started: Option<Arc<StartedMessages>>,
    /// The domain's registered memory regions, which peers may read and write.
    pub(super) regions: Arc<MrTable>,
    /// What is shown of the engine to others, and when it is shown again (nanoseconds of
    /// [`Looks::last`]).
    pub(super) facts: EngineFacts,
    pub(super) show_at: u64,
    /// Turns that threads of the library made.
    pub(super) visits: u64,
    /// The endpoints serve those of a utility provider.
    pub(super) serves: bool,
}
