//! Memory monitor given to the library by a program: `fi_open("mr_cache")` and `fi_import_fid`
//! (fi_mr(3), fi_open(3)).
//!
//! Registration caches live in the providers. As plug-ins these reach the library only through its
//! exports. So `fi_open` has a private name for them: it returns a `struct fid_mem_monitor`
//! representing the program's, one for each plug-in. Other libraries do not know the name and
//! return `-FI_ENOSYS`; a plug-in then watches memory by itself.
//!
//! A program may report a change from any context, also from inside `free`. So nothing is allocated
//! or freed here, and no function of the program is called, under the one lock taken by such a
//! report.
use core::ffi::{c_int, c_void};
use core::ops::Range;
use ofi::abi::{
    FI_CLASS_MEM_MONITOR, fi_ops, fi_ops_mem_monitor, fi_ops_mem_notify, fid, fid_mem_monitor,
};
use ofi::boundary::{ffi_guard, ffi_guard_if_memory};
use ofi::error::{Error, Result};
use ofi::fid::{FidObject, ops};
use ofi::monitor::Coverage;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

struct MonitorState {
    /// The program's monitor, null if there is none.
    imported: *mut fid_mem_monitor,
    /// Ranges watched by the program's monitor, for all plug-ins together.
    watched: Coverage,
}

// SAFETY: fi_import_fid(3): the program keeps its monitor until it closes it,
// and its operations may be called from any thread.
unsafe impl Send for MonitorState {}

static STATE: Mutex<MonitorState> =
    Mutex::new(MonitorState { imported: core::ptr::null_mut(), watched: Coverage::EMPTY });

type Notify = unsafe extern "C" fn(*mut fid_mem_monitor, *const c_void, usize);

/// Plug-in watching memory.
#[derive(Clone, Copy)]
struct MonitorListener {
    monitor: *mut fid_mem_monitor,
    notify: Notify,
}

// SAFETY: the object lives until it is taken from the list, under its lock.
unsafe impl Send for MonitorListener {}
// SAFETY: as above.
unsafe impl Sync for MonitorListener {}

/// Replaced as a whole, under `STATE`: its lock is held for the exchange only.
static LISTENERS: RwLock<Vec<MonitorListener>> = RwLock::new(Vec::new());

fn state() -> MutexGuard<'static, MonitorState> {
    // Nothing in here panics half way through a change.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listeners() -> Vec<MonitorListener> {
    LISTENERS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_listeners(mut list: Vec<MonitorListener>) {
    let mut current = LISTENERS.write().unwrap_or_else(PoisonError::into_inner);
    core::mem::swap(&mut *current, &mut list);
    drop(current);
    // The old list is freed here, without the lock.
}

static IMPORT_OPS: fi_ops_mem_notify =
    fi_ops_mem_notify { size: size_of::<fi_ops_mem_notify>(), notify: Some(notify) };

/// The operations of the program's monitor object, from the moment it is imported.
static IMPORTED_OPS: fi_ops = ops(close_imported);

/// Makes a program's monitor the one of all caches opened from now on. Fails with `-FI_EBUSY` if
/// there is one.
///
/// # Safety
/// `monitor` belongs to the program, and stays valid until it is closed.
pub(super) unsafe fn import(monitor: *mut fid_mem_monitor) -> Result {
    let mut state = state();
    // SAFETY: by this function's contract.
    unsafe {
        let ops = (*monitor).export_ops.as_ref().ok_or(Error::INVAL)?;
        if ops.size < size_of::<fi_ops_mem_monitor>() {
            return Err(Error::INVAL);
        }
        if !state.imported.is_null() {
            return Err(Error::BUSY);
        }
        (*monitor).import_ops = (&raw const IMPORT_OPS).cast_mut();
        (*monitor).fid.ops = (&raw const IMPORTED_OPS).cast_mut();
    }
    state.imported = monitor;
    Ok(())
}

