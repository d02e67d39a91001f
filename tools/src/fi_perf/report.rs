//! Output of results: table, CSV, JSON.
use crate::client::{Report, Row};
use crate::options::{Format, Options, Test};
use crate::wire::{Host, Outcome, PROTOCOL};
use ofi_stats::show::json;
use std::fmt::Write as _;

/// Percentiles of the output.
pub(crate) const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// Columns of the CSV output.
pub(crate) const CSV_COLUMNS: &str = "op,test,size,count,seconds,latency,min_us,mean_us,p50_us,p90_us,p99_us,p99.9_us,p99.99_us,max_us,\
mb_per_s,messages_per_s,sent,received,client_cpu_s,server_cpu_s,client_calls,server_calls,client_switches,server_switches";

/// Returns the word for the kind of latency.
fn latency_word(row: &Row, options: &Options) -> &'static str {
    match (row.is_half(options.parameters.bidir), row.op.is_one_sided()) {
        (true, _) => "half round trip",
        (false, true) => "operation",
        (false, false) => "exchange",
    }
}

/// Returns minimum, mean, percentiles and maximum in microseconds.
fn latency_values(row: &Row) -> Vec<f64> {
    let (all, us) = (&row.latencies, row.unit / 1000.0);
    let mut values = vec![all.min() as f64 * us, all.mean() * us];
    values.extend(PERCENTILES.map(|percent| all.percentile(percent) as f64 * us));
    values.push(all.max() as f64 * us);
    values
}

/// Returns 10^6 bytes, and messages, per second.
fn rates(row: &Row) -> (f64, f64) {
    let messages = row.count as f64 / row.seconds.max(1e-9);
    (messages * row.size as f64 / 1e6, messages)
}

fn cpu_seconds(end: &Outcome) -> f64 {
    (end.usage.user_ns + end.usage.system_ns) as f64 / 1e9
}

/// Returns system calls for each operation; a dash if they are not countable.
fn calls_each(row: &Row, end: &Outcome) -> String {
    let each = |calls: u64| format!("{:.2}", calls as f64 / row.count.max(1) as f64);
    end.usage.calls.map_or("-".into(), each)
}

/// Returns the results in the requested form.
pub(crate) fn text(report: &Report, options: &Options) -> String {
    match options.format {
        Format::Table => table(report, options),
        Format::Csv => csv(report, options),
        Format::Json => as_json(report, options),
    }
}

/// Formats a number with three significant digits or more.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn heading(report: &Report, options: &Options) -> String {
    let mut text = String::new();
    let (client, server) = (&report.client, &report.server);
    let _ = writeln!(
        text,
        "# fi_perf {}, libfabric {}: {} to {}",
        client.program, client.library, client.name, server.name
    );
    if (&client.library, &client.library_path) != (&server.library, &server.library_path) {
        let _ = writeln!(
            text,
            "# libfabric at the client: {} ({}), at the server: {} ({})",
            client.library, client.library_path, server.library, server.library_path
        );
    } else {
        let _ = writeln!(text, "# {}", client.library_path);
    }
    for setup in &report.setups {
        let connect =
            setup.connect_ns.map_or(String::new(), |ns| format!(", connected in {} us", ns / 1000));
        let _ = writeln!(
            text,
            "# {}: provider {}, domain {}, {}; opened in {} us{connect}, first operation {} us",
            setup.op.word(),
            setup.offer.provider,
            setup.offer.domain,
            options.parameters.ep.word(),
            setup.open_ns / 1000,
            setup.first_ns / 1000
        );
    }
    for (end, host) in [("client", client), ("server", server)] {
        if !host.uncounted.is_empty() {
            let _ =
                writeln!(text, "# system calls of the {end} are not countable: {}", host.uncounted);
        }
    }
    text
}

