//! Builds the C part (`c/`), and a stub `libfabric.so` to link plug-ins against: same SONAME and
//! versions as the real library, empty functions. It gives a plug-in `NEEDED libfabric.so.1` and
//! versioned references without waiting for, or depending on, the real library.
use std::{env, fs, path::PathBuf, process::Command};

/// Functions of the core available to a plug-in, by the oldest version node with the required form,
/// so every released libfabric.so.1 can load it. Only functions called by a plug-in become its
/// references: those of the later nodes are for utility providers, opening a core provider through
/// them.
const CORE: &[(&str, &[&str])] = &[
    ("FABRIC_1.0", &["fi_version", "fi_log_enabled", "fi_log", "fi_param_define", "fi_param_get"]),
    ("FABRIC_1.1", &["fi_fabric"]),
    ("FABRIC_1.3", &["fi_getinfo", "fi_freeinfo"]),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let functions = CORE.iter().flat_map(|(_, functions)| functions.iter());
    let stub = functions.map(|f| format!("void {f}(void) {{}}\n")).collect::<String>();
    fs::write(out.join("stub.c"), stub).unwrap();
    let node = |(name, functions): &(&str, &[&str])| {
        format!("{name} {{ global: {}; local: *; }};\n", functions.join("; "))
    };
    fs::write(out.join("stub.map"), CORE.iter().map(node).collect::<String>()).unwrap();
    let status = Command::new(cc::Build::new().get_compiler().path())
        .current_dir(&out)
        .args(["-shared", "-nostdlib", "-fPIC", "-o", "libfabric.so", "stub.c"])
        .args(["-Wl,-soname,libfabric.so.1", "-Wl,--version-script=stub.map"])
        .status()
        .unwrap();
    assert!(status.success());
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=fabric");
    println!("cargo:rerun-if-changed=c/cancel.c");
    cc::Build::new().file("c/cancel.c").warnings(true).extra_warnings(true).compile("ofi_cancel");
}
