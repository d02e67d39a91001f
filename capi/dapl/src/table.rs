//! Table of a provider's calls for `libdat2`, and the two functions found by name.
//!
//! Pointers of the application are converted to values here, and results to numbers. Handles are
//! only compared with the open ones. No panic passes this module.
mod adaptors;
mod call;
mod connect;
mod dispatchers;
mod endpoints;
mod known;
mod memory;

use crate::layout::*;
use std::ffi::{CStr, c_char, c_void};
use std::panic::catch_unwind;

use adaptors::*;
use connect::*;
use dispatchers::*;
use endpoints::*;
use known::{KnownAdaptor, known};
use memory::*;

/// Entry of an unused slot.
unsafe extern "C" fn none() -> u32 {
    CLASS_ERROR | NOT_IMPLEMENTED
}

/// Pointer to a function, or another value of the table.
#[repr(transparent)]
struct TableSlot(*const c_void);
// SAFETY: functions, and strings that stay.
unsafe impl Sync for TableSlot {}

macro_rules! table {
    ($($name:ident = $function:expr),* $(,)?) => {
        /// The slots after the first two, by the names of `struct dat_provider`.
        #[cfg(test)]
        pub(crate) const SLOTS: &[&str] = &[$(stringify!($name)),*];
        static FUNCTIONS: &[TableSlot] = &[$(TableSlot($function as *const c_void)),*];
    };
}

table! {
    ia_open_func = ia_open,
    ia_query_func = ia_query,
    ia_close_func = ia_close,
    set_consumer_context_func = set_consumer_context,
    get_consumer_context_func = get_consumer_context,
    get_handle_type_func = get_handle_type,
    cno_create_func = cno_create,
    cno_modify_agent_func = cno_modify_agent,
    cno_query_func = cno_query,
    cno_free_func = cno_free,
    cno_wait_func = cno_wait,
    cr_query_func = cr_query,
    cr_accept_func = cr_accept,
    cr_reject_func = cr_reject,
    cr_handoff_func = none,
    evd_create_func = evd_create,
    evd_query_func = evd_query,
    evd_modify_cno_func = evd_modify_cno,
    evd_enable_func = evd_enable,
    evd_disable_func = evd_disable,
    evd_wait_func = evd_wait,
    evd_resize_func = evd_resize,
    evd_post_se_func = evd_post_se,
    evd_dequeue_func = evd_dequeue,
    evd_free_func = evd_free,
    ep_create_func = ep_create,
    ep_query_func = ep_query,
    ep_modify_func = ep_modify,
    ep_connect_func = ep_connect,
    ep_dup_connect_func = ep_dup_connect,
    ep_disconnect_func = ep_disconnect,
    ep_post_send_func = ep_post_send,
    ep_post_recv_func = ep_post_recv,
    ep_post_rdma_read_func = ep_post_rdma_read,
    ep_post_rdma_write_func = ep_post_rdma_write,
    ep_get_status_func = ep_get_status,
    ep_free_func = ep_free,
    lmr_create_func = lmr_create,
    lmr_query_func = lmr_query,
    lmr_free_func = lmr_free,
    rmr_create_func = rmr_create,
    rmr_query_func = rmr_query,
    rmr_bind_func = rmr_bind,
    rmr_free_func = rmr_free,
    psp_create_func = psp_create,
    psp_query_func = psp_query,
    psp_free_func = psp_free,
    rsp_create_func = rsp_create,
    rsp_query_func = rsp_query,
    rsp_free_func = rsp_free,
    pz_create_func = pz_create,
    pz_query_func = pz_query,
    pz_free_func = pz_free,
    psp_create_any_func = psp_create_any,
    ep_reset_func = ep_reset,
    evd_set_unwaitable_func = evd_set_unwaitable,
    evd_clear_unwaitable_func = evd_clear_unwaitable,
    lmr_sync_rdma_read_func = lmr_sync,
    lmr_sync_rdma_write_func = lmr_sync,
    ep_create_with_srq_func = ep_create_with_srq,
    ep_recv_query_func = none,
    ep_set_watermark_func = none,
    srq_create_func = srq_create,
    srq_free_func = srq_free,
    srq_post_recv_func = srq_post_recv,
    srq_query_func = srq_query,
    srq_resize_func = srq_resize,
    srq_set_lw_func = srq_set_lw,
    csp_create_func = none,
    csp_query_func = none,
    csp_free_func = none,
    ep_common_connect_func = none,
    rmr_create_for_ep_func = none,
    ep_post_send_with_invalidate_func = none,
    ep_post_rdma_read_to_rmr_func = none,
    cno_fd_create_func = none,
    cno_trigger_func = none,
    ia_ha_related_func = none,
    handle_extendedop_func = none,
}

type RegistryCall = unsafe extern "C" fn(*const c_void, *const DatProviderInfo) -> u32;

/// Returns a function of the DAT library, the loader of this one.
fn registry(name: &CStr) -> Option<RegistryCall> {
    // SAFETY: a name with its end. The library stays, as it is the caller.
    let mut found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        // SAFETY: as above; it is there already.
        let library =
            unsafe { libc::dlopen(c"libdat2.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: as above.
        found = unsafe { libc::dlsym(library, name.as_ptr()) };
    }
    // SAFETY: both functions of the registry have this type (dat_registry.h).
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, RegistryCall>(found) })
}

/// Called by the DAT library for each line of dat.conf whose adaptor an application opens.
///
/// # Safety
/// The description belongs to the registry, and the instance data is a string or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dat_provider_init(
    info: *const DatProviderInfo,
    instance: *const c_char,
) {
    let _ = catch_unwind(|| {
        if info.is_null() {
            return;
        }
        // SAFETY: the caller's; both strings have ends.
        let (name, instance, thread_safe) = unsafe {
            let instance = if instance.is_null() { c"" } else { CStr::from_ptr(instance) };
            (CStr::from_ptr((*info).ia_name.as_ptr()), instance, (*info).is_thread_safe != 0)
        };
        let mut known = known();
        let text = name.to_string_lossy().into_owned();
        let instance = instance.to_string_lossy().trim_matches('"').to_string();
        let table = match known.iter_mut().find(|of| of.name == text) {
            Some(of) => {
                (of.instance, of.thread_safe) = (instance, thread_safe);
                of.table
            }
            None => {
                // objects that outlive the registration still name it: it is never given back
                let mut table: Vec<*const c_void> =
                    vec![name.to_owned().into_raw().cast(), std::ptr::null()];
                table.extend(FUNCTIONS.iter().map(|slot| slot.0));
                let table = table.leak().as_ptr().expose_provenance();
                known.push(KnownAdaptor { name: text, instance, thread_safe, table });
                table
            }
        };
        drop(known);
        if let Some(add) = registry(c"dat_registry_add_provider") {
            // SAFETY: a table of the provider's and the registry's own description.
            unsafe { add(std::ptr::with_exposed_provenance(table), info) };
        }
    });
}

/// Called by the DAT library before it unloads the plug-in.
///
/// # Safety
/// The description is the registry's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dat_provider_fini(info: *const DatProviderInfo) {
    let _ = catch_unwind(|| {
        if info.is_null() {
            return;
        }
        // SAFETY: the caller's.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) }.to_string_lossy();
        let table = known().iter().find(|of| of.name == name).map(|of| of.table);
        if let (Some(table), Some(remove)) = (table, registry(c"dat_registry_remove_provider")) {
            // SAFETY: as it was added.
            unsafe { remove(std::ptr::with_exposed_provenance(table), info) };
        }
    });
}

#[cfg(test)]
mod tests;
