//! The provider's run-time parameters (fi_rxm(7)).
use crate::provider::RXM;
use crate::wire::{IOCS_LEN, SEGMENTS_LEN};
use core::ffi::CStr;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::param;
use std::sync::OnceLock;
use std::time::Duration;

/// Default size in bytes of the largest eager message, and of the data in a receive buffer.
const BUFFER_SIZE: usize = 16384;

/// The least value of the buffer size: a rendezvous and an atomic operation of 8 bytes go as one
/// packet.
const LEAST_BUFFER: usize = if SEGMENTS_LEN > IOCS_LEN + 8 { SEGMENTS_LEN } else { IOCS_LEN + 8 };

/// Maximum of the buffer size: a receive size of 32 bits, including its header, can express it.
const MOST_BUFFER: usize = 1 << 30;

/// Transmit size of the core's endpoints, when not set.
pub(crate) const MSG_TX_SIZE: usize = 128;

/// Maximum number of connections to a peer.
const MAX_MSG_EPS: usize = 255;

/// The largest queue of any kind.
const MOST_SIZE: usize = 1 << 20;

/// Settings from the environment, read once.
#[derive(Clone, Debug)]
pub(crate) struct RxmConfig {
    /// Bytes of the largest eager message; peers must agree.
    pub(crate) eager_limit: usize,
    /// Up to this many bytes a message goes in segments, beyond it by
    /// rendezvous.
    pub(crate) sar_limit: usize,
    /// Maximum number of completions read from the core in one progress iteration.
    pub(crate) comp_per_progress: usize,
    /// Connections share receive buffers; by default they do if the core supports it.
    pub(crate) use_srx: Option<bool>,
    /// Transmit and receive size when the application names none.
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    /// Transmit size of the core's endpoints.
    pub(crate) msg_tx_size: usize,
    pub(crate) msg_rx_size: Option<usize>,
    /// Interval of checks for connection events.
    pub(crate) cm_interval: Duration,
    /// Completions between two checks of the time although more arrive.
    pub(crate) cq_eq_fairness: usize,
    /// A thread makes progress if the application does not specify the progress model.
    pub(crate) auto_progress: bool,
    /// The receiver of a large message lets the sender write it, instead of reading it.
    pub(crate) rndv_write: bool,
    /// The core searches for new interfaces; otherwise as requested by the application.
    pub(crate) rescan: Option<bool>,
    /// Larger eager messages are sent from the application's buffer.
    pub(crate) direct_send: bool,
    /// Number of connections to a peer.
    pub(crate) num_msg_eps: usize,
    /// Connections of the process before idle ones are closed; by default the core provider states
    /// their number.
    pub(crate) max_connections: Option<usize>,
    /// Maximum bytes of host memory of a domain for copies of memory of devices.
    pub(crate) hmem_bounce: usize,
    /// Time limit of a copy of memory of a device.
    pub(crate) hmem_timeout: Duration,
    /// Number of processes (FI_UNIVERSE_SIZE).
    pub(crate) universe: Option<usize>,
    /// Each of the core's queues has its own wait descriptor: for a core named tcp, and for any
    /// other.
    wait_by_fd: [bool; 2],
}

impl RxmConfig {
    /// Returns the entries of the core's completion queue for one endpoint.
    ///
    /// They suffice for all peers' transfers, if the number of peers is known. Receives use at most
    /// half of them in any case.
    pub(crate) fn core_cq_size(&self, shared: bool) -> usize {
        let rx = self.rx_buffers(shared);
        let conns = |peers: usize| peers.saturating_mul(self.num_msg_eps);
        let rx = if shared { rx } else { rx.saturating_mul(conns(self.universe.unwrap_or(256))) };
        let tx = self.msg_tx_size.saturating_mul(conns(self.universe.unwrap_or(0)));
        // More peers may come than there are said to be; each has one receive at least.
        let least = match self.universe {
            Some(_) if shared => 0,
            Some(_) => 2048,
            None => 8192,
        };
        rx.saturating_mul(2).max(rx.saturating_add(tx)).clamp(least, MAX_CQ_SIZE)
    }

    /// Returns the number of receive buffers of one connection, or of all connections sharing them.
    pub(crate) fn rx_buffers(&self, shared: bool) -> usize {
        self.msg_rx_size.unwrap_or(if shared { 4096 } else { 128 })
    }

    /// Returns true if each queue of a core has its own wait descriptor.
    pub(crate) fn waits_by_fd(&self, core: &str) -> bool {
        self.wait_by_fd[usize::from(!core.eq_ignore_ascii_case("tcp"))]
    }
}

