//! The bits and numbers that the library takes for itself in fields that are shared with
//! applications: one table, so that two features never take the same.
//!
//! | field | bit or value | constant | meaning |
//! |---|---|---|---|
//! | flags of an operation and of its completion | 54 | [`TIMED`] | a transfer that is timed |
//! | | 59 | [`IMPORTED`] | a receive of another provider's queue |
//! | | 60 | [`TO_GROUPS`] | a send that may be for a multicast group |
//! | | 61 | [`ASIDE`] | an operation whose completion is not the application's |
//! | | 62 | [`OF_SHARED_RX`] | a receive of a shared receive context |
//! | | 63 | [`ONLY_TAG`] | a receive that only names a tag |
//! | | all | [`ERROR_MARK`] | the place of a failure in a completion queue |
//! | tag of a message, with FI_COLLECTIVE or FI_MULTICAST | 63 | [`OWN_TAG`] | a message of the library's own |
//! | | 62, with 63 | [`JOINING_TAG`] | it is about joining a group of a collective |
//! | | 63 and 0 alone | [`MULTICAST_TAG`] | a notice of multicast groups |
//! | `fi_addr_t` | 61 | [`AV_SET_ADDR`] | a set of addresses (fi_av_set_addr) |
//! | | 62 | [`COLLECTIVE_ADDR`] | a group of a collective |
//! | | upper half | [`MULTICAST_ADDR`] | a multicast group |
//! | command of fi_control | | [`SPARES_CALLERS`], [`HAS_ENTRIES`], [`SENDS_AT_ONCE`] | see there |
//! | behind the table of a receive queue's owner (fi_peer(3)) | | [`TAKES_WHOLE`] | see there |
//!
//! Flags of fi_getinfo that only providers use are in `ofi::info`, where the core sees them too.
//! What is asserted at the end of this file is checked when it is compiled.
use crate::abi::{self, fi_addr_t};
use core::ffi::c_int;

/// The flag of a transfer that is timed ([`TransferTimes`](crate::facts::TransferTimes)), while it is under way.
pub const TIMED: u64 = 1 << 54;

/// The flag of a receive that belongs to another provider (`crate::imports`).
pub(crate) const IMPORTED: u64 = 1 << 59;

/// Among the flags of every send of an endpoint with FI_MULTICAST, so that no other endpoint
/// has to look where its sends go.
pub(crate) const TO_GROUPS: u64 = 1 << 60;

/// The flag of operations whose completion is not the application's: it goes to
/// [`Aside::done`](crate::later::Aside::done).
pub const ASIDE: u64 = 1 << 61;

/// The flag of a receive of a shared receive context: a success is reported if the endpoint
/// whose message takes it reports all.
pub const OF_SHARED_RX: u64 = 1 << 62;

/// The flag of a tagged receive that only names a tag and has no buffer, as endpoints with
/// buffered receives have them.
pub const ONLY_TAG: u64 = 1 << 63;

/// The flags above: calls of the application's never pass them on.
pub(crate) const OWN_FLAGS: u64 = TIMED | IMPORTED | TO_GROUPS | ASIDE | OF_SHARED_RX | ONLY_TAG;

/// In place of an entry's flags in a completion queue's ring: the entry stands for the next
/// failure.
pub(crate) const ERROR_MARK: u64 = u64::MAX;

/// The bit of the tag of all messages of the library's own. An endpoint without FI_COLLECTIVE
/// and FI_MULTICAST has none of those, and leaves the bit to the application.
pub const OWN_TAG: u64 = 1 << 63;

/// With [`OWN_TAG`]: the message is about joining a group of a collective.
pub(crate) const JOINING_TAG: u64 = 1 << 62;

/// The tag of notices of collective groups: no group, no operation.
pub(crate) const COLLECTIVE_TAG: u64 = OWN_TAG;

/// The tag of notices of multicast groups. As a collective operation's it would be of group 0,
/// which there is none of.
pub(crate) const MULTICAST_TAG: u64 = OWN_TAG | 1;

/// The bits of an own tag that hold the rank of its sender,
pub(crate) const RANK_BITS: u32 = 16;
/// above them those that tell operations of a group apart,
pub(crate) const SEQ_BITS: u32 = 14;
/// and above those the group's number, or what a set of members is known by.
pub(crate) const GROUP_SHIFT: u32 = RANK_BITS + SEQ_BITS;

/// The bit that marks the address of a set of addresses (fi_av_set_addr).
pub(crate) const AV_SET_ADDR: fi_addr_t = 1 << 61;

/// What the address of a group of a collective looks like; its number is the lower half.
pub(crate) const COLLECTIVE_ADDR: fi_addr_t = 1 << 62;

/// What the upper half of a multicast group's address looks like: no index of an address
/// vector, also with a peer's context in its highest bits.
pub const MULTICAST_ADDR: fi_addr_t = 0x4d63_6173 << 32;

/// The half of an address that tells what it is.
const UPPER_HALF: fi_addr_t = !(u32::MAX as fi_addr_t);

/// Whether an address is that of a multicast group.
pub fn is_group(dest: fi_addr_t) -> bool {
    dest & UPPER_HALF == MULTICAST_ADDR
}

/// A command of fi_control that only queues of this crate know: who reads the queue does so on
/// behalf of others, and has something to clean up where a cancelled thread would be ended in
/// vain reads. A utility provider says so once, and then need not keep its thread from being
/// cancelled around every read. Who passes room for it gets the call that makes progress and reads nothing
/// ([`MakesTurn`](crate::operation::MakesTurn)).
pub(crate) const SPARES_CALLERS: c_int = 0x0f1_0001;

