//! Bits and numbers reserved by the library in fields shared with applications. One table, so two
//! features never use the same one.
//!
//! | field | bit or value | constant | meaning |
//! |---|---|---|---|
//! | flags of an operation and of its completion | 54 | [`TIMED`] | a timed transfer |
//! | | 55 | [`WITH_DEVICES`] | an operation possibly with memory of devices, for a provider with such memory |
//! | | 59 | [`IMPORTED`] | a receive of another provider's queue |
//! | | 60 | [`TO_GROUPS`] | a send possibly for a multicast group |
//! | | 61 | [`INTERNAL_OP`] | an internal operation, without a completion for the application |
//! | | 62 | [`OF_SHARED_RX`] | a receive of a shared receive context |
//! | | 63 | [`ONLY_TAG`] | a receive naming only a tag |
//! | | all | [`ERROR_MARK`] | the entry of a failure in a completion queue |
//! | tag of a message, with FI_COLLECTIVE or FI_MULTICAST | 63 | [`OWN_TAG`] | an internal message of the library |
//! | | 62, with 63 | [`JOINING_TAG`] | a message for joining a group of a collective |
//! | | 63 and 0 alone | [`MULTICAST_TAG`] | a notice of multicast groups |
//! | | 63 and 1 alone | [`IDENTITY_TAG`] | a notice of members' ids |
//! | `fi_addr_t` | 61 | [`AV_SET_ADDR`] | a set of addresses (fi_av_set_addr) |
//! | | 62 | [`COLLECTIVE_ADDR`] | a group of a collective |
//! | | upper half | [`MULTICAST_ADDR`] | a multicast group |
//! | command of fi_control | | [`SPARES_CALLERS`], [`HAS_ENTRIES`], [`SENDS_AT_ONCE`], [`DELIVERS_PACKETS`], [`RUNS_PROGRESS`], [`ENDS_WAIT`] | see there |
//! | behind the table of a receive queue's owner (fi_peer(3)) | | [`TAKES_WHOLE`] | see there |
//!
//! Flags of fi_getinfo used only by providers are in `ofi::info`, because the core needs them too.
//! The assertions at the end of this file are checked at compile time.
use crate::abi::{self, fi_addr_t};
use core::ffi::c_int;

/// Flag of a timed transfer ([`TransferTimes`](crate::stats::TransferTimes)) while it is in flight.
pub const TIMED: u64 = 1 << 54;

/// Flag of every operation of an endpoint with FI_HMEM, so no other endpoint has to look for memory
/// of devices. A provider gets it with sends and receives of such memory.
pub const WITH_DEVICES: u64 = 1 << 55;

/// Flag of a receive belonging to another provider (`crate::imports`).
pub(crate) const IMPORTED: u64 = 1 << 59;

/// Flag of every send of an endpoint with FI_MULTICAST, so no other endpoint has to check the
/// destinations of its sends.
pub(crate) const TO_GROUPS: u64 = 1 << 60;

/// Flag of internal operations: the completion goes to [`InternalOps::done`](crate::deferred::InternalOps::done),
/// not to the application.
pub const INTERNAL_OP: u64 = 1 << 61;

/// Flag of a receive of a shared receive context: its success is reported if the endpoint receiving
/// the message reports all successes.
pub const OF_SHARED_RX: u64 = 1 << 62;

/// Flag of a tagged receive with a tag and without a buffer, for endpoints with buffered receives.
pub const ONLY_TAG: u64 = 1 << 63;

/// The flags above: calls of the application's never pass them on.
pub(crate) const OWN_FLAGS: u64 =
    TIMED | WITH_DEVICES | IMPORTED | TO_GROUPS | INTERNAL_OP | OF_SHARED_RX | ONLY_TAG;

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

/// Tag of notices of multicast groups. As the tag of a collective operation it would belong to
/// group 0, and no group has this number.
pub(crate) const MULTICAST_TAG: u64 = OWN_TAG | 1;

/// Tag of notices of ids between members of a set. It would be of group 0, as the other notices.
pub(crate) const IDENTITY_TAG: u64 = OWN_TAG | 2;

