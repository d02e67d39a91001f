// `rdma/providers/fi_prov.h`: The plug-in entry point (fi_provider(7)).

/// End of a plug-in's file name, with the platform's own ending.
pub const FI_LIB_EXTENSION: &core::ffi::CStr = c"fi";
/// End of a plug-in's file name.
pub const FI_LIB_SUFFIX: &core::ffi::CStr = c"fi.so";

/// A provider, as its plug-in gives it to the library (fi_provider(7)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: fi_context,
    pub name: *const c_char,
    pub getinfo: Option<
        unsafe extern "C" fn(
            u32,
            *const c_char,
            *const c_char,
            u64,
            *const fi_info,
            *mut *mut fi_info,
        ) -> c_int,
    >,
    pub fabric: Option<
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    >,
    pub cleanup: Option<unsafe extern "C" fn()>,
}

unsafe extern "C" {
    pub fn fi_param_define(
        provider: *const fi_provider,
        param_name: *const c_char,
        r#type: c_enum<fi_param_type>,
        help_string_fmt: *const c_char,
        ...
    ) -> c_int;
    pub fn fi_param_get(
        provider: *mut fi_provider,
        param_name: *const c_char,
        value: *mut c_void,
    ) -> c_int;
}
