//! Values of environment variables: lists of providers (FI_PROVIDER), of interfaces (FI_TCP_IFACE),
//! and parameters of every type.
use ofi::abi::fi_param_type::*;
use ofi::info::{InterfaceChoice, Interfaces};
use ofi_core::log::NameFilter;
use ofi_core::params::{self, Value};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Once;

const PARAMS: [(&CStr, ofi::abi::fi_param_type); 4] = [
    (c"text", FI_PARAM_STRING),
    (c"int", FI_PARAM_INT),
    (c"bool", FI_PARAM_BOOL),
    (c"size", FI_PARAM_SIZE_T),
];

static READY: Once = Once::new();

fn set(name: &str, value: &[u8]) {
    // SAFETY: a fuzz target has one thread that looks at the environment.
    unsafe { std::env::set_var(name, std::ffi::OsStr::from_bytes(value)) };
}

fn init() {
    // Neither plug-ins nor a warning for every value.
    set("FI_PROVIDER_PATH", b"/nonexistent");
    set("FI_LOG_PROV", b"^core");
    let _ = ofi_core::start();
    for (name, kind) in PARAMS {
        params::define(Some(c"fuzz"), name, kind.into(), c"a value");
    }
}

pub fn run(bytes: &[u8]) {
    READY.call_once(init);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let names = NameFilter::parse(text);
        for name in names.iter() {
            assert!(names.names(name) && !name.is_empty());
            assert_eq!(names.admits(name), !names.is_negated());
        }
        assert!(!names.is_empty() || names.admits(text));
        let interfaces =
            Interfaces::new(InterfaceChoice::parse("FI_FUZZ_IFACE".into(), text), true);
        let any = "0.0.0.0:7".parse().unwrap();
        assert_eq!(interfaces.address_for_peers(any).port(), 7);
    }
    if bytes.contains(&0) {
        return;
    }
    for name in ["TEXT", "INT", "BOOL", "SIZE"] {
        set(&format!("FI_FUZZ_{name}"), bytes);
    }
    let get = |index: usize| params::get(Some(c"fuzz"), PARAMS[index].0);
    let Ok(Value::String(text)) = get(0) else { panic!("a text is a text") };
    // SAFETY: the variable is not changed while it is looked at.
    assert_eq!(unsafe { CStr::from_ptr(text) }.to_bytes(), bytes);
    assert!(matches!(get(1), Ok(Value::Int(_))));
    assert!(matches!(get(2), Ok(Value::Bool(0 | 1)) | Err(_)));
    assert!(matches!(get(3), Ok(Value::Size(_))));
}
