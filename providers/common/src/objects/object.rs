//! Common part of the objects opened by programs on fabrics and domains: a context, an open parent,
//! a user count, and the calls of all objects (fi_close, fi_control). An implementation of
//! [`Object`] defines the special features of its type, and [`fid_ops`] creates its table.
use crate::abi::{fi_ops, fid};
use crate::boundary::ffi_guard;
use crate::error::{Error, Result};
use crate::fid::{FidObject, ops};
use core::ffi::{c_int, c_void};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counter of an object's users; it cannot be closed while there are any.
#[derive(Debug, Default)]
pub struct Users(AtomicUsize);

impl Users {
    /// Adds a user, preventing the close of the object.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a user away.
    pub fn remove(&self) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert_ne!(before, 0, "an object has fewer than no users");
    }

    /// -FI_EBUSY as long as the object has users.
    pub fn check_none(&self) -> Result {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Error::BUSY) }
    }
}

/// Parent of an object, a fabric or a domain: its memory stays valid as long as this value, and it
/// cannot be closed before the object.
pub struct Parent {
    object: Arc<dyn Any + Send + Sync>,
    users: Arc<Users>,
    left: AtomicBool,
}

impl Parent {
    /// Counts an object being opened as a user of its parent.
    pub fn new(object: Arc<dyn Any + Send + Sync>, users: Arc<Users>) -> Self {
        users.add();
        Self { object, users, left: AtomicBool::new(false) }
    }

    /// Returns the parent fabric or domain.
    pub(crate) fn object(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.object
    }

    /// Returns true if both have the same parent.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.object), Arc::as_ptr(&other.object))
    }

    /// Removes a closed object from the count of users, though its memory may remain allocated for
    /// a while.
    pub(crate) fn leave(&self) {
        if !self.left.swap(true, Ordering::Relaxed) {
            self.users.remove();
        }
    }
}

/// An object failing to open stops being a user, too.
impl Drop for Parent {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Debug for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parent")
    }
}

/// Common part of every object: a parent and users.
#[derive(Debug)]
pub struct Base {
    parent: Parent,
    users: Users,
}

impl Base {
    /// Returns the base of an object without users.
    pub(crate) fn new(parent: Parent) -> Self {
        Self { parent, users: Users::default() }
    }
}

/// Object opened by programs on a fabric or domain. `C` is its structure.
pub trait Object<C: 'static>: FidObject<C> + 'static {
    /// The `fclass` of the object's structure: FI_CLASS_CQ …
    const CLASS: c_int;
    /// Name of fi_close in the log message of a panic.
    const CLOSE: &'static str;
    /// Name of fi_control in the log message of a panic.
    const CONTROL: &'static str = "fi_control";

    /// Returns the object's table of [`fid_ops`], also distinguishing objects of this library from
    /// others.
    fn table() -> &'static fi_ops;

    /// Returns the common part of the object.
    fn base(&self) -> &Base;

    /// Fails with -FI_EBUSY if the object is in use without a count in [`Users`].
    fn may_close(&self) -> Result {
        Ok(())
    }

    /// Called after the close by the program; `fid` is invalid from now on.
    fn closed(_this: &mut Arc<Self>, _fid: *mut fid) {}

    /// fi_control.
    ///
    /// # Safety
    /// `arg` is valid for the command.
    unsafe fn control(&self, _command: c_int, _arg: *mut c_void) -> Result {
        Err(Error::NOSYS)
    }

    /// Returns the fid at the start of the object's structure.
    fn fid(context: *mut c_void) -> fid {
        let ops = std::ptr::from_ref(Self::table()).cast_mut();
        fid { fclass: Self::CLASS as usize, context, ops }
    }

    /// Returns the context of the object's opening.
    fn context(&self) -> *mut c_void {
        // SAFETY: by the contract of `FidObject` the object begins with a `fid`, which changes no
        // more once the program has the object.
        unsafe { (*std::ptr::from_ref(self).cast::<fid>()).context }
    }

    /// The object behind a fid of the program's, if it is one of ours; null is none.
    ///
    /// # Safety
    /// `fid` is null or points to a live fid.
    unsafe fn from_fid(fid: *mut fid) -> Result<Arc<Self>> {
        // SAFETY: by this function's contract; our table marks our objects of this type.
        unsafe {
            if fid.is_null() || !std::ptr::eq((*fid).ops, Self::table()) {
                return Err(Error::INVAL);
            }
            Self::arc_from_c(fid.cast::<C>())
        }
    }

    /// Returns true if the object belongs to the same domain, or fabric, as another.
    fn is_sibling_of(&self, other: &Parent) -> bool {
        self.base().parent.is_same(other)
    }

    /// Adds a user; the object cannot be closed while it has users.
    fn add_user(&self) {
        self.base().users.add();
    }

    /// Takes a user off the count.
    fn remove_user(&self) {
        self.base().users.remove();
    }
}

