//! Endpoint of the tcp provider between hostile peers and an arbitrary application: see
//! `engine/engine.c`.
use crate::engine;

pub fn run(script: &[u8]) {
    engine::run(&tcp_fi::provider::TCP, script, false);
}
