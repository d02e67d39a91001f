//! Fuzz targets parsing untrusted bytes.
#![no_main]
use libfuzzer_sys::fuzz_target;

#[path = "../chosen.rs"]
mod chosen;
#[path = "mod.rs"]
mod readers;

fuzz_target!(
    init: chosen::choose(readers::TARGETS),
    |bytes: &[u8]| chosen::run(bytes)
);
