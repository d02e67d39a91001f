//! Interfaces to memory of devices (FI_HMEM): the libraries of accelerators, loaded when an
//! application first asks for FI_HMEM.
#[allow(unsafe_code)]
mod cuda;
#[allow(unsafe_code)]
mod library;
#[allow(unsafe_code)]
mod rocr;
#[allow(unsafe_code)]
mod ze;

use self::library::Loaded;
use crate::abi::FI_HMEM;
use crate::device::{DeviceInterface, DeviceInterfaces};
use crate::dmabuf::DMABUF;
use crate::info::InfoRef;
use crate::param;
use crate::provider::Provider;
use std::sync::OnceLock;

/// Names of the interfaces, and the functions loading their libraries.
const KINDS: [(&str, Load); 3] = [("cuda", cuda::load), ("rocr", rocr::load), ("ze", ze::load)];

/// Loads the library of an interface. Fails, with the reason, without the library or a device.
type Load = fn(&'static Provider) -> Loaded<&'static dyn DeviceInterface>;

/// Returns true if the user permits an interface: the list of names in `FI_HMEM` has it, or there
/// is no list.
fn is_permitted(list: Option<&str>, name: &str) -> bool {
    list.is_none_or(|list| list.split([',', ';', ' ']).any(|one| one.eq_ignore_ascii_case(name)))
}

/// Returns true if hints request memory of devices.
pub fn is_requested(hints: Option<InfoRef<'_>>) -> bool {
    hints.is_some_and(|hints| hints.caps() & FI_HMEM != 0)
}

/// Returns the interfaces with a library and a device, permitted by the user (`FI_HMEM`). The first
/// call loads the libraries; log lines in the name of `provider` state the reason for an unused one.
pub fn interfaces(provider: &'static Provider) -> DeviceInterfaces {
    static LOADED: OnceLock<Vec<&'static dyn DeviceInterface>> = OnceLock::new();
    LOADED.get_or_init(|| {
        let list = param::core_string(c"hmem");
        let mut found = Vec::new();
        for (name, load) in KINDS {
            let loaded = match is_permitted(list.as_deref(), name) {
                true => load(provider),
                false => Err("excluded by FI_HMEM".to_owned()),
            };
            match loaded {
                Ok(interface) => found.push(interface),
                Err(why) => {
                    crate::log!(provider, INFO, FABRIC, "no memory of {name} devices: {why}");
                }
            }
        }
        // A device's memory may be known by its file alone.
        if !found.is_empty() {
            found.push(&DMABUF);
        }
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_missing_in_the_users_list_are_excluded() {
        for (list, permitted) in [
            (None, true),
            (Some("cuda"), true),
            (Some("system,CUDA"), true),
            (Some("system"), false),
            (Some("cudart"), false),
            (Some(""), false),
        ] {
            assert_eq!(is_permitted(list, "cuda"), permitted, "{list:?}");
        }
    }
}
