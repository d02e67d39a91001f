//! Provider registry, and the search for plug-ins (fi_provider(7)).
//!
//! Plug-ins stay loaded until the process ends: their threads, and callbacks held by other code,
//! may outlive any possible unload. Their `cleanup` runs with the library's destructors.
use crate::hook_mapping::Layer;
use crate::log::{self, NameFilter};
use crate::params;
use crate::plugin_file::{self, Refused};
pub use crate::provider::{LoadedProvider, ProviderKind};
use core::ffi::CStr;
use ofi::abi::{FI_ENOMEM, FI_LIB_SUFFIX};
use ofi::error::{Error, Result};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Directory of plug-ins of an installation without any next to the library.
const PROVDIR: &str = match option_env!("OFI_PROVDIR") {
    Some(dir) => dir,
    None => "/usr/local/lib/libfabric",
};

/// Query order of providers; all others follow in the order of their discovery.
const ORDER: &[&str] = &[
    "efa",
    "psm2",
    "opx",
    "usnic",
    "verbs",
    "cxi",
    "psm3",
    "ucx",
    "ofi_rxm",
    "ofi_rxd",
    "shm",
    "udp",
    "tcp",
    "sockets",
    "net",
    "ofi_hook_perf",
    "ofi_hook_trace",
    "ofi_hook_profile",
    "ofi_hook_monitor",
    "ofi_hook_debug",
    "ofi_hook_noop",
    "ofi_hook_hmem",
    "ofi_hook_dmabuf_peer_mem",
    "off_coll",
    "sm2",
];

/// All providers, in the order of their queries.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: Vec<LoadedProvider>,
    /// Providers excluded by `FI_PROVIDER`.
    left_out: Vec<LoadedProvider>,
    /// Opened plug-ins, to avoid opening one twice.
    files: Vec<PluginFile>,
    /// Value of `FI_PROVIDER`.
    filter: NameFilter,
    /// Value of `FI_HOOK`, innermost first.
    hooks: Vec<String>,
    /// Directories searched for plug-ins.
    searched: Vec<PathBuf>,
    /// There was no memory for some plug-in.
    is_incomplete: bool,
}

/// An opened plug-in. The path stays the plug-in's if another file replaces it, and the file if it
/// has several names.
#[derive(Clone, Debug)]
struct PluginFile {
    path: PathBuf,
    /// Device and number of the file.
    id: Option<(u64, u64)>,
}

static REGISTRY: RwLock<Option<Arc<Registry>>> = RwLock::new(None);

/// There was no memory for some plug-in when they were looked for.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Returns all current providers. No lock is held during their use, so providers may query others.
pub fn current() -> Arc<Registry> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    registry.clone().unwrap_or_default()
}

/// Finds and loads all plug-ins.
pub(super) fn load() {
    let hooks = params::core_string(c"hook").unwrap_or_default();
    let mut registry = Registry {
        filter: NameFilter::parse(&params::core_string(c"provider").unwrap_or_default()),
        hooks: parse_hooks(&hooks),
        ..Registry::default()
    };
    if std::env::var_os("FI_PROVIDER_PATH").is_some() && params::has_foreign_rights() {
        log::warn(format_args!("FI_PROVIDER_PATH is left out, because this program is set-uid"));
    }
    registry.find_all();
    let missing = registry.filter.iter().filter(|_| !registry.is_incomplete);
    for name in missing {
        let asked = name.split(';').next().unwrap_or_default();
        let mut known = registry.providers.iter().chain(&registry.left_out);
        if !known.any(|prov| prov.is(asked)) {
            log::warn(format_args!(
                "FI_PROVIDER names {name}, but no such provider was found in {}",
                registry.paths()
            ));
        }
    }
    registry.publish();
}

/// Returns true if there was memory for all plug-ins found.
pub(super) fn is_complete() -> bool {
    !INCOMPLETE.load(Ordering::Acquire)
}

