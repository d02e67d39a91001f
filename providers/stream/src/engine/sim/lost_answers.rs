//! Losses of the first links of connections after any number of bytes of the accepting end. Links can be
//! resumed, so no operation may fail.
use super::rings::DyingLinks;
use super::{OverRings, RingSim, choices, look};
use crate::settings::StreamSettings;
use ofi_simulation::{ConnectedSim, SimPlan};

/// Bytes of the answer, the first frames and the next few frames.
const UNENCRYPTED: usize = 190;

/// Bytes of the accepting end in the handshake of a pre-shared key, and all bytes with encryption.
const HANDSHAKE: usize = 56;
const ENCRYPTED: usize = 250;

/// Returns settings of links with one socket, surviving its loss. `secrecy`: index of [`choices`].
fn resuming(secrecy: usize) -> &'static StreamSettings {
    let is_meant = |one: &&StreamSettings| {
        let is_limited = one.max_connections.is_some() || one.local.enabled;
        one.rails.resume > 0 && one.rails.count() == 1 && !is_limited
    };
    choices()[secrecy].iter().find(is_meant).unwrap()
}

/// Prepares a world of two nodes with so many links dying after `position` bytes.
fn prepare(plan: &mut SimPlan, world: &mut OverRings, secrecy: usize, position: usize) {
    println!("position {position}");
    (plan.nodes, plan.shortage, plan.unknown_peers) = (2, 0, 0);
    plan.cuts = usize::MAX >> 1;
    (world.settings, world.batched) = (resuming(secrecy), false);
    look(&world.world).dying = DyingLinks { count: 1 + position % 3, position };
}

fn connect(secrecy: usize, position: usize) {
    let change = |plan: &mut SimPlan, world: &mut OverRings| {
        prepare(plan, world, secrecy, position);
        plan.steps = 1500;
    };
    ConnectedSim::<OverRings>::connecting(position as u64, change).run();
}

fn send(secrecy: usize, position: usize) {
    let change = |plan: &mut SimPlan, world: &mut OverRings| {
        prepare(plan, world, secrecy, position);
        (plan.steps, plan.hostile) = (1500, false);
    };
    RingSim::with(position as u64, change).run();
}

#[test]
fn connected_endpoints_connect_although_their_links_die_at_any_byte_of_the_answer() {
    (0..=UNENCRYPTED).for_each(|position| connect(0, position));
    // A reset during the handshake is a rejection.
    (HANDSHAKE + 1..ENCRYPTED).step_by(3).for_each(|position| connect(2, position));
}

#[test]
fn messages_arrive_although_the_links_of_endpoints_die_at_any_byte_of_the_answer() {
    (0..=UNENCRYPTED).for_each(|position| send(0, position));
    (0..ENCRYPTED).step_by(3).for_each(|position| send(2, position));
}
