//! Memory monitors: notification of registration caches about changed mappings (fi_mr(3),
//! `FI_MR_CACHE_MONITOR`). The source is the program's own monitor, if it imported one, else the
//! kernel by userfaultfd(2).
//!
//! A change may be reported from any context, also from inside `free` by a thread using a cache. So
//! a report is only stored, in a ring of fixed size, under a lock without allocations below it. A
//! cache reads the ring before a lookup.
use crate::abi::{self, fi_ops_mem_monitor, fi_ops_mem_notify, fid, fid_mem_monitor};
use crate::error::{Error, Result};
pub use crate::memory_events::MemoryEvents;
pub(crate) use crate::memory_events::{MemoryWatch, ReadUpTo};
use crate::provider::Provider;
use crate::uffd::Uffd;
use crate::{log, param};
use core::ffi::{c_char, c_int, c_void};
use ofi::monitor::{Coverage, IMPORTED_MONITOR};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A monitor, as any number of caches share it.
pub struct Monitor {
    notices: Arc<MemoryEvents>,
    source: Box<dyn MemoryWatch>,
    /// Watched ranges. The lock is held for calls of the source, so a concurrent unwatch and watch
    /// of a range keep their order.
    watched: Mutex<Coverage>,
    page: usize,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Monitor({:?})", self.watched)
    }
}

/// Monitor requested by `FI_MR_CACHE_MONITOR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Off,
    Userfaultfd,
    /// Monitor not available in this library.
    Other,
}

impl Wish {
    fn parse(name: Option<&str>) -> Self {
        let is = |word: &str| name.is_some_and(|name| name.eq_ignore_ascii_case(word));
        match name {
            None | Some("") => Self::Userfaultfd,
            _ if is("userfaultfd") => Self::Userfaultfd,
            _ if is("disabled") => Self::Off,
            _ => Self::Other,
        }
    }
}

impl Monitor {
    /// Returns the monitor selected by the environment and the program, or `None`, with a log
    /// message, if there is none.
    pub fn choose(prov: &'static Provider) -> Option<Arc<Self>> {
        let name = param::core_string(c"mr_cache_monitor");
        let wish = Wish::parse(name.as_deref());
        if wish == Wish::Off {
            log!(prov, INFO, MR, "FI_MR_CACHE_MONITOR turns the registration cache off");
            return None;
        }
        if let Some(imported) = ProgramMonitor::open() {
            return Some(Arc::new(imported));
        }
        if wish == Wish::Other {
            let name = name.unwrap_or_default();
            log!(prov, WARN, MR, "there is no memory monitor {name} here: using userfaultfd");
        }
        match Self::userfaultfd() {
            Ok(monitor) => Some(monitor),
            Err(error) => {
                log!(
                    prov,
                    INFO,
                    MR,
                    "no registration cache: the kernel does not let us watch memory (userfaultfd: {error}); \
                     run with CAP_SYS_PTRACE or set vm.unprivileged_userfaultfd"
                );
                None
            }
        }
    }

    /// Returns the monitor using the kernel's userfaultfd. There is one for the process, since a
    /// page supports only one. The first user starts it, the last one ends it.
    pub fn userfaultfd() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Monitor>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(monitor) = shared.upgrade() {
            return Ok(monitor);
        }
        let notices = Arc::new(MemoryEvents::default());
        let source = Box::new(Uffd::start(notices.clone())?);
        let monitor = Arc::new(Self::new(notices, source));
        *shared = Arc::downgrade(&monitor);
        Ok(monitor)
    }

    pub(crate) fn new(notices: Arc<MemoryEvents>, source: Box<dyn MemoryWatch>) -> Self {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096);
        Self { notices, source, watched: Mutex::new(Coverage::EMPTY), page }
    }

    pub(crate) fn notices(&self) -> &MemoryEvents {
        &self.notices
    }

    fn pages(&self, range: Range<usize>) -> Range<usize> {
        let end = range.end.checked_add(self.page - 1).unwrap_or(range.end);
        range.start & !(self.page - 1)..end & !(self.page - 1)
    }

    fn watched(&self) -> MutexGuard<'_, Coverage> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a range until [`unwatch`](Self::unwatch) of the same.
    pub fn watch(&self, range: Range<usize>) -> Result {
        let pages = self.pages(range);
        let mut watched = self.watched();
        // Pages that are watched already are watched again: they may have changed, which the
        // caches have yet to read.
        self.source.watch(pages.clone())?;
        watched.add(pages);
        Ok(())
    }

    /// Ends a [`watch`](Self::watch). Pages with another watch stay watched.
    pub fn unwatch(&self, range: Range<usize>) {
        let mut watched = self.watched();
        for bare in watched.remove(self.pages(range)) {
            self.source.unwatch(bare);
        }
    }

    pub(crate) fn is_valid(&self, range: Range<usize>) -> bool {
        self.source.is_valid(self.pages(range))
    }
}

