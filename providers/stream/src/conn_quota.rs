//! Connections of unknown peers: connected peers in no address vector, and pending connections
//! without a response of the application.
//!
//! All these connections together leave the program a part of its descriptors. They are counted for
//! the whole process, over all listeners and sources. The listeners owning them select the
//! connections to close when there are too many.
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_provider::sys::max_descriptors;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Process-wide count of the connections of unknown peers.
#[derive(Debug, Default)]
struct ConnQuota {
    total: usize,
    by_source: HashMap<Addr, usize>,
    /// Listeners of the provider in this process.
    listeners: usize,
}

fn book() -> MutexGuard<'static, ConnQuota> {
    static BOOK: LazyLock<Mutex<ConnQuota>> = LazyLock::new(Mutex::default);
    BOOK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the maximum number of connections of unknown peers in the process: three quarters of its
/// descriptor limit (RLIMIT_NOFILE). The rest is left to the program.
pub(crate) fn most() -> usize {
    most_of(max_descriptors())
}

fn most_of(descriptors: usize) -> usize {
    descriptors - descriptors / 4
}

/// Divisor of the descriptor limit for the number of descriptors reserved for the program, and the
/// maximum of this number. Connections take half of them at most.
const RESERVE_SHARE: usize = 8;
const MAX_RESERVE: usize = 64;

fn reserve(descriptors: usize) -> usize {
    (descriptors / RESERVE_SHARE).min(MAX_RESERVE)
}

/// Number of reserved descriptors taken by connections of the process.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Counts a connection with one of the last descriptors of the process, for the lifetime of this value.
/// The kernel assigns the lowest free number, so all descriptors below are in use.
#[derive(Debug)]
pub(crate) struct ReservedDescriptor;

impl ReservedDescriptor {
    /// Counts a connection with this descriptor; none if it is not one of the last, or if the link has no
    /// descriptor.
    pub(crate) fn of(fd: Result<RawFd>) -> Option<Self> {
        let fd = fd.ok().and_then(|fd| usize::try_from(fd).ok())?;
        is_reserved(fd, max_descriptors()).then(Self::count)
    }

