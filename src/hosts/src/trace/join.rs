//! Joins sends with their matches in other processes.
//!
//! The messages of one sender to one receiver with one tag match in the order of their sends. If an
//! endpoint is unknown, or the receiver has several addresses, the oldest send with the tag and the
//! length is taken, unless its endpoints are known to be others.
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// Maximum number of sends waiting for their match.
const MAX_WAITING: usize = 1 << 20;

/// Maximum number of sends examined for a match.
const MAX_EXAMINED: usize = 64;

/// Maximum number of different endpoints.
const MAX_ENDPOINTS: usize = 1 << 20;

/// Beginning of an arrow: a send.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendPoint {
    pub(super) time: i64,
    pub(super) pid: u64,
    pub(super) tid: u64,
}

#[derive(Clone, Copy, Debug)]
struct WaitingSend {
    from: u64,
    to: u64,
    tag: u64,
    len: u64,
    point: SendPoint,
}

/// Sends without a match so far.
#[derive(Default)]
pub(super) struct Joiner {
    next: u64,
    waiting: HashMap<u64, WaitingSend>,
    /// Numbers of sends by sender, receiver and tag, and by tag and length; some are joined by now.
    exact: HashMap<(u64, u64, u64), VecDeque<u64>>,
    loose: HashMap<(u64, u64), VecDeque<u64>>,
    /// Oldest number possibly waiting.
    oldest: u64,
    /// Endpoints with events of their own.
    known: HashSet<u64>,
    /// Sends without a match.
    pub(super) dropped: u64,
}

impl Joiner {
    /// Records an endpoint with events of its own.
    pub(super) fn know(&mut self, endpoint: u64) {
        if endpoint != 0 && self.known.len() < MAX_ENDPOINTS {
            self.known.insert(endpoint);
        }
    }

    /// Adds a send; returns its number.
    pub(super) fn sent(&mut self, from: u64, to: u64, tag: u64, len: u64, point: SendPoint) -> u64 {
        while self.waiting.len() >= MAX_WAITING {
            self.dropped += u64::from(self.take(self.oldest).is_some());
            self.oldest += 1;
        }
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, WaitingSend { from, to, tag, len, point });
        for list in [
            self.exact.entry((from, to, tag)).or_default(),
            self.loose.entry((tag, len)).or_default(),
        ] {
            // The fronts of lists are waiting sends; others are removed from long lists.
            if list.len() >= 2 * MAX_EXAMINED && list.len().is_power_of_two() {
                list.retain(|number| self.waiting.contains_key(number));
            }
            list.push_back(number);
        }
        number
    }

    /// Removes a refused send.
    pub(super) fn refused(&mut self, number: u64) {
        self.take(number);
    }

    /// Returns the send of a message matched at an endpoint, if it is known.
    pub(super) fn matched(&mut self, from: u64, to: u64, tag: u64, len: u64) -> Option<SendPoint> {
        if from != 0 && to != 0 {
            if let Some(number) = self.exact_match((from, to, tag), len) {
                return self.take(number);
            }
        }
        let list = self.loose.get(&(tag, len))?;
        let (waiting, known) = (&self.waiting, &self.known);
        let has = |number: &u64, is_it: &dyn Fn(&WaitingSend) -> bool| {
            let send = waiting.get(number);
            send.is_some_and(|send| {
                (send.from == from || send.from == 0 || from == 0) && is_it(send)
            })
        };
        let examined = || list.iter().take(MAX_EXAMINED).copied();
        let exact = examined().find(|number| has(number, &|send| send.to == to));
        // Another address of the receiver is that of no other endpoint.
        let is_possible = |send: &WaitingSend| send.to == 0 || to == 0 || !known.contains(&send.to);
        let number = exact.or_else(|| examined().find(|number| has(number, &is_possible)))?;
        self.take(number)
    }

    /// Returns the oldest send to this receiver with this length. Older ones of other lengths have
    /// lost their match.
    fn exact_match(&mut self, key: (u64, u64, u64), len: u64) -> Option<u64> {
        let list = self.exact.get(&key)?;
        let fits = |number: &u64| self.waiting.get(number).is_some_and(|send| send.len == len);
        let at = list.iter().take(MAX_EXAMINED).position(fits)?;
        let older: Vec<_> = list.iter().take(at).copied().collect();
        let number = list.get(at).copied();
        for number in older {
            self.dropped += u64::from(self.take(number).is_some());
        }
        number
    }

    /// Takes a waiting send. Lists without waiting sends are removed.
    fn take(&mut self, number: u64) -> Option<SendPoint> {
        let send = self.waiting.remove(&number)?;
        let WaitingSend { from, to, tag, len, point } = send;
        trim(&mut self.exact, (from, to, tag), &self.waiting);
        trim(&mut self.loose, (tag, len), &self.waiting);
        Some(point)
    }

    /// Returns the number of sends without a match.
    pub(super) fn unmatched(&self) -> u64 {
        self.dropped + self.waiting.len() as u64
    }

    /// Returns the numbers of waiting sends and of lists.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.waiting.len(), self.exact.len(), self.loose.len()]
    }
}

/// Removes joined sends from the front of a list, and an empty list.
fn trim<K: Eq + Hash>(
    lists: &mut HashMap<K, VecDeque<u64>>,
    key: K,
    waiting: &HashMap<u64, WaitingSend>,
) {
    let Entry::Occupied(mut list) = lists.entry(key) else { return };
    while list.get().front().is_some_and(|number| !waiting.contains_key(number)) {
        list.get_mut().pop_front();
    }
    if list.get().is_empty() {
        list.remove();
    }
}
