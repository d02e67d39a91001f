//! A pipe between two processes of one host: a ring of bytes each way in memory that both have
//! mapped, and pieces of the writer's memory that the reader fetches where they are.
//!
//! Whatever the other process writes there, an end of a pipe never leaves its own memory, and gives
//! no more bytes than it was given room for: impossible indices and pieces are -FI_EPROTO.
use crate::barriers;
use crate::buf::{GatherList, ScatterList, Way};
use crate::cma::PeerMemory;
use crate::door::PeerDoor;
use crate::error::{Error, Result};
use crate::segment::SharedSegment;
use crate::words::{RingReader, RingWords, RingWriter};
use core::cell::{Cell, OnceCell, RefCell};
use core::ptr::NonNull;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes that are copied before the other side is shown them: so both copy at the same time.
const CHUNK: usize = 8192;

/// Pieces of fewer bytes are not lent: fetching costs more than copying them.
const MIN_LENT: usize = 4096;

/// Most bytes that are fetched at a time.
const MAX_FETCH: usize = 4 << 20;

/// Calls with [`Way::Uncopied`] whose memory the other end has read, as [`LocalPipe::uncopied_done`]
/// tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchedCalls {
    /// The first call: they count from 0, as far as they took bytes, modulo 2³².
    pub low: u32,
    /// The last call.
    pub high: u32,
}

/// Calls that took bytes, and how many pieces were lent in all by the end of the last.
#[derive(Debug)]
struct LendingCalls {
    calls: FetchedCalls,
    lent: u32,
}

/// One end of a pair of rings. No call blocks.
#[derive(Debug)]
pub struct LocalPipe {
    writer: RingWriter,
    reader: RingReader,
    /// Words and bytes of the rings, which live as long as `segment`.
    out: NonNull<RingWords>,
    inward: NonNull<RingWords>,
    out_bytes: NonNull<u8>,
    inward_bytes: NonNull<u8>,
    door: OnceCell<(Arc<PeerDoor>, u32)>,
    memory: OnceCell<PeerMemory>,
    /// This process takes part in barriers of all processes.
    barriers: bool,
    /// After which barrier of this process's polling has ended, if that is to be waited for.
    cooled: Cell<Option<u64>>,
    /// The number of the next call with [`Way::Uncopied`] that takes bytes.
    next_call: Cell<u32>,
    lending: RefCell<VecDeque<LendingCalls>>,
    segment: SharedSegment,
}

// SAFETY: the pointers are into `segment`, which belongs to no thread.
unsafe impl Send for LocalPipe {}

impl LocalPipe {
    /// A new pipe with rings of so many bytes each way, a power of two from 4 KiB to 16 MiB, and
    /// the descriptor for the other end ([`LocalPipe::open`]).
    pub fn create(ring: usize) -> Result<(Self, OwnedFd)> {
        let (segment, fd) = SharedSegment::create(ring)?;
        Ok((Self::of(segment), fd))
    }

