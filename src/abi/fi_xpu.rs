// `rdma/fi_xpu.h`: Accelerator-side contexts.

// Flags of fi_xpu_ops, and capabilities of a context.
pub const FI_XPU_ALLOC_DMABUF: u64 = 1 << 0;
pub const FI_XPU_IMPORT_IOMEMORY: u64 = 1 << 0;
pub const FI_XPU_IMPORT_DEVICEMAP: u64 = 1 << 1;
pub const FI_XPU_CAP_EP: u64 = 1 << 0;
pub const FI_XPU_CAP_CQ: u64 = 1 << 1;
pub const FI_XPU_CAP_CNTR: u64 = 1 << 2;

unnamed_enum! {
    /// Part of a device with collective calls.
    enum {
        FI_XPU_WORK_ITEM = 0,
        FI_XPU_SUBGROUP = 1,
        FI_XPU_WORK_GROUP = 2,
        FI_XPU_DEVICE = 3,
    }
}

/// Provider that made a device-side object.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_xpu_provider {
    FI_XPU_PROV_EFA = 1,
}

/// Allocation and import of device memory for device-side objects.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_xpu_ops {
    pub size: usize,
    pub alloc: Option<
        unsafe extern "C" fn(u64, u64, u64, u64, *mut *mut c_void, *mut c_int, *mut u64) -> c_int,
    >,
    pub import: Option<unsafe extern "C" fn(u64, *mut c_void, u64, u64, *mut *mut c_void) -> c_int>,
    pub free: Option<unsafe extern "C" fn(u64, *mut c_void)>,
}

/// Device of a context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_xpu_attr {
    pub iface: c_enum<fi_hmem_iface>,
    pub device: u64,
    pub ops: *mut fi_xpu_ops,
}

/// Capabilities of a context; sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_xpu_ctx_attr {
    pub caps: u64,
    pub av_addr_size: usize,
    pub mr_desc_size: usize,
}

/// Calls of an accelerator context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_xpu_ctx {
    pub size: usize,
    pub query: Option<unsafe extern "C" fn(*mut fid_xpu_ctx, *mut fi_xpu_ctx_attr) -> c_int>,
}

/// An accelerator context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_ctx {
    pub fid: fid,
    pub ops: *mut fi_ops_xpu_ctx,
}

/// Start of every device-side object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu {
    pub fclass: u32,
    pub prov_id: u32,
    pub prov_ctx: u64,
}

/// The device side of an endpoint.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_ep {
    pub fid: fid_xpu,
}

/// The device side of a completion queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_cq {
    pub fid: fid_xpu,
}

/// The device side of a counter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_cntr {
    pub fid: fid_xpu,
}
