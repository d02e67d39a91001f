//! Endpoint of the rxm provider between hostile peers and an arbitrary application: see
//! `engine/engine.c`.
use crate::engine;

pub fn run(script: &[u8]) {
    // It has its entry points from then on.
    rxm_fi::fi_prov_ini();
    engine::run(&rxm_fi::provider::RXM, script, true);
}
