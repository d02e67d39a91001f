//! Plug-in interface of a crate: its entry point and its structure `fi_provider`, its parameters
//! and its log lines.
#[allow(unsafe_code)]
pub mod log;
#[allow(unsafe_code)]
pub mod own_core;
#[allow(unsafe_code)]
pub mod param;
#[allow(unsafe_code)]
pub mod provider;
