//! Links: AF_UNIX sockets with abstract names (unix(7)).
//!
//! An endpoint with the name `n` listens at `ofi-example/n`. A connecting endpoint binds its end to
//! a name below its own, `ofi-example/m/1`, so the listener recognizes `m`.
use crate::{EXAMPLE, SETTINGS};
use core::time::Duration;
use ofi_provider::addr::{Addr, EndpointName};
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::error::{Error, Result};
use ofi_provider::provider::Provider;
use ofi_provider::sock::StreamSocket;
use ofi_provider::sys::{Epoll, PollEvent};
use ofi_stream::engine::BatchFlusher;
use ofi_stream::settings::StreamSettings;
use ofi_stream::transport::{
    ByteLink, FlushTarget, LinkClock, LinkListener, Transport, Watch, ZeroCopyLink,
};
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

/// Prefix of the system's name of this provider's sockets, after the family.
const PREFIX: &str = "\0ofi-example/";

/// Maximum length of an endpoint's name, in bytes: the system permits 108 including the additions.
const MAX_NAME: usize = 64;

/// Returns a name not in use on this host, except possibly by another container's process.
fn fresh() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The system's name of a socket: `struct sockaddr_un`.
fn system_name(name: &str) -> Vec<u8> {
    let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    [&family, PREFIX.as_bytes(), name.as_bytes()].concat()
}

/// Returns the endpoint of a socket's system name: the part between [`PREFIX`] and the next slash.
fn endpoint_of(system: &[u8]) -> Result<Addr> {
    let start = system_name("").len();
    let name = system.get(start..).and_then(|name| name.split(|byte| *byte == b'/').next());
    let name = CString::new(name.unwrap_or_default()).map_err(|_| Error::INVAL)?;
    EndpointName::new(&name).map(Addr::Name)
}

/// The name in an address; a new one if the address leaves it open.
fn name_of(addr: &Addr) -> Result<String> {
    let Addr::Name(name) = addr else { return Err(Error::INVAL) };
    let name = name.as_str()?;
    match name.len() {
        0 => Ok(fresh()),
        1..=MAX_NAME if !name.contains('/') => Ok(name.to_owned()),
        _ => Err(Error::INVAL),
    }
}

/// Creates a socket with the name returned by `name`, called again while the result is in use
/// elsewhere.
fn bound(
    mut name: impl FnMut() -> Result<String>,
    may_wait: bool,
) -> Result<(StreamSocket, String)> {
    let socket = StreamSocket::new(libc::AF_UNIX)?;
    loop {
        let name = name()?;
        match socket.bind(&system_name(&name)) {
            Err(Error::ADDRINUSE) if may_wait => {}
            done => return done.map(|()| (socket, name)),
        }
    }
}

/// Links of an engine, with their poller.
#[derive(Debug)]
pub(crate) struct HostLinks(Watch);

impl HostLinks {
    pub(crate) fn new() -> Result<Self> {
        Watch::new().map(Self)
    }
}

impl LinkClock for HostLinks {}

impl Transport for HostLinks {
    type Link = HostLink;
    type Listener = HostListener;
    type Poller = Epoll;
    type Flusher = BatchFlusher;

    fn poller(&self) -> &Epoll {
        self.0.poller()
    }

    fn poll(&self, events: &mut Vec<PollEvent>) {
        self.0.poll(events);
    }

    fn wait_fd(&self) -> RawFd {
        self.0.wait_fd()
    }

    fn set_timer(&self, delay: Duration) {
        self.0.set_timer(delay);
    }

    fn clear_timer(&self) {
        self.0.clear_timer();
    }

    fn start_flusher(&self, engine: Weak<dyn FlushTarget>) -> Result<BatchFlusher> {
        BatchFlusher::new(engine, &EXAMPLE)
    }

    fn dial(&self, local: &Addr, _keep_port: bool, to: &Addr) -> Result<HostLink> {
        let own = name_of(local)?;
        let (socket, _) = bound(|| Ok(format!("{own}/{}", fresh())), true)?;
        // The engine takes an error for an answer of the other end, and asks the link for it.
        let refused = socket.connect(&system_name(&name_of(to)?)).err();
        Ok(HostLink { socket, refused })
    }

    fn bind(&self, at: &Addr) -> Result<(HostListener, Addr)> {
        let (socket, _) = bound(|| name_of(at), at.is_any())?;
        let at = endpoint_of(&socket.local_addr()?)?;
        Ok((HostListener(socket), at))
    }
}

/// Listener of an endpoint.
#[derive(Debug)]
pub(crate) struct HostListener(StreamSocket);

impl LinkListener for HostListener {
    type Link = HostLink;

    fn id(&self) -> RawFd {
        self.0.fd()
    }

    fn listen(&self, backlog: i32) -> Result {
        self.0.listen(backlog)
    }

    fn stop_listening(&self) {
        self.0.stop_listening();
    }

    fn accept(&self) -> Result<(HostLink, Addr)> {
        let (socket, from) = self.0.accept()?;
        // Every user of the host can call; only processes of ours are peers.
        match endpoint_of(&from) {
            Ok(from) if socket.is_of_same_user()? => Ok((HostLink { socket, refused: None }, from)),
            _ => Err(Error::CONNABORTED),
        }
    }
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct HostLink {
    socket: StreamSocket,
    /// Reason for a missing peer.
    refused: Option<Error>,
}

impl ByteLink for HostLink {
    type Id = RawFd;

    fn provider() -> &'static Provider {
        &EXAMPLE
    }

    fn settings() -> &'static StreamSettings {
        &SETTINGS
    }

    fn id(&self) -> RawFd {
        self.socket.fd()
    }

    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.socket.recv(buf)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.socket.send(bytes)
    }

    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        self.socket.recv_list(list)
    }

    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        list.send_by(self.socket.fd(), way)
    }

    fn take_error(&self) -> Result {
        self.refused.map_or_else(|| self.socket.take_error(), Err)
    }

    fn local_addr(&self) -> Result<Addr> {
        endpoint_of(&self.socket.local_addr()?)
    }

    fn peer_addr(&self) -> Result<Addr> {
        endpoint_of(&self.socket.peer_addr()?)
    }

    /// Returns 0: the kernel delivers sent bytes after a close.
    fn unacknowledged(&self) -> usize {
        0
    }

    fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    fn fd(&self) -> Result<RawFd> {
        Ok(self.socket.fd())
    }

    fn shutdown(&self) {
        self.socket.shutdown();
    }

    fn end_sending(&self) {
        self.socket.end_sending();
    }
}

impl ZeroCopyLink for HostLink {}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::abi::FI_ADDR_STR;

    #[test]
    fn links_satisfy_the_engine_contract() {
        let any = Addr::any(FI_ADDR_STR as u32);
        let [server, client] = [(); 2].map(|()| HostLinks::new().unwrap());
        ofi_stream::transport_conformance::check(&server, &client, &any);
    }
}
