//! Statistics of endpoints and peers published by this process for other processes.
//!
//! A plug-in has one memory segment for all its engines, unnamed and sealed, with the layout in
//! [`ofi_stats`]. An engine copies its counters there periodically, with its lock held; only the
//! number of its progress iterations is written in each ([`EngineStats::count_iterations`]). A record belongs
//! to one endpoint or peer, from the first write to the drop of its slot ([`EndpointSlot`],
//! [`PeerSlot`]).
use super::hang;
use crate::error::Error;
use crate::param::{core_boolean, core_size};
use crate::probes::{self, EndpointTraceIds};
use crate::provider::Provider;
pub use crate::sys::coarse_now;
use crate::sys::{count_forks, fine_now, generation, nanos_of, sealed_memory};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};
use ofi_stats::layout::{
    self, DEFAULT_PEERS, ENGINES, FIRST_ENDPOINTS, FactRecord, LATENCY_CLASSES, MAGIC, MAX_PEERS,
    MORE_ENDPOINTS, StatsHeader, VERSION, latency_class,
};
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

pub use ofi_stats::layout::{
    ANY, EndpointStats, ErrorStats, PeerStats, PendingOpStats, kinds, peer_bits, states, text_words,
};

/// Words of the header written after initialization.
mod head {
    pub(super) const PEERS_USED: usize = 4;
    pub(super) const ENDPOINTS_USED: usize = 5;
    pub(super) const PEERS_LEFT_OUT: usize = 6;
    pub(super) const ENDPOINTS_LEFT_OUT: usize = 7;
    pub(super) const ITERATIONS: usize = 14;
}

/// Minimum and maximum nanoseconds between two publications of an idle engine's statistics.
const PUBLISHED_AFTER: u64 = 10_000_000;
const PUBLISHED_WITHIN: u64 = 500_000_000;

/// Share of the processor time used for publications: one in this many.
const PUBLISHED_SHARE: u64 = 100;

/// Maximum time per processor time of a process that waits for a processor.
const MAX_WAIT: u64 = 64;

/// Time of the next publication of an idle engine's statistics. Engines with many endpoints, and ones
/// waiting for a processor, publish less often.
#[derive(Debug, Default)]
pub struct PublicationTimer {
    /// Nanoseconds of [`fine_now`].
    next: u64,
    /// End of the last publication.
    last: PublicationTime,
}

/// Time of a publication's begin or end.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublicationTime {
    /// Nanoseconds of [`fine_now`].
    now: u64,
    /// Nanoseconds of processor time of the process.
    cpu: u64,
}

impl PublicationTime {
    /// Returns the present time.
    pub fn now() -> Self {
        Self { now: fine_now(), cpu: nanos_of(libc::CLOCK_PROCESS_CPUTIME_ID) }
    }
}

impl PublicationTimer {
    /// Returns true if statistics are to be published at this time, in nanoseconds of [`fine_now`].
    #[inline(always)]
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Sets the time of the next publication, after one from `begin` to now.
    pub fn restart(&mut self, begin: PublicationTime) {
        self.restart_at(begin, PublicationTime::now());
    }

    fn restart_at(&mut self, begin: PublicationTime, end: PublicationTime) {
        let since = |time: u64, before: u64| time.saturating_sub(before).max(1);
        let time = since(begin.now, self.last.now) / since(begin.cpu, self.last.cpu);
        let pause = since(end.cpu, begin.cpu)
            .saturating_mul(PUBLISHED_SHARE)
            .saturating_mul(time.clamp(1, MAX_WAIT));
        self.next = end.now.saturating_add(pause.clamp(PUBLISHED_AFTER, PUBLISHED_WITHIN));
        self.last = end;
    }

    /// Disables further publications.
    pub fn stop(&mut self) {
        self.next = u64::MAX;
    }
}

/// Number of messages transferred, and of their bytes.
#[derive(Default, Debug)]
pub struct TrafficCounter {
    // Atomic so that each is added to where it is.
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl TrafficCounter {
    /// One message of `len` bytes passed. Always true.
    #[inline(always)]
    pub fn one(&self, len: usize) -> bool {
        let add = |to: &AtomicU64, n| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.messages, 1);
        add(&self.bytes, len as u64);
        true
    }

