//! Sets of addresses of another provider's address vector, the owner's, for groups of collectives (fi_peer(3)).
//!
//! The owner keeps its set until the peer's is closed, and takes calls from any thread. Every
//! `unsafe` here relies on this.
use super::peer::{object, table};
use crate::abi::{fi_addr_t, fi_ops_av_set_owner, fi_peer_av_set_context, fid_peer_av_set};
use crate::error::{Error, Result};
use core::ffi::{c_int, c_void};
use std::ptr::NonNull;

const _: () = assert!(size_of::<fi_peer_av_set_context>() == 2 * size_of::<usize>());

/// Number of addresses in the first call of an owner.
const FIRST_CAPACITY: usize = 64;

/// The owner of a set of addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AvSetOwner {
    set: NonNull<fid_peer_av_set>,
    members: unsafe extern "C" fn(*mut fid_peer_av_set, *mut fi_addr_t, *mut usize) -> c_int,
}

// SAFETY: see the module.
unsafe impl Send for AvSetOwner {}
// SAFETY: see the module.
unsafe impl Sync for AvSetOwner {}

impl AvSetOwner {
    /// # Safety
    /// `context` is null or a `struct fi_peer_av_set_context`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Result<Self> {
        // SAFETY: by this function's contract.
        unsafe {
            let set = object::<fid_peer_av_set>(context)?;
            let ops: &fi_ops_av_set_owner = table((*set.as_ptr()).owner_ops)?;
            Ok(Self { set, members: ops.members.ok_or(Error::INVAL)? })
        }
    }

    /// The members of the set, in order; -FI_EINVAL if there are more than `most`.
    pub(crate) fn members(&self, most: usize) -> Result<Vec<fi_addr_t>> {
        let mut capacity = FIRST_CAPACITY.min(most);
        loop {
            let mut all: Vec<fi_addr_t> = vec![0; capacity];
            let mut count = capacity;
            // SAFETY: see the module; the owner writes at most `count` addresses.
            let ret =
                unsafe { (self.members)(self.set.as_ptr(), all.as_mut_ptr(), &raw mut count) };
            match Error::check(ret) {
                Ok(_) if count <= capacity => {
                    all.truncate(count);
                    return Ok(all);
                }
                Ok(_) | Err(Error::TOOSMALL) if capacity < most => {
                    capacity = count.max(capacity * 2).min(most);
                }
                Ok(_) | Err(Error::TOOSMALL) => return Err(Error::INVAL),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_CLASS_PEER_AV_SET, fid};

    /// A set of as many addresses as its context says.
    unsafe extern "C" fn members(
        set: *mut fid_peer_av_set,
        to: *mut fi_addr_t,
        count: *mut usize,
    ) -> c_int {
        // SAFETY: the test's own set, whose context is a number.
        unsafe {
            let (capacity, all) = (*count, (*set).fid.context as usize);
            *count = all;
            if capacity < all {
                return -Error::TOOSMALL.code();
            }
            (0..all).for_each(|i| to.add(i).write(i as u64 * 3));
        }
        0
    }

    #[test]
    fn an_owner_is_asked_until_all_members_fit() {
        let mut ops =
            fi_ops_av_set_owner { size: size_of::<fi_ops_av_set_owner>(), members: Some(members) };
        for all in [0usize, 1, 64, 65, 1000] {
            let mut set = fid_peer_av_set {
                fid: fid {
                    fclass: FI_CLASS_PEER_AV_SET as usize,
                    context: all as *mut c_void,
                    ops: std::ptr::null_mut(),
                },
                owner_ops: &raw mut ops,
            };
            let mut context = [2 * size_of::<usize>(), &raw mut set as usize];
            // SAFETY: a context as the call wants it.
            let owner = unsafe { AvSetOwner::new(context.as_mut_ptr().cast()) }.unwrap();
            let want: Vec<u64> = (0..all as u64).map(|i| i * 3).collect();
            assert_eq!(owner.members(1000), Ok(want));
            assert_eq!(owner.members(all.saturating_sub(1)).is_ok(), all == 0);
        }
    }

    #[test]
    fn a_context_without_a_set_or_a_table_is_refused() {
        let new = |context: *mut c_void| {
            // SAFETY: null, or a context as the call wants it.
            unsafe { AvSetOwner::new(context) }.map(drop)
        };
        assert_eq!(new(std::ptr::null_mut()), Err(Error::INVAL));
        let mut empty = [2 * size_of::<usize>(), 0];
        assert_eq!(new(empty.as_mut_ptr().cast()), Err(Error::INVAL));
        let small = fi_ops_av_set_owner { size: size_of::<usize>(), members: Some(members) };
        let none = fi_ops_av_set_owner { size: size_of::<fi_ops_av_set_owner>(), members: None };
        for ops in [std::ptr::null(), &raw const small, &raw const none] {
            let mut set = fid_peer_av_set {
                fid: fid { fclass: 0, context: std::ptr::null_mut(), ops: std::ptr::null_mut() },
                owner_ops: ops.cast_mut(),
            };
            let mut context = [2 * size_of::<usize>(), &raw mut set as usize];
            assert_eq!(new(context.as_mut_ptr().cast()), Err(Error::INVAL));
        }
    }
}