/// Searches again for plug-ins not loaded for lack of memory. Fails with -FI_ENOMEM if there still
/// is none.
pub(super) fn complete() -> Result {
    static COMPLETING: Mutex<()> = Mutex::new(());
    let _completing = COMPLETING.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_complete() {
        let mut registry = Registry::clone(&current());
        registry.find_all();
        registry.publish();
    }
    if is_complete() { Ok(()) } else { Err(Error::NOMEM) }
}

/// Lets providers clean up at the end of the process.
pub fn cleanup() {
    let registry = match REGISTRY.try_write() {
        Ok(mut registry) => registry.take(),
        // Another thread is starting the library while the process ends.
        Err(_) => None,
    };
    let all = |registry: &'_ Arc<Registry>| -> Vec<LoadedProvider> {
        registry.providers.iter().chain(&registry.left_out).cloned().collect()
    };
    for prov in registry.iter().flat_map(all) {
        if let Some(cleanup) = prov.raw().cleanup {
            // SAFETY: fi_provider(7): called once, when all else is over.
            unsafe { cleanup() };
        }
    }
}

impl Registry {
    /// The providers in order, hidden ones among them.
    pub fn providers(&self) -> &[LoadedProvider] {
        &self.providers
    }

    /// Returns the providers excluded by `FI_PROVIDER`. Other providers may query them all the
    /// same.
    pub fn left_out(&self) -> &[LoadedProvider] {
        &self.left_out
    }

    /// Returns the provider with this name whose fabric can be opened: a visible one, or an
    /// excluded one.
    pub fn find_to_open(&self, name: &str) -> Option<&LoadedProvider> {
        self.find(name).or_else(|| self.left_out.iter().find(|prov| prov.is(name)))
    }

    /// Returns the provider with this name visible to applications.
    pub fn find(&self, name: &str) -> Option<&LoadedProvider> {
        self.providers.iter().find(|prov| prov.is(name) && !prov.hidden)
    }

    /// Returns the hook providers named by `FI_HOOK`, innermost first. A log line reports names of
    /// no hook.
    pub fn hooks(&self) -> impl Iterator<Item = &LoadedProvider> {
        self.hooks.iter().filter_map(|name| {
            let hook = self.hook(name);
            match hook {
                None => log::warn(format_args!("No hook found for: {name}")),
                Some(prov) if prov.kind() != ProviderKind::Hook => {
                    log::warn(format_args!("Specified provider is not a hook: {name}"));
                }
                Some(_) => {}
            }
            hook.filter(|prov| prov.kind() == ProviderKind::Hook)
        })
    }

    fn hook(&self, name: &str) -> Option<&LoadedProvider> {
        self.find(name).or_else(|| self.find(&format!("{HOOK_PREFIX}{name}")))
    }

    /// Returns true if `FI_HOOK` names anything.
    pub fn is_hooked(&self) -> bool {
        !self.hooks.is_empty()
    }

