//! Early data: messages behind a connection request, before its response.
use super::rings::Rings;
use super::{OverRings, RingSim, SimLink, address, choices, choose};
use crate::transport::{ByteLink, Transport};
use crate::wire::{CM_LEN, CmMessage, CmType, PeerFeatures, RdmHello};
use ofi_provider::addr::Addr;
use ofi_simulation::{SimPlan, seeds};

/// Has a world use settings with early data.
fn send_early(seed: u64, world: &mut OverRings) {
    let secrecy = [0, 0, 0, 0, 0, 0, 1, 2][seed as usize % 8];
    world.settings = choose(seed, secrecy, |one| one.early_data > 0);
}

#[test]
fn random_events_of_worlds_with_early_data_complete_each_operation_once() {
    seeds::run_all(100, |seed| {
        let change = |_: &mut SimPlan, world: &mut OverRings| send_early(seed, world);
        RingSim::with(seed, change).run()
    });
}

/// Sends a request of a peer with the other byte order to node 0; returns its response.
fn response_to(sim: &mut RingSim, early: bool) -> CmType {
    let net = Rings::new(&sim.world.world, false);
    let [from, to]: [Addr; 2] = [address(7, 0), address(0, 0)].map(Addr::from);
    let link = net.dial(&from, false, &to).unwrap();
    sim.rounds(40);
    let hello = RdmHello { version: 1, features: 0, port: 1, pid: 1 };
    let knows = PeerFeatures { atomics: true, early, ..PeerFeatures::default() };
    let mut request = CmMessage::encode(CmType::Request, knows, &hello.encode());
    let (probe, mut response) = (CM_LEN - 8, [0; CM_LEN]);
    request[probe..CM_LEN].reverse();
    request.extend_from_slice(&[3; 24]);
    assert_eq!(link.send(&request), Ok(request.len()));
    sim.rounds(40);
    assert_eq!(link.recv(&mut response), Ok(CM_LEN));
    drop(link);
    sim.rounds(40);
    sim.world.world().ended(net.node());
    if response[1] == CmType::Nack as u8 { CmType::Nack } else { CmType::Response }
}

#[test]
fn early_data_in_another_byte_order_is_rejected() {
    let mut sim = RingSim::with(1, |plan, world| {
        (plan.nodes, plan.unknown_peers, plan.shortage, plan.cuts) = (2, 0, 0, 0);
        (world.settings, world.batched) = (&choices()[0][0], false);
        world.world().prompt = true;
    });
    assert!(SimLink::settings().early_data > 0);
    assert_eq!(response_to(&mut sim, true), CmType::Nack);
    assert_eq!(response_to(&mut sim, false), CmType::Response);
    sim.settle();
    sim.end_all();
}
