//! Builds the C program driving an engine.
#[path = "engine/build.rs"]
mod engine;

fn main() {
    engine::build(".", "../include");
}
