//! Logging (fabric(7), `FI_LOG_*`; fi_provider(7), `fi_log`).
//!
//! Lines at levels warn and info can also be captured during a provider's getinfo: they contain the
//! reasons for rejected infos, for providers of this library and third-party ones.
use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int};
use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ofi::abi::{
    FI_LOG_PROV_FILTERED, c_enum, fi_context, fi_log_level, fi_log_subsys, fi_ops_log, fi_provider,
    fid_logging,
};
use ofi::info::{API_VERSION, tostr};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// First level not written: 0 for silence, the default without `FI_LOG_LEVEL`. It decides most
/// calls alone.
static SILENT_FROM: AtomicU32 = AtomicU32::new(0);
/// A bit for each subsystem to log.
static SUBSYS: AtomicU32 = AtomicU32::new(u32::MAX);
/// Milliseconds between rate-limited lines of one kind.
static INTERVAL: AtomicU64 = AtomicU64::new(2000);
/// Number of capturing threads.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Log imported by the program for all lines, or null.
static IMPORTED: AtomicPtr<fid_logging> = AtomicPtr::new(core::ptr::null_mut());

static PROVIDERS: OnceLock<NameFilter> = OnceLock::new();
static OUTPUT: OnceLock<Output> = OnceLock::new();

/// A list "a,b" of names, or "^a,b" of all others.
#[derive(Clone, Debug, Default)]
pub struct NameFilter {
    negated: bool,
    names: Vec<String>,
}

impl NameFilter {
    /// Reads a list of names separated by commas.
    pub fn parse(list: &str) -> Self {
        let list = list.trim();
        let (negated, list) = match list.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, list),
        };
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self { negated, names: names.map(str::to_owned).collect() }
    }

    /// Returns true if the list names excluded items.
    pub fn is_negated(&self) -> bool {
        self.negated
    }

    /// Returns true if the filter names nothing and so permits everything.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns true if this name is in the list, ignoring case.
    pub fn names(&self, name: &str) -> bool {
        self.names.iter().any(|listed| listed.eq_ignore_ascii_case(name))
    }

    /// The names as they are listed.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns true if the filter permits this name.
    pub fn admits(&self, name: &str) -> bool {
        self.is_empty() || self.names(name) != self.negated
    }
}

enum Output {
    Stderr,
    Stdout,
    File(File),
}

/// Logs lines up to a level: `None` is the default.
pub(super) fn set_level(level: Option<&str>) {
    let silent_from = level.map_or(0, |level| {
        let known = (0..=fi_log_level::FI_LOG_DEBUG as u32)
            .find(|known| tostr::log_level(*known).eq_ignore_ascii_case(level));
        // A word that is no level is taken for the first one, as by the original.
        1 + known.unwrap_or(fi_log_level::FI_LOG_WARN as u32)
    });
    SILENT_FROM.store(silent_from, Ordering::Relaxed);
}

/// Sets the milliseconds between rate-limited lines of one kind.
pub(super) fn set_interval(interval: u64) {
    INTERVAL.store(interval, Ordering::Relaxed);
}

/// Logs the subsystems of a list only.
pub(super) fn set_subsystems(list: &NameFilter) {
    let bits = (0..=fi_log_subsys::FI_LOG_CNTR as u32)
        .filter(|subsys| list.admits(tostr::log_subsys(*subsys)))
        .fold(0, |bits, subsys| bits | 1 << subsys);
    SUBSYS.store(bits, Ordering::Relaxed);
}

/// Logs the providers of a list only.
pub(super) fn set_providers(list: NameFilter) {
    let _ = PROVIDERS.set(list);
}

/// Logs to this location from now on: `stderr`, `stdout`, a file to create, or a directory.
pub(super) fn set_output(location: &str, mode: u32) {
    let (output, trouble) = match open_output(location, mode) {
        Ok(output) => (output, None),
        Err(error) => (Output::Stderr, Some(error)),
    };
    let _ = OUTPUT.set(output);
    if let Some(error) = trouble {
        warn(format_args!("cannot log to {location}: {error}; logging to stderr"));
    }
}

fn open_output(location: &str, mode: u32) -> std::io::Result<Output> {
    match location {
        "stderr" => return Ok(Output::Stderr),
        "stdout" => return Ok(Output::Stdout),
        _ => {}
    }
    let mut path = PathBuf::from(location);
    if Path::new(location).is_dir() {
        path.push(format!("ofi_{}.log", std::process::id()));
    }
    // An existing file is never opened: it may be a link that another user put there.
    OpenOptions::new().append(true).create_new(true).mode(mode).open(path).map(Output::File)
}

