//! Differences between the clocks of traces of several hosts.
//!
//! A message is matched after its post. So the shortest time from a post in one trace to the match in
//! another one is the difference of their clocks plus a delay, and for messages of the opposite
//! direction it is the delay minus the difference. With equal delays the difference is half of the
//! distance of both times, as in NTP. Half of their sum is the uncertainty.
//!
//! The messages of one sender to one receiver with one tag match in the order of their posts. Only
//! complete sequences are used: those with as many posts as matches, of equal lengths.
use super::line::flags;
use super::order::{EventKind, EventTransfer, TraceReader};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};

/// Maximum number of posts and matches stored.
const MAX_STORED: usize = 1 << 22;

/// Sequence of messages: numbers of the sender and the receiver, and the tag.
type SequenceKey = (u64, u64, u64);

/// Posts or matches of a sequence, in the order of their times.
#[derive(Debug, Default)]
struct Half {
    /// File of all of them.
    file: usize,
    /// True if they are of several files.
    is_mixed: bool,
    /// Times with lengths.
    points: Vec<(i64, u64)>,
}

impl Half {
    fn push(&mut self, file: usize, time: i64, len: u64) {
        if self.points.is_empty() {
            self.file = file;
        }
        self.is_mixed |= self.file != file;
        self.points.push((time, len));
    }
}

/// Posts and matches of messages of one sender to one receiver with one tag.
#[derive(Debug, Default)]
struct Sequence {
    posts: Half,
    matches: Half,
}

impl Sequence {
    /// Returns true if each post has its match in one other file.
    fn is_complete(&self) -> bool {
        let (posts, matches) = (&self.posts, &self.matches);
        let lens = |half: &Half| half.points.iter().map(|(_, len)| *len).collect::<Vec<_>>();
        posts.file != matches.file
            && !posts.is_mixed
            && !matches.is_mixed
            && posts.points.len() == matches.points.len()
            && lens(posts) == lens(matches)
    }
}

/// Shortest time from posts in one file to their matches in another one.
#[derive(Clone, Copy, Debug)]
struct Shortest {
    time: i64,
    messages: u64,
}

/// Offset of a file to the clock of the first file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Nanoseconds to add to the times of the file.
    pub offset: i64,
    /// Maximum error of the offset; `None` if it is unknown, with messages of one direction only.
    pub uncertainty: Option<u64>,
    /// Number of messages used.
    pub messages: u64,
}

/// Messages between the files of a trace.
#[derive(Debug, Default)]
struct ClockMessages {
    sequences: HashMap<SequenceKey, Sequence>,
    stored: usize,
}

impl ClockMessages {
    /// Adds a post or a match of a message.
    fn add(&mut self, key: SequenceKey, is_post: bool, file: usize, time: i64, len: u64) {
        if key.0 == 0 || key.1 == 0 || self.stored >= MAX_STORED {
            return;
        }
        self.stored += 1;
        let sequence = self.sequences.entry(key).or_default();
        let half = if is_post { &mut sequence.posts } else { &mut sequence.matches };
        half.push(file, time, len);
    }

    /// Removes the last post of a sequence, refused by the provider.
    fn remove_post(&mut self, key: SequenceKey) {
        let sequence = self.sequences.get_mut(&key);
        if sequence.is_some_and(|sequence| sequence.posts.points.pop().is_some()) {
            self.stored -= 1;
        }
    }

