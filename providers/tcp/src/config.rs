//! The provider's run-time parameters (fi_tcp(7)).
use crate::info::TCP;
use ofi_provider::param;
use std::sync::OnceLock;

/// What the environment says, read once.
#[derive(Debug)]
pub(crate) struct Config {
    /// Ports to listen on, when the application leaves the port open.
    pub(crate) ports: Option<(u16, u16)>,
    /// Small segments go out at once; default yes.
    pub(crate) nodelay: bool,
    /// Unexpected messages kept per peer, when the user sets a bound.
    pub(crate) max_saved: Option<usize>,
    /// Tagged messages that are larger wait at their sender until a receive is
    /// posted for them.
    pub(crate) max_saved_size: usize,
    /// No progress thread, whatever the application asks for.
    pub(crate) no_auto_progress: bool,
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let prov = &TCP;
        let port =
            |name, help| param::int(prov, name, help).and_then(|port| u16::try_from(port).ok());
        let low = port(c"port_low_range", c"lowest port to listen on");
        let high = port(c"port_high_range", c"highest port to listen on");
        let ports = match (low, high) {
            (Some(low), Some(high)) if low > 0 && low <= high => Some((low, high)),
            _ => None,
        };
        Config {
            ports,
            nodelay: param::boolean(
                prov,
                c"nodelay",
                c"send small segments at once (TCP_NODELAY); default yes",
            )
            .unwrap_or(true),
            max_saved: param::int(
                prov,
                c"max_saved",
                c"unexpected messages kept per peer before reading from it stops; \
                  by default the memory they take is bounded instead",
            )
            .and_then(|max| usize::try_from(max).ok()),
            max_saved_size: param::size(
                prov,
                c"max_saved_size",
                usize::MAX,
                c"tagged messages larger than this wait at the sender until a receive \
                  is posted for them; default: none does",
            ),
            no_auto_progress: param::boolean(
                prov,
                c"disable_auto_progress",
                c"never start a progress thread; the application drives progress",
            )
            .unwrap_or(false),
        }
    })
}
