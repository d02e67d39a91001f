//! Capabilities of a device, and its addresses.
use crate::affinity::{NumaNode, nearest_first};
use crate::config::{VerbsConfig, config};
use crate::raw;
use crate::sys::{CompChannel, HwCq, Pd, QpSpec, VerbsDevice};
use ofi_provider::abi::*;
use ofi_provider::addr::Addr;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::Result;
use ofi_provider::info::ib::IbAddr;
use ofi_provider::info::nic::{self, Nic};
use ofi_provider::info::{InfoBuf, OfferTemplate, ProviderOffer};
use ofi_provider::param;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CString;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Capabilities of an endpoint, except for atomic operations.
const MSG_CAPS: u64 =
    FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const TX_CAPS: u64 = FI_MSG | FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_SEND;
const RX_CAPS: u64 = FI_MSG | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Message order of a reliable connection.
const MSG_ORDER: u64 = FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_RAS
    | FI_ORDER_WAW
    | FI_ORDER_WAS
    | FI_ORDER_SAW
    | FI_ORDER_SAS
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAW;
const MR_MODE: i32 = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Bytes of immediate data.
const CQ_DATA_SIZE: usize = 4;
/// Maximum contexts of a domain.
pub(crate) const CONTEXTS: usize = 1024;
/// Maximum bytes of stored error data.
const MAX_ERR_DATA: usize = 255;

/// A device as fi_getinfo(3) shows it.
pub(crate) struct DeviceAttributes {
    pub(crate) device: VerbsDevice,
    pub(crate) offer: ProviderOffer,
    /// Attributes of datagram endpoints, if the device has them.
    pub(crate) datagrams: Option<ProviderOffer>,
    /// Attributes of endpoints with buffers in accelerator memory (FI_HMEM), if the device reaches
    /// it.
    pub(crate) hmem: Option<ProviderOffer>,
    pub(crate) nic: Nic,
    pub(crate) fabric: CString,
}

/// Devices and their addresses, as reported by fi_getinfo(3).
pub(crate) struct KnownDevices {
    pub(crate) attributes: Vec<DeviceAttributes>,
    locals: Vec<LocalDevice>,
    since: Instant,
}

/// Lifetime of the cached devices before the system is queried again.
const FRESH: Duration = Duration::from_secs(1);

/// Returns devices and addresses, cached for a moment, or read now if `anew`. Devices left out are
/// passed to `report`.
pub(crate) fn known(
    anew: bool,
    report: &dyn Fn(&str),
) -> MutexGuard<'static, Option<KnownDevices>> {
    static KNOWN: Mutex<Option<KnownDevices>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if anew || known.as_ref().is_none_or(|known| known.since.elapsed() > FRESH) {
        let (attributes, locals) = (all(report), locals());
        *known = Some(KnownDevices { attributes, locals, since: Instant::now() });
    }
    known
}

impl KnownDevices {
    /// Returns the local addresses of devices, in the system's order.
    pub(crate) fn locals(&self) -> &[LocalDevice] {
        &self.locals
    }

    /// Returns the device with this local address.
    pub(crate) fn device_of(&self, addr: &Addr) -> Option<VerbsDevice> {
        let found = self.locals.iter().find(|local| local.addr.is_same_host(addr));
        found.map(|local| local.device).or_else(|| match addr {
            Addr::Ip(addr) => VerbsDevice::of_address(addr),
            _ => None,
        })
    }

    /// Returns the local source address of a connection to `dest`.
    pub(crate) fn source_for(&self, dest: &Addr) -> Option<Addr> {
        match dest {
            Addr::Ip(dest) => route(dest).map(Addr::Ip),
            _ => {
                let mut addrs = self.locals.iter().map(|local| &local.addr);
                addrs.find(|local| local.may_share_memory(dest)).cloned()
            }
        }
    }
}

/// Returns the working devices permitted by the user; others are passed to `report`.
fn all(report: &dyn Fn(&str)) -> Vec<DeviceAttributes> {
    let config = config();
    let wanted = |device: &&VerbsDevice| config.devices.take(&device.name().to_string_lossy());
    let attributes = |device: &VerbsDevice| {
        DeviceAttributes::of(*device, config)
            .inspect_err(|error| report(&format!("device {:?} left out: {error}", device.name())))
            .ok()
    };
    let mut all: Vec<DeviceAttributes> =
        VerbsDevice::all().iter().filter(wanted).filter_map(attributes).collect();
    if let Some(near) = &config.near {
        nearest_first(&mut all, near, |attributes| {
            NumaNode::of(&bus(attributes.device)).unwrap_or_default()
        });
    }
    all
}

fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

