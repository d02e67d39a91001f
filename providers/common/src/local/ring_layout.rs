//! Layout of the memory shared by two processes, and its access protocol: cells with short
//! messages, the positions of a ring's writer and reader, and the sleep state.
//!
//! A ring of cells defines the order. Short data is in the cell itself, behind its header word, so
//! a poll of the header fetches it with the same cache line. Longer data is in the data area next
//! to the cells, or in the writer's own memory, and the cell contains its location. While the
//! reader keeps up, the writer uses only a small part of the data area; this part stays in the
//! caches close to both.
//!
//! Nothing written here by the other process is trusted. An index is checked against its possible
//! values, and an impossible one leads to -FI_EPROTO. The programs of `model/` run this code under
//! every interleaving of both sides.
use crate::error::{Error, Result};
use crate::primitives::{
    AtomicU32, AtomicU64, CELLS, DOORBELL_WORDS, Ordering, SharedBytes, compiler_fence, fence,
};
use core::cell::Cell;

/// The reader reads a pipe after a signal only.
const COLD: u32 = 0;
/// The reader polls a pipe in each progress iteration.
const POLLED: u32 = 1;
/// The reader polls the pipe in each progress iteration. Before it stops polling it makes all
/// registered processes pass a barrier, so a writer in a registered process needs no fence.
const POLLED_WITH_BARRIERS: u32 = 2;

/// State published rarely by the writer of a ring.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct WriterLine {
    /// Number of cells to read before the reader notifies the writer of free space.
    wanted: AtomicU32,
    /// Nonzero if the writer found no space, and waits for a notification of free space.
    wants_space: AtomicU32,
    /// Nonzero if exposed buffers are revoked: their memory no longer belongs to the stream.
    withdrawn: AtomicU32,
    /// Number of bytes on the previous link before the ring continues the stream, plus 1; 0 until
    /// it is known.
    switched_at: AtomicU64,
    /// 0. An earlier version of the reader then knows this writer copies nothing to its memory.
    copies: AtomicU32,
    /// True if the writer copies requested parts of exposed buffers.
    answers: AtomicU32,
    /// Last answered copy request ([`CopyRequest`]).
    answered: AtomicU64,
}

/// State published frequently by the reader of a ring.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ReaderLine {
    /// Number of cells read, as published by the reader.
    taken: AtomicU32,
    /// Total number of exposed buffers read.
    fetched: AtomicU32,
    /// 0. An earlier version of the writer then knows this reader requests no copies to its memory.
    wanted_copies: [AtomicU64; 6],
    /// Copy request ([`CopyRequest`]): the number of the buffer in the upper half, the one of the
    /// request in the lower; then the offset in the buffer.
    requested: AtomicU64,
    requested_from: AtomicU64,
}

/// Request of a reader for a copy of a part of an exposed buffer to the shared memory, because the
/// kernel does not permit a direct read. One is in flight at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyRequest {
    id: u64,
    /// Offset in the exposed buffer.
    pub(crate) from: u64,
}

impl CopyRequest {
    /// Returns the number of the exposed buffer: the count of exposed buffers at its time.
    pub(crate) fn piece(&self) -> u32 {
        (self.id >> 32) as u32
    }
}

/// State published rarely by the reader of a ring. The writer reads it for each message, so it has
/// a separate cache line, not invalidated by updates of the reader's counter.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ReaderState {
    /// Polling state of the reader: [`COLD`], [`POLLED`] or [`POLLED_WITH_BARRIERS`]. A polling
    /// reader needs no notifications.
    polled: AtomicU32,
    /// The reader can read the writer's memory.
    can_fetch: AtomicU32,
    /// The reader knows cells about memory of devices ([`CellKind::Device`]).
    knows_devices: AtomicU32,
    /// The reader can signal the writer's doorbell. It reads nothing before.
    can_signal: AtomicU32,
    /// Answer of the reader to the last announcement of an allocation: its number, and in the
    /// lowest bit if the reader has mapped it.
    mapped: AtomicU64,
}