/// Monitor of the program, imported into the library that loaded this plug-in.
struct ProgramMonitor {
    monitor: *mut fid_mem_monitor,
    ops: fi_ops_mem_monitor,
    /// Event list passed to `notified` by address, kept alive until the monitor is closed.
    _notices: Arc<MemoryEvents>,
}

// SAFETY: the operations may be called from any thread (fi_open(3)).
unsafe impl Send for ProgramMonitor {}
// SAFETY: the operations may be called from any thread (fi_open(3)).
unsafe impl Sync for ProgramMonitor {}

type FiOpen = unsafe extern "C" fn(
    u32,
    *const c_char,
    *mut c_void,
    usize,
    u64,
    *mut *mut fid,
    *mut c_void,
) -> c_int;

impl ProgramMonitor {
    /// Opens the program's monitor; `None` if it imported none, or the library has no such part.
    fn open() -> Option<Monitor> {
        // Not linked: the oldest libraries that can load us have no fi_open.
        // SAFETY: asks for a symbol by name, among what we were linked with.
        let open = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fi_open".as_ptr()) };
        if open.is_null() {
            return None;
        }
        // SAFETY: fi_open has this type in every release.
        Self::open_with(unsafe { core::mem::transmute::<*mut c_void, FiOpen>(open) })
    }

    fn open_with(open: FiOpen) -> Option<Monitor> {
        let notices = Arc::new(MemoryEvents::default());
        let mut ops =
            fi_ops_mem_notify { size: size_of::<fi_ops_mem_notify>(), notify: Some(notified) };
        let mut opened: *mut fid = core::ptr::null_mut();
        // SAFETY: the attribute is what this part takes, and copied; the
        // context stays until the monitor is closed, in `drop`.
        let ret = unsafe {
            open(
                crate::info::version(1, 13),
                IMPORTED_MONITOR.as_ptr(),
                (&raw mut ops).cast(),
                size_of_val(&ops),
                0,
                &raw mut opened,
                Arc::as_ptr(&notices).cast_mut().cast(),
            )
        };
        if ret != 0 || opened.is_null() {
            return None;
        }
        let monitor = opened.cast::<fid_mem_monitor>();
        // SAFETY: what this part gives is such an object, with a whole table.
        let ops = unsafe { *(*monitor).export_ops };
        let source = Self { monitor, ops, _notices: notices.clone() };
        Some(Monitor::new(notices, Box::new(source)))
    }
}

unsafe extern "C" fn notified(monitor: *mut fid_mem_monitor, addr: *const c_void, len: usize) {
    let start = addr as usize;
    // SAFETY: the object of `open`, whose context is the `MemoryEvents` that live
    // until it is closed; closing it waits for calls of this.
    let notices = unsafe { &*(*monitor).fid.context.cast::<MemoryEvents>() };
    notices.report(|tell| tell(start..start.saturating_add(len)));
}

impl MemoryWatch for ProgramMonitor {
    fn watch(&self, pages: Range<usize>) -> Result {
        let subscribe = self.ops.subscribe.ok_or(Error::NOSYS)?;
        // SAFETY: our own object, which is open.
        let ret = unsafe { subscribe(self.monitor, pages.start as *const c_void, pages.len()) };
        Error::check(ret).map(drop)
    }

    fn unwatch(&self, pages: Range<usize>) {
        if let Some(unsubscribe) = self.ops.unsubscribe {
            // SAFETY: our own monitor, which is open.
            unsafe { unsubscribe(self.monitor, pages.start as *const c_void, pages.len()) };
        }
    }

