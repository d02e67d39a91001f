//! A ring between two processes: bytes, lent pieces, room, and who is told of them.
use crate::Watched;
use crate::primitives::{Ordering, fence};
use crate::sys::{self, EventFd};
use crate::words::{DoorWords, RingReader, RingWords, RingWriter};
use loom::sync::atomic::AtomicU32;
use loom::thread::{spawn, yield_now};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Bytes of the ring.
const SIZE: u64 = 4;

/// A byte in memory that both have.
struct Byte(loom::cell::UnsafeCell<u8>);

// SAFETY: loom finds out whether this holds.
unsafe impl Send for Byte {}
// SAFETY: as above.
unsafe impl Sync for Byte {}

impl Byte {
    fn set(&self, byte: u8) {
        // SAFETY: loom finds out whether nobody else is there.
        self.0.with_mut(|at| unsafe { *at = byte });
    }
    fn get(&self) -> u8 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// A door with its bell.
struct Engine {
    door: DoorWords,
    bell: EventFd,
}

impl Engine {
    fn new() -> Self {
        Self { door: DoorWords::new(), bell: EventFd::new().unwrap() }
    }

    fn ring(&self) {
        if self.door.ring(5) {
            self.bell.signal();
        }
    }

    /// Sleeps until somebody rings, unless `look` finds something.
    fn sleep_unless(&self, look: impl FnOnce() -> bool) {
        if self.door.fall_asleep() && !look() {
            sys::poll(self.bell.as_raw_fd());
        }
        self.door.wake();
        self.bell.drain();
        self.door.take(|index| assert_eq!(index, 5));
    }
}

/// What two processes share.
struct Shared {
    /// The ring that is looked at, and the one back, whose reader line says whether the writer polls.
    words: RingWords,
    back: RingWords,
    bytes: [Byte; SIZE as usize],
    /// What the writer lends.
    lent: [Byte; 3],
    reader: Engine,
    writer: Engine,
}

impl Shared {
    fn new() -> Arc<Self> {
        let byte = |_| Byte(loom::cell::UnsafeCell::new(0));
        Arc::new(Self {
            words: RingWords::new(),
            back: RingWords::new(),
            bytes: std::array::from_fn(byte),
            lent: std::array::from_fn(byte),
            reader: Engine::new(),
            writer: Engine::new(),
        })
    }

    fn tell_reader(&self) {
        if self.words.must_tell_reader(true) {
            self.reader.ring();
        }
    }

    fn tell_writer(&self) {
        if self.back.must_tell_reader(true) {
            self.writer.ring();
        }
    }

    /// Writes these bytes as far as there is room.
    fn write(&self, writer: &RingWriter, bytes: &[u8]) -> usize {
        let room = writer.room(&self.words, bytes.len() as u64).unwrap();
        let n = bytes.len().min(room as usize);
        for (at, byte) in (writer.head()..).zip(&bytes[..n]) {
            self.bytes[(at % SIZE) as usize].set(*byte);
        }
        if n > 0 {
            writer.publish(&self.words, n as u64);
            self.tell_reader();
        }
        n
    }

