//! Completion sinks: the queue, the counters and the domain's deferred work notified of an
//! endpoint's operations.
//!
//! Every operation accepted by a provider completes exactly once, through one method of these
//! types. A failure, or a success requested by its flags (fi_cq(3)), writes an entry; its counter
//! is incremented. An internal operation ([`INTERNAL_OP`]) is reported only to the domain's deferred
//! work. Builds with debug assertions count the operations passed to providers and their
//! completions ([`OutstandingOps`]). A test fails at a surplus completion, and at the close of an endpoint
//! with operations left.
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_COMPLETION, FI_READ, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_READ,
    FI_REMOTE_WRITE, FI_SEND, FI_WRITE, fi_addr_t,
};
use crate::cntr::Cntr;
use crate::cq::{Completion, CompletionError, Context, Cq, NextEntry};
use crate::deferred::{InternalOps, Outcome};
use crate::packet_sink::PacketSink;
use crate::probes::{self, EndpointTraceIds};
use crate::reserved::{INTERNAL_OP, OF_SHARED_RX, OWN_FLAGS};
use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicIsize, Ordering};

/// Operations accepted by a provider and not completed. Nothing is counted in builds without debug
/// assertions, nor in completion sinks never bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutstandingOps {
    #[cfg(debug_assertions)]
    open: Option<Arc<AtomicIsize>>,
}

impl OutstandingOps {
    /// Returns a counting instance.
    pub(crate) fn counting() -> Self {
        #[cfg(debug_assertions)]
        return Self { open: Some(Arc::default()) };
        #[cfg(not(debug_assertions))]
        Self {}
    }

    #[inline(always)]
    #[allow(unused_variables, clippy::unused_self, reason = "where nothing is counted")]
    fn add(&self, change: isize) {
        #[cfg(debug_assertions)]
        if let Some(open) = &self.open {
            let left = open.fetch_add(change, Ordering::SeqCst) + change;
            assert!(left >= 0, "an operation has completed more than once");
        }
    }

    /// Counts an operation passed to a provider.
    #[inline(always)]
    pub(crate) fn posted(&self) {
        self.add(1);
    }

    /// Discounts an operation rejected by the provider.
    #[inline(always)]
    pub(crate) fn refused(&self) {
        self.add(-1);
    }

    /// Discounts a completed operation. Panics if there was none.
    #[inline(always)]
    fn over(&self) {
        self.add(-1);
    }

    #[inline(always)]
    #[allow(unused_variables, clippy::unused_self, reason = "where nothing is counted")]
    fn check_none(&self, what: &str) {
        #[cfg(debug_assertions)]
        if let Some(open) = &self.open {
            let left = open.load(Ordering::SeqCst);
            assert!(left == 0, "{left} {what} of a closed endpoint have not completed");
        }
    }
}

/// Passes the outcome of an internal operation to the domain's deferred work.
#[cold]
fn complete_internal(internal_ops: Option<&InternalOps>, outcome: Outcome) {
    if let Some(internal_ops) = internal_ops {
        internal_ops.done(outcome);
    }
}

/// Numbers of an endpoint in traces, shared with its completion sinks; none for sinks without an
/// endpoint.
type TraceIds = Option<Arc<EndpointTraceIds>>;

/// Reports a completion to a tracer.
#[cold]
#[inline(never)]
fn trace(ids: &TraceIds, cq: Option<&Arc<Cq>>, of: (Context, u64, usize), error: i64) {
    let own = ids.as_ref().map_or(0, |ids| ids.own());
    let queue = cq.map_or(0, |cq| Arc::as_ptr(cq).addr());
    probes::completed(own, of.0.0.addr(), of.1 & !OWN_FLAGS, of.2, error, queue);
}

/// Reports a failure to a tracer.
#[cold]
fn trace_failed(ids: &TraceIds, cq: Option<&Arc<Cq>>, error: &CompletionError) {
    if probes::is_enabled() {
        let CompletionError { of, error, .. } = error;
        trace(ids, cq, (of.context, of.flags, of.len), error.code().into());
    }
}

