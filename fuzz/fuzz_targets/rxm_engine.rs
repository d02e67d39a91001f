//! An endpoint of the rxm provider between hostile peers and an application that does what it
//! likes: see `engine/engine.c`.
#![no_main]
use libfuzzer_sys::fuzz_target;

#[path = "../engine/mod.rs"]
mod engine;

fuzz_target!(|script: &[u8]| {
    // It has its entry points from then on.
    rxm_fi::fi_prov_ini();
    engine::run(&rxm_fi::provider::RXM, script, true);
});
