//! Table of a provider's calls for `libdat2`, and the two functions found by name.
//!
//! Pointers of the application are converted to values here, and results to numbers. Handles are
//! only compared with the open ones. No panic passes this module.
use crate::answer::*;
use crate::fabric::{DomainWaiter, SEGMENTS, SocketAddress, wake};
use crate::layout::*;
use crate::state::*;
use std::ffi::{CStr, c_char, c_void};
use std::mem::zeroed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

static STATE: LazyLock<Mutex<DatState>> = LazyLock::new(Mutex::default);
/// Signalled after a possible new event.
static EVENTS: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, DatState> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs a call and gives its answer as a number.
fn answer(body: impl FnOnce(&mut DatState) -> DatResult) -> u32 {
    answer_without(|| {
        let mut state = state();
        let answer = body(&mut state);
        give_back(state);
        answer
    })
}

/// Runs a call taking the lock itself.
fn answer_without(body: impl FnOnce() -> DatResult) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.to_return(),
        Err(_) => CLASS_ERROR | INTERNAL_ERROR,
    }
}

/// Releases the lock, and calls the agents waiting for it.
fn give_back(mut state: MutexGuard<'_, DatState>) {
    let mut notified = Vec::new();
    for (cno, evd) in std::mem::take(&mut state.upcalls) {
        if let Some(cno) = state.cnos.get_mut(&cno) {
            cno.triggered.retain(|&of| of != evd);
            notified.push((cno.agent, evd));
        }
    }
    let has_events = std::mem::take(&mut state.has_events);
    if has_events {
        // while the lock is held: a number is a sleeper's until it takes the lock again
        state.waiters.iter().for_each(|&waiter| wake(waiter));
    }
    drop(state);
    if has_events {
        EVENTS.notify_all();
    }
    for (agent, evd) in notified {
        // SAFETY: the application gave the address of a function of this type with its object.
        let function: unsafe extern "C" fn(usize, Handle) = unsafe {
            std::mem::transmute(std::ptr::with_exposed_provenance::<c_void>(agent.function))
        };
        // SAFETY: it is called with what was given with it.
        unsafe { function(agent.instance_data, evd) };
    }
}

/// Checks the pointer for the result of a call.
fn check_output<T>(to: *mut T, argument: u32) -> DatResult {
    if to.is_null() { bad_argument(argument) } else { Ok(()) }
}

fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the application has room for what the call answers where it says so.
        unsafe { to.write(value) };
    }
}

/// Returns the value behind an application's pointer.
fn get<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: null or a value of the type that the call takes.
    (!from.is_null()).then(|| unsafe { from.read() })
}

/// An array of the application's, copied: at most so many, or the place of its count is wrong.
fn array<T: Copy + Default, const N: usize>(
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
fn private(from: *const u8, count: i32, argument: u32) -> DatResult<Vec<u8>> {
    let (all, count) = array::<u8, PRIVATE_MAX>(from, count, argument)?;
    Ok(all[..count].to_vec())
}

/// Returns the segments of an operation, limited in number; further ones are not read.
fn segments(
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
fn segments_of(state: &DatState, ep: Handle) -> DatResult<(usize, usize)> {
    match state.eps.get(&ep) {
        Some(found) => {
            let attr = &found.attr;
            let most = [attr.max_request_iov, attr.max_recv_iov].map(|n| n.max(1) as usize);
            Ok((most[0].min(SEGMENTS), most[1].min(SEGMENTS)))
        }
        None => error(INVALID_HANDLE, HANDLE_EP),
    }
}

// ---- adaptors

unsafe extern "C" fn ia_open(
    name: *const c_char,
    qlen: i32,
    evd: *mut Handle,
    ia: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(ia, 4)?;
        check_output(evd, 3)?;
        if name.is_null() {
            return bad_argument(1);
        }
        // SAFETY: a name has its end.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let known = known();
        let Some(of) = known.iter().find(|of| of.name == name) else {
            return error(PROVIDER_NOT_FOUND, 0);
        };
        let given = get(evd).unwrap_or(0);
        let line = (of.table, of.thread_safe);
        let (opened, async_evd) = state.ia_open(line, &name, &of.instance, qlen, given)?;
        put(ia, opened);
        if given != ASYNC_EXISTS {
            put(evd, async_evd);
        }
        Ok(())
    })
}

unsafe extern "C" fn ia_close(ia: Handle, flags: u32) -> u32 {
    answer(|state| {
        if flags > 1 && state.ias.contains_key(&ia) {
            return bad_argument(2);
        }
        state.ia_close(ia, flags == 1)
    })
}

/// `DAT_NAMED_ATTR`.
#[repr(C)]
struct DatNamedAttr {
    name: *const c_char,
    value: *const c_char,
}
// SAFETY: both strings stay.
unsafe impl Sync for DatNamedAttr {}

/// Named attributes of the reference providers, in addition to their ordinary ones. Programs able
/// to work without reads of remote memory query the first, among them dtest. Others, like dtestsrq,
/// choose the length of their messages by the second.
const fn named(mtu: &'static CStr) -> [DatNamedAttr; 2] {
    [
        DatNamedAttr { name: c"DAT_IB_RDMA_READ".as_ptr(), value: c"TRUE".as_ptr() },
        DatNamedAttr { name: c"DAT_IB_TRANSPORT_MTU".as_ptr(), value: mtu.as_ptr() },
    ]
}

