//! The lnx provider: one endpoint of several of other providers, of which one reaches the peers of
//! this host and others the network (fi_lnx(7)).
//!
//! `links` reads which providers belong together, `info` says what they have in common; `domain` and
//! `adaptor` stand behind `ofi_provider::api`. The completion queues and the matching are this
//! provider's (`engine`), to which the others, its cores, write and from which they take their
//! receives (fi_peer(3)). `beacon` tells which peers are on this host.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod adaptor;
mod beacon;
mod config;
mod domain;
mod engine;
mod info;
mod links;

use core::ffi::CStr;
use ofi_provider::api::{getinfo_entry, open_fabric};
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider's name, which is that of its fabric as well.
const LNX_NAME: &CStr = c"lnx";

/// The provider, which log lines and parameters name as theirs.
static LNX: Provider = Provider::named(LNX_NAME, PROV_VERSION, API_VERSION);

ofi_provider::plug_in!({
    // Declares the parameters, so that fi_getparams lists them.
    config::config();
    let (getinfo, fabric) = (getinfo_entry::<domain::LnxFabric>, open_fabric::<domain::LnxFabric>);
    LNX.hand_out_with(None, getinfo, fabric)
});
