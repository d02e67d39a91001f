//! What an engine under test asks: which fault is planted in it, what time it is, which process it
//! is of, and whether there is memory. All of it is the thread's, as a simulation is.
use crate::random::SimRandom;
use ofi_provider::error::{Error, Result};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A fault for a simulator to find, which only the simulator's own tests have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedFault {
    /// An operation is not reported.
    LostCompletion,
    /// An operation is reported twice.
    SecondCompletion,
    /// A message goes to another receive than the first that matches it.
    SwappedMatch,
    /// Messages of one link change places.
    SwappedMessages,
    /// What is known of a peer stays although nothing refers to it.
    LeakedPeer,
    /// A connection is not closed.
    LeakedConnection,
    /// A byte on its way is another one.
    WrongByte,
    /// Kept messages are counted with fewer bytes than they take.
    UncountedBytes,
    /// A direction of a link moves to memory at another byte than is said.
    WrongPlace,
    /// What a peer's sign is for is not looked at.
    LostSign,
}

std::thread_local! {
    static PLANTED: Cell<Option<PlantedFault>> = const { Cell::new(None) };
    static ASKED: Cell<u32> = const { Cell::new(0) };
    static PID: Cell<Option<u32>> = const { Cell::new(None) };
    static NANOS: Cell<u64> = const { Cell::new(0) };
    static SHORTAGE: RefCell<Option<(SimRandom, usize)>> = const { RefCell::new(None) };
    static REFUSED: Cell<u32> = const { Cell::new(0) };
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Plants a fault, or takes it out.
pub fn plant(fault: Option<PlantedFault>) {
    PLANTED.set(fault);
    ASKED.set(0);
}

/// The fault that is planted, once in so many calls.
pub fn planted() -> Option<PlantedFault> {
    let fault = PLANTED.get()?;
    ASKED.set(ASKED.get().wrapping_add(1));
    ASKED.get().is_multiple_of(5).then_some(fault)
}

/// The process that the endpoint belongs to which does something now, if each has its own.
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

/// Refuses memory for what peers send one in so many times from now on; never for 0.
pub fn have_shortage(one_in: usize, random: SimRandom) {
    SHORTAGE.set((one_in > 0).then_some((random, one_in)));
}

/// There is memory for what `open` does.
pub(crate) fn with_memory<R>(open: impl FnOnce() -> R) -> R {
    OPENING.set(true);
    let result = open();
    OPENING.set(false);
    result
}

/// Whether there is memory for what a peer sends: -FI_ENOMEM if not.
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

/// How often memory was refused since this was asked last.
pub fn refusals() -> u32 {
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
