//! Matching of messages and receives (fi_msg(3), fi_tagged(3)).
//!
//! A message matches the oldest posted receive with a fitting source and `send_tag & ~ignore ==
//! recv_tag & ~ignore`. A receive takes the oldest fitting message.
//!
//! Applications use few different ignore masks: usually none, or one fixed mask (MPI). Receives
//! with the same mask and the same kind of source form a class. Within a class a message identifies
//! the fitting receives exactly, so a hash finds them; the result is the oldest one over all
//! classes. The cost does not depend on the number of posted receives. Messages mostly arrive in
//! the order of their receives. So a receive is queued first, and usually matched at the front. It
//! moves to the index when one is found behind many others.
use crate::error::{Error, Result};
use crate::heap;
use crate::ring_queue::{FirstInRing, RingQueue, VacantSlot};
use crate::slab::{NONE, Slab};
use std::hash::BuildHasher;
use std::sync::OnceLock;

/// Number of receives in the queue searched linearly; a longer search moves all to the index.
const SEARCHED: usize = 16;

/// Maximum number of classes. Further ones share one list with linear search.
const MAX_CLASSES: usize = 16;

/// Class number of the receives on the list with linear search.
const WILD: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE };
}

#[derive(Debug)]
struct TagClass {
    ignore: u64,
    src_mask: u64,
    count: usize,
}

/// Match criteria of a receive, in comparable form.
#[derive(Clone, Copy, Debug)]
struct Key {
    /// The only source; `src_mask` is 0 when any will do, else all ones.
    src: u64,
    src_mask: u64,
    tag: u64,
    ignore: u64,
}

impl Key {
    #[inline]
    fn fits(&self, src: u64, tag: u64) -> bool {
        ((tag ^ self.tag) & !self.ignore) | ((src ^ self.src) & self.src_mask) == 0
    }
}

impl From<Pattern> for Key {
    #[inline]
    fn from(Pattern { src, tag, ignore }: Pattern) -> Self {
        let src_mask = if src.is_some() { u64::MAX } else { 0 };
        Self { src: src.unwrap_or(0), src_mask, tag, ignore }
    }
}

/// A receive taken out for good or to be put back ([`Posted::put_back`]).
#[derive(Debug)]
pub struct TakenRecv<R> {
    /// Posted receive.
    pub value: R,
    /// The age: smaller numbers are older.
    seq: u64,
    key: Key,
}

/// A receive in the index.
#[derive(Debug)]
struct PostedEntry<R> {
    of: TakenRecv<R>,
    class: u32,
    prev: u32,
    next: u32,
}

/// Match criteria of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// Only matching source; `None` for any.
    pub src: Option<u64>,
    /// The tag.
    pub tag: u64,
    /// Ignored bits of the tag.
    pub ignore: u64,
}

impl Pattern {
    /// Returns true if a message matches.
    #[inline]
    pub fn fits(&self, src: u64, tag: u64) -> bool {
        (tag ^ self.tag) & !self.ignore == 0 && self.src.is_none_or(|wanted| wanted == src)
    }
}

/// Oldest posted receive, still in the queue.
#[derive(Debug)]
pub struct FirstPosted<'a, R>(FirstInRing<'a, TakenRecv<R>>);

impl<R> FirstPosted<'_, R> {
    /// The receive.
    #[inline(always)]
    pub fn value(&self) -> Option<&R> {
        self.0.value().map(|taken| &taken.value)
    }

    /// Removes the receive without dropping it: the caller has verified the absence of anything to
    /// drop.
    #[inline(always)]
    pub fn forget(self) {
        self.0.forget();
    }
}

/// Posted receives.
#[derive(Debug)]
pub struct Posted<R> {
    /// The youngest receives by age, mostly all there are.
    recent: RingQueue<TakenRecv<R>>,
    /// Older receives, in the index.
    entries: Slab<PostedEntry<R>>,
    /// Age ([`TakenRecv`]) below which receives belong in the index, while the index is not empty.
    indexed_below: u64,
    /// Receives in the index searched linearly, by age.
    searched: List,
    /// Hash table of the other receives in the index, by match criteria.
    buckets: Box<[List]>,
    classes: Vec<TagClass>,
    seed: Seed,
    next_seq: u64,
}

