//! The order of devices in fi_getinfo(3), when the user wants the near ones first
//! (FI_VERBS_NIC_AFFINITY_POLICY).
use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

/// Location of a device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct NumaNode {
    /// Device's folder in sysfs, naming the bridges on its path.
    path: PathBuf,
    /// The device's NUMA node.
    node: Option<u32>,
}

impl NumaNode {
    /// The place of the device behind a path in sysfs, if there is one.
    pub(crate) fn of(link: &Path) -> Option<Self> {
        let path = fs::canonicalize(link).ok()?;
        let node = fs::read_to_string(path.join("numa_node")).ok();
        // No node is -1 there.
        let node = node.and_then(|node| node.trim().parse().ok());
        Some(Self { path, node })
    }

    /// The place of the device at a PCI address like `0000:3b:00.0`, or `3b:00.0`.
    pub(crate) fn of_pci(address: &str) -> Option<Self> {
        let whole = match address.matches(':').count() {
            1 => format!("0000:{address}"),
            _ => address.to_owned(),
        };
        Self::of(&Path::new("/sys/bus/pci/devices").join(whole))
    }

    /// Returns the location of this thread's processor.
    pub(crate) fn here() -> Option<Self> {
        let (mut cpu, mut node) = (0u32, 0u32);
        // SAFETY: the call writes two numbers; the third argument is not used any more.
        let known = unsafe {
            libc::syscall(
                libc::SYS_getcpu,
                &raw mut cpu,
                &raw mut node,
                std::ptr::null_mut::<libc::c_void>(),
            )
        };
        (known == 0).then(|| Self { path: PathBuf::new(), node: Some(node) })
    }

    /// Returns the proximity of another location: a longer common path is nearer; after it the same
    /// node counts.
    fn nearness(&self, to: &Self) -> (usize, bool) {
        let steps = self.path.iter().zip(to.path.iter());
        let common = steps.take_while(|(mine, other)| mine == other).count();
        (common, self.node.is_some() && self.node == to.node)
    }
}

/// Sorts the nearest first; equally near ones stay in order.
pub(crate) fn nearest_first<T>(
    devices: &mut [T],
    to: &NumaNode,
    numa_node: impl Fn(&T) -> NumaNode,
) {
    devices.sort_by_cached_key(|device| Reverse(numa_node(device).nearness(to)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numa_node(path: &str, node: i32) -> NumaNode {
        NumaNode { path: path.into(), node: u32::try_from(node).ok() }
    }

    #[test]
    fn devices_behind_the_same_bridge_come_first_then_those_of_the_node() {
        let to = numa_node("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", 1);
        let mut devices = vec![
            numa_node("/sys/devices/virtual/net/lo", -1),
            numa_node("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 0),
            numa_node("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1),
            numa_node("/sys/devices/pci0000:3a/0000:3a:02.0/0000:3d:00.0", 1),
            numa_node("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1", 1),
            numa_node("/sys/devices/pci0000:81/0000:81:01.0/0000:82:00.0", 0),
        ];
        let before = devices.clone();
        nearest_first(&mut devices, &to, NumaNode::clone);
        let order = devices.iter().map(|device| before.iter().position(|was| was == device));
        assert_eq!(order.flatten().collect::<Vec<_>>(), [4, 3, 2, 0, 1, 5]);
    }

    #[test]
    fn without_a_device_to_be_near_to_the_node_decides() {
        let mut devices = vec![numa_node("/sys/devices/a", 0), numa_node("/sys/devices/b", 1)];
        nearest_first(&mut devices, &numa_node("", 1), NumaNode::clone);
        assert_eq!(devices[0], numa_node("/sys/devices/b", 1));
        // A device without a node is near to none.
        nearest_first(&mut devices, &numa_node("", -1), NumaNode::clone);
        assert_eq!(devices[0], numa_node("/sys/devices/b", 1));
        assert!(NumaNode::here().is_some_and(|here| here.node.is_some()));
        assert_eq!(NumaNode::of_pci("no such address"), None);
    }
}
