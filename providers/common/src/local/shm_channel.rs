//! Pipe between two processes of one host: a byte ring in each direction in memory mapped by both,
//! and exposed buffers of the writer read in place by the reader.
//!
//! For any content written by the other process, an end of a pipe accesses only its own memory and
//! returns no more bytes than its buffer holds. Impossible indices and segments fail with
//! -FI_EPROTO.
use crate::barriers;
use crate::buf::{
    ContiguousSrc, CopyMode, GatherList, InlineBytes, ScatterList, UntrustedBytes, copy_any,
    is_some, zeroed,
};
use crate::cma::PeerMemory;
use crate::doorbell::PeerDoorbell;
use crate::error::{Error, Result};
use crate::primitives::CELLS;
use crate::ring_layout::{
    CellKind, CopyRequest, INLINE, RingCell, RingControl, RingReader, RingWriter,
};
use crate::segment::{COPY_BUF, SharedSegment};
use core::cell::{Cell, OnceCell, RefCell};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes copied before their publication, so both sides copy concurrently.
const CHUNK: usize = 8192;

/// Pieces of fewer bytes are not lent: fetching costs more than copying them.
const MIN_EXPOSED: usize = 4096;

/// Bytes of a cell in the same cache line as its header word.
const FIRST_LINE: usize = 56;

/// Maximum bytes of one direct read.
const MAX_FETCH: usize = 4 << 20;

/// Maximum polls of the reader for a requested copy before it proceeds to other work.
const COPY_LOOKS: u32 = 200;

/// Maximum relocations of an exposed buffer by the writer ([`ShmChannel::copy_exposed`]) during one
/// read.
const MOST_MOVES: u32 = 2;

/// Memory of the writer's, in place of bytes of the ring.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ZcopyDesc {
    addr: u64,
    len: u64,
}

/// Partially read exposed buffer.
#[derive(Clone, Copy, Debug)]
struct PartialGet {
    len: u64,
    done: u64,
}

/// Exposed buffer possibly not read by the reader yet.
#[derive(Debug)]
struct ExposedBuffer {
    /// Number of exposed buffers including it, and its cell.
    number: u32,
    cell: u32,
    /// Key of its memory region ([`CopyMode::OfRegion`]).
    key: Option<u64>,
    memory: Range<usize>,
    /// Its bytes, if the region was to be closed.
    copy: Option<Box<[u8]>>,
}

/// Calls with [`CopyMode::ZeroCopy`] whose memory the peer has read, as reported by
/// [`ShmChannel::zcopy_completed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZcopyCompletion {
    /// The first call: they count from 0, as far as they took bytes, modulo 2³².
    pub low: u32,
    /// The last call.
    pub high: u32,
}

/// Result of a poll for short messages ([`ShmChannel::recv_inline`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InlineRecv {
    /// Some were taken.
    Took,
    /// There is nothing in the pipe.
    None,
    /// Anything else has to be [received](LocalPipe::recv).
    Else,
}

/// Zero-copy calls, and the number of exposed buffers at the end of the last one.
#[derive(Debug)]
struct ZcopySends {
    calls: ZcopyCompletion,
    exposed: u32,
}

/// First two to four words of a message ([`ShmChannel::send_header_and_body`]).
#[derive(Clone, Copy, Debug)]
pub struct JoinedWords {
    words: [u64; 4],
    len: usize,
}

impl JoinedWords {
    /// Returns these two words followed by the optional ones.
    #[inline(always)]
    pub fn new([first, second]: [u64; 2], more: [Option<u64>; 2]) -> Self {
        let (third, fourth) = match more {
            [Some(third), fourth] => (third, fourth.unwrap_or(0)),
            [None, third] => (third.unwrap_or(0), 0),
        };
        let count = 2 + more.iter().flatten().count();
        Self { words: [first, second, third, fourth], len: 8 * count }
    }

    /// Bytes of the words.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "there are two at least")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Writes the words.
    ///
    /// # Safety
    /// There is room for them.
    #[inline(always)]
    unsafe fn put(self, to: *mut u8) {
        let [first, second, third, fourth] = self.words;
        // SAFETY: by this function's contract.
        unsafe {
            let to = to.cast::<u64>();
            to.write_unaligned(first);
            to.add(1).write_unaligned(second);
            if self.len > 16 {
                to.add(2).write_unaligned(third);
            }
            if self.len > 24 {
                to.add(3).write_unaligned(fourth);
            }
        }
    }
}

/// One end of a pair of rings. No call blocks.
#[derive(Debug)]
pub struct ShmChannel {
    writer: RingWriter,
    reader: RingReader,
    /// Words and bytes of the rings, valid during the lifetime of `segment`.
    out: NonNull<RingControl>,
    inbound: NonNull<RingControl>,
    out_bytes: NonNull<u8>,
    inbound_bytes: NonNull<u8>,
    /// Bytes of a ring.
    size: usize,
    /// Next exposed buffer, after a partial read.
    piece: Cell<Option<PartialGet>>,
    /// The system does not let this end read the other's memory any more.
    unreadable: Cell<bool>,
    /// Pending request for a copy of a part of the exposed buffer, the last one, and the last one
    /// of the peer.
    request: Cell<Option<CopyRequest>>,
    last_request: Cell<Option<CopyRequest>>,
    answered: Cell<Option<CopyRequest>>,
    doorbell: OnceCell<(Arc<PeerDoorbell>, u32)>,
    memory: OnceCell<PeerMemory>,
    /// This process takes part in barriers of all processes, as far as this end knows.
    barriers: Cell<bool>,
    /// True if this end has announced polling of the pipe in each progress iteration.
    polled: Cell<bool>,
    /// Barrier after the end of polling by this process, if it still has to be waited for.
    cooled: Cell<Option<u64>>,
    /// Number of the next call with [`CopyMode::ZeroCopy`] and accepted bytes.
    next_call: Cell<u32>,
    exposing: RefCell<VecDeque<ZcopySends>>,
    exposed: RefCell<VecDeque<ExposedBuffer>>,
    /// True if an empty poll followed the last short message sent by this end: it does not send
    /// messages back to back.
    waited: Cell<bool>,
    segment: SharedSegment,
}

// SAFETY: the pointers are into `segment`, which belongs to no thread.
unsafe impl Send for ShmChannel {}

impl ShmChannel {
    /// A new pipe with rings of so many bytes each way, a power of two from 4 KiB to 16 MiB, and
    /// the descriptor for the other end ([`ShmChannel::open`]).
    pub fn create(ring: usize) -> Result<(Self, OwnedFd)> {
        let (segment, fd) = SharedSegment::create(ring)?;
        Ok((Self::of(segment), fd))
    }

