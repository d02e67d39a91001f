//! The library under test.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, str};

/// The folder of `libfabric.so` and `libfabric.so.1`, as this profile builds them.
///
/// A test does not make cargo build a cdylib, so this does.
pub(crate) fn library_folder() -> PathBuf {
    let test = env::current_exe().expect("the test knows its own path");
    let profile = test.ancestors().nth(2).expect("a test is in <target>/<profile>/deps");
    let target = profile.parent().expect("a profile's folder is in the target folder");
    let mut cargo = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "ofi-capi", "--target-dir"]).arg(target);
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") => {}
        Some(name) => {
            cargo.args(["--profile", name]);
        }
        None => panic!("{} has no name", profile.display()),
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "libfabric.so does not build");
    profile.to_owned()
}

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("capi is in the repository")
}

/// Returns the output of a command; it has to succeed.
pub(crate) fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    str::from_utf8(&output.stdout).expect("the output is text").to_owned()
}
