//! Hook providers, wrapping the fabrics opened by programs (fi_hook(7)).
use crate::hook_mapping::{HookMapping, Layer};
use crate::log;
use crate::registry::{LoadedProvider, Registry};
use core::ptr;
use ofi::abi::{fi_fabric_attr, fid, fid_domain, fid_fabric};
use ofi::error::{Error, Result};
use ofi::info::{InfoBuf, InfoChain, InfoRef};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Fabrics without a hook because its installation failed: the address of the hook's provider, and
/// the fabric.
static BARE: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

fn bare() -> MutexGuard<'static, BTreeSet<(usize, usize)>> {
    BARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a hook around a fabric; a hook failing to install is skipped.
///
/// By convention, a hook provider opens a "fabric" of attributes with nothing but the fabric to
/// wrap. Its context is the provider of this fabric.
///
/// # Safety
/// `fabric` is null or an open fabric of `prov`, not shared yet.
pub(super) unsafe fn install(
    hook: &LoadedProvider,
    prov: &LoadedProvider,
    fabric: &mut *mut fid_fabric,
) {
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
    let key = (hook.as_ptr().addr(), fabric.addr());
    if ret == 0 && !around.is_null() {
        // An earlier fabric may have been there.
        bare().remove(&key);
        *fabric = around;
    } else {
        bare().insert(key);
        log::info(format_args!("hook {} is left out: {:?}", hook.name(), Error::check(ret)));
    }
}

/// Returns hints with the provider's own open objects; `None` if the hints need no change.
pub(super) fn inside(registry: &Registry, hints: Option<InfoRef<'_>>) -> Result<Option<InfoBuf>> {
    let Some(hints) = hints.filter(|_| registry.is_hooked()) else { return Ok(None) };
    let fabric = hints.fabric().map_or(ptr::null_mut(), |attr| attr.fabric);
    let domain = hints.domain().map_or(ptr::null_mut(), |attr| attr.domain);
    if fabric.is_null() && domain.is_null() {
        return Ok(None);
    }
    let mut own = hints.to_owned()?;
    // The outermost is the last of the list.
    let sides: Vec<_> = registry.layers().iter().filter_map(|layer| layer.sides).rev().collect();
    let inner = |object: *mut fid| inwards(&sides, object);
    own.set_fabric(inner(fabric.cast()).cast());
    let domain = inner(domain.cast()).cast::<fid_domain>();
    own.edit_domain(|attr| attr.domain = domain);
    Ok(Some(own))
}

/// Replaces the open objects in infos by those of the program. For a hook without mapping functions
/// there are none, because the provider's own objects would not match others.
pub(super) fn outside(registry: &Registry, chain: &mut InfoChain) {
    if !registry.is_hooked() {
        return;
    }
    let layers = registry.layers();
    for info in chain.iter_mut() {
        let inner = [info.fabric().fabric.cast::<fid>(), info.domain().domain.cast()];
        let [fabric, domain] = layers.iter().fold(inner, |objects, layer| layer.outwards(objects));
        info.set_fabric(fabric.cast());
        info.edit_domain(|attr| attr.domain = domain.cast());
    }
}

/// Returns the provider's object behind one of the program's; a layer not knowing it leaves it
/// unchanged.
fn inwards(sides: &[HookMapping], object: *mut fid) -> *mut fid {
    sides.iter().fold(object, |object, sides| {
        // SAFETY: looks the address up and does not follow it.
        let inner = unsafe { (sides.inner)(object) };
        if inner.is_null() { object } else { inner }
    })
}

impl Layer {
    /// Returns a fabric and a domain of it as seen outside of this layer.
    fn outwards(&self, objects: [*mut fid; 2]) -> [*mut fid; 2] {
        let none = [ptr::null_mut(); 2];
        // SAFETY: looks the address up and does not follow it.
        let outer =
            self.sides.map_or(none, |sides| objects.map(|object| unsafe { (sides.outer)(object) }));
        if outer[0].is_null() && bare().contains(&(self.hook, objects[0].addr())) {
            objects
        } else {
            outer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook_mapping::OtherSide;

    unsafe extern "C" fn next(object: *mut fid) -> *mut fid {
        if object.is_null() { object } else { object.wrapping_byte_add(8) }
    }
    unsafe extern "C" fn unknown(_: *mut fid) -> *mut fid {
        ptr::null_mut()
    }

    fn layer(hook: usize, outer: OtherSide) -> Layer {
        Layer { hook, sides: Some(HookMapping { inner: outer, outer }) }
    }

    #[test]
    fn program_objects_map_to_inner_ones_through_supporting_layers() {
        let object = ptr::without_provenance_mut::<fid>(64);
        let sides = [next, unknown, next].map(|inner| HookMapping { inner, outer: unknown });
        assert_eq!(inwards(&sides, object).addr(), 80);
        assert!(inwards(&sides[1..2], ptr::null_mut()).is_null());
    }

    #[test]
    fn objects_unknown_to_a_layer_are_hidden_unless_it_was_bypassed() {
        let objects = [64, 128].map(ptr::without_provenance_mut::<fid>);
        let out = |layers: &[Layer]| {
            let outer = layers.iter().fold(objects, |objects, layer| layer.outwards(objects));
            outer.map(<*mut fid>::addr)
        };
        let silent = Layer { hook: 3, sides: None };
        assert_eq!(out(&[layer(1, next), layer(1, next)]), [80, 144]);
        assert_eq!(out(&[layer(1, next), layer(2, unknown), layer(1, next)]), [0, 0]);
        assert_eq!(out(&[silent]), [0, 0]);
        bare().extend([(2, 72), (3, 64), (1, 64)]);
        assert_eq!(out(&[layer(1, next), layer(2, unknown), layer(1, next)]), [80, 144]);
        assert_eq!(out(&[silent]), [64, 128]);
        assert_eq!(out(&[layer(2, unknown)]), [0, 0], "it was left out of another fabric");
    }
}
