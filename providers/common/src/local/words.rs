//! The words that two processes share, and how they are read and written: how far the writer of a
//! ring is and how far its reader, which pieces of memory were lent, who sleeps.
//!
//! Nothing that the other process writes here is believed: an index is compared with what it can
//! be, and -FI_EPROTO is the answer if it cannot. The programs of `model/` run this under every order of
//! the two sides.
use crate::error::{Error, Result};
use crate::primitives::{
    AtomicU32, AtomicU64, DOOR_WORDS, MAX_LENT, Ordering, compiler_fence, fence,
};
use core::cell::Cell;

/// The reader looks at a pipe when it is told to.
const COLD: u32 = 0;
/// The reader looks at a pipe each turn.
const POLLED: u32 = 1;
/// The reader looks at a pipe each turn; before it stops to, it makes all processes that take part pass
/// a barrier. A writer whose process does need no fence of its own.
const POLLED_WITH_BARRIERS: u32 = 2;

/// What the writer of a ring says.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct WriterLine {
    /// Bytes written to the ring in all.
    head: AtomicU64,
    /// Pieces lent in all.
    lent: AtomicU32,
    /// The writer found no room: it is to be told when there is some.
    wants_room: AtomicU32,
    /// After how many bytes on the former link the ring goes on, and 1; 0 until that is known.
    switched_at: AtomicU64,
    /// The memory of lent pieces is not the stream's any more.
    withdrawn: AtomicU32,
}

/// What the reader of a ring says.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ReaderLine {
    /// Bytes read from the ring in all, as far as the reader has said.
    tail: AtomicU64,
    /// Lent pieces fetched in all.
    fetched: AtomicU32,
    /// Whether the reader looks at this pipe each turn, so that it need not be told of anything:
    /// [`COLD`], [`POLLED`] or [`POLLED_WITH_BARRIERS`].
    polled: AtomicU32,
    /// The reader can read the writer's memory.
    can_fetch: AtomicU32,
}

/// A piece of the writer's memory that the reader fetches.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LentSlot {
    at: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
}

/// The shared words of one direction.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RingWords {
    pub(crate) writer: WriterLine,
    pub(crate) reader: ReaderLine,
    slots: [LentSlot; MAX_LENT],
}

impl RingWords {
    /// Words of a ring that nobody has used, in memory of one's own.
    #[allow(dead_code, reason = "for the programs of `model/`")]
    pub(crate) fn new() -> Self {
        let word = || AtomicU32::new(0);
        let long = || AtomicU64::new(0);
        Self {
            writer: WriterLine {
                head: long(),
                lent: word(),
                wants_room: word(),
                switched_at: long(),
                withdrawn: word(),
            },
            reader: ReaderLine { tail: long(), fetched: word(), polled: word(), can_fetch: word() },
            slots: std::array::from_fn(|_| LentSlot { at: long(), addr: long(), len: long() }),
        }
    }
}

/// Memory of the writer's, in place of bytes of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LentPiece {
    /// Before which byte of the ring the piece comes.
    pub(crate) at: u64,
    /// Where it is.
    pub(crate) addr: u64,
    /// How many bytes it has, never none.
    pub(crate) len: u64,
}

/// What the writer of a ring keeps to itself.
#[derive(Debug)]
pub(crate) struct RingWriter {
    size: u64,
    head: Cell<u64>,
    /// The reader's tail as it was last seen.
    tail: Cell<u64>,
    lent: Cell<u32>,
    /// The reader's count of fetched pieces as it was last seen.
    fetched: Cell<u32>,
    /// A send found too little room.
    short: Cell<bool>,
}

impl RingWriter {
    pub(crate) fn new(size: u64) -> Self {
        let (head, tail) = (Cell::new(0), Cell::new(0));
        let (lent, fetched) = (Cell::new(0), Cell::new(0));
        Self { size, head, tail, lent, fetched, short: Cell::new(false) }
    }

    /// The ring's size in bytes.
    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes were written in all: where the next goes.
    #[inline(always)]
    pub(crate) fn head(&self) -> u64 {
        self.head.get()
    }

