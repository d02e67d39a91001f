//! Control connection between both ends: frames over a socket, each with a time limit.
use crate::failure::{Failure, Outcomes, fail};
use crate::wire::{
    Decoder, Encoder, HEAD_LEN, HELLO_LEN, Kind, check_hello, head, hello, parse_head,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time limit of the first bytes of a peer.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a frame after its first byte.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected socket, nonblocking.
pub(crate) struct Control {
    socket: File,
    timeout: Duration,
}

/// Returns a duration as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() }
}

impl Control {
    /// Exchanges the first bytes. `timeout` limits each later wait for a frame.
    pub(crate) fn new(socket: OwnedFd, timeout: Duration) -> Outcomes<Self> {
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|error| Failure(format!("control connection: {error}")))?;
        let mut control = Self { socket: socket.into(), timeout };
        let limit = Instant::now() + HELLO_TIMEOUT.min(timeout);
        control.write(&hello(), limit)?;
        let mut theirs = [0; HELLO_LEN];
        control.read(&mut theirs, limit)?;
        check_hello(&theirs).map_err(Failure)?;
        Ok(control)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wait(&self, flags: PollFlags, limit: Instant) -> Outcomes {
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.socket, flags)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(0) => return fail("the other end does not answer"),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return fail(format!("control connection: {error}")),
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8], limit: Instant) -> Outcomes {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, limit)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return fail(format!("control connection: {error}")),
            }
        }
        Ok(())
    }

    fn read(&mut self, mut bytes: &mut [u8], limit: Instant) -> Outcomes {
        while !bytes.is_empty() {
            match self.socket.read(bytes) {
                Ok(0) => return fail("the other end has closed the control connection"),
                Ok(read) => bytes = &mut bytes[read..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN, limit)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return fail(format!("control connection: {error}")),
            }
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, kind: Kind, payload: &[u8]) -> Outcomes {
        let limit = Instant::now() + self.timeout.max(FRAME_TIMEOUT);
        let mut frame = head(kind, payload.len()).to_vec();
        frame.extend(payload);
        self.write(&frame, limit)
    }

    /// Receives a frame of any kind.
    pub(crate) fn receive_any(&mut self) -> Outcomes<(Kind, Vec<u8>)> {
        self.wait(PollFlags::IN, Instant::now() + self.timeout)?;
        let limit = Instant::now() + FRAME_TIMEOUT;
        let mut start = [0; HEAD_LEN];
        self.read(&mut start, limit)?;
        let (kind, length) = parse_head(start).map_err(Failure)?;
        let mut payload = vec![0; length];
        self.read(&mut payload, limit)?;
        if kind == Kind::Failed {
            let text = Decoder(&payload).text().map_err(Failure)?;
            return fail(format!("the other end: {text}"));
        }
        Ok((kind, payload))
    }

    /// Receives a frame of this kind; a failure of the peer becomes an error.
    pub(crate) fn receive(&mut self, wanted: Kind) -> Outcomes<Vec<u8>> {
        match self.receive_any()? {
            (kind, payload) if kind == wanted => Ok(payload),
            (kind, _) => fail(format!("the other end sent {kind:?} instead of {wanted:?}")),
        }
    }

    /// Notifies the peer of an error; it may be gone.
    pub(crate) fn send_failure(&mut self, failure: &Failure) {
        let _ = self.send(Kind::Failed, &Encoder::default().text(&failure.0).0);
    }
}

impl Control {
    /// Sets the limit of each later wait for a frame.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Fails if a frame has arrived, as there is a reason for none but a failure, or if the peer is
    /// gone.
    pub(crate) fn check_idle(&mut self) -> Outcomes {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(Duration::ZERO))) {
            Ok(0) | Err(_) => Ok(()),
            Ok(_) => {
                let (kind, _) = self.receive_any()?;
                fail(format!("the other end sent {kind:?} too early"))
            }
        }
    }
}
