//! Deferred work of a domain, run without any lock held: operations waiting for a counter
//! (fi_trigger(3)), steps of collective operations (fi_collective(3)), and the protocol of
//! multicast groups (fi_cm(3)).
//!
//! Engines complete operations with their lock held, and nothing new can be started there. Work
//! following from a completion is therefore queued as a [`Task`]. The threads making progress run
//! the tasks one after the other, never nested, so a chain of any length needs no stack.
//!
//! Operations posted for this purpose carry [`INTERNAL_OP`] in their flags. The engine passes the flag on
//! to the completion, and hands this to [`InternalOps::done`] instead of the application's queues and
//! counters.
//!
//! Only domains opened for FI_TRIGGER, FI_COLLECTIVE or FI_MULTICAST have a `DeferredQueue`.
use crate::abi::{FI_COLLECTIVE, FI_MULTICAST, FI_TRIGGER, fi_addr_t};
use crate::cntr::Cntr;
use crate::cq::{Completion, CompletionError, Context};
use crate::error::{Error, Result};
use crate::object::Object;
use crate::on_domain::{AwaitedCntr, CntrWatch};
use crate::progress::Progress;
use crate::reserved::{INTERNAL_OP, MULTICAST_TAG};
use crate::slab::Slab;
use crate::slot_context::{self, MAX_SERIAL};
use crate::sys::EventFd;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Capabilities requiring a [`DeferredQueue`] in the domain.
pub(crate) const CAPS: u64 = FI_TRIGGER | FI_COLLECTIVE | FI_MULTICAST;

/// Returns true if a message with this tag, of an operation with these flags, is a notice of
/// multicast groups. Such a notice may be sent only to peers supporting it; a send to another one
/// fails with -FI_EOPNOTSUPP.
pub fn is_group_notice(flags: u64, tag: u64) -> bool {
    flags & INTERNAL_OP != 0 && tag == MULTICAST_TAG
}

/// Result of an operation.
pub type Outcome = std::result::Result<Completion, CompletionError>;

/// Work of a task, run without any lock held. It returns -FI_EAGAIN to be called again.
type TaskFn = Box<dyn FnMut() -> Result + Send>;

/// Continuation with the outcome of an operation, run without any lock held.
type Continuation = Box<dyn FnOnce(Outcome) + Send>;

/// Callback for the end of a peer's connection, with the error.
type FailureListener = Arc<dyn Fn(fi_addr_t, Error) + Send + Sync>;

/// Task to run without any lock held. Tasks of one task queue keep their order.
pub(crate) struct Task {
    task_queue: usize,
    run: TaskFn,
}

impl Task {
    /// Returns a task for the endpoint with this `task_queue`.
    pub(crate) fn new(task_queue: usize, run: impl FnMut() -> Result + Send + 'static) -> Self {
        Self { task_queue, run: Box::new(run) }
    }
}

/// Name of a request waiting for a counter, for its cancellation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestName {
    /// Deferred work, by the address of its structure.
    Work(usize),
    /// A triggered operation, by its context.
    Operation(usize),
}

/// Request waiting for a counter.
pub(crate) struct DeferredRequest {
    pub(crate) name: RequestName,
    pub(crate) task: Task,
    /// Counters needed by the request; they cannot be closed meanwhile.
    pub(crate) counters: Vec<InUse>,
    /// Called when the application takes the request back.
    pub(crate) cancelled: Option<Box<dyn FnOnce() + Send>>,
}

impl DeferredRequest {
    /// Returns true if the counter has reached the threshold. Failures count for deferred work, but
    /// not for triggered operations (fi_trigger(3)).
    fn is_due(&self, cntr: &dyn AwaitedCntr, threshold: u64) -> bool {
        match self.name {
            RequestName::Work(_) => cntr.sum() >= threshold,
            RequestName::Operation(_) => cntr.value() >= threshold,
        }
    }
}

/// Reference to a counter preventing its close.
pub(crate) struct InUse(pub(crate) Arc<Cntr>);

impl InUse {
    pub(crate) fn new(cntr: Arc<Cntr>) -> Self {
        cntr.add_user();
        Self(cntr)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.remove_user();
    }
}

/// Requests by their counter, threshold, and the order of their coming.
#[derive(Default)]
struct WaitingRequests {
    by_cntr: HashMap<usize, BTreeMap<(u64, u64), DeferredRequest>>,
    came: u64,
}

