//! The verbs provider: FI_EP_MSG endpoints over RDMA devices, by libibverbs and librdmacm.
//!
//! [`info`] lists the attributes supported by the devices. [`domain`], [`ep`] and [`pep`] are its
//! objects implementing `ofi_provider::api`. [`engine`] runs the operations, [`memory`] registers
//! memory, [`hmem`] exports accelerator memory, and [`sys`] wraps the two libraries, found and
//! described by [`raw`].
//!
//! There is no additional protocol: the wire format is that of the devices, except for one byte
//! before the data of a connection request or response, containing its length ([`cm`]).
#![cfg_attr(not(test), deny(unsafe_code))]
#[allow(unsafe_code)]
mod affinity;
mod cm;
mod config;
mod device;
mod domain;
mod engine;
mod ep;
#[allow(unsafe_code)]
mod hmem;
mod info;
#[allow(unsafe_code)]
mod memory;
mod pep;
pub mod provider;
#[allow(unsafe_code)]
mod raw;
#[allow(unsafe_code)]
mod sys;

use ofi_provider::api::{getinfo_entry, open_fabric};

ofi_provider::plug_in!({
    // Declares the parameters, so that fi_getparams lists them.
    config::config();
    let (getinfo, fabric) =
        (getinfo_entry::<domain::VerbsFabric>, open_fabric::<domain::VerbsFabric>);
    provider::VERBS.hand_out_with(None, getinfo, fabric)
});