impl<R> Default for Posted<R> {
    fn default() -> Self {
        Self {
            recent: RingQueue::default(),
            entries: Slab::default(),
            indexed_below: 0,
            searched: List::EMPTY,
            buckets: Box::default(),
            classes: Vec::new(),
            seed: Seed::of_process(),
            next_seq: 0,
        }
    }
}

/// Seed of the hashes of a process, so no peer can choose colliding tags.
#[derive(Clone, Copy, Debug)]
struct Seed([u64; 3]);

impl Seed {
    fn of_process() -> Self {
        static SEED: OnceLock<Seed> = OnceLock::new();
        *SEED.get_or_init(|| {
            // The standard library's keys are of the system's randomness.
            let random = || std::hash::RandomState::new().hash_one(0x6f66_695f_7274_u64);
            Self([random(), random() | 1, random() | 1])
        })
    }

    /// Returns the hash of a source and a tag, both masked to the significant bits.
    #[inline]
    fn hash(self, src: u64, tag: u64) -> usize {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        fold(fold(tag ^ self.0[0], self.0[1]) ^ src, self.0[2]) as usize
    }
}

/// Receives of different classes have different lists.
#[inline]
fn class_key(class: u32, src: u64) -> u64 {
    src ^ u64::from(class) << 40
}

/// Position behind all receives of a queue.
pub struct VacantPosition<'a, R> {
    slot: VacantSlot<'a, TakenRecv<R>>,
    next_seq: &'a mut u64,
}

impl<R> VacantPosition<'_, R> {
    /// Posts a receive.
    #[inline(always)]
    pub fn post(self, pattern: Pattern, value: R) {
        let seq = *self.next_seq;
        *self.next_seq += 1;
        self.slot.put(TakenRecv { value, seq, key: pattern.into() });
    }
}

