//! The types of `dat2/udat.h` as they lie in memory, and its numbers.
//!
//! `tests/headers.rs` compares sizes, offsets and numbers with the headers where they are installed.
use std::ffi::{c_char, c_int};

/// A pointer that the application knows an object by.
pub type Handle = usize;

// Types of answers.
pub const ABORT: u32 = 0x0001_0000;
pub const CONN_QUAL_IN_USE: u32 = 0x0002_0000;
pub const INSUFFICIENT_RESOURCES: u32 = 0x0003_0000;
pub const INTERNAL_ERROR: u32 = 0x0004_0000;
pub const INVALID_HANDLE: u32 = 0x0005_0000;
pub const INVALID_PARAMETER: u32 = 0x0006_0000;
pub const INVALID_STATE: u32 = 0x0007_0000;
pub const LENGTH_ERROR: u32 = 0x0008_0000;
pub const MODEL_NOT_SUPPORTED: u32 = 0x0009_0000;
pub const PROVIDER_NOT_FOUND: u32 = 0x000A_0000;
pub const PRIVILEGES_VIOLATION: u32 = 0x000B_0000;
pub const PROTECTION_VIOLATION: u32 = 0x000C_0000;
pub const QUEUE_EMPTY: u32 = 0x000D_0000;
pub const QUEUE_FULL: u32 = 0x000E_0000;
pub const TIMEOUT_EXPIRED: u32 = 0x000F_0000;
pub const INVALID_ADDRESS: u32 = 0x0012_0000;
pub const CONN_QUAL_UNAVAILABLE: u32 = 0x0014_0000;
pub const NOT_IMPLEMENTED: u32 = 0x3FFF_0000;
/// The class of every error.
pub const CLASS_ERROR: u32 = 0x8000_0000;

// Subtypes of answers.
pub const RESOURCE_MEMORY: u32 = 2;
pub const RESOURCE_DEVICE: u32 = 3;
pub const RESOURCE_TEP: u32 = 4;
pub const RESOURCE_MEMORY_REGION: u32 = 7;
pub const RESOURCE_SRQ: u32 = 10;
pub const HANDLE_IA: u32 = 11;
pub const HANDLE_EP: u32 = 12;
pub const HANDLE_LMR: u32 = 13;
pub const HANDLE_RMR: u32 = 14;
pub const HANDLE_PZ: u32 = 15;
pub const HANDLE_PSP: u32 = 16;
pub const HANDLE_RSP: u32 = 17;
pub const HANDLE_CR: u32 = 18;
pub const HANDLE_CNO: u32 = 19;
pub const HANDLE_EVD_CR: u32 = 20;
pub const HANDLE_EVD_REQUEST: u32 = 21;
pub const HANDLE_EVD_RECV: u32 = 22;
pub const HANDLE_EVD_CONN: u32 = 23;
pub const HANDLE_EVD_ASYNC: u32 = 24;
pub const HANDLE_SRQ: u32 = 25;
/// The first of the handles without a kind, `DAT_INVALID_HANDLE1`.
pub const HANDLE_1: u32 = 27;
/// `DAT_INVALID_ARG1`, and the others up to the tenth behind it.
pub const ARG_1: u32 = 37;
pub const STATE_EP_UNCONNECTED: u32 = 47;
pub const STATE_EP_ACTCONNPENDING: u32 = 48;
pub const STATE_EP_PASSCONNPENDING: u32 = 49;
pub const STATE_EP_TENTCONNPENDING: u32 = 50;
pub const STATE_EP_CONNECTED: u32 = 51;
pub const STATE_EP_DISCONNECTED: u32 = 52;
pub const STATE_EP_RESERVED: u32 = 53;
pub const STATE_EP_COMPLPENDING: u32 = 54;
pub const STATE_EP_DISCPENDING: u32 = 55;
pub const STATE_EP_NOTREADY: u32 = 57;
pub const STATE_CNO_IN_USE: u32 = 67;
pub const STATE_EVD_UNWAITABLE: u32 = 73;
pub const STATE_EVD_IN_USE: u32 = 74;
pub const STATE_EVD_WAITER: u32 = 78;
pub const STATE_IA_IN_USE: u32 = 80;
pub const STATE_LMR_IN_USE: u32 = 81;
pub const STATE_PZ_IN_USE: u32 = 83;
pub const STATE_SRQ_IN_USE: u32 = 87;
pub const PRIVILEGES_READ: u32 = 89;
pub const PRIVILEGES_WRITE: u32 = 90;
pub const PROTECTION_READ: u32 = 93;
pub const PROTECTION_WRITE: u32 = 94;
pub const ADDRESS_UNSUPPORTED: u32 = 97;
pub const ADDRESS_MALFORMED: u32 = 99;