fn table(report: &Report, options: &Options) -> String {
    let mut text = heading(report, options);
    let mut last = None;
    for row in &report.rows {
        if last.replace((row.op, row.test)) != Some((row.op, row.test)) {
            let _ = match row.test {
                Test::Latency => writeln!(
                    text,
                    "\n{} latency ({}), us\n{:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7}",
                    row.op.word(),
                    latency_word(row, options),
                    "bytes",
                    "count",
                    "min",
                    "mean",
                    "50 %",
                    "90 %",
                    "99 %",
                    "99.9 %",
                    "99.99 %",
                    "max",
                    "cpu %",
                    "server",
                    "calls",
                    "server"
                ),
                Test::Bandwidth | Test::Rate => writeln!(
                    text,
                    "\n{} {}\n{:>8} {:>9} {:>9} {:>11} {:>7} {:>7} {:>7} {:>7}",
                    row.op.word(),
                    if row.test == Test::Rate { "message rate" } else { "bandwidth" },
                    "bytes",
                    "count",
                    "MB/s",
                    "messages/s",
                    "cpu %",
                    "server",
                    "calls",
                    "server"
                ),
            };
        }
        let _ = write!(text, "{:>8} {:>9}", crate::sizes::size_text(row.size), row.count);
        if row.test == Test::Latency {
            for value in latency_values(row) {
                let _ = write!(text, " {:>9}", short(value));
            }
        } else {
            let (megabytes, messages) = rates(row);
            let _ = write!(text, " {:>9} {messages:>11.0}", short(megabytes));
        }
        for end in [&row.client, &row.server] {
            let _ = write!(text, " {:>7.0}", 100.0 * cpu_seconds(end) / row.seconds.max(1e-9));
        }
        for end in [&row.client, &row.server] {
            let _ = write!(text, " {:>7}", calls_each(row, end));
        }
        text.push('\n');
        if options.histogram && row.test == Test::Latency {
            add_histogram(&mut text, row);
        }
    }
    for (test, op, size, reason) in &report.skipped {
        let _ =
            writeln!(text, "# {} {} of {size} bytes is left out: {reason}", op.word(), test.word());
    }
    text
}

/// Adds the classes of the latencies, four for each power of two.
fn add_histogram(text: &mut String, row: &Row) {
    let classes = row.latencies.classes(4);
    let most = classes.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (end, count) in classes.iter().filter(|(_, count)| *count > 0) {
        let bar = "#".repeat((count * 50 / most) as usize);
        let _ = writeln!(
            text,
            "{:>18} <= {:>9} us {count:>10} {bar}",
            "",
            short(*end as f64 * row.unit / 1000.0)
        );
    }
}

fn csv(report: &Report, options: &Options) -> String {
    let mut text = format!("{CSV_COLUMNS}\n");
    for row in &report.rows {
        let latency = row.test == Test::Latency;
        let mut cells = vec![
            row.op.word().to_owned(),
            row.test.word().into(),
            row.size.to_string(),
            row.count.to_string(),
            format!("{:.9}", row.seconds),
            if latency { latency_word(row, options).into() } else { String::new() },
        ];
        let values = latency_values(row);
        cells
            .extend(values.iter().map(|v| if latency { format!("{v:.4}") } else { String::new() }));
        let (megabytes, messages) = rates(row);
        cells.extend([format!("{megabytes:.3}"), format!("{messages:.1}")]);
        cells.extend(
            [row.client.sent + row.server.sent, row.client.received + row.server.received]
                .map(|n| n.to_string()),
        );
        cells.extend([&row.client, &row.server].map(|end| format!("{:.6}", cpu_seconds(end))));
        cells.extend(
            [&row.client, &row.server]
                .map(|end| end.usage.calls.map_or(String::new(), |n| n.to_string())),
        );
        cells.extend(
            [&row.client, &row.server]
                .map(|end| (end.usage.voluntary + end.usage.involuntary).to_string()),
        );
        let _ = writeln!(text, "{}", cells.join(","));
    }
    text
}

/// Returns a JSON object.
fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| format!("{}:{value}", json(name))).collect();
    format!("{{{}}}", fields.join(","))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn host_json(host: &Host) -> String {
    let countable = host.uncounted.is_empty();
    object(&[
        ("name", json(&host.name)),
        ("system", json(&host.system)),
        ("fi_perf", json(&host.program)),
        ("libfabric", json(&host.library)),
        ("libfabric_path", json(&host.library_path)),
        (
            "system_calls",
            if countable {
                json("counted")
            } else {
                json(&format!("not countable: {}", host.uncounted))
            },
        ),
    ])
}