    /// Adds the events of a file.
    fn read<R: BufRead>(&mut self, file: usize, from: R) -> io::Result<()> {
        let mut reader = TraceReader::new([(from, 0)]);
        // Last post of each thread.
        let mut last = HashMap::new();
        while let Some(event) = reader.next_event()? {
            let thread = (event.pid, event.tid, event.provider);
            match event.kind {
                EventKind::Send(EventTransfer { endpoint, peer, tag, len, flags, .. }) => {
                    last.remove(&thread);
                    if flags & flags::SEND != 0 {
                        let key = (endpoint, peer, tag);
                        self.add(key, true, file, event.time, len);
                        if last.len() < MAX_STORED {
                            last.insert(thread, key);
                        }
                    }
                }
                EventKind::Refuse { .. } => {
                    if let Some(key) = last.remove(&thread) {
                        self.remove_post(key);
                    }
                }
                EventKind::Match(EventTransfer { endpoint, peer, tag, len, .. }) => {
                    self.add((peer, endpoint, tag), false, file, event.time, len);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the shortest times by the files of posts and matches.
    fn shortest(&self) -> BTreeMap<(usize, usize), Shortest> {
        let mut shortest = BTreeMap::new();
        for sequence in self.sequences.values().filter(|sequence| sequence.is_complete()) {
            let Sequence { posts, matches } = sequence;
            for (post, matched) in posts.points.iter().zip(&matches.points) {
                let time = matched.0.saturating_sub(post.0);
                let known = shortest
                    .entry((posts.file, matches.file))
                    .or_insert(Shortest { time, messages: 0 });
                known.time = known.time.min(time);
                known.messages += 1;
            }
        }
        shortest
    }
}

/// Returns the offset of the clock of file `to` to that of file `from`.
fn between(
    shortest: &BTreeMap<(usize, usize), Shortest>,
    from: usize,
    to: usize,
) -> Option<ClockOffset> {
    let (there, back) = (shortest.get(&(from, to)), shortest.get(&(to, from)));
    match (there, back) {
        (None, None) => None,
        // Delays are at least 0.
        (Some(there), None) => {
            let offset = there.time.saturating_neg();
            Some(ClockOffset { offset, uncertainty: None, messages: there.messages })
        }
        (None, Some(back)) => {
            Some(ClockOffset { offset: back.time, uncertainty: None, messages: back.messages })
        }
        (Some(there), Some(back)) => {
            let both = there.time.saturating_add(back.time);
            // No message arrives before its post: these are other messages.
            let uncertainty = u64::try_from(both).ok()? / 2;
            Some(ClockOffset {
                offset: back.time.saturating_sub(there.time) / 2,
                uncertainty: Some(uncertainty),
                messages: there.messages + back.messages,
            })
        }
    }
}

/// Returns the offset of each file to the clock of the first one, from the messages between them;
/// `None` for a file without such messages. A file may be joined to the first one through others.
pub fn clock_offsets<R: BufRead>(
    files: impl IntoIterator<Item = R>,
) -> io::Result<Vec<Option<ClockOffset>>> {
    let mut messages = ClockMessages::default();
    let mut count = 0;
    for from in files {
        messages.read(count, from)?;
        count += 1;
    }
    let shortest = messages.shortest();
    let mut offsets = vec![None; count];
    if let Some(first) = offsets.first_mut() {
        *first = Some(ClockOffset { offset: 0, uncertainty: Some(0), messages: 0 });
    }
    // The most certain step of a known file to an unknown one comes first.
    loop {
        let mut best: Option<(usize, ClockOffset)> = None;
        for (from, known) in offsets.iter().enumerate() {
            let Some(known) = known else { continue };
            for to in (0..count).filter(|to| offsets[*to].is_none()) {
                let Some(step) = between(&shortest, from, to) else { continue };
                let uncertainty = known.uncertainty.zip(step.uncertainty);
                let all = ClockOffset {
                    offset: step.offset.saturating_add(known.offset),
                    uncertainty: uncertainty.map(|(known, step)| known.saturating_add(step)),
                    messages: step.messages,
                };
                let order = |offset: &ClockOffset| offset.uncertainty.unwrap_or(u64::MAX);
                if best.is_none_or(|(_, best)| order(&all) < order(&best)) {
                    best = Some((to, all));
                }
            }
        }
        let Some((to, offset)) = best else { return Ok(offsets) };
        offsets[to] = Some(offset);
    }
}
