//! Adaptors, and the calls on handles of any kind.
use crate::answer::*;
use crate::layout::*;
use std::ffi::{CStr, c_char};
use std::mem::zeroed;

use super::call::*;
use super::known::known;
use crate::objects::evd::EVD_MAX;
use crate::posted::DTO_MAX;

pub(super) unsafe extern "C" fn ia_open(
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

pub(super) unsafe extern "C" fn ia_close(ia: Handle, flags: u32) -> u32 {
    answer(|state| {
        if flags > 1 && state.ias.contains(ia) {
            return bad_argument(2);
        }
        state.ia_close(ia, flags == 1)
    })
}

/// `DAT_NAMED_ATTR`.
#[repr(C)]
pub(super) struct DatNamedAttr {
    pub(super) name: *const c_char,
    pub(super) value: *const c_char,
}
// SAFETY: both strings stay.
unsafe impl Sync for DatNamedAttr {}

/// Named attributes of the reference providers, in addition to their ordinary ones. Programs able
/// to work without reads of remote memory query the first, among them dtest. Others, like dtestsrq,
/// choose the length of their messages by the second.
pub(super) const fn named(mtu: &'static CStr) -> [DatNamedAttr; 2] {
    [
        DatNamedAttr { name: c"DAT_IB_RDMA_READ".as_ptr(), value: c"TRUE".as_ptr() },
        DatNamedAttr { name: c"DAT_IB_TRANSPORT_MTU".as_ptr(), value: mtu.as_ptr() },
    ]
}

/// MTUs of InfiniBand, and the named attributes of adaptors with each of them.
pub(super) static NAMED: [(usize, [DatNamedAttr; 2]); 5] = [
    (256, named(c"256")),
    (512, named(c"512")),
    (1024, named(c"1024")),
    (2048, named(c"2048")),
    (4096, named(c"4096")),
];

/// Returns the attributes of an adaptor whose link has packets of this length, with the largest
/// fitting MTU of InfiniBand. A transport without packets has the largest of all.
pub(super) fn named_attributes(packet: Option<usize>) -> &'static [DatNamedAttr] {
    let packet = packet.unwrap_or(usize::MAX);
    let fits = NAMED.iter().rev().find(|(mtu, _)| *mtu <= packet);
    &fits.unwrap_or(&NAMED[0]).1
}

pub(super) fn name_of(text: &str) -> [u8; 256] {
    let mut name = [0; 256];
    let length = text.len().min(255);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

pub(super) unsafe extern "C" fn ia_query(
    ia: Handle,
    evd: *mut Handle,
    mask: u64,
    attr: *mut DatIaAttr,
    provider_mask: u64,
    provider: *mut DatProviderAttr,
) -> u32 {
    answer(|state| {
        let of = require_object(state.ias.get(ia), HANDLE_IA)?;
        if mask != 0 {
            check_output(attr, 4)?;
        }
        if provider_mask != 0 {
            check_output(provider, 6)?;
        }
        put(evd, state.events.async_evd(ia));
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

pub(super) unsafe extern "C" fn set_consumer_context(handle: Handle, context: u64) -> u32 {
    answer(|state| match state.handles.context(handle) {
        Some(word) => {
            *word = context;
            Ok(())
        }
        None => error(INVALID_HANDLE, 0),
    })
}

pub(super) unsafe extern "C" fn get_consumer_context(handle: Handle, context: *mut u64) -> u32 {
    answer(|state| match state.handles.context(handle) {
        Some(word) => {
            check_output(context, 2)?;
            put(context, *word);
            Ok(())
        }
        None => error(INVALID_HANDLE, 0),
    })
}

pub(super) unsafe extern "C" fn get_handle_type(handle: Handle, kind: *mut u32) -> u32 {
    answer(|state| match state.handles.kind(handle) {
        Some(of) => {
            check_output(kind, 2)?;
            put(kind, of as u32);
            Ok(())
        }
        None => error(INVALID_HANDLE, 0),
    })
}