    fn is_valid(&self, pages: Range<usize>) -> bool {
        self.ops.valid.is_none_or(|valid| {
            // SAFETY: our own monitor, which is open.
            unsafe { valid(self.monitor, pages.start as *const c_void, pages.len()) }
        })
    }
}

impl Drop for ProgramMonitor {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe {
            let fid: *mut fid = self.monitor.cast();
            let ops: *mut abi::fi_ops = (*fid).ops;
            if let Some(close) = (*ops).close {
                close(fid);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "the lists hold ranges")]
mod tests {
    use super::*;

    #[test]
    fn environment_variable_selects_the_monitor() {
        for (name, wish) in [
            (None, Wish::Userfaultfd),
            (Some("userfaultfd"), Wish::Userfaultfd),
            (Some("DISABLED"), Wish::Off),
            (Some("memhooks"), Wish::Other),
            (Some("kdreg2"), Wish::Other),
        ] {
            assert_eq!(Wish::parse(name), wish);
        }
    }

    #[test]
    fn without_the_library_there_is_no_imported_monitor() {
        assert!(ProgramMonitor::open().is_none());
    }

    static WATCHED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn subscribe(_: *mut fid_mem_monitor, at: *const c_void, n: usize) -> c_int {
        WATCHED.lock().unwrap().push((at as usize, n));
        0
    }
    unsafe extern "C" fn unsubscribe(_: *mut fid_mem_monitor, at: *const c_void, n: usize) {
        WATCHED.lock().unwrap().retain(|watched| *watched != (at as usize, n));
    }
    unsafe extern "C" fn valid(_: *mut fid_mem_monitor, at: *const c_void, _: usize) -> bool {
        at as usize != 0x5000
    }

    #[test]
    fn monitor_imported_by_the_program_serves_plug_in_caches() {
        let open: FiOpen = ofi_core::entry::fi_open;
        assert!(ProgramMonitor::open_with(open).is_none());
        let mut ops = fi_ops_mem_monitor {
            size: size_of::<fi_ops_mem_monitor>(),
            start: None,
            stop: None,
            subscribe: Some(subscribe),
            unsubscribe: Some(unsubscribe),
            valid: Some(valid),
        };
        let null: *mut c_void = core::ptr::null_mut();
        let class = abi::FI_CLASS_MEM_MONITOR as usize;
        let mut mine = fid_mem_monitor {
            fid: fid { fclass: class, context: null, ops: null.cast() },
            export_ops: &raw mut ops,
            import_ops: null.cast(),
        };
        let mine = &raw mut mine;
        let close = |fid: *mut fid| {
            // SAFETY: an open object, closed once.
            unsafe { (*(*fid).ops).close.unwrap()(fid) }
        };
        // SAFETY: a monitor that is there until the end of the test.
        unsafe {
            let mut part: *mut fid = null.cast();
            let (api, name) = (crate::info::version(1, 13), c"mr_cache".as_ptr());
            assert_eq!(open(api, name, null, 0, 0, &raw mut part, null), 0);
            assert_eq!((*(*part).ops).bind.unwrap()(part, mine.cast(), 0), 0);
            assert_eq!(close(part), 0);
        }
        let monitor = ProgramMonitor::open_with(open).unwrap();
        let mut seen = monitor.notices().now();
        // Pages, as the kernel has them.
        monitor.watch(0x1008..0x1010).unwrap();
        assert_eq!(WATCHED.lock().unwrap().as_slice(), [(0x1000, 0x1000)]);
        assert!(monitor.is_valid(0x1008..0x1010) && !monitor.is_valid(0x5000..0x5001));
        assert_eq!(close(mine.cast()), Error::BUSY.to_ret());
        // SAFETY: as above.
        unsafe { (*(*mine).import_ops).notify.unwrap()(mine, 0x1000 as *const c_void, 0x2000) };
        let written: Vec<_> = monitor.notices().since(&mut seen).unwrap().ranges().collect();
        assert_eq!(written, [0x1000..0x3000]);
        monitor.unwatch(0x1008..0x1010);
        assert!(WATCHED.lock().unwrap().is_empty());
        drop(monitor);
        assert_eq!(close(mine.cast()), 0);
    }
}
