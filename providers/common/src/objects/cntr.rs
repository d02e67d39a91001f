//! Counters (fi_cntr(3)).
use crate::abi::{
    self, FI_CLASS_CNTR, fi_cntr_attr, fi_cntr_events, fi_ops, fi_ops_cntr, fid, fid_cntr,
};
use crate::boundary::{end_if_cancelled, ffi_guard, ffi_guard_nocancel};
use crate::error::{Error, Result};
use crate::fid::{FidObject, enosys_stub};
use crate::object::{Base, Object, fid_ops};
use crate::on_domain::OnDomain;
pub use crate::on_domain::{AwaitedCntr, CntrWatch};
use crate::peer::CntrOwner;
use crate::progress::Progress;
use crate::wait::{Blocking, Lazy, Wait, WaitKind, WakeSources, cancellable};
use crate::wait_set::{WaitDescriptor, WaitSet, Waitable};
use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Unit of a counter.
#[derive(Clone, Copy, Debug)]
enum Counts {
    /// Completed operations.
    Operations,
    /// Bytes of completed operations (FI_CNTR_EVENTS_BYTES).
    Bytes,
    /// Operations, counted in another provider's counter (FI_PEER).
    Elsewhere(CntrOwner),
}

/// A counter, as C and providers share it.
#[repr(C)]
pub struct Cntr {
    c: fid_cntr,
    value: AtomicU64,
    errors: AtomicU64,
    /// The counter changed since a poll set last looked at it.
    changed: AtomicBool,
    counts: Counts,
    wait: Lazy,
    wait_set: Option<Arc<WaitSet>>,
    progress: Arc<dyn Progress>,
    /// Deferred work of the domain, with requests waiting for the counter.
    later: Option<Arc<dyn CntrWatch>>,
    /// Smallest awaited threshold of a request.
    next: AtomicU64,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for Cntr {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for Cntr {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_cntr> for Cntr {}

impl std::fmt::Debug for Cntr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cntr({:?}, {:?} errors)", self.value, self.errors)
    }
}

impl Cntr {
    /// Opens a counter (fi_cntr_open).
    ///
    /// # Safety
    /// With FI_PEER `context` is null or a `struct fi_peer_cntr_context` (fi_peer(3));
    /// with FI_WAIT_SET `wait_set` is null or an open one.
    pub unsafe fn open(
        domain: OnDomain,
        attr: Option<&fi_cntr_attr>,
        context: *mut c_void,
    ) -> Result<Arc<Self>> {
        let (mut events, mut wait_obj, mut set) =
            (Default::default(), Default::default(), std::ptr::null_mut());
        let mut owner = None;
        if let Some(attr) = attr {
            if attr.flags & !abi::FI_PEER != 0 {
                return Err(Error::BADFLAGS);
            }
            if attr.flags & abi::FI_PEER != 0 {
                // SAFETY: by this function's contract.
                owner = Some(unsafe { CntrOwner::new(context) }?);
            }
            (events, wait_obj, set) = (attr.events, attr.wait_obj, attr.wait_set);
        }
        let bytes = events == fi_cntr_events::FI_CNTR_EVENTS_BYTES;
        if !bytes && events != fi_cntr_events::FI_CNTR_EVENTS_COMP {
            return Err(Error::INVAL);
        }
        let counts = match owner {
            // An owner is notified of operations only.
            Some(_) if bytes => return Err(Error::INVAL),
            Some(owner) => Counts::Elsewhere(owner),
            None if bytes => Counts::Bytes,
            None => Counts::Operations,
        };
        let kind = WaitKind::from_attr(wait_obj)?;
        if owner.is_some() {
            if kind != WaitKind::None {
                (domain.on_blocking)(kind)?;
            }
            return Ok(Arc::new(Self::new(domain, counts, &PEER_CNTR_OPS, std::ptr::null_mut())));
        }
        // SAFETY: by this function's contract.
        let wait_set = unsafe { WaitSet::from_attr(wait_obj, set) }?;
        // fi_cntr_wait is for any counter but one opened with FI_WAIT_NONE; the
        // original lets it work there too, so the object exists always.
        let usable = if kind == WaitKind::None { WaitKind::Fd } else { kind };
        let wait = Lazy::new(usable, wait_set.is_some())?;
        if kind != WaitKind::None {
            (domain.on_blocking)(kind)?;
        }
        let cntr = Self::new(domain, counts, &CNTR_OPS, context);
        let cntr = Arc::new(Self { wait, wait_set: wait_set.clone(), ..cntr });
        if let Some(set) = wait_set {
            set.add(&cntr)?;
        }
        Ok(cntr)
    }

