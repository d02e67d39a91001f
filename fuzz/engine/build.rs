//! Build of the C program driving an engine; its users are C programs as well.

/// Builds the program of this folder of fuzz targets, with these headers.
pub fn build(folder: &str, include: &str) {
    let source = format!("{folder}/engine/engine.c");
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed={include}/rdma");
    cc::Build::new()
        .file(source)
        .include(include)
        .flag("-std=gnu11")
        .debug(true)
        .warnings(true)
        .extra_warnings(true)
        .compile("ofi_engine");
}