impl<R> Posted<R> {
    /// Posts a receive behind all others.
    #[inline(always)]
    pub fn push(&mut self, pattern: Pattern, value: R) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.recent.push(TakenRecv { value, seq, key: pattern.into() });
    }

    /// Returns the position behind all other receives; `None` if the queue has to grow.
    #[inline(always)]
    pub fn vacant(&mut self) -> Option<VacantPosition<'_, R>> {
        let Self { recent, next_seq, .. } = self;
        recent.vacant().map(|slot| VacantPosition { slot, next_seq })
    }

    /// Returns a receive to its position before all younger ones, as a multi-receive buffer with
    /// remaining space needs.
    pub fn put_back(&mut self, taken: TakenRecv<R>) {
        let seq = taken.seq;
        if !self.entries.is_empty() && seq < self.indexed_below {
            let id = self.add(taken);
            self.index(id, true);
        } else {
            self.recent.insert(taken, |other| other.seq > seq);
        }
    }

    /// Adds a receive to the ones belonging in the index.
    fn add(&mut self, of: TakenRecv<R>) -> u32 {
        self.entries.insert(PostedEntry { of, class: WILD, prev: NONE, next: NONE })
    }

    /// Moves the receives of the queue to the index.
    #[cold]
    fn index_recent(&mut self) {
        let recent = self.recent.drain();
        let ids: Vec<_> = recent.map(|taken| self.add(taken)).collect();
        self.indexed_below = self.next_seq;
        if self.entries.len() > self.buckets.len() * 2 {
            self.rebuild();
        } else {
            ids.into_iter().for_each(|id| self.index(id, false));
        }
    }

    /// Rebuilds the index of all receives belonging in it, with capacity for more.
    fn rebuild(&mut self) {
        let ids = self.by_age();
        let wanted = (ids.len() * 4).next_power_of_two();
        let mut buckets = Vec::new();
        if heap::ready().is_ok() && buckets.try_reserve_exact(wanted).is_ok() {
            buckets.resize(wanted, List::EMPTY);
            self.buckets = buckets.into_boxed_slice();
        } else if self.buckets.is_empty() {
            self.buckets = vec![List::EMPTY].into_boxed_slice();
        } else {
            // Without memory the lists only become longer.
            self.buckets.fill(List::EMPTY);
        }
        self.searched = List::EMPTY;
        self.classes.clear();
        for id in ids {
            self.index(id, false);
        }
    }

    /// The receives in the index, oldest first.
    fn by_age(&self) -> Vec<u32> {
        let mut ids: Vec<_> = self.entries.iter().map(|(id, e)| (e.of.seq, id)).collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Puts a receive into the index, `by_age` or behind all others.
    fn index(&mut self, id: u32, by_age: bool) {
        let key = self.entries[id].of.key;
        let class = self.class(key.ignore, key.src_mask);
        self.entries[id].class = class;
        if class != WILD {
            self.classes[class as usize].count += 1;
        }
        let bucket = self.bucket_of(id);
        let list = bucket.map_or(self.searched, |bucket| self.buckets[bucket]);
        let list = if by_age { self.insert_by_age(list, id) } else { self.append(list, id) };
        self.set_list(bucket, list);
    }

    fn class(&mut self, ignore: u64, src_mask: u64) -> u32 {
        let mut unused = None;
        for (index, class) in self.classes.iter().enumerate() {
            if class.ignore == ignore && class.src_mask == src_mask {
                return index as u32;
            }
            if class.count == 0 {
                unused = Some(index);
            }
        }
        let new = TagClass { ignore, src_mask, count: 0 };
        if self.classes.len() < MAX_CLASSES {
            self.classes.push(new);
            return (self.classes.len() - 1) as u32;
        }
        match unused {
            Some(index) => {
                self.classes[index] = new;
                index as u32
            }
            None => WILD,
        }
    }

    /// Returns the list of an entry, `None` for the one with linear search.
    #[inline]
    fn bucket_of(&self, id: u32) -> Option<usize> {
        let entry = &self.entries[id];
        let key = &entry.of.key;
        (entry.class != WILD)
            .then(|| self.seed.hash(class_key(entry.class, key.src), key.tag & !key.ignore))
            .map(|hash| hash & (self.buckets.len() - 1))
    }

    #[inline]
    fn append(&mut self, list: List, id: u32) -> List {
        let entry = &mut self.entries[id];
        entry.prev = list.tail;
        entry.next = NONE;
        if list.tail == NONE {
            return List { head: id, tail: id };
        }
        self.entries[list.tail].next = id;
        List { head: list.head, tail: id }
    }

    fn insert_by_age(&mut self, list: List, id: u32) -> List {
        let seq = self.entries[id].of.seq;
        let (mut prev, mut next) = (NONE, list.head);
        while next != NONE && self.entries[next].of.seq < seq {
            (prev, next) = (next, self.entries[next].next);
        }
        self.entries[id].prev = prev;
        self.entries[id].next = next;
        if prev != NONE {
            self.entries[prev].next = id;
        }
        if next != NONE {
            self.entries[next].prev = id;
        }
        List {
            head: if prev == NONE { id } else { list.head },
            tail: if next == NONE { id } else { list.tail },
        }
    }

    fn set_list(&mut self, bucket: Option<usize>, list: List) {
        match bucket {
            Some(bucket) => self.buckets[bucket] = list,
            None => self.searched = list,
        }
    }

    fn unlink(&mut self, id: u32) -> Option<TakenRecv<R>> {
        let bucket = self.bucket_of(id);
        let entry = self.entries.remove(id)?;
        if entry.prev == NONE || entry.next == NONE {
            let mut list = bucket.map_or(self.searched, |bucket| self.buckets[bucket]);
            if entry.prev == NONE {
                list.head = entry.next;
            }
            if entry.next == NONE {
                list.tail = entry.prev;
            }
            self.set_list(bucket, list);
        }
        if entry.prev != NONE {
            self.entries[entry.prev].next = entry.next;
        }
        if entry.next != NONE {
            self.entries[entry.next].prev = entry.prev;
        }
        if entry.class != WILD {
            self.classes[entry.class as usize].count -= 1;
        }
        Some(entry.of)
    }

    /// The oldest receive of all, if it is in the queue and fits a message: nearly
    /// always, since messages come mostly in the order they are waited for.
    pub fn first(&self, src: u64, tag: u64) -> Option<&R> {
        let first = self.recent.front().filter(|first| first.key.fits(src, tag))?;
        self.entries.is_empty().then_some(&first.value)
    }

    /// The [`first`](Self::first) receive, to be looked at and then perhaps taken out.
    #[inline(always)]
    pub fn first_to_take(&mut self, src: u64, tag: u64) -> Option<FirstPosted<'_, R>> {
        if !self.entries.is_empty() {
            return None;
        }
        let first = self.recent.first()?;
        first.value()?.key.fits(src, tag).then_some(FirstPosted(first))
    }

    /// Takes the oldest receive matching a message.
    pub fn take(&mut self, src: u64, tag: u64) -> Option<TakenRecv<R>> {
        if let Some(taken) = self.take_indexed(src, tag) {
            return Some(taken);
        }
        let taken = self.recent.take(SEARCHED, |one| one.key.fits(src, tag));
        if taken.is_some() || self.recent.len() <= SEARCHED {
            return taken;
        }
        self.index_recent();
        self.take_indexed(src, tag)
    }

    /// Takes the oldest receive in the index matching a message.
    fn take_indexed(&mut self, src: u64, tag: u64) -> Option<TakenRecv<R>> {
        if self.entries.is_empty() {
            return None;
        }
        let (mut best, best_seq) = self.oldest_indexed(src, tag);
        let mut id = self.searched.head;
        while id != NONE {
            let entry = &self.entries[id];
            if entry.of.seq > best_seq {
                break;
            }
            if entry.of.key.fits(src, tag) {
                best = id;
                break;
            }
            id = entry.next;
        }
        if best == NONE { None } else { self.unlink(best) }
    }

    /// Returns the oldest receive in the index matching a message, with its age.
    fn oldest_indexed(&self, src: u64, tag: u64) -> (u32, u64) {
        let (mut best, mut best_seq) = (NONE, u64::MAX);
        for (number, class) in self.classes.iter().enumerate() {
            if class.count == 0 {
                continue;
            }
            let number = number as u32;
            let key = tag & !class.ignore;
            let hash = self.seed.hash(class_key(number, src & class.src_mask), key);
            let bucket = hash & (self.buckets.len() - 1);
            let mut id = self.buckets[bucket].head;
            while id != NONE {
                let entry = &self.entries[id];
                if entry.class == number && entry.of.key.fits(src, tag) {
                    if entry.of.seq < best_seq {
                        (best, best_seq) = (id, entry.of.seq);
                    }
                    break;
                }
                id = entry.next;
            }
        }
        (best, best_seq)
    }

    /// Takes the oldest receive accepted by `wanted`.
    pub fn take_if(&mut self, mut wanted: impl FnMut(&R) -> bool) -> Option<R> {
        let found = self.entries.iter().filter(|(_, entry)| wanted(&entry.of.value));
        let found = found.map(|(id, entry)| (entry.of.seq, id)).min();
        let taken = match found {
            Some((_, id)) => self.unlink(id),
            None => self.recent.take(usize::MAX, |one| wanted(&one.value)),
        };
        taken.map(|taken| taken.value)
    }

    /// Takes all, oldest first.
    pub fn drain(&mut self) -> Vec<R> {
        let indexed =
            self.by_age().into_iter().filter_map(|id| self.unlink(id)).collect::<Vec<_>>();
        indexed.into_iter().chain(self.recent.drain()).map(|taken| taken.value).collect()
    }

    /// Returns the match criteria of the oldest receives accepted by `wanted`, at most `most` of
    /// them, oldest first. With more than `most * 8` receives in the index it returns only some of
    /// the oldest.
    pub fn oldest(&self, most: usize, wanted: impl Fn(&R) -> bool) -> Vec<Pattern> {
        let indexed = self.entries.iter().map(|(_, entry)| &entry.of).take(8 * most);
        let all = indexed.chain(self.recent.iter().take(8 * most));
        let mut found: Vec<_> = all.filter(|taken| wanted(&taken.value)).collect();
        found.sort_unstable_by_key(|taken| taken.seq);
        let pattern = |Key { src, src_mask, tag, ignore }: Key| {
            let src = (src_mask != 0).then_some(src);
            Pattern { src, tag, ignore }
        };
        found.into_iter().take(most).map(|taken| pattern(taken.key)).collect()
    }

    /// Returns the number of posted receives.
    pub fn len(&self) -> usize {
        self.recent.len() + self.entries.len()
    }

    /// Returns true if no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug)]