// Events.
pub const DTO_COMPLETION: u32 = 0x00001;
pub const RMR_BIND_COMPLETION: u32 = 0x01001;
pub const CONNECTION_REQUEST: u32 = 0x02001;
pub const ESTABLISHED: u32 = 0x04001;
pub const PEER_REJECTED: u32 = 0x04002;
pub const NON_PEER_REJECTED: u32 = 0x04003;
pub const ACCEPT_COMPLETION_ERROR: u32 = 0x04004;
pub const DISCONNECTED: u32 = 0x04005;
pub const BROKEN: u32 = 0x04006;
pub const TIMED_OUT: u32 = 0x04007;
pub const UNREACHABLE: u32 = 0x04008;
pub const ASYNC_EVD_OVERFLOW: u32 = 0x08001;
pub const ASYNC_EP_BROKEN: u32 = 0x08003;
pub const ASYNC_PROVIDER_INTERNAL_ERROR: u32 = 0x08005;
pub const SOFTWARE_EVENT: u32 = 0x10001;
/// The reason of an asynchronous event of a shared receive queue.
pub const SRQ_LOW_WATERMARK: i32 = 2;

// How a data transfer ended.
pub const DTO_SUCCESS: u32 = 0;
pub const DTO_FLUSHED: u32 = 1;
pub const DTO_LOCAL_LENGTH: u32 = 2;
pub const DTO_LOCAL_PROTECTION: u32 = 4;
pub const DTO_REMOTE_ACCESS: u32 = 6;
pub const DTO_TRANSPORT: u32 = 8;

// Kinds of data transfers.
pub const DTO_SEND: u32 = 0;
pub const DTO_RDMA_WRITE: u32 = 1;
pub const DTO_RDMA_READ: u32 = 2;
pub const DTO_RECEIVE: u32 = 3;

// Flags of completions.
pub const COMPLETION_SUPPRESS: u32 = 0x01;
pub const COMPLETION_SOLICITED_WAIT: u32 = 0x02;
pub const COMPLETION_UNSIGNALLED: u32 = 0x04;
pub const COMPLETION_BARRIER_FENCE: u32 = 0x08;
pub const COMPLETION_EVD_THRESHOLD: u32 = 0x10;

// Streams that feed an event dispatcher.
pub const EVD_SOFTWARE: u32 = 0x001;
pub const EVD_CR: u32 = 0x010;
pub const EVD_DTO: u32 = 0x020;
pub const EVD_CONNECTION: u32 = 0x040;
pub const EVD_RMR_BIND: u32 = 0x080;
pub const EVD_ASYNC: u32 = 0x100;

// Privileges of memory.
pub const PRIV_LOCAL_READ: u32 = 0x01;
pub const PRIV_REMOTE_READ: u32 = 0x02;
pub const PRIV_LOCAL_WRITE: u32 = 0x10;
pub const PRIV_REMOTE_WRITE: u32 = 0x20;
pub const PRIV_ALL: u32 = 0x33;

/// A timeout that never comes.
pub const TIMEOUT_INFINITE: u32 = u32::MAX;
/// What `dat_ia_open` is told when another instance has the asynchronous dispatcher.
pub const ASYNC_EXISTS: Handle = 1;
/// What `dat_ia_query` answers then.
pub const OUT_OF_SCOPE: Handle = 2;
/// A count that is not kept.
pub const VALUE_UNKNOWN: i32 = -2;

/// `DAT_HANDLE_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum HandleKind {
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
pub enum EpState {
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
pub struct Triplet {
    pub virtual_address: u64,
    pub segment_length: u32,
    pub context: u32,
}

/// `DAT_NAMED_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NamedAttr {
    pub name: *const c_char,
    pub value: *const c_char,
}

/// `DAT_COMM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatComm {
    pub domain: c_int,
    pub kind: c_int,
    pub protocol: c_int,
}

