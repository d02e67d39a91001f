//! Paths of transfers by size, for `fi_info --protocols` (fi_info(1)).
use crate::config::{RxmConfig, max_atomic_bytes};
use crate::engine::DIRECT_MIN;
use core::ffi::CStr;
use ofi_provider::info::TransferPath;
use ofi_provider::param;

/// Returns the rows of this provider; those of its core follow from the core.
pub(crate) fn rows(config: &RxmConfig) -> Vec<TransferPath> {
    let eager = config.eager_limit;
    let variable = |name: &CStr| param::variable(&crate::provider::RXM, name);
    let buffer_size = |row: TransferPath| row.limit(variable(c"buffer_size"), eager);
    let messages = |path, text: &str| TransferPath::new("messages", path, text);
    let inject = "one packet, injected into the core if it takes that size";
    let mut rows = vec![buffer_size(TransferPath::new("inject", "copied", inject).of(0, eager))];
    let copied = messages("eager, copied", "copied to a packet, and from there to its receive");
    let direct = messages(
        "eager, direct",
        "header of the packet and application's buffer in one send of the core",
    );
    let last_copied = if config.direct_send { eager.min(DIRECT_MIN - 1) } else { eager };
    rows.push(buffer_size(copied.of(0, last_copied)));
    rows.push(
        buffer_size(direct.of(last_copied + 1, eager))
            .limit(variable(c"enable_direct_send"), u8::from(config.direct_send)),
    );
    let text = format!("segmentation and reassembly: packets with {eager} bytes each");
    rows.push(
        messages("SAR segments", &text)
            .of(eager + 1, config.sar_limit)
            .limit(variable(c"sar_limit"), config.sar_limit),
    );
    let (path, text) = if config.rndv_write {
        (
            "rendezvous, write",
            "announced; a receive answers with its address, the sender writes to it",
        )
    } else {
        ("rendezvous, read", "announced; the receiver reads the sender's buffer")
    };
    rows.push(
        messages(path, text)
            .of(eager.max(config.sar_limit) + 1, usize::MAX)
            .limit(variable(c"use_rndv_write"), u8::from(config.rndv_write)),
    );
    let text = format!("writes and reads of the core, over {} connection(s)", config.num_msg_eps);
    rows.push(
        TransferPath::new("writes, reads", "core", text)
            .limit(variable(c"num_msg_eps"), config.num_msg_eps),
    );
    let text = "operands in one packet; the target computes";
    rows.push(TransferPath::new("atomics", "eager, copied", text).of(0, max_atomic_bytes()));
    let text = "with FI_HMEM, packets are copied through host memory; rendezvous as the core does";
    rows.push(
        TransferPath::new("device memory", "bounce buffers", text)
            .limit(variable(c"hmem_bounce"), config.hmem_bounce),
    );
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::config;

    /// Returns the size limits of messages.
    fn sizes(eager_limit: usize, sar_limit: usize, direct_send: bool) -> Vec<String> {
        let mut config = config().clone();
        (config.eager_limit, config.sar_limit) = (eager_limit, sar_limit);
        config.direct_send = direct_send;
        let rows = rows(&config).into_iter().filter(|row| row.transfers == "messages");
        rows.map(|row| row.sizes_text()).collect()
    }

    #[test]
    fn each_message_size_has_one_path() {
        assert_eq!(sizes(16384, 131072, true), ["0-4095", "4096-16384", "16385-131072", "131073-"]);
        assert_eq!(sizes(1024, 0, true), ["0-1024", "none", "none", "1025-"]);
        assert_eq!(sizes(16384, 100, false), ["0-16384", "none", "none", "16385-"]);
    }
}
