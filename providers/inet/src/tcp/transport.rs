//! Transport of the engine in this provider: TCP sockets, epoll, and an io_uring if the user
//! requests it (FI_TCP_IO_URING) and the system provides it.
use super::config::config;
use super::info;
use super::multipath;
use super::ring::{Ring, RingOp};
use super::silence::accept_queue_len;
use super::sock::TcpSocket;
use crate::plug_in::{self, provider, variable};
use core::time::Duration;
use ofi_provider::addr::Addr;
use ofi_provider::buf::{CopyMode, GatherList, ScatterList, SegmentLimit};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{API_VERSION, InfoChain, InfoQuery, ProviderOffer};
use ofi_provider::provider::Provider;
use ofi_provider::sys::{Epoll, PollEvent};
use ofi_provider::traffic_class::TrafficClass;
use ofi_stream::engine::BatchFlusher;
use ofi_stream::objects::LinkProvider;
use ofi_stream::settings::StreamSettings;
use ofi_stream::transport::{
    ByteLink, FlushTarget, LinkClock, LinkListener, LinkOp, MAX_EACH, Receiving, Sending,
    Transport, Watch, ZeroCopyLink, ZerocopyDone,
};
use std::os::fd::RawFd;
use std::sync::{Once, Weak};
use std::time::Instant;

/// Time limit in seconds for the connection request of a silent peer.
const REQUEST_TIMEOUT: u32 = 9;

/// Sockets with their poller.
#[derive(Debug)]
pub(crate) struct Sockets {
    watch: Watch,
    /// Takes many operations with one system call; without it there is a call for each.
    ring: Option<Box<Ring>>,
}

impl Sockets {
    /// Runs operations on the ring. If the ring fails, it is dropped and system calls are used
    /// from then on.
    fn run(&mut self, ops: &mut [RingOp<'_>]) {
        if let Some(ring) = &mut self.ring {
            if let Err(error) = ring.run(ops) {
                ofi_provider::log!(
                    provider(),
                    WARN,
                    EP_DATA,
                    "the io_uring is out of order ({error}); going on without it"
                );
                self.ring = None;
            }
        }
    }

    #[inline(never)]
    fn transfer_by_ring(&mut self, socket: &TcpSocket, op: LinkOp<'_, '_>) -> Result<usize> {
        let mut message;
        let op = match op {
            LinkOp::Receive(buf) => RingOp::receive(socket, buf),
            LinkOp::ReceiveList(list) => {
                message = list.message();
                // SAFETY: the list has the memory until this returns, when the operation is over.
                unsafe { RingOp::receive_list(socket, &mut message) }
            }
            LinkOp::SendList(list, way) => {
                message = list.message();
                // SAFETY: the list has the memory until this returns; the kernel holds the pages
                // itself that it reads later.
                unsafe { RingOp::send_list(socket, &message, way) }
            }
        };
        let mut ops = [op];
        self.run(&mut ops);
        ops[0].result
    }
}

/// Returns the ring requested by the user (FI_TCP_IO_URING); none if the system provides no
/// io_uring.
#[inline(never)]
fn ring() -> Option<Box<Ring>> {
    if !config().io_uring {
        return None;
    }
    if config().engine.secret.encrypts() {
        static NOTIFIED: Once = Once::new();
        NOTIFIED.call_once(|| {
            ofi_provider::log!(
                provider(),
                INFO,
                DOMAIN,
                "what is encrypted goes through no io_uring; {} has no effect",
                variable(c"io_uring")
            );
        });
        return None;
    }
    let ring = Ring::new().inspect_err(|error| {
        static NOTIFIED: Once = Once::new();
        NOTIFIED.call_once(|| {
            ofi_provider::log!(
                provider(),
                INFO,
                DOMAIN,
                "the system lets us have no io_uring ({error}); {} has no effect",
                variable(c"io_uring")
            );
        });
    });
    ring.ok().map(Box::new)
}

impl LinkProvider for Sockets {
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        info::getinfo(query)
    }

    fn offers() -> Result<Vec<ProviderOffer>> {
        info::offered(API_VERSION, None)
    }

    fn segments() -> SegmentLimit {
        SegmentLimit::new(plug_in::current().segments)
    }

    fn region_segments() -> usize {
        plug_in::current().region_segments
    }

    fn open() -> Result<Self> {
        plug_in::current().tell();
        Ok(Self { ring: ring(), ..Self::open_passive()? })
    }

