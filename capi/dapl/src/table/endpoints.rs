//! Endpoints.
use crate::answer::*;
use crate::fabric::SocketAddress;
use crate::layout::*;
use std::ffi::c_void;

use super::call::*;

pub(super) unsafe extern "C" fn ep_create(
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
pub(super) unsafe extern "C" fn ep_create_with_srq(
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

pub(super) unsafe extern "C" fn ep_query(ep: Handle, _mask: u64, param: *mut DatEpParam) -> u32 {
    answer(|state| {
        let found = require_object(state.eps.get(ep), HANDLE_EP)?;
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

pub(super) unsafe extern "C" fn ep_modify(ep: Handle, mask: u64, param: *const DatEpParam) -> u32 {
    answer(|state| {
        require_object(state.eps.get(ep), HANDLE_EP)?;
        match get(param) {
            Some(param) => state.ep_modify(ep, mask, &param),
            None => bad_argument(3),
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "the call has them")]
pub(super) unsafe extern "C" fn ep_connect(
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
        require_object(state.eps.get(ep), HANDLE_EP)?;
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

pub(super) unsafe extern "C" fn ep_dup_connect(
    ep: Handle,
    other: Handle,
    timeout: u32,
    length: i32,
    data: *const u8,
    _qos: u32,
) -> u32 {
    answer(|state| {
        require_object(state.eps.get(ep), HANDLE_EP)?;
        let of = require_object(state.eps.get(other), HANDLE_EP)?;
        if of.state != EpState::Connected {
            return bad_state(of.state);
        }
        let (peer, conn_qual) = (*of.peer, of.conn_qual);
        let data = private(data, length, 4)?;
        state.ep_connect(ep, peer, conn_qual, timeout, &data, 0)
    })
}

pub(super) unsafe extern "C" fn ep_disconnect(ep: Handle, flags: u32) -> u32 {
    answer(|state| state.ep_disconnect(ep, flags))
}

pub(super) unsafe extern "C" fn ep_post_send(
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

pub(super) unsafe extern "C" fn ep_post_recv(
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

pub(super) fn access(
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

pub(super) unsafe extern "C" fn ep_post_rdma_read(
    ep: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
    remote: *const Triplet,
    flags: u32,
) -> u32 {
    access(DTO_RDMA_READ, ep, (iov, count), cookie, remote, flags)
}

pub(super) unsafe extern "C" fn ep_post_rdma_write(
    ep: Handle,
    count: i32,
    iov: *const Triplet,
    cookie: u64,
    remote: *const Triplet,
    flags: u32,
) -> u32 {
    access(DTO_RDMA_WRITE, ep, (iov, count), cookie, remote, flags)
}

pub(super) unsafe extern "C" fn ep_get_status(
    ep: Handle,
    ep_state: *mut u32,
    recv_idle: *mut u32,
    request_idle: *mut u32,
) -> u32 {
    answer(|state| {
        let found = require_object(state.eps.get(ep), HANDLE_EP)?;
        let ia = found.ia;
        state.handle_events(ia);
        let found = require_object(state.eps.get(ep), HANDLE_EP)?;
        put(ep_state, found.state as u32);
        put(recv_idle, u32::from(found.receives.used() == 0));
        put(request_idle, u32::from(found.requests.used() == 0));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ep_free(ep: Handle) -> u32 {
    answer(|state| state.ep_free(ep))
}

pub(super) unsafe extern "C" fn ep_reset(ep: Handle) -> u32 {
    answer(|state| state.ep_reset(ep))
}
