// `rdma/fabric.h`: fi_info, fids and the common part of objects (fabric(7), fi_getinfo(3),
// fi_fabric(3)).

/// An address vector's name for a peer (fi_av(3)).
pub type fi_addr_t = u64;
/// Any object of the API, by its common head.
pub type fid_t = *mut fid;

/// Major version of the API.
pub const FI_MAJOR_VERSION: c_int = 2;
/// Minor version of the API.
pub const FI_MINOR_VERSION: c_int = 6;
/// Not part of the API's version.
pub const FI_REVISION_VERSION: c_int = 0;
/// Capability: message queues.
pub const FI_MSG: u64 = 1 << 1;
/// Capability: remote memory access.
pub const FI_RMA: u64 = 1 << 2;
/// Capability: tagged messages.
pub const FI_TAGGED: u64 = 1 << 3;
/// Capability: atomic operations.
pub const FI_ATOMIC: u64 = 1 << 4;
/// Another name of `FI_ATOMIC`.
pub const FI_ATOMICS: u64 = 1 << 4;
/// Capability and flag: multicast.
pub const FI_MULTICAST: u64 = 1 << 5;
/// Capability and flag: collectives.
pub const FI_COLLECTIVE: u64 = 1 << 6;
/// Reads of remote memory start here.
pub const FI_READ: u64 = 1 << 8;
/// Writes to remote memory start here.
pub const FI_WRITE: u64 = 1 << 9;
/// Receives.
pub const FI_RECV: u64 = 1 << 10;
/// Sends.
pub const FI_SEND: u64 = 1 << 11;
/// Another name of `FI_SEND`, for all transmit operations.
pub const FI_TRANSMIT: u64 = 1 << 11;
/// Peers read this memory.
pub const FI_REMOTE_READ: u64 = 1 << 12;
/// Peers write to this memory.
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
/// One buffer receives many messages.
pub const FI_MULTI_RECV: u64 = 1 << 16;
/// The transfer carries data for the peer's completion.
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// Another request follows; or more data is to come.
pub const FI_MORE: u64 = 1 << 18;
/// Looks for an arrived message without receiving it.
pub const FI_PEEK: u64 = 1 << 19;
/// Capability and flag: triggered operations.
pub const FI_TRIGGER: u64 = 1 << 20;
/// The request waits for those before it to the same peer.
pub const FI_FENCE: u64 = 1 << 21;
/// The request writes a completion.
pub const FI_COMPLETION: u64 = 1 << 24;
/// Another name of `FI_COMPLETION`, for control operations.
pub const FI_EVENT: u64 = 1 << 24;
/// The buffer is free when the call returns.
pub const FI_INJECT: u64 = 1 << 25;
/// Completes when the buffer is free.
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
/// Completes when the transfer no longer depends on this side.
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
/// Completes when the peer's memory has the data.
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
/// The signaling vector is set.
pub const FI_AFFINITY: u64 = 1 << 29;
/// Completes when the data is in persistent memory.
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
/// Completes when the peer has matched the message.
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
/// `fi_getinfo` rescans for devices.
pub const FI_RESCAN: u64 = 1 << 35;
/// The endpoint makes transfers for a peer provider.
pub const FI_PEER_TRANSFER: u64 = 1 << 36;
/// The address vector reports peers by numbers of the program's.
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// The peer is behind a firewall.
pub const FI_FIREWALL_ADDR: u64 = 1 << 42;
/// The object is shared with a peer provider.
pub const FI_PEER: u64 = 1 << 43;
/// Capability: device-side objects.
pub const FI_XPU: u64 = 1 << 44;
/// Capability: tagged receives take one source only.
pub const FI_TAGGED_DIRECTED_RECV: u64 = 1 << 45;
/// Capability: one buffer receives many tagged messages.
pub const FI_TAGGED_MULTI_RECV: u64 = 1 << 46;
/// Capability: device memory.
pub const FI_HMEM: u64 = 1 << 47;
/// Every directed receive names its source.
pub const FI_EXACT_DIRECTED_RECV: u64 = 1 << 48;
/// Capability: remote access to persistent memory.
pub const FI_RMA_PMEM: u64 = 1 << 49;
/// Capability: messages of unknown sources are reported with their address.
pub const FI_SOURCE_ERR: u64 = 1 << 50;
/// Capability: peers on this node.
pub const FI_LOCAL_COMM: u64 = 1 << 51;
/// Capability: peers on other nodes.
pub const FI_REMOTE_COMM: u64 = 1 << 52;
/// Capability: address vectors shared by processes.
pub const FI_SHARED_AV: u64 = 1 << 53;
/// `fi_getinfo` answers with the providers there are.
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
/// The node is an address and is not looked up.
pub const FI_NUMERICHOST: u64 = 1 << 55;
/// Capability: remote accesses are counted at the target.
pub const FI_RMA_EVENT: u64 = 1 << 56;
/// Capability: receives tell their source. Flag: the node is the local one.
pub const FI_SOURCE: u64 = 1 << 57;
/// Capability: a peer's receive contexts are addressed one by one.
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
/// Capability: receives take one source only.
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
/// Takes a message claimed by a peek or announced by a buffered receive.
pub const FI_CLAIM: u64 = 1 << 59;
/// Drops such a message.
pub const FI_DISCARD: u64 = 1 << 58;
/// The address stands for an authorization key.
pub const FI_AUTH_KEY: u64 = 1 << 57;
/// Any peer, or none in particular.
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// No address is known.
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
/// The region has no key.
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// The endpoint uses a shared context, in place of a number of contexts.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;
/// Authorization keys come from the address vector, in place of a size.
pub const FI_AV_AUTH_KEY: u64 = u64::MAX;
/// No requirement is specified.
pub const FI_MR_UNSPEC: c_int = 0;
/// Up to 1.4: virtual addresses, allocated memory, keys of the provider's.
pub const FI_MR_BASIC: c_int = 1;
/// Up to 1.4: no requirement.
pub const FI_MR_SCALABLE: c_int = 2;
/// Local buffers are registered.
pub const FI_MR_LOCAL: c_int = 1 << 2;
/// Keys longer than 64 bits.
pub const FI_MR_RAW: c_int = 1 << 3;
/// Remote memory is addressed by its virtual address.
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
/// Memory has pages behind it when it is registered.
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
/// The provider chooses keys.
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
/// The program reports changes of pages behind a region.
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
/// Regions counting accesses are bound and enabled.
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
/// Regions are bound to an endpoint.
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
/// Device memory is registered.
pub const FI_MR_HMEM: c_int = 1 << 10;
/// Buffers of collectives are registered.
pub const FI_MR_COLLECTIVE: c_int = 1 << 11;
/// Device-side requests take descriptors.
pub const FI_MR_XPU_DESC: c_int = 1 << 12;
/// No order.
pub const FI_ORDER_NONE: u64 = 0;
/// Reads stay behind reads.
pub const FI_ORDER_RAR: u64 = 1 << 0;
/// Reads stay behind writes.
pub const FI_ORDER_RAW: u64 = 1 << 1;
/// Reads stay behind sends.
pub const FI_ORDER_RAS: u64 = 1 << 2;
/// Writes stay behind reads.
pub const FI_ORDER_WAR: u64 = 1 << 3;
/// Writes stay behind writes.
pub const FI_ORDER_WAW: u64 = 1 << 4;
/// Writes stay behind sends.
pub const FI_ORDER_WAS: u64 = 1 << 5;
/// Sends stay behind reads.
pub const FI_ORDER_SAR: u64 = 1 << 6;
/// Sends stay behind writes.
pub const FI_ORDER_SAW: u64 = 1 << 7;
/// Sends stay behind sends.
pub const FI_ORDER_SAS: u64 = 1 << 8;
/// All of these orders.
pub const FI_ORDER_STRICT: u64 = 511;
/// Reads stay behind reads, between RMA operations.
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
/// Reads stay behind writes, between RMA operations.
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
/// Writes stay behind reads, between RMA operations.
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
/// Writes stay behind writes, between RMA operations.
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
/// Reads stay behind reads, between atomics.
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
/// Reads stay behind writes, between atomics.
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
/// Writes stay behind reads, between atomics.
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
/// Writes stay behind writes, between atomics.
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;
/// The bytes of a message are written in order.
pub const FI_ORDER_DATA: u64 = 1 << 16;
/// Mode: contexts have the space of a fi_context.
pub const FI_CONTEXT: u64 = 1 << 59;
/// Mode: buffers start with space for the provider.
pub const FI_MSG_PREFIX: u64 = 1 << 58;
/// Mode: vectors stay as they are until completion.
pub const FI_ASYNC_IOV: u64 = 1 << 57;
/// Mode: completion data takes a posted receive.
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
/// Mode, up to 1.4: local buffers are registered.
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// Mode: contexts have the space of a fi_context2.
pub const FI_CONTEXT2: u64 = 1 << 52;
/// Only requests with `FI_COMPLETION` write a completion.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// Without meaning as of 1.21.
pub const FI_VARIABLE_MSG: u64 = 0;
/// Without meaning as of 1.21.
pub const FI_NOTIFY_FLAGS_ONLY: u64 = 0;
/// Without meaning as of 1.21.
pub const FI_RESTRICTED_COMP: u64 = 0;
/// Without meaning as of 1.21.
pub const FI_EP_SOCK_STREAM: u64 = 0;

