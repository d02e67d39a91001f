//! `libdaplofi.so.2`: a uDAPL 2.0 provider, which the DAT library (`libdat2.so.2`) loads through a
//! line of `dat.conf`, on the public calls of `libfabric.so.1` (fi_dapl(7)).
//!
//! [`table`] is what `libdat2` calls, [`state`] what is behind it, [`fabric`] what that calls of
//! libfabric, [`layout`] the types of DAT's headers. Only `table` and `fabric` touch memory that is
//! not Rust's.
#![cfg_attr(not(test), deny(unsafe_code))]
mod answer;
#[allow(unsafe_code)]
mod fabric;
mod handles;
mod layout;
mod posted;
mod state;
#[allow(unsafe_code)]
mod table;