    /// Messages, then bytes.
    pub fn get(&self) -> [u64; 2] {
        [&self.messages, &self.bytes].map(|sum| sum.load(Ordering::Relaxed))
    }
}

/// Totals of an endpoint's closed connections: messages and bytes sent, then received.
#[derive(Default, Debug)]
pub struct PeersRetired {
    sums: [u64; 4],
}

impl PeersRetired {
    /// Adds the totals of a closed connection.
    pub fn add(&mut self, sent: &TrafficCounter, received: &TrafficCounter) {
        let passed = sent.get().into_iter().chain(received.get());
        self.sums.iter_mut().zip(passed).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
    }

    /// All of them.
    pub fn get(&self) -> [u64; 4] {
        self.sums
    }
}

/// Errors of an endpoint by code, and its lost connections.
#[derive(Default, Debug)]
pub struct EndpointErrors {
    codes: [ErrorStats; 4],
    lost: [u64; 2],
    lost_at: u64,
    lost_peer: [u64; 8],
}

impl EndpointErrors {
    /// An operation failed.
    #[cold]
    pub fn add(&mut self, error: Error) {
        let code = u64::from(error.code().unsigned_abs());
        let slot = self.codes.iter_mut().find(|known| known.code == code || known.count == 0);
        if let Some(known) = slot {
            (known.code, known.count) = (code, known.count + 1);
        }
    }

    /// Records an error ending an established connection of the endpoint with these numbers in traces.
    #[cold]
    pub fn lost(&mut self, ids: Option<&EndpointTraceIds>, error: Error, peer: Option<String>) {
        if probes::is_enabled() {
            let own = ids.map_or(0, EndpointTraceIds::own);
            probes::lost(own, error.code().into(), peer.as_deref().unwrap_or_default());
        }
        self.lost = [self.lost[0] + 1, u64::from(error.code().unsigned_abs())];
        self.lost_at = coarse_now();
        self.lost_peer = text_words(&peer.unwrap_or_default());
    }

    /// Copies the errors to the published record.
    pub fn show(&self, stats: &mut EndpointStats) {
        (stats.errors, stats.lost) = (self.codes, self.lost);
        (stats.lost_at, stats.lost_peer) = (self.lost_at, self.lost_peer);
    }
}

/// Minimum nanoseconds between two timed transfers, while there are enough of them.
const TIMED_EACH: u64 = 2_000_000;

/// Maximum nanoseconds between two timed transfers, while there are transfers.
const TIMED_AT_LEAST: u64 = 50_000_000;

/// Maximum number of transfers per timed one.
const MOST_UNTIMED: u32 = 256;

/// Latencies of an endpoint's transfers not complete at the return of their call. A sample of them
/// is timed, one at a time; the others cost a counter and no clock.
#[derive(Debug)]
pub struct TransferTimes {
    /// Transfers until one is timed.
    left: u32,
    /// One of so many is timed.
    each: u32,
    /// Number of transfers represented by the next sample.
    weight: u64,
    /// Start of the last timed transfer, and a flag set while it is in flight.
    began: u64,
    under_way: bool,
    classes: [u64; LATENCY_CLASSES],
}

impl Default for TransferTimes {
    fn default() -> Self {
        Self {
            left: 1,
            each: 1,
            weight: 0,
            began: 0,
            under_way: false,
            classes: [0; LATENCY_CLASSES],
        }
    }
}

