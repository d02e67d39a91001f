//! Connection storms: a thousand nodes calling one another at the same time, with lossy listeners.
use super::rings::{FIRST_REPEAT, ListenerLosses};
use super::{RingSim, choices};
use ofi_provider::abi::FI_COMPLETION;
use ofi_simulation::{NodeConfig, SimRandom};

/// Bytes of a message.
const LEN: usize = 64;

/// Connections in the queue of a listener, and the share of lost requests.
const BACKLOG: usize = 16;
const LOST: usize = 8;

/// Creates so many nodes over sockets, with this limit of the connections of each.
fn nodes(count: usize, limit: Option<usize>) -> RingSim {
    let settings = choices()[0].iter().find(|one| one.max_connections == limit).unwrap();
    let sim = RingSim::with(7, |plan, world| {
        (plan.nodes, plan.unknown_peers, plan.shortage, plan.accesses) = (count, 0, 0, 0);
        (plan.shape, plan.parts, plan.hostile) = (NodeConfig::Single, 1, false);
        (plan.tx_size, plan.cq_size) = (64, 4096);
        (world.settings, world.batched, world.batch_flusher) = (settings, false, true);
    });
    let mut inside = sim.world.world();
    (inside.losses.one_in, inside.losses.backlog) = (LOST, BACKLOG);
    drop(inside);
    sim
}

/// Has all nodes send to the first one and to another one at once. Returns the operations.
fn storm(sim: &mut RingSim, count: usize, random: &mut SimRandom) -> Vec<usize> {
    let mut ops = Vec::new();
    for node in 1..count {
        for to in [random.below(count), 0].into_iter().filter(|to| *to != node) {
            ops.push(sim.receive_now((to, 0), LEN));
            ops.push(sim.send_immediately(node, (to, 0), LEN, FI_COMPLETION));
        }
    }
    ops
}

fn run(count: usize, limit: Option<usize>) {
    let mut sim = nodes(count, limit);
    let mut random = SimRandom::new(11);
    let ops = storm(&mut sim, count, &mut random);
    sim.settle();
    let failed = ops.iter().filter(|id| !sim.is_over(**id) || sim.failure(**id).is_some());
    assert_eq!(failed.count(), 0, "of {} operations", ops.len());
    assert!(sim.world.world().losses.count > count / 2, "requests were lost");
    sim.end_all();
}

#[test]
fn messages_of_a_thousand_peers_arrive_although_listeners_lose_their_calls() {
    run(1000, None);
}

#[test]
fn messages_of_hundreds_of_peers_arrive_over_few_connections() {
    run(300, Some(3));
}

/// Has each of two nodes send to the other; the connection request of the first one is lost. Returns
/// the time until both messages arrived, in nanoseconds.
fn cross(first: usize) -> u64 {
    let (mut sim, second) = (nodes(2, None), 1 - first);
    let mut ops = Vec::new();
    for (node, to, one_in) in [(first, second, 1), (second, first, 0)] {
        sim.world.world().losses = ListenerLosses { one_in, ..ListenerLosses::default() };
        ops.push(sim.receive_now((to, 0), LEN));
        ops.push(sim.send_immediately(node, (to, 0), LEN, FI_COMPLETION));
        sim.rounds(50);
    }
    sim.rounds(500);
    (0..2).for_each(|node| sim.read(node, usize::MAX));
    assert!(ops.iter().all(|id| sim.is_over(*id) && sim.failure(*id).is_none()));
    let nanos = sim.world.world().nanos;
    sim.settle();
    sim.end_all();
    nanos
}

#[test]
fn a_request_is_accepted_while_the_own_one_is_lost_at_a_listener() {
    for first in [0, 1] {
        assert!(cross(first) < FIRST_REPEAT, "before the kernel repeats the lost request");
    }
}
