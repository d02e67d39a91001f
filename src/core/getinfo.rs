//! The `fi_getinfo` pipeline: the selection of providers to query, the filter for their answers,
//! and the reasons for rejections (fi_getinfo(3)).
//!
//! A utility provider such as `ofi_rxm` works over core providers. It is queried like any other. It
//! finds its core providers by calling the exported `fi_getinfo` again with [`CORE_PROV_ONLY`] in
//! its flags and, if the application named one, the core provider's name in its hints. The
//! resulting infos keep this name, and the core appends the utility provider's own. So a utility
//! provider needs nothing of this library but its exports.
use crate::log::{self, Captured, NameFilter};
use crate::registry::{self, LoadedProvider, ProviderKind, Registry};
use crate::{hooks, params};
use core::ffi::{CStr, c_void};
use core::ptr;
use ofi::abi::{FI_PROV_ATTR_ONLY, fi_ep_type, fi_fabric_attr, fi_info, fid_fabric};
use ofi::error::{Error, Result};
use ofi::info::{
    API_VERSION, CORE_PROV_ONLY, GETINFO_HIDDEN, GETINFO_INTERNAL, InfoBuf, InfoChain, InfoQuery,
    InfoRef, OFFLOAD_PROV_ONLY, tostr, version,
};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

const INTERNAL: u64 = GETINFO_INTERNAL | CORE_PROV_ONLY | GETINFO_HIDDEN | OFFLOAD_PROV_ONLY;

/// Providers requested by `prov_name` in hints: `core`, `util`, `core;util`, and with `^` in front
/// the excluded ones.
#[derive(Debug, Default, PartialEq, Eq)]
struct WantedProviders {
    names: Vec<String>,
    not: Vec<String>,
}

impl WantedProviders {
    fn parse(list: &str) -> Self {
        let mut wanted = Self::default();
        for name in list.split(';').map(str::trim).filter(|name| !name.is_empty()) {
            match name.strip_prefix('^') {
                Some(name) => wanted.not.push(name.to_owned()),
                None => wanted.names.push(name.to_owned()),
            }
        }
        wanted
    }

    fn has(list: &[String], prov: &LoadedProvider) -> bool {
        list.iter().any(|name| prov.is(name))
    }

    /// Returns true if a provider has to be queried.
    fn accepts(&self, registry: &Registry, prov: &LoadedProvider, flags: u64) -> bool {
        if Self::has(&self.not, prov) || prov.kind() == ProviderKind::Hook {
            return false;
        }
        if prov.hidden() && flags & GETINFO_HIDDEN == 0 {
            return false;
        }
        let named = Self::has(&self.names, prov);
        if flags & OFFLOAD_PROV_ONLY != 0 {
            return prov.kind() == ProviderKind::Offload && (self.names.is_empty() || named);
        }
        if flags & CORE_PROV_ONLY != 0 {
            return prov.kind() == ProviderKind::Core
                && if self.names.is_empty() { prov.layered() } else { named };
        }
        match (prov.kind(), &self.names[..]) {
            (ProviderKind::Hook | ProviderKind::Offload, _) => false,
            (_, []) => prov.is_listed() || registry.is_asked_for(prov),
            (ProviderKind::Core, [_]) => named,
            // A pair of names is of a core and what goes over it, never the core alone.
            (ProviderKind::Core, _) => false,
            // The name may be of this one, or of a core provider under it.
            (ProviderKind::Util, [name]) => {
                named || registry.find(name).is_none_or(LoadedProvider::layered)
            }
            (ProviderKind::Util, [.., _, last]) => prov.is(last),
        }
    }
}

