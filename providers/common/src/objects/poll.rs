//! Wait sets and poll sets (fi_poll(3)), and `fi_trywait`.
use crate::abi::{
    self, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_POLL, FI_CLASS_WAIT, c_enum, fi_ops,
    fi_ops_poll, fi_ops_wait, fi_poll_attr, fi_wait_attr, fi_wait_obj, fid, fid_poll, fid_wait,
};
use crate::boundary::{end_if_cancelled, ffi_guard, ffi_guard_if_memory};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::error::{Error, Result};
use crate::fid::{FidObject, class_of};
use crate::object::{Base, Object, Parent, fid_ops};
use crate::progress::Progress;
use crate::wait::{Blocking, Wait, WaitKind, cancellable};
use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, Weak};

/// Something a set can hold: a queue or a counter.
#[derive(Clone, Debug)]
enum PollMember {
    Cq(Weak<Cq>),
    Eq(Weak<Eq>),
    Cntr(Weak<Cntr>),
}

impl PollMember {
    /// # Safety
    /// `fid` points to a live fid.
    unsafe fn from_fid(fid: *mut fid) -> Result<Self> {
        // SAFETY: by this function's contract; the class says what to look for.
        unsafe {
            match class_of(fid).map(|class| class as c_int) {
                Some(FI_CLASS_CQ) => Ok(Self::Cq(Arc::downgrade(&Cq::from_fid(fid)?))),
                Some(FI_CLASS_EQ) => Ok(Self::Eq(Arc::downgrade(&Eq::from_fid(fid)?))),
                Some(FI_CLASS_CNTR) => Ok(Self::Cntr(Arc::downgrade(&Cntr::from_fid(fid)?))),
                _ => Err(Error::INVAL),
            }
        }
    }

    /// Makes progress on the member and returns true if it has something for the application.
    fn poll(&self) -> bool {
        match self {
            Self::Cq(cq) => cq.upgrade().is_some_and(|cq| cq.poll()),
            Self::Eq(eq) => eq.upgrade().is_some_and(|eq| eq.poll()),
            Self::Cntr(cntr) => cntr.upgrade().is_some_and(|cntr| cntr.poll()),
        }
    }

    /// Makes progress on the member, without recording its state.
    fn progress(&self) {
        match self {
            Self::Cntr(cntr) => {
                if let Some(cntr) = cntr.upgrade() {
                    cntr.progress_source().progress();
                }
            }
            Self::Cq(_) | Self::Eq(_) => _ = self.poll(),
        }
    }

    /// Returns true if the member has something for the application, without making progress and
    /// without recording it.
    fn ready(&self) -> bool {
        match self {
            Self::Cq(cq) => cq.upgrade().is_some_and(|cq| cq.has_entries()),
            Self::Eq(eq) => eq.upgrade().is_some_and(|eq| eq.has_events()),
            Self::Cntr(cntr) => cntr.upgrade().is_some_and(|cntr| cntr.has_changed()),
        }
    }

    /// Returns true if the member's progress sources would wake a waiter.
    fn may_block(&self) -> bool {
        match self {
            Self::Cq(cq) => cq.upgrade().is_none_or(|cq| cq.progress_source().may_block()),
            Self::Eq(eq) => eq.upgrade().is_none_or(|eq| eq.sources_may_block()),
            Self::Cntr(cntr) => {
                cntr.upgrade().is_none_or(|cntr| cntr.progress_source().may_block())
            }
        }
    }

    fn context(&self) -> *mut c_void {
        match self {
            Self::Cq(cq) => cq.upgrade().map(|cq| cq.context()),
            Self::Cntr(cntr) => cntr.upgrade().map(|cntr| cntr.context()),
            Self::Eq(_) => None,
        }
        .unwrap_or(std::ptr::null_mut())
    }

    fn is(&self, fid: *const fid) -> bool {
        let address = match self {
            Self::Cq(cq) => cq.as_ptr().cast::<fid>(),
            Self::Eq(eq) => eq.as_ptr().cast::<fid>(),
            Self::Cntr(cntr) => cntr.as_ptr().cast::<fid>(),
        };
        std::ptr::eq(address, fid)
    }
}

impl From<&Arc<Cq>> for PollMember {
    fn from(cq: &Arc<Cq>) -> Self {
        Self::Cq(Arc::downgrade(cq))
    }
}
impl From<&Arc<Eq>> for PollMember {
    fn from(eq: &Arc<Eq>) -> Self {
        Self::Eq(Arc::downgrade(eq))
    }
}
impl From<&Arc<Cntr>> for PollMember {
    fn from(cntr: &Arc<Cntr>) -> Self {
        Self::Cntr(Arc::downgrade(cntr))
    }
}

