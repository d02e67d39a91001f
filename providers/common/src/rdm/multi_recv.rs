//! Posted receives, and multi-receive buffers (FI_MULTI_RECV, fi_msg(3)).
use crate::abi::{FI_CLAIM, FI_MULTI_RECV};
use crate::buf::RecvBuf;
use crate::cq::Context;
use crate::matching::{Posted, TakenRecv};
use crate::reserved::{IMPORTED, INTERNAL_OP};
use crate::slab::{NONE, Slab};

/// Flags of a receive copied to its completion entry. FI_CLAIM marks a buffered message (fi_msg(3)
/// of 1.x), and no other.
pub const BUFFERED: u64 = INTERNAL_OP | FI_CLAIM;

/// A posted receive.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Destination of the message.
    pub buf: RecvBuf,
    /// The application's pointer returned in the completion.
    pub context: Context,
    /// Flags of the call that posted the receive.
    pub flags: u64,
    /// Multi-receive buffer containing the receive, or `NONE`.
    multi: u32,
}

impl Recv {
    /// Returns a newly posted receive.
    #[inline]
    pub fn new(buf: RecvBuf, context: Context, flags: u64) -> Self {
        Self { buf, context, flags, multi: NONE }
    }

    /// A receive of another provider's, known by this number.
    pub(super) fn imported(buf: RecvBuf, context: Context, flags: u64, number: u32) -> Self {
        Self { buf, context, flags: flags | IMPORTED, multi: number }
    }

    /// The number of a receive of another provider's.
    pub(super) fn import(&self) -> Option<u32> {
        (self.flags & IMPORTED != 0).then_some(self.multi)
    }
}

/// Partially used multi-receive buffer.
#[derive(Debug)]
struct MultiBuf {
    /// Parts being filled.
    filling: usize,
    /// No further message goes to the buffer.
    exhausted: bool,
}

/// Multi-receive buffers of a matching engine. Each is released with the entry of its last part, or
/// with a separate entry if it is canceled before.
#[derive(Debug, Default)]
pub struct MultiBufs(Slab<MultiBuf>);

impl MultiBufs {
    /// Returns the part needed for a message of `len` bytes of the receive taken for it from
    /// `posted`: all of it, or a part of a multi-receive buffer. The rest is put back if it has at
    /// least `min` bytes (FI_OPT_MIN_MULTI_RECV).
    #[inline]
    pub fn part_of(
        &mut self,
        posted: &mut Posted<Recv>,
        mut taken: TakenRecv<Recv>,
        len: usize,
        min: usize,
    ) -> Recv {
        if taken.value.flags & FI_MULTI_RECV == 0 {
            return taken.value;
        }
        if taken.value.multi == NONE {
            taken.value.multi = self.0.insert(MultiBuf { filling: 0, exhausted: false });
        }
        let (part, rest) = taken.value.buf.split(len);
        let recv = Recv { buf: part, ..taken.value };
        let multi = &mut self.0[recv.multi];
        multi.filling += 1;
        if rest.len() < min.max(1) {
            multi.exhausted = true;
        } else {
            taken.value.buf = rest;
            posted.put_back(taken);
        }
        recv
    }

    /// Records the end of a part of a multi-receive buffer, filled or failed. Returns FI_MULTI_RECV
    /// for the entry if it was the last part, releasing the buffer; 0 otherwise, and for other
    /// receives.
    #[inline]
    pub fn filled(&mut self, recv: &Recv) -> u64 {
        let Some(multi) = self.0.get_mut(recv.multi) else { return 0 };
        multi.filling -= 1;
        if multi.filling > 0 || !multi.exhausted {
            return 0;
        }
        self.0.remove(recv.multi);
        FI_MULTI_RECV
    }

    /// Records a cancelled receive. Returns FI_MULTI_RECV for the entry if this releases a
    /// multi-receive buffer, else 0.
    pub fn cancelled(&mut self, recv: &Recv) -> u64 {
        if recv.flags & FI_MULTI_RECV == 0 {
            return 0;
        }
        match self.0.get_mut(recv.multi) {
            // Messages are still being written to earlier parts; the last of them
            // gives the buffer back.
            Some(multi) if multi.filling > 0 => {
                multi.exhausted = true;
                0
            }
            _ => {
                self.0.remove(recv.multi);
                FI_MULTI_RECV
            }
        }
    }
}
