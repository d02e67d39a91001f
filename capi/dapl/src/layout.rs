//! Types of `dat2/udat.h` with their memory layout, and its constants.
//!
//! A test compares sizes, offsets and numbers with the headers, if installed.
use std::ffi::{c_char, c_int};

/// Pointer identifying an object for the application.
pub(crate) type Handle = usize;

// Types of answers.
pub(crate) const ABORT: u32 = 0x0001_0000;
pub(crate) const CONN_QUAL_IN_USE: u32 = 0x0002_0000;
pub(crate) const INSUFFICIENT_RESOURCES: u32 = 0x0003_0000;
pub(crate) const INTERNAL_ERROR: u32 = 0x0004_0000;
pub(crate) const INVALID_HANDLE: u32 = 0x0005_0000;
pub(crate) const INVALID_PARAMETER: u32 = 0x0006_0000;
pub(crate) const INVALID_STATE: u32 = 0x0007_0000;
pub(crate) const LENGTH_ERROR: u32 = 0x0008_0000;
pub(crate) const MODEL_NOT_SUPPORTED: u32 = 0x0009_0000;
pub(crate) const PROVIDER_NOT_FOUND: u32 = 0x000A_0000;
pub(crate) const PRIVILEGES_VIOLATION: u32 = 0x000B_0000;
pub(crate) const PROTECTION_VIOLATION: u32 = 0x000C_0000;
pub(crate) const QUEUE_EMPTY: u32 = 0x000D_0000;
pub(crate) const QUEUE_FULL: u32 = 0x000E_0000;
pub(crate) const TIMEOUT_EXPIRED: u32 = 0x000F_0000;
pub(crate) const INVALID_ADDRESS: u32 = 0x0012_0000;
pub(crate) const CONN_QUAL_UNAVAILABLE: u32 = 0x0014_0000;
pub(crate) const NOT_IMPLEMENTED: u32 = 0x3FFF_0000;
/// The class of every error.
pub(crate) const CLASS_ERROR: u32 = 0x8000_0000;

// Subtypes of answers.
pub(crate) const RESOURCE_MEMORY: u32 = 2;
pub(crate) const RESOURCE_DEVICE: u32 = 3;
pub(crate) const RESOURCE_TEP: u32 = 4;
pub(crate) const RESOURCE_MEMORY_REGION: u32 = 7;
pub(crate) const RESOURCE_SRQ: u32 = 10;
pub(crate) const HANDLE_IA: u32 = 11;
pub(crate) const HANDLE_EP: u32 = 12;
pub(crate) const HANDLE_LMR: u32 = 13;
pub(crate) const HANDLE_RMR: u32 = 14;
pub(crate) const HANDLE_PZ: u32 = 15;
pub(crate) const HANDLE_PSP: u32 = 16;
pub(crate) const HANDLE_RSP: u32 = 17;
pub(crate) const HANDLE_CR: u32 = 18;
pub(crate) const HANDLE_CNO: u32 = 19;
pub(crate) const HANDLE_EVD_CR: u32 = 20;
pub(crate) const HANDLE_EVD_REQUEST: u32 = 21;
pub(crate) const HANDLE_EVD_RECV: u32 = 22;
pub(crate) const HANDLE_EVD_CONN: u32 = 23;
pub(crate) const HANDLE_EVD_ASYNC: u32 = 24;
pub(crate) const HANDLE_SRQ: u32 = 25;
/// The first of the handles without a kind, `DAT_INVALID_HANDLE1`.
pub(crate) const HANDLE_1: u32 = 27;
/// `DAT_INVALID_ARG1`, and the others up to the tenth behind it.
pub(crate) const ARG_1: u32 = 37;
pub(crate) const STATE_EP_UNCONNECTED: u32 = 47;
pub(crate) const STATE_EP_ACTCONNPENDING: u32 = 48;
pub(crate) const STATE_EP_PASSCONNPENDING: u32 = 49;
pub(crate) const STATE_EP_CONNECTED: u32 = 51;
pub(crate) const STATE_EP_DISCONNECTED: u32 = 52;
pub(crate) const STATE_EP_RESERVED: u32 = 53;
pub(crate) const STATE_EP_COMPLPENDING: u32 = 54;
pub(crate) const STATE_EP_DISCPENDING: u32 = 55;
pub(crate) const STATE_EP_NOTREADY: u32 = 57;
pub(crate) const STATE_CNO_IN_USE: u32 = 67;
pub(crate) const STATE_EVD_UNWAITABLE: u32 = 73;
pub(crate) const STATE_EVD_IN_USE: u32 = 74;
pub(crate) const STATE_EVD_WAITER: u32 = 78;
pub(crate) const STATE_IA_IN_USE: u32 = 80;
pub(crate) const STATE_LMR_IN_USE: u32 = 81;
pub(crate) const STATE_PZ_IN_USE: u32 = 83;
pub(crate) const STATE_SRQ_IN_USE: u32 = 87;
pub(crate) const PRIVILEGES_READ: u32 = 89;
pub(crate) const PRIVILEGES_WRITE: u32 = 90;
pub(crate) const PROTECTION_READ: u32 = 93;
pub(crate) const PROTECTION_WRITE: u32 = 94;
pub(crate) const ADDRESS_UNSUPPORTED: u32 = 97;