    /// Opens the other end of a pipe from a descriptor of its creator. Fails with -FI_EPROTO if it
    /// was not created by [`ShmChannel::create`].
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        Self::open_within(fd, usize::MAX)
    }

    /// [`ShmChannel::open`], unless the process had more than `most` bytes of rings then: -FI_ENOMEM.
    pub fn open_within(fd: BorrowedFd<'_>, most: usize) -> Result<Self> {
        Ok(Self::of(SharedSegment::open(fd, most)?))
    }

    fn of(segment: SharedSegment) -> Self {
        let size = segment.ring_size() as u32;
        segment.out().set_answers();
        Self {
            writer: RingWriter::new(size),
            reader: RingReader::new(size),
            out: segment.out().into(),
            inbound: segment.inbound().into(),
            out_bytes: segment.out_bytes(),
            inbound_bytes: segment.inbound_bytes(),
            size: segment.ring_size(),
            piece: Cell::new(None),
            unreadable: Cell::new(false),
            request: Cell::new(None),
            last_request: Cell::new(None),
            answered: Cell::new(None),
            doorbell: OnceCell::new(),
            memory: OnceCell::new(),
            barriers: Cell::new(barriers::are_there()),
            polled: Cell::new(false),
            cooled: Cell::new(None),
            next_call: Cell::new(0),
            exposing: RefCell::default(),
            exposed: RefCell::default(),
            waited: Cell::new(false),
            segment,
        }
    }

    /// Bytes of each ring.
    pub fn ring_size(&self) -> usize {
        self.segment.ring_size()
    }

    #[inline(always)]
    fn out(&self) -> &RingControl {
        // SAFETY: it is in `segment`, which lives as long as `self`.
        unsafe { self.out.as_ref() }
    }

    #[inline(always)]
    fn inbound(&self) -> &RingControl {
        // SAFETY: it is in `segment`, which lives as long as `self`.
        unsafe { self.inbound.as_ref() }
    }

    /// Notifies the peer's engine of new data, unless it polls.
    #[inline(always)]
    fn notify(&self) {
        if self.out().must_tell_reader(self.barriers.get()) {
            self.ring();
        }
    }

    /// Checks for barriers in this process, unless they are known to be available.
    #[inline(always)]
    fn look_for_barriers(&self) {
        if !self.barriers.get() {
            self.use_barriers();
        }
    }

    #[cold]
    fn use_barriers(&self) {
        if barriers::are_there() {
            self.barriers.set(true);
            if self.polled.get() {
                // The other end needs no fences from here on, and this one will pass a barrier.
                self.inbound().set_polled(true, true);
            }
        }
    }

    #[cold]
    fn ring(&self) {
        if let Some((doorbell, index)) = self.doorbell.get() {
            doorbell.ring(*index);
        }
    }

    /// Sends as many of these bytes as there is room for; -FI_EAGAIN if there is none. When
    /// fewer are taken than were given, the other end tells when there is room
    /// ([`ShmChannel::has_space`]).
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        if self.send_short(bytes) { Ok(bytes.len()) } else { self.send_in_parts(bytes) }
    }

    /// Sends these bytes if they are few and known to fit. Returns false otherwise, without sending
    /// anything; [`ShmChannel::send`] then handles them.
    #[inline(always)]
    pub fn send_short(&self, bytes: &[u8]) -> bool {
        if bytes.len() > INLINE || bytes.is_empty() || !self.writer.knows_cell() {
            return false;
        }
        let number = self.writer.next_cell();
        let cell = self.out().cell(number);
        cell.body.with_mut(|body| {
            // SAFETY: the cell has room for so many bytes, and is no memory of the caller's.
            unsafe { copy_any(bytes.as_ptr(), body, bytes.len()) };
        });
        self.writer.publish_short(cell, number, bytes.len());
        self.notify();
        true
    }

    /// Like [`ShmChannel::send_short`], for two to four words followed by `body`. The words are
    /// passed in registers to avoid a store-forwarding stall. For most messages it is a leaf
    /// function without a frame, as long as it is not inlined.
    #[inline(always)]
    pub fn send_header_and_body(&self, head: JoinedWords, body: ContiguousSrc<'_>) -> bool {
        let (head_len, n) = (head.len(), body.len());
        if !is_some(n) || !self.writer.knows_cell() {
            return self.send_header_and_body_slow(head, body);
        }
        let number = self.writer.next_cell();
        let cell = self.out().cell(number);
        cell.body.with_mut(|to| {
            // SAFETY: the cell has room for so many bytes, and is no memory of the caller's; the body is
            // readable, as its owner says.
            unsafe { put_joined(head, body.at(), to, n) };
        });
        self.writer.publish_short(cell, number, head_len + n);
        self.out().reader_looks(self.barriers.get()) || self.tell_reader()
    }

    /// Handles other lengths, and waiting readers, for [`ShmChannel::send_header_and_body`].
    #[inline(never)]
    fn send_header_and_body_slow(&self, head: JoinedWords, body: ContiguousSrc<'_>) -> bool {
        let head_len = head.len();
        let len = head_len + body.len();
        if len > INLINE {
            return self.send_joined_bytes(head, body);
        }
        if !self.writer.knows_cell() {
            return false;
        }
        let number = self.writer.next_cell();
        let cell = self.out().cell(number);
        cell.body.with_mut(|to| {
            // SAFETY: the cell has room for `len` bytes, and is no memory of the caller's; the body is
            // readable, as its owner says.
            unsafe {
                let (body, mut left) = (body.at(), body.len());
                let near = FIRST_LINE - head_len;
                // The second cache line is written first: while the processor waits for it, a
                // reader polling the first line would take the first one away. But a reader of
                // back-to-back messages falling behind gets several at a time.
                if self.waited.replace(false) && left > near {
                    copy_any(body.add(near), to.add(FIRST_LINE), left - near);
                    compiler_fence(Ordering::Release);
                    left = near;
                }
                head.put(to);
                copy_any(body, to.add(head_len), left);
            }
        });
        self.writer.publish_short(cell, number, len);
        self.notify();
        true
    }

    /// Notifies the peer's engine of new data if necessary. Always returns true, the result of its
    /// callers.
    #[inline(never)]
    fn tell_reader(&self) -> bool {
        self.notify();
        true
    }

    /// [`ShmChannel::send_header_and_body`] of more bytes than a cell has room for, through the ring of bytes;
    /// false if they are too many to be copied in one go, too.
    #[inline(never)]
    fn send_joined_bytes(&self, head: JoinedWords, body: ContiguousSrc<'_>) -> bool {
        let head_len = head.len();
        let len = head_len + body.len();
        let has_space = |buf| buf >= len as u32;
        if len > CHUNK || !self.writer.space(self.out(), len as u32).is_ok_and(has_space) {
            return false;
        }
        // SAFETY: all of it is in the piece that has room; the body is readable, as its owner says, and in no
        // memory of a segment.
        unsafe {
            let to = self.out_bytes.add(self.writer.position() as usize).as_ptr();
            head.put(to);
            to.add(head_len).copy_from_nonoverlapping(body.at(), body.len());
        }
        self.publish_bytes(len);
        self.writer.sent_all();
        self.notify();
        true
    }

    #[inline(never)]
    fn send_in_parts(&self, bytes: &[u8]) -> Result<usize> {
        let base = bytes.as_ptr().cast_mut();
        let part = |from: usize, len| std::iter::once((base.wrapping_add(from), len));
        let sent = self.put_all(bytes.len(), part)?;
        if sent > 0 || bytes.is_empty() { Ok(sent) } else { Err(Error::AGAIN) }
    }

    /// Writes and publishes as many of `total` bytes as fit; `parts` returns the source of a byte
    /// range.
    fn put_all<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        total: usize,
        parts: impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        let (mut done, mut unnotified) = (0, false);
        while done < total {
            let n = self.put_some(total - done, done, &parts)?;
            if n == 0 {
                if !self.writer.want_space(self.out())? {
                    break;
                }
                continue;
            }
            // The reader wakes up while the rest is copied.
            unnotified = done > 0;
            if !unnotified {
                self.notify();
            }
            done += n;
        }
        if unnotified {
            self.notify();
        }
        if done == total {
            self.writer.sent_all();
        }
        Ok(done)
    }

    /// Writes one cell with some of `left` bytes and returns their number.
    fn put_some<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        left: usize,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        if left <= INLINE {
            if !self.writer.has_cell(self.out())? {
                return Ok(0);
            }
            self.out().cell(self.writer.next_cell()).body.with_mut(|mut body| {
                for (from, len) in parts(done, left) {
                    // SAFETY: the cell has room for `left` bytes, which the parts add up to. The
                    // caller's bytes are readable, and no memory of a segment.
                    unsafe {
                        body.copy_from_nonoverlapping(from, len);
                        body = body.add(len);
                    }
                }
            });
            self.writer.publish(self.out(), CellKind::Inline, left as u32);
            return Ok(left);
        }
        let wanted = left.min(CHUNK);
        let n = wanted.min(self.writer.space(self.out(), wanted as u32)? as usize);
        if n == 0 {
            return Ok(0);
        }
        let mut at = self.writer.position() as usize;
        for (from, len) in parts(done, n) {
            // SAFETY: there is room for `n` bytes, which the parts add up to. The caller's bytes are
            // readable, and no memory of a segment.
            unsafe { self.out_bytes.add(at).as_ptr().copy_from_nonoverlapping(from, len) };
            at += len;
        }
        self.publish_bytes(n);
        Ok(n)
    }

    /// Publishes `len` bytes, already written to the free space, and their location.
    #[inline(always)]
    fn publish_bytes(&self, len: usize) {
        self.out().cell(self.writer.next_cell()).body.with_mut(|body| {
            // SAFETY: the cell has room for that.
            unsafe { body.cast::<u32>().write_unaligned(self.writer.position()) };
        });
        self.writer.publish(self.out(), CellKind::Bytes, len as u32);
    }

    /// Returns the location of the current cell's bytes in the data area of the ring. Fails with
    /// -FI_EPROTO if it is outside of the area.
    #[inline(always)]
    fn position(&self) -> Result<usize> {
        let at = self.inbound().cell(self.reader.this_cell()).body.with(|body| {
            // SAFETY: the cell has room for that. It is read once.
            unsafe { body.cast::<u32>().read_unaligned() }
        }) as usize;
        let len = (self.reader.done() + self.reader.left()) as usize;
        if at > self.size - len { Err(Error::PROTO) } else { Ok(at) }
    }

    /// [`ShmChannel::send`] of the bytes in a list. With [`CopyMode::ZeroCopy`], if the peer can read
    /// this process's memory ([`ShmChannel::can_expose`]), large parts of the list are exposed in
    /// place until it has read them. A call with accepted bytes has a number, reported later by
    /// [`ShmChannel::zcopy_completed`]. The returned number of bytes includes exposed ones.
    pub fn send_list(&self, list: &GatherList<'_>, way: CopyMode) -> Result<usize> {
        let done = if way.is_zcopy() && self.can_expose() {
            self.expose_parts(list, way)?
        } else {
            self.put_all(list.len(), |from, len| list.parts(from, len))?
        };
        if done == 0 && !list.is_empty() {
            return Err(Error::AGAIN);
        }
        if way.is_zcopy() && done > 0 {
            self.note_call();
        }
        Ok(done)
    }

    /// Exposes the large parts of a list, copies the others, and returns the number of accepted
    /// bytes.
    fn expose_parts(&self, list: &GatherList<'_>, way: CopyMode) -> Result<usize> {
        let mut done = 0;
        for (at, len) in list.parts(0, list.len()) {
            let n = if len >= MIN_EXPOSED {
                if self.expose(at, len, way)? { len } else { 0 }
            } else {
                self.put_all(len, |from, len| std::iter::once((at.wrapping_add(from), len)))?
            };
            done += n;
            if n < len {
                break;
            }
        }
        Ok(done)
    }

    /// Lends a piece of memory; false if there is no cell for it.
    fn expose(&self, at: *mut u8, len: usize, way: CopyMode) -> Result<bool> {
        while !self.writer.has_cell(self.out())? {
            if !self.writer.want_space(self.out())? {
                return Ok(false);
            }
        }
        let piece = ZcopyDesc { addr: at as u64, len: len as u64 };
        let cell = self.writer.next_cell();
        self.out().cell(cell).body.with_mut(|body| {
            // SAFETY: the cell has room for that.
            unsafe { body.cast::<ZcopyDesc>().write_unaligned(piece) };
        });
        self.writer.publish(self.out(), CellKind::Exposed, 1);
        let key = if let CopyMode::OfRegion(key) = way { Some(key) } else { None };
        let memory = at as usize..at as usize + len;
        let piece = ExposedBuffer { number: self.writer.exposed(), cell, key, memory, copy: None };
        self.exposed.borrow_mut().push_back(piece);
        self.writer.sent_all();
        self.notify();
        Ok(true)
    }

    /// Assigns a number to a zero-copy call with accepted bytes.
    fn note_call(&self) {
        let number = self.next_call.get();
        self.next_call.set(number.wrapping_add(1));
        let mut exposing = self.exposing.borrow_mut();
        let exposed = self.writer.exposed();
        match exposing.back_mut().filter(|last| last.exposed == exposed) {
            // Nothing was lent since the call before.
            Some(last) => last.calls.high = number,
            None => {
                let calls = ZcopyCompletion { low: number, high: number };
                exposing.push_back(ZcopySends { calls, exposed });
            }
        }
    }

    /// Returns the next calls with [`CopyMode::ZeroCopy`] whose memory is not in use any more. Fails
    /// with -FI_EAGAIN if there are none.
    pub fn zcopy_completed(&self) -> Result<ZcopyCompletion> {
        let mut exposing = self.exposing.borrow_mut();
        let Some(first) = exposing.front() else { return Err(Error::AGAIN) };
        let is_done =
            |calls: &ZcopySends| self.writer.fetched().wrapping_sub(calls.exposed) <= u32::MAX / 2;
        if !is_done(first) {
            self.writer.look_fetched(self.out())?;
            if let Some(request) = self.out().copy_request(self.answered.get()) {
                self.answer(request);
            }
        }
        let is_back = |piece: &mut ExposedBuffer| self.was_fetched(piece);
        while self.exposed.borrow_mut().pop_front_if(is_back).is_some() {}
        let mut done: Option<ZcopyCompletion> = None;
        while let Some(calls) = exposing.pop_front_if(|calls| is_done(calls)) {
            let low = done.map_or(calls.calls.low, |done| done.low);
            done = Some(ZcopyCompletion { low, high: calls.calls.high });
        }
        done.ok_or(Error::AGAIN)
    }

    /// Copies the requested part of an exposed buffer not readable by the peer.
    #[cold]
    fn answer(&self, request: CopyRequest) {
        self.answered.set(Some(request));
        let exposed = self.exposed.borrow();
        let is_asked_for = |piece: &&ExposedBuffer| piece.number == request.piece();
        let piece = exposed.iter().find(is_asked_for).filter(|piece| !self.was_fetched(piece));
        let Some(piece) = piece else { return };
        let from = usize::try_from(request.from).unwrap_or(usize::MAX);
        let n = piece.memory.len().saturating_sub(from).min(COPY_BUF);
        if n == 0 {
            return;
        }
        let start = piece.copy.as_deref().map_or(piece.memory.start as *const u8, <[u8]>::as_ptr);
        // SAFETY: the part is of the piece, which is readable until it was fetched, or of the bytes that
        // were kept in its place; there is room for it, which is no memory of the caller's.
        unsafe { self.segment.out_copies().as_ptr().copy_from_nonoverlapping(start.add(from), n) };
        self.out().answer_copy(request);
        self.notify();
    }

    /// Returns true if the peer has read an exposed buffer, as of the last check.
    fn was_fetched(&self, piece: &ExposedBuffer) -> bool {
        self.writer.fetched().wrapping_sub(piece.number) <= u32::MAX / 2
    }

    /// Copies the unread exposed buffers ([`CopyMode::OfRegion`]) of the memory region with this key
    /// before its close; the peer then reads the copy. Returns the number of bytes copied. Fails
    /// with -FI_ENOBUFS if they exceeded `most`; the pipe then has to be
    /// [withdrawn](Self::withdraw).
    pub fn copy_exposed(&self, key: u64, most: usize) -> Result<usize> {
        self.writer.look_fetched(self.out())?;
        let mut copied = 0;
        for piece in self.exposed.borrow_mut().iter_mut() {
            if piece.key != Some(key) || piece.copy.is_some() || self.was_fetched(piece) {
                continue;
            }
            let len = piece.memory.len();
            if len > most - copied {
                return Err(Error::NOBUFS);
            }
            let mut bytes = zeroed(len)?;
            // SAFETY: the memory stays unchanged until it was read or this has returned, as
            // promised by its sender; the copy is of the same size.
            unsafe {
                let from = piece.memory.start as *const u8;
                from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
            }
            let cell = self.out().cell(piece.cell);
            exposed_word(cell, 0).store(bytes.as_ptr() as u64, Ordering::Release);
            piece.copy = Some(bytes);
            copied += len;
        }
        // A reader of later contents of the memory also sees the new location of the buffer.
        fence(Ordering::SeqCst);
        Ok(copied)
    }

    /// Returns true if calls with [`CopyMode::ZeroCopy`] are in flight, possibly read by the peer since
    /// the last query.
    #[inline]
    pub fn is_exposing(&self) -> bool {
        !self.exposing.borrow().is_empty()
    }

    /// Receives available bytes and returns their number. Fails with -FI_EAGAIN if there are none
    /// now. A partially filled buffer does not mean an empty pipe; only -FI_EAGAIN does. An exposed
    /// buffer begins a separate call, so its reader knows the header and can provide the final
    /// destination. The buffer behind the received bytes may have been overwritten.
    #[inline(always)]
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        let done = self.recv_short(buf);
        if done > 0 {
            return Ok(done);
        }
        let words = self.inbound();
        if !self.reader.is_empty(words) || buf.is_empty() {
            return self.recv_in_parts(buf);
        }
        self.found_none(words);
        Err(Error::AGAIN)
    }

    /// Receives short messages, while the next cells contain some and the buffer has space for the
    /// largest, up to the cell at which the writer has to be notified. Cells are copied whole, in
    /// cache lines.
    #[inline(always)]
    fn recv_short(&self, buf: &mut [u8]) -> usize {
        let Some(mut number) = self.reader.next_cell() else { return 0 };
        let (words, to) = (self.inbound(), buf.as_mut_ptr());
        let mut done = 0;
        while buf.len() - done >= INLINE {
            let cell = words.cell(number);
            let len = cell.short(number) as usize;
            if len == 0 {
                break;
            }
            cell.body.with(|body| {
                // SAFETY: `to` has room for a whole cell from `done` on, and is no memory of a segment.
                unsafe {
                    body.copy_to_nonoverlapping(to.add(done), FIRST_LINE);
                    if len > FIRST_LINE {
                        let (body, to) = (body.add(FIRST_LINE), to.add(done + FIRST_LINE));
                        body.copy_to_nonoverlapping(to, INLINE - FIRST_LINE);
                    }
                }
            });
            done += len;
            number = number.wrapping_add(1);
            if self.reader.took_short(number) {
                if self.reader.tell(words) {
                    self.notify();
                }
                break;
            }
        }
        done
    }

    /// Passes the short bytes of each available cell to `take`, without a copy. Cells accepted by
    /// `take` (true) count as received. It ends at the first rejected cell, and at the cell at
    /// which the writer has to be notified.
    #[inline(always)]
    pub fn recv_inline(&self, mut take: impl FnMut(InlineBytes<'_>) -> bool) -> InlineRecv {
        let Some(mut number) = self.reader.next_cell() else { return InlineRecv::Else };
        let words = self.inbound();
        let mut result = InlineRecv::Else;
        loop {
            let cell = words.cell(number);
            let len = match cell.look_short(number) {
                Some(0) => return result,
                Some(len) => len as usize,
                None if result == InlineRecv::Took => return result,
                None => {
                    self.found_none(words);
                    return InlineRecv::None;
                }
            };
            let took = cell.body.with(|body| {
                // SAFETY: a cell has room for more than four words, behind a word that is aligned, and for
                // as many bytes as `look_short` says.
                take(unsafe { InlineBytes::new(body, len) })
            });
            if !took {
                return result;
            }
            result = InlineRecv::Took;
            number = number.wrapping_add(1);
            if self.reader.took_short(number) {
                if self.reader.tell(words) {
                    self.notify();
                }
                return result;
            }
        }
    }

    /// Passes unread cells to `take`, with their length, until it rejects one.
    #[inline(always)]
    fn take_cells(&self, mut take: impl FnMut(&RingControl, usize) -> bool) -> InlineRecv {
        let words = self.inbound();
        let mut result = InlineRecv::Else;
        // The writer may go on for ever.
        for _ in 0..CELLS {
            // One that was not wanted before may be by now.
            if self.reader.look(words) != Ok(true) || self.reader.done() > 0 {
                break;
            }
            let len = self.reader.left();
            if !take(words, len as usize) {
                break;
            }
            result = InlineRecv::Took;
            if self.reader.took(words, len) {
                self.notify();
            }
        }
        result
    }

    /// [`recv_inline`](Self::take_short), also for cells referring to more bytes.
    #[inline(never)]
    pub fn recv_whole_message(
        &self,
        mut take: impl FnMut([u64; 4], UntrustedBytes<'_>) -> bool,
    ) -> InlineRecv {
        // SAFETY: the bytes, and four words, are readable at the call. The words are read once, so
        // later writes of the other process do not invalidate the checks.
        let mut take = |bytes: *const u8, len| unsafe {
            let first = bytes.cast::<[u64; 4]>().read_unaligned();
            compiler_fence(Ordering::SeqCst);
            take(first, UntrustedBytes::new(bytes, len))
        };
        self.take_cells(|words, len| match self.reader.kind() {
            CellKind::Inline => {
                words.cell(self.reader.this_cell()).body.with(|body| take(body, len))
            }
            CellKind::Bytes => match self.position() {
                // SAFETY: it is in the memory beside the cells.
                Ok(at) if self.size - at >= size_of::<[u64; 4]>() => unsafe {
                    take(self.inbound_bytes.as_ptr().cast_const().add(at), len)
                },
                _ => false,
            },
            CellKind::Exposed => false,
        })
    }

    /// Nothing is in the ring.
    #[inline(always)]
    fn found_none(&self, words: &RingControl) {
        self.look_for_barriers();
        // The second line of a message comes at the same time as the first, then.
        let cell = words.cell(self.reader.this_cell());
        cell.body.with(|body| prefetch(body.wrapping_add(FIRST_LINE)));
        self.waited.set(true);
        if self.reader.found_nothing(words) {
            self.notify();
        }
    }

    /// Handles bytes other than short ones for [`ShmChannel::recv`].
    #[inline(never)]
    fn recv_in_parts(&self, buf: &mut [u8]) -> Result<usize> {
        let (base, total) = (buf.as_mut_ptr(), buf.len());
        self.fill(total, |from, len| std::iter::once((base.wrapping_add(from), len)))
    }

    /// [`ShmChannel::recv`] to the room of a list, in its order.
    pub fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        let list = &*list;
        self.fill(list.len(), |from, len| list.parts(from, len))
    }

    /// Fills a buffer of this many bytes; `parts` returns the location of a byte range.
    fn fill<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        total: usize,
        parts: impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        let (mut done, mut copied) = (0, false);
        while done < total {
            match self.fill_some(total - done, copied, done, &parts) {
                Ok(Some(n)) => {
                    done += n;
                    copied |= self.piece.get().is_none() && self.reader.kind() != CellKind::Exposed;
                }
                Ok(None) => break,
                Err(error) if done == 0 => return Err(error),
                // Received bytes are returned first; the error occurs again.
                Err(_) => break,
            }
        }
        if done > 0 || total == 0 { Ok(done) } else { Err(Error::AGAIN) }
    }

    /// Fills the buffer from the content of the next cell and returns the number of bytes. Returns
    /// none if nothing is there, or if an exposed buffer follows already copied bytes.
    fn fill_some<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        left: usize,
        copied: bool,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<Option<usize>> {
        let words = self.inbound();
        if !self.reader.look(words)? {
            if self.reader.found_nothing(words) {
                self.notify();
            }
            return Ok(None);
        }
        let n = left.min(CHUNK).min(self.reader.left() as usize);
        match self.reader.kind() {
            CellKind::Exposed if copied => return Ok(None),
            CellKind::Exposed => return self.fetch(left, done, parts).map(Some),
            CellKind::Inline => words.cell(self.reader.this_cell()).body.with(|body| {
                let mut at = self.reader.done() as usize;
                for (to, len) in parts(done, n) {
                    // SAFETY: what was read and the `n` bytes that the parts add up to are no more than a cell
                    // has. The caller's room is writable, and no memory of a segment.
                    unsafe { body.add(at).copy_to_nonoverlapping(to, len) };
                    at += len;
                }
            }),
            CellKind::Bytes => {
                let mut at = self.position()? + self.reader.done() as usize;
                for (to, len) in parts(done, n) {
                    // SAFETY: what was read and the `n` bytes that the parts add up to are in the memory
                    // beside the cells, as `position` has found. The caller's room is writable, and no memory of
                    // a segment.
                    unsafe { self.inbound_bytes.add(at).as_ptr().copy_to_nonoverlapping(to, len) };
                    at += len;
                }
            }
        }
        if self.reader.took(words, n as u32) {
            self.notify();
        }
        Ok(Some(n))
    }

    /// Reads from the next exposed buffer.
    #[cold]
    fn fetch<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        left: usize,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        // A peer must not expose buffers to a reader unable to read them.
        let memory = self.memory.get().ok_or(Error::PROTO)?;
        let cell = self.inbound().cell(self.reader.this_cell());
        let word = |at| exposed_word(cell, at).load(Ordering::Acquire);
        let piece = self.piece.get().unwrap_or_else(|| PartialGet { len: word(1), done: 0 });
        if piece.len == 0 || piece.len > i64::MAX as u64 {
            return Err(Error::PROTO);
        }
        let rest = usize::try_from(piece.len - piece.done).unwrap_or(usize::MAX);
        let n = left.min(MAX_FETCH).min(rest);
        let (mut addr, mut moves) = (word(0), 0);
        let read = loop {
            if addr.checked_add(piece.len).is_none() || moves > MOST_MOVES {
                return Err(Error::PROTO);
            }
            if self.unreadable.get() {
                break Err(Error::PERM);
            }
            // SAFETY: the parts are of the room that the caller gave.
            let read = unsafe { memory.read(parts(done, n), addr + piece.done) };
            if self.inbound().is_withdrawn() {
                return Err(Error::CONNRESET);
            }
            // The bytes may be other data if the buffer has moved meanwhile.
            match word(0) {
                same if same == addr => break read,
                other => (addr, moves) = (other, moves + 1),
            }
        };
        let n = match read {
            Ok(n) => n,
            // The memory is not there, or the process is gone.
            Err(error @ (Error::PROTO | Error::CONNRESET)) => return Err(error),
            Err(error) if !self.inbound().answers() => return Err(error),
            Err(_) => {
                self.stop_reading();
                self.take_copy(piece.done, n, done, parts)?
            }
        };
        let piece = PartialGet { done: piece.done + n as u64, ..piece };
        if piece.done < piece.len {
            self.piece.set(Some(piece));
        } else {
            self.piece.set(None);
            self.reader.took_piece(self.inbound());
            self.notify();
        }
        Ok(n)
    }

    /// Stops reading the peer's memory, as if the kernel had revoked the permission. The peer
    /// copies the buffers exposed already.
    #[doc(hidden)]
    pub fn stop_reading(&self) {
        self.unreadable.set(true);
        self.inbound().set_cannot_fetch();
    }

    /// Takes up to `n` bytes of an exposed buffer, copied by the peer at this end's request, and
    /// returns their number. Fails with -FI_EAGAIN if they are not available yet. `parts` returns
    /// the destination, from byte `done` on.
    #[cold]
    fn take_copy<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        from: u64,
        n: usize,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        let words = self.inbound();
        let request = self.request.get().unwrap_or_else(|| {
            let piece = self.reader.fetched().wrapping_add(1);
            let request = words.request_copy(piece, from, self.last_request.get());
            self.request.set(Some(request));
            self.last_request.set(Some(request));
            self.notify();
            request
        });
        for _ in 0..COPY_LOOKS {
            if words.is_withdrawn() {
                return Err(Error::CONNRESET);
            }
            if words.is_answered(request) {
                let n = n.min(COPY_BUF);
                let mut copy = self.segment.inbound_copies().as_ptr().cast_const();
                for (to, len) in parts(done, n) {
                    // SAFETY: the memory has so many bytes, which the parts add up to. The caller's room is
                    // writable, and no memory of a segment.
                    unsafe {
                        copy.copy_to_nonoverlapping(to, len);
                        copy = copy.add(len);
                    }
                }
                self.request.set(None);
                return Ok(n);
            }
            std::hint::spin_loop();
        }
        Err(Error::AGAIN)
    }

    /// Returns true if there is something to receive: bytes, an exposed buffer, or an error
    /// reported by [`ShmChannel::recv`].
    #[inline]
    pub fn has_data(&self) -> bool {
        if let Some(before) = self.cooled.take() {
            barriers::pass_one_after(before, self.barriers.get());
        }
        self.look_for_barriers();
        let words = self.inbound();
        if let Some(request) = self.request.get() {
            return words.is_answered(request) || words.is_withdrawn();
        }
        !self.reader.is_empty(words)
    }

    /// Returns true if a send is worthwhile: the last one was not cut short, or much space is free
    /// since.
    #[inline]
    pub fn has_space(&self) -> bool {
        self.writer.has_space(self.out()) != Ok(false)
    }

    /// Announces the switch to the ring, after `bytes` bytes sent over the previous link in all.
    pub fn switch_at(&self, bytes: u64) {
        self.out().switch_at(bytes);
        self.notify();
    }

    /// Returns the number of bytes on the previous link after which the peer's stream continues in
    /// the ring, once announced.
    pub fn peer_switched_at(&self) -> Option<u64> {
        self.inbound().switched_at()
    }

    /// Announces polling of the pipe in each progress iteration: for data
    /// ([`ShmChannel::has_data`]), for completed reads ([`ShmChannel::zcopy_completed`]), and for
    /// space, if awaited ([`ShmChannel::has_space`]). Without polling, the initial state, the peer
    /// signals the doorbell for each ([`ShmChannel::attach_peer`]).
    ///
    /// After disabling it the caller must poll the pipe once more, [`ShmChannel::has_data`] first,
    /// because earlier data is not signalled. This costs a system call interrupting the running
    /// threads of all processes with pipes. There is one for all pipes if polling is disabled for
    /// all before the first poll.
    pub fn set_polled(&self, polled: bool) {
        self.look_for_barriers();
        self.polled.set(polled);
        self.inbound().set_polled(polled, self.barriers.get());
        self.cooled.set((!polled).then(barriers::started));
    }

    /// Sets the doorbell of the peer, and the peer's number of this connection.
    pub fn attach_peer(&self, doorbell: Arc<PeerDoorbell>, index: u32) {
        // The first one stays.
        let _ = self.doorbell.set((doorbell, index));
        // Earlier reads and writes were not signalled to any engine.
        self.ring();
    }

    /// Lets the other end lend memory to this one.
    pub fn set_peer_memory(&self, memory: PeerMemory) {
        if self.memory.set(memory).is_ok() {
            self.inbound().set_can_fetch();
        }
    }

    /// Returns true if this end may read the peer's memory.
    pub fn can_read(&self) -> bool {
        self.memory.get().is_some()
    }

    /// Returns true if the peer's process has ended: its pid does not exist, or its memory lacks
    /// the identifying word.
    pub fn peer_is_gone(&self) -> bool {
        let is_gone = |memory: &PeerMemory| {
            // SAFETY: there is no part.
            unsafe { memory.read(std::iter::empty(), 0) }.err() == Some(Error::CONNRESET)
        };
        self.memory.get().is_some_and(is_gone)
            || self.doorbell.get().is_some_and(|(doorbell, _)| doorbell.is_gone())
    }

    /// Returns true if the peer has announced reading this process's memory.
    #[inline]
    pub fn can_expose(&self) -> bool {
        self.out().can_fetch()
    }

    /// Revokes exposed buffers, as the end of a pipe does. The peer does not take bytes read
    /// afterwards for stream data; for the peer the pipe has ended.
    pub fn withdraw(&self) {
        self.out().withdraw();
    }
}

