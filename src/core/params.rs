//! Run-time parameters: environment variables and the system's configuration
//! file (fi_provider(7), `fi_param_define`; fabric(7), `fi_getparams`).
use crate::log;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use ofi::abi::{c_enum, fi_param, fi_param_type};
use ofi::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Directory of `libfabric.conf`.
const SYSCONFDIR: &str = match option_env!("OFI_SYSCONFDIR") {
    Some(dir) => dir,
    None => "/etc",
};

struct Param {
    /// The name as its provider calls it.
    name: CString,
    /// Provider of the parameter, `None` for the library's own.
    prov: Option<CString>,
    /// The environment variable.
    env: CString,
    kind: c_enum<fi_param_type>,
    help: CString,
}

static PARAMS: Mutex<Vec<Param>> = Mutex::new(Vec::new());

fn params() -> std::sync::MutexGuard<'static, Vec<Param>> {
    // A panic between two pushes leaves nothing half done.
    PARAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Variables of the library itself, in the order of their list.
const CORE: &[(&CStr, fi_param_type, &CStr)] = {
    use fi_param_type::*;
    &[
        (
            c"prefer_sysconfig",
            FI_PARAM_BOOL,
            c"Whether a variable that both libfabric.conf and the environment set has the value of libfabric.conf (default: false)",
        ),
        (
            c"log_interval",
            FI_PARAM_INT,
            c"Time in ms between two messages of a kind that is rate limited (default 2000)",
        ),
        (c"log_level", FI_PARAM_STRING, c"What to log: warn, trace, info, debug (default: warn)"),
        (
            c"log_prov",
            FI_PARAM_STRING,
            c"Providers to log, separated by commas; a leading ^ logs all others (default: all)",
        ),
        (
            c"log_subsys",
            FI_PARAM_STRING,
            c"Subsystems to log, separated by commas; a leading ^ logs all others (default: all)",
        ),
        (
            c"log_location",
            FI_PARAM_STRING,
            c"Where to log: stderr, stdout, a file to create, or a directory, in which it is ofi_<pid>.log (default: stderr)",
        ),
        (
            c"log_location_mode",
            FI_PARAM_INT,
            c"Access mode of the log file (default: 0600)",
        ),
        (
            c"stats",
            FI_PARAM_BOOL,
            c"Whether other processes of the user may see what this one does, with fi_ps, fi_top and fi_doctor (default: true)",
        ),
        (
            c"stats_peers",
            FI_PARAM_SIZE_T,
            c"Most peers that are shown to those, 256 bytes each, for each provider (default: 1024)",
        ),
        (
            c"hang_report",
            FI_PARAM_SIZE_T,
            c"After how many seconds in which a process waits, looks and nothing moves it says once on stderr why, as fi_doctor would; 0 for never (default: 0)",
        ),
        (
            c"perf_cntr",
            FI_PARAM_STRING,
            c"What the hook perf counts per call: cpu_instr or cpu_cycles (default: cpu_instr)",
        ),
        (
            c"hook",
            FI_PARAM_STRING,
            c"Hook providers to put around every provider, separated by semicolons, such as perf;trace; the last one is outermost (default: none)",
        ),
        (
            c"fork_unsafe",
            FI_PARAM_BOOL,
            c"Whether the process never forks while it uses RDMA devices, so that nothing need be done about that (default: false)",
        ),
        (
            c"hmem",
            FI_PARAM_STRING,
            c"Names of the interfaces to memory of accelerators to use, separated by commas, such as cuda,rocr; system for none of them (default: all with a library and a device)",
        ),
        (
            c"hmem_disable_p2p",
            FI_PARAM_BOOL,
            c"Whether network devices must keep off memory of accelerators, which verbs then cannot use in transfers (default: false)",
        ),
        (
            c"mr_cache_max_size",
            FI_PARAM_SIZE_T,
            c"How many bytes of memory a registration cache keeps registered (default: total memory / number of cpu cores / 2)",
        ),
        (
            c"mr_cache_max_count",
            FI_PARAM_SIZE_T,
            c"How many regions a registration cache keeps registered; 0 turns it off (default: 1024)",
        ),
        (
            c"mr_cache_monitor",
            FI_PARAM_STRING,
            c"What tells a registration cache of memory that is unmapped: userfaultfd; disabled turns the cache off; memhooks and kdreg2 are not in this library and stand for userfaultfd (default: userfaultfd)",
        ),
        (
            c"mr_cuda_cache_monitor_enabled",
            FI_PARAM_BOOL,
            c"Whether regions of memory of CUDA devices may be cached; this library registers it anew for each call (default: true)",
        ),
        (
            c"mr_rocr_cache_monitor_enabled",
            FI_PARAM_BOOL,
            c"Whether regions of memory of ROCR devices may be cached; this library registers it anew for each call (default: true)",
        ),
        (
            c"mr_ze_cache_monitor_enabled",
            FI_PARAM_BOOL,
            c"Whether memory of Level Zero devices may be cached; this library does not register any (default: true)",
        ),
        (
            c"provider",
            FI_PARAM_STRING,
            c"Providers to use, separated by commas; a leading ^ uses all others (default: all available)",
        ),
        (
            c"universe_size",
            FI_PARAM_SIZE_T,
            c"How many processes communicate, for providers to size their resources (default: provider specific)",
        ),
        (
            c"av_remove_cleanup",
            FI_PARAM_BOOL,
            c"Whether removing an address also closes the connection behind it (default: false)",
        ),
        (
            c"addr_format",
            FI_PARAM_STRING,
            c"Address formats to use, by name and separated by commas (default: all)",
        ),
        (
            c"provider_path",
            FI_PARAM_STRING,
            c"Directories to load providers from, separated by colons; +FILE prefers one plug-in, a leading @ prefers who comes first over who is newer (default: libfabric beside the library)",
        ),
    ]
};

