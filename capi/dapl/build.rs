//! Gives the plug-in the name that `dat.conf` knows it by, and has it look for
//! `libfabric.so.1` beside itself before anywhere else, unless `OFI_RUNPATH=no` says that the system's is meant.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdaplofi.so.2");
    println!("cargo:rerun-if-env-changed=OFI_RUNPATH");
    if std::env::var("OFI_RUNPATH").as_deref() != Ok("no") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN,--enable-new-dtags");
    }
}
