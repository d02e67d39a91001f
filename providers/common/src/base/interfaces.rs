//! Network interfaces of a plug-in with IP addresses, as chosen by its user (`FI_TCP_IFACE`).
use crate::log;
use crate::param;
use crate::provider::Provider;
use ofi::info::{InterfaceChoice, Interfaces};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERFACES: OnceLock<Interfaces> = OnceLock::new();

/// Core provider with the user's choice, of a utility provider.
static CORE: OnceLock<&Provider> = OnceLock::new();

/// Parameter with the user's choice.
const PARAMETER: &core::ffi::CStr = c"iface";

/// Returns the interfaces of this plug-in: all, unless [`choose`] or [`choose_as`] was called
/// before.
pub fn interfaces() -> &'static Interfaces {
    match CORE.get() {
        Some(core) => choose(core),
        None => INTERFACES.get_or_init(Interfaces::default),
    }
}

/// Chooses the interfaces as the user of this core provider did. The parameter is read when it is
/// needed, after the core provider has declared it.
pub fn choose_as(core: &'static Provider) {
    CORE.get_or_init(|| core);
}

/// Returns the interfaces chosen by the user of this provider, read once; declares the parameter to
/// the core at first use.
pub fn choose(prov: &'static Provider) -> &'static Interfaces {
    INTERFACES.get_or_init(|| {
        let help =
            c"network interfaces to use, with commas: names, beginnings of names (eth*) and \
                     networks (192.0.2.0/24); ^ excludes; original: all, in the order of upstream \
                     libfabric (default: all, the one with the default route first)";
        let text = param::string(prov, PARAMETER, help).unwrap_or_default();
        let help =
            c"report the PCI addresses of network cards (fi_nic(3)), by which MPI libraries \
                     choose the nearest one; MPICH 5.0 of PyPI aborts then (no)";
        let has_pci = param::boolean(prov, c"nic_pci", help).unwrap_or(false);
        let choice = InterfaceChoice::parse(param::variable(prov, PARAMETER), &text);
        Interfaces::new(choice, has_pci)
    })
}

/// Logs a problem of the user's choice: a warning the first time, later and for the variable of
/// another provider a line at level info.
pub fn warn(prov: &'static Provider, line: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let is_own = param::variable(prov, PARAMETER) == param::variable_of(prov, PARAMETER);
    if is_own && !WARNED.swap(true, Ordering::Relaxed) {
        log!(prov, WARN, FABRIC, "{line}");
    } else {
        log!(prov, INFO, FABRIC, "{line}");
    }
}