/// Defines the library's own variables.
pub(super) fn define_core() {
    for (name, kind, help) in CORE {
        define(None, name, (*kind).into(), help);
    }
}

/// `fi_param_define`, its help text formatted already.
///
/// Defining a name twice keeps the first definition.
pub fn define(prov: Option<&CStr>, name: &CStr, kind: c_enum<fi_param_type>, help: &CStr) {
    let mut env = b"FI_".to_vec();
    if let Some(prov) = prov {
        env.extend(prov.to_bytes());
        env.push(b'_');
    }
    env.extend(name.to_bytes());
    env.make_ascii_uppercase();
    // The bytes of C strings hold no zeros, so this cannot fail.
    let Ok(env) = CString::new(env) else { return };
    let mut params = params();
    if params.iter().all(|param| param.env != env) {
        // People read these texts in one list, where only this says whose they are.
        let help = match prov {
            Some(prov) => [prov.to_bytes(), b": ", help.to_bytes()].concat(),
            None => help.to_bytes().to_vec(),
        };
        params.push(Param {
            name: name.to_owned(),
            prov: prov.map(CStr::to_owned),
            env,
            kind,
            help: CString::new(help).unwrap_or_default(),
        });
    }
}

/// A value, in the terms of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// String of the environment or of the configuration file, valid until the variable is changed.
    String(*const c_char),
    /// An integer.
    Int(c_int),
    /// 0 or 1.
    Bool(c_int),
    /// A size.
    Size(usize),
}