/// Completion sink of an endpoint's sends, reads, writes and atomic operations.
#[derive(Clone, Debug, Default)]
pub struct TxCompletions {
    pub(crate) cq: Option<Arc<Cq>>,
    /// The counter of sends.
    pub(crate) cntr: Option<Arc<Cntr>>,
    /// The counters of reads and of writes; atomic operations count as one or the other.
    pub(crate) reads: Option<Arc<Cntr>>,
    pub(crate) writes: Option<Arc<Cntr>>,
    pub(crate) internal_ops: Option<InternalOps>,
    pub(crate) outstanding: OutstandingOps,
    trace_ids: TraceIds,
}

impl TxCompletions {
    /// Returns the numbers of the endpoint in traces, if there is one.
    pub fn trace_ids(&self) -> Option<&EndpointTraceIds> {
        self.trace_ids.as_deref()
    }

    /// Reports a success to a tracer, if there is one. It comes after the write of the entry: no register
    /// keeps its value during the call.
    #[inline(always)]
    fn trace(&self, of: &Completion) {
        if probes::is_enabled() {
            trace(&self.trace_ids, self.cq.as_ref(), (of.context, of.flags, of.len), 0);
        }
    }

    /// The completion queue, if there is one.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// Returns the counter of operations with these flags in their completion entry: FI_READ,
    /// FI_WRITE, else sends.
    #[inline]
    pub(crate) fn cntr_of(&self, flags: u64) -> Option<&Arc<Cntr>> {
        match flags & (FI_READ | FI_WRITE) {
            FI_READ => self.reads.as_ref(),
            FI_WRITE => self.writes.as_ref(),
            _ => self.cntr.as_ref(),
        }
    }

    /// Has successes and failures reported to this queue.
    pub fn report_to(&mut self, cq: Arc<Cq>) {
        self.cq = Some(cq);
    }

    /// Returns true if operations with these flags in their completion entry have a counter.
    #[inline]
    pub fn counts(&self, flags: u64) -> bool {
        self.cntr_of(flags).is_some()
    }

    /// Returns true if the queue has space for the completion of another operation; always true
    /// unless it is `wanted`.
    #[inline(always)]
    pub fn has_space(&self, wanted: bool) -> bool {
        !(wanted && self.cq.as_ref().is_some_and(|cq| !cq.has_space()))
    }

    /// Returns true if the application is known to have read all entries of the queue.
    #[inline]
    pub fn cq_is_drained(&self) -> bool {
        self.cq.as_ref().is_some_and(|cq| !cq.has_entries() && !cq.has_owner())
    }

    /// Returns true if entries go to another provider's queue.
    #[inline]
    pub fn has_owner(&self) -> bool {
        self.cq.as_ref().is_some_and(|cq| cq.has_owner())
    }

    /// Reports a successful operation: counts it and its bytes (`of.len`), and writes an entry if
    /// one is `wanted`.
    #[inline(always)]
    pub fn done(&self, of: Completion, wanted: bool) {
        if of.flags & INTERNAL_OP != 0 {
            self.outstanding.over();
            self.trace(&of);
            return complete_internal(self.internal_ops.as_ref(), Ok(of));
        }
        self.succeeded(of, wanted);
    }

    /// Reports a success like [`done`](Self::done), of an operation known not to be the
    /// library's own.
    #[inline(always)]
    pub fn succeeded(&self, of: Completion, wanted: bool) {
        self.outstanding.over();
        if let Some(cntr) = self.cntr_of(of.flags) {
            cntr.completed(of.len);
        }
        if wanted {
            if let Some(cq) = &self.cq {
                cq.write(Completion { len: 0, ..of });
            }
        }
        self.trace(&of);
    }

