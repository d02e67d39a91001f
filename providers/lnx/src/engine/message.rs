//! Messages of cores between their announcement and their completion.
use ofi_provider::completions::CompletionSink;
use ofi_provider::rx_matcher::{Envelope, Recv, UnexpectedBody};
use std::sync::{Arc, Mutex};

/// Buffered form of an unexpected message: it waits at a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LnxUnexpected {
    /// The core's number at the endpoint.
    pub(super) rail: usize,
    /// Core's number for starting the message.
    pub(super) entry: u32,
}

impl UnexpectedBody for LnxUnexpected {
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    // The core has the bytes, and bounds them.
    fn cost(&self, _len: usize) -> usize {
        0
    }
    const ONE_LOCK: bool = true;
}

/// A receive while a core fills it.
#[derive(Debug)]
pub(crate) struct LnxActiveRecv {
    pub(super) recv: Recv,
    pub(super) envelope: Envelope,
}

/// Message matched with a receive, or to be dropped, pending notification of the core.
#[derive(Debug)]
pub(super) struct LnxSrxStart {
    pub(super) ep: u32,
    pub(super) buffered: LnxUnexpected,
    /// Matching receive; none for a dropped message.
    pub(super) filling: Option<LnxActiveRecv>,
}

/// Completion sink of an endpoint, changed when counters are bound late.
pub(super) type LnxCompletions = Arc<Mutex<CompletionSink>>;
