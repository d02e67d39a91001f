//! The words that two processes share, and how they are read and written: cells with short messages
//! in them, how far a ring's writer is and how far its reader, who sleeps.
//!
//! A ring of cells gives the order. What is short is in a cell itself, behind the word that says so:
//! whoever looks for it has it with the same line of memory. Longer bytes are in the memory beside the
//! cells, or in the writer's own, and a cell says where. Of the memory beside the cells the writer uses
//! a small part as long as the reader keeps up: that stays in the caches next to both.
//!
//! Nothing that the other process writes here is believed: an index is compared with what it can
//! be, and -FI_EPROTO is the answer if it cannot. The programs of `model/` run this under every
//! order of the two sides.
use crate::error::{Error, Result};
use crate::primitives::{
    AtomicU32, AtomicU64, CELLS, DOOR_WORDS, Ordering, SharedBytes, compiler_fence, fence,
};
use core::cell::Cell;

/// The reader looks at a pipe when it is told to.
const COLD: u32 = 0;
/// The reader looks at a pipe each turn.
const POLLED: u32 = 1;
/// The reader looks at a pipe each turn; before it stops to, it makes all processes that take part
/// pass a barrier. A writer whose process does need no fence of its own.
const POLLED_WITH_BARRIERS: u32 = 2;

/// What the writer of a ring says now and then.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct WriterLine {
    /// How many cells are to be read before the writer is told of room.
    wanted: AtomicU32,
    /// The writer found no room, and is to be told when there is some.
    wants_room: AtomicU32,
    /// The memory of lent pieces is not the stream's any more.
    withdrawn: AtomicU32,
    /// After how many bytes on the former link the ring goes on, and 1; 0 until that is known.
    switched_at: AtomicU64,
    /// 0, by which an earlier version of the reader knows that this writer copies nothing to its memory.
    copies: AtomicU32,
    /// The writer copies what the reader asks for of exposed pieces.
    answers: AtomicU32,
    /// The last request for a copy that was answered ([`CopyRequest`]).
    answered: AtomicU64,
}

/// What the reader of a ring says again and again.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ReaderLine {
    /// How many cells were read, as far as the reader has said.
    taken: AtomicU32,
    /// Lent pieces fetched in all.
    fetched: AtomicU32,
    /// 0, by which an earlier version of the writer knows that this reader wants nothing copied to its memory.
    wanted_copies: [AtomicU64; 6],
    /// A request for a copy ([`CopyRequest`]): the piece's number in the upper half, that of the request in
    /// the lower. And from where in the piece on.
    requested: AtomicU64,
    requested_from: AtomicU64,
}

/// A reader's request that the writer copy a part of an exposed piece to the memory that both have, because the
/// system does not let the reader read it where it is. One is under way at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyRequest {
    id: u64,
    /// From where in the piece on.
    pub(crate) from: u64,
}

impl CopyRequest {
    /// The piece's number: how many were exposed by then.
    pub(crate) fn piece(&self) -> u32 {
        (self.id >> 32) as u32
    }
}

/// What the reader of a ring says now and then. The writer looks there for each message: so it is in
/// a line of its own, which the reader's count does not take away from the writer.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ReaderState {
    /// Whether the reader looks at this pipe each turn, so that it need not be told of anything:
    /// [`COLD`], [`POLLED`] or [`POLLED_WITH_BARRIERS`].
    polled: AtomicU32,
    /// The reader can read the writer's memory.
    can_fetch: AtomicU32,
}

/// Bytes of the stream that a cell has room for.
pub(crate) const INLINE: usize = 120;

/// One of the ring of cells.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct RingCell {
    /// The cell's number and 1, in the upper half, once it is written; the length and the kind of what is
    /// there.
    head: AtomicU64,
    /// Short bytes, or where longer ones are.
    pub(crate) body: SharedBytes<INLINE>,
}

/// Where the bytes are that a cell stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CellKind {
    /// In the cell.
    Inline,
    /// In the memory beside the cells, in one piece.
    Bytes,
    /// In the writer's memory.
    Lent,
}

/// Most bytes of the part of the memory that is used first.
const NEAR_MOST: u32 = 16 << 10;

/// Bytes of the part of so much memory that is used first; the other part is for when the reader does
/// not keep up.
#[inline(always)]
fn near_part(size: u32) -> u32 {
    (size / 4).min(NEAR_MOST)
}