    /// The other end of a pipe, of the descriptor that came from its maker: -FI_EPROTO if it is not what
    /// [`LocalPipe::create`] makes.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self::of(SharedSegment::open(fd)?))
    }

    fn of(segment: SharedSegment) -> Self {
        let size = segment.ring_size() as u64;
        Self {
            writer: RingWriter::new(size),
            reader: RingReader::new(size),
            out: segment.out().into(),
            inward: segment.inward().into(),
            out_bytes: segment.out_bytes(),
            inward_bytes: segment.inward_bytes(),
            door: OnceCell::new(),
            memory: OnceCell::new(),
            barriers: barriers::are_there(),
            cooled: Cell::new(None),
            next_call: Cell::new(0),
            lending: RefCell::default(),
            segment,
        }
    }

    /// Bytes of each ring.
    pub fn ring_size(&self) -> usize {
        self.segment.ring_size()
    }

    #[inline(always)]
    fn out(&self) -> &RingWords {
        // SAFETY: it is in `segment`, which lives as long as `self`.
        unsafe { self.out.as_ref() }
    }

    #[inline(always)]
    fn inward(&self) -> &RingWords {
        // SAFETY: it is in `segment`, which lives as long as `self`.
        unsafe { self.inward.as_ref() }
    }

    /// Tells the other end's engine that there is something for it, unless it looks by itself.
    #[inline(always)]
    fn notify(&self) {
        if self.out().must_tell_reader(self.barriers) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        if let Some((door, index)) = self.door.get() {
            door.ring(*index);
        }
    }

    /// Sends as many of these bytes as there is room for; -FI_EAGAIN if there is none. When
    /// fewer are taken than were given, the other end tells when there is room
    /// ([`LocalPipe::has_room`]).
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len();
        let to_end = self.size() - self.at(self.writer.head());
        if n > to_end.min(self.writer.known_room() as usize).min(CHUNK) {
            return self.send_in_parts(bytes);
        }
        self.put(bytes.as_ptr(), n);
        self.writer.publish(self.out(), n as u64);
        self.notify();
        Ok(n)
    }

    #[inline(never)]
    fn send_in_parts(&self, bytes: &[u8]) -> Result<usize> {
        let sent = self.put_all(bytes.as_ptr(), bytes.len())?;
        if sent > 0 { Ok(sent) } else { Err(Error::AGAIN) }
    }

    /// Bytes of each ring.
    #[inline(always)]
    fn size(&self) -> usize {
        self.writer.size() as usize
    }

    /// Where in a ring the byte of this number is.
    #[inline(always)]
    fn at(&self, index: u64) -> usize {
        index as usize & (self.size() - 1)
    }

    /// Copies as many of these bytes to the ring as there is room for, and shows them.
    fn put_all(&self, from: *const u8, len: usize) -> Result<usize> {
        let mut done = 0;
        while done < len {
            let room = self.writer.room(self.out(), (len - done).min(CHUNK) as u64)? as usize;
            let n = room.min(len - done).min(CHUNK);
            if n == 0 {
                if self.writer.want_room(self.out())? {
                    continue;
                }
                break;
            }
            self.put(from.wrapping_add(done), n);
            self.writer.publish(self.out(), n as u64);
            if done == 0 {
                self.notify();
            }
            done += n;
        }
        if done > CHUNK {
            self.notify();
        }
        if done == len {
            self.writer.sent_all();
        }
        Ok(done)
    }

    /// Copies bytes to the ring, where there is room for so many.
    #[inline(always)]
    fn put(&self, from: *const u8, n: usize) {
        let at = self.at(self.writer.head());
        let first = n.min(self.size() - at);
        // SAFETY: both parts are in the ring, whose size is a power of two; `n` is at most that. The caller's bytes
        // are readable, and no memory of a segment.
        unsafe {
            self.out_bytes.add(at).as_ptr().copy_from_nonoverlapping(from, first);
            if first < n {
                let rest = from.add(first);
                self.out_bytes.as_ptr().copy_from_nonoverlapping(rest, n - first);
            }
        }
    }

    /// Copies the next bytes out of the ring, where there are so many.
    #[inline(always)]
    fn get(&self, to: *mut u8, n: usize) {
        let at = self.at(self.reader.tail());
        let first = n.min(self.size() - at);
        // SAFETY: both parts are in the ring, whose size is a power of two; `n` is at most that. The caller's room is
        // writable, and no memory of a segment.
        unsafe {
            self.inward_bytes.add(at).as_ptr().copy_to_nonoverlapping(to, first);
            if first < n {
                self.inward_bytes.as_ptr().copy_to_nonoverlapping(to.add(first), n - first);
            }
        }
    }

    /// [`LocalPipe::send`] of the bytes in a list. With [`Way::Uncopied`], where the other end can
    /// read this process's memory ([`LocalPipe::can_lend`]), large parts of the list stay where they are until it
    /// has: a call that takes bytes has a number, and [`LocalPipe::uncopied_done`] tells of
    /// it. How many bytes were taken counts those that were lent.
    pub fn send_list(&self, list: &GatherList<'_>, way: Way) -> Result<usize> {
        let lends = way == Way::Uncopied && self.can_lend();
        let mut done = 0;
        for (at, len) in list.parts(0, list.len()) {
            let n = if lends && len >= MIN_LENT {
                match self.lend(at, len) {
                    Ok(true) => len,
                    Ok(false) => 0,
                    Err(error) => return Err(error),
                }
            } else {
                self.put_all(at, len)?
            };
            done += n;
            if n < len {
                break;
            }
        }
        if done == 0 && !list.is_empty() {
            return Err(Error::AGAIN);
        }
        if way == Way::Uncopied && done > 0 {
            self.note_call();
        }
        Ok(done)
    }

    /// Lends a piece of memory; false if too many are lent.
    fn lend(&self, at: *mut u8, len: usize) -> Result<bool> {
        while !self.writer.lend(self.out(), at as u64, len as u64)? {
            if !self.writer.want_room(self.out())? {
                return Ok(false);
            }
        }
        self.writer.sent_all();
        self.notify();
        Ok(true)
    }

    /// Gives a number to a call that took bytes uncopied.
    fn note_call(&self) {
        let number = self.next_call.get();
        self.next_call.set(number.wrapping_add(1));
        let mut lending = self.lending.borrow_mut();
        let lent = self.writer.lent();
        match lending.back_mut().filter(|last| last.lent == lent) {
            // Nothing was lent since the call before.
            Some(last) => last.calls.high = number,
            None => {
                let calls = FetchedCalls { low: number, high: number };
                lending.push_back(LendingCalls { calls, lent });
            }
        }
    }

    /// The next calls with [`Way::Uncopied`] whose memory is not in use any more; -FI_EAGAIN if
    /// there are none.
    pub fn uncopied_done(&self) -> Result<FetchedCalls> {
        let mut lending = self.lending.borrow_mut();
        let Some(first) = lending.front() else { return Err(Error::AGAIN) };
        let is_done =
            |calls: &LendingCalls| self.writer.fetched().wrapping_sub(calls.lent) <= u32::MAX / 2;
        if !is_done(first) {
            self.writer.look_fetched(self.out())?;
        }
        let mut done: Option<FetchedCalls> = None;
        while let Some(calls) = lending.pop_front_if(|calls| is_done(calls)) {
            let low = done.map_or(calls.calls.low, |done| done.low);
            done = Some(FetchedCalls { low, high: calls.calls.high });
        }
        done.ok_or(Error::AGAIN)
    }

    /// Whether a call with [`Way::Uncopied`] may have been read by the other end since it was
    /// last asked for: some are under way.
    #[inline]
    pub fn is_lending(&self) -> bool {
        !self.lending.borrow().is_empty()
    }

    /// Receives bytes that are there: how many, -FI_EAGAIN if there are none now. Fewer bytes than there is room for
    /// do not mean that no more are there: -FI_EAGAIN alone does. Lent memory begins a call of
    /// its own, so that its reader, who has seen the header then, can ask for it where it belongs.
    #[inline]
    pub fn recv(&self, room: &mut [u8]) -> Result<usize> {
        let Some(there) = self.reader.plain(self.inward()) else {
            return self.recv_in_parts(room);
        };
        let n = room.len().min(there as usize);
        if n == 0 {
            return if room.is_empty() { Ok(0) } else { Err(Error::AGAIN) };
        }
        if n > CHUNK.min(self.size() - self.at(self.reader.tail())) {
            return self.recv_in_parts(room);
        }
        self.get(room.as_mut_ptr(), n);
        if self.reader.consume(self.inward(), n as u64) {
            self.notify();
        }
        Ok(n)
    }

    #[inline(never)]
    fn recv_in_parts(&self, room: &mut [u8]) -> Result<usize> {
        let (base, total) = (room.as_mut_ptr(), room.len());
        self.fill(total, |from, len| std::iter::once((base.wrapping_add(from), len)))
    }

    /// [`LocalPipe::recv`] to the room of a list, in its order.
    pub fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        let list = &*list;
        self.fill(list.len(), |from, len| list.parts(from, len))
    }

    /// Fills room of so many bytes; `parts` tells where some of it is.
    fn fill<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        total: usize,
        parts: impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        let (mut done, mut copied) = (0, false);
        while done < total {
            let step = match self.fill_some(total - done, copied, done, &parts) {
                Ok(step) => step,
                Err(error) if done == 0 => return Err(error),
                // What has come is told of first; the error comes again.
                Err(_) => break,
            };
            match step {
                Step::Copied(n) => {
                    done += n;
                    copied = true;
                }
                Step::Fetched(n) => done += n,
                Step::Stop => break,
            }
        }
        if done > 0 || total == 0 { Ok(done) } else { Err(Error::AGAIN) }
    }

    fn fill_some<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        left: usize,
        copied: bool,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<Step> {
        let mut there = self.reader.before_piece();
        let at_piece = |there| there == 0 && self.is_at_piece();
        if there == 0 && !at_piece(there) {
            if !self.reader.look(self.inward())? {
                if self.reader.found_nothing(self.inward()) {
                    self.notify();
                }
                return Ok(Step::Stop);
            }
            there = self.reader.before_piece();
        }
        if at_piece(there) {
            return if copied { Ok(Step::Stop) } else { self.fetch(left, done, parts) };
        }
        let n = left.min(CHUNK).min(there as usize);
        let mut taken = 0;
        for (to, len) in parts(done, n) {
            self.get(to, len);
            if self.reader.consume(self.inward(), len as u64) {
                self.notify();
            }
            taken += len;
        }
        Ok(Step::Copied(taken))
    }

    #[inline(always)]
    fn is_at_piece(&self) -> bool {
        self.reader.piece().is_some_and(|piece| piece.at == self.reader.tail())
    }

    /// Fetches of the lent piece that comes next.
    #[cold]
    fn fetch<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        left: usize,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<Step> {
        let piece = self.reader.piece().ok_or(Error::PROTO)?;
        // Nobody may lend to a reader that cannot fetch.
        let memory = self.memory.get().ok_or(Error::PROTO)?;
        let n = left.min(MAX_FETCH).min(usize::try_from(piece.len).unwrap_or(usize::MAX));
        // SAFETY: the parts are of the room that the caller gave.
        let n = unsafe { memory.read(parts(done, n), piece.addr) }?;
        if self.inward().is_withdrawn() {
            return Err(Error::CONNRESET);
        }
        if self.reader.fetch(self.inward(), n as u64)? {
            self.notify();
        }
        Ok(Step::Fetched(n))
    }

    /// Whether there is something to receive: bytes, lent memory, or an error that
    /// [`LocalPipe::recv`] will tell.
    #[inline]
    pub fn has_data(&self) -> bool {
        if let Some(before) = self.cooled.take() {
            barriers::pass_one_after(before, self.barriers);
        }
        self.reader.plain(self.inward()) != Some(0)
    }

    /// Whether it is worth while to send again: no call took fewer bytes than it was given, or there is
    /// much room since.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.writer.has_room(self.out()) != Ok(false)
    }

    /// Says that from here on bytes go through the ring: so many were sent by the former link
    /// in all.
    pub fn switch_at(&self, bytes: u64) {
        self.out().switch_at(bytes);
        self.notify();
    }

    /// After how many bytes of the former link the other end's go on in the ring, once it has said
    /// so.
    pub fn peer_switched_at(&self) -> Option<u64> {
        self.inward().switched_at()
    }

    /// Says whether this end looks at the pipe in each turn: what is there
    /// ([`LocalPipe::has_data`]), what was fetched ([`LocalPipe::uncopied_done`]), and room if it
    /// waits for that ([`LocalPipe::has_room`]). If not, as in the beginning, the other end rings the
    /// door ([`LocalPipe::attach_peer`]) for each.
    ///
    /// After it is turned off the pipe is looked at once more, [`LocalPipe::has_data`] first:
    /// what came before is not rung for. That costs a system call which interrupts running threads of all
    /// processes with pipes; one for all pipes, if it is turned off for all before the first is
    /// looked at.
    pub fn set_polled(&self, polled: bool) {
        self.inward().set_polled(polled, self.barriers);
        self.cooled.set((!polled).then(barriers::begun));
    }

    /// Whose door is rung for the other end, and what it calls this connection.
    pub fn attach_peer(&self, door: Arc<PeerDoor>, index: u32) {
        // The first one stays.
        let _ = self.door.set((door, index));
        // What was written before nobody has heard of.
        self.notify();
    }

    /// Lets the other end lend memory to this one.
    pub fn set_peer_memory(&self, memory: PeerMemory) {
        if self.memory.set(memory).is_ok() {
            self.inward().set_can_fetch();
        }
    }

    /// Whether the other end has said that it reads this process's memory.
    #[inline]
    pub fn can_lend(&self) -> bool {
        self.out().can_fetch()
    }

    /// Takes lent memory back, as the end of a pipe does: what the other end reads from now on it does not take
    /// for bytes of the stream. The pipe has ended for the other end, then.
    pub fn withdraw(&self) {
        self.out().withdraw();
    }
}

