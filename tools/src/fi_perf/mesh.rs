//! Measurements of each pair of several hosts (`--mesh`), started through a remote shell.
use crate::failure::{During as _, Failure, Outcomes, fail};
use crate::options::{Format, Options};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

/// Maximum length of the output of a remote program.
const MAX_OUTPUT: u64 = 64 << 20;

/// Returns the arguments of the remote programs, quoted for a shell.
pub(crate) fn remote_arguments(arguments: &[String]) -> Vec<String> {
    let (mut rest, mut skips) = (Vec::new(), false);
    for argument in arguments {
        let is_option = |name: &str| argument == name || argument.starts_with(&format!("{name}="));
        if std::mem::take(&mut skips) {
            continue;
        }
        if is_option("--mesh") || is_option("--rsh") {
            skips = !argument.contains('=');
        } else if !["--csv", "--json"].contains(&&**argument) {
            rest.push(format!("'{}'", argument.replace('\'', "'\\''")));
        }
    }
    rest
}

/// Starts this program on a host.
fn start(options: &Options, host: &str, arguments: &[String]) -> Outcomes<Child> {
    let mut words = options.remote_shell.split_whitespace();
    let shell = words.next().ok_or_else(|| Failure("--rsh is empty".into()))?;
    let program = std::env::current_exe().during("fi_perf")?;
    let program = format!("'{}'", program.display().to_string().replace('\'', "'\\''"));
    let mut command = Command::new(shell);
    command.args(words).arg(host).arg(program).args(arguments);
    // A closed input ends the server.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().during(shell)
}

/// Returns the output of a program; an error if it fails.
fn output(mut child: Child, host: &str) -> Outcomes<String> {
    let mut text = String::new();
    if let Some(from) = child.stdout.take() {
        from.take(MAX_OUTPUT).read_to_string(&mut text).during(host)?;
    }
    if child.wait().during(host)?.success() {
        Ok(text)
    } else {
        fail(format!("fi_perf failed on {host}"))
    }
}

/// Measures one pair: a server on one host, a client on the other one.
fn measure_pair(
    options: &Options,
    arguments: &[String],
    server: &str,
    client: &str,
) -> Outcomes<String> {
    let named = ["--server", "--once", "--port", "0"].map(String::from);
    let arguments = remote_arguments(arguments);
    let mut listener = start(options, server, &named)?;
    let mut line = String::new();
    if let Some(from) = &mut listener.stdout {
        BufReader::new(from.take(64)).read_line(&mut line).during(server)?;
    }
    let port = line.strip_prefix("port ").and_then(|port| port.trim().parse::<u16>().ok());
    let Some(port) = port else {
        let _ = listener.kill();
        let _ = listener.wait();
        return fail(format!("the server on {server} does not listen"));
    };
    let mut named = vec![format!("--port={port}"), "--csv".into()];
    named.extend(arguments);
    named.push(format!("'{}'", server.replace('\'', "'\\''")));
    let result = start(options, client, &named).and_then(|child| output(child, client));
    if result.is_err() {
        let _ = listener.kill();
    }
    let _ = listener.wait();
    result
}

/// Measures each pair and returns one table.
pub(crate) fn measure(
    options: &Options,
    arguments: &[String],
    hosts: &[String],
) -> Outcomes<String> {
    if options.format == Format::Json {
        return fail("--mesh has no JSON output: use --csv");
    }
    let mut text = String::new();
    for (at, server) in hosts.iter().enumerate() {
        for client in &hosts[at + 1..] {
            for (number, line) in
                measure_pair(options, arguments, server, client)?.lines().enumerate()
            {
                if number > 0 {
                    text += &format!("{client},{server},{line}\n");
                } else if text.is_empty() {
                    text += &format!("client,server,{line}\n");
                }
            }
        }
    }
    if options.format == Format::Csv { Ok(text) } else { Ok(table(&text)) }
}

/// Columns of the table of hosts.
const COLUMNS: [&str; 8] =
    ["client", "server", "op", "test", "size", "p50_us", "mb_per_s", "messages_per_s"];

/// Returns some columns of CSV as a table.
pub(crate) fn table(csv: &str) -> String {
    let rows: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let Some(names) = rows.first() else { return String::new() };
    let columns: Vec<_> =
        COLUMNS.iter().filter_map(|name| names.iter().position(|one| one == name)).collect();
    let cell = |row: &Vec<&str>, at: usize| row.get(at).copied().unwrap_or_default().to_owned();
    let width = |at: usize| rows.iter().map(|row| cell(row, at).len()).max().unwrap_or(0);
    let line = |row: &Vec<&str>| {
        let cells: Vec<_> =
            columns.iter().map(|at| format!("{:>1$}", cell(row, *at), width(*at))).collect();
        cells.join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}
