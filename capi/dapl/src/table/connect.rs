//! Service points, requests for connections, and shared receive queues.
use crate::answer::*;
use crate::layout::*;

use super::call::*;

pub(super) unsafe extern "C" fn cr_query(cr: Handle, _mask: u32, param: *mut DatCrParam) -> u32 {
    answer(|state| {
        let found = require_object(state.crs.get(cr), HANDLE_CR)?;
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

pub(super) unsafe extern "C" fn cr_accept(
    cr: Handle,
    ep: Handle,
    length: i32,
    data: *const u8,
) -> u32 {
    answer(|state| {
        require_object(state.crs.get(cr), HANDLE_CR)?;
        let data = private(data, length, 3)?;
        state.cr_accept(cr, ep, &data)
    })
}

pub(super) unsafe extern "C" fn cr_reject(cr: Handle, length: i32, data: *const u8) -> u32 {
    answer(|state| {
        require_object(state.crs.get(cr), HANDLE_CR)?;
        let data = private(data, length, 2)?;
        state.cr_reject(cr, &data)
    })
}

/// Returns true if a service point has to create an endpoint for each request.
pub(super) fn makes_endpoints(flags: u32) -> DatResult<bool> {
    if flags > 1 { bad_argument(4) } else { Ok(flags == 1) }
}

pub(super) unsafe extern "C" fn psp_create(
    ia: Handle,
    conn_qual: u64,
    evd: Handle,
    flags: u32,
    psp: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(psp, 5)?;
        require_object(state.ias.get(ia), HANDLE_IA)?;
        let makes_endpoints = makes_endpoints(flags)?;
        if conn_qual == 0 {
            return bad_argument(2);
        }
        put(psp, state.sp_create(ia, conn_qual, evd, None, makes_endpoints)?.0);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn psp_create_any(
    ia: Handle,
    conn_qual: *mut u64,
    evd: Handle,
    flags: u32,
    psp: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(psp, 5)?;
        check_output(conn_qual, 2)?;
        require_object(state.ias.get(ia), HANDLE_IA)?;
        let (made, at) = state.sp_create(ia, 0, evd, None, makes_endpoints(flags)?)?;
        put(psp, made);
        put(conn_qual, at);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn psp_query(psp: Handle, _mask: u32, param: *mut DatPspParam) -> u32 {
    answer(|state| {
        let found = state.sps.get(psp).filter(|sp| sp.reserved.is_none());
        let found = require_object(found, HANDLE_PSP)?;
        check_output(param, 3)?;
        let (ia_handle, conn_qual, evd_handle) = (found.ia, found.conn_qual, found.evd);
        let psp_flags = found.makes_endpoints.into();
        put(param, DatPspParam { ia_handle, conn_qual, evd_handle, psp_flags });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn psp_free(psp: Handle) -> u32 {
    answer(|state| state.sp_free(psp, false))
}

pub(super) unsafe extern "C" fn rsp_create(
    ia: Handle,
    conn_qual: u64,
    ep: Handle,
    evd: Handle,
    rsp: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(rsp, 5)?;
        if conn_qual == 0 && state.ias.contains(ia) {
            return bad_argument(2);
        }
        put(rsp, state.sp_create(ia, conn_qual, evd, Some(ep), false)?.0);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rsp_query(rsp: Handle, _mask: u32, param: *mut DatRspParam) -> u32 {
    answer(|state| {
        let found = state.sps.get(rsp).and_then(|sp| sp.reserved.map(|ep| (sp, ep)));
        let (found, ep_handle) = require_object(found, HANDLE_RSP)?;
        check_output(param, 3)?;
        let (ia_handle, conn_qual, evd_handle) = (found.ia, found.conn_qual, found.evd);
        put(param, DatRspParam { ia_handle, conn_qual, evd_handle, ep_handle });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rsp_free(rsp: Handle) -> u32 {
    answer(|state| state.sp_free(rsp, true))
}

pub(super) unsafe extern "C" fn srq_create(
    ia: Handle,
    pz: Handle,
    attr: *const DatSrqAttr,
    srq: *mut Handle,
) -> u32 {
    answer(|state| {
        check_output(srq, 4)?;
        let of = (ia, require_object(state.ias.get(ia), HANDLE_IA)?);
        let Some(attr) = get(attr) else { return bad_argument(3) };
        let (handles, memory) = (&mut state.handles, &mut state.memory);
        put(srq, state.srqs.srq_create(handles, memory, of, pz, &attr)?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn srq_free(srq: Handle) -> u32 {
    answer(|state| state.srqs.srq_free(&mut state.handles, &mut state.memory, srq))
}

pub(super) unsafe extern "C" fn srq_post_recv(
    srq: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
) -> u32 {
    answer(|state| {
        let found = require_object(state.srqs.get(srq), HANDLE_SRQ)?;
        let (iov, count) = segments(iov, count, found.max_iov)?;
        state.srqs.srq_post(&state.memory, srq, &iov[..count], cookie)
    })
}

pub(super) unsafe extern "C" fn srq_query(srq: Handle, _mask: u32, param: *mut DatSrqParam) -> u32 {
    answer(|state| {
        let found = require_object(state.srqs.get(srq), HANDLE_SRQ)?;
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

pub(super) unsafe extern "C" fn srq_resize(srq: Handle, size: i32) -> u32 {
    answer(|state| state.srqs.srq_resize(srq, size))
}

pub(super) unsafe extern "C" fn srq_set_lw(srq: Handle, mark: i32) -> u32 {
    answer(|state| state.srqs.srq_set_lw(&mut state.events, srq, mark))
}
