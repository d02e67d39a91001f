//! Sets the plug-in's name in `dat.conf`, and makes it search for `libfabric.so.1` in its own
//! directory first, unless `OFI_RUNPATH=no` selects the system's.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdaplofi.so.2");
    println!("cargo:rerun-if-env-changed=OFI_RUNPATH");
    if std::env::var("OFI_RUNPATH").as_deref() != Ok("no") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN,--enable-new-dtags");
    }
}
