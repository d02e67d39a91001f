// `rdma/fi_domain.h`: Domains, address vectors and memory regions (fi_domain(3), fi_av(3), fi_mr(3)).

/// Name of fi_hmem_override_ops for fi_set_ops.
pub const FI_SET_OPS_HMEM_OVERRIDE: &core::ffi::CStr = c"hmem_override_ops";

/// The processes of an address vector have the same addresses at the same places.
pub const FI_SYMMETRIC: u64 = 1 << 59;
/// Insertions report each address's own error.
pub const FI_SYNC_ERR: u64 = 1 << 58;
/// The set starts with all peers.
pub const FI_UNIVERSE: u64 = 1 << 57;
// Uses of a set (fi_av_set(3)).
pub const FI_BARRIER_SET: u64 = 1 << 40;
pub const FI_BROADCAST_SET: u64 = 1 << 41;
pub const FI_ALLTOALL_SET: u64 = 1 << 42;
pub const FI_ALLREDUCE_SET: u64 = 1 << 43;
pub const FI_ALLGATHER_SET: u64 = 1 << 44;
pub const FI_REDUCE_SCATTER_SET: u64 = 1 << 45;
pub const FI_REDUCE_SET: u64 = 1 << 46;
pub const FI_SCATTER_SET: u64 = 1 << 47;
pub const FI_GATHER_SET: u64 = 1 << 48;
/// The memory is given as a dma-buf.
pub const FI_MR_DMABUF: u64 = 1 << 40;
/// The region is used for one transfer.
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
/// The memory is the host's, allocated by a device's interface.
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
/// The memory is not accessible to the host.
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;
/// Start of the operations and datatypes of collectives only.
pub const FI_COLLECTIVE_OFFSET: c_int = 256;
/// The buffer is registered with its allocating interface.
pub const FI_REG_MR: u64 = 1 << 59;

/// Interface owning device memory (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_hmem_iface {
    FI_HMEM_SYSTEM = 0,
    FI_HMEM_CUDA = 1,
    FI_HMEM_ROCR = 2,
    FI_HMEM_ZE = 3,
    FI_HMEM_NEURON = 4,
    FI_HMEM_SYNAPSEAI = 5,
}

/// Element types of atomic and collective operations (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_datatype {
    FI_INT8 = 0,
    FI_UINT8 = 1,
    FI_INT16 = 2,
    FI_UINT16 = 3,
    FI_INT32 = 4,
    FI_UINT32 = 5,
    FI_INT64 = 6,
    FI_UINT64 = 7,
    FI_FLOAT = 8,
    FI_DOUBLE = 9,
    FI_FLOAT_COMPLEX = 10,
    FI_DOUBLE_COMPLEX = 11,
    FI_LONG_DOUBLE = 12,
    FI_LONG_DOUBLE_COMPLEX = 13,
    FI_INT128 = 14,
    FI_UINT128 = 15,
    FI_FLOAT16 = 16,
    FI_BFLOAT16 = 17,
    FI_FLOAT8_E4M3 = 18,
    FI_FLOAT8_E5M2 = 19,
    FI_VOID = 256,
}

/// Operations of atomics and collectives (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_op {
    FI_MIN = 0,
    FI_MAX = 1,
    FI_SUM = 2,
    FI_PROD = 3,
    FI_LOR = 4,
    FI_LAND = 5,
    FI_BOR = 6,
    FI_BAND = 7,
    FI_LXOR = 8,
    FI_BXOR = 9,
    FI_ATOMIC_READ = 10,
    FI_ATOMIC_WRITE = 11,
    FI_CSWAP = 12,
    FI_CSWAP_NE = 13,
    FI_CSWAP_LE = 14,
    FI_CSWAP_LT = 15,
    FI_CSWAP_GE = 16,
    FI_CSWAP_GT = 17,
    FI_MSWAP = 18,
    FI_DIFF = 19,
    FI_NOOP = 256,
}

/// Collective operations (fi_collective(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_collective_op {
    FI_BARRIER = 0,
    FI_BROADCAST = 1,
    FI_ALLTOALL = 2,
    FI_ALLREDUCE = 3,
    FI_ALLGATHER = 4,
    FI_REDUCE_SCATTER = 5,
    FI_REDUCE = 6,
    FI_SCATTER = 7,
    FI_GATHER = 8,
}

/// Attributes of an address vector (fi_av(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_av_attr {
    pub r#type: c_enum<fi_av_type>,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// The members of an address vector set (fi_av_set(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_av_set_attr {
    pub count: usize,
    pub start_addr: fi_addr_t,
    pub end_addr: fi_addr_t,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}