/// A wait set: one thing to block on for many queues and counters.
#[repr(C)]
pub struct WaitSet {
    c: fid_wait,
    wait: Wait,
    members: Mutex<Vec<PollMember>>,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for WaitSet {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for WaitSet {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_wait> for WaitSet {}

impl std::fmt::Debug for WaitSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WaitSet({:?})", self.members)
    }
}

impl WaitSet {
    /// Opens a set (fi_wait_open).
    pub fn open(attr: Option<&fi_wait_attr>, fabric: Parent) -> Result<Arc<Self>> {
        let wait_obj = attr.map_or_else(Default::default, |attr| attr.wait_obj);
        if attr.is_some_and(|attr| attr.flags != 0) {
            return Err(Error::BADFLAGS);
        }
        let kind = match WaitKind::from_attr(wait_obj)? {
            WaitKind::None => return Err(Error::INVAL),
            _ if wait_obj == fi_wait_obj::FI_WAIT_SET => return Err(Error::INVAL),
            kind => kind,
        };
        Ok(Arc::new(Self {
            c: fid_wait {
                fid: Self::fid(std::ptr::null_mut()),
                ops: (&raw const WAIT_OPS).cast_mut(),
            },
            wait: Wait::new(kind)?,
            members: Mutex::new(Vec::new()),
            base: Base::new(fabric),
        }))
    }

