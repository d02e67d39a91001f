//! Tests with a sysfs and tables of routes made for them.
use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Host with a sysfs of its own, removed at the end.
struct Host {
    root: PathBuf,
    list: InterfaceList,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Host {
    fn new() -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("ofi-interfaces-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(root.join("class/net")).unwrap();
        fs::create_dir_all(root.join("net")).unwrap();
        let mut host = Self { root, list: InterfaceList::default() };
        host.interface("lo", &["127.0.0.1", "::1"]);
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Adds an interface without a device.
    fn interface(&mut self, name: &str, addrs: &[&str]) {
        let index = self.list.links.len() as i32 + 1;
        let link = Link::for_test(name, index);
        self.write(&format!("class/net/{name}/ifindex"), &format!("{index}\n"));
        self.write(&format!("class/net/{name}/address"), &format!("02:00:00:00:00:{index:02x}\n"));
        self.list.links.push(link);
        self.list.addrs.extend(addrs.iter().map(|ip| InterfaceAddr::for_test(name, ip)));
    }

    /// Adds an interface with a device below a folder, and its files.
    fn card(&mut self, name: &str, addrs: &[&str], device: &str, speed: &str) {
        self.interface(name, addrs);
        let device = self.root.join("devices").join(device);
        fs::create_dir_all(&device).unwrap();
        symlink(&device, self.root.join(format!("class/net/{name}/device"))).unwrap();
        self.write(&format!("class/net/{name}/speed"), speed);
    }

    fn routes(&self, lines: &str) {
        let head =
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        self.write("net/route", &format!("{head}{lines}"));
    }

    fn default_route(&self, interface: &str) {
        self.routes(&format!(
            "{interface}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        ));
    }

    fn interfaces(&self, choice: &str) -> Interfaces {
        Interfaces {
            choice: InterfaceChoice::parse("FI_TCP_IFACE".into(), choice),
            has_pci: true,
            files: SystemFiles::below(&self.root),
            cache: Mutex::default(),
        }
    }

    fn order(&self, choice: &str) -> Vec<String> {
        let usable = self.interfaces(choice).usable_of(&self.list).unwrap();
        usable
            .iter()
            .map(|usable| format!("{} {}", usable.addr.name, usable.addr.addr.ip()))
            .collect()
    }

    fn nic(&self, name: &str) -> Option<Nic> {
        let usable = self.interfaces(name).usable_of(&self.list).unwrap();
        usable.into_iter().next().unwrap().nic
    }
}

const PCI: &str = "pci0000:00/0000:00:03.0";

/// Returns a host with a card, networks of containers and a tunnel.
fn usual_host() -> Host {
    let mut host = Host::new();
    host.card("enp28s0", &["192.168.0.5", "fe80::5"], PCI, "1000\n");
    for (name, addr) in [("docker0", "172.17.0.1"), ("br-3b50", "172.18.0.1")] {
        host.interface(name, &[addr]);
        host.write(&format!("class/net/{name}/speed"), "10000\n");
    }
    host.interface("virbr0", &["192.168.122.1"]);
    host.interface("veth1234", &["fe80::9"]);
    host.interface("tun0", &["100.64.0.1"]);
    host.list.addrs.last_mut().unwrap().is_point_to_point = true;
    host
}

#[test]
fn the_default_route_is_before_devices_and_those_before_networks_of_containers() {
    let mut host = usual_host();
    let behind = [
        "br-3b50 172.18.0.1",
        "docker0 172.17.0.1",
        "virbr0 192.168.122.1",
        "enp28s0 fe80::5",
        "veth1234 fe80::9",
        "lo 127.0.0.1",
        "lo ::1",
    ];
    let expected = |first: &[&str]| {
        first.iter().chain(&behind).map(|text| (*text).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(host.order(""), expected(&["enp28s0 192.168.0.5"]));
    host.card("ib0", &["10.9.0.5", "2001:db8::5"], "pci0000:00/0000:00:04.0", "100000\n");
    host.interface("dummy0", &["10.8.0.5"]);
    let ib = ["ib0 10.9.0.5", "ib0 2001:db8::5"];
    let (card, dummy) = ("enp28s0 192.168.0.5", "dummy0 10.8.0.5");
    assert_eq!(host.order(""), expected(&[ib[0], ib[1], card, dummy]));
    host.default_route("enp28s0");
    assert_eq!(host.order(""), expected(&[card, ib[0], ib[1], dummy]));
    // A container: its interface has no device.
    host.default_route("dummy0");
    assert_eq!(host.order(""), expected(&[dummy, ib[0], ib[1], card]));
}

#[test]
fn the_original_order_goes_by_speed_then_family_then_latest() {
    let host = usual_host();
    host.default_route("enp28s0");
    let expected = [
        "br-3b50 172.18.0.1",
        "docker0 172.17.0.1",
        "enp28s0 192.168.0.5",
        "enp28s0 fe80::5",
        "virbr0 192.168.122.1",
        "veth1234 fe80::9",
        "lo 127.0.0.1",
        "lo ::1",
    ];
    assert_eq!(host.order("original"), expected);
    assert_eq!(host.order("original,^docker0"), [&expected[..1], &expected[2..]].concat());
}

#[test]
fn each_family_has_its_default_route_the_one_of_lowest_metric() {
    let mut host = Host::new();
    host.card("eth0", &["10.0.0.1", "2001:db8::1"], PCI, "1000\n");
    host.card("eth1", &["10.1.0.1", "2001:db8:1::1"], "pci0000:00/0000:00:04.0", "1000\n");
    host.routes(
        "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
         eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
         eth1\t00000000\t0101000A\t0003\t0\t0\t50\t00000000\t0\t0\t0\n\
         *\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n\
         a line of another kind\n",
    );
    let zeros = "0".repeat(32);
    let ipv6 = |prefix: &str, metric: &str, flags: &str, name: &str| {
        format!("{zeros} {prefix} {zeros} 00 {zeros} {metric} 00000001 00000000 {flags} {name}\n")
    };
    host.write(
        "net/ipv6_route",
        &[
            ipv6("40", "00000001", "00000001", "eth1"),
            ipv6("00", "00000400", "00000003", "eth1"),
            ipv6("00", "000000ff", "00000003", "eth0"),
            ipv6("00", "00000000", "00200200", "lo"),
        ]
        .concat(),
    );
    let order = host.order("");
    assert_eq!(order[..2], ["eth1 10.1.0.1", "eth0 2001:db8::1"]);
    // A family without a default route uses that of the other one.
    fs::remove_file(host.root.join("net/route")).unwrap();
    assert_eq!(host.order("")[..2], ["eth0 10.0.0.1", "eth0 2001:db8::1"]);
}

#[test]
fn interface_over_a_device_counts_as_one() {
    let mut host = Host::new();
    host.card("eth0", &[], PCI, "1000\n");
    for (upper, lower) in [("bond0", "eth0"), ("bond0.7", "bond0"), ("br-lan", "eth0")] {
        host.interface(upper, &[]);
        host.write(&format!("class/net/{upper}/bridge/name"), "");
        let target = host.root.join("class/net").join(lower);
        symlink(target, host.root.join(format!("class/net/{upper}/lower_{lower}"))).unwrap();
    }
    host.interface("br0", &[]);
    host.write("class/net/br0/bridge/name", "");
    // A circle of damaged links ends.
    host.interface("loop0", &[]);
    symlink(host.root.join("class/net/loop0"), host.root.join("class/net/loop0/lower_loop0"))
        .unwrap();
    let files = SystemFiles::below(&host.root);
    let kinds: Vec<_> =
        host.list.links.iter().map(|link| files.properties(link, true).kind).collect();
    use InterfaceKind::{Container, Device, Virtual};
    assert_eq!(kinds, [Virtual, Device, Device, Device, Device, Container, Virtual]);
    assert!(files.properties(&host.list.links[2], true).nic.is_none(), "its card is that of eth0");
}

#[test]
fn card_is_described_by_its_files() {
    let mut host = Host::new();
    host.card("eth0", &["10.0.0.1"], "pci0000:3a/0000:3b:01.2", "25000\n");
    for (file, text) in [("vendor", "0x15b3\n"), ("device", "0x1019\n"), ("revision", "0x02\n")] {
        host.write(&format!("devices/pci0000:3a/0000:3b:01.2/{file}"), text);
    }
    let driver = host.root.join("devices/pci0000:3a/0000:3b:01.2/driver");
    symlink("../../../bus/pci/drivers/mlx5_core", driver).unwrap();
    for (file, text) in [("mtu", "9000\n"), ("operstate", "up\n"), ("type", "1\n")] {
        host.write(&format!("class/net/eth0/{file}"), text);
    }
    let nic = host.nic("eth0").unwrap();
    let text = |text: &Option<std::ffi::CString>| text.clone().unwrap().into_string().unwrap();
    let device = &nic.device;
    assert_eq!((text(&device.name), text(&device.driver)), ("eth0".into(), "mlx5_core".into()));
    assert_eq!(
        (text(&device.vendor_id), text(&device.device_id)),
        ("0x15b3".into(), "0x1019".into())
    );
    assert_eq!((text(&device.device_version), &device.firmware), ("0x02".into(), &None));
    let pci = crate::info::nic::Pci { domain_id: 0, bus_id: 0x3b, device_id: 1, function_id: 2 };
    assert_eq!(nic.pci, Some(pci));
    let speed = usize::try_from(25_000_000_000_u64).unwrap_or(usize::MAX);
    assert_eq!((nic.link.mtu, nic.link.speed), (9000, speed));
    assert!(nic.link.state == crate::abi::fi_link_state::FI_LINK_UP);
    assert_eq!(text(&nic.link.address), "02:00:00:00:00:02");
    assert_eq!(text(&nic.link.network_type), "Ethernet");
}

#[test]
fn card_behind_virtio_has_the_address_of_its_parent() {
    let mut host = Host::new();
    host.card("eth0", &["10.0.0.1"], "pci0000:00/0000:00:03.0/virtio2", "-1\n");
    host.write("devices/pci0000:00/0000:00:03.0/vendor", "0x1af4\n");
    host.write("devices/pci0000:00/0000:00:03.0/virtio2/vendor", "0x0001\n");
    host.card("usb0", &["10.0.1.1"], "pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0", "");
    host.write("devices/pci0000:00/0000:00:14.0/vendor", "0x8086\n");
    host.card("vmbus0", &["10.0.2.1"], "LNXSYSTM:00/VMBUS:00/f8615163", "");
    host.write("devices/LNXSYSTM:00/VMBUS:00/f8615163/vendor", "0x1414\n");
    let vendor = |nic: &Nic| nic.device.vendor_id.clone().map(|id| id.into_string().unwrap());
    let nic = host.nic("eth0").unwrap();
    assert_eq!(nic.pci, crate::info::nic::Pci::parse("0000:00:03.0"));
    assert_eq!((vendor(&nic), nic.link.speed, nic.link.mtu), (Some("0x1af4".into()), 0, 0));
    assert!(nic.link.state == crate::abi::fi_link_state::FI_LINK_UNKNOWN);
    // The PCI device is the controller of USB.
    let nic = host.nic("usb0").unwrap();
    assert_eq!((nic.pci, vendor(&nic)), (crate::info::nic::Pci::parse("0000:00:14.0"), None));
    // Cards without PCI.
    let nic = host.nic("vmbus0").unwrap();
    assert_eq!((nic.pci, vendor(&nic)), (None, Some("0x1414".into())));
    assert!(host.nic("lo").is_none());
    // Without a request there is no address on the bus.
    let interfaces = Interfaces { has_pci: false, ..host.interfaces("eth0") };
    let nic = interfaces.usable_of(&host.list).unwrap()[0].nic.clone().unwrap();
    assert_eq!((nic.pci, vendor(&nic)), (None, Some("0x1af4".into())));
}

#[test]
fn sysfs_of_another_namespace_is_not_used() {
    let mut host = usual_host();
    host.default_route("virbr0");
    host.write("class/net/enp28s0/address", "02:00:00:00:00:77\n");
    assert!(host.nic("enp28s0").is_none());
    host.write("class/net/enp28s0/address", "02:00:00:00:00:02\n");
    assert!(host.nic("enp28s0").is_some());
    host.write("class/net/enp28s0/ifindex", "77\n");
    assert!(host.nic("enp28s0").is_none());
    // Without any sysfs and routes.
    fs::remove_dir_all(host.root.join("class")).unwrap();
    fs::remove_dir_all(host.root.join("net")).unwrap();
    let order = host.order("");
    assert_eq!((&*order[0], order.len()), ("enp28s0 192.168.0.5", 8));
    host.list = InterfaceList::default();
    let none = host.interfaces("").usable_of(&host.list);
    assert_eq!(none.err(), Some(NoInterface::NoneUp));
}

#[test]
fn properties_are_read_again_when_the_interfaces_change() {
    let mut host = Host::new();
    host.card("eth0", &["10.0.0.1"], PCI, "1000\n");
    host.write("class/net/eth0/mtu", "1500\n");
    let interfaces = host.interfaces("eth0");
    let mtu = |host: &Host| {
        let usable = interfaces.usable_of(&host.list).unwrap();
        usable[0].nic.as_ref().unwrap().link.mtu
    };
    assert_eq!(mtu(&host), 1500);
    host.write("class/net/eth0/mtu", "9000\n");
    assert_eq!(mtu(&host), 1500, "the properties are read once");
    host.interface("eth1", &[]);
    assert_eq!(mtu(&host), 9000);
    host.write("class/net/eth0/mtu", "1400\n");
    interfaces.rescan();
    assert_eq!(mtu(&host), 1400);
    // Another thread has the properties.
    let locked = interfaces.cache.lock().unwrap();
    host.interface("eth2", &[]);
    host.write("class/net/eth0/mtu", "1300\n");
    assert_eq!(mtu(&host), 1300);
    drop(locked);
    // The interface disappears, or changes its address.
    host.list.addrs.retain(|addr| addr.name != "eth0");
    let none = interfaces.usable_of(&host.list).err();
    let message = "FI_TCP_IFACE: no interface is \"eth0\"; there are: lo 127.0.0.1, lo ::1";
    assert_eq!(none, Some(NoInterface::Chosen(message.into())));
    host.list.addrs.push(InterfaceAddr::for_test("eth0", "10.0.0.9"));
    assert_eq!(interfaces.usable_of(&host.list).unwrap()[0].addr.addr.ip().to_string(), "10.0.0.9");
}

#[test]
fn routes_are_read_again_after_a_moment_or_a_change_of_interfaces() {
    let mut host = Host::new();
    host.card("eth0", &["10.0.0.1"], PCI, "1000\n");
    host.card("eth1", &["10.1.0.1"], "pci0000:00/0000:00:04.0", "1000\n");
    let interfaces = host.interfaces("");
    let first = |host: &Host| interfaces.usable_of(&host.list).unwrap()[0].addr.name.clone();
    host.default_route("eth0");
    assert_eq!(first(&host), "eth0");
    host.default_route("eth1");
    let (since, _) = interfaces.cache.lock().unwrap().routes.clone().unwrap();
    let before = first(&host);
    assert!(before == "eth0" || since.elapsed() >= FRESH, "{before}");
    let Some(past) = since.checked_sub(FRESH) else { return };
    interfaces.cache.lock().unwrap().routes.as_mut().unwrap().0 = past;
    assert_eq!(first(&host), "eth1");
    host.default_route("eth0");
    host.interface("eth2", &[]);
    assert_eq!(first(&host), "eth0");
}

#[test]
fn named_interfaces_have_the_order_of_the_user() {
    let host = usual_host();
    host.default_route("enp28s0");
    assert_eq!(
        host.order("virbr0,192.168.0.0/16,lo"),
        ["virbr0 192.168.122.1", "enp28s0 192.168.0.5", "lo 127.0.0.1", "lo ::1"]
    );
    assert_eq!(host.order("tun*"), ["tun0 100.64.0.1"]);
    assert_eq!(host.order("::/0"), ["enp28s0 fe80::5", "veth1234 fe80::9", "lo ::1"]);
    let none = host.interfaces("^*").usable_of(&host.list).err();
    let Some(NoInterface::Chosen(message)) = none else { panic!("{none:?}") };
    assert!(
        message.starts_with("FI_TCP_IFACE excludes all interfaces; there are: lo "),
        "{message}"
    );
}

#[test]
fn explanation_has_a_line_for_each_address() {
    let host = usual_host();
    host.default_route("enp28s0");
    let interfaces = host.interfaces("");
    let usable = interfaces.usable_of(&host.list).unwrap();
    let lines = interfaces.explain_of(&usable, &host.list);
    assert_eq!(lines.len(), host.list.addrs.len());
    assert_eq!(lines[0], "interface 1: enp28s0 192.168.0.5: the interface with the default route");
    assert!(lines[2].starts_with("interface 3: docker0 172.17.0.1: a network of containers"));
    assert_eq!(
        lines[8],
        "interface tun0 100.64.0.1 is not used: a point-to-point interface not named in FI_TCP_IFACE"
    );
    let interfaces = host.interfaces("^docker0");
    let usable = interfaces.usable_of(&host.list).unwrap();
    let lines = interfaces.explain_of(&usable, &host.list);
    assert!(
        lines.contains(&"interface docker0 172.17.0.1 is not used: not in FI_TCP_IFACE".into())
    );
}

#[test]
fn a_wildcard_address_is_named_by_the_best_one_of_its_family() {
    let addrs = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let ours: Vec<SocketAddr> =
        addrs(&["[fe80::1]:0", "192.0.2.1:0", "[2001:db8::1]:0", "127.0.0.1:0", "[::1]:0"]);
    let best = |like: &str| best_of_family(ours.iter().copied(), &like.parse().unwrap());
    assert_eq!(best("0.0.0.0:1"), Some(ours[1]));
    assert_eq!(best("[::]:1"), Some(ours[2]));
    assert_eq!(
        best_of_family(ours[..1].iter().copied(), &"[::]:1".parse().unwrap()),
        Some(ours[0])
    );
    assert_eq!(best_of_family(ours[..1].iter().copied(), &"0.0.0.0:1".parse().unwrap()), None);
    let (interfaces, bound) = (Interfaces::default(), "192.0.2.7:5".parse().unwrap());
    assert_eq!(interfaces.address_for_peers(bound), bound);
    let named = interfaces.address_for_peers("0.0.0.0:5".parse().unwrap());
    assert_eq!(named.port(), 5);
    let lo = Interfaces::new(InterfaceChoice::parse(String::new(), "lo"), false);
    assert_eq!(lo.address_for_peers("0.0.0.0:5".parse().unwrap()), "127.0.0.1:5".parse().unwrap());
}

#[test]
fn this_host_has_an_order() {
    let interfaces = Interfaces::default();
    let usable = interfaces.usable().unwrap();
    assert!(usable.iter().any(|usable| usable.addr.is_loopback()));
    assert!(!interfaces.explain(&usable).is_empty());
    assert!(Path::new("/proc/thread-self/net/route").exists());
}