unsafe extern "C" fn close_imported(monitor: *mut fid) -> c_int {
    ffi_guard("fi_close", || -> Result {
        let mut state = state();
        if state.imported.cast() != monitor {
            return Err(Error::INVAL);
        }
        if !listeners().is_empty() {
            return Err(Error::BUSY);
        }
        state.imported = core::ptr::null_mut();
        Ok(())
    })
}

/// Called by the program for changed memory.
unsafe extern "C" fn notify(_monitor: *mut fid_mem_monitor, addr: *const c_void, len: usize) {
    // A panic could be reported nowhere; nothing in here can panic.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        for listener in &*LISTENERS.read().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: a plug-in's function, for the object that it opened and
            // cannot have closed while we hold the lock.
            unsafe { (listener.notify)(listener.monitor, addr, len) };
        }
    }));
}

/// Object given to a plug-in in place of the program's monitor.
#[repr(C)]
struct ImportedMonitor(fid_mem_monitor);

// SAFETY: written once, in `open`.
unsafe impl Send for ImportedMonitor {}
// SAFETY: as above.
unsafe impl Sync for ImportedMonitor {}
// SAFETY: `repr(C)`, a `fid_mem_monitor` first, and C gets it from `into_c` alone.
unsafe impl FidObject<fid_mem_monitor> for ImportedMonitor {}

static MONITOR_FID_OPS: fi_ops = ops(close_monitor);

static MONITOR_OPS: fi_ops_mem_monitor = fi_ops_mem_monitor {
    size: size_of::<fi_ops_mem_monitor>(),
    start: Some(start),
    stop: Some(stop),
    subscribe: Some(subscribe),
    unsubscribe: Some(unsubscribe),
    valid: Some(valid),
};