/// `fi_param_get`. Fails with `-FI_ENOENT` for an undefined parameter, with `-FI_ENODATA` for an
/// unset one, and with `-FI_EINVAL` for an invalid boolean.
pub fn get(prov: Option<&CStr>, name: &CStr) -> Result<Value> {
    let (env, kind) = params()
        .iter()
        .find(|param| param.prov.as_deref() == prov && param.name.as_c_str() == name)
        .map(|param| (param.env.clone(), param.kind))
        .ok_or(Error::NOENT)?;
    let value = raw(&env).ok_or(Error::NODATA)?;
    // SAFETY: `raw` answers C strings.
    let text = unsafe { CStr::from_ptr(value) };
    let kinds = fi_param_type::FI_PARAM_STRING as u32..=fi_param_type::FI_PARAM_SIZE_T as u32;
    if !kinds.contains(&kind.raw()) {
        return Err(Error::INVAL);
    }
    if kind == fi_param_type::FI_PARAM_INT {
        let (number, rest) = parse_integer(text);
        warn_of_rest(&env, text, rest);
        return Ok(Value::Int(number as c_int));
    }
    if kind == fi_param_type::FI_PARAM_SIZE_T {
        let (number, rest) = parse_integer(text);
        warn_of_rest(&env, text, rest);
        return Ok(Value::Size(number as usize));
    }
    if kind == fi_param_type::FI_PARAM_BOOL {
        return parse_bool(text).map(Value::Bool).ok_or_else(|| {
            log::warn(format_args!(
                "{} is {}, which is none of 0/1, on/off, true/false, yes/no",
                env.to_string_lossy(),
                text.to_string_lossy()
            ));
            Error::INVAL
        });
    }
    Ok(Value::String(value))
}

/// Returns the non-empty value of a core string variable.
pub(super) fn core_string(name: &CStr) -> Option<String> {
    match get(None, name) {
        Ok(Value::String(value)) => {
            // SAFETY: `get` answers C strings, and the copy is made at once.
            let text = unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned();
            (!text.is_empty()).then_some(text)
        }
        _ => None,
    }
}

/// Returns the value of a core integer variable.
pub(super) fn core_int(name: &CStr) -> Option<c_int> {
    match get(None, name) {
        Ok(Value::Int(value)) => Some(value),
        _ => None,
    }
}

fn warn_of_rest(env: &CStr, text: &CStr, rest: bool) {
    if rest {
        log::warn(format_args!(
            "{} is {}, of which only the number at the start counts",
            env.to_string_lossy(),
            text.to_string_lossy()
        ));
    }
}

fn parse_bool(text: &CStr) -> Option<c_int> {
    let is = |word: &&[u8]| text.to_bytes().eq_ignore_ascii_case(word);
    if [&b"1"[..], b"true", b"yes", b"on"].iter().any(is) {
        return Some(1);
    }
    [&b"0"[..], b"false", b"no", b"off"].iter().any(is).then_some(0)
}

/// Parses the number at the start of a text, in C's notation (0x10, 010, 10). Returns the number,
/// and true if more text follows. Too large a number becomes the largest.
fn parse_integer(text: &CStr) -> (u64, bool) {
    let text = text.to_bytes().trim_ascii();
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (base, digits) = match digits {
        [b'0', b'x' | b'X', rest @ ..] if rest.first().is_some_and(u8::is_ascii_hexdigit) => {
            (16, rest)
        }
        [b'0', ..] => (8, digits),
        _ => (10, digits),
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(base);
    let count = digits.iter().take_while(|byte| digit(byte).is_some()).count();
    let number = digits[..count].iter().filter_map(digit).fold(0_u64, |number, digit| {
        number.saturating_mul(u64::from(base)).saturating_add(u64::from(digit))
    });
    (if negative { number.wrapping_neg() } else { number }, count < digits.len() || count == 0)
}

/// The value of a variable, `None` if it is not set anywhere.
fn raw(env: &CStr) -> Option<*const c_char> {
    // SAFETY: a C string; C's own copy, because that is what callers get.
    let value = unsafe { libc::getenv(env.as_ptr()) }.cast_const();
    // SAFETY: null or a C string of the environment's.
    let of_caller = unsafe { value.as_ref().map(|value| CStr::from_ptr(value)) };
    let of_system = system_file().get(env).map(CString::as_c_str);
    let foreign = has_foreign_rights();
    choose(env, of_caller, of_system, foreign, foreign || prefer_system()).map(CStr::as_ptr)
}

/// Selects the effective value of a variable from the caller's environment and `libfabric.conf`.
/// `foreign`: the caller has fewer privileges than the program. `system_first`: `libfabric.conf`
/// has priority.
fn choose<'v>(
    env: &CStr,
    of_caller: Option<&'v CStr>,
    of_system: Option<&'v CStr>,
    foreign: bool,
    system_first: bool,
) -> Option<&'v CStr> {
    let of_caller = of_caller.filter(|value| !foreign || !names_code_or_file(env, value));
    if system_first { of_system.or(of_caller) } else { of_caller.or(of_system) }
}

