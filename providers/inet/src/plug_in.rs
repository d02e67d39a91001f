//! Which plug-in this is.
use ofi_provider::av::AvSharing;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::info::{API_VERSION, PROV_VERSION, ProviderOffer};
use ofi_provider::param;
use ofi_provider::provider::Provider;
use std::ffi::CStr;
use std::sync::{Once, OnceLock};

/// What tells the plug-ins apart that are made of this crate. One of them is in a shared object.
#[derive(Debug)]
pub struct InetPlugIn {
    /// Its name and version. Lines of the log and parameters (`FI_<NAME>_IFACE`) are in this name.
    pub provider: &'static Provider,
    /// Makes of what the code can do, for each type of endpoint, what is offered in this name.
    pub offered: fn(&mut ProviderOffer),
    /// Whether hints that ask for one context are offered several as well, as scalable endpoints
    /// have them.
    pub scalable: bool,
    /// Whether hints may ask that what follows a read waits for its answer
    /// ([`OfferLimits::after_reads`](ofi_stream::offer::OfferLimits::after_reads)).
    pub after_reads: bool,
    /// Whether connections also have FI_EP_DGRAM endpoints
    /// ([`OfferLimits::datagrams`](ofi_stream::offer::OfferLimits::datagrams)).
    pub datagrams: bool,
    /// What address vectors of connections may be ([`OfferLimits::sharing`](ofi_stream::offer::OfferLimits::sharing)).
    pub sharing: AvSharing,
    /// How many segments a transfer over connections may have
    /// ([`OfferLimits::segments`](ofi_stream::offer::OfferLimits::segments)).
    pub segments: usize,
    /// How many segments a region of their domains may have
    /// ([`OfferLimits::region_segments`](ofi_stream::offer::OfferLimits::region_segments)).
    pub region_segments: usize,
    /// What users of the name should know, for the log at level `info` when the first domain is opened.
    pub note: Option<&'static str>,
}

/// The parameters of `tcp`, which hold for providers that are `tcp` by another name: what keeps
/// strangers out, for one, keeps them out by whichever name a program asks for endpoints.
pub static TCP_PARAMETERS: Provider = Provider::named(c"tcp", PROV_VERSION, API_VERSION);

/// What nobody has handed out has no name of its own: in unit tests.
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

/// The plug-in that this is.
pub(crate) fn current() -> &'static InetPlugIn {
    CURRENT.get().copied().unwrap_or(&UNNAMED)
}

/// The provider that lines of the log and parameters are of.
pub(crate) fn provider() -> &'static Provider {
    current().provider
}

impl InetPlugIn {
    /// This is the plug-in, from now on and before anything else is called. It stays the first one.
    pub(crate) fn is_this(&'static self) {
        CURRENT.get_or_init(|| self);
    }

    /// A domain is opened: tells the user once what there is to know of the name.
    pub(crate) fn tell(&self) {
        static TOLD: Once = Once::new();
        let Some(note) = self.note else { return };
        TOLD.call_once(|| ofi_provider::log!(self.provider, INFO, DOMAIN, "{note}"));
    }
}

/// The variable of the environment that sets a parameter: `FI_TCP_PEERS`.
pub(crate) fn variable(parameter: &CStr) -> String {
    param::variable(provider(), parameter)
}

/// FI_*_IFACE, read once; declares it to the core at first use.
pub(crate) fn iface() -> Option<&'static str> {
    static IFACE: OnceLock<Option<String>> = OnceLock::new();
    let help = c"the network interface to use, by name (default: all)";
    IFACE.get_or_init(|| param::string(provider(), c"iface", help)).as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_the_name_of_the_plug_in() {
        assert_eq!(variable(c"peers"), "FI_INET_PEERS");
    }
}