/// `DAT_EP_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DatEpAttr {
    pub service_type: u32,
    pub max_message_size: u32,
    pub max_rdma_size: u32,
    pub qos: u32,
    pub recv_completion_flags: u32,
    pub request_completion_flags: u32,
    pub max_recv_dtos: i32,
    pub max_request_dtos: i32,
    pub max_recv_iov: i32,
    pub max_request_iov: i32,
    pub max_rdma_read_in: i32,
    pub max_rdma_read_out: i32,
    pub srq_soft_hw: i32,
    pub max_rdma_read_iov: i32,
    pub max_rdma_write_iov: i32,
    pub ep_transport_specific_count: i32,
    pub ep_transport_specific: usize,
    pub ep_provider_specific_count: i32,
    pub ep_provider_specific: usize,
}

/// `DAT_EP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DatEpParam {
    pub ia_handle: Handle,
    pub ep_state: u32,
    pub comm: DatComm,
    pub local_ia_address_ptr: usize,
    pub local_port_qual: u64,
    pub remote_ia_address_ptr: usize,
    pub remote_port_qual: u64,
    pub pz_handle: Handle,
    pub recv_evd_handle: Handle,
    pub request_evd_handle: Handle,
    pub connect_evd_handle: Handle,
    pub srq_handle: Handle,
    pub ep_attr: DatEpAttr,
}

/// `DAT_SRQ_ATTR`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatSrqAttr {
    pub max_recv_dtos: i32,
    pub max_recv_iov: i32,
    pub low_watermark: i32,
}

/// `DAT_SRQ_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatSrqParam {
    pub ia_handle: Handle,
    pub srq_state: u32,
    pub pz_handle: Handle,
    pub max_recv_dtos: i32,
    pub max_recv_iov: i32,
    pub low_watermark: i32,
    pub available_dto_count: i32,
    pub outstanding_dto_count: i32,
}

/// `DAT_PSP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatPspParam {
    pub ia_handle: Handle,
    pub conn_qual: u64,
    pub evd_handle: Handle,
    pub psp_flags: u32,
}

/// `DAT_RSP_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatRspParam {
    pub ia_handle: Handle,
    pub conn_qual: u64,
    pub evd_handle: Handle,
    pub ep_handle: Handle,
}

/// `DAT_CR_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatCrParam {
    pub remote_ia_address_ptr: usize,
    pub remote_port_qual: u64,
    pub private_data_size: i32,
    pub private_data: usize,
    pub local_ep_handle: Handle,
}

/// `DAT_EVD_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatEvdParam {
    pub ia_handle: Handle,
    pub evd_qlen: i32,
    pub evd_state: u32,
    pub cno_handle: Handle,
    pub evd_flags: u32,
}

/// `DAT_CNO_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatCnoParam {
    pub ia_handle: Handle,
    pub proxy_type: u32,
    pub agent: [usize; 2],
}

/// `DAT_REGION_DESCRIPTION`: an address, a handle, or an address with a cookie.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RegionDescription {
    pub first: usize,
    pub second: usize,
}

/// `DAT_LMR_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatLmrParam {
    pub ia_handle: Handle,
    pub mem_type: u32,
    pub region_desc: RegionDescription,
    pub length: u64,
    pub pz_handle: Handle,
    pub mem_priv: u32,
    pub va_type: u32,
    pub lmr_context: u32,
    pub rmr_context: u32,
    pub registered_size: u64,
    pub registered_address: u64,
}

/// `DAT_RMR_PARAM`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DatRmrParam {
    pub ia_handle: Handle,
    pub pz_handle: Handle,
    pub lmr_triplet: Triplet,
    pub mem_priv: u32,
    pub rmr_context: u32,
    pub rmr_scope: u32,
    pub va_type: u32,
}

