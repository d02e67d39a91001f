//! Doorbells of engines for peers of the same host: a bit in memory for each connection, and an
//! eventfd for a sleeping engine.
use crate::error::Result;
use crate::segment::SharedDoorbell;
use crate::sys::{EventFd, is_gone};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Doorbell of an engine. Its peers set bits in it, one for each connection. Indexes count modulo
/// 1024, so two connections may share a bit, and both are then polled.
///
/// Each peer can write to the whole doorbell: it can wake the engine without need, or suppress the
/// notification of another peer. All peers belong to one user, able to stop the process anyway.
#[derive(Debug)]
pub struct Doorbell {
    doorbell: SharedDoorbell,
    fd: OwnedFd,
    wakeup: EventFd,
}

impl Doorbell {
    /// Creates a doorbell.
    pub fn new() -> Result<Self> {
        let (doorbell, fd) = SharedDoorbell::create()?;
        Ok(Self { doorbell, fd, wakeup: EventFd::new()? })
    }

    /// Returns the descriptor of the doorbell's memory, for a peer ([`PeerDoorbell::open`]).
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the descriptor of the doorbell's eventfd, for a peer ([`PeerDoorbell::open`]).
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Returns the eventfd of the doorbell, as received by a peer.
    #[cfg(test)]
    pub(crate) fn wakeup_for_peer(&self) -> EventFd {
        let wakeup = self.wakeup().try_clone_to_owned().unwrap();
        crate::rights::ReceivedFd::new(wakeup).into_event_fd().unwrap()
    }

    /// Returns the eventfd of the doorbell, to be watched while the engine sleeps
    /// ([`Epoll::add_edge`](crate::sys::Epoll::add_edge)). It is never read.
    pub fn wakeup_fd(&self) -> RawFd {
        self.wakeup.as_raw_fd()
    }

    /// Adds the indexes of connections to poll. They are not reported again until the next signal
    /// of a peer, so the caller has to poll each until it is empty (-FI_EAGAIN).
    #[inline]
    pub fn ready(&self, out: &mut Vec<u32>) {
        self.doorbell.words().take(|index| out.push(index));
    }

    /// Returns true if [`Doorbell::ready`] has something to report.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.doorbell.words().is_ready()
    }

    /// Announces a sleep of the engine, so the next peer also signals the eventfd. Returns false,
    /// without the announcement, if a peer has signalled meanwhile.
    ///
    /// Polling of pipes must be disabled before ([`crate::shm_channel::ShmChannel::set_polled`]), and each
    /// checked once more ([`crate::shm_channel::ShmChannel::has_data`]), before the engine sleeps.
    pub fn fall_asleep(&self) -> bool {
        self.doorbell.words().fall_asleep()
    }

    /// Signals the engine's own eventfd, waking a sleeping thread.
    pub fn rouse(&self) {
        self.wakeup.signal_shared();
    }

    /// Announces the end of the sleep. The eventfd stays signalled: its edge-triggered watch
    /// reports each signal, and a read would be another system call for each.
    pub fn wake(&self) {
        self.doorbell.words().wake();
    }
}

/// Doorbell of a peer's engine.
#[derive(Debug)]
pub struct PeerDoorbell {
    doorbell: SharedDoorbell,
    wakeup: EventFd,
    /// The peer's process (SO_PEERCRED).
    process: i32,
}

impl PeerDoorbell {
    /// Opens the doorbell and eventfd of these descriptors, received from the peer.
    pub(crate) fn open(memory: BorrowedFd<'_>, wakeup: EventFd, process: i32) -> Result<Self> {
        Ok(Self { doorbell: SharedDoorbell::open(memory)?, wakeup, process })
    }

    /// Returns true if the peer's process has ended, as far as its pid shows.
    pub(crate) fn is_gone(&self) -> bool {
        is_gone(self.process)
    }

    /// Requests the peer to poll its connection with this index.
    pub fn ring(&self, index: u32) {
        self.doorbell.words().ring(index, || self.wakeup.signal_shared());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_set_to_blocking_mode_is_not_rung() {
        let doorbell = Doorbell::new().unwrap();
        let peer = PeerDoorbell::open(doorbell.memory(), doorbell.wakeup_for_peer(), 0).unwrap();
        let wakeup = doorbell.wakeup_fd();
        let full = (u64::MAX - 1).to_ne_bytes();
        // SAFETY: eight bytes are read from `full`; the descriptor is open.
        unsafe {
            assert_eq!(libc::write(wakeup, full.as_ptr().cast(), full.len()), 8);
            assert_eq!(libc::fcntl(wakeup, libc::F_SETFL, 0), 0);
        }
        assert!(doorbell.fall_asleep());
        let (tell, notified) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            peer.ring(0);
            doorbell.rouse();
            tell.send(()).unwrap();
        });
        notified.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn preempted_ringer_does_not_keep_others_from_ringing() {
        let doorbell = Doorbell::new().unwrap();
        let words = doorbell.doorbell.words();
        let mut rung = [0; 2];
        assert!(doorbell.fall_asleep());
        words.ring(1, || {
            rung[0] += 1;
            words.ring(2, || rung[1] += 1);
        });
        assert_eq!(rung, [1, 1]);
        words.ring(3, || panic!("the owner was woken"));
        // It slept again before the first to ring went on.
        let mut ready = Vec::new();
        doorbell.ready(&mut ready);
        assert_eq!(ready, [1, 2, 3]);
        assert!(doorbell.fall_asleep());
        words.ring(1, || {
            doorbell.wake();
            doorbell.ready(&mut ready);
            assert!(doorbell.fall_asleep());
        });
        let mut woken = false;
        words.ring(2, || woken = true);
        assert!(woken, "the second sleep is another");
    }
}