impl WaitingRequests {
    /// Removes the requests accepted by `goes`; the others keep their order. The counters of
    /// removed requests keep a too low `next`, without harm.
    fn take(&mut self, goes: impl Fn(usize, &DeferredRequest) -> bool) -> Vec<DeferredRequest> {
        let mut taken = Vec::new();
        for (cntr, requests) in &mut self.by_cntr {
            let going: Vec<_> =
                requests.iter().filter(|(_, r)| goes(*cntr, r)).map(|(key, _)| *key).collect();
            taken.extend(going.iter().filter_map(|key| requests.remove(key)));
        }
        self.by_cntr.retain(|_, requests| !requests.is_empty());
        taken
    }
}

/// Internal operations with [`INTERNAL_OP`] in flight: the task queue of each, and the continuation with
/// its outcome.
///
/// A context consists of an index and a serial number. It is unique, so a late cancel of a finished
/// operation never cancels another one.
#[derive(Default)]
struct InternalOpTable {
    operations: Slab<(u32, usize, Continuation)>,
    /// The serial number of the next operation.
    serial: u32,
}

impl InternalOpTable {
    fn insert(&mut self, task_queue: usize, then: Continuation) -> Context {
        let serial = self.serial;
        self.serial = serial.wrapping_add(1) & MAX_SERIAL;
        let index = self.operations.insert((serial, task_queue, then));
        Context(slot_context::join(serial, index) as *mut _)
    }

    fn remove(&mut self, context: Context) -> Option<(usize, Continuation)> {
        let (number, index) = slot_context::split(context.0 as usize);
        self.operations.get(index).filter(|(serial, ..)| *serial == number)?;
        self.operations.remove(index).map(|(_, task_queue, then)| (task_queue, then))
    }
}

/// Deferred work of a domain: tasks, requests waiting for counters, and internal operations in
/// flight.
pub struct DeferredQueue {
    ready: Mutex<VecDeque<Task>>,
    /// A task was added since the tasks were last run.
    fresh: AtomicBool,
    /// A task answered -FI_EAGAIN and is to be tried again.
    stalled: AtomicBool,
    /// Held by the thread running tasks.
    run_lock: Mutex<()>,
    /// Number of threads making progress; they will run tasks becoming ready.
    attended: AtomicUsize,
    /// Wakes waiters when a task is ready and no thread is making progress.
    wake: EventFd,
    woken: AtomicBool,
    /// Operations with [`INTERNAL_OP`] under way.
    under_way: Mutex<InternalOpTable>,
    waiting: Mutex<WaitingRequests>,
    /// Callbacks for ended connections, by task queue.
    listeners: Mutex<HashMap<usize, Vec<FailureListener>>>,
    /// Open endpoints of the domain, by the address of their fid.
    endpoints: Mutex<Vec<usize>>,
}

impl std::fmt::Debug for DeferredQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Later")
    }
}

/// Takes a lock, also after a panic of another holder: all changes made under these locks are
/// complete in themselves.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl CntrWatch for DeferredQueue {
    fn reached(&self, cntr: &dyn AwaitedCntr) {
        self.reach(cntr);
    }

    fn run(&self) {
        self.run();
    }
}

