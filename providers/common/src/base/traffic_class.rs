//! Traffic classes of IP sockets (*tclass* of fi_endpoint(3) and fi_domain(3)).
use crate::abi::{
    FI_TC_BEST_EFFORT, FI_TC_BULK_DATA, FI_TC_DEDICATED_ACCESS, FI_TC_DSCP, FI_TC_LOW_LATENCY,
    FI_TC_NETWORK_CTRL, FI_TC_SCAVENGER,
};
use crate::info::{InfoRef, version};
use crate::log;
use crate::param;
use crate::provider::Provider;
use crate::sys::set_option;
use std::os::fd::BorrowedFd;

/// Class of the packets of a socket, a differentiated services code point (DSCP, RFC 2474). By
/// default it is left to the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrafficClass(Option<u8>);

/// Largest code point.
const MAX_DSCP: u8 = 63;

/// Labels of fi_endpoint(3), with their names in parameters and their code points: those of RFC 4594
/// for services of the same purpose, and of RFC 8622 for scavengers.
const LABELS: [(i32, &str, u8); 6] = [
    (FI_TC_BEST_EFFORT, "best_effort", 0),
    (FI_TC_LOW_LATENCY, "low_latency", 18),
    (FI_TC_DEDICATED_ACCESS, "dedicated_access", 46),
    (FI_TC_BULK_DATA, "bulk_data", 10),
    (FI_TC_SCAVENGER, "scavenger", 1),
    (FI_TC_NETWORK_CTRL, "network_ctrl", 48),
];

impl TrafficClass {
    /// Returns the class of a `tclass`: the system's for FI_TC_UNSPEC and unknown values.
    pub fn of_tclass(tclass: u32) -> Self {
        if tclass & FI_TC_DSCP as u32 != 0 {
            let dscp = (tclass & !(FI_TC_DSCP as u32)).try_into();
            return Self(dscp.ok().filter(|dscp| *dscp <= MAX_DSCP));
        }
        let label = LABELS.iter().find(|(label, ..)| *label as u32 == tclass);
        Self(label.map(|(_, _, dscp)| *dscp))
    }

    /// Returns the class in the transmit attributes of an endpoint's info. Programs of interface
    /// versions before 1.9 have none.
    pub fn of_endpoint(info: InfoRef<'_>, api: u32) -> Self {
        let tx = info.tx().filter(|_| api >= version(1, 9));
        tx.map_or(Self::default(), |tx| Self::of_tclass(tx.tclass))
    }

    /// Returns the class in the domain attributes of an info, in the same way.
    pub fn of_domain(info: InfoRef<'_>, api: u32) -> Self {
        let domain = info.domain().filter(|_| api >= version(1, 9));
        domain.map_or(Self::default(), |domain| Self::of_tclass(domain.tclass))
    }

    /// Returns the user's class for sockets of a provider, from its parameter `tclass`
    /// (`FI_TCP_TCLASS`). The call declares the parameter to the core.
    pub fn of_params(prov: &'static Provider) -> Self {
        let name = c"tclass";
        let help = c"traffic class of packets: best_effort, low_latency, dedicated_access, \
                     bulk_data, scavenger, network_ctrl or a DSCP from 0 to 63 (default: that of \
                     the program, else of the system)";
        let Some(text) = param::string(prov, name, help) else { return Self::default() };
        Self::parse(&text).unwrap_or_else(|| {
            log!(
                prov,
                WARN,
                FABRIC,
                "{}: \"{text}\" is neither the name of a traffic class (low_latency) nor a DSCP \
                 from 0 to 63; it has no effect",
                param::variable(prov, name)
            );
            Self::default()
        })
    }

