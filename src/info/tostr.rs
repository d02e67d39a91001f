//! The text of `fi_tostr` (fabric(7)): names of values, and YAML-like dumps of
//! structures. Scripts parse it, so names, order and layout never change.
use crate::abi::*;
use crate::info::addr;
use crate::info::ib::IbAddr;
use crate::info::owned::InfoRef;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt::{self, Write};
use core::mem::offset_of;
use std::net::Ipv6Addr;

/// Release name of the library.
pub const RELEASE: &str = "2.6.0";

/// Flags with their names, in the order of their output.
type Flags = &'static [(u64, &'static str)];

macro_rules! flags {
    ($($flag:ident),+ $(,)?) => { &[$(($flag as u64, stringify!($flag))),+] };
}

const CAPS: Flags = flags![
    FI_MSG,
    FI_RMA,
    FI_TAGGED,
    FI_ATOMIC,
    FI_MULTICAST,
    FI_COLLECTIVE,
    FI_READ,
    FI_WRITE,
    FI_RECV,
    FI_SEND,
    FI_REMOTE_READ,
    FI_REMOTE_WRITE,
    FI_MULTI_RECV,
    FI_REMOTE_CQ_DATA,
    FI_TRIGGER,
    FI_FENCE,
    FI_RMA_PMEM,
    FI_SOURCE_ERR,
    FI_LOCAL_COMM,
    FI_REMOTE_COMM,
    FI_SHARED_AV,
    FI_RMA_EVENT,
    FI_SOURCE,
    FI_NAMED_RX_CTX,
    FI_DIRECTED_RECV,
    FI_AV_USER_ID,
    FI_PEER,
    FI_HMEM,
    FI_XPU,
    FI_TAGGED_DIRECTED_RECV,
    FI_TAGGED_MULTI_RECV,
    FI_EXACT_DIRECTED_RECV,
];
const OP_FLAGS: Flags = flags![
    FI_MULTICAST,
    FI_MULTI_RECV,
    FI_REMOTE_CQ_DATA,
    FI_MORE,
    FI_PEEK,
    FI_TRIGGER,
    FI_FENCE,
    FI_COMPLETION,
    FI_INJECT,
    FI_INJECT_COMPLETE,
    FI_TRANSMIT_COMPLETE,
    FI_DELIVERY_COMPLETE,
    FI_MATCH_COMPLETE,
    FI_AFFINITY,
    FI_CLAIM,
    FI_DISCARD,
];
const MSG_ORDER: Flags = flags![
    FI_ORDER_RAR,
    FI_ORDER_RAW,
    FI_ORDER_RAS,
    FI_ORDER_WAR,
    FI_ORDER_WAW,
    FI_ORDER_WAS,
    FI_ORDER_SAR,
    FI_ORDER_SAW,
    FI_ORDER_SAS,
    FI_ORDER_RMA_RAR,
    FI_ORDER_RMA_RAW,
    FI_ORDER_RMA_WAR,
    FI_ORDER_RMA_WAW,
    FI_ORDER_ATOMIC_RAR,
    FI_ORDER_ATOMIC_RAW,
    FI_ORDER_ATOMIC_WAR,
    FI_ORDER_ATOMIC_WAW,
];
const MODE: Flags =
    flags![FI_CONTEXT, FI_MSG_PREFIX, FI_ASYNC_IOV, FI_RX_CQ_DATA, FI_LOCAL_MR, FI_CONTEXT2,];
const CQ_EVENT_FLAGS: Flags = flags![
    FI_SEND,
    FI_RECV,
    FI_RMA,
    FI_ATOMIC,
    FI_MSG,
    FI_TAGGED,
    FI_READ,
    FI_WRITE,
    FI_REMOTE_READ,
    FI_REMOTE_WRITE,
    FI_REMOTE_CQ_DATA,
    FI_MULTI_RECV,
    FI_MORE,
    FI_CLAIM,
];
const MR_MODE: Flags = flags![
    FI_MR_BASIC,
    FI_MR_SCALABLE,
    FI_MR_LOCAL,
    FI_MR_RAW,
    FI_MR_VIRT_ADDR,
    FI_MR_ALLOCATED,
    FI_MR_PROV_KEY,
    FI_MR_MMU_NOTIFY,
    FI_MR_RMA_EVENT,
    FI_MR_ENDPOINT,
    FI_MR_HMEM,
    FI_MR_COLLECTIVE,
    FI_MR_XPU_DESC,
];
const AV_FLAGS: Flags = flags![FI_EVENT, FI_READ, FI_SYMMETRIC];
const CQ_FLAGS: Flags = flags![FI_AFFINITY];
const MR_ACCESS: Flags =
    flags![FI_RECV, FI_SEND, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_COLLECTIVE,];