/// Bytes of the stream in a cell.
pub const INLINE: usize = 120;

/// One of the ring of cells.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct RingCell {
    /// Number of the cell plus 1 in the upper half, once it is written; then the length and the
    /// kind of its content.
    head: AtomicU64,
    /// Short data, or the location of longer data.
    pub(crate) body: SharedBytes<INLINE>,
}

/// Location of the bytes of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CellKind {
    /// In the cell.
    Inline,
    /// In the data area next to the cells, contiguous.
    Bytes,
    /// In the writer's memory.
    Exposed,
    /// In memory of a device, or none: the cell is about an allocation of a device.
    Device,
}

/// Maximum bytes of the part of the data area used first.
const NEAR_MOST: u32 = 16 << 10;

/// Returns the number of bytes of the part used first in a data area of this size; the other part
/// is used if the reader falls behind.
#[inline(always)]
fn near_part(size: u32) -> u32 {
    (size / 4).min(NEAR_MOST)
}

/// Segment of the data area possibly not read by the reader yet.
#[derive(Clone, Copy, Default, Debug)]
struct RingPiece {
    cell: u32,
    at: u32,
    len: u32,
}

/// Part of the data area with consecutive segments, wrapping around at its end.
#[derive(Debug)]
struct RingPart {
    start: u32,
    end: u32,
    /// End of the last segment, and end of the last one read.
    head: Cell<u32>,
    tail: Cell<u32>,
    /// Number of segments possibly not read by the reader yet.
    held: Cell<u32>,
}

impl RingPart {
    fn new(start: u32, end: u32) -> Self {
        Self { start, end, head: Cell::new(start), tail: Cell::new(start), held: Cell::new(0) }
    }

    /// Returns the offset of free space of this size, and its size; otherwise the largest free
    /// space.
    #[inline(always)]
    fn position(&self, wanted: u32) -> (u32, u32) {
        let (head, tail) = (self.head.get(), self.tail.get());
        if self.held.get() == 0 {
            return (self.start, self.end - self.start);
        }
        if head <= tail {
            return (head, tail - head);
        }
        let (behind, before) = (self.end - head, tail - self.start);
        if behind >= wanted || behind >= before { (head, behind) } else { (self.start, before) }
    }

    #[inline(always)]
    fn hold(&self, at: u32, len: u32) {
        if self.held.get() == 0 {
            self.tail.set(at);
        }
        self.held.set(self.held.get() + 1);
        self.head.set(at + len);
    }

    #[inline(always)]
    fn free(&self, end: u32) {
        self.held.set(self.held.get() - 1);
        self.tail.set(end);
    }
}

/// The shared words of one direction.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RingControl {
    writer: WriterLine,
    reader: ReaderLine,
    state: ReaderState,
    cells: [RingCell; CELLS],
}

impl RingCell {
    /// The length of the short bytes in the cell of this number, if they have come; 0 if not, or if
    /// it stands for something else.
    #[inline(always)]
    pub(crate) fn short(&self, number: u32) -> u32 {
        self.look_short(number).unwrap_or(0)
    }

    /// [`short`](Self::short), 0 if the cell stands for something else; none if nothing has come.
    #[inline(always)]
    pub(crate) fn look_short(&self, number: u32) -> Option<u32> {
        let expected = u64::from(number.wrapping_add(1)) << 32;
        let what = self.head.load(Ordering::Acquire).wrapping_sub(expected);
        // The kind is 0, or else the highest bits are not.
        let len = what.rotate_right(2);
        if len <= INLINE as u64 {
            Some(len as u32)
        } else if what >> 32 == 0 {
            Some(0)
        } else {
            None
        }
    }
}

