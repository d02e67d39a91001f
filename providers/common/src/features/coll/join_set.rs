//! A joined set of endpoints, and its join numbers.
use super::notice::CollNotice;
use crate::abi::fi_addr_t;
use crate::addr::Addr;
use crate::error::Error;
use crate::reserved::{GROUP_SHIFT, JOINING_TAG, OWN_TAG, RANK_BITS, SEQ_BITS};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Number of distinguishable join numbers. This value itself stands for the question for the join
/// number.
pub(super) const ITERATIONS: u64 = (1 << SEQ_BITS) - 1;
pub(super) const QUESTION: u64 = ITERATIONS;

/// State of a set joined, or being joined, by the endpoint.
pub(super) struct Set {
    /// Hash of the addresses of all members, identifying the set among them.
    pub(super) name: u32,
    /// Hash of the members' ports, identifying the set in tags.
    pub(super) signature: u32,
    /// The endpoint's own rank.
    pub(super) rank: usize,
    /// Number of the join in progress, or of the next one.
    pub(super) round: u64,
    /// True if this endpoint has not taken part in any join of the set yet.
    pub(super) newcomer: bool,
    /// True while a join is in progress.
    pub(super) joining: bool,
    /// True if the last join succeeded, so the members agree on the join number.
    pub(super) agreed: bool,
    /// Known join numbers of members since the begin of a join.
    pub(super) known: BTreeMap<fi_addr_t, u64>,
    /// Members whose connection ended during a join, and the error.
    pub(super) lost: HashMap<fi_addr_t, Error>,
}

/// Returns true if a join number follows another one.
pub(super) fn is_after(round: u64, other: u64) -> bool {
    (1..ITERATIONS / 2).contains(&((round + ITERATIONS - other) % ITERATIONS))
}

impl Set {
    /// Returns the notice for a join number.
    pub(super) fn notice(&self, round: u64, error: i32) -> CollNotice {
        CollNotice { group: self.name, error, joining: joining_tag(self.signature, round) }
    }

    /// Records the join number of a member and adopts a higher one. Returns the members with a
    /// lower one, to be notified.
    pub(super) fn learn(&mut self, member: fi_addr_t, round: u64) -> Vec<fi_addr_t> {
        self.known.insert(member, round);
        if is_after(round, self.round) {
            self.round = round;
        }
        // A member that is in the turn which was the last one here may be through with it soon,
        // too.
        let through = !self.joining && self.agreed;
        let least = if through { (self.round + ITERATIONS - 1) % ITERATIONS } else { self.round };
        let behind = self.known.iter().filter(|(_, of)| is_after(least, **of));
        let behind: Vec<_> = behind.map(|(member, _)| *member).collect();
        self.known.extend(behind.iter().map(|member| (*member, self.round)));
        behind
    }
}

/// Returns a hash of the members' ports in rank order, distinguishing sets in tags. Addresses can
/// look different from different hosts, ports cannot. Sets with the same hash are joined one after
/// the other.
pub(super) fn signature(addrs: &[Addr]) -> u32 {
    hash(addrs.len(), addrs.iter().map(|addr| u64::from(addr.port())))
}

/// Returns a hash of all member addresses: the name of the set among members seeing the same
/// addresses.
pub(super) fn name(addrs: &[Addr]) -> u32 {
    let parts = addrs.iter().flat_map(|addr| match addr {
        Addr::Ip(addr) => {
            let ip = match addr.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let ip = u128::from(ip);
            vec![u64::from(addr.port()), (ip >> 64) as u64, ip as u64]
        }
        addr => addr.to_bytes().into_iter().map(u64::from).collect(),
    });
    hash(addrs.len(), parts)
}

fn hash(len: usize, parts: impl Iterator<Item = u64>) -> u32 {
    let mix = |hash: u64, part: u64| {
        let hash = (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ hash >> 32
    };
    parts.fold(0xcbf2_9ce4_8422_2325 ^ len as u64, mix) as u32
}

/// Returns the tag of a join, without the sender's rank.
pub(super) fn joining_tag(signature: u32, round: u64) -> u64 {
    OWN_TAG | JOINING_TAG | u64::from(signature) << GROUP_SHIFT | round << RANK_BITS
}

/// Returns the join number in the tag of a join or a query.
pub(super) fn round_of(joining: u64) -> u64 {
    joining >> RANK_BITS & ((1 << SEQ_BITS) - 1)
}
/// Removes the elements with a property, and returns them in their order.
pub(super) fn extract<T>(list: &mut Vec<T>, has: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, left) = std::mem::take(list).into_iter().partition(has);
    *list = left;
    taken
}
