//! The provider `off_coll`: the collectives of fi_collective(3) over endpoints of other providers
//! (fi_off_coll(7)).
//!
//! Another provider, the owner, opens an endpoint with one of its own (`FI_PEER_TRANSFER` of fi_peer(3)). Groups,
//! plans and the tables are those of `ofi_provider` for all providers. Only the way of their messages is another
//! one: `endpoint` hands them to the owner's endpoint, which says when each is over. `domain` makes progress
//! when the owner reads a queue, and `info` says what is offered.
#![cfg_attr(not(test), forbid(unsafe_code))]
mod domain;
mod endpoint;
mod info;

use core::ffi::CStr;
use ofi_provider::api::{getinfo_entry, open_fabric};
use ofi_provider::info::{API_VERSION, PROV_VERSION};
use ofi_provider::provider::Provider;

/// The provider's name.
const OFF_COLL_NAME: &CStr = c"off_coll";

/// The provider, which log lines name as theirs.
static OFF_COLL: Provider = Provider::named(OFF_COLL_NAME, PROV_VERSION, API_VERSION);

ofi_provider::plug_in!({
    if !ofi_provider::own_core::is_own_core() {
        // The original's providers take their own, of which they know the structures.
        return std::ptr::null_mut();
    }
    let getinfo = getinfo_entry::<domain::OffloadFabric>;
    OFF_COLL.hand_out_with(None, getinfo, open_fabric::<domain::OffloadFabric>)
});