// Events.
pub(crate) const DTO_COMPLETION: u32 = 0x00001;
pub(crate) const RMR_BIND_COMPLETION: u32 = 0x01001;
pub(crate) const CONNECTION_REQUEST: u32 = 0x02001;
pub(crate) const ESTABLISHED: u32 = 0x04001;
pub(crate) const PEER_REJECTED: u32 = 0x04002;
pub(crate) const NON_PEER_REJECTED: u32 = 0x04003;
pub(crate) const ACCEPT_COMPLETION_ERROR: u32 = 0x04004;
pub(crate) const DISCONNECTED: u32 = 0x04005;
pub(crate) const BROKEN: u32 = 0x04006;
pub(crate) const TIMED_OUT: u32 = 0x04007;
pub(crate) const UNREACHABLE: u32 = 0x04008;
pub(crate) const ASYNC_EVD_OVERFLOW: u32 = 0x08001;
pub(crate) const ASYNC_EP_BROKEN: u32 = 0x08003;
pub(crate) const ASYNC_PROVIDER_INTERNAL_ERROR: u32 = 0x08005;
pub(crate) const SOFTWARE_EVENT: u32 = 0x10001;
/// `DAT_PSP_CREATES_EP_IFASKED`.
pub(crate) const EP_CREATOR_IF_ASKED: u32 = 1;
/// The reason of an asynchronous event of a shared receive queue.
pub(crate) const SRQ_LOW_WATERMARK: i32 = 2;

// Status of a data transfer.
pub(crate) const DTO_SUCCESS: u32 = 0;
pub(crate) const DTO_FLUSHED: u32 = 1;
pub(crate) const DTO_LOCAL_LENGTH: u32 = 2;
pub(crate) const DTO_LOCAL_PROTECTION: u32 = 4;
pub(crate) const DTO_REMOTE_ACCESS: u32 = 6;
pub(crate) const DTO_TRANSPORT: u32 = 8;

// Kinds of data transfers.
pub(crate) const DTO_SEND: u32 = 0;
pub(crate) const DTO_RDMA_WRITE: u32 = 1;
pub(crate) const DTO_RDMA_READ: u32 = 2;
pub(crate) const DTO_RECEIVE: u32 = 3;

// Flags of completions.
pub(crate) const COMPLETION_SUPPRESS: u32 = 0x01;
pub(crate) const COMPLETION_SOLICITED_WAIT: u32 = 0x02;
pub(crate) const COMPLETION_UNSIGNALLED: u32 = 0x04;
pub(crate) const COMPLETION_BARRIER_FENCE: u32 = 0x08;
pub(crate) const COMPLETION_EVD_THRESHOLD: u32 = 0x10;

// Streams that feed an event dispatcher.
pub(crate) const EVD_SOFTWARE: u32 = 0x001;
pub(crate) const EVD_CR: u32 = 0x010;
pub(crate) const EVD_DTO: u32 = 0x020;
pub(crate) const EVD_CONNECTION: u32 = 0x040;
pub(crate) const EVD_RMR_BIND: u32 = 0x080;
pub(crate) const EVD_ASYNC: u32 = 0x100;

// Privileges of memory.
pub(crate) const PRIV_LOCAL_READ: u32 = 0x01;
pub(crate) const PRIV_REMOTE_READ: u32 = 0x02;
pub(crate) const PRIV_LOCAL_WRITE: u32 = 0x10;
pub(crate) const PRIV_REMOTE_WRITE: u32 = 0x20;
pub(crate) const PRIV_ALL: u32 = 0x33;

