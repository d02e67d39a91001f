//! Registration cache (fi_mr(3), `FI_MR_CACHE_*`). A registration costs much more than a transfer,
//! so regions are cached until they are evicted or a memory monitor reports a change.
//!
//! A provider implements [`Registrar`] and calls [`Cache::get`] for each buffer. Without a monitor,
//! or for unwatched memory, regions exist only during their use.
//!
//! No region contains another one of the same kind, so sorting by starts also sorts by ends: a
//! lookup is one search.
use crate::error::{Error, Result};
use crate::mem_monitor::{Monitor, ReadUpTo};
use crate::param;
use crate::provider::Provider;
use crate::sys::sysconf;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Registration of memory by a provider.
pub trait Registrar: Send + Sync + 'static {
    /// A registered region; dropping it deregisters the memory, in any thread.
    type Region: Send + Sync + 'static;
    /// Properties of a region, besides its range, required for a cache hit: access rights,
    /// protection domain, interface of the memory.
    type Kind: Copy + PartialEq + Send + std::fmt::Debug + 'static;

    /// Registers this memory.
    fn register(&self, addr: usize, len: usize, kind: Self::Kind) -> Result<Self::Region>;
    /// Returns true if a region of kind `have` satisfies a request of kind `want`.
    fn serves(have: Self::Kind, want: Self::Kind) -> bool {
        have == want
    }
}

/// Maximum number of regions, and of their bytes, in a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// Maximum number of regions; 0 disables the cache.
    pub count: usize,
    /// Most bytes of all regions together.
    pub bytes: usize,
}

impl CacheLimits {
    /// Returns the limits of `FI_MR_CACHE_MAX_COUNT` and `FI_MR_CACHE_MAX_SIZE`.
    pub fn from_env() -> Self {
        Self {
            count: param::core_size(c"mr_cache_max_count").unwrap_or(1024),
            bytes: param::core_size(c"mr_cache_max_size").unwrap_or_else(share_of_memory),
        }
    }
}

/// Returns half of the bytes of memory per processor.
fn share_of_memory() -> usize {
    let memory = sysconf(libc::_SC_PHYS_PAGES).saturating_mul(sysconf(libc::_SC_PAGESIZE));
    memory / sysconf(libc::_SC_NPROCESSORS_ONLN).max(1) / 2
}

/// Statistics of a cache, for logs and tests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Regions in the cache now.
    pub count: usize,
    /// Bytes of the regions in the cache now.
    pub bytes: usize,
    /// Lookups with a cached region.
    pub hits: u64,
    /// Regions registered.
    pub registered: u64,
    /// Regions evicted for others.
    pub evicted: u64,
    /// Regions with changed memory.
    pub stale: u64,
}

/// Region with its range and kind.
struct CachedRegion<R: Registrar> {
    range: Range<usize>,
    kind: R::Kind,
    region: R::Region,
}

/// An entry's place in the cache.
struct CacheKey<R: Registrar> {
    entry: Arc<CachedRegion<R>>,
    users: usize,
    /// The region's key in `idle` while it has no users.
    idle_since: u64,
}

type Tree<R> = BTreeMap<usize, CacheKey<R>>;

struct CacheState<R: Registrar> {
    /// Each kind's slots by their starts.
    trees: Vec<(R::Kind, Tree<R>)>,
    /// Regions without users, those unused for longest first: kind and start.
    idle: BTreeMap<u64, (R::Kind, usize)>,
    clock: u64,
    /// Ranges being registered, and a flag for a change meanwhile.
    coming: Vec<(u64, Range<usize>, bool)>,
    seen: ReadUpTo,
    stats: Stats,
}

/// Entries removed from the cache, to be dropped without its lock.
type Dead<R> = Vec<Arc<CachedRegion<R>>>;

/// A cache of the regions of one domain.
pub struct Cache<R: Registrar> {
    registrar: R,
    limits: CacheLimits,
    on: Option<(Arc<Monitor>, Mutex<CacheState<R>>)>,
}

impl<R: Registrar> std::fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({:?}, {:?})", self.limits, self.stats())
    }
}

