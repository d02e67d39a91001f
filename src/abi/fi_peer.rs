// `rdma/providers/fi_peer.h`: The peer provider interface (fi_peer(3)).

/// Calls of the owner of a shared address vector (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av_owner {
    pub size: usize,
    pub query: Option<unsafe extern "C" fn(*mut fid_peer_av, *mut fi_av_attr) -> c_int>,
    pub ep_addr: Option<unsafe extern "C" fn(*mut fid_peer_av, *mut fid_ep) -> fi_addr_t>,
}

/// Address vector shared by providers (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_av {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_av_owner,
}

/// Context passing a shared address vector to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_av_context {
    pub size: usize,
    pub av: *mut fid_peer_av,
}

/// Calls of the owner of a shared address vector set (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av_set_owner {
    pub size: usize,
    pub members:
        Option<unsafe extern "C" fn(*mut fid_peer_av_set, *mut fi_addr_t, *mut usize) -> c_int>,
}

/// Address vector set shared by providers (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_av_set {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_av_set_owner,
}

/// Context passing a shared address vector set to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_av_set_context {
    pub size: usize,
    pub av_set: *mut fi_peer_av_set,
}

/// Calls of a peer writing to a completion queue of its owner (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cq_owner {
    pub size: usize,
    pub write: Option<
        unsafe extern "C" fn(
            *mut fid_peer_cq,
            *mut c_void,
            u64,
            usize,
            *mut c_void,
            u64,
            u64,
            fi_addr_t,
        ) -> ssize_t,
    >,
    pub writeerr: Option<unsafe extern "C" fn(*mut fid_peer_cq, *const fi_cq_err_entry) -> ssize_t>,
}

/// Completion queue shared by providers (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_cq {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cq_owner,
}

/// Context passing a shared completion queue to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_cq_context {
    pub size: usize,
    pub cq: *mut fid_peer_cq,
}

/// Calls of a peer advancing a counter of its owner (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cntr_owner {
    pub size: usize,
    pub inc: Option<unsafe extern "C" fn(*mut fid_peer_cntr)>,
    pub incerr: Option<unsafe extern "C" fn(*mut fid_peer_cntr)>,
}

/// Counter shared by providers (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_cntr {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cntr_owner,
}

/// Context passing a shared counter to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_cntr_context {
    pub size: usize,
    pub cntr: *mut fid_peer_cntr,
}

/// Context passing a domain to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_domain_context {
    pub size: usize,
    pub domain: *mut fid_domain,
}

/// Context passing an event queue to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_eq_context {
    pub size: usize,
    pub eq: *mut fid_eq,
}

/// Receive passed between owner and peer of a shared receive queue (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_rx_entry {
    pub srx: *mut fid_peer_srx,
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
    pub cq_data: u64,
    pub flags: u64,
    pub context: *mut c_void,
    pub count: usize,
    pub desc: *mut *mut c_void,
    pub peer_context: *mut c_void,
    pub owner_context: *mut c_void,
    pub iov: *mut iovec,
}

/// Known attributes of an arriving message (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_match_attr {
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
}

/// Calls of the owner of a shared receive queue for its peers (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_srx_owner {
    pub size: usize,
    pub get_msg: Option<
        unsafe extern "C" fn(
            *mut fid_peer_srx,
            *mut fi_peer_match_attr,
            *mut *mut fi_peer_rx_entry,
        ) -> c_int,
    >,
    pub get_tag: Option<
        unsafe extern "C" fn(
            *mut fid_peer_srx,
            *mut fi_peer_match_attr,
            *mut *mut fi_peer_rx_entry,
        ) -> c_int,
    >,
    pub queue_msg: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int>,
    pub queue_tag: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int>,
    pub foreach_unspec_addr: Option<
        unsafe extern "C" fn(
            *mut fid_peer_srx,
            Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> fi_addr_t>,
        ),
    >,
    pub free_entry: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry)>,
}

/// Calls of a peer for the owner of a shared receive queue (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_srx_peer {
    pub size: usize,
    pub start_msg: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int>,
    pub start_tag: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int>,
    pub discard_msg: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int>,
    pub discard_tag: Option<unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int>,
}

/// Receive queue shared by providers (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_srx {
    pub ep_fid: fid_ep,
    pub owner_ops: *mut fi_ops_srx_owner,
    pub peer_ops: *mut fi_ops_srx_peer,
}

/// Context passing a shared receive queue to a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_srx_context {
    pub size: usize,
    pub srx: *mut fid_peer_srx,
}

/// Reports of a provider to the peer of its transfer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_transfer_peer {
    pub size: usize,
    pub complete:
        Option<unsafe extern "C" fn(*mut fid_ep, *mut fi_cq_tagged_entry, fi_addr_t) -> ssize_t>,
    pub comperr: Option<unsafe extern "C" fn(*mut fid_ep, *mut fi_cq_err_entry) -> ssize_t>,
}

/// Context opening an endpoint with transfers for a peer (fi_peer(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_transfer_context {
    pub size: usize,
    pub info: *mut fi_info,
    pub ep: *mut fid_ep,
    pub peer_ops: *mut fi_ops_transfer_peer,
}

/// Never defined by the API; only pointers to it exist.
#[repr(C)]
pub struct fi_peer_av_set {
    _opaque: [u8; 0],
}