/// Timeout that never expires.
pub(crate) const TIMEOUT_INFINITE: u32 = u32::MAX;
/// Value passed to `dat_ia_open` if another instance has the asynchronous dispatcher.
pub(crate) const ASYNC_EXISTS: Handle = 1;
/// Result of `dat_ia_query` in this case.
pub(crate) const OUT_OF_SCOPE: Handle = 2;

/// `DAT_HANDLE_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum HandleKind {
    Cr = 0,
    Ep = 1,
    Evd = 2,
    Ia = 3,
    Lmr = 4,
    Psp = 5,
    Pz = 6,
    Rmr = 7,
    Rsp = 8,
    Cno = 9,
    Srq = 10,
}

/// `DAT_EP_STATE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum EpState {
    Unconnected = 0,
    Reserved = 2,
    PassivePending = 4,
    ActivePending = 6,
    Connected = 9,
    DisconnectPending = 10,
    Disconnected = 11,
    CompletionPending = 12,
}

/// `DAT_LMR_TRIPLET` and `DAT_RMR_TRIPLET`: a segment of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Triplet {
    pub(crate) virtual_address: u64,
    pub(crate) segment_length: u32,
    pub(crate) context: u32,
}

/// `DAT_COMM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatComm {
    pub(crate) domain: c_int,
    pub(crate) kind: c_int,
    pub(crate) protocol: c_int,
}

/// `DAT_EP_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DatEpAttr {
    pub(crate) service_type: u32,
    pub(crate) max_message_size: u32,
    pub(crate) max_rdma_size: u32,
    pub(crate) qos: u32,
    pub(crate) recv_completion_flags: u32,
    pub(crate) request_completion_flags: u32,
    pub(crate) max_recv_dtos: i32,
    pub(crate) max_request_dtos: i32,
    pub(crate) max_recv_iov: i32,
    pub(crate) max_request_iov: i32,
    pub(crate) max_rdma_read_in: i32,
    pub(crate) max_rdma_read_out: i32,
    pub(crate) srq_soft_hw: i32,
    pub(crate) max_rdma_read_iov: i32,
    pub(crate) max_rdma_write_iov: i32,
    pub(crate) ep_transport_specific_count: i32,
    pub(crate) ep_transport_specific: usize,
    pub(crate) ep_provider_specific_count: i32,
    pub(crate) ep_provider_specific: usize,
}

/// `DAT_EP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DatEpParam {
    pub(crate) ia_handle: Handle,
    pub(crate) ep_state: u32,
    pub(crate) comm: DatComm,
    pub(crate) local_ia_address_ptr: usize,
    pub(crate) local_port_qual: u64,
    pub(crate) remote_ia_address_ptr: usize,
    pub(crate) remote_port_qual: u64,
    pub(crate) pz_handle: Handle,
    pub(crate) recv_evd_handle: Handle,
    pub(crate) request_evd_handle: Handle,
    pub(crate) connect_evd_handle: Handle,
    pub(crate) srq_handle: Handle,
    pub(crate) ep_attr: DatEpAttr,
}

/// `DAT_SRQ_ATTR`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatSrqAttr {
    pub(crate) max_recv_dtos: i32,
    pub(crate) max_recv_iov: i32,
    pub(crate) low_watermark: i32,
}

/// `DAT_SRQ_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatSrqParam {
    pub(crate) ia_handle: Handle,
    pub(crate) srq_state: u32,
    pub(crate) pz_handle: Handle,
    pub(crate) max_recv_dtos: i32,
    pub(crate) max_recv_iov: i32,
    pub(crate) low_watermark: i32,
    pub(crate) available_dto_count: i32,
    pub(crate) outstanding_dto_count: i32,
}

/// `DAT_PSP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatPspParam {
    pub(crate) ia_handle: Handle,
    pub(crate) conn_qual: u64,
    pub(crate) evd_handle: Handle,
    pub(crate) psp_flags: u32,
}

/// `DAT_RSP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatRspParam {
    pub(crate) ia_handle: Handle,
    pub(crate) conn_qual: u64,
    pub(crate) evd_handle: Handle,
    pub(crate) ep_handle: Handle,
}

/// `DAT_CR_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatCrParam {
    pub(crate) remote_ia_address_ptr: usize,
    pub(crate) remote_port_qual: u64,
    pub(crate) private_data_size: i32,
    pub(crate) private_data: usize,
    pub(crate) local_ep_handle: Handle,
}

