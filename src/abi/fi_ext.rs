// `rdma/fi_ext.h`: Exporting and importing objects.

/// Start of efa's own values.
pub const FI_PROV_SPECIFIC_EFA: c_int = 0xefa0000;
/// Start of tcp's own values.
pub const FI_PROV_SPECIFIC_TCP: c_int = 0x7cb0000;
/// The line's provider is filtered out (`FI_LOG_PROV`).
pub const FI_LOG_PROV_FILTERED: u64 = 1 << 0;

unnamed_enum! {
    /// Endpoint options of efa.
    enum {
        FI_OPT_EFA_RNR_RETRY = -251265024,
        FI_OPT_EFA_EMULATED_READ = -251265023,
        FI_OPT_EFA_EMULATED_WRITE = -251265022,
        FI_OPT_EFA_EMULATED_ATOMICS = -251265021,
        FI_OPT_EFA_USE_DEVICE_RDMA = -251265020,
        FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES = -251265019,
        FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES = -251265018,
        FI_OPT_EFA_HOMOGENEOUS_PEERS = -251265017,
        FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV = -251265016,
    }
}

// Endpoint options of tcp, shm, and ofi_rxm over tcp, of this library alone.
/// Numbers of the endpoint's peers by kind of link, as a `fi_peer_links`; read-only.
pub const FI_OPT_PEER_LINKS: c_int = -130744576;

/// Numbers of peers connected to an endpoint (`FI_OPT_PEER_LINKS`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct fi_peer_links {
    /// Peers connected over a network, including ones of this host.
    pub network: usize,
    /// Peers of this host connected over shared memory.
    pub memory: usize,
}

// Result of `fi_open` for the name "stats" (fi_open(3)), of this library only.
/// Number of latency classes of transfers (`fi_stats_endpoint`).
pub const FI_STATS_LATENCIES: c_int = 24;
/// Flag of an endpoint serving a utility provider's endpoint; the latter has a separate entry.
pub const FI_STATS_SERVES: u64 = 1 << 0;
/// A thread waiting for the endpoint sleeps, or slept at the last check.
pub const FI_STATS_ASLEEP: u64 = 1 << 1;
/// A flag of a peer: its bytes come and go through memory of this host.
pub const FI_STATS_MEMORY: u64 = 1 << 0;
/// It has proven possession of the job's pre-shared key.
pub const FI_STATS_SECRET: u64 = 1 << 1;
/// Data sent to it is encrypted.
pub const FI_STATS_ENCRYPTED: u64 = 1 << 2;
/// It is not read, because a message of it has nowhere to go.
pub const FI_STATS_BLOCKED: u64 = 1 << 3;
/// A state of a peer: the connection is being made.
pub const FI_STATS_CONNECTING: c_int = 1;
/// The peer was called and has not answered.
pub const FI_STATS_CALLED: c_int = 2;
/// The peer called and has no answer yet.
pub const FI_STATS_CALLING: c_int = 3;
/// Messages flow.
pub const FI_STATS_CONNECTED: c_int = 4;
/// The peer refused, and is called again later.
pub const FI_STATS_REFUSED: c_int = 5;
/// The connection is lost, and is being resumed (FI_TCP_RESUME).
pub const FI_STATS_RESUMING: c_int = 6;

/// Endpoint of the process, as last published (fi_open(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct fi_stats_endpoint {
    /// The provider's name.
    pub provider: [c_char; 32],
    /// The endpoint's address, as a text.
    pub address: [c_char; 64],
    /// An `enum fi_ep_type`; 0 for a shared receive context.
    pub ep_type: u64,
    /// FI_STATS_SERVES, FI_STATS_ASLEEP.
    pub flags: u64,
    /// When this was written, in nanoseconds of CLOCK_MONOTONIC.
    pub written: u64,
    /// Progress iterations made by the endpoint's domain.
    pub iterations: u64,
    pub sent: u64,
    pub sent_bytes: u64,
    pub received: u64,
    pub received_bytes: u64,
    /// Posted receives, untagged and tagged.
    pub posted: [u64; 2],
    /// Unexpected messages, untagged and tagged.
    pub unexpected: [u64; 2],
    /// Bytes of memory of unexpected messages.
    pub unexpected_bytes: u64,
    /// Incomplete transfers, and their maximum number.
    pub in_flight: u64,
    pub tx_size: u64,
    /// Unread entries of the transmit completion queue, and its size.
    pub tx_queue: u64,
    pub tx_queue_size: u64,
    /// The same of the queue of receives.
    pub rx_queue: u64,
    pub rx_queue_size: u64,
    /// Lost connections.
    pub lost: u64,
    /// Number of transfers by latency: less than 2 to the power of the index microseconds and at
    /// least half of it, the last class without an upper limit. Only transfers not complete at the
    /// return of their call are counted.
    pub latency: [u64; FI_STATS_LATENCIES as usize],
    /// Number of published peers of the endpoint.
    pub peers: u64,
    /// Number of idle connections closed because of the limit of descriptors.
    pub closed_idle: u64,
}

