//! The provider's run-time parameters (fi_tcp(7)).
use super::admission::PeerAcl;
use crate::plug_in::{current, provider, variable};
use ofi_provider::param;
use ofi_stream::secret::PskConfig;
use ofi_stream::settings::{LocalSettings, StreamSettings};
use std::sync::OnceLock;

/// The provider's parameters as the environment sets them, read once.
#[derive(Debug)]
pub(crate) struct TcpConfig {
    /// Lowest and highest port to listen on, if the application leaves the port open.
    pub(crate) ports: Option<(u16, u16)>,
    /// Sends small segments at once (TCP_NODELAY); default yes.
    pub(crate) nodelay: bool,
    /// Settings of the engine.
    pub(crate) engine: StreamSettings,
    /// Uses an io_uring for data, if the system provides one.
    pub(crate) io_uring: bool,
    /// Seconds after which a silent peer is considered gone; 0: the system decides.
    pub(crate) peer_timeout: u32,
    /// Connects to other hosts with MPTCP, if the system provides it.
    pub(crate) mptcp: bool,
    /// Peers permitted to connect.
    pub(crate) peers: PeerAcl,
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static TcpConfig {
    static CONFIG: OnceLock<TcpConfig> = OnceLock::new();
    CONFIG.get_or_init(read)
}

/// Reads the parameters and declares them to the core.
fn read() -> TcpConfig {
    let prov = provider();
    let port = |name, help| param::int(prov, name, help).and_then(|port| u16::try_from(port).ok());
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
    .map_or_else(PeerAcl::default, |text| PeerAcl::parse(&text));
    let firewall_addr = param::boolean(
        prov,
        c"firewall_addr",
        c"this machine is behind a firewall: peers do not call it, it calls them",
    );
    let engine = StreamSettings {
        only_known: peers.only_known(),
        only_known_by: variable(c"peers"),
        behind_firewall: firewall_addr.unwrap_or(false),
        local: LocalSettings::of_params(prov),
        rails: super::rails::read(prov),
        sharing: current().sharing,
        secret: PskConfig::of_params(prov, true),
        ..StreamSettings::of_params(prov)
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
        mptcp: param::boolean(
            prov,
            c"mptcp",
            c"connect to other hosts with MPTCP, over several paths where the system has them; \
              default no",
        )
        .unwrap_or(false),
        peer_timeout: param::int(
            prov,
            c"peer_timeout",
            c"seconds after which a peer whose system answers nothing is gone; \
              0: when TCP gives up (180)",
        )
        .and_then(|seconds| usize::try_from(seconds).ok())
        .map_or(180, |seconds| u32::try_from(seconds).unwrap_or(0)),
        peers,
        engine,
    }
}
