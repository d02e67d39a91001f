//! Pipe between two processes of one host: a byte ring in each direction in memory mapped by both,
//! and exposed buffers of the writer read in place by the reader.
//!
//! For any content written by the other process, an end of a pipe accesses only its own memory and
//! returns no more bytes than its buffer holds. Impossible indices and segments fail with
//! -FI_EPROTO.
mod cells;
mod device_cells;
mod devices;
mod exposed;
mod fetch;
mod joined_words;
mod remote_reads;

pub use device_cells::{DEVICE_CELL, DeviceCell, DeviceCellKind};
pub use exposed::ZcopyCompletion;
pub use joined_words::JoinedWords;

use crate::barriers;
use crate::buf::{
    ContiguousSrc, CopyMode, GatherList, InlineBytes, ScatterList, UntrustedBytes, copy_any,
    is_some,
};
use crate::cma::PeerMemory;
use crate::device::offers_sharing;
use crate::doorbell::PeerDoorbell;
use crate::error::{Error, Result};
use crate::primitives::CELLS;
pub use crate::ring_layout::INLINE;
use crate::ring_layout::{CellKind, CopyRequest, RingControl, RingReader, RingWriter};
use crate::segment::{COPY_BUF, SharedSegment};
use cells::{ZcopyDesc, exposed_word, prefetch};
use core::cell::{Cell, OnceCell};
use core::hint::spin_loop;
use core::ptr::NonNull;
use core::sync::atomic::{Ordering, compiler_fence, fence};
use exposed::ExposedBuffers;
use joined_words::put_joined;
use remote_reads::RemoteReads;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes copied before their publication, so both sides copy concurrently.
pub const CHUNK: usize = 8192;

/// Minimum size in bytes of an exposed buffer: reading smaller ones remotely costs more than
/// copying them.
const MIN_EXPOSED: usize = 4096;

/// Maximum looks at a full ring of cells before a message is queued: about a microsecond.
const CELL_LOOKS: u32 = 32;

/// Bytes of a cell in the same cache line as its header word.
const FIRST_LINE: usize = 56;