/// Returns true if the environment names a descriptor as the wait object, or leaves the choice to
/// the provider.
fn is_fd(name: &str) -> bool {
    ["fd", "pollfd"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Default and smallest host memory for copies of memory of devices, in bytes.
const HMEM_BOUNCE: usize = 8 << 20;
const LEAST_HMEM_BOUNCE: usize = 16 << 10;

/// Default time limit of a copy of memory of a device.
const HMEM_TIMEOUT: Duration = Duration::from_secs(30);

/// Most entries of a completion queue to ask of the core.
const MAX_CQ_SIZE: usize = 1 << 20;

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static RxmConfig {
    static CONFIG: OnceLock<RxmConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let prov = &RXM;
        let boolean = |name, help| param::boolean(prov, name, help);
        let positive = |name, help| {
            param::int(prov, name, help).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0)
        };
        // A text that is no number is read as 0.
        let size = |name: &'static CStr, default, help| match param::size(prov, name, default, help)
        {
            0 => {
                ofi_provider::log!(
                    prov,
                    WARN,
                    CORE,
                    "FI_OFI_RXM_{} is no number above 0: it is {default}, as if not set",
                    name.to_string_lossy().to_ascii_uppercase()
                );
                default
            }
            size => size,
        };
        let eager_limit = size(
            c"buffer_size",
            BUFFER_SIZE,
            c"bytes of the largest message that is sent as one packet; peers must have the same",
        )
        .clamp(LEAST_BUFFER, MOST_BUFFER);
        // A segment says its length in 16 bits.
        let most_sar = if eager_limit > usize::from(u16::MAX) { 0 } else { usize::MAX };
        let sar_limit = param::size(
            prov,
            c"sar_limit",
            eager_limit * 8,
            c"messages of more bytes than this go by rendezvous, smaller ones in segments",
        )
        .min(most_sar);
        let wait_obj = |name, help| param::string(prov, name, help).map(|name| is_fd(&name));
        let any_wait = wait_obj(
            c"def_wait_obj",
            c"fd or pollfd: wait for each queue of the core provider by a descriptor of its own; \
              default: for all of a domain by one wait set, if the core provider can",
        );
        let tcp_wait = wait_obj(
            c"def_tcp_wait_obj",
            c"the same, if the core provider is tcp; default: as def_wait_obj says",
        );
        // These parameters are declared for programs that set them; there is nothing here that they
        // could change.
        boolean(
            c"enable_passthru",
            c"no effect: all transfers have the protocol of this provider, as their peers expect",
        );
        boolean(
            c"detect_hmem_iface",
            c"no effect: with FI_HMEM each buffer is looked up, without it none",
        );
        boolean(
            c"enable_dyn_rbuf",
            c"no effect: messages come in packets, which are copied to where they belong",
        );
        RxmConfig {
            eager_limit,
            sar_limit,
            comp_per_progress: positive(
                c"comp_per_progress",
                c"completions of the core provider taken at a time",
            )
            .unwrap_or(16),
            use_srx: boolean(
                c"use_srx",
                c"share receive buffers between connections; default: if the core provider can",
            ),
            tx_size: size(c"tx_size", 2048, c"transmit size when the application names none")
                .min(MOST_SIZE),
            rx_size: size(c"rx_size", 2048, c"receive size when the application names none")
                .min(MOST_SIZE),
            msg_tx_size: size(
                c"msg_tx_size",
                MSG_TX_SIZE,
                c"transmit size of the core provider's endpoints",
            )
            .min(MOST_SIZE),
            msg_rx_size: Some(param::size(
                prov,
                c"msg_rx_size",
                0,
                c"receive size of the core provider's endpoints; default 128, 4096 if shared",
            ))
            .filter(|size| *size > 1)
            .map(|size| size.min(MOST_SIZE)),
            cm_interval: Duration::from_micros(
                param::int(
                    prov,
                    c"cm_progress_interval",
                    c"microseconds between looks for connection events",
                )
                .and_then(|us| u64::try_from(us).ok())
                .unwrap_or(10_000),
            ),
            cq_eq_fairness: positive(
                c"cq_eq_fairness",
                c"completions after which connection events are looked for as well",
            )
            .unwrap_or(128),
            auto_progress: boolean(
                c"data_auto_progress",
                c"progress by a thread, where the application does not say how",
            )
            .unwrap_or(false),
            rndv_write: boolean(
                c"use_rndv_write",
                c"write large messages to their receiver instead of reading from the sender",
            )
            .unwrap_or(false),
            rescan: boolean(
                c"rescan",
                c"whether the core provider looks for new interfaces; default: when asked to",
            ),
            direct_send: boolean(
                c"enable_direct_send",
                c"send larger packets from the application's buffer, without a copy",
            )
            .unwrap_or(true),
            num_msg_eps: param::size(
                prov,
                c"num_msg_eps",
                1,
                c"number of connections to a peer, 1 to 255; with more than 1, reads and writes are \
                  unordered, and messages and atomics are ordered only among themselves",
            )
            .clamp(1, MAX_MSG_EPS),
            max_connections: Some(size(
                c"max_connections",
                usize::MAX,
                c"connections of the process before those idle longest are closed, to be opened again \
                  by the next transfer; default: as the core provider says",
            ))
            .filter(|max| *max != usize::MAX),
            hmem_bounce: param::size(
                prov,
                c"hmem_bounce",
                HMEM_BOUNCE,
                c"bytes of host memory of a domain for copies of memory of devices",
            )
            .max(LEAST_HMEM_BOUNCE),
            hmem_timeout: param::int(
                prov,
                c"hmem_timeout",
                c"milliseconds after which a copy of memory of a device fails (30000)",
            )
            .and_then(|millis| u64::try_from(millis).ok())
            .filter(|millis| *millis > 0)
            .map_or(HMEM_TIMEOUT, Duration::from_millis),
            universe: param::core_size(c"universe_size").filter(|size| *size > 0),
            wait_by_fd: {
                let any = any_wait.unwrap_or(false);
                [tcp_wait.unwrap_or(any), any]
            },
        }
    })
}

/// Returns the maximum bytes of elements of any atomic operation.
pub(crate) fn max_atomic_bytes() -> usize {
    config().eager_limit.saturating_sub(IOCS_LEN)
}

/// Returns the maximum bytes of elements of one atomic operation.
///
/// Elements of 16 bytes are unsupported, because they crash upstream's target.
pub(crate) fn max_atomic(operation: Operation) -> usize {
    if operation.size() >= 16 {
        return 0;
    }
    // Half of the room, where two operands share it.
    let capacity = max_atomic_bytes();
    if operation.kind() == AtomicKind::Compare { capacity / 2 } else { capacity }
}