/// A command of fi_control that only queues of this crate know: it fails with -FI_EAGAIN if there
/// is nothing to read. A read would make progress first, which a utility provider that has several
/// queues of one domain needs once for all of them.
pub(crate) const HAS_ENTRIES: c_int = 0x0f1_0002;

/// A command of fi_control that only endpoints of this crate know: it gives the calls that send a
/// message and tell at once if it is complete, which writes no entry then
/// ([`SendsAtOnce`](crate::operation::SendsAtOnce)). A utility provider that has the application's queue
/// writes the entry there.
pub(crate) const SENDS_AT_ONCE: c_int = 0x0f1_0005;

/// Behind a `struct fi_ops_srx_owner`, whose size says that there is more: the owner is one of this
/// library's, and a function that takes messages that are all here follows (`crate::imports`).
pub(crate) const TAKES_WHOLE: u64 = 0x0f1_77a6_e5a1_1004;

/// The flags of the API that a call that starts an operation may have, an endpoint by default,
/// or a completion.
const PUBLIC_FLAGS: u64 = abi::FI_MSG
    | abi::FI_RMA
    | abi::FI_TAGGED
    | abi::FI_ATOMIC
    | abi::FI_MULTICAST
    | abi::FI_COLLECTIVE
    | abi::FI_READ
    | abi::FI_WRITE
    | abi::FI_RECV
    | abi::FI_SEND
    | abi::FI_REMOTE_READ
    | abi::FI_REMOTE_WRITE
    | abi::FI_MULTI_RECV
    | abi::FI_REMOTE_CQ_DATA
    | abi::FI_MORE
    | abi::FI_PEEK
    | abi::FI_TRIGGER
    | abi::FI_FENCE
    | abi::FI_PRIORITY
    | abi::FI_COMPLETION
    | abi::FI_INJECT
    | abi::FI_INJECT_COMPLETE
    | abi::FI_TRANSMIT_COMPLETE
    | abi::FI_DELIVERY_COMPLETE
    | abi::FI_AFFINITY
    | abi::FI_COMMIT_COMPLETE
    | abi::FI_MATCH_COMPLETE
    | abi::FI_PEER_TRANSFER
    | abi::FI_XPU_TRIGGER
    | abi::FI_HMEM
    | abi::FI_RMA_PMEM
    | abi::FI_RMA_EVENT
    | abi::FI_AUTH_KEY
    | abi::FI_SOURCE
    | abi::FI_DISCARD
    | abi::FI_CLAIM
    | abi::FI_SELECTIVE_COMPLETION;

/// Whether no two of these have a bit in common, and each has one.
const fn are_apart(all: &[u64]) -> bool {
    let (mut seen, mut at) = (0, 0);
    while at < all.len() {
        if all[at] == 0 || seen & all[at] != 0 {
            return false;
        }
        seen |= all[at];
        at += 1;
    }
    true
}

// A flag of ours is none of another feature's, and none of the API's.
const _: () = assert!(are_apart(&[PUBLIC_FLAGS, TIMED, TO_GROUPS, ASIDE, OF_SHARED_RX, ONLY_TAG]));
// No entry has all the bits that mark a failure.
const _: () = assert!((PUBLIC_FLAGS | OWN_FLAGS) != ERROR_MARK);
// The parts of an own tag do not overlap: a group's number has 32 bits, as has what a set of
// members is known by.
const _: () = assert!(are_apart(&[
    OWN_TAG,
    JOINING_TAG,
    (u32::MAX as u64) << GROUP_SHIFT,
    ((1 << SEQ_BITS) - 1) << RANK_BITS,
    (1 << RANK_BITS) - 1,
]));
// A notice of multicast has no group's number, and is not one of collectives.
const _: () = assert!(MULTICAST_TAG & OWN_TAG != 0 && MULTICAST_TAG != COLLECTIVE_TAG);
const _: () = assert!((MULTICAST_TAG & !OWN_TAG) >> RANK_BITS == 0);
// The three kinds of address are apart, whatever their lower halves, and FI_ADDR_UNSPEC and
// FI_ADDR_NOTAVAIL are none of them.
const _: () = assert!(are_apart(&[AV_SET_ADDR, COLLECTIVE_ADDR]));
const _: () = assert!(MULTICAST_ADDR & !UPPER_HALF == 0 && MULTICAST_ADDR != COLLECTIVE_ADDR);
const _: () = assert!(abi::FI_ADDR_UNSPEC & UPPER_HALF != MULTICAST_ADDR);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_values_that_share_a_bit_are_not_apart() {
        assert!(are_apart(&[1, 2, 4 | 8]));
        assert!(!are_apart(&[1, 2, 4 | 2]));
        assert!(!are_apart(&[1, 0]));
    }

    #[test]
    fn no_index_of_a_vector_looks_like_a_group() {
        assert!(is_group(MULTICAST_ADDR) && is_group(MULTICAST_ADDR | 77));
        let none = [abi::FI_ADDR_UNSPEC, abi::FI_ADDR_NOTAVAIL];
        for index in [0, u64::from(u32::MAX), COLLECTIVE_ADDR | 77].into_iter().chain(none) {
            assert!(!is_group(index));
        }
        // Nor does one with a context (fi_rx_addr) of those there can be.
        for bits in 1..=32 {
            for context in 0..crate::contexts::MAX_CONTEXTS as u64 {
                assert!(!is_group(context << (64 - bits) | 5));
            }
        }
    }
}