/// Result of a poll for short messages ([`ShmChannel::recv_inline`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InlineRecv {
    /// Some were taken.
    Took,
    /// There is nothing in the pipe.
    None,
    /// Anything else has to be [received](ShmChannel::recv).
    Else,
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
    /// Reads of buffers exposed by the peer.
    reads: RemoteReads,
    doorbell: OnceCell<(Arc<PeerDoorbell>, u32)>,
    memory: OnceCell<PeerMemory>,
    /// This process takes part in barriers of all processes, as far as this end knows.
    barriers: Cell<bool>,
    /// True if this end has announced polling of the pipe in each progress iteration.
    polled: Cell<bool>,
    /// Barrier after the end of polling by this process, if it still has to be waited for.
    cooled: Cell<Option<u64>>,
    /// Buffers of this end exposed to the peer.
    exposed: ExposedBuffers,
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
        if offers_sharing() {
            segment.inbound().set_knows_devices();
        }
        Self {
            writer: RingWriter::new(size),
            reader: RingReader::new(size),
            out: segment.out().into(),
            inbound: segment.inbound().into(),
            out_bytes: segment.out_bytes(),
            inbound_bytes: segment.inbound_bytes(),
            size: segment.ring_size(),
            reads: RemoteReads::default(),
            doorbell: OnceCell::new(),
            memory: OnceCell::new(),
            barriers: Cell::new(barriers::are_there()),
            polled: Cell::new(false),
            cooled: Cell::new(None),
            exposed: ExposedBuffers::default(),
            waited: Cell::new(false),
            segment,
        }
    }

    /// Bytes of each ring.
    pub fn ring_size(&self) -> usize {
        self.segment.ring_size()
    }

    #[inline(always)]
    pub(crate) fn out(&self) -> &RingControl {
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

    /// Sends as many of these bytes as there is space for. Returns -FI_EAGAIN if there is none.
    /// After a partial send the other end notifies this one of free space
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
            let (start, more) = head.parts();
            return self.send_header_and_body_slow(start, more, head_len, body);
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

    /// Handles other lengths, and waiting readers, for [`ShmChannel::send_header_and_body`]. The
    /// words are [parts](JoinedWords::parts), so its caller keeps them in registers.
    #[inline(never)]
    fn send_header_and_body_slow(
        &self,
        start: (u64, u64),
        more: (u64, u64),
        head_len: usize,
        body: ContiguousSrc<'_>,
    ) -> bool {
        let head = JoinedWords::of_parts(start, more, head_len);
        let len = head_len + body.len();
        if len > INLINE {
            return self.send_joined_bytes(head, body);
        }
        if !self.writer.knows_cell() && !self.wait_for_cell() {
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

    /// Returns true if there is a free cell, now or after a short wait for a reader known to poll the
    /// ring: it frees some soon, and a queued message costs more.
    fn wait_for_cell(&self) -> bool {
        for _ in 0..CELL_LOOKS {
            match self.writer.has_cell(self.out()) {
                Ok(false) if self.out().reader_looks(self.barriers.get()) => spin_loop(),
                has_cell => return has_cell == Ok(true),
            }
        }
        false
    }

    /// Notifies the peer's engine of new data if necessary. Always returns true, the result of its
    /// callers.
    #[inline(never)]
    fn tell_reader(&self) -> bool {
        self.notify();
        true
    }

    /// [`ShmChannel::send_header_and_body`] for more bytes than a cell has space for, through the
    /// data area. Returns false if they are also too many for one copy.
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
            self.exposed.add_call(self.writer.exposed());
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

    /// Exposes a buffer. Returns false if there is no cell for it.
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
        self.exposed.add(self.writer.exposed(), cell, key, at as usize..at as usize + len);
        self.writer.sent_all();
        self.notify();
        Ok(true)
    }

    /// Returns the next calls with [`CopyMode::ZeroCopy`] whose memory is not in use any more. Fails
    /// with -FI_EAGAIN if there are none.
    pub fn zcopy_completed(&self) -> Result<ZcopyCompletion> {
        if !self.exposed.is_oldest_fetched(self.writer.fetched()).ok_or(Error::AGAIN)? {
            self.writer.look_fetched(self.out())?;
            if let Some(request) = self.out().copy_request(self.reads.last_of_peer()) {
                self.answer(request);
            }
        }
        self.exposed.take_fetched(self.writer.fetched()).ok_or(Error::AGAIN)
    }

    /// Copies the requested part of an exposed buffer not readable by the peer.
    #[cold]
    fn answer(&self, request: CopyRequest) {
        self.reads.answer(request);
        self.exposed.with_unread(request.piece(), self.writer.fetched(), |start, len| {
            let from = usize::try_from(request.from).unwrap_or(usize::MAX);
            let n = len.saturating_sub(from).min(COPY_BUF);
            if n == 0 {
                return;
            }
            // SAFETY: the part is of the exposed buffer, readable until it was read by the peer, or
            // of its stored copy; the destination has space for it, and is no memory of the
            // caller's.
            unsafe {
                let to = self.segment.out_copies().as_ptr();
                to.copy_from_nonoverlapping(start.add(from), n);
            }
            self.out().answer_copy(request);
            self.notify();
        });
    }

    /// Copies the unread exposed buffers ([`CopyMode::OfRegion`]) of the memory region with this key
    /// before its close; the peer then reads the copy. Returns the number of bytes copied. Fails
    /// with -FI_ENOBUFS if they exceeded `most`; the pipe then has to be
    /// [withdrawn](Self::withdraw).
    pub fn copy_exposed(&self, key: u64, most: usize) -> Result<usize> {
        self.writer.look_fetched(self.out())?;
        let fetched = self.writer.fetched();
        let copied = self.exposed.copy_region(key, most, fetched, |cell, addr| {
            let (word, value) =
                addr.map_or((device_cells::STATE_WORD, device_cells::WITHDRAWN), |at| (0, at));
            exposed_word(self.out().cell(cell), word).store(value, Ordering::Release);
        })?;
        // A reader of later contents of the memory also sees the new location of the buffer.
        fence(Ordering::SeqCst);
        Ok(copied)
    }

    /// Returns true if calls with [`CopyMode::ZeroCopy`] are in flight, possibly read by the peer since
    /// the last query.
    #[inline]
    pub fn is_exposing(&self) -> bool {
        self.exposed.has_calls()
    }

    /// Receives available bytes and returns their number. Fails with -FI_EAGAIN if there are none
    /// now, and with [`DEVICE_CELL`] before such a cell. A partially filled buffer does not mean an
    /// empty pipe; only -FI_EAGAIN does. An exposed
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

    /// [`recv_inline`](Self::recv_inline), also for cells referring to more bytes.
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
            CellKind::Exposed | CellKind::Device => false,
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

    /// [`ShmChannel::recv`] into the buffers of a list, in their order.
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
                    copied |= !self.reads.has_partial() && self.reader.kind() != CellKind::Exposed;
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
            CellKind::Exposed | CellKind::Device if copied => return Ok(None),
            CellKind::Device => return Err(DEVICE_CELL),
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

    /// Stops reading the peer's memory, as if the kernel had revoked the permission. The peer
    /// copies the buffers exposed already.
    #[doc(hidden)]
    pub fn stop_reading(&self) {
        self.reads.stop_reading();
        self.inbound().set_cannot_fetch();
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
        if let Some(request) = self.reads.pending_request() {
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
        self.inbound().set_can_signal();
        // Earlier reads and writes were not signalled to any engine.
        self.ring();
    }

    /// Allows the other end to expose its memory to this one.
    pub fn set_peer_memory(&self, memory: PeerMemory) {
        if self.memory.set(memory).is_ok() {
            self.inbound().set_can_fetch();
        }
    }

    /// Returns the peer's memory, if this end may read it.
    pub fn peer_memory(&self) -> Option<&PeerMemory> {
        self.memory.get()
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

impl Drop for ShmChannel {
    fn drop(&mut self) {
        // A child's copy has no mapping.
        if self.is_exposing() && self.segment.is_here() {
            self.withdraw();
        }
    }
}

#[cfg(test)]
mod tests;