impl RingControl {
    /// Returns words of an unused ring, in private memory.
    #[allow(dead_code, reason = "for the programs of `model/`")]
    pub(crate) fn new() -> Self {
        let word = || AtomicU32::new(0);
        let long = || AtomicU64::new(0);
        Self {
            writer: WriterLine {
                wanted: word(),
                wants_space: word(),
                withdrawn: word(),
                switched_at: long(),
                copies: word(),
                answers: word(),
                answered: long(),
            },
            reader: ReaderLine {
                taken: word(),
                fetched: word(),
                wanted_copies: std::array::from_fn(|_| long()),
                requested: long(),
                requested_from: long(),
            },
            state: ReaderState {
                polled: word(),
                can_fetch: word(),
                knows_devices: word(),
                can_signal: word(),
                mapped: long(),
            },
            cells: std::array::from_fn(|_| RingCell { head: long(), body: SharedBytes::new() }),
        }
    }

    /// The cell of this number.
    #[inline(always)]
    pub(crate) fn cell(&self, number: u32) -> &RingCell {
        &self.cells[number as usize % CELLS]
    }
}

/// Private state of the writer of a ring.
#[derive(Debug)]
pub(crate) struct RingWriter {
    size: u32,
    /// Number of cells written.
    cells: Cell<u32>,
    /// Number of cells read by the reader, as of the last check.
    taken: Cell<u32>,
    /// Parts of the data area: the one used first, and the other one.
    near: RingPart,
    far: RingPart,
    /// Offset of the next bytes, determined by [`space`](Self::buf).
    position: Cell<u32>,
    /// Segments possibly not read by the reader yet, by number, with the first and the next number.
    pieces: [Cell<RingPiece>; CELLS],
    first_piece: Cell<u32>,
    next_piece: Cell<u32>,
    exposed: Cell<u32>,
    /// The reader's count of fetched pieces as it was last seen.
    fetched: Cell<u32>,
    /// True if a send found too little space.
    short: Cell<bool>,
}

impl RingWriter {
    pub(crate) fn new(size: u32) -> Self {
        let word = || Cell::new(0);
        let near = near_part(size);
        Self {
            size,
            cells: word(),
            taken: word(),
            near: RingPart::new(0, near),
            far: RingPart::new(near, size),
            position: word(),
            pieces: std::array::from_fn(|_| Cell::default()),
            first_piece: word(),
            next_piece: word(),
            exposed: word(),
            fetched: word(),
            short: Cell::new(false),
        }
    }

    /// Returns the number of the next cell to write.
    #[inline(always)]
    pub(crate) fn next_cell(&self) -> u32 {
        self.cells.get()
    }

    /// Returns the offset in the data area of the next bytes, determined by [`space`](Self::buf).
    #[inline(always)]
    pub(crate) fn position(&self) -> u32 {
        self.position.get()
    }

    /// Returns true if there was a free cell at the last check of the reader's line.
    #[inline(always)]
    pub(crate) fn knows_cell(&self) -> bool {
        self.cells.get().wrapping_sub(self.taken.get()) < CELLS as u32
    }

    fn free_cells(&self) -> u32 {
        CELLS as u32 - self.cells.get().wrapping_sub(self.taken.get())
    }

    /// Reads the state published by the reader. Returns -FI_EPROTO if its count of cells is
    /// impossible.
    pub(crate) fn look(&self, words: &RingControl) -> Result {
        let taken = words.reader.taken.load(Ordering::Acquire);
        // Neither fewer than before nor more than there are.
        if taken.wrapping_sub(self.taken.get()) > CELLS as u32 - self.free_cells() {
            return Err(Error::PROTO);
        }
        self.taken.set(taken);
        for piece in self.held() {
            // Its cell is one of those that were read last, or it is still to be read.
            if taken.wrapping_sub(piece.cell).wrapping_sub(1) >= CELLS as u32 {
                break;
            }
            self.part_of(piece.at).free(piece.at + piece.len);
            self.first_piece.set(self.first_piece.get().wrapping_add(1));
        }
        Ok(())
    }

