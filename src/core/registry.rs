//! Provider registry, and the search for plug-ins (fi_provider(7)).
//!
//! Plug-ins stay loaded until the process ends: their threads, and callbacks held by other code,
//! may outlive any possible unload. Their `cleanup` runs with the library's destructors.
use crate::hook_mapping::{HookMapping, Layer, OtherSide};
use crate::log::{self, NameFilter};
use crate::params;
use core::ffi::CStr;
use core::mem;
use core::ptr::NonNull;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ofi::abi::{FI_ENOMEM, FI_LIB_SUFFIX, fi_provider};
use ofi::error::{Error, Result};
use ofi::info::{API_VERSION, version};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
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

/// Core providers used by utility providers only if both are named.
const UNLAYERED: &[&str] = &["sockets", "net", "shm", "sm2", "efa", "psm3", "ucx", "cxi"];

/// Core providers queried only if named by programs or users (`FI_PROVIDER`): obsolete names whose
/// infos all duplicate ones of another provider.
const BY_NAME: &[&str] = &["net", "sm2"];

/// Purpose of a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProviderKind {
    /// Talks to hardware or the operating system.
    Core,
    /// Works over another one.
    Util,
    /// Watches calls on their way to others.
    Hook,
    /// Serves other providers, never applications.
    Offload,
}

/// Loaded provider, ready for queries.
#[derive(Clone, Debug)]
pub struct LoadedProvider {
    raw: NonNull<fi_provider>,
    name: String,
    version: u32,
    fi_version: u32,
    kind: ProviderKind,
    /// True if it wins over others with its name regardless of their version.
    preferred: bool,
    /// Lost against another of its name, or is switched off.
    hidden: bool,
    /// Mapping functions of a hook between its objects and the provider's (`ofi_hook_inner`,
    /// `ofi_hook_outer`).
    sides: Option<HookMapping>,
}

// SAFETY: providers are written to only by themselves, and may be called by
// any thread (fi_provider(7)).
unsafe impl Send for LoadedProvider {}
// SAFETY: as above.
unsafe impl Sync for LoadedProvider {}

impl LoadedProvider {
    /// Returns the provider of a plug-in, or of a part of this library, or the reason for its
    /// rejection.
    ///
    /// # Safety
    /// `raw` is null or points to a provider that is never freed.
    pub unsafe fn new(raw: *mut fi_provider) -> core::result::Result<Self, String> {
        let raw = NonNull::new(raw).ok_or("its entry point gave no provider")?;
        // SAFETY: by this function's contract; the name is a C string or null.
        let (prov, name) = unsafe {
            let prov = raw.as_ref();
            let name = (!prov.name.is_null()).then(|| CStr::from_ptr(prov.name));
            (prov, name.ok_or("it has no name")?.to_string_lossy().into_owned())
        };
        if name.is_empty() {
            return Err("it has no name".to_owned());
        }
        let kind = match name.as_str() {
            _ if prov.getinfo.is_none() => ProviderKind::Hook,
            name if name.starts_with("ofi_") => ProviderKind::Util,
            name if name.starts_with("off_") => ProviderKind::Offload,
            _ => ProviderKind::Core,
        };
        if kind != ProviderKind::Hook && prov.fabric.is_none() {
            return Err("it cannot open a fabric".to_owned());
        }
        if prov.fi_version < version(1, 3) {
            return Err("it was built for an interface older than 1.3".to_owned());
        }
        // Within a major version structures only grow; a later one may be anything.
        if prov.fi_version >> 16 > API_VERSION >> 16 {
            let (major, minor) = (prov.fi_version >> 16, prov.fi_version & 0xffff);
            return Err(format!(
                "it was built for interface {major}.{minor}, newer than this library"
            ));
        }
        let (version, fi_version) = (prov.version, prov.fi_version);
        Ok(Self {
            raw,
            name,
            version,
            fi_version,
            kind,
            preferred: false,
            hidden: false,
            sides: None,
        })
    }

    /// The name, as in `prov_name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the provider itself.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The version of the interface it was built for.
    pub fn fi_version(&self) -> u32 {
        self.fi_version
    }

    /// Returns the purpose of the provider.
    pub fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// Returns true if it is hidden from applications.
    pub fn hidden(&self) -> bool {
        self.hidden
    }

    /// Returns true if utility providers use it without an explicit request.
    pub fn layered(&self) -> bool {
        self.kind == ProviderKind::Core && !UNLAYERED.iter().any(|name| self.is(name))
    }

    /// Returns true if it is visible to programs naming no provider, unless `FI_PROVIDER` names it.
    pub fn is_listed(&self) -> bool {
        !BY_NAME.iter().any(|name| self.is(name))
    }

    /// Returns true if this is the provider's name, ignoring case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The provider's own structure, as others know it.
    pub fn as_ptr(&self) -> *mut fi_provider {
        self.raw.as_ptr()
    }

    /// The provider's own structure.
    pub fn raw(&self) -> &fi_provider {
        // SAFETY: stays for good by the contract of `new`.
        unsafe { self.raw.as_ref() }
    }
}

