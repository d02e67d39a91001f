//! Detection of peers without acknowledgements of sent data, on kernels without a suitable socket
//! option.
//!
//! TCP_RTO_MAX_MS (Linux 6.15) shortens the time until the kernel gives up sent data.
//! TCP_USER_TIMEOUT is older, but it also ends connections to a peer responding with a full receive
//! buffer. Without the newer option, the engine checks TCP_INFO from time to time.
use ofi_provider::sock::StreamSocket;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Checks within the time limit of a peer.
const CHECKS: u32 = 16;

/// Minimum interval between checks.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// State of the detection for one socket.
#[derive(Debug, Default)]
pub(super) struct SilenceMonitor {
    /// Time limit for unacknowledged data; none if the kernel applies it.
    limit: Cell<Option<Duration>>,
    /// Time of the first check with unanswered retransmissions, while there are any.
    since: Cell<Option<Instant>>,
}

impl SilenceMonitor {
    /// Starts the detection with this time limit in seconds.
    pub(super) fn start(&self, seconds: u32) {
        self.limit.set(Some(Duration::from_secs(seconds.into())));
    }

    /// Returns the interval between checks; none if no checks are needed.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.limit.get().map(|limit| (limit / CHECKS).max(MIN_INTERVAL))
    }

    /// Returns true if the peer's system has not answered within the time limit.
    pub(super) fn is_silent(&self, socket: &StreamSocket, now: Instant) -> bool {
        self.limit.get().is_some() && self.is_silent_at(AckState::of(socket), now)
    }

    fn is_silent_at(&self, acks: Option<AckState>, now: Instant) -> bool {
        let (Some(limit), Some(interval)) = (self.limit.get(), self.interval()) else {
            return false;
        };
        let Some(acks) = acks.filter(|acks| acks.is_unanswered) else {
            self.since.set(None);
            return false;
        };
        let since = match self.since.get() {
            Some(since) if acks.age >= now.saturating_duration_since(since) => since,
            // Answers since the last check: the retransmission is a later one.
            _ => now,
        };
        self.since.set(Some(since));
        // The retransmissions started up to one interval earlier, and the next check follows after
        // another.
        now.saturating_duration_since(since) >= limit.saturating_sub(interval * 2).max(interval)
    }
}

/// Acknowledgements of a connection: members of `struct tcp_info` (linux/tcp.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AckState {
    /// Number of unanswered retransmissions.
    pub(super) retransmissions: u8,
    /// The last retransmission, or probe of a full receive buffer, is unanswered.
    is_unanswered: bool,
    /// Time since the last acknowledgement.
    age: Duration,
}

impl AckState {
    /// Reads the state of a socket; none if it is unknown.
    pub(super) fn of(socket: &StreamSocket) -> Option<Self> {
        tcp_info(socket, Self::parse)
    }

    /// Parses the kernel's bytes, as many as it has.
    fn parse(bytes: &[u8]) -> Option<Self> {
        // tcpi_retransmits and tcpi_probes, then tcpi_last_ack_recv.
        let retransmissions = *bytes.get(2)?;
        let is_unanswered = retransmissions != 0 || *bytes.get(3)? != 0;
        let age = u32::from_ne_bytes(*bytes.get(56..60)?.first_chunk()?);
        Some(Self { retransmissions, is_unanswered, age: Duration::from_millis(age.into()) })
    }
}

/// Returns the number of connections in the accept queue of a listening socket; none if it is unknown.
pub(super) fn accept_queue_len(listener: &StreamSocket) -> Option<usize> {
    // tcpi_unacked, which has another meaning for connections.
    let queued = |bytes: &[u8]| Some(u32::from_ne_bytes(*bytes.get(24..28)?.first_chunk()?));
    usize::try_from(tcp_info(listener, queued)?).ok()
}