/// Returns the name of the logging provider, or of the library itself for null.
///
/// # Safety
/// `prov` is null or points to a live provider.
unsafe fn prov_name<'a>(prov: *const fi_provider) -> &'a CStr {
    // SAFETY: by this function's contract; a name is a C string.
    unsafe {
        match prov.as_ref() {
            Some(prov) if !prov.name.is_null() => CStr::from_ptr(prov.name),
            _ => c"core",
        }
    }
}

/// `fi_log_enabled`: returns true if a line would be written, or captured.
///
/// # Safety
/// `prov` is null or points to a live provider.
#[inline]
pub unsafe fn enabled(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
) -> bool {
    let quiet = level.raw() >= SILENT_FROM.load(Ordering::Relaxed);
    if quiet && CAPTURES.load(Ordering::Relaxed) == 0 && !is_imported() {
        return false;
    }
    // SAFETY: by this function's contract.
    unsafe { captures(level) || wanted(prov, level, subsys) }
}

/// Returns true if a line would be written, by the library or by the program's own log.
///
/// # Safety
/// As [`enabled`].
unsafe fn wanted(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
) -> bool {
    // SAFETY: by this function's contract.
    unsafe {
        let Some(ops) = imported() else { return written(prov, level, subsys) };
        let flags = filtered_flag(prov);
        ops.enabled.is_some_and(|enabled| enabled(named(prov), level, subsys, flags) != 0)
    }
}

/// # Safety
/// As [`enabled`].
unsafe fn written(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
) -> bool {
    let admitted = |names: &NameFilter| {
        // SAFETY: by this function's contract.
        names.admits(&unsafe { prov_name(prov) }.to_string_lossy())
    };
    level.raw() < SILENT_FROM.load(Ordering::Relaxed)
        && (subsys.raw() >= u32::BITS || SUBSYS.load(Ordering::Relaxed) & (1 << subsys.raw()) != 0)
        && PROVIDERS.get().is_none_or(admitted)
}

/// `fi_log_ready`: like [`enabled`], but true at most once per `FI_LOG_INTERVAL` for each
/// `showtime`, the time of the next permitted line.
///
/// # Safety
/// As [`enabled`].
pub unsafe fn ready(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    showtime: &mut u64,
) -> bool {
    if let Some(ops) = imported() {
        // SAFETY: the program's function, called as its type says.
        return ops.ready.is_some_and(|ready| unsafe {
            ready(named(prov), level, subsys, filtered_flag(prov), showtime) != 0
        });
    }
    // SAFETY: by this function's contract.
    if !unsafe { enabled(prov, level, subsys) } {
        return false;
    }
    let now = since_epoch().as_millis() as u64;
    if now < *showtime {
        return false;
    }
    *showtime = now.saturating_add(INTERVAL.load(Ordering::Relaxed));
    true
}

/// `fi_log`, with its text formatted already. Writes without a check of the level: the check is the
/// caller's responsibility.
///
/// # Safety
/// As [`enabled`].
pub unsafe fn log(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    func: &CStr,
    line: c_int,
    text: &CStr,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let captured = captures(level);
        if captured {
            capture(prov, text);
        }
        // The capture may be the only consumer of this line. Otherwise the caller has asked and was
        // told to log it.
        if captured && !wanted(prov, level, subsys) {
            return;
        }
        if let Some(ops) = imported() {
            if let Some(log) = ops.log {
                log(named(prov), level, subsys, func.as_ptr(), line, text.as_ptr());
            }
        } else if level.raw() < SILENT_FROM.load(Ordering::Relaxed) {
            write_line(prov_name(prov), level, subsys, func, line, text);
        }
    }
}

fn write_line(
    prov: &CStr,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    func: &CStr,
    line: c_int,
    text: &CStr,
) {
    // One write for the whole line, so that lines of threads do not mix.
    let mut whole = format!(
        "libfabric:{}:{}::{}:{}:{}():{line}<{}> ",
        std::process::id(),
        since_epoch().as_secs(),
        prov.to_string_lossy(),
        tostr::log_subsys(subsys.raw()),
        func.to_string_lossy(),
        tostr::log_level(level.raw()),
    )
    .into_bytes();
    whole.extend_from_slice(text.to_bytes());
    // There is nowhere to report that a log cannot be written.
    let _ = match OUTPUT.get() {
        None | Some(Output::Stderr) => std::io::stderr().write_all(&whole),
        Some(Output::Stdout) => {
            let mut stdout = std::io::stdout();
            stdout.write_all(&whole).and_then(|()| stdout.flush())
        }
        Some(Output::File(file)) => (&mut &*file).write_all(&whole),
    };
}

