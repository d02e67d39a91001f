//! Doorbells of engines for peers of the same host: a bit in memory for each connection, and an
//! eventfd for a sleeping engine.
use crate::error::Result;
use crate::segment::SharedDoor;
use crate::sys::{EventFd, is_gone};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Doorbell of an engine. Its peers set bits in it, one for each connection. Indexes count modulo
/// 1024, so two connections may share a bit, and both are then polled.
///
/// Each peer can write to the whole doorbell: it can wake the engine without need, or suppress the
/// notification of another peer. All peers belong to one user, able to stop the process anyway.
#[derive(Debug)]
pub struct LocalDoor {
    door: SharedDoor,
    fd: OwnedFd,
    bell: EventFd,
}

impl LocalDoor {
    /// A new door.
    pub fn new() -> Result<Self> {
        let (door, fd) = SharedDoor::create()?;
        Ok(Self { door, fd, bell: EventFd::new()? })
    }

    /// The descriptor of the door's memory, for a peer ([`PeerDoor::open`]).
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The bell's descriptor, for a peer ([`PeerDoor::open`]).
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell, as a peer has it.
    #[cfg(test)]
    pub(crate) fn bell_for_peer(&self) -> EventFd {
        let bell = self.bell().try_clone_to_owned().unwrap();
        EventFd::received(crate::rights::ReceivedFd::new(bell)).unwrap()
    }

    /// Returns the eventfd of the doorbell, to be watched while the engine sleeps
    /// ([`Epoll::add_edge`](crate::sys::Epoll::add_edge)). It is never read.
    pub fn bell_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Adds the indexes of connections to poll. They are not reported again until the next signal
    /// of a peer, so the caller has to poll each until it is empty (-FI_EAGAIN).
    #[inline]
    pub fn ready(&self, out: &mut Vec<u32>) {
        self.door.words().take(|index| out.push(index));
    }

    /// Returns true if [`LocalDoor::ready`] has something to report.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.door.words().is_ready()
    }

    /// Announces a sleep of the engine, so the next peer also signals the eventfd. Returns false,
    /// without the announcement, if a peer has signalled meanwhile.
    ///
    /// Polling of pipes must be disabled before ([`crate::ring::LocalPipe::set_polled`]), and each
    /// checked once more ([`crate::ring::LocalPipe::has_data`]), before the engine sleeps.
    pub fn fall_asleep(&self) -> bool {
        self.door.words().fall_asleep()
    }

    /// Signals the engine's own eventfd, waking a sleeping thread.
    pub fn rouse(&self) {
        self.bell.signal_shared();
    }

    /// Announces the end of the sleep. The eventfd stays signalled: its edge-triggered watch
    /// reports each signal, and a read would be another system call for each.
    pub fn wake(&self) {
        self.door.words().wake();
    }
}

/// The door of a peer's engine.
#[derive(Debug)]
pub struct PeerDoor {
    door: SharedDoor,
    bell: EventFd,
    /// The peer's process (SO_PEERCRED).
    process: i32,
}

impl PeerDoor {
    /// Opens the doorbell and eventfd of these descriptors, received from the peer.
    pub(crate) fn open(memory: BorrowedFd<'_>, bell: EventFd, process: i32) -> Result<Self> {
        Ok(Self { door: SharedDoor::open(memory)?, bell, process })
    }

    /// Returns true if the peer's process has ended, as far as its pid shows.
    pub(crate) fn is_gone(&self) -> bool {
        is_gone(self.process)
    }

    /// Requests the peer to poll its connection with this index.
    pub fn ring(&self, index: u32) {
        self.door.words().ring(index, || self.bell.signal_shared());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_set_to_blocking_mode_is_not_rung() {
        let door = LocalDoor::new().unwrap();
        let peer = PeerDoor::open(door.memory(), door.bell_for_peer(), 0).unwrap();
        let bell = door.bell_fd();
        let full = (u64::MAX - 1).to_ne_bytes();
        // SAFETY: eight bytes are read from `full`; the descriptor is open.
        unsafe {
            assert_eq!(libc::write(bell, full.as_ptr().cast(), full.len()), 8);
            assert_eq!(libc::fcntl(bell, libc::F_SETFL, 0), 0);
        }
        assert!(door.fall_asleep());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            peer.ring(0);
            door.rouse();
            tell.send(()).unwrap();
        });
        told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn preempted_ringer_does_not_keep_others_from_ringing() {
        let door = LocalDoor::new().unwrap();
        let words = door.door.words();
        let mut rung = [0; 2];
        assert!(door.fall_asleep());
        words.ring(1, || {
            rung[0] += 1;
            words.ring(2, || rung[1] += 1);
        });
        assert_eq!(rung, [1, 1]);
        words.ring(3, || panic!("the owner was woken"));
        // It slept again before the first to ring went on.
        let mut ready = Vec::new();
        door.ready(&mut ready);
        assert_eq!(ready, [1, 2, 3]);
        assert!(door.fall_asleep());
        words.ring(1, || {
            door.wake();
            door.ready(&mut ready);
            assert!(door.fall_asleep());
        });
        let mut woken = false;
        words.ring(2, || woken = true);
        assert!(woken, "the second sleep is another");
    }
}
