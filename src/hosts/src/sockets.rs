//! Retransmissions of the TCP connections of this network namespace, as reported by the kernel
//! (sock_diag(7)).
use ofi_stats::bounds::{LookCost, ProcessBounds};
use ofi_stats::layout::text_words;
use ofi_stats::read::{SocketStats, StatsProcess};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// `SOCK_DIAG_BY_FAMILY`, `NLMSG_ERROR` and `NLMSG_DONE`.
const MESSAGE_TYPES: [u16; 3] = [20, 2, 3];

/// States of connections with data: ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 8 | 1 << 9;

/// `INET_DIAG_INFO`, the attribute with `struct tcp_info`.
const INFO: u16 = 2;

/// Offset of `tcpi_total_retrans`.
const TOTAL_RETRANS: usize = 100;

/// The retransmission timer, among the kernel's timers of a socket.
const RETRANSMISSION_TIMER: u8 = 1;

/// Maximum number of answers read: connections of a host, some in each.
const MAX_ANSWERS: usize = 1 << 16;

/// Returns the number of the network namespace of this process; 0 if unknown.
pub fn own_network() -> u64 {
    let link = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let link = link.to_string_lossy();
    let number = link.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Adds the connections with lost packets to processes of this network namespace, as far as the
/// kernel reports them.
pub fn add_sockets(processes: &mut [StatsProcess]) {
    let Ok(sockets) = lossy_sockets() else { return };
    if sockets.is_empty() {
        return;
    }
    let network = own_network();
    for process in processes.iter_mut().filter(|one| one.origin.network == network) {
        process.sockets = sockets_of(process.pid, &sockets);
    }
}

/// Returns the open sockets of a process among these ones.
fn sockets_of(pid: u32, sockets: &HashMap<u32, SocketStats>) -> Vec<SocketStats> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let most = ProcessBounds::alone().take(LookCost::Descriptor, usize::MAX);
    let links = entries.flatten().take(most).filter_map(|fd| fs::read_link(fd.path()).ok());
    let numbers = links.filter_map(|link| {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u32>().ok()
    });
    numbers.filter_map(|number| sockets.get(&number).copied()).collect()
}

/// Returns the connections of this network namespace with lost packets, by their number.
fn lossy_sockets() -> io::Result<HashMap<u32, SocketStats>> {
    let mut sockets = HashMap::new();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        let kernel = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        rustix::net::send(&kernel, &request(family.as_raw() as u8), SendFlags::empty())?;
        let mut answer = vec![0; 64 << 10];
        for _ in 0..MAX_ANSWERS {
            let (count, _) = rustix::net::recv(&kernel, &mut answer[..], RecvFlags::empty())?;
            if count == 0 || !take_answer(&answer[..count], &mut sockets) {
                break;
            }
        }
    }
    Ok(sockets)
}

/// Returns a request for the TCP sockets of a family.
fn request(family: u8) -> Vec<u8> {
    const LEN: u32 = 16 + 56;
    const REQUEST_DUMP: u16 = 0x301;
    const TCP: u8 = 6;
    let mut bytes = Vec::new();
    bytes.extend(LEN.to_ne_bytes());
    bytes.extend(MESSAGE_TYPES[0].to_ne_bytes());
    bytes.extend(REQUEST_DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, TCP, 1 << (INFO - 1), 0]);
    bytes.extend(STATES.to_ne_bytes());
    bytes.resize(LEN as usize, 0);
    bytes
}

