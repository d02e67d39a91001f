//! The first words of a message, and their copies with its body.
use core::sync::atomic::{Ordering, compiler_fence};

/// First two to four words of a message (`ShmChannel::send_header_and_body`).
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

    /// Returns all four words in pairs, also the unused ones.
    #[inline(always)]
    pub(super) fn parts(self) -> ((u64, u64), (u64, u64)) {
        let [first, second, third, fourth] = self.words;
        ((first, second), (third, fourth))
    }

    /// Returns the words with these [parts](Self::parts) and bytes.
    #[inline(always)]
    pub(super) fn of_parts(start: (u64, u64), more: (u64, u64), len: usize) -> Self {
        Self { words: [start.0, start.1, more.0, more.1], len }
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
    /// `to` has space for them.
    #[inline(always)]
    pub(super) unsafe fn put(self, to: *mut u8) {
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

/// Writes the words followed by [some](crate::buf::is_some) bytes to a cell's body, the second cache line
/// first. While the processor waits for this line, a reader polling the first line would take the
/// first one away.
///
/// # Safety
/// The cell has space for them; the bytes are readable, and not in the cell.
#[inline(always)]
pub(super) unsafe fn put_joined(head: JoinedWords, body: *const u8, to: *mut u8, n: usize) {
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
