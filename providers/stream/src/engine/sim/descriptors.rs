//! Endpoints with too few descriptors for their connections.
use super::tests::{conns, exchange, two};
use super::{OverRings, RingSim, choices, choose};
use crate::settings::RailSettings;
use crate::transport::LinkClock;
use ofi_provider::abi::FI_COMPLETION;
use ofi_simulation::{NodeConfig, SimPlan, seeds};

/// Runs a round in which a node accepts no connection request.
fn run_without_accepting(sim: &mut RingSim, node: usize) {
    let engine = sim.engine(node).unwrap();
    let mut state = engine.lock();
    let (ep, _) = state.rx.tx.eps.iter().next().unwrap();
    state.rx.tx.io.pause_accept(ep);
    drop(state);
    sim.rounds(1);
}

/// Has a node request the end of its only connection.
fn request_end(sim: &RingSim, node: usize) {
    let engine = sim.engine(node).unwrap();
    let mut state = engine.lock();
    let now = state.rx.tx.io.net.now();
    let (id, _) = state.rx.tx.io.conns.iter().next().unwrap();
    state.rx.tx.begin_closing(id, now).unwrap();
}

/// Two nodes call each other, and one has no descriptor for the other's request, with early data or
/// without.
#[test]
fn connection_ends_by_agreement_while_a_request_is_unanswered() {
    for early in [false, true] {
        let mut sim = RingSim::with(1, |plan, world| {
            two(plan);
            let mut all = choices()[0].iter();
            world.settings = all.find(|one| (one.early_data > 0) == early).unwrap();
            (world.batched, world.batch_flusher) = (false, false);
            world.world().prompt = true;
        });
        sim.receive_now((1, 0), 100);
        sim.receive_now((0, 0), 100);
        run_without_accepting(&mut sim, 1);
        let first = sim.send_immediately(0, (1, 0), 100, FI_COMPLETION);
        (0..4).for_each(|_| sim.poll_once(0));
        let second = sim.send_immediately(1, (0, 0), 100, FI_COMPLETION);
        while !(sim.is_over(first) && sim.is_over(second)) {
            run_without_accepting(&mut sim, 1);
            (0..2).for_each(|node| sim.read(node, usize::MAX));
        }
        // A withdrawn request may be dropped by now.
        assert!(early || (conns(&sim, 0), conns(&sim, 1)) == ((2, 0), (1, 0)));
        request_end(&sim, 1);
        (0..40).for_each(|_| run_without_accepting(&mut sim, 1));
        assert_eq!(conns(&sim, 1).1, 1, "early: {early}");
        exchange(&mut sim, 0, 1);
        exchange(&mut sim, 1, 0);
        assert_eq!((conns(&sim, 0).0, conns(&sim, 1).0), (1, 1), "early: {early}");
        sim.settle();
        sim.end_all();
    }
}

/// Each node has few descriptors for connections, and any configured limit.
#[test]
fn endpoints_with_few_descriptors_complete_each_operation_once() {
    seeds::run_all(60, |seed| {
        let change = |plan: &mut SimPlan, world: &mut OverRings| {
            (plan.shortage, plan.cuts, plan.closes, plan.parts) = (0, 0, 0, 1);
            (plan.shape, plan.nodes, plan.unknown_peers) = (NodeConfig::Single, 8, 0);
            world.settings = choose(seed, 0, |one| one.rails == RailSettings::default());
            world.world().descriptors = 5 + seed as usize % 4;
        };
        RingSim::with(seed, change).run()
    });
}