/// Writes the words followed by [some](is_some) bytes to a cell's body, the second cache line
/// first. While the processor waits for this line, a reader polling the first line would take the
/// first one away.
///
/// # Safety
/// The cell has space for them; the bytes are readable, and not in the cell.
#[inline(always)]
unsafe fn put_joined(head: JoinedWords, body: *const u8, to: *mut u8, n: usize) {
    // SAFETY: by this function's contract; each piece is within the first `n` bytes.
    unsafe {
        let at = to.add(head.len());
        let piece = |from: usize, len| at.add(from).copy_from_nonoverlapping(body.add(from), len);
        if n > 32 {
            piece(n - 16, 16);
            piece(n - 32, 16);
            compiler_fence(Ordering::Release);
            head.put(to);
            piece(16, 16);
            piece(0, 16);
        } else if n >= 16 {
            piece(n - 16, 16);
            compiler_fence(Ordering::Release);
            head.put(to);
            piece(0, 16);
        } else {
            head.put(to);
            piece(0, 8);
            piece(n - 8, 8);
        }
    }
}

/// Returns a word of a cell's description of an exposed buffer ([`ZcopyDesc`]).
fn exposed_word(cell: &RingCell, at: usize) -> &AtomicU64 {
    // SAFETY: a cell has room for that behind a word that is aligned, and lives as long as `cell`; each
    // process writes there with care for the other, or else harms what it sends itself.
    cell.body.with(|body| unsafe { AtomicU64::from_ptr(body.cast_mut().cast::<u64>().add(at)) })
}