impl DeviceAttributes {
    fn of(device: VerbsDevice, config: &VerbsConfig) -> Result<Self> {
        let (attr, port) = (device.attr()?, device.port(1)?);
        let iwarp = device.is_iwarp();
        let atomics = has_atomics(&attr);
        let caps = MSG_CAPS | DOMAIN_CAPS | if atomics { FI_ATOMIC } else { 0 };
        let segments = |limit: usize| limit.min(count(attr.max_sge)).clamp(1, IOV_LIMIT);
        let (tx_iov, rx_iov) = (segments(config.tx_iov_limit), segments(config.rx_iov_limit));
        let (tx_size, rx_size) = (
            config.tx_size.clamp(1, count(attr.max_qp_wr).max(1)),
            config.rx_size.clamp(1, count(attr.max_qp_wr).max(1)),
        );
        let inline = |datagrams| inline_size(device, config.inline_size, tx_iov as u32, datagrams);
        let inject = inline(false)?.unwrap_or(0);

        // A receiver's device acknowledges what it has placed.
        let delivery = if iwarp { 0 } else { FI_DELIVERY_COMPLETE };
        let tx_op_flags = FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE;
        let max_msg_size = port.max_msg_sz as usize;
        let mut offer = OfferTemplate {
            ep_type: fi_ep_type::FI_EP_MSG,
            protocol: if iwarp { FI_PROTO_IWARP } else { FI_PROTO_RDMA_CM_IB_RC } as u32,
            caps,
            directed_caps: [TX_CAPS, RX_CAPS],
            domain_caps: DOMAIN_CAPS,
            op_flags: [tx_op_flags | delivery, FI_COMPLETION],
            msg_order: [MSG_ORDER; 2],
            inject_size: inject,
            max_sizes: [count(attr.max_qp_wr); 2],
            sizes: [tx_size, rx_size],
            iov_limits: [tx_iov, rx_iov],
            rma_iov_limit: 1,
            max_msg_size,
            max_order_sizes: [max_msg_size, 0, max_msg_size],
            ep_cnt: count(attr.max_qp),
            cq_cnt: count(attr.max_cq),
            mr_mode: MR_MODE,
            mr_key_size: size_of::<u32>(),
            mr_iov_limit: 1,
            cq_data_size: if iwarp { 0 } else { CQ_DATA_SIZE },
            ..OfferTemplate::default()
        }
        .build()?;
        offer.most.edit_domain(|domain| {
            domain.tx_ctx_cnt = CONTEXTS.min(count(attr.max_qp));
            domain.rx_ctx_cnt = CONTEXTS.min(count(attr.max_qp));
            domain.max_ep_srx_ctx = count(attr.max_srq);
            domain.max_err_data = MAX_ERR_DATA;
            domain.mr_cnt = count(attr.max_mr);
        });
        let most = &offer.most;
        let datagrams = match inline(true)? {
            Some(inline) => {
                let most = of_datagrams(most.as_ref().to_owned()?, inline, mtu(&port));
                Some(ProviderOffer { most, tx_size, rx_size, costly_order: 0 })
            }
            None => None,
        };
        let hmem = match reaches_accelerators(device)? {
            true => Some(ProviderOffer {
                most: of_hmem(most.as_ref().to_owned()?),
                tx_size,
                rx_size,
                costly_order: 0,
            }),
            false => None,
        };
        let fabric = fabric_name(device, config.gid_idx.unwrap_or(0).into())?;
        Ok(Self { device, offer, datagrams, hmem, nic: card(device, &attr, &port), fabric })
    }
}

/// Bytes of a packet.
pub(crate) fn mtu(port: &raw::ibv_port_attr) -> usize {
    128 << port.active_mtu.min(8)
}

/// Returns true if the device's atomic operations are atomic for all of its users.
pub(crate) fn has_atomics(attr: &raw::ibv_device_attr) -> bool {
    attr.atomic_cap != raw::ibv_atomic_cap::IBV_ATOMIC_NONE
}

/// Cached answers of devices to queries, by device name.
type Answers<Q, A> = BTreeMap<(CString, Q), A>;

/// Returns a device's answer to a slow query, made only once.
fn ask_once<Q: Ord, A: Copy>(
    answers: &Mutex<Answers<Q, A>>,
    device: VerbsDevice,
    question: Q,
    ask: impl FnOnce() -> Result<A>,
) -> Result<A> {
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    match answers.entry((device.name().to_owned(), question)) {
        Entry::Occupied(known) => Ok(*known.get()),
        Entry::Vacant(new) => Ok(*new.insert(ask()?)),
    }
}

