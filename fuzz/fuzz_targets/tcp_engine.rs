//! An endpoint of the tcp provider between hostile peers and an application that does what it
//! likes: see `engine/engine.c`.
#![no_main]
use libfuzzer_sys::fuzz_target;

#[path = "../engine/mod.rs"]
mod engine;

fuzz_target!(|script: &[u8]| engine::run(&tcp_fi::provider::TCP, script, false));