/// `DAT_EVD_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatEvdParam {
    pub(crate) ia_handle: Handle,
    pub(crate) evd_qlen: i32,
    pub(crate) evd_state: u32,
    pub(crate) cno_handle: Handle,
    pub(crate) evd_flags: u32,
}

/// `DAT_CNO_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatCnoParam {
    pub(crate) ia_handle: Handle,
    pub(crate) proxy_type: u32,
    pub(crate) agent: [usize; 2],
}

/// `DAT_REGION_DESCRIPTION`: an address, a handle, or an address with a cookie.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RegionDescription {
    pub(crate) first: usize,
    pub(crate) second: usize,
}

/// `DAT_LMR_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatLmrParam {
    pub(crate) ia_handle: Handle,
    pub(crate) mem_type: u32,
    pub(crate) region_desc: RegionDescription,
    pub(crate) length: u64,
    pub(crate) pz_handle: Handle,
    pub(crate) mem_priv: u32,
    pub(crate) va_type: u32,
    pub(crate) lmr_context: u32,
    pub(crate) rmr_context: u32,
    pub(crate) registered_size: u64,
    pub(crate) registered_address: u64,
}

/// `DAT_RMR_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct DatRmrParam {
    pub(crate) ia_handle: Handle,
    pub(crate) pz_handle: Handle,
    pub(crate) lmr_triplet: Triplet,
    pub(crate) mem_priv: u32,
    pub(crate) rmr_context: u32,
    pub(crate) rmr_scope: u32,
    pub(crate) va_type: u32,
}

/// `DAT_IA_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DatIaAttr {
    pub(crate) adapter_name: [u8; 256],
    pub(crate) vendor_name: [u8; 256],
    pub(crate) hardware_version_major: u32,
    pub(crate) hardware_version_minor: u32,
    pub(crate) firmware_version_major: u32,
    pub(crate) firmware_version_minor: u32,
    pub(crate) ia_address_ptr: usize,
    pub(crate) max_eps: i32,
    pub(crate) max_dto_per_ep: i32,
    pub(crate) max_rdma_read_per_ep_in: i32,
    pub(crate) max_rdma_read_per_ep_out: i32,
    pub(crate) max_evds: i32,
    pub(crate) max_evd_qlen: i32,
    pub(crate) max_iov_segments_per_dto: i32,
    pub(crate) max_lmrs: i32,
    pub(crate) max_lmr_block_size: u32,
    pub(crate) max_lmr_virtual_address: u64,
    pub(crate) max_pzs: i32,
    pub(crate) max_message_size: u32,
    pub(crate) max_rdma_size: u32,
    pub(crate) max_rmrs: i32,
    pub(crate) max_rmr_target_address: u64,
    pub(crate) max_srqs: i32,
    pub(crate) max_ep_per_srq: i32,
    pub(crate) max_recv_per_srq: i32,
    pub(crate) max_iov_segments_per_rdma_read: i32,
    pub(crate) max_iov_segments_per_rdma_write: i32,
    pub(crate) max_rdma_read_in: i32,
    pub(crate) max_rdma_read_out: i32,
    pub(crate) max_rdma_read_per_ep_in_guaranteed: u32,
    pub(crate) max_rdma_read_per_ep_out_guaranteed: u32,
    pub(crate) zb_supported: u32,
    pub(crate) extension_supported: u32,
    pub(crate) extension_version: i32,
    pub(crate) num_transport_attr: i32,
    pub(crate) transport_attr: usize,
    pub(crate) num_vendor_attr: i32,
    pub(crate) vendor_attr: usize,
}

/// `DAT_PROVIDER_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DatProviderAttr {
    pub(crate) provider_name: [u8; 256],
    pub(crate) provider_version_major: u32,
    pub(crate) provider_version_minor: u32,
    pub(crate) dapl_version_major: u32,
    pub(crate) dapl_version_minor: u32,
    pub(crate) lmr_mem_types_supported: u32,
    pub(crate) iov_ownership_on_return: u32,
    pub(crate) dat_qos_supported: u32,
    pub(crate) completion_flags_supported: u32,
    pub(crate) is_thread_safe: u32,
    pub(crate) max_private_data_size: i32,
    pub(crate) supports_multipath: u32,
    pub(crate) ep_creator: u32,
    pub(crate) pz_support: u32,
    pub(crate) optimal_buffer_alignment: u32,
    pub(crate) evd_stream_merging_supported: [[u32; 6]; 6],
    pub(crate) srq_supported: u32,
    pub(crate) srq_watermarks_supported: i32,
    pub(crate) srq_ep_pz_difference_supported: u32,
    pub(crate) srq_info_supported: i32,
    pub(crate) ep_recv_info_supported: i32,
    pub(crate) lmr_sync_req: u32,
    pub(crate) dto_async_return_guaranteed: u32,
    pub(crate) rdma_write_for_rdma_read_req: u32,
    pub(crate) rdma_read_lmr_rmr_context_exposure: u32,
    pub(crate) rmr_scope_supported: u32,
    pub(crate) is_signal_safe: u32,
    pub(crate) ha_supported: u32,
    pub(crate) ha_loadbalancing: u32,
    pub(crate) num_provider_specific_attr: i32,
    pub(crate) provider_specific_attr: usize,
}