fn since_epoch() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A line of the library itself.
#[track_caller]
fn own(level: fi_log_level, func: Option<&CStr>, text: fmt::Arguments<'_>) {
    let (level, subsys) = (level.into(), fi_log_subsys::FI_LOG_CORE.into());
    // SAFETY: null is the library itself.
    if !unsafe { enabled(core::ptr::null(), level, subsys) } {
        return;
    }
    // Rust lines have their module in place of the C function name.
    let from = core::panic::Location::caller();
    let module = Path::new(from.file()).file_stem().unwrap_or_default();
    let module = CString::new(module.to_string_lossy().into_owned()).unwrap_or_default();
    let Ok(text) = CString::new(format!("{text}\n")) else { return };
    // SAFETY: as above.
    unsafe {
        let func = func.unwrap_or(&module);
        log(core::ptr::null(), level, subsys, func, from.line() as c_int, &text);
    }
}

/// Logs a problem with its remedy.
#[track_caller]
pub(super) fn warn(text: fmt::Arguments<'_>) {
    own(fi_log_level::FI_LOG_WARN, None, text);
}

/// Like [`warn`], and visible on a terminal even if logging is off. Nothing goes to a file or a
/// pipe: programs may compare their output.
#[track_caller]
pub(super) fn tell(text: fmt::Arguments<'_>) {
    let silent = SILENT_FROM.load(Ordering::Relaxed) == 0 && !is_imported();
    if silent && OUTPUT.get().is_none() && std::io::stderr().is_terminal() {
        // There is nowhere to report that it cannot be written.
        let _ = writeln!(std::io::stderr(), "libfabric: {text}");
    } else {
        warn(text);
    }
}

/// Logs information for understanding the behaviour of the library.
#[track_caller]
pub(super) fn info(text: fmt::Arguments<'_>) {
    own(fi_log_level::FI_LOG_INFO, None, text);
}

/// Logs the reason for the presence or absence of an info in the answer of a getinfo.
#[track_caller]
pub(super) fn explain(text: fmt::Arguments<'_>) {
    own(fi_log_level::FI_LOG_INFO, Some(EXPLAIN), text);
}

/// Function name in lines of [`explain`], for `fi_info --explain`.
pub const EXPLAIN: &CStr = c"explain";

thread_local! {
    /// Captures of this thread, innermost last.
    static CAPTURED: RefCell<Vec<Vec<Captured>>> = const { RefCell::new(Vec::new()) };
}

/// Captured line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Captured {
    pub(super) prov: String,
    pub(super) text: String,
}

/// Maximum number of captured lines: a summary shows a few.
const MOST_CAPTURED: usize = 64;

fn captures(level: c_enum<fi_log_level>) -> bool {
    CAPTURES.load(Ordering::Relaxed) != 0
        && (level == fi_log_level::FI_LOG_WARN || level == fi_log_level::FI_LOG_INFO)
        // During a thread's end there is nothing to capture any more.
        && CAPTURED.try_with(|all| !all.borrow().is_empty()).unwrap_or(false)
}

/// # Safety
/// As [`enabled`].
unsafe fn capture(prov: *const fi_provider, text: &CStr) {
    if prov.is_null() {
        // The library's own lines are not reasons of providers.
        return;
    }
    // SAFETY: by this function's contract.
    let prov = unsafe { prov_name(prov) }.to_string_lossy().into_owned();
    let text = text.to_string_lossy().trim().to_owned();
    let _ = CAPTURED.try_with(|all| {
        if let Some(lines) = all.borrow_mut().last_mut() {
            if lines.len() < MOST_CAPTURED {
                lines.push(Captured { prov, text });
            }
        }
    });
}

/// Runs a call and captures the lines logged by providers in it on this thread.
pub(super) fn capturing<R>(call: impl FnOnce() -> R) -> (R, Vec<Captured>) {
    /// Ends the capture even if the call panics.
    struct Capture;
    impl Drop for Capture {
        fn drop(&mut self) {
            CAPTURES.fetch_sub(1, Ordering::Relaxed);
            CAPTURED.with(|all| all.borrow_mut().pop());
        }
    }
    CAPTURED.with(|all| all.borrow_mut().push(Vec::new()));
    CAPTURES.fetch_add(1, Ordering::Relaxed);
    let _capture = Capture;
    let result = call();
    let lines = CAPTURED.with(|all| all.borrow_mut().last_mut().map(core::mem::take));
    (result, lines.unwrap_or_default())
}