/// A region in use; dropping it gives it back.
pub struct Cached<R: Registrar> {
    // First, so that a region that has left the cache goes before its registrar.
    entry: Arc<CachedRegion<R>>,
    cache: Arc<Cache<R>>,
    /// True if the region is in the cache and this user is counted.
    counted: bool,
}

impl<R: Registrar> std::fmt::Debug for Cached<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cached({:#x?})", self.entry.range)
    }
}

impl<R: Registrar> Cache<R> {
    /// A cache as the environment and the program want it.
    pub fn open(prov: &'static Provider, registrar: R) -> Arc<Self> {
        let limits = CacheLimits::from_env();
        let monitor = if limits.count == 0 { None } else { Monitor::choose(prov) };
        Self::new(registrar, limits, monitor)
    }

    /// A cache with this monitor; without one it keeps nothing.
    pub fn new(registrar: R, limits: CacheLimits, monitor: Option<Arc<Monitor>>) -> Arc<Self> {
        let on = monitor.filter(|_| limits.count > 0).map(|monitor| {
            let state = CacheState {
                trees: Vec::new(),
                idle: BTreeMap::new(),
                clock: 0,
                coming: Vec::new(),
                seen: monitor.notices().now(),
                stats: Stats::default(),
            };
            (monitor, Mutex::new(state))
        });
        Arc::new(Self { registrar, limits, on })
    }

    /// Returns the region of this memory, from the cache or newly registered. Fails with -FI_EINVAL
    /// for memory beyond the end of the address space, else with the error of the registration.
    pub fn get(self: &Arc<Self>, addr: usize, len: usize, kind: R::Kind) -> Result<Cached<R>> {
        let range = addr..addr.checked_add(len).ok_or(Error::INVAL)?;
        let Some((monitor, state)) = self.on.as_ref().filter(|_| len > 0) else {
            let region = self.registrar.register(addr, len, kind)?;
            return Ok(self.handle(Arc::new(CachedRegion { range, kind, region }), false));
        };
        let mut dead = Vec::new();
        let mut state_now = lock(state);
        state_now.read_notices(monitor, &mut dead);
        let found = state_now.find(&range, kind, monitor, &mut dead);
        let ticket = if found.is_none() { state_now.announce(range.clone()) } else { 0 };
        drop(state_now);
        bury(monitor, dead);
        if let Some(entry) = found {
            return Ok(self.handle(entry, true));
        }
        self.miss(monitor, state, ticket, range, kind)
    }

    /// Registers memory not found in the cache. The range is announced and watched first, so
    /// changes from here on are noticed.
    fn miss(
        self: &Arc<Self>,
        monitor: &Arc<Monitor>,
        state: &Mutex<CacheState<R>>,
        ticket: u64,
        range: Range<usize>,
        kind: R::Kind,
    ) -> Result<Cached<R>> {
        let watched = monitor.watch(range.clone()).is_ok();
        let register = || self.registrar.register(range.start, range.len(), kind);
        let region = register().or_else(|error| {
            // Registering may fail only because the cache keeps too much.
            if self.flush() == 0 { Err(error) } else { register() }
        });
        let mut dead = Vec::new();
        let mut state_now = lock(state);
        state_now.read_notices(monitor, &mut dead);
        let same = state_now.arrived(ticket);
        let region = match region {
            Ok(region) => region,
            Err(error) => {
                drop(state_now);
                if watched {
                    monitor.unwatch(range);
                }
                bury(monitor, dead);
                return Err(error);
            }
        };
        state_now.stats.registered += 1;
        let mut entry = Arc::new(CachedRegion { range: range.clone(), kind, region });
        let mut cached = false;
        let mut watch_ends = watched;
        if watched && same {
            if let Some(other) = state_now.find(&range, kind, monitor, &mut dead) {
                // Another thread registered the range meanwhile; ours is dropped, outside the
                // lock.
                let ours = std::mem::replace(&mut entry, other);
                drop(state_now);
                monitor.unwatch(range);
                drop(ours);
                bury(monitor, dead);
                return Ok(self.handle(entry, true));
            }
            cached = state_now.keep(&entry, self.limits, &mut dead);
            watch_ends = !cached;
        }
        drop(state_now);
        if watch_ends {
            monitor.unwatch(range);
        }
        bury(monitor, dead);
        Ok(self.handle(entry, cached))
    }