/// `DAT_IA_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DatIaAttr {
    pub adapter_name: [u8; 256],
    pub vendor_name: [u8; 256],
    pub hardware_version_major: u32,
    pub hardware_version_minor: u32,
    pub firmware_version_major: u32,
    pub firmware_version_minor: u32,
    pub ia_address_ptr: usize,
    pub max_eps: i32,
    pub max_dto_per_ep: i32,
    pub max_rdma_read_per_ep_in: i32,
    pub max_rdma_read_per_ep_out: i32,
    pub max_evds: i32,
    pub max_evd_qlen: i32,
    pub max_iov_segments_per_dto: i32,
    pub max_lmrs: i32,
    pub max_lmr_block_size: u32,
    pub max_lmr_virtual_address: u64,
    pub max_pzs: i32,
    pub max_message_size: u32,
    pub max_rdma_size: u32,
    pub max_rmrs: i32,
    pub max_rmr_target_address: u64,
    pub max_srqs: i32,
    pub max_ep_per_srq: i32,
    pub max_recv_per_srq: i32,
    pub max_iov_segments_per_rdma_read: i32,
    pub max_iov_segments_per_rdma_write: i32,
    pub max_rdma_read_in: i32,
    pub max_rdma_read_out: i32,
    pub max_rdma_read_per_ep_in_guaranteed: u32,
    pub max_rdma_read_per_ep_out_guaranteed: u32,
    pub zb_supported: u32,
    pub extension_supported: u32,
    pub extension_version: i32,
    pub num_transport_attr: i32,
    pub transport_attr: usize,
    pub num_vendor_attr: i32,
    pub vendor_attr: usize,
}

/// `DAT_PROVIDER_ATTR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DatProviderAttr {
    pub provider_name: [u8; 256],
    pub provider_version_major: u32,
    pub provider_version_minor: u32,
    pub dapl_version_major: u32,
    pub dapl_version_minor: u32,
    pub lmr_mem_types_supported: u32,
    pub iov_ownership_on_return: u32,
    pub dat_qos_supported: u32,
    pub completion_flags_supported: u32,
    pub is_thread_safe: u32,
    pub max_private_data_size: i32,
    pub supports_multipath: u32,
    pub ep_creator: u32,
    pub pz_support: u32,
    pub optimal_buffer_alignment: u32,
    pub evd_stream_merging_supported: [[u32; 6]; 6],
    pub srq_supported: u32,
    pub srq_watermarks_supported: i32,
    pub srq_ep_pz_difference_supported: u32,
    pub srq_info_supported: i32,
    pub ep_recv_info_supported: i32,
    pub lmr_sync_req: u32,
    pub dto_async_return_guaranteed: u32,
    pub rdma_write_for_rdma_read_req: u32,
    pub rdma_read_lmr_rmr_context_exposure: u32,
    pub rmr_scope_supported: u32,
    pub is_signal_safe: u32,
    pub ha_supported: u32,
    pub ha_loadbalancing: u32,
    pub num_provider_specific_attr: i32,
    pub provider_specific_attr: usize,
}

/// `DAT_PROVIDER_INFO`.
#[repr(C)]
pub struct DatProviderInfo {
    pub ia_name: [c_char; 256],
    pub dapl_version_major: u32,
    pub dapl_version_minor: u32,
    pub is_thread_safe: u32,
}

/// `DAT_OS_WAIT_PROXY_AGENT`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ProxyAgent {
    pub instance_data: usize,
    pub function: usize,
}

/// `DAT_EVENT`; the words of the union are written and read by the kind of event.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct DatEvent {
    pub event_number: u32,
    pub evd_handle: Handle,
    pub data: [u64; 5],
    pub extension: [u64; 8],
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
    pub fn transfer(ep: Handle, cookie: u64, status: u32, length: u32, operation: u32) -> Self {
        let data = [ep as u64, cookie, pair(status, length), pair(operation, 0), 0];
        Self::new(DTO_COMPLETION, data)
    }

    /// The end of a bind.
    pub fn bind(rmr: Handle, cookie: u64, status: u32) -> Self {
        Self::new(RMR_BIND_COMPLETION, [rmr as u64, cookie, pair(status, 0), 0, 0])
    }

    /// A request for a connection.
    pub fn request(sp: Handle, local: usize, conn_qual: u64, cr: Handle, truncated: bool) -> Self {
        let data = [sp as u64, local as u64, conn_qual, cr as u64, pair(truncated.into(), 0)];
        Self::new(CONNECTION_REQUEST, data)
    }

    /// What became of a connection.
    pub fn connection(number: u32, ep: Handle, length: usize, private: usize) -> Self {
        Self::new(number, [ep as u64, pair(length as u32, 0), private as u64, 0, 0])
    }

    /// An asynchronous error.
    pub fn asynchronous(number: u32, handle: Handle, reason: i32) -> Self {
        Self::new(number, [handle as u64, pair(reason as u32, 0), 0, 0, 0])
    }
}
