//! Packet ports: a datagram endpoint of the core provider, or a simulated network.
use super::identity::RxdIdentity;
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};
use ofi_provider::addr::Addr;
use ofi_provider::core_provider::{
    CoreAv, CoreBuf, CoreCq, CoreDgram, CoreDomain, CoreKeys, CoreWaitSet, DatagramBatch,
    DgramMeans, Done, Entries, UNKNOWN_SOURCE_LEN,
};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::lock::Level;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Source of a packet, as far as reported by the core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PacketSource {
    /// From the address with this name in the port.
    Named(fi_addr_t),
    /// From this address without a name.
    At(Addr),
    /// The core does not tell.
    Unnamed,
}

/// Carrier of packets, possibly lost, duplicated or reordered.
pub(crate) trait PacketPort: Send {
    /// The own address.
    fn name(&self) -> Result<Vec<u8>>;
    /// Names an address to send to.
    fn resolve(&mut self, addr: &Addr) -> Result<fi_addr_t>;
    /// Forgets a name.
    fn forget(&mut self, to: fi_addr_t);
    /// Sends packets of `stride` bytes each; the last may be shorter. Fails with -FI_EAGAIN if
    /// there is no space now; other packets may be lost as usual. Some may have been sent before an
    /// error. The buffer has space for [`DatagramBatch`] before the packets.
    fn send_many(&mut self, to: fi_addr_t, buf: &mut [u8], stride: usize) -> Result {
        self.send(to, &buf[DatagramBatch::LEN..], stride)
    }
    /// Sends packets like `send_many`, without free space before them.
    fn send(&mut self, to: fi_addr_t, packets: &[u8], stride: usize) -> Result;
    /// Calls `each` with the received packets, some at a time, and their sources. Returns the
    /// number of receives, and true if more may be available.
    fn receive(&mut self, each: &mut dyn FnMut(&PacketSource, &[u8])) -> (usize, bool);
    /// Returns the next destination with a closed port, as reported by its host; the report may be
    /// forged.
    fn refused(&mut self) -> Option<Addr> {
        None
    }
    /// A descriptor to wait for packets on.
    fn fd(&self) -> Option<RawFd>;
    /// Returns true if a thread may sleep on the descriptor.
    fn may_block(&self) -> bool;
}

/// Source of packet ports for endpoints.
pub(crate) trait PortSource: Send + Sync {
    /// Opens the packet port of this endpoint.
    fn open(&self, identity: &RxdIdentity) -> Result<Box<dyn PacketPort>>;
    /// A descriptor to wait for packets of all of them on, if there is one.
    fn fd(&self) -> Option<RawFd> {
        None
    }
    /// Returns true if a thread may sleep on the descriptor.
    fn may_block(&self) -> bool {
        true
    }
}

/// Domain of the core provider, with datagram endpoints as packet ports.
#[derive(Debug)]
pub(crate) struct CorePorts {
    pub(crate) domain: Arc<CoreDomain>,
    /// The core's info, to make those of its endpoints of.
    pub(crate) info: InfoBuf,
    /// Maximum packet size, and the core's prefix before a received packet and before a sent one.
    pub(crate) packet: usize,
    pub(crate) prefix: usize,
    pub(crate) send_prefix: usize,
    /// Maximum packet size copied at once by the core.
    pub(crate) inject: usize,
    pub(crate) level: Level,
    /// The format of addresses.
    pub(crate) format: u32,
    /// The core reports the sources of packets.
    pub(crate) notifies: bool,
    /// Core's wait set containing all queues, if it has wait sets. The system limits the number of
    /// paths from sockets to a waiter.
    pub(crate) wait_set: Option<Arc<CoreWaitSet>>,
    /// Receives for many packets to be posted beyond the first ones of each endpoint.
    pub(crate) spare_receives: SpareReceives,
}

impl PortSource for Arc<CorePorts> {
    fn open(&self, identity: &RxdIdentity) -> Result<Box<dyn PacketPort>> {
        Ok(Box::new(CorePort::open(self, identity)?))
    }

    fn fd(&self) -> Option<RawFd> {
        self.wait_set.as_ref().map(|set| set.fd())
    }

    fn may_block(&self) -> bool {
        self.wait_set.as_ref().is_none_or(|set| set.may_block())
    }
}

impl CorePorts {
    /// Returns the source of a receive's packets.
    #[inline]
    fn source_of(&self, done: &Done, buf: &[u8], means: DgramMeans) -> PacketSource {
        if done.src != FI_ADDR_NOTAVAIL && self.notifies {
            return PacketSource::Named(done.src);
        }
        match buf.len().checked_sub(UNKNOWN_SOURCE_LEN) {
            Some(end) if means.unknown_sources && done.len <= end => {
                let addr = Addr::read(self.format, &buf[end..]);
                addr.map_or(PacketSource::Unnamed, |addr| PacketSource::At(addr.identity()))
            }
            _ => PacketSource::Unnamed,
        }
    }

