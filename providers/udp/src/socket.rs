//! UDP sockets.
use ofi_provider::addr;
use ofi_provider::error::{Error, Result};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

/// A UDP socket with an address.
#[derive(Debug)]
pub(crate) struct Socket(UdpSocket);

impl Socket {
    /// A socket of this address; port 0 takes a free one.
    pub(crate) fn bound(to: &SocketAddr) -> Result<Self> {
        Ok(Self(UdpSocket::bind(to)?))
    }

    /// Moves to another address, keeping the descriptor.
    pub(crate) fn rebind(&self, to: &SocketAddr) -> Result {
        let other = UdpSocket::bind(to)?;
        // SAFETY: both descriptors are open and ours, and both stay so.
        let ret = unsafe { libc::dup3(other.as_raw_fd(), self.fd(), libc::O_CLOEXEC) };
        if ret < 0 { Err(Error::last_os()) } else { Ok(()) }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The address as applications pass it around.
    pub(crate) fn name(&self) -> Result<Vec<u8>> {
        Ok(addr::to_raw(&self.0.local_addr()?).as_bytes().to_vec())
    }
}