fn outcome_json(end: &Outcome) -> String {
    let usage = &end.usage;
    object(&[
        ("seconds", format!("{:.9}", end.elapsed_ns as f64 / 1e9)),
        ("sent", end.sent.to_string()),
        ("received", end.received.to_string()),
        ("user_cpu_s", format!("{:.6}", usage.user_ns as f64 / 1e9)),
        ("system_cpu_s", format!("{:.6}", usage.system_ns as f64 / 1e9)),
        ("voluntary_switches", usage.voluntary.to_string()),
        ("involuntary_switches", usage.involuntary.to_string()),
        ("system_calls", usage.calls.map_or("null".into(), |calls| calls.to_string())),
    ])
}

fn row_json(row: &Row, options: &Options) -> String {
    let (megabytes, messages) = rates(row);
    let mut fields = vec![
        ("op", json(row.op.word())),
        ("test", json(row.test.word())),
        ("size", row.size.to_string()),
        ("count", row.count.to_string()),
        ("seconds", format!("{:.9}", row.seconds)),
        ("mb_per_s", format!("{megabytes:.3}")),
        ("messages_per_s", format!("{messages:.1}")),
        ("verified", options.parameters.verify.to_string()),
        ("client", outcome_json(&row.client)),
        ("server", outcome_json(&row.server)),
    ];
    if row.test == Test::Latency {
        let values = latency_values(row);
        let mut names = vec!["min".to_owned(), "mean".into()];
        names.extend(PERCENTILES.map(|percent| format!("p{percent}")));
        names.push("max".into());
        let values: Vec<_> =
            names.iter().zip(&values).map(|(n, v)| (&**n, format!("{v:.4}"))).collect();
        fields.push(("latency", json(latency_word(row, options))));
        fields.push(("latency_us", object(&values)));
        fields.push(("samples", row.latencies.total().to_string()));
        if options.histogram {
            let class = |(end, count): &(u64, u64)| {
                format!("[{:.4},{count}]", *end as f64 * row.unit / 1000.0)
            };
            fields.push(("histogram_us", list(row.latencies.classes(16).iter().map(class))));
        }
    }
    object(&fields)
}

fn as_json(report: &Report, options: &Options) -> String {
    let parameters: Vec<_> = options.parameters.pairs();
    let parameters: Vec<_> = parameters.iter().map(|(name, value)| (*name, json(value))).collect();
    let setup = |setup: &crate::client::Setup| {
        let offer = &setup.offer;
        let version = offer.provider_version;
        object(&[
            ("op", json(setup.op.word())),
            ("provider", json(&offer.provider)),
            ("provider_version", json(&format!("{}.{}", version >> 16, version & 0xffff))),
            ("fabric", json(&offer.fabric)),
            ("domain", json(&offer.domain)),
            ("open_us", format!("{:.3}", setup.open_ns as f64 / 1000.0)),
            (
                "connect_us",
                setup.connect_ns.map_or("null".into(), |ns| format!("{:.3}", ns as f64 / 1000.0)),
            ),
            ("first_operation_us", format!("{:.3}", setup.first_ns as f64 / 1000.0)),
        ])
    };
    let skipped = report.skipped.iter().map(|(test, op, size, reason)| {
        object(&[
            ("op", json(op.word())),
            ("test", json(test.word())),
            ("size", size.to_string()),
            ("reason", json(reason)),
        ])
    });
    object(&[
        ("fi_perf", json(&report.client.program)),
        ("protocol", PROTOCOL.to_string()),
        ("parameters", object(&parameters)),
        ("client", host_json(&report.client)),
        ("server", host_json(&report.server)),
        ("setup", list(report.setups.iter().map(setup))),
        ("results", list(report.rows.iter().map(|row| row_json(row, options)))),
        ("skipped", list(skipped)),
    ]) + "\n"
}

/// Returns all stored latencies, one a line: operation, size, nanoseconds.
pub(crate) fn samples_text(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.rows {
        for sample in &row.samples {
            let _ =
                writeln!(text, "{} {} {:.1}", row.op.word(), row.size, *sample as f64 * row.unit);
        }
    }
    text
}