/// Returns true if the creator of the environment has fewer privileges than the program, for
/// example a set-uid program (AT_SECURE of getauxval(3)).
pub(super) fn has_foreign_rights() -> bool {
    // SAFETY: no precondition.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns true if a variable selects code to load, or a file to write. In a program with other
/// privileges than its caller only `libfabric.conf` may set it.
fn names_code_or_file(env: &CStr, value: &CStr) -> bool {
    const ALWAYS: [&CStr; 4] =
        [c"FI_PROVIDER_PATH", c"FI_HOOK", c"FI_LOG_LOCATION", c"FI_LOG_LOCATION_MODE"];
    // Those of providers, of which nothing is known but that paths have slashes.
    ALWAYS.contains(&env) || value.to_bytes().contains(&b'/')
}

fn prefer_system() -> bool {
    static PREFER: OnceLock<bool> = OnceLock::new();
    *PREFER.get_or_init(|| {
        // SAFETY: a C string, and the answer is one or null.
        let value = unsafe {
            let value = libc::getenv(c"FI_PREFER_SYSCONFIG".as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value))
        };
        let name = c"FI_PREFER_SYSCONFIG";
        let value = value.or_else(|| system_file().get(name).map(CString::as_c_str));
        value.and_then(parse_bool) == Some(1)
    })
}

/// Returns the variables of `libfabric.conf`, read once and stored permanently.
fn system_file() -> &'static HashMap<CString, CString> {
    static FILE: OnceLock<HashMap<CString, CString>> = OnceLock::new();
    FILE.get_or_init(|| {
        std::fs::read_to_string(format!("{SYSCONFDIR}/libfabric.conf"))
            .map(|text| parse_file(&text))
            .unwrap_or_default()
    })
}

/// Lines `NAME = value`; empty lines and lines after # are not for us.
fn parse_file(text: &str) -> HashMap<CString, CString> {
    let pairs = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    pairs
        .filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            let c_string = |text: &str| CString::new(text.trim()).ok();
            Some((c_string(name)?, c_string(value)?))
        })
        .collect()
}

/// `fi_getparams`: returns all defined parameters, as an array from C's malloc. Its last element,
/// behind the count, is all zeros.
pub fn list() -> Result<(*mut fi_param, usize)> {
    let params = params();
    // SAFETY: no precondition; the answer is checked.
    let list = unsafe { libc::calloc(params.len() + 1, size_of::<fi_param>()) }.cast::<fi_param>();
    if list.is_null() {
        return Err(Error::NOMEM);
    }
    for (at, param) in params.iter().enumerate() {
        // SAFETY: strdup of C strings; `at` is within the array.
        unsafe {
            // The value of the environment, as set by users.
            let value = libc::getenv(param.env.as_ptr());
            *list.add(at) = fi_param {
                name: libc::strdup(param.env.as_ptr()),
                r#type: param.kind,
                help_string: libc::strdup(param.help.as_ptr()),
                value: if value.is_null() { ptr::null() } else { libc::strdup(value) },
            };
            if (*list.add(at)).name.is_null() || (*list.add(at)).help_string.is_null() {
                free(list);
                return Err(Error::NOMEM);
            }
        }
    }
    Ok((list, params.len()))
}