/// MTUs of InfiniBand, and the named attributes of adaptors with each of them.
static NAMED: [(usize, [DatNamedAttr; 2]); 5] = [
    (256, named(c"256")),
    (512, named(c"512")),
    (1024, named(c"1024")),
    (2048, named(c"2048")),
    (4096, named(c"4096")),
];

/// Returns the attributes of an adaptor whose link has packets of this length, with the largest
/// fitting MTU of InfiniBand. A transport without packets has the largest of all.
fn named_attributes(packet: Option<usize>) -> &'static [DatNamedAttr] {
    let packet = packet.unwrap_or(usize::MAX);
    let fits = NAMED.iter().rev().find(|(mtu, _)| *mtu <= packet);
    &fits.unwrap_or(&NAMED[0]).1
}

fn name_of(text: &str) -> [u8; 256] {
    let mut name = [0; 256];
    let length = text.len().min(255);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

unsafe extern "C" fn ia_query(
    ia: Handle,
    evd: *mut Handle,
    mask: u64,
    attr: *mut DatIaAttr,
    provider_mask: u64,
    provider: *mut DatProviderAttr,
) -> u32 {
    answer(|state| {
        let Some(of) = state.ias.get(&ia) else { return error(INVALID_HANDLE, HANDLE_IA) };
        if mask != 0 {
            check_output(attr, 4)?;
        }
        if provider_mask != 0 {
            check_output(provider, 6)?;
        }
        put(evd, of.async_evd);
        let (segments, most) = (of.limits.segments as i32, of.limits.message.min(0x7fff_ffff));
        if mask != 0 {
            // SAFETY: numbers, of which all zeros are some.
            let mut a: DatIaAttr = unsafe { zeroed() };
            a.adapter_name = name_of(&of.name);
            a.vendor_name = name_of(&format!("libfabric {}", of.info.provider()));
            a.ia_address_ptr = std::ptr::from_ref(&*of.address).expose_provenance();
            a.max_eps = 1 << 16;
            a.max_dto_per_ep = DTO_MAX;
            a.max_rdma_read_per_ep_in = DTO_MAX;
            a.max_rdma_read_per_ep_out = DTO_MAX;
            a.max_evds = 1 << 16;
            a.max_evd_qlen = EVD_MAX;
            a.max_iov_segments_per_dto = segments;
            a.max_lmrs = 1 << 16;
            a.max_lmr_block_size = u32::MAX;
            a.max_lmr_virtual_address = u64::MAX;
            a.max_pzs = 1 << 16;
            a.max_message_size = most as u32;
            a.max_rdma_size = most as u32;
            a.max_rmrs = 1 << 16;
            a.max_rmr_target_address = u64::MAX;
            a.max_srqs = 1 << 12;
            a.max_ep_per_srq = 1 << 16;
            a.max_recv_per_srq = DTO_MAX;
            a.max_iov_segments_per_rdma_read = segments;
            a.max_iov_segments_per_rdma_write = segments;
            a.max_rdma_read_in = DTO_MAX;
            a.max_rdma_read_out = DTO_MAX;
            put(attr, a);
        }
        if provider_mask != 0 {
            // SAFETY: as above.
            let mut p: DatProviderAttr = unsafe { zeroed() };
            p.provider_name = name_of("daplofi");
            p.provider_version_major = 2;
            p.dapl_version_major = 2;
            p.lmr_mem_types_supported = 1;
            p.completion_flags_supported = COMPLETION_SUPPRESS
                | COMPLETION_UNSIGNALLED
                | COMPLETION_BARRIER_FENCE
                | COMPLETION_EVD_THRESHOLD;
            // the value in the line of dat.conf: the registry identifies the adaptor by it
            p.is_thread_safe = u32::from(of.thread_safe);
            p.max_private_data_size = of.private_max as i32;
            p.ep_creator = EP_CREATOR_IF_ASKED;
            p.optimal_buffer_alignment = 64;
            p.evd_stream_merging_supported = [[1; 6]; 6];
            p.srq_supported = 1;
            p.srq_watermarks_supported = 1;
            p.srq_info_supported = 1;
            p.dto_async_return_guaranteed = 1;
            p.rmr_scope_supported = 1;
            let named = named_attributes(of.limits.packet);
            p.num_provider_specific_attr = named.len() as i32;
            p.provider_specific_attr = named.as_ptr().expose_provenance();
            put(provider, p);
        }
        Ok(())
    })
}

unsafe extern "C" fn set_consumer_context(handle: Handle, context: u64) -> u32 {
    answer(|state| match state.handles.context(handle) {
        Some(word) => {
            *word = context;
            Ok(())
        }
        None => error(INVALID_HANDLE, 0),
    })
}

unsafe extern "C" fn get_consumer_context(handle: Handle, context: *mut u64) -> u32 {
    answer(|state| match state.handles.context(handle) {
        Some(word) => {
            check_output(context, 2)?;
            put(context, *word);
            Ok(())
        }
        None => error(INVALID_HANDLE, 0),
    })
}

unsafe extern "C" fn get_handle_type(handle: Handle, kind: *mut u32) -> u32 {
    answer(|state| match state.handles.kind(handle) {
        Some(of) => {
            check_output(kind, 2)?;
            put(kind, of as u32);
            Ok(())
        }
        None => error(INVALID_HANDLE, 0),
    })
}

// ---- notification objects

unsafe extern "C" fn cno_create(ia: Handle, agent: ProxyAgent, cno: *mut Handle) -> u32 {
    answer(|state| {
        check_output(cno, 3)?;
        put(cno, state.cno_create(ia, agent)?);
        Ok(())
    })
}

unsafe extern "C" fn cno_modify_agent(cno: Handle, agent: ProxyAgent) -> u32 {
    answer(|state| match state.cnos.get_mut(&cno) {
        Some(found) => {
            found.agent = agent;
            Ok(())
        }
        None => error(INVALID_HANDLE, HANDLE_CNO),
    })
}

unsafe extern "C" fn cno_query(cno: Handle, _mask: u32, param: *mut DatCnoParam) -> u32 {
    answer(|state| match state.cnos.get(&cno) {
        Some(found) => {
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
        }
        None => error(INVALID_HANDLE, HANDLE_CNO),
    })
}

unsafe extern "C" fn cno_free(cno: Handle) -> u32 {
    answer(|state| state.cno_free(cno))
}

/// Number of polls by a waiter before it sleeps.
const LOOKS: u32 = 50;
/// Maximum sleep of a waiter: not every condition has a wakeup, for example the end of a timeout of
/// another call.
const SLEEP: Duration = Duration::from_millis(5);

/// Calls `look` until it returns something or fails, or the time is over. Sleeps between the calls,
/// in the domain of the awaited object, or for a short time if this has no wait set.
fn wait_for<T>(
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
        if !guard.upcalls.is_empty() {
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
                guard.waiters.push(sleep.number());
                drop(guard);
                sleep.sleep(left.map_or(SLEEP, |left| left.min(SLEEP)));
                guard = state();
                guard.waiters.retain(|&waiter| waiter != sleep.number());
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

unsafe extern "C" fn cno_wait(cno: Handle, timeout: u32, evd: *mut Handle) -> u32 {
    answer_without(|| {
        let mut guard = state();
        match guard.cnos.get_mut(&cno) {
            Some(found) => {
                check_output(evd, 3)?;
                found.waiters += 1;
            }
            None => return error(INVALID_HANDLE, HANDLE_CNO),
        }
        drop(guard);
        let found = wait_for(
            cno,
            timeout,
            |state| state.cno_look(cno).or(error(ABORT, 0)),
            |_| error(TIMEOUT_EXPIRED, 0),
        );
        if let Some(cno) = state().cnos.get_mut(&cno) {
            cno.waiters -= 1;
        }
        put(evd, found?);
        Ok(())
    })
}

// ---- requests for connections

unsafe extern "C" fn cr_query(cr: Handle, _mask: u32, param: *mut DatCrParam) -> u32 {
    answer(|state| {
        let Some(found) = state.crs.get(&cr) else { return error(INVALID_HANDLE, HANDLE_CR) };
        check_output(param, 3)?;
        put(
            param,
            DatCrParam {
                remote_ia_address_ptr: std::ptr::from_ref(&*found.peer).expose_provenance(),
                remote_port_qual: found.peer.port().into(),
                private_data_size: found.data.len() as i32,
                private_data: found.data.as_ptr().expose_provenance(),
                local_ep_handle: found.ep,
            },
        );
        Ok(())
    })
}

unsafe extern "C" fn cr_accept(cr: Handle, ep: Handle, length: i32, data: *const u8) -> u32 {
    answer(|state| {
        if !state.crs.contains_key(&cr) {
            return error(INVALID_HANDLE, HANDLE_CR);
        }
        let data = private(data, length, 3)?;
        state.cr_accept(cr, ep, &data)
    })
}

unsafe extern "C" fn cr_reject(cr: Handle, length: i32, data: *const u8) -> u32 {
    answer(|state| {
        if !state.crs.contains_key(&cr) {
            return error(INVALID_HANDLE, HANDLE_CR);
        }
        let data = private(data, length, 2)?;
        state.cr_reject(cr, &data)
    })
}

// ---- event dispatchers

unsafe extern "C" fn evd_create(
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

unsafe extern "C" fn evd_query(evd: Handle, _mask: u32, param: *mut DatEvdParam) -> u32 {
    answer(|state| {
        let Some(found) = state.evds.get(&evd) else { return error(INVALID_HANDLE, HANDLE_1) };
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

unsafe extern "C" fn evd_modify_cno(evd: Handle, cno: Handle) -> u32 {
    answer(|state| state.evd_set_cno(evd, cno))
}

unsafe extern "C" fn evd_enable(evd: Handle) -> u32 {
    answer(|state| state.evd_enable(evd, true))
}

unsafe extern "C" fn evd_disable(evd: Handle) -> u32 {
    answer(|state| state.evd_enable(evd, false))
}

unsafe extern "C" fn evd_set_unwaitable(evd: Handle) -> u32 {
    answer(|state| state.evd_waitable(evd, false))
}

unsafe extern "C" fn evd_clear_unwaitable(evd: Handle) -> u32 {
    answer(|state| state.evd_waitable(evd, true))
}

unsafe extern "C" fn evd_wait(
    evd: Handle,
    timeout: u32,
    threshold: i32,
    event: *mut DatEvent,
    more: *mut i32,
) -> u32 {
    answer_without(|| {
        let mut guard = state();
        let Some(found) = guard.evds.get_mut(&evd) else { return error(INVALID_HANDLE, HANDLE_1) };
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
                let enough = |state: &DatState, first| match state.evds.get(&evd) {
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
                    let event = state.take_event(evd);
                    (event, state.evds.get(&evd).map_or(0, |evd| evd.queue.len()))
                }))
            },
            |state| {
                put(more, state.evds.get(&evd).map_or(0, |evd| evd.queue.len() as i32));
                error(TIMEOUT_EXPIRED, 0)
            },
        );
        if let Some(evd) = state().evds.get_mut(&evd) {
            evd.waiters = 0;
        }
        let (Some(found), left) = found? else { return error(INTERNAL_ERROR, 0) };
        put(event, found);
        put(more, left as i32);
        Ok(())
    })
}

unsafe extern "C" fn evd_resize(evd: Handle, qlen: i32) -> u32 {
    answer(|state| state.evd_resize(evd, qlen))
}

unsafe extern "C" fn evd_post_se(evd: Handle, event: *const DatEvent) -> u32 {
    answer(|state| {
        if !state.evds.contains_key(&evd) {
            return error(INVALID_HANDLE, HANDLE_1);
        }
        match get(event) {
            Some(event) => state.evd_post(evd, &event),
            None => bad_argument(2),
        }
    })
}

unsafe extern "C" fn evd_dequeue(evd: Handle, event: *mut DatEvent) -> u32 {
    answer(|state| {
        if !state.evds.contains_key(&evd) {
            return error(INVALID_HANDLE, HANDLE_1);
        }
        check_output(event, 2)?;
        put(event, state.evd_dequeue(evd)?);
        Ok(())
    })
}

unsafe extern "C" fn evd_free(evd: Handle) -> u32 {
    answer(|state| state.evd_free(evd))
}

// ---- endpoints

unsafe extern "C" fn ep_create(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    attr: *const DatEpAttr,
    ep: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(ep, 7)?;
        let evds = [recv, request, connect];
        put(ep, state.ep_create(ia, pz, evds, None, get(attr).as_ref())?);
        Ok(())
    })
}

#[allow(clippy::too_many_arguments, reason = "the call has them")]
unsafe extern "C" fn ep_create_with_srq(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    srq: Handle,
    attr: *const DatEpAttr,
    ep: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(ep, 8)?;
        let evds = [recv, request, connect];
        put(ep, state.ep_create(ia, pz, evds, Some(srq), get(attr).as_ref())?);
        Ok(())
    })
}