enum Step {
    Copied(usize),
    Fetched(usize),
    Stop,
}

impl Drop for LocalPipe {
    fn drop(&mut self) {
        // A child's copy has no mapping.
        if self.is_lending() && self.segment.is_here() {
            self.withdraw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::LocalDoor;
    use std::os::fd::AsFd;

    fn pair(ring: usize) -> (LocalPipe, LocalPipe) {
        let (a, fd) = LocalPipe::create(ring).unwrap();
        let b = LocalPipe::open(fd.as_fd()).unwrap();
        (a, b)
    }

    #[test]
    fn bytes_go_both_ways_and_come_in_order() {
        let (a, b) = pair(4096);
        let mut room = [0; 8];
        assert_eq!(b.recv(&mut room), Err(Error::AGAIN));
        assert_eq!(a.send(b"hello"), Ok(5));
        assert_eq!(b.send(b"world!"), Ok(6));
        assert_eq!((b.recv(&mut room), &room), (Ok(5), b"hello\0\0\0"));
        assert_eq!((a.recv(&mut room), &room), (Ok(6), b"world!\0\0"));
        // The reader has not told of five bytes yet.
        assert_eq!(a.send(&[1; 5000]), Ok(4091));
        assert_eq!(a.send(&[1; 1]), Err(Error::AGAIN));
        assert!(!a.has_room());
        let mut all = [0; 5000];
        assert_eq!(b.recv(&mut all), Ok(4091));
        assert!(a.has_room());
    }

    #[test]
    fn who_does_not_poll_is_rung_for() {
        let (a, b) = pair(4096);
        let door = LocalDoor::new().unwrap();
        let bell = door.bell().try_clone_to_owned().unwrap();
        let there = Arc::new(PeerDoor::open(door.memory(), bell).unwrap());
        let rung = || {
            let mut out = Vec::new();
            door.ready(&mut out);
            out
        };
        a.attach_peer(there, 1029);
        assert_eq!(rung(), [5]);
        a.send(b"x").unwrap();
        assert_eq!(rung(), [5]);
        b.set_polled(true);
        a.send(b"x").unwrap();
        assert_eq!(rung(), []);
        b.set_polled(false);
        assert!(door.fall_asleep());
        a.send(b"x").unwrap();
        let mut polled = libc::pollfd { fd: door.bell_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        let mut ready = || unsafe { libc::poll(&raw mut polled, 1, 0) };
        assert_eq!(ready(), 1);
        assert!(!door.fall_asleep());
        door.wake();
        assert_eq!((ready(), rung()), (0, vec![5]));
    }
}
