// `rdma/fi_eq.h`: Event queues, completion queues, counters, wait and poll sets (fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3)).

unnamed_enum! {
    /// Events of an event queue (fi_eq(3)).
    enum {
        FI_NOTIFY = 0,
        FI_CONNREQ = 1,
        FI_CONNECTED = 2,
        FI_SHUTDOWN = 3,
        FI_MR_COMPLETE = 4,
        FI_AV_COMPLETE = 5,
        FI_JOIN_COMPLETE = 6,
    }
}

/// Wait object of a blocked caller (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_wait_obj {
    FI_WAIT_NONE = 0,
    FI_WAIT_UNSPEC = 1,
    FI_WAIT_SET = 2,
    FI_WAIT_FD = 3,
    FI_WAIT_MUTEX_COND = 4,
    FI_WAIT_YIELD = 5,
    FI_WAIT_POLLFD = 6,
}

/// Struct of completions read from a queue (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_cq_format {
    FI_CQ_FORMAT_UNSPEC = 0,
    FI_CQ_FORMAT_CONTEXT = 1,
    FI_CQ_FORMAT_MSG = 2,
    FI_CQ_FORMAT_DATA = 3,
    FI_CQ_FORMAT_TAGGED = 4,
}

/// When a blocking read of a completion queue returns (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_cq_wait_cond {
    FI_CQ_COND_NONE = 0,
    FI_CQ_COND_THRESHOLD = 1,
}

/// Unit of a counter: operations or bytes (fi_cntr(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_cntr_events {
    FI_CNTR_EVENTS_COMP = 0,
    FI_CNTR_EVENTS_BYTES = 1,
}

/// Attributes of a wait set (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_wait_attr {
    pub wait_obj: c_enum<fi_wait_obj>,
    pub flags: u64,
}

/// Calls of a wait set (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_wait {
    pub size: usize,
    pub wait: Option<unsafe extern "C" fn(*mut fid_wait, c_int) -> c_int>,
}

/// A wait set (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_wait {
    pub fid: fid,
    pub ops: *mut fi_ops_wait,
}

/// Result of `FI_GETWAIT` for `FI_WAIT_MUTEX_COND`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mutex_cond {
    pub mutex: *mut pthread_mutex_t,
    pub cond: *mut pthread_cond_t,
}

/// Result of `FI_GETWAIT` for `FI_WAIT_POLLFD`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_wait_pollfd {
    pub change_index: u64,
    pub nfds: usize,
    pub fd: *mut pollfd,
}

/// Attributes of a poll set (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_poll_attr {
    pub flags: u64,
}

/// Calls of a poll set (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_poll {
    pub size: usize,
    pub poll: Option<unsafe extern "C" fn(*mut fid_poll, *mut *mut c_void, c_int) -> c_int>,
    pub poll_add: Option<unsafe extern "C" fn(*mut fid_poll, *mut fid, u64) -> c_int>,
    pub poll_del: Option<unsafe extern "C" fn(*mut fid_poll, *mut fid, u64) -> c_int>,
}

/// A poll set (fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_poll {
    pub fid: fid,
    pub ops: *mut fi_ops_poll,
}

/// Attributes of an event queue (fi_eq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_enum<fi_wait_obj>,
    pub signaling_vector: c_int,
    pub wait_set: *mut fid_wait,
}

/// An event of an asynchronous control operation (fi_eq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// Failed control operation; `err` is a positive code (fi_eq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// An event of a connection; the peer's data follows (fi_eq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_cm_entry {
    pub fid: fid_t,
    pub info: *mut fi_info,
    pub data: [u8; 0],
}

/// Calls of an event queue (fi_eq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_eq {
    pub size: usize,
    pub read:
        Option<unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> ssize_t>,
    pub readerr: Option<unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> ssize_t>,
    pub write: Option<unsafe extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> ssize_t>,
    pub sread: Option<
        unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> ssize_t,
    >,
    pub strerror: Option<
        unsafe extern "C" fn(
            *mut fid_eq,
            c_int,
            *const c_void,
            *mut c_char,
            usize,
        ) -> *const c_char,
    >,
}

/// An event queue (fi_eq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}

/// A completion of `FI_CQ_FORMAT_CONTEXT` (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_entry {
    pub op_context: *mut c_void,
}

/// A completion of `FI_CQ_FORMAT_MSG`; length in bytes (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_msg_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// A completion of `FI_CQ_FORMAT_DATA`; length in bytes (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// A completion of `FI_CQ_FORMAT_TAGGED`; length in bytes (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

/// Failed transfer; `err` is a positive code, `olen` the excess bytes (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub src_addr: fi_addr_t,
}

/// Attributes of a completion queue (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: c_enum<fi_cq_format>,
    pub wait_obj: c_enum<fi_wait_obj>,
    pub signaling_vector: c_int,
    pub wait_cond: c_enum<fi_cq_wait_cond>,
    pub wait_set: *mut fid_wait,
    pub xpu_ctx: *mut fid_xpu_ctx,
}

/// Calls of a completion queue (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cq {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> ssize_t>,
    pub readfrom:
        Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> ssize_t>,
    pub readerr: Option<unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> ssize_t>,
    pub sread: Option<
        unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> ssize_t,
    >,
    pub sreadfrom: Option<
        unsafe extern "C" fn(
            *mut fid_cq,
            *mut c_void,
            usize,
            *mut fi_addr_t,
            *const c_void,
            c_int,
        ) -> ssize_t,
    >,
    pub signal: Option<unsafe extern "C" fn(*mut fid_cq) -> c_int>,
    pub strerror: Option<
        unsafe extern "C" fn(
            *mut fid_cq,
            c_int,
            *const c_void,
            *mut c_char,
            usize,
        ) -> *const c_char,
    >,
    pub export_xpu: Option<unsafe extern "C" fn(*mut fid_cq, u64, *mut fid_xpu_cq) -> c_int>,
}

/// A completion queue (fi_cq(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}

/// Attributes of a counter (fi_cntr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cntr_attr {
    pub events: c_enum<fi_cntr_events>,
    pub wait_obj: c_enum<fi_wait_obj>,
    pub wait_set: *mut fid_wait,
    pub flags: u64,
    pub xpu_ctx: *mut fid_xpu_ctx,
}

/// Calls of a counter (fi_cntr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cntr {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut fid_cntr) -> u64>,
    pub readerr: Option<unsafe extern "C" fn(*mut fid_cntr) -> u64>,
    pub add: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    pub set: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    pub wait: Option<unsafe extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int>,
    pub adderr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    pub seterr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    pub export_xpu: Option<unsafe extern "C" fn(*mut fid_cntr, u64, *mut fid_xpu_cntr) -> c_int>,
}

/// A completion counter (fi_cntr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *mut fi_ops_cntr,
}