/// Parses the kernel's `struct tcp_info` of a socket, as much as it has.
fn tcp_info<T>(socket: &StreamSocket, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let mut bytes = [0; 128];
    let len = socket.get_bytes(libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes).ok()?;
    parse(bytes.get(..len)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs checks each second: the time of the first one with a silent peer. Each entry has the
    /// unanswered retransmission and the age of the last acknowledgement in seconds.
    fn silent_after(limit: u32, checks: impl Iterator<Item = (bool, u64)>) -> Option<usize> {
        let (monitor, start) = (SilenceMonitor::default(), Instant::now());
        monitor.start(limit);
        checks.enumerate().find_map(|(second, (is_unanswered, age))| {
            let age = Duration::from_secs(age);
            let acks = AckState { retransmissions: is_unanswered.into(), is_unanswered, age };
            let now = start + Duration::from_secs(second as u64);
            monitor.is_silent_at(Some(acks), now).then_some(second)
        })
    }

    #[test]
    fn peer_is_silent_after_unanswered_retransmissions_for_the_limit() {
        // Idle for an hour before: the age of the acknowledgement alone means nothing.
        assert_eq!(silent_after(16, (0..100).map(|s| (true, 3600 + s))), Some(14));
        assert_eq!(silent_after(16, (0..100).map(|s| (s >= 50, 3600 + s))), Some(64));
    }

    #[test]
    fn responding_peer_is_never_silent() {
        // Each retransmission is lost, and the next one is acknowledged.
        assert_eq!(silent_after(16, (0..1000).map(|s| (true, s % 3))), None);
        // A full receive buffer: a probe every two minutes, unanswered for a moment.
        assert_eq!(silent_after(16, (0..1000).map(|s| (s % 120 == 0, s % 120))), None);
        // Nothing to acknowledge.
        assert_eq!(silent_after(16, (0..1000).map(|s| (false, s))), None);
    }

    #[test]
    fn monitor_is_off_without_a_limit() {
        let monitor = SilenceMonitor::default();
        let age = Duration::from_secs(3600);
        let acks = AckState { retransmissions: 1, is_unanswered: true, age };
        assert_eq!(monitor.interval(), None);
        assert!(!monitor.is_silent_at(Some(acks), Instant::now()));
        monitor.start(1);
        assert_eq!(monitor.interval(), Some(MIN_INTERVAL));
        monitor.start(160);
        assert_eq!(monitor.interval(), Some(Duration::from_secs(10)));
    }

    #[test]
    fn kernel_reports_acknowledgements() {
        let bytes = |retransmits, probes| {
            let mut bytes = [0; 128];
            (bytes[2], bytes[3]) = (retransmits, probes);
            bytes[56..60].copy_from_slice(&1500u32.to_ne_bytes());
            AckState::parse(&bytes).unwrap()
        };
        let age = Duration::from_millis(1500);
        assert_eq!(bytes(0, 0), AckState { retransmissions: 0, is_unanswered: false, age });
        assert_eq!(bytes(1, 0), AckState { retransmissions: 1, is_unanswered: true, age });
        assert_eq!(bytes(0, 1), AckState { retransmissions: 0, is_unanswered: true, age });
        assert_eq!(AckState::parse(&[0; 59]), None);
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = super::super::sock::TcpSocket::new(&any).unwrap();
        assert!(AckState::of(&socket.0).is_some_and(|acks| !acks.is_unanswered));
    }

    #[test]
    fn accept_queue_counts_connections_not_accepted_yet() {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = super::super::sock::TcpSocket::new(&any).unwrap();
        listener.bind_listener(&any, None).unwrap();
        listener.0.listen(8).unwrap();
        let at = listener.local_addr().unwrap();
        let _connected = [(); 3].map(|()| std::net::TcpStream::connect(at).unwrap());
        assert_eq!(accept_queue_len(&listener.0), Some(3));
        drop(listener.accept().unwrap());
        assert_eq!(accept_queue_len(&listener.0), Some(2));
    }
}
