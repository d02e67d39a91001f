//! Proof of a common host: a host name is no proof, since several hosts may share one name and one
//! host may have several.
//!
//! Each endpoint has a socket with a random name contained in its address (`LinkAddr::mark`). A
//! process finding a socket of this name is on the same host, in the same network namespace, also
//! used by the names of the shm provider. The name starts with the user's number, so both processes
//! run for the same user. Nothing is ever sent to the socket.
use ofi_provider::error::{Error, Result};
use ofi_provider::link_addr::MARK_LEN;
use ofi_provider::sys;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Socket for finding an endpoint from other processes of this host.
#[derive(Debug)]
pub(crate) struct HostToken {
    mark: [u8; MARK_LEN],
    _socket: OwnedFd,
}

/// Attempts to find a free name: a collision is practically impossible.
const ATTEMPTS: usize = 8;

/// The name of the socket of a mark, for processes of this user.
fn name(mark: &[u8; MARK_LEN]) -> String {
    let number = u128::from_be_bytes(*mark);
    format!("ofi-lnx/{}/{number:032x}", sys::user())
}

impl HostToken {
    /// A socket with a name of its own.
    pub(crate) fn new() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let mut mark = [0; MARK_LEN];
            mark[..8].copy_from_slice(&sys::random().to_ne_bytes());
            mark[8..].copy_from_slice(&sys::random().to_ne_bytes());
            match sys::name_holder(name(&mark).as_bytes()) {
                Ok(socket) => return Ok(Self { mark, _socket: socket }),
                Err(Error::ADDRINUSE) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::ADDRINUSE)
    }

    /// Returns the mark in the endpoint's address.
    pub(crate) fn mark(&self) -> [u8; MARK_LEN] {
        self.mark
    }
}

/// Returns true if the endpoint with this mark is on this host, and runs for the same user.
pub(crate) fn is_here(mark: &[u8; MARK_LEN]) -> bool {
    let found = || -> Result {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(socket.connect_addr(&SocketAddr::from_abstract_name(name(mark))?)?)
    };
    found().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_as_long_as_it_is_there_and_no_other_is() {
        let (one, other) = (HostToken::new().unwrap(), HostToken::new().unwrap());
        assert_ne!(one.mark(), other.mark());
        assert!(is_here(&one.mark()) && is_here(&other.mark()));
        let mut wrong = one.mark();
        wrong[3] ^= 1;
        assert!(!is_here(&wrong) && !is_here(&[0; MARK_LEN]));
        // Nothing can be sent there, which would stay until the end, descriptors among it.
        let socket = UnixDatagram::unbound().unwrap();
        let at = SocketAddr::from_abstract_name(name(&one.mark())).unwrap();
        assert!(socket.send_to_addr(b"x", &at).is_err());
        let gone = one.mark();
        drop(one);
        assert!(!is_here(&gone) && is_here(&other.mark()));
    }
}
