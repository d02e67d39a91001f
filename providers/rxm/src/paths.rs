//! Paths of transfers by size, for `fi_info --protocols` (fi_info(1)).
use crate::config::{RxmConfig, max_atomic_bytes};
use crate::engine::DIRECT_MIN;
use core::ffi::CStr;
use ofi_provider::abi::FI_MR_LOCAL;
use ofi_provider::info::{InfoChain, TransferPath};
use ofi_provider::param;

/// Kinds of the cores of a query.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct CoreKinds {
    /// Some core takes any memory.
    pub(crate) any_memory: bool,
    /// Some core takes registered memory only (FI_MR_LOCAL): packets are copied to such memory.
    pub(crate) local: bool,
}

impl CoreKinds {
    /// Returns the kinds of these cores.
    pub(crate) fn of(cores: &InfoChain) -> Self {
        let mut kinds = Self::default();
        for core in cores.iter() {
            let is_local = core.domain().is_some_and(|of| of.mr_mode & FI_MR_LOCAL != 0);
            *if is_local { &mut kinds.local } else { &mut kinds.any_memory } = true;
        }
        kinds
    }
}

/// Returns the rows of this provider over cores of these kinds; those of the cores follow from the
/// cores.
pub(crate) fn rows(config: &RxmConfig, cores: CoreKinds) -> Vec<TransferPath> {
    let goes_direct = config.direct_send && (cores.any_memory || !cores.local);
    let eager = config.eager_limit;
    let variable = |name: &CStr| param::variable(&crate::provider::RXM, name);
    let buffer_size = |row: TransferPath| row.limit(variable(c"buffer_size"), eager);
    let messages = |path, text: &str| TransferPath::new("messages", path, text);
    let inject = "one packet, injected into the core if it takes that size";
    let mut rows = vec![buffer_size(TransferPath::new("inject", "copied", inject).of(0, eager))];
    let copied = messages("eager, copied", "copied to a packet, and from there to its receive");
    let text = match (cores.local, cores.any_memory) {
        (false, _) => "header of the packet and application's buffer in one send of the core",
        (true, true) => "header and application's buffer in one send; not with FI_MR_LOCAL",
        (true, false) => "not over this core: it takes registered memory (FI_MR_LOCAL)",
    };
    let direct = messages("eager, direct", text);
    let last_copied = if goes_direct { eager.min(DIRECT_MIN - 1) } else { eager };
    rows.push(buffer_size(copied.of(0, last_copied)));
    if goes_direct && cores.local {
        let text = "also over cores with FI_MR_LOCAL, such as verbs";
        let copied = messages("eager, copied", text).of(last_copied + 1, eager);
        rows.push(buffer_size(copied));
    }
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

    /// Returns the size limits of messages over a core without FI_MR_LOCAL.
    fn sizes(eager_limit: usize, sar_limit: usize, direct_send: bool) -> Vec<String> {
        let cores = CoreKinds { any_memory: true, local: false };
        sizes_over(cores, eager_limit, sar_limit, direct_send)
    }

    fn sizes_over(
        cores: CoreKinds,
        eager_limit: usize,
        sar_limit: usize,
        direct_send: bool,
    ) -> Vec<String> {
        let mut config = config().clone();
        (config.eager_limit, config.sar_limit) = (eager_limit, sar_limit);
        config.direct_send = direct_send;
        let rows = rows(&config, cores).into_iter().filter(|row| row.transfers == "messages");
        rows.map(|row| row.sizes_text()).collect()
    }

    #[test]
    fn each_message_size_has_one_path() {
        assert_eq!(sizes(16384, 131072, true), ["0-4095", "4096-16384", "16385-131072", "131073-"]);
        assert_eq!(sizes(1024, 0, true), ["0-1024", "none", "none", "1025-"]);
        assert_eq!(sizes(16384, 100, false), ["0-16384", "none", "none", "16385-"]);
    }

    #[test]
    fn cores_with_registered_memory_get_copies() {
        let over =
            |any_memory| sizes_over(CoreKinds { any_memory, local: true }, 16384, 131_072, true);
        assert_eq!(over(false), ["0-16384", "none", "16385-131072", "131073-"]);
        assert_eq!(over(true), ["0-4095", "4096-16384", "4096-16384", "16385-131072", "131073-"]);
    }
}
