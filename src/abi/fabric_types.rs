// `rdma/fabric.h`: its types and functions.

/// Kind of peer names in an address vector (fi_av(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_av_type {
    FI_AV_UNSPEC = 0,
    FI_AV_MAP = 1,
    FI_AV_TABLE = 2,
}

/// Driver of operations: the library, or the program by its calls (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_progress {
    FI_PROGRESS_UNSPEC = 0,
    FI_PROGRESS_AUTO = 1,
    FI_PROGRESS_MANUAL = 2,
    FI_PROGRESS_CONTROL_UNIFIED = 3,
}

/// Calls a program promises not to make concurrently (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_threading {
    FI_THREAD_UNSPEC = 0,
    FI_THREAD_SAFE = 1,
    FI_THREAD_FID = 2,
    FI_THREAD_DOMAIN = 3,
    FI_THREAD_COMPLETION = 4,
    FI_THREAD_ENDPOINT = 5,
}

/// Protection of queues from overruns by the provider (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_resource_mgmt {
    FI_RM_UNSPEC = 0,
    FI_RM_DISABLED = 1,
    FI_RM_ENABLED = 2,
}

/// Connected messages, datagrams, or reliable datagrams (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_ep_type {
    FI_EP_UNSPEC = 0,
    FI_EP_MSG = 1,
    FI_EP_DGRAM = 2,
    FI_EP_RDM = 3,
}

/// The bus a network device is on (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_bus_type {
    FI_BUS_UNSPEC = 0,
    FI_BUS_PCI = 1,
}
/// Another name of [`fi_bus_type::FI_BUS_UNSPEC`].
pub const FI_BUS_UNKNOWN: fi_bus_type = fi_bus_type::FI_BUS_UNSPEC;

/// State of a network port (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_link_state {
    FI_LINK_UNKNOWN = 0,
    FI_LINK_DOWN = 1,
    FI_LINK_UP = 2,
}

/// Type of the data given to `fi_tostr` (fi_fabric(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_type {
    FI_TYPE_INFO = 0,
    FI_TYPE_EP_TYPE = 1,
    FI_TYPE_CAPS = 2,
    FI_TYPE_OP_FLAGS = 3,
    FI_TYPE_ADDR_FORMAT = 4,
    FI_TYPE_TX_ATTR = 5,
    FI_TYPE_RX_ATTR = 6,
    FI_TYPE_EP_ATTR = 7,
    FI_TYPE_DOMAIN_ATTR = 8,
    FI_TYPE_FABRIC_ATTR = 9,
    FI_TYPE_THREADING = 10,
    FI_TYPE_PROGRESS = 11,
    FI_TYPE_PROTOCOL = 12,
    FI_TYPE_MSG_ORDER = 13,
    FI_TYPE_MODE = 14,
    FI_TYPE_AV_TYPE = 15,
    FI_TYPE_ATOMIC_TYPE = 16,
    FI_TYPE_ATOMIC_OP = 17,
    FI_TYPE_VERSION = 18,
    FI_TYPE_EQ_EVENT = 19,
    FI_TYPE_CQ_EVENT_FLAGS = 20,
    FI_TYPE_MR_MODE = 21,
    FI_TYPE_OP_TYPE = 22,
    FI_TYPE_FID = 23,
    FI_TYPE_COLLECTIVE_OP = 24,
    FI_TYPE_HMEM_IFACE = 25,
    FI_TYPE_CQ_FORMAT = 26,
    FI_TYPE_LOG_LEVEL = 27,
    FI_TYPE_LOG_SUBSYS = 28,
    FI_TYPE_AV_ATTR = 29,
    FI_TYPE_CQ_ATTR = 30,
    FI_TYPE_MR_ATTR = 31,
    FI_TYPE_CNTR_ATTR = 32,
    FI_TYPE_CQ_ERR_ENTRY = 33,
    FI_TYPE_CQ_WAIT_COND = 34,
    FI_TYPE_WAIT_OBJ = 35,
}

/// The type of a configuration variable (fi_provider(7)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_param_type {
    FI_PARAM_STRING = 0,
    FI_PARAM_INT = 1,
    FI_PARAM_BOOL = 2,
    FI_PARAM_SIZE_T = 3,
}

/// A vector element of an atomic operation: an address and a number of datatype elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

/// Supported or requested attributes of an endpoint's transmit side; sizes in bytes
/// (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

/// Supported or requested attributes of an endpoint's receive side; sizes in bytes
/// (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

/// Attributes of an endpoint; sizes in bytes (fi_endpoint(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ep_attr {
    pub r#type: c_enum<fi_ep_type>,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub xpu_ctx: *mut fid_xpu_ctx,
}

/// Attributes of a domain; counts of objects, sizes in bytes (fi_domain(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_domain_attr {
    pub domain: *mut fid_domain,
    pub name: *mut c_char,
    pub threading: c_enum<fi_threading>,
    pub control_progress: c_enum<fi_progress>,
    pub data_progress: c_enum<fi_progress>,
    pub resource_mgmt: c_enum<fi_resource_mgmt>,
    pub av_type: c_enum<fi_av_type>,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    pub max_ep_auth_key: usize,
    pub max_group_id: u32,
    pub max_cntr_value: u64,
    pub max_err_cntr_value: u64,
    pub max_xpu_ctx_cnt: usize,
}

/// The fabric and the provider it belongs to; versions as `FI_VERSION` makes them (fi_fabric(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_fabric_attr {
    pub fabric: *mut fid_fabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// One way to communicate, as `fi_getinfo` offers it; a linked list (fi_getinfo(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: fid_t,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut fid_nic,
}

