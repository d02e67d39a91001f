//! `libdaplofi.so.2`: a uDAPL 2.0 provider, loaded by the DAT library (`libdat2.so.2`) through a
//! line of `dat.conf`, over the public calls of `libfabric.so.1` (fi_dapl(7)).
//!
//! [`table`] has the calls for `libdat2`, [`state`] their objects, [`fabric`] the calls of
//! libfabric, and [`layout`] the types of DAT's headers. Only `table` and `fabric` access memory
//! outside of Rust.
#![cfg_attr(not(test), deny(unsafe_code))]
mod adaptor;
mod answer;
mod endpoints;
#[allow(unsafe_code)]
mod fabric;
mod handles;
mod layout;
mod objects;
mod points;
mod posted;
mod progress;
mod state;
mod store;
#[allow(unsafe_code)]
mod table;