/// Prefetches the next data during the check for it.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read but for the cache.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Drop for ShmChannel {
    fn drop(&mut self) {
        // A child's copy has no mapping.
        if self.is_exposing() && self.segment.is_here() {
            self.withdraw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::{MessageBytes, RecvBuf, SendBuf};
    use crate::cma::MemoryToken;
    use crate::doorbell::Doorbell;
    use crate::sys::{Epoll, Interest};
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Duration;

    fn pair(ring: usize) -> (ShmChannel, ShmChannel) {
        let (a, fd) = ShmChannel::create(ring).unwrap();
        let b = ShmChannel::open(fd.as_fd()).unwrap();
        (a, b)
    }

    /// Lets both ends read this process's memory; false if the system does not.
    fn with_memory(ends: [&ShmChannel; 2], token: &MemoryToken) -> bool {
        ends.iter().all(|end| {
            let own = std::process::id() as i32;
            let memory = PeerMemory::open(own, token.address(), token.value());
            memory.map(|memory| end.set_peer_memory(memory)).is_ok()
        })
    }

    fn peer_of(doorbell: &Doorbell) -> Arc<PeerDoorbell> {
        Arc::new(PeerDoorbell::open(doorbell.memory(), doorbell.wakeup_for_peer(), 0).unwrap())
    }

    fn rung(doorbell: &Doorbell) -> Vec<u32> {
        let mut out = Vec::new();
        doorbell.ready(&mut out);
        out
    }

    /// Reproducible pseudorandom numbers.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % end
        }
    }

    #[test]
    fn bytes_go_both_ways_and_come_in_order() {
        let (a, b) = pair(4096);
        let mut buf = [0; 8];
        assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
        assert_eq!((a.send(b""), b.recv(&mut [])), (Ok(0), Ok(0)));
        assert_eq!(a.send(b"hello"), Ok(5));
        assert_eq!(b.send(b"world!"), Ok(6));
        assert!(a.has_data() && b.has_data());
        assert_eq!((b.recv(&mut buf), &buf), (Ok(5), b"hello\0\0\0"));
        assert_eq!((a.recv(&mut buf[..4]), &buf[..4]), (Ok(4), &b"worl"[..]));
        assert!(a.has_data());
        assert_eq!((a.recv(&mut buf), &buf[..2]), (Ok(2), &b"d!"[..]));
        assert!(!a.has_data() && !b.has_data());
    }

    #[test]
    fn inline_messages_of_any_length_are_read_in_place() {
        let (a, b) = pair(4096);
        let source: Vec<u8> = (0..INLINE as u8).collect();
        let mut buf = [0; INLINE];
        assert_eq!(b.recv_inline(|_| true), InlineRecv::None);
        for n in 0..=INLINE {
            for more in [[None; 2], [None, Some(7)], [Some(7), None], [Some(7), Some(8)]] {
                // SAFETY: the bytes outlive the buffer.
                let body = unsafe { SendBuf::new(source.as_ptr().cast(), n) }.unwrap();
                // The second line of a cell goes first after a look in vain.
                for looks in [false, true] {
                    let _ = looks.then(|| a.recv_inline(|_| true));
                    assert_eq!(a.writer.has_cell(a.out()), Ok(true));
                    let behind: Vec<u64> = more.into_iter().flatten().collect();
                    let head = 16 + 8 * behind.len();
                    let sent = a.send_header_and_body(
                        JoinedWords::new([5, 6], more),
                        body.in_one_piece().unwrap(),
                    );
                    assert!(sent);
                    if head + n > INLINE {
                        assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
                        assert_eq!(b.recv(&mut [0; 2 * INLINE]), Ok(head + n));
                        continue;
                    }
                    assert_eq!(b.recv_inline(|_| false), InlineRecv::Else, "it stays");
                    let taken = b.recv_inline(|short| {
                        let (words, bytes): ([_; 4], _) = (short.words(), short.all());
                        assert_eq!((words[0], words[1], bytes.len()), (5, 6, head + n));
                        assert_eq!(words[2..][..behind.len()], behind);
                        buf.fill(255);
                        // SAFETY: the room outlives the buffer.
                        let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
                        bytes.behind(head).copy_into(&to);
                        assert_eq!((bytes.behind(head).count(), to.len()), (n, n));
                        true
                    });
                    assert_eq!(taken, InlineRecv::Took);
                    assert_eq!(&buf[..n], &source[..n]);
                    assert!(buf[n..].iter().all(|byte| *byte == 255));
                    assert_eq!(b.recv_inline(|_| true), InlineRecv::None);
                }
            }
        }
        // Long messages, and partially received ones, are received as before.
        assert_eq!(a.send(&[1; INLINE + 1]), Ok(INLINE + 1));
        assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
        assert_eq!((b.recv(&mut [0; 500]), a.send(b"two")), (Ok(INLINE + 1), Ok(3)));
        assert_eq!(b.recv(&mut [0; 2]), Ok(2));
        assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
        assert_eq!(b.recv(&mut [0; 2]), Ok(1));
    }

    #[test]
    fn long_messages_with_header_arrive_whole_at_any_ring_position() {
        let (a, b) = pair(4096);
        let source: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
        let (mut buf, mut got, mut missed) = (vec![0; 5000], Vec::new(), 0);
        let mut numbers = Numbers(7);
        for round in 0..4000 {
            let n = INLINE + numbers.below(if round % 2 == 0 { 900 } else { 2900 });
            let third = (numbers.below(2) == 0).then_some(round);
            let data = third.filter(|_| numbers.below(2) == 0);
            let behind: Vec<u64> = [third, data].into_iter().flatten().collect();
            let (head, skip) = (16 + 8 * behind.len(), numbers.below(251));
            // SAFETY: the bytes outlive the buffer.
            let body = unsafe { SendBuf::new(source[skip..].as_ptr().cast(), n) }.unwrap();
            // A reader that is behind has the writer go on in other places.
            let before = vec![1; if n < 900 { numbers.below(4) * 300 } else { 0 }];
            assert_eq!(a.send(&before), Ok(before.len()));
            let joined = a.send_header_and_body(
                JoinedWords::new([round, 6], [third, data]),
                body.in_one_piece().unwrap(),
            );
            assert_eq!(b.recv(&mut buf[..before.len()]), Ok(before.len()));
            if !joined {
                // The reader has not told of all that it has read.
                assert_eq!((a.send(b"."), b.recv(&mut buf)), (Ok(1), Ok(1)));
                missed += 1;
                continue;
            }
            assert_eq!(b.recv_whole_message(|_, _| false), InlineRecv::Else, "it stays");
            got.clear();
            let mut take = |words: [u64; 4], bytes: usize| {
                assert_eq!((words[0], words[1], bytes), (round, 6, head + n));
                assert_eq!(words[2..][..behind.len()], behind);
                got.push(bytes);
                true
            };
            // SAFETY: the room outlives the buffer.
            let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
            let long = b.recv_whole_message(|words, bytes| {
                bytes.behind(head).copy_into(&to);
                take(words, bytes.len())
            });
            assert_eq!(long, InlineRecv::Took);
            assert_eq!(got, [head + n]);
            assert!(buf[..n] == source[skip..skip + n], "round {round}");
        }
        assert!(missed < 400, "{missed}");
        // Without room nothing is sent.
        let (a, b) = pair(4096);
        // SAFETY: the bytes outlive the buffer.
        let body = unsafe { SendBuf::new(source.as_ptr().cast(), 3000) }.unwrap();
        let body = body.in_one_piece().unwrap();
        assert!(a.send_header_and_body(JoinedWords::new([1, 2], [None; 2]), body));
        assert!(!a.send_header_and_body(JoinedWords::new([1, 2], [None; 2]), body));
        assert_eq!(b.recv(&mut [0; 8000]), Ok(3016));
        // Nor what is longer than what is shown at a time.
        let (a, _b) = pair(1 << 16);
        let long = vec![1; CHUNK];
        // SAFETY: the bytes outlive the buffer.
        let body = unsafe { SendBuf::new(long.as_ptr().cast(), long.len()) }.unwrap();
        assert!(!a.send_header_and_body(
            JoinedWords::new([1, 2], [None; 2]),
            body.in_one_piece().unwrap()
        ));
    }

    #[test]
    fn whole_messages_are_read_in_place() {
        let (a, b) = pair(4096);
        let source: Vec<u8> = (0..4000u32).map(|n| n as u8).collect();
        let mut buf = vec![0; 4000];
        assert_eq!(b.recv_whole_message(|_, _| true), InlineRecv::Else, "nothing has come");
        for n in [1, 8, 30, INLINE, INLINE + 1, 700, 1111, 3000, 3072, 2999, 1024] {
            assert_eq!((a.send(&source[..n]), a.send(b"next")), (Ok(n), Ok(4)));
            // It stays when it is not wanted, by the short way as well, and may be wanted later.
            assert_eq!(b.recv_whole_message(|_, _| false), InlineRecv::Else);
            assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
            let (mut lens, skip) = (Vec::new(), n / 3);
            let taken = b.recv_whole_message(|words, bytes| {
                lens.push(bytes.len());
                if lens.len() == 1 {
                    let first = words.map(u64::to_ne_bytes).concat();
                    assert_eq!(first[..n.min(32)], source[..n.min(32)]);
                    // SAFETY: the room outlives the buffer.
                    let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
                    bytes.behind(skip).copy_into(&to);
                    assert_eq!(bytes.behind(skip).count(), n - skip);
                }
                true
            });
            assert_eq!((taken, lens), (InlineRecv::Took, vec![n, 4]));
            assert_eq!(buf[..n - skip], source[skip..n]);
            assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
        }
        // Partially received messages are received as before.
        assert_eq!((a.send(&source[..500]), b.recv(&mut buf[..9])), (Ok(500), Ok(9)));
        assert_eq!(b.recv_whole_message(|_, _| true), InlineRecv::Else);
        assert_eq!(b.recv(&mut buf), Ok(491));
    }

    #[test]
    fn full_ring_takes_more_once_enough_space_is_free() {
        let (a, b) = pair(4096);
        let mut sent = 0;
        while let Ok(n) = a.send(&[7; 1000]) {
            sent += n;
        }
        assert!((4096..4096 + 8192).contains(&sent), "{sent}");
        assert!(!a.has_space());
        let mut all = vec![0; sent];
        assert_eq!(b.recv(&mut all[..sent / 8]), Ok(sent / 8));
        assert!(!a.has_space());
        let mut done = sent / 8;
        while let Ok(n) = b.recv(&mut all[done..]) {
            done += n;
            if done == sent {
                break;
            }
        }
        assert!(all.iter().all(|byte| *byte == 7));
        assert_eq!((b.recv(&mut all), done), (Err(Error::AGAIN), sent));
        assert!(a.has_space());
        assert_eq!(a.send(&[1; 1000]), Ok(1000));
    }

    #[test]
    fn switch_position_is_visible_once_published() {
        let (a, b) = pair(4096);
        assert_eq!(b.peer_switched_at(), None);
        a.switch_at(0);
        assert_eq!((b.peer_switched_at(), a.peer_switched_at()), (Some(0), None));
        b.switch_at(u64::MAX - 1);
        assert_eq!(a.peer_switched_at(), Some(u64::MAX - 1));
    }

    #[test]
    fn doorbell_rings_for_a_reader_not_polling() {
        let (a, b) = pair(4096);
        let doorbell = Doorbell::new().unwrap();
        a.attach_peer(peer_of(&doorbell), 1029);
        assert_eq!(rung(&doorbell), [5]);
        a.send(b"x").unwrap();
        assert!(doorbell.is_ready());
        assert_eq!(rung(&doorbell), [5]);
        b.set_polled(true);
        a.send(b"x").unwrap();
        assert_eq!(rung(&doorbell), []);
        b.set_polled(false);
        assert!(b.has_data());
        let epoll = Epoll::new().unwrap();
        epoll.add(doorbell.wakeup_fd(), 0, Interest::READ).unwrap();
        let is_wakeup = || epoll.wait(Some(Duration::ZERO), |_| ()).unwrap() == 1;
        assert!(doorbell.fall_asleep());
        assert!(!is_wakeup());
        a.send(b"x").unwrap();
        assert!(is_wakeup());
        assert!(!doorbell.fall_asleep());
        doorbell.wake();
        assert_eq!(rung(&doorbell), [5]);
        silence(&doorbell);
        a.send(b"x").unwrap();
        assert!(!is_wakeup(), "nobody sleeps");
    }

    #[test]
    fn doorbell_rings_for_a_blocked_writer_once_much_space_is_free() {
        let (a, b) = pair(4096);
        let doorbell = Doorbell::new().unwrap();
        b.attach_peer(peer_of(&doorbell), 3);
        rung(&doorbell);
        let mut buf = [0; 16384];
        a.send(&[1; 100]).unwrap();
        b.recv(&mut buf).unwrap();
        assert_eq!(rung(&doorbell), [], "nobody waits");
        let mut sent = 0;
        while let Ok(n) = a.send(&[1; 1000]) {
            sent += n;
        }
        b.recv(&mut buf[..sent / 8]).unwrap();
        assert_eq!(rung(&doorbell), [], "too little room");
        let mut left = sent - sent / 8;
        while left > 0 {
            left -= b.recv(&mut buf).unwrap();
        }
        assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
        assert_eq!(rung(&doorbell), [3]);
        assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
        assert_eq!(rung(&doorbell), [], "it was told");
    }

    #[test]
    fn exposed_buffer_arrives_in_order_and_is_returned_after_read() {
        let (a, b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        assert!(!a.can_expose());
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        assert!(a.can_expose());
        let (large, other) = (vec![1; 100_000], vec![2; 50_000]);
        let doorbell = Doorbell::new().unwrap();
        b.attach_peer(peer_of(&doorbell), 3);
        rung(&doorbell);
        a.send(b"head").unwrap();
        let mut list = GatherList::default();
        for part in [&large[..], b"small", &other] {
            assert!(list.push_bytes(part));
        }
        assert_eq!(a.send_list(&list, CopyMode::ZeroCopy), Ok(150_005));
        a.send(b"tail").unwrap();
        assert!(a.is_exposing());
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        // Data behind the header stays in place until a buffer is provided for it.
        let mut buf = vec![9; 200_000];
        assert_eq!((b.recv(&mut buf), &buf[..4]), (Ok(4), &b"head"[..]));
        let (first, second) = buf.split_at_mut(30_000);
        let mut segments = ScatterList::default();
        assert!(segments.push_buf(first) && segments.push_buf(second));
        assert_eq!(b.recv_list(&mut segments), Ok(100_005));
        assert!(buf[..100_000] == large && &buf[100_000..100_005] == b"small");
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        assert_eq!(rung(&doorbell), [3]);
        assert_eq!(b.recv(&mut buf[..20_000]), Ok(20_000));
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        assert_eq!(b.recv(&mut buf[20_000..50_100]), Ok(30_004));
        assert!(buf[..50_000] == other && &buf[50_000..50_004] == b"tail");
        assert_eq!(rung(&doorbell), [3]);
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
        assert!(!a.is_exposing());
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
    }

    #[test]
    fn sends_without_exposed_buffers_complete_with_earlier_sends() {
        let (a, b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        let small = |pipe: &ShmChannel| {
            let mut list = GatherList::default();
            list.push_bytes(b"small");
            pipe.send_list(&list, CopyMode::ZeroCopy)
        };
        // The other end cannot fetch yet.
        assert_eq!((small(&a), small(&a)), (Ok(5), Ok(5)));
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 1 }));
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        let large = vec![1; 8192];
        let mut list = GatherList::default();
        list.push_bytes(&large);
        assert_eq!(a.send_list(&list, CopyMode::ZeroCopy), Ok(8192));
        assert_eq!((small(&a), small(&a)), (Ok(5), Ok(5)));
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        let mut buf = [0; 10_000];
        while b.recv(&mut buf).is_ok() {}
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 2, high: 4 }));
    }

    #[test]
    fn unfetched_exposed_buffer_is_copied_before_it_changes() {
        let (a, b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        const LEN: usize = 50_000;
        let mut memory: Vec<_> = (0..4).map(|n| vec![n as u8 + 1; LEN]).collect();
        for (key, part) in (0..).zip(&memory) {
            let mut list = GatherList::default();
            list.push_bytes(part);
            assert_eq!(a.send_list(&list, CopyMode::OfRegion(key)), Ok(LEN));
        }
        // The first was fetched, the second in part, and the fourth is not asked for.
        let mut buf = vec![0; LEN];
        assert_eq!(b.recv(&mut buf), Ok(LEN));
        assert_eq!(b.recv(&mut buf[..20_000]), Ok(20_000));
        assert_eq!(a.copy_exposed(0, LEN), Ok(0));
        assert_eq!(a.copy_exposed(1, LEN - 1), Err(Error::NOBUFS));
        for n in [1, 2] {
            assert_eq!(a.copy_exposed(n as u64, LEN), Ok(LEN));
            assert_eq!(a.copy_exposed(n as u64, LEN), Ok(0), "once");
            memory[n].fill(99);
        }
        assert_eq!((b.recv(&mut buf[20_000..]), &buf[..]), (Ok(30_000), &[2; LEN][..]));
        assert_eq!((b.recv(&mut buf), &buf[..]), (Ok(LEN), &[3; LEN][..]));
        assert_eq!((b.recv(&mut buf), &buf[..]), (Ok(LEN), &[4; LEN][..]));
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 1, high: 3 }));
        assert!(a.exposed.borrow().is_empty());
    }

    #[test]
    fn exposed_buffer_copied_during_a_fetch_arrives_unchanged() {
        let (a, mut b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        const LEN: usize = 1 << 20;
        let mut memory = vec![0u8; LEN];
        for round in 0..200 {
            memory.fill(round as u8);
            let mut list = GatherList::default();
            list.push_bytes(&memory);
            assert_eq!(a.send_list(&list, CopyMode::OfRegion(7)), Ok(LEN));
            thread::scope(|scope| {
                let b = &mut b;
                scope.spawn(move || {
                    let mut buf = vec![255; LEN];
                    assert_eq!(b.recv(&mut buf), Ok(LEN));
                    assert!(buf.iter().all(|byte| *byte == round as u8), "round {round}");
                });
                // From before the fetch to behind it.
                let start = std::time::Instant::now();
                while start.elapsed().as_micros() < round * 2 {}
                assert!(a.copy_exposed(7, LEN).is_ok());
                memory.fill(round as u8 ^ 85);
            });
            assert!(a.zcopy_completed().is_ok());
        }
    }

    /// Returns a pair of ends, each able to read the other's memory. Returns `None`, with a skip
    /// note, if the kernel does not permit it.
    #[track_caller]
    fn exposing_pair() -> Option<(ShmChannel, ShmChannel, MemoryToken)> {
        let ((a, b), token) = (pair(4096), MemoryToken::new().unwrap());
        if !with_memory([&a, &b], &token) {
            crate::testing::skip("no process_vm_readv(2)");
            return None;
        }
        Some((a, b, token))
    }

    fn expose(pipe: &ShmChannel, bytes: &[u8], way: CopyMode) {
        let mut list = GatherList::default();
        assert!(list.push_bytes(bytes));
        assert_eq!(pipe.send_list(&list, way), Ok(bytes.len()));
    }

    /// Receives `n` bytes, arriving as the peer copies them.
    fn recv_copied(a: &ShmChannel, b: &ShmChannel, n: usize) -> Vec<u8> {
        let (mut buf, mut done) = (vec![0; n], 0);
        while done < n {
            match b.recv(&mut buf[done..]) {
                Ok(n) => done += n,
                Err(error) => {
                    assert_eq!((error, b.has_data()), (Error::AGAIN, false));
                    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
                    assert!(b.has_data(), "after {done} bytes");
                }
            }
        }
        buf
    }

    #[test]
    fn sender_copies_exposed_buffer_if_the_peer_lost_read_access() {
        let Some((a, b, _token)) = exposing_pair() else { return };
        let large: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let mut of_region = vec![7; 50_000];
        expose(&a, &large, CopyMode::ZeroCopy);
        a.send(b"between").unwrap();
        expose(&a, &of_region, CopyMode::OfRegion(3));
        assert_eq!(recv_copied(&a, &b, 30_000), large[..30_000]);
        b.stop_reading();
        assert!(!a.can_expose() && b.can_expose());
        assert_eq!(recv_copied(&a, &b, 70_000), large[30_000..]);
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
        assert_eq!(recv_copied(&a, &b, 7), b"between");
        assert_eq!(recv_copied(&a, &b, 20_001), [7; 20_001]);
        // The region may be closed meanwhile.
        assert_eq!(a.copy_exposed(3, usize::MAX), Ok(50_000));
        of_region.fill(8);
        assert_eq!(recv_copied(&a, &b, 29_999), [7; 29_999]);
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 1, high: 1 }));
        // Data sent from now on is copied immediately.
        expose(&a, &large[..3000], CopyMode::ZeroCopy);
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 2, high: 2 }));
        assert_eq!(b.recv(&mut of_region), Ok(3000));
        assert_eq!(b.recv(&mut of_region), Err(Error::AGAIN));
    }

    #[test]
    fn requested_copy_fails_after_the_buffer_is_revoked() {
        let Some((a, b, _token)) = exposing_pair() else { return };
        let large = vec![1; 8192];
        expose(&a, &large, CopyMode::ZeroCopy);
        b.stop_reading();
        assert_eq!((b.recv(&mut [0; 100]), b.has_data()), (Err(Error::AGAIN), false));
        drop(a);
        assert_eq!((b.recv(&mut [0; 100]), b.has_data()), (Err(Error::CONNRESET), true));
    }

    #[test]
    fn ended_peer_process_is_detected() {
        let (a, _b) = pair(4096);
        let doorbell = Doorbell::new().unwrap();
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: nothing is left to do.
            unsafe { libc::_exit(0) };
        }
        let peer = |process| {
            Arc::new(
                PeerDoorbell::open(doorbell.memory(), doorbell.wakeup_for_peer(), process).unwrap(),
            )
        };
        let own = peer(std::process::id() as i32);
        a.attach_peer(peer(child), 0);
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(a.peer_is_gone() && !own.is_gone() && !peer(0).is_gone());
        let Some((a, _b, _token)) = exposing_pair() else { return };
        assert!(!a.peer_is_gone());
    }

    #[test]
    fn reader_does_not_wait_for_a_writer_unable_to_copy() {
        let Some((a, b, _token)) = exposing_pair() else { return };
        expose(&a, &[1; 8192], CopyMode::ZeroCopy);
        a.out().set_answers_not();
        b.stop_reading();
        assert_eq!(b.recv(&mut [0; 100]), Err(Error::PERM));
    }

    #[test]
    fn only_exposed_unfetched_bytes_are_copied_on_request() {
        let Some((a, b, _token)) = exposing_pair() else { return };
        let (first, second) = (vec![1; 8192], vec![2; 8192]);
        expose(&a, &first, CopyMode::ZeroCopy);
        expose(&a, &second, CopyMode::ZeroCopy);
        let mut buf = vec![0; 8192];
        assert_eq!(b.recv(&mut buf), Ok(8192));
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
        let mut last = None;
        for (piece, from) in [(0, 0), (1, 0), (3, 0), (u32::MAX, 0), (2, 8192), (2, u64::MAX)] {
            let request = b.inbound().request_copy(piece, from, last);
            last = Some(request);
            assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
            assert!(!b.inbound().is_answered(request), "{piece} from {from} on");
        }
        let request = b.inbound().request_copy(2, 8191, last);
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        assert!(b.inbound().is_answered(request));
    }

    #[test]
    fn number_of_exposed_buffers_is_limited() {
        let (a, b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        let large = vec![1; MIN_EXPOSED];
        let expose = || {
            let mut list = GatherList::default();
            list.push_bytes(&large);
            a.send_list(&list, CopyMode::ZeroCopy)
        };
        let mut exposed = 0;
        while expose().is_ok() {
            exposed += 1;
            assert!(exposed < 1000);
        }
        assert!(!a.has_space());
        let mut buf = vec![0; MIN_EXPOSED];
        for _ in 0..exposed {
            assert_eq!(b.recv(&mut buf), Ok(MIN_EXPOSED));
        }
        assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
        assert!(a.has_space());
        assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: exposed - 1 }));
        assert_eq!(expose(), Ok(MIN_EXPOSED));
    }

    #[test]
    fn unmapped_exposed_memory_ends_the_channel() {
        let (a, b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        let expose = |at: usize, len| {
            let mut list = GatherList::default();
            assert!(list.push_raw(at as *mut u8, len));
            a.send_list(&list, CopyMode::ZeroCopy)
        };
        assert_eq!(expose(4096, 8192), Ok(8192));
        let mut buf = [0; 16384];
        assert_eq!(b.recv(&mut buf), Err(Error::PROTO));
        assert_eq!(b.recv(&mut buf), Err(Error::PROTO), "it does not get better");
        assert!(buf.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn revoked_exposed_buffer_is_not_delivered() {
        let (a, b) = pair(4096);
        let token = MemoryToken::new().unwrap();
        if !with_memory([&a, &b], &token) {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        let large = vec![1; 8192];
        let mut list = GatherList::default();
        list.push_bytes(&large);
        a.send(b"before").unwrap();
        a.send_list(&list, CopyMode::ZeroCopy).unwrap();
        drop(a);
        let mut buf = [0; 8192];
        assert_eq!(b.recv(&mut buf), Ok(6));
        assert_eq!(b.recv(&mut buf), Err(Error::CONNRESET));
    }

    #[test]
    fn another_process_of_the_same_number_is_not_read() {
        let token = MemoryToken::new().unwrap();
        let own = std::process::id() as i32;
        if PeerMemory::open(own, token.address(), token.value()).is_err() {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        let wrong = PeerMemory::open(own, token.address(), token.value() ^ 1);
        assert_eq!(wrong.unwrap_err(), Error::CONNRESET);
        assert_eq!(PeerMemory::open(0, token.address(), token.value()).unwrap_err(), Error::PERM);
        assert_eq!(PeerMemory::open(own, 4096, 1).unwrap_err(), Error::PROTO);
    }

    /// Clears the doorbell's eventfd; engines receive each signal only once.
    fn silence(doorbell: &Doorbell) {
        let mut times = 0_u64;
        // SAFETY: eight bytes are written to `times`, which outlives the call.
        unsafe { libc::read(doorbell.wakeup_fd(), (&raw mut times).cast(), 8) };
    }

    /// Emulates an engine: an end sleeping if it finds nothing to do.
    fn sleep_unless(doorbell: &Doorbell, pipe: &ShmChannel, look: impl Fn(&ShmChannel) -> bool) {
        pipe.set_polled(false);
        if doorbell.fall_asleep() && !pipe.has_data() && !look(pipe) {
            // A missing signal is a failure; the wait is limited.
            let mut polled =
                libc::pollfd { fd: doorbell.wakeup_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which outlives the call.
            assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 60_000) }, 1, "nobody rang");
        }
        doorbell.wake();
        silence(doorbell);
        rung(doorbell);
    }

    /// Sends random parts of `from` in random ways, and receives `all` in random parts; both ends
    /// do both.
    fn talk(
        pipe: &ShmChannel,
        doorbell: &Doorbell,
        (out, inbound): (u64, u64),
        total: usize,
        source: &[u8],
        sleeps: bool,
    ) {
        let (mut out, mut inbound, mut own) = (Numbers(out), Numbers(inbound), Numbers(out ^ 77));
        // Unsent and unreceived rests of the current part of the source.
        let (mut sending, mut receiving) = (&source[..0], &source[..0]);
        let (mut sent, mut received) = (0, 0);
        let mut buf = vec![0; 200_000];
        let next = |numbers: &mut Numbers| {
            let most = [40, 200, 9000, 100_000][numbers.below(4)];
            let (at, len) = (numbers.below(source.len() - most), 1 + numbers.below(most));
            &source[at..at + len]
        };
        if sleeps {
            pipe.set_polled(true);
        }
        while sent < total || received < total || pipe.is_exposing() {
            let mut idle = true;
            if sending.is_empty() && sent < total {
                let part = next(&mut out);
                sending = &part[..part.len().min(total - sent)];
            }
            let mut list = GatherList::default();
            let cut = own.below(sending.len() + 1);
            list.push_bytes(&sending[..cut]);
            list.push_bytes(&sending[cut..]);
            let result = match own.below(3) {
                _ if sending.is_empty() => Err(Error::AGAIN),
                0 => pipe.send(sending),
                1 => pipe.send_list(&list, CopyMode::Copied),
                _ => pipe.send_list(&list, CopyMode::ZeroCopy),
            };
            match result {
                Ok(n) => {
                    (sending, idle) = (&sending[n..], false);
                    sent += n;
                }
                Err(error) => assert_eq!(error, Error::AGAIN),
            }
            let n = 1 + own.below(buf.len());
            let (first, second) = buf[..n].split_at_mut(own.below(n + 1));
            let result = if own.below(2) == 0 {
                let mut list = ScatterList::default();
                list.push_buf(first);
                list.push_buf(second);
                pipe.recv_list(&mut list)
            } else {
                pipe.recv(&mut buf[..n])
            };
            match result {
                Ok(n) => {
                    idle = false;
                    received += n;
                    if received > total / 2 {
                        // The system does not let it from here on.
                        pipe.stop_reading();
                    }
                    let mut got = &buf[..n];
                    while !got.is_empty() {
                        if receiving.is_empty() {
                            receiving = next(&mut inbound);
                        }
                        let n = got.len().min(receiving.len());
                        assert!(got[..n] == receiving[..n], "other bytes after {received}");
                        (got, receiving) = (&got[n..], &receiving[n..]);
                    }
                }
                Err(error) => assert_eq!(error, Error::AGAIN),
            }
            match pipe.zcopy_completed() {
                Ok(_) => idle = false,
                Err(error) => assert_eq!(error, Error::AGAIN),
            }
            if idle && sleeps {
                let waits = sent < total || !sending.is_empty();
                sleep_unless(doorbell, pipe, |pipe| {
                    (waits && pipe.has_space())
                        || (pipe.is_exposing() && pipe.zcopy_completed().is_ok())
                });
                pipe.set_polled(true);
            } else if idle {
                thread::yield_now();
            }
        }
    }

    fn talks(ring: usize, total: usize, sleeps: bool) {
        let (a, b) = pair(ring);
        let token = MemoryToken::new().unwrap();
        with_memory([&a, &b], &token);
        let doorbells = [Doorbell::new().unwrap(), Doorbell::new().unwrap()];
        a.attach_peer(peer_of(&doorbells[1]), 1);
        b.attach_peer(peer_of(&doorbells[0]), 2);
        let mut numbers = Numbers(ring as u64);
        let source = (0..300_000).map(|_| numbers.below(256) as u8).collect::<Vec<_>>();
        thread::scope(|scope| {
            let ([own, other], source) = (&doorbells, &source);
            scope.spawn(move || talk(&a, own, (1, 2), total, source, sleeps));
            talk(&b, other, (2, 1), total, source, sleeps);
        });
    }

    #[test]
    fn byte_stream_arrives_intact_through_rings_of_any_size() {
        for ring in [4096, 16384, 65536] {
            talks(ring, 8 << 20, false);
        }
    }

    #[test]
    fn blocked_ends_wake_for_bytes_space_and_exposed_buffers() {
        for ring in [4096, 65536] {
            talks(ring, 4 << 20, true);
        }
    }

    /// Offsets of the words of the ring written by the creator of a segment, and of the other one.
    /// Within them: the reader's line and the cells.
    const RINGS: [u64; 2] = [128, 128 + CELLS_AT + 32 * 128];
    const TAKEN: u64 = 128;
    const FETCHED: u64 = 132;
    const CAN_FETCH: u64 = 260;
    const CELLS_AT: u64 = 384;

    /// Returns an end, and the memory of its pipe for a hostile writer.
    fn end_of_hostile(maker: bool) -> (ShmChannel, std::fs::File, [u64; 2]) {
        let (pipe, fd) = ShmChannel::create(4096).unwrap();
        let other = ShmChannel::open(fd.as_fd()).unwrap();
        let [out, inbound] = RINGS;
        let (end, at) = if maker { (pipe, [out, inbound]) } else { (other, [inbound, out]) };
        (end, fd.into(), at)
    }

    fn put_word(memory: &std::fs::File, at: u64, word: u64) {
        use std::os::unix::fs::FileExt;
        memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
    }

    #[test]
    fn invalid_reader_position_ends_the_channel() {
        for (claim, maker) in [2, 1 << 31, u64::from(u32::MAX)].into_iter().zip([true, false, true])
        {
            let (end, memory, [out, _]) = end_of_hostile(maker);
            assert_eq!(end.send(&[1; 1000]), Ok(1000));
            put_word(&memory, out + TAKEN, claim);
            assert_eq!(end.send(&[1; 4000]), Err(Error::PROTO), "{claim:x}");
            assert!(end.has_space(), "the error is told by a send");
        }
        // Fewer than before.
        let (end, memory, [out, _]) = end_of_hostile(true);
        assert_eq!(end.send(&[1; 4000]), Ok(4000));
        put_word(&memory, out + TAKEN, 2);
        assert_eq!(end.send(&[1; 4000]), Ok(4000));
        put_word(&memory, out + TAKEN, 1);
        assert_eq!(end.send(&[1; 4000]), Err(Error::PROTO));
        // Fetched what was not lent.
        let (end, memory, [out, _]) = end_of_hostile(true);
        let mut list = GatherList::default();
        list.push_bytes(b"some");
        end.send_list(&list, CopyMode::ZeroCopy).unwrap();
        assert!(end.zcopy_completed().is_ok());
        put_word(&memory, out + CAN_FETCH, 1);
        assert!(end.can_expose());
        let large = [0; 8192];
        let mut list = GatherList::default();
        list.push_bytes(&large);
        end.send_list(&list, CopyMode::ZeroCopy).unwrap();
        put_word(&memory, out + FETCHED, 2);
        assert_eq!(end.zcopy_completed(), Err(Error::PROTO));
    }

    #[test]
    fn invalid_cell_from_a_writer_ends_the_channel() {
        let cell = |kind: u64, len: u64| 1 << 32 | len << 2 | kind;
        let claims = [
            cell(3, 1),
            cell(0, 0),
            cell(1, 0),
            cell(0, 121),
            cell(0, 0x3fff_ffff),
            cell(1, 4097),
            cell(1, 0x3fff_ffff),
            cell(2, 0),
            cell(2, 2),
            cell(2, 1), // nobody may lend to this end
        ];
        for claim in claims {
            let (end, memory, [_, inbound]) = end_of_hostile(true);
            put_word(&memory, inbound + CELLS_AT, claim);
            let mut buf = [7; 8192];
            assert!(end.has_data(), "the error is told by a receive");
            assert_eq!(end.recv(&mut buf), Err(Error::PROTO), "{claim:x}");
            assert!(buf.iter().all(|byte| *byte == 7));
        }
        // Well-formed data has the requested length, with arbitrary bytes; the number of another
        // cell is invalid.
        let (end, memory, [_, inbound]) = end_of_hostile(true);
        put_word(&memory, inbound + CELLS_AT, 2 << 32 | 4);
        let mut buf = [7; 8192];
        assert_eq!(end.recv(&mut buf), Err(Error::AGAIN));
        put_word(&memory, inbound + CELLS_AT, cell(1, 4096));
        assert_eq!(end.recv(&mut buf[..100]), Ok(100));
        assert_eq!(end.recv(&mut buf), Ok(3996));
        // Bytes are where all of them are in the memory beside the cells.
        for (position, len, good) in [(3996, 100, true), (3997, 100, false), (1, 4096, false)] {
            let segments = [position, position | 1 << 31, u64::from(u32::MAX)];
            for (position, good) in segments.into_iter().zip([good, false, false]) {
                let (end, memory, [_, inbound]) = end_of_hostile(true);
                put_word(&memory, inbound + CELLS_AT + 8, position);
                put_word(&memory, inbound + CELLS_AT, cell(1, len));
                for _ in 0..2 {
                    assert_eq!(end.recv_inline(|_| true), InlineRecv::Else);
                    // take_whole reads four words for any message length.
                    assert_eq!(end.recv_whole_message(|_, _| false), InlineRecv::Else);
                }
                let wanted = if good { Ok(len as usize) } else { Err(Error::PROTO) };
                assert_eq!(end.recv(&mut buf), wanted, "{position:x}+{len}");
            }
        }
    }

    #[test]
    fn a_writer_uses_the_near_part_alone_as_long_as_the_reader_keeps_up() {
        use crate::segment::segment_bytes;
        use std::os::unix::fs::FileExt;
        let (writer, fd) = ShmChannel::create(16384).unwrap();
        let reader = ShmChannel::open(fd.as_fd()).unwrap();
        let (file, mut numbers) = (std::fs::File::from(fd), Numbers(3));
        let source: Vec<u8> = (0..900u32).map(|n| 1 + (n % 251) as u8).collect();
        let used = || {
            let mut bytes = vec![0; 16384];
            file.read_exact_at(&mut bytes, segment_bytes(0) as u64).unwrap();
            bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
        };
        let mut buf = vec![0; 16384];
        for _ in 0..2000 {
            let lens = [0; 3].map(|_| INLINE + 1 + numbers.below(700));
            assert!(lens.iter().all(|n| writer.send(&source[..*n]) == Ok(*n)));
            for n in lens {
                assert_eq!(reader.recv(&mut buf[..n]), Ok(n));
                assert_eq!(buf[..n], source[..n]);
            }
        }
        assert!((2000..=4096).contains(&used()), "{}", used());
        // A reader that does not read has all of it filled.
        for _ in 0..100 {
            let mut sent = 0;
            while let Ok(n) = writer.send(&source) {
                sent += n;
            }
            assert!(sent > 14000, "{sent}");
            let mut got = 0;
            while let Ok(n) = reader.recv(&mut buf) {
                assert!((got..got + n).zip(&buf).all(|(at, byte)| *byte == source[at % 900]));
                got += n;
            }
            assert_eq!(got, sent);
            assert_eq!((writer.send(&source[..500]), reader.recv(&mut buf)), (Ok(500), Ok(500)));
        }
    }

    #[test]
    fn invalid_exposed_buffer_ends_the_channel() {
        let token = MemoryToken::new().unwrap();
        let target = vec![5u8; 10_000];
        let at = target.as_ptr() as u64;
        let exposes = |addr: u64, len: u64, buf: usize| {
            let (end, memory, [_, inbound]) = end_of_hostile(false);
            if !with_memory([&end, &end], &token) {
                return None;
            }
            for (offset, word) in [(8, addr), (16, len), (0, 1 << 32 | 1 << 2 | 2)] {
                put_word(&memory, inbound + CELLS_AT + offset, word);
            }
            let mut bytes = vec![7; buf + 10];
            let got = end.recv(&mut bytes[..buf]);
            assert!(bytes[buf..].iter().all(|byte| *byte == 7), "more than was asked for");
            Some(got)
        };
        if exposes(at, 1, 1).is_none() {
            return crate::testing::skip("no process_vm_readv(2)");
        }
        for (addr, len) in [(at, 0), (at, u64::MAX), (u64::MAX - 1, 2), (at, 1 << 63), (8, 100)] {
            assert_eq!(exposes(addr, len, 1000), Some(Err(Error::PROTO)), "{addr:x}+{len:x}");
        }
        // No more is read than there is room for.
        assert_eq!(exposes(at, 1 << 62, 1000), Some(Ok(1000)));
        assert_eq!(exposes(at, 500, 1000), Some(Ok(500)));
    }

    #[test]
    fn unsealed_memory_and_malformed_segments_are_refused() {
        use crate::segment::SharedMemory;
        let len = 4096 * 3 + 2 * 4096;
        let open = |fd: &OwnedFd| ShmChannel::open(fd.as_fd()).map(drop);
        let (memory, fd) = SharedMemory::create(len).unwrap();
        drop(memory);
        assert_eq!(open(&fd), Err(Error::PROTO), "nothing says that it is a segment");
        let header = |magic: u64, ring| {
            let (_memory, fd) = SharedMemory::create(len).unwrap();
            let file = std::fs::File::from(fd.try_clone().unwrap());
            put_word(&file, 0, magic);
            put_word(&file, 8, ring);
            open(&fd)
        };
        let magic = u64::from_le_bytes(*b"ofiring4");
        assert_eq!(header(magic, 4096), Ok(()));
        assert_eq!(header(magic, 8192), Err(Error::PROTO));
        assert_eq!(header(magic + 1, 4096), Err(Error::PROTO));
        for wrong in [8, 4096, 4096 * 3, len - 4096, len + 1, len + 4096, 1 << 21] {
            let fd = SharedMemory::create(wrong).unwrap().1;
            put_word(&fd.try_clone().unwrap().into(), 0, magic);
            assert_eq!(open(&fd), Err(Error::PROTO), "{wrong} bytes");
        }
        // Without seals, and with some.
        let seals = [0, libc::F_SEAL_SHRINK, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL];
        for seals in seals {
            // SAFETY: a C string, flags and numbers; the descriptor is owned once.
            let fd = unsafe {
                use std::os::fd::{AsRawFd, FromRawFd};
                let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
                let fd = OwnedFd::from_raw_fd(fd);
                assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as i64), 0);
                assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
                fd
            };
            let file = std::fs::File::from(fd.try_clone().unwrap());
            put_word(&file, 0, magic);
            put_word(&file, 8, 4096);
            assert_eq!(open(&fd), Err(Error::PROTO), "seals {seals}");
        }
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(open(&socket.into()), Err(Error::PROTO));
        // Sealed memory cannot be truncated.
        let (_pipe, fd) = ShmChannel::create(4096).unwrap();
        assert!(std::fs::File::from(fd).set_len(0).is_err());
        for ring in [0, 2048, 4097, 12288, 32 << 20] {
            assert_eq!(ShmChannel::create(ring).map(drop), Err(Error::INVAL));
        }
    }

    #[test]
    fn hostile_ring_writes_cause_no_access_outside_own_memory() {
        let token = MemoryToken::new().unwrap();
        let target = vec![5u8; 1 << 16];
        for seed in 0..400 {
            let mut numbers = Numbers(seed);
            let (end, memory, [out, inbound]) = end_of_hostile(seed % 2 == 0);
            with_memory([&end, &end], &token);
            let source = vec![3; 20_000];
            let mut buf = vec![7; 20_100];
            for _ in 0..200 {
                let in_words = numbers.below((CELLS_AT as usize + 32 * 128) / 8) as u64 * 8;
                let position = [out, inbound][numbers.below(2)] + in_words;
                let position =
                    [position, inbound + CELLS_AT, inbound + CELLS_AT + 128, out + TAKEN]
                        [numbers.below(4)];
                let word = match numbers.below(5) {
                    0 => numbers.0,
                    1 => target.as_ptr() as u64 + numbers.below(1 << 16) as u64,
                    2 => numbers.below(70_000) as u64,
                    3 => {
                        let number = numbers.below(40) as u64;
                        let what = numbers.below(5000) as u64;
                        put_word(
                            &memory,
                            inbound + CELLS_AT + 128 * number,
                            (number + 1) << 32 | what,
                        );
                        continue;
                    }
                    _ => (numbers.below(40) as u64) << 32 | numbers.below(10_000) as u64,
                };
                put_word(&memory, position, word);
                let n = numbers.below(20_000);
                let result = match numbers.below(7) {
                    0 => end.send(&source[..n]),
                    6 => {
                        // SAFETY: the room outlives the buffer.
                        let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
                        end.recv_whole_message(|_, bytes| {
                            bytes.copy_into(&to);
                            !n.is_multiple_of(3)
                        });
                        continue;
                    }
                    1 | 2 => {
                        let mut list = GatherList::default();
                        list.push_bytes(&source[..n / 2]);
                        list.push_bytes(&source[n / 2..n]);
                        end.send_list(
                            &list,
                            [CopyMode::Copied, CopyMode::ZeroCopy][numbers.below(2)],
                        )
                    }
                    3 => end.recv(&mut buf[..n]),
                    4 => {
                        let (first, second) = buf[..n].split_at_mut(n / 3);
                        let mut list = ScatterList::default();
                        list.push_buf(first);
                        list.push_buf(second);
                        end.recv_list(&mut list)
                    }
                    _ => {
                        let _ = (end.has_data(), end.has_space(), end.can_expose());
                        let wants = numbers.below(2) == 0;
                        end.recv_inline(|short| {
                            assert!(short.all().len() <= INLINE);
                            wants
                        });
                        let _ = end.zcopy_completed();
                        end.peer_switched_at().map_or(Ok(0), |_| Ok(0))
                    }
                };
                match result {
                    Ok(done) => assert!(done <= n),
                    Err(error) => {
                        assert!([Error::AGAIN, Error::PROTO, Error::CONNRESET].contains(&error))
                    }
                }
                assert!(buf[n..].iter().skip(20_000 - n).all(|byte| *byte == 7));
            }
        }
    }

    #[test]
    fn a_childs_copy_of_an_end_touches_nothing() {
        let (a, b) = pair(4096);
        let large = vec![1; 8192];
        let token = MemoryToken::new().unwrap();
        let memory = with_memory([&a, &b], &token);
        let mut list = GatherList::default();
        list.push_bytes(&large);
        assert!(a.send_list(&list, CopyMode::ZeroCopy).is_ok());
        let mut buf = [0; 8192];
        // SAFETY: the child ends without coming back.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop((a, b, token));
            // SAFETY: nothing is left to do.
            unsafe { libc::_exit(0) };
        }
        let mut status = 1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        let n = if memory { 8192 } else { 4096 };
        assert_eq!(b.recv(&mut buf), Ok(n), "the memory was not taken back");
    }
}
