//! User settings of the engine.
use crate::secret::PskConfig;
use core::time::Duration;
use ofi_provider::av::AvSharing;
use ofi_provider::conn_arbiter::CALLS_AT_A_TIME;
use ofi_provider::log;
use ofi_provider::param;
use ofi_provider::provider::Provider;
use ofi_provider::sys::has_more_rights;
use std::net::IpAddr;

/// Smallest FI_*_PREFETCH_RBUF_SIZE, in bytes: less would not hold a header and a copied message.
const MIN_PREFETCH: usize = 2048;

/// Smallest host memory for copies, in bytes: four of the smallest buffers.
const MIN_BOUNCE: usize = 16 << 10;

/// Smallest FI_*_MAX_UNEXPECTED, in bytes: less would not hold some messages of each of a few
/// peers.
const MIN_UNEXPECTED: usize = 1 << 20;

/// Smallest FI_*_LOCAL_MIN, in bytes: less is not worth a system call.
const MIN_READ: usize = 4 << 10;

/// Fewest and most bytes of FI_*_LOCAL_RING.
const RINGS: (usize, usize) = (4 << 10, 16 << 20);

/// The usual FI_OPT_MIN_MULTI_RECV, in bytes.
const MIN_MULTI_RECV: usize = 16384;

/// Default maximum of bytes in unexpected messages of an endpoint, or of endpoints sharing
/// receives.
pub const MAX_UNEXPECTED: usize = 256 << 20;

/// Maximum pause between two connection attempts to an absent peer ([`StreamSettings::hold_off`]).
pub const HOLD_OFF_STEP: Duration = Duration::from_millis(50);

/// User settings of the engine.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// Maximum number of unexpected messages buffered per peer, if the user sets a limit.
    pub max_saved: Option<usize>,
    /// Maximum bytes in unexpected messages of an endpoint.
    pub max_unexpected: usize,
    /// Maximum size of eager tagged messages. Larger ones wait at their sender until a matching
    /// receive is posted.
    pub max_saved_size: usize,
    /// Maximum bytes of batched small messages; 0: no batching.
    pub batch: usize,
    /// Bytes to read ahead, beyond the data known to be available.
    pub prefetch: usize,
    /// Messages from this size on are sent without being copied.
    pub zerocopy_size: usize,
    /// Logs every header sent or received, at FI_LOG_TRACE.
    pub trace: bool,
    /// Reliable datagram endpoints accept only peers in their address vector.
    pub only_known: bool,
    /// Name of the parameter setting `only_known`, for the log.
    pub only_known_by: String,
    /// The provider starts threads: for automatic progress, and for the flush timer.
    pub threads: bool,
    /// This host cannot accept connections, and establishes all of them itself
    /// (FI_OPT_FIREWALL_ADDR).
    pub behind_firewall: bool,
    /// Shared memory between peers of one host ([`ShmUpgrade`](crate::shm_upgrade::ShmUpgrade)).
    pub local: LocalSettings,
    /// Links with several sockets.
    pub rails: RailSettings,
    /// Support for address vectors shared between processes (FI_SHARED_AV). The provider repeats it
    /// in its supported attributes ([`OfferLimits::sharing`](crate::attrs::OfferLimits::sharing)).
    pub sharing: AvSharing,
    /// Pre-shared key, used by links to reject processes outside the job.
    pub secret: PskConfig,
    /// Number of connection attempts to a peer never seen before, at most every [`HOLD_OFF_STEP`],
    /// until the transfers waiting for it fail; 0: one attempt.
    pub hold_off: u32,
    /// Time limit for a peer's response to a connection request, until the transfers waiting for
    /// the connection fail. None: no limit, because a computing process makes no progress.
    pub connect_timeout: Option<Duration>,
    /// Maximum bytes of messages sent behind a connection request before its response; 0: none.
    pub early_data: usize,
    /// Maximum concurrent connection attempts of an engine.
    pub calls: usize,
    /// Descriptors used by connections before idle connections are closed; none: three quarters of
    /// the process's limit.
    pub max_connections: Option<usize>,
    /// The connections of each engine count separately for `max_connections`, not those of all engines
    /// of the process together.
    pub separate_limit: bool,
    /// Maximum bytes of host memory of an endpoint for copies of memory of devices.
    pub hmem_bounce: usize,
    /// Devices of peers on this host may read each other's memory (no `FI_HMEM_DISABLE_P2P`).
    pub hmem_shares: bool,
    /// Timeout of a copy of memory of a device.
    pub hmem_timeout: Duration,
    /// Default of FI_OPT_MIN_MULTI_RECV: a multi-receive buffer is returned when less than this is
    /// left of it, in bytes.
    pub min_multi_recv: usize,
}

