//! Lists the processes using the library (fi_ps(1)).
mod cli;

use cli::{
    CliOptions, CliSyntax, LookedAt, complain, endpoint_cells, is_listed, now, print,
    processes_json, table,
};
use ofi_hosts::HostDump;
use ofi_hosts::sockets::add_sockets;
use ofi_hosts::write::write_dump;
use ofi_stats::layout::EndpointStats;
use ofi_stats::read::{self, StatsPage};
use ofi_stats::show::address;
use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: fi_ps [-a] [--json] [PID...]
       fi_ps --dump [-i SECONDS] [-o FILE] [PID...]

Lists the processes of this host that use libfabric, with their endpoints: as far
as this user may look at them, and they were not started with FI_STATS=0.

  -a           endpoints that serve those of a utility provider (ofi_rxm) as well
  --json       everything that is known, as JSON
  --dump       the same twice, as a text for fi_doctor on another host
  -i SECONDS   time between both (default 2)
  -o FILE      writes that text to FILE instead of standard output
  -h, --help   this text
";

/// Returns the number of subflows of an endpoint's connections over MPTCP.
fn subflows(page: &StatsPage, endpoint: &EndpointStats) -> u64 {
    page.peers_of(endpoint).iter().fold(0, |sum, peer| peer.subflows.saturating_add(sum))
}

const SYNTAX: CliSyntax<'static> = CliSyntax {
    flags: &["-a", "--json", "--dump"],
    values: &["-i"],
    words: &["-o"],
    takes_files: false,
};

/// Writes the processes, read twice, for the analysis on another host.
fn dump(options: &CliOptions) -> ExitCode {
    let mut before = options.look("fi_ps");
    add_sockets(&mut before.processes);
    std::thread::sleep(Duration::from_secs_f64(options.value("-i", 2.0)));
    let pids: Vec<_> = before.processes.iter().map(|one| one.pid).collect();
    let mut after = LookedAt::default();
    // Without numbers of processes all would be read again.
    if !pids.is_empty() {
        after = CliOptions { pids, ..CliOptions::default() }.look("fi_ps");
    }
    add_sockets(&mut after.processes);
    let version = env!("CARGO_PKG_VERSION");
    let is_missing = after.processes.len() < options.pids.len();
    let mut dump = HostDump::of_this_host(before.processes, after.processes, now(), version);
    dump.left_out = before.left_out.saturating_add(after.left_out) as u64;
    let file = options.word("-o");
    let written = match file {
        Some(file) => File::create(file).and_then(|file| write_dump(&dump, BufWriter::new(file))),
        None => write_dump(&dump, BufWriter::new(std::io::stdout().lock())),
    };
    if let Err(error) = written {
        complain("fi_ps", &format!("{}: {error}", file.unwrap_or("standard output")));
    }
    if is_missing { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

fn main() -> ExitCode {
    let options = CliOptions::parse_with("fi_ps", HELP, &SYNTAX);
    if options.has("--dump") {
        return dump(&options);
    }
    let of_words = options.words.first().map(|(name, _)| name);
    if let Some(name) = of_words.or_else(|| options.values.first().map(|(name, _)| name)) {
        complain("fi_ps", &format!("{name} is for --dump"));
    }
    // All that the system says is for JSON alone; of a thousand processes it takes long.
    let json = options.has("--json");
    let read_one = if json { read::process } else { read::process_by_name };
    let looked = options.look_by("fi_ps", read_one);
    if json {
        print(&processes_json(&looked));
    } else {
        let heading =
            ["PID", "PROGRAM", "PROVIDER", "TYPE", "PEERS", "SENT", "BYTES", "RECEIVED", "BYTES"];
        let mut rows = vec![heading.map(String::from).to_vec()];
        // Only connections over MPTCP have subflows.
        let pages = || looked.processes.iter().flat_map(|process| &process.pages);
        let multipath = pages().any(|page| page.endpoints.iter().any(|ep| subflows(page, ep) > 0));
        rows[0].extend(multipath.then(|| "SUBFLOWS".into()));
        rows[0].push("ADDRESS".into());
        for process in &looked.processes {
            for page in &process.pages {
                for endpoint in &page.endpoints {
                    if !is_listed(process, endpoint, options.has("-a")) {
                        continue;
                    }
                    let passed = page.passed(endpoint).map(|number| number as f64);
                    let mut row = endpoint_cells(process, page, endpoint, passed);
                    row.extend(multipath.then(|| subflows(page, endpoint).to_string()));
                    row.push(address(&endpoint.address));
                    rows.push(row);
                }
                if page.endpoints.is_empty() {
                    let mut row = vec![String::from("-"); rows[0].len()];
                    row[0] = process.pid.to_string();
                    row[1].clone_from(&process.system.program);
                    row[2] = page.provider();
                    rows.push(row);
                }
            }
        }
        print(&(table(&rows) + &looked.left_out_text()));
    }
    let missing = !options.pids.is_empty() && looked.processes.len() < options.pids.len();
    if missing { ExitCode::from(2) } else { ExitCode::SUCCESS }
}
