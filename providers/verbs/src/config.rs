//! The provider's run-time parameters (fi_verbs(7)).
use crate::info::VERBS;
use ofi_provider::param;
use std::sync::OnceLock;

/// What the environment says, read once.
#[derive(Debug)]
pub(crate) struct Config {
    /// Sizes of queues when the application names none.
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    /// Most segments of a transfer.
    pub(crate) tx_iov_limit: usize,
    pub(crate) rx_iov_limit: usize,
    /// Bytes that may be sent inline, if the device can.
    pub(crate) inline_size: usize,
    /// How soon a peer may try again that found no receive posted (ibv_modify_qp(3)).
    pub(crate) min_rnr_timer: u8,
    /// Completions taken from a device at once.
    pub(crate) cqread_bunch_size: usize,
    /// The GID that names a fabric.
    pub(crate) gid_idx: i32,
    /// Devices whose name begins like this, if the user wants only those.
    pub(crate) device_name: Option<String>,
    /// Interfaces whose name begins like this, if the user wants only those.
    pub(crate) iface: Option<String>,
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let number = |name, default: usize, help| {
            param::int(&VERBS, name, help).and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
        };
        let text = |name, help| param::string(&VERBS, name, help).filter(|text| !text.is_empty());
        Config {
            tx_size: number(
                c"tx_size",
                384,
                c"transmit queue size when the application names none (384)",
            ),
            rx_size: number(
                c"rx_size",
                384,
                c"receive queue size when the application names none (384)",
            ),
            tx_iov_limit: number(c"tx_iov_limit", 4, c"most segments of a send (4)"),
            rx_iov_limit: number(c"rx_iov_limit", 4, c"most segments of a receive (4)"),
            inline_size: number(
                c"inline_size",
                256,
                c"bytes of a message that may be sent inline, if the device can (256)",
            ),
            min_rnr_timer: param::int(
                &VERBS,
                c"min_rnr_timer",
                c"code of the time after which a peer tries again that found no receive \
                  posted, 0 to 31 (12)",
            )
            .and_then(|timer| u8::try_from(timer).ok())
            .filter(|timer| *timer < 32)
            .unwrap_or(12),
            cqread_bunch_size: number(
                c"cqread_bunch_size",
                8,
                c"completions taken from a device at once, at most 64 (8)",
            ),
            gid_idx: param::int(&VERBS, c"gid_idx", c"which GID of a port names its fabric (0)")
                .filter(|index| *index >= 0)
                .unwrap_or(0),
            device_name: text(
                c"device_name",
                c"use only devices whose name begins like this (default: all)",
            ),
            iface: text(
                c"iface",
                c"use only network interfaces whose name begins like this (default: all)",
            ),
        }
    })
}