/// Peer of an endpoint, as last published (fi_open(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct fi_stats_peer {
    /// The peer's address, as a text.
    pub address: [c_char; 64],
    /// Its address in the address vector, FI_ADDR_UNSPEC if it has none.
    pub fi_addr: u64,
    /// FI_STATS_CONNECTED or another state.
    pub state: u64,
    /// FI_STATS_MEMORY and others.
    pub flags: u64,
    /// Time of its change to this state, in nanoseconds of CLOCK_MONOTONIC.
    pub since: u64,
    /// When a message last came or went, as far as was seen.
    pub moved: u64,
    pub sent: u64,
    pub sent_bytes: u64,
    pub received: u64,
    pub received_bytes: u64,
    /// Transfers waiting to be sent.
    pub unsent: u64,
    /// Transfers sent and waiting for the peer's acknowledgement.
    pub unacknowledged: u64,
    /// Reads of its memory, and atomic operations, without an answer.
    pub unanswered: u64,
    /// Missing bytes of messages being received.
    pub incomplete: u64,
    /// Subflows of a connection over MPTCP, 0 for other connections.
    pub subflows: u64,
    /// Sockets of a connection with several (FI_TCP_STREAMS), 0 for other connections.
    pub sockets: u64,
    /// Number of times the connection was resumed after its loss (FI_TCP_RESUME).
    pub resumes: u64,
    /// Bytes sent again because of lost sockets.
    pub repeated_bytes: u64,
}

/// Calls of the object returned by `fi_open` for the name "stats" (fi_open(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_stats {
    pub size: usize,
    pub look: Option<unsafe extern "C" fn(*mut fid_stats, *mut usize) -> c_int>,
    pub endpoint:
        Option<unsafe extern "C" fn(*mut fid_stats, usize, *mut fi_stats_endpoint, usize) -> c_int>,
    pub peer: Option<
        unsafe extern "C" fn(*mut fid_stats, usize, usize, *mut fi_stats_peer, usize) -> c_int,
    >,
}

/// Published statistics of the process's endpoints (fi_open(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_stats {
    pub fid: fid,
    pub ops: *mut fi_ops_stats,
}

/// Argument of `FI_EXPORT_FID` (fi_provider(7)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_fid_export {
    pub fid: *mut *mut fid,
    pub flags: u64,
    pub context: *mut c_void,
}

/// Requests to a memory monitor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mem_monitor {
    pub size: usize,
    pub start: Option<unsafe extern "C" fn(*mut fid_mem_monitor) -> c_int>,
    pub stop: Option<unsafe extern "C" fn(*mut fid_mem_monitor)>,
    pub subscribe:
        Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize) -> c_int>,
    pub unsubscribe: Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize)>,
    pub valid: Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize) -> bool>,
}

/// Reports of a memory monitor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mem_notify {
    pub size: usize,
    pub notify: Option<unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize)>,
}

/// Memory monitor given to the library by a program.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mem_monitor {
    pub fid: fid,
    pub export_ops: *mut fi_ops_mem_monitor,
    pub import_ops: *mut fi_ops_mem_notify,
}

/// Destination of the library's log lines instead of standard error.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_log {
    pub size: usize,
    pub enabled: Option<
        unsafe extern "C" fn(
            *const fi_provider,
            c_enum<fi_log_level>,
            c_enum<fi_log_subsys>,
            u64,
        ) -> c_int,
    >,
    pub ready: Option<
        unsafe extern "C" fn(
            *const fi_provider,
            c_enum<fi_log_level>,
            c_enum<fi_log_subsys>,
            u64,
            *mut u64,
        ) -> c_int,
    >,
    pub log: Option<
        unsafe extern "C" fn(
            *const fi_provider,
            c_enum<fi_log_level>,
            c_enum<fi_log_subsys>,
            *const c_char,
            c_int,
            *const c_char,
        ),
    >,
}

/// Log given to the library by a program.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_logging {
    pub fid: fid,
    pub ops: *mut fi_ops_log,
}