struct BufferedMessage<U> {
    value: U,
    tag: u64,
    src: u64,
    /// The age: smaller numbers are older.
    seq: u64,
    /// Neighbours in the order of arrival.
    prev: u32,
    next: u32,
    /// Receives and peeks still find the message; a claimed one they do not.
    listed: bool,
}

/// A message's place in a list of an index.
#[derive(Clone, Copy, Debug)]
struct ListLinks {
    prev: u32,
    next: u32,
}

impl ListLinks {
    const NONE: Self = Self { prev: NONE, next: NONE };
}

/// Index of messages for one kind of receives: the ones ignoring the same bits of the tag, either
/// all with a source or all without.
#[derive(Debug)]
struct Index {
    ignore: u64,
    src_mask: u64,
    /// Hash table of the messages; those of one hash are in a list by age.
    buckets: Box<[List]>,
    /// Places in the lists, by the messages' numbers.
    links: Vec<ListLinks>,
    /// The value of the messages' `clock` when the index was used last.
    wanted: u64,
}

impl Index {
    fn new(ignore: u64, src_mask: u64, buckets: usize) -> Self {
        let buckets = vec![List::EMPTY; buckets].into_boxed_slice();
        Self { ignore, src_mask, buckets, links: Vec::new(), wanted: 0 }
    }

