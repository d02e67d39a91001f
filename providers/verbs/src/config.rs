//! The provider's run-time parameters (fi_verbs(7)).
use crate::affinity::NumaNode;
use crate::provider::VERBS;
use ofi_provider::param;
use std::sync::OnceLock;

/// Settings from the environment, read once.
#[derive(Debug)]
pub(crate) struct VerbsConfig {
    /// Sizes of queues when the application names none.
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    /// Most segments of a transfer.
    pub(crate) tx_iov_limit: usize,
    pub(crate) rx_iov_limit: usize,
    /// Maximum bytes sent inline, if supported by the device.
    pub(crate) inline_size: usize,
    /// Delay until a peer may retry after finding no posted receive (ibv_modify_qp(3)).
    pub(crate) min_rnr_timer: u8,
    /// Completions taken from a device at once.
    pub(crate) cqread_bunch_size: usize,
    /// Index of the GID naming a fabric and of datagram endpoints, if selected by the user.
    pub(crate) gid_idx: Option<u8>,
    /// Regions need no resident pages, if supported by the device.
    pub(crate) use_odp: bool,
    /// The devices to use.
    pub(crate) devices: DeviceFilter,
    /// Interfaces with their addresses to be used.
    pub(crate) ifaces: DeviceFilter,
    /// Location for the order of devices, nearest first, if selected by the user.
    pub(crate) near: Option<NumaNode>,
}

/// Names selected by the user, separated by commas; none stands for all.
#[derive(Debug)]
pub(crate) struct DeviceFilter(Vec<String>);

impl DeviceFilter {
    fn new(text: Option<&str>) -> Self {
        let names = text.unwrap_or_default().split(',').map(str::trim);
        Self(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// Returns true if the user named no devices, so all are used.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a name is among them, or has one of them as a prefix.
    pub(crate) fn take(&self, name: &str) -> bool {
        self.is_all() || self.0.iter().any(|begin| name.starts_with(begin.as_str()))
    }
}

/// Returns the location preferred for devices; logs the reason if a user's choice has no effect.
fn near(policy: Option<&str>, device: Option<&str>) -> Option<NumaNode> {
    let say = |why: &str| {
        ofi_provider::log!(&VERBS, WARN, FABRIC, "the order of devices is the system's: {why}");
        None
    };
    match (policy, device) {
        (None | Some("none"), _) => None,
        (Some("auto"), None) => NumaNode::here().or_else(|| say("no NUMA node is known")),
        (Some("auto"), Some(device)) => NumaNode::of_pci(device)
            .or_else(|| say(&format!("FI_VERBS_AFFINITY_DEVICE: no PCI device {device}"))),
        (Some("manual"), _) => {
            say("FI_VERBS_NIC_AFFINITY_POLICY: files of orders (manual) are not read")
        }
        (Some(other), _) => {
            say(&format!("FI_VERBS_NIC_AFFINITY_POLICY: {other} is not one of: none, auto"))
        }
    }
}

/// The parameters; declares them to the core at first use.
pub(crate) fn config() -> &'static VerbsConfig {
    static CONFIG: OnceLock<VerbsConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let number = |name, default: usize, help| {
            param::int(&VERBS, name, help).and_then(|n| usize::try_from(n).ok()).unwrap_or(default)
        };
        let text = |name, help| param::string(&VERBS, name, help).filter(|text| !text.is_empty());
        VerbsConfig {
            tx_size: number(
                c"tx_size",
                384,
                c"transmit queue size when the application names none (384)",
            ),
            rx_size: number(
                c"rx_size",
                384,
                c"receive queue size when the application names none (384)",
            ),
            tx_iov_limit: number(c"tx_iov_limit", 4, c"most segments of a send (4)"),
            rx_iov_limit: number(c"rx_iov_limit", 4, c"most segments of a receive (4)"),
            inline_size: number(
                c"inline_size",
                256,
                c"bytes of a message that may be sent inline, if the device can (256)",
            ),
            min_rnr_timer: param::int(
                &VERBS,
                c"min_rnr_timer",
                c"code of the time after which a peer tries again that found no receive \
                  posted, 0 to 31 (12)",
            )
            .and_then(|timer| u8::try_from(timer).ok())
            .filter(|timer| *timer < 32)
            .unwrap_or(12),
            cqread_bunch_size: number(
                c"cqread_bunch_size",
                8,
                c"completions taken from a device at once, at most 64 (8)",
            ),
            gid_idx: param::int(
                &VERBS,
                c"gid_idx",
                c"which GID of a port names its fabric (0), and belongs to datagram endpoints \
                  (RoCE: the first of RoCE v2 with an IPv4 address)",
            )
            .and_then(|index| u8::try_from(index).ok()),
            use_odp: param::boolean(
                &VERBS,
                c"use_odp",
                c"register memory with on-demand paging, if the device can (0)",
            )
            .unwrap_or(false),
            devices: DeviceFilter::new(
                text(
                    c"device_name",
                    c"use only devices with these names, or names that begin like this, with \
                      commas between them (default: all)",
                )
                .as_deref(),
            ),
            ifaces: DeviceFilter::new(
                text(
                    c"iface",
                    c"use only network interfaces with these names, or names that begin like \
                      this, with commas between them (default: all)",
                )
                .as_deref(),
            ),
            near: near(
                text(
                    c"nic_affinity_policy",
                    c"which devices fi_getinfo lists first: none for the system's order, auto \
                      for the nearest to affinity_device (none)",
                )
                .as_deref(),
                text(
                    c"affinity_device",
                    c"PCI address that devices are to be near to (default: the processor that \
                      asks first)",
                )
                .as_deref(),
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_filter_accepts_several_names_and_prefixes() {
        let names = DeviceFilter::new(Some("mlx5_0, rxe,"));
        assert!(names.take("mlx5_0") && names.take("rxe1") && !names.take("mlx5_1"));
        assert!(DeviceFilter::new(None).take("siw0") && DeviceFilter::new(Some(" ,")).take("siw0"));
    }

    #[test]
    fn unusable_affinity_setting_selects_no_numa_node() {
        assert_eq!(near(None, Some("0000:00:00.0")), None);
        assert_eq!(near(Some("auto"), Some("no such device")), None);
        assert_eq!(near(Some("manual"), None), None);
        assert!(near(Some("auto"), None).is_some());
    }
}
