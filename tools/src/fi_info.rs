//! Lists the offers of libfabric's providers (fi_info(1)).
use ofi::abi::*;
use ofi::error::{Error, Result};
use ofi::info;
use ofi::info::tostr::{self, RELEASE};
use ofi::info::{API_VERSION, InfoBuf, InfoChain, InfoRef, OFFLOAD_PROV_ONLY};
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::ExitCode;
use std::ptr;
use std::sync::Mutex;

mod fi_info_paths;
use fi_info_paths::LoggedPath;

const USAGE: &str = "  -h, --help\t\t\tdisplay this help and exit
  -s, --src_addr=ADDR\t\tsource name or address
  -n, --node=NAME\t\tdest node name or address
  -P, --port=PNUM\t\tport number
  -c, --caps=CAP1|CAP2..\tone or more capabilities: FI_MSG|FI_RMA...
  -m, --mode=MOD1|MOD2..\tone or more modes, default all modes
  -t, --ep_type=EPTYPE\t\tspecify single endpoint type: FI_EP_MSG, FI_EP_DGRAM...
  -d, --domain=DOMAIN\t\tspecify the domain name
  -f, --fabric=FABRIC\t\tspecify the fabric name
  -a, --addr_format=FMT\t\tspecify accepted address format: FI_FORMAT_UNSPEC, FI_SOCKADDR...
  -p, --provider=PROV\t\tspecify provider explicitly
  -e, --env\t\t\tprint libfabric environment variables
  -g, --getenv=SUBSTR\t\tprint libfabric environment variables with substr
  -i, --info=\t\tprint fi_info structures containing substr
  -l, --list\t\t\tlist available libfabric providers
  -v, --verbose\t\t\tverbose output
  --version\t\t\tprint version info and exit
  --explain\t\t\tsay of every provider why it is, or is not, in the list
  --config\t\t\tprint a libfabric.conf with all variables, set ones active
  --protocols\t\t\tprint the path of each message size, with the variables of its limits";

/// Long options, a flag for an argument, and their letters; ones without a letter have an unused
/// capital letter.
const OPTIONS: &[(&str, bool, char)] = &[
    ("help", false, 'h'),
    ("src_addr", true, 's'),
    ("node", true, 'n'),
    ("port", true, 'P'),
    ("caps", true, 'c'),
    ("mode", true, 'm'),
    ("ep_type", true, 't'),
    ("domain", true, 'd'),
    ("fabric", true, 'f'),
    ("addr_format", true, 'a'),
    ("provider", true, 'p'),
    ("env", false, 'e'),
    ("getenv", true, 'g'),
    ("info", true, 'i'),
    ("list", false, 'l'),
    ("verbose", false, 'v'),
    ("version", false, 'V'),
    ("explain", false, 'X'),
    ("config", false, 'C'),
    ("protocols", false, 'R'),
];

/// Options in addition to the original's. An abbreviation of one of the original's options is none
/// of these.
const OWN_OPTIONS: [&str; 3] = ["explain", "config", "protocols"];

/// Maximum length of a line of comments in bytes.
const CONFIG_WIDTH: usize = 100;

/// Introduction of a printed `libfabric.conf`.
const CONFIG_HEAD: &str = "\
# Variables of libfabric. As /etc/libfabric.conf, or libfabric.conf of the directory given to configure
# (fabric(7)), this file sets them for all programs of this host. A line NAME=value sets a variable, and #
# begins a comment. Values are not quoted. The environment has precedence, unless FI_PREFER_SYSCONFIG=1.
";

/// Parsed command line.
struct Command {
    hints: InfoBuf,
    node: Option<CString>,
    port: Option<CString>,
    flags: u64,
    verbose: bool,
    env: bool,
    getenv: Option<String>,
    info: Option<String>,
    list: bool,
    version: bool,
    explain: bool,
    config: bool,
    protocols: bool,
}

/// Reason to do nothing.
enum NothingToDo {
    /// Print the usage, after an error message if there is one.
    Usage(Option<String>),
    /// Invalid argument.
    Bad(String),
    /// Memory.
    Failed(Error),
}