fn number_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Reads an answer of several messages, and returns false if it is the last one.
fn take_answer(mut bytes: &[u8], sockets: &mut HashMap<u32, SocketStats>) -> bool {
    loop {
        let length = number_at(bytes, 0).map_or(0, u32::from_ne_bytes) as usize;
        let kind = number_at(bytes, 4).map_or(0, u16::from_ne_bytes);
        if bytes.is_empty() {
            return true;
        }
        if kind != MESSAGE_TYPES[0] || length < 16 || length > bytes.len() {
            return false;
        }
        if let Some((number, socket)) = lossy_socket(&bytes[16..length]) {
            sockets.insert(number, socket);
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
}

/// Returns the number and the statistics of a socket with lost packets (`struct inet_diag_msg`).
fn lossy_socket(message: &[u8]) -> Option<(u32, SocketStats)> {
    const ATTRIBUTES: usize = 72;
    let [family, _, timer, unanswered] = number_at(message, 0)?;
    let port = u16::from_be_bytes(number_at(message, 6)?);
    let bytes: [u8; 16] = number_at(message, 24)?;
    let ip = match AddressFamily::from_raw(family.into()) {
        AddressFamily::INET => IpAddr::from(number_at::<4>(message, 24)?),
        _ => IpAddr::from(bytes).to_canonical(),
    };
    let number = u32::from_ne_bytes(number_at(message, 68)?);
    let mut rest = message.get(ATTRIBUTES..)?;
    let mut repeated = 0;
    while let (Some(length), Some(kind)) = (number_at(rest, 0), number_at(rest, 2)) {
        let length = u16::from_ne_bytes(length) as usize;
        if length < 4 || length > rest.len() {
            break;
        }
        if u16::from_ne_bytes(kind) == INFO {
            let total = number_at(&rest[4..length], TOTAL_RETRANS)?;
            repeated = u64::from(u32::from_ne_bytes(total));
        }
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    let unanswered = if timer == RETRANSMISSION_TIMER { u64::from(unanswered) } else { 0 };
    let peer = text_words(&SocketAddr::new(ip, port).to_string());
    (repeated > 0).then_some((number, SocketStats { peer, unanswered, repeated }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_stats::layout::words_text;

    /// Returns a message about a socket with these numbers of retransmissions.
    fn message(timer: u8, unanswered: u8, total: u32) -> Vec<u8> {
        let mut bytes = vec![0; 72 + 4 + 104];
        bytes[..4].copy_from_slice(&[AddressFamily::INET.as_raw() as u8, 1, timer, unanswered]);
        bytes[6..8].copy_from_slice(&4000_u16.to_be_bytes());
        bytes[24..28].copy_from_slice(&[10, 0, 0, 9]);
        bytes[68..72].copy_from_slice(&77_u32.to_ne_bytes());
        bytes[72..74].copy_from_slice(&108_u16.to_ne_bytes());
        bytes[74..76].copy_from_slice(&INFO.to_ne_bytes());
        bytes[176..180].copy_from_slice(&total.to_ne_bytes());
        bytes
    }

    #[test]
    fn retransmissions_are_read_from_the_message_of_a_socket() {
        let (number, socket) = lossy_socket(&message(1, 5, 12)).unwrap();
        assert_eq!((number, socket.unanswered, socket.repeated), (77, 5, 12));
        assert_eq!(words_text(&socket.peer), "10.0.0.9:4000");
        // A probe of a full window is no retransmission.
        assert_eq!(lossy_socket(&message(4, 5, 12)).unwrap().1.unanswered, 0);
        assert_eq!(lossy_socket(&message(0, 0, 0)), None);
    }

    #[test]
    fn malformed_messages_are_ignored() {
        let whole = message(1, 5, 12);
        for length in 0..whole.len() {
            assert!(lossy_socket(&whole[..length]).is_none(), "{length}");
        }
        let mut sockets = HashMap::new();
        assert!(!take_answer(&[1, 2, 3], &mut sockets));
        assert!(!take_answer(&[255; 40], &mut sockets));
        assert!(take_answer(&[], &mut sockets) && sockets.is_empty());
    }

    #[test]
    fn kernel_answers_the_request() {
        // Sandboxes without sock_diag have no answer.
        if let Ok(sockets) = lossy_sockets() {
            assert!(sockets.values().all(|socket| socket.repeated > 0));
        }
    }
}
