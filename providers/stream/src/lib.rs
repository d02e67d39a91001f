//! Messages, remote memory access and atomic operations over links that carry bytes in order.
//!
//! [`engine`] does the work, for any kind of link: a provider implements the traits of [`net`] for
//! the links it has and hands out endpoints of the engine. [`wire`] holds the formats, which are
//! those of the original's tcp provider; [`callers`] and [`guests`] keep strangers within bounds,
//! and [`settings`] are what a provider lets its users choose.
#![cfg_attr(not(any(test, feature = "sim")), forbid(unsafe_code))]
#![warn(missing_docs)]
pub mod callers;
pub mod engine;
pub mod guests;
pub mod net;
pub mod settings;
pub mod wire;