    /// Drops every unused region and returns their number.
    pub fn flush(&self) -> usize {
        let Some((monitor, state)) = &self.on else { return 0 };
        let mut dead = Vec::new();
        let mut state = lock(state);
        while state.evict(&mut dead) {}
        drop(state);
        let count = dead.len();
        bury(monitor, dead);
        count
    }

    /// Returns the statistics of the cache, after processing the monitor's reports.
    pub fn stats(&self) -> Stats {
        let Some((monitor, state)) = &self.on else { return Stats::default() };
        let mut dead = Vec::new();
        let mut state = lock(state);
        state.read_notices(monitor, &mut dead);
        let stats = state.stats;
        drop(state);
        bury(monitor, dead);
        stats
    }

    fn handle(self: &Arc<Self>, entry: Arc<CachedRegion<R>>, counted: bool) -> Cached<R> {
        Cached { entry, cache: self.clone(), counted }
    }
}

impl<R: Registrar> Drop for Cache<R> {
    fn drop(&mut self) {
        if let Some((monitor, state)) = self.on.take() {
            let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
            let slots = state.trees.into_iter().flat_map(|(_, tree)| tree.into_values());
            bury(&monitor, slots.map(|slot| slot.entry).collect());
        }
    }
}

fn lock<R: Registrar>(state: &Mutex<CacheState<R>>) -> MutexGuard<'_, CacheState<R>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the watch of entries removed from the cache; used ones stay alive.
fn bury<R: Registrar>(monitor: &Monitor, dead: Dead<R>) {
    for entry in dead {
        monitor.unwatch(entry.range.clone());
    }
}

impl<R: Registrar> CacheState<R> {
    fn read_notices(&mut self, monitor: &Monitor, dead: &mut Dead<R>) {
        if let Some(changes) = monitor.notices().since(&mut self.seen) {
            for range in changes.ranges() {
                self.changed(range, dead);
            }
        }
    }

    /// Removes regions with changed memory.
    fn changed(&mut self, range: Range<usize>, dead: &mut Dead<R>) {
        if range.is_empty() {
            return;
        }
        for (_, coming, changed) in &mut self.coming {
            *changed |= coming.start < range.end && range.start < coming.end;
        }
        for at in 0..self.trees.len() {
            let (kind, tree) = &self.trees[at];
            let kind = *kind;
            // Ends are in the order of starts, so this is all that overlaps.
            let stale: Vec<usize> = tree
                .range(..range.end)
                .rev()
                .take_while(|(_, slot)| slot.entry.range.end > range.start)
                .map(|(start, _)| *start)
                .collect();
            self.stats.stale += stale.len() as u64;
            for start in stale {
                self.remove(kind, start, dead);
            }
        }
    }

    fn slot(&mut self, kind: R::Kind, start: usize) -> Option<&mut CacheKey<R>> {
        self.trees.iter_mut().find(|(of, _)| *of == kind)?.1.get_mut(&start)
    }

    fn remove(&mut self, kind: R::Kind, start: usize, dead: &mut Dead<R>) {
        let tree = self.trees.iter_mut().find(|(of, _)| *of == kind);
        let Some(slot) = tree.and_then(|(_, tree)| tree.remove(&start)) else { return };
        if slot.users == 0 {
            self.idle.remove(&slot.idle_since);
        }
        self.stats.count -= 1;
        self.stats.bytes -= slot.entry.range.len();
        dead.push(slot.entry);
    }

    /// Removes the least recently used region. Returns `false` if all are in use.
    fn evict(&mut self, dead: &mut Dead<R>) -> bool {
        let Some((_, (kind, start))) = self.idle.first_key_value().map(|(a, b)| (*a, *b)) else {
            return false;
        };
        self.stats.evicted += 1;
        self.remove(kind, start, dead);
        true
    }

