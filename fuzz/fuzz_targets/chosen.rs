//! Selection of a target. Several targets are one program, built in less time. The program's name
//! at its start selects the target.
use std::path::Path;
use std::sync::OnceLock;

/// Runs one input.
type Run = fn(&[u8]);

static CHOSEN: OnceLock<Run> = OnceLock::new();

/// Chooses one of the targets, once.
pub fn choose(targets: &[(&str, Run)]) {
    let started = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&started).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((_, run)) = targets.iter().find(|(target, _)| *target == name) else {
        let names: Vec<_> = targets.iter().map(|(target, _)| *target).collect();
        eprintln!("{name} is no target; start this by the name of one: {}", names.join(", "));
        std::process::exit(2);
    };
    CHOSEN.get_or_init(|| *run);
}

/// Runs one input of the selected target.
pub fn run(bytes: &[u8]) {
    CHOSEN.get().unwrap()(bytes);
}
