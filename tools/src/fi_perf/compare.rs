//! Comparison with another library (`--beside`), in alternating runs of this program.
use crate::failure::{During as _, Failure, Outcomes, fail};
use crate::options::{Format, Options};
use crate::stats::{Interval, bootstrap, median};
use ofi_stats::show::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Measured value of a test and size: its operation, test, size and name.
type Key = (String, String, u64);
/// Values of all runs of a library, by measurement.
type Values = BTreeMap<usize, (Key, Vec<f64>)>;

/// Extracts from CSV the value of each line: the mean latency, bandwidth or message rate.
pub(crate) fn values(csv: &str) -> Result<Vec<(Key, f64)>, String> {
    let mut lines = csv.lines();
    let names: Vec<_> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name: &str| {
        names.iter().position(|one| *one == name).ok_or(format!("the output has no column {name}"))
    };
    let (op, test, size) = (column("op")?, column("test")?, column("size")?);
    let columns = [column("p50_us")?, column("mb_per_s")?, column("messages_per_s")?];
    let value = |line: &str| {
        let cells: Vec<_> = line.split(',').collect();
        let test = *cells.get(test)?;
        let from = match test {
            "lat" => columns[0],
            "bw" => columns[1],
            _ => columns[2],
        };
        let key = ((*cells.get(op)?).to_owned(), test.to_owned(), cells.get(size)?.parse().ok()?);
        Some((key, cells.get(from)?.parse().ok()?))
    };
    lines.map(|line| value(line).ok_or(format!("the output has the line {line:?}"))).collect()
}

/// Runs this program once with its own library or another one.
fn run_once(arguments: &[String], library: Option<&Path>) -> Outcomes<Vec<(Key, f64)>> {
    let mut command = Command::new(std::env::current_exe().during("fi_perf")?);
    command.args(arguments).args(["--local", "--csv"]).stdin(Stdio::null());
    if let Some(library) = library {
        let mut path = library.as_os_str().to_owned();
        if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(more);
        }
        command.env("LD_LIBRARY_PATH", path).env("FI_PERF_LIBRARY", library);
    }
    let output = command.stderr(Stdio::inherit()).output().during("fi_perf")?;
    if !output.status.success() {
        let which = library.map_or("this library".into(), |path| path.display().to_string());
        return fail(format!("the run with {which} failed"));
    }
    values(&String::from_utf8_lossy(&output.stdout)).map_err(Failure)
}

/// Returns the arguments of the runs: those of this one without the options of the comparison.
pub(crate) fn child_arguments(arguments: &[String]) -> Vec<String> {
    let mut rest = Vec::new();
    let mut skips = false;
    for argument in arguments {
        let is_option = |name: &str| argument == name || argument.starts_with(&format!("{name}="));
        if std::mem::take(&mut skips) {
            continue;
        }
        if is_option("--beside") || is_option("--rounds") {
            skips = !argument.contains('=');
        } else if !["--csv", "--json", "--local"].contains(&&**argument) {
            rest.push(argument.clone());
        }
    }
    rest
}

/// One line of the comparison.
struct Line {
    key: Key,
    own: f64,
    other: f64,
    ratio: Interval,
}

/// Runs both libraries in turns and returns the ratios.
pub(crate) fn compare(
    options: &Options,
    arguments: &[String],
    directory: &Path,
) -> Outcomes<String> {
    let directory: PathBuf = directory.canonicalize().during("--beside")?;
    if !directory.join("libfabric.so.1").exists() {
        return fail(format!("--beside: {} has no libfabric.so.1", directory.display()));
    }
    let arguments = child_arguments(arguments);
    let (mut own, mut other) = (Values::new(), Values::new());
    for number in 0..options.repeats {
        // The order alternates as well, so that a steady drift of the machine has no effect.
        let order = if number % 2 == 0 { [false, true] } else { [true, false] };
        for is_other in order {
            let library = is_other.then_some(&*directory);
            let to = if is_other { &mut other } else { &mut own };
            for (at, (key, value)) in run_once(&arguments, library)?.into_iter().enumerate() {
                to.entry(at).or_insert_with(|| (key, Vec::new())).1.push(value);
            }
        }
    }
    let mut lines = Vec::new();
    for (at, (key, values)) in &own {
        // A library may lack a size, as its messages are limited.
        let found = other.get(at).filter(|(other, _)| other == key);
        let found = found.or_else(|| other.values().find(|(other, _)| other == key));
        let Some((_, others)) = found.filter(|(_, others)| others.len() == values.len()) else {
            continue;
        };
        let ratios: Vec<_> = values.iter().zip(others).map(|(own, other)| own / other).collect();
        lines.push(Line {
            key: key.clone(),
            own: median(values),
            other: median(others),
            ratio: bootstrap(&ratios),
        });
    }
    Ok(text(options, &directory, &lines))
}

fn text(options: &Options, directory: &Path, lines: &[Line]) -> String {
    let own = crate::usage::library_path();
    let unit = |test: &str| match test {
        "lat" => "us",
        "bw" => "MB/s",
        _ => "messages/s",
    };
    let mut text = String::new();
    match options.format {
        Format::Table => {
            let _ = writeln!(
                text,
                "# {own} (own) and {} (other), medians of {} runs of each",
                directory.display(),
                options.repeats
            );
            let _ = writeln!(
                text,
                "{:<10} {:<5} {:>8} {:>12} {:>12} {:<11} {:>8} {:>17}",
                "op", "test", "bytes", "own", "other", "unit", "ratio", "95 % interval"
            );
            for line in lines {
                let (op, test, size) = &line.key;
                let r = line.ratio;
                let interval = format!("{:.3} to {:.3}", r.low, r.high);
                let size = crate::sizes::size_text(*size);
                let _ = writeln!(
                    text,
                    "{op:<10} {test:<5} {size:>8} {:>12.3} {:>12.3} {:<11} {:>8.3} {interval:>17}",
                    line.own,
                    line.other,
                    unit(test),
                    r.median
                );
            }
        }
        Format::Csv => {
            text += "op,test,size,unit,own,other,ratio,low,high,rounds\n";
            for line in lines {
                let ((op, test, size), r) = (&line.key, line.ratio);
                let _ = writeln!(
                    text,
                    "{op},{test},{size},{},{},{},{},{},{},{}",
                    unit(test),
                    line.own,
                    line.other,
                    r.median,
                    r.low,
                    r.high,
                    options.repeats
                );
            }
        }
        Format::Json => {
            let rows: Vec<_> = lines
                .iter()
                .map(|line| {
                    let ((op, test, size), r) = (&line.key, line.ratio);
                    format!(
                        "{{\"op\":{},\"test\":{},\"size\":{size},\"unit\":{},\"own\":{},\"other\":{},\"ratio\":{},\"low\":{},\"high\":{}}}",
                        json(op), json(test), json(unit(test)), line.own, line.other, r.median, r.low, r.high
                    )
                })
                .collect();
            let _ = writeln!(
                text,
                "{{\"own\":{},\"other\":{},\"rounds\":{},\"results\":[{}]}}",
                json(&own),
                json(&directory.display().to_string()),
                options.repeats,
                rows.join(",")
            );
        }
    }
    text
}