    /// Returns the slot of the next send's completion entry, if a success has no other effect.
    #[inline(always)]
    pub fn next_entry(&self) -> Option<NextEntry<'_>> {
        if self.cntr.is_some() { None } else { self.cq.as_ref()?.next_entry() }
    }

    /// Reports the success of a send like [`succeeded`](Self::succeeded), by its
    /// [entry](Self::next_entry).
    #[inline(always)]
    pub fn succeeded_at(&self, next: NextEntry<'_>, of: Completion) {
        self.outstanding.over();
        next.write(Completion { len: 0, ..of });
        self.trace(&of);
    }

    /// Reports a failed or cancelled operation: counts it, and writes an error entry.
    pub fn failed(&self, error: CompletionError) {
        self.outstanding.over();
        trace_failed(&self.trace_ids, self.cq.as_ref(), &error);
        if error.of.flags & INTERNAL_OP != 0 {
            return complete_internal(self.internal_ops.as_ref(), Err(error));
        }
        if let Some(cntr) = self.cntr_of(error.of.flags) {
            cntr.failed();
        }
        if let Some(cq) = &self.cq {
            cq.write_error(error);
        }
    }

    /// Records the transfer of an operation to another provider for its completion. The operation
    /// counts, and its report is passed to [`reported`](Self::reported) or
    /// [`report_failed`](Self::report_failed).
    #[inline]
    pub fn handed_on(&self) {
        self.outstanding.over();
    }

    /// Writes the entry of a successful operation completed by another provider.
    #[inline(always)]
    pub fn reported(&self, of: Completion) {
        self.trace(&of);
        if let Some(cq) = &self.cq {
            cq.write(of);
        }
    }

    /// Writes the entry of a failed operation completed by another provider.
    pub fn report_failed(&self, error: CompletionError) {
        trace_failed(&self.trace_ids, self.cq.as_ref(), &error);
        if let Some(cq) = &self.cq {
            cq.write_error(error);
        }
    }

    /// Stops reporting at the close of the endpoint: later completions write and count nothing.
    pub fn mute(&mut self) {
        (self.cq, self.cntr, self.reads, self.writes) = (None, None, None, None);
    }

    /// Asserts, in builds with debug assertions, the absence of pending operations at the close of
    /// an endpoint.
    pub fn close(&self) {
        self.outstanding.check_none("transfers");
    }
}

/// Completion sink of an endpoint's receives, and of peers' accesses to its memory.
#[derive(Clone, Debug)]
pub struct RxCompletions {
    pub(crate) cq: Option<Arc<Cq>>,
    /// A receive's success writes an entry if it has any of these flags.
    pub(crate) reported: u64,
    /// The counter of receives.
    pub(crate) cntr: Option<Arc<Cntr>>,
    /// The counters of peers' reads and of their writes (FI_REMOTE_READ, FI_REMOTE_WRITE).
    pub(crate) peers_reads: Option<Arc<Cntr>>,
    pub(crate) peers_writes: Option<Arc<Cntr>>,
    /// Bits set in the source addresses of entries: all (FI_ADDR_NOTAVAIL) if the endpoint does not
    /// report sources, else none.
    hidden: fi_addr_t,
    pub(crate) internal_ops: Option<InternalOps>,
    pub(crate) outstanding: OutstandingOps,
    pub(crate) trace_ids: TraceIds,
}

impl Default for RxCompletions {
    fn default() -> Self {
        Self {
            cq: None,
            reported: FI_COMPLETION | OF_SHARED_RX,
            cntr: None,
            peers_reads: None,
            peers_writes: None,
            hidden: 0,
            internal_ops: None,
            outstanding: OutstandingOps::default(),
            trace_ids: None,
        }
    }
}

impl RxCompletions {
    /// Returns the numbers of the endpoint in traces, if there is one.
    pub fn trace_ids(&self) -> Option<&EndpointTraceIds> {
        self.trace_ids.as_deref()
    }

    /// Reports a success to a tracer, if there is one. It comes after the write of the entry: no register
    /// keeps its value during the call.
    #[inline(always)]
    fn trace(&self, of: &Completion) {
        if probes::is_enabled() {
            trace(&self.trace_ids, self.cq.as_ref(), (of.context, of.flags, of.len), 0);
        }
    }

    /// Enables source addresses in entries; without FI_SOURCE entries have FI_ADDR_NOTAVAIL instead
    /// (fi_cq(3)).
    pub(crate) fn tell_sources(&mut self, notified: bool) {
        self.hidden = if notified { 0 } else { FI_ADDR_NOTAVAIL };
    }

