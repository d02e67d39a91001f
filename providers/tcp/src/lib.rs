//! The tcp provider: FI_EP_MSG and FI_EP_RDM endpoints over TCP sockets.
//!
//! [`info`] says what the provider offers; [`net`] gives the engine of `ofi_stream`, which does the
//! work and has the provider's objects, sockets for links. Peers of one host go on through memory
//! ([`WithLocal`]).
#![cfg_attr(not(test), deny(unsafe_code))]
mod admission;
mod config;
mod info;
#[allow(unsafe_code)]
mod net;
pub mod provider;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sock;

use ofi_provider::param;
use ofi_stream::local::WithLocal;
use std::ffi::CString;

ofi_provider::plug_in!({
    let name =
        param::string(&provider::TCP, c"prov_name", c"another name for this provider, for tests");
    let name = name.filter(|name| !name.is_empty()).and_then(|name| CString::new(name).ok());
    let prov = ofi_stream::objects::hand_out::<WithLocal<net::Sockets>>(name);
    // Declares the parameters under the provider's name, so that fi_getparams lists them.
    info::settings();
    config::config();
    prov
});
