//! Memory of devices shared by peers of one host (FI_HMEM).
use super::tests::{exchange, two};
use super::{RingSim, choices};
use crate::settings::StreamSettings;
use crate::transport::{ByteLink, ShmLink};
use crate::wire::{StreamHeader, StreamOp};
use ofi_provider::device_allocation::{DeviceHandle, HANDLE_LEN};
use ofi_provider::shm_channel::DeviceCell;
use ofi_simulation::{NodeConfig, seeds};

/// Returns a simulation of two nodes with memory of devices on one host.
fn with_devices(seed: u64) -> RingSim {
    RingSim::with(seed, |plan, world| {
        (plan.nodes, plan.largest, plan.steps) = (2, 60_000, 1500);
        (plan.cuts, plan.closes, plan.hostile) = (0, 0, false);
        if seed % 2 == 1 {
            (plan.shape, plan.parts) = (NodeConfig::Buffered, 1);
        }
        world.has_devices = true;
        let is_shm = |one: &&StreamSettings| one.local.enabled && one.local.memory > 0;
        let all: Vec<_> = choices()[0].iter().filter(is_shm).collect();
        world.settings = all[seed as usize * 7 % all.len()];
    })
}

/// The connections of contexts are rejected as the end of others of the same peer: in this world all
/// requests to close connections are, one after the other.
#[test]
fn connection_exceeds_the_limit_after_a_wait_if_peers_reject_all_requests() {
    with_devices(166).run();
}

#[test]
fn allocations_of_devices_are_mapped_by_peers() {
    let copies = std::cell::Cell::new(0);
    seeds::run_all(16, |seed| {
        let steps = with_devices(seed).run();
        copies.set(copies.get() + ofi_simulation::device::shared_copies());
        steps
    });
    assert!(copies.get() > 0, "no message was copied by the device of its receiver");
}

/// A peer sends the head of a message with `cells` in place of its bytes, in memory of devices.
/// Returns the number of mapped allocations if its connection stays.
fn takes_cells(cells: &[DeviceCell]) -> Option<usize> {
    let mut sim = RingSim::with(1, |plan, world| {
        two(plan);
        world.has_devices = true;
        let is_shm = |one: &&StreamSettings| one.local.enabled && one.local.talk == (0, 0);
        world.settings = choices()[0].iter().find(is_shm).unwrap();
    });
    for _ in 0..4 {
        exchange(&mut sim, 0, 1);
        exchange(&mut sim, 1, 0);
    }
    sim.receive_now((1, 0), 8000);
    let (engine, peer) = (sim.engine(0).unwrap(), sim.engine(1).unwrap());
    let state = engine.lock();
    let (_, conn) = state.rx.tx.io.conns.iter().next().unwrap();
    let header = StreamHeader { len: 8000, id: conn.tx_id, ..StreamHeader::of(StreamOp::Msg) };
    let mut wire = [0; 40];
    let len = header.write(conn.order, &mut wire);
    assert_eq!(conn.link.send(&wire[..len]), Ok(len));
    drop(state);
    for cells in cells.chunks(20) {
        let state = engine.lock();
        let (_, conn) = state.rx.tx.io.conns.iter().next()?;
        let channel = conn.link.device_channel().expect("the peers use shared memory");
        cells.iter().for_each(|one| assert_eq!(channel.send_device_cell(one, None), Ok(true)));
        drop(state);
        // The sender does not take the answers of its peer.
        (0..20).for_each(|_| sim.poll_alone(1));
    }
    let state = peer.lock();
    let conn = state.rx.tx.io.conns.iter().next();
    let mapped = conn.map(|(_, conn)| conn.devices.as_ref().map_or(0, |one| one.mapped.len()));
    drop(state);
    drop((engine, peer));
    // Its oracle does not know of the message.
    std::mem::forget(sim);
    mapped
}

#[test]
fn hostile_cells_of_devices_end_their_connection_alone() {
    let handle = DeviceHandle { device: [9; 16], bytes: [9; HANDLE_LEN], file: None };
    let allocation = |len| DeviceCell::allocation(1, 1, len, handle);
    assert_eq!(takes_cells(&[allocation(usize::MAX / 2), allocation(100)]), Some(1));
    // An allocation of an unknown interface or without bytes is refused.
    let unknown = DeviceCell::allocation(1, 77, 100, handle);
    assert_eq!(takes_cells(&[unknown, allocation(0)]), Some(0));
    for hostile in [
        vec![DeviceCell::buffer(1, 0, 100)],
        vec![unknown, DeviceCell::buffer(1, 0, 100)],
        vec![allocation(100), DeviceCell::buffer(2, 0, 100)],
        vec![allocation(100), DeviceCell::buffer(1, 1, 100)],
        vec![allocation(100), DeviceCell::buffer(1, usize::MAX, 2)],
        vec![allocation(100), DeviceCell::buffer(1, 0, 0)],
        vec![allocation(8001), DeviceCell::buffer(1, 0, 8001)],
        vec![allocation(100), DeviceCell::ended(1), DeviceCell::buffer(1, 0, 100)],
    ] {
        assert_eq!(takes_cells(&hostile), None, "{hostile:?}");
    }
    let many: Vec<_> = (1..600).map(|n| DeviceCell::allocation(n, 1, 100, handle)).collect();
    assert_eq!(takes_cells(&many), Some(256));
}