    /// Bytes of room that there were at the last look at the reader's line.
    #[inline(always)]
    pub(crate) fn known_room(&self) -> u64 {
        self.size - self.head.get().wrapping_sub(self.tail.get())
    }

    /// Looks at the reader's line: bytes of room.
    pub(crate) fn look(&self, words: &RingWords) -> Result<u64> {
        let tail = words.reader.tail.load(Ordering::Acquire);
        let in_ring = self.head.get().wrapping_sub(self.tail.get());
        if tail.wrapping_sub(self.tail.get()) > in_ring {
            return Err(Error::PROTO);
        }
        self.tail.set(tail);
        Ok(self.known_room())
    }

    /// Bytes of room, of which so many are wanted: the reader's line is only looked at if it takes
    /// that.
    #[inline(always)]
    pub(crate) fn room(&self, words: &RingWords, wanted: u64) -> Result<u64> {
        let room = self.known_room();
        if room >= wanted { Ok(room) } else { self.look(words) }
    }

    /// Shows the reader `n` more bytes, which are written.
    #[inline(always)]
    pub(crate) fn publish(&self, words: &RingWords, n: u64) {
        debug_assert!(n <= self.known_room());
        self.head.set(self.head.get().wrapping_add(n));
        words.writer.head.store(self.head.get(), Ordering::Release);
    }

    /// Asks the reader to tell when there is room, or lent pieces were fetched; true if there is some by now.
    #[cold]
    pub(crate) fn want_room(&self, words: &RingWords) -> Result<bool> {
        self.short.set(true);
        words.writer.wants_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let had = self.known_room();
        let pieces = self.lent_out();
        Ok(self.look(words)? > had || self.look_fetched(words)? < pieces)
    }

    /// Whether a send may go on: none found too little room, or a quarter of the ring is free since.
    pub(crate) fn has_room(&self, words: &RingWords) -> Result<bool> {
        if !self.short.get() {
            return Ok(true);
        }
        let few = self.lent_out() as usize <= MAX_LENT / 2
            || self.look_fetched(words)? as usize <= MAX_LENT / 2;
        Ok(few && self.room(words, self.size / 4)? >= self.size / 4)
    }

    /// A send has taken all that it was given.
    #[inline(always)]
    pub(crate) fn sent_all(&self) {
        self.short.set(false);
    }

    /// Pieces that the reader had not fetched at the last look.
    pub(crate) fn lent_out(&self) -> u32 {
        self.lent.get().wrapping_sub(self.fetched.get())
    }

    /// Pieces lent in all.
    pub(crate) fn lent(&self) -> u32 {
        self.lent.get()
    }

    /// Pieces that the reader had fetched in all at the last look.
    pub(crate) fn fetched(&self) -> u32 {
        self.fetched.get()
    }

    /// Looks at what the reader has fetched: pieces that it has not.
    pub(crate) fn look_fetched(&self, words: &RingWords) -> Result<u32> {
        // What the writer does with the memory then comes after the reader has read it.
        let fetched = words.reader.fetched.load(Ordering::Acquire);
        if fetched.wrapping_sub(self.fetched.get()) > self.lent_out() {
            return Err(Error::PROTO);
        }
        self.fetched.set(fetched);
        Ok(self.lent_out())
    }

    /// Lends memory that comes behind the bytes which are published; false if too many pieces are
    /// lent.
    pub(crate) fn lend(&self, words: &RingWords, addr: u64, len: u64) -> Result<bool> {
        if self.lent_out() as usize == MAX_LENT && self.look_fetched(words)? as usize == MAX_LENT {
            return Ok(false);
        }
        let slot = &words.slots[self.lent.get() as usize % MAX_LENT];
        slot.at.store(self.head.get(), Ordering::Relaxed);
        slot.addr.store(addr, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        self.lent.set(self.lent.get().wrapping_add(1));
        words.writer.lent.store(self.lent.get(), Ordering::Release);
        Ok(true)
    }
}

/// What the reader of a ring keeps to itself.
#[derive(Debug)]
pub(crate) struct RingReader {
    size: u64,
    tail: Cell<u64>,
    /// The tail that the writer was told.
    told: Cell<u64>,
    /// The writer's head as it was last seen.
    head: Cell<u64>,
    /// The writer's count of lent pieces as it was last seen with `head`.
    lent: Cell<u32>,
    /// Pieces fetched in all.
    fetched: Cell<u32>,
    /// What is left of the next piece, if one is lent.
    piece: Cell<Option<LentPiece>>,
}

impl RingReader {
    pub(crate) fn new(size: u64) -> Self {
        let long = || Cell::new(0);
        let (tail, told, head) = (long(), long(), long());
        let (lent, fetched) = (Cell::new(0), Cell::new(0));
        Self { size, tail, told, head, lent, fetched, piece: Cell::new(None) }
    }

