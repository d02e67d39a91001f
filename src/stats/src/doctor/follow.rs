//! Processes of this host communicating with given ones.
use crate::origin::AddressIndex;
use crate::read::StatsProcess;
use std::collections::HashSet;

/// Returns the given processes, and their peers among `others`, also the peers of peers.
pub fn with_peers(given: Vec<StatsProcess>, others: Vec<StatsProcess>) -> Vec<StatsProcess> {
    let count = given.len();
    let known: HashSet<_> = given.iter().map(StatsProcess::key).collect();
    let others = others.into_iter().filter(|process| !known.contains(&process.key()));
    let all: Vec<_> = given.into_iter().chain(others).collect();
    let mut index = AddressIndex::default();
    for (at, process) in all.iter().enumerate() {
        for endpoint in process.pages.iter().flat_map(|page| &page.endpoints) {
            index.insert(process.network(), &endpoint.address, at);
        }
    }
    let mut is_wanted: Vec<_> = (0..all.len()).map(|at| at < count).collect();
    let mut next: Vec<_> = (0..count).collect();
    while let Some(at) = next.pop() {
        let process = &all[at];
        for peer in process.pages.iter().flat_map(|page| page.peers()) {
            let found = index.find(process.network(), &peer.address);
            if let Some(other) = found.filter(|other| !is_wanted[*other]) {
                is_wanted[other] = true;
                next.push(other);
            }
        }
    }
    all.into_iter()
        .zip(is_wanted)
        .filter_map(|(process, wanted)| wanted.then_some(process))
        .collect()
}