    /// Returns the available hooks named by `FI_HOOK`, in its order, without a log line.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let hooks = self.hooks.iter().filter_map(|name| self.hook(name));
        let layer = |prov: &LoadedProvider| prov.layer();
        hooks.filter(|prov| prov.kind() == ProviderKind::Hook).map(layer).collect()
    }

    /// Returns the value of `FI_PROVIDER`.
    pub fn filter(&self) -> &NameFilter {
        &self.filter
    }

    /// Returns true if `FI_PROVIDER` names this provider among those to use.
    pub fn is_asked_for(&self, prov: &LoadedProvider) -> bool {
        !self.filter.is_negated() && self.filter.names(prov.name())
    }

    /// Returns the searched directories of plug-ins as readable text.
    pub fn paths(&self) -> String {
        let paths: Vec<_> = self.searched.iter().map(|dir| dir.display().to_string()).collect();
        if paths.is_empty() { "no directory".to_owned() } else { paths.join(", ") }
    }

    /// Finds and loads all plug-ins not loaded yet.
    fn find_all(&mut self) {
        self.is_incomplete = false;
        let path = params::core_string(c"provider_path").unwrap_or_default();
        self.search(&Search::parse(&path));
        self.sort();
    }

    /// Makes these the providers there are.
    fn publish(self) {
        INCOMPLETE.store(self.is_incomplete, Ordering::Release);
        *REGISTRY.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(self));
    }

    /// Records a lack of memory, if this is the error.
    fn note(&mut self, error: &std::io::Error) -> bool {
        let is_memory = error.raw_os_error() == Some(FI_ENOMEM);
        self.is_incomplete |= is_memory;
        is_memory
    }

    fn search(&mut self, path: &Search) {
        for file in &path.preferred {
            if !self.searched.contains(file) {
                self.searched.push(file.clone());
            }
            self.load_file(file, true, path.first_wins);
        }
        for dir in &path.dirs {
            self.load_dir(dir, path.first_wins, false);
        }
        // The library's own plug-ins are always available in addition to named ones.
        match default_dirs() {
            Ok(dirs) => dirs.iter().for_each(|dir| self.load_dir(dir, path.first_wins, true)),
            Err(error) => _ = self.note(&error),
        }
    }

    fn load_dir(&mut self, dir: &Path, first_wins: bool, may_miss: bool) {
        if !self.searched.iter().any(|searched| searched == dir) {
            self.searched.push(dir.to_owned());
        }
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if self.note(&error) => return,
            Err(error) if may_miss => {
                log::info(format_args!("no plug-ins in {}: {error}", dir.display()));
                return;
            }
            Err(error) => {
                log::warn(format_args!(
                    "FI_PROVIDER_PATH: cannot read directory {}: {error}",
                    dir.display()
                ));
                return;
            }
        };
        let mut files: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|file| file.as_os_str().as_bytes().ends_with(FI_LIB_SUFFIX.to_bytes()))
            .collect();
        // From the last name to the first: the order decides between plug-ins of one name and
        // version.
        files.sort();
        for file in files.iter().rev() {
            self.load_file(file, false, first_wins);
        }
    }

    fn load_file(&mut self, file: &Path, preferred: bool, first_wins: bool) {
        let real = match file.canonicalize() {
            Ok(real) => real,
            Err(error) if self.note(&error) => return,
            Err(_) => file.to_owned(),
        };
        let id = |file: &Metadata| (file.dev(), file.ino());
        let opened = PluginFile { id: real.metadata().ok().as_ref().map(id), path: real };
        let is_opened = |other: &PluginFile| {
            other.path == opened.path || (other.id == opened.id && opened.id.is_some())
        };
        if self.files.iter().any(is_opened) {
            return;
        }
        match plugin_file::open(file) {
            Ok(prov) if self.has(&prov) => {
                log::info(format_args!(
                    "plug-in {} is left out: it gave the provider {} of another plug-in",
                    file.display(),
                    prov.name()
                ));
                self.files.push(opened);
            }
            Ok(mut prov) => {
                self.files.push(opened);
                prov.preferred = preferred;
                self.register(prov, first_wins);
            }
            Err(Refused::NoMemory) => self.is_incomplete = true,
            Err(Refused::Nothing) => {
                log::info(format_args!("plug-in {} has nothing to offer here", file.display()));
            }
            Err(Refused::Needs(library)) => {
                // As with hardware that this machine does not have.
                log::info(format_args!(
                    "plug-in {} is left out: it needs {library}, which is not installed",
                    file.display()
                ));
            }
            Err(Refused::Unusable(why)) => {
                log::warn(format_args!("plug-in {} is left out: {why}", file.display()));
            }
        }
    }

    /// Returns true if some plug-in already gave this very provider.
    fn has(&self, prov: &LoadedProvider) -> bool {
        let mut all = self.providers.iter().chain(&self.left_out);
        all.any(|other| other.as_ptr() == prov.as_ptr())
    }

    /// Adds a provider; of those with one name, the preferred or the newer is
    /// used and the others are only listed.
    fn register(&mut self, mut prov: LoadedProvider, first_wins: bool) {
        let (major, minor) = (prov.version() >> 16, prov.version() & 0xffff);
        let listed = self.filter.names(prov.name());
        // A positive list is of core providers: what goes over them stays.
        if self.filter.is_negated() && listed {
            log::info(format_args!("provider {} is switched off by FI_PROVIDER", prov.name()));
            self.left_out.push(prov);
            return;
        }
        if !self.filter.is_negated() && !self.filter.is_empty() && prov.kind() == ProviderKind::Core
        {
            let asked = |name: &str| name.split(';').any(|part| prov.is(part));
            if !self.filter.iter().any(asked) {
                log::info(format_args!("provider {} is not in FI_PROVIDER", prov.name()));
                self.left_out.push(prov);
                return;
            }
        }
        if let Some(old) = self.providers.iter_mut().find(|old| old.is(prov.name()) && !old.hidden)
        {
            let newer = prov.version() > old.version() && !first_wins;
            let wins = !old.preferred && (prov.preferred || newer);
            log::info(format_args!(
                "provider {} ({major}.{minor}) is there twice; the {} is used",
                prov.name(),
                if wins { "one found later" } else { "one found first" }
            ));
            (old.hidden, prov.hidden) = (wins, !wins);
        }
        log::info(format_args!("registering provider: {} ({major}.{minor})", prov.name()));
        self.providers.push(prov);
    }

    fn sort(&mut self) {
        let rank = |prov: &LoadedProvider| {
            ORDER.iter().position(|name| prov.is(name)).unwrap_or(ORDER.len())
        };
        // Stable: those that are not in the order keep their own.
        self.providers.sort_by_key(rank);
        self.left_out.sort_by_key(rank);
    }
}

