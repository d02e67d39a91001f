//! The tcp provider: FI_EP_MSG and FI_EP_RDM endpoints over TCP sockets.
//!
//! [`info`] says what the provider offers; [`domain`], [`ep`] and [`pep`] are its objects behind
//! `ofi_provider::api`; [`engine`] does the work; [`wire`] holds the formats, which are those of the
//! original's tcp provider.
#![cfg_attr(not(test), deny(unsafe_code))]
mod admission;
mod aside;
mod callers;
mod config;
mod domain;
mod engine;
mod ep;
mod guests;
pub mod info;
#[allow(unsafe_code)]
mod net;
mod pep;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sock;
pub mod wire;