fn names(flags: Flags, value: u64) -> String {
    let set = flags.iter().filter(|(flag, _)| value & flag != 0).map(|(_, name)| *name);
    set.collect::<Vec<_>>().join(", ")
}

macro_rules! flag_texts {
    ($($(#[$doc:meta])* $name:ident: $flags:ident),+ $(,)?) => {$(
        $(#[$doc])*
        pub fn $name(value: u64) -> String {
            names($flags, value)
        }
    )+};
}

flag_texts! {
    /// `FI_MSG, FI_SEND`: capabilities.
    caps: CAPS,
    /// `FI_CONTEXT`: mode bits.
    mode: MODE,
    /// `FI_COMPLETION`: operation flags.
    op_flags: OP_FLAGS,
    /// `FI_ORDER_SAS`: orderings.
    msg_order: MSG_ORDER,
    /// `FI_MR_LOCAL`: requirements of memory registration to the application.
    mr_mode: MR_MODE,
}

macro_rules! value_texts {
    ($($(#[$doc:meta])* $name:ident: $($value:expr => $text:expr),+;)+) => {$(
        $(#[$doc])*
        pub fn $name(value: u32) -> &'static str {
            $(if value == $value as u32 { return $text; })+
            "Unknown"
        }
    )+};
}
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $($value:ident),+ $(,)?;)+) => {
        value_texts! { $($(#[$doc])* $name: $($value => stringify!($value)),+;)+ }
    };
}
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident: $ty:ident { $($value:ident),+ $(,)? })+) => {
        value_texts! { $($(#[$doc])* $name: $($ty::$value => stringify!($value)),+;)+ }
    };
}

constants! {
    /// The name of an address format.
    addr_format: FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB,
        FI_ADDR_PSMX, FI_ADDR_GNI, FI_ADDR_BGQ, FI_ADDR_MLX, FI_ADDR_STR, FI_ADDR_PSMX2,
        FI_ADDR_IB_UD, FI_ADDR_EFA, FI_ADDR_PSMX3, FI_ADDR_OPX, FI_ADDR_CXI, FI_ADDR_UCX,
        FI_SOCKADDR_IP;
    /// The name of a protocol.
    protocol: FI_PROTO_UNSPEC, FI_PROTO_RDMA_CM_IB_RC, FI_PROTO_IWARP, FI_PROTO_IB_UD,
        FI_PROTO_PSMX, FI_PROTO_UDP, FI_PROTO_SOCK_TCP, FI_PROTO_MXM, FI_PROTO_IWARP_RDM,
        FI_PROTO_IB_RDM, FI_PROTO_GNI, FI_PROTO_RXM, FI_PROTO_RXD, FI_PROTO_MLX,
        FI_PROTO_NETWORKDIRECT, FI_PROTO_PSMX2, FI_PROTO_SHM, FI_PROTO_MRAIL, FI_PROTO_RSTREAM,
        FI_PROTO_RDMA_CM_IB_XRC, FI_PROTO_EFA, FI_PROTO_PSMX3, FI_PROTO_RXM_TCP, FI_PROTO_OPX,
        FI_PROTO_CXI, FI_PROTO_XNET, FI_PROTO_COLL, FI_PROTO_UCX, FI_PROTO_SM2, FI_PROTO_CXI_RNR,
        FI_PROTO_LPP, FI_PROTO_LNX;
    /// The name of an event.
    eq_event: FI_NOTIFY, FI_CONNREQ, FI_CONNECTED, FI_SHUTDOWN, FI_MR_COMPLETE, FI_AV_COMPLETE,
        FI_JOIN_COMPLETE;
}

enums! {
    /// The name of an endpoint type.
    ep_type: fi_ep_type { FI_EP_UNSPEC, FI_EP_MSG, FI_EP_DGRAM, FI_EP_RDM }
    /// The name of a threading level.
    threading: fi_threading {
        FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION,
        FI_THREAD_ENDPOINT
    }
    /// The name of a progress model.
    progress: fi_progress {
        FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_PROGRESS_CONTROL_UNIFIED
    }
    /// The name of a level of resource management.
    resource_mgmt: fi_resource_mgmt { FI_RM_UNSPEC, FI_RM_DISABLED, FI_RM_ENABLED }
    /// The name of an address vector type.
    av_type: fi_av_type { FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE }
    /// The name of an atomic data type.
    datatype: fi_datatype {
        FI_INT8, FI_UINT8, FI_INT16, FI_UINT16, FI_INT32, FI_UINT32, FI_INT64, FI_UINT64, FI_FLOAT,
        FI_DOUBLE, FI_FLOAT_COMPLEX, FI_DOUBLE_COMPLEX, FI_LONG_DOUBLE, FI_LONG_DOUBLE_COMPLEX,
        FI_INT128, FI_UINT128, FI_FLOAT16, FI_BFLOAT16, FI_FLOAT8_E4M3, FI_FLOAT8_E5M2, FI_VOID
    }
    /// The name of an atomic operation.
    op: fi_op {
        FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR, FI_BXOR,
        FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_CSWAP, FI_CSWAP_NE, FI_CSWAP_LE, FI_CSWAP_LT,
        FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP, FI_DIFF, FI_NOOP
    }
    /// The name of a deferred operation.
    op_type: fi_op_type {
        FI_OP_RECV, FI_OP_SEND, FI_OP_TRECV, FI_OP_TSEND, FI_OP_READ, FI_OP_WRITE, FI_OP_ATOMIC,
        FI_OP_FETCH_ATOMIC, FI_OP_COMPARE_ATOMIC, FI_OP_CNTR_SET, FI_OP_CNTR_ADD
    }
    /// The name of a collective operation.
    collective_op: fi_collective_op {
        FI_BARRIER, FI_BROADCAST, FI_ALLTOALL, FI_ALLREDUCE, FI_ALLGATHER, FI_REDUCE_SCATTER,
        FI_REDUCE, FI_SCATTER, FI_GATHER
    }
    /// The name of a kind of device memory.
    hmem_iface: fi_hmem_iface {
        FI_HMEM_SYSTEM, FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE, FI_HMEM_NEURON, FI_HMEM_SYNAPSEAI
    }
    /// The name of a completion format.
    cq_format: fi_cq_format {
        FI_CQ_FORMAT_UNSPEC, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA,
        FI_CQ_FORMAT_TAGGED
    }
    /// Returns the name of the condition of a blocking completion queue read.
    cq_wait_cond: fi_cq_wait_cond { FI_CQ_COND_NONE, FI_CQ_COND_THRESHOLD }
    /// The name of a wait object.
    wait_obj: fi_wait_obj {
        FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_SET, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD,
        FI_WAIT_POLLFD
    }
    /// Returns the name of a counter's unit.
    cntr_events: fi_cntr_events { FI_CNTR_EVENTS_COMP, FI_CNTR_EVENTS_BYTES }
    /// The name of the state of a link.
    link_state: fi_link_state { FI_LINK_UNKNOWN, FI_LINK_DOWN, FI_LINK_UP }
}

value_texts! {
    /// Returns the name of a kind of bus. Of two names for one value, it is that of the original.
    bus_type: FI_BUS_UNKNOWN => "FI_BUS_UNKNOWN", fi_bus_type::FI_BUS_PCI => "FI_BUS_PCI";
    /// `warn` to `debug`: the name of a log level.
    log_level: fi_log_level::FI_LOG_WARN => "warn", fi_log_level::FI_LOG_TRACE => "trace",
        fi_log_level::FI_LOG_INFO => "info", fi_log_level::FI_LOG_DEBUG => "debug";
    /// Returns the name of a logging subsystem.
    log_subsys: fi_log_subsys::FI_LOG_CORE => "core", fi_log_subsys::FI_LOG_FABRIC => "fabric",
        fi_log_subsys::FI_LOG_DOMAIN => "domain", fi_log_subsys::FI_LOG_EP_CTRL => "ep_ctrl",
        fi_log_subsys::FI_LOG_EP_DATA => "ep_data", fi_log_subsys::FI_LOG_AV => "av",
        fi_log_subsys::FI_LOG_CQ => "cq", fi_log_subsys::FI_LOG_EQ => "eq",
        fi_log_subsys::FI_LOG_MR => "mr", fi_log_subsys::FI_LOG_CNTR => "cntr";
}

/// A pointer as C's `%p` prints it.
struct P<T: ?Sized>(*const T);

impl<T: ?Sized> fmt::Display for P<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_null() { f.write_str("(nil)") } else { write!(f, "{:p}", self.0) }
    }
}

/// A string as C's `%s` prints it.
struct S<'a>(Option<&'a CStr>);

