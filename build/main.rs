//! The build script: writes the C headers, unless who builds does without them.
#[cfg(feature = "headers")]
#[path = "../build.rs"]
mod headers;

fn main() {
    println!("cargo:rerun-if-changed=build/main.rs");
    #[cfg(feature = "headers")]
    headers::write();
}