    #[inline]
    fn bucket(&self, seed: Seed, src: u64, tag: u64) -> usize {
        seed.hash(src & self.src_mask, tag & !self.ignore) & (self.buckets.len() - 1)
    }

    /// Adds a message behind all older ones with its hash. Mostly it is the youngest.
    fn link<U>(&mut self, id: u32, messages: &Slab<BufferedMessage<U>>, seed: Seed) {
        let message = &messages[id];
        let bucket = self.bucket(seed, message.src, message.tag);
        let list = &mut self.buckets[bucket];
        if self.links.len() <= id as usize {
            self.links.resize(id as usize + 1, ListLinks::NONE);
        }
        let (mut prev, mut next) = (list.tail, NONE);
        while prev != NONE && messages[prev].seq > message.seq {
            (prev, next) = (self.links[prev as usize].prev, prev);
        }
        self.links[id as usize] = ListLinks { prev, next };
        match prev {
            NONE => list.head = id,
            prev => self.links[prev as usize].next = id,
        }
        match next {
            NONE => list.tail = id,
            next => self.links[next as usize].prev = id,
        }
    }

    fn unlink<U>(&mut self, id: u32, messages: &Slab<BufferedMessage<U>>, seed: Seed) {
        let message = &messages[id];
        let bucket = self.bucket(seed, message.src, message.tag);
        let list = &mut self.buckets[bucket];
        let ListLinks { prev, next } = self.links[id as usize];
        match prev {
            NONE => list.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
    }
}

/// Unexpected messages.
///
/// The index by tag always exists. For receives ignoring bits of the tag, or naming a source, the
/// messages are searched linearly in the order of their arrival. After a long search there is an
/// index for this kind of receive as well, while there are many messages. Programs use few kinds.
#[derive(Debug)]
pub struct Unexpected<U> {
    messages: Slab<BufferedMessage<U>>,
    order: List,
    /// Indices: by tag, then the ones created for kinds of receives.
    indices: Vec<Index>,
    seed: Seed,
    next_seq: u64,
    /// Number of long searches, and of messages examined by [`find`](Self::find).
    clock: u64,
    #[cfg(test)]
    steps: u64,
}

/// Number of unmatched messages above which a search is long.
const LONG: usize = 64;

/// Maximum number of indices for kinds of receives, in addition to the one by tag.
const MAX_INDICES: usize = 4;

/// Initial number of buckets of an index.
const FIRST_BUCKETS: usize = 16;

impl<U> Default for Unexpected<U> {
    fn default() -> Self {
        Self {
            messages: Slab::default(),
            order: List::EMPTY,
            indices: vec![Index::new(0, 0, FIRST_BUCKETS)],
            seed: Seed::of_process(),
            next_seq: 0,
            clock: 0,
            #[cfg(test)]
            steps: 0,
        }
    }
}

impl<U> Unexpected<U> {
    /// Memory of a message in addition to its separately stored data: its entry here, and its share
    /// of tables at most half empty.
    pub const COST: usize = 2 * (size_of::<BufferedMessage<U>>() + 8 + 2 * size_of::<ListLinks>())
        + 2 * size_of::<List>();