    /// The entry as the application gets it.
    #[inline(always)]
    fn filtered(&self, of: Completion) -> Completion {
        Completion { src: of.src | self.hidden, ..of }
    }

    /// Selects the receives writing an entry: only ones requesting it (FI_SELECTIVE_COMPLETION), or
    /// also the ones of a shared receive context.
    pub(crate) fn set_selective(&mut self, selective: bool) {
        self.reported = FI_COMPLETION | if selective { 0 } else { OF_SHARED_RX };
    }

    /// Has receives reported to this queue.
    pub fn report_to(&mut self, cq: Arc<Cq>) {
        self.cq = Some(cq);
    }

    /// Returns the queue of receive completions.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// Returns the access to the domain's deferred work, if the endpoint has it.
    pub fn internal_ops(&self) -> Option<&InternalOps> {
        self.internal_ops.as_ref()
    }

    /// Returns true if the queue has space for another receive's completion.
    #[inline]
    pub fn has_space(&self) -> bool {
        self.cq.as_ref().is_none_or(|cq| cq.has_space())
    }

    /// Returns true if a message may go to this packet sink: its receive would have no other effect
    /// than the first entry in the sink's queue.
    #[inline(always)]
    pub(crate) fn are_taken_by(&self, sink: &PacketSink<'_>) -> bool {
        self.cntr.is_none() && self.cq.as_ref().is_some_and(|cq| cq.is_drained_by(sink))
    }

    /// Returns true if the success of a receive with these flags writes an entry.
    #[inline(always)]
    pub fn wants(&self, flags: u64) -> bool {
        flags & self.reported != 0
    }

    /// Counts one more operation for the following completion: it reports a part of a multi-receive
    /// buffer and does not end the receive itself.
    #[inline(always)]
    pub fn part(&self) {
        self.outstanding.posted();
    }

    /// Reports a receive with its message: counts it, and writes an entry if one is `wanted`.
    #[inline(always)]
    pub fn done(&self, of: Completion, wanted: bool) {
        if of.flags & INTERNAL_OP != 0 {
            self.outstanding.over();
            self.trace(&of);
            return complete_internal(self.internal_ops.as_ref(), Ok(of));
        }
        self.succeeded(of, wanted);
    }

    /// Reports a success like [`done`](Self::done), of a receive known not to be the library's
    /// own.
    #[inline(always)]
    pub fn succeeded(&self, of: Completion, wanted: bool) {
        self.outstanding.over();
        if let Some(cntr) = &self.cntr {
            cntr.completed(of.len);
        }
        if wanted {
            if let Some(cq) = &self.cq {
                cq.write(self.filtered(of));
            }
        }
        self.trace(&of);
    }