    /// A key for memory of this provider's own.
    fn key(&self) -> u64 {
        static KEYS: LazyLock<CoreKeys> = LazyLock::new(|| CoreKeys::new(size_of::<u64>()));
        KEYS.draw()
    }
}

/// Receives posted to the core if each takes one packet.
const RECEIVES: usize = 512;
/// First and maximum number of posted receives if each takes many packets. Packets without a receive
/// stay in the socket's buffer.
const MANY_RECEIVES: (usize, usize) = (4, 64);
/// Size in bytes of a receive for many packets: 29 more than the longest datagram of UDP over IPv4,
/// with space for its source.
const MANY_LEN: usize = 64 << 10;
/// Bytes of packets to be buffered by the system.
const HELD: usize = 4 << 20;
/// Entries of the core's completion queue.
const QUEUE: usize = 2048;

/// Tokens of receives and of sends.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;

/// Receives shared by the endpoints of a domain, 32 MiB in all.
#[derive(Clone, Debug)]
pub(crate) struct SpareReceives(Arc<AtomicUsize>);

impl Default for SpareReceives {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new((32 << 20) / MANY_LEN)))
    }
}

impl SpareReceives {
    /// Takes up to this many of the receives left, and returns their number.
    fn take(&self, most: usize) -> usize {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(most))
        });
        left.unwrap_or(0).min(most)
    }

    fn give_back(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Number of receives to be posted. It grows with the packets of a time, as far as the domain has spare
/// receives.
#[derive(Debug)]
struct ReceiveTarget {
    count: usize,
    most: usize,
    spare: SpareReceives,
    taken: usize,
}

impl ReceiveTarget {
    fn new(means: DgramMeans, spare: &SpareReceives) -> Self {
        let (count, most) = if means.many { MANY_RECEIVES } else { (RECEIVES, RECEIVES) };
        Self { count, most, spare: spare.clone(), taken: 0 }
    }

    /// Doubles the number if as many receives as posted, or as can be read, have completed at once.
    fn grow(&mut self, completed: usize) {
        if completed >= self.count.min(Entries::MAX) && self.count < self.most {
            let taken = self.spare.take(self.count.min(self.most - self.count));
            self.taken += taken;
            self.count += taken;
        }
    }
}

impl Drop for ReceiveTarget {
    fn drop(&mut self) {
        self.spare.give_back(self.taken);
    }
}

/// A datagram endpoint of the core provider's.
struct CorePort {
    ep: CoreDgram,
    cq: Arc<CoreCq>,
    common: Arc<CorePorts>,
    entries: Entries,
    /// Free buffers.
    free: Vec<CoreBuf>,
    /// Receives posted to the core.
    posted: usize,
    target: ReceiveTarget,
    means: DgramMeans,
}

impl CorePort {
    /// Opens the core's endpoint of this one.
    fn open(common: &Arc<CorePorts>, identity: &RxdIdentity) -> Result<Self> {
        let core = identity.own.as_ref().map_or(&common.info, |own| &own.info);
        let mut info = core.as_ref().to_owned()?;
        info.set_src_addr(Some(&identity.local.to_bytes()))?;
        let cq =
            CoreCq::open(&common.domain, QUEUE, common.level.clone(), common.wait_set.as_ref())?;
        let av = CoreAv::open(&common.domain)?;
        let (ep, means) = CoreDgram::open(&info, &cq, &av, HELD)?;
        let mut port = Self {
            ep,
            cq,
            common: common.clone(),
            entries: Entries::default(),
            free: Vec::new(),
            posted: 0,
            target: ReceiveTarget::new(means, &common.spare_receives),
            means,
        };
        port.post();
        if port.posted == 0 {
            // Nothing would ever come.
            return Err(Error::NOMEM);
        }
        Ok(port)
    }

    fn buffer(&mut self) -> Result<CoreBuf> {
        let common = &self.common;
        let behind = if self.means.unknown_sources { UNKNOWN_SOURCE_LEN } else { 0 };
        let len = if self.means.many { MANY_LEN } else { common.prefix + common.packet + behind };
        self.free.pop().map_or_else(|| common.domain.buffer(len, || common.key()), Ok)
    }

    /// Posts receives until there are enough, or the core has no space.
    fn post(&mut self) {
        while self.posted < self.target.count {
            let Ok(buf) = self.buffer() else { return };
            if let Err((_, buf)) = self.ep.post(buf, RECEIVE) {
                self.free.push(buf);
                return;
            }
            self.posted += 1;
        }
    }

    fn send_one(&mut self, to: fi_addr_t, packet: &[u8]) -> Result {
        let prefix = self.common.send_prefix;
        if prefix == 0 && packet.len() <= self.common.inject {
            return self.ep.inject(packet, to);
        }
        let mut buf = self.buffer()?;
        let end = prefix + packet.len();
        buf[prefix..end].copy_from_slice(packet);
        self.ep.send(buf, end, to, SEND).map_err(|(error, buf)| {
            self.free.push(buf);
            error
        })
    }
}

impl PacketPort for CorePort {
    fn name(&self) -> Result<Vec<u8>> {
        self.ep.name()
    }

    fn resolve(&mut self, addr: &Addr) -> Result<fi_addr_t> {
        self.ep.av().insert(&addr.to_own_bytes())
    }

    fn forget(&mut self, to: fi_addr_t) {
        self.ep.av().remove(to);
    }

    fn send_many(&mut self, to: fi_addr_t, buf: &mut [u8], stride: usize) -> Result {
        let several = buf.len() > DatagramBatch::LEN + stride;
        if several && self.means.many && self.common.prefix == 0 {
            DatagramBatch { to, stride: stride as u64 }.write(buf);
            match self.ep.send_many(buf) {
                // Not all networks take them at a time.
                Err(error) if error != Error::AGAIN => {}
                result => return result,
            }
        }
        self.send(to, &buf[DatagramBatch::LEN..], stride)
    }

    fn send(&mut self, to: fi_addr_t, packets: &[u8], stride: usize) -> Result {
        packets.chunks(stride).try_for_each(|packet| self.send_one(to, packet))
    }

    fn receive(&mut self, each: &mut dyn FnMut(&PacketSource, &[u8])) -> (usize, bool) {
        let mut came = 0;
        let read = self.cq.read(Entries::MAX, &mut self.entries);
        let more = match read {
            Ok(n) => {
                while let Some(entry) = self.entries.take_next() {
                    let Some(mut done) = self.cq.done(entry) else { continue };
                    let Some(buf) = done.buf.take() else { continue };
                    if done.token == Some(SEND) {
                        self.free.push(buf);
                        continue;
                    }
                    self.posted -= 1;
                    came += 1;
                    let end = done.len.min(buf.len());
                    if end > self.common.prefix {
                        let packets = &buf[self.common.prefix..end];
                        let stride = match done.data as usize {
                            0 => packets.len(),
                            stride => stride,
                        };
                        let source = self.common.source_of(&done, &buf, self.means);
                        packets.chunks(stride).for_each(|packet| each(&source, packet));
                    }
                    match self.ep.post(buf, RECEIVE) {
                        Ok(()) => self.posted += 1,
                        Err((_, buf)) => self.free.push(buf),
                    }
                }
                n == Entries::MAX
            }
            Err(Error::AVAIL) => {
                // A packet that is lost, in either direction.
                if let Ok(Some(done)) = self.cq.read_error() {
                    self.posted -= usize::from(done.token == Some(RECEIVE));
                    self.free.extend(done.buf);
                }
                true
            }
            Err(_) => false,
        };
        self.target.grow(came);
        self.post();
        (came, more)
    }

    fn refused(&mut self) -> Option<Addr> {
        if !self.means.icmp_errors {
            return None;
        }
        let addr = self.ep.next_injected_error().ok()?;
        Addr::read(self.common.format, &addr).ok().map(Addr::identity)
    }

    fn fd(&self) -> Option<RawFd> {
        if self.common.wait_set.is_some() { None } else { self.cq.fd() }
    }

    fn may_block(&self) -> bool {
        self.common.wait_set.is_some() || self.common.domain.fabric().may_block(&[&self.cq], None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(spare: &SpareReceives) -> ReceiveTarget {
        ReceiveTarget { count: 4, most: 64, spare: spare.clone(), taken: 0 }
    }

    #[test]
    fn receives_grow_with_the_packets_of_a_time() {
        let mut target = target(&SpareReceives::default());
        target.grow(3);
        assert_eq!(target.count, 4);
        target.grow(4);
        assert_eq!(target.count, 8);
        for _ in 0..9 {
            target.grow(Entries::MAX);
        }
        assert_eq!(target.count, 64);
    }

    #[test]
    fn receives_of_all_endpoints_of_a_domain_are_bounded() {
        let spare = SpareReceives::default();
        let mut targets = [(); 100].map(|()| target(&spare));
        for _ in 0..9 {
            targets.iter_mut().for_each(|target| target.grow(Entries::MAX));
        }
        let sum = |targets: &[ReceiveTarget]| targets.iter().map(|one| one.count).sum::<usize>();
        assert_eq!(sum(&targets), 100 * 4 + 512);
        drop(targets);
        let mut alone = target(&spare);
        (0..9).for_each(|_| alone.grow(Entries::MAX));
        assert_eq!(alone.count, 64);
    }
}