    fn new(
        domain: OnDomain,
        counts: Counts,
        ops: &'static fi_ops_cntr,
        context: *mut c_void,
    ) -> Self {
        Self {
            c: fid_cntr { fid: Self::fid(context), ops: std::ptr::from_ref(ops).cast_mut() },
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            counts,
            wait: Lazy::none(),
            wait_set: None,
            progress: domain.progress,
            later: domain.later,
            next: AtomicU64::new(u64::MAX),
            base: Base::new(domain.parent),
        }
    }

    /// The counter's value.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// The counter's value and its errors, added up.
    pub(crate) fn sum(&self) -> u64 {
        self.value().saturating_add(self.errors.load(Ordering::SeqCst))
    }

    /// Something waits for this value, and nothing for a smaller one.
    pub(crate) fn set_next(&self, next: u64) {
        self.next.store(next, Ordering::SeqCst);
    }

    /// Returns true if a request waiting for the counter may be due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.sum() >= self.next.load(Ordering::SeqCst)
    }

    /// Returns true if requests in `later` can wait for the counter: it belongs to the same domain,
    /// and is not counted by another provider.
    pub(crate) fn triggers<W: CntrWatch>(&self, later: &Arc<W>) -> bool {
        let own = !matches!(self.counts, Counts::Elsewhere(_));
        own && self
            .later
            .as_ref()
            .is_some_and(|ours| std::ptr::addr_eq(Arc::as_ptr(ours), Arc::as_ptr(later)))
    }

    /// fi_cntr_add, without running the tasks becoming ready by it.
    pub(crate) fn add(&self, value: u64) {
        self.value.fetch_add(value, Ordering::SeqCst);
        self.written();
    }

    /// fi_cntr_set, without running the tasks becoming ready by it.
    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::SeqCst);
        self.written();
    }

    /// Counts a successful operation of `len` bytes.
    #[inline]
    pub fn completed(&self, len: usize) {
        let by = match &self.counts {
            Counts::Operations => 1,
            Counts::Bytes => len as u64,
            Counts::Elsewhere(owner) => return owner.completed(),
        };
        self.value.fetch_add(by, Ordering::SeqCst);
        self.written();
    }

    /// Counts a failed operation.
    pub fn failed(&self) {
        if let Counts::Elsewhere(owner) = &self.counts {
            return owner.failed();
        }
        self.errors.fetch_add(1, Ordering::SeqCst);
        self.written();
    }

    fn written(&self) {
        if let Some(later) = &self.later {
            if self.is_due() {
                later.reached(self);
            }
        }
        self.changed.store(true, Ordering::SeqCst);
        if self.wait.kind() != WaitKind::None {
            // A thread that is about to sleep either sees the new count, or is seen and woken.
            fence(Ordering::SeqCst);
            self.wait.entry_written();
        }
        if let Some(set) = &self.wait_set {
            set.entry_written();
        }
    }

    /// Polls once for `threshold`, or for more errors than at the first poll of the call.
    fn wait_for(&self, threshold: u64, errors: &mut Option<u64>, call: &mut Blocking) -> Result {
        let errors = *errors.get_or_insert_with(|| self.errors.load(Ordering::SeqCst));
        let state = || {
            if self.value.load(Ordering::SeqCst) >= threshold {
                Ok(())
            } else if self.errors.load(Ordering::SeqCst) != errors {
                Err(Error::AVAIL)
            } else {
                Err(Error::AGAIN)
            }
        };
        let result = call.look(
            self.wait()?,
            self,
            || {
                state().or_else(|error| {
                    if error != Error::AGAIN {
                        return Err(error);
                    }
                    self.progress.progress();
                    state()
                })
            },
            || state() != Err(Error::AGAIN),
        );
        if result == Err(Error::AGAIN) { Err(Error::TIMEDOUT) } else { result }
    }

    /// Returns the wait object for blocking calls, or `None` if the counter does not support them.
    fn wait(&self) -> Result<Option<&Wait>> {
        self.wait.get(|wait| wait.add_source(&*self.progress))
    }

    /// Returns true if the counter changed since the last poll.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::SeqCst)
    }

    /// Makes progress and returns true if the counter changed since the last poll.
    pub fn poll(&self) -> bool {
        self.progress.progress();
        self.changed.swap(false, Ordering::SeqCst)
    }

    /// Returns the progress source driving the counter.
    pub fn progress_source(&self) -> &Arc<dyn Progress> {
        &self.progress
    }
}

