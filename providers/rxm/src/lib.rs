//! The ofi_rxm provider: reliable datagrams over the connected endpoints of any
//! core provider.
//!
//! [`info`] says what it offers over which core providers; `domain` and `ep`
//! stand behind `ofi_provider::api`; `engine` makes connections and moves messages
//! over them; [`wire`] has the formats, which are the original's.
#![forbid(unsafe_code)]
mod config;
mod domain;
mod engine;
mod ep;
pub mod info;
pub mod wire;
