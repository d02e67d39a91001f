//! Functions of libibverbs and librdmacm (rdma-core) used by this provider, under the names of
//! their headers. [`types`] has the structures and constants.
//!
//! The build needs nothing of rdma-core. The libraries are loaded once, on first use. Without them
//! every function fails with `ENOSYS`, and [`missing`] returns the reason.
//!
//! The crate rdma-sys links both libraries and needs their headers for the build, so a plug-in built with it
//! would not load on a host without rdma-core. Here about 50 functions are looked up by name, and unit
//! tests (`layout.rs`) compare the structures with the headers.
#![allow(non_camel_case_types, reason = "the names are those of rdma-core")]
#[cfg(test)]
mod layout;
mod types;

use core::ffi::{CStr, c_char, c_int, c_void};
use libc::sockaddr;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ofi_provider::error::Error;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::OnceLock;
pub(crate) use types::*;

/// The two libraries, open until the program ends.
struct Libraries {
    /// Program at its start: a library preloaded to override these two does so, as if they were
    /// linked.
    program: Library,
    own: [Library; 2],
}

/// Their files.
const FILES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

impl Libraries {
    fn open() -> Result<Self, String> {
        // SAFETY: the system's own libraries, with initializers without requirements on their user.
        let open = |file: &str| unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let open = |file| {
            let absent = |error: libloading::Error| {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                format!("{file} cannot be loaded: {}", cause.unwrap_or_else(|| error.to_string()))
            };
            open(file).map_err(absent)
        };
        Ok(Self { program: Library::this(), own: [open(FILES[0])?, open(FILES[1])?] })
    }

    /// The address of a function in its default version.
    fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let mut libraries = [&self.program].into_iter().chain(&self.own);
        // SAFETY: as a mere address it has any type.
        let find = |of: &Library| unsafe { of.get::<*mut c_void>(name.to_bytes_with_nul()) };
        libraries.find_map(|of| find(of).ok()).map(|found| found.into_raw())
    }
}

/// Return value of a missing function: an error.
trait Absent {
    fn absent() -> Self;
}

impl Absent for () {
    fn absent() {}
}

impl Absent for c_int {
    /// Returns ENOSYS, used as the error itself, or as a hint at errno.
    fn absent() -> Self {
        no_such_call();
        libc::ENOSYS
    }
}

impl<T> Absent for *mut T {
    fn absent() -> Self {
        no_such_call();
        null_mut()
    }
}

impl<T> Absent for *const T {
    fn absent() -> Self {
        no_such_call();
        core::ptr::null()
    }
}

fn no_such_call() {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

/// Declares functions of the libraries by their prototypes.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $answer:ty)?;)*) => {
        /// Functions with their addresses.
        struct Functions {
            libraries: Libraries,
            $($name: unsafe extern "C" fn($($ty),*) $(-> $answer)?,)*
        }

        impl Functions {
            fn find() -> Result<Self, String> {
                let libraries = Libraries::open()?;
                let find = |name: &'static str| {
                    let terminated = CStr::from_bytes_with_nul(name.as_bytes());
                    let found = terminated.ok().and_then(|name| libraries.find(name));
                    let name = name.trim_end_matches('\0');
                    found.ok_or_else(|| format!("{} and {} lack {name}", FILES[0], FILES[1]))
                };
                $(
                    let at = find(concat!(stringify!($name), "\0"))?;
                    type $name = unsafe extern "C" fn($($ty),*) $(-> $answer)?;
                    // SAFETY: what has that name has this prototype in rdma-core's headers.
                    let $name = unsafe { core::mem::transmute::<*mut c_void, $name>(at) };
                )*
                Ok(Self { libraries, $($name,)* })
            }
        }

        $(
            #[doc = concat!("`", stringify!($name), "(3)`.")]
            /// # Safety
            /// As required by the manual page.
            pub(crate) unsafe fn $name($($arg: $ty),*) $(-> $answer)? {
                match all() {
                    // SAFETY: as for this function.
                    Ok(all) => unsafe { (all.$name)($($arg),*) },
                    Err(_) => Absent::absent(),
                }
            }
        )*
    };
}

/// All of the functions, or a description of the missing ones.
static ALL: OnceLock<Result<Functions, String>> = OnceLock::new();

fn all() -> &'static Result<Functions, String> {
    ALL.get_or_init(Functions::find)
}

/// Loads the functions, unless already done; fails with -FI_ENOMEM if there was no memory for it.
pub(crate) fn load() -> ofi_provider::error::Result {
    if ALL.get().is_some() {
        return Ok(());
    }
    // SAFETY: errno is the calling thread's own.
    unsafe { *libc::__errno_location() = 0 };
    let found = Functions::find();
    // SAFETY: as above.
    let errno = unsafe { *libc::__errno_location() };
    if found.is_err() && errno == libc::ENOMEM {
        return Err(Error::NOMEM);
    }
    ALL.get_or_init(|| found);
    Ok(())
}