    fn count() -> Self {
        RESERVED.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for ReservedDescriptor {
    fn drop(&mut self) {
        RESERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_reserved(fd: usize, descriptors: usize) -> bool {
    fd >= descriptors - reserve(descriptors)
}

/// Fails with -FI_EMFILE if another connection would leave the program too few descriptors.
pub(crate) fn check_reserve() -> Result {
    let is_free = is_free(RESERVED.load(Ordering::Relaxed), max_descriptors());
    if is_free { Ok(()) } else { Err(Error::MFILE) }
}

fn is_free(taken: usize, descriptors: usize) -> bool {
    taken <= reserve(descriptors) / 2
}

/// Minimum lifetime of an unknown peer's connection: its first messages are in flight, and count as
/// sent on its side.
const STAY: Duration = Duration::from_secs(1);

/// Counts a connection of an unknown peer for the lifetime of this value.
#[derive(Debug)]
pub struct UnknownPeerConn {
    /// Source host of the connection ([`Addr::host`]).
    source: Addr,
    /// When the connection was made; none while it is being made.
    connected: Option<Instant>,
}

impl UnknownPeerConn {
    /// Counts a connection from this address.
    pub(crate) fn new(from: &Addr) -> Self {
        let source = from.host();
        let mut book = book();
        book.total += 1;
        *book.by_source.entry(source.clone()).or_default() += 1;
        Self { source, connected: None }
    }

    /// Source host of the connection.
    pub(crate) fn source(&self) -> &Addr {
        &self.source
    }

    /// Records the connection as established, so messages may arrive.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.connected = Some(now);
    }

    /// Returns true if the connection may be closed now if it has nothing in progress ([`STAY`]).
    pub(crate) fn may_go(&self, now: Instant) -> bool {
        self.connected.is_none_or(|at| now.saturating_duration_since(at) >= STAY)
    }
}

impl Drop for UnknownPeerConn {
    fn drop(&mut self) {
        let mut book = book();
        book.total -= 1;
        if let Some(count) = book.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                book.by_source.remove(&self.source);
            }
        }
    }
}

/// Counts a listener as long as this value lives.
#[derive(Debug)]
pub struct CountedListener;

impl CountedListener {
    /// Counts a newly opened listener.
    pub fn open() -> Self {
        book().listeners += 1;
        Self
    }
}

impl Drop for CountedListener {
    fn drop(&mut self) {
        book().listeners -= 1;
    }
}

/// Maximum of one listener's connections of unknown peers, as a multiple of the rest of [`most`],
/// so the other listeners always have some left.
const FAIR_SHARE: usize = 4;

/// Returns true if a listener with `own` connections of unknown peers has too many.
pub fn are_too_many(own: usize) -> bool {
    book().are_too_many(own, most())
}

impl ConnQuota {
    fn are_too_many(&self, own: usize, most: usize) -> bool {
        let left = most.saturating_sub(self.total);
        self.total > most || (self.listeners > 1 && own > left.saturating_mul(FAIR_SHARE))
    }
}

/// Sources with more connections than this count as crowds: half as many as the source with most
/// has.
pub(crate) fn many() -> usize {
    book().by_source.values().max().map_or(0, |most| most / 2)
}

/// Returns the number of unknown peers' connections from one source.
pub(crate) fn count_from(source: &Addr) -> usize {
    book().by_source.get(source).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_unknown_peers_are_counted_per_source() {
        let addr = |text: &str| Addr::Ip(text.parse().unwrap());
        let crowd: Vec<_> =
            (1..10).map(|port| UnknownPeerConn::new(&addr("192.0.2.1:0").at_port(port))).collect();
        let single = UnknownPeerConn::new(&addr("192.0.2.2:1"));
        let (one, two) = (&addr("192.0.2.1:0"), &addr("192.0.2.2:0"));
        assert_eq!((count_from(one), count_from(two)), (9, 1));
        assert!(count_from(one) > many() && count_from(two) <= many());
        drop((crowd, single));
        assert_eq!((count_from(one), count_from(two)), (0, 0));
    }

    #[test]
    fn connected_unknown_peer_stays_for_a_minimum_time() {
        let mut unknown_conn = UnknownPeerConn::new(&Addr::Ip("192.0.2.3:1".parse().unwrap()));
        assert!(unknown_conn.may_go(Instant::now()));
        unknown_conn.connected(Instant::now());
        let at = unknown_conn.connected.unwrap();
        assert!(!unknown_conn.may_go(at) && !unknown_conn.may_go(at + STAY / 2));
        assert!(unknown_conn.may_go(at + STAY));
    }

    #[test]
    fn one_listener_may_have_all_there_is_and_of_two_none() {
        let book = |total, listeners| ConnQuota { total, listeners, ..ConnQuota::default() };
        assert!(!book(100, 1).are_too_many(100, 100));
        assert!(book(101, 1).are_too_many(101, 100));
        assert!(book(81, 2).are_too_many(81, 100));
        assert!(!book(81, 2).are_too_many(1, 100), "the other still gets in");
        assert!(book(101, 2).are_too_many(1, 100));
    }

    #[test]
    fn the_last_descriptors_are_reserved_for_the_program() {
        assert_eq!([34, 35].map(|fd| is_reserved(fd, 40)), [false, true]);
        assert_eq!([959, 960].map(|fd| is_reserved(fd, 1024)), [false, true]);
        assert!(!is_reserved(4, 5) && !is_reserved(1 << 20, usize::MAX));
        assert_eq!([2, 3].map(|taken| is_free(taken, 40)), [true, false]);
        assert_eq!([0, 1].map(|taken| is_free(taken, 5)), [true, false]);
    }

    #[test]
    fn connections_with_the_last_descriptors_are_counted_until_they_end() {
        assert!(ReservedDescriptor::of(Err(Error::NOSYS)).is_none());
        assert!(
            ReservedDescriptor::of(Ok(-1)).is_none() && ReservedDescriptor::of(Ok(0)).is_none()
        );
        let most = i32::try_from(max_descriptors()).unwrap_or(i32::MAX);
        let last = [(); 3].map(|()| ReservedDescriptor::of(Ok(most)));
        assert!(RESERVED.load(Ordering::Relaxed) >= 3);
        drop(last);
    }

    #[test]
    fn the_program_keeps_a_quarter_of_its_descriptors() {
        assert_eq!(most_of(256), 192);
        assert_eq!(most_of(3), 3);
        assert_eq!(most_of(usize::MAX), usize::MAX - usize::MAX / 4);
    }
}