unsafe extern "C" fn ep_query(ep: Handle, _mask: u64, param: *mut DatEpParam) -> u32 {
    answer(|state| {
        let Some(found) = state.eps.get(&ep) else { return error(INVALID_HANDLE, HANDLE_EP) };
        check_output(param, 3)?;
        put(
            param,
            DatEpParam {
                ia_handle: found.ia,
                ep_state: found.state as u32,
                comm: DatComm {
                    domain: found.local.family(),
                    kind: libc::SOCK_STREAM,
                    protocol: 0,
                },
                local_ia_address_ptr: std::ptr::from_ref(&*found.local).expose_provenance(),
                local_port_qual: found.local.port().into(),
                remote_ia_address_ptr: std::ptr::from_ref(&*found.peer).expose_provenance(),
                remote_port_qual: found.peer.port().into(),
                pz_handle: found.pz,
                recv_evd_handle: found.recv_evd,
                request_evd_handle: found.request_evd,
                connect_evd_handle: found.connect_evd,
                srq_handle: found.srq,
                ep_attr: found.attr,
            },
        );
        Ok(())
    })
}

unsafe extern "C" fn ep_modify(ep: Handle, mask: u64, param: *const DatEpParam) -> u32 {
    answer(|state| {
        if !state.eps.contains_key(&ep) {
            return error(INVALID_HANDLE, HANDLE_EP);
        }
        match get(param) {
            Some(param) => state.ep_modify(ep, mask, &param),
            None => bad_argument(3),
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "the call has them")]
unsafe extern "C" fn ep_connect(
    ep: Handle,
    peer: *const c_void,
    conn_qual: u64,
    timeout: u32,
    length: i32,
    data: *const u8,
    qos: u32,
    flags: u32,
) -> u32 {
    answer(|state| {
        if !state.eps.contains_key(&ep) {
            return error(INVALID_HANDLE, HANDLE_EP);
        }
        // SAFETY: null or an address of the application's.
        let Some(peer) = (unsafe { SocketAddress::of_application(peer) }) else {
            return bad_argument(2);
        };
        let data = private(data, length, 5)?;
        if qos & !0x0f != 0 {
            return bad_argument(7);
        }
        state.ep_connect(ep, peer, conn_qual, timeout, &data, flags)
    })
}

unsafe extern "C" fn ep_dup_connect(
    ep: Handle,
    other: Handle,
    timeout: u32,
    length: i32,
    data: *const u8,
    _qos: u32,
) -> u32 {
    answer(|state| {
        if !state.eps.contains_key(&ep) {
            return error(INVALID_HANDLE, HANDLE_EP);
        }
        let Some(of) = state.eps.get(&other) else { return error(INVALID_HANDLE, HANDLE_EP) };
        if of.state != EpState::Connected {
            return bad_state(of.state);
        }
        let (peer, conn_qual) = (*of.peer, of.conn_qual);
        let data = private(data, length, 4)?;
        state.ep_connect(ep, peer, conn_qual, timeout, &data, 0)
    })
}

unsafe extern "C" fn ep_disconnect(ep: Handle, flags: u32) -> u32 {
    answer(|state| state.ep_disconnect(ep, flags))
}

unsafe extern "C" fn ep_post_send(
    ep: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
) -> u32 {
    answer(|state| {
        let most = segments_of(state, ep)?.0;
        let (iov, count) = segments(iov, count, most)?;
        state.ep_post_request(ep, DTO_SEND, &iov[..count], cookie, None, flags)
    })
}

unsafe extern "C" fn ep_post_recv(
    ep: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
) -> u32 {
    answer(|state| {
        let most = segments_of(state, ep)?.1;
        let (iov, count) = segments(iov, count, most)?;
        state.ep_post_recv(ep, &iov[..count], cookie, flags)
    })
}

fn access(
    kind: u32,
    ep: Handle,
    (iov, count): (*const Triplet, i32),
    cookie: u64,
    remote: *const Triplet,
    flags: u32,
) -> u32 {
    answer(|state| {
        let most = segments_of(state, ep)?.0;
        let (iov, count) = segments(iov, count, most)?;
        let Some(remote) = get(remote) else { return bad_argument(5) };
        state.ep_post_request(ep, kind, &iov[..count], cookie, Some(&remote), flags)
    })
}

unsafe extern "C" fn ep_post_rdma_read(
    ep: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
    remote: *const Triplet,
    flags: u32,
) -> u32 {
    access(DTO_RDMA_READ, ep, (iov, count), cookie, remote, flags)
}

unsafe extern "C" fn ep_post_rdma_write(
    ep: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
    remote: *const Triplet,
    flags: u32,
) -> u32 {
    access(DTO_RDMA_WRITE, ep, (iov, count), cookie, remote, flags)
}

unsafe extern "C" fn ep_get_status(
    ep: Handle,
    ep_state: *mut u32,
    recv_idle: *mut u32,
    request_idle: *mut u32,
) -> u32 {
    answer(|state| {
        let Some(found) = state.eps.get(&ep) else { return error(INVALID_HANDLE, HANDLE_EP) };
        let ia = found.ia;
        state.events(ia);
        let Some(found) = state.eps.get(&ep) else { return error(INVALID_HANDLE, HANDLE_EP) };
        put(ep_state, found.state as u32);
        put(recv_idle, u32::from(found.receives.used() == 0));
        put(request_idle, u32::from(found.requests.used() == 0));
        Ok(())
    })
}

unsafe extern "C" fn ep_free(ep: Handle) -> u32 {
    answer(|state| state.ep_free(ep))
}

unsafe extern "C" fn ep_reset(ep: Handle) -> u32 {
    answer(|state| state.ep_reset(ep))
}

// ---- memory

#[allow(clippy::too_many_arguments, reason = "the call has them")]
unsafe extern "C" fn lmr_create(
    ia: Handle,
    mem_type: u32,
    region: RegionDescription,
    length: u64,
    pz: Handle,
    privileges: u32,
    va_type: u32,
    lmr: *mut Handle,
    lmr_context: *mut u32,
    rmr_context: *mut u32,
    registered_length: *mut u64,
    registered_address: *mut u64,
) -> u32 {
    answer(|state| {
        check_output(lmr, 8)?;
        let made = state.lmr_create(ia, mem_type, region, length, pz, privileges, va_type)?;
        let Some(found) = state.lmrs.get(&made) else { return error(INTERNAL_ERROR, 0) };
        put(lmr, made);
        put(lmr_context, found.key);
        put(rmr_context, found.remote_key);
        put(registered_length, found.length);
        put(registered_address, found.address);
        Ok(())
    })
}

unsafe extern "C" fn lmr_query(lmr: Handle, _mask: u32, param: *mut DatLmrParam) -> u32 {
    answer(|state| {
        let Some(found) = state.lmrs.get(&lmr) else { return error(INVALID_HANDLE, HANDLE_LMR) };
        check_output(param, 3)?;
        put(
            param,
            DatLmrParam {
                ia_handle: found.ia,
                mem_type: found.mem_type,
                region_desc: RegionDescription { first: found.address as usize, second: 0 },
                length: found.length,
                pz_handle: found.pz,
                mem_priv: found.privileges,
                va_type: 0,
                lmr_context: found.key,
                rmr_context: found.remote_key,
                registered_size: found.length,
                registered_address: found.address,
            },
        );
        Ok(())
    })
}

unsafe extern "C" fn lmr_free(lmr: Handle) -> u32 {
    answer(|state| state.lmr_free(lmr))
}

/// Memory is coherent: there is nothing to do.
unsafe extern "C" fn lmr_sync(ia: Handle, iov: *const Triplet, count: u64) -> u32 {
    answer(|state| {
        if !state.ias.contains_key(&ia) {
            return error(INVALID_HANDLE, HANDLE_IA);
        }
        if iov.is_null() && count > 0 { bad_argument(2) } else { Ok(()) }
    })
}

unsafe extern "C" fn rmr_create(pz: Handle, rmr: *mut Handle) -> u32 {
    answer(|state| {
        check_output(rmr, 2)?;
        put(rmr, state.rmr_create(pz)?);
        Ok(())
    })
}

unsafe extern "C" fn rmr_query(rmr: Handle, _mask: u32, param: *mut DatRmrParam) -> u32 {
    answer(|state| {
        let Some(found) = state.rmrs.get(&rmr) else { return error(INVALID_HANDLE, HANDLE_RMR) };
        check_output(param, 3)?;
        let (lmr_triplet, mem_priv, rmr_context) = found.bound.unwrap_or_default();
        put(
            param,
            DatRmrParam {
                ia_handle: found.ia,
                pz_handle: found.pz,
                lmr_triplet,
                mem_priv,
                rmr_context,
                rmr_scope: 1,
                va_type: 0,
            },
        );
        Ok(())
    })
}

#[allow(clippy::too_many_arguments, reason = "the call has them")]
unsafe extern "C" fn rmr_bind(
    rmr: Handle,
    lmr: Handle,
    triplet: *const Triplet,
    privileges: u32,
    va_type: u32,
    ep: Handle,
    cookie: u64,
    flags: u32,
    rmr_context: *mut u32,
) -> u32 {
    answer(|state| {
        if !state.rmrs.contains_key(&rmr) {
            return error(INVALID_HANDLE, HANDLE_RMR);
        }
        let Some(triplet) = get(triplet) else { return bad_argument(3) };
        let key = state.rmr_bind(rmr, lmr, triplet, privileges, va_type, ep, cookie, flags)?;
        put(rmr_context, key);
        Ok(())
    })
}

unsafe extern "C" fn rmr_free(rmr: Handle) -> u32 {
    answer(|state| state.rmr_free(rmr))
}

unsafe extern "C" fn pz_create(ia: Handle, pz: *mut Handle) -> u32 {
    answer(|state| {
        check_output(pz, 2)?;
        put(pz, state.pz_create(ia)?);
        Ok(())
    })
}

unsafe extern "C" fn pz_query(pz: Handle, _mask: u32, param: *mut Handle) -> u32 {
    answer(|state| {
        let Some(found) = state.pzs.get(&pz) else { return error(INVALID_HANDLE, HANDLE_PZ) };
        check_output(param, 3)?;
        put(param, found.ia);
        Ok(())
    })
}

unsafe extern "C" fn pz_free(pz: Handle) -> u32 {
    answer(|state| state.pz_free(pz))
}

// ---- service points

/// Returns true if a service point has to create an endpoint for each request.
fn makes_endpoints(flags: u32) -> DatResult<bool> {
    if flags > 1 { bad_argument(4) } else { Ok(flags == 1) }
}

unsafe extern "C" fn psp_create(
    ia: Handle,
    conn_qual: u64,
    evd: Handle,
    flags: u32,
    psp: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(psp, 5)?;
        if !state.ias.contains_key(&ia) {
            return error(INVALID_HANDLE, HANDLE_IA);
        }
        let makes_endpoints = makes_endpoints(flags)?;
        if conn_qual == 0 {
            return bad_argument(2);
        }
        put(psp, state.sp_create(ia, conn_qual, evd, None, makes_endpoints)?.0);
        Ok(())
    })
}