    /// Reserves space for another message. Returns -FI_ENOMEM if there is no memory.
    pub fn reserve(&mut self) -> Result {
        self.messages.try_reserve(1)?;
        let slots = self.messages.slots() + 1;
        for index in &mut self.indices {
            let more = slots.saturating_sub(index.links.len());
            index.links.try_reserve(more).map_err(|_| Error::NOMEM)?;
        }
        Ok(())
    }

    /// Appends a message and returns its number for later reference. `src`: the sender, in the form
    /// used by receives naming a source.
    pub fn push(&mut self, tag: u64, src: u64, value: U) -> u32 {
        if self.messages.len() >= self.indices[0].buckets.len() * 2 {
            self.grow();
        }
        let (seq, prev) = (self.next_seq, self.order.tail);
        self.next_seq += 1;
        let message = BufferedMessage { value, tag, src, seq, prev, next: NONE, listed: true };
        let id = self.messages.insert(message);
        match prev {
            NONE => self.order.head = id,
            tail => self.messages[tail].next = id,
        }
        self.order.tail = id;
        for index in &mut self.indices {
            index.link(id, &self.messages, self.seed);
        }
        id
    }

    /// Grows the tables of all indices, if there is memory.
    #[cold]
    fn grow(&mut self) {
        for at in 0..self.indices.len() {
            let wanted = self.indices[0].buckets.len() * if at == 0 { 4 } else { 1 };
            self.fill(at, wanted);
        }
    }

    /// Indexes all findable messages in tables of this size. Returns false without memory for the
    /// tables; the old ones then stay.
    fn fill(&mut self, at: usize, buckets: usize) -> bool {
        let Self { messages, order, indices, seed, .. } = self;
        let index = &mut indices[at];
        let mut table = Vec::new();
        let links = messages.slots().saturating_sub(index.links.len());
        if heap::ready().is_err()
            || table.try_reserve_exact(buckets).is_err()
            || index.links.try_reserve(links).is_err()
        {
            return false;
        }
        table.resize(buckets, List::EMPTY);
        index.buckets = table.into_boxed_slice();
        let mut id = order.head;
        while id != NONE {
            index.link(id, messages, *seed);
            id = messages[id].next;
        }
        true
    }

    /// Returns the oldest matching message.
    pub fn find(&mut self, pattern: Pattern) -> Option<u32> {
        let (ignore, named) = (pattern.ignore, pattern.src.is_some());
        let src_mask = if named { u64::MAX } else { 0 };
        let is = |index: &Index| index.ignore == ignore && index.src_mask == src_mask;
        if let Some(at) = self.indices.iter().position(is) {
            self.clock += u64::from(at > 0);
            self.indices[at].wanted = self.clock;
            return self.search(Some(at), pattern, usize::MAX).ok().flatten();
        }
        // Tags alone are indexed: of those that are the same the source is looked at.
        let by = (ignore == 0).then_some(0);
        match self.search(by, pattern, LONG) {
            Ok(found) => found,
            Err(()) => {
                let by = self.add_index(ignore, src_mask).or(by);
                self.search(by, pattern, usize::MAX).ok().flatten()
            }
        }
    }