/// Returns the maximum inline bytes of a device, up to `most`; none if it has no such queue pairs.
/// The number is found by probing such queue pairs, once for each device.
fn inline_size(
    device: VerbsDevice,
    most: usize,
    segments: u32,
    datagrams: bool,
) -> Result<Option<usize>> {
    static KNOWN: Mutex<Answers<bool, Option<usize>>> = Mutex::new(Answers::new());
    ask_once(&KNOWN, device, datagrams, || {
        let (pd, comp) = (Pd::new(device)?, CompChannel::new(device)?);
        let cq = HwCq::new(device, 2, &comp)?;
        let possible = |inline: usize| {
            let spec = QpSpec {
                cq: &cq,
                srq: None,
                sends: 1,
                recvs: 1,
                send_segments: segments,
                recv_segments: 1,
                inline: inline as u32,
                datagrams,
            };
            spec.is_possible(&pd)
        };
        Ok(possible(0).then(|| largest(most, possible)))
    })
}

/// Returns the largest possible number up to `most`; 0 is always possible.
fn largest(most: usize, possible: impl Fn(usize) -> bool) -> usize {
    if possible(most) {
        return most;
    }
    let (mut good, mut bad) = (0, most);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        *(if possible(middle) { &mut good } else { &mut bad }) = middle;
    }
    good
}

/// Returns true if a device is permitted and able to use accelerator memory, through dma-buf files.
/// Each device is queried once.
fn reaches_accelerators(device: VerbsDevice) -> Result<bool> {
    static KNOWN: Mutex<Answers<(), bool>> = Mutex::new(Answers::new());
    if param::core_boolean(c"hmem_disable_p2p") == Some(true) {
        return Ok(false);
    }
    ask_once(&KNOWN, device, (), || device.has_dmabuf())
}

/// Returns the attributes of endpoints with buffers in accelerator memory, derived from `most` of
/// others: only the operations of the device without any access by the processor.
fn of_hmem(mut most: InfoBuf) -> InfoBuf {
    let caps = |caps: u64| (caps | FI_HMEM) & !FI_ATOMIC;
    most.set_caps(caps(most.caps()));
    let tx = most.tx_mut();
    tx.caps = caps(tx.caps);
    tx.op_flags &= !FI_INJECT;
    tx.inject_size = 0;
    let rx = most.rx_mut();
    rx.caps = caps(rx.caps);
    most.edit_domain(|domain| domain.mr_mode |= FI_MR_HMEM);
    most
}

/// Bytes before a received datagram, filled by the device with the network header (FI_MSG_PREFIX).
/// Sent datagrams have none, as declared by the mode of `tx_attr`.
const PREFIX: usize = 40;

/// Returns the attributes of datagram endpoints, derived from `most` of connected ones.
fn of_datagrams(mut most: InfoBuf, inline: usize, mtu: usize) -> InfoBuf {
    const OTHERS: u64 = FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    most.set_caps(most.caps() & !OTHERS);
    most.set_mode(FI_MSG_PREFIX);
    let tx = most.tx_mut();
    tx.caps &= !OTHERS;
    // There is no report of what became of a datagram.
    tx.op_flags &= !FI_DELIVERY_COMPLETE;
    tx.inject_size = inline;
    let rx = most.rx_mut();
    rx.caps &= !OTHERS;
    rx.mode = FI_MSG_PREFIX;
    most.edit_ep(|ep| {
        ep.r#type = fi_ep_type::FI_EP_DGRAM.into();
        ep.protocol = FI_PROTO_IB_UD as u32;
        ep.max_msg_size = mtu;
        ep.msg_prefix_size = PREFIX;
        ep.max_order_raw_size = mtu;
        ep.max_order_waw_size = mtu;
    });
    most
}

/// Returns the fabric name: a fabric is the set of reachable peers, a subnet, or anything on
/// Ethernet.
fn fabric_name(device: VerbsDevice, gid_idx: i32) -> Result<CString> {
    if device.is_iwarp() {
        return Ok(c"Ethernet-iWARP".into());
    }
    let gid = device.gid(1, gid_idx)?;
    let prefix =
        u64::from_be_bytes([gid[0], gid[1], gid[2], gid[3], gid[4], gid[5], gid[6], gid[7]]);
    Ok(CString::new(format!("IB-{prefix:#x}")).unwrap_or_default())
}

/// Bits per second of a port (InfiniBand's codes of speed and width).
fn speed(port: &raw::ibv_port_attr) -> usize {
    const MEGA: usize = 1_000_000;
    let multiple = match port.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let single = match port.active_speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    multiple * single * MEGA
}

/// Returns the link in sysfs to the bus of a device.
fn bus(device: VerbsDevice) -> PathBuf {
    Path::new(&*device.path().to_string_lossy()).join("device")
}