    /// How many bytes of the ring were read in all: where the next is.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u64 {
        self.tail.get()
    }

    /// Bytes to read that were there at the last look, whether or not a lent piece is among them.
    #[inline(always)]
    pub(crate) fn known(&self) -> u64 {
        self.head.get().wrapping_sub(self.tail.get())
    }

    /// The next lent piece, if there was one at the last look.
    #[inline(always)]
    pub(crate) fn piece(&self) -> Option<LentPiece> {
        self.piece.get()
    }

    /// Bytes of the ring that come before anything else.
    #[inline(always)]
    pub(crate) fn before_piece(&self) -> u64 {
        match self.piece.get() {
            None => self.known(),
            Some(piece) => piece.at.wrapping_sub(self.tail.get()).min(self.known()),
        }
    }

    /// Bytes that can be read as they are, after a look at the writer's line if none are known; none
    /// where more than that is to be looked at.
    #[inline(always)]
    pub(crate) fn plain(&self, words: &RingWords) -> Option<u64> {
        if self.lent.get() != self.fetched.get() {
            return None;
        }
        let known = self.known();
        if known != 0 {
            return Some(known);
        }
        let head = words.writer.head.load(Ordering::Acquire);
        // After the head: what was lent before bytes that are seen is seen as well.
        let lent = words.writer.lent.load(Ordering::Acquire);
        let new = head.wrapping_sub(self.tail.get());
        if lent != self.lent.get() || new > self.size {
            return None;
        }
        self.head.set(head);
        (new != 0 || words.writer.wants_room.load(Ordering::Relaxed) == 0).then_some(new)
    }

    /// Looks at the writer's line; false if nothing has come since.
    pub(crate) fn look(&self, words: &RingWords) -> Result<bool> {
        let head = words.writer.head.load(Ordering::Acquire);
        // After the head: what was lent before bytes that are seen is seen as well.
        let lent = words.writer.lent.load(Ordering::Acquire);
        if head == self.head.get() && lent == self.lent.get() {
            return Ok(false);
        }
        self.take(words, head, lent)
    }

    fn take(&self, words: &RingWords, head: u64, lent: u32) -> Result<bool> {
        // Neither more than fits nor less than before.
        if head.wrapping_sub(self.head.get()) > self.size - self.known() {
            return Err(Error::PROTO);
        }
        self.head.set(head);
        if lent != self.lent.get() {
            let waiting = self.lent.get().wrapping_sub(self.fetched.get());
            if lent.wrapping_sub(self.lent.get()) > MAX_LENT as u32 - waiting {
                return Err(Error::PROTO);
            }
            self.lent.set(lent);
            self.next_piece(words)?;
        }
        Ok(true)
    }

    /// Takes the next piece out of the table, if none is taken and one is lent.
    #[cold]
    fn next_piece(&self, words: &RingWords) -> Result {
        if self.piece.get().is_some() || self.lent.get() == self.fetched.get() {
            return Ok(());
        }
        let slot = &words.slots[self.fetched.get() as usize % MAX_LENT];
        let piece = LentPiece {
            at: slot.at.load(Ordering::Relaxed),
            addr: slot.addr.load(Ordering::Relaxed),
            len: slot.len.load(Ordering::Relaxed),
        };
        // It comes before a byte that is to be read, or is still to be written.
        let ahead = piece.at.wrapping_sub(self.tail.get());
        let fits = piece.len <= i64::MAX as u64 && piece.addr.checked_add(piece.len).is_some();
        if ahead > self.size || piece.len == 0 || !fits {
            return Err(Error::PROTO);
        }
        self.piece.set(Some(piece));
        Ok(())
    }

