//! The verbs provider: FI_EP_MSG endpoints over RDMA devices, by libibverbs and
//! librdmacm.
//!
//! [`info`] says what the devices offer, [`domain`], [`ep`] and [`pep`] are its
//! objects behind `ofi_provider::api`, [`engine`] does the work, [`memory`] registers
//! memory, [`hmem`] finds that of accelerators, [`sys`] wraps the two libraries,
//! which [`raw`] finds and describes. There is no protocol of our own: what goes over the wire is what
//! the devices speak, but for one byte before the data of a connection request
//! or answer, which says how long that is ([`cm`]).
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
pub mod info;
#[allow(unsafe_code)]
mod memory;
mod pep;
#[allow(unsafe_code)]
mod raw;
#[allow(unsafe_code)]
mod sys;