    /// Returns the segments possibly not read by the reader yet, oldest first.
    fn held(&self) -> impl DoubleEndedIterator<Item = RingPiece> + '_ {
        let (first, next) = (self.first_piece.get(), self.next_piece.get());
        let numbers = (0..next.wrapping_sub(first)).map(move |n| first.wrapping_add(n));
        numbers.map(|number| self.pieces[number as usize % CELLS].get())
    }

    /// Returns the part of the data area containing an offset.
    #[inline(always)]
    fn part_of(&self, at: u32) -> &RingPart {
        if at < self.near.end { &self.near } else { &self.far }
    }

    /// Returns true if there is a free cell.
    pub(crate) fn has_cell(&self, words: &RingControl) -> Result<bool> {
        if !self.knows_cell() {
            self.look(words)?;
        }
        Ok(self.knows_cell())
    }

    /// Returns the number of contiguous free bytes at [`position`](Self::index), if possible `wanted`,
    /// with a free cell for them; 0 without a cell.
    pub(crate) fn space(&self, words: &RingControl, wanted: u32) -> Result<u32> {
        let mut near = self.near.position(wanted);
        if !self.knows_cell() || near.1 < wanted {
            self.look(words)?;
            near = self.near.position(wanted);
        }
        if !self.knows_cell() {
            return Ok(0);
        }
        let (position, space) = if near.1 >= wanted {
            near
        } else {
            let far = self.far.position(wanted);
            if far.1 > near.1 { far } else { near }
        };
        self.position.set(position);
        Ok(space)
    }

    /// Publishes the next cell, already written, with the kind and length of its content.
    #[inline(always)]
    pub(crate) fn publish(&self, words: &RingControl, kind: CellKind, len: u32) {
        debug_assert!(self.knows_cell());
        let number = self.cells.get();
        if kind == CellKind::Bytes {
            let at = self.position.get();
            self.part_of(at).hold(at, len);
            let next = self.next_piece.get();
            self.pieces[next as usize % CELLS].set(RingPiece { cell: number, at, len });
            self.next_piece.set(next.wrapping_add(1));
        }
        self.cells.set(number.wrapping_add(1));
        let what = len << 2 | kind as u32;
        let head = u64::from(number.wrapping_add(1)) << 32 | u64::from(what);
        words.cell(number).head.store(head, Ordering::Release);
        if kind == CellKind::Exposed {
            self.count_exposed();
        }
    }

    /// Counts an exposed buffer: the cell published last.
    pub(crate) fn count_exposed(&self) {
        self.exposed.set(self.exposed.get().wrapping_add(1));
    }

    /// [`publish`](Self::publish) for short bytes in the cell with this number, the next one.
    #[inline(always)]
    pub(crate) fn publish_short(&self, cell: &RingCell, number: u32, len: usize) {
        debug_assert!(self.knows_cell() && number == self.cells.get());
        self.cells.set(number.wrapping_add(1));
        let head = u64::from(number.wrapping_add(1)) << 32 | (len as u64) << 2;
        cell.head.store(head, Ordering::Release);
    }

    /// Requests a notification from the reader when half of the space is free. Returns true if more
    /// space has become free meanwhile.
    #[cold]
    pub(crate) fn want_space(&self, words: &RingControl) -> Result<bool> {
        self.short.set(true);
        // The oldest cells, as far as those behind them leave half of the bytes.
        let (mut wanted, mut held) = (self.cells.get().wrapping_sub(CELLS as u32 / 2), 0);
        for piece in self.held().rev() {
            held += piece.len;
            if held > self.size / 2 {
                let behind = piece.cell.wrapping_add(1);
                if behind.wrapping_sub(wanted) <= CELLS as u32 {
                    wanted = behind;
                }
                break;
            }
        }
        words.writer.wanted.store(wanted, Ordering::Relaxed);
        words.writer.wants_space.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let had = self.taken.get();
        self.look(words)?;
        Ok(self.taken.get() != had)
    }

    /// Returns true if a send may proceed: the last one had sufficient space, or a quarter is free
    /// since.
    pub(crate) fn has_space(&self, words: &RingControl) -> Result<bool> {
        let much = || {
            let held: u32 = self.held().map(|piece| piece.len).sum();
            self.free_cells() >= CELLS as u32 / 4 && held <= self.size / 4 * 3
        };
        if self.short.get() && !much() {
            self.look(words)?;
            return Ok(much());
        }
        Ok(true)
    }

    /// Records a completely accepted send.
    #[inline(always)]
    pub(crate) fn sent_all(&self) {
        self.short.set(false);
    }

    /// Returns the total number of exposed buffers.
    pub(crate) fn exposed(&self) -> u32 {
        self.exposed.get()
    }

    /// Returns the number of exposed buffers read by the reader, as of the last check.
    pub(crate) fn fetched(&self) -> u32 {
        self.fetched.get()
    }

    /// Checks the progress of the reader and returns the total number of exposed buffers read.
    pub(crate) fn look_fetched(&self, words: &RingControl) -> Result<u32> {
        // The writer then accesses the memory only after the read by the reader.
        let fetched = words.reader.fetched.load(Ordering::Acquire);
        let exposed_out = self.exposed.get().wrapping_sub(self.fetched.get());
        if fetched.wrapping_sub(self.fetched.get()) > exposed_out {
            return Err(Error::PROTO);
        }
        self.fetched.set(fetched);
        Ok(fetched)
    }
}

