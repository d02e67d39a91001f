//! Description of the current plug-in.
use ofi_provider::av::AvSharing;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::Result;
use ofi_provider::info::{
    API_VERSION, InfoChain, InfoQuery, IpProvider, PROV_VERSION, ProviderOffer, ip_getinfo,
};
use ofi_provider::interfaces;
use ofi_provider::log;
use ofi_provider::param;
use ofi_provider::provider::Provider;
use ofi_provider::traffic_class::TrafficClass;
use std::ffi::CStr;
use std::sync::{Once, OnceLock};

/// Differences between the plug-ins of this crate. One of them is in a shared object.
#[derive(Debug)]
pub struct InetPlugIn {
    /// Its name and version. Lines of the log and parameters (`FI_<NAME>_IFACE`) are in this name.
    pub provider: &'static Provider,
    /// Adapts the code's capabilities for each type of endpoint to those offered under this name.
    pub offered: fn(&mut ProviderOffer),
    /// Scalable endpoints with several contexts are offered even to hints for one context.
    pub scalable: bool,
    /// Hints may request an order: operations after a read wait for its response
    /// ([`OfferLimits::after_reads`](ofi_stream::attrs::OfferLimits::after_reads)).
    pub after_reads: bool,
    /// Connections also have FI_EP_DGRAM endpoints
    /// ([`OfferLimits::datagrams`](ofi_stream::attrs::OfferLimits::datagrams)).
    pub datagrams: bool,
    /// Sharing of address vectors of connections
    /// ([`OfferLimits::sharing`](ofi_stream::attrs::OfferLimits::sharing)).
    pub sharing: AvSharing,
    /// Maximum segments of a transfer over connections
    /// ([`OfferLimits::segments`](ofi_stream::attrs::OfferLimits::segments)).
    pub segments: usize,
    /// Maximum segments of a region in their domains
    /// ([`OfferLimits::region_segments`](ofi_stream::attrs::OfferLimits::region_segments)).
    pub region_segments: usize,
    /// Note to users of the name, logged at level `info` when the first domain is opened.
    pub note: Option<&'static str>,
}

/// Parameters of `tcp`, valid also for providers derived from `tcp` under other names. So, for
/// example, the limits on unknown peers hold for endpoints under any name.
pub static TCP_PARAMETERS: Provider = Provider::named(c"tcp", PROV_VERSION, API_VERSION);

/// Plug-in used in unit tests, without a registered name.
static UNNAMED: InetPlugIn = InetPlugIn {
    provider: &INET,
    offered: |_| {},
    scalable: false,
    after_reads: false,
    datagrams: false,
    sharing: AvSharing::Never,
    segments: IOV_LIMIT,
    region_segments: 1,
    note: None,
};

static INET: Provider = Provider::named(c"inet", PROV_VERSION, API_VERSION);

static CURRENT: OnceLock<&'static InetPlugIn> = OnceLock::new();

/// Returns the current plug-in.
pub(crate) fn current() -> &'static InetPlugIn {
    CURRENT.get().copied().unwrap_or(&UNNAMED)
}

/// Returns the provider naming log lines and parameters.
pub(crate) fn provider() -> &'static Provider {
    current().provider
}

impl InetPlugIn {
    /// This is the plug-in, from now on and before anything else is called. It stays the first one.
    pub(crate) fn is_this(&'static self) {
        CURRENT.get_or_init(|| self);
    }

    /// Logs the note of the name once, when a domain is opened.
    pub(crate) fn tell(&self) {
        static NOTIFIED: Once = Once::new();
        let Some(note) = self.note else { return };
        NOTIFIED.call_once(|| ofi_provider::log!(self.provider, INFO, DOMAIN, "{note}"));
    }
}

/// Returns the environment variable of a parameter: `FI_TCP_PEERS`.
pub(crate) fn variable(parameter: &CStr) -> String {
    param::variable(provider(), parameter)
}

/// Returns the infos of this plug-in's interfaces with these offers (FI_*_IFACE).
pub(crate) fn infos(offers: &[ProviderOffer], query: &InfoQuery<'_>) -> Result<InfoChain> {
    let prov = provider();
    let explain = |line: &str| ofi_provider::log!(prov, TRACE, FABRIC, "{line}");
    let is_explained = log::enabled(prov, log::level::TRACE, log::subsys::FABRIC);
    ip_getinfo(
        &IpProvider {
            name: prov.name(),
            offers,
            interfaces: interfaces::choose(prov),
            report: &|line| ofi_provider::log!(prov, INFO, FABRIC, "{line}"),
            warn: &|line| interfaces::warn(prov, line),
            explain: is_explained.then_some(&explain),
        },
        query,
    )
}

/// Returns the user's traffic class (FI_*_TCLASS), read once; declares the parameter to the core at
/// first use.
pub(crate) fn traffic_class() -> TrafficClass {
    static CLASS: OnceLock<TrafficClass> = OnceLock::new();
    *CLASS.get_or_init(|| TrafficClass::of_params(provider()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_the_name_of_the_plug_in() {
        assert_eq!(variable(c"peers"), "FI_INET_PEERS");
    }
}
