//! Paths of transfers by size, for `fi_info --protocols` (fi_info(1)).
use crate::config::{RxdConfig, max_atomic_bytes};
use crate::provider::RXD;
use crate::wire::{BASE_LEN, DATA_HEAD};
use ofi_provider::info::TransferPath;
use ofi_provider::param;

/// Returns the rows over a core with packets of this length, the maximum size of injected operations
/// given.
pub(crate) fn rows(config: &RxdConfig, packet: usize, inject_size: usize) -> Vec<TransferPath> {
    let inject = TransferPath::new("inject", "copied", "one packet, retransmitted from its copy");
    let one = packet.saturating_sub(BASE_LEN);
    let text = format!("packet of at most {packet} bytes (tag or data of the queue: 8 each less)");
    let single = TransferPath::new("messages", "one packet", text).of(0, one);
    let text = format!(
        "{} bytes of the message in each packet; the receiver orders and acknowledges them",
        packet.saturating_sub(DATA_HEAD)
    );
    let several = TransferPath::new("messages, writes, reads", "segments", text)
        .of(one + 1, usize::MAX)
        .limit(param::variable(&RXD, c"max_unacked"), config.max_unacked);
    let text = "operands in one packet; the target computes";
    let atomics = TransferPath::new("atomics", "one packet", text).of(0, max_atomic_bytes());
    vec![inject.of(0, inject_size), single, several, atomics]
}