// Names that releases removed. Programs written for those releases still use
// them; the library itself gives them no meaning but FI_BUFFERED_RECV.
/// A mode bit, of fi_msg(3) as of 1.7 to 1.22.
pub const FI_BUFFERED_RECV: u64 = 1 << 51;
/// A capability bit of 1.15 to 1.20; the bit is [`FI_XPU`] now.
pub const FI_XPU_TRIGGER: u64 = 1 << 44;
/// A flag of 1.11 to 1.20.
pub const FI_PRIORITY: u64 = 1 << 22;
/// A flag of 1.16.
pub const FI_PEER_CQ: u64 = 1 << 43;
/// A flag of 1.16.
pub const FI_PEER_SRX: u64 = 1 << 42;
/// Start of the range of provider-defined values, up to 1.20.
pub const FI_PROV_SPECIFIC: u32 = 1 << 31;
/// An endpoint type of 1.5 to 1.20.
pub const FI_EP_SOCK_DGRAM: c_int = 5;

unnamed_enum! {
    /// Bounds. Those of operations and datatypes are frozen: newer ones lie beyond them.
    enum {
        /// The length of path names, up to 1.22.
        FI_PATH_MAX = 256,
        /// The length of the name of a provider or a fabric.
        FI_NAME_MAX = 64,
        /// The length of version texts, up to 1.22.
        FI_VERSION_MAX = 64,
        FI_ATOMIC_OP_LAST = 19,
        FI_DATATYPE_LAST = 14,
    }
}

