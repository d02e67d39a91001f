//! Builds the C program driving an engine; its users are C programs as well.
fn main() {
    println!("cargo:rerun-if-changed=engine/engine.c");
    println!("cargo:rerun-if-changed=../include/rdma");
    cc::Build::new()
        .file("engine/engine.c")
        .include("../include")
        .flag("-std=gnu11")
        .debug(true)
        .warnings(true)
        .extra_warnings(true)
        .compile("ofi_engine");
}