fn card(device: VerbsDevice, attr: &raw::ibv_device_attr, port: &raw::ibv_port_attr) -> Nic {
    let text = |text: String| CString::new(text).ok();
    let bus = std::fs::canonicalize(bus(device));
    let firmware: Vec<u8> =
        attr.fw_ver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    Nic {
        device: nic::NicDevice {
            name: Some(device.name().to_owned()),
            device_id: text(format!("{:#06x}", attr.vendor_part_id)),
            device_version: text(attr.hw_ver.to_string()),
            vendor_id: text(format!("{:#08x}", attr.vendor_id)),
            driver: None,
            firmware: CString::new(firmware).ok(),
        },
        pci: bus.ok().and_then(|path| nic::Pci::parse(path.file_name()?.to_str()?)),
        link: nic::NicLink {
            address: None,
            mtu: mtu(port),
            speed: speed(port),
            state: match port.state {
                raw::ibv_port_state::IBV_PORT_ACTIVE => fi_link_state::FI_LINK_UP.into(),
                raw::ibv_port_state::IBV_PORT_NOP => fi_link_state::FI_LINK_UNKNOWN.into(),
                _ => fi_link_state::FI_LINK_DOWN.into(),
            },
            network_type: Some(
                match port.link_layer {
                    ETHERNET => c"Ethernet",
                    _ => c"InfiniBand",
                }
                .into(),
            ),
        },
    }
}

const ETHERNET: u8 = raw::ibv_link_layer::IBV_LINK_LAYER_ETHERNET as u8;

/// Local address with its device.
#[derive(Clone, Debug)]
pub(crate) struct LocalDevice {
    pub(crate) addr: Addr,
    pub(crate) device: VerbsDevice,
}

/// Returns the local addresses of devices, in the system's order: those of interfaces, followed by
/// those of InfiniBand ports.
fn locals() -> Vec<LocalDevice> {
    let ifaces = &config().ifaces;
    let mut found: Vec<LocalDevice> = Vec::new();
    for (name, addr) in ofi_provider::info::ip::interfaces() {
        if addr.ip().is_loopback() || !ifaces.take(&name) {
            continue;
        }
        if let Some(device) = VerbsDevice::of_address(&addr) {
            found.push(LocalDevice { addr: Addr::Ip(addr), device });
        }
    }
    if ifaces.is_all() {
        // InfiniBand addresses belong to no interface.
        found.extend(VerbsDevice::all().iter().flat_map(|device| ib_locals(*device)));
    }
    found
}

/// The addresses of a device's ports as librdmacm knows them by itself. Nothing can be
/// reached by those of iWARP.
fn ib_locals(device: VerbsDevice) -> Vec<LocalDevice> {
    let gids = if device.is_iwarp() { Vec::new() } else { device.gids() };
    let local = |(port, gid)| {
        let pkey = device.pkey(port, 0).ok()?;
        let addr = IbAddr { scope: port.into(), ..IbAddr::new(gid, pkey) };
        Some(LocalDevice { addr: Addr::Ib(addr), device })
    };
    gids.into_iter().filter_map(local).collect()
}

/// Returns the device's source address used by the system to reach `dest`, or any of its addresses
/// in this format.
pub(crate) fn source_of(device: VerbsDevice, dest: Option<&Addr>, format: u32) -> Option<Addr> {
    if let Some(Addr::Ip(dest)) = dest {
        if let Some(source) = route(dest) {
            if VerbsDevice::of_address(&source) == Some(device) {
                return Some(Addr::Ip(source));
            }
        }
    }
    let same = |local: &LocalDevice| {
        local.device == device
            && local.addr.is_of(format)
            && dest.is_none_or(|dest| local.addr.may_share_memory(dest))
    };
    locals().into_iter().find(same).map(|local| local.addr)
}

/// Returns the source address used by the system to reach `dest`, without a port.
fn route(dest: &SocketAddr) -> Option<SocketAddr> {
    let any: IpAddr = match dest {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Sends nothing. Any port serves.
    let port = if dest.port() == 0 { 9 } else { dest.port() };
    let mut dest = *dest;
    dest.set_port(port);
    socket.connect(dest).ok()?;
    let mut source = socket.local_addr().ok()?;
    source.set_port(0);
    Some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_finds_the_largest_supported_size() {
        for most in [0, 1, 2, 79, 80, 81, 256] {
            assert_eq!(largest(most, |size| size <= 80), most.min(80));
        }
        assert_eq!(largest(256, |size| size == 0), 0);
    }

    #[test]
    fn route_to_a_local_address_uses_it_as_source() {
        let addr: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(route(&addr).map(|addr| addr.ip()), Some(addr.ip()));
    }
}
