//! The types of `dat2/udat.h` as they lie in memory, and its numbers.
//!
//! `tests/headers.rs` compares sizes, offsets and numbers with the headers where they are installed.
use std::ffi::{c_char, c_int};

/// A pointer that the application knows an object by.
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
/// The reason of an asynchronous event of a shared receive queue.
pub(crate) const SRQ_LOW_WATERMARK: i32 = 2;

// How a data transfer ended.
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

/// A timeout that never comes.
pub(crate) const TIMEOUT_INFINITE: u32 = u32::MAX;
/// What `dat_ia_open` is told when another instance has the asynchronous dispatcher.
pub(crate) const ASYNC_EXISTS: Handle = 1;
/// What `dat_ia_query` answers then.
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

    /// What became of a connection.
    pub(crate) fn connection(number: u32, ep: Handle, length: usize, private: usize) -> Self {
        Self::new(number, [ep as u64, pair(length as u32, 0), private as u64, 0, 0])
    }

    /// An asynchronous error.
    pub(crate) fn asynchronous(number: u32, handle: Handle, reason: i32) -> Self {
        Self::new(number, [handle as u64, pair(reason as u32, 0), 0, 0, 0])
    }
}
