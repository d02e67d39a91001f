//! Test program without the harness of the standard library.
fn main() -> std::process::ExitCode {
    ofi_replay::run_all()
}