    /// Parses a name, with or without `FI_TC_`, or a DSCP. A blank text stands for the system's
    /// class.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if text.is_empty() {
            return Some(Self::default());
        }
        let name = text.strip_prefix("fi_tc_").unwrap_or(&text);
        if let Some((_, _, dscp)) = LABELS.iter().find(|(_, label, _)| *label == name) {
            return Some(Self(Some(*dscp)));
        }
        let dscp = match text.strip_prefix("0x") {
            Some(digits) => u8::from_str_radix(digits, 16),
            None => text.parse(),
        };
        Some(Self(Some(dscp.ok().filter(|dscp| *dscp <= MAX_DSCP)?)))
    }

    /// Returns this class, or else the other one if this is the system's.
    pub fn or(self, other: Self) -> Self {
        Self(self.0.or(other.0))
    }

    /// Sets the class of a socket for IP packets: the DSCP of IPv4 and IPv6 (IP_TOS, IPV6_TCLASS),
    /// and the priority within this host (SO_PRIORITY). Classes refused by the system have no
    /// effect.
    pub fn set(self, socket: BorrowedFd<'_>) {
        let Some(dscp) = self.0 else { return };
        let octet = libc::c_int::from(dscp << 2);
        // Sockets of IPv6 use both options, those of IPv4 the first one.
        let _ = set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, octet);
        let _ = set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, octet);
        let priority = priority(dscp);
        let set = |priority| set_option(socket, libc::SOL_SOCKET, libc::SO_PRIORITY, priority);
        // Priorities above 6 need privileges.
        let _ = set(priority).or_else(|_| set(priority.min(6)));
    }
}

/// Returns the priority of packets within the host (`TC_PRIO_*` of linux/pkt_sched.h).
fn priority(dscp: u8) -> libc::c_int {
    const FILLER: libc::c_int = 1;
    match dscp {
        1 | 8 => FILLER,
        _ => match dscp >> 3 {
            0 => 0,
            1 => 2,
            2 | 3 => 4,
            4 | 5 => 6,
            _ => 7,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::InfoBuf;
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd};

    fn option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int) -> libc::c_int {
        let (mut value, mut len) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the kernel writes at most `len` bytes to `value`.
        let code = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len)
        };
        assert_eq!(code, 0);
        value
    }

    #[test]
    fn class_sets_the_options_of_both_families_and_the_priority() {
        let class = TrafficClass::of_tclass(FI_TC_BULK_DATA as u32);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        class.set(socket.as_fd());
        assert_eq!(option(&socket, libc::IPPROTO_IP, libc::IP_TOS), 10 << 2);
        assert_eq!(option(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY), 2);
        // The system's class changes nothing.
        TrafficClass::default().set(socket.as_fd());
        assert_eq!(option(&socket, libc::IPPROTO_IP, libc::IP_TOS), 10 << 2);
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return };
        class.set(socket.as_fd());
        assert_eq!(option(&socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS), 10 << 2);
        TrafficClass(Some(48)).set(socket.as_fd());
        assert!(option(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY) >= 6);
    }

    #[test]
    fn values_are_labels_or_code_points() {
        let of = |tclass: i32| TrafficClass::of_tclass(tclass as u32).0;
        assert_eq!(
            [of(FI_TC_DSCP), of(FI_TC_DSCP | 46), of(FI_TC_DSCP | 63)],
            [0, 46, 63].map(Some)
        );
        assert_eq!([0, FI_TC_DSCP | 64, 0x206, 0x400, 7].map(of), [None; 5]);
        assert_eq!(of(FI_TC_LOW_LATENCY), Some(18));
        let parse = |text| TrafficClass::parse(text).map(|class| class.0);
        assert_eq!(parse("low_latency"), Some(Some(18)));
        assert_eq!(parse(" FI_TC_Scavenger"), Some(Some(1)));
        assert_eq!(
            [parse("46"), parse("0x2e"), parse("")],
            [Some(Some(46)), Some(Some(46)), Some(None)]
        );
        for wrong in ["64", "-1", "fast", "0x", "1.5", "999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn endpoint_without_a_class_has_that_of_its_domain() {
        let mut info = InfoBuf::new().unwrap();
        let class = |info: &InfoBuf, api| {
            let info = info.as_ref();
            TrafficClass::of_endpoint(info, api).or(TrafficClass::of_domain(info, api)).0
        };
        info.edit_domain(|domain| domain.tclass = FI_TC_BULK_DATA as u32);
        assert_eq!(class(&info, version(1, 9)), Some(10));
        info.tx_mut().tclass = FI_TC_SCAVENGER as u32;
        assert_eq!(class(&info, version(1, 20)), Some(1));
        assert_eq!(class(&info, version(1, 8)), None);
    }
}
