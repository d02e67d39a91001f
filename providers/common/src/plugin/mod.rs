//! What makes a crate a plug-in: its entry and its structure `fi_provider`, its parameters and its
//! lines in the log.
#[allow(unsafe_code)]
pub mod log;
#[allow(unsafe_code)]
pub mod param;
#[allow(unsafe_code)]
pub mod provider;
