//! Replacement of `libfabric.so` for fuzz targets of an engine: a core with the tcp provider and
//! nothing else, no parameters and no log.
use core::ffi::{c_char, c_int, c_void};
use ofi::abi::{fi_fabric_attr, fi_info, fid_fabric};
use ofi_core::entry;
use ofi_provider::provider::Provider;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Provider opened by `engine.c`.
static PROVIDER: AtomicPtr<Provider> = AtomicPtr::new(std::ptr::null_mut());

unsafe extern "C" {
    /// Follows a script on an endpoint of the provider, see `engine.c`; `rxm`: it is ofi_rxm.
    fn ofi_fuzz_engine(script: *const u8, len: usize, rxm: c_int);
}

/// Runs one input.
pub fn run(provider: &'static Provider, script: &[u8], rxm: bool) {
    // tcp has its entry points from then on.
    tcp_fi::fi_prov_ini();
    PROVIDER.store((&raw const *provider).cast_mut(), Ordering::Relaxed);
    // SAFETY: the script is only read, and only as far as it goes.
    unsafe { ofi_fuzz_engine(script.as_ptr(), script.len(), c_int::from(rxm)) };
}

// SAFETY of all below: what they say is what the C headers do; each provider gets what C
// programs or other providers pass, which is theirs to answer for.

/// fi_getinfo of the provider under test, for `engine.c`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ofi_fuzz_getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        let provider = &*(*PROVIDER.load(Ordering::Relaxed)).as_ptr();
        provider.getinfo.unwrap()(version, node, service, flags, hints, info)
    }
}

/// The same.
#[unsafe(no_mangle)]
unsafe extern "C" fn ofi_fuzz_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        let provider = &*(*PROVIDER.load(Ordering::Relaxed)).as_ptr();
        provider.fabric.unwrap()(attr, fabric, context)
    }
}

/// fi_getinfo for ofi_rxm, with tcp as the only core provider.
#[unsafe(no_mangle)]
unsafe extern "C" fn fi_getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        let provider = &*tcp_fi::provider::TCP.as_ptr();
        provider.getinfo.unwrap()(version, node, service, flags, hints, info)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fi_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    unsafe { (*tcp_fi::provider::TCP.as_ptr()).fabric.unwrap()(attr, fabric, context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fi_freeinfo(info: *mut fi_info) {
    // SAFETY: see above.
    unsafe { entry::freeinfo(info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fi_dupinfo(info: *const fi_info) -> *mut fi_info {
    // SAFETY: see above.
    unsafe { entry::dupinfo_1_10(info) }
}

#[unsafe(no_mangle)]
extern "C" fn fi_version() -> u32 {
    entry::fi_version()
}

#[unsafe(no_mangle)]
extern "C" fn fi_log_enabled(_: *const c_void, _: c_int, _: c_int) -> c_int {
    0
}

/// Ignores all of its arguments.
#[unsafe(no_mangle)]
extern "C" fn fi_log() {}

#[unsafe(no_mangle)]
extern "C" fn fi_param_define() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn fi_param_get() -> c_int {
    -61
}