/// `DAT_PROVIDER_INFO`.
#[repr(C)]
pub(crate) struct DatProviderInfo {
    pub(crate) ia_name: [c_char; 256],
    pub(crate) dapl_version_major: u32,
    pub(crate) dapl_version_minor: u32,
    pub(crate) is_thread_safe: u32,
}

/// `DAT_OS_WAIT_PROXY_AGENT`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ProxyAgent {
    pub(crate) instance_data: usize,
    pub(crate) function: usize,
}

/// `DAT_EVENT`; the words of the union are written and read by the kind of event.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DatEvent {
    pub(crate) event_number: u32,
    pub(crate) evd_handle: Handle,
    pub(crate) data: [u64; 5],
    pub(crate) extension: [u64; 8],
}

/// Two words of 32 bits as they lie in one of 64.
fn pair(first: u32, second: u32) -> u64 {
    let (first, second) = (first.to_ne_bytes(), second.to_ne_bytes());
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first);
    both[4..].copy_from_slice(&second);
    u64::from_ne_bytes(both)
}

impl DatEvent {
    fn new(event_number: u32, data: [u64; 5]) -> Self {
        Self { event_number, data, ..Self::default() }
    }

    /// The end of a data transfer.
    pub(crate) fn transfer(
        ep: Handle,
        cookie: u64,
        status: u32,
        length: u32,
        operation: u32,
    ) -> Self {
        let data = [ep as u64, cookie, pair(status, length), pair(operation, 0), 0];
        Self::new(DTO_COMPLETION, data)
    }

    /// The end of a bind.
    pub(crate) fn bind(rmr: Handle, cookie: u64, status: u32) -> Self {
        Self::new(RMR_BIND_COMPLETION, [rmr as u64, cookie, pair(status, 0), 0, 0])
    }

    /// A request for a connection.
    pub(crate) fn request(
        sp: Handle,
        local: usize,
        conn_qual: u64,
        cr: Handle,
        truncated: bool,
    ) -> Self {
        let data = [sp as u64, local as u64, conn_qual, cr as u64, pair(truncated.into(), 0)];
        Self::new(CONNECTION_REQUEST, data)
    }

    /// Returns the event with the result of a connection.
    pub(crate) fn connection(number: u32, ep: Handle, length: usize, private: usize) -> Self {
        Self::new(number, [ep as u64, pair(length as u32, 0), private as u64, 0, 0])
    }