impl fmt::Display for S<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(string) => f.write_str(&string.to_string_lossy()),
            None => f.write_str("(null)"),
        }
    }
}

/// Number of contexts of an endpoint, or the marker for a shared one.
struct ContextCount(usize);

impl fmt::Display for ContextCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            FI_SHARED_CONTEXT => f.write_str("FI_SHARED_CONTEXT"),
            count => write!(f, "{count}"),
        }
    }
}

/// Lines with the indentation of nested structures.
struct Text(String);

impl Text {
    fn line(&mut self, depth: usize, field: &str, value: impl fmt::Display) {
        let _ = writeln!(self.0, "{:indent$}{field}: {value}", "", indent = depth * 4);
    }

    fn flags(&mut self, depth: usize, field: &str, names: String) {
        self.line(depth, field, format_args!("[ {names} ]"));
    }

    fn head(&mut self, depth: usize, name: &str) {
        let _ = writeln!(self.0, "{:indent$}{name}:", "", indent = depth * 4);
    }

    fn tx(&mut self, at: usize, attr: &fi_tx_attr) {
        self.head(at, "fi_tx_attr");
        let at = at + 1;
        self.flags(at, "caps", caps(attr.caps));
        self.flags(at, "mode", mode(attr.mode));
        self.flags(at, "op_flags", op_flags(attr.op_flags));
        self.flags(at, "msg_order", msg_order(attr.msg_order));
        self.line(at, "inject_size", attr.inject_size);
        self.line(at, "size", attr.size);
        self.line(at, "iov_limit", attr.iov_limit);
        self.line(at, "rma_iov_limit", attr.rma_iov_limit);
        self.line(at, "tclass", format_args!("{:#x}", attr.tclass));
    }

