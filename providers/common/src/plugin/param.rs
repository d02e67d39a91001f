//! Run-time parameters of a provider: environment variables declared through the core, so `fi_info
//! -e` lists them (fi_provider(7)).
use crate::abi::{self, fi_param_type};
use crate::provider::Provider;
use core::ffi::{CStr, c_char, c_int, c_void};

fn define(prov: &'static Provider, name: &CStr, kind: fi_param_type, help: &CStr) {
    for prov in prov.and_bases() {
        // SAFETY: all strings are C strings that outlive the call; the format "%s"
        // takes the one argument given. A second definition of the same name is
        // answered with an error that changes nothing.
        unsafe {
            abi::fi_param_define(
                prov.as_ptr(),
                name.as_ptr(),
                kind.into(),
                c"%s".as_ptr(),
                help.as_ptr(),
            );
        }
    }
}

/// Returns the value of a provider's parameter, or else of the same parameter of a provider with
/// parameters valid for it as well ([`Provider::with_parameters_of`]).
fn get_of<T>(
    prov: &'static Provider,
    get: impl Fn(Option<&'static Provider>) -> Option<T>,
) -> Option<T> {
    prov.and_bases().find_map(|prov| get(Some(prov)))
}

/// Returns the environment variable of this declared parameter: `FI_TCP_PEERS`.
pub fn variable(prov: &'static Provider, name: &CStr) -> String {
    // No type of parameter is larger.
    let is_set = |prov: &&'static Provider| get::<u64>(Some(*prov), name).is_some();
    let of = prov.and_bases().find(is_set).unwrap_or(prov);
    variable_of(of, name)
}

/// Returns the variable of this parameter of this very provider.
pub fn variable_of(prov: &Provider, name: &CStr) -> String {
    format!("FI_{}_{}", prov.name().to_string_lossy(), name.to_string_lossy()).to_uppercase()
}

fn get<T: Default>(prov: Option<&'static Provider>, name: &CStr) -> Option<T> {
    let mut value = T::default();
    let prov = prov.map_or(std::ptr::null_mut(), Provider::as_ptr);
    // SAFETY: `value` has the type the parameter was defined with (the callers
    // below pair them), and the core only reads the provider.
    let ret = unsafe { abi::fi_param_get(prov, name.as_ptr(), (&raw mut value).cast::<c_void>()) };
    (ret == 0).then_some(value)
}

fn get_string(prov: Option<&'static Provider>, name: &CStr) -> Option<String> {
    let value: usize = get(prov, name)?;
    let value = value as *const c_char;
    // SAFETY: the value of a string is a C string of the core's that stays, or null.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

/// Returns a size parameter from the environment, or `default`.
pub fn size(prov: &'static Provider, name: &CStr, default: usize, help: &CStr) -> usize {
    define(prov, name, fi_param_type::FI_PARAM_SIZE_T, help);
    get_of(prov, |prov| get::<usize>(prov, name)).unwrap_or(default)
}

/// An integer, `None` when the environment does not say.
pub fn int(prov: &'static Provider, name: &CStr, help: &CStr) -> Option<c_int> {
    define(prov, name, fi_param_type::FI_PARAM_INT, help);
    get_of(prov, |prov| get::<c_int>(prov, name))
}

/// A yes or no, `None` when the environment does not say.
pub fn boolean(prov: &'static Provider, name: &CStr, help: &CStr) -> Option<bool> {
    define(prov, name, fi_param_type::FI_PARAM_BOOL, help);
    get_of(prov, |prov| get::<c_int>(prov, name)).map(|value| value != 0)
}

/// A text, `None` when the environment does not say.
pub fn string(prov: &'static Provider, name: &CStr, help: &CStr) -> Option<String> {
    define(prov, name, fi_param_type::FI_PARAM_STRING, help);
    get_of(prov, |prov| get_string(prov, name))
}

/// Returns a size parameter of the library itself, such as `mr_cache_max_size`.
pub fn core_size(name: &CStr) -> Option<usize> {
    get(None, name)
}

/// Returns a boolean parameter of the library itself.
pub fn core_boolean(name: &CStr) -> Option<bool> {
    get::<c_int>(None, name).map(|value| value != 0)
}

/// Returns a text parameter of the library itself.
pub fn core_string(name: &CStr) -> Option<String> {
    get_string(None, name)
}
