//! A stub `libfabric.so` to link plug-ins against: same SONAME and versions as
//! the library that will load them, empty functions. It gives a plug-in
//! `NEEDED libfabric.so.1` and versioned references without waiting for, or
//! depending on, the real library.
use std::{env, fs, path::PathBuf, process::Command};

/// What a plug-in may take from the core, all in the oldest node, so that every
/// libfabric.so.1 ever released can load it.
const CORE: &[&str] =
    &["fi_version", "fi_log_enabled", "fi_log", "fi_param_define", "fi_param_get"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let stub = CORE.iter().map(|f| format!("void {f}(void) {{}}\n")).collect::<String>();
    fs::write(out.join("stub.c"), stub).unwrap();
    let map = format!("FABRIC_1.0 {{ global: {}; local: *; }};\n", CORE.join("; "));
    fs::write(out.join("stub.map"), map).unwrap();
    let status = Command::new(cc::Build::new().get_compiler().path())
        .current_dir(&out)
        .args(["-shared", "-nostdlib", "-fPIC", "-o", "libfabric.so", "stub.c"])
        .args(["-Wl,-soname,libfabric.so.1", "-Wl,--version-script=stub.map"])
        .status()
        .unwrap();
    assert!(status.success());
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=fabric");
}