unsafe extern "C" fn psp_create_any(
    ia: Handle,
    conn_qual: *mut u64,
    evd: Handle,
    flags: u32,
    psp: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(psp, 5)?;
        check_output(conn_qual, 2)?;
        if !state.ias.contains_key(&ia) {
            return error(INVALID_HANDLE, HANDLE_IA);
        }
        let (made, at) = state.sp_create(ia, 0, evd, None, makes_endpoints(flags)?)?;
        put(psp, made);
        put(conn_qual, at);
        Ok(())
    })
}

unsafe extern "C" fn psp_query(psp: Handle, _mask: u32, param: *mut DatPspParam) -> u32 {
    answer(|state| {
        let found = state.sps.get(&psp).filter(|sp| sp.reserved.is_none());
        let Some(found) = found else { return error(INVALID_HANDLE, HANDLE_PSP) };
        check_output(param, 3)?;
        let (ia_handle, conn_qual, evd_handle) = (found.ia, found.conn_qual, found.evd);
        let psp_flags = found.makes_endpoints.into();
        put(param, DatPspParam { ia_handle, conn_qual, evd_handle, psp_flags });
        Ok(())
    })
}

unsafe extern "C" fn psp_free(psp: Handle) -> u32 {
    answer(|state| state.sp_free(psp, false))
}