    fn open_passive() -> Result<Self> {
        config().peers.check()?;
        Ok(Self { watch: Watch::new()?, ring: None })
    }
}

impl LinkClock for Sockets {}

impl Transport for Sockets {
    type Link = TcpSocket;
    type Listener = TcpSocket;
    type Poller = Epoll;
    type Flusher = BatchFlusher;

    #[inline(always)]
    fn poller(&self) -> &Epoll {
        self.watch.poller()
    }

    #[inline(always)]
    fn poll(&self, events: &mut Vec<PollEvent>) {
        self.watch.poll(events);
    }

    fn wait_fd(&self) -> RawFd {
        self.watch.wait_fd()
    }

    fn set_timer(&self, delay: Duration) {
        self.watch.set_timer(delay);
    }

    fn clear_timer(&self) {
        self.watch.clear_timer();
    }

    fn start_flusher(&self, engine: Weak<dyn FlushTarget>) -> Result<Self::Flusher> {
        BatchFlusher::new(engine, provider())
    }

    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<TcpSocket> {
        let (local, to) = (&local.ip()?, &to.ip()?);
        let socket = multipath::connecting_socket(to)?;
        if config().nodelay {
            socket.set_nodelay();
        }
        socket.set_class(plug_in::traffic_class());
        if local.is_ipv4() == to.is_ipv4() && (keep_port || !local.ip().is_unspecified()) {
            // Peers know the endpoint by its own address, so the connection comes from there.
            if keep_port {
                socket.bind_listener(local, None)?;
            } else {
                socket.bind_source(*local)?;
            }
        }
        socket.connect(to)?;
        socket.set_connect_timeout(config().peer_timeout);
        Ok(socket)
    }

    fn bind(&self, at: &Addr) -> Result<(TcpSocket, Addr)> {
        let at = at.ip()?;
        let socket = multipath::listening_socket(&at)?;
        // The first packets of accepted connections have the class of the listener.
        socket.set_class(plug_in::traffic_class());
        if !config().mptcp {
            // Accepted connections have these options without further calls.
            if config().nodelay {
                socket.set_nodelay();
            }
            socket.set_peer_timeout(config().peer_timeout);
        }
        socket.bind_listener(&at, config().ports)?;
        let local = socket.local_addr()?;
        Ok((socket, local.into()))
    }

    #[inline(always)]
    fn is_ring(&self) -> bool {
        self.ring.is_some()
    }

    #[inline(always)]
    fn transfer(&mut self, socket: &TcpSocket, op: LinkOp<'_, '_>) -> Result<usize> {
        if self.is_ring() { self.transfer_by_ring(socket, op) } else { op.on(socket) }
    }

    fn send_each(&mut self, sends: &mut [Sending<'_, TcpSocket>]) {
        for sends in sends.chunks_mut(MAX_EACH) {
            let mut ops = RingOp::nothing();
            for (op, one) in ops.iter_mut().zip(&*sends) {
                *op = RingOp::send(one.link, one.bytes);
            }
            self.run(&mut ops[..sends.len()]);
            let results = ops.map(|op| op.result);
            sends.iter_mut().zip(results).for_each(|(one, result)| one.result = result);
        }
    }

    fn receive_each(&mut self, receives: &mut [Receiving<'_, TcpSocket>]) {
        for receives in receives.chunks_mut(MAX_EACH) {
            let (mut ops, count) = (RingOp::nothing(), receives.len());
            for (op, one) in ops.iter_mut().zip(&mut *receives) {
                *op = RingOp::receive(one.link, one.buf);
            }
            self.run(&mut ops[..count]);
            let results = ops.map(|op| op.result);
            receives.iter_mut().zip(results).for_each(|(one, result)| one.result = result);
        }
    }
}

impl LinkListener for TcpSocket {
    type Link = Self;

    fn id(&self) -> RawFd {
        self.fd()
    }

    fn listen(&self, backlog: i32) -> Result {
        self.0.listen(backlog)
    }

    fn stop_listening(&self) {
        self.0.stop_listening();
    }

    fn waiting(&self) -> usize {
        accept_queue_len(&self.0).unwrap_or(1)
    }

    fn accept(&self) -> Result<(Self, Addr)> {
        let (socket, from) = Self::accept(self)?;
        if !config().peers.admits(from.ip()) {
            return Err(Error::CONNABORTED);
        }
        socket.set_class(plug_in::traffic_class());
        if config().nodelay && config().mptcp {
            socket.set_nodelay();
        }
        Ok((socket, from.into()))
    }
}

impl ByteLink for TcpSocket {
    type Id = RawFd;

    fn provider() -> &'static Provider {
        provider()
    }

    #[inline(always)]
    fn settings() -> &'static StreamSettings {
        &config().engine
    }