/// Private state of the reader of a ring.
#[derive(Debug)]
pub(crate) struct RingReader {
    size: u32,
    /// Number of cells read, and the number last announced to the writer.
    cells: Cell<u32>,
    notified: Cell<u32>,
    /// Bytes read from the data area since then.
    unnotified: Cell<u32>,
    /// Kind of the content of the next cell.
    kind: Cell<CellKind>,
    len: Cell<u32>,
    /// Unread rest of the content; 0 if the cell was not checked yet, or is not available.
    left: Cell<u32>,
    /// Pieces fetched in all.
    fetched: Cell<u32>,
}

impl RingReader {
    pub(crate) fn new(size: u32) -> Self {
        let word = || Cell::new(0);
        let (cells, notified, unnotified, kind) =
            (word(), word(), word(), Cell::new(CellKind::Inline));
        Self { size, cells, notified, unnotified, kind, len: word(), left: word(), fetched: word() }
    }

    /// Returns the number of the current cell.
    #[inline(always)]
    pub(crate) fn this_cell(&self) -> u32 {
        self.cells.get()
    }

    /// Returns the kind of the current cell's content.
    #[inline(always)]
    pub(crate) fn kind(&self) -> CellKind {
        self.kind.get()
    }

    /// Returns the number of unread bytes of the current cell; 1 for an exposed buffer.
    #[inline(always)]
    pub(crate) fn left(&self) -> u32 {
        self.left.get()
    }

    /// Returns the number of bytes read of the current cell.
    #[inline(always)]
    pub(crate) fn done(&self) -> u32 {
        self.len.get() - self.left.get()
    }

    /// The number of the next cell, if nothing of it was read.
    #[inline(always)]
    pub(crate) fn next_cell(&self) -> Option<u32> {
        (self.left.get() == 0).then_some(self.cells.get())
    }

    /// Returns true if nothing has arrived, judging by the next cell.
    #[inline(always)]
    pub(crate) fn is_empty(&self, words: &RingControl) -> bool {
        let number = self.cells.get();
        let head = words.cell(number).head.load(Ordering::Acquire);
        self.left.get() == 0 && (head >> 32) as u32 != number.wrapping_add(1)
    }

