//! The lnx provider: one endpoint combining several of other providers, one for the peers of this
//! host and others for the network (fi_lnx(7)).
//!
//! `links` reads the combinations of providers, `info` finds their common attributes. `domain` and
//! `adaptor` implement `ofi_provider::api`. The completion queues and the matching belong to this
//! provider (`engine`). The other providers, its cores, write to the queues and take their receives
//! from it (fi_peer(3)). `beacon` finds the peers on this host.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod adaptor;
mod config;
mod domain;
mod engine;
mod host_token;
mod info;
mod links;

use core::ffi::CStr;
use ofi_provider::api::{getinfo_entry, open_fabric};
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// Provider's name, also the name of its fabric.
const LNX_NAME: &CStr = c"lnx";

/// Provider named in log lines and parameters.
static LNX: Provider = Provider::named(LNX_NAME, PROV_VERSION, API_VERSION);

ofi_provider::plug_in!({
    // Declares the parameters, so that fi_getparams lists them.
    config::config();
    let (getinfo, fabric) = (getinfo_entry::<domain::LnxFabric>, open_fabric::<domain::LnxFabric>);
    LNX.hand_out_with(None, getinfo, fabric)
});