impl From<Error> for NothingToDo {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn main() -> ExitCode {
    // SAFETY: the default action, before there are other threads. A reader closing the output early
    // ends the program, as with other tools.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut args = env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let own = args.next().unwrap_or_else(|| "fi_info".to_owned());
    let result = match parse(&args.collect::<Vec<_>>()) {
        Ok(command) => run(&own, &command),
        Err(NothingToDo::Usage(complaint)) => {
            if let Some(complaint) = complaint {
                eprintln!("{own}: {complaint}");
            }
            println!("Usage: {own}\n{USAGE}");
            return ExitCode::FAILURE;
        }
        Err(NothingToDo::Bad(complaint)) => {
            eprintln!("error: {complaint}");
            return exit_code(Error::INVAL);
        }
        Err(NothingToDo::Failed(error)) => Err(("fi_allocinfo", error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((call, error)) => {
            eprintln!("{call}: {} ({error})", error.to_ret());
            exit_code(error)
        }
    }
}

fn exit_code(error: Error) -> ExitCode {
    ExitCode::from(u8::try_from(error.code()).unwrap_or(u8::MAX))
}

/// The options and their arguments, in the notations of getopt_long.
fn options(args: &[String]) -> core::result::Result<Vec<(char, String)>, NothingToDo> {
    let usage = |complaint: String| NothingToDo::Usage(Some(complaint));
    let mut found = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            break;
        }
        if let Some(long) = arg.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let exact = OPTIONS.iter().filter(|option| option.0 == name);
            let abbreviated = |is_own: bool| {
                let candidates = OPTIONS.iter().filter(|option| option.0.starts_with(name));
                candidates.filter(move |option| OWN_OPTIONS.contains(&option.0) == is_own)
            };
            let mut fit: Vec<_> = exact.collect();
            for is_own in [false, true] {
                if fit.is_empty() {
                    fit = abbreviated(is_own).collect();
                }
            }
            let (name, takes, letter) = match fit[..] {
                [option] => *option,
                [] => return Err(usage(format!("unrecognized option '{arg}'"))),
                _ => return Err(usage(format!("option '--{name}' is ambiguous"))),
            };
            let value = match (takes, value) {
                (true, Some(value)) => value,
                (true, None) => args
                    .next()
                    .cloned()
                    .ok_or_else(|| usage(format!("option '--{name}' requires an argument")))?,
                (false, None) => String::new(),
                (false, Some(_)) => {
                    return Err(usage(format!("option '--{name}' doesn't allow an argument")));
                }
            };
            found.push((letter, value));
        } else if let Some(letters) = arg.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            let mut rest = letters.chars();
            while let Some(letter) = rest.next() {
                let known = OPTIONS.iter().find(|option| option.2 == letter);
                let Some((_, takes, _)) = known.filter(|option| !"VXCR".contains(option.2)) else {
                    return Err(usage(format!("invalid option -- '{letter}'")));
                };
                if *takes {
                    let value = match rest.as_str() {
                        "" => args.next().cloned().ok_or_else(|| {
                            usage(format!("option requires an argument -- '{letter}'"))
                        })?,
                        value => value.to_owned(),
                    };
                    found.push((letter, value));
                    break;
                }
                found.push((letter, String::new()));
            }
        }
    }
    Ok(found)
}