    /// Finds a region covering a range and adds one user.
    fn find(
        &mut self,
        range: &Range<usize>,
        kind: R::Kind,
        monitor: &Monitor,
        dead: &mut Dead<R>,
    ) -> Option<Arc<CachedRegion<R>>> {
        for at in 0..self.trees.len() {
            let (have, tree) = &mut self.trees[at];
            if !R::serves(*have, kind) {
                continue;
            }
            let Some((start, slot)) = tree.range_mut(..=range.start).next_back() else { continue };
            if slot.entry.range.end < range.end {
                continue;
            }
            if !monitor.is_valid(slot.entry.range.clone()) {
                let (have, start) = (*have, *start);
                self.stats.stale += 1;
                self.remove(have, start, dead);
                continue;
            }
            if slot.users == 0 {
                self.idle.remove(&slot.idle_since);
            }
            slot.users += 1;
            self.stats.hits += 1;
            return Some(slot.entry.clone());
        }
        None
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn announce(&mut self, range: Range<usize>) -> u64 {
        let ticket = self.tick();
        self.coming.push((ticket, range, false));
        ticket
    }

    /// Returns true if the memory is unchanged since its announcement.
    fn arrived(&mut self, ticket: u64) -> bool {
        let at = self.coming.iter().position(|(of, ..)| *of == ticket);
        at.is_some_and(|at| !self.coming.swap_remove(at).2)
    }

    /// Adds an entry with its first user, if there is space or space can be made. Returns false
    /// otherwise.
    fn keep(
        &mut self,
        entry: &Arc<CachedRegion<R>>,
        limits: CacheLimits,
        dead: &mut Dead<R>,
    ) -> bool {
        let (range, kind) = (&entry.range, entry.kind);
        if range.len() > limits.bytes {
            return false;
        }
        // Regions within the new one are of no use any more.
        for at in 0..self.trees.len() {
            let (of, tree) = &self.trees[at];
            let of = *of;
            if R::serves(kind, of) {
                let within: Vec<usize> = tree
                    .range(range.start..range.end)
                    .filter(|(_, slot)| slot.entry.range.end <= range.end)
                    .map(|(start, _)| *start)
                    .collect();
                for start in within {
                    self.remove(of, start, dead);
                }
            }
        }
        while self.stats.count >= limits.count
            || self.stats.bytes.saturating_add(range.len()) > limits.bytes
        {
            if !self.evict(dead) {
                return false;
            }
        }
        let slot = CacheKey { entry: entry.clone(), users: 1, idle_since: 0 };
        match self.trees.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, tree)) => drop(tree.insert(range.start, slot)),
            None => self.trees.push((kind, BTreeMap::from([(range.start, slot)]))),
        }
        self.stats.count += 1;
        self.stats.bytes += range.len();
        true
    }

    fn release(&mut self, entry: &Arc<CachedRegion<R>>) {
        let now = self.tick();
        let (kind, start) = (entry.kind, entry.range.start);
        // Another entry may have taken the place of one that left meanwhile.
        let Some(slot) = self.slot(kind, start).filter(|slot| Arc::ptr_eq(&slot.entry, entry))
        else {
            return;
        };
        slot.users -= 1;
        if slot.users == 0 {
            slot.idle_since = now;
            self.idle.insert(now, (kind, start));
        }
    }
}

impl<R: Registrar> Deref for Cached<R> {
    type Target = R::Region;

    fn deref(&self) -> &R::Region {
        &self.entry.region
    }
}

