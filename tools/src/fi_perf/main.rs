//! Measures latency, bandwidth and message rate over libfabric (fi_perf(1)).
//!
//! A client measures, a server is the other end. A control connection over TCP, in addition to the
//! fabric, exchanges parameters and addresses, and synchronizes both ends.
mod client;
mod compare;
mod control;
mod device;
mod end;
mod fabric;
mod failure;
mod memory;
mod mesh;
mod options;
mod pattern;
mod report;
mod server;
mod sizes;
mod stats;
mod usage;
mod wire;
mod worker;

use client::{Client, Report};
use control::Control;
use failure::{During as _, Failure, Outcomes, fail};
use options::{HELP, Options, Parsed, Role, parse};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Measures with a server in a child process.
fn measure_locally(options: &Options) -> Outcomes<Report> {
    let (own, theirs) = UnixStream::pair().during("socketpair")?;
    let mut command = Command::new(std::env::current_exe().during("fi_perf")?);
    command.arg("--inherited").arg(format!("--timeout={}", options.timeout));
    if let Some(domain) = &options.domain {
        command.arg(format!("--domain={domain}"));
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    let mut child = command.spawn().during("fi_perf")?;
    // The command has the other socket until here.
    drop(command);
    let report = Control::new(own.into(), Duration::from_secs_f64(options.timeout))
        .and_then(|control| Client::new(control, options))
        .and_then(Client::measure);
    // Without a peer the child ends.
    let status = child.wait().during("fi_perf")?;
    match report {
        Ok(_) if !status.success() => fail("the server failed"),
        report => report,
    }
}

/// Writes the results.
fn write_report(report: &Report, options: &Options) -> Outcomes {
    if let Some(path) = &options.samples {
        std::fs::write(path, report::samples_text(report)).during(&path.display().to_string())?;
    }
    write_text(&report::text(report, options))
}

fn write_text(text: &str) -> Outcomes {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).during("standard output")
}

fn run(options: &Options, arguments: &[String]) -> Outcomes {
    if let Role::Mesh(hosts) = &options.role {
        return write_text(&mesh::measure(options, arguments, hosts)?);
    }
    fabric::load()?;
    if let Some(wanted) = std::env::var_os("FI_PERF_LIBRARY") {
        let loaded = std::path::PathBuf::from(usage::library_path());
        let directory = loaded.canonicalize().ok().and_then(|path| path.parent().map(Into::into));
        let found = std::path::Path::new(&wanted).join("libfabric.so.1").canonicalize().ok();
        if found.and_then(|path| path.parent().map(std::path::PathBuf::from)) != directory {
            return fail(format!("{} was loaded", loaded.display()));
        }
    }
    if let Some(directory) = &options.compared {
        return write_text(&compare::compare(options, arguments, directory)?);
    }
    let report = match &options.role {
        Role::Local => measure_locally(options)?,
        Role::Client(host) => Client::new(client::connect(options, host)?, options)?.measure()?,
        Role::Server => return server::serve(options),
        Role::Inherited => return server::serve_inherited(options),
        Role::Mesh(_) => return fail("--mesh"),
    };
    write_report(&report, options)
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let result = match parse(&arguments) {
        Ok(Parsed::Help) => write_text(HELP),
        Ok(Parsed::Version) => write_text(&format!("fi_perf {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Parsed::Run(options)) => {
            let result = run(&options, &arguments);
            match &result {
                // The client prints the reason.
                Err(_) if options.role == Role::Inherited => return ExitCode::FAILURE,
                _ => result,
            }
        }
        Err(complaint) => {
            eprintln!("fi_perf: {complaint}. See fi_perf --help");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(text)) => {
            eprintln!("fi_perf: {text}");
            ExitCode::FAILURE
        }
    }
}
