// `rdma/fi_profile.h`: Profiling (fi_profile(3)).

unnamed_enum! {
    /// Common variables of providers (fi_profile(3)).
    enum {
        FI_VAR_UNEXP_MSG_CNT = 0,
        FI_VAR_UNEXP_MSG_QUEUE = 1,
        FI_VAR_MSG_QUEUE_CNT = 2,
        FI_VAR_CONNECTION_CNT = 3,
        FI_VAR_CONN_REQUEST = 4,
        FI_VAR_CONN_ACCEPT = 5,
        FI_VAR_CONN_REJECT = 6,
        FI_VAR_OFI_MEM = 7,
    }
}

unnamed_enum! {
    /// Common events of providers.
    enum {
        FI_EVENT_UNEXP_MSG_RECVD = 0,
        FI_EVENT_UNEXP_MSG_MATCHED = 1,
    }
}

/// Kind of a variable's type: a datatype of atomics or a struct of the API (fi_profile(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_profile_type {
    fi_primitive_type = 0,
    fi_defined_type = 1,
}

/// Variable or event to profile; size in bytes (fi_profile(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_profile_desc {
    pub id: u32,
    pub datatype_sel: c_enum<fi_profile_type>,
    pub datatype: fi_profile_desc__datatype,
    pub flags: u64,
    pub size: usize,
    pub name: *const c_char,
    pub desc: *const c_char,
}

/// Type of the kind `datatype_sel`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_profile_desc__datatype {
    pub primitive: c_enum<fi_datatype>,
    pub defined: c_enum<fi_type>,
}

/// Calls of a profile (fi_profile(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_profile_ops {
    pub size: usize,
    pub reset: Option<unsafe extern "C" fn(*mut fid_profile, u64)>,
    pub query_vars:
        Option<unsafe extern "C" fn(*mut fid_profile, *mut fi_profile_desc, *mut usize) -> ssize_t>,
    pub query_events:
        Option<unsafe extern "C" fn(*mut fid_profile, *mut fi_profile_desc, *mut usize) -> ssize_t>,
    pub read_var:
        Option<unsafe extern "C" fn(*mut fid_profile, u32, *mut c_void, *mut usize) -> ssize_t>,
    pub reg_callback: Option<
        unsafe extern "C" fn(
            *mut fid_profile,
            u32,
            Option<
                unsafe extern "C" fn(
                    *mut fid_profile,
                    *mut fi_profile_desc,
                    *mut c_void,
                    usize,
                    *mut c_void,
                ) -> c_int,
            >,
            *mut c_void,
        ) -> c_int,
    >,
    pub start_reads: Option<unsafe extern "C" fn(*mut fid_profile, u64)>,
    pub end_reads: Option<unsafe extern "C" fn(*mut fid_profile, u64)>,
}

/// An open profile of an endpoint or a domain (fi_profile(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_profile {
    pub fid: fid,
    pub ops: *mut fi_profile_ops,
}