/// The names of a network device (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_device_attr {
    pub name: *mut c_char,
    pub device_id: *mut c_char,
    pub device_version: *mut c_char,
    pub vendor_id: *mut c_char,
    pub driver: *mut c_char,
    pub firmware: *mut c_char,
}

/// The PCI address of a network device (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_pci_attr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// Attachment of a network device (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_bus_attr {
    pub bus_type: c_enum<fi_bus_type>,
    pub attr: fi_bus_attr__attr,
}

/// Address on the bus of type `bus_type`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_bus_attr__attr {
    pub pci: fi_pci_attr,
}

/// A network port: MTU in bytes, speed in bits per second (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_link_attr {
    pub address: *mut c_char,
    pub mtu: usize,
    pub speed: usize,
    pub state: c_enum<fi_link_state>,
    pub network_type: *mut c_char,
}

/// Calls every object has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops {
    pub size: usize,
    pub close: Option<unsafe extern "C" fn(*mut fid) -> c_int>,
    pub bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    pub control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
    pub ops_open: Option<
        unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
    >,
    pub tostr: Option<unsafe extern "C" fn(*const fid, *mut c_char, usize) -> c_int>,
    pub ops_set: Option<
        unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
    >,
}

/// Start of every object of the API: its class, the program's context, its calls.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *mut fi_ops,
}

/// Calls of a fabric (fi_fabric(3), fi_eq(3), fi_poll(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_fabric {
    pub size: usize,
    pub domain: Option<
        unsafe extern "C" fn(
            *mut fid_fabric,
            *mut fi_info,
            *mut *mut fid_domain,
            *mut c_void,
        ) -> c_int,
    >,
    pub passive_ep: Option<
        unsafe extern "C" fn(
            *mut fid_fabric,
            *mut fi_info,
            *mut *mut fid_pep,
            *mut c_void,
        ) -> c_int,
    >,
    pub eq_open: Option<
        unsafe extern "C" fn(
            *mut fid_fabric,
            *mut fi_eq_attr,
            *mut *mut fid_eq,
            *mut c_void,
        ) -> c_int,
    >,
    pub wait_open: Option<
        unsafe extern "C" fn(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) -> c_int,
    >,
    pub trywait: Option<unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int>,
    pub domain2: Option<
        unsafe extern "C" fn(
            *mut fid_fabric,
            *mut fi_info,
            *mut *mut fid_domain,
            u64,
            *mut c_void,
        ) -> c_int,
    >,
}

/// An open fabric (fi_fabric(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    pub api_version: u32,
}

/// A network device, read directly by programs (fi_nic(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_nic {
    pub fid: fid,
    pub device_attr: *mut fi_device_attr,
    pub bus_attr: *mut fi_bus_attr,
    pub link_attr: *mut fi_link_attr,
    pub prov_attr: *mut c_void,
}

/// Argument of `FI_ALIAS`: the location of the alias, and its flags.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_alias {
    pub fid: *mut *mut fid,
    pub flags: u64,
}

/// Argument of `FI_GET_VAL` and `FI_SET_VAL`: a variable and its value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_fid_var {
    pub name: c_int,
    pub val: *mut c_void,
}

/// Argument of `FI_GET_RAW_MR`: the location for a region's raw key (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_raw_attr {
    pub flags: u64,
    pub base_addr: *mut u64,
    pub raw_key: *mut u8,
    pub key_size: *mut usize,
}

/// Argument of `FI_GET_MR_XPU_DESC`: the location for a region's device-side descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_xpu_desc {
    pub buf: *mut c_void,
    pub len: *mut usize,
    pub flags: u64,
    pub ctx: *mut fid_xpu_ctx,
}

/// Argument of `FI_MAP_RAW_MR`: a peer's raw key, and the location for its short form (fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_map_raw {
    pub flags: u64,
    pub base_addr: u64,
    pub raw_key: *mut u8,
    pub key_size: usize,
    pub key: *mut u64,
}

/// A configuration variable, as `fi_getparams` lists it (fi_provider(7)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_param {
    pub name: *const c_char,
    pub r#type: c_enum<fi_param_type>,
    pub help_string: *const c_char,
    pub value: *const c_char,
}

/// Space for the provider in a request's context, under `FI_CONTEXT` (fi_getinfo(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_context {
    pub internal: [*mut c_void; 4],
}

/// Space for the provider in a request's context, under `FI_CONTEXT2` (fi_getinfo(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_context2 {
    pub internal: [*mut c_void; 8],
}

/// Context of a claimed or discarded buffered receive (fi_msg(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_recv_context {
    pub ep: *mut fid_ep,
    pub context: *mut c_void,
}

unsafe extern "C" {
    pub fn fi_version() -> u32;
    pub fn fi_getinfo(
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int;
    pub fn fi_freeinfo(info: *mut fi_info);
    pub fn fi_dupinfo(info: *const fi_info) -> *mut fi_info;
    pub fn fi_fabric2(
        info: *mut fi_info,
        fabric: *mut *mut fid_fabric,
        flags: u64,
        context: *mut c_void,
    ) -> c_int;
    pub fn fi_fabric(
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int;
    pub fn fi_open(
        version: u32,
        name: *const c_char,
        attr: *mut c_void,
        attr_len: usize,
        flags: u64,
        fid: *mut *mut fid,
        context: *mut c_void,
    ) -> c_int;
    pub fn fi_tostr(data: *const c_void, datatype: c_enum<fi_type>) -> *mut c_char;
    pub fn fi_tostr_r(
        buf: *mut c_char,
        len: usize,
        data: *const c_void,
        datatype: c_enum<fi_type>,
    ) -> *mut c_char;
    pub fn fi_getparams(params: *mut *mut fi_param, count: *mut c_int) -> c_int;
    pub fn fi_freeparams(params: *mut fi_param);
}
