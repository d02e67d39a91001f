//! What a provider lets its users choose of the engine.
use crate::secret::JobSecret;
use core::time::Duration;
use ofi_provider::av::AvSharing;
use ofi_provider::calls::CALLS_AT_A_TIME;
use ofi_provider::log;
use ofi_provider::param;
use ofi_provider::provider::Provider;
use ofi_provider::sys::has_more_rights;

/// Smallest FI_*_PREFETCH_RBUF_SIZE, in bytes: less would not hold a header and a copied message.
const MIN_PREFETCH: usize = 2048;

/// Smallest FI_*_MAX_UNEXPECTED, in bytes: less would not hold some messages of each of a few
/// peers.
const MIN_UNEXPECTED: usize = 1 << 20;

/// Smallest FI_*_LOCAL_MIN, in bytes: less is not worth a system call.
const MIN_READ: usize = 4 << 10;

/// Fewest and most bytes of FI_*_LOCAL_RING.
const RINGS: (usize, usize) = (4 << 10, 16 << 20);

/// The usual FI_OPT_MIN_MULTI_RECV, in bytes.
const MIN_MULTI_RECV: usize = 16384;

/// Most bytes that unexpected messages of an endpoint, or of those that share receives, take by
/// default.
pub const MAX_UNEXPECTED: usize = 256 << 20;

/// The longest time between two calls of a peer that is waited for
/// ([`StreamSettings::patience`]).
pub const PATIENCE_STEP: Duration = Duration::from_millis(50);

/// What a provider lets its users choose of the engine.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// Most unexpected messages kept per peer, if the user sets a bound.
    pub max_saved: Option<usize>,
    /// Most bytes that unexpected messages of an endpoint take.
    pub max_unexpected: usize,
    /// Tagged messages that are larger wait at their sender until a receive is
    /// posted for them.
    pub max_saved_size: usize,
    /// Bytes of small messages that are collected to leave together; 0: each leaves by itself.
    pub batch: usize,
    /// Bytes read ahead of what is known to be there.
    pub prefetch: usize,
    /// Messages from this size on are sent without being copied.
    pub zerocopy_size: usize,
    /// Whether every header that leaves or comes is logged, at FI_LOG_TRACE.
    pub trace: bool,
    /// Whether a reliable datagram endpoint listens only to peers in its address vector.
    pub only_known: bool,
    /// The name of the parameter by which users set `only_known`, for the log.
    pub only_known_by: String,
    /// Whether the provider starts threads of its own: for automatic progress, and to send what is
    /// held back.
    pub threads: bool,
    /// Whether peers cannot begin links to this host, which begins them itself
    /// (FI_OPT_FIREWALL_ADDR).
    pub firewalled: bool,
    /// How peers of one host talk through memory ([`WithLocal`](crate::local::WithLocal)).
    pub local: LocalSettings,
    /// Whether processes may share address vectors (FI_SHARED_AV). The provider says it of its offers, too
    /// ([`OfferLimits::sharing`](crate::offer::OfferLimits::sharing)).
    pub sharing: AvSharing,
    /// The secret by which links tell the job's processes from strangers.
    pub secret: JobSecret,
    /// How often a peer that was never there yet is called, at most every [`PATIENCE_STEP`], before
    /// what waits for it fails; 0: once.
    pub patience: u32,
    /// How long a peer may take to answer a connection request before what waits for the connection
    /// fails; none: as long as it likes, as a process that computes makes no progress.
    pub connect_timeout: Option<Duration>,
    /// How many peers an engine calls at a time.
    pub calls: usize,
    /// FI_OPT_MIN_MULTI_RECV of an endpoint that sets no other: a multi-receive buffer is given back
    /// when less than this is left of it, in bytes.
    pub min_multi_recv: usize,
}

/// How peers of one host talk through memory.
#[derive(Clone, Copy, Debug)]
pub struct LocalSettings {
    /// Whether they do.
    pub enabled: bool,
    /// Bytes of a ring, a power of two; each connection has one in each direction.
    pub ring: usize,
    /// Most bytes that this process makes for rings.
    pub memory: usize,
    /// Whether peers may read large messages out of each other's memory, where the system lets them.
    pub reads: bool,
    /// Messages from this size on are read that way.
    pub min: usize,
    /// So many bytes or calls, in both directions, are sent and received before peers meet: those
    /// that say little to each other take no memory.
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
    /// What the user chose by parameters of this provider, FI_TCP_LOCAL and so on, which are
    /// declared to the core by this call. Peers of a program that has more rights than its caller
    /// do not talk through memory.
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

    /// Says in the log, and so to `fi_info --explain`, how peers of this host are talked to.
    /// `sockets`: why through sockets, though the parameters are for memory.
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

/// What the system says of processes that read each other's memory.
fn yama() -> &'static str {
    match std::fs::read("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        Ok([b'0', ..]) | Err(_) => "",
        Ok(_) => ", if the system lets them (kernel.yama.ptrace_scope)",
    }
}

impl StreamSettings {
    /// What the user chose by parameters of this provider, FI_TCP_MAX_UNEXPECTED and so on, which
    /// are declared to the core by this call.
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
            firewalled: false,
            local: LocalSettings::default(),
            sharing: AvSharing::Never,
            secret: JobSecret::default(),
            patience: 0,
            connect_timeout: None,
            calls: CALLS_AT_A_TIME,
            min_multi_recv: MIN_MULTI_RECV,
        }
    }
}