    /// An asynchronous error.
    pub(crate) fn asynchronous(number: u32, handle: Handle, reason: i32) -> Self {
        Self::new(number, [handle as u64, pair(reason as u32, 0), 0, 0, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    /// Rows of `expression in C = what it is here`.
    fn rows() -> Vec<(String, u64)> {
        let mut rows = Vec::new();
        macro_rules! layout {
            ($c:literal, $rust:ty, $($field:ident $(= $name:literal)?),* $(,)?) => {
                rows.push((format!("sizeof({})", $c), size_of::<$rust>() as u64));
                $(
                    #[allow(unused_mut, unused_assignments)]
                    let mut name = stringify!($field);
                    $(name = $name;)?
                    rows.push((format!("offsetof({}, {name})", $c), offset_of!($rust, $field) as u64));
                )*
            };
        }
        layout!(
            "DAT_LMR_TRIPLET",
            Triplet,
            virtual_address,
            segment_length,
            context = "lmr_context"
        );
        layout!(
            "DAT_RMR_TRIPLET",
            Triplet,
            virtual_address,
            segment_length,
            context = "rmr_context"
        );
        layout!("DAT_COMM", DatComm, domain, kind = "type", protocol);
        layout!(
            "DAT_EP_ATTR",
            DatEpAttr,
            service_type,
            max_message_size,
            max_rdma_size,
            qos,
            recv_completion_flags,
            request_completion_flags,
            max_recv_dtos,
            max_request_dtos,
            max_recv_iov,
            max_request_iov,
            max_rdma_read_in,
            max_rdma_read_out,
            srq_soft_hw,
            max_rdma_read_iov,
            max_rdma_write_iov,
            ep_transport_specific_count,
            ep_transport_specific,
            ep_provider_specific_count,
            ep_provider_specific
        );
        layout!(
            "DAT_EP_PARAM",
            DatEpParam,
            ia_handle,
            ep_state,
            comm,
            local_ia_address_ptr,
            local_port_qual,
            remote_ia_address_ptr,
            remote_port_qual,
            pz_handle,
            recv_evd_handle,
            request_evd_handle,
            connect_evd_handle,
            srq_handle,
            ep_attr
        );
        layout!("DAT_SRQ_ATTR", DatSrqAttr, max_recv_dtos, max_recv_iov, low_watermark);
        layout!(
            "DAT_SRQ_PARAM",
            DatSrqParam,
            ia_handle,
            srq_state,
            pz_handle,
            max_recv_dtos,
            max_recv_iov,
            low_watermark,
            available_dto_count,
            outstanding_dto_count
        );
        layout!("DAT_PSP_PARAM", DatPspParam, ia_handle, conn_qual, evd_handle, psp_flags);
        layout!("DAT_RSP_PARAM", DatRspParam, ia_handle, conn_qual, evd_handle, ep_handle);
        layout!(
            "DAT_CR_PARAM",
            DatCrParam,
            remote_ia_address_ptr,
            remote_port_qual,
            private_data_size,
            private_data,
            local_ep_handle
        );
        layout!(
            "DAT_EVD_PARAM",
            DatEvdParam,
            ia_handle,
            evd_qlen,
            evd_state,
            cno_handle,
            evd_flags
        );
        layout!("DAT_CNO_PARAM", DatCnoParam, ia_handle, proxy_type, agent = "proxy");
        layout!("DAT_REGION_DESCRIPTION", RegionDescription,);
        layout!(
            "DAT_LMR_PARAM",
            DatLmrParam,
            ia_handle,
            mem_type,
            region_desc,
            length,
            pz_handle,
            mem_priv,
            va_type,
            lmr_context,
            rmr_context,
            registered_size,
            registered_address
        );
        layout!(
            "DAT_RMR_PARAM",
            DatRmrParam,
            ia_handle,
            pz_handle,
            lmr_triplet,
            mem_priv,
            rmr_context,
            rmr_scope,
            va_type
        );
        layout!(
            "DAT_IA_ATTR",
            DatIaAttr,
            adapter_name,
            vendor_name,
            ia_address_ptr,
            max_eps,
            max_dto_per_ep,
            max_evds,
            max_iov_segments_per_dto,
            max_lmr_block_size,
            max_lmr_virtual_address,
            max_pzs,
            max_rmr_target_address,
            max_srqs,
            max_recv_per_srq,
            max_rdma_read_out,
            zb_supported,
            extension_version,
            transport_attr,
            vendor_attr
        );
        layout!(
            "DAT_PROVIDER_ATTR",
            DatProviderAttr,
            provider_name,
            provider_version_major,
            lmr_mem_types_supported,
            completion_flags_supported,
            is_thread_safe,
            max_private_data_size,
            ep_creator,
            optimal_buffer_alignment,
            evd_stream_merging_supported,
            srq_supported,
            srq_info_supported,
            dto_async_return_guaranteed,
            rmr_scope_supported,
            is_signal_safe,
            num_provider_specific_attr,
            provider_specific_attr
        );
        layout!("DAT_PROVIDER_INFO", DatProviderInfo, ia_name, dapl_version_major, is_thread_safe);
        layout!(
            "DAT_OS_WAIT_PROXY_AGENT",
            ProxyAgent,
            instance_data,
            function = "proxy_agent_func"
        );
        layout!(
            "DAT_EVENT",
            DatEvent,
            event_number,
            evd_handle,
            data = "event_data",
            extension = "event_extension_data"
        );
        let slot = size_of::<usize>() as u64;
        for (at, name) in crate::table::SLOTS.iter().enumerate() {
            rows.push((format!("offsetof(struct dat_provider, {name})"), (at as u64 + 2) * slot));
        }
        let slots = crate::table::SLOTS.len() as u64 + 2;
        rows.push(("sizeof(struct dat_provider)".into(), slots * slot));
        macro_rules! numbers {
            ($($rust:ident = $c:literal),* $(,)?) => {
                $(rows.push((format!("(unsigned)({})", $c), u64::from($rust as u32)));)*
            };
        }
        numbers!(
            ABORT = "DAT_ABORT",
            CONN_QUAL_IN_USE = "DAT_CONN_QUAL_IN_USE",
            INSUFFICIENT_RESOURCES = "DAT_INSUFFICIENT_RESOURCES",
            INVALID_HANDLE = "DAT_INVALID_HANDLE",
            INVALID_PARAMETER = "DAT_INVALID_PARAMETER",
            INVALID_STATE = "DAT_INVALID_STATE",
            LENGTH_ERROR = "DAT_LENGTH_ERROR",
            MODEL_NOT_SUPPORTED = "DAT_MODEL_NOT_SUPPORTED",
            PROVIDER_NOT_FOUND = "DAT_PROVIDER_NOT_FOUND",
            PRIVILEGES_VIOLATION = "DAT_PRIVILEGES_VIOLATION",
            PROTECTION_VIOLATION = "DAT_PROTECTION_VIOLATION",
            QUEUE_EMPTY = "DAT_QUEUE_EMPTY",
            QUEUE_FULL = "DAT_QUEUE_FULL",
            TIMEOUT_EXPIRED = "DAT_TIMEOUT_EXPIRED",
            INVALID_ADDRESS = "DAT_INVALID_ADDRESS",
            CONN_QUAL_UNAVAILABLE = "DAT_CONN_QUAL_UNAVAILABLE",
            NOT_IMPLEMENTED = "DAT_NOT_IMPLEMENTED",
            CLASS_ERROR = "DAT_CLASS_ERROR",
            RESOURCE_MEMORY = "DAT_RESOURCE_MEMORY",
            RESOURCE_TEP = "DAT_RESOURCE_TEP",
            RESOURCE_MEMORY_REGION = "DAT_RESOURCE_MEMORY_REGION",
            RESOURCE_SRQ = "DAT_RESOURCE_SRQ",
            HANDLE_IA = "DAT_INVALID_HANDLE_IA",
            HANDLE_CNO = "DAT_INVALID_HANDLE_CNO",
            HANDLE_EVD_CR = "DAT_INVALID_HANDLE_EVD_CR",
            HANDLE_SRQ = "DAT_INVALID_HANDLE_SRQ",
            HANDLE_1 = "DAT_INVALID_HANDLE1",
            ARG_1 = "DAT_INVALID_ARG1",
            STATE_EP_UNCONNECTED = "DAT_INVALID_STATE_EP_UNCONNECTED",
            STATE_EP_NOTREADY = "DAT_INVALID_STATE_EP_NOTREADY",
            STATE_CNO_IN_USE = "DAT_INVALID_STATE_CNO_IN_USE",
            STATE_EVD_UNWAITABLE = "DAT_INVALID_STATE_EVD_UNWAITABLE",
            STATE_EVD_IN_USE = "DAT_INVALID_STATE_EVD_IN_USE",
            STATE_EVD_WAITER = "DAT_INVALID_STATE_EVD_WAITER",
            STATE_IA_IN_USE = "DAT_INVALID_STATE_IA_IN_USE",
            STATE_LMR_IN_USE = "DAT_INVALID_STATE_LMR_IN_USE",
            STATE_PZ_IN_USE = "DAT_INVALID_STATE_PZ_IN_USE",
            STATE_SRQ_IN_USE = "DAT_INVALID_STATE_SRQ_IN_USE",
            PRIVILEGES_READ = "DAT_PRIVILEGES_READ",
            PRIVILEGES_WRITE = "DAT_PRIVILEGES_WRITE",
            PROTECTION_READ = "DAT_PROTECTION_READ",
            PROTECTION_WRITE = "DAT_PROTECTION_WRITE",
            ADDRESS_UNSUPPORTED = "DAT_INVALID_ADDRESS_UNSUPPORTED",
            DTO_COMPLETION = "DAT_DTO_COMPLETION_EVENT",
            RMR_BIND_COMPLETION = "DAT_RMR_BIND_COMPLETION_EVENT",
            CONNECTION_REQUEST = "DAT_CONNECTION_REQUEST_EVENT",
            ESTABLISHED = "DAT_CONNECTION_EVENT_ESTABLISHED",
            PEER_REJECTED = "DAT_CONNECTION_EVENT_PEER_REJECTED",
            UNREACHABLE = "DAT_CONNECTION_EVENT_UNREACHABLE",
            ASYNC_EVD_OVERFLOW = "DAT_ASYNC_ERROR_EVD_OVERFLOW",
            ASYNC_EP_BROKEN = "DAT_ASYNC_ERROR_EP_BROKEN",
            SOFTWARE_EVENT = "DAT_SOFTWARE_EVENT",
            EP_CREATOR_IF_ASKED = "DAT_PSP_CREATES_EP_IFASKED",
            SRQ_LOW_WATERMARK = "DAT_SRQ_LOW_WATERMARK_EVENT",
            DTO_FLUSHED = "DAT_DTO_ERR_FLUSHED",
            DTO_LOCAL_LENGTH = "DAT_DTO_ERR_LOCAL_LENGTH",
            DTO_REMOTE_ACCESS = "DAT_DTO_ERR_REMOTE_ACCESS",
            DTO_TRANSPORT = "DAT_DTO_ERR_TRANSPORT",
            DTO_RECEIVE = "DAT_DTO_RECEIVE",
            DTO_RDMA_READ = "DAT_DTO_RDMA_READ",
            COMPLETION_BARRIER_FENCE = "DAT_COMPLETION_BARRIER_FENCE_FLAG",
            COMPLETION_EVD_THRESHOLD = "DAT_COMPLETION_EVD_THRESHOLD_FLAG",
            EVD_RMR_BIND = "DAT_EVD_RMR_BIND_FLAG",
            EVD_ASYNC = "DAT_EVD_ASYNC_FLAG",
            PRIV_ALL = "DAT_MEM_PRIV_ALL_FLAG",
            TIMEOUT_INFINITE = "DAT_TIMEOUT_INFINITE"
        );
        let states = [
            (EpState::Reserved as u32, "DAT_EP_STATE_RESERVED"),
            (EpState::PassivePending as u32, "DAT_EP_STATE_PASSIVE_CONNECTION_PENDING"),
            (EpState::ActivePending as u32, "DAT_EP_STATE_ACTIVE_CONNECTION_PENDING"),
            (EpState::Connected as u32, "DAT_EP_STATE_CONNECTED"),
            (EpState::Disconnected as u32, "DAT_EP_STATE_DISCONNECTED"),
            (EpState::CompletionPending as u32, "DAT_EP_STATE_COMPLETION_PENDING"),
            (HandleKind::Srq as u32, "DAT_HANDLE_TYPE_SRQ"),
            (HandleKind::Cno as u32, "DAT_HANDLE_TYPE_CNO"),
        ];
        rows.extend(states.map(|(here, c)| (c.to_string(), here.into())));
        rows
    }

    #[test]
    fn types_and_numbers_are_those_of_the_headers() {
        if !std::path::Path::new("/usr/include/dat2/udat.h").exists() {
            eprintln!("skipped: dat2/udat.h is not installed (libdapl-dev)");
            return;
        }
        let mut source = String::from(
            "#include <stddef.h>\n#include <dat2/udat.h>\n#include <dat2/dat_registry.h>\n",
        );
        for (expression, here) in rows() {
            let _ = writeln!(
                source,
                "_Static_assert(({expression}) == {here}ULL, \"{expression} is {here} here\");"
            );
        }
        let dir = std::env::temp_dir().join(format!("daplofi-layout.{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("probe.c");
        std::fs::write(&file, source).unwrap();
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let made = Command::new(cc).arg("-fsyntax-only").arg(&file).output().unwrap();
        let _ = std::fs::remove_dir_all(&dir);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    #[test]
    fn event_words_match_the_c_layout() {
        let event = DatEvent::transfer(1, 2, 3, 4, 5);
        let mut bytes = Vec::new();
        for word in event.data {
            bytes.extend(word.to_ne_bytes());
        }
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(8), word(16), word(20), word(24)], [1, 2, 3, 4, 5]);
        let request = DatEvent::request(1, 2, 3, 4, true);
        assert_eq!(&request.data[..4], &[1, 2, 3, 4]);
        assert_eq!(DatEvent::connection(ESTABLISHED, 7, 3, 9).data[..3], [7, 3, 9]);
    }
}