/// Opens the imported monitor for a plug-in; the first one starts it.
///
/// # Safety
/// `attr` has `attr_len` bytes of a `struct fi_ops_mem_notify`.
pub(super) unsafe fn open(
    attr: *const c_void,
    attr_len: usize,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fid> {
    if flags != 0 {
        return Err(Error::BADFLAGS);
    }
    if attr_len < size_of::<fi_ops_mem_notify>() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract.
    let ops = unsafe { attr.cast::<fi_ops_mem_notify>().as_ref() }.ok_or(Error::INVAL)?;
    let notify = ops.notify.ok_or(Error::INVAL)?;
    let state = state();
    let imported = state.imported()?;
    let mut all = listeners();
    if all.is_empty() {
        if let Some(start) = imported.ops.start {
            // SAFETY: the program's function, called with its own object.
            Error::check(unsafe { start(imported.monitor) })?;
        }
    }
    let opened = Arc::new(ImportedMonitor(fid_mem_monitor {
        fid: fid {
            fclass: FI_CLASS_MEM_MONITOR as usize,
            context,
            ops: (&raw const MONITOR_FID_OPS).cast_mut(),
        },
        export_ops: (&raw const MONITOR_OPS).cast_mut(),
        import_ops: core::ptr::null_mut(),
    }));
    all.push(MonitorListener { monitor: opened.as_c(), notify });
    set_listeners(all);
    Ok(opened.into_c().cast())
}

unsafe extern "C" fn close_monitor(monitor: *mut fid) -> c_int {
    ffi_guard("fi_close", || -> Result {
        let mut state = state();
        let mut all = listeners();
        all.retain(|listener| listener.monitor.cast() != monitor);
        let last = all.is_empty();
        set_listeners(all);
        // SAFETY: `open` created it, and no further reports to it occur.
        drop(unsafe { ImportedMonitor::take(monitor.cast()) });
        if last {
            state.watched = Coverage::EMPTY;
            let imported = state.imported()?;
            if let Some(stop) = imported.ops.stop {
                // SAFETY: the program's function, called with its own object.
                unsafe { stop(imported.monitor) };
            }
        }
        Ok(())
    })
}

/// The program's monitor and its operations.
struct MonitorWithOps {
    monitor: *mut fid_mem_monitor,
    ops: fi_ops_mem_monitor,
}

impl MonitorState {
    fn imported(&self) -> Result<MonitorWithOps> {
        // SAFETY: it stays until it is closed, which takes it from here, and
        // `import` has seen that its table is there and long enough.
        unsafe {
            let monitor = self.imported.as_ref().ok_or(Error::NODATA)?;
            let ops = *monitor.export_ops.as_ref().ok_or(Error::NODATA)?;
            Ok(MonitorWithOps { monitor: self.imported, ops })
        }
    }
}

fn range(addr: *const c_void, len: usize) -> Range<usize> {
    addr as usize..(addr as usize).saturating_add(len)
}

// `open` started it and the last `close_monitor` stops it.
unsafe extern "C" fn start(_monitor: *mut fid_mem_monitor) -> c_int {
    0
}
unsafe extern "C" fn stop(_monitor: *mut fid_mem_monitor) {}

unsafe extern "C" fn subscribe(
    _monitor: *mut fid_mem_monitor,
    addr: *const c_void,
    len: usize,
) -> c_int {
    ffi_guard_if_memory("subscribe", || -> Result {
        let mut state = state();
        let imported = state.imported()?;
        let subscribe = imported.ops.subscribe.ok_or(Error::NOSYS)?;
        // All of it, also what is watched already: the program may have given
        // that up when it reported a change that we have yet to act on.
        // SAFETY: the program's function, called with its own object.
        Error::check(unsafe { subscribe(imported.monitor, addr, len) })?;
        state.watched.add(range(addr, len));
        Ok(())
    })
}

unsafe extern "C" fn unsubscribe(_monitor: *mut fid_mem_monitor, addr: *const c_void, len: usize) {
    ffi_guard("unsubscribe", || -> Result {
        let mut state = state();
        let imported = state.imported()?;
        for bare in state.watched.remove(range(addr, len)) {
            if let Some(unsubscribe) = imported.ops.unsubscribe {
                let addr = bare.start as *const c_void;
                // SAFETY: the program's function, called with its own object.
                unsafe { unsubscribe(imported.monitor, addr, bare.len()) };
            }
        }
        Ok(())
    });
}

unsafe extern "C" fn valid(
    _monitor: *mut fid_mem_monitor,
    addr: *const c_void,
    len: usize,
) -> bool {
    // Without an imported monitor nothing is known of the region, so it counts as not valid.
    catch_unwind(AssertUnwindSafe(|| {
        let imported = state().imported().ok()?;
        let Some(valid) = imported.ops.valid else { return Some(true) };
        // SAFETY: the program's function, called with its own object.
        Some(unsafe { valid(imported.monitor, addr, len) })
    }))
    .is_ok_and(|valid| valid == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use ofi::info::version;

    static STARTED: AtomicUsize = AtomicUsize::new(0);
    static WATCHED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    static NOTIFIED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn start(_: *mut fid_mem_monitor) -> c_int {
        STARTED.fetch_add(1, Ordering::SeqCst);
        0
    }
    unsafe extern "C" fn stop(_: *mut fid_mem_monitor) {
        STARTED.fetch_sub(1, Ordering::SeqCst);
    }
    unsafe extern "C" fn subscribe(_: *mut fid_mem_monitor, at: *const c_void, n: usize) -> c_int {
        WATCHED.lock().unwrap().push((at as usize, n));
        0
    }
    unsafe extern "C" fn unsubscribe(_: *mut fid_mem_monitor, at: *const c_void, n: usize) {
        WATCHED.lock().unwrap().retain(|watched| *watched != (at as usize, n));
    }
    unsafe extern "C" fn valid(_: *mut fid_mem_monitor, at: *const c_void, _: usize) -> bool {
        at as usize != 0x9000
    }
    unsafe extern "C" fn on_event(monitor: *mut fid_mem_monitor, at: *const c_void, n: usize) {
        // SAFETY: the object opened below, which is open.
        let context = unsafe { (*monitor).fid.context } as usize;
        NOTIFIED.store(context + at as usize + n, Ordering::SeqCst);
    }

    fn listen(context: usize) -> Result<*mut fid_mem_monitor> {
        let ops =
            fi_ops_mem_notify { size: size_of::<fi_ops_mem_notify>(), notify: Some(on_event) };
        let (name, len) = (ofi::monitor::IMPORTED_MONITOR, size_of_val(&ops));
        let (attr, context) = ((&raw const ops).cast(), context as *mut c_void);
        // SAFETY: the attribute is of that size.
        unsafe { open::open(version(1, 13), name, attr, len, 0, context) }.map(|fid| fid.cast())
    }

    fn close(fid: *mut fid) -> c_int {
        // SAFETY: an open object, closed once.
        unsafe { (*fid).ops.as_ref().unwrap().close.unwrap()(fid) }
    }

    #[test]
    fn plug_ins_share_the_monitor_imported_by_the_program() {
        assert_eq!(listen(0).unwrap_err(), Error::NODATA);
        let mut ops = fi_ops_mem_monitor {
            size: 8,
            start: Some(start),
            stop: Some(stop),
            subscribe: Some(subscribe),
            unsubscribe: Some(unsubscribe),
            valid: Some(valid),
        };
        let null = core::ptr::null_mut();
        let mut of_program = fid_mem_monitor {
            fid: fid { fclass: FI_CLASS_MEM_MONITOR as usize, context: null, ops: null.cast() },
            export_ops: &raw mut ops,
            import_ops: null.cast(),
        };
        let of_program = &raw mut of_program;
        // SAFETY: a monitor that lives until the end of the test, and objects
        // that are open while they are used.
        unsafe {
            assert_eq!(import(of_program), Err(Error::INVAL));
            (*of_program).export_ops.as_mut().unwrap().size = size_of::<fi_ops_mem_monitor>();
            assert_eq!(import(of_program), Ok(()));
            assert_eq!(import(of_program), Err(Error::BUSY));
            assert_eq!(STARTED.load(Ordering::SeqCst), 0);

            let (one, two) = (listen(1).unwrap(), listen(2).unwrap());
            assert_eq!(STARTED.load(Ordering::SeqCst), 1);
            assert_eq!(close(of_program.cast()), Error::BUSY.to_ret());
            let calls = (*one).export_ops.as_ref().unwrap();
            let (subscribe, unsubscribe) = (calls.subscribe.unwrap(), calls.unsubscribe.unwrap());
            let at = |at: usize| at as *const c_void;
            assert_eq!(subscribe(one, at(0x1000), 0x2000), 0);
            assert_eq!(subscribe(two, at(0x2000), 0x2000), 0);
            // Only what neither of them needs any more is given up.
            unsubscribe(two, at(0x2000), 0x2000);
            assert!(WATCHED.lock().unwrap().contains(&(0x1000, 0x2000)));
            assert_eq!(WATCHED.lock().unwrap().len(), 2);
            unsubscribe(one, at(0x1000), 0x2000);
            assert_eq!(WATCHED.lock().unwrap().as_slice(), [(0x2000, 0x2000)]);
            assert!(calls.valid.unwrap()(one, at(0x1000), 1));
            assert!(!calls.valid.unwrap()(one, at(0x9000), 1));

            let notify = (*of_program).import_ops.as_ref().unwrap().notify.unwrap();
            assert_eq!(close(two.cast()), 0);
            notify(of_program, at(0x5000), 0x10);
            assert_eq!(NOTIFIED.load(Ordering::SeqCst), 1 + 0x5000 + 0x10);
            assert_eq!(close(one.cast()), 0);
            assert_eq!(STARTED.load(Ordering::SeqCst), 0);
            notify(of_program, at(0x6000), 0x10);
            assert_eq!(NOTIFIED.load(Ordering::SeqCst), 1 + 0x5000 + 0x10);
            assert_eq!(close(of_program.cast()), 0);
        }
    }
}
