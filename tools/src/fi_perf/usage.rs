//! Clock, processor time, system calls and description of this process and host.
use crate::wire::{Host, Usage};
use std::fs;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds of a tick of [`ticks`].
static SCALE: OnceLock<f64> = OnceLock::new();

/// Returns true if the time-stamp counter of the processors runs at a constant rate.
fn has_constant_counter() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let mut clock =
        fs::read_to_string("/sys/devices/system/clocksource/clocksource0/available_clocksource")
            .unwrap_or_default();
    clock.push(' ');
    cfg!(target_arch = "x86_64")
        && ["constant_tsc", "nonstop_tsc"]
            .iter()
            .all(|flag| flags.split_whitespace().any(|one| one == *flag))
        && clock.split_whitespace().any(|one| one == "tsc")
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: the instruction has no preconditions.
    unsafe { core::arch::x86_64::_rdtsc() }
}
#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Clock of latencies: the time-stamp counter if its rate is constant, otherwise CLOCK_MONOTONIC.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    counts: bool,
}

impl Clock {
    /// Chooses the clock, and measures its rate during 10 ms once.
    pub(crate) fn new() -> Self {
        let mut counts = has_constant_counter();
        let scale = *SCALE.get_or_init(|| {
            if !counts {
                return 1.0;
            }
            let (start, from) = (Instant::now(), counter());
            std::thread::sleep(Duration::from_millis(10));
            let (elapsed, to) = (start.elapsed(), counter());
            elapsed.as_nanos() as f64 / to.wrapping_sub(from).max(1) as f64
        });
        // Faster than 10 GHz or slower than 10 MHz: no counter of time.
        counts &= (0.1..100.0).contains(&scale);
        Self { counts }
    }

    #[inline]
    pub(crate) fn ticks(self) -> u64 {
        if self.counts { counter() } else { monotonic() }
    }

    /// Returns the nanoseconds of a number of ticks.
    pub(crate) fn nanoseconds(self, ticks: f64) -> f64 {
        if self.counts { ticks * SCALE.get().copied().unwrap_or(1.0) } else { ticks }
    }
}

/// `struct perf_event_attr` up to its first version's end; the kernel takes shorter ones.
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

/// Counter of the system calls of this process.
pub(crate) struct CallCounter(Result<OwnedFd, String>);

impl CallCounter {
    /// Opens the counter. Threads created later are counted as well.
    pub(crate) fn new() -> Self {
        let paths = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        let event = "events/raw_syscalls/sys_enter/id";
        let found =
            paths.iter().find_map(|path| fs::read_to_string(format!("{path}/{event}")).ok());
        let Some(id) = found.and_then(|text| text.trim().parse().ok()) else {
            return Self(Err(
                "the kernel's tracepoint raw_syscalls:sys_enter is not readable".into()
            ));
        };
        const TRACEPOINT: u32 = 2;
        const INHERIT: u64 = 1 << 1;
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        let mut attr =
            PerfEventAttr { kind: TRACEPOINT, config: id, flags: INHERIT, ..Default::default() };
        attr.size = size_of::<PerfEventAttr>() as u32;
        // SAFETY: attr has its own size in it and outlives the call; the other arguments are
        // numbers: this process, any processor, no group.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, CLOSE_ON_EXEC)
        };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Self(Err(format!("perf_event_open: {error}")));
        }
        // SAFETY: the descriptor is new and has no other owner.
        Self(Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    fn read(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        let fd = self.0.as_ref().ok()?.as_raw_fd();
        // SAFETY: bytes has the length given.
        let read = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
        (read == 8).then(|| u64::from_ne_bytes(bytes))
    }

    /// Returns the processor time and system calls of the process until now.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel fills the struct, for which all zeroes are valid, too.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let time =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Usage {
            user_ns: time(usage.ru_utime),
            system_ns: time(usage.ru_stime),
            voluntary: usage.ru_nvcsw as u64,
            involuntary: usage.ru_nivcsw as u64,
            calls: self.read(),
        }
    }
}

/// Returns the usage between two times.
pub(crate) fn between(before: Usage, after: Usage) -> Usage {
    Usage {
        user_ns: after.user_ns.saturating_sub(before.user_ns),
        system_ns: after.system_ns.saturating_sub(before.system_ns),
        voluntary: after.voluntary.saturating_sub(before.voluntary),
        involuntary: after.involuntary.saturating_sub(before.involuntary),
        calls: after.calls.zip(before.calls).map(|(after, before)| after.saturating_sub(before)),
    }
}

/// Returns the file mapped as `libfabric.so.1`; empty if unknown.
pub(crate) fn library_path() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_library =
        |path: &&str| path.rsplit('/').next().is_some_and(|name| name.starts_with("libfabric.so"));
    paths.into_iter().find(is_library).unwrap_or_default().into()
}

/// Describes this end.
pub(crate) fn describe(calls: &CallCounter) -> Host {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let version = crate::fabric::library_version();
    Host {
        name: text(system.nodename()),
        system: format!(
            "{} {} {}",
            text(system.sysname()),
            text(system.release()),
            text(system.machine())
        ),
        program: env!("CARGO_PKG_VERSION").into(),
        library: format!("{}.{}", version >> 16, version & 0xffff),
        library_path: library_path(),
        uncounted: calls.0.as_ref().err().cloned().unwrap_or_default(),
    }
}