impl WakeSources for Cntr {
    fn may_block(&self) -> bool {
        self.progress.may_block()
    }

    fn end_wait(&self) {
        self.progress.end_wait();
    }
}

impl WaitDescriptor for Cntr {
    /// The application reads the counter again afterwards, so only pending work of the provider
    /// matters (fi_poll(3)).
    fn try_wait(&self) -> Result {
        self.wait()?.ok_or(Error::INVAL)?.arm()?;
        self.progress.progress();
        if self.progress.may_block() { Ok(()) } else { Err(Error::AGAIN) }
    }
}

impl Waitable for Cntr {
    fn poll_member(&self) -> bool {
        self.poll()
    }

    fn progress_member(&self) {
        self.progress_source().progress();
    }

    fn is_ready(&self) -> bool {
        self.has_changed()
    }

    fn poll_context(&self) -> *mut c_void {
        self.context()
    }

    fn source_of_set(&self) -> Option<&dyn Progress> {
        Some(&**self.progress_source())
    }
}

impl AwaitedCntr for Cntr {
    fn key(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    fn value(&self) -> u64 {
        self.value()
    }

    fn sum(&self) -> u64 {
        self.sum()
    }

    fn set_next(&self, next: u64) {
        self.set_next(next);
    }
}

static FID_OPS: fi_ops = fid_ops::<Cntr, _>();

impl Object<fid_cntr> for Cntr {
    const CLASS: c_int = FI_CLASS_CNTR;
    const CLOSE: &'static str = "fi_close(cntr)";
    const CONTROL: &'static str = "fi_control(cntr)";

    fn table() -> &'static fi_ops {
        &FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }

    fn closed(this: &mut Arc<Self>, fid: *mut fid) {
        if let Some(set) = &this.wait_set {
            set.remove(fid);
        }
    }

    unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result {
        match command {
            // SAFETY: FI_GETWAIT passes what the wait object needs (fi_cntr(3)).
            abi::FI_GETWAIT => unsafe { self.wait()?.ok_or(Error::NODATA)?.get(arg) },
            // SAFETY: FI_GETWAITOBJ passes an enum fi_wait_obj.
            abi::FI_GETWAITOBJ => unsafe { self.wait.kind().tell(arg) },
            // Counters have no operational flags.
            abi::FI_GETOPSFLAG | abi::FI_SETOPSFLAG => {
                // SAFETY: both pass a pointer to the flags (fi_cntr(3)).
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(Error::INVAL)?;
                match command {
                    abi::FI_SETOPSFLAG if *flags != 0 => Err(Error::BADFLAGS),
                    _ => {
                        *flags = 0;
                        Ok(())
                    }
                }
            }
            _ => Err(Error::NOSYS),
        }
    }
}

