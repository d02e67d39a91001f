//! The provider's run-time parameters (fi_tcp(7)).
use crate::admission::Admission;
use crate::provider::TCP;
use ofi_provider::param;
use ofi_stream::settings::{MAX_UNEXPECTED, StreamSettings};
use std::sync::OnceLock;

/// Smallest FI_TCP_PREFETCH_RBUF_SIZE, in bytes: less would not hold a header and a copied
/// message.
const MIN_PREFETCH: usize = 2048;

/// Smallest FI_TCP_MAX_UNEXPECTED, in bytes: less would not hold some messages of each of a few
/// peers.
const MIN_UNEXPECTED: usize = 1 << 20;

/// The provider's parameters as the environment sets them, read once.
#[derive(Debug)]
pub(crate) struct TcpConfig {
    /// Lowest and highest port to listen on, where the application leaves the port open.
    pub(crate) ports: Option<(u16, u16)>,
    /// Whether small segments are sent at once (TCP_NODELAY); default yes.
    pub(crate) nodelay: bool,
    /// What concerns the engine.
    pub(crate) engine: StreamSettings,
    /// Whether data goes through an io_uring, where the system lets us have one.
    pub(crate) io_uring: bool,
    /// Seconds after which a silent peer is gone; 0: the system decides.
    pub(crate) peer_timeout: u32,
    /// Whether this machine is behind a firewall: peers cannot connect to it, it connects to
    /// them.
    pub(crate) firewall_addr: bool,
    /// Which peers may connect to us.
    pub(crate) peers: Admission,
    /// Whether no progress thread is started, whatever the application asks for.
    pub(crate) no_auto_progress: bool,
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static TcpConfig {
    static CONFIG: OnceLock<TcpConfig> = OnceLock::new();
    CONFIG.get_or_init(read)
}

/// Reads the parameters and declares them to the core.
fn read() -> TcpConfig {
    let prov = &TCP;
    let port = |name, help| param::int(prov, name, help).and_then(|port| u16::try_from(port).ok());
    let count = |name, default, help| {
        param::int(prov, name, help).and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
    };
    let low = port(c"port_low_range", c"lowest port to listen on");
    let high = port(c"port_high_range", c"highest port to listen on");
    let ports = match (low, high) {
        (Some(low), Some(high)) if low > 0 && low <= high => Some((low, high)),
        _ => None,
    };
    let peers = param::string(
        prov,
        c"peers",
        c"who may call: \"any\" (default), or a list of addresses and networks \
              (192.0.2.0/24), and of \"av\": reliable datagram endpoints listen only to \
              peers in their address vectors",
    )
    .map_or_else(Admission::default, |text| Admission::parse(&text));
    let engine = StreamSettings {
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
            MAX_UNEXPECTED,
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
            9000,
            c"bytes of small messages that are collected to leave with one call; \
              0: each leaves by itself (9000)",
        ),
        prefetch: count(
            c"prefetch_rbuf_size",
            64 << 10,
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
        only_known: peers.only_known(),
        only_known_by: "FI_TCP_PEERS",
    };
    TcpConfig {
        ports,
        nodelay: param::boolean(
            prov,
            c"nodelay",
            c"send small segments at once (TCP_NODELAY); default yes",
        )
        .unwrap_or(true),
        io_uring: param::boolean(
            prov,
            c"io_uring",
            c"send and receive through an io_uring, where the system has it; default no",
        )
        .unwrap_or(false),
        peer_timeout: count(
            c"peer_timeout",
            180,
            c"seconds after which a peer whose system answers nothing is gone; \
              0: when TCP gives up (180)",
        )
        .try_into()
        .unwrap_or(0),
        firewall_addr: param::boolean(
            prov,
            c"firewall_addr",
            c"this machine is behind a firewall: peers do not call it, it calls them",
        )
        .unwrap_or(false),
        peers,
        engine,
        no_auto_progress: param::boolean(
            prov,
            c"disable_auto_progress",
            c"never start a progress thread; the application drives progress",
        )
        .unwrap_or(false),
    }
}