unsafe extern "C" fn rsp_create(
    ia: Handle,
    conn_qual: u64,
    ep: Handle,
    evd: Handle,
    rsp: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(rsp, 5)?;
        if conn_qual == 0 && state.ias.contains_key(&ia) {
            return bad_argument(2);
        }
        put(rsp, state.sp_create(ia, conn_qual, evd, Some(ep), false)?.0);
        Ok(())
    })
}

unsafe extern "C" fn rsp_query(rsp: Handle, _mask: u32, param: *mut DatRspParam) -> u32 {
    answer(|state| {
        let found = state.sps.get(&rsp).and_then(|sp| sp.reserved.map(|ep| (sp, ep)));
        let Some((found, ep_handle)) = found else { return error(INVALID_HANDLE, HANDLE_RSP) };
        check_output(param, 3)?;
        let (ia_handle, conn_qual, evd_handle) = (found.ia, found.conn_qual, found.evd);
        put(param, DatRspParam { ia_handle, conn_qual, evd_handle, ep_handle });
        Ok(())
    })
}

unsafe extern "C" fn rsp_free(rsp: Handle) -> u32 {
    answer(|state| state.sp_free(rsp, true))
}

// ---- shared receive queues

unsafe extern "C" fn srq_create(
    ia: Handle,
    pz: Handle,
    attr: *const DatSrqAttr,
    srq: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(srq, 4)?;
        if !state.ias.contains_key(&ia) {
            return error(INVALID_HANDLE, HANDLE_IA);
        }
        let Some(attr) = get(attr) else { return bad_argument(3) };
        put(srq, state.srq_create(ia, pz, &attr)?);
        Ok(())
    })
}

