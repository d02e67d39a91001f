//! Running of seeds, and naming of a failing one.
use crate::here::{self, InjectedFault};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs one seed, and prints it on a panic. Returns the result of the run.
pub fn attempt<R>(seed: u64, run: impl FnOnce(u64) -> R) -> R {
    let result = catch_unwind(AssertUnwindSafe(|| run(seed)));
    here::clear();
    result.unwrap_or_else(|panic| {
        eprintln!("OFI_SIM_SEED={seed} does it again");
        resume_unwind(panic)
    })
}

/// Runs the seeds selected by the environment, or a default number: `OFI_SIM_SEED=N` selects one
/// seed, printed by a failing run. `OFI_SIM_SEEDS=N` sets their number, `OFI_SIM_STEPS=N` runs new
/// ones up to this number of steps, and `OFI_SIM_FIRST=N` sets the first. A run returns its number
/// of steps.
pub fn run_all(usual: u64, run: impl Fn(u64) -> usize) {
    if let Some(seed) = number("OFI_SIM_SEED") {
        attempt(seed, run);
        return;
    }
    let (seeds, most) = (number("OFI_SIM_SEEDS"), number("OFI_SIM_STEPS"));
    let first = number("OFI_SIM_FIRST").unwrap_or(0);
    let (mut steps, mut seed) = (0, first);
    let started = Instant::now();
    while match (seeds, most) {
        (_, Some(most)) => steps < most,
        (seeds, None) => seed - first < seeds.unwrap_or(usual),
    } {
        steps += attempt(seed, &run) as u64;
        seed += 1;
    }
    let took = started.elapsed().max(Duration::from_millis(1));
    eprintln!("{} seeds, {steps} steps in {took:?}", seed - first);
}

/// Returns the first failing seed of this many, with the simulator's message.
pub fn found<R>(seeds: u64, run: impl Fn(u64) -> R) -> Option<(u64, String)> {
    for seed in 0..seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            here::clear();
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            return Some((seed, text.unwrap_or_default()));
        }
    }
    None
}

/// Injects a fault. A simulator must find it within 500 seeds, with one of these
/// messages.
pub fn finds<R>(fault: InjectedFault, messages: &[&str], run: impl Fn(u64) -> R) {
    here::plant(Some(fault));
    let found = found(500, run);
    here::plant(None);
    let (seed, text) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    eprintln!("{fault:?}: seed {seed}: {}", text.lines().next().unwrap_or(""));
    let right = messages.iter().any(|messages| text.contains(messages));
    assert!(right, "{fault:?} is found as something else: {text}");
}