/// Returns the component missing on this machine for this provider: a library, or a function of
/// one.
pub(crate) fn missing() -> Option<&'static str> {
    all().as_ref().err().map(String::as_str)
}

/// Returns the address of a function missing in some versions of the libraries.
pub(crate) fn optional(name: &CStr) -> Option<*mut c_void> {
    all().as_ref().ok()?.libraries.find(name)
}

functions! {
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32);
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_create_cq(
        context: *mut ibv_context,
        size: c_int,
        token: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_fork_init() -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        token: *mut *mut c_void,
    ) -> c_int;
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, at: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, at: c_int, pkey: *mut u16) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_wc_status_str(status: ibv_wc_status::Type) -> *const c_char;
    fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        token: *mut c_void,
        space: rdma_port_space::Type,
    ) -> c_int;
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_destroy_qp(id: *mut rdma_cm_id);
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int;
    fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type::Type) -> c_int;
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        from: *mut sockaddr,
        to: *mut sockaddr,
        milliseconds: c_int,
    ) -> c_int;
    fn rdma_resolve_route(id: *mut rdma_cm_id, milliseconds: c_int) -> c_int;
    fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        option: c_int,
        value: *mut c_void,
        len: usize,
    ) -> c_int;
}

/// Declares functions defined inline in verbs.h: calls through the table of an object's context. A
/// device without the call fails it.
macro_rules! of_the_context {
    ($(fn $name:ident => $op:ident($object:ident: *mut $of:ty $(, $arg:ident: $ty:ty)*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        /// # Safety
        /// As required by the manual page.
        #[inline(always)]
        pub(crate) unsafe fn $name($object: *mut $of $(, $arg: $ty)*) -> c_int {
            // SAFETY: the object is open, and so is its context.
            match unsafe { (*(*$object).context).ops.$op } {
                // SAFETY: as for this function.
                Some(call) => unsafe { call($object $(, $arg)*) },
                None => libc::EOPNOTSUPP,
            }
        }
    )*};
}

of_the_context! {
    fn ibv_post_send => post_send(
        qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr);
    fn ibv_post_recv => post_recv(
        qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr);
    fn ibv_post_srq_recv => post_srq_recv(
        srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr);
    fn ibv_req_notify_cq => req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int);
}

/// `ibv_poll_cq(3)`.
///
/// # Safety
/// As required by the manual page.
#[inline(always)]
pub(crate) unsafe fn ibv_poll_cq(cq: *mut ibv_cq, most: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the queue is open, and so is its context.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: as for this function.
        Some(poll) => unsafe { poll(cq, most, to) },
        None => -1,
    }
}

/// Returns an entry of a context's table beyond its first version: the field at `offset` of
/// [`verbs_context`], if the context has this table and the table has this field.
///
/// # Safety
/// The context is open, and `F` is the type of the field, possibly null.
unsafe fn extension<F>(context: *mut ibv_context, offset: usize) -> Option<F> {
    // SAFETY: a context with this mark is the last field of a `verbs_context`, of whose fields `sz`
    // says how many bytes there are, counted from the end.
    unsafe {
        if (*context).abi_compat as usize != usize::MAX {
            return None;
        }
        let before = offset_of!(verbs_context, context);
        let extended = context.wrapping_byte_sub(before).cast::<verbs_context>();
        if (&raw const (*extended).sz).read() < size_of::<verbs_context>() - offset {
            return None;
        }
        extended.byte_add(offset).cast::<Option<F>>().read()
    }
}

/// `ibv_query_port(3)`, like the inline function in verbs.h; the attributes are zeroed before.
///
/// # Safety
/// As required by the manual page.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    // SAFETY: the context is open; the library's own function writes the first fields of these.
    unsafe {
        let offset = offset_of!(verbs_context, query_port);
        match extension::<QueryPort>(context, offset) {
            Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
            None => ibv_query_port(context, port, attr),
        }
    }
}

/// Calls `ibv_query_device_ex(3)`, if the device has it.
///
/// # Safety
/// As required by the manual page.
pub(crate) unsafe fn query_device_ex(
    context: *mut ibv_context,
    attr: &mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the context is open, and writes at most the requested size.
    unsafe {
        let offset = offset_of!(verbs_context, query_device_ex);
        match extension::<QueryDeviceEx>(context, offset) {
            Some(query) => query(context, core::ptr::null(), attr, size_of::<ibv_device_attr_ex>()),
            None => libc::EOPNOTSUPP,
        }
    }
}