unsafe extern "C" fn srq_free(srq: Handle) -> u32 {
    answer(|state| state.srq_free(srq))
}

unsafe extern "C" fn srq_post_recv(
    srq: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
) -> u32 {
    answer(|state| {
        let Some(found) = state.srqs.get(&srq) else { return error(INVALID_HANDLE, HANDLE_SRQ) };
        let (iov, count) = segments(iov, count, found.max_iov)?;
        state.srq_post(srq, &iov[..count], cookie)
    })
}

unsafe extern "C" fn srq_query(srq: Handle, _mask: u32, param: *mut DatSrqParam) -> u32 {
    answer(|state| {
        let Some(found) = state.srqs.get(&srq) else { return error(INVALID_HANDLE, HANDLE_SRQ) };
        check_output(param, 3)?;
        let left = found.ops.used() as i32;
        put(
            param,
            DatSrqParam {
                ia_handle: found.ia,
                srq_state: 1,
                pz_handle: found.pz,
                max_recv_dtos: found.ops.limit() as i32,
                max_recv_iov: found.max_iov as i32,
                low_watermark: found.low_watermark as i32,
                available_dto_count: left,
                outstanding_dto_count: left,
            },
        );
        Ok(())
    })
}

unsafe extern "C" fn srq_resize(srq: Handle, size: i32) -> u32 {
    answer(|state| state.srq_resize(srq, size))
}

