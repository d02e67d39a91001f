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
pub mod info;
#[allow(unsafe_code)]
mod net;
mod pep;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sock;
