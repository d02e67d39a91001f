// `rdma/fi_atomic.h`: Atomic transfers (fi_atomic(3)).

/// Asks about fetching atomics.
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
/// Asks about comparing atomics.
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

/// Maximum number of elements of one atomic, and their size in bytes (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_atomic_attr {
    pub count: usize,
    pub size: usize,
}

/// Atomic operation, for the calls with flags (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_msg_atomic {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_ioc,
    pub rma_iov_count: usize,
    pub datatype: c_enum<fi_datatype>,
    pub op: c_enum<fi_op>,
    pub context: *mut c_void,
    pub data: u64,
}

/// Destination of the former values of an atomic's target (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_msg_fetch {
    pub msg_iov: *mut fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
}

/// Operand compared with an atomic's target (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_msg_compare {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
}

/// Atomic operations (fi_atomic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_atomic {
    pub size: usize,
    pub write: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub writev: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, u64) -> ssize_t>,
    pub inject: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
        ) -> ssize_t,
    >,
    pub readwrite: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub readwritev: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            *mut fi_ioc,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub readwritemsg: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_msg_atomic,
            *mut fi_ioc,
            *mut *mut c_void,
            usize,
            u64,
        ) -> ssize_t,
    >,
    pub compwrite: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *const c_void,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub compwritev: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            *mut fi_ioc,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            u64,
            u64,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub compwritemsg: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_msg_atomic,
            *const fi_ioc,
            *mut *mut c_void,
            usize,
            *mut fi_ioc,
            *mut *mut c_void,
            usize,
            u64,
        ) -> ssize_t,
    >,
    pub writevalid: Option<
        unsafe extern "C" fn(*mut fid_ep, c_enum<fi_datatype>, c_enum<fi_op>, *mut usize) -> c_int,
    >,
    pub readwritevalid: Option<
        unsafe extern "C" fn(*mut fid_ep, c_enum<fi_datatype>, c_enum<fi_op>, *mut usize) -> c_int,
    >,
    pub compwritevalid: Option<
        unsafe extern "C" fn(*mut fid_ep, c_enum<fi_datatype>, c_enum<fi_op>, *mut usize) -> c_int,
    >,
}
