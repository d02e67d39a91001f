// `rdma/fi_endpoint.h`: Endpoints and message transfers (fi_endpoint(3), fi_msg(3)).

unnamed_enum! {
    /// Levels of the options of endpoints (fi_endpoint(3)).
    enum {
        FI_OPT_ENDPOINT = 0,
    }
}

unnamed_enum! {
    /// Options of the endpoint level.
    enum {
        FI_OPT_MIN_MULTI_RECV = 0,
        FI_OPT_CM_DATA_SIZE = 1,
        FI_OPT_BUFFERED_MIN = 2,
        FI_OPT_BUFFERED_LIMIT = 3,
        FI_OPT_SEND_BUF_SIZE = 4,
        FI_OPT_RECV_BUF_SIZE = 5,
        FI_OPT_TX_SIZE = 6,
        FI_OPT_RX_SIZE = 7,
        FI_OPT_FI_HMEM_P2P = 8,
        FI_OPT_XPU_TRIGGER = 9,
        FI_OPT_CUDA_API_PERMITTED = 10,
        FI_OPT_SHARED_MEMORY_PERMITTED = 11,
        FI_OPT_MAX_MSG_SIZE = 12,
        FI_OPT_MAX_TAGGED_SIZE = 13,
        FI_OPT_MAX_RMA_SIZE = 14,
        FI_OPT_MAX_ATOMIC_SIZE = 15,
        FI_OPT_INJECT_MSG_SIZE = 16,
        FI_OPT_INJECT_TAGGED_SIZE = 17,
        FI_OPT_INJECT_RMA_SIZE = 18,
        FI_OPT_INJECT_ATOMIC_SIZE = 19,
        FI_OPT_FIREWALL_ADDR = 20,
    }
}

unnamed_enum! {
    /// Values of FI_OPT_FI_HMEM_P2P.
    enum {
        FI_HMEM_P2P_ENABLED = 0,
        FI_HMEM_P2P_REQUIRED = 1,
        FI_HMEM_P2P_PREFERRED = 2,
        FI_HMEM_P2P_DISABLED = 3,
    }
}

/// Message, for the calls with flags (fi_msg(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// Calls of any endpoint (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_ep {
    pub size: usize,
    pub cancel: Option<unsafe extern "C" fn(fid_t, *mut c_void) -> ssize_t>,
    pub getopt: Option<unsafe extern "C" fn(fid_t, c_int, c_int, *mut c_void, *mut usize) -> c_int>,
    pub setopt: Option<unsafe extern "C" fn(fid_t, c_int, c_int, *const c_void, usize) -> c_int>,
    pub tx_ctx: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            c_int,
            *mut fi_tx_attr,
            *mut *mut fid_ep,
            *mut c_void,
        ) -> c_int,
    >,
    pub rx_ctx: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            c_int,
            *mut fi_rx_attr,
            *mut *mut fid_ep,
            *mut c_void,
        ) -> c_int,
    >,
    pub rx_size_left: Option<unsafe extern "C" fn(*mut fid_ep) -> ssize_t>,
    pub tx_size_left: Option<unsafe extern "C" fn(*mut fid_ep) -> ssize_t>,
    pub export_xpu: Option<unsafe extern "C" fn(*mut fid_ep, u64, *mut fid_xpu_ep) -> c_int>,
}

/// Message transfers (fi_msg(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_msg {
    pub size: usize,
    pub recv: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *mut c_void,
            usize,
            *mut c_void,
            fi_addr_t,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub recvv: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const iovec,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub recvmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> ssize_t>,
    pub send: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            fi_addr_t,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub sendv: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const iovec,
            *mut *mut c_void,
            usize,
            fi_addr_t,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub sendmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> ssize_t>,
    pub inject:
        Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> ssize_t>,
    pub senddata: Option<
        unsafe extern "C" fn(
            *mut fid_ep,
            *const c_void,
            usize,
            *mut c_void,
            u64,
            fi_addr_t,
            *mut c_void,
        ) -> ssize_t,
    >,
    pub injectdata:
        Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> ssize_t>,
}

/// An active endpoint, or one of its contexts (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
    pub msg: *mut fi_ops_msg,
    pub rma: *mut fi_ops_rma,
    pub tagged: *mut fi_ops_tagged,
    pub atomic: *mut fi_ops_atomic,
    pub collective: *mut fi_ops_collective,
}

/// Passive, listening endpoint (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_pep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
}

/// A transmit context shared by endpoints (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_stx {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
}