    fn rx(&mut self, at: usize, attr: &fi_rx_attr) {
        self.head(at, "fi_rx_attr");
        let at = at + 1;
        self.flags(at, "caps", caps(attr.caps));
        self.flags(at, "mode", mode(attr.mode));
        self.flags(at, "op_flags", op_flags(attr.op_flags));
        self.flags(at, "msg_order", msg_order(attr.msg_order));
        self.line(at, "size", attr.size);
        self.line(at, "iov_limit", attr.iov_limit);
    }

    fn ep(&mut self, at: usize, attr: &fi_ep_attr) {
        self.head(at, "fi_ep_attr");
        let at = at + 1;
        self.line(at, "type", ep_type(attr.r#type.raw()));
        self.line(at, "protocol", protocol(attr.protocol));
        self.line(at, "protocol_version", attr.protocol_version);
        self.line(at, "max_msg_size", attr.max_msg_size);
        self.line(at, "msg_prefix_size", attr.msg_prefix_size);
        self.line(at, "max_order_raw_size", attr.max_order_raw_size);
        self.line(at, "max_order_war_size", attr.max_order_war_size);
        self.line(at, "max_order_waw_size", attr.max_order_waw_size);
        self.line(at, "mem_tag_format", format_args!("{:#018x}", attr.mem_tag_format));
        self.line(at, "tx_ctx_cnt", ContextCount(attr.tx_ctx_cnt));
        self.line(at, "rx_ctx_cnt", ContextCount(attr.rx_ctx_cnt));
        self.line(at, "auth_key_size", attr.auth_key_size);
        self.line(at, "xpu_ctx", P(attr.xpu_ctx));
    }

    fn domain(&mut self, at: usize, attr: &fi_domain_attr, name: Option<&CStr>) {
        self.head(at, "fi_domain_attr");
        let at = at + 1;
        self.line(at, "domain", P(attr.domain));
        self.line(at, "name", S(name));
        self.line(at, "threading", threading(attr.threading.raw()));
        self.line(at, "progress", progress(attr.data_progress.raw()));
        self.line(at, "resource_mgmt", resource_mgmt(attr.resource_mgmt.raw()));
        self.line(at, "av_type", av_type(attr.av_type.raw()));
        self.flags(at, "mr_mode", mr_mode(attr.mr_mode as u64));
        self.line(at, "mr_key_size", attr.mr_key_size);
        self.line(at, "cq_data_size", attr.cq_data_size);
        self.line(at, "cq_cnt", attr.cq_cnt);
        self.line(at, "ep_cnt", attr.ep_cnt);
        self.line(at, "tx_ctx_cnt", attr.tx_ctx_cnt);
        self.line(at, "rx_ctx_cnt", attr.rx_ctx_cnt);
        self.line(at, "max_ep_tx_ctx", attr.max_ep_tx_ctx);
        self.line(at, "max_ep_rx_ctx", attr.max_ep_rx_ctx);
        self.line(at, "max_ep_stx_ctx", attr.max_ep_stx_ctx);
        self.line(at, "max_ep_srx_ctx", attr.max_ep_srx_ctx);
        self.line(at, "cntr_cnt", attr.cntr_cnt);
        self.line(at, "mr_iov_limit", attr.mr_iov_limit);
        self.flags(at, "caps", caps(attr.caps));
        self.flags(at, "mode", mode(attr.mode));
        self.line(at, "auth_key_size", attr.auth_key_size);
        self.line(at, "max_err_data", attr.max_err_data);
        self.line(at, "mr_cnt", attr.mr_cnt);
        self.line(at, "tclass", format_args!("{:#x}", attr.tclass));
        self.line(at, "max_ep_auth_key", attr.max_ep_auth_key);
        self.line(at, "max_group_id", attr.max_group_id);
        self.line(at, "max_cntr_value", attr.max_cntr_value);
        self.line(at, "max_err_cntr_value", attr.max_err_cntr_value);
        self.line(at, "max_xpu_ctx_cnt", attr.max_xpu_ctx_cnt);
    }

    fn fabric(
        &mut self,
        at: usize,
        attr: &fi_fabric_attr,
        name: Option<&CStr>,
        prov: Option<&CStr>,
    ) {
        let version = |version: u32| format!("{}.{}", version >> 16, version & 0xffff);
        self.head(at, "fi_fabric_attr");
        let at = at + 1;
        self.line(at, "name", S(name));
        self.line(at, "prov_name", S(prov));
        self.line(at, "prov_version", version(attr.prov_version));
        self.line(at, "api_version", version(attr.api_version));
    }

    fn info(&mut self, info: InfoRef<'_>) {
        // SAFETY: an `InfoRef` points to a current info.
        let raw = unsafe { &*info.as_ptr() };
        self.head(0, "fi_info");
        self.flags(1, "caps", caps(raw.caps));
        self.flags(1, "mode", mode(raw.mode));
        self.line(1, "addr_format", addr_format(raw.addr_format));
        self.line(1, "src_addrlen", raw.src_addrlen);
        self.line(1, "dest_addrlen", raw.dest_addrlen);
        self.line(1, "src_addr", address(raw.addr_format, info.src_addr()));
        self.line(1, "dest_addr", address(raw.addr_format, info.dest_addr()));
        self.line(1, "handle", P(raw.handle));
        if let Some(attr) = info.tx() {
            self.tx(1, attr);
        }
        if let Some(attr) = info.rx() {
            self.rx(1, attr);
        }
        if let Some(attr) = info.ep() {
            self.ep(1, attr);
        }
        if let Some(attr) = info.domain() {
            self.domain(1, attr, info.domain_name());
        }
        if let Some(attr) = info.fabric() {
            self.fabric(1, attr, info.fabric_name(), info.prov_name());
        }
        match info.nic() {
            None => self.line(1, "nic", "(nil)"),
            // SAFETY: the nic of a valid info is a live fid.
            Some(nic) => match unsafe { own_text(&nic.fid) } {
                Some(text) => self.0.push_str(&text),
                // SAFETY: as above.
                None => unsafe { self.nic(1, nic) },
            },
        }
    }

    /// # Safety
    /// `nic` is a live nic.
    unsafe fn nic(&mut self, at: usize, nic: &fid_nic) {
        self.head(at, "nic");
        let at = at + 1;
        // SAFETY: its attributes are null or valid, and its names C strings.
        unsafe {
            if let Some(attr) = nic.device_attr.as_ref() {
                self.head(at, "fi_device_attr");
                for (field, value) in [
                    ("name", attr.name),
                    ("device_id", attr.device_id),
                    ("device_version", attr.device_version),
                    ("vendor_id", attr.vendor_id),
                    ("driver", attr.driver),
                    ("firmware", attr.firmware),
                ] {
                    self.line(at + 1, field, S(string(value)));
                }
            }
            if let Some(attr) = nic.bus_attr.as_ref() {
                self.head(at, "fi_bus_attr");
                self.line(at + 1, "bus_type", bus_type(attr.bus_type.raw()));
                if attr.bus_type == fi_bus_type::FI_BUS_PCI {
                    let pci = attr.attr.pci;
                    self.head(at + 1, "fi_pci_attr");
                    self.line(at + 2, "domain_id", pci.domain_id);
                    self.line(at + 2, "bus_id", pci.bus_id);
                    self.line(at + 2, "device_id", pci.device_id);
                    self.line(at + 2, "function_id", pci.function_id);
                }
            }
            if let Some(attr) = nic.link_attr.as_ref() {
                self.head(at, "fi_link_attr");
                self.line(at + 1, "address", S(string(attr.address)));
                self.line(at + 1, "mtu", attr.mtu);
                self.line(at + 1, "speed", attr.speed);
                self.line(at + 1, "state", link_state(attr.state.raw()));
                self.line(at + 1, "network_type", S(string(attr.network_type)));
            }
        }
    }

    fn av(&mut self, attr: &fi_av_attr, name: Option<&CStr>) {
        self.head(0, "fi_av_attr");
        self.line(1, "type", av_type(attr.r#type.raw()));
        self.line(1, "count", attr.count);
        self.line(1, "ep_per_node", attr.ep_per_node);
        self.line(1, "name", S(name));
        self.flags(1, "flags", names(AV_FLAGS, attr.flags));
    }

    fn cq(&mut self, attr: &fi_cq_attr) {
        self.head(0, "fi_cq_attr");
        self.line(1, "size", attr.size);
        self.flags(1, "flags", names(CQ_FLAGS, attr.flags));
        self.line(1, "format", cq_format(attr.format.raw()));
        self.line(1, "wait_obj", wait_obj(attr.wait_obj.raw()));
        self.line(1, "signaling_vector", attr.signaling_vector);
        self.line(1, "wait_cond", cq_wait_cond(attr.wait_cond.raw()));
    }

    fn mr(&mut self, attr: &fi_mr_attr) {
        self.head(0, "fi_mr_attr");
        self.line(1, "mr_iov", P(attr.mr_iov));
        self.line(1, "iov_count", attr.iov_count);
        self.flags(1, "access", names(MR_ACCESS, attr.access));
        self.line(1, "offset", format_args!("{:#x}", attr.offset));
        self.line(1, "requested_key", format_args!("{:#x}", attr.requested_key));
        self.line(1, "context", P(attr.context));
        self.line(1, "auth_key_size", attr.auth_key_size);
        self.line(1, "iface", hmem_iface(attr.iface.raw()));
    }

    fn cntr(&mut self, attr: &fi_cntr_attr) {
        self.head(0, "fi_cntr_attr");
        self.line(1, "events", cntr_events(attr.events.raw()));
        self.line(1, "wait_obj", wait_obj(attr.wait_obj.raw()));
        self.line(1, "flags", format_args!("{:#x}", attr.flags));
    }

    fn cq_err(&mut self, entry: &fi_cq_err_entry) {
        self.head(0, "fi_cq_err_entry");
        self.line(1, "op_context", P(entry.op_context));
        self.line(1, "flags", format_args!("{:#x}", entry.flags));
        self.line(1, "len", entry.len);
        self.line(1, "buf", P(entry.buf));
        self.line(1, "data", entry.data);
        self.line(1, "tag", format_args!("{:#x}", entry.tag));
        self.line(1, "olen", entry.olen);
        self.line(1, "err", entry.err);
        self.line(1, "prov_errno", entry.prov_errno);
        self.line(1, "err_data", P(entry.err_data));
        self.line(1, "err_data_size", entry.err_data_size);
    }
}

/// # Safety
/// `at` is null or a C string outliving the result.
unsafe fn string<'a>(at: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by this function's contract.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) })
}

