//! Processor counters provided by Linux (perf_event_open(2)).
//!
//! A counter counts the events of one thread, so every thread opens its own at its first call. It
//! is read by a processor instruction if the system permits it to programs, and by a system call
//! otherwise.
use crate::last_error;
use core::ffi::c_int;
use core::ptr;
#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{Ordering, compiler_fence};
use ofi_hook::error::{Error, Result};
use std::cell::OnceCell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;
use std::time::Instant;

/// Counted event; the numbers are the system's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PmuEvent {
    Cycles = 0,
    Instructions = 1,
}

/// Source of the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meter(Option<PmuEvent>);

thread_local! {
    /// Counters of this thread, by event; `None` for one that cannot be opened.
    static COUNTERS: [OnceCell<Option<Counter>>; 2] = const { [OnceCell::new(), OnceCell::new()] };
}

impl Meter {
    /// Nanoseconds, always available.
    pub(crate) const CLOCK: Self = Self(None);

    /// Returns the counter of an event; fails if the system does not provide it to programs.
    pub(crate) fn new(event: PmuEvent) -> Result<Self> {
        let opened = Counter::open(event);
        COUNTERS.with(|counters| {
            let (counter, result) = match opened {
                Ok(counter) => (Some(counter), Ok(Self(Some(event)))),
                Err(error) => (None, Err(error)),
            };
            // A second fabric of this thread's: it has its counter.
            let _ = counters[event as usize].set(counter);
            result
        })
    }

    /// The number now: only differences between two of one thread's mean anything.
    pub(crate) fn now(self) -> u64 {
        let Some(event) = self.0 else { return clock() };
        // While a thread ends its counter may be gone.
        COUNTERS
            .try_with(|counters| {
                let counter = counters[event as usize].get_or_init(|| Counter::open(event).ok());
                counter.as_ref().map_or(0, Counter::read)
            })
            .unwrap_or(0)
    }

    /// Returns the unit of the numbers, for display.
    pub(crate) fn title(self) -> &'static str {
        match self.0 {
            None => "nanoseconds",
            Some(PmuEvent::Cycles) => "CPU cycles",
            Some(PmuEvent::Instructions) => "CPU instr",
        }
    }
}

fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// `struct perf_event_attr` as it was at first.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// Event type common to all processors.
const HARDWARE: u32 = 0;
/// Excludes kernel work on behalf of the program; this needs fewer privileges.
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// Programs may read the counter themselves.
#[cfg(target_arch = "x86_64")]
const USER_READS: u64 = 1 << 2;

/// The beginning of `struct perf_event_mmap_page`.
#[repr(C)]
struct PmuPage {
    version: u32,
    compat_version: u32,
    lock: u32,
    index: u32,
    offset: i64,
    time_enabled: u64,
    time_running: u64,
    capabilities: u64,
    width: u16,
}

/// Counter of the thread that opened it.
struct Counter {
    file: File,
    /// Written by the system; null if programs may not read the counter themselves.
    page: *mut PmuPage,
    size: usize,
}

impl Counter {
    fn open(event: PmuEvent) -> Result<Self> {
        let attr = PerfEventAttr {
            kind: HARDWARE,
            size: size_of::<PerfEventAttr>() as u32,
            config: event as u64,
            flags: EXCLUDE_KERNEL,
            ..PerfEventAttr::default()
        };
        let (this_thread, any_cpu, no_group, no_flags): (c_int, c_int, c_int, usize) =
            (0, -1, -1, 0);
        // SAFETY: attributes of the size they say, for the call.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                this_thread,
                any_cpu,
                no_group,
                no_flags,
            )
        };
        let Ok(fd @ 0..) = c_int::try_from(fd) else { return Err(last_error()) };
        // SAFETY: a file opened just now, without another owner.
        let file = unsafe { File::from_raw_fd(fd) };
        // SAFETY: no precondition.
        let size = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .map_err(|_| Error::INVAL)?;
        // SAFETY: a new mapping of the first page of the file.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let page = if page == libc::MAP_FAILED { ptr::null_mut() } else { page.cast::<PmuPage>() };
        Ok(Self { file, page, size })
    }

    fn read(&self) -> u64 {
        self.read_page().unwrap_or_else(|| {
            let mut bytes = [0; 8];
            match (&self.file).read(&mut bytes) {
                Ok(8) => u64::from_ne_bytes(bytes),
                _ => 0,
            }
        })
    }

    /// Reads without a system call, if possible.
    #[cfg(target_arch = "x86_64")]
    fn read_page(&self) -> Option<u64> {
        if self.page.is_null() {
            return None;
        }
        loop {
            // SAFETY: the page is mapped as long as `self`, and the system may write to
            // it at any time, hence volatile.
            let (lock, index, offset, capabilities, width) = unsafe {
                let lock = (&raw const (*self.page).lock).read_volatile();
                compiler_fence(Ordering::SeqCst);
                (
                    lock,
                    (&raw const (*self.page).index).read_volatile(),
                    (&raw const (*self.page).offset).read_volatile(),
                    (&raw const (*self.page).capabilities).read_volatile(),
                    u32::from((&raw const (*self.page).width).read_volatile()),
                )
            };
            if capabilities & USER_READS == 0 {
                return None;
            }
            let mut count = offset;
            if index > 0 && (1..=64).contains(&width) {
                // SAFETY: the system says that programs may read this counter.
                let raw = unsafe { read_counter(index - 1) };
                let unused = 64 - width;
                count = count.wrapping_add(((raw << unused) as i64) >> unused);
            }
            compiler_fence(Ordering::SeqCst);
            // SAFETY: as above.
            if unsafe { (&raw const (*self.page).lock).read_volatile() } == lock {
                return Some(count as u64);
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn read_page(&self) -> Option<u64> {
        None
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if !self.page.is_null() {
            // SAFETY: mapped in `open`, and no longer read.
            unsafe { libc::munmap(self.page.cast(), self.size) };
        }
    }
}

/// # Safety
/// The system lets programs read the counter of this index.
#[cfg(target_arch = "x86_64")]
unsafe fn read_counter(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: by this function's contract; it changes nothing but these registers.
    unsafe {
        core::arch::asm!(
            "rdpmc",
            in("ecx") index,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags)
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_increases_with_work_for_every_event() {
        for event in [PmuEvent::Instructions, PmuEvent::Cycles] {
            let meter = Meter::new(event).unwrap_or(Meter::CLOCK);
            let start = meter.now();
            assert!(
                std::hint::black_box((0..10_000_u64).fold(0, |sum, n| sum ^ (n * n))) < u64::MAX
            );
            assert!(meter.now() > start, "{}", meter.title());
        }
    }

    #[test]
    fn structures_have_the_layout_of_the_system() {
        assert_eq!(size_of::<PerfEventAttr>(), 64);
        assert_eq!(core::mem::offset_of!(PmuPage, offset), 16);
        assert_eq!(core::mem::offset_of!(PmuPage, width), 48);
    }
}