unsafe extern "C" fn srq_set_lw(srq: Handle, mark: i32) -> u32 {
    answer(|state| state.srq_set_lw(srq, mark))
}

/// Entry of an unused slot.
unsafe extern "C" fn none() -> u32 {
    CLASS_ERROR | NOT_IMPLEMENTED
}

/// Pointer to a function, or another value of the table.
#[repr(transparent)]
struct TableSlot(*const c_void);
// SAFETY: functions, and strings that stay.
unsafe impl Sync for TableSlot {}

macro_rules! table {
    ($($name:ident = $function:expr),* $(,)?) => {
        /// The slots after the first two, by the names of `struct dat_provider`.
        #[cfg(test)]
        pub(crate) const SLOTS: &[&str] = &[$(stringify!($name)),*];
        static FUNCTIONS: &[TableSlot] = &[$(TableSlot($function as *const c_void)),*];
    };
}

table! {
    ia_open_func = ia_open,
    ia_query_func = ia_query,
    ia_close_func = ia_close,
    set_consumer_context_func = set_consumer_context,
    get_consumer_context_func = get_consumer_context,
    get_handle_type_func = get_handle_type,
    cno_create_func = cno_create,
    cno_modify_agent_func = cno_modify_agent,
    cno_query_func = cno_query,
    cno_free_func = cno_free,
    cno_wait_func = cno_wait,
    cr_query_func = cr_query,
    cr_accept_func = cr_accept,
    cr_reject_func = cr_reject,
    cr_handoff_func = none,
    evd_create_func = evd_create,
    evd_query_func = evd_query,
    evd_modify_cno_func = evd_modify_cno,
    evd_enable_func = evd_enable,
    evd_disable_func = evd_disable,
    evd_wait_func = evd_wait,
    evd_resize_func = evd_resize,
    evd_post_se_func = evd_post_se,
    evd_dequeue_func = evd_dequeue,
    evd_free_func = evd_free,
    ep_create_func = ep_create,
    ep_query_func = ep_query,
    ep_modify_func = ep_modify,
    ep_connect_func = ep_connect,
    ep_dup_connect_func = ep_dup_connect,
    ep_disconnect_func = ep_disconnect,
    ep_post_send_func = ep_post_send,
    ep_post_recv_func = ep_post_recv,
    ep_post_rdma_read_func = ep_post_rdma_read,
    ep_post_rdma_write_func = ep_post_rdma_write,
    ep_get_status_func = ep_get_status,
    ep_free_func = ep_free,
    lmr_create_func = lmr_create,
    lmr_query_func = lmr_query,
    lmr_free_func = lmr_free,
    rmr_create_func = rmr_create,
    rmr_query_func = rmr_query,
    rmr_bind_func = rmr_bind,
    rmr_free_func = rmr_free,
    psp_create_func = psp_create,
    psp_query_func = psp_query,
    psp_free_func = psp_free,
    rsp_create_func = rsp_create,
    rsp_query_func = rsp_query,
    rsp_free_func = rsp_free,
    pz_create_func = pz_create,
    pz_query_func = pz_query,
    pz_free_func = pz_free,
    psp_create_any_func = psp_create_any,
    ep_reset_func = ep_reset,
    evd_set_unwaitable_func = evd_set_unwaitable,
    evd_clear_unwaitable_func = evd_clear_unwaitable,
    lmr_sync_rdma_read_func = lmr_sync,
    lmr_sync_rdma_write_func = lmr_sync,
    ep_create_with_srq_func = ep_create_with_srq,
    ep_recv_query_func = none,
    ep_set_watermark_func = none,
    srq_create_func = srq_create,
    srq_free_func = srq_free,
    srq_post_recv_func = srq_post_recv,
    srq_query_func = srq_query,
    srq_resize_func = srq_resize,
    srq_set_lw_func = srq_set_lw,
    csp_create_func = none,
    csp_query_func = none,
    csp_free_func = none,
    ep_common_connect_func = none,
    rmr_create_for_ep_func = none,
    ep_post_send_with_invalidate_func = none,
    ep_post_rdma_read_to_rmr_func = none,
    cno_fd_create_func = none,
    cno_trigger_func = none,
    ia_ha_related_func = none,
    handle_extendedop_func = none,
}

