//! Runs the fuzz targets with the inputs of fuzz/corpus and seeded changes of these, each target in a
//! process of its own. Coverage-guided runs with AddressSanitizer are those of `fuzz/run`.
//!
//! An argument without `-` selects the targets with this text in their names. `OFI_REPLAY_CHANGES` is
//! the number of changed inputs made of each. The input of a failure is kept beside the
//! program, as `replay-TARGET`.
use changes::SeededChanges;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

mod changes;
#[path = "../../fuzz/engine/mod.rs"]
mod engine;
#[path = "../../fuzz/fuzz_targets/readers/mod.rs"]
mod readers;
#[path = "../../fuzz/fuzz_targets/engines/rxm_engine.rs"]
mod rxm_engine;
#[path = "../../fuzz/fuzz_targets/engines/tcp_engine.rs"]
mod tcp_engine;

/// Runs one input.
type Run = fn(&[u8]);

const ENGINES: &[(&str, Run)] = &[("rxm_engine", rxm_engine::run), ("tcp_engine", tcp_engine::run)];

/// Names the target of a process.
const TARGET: &str = "OFI_REPLAY_TARGET";

/// Random inputs of a target without a corpus.
const RANDOM_INPUTS: usize = 1000;

/// Minimum executions of a target. An execution of an engine takes milliseconds.
const EXECUTIONS: usize = 1000;
const ENGINE_EXECUTIONS: usize = 200;

fn targets() -> impl Iterator<Item = &'static (&'static str, Run)> {
    readers::TARGETS.iter().chain(ENGINES)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn input_path(target: &str) -> PathBuf {
    env::current_exe().unwrap().with_file_name(format!("replay-{target}"))
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let Ok(folder) = fs::read_dir(root().join("fuzz/corpus").join(target)) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Runs a target with one input, kept in a file until the run has ended.
fn run_input(run: Run, input: &[u8], path: &Path) {
    fs::write(path, input).unwrap();
    run(input);
}

/// Runs a target with each input and its changes, and returns the number of executions.
fn replay(name: &str, run: Run) -> usize {
    let mut changes = SeededChanges::new(name);
    let mut inputs = corpus(name);
    if inputs.is_empty() {
        inputs = (0..RANDOM_INPUTS).map(|_| changes.random_input()).collect();
    }
    let is_engine = ENGINES.iter().any(|(engine, _)| *engine == name);
    let least = if is_engine { ENGINE_EXECUTIONS } else { EXECUTIONS };
    let count = env::var("OFI_REPLAY_CHANGES")
        .map_or_else(|_| (least / inputs.len()).max(1), |count| count.parse().unwrap());
    let path = input_path(name);
    for (index, input) in inputs.iter().enumerate() {
        run_input(run, input, &path);
        for change in 1..=count {
            let other = &inputs[(index + change * 7) % inputs.len()];
            run_input(run, &changes.change(input, other), &path);
        }
    }
    fs::remove_file(path).unwrap();
    inputs.len() * (1 + count)
}

/// Runs the targets, or the one of this process.
pub fn run_all() -> ExitCode {
    if let Ok(target) = env::var(TARGET) {
        let (name, run) = targets().find(|(name, _)| *name == target).unwrap();
        println!("{} executions", replay(name, *run));
        return ExitCode::SUCCESS;
    }
    let selected: Vec<_> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_selected = |name: &str| selected.iter().all(|word| name.contains(word.as_str()));
    let [mut passed, mut failed] = [0, 0];
    for (name, _) in targets().filter(|(name, _)| is_selected(name)) {
        let program = env::current_exe().unwrap();
        let output = Command::new(program).env(TARGET, name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if output.status.success() {
            passed += 1;
            println!("test {name} ... ok, {}", text.trim());
        } else {
            failed += 1;
            println!("test {name} ... FAILED");
            println!("{text}{}", String::from_utf8_lossy(&output.stderr));
            println!("{}, its input is {}", output.status, input_path(name).display());
        }
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured");
    ExitCode::from(u8::from(failed > 0))
}
