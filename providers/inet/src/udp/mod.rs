//! FI_EP_DGRAM endpoints over UDP sockets.
//!
//! One datagram is one message, without a header, or sealed with a pre-shared key. [`info`] lists
//! the supported attributes. [`domain`] has fabric and domain, `ep` the endpoints, `socket` their
//! sockets, and `group` their multicast groups. `sealed` is the layer between endpoints with a key
//! and their sockets.
pub(crate) mod domain;
mod ep;
mod group;
pub(crate) mod info;
mod sealed;
mod socket;
mod traced;

use crate::plug_in::{self, InetPlugIn};
use domain::UdpFabric;
use ofi_provider::abi::fi_provider;
use ofi_provider::api::{getinfo_entry, open_fabric};
use ofi_provider::interfaces;

/// Hands the plug-in to the core as a provider of such endpoints, in `fi_prov_ini`.
pub fn provider_entry(plug_in: &'static InetPlugIn) -> *mut fi_provider {
    plug_in.is_this();
    let (getinfo, fabric) = (getinfo_entry::<UdpFabric>, open_fabric::<UdpFabric>);
    let provider = plug_in.provider.hand_out_with(None, getinfo, fabric);
    // Declares the parameters, so that fi_getparams lists them.
    interfaces::choose(plug_in.provider);
    info::secret();
    plug_in::traffic_class();
    provider
}
