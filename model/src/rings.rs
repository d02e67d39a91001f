//! Ring between two processes: bytes, exposed buffers, space, and notifications.
use crate::Watched;
use crate::primitives::{CELLS, Ordering, fence, set_barriers};
use crate::sys::{self, EventFd};
use crate::ring_layout::{CellKind, DoorbellWords, RingReader, RingControl, RingWriter};
use loom::sync::atomic::AtomicU32;
use loom::thread::{spawn, yield_now};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Bytes next to the cells.
const SIZE: u32 = 4;

/// Byte in shared memory.
struct Byte(loom::cell::UnsafeCell<u8>);

// SAFETY: loom finds out whether this holds.
unsafe impl Send for Byte {}
// SAFETY: as above.
unsafe impl Sync for Byte {}

impl Byte {
    fn set(&self, byte: u8) {
        // SAFETY: loom verifies the absence of concurrent accesses.
        self.0.with_mut(|at| unsafe { *at = byte });
    }
    fn get(&self) -> u8 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// Doorbell with its eventfd.
struct Engine {
    doorbell: DoorbellWords,
    wakeup: EventFd,
}

impl Engine {
    fn new() -> Self {
        Self { doorbell: DoorbellWords::new(), wakeup: EventFd::new().unwrap() }
    }

    fn ring(&self) {
        self.doorbell.ring(5, || self.wakeup.signal());
    }