/// Prefix of names of hook providers; `FI_HOOK` may omit it.
const HOOK_PREFIX: &str = "ofi_hook_";

/// Reads `FI_HOOK`: names between semicolons.
fn parse_hooks(list: &str) -> Vec<String> {
    let names = list.split(';').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Parsed value of `FI_PROVIDER_PATH`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Search {
    /// Plug-ins winning over others with their name: `+FILE`.
    preferred: Vec<PathBuf>,
    /// Directories searched before the default ones.
    dirs: Vec<PathBuf>,
    /// True if the first of two plug-ins with one name is used, not the newer one (a leading `@`).
    first_wins: bool,
}

impl Search {
    fn parse(path: &str) -> Self {
        let (first_wins, path) = match path.strip_prefix('@') {
            Some(path) => (true, path),
            None => (false, path),
        };
        let mut search = Self { first_wins, ..Self::default() };
        for part in path.split(':').filter(|part| !part.is_empty()) {
            match part.strip_prefix('+') {
                Some(file) if file.starts_with('/') => search.preferred.push(file.into()),
                Some(file) => log::warn(format_args!(
                    "FI_PROVIDER_PATH: +{file} is left out, because it is no absolute path"
                )),
                None => search.dirs.push(from_start(Path::new(part))),
            }
        }
        search
    }
}

/// Returns `libfabric/` next to this library, then the installation's directory.
fn default_dirs() -> std::io::Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    let own = match own_path() {
        Some(Err(error)) if error.raw_os_error() == Some(FI_ENOMEM) => return Err(error),
        own => own.and_then(std::io::Result::ok),
    };
    if let Some(own) = own.as_deref().and_then(Path::parent) {
        dirs.push(own.join("libfabric"));
    }
    let installed = PathBuf::from(PROVDIR);
    if !dirs.contains(&installed) {
        dirs.push(installed);
    }
    Ok(dirs)
}

