//! Notification objects and event dispatchers, and waiting for events.
use crate::answer::*;
use crate::fabric::DomainWaiter;
use crate::layout::*;
use crate::state::*;
use std::time::{Duration, Instant};

use super::call::*;

pub(super) unsafe extern "C" fn cno_create(ia: Handle, agent: ProxyAgent, cno: *mut Handle) -> u32 {
    answer(|state| {
        check_output(cno, 3)?;
        let provider = state.has_ia(ia)?.provider;
        put(cno, state.events.cno_create(&mut state.handles, (ia, provider), agent));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cno_modify_agent(cno: Handle, agent: ProxyAgent) -> u32 {
    answer(|state| {
        require_object(state.events.cno_mut(cno), HANDLE_CNO)?.agent = agent;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cno_query(cno: Handle, _mask: u32, param: *mut DatCnoParam) -> u32 {
    answer(|state| {
        let found = require_object(state.events.cno(cno), HANDLE_CNO)?;
        check_output(param, 3)?;
        let agent = found.agent;
        put(
            param,
            DatCnoParam {
                ia_handle: found.ia,
                proxy_type: u32::from(agent.function != 0),
                agent: [agent.instance_data, agent.function],
            },
        );
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cno_free(cno: Handle) -> u32 {
    answer(|state| state.events.cno_free(&mut state.handles, cno))
}

/// Number of polls by a waiter before it sleeps.
pub(super) const LOOKS: u32 = 50;
/// Maximum sleep of a waiter: not every condition has a wakeup, for example the end of a timeout of
/// another call.
pub(super) const SLEEP: Duration = Duration::from_millis(5);

/// Calls `look` until it returns something or fails, or the time is over. Sleeps between the calls,
/// in the domain of the awaited object, or for a short time if this has no wait set.
pub(super) fn wait_for<T>(
    waited: Handle,
    timeout: u32,
    mut look: impl FnMut(&mut DatState) -> DatResult<Option<T>>,
    expired: impl FnOnce(&mut DatState) -> DatResult<T>,
) -> DatResult<T> {
    let end = (timeout != TIMEOUT_INFINITE)
        .then(|| Instant::now() + Duration::from_micros(timeout.into()));
    let mut looks = 0u32;
    let (mut sleep, mut looked_around) = (None, false);
    let mut guard = state();
    loop {
        if let Some(found) = look(&mut guard)? {
            give_back(guard);
            return Ok(found);
        }
        if guard.events.has_upcalls() {
            give_back(guard);
            guard = state();
            continue;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return expired(&mut guard);
        }
        looks = looks.saturating_add(1);
        if looks < LOOKS {
            drop(guard);
            std::thread::yield_now();
            guard = state();
            continue;
        }
        if sleep.is_none() {
            sleep = Some(guard.domain_of(waited).and_then(DomainWaiter::open));
        }
        if let Some(Some(sleep)) = &sleep {
            if sleep.is_allowed() {
                guard.events.add_waiter(sleep.number());
                drop(guard);
                sleep.sleep(left.map_or(SLEEP, |left| left.min(SLEEP)));
                guard = state();
                guard.events.remove_waiter(sleep.number());
                looked_around = false;
                continue;
            }
            // something is readable for another waiter, or for none: while it is not taken, other
            // events are not signalled
            if !std::mem::replace(&mut looked_around, true) {
                guard.poll_once_inner(waited);
                continue;
            }
            looked_around = false;
        }
        let nap = Duration::from_micros(u64::from(looks.min(1000)));
        let nap = left.map_or(nap, |left| left.min(nap));
        guard = EVENTS.wait_timeout(guard, nap).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
    }
}

pub(super) unsafe extern "C" fn cno_wait(cno: Handle, timeout: u32, evd: *mut Handle) -> u32 {
    answer_without(|| {
        let mut guard = state();
        let found = require_object(guard.events.cno_mut(cno), HANDLE_CNO)?;
        check_output(evd, 3)?;
        found.waiters += 1;
        drop(guard);
        let found = wait_for(
            cno,
            timeout,
            |state| state.cno_look(cno).or(error(ABORT, 0)),
            |_| error(TIMEOUT_EXPIRED, 0),
        );
        if let Some(cno) = state().events.cno_mut(cno) {
            cno.waiters -= 1;
        }
        put(evd, found?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn evd_create(
    ia: Handle,
    qlen: i32,
    cno: Handle,
    flags: u32,
    evd: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(evd, 5)?;
        put(evd, state.evd_create(ia, qlen, cno, flags)?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn evd_query(evd: Handle, _mask: u32, param: *mut DatEvdParam) -> u32 {
    answer(|state| {
        let found = require_object(state.events.evd(evd), HANDLE_1)?;
        check_output(param, 3)?;
        let enabled = if found.enabled { 0x01 } else { 0x02 };
        let waitable = if found.waitable { 0x04 } else { 0x08 };
        put(
            param,
            DatEvdParam {
                ia_handle: found.ia,
                evd_qlen: found.qlen as i32,
                evd_state: enabled | waitable | 0x10,
                cno_handle: found.cno,
                evd_flags: found.flags,
            },
        );
        Ok(())
    })
}

pub(super) unsafe extern "C" fn evd_modify_cno(evd: Handle, cno: Handle) -> u32 {
    answer(|state| state.events.evd_set_cno(evd, cno))
}

pub(super) unsafe extern "C" fn evd_enable(evd: Handle) -> u32 {
    answer(|state| state.events.evd_enable(evd, true))
}

pub(super) unsafe extern "C" fn evd_disable(evd: Handle) -> u32 {
    answer(|state| state.events.evd_enable(evd, false))
}

pub(super) unsafe extern "C" fn evd_set_unwaitable(evd: Handle) -> u32 {
    answer(|state| state.events.evd_waitable(evd, false))
}

pub(super) unsafe extern "C" fn evd_clear_unwaitable(evd: Handle) -> u32 {
    answer(|state| state.events.evd_waitable(evd, true))
}

pub(super) unsafe extern "C" fn evd_wait(
    evd: Handle,
    timeout: u32,
    threshold: i32,
    event: *mut DatEvent,
    more: *mut i32,
) -> u32 {
    answer_without(|| {
        let mut guard = state();
        let found = require_object(guard.events.evd_mut(evd), HANDLE_1)?;
        if threshold <= 0 || threshold as usize > found.qlen {
            return bad_argument(3);
        }
        check_output(event, 4)?;
        check_output(more, 5)?;
        if found.waiters > 0 {
            return error(INVALID_STATE, STATE_EVD_WAITER);
        }
        if !found.waitable {
            return error(INVALID_STATE, STATE_EVD_UNWAITABLE);
        }
        found.waiters = 1;
        drop(guard);
        let mut first = true;
        let found = wait_for(
            evd,
            timeout,
            |state| {
                // events of before are enough; of those that come, one has to be for waiters
                let enough = |state: &DatState, first| match state.events.evd(evd) {
                    None => error(ABORT, 0),
                    Some(found) if !found.waitable => error(INVALID_STATE, STATE_EVD_UNWAITABLE),
                    Some(found) => Ok(found.enabled
                        && found.queue.len() >= threshold as usize
                        && (first || found.notified)),
                };
                let mut ready = enough(state, std::mem::take(&mut first))?;
                if !ready {
                    state.progress(evd);
                    ready = enough(state, false)?;
                }
                Ok(ready.then(|| {
                    let event = state.events.take_event(evd);
                    (event, state.events.evd(evd).map_or(0, |evd| evd.queue.len()))
                }))
            },
            |state| {
                put(more, state.events.evd(evd).map_or(0, |evd| evd.queue.len() as i32));
                error(TIMEOUT_EXPIRED, 0)
            },
        );
        if let Some(evd) = state().events.evd_mut(evd) {
            evd.waiters = 0;
        }
        let (Some(found), left) = found? else { return error(INTERNAL_ERROR, 0) };
        put(event, found);
        put(more, left as i32);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn evd_resize(evd: Handle, qlen: i32) -> u32 {
    answer(|state| state.events.evd_resize(evd, qlen))
}

pub(super) unsafe extern "C" fn evd_post_se(evd: Handle, event: *const DatEvent) -> u32 {
    answer(|state| {
        require_object(state.events.evd(evd), HANDLE_1)?;
        match get(event) {
            Some(event) => state.events.evd_post(evd, &event),
            None => bad_argument(2),
        }
    })
}

pub(super) unsafe extern "C" fn evd_dequeue(evd: Handle, event: *mut DatEvent) -> u32 {
    answer(|state| {
        require_object(state.events.evd(evd), HANDLE_1)?;
        check_output(event, 2)?;
        put(event, state.evd_dequeue(evd)?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn evd_free(evd: Handle) -> u32 {
    answer(|state| state.events.evd_free(&mut state.handles, evd))
}
