//! Operations accepted by endpoints of a simulated world.
use ofi_provider::error::Error;
use std::borrow::Cow;
use std::ops::Range;

/// An operation's number; its context is one more.
pub(crate) type OpId = usize;

/// Sending part of a node, and addressed part of the other.
pub(crate) type MessageOrder = (usize, usize);

/// Kind of an operation.
#[derive(Debug)]
pub(crate) enum OracleOp {
    Send {
        to: usize,
        order: MessageOrder,
        tagged: bool,
        tag: u64,
        len: usize,
        acked: bool,
        taken: bool,
    },
    /// Receive of the part `at`, or of all parts if there is none; `from` is the source and, if the
    /// source has several names, the selected one.
    Receive {
        at: Option<usize>,
        tagged: bool,
        from: Option<(usize, Option<usize>)>,
        tag: u64,
        ignore: u64,
        multi: bool,
        filled: Vec<Range<usize>>,
    },
    /// Tag with its next message to be reported (buffered receives).
    PostedTag {
        tag: u64,
        ignore: u64,
    },
    Write {
        to: usize,
    },
    /// `any` marks the bytes written after the read was posted.
    Read {
        to: usize,
        at: usize,
        expect: Vec<u8>,
        any: Vec<bool>,
    },
    Add {
        to: usize,
        before: u64,
    },
    /// Peek for a tagged message, with an optional claim or discard.
    Peek {
        at: Option<usize>,
        tag: u64,
        ignore: u64,
        claims: bool,
        discards: bool,
    },
    /// Claimed message to be received or, with `discards`, dropped.
    Claim {
        at: Option<usize>,
        message: OpId,
        discards: bool,
    },
}

/// Operation accepted by an endpoint.
pub(crate) struct TakenOperation {
    pub(crate) node: usize,
    pub(super) life: usize,
    pub(crate) op: OracleOp,
    /// A success is reported.
    pub(super) reports: bool,
    pub(super) fenced: bool,
    /// The application has its buffer back at once (FI_INJECT).
    pub(super) injected: bool,
    /// The application has its completion, or needs none.
    pub(crate) over: bool,
    /// Error of a failed transfer.
    pub(crate) failure: Option<Error>,
    pub(crate) buf: Vec<u8>,
    /// Number of first bytes of the buffer in memory of the device.
    pub(super) on_device: usize,
    /// Former value returned by a fetching atomic operation.
    pub(crate) fetched: Box<u64>,
}

impl std::fmt::Debug for TakenOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {}", self.op, self.node)
    }
}

impl TakenOperation {
    /// Returns the bytes of the buffer.
    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        let mut bytes = Cow::Borrowed(&self.buf[..]);
        if self.on_device > 0 {
            crate::device::mask(&mut bytes.to_mut()[..self.on_device]);
        }
        bytes
    }

    /// Returns the destination node and the pair of parts of a transfer. Memory accesses use the
    /// first pair.
    pub(super) fn goes_to(&self) -> Option<(usize, MessageOrder)> {
        match self.op {
            OracleOp::Send { to, order, .. } => Some((to, order)),
            OracleOp::Write { to } | OracleOp::Read { to, .. } | OracleOp::Add { to, .. } => {
                Some((to, (0, 0)))
            }
            OracleOp::Receive { .. }
            | OracleOp::PostedTag { .. }
            | OracleOp::Peek { .. }
            | OracleOp::Claim { .. } => None,
        }
    }
}