    /// Returns true if there is something to read, checking the next cell if necessary.
    pub(crate) fn look(&self, words: &RingControl) -> Result<bool> {
        if self.left.get() != 0 {
            return Ok(true);
        }
        let number = self.cells.get();
        let head = words.cell(number).head.load(Ordering::Acquire);
        if (head >> 32) as u32 != number.wrapping_add(1) {
            return Ok(false);
        }
        let len = head as u32 >> 2;
        let (kind, most) = match head & 3 {
            0 => (CellKind::Inline, INLINE as u32),
            1 => (CellKind::Bytes, self.size),
            2 => (CellKind::Exposed, 1),
            _ => (CellKind::Device, 1),
        };
        if len == 0 || len > most {
            return Err(Error::PROTO);
        }
        self.kind.set(kind);
        self.len.set(len);
        self.left.set(len);
        Ok(true)
    }

    /// Records `n` bytes read of the current cell. Returns true if the writer has to be notified of
    /// free space.
    pub(crate) fn took(&self, words: &RingControl, n: u32) -> bool {
        debug_assert!(n <= self.left.get());
        self.left.set(self.left.get() - n);
        if self.kind.get() == CellKind::Bytes {
            self.unnotified.set(self.unnotified.get().saturating_add(n));
        }
        self.left.get() == 0 && self.took_cell(words)
    }

    /// Records the reading of a cell with short bytes; `next` is the number of the next one.
    /// Returns true if the writer is to be [notified](Self::tell) of free space.
    #[inline(always)]
    pub(crate) fn took_short(&self, next: u32) -> bool {
        self.cells.set(next);
        next.wrapping_sub(self.notified.get()) >= CELLS as u32 / 4
    }

    /// Pieces fetched in all.
    pub(crate) fn fetched(&self) -> u32 {
        self.fetched.get()
    }

    /// Records the end of the current cell. Returns true if the writer has to be notified of free
    /// space.
    #[inline(always)]
    pub(crate) fn took_cell(&self, words: &RingControl) -> bool {
        self.cells.set(self.cells.get().wrapping_add(1));
        let much = self.cells.get().wrapping_sub(self.notified.get()) >= CELLS as u32 / 4
            || self.unnotified.get() >= near_part(self.size).div_ceil(4);
        much && self.tell(words)
    }

    /// Records the read of the current cell's exposed buffer. The caller has to notify the writer.
    pub(crate) fn took_piece(&self, words: &RingControl) {
        self.left.set(0);
        self.fetched.set(self.fetched.get().wrapping_add(1));
        words.reader.fetched.store(self.fetched.get(), Ordering::Release);
        self.took_cell(words);
    }

    /// Publishes the position of the reader. Returns true if the writer waits for it.
    #[cold]
    pub(crate) fn tell(&self, words: &RingControl) -> bool {
        let taken = self.cells.get();
        self.notified.set(taken);
        self.unnotified.set(0);
        words.reader.taken.store(taken, Ordering::Release);
        fence(Ordering::SeqCst);
        if words.writer.wants_space.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let wanted = words.writer.wanted.load(Ordering::Relaxed);
        let enough = taken.wrapping_sub(wanted) <= u32::MAX / 2;
        if enough {
            words.writer.wants_space.store(0, Ordering::Relaxed);
        }
        enough
    }

    /// Records an empty ring. Returns true if the writer waits for space nevertheless, and is to be
    /// notified.
    #[inline(always)]
    pub(crate) fn found_nothing(&self, words: &RingControl) -> bool {
        words.writer.wants_space.load(Ordering::Relaxed) != 0 && self.tell(words)
    }
}

impl RingControl {
    /// Returns true if the ring's reader has to be notified of preceding writes. `barriers`: this
    /// process is registered for barriers of all processes.
    #[inline(always)]
    pub(crate) fn must_tell_reader(&self, barriers: bool) -> bool {
        !self.reader_looks(barriers) && self.must_tell_after_fence()
    }