/// Returns the text of a card within the text of an info.
pub(super) fn nic(nic: &fid_nic) -> String {
    let mut text = Text(String::new());
    // SAFETY: only the info's card, or one of ours, comes here: it is live.
    unsafe { text.nic(1, nic) };
    text.0
}

/// Returns an object's own text.
///
/// # Safety
/// `fid` is live.
unsafe fn own_text(fid: &fid) -> Option<String> {
    // SAFETY: the operations of a live object, read up to the size they state.
    let tostr = unsafe {
        let ops = fid.ops;
        if ops.is_null() || (*ops).size <= offset_of!(fi_ops, tostr) {
            return None;
        }
        (*ops).tostr?
    };
    let mut text = vec![0_u8; BUFFER];
    // SAFETY: the buffer has the length stated, and stays terminated.
    unsafe { tostr(fid, text.as_mut_ptr().cast(), text.len() - 1) };
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned())
}

/// An address in the words of its format; nothing for an unspecified one.
pub fn address(format: u32, bytes: Option<&[u8]>) -> String {
    let Some(bytes) = bytes else { return "(null)".to_owned() };
    // Too short for its format reads as nothing rather than as what lies behind.
    format_address(format, bytes).unwrap_or_default()
}

fn format_address(format: u32, bytes: &[u8]) -> Option<String> {
    fn get<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
        bytes.get(at..at + N)?.try_into().ok()
    }
    let gid = |at| get::<16>(bytes, at).map(Ipv6Addr::from);
    let ne64 = |at| get(bytes, at).map(u64::from_ne_bytes);
    let ne32 = |at| get(bytes, at).map(u32::from_ne_bytes);
    let ne16 = |at| get(bytes, at).map(u16::from_ne_bytes);
    let as_ib = || IbAddr::from_bytes(bytes).map(|addr| addr.to_string());
    match format as c_int {
        FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6 | FI_SOCKADDR_IP => {
            match addr::from_sock(bytes) {
                None if format as c_int == FI_SOCKADDR => as_ib(),
                addr => Some(addr::to_string(&addr?)),
            }
        }
        FI_SOCKADDR_IB => as_ib(),
        FI_ADDR_STR => {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        }
        FI_ADDR_PSMX => Some(format!("fi_addr_psmx://{:x}", ne64(0)?)),
        FI_ADDR_GNI => Some(format!("fi_addr_gni://{:x}", ne64(0)?)),
        FI_ADDR_BGQ => Some(format!("fi_addr_bgq://{:p}", bytes.as_ptr())),
        FI_ADDR_MLX => Some(format!("fi_addr_mlx://{:p}", bytes.as_ptr())),
        FI_ADDR_UCX => Some(format!("fi_addr_ucx://{:p}", bytes.as_ptr())),
        FI_ADDR_PSMX2 => Some(format!("fi_addr_psmx2://{:x}:{:x}", ne64(0)?, ne64(8)?)),
        FI_ADDR_PSMX3 => Some(format!(
            "fi_addr_psmx3://{:x}:{:x}:{:x}:{:x}",
            ne64(0)?,
            ne64(8)?,
            ne64(16)?,
            ne64(24)?
        )),
        FI_ADDR_IB_UD => Some(format!(
            "fi_addr_ib_ud://{}:{:x}/{:x}/{:x}/{:x}",
            gid(0)?,
            ne32(16)?,
            ne16(20)?,
            ne16(22)?,
            bytes.get(26)?
        )),
        FI_ADDR_EFA => Some(format!("fi_addr_efa://[{}]:{}:{}", gid(0)?, ne16(16)?, ne32(20)?)),
        FI_ADDR_OPX => Some(format!("fi_addr_opx://{:016x}", ne64(0)?)),
        FI_ADDR_CXI => Some(format!("fi_addr_cxi://{:#010x}", ne32(0)?)),
        _ => None,
    }
}

