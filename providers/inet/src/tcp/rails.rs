//! Parameters of connections with several sockets (FI_TCP_STREAMS, FI_TCP_RAILS, fi_tcp(7)).
use crate::plug_in::variable;
use ipnet::IpNet;
use ofi_provider::info::ip::interfaces;
use ofi_provider::param;
use ofi_provider::provider::Provider;
use ofi_stream::settings::RailSettings;
use std::net::{IpAddr, SocketAddr};

/// Minimum and maximum of FI_TCP_RESUME_MEMORY.
const RESUME_MEMORY_MIN: usize = 64 << 10;
const RESUME_MEMORY_MAX: usize = 1 << 30;

/// Number of sockets in a network with a limited rate of each.
const AUTO_STREAMS: usize = 8;

/// PCI vendors of virtual network cards with a limited rate of each socket: Amazon, Google.
const LIMITING_VENDORS: [&str; 2] = ["0x1d0f", "0x1ae0"];

/// Reads the user's choice from parameters of this provider. The call declares them to the core.
pub(super) fn read(prov: &'static Provider) -> RailSettings {
    let usual = RailSettings::default();
    let streams = param::string(
        prov,
        c"streams",
        c"number of sockets of a connection with much traffic, 1 to 16, or \"auto\": 8 where \
          the network limits the rate of a socket; both peers need more than 1 (1)",
    );
    let rails = param::string(
        prov,
        c"rails",
        c"local addresses for the sockets of a connection: names of interfaces and networks \
          (192.0.2.0/24), with commas; one socket for each at least",
    );
    let threshold = param::size(
        prov,
        c"streams_threshold",
        usual.threshold as usize,
        c"bytes of traffic in 100 ms from which on a connection gets more sockets; 0: at once \
          (1048576)",
    );
    let resume = param::int(
        prov,
        c"resume",
        c"seconds to reconnect to a peer after a lost connection, and continue without loss; both \
          peers need it; 0: operations fail at once (0)",
    );
    let resume_memory = param::size(
        prov,
        c"resume_memory",
        usual.resume_memory,
        c"bytes stored per peer for sending them again after a lost connection; 64 times as much \
          for all peers (4194304)",
    );
    let addrs = rails.map_or_else(Vec::new, |text| parse_rails(prov, &text, &interfaces()));
    RailSettings {
        streams: streams.map_or(usual.streams, |text| parse_streams(prov, &text)),
        addrs,
        threshold: threshold as u64,
        resume: resume.map_or(usual.resume, |seconds| parse_resume(prov, seconds)),
        resume_memory: resume_memory.clamp(RESUME_MEMORY_MIN, RESUME_MEMORY_MAX),
        ..usual
    }
}

/// Checks FI_TCP_RESUME.
fn parse_resume(prov: &'static Provider, seconds: i32) -> u32 {
    u32::try_from(seconds).unwrap_or_else(|_| {
        ofi_provider::log!(
            prov,
            WARN,
            DOMAIN,
            "{}: {seconds} is less than 0; lost connections are not resumed",
            variable(c"resume")
        );
        0
    })
}

/// Parses FI_TCP_STREAMS.
fn parse_streams(prov: &'static Provider, text: &str) -> usize {
    match text.trim() {
        "auto" if is_rate_limited() => AUTO_STREAMS,
        "auto" => 1,
        number => match number.parse() {
            Ok(number @ 1..=RailSettings::MAX) => number,
            _ => {
                ofi_provider::log!(
                    prov,
                    WARN,
                    DOMAIN,
                    "{}: \"{text}\" is neither \"auto\" nor a number from 1 to {}; \
                     connections have one socket",
                    variable(c"streams"),
                    RailSettings::MAX
                );
                1
            }
        },
    }
}

/// Returns true if a network card of this host limits the rate of each socket.
fn is_rate_limited() -> bool {
    let Ok(cards) = std::fs::read_dir("/sys/class/net") else { return false };
    cards.flatten().any(|card| {
        let vendor = std::fs::read_to_string(card.path().join("device/vendor"));
        vendor.is_ok_and(|vendor| LIMITING_VENDORS.contains(&vendor.trim()))
    })
}

/// Parses FI_TCP_RAILS: one address for each interface, or for each interface in a network.
fn parse_rails(
    prov: &'static Provider,
    text: &str,
    interfaces: &[(String, SocketAddr)],
) -> Vec<IpAddr> {
    let mut addrs = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let network = word.parse::<IpNet>();
        let mut is_found = false;
        for (name, addr) in interfaces {
            let is_wanted = match &network {
                Ok(network) => network.contains(&addr.ip()),
                // Only one address of a named interface, without a scope.
                Err(_) => name == word && !is_found && !is_link_local(addr.ip()),
            };
            if is_wanted {
                is_found = true;
                if !addrs.contains(&addr.ip()) && addrs.len() < RailSettings::MAX {
                    addrs.push(addr.ip());
                }
            }
        }
        if !is_found {
            let list: Vec<_> =
                interfaces.iter().map(|(name, at)| format!("{name} {}", at.ip())).collect();
            ofi_provider::log!(
                prov,
                WARN,
                DOMAIN,
                "{}: no interface is \"{word}\"; there are: {}",
                variable(c"rails"),
                list.join(", ")
            );
        }
    }
    addrs
}

/// Returns true if an address is usable only together with the name of an interface.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plug_in::provider;

    #[test]
    fn rails_are_interfaces_or_networks() {
        let interfaces: Vec<_> = [
            ("eth0", "10.1.0.5:0"),
            ("eth0", "[fe80::5]:0"),
            ("eth1", "[fe80::6]:0"),
            ("eth1", "10.2.0.5:0"),
            ("eth2", "10.2.0.6:0"),
        ]
        .map(|(name, addr)| (name.to_owned(), addr.parse().unwrap()))
        .to_vec();
        let rails = |text| parse_rails(provider(), text, &interfaces);
        let ips =
            |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(rails("eth0,eth1"), ips(&["10.1.0.5", "10.2.0.5"]));
        assert_eq!(rails("10.2.0.0/16"), ips(&["10.2.0.5", "10.2.0.6"]));
        assert_eq!(rails("eth1, 10.2.0.0/16,"), ips(&["10.2.0.5", "10.2.0.6"]));
        assert_eq!(rails("eth7,10.9.0.0/16"), ips(&[]));
    }

    #[test]
    fn number_of_streams_is_bounded() {
        let streams = |text| parse_streams(provider(), text);
        assert_eq!(["1", "16", " 4"].map(streams), [1, 16, 4]);
        assert_eq!(["0", "17", "-1", "many", ""].map(streams), [1; 5]);
    }
}
