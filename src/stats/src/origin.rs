//! Location of processes: their host, their network namespace, and the addresses reached from there.
use crate::layout::words_text;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Identifies a process among those of several hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProcessKey {
    /// Number of the host; 0 for this host.
    pub host: u32,
    /// Number of the process on the host.
    pub pid: u32,
}

impl ProcessKey {
    /// Returns the key of a process of this host.
    pub fn local(pid: u32) -> Self {
        Self { host: 0, pid }
    }
}

/// Network namespace of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NetworkKey {
    /// Number of the kernel.
    pub kernel: u32,
    /// Number of the namespace; 0 if unknown.
    pub namespace: u64,
}

/// Host of a process, if it is another one, and its rank.
#[derive(Clone, Debug, Default)]
pub struct ProcessOrigin {
    /// Number of the host; 0 for this host.
    pub host: u32,
    /// Number of the kernel of the host; hosts may be containers of one kernel.
    pub kernel: u32,
    /// Name of the host; empty for this host.
    pub host_name: Arc<str>,
    /// Number of the network namespace; 0 if unknown.
    pub network: u64,
    /// Number of the process's own namespace of processes; 0 if unknown.
    pub pid_space: u64,
    /// Number of the process in its own namespace.
    pub own_pid: u64,
    /// Rank given to the process by the launcher of its job.
    pub rank: Option<u32>,
}

/// Variables with the rank of a process, set by launchers of jobs, in the order of their use.
const RANK_VARIABLES: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "PALS_RANKID"];

/// Returns the rank among variables of an environment, as in `/proc/PID/environ`.
pub(crate) fn rank_of(environment: &[u8]) -> Option<u32> {
    RANK_VARIABLES.iter().find_map(|name| {
        let value = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    })
}

/// Returns the number of a namespace in the text of a link such as `net:[4026531840]`.
pub(crate) fn namespace_of(link: &str) -> u64 {
    let number = link.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Endpoints by address. An address of a network is the same on all hosts; loopback addresses and
/// names are those of one network namespace.
#[derive(Debug, Default)]
pub(crate) struct AddressIndex {
    near: HashMap<(NetworkKey, [u64; 8]), usize>,
    /// Endpoints by addresses of networks; `None` if several hosts have the address.
    far: HashMap<[u64; 8], Option<(NetworkKey, usize)>>,
}

impl AddressIndex {
    /// Adds an endpoint of this namespace. The first one with an address counts.
    pub(crate) fn insert(&mut self, network: NetworkKey, address: &[u64; 8], index: usize) {
        if address[0] == 0 {
            return;
        }
        self.near.entry((network, *address)).or_insert(index);
        if is_of_network(address) {
            let known = self.far.entry(*address).or_insert(Some((network, index)));
            // The same address on two hosts is one of a private network, such as of containers.
            if known.is_some_and(|(other, _)| other != network) {
                *known = None;
            }
        }
    }

    /// Returns the endpoint reached by this address from a namespace.
    pub(crate) fn find(&self, network: NetworkKey, address: &[u64; 8]) -> Option<usize> {
        let near = self.near.get(&(network, *address)).copied();
        near.or_else(|| self.far.get(address)?.map(|(_, index)| index))
    }
}

/// Returns true for an IP address other than loopback.
fn is_of_network(address: &[u64; 8]) -> bool {
    ip_of(address).is_some_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Returns the IP address of an address, if it has one.
pub(crate) fn ip_of(address: &[u64; 8]) -> Option<IpAddr> {
    let parsed: Option<SocketAddr> = words_text(address).parse().ok();
    parsed.map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::text_words;

    fn on(kernel: u32, namespace: u64) -> NetworkKey {
        NetworkKey { kernel, namespace }
    }

    #[test]
    fn network_addresses_are_found_from_every_host_and_loopback_only_from_its_own() {
        let mut index = AddressIndex::default();
        for (host, at) in [(1, 10), (2, 20)] {
            index.insert(on(host, 5), &text_words("127.0.0.1:7"), at);
            index.insert(on(host, 5), &text_words("fi_shm://7"), at + 1);
            index.insert(on(host, 5), &text_words(&format!("10.0.0.{host}:7")), at + 2);
            index.insert(on(host, 5), &text_words("172.17.0.2:7"), at + 3);
        }
        let find = |network, text: &str| index.find(network, &text_words(text));
        assert_eq!(find(on(1, 5), "127.0.0.1:7"), Some(10));
        assert_eq!(find(on(2, 5), "127.0.0.1:7"), Some(20));
        assert_eq!(find(on(2, 5), "fi_shm://7"), Some(21));
        // Another namespace of the same host has another loopback interface.
        assert_eq!(find(on(2, 6), "127.0.0.1:7"), None);
        assert_eq!(
            [find(on(1, 5), "10.0.0.2:7"), find(on(3, 1), "10.0.0.1:7")],
            [Some(22), Some(12)]
        );
        // An address of several hosts is known only on these.
        assert_eq!(
            [find(on(2, 5), "172.17.0.2:7"), find(on(3, 5), "172.17.0.2:7")],
            [Some(23), None]
        );
    }

    #[test]
    fn rank_is_read_from_variables_of_launchers() {
        assert_eq!(rank_of(b"A=1\0PMI_RANK=9\0B=2\0"), Some(9));
        assert_eq!(rank_of(b"PMI_RANK=9\0OMPI_COMM_WORLD_RANK=3\0"), Some(3));
        assert_eq!([rank_of(b""), rank_of(b"PMI_RANK=x\0"), rank_of(b"XPMI_RANK=1")], [None; 3]);
        assert_eq!(namespace_of("net:[4026531840]"), 4_026_531_840);
        assert_eq!([namespace_of(""), namespace_of("net:[x]")], [0, 0]);
    }
}