/// True after the application got an answer: later rejections are for hints it only tries, such as
/// the list tried by MPICH.
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// True after the reason for an empty answer was logged once.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// `fi_getinfo`. Fails with `-FI_ENOSYS` if the version is newer than this library. Fails with
/// `-FI_ENODATA` if no provider matches; one log line contains the reason.
pub fn getinfo(request: InfoQuery<'_>) -> Result<InfoChain> {
    super::start()?;
    if request.version > API_VERSION {
        log::warn(format_args!(
            "fi_getinfo: asked for version {}, but this library has {}",
            version_text(request.version),
            version_text(API_VERSION)
        ));
        return Err(Error::NOSYS);
    }
    let registry = registry::current();
    if request.flags == FI_PROV_ATTR_ONLY {
        return names_only(&registry, request.version);
    }
    let hints = hooks::inside(&registry, request.hints)?;
    let request = InfoQuery {
        hints: hints.as_ref().map_or(request.hints, |own| Some(own.as_ref())),
        ..request
    };
    if request.flags & INTERNAL != 0 {
        // Log lines of providers are captured by the caller with the application's query.
        let mut chain = ask_all(&registry, request, &mut Vec::new())?;
        hooks::outside(&registry, &mut chain);
        return some(chain);
    }

    let mut reasons = Vec::new();
    let mut chain = ask_all(&registry, request, &mut reasons)?;
    hooks::outside(&registry, &mut chain);
    filter(&registry, request, &mut chain, &mut reasons);
    for info in chain.iter() {
        log::explain(format_args!("{}: accepted", describe(info)));
    }
    if chain.is_empty() {
        // A plug-in's query during start-up says nothing about those of the application.
        if !super::is_starting() {
            summarise(&registry, request, &reasons);
        }
    } else {
        ANSWERED.store(true, Ordering::Relaxed);
    }
    some(tcp_first(chain))
}

fn some(chain: InfoChain) -> Result<InfoChain> {
    if chain.is_empty() { Err(Error::NODATA) } else { Ok(chain) }
}

fn version_text(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// Returns a short description of an info, distinguishing it from others.
fn describe(info: InfoRef<'_>) -> String {
    let text = |name: Option<&CStr>| {
        name.map_or("(no name)".into(), |name| name.to_string_lossy().into_owned())
    };
    format!(
        "{}: {} {} {}",
        text(info.prov_name()),
        tostr::ep_type(info.ep_type().raw()),
        text(info.domain_name()),
        text(info.fabric_name())
    )
}

/// Returns an info with name and version only for each provider.
fn names_only(registry: &Registry, version: u32) -> Result<InfoChain> {
    let mut chain = InfoChain::new();
    for prov in registry.providers() {
        let mut info = InfoBuf::new()?;
        info.set_prov_name(&c_string(prov.name())?)?;
        info.set_versions(prov.version(), version);
        chain.push(info);
    }
    some(chain)
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::INVAL)
}

