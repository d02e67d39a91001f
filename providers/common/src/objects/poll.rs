//! Poll sets (fi_poll(3)), and `fi_trywait`.
use crate::abi::{
    FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_POLL, FI_CLASS_WAIT, fi_ops, fi_ops_poll,
    fi_poll_attr, fid, fid_poll, fid_wait,
};
use crate::boundary::{end_if_cancelled, ffi_guard, ffi_guard_if_memory};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::error::{Error, Result};
use crate::fid::{FidObject, class_of};
use crate::object::{Base, Object, Parent, fid_ops};
use crate::wait::cancellable;
pub use crate::wait_set::WaitSet;
use crate::wait_set::{PollMember, WaitDescriptor};
use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

/// Returns the queue or counter as a member of a set.
///
/// # Safety
/// `fid` points to a live fid.
unsafe fn member_from_fid(fid: *mut fid) -> Result<PollMember> {
    // SAFETY: by this function's contract; the class says what to look for.
    unsafe {
        match class_of(fid).map(|class| class as c_int) {
            Some(FI_CLASS_CQ) => Ok(PollMember::new(&Cq::from_fid(fid)?)),
            Some(FI_CLASS_EQ) => Ok(PollMember::new(&Eq::from_fid(fid)?)),
            Some(FI_CLASS_CNTR) => Ok(PollMember::new(&Cntr::from_fid(fid)?)),
            _ => Err(Error::INVAL),
        }
    }
}

/// Poll set: one call progresses many queues and counters and reports the ones with something to
/// read.
#[repr(C)]
pub struct PollSet {
    c: fid_poll,
    members: Mutex<Vec<PollMember>>,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for PollSet {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for PollSet {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_poll> for PollSet {}

impl std::fmt::Debug for PollSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PollSet({:?})", self.members)
    }
}

impl PollSet {
    /// Opens a set (fi_poll_open).
    pub fn open(attr: Option<&fi_poll_attr>, domain: Parent) -> Result<Arc<Self>> {
        if attr.is_some_and(|attr| attr.flags != 0) {
            return Err(Error::BADFLAGS);
        }
        Ok(Arc::new(Self {
            c: fid_poll {
                fid: Self::fid(std::ptr::null_mut()),
                ops: (&raw const POLL_OPS).cast_mut(),
            },
            members: Mutex::new(Vec::new()),
            base: Base::new(domain),
        }))
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Vec<PollMember>> {
        self.members.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Prepares all of `fids` for blocking on their descriptors (fi_trywait(3)).
///
/// # Safety
/// `fids` points to `count` pointers to live fids.
pub unsafe fn try_wait(fids: *mut *mut fid, count: c_int) -> Result {
    let count = usize::try_from(count).map_err(|_| Error::INVAL)?;
    if fids.is_null() && count > 0 {
        return Err(Error::INVAL);
    }
    for index in 0..count {
        // SAFETY: by this function's contract.
        let answer = unsafe { waitable(*fids.add(index)) }.and_then(|one| one.try_wait());
        if answer.is_err() {
            // The caller does not block on any of them.
            for prepared in 0..=index {
                // SAFETY: by this function's contract.
                let prepared = unsafe { waitable(*fids.add(prepared)) };
                prepared.into_iter().for_each(|one| one.end_wait());
            }
            return answer;
        }
    }
    Ok(())
}

/// Returns the object with a descriptor to block on.
///
/// # Safety
/// `fid` points to a live fid.
unsafe fn waitable(fid: *mut fid) -> Result<Arc<dyn WaitDescriptor>> {
    // SAFETY: by this function's contract; the class says what to look for.
    unsafe {
        Ok(match class_of(fid).map(|class| class as c_int) {
            Some(FI_CLASS_CQ) => Cq::from_fid(fid)?,
            Some(FI_CLASS_EQ) => Eq::from_fid(fid)?,
            Some(FI_CLASS_CNTR) => Cntr::from_fid(fid)?,
            Some(FI_CLASS_WAIT) => WaitSet::arc_from_c(fid.cast::<fid_wait>())?,
            _ => return Err(Error::INVAL),
        })
    }
}

static POLL_FID_OPS: fi_ops = fid_ops::<PollSet, _>();

impl Object<fid_poll> for PollSet {
    const CLASS: c_int = FI_CLASS_POLL;
    const CLOSE: &'static str = "fi_close(poll)";

    fn table() -> &'static fi_ops {
        &POLL_FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }
}

static POLL_OPS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: cancellable!(poll_poll: fn(*mut fid_poll, *mut *mut c_void, c_int) -> c_int),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
};

// SAFETY of the entry points below: each is reachable only through the ops table
// of a set that `open` made and `close` has not taken back, or with null.

unsafe extern "C-unwind" fn poll_poll(
    set: *mut fid_poll,
    contexts: *mut *mut c_void,
    count: c_int,
) -> c_int {
    let answer = ffi_guard("fi_poll", || -> Result<c_int> {
        // SAFETY: see above.
        let set = unsafe { PollSet::from_c(set) }?;
        if count < 0 || (contexts.is_null() && count > 0) {
            return Err(Error::INVAL);
        }
        let members = set.members().clone();
        let mut n = 0;
        for member in &members {
            if n == count {
                // State of this member, left for the next call.
                member.progress();
            } else if member.poll() {
                // SAFETY: the caller gave room for `count` contexts.
                unsafe { contexts.add(n as usize).write(member.context()) };
                n += 1;
            }
        }
        Ok(n)
    });
    if answer == 0 {
        // SAFETY: nothing here is cleaned up, nor in what the program calls us by.
        unsafe { end_if_cancelled() };
    }
    answer
}

unsafe extern "C" fn poll_add(set: *mut fid_poll, fid: *mut fid, _flags: u64) -> c_int {
    ffi_guard_if_memory("fi_poll_add", || {
        // SAFETY: see above; the fid is one the application has open.
        let (set, member) = unsafe { (PollSet::from_c(set)?, member_from_fid(fid)?) };
        let mut members = set.members();
        if !members.iter().any(|known| known.is(fid)) {
            members.push(member);
        }
        Ok(())
    })
}

unsafe extern "C" fn poll_del(set: *mut fid_poll, fid: *mut fid, _flags: u64) -> c_int {
    ffi_guard("fi_poll_del", || {
        // SAFETY: see above.
        let set = unsafe { PollSet::from_c(set) }?;
        set.members().retain(|member| !member.is(fid));
        Ok(())
    })
}
