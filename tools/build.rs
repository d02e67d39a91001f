//! Links the tools like C programs: against `libfabric.so.1` by its SONAME and versions. A stub
//! with the same names replaces it at build time, so the tools build without waiting for the
//! library.
use std::{env, fs, path::PathBuf, process::Command};

/// Functions called by the tools, with the version bound by a program built today.
const SYMBOLS: &[(&str, &[&str])] = &[
    ("FABRIC_1.0", &["fi_version", "fi_strerror", "fi_tostr", "fi_getparams", "fi_freeparams"]),
    ("FABRIC_1.1", &["fi_fabric"]),
    ("FABRIC_1.5", &["fi_open"]),
    ("FABRIC_1.10", &["fi_getinfo", "fi_freeinfo", "fi_dupinfo"]),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let (mut source, mut map) = (String::new(), String::new());
    for (node, functions) in SYMBOLS {
        for function in *functions {
            source += &format!("void {function}(void) {{}}\n");
        }
        map += &format!("{node} {{ global: {}; }};\n", functions.join("; "));
    }
    fs::write(out.join("stub.c"), source).unwrap();
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
    // Installed in PREFIX/bin with the library in PREFIX/lib; built, beside it.
    // As a RUNPATH, which LD_LIBRARY_PATH comes before. A distribution wants none: its linker finds the
    // library, and OFI_RUNPATH=no leaves it out.
    println!("cargo:rerun-if-env-changed=OFI_RUNPATH");
    if env::var("OFI_RUNPATH").as_deref() != Ok("no") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib:$ORIGIN,--enable-new-dtags");
    }
}
