//! Writes dumps.
use crate::record::record_json;
use crate::{HostDump, VERSION};
use ofi_stats::layout::{EndpointStats, words_text};
use ofi_stats::read::{StatsPage, StatsProcess, SystemStats};
use ofi_stats::show::json;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

impl HostDump {
    /// Returns the statistics of the processes of this host, read twice. `now` is the time of the
    /// second read, `tool` the version of the program.
    pub fn of_this_host(
        before: Vec<StatsProcess>,
        after: Vec<StatsProcess>,
        now: u64,
        tool: &str,
    ) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self {
            host,
            boot: boot.trim().into(),
            tool: tool.into(),
            network: crate::sockets::own_network(),
            time,
            now,
            left_out: 0,
            before,
            after,
        }
    }
}

/// Output with a count of its lines.
struct LineWriter<W> {
    output: W,
    lines: u64,
}

impl<W: Write> LineWriter<W> {
    fn line(&mut self, text: &str) -> io::Result<()> {
        self.lines += 1;
        self.output.write_all(text.as_bytes())?;
        self.output.write_all(b"\n")
    }
}

/// Writes a dump.
pub fn write_dump(dump: &HostDump, output: impl Write) -> io::Result<()> {
    let mut output = LineWriter { output, lines: 0 };
    output.line(&format!(
        "{{\"ofi_dump\":{{\"version\":{VERSION},\"tool\":{},\"host\":{},\"boot\":{},\"network\":{},\"time\":{},\
         \"now\":{},\"left_out\":{}}}}}",
        json(&dump.tool),
        json(&dump.host),
        json(&dump.boot),
        dump.network,
        dump.time,
        dump.now,
        dump.left_out
    ))?;
    let before: HashMap<_, _> = dump.before.iter().map(|process| (process.pid, process)).collect();
    for process in &dump.after {
        write_process(process, before.get(&process.pid).copied(), &mut output)?;
    }
    let end = format!("{{\"end\":{}}}", output.lines);
    output.line(&end)?;
    output.output.flush()
}

fn write_process<W: Write>(
    process: &StatsProcess,
    earlier: Option<&StatsProcess>,
    output: &mut LineWriter<W>,
) -> io::Result<()> {
    output.line(&process_json(process, earlier))?;
    for socket in &process.sockets {
        let old = earlier.and_then(|old| old.sockets.iter().find(|old| old.peer == socket.peer));
        output.line(&format!(
            "{{\"socket\":{{\"peer\":{},\"unanswered\":{},\"repeated\":{},\"earlier\":{}}}}}",
            json(&words_text(&socket.peer)),
            socket.unanswered,
            socket.repeated,
            old.map_or(0, |old| old.repeated)
        ))?;
    }
    for (index, page) in process.pages.iter().enumerate() {
        let earlier = earlier.and_then(|earlier| earlier.pages.get(index));
        let iterations = earlier.map_or_else(String::new, |page| {
            let head = ofi_stats::layout::StatsHeader {
                iterations: page.head.iterations,
                ..Default::default()
            };
            format!(",\"earlier\":{}", record_json(&head))
        });
        output.line(&format!("{{\"page\":{}{iterations}}}", record_json(&page.head)))?;
        for endpoint in &page.endpoints {
            let old = earlier.and_then(|page| {
                let same = |old: &&EndpointStats| old.serial == endpoint.serial;
                Some(summary(page, page.endpoints.iter().find(same)?))
            });
            let old =
                old.map_or_else(String::new, |old| format!(",\"earlier\":{}", record_json(&old)));
            output.line(&format!("{{\"endpoint\":{}{old}}}", record_json(endpoint)))?;
        }
        for peer in page.peers() {
            output.line(&format!("{{\"peer\":{}}}", record_json(peer)))?;
        }
    }
    Ok(())
}

/// Returns the fields of an endpoint at the first read compared by the analysis, with the
/// transfers of its peers.
fn summary(page: &StatsPage, endpoint: &EndpointStats) -> EndpointStats {
    let [sent, sent_bytes, received, received_bytes] = page.passed(endpoint);
    EndpointStats {
        serial: endpoint.serial,
        written: endpoint.written,
        iterations: endpoint.iterations,
        thread_iterations: endpoint.thread_iterations,
        posted: endpoint.posted,
        unexpected: endpoint.unexpected,
        sent,
        sent_bytes,
        received,
        received_bytes,
        ..EndpointStats::default()
    }
}

/// Returns members with the compared state of a process.
fn times_json(system: &SystemStats) -> String {
    let ran = system.ran.map_or_else(|| "null".into(), |ran| ran.to_string());
    format!("\"threads\":{},\"ran\":{ran},\"gave_way\":{}", json(&system.threads), system.gave_way)
}

fn process_json(process: &StatsProcess, earlier: Option<&StatsProcess>) -> String {
    let (system, origin) = (&process.system, &process.origin);
    let rank = origin.rank.map_or_else(|| "null".into(), |rank| rank.to_string());
    let left_out = process.left_out().numbers().into_iter().filter(|(_, count)| *count > 0);
    let left_out: Vec<_> = left_out.map(|(name, count)| format!("\"{name}\":{count}")).collect();
    let earlier = earlier.map_or_else(String::new, |old| {
        let interval = match (old.system.read_at, system.read_at) {
            (Some(then), Some(now)) => now.saturating_duration_since(then).as_nanos(),
            _ => 0,
        };
        format!(",\"earlier\":{{{},\"interval\":{interval}}}", times_json(&old.system))
    });
    format!(
        "{{\"process\":{{\"pid\":{},\"own_pid\":{},\"pid_space\":{},\"network\":{},\"rank\":{rank},\"program\":{},{},\
         \"waits_in\":{},\"polls\":{},\"descriptors\":[{},{}],\"processors\":{},\"ticks\":{},\"memory\":[{},{}],\
         \"left_out\":{{{}}}}}{earlier}}}",
        process.pid,
        origin.own_pid,
        origin.pid_space,
        origin.network,
        json(&system.program),
        times_json(system),
        json(&system.waits_in),
        system.polls,
        system.descriptors[0],
        system.descriptors[1],
        system.processors,
        system.ticks,
        system.memory[0],
        system.memory[1],
        left_out.join(",")
    )
}