    /// Returns the slot of the next receive's completion entry, if a success has no other effect.
    #[inline(always)]
    pub fn next_entry(&self) -> Option<NextEntry<'_>> {
        if self.cntr.is_some() { None } else { self.cq.as_ref()?.next_entry() }
    }

    /// Reports a success like [`succeeded`](Self::succeeded), by its [entry](Self::next_entry). There
    /// is no tracer: during a trace no fast path is taken.
    #[inline(always)]
    pub fn succeeded_at(&self, next: NextEntry<'_>, of: Completion, wanted: bool) {
        self.outstanding.over();
        if wanted {
            next.write(self.filtered(of));
        }
    }

    /// Reports a failed or cancelled receive: counts it, and writes an error entry.
    #[cold]
    pub fn failed(&self, error: CompletionError) {
        self.outstanding.over();
        trace_failed(&self.trace_ids, self.cq.as_ref(), &error);
        if error.of.flags & INTERNAL_OP != 0 {
            return complete_internal(self.internal_ops.as_ref(), Err(error));
        }
        if let Some(cntr) = &self.cntr {
            cntr.failed();
        }
        if let Some(cq) = &self.cq {
            cq.write_error(CompletionError { of: self.filtered(error.of), ..error });
        }
    }

    /// Reports a message found by FI_PEEK; it is not counted.
    pub fn looked_at(&self, of: Completion, wanted: bool) {
        self.outstanding.over();
        if wanted {
            if let Some(cq) = &self.cq {
                cq.write(self.filtered(of));
            }
        }
    }

    /// Reports an FI_PEEK without a matching message.
    pub fn found_none(&self, error: CompletionError) {
        self.outstanding.over();
        if let Some(cq) = &self.cq {
            cq.write_error(CompletionError { of: self.filtered(error.of), ..error });
        }
    }

    /// Reports a buffered message, to be claimed or discarded. `posted`: it matched a posted tag,
    /// and this completes the operation.
    pub fn on_rts(&self, of: Completion, posted: bool) {
        if posted {
            self.outstanding.over();
        }
        if let Some(cq) = &self.cq {
            cq.write(self.filtered(of));
        }
    }

    /// Discounts `count` receives dropped at the close of the endpoint.
    pub fn dropped(&self, count: usize) {
        (0..count).for_each(|_| self.outstanding.over());
    }

    /// Counts a peer's read of our memory, or its write if `wrote`, of `len` bytes.
    pub fn peer_accessed(&self, wrote: bool, len: usize) {
        if let Some(cntr) = if wrote { &self.peers_writes } else { &self.peers_reads } {
            cntr.completed(len);
        }
    }

    /// Writes an entry for a peer's access with remote CQ data.
    pub fn peer_notified(&self, flags: u64, len: usize, data: u64, src: fi_addr_t) {
        if let Some(cq) = &self.cq {
            let of = Completion::of(Context::NULL, flags | FI_REMOTE_CQ_DATA, len);
            cq.write(self.filtered(Completion { data, src, ..of }));
        }
    }

    /// Returns true for each counted kind: peers' reads, and their writes.
    pub fn counts_peers(&self) -> [bool; 2] {
        [self.peers_reads.is_some(), self.peers_writes.is_some()]
    }

    /// Stops reporting at the close of the endpoint: later completions are dropped.
    pub fn mute(&mut self) {
        let (internal_ops, outstanding) =
            (self.internal_ops.take(), std::mem::take(&mut self.outstanding));
        let trace_ids = self.trace_ids.take();
        *self = Self { internal_ops, outstanding, trace_ids, ..Self::default() };
    }

    /// Asserts, in builds with debug assertions, the absence of pending receives at the close of an
    /// endpoint.
    pub fn close(&self) {
        self.outstanding.check_none("receives");
    }
}

/// Completion sinks of an endpoint, for both directions.
#[derive(Clone, Debug, Default)]
pub struct CompletionSink {
    /// Sink of sends, reads, writes and atomic operations.
    pub tx: TxCompletions,
    /// Sink of receives, and of peers' accesses to local memory.
    pub rx: RxCompletions,
}

impl CompletionSink {
    /// Returns the completion sinks of a new endpoint, without any binding.
    pub(crate) fn new() -> Self {
        let mut completions = Self::default();
        (completions.tx.outstanding, completions.rx.outstanding) =
            (OutstandingOps::counting(), OutstandingOps::counting());
        let ids = Arc::<EndpointTraceIds>::default();
        (completions.tx.trace_ids, completions.rx.trace_ids) = (Some(ids.clone()), Some(ids));
        completions
    }

    /// Returns the numbers of the endpoint in traces.
    pub(crate) fn trace_ids(&self) -> Option<&EndpointTraceIds> {
        self.rx.trace_ids()
    }

    /// Returns the access to the domain's deferred work, if the endpoint has it.
    pub fn internal_ops(&self) -> Option<&InternalOps> {
        self.rx.internal_ops()
    }

    /// Sets the access to the domain's deferred work, for both directions.
    pub(crate) fn set_internal_ops(&mut self, internal_ops: Option<InternalOps>) {
        self.tx.internal_ops.clone_from(&internal_ops);
        self.rx.internal_ops = internal_ops;
    }

