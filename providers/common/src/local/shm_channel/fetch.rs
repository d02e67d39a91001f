//! Reading of exposed buffers: directly, or by copies of the peer.
use super::ShmChannel;
use super::cells::exposed_word;
use super::remote_reads::PartialGet;
use crate::error::{Error, Result};
use crate::segment::COPY_BUF;
use core::sync::atomic::Ordering;

/// Maximum bytes of one direct read.
const MAX_FETCH: usize = 4 << 20;

/// Maximum polls of the reader for a requested copy before it proceeds to other work.
const COPY_LOOKS: u32 = 200;

/// Maximum relocations of an exposed buffer by the writer ([`ShmChannel::copy_exposed`]) during one
/// read.
const MOST_MOVES: u32 = 2;

impl ShmChannel {
    /// Reads from the next exposed buffer.
    #[cold]
    pub(super) fn fetch<P: Iterator<Item = (*mut u8, usize)>>(
        &self,
        left: usize,
        done: usize,
        parts: &impl Fn(usize, usize) -> P,
    ) -> Result<usize> {
        // A peer must not expose buffers to a reader unable to read them.
        let memory = self.memory.get().ok_or(Error::PROTO)?;
        let cell = self.inbound().cell(self.reader.this_cell());
        let word = |at| exposed_word(cell, at).load(Ordering::Acquire);
        let piece = self.reads.partial_or(|| word(1));
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
            if self.reads.is_stopped() {
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
        if self.reads.read_up_to(piece) {
            self.reader.took_piece(self.inbound());
            self.notify();
        }
        Ok(n)
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
        let request = self.reads.pending_request().unwrap_or_else(|| {
            let piece = self.reader.fetched().wrapping_add(1);
            let make = |last| words.request_copy(piece, from, last);
            let request = self.reads.make_request(make);
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
                self.reads.end_request();
                return Ok(n);
            }
            std::hint::spin_loop();
        }
        Err(Error::AGAIN)
    }
}
