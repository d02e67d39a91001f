//! Open objects: an info also refers to its fabric and domain by object, if the program has opened
//! them already, and hints may request these (fi_getinfo(3)).
use crate::abi::{fid_domain, fid_fabric};
use crate::fid_registry::FidRegistry;
use crate::info::{InfoChain, InfoRef};
use std::ffi::{CStr, CString};

/// Fabric or domain with its name at the open.
#[derive(Clone, PartialEq, Eq, Debug)]
enum OpenedObject {
    Fabric(*mut fid_fabric),
    Domain(*mut fid_fabric, *mut fid_domain),
}

// SAFETY: pointers that are compared and handed back, never followed.
unsafe impl Send for OpenedObject {}

/// Everything open of this plug-in.
static OPEN: FidRegistry<(CString, OpenedObject)> = FidRegistry::new();

/// Records an opened fabric with this name.
pub(super) fn add_fabric(name: &CStr, fabric: *mut fid_fabric) {
    OPEN.insert(fabric.addr(), (name.to_owned(), OpenedObject::Fabric(fabric)));
}

/// Records a domain with this name opened on a fabric.
pub(super) fn add_domain(name: &CStr, fabric: *mut fid_fabric, domain: *mut fid_domain) {
    OPEN.insert(domain.addr(), (name.to_owned(), OpenedObject::Domain(fabric, domain)));
}

/// Forgets a closed fabric.
pub(super) fn remove_fabric(fabric: *mut fid_fabric) {
    OPEN.remove(fabric.addr());
}

/// Forgets a closed domain.
pub(super) fn remove_domain(domain: *mut fid_domain) {
    OPEN.remove(domain.addr());
}

/// Drops infos of fabrics and domains other than the ones requested by object in the hints. Sets
/// the open objects in the remaining infos: the first opened one, or the one named by the hints. An
/// object no longer open requests nothing.
pub(super) fn tell(infos: &mut InfoChain, hints: Option<InfoRef<'_>>) {
    let open: Vec<_> = OPEN.all().into_iter().map(|(_, open)| open).collect();
    if open.is_empty() {
        return;
    }
    let asked_fabric = hints.and_then(InfoRef::fabric).map(|attr| attr.fabric);
    let asked_domain = hints.and_then(InfoRef::domain).map(|attr| attr.domain);
    let is_wanted_domain = |object: &OpenedObject| matches!(object, OpenedObject::Domain(_, this) if Some(*this) == asked_domain);
    // Hints that ask for a domain ask for its fabric as well.
    let wanted_fabric = open
        .iter()
        .find_map(|(_, object)| match object {
            OpenedObject::Domain(on, _) if is_wanted_domain(object) => Some(*on),
            _ => None,
        })
        .or(asked_fabric);
    let is_wanted_fabric = |object: &OpenedObject| matches!(object, OpenedObject::Fabric(this) if Some(*this) == wanted_fabric);
    let name_of = |is: &dyn Fn(&OpenedObject) -> bool| {
        open.iter().find(|(_, object)| is(object)).map(|(name, _)| name.as_c_str())
    };
    let fabric_name = name_of(&is_wanted_fabric);
    let domain_name = name_of(&is_wanted_domain);
    infos.retain(|info| {
        (fabric_name.is_none() || info.as_ref().fabric_name() == fabric_name)
            && (domain_name.is_none() || info.as_ref().domain_name() == domain_name)
    });
    for info in infos.iter_mut() {
        let first = |name: Option<&CStr>, is: &dyn Fn(&OpenedObject) -> bool| {
            let name = name?;
            open.iter().find(|(of, object)| of.as_c_str() == name && is(object)).map(|(_, o)| o)
        };
        let fabric = info.as_ref().fabric_name();
        let fabric = first(fabric, &is_wanted_fabric)
            .or_else(|| first(fabric, &|object| matches!(object, OpenedObject::Fabric(_))));
        let Some(&OpenedObject::Fabric(fabric)) = fabric else { continue };
        let domain = info.as_ref().domain_name();
        let domain = first(domain, &is_wanted_domain).or_else(|| {
            first(domain, &|object| matches!(object, OpenedObject::Domain(on, _) if *on == fabric))
        });
        let domain = match domain {
            Some(&OpenedObject::Domain(_, domain)) => domain,
            _ => std::ptr::null_mut(),
        };
        info.set_fabric(fabric);
        info.edit_domain(|attr| attr.domain = domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::InfoBuf;

    fn info(fabric: &CStr, domain: &CStr) -> InfoBuf {
        let mut info = InfoBuf::new().unwrap();
        info.set_fabric_name(fabric).unwrap();
        info.set_domain_name(domain).unwrap();
        info
    }

    fn entry_points(hints: Option<&InfoBuf>) -> Vec<(usize, usize)> {
        let mut infos: InfoChain =
            [info(c"net", c"eth0"), info(c"net", c"eth1"), info(c"other", c"eth0")]
                .into_iter()
                .collect();
        tell(&mut infos, hints.map(InfoBuf::as_ref));
        let fids = |info: InfoRef<'_>| {
            (info.fabric().unwrap().fabric as usize, info.domain().unwrap().domain as usize)
        };
        infos.iter().map(fids).collect()
    }

    #[test]
    fn infos_name_first_opened_objects_and_hints_select_others() {
        let fabric = |at: usize| at as *mut fid_fabric;
        let domain = |at: usize| at as *mut fid_domain;
        assert_eq!(entry_points(None), [(0, 0); 3]);
        add_fabric(c"net", fabric(1));
        add_fabric(c"net", fabric(2));
        assert_eq!(entry_points(None), [(1, 0), (1, 0), (0, 0)]);
        add_domain(c"eth0", fabric(2), domain(8));
        assert_eq!(entry_points(None), [(1, 0), (1, 0), (0, 0)]);
        add_domain(c"eth0", fabric(1), domain(9));
        assert_eq!(entry_points(None), [(1, 9), (1, 0), (0, 0)]);

        let mut hints = InfoBuf::new().unwrap();
        hints.set_fabric(fabric(2));
        assert_eq!(entry_points(Some(&hints)), [(2, 8), (2, 0)]);
        hints.edit_domain(|attr| attr.domain = domain(8));
        assert_eq!(entry_points(Some(&hints)), [(2, 8)]);
        // Without its fabric, a domain is asked for there all the same.
        hints.set_fabric(std::ptr::null_mut());
        add_fabric(c"other", fabric(3));
        assert_eq!(entry_points(Some(&hints)), [(2, 8)]);
        remove_fabric(fabric(3));
        // A fabric that was closed is asked for no more.
        hints.set_fabric(fabric(2));
        remove_domain(domain(8));
        remove_fabric(fabric(2));
        assert_eq!(entry_points(Some(&hints)), [(1, 9), (1, 0), (0, 0)]);
        remove_domain(domain(9));
        remove_fabric(fabric(1));
        assert_eq!(entry_points(None), [(0, 0); 3]);
    }
}
