//! Matching messages with receives (fi_msg(3), fi_tagged(3)).
//!
//! The rule: a message goes to the receive that was posted first among those
//! whose source fits and for which `send_tag & ~ignore == recv_tag & ~ignore`.
//! A receive takes the message that arrived first among those that fit.
//!
//! Applications use few different ignore masks: usually none, or one fixed mask
//! (MPI). Receives with the same mask and the same kind of source form a class,
//! and inside a class a message names the receives that fit it exactly, so they
//! are found by hashing; what is left is to take the oldest over the classes.
//! The cost does not depend on how many receives are posted. A few receives are
//! just searched, which is cheaper than any index.
use crate::slab::{NONE, Slab};
use std::collections::VecDeque;

/// Up to this many receives are searched; more are indexed.
const SEARCHED: usize = 16;

/// Classes beyond this many share one list that is searched.
const MAX_CLASSES: usize = 16;

/// Class number of the receives on the list that is searched.
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
struct Class {
    ignore: u64,
    src_mask: u64,
    count: usize,
}

/// What a receive matches, as it is compared.
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
pub struct Taken<R> {
    /// What was posted.
    pub value: R,
    /// Age: smaller is older.
    seq: u64,
    key: Key,
}

/// A receive in the index.
#[derive(Debug)]
struct Entry<R> {
    of: Taken<R>,
    class: u32,
    prev: u32,
    next: u32,
}

/// What a receive matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The only source, or any.
    pub src: Option<u64>,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
}

impl Pattern {
    /// Whether a message fits.
    #[inline]
    pub fn fits(&self, src: u64, tag: u64) -> bool {
        (tag ^ self.tag) & !self.ignore == 0 && self.src.is_none_or(|wanted| wanted == src)
    }
}

/// The receives that wait for a message.
#[derive(Debug)]
pub struct Posted<R> {
    /// All receives by age, while they are few.
    few: VecDeque<Taken<R>>,
    /// All receives, once they are many and until none is left.
    entries: Slab<Entry<R>>,
    /// Those of them that are searched, by age.
    searched: List,
    /// The others, by what they match.
    buckets: Box<[List]>,
    classes: Vec<Class>,
    next_seq: u64,
}

impl<R> Default for Posted<R> {
    fn default() -> Self {
        Self {
            few: VecDeque::new(),
            entries: Slab::default(),
            searched: List::EMPTY,
            buckets: Box::default(),
            classes: Vec::new(),
            next_seq: 0,
        }
    }
}

#[inline]
fn hash(class: u32, src: u64, key: u64) -> usize {
    // Two odd constants spread both words; the high bits are the good ones.
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (src ^ u64::from(class) << 40).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 24
}

impl<R> Posted<R> {
    /// Posts a receive behind all others.
    #[inline(always)]
    pub fn push(&mut self, pattern: Pattern, value: R) {
        let taken = Taken { value, seq: self.next_seq, key: pattern.into() };
        self.next_seq += 1;
        if self.few.len() < SEARCHED && self.entries.is_empty() {
            self.few.push_back(taken);
        } else {
            self.insert(taken, false);
        }
    }

    /// Gives a receive back its place before all that are younger, as a
    /// multi-receive buffer with room left needs.
    pub fn put_back(&mut self, taken: Taken<R>) {
        if self.few.len() < SEARCHED && self.entries.is_empty() {
            let younger = |other: &Taken<R>| other.seq > taken.seq;
            let place = self.few.iter().position(younger).unwrap_or(self.few.len());
            self.few.insert(place, taken);
        } else {
            self.insert(taken, true);
        }
    }

    /// Adds a receive to the index, `by_age` or behind all others.
    #[inline(never)]
    fn insert(&mut self, taken: Taken<R>, by_age: bool) {
        if self.entries.is_empty() || self.entries.len() >= self.buckets.len() * 2 {
            self.rebuild();
        }
        let id = self.entries.insert(Entry { of: taken, class: WILD, prev: NONE, next: NONE });
        self.index(id, by_age);
    }

