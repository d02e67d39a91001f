//! The ofi_rxd provider: reliable datagrams over the unreliable ones of any core
//! provider.
//!
//! `info` says what it offers over which core providers; `domain` and `ep`
//! stand behind `ofi_provider::api`; `engine` numbers packets, acknowledges and
//! repeats them; [`wire`] has the formats, which are the original's.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod config;
mod domain;
mod engine;
mod ep;
mod info;
pub mod provider;
pub mod wire;

use ofi_provider::api::{getinfo_entry, open_fabric};

ofi_provider::plug_in!({
    // Declares the parameters, so that fi_getparams lists them.
    config::config();
    let (getinfo, fabric) = (getinfo_entry::<domain::RxdFabric>, open_fabric::<domain::RxdFabric>);
    provider::RXD.hand_out_with(None, getinfo, fabric)
});