/// All providers, in the order of their queries.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: Vec<LoadedProvider>,
    /// Providers excluded by `FI_PROVIDER`.
    left_out: Vec<LoadedProvider>,
    /// Opened plug-ins, to avoid opening one twice.
    files: Vec<PathBuf>,
    /// Value of `FI_PROVIDER`.
    filter: NameFilter,
    /// Value of `FI_HOOK`, innermost first.
    hooks: Vec<String>,
    /// Directories searched for plug-ins.
    searched: Vec<PathBuf>,
    /// There was no memory for some plug-in.
    is_incomplete: bool,
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
                Some(prov) if prov.kind != ProviderKind::Hook => {
                    log::warn(format_args!("Specified provider is not a hook: {name}"));
                }
                Some(_) => {}
            }
            hook.filter(|prov| prov.kind == ProviderKind::Hook)
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
        let layer =
            |prov: &LoadedProvider| Layer { hook: prov.raw.addr().get(), sides: prov.sides };
        hooks.filter(|prov| prov.kind == ProviderKind::Hook).map(layer).collect()
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
        if self.files.contains(&real) {
            return;
        }
        match open(file) {
            Ok(mut prov) => {
                self.files.push(real);
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

    /// Adds a provider; of those with one name, the preferred or the newer is
    /// used and the others are only listed.
    fn register(&mut self, mut prov: LoadedProvider, first_wins: bool) {
        let (major, minor) = (prov.version >> 16, prov.version & 0xffff);
        let listed = self.filter.names(&prov.name);
        // A positive list is of core providers: what goes over them stays.
        if self.filter.is_negated() && listed {
            log::info(format_args!("provider {} is switched off by FI_PROVIDER", prov.name));
            self.left_out.push(prov);
            return;
        }
        if !self.filter.is_negated() && !self.filter.is_empty() && prov.kind == ProviderKind::Core {
            let asked = |name: &str| name.split(';').any(|part| prov.is(part));
            if !self.filter.iter().any(asked) {
                log::info(format_args!("provider {} is not in FI_PROVIDER", prov.name));
                self.left_out.push(prov);
                return;
            }
        }
        if let Some(old) = self.providers.iter_mut().find(|old| old.is(&prov.name) && !old.hidden) {
            let newer = prov.version > old.version && !first_wins;
            let wins = !old.preferred && (prov.preferred || newer);
            log::info(format_args!(
                "provider {} ({major}.{minor}) is there twice; the {} is used",
                prov.name,
                if wins { "one found later" } else { "one found first" }
            ));
            (old.hidden, prov.hidden) = (wins, !wins);
        }
        log::info(format_args!("registering provider: {} ({major}.{minor})", prov.name));
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

/// Reason for the rejection of a plug-in.
#[derive(Debug)]
enum Refused {
    /// Name of a missing library it is linked to.
    Needs(String),
    /// The provider found nothing usable on this host.
    Nothing,
    /// There was no memory to load it.
    NoMemory,
    /// Something is wrong with the plug-in.
    Unusable(String),
}

/// Opens a plug-in for good.
fn open(file: &Path) -> core::result::Result<LoadedProvider, Refused> {
    type Entry = unsafe extern "C" fn() -> *mut fi_provider;
    if is_cut_off(file) {
        return Err(Refused::Unusable("the file is cut off".to_owned()));
    }
    // SAFETY: loading code runs it; that is what a plug-in is, and where
    // plug-ins come from is for the administrator and the user to say.
    unsafe {
        *libc::__errno_location() = 0;
        let library = Library::open(Some(file), RTLD_NOW | RTLD_LOCAL).map_err(|error| {
            // The loader's text need not say it: there may be no memory for the text, either.
            match *libc::__errno_location() {
                FI_ENOMEM => Refused::NoMemory,
                _ => Refused::by_loader(file, root_cause(&error)),
            }
        })?;
        let entry = match library.get::<Entry>(b"fi_prov_ini\0") {
            Ok(entry) => *entry,
            Err(_) => return Err(Refused::Unusable("it has no fi_prov_ini".to_owned())),
        };
        let side = |name: &[u8]| library.get::<OtherSide>(name).ok().map(|side| *side);
        let sides = match (side(b"ofi_hook_inner\0"), side(b"ofi_hook_outer\0")) {
            (Some(inner), Some(outer)) => Some(HookMapping { inner, outer }),
            _ => None,
        };
        // From here on its code may have left traces.
        core::mem::forget(library);
        *libc::__errno_location() = 0;
        match entry() {
            // As plug-ins of this library say it.
            raw if raw.is_null() && *libc::__errno_location() == FI_ENOMEM => {
                Err(Refused::NoMemory)
            }
            raw if raw.is_null() => Err(Refused::Nothing),
            raw => {
                let prov = LoadedProvider::new(raw).map_err(Refused::Unusable)?;
                Ok(LoadedProvider { sides, ..prov })
            }
        }
    }
}

/// Returns true if a part to be mapped by the loader is behind the end of the file, as after an
/// interrupted copy. The loader does not check it, and accessing such a mapping ends the process.
/// The loader reports all other defects.
fn is_cut_off(file: &Path) -> bool {
    /// Offsets of the fields of an ELF file's header and of its program headers.
    const PHOFF: usize = mem::offset_of!(libc::Elf64_Ehdr, e_phoff);
    const PHENTSIZE: usize = mem::offset_of!(libc::Elf64_Ehdr, e_phentsize);
    const PHNUM: usize = mem::offset_of!(libc::Elf64_Ehdr, e_phnum);
    const OFFSET: usize = mem::offset_of!(libc::Elf64_Phdr, p_offset);
    const FILESZ: usize = mem::offset_of!(libc::Elf64_Phdr, p_filesz);
    let u16_at = |of: &[u8], at: usize| Some(u16::from_ne_bytes(*of.get(at..)?.first_chunk()?));
    let u32_at = |of: &[u8], at: usize| Some(u32::from_ne_bytes(*of.get(at..)?.first_chunk()?));
    let u64_at = |of: &[u8], at: usize| Some(u64::from_ne_bytes(*of.get(at..)?.first_chunk()?));
    let look = || -> Option<bool> {
        let file = File::open(file).ok()?;
        let envelope = file.metadata().ok().filter(|envelope| envelope.is_file())?;
        let mut header = [0; size_of::<libc::Elf64_Ehdr>()];
        file.read_exact_at(&mut header, 0).ok()?;
        if !header.starts_with(b"\x7fELF") || header[libc::EI_CLASS] != libc::ELFCLASS64 {
            return None;
        }
        let entry = usize::from(u16_at(&header, PHENTSIZE)?);
        let mut table = vec![0; entry * usize::from(u16_at(&header, PHNUM)?)];
        if file.read_exact_at(&mut table, u64_at(&header, PHOFF)?).is_err() {
            return Some(true);
        }
        let beyond = |segment: &[u8]| {
            let end = u64_at(segment, OFFSET)?.checked_add(u64_at(segment, FILESZ)?);
            Some(u32_at(segment, 0)? == libc::PT_LOAD && end.is_none_or(|end| end > envelope.len()))
        };
        Some(table.chunks_exact(entry.max(1)).any(|segment| beyond(segment) == Some(true)))
    };
    look() == Some(true)
}

impl Refused {
    /// Returns the reason in the loader's error message for a file.
    fn by_loader(file: &Path, why: String) -> Self {
        // One of the loader's own messages for it ends with the text of the error code.
        let no_memory = std::io::Error::from_raw_os_error(FI_ENOMEM).to_string();
        let no_memory = no_memory.split(" (os error").next().unwrap_or_default();
        if why.contains(no_memory) || why.contains("out of memory") {
            return Self::NoMemory;
        }
        // For a missing dependency of a plug-in it names the library, else the plug-in.
        match why.split_once(": cannot open shared object file: No such file") {
            Some((library, _)) if Path::new(library) != file => Self::Needs(library.to_owned()),
            _ => Self::Unusable(why),
        }
    }
}

fn root_cause(error: &libloading::Error) -> String {
    // The loader's own message; the error's text only repeats which call failed.
    std::error::Error::source(error).unwrap_or(error).to_string()
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

    #[test]
    fn missing_library_is_not_blamed_on_the_plug_in() {
        let by = |why: &str| Refused::by_loader(Path::new("/p/libverbs-fi.so"), why.to_owned());
        let missing = ": cannot open shared object file: No such file or directory";
        let needs = by(&format!("libibverbs.so.1{missing}"));
        assert!(matches!(needs, Refused::Needs(library) if library == "libibverbs.so.1"));
        for why in [&format!("/p/libverbs-fi.so{missing}"), "/p/libverbs-fi.so: invalid ELF header"]
        {
            assert!(matches!(by(why), Refused::Unusable(text) if text == *why));
        }
    }

    use core::ffi::{c_char, c_int, c_void};
    use ofi::abi::{fi_context, fi_fabric_attr, fi_info, fid_fabric};

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
        all.map(|prov| (prov.name(), prov.version >> 16, prov.hidden)).collect()
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
            unsafe { LoadedProvider::new(&mut raw) }.map(|prov| prov.name).unwrap_err()
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

    #[test]
    fn truncated_plug_in_file_is_recognized() {
        let whole = std::env::current_exe().unwrap();
        assert!(!is_cut_off(&whole) && !is_cut_off(Path::new("/")));
        let bytes = std::fs::read(&whole).unwrap();
        let cut = std::env::temp_dir().join(format!("ofi-cut-off-{}", std::process::id()));
        for (len, expected) in [(0, false), (40, false), (100, true), (5000, true)] {
            std::fs::write(&cut, &bytes[..len]).unwrap();
            assert_eq!(is_cut_off(&cut), expected, "{len} bytes");
        }
        std::fs::remove_file(&cut).unwrap();
    }

    #[test]
    fn file_without_a_plug_in_is_refused() {
        let refused = open(Path::new("/nonexistent-fi.so"));
        assert!(matches!(refused, Err(Refused::Unusable(why)) if why.contains("nonexistent")));
        assert!(!default_dirs().unwrap().is_empty());
    }
}