impl<R: Registrar> Drop for Cached<R> {
    fn drop(&mut self) {
        if let (true, Some((_, state))) = (self.counted, &self.cache.on) {
            lock(state).release(&self.entry);
        }
        // If it has left the cache, its last user deregisters it, without the lock.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem_monitor::{MemoryEvents, MemoryWatch};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Registrar counting registrations.
    #[derive(Default)]
    struct Counting {
        live: Arc<AtomicUsize>,
        /// Fails when so many are registered.
        most: Option<usize>,
    }

    struct Counted {
        live: Arc<AtomicUsize>,
        range: (usize, usize),
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.live.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Registrar for Counting {
        type Region = Counted;
        /// Rights, as bits.
        type Kind = u32;

        fn register(&self, addr: usize, len: usize, _kind: u32) -> Result<Counted> {
            if self.most.is_some_and(|most| self.live.load(Ordering::SeqCst) >= most) {
                return Err(Error::NOMEM);
            }
            self.live.fetch_add(1, Ordering::SeqCst);
            Ok(Counted { live: self.live.clone(), range: (addr, len) })
        }

        fn serves(have: u32, want: u32) -> bool {
            have & want == want
        }
    }

    /// Monitor without any source.
    #[derive(Default)]
    struct LoggedStats {
        watched: Arc<Mutex<Vec<Range<usize>>>>,
        invalid: Arc<AtomicBool>,
    }

    impl MemoryWatch for LoggedStats {
        fn watch(&self, pages: Range<usize>) -> Result {
            self.watched.lock().unwrap().push(pages);
            Ok(())
        }
        fn unwatch(&self, pages: Range<usize>) {
            self.watched.lock().unwrap().retain(|watched| *watched != pages);
        }
        fn is_valid(&self, _pages: Range<usize>) -> bool {
            !self.invalid.load(Ordering::SeqCst)
        }
    }

    const PAGE: usize = 4096;
    const MANY: CacheLimits = CacheLimits { count: 100, bytes: usize::MAX };

    struct Setup {
        cache: Arc<Cache<Counting>>,
        live: Arc<AtomicUsize>,
        notices: Arc<MemoryEvents>,
        watched: Arc<Mutex<Vec<Range<usize>>>>,
        invalid: Arc<AtomicBool>,
    }

    fn setup(limits: CacheLimits, most: Option<usize>) -> Setup {
        let (source, notices) = (LoggedStats::default(), Arc::new(MemoryEvents::default()));
        let (watched, invalid) = (source.watched.clone(), source.invalid.clone());
        let monitor = Arc::new(Monitor::new(notices.clone(), Box::new(source)));
        let registrar = Counting { live: Arc::default(), most };
        let live = registrar.live.clone();
        let cache = Cache::new(registrar, limits, Some(monitor));
        Setup { cache, live, notices, watched, invalid }
    }

    fn live(setup: &Setup) -> usize {
        setup.live.load(Ordering::SeqCst)
    }

    #[test]
    fn range_within_a_cached_region_hits_if_rights_suffice() {
        let s = setup(MANY, None);
        let whole = s.cache.get(0x10000, 0x3000, 3).unwrap();
        let part = s.cache.get(0x11000, 0x2000, 1).unwrap();
        assert_eq!(part.range, whole.range);
        // Past its end, before its start, with a right more: others.
        for (addr, len, kind) in [(0x12000, 0x2000, 1), (0xf000, 0x2000, 1), (0x10000, 8, 4)] {
            assert_eq!(s.cache.get(addr, len, kind).unwrap().range, (addr, len));
        }
        assert_eq!((s.cache.stats().hits, s.cache.stats().registered), (1, 4));
        // A region that covers all of these replaces them, when they are free.
        drop(s.cache.get(0xf000, 0x6000, 7).unwrap());
        assert_eq!((s.cache.stats().count, live(&s)), (1, 2));
        drop((whole, part));
        assert_eq!(live(&s), 1);
    }

    #[test]
    fn least_recently_used_region_is_evicted() {
        let s = setup(CacheLimits { count: 3, bytes: 100 }, None);
        let get = |addr, len| s.cache.get(addr, len, 1).unwrap();
        for addr in [0x1000, 0x2000, 0x3000] {
            drop(get(addr, 10));
        }
        drop(get(0x1000, 10));
        drop(get(0x4000, 10)); // instead of 0x2000
        let before = s.cache.stats().registered;
        drop((get(0x1000, 10), get(0x3000, 10), get(0x4000, 10)));
        assert_eq!(s.cache.stats().registered, before);
        drop(get(0x2000, 10));
        assert_eq!(s.cache.stats().registered, before + 1);
        // Bytes count as well; and a region larger than the whole limit is not cached.
        drop(get(0x5000, 95));
        assert_eq!((s.cache.stats().count, s.cache.stats().bytes), (1, 95));
        drop(get(0x6000, 101));
        assert_eq!((s.cache.stats().bytes, live(&s)), (95, 1));
    }

    #[test]
    fn regions_in_use_stay_and_excess_regions_are_not_cached() {
        let s = setup(CacheLimits { count: 2, bytes: usize::MAX }, None);
        let held: Vec<_> = (1..5).map(|i| s.cache.get(i << 16, PAGE, 1).unwrap()).collect();
        assert_eq!((s.cache.stats().count, live(&s)), (2, 4));
        drop(held);
        assert_eq!((s.cache.stats().count, live(&s)), (2, 2));
        assert_eq!(s.cache.flush(), 2);
        assert_eq!(live(&s), 0);
        assert!(s.watched.lock().unwrap().is_empty());
    }

    #[test]
    fn changed_memory_is_registered_anew_and_its_old_region_goes_with_its_last_user() {
        let s = setup(MANY, None);
        let old = s.cache.get(0x10000, 2 * PAGE, 1).unwrap();
        drop(s.cache.get(0x20000, PAGE, 1).unwrap());
        s.notices.report(|tell| tell(0x11000..0x12000));
        let new = s.cache.get(0x10000, PAGE, 1).unwrap();
        assert_eq!(new.range, (0x10000, PAGE));
        assert_eq!((s.cache.stats().stale, live(&s)), (1, 3));
        drop(old);
        assert_eq!(live(&s), 2);
        drop(new);
        // There were more changes than the event list stores: no cached region is used any more.
        (0..100).for_each(|at| s.notices.report(|tell| tell(at..at + 1)));
        assert_eq!((s.cache.stats().count, live(&s)), (0, 0));
    }

    #[test]
    fn a_monitor_is_asked_before_a_region_is_used_again() {
        let s = setup(MANY, None);
        drop(s.cache.get(0x10000, PAGE, 1).unwrap());
        s.invalid.store(true, Ordering::SeqCst);
        drop(s.cache.get(0x10000, PAGE, 1).unwrap());
        assert_eq!((s.cache.stats().hits, s.cache.stats().registered), (0, 2));
    }

    #[test]
    fn cache_is_flushed_when_a_registration_fails_for_resources() {
        let s = setup(MANY, Some(2));
        drop((s.cache.get(0x10000, 1, 1).unwrap(), s.cache.get(0x20000, 1, 1).unwrap()));
        let third = s.cache.get(0x30000, 1, 1).unwrap();
        let fourth = s.cache.get(0x40000, 1, 1).unwrap();
        assert_eq!(s.cache.get(0x50000, 1, 1).unwrap_err(), Error::NOMEM);
        drop((third, fourth));
        assert_eq!(s.cache.get(usize::MAX, 2, 1).unwrap_err(), Error::INVAL);
    }

    #[test]
    fn regions_are_not_cached_without_monitor_or_at_count_zero() {
        for (limits, monitor) in [(MANY, false), (CacheLimits { count: 0, ..MANY }, true)] {
            let s = setup(MANY, None);
            let monitor = monitor.then(|| s.cache.on.as_ref().unwrap().0.clone());
            let cache = Cache::new(Counting::default(), limits, monitor);
            let live = cache.registrar.live.clone();
            drop(cache.get(0x1000, PAGE, 1).unwrap());
            assert_eq!(live.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_cache_lives_until_its_last_region_and_leaves_nothing() {
        let s = setup(MANY, None);
        let region = s.cache.get(0x1000, PAGE, 1).unwrap();
        drop(s.cache.get(0x9000, PAGE, 1).unwrap());
        drop(s.cache);
        assert_eq!(s.live.load(Ordering::SeqCst), 2);
        drop(region);
        assert_eq!(s.live.load(Ordering::SeqCst), 0);
        assert!(s.watched.lock().unwrap().is_empty());
    }

    /// Maps private pages at an address chosen by the kernel or the test.
    fn map(at: usize, len: usize) -> usize {
        let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, in the place of none.
        let mapped = unsafe { libc::mmap(at as *mut _, len, rights, flags, -1, 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        mapped as usize
    }

    fn unmap(at: usize, len: usize) {
        // SAFETY: pages of `map`, which nothing refers to.
        assert_eq!(unsafe { libc::munmap(at as *mut _, len) }, 0);
    }

    /// Returns a cache watched by the kernel, if permitted.
    fn of_kernel() -> Option<Arc<Cache<Counting>>> {
        match Monitor::userfaultfd() {
            Ok(monitor) => Some(Cache::new(Counting::default(), MANY, Some(monitor))),
            Err(error) => {
                eprintln!("not tested: no userfaultfd here ({error})");
                None
            }
        }
    }

    #[test]
    fn kernel_reports_unmapped_moved_and_dropped_pages() {
        let Some(cache) = of_kernel() else {
            return crate::testing::skip("no userfaultfd");
        };
        let at = map(0, 8 * PAGE);
        let registered = |at, len| {
            let before = cache.stats().registered;
            drop(cache.get(at, len, 1).unwrap());
            cache.stats().registered != before
        };
        assert!(registered(at, 4 * PAGE));
        assert!(!registered(at + PAGE, PAGE));
        // A page of it is unmapped, and another one takes its place.
        unmap(at + PAGE, PAGE);
        assert_eq!(map(at + PAGE, PAGE), at + PAGE);
        assert!(registered(at, 4 * PAGE));
        assert!(!registered(at, 4 * PAGE));
        // The new page is watched as well as the others.
        unmap(at + PAGE, PAGE);
        assert_eq!(map(at + PAGE, PAGE), at + PAGE);
        assert!(registered(at, 4 * PAGE));
        // Dropped, which leaves the mapping and takes the page.
        // SAFETY: pages of ours, which nothing refers to.
        assert_eq!(unsafe { libc::madvise((at + PAGE) as *mut _, PAGE, libc::MADV_DONTNEED) }, 0);
        assert!(registered(at, 4 * PAGE));
        // Moved away.
        let to = map(0, PAGE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: as above; what is at `to` is replaced.
        let moved =
            unsafe { libc::mremap(at as *mut _, PAGE, PAGE, flags, to as *mut libc::c_void) };
        assert_eq!(moved as usize, to);
        assert_eq!(map(at, PAGE), at);
        assert!(registered(at, 4 * PAGE));
        // Untouched regions are still valid.
        assert!(registered(at + 4 * PAGE, PAGE));
        unmap(at, 4 * PAGE);
        assert!(!registered(at + 4 * PAGE, PAGE));
        unmap(at + 4 * PAGE, 4 * PAGE);
        unmap(to, PAGE);
    }

    #[test]
    fn monitor_serves_the_second_cache_after_the_first_is_dropped() {
        let (Some(one), Some(two)) = (of_kernel(), of_kernel()) else {
            return crate::testing::skip("no userfaultfd");
        };
        let at = map(0, 2 * PAGE);
        drop((one.get(at, 2 * PAGE, 1).unwrap(), two.get(at + PAGE, PAGE, 1).unwrap()));
        drop(one);
        unmap(at, 2 * PAGE);
        assert_eq!(two.stats().stale, 1);
    }

    #[test]
    fn unmonitored_memory_is_registered_for_each_use() {
        let Some(cache) = of_kernel() else {
            return crate::testing::skip("no userfaultfd");
        };
        // Code of this program, a private mapping of a file.
        let code = kernel_reports_unmapped_moved_and_dropped_pages as fn() as usize;
        drop(cache.get(code, 8, 1).unwrap());
        assert_eq!((cache.stats().registered, cache.stats().count), (1, 0));
    }

    #[test]
    fn parallel_map_and_unmap_leaves_no_registration() {
        let Some(cache) = of_kernel() else {
            return crate::testing::skip("no userfaultfd");
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let at = map(0, 4 * PAGE);
                        let region = cache.get(at, 4 * PAGE, 1).unwrap();
                        assert_eq!(region.range, (at, 4 * PAGE));
                        drop(region);
                        unmap(at, 4 * PAGE);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert_eq!((stats.count, cache.registrar.live.load(Ordering::SeqCst)), (0, 0));
        assert_eq!(stats.registered + stats.hits, 1200);
    }
}