static CNTR_OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: cancellable!(read: fn(*mut fid_cntr) -> u64),
    readerr: cancellable!(readerr: fn(*mut fid_cntr) -> u64),
    add: Some(add),
    set: Some(set),
    wait: cancellable!(cntr_wait: fn(*mut fid_cntr, u64, c_int) -> c_int),
    adderr: Some(adderr),
    seterr: Some(seterr),
    export_xpu: enosys_stub(),
};

/// Calls on a counter of FI_PEER, with its value in its owner's counter: a read only makes
/// progress, and all else fails (fi_peer(3)).
static PEER_CNTR_OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: cancellable!(read: fn(*mut fid_cntr) -> u64),
    readerr: cancellable!(readerr: fn(*mut fid_cntr) -> u64),
    add: enosys_stub(),
    set: enosys_stub(),
    wait: enosys_stub(),
    adderr: enosys_stub(),
    seterr: enosys_stub(),
    export_xpu: enosys_stub(),
};

// SAFETY of the entry points below: each is reachable only through the ops table
// of a counter that `open` made and `close` has not taken back, or with null.

unsafe extern "C-unwind" fn read(cntr: *mut fid_cntr) -> u64 {
    let value = ffi_guard_nocancel("fi_cntr_read", || {
        // SAFETY: see above.
        unsafe { Cntr::from_c(cntr) }.map_or(0, |cntr| {
            cntr.progress.progress();
            cntr.value.load(Ordering::SeqCst)
        })
    });
    // Every read is a cancellation point: only the caller knows whether the count was what it
    // wanted.
    // SAFETY: nothing here is cleaned up, nor in what the program calls us by.
    unsafe { end_if_cancelled() };
    value
}

unsafe extern "C-unwind" fn readerr(cntr: *mut fid_cntr) -> u64 {
    let errors = ffi_guard_nocancel("fi_cntr_readerr", || {
        // SAFETY: see above.
        unsafe { Cntr::from_c(cntr) }.map_or(0, |cntr| {
            cntr.progress.progress();
            cntr.errors.load(Ordering::SeqCst)
        })
    });
    // SAFETY: as in `read`.
    unsafe { end_if_cancelled() };
    errors
}

/// Implements the four calls changing a counter.
unsafe fn change(cntr: *mut fid_cntr, entry: &'static str, how: impl FnOnce(&Cntr)) -> c_int {
    ffi_guard(entry, || {
        // SAFETY: see above.
        let cntr = unsafe { Cntr::from_c(cntr) }?;
        how(cntr);
        if let Some(later) = &cntr.later {
            later.run();
        }
        Ok(())
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see above.
    unsafe { change(cntr, "fi_cntr_add", |c| c.add(value)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see above.
    unsafe { change(cntr, "fi_cntr_set", |c| c.set(value)) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see above.
    unsafe {
        change(cntr, "fi_cntr_adderr", |c| {
            c.errors.fetch_add(value, Ordering::SeqCst);
            c.written();
        })
    }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see above.
    unsafe {
        change(cntr, "fi_cntr_seterr", |c| {
            c.errors.store(value, Ordering::SeqCst);
            c.written();
        })
    }
}

unsafe extern "C-unwind" fn cntr_wait(
    cntr: *mut fid_cntr,
    threshold: u64,
    timeout: c_int,
) -> c_int {
    let (mut call, mut errors) = (Blocking::new(timeout), None);
    loop {
        let answer = ffi_guard("fi_cntr_wait", || {
            // SAFETY: see above.
            unsafe { Cntr::from_c(cntr) }?.wait_for(threshold, &mut errors, &mut call)
        });
        // SAFETY: as in `read`; the counter is not closed while it is waited for.
        if !unsafe { call.can_continue() } {
            return answer;
        }
    }
}