    /// Indexes all receives, with room for more.
    #[cold]
    fn rebuild(&mut self) {
        for of in std::mem::take(&mut self.few) {
            self.entries.insert(Entry { of, class: WILD, prev: NONE, next: NONE });
        }
        let ids = self.by_age();
        if self.buckets.len() < ids.len() {
            let room = (ids.len() * 4).next_power_of_two();
            self.buckets = vec![List::EMPTY; room].into_boxed_slice();
        } else {
            self.buckets.fill(List::EMPTY);
        }
        self.searched = List::EMPTY;
        self.classes.clear();
        for id in ids {
            self.index(id, false);
        }
    }

    /// What is in the index, oldest first.
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
        let new = Class { ignore, src_mask, count: 0 };
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

    /// The list an entry belongs to, `None` for the one that is searched.
    #[inline]
    fn bucket_of(&self, id: u32) -> Option<usize> {
        let entry = &self.entries[id];
        let key = &entry.of.key;
        (entry.class != WILD)
            .then(|| hash(entry.class, key.src, key.tag & !key.ignore) & (self.buckets.len() - 1))
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

    fn unlink(&mut self, id: u32) -> Option<Taken<R>> {
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

    /// The oldest receive of all, if there are few and it fits a message: nearly
    /// always, since messages come mostly in the order they are waited for.
    /// [`drop_first`](Self::drop_first) takes it out.
    #[inline(always)]
    pub fn first(&self, src: u64, tag: u64) -> Option<&R> {
        self.few.front().filter(|first| first.key.fits(src, tag)).map(|first| &first.value)
    }

    /// The [`first`](Self::first) receive is done with.
    #[inline(always)]
    pub fn drop_first(&mut self) {
        self.few.pop_front();
    }

    /// Takes the oldest receive that fits a message.
    pub fn take(&mut self, src: u64, tag: u64) -> Option<Taken<R>> {
        if self.entries.is_empty() {
            let place = self.few.iter().position(|one| one.key.fits(src, tag))?;
            return self.few.remove(place);
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

    /// The oldest receive in the index that fits a message, with its age.
    fn oldest_indexed(&self, src: u64, tag: u64) -> (u32, u64) {
        let (mut best, mut best_seq) = (NONE, u64::MAX);
        for (number, class) in self.classes.iter().enumerate() {
            if class.count == 0 {
                continue;
            }
            let number = number as u32;
            let key = tag & !class.ignore;
            let bucket = hash(number, src & class.src_mask, key) & (self.buckets.len() - 1);
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

    /// Takes the oldest receive for which `wanted` says so.
    pub fn take_if(&mut self, mut wanted: impl FnMut(&R) -> bool) -> Option<R> {
        if self.entries.is_empty() {
            let place = self.few.iter().position(|one| wanted(&one.value))?;
            return self.few.remove(place).map(|taken| taken.value);
        }
        let found = self.entries.iter().filter(|(_, entry)| wanted(&entry.of.value));
        let (_, id) = found.map(|(id, entry)| (entry.of.seq, id)).min()?;
        self.unlink(id).map(|taken| taken.value)
    }

    /// Takes all, oldest first.
    pub fn drain(&mut self) -> Vec<R> {
        let indexed =
            self.by_age().into_iter().filter_map(|id| self.unlink(id)).collect::<Vec<_>>();
        self.few.drain(..).chain(indexed).map(|taken| taken.value).collect()
    }

    /// How many receives wait.
    pub fn len(&self) -> usize {
        self.few.len() + self.entries.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug)]
struct Message<U> {
    value: U,
    tag: u64,
    /// Place in the order of arrival.
    prev: u32,
    next: u32,
    /// Place among the messages of the same hash.
    hash_prev: u32,
    hash_next: u32,
    /// Still to be found; a claimed message is not.
    listed: bool,
}

/// The messages that arrived before a receive that fits them.
#[derive(Debug)]
pub struct Unexpected<U> {
    messages: Slab<Message<U>>,
    order: List,
    buckets: Box<[List]>,
}

impl<U> Default for Unexpected<U> {
    fn default() -> Self {
        Self {
            messages: Slab::default(),
            order: List::EMPTY,
            buckets: vec![List::EMPTY; 16].into_boxed_slice(),
        }
    }
}

impl<U> Unexpected<U> {
    fn bucket(&self, tag: u64) -> usize {
        hash(0, 0, tag) & (self.buckets.len() - 1)
    }

    /// Adds a message behind all others; a number to refer to it by.
    pub fn push(&mut self, tag: u64, value: U) -> u32 {
        if self.messages.len() >= self.buckets.len() * 2 {
            self.grow();
        }
        let id = self.messages.insert(Message {
            value,
            tag,
            prev: self.order.tail,
            next: NONE,
            hash_prev: NONE,
            hash_next: NONE,
            listed: true,
        });
        match self.order.tail {
            NONE => self.order.head = id,
            tail => self.messages[tail].next = id,
        }
        self.order.tail = id;
        self.link_hash(id);
        id
    }

    fn link_hash(&mut self, id: u32) {
        let bucket = self.bucket(self.messages[id].tag);
        let list = &mut self.buckets[bucket];
        self.messages[id].hash_prev = list.tail;
        self.messages[id].hash_next = NONE;
        match list.tail {
            NONE => list.head = id,
            tail => self.messages[tail].hash_next = id,
        }
        list.tail = id;
    }

    fn grow(&mut self) {
        self.buckets = vec![List::EMPTY; self.buckets.len() * 4].into_boxed_slice();
        let mut id = self.order.head;
        while id != NONE {
            let next = self.messages[id].next;
            self.link_hash(id);
            id = next;
        }
    }

    /// The message that arrived first among those that fit. `src_of` says who
    /// sent a message; sources can become known after it arrived.
    pub fn find(&self, pattern: Pattern, src_of: impl Fn(&U) -> u64) -> Option<u32> {
        let by_hash = pattern.ignore == 0;
        let mut id =
            if by_hash { self.buckets[self.bucket(pattern.tag)].head } else { self.order.head };
        while id != NONE {
            let message = &self.messages[id];
            let src = if pattern.src.is_some() { src_of(&message.value) } else { 0 };
            if pattern.fits(src, message.tag) {
                return Some(id);
            }
            id = if by_hash { message.hash_next } else { message.next };
        }
        None
    }

    /// Hides a message from [`find`](Self::find): it is claimed.
    pub fn claim(&mut self, id: u32) {
        if !self.messages.get(id).is_some_and(|message| message.listed) {
            return;
        }
        let bucket = self.bucket(self.messages[id].tag);
        let Message { prev, next, hash_prev, hash_next, .. } = self.messages[id];
        match prev {
            NONE => self.order.head = next,
            prev => self.messages[prev].next = next,
        }
        match next {
            NONE => self.order.tail = prev,
            next => self.messages[next].prev = prev,
        }
        match hash_prev {
            NONE => self.buckets[bucket].head = hash_next,
            prev => self.messages[prev].hash_next = hash_next,
        }
        match hash_next {
            NONE => self.buckets[bucket].tail = hash_prev,
            next => self.messages[next].hash_prev = hash_prev,
        }
        self.messages[id].listed = false;
    }

    /// Takes a message out.
    pub fn remove(&mut self, id: u32) -> Option<U> {
        self.claim(id);
        self.messages.remove(id).map(|message| message.value)
    }

    /// A message by its number.
    pub fn get(&self, id: u32) -> Option<&U> {
        self.messages.get(id).map(|message| &message.value)
    }

    /// A message by its number, to change.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut U> {
        self.messages.get_mut(id).map(|message| &mut message.value)
    }

    /// The numbers of all messages, claimed ones too.
    pub fn ids(&self) -> Vec<u32> {
        if self.is_empty() {
            return Vec::new();
        }
        self.messages.iter().map(|(id, _)| id).collect()
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(tag: u64, ignore: u64) -> Pattern {
        Pattern { src: None, tag, ignore }
    }
    fn from(src: u64, tag: u64, ignore: u64) -> Pattern {
        Pattern { src: Some(src), tag, ignore }
    }

    #[test]
    fn the_oldest_receive_that_fits_wins_over_all_kinds() {
        let mut posted = Posted::default();
        posted.push(from(1, 7, 0), 'a');
        posted.push(any(0, u64::MAX), 'b');
        posted.push(any(7, 0), 'c');
        posted.push(from(2, 0, 0xff), 'd');
        let mut take = |src, tag| posted.take(src, tag).map(|taken| taken.value);
        assert_eq!(take(1, 7), Some('a'));
        assert_eq!(take(1, 7), Some('b'));
        assert_eq!(take(2, 7), Some('c'));
        assert_eq!(take(1, 7), None);
        assert_eq!(take(2, 7), Some('d'));
    }

    #[test]
    fn a_receive_put_back_is_still_the_oldest() {
        let mut posted = Posted::default();
        posted.push(any(0, 0), 1);
        posted.push(any(0, 0), 2);
        let first = posted.take(0, 0).unwrap();
        posted.put_back(first);
        assert_eq!(posted.take(0, 0).unwrap().value, 1);
        assert_eq!(posted.drain(), [2]);
    }

    #[test]
    fn matching_agrees_with_a_plain_search_over_random_traffic() {
        // A small generator with a fixed seed: the same traffic every time.
        let mut state = 0x1234_5678_u64;
        let mut random = |bound: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % bound
        };
        let masks: Vec<u64> =
            (0..24).map(|n| if n == 0 { 0 } else { (1 << (n % 6)) - 1 + n / 6 }).collect();
        let mut posted = Posted::default();
        let mut plain: Vec<(Pattern, u64)> = Vec::new();
        for number in 0..20_000 {
            if random(2) == 0 {
                let src = (random(2) == 0).then(|| random(3));
                let ignore = masks[random(24) as usize];
                let pattern = Pattern { src, tag: random(8), ignore };
                posted.push(pattern, number);
                plain.push((pattern, number));
            } else {
                let (src, tag) = (random(3), random(8));
                let wanted = plain.iter().position(|(pattern, _)| pattern.fits(src, tag));
                let wanted = wanted.map(|at| plain.remove(at).1);
                assert_eq!(posted.take(src, tag).map(|taken| taken.value), wanted);
            }
        }
        let left: Vec<_> = plain.into_iter().map(|(_, number)| number).collect();
        assert_eq!(posted.drain(), left);
    }

    #[test]
    fn the_message_that_came_first_is_found_and_a_claimed_one_is_not() {
        let mut messages = Unexpected::default();
        for (src, tag) in [(1, 5), (2, 5), (1, 6)] {
            messages.push(tag, (src, tag));
        }
        let src = |message: &(u64, u64)| message.0;
        let first = messages.find(any(5, 0), src).unwrap();
        assert_eq!(messages.get(first), Some(&(1, 5)));
        messages.claim(first);
        let second = messages.find(any(5, 0), src).unwrap();
        assert_eq!(messages.get(second), Some(&(2, 5)));
        assert_eq!(messages.find(from(1, 5, 0), src), None);
        let wild = messages.find(from(1, 0, u64::MAX), src).unwrap();
        assert_eq!(messages.remove(wild), Some((1, 6)));
        assert_eq!(messages.remove(first), Some((1, 5)));
        assert_eq!(messages.len(), 1);
    }

    #[test]
    fn many_messages_are_still_found_by_tag_in_order() {
        let mut messages = Unexpected::default();
        for n in 0..1000u64 {
            messages.push(n % 100, n);
        }
        for n in 0..1000u64 {
            let id = messages.find(any(n % 100, 0), |_| 0).unwrap();
            assert_eq!(messages.remove(id), Some(n));
        }
        assert!(messages.is_empty());
    }
}
