// `rdma/fi_cm.h`: Connection management (fi_cm(3)).

/// Multicast or collective group joined by an endpoint (fi_cm(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mc {
    pub fid: fid,
    pub fi_addr: fi_addr_t,
}

/// Connection management (fi_cm(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cm {
    pub size: usize,
    pub setname: Option<unsafe extern "C" fn(fid_t, *mut c_void, usize) -> c_int>,
    pub getname: Option<unsafe extern "C" fn(fid_t, *mut c_void, *mut usize) -> c_int>,
    pub getpeer: Option<unsafe extern "C" fn(*mut fid_ep, *mut c_void, *mut usize) -> c_int>,
    pub connect:
        Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int>,
    pub listen: Option<unsafe extern "C" fn(*mut fid_pep) -> c_int>,
    pub accept: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int>,
    pub reject: Option<unsafe extern "C" fn(*mut fid_pep, fid_t, *const c_void, usize) -> c_int>,
    pub shutdown: Option<unsafe extern "C" fn(*mut fid_ep, u64) -> c_int>,
    pub join: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            u64,
            *mut *mut fid_mc,
            *mut c_void,
        ) -> c_int,
    >,
}