fn ask_all(
    registry: &Registry,
    request: InfoQuery<'_>,
    reasons: &mut Vec<String>,
) -> Result<InfoChain> {
    let asked = request.hints.and_then(InfoRef::prov_name);
    let asked = asked.map(CStr::to_string_lossy).unwrap_or_default();
    let wanted = WantedProviders::parse(&asked);
    for name in &wanted.names {
        if registry.find(name).is_none() {
            let known: Vec<_> = registry.providers().iter().map(LoadedProvider::name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            reason(reasons, format!("there is no provider {name} (there are: {known})"));
        }
    }
    let mut chain = InfoChain::new();
    let hidden = request.flags & GETINFO_HIDDEN != 0;
    let left_out = if hidden { registry.left_out() } else { &[] };
    for prov in registry.providers().iter().chain(left_out) {
        if !wanted.accepts(registry, prov, request.flags) {
            continue;
        }
        if prov.fi_version() < request.version {
            reason(
                reasons,
                format!(
                    "{}: built for version {}, the application asks for {}",
                    prov.name(),
                    version_text(prov.fi_version()),
                    version_text(request.version)
                ),
            );
            continue;
        }
        // Which core of a utility provider refused is in the core's lines.
        let internal = request.flags & INTERNAL != 0;
        let (answer, lines) = if internal {
            (ask(prov, request), Vec::new())
        } else {
            log::capturing(|| ask(prov, request))
        };
        match answer {
            Ok(mut infos) => {
                for info in infos.iter_mut() {
                    name(prov, request.version, info)?;
                }
                chain.append(infos);
            }
            Err(Error::NOMEM) => return Err(Error::NOMEM),
            Err(error) if !internal => {
                let text = format!("{}: getinfo returned {error:?}", prov.name());
                if WantedProviders::has(&wanted.names, prov) && error != Error::NODATA {
                    log::warn(format_args!("{text}"));
                }
                log::explain(format_args!("{text}"));
                if lines.is_empty() {
                    reasons.push(text);
                }
            }
            Err(_) => {}
        }
        reasons.extend(lines.into_iter().map(|Captured { prov, text }| format!("{prov}: {text}")));
    }
    Ok(chain)
}

/// Stores a reason, and logs it at once for interested users.
fn reason(reasons: &mut Vec<String>, text: String) {
    log::explain(format_args!("{text}"));
    reasons.push(text);
}

fn ask(prov: &LoadedProvider, request: InfoQuery<'_>) -> Result<InfoChain> {
    let getinfo = prov.raw().getinfo.ok_or(Error::NOSYS)?;
    let string = |string: Option<&CStr>| string.map_or(ptr::null(), CStr::as_ptr);
    let hints = request.hints.map_or(ptr::null(), InfoRef::as_ptr);
    let mut list: *mut fi_info = ptr::null_mut();
    // SAFETY: fi_provider(7): strings, hints and the place of a list, for the
    // call; the list that comes back is ours.
    unsafe {
        let (node, service) = (string(request.node), string(request.service));
        Error::check(getinfo(request.version, node, service, request.flags, hints, &mut list))?;
        InfoChain::from_raw(list)
    }
}

/// Sets the fields left to the core by a provider: its name and the versions.
fn name(prov: &LoadedProvider, version: u32, info: &mut InfoBuf) -> Result {
    let lower = info.as_ref().prov_name().map(|name| name.to_string_lossy().into_owned());
    let full = match lower {
        None => prov.name().to_owned(),
        Some(lower) if prov.kind() != ProviderKind::Util => lower,
        Some(lower) if lower.rsplit(';').next().is_some_and(|last| prov.is(last)) => lower,
        Some(lower) => format!("{lower};{}", prov.name()),
    };
    info.set_prov_name(&c_string(&full)?)?;
    info.set_versions(prov.version(), version);
    Ok(())
}

/// Filters the answers by the application's names, `FI_PROVIDER` and `FI_ADDR_FORMAT`.
fn filter(
    registry: &Registry,
    request: InfoQuery<'_>,
    chain: &mut InfoChain,
    reasons: &mut Vec<String>,
) {
    let formats = NameFilter::parse(&params::core_string(c"addr_format").unwrap_or_default());
    let want_fabric = request.hints.and_then(InfoRef::fabric_name);
    let want_domain = request.hints.and_then(InfoRef::domain_name);
    chain.retain(|info| {
        let info = info.as_ref();
        let why = not_admitted(registry.filter(), info)
            .or_else(|| other_name("domain_attr->name", want_domain, info.domain_name()))
            .or_else(|| other_name("fabric_attr->name", want_fabric, info.fabric_name()))
            .or_else(|| {
                let format = tostr::addr_format(info.addr_format());
                let admits = formats.admits(format);
                (!admits).then(|| format!("{format} is not in FI_ADDR_FORMAT"))
            });
        if let Some(why) = &why {
            reason(reasons, format!("{} refused: {why}", describe(info)));
        }
        why.is_none()
    });
}

/// Returns the reason for the exclusion of an info by `FI_PROVIDER`. A list names layered providers
/// in full, or by their core provider.
fn not_admitted(filter: &NameFilter, info: InfoRef<'_>) -> Option<String> {
    let full = info.prov_name()?.to_string_lossy();
    let core = full.split(';').next().unwrap_or_default();
    let listed = filter.names(&full) || (!filter.is_negated() && filter.names(core));
    let out = !filter.is_empty() && listed == filter.is_negated();
    out.then(|| format!("FI_PROVIDER leaves out {full}"))
}

fn other_name(what: &str, wanted: Option<&CStr>, have: Option<&CStr>) -> Option<String> {
    let (wanted, have) = (wanted?, have.unwrap_or(c""));
    let same = wanted.to_bytes().eq_ignore_ascii_case(have.to_bytes());
    (!same).then(|| {
        format!("{what}: wanted {}, have {}", wanted.to_string_lossy(), have.to_string_lossy())
    })
}

/// Moves connectionless tcp before rxm over tcp, because it is better, although rxm is queried
/// first.
fn tcp_first(chain: InfoChain) -> InfoChain {
    let is = |info: &InfoBuf, name: &CStr| info.as_ref().prov_name() == Some(name);
    let mut infos: Vec<_> = chain.into_iter().collect();
    if let Some(at) = infos.iter().position(|info| is(info, c"tcp;ofi_rxm")) {
        let behind = infos.split_off(at);
        let (first, rest): (Vec<_>, Vec<_>) = behind
            .into_iter()
            .partition(|info| is(info, c"tcp") && info.as_ref().ep_type() == fi_ep_type::FI_EP_RDM);
        infos.extend(first.into_iter().chain(rest));
    }
    infos.into_iter().collect()
}

/// Logs one line with the reasons for an empty answer. It is a warning if nothing has worked yet,
/// unless the application searches for hardware not available everywhere.
fn summarise(registry: &Registry, request: InfoQuery<'_>, reasons: &[String]) {
    // Maximum bytes of the text in a log line.
    const MOST: usize = 800;
    let mut text = String::new();
    let mut left_out = 0;
    let mut seen: Vec<&str> = Vec::new();
    for reason in reasons {
        if seen.contains(&reason.as_str()) {
            continue;
        }
        seen.push(reason);
        if text.len() + reason.len() > MOST {
            left_out += 1;
        } else {
            text.push_str(if text.is_empty() { "" } else { "; " });
            text.push_str(reason);
        }
    }
    if left_out > 0 {
        text.push_str(&format!("; and {left_out} more"));
    }
    if registry.providers().is_empty() {
        text = format!("no provider was found in {}", registry.paths());
    } else if text.is_empty() {
        text = "no provider was asked".to_owned();
    }
    let version = version_text(request.version);
    let asked = request.hints.and_then(InfoRef::prov_name).map(CStr::to_string_lossy);
    let absent = |asked: &str| {
        WantedProviders::parse(asked).names.iter().any(|n| registry.find(n).is_none())
    };
    let tries = ANSWERED.load(Ordering::Relaxed) || asked.is_some_and(|asked| absent(&asked));
    let text =
        format!("fi_getinfo({version}): no data available: {text} (fi_info --explain shows all)");
    if tries {
        log::info(format_args!("{text}"));
    } else {
        match REFUSED.swap(true, Ordering::Relaxed) {
            false => log::tell(format_args!("{text}")),
            true => log::warn(format_args!("{text}")),
        }
    }
}

/// `fi_fabric`. Fails with `-FI_EINVAL` without names, and with `-FI_ENODEV` for an unavailable
/// provider.
///
/// # Safety
/// `attr` is valid, its names are null or C strings, and `fabric` is writable.
pub unsafe fn fabric(
    attr: *mut fi_fabric_attr,
    fabric: &mut *mut fid_fabric,
    context: *mut c_void,
) -> Result {
    // SAFETY: by this function's contract.
    let (prov_name, api_version) = unsafe {
        let attr = attr.as_ref().ok_or(Error::INVAL)?;
        if attr.prov_name.is_null() || attr.name.is_null() {
            return Err(Error::INVAL);
        }
        (CStr::from_ptr(attr.prov_name).to_string_lossy().into_owned(), attr.api_version)
    };
    super::start()?;
    let registry = registry::current();
    // The top layer opens those below it.
    let top = prov_name.rsplit(';').next().unwrap_or_default();
    let prov = registry
        .find_to_open(top)
        .filter(|prov| prov.kind() != ProviderKind::Hook)
        .ok_or(Error::NODEV)?;
    let open = prov.raw().fabric.ok_or(Error::NODEV)?;
    // SAFETY: fi_fabric(3): attributes and the place for the answer, for the call.
    unsafe {
        Error::check(open(attr, fabric, context))?;
        if prov.fi_version() >= version(1, 5) {
            if let Some(fabric) = fabric.as_mut() {
                fabric.api_version = api_version;
            }
        }
    }
    for hook in registry.hooks() {
        // SAFETY: the fabric was just opened and is not shared yet.
        unsafe { hooks::install(hook, prov, fabric) };
    }
    log::info(format_args!("opened fabric of provider {prov_name}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(prov: &CStr, ep: fi_ep_type) -> InfoBuf {
        let mut info = InfoBuf::new().unwrap();
        info.set_prov_name(prov).unwrap();
        info.edit_ep(|attr| attr.r#type = ep.into());
        info
    }

    fn accepts(names: &str, prov: &CStr, flags: u64) -> bool {
        let prov: &'static CStr = Box::leak(prov.into());
        let prov = registry::tests::provider(registry::tests::raw(prov, 1));
        WantedProviders::parse(names).accepts(&Registry::default(), &prov, flags)
    }

    #[test]
    fn a_utility_provider_is_asked_with_its_core_and_never_by_itself() {
        assert!(accepts("", c"tcp", 0) && accepts("", c"ofi_rxm", 0));
        assert!(
            accepts("tcp", c"tcp", 0)
                && accepts("tcp", c"ofi_rxm", 0)
                && !accepts("tcp", c"udp", 0)
        );
        assert!(accepts("tcp;ofi_rxm", c"ofi_rxm", 0) && !accepts("tcp;ofi_rxm", c"tcp", 0));
        assert!(!accepts("udp;ofi_rxd", c"ofi_rxm", 0));
        assert!(accepts("ofi_rxm", c"ofi_rxm", 0) && !accepts("ofi_rxm", c"tcp", 0));
        assert!(!accepts("", c"off_coll", 0) && accepts("", c"off_coll", OFFLOAD_PROV_ONLY));
    }

    #[test]
    fn core_only_query_goes_to_cores_allowing_it() {
        assert!(accepts("", c"tcp", CORE_PROV_ONLY) && !accepts("", c"shm", CORE_PROV_ONLY));
        assert!(accepts("shm", c"shm", CORE_PROV_ONLY));
        assert!(!accepts("", c"ofi_rxm", CORE_PROV_ONLY));
        assert!(!accepts("tcp;^tcp", c"tcp", CORE_PROV_ONLY));
    }

    #[test]
    fn names_of_layers_add_up() {
        let util = registry::tests::provider(registry::tests::raw(c"ofi_rxm", 206));
        let mut layered = info(c"tcp", fi_ep_type::FI_EP_RDM);
        for _ in 0..2 {
            name(&util, version(1, 17), &mut layered).unwrap();
            assert_eq!(layered.as_ref().prov_name(), Some(c"tcp;ofi_rxm"));
        }
        assert_eq!(layered.fabric().prov_version, version(206, 0));
        assert_eq!(layered.as_ref().api_version(), version(1, 17));
    }

    #[test]
    fn connectionless_tcp_comes_before_rxm_over_tcp() {
        use fi_ep_type::{FI_EP_MSG, FI_EP_RDM};
        let chain = [
            (c"verbs", FI_EP_MSG),
            (c"tcp;ofi_rxm", FI_EP_RDM),
            (c"tcp", FI_EP_MSG),
            (c"tcp", FI_EP_RDM),
        ];
        let chain = tcp_first(chain.iter().map(|(prov, ep)| info(prov, *ep)).collect());
        let order: Vec<_> = chain.iter().map(|info| info.prov_name().unwrap()).collect();
        assert_eq!(order, [c"verbs", c"tcp", c"tcp;ofi_rxm", c"tcp"]);
        assert_eq!(chain.iter().nth(1).unwrap().ep_type(), FI_EP_RDM);
    }

    #[test]
    fn fi_provider_names_layers_in_full_or_by_their_core() {
        let out = |filter: &str, prov| {
            let info = info(prov, fi_ep_type::FI_EP_RDM);
            not_admitted(&NameFilter::parse(filter), info.as_ref()).is_some()
        };
        assert!(!out("tcp", c"tcp") && !out("tcp", c"tcp;ofi_rxm"));
        assert!(out("tcp;ofi_rxm", c"tcp") && !out("tcp;ofi_rxm", c"tcp;ofi_rxm"));
        assert!(out("^tcp;ofi_rxm", c"tcp;ofi_rxm") && !out("^tcp;ofi_rxm", c"tcp"));
        assert!(!out("", c"tcp"));
    }

    #[test]
    fn names_in_hints_are_compared_in_any_case() {
        assert_eq!(other_name("x", Some(c"LO"), Some(c"lo")), None);
        assert_eq!(other_name("x", None, Some(c"lo")), None);
        assert_eq!(other_name("x", Some(c"lo"), None).unwrap(), "x: wanted lo, have ");
    }

    unsafe extern "C" fn two_infos(
        _: u32,
        _: *const core::ffi::c_char,
        _: *const core::ffi::c_char,
        _: u64,
        _: *const fi_info,
        list: *mut *mut fi_info,
    ) -> core::ffi::c_int {
        let infos = [c"eth0", c"lo"].map(|domain| {
            let mut info = InfoBuf::new().unwrap();
            info.set_domain_name(domain).unwrap();
            info
        });
        // SAFETY: the core's place for the list.
        unsafe { *list = InfoChain::from_iter(infos).into_raw() };
        0
    }

    /// Returns a registry with `udp`, rejecting everything, and `tcp`, offering two infos.
    fn registry(filter: &str) -> Registry {
        let mut tcp = registry::tests::raw(c"tcp", 206);
        tcp.getinfo = Some(two_infos);
        let udp = registry::tests::raw(c"udp", 206);
        let found = vec![registry::tests::provider(tcp), registry::tests::provider(udp)];
        registry::tests::registry(filter, found, false)
    }

    fn ask_registry(
        registry: &Registry,
        edit: impl FnOnce(&mut InfoBuf),
    ) -> (Vec<String>, Vec<String>) {
        let mut hints = InfoBuf::new().unwrap();
        edit(&mut hints);
        let hints = Some(hints.as_ref());
        let version = version(1, 5);
        let request = InfoQuery { version, node: None, service: None, flags: 0, hints };
        let mut reasons = Vec::new();
        let mut chain = ask_all(registry, request, &mut reasons).unwrap();
        filter(registry, request, &mut chain, &mut reasons);
        (chain.iter().map(describe).collect(), reasons)
    }

    #[test]
    fn error_of_one_provider_does_not_hide_infos_of_another() {
        let (infos, reasons) = ask_registry(&registry(""), |_| ());
        assert_eq!(infos, ["tcp: FI_EP_UNSPEC eth0 (no name)", "tcp: FI_EP_UNSPEC lo (no name)"]);
        assert_eq!(reasons, ["udp: getinfo returned -61 (No data available)"]);
    }

    #[test]
    fn infos_excluded_by_name_are_listed_with_reasons() {
        let registry = registry("");
        let (infos, reasons) = ask_registry(&registry, |hints| {
            hints.set_prov_name(c"tcp").unwrap();
            hints.set_domain_name(c"LO").unwrap();
        });
        assert_eq!(infos, ["tcp: FI_EP_UNSPEC lo (no name)"]);
        assert_eq!(
            reasons,
            ["tcp: FI_EP_UNSPEC eth0 (no name) refused: domain_attr->name: wanted LO, have eth0"]
        );
        let (infos, reasons) =
            ask_registry(&registry, |hints| hints.set_prov_name(c"verbs").unwrap());
        assert!(infos.is_empty());
        assert_eq!(reasons, ["there is no provider verbs (there are: udp, tcp)"]);
    }

    #[test]
    fn former_provider_name_is_reported_only_if_requested() {
        let registry = |filter: &str| {
            let raws = [c"net", c"tcp"].map(|name| {
                let mut raw = registry::tests::raw(name, 206);
                raw.getinfo = Some(two_infos);
                registry::tests::provider(raw)
            });
            registry::tests::registry(filter, raws.into(), false)
        };
        let infos = |filter: &str, asked: &CStr| {
            ask_registry(&registry(filter), |hints| hints.set_prov_name(asked).unwrap()).0
        };
        let both =
            |name: &str| ["eth0", "lo"].map(|on| format!("{name}: FI_EP_UNSPEC {on} (no name)"));
        assert_eq!(infos("", c""), both("tcp"));
        assert_eq!(infos("", c"net"), both("net"));
        assert_eq!(infos("net", c""), both("net"));
        assert_eq!(infos("^net", c""), both("tcp"));
    }

    #[test]
    fn a_provider_older_than_the_application_is_not_asked() {
        let registry = registry("");
        let request =
            InfoQuery { version: version(1, 6), node: None, service: None, flags: 0, hints: None };
        let mut reasons = Vec::new();
        assert!(ask_all(&registry, request, &mut reasons).unwrap().is_empty());
        assert_eq!(reasons[0], "udp: built for version 1.5, the application asks for 1.6");
    }

    #[test]
    fn the_list_of_names_has_every_provider_and_its_version() {
        let chain = names_only(&registry(""), version(1, 5)).unwrap();
        let names: Vec<_> = chain.iter().map(|info| info.prov_name().unwrap()).collect();
        assert_eq!(names, [c"udp", c"tcp"]);
        assert_eq!(names_only(&Registry::default(), 0).unwrap_err(), Error::NODATA);
    }
}