unnamed_enum! {
    /// Address formats.
    enum {
        FI_FORMAT_UNSPEC = 0,
        FI_SOCKADDR = 1,
        FI_SOCKADDR_IN = 2,
        FI_SOCKADDR_IN6 = 3,
        FI_SOCKADDR_IB = 4,
        FI_ADDR_PSMX = 5,
        FI_ADDR_GNI = 6,
        FI_ADDR_BGQ = 7,
        FI_ADDR_MLX = 8,
        FI_ADDR_STR = 9,
        FI_ADDR_PSMX2 = 10,
        FI_ADDR_IB_UD = 11,
        FI_ADDR_EFA = 12,
        FI_ADDR_PSMX3 = 13,
        FI_ADDR_OPX = 14,
        FI_ADDR_CXI = 15,
        FI_ADDR_UCX = 16,
        FI_SOCKADDR_IP = 17,
    }
}

unnamed_enum! {
    /// Wire protocols (fi_endpoint(3)).
    enum {
        FI_PROTO_UNSPEC = 0,
        FI_PROTO_RDMA_CM_IB_RC = 1,
        FI_PROTO_IWARP = 2,
        FI_PROTO_IB_UD = 3,
        FI_PROTO_PSMX = 4,
        FI_PROTO_UDP = 5,
        FI_PROTO_SOCK_TCP = 6,
        FI_PROTO_MXM = 7,
        FI_PROTO_IWARP_RDM = 8,
        FI_PROTO_IB_RDM = 9,
        FI_PROTO_GNI = 10,
        FI_PROTO_RXM = 11,
        FI_PROTO_RXD = 12,
        FI_PROTO_MLX = 13,
        FI_PROTO_NETWORKDIRECT = 14,
        FI_PROTO_PSMX2 = 15,
        FI_PROTO_SHM = 16,
        FI_PROTO_MRAIL = 17,
        FI_PROTO_RSTREAM = 18,
        FI_PROTO_RDMA_CM_IB_XRC = 19,
        FI_PROTO_EFA = 20,
        FI_PROTO_PSMX3 = 21,
        FI_PROTO_RXM_TCP = 22,
        FI_PROTO_OPX = 23,
        FI_PROTO_CXI = 24,
        FI_PROTO_XNET = 25,
        FI_PROTO_COLL = 26,
        FI_PROTO_UCX = 27,
        FI_PROTO_SM2 = 28,
        FI_PROTO_CXI_RNR = 29,
        FI_PROTO_LPP = 30,
        FI_PROTO_LNX = 31,
    }
}

