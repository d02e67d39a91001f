//! Lists the processes using the library (fi_ps(1)).
mod cli;

use cli::{CliOptions, endpoint_cells, is_listed, print, processes_json, table};
use ofi_stats::layout::EndpointStats;
use ofi_stats::read::{self, StatsPage};
use ofi_stats::show::address;
use std::process::ExitCode;

const HELP: &str = "\
Usage: fi_ps [-a] [--json] [PID...]

Lists the processes of this host that use libfabric, with their endpoints: as far
as this user may look at them, and they were not started with FI_STATS=0.

  -a           endpoints that serve those of a utility provider (ofi_rxm) as well
  --json       everything that is known, as JSON
  -h, --help   this text
";

/// Returns the number of subflows of an endpoint's connections over MPTCP.
fn subflows(page: &StatsPage, endpoint: &EndpointStats) -> u64 {
    page.peers_of(endpoint).iter().fold(0, |sum, peer| peer.subflows.saturating_add(sum))
}

fn main() -> ExitCode {
    let options = CliOptions::parse("fi_ps", HELP, &["-a", "--json"], &[]);
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