/// A piece of the memory beside the cells that the reader may not have read yet.
#[derive(Clone, Copy, Default, Debug)]
struct RingPiece {
    cell: u32,
    at: u32,
    len: u32,
}

/// A part of the memory beside the cells, in which pieces follow each other; behind its end comes its
/// beginning again.
#[derive(Debug)]
struct RingPart {
    start: u32,
    end: u32,
    /// Where the last piece ends, and the last that was read.
    head: Cell<u32>,
    tail: Cell<u32>,
    /// Pieces that the reader may not have read yet.
    held: Cell<u32>,
}

impl RingPart {
    fn new(start: u32, end: u32) -> Self {
        Self { start, end, head: Cell::new(start), tail: Cell::new(start), held: Cell::new(0) }
    }

    /// Where there is room for so many bytes, and for how many; or else the most room.
    #[inline(always)]
    fn place(&self, wanted: u32) -> (u32, u32) {
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
pub(crate) struct RingWords {
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

impl RingWords {
    /// Words of a ring that nobody has used, in memory of one's own.
    #[allow(dead_code, reason = "for the programs of `model/`")]
    pub(crate) fn new() -> Self {
        let word = || AtomicU32::new(0);
        let long = || AtomicU64::new(0);
        Self {
            writer: WriterLine {
                wanted: word(),
                wants_room: word(),
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
            state: ReaderState { polled: word(), can_fetch: word() },
            cells: std::array::from_fn(|_| RingCell { head: long(), body: SharedBytes::new() }),
        }
    }

    /// The cell of this number.
    #[inline(always)]
    pub(crate) fn cell(&self, number: u32) -> &RingCell {
        &self.cells[number as usize % CELLS]
    }
}

/// What the writer of a ring keeps to itself.
#[derive(Debug)]
pub(crate) struct RingWriter {
    size: u32,
    /// How many cells were written.
    cells: Cell<u32>,
    /// How many the reader had read at the last look.
    taken: Cell<u32>,
    /// The parts of the memory beside the cells: the one that is used first, and the other.
    near: RingPart,
    far: RingPart,
    /// Where the next bytes go, as [`room`](Self::room) has found.
    place: Cell<u32>,
    /// The pieces that the reader may not have read yet, by their number, of which these are the first
    /// and the next.
    pieces: [Cell<RingPiece>; CELLS],
    first_piece: Cell<u32>,
    next_piece: Cell<u32>,
    lent: Cell<u32>,
    /// The reader's count of fetched pieces as it was last seen.
    fetched: Cell<u32>,
    /// A send found too little room.
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
            place: word(),
            pieces: std::array::from_fn(|_| Cell::default()),
            first_piece: word(),
            next_piece: word(),
            lent: word(),
            fetched: word(),
            short: Cell::new(false),
        }
    }

    /// The number of the cell that is written next.
    #[inline(always)]
    pub(crate) fn next_cell(&self) -> u32 {
        self.cells.get()
    }

    /// Where in the memory beside the cells the bytes go for which there is [`room`](Self::room).
    #[inline(always)]
    pub(crate) fn place(&self) -> u32 {
        self.place.get()
    }

    /// Whether there was a free cell at the last look at the reader's line.
    #[inline(always)]
    pub(crate) fn knows_cell(&self) -> bool {
        self.cells.get().wrapping_sub(self.taken.get()) < CELLS as u32
    }

    fn free_cells(&self) -> u32 {
        CELLS as u32 - self.cells.get().wrapping_sub(self.taken.get())
    }

    /// Looks at the reader's line.
    pub(crate) fn look(&self, words: &RingWords) -> Result {
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

    /// The pieces that the reader may not have read yet, the oldest first.
    fn held(&self) -> impl DoubleEndedIterator<Item = RingPiece> + '_ {
        let (first, next) = (self.first_piece.get(), self.next_piece.get());
        let numbers = (0..next.wrapping_sub(first)).map(move |n| first.wrapping_add(n));
        numbers.map(|number| self.pieces[number as usize % CELLS].get())
    }

    /// The part of the memory beside the cells that a place is in.
    #[inline(always)]
    fn part_of(&self, at: u32) -> &RingPart {
        if at < self.near.end { &self.near } else { &self.far }
    }

    /// Whether there is a free cell.
    pub(crate) fn has_cell(&self, words: &RingWords) -> Result<bool> {
        if !self.knows_cell() {
            self.look(words)?;
        }
        Ok(self.knows_cell())
    }

    /// Bytes of room in one piece, at [`place`](Self::place), and a cell for them, of which so many are
    /// wanted: none without a cell.
    pub(crate) fn room(&self, words: &RingWords, wanted: u32) -> Result<u32> {
        let mut near = self.near.place(wanted);
        if !self.knows_cell() || near.1 < wanted {
            self.look(words)?;
            near = self.near.place(wanted);
        }
        if !self.knows_cell() {
            return Ok(0);
        }
        let (place, room) = if near.1 >= wanted {
            near
        } else {
            let far = self.far.place(wanted);
            if far.1 > near.1 { far } else { near }
        };
        self.place.set(place);
        Ok(room)
    }

    /// Shows the reader the next cell, which is written, with what it stands for.
    #[inline(always)]
    pub(crate) fn publish(&self, words: &RingWords, kind: CellKind, len: u32) {
        debug_assert!(self.knows_cell());
        let number = self.cells.get();
        if kind == CellKind::Bytes {
            let at = self.place.get();
            self.part_of(at).hold(at, len);
            let next = self.next_piece.get();
            self.pieces[next as usize % CELLS].set(RingPiece { cell: number, at, len });
            self.next_piece.set(next.wrapping_add(1));
        }
        self.cells.set(number.wrapping_add(1));
        let what = len << 2 | kind as u32;
        let head = u64::from(number.wrapping_add(1)) << 32 | u64::from(what);
        words.cell(number).head.store(head, Ordering::Release);
        if kind == CellKind::Lent {
            self.lent.set(self.lent.get().wrapping_add(1));
        }
    }

    /// [`publish`](Self::publish) of short bytes in the cell of this number, which is the next.
    #[inline(always)]
    pub(crate) fn publish_short(&self, cell: &RingCell, number: u32, len: usize) {
        debug_assert!(self.knows_cell() && number == self.cells.get());
        self.cells.set(number.wrapping_add(1));
        let head = u64::from(number.wrapping_add(1)) << 32 | (len as u64) << 2;
        cell.head.store(head, Ordering::Release);
    }

    /// Asks the reader to tell when half of everything is free; true if there is more room by now than
    /// there was.
    #[cold]
    pub(crate) fn want_room(&self, words: &RingWords) -> Result<bool> {
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
        words.writer.wants_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let had = self.taken.get();
        self.look(words)?;
        Ok(self.taken.get() != had)
    }

    /// Whether a send may go on: none found too little room, or a quarter is free since.
    pub(crate) fn has_room(&self, words: &RingWords) -> Result<bool> {
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

    /// A send has taken all that it was given.
    #[inline(always)]
    pub(crate) fn sent_all(&self) {
        self.short.set(false);
    }

    /// Pieces lent in all.
    pub(crate) fn lent(&self) -> u32 {
        self.lent.get()
    }

    /// Pieces that the reader had fetched in all at the last look.
    pub(crate) fn fetched(&self) -> u32 {
        self.fetched.get()
    }

    /// Looks at what the reader has fetched: pieces in all.
    pub(crate) fn look_fetched(&self, words: &RingWords) -> Result<u32> {
        // What the writer does with the memory then comes after the reader has read it.
        let fetched = words.reader.fetched.load(Ordering::Acquire);
        let lent_out = self.lent.get().wrapping_sub(self.fetched.get());
        if fetched.wrapping_sub(self.fetched.get()) > lent_out {
            return Err(Error::PROTO);
        }
        self.fetched.set(fetched);
        Ok(fetched)
    }
}

/// What the reader of a ring keeps to itself.
#[derive(Debug)]
pub(crate) struct RingReader {
    size: u32,
    /// How many cells were read, and of how many the writer was told.
    cells: Cell<u32>,
    told: Cell<u32>,
    /// Bytes beside the cells that were read since.
    untold: Cell<u32>,
    /// What the next cell stands for.
    kind: Cell<CellKind>,
    len: Cell<u32>,
    /// What is left of that; 0 if the cell was not looked at, or is not there.
    left: Cell<u32>,
    /// Pieces fetched in all.
    fetched: Cell<u32>,
}

impl RingReader {
    pub(crate) fn new(size: u32) -> Self {
        let word = || Cell::new(0);
        let (cells, told, untold, kind) = (word(), word(), word(), Cell::new(CellKind::Inline));
        Self { size, cells, told, untold, kind, len: word(), left: word(), fetched: word() }
    }

    /// The number of the cell that is read.
    #[inline(always)]
    pub(crate) fn this_cell(&self) -> u32 {
        self.cells.get()
    }

    /// What the cell stands for that is read.
    #[inline(always)]
    pub(crate) fn kind(&self) -> CellKind {
        self.kind.get()
    }

    /// Bytes of it that are left; for a lent piece 1.
    #[inline(always)]
    pub(crate) fn left(&self) -> u32 {
        self.left.get()
    }

    /// Bytes of it that were read.
    #[inline(always)]
    pub(crate) fn done(&self) -> u32 {
        self.len.get() - self.left.get()
    }

    /// The number of the next cell, if nothing of it was read.
    #[inline(always)]
    pub(crate) fn next_cell(&self) -> Option<u32> {
        (self.left.get() == 0).then_some(self.cells.get())
    }

    /// Whether nothing has come, as far as a look at the next cell tells.
    #[inline(always)]
    pub(crate) fn is_empty(&self, words: &RingWords) -> bool {
        let number = self.cells.get();
        let head = words.cell(number).head.load(Ordering::Acquire);
        self.left.get() == 0 && (head >> 32) as u32 != number.wrapping_add(1)
    }

    /// Whether there is something to read, after a look if nothing was known.
    pub(crate) fn look(&self, words: &RingWords) -> Result<bool> {
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
            2 => (CellKind::Lent, 1),
            _ => return Err(Error::PROTO),
        };
        if len == 0 || len > most {
            return Err(Error::PROTO);
        }
        self.kind.set(kind);
        self.len.set(len);
        self.left.set(len);
        Ok(true)
    }

    /// `n` bytes of what the cell stands for were read; true if the writer is to be told of room.
    pub(crate) fn took(&self, words: &RingWords, n: u32) -> bool {
        debug_assert!(n <= self.left.get());
        self.left.set(self.left.get() - n);
        if self.kind.get() == CellKind::Bytes {
            self.untold.set(self.untold.get().saturating_add(n));
        }
        self.left.get() == 0 && self.took_cell(words)
    }

    /// A cell with short bytes was read, and this is the next one's number; true if the writer is
    /// to be [told](Self::tell) of room.
    #[inline(always)]
    pub(crate) fn took_short(&self, next: u32) -> bool {
        self.cells.set(next);
        next.wrapping_sub(self.told.get()) >= CELLS as u32 / 4
    }

    /// Pieces fetched in all.
    pub(crate) fn fetched(&self) -> u32 {
        self.fetched.get()
    }

    /// All that the cell stands for was read; true if the writer is to be told of room.
    #[inline(always)]
    pub(crate) fn took_cell(&self, words: &RingWords) -> bool {
        self.cells.set(self.cells.get().wrapping_add(1));
        let much = self.cells.get().wrapping_sub(self.told.get()) >= CELLS as u32 / 4
            || self.untold.get() >= near_part(self.size).div_ceil(4);
        much && self.tell(words)
    }

    /// The lent piece was fetched that the cell stands for; the writer is to be told.
    pub(crate) fn took_piece(&self, words: &RingWords) {
        self.left.set(0);
        self.fetched.set(self.fetched.get().wrapping_add(1));
        words.reader.fetched.store(self.fetched.get(), Ordering::Release);
        self.took_cell(words);
    }

    /// Tells the writer how far the reader is; true if the writer waits for that.
    #[cold]
    pub(crate) fn tell(&self, words: &RingWords) -> bool {
        let taken = self.cells.get();
        self.told.set(taken);
        self.untold.set(0);
        words.reader.taken.store(taken, Ordering::Release);
        fence(Ordering::SeqCst);
        if words.writer.wants_room.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let wanted = words.writer.wanted.load(Ordering::Relaxed);
        let enough = taken.wrapping_sub(wanted) <= u32::MAX / 2;
        if enough {
            words.writer.wants_room.store(0, Ordering::Relaxed);
        }
        enough
    }

    /// Nothing is there to be read; true if the writer waits for room all the same, and is to be
    /// told.
    #[inline(always)]
    pub(crate) fn found_nothing(&self, words: &RingWords) -> bool {
        words.writer.wants_room.load(Ordering::Relaxed) != 0 && self.tell(words)
    }
}

impl RingWords {
    /// Whether the ring's reader has to be told of what was written before. `barriers`: this
    /// process takes part in barriers of all processes.
    #[inline(always)]
    pub(crate) fn must_tell_reader(&self, barriers: bool) -> bool {
        !self.reader_looks(barriers) && self.must_tell_after_fence()
    }

    /// Whether the ring's reader looks at it by itself, as is known without a fence.
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

    /// The reader looks at this pipe each turn, or does not any more: then it has to pass a barrier
    /// of all processes, if `barriers` were promised, or a fence, and to look once more.
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

    /// Asks the writer for a copy of a part of an exposed piece; `before` is the request before, which is over.
    pub(crate) fn request_copy(
        &self,
        piece: u32,
        from: u64,
        before: Option<CopyRequest>,
    ) -> CopyRequest {
        let number = before.map_or(0, |before| before.id as u32).wrapping_add(1).max(1);
        let id = u64::from(piece) << 32 | u64::from(number);
        self.reader.requested_from.store(from, Ordering::Relaxed);
        // What was copied for the request before has been read by now.
        self.reader.requested.store(id, Ordering::Release);
        CopyRequest { id, from }
    }

    /// Whether the writer has copied what was asked for.
    pub(crate) fn is_answered(&self, request: CopyRequest) -> bool {
        self.writer.answered.load(Ordering::Acquire) == request.id
    }

    /// The request of the reader that is not the last that was answered.
    pub(crate) fn copy_request(&self, last: Option<CopyRequest>) -> Option<CopyRequest> {
        let id = self.reader.requested.load(Ordering::Acquire);
        let is_new = id != last.map_or(0, |last| last.id);
        let from = || self.reader.requested_from.load(Ordering::Relaxed);
        is_new.then(|| CopyRequest { id, from: from() })
    }

    /// What was asked for is copied.
    pub(crate) fn answer_copy(&self, request: CopyRequest) {
        self.writer.answered.store(request.id, Ordering::Release);
    }

    pub(crate) fn switch_at(&self, bytes: u64) {
        self.writer.switched_at.store(bytes.wrapping_add(1), Ordering::Release);
    }

    pub(crate) fn switched_at(&self) -> Option<u64> {
        self.writer.switched_at.load(Ordering::Acquire).checked_sub(1)
    }

    /// The memory of lent pieces may change from now on.
    pub(crate) fn withdraw(&self) {
        self.writer.withdrawn.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether memory that was read before may have changed by then.
    pub(crate) fn is_withdrawn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.writer.withdrawn.load(Ordering::Relaxed) != 0
    }
}

/// The words of a door: who wants to be looked at, and whether the owner sleeps.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct DoorWords {
    /// The number of the owner's sleep, 0 while it is awake or somebody has woken it.
    asleep: AtomicU32,
    /// How often the owner has said that it sleeps.
    sleeps: AtomicU32,
    ready: DoorBits,
}

/// A bit for each connection.
#[derive(Debug)]
#[repr(C, align(128))]
struct DoorBits([AtomicU64; DOOR_WORDS]);

/// Bits in a door: indexes of connections count modulo this.
const DOOR_BITS: u32 = 64 * DOOR_WORDS as u32;

impl DoorWords {
    /// A door that nobody has come to, in memory of one's own.
    #[allow(dead_code, reason = "for the programs of `model/`")]
    pub(crate) fn new() -> Self {
        let ready = DoorBits(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { asleep: AtomicU32::new(0), sleeps: AtomicU32::new(0), ready }
    }

    /// Asks the owner to look at a connection; `signal` wakes it if it sleeps.
    pub(crate) fn ring(&self, index: u32, signal: impl FnOnce()) {
        let index = index % DOOR_BITS;
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

    /// Whether anybody has come.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Calls `each` for the connections that are to be looked at.
    #[inline]
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        for (at, word) in self.ready.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            // What was written before a bit was set, or found set, is seen from here on.
            fence(Ordering::SeqCst);
            while bits != 0 {
                each(at as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// The owner is about to sleep; false if somebody has come.
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
