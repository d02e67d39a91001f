//! FI_EP_MSG and FI_EP_RDM endpoints over TCP sockets.
//!
//! [`info`] lists the supported attributes. [`net`] passes sockets as links to the engine of
//! `ofi_stream`, with the protocol and the provider's objects. Peers with a pre-shared key
//! authenticate each other ([`PskTransport`]), and peers of one host continue over shared memory
//! ([`ShmUpgrade`]).
mod admission;
mod config;
pub(crate) mod info;
mod multipath;
mod rails;
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "powerpc64"
    )),
    path = "no_ring.rs"
)]
#[allow(unsafe_code)]
mod ring;
mod silence;
#[allow(unsafe_code)]
mod sock;
#[allow(unsafe_code)]
pub(crate) mod transport;

use crate::plug_in::{self, InetPlugIn};
use ofi_provider::abi::fi_provider;
use ofi_stream::multi_rail::MultiRail;
use ofi_stream::psk_transport::PskTransport;
use ofi_stream::shm_upgrade::ShmUpgrade;
use std::ffi::CString;

/// The links of the engine.
pub(crate) type InetLinks = ShmUpgrade<MultiRail<PskTransport<transport::Sockets>>>;

/// Declares the parameters under the provider's name, for fi_getparams.
pub(crate) fn declare() {
    info::limits();
    config::config();
    plug_in::traffic_class();
}

/// Hands the plug-in to the core as a provider of such endpoints, in `fi_prov_ini`: under another
/// name, if the user wants one.
pub fn provider_entry(plug_in: &'static InetPlugIn, name: Option<CString>) -> *mut fi_provider {
    plug_in.is_this();
    let provider = ofi_stream::objects::provider_entry::<InetLinks>(name);
    declare();
    provider
}
