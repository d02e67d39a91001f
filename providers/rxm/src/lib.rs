//! The ofi_rxm provider: reliable datagrams over the connected endpoints of any core provider.
//!
//! `info` lists the attributes supported over each core provider. `domain` and `ep` implement
//! `ofi_provider::api`. `engine` establishes connections and moves messages over them. [`wire`] has
//! the formats of upstream libfabric.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod config;
mod domain;
mod engine;
mod ep;
mod info;
mod paths;
pub mod provider;
pub mod wire;

use ofi_provider::api::{getinfo_entry, open_fabric};
use ofi_provider::interfaces;

ofi_provider::plug_in!({
    // Declares the parameters, so that fi_getparams lists them.
    config::config();
    interfaces::choose_as(&provider::USUAL_CORE);
    let (getinfo, fabric) = (getinfo_entry::<domain::RxmFabric>, open_fabric::<domain::RxmFabric>);
    provider::RXM.hand_out_with(None, getinfo, fabric)
});