fn parse(args: &[String]) -> core::result::Result<Command, NothingToDo> {
    let mut command = Command {
        hints: InfoBuf::new()?,
        node: None,
        port: None,
        flags: 0,
        verbose: false,
        env: false,
        getenv: None,
        info: None,
        list: false,
        version: false,
        explain: false,
        config: false,
        protocols: false,
    };
    // To be shown everything, agree to everything.
    command.hints.set_mode(u64::MAX);
    command.hints.edit_domain(|domain| {
        domain.mode = u64::MAX;
        domain.mr_mode = !(FI_MR_BASIC | FI_MR_SCALABLE);
    });
    for (letter, value) in options(args)? {
        // An argument of the command line has no zero in it.
        let string = CString::new(value.as_str()).map_err(|_| NothingToDo::Usage(None))?;
        let hints = &mut command.hints;
        match letter {
            's' => {
                command.node = Some(string);
                command.flags |= FI_SOURCE;
            }
            'n' => command.node = Some(string),
            'P' => command.port = Some(string),
            'c' => hints.set_caps(flags("capability", &value, tostr::caps)?),
            'm' => hints.set_mode(flags("mode", &value, tostr::mode)?),
            't' => {
                let ep_type = named("endpoint type", &value, tostr::ep_type)?;
                hints.edit_ep(|ep| ep.r#type = c_enum::from_raw(ep_type));
            }
            'd' => hints.set_domain_name(&string)?,
            'f' => hints.set_fabric_name(&string)?,
            'a' => hints.set_addr_format(named("address format", &value, tostr::addr_format)?),
            'p' => hints.set_prov_name(&string)?,
            'e' => command.env = true,
            'g' => command.getenv = Some(value),
            'i' => command.info = Some(value),
            'l' => command.list = true,
            'v' => command.verbose = true,
            'V' => command.version = true,
            'X' => command.explain = true,
            'C' => command.config = true,
            'R' => command.protocols = true,
            _ => return Err(NothingToDo::Usage(None)),
        }
    }
    Ok(command)
}

/// `NAME|NAME` as bits.
fn flags(
    what: &str,
    list: &str,
    text: fn(u64) -> String,
) -> core::result::Result<u64, NothingToDo> {
    list.split('|').try_fold(0, |bits, name| {
        (0..u64::BITS)
            .map(|bit| 1 << bit)
            .find(|bit| text(*bit).eq_ignore_ascii_case(name))
            .map(|bit| bits | bit)
            .ok_or_else(|| NothingToDo::Bad(format!("Unrecognized {what}: {name}")))
    })
}

/// The value of a name.
fn named(
    what: &str,
    name: &str,
    text: fn(u32) -> &'static str,
) -> core::result::Result<u32, NothingToDo> {
    (0..64)
        .find(|value| text(*value).eq_ignore_ascii_case(name) && text(*value) != "Unknown")
        .ok_or_else(|| NothingToDo::Bad(format!("Unrecognized {what}: {name}")))
}

type InfoOutcome = core::result::Result<(), (&'static str, Error)>;

fn run(own: &str, command: &Command) -> InfoOutcome {
    if command.version {
        // SAFETY: the value does not matter for this type, as long as there is one.
        let library = unsafe { text(own.as_ptr().cast(), fi_type::FI_TYPE_VERSION) };
        println!("{own}: {RELEASE}");
        println!("libfabric: {library}");
        println!("libfabric api: {FI_MAJOR_VERSION}.{FI_MINOR_VERSION}");
        return Ok(());
    }
    if command.env || command.getenv.is_some() {
        return print_params(command.getenv.as_deref()).map_err(|error| ("fi_getparams", error));
    }
    if command.config {
        return print_config().map_err(|error| ("fi_getparams", error));
    }
    if command.explain {
        return explain(command);
    }
    if command.protocols {
        return print_protocols(command);
    }
    let chain = getinfo(command).map_err(|error| ("fi_getinfo", error))?;
    for info in chain.iter() {
        if command.verbose || command.info.is_some() {
            // SAFETY: a live info.
            let text = unsafe { text(info.as_ptr().cast(), fi_type::FI_TYPE_INFO) };
            if command.info.as_ref().is_none_or(|part| text.contains(part.as_str())) {
                print!("---\n{text}");
            }
        } else if command.list {
            print_provider(info);
        } else {
            print_info(info);
        }
    }
    Ok(())
}

/// Returns the library's text of a value.
///
/// # Safety
/// `data` points to a value of this type.
unsafe fn text(data: *const c_void, kind: fi_type) -> String {
    // SAFETY: by this function's contract; the answer is a C string or null.
    unsafe {
        let text = fi_tostr(data, kind.into());
        if text.is_null() {
            return "Unknown".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

fn getinfo(command: &Command) -> Result<InfoChain> {
    getinfo_with(command, if command.list { FI_PROV_ATTR_ONLY } else { command.flags })
}

/// Calls fi_getinfo(3) with the options of the command line and these flags.
fn getinfo_with(command: &Command, flags: u64) -> Result<InfoChain> {
    let string = |string: &Option<CString>| string.as_ref().map_or(ptr::null(), |s| s.as_ptr());
    let mut list = ptr::null_mut();
    // SAFETY: strings, hints, and the place of a list that is ours then.
    unsafe {
        Error::check(fi_getinfo(
            API_VERSION,
            string(&command.node),
            string(&command.port),
            flags,
            command.hints.as_ptr(),
            &mut list,
        ))?;
        InfoChain::from_raw(list)
    }
}

fn name(name: Option<&CStr>) -> String {
    name.map_or("(null)".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn version(info: InfoRef<'_>) -> String {
    let version = info.fabric().map_or(0, |fabric| fabric.prov_version);
    format!("{}.{}", version >> 16, version & 0xffff)
}

fn print_provider(info: InfoRef<'_>) {
    println!("{}:", name(info.prov_name()));
    println!("    version: {}", version(info));
}

fn print_info(info: InfoRef<'_>) {
    println!("provider: {}", name(info.prov_name()));
    println!("    fabric: {}", name(info.fabric_name()));
    println!("    domain: {}", name(info.domain_name()));
    println!("    version: {}", version(info));
    if let Some(ep) = info.ep() {
        // SAFETY: values of these types in a live info.
        unsafe {
            let ep_type = text((&raw const ep.r#type).cast(), fi_type::FI_TYPE_EP_TYPE);
            let protocol = text((&raw const ep.protocol).cast(), fi_type::FI_TYPE_PROTOCOL);
            println!("    type: {ep_type}");
            println!("    protocol: {protocol}");
        }
    }
}

/// Variable of the environment, defined by the library or a provider.
struct Param {
    name: String,
    kind: i32,
    help: String,
    value: Option<String>,
}

impl Param {
    /// Returns the type of its values.
    fn kind(&self) -> &'static str {
        match self.kind {
            0 => "String",
            1 => "Integer",
            2 => "Boolean (0/1, on/off, true/false, yes/no)",
            3 => "size_t",
            _ => "Unknown",
        }
    }

    /// Returns its lines of `libfabric.conf`: a description, and the value, or a comment to be
    /// completed.
    fn config(&self) -> String {
        // A line of the file cannot have these values.
        let is_line = |value: &&String| !value.contains('\n') && value.trim() == value.as_str();
        let setting = match self.value.as_ref().filter(is_line) {
            Some(value) => format!("{}={value}", self.name),
            None => format!("#{}=", self.name),
        };
        let title = format!("{}: {}", self.name, self.kind());
        let lines = wrapped(&title).chain(wrapped(&self.help)).map(|line| format!("# {line}\n"));
        lines.chain([setting, "\n".to_owned()]).collect()
    }
}

/// Returns the lines of a text, at most [`CONFIG_WIDTH`] bytes long unless a word is longer.
fn wrapped(text: &str) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= CONFIG_WIDTH) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines.into_iter()
}

/// Returns all variables.
fn params() -> Result<Vec<Param>> {
    let mut list = ptr::null_mut();
    let mut count: c_int = 0;
    // SAFETY: places for the answer.
    Error::check(unsafe { fi_getparams(&mut list, &mut count) })?;
    let string = |string: *const c_char| {
        // SAFETY: the strings of the array are C strings or null.
        let string = (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) });
        string.map(|string| string.to_string_lossy().into_owned())
    };
    let all = (0..count as usize).map(|at| {
        // SAFETY: within the array.
        let param = unsafe { &*list.add(at) };
        Param {
            name: string(param.name).unwrap_or_default(),
            kind: param.r#type.raw() as i32,
            help: string(param.help_string).unwrap_or_default(),
            value: string(param.value),
        }
    });
    let all = all.collect();
    // SAFETY: from fi_getparams, and not used any more.
    unsafe { fi_freeparams(list) };
    Ok(all)
}

fn print_params(part: Option<&str>) -> Result {
    for param in params()? {
        if part.is_some_and(|part| !contains(&param.name, part)) {
            continue;
        }
        println!("# {}: {}\n# {}", param.name, param.kind(), param.help);
        if let Some(value) = &param.value {
            // For a shell to read.
            let quote = if value.contains(' ') { "\"" } else { "" };
            println!("{}={quote}{value}{quote}", param.name);
        }
        println!();
    }
    Ok(())
}

/// Prints a `libfabric.conf` with all variables. Those set in the environment are active.
fn print_config() -> Result {
    println!("{CONFIG_HEAD}");
    for param in params()? {
        println!("{}", param.config());
    }
    Ok(())
}

fn contains(text: &str, part: &str) -> bool {
    text.to_ascii_uppercase().contains(&part.to_ascii_uppercase())
}

/// Lines logged during the library's search for infos.
static REASONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Paths of transfers logged during it.
static PATHS: Mutex<Vec<LoggedPath>> = Mutex::new(Vec::new());

unsafe extern "C" fn wants(
    _prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    _flags: u64,
) -> c_int {
    // Providers explain the order of infos at level trace.
    let explains = level == fi_log_level::FI_LOG_TRACE && subsys == fi_log_subsys::FI_LOG_FABRIC;
    let reports = level == fi_log_level::FI_LOG_WARN || level == fi_log_level::FI_LOG_INFO;
    c_int::from(explains || reports)
}

unsafe extern "C" fn wants_paths(
    _prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    subsys: c_enum<fi_log_subsys>,
    _flags: u64,
) -> c_int {
    let logs_paths = level == fi_log_level::FI_LOG_TRACE && subsys == fi_log_subsys::FI_LOG_EP_DATA;
    c_int::from(logs_paths || level == fi_log_level::FI_LOG_WARN)
}

unsafe extern "C" fn never(
    _prov: *const fi_provider,
    _level: c_enum<fi_log_level>,
    _subsys: c_enum<fi_log_subsys>,
    _flags: u64,
    _showtime: *mut u64,
) -> c_int {
    0
}

/// Stores log lines of providers, and the reasons and warnings of the core.
unsafe extern "C" fn keep(
    prov: *const fi_provider,
    level: c_enum<fi_log_level>,
    _subsys: c_enum<fi_log_subsys>,
    func: *const c_char,
    _line: c_int,
    text: *const c_char,
) {
    // SAFETY: fi_open(3): a provider or null, and C strings or null.
    let (prov, func, text) = unsafe {
        let string = |string: *const c_char| {
            if string.is_null() { "".into() } else { CStr::from_ptr(string).to_string_lossy() }
        };
        (prov.as_ref().map(|prov| string(prov.name)), string(func), string(text))
    };
    if func.as_bytes() == info::PATHS.to_bytes() {
        let path = prov.zip(text.parse().ok());
        if let (Some((prov, path)), Ok(mut paths)) = (path, PATHS.lock()) {
            paths.push(LoggedPath { prov: prov.into_owned(), path });
        }
        return;
    }
    let text = text.trim_end();
    let line = match prov.filter(|prov| prov != "core") {
        Some(prov) => format!("{prov}: {text}"),
        None if func == "explain" => text.to_owned(),
        // The summary says again what the lines before it said.
        None if level == fi_log_level::FI_LOG_WARN && !text.starts_with("fi_getinfo(") => {
            text.to_owned()
        }
        None => return,
    };
    if let Ok(mut reasons) = REASONS.lock() {
        if !reasons.contains(&line) {
            reasons.push(line);
        }
    }
}

/// Has the lines of the log passed to [`keep`], if `enabled` wants them.
fn import_log(
    enabled: unsafe extern "C" fn(
        *const fi_provider,
        c_enum<fi_log_level>,
        c_enum<fi_log_subsys>,
        u64,
    ) -> c_int,
) -> InfoOutcome {
    let ops = Box::leak(Box::new(fi_ops_log {
        size: size_of::<fi_ops_log>(),
        enabled: Some(enabled),
        ready: Some(never),
        log: Some(keep),
    }));
    let log = Box::leak(Box::new(fid_logging {
        fid: fid { fclass: FI_CLASS_LOG as usize, context: ptr::null_mut(), ops: ptr::null_mut() },
        ops,
    }));
    let mut import: *mut fid = ptr::null_mut();
    // SAFETY: fi_open(3): a name, and the place of an object that is ours then;
    // what is bound to it stays for good.
    unsafe {
        let opened = fi_open(
            API_VERSION,
            c"logging".as_ptr(),
            ptr::null_mut(),
            0,
            0,
            &mut import,
            ptr::null_mut(),
        );
        Error::check(opened).map_err(|error| ("fi_open", error))?;
        let bind = import.as_ref().and_then(|import| import.ops.as_ref()).and_then(|ops| ops.bind);
        let bind = bind.ok_or(("fi_import_fid", Error::NOSYS))?;
        Error::check(bind(import, &mut log.fid, 0)).map_err(|error| ("fi_import_fid", error))?;
    }
    Ok(())
}

/// Prints one line for each reason for the presence or absence of an info.
fn explain(command: &Command) -> InfoOutcome {
    import_log(wants)?;
    let outcome = getinfo(command);
    for line in REASONS.lock().iter().flat_map(|reasons| reasons.iter()) {
        println!("{line}");
    }
    outcome.map(|_| ()).map_err(|error| ("fi_getinfo", error))
}

/// Prints the paths of transfers by size of each provider with an info.
fn print_protocols(command: &Command) -> InfoOutcome {
    import_log(wants_paths)?;
    let mut chain = getinfo(command);
    // Providers for other providers only, such as off_coll.
    if let Ok(more) = getinfo_with(command, OFFLOAD_PROV_ONLY) {
        match &mut chain {
            Ok(chain) => chain.append(more),
            Err(_) => chain = Ok(more),
        }
    }
    let chain = chain.map_err(|error| ("fi_getinfo", error))?;
    let paths = PATHS.lock().map(|paths| paths.clone()).unwrap_or_default();
    print!("{}", fi_info_paths::text(&chain, &paths));
    // Warnings, such as of a variable without effect.
    for line in REASONS.lock().iter().flat_map(|reasons| reasons.iter()) {
        eprintln!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> core::result::Result<Command, String> {
        parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>()).map_err(
            |stop| match stop {
                NothingToDo::Usage(complaint) => complaint.unwrap_or_else(|| "usage".to_owned()),
                NothingToDo::Bad(complaint) => complaint,
                NothingToDo::Failed(error) => error.to_string(),
            },
        )
    }

    #[test]
    fn options_have_the_notations_of_getopt_long() {
        for args in [
            &["-v", "-p", "tcp", "-P7000"][..],
            &["-vptcp", "--port=7000"],
            &["--verb", "--provider", "tcp", "--port", "7000"],
            &["stray", "-vp", "tcp", "--po=7000", "--", "-Z"],
            &["--verb", "--pr", "tcp", "--port=7000", "--expl", "--conf"],
        ] {
            let command = parsed(args).unwrap();
            assert!(command.verbose, "{args:?}");
            assert_eq!(command.hints.as_ref().prov_name(), Some(c"tcp"), "{args:?}");
            assert_eq!(command.port.as_deref(), Some(c"7000"), "{args:?}");
        }
    }

    #[test]
    fn invalid_options_get_getopt_long_messages() {
        for (args, complaint) in [
            (&["-Z"][..], "invalid option -- 'Z'"),
            (&["-g"], "option requires an argument -- 'g'"),
            (&["--getenv"], "option '--getenv' requires an argument"),
            (&["--env=5"], "option '--env' doesn't allow an argument"),
            (&["--pr"], "option '--provider' requires an argument"),
            (&["--ver"], "option '--ver' is ambiguous"),
            (&["--nope"], "unrecognized option '--nope'"),
            (&["-h"], "usage"),
        ] {
            assert_eq!(parsed(args).err().as_deref(), Some(complaint), "{args:?}");
        }
    }

    #[test]
    fn names_are_of_any_case_and_joined_by_bars() {
        let command =
            parsed(&["-c", "fi_msg|FI_SOURCE", "-t", "FI_EP_RDM", "-a", "fi_sockaddr_in6"]);
        let hints = command.unwrap().hints;
        assert_eq!(hints.caps(), FI_MSG | FI_SOURCE);
        assert_eq!(hints.as_ref().ep_type(), fi_ep_type::FI_EP_RDM);
        assert_eq!(hints.as_ref().addr_format(), FI_SOCKADDR_IN6 as u32);
        for (option, complaint) in [
            ("-cFI_MSG|FOO", "Unrecognized capability: FOO"),
            ("-mFOO", "Unrecognized mode: FOO"),
            ("-tUnknown", "Unrecognized endpoint type: Unknown"),
            ("-aFOO", "Unrecognized address format: FOO"),
        ] {
            assert_eq!(parsed(&[option]).err().as_deref(), Some(complaint));
        }
    }

    #[test]
    fn source_address_becomes_the_node_with_fi_source() {
        let command = parsed(&["-s", "127.0.0.1"]).unwrap();
        assert_eq!((command.node.as_deref(), command.flags), (Some(c"127.0.0.1"), FI_SOURCE));
    }

    #[test]
    fn configuration_has_a_line_for_each_variable_active_if_it_is_set() {
        let param = |value: Option<&str>| {
            let (name, help) = ("FI_X".to_owned(), "many words ".repeat(20));
            Param { name, kind: 1, help, value: value.map(str::to_owned) }.config()
        };
        for (value, setting) in [
            (Some("a b"), "FI_X=a b"),
            (Some(""), "FI_X="),
            (None, "#FI_X="),
            (Some("two\nlines"), "#FI_X="),
            (Some(" blank"), "#FI_X="),
        ] {
            let text = param(value);
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((lines[0], lines[lines.len() - 1]), ("# FI_X: Integer", setting));
            assert!(lines.len() > 3 && lines.iter().all(|line| line.len() <= CONFIG_WIDTH + 2));
        }
    }
}