    /// Returns true if the ring's reader is known, without a fence, to poll it.
    #[inline(always)]
    pub(crate) fn reader_looks(&self, barriers: bool) -> bool {
        // The processor may swap what was written and this; the reader's barrier makes that
        // harmless.
        compiler_fence(Ordering::SeqCst);
        barriers && self.state.polled.load(Ordering::Relaxed) == POLLED_WITH_BARRIERS
    }

    #[inline(never)]
    fn must_tell_after_fence(&self) -> bool {
        fence(Ordering::SeqCst);
        self.state.polled.load(Ordering::Relaxed) == COLD
    }

    /// Enables or disables polling of this pipe by the reader in each progress iteration. After
    /// disabling it, the reader has to pass a barrier of all processes (if `barriers` were
    /// promised) or a fence, and to poll once more.
    pub(crate) fn set_polled(&self, polled: bool, barriers: bool) {
        let polled = match (polled, barriers) {
            (false, _) => COLD,
            (true, false) => POLLED,
            (true, true) => POLLED_WITH_BARRIERS,
        };
        self.state.polled.store(polled, Ordering::Relaxed);
    }

    pub(crate) fn set_can_fetch(&self) {
        self.state.can_fetch.store(1, Ordering::Release);
    }

    /// The reader cannot read the writer's memory any more.
    pub(crate) fn set_cannot_fetch(&self) {
        self.state.can_fetch.store(0, Ordering::Release);
    }

    pub(crate) fn can_fetch(&self) -> bool {
        self.state.can_fetch.load(Ordering::Acquire) != 0
    }

    /// The reader knows cells about memory of devices.
    pub(crate) fn set_knows_devices(&self) {
        self.state.knows_devices.store(1, Ordering::Relaxed);
    }

    pub(crate) fn knows_devices(&self) -> bool {
        self.state.knows_devices.load(Ordering::Relaxed) != 0
    }

    /// Announces that the reader can signal the writer's doorbell.
    pub(crate) fn set_can_signal(&self) {
        self.state.can_signal.store(1, Ordering::Release);
    }

    pub(crate) fn can_signal(&self) -> bool {
        self.state.can_signal.load(Ordering::Acquire) != 0
    }

    /// The reader has mapped an announced allocation, or has not.
    pub(crate) fn answer_allocation(&self, number: u32, is_mapped: bool) {
        let answer = u64::from(number) << 1 | u64::from(is_mapped);
        self.state.mapped.store(answer, Ordering::Release);
    }

    /// Returns true if the reader has mapped the allocation of this number, announced last; none
    /// without an answer.
    pub(crate) fn is_mapped(&self, number: u32) -> Option<bool> {
        let answer = self.state.mapped.load(Ordering::Acquire);
        (answer >> 1 == u64::from(number)).then_some(answer & 1 == 1)
    }

    /// The writer answers requests for copies.
    pub(crate) fn set_answers(&self) {
        self.writer.answers.store(1, Ordering::Relaxed);
    }

    /// As an earlier version of the writer.
    #[cfg(test)]
    pub(crate) fn set_answers_not(&self) {
        self.writer.answers.store(0, Ordering::Relaxed);
    }

    pub(crate) fn answers(&self) -> bool {
        self.writer.answers.load(Ordering::Relaxed) != 0
    }

    /// Requests from the writer a copy of a part of an exposed buffer; `before` is the previous,
    /// finished request.
    pub(crate) fn request_copy(
        &self,
        piece: u32,
        from: u64,
        before: Option<CopyRequest>,
    ) -> CopyRequest {
        let number = before.map_or(0, |before| before.id as u32).wrapping_add(1).max(1);
        let id = u64::from(piece) << 32 | u64::from(number);
        self.reader.requested_from.store(from, Ordering::Relaxed);
        // The copy for the previous request has been read already.
        self.reader.requested.store(id, Ordering::Release);
        CopyRequest { id, from }
    }

