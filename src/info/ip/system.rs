//! Properties of interfaces in sysfs and procfs: devices behind them, their cards, and default routes.
use super::list::Link;
use crate::abi::fi_link_state;
use crate::info::nic::{Nic, NicDevice, NicLink, Pci};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Assumed link speed if unknown, in Mbit/s: a modest one.
pub(super) const UNKNOWN_SPEED: u64 = 100;

/// Folders of the kernel's files.
#[derive(Debug)]
pub(super) struct SystemFiles {
    /// Folder with an entry for each interface.
    interfaces: PathBuf,
    /// Folder with the files of routes.
    routes: PathBuf,
}

impl Default for SystemFiles {
    fn default() -> Self {
        // A thread may be in another network namespace than its process.
        Self { interfaces: "/sys/class/net".into(), routes: "/proc/thread-self/net".into() }
    }
}

/// Kind of an interface, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum InterfaceKind {
    /// It has a device, or uses an interface with one, as bonds, VLANs and some bridges do.
    Device,
    /// It exists in software only.
    Virtual,
    /// It leads to containers or virtual machines of this host.
    Container,
}

/// Properties of an interface.
#[derive(Clone, Debug)]
pub(super) struct LinkProperties {
    pub(super) kind: InterfaceKind,
    /// Link speed in Mbit/s.
    pub(super) speed: u64,
    /// Card of an interface with a device of its own, if requested.
    pub(super) nic: Option<Nic>,
}

impl Default for LinkProperties {
    fn default() -> Self {
        Self { kind: InterfaceKind::Virtual, speed: UNKNOWN_SPEED, nic: None }
    }
}

/// Beginnings of the names of interfaces made for containers and virtual machines.
const CONTAINER_NAMES: [&str; 15] = [
    "docker", "br-", "virbr", "veth", "vnet", "cni", "cali", "cilium", "flannel", "kube", "lxc",
    "lxdbr", "podman", "nerdctl", "tap",
];

/// Maximum depth of interfaces over interfaces, as a VLAN over a bond over a card.
const MAX_DEPTH: usize = 4;

impl SystemFiles {
    #[cfg(test)]
    pub(super) fn below(root: &Path) -> Self {
        Self { interfaces: root.join("class/net"), routes: root.join("net") }
    }

    /// Returns the properties of an interface. Unknown ones have their default, for example without a
    /// sysfs, or with one of another network namespace. The address of its card on
    /// the bus is read only on request.
    pub(super) fn properties(&self, link: &Link, has_pci: bool) -> LinkProperties {
        let folder = self.interfaces.join(&link.name);
        let is_container = CONTAINER_NAMES.iter().any(|begin| link.name.starts_with(begin));
        if !is_entry_of(&folder, link) {
            let usual = LinkProperties::default();
            let kind = if is_container { InterfaceKind::Container } else { usual.kind };
            return LinkProperties { kind, ..usual };
        }
        let device = fs::canonicalize(folder.join("device")).ok();
        let kind = match () {
            () if device.is_some() || self.has_lower_device(&folder, MAX_DEPTH) => {
                InterfaceKind::Device
            }
            () if is_container || folder.join("bridge").is_dir() => InterfaceKind::Container,
            () => InterfaceKind::Virtual,
        };
        // Reads "-1" or fails to read for interfaces without a speed.
        let speed = number(&folder, "speed");
        LinkProperties {
            kind,
            speed: speed.unwrap_or(UNKNOWN_SPEED),
            nic: device.map(|device| {
                let card = card(&folder, &device, link, speed);
                Nic { pci: card.pci.filter(|_| has_pci), ..card }
            }),
        }
    }

    /// Returns true if an interface uses one with a device, at most so many interfaces below.
    fn has_lower_device(&self, folder: &Path, depth: usize) -> bool {
        let Ok(entries) = fs::read_dir(folder) else { return false };
        let lower = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(self.interfaces.join(name.strip_prefix("lower_")?))
        });
        let has_device = |lower: PathBuf| {
            lower.join("device").exists() || (depth > 1 && self.has_lower_device(&lower, depth - 1))
        };
        lower.into_iter().any(has_device)
    }

    /// Reads the default routes of the main routing table.
    pub(super) fn default_routes(&self) -> DefaultRoutes {
        let read = |name| read_text(&self.routes.join(name), MAX_ROUTES);
        DefaultRoutes {
            ipv4: best_route(read("route").lines().filter_map(parse_route)),
            ipv6: best_route(read("ipv6_route").lines().filter_map(parse_ipv6_route)),
        }
    }
}

/// Interfaces with the default route of each family.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct DefaultRoutes {
    ipv4: Option<String>,
    ipv6: Option<String>,
}

impl DefaultRoutes {
    /// Returns the interface with the default route of a family, or else of the other one.
    pub(super) fn interface(&self, is_ipv4: bool) -> Option<&str> {
        let (own, other) =
            if is_ipv4 { (&self.ipv4, &self.ipv6) } else { (&self.ipv6, &self.ipv4) };
        own.as_deref().or(other.as_deref())
    }
}

