//! Fuzz targets consisting of whole engines.
#![no_main]
use libfuzzer_sys::fuzz_target;

#[path = "../chosen.rs"]
mod chosen;
#[path = "../../engine/mod.rs"]
mod engine;
mod rxm_engine;
mod stream_sim;
mod tcp_engine;

fuzz_target!(
    init: chosen::choose(&[
        ("rxm_engine", rxm_engine::run),
        ("stream_sim", stream_sim::run),
        ("tcp_engine", tcp_engine::run),
    ]),
    |bytes: &[u8]| chosen::run(bytes)
);
