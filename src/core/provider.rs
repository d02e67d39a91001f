//! A provider as the registry knows it: its own structure, checked (fi_provider(7)).
use crate::hook_mapping::{HookMapping, Layer};
use core::ffi::CStr;
use core::ptr::NonNull;
use ofi::abi::fi_provider;
use ofi::info::{API_VERSION, version};

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
    pub(crate) preferred: bool,
    /// Lost against another of its name, or is switched off.
    pub(crate) hidden: bool,
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

    /// Adds the mapping functions of a hook.
    pub(crate) fn with_sides(self, sides: Option<HookMapping>) -> Self {
        Self { sides, ..self }
    }

    /// Returns the hook as a layer of objects.
    pub(crate) fn layer(&self) -> Layer {
        Layer { hook: self.raw.addr().get(), sides: self.sides }
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