/// Bits of an internal tag for the rank of its sender.
pub(crate) const RANK_BITS: u32 = 16;
/// Bits for the sequence number of an operation of a group, above the rank.
pub(crate) const SEQ_BITS: u32 = 14;
/// Lowest bit of the group number, or of the identifier of a set of members.
pub(crate) const GROUP_SHIFT: u32 = RANK_BITS + SEQ_BITS;

/// Bit marking the address of a set of addresses (fi_av_set_addr).
pub(crate) const AV_SET_ADDR: fi_addr_t = 1 << 61;

/// Bit marking the address of a group of a collective; the lower half is its number.
pub(crate) const COLLECTIVE_ADDR: fi_addr_t = 1 << 62;

/// Upper half of a multicast group's address. It is no index of an address vector, even with a
/// peer's context in its highest bits.
pub const MULTICAST_ADDR: fi_addr_t = 0x4d63_6173 << 32;

/// Half of an address with its kind.
const UPPER_HALF: fi_addr_t = !(u32::MAX as fi_addr_t);

/// Returns true if the address is that of a multicast group.
pub fn is_group(dest: fi_addr_t) -> bool {
    dest & UPPER_HALF == MULTICAST_ADDR
}

/// Command of fi_control known only to queues of this crate. It declares that the caller reads the
/// queue on behalf of others and has to clean up, so a thread must not be cancelled in empty polls.
/// A utility provider sends it once and need not disable cancellation around every read.
pub(crate) const SPARES_CALLERS: c_int = 0x0f1_0001;

/// Command of fi_control known only to queues of this crate. Fails with -FI_EAGAIN if there is
/// nothing to read. A read would make progress first; a utility provider with several queues of one
/// domain needs this only once for all of them.
pub(crate) const HAS_ENTRIES: c_int = 0x0f1_0002;

/// Command of fi_control known only to endpoints of this crate. It returns the functions sending a
/// message and reporting immediate completion without a queue entry
/// ([`ImmediateSendFns`](crate::operation::ImmediateSendFns)). A utility provider owning the application's
/// queue writes the entry itself.
pub(crate) const SENDS_AT_ONCE: c_int = 0x0f1_0005;

/// Command of fi_control known only to queues of this crate. It returns the function reading the
/// queue with a packet sink ([`DirectRead`](crate::operation::DirectRead)): a utility provider then
/// delivers most messages from their place of arrival, without a buffer and an entry for each.
pub(crate) const DELIVERS_PACKETS: c_int = 0x0f1_0006;

/// Command of fi_control known only to queues of this crate: as [`SPARES_CALLERS`]. It returns the
/// function making progress without reading
/// ([`DirectProgress`](crate::operation::DirectProgress)).
pub(crate) const RUNS_PROGRESS: c_int = 0x0f1_0007;

/// Command of fi_control known only to queues of this crate: ends the preparation of the calling thread
/// for blocking on the queue (fi_trywait(3)).
pub(crate) const ENDS_WAIT: c_int = 0x0f1_0008;

/// Mark behind a `struct fi_ops_srx_owner` of larger size: the owner is one of this library, and a
/// function delivering fully arrived messages follows (`crate::imports`).
pub(crate) const TAKES_WHOLE: u64 = 0x0f1_77a6_e5a1_1004;

/// Public API flags valid for a call starting an operation, as an endpoint default, or in a
/// completion.
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

/// Returns true if each value has a bit, and no two have one in common.
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
const _: () = assert!(are_apart(&[
    PUBLIC_FLAGS,
    TIMED,
    WITH_DEVICES,
    TO_GROUPS,
    INTERNAL_OP,
    OF_SHARED_RX,
    ONLY_TAG
]));
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
// The three kinds of address are disjoint for any lower half, and FI_ADDR_UNSPEC and
// FI_ADDR_NOTAVAIL are none of them.
const _: () = assert!(are_apart(&[AV_SET_ADDR, COLLECTIVE_ADDR]));
const _: () = assert!(MULTICAST_ADDR & !UPPER_HALF == 0 && MULTICAST_ADDR != COLLECTIVE_ADDR);
const _: () = assert!(abi::FI_ADDR_UNSPEC & UPPER_HALF != MULTICAST_ADDR);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_sharing_a_bit_are_not_disjoint() {
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