/// Maximum length of structure texts returned by `fi_tostr`.
pub const BUFFER: usize = 8192;

/// The text of an info.
pub fn info(info: InfoRef<'_>) -> String {
    let mut text = Text(String::new());
    text.info(info);
    text.0
}

/// Returns the text of any value, as returned by `fi_tostr`; `None` for null.
///
/// # Safety
/// `data` is null or points to a value of the kind `datatype`, of the current API version,
/// unchanged during the call.
pub unsafe fn value(data: *const c_void, datatype: u32) -> Option<String> {
    use fi_type::*;
    if data.is_null() {
        return None;
    }
    const TYPES: &[fi_type] = &[
        FI_TYPE_INFO,
        FI_TYPE_EP_TYPE,
        FI_TYPE_CAPS,
        FI_TYPE_OP_FLAGS,
        FI_TYPE_ADDR_FORMAT,
        FI_TYPE_TX_ATTR,
        FI_TYPE_RX_ATTR,
        FI_TYPE_EP_ATTR,
        FI_TYPE_DOMAIN_ATTR,
        FI_TYPE_FABRIC_ATTR,
        FI_TYPE_THREADING,
        FI_TYPE_PROGRESS,
        FI_TYPE_PROTOCOL,
        FI_TYPE_MSG_ORDER,
        FI_TYPE_MODE,
        FI_TYPE_AV_TYPE,
        FI_TYPE_ATOMIC_TYPE,
        FI_TYPE_ATOMIC_OP,
        FI_TYPE_VERSION,
        FI_TYPE_EQ_EVENT,
        FI_TYPE_CQ_EVENT_FLAGS,
        FI_TYPE_MR_MODE,
        FI_TYPE_OP_TYPE,
        FI_TYPE_FID,
        FI_TYPE_COLLECTIVE_OP,
        FI_TYPE_HMEM_IFACE,
        FI_TYPE_CQ_FORMAT,
        FI_TYPE_LOG_LEVEL,
        FI_TYPE_LOG_SUBSYS,
        FI_TYPE_AV_ATTR,
        FI_TYPE_CQ_ATTR,
        FI_TYPE_MR_ATTR,
        FI_TYPE_CNTR_ATTR,
        FI_TYPE_CQ_ERR_ENTRY,
        FI_TYPE_CQ_WAIT_COND,
        FI_TYPE_WAIT_OBJ,
    ];
    let Some(kind) = TYPES.iter().find(|kind| **kind as u32 == datatype) else {
        return Some("Unknown type".to_owned());
    };
    let mut text = Text(String::new());
    // SAFETY: `data` is of the kind said, by this function's contract; each
    // arm reads it as that kind.
    unsafe {
        let number = || *data.cast::<u32>();
        let flags = || *data.cast::<u64>();
        let named: &str = match kind {
            FI_TYPE_EP_TYPE => ep_type(number()),
            FI_TYPE_ADDR_FORMAT => addr_format(number()),
            FI_TYPE_THREADING => threading(number()),
            FI_TYPE_PROGRESS => progress(number()),
            FI_TYPE_PROTOCOL => protocol(number()),
            FI_TYPE_AV_TYPE => av_type(number()),
            FI_TYPE_ATOMIC_TYPE => self::datatype(number()),
            FI_TYPE_ATOMIC_OP => op(number()),
            FI_TYPE_VERSION => RELEASE,
            FI_TYPE_EQ_EVENT => eq_event(number()),
            FI_TYPE_OP_TYPE => op_type(number()),
            FI_TYPE_COLLECTIVE_OP => collective_op(number()),
            FI_TYPE_HMEM_IFACE => hmem_iface(number()),
            FI_TYPE_CQ_FORMAT => cq_format(number()),
            FI_TYPE_LOG_LEVEL => log_level(number()),
            FI_TYPE_LOG_SUBSYS => log_subsys(number()),
            FI_TYPE_CQ_WAIT_COND => cq_wait_cond(number()),
            FI_TYPE_WAIT_OBJ => wait_obj(number()),
            _ => "",
        };
        text.0.push_str(named);
        match kind {
            FI_TYPE_CAPS => text.0 = caps(flags()),
            FI_TYPE_OP_FLAGS => text.0 = op_flags(flags()),
            FI_TYPE_MSG_ORDER => text.0 = msg_order(flags()),
            FI_TYPE_MODE => text.0 = mode(flags()),
            FI_TYPE_CQ_EVENT_FLAGS => text.0 = names(CQ_EVENT_FLAGS, flags()),
            FI_TYPE_MR_MODE => text.0 = mr_mode(u64::from(number())),
            FI_TYPE_INFO => text.info(InfoRef::from_c(data.cast()).ok()?),
            FI_TYPE_TX_ATTR => text.tx(0, &*data.cast()),
            FI_TYPE_RX_ATTR => text.rx(0, &*data.cast()),
            FI_TYPE_EP_ATTR => text.ep(0, &*data.cast()),
            FI_TYPE_DOMAIN_ATTR => {
                let attr = &*data.cast::<fi_domain_attr>();
                text.domain(0, attr, string(attr.name));
            }
            FI_TYPE_FABRIC_ATTR => {
                let attr = &*data.cast::<fi_fabric_attr>();
                text.fabric(0, attr, string(attr.name), string(attr.prov_name));
            }
            FI_TYPE_FID => match own_text(&*data.cast()) {
                Some(own) => text.0 = own,
                None => text.line(0, "fid", P(data)),
            },
            FI_TYPE_AV_ATTR => {
                let attr = &*data.cast::<fi_av_attr>();
                text.av(attr, string(attr.name));
            }
            FI_TYPE_CQ_ATTR => text.cq(&*data.cast()),
            FI_TYPE_MR_ATTR => text.mr(&*data.cast()),
            FI_TYPE_CNTR_ATTR => text.cntr(&*data.cast()),
            FI_TYPE_CQ_ERR_ENTRY => text.cq_err(&*data.cast()),
            _ => {}
        }
    }
    Some(text.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::InfoBuf;

    #[test]
    fn flags_are_named_in_order_and_unknown_bits_left_out() {
        assert_eq!(caps(FI_TAGGED | FI_MSG | 1 << 62), "FI_MSG, FI_TAGGED");
        assert_eq!(caps(0), "");
        assert_eq!(mr_mode(4), "FI_MR_LOCAL");
    }

    #[test]
    fn a_value_of_no_name_is_unknown() {
        assert_eq!(ep_type(3), "FI_EP_RDM");
        assert_eq!(ep_type(77), "Unknown");
        assert_eq!(threading(u32::MAX), "Unknown");
        let number = 0_u64;
        // SAFETY: null, and a type that is none.
        unsafe {
            assert_eq!(value(core::ptr::null(), 0), None);
            assert_eq!(value((&raw const number).cast(), 100).unwrap(), "Unknown type");
        }
    }

    #[test]
    fn an_info_reads_as_in_fi_info() {
        let mut buf = InfoBuf::new().unwrap();
        buf.set_caps(FI_MSG | FI_SEND);
        buf.set_addr_format(FI_SOCKADDR_IN as u32);
        let addr = addr::to_sock(&"192.0.2.2:0".parse().unwrap());
        buf.set_src_addr(Some(addr.as_bytes())).unwrap();
        buf.set_domain_name(c"eth0").unwrap();
        buf.set_versions(206 << 16, 0x20006);
        buf.edit_ep(|ep| (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (2, FI_SHARED_CONTEXT));
        let text = info(buf.as_ref());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..3], ["fi_info:", "    caps: [ FI_MSG, FI_SEND ]", "    mode: [  ]"]);
        assert!(lines.contains(&"    src_addr: fi_sockaddr_in://192.0.2.2:0"));
        assert!(lines.contains(&"    dest_addr: (null)"));
        assert!(lines.contains(&"        mem_tag_format: 0x0000000000000000"));
        assert!(lines.contains(&"        tx_ctx_cnt: 2"));
        assert!(lines.contains(&"        rx_ctx_cnt: FI_SHARED_CONTEXT"));
        assert!(lines.contains(&"        name: eth0"));
        assert!(lines.contains(&"        prov_version: 206.0"));
        assert_eq!(lines.last(), Some(&"    nic: (nil)"));
    }

    #[test]
    fn an_address_too_short_for_its_format_is_not_read_past_its_end() {
        for format in 0..20 {
            for len in 1..28 {
                address(format, Some(&vec![2; len]));
            }
        }
        assert_eq!(address(FI_SOCKADDR_IN as u32, Some(&[2, 0, 1])), "");
        assert_eq!(address(FI_ADDR_STR as u32, Some(b"fi_shm://abc\0x")), "fi_shm://abc");
    }
}
