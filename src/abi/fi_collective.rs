// `rdma/fi_collective.h`: Collective operations (fi_collective(3)).

/// Calls of an address vector set (fi_av_set(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av_set {
    pub size: usize,
    pub set_union: Option<unsafe extern "C" fn(*mut fid_av_set, *const fid_av_set) -> c_int>,
    pub intersect: Option<unsafe extern "C" fn(*mut fid_av_set, *const fid_av_set) -> c_int>,
    pub diff: Option<unsafe extern "C" fn(*mut fid_av_set, *const fid_av_set) -> c_int>,
    pub insert: Option<unsafe extern "C" fn(*mut fid_av_set, fi_addr_t) -> c_int>,
    pub remove: Option<unsafe extern "C" fn(*mut fid_av_set, fi_addr_t) -> c_int>,
    pub addr: Option<unsafe extern "C" fn(*mut fid_av_set, *mut fi_addr_t) -> c_int>,
}

/// A subset of the peers of an address vector (fi_av_set(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_av_set {
    pub fid: fid,
    pub ops: *mut fi_ops_av_set,
}

/// Requested attributes of a collective, and its support (fi_collective(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_collective_attr {
    pub op: c_enum<fi_op>,
    pub datatype: c_enum<fi_datatype>,
    pub datatype_attr: fi_atomic_attr,
    pub max_members: usize,
    pub mode: u64,
}

/// Address of a collective group for `fi_join` (fi_collective(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_collective_addr {
    pub set: *const fid_av_set,
    pub coll_addr: fi_addr_t,
}

/// Collective operation, for the calls with flags (fi_collective(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_msg_collective {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub coll_addr: fi_addr_t,
    pub root_addr: fi_addr_t,
    pub coll: c_enum<fi_collective_op>,
    pub datatype: c_enum<fi_datatype>,
    pub op: c_enum<fi_op>,
    pub context: *mut c_void,
}

/// Collective operations (fi_collective(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_collective {
    pub size: usize,
    pub barrier: Option<unsafe extern "C" fn(*mut fid_ep, fi_addr_t, *mut c_void) -> ssize_t>,
    pub broadcast: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *mut c_void,
            usize,
            *mut c_void,
            fi_addr_t,
            fi_addr_t,
            c_enum<fi_datatype>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub alltoall: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            c_enum<fi_datatype>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub allreduce: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub allgather: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            c_enum<fi_datatype>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub reduce_scatter: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub reduce: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            fi_addr_t,
            c_enum<fi_datatype>,
            c_enum<fi_op>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub scatter: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            fi_addr_t,
            c_enum<fi_datatype>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub gather: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            *mut c_void,
            *mut c_void,
            fi_addr_t,
            fi_addr_t,
            c_enum<fi_datatype>,
            u64,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub msg: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const fi_msg_collective,
            *mut fi_ioc,
            *mut *mut c_void,
            usize,
            u64,
        ) -> ssize_t,
    >,
    pub barrier2: Option<unsafe extern "C" fn(*mut fid_ep, fi_addr_t, u64, *mut c_void) -> ssize_t>,
}
