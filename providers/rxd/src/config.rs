//! The provider's run-time parameters (fi_rxd(7)).
use crate::provider::RXD;
use crate::wire::ATOMIC_HEAD;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::param;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum packet size, including the core's prefix.
pub(crate) const MAX_PACKET: usize = 4096;

/// Most packets under way to a peer, and from it.
const MAX_UNACKED: usize = 128;

/// Settings from the environment, read once.
#[derive(Clone, Debug)]
pub(crate) struct RxdConfig {
    /// Maximum number of completions read from the core in one progress iteration; 0: all
    /// available.
    pub(crate) spin_count: usize,
    /// Lost packets are retransmitted.
    pub(crate) retry: bool,
    /// Time limit for a peer leaving packets unacknowledged; none: until 50 retransmissions.
    pub(crate) peer_timeout: Option<Duration>,
    /// Maximum number of unknown peers.
    pub(crate) max_peers: usize,
    /// Packets under way to one peer, and from it.
    pub(crate) max_unacked: usize,
    /// The core searches for new interfaces; otherwise as requested by the application.
    pub(crate) rescan: Option<bool>,
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static RxdConfig {
    static CONFIG: OnceLock<RxdConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let prov = &RXD;
        let number =
            |name, help| param::int(prov, name, help).and_then(|n| usize::try_from(n).ok());
        RxdConfig {
            spin_count: number(
                c"spin_count",
                c"completions of the core provider taken at a time, 0 for no bound; default 1000",
            )
            .unwrap_or(1000),
            retry: param::boolean(
                prov,
                c"retry",
                c"send packets again that are lost; default: yes",
            )
            .unwrap_or(true),
            peer_timeout: number(
                c"peer_timeout",
                c"seconds after which operations with a peer that answers nothing fail; default: \
                  after its packets were sent 50 times, about 3 minutes",
            )
            .filter(|n| *n > 0)
            .map(|n| Duration::from_secs(n as u64)),
            max_peers: number(
                c"max_peers",
                c"most peers that are in no address vector; default 1024",
            )
            .filter(|n| *n > 0)
            .unwrap_or(1024),
            max_unacked: number(
                c"max_unacked",
                c"packets under way to one peer, and from it; default 128",
            )
            .filter(|n| *n > 0)
            .map_or(MAX_UNACKED, |n| n.min(4096)),
            rescan: param::boolean(
                prov,
                c"rescan",
                c"whether the core provider looks for new interfaces; default: when asked to",
            ),
        }
    })
}

/// Minimum over the maximum packet sizes of all open cores.
static PACKET: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Maximum packet size while no core is open: the payload of an Ethernet frame over UDP.
const USUAL_PACKET: usize = 1472;

/// Records the maximum packet size of a newly opened core.
pub(crate) fn note_packet(len: usize) {
    PACKET.fetch_min(len, Ordering::Relaxed);
}

/// Returns the maximum bytes of elements of any atomic operation: it is sent as one packet.
pub(crate) fn max_atomic_bytes() -> usize {
    let packet = match PACKET.load(Ordering::Relaxed) {
        usize::MAX => USUAL_PACKET,
        packet => packet,
    };
    packet.saturating_sub(ATOMIC_HEAD)
}

/// Returns the maximum bytes of elements of one atomic operation.
///
/// Elements of 16 bytes are unsupported, because they crash upstream's target.
pub(crate) fn max_atomic(operation: Operation) -> usize {
    if operation.size() >= 16 {
        return 0;
    }
    let capacity = max_atomic_bytes();
    // Half of the room, where two operands share it.
    if operation.kind() == AtomicKind::Compare { capacity / 2 } else { capacity }
}
