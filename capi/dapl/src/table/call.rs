//! State of the plug-in, and conversion between the application's pointers and values.
use crate::answer::*;
use crate::fabric::{SEGMENTS, wake};
use crate::layout::*;
use crate::state::*;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};

use crate::objects::connect::PRIVATE_MAX;

pub(super) static STATE: LazyLock<Mutex<DatState>> = LazyLock::new(Mutex::default);
/// Signalled after a possible new event.
pub(super) static EVENTS: Condvar = Condvar::new();

pub(super) fn state() -> MutexGuard<'static, DatState> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs a call and gives its answer as a number.
pub(super) fn answer(body: impl FnOnce(&mut DatState) -> DatResult) -> u32 {
    answer_without(|| {
        let mut state = state();
        let answer = body(&mut state);
        give_back(state);
        answer
    })
}

/// Runs a call taking the lock itself.
pub(super) fn answer_without(body: impl FnOnce() -> DatResult) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.to_return(),
        Err(_) => CLASS_ERROR | INTERNAL_ERROR,
    }
}

/// Releases the lock, and calls the agents waiting for it.
pub(super) fn give_back(mut state: MutexGuard<'_, DatState>) {
    let notified = state.events.take_upcalls();
    let wakeups = state.events.take_wakeups();
    let has_events = wakeups.is_some();
    // while the lock is held: a number is a sleeper's until it takes the lock again
    wakeups.into_iter().flatten().for_each(|&waiter| wake(waiter));
    drop(state);
    if has_events {
        EVENTS.notify_all();
    }
    for (agent, evd) in notified {
        // SAFETY: the application gave the address of a function of this type with its object.
        let function: unsafe extern "C" fn(usize, Handle) = unsafe {
            std::mem::transmute(std::ptr::with_exposed_provenance::<c_void>(agent.function))
        };
        // SAFETY: the function gets the instance data that the application registered with it.
        unsafe { function(agent.instance_data, evd) };
    }
}

/// Checks the pointer for the result of a call.
pub(super) fn check_output<T>(to: *mut T, argument: u32) -> DatResult {
    if to.is_null() { bad_argument(argument) } else { Ok(()) }
}

pub(super) fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the application has room for what the call answers where it says so.
        unsafe { to.write(value) };
    }
}

/// Returns the value behind an application's pointer.
pub(super) fn get<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: null or a value of the type that the call takes.
    (!from.is_null()).then(|| unsafe { from.read() })
}

/// An array of the application's, copied: at most so many, or the place of its count is wrong.
pub(super) fn array<T: Copy + Default, const N: usize>(
    from: *const T,
    count: i32,
    argument: u32,
) -> DatResult<([T; N], usize)> {
    let Ok(count) = usize::try_from(count) else { return bad_argument(argument) };
    if count > N {
        return bad_argument(argument);
    }
    if count > 0 && from.is_null() {
        return bad_argument(argument + 1);
    }
    let mut all = [T::default(); N];
    if count > 0 {
        // SAFETY: the application says how many there are, and there is room for them.
        unsafe { from.copy_to(all.as_mut_ptr(), count) };
    }
    Ok((all, count))
}

/// Returns connection data, limited to the maximum of any adaptor.
pub(super) fn private(from: *const u8, count: i32, argument: u32) -> DatResult<Vec<u8>> {
    let (all, count) = array::<u8, PRIVATE_MAX>(from, count, argument)?;
    Ok(all[..count].to_vec())
}

/// Returns the segments of an operation, limited in number; further ones are not read.
pub(super) fn segments(
    from: *const Triplet,
    count: i32,
    most: usize,
) -> DatResult<([Triplet; SEGMENTS], usize)> {
    if usize::try_from(count).is_ok_and(|count| count > most) {
        return bad_argument(2);
    }
    array(from, count, 2)
}

/// Returns the maximum numbers of segments of an endpoint's requests and receives.
pub(super) fn segments_of(state: &DatState, ep: Handle) -> DatResult<(usize, usize)> {
    let attr = &require_object(state.eps.get(ep), HANDLE_EP)?.attr;
    let most = [attr.max_request_iov, attr.max_recv_iov].map(|n| n.max(1) as usize);
    Ok((most[0].min(SEGMENTS), most[1].min(SEGMENTS)))
}