unnamed_enum! {
    /// Tag formats (fi_endpoint(3)).
    enum {
        FI_TAG_BITS = 0,
        FI_TAG_MPI = 1,
        FI_TAG_CCL = 2,
        FI_TAG_MAX_FORMAT = 65536,
    }
}

unnamed_enum! {
    /// Traffic classes (fi_endpoint(3)).
    enum {
        FI_TC_UNSPEC = 0,
        FI_TC_DSCP = 0x100,
        FI_TC_LABEL = 0x200,
        FI_TC_BEST_EFFORT = FI_TC_LABEL,
        FI_TC_LOW_LATENCY = 0x201,
        FI_TC_DEDICATED_ACCESS = 0x202,
        FI_TC_BULK_DATA = 0x203,
        FI_TC_SCAVENGER = 0x204,
        FI_TC_NETWORK_CTRL = 0x205,
    }
}

unnamed_enum! {
    /// Classes of objects, `fid.fclass`.
    enum {
        FI_CLASS_UNSPEC = 0,
        FI_CLASS_FABRIC = 1,
        FI_CLASS_DOMAIN = 2,
        FI_CLASS_EP = 3,
        FI_CLASS_SEP = 4,
        FI_CLASS_RX_CTX = 5,
        FI_CLASS_SRX_CTX = 6,
        FI_CLASS_TX_CTX = 7,
        FI_CLASS_STX_CTX = 8,
        FI_CLASS_PEP = 9,
        FI_CLASS_INTERFACE = 10,
        FI_CLASS_AV = 11,
        FI_CLASS_MR = 12,
        FI_CLASS_EQ = 13,
        FI_CLASS_CQ = 14,
        FI_CLASS_CNTR = 15,
        FI_CLASS_WAIT = 16,
        FI_CLASS_POLL = 17,
        FI_CLASS_CONNREQ = 18,
        FI_CLASS_MC = 19,
        FI_CLASS_NIC = 20,
        FI_CLASS_AV_SET = 21,
        FI_CLASS_MR_CACHE = 22,
        FI_CLASS_MEM_MONITOR = 23,
        FI_CLASS_PEER_CQ = 24,
        FI_CLASS_PEER_SRX = 25,
        FI_CLASS_LOG = 26,
        FI_CLASS_PEER_AV = 27,
        FI_CLASS_PEER_AV_SET = 28,
        FI_CLASS_PEER_CNTR = 29,
        FI_CLASS_PROFILE = 30,
        FI_CLASS_XPU_CTX = 31,
    }
}

unnamed_enum! {
    /// Commands of `fi_control`.
    enum {
        FI_GETFIDFLAG = 0,
        FI_SETFIDFLAG = 1,
        FI_GETOPSFLAG = 2,
        FI_SETOPSFLAG = 3,
        FI_ALIAS = 4,
        FI_GETWAIT = 5,
        FI_ENABLE = 6,
        FI_BACKLOG = 7,
        FI_GET_RAW_MR = 8,
        FI_MAP_RAW_MR = 9,
        FI_UNMAP_KEY = 10,
        FI_QUEUE_WORK = 11,
        FI_CANCEL_WORK = 12,
        FI_FLUSH_WORK = 13,
        FI_REFRESH = 14,
        FI_DUP = 15,
        FI_GETWAITOBJ = 16,
        FI_GET_VAL = 17,
        FI_SET_VAL = 18,
        FI_EXPORT_FID = 19,
        FI_GET_FD = 20,
        FI_GET_MR_XPU_DESC = 21,
    }
}