/// Maximum bytes of a table of routes to read. Default routes are among the first.
const MAX_ROUTES: u64 = 64 * 1024;

/// Returns the interface of the route with the lowest metric, the first of equal ones.
fn best_route(routes: impl Iterator<Item = (u32, String)>) -> Option<String> {
    routes.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

/// Flags of a route (linux/route.h): usable, and rejecting.
const RTF_UP: u32 = 1;
const RTF_REJECT: u32 = 0x200;

fn is_usable(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & (RTF_UP | RTF_REJECT) == RTF_UP)
}

/// Parses a line of /proc/net/route. Returns metric and interface of a default route.
fn parse_route(line: &str) -> Option<(u32, String)> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [interface, destination, _, flags, _, _, metric, mask, ..] = words[..] else { return None };
    let is_default = destination == "00000000" && mask == "00000000" && is_usable(flags);
    if is_default { Some((metric.parse().ok()?, interface.to_owned())) } else { None }
}

/// Parses a line of /proc/net/ipv6_route. Returns metric and interface of a default route.
fn parse_ipv6_route(line: &str) -> Option<(u32, String)> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let [destination, prefix, _, source, _, metric, _, _, flags, interface] = words[..] else {
        return None;
    };
    let is_any = |text: &str| text.bytes().all(|byte| byte == b'0');
    let is_default = is_any(destination) && is_any(prefix) && is_any(source) && is_usable(flags);
    if !is_default {
        return None;
    }
    Some((u32::from_str_radix(metric, 16).ok()?, interface.to_owned()))
}

/// Returns at most `max` bytes of a file; an empty text if it cannot be read.
fn read_text(path: &Path, max: u64) -> String {
    // Most files fit, so one call reads them.
    let mut bytes = Vec::with_capacity(2048);
    // An error, as of a file without a value, ends the text.
    let _ = File::open(path).and_then(|file| file.take(max).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Maximum bytes of a file of sysfs with a single value.
const MAX_VALUE: u64 = 256;

/// Returns the value in a file of sysfs.
fn value(folder: &Path, name: &str) -> Option<String> {
    let text = read_text(&folder.join(name), MAX_VALUE);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the number in a file of sysfs; none if it is negative.
fn number(folder: &Path, name: &str) -> Option<u64> {
    value(folder, name)?.parse().ok()
}

/// Returns true if a folder of sysfs belongs to this very interface. The folder of another network
/// namespace may have an interface of the same name.
fn is_entry_of(folder: &Path, link: &Link) -> bool {
    let index = number(folder, "ifindex");
    if index != u64::try_from(link.index).ok() {
        return false;
    }
    let hardware = value(folder, "address").unwrap_or_default();
    let own: Vec<_> = link.hardware.iter().map(|byte| format!("{byte:02x}")).collect();
    // The kernel's list has only the beginning of long addresses, as those of InfiniBand.
    hardware.starts_with(&own.join(":"))
}

/// Returns the card of an interface: `folder` is its entry in sysfs, `device` the one of its device.
fn card(folder: &Path, device: &Path, link: &Link, speed: Option<u64>) -> Nic {
    let text = |text: Option<String>| text.and_then(|text| CString::new(text).ok());
    // The address on the bus is that of the device itself, or of its parent, as with virtio.
    let on_bus =
        device.ancestors().find_map(|at| Some((at, Pci::parse(at.file_name()?.to_str()?)?)));
    let is_usb = device.iter().any(|name| name.to_string_lossy().starts_with("usb"));
    // A controller of USB is another device.
    let described = on_bus.filter(|_| !is_usb).map_or(device, |(at, _)| at);
    let driver = fs::read_link(device.join("driver")).ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let network_type = match number(folder, "type").and_then(|kind| u16::try_from(kind).ok()) {
        Some(libc::ARPHRD_ETHER) => Some(c"Ethernet".into()),
        Some(libc::ARPHRD_INFINIBAND) => Some(c"InfiniBand".into()),
        _ => None,
    };
    Nic {
        device: NicDevice {
            name: text(Some(link.name.clone())),
            device_id: text(value(described, "device")),
            device_version: text(value(described, "revision")),
            vendor_id: text(value(described, "vendor")),
            driver: text(driver),
            firmware: None,
        },
        pci: on_bus.map(|(_, pci)| pci),
        link: NicLink {
            address: text(value(folder, "address")),
            mtu: number(folder, "mtu").and_then(|mtu| usize::try_from(mtu).ok()).unwrap_or(0),
            // With addresses of 32 bits, the number ends below 4.3 Gbit/s.
            speed: usize::try_from(speed.unwrap_or(0).saturating_mul(1_000_000))
                .unwrap_or(usize::MAX),
            state: match value(folder, "operstate").as_deref() {
                Some("up") => fi_link_state::FI_LINK_UP.into(),
                Some("unknown") | None => fi_link_state::FI_LINK_UNKNOWN.into(),
                Some(_) => fi_link_state::FI_LINK_DOWN.into(),
            },
            network_type,
        },
    }
}