/// File of this code, resolved at its load, if it was loaded by a relative name.
static LOADED_BY_RELATIVE_NAME: OnceLock<Option<PathBuf>> = OnceLock::new();

/// The working directory when this library was loaded, if FI_PROVIDER_PATH was set then.
static STARTED_IN: OnceLock<PathBuf> = OnceLock::new();

/// Resolves a directory of FI_PROVIDER_PATH relative to the initial working directory of the
/// program.
fn from_start(dir: &Path) -> PathBuf {
    // An absolute name stays as it is.
    STARTED_IN.get().map_or_else(|| dir.to_owned(), |start| start.join(dir))
}

/// Resolves the relative name of this library at its load, if it is relative: the working directory
/// it depends on may change later. The same holds for the one of FI_PROVIDER_PATH. Called when the
/// library is loaded.
pub fn resolve_own_path() {
    if std::env::var_os("FI_PROVIDER_PATH").is_some() {
        if let Ok(start) = std::env::current_dir() {
            STARTED_IN.get_or_init(|| start);
        }
    }
    if let Some(name) = own_name().filter(|name| name.is_relative()) {
        LOADED_BY_RELATIVE_NAME.get_or_init(|| name.canonicalize().ok());
    }
}

/// Returns the file of this code.
fn own_path() -> Option<std::io::Result<PathBuf>> {
    match LOADED_BY_RELATIVE_NAME.get() {
        Some(path) => path.clone().map(Ok),
        None => Some(own_name()?.canonicalize()),
    }
}