    /// Searches the list of an index containing the matches, or linearly in the order of arrival.
    /// Fails with the number of messages examined if none of them matches and there are more.
    fn search(
        &mut self,
        by: Option<usize>,
        pattern: Pattern,
        most: usize,
    ) -> core::result::Result<Option<u32>, ()> {
        let index = by.map(|at| &self.indices[at]);
        let mut id = index.map_or(self.order.head, |index| {
            index.buckets[index.bucket(self.seed, pattern.src.unwrap_or(0), pattern.tag)].head
        });
        let mut left = most;
        while id != NONE {
            #[cfg(test)]
            {
                self.steps += 1;
            }
            let message = &self.messages[id];
            if pattern.fits(message.src, message.tag) {
                return Ok(Some(id));
            }
            if left == 0 {
                return Err(());
            }
            left -= 1;
            id = index.map_or(message.next, |index| index.links[id as usize].next);
        }
        Ok(None)
    }

    /// Indexes the messages for a kind of receives, replacing the least recently used index if
    /// there are too many. Returns `None` without memory.
    #[cold]
    fn add_index(&mut self, ignore: u64, src_mask: u64) -> Option<usize> {
        if self.indices.len() > MAX_INDICES {
            let unwanted = (1..self.indices.len()).min_by_key(|at| self.indices[*at].wanted)?;
            self.indices.swap_remove(unwanted);
        }
        self.clock += 1;
        let mut index = Index::new(ignore, src_mask, 1);
        index.wanted = self.clock;
        self.indices.push(index);
        let at = self.indices.len() - 1;
        if !self.fill(at, self.indices[0].buckets.len()) {
            self.indices.pop();
            return None;
        }
        Some(at)
    }

    /// The sender of a message has another name.
    pub fn set_source(&mut self, id: u32, src: u64) {
        let Some(message) = self.messages.get(id) else { return };
        let (listed, before) = (message.listed, message.src);
        if before == src {
            return;
        }
        let Self { messages, indices, seed, .. } = self;
        let mut by_source: Vec<_> =
            indices.iter_mut().filter(|i| listed && i.src_mask != 0).collect();
        for index in &mut by_source {
            index.unlink(id, messages, *seed);
        }
        messages[id].src = src;
        for index in by_source {
            index.link(id, messages, *seed);
        }
    }

    /// Hides a message from [`find`](Self::find): it is claimed.
    pub fn claim(&mut self, id: u32) {
        if !self.messages.get(id).is_some_and(|message| message.listed) {
            return;
        }
        for index in &mut self.indices {
            index.unlink(id, &self.messages, self.seed);
        }
        let BufferedMessage { prev, next, .. } = self.messages[id];
        match prev {
            NONE => self.order.head = next,
            prev => self.messages[prev].next = next,
        }
        match next {
            NONE => self.order.tail = prev,
            next => self.messages[next].prev = prev,
        }
        self.messages[id].listed = false;
    }

    /// Returns true if a message was claimed (FI_CLAIM).
    pub fn is_claimed(&self, id: u32) -> bool {
        self.messages.get(id).is_some_and(|message| !message.listed)
    }

    /// Takes a message out.
    pub fn remove(&mut self, id: u32) -> Option<U> {
        self.claim(id);
        let message = self.messages.remove(id)?;
        if self.messages.is_empty() {
            self.shrink();
        }
        Some(message.value)
    }

    /// Clears the indices after the last message was removed, so they cost nothing.
    #[inline]
    fn shrink(&mut self) {
        if self.indices.len() > 1 || self.indices[0].buckets.len() > FIRST_BUCKETS {
            self.indices.truncate(1);
            self.indices[0] = Index::new(0, 0, FIRST_BUCKETS);
            self.messages = Slab::default();
        }
    }

    /// A message by its number.
    pub fn get(&self, id: u32) -> Option<&U> {
        self.messages.get(id).map(|message| &message.value)
    }

    /// A message by its number, to change.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut U> {
        self.messages.get_mut(id).map(|message| &mut message.value)
    }

    /// Returns the oldest messages, at most `most` of them.
    pub fn oldest(&self, most: usize) -> impl Iterator<Item = &U> {
        let next = |id: &u32| Some(self.messages.get(*id)?.next);
        let ids = std::iter::successors(Some(self.order.head), next);
        ids.take(most).filter_map(|id| self.messages.get(id)).map(|message| &message.value)
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

#[cfg(test)]
mod tests;