    /// Returns the set in a queue's or counter's attributes, if they request one (FI_WAIT_SET).
    ///
    /// # Safety
    /// With FI_WAIT_SET, `set` is null or an open wait set.
    pub(crate) unsafe fn from_attr(
        wait_obj: c_enum<fi_wait_obj>,
        set: *const fid_wait,
    ) -> Result<Option<Arc<Self>>> {
        if wait_obj != fi_wait_obj::FI_WAIT_SET {
            return Ok(None);
        }
        // SAFETY: by this function's contract.
        unsafe { Self::arc_from_c(set) }.map(Some)
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Vec<PollMember>> {
        self.members.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A queue or counter was opened with this set as its wait object.
    #[allow(private_bounds, reason = "the queues and counters of this crate only")]
    pub fn add<'a, T>(&self, member: &'a Arc<T>) -> Result
    where
        PollMember: From<&'a Arc<T>>,
    {
        let member = PollMember::from(member);
        match &member {
            PollMember::Cq(cq) => {
                if let Some(cq) = cq.upgrade() {
                    self.add_source(&**cq.progress_source())?;
                }
            }
            PollMember::Cntr(cntr) => {
                if let Some(cntr) = cntr.upgrade() {
                    self.add_source(&**cntr.progress_source())?;
                }
            }
            // An event queue adds its sources as it learns of them.
            PollMember::Eq(_) => {}
        }
        self.members().push(member);
        Ok(())
    }

    /// Adds a source: the set wakes when `source` has something to do.
    pub fn add_source(&self, source: &dyn Progress) -> Result {
        self.wait.add_source(source)
    }

    /// Removes a member being closed.
    pub fn remove(&self, fid: *const fid) {
        self.members().retain(|member| !member.is(fid));
    }

    /// Wakes the waiters of the set after an entry was written to a member.
    pub fn entry_written(&self) {
        self.wait.entry_written();
    }

    fn try_wait(&self) -> Result {
        self.wait.arm()?;
        let members = self.members().clone();
        let busy =
            members.iter().any(PollMember::poll) || !members.iter().all(PollMember::may_block);
        if busy { Err(Error::AGAIN) } else { Ok(()) }
    }

    /// Polls the members once for a waiting call.
    fn wait(&self, call: &mut Blocking) -> Result {
        let result = call.look(
            Some(&self.wait),
            || self.members().clone().iter().all(PollMember::may_block),
            || {
                let members = self.members().clone();
                if members.iter().any(PollMember::poll) { Ok(()) } else { Err(Error::AGAIN) }
            },
            || self.members().iter().any(PollMember::ready),
        );
        if result == Err(Error::AGAIN) { Err(Error::TIMEDOUT) } else { result }
    }
}

/// Poll set: one call progresses many queues and counters and reports the ones with something to
/// read.
#[repr(C)]
pub struct PollSet {
    c: fid_poll,
    members: Mutex<Vec<PollMember>>,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for PollSet {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for PollSet {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_poll> for PollSet {}

impl std::fmt::Debug for PollSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PollSet({:?})", self.members)
    }
}

impl PollSet {
    /// Opens a set (fi_poll_open).
    pub fn open(attr: Option<&fi_poll_attr>, domain: Parent) -> Result<Arc<Self>> {
        if attr.is_some_and(|attr| attr.flags != 0) {
            return Err(Error::BADFLAGS);
        }
        Ok(Arc::new(Self {
            c: fid_poll {
                fid: Self::fid(std::ptr::null_mut()),
                ops: (&raw const POLL_OPS).cast_mut(),
            },
            members: Mutex::new(Vec::new()),
            base: Base::new(domain),
        }))
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Vec<PollMember>> {
        self.members.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Prepares all of `fids` for blocking on their descriptors (fi_trywait(3)).
///
/// # Safety
/// `fids` points to `count` pointers to live fids.
pub unsafe fn try_wait(fids: *mut *mut fid, count: c_int) -> Result {
    let count = usize::try_from(count).map_err(|_| Error::INVAL)?;
    if fids.is_null() && count > 0 {
        return Err(Error::INVAL);
    }
    for index in 0..count {
        // SAFETY: by this function's contract; the class says what to look for.
        unsafe {
            let fid = *fids.add(index);
            match class_of(fid).map(|class| class as c_int) {
                Some(FI_CLASS_CQ) => Cq::from_fid(fid)?.try_wait()?,
                Some(FI_CLASS_EQ) => Eq::from_fid(fid)?.try_wait()?,
                Some(FI_CLASS_CNTR) => Cntr::from_fid(fid)?.try_wait()?,
                Some(FI_CLASS_WAIT) => WaitSet::from_c(fid.cast::<fid_wait>())?.try_wait()?,
                _ => return Err(Error::INVAL),
            }
        }
    }
    Ok(())
}

static WAIT_FID_OPS: fi_ops = fid_ops::<WaitSet, _>();

impl Object<fid_wait> for WaitSet {
    const CLASS: c_int = FI_CLASS_WAIT;
    const CLOSE: &'static str = "fi_close(wait)";
    const CONTROL: &'static str = "fi_control(wait)";

    fn table() -> &'static fi_ops {
        &WAIT_FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }

    /// Fails for a set with members, because they do not count as its users.
    fn may_close(&self) -> Result {
        if self.members().is_empty() { Ok(()) } else { Err(Error::BUSY) }
    }

    unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result {
        match command {
            // SAFETY: FI_GETWAIT passes what the wait object needs (fi_poll(3)).
            abi::FI_GETWAIT => unsafe { self.wait.get(arg) },
            // SAFETY: FI_GETWAITOBJ passes an enum fi_wait_obj.
            abi::FI_GETWAITOBJ => unsafe { self.wait.kind().tell(arg) },
            _ => Err(Error::NOSYS),
        }
    }
}

static WAIT_OPS: fi_ops_wait = fi_ops_wait {
    size: size_of::<fi_ops_wait>(),
    wait: cancellable!(wait_wait: fn(*mut fid_wait, c_int) -> c_int),
};
static POLL_FID_OPS: fi_ops = fid_ops::<PollSet, _>();

impl Object<fid_poll> for PollSet {
    const CLASS: c_int = FI_CLASS_POLL;
    const CLOSE: &'static str = "fi_close(poll)";

    fn table() -> &'static fi_ops {
        &POLL_FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }
}

static POLL_OPS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: cancellable!(poll_poll: fn(*mut fid_poll, *mut *mut c_void, c_int) -> c_int),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
};

// SAFETY of the entry points below: each is reachable only through the ops table
// of a set that `open` made and `close` has not taken back, or with null.

unsafe extern "C-unwind" fn wait_wait(wait: *mut fid_wait, timeout: c_int) -> c_int {
    let mut call = Blocking::new(timeout);
    loop {
        let answer = ffi_guard("fi_wait", || {
            // SAFETY: see above.
            unsafe { WaitSet::from_c(wait) }?.wait(&mut call)
        });
        // SAFETY: nothing here is cleaned up, nor in what the program calls us by; the
        // set is not closed while it is waited for.
        if !unsafe { call.can_continue() } {
            return answer;
        }
    }
}

unsafe extern "C-unwind" fn poll_poll(
    set: *mut fid_poll,
    contexts: *mut *mut c_void,
    count: c_int,
) -> c_int {
    let answer = ffi_guard("fi_poll", || -> Result<c_int> {
        // SAFETY: see above.
        let set = unsafe { PollSet::from_c(set) }?;
        if count < 0 || (contexts.is_null() && count > 0) {
            return Err(Error::INVAL);
        }
        let members = set.members().clone();
        let mut n = 0;
        for member in &members {
            if n == count {
                // State of this member, left for the next call.
                member.progress();
            } else if member.poll() {
                // SAFETY: the caller gave room for `count` contexts.
                unsafe { contexts.add(n as usize).write(member.context()) };
                n += 1;
            }
        }
        Ok(n)
    });
    if answer == 0 {
        // SAFETY: nothing here is cleaned up, nor in what the program calls us by.
        unsafe { end_if_cancelled() };
    }
    answer
}

unsafe extern "C" fn poll_add(set: *mut fid_poll, fid: *mut fid, _flags: u64) -> c_int {
    ffi_guard_if_memory("fi_poll_add", || {
        // SAFETY: see above; the fid is one the application has open.
        let (set, member) = unsafe { (PollSet::from_c(set)?, PollMember::from_fid(fid)?) };
        let mut members = set.members();
        if !members.iter().any(|known| known.is(fid)) {
            members.push(member);
        }
        Ok(())
    })
}

unsafe extern "C" fn poll_del(set: *mut fid_poll, fid: *mut fid, _flags: u64) -> c_int {
    ffi_guard("fi_poll_del", || {
        // SAFETY: see above.
        let set = unsafe { PollSet::from_c(set) }?;
        set.members().retain(|member| !member.is(fid));
        Ok(())
    })
}