/// Calls of an address vector (fi_av(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av {
    pub size: usize,
    pub insert: Option<
        unsafe extern "C" fn(
            *mut fid_av,
            *const c_void,
            usize,
            *mut fi_addr_t,
            u64,
            *mut c_void,
        ) -> c_int,
    >,
    pub insertsvc: Option<
        unsafe extern "C" fn(
            *mut fid_av,
            *const c_char,
            *const c_char,
            *mut fi_addr_t,
            u64,
            *mut c_void,
        ) -> c_int,
    >,
    pub insertsym: Option<
        unsafe extern "C" fn(
            *mut fid_av,
            *const c_char,
            usize,
            *const c_char,
            usize,
            *mut fi_addr_t,
            u64,
            *mut c_void,
        ) -> c_int,
    >,
    pub remove: Option<unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, usize, u64) -> c_int>,
    pub lookup:
        Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int>,
    pub straddr: Option<
        unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    >,
    pub av_set: Option<
        unsafe extern "C" fn(
            *mut fid_av,
            *mut fi_av_set_attr,
            *mut *mut fid_av_set,
            *mut c_void,
        ) -> c_int,
    >,
    pub insert_auth_key: Option<
        unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int,
    >,
    pub lookup_auth_key:
        Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int>,
    pub set_user_id: Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int>,
    pub lookup2: Option<
        unsafe extern "C" fn(
            *mut fid_av,
            fi_addr_t,
            *mut c_void,
            *mut usize,
            u64,
            *mut fid_xpu_ctx,
        ) -> c_int,
    >,
}

/// An address vector (fi_av(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}

/// A registered memory region; descriptor and key are read directly (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// Memory of a dma-buf file; offset and length in bytes (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

/// The authorization key of a region, by a peer's address (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_auth_key {
    pub av: *mut fid_av,
    pub src_addr: fi_addr_t,
}

/// Memory to register, and its access rights; sizes in bytes (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_enum<fi_hmem_iface>,
    pub device: fi_mr_attr__device,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const fid_mr,
    pub sub_mr_cnt: usize,
}

/// The device of the memory, in the terms of `iface`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr__device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
    pub rocr: c_int,
}

/// Argument of `FI_REFRESH` (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_modify {
    pub flags: u64,
    pub attr: fi_mr_attr,
}

/// Copies to and from device memory replacing the library's (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_hmem_override_ops {
    pub size: usize,
    pub copy_from_hmem_iov: Option<
        unsafe extern "C" fn(
            *mut c_void,
            usize,
            c_enum<fi_hmem_iface>,
            u64,
            *const iovec,
            usize,
            u64,
        ) -> ssize_t,
    >,
    pub copy_to_hmem_iov: Option<
        unsafe extern "C" fn(
            c_enum<fi_hmem_iface>,
            u64,
            *const iovec,
            usize,
            u64,
            *const c_void,
            usize,
        ) -> ssize_t,
    >,
}

/// Calls of a domain (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_av_attr,
            *mut *mut fid_av,
            *mut c_void,
        ) -> c_int,
    >,
    pub cq_open: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_cq_attr,
            *mut *mut fid_cq,
            *mut c_void,
        ) -> c_int,
    >,
    pub endpoint: Option<
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    >,
    pub scalable_ep: Option<
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    >,
    pub cntr_open: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_cntr_attr,
            *mut *mut fid_cntr,
            *mut c_void,
        ) -> c_int,
    >,
    pub poll_open: Option<
        unsafe extern "C" fn(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) -> c_int,
    >,
    pub stx_ctx: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_tx_attr,
            *mut *mut fid_stx,
            *mut c_void,
        ) -> c_int,
    >,
    pub srx_ctx: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_rx_attr,
            *mut *mut fid_ep,
            *mut c_void,
        ) -> c_int,
    >,
    pub query_atomic: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut fi_atomic_attr,
            u64,
        ) -> c_int,
    >,
    pub query_collective: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            c_enum<fi_collective_op>,
            *mut fi_collective_attr,
            u64,
        ) -> c_int,
    >,
    pub endpoint2: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_info,
            *mut *mut fid_ep,
            u64,
            *mut c_void,
        ) -> c_int,
    >,
    pub xpu_ctx: Option<
        unsafe extern "C" fn(
            *mut fid_domain,
            *mut fi_xpu_attr,
            *mut *mut fid_xpu_ctx,
            *mut c_void,
        ) -> c_int,
    >,
}

/// Calls registering memory (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: Option<
        unsafe extern "C" fn(
            *mut fid,
            *const c_void,
            usize,
            u64,
            u64,
            u64,
            u64,
            *mut *mut fid_mr,
            *mut c_void,
        ) -> c_int,
    >,
    pub regv: Option<
        unsafe extern "C" fn(
            *mut fid,
            *const iovec,
            usize,
            u64,
            u64,
            u64,
            u64,
            *mut *mut fid_mr,
            *mut c_void,
        ) -> c_int,
    >,
    pub regattr:
        Option<unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int>,
}

/// An open domain (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}
