//! Hook providers, which go around the fabrics that programs open (fi_hook(7)).
use crate::abi::{fi_fabric_attr, fid, fid_domain, fid_fabric};
use crate::core::log;
use crate::core::registry::{Provider, Registry};
use crate::error::{Error, Result};
use crate::info::{InfoBuf, InfoChain, InfoRef};
use core::ptr;

/// Answers the other side's object, or null if it knows none.
pub(super) type Side = unsafe extern "C" fn(*mut fid) -> *mut fid;

/// How a hook says which of its objects stands for which of the provider's: what
/// our plug-ins export beside their entry point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    /// The provider's object behind one of the program's.
    pub(super) inner: Side,
    /// The program's object in front of one of the provider's.
    pub(super) outer: Side,
}

/// Puts a hook around a fabric; one that cannot be installed is left out.
///
/// As ever, a hook provider opens a "fabric" of attributes that hold nothing but
/// the fabric to go around, and its context is that one's provider.
///
/// # Safety
/// `fabric` is null or an open fabric of `prov`'s, and nobody else has it yet.
pub(super) unsafe fn install(hook: &Provider, prov: &Provider, fabric: &mut *mut fid_fabric) {
    let (Some(open), false) = (hook.raw().fabric, fabric.is_null()) else { return };
    let mut attr = fi_fabric_attr {
        fabric: *fabric,
        name: ptr::null_mut(),
        prov_name: ptr::null_mut(),
        prov_version: 0,
        api_version: 0,
    };
    let mut around = *fabric;
    // SAFETY: fi_provider(7): valid attributes and a place, for the call; a
    // provider stays for good.
    let ret = unsafe { open(&mut attr, &mut around, prov.as_ptr().cast()) };
    if ret == 0 && !around.is_null() {
        *fabric = around;
    } else {
        log::info(format_args!("hook {} is left out: {:?}", hook.name(), Error::check(ret)));
    }
}

/// Hints in which open objects are the provider's; `None` if they are as they are.
pub(super) fn inside(registry: &Registry, hints: Option<InfoRef<'_>>) -> Result<Option<InfoBuf>> {
    let Some(hints) = hints.filter(|_| registry.is_hooked()) else { return Ok(None) };
    let fabric = hints.fabric().map_or(ptr::null_mut(), |attr| attr.fabric);
    let domain = hints.domain().map_or(ptr::null_mut(), |attr| attr.domain);
    if fabric.is_null() && domain.is_null() {
        return Ok(None);
    }
    let mut own = hints.to_owned()?;
    // The outermost is the last of the list.
    let sides: Vec<_> = registry.sides().into_iter().flatten().rev().collect();
    let inner = |object: *mut fid| through(sides.iter().map(|sides| sides.inner), object, true);
    own.set_fabric(inner(fabric.cast()).cast());
    let domain = inner(domain.cast()).cast::<fid_domain>();
    own.edit_domain(|attr| attr.domain = domain);
    Ok(Some(own))
}

/// Makes the open objects in infos those of the program. Where a hook does not say
/// which those are there are none: the provider's own would not go with others.
pub(super) fn outside(registry: &Registry, chain: &mut InfoChain) {
    if !registry.is_hooked() {
        return;
    }
    let sides: Option<Vec<_>> = registry.sides().into_iter().collect();
    for info in chain.iter_mut() {
        let outer = |object: *mut fid| match &sides {
            None => ptr::null_mut(),
            Some(sides) => through(sides.iter().map(|sides| sides.outer), object, false),
        };
        let (fabric, domain) = (info.fabric().fabric, info.domain().domain);
        info.set_fabric(outer(fabric.cast()).cast());
        let domain = outer(domain.cast()).cast::<fid_domain>();
        info.edit_domain(|attr| attr.domain = domain);
    }
}

/// An object as it looks on the other side of all layers; a layer that does not know it
/// leaves it, or nothing is left.
fn through(layers: impl Iterator<Item = Side>, object: *mut fid, leave: bool) -> *mut fid {
    layers.fold(object, |object, layer| {
        if object.is_null() {
            return object;
        }
        // SAFETY: looks the address up and does not follow it.
        let other = unsafe { layer(object) };
        if other.is_null() && leave { object } else { other }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn next(object: *mut fid) -> *mut fid {
        object.wrapping_byte_add(8)
    }
    unsafe extern "C" fn unknown(_: *mut fid) -> *mut fid {
        ptr::null_mut()
    }

    #[test]
    fn objects_go_through_all_layers_or_are_left_or_lost_at_one_that_does_not_know_them() {
        let object = ptr::without_provenance_mut::<fid>(64);
        let at = |layers: &[Side], leave| through(layers.iter().copied(), object, leave).addr();
        assert_eq!(at(&[next, next], false), 80);
        assert_eq!(at(&[next, unknown, next], true), 80);
        assert_eq!(at(&[next, unknown, next], false), 0);
        assert!(through([next as Side].into_iter(), ptr::null_mut(), true).is_null());
    }
}
