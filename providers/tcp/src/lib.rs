//! The tcp provider: FI_EP_MSG and FI_EP_RDM endpoints over TCP sockets.
//!
//! [`info`] says what the provider offers; [`domain`], [`ep`] and [`pep`] are its objects behind
//! `ofi_provider::api`; [`net`] gives the engine of `ofi_stream`, which does the work, sockets for
//! links.
#![cfg_attr(not(test), deny(unsafe_code))]
mod admission;
mod aside;
mod config;
mod domain;
mod ep;
mod info;
#[allow(unsafe_code)]
mod net;
mod pep;
pub mod provider;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sock;

use ofi_provider::api::{getinfo_entry, open_fabric};
use ofi_provider::param;
use std::ffi::CString;

ofi_provider::plug_in!({
    let name =
        param::string(&provider::TCP, c"prov_name", c"another name for this provider, for tests");
    let name = name.filter(|name| !name.is_empty()).and_then(|name| CString::new(name).ok());
    let (getinfo, fabric) = (getinfo_entry::<domain::TcpFabric>, open_fabric::<domain::TcpFabric>);
    let prov = provider::TCP.hand_out_with(name, getinfo, fabric);
    // Declares the parameters under the provider's name, so that fi_getparams lists them.
    info::Settings::read();
    config::config();
    prov
});