/// Returns the name by which this code was loaded.
fn own_name() -> Option<&'static Path> {
    // SAFETY: an address of our own, and a place for the answer, whose name is
    // a C string that stays as long as this code is loaded.
    let name = unsafe {
        let mut envelope: libc::Dl_info = core::mem::zeroed();
        let here = own_name as fn() -> Option<&'static Path>;
        if libc::dladdr(here as *const _, &mut envelope) == 0 || envelope.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(envelope.dli_fname)
    };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    use core::ffi::{c_char, c_int, c_void};
    use ofi::abi::{fi_context, fi_fabric_attr, fi_info, fi_provider, fid_fabric};
    use ofi::info::version;

    unsafe extern "C" fn getinfo(
        _: u32,
        _: *const c_char,
        _: *const c_char,
        _: u64,
        _: *const fi_info,
        _: *mut *mut fi_info,
    ) -> c_int {
        -61
    }
    unsafe extern "C" fn fabric(
        _: *mut fi_fabric_attr,
        _: *mut *mut fid_fabric,
        _: *mut c_void,
    ) -> c_int {
        -38
    }

    pub(crate) fn raw(name: &'static CStr, major: u32) -> fi_provider {
        fi_provider {
            version: version(major, 0),
            fi_version: version(1, 5),
            context: fi_context { internal: [core::ptr::null_mut(); 4] },
            name: name.as_ptr(),
            getinfo: Some(getinfo),
            fabric: Some(fabric),
            cleanup: None,
        }
    }

    pub(crate) fn provider(raw: fi_provider) -> LoadedProvider {
        // SAFETY: leaked, so it stays for good.
        unsafe { LoadedProvider::new(Box::leak(Box::new(raw))) }.unwrap()
    }

    fn names(registry: &Registry) -> Vec<(&str, u32, bool)> {
        let all = registry.providers.iter();
        all.map(|prov| (prov.name(), prov.version() >> 16, prov.hidden)).collect()
    }

    pub(crate) fn registry(filter: &str, found: Vec<LoadedProvider>, first_wins: bool) -> Registry {
        let mut registry = Registry { filter: NameFilter::parse(filter), ..Registry::default() };
        for prov in found {
            registry.register(prov, first_wins);
        }
        registry.sort();
        registry
    }

    #[test]
    fn known_providers_have_their_order_and_others_follow() {
        let found = [c"mine", c"tcp", c"ofi_rxm", c"verbs"].map(|name| provider(raw(name, 1)));
        let registry = registry("", found.into(), false);
        let names: Vec<_> = registry.providers.iter().map(LoadedProvider::name).collect();
        assert_eq!(names, ["verbs", "ofi_rxm", "tcp", "mine"]);
    }

    #[test]
    fn of_one_name_the_newer_is_used_unless_another_is_preferred() {
        let found = || vec![provider(raw(c"tcp", 2)), provider(raw(c"TCP", 3))];
        assert_eq!(names(&registry("", found(), false)), [("tcp", 2, true), ("TCP", 3, false)]);
        assert_eq!(names(&registry("", found(), true)), [("tcp", 2, false), ("TCP", 3, true)]);
        let mut preferred = found();
        preferred[0].preferred = true;
        assert_eq!(names(&registry("", preferred, false)), [("tcp", 2, false), ("TCP", 3, true)]);
    }

    #[test]
    fn a_list_of_providers_restricts_core_providers_and_a_negated_one_all() {
        let found = || [c"tcp", c"udp", c"ofi_rxm"].map(|name| provider(raw(name, 1))).into();
        let of = |filter| {
            let registry = registry(filter, found(), false);
            registry.providers.iter().map(|prov| prov.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of("tcp"), ["ofi_rxm", "tcp"]);
        assert_eq!(of("tcp;ofi_rxm"), ["ofi_rxm", "tcp"]);
        assert_eq!(of("^ofi_rxm,udp"), ["tcp"]);
        // Other providers find those that are left out, and can open them.
        let registry = registry("tcp", found(), false);
        let left_out: Vec<_> = registry.left_out().iter().map(LoadedProvider::name).collect();
        assert_eq!(left_out, ["udp"]);
        assert!(registry.find("udp").is_none() && registry.find_to_open("udp").is_some());
    }

    #[test]
    fn hooks_are_found_by_either_form_of_their_name_in_the_order_of_the_list() {
        let hook = |name| provider(fi_provider { getinfo: None, ..raw(name, 1) });
        let found = vec![
            hook(c"ofi_hook_noop"),
            hook(c"ofi_hook_perf"),
            hook(c"mine"),
            provider(raw(c"tcp", 1)),
        ];
        let mut registry = registry("", found, false);
        registry.hooks = parse_hooks("PERF;ofi_hook_noop; mine;;tcp;absent;ofi_hook_mine;noop");
        let names: Vec<_> = registry.hooks().map(LoadedProvider::name).collect();
        assert_eq!(names, ["ofi_hook_perf", "ofi_hook_noop", "mine", "ofi_hook_noop"]);
    }

    #[test]
    fn unusable_providers_are_refused() {
        let refuse = |change: fn(&mut fi_provider)| {
            let mut raw = raw(c"tcp", 1);
            change(&mut raw);
            // SAFETY: read during the call only, for all of them are refused.
            unsafe { LoadedProvider::new(&mut raw) }.map(|prov| prov.name().to_owned()).unwrap_err()
        };
        assert_eq!(refuse(|raw| raw.name = core::ptr::null()), "it has no name");
        assert_eq!(refuse(|raw| raw.fabric = None), "it cannot open a fabric");
        assert!(refuse(|raw| raw.fi_version = version(1, 2)).contains("older"));
        let future = refuse(|raw| raw.fi_version = version(3, 1));
        assert_eq!(future, "it was built for interface 3.1, newer than this library");
    }

    #[test]
    fn the_search_path_has_directories_and_preferred_files() {
        assert_eq!(
            Search::parse("@/a:+/b/libx-fi.so:/c"),
            Search {
                preferred: vec!["/b/libx-fi.so".into()],
                dirs: vec!["/a".into(), "/c".into()],
                first_wins: true
            }
        );
        assert_eq!(Search::parse("@"), Search { first_wins: true, ..Search::default() });
        assert_eq!(Search::parse("+relative.so"), Search::default());
    }
}
