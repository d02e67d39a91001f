//! The hook provider `perf`: average CPU instructions or cycles of the calls on the fast path,
//! logged when the fabric is closed (fi_hook(7)).
//!
//! `FI_PERF_CNTR` selects the counter: `cpu_instr` or `cpu_cycles`. If the processor's counters
//! cannot be read, nanoseconds are counted instead.
mod pmu;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use ofi_hook::error::{Error, Result};
use ofi_hook::log::{level, subsys};
use ofi_hook::{Hook, HookCall, HookLog, HookOp, param};
use pmu::{Meter, PmuEvent};

/// Number of measured calls: the first ones of all.
const MEASURED: usize = HookOp::CntrSeterr as usize + 1;

/// Total cost and number of the calls of one name.
#[derive(Default)]
struct PerfSum {
    total: AtomicU64,
    events: AtomicU64,
}

struct Perf {
    log: HookLog,
    meter: Meter,
    sums: [PerfSum; MEASURED],
}

fn sum_of(sums: &[PerfSum], op: HookOp) -> Option<&PerfSum> {
    sums.get(op as usize)
}

impl Hook for Perf {
    const NAME: &'static str = "perf";
    type Entry = u64;

    fn install(log: HookLog) -> Result<Self> {
        let name = param::core_string(c"perf_cntr").unwrap_or_default();
        let event = if name.eq_ignore_ascii_case("cpu_cycles") {
            PmuEvent::Cycles
        } else {
            PmuEvent::Instructions
        };
        let meter = Meter::new(event).unwrap_or_else(|error| {
            log.line(
                level::WARN,
                subsys::CORE,
                "ofi_perfset_create",
                format_args!("Unable to open PMU {error:?}; counting nanoseconds"),
            );
            Meter::CLOCK
        });
        Ok(Self {
            log,
            meter,
            sums: [const { PerfSum { total: AtomicU64::new(0), events: AtomicU64::new(0) } };
                MEASURED],
        })
    }

    fn enter(&self, call: &HookCall) -> u64 {
        sum_of(&self.sums, call.op).map_or(0, |_| self.meter.now())
    }

    unsafe fn leave(&self, entry: u64, call: &HookCall, _ret: isize) {
        if let Some(sum) = sum_of(&self.sums, call.op) {
            let took = self.meter.now().saturating_sub(entry);
            sum.total.fetch_add(took, Ordering::Relaxed);
            sum.events.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn finish(&self) {
        let line = |text: fmt::Arguments<'_>| self.log.trace(subsys::CORE, "ofi_perfset_log", text);
        if !self.log.enabled(level::TRACE, subsys::CORE) {
            return;
        }
        line(format_args!(""));
        line(format_args!("\tPERF: {}", self.meter.title()));
        line(format_args!("\t{:<20}{:<10}{}", "Name", "Avg", "Events"));
        for (op, sum) in HookOp::ALL.iter().zip(&self.sums) {
            let events = sum.events.load(Ordering::Relaxed);
            if events > 0 {
                let average = sum.total.load(Ordering::Relaxed) as f64 / events as f64;
                line(format_args!("{}", PerfRow { name: op.name(), average, events }));
            }
        }
    }
}

/// One line of the table.
struct PerfRow<'a> {
    name: &'a str,
    average: f64,
    events: u64,
}

impl fmt::Display for PerfRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("perf_{}", self.name);
        write!(f, "\t{name:<20}{:<10}{}", general(self.average), self.events)
    }
}

/// Formats a non-negative number like C's `%g`: six significant digits.
fn general(value: f64) -> String {
    const DIGITS: i32 = 6;
    let scientific = format!("{value:.*e}", DIGITS as usize - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..DIGITS).contains(&exponent) {
        let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
        return trim(&format!("{value:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(digits), exponent.abs())
}

impl fmt::Debug for Perf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Perf")
    }
}

/// Returns the system's error of a failed counter open.
fn last_error() -> Error {
    Error::last_os()
}

ofi_hook::plug_in!("perf", Perf);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_read_as_c_writes_them() {
        let cases = [
            (0.0, "0"),
            (777.0, "777"),
            (803.272_189, "803.272"),
            (2331.0, "2331"),
            (0.5, "0.5"),
            (123_456.7, "123457"),
            (1_234_567.0, "1.23457e+06"),
            (999_999.9, "1e+06"),
            (0.000_012_5, "1.25e-05"),
        ];
        for (value, text) in cases {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn a_line_has_name_average_and_number_of_calls_in_columns() {
        let row = |name, average, events| PerfRow { name, average, events }.to_string();
        assert_eq!(row("send", 803.272_189, 1183), "\tperf_send           803.272   1183");
        assert_eq!(row("inject_writedata", 777.0, 1), "\tperf_inject_writedata777       1");
    }

    #[test]
    fn the_calls_of_the_fast_path_are_measured_and_no_others() {
        let perf = Perf::install(HookLog::NOWHERE).unwrap();
        let call = |op| HookCall {
            op,
            object: core::ptr::null(),
            format: 0,
            api_version: 0,
            args: ofi_hook::Args::None,
        };
        for op in
            [HookOp::Recv, HookOp::CntrSeterr, HookOp::CntrSeterr, HookOp::Atomic, HookOp::Close]
        {
            let entry = perf.enter(&call(op));
            // SAFETY: a call without arguments.
            unsafe { perf.leave(entry, &call(op), 0) };
        }
        let events: Vec<_> =
            perf.sums.iter().map(|sum| sum.events.load(Ordering::Relaxed)).collect();
        assert_eq!(events.iter().sum::<u64>(), 3);
        assert_eq!((events[HookOp::Recv as usize], events[HookOp::CntrSeterr as usize]), (1, 2));
    }
}
