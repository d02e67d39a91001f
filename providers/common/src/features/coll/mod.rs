//! Collective operations (fi_collective(3)), over the tagged messages of any endpoint supporting
//! internal operations ([`crate::deferred`]).
//!
//! A [`Collectives`] is the state of one endpoint, a [`CollGroup`] one joined set, and a
//! [`CollRun`] one operation of a group, following its [`plan`]. Runs use separate memory: the
//! application's buffers are read in the call and written at the completion, so a failed operation
//! releases them at once.
//!
//! Everything but the calls themselves runs as tasks of the domain's [`DeferredQueue`], one at a
//! time, without any lock held.
//!
//! Messages have bit 63 of the tag set, so an application requesting collectives has one bit less
//! (mem_tag_format). They have a separate queue in the receiver's matching engine. The lower bits:
//!
//! | bits | in a group | while joining |
//! |---|---|---|
//! | 62 | 0 | 1 |
//! | 61..30 | the group's number | signature of the set |
//! | 29..16 | the operation's number | join number: the count of previous joins of the set |
//! | 15..0 | the sender's rank | the sender's rank |
//!
//! The rank in a message's tag is not trusted by itself: the receive for it names the member's
//! address as its source. Peers not in the address vector are members of no group. Their messages
//! are dropped, except notices.
//!
//! No group has the number 0; its tag is for [`CollNotice`]s. A notice reports a broken group, a
//! failed join, or join numbers. Join numbers are accepted from members only. A notice without a
//! group only proves a member is reachable.
//!
//! # Join numbers
//! Every member counts its joins of a set. So the first call of each matches the first of the
//! others, even if it failed for some before others made it. A process restarted at a former
//! member's address has counted nothing yet. Notices of a terminated member may not have reached
//! all. So a member joining a set for the first time, or after a failure, asks its communication
//! partners for their join number. It continues with the highest one and sends it to partners with
//! a lower one. These continue with it as well: a member asking is no part of their operations in
//! progress. A new member among established ones uses the next higher number, because messages of
//! its predecessor may be pending in the highest. A join failing for one member fails for all, in
//! the call with its number. A member sends the failed join numbers before its own one, and no
//! member skips a number known to have failed.
//!
//! # Failed members
//! Waiting for a message reveals nothing about its sender. So a member first waiting for another
//! one sends it a notice. This establishes a connection or fails, and asks if the process at this
//! address belongs to the group. The engine reports the end of a connection; afterwards no process
//! at this address belongs to the existing groups. A peer asking for a join number belongs to none
//! of the set's groups either. A member detecting a broken group notifies all other members, since
//! they may wait for it. A member notified of a group before it starts to join stores the notice
//! until then.
#[allow(unsafe_code)]
pub(crate) mod area;
mod collectives;
mod identity;
mod join_set;
mod notice;
pub(crate) mod paths;
pub(crate) mod plan;
#[allow(unsafe_code)]
mod set;

pub(crate) use collectives::{CollGroup, Collectives, Start};
pub(crate) use identity::{Identification, MemberIds};
pub(crate) use plan::{CollPlan, MAX_MEMBERS, RankOf};
pub(crate) use set::{AvSet, av_set, peer_av_set};
