//! Text of `fi_info --protocols`.
use ofi::info::{InfoChain, InfoRef, TransferPath, tostr};
use std::fmt::Write;

/// Path logged by a provider during its getinfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LoggedPath {
    pub(super) prov: String,
    pub(super) path: TransferPath,
}

/// Infos of one provider name and endpoint type.
#[derive(PartialEq, Eq)]
struct Heading {
    prov: String,
    ep_type: u32,
    inject_size: usize,
    max_msg_size: usize,
}

impl Heading {
    fn of(info: InfoRef<'_>) -> Self {
        let (ep, tx) = (info.ep(), info.tx());
        Self {
            prov: super::name(info.prov_name()),
            ep_type: info.ep_type().raw(),
            inject_size: tx.map_or(0, |tx| tx.inject_size),
            max_msg_size: ep.map_or(0, |ep| ep.max_msg_size),
        }
    }

    /// Returns the providers of the name, from the upper one to its core.
    fn layers(&self) -> impl Iterator<Item = &str> {
        self.prov.rsplit(';')
    }
}

/// Returns the paths of each provider with an info in the list, under a heading for each endpoint
/// type.
pub(super) fn text(chain: &InfoChain, paths: &[LoggedPath]) -> String {
    let mut text = String::new();
    let mut headings: Vec<Heading> = Vec::new();
    let mut printed = Vec::new();
    for info in chain.iter() {
        let heading = Heading::of(info);
        if headings.contains(&heading) {
            continue;
        }
        text += &section(&heading, paths, &mut printed);
        headings.push(heading);
    }
    text
}

/// Returns the part of an info. A table printed before is not repeated.
fn section(heading: &Heading, paths: &[LoggedPath], printed: &mut Vec<String>) -> String {
    let mut text = String::new();
    let Heading { prov, ep_type, inject_size, max_msg_size } = heading;
    let ep_type = tostr::ep_type(*ep_type);
    let _ = writeln!(text, "provider: {prov}\n    type: {ep_type}");
    let _ = writeln!(text, "    inject_size: {inject_size}\n    max_msg_size: {max_msg_size}");
    for layer in heading.layers() {
        let mut rows: Vec<&TransferPath> = Vec::new();
        for logged in paths.iter().filter(|logged| logged.prov.eq_ignore_ascii_case(layer)) {
            if !rows.contains(&&logged.path) {
                rows.push(&logged.path);
            }
        }
        let _ = match rows[..] {
            _ if printed.iter().any(|before| before == layer) => {
                writeln!(text, "    paths of {layer}: as above")
            }
            [] => {
                writeln!(text, "    paths of {layer}: unknown; this provider does not state them")
            }
            _ => {
                printed.push(layer.to_owned());
                writeln!(text, "    paths of {layer}:\n{}", table(&rows))
            }
        };
    }
    text
}

/// Returns the rows in columns; the variables are on a line of their own.
fn table(rows: &[&TransferPath]) -> String {
    let cells = |row: &&TransferPath| [row.transfers.clone(), row.sizes_text(), row.path.clone()];
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let heads = ["transfers", "bytes", "path"].map(str::to_owned);
    let width = |at: usize| {
        let lengths = cells.iter().chain([&heads]).map(|cells| cells[at].len());
        lengths.max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    let line = |[a, b, c]: &[String; 3], text: &str| {
        let [x, y, z] = widths;
        format!("{:8}{a:x$}  {b:y$}  {c:z$}  {text}\n", "").trim_end().to_owned() + "\n"
    };
    let mut text = line(&heads, "condition, effect [variables]");
    for (cells, row) in cells.iter().zip(rows) {
        let limits = row.limits_text();
        let limits = if limits.is_empty() { limits } else { format!(" [{limits}]") };
        text += &line(cells, &format!("{}{limits}", row.text));
    }
    text.trim_end().to_owned()
}