    /// Reads bytes of the ring, at most so many, as `LocalPipe::recv` does.
    fn read(&self, reader: &RingReader, most: usize, out: &mut Vec<u8>) -> bool {
        let there = match reader.plain(&self.words) {
            Some(there) => there,
            None => {
                if reader.before_piece() == 0 && !is_at_piece(reader) {
                    if !reader.look(&self.words).unwrap() {
                        if reader.found_nothing(&self.words) {
                            self.tell_writer();
                        }
                        return false;
                    }
                }
                if is_at_piece(reader) {
                    let piece = reader.piece().unwrap();
                    out.push(self.lent[piece.addr as usize].get());
                    if reader.fetch(&self.words, 1).unwrap() {
                        self.tell_writer();
                    }
                    return true;
                }
                reader.before_piece()
            }
        };
        let n = there.min(most as u64);
        for at in reader.tail()..reader.tail() + n {
            out.push(self.bytes[(at % SIZE) as usize].get());
        }
        if n > 0 && reader.consume(&self.words, n) {
            self.tell_writer();
        }
        n > 0
    }
}

fn is_at_piece(reader: &RingReader) -> bool {
    reader.piece().is_some_and(|piece| piece.at == reader.tail())
}

/// Bytes come in order, once, and no byte is written before it was read: both look all the time.
pub(crate) fn both_poll(writes: &'static [usize], most: usize) {
    let shared = Shared::new();
    shared.words.set_polled(true, true);
    shared.back.set_polled(true, true);
    let total: usize = writes.iter().sum();
    let bytes = (1..=total as u8).collect::<Vec<_>>();
    let there = shared.clone();
    let writer = spawn(move || {
        let (writer, mut from) = (RingWriter::new(SIZE), 0);
        for len in writes {
            let end = from + len;
            while from < end {
                match there.write(&writer, &(from as u8 + 1..=end as u8).collect::<Vec<_>>()) {
                    0 => yield_now(),
                    n => from += n,
                }
            }
        }
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    while got.len() < total {
        if !shared.read(&reader, most, &mut got) {
            yield_now();
        }
    }
    writer.join().unwrap();
    assert_eq!(got, bytes);
}

/// A reader that has polled sleeps, and hears of bytes that come before and after.
pub(crate) fn reader_sleeps(barriers: bool, messages: usize) {
    let shared = Shared::new();
    shared.back.set_polled(true, true);
    shared.words.set_polled(true, barriers);
    let there = shared.clone();
    let writer = spawn(move || {
        let writer = RingWriter::new(SIZE);
        (0..messages).for_each(|n| assert_eq!(there.write(&writer, &[n as u8]), 1));
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    while got.len() < messages {
        if shared.read(&reader, 1, &mut got) {
            continue;
        }
        shared.words.set_polled(false, barriers);
        // The barrier of all processes, which stands beside the writer's compiler fence.
        fence(Ordering::SeqCst);
        shared.reader.sleep_unless(|| reader.plain(&shared.words) != Some(0));
    }
    writer.join().unwrap();
    assert_eq!(got.len(), messages);
}

/// A writer without room sleeps until there is some, and so does the reader while there is nothing.
pub(crate) fn both_sleep(total: usize, most: usize) {
    let shared = Shared::new();
    let there = shared.clone();
    let writer = spawn(move || {
        let (writer, mut from) = (RingWriter::new(SIZE), 0);
        let bytes = (1..=total as u8).collect::<Vec<_>>();
        while from < total {
            from += there.write(&writer, &bytes[from..]);
            if from < total && !writer.want_room(&there.words).unwrap() {
                there.writer.sleep_unless(|| writer.look(&there.words).unwrap() > 0);
            }
        }
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    while got.len() < total {
        if !shared.read(&reader, most, &mut got) {
            shared.reader.sleep_unless(|| reader.plain(&shared.words) != Some(0));
        }
    }
    writer.join().unwrap();
    assert_eq!(got, (1..=total as u8).collect::<Vec<_>>());
}

/// Lent pieces come where they belong among the bytes, and the writer has its memory back only when
/// they were read.
pub(crate) fn lends(pieces: u64, sleeps: bool) {
    let shared = Shared::new();
    let there = shared.clone();
    let writer = spawn(move || {
        let writer = RingWriter::new(SIZE);
        let mut back = 0;
        let mut take_back = |writer: &RingWriter| {
            let left = u64::from(writer.look_fetched(&there.words).unwrap());
            let lent = u64::from(writer.lent());
            (back..lent - left).for_each(|piece| there.lent[piece as usize].set(0));
            back = lent - left;
            back
        };
        for piece in 0..pieces {
            there.lent[piece as usize].set(100 + piece as u8);
            while !writer.lend(&there.words, piece, 1).unwrap() {
                if !writer.want_room(&there.words).unwrap() {
                    if sleeps {
                        there
                            .writer
                            .sleep_unless(|| writer.look_fetched(&there.words).unwrap() < 2);
                    } else {
                        yield_now();
                    }
                }
            }
            there.tell_reader();
            assert_eq!(there.write(&writer, &[piece as u8]), 1);
        }
        while take_back(&writer) < pieces {
            if sleeps {
                there.writer.sleep_unless(|| writer.look_fetched(&there.words) == Ok(0));
            } else {
                yield_now();
            }
        }
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    while got.len() < 2 * pieces as usize {
        if !shared.read(&reader, 1, &mut got) {
            if sleeps {
                shared.reader.sleep_unless(|| reader.plain(&shared.words) != Some(0));
            } else {
                yield_now();
            }
        }
    }
    writer.join().unwrap();
    let expected = (0..pieces as u8).flat_map(|piece| [100 + piece, piece]);
    assert_eq!(got, expected.collect::<Vec<_>>());
}

/// What was lent and taken back is not believed once it has changed.
pub(crate) fn withdraws() {
    let shared = Shared::new();
    let memory = Arc::new(AtomicU32::new(1));
    let (there, own) = (shared.clone(), memory.clone());
    let writer = spawn(move || {
        there.words.withdraw();
        own.store(2, Relaxed);
    });
    let read = memory.load(Relaxed);
    assert!(read == 1 || shared.words.is_withdrawn());
    writer.join().unwrap();
}

/// Two peers ring at one door, and the owner looks at both.
pub(crate) fn two_ring() {
    let engine = Arc::new(Engine::new());
    let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let peers: Vec<_> = (0..2)
        .map(|index| {
            let (engine, words) = (engine.clone(), words.clone());
            spawn(move || {
                words[index].store(1, Relaxed);
                if engine.door.ring(index as u32) {
                    engine.bell.signal();
                }
            })
        })
        .collect();
    let mut seen = [false; 2];
    while seen != [true; 2] {
        if engine.door.fall_asleep() {
            sys::poll(engine.bell.as_raw_fd());
        }
        engine.door.wake();
        engine.bell.drain();
        engine.door.take(|index| {
            assert_eq!(words[index as usize].load(Relaxed), 1);
            seen[index as usize] = true;
        });
    }
    peers.into_iter().for_each(|peer| peer.join().unwrap());
}