    /// Returns true if the writer has made the requested copy.
    pub(crate) fn is_answered(&self, request: CopyRequest) -> bool {
        self.writer.answered.load(Ordering::Acquire) == request.id
    }

    /// Returns the current request of the reader, unless it is the last answered one.
    pub(crate) fn copy_request(&self, last: Option<CopyRequest>) -> Option<CopyRequest> {
        let id = self.reader.requested.load(Ordering::Acquire);
        let is_new = id != last.map_or(0, |last| last.id);
        let from = || self.reader.requested_from.load(Ordering::Relaxed);
        is_new.then(|| CopyRequest { id, from: from() })
    }

    /// Publishes a finished copy.
    pub(crate) fn answer_copy(&self, request: CopyRequest) {
        self.writer.answered.store(request.id, Ordering::Release);
    }

    pub(crate) fn switch_at(&self, bytes: u64) {
        self.writer.switched_at.store(bytes.wrapping_add(1), Ordering::Release);
    }

    pub(crate) fn switched_at(&self) -> Option<u64> {
        self.writer.switched_at.load(Ordering::Acquire).checked_sub(1)
    }

    /// Revokes exposed buffers: their memory may change from now on.
    pub(crate) fn withdraw(&self) {
        self.writer.withdrawn.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns true if memory read before may have changed at the time of the read.
    pub(crate) fn is_withdrawn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.writer.withdrawn.load(Ordering::Relaxed) != 0
    }
}

/// Words of a doorbell: the connections to poll, and the sleep state of the owner.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct DoorbellWords {
    /// Number of the owner's current sleep; 0 while it is awake or was woken.
    asleep: AtomicU32,
    /// Number of sleeps announced by the owner.
    sleeps: AtomicU32,
    ready: DoorbellBitmap,
}

/// A bit for each connection.
#[derive(Debug)]
#[repr(C, align(128))]
struct DoorbellBitmap([AtomicU64; DOORBELL_WORDS]);

/// Number of bits in a doorbell: indexes of connections count modulo this.
const DOORBELL_BITS: u32 = 64 * DOORBELL_WORDS as u32;

impl DoorbellWords {
    /// Returns an unused doorbell in private memory.
    #[allow(dead_code, reason = "for the programs of `model/`")]
    pub(crate) fn new() -> Self {
        let ready = DoorbellBitmap(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { asleep: AtomicU32::new(0), sleeps: AtomicU32::new(0), ready }
    }

    /// Marks a connection as ready for the owner. `signal` wakes the owner if it sleeps.
    pub(crate) fn ring(&self, index: u32, signal: impl FnOnce()) {
        let index = index % DOORBELL_BITS;
        let (word, bit) = (&self.ready.0[index as usize / 64], 1 << (index % 64));
        word.fetch_or(bit, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let sleep = self.asleep.load(Ordering::Relaxed);
        if sleep != 0 {
            // First, since this process may be ended or stopped at any time: others must not take the
            // owner for woken before it is. What is marked is this sleep, not one that it began since.
            signal();
            let _ = self.asleep.compare_exchange(sleep, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns true if a connection has to be polled.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Calls `each` for the connections to poll.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        for (at, word) in self.ready.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            // Writes before a bit was set, or found set, are visible from here on.
            fence(Ordering::SeqCst);
            while bits != 0 {
                each(at as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Announces a sleep of the owner. Returns false if a connection has to be polled.
    pub(crate) fn fall_asleep(&self) -> bool {
        let sleeps = self.sleeps.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.sleeps.store(sleeps, Ordering::Relaxed);
        self.asleep.store(sleeps, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.is_ready() {
            self.wake();
            return false;
        }
        true
    }

    /// The owner is awake.
    pub(crate) fn wake(&self) {
        self.asleep.store(0, Ordering::SeqCst);
    }
}