    /// All bound counters, each as often as it is bound.
    pub(crate) fn cntrs(&self) -> impl Iterator<Item = &Arc<Cntr>> {
        let (tx, rx) = (&self.tx, &self.rx);
        let all = [&tx.cntr, &rx.cntr, &tx.reads, &tx.writes, &rx.peers_reads, &rx.peers_writes];
        all.into_iter().flatten()
    }

    /// Returns the counter of operations with these flags in their completion entry.
    pub(crate) fn cntr_of(&self, flags: u64) -> Option<&Arc<Cntr>> {
        if flags & FI_RECV != 0 { self.rx.cntr.as_ref() } else { self.tx.cntr_of(flags) }
    }

    /// Writes the entry of an operation executed by the library without the provider.
    pub(crate) fn write(&self, outcome: Outcome) {
        let flags = outcome.as_ref().map_or_else(|error| error.of.flags, |of| of.flags);
        let cq = if flags & FI_RECV != 0 { &self.rx.cq } else { &self.tx.cq };
        match (cq, outcome) {
            (Some(cq), Ok(of)) => cq.write(of),
            (Some(cq), Err(error)) => cq.write_error(error),
            (None, _) => {}
        }
    }

    /// Reports the success of a sending operation not passed to the provider: counts it and its
    /// bytes, and writes an entry if one is `wanted`.
    pub(crate) fn succeed(&self, of: Completion, wanted: bool) {
        self.tx.trace(&of);
        if let Some(cntr) = self.cntr_of(of.flags) {
            cntr.completed(of.len);
        }
        if wanted {
            self.write(Ok(Completion { len: 0, ..of }));
        }
    }

    /// Reports a failed or cancelled operation not passed to the provider.
    pub(crate) fn fail(&self, error: CompletionError) {
        trace_failed(&self.tx.trace_ids, self.tx.cq.as_ref(), &error);
        if let Some(cntr) = self.cntr_of(error.of.flags) {
            cntr.failed();
        }
        self.write(Err(error));
    }

    /// Returns the kinds of counted operations, except receives: FI_SEND, FI_READ, FI_WRITE,
    /// FI_REMOTE_READ, FI_REMOTE_WRITE.
    pub fn kinds(&self) -> u64 {
        let counted = |kind: &&u64| self.cntr_of_kind(**kind).is_some();
        [FI_SEND, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE].iter().filter(counted).sum()
    }

    /// The counter of one of [`kinds`](Self::kinds).
    fn cntr_of_kind(&self, kind: u64) -> Option<&Arc<Cntr>> {
        match kind {
            FI_SEND => self.tx.cntr.as_ref(),
            FI_READ => self.tx.reads.as_ref(),
            FI_WRITE => self.tx.writes.as_ref(),
            FI_REMOTE_READ => self.rx.peers_reads.as_ref(),
            FI_REMOTE_WRITE => self.rx.peers_writes.as_ref(),
            _ => None,
        }
    }

    /// Counts an operation of this kind completed by another provider.
    pub fn count(&self, kind: u64, failed: bool) {
        match self.cntr_of_kind(kind) {
            Some(cntr) if failed => cntr.failed(),
            Some(cntr) => cntr.completed(0),
            None => {}
        }
    }

    /// Stops reporting in both directions, because the endpoint closes.
    pub fn mute(&mut self) {
        self.tx.mute();
        self.rx.mute();
    }

