//! The provider's run-time parameters (fi_shm(7)).
use crate::plug_in::provider;
use core::time::Duration;
use ofi_provider::param;
use ofi_stream::secret::PskConfig;
use ofi_stream::settings::{HOLD_OFF_STEP, LocalSettings, StreamSettings};
use std::sync::LazyLock;

/// Most bytes of an injected message, as of the original.
pub(crate) const MAX_INJECT: usize = 4096;

/// Maximum bytes of messages sent behind a connection request before its response; a socket of the
/// kernel takes more by default.
const EARLY_DATA: usize = 64 << 10;

/// Default of FI_OPT_MIN_MULTI_RECV in bytes, equal to upstream's.
const MIN_MULTI_RECV: usize = 4096;

/// Operations under way, and receives posted, if the user names no number.
const QUEUE_SIZE: usize = 1024;

/// The provider's parameters as the environment sets them.
#[derive(Debug)]
pub(crate) struct ShmConfig {
    /// Operations under way at a time.
    pub(crate) tx_size: usize,
    /// Receives posted at a time.
    pub(crate) rx_size: usize,
    /// Settings of the engine.
    pub(crate) engine: StreamSettings,
}

static CONFIG: LazyLock<ShmConfig> = LazyLock::new(read);

/// The parameters, read once.
#[inline(always)]
pub(crate) fn config() -> &'static ShmConfig {
    &CONFIG
}

/// Reads the parameters; this declares them to the core.
pub(crate) fn declare() {
    LazyLock::force(&CONFIG);
}

/// Returns the number of connection attempts to an absent peer for this waiting time in seconds.
fn hold_off(seconds: i32) -> u32 {
    let wait = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let calls = wait.as_millis() / HOLD_OFF_STEP.as_millis();
    u32::try_from(calls).unwrap_or(u32::MAX)
}

fn read() -> ShmConfig {
    let prov = provider();
    let size = |name, help| param::size(prov, name, QUEUE_SIZE, help).max(1);
    let copies = param::boolean(
        prov,
        c"disable_cma",
        c"never copy from a peer's memory directly (process_vm_readv); default no",
    );
    let local = LocalSettings::of_params(prov);
    let engine = StreamSettings {
        local: LocalSettings { reads: local.reads && !copies.unwrap_or(false), ..local },
        // Data between processes of one host needs no encryption.
        secret: PskConfig::of_params(prov, false),
        hold_off: param::int(
            prov,
            c"peer_wait",
            c"seconds for which a peer is waited for that is not there yet; \
              default: as long as it takes",
        )
        .map_or(u32::MAX, hold_off),
        min_multi_recv: MIN_MULTI_RECV,
        early_data: EARLY_DATA,
        ..StreamSettings::of_params(prov)
    };
    // The original's, so that scripts that set them and lists of parameters stay as they are.
    let _ = param::boolean(prov, c"use_xpmem", c"no effect: XPMEM is not used");
    let _ = param::size(
        prov,
        c"buffer_threshold",
        1,
        c"no effect: unexpected messages are kept up to FI_SHM_MAX_UNEXPECTED",
    );
    let _ = param::size(
        prov,
        c"max_gdrcopy_size",
        3072,
        c"no effect: memory of accelerators is not supported",
    );
    let _ = param::boolean(prov, c"use_dsa_sar", c"no effect: Intel DSA is not used");
    let _ = param::size(
        prov,
        c"sar_threshold",
        usize::MAX,
        c"no effect: messages are not cut into segments",
    );
    let _ = param::boolean(prov, c"enable_dsa_page_touch", c"no effect: Intel DSA is not used");
    ShmConfig {
        tx_size: size(c"tx_size", c"transmit queue size when the application names none (1024)"),
        rx_size: size(c"rx_size", c"receive queue size when the application names none (1024)"),
        engine,
    }
}
