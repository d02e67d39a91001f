//! Wait sets (fi_poll(3)), and the trait of their members.
use crate::abi::{
    self, FI_CLASS_WAIT, c_enum, fi_ops, fi_ops_wait, fi_wait_attr, fi_wait_obj, fid, fid_wait,
};
use crate::boundary::ffi_guard;
use crate::error::{Error, Result};
use crate::fid::FidObject;
use crate::object::{Base, Object, Parent, fid_ops};
use crate::progress::Progress;
use crate::wait::{Blocking, Wait, WaitKind, WakeSources, cancellable};
use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, Weak};

/// Object with a descriptor to block on.
pub(super) trait WaitDescriptor: WakeSources {
    /// Prepares blocking on the descriptor (fi_trywait(3)). Fails with -FI_EAGAIN when there is
    /// something to do or to read first.
    fn try_wait(&self) -> Result;
}

/// A queue or counter, as a member of sets.
pub trait Waitable: WakeSources + Send + Sync + 'static {
    /// Makes progress and returns true if there is something for the application.
    fn poll_member(&self) -> bool;
    /// Makes progress, without recording the state.
    fn progress_member(&self);
    /// Returns true if there is something for the application, without making progress and without
    /// recording it.
    fn is_ready(&self) -> bool;
    /// Returns the context reported by fi_poll(3).
    fn poll_context(&self) -> *mut c_void;
    /// Returns the source added to a wait set with the member; `None` if the member adds its
    /// sources by itself.
    fn source_of_set(&self) -> Option<&dyn Progress>;
}

/// A member of a set.
#[derive(Clone)]
pub(super) struct PollMember(Weak<dyn Waitable>);

impl std::fmt::Debug for PollMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PollMember({:?})", self.0.as_ptr().cast::<fid>())
    }
}

impl PollMember {
    pub(super) fn new<T: Waitable>(member: &Arc<T>) -> Self {
        let member: Arc<dyn Waitable> = member.clone();
        Self(Arc::downgrade(&member))
    }

    /// Makes progress on the member and returns true if it has something for the application.
    pub(super) fn poll(&self) -> bool {
        self.0.upgrade().is_some_and(|member| member.poll_member())
    }

    /// Makes progress on the member, without recording its state.
    pub(super) fn progress(&self) {
        if let Some(member) = self.0.upgrade() {
            member.progress_member();
        }
    }

    /// Returns true if the member has something for the application, without making progress and
    /// without recording it.
    fn ready(&self) -> bool {
        self.0.upgrade().is_some_and(|member| member.is_ready())
    }

    /// Returns true if the member's progress sources would wake a waiter.
    fn may_block(&self) -> bool {
        self.0.upgrade().is_none_or(|member| member.may_block())
    }

    fn end_wait(&self) {
        if let Some(member) = self.0.upgrade() {
            member.end_wait();
        }
    }

    pub(super) fn context(&self) -> *mut c_void {
        self.0.upgrade().map_or(std::ptr::null_mut(), |member| member.poll_context())
    }

    pub(super) fn is(&self, fid: *const fid) -> bool {
        std::ptr::addr_eq(self.0.as_ptr(), fid)
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
    pub fn add<T: Waitable>(&self, member: &Arc<T>) -> Result {
        if let Some(source) = member.source_of_set() {
            self.add_source(source)?;
        }
        self.members().push(PollMember::new(member));
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

    /// Polls the members once for a waiting call.
    fn wait(&self, call: &mut Blocking) -> Result {
        let result = call.look(
            Some(&self.wait),
            self,
            || {
                let members = self.members().clone();
                if members.iter().any(PollMember::poll) { Ok(()) } else { Err(Error::AGAIN) }
            },
            || self.members().iter().any(PollMember::ready),
        );
        if result == Err(Error::AGAIN) { Err(Error::TIMEDOUT) } else { result }
    }
}

impl WakeSources for WaitSet {
    fn may_block(&self) -> bool {
        self.members().clone().iter().all(PollMember::may_block)
    }

    fn end_wait(&self) {
        self.members().clone().iter().for_each(PollMember::end_wait);
    }
}

impl WaitDescriptor for WaitSet {
    fn try_wait(&self) -> Result {
        self.wait.arm()?;
        let members = self.members().clone();
        let busy =
            members.iter().any(PollMember::poll) || !members.iter().all(PollMember::may_block);
        if busy { Err(Error::AGAIN) } else { Ok(()) }
    }
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
// SAFETY of the entry point below: it is reachable only through the ops table
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