/// Line of dat.conf for which the plug-in was loaded.
struct KnownAdaptor {
    name: String,
    instance: String,
    thread_safe: bool,
    /// Address of its table, never freed.
    table: usize,
}

static KNOWN: Mutex<Vec<KnownAdaptor>> = Mutex::new(Vec::new());

fn known() -> MutexGuard<'static, Vec<KnownAdaptor>> {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

type RegistryCall = unsafe extern "C" fn(*const c_void, *const DatProviderInfo) -> u32;

/// Returns a function of the DAT library, the loader of this one.
fn registry(name: &CStr) -> Option<RegistryCall> {
    // SAFETY: a name with its end. The library stays, as it is the caller.
    let mut found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        // SAFETY: as above; it is there already.
        let library =
            unsafe { libc::dlopen(c"libdat2.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: as above.
        found = unsafe { libc::dlsym(library, name.as_ptr()) };
    }
    // SAFETY: both functions of the registry have this type (dat_registry.h).
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, RegistryCall>(found) })
}

/// Called by the DAT library for each line of dat.conf whose adaptor an application opens.
///
/// # Safety
/// The description belongs to the registry, and the instance data is a string or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dat_provider_init(
    info: *const DatProviderInfo,
    instance: *const c_char,
) {
    let _ = catch_unwind(|| {
        if info.is_null() {
            return;
        }
        // SAFETY: the caller's; both strings have ends.
        let (name, instance, thread_safe) = unsafe {
            let instance = if instance.is_null() { c"" } else { CStr::from_ptr(instance) };
            (CStr::from_ptr((*info).ia_name.as_ptr()), instance, (*info).is_thread_safe != 0)
        };
        let mut known = known();
        let text = name.to_string_lossy().into_owned();
        let instance = instance.to_string_lossy().trim_matches('"').to_string();
        let table = match known.iter_mut().find(|of| of.name == text) {
            Some(of) => {
                (of.instance, of.thread_safe) = (instance, thread_safe);
                of.table
            }
            None => {
                // objects that outlive the registration still name it: it is never given back
                let mut table: Vec<*const c_void> =
                    vec![name.to_owned().into_raw().cast(), std::ptr::null()];
                table.extend(FUNCTIONS.iter().map(|slot| slot.0));
                let table = table.leak().as_ptr().expose_provenance();
                known.push(KnownAdaptor { name: text, instance, thread_safe, table });
                table
            }
        };
        drop(known);
        if let Some(add) = registry(c"dat_registry_add_provider") {
            // SAFETY: a table of the provider's and the registry's own description.
            unsafe { add(std::ptr::with_exposed_provenance(table), info) };
        }
    });
}

/// Called by the DAT library before it unloads the plug-in.
///
/// # Safety
/// The description is the registry's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dat_provider_fini(info: *const DatProviderInfo) {
    let _ = catch_unwind(|| {
        if info.is_null() {
            return;
        }
        // SAFETY: the caller's.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) }.to_string_lossy();
        let table = known().iter().find(|of| of.name == name).map(|of| of.table);
        if let (Some(table), Some(remove)) = (table, registry(c"dat_registry_remove_provider")) {
            // SAFETY: as it was added.
            unsafe { remove(std::ptr::with_exposed_provenance(table), info) };
        }
    });
}

#[cfg(test)]
mod tests;
