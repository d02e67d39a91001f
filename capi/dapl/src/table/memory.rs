//! Zones, memory and windows.
use crate::answer::*;
use crate::layout::*;

use super::call::*;

#[allow(clippy::too_many_arguments, reason = "the call has them")]
pub(super) unsafe extern "C" fn lmr_create(
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
        let Some(found) = state.memory.lmr(made) else { return error(INTERNAL_ERROR, 0) };
        put(lmr, made);
        put(lmr_context, found.key);
        put(rmr_context, found.remote_key);
        put(registered_length, found.length);
        put(registered_address, found.address);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn lmr_query(lmr: Handle, _mask: u32, param: *mut DatLmrParam) -> u32 {
    answer(|state| {
        let found = require_object(state.memory.lmr(lmr), HANDLE_LMR)?;
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

pub(super) unsafe extern "C" fn lmr_free(lmr: Handle) -> u32 {
    answer(|state| state.memory.lmr_free(&mut state.handles, lmr))
}

/// Memory is coherent: there is nothing to do.
pub(super) unsafe extern "C" fn lmr_sync(ia: Handle, iov: *const Triplet, count: u64) -> u32 {
    answer(|state| {
        require_object(state.ias.get(ia), HANDLE_IA)?;
        if iov.is_null() && count > 0 { bad_argument(2) } else { Ok(()) }
    })
}

pub(super) unsafe extern "C" fn rmr_create(pz: Handle, rmr: *mut Handle) -> u32 {
    answer(|state| {
        check_output(rmr, 2)?;
        let ias = &state.ias;
        let provider = |ia| ias.get(ia).map_or(0, |ia| ia.provider);
        put(rmr, state.memory.rmr_create(&mut state.handles, pz, provider)?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rmr_query(rmr: Handle, _mask: u32, param: *mut DatRmrParam) -> u32 {
    answer(|state| {
        let found = require_object(state.memory.rmr(rmr), HANDLE_RMR)?;
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
pub(super) unsafe extern "C" fn rmr_bind(
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
        require_object(state.memory.rmr(rmr), HANDLE_RMR)?;
        let Some(triplet) = get(triplet) else { return bad_argument(3) };
        let key = state.rmr_bind(rmr, lmr, triplet, privileges, va_type, ep, cookie, flags)?;
        put(rmr_context, key);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rmr_free(rmr: Handle) -> u32 {
    answer(|state| state.memory.rmr_free(&mut state.handles, rmr))
}

pub(super) unsafe extern "C" fn pz_create(ia: Handle, pz: *mut Handle) -> u32 {
    answer(|state| {
        check_output(pz, 2)?;
        let provider = state.has_ia(ia)?.provider;
        put(pz, state.memory.pz_create(&mut state.handles, (ia, provider)));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn pz_query(pz: Handle, _mask: u32, param: *mut Handle) -> u32 {
    answer(|state| {
        let found = require_object(state.memory.pz(pz), HANDLE_PZ)?;
        check_output(param, 3)?;
        put(param, found.ia);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn pz_free(pz: Handle) -> u32 {
    answer(|state| state.memory.pz_free(&mut state.handles, pz))
}