/// Makes a program's own log the destination of all lines. Returns `false` if there is one already.
pub(super) fn import(log: *mut fid_logging) -> bool {
    let null = core::ptr::null_mut();
    IMPORTED.compare_exchange(null, log, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Returns true if a log of the program is imported.
pub(super) fn is_imported() -> bool {
    !IMPORTED.load(Ordering::Relaxed).is_null()
}

/// Ends the import of a log of the program's.
pub(super) fn unimport(log: *mut fid_logging) {
    let null = core::ptr::null_mut();
    let _ = IMPORTED.compare_exchange(log, null, Ordering::AcqRel, Ordering::Relaxed);
}

fn imported() -> Option<&'static fi_ops_log> {
    let log = IMPORTED.load(Ordering::Acquire);
    if log.is_null() {
        return None;
    }
    // SAFETY: fi_import_fid(3): the program keeps its object until it closes
    // the import, and its operations are as good as constants.
    unsafe { (*log).ops.as_ref() }
}

/// Returns the provider passed to a program's own log: the log may read the name of every one, so
/// lines of the library itself come from a provider named core.
fn named(prov: *const fi_provider) -> *const fi_provider {
    struct CoreLogName(fi_provider);
    // SAFETY: it is never written.
    unsafe impl Sync for CoreLogName {}
    static CORE: CoreLogName = CoreLogName(fi_provider {
        version: API_VERSION,
        fi_version: API_VERSION,
        context: fi_context { internal: [core::ptr::null_mut(); 4] },
        name: c"core".as_ptr(),
        getinfo: None,
        fabric: None,
        cleanup: None,
    });
    if prov.is_null() { &raw const CORE.0 } else { prov }
}

/// Returns the flag telling a program's own log of lines excluded by `FI_LOG_PROV`.
///
/// # Safety
/// As [`enabled`].
unsafe fn filtered_flag(prov: *const fi_provider) -> u64 {
    // SAFETY: by this function's contract.
    let name = unsafe { prov_name(prov) }.to_string_lossy();
    let admitted = PROVIDERS.get().is_none_or(|names| names.admits(&name));
    if admitted { 0 } else { FI_LOG_PROV_FILTERED }
}

/// Returns the function name behind a pointer from C.
///
/// # Safety
/// `func` is null or a C string.
pub(super) unsafe fn func_name<'a>(func: *const c_char) -> &'a CStr {
    // SAFETY: by this function's contract.
    if func.is_null() { c"" } else { unsafe { CStr::from_ptr(func) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_admits_those_or_all_others() {
        let (some, others, all) =
            (NameFilter::parse("tcp, Shm"), NameFilter::parse("^tcp"), NameFilter::parse(""));
        assert!(some.admits("TCP") && some.admits("shm") && !some.admits("udp"));
        assert!(!others.admits("tcp") && others.admits("udp"));
        assert!(all.admits("tcp"));
    }

    fn provider() -> fi_provider {
        fi_provider {
            version: 0,
            fi_version: 0,
            context: fi_context { internal: [core::ptr::null_mut(); 4] },
            name: c"zed".as_ptr(),
            getinfo: None,
            fabric: None,
            cleanup: None,
        }
    }

    #[test]
    fn log_lines_of_a_query_are_captured_as_reasons() {
        let prov = provider();
        let level = fi_log_level::FI_LOG_INFO.into();
        let subsys = fi_log_subsys::FI_LOG_CORE.into();
        let ((), lines) = capturing(|| {
            // SAFETY: a live provider and C strings.
            unsafe {
                assert!(enabled(&prov, level, subsys));
                log(&prov, level, subsys, c"f", 1, c"no such caps\n");
            }
        });
        assert_eq!(lines, [Captured { prov: "zed".into(), text: "no such caps".into() }]);
        // SAFETY: as above.
        unsafe {
            assert!(!captures(level) && !enabled(&prov, fi_log_level::FI_LOG_WARN.into(), subsys))
        };
    }

    #[test]
    fn a_rate_limited_line_is_ready_once_per_interval() {
        let prov = provider();
        let (level, subsys) = (fi_log_level::FI_LOG_WARN.into(), fi_log_subsys::FI_LOG_CQ.into());
        let mut showtime = 0;
        // While a thread captures, its warnings are wanted.
        capturing(|| {
            // SAFETY: a live provider.
            unsafe {
                assert!(ready(&prov, level, subsys, &mut showtime));
                assert!(!ready(&prov, level, subsys, &mut showtime));
            }
        });
        assert!(showtime > 0);
    }

    #[test]
    fn a_log_file_is_new_and_a_directory_gets_one_per_process() {
        let dir = std::env::temp_dir().join(format!("ofi-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(matches!(open_output(dir.to_str().unwrap(), 0o600), Ok(Output::File(_))));
        let file = dir.join(format!("ofi_{}.log", std::process::id()));
        assert!(open_output(file.to_str().unwrap(), 0o600).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