/// Settings of links with several sockets ([`MultiRail`](crate::multi_rail::MultiRail)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RailSettings {
    /// Number of sockets of a link.
    pub streams: usize,
    /// Local addresses used in turn; without any, the address of the first socket.
    pub addrs: Vec<IpAddr>,
    /// Traffic in bytes within `window` nanoseconds before further sockets are connected.
    pub threshold: u64,
    /// See `threshold`.
    pub window: u64,
    /// Payload of a frame in bytes, if more is to be sent; smaller sends use the first socket.
    pub segment: usize,
    /// Payload in bytes of a frame left in the application's buffer, on a link with a single
    /// socket. The peer has to permit more than [`SEGMENT_MAX`](crate::multi_rail::frame::SEGMENT_MAX).
    pub long_segment: usize,
    /// Time in seconds without a socket until a link is given up; 0: at once.
    pub resume: u32,
    /// Maximum bytes of a link copied for being sent again; 64 times as much for all links.
    pub resume_memory: usize,
    /// Minimum size in bytes of messages not copied for being sent again: they stay in the
    /// application's buffer.
    pub retain: usize,
}

impl Default for RailSettings {
    fn default() -> Self {
        let (threshold, window) = (1 << 20, 100_000_000);
        Self {
            streams: 1,
            addrs: Vec::new(),
            threshold,
            window,
            segment: 64 << 10,
            long_segment: 1 << 20,
            resume: 0,
            resume_memory: 4 << 20,
            retain: 32 << 10,
        }
    }
}

impl RailSettings {
    /// Maximum number of sockets of a link.
    pub const MAX: usize = 16;

    /// Returns the number of sockets of a link: one for each address at least.
    pub fn count(&self) -> usize {
        self.streams.max(self.addrs.len()).min(Self::MAX)
    }
}

/// Settings of shared memory between peers of one host.
#[derive(Clone, Copy, Debug)]
pub struct LocalSettings {
    /// Enables shared memory.
    pub enabled: bool,
    /// Bytes of a shm_channel, a power of two; each connection has one in each direction.
    pub ring: usize,
    /// Maximum bytes of rings created by this process.
    pub memory: usize,
    /// Peers may read large messages directly from each other's memory, if the system permits it.
    pub reads: bool,
    /// Minimum size of messages read directly.
    pub min: usize,
    /// Traffic before the upgrade, in bytes or calls, sent and received: peers with little traffic
    /// use no memory.
    pub talk: (u64, u32),
}

impl Default for LocalSettings {
    /// Peers do not talk through memory.
    fn default() -> Self {
        Self {
            enabled: false,
            ring: 64 << 10,
            memory: 256 << 20,
            reads: true,
            min: 48 << 10,
            talk: (4096, 32),
        }
    }
}

impl LocalSettings {
    /// Reads the user's choice from parameters of this provider, FI_TCP_LOCAL and so on. The call
    /// declares them to the core. Peers of a program with more rights than its caller do not use
    /// shared memory.
    pub fn of_params(prov: &'static Provider) -> Self {
        let usual = Self::default();
        let wanted = param::boolean(
            prov,
            c"local",
            c"peers of this host and user talk through shared memory; default yes",
        );
        let ring = param::size(
            prov,
            c"local_ring",
            usual.ring,
            c"bytes of memory for what is under way to a peer of this host, 4096 to \
              16777216, rounded up to a power of two (65536)",
        );
        let memory = param::size(
            prov,
            c"local_memory",
            usual.memory,
            c"most bytes that this process makes for peers of this host; rings get smaller with \
              their number, and when nothing is left peers are not talked to through memory \
              (268435456)",
        );
        let ring = ring.clamp(RINGS.0, RINGS.1).next_power_of_two();
        let reads = param::boolean(
            prov,
            c"local_cma",
            c"peers of this host read large messages where they are, where the system lets \
              them (process_vm_readv); default yes",
        );
        let min = param::size(
            prov,
            c"local_min",
            usual.min,
            c"messages from this size on are read where they are, 4096 at least (49152)",
        );
        Self {
            enabled: wanted.unwrap_or(true) && !has_more_rights(),
            ring,
            memory,
            reads: reads.unwrap_or(true),
            min: min.max(MIN_READ),
            ..usual
        }
    }

    /// Logs the transport to peers of this host, also for `fi_info --explain`. `sockets`: the
    /// reason for using sockets although the parameters enable shared memory.
    pub fn explain(&self, prov: &'static Provider, sockets: Option<&str>) {
        if !log::enabled(prov, log::level::INFO, log::subsys::FABRIC) {
            return;
        }
        let sockets = if self.enabled {
            sockets.map(str::to_owned)
        } else if has_more_rights() {
            Some("this program has more rights than its caller".into())
        } else {
            Some(format!("{} is off", param::variable(prov, c"local")))
        };
        if let Some(why) = sockets {
            log!(prov, INFO, FABRIC, "peers of this host are talked to through sockets: {why}");
            return;
        }
        let reads = match self.reads {
            true => {
                format!(", messages of {} bytes or more from where they are{}", self.min, yama())
            }
            false => String::new(),
        };
        log!(
            prov,
            INFO,
            FABRIC,
            "peers of this host and user are talked to through memory, in rings of {} bytes{reads}",
            self.ring
        );
    }
}

