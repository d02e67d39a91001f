//! Sealed datagrams of endpoints with a pre-shared key
//! ([`datagrams`](ofi_stream::secret::datagrams)).
use super::info::{MAX_MSG_SIZE, MAX_SEALED_SIZE};
use super::socket::DgramSocket;
use crate::plug_in::provider;
use ofi_provider::buf::{RecvBuf, SendBuf, zeroed};
use ofi_provider::datagram_io::{Datagram, receive_datagram};
use ofi_provider::error::{Error, Result};
use ofi_stream::secret::SecretKey;
use ofi_stream::secret::datagrams::{
    DATAGRAM_HEAD, DATAGRAM_OVERHEAD, DatagramOpener, DatagramSealer,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Maximum bytes of datagrams sent with one call.
const MOST_SENT: usize = 65507;

/// Maximum bytes received by one call.
const MOST_RECEIVED: usize = 64 << 10;

/// Sealer of an endpoint's outgoing datagrams.
#[derive(Debug)]
pub(crate) struct SealingSender {
    sealer: DatagramSealer,
    /// The address of the endpoint's socket.
    local: SocketAddr,
    /// Buffer for all datagrams sent with one call.
    buf: Box<[u8]>,
}

impl SealingSender {
    pub(crate) fn new(secret: &Arc<SecretKey>, local: SocketAddr) -> Result<Self> {
        let (sealer, buf) = (DatagramSealer::new(secret, local)?, zeroed(MOST_SENT)?);
        Ok(Self { sealer, local, buf })
    }

    /// Returns the destination of datagrams sent to this address: for an unspecified address, the
    /// system sends them to the sender's host.
    fn arrives_at(&self, to: &SocketAddr) -> SocketAddr {
        let mut to = *to;
        if to.ip().is_unspecified() {
            let loopback: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            let own = Some(self.local.ip()).filter(|ip| !ip.is_unspecified());
            to.set_ip(own.unwrap_or(loopback));
        }
        to
    }

    /// Sends a message, of at most [`MAX_SEALED_SIZE`] bytes.
    pub(crate) fn send(&mut self, socket: &DgramSocket, to: &SocketAddr, buf: &SendBuf) -> Result {
        let (arrives_at, len) = (self.arrives_at(to), buf.len() + DATAGRAM_OVERHEAD);
        let datagram = self.buf.get_mut(..len).ok_or(Error::MSGSIZE)?;
        buf.copy_to(0, &mut datagram[DATAGRAM_HEAD..DATAGRAM_HEAD + buf.len()]);
        self.sealer.seal(&arrives_at, datagram)?;
        socket.send_many(to, datagram, len)
    }

    /// Sends messages of `stride` bytes each; the last may be shorter.
    pub(crate) fn send_many(
        &mut self,
        socket: &DgramSocket,
        to: &SocketAddr,
        bytes: &[u8],
        stride: usize,
    ) -> Result {
        let all = bytes.len() + bytes.len().div_ceil(stride) * DATAGRAM_OVERHEAD;
        if stride > MAX_SEALED_SIZE || all > MOST_SENT {
            return Err(Error::MSGSIZE);
        }
        let arrives_at = self.arrives_at(to);
        let buf = &mut self.buf[..all];
        let sealed_stride = stride + DATAGRAM_OVERHEAD;
        for (message, datagram) in bytes.chunks(stride).zip(buf.chunks_mut(sealed_stride)) {
            datagram[DATAGRAM_HEAD..][..message.len()].copy_from_slice(message);
            self.sealer.seal(&arrives_at, datagram)?;
        }
        socket.send_many(to, buf, sealed_stride)
    }
}

/// Opener of an endpoint's incoming datagrams.
#[derive(Debug)]
pub(crate) struct OpeningReceiver {
    opener: DatagramOpener,
    /// The address of the endpoint's socket.
    local: SocketAddr,
    buf: Box<[u8]>,
}

impl OpeningReceiver {
    pub(crate) fn new(secret: &Arc<SecretKey>, local: SocketAddr) -> Result<Self> {
        Ok(Self { opener: DatagramOpener::new(secret), local, buf: zeroed(MOST_RECEIVED)? })
    }

    /// Receives a datagram for a posted receive, at the endpoint's socket or a group's. Returns
    /// `None` if it is no sealed datagram for this endpoint. Fails with -FI_EAGAIN if nothing has
    /// arrived.
    pub(crate) fn receive(
        &mut self,
        (fd, group): (RawFd, Option<SocketAddr>),
        recv: &RecvBuf,
    ) -> Result<Option<Datagram>> {
        let came = match receive_datagram(fd, &mut self.buf) {
            Err(Error::TRUNC) => return Ok(None),
            other => other?,
        };
        let mut to = group.unwrap_or(self.local);
        if let Some(ip) = came.to {
            to.set_ip(ip);
        }
        // The messages of several datagrams are put one behind the other again.
        let stride = if came.segment > 0 { came.segment } else { came.len.max(1) };
        let mut len = 0;
        for at in (0..came.len.max(1)).step_by(stride) {
            let end = came.len.min(at + stride);
            // Nothing that is sealed is longer, so that is not read.
            let most = end.min(at + MAX_MSG_SIZE + 1);
            match self.opener.open(&came.from, &to, &mut self.buf[at..most]) {
                Ok(message) => {
                    let message = at + message.start..at + message.end;
                    let to = len;
                    len += message.len();
                    self.buf.copy_within(message, to);
                }
                Err(why) => {
                    let dropped = self.opener.dropped();
                    ofi_provider::log_sparsely!(
                        provider(),
                        WARN,
                        EP_DATA,
                        "dropping a datagram of {}: {why} (FI_{}_AUTH_KEY_FILE, auth_key); \
                         {dropped} so far",
                        came.from,
                        provider().name().to_string_lossy().to_uppercase()
                    );
                    if end == came.len && len == 0 {
                        return Ok(None);
                    }
                }
            }
        }
        recv.copy_from(0, &self.buf[..len.min(recv.len())]);
        let segment = came.segment.saturating_sub(DATAGRAM_OVERHEAD);
        Ok(Some(Datagram { len, from: Some(came.from), segment }))
    }
}