/// Returns the table of the calls of every object. An object's other calls replace members.
pub const fn fid_ops<T: Object<C>, C: 'static>() -> fi_ops {
    fi_ops { control: Some(control::<T, C>), ..ops(close::<T, C>) }
}

unsafe extern "C" fn close<T: Object<C>, C: 'static>(fid: *mut fid) -> c_int {
    ffi_guard(T::CLOSE, || {
        // SAFETY: reachable only through the table of an object of this type that is open, or
        // with null, which is an error.
        let object = unsafe { T::from_c(fid.cast::<C>()) }?;
        object.base().users.check_none()?;
        object.may_close()?;
        // SAFETY: an open object of this type, which nothing of ours uses any more.
        let mut object = unsafe { T::take(fid.cast::<C>()) };
        T::closed(&mut object, fid);
        object.base().parent.leave();
        Ok(())
    })
}

unsafe extern "C" fn control<T: Object<C>, C: 'static>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: as for `close`; the argument is the program's.
    ffi_guard(T::CONTROL, || unsafe { T::from_c(fid.cast::<C>())?.control(command, arg) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_CLASS_POLL, FI_CLASS_WAIT, fi_ops_poll, fid_poll};

    /// Object counting its closes.
    #[repr(C)]
    struct Thing {
        c: fid_poll,
        base: Base,
        closings: Arc<AtomicUsize>,
    }

    // SAFETY: nothing of it changes but atomics.
    unsafe impl Sync for Thing {}
    // SAFETY: nothing of it changes but atomics.
    unsafe impl Send for Thing {}
    // SAFETY: repr(C) with the C struct first; always in an `Arc`.
    unsafe impl FidObject<fid_poll> for Thing {}

    static TABLE: fi_ops = fid_ops::<Thing, _>();

    impl Object<fid_poll> for Thing {
        const CLASS: c_int = FI_CLASS_POLL;
        const CLOSE: &'static str = "fi_close(thing)";
        fn table() -> &'static fi_ops {
            &TABLE
        }
        fn base(&self) -> &Base {
            &self.base
        }
        fn closed(this: &mut Arc<Self>, _fid: *mut fid) {
            this.closings.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn open(on: &Arc<Users>, closings: &Arc<AtomicUsize>) -> Arc<Thing> {
        let ops = std::ptr::null_mut::<fi_ops_poll>();
        let base = Base::new(Parent::new(Arc::new(()), on.clone()));
        let context = std::ptr::without_provenance_mut(7);
        let c = fid_poll { fid: Thing::fid(context), ops };
        Arc::new(Thing { c, base, closings: closings.clone() })
    }

    #[test]
    fn object_in_use_cannot_close_and_closed_one_leaves_parent_once() {
        let (on, closings) = (Arc::new(Users::default()), Arc::default());
        let (thing, other) = (open(&on, &closings), open(&on, &closings));
        let object = thing.clone();
        let fid = thing.into_c().cast::<fid>();
        let close = TABLE.close.unwrap();
        object.add_user();
        // SAFETY: it is open.
        assert_eq!(unsafe { close(fid) }, Error::BUSY.to_ret());
        object.remove_user();
        // SAFETY: it is open, and not used after that.
        assert_eq!(unsafe { close(fid) }, 0);
        // Its memory is still there, and will leave the parent alone when it goes.
        assert_eq!((on.check_none(), closings.load(Ordering::Relaxed)), (Err(Error::BUSY), 1));
        drop(other);
        assert_eq!(on.check_none(), Ok(()));
        drop(object);
        assert_eq!(on.check_none(), Ok(()));
    }

    #[test]
    fn an_object_is_known_by_its_table_and_has_its_context() {
        let (on, closings) = (Arc::new(Users::default()), Arc::default());
        let thing = open(&on, &closings);
        assert_eq!((thing.context() as usize, thing.c.fid.fclass), (7, FI_CLASS_POLL as usize));
        let fid = thing.as_c().cast::<fid>();
        // SAFETY: it lives, and nothing of it is closed.
        let found = unsafe { Thing::from_fid(fid) }.unwrap();
        assert!(Arc::ptr_eq(&found, &thing));
        static OTHER: fi_ops = fid_ops::<Thing, _>();
        let ops = (&raw const OTHER).cast_mut();
        let mut other = fid { fclass: FI_CLASS_WAIT as usize, context: 7 as *mut _, ops };
        // SAFETY: it lives.
        assert_eq!(unsafe { Thing::from_fid(&mut other) }.err(), Some(Error::INVAL));
        // SAFETY: null is no object.
        assert_eq!(unsafe { Thing::from_fid(std::ptr::null_mut()) }.err(), Some(Error::INVAL));
    }

    #[test]
    fn unknown_object_controls_are_refused() {
        let thing = open(&Arc::default(), &Arc::default());
        let control = TABLE.control.unwrap();
        // SAFETY: it is open; there is no such command.
        let answer = unsafe { control(thing.as_c().cast(), 12345, std::ptr::null_mut()) };
        assert_eq!(answer, Error::NOSYS.to_ret());
    }
}
