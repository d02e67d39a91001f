//! Builds the C program driving an engine, as the build of the fuzz targets does.
#[path = "../../fuzz/engine/build.rs"]
mod engine;

fn main() {
    engine::build("../../fuzz", "../../include");
}