    /// `n` bytes were read; true if the writer was told and wants to know of room.
    #[inline(always)]
    pub(crate) fn consume(&self, words: &RingWords, n: u64) -> bool {
        debug_assert!(n <= self.before_piece());
        self.tail.set(self.tail.get().wrapping_add(n));
        if self.tail.get().wrapping_sub(self.told.get()) < self.size / 4 {
            return false;
        }
        self.tell(words)
    }

    /// Tells the writer how far the reader is; true if the writer wants to know of room, and half of the ring
    /// is free.
    #[cold]
    pub(crate) fn tell(&self, words: &RingWords) -> bool {
        self.told.set(self.tail.get());
        words.reader.tail.store(self.tail.get(), Ordering::Release);
        self.known() <= self.size / 2 && self.takes_wish(words)
    }

    /// `n` bytes of the lent piece were fetched; true if that was its end.
    pub(crate) fn fetch(&self, words: &RingWords, n: u64) -> Result<bool> {
        let mut piece = self.piece.get().ok_or(Error::PROTO)?;
        if n < piece.len {
            piece.addr += n;
            piece.len -= n;
            self.piece.set(Some(piece));
            return Ok(false);
        }
        self.piece.set(None);
        self.fetched.set(self.fetched.get().wrapping_add(1));
        words.reader.fetched.store(self.fetched.get(), Ordering::Release);
        // The writer hears of it all the same.
        self.takes_wish(words);
        self.next_piece(words)?;
        Ok(true)
    }

    /// Nothing is there to be read; true if the writer waits for room all the same.
    pub(crate) fn found_nothing(&self, words: &RingWords) -> bool {
        words.writer.wants_room.load(Ordering::Relaxed) != 0 && self.tell(words)
    }

    fn takes_wish(&self, words: &RingWords) -> bool {
        fence(Ordering::SeqCst);
        let wants = words.writer.wants_room.load(Ordering::Relaxed) != 0;
        if wants {
            words.writer.wants_room.store(0, Ordering::Relaxed);
        }
        wants
    }
}

impl RingWords {
    /// Whether the ring's reader has to be told of what was written before. `barriers`: this process
    /// takes part in barriers of all processes.
    #[inline(always)]
    pub(crate) fn must_tell_reader(&self, barriers: bool) -> bool {
        // The processor may swap what was written and this; the reader's barrier makes that harmless.
        compiler_fence(Ordering::SeqCst);
        if barriers && self.reader.polled.load(Ordering::Relaxed) == POLLED_WITH_BARRIERS {
            return false;
        }
        self.must_tell_after_fence()
    }

    #[inline(never)]
    fn must_tell_after_fence(&self) -> bool {
        fence(Ordering::SeqCst);
        self.reader.polled.load(Ordering::Relaxed) == COLD
    }

    /// The reader looks at this pipe each turn, or does not any more: then it has to pass a barrier of
    /// all processes, if `barriers` were promised, or a fence, and to look once more.
    pub(crate) fn set_polled(&self, polled: bool, barriers: bool) {
        let polled = match (polled, barriers) {
            (false, _) => COLD,
            (true, false) => POLLED,
            (true, true) => POLLED_WITH_BARRIERS,
        };
        self.reader.polled.store(polled, Ordering::Relaxed);
    }

    pub(crate) fn set_can_fetch(&self) {
        self.reader.can_fetch.store(1, Ordering::Release);
    }

    pub(crate) fn can_fetch(&self) -> bool {
        self.reader.can_fetch.load(Ordering::Acquire) != 0
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
    asleep: AtomicU32,
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
        Self { asleep: AtomicU32::new(0), ready }
    }

    /// Asks the owner to look at a connection; true if it has to be woken.
    pub(crate) fn ring(&self, index: u32) -> bool {
        let index = index % DOOR_BITS;
        let (word, bit) = (&self.ready.0[index as usize / 64], 1 << (index % 64));
        word.fetch_or(bit, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::Relaxed) != 0
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
        self.asleep.store(1, Ordering::SeqCst);
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