impl TransferTimes {
    /// Records the start of a pending transfer. Returns the flag to store until its completion: 0,
    /// or [`TIMED`](crate::reserved::TIMED).
    #[inline(always)]
    pub fn begin(&mut self) -> u64 {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 { self.time() } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn time(&mut self) -> u64 {
        self.time_at(fine_now())
    }

    fn time_at(&mut self, now: u64) -> u64 {
        self.weight += u64::from(self.each);
        match now.wrapping_sub(self.began) {
            0..TIMED_EACH => self.each = (2 * self.each).min(MOST_UNTIMED),
            TIMED_AT_LEAST.. => self.each = (self.each / 2).max(1),
            _ => {}
        }
        self.left = self.each;
        if self.under_way {
            return 0;
        }
        (self.began, self.under_way) = (now, true);
        crate::reserved::TIMED
    }

    /// Records the completion of the flagged transfer.
    #[cold]
    #[inline(never)]
    pub fn end(&mut self) {
        self.end_at(fine_now());
    }

    fn end_at(&mut self, now: u64) {
        let class = latency_class(now.saturating_sub(self.began));
        self.classes[class] = self.classes[class].wrapping_add(self.weight);
        (self.weight, self.under_way) = (0, false);
    }

    /// Returns the number of transfers in each latency class ([`latency_class`]).
    pub fn classes(&self) -> [u64; LATENCY_CLASSES] {
        self.classes
    }
}

/// Free records, of endpoints and of peers.
#[derive(Debug, Default)]
struct FreeRecords {
    /// Records used before and free again.
    free: [Vec<u32>; 2],
    /// Number of records ever used.
    used: [u32; 2],
    engines: usize,
}

const ENDPOINTS: usize = 0;
const PEERS: usize = 1;

/// The memory with the facts. It stays as long as the process does.
struct StatsMemory {
    words: &'static [AtomicU64],
    peers: usize,
    records: Mutex<FreeRecords>,
    serial: AtomicU64,
    /// Process that created the memory ([`generation`]).
    process: u32,
}

/// Mapping replaced in a forked child, and the descriptor closed there.
static MAPPED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The file's number: a program may have closed the descriptor, and opened another file by its number.
static INODE: AtomicU64 = AtomicU64::new(0);

/// The number of the file behind a descriptor.
fn inode(fd: i32) -> Option<u64> {
    let mut stat = core::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: the call writes `stat` if it answers 0.
    unsafe { (libc::fstat64(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_ino) }
}

/// Runs in a forked child: the inherited memory belongs to the parent and must not be written.
extern "C" fn forked() {
    let [at, len] = [&MAPPED[0], &MAPPED[1]].map(|word| word.load(Ordering::Relaxed));
    let fd = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if len == 0 {
        return;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: in place of a mapping of ours, of words for which any bits are a value; no other thread
    // is there. All are system calls alone, which a child may make.
    unsafe {
        if libc::mmap(at as *mut libc::c_void, len, access, kind, -1, 0) == libc::MAP_FAILED {
            libc::_exit(127);
        }
        if fd >= 0 && inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
            libc::close(fd);
        }
    }
}

impl StatsMemory {
    fn new(provider: &'static Provider) -> Option<Self> {
        let peers = core_size(c"stats_peers").unwrap_or(DEFAULT_PEERS).clamp(1, MAX_PEERS);
        let len = 8 * layout::words_with(peers);
        let fd = sealed_memory(c"libfabric-stats", len).ok()?;
        let (at, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, at an address that the system chooses.
        let base = unsafe { libc::mmap(at, len, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base)?;
        count_forks();
        MAPPED[0].store(base.as_ptr().addr(), Ordering::Relaxed);
        MAPPED[1].store(len, Ordering::Relaxed);
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| {
            // SAFETY: the handler stays as long as this library does.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        // The descriptor is for others to find.
        INODE.store(inode(fd.as_raw_fd()).unwrap_or(0), Ordering::Relaxed);
        DESCRIPTOR.store(std::os::fd::IntoRawFd::into_raw_fd(fd), Ordering::Relaxed);
        // SAFETY: the mapping is so long, aligned to a page, and never goes; it is sealed, so that no
        // page of it does.
        let words = unsafe { std::slice::from_raw_parts(base.cast().as_ptr(), len / 8) };
        let this = Self {
            words,
            peers,
            records: Mutex::default(),
            serial: AtomicU64::new(1),
            process: generation(),
        };
        let head = StatsHeader {
            magic: MAGIC,
            version: VERSION,
            process: std::process::id().into(),
            peers: peers as u64,
            library: (crate::abi::FI_MAJOR_VERSION as u64) << 16
                | crate::abi::FI_MINOR_VERSION as u64,
            provider: text_words(&provider.name().to_string_lossy()),
            began: coarse_now(),
            ..StatsHeader::default()
        };
        this.write(0, &head);
        Some(this)
    }

    /// Writes a record's words, the first last, and last of all.
    fn write<R: FactRecord>(&self, at: usize, record: &R) {
        let mut words = [0; EndpointStats::WORDS];
        let words = &mut words[..R::WORDS];
        record.put_words(words);
        let slot = &self.words[at..][..R::WORDS];
        for (word, value) in slot.iter().zip(words.iter()).skip(1) {
            word.store(*value, Ordering::Relaxed);
        }
        slot[0].store(words[0], Ordering::Release);
    }

    /// Writes a record with concurrent readers.
    fn write_record<R: FactRecord>(&self, at: usize, sequence: u64, record: &R) {
        self.words[at].store(sequence.wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.write(at, record);
    }

    fn records(&self) -> std::sync::MutexGuard<'_, FreeRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free record of this kind; none if there is none.
    fn take(&self, kind: usize) -> Option<u32> {
        let most = if kind == PEERS { self.peers } else { FIRST_ENDPOINTS + MORE_ENDPOINTS };
        let mut records = self.records();
        let index = records.free[kind].pop().or_else(|| {
            let next = records.used[kind];
            ((next as usize) < most).then(|| {
                records.used[kind] += 1;
                next
            })
        });
        let (used, left_out) = match kind {
            PEERS => (head::PEERS_USED, head::PEERS_LEFT_OUT),
            _ => (head::ENDPOINTS_USED, head::ENDPOINTS_LEFT_OUT),
        };
        self.words[used].store(records.used[kind].into(), Ordering::Relaxed);
        if index.is_none() {
            self.words[left_out].fetch_add(1, Ordering::Relaxed);
        }
        index
    }
}

/// The memory of this process; none if the user wants none (FI_STATS=0), or the system has none.
fn memory(provider: &'static Provider) -> Option<&'static StatsMemory> {
    static MEMORY: Mutex<Option<Option<&'static StatsMemory>>> = Mutex::new(None);
    // In a forked child a thread that only the parent has may have the lock for ever.
    let mut memory = MEMORY.try_lock().ok()?;
    if memory.is_none_or(|made| made.is_some_and(|made| made.process != generation())) {
        let wanted = core_boolean(c"stats").unwrap_or(true);
        let made = if wanted { StatsMemory::new(provider) } else { None };
        if made.is_some() {
            hang::watch(core_size(c"hang_report").unwrap_or(0));
        }
        *memory = Some(made.map(|made| &*Box::leak(Box::new(made))));
    }
    (*memory)?
}

/// An engine's way to the memory.
pub struct EngineStats {
    memory: Option<&'static StatsMemory>,
    /// Progress-iteration counter of the engine.
    iterations: &'static AtomicU64,
    engine: usize,
    /// Index of the next connections to publish.
    pub cursor: u32,
    /// Index of the next endpoints to publish.
    pub ep_cursor: u32,
}

impl fmt::Debug for EngineStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineFacts")
    }
}

impl EngineStats {
    /// Returns the statistics of an engine publishing nothing.
    pub fn hidden() -> Self {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        Self { memory: None, iterations: &NOWHERE, engine: 0, cursor: 0, ep_cursor: 0 }
    }

    /// A new engine of this provider's.
    pub fn new(provider: &'static Provider) -> Self {
        let Some(memory) = memory(provider) else { return Self::hidden() };
        let mut records = memory.records();
        let engine = records.engines.min(ENGINES - 1);
        records.engines += 1;
        let iterations = &memory.words[head::ITERATIONS + engine];
        Self { memory: Some(memory), iterations, engine, cursor: 0, ep_cursor: 0 }
    }

    /// Publishes the engine's number of progress iterations.
    #[inline(always)]
    pub fn count_iterations(&self, iterations: u64) {
        self.iterations.store(iterations, Ordering::Relaxed);
    }

    /// Returns the last published number of progress iterations.
    pub fn iterations(&self) -> u64 {
        self.iterations.load(Ordering::Relaxed)
    }

    /// Returns true if the statistics are published.
    pub fn is_published(&self) -> bool {
        self.memory.is_some()
    }

    /// The engine's index, for [`EndpointStats::engine`].
    pub fn engine(&self) -> u64 {
        self.engine as u64
    }
}

/// Record with a slot.
struct PlacedRecord<R> {
    memory: &'static StatsMemory,
    index: u32,
    at: usize,
    kind: usize,
    last: R,
}

impl<R: FactRecord> PlacedRecord<R> {
    fn new(engine: &EngineStats, kind: usize) -> Option<Box<Self>> {
        let memory = engine.memory?;
        let index = memory.take(kind)?;
        let slot = index as usize;
        let at = match kind {
            PEERS => layout::peer_at(slot),
            _ => layout::endpoint_at(slot, memory.peers),
        };
        Some(Box::new(Self { memory, index, at, kind, last: R::default() }))
    }

    fn write(&mut self, record: R) {
        let sequence = self.memory.words[self.at].load(Ordering::Relaxed).wrapping_add(2) & !1;
        self.last = record;
        self.memory.write_record(self.at, sequence, &self.last);
    }
}

impl<R> Drop for PlacedRecord<R> {
    fn drop(&mut self) {
        // The word that says whether the record is anybody's.
        self.memory.words[self.at + 1].store(0, Ordering::Relaxed);
        self.memory.records().free[self.kind].push(self.index);
    }
}

/// Slot of an endpoint's statistics, freed on drop.
#[derive(Default)]
pub struct EndpointSlot {
    placed: Option<Box<PlacedRecord<EndpointStats>>>,
    /// No place was free, and none is asked for again.
    without: bool,
}

impl fmt::Debug for EndpointSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointPlace")
    }
}

impl EndpointSlot {
    /// The serial of the endpoint's record, 0 if it has none.
    pub fn serial(&self) -> u64 {
        self.placed.as_ref().map_or(0, |placed| placed.last.serial)
    }

    /// Publishes these statistics and fills in the fields identifying the record. Calls `address`
    /// the first time, and while the address is not `settled`.
    pub fn show(
        &mut self,
        engine: &EngineStats,
        mut stats: EndpointStats,
        settled: bool,
        address: impl FnOnce() -> String,
    ) {
        if self.placed.is_none() && !self.without {
            self.placed = PlacedRecord::new(engine, ENDPOINTS);
            self.without = self.placed.is_none();
        }
        let Some(placed) = &mut self.placed else { return };
        let last = &placed.last;
        stats.serial = match last.serial {
            0 => placed.memory.serial.fetch_add(1, Ordering::Relaxed),
            serial => serial,
        };
        let known = settled && last.settled != 0;
        stats.settled = settled.into();
        stats.address = if known { last.address } else { text_words(&address()) };
        placed.write(stats);
    }

    /// Publishes the number of threads about to sleep, and nothing else.
    pub fn set_asleep(&mut self, threads: u64) {
        if let Some(placed) = self.placed.as_mut().filter(|placed| placed.last.asleep != threads) {
            placed.last.asleep = threads;
            placed.memory.words[placed.at + EndpointStats::ASLEEP]
                .store(threads, Ordering::Relaxed);
        }
    }
}

/// Slot of a peer's statistics, freed on drop.
#[derive(Default)]
pub struct PeerSlot {
    placed: Option<Box<PlacedRecord<PeerStats>>>,
    /// No place was free, and none is asked for again.
    without: bool,
}

impl fmt::Debug for PeerSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerPlace")
    }
}

impl PeerSlot {
    /// Publishes these statistics, with the current time in `written`. Fills in the time of the
    /// peer's last change of state and of its last activity. Calls `address` the first time.
    /// Returns the time of the peer's last activity.
    pub fn show(
        &mut self,
        engine: &EngineStats,
        mut stats: PeerStats,
        address: impl FnOnce() -> String,
    ) -> u64 {
        if self.placed.is_none() && !self.without {
            self.placed = PlacedRecord::new(engine, PEERS);
            self.without = self.placed.is_none();
        }
        let Some(placed) = &mut self.placed else { return 0 };
        let last = &placed.last;
        (stats.serial, stats.address) = match last.serial {
            0 => (placed.memory.serial.fetch_add(1, Ordering::Relaxed), text_words(&address())),
            serial => (serial, last.address),
        };
        let same_state = last.state & 0xff == stats.state & 0xff;
        stats.since = if same_state { last.since } else { stats.written };
        let moved = (last.sent, last.received) != (stats.sent, stats.received)
            || (last.unsent_bytes, last.incomplete) != (stats.unsent_bytes, stats.incomplete);
        stats.moved = if moved || !same_state { stats.written } else { last.moved };
        placed.write(stats);
        stats.moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserved::TIMED;

    #[test]
    fn timed_transfer_represents_transfers_since_the_last_sample() {
        let mut times = TransferTimes::default();
        // One transfer each microsecond, which takes three.
        let mut now = 1 << 40;
        let (mut began, mut timed) = (0, 0);
        for _ in 0..10_000 {
            now += 1000;
            began += 1;
            times.left = times.left.wrapping_sub(1);
            if times.left == 0 && times.time_at(now) == TIMED {
                timed += 1;
                times.end_at(now + 3000);
            }
        }
        let counted: u64 = times.classes().iter().sum();
        assert_eq!(times.classes()[2], counted);
        assert!(began - counted < u64::from(MOST_UNTIMED), "{counted} of {began}");
        assert!(timed < began / 100, "{timed} of {began} were timed");
    }

    #[test]
    fn publications_take_a_hundredth_of_the_processor_time() {
        const MS: u64 = 1_000_000;
        let next = |timer: &PublicationTimer, end| {
            (0..1000).map(|ms| ms * MS).find(|later| timer.is_due(end + later)).map(|at| at / MS)
        };
        // processor time of a publication and of the process in the second before
        let cases = [
            (1000, 1000, 10),
            (250_000, 1000, 25),
            (5 * MS, 1000, 500),
            (u64::MAX / 4, 1000, 500),
            // waiting for a processor
            (250_000, 100, 250),
            (250_000, 20, 500),
            (1000, 1, 10),
            (10_000, 1, 64),
        ];
        for (took, share, pause) in cases {
            let last = PublicationTime { now: 5, cpu: 3 };
            let mut timer = PublicationTimer { next: 0, last };
            let begin = PublicationTime { now: 5 + 1000 * MS, cpu: 3 + share * MS };
            let end = PublicationTime { now: begin.now + 7, cpu: begin.cpu + took };
            timer.restart_at(begin, end);
            assert_eq!(next(&timer, end.now), Some(pause), "{took} {share}");
        }
        let mut timer = PublicationTimer::default();
        timer.stop();
        assert_eq!(next(&timer, 0), None);
    }

    #[test]
    fn of_few_transfers_all_are_timed() {
        let mut times = TransferTimes { each: MOST_UNTIMED, left: 1, ..Default::default() };
        let mut now = 1 << 40;
        for _ in 0..2000 {
            now += 100_000_000;
            times.left = times.left.wrapping_sub(1);
            if times.left == 0 && times.time_at(now) == TIMED {
                times.end_at(now + 5_000_000);
            }
        }
        assert_eq!(times.each, 1);
    }

    #[test]
    fn while_one_is_timed_no_other_is() {
        let mut times = TransferTimes::default();
        assert_eq!(times.begin(), TIMED);
        for _ in 0..1000 {
            assert_eq!(times.begin(), 0);
        }
        times.end();
        assert_ne!((0..1000).map(|_| times.begin()).sum::<u64>(), 0);
    }

    #[test]
    fn counts_of_closed_connections_are_preserved() {
        let (sent, received, mut retired) =
            (TrafficCounter::default(), TrafficCounter::default(), PeersRetired::default());
        sent.one(10);
        sent.one(20);
        received.one(5);
        retired.add(&sent, &received);
        retired.add(&sent, &received);
        assert_eq!(retired.get(), [4, 60, 2, 10]);
    }

    #[test]
    fn errors_are_counted_by_code() {
        let mut errors = EndpointErrors::default();
        errors.add(Error::CONNRESET);
        errors.add(Error::INVAL);
        errors.add(Error::CONNRESET);
        errors.lost(None, Error::CONNRESET, Some("127.0.0.1:5".into()));
        let mut stats = EndpointStats::default();
        errors.show(&mut stats);
        assert_eq!(stats.errors[0].count, 2);
        assert_eq!(stats.lost, [1, u64::from(Error::CONNRESET.code().unsigned_abs())]);
    }
}