/// `fi_freeparams`; null is fine.
///
/// # Safety
/// `list` is null or came from [`list`], and is not used any more.
pub unsafe fn free(list: *mut fi_param) {
    if list.is_null() {
        return;
    }
    // SAFETY: an array that ends with an element without a name.
    unsafe {
        let mut at = list;
        while !(*at).name.is_null() {
            libc::free((*at).name.cast_mut().cast());
            libc::free((*at).help_string.cast_mut().cast());
            libc::free((*at).value.cast_mut().cast());
            at = at.add(1);
        }
        libc::free(list.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &CStr, value: &CStr) {
        // SAFETY: C strings. Each test has variables of its own, and the table
        // of variables is C's, which locks it.
        unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
    }

    #[test]
    fn parameters_naming_code_or_files_are_recognized() {
        assert!(names_code_or_file(c"FI_HOOK", c"trace"));
        assert!(names_code_or_file(c"FI_SOME_FILE", c"/tmp/x"));
        assert!(!names_code_or_file(c"FI_PROVIDER", c"tcp;ofi_rxm"));
    }

    #[test]
    fn system_value_wins_for_callers_with_fewer_rights() {
        let (caller, system) = (Some(c"0"), Some(c"1"));
        assert_eq!(choose(c"FI_TCP_ENCRYPT", caller, system, false, false), caller);
        assert_eq!(choose(c"FI_TCP_ENCRYPT", caller, system, false, true), system);
        assert_eq!(choose(c"FI_TCP_ENCRYPT", caller, system, true, true), system);
        assert_eq!(choose(c"FI_TCP_ENCRYPT", caller, None, true, true), caller);
        assert_eq!(choose(c"FI_HOOK", Some(c"trace"), None, true, true), None);
    }

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, number, rest) in [
            (c"5", 5, false),
            (c"0x10", 16, false),
            (c"010", 8, false),
            (c"0", 0, false),
            (c" 7 ", 7, false),
            (c"-3", (-3_i64) as u64, false),
            (c"12abc", 12, true),
            (c"abc", 0, true),
            (c"", 0, true),
            (c"99999999999999999999", u64::MAX, false),
        ] {
            assert_eq!(parse_integer(text), (number, rest), "{text:?}");
        }
    }

    #[test]
    fn a_parameter_has_the_name_of_its_provider_in_front() {
        define(Some(c"Zed"), c"some_p", fi_param_type::FI_PARAM_INT.into(), c"help");
        assert_eq!(get(Some(c"Zed"), c"some_p"), Err(Error::NODATA));
        set(c"FI_ZED_SOME_P", c"4");
        assert_eq!(get(Some(c"Zed"), c"some_p"), Ok(Value::Int(4)));
        assert_eq!(get(None, c"some_p"), Err(Error::NOENT));
        assert_eq!(get(Some(c"Zed"), c"other"), Err(Error::NOENT));
    }

    #[test]
    fn booleans_are_words_and_nothing_else() {
        define(None, c"test_bool", fi_param_type::FI_PARAM_BOOL.into(), c"help");
        for (text, value) in [(c"yes", Ok(1)), (c"OFF", Ok(0)), (c"2", Err(Error::INVAL))] {
            set(c"FI_TEST_BOOL", text);
            assert_eq!(get(None, c"test_bool"), value.map(Value::Bool));
        }
    }

    #[test]
    fn the_system_file_has_names_and_values() {
        let file = parse_file("# comment\nFI_A = 1\n\nFI_B=x=y\nnonsense\n");
        assert_eq!(file.len(), 2);
        assert_eq!(file[c"FI_A"].as_c_str(), c"1");
        assert_eq!(file[c"FI_B"].as_c_str(), c"x=y");
    }

    #[test]
    fn the_list_ends_with_an_element_of_zeros() {
        define(None, c"test_list", fi_param_type::FI_PARAM_SIZE_T.into(), c"help");
        let (list, count) = list().unwrap();
        // SAFETY: `count` elements and one of zeros, freed once.
        unsafe {
            assert!((0..count).any(|at| CStr::from_ptr((*list.add(at)).name) == c"FI_TEST_LIST"));
            assert!((*list.add(count)).name.is_null());
            free(list);
            free(ptr::null_mut());
        }
    }
}
