// `rdma/fi_ext_efa.h`: extensions of the provider efa beyond the API. This library has no efa;
// programs using another's plug-in (docs/foreign-plug-ins.md) compile with these.

/// Name of a `fi_efa_ops_domain`, for `fi_open_ops` on a domain.
pub const FI_EFA_DOMAIN_OPS: &CStr = c"efa domain ops";
/// Name of a `fi_efa_ops_gda`, for `fi_open_ops` on a domain.
pub const FI_EFA_GDA_OPS: &CStr = c"efa gda ops";
/// Name of a `fi_efa_feature_ops`, for `fi_open_ops` on a fabric.
pub const FI_EFA_FEATURE_OPS: &CStr = c"efa feature ops";
/// Flag of RDMA writes: a high rate of messages matters most.
pub const FI_EFA_WR_HIGH_PPS: u64 = 1 << 60;

/// Interconnects of a region for accesses by the device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct fi_efa_mr_attr {
    /// Valid fields of the following ones: FI_EFA_MR_ATTR_*.
    pub ic_id_validity: u16,
    /// The interconnect of receives.
    pub recv_ic_id: u16,
    /// The interconnect of RDMA reads.
    pub rdma_read_ic_id: u16,
    /// The interconnect of RDMA writes of peers.
    pub rdma_recv_ic_id: u16,
}

unnamed_enum! {
    /// Bits of `fi_efa_mr_attr.ic_id_validity`.
    enum {
        FI_EFA_MR_ATTR_RECV_IC_ID = 1 << 0,
        FI_EFA_MR_ATTR_RDMA_READ_IC_ID = 1 << 1,
        FI_EFA_MR_ATTR_RDMA_RECV_IC_ID = 1 << 2,
    }
}

unnamed_enum! {
    /// Bits of `fi_efa_cq_init_attr.flags`.
    enum {
        /// The queue is in the program's memory.
        FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF = 1 << 0,
    }
}

/// Bits of `fi_efa_wq_attr.caps`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_efa_wq_caps {
    /// Identifiers of requests have 64 bits.
    FI_EFA_WQ_CAPS_64_BIT_REQ_ID = 1,
}

/// A work queue of the device.
#[repr(C)]
pub struct fi_efa_wq_attr {
    pub buffer: *mut u8,
    /// The bytes of an entry.
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    /// Maximum number of entries submitted by one doorbell.
    pub max_batch: u32,
    /// FI_EFA_WQ_CAPS_*.
    pub caps: u16,
}

/// A completion queue of the device.
#[repr(C)]
pub struct fi_efa_cq_attr {
    pub buffer: *mut u8,
    /// The bytes of an entry.
    pub entry_size: u32,
    pub num_entries: u32,
}

/// Location of a completion queue.
#[repr(C)]
pub struct fi_efa_cq_init_attr {
    /// FI_EFA_CQ_INIT_FLAGS_*.
    pub flags: u64,
    /// Memory of the program's for the queue.
    pub ext_mem_dmabuf: fi_efa_cq_init_attr__ext_mem_dmabuf,
}
#[repr(C)]
pub struct fi_efa_cq_init_attr__ext_mem_dmabuf {
    /// Address in the process; may be null.
    pub buffer: *mut u8,
    pub length: u64,
    /// Offset in the dma-buf.
    pub offset: u64,
    /// The dma-buf.
    pub fd: u32,
}

/// Kind of memory reference in a `fi_efa_memory_location`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_efa_memory_location_type {
    /// By its virtual address.
    FI_EFA_MEMORY_LOCATION_VA = 0,
    /// By a dma-buf.
    FI_EFA_MEMORY_LOCATION_DMABUF = 1,
}

/// Memory of the program's.
#[repr(C)]
pub struct fi_efa_memory_location {
    /// Address in the process; may be null for a dma-buf.
    pub ptr: *mut u8,
    /// The dma-buf, and the offset in it.
    pub dmabuf: fi_efa_memory_location__dmabuf,
    /// A `fi_efa_memory_location_type`.
    pub r#type: u8,
    pub reserved: [u8; 7],
}
#[repr(C)]
pub struct fi_efa_memory_location__dmabuf {
    pub offset: u64,
    pub fd: i32,
    pub reserved: u32,
}

unnamed_enum! {
    /// Bits of `fi_efa_comp_cntr_init_attr.flags`.
    enum {
        /// The count is in the program's memory.
        FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM = 1 << 0,
        /// The count of errors is in the program's memory.
        FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM = 1 << 1,
    }
}

/// Location of a counter of completions.
#[repr(C)]
pub struct fi_efa_comp_cntr_init_attr {
    /// Mask of later fields present; 0.
    pub comp_mask: u64,
    /// FI_EFA_COMP_CNTR_INIT_*.
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: fi_efa_memory_location,
    pub err_cntr_ext_mem: fi_efa_memory_location,
}

/// Queries about efa's objects of a domain.
#[repr(C)]
pub struct fi_efa_ops_domain {
    pub query_mr:
        Option<unsafe extern "C" fn(mr: *mut fid_mr, mr_attr: *mut fi_efa_mr_attr) -> c_int>,
}

/// Interface for an accelerator driving efa's device itself.
#[repr(C)]
pub struct fi_efa_ops_gda {
    /// The address handle, queue pair and key of a peer.
    pub query_addr: Option<
        unsafe extern "C" fn(
            ep_fid: *mut fid_ep,
            addr: fi_addr_t,
            ahn: *mut u16,
            remote_qpn: *mut u16,
            remote_qkey: *mut u32,
        ) -> c_int,
    >,
    pub query_qp_wqs: Option<
        unsafe extern "C" fn(
            ep_fid: *mut fid_ep,
            sq_attr: *mut fi_efa_wq_attr,
            rq_attr: *mut fi_efa_wq_attr,
        ) -> c_int,
    >,
    pub query_cq:
        Option<unsafe extern "C" fn(cq_fid: *mut fid_cq, cq_attr: *mut fi_efa_cq_attr) -> c_int>,
    /// A completion queue in the program's memory.
    pub cq_open_ext: Option<
        unsafe extern "C" fn(
            domain_fid: *mut fid_domain,
            attr: *mut fi_cq_attr,
            efa_cq_init_attr: *mut fi_efa_cq_init_attr,
            cq_fid: *mut *mut fid_cq,
            context: *mut c_void,
        ) -> c_int,
    >,
    /// The local key of a region, FI_KEY_NOTAVAIL if it is not registered yet.
    pub get_mr_lkey: Option<unsafe extern "C" fn(mr: *mut fid_mr) -> u64>,
    /// Counter updated by the device, of 2.5 and later.
    pub cntr_open_ext: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_cntr_attr,
            cntr: *mut *mut fid_cntr,
            context: *mut c_void,
            efa_attr: *mut fi_efa_comp_cntr_init_attr,
        ) -> c_int,
    >,
}

/// Queries about efa itself.
#[repr(C)]
pub struct fi_efa_feature_ops {
    /// Returns true if it has a feature with this name.
    pub query: Option<unsafe extern "C" fn(feature: *const c_char) -> bool>,
}