impl DeferredQueue {
    /// A `DeferredQueue` with nothing to do yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            ready: Mutex::default(),
            fresh: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            run_lock: Mutex::default(),
            attended: AtomicUsize::new(0),
            wake: EventFd::new()?,
            woken: AtomicBool::new(false),
            under_way: Mutex::default(),
            waiting: Mutex::default(),
            listeners: Mutex::default(),
            endpoints: Mutex::default(),
        }))
    }

    /// Takes the outcome of an operation with [`INTERNAL_OP`]. Any lock may be held.
    pub(crate) fn done(&self, outcome: Outcome) {
        let of = match &outcome {
            Ok(of) => of,
            Err(error) => &error.of,
        };
        let Some((task_queue, then)) = lock(&self.under_way).remove(of.context) else { return };
        let mut both = Some((then, outcome));
        self.add([Task::new(task_queue, move || {
            if let Some((then, outcome)) = both.take() {
                then(outcome);
            }
            Ok(())
        })]);
    }

    /// Makes the context for an operation with [`INTERNAL_OP`]. `then` is called once when the
    /// operation is over, unless its endpoint is closed before.
    pub(crate) fn expect(
        &self,
        task_queue: usize,
        then: impl FnOnce(Outcome) + Send + 'static,
    ) -> Context {
        lock(&self.under_way).insert(task_queue, Box::new(then))
    }

    /// Forgets a context of [`expect`](Self::expect) after a failed start of its operation.
    pub(crate) fn unexpect(&self, context: Context) {
        let gone = lock(&self.under_way).remove(context);
        drop(gone);
    }

    /// Adds tasks to be run soon. Any lock may be held.
    pub(crate) fn add(&self, tasks: impl IntoIterator<Item = Task>) {
        lock(&self.ready).extend(tasks);
        self.fresh.store(true, Ordering::SeqCst);
        // A thread that makes progress looks for tasks again after it has left the count.
        if self.attended.load(Ordering::SeqCst) == 0 {
            self.wake.signal();
            self.woken.store(true, Ordering::SeqCst);
        }
    }

    /// Runs tasks until none is ready. No lock may be held.
    #[inline]
    pub(crate) fn run(&self) {
        if self.fresh.load(Ordering::SeqCst)
            || self.stalled.load(Ordering::Relaxed)
            || self.woken.load(Ordering::Relaxed)
        {
            self.run_all();
        }
    }

    fn run_all(&self) {
        if self.woken.swap(false, Ordering::SeqCst) {
            self.wake.drain();
        }
        let mut retry = self.stalled.load(Ordering::SeqCst);
        while retry || self.fresh.load(Ordering::SeqCst) {
            retry = false;
            // The thread that holds the gate, perhaps this one further up its stack, goes on
            // until no task is left.
            let run_lock = match self.run_lock.try_lock() {
                Ok(run_lock) => run_lock,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.attended.fetch_add(1, Ordering::SeqCst);
            self.fresh.store(false, Ordering::SeqCst);
            self.stalled.store(self.run_once(), Ordering::SeqCst);
            drop(run_lock);
            self.attended.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Runs tasks until only ones to be retried later are left. Returns true if there are any.
    fn run_once(&self) -> bool {
        let mut again = VecDeque::new();
        let mut stalled: Vec<usize> = Vec::new();
        loop {
            let next = lock(&self.ready).pop_front();
            let Some(mut task) = next else { break };
            if stalled.contains(&task.task_queue) {
                again.push_back(task);
            } else if (task.run)() == Err(Error::AGAIN) {
                stalled.push(task.task_queue);
                again.push_back(task);
            }
        }
        let mut ready = lock(&self.ready);
        // Tasks that were added since then come after these.
        again.append(&mut ready);
        *ready = again;
        !stalled.is_empty()
    }

    /// Has a request wait for `cntr` to reach `threshold`. Runs nothing itself.
    pub(crate) fn defer(&self, cntr: &Arc<Cntr>, threshold: u64, mut request: DeferredRequest) {
        request.counters.push(InUse::new(cntr.clone()));
        let mut waiting = lock(&self.waiting);
        let came = waiting.came;
        waiting.came += 1;
        let requests = waiting.by_cntr.entry(Arc::as_ptr(cntr) as usize).or_default();
        requests.insert((threshold, came), request);
        let first = requests.first_key_value().map_or(u64::MAX, |((first, _), _)| *first);
        cntr.set_next(first);
        drop(waiting);
        if cntr.is_due() {
            self.reach(&**cntr);
        }
    }

    /// Converts requests with a possibly reached threshold of a counter to tasks. Any lock may be
    /// held.
    #[cold]
    fn reach(&self, cntr: &dyn AwaitedCntr) {
        let mut waiting = lock(&self.waiting);
        let key = cntr.key();
        let Some(requests) = waiting.by_cntr.get_mut(&key) else {
            cntr.set_next(u64::MAX);
            return;
        };
        let due: Vec<_> = requests
            .iter()
            .take_while(|((threshold, _), _)| cntr.sum() >= *threshold)
            .filter(|((threshold, _), request)| request.is_due(cntr, *threshold))
            .map(|(key, _)| *key)
            .collect();
        let tasks: Vec<_> = due.iter().filter_map(|key| requests.remove(key)).map(fire).collect();
        let first = requests.first_key_value().map_or(u64::MAX, |((first, _), _)| *first);
        if requests.is_empty() {
            waiting.by_cntr.remove(&key);
        }
        cntr.set_next(first);
        // Tasks are added before the lock is let go of, so that they keep the order of the
        // thresholds.
        if !tasks.is_empty() {
            self.add(tasks);
        }
    }

    /// Takes back the request of this name; -FI_ENOENT when none waits.
    pub(crate) fn cancel(&self, name: RequestName) -> Result {
        let taken = lock(&self.waiting).take(|_, request| request.name == name);
        if taken.is_empty() {
            return Err(Error::NOENT);
        }
        for request in taken {
            if let Some(cancelled) = request.cancelled {
                cancelled();
            }
        }
        Ok(())
    }

    /// Cancels all deferred work, or only the work waiting for one counter.
    pub(crate) fn flush(&self, cntr: Option<&Cntr>) {
        let only = cntr.map(|cntr| std::ptr::from_ref(cntr) as usize);
        let goes = |cntr: usize, request: &DeferredRequest| {
            matches!(request.name, RequestName::Work(_)) && only.is_none_or(|only| only == cntr)
        };
        let taken = lock(&self.waiting).take(goes);
        drop(taken);
    }

    /// Records an open endpoint by the address of its fid.
    pub(crate) fn opened(&self, ep: usize) {
        lock(&self.endpoints).push(ep);
    }

    /// Records the close of the endpoint at this address.
    pub(crate) fn closed(&self, ep: usize) {
        lock(&self.endpoints).retain(|open| *open != ep);
    }

    /// Returns true if the fid at this address belongs to an open endpoint of the domain.
    pub(crate) fn knows(&self, ep: usize) -> bool {
        lock(&self.endpoints).contains(&ep)
    }

    /// Registers `listener`, to be called when connections of the task queue's endpoint end.
    pub(crate) fn listen(
        &self,
        task_queue: usize,
        listener: impl Fn(fi_addr_t, Error) + Send + Sync + 'static,
    ) {
        lock(&self.listeners).entry(task_queue).or_default().push(Arc::new(listener));
    }

    /// Drops all tasks and requests of a task queue not started yet. After the return no task of
    /// the queue runs, and none of the previous ones will. Must not be called by a task.
    pub(crate) fn stop(&self, task_queue: usize) {
        let run_lock = lock(&self.run_lock);
        let taken = lock(&self.waiting).take(|_, request| request.task.task_queue == task_queue);
        drop(taken);
        let tasks = {
            let mut ready = lock(&self.ready);
            let (gone, left) =
                ready.drain(..).partition::<VecDeque<_>, _>(|t| t.task_queue == task_queue);
            *ready = left;
            gone
        };
        drop(tasks);
        drop(run_lock);
        // Threads that found the gate held meanwhile left their tasks to us.
        self.run();
    }

    /// Forgets the operations and listeners of a task queue; its endpoint completes nothing any
    /// more.
    pub(crate) fn leave(&self, task_queue: usize) {
        self.stop(task_queue);
        let listener = lock(&self.listeners).remove(&task_queue);
        drop(listener);
        let expected = {
            let mut under_way = lock(&self.under_way);
            let operations = &mut under_way.operations;
            let of_task_queue = |(index, (_, of, _)): (u32, &(u32, usize, Continuation))| {
                (*of == task_queue).then_some(index)
            };
            let indices: Vec<_> = operations.iter().filter_map(of_task_queue).collect();
            indices.into_iter().filter_map(|at| operations.remove(at)).collect::<Vec<_>>()
        };
        drop(expected);
    }
}

/// An endpoint's access to its domain's [`DeferredQueue`].
#[derive(Clone, Debug)]
pub struct InternalOps {
    pub(crate) later: Arc<DeferredQueue>,
    pub(crate) task_queue: usize,
}

impl InternalOps {
    /// Hands over the outcome of an operation with [`INTERNAL_OP`]. Any lock may be held.
    #[cold]
    pub fn done(&self, outcome: Outcome) {
        self.later.done(outcome);
    }

    /// Reports the end of the last connection possibly carrying messages of this peer. Any lock may
    /// be held.
    pub fn lost(&self, peer: fi_addr_t, error: Error) {
        let listeners =
            lock(&self.later.listeners).get(&self.task_queue).cloned().unwrap_or_default();
        if listeners.is_empty() {
            return;
        }
        self.later.add([Task::new(self.task_queue, move || {
            listeners.iter().for_each(|listener| listener(peer, error));
            Ok(())
        })]);
    }
}

/// Returns the task of a request with a reached threshold. Its counters are in use until the task
/// runs and no longer, because a thread seeing its effect may close them.
fn fire(request: DeferredRequest) -> Task {
    let DeferredRequest { task: Task { task_queue, mut run }, mut counters, .. } = request;
    Task::new(task_queue, move || {
        counters.clear();
        run()
    })
}

/// Progress source of a domain, also running the tasks of its [`DeferredQueue`].
pub(crate) struct DeferredProgress {
    inner: Arc<dyn Progress>,
    later: Arc<DeferredQueue>,
}

impl DeferredProgress {
    pub(crate) fn new(inner: Arc<dyn Progress>, later: Arc<DeferredQueue>) -> Arc<Self> {
        Arc::new(Self { inner, later })
    }
}

impl Progress for DeferredProgress {
    fn progress(&self) {
        self.later.attended.fetch_add(1, Ordering::SeqCst);
        self.inner.progress();
        self.later.attended.fetch_sub(1, Ordering::SeqCst);
        self.later.run();
    }

    fn wait_fd(&self) -> RawFd {
        self.inner.wait_fd()
    }

    fn hold_off(&self) {
        self.inner.hold_off();
    }

    fn end_wait(&self) {
        self.inner.end_wait();
    }

    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [Some(self.later.wake.as_raw_fd()), self.inner.wake_fds()[0]]
    }

    fn may_block(&self) -> bool {
        !self.later.fresh.load(Ordering::SeqCst) && self.inner.may_block()
    }

    fn is_serialized(&self) -> bool {
        self.inner.is_serialized()
    }

    fn activity(&self) -> u64 {
        self.inner.activity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_of_a_completed_operation_is_not_reused() {
        let later = DeferredQueue::new().unwrap();
        let first = later.expect(1, |_| ());
        later.unexpect(first);
        let second = later.expect(1, |_| ());
        assert_ne!(first, second);
        // A caller that still knows the first request forgets or ends nothing by its name.
        later.unexpect(first);
        later.done(Ok(Completion::of(first, 0, 0)));
        assert!(lock(&later.under_way).remove(second).is_some());
    }

    /// Tasks recording their execution.
    struct Order(Arc<Mutex<Vec<u32>>>);

    impl Order {
        fn task(&self, task_queue: usize, number: u32, mut failures: u32) -> Task {
            let log = self.0.clone();
            Task::new(task_queue, move || {
                if failures > 0 {
                    failures -= 1;
                    return Err(Error::AGAIN);
                }
                lock(&log).push(number);
                Ok(())
            })
        }

        fn take(&self) -> Vec<u32> {
            std::mem::take(&mut lock(&self.0))
        }
    }

    #[test]
    fn retried_task_blocks_only_its_own_task_queue() {
        let (later, log) = (DeferredQueue::new().unwrap(), Order(Arc::default()));
        later.add([log.task(1, 10, 1), log.task(2, 20, 0), log.task(1, 11, 0)]);
        later.run();
        assert_eq!(log.take(), [20]);
        later.add([log.task(1, 12, 0), log.task(2, 21, 0)]);
        later.run();
        assert_eq!(log.take(), [10, 11, 12, 21]);
    }

    #[test]
    fn a_chain_of_tasks_needs_no_stack() {
        fn link(later: &Arc<DeferredQueue>, left: u32, done: &Arc<AtomicUsize>) -> Task {
            let (next, done) = (later.clone(), done.clone());
            Task::new(0, move || {
                if left > 0 {
                    next.add([link(&next, left - 1, &done)]);
                    // As a counter does that is changed by the task.
                    next.run();
                }
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        }
        let (later, done) = (DeferredQueue::new().unwrap(), Arc::new(AtomicUsize::new(0)));
        later.add([link(&later, 100_000, &done)]);
        later.run();
        assert_eq!(done.load(Ordering::SeqCst), 100_001);
    }

    #[test]
    fn stopped_task_queue_runs_no_more_tasks() {
        let (later, log) = (DeferredQueue::new().unwrap(), Order(Arc::default()));
        later.add([log.task(1, 10, 0), log.task(2, 20, 0)]);
        let context = later.expect(1, |_| panic!("of a lane that left"));
        later.leave(1);
        assert_eq!(log.take(), [20]);
        let of =
            Completion { context, flags: INTERNAL_OP, len: 0, buf: 0, data: 0, tag: 0, src: 0 };
        later.done(Ok(of));
        later.run();
    }
}