    /// Asserts, in builds with debug assertions, the absence of pending operations and receives at
    /// the close of an endpoint.
    pub fn close(&self) {
        self.tx.close();
        self.rx.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{self, FI_MSG, FI_RMA, FI_TAGGED};
    use crate::cq::testing::{domain, queue};
    use crate::deferred::DeferredQueue;
    use crate::error::Error;
    use core::ffi::c_void;
    use std::sync::Mutex;

    fn cntr() -> Arc<Cntr> {
        // SAFETY: it is no counter of a peer provider's, and has no wait set.
        unsafe { Cntr::open(domain(), None, std::ptr::null_mut()) }.unwrap()
    }

    /// Returns a completion sink with a queue and a counter for each kind of operation.
    fn bound() -> CompletionSink {
        let mut completions = CompletionSink::new();
        let (tx, rx) = (&mut completions.tx, &mut completions.rx);
        (tx.cq, rx.cq) = (Some(queue()), Some(queue()));
        (tx.cntr, tx.reads, tx.writes) = (Some(cntr()), Some(cntr()), Some(cntr()));
        (rx.cntr, rx.peers_reads, rx.peers_writes) = (Some(cntr()), Some(cntr()), Some(cntr()));
        completions
    }

    fn entry(flags: u64) -> Completion {
        Completion::of(Context::NULL, flags, 5)
    }

    fn entries(cq: &Option<Arc<Cq>>) -> usize {
        let cq = cq.as_ref().unwrap();
        1024 - cq.free_entries()
    }

    fn sums(completions: &CompletionSink) -> Vec<u64> {
        completions.cntrs().map(|cntr| cntr.sum()).collect()
    }

    #[test]
    fn each_kind_of_operation_has_its_counter_and_its_queue() {
        let completions = bound();
        (0..6).for_each(|_| completions.tx.outstanding.posted());
        completions.tx.done(entry(FI_SEND | FI_TAGGED), true);
        completions.tx.done(entry(FI_READ | FI_RMA), true);
        completions.tx.done(entry(FI_WRITE | FI_RMA), false);
        completions.tx.failed(CompletionError::new(entry(FI_WRITE | FI_RMA), Error::CANCELED));
        completions.tx.failed(CompletionError::new(entry(FI_SEND | FI_MSG), Error::CANCELED));
        completions.tx.succeeded(entry(FI_SEND | FI_MSG), false);
        (0..2).for_each(|_| completions.rx.outstanding.posted());
        completions.rx.done(entry(FI_RECV | FI_MSG), true);
        completions.rx.failed(CompletionError::new(entry(FI_RECV | FI_MSG), Error::TRUNC));
        completions.rx.peer_accessed(false, 5);
        completions.rx.peer_notified(FI_RMA, 5, 7, 0);
        // Sends, receives, reads, writes, peers' reads and peers' writes.
        assert_eq!(sums(&completions), [3, 2, 1, 2, 1, 0]);
        assert_eq!((entries(&completions.tx.cq), entries(&completions.rx.cq)), (4, 3));
        completions.close();
    }

    #[test]
    fn read_state_of_a_peer_providers_queue_is_unknown() {
        unsafe extern "C" fn write(
            _cq: *mut abi::fid_peer_cq,
            _context: *mut c_void,
            _flags: u64,
            _len: usize,
            _buf: *mut c_void,
            _data: u64,
            _tag: u64,
            _src: fi_addr_t,
        ) -> isize {
            0
        }
        unsafe extern "C" fn write_error(
            _cq: *mut abi::fid_peer_cq,
            _entry: *const abi::fi_cq_err_entry,
        ) -> isize {
            0
        }
        let mut ops = abi::fi_ops_cq_owner {
            size: size_of::<abi::fi_ops_cq_owner>(),
            write: Some(write),
            writeerr: Some(write_error),
        };
        let mut completions = bound();
        assert!(completions.tx.cq_is_drained() && !completions.tx.has_owner());
        // SAFETY: all zeros are valid, but for the table, which is there as long as the queue.
        let peers = unsafe {
            let mut cq = std::mem::zeroed::<abi::fid_peer_cq>();
            cq.owner_ops = &raw mut ops;
            let size = size_of::<abi::fi_peer_cq_context>();
            let mut context = abi::fi_peer_cq_context { size, cq: &raw mut cq };
            let mut attr = std::mem::zeroed::<abi::fi_cq_attr>();
            attr.flags = abi::FI_PEER;
            Cq::open(domain(), Some(&attr), (&raw mut context).cast())
        };
        completions.tx.report_to(peers.unwrap());
        assert!(completions.tx.has_owner() && !completions.tx.cq_is_drained());
    }

    #[test]
    fn completion_has_a_source_only_if_sources_are_reported() {
        let mut rx = RxCompletions::default();
        let source = |rx: &RxCompletions| rx.filtered(Completion { src: 3, ..entry(FI_RECV) }).src;
        assert_eq!(source(&rx), 3);
        rx.tell_sources(false);
        assert_eq!(source(&rx), FI_ADDR_NOTAVAIL);
        rx.tell_sources(true);
        assert_eq!(source(&rx), 3);
    }

    #[test]
    fn operation_without_a_provider_is_reported_like_any_other() {
        let completions = bound();
        completions.succeed(entry(FI_SEND | FI_MSG), true);
        completions.succeed(entry(FI_SEND | FI_MSG), false);
        completions.fail(CompletionError::new(entry(FI_RECV | FI_MSG), Error::CANCELED));
        assert_eq!(sums(&completions), [2, 1, 0, 0, 0, 0]);
        assert_eq!((entries(&completions.tx.cq), entries(&completions.rx.cq)), (1, 1));
        completions.close();
    }

    #[test]
    fn internal_operation_completes_only_to_its_initiator() {
        let mut completions = bound();
        let later = DeferredQueue::new().unwrap();
        completions.set_internal_ops(Some(InternalOps { later: later.clone(), task_queue: 1 }));
        let notified = Arc::new(Mutex::new(Vec::new()));
        for fails in [false, true] {
            let notified = notified.clone();
            let context = later.expect(1, move |outcome| {
                notified.lock().unwrap().push(outcome.map(|of| of.len).map_err(|e| e.error));
            });
            let of = Completion { context, ..entry(FI_SEND | FI_MSG | INTERNAL_OP) };
            completions.tx.outstanding.posted();
            match fails {
                false => completions.tx.done(of, true),
                true => completions.tx.failed(CompletionError::new(of, Error::CANCELED)),
            }
        }
        later.run();
        assert_eq!(*notified.lock().unwrap(), [Ok(5), Err(Error::CANCELED)]);
        assert_eq!((sums(&completions), entries(&completions.tx.cq)), (vec![0; 6], 0));
        completions.close();
    }

    #[test]
    fn muted_completion_sink_reports_nothing_but_counts_operations() {
        let mut completions = bound();
        let before = completions.clone();
        completions.tx.outstanding.posted();
        completions.rx.outstanding.posted();
        completions.mute();
        completions.tx.failed(CompletionError::new(entry(FI_SEND | FI_MSG), Error::CANCELED));
        completions.rx.failed(CompletionError::new(entry(FI_RECV | FI_MSG), Error::CANCELED));
        assert_eq!((sums(&before), entries(&before.rx.cq)), (vec![0; 6], 0));
        completions.close();
    }

    #[test]
    fn parts_of_a_multi_receive_buffer_are_over_before_it_is() {
        let completions = bound();
        completions.rx.outstanding.posted();
        for _ in 0..3 {
            completions.rx.part();
            completions.rx.done(entry(FI_RECV | FI_MSG), true);
        }
        completions.rx.done(entry(FI_RECV | FI_MSG | crate::abi::FI_MULTI_RECV), true);
        completions.close();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "completed more than once")]
    fn a_second_completion_of_an_operation_is_seen() {
        let completions = CompletionSink::new();
        completions.tx.outstanding.posted();
        completions.tx.done(entry(FI_SEND | FI_MSG), true);
        completions.tx.failed(CompletionError::new(entry(FI_SEND | FI_MSG), Error::CANCELED));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "1 receives of a closed endpoint have not completed")]
    fn a_lost_completion_is_seen_when_the_endpoint_closes() {
        let completions = CompletionSink::new();
        (0..2).for_each(|_| completions.rx.outstanding.posted());
        completions.rx.done(entry(FI_RECV | FI_MSG), true);
        completions.close();
    }

    #[test]
    fn refused_operation_does_not_count_as_outstanding() {
        let completions = CompletionSink::new();
        completions.tx.outstanding.posted();
        completions.tx.outstanding.refused();
        completions.close();
    }

    /// Without counting, no space is used for it.
    #[test]
    #[cfg(not(debug_assertions))]
    fn operation_counting_takes_no_memory_in_release_builds() {
        assert_eq!(size_of::<OutstandingOps>(), 0);
    }
}