    #[inline(always)]
    fn id(&self) -> RawFd {
        self.fd()
    }

    #[inline(always)]
    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.0.recv_inet(buf)
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.0.send(bytes)
    }

    #[inline(always)]
    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        list.receive(self.fd())
    }

    #[inline(always)]
    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        list.send_by(self.fd(), way)
    }

    fn take_error(&self) -> Result {
        self.0.take_error()
    }

    fn local_addr(&self) -> Result<Addr> {
        Self::local_addr(self).map(Addr::Ip)
    }

    fn peer_addr(&self) -> Result<Addr> {
        Self::peer_addr(self).map(Addr::Ip)
    }

    fn is_on_this_host(&self) -> bool {
        Self::is_on_this_host(self)
    }

    fn is_stalled(&self) -> bool {
        Self::is_stalled(self)
    }

    fn subflows(&self) -> u64 {
        if config().mptcp { multipath::subflows(&self.0) } else { 0 }
    }

    fn connect_limit(&self) -> Option<Duration> {
        // TCP_USER_TIMEOUT is no option of MPTCP.
        let seconds = config().peer_timeout;
        let is_limited = config().mptcp && seconds > 0 && self.is_multipath();
        is_limited.then(|| Duration::from_secs(seconds.into()))
    }

    fn fd(&self) -> Result<RawFd> {
        Ok(self.0.fd())
    }

    fn waits(&self) {
        self.set_connect_timeout(REQUEST_TIMEOUT);
    }

    fn made(&self) {
        self.set_peer_timeout(config().peer_timeout);
        self.set_no_network();
    }

    fn set_traffic_class(&self, class: TrafficClass) {
        self.set_class(class);
    }

    fn unacknowledged(&self) -> usize {
        self.0.unacknowledged()
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn silence_interval(&self) -> Option<Duration> {
        Self::silence_interval(self)
    }

    fn is_silent(&self, now: Instant) -> bool {
        Self::is_silent(self, now)
    }

    fn probe(&self) {
        Self::probe(self);
    }

    fn shutdown(&self) {
        self.0.shutdown();
    }

    fn end_sending(&self) {
        self.0.end_sending();
    }

    fn reset_when_closed(&self) {
        self.0.reset_when_closed();
    }
}

impl ZeroCopyLink for TcpSocket {
    fn set_zerocopy(&self) -> Result {
        Self::set_zerocopy(self)
    }

    fn zerocopy_done(&self) -> Result<ZerocopyDone> {
        Self::zerocopy_done(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_stream::psk_transport::PskTransport;
    use ofi_stream::secret::PskConfig;
    use ofi_stream::shm_upgrade::ShmUpgrade;
    use std::net::Ipv4Addr;

    #[test]
    fn sockets_satisfy_the_engine_contract() {
        let any = Addr::Ip((Ipv4Addr::LOCALHOST, 0).into());
        let [server, client] = [(); 2].map(|()| Sockets::open().unwrap());
        ofi_stream::transport_conformance::check(&server, &client, &any);
    }

    #[test]
    fn sockets_upgraded_to_shared_memory_satisfy_the_contract() {
        let any = Addr::Ip((Ipv4Addr::LOCALHOST, 0).into());
        let [server, client] =
            [(); 2].map(|()| ShmUpgrade::<PskTransport<Sockets>>::open().unwrap());
        ofi_stream::transport_conformance::check(&server, &client, &any);
        ofi_stream::transport_conformance::check_local(&server, &client, &any);
    }

    #[test]
    fn links_with_a_secret_are_as_well() {
        let any = Addr::Ip((Ipv4Addr::LOCALHOST, 0).into());
        for encrypts in [false, true] {
            let keyed = || {
                let secret = PskConfig::new(b"the secret of a job", encrypts);
                PskTransport::with_config(Sockets::open().unwrap(), secret)
            };
            let [server, client] = [(); 2].map(|()| keyed());
            ofi_stream::transport_conformance::check(&server, &client, &any);
            let [server, client] = [(); 2].map(|()| ShmUpgrade::new(keyed()));
            ofi_stream::transport_conformance::check(&server, &client, &any);
            ofi_stream::transport_conformance::check_local(&server, &client, &any);
        }
    }
}