    /// Sleeps until a doorbell signal, unless `look` finds something.
    fn sleep_unless(&self, look: impl FnOnce() -> bool) {
        if self.doorbell.fall_asleep() && !look() {
            sys::poll(self.wakeup.as_raw_fd());
        }
        self.doorbell.wake();
        self.wakeup.drain();
        self.doorbell.take(|index| assert_eq!(index, 5));
    }
}

/// State shared by two processes.
struct Shared {
    /// The ring under test, and the one in the other direction, with the writer's polling state in
    /// its reader line.
    words: RingControl,
    back: RingControl,
    bytes: [Byte; SIZE as usize],
    /// Exposed bytes of the writer.
    exposed: [Byte; 3],
    reader: Engine,
    writer: Engine,
}

impl Shared {
    fn new() -> Arc<Self> {
        let byte = |_| Byte(loom::cell::UnsafeCell::new(0));
        Arc::new(Self {
            words: RingControl::new(),
            back: RingControl::new(),
            bytes: std::array::from_fn(byte),
            exposed: std::array::from_fn(byte),
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

    /// Writes one cell with these bytes, limited by the free space; one byte goes into the cell.
    fn write(&self, writer: &RingWriter, bytes: &[u8]) -> usize {
        if let [only] = bytes {
            if !writer.has_cell(&self.words).unwrap() {
                return 0;
            }
            let number = writer.next_cell();
            let cell = self.words.cell(number);
            // SAFETY: a cell has room for a byte.
            cell.body.with_mut(|body| unsafe { body.write(*only) });
            writer.publish_short(cell, number, 1);
            self.tell_reader();
            return 1;
        }
        let space = writer.space(&self.words, bytes.len() as u32).unwrap();
        let n = bytes.len().min(space as usize);
        let position = writer.position();
        for (at, byte) in (position as usize..).zip(&bytes[..n]) {
            self.bytes[at].set(*byte);
        }
        if n > 0 {
            let cell = self.words.cell(writer.next_cell());
            // SAFETY: a cell has room for a byte.
            cell.body.with_mut(|body| unsafe { body.write(position as u8) });
            writer.publish(&self.words, CellKind::Bytes, n as u32);
            self.tell_reader();
        }
        n
    }

    /// Exposes a byte. Returns false if there is no cell for it.
    fn expose(&self, writer: &RingWriter, piece: u8) -> bool {
        if !writer.has_cell(&self.words).unwrap() {
            return false;
        }
        // SAFETY: a cell has room for a byte.
        self.words.cell(writer.next_cell()).body.with_mut(|body| unsafe { body.write(piece) });
        writer.publish(&self.words, CellKind::Exposed, 1);
        self.tell_reader();
        true
    }

    /// Reads bytes of one cell, at most so many, as `ShmChannel::recv` does.
    fn read(&self, reader: &RingReader, most: u32, out: &mut Vec<u8>) -> bool {
        // SAFETY: a cell has a byte.
        let byte_in_cell =
            || self.words.cell(reader.this_cell()).body.with(|body| unsafe { body.read() });
        if let Some(number) = reader.next_cell() { if self.words.cell(number).short(number) > 0 {
            out.push(byte_in_cell());
            if reader.took_short(number.wrapping_add(1)) && reader.tell(&self.words) {
                self.tell_writer();
            }
            return true;
        } }
        if !reader.look(&self.words).unwrap() {
            if reader.found_nothing(&self.words) {
                self.tell_writer();
            }
            return false;
        }
        if reader.kind() == CellKind::Exposed {
            out.push(self.exposed[byte_in_cell() as usize].get());
            reader.took_piece(&self.words);
            self.tell_writer();
            return true;
        }
        if reader.kind() == CellKind::Inline {
            // It came between the two looks.
            out.push(byte_in_cell());
            if reader.took(&self.words, 1) {
                self.tell_writer();
            }
            return true;
        }
        let n = reader.left().min(most);
        let at = u32::from(byte_in_cell()) + reader.done();
        for at in at..at + n {
            out.push(self.bytes[at as usize].get());
        }
        if reader.took(&self.words, n) {
            self.tell_writer();
        }
        true
    }
}

/// Checks that bytes arrive once and in order, and are not overwritten before they are read: both
/// ends poll all the time.
pub(crate) fn both_poll(writes: &'static [usize], most: u32) {
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

/// Reads `messages` bytes written one by one by a thread, and sleeps while there are none. `states`
/// are the arguments of `set_polled`: the first holds from the start, the others are set in order
/// before a sleep, each after a poll of the ring.
fn read_and_sleep(messages: usize, states: &[(bool, bool)]) {
    let shared = Shared::new();
    shared.back.set_polled(true, true);
    shared.words.set_polled(states[0].0, states[0].1);
    let there = shared.clone();
    let writer = spawn(move || {
        let writer = RingWriter::new(SIZE);
        (0..messages).for_each(|n| assert_eq!(there.write(&writer, &[n as u8]), 1));
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    'messages: while got.len() < messages {
        for &(polled, barriers) in &states[1..] {
            if shared.read(&reader, 1, &mut got) {
                continue 'messages;
            }
            shared.words.set_polled(polled, barriers);
        }
        // The barrier of all processes, which stands beside the writer's compiler fence; without it, the
        // fence beside the writer's own.
        fence(Ordering::SeqCst);
        shared.reader.sleep_unless(|| !reader.is_empty(&shared.words));
    }
    writer.join().unwrap();
    assert_eq!(got.len(), messages);
}

/// A polling reader promises a barrier only later, and then sleeps.
pub(crate) fn reader_promises(messages: usize) {
    read_and_sleep(messages, &[(true, false), (true, true), (false, true)]);
}

/// A reader that has polled sleeps, and is notified of bytes written before and after.
pub(crate) fn reader_sleeps(barriers: bool, messages: usize) {
    set_barriers(barriers);
    read_and_sleep(messages, &[(true, barriers), (false, barriers)]);
    set_barriers(true);
}

/// Checks that a writer without space sleeps until there is some, and so does the reader of an
/// empty ring.
pub(crate) fn both_sleep(total: usize, part: usize, most: u32) {
    let shared = Shared::new();
    let there = shared.clone();
    let writer = spawn(move || {
        let (writer, mut from) = (RingWriter::new(SIZE), 0);
        let bytes = (1..=total as u8).collect::<Vec<_>>();
        while from < total {
            let n = there.write(&writer, &bytes[from..total.min(from + part)]);
            from += n;
            if n == 0 && !writer.want_space(&there.words).unwrap() {
                there.writer.sleep_unless(|| writer.has_space(&there.words).unwrap());
            }
        }
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    while got.len() < total {
        if !shared.read(&reader, most, &mut got) {
            shared.reader.sleep_unless(|| !reader.is_empty(&shared.words));
        }
    }
    writer.join().unwrap();
    assert_eq!(got, (1..=total as u8).collect::<Vec<_>>());
}

/// Exposed buffers appear at their position among the bytes, and the writer gets its memory back
/// only after they were read.
pub(crate) fn exposes(pieces: u32, sleeps: bool) {
    let shared = Shared::new();
    let there = shared.clone();
    let writer = spawn(move || {
        let writer = RingWriter::new(SIZE);
        let wait_until = |there: &Shared, writer: &RingWriter, done: &dyn Fn() -> bool| {
            while !done() {
                if !writer.want_space(&there.words).unwrap() {
                    if sleeps {
                        there.writer.sleep_unless(|| writer.has_space(&there.words).unwrap());
                    } else {
                        yield_now();
                    }
                }
            }
        };
        let mut back = 0;
        let mut take_back = |writer: &RingWriter| {
            let fetched = writer.look_fetched(&there.words).unwrap();
            (back..fetched).for_each(|piece| there.exposed[piece as usize].set(0));
            back = fetched;
            back
        };
        for piece in 0..pieces {
            there.exposed[piece as usize].set(100 + piece as u8);
            wait_until(&there, &writer, &|| there.expose(&writer, piece as u8));
            wait_until(&there, &writer, &|| there.write(&writer, &[piece as u8]) == 1);
        }
        while take_back(&writer) < pieces {
            if sleeps {
                there.writer.sleep_unless(|| writer.look_fetched(&there.words) == Ok(pieces));
            } else {
                yield_now();
            }
        }
    });
    let (reader, mut got) = (RingReader::new(SIZE), Vec::new());
    while got.len() < 2 * pieces as usize {
        if !shared.read(&reader, 1, &mut got) {
            if sleeps {
                shared.reader.sleep_unless(|| !reader.is_empty(&shared.words));
            } else {
                yield_now();
            }
        }
    }
    writer.join().unwrap();
    let expected = (0..pieces as u8).flat_map(|piece| [100 + piece, piece]);
    assert_eq!(got, expected.collect::<Vec<_>>());
}

/// The writer copies exposed buffers not readable by the reader, one byte at a time at its request,
/// to a reused buffer. Both sleep when there is nothing to do.
pub(crate) fn copies(pieces: u32, len: u64) {
    let shared = Shared::new();
    let there = shared.clone();
    let byte_of = |piece: u32, at: u64| (10 * piece as u64 + at) as u8;
    let writer = spawn(move || {
        let (writer, mut last) = (RingWriter::new(SIZE), None);
        (0..pieces).for_each(|_| assert!(there.expose(&writer, 0)));
        while writer.look_fetched(&there.words).unwrap() < pieces {
            if let Some(request) = there.words.copy_request(last) {
                last = Some(request);
                there.bytes[0].set(byte_of(request.piece(), request.from));
                there.words.answer_copy(request);
                there.tell_reader();
                continue;
            }
            let is_ready = || {
                there.words.copy_request(last).is_some()
                    || writer.look_fetched(&there.words) == Ok(pieces)
            };
            there.writer.sleep_unless(is_ready);
        }
    });
    let (reader, mut last) = (RingReader::new(SIZE), None);
    for piece in 1..=pieces {
        while !reader.look(&shared.words).unwrap() {
            shared.reader.sleep_unless(|| !reader.is_empty(&shared.words));
        }
        assert_eq!(reader.fetched() + 1, piece);
        for at in 0..len {
            let request = shared.words.request_copy(piece, at, last);
            last = Some(request);
            shared.tell_writer();
            while !shared.words.is_answered(request) {
                shared.reader.sleep_unless(|| shared.words.is_answered(request));
            }
            assert_eq!(shared.bytes[0].get(), byte_of(piece, at));
        }
        reader.took_piece(&shared.words);
        shared.tell_writer();
    }
    writer.join().unwrap();
}

/// A revoked buffer is not trusted after a change.
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

/// Checks that the owner of one doorbell serves both peers ringing it.
pub(crate) fn two_ring() {
    let engine = Arc::new(Engine::new());
    let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let peers: Vec<_> = (0..2)
        .map(|index| {
            let (engine, words) = (engine.clone(), words.clone());
            spawn(move || {
                words[index].store(1, Relaxed);
                engine.doorbell.ring(index as u32, || engine.wakeup.signal());
            })
        })
        .collect();
    let mut seen = [false; 2];
    while seen != [true; 2] {
        if engine.doorbell.fall_asleep() {
            sys::poll(engine.wakeup.as_raw_fd());
        }
        engine.doorbell.wake();
        engine.wakeup.drain();
        engine.doorbell.take(|index| {
            assert_eq!(words[index as usize].load(Relaxed), 1);
            seen[index as usize] = true;
        });
    }
    peers.into_iter().for_each(|peer| peer.join().unwrap());
}
