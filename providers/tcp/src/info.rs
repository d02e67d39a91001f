//! What the provider offers (fi_getinfo(3), fi_tcp(7)).
use crate::config::config;
use crate::provider::TCP;
use ofi_provider::abi::{FI_PROTO_SOCK_TCP, FI_PROTO_XNET};
use ofi_provider::error::Result;
use ofi_provider::info::{InfoChain, InfoQuery, IpProvider, ip_getinfo};
use ofi_provider::param;
use ofi_stream::offer::{OfferLimits, offers};
use std::sync::OnceLock;

/// The parts of fi_getinfo's answer that users set by environment variables.
#[derive(Debug)]
pub(crate) struct TcpInfoSettings {
    limits: OfferLimits,
    iface: Option<String>,
}

/// The settings of the environment, read once; declares them to the core at first use.
pub(crate) fn settings() -> &'static TcpInfoSettings {
    static SETTINGS: OnceLock<TcpInfoSettings> = OnceLock::new();
    SETTINGS.get_or_init(|| TcpInfoSettings {
        limits: OfferLimits {
            keys: true,
            ..OfferLimits::of_params(&TCP, [FI_PROTO_XNET as u32, FI_PROTO_SOCK_TCP as u32])
        },
        iface: param::string(
            &TCP,
            c"iface",
            c"the network interface to use, by name (default: all)",
        ),
    })
}

/// The infos for a query.
pub(crate) fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    let settings = settings();
    config().engine.local.explain(&TCP, config().io_uring.then_some("FI_TCP_IO_URING is on"));
    config().engine.secret.explain(&TCP);
    let offers = offers(&settings.limits, query.version, query.hints)?;
    let prov = IpProvider {
        name: c"tcp",
        offers: &offers,
        iface: settings.iface.as_deref(),
        report: &|line| ofi_provider::log!(&TCP, INFO, FABRIC, "{line}"),
    };
    ip_getinfo(&prov, query)
}
