//! An endpoint of the tcp provider between hostile peers and an application that does what it
//! likes: see `engine/engine.c`.
use crate::engine;

pub fn run(script: &[u8]) {
    engine::run(&tcp_fi::provider::TCP, script, false);
}
