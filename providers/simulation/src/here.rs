//! Environment queried by an engine under test: its injected fault, the time, its process, and the
//! availability of memory. All of it is thread-local, like a simulation.
use crate::random::SimRandom;
use ofi_provider::error::{Error, Result};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Fault to be found by a simulator, injected only by the simulator's own tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// An operation is not reported.
    LostCompletion,
    /// An operation is reported twice.
    SecondCompletion,
    /// A message goes to another receive than the first matching one.
    SwappedMatch,
    /// Messages of one link change places.
    SwappedMessages,
    /// The state of an unreferenced peer is not removed.
    LeakedPeer,
    /// A connection is not closed.
    LeakedConnection,
    /// A byte on its way is another one.
    WrongByte,
    /// Buffered messages are counted with fewer bytes than they use.
    UncountedBytes,
    /// A direction of a link switches to memory at a different byte position than announced.
    MisplacedWrite,
    /// A peer's doorbell is ignored.
    LostSign,
    /// Bytes sent on a lost socket are not sent again.
    LostSegment,
    /// A connection counts as idle although something is in flight on it.
    ClosedInUse,
}

std::thread_local! {
    static INJECTED: Cell<Option<InjectedFault>> = const { Cell::new(None) };
    static ASKED: Cell<u32> = const { Cell::new(0) };
    static PID: Cell<Option<u32>> = const { Cell::new(None) };
    static NANOS: Cell<u64> = const { Cell::new(0) };
    static SHORTAGE: RefCell<Option<(SimRandom, usize)>> = const { RefCell::new(None) };
    static REFUSED: Cell<u32> = const { Cell::new(0) };
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Plants a fault, or takes it out.
pub fn plant(fault: Option<InjectedFault>) {
    INJECTED.set(fault);
    ASKED.set(0);
}

/// Returns the injected fault, periodically after a number of calls.
pub fn injected() -> Option<InjectedFault> {
    let fault = INJECTED.get()?;
    ASKED.set(ASKED.get().wrapping_add(1));
    (ASKED.get() % 5 == 0).then_some(fault)
}

/// Returns the process of the currently acting endpoint, if each has its own.
pub fn pid() -> Option<u32> {
    PID.get()
}

pub(crate) fn be_of_process(pid: Option<u32>) {
    PID.set(pid);
}

/// The time in the world of this thread.
pub fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_nanos(NANOS.get())
}

/// Time since the beginning, in nanoseconds.
pub fn nanos() -> u64 {
    NANOS.get()
}

/// Lets time pass.
pub fn pass(nanos: u64) {
    NANOS.set(NANOS.get() + nanos);
}

/// Denies memory for data from peers once in `one_in` times from now on; never for 0.
pub fn have_shortage(one_in: usize, random: SimRandom) {
    SHORTAGE.set((one_in > 0).then_some((random, one_in)));
}

/// Runs `open` without denials of memory.
pub(crate) fn with_memory<R>(open: impl FnOnce() -> R) -> R {
    OPENING.set(true);
    let result = open();
    OPENING.set(false);
    result
}

/// Checks if there is memory for data from a peer; fails with -FI_ENOMEM if not.
pub fn memory() -> Result {
    if OPENING.get() {
        return Ok(());
    }
    SHORTAGE.with_borrow_mut(|shortage| {
        let refuses = shortage.as_mut().is_some_and(|(random, one_in)| random.one_in(*one_in));
        REFUSED.set(REFUSED.get() + u32::from(refuses));
        if refuses { Err(Error::NOMEM) } else { Ok(()) }
    })
}

/// Returns the number of denials of memory since the last call.
pub fn take_refused_count() -> u32 {
    REFUSED.take()
}

/// A simulation is over, or begins.
pub(crate) fn clear() {
    PID.set(None);
    NANOS.set(0);
    SHORTAGE.set(None);
    OPENING.set(false);
    REFUSED.set(0);
}