/// Returns the system's policy on reading another process's memory.
fn yama() -> &'static str {
    match std::fs::read("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        Ok([b'0', ..]) | Err(_) => "",
        Ok(_) => ", if the system lets them (kernel.yama.ptrace_scope)",
    }
}

/// Reads the limit of descriptors used by connections; none if the user sets no valid one.
fn max_connections(prov: &'static Provider) -> Option<usize> {
    let help = c"descriptors used by connections before those of reliable datagram endpoints that \
                 were idle longest are closed, to be opened again by the next transfer; \
                 default: three quarters of RLIMIT_NOFILE";
    let name = c"max_connections";
    match param::size(prov, name, usize::MAX, help) {
        0 => {
            let name = param::variable(prov, name);
            log!(prov, WARN, FABRIC, "{name} is no number above 0: the default is used");
            None
        }
        usize::MAX => None,
        most => Some(most),
    }
}

impl StreamSettings {
    /// Reads the user's choice from parameters of this provider, FI_TCP_MAX_UNEXPECTED and so on.
    /// The call declares them to the core.
    pub fn of_params(prov: &'static Provider) -> Self {
        let count = |name, default, help| {
            param::int(prov, name, help).and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
        };
        let usual = Self::default();
        Self {
            max_saved: param::int(
                prov,
                c"max_saved",
                c"unexpected messages kept per peer before reading from it stops; \
                  by default the memory they take is bounded instead",
            )
            .and_then(|max| usize::try_from(max).ok()),
            max_unexpected: param::size(
                prov,
                c"max_unexpected",
                usual.max_unexpected,
                c"bytes of memory for messages that nobody has a receive for, of an endpoint or \
                  of those that share receives; peers that are in no address vector get at \
                  most a quarter of it in sum, and each a 256th (268435456)",
            )
            .max(MIN_UNEXPECTED),
            max_saved_size: param::size(
                prov,
                c"max_saved_size",
                usize::MAX,
                c"tagged messages larger than this, and than max_rx_size, wait at the sender \
                  until a receive is posted for them; default: none does",
            )
            .max(param::size(
                prov,
                c"max_rx_size",
                16384,
                c"messages up to this size never wait at the sender (16384)",
            )),
            batch: count(
                c"staging_sbuf_size",
                usual.batch,
                c"bytes of small messages that are collected to leave with one call; \
                  0: each leaves by itself (9000)",
            ),
            prefetch: count(
                c"prefetch_rbuf_size",
                usual.prefetch,
                c"bytes read ahead of what is known to be there (65536)",
            )
            .clamp(MIN_PREFETCH, 16 << 20),
            zerocopy_size: param::size(
                prov,
                c"zerocopy_size",
                usize::MAX,
                c"messages from this size on are sent without being copied, where the system \
                  can (MSG_ZEROCOPY); default: none",
            ),
            trace: param::boolean(
                prov,
                c"trace_msg",
                c"with FI_LOG_LEVEL=trace, tell of every message that leaves or comes",
            )
            .unwrap_or(false),
            connect_timeout: param::int(
                prov,
                c"connect_timeout",
                c"seconds after which a connection fails whose peer was reached and does not answer; \
                  default: no limit, as peers may compute",
            )
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
            max_connections: max_connections(prov),
            hmem_shares: param::core_boolean(c"hmem_disable_p2p") != Some(true),
            hmem_bounce: param::size(
                prov,
                c"hmem_bounce",
                usual.hmem_bounce,
                c"bytes of host memory of an endpoint for copies of memory of devices (8388608)",
            )
            .max(MIN_BOUNCE),
            hmem_timeout: param::int(
                prov,
                c"hmem_timeout",
                c"milliseconds after which a copy of memory of a device fails (30000)",
            )
            .and_then(|millis| u64::try_from(millis).ok())
            .filter(|millis| *millis > 0)
            .map_or(usual.hmem_timeout, Duration::from_millis),
            threads: !param::boolean(
                prov,
                c"disable_auto_progress",
                c"never start a progress thread; the application drives progress",
            )
            .unwrap_or(false),
            ..usual
        }
    }
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            max_saved: None,
            max_unexpected: MAX_UNEXPECTED,
            max_saved_size: usize::MAX,
            batch: 9000,
            prefetch: 64 << 10,
            zerocopy_size: usize::MAX,
            trace: false,
            only_known: false,
            only_known_by: String::new(),
            threads: true,
            behind_firewall: false,
            local: LocalSettings::default(),
            rails: RailSettings::default(),
            sharing: AvSharing::Never,
            secret: PskConfig::default(),
            hold_off: 0,
            connect_timeout: None,
            early_data: 0,
            calls: CALLS_AT_A_TIME,
            max_connections: None,
            separate_limit: false,
            min_multi_recv: MIN_MULTI_RECV,
            hmem_bounce: 8 << 20,
            hmem_shares: true,
            hmem_timeout: Duration::from_secs(30),
        }
    }
}
