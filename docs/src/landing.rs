//! Charts of the first page: a comparison with upstream libfabric, and charts of single rows.
use super::escape;
use std::fmt::Write as _;

/// A row of the comparison.
struct ComparedRow {
    label: &'static str,
    lower_is_better: bool,
    /// Row of upstream libfabric in the figures: bench and title.
    theirs: (&'static str, &'static str),
    /// Row of this library.
    ours: (&'static str, &'static str),
}

/// Returns a row with both figures from one row of `benches/run`.
const fn same_row(label: &'static str, lower: bool, title: &'static str) -> ComparedRow {
    ComparedRow { label, lower_is_better: lower, theirs: ("run", title), ours: ("run", title) }
}

/// Rows of the table in README.md.
const COMPARED: [ComparedRow; 6] = [
    ComparedRow {
        label: "64 B half round trip, us",
        lower_is_better: true,
        theirs: ("run", "64 B half-RTT, us, rdm"),
        ours: ("local", "64 B half-RTT, us"),
    },
    same_row("the same over TCP, us", true, "64 B half-RTT, us, rdm"),
    same_row("64 B messages over TCP, 1000/s", false, "64 B messages, 1000/s, rdm"),
    same_row("64 B remote reads over TCP, 1000/s", false, "64 B reads, 1000/s, rdm"),
    same_row("1 MiB messages over TCP, MB/s", false, "1 MiB bandwidth, MB/s, rdm"),
    same_row("start to first message, ms", true, "start to first message, ms, rdm"),
];

/// Titles of the charts on the first page of the site.
const SHOWN: [&str; 6] = [
    "64 B half-RTT, us, rdm",
    "64 B messages, 1000/s, rdm",
    "64 B reads, 1000/s, rdm",
    "1 MiB bandwidth, MB/s, rdm",
    "start to first message, ms, rdm",
    "64 B half-RTT, us",
];

/// Returns the figure of a row: lines of a bench, a title, a library and a median.
fn figure(figures: &str, (bench, title): (&str, &str), library: &str) -> Option<f64> {
    figures.lines().find_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [b, t, l, value] if (b, t, l) == (bench, title, library) => value.parse().ok(),
        _ => None,
    })
}

fn decimal(value: f64) -> String {
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$}")
}

/// Draws the comparison, or returns `None` if a figure is missing. The bars of a row have the scale
/// of its larger figure.
pub(crate) fn comparison_chart(figures: &str) -> Option<String> {
    let height = 40 + 36 * COMPARED.len();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" width=\"760\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"760\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"4\" y=\"18\" font-weight=\"bold\">Two processes of one host, provider tcp</text>\n\
         <rect x=\"400\" y=\"8\" width=\"12\" height=\"11\" fill=\"#a0aec0\"/><text x=\"417\" y=\"18\">libfabric 2.x</text>\n\
         <rect x=\"520\" y=\"8\" width=\"12\" height=\"11\" fill=\"#2b6cb0\"/><text x=\"537\" y=\"18\">this library</text>\n"
    );
    for (at, row) in COMPARED.iter().enumerate() {
        let theirs = figure(figures, row.theirs, "original, tcp")?;
        let ours = figure(figures, row.ours, "ours, tcp")?;
        let y = 34 + 36 * at;
        let better = if row.lower_is_better { "lower is better" } else { "higher is better" };
        let _ = writeln!(
            out,
            "<text x=\"4\" y=\"{}\">{}</text><text x=\"4\" y=\"{}\" font-size=\"11\" fill=\"#4a5568\">{better}</text>",
            y + 13,
            escape(row.label),
            y + 26,
        );
        for (line, value, colour) in [(0, theirs, "#a0aec0"), (1, ours, "#2b6cb0")] {
            let wide = (value / theirs.max(ours) * 400.0).max(2.0);
            let top = y + 14 * line;
            let _ = writeln!(
                out,
                "<rect x=\"250\" y=\"{top}\" width=\"{wide:.0}\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{}\">{}</text>",
                256.0 + wide,
                top + 11,
                decimal(value)
            );
        }
    }
    Some(out + "</svg>\n")
}

/// Returns the text of the first page with its charts: the first one of each title. `charts` has a
/// line for each chart, with links relative to `docs`.
pub(crate) fn shown_charts(charts: &str) -> String {
    let mut out =
        "## Charts\n\nLower is better for latencies and times, higher for rates and bandwidths. \
                   [Performance](docs/benchmarks.md) has all charts.\n"
            .to_owned();
    for shown in SHOWN {
        let is_shown = |line: &&str| line.starts_with(&format!("![{shown}: "));
        if let Some(line) = charts.lines().find(is_shown) {
            let _ = write!(out, "\n{}\n", line.replace("](chart-", "](docs/chart-"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_figures() -> String {
        COMPARED.iter().fold(String::new(), |mut text, row| {
            let _ = writeln!(text, "{}\t{}\toriginal, tcp\t200", row.theirs.0, row.theirs.1);
            let _ = writeln!(text, "{}\t{}\tours, tcp\t4.5", row.ours.0, row.ours.1);
            text
        })
    }

    #[test]
    fn a_comparison_has_two_bars_for_each_row() {
        let chart = comparison_chart(&all_figures()).unwrap();
        assert_eq!(chart.matches("height=\"12\"").count(), 2 * COMPARED.len());
        assert!(
            chart.contains("width=\"400\"") && chart.contains(">200<") && chart.contains(">4.50<")
        );
    }

    #[test]
    fn a_comparison_without_all_figures_is_not_drawn() {
        let figures = all_figures().replacen("ours, tcp", "ours, shm", 1);
        assert!(comparison_chart(&figures).is_none());
    }

    #[test]
    fn the_first_page_shows_chosen_charts_with_links_from_the_top() {
        let charts = "![64 B half-RTT, us: ours 1](chart-3.svg)\n![other: ours 1](chart-4.svg)\n\
                      ![64 B half-RTT, us: ours 2](chart-5.svg)\n";
        let shown = shown_charts(charts);
        assert!(shown.contains("](docs/chart-3.svg)") && shown.matches("chart-").count() == 1);
    }
}
