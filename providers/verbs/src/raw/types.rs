//! Structures and constants of infiniband/verbs.h and rdma/rdma_cma.h used by this provider.
//! Structures allocated by the libraries contain only the first fields, as far as they are read. A
//! unit test compares all with the headers, if these are installed.
#![allow(dead_code, reason = "unread fields occupy space too")]
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{pthread_mutex_t, sockaddr_storage};

/// Declares `struct`s and `union`s: `whole` ones, the `start` of others with further fields now or
/// later, and the `end` of one growing at its front. A different name in C follows the Rust name.
/// Fields with a leading `_` in their name replace several.
macro_rules! layouts {
    ($(
        $(#[$meta:meta])*
        $extent:ident $kind:ident $name:ident $(= $c:literal)? {
            $($(#[$field_meta:meta])* $field:ident: $ty:ty $(= $path:literal)?,)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            pub(crate) $kind $name {
                $($(#[$field_meta])* pub(crate) $field: $ty,)*
            }
        )*

        /// The size of every structure, and the size and place of every field, as C can check them.
        #[cfg(test)]
        pub(super) fn layout_assertions() -> Vec<String> {
            let mut assertions = Vec::new();
            $(
                let c = [$($c,)? concat!(stringify!($kind), " ", stringify!($name))][0];
                let size = size_of::<$name>();
                let is = if stringify!($extent) == "whole" { "==" } else { ">=" };
                assertions.push(format!("sizeof({c}) {is} {size}"));
                $(
                    let field = [$($path,)? stringify!($field)][0];
                    let offset = core::mem::offset_of!($name, $field);
                    if !field.starts_with('_') {
                        assertions.push(match stringify!($extent) {
                            "end" => format!("sizeof({c}) - offsetof({c}, {field}) == {}", size - offset),
                            _ => format!("offsetof({c}, {field}) == {offset}"),
                        });
                        assertions.push(format!("sizeof((({c} *)0)->{field}) == {}", size_of::<$ty>()));
                    }
                )*
            )*
            assertions
        }
    };
}

/// Declares constants: `numbers` of an enumeration, and `bits` to be combined by OR.
macro_rules! constants {
    ($($(#[$meta:meta])* $kind:ident $name:ident { $($constant:ident = $value:expr,)* })*) => {
        $(constants!(@ $kind $(#[$meta])* $name { $($constant = $value,)* });)*

        /// The value of every constant, as C can check it.
        #[cfg(test)]
        pub(super) fn constant_assertions() -> Vec<String> {
            vec![$($(format!("{} == {}", stringify!($constant), $value),)*)*]
        }
    };
    (@ numbers $(#[$meta:meta])* $name:ident { $($constant:ident = $value:expr,)* }) => {
        $(#[$meta])*
        pub(crate) mod $name {
            pub(crate) type Type = u32;
            $(pub(crate) const $constant: Type = $value;)*
        }
    };
    (@ bits $(#[$meta:meta])* $name:ident { $($constant:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) struct $name(pub(crate) u32);

        impl $name {
            $(pub(crate) const $constant: Self = Self($value);)*
        }

        impl core::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl core::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    };
}

constants! {
    numbers ibv_transport_type { IBV_TRANSPORT_IWARP = 1, }
    numbers ibv_atomic_cap { IBV_ATOMIC_NONE = 0, }
    numbers ibv_port_state { IBV_PORT_NOP = 0, IBV_PORT_ACTIVE = 4, }
    /// Link layer of a port.
    numbers ibv_link_layer { IBV_LINK_LAYER_ETHERNET = 2, }
    bits ibv_odp_general_caps { IBV_ODP_SUPPORT = 1, IBV_ODP_SUPPORT_IMPLICIT = 2, }
    bits ibv_odp_transport_cap_bits {
        IBV_ODP_SUPPORT_SEND = 0x01,
        IBV_ODP_SUPPORT_RECV = 0x02,
        IBV_ODP_SUPPORT_WRITE = 0x04,
        IBV_ODP_SUPPORT_READ = 0x08,
        IBV_ODP_SUPPORT_ATOMIC = 0x10,
        IBV_ODP_SUPPORT_SRQ_RECV = 0x20,
    }
    bits ibv_access_flags {
        IBV_ACCESS_LOCAL_WRITE = 0x01,
        IBV_ACCESS_REMOTE_WRITE = 0x02,
        IBV_ACCESS_REMOTE_READ = 0x04,
        IBV_ACCESS_REMOTE_ATOMIC = 0x08,
        IBV_ACCESS_ON_DEMAND = 0x40,
    }
    /// Asynchronous events of a device.
    numbers ibv_event_type {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
    }
    /// Status of a completed work request.
    numbers ibv_wc_status {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
    }
    numbers ibv_wc_opcode { IBV_WC_RECV_RDMA_WITH_IMM = 129, }
    bits ibv_wc_flags { IBV_WC_WITH_IMM = 2, }
    numbers ibv_qp_type { IBV_QPT_RC = 2, IBV_QPT_UD = 4, }
    numbers ibv_qp_state {
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_ERR = 6,
    }
    /// Attributes of a queue pair set by a call.
    bits ibv_qp_attr_mask {
        IBV_QP_STATE = 0x1,
        IBV_QP_PKEY_INDEX = 0x10,
        IBV_QP_PORT = 0x20,
        IBV_QP_QKEY = 0x40,
        IBV_QP_MIN_RNR_TIMER = 0x8000,
        IBV_QP_SQ_PSN = 0x10000,
    }
    /// Operation of a work request.
    numbers ibv_wr_opcode {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    }
    bits ibv_send_flags { IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_INLINE = 8, }
    /// Namespace of port numbers.
    numbers rdma_port_space { RDMA_PS_TCP = 0x106, RDMA_PS_IB = 0x13f, }
    /// Events of a connection.
    numbers rdma_cm_event_type {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
    }
}

/// Function not called by this provider.
type Unused = Option<unsafe extern "C" fn()>;

pub(super) type QueryPort =
    unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;
pub(super) type QueryDeviceEx =
    unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

layouts! {
    /// A device, before it is opened.
    start struct ibv_device {
        _ops: [Unused; 2],
        node_type: c_int,
        transport_type: ibv_transport_type::Type,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    /// The calls of an open device.
    whole struct ibv_context_ops {
        _setup: [Unused; 11],
        poll_cq: Option<PollCq>,
        req_notify_cq: Option<ReqNotifyCq>,
        _queues: [Unused; 7],
        post_srq_recv: Option<PostSrqRecv>,
        _pairs: [Unused; 4],
        post_send: Option<PostSend>,
        post_recv: Option<PostRecv>,
        _rest: [Unused; 5],
    }

    /// An open device.
    whole struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    /// Fields placed before a context by newer versions. It grows at its front.
    end struct verbs_context {
        query_port: Option<QueryPort>,
        _objects: [Unused; 26],
        query_device_ex: Option<QueryDeviceEx>,
        _before: [Unused; 11],
        sz: usize,
        context: ibv_context,
    }

    #[derive(Clone, Copy)]
    whole union ibv_gid {
        raw: [u8; 16],
        _aligned: u64,
    }

    whole struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    #[derive(Clone, Copy)]
    whole struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap::Type,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// On-demand paging capabilities of each kind of queue pair.
    #[derive(Clone, Copy)]
    whole struct odp_transport_caps = "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)" {
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
    }

    #[derive(Clone, Copy)]
    whole struct ibv_odp_caps {
        general_caps: u64,
        per_transport_caps: odp_transport_caps,
    }

    start struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        _rest: [u64; 16],
    }

    start struct ibv_port_attr {
        state: ibv_port_state::Type,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    whole struct ibv_async_event {
        /// Subject of the event: another kind of object, or a port number, may be in its place.
        qp: *mut ibv_qp = "element.qp",
        event_type: ibv_event_type::Type,
    }

    start struct ibv_pd {
        context: *mut ibv_context,
    }

    start struct ibv_ah {
        context: *mut ibv_context,
    }

    start struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    start struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
    }

    start struct ibv_cq {
        context: *mut ibv_context,
    }

    start struct ibv_srq {
        context: *mut ibv_context,
    }

    start struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
    }

    whole struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status::Type,
        opcode: ibv_wc_opcode::Type,
        vendor_err: u32,
        byte_len: u32,
        /// In network byte order.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    whole struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    whole struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    whole struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    whole struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type::Type,
        sq_sig_all: c_int,
    }

    whole struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    whole struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    whole struct ibv_qp_attr {
        qp_state: ibv_qp_state::Type,
        cur_qp_state: ibv_qp_state::Type,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    #[derive(Clone, Copy, Debug)]
    whole struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    whole struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    /// Remote memory of a request.
    #[derive(Clone, Copy)]
    whole struct rdma_t = "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    /// Operands and remote memory of an atomic operation.
    #[derive(Clone, Copy)]
    whole struct atomic_t = "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// Destination of a datagram.
    #[derive(Clone, Copy)]
    whole struct ud_t = "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    /// Additional fields by kind of request.
    whole union wr_t = "__typeof__(((struct ibv_send_wr *)0)->wr)" {
        rdma: rdma_t,
        atomic: atomic_t,
        ud: ud_t,
    }

    whole struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode::Type,
        send_flags: c_uint,
        /// In network byte order.
        imm_data: u32,
        wr: wr_t,
        /// Fields of queue pairs and requests not created here.
        _others: [u64; 7],
    }

    start struct rdma_event_channel {
        fd: c_int,
    }

    start struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        src_storage: sockaddr_storage = "route.addr.src_storage",
        dst_storage: sockaddr_storage = "route.addr.dst_storage",
    }

    #[derive(Clone, Copy)]
    whole struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    start struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type::Type,
        status: c_int,
        /// For datagrams another structure is in its place.
        conn: rdma_conn_param = "param.conn",
    }
}
