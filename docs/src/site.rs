//! Stages the documentation for mdBook, which makes a site of it (`make docs`).
//!
//! ```text
//! site ROOT FIGURES DIR      ROOT is the repository, FIGURES what benchmarks wrote (BENCH_FIGURES)
//! ```
//!
//! Below `DIR/src` go the texts of the repository at their own places, the manual pages in `man`
//! with their prototypes, and a chart of each row of figures. References as `fi_cq(3)` become
//! links; links to files that are not in the site become plain text. It is an error when a text
//! links to what is not in the repository, or a text is in no chapter.
#![forbid(unsafe_code)]
mod growth;
mod landing;
mod tables;

use growth::growth_charts;
use landing::{comparison_chart, shown_charts};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use tables::{DocResult, Tables, markdown, read_text, write_text};

/// Chapters: a heading, and its texts.
const CHAPTERS: [(&str, &[(&str, &str)]); 2] = [
    (
        "Use",
        &[
            ("docs/use.md", "Use it with a program"),
            ("docs/which-provider.md", "Which provider should I use?"),
            ("docs/faq.md", "Questions and answers"),
            ("docs/migration.md", "Migration from the original"),
            ("docs/tuning.md", "Tuning"),
            ("docs/tracing.md", "Tracing"),
            ("docs/hangs.md", "Jobs that hang"),
            ("docs/benchmarks.md", "Performance"),
            ("FEATURES.md", "Features"),
            ("SECURITY.md", "Security"),
            ("docs/compatibility.md", "Compatibility"),
            ("docs/foreign-plug-ins.md", "Foreign plug-ins"),
            ("examples/README.md", "Example programs"),
        ],
    ),
    (
        "Build and development",
        &[
            ("ARCHITECTURE.md", "Architecture"),
            ("CONTRIBUTING.md", "Contributing"),
            ("docs/glossary.md", "Glossary"),
            ("docs/unsafe-code.md", "Modules with unsafe code"),
            ("docs/conformance.md", "Conformance"),
            ("docs/new-provider.md", "A new provider"),
            ("docs/adding-a-flag.md", "Adding a capability flag"),
            ("docs/adding-a-counter.md", "Adding a counter"),
            ("docs/packaging.md", "Packages and releases"),
            ("CHANGELOG.md", "Changes"),
        ],
    ),
];

/// Images that texts contain, besides charts.
const DIAGRAMS: [&str; 3] = [COMPARISON, "docs/layers.svg", "docs/tagged-send.svg"];

/// The chart of README.md.
const COMPARISON: &str = "docs/beside.svg";

/// What texts may refer to.
struct SitePages {
    /// Paths of the site.
    texts: BTreeSet<String>,
    /// The page of the manual that describes a name of a section, as `fi_cq_read.3`.
    manual: BTreeMap<String, String>,
}

/// A path relative to the folder of `page`, from the top.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => _ = parts.pop(),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

impl SitePages {
    /// Text that is no code, with references to manual pages as links from `page`.
    fn references(&self, page: &str, text: &str) -> String {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut out = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('(') {
            let start = rest[..open].rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
            let section = rest[open..].get(1..2).filter(|_| rest[open..].get(2..3) == Some(")"));
            let manual = section.and_then(|section| {
                self.manual
                    .get(&format!("{}.{section}", &rest[start..open]))
                    .filter(|_| start < open)
            });
            let Some(manual) = manual else {
                out.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
                continue;
            };
            let up = "../".repeat(page.matches('/').count());
            let (name, end) = (&rest[start..open], open + 3);
            let _ =
                write!(out, "{}[{name}{}]({up}man/{manual}.md)", &rest[..start], &rest[open..end]);
            rest = &rest[end..];
        }
        out + rest
    }

    /// A line that is in no fence. `exists` says of a path whether the repository has it.
    fn line(&self, page: &str, line: &str, exists: &dyn Fn(&str) -> bool) -> DocResult<String> {
        let mut out = String::new();
        for (at, part) in line.split('`').enumerate() {
            if at > 0 {
                out.push('`');
            }
            if at % 2 == 1 {
                out.push_str(part);
                continue;
            }
            let mut rest = part;
            while let Some(open) = rest.find('[') {
                let link = rest[open..].split_once("](").and_then(|(text, after)| {
                    let (target, after) = after.split_once(')')?;
                    (!text[1..].contains('[')).then_some((&text[1..], target, after))
                });
                let Some((text, target, after)) = link else {
                    out.push_str(&self.references(page, &rest[..=open]));
                    rest = &rest[open + 1..];
                    continue;
                };
                out.push_str(&self.references(page, &rest[..open]));
                let path = resolve(page, target.split('#').next().unwrap_or_default());
                let is_image = path.ends_with(".svg") && exists(&path);
                let is_page = self.texts.contains(&path);
                if target.contains("://") || target.starts_with('#') || is_page || is_image {
                    let _ = write!(out, "[{text}]({target})");
                } else if exists(&path) {
                    out.push_str(text);
                } else {
                    return Err(format!("{page}: no {target} to link to"));
                }
                rest = after;
            }
            out.push_str(&self.references(page, rest));
        }
        Ok(out)
    }

    /// A whole text.
    fn text(&self, page: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> DocResult<String> {
        let (mut out, mut code) = (String::new(), false);
        for line in text.lines() {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            let line = if code || fence { line.into() } else { self.line(page, line, exists)? };
            let _ = writeln!(out, "{line}");
        }
        Ok(out)
    }
}

/// A page of the manual with its directives answered, and the calls that it describes.
fn manual_page(name: &str, source: &str, tables: &Tables) -> DocResult<(String, Vec<String>)> {
    let (mut out, mut calls) = (String::new(), Vec::new());
    for line in source.lines() {
        let directive = line.strip_prefix('{').and_then(|line| line.strip_suffix('}'));
        let Some((what, of)) = directive.and_then(|directive| directive.split_once(": ")) else {
            let _ = writeln!(out, "{line}");
            continue;
        };
        out.push_str("```c\n");
        for of in of.split(' ') {
            let known = match what {
                "include" => Some(format!("#include <{of}>")),
                "calls" => tables.calls.get(of).cloned(),
                "struct" => tables.structs.get(of).map(|text| format!("struct {of} {{\n{text}}};")),
                _ => None,
            };
            let text = known.ok_or_else(|| format!("{name}.md: {{{what}: {of}}} is not known"))?;
            let _ = writeln!(out, "{text}");
            if what == "calls" {
                calls.push(of.to_owned());
            }
        }
        out.push_str("```\n");
    }
    Ok((out, calls))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A chart of bars: who, and how much.
fn chart(title: &str, bars: &[(String, f64)]) -> String {
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let height = 34 + 22 * bars.len();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {height}\" width=\"720\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"720\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"4\" y=\"18\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    for (at, (who, value)) in bars.iter().enumerate() {
        let y = 30 + 22 * at;
        let wide = (value / most * 400.0).max(1.0);
        let colour = if who.starts_with("ours") { "#2b6cb0" } else { "#a0aec0" };
        let _ = writeln!(
            out,
            "<text x=\"4\" y=\"{}\">{}</text><rect x=\"220\" y=\"{y}\" width=\"{wide:.0}\" height=\"17\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{}\">{}</text>",
            y + 13,
            escape(who),
            226.0 + wide,
            y + 13,
            if *value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
        );
    }
    out + "</svg>\n"
}

/// The charts of figures, and the text that shows them. Each line of `figures` is a bench, a row's
/// title, who, and a median, with tabs between; lines of two columns say what a bench was run on.
fn charts(figures: &str) -> DocResult<(Vec<(String, String)>, String)> {
    let mut rows: Vec<(&str, &str, Vec<(String, f64)>)> = Vec::new();
    let (mut files, mut text, mut last) = (Vec::new(), String::new(), "");
    let mut notes = BTreeMap::new();
    for line in figures.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [bench, note] => _ = notes.insert(bench, note),
            [bench, title, who, value] => {
                // A row that failed has no figure.
                let Ok(value) = value.parse::<f64>() else { continue };
                match rows.iter_mut().find(|(of, known, _)| (*of, *known) == (bench, title)) {
                    Some((_, _, bars)) => bars.push((who.into(), value)),
                    None => rows.push((bench, title, vec![(who.into(), value)])),
                }
            }
            _ => return Err(format!("no line of figures: {line}")),
        }
    }
    for (bench, title, bars) in &rows {
        if last != *bench {
            let _ = writeln!(text, "\n## `{bench}`\n");
            if let Some(note) = notes.get(bench) {
                let _ = writeln!(text, "{note}\n");
            }
            last = bench;
        }
        let name = format!("chart-{}.svg", files.len() + 1);
        let said: Vec<_> = bars.iter().map(|(who, value)| format!("{who} {value}")).collect();
        let _ = writeln!(text, "![{title}: {}]({name})\n", said.join(", "));
        files.push((name, chart(title, bars)));
    }
    Ok((files, text))
}

/// All files of the site's source, by their paths.
fn stage(root: &Path, figures: &str) -> DocResult<BTreeMap<String, String>> {
    let tables = Tables::read(&root.join("ctest/abi"))?;
    let mut sources =
        BTreeMap::from([("README.md".to_owned(), read_text(&root.join("README.md"))?)]);
    let mut summary = "# Summary\n\n[libfabric in Rust](README.md)\n".to_owned();
    for (heading, texts) in CHAPTERS {
        let _ = writeln!(summary, "\n# {heading}\n");
        for (path, title) in texts {
            let _ = writeln!(summary, "- [{title}]({path})");
            sources.insert((*path).to_owned(), read_text(&root.join(path))?);
        }
    }
    if let Some(file) = markdown(&root.join("docs"))?
        .keys()
        .find(|stem| !sources.contains_key(&format!("docs/{stem}.md")))
    {
        return Err(format!("docs/{file}.md is in no chapter"));
    }
    let mut manual = BTreeMap::new();
    summary.push_str("\n# Manual pages\n\n");
    for (file, source) in markdown(&root.join("docs/man"))? {
        let (text, calls) = manual_page(&file, &source, &tables)?;
        let section = file.rsplit_once('.').map_or("", |(_, section)| section);
        manual.extend(calls.iter().map(|call| (format!("{call}.{section}"), file.clone())));
        manual.insert(file.clone(), file.clone());
        let title = file.replacen(&format!(".{section}"), &format!("({section})"), 1);
        let _ = writeln!(summary, "- [{title}](man/{file}.md)");
        sources.insert(format!("man/{file}.md"), text);
    }
    let pages = SitePages { texts: sources.keys().cloned().collect(), manual };
    let exists = |path: &str| root.join(path).exists();
    let (mut charts, body) = charts(figures)?;
    let (growth, grows) = growth_charts(&read_text(&root.join("docs/growth.tsv"))?)?;
    charts.extend(growth);
    let mut files = BTreeMap::new();
    for (page, source) in &sources {
        let source = if page == "docs/benchmarks.md" {
            source.replace("{charts}", &body).replace("{growth}", &grows)
        } else if page == "README.md" {
            source.replacen(
                "\n## Install it\n",
                &format!("\n{}\n## Install it\n", shown_charts(&body)),
                1,
            )
        } else {
            source.clone()
        };
        // What the pages of charts link to is made here.
        let is_chart = |path: &str| charts.iter().any(|(name, _)| path == format!("docs/{name}"));
        let exists = |path: &str| exists(path) || is_chart(path);
        let text = if page == "docs/benchmarks.md" {
            source
        } else {
            pages.text(page, &source, &exists)?
        };
        files.insert(format!("src/{page}"), text);
    }
    for diagram in DIAGRAMS {
        files.insert(format!("src/{diagram}"), read_text(&root.join(diagram))?);
    }
    // The figures of this machine, if they are complete.
    if let Some(chart) = comparison_chart(figures) {
        files.insert(format!("src/{COMPARISON}"), chart);
    }
    files.extend(charts.into_iter().map(|(name, svg)| (format!("src/docs/{name}"), svg)));
    files.insert("src/SUMMARY.md".into(), summary);
    files.insert("book.toml".into(), read_text(&root.join("docs/book.toml"))?);
    Ok(files)
}

fn run() -> DocResult<()> {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let [root, figures, to] = &args[..] else {
        return Err("usage: site ROOT FIGURES DIR".to_owned());
    };
    for (file, text) in stage(Path::new(root), &read_text(Path::new(figures))?)? {
        write_text(&Path::new(to).join(file), &text)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("site: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> SitePages {
        SitePages {
            texts: ["README.md", "docs/tuning.md"].map(String::from).into(),
            manual: BTreeMap::from([("fi_cq_read.3".into(), "fi_cq.3".into())]),
        }
    }

    #[test]
    fn links_to_pages_stay_and_links_to_other_files_become_text() {
        let exists = |path: &str| path == "src/lib.rs";
        let line = |text: &str| pages().line("docs/tuning.md", text, &exists);
        assert_eq!(line("a [b](../README.md#c)").unwrap(), "a [b](../README.md#c)");
        assert_eq!(line("a [b](../src/lib.rs), c").unwrap(), "a b, c");
        assert_eq!(line("[b](https://a.b/c) `[x](y)`").unwrap(), "[b](https://a.b/c) `[x](y)`");
        assert!(line("[b](nothing.md)").unwrap_err().contains("nothing.md"));
    }

    #[test]
    fn call_references_become_links_to_their_pages() {
        let line = |page, text| pages().line(page, text, &|_| false).unwrap();
        assert_eq!(line("README.md", "see fi_cq_read(3)."), "see [fi_cq_read(3)](man/fi_cq.3.md).");
        assert_eq!(line("man/x.3.md", "fi_cq_read(3)"), "[fi_cq_read(3)](../man/fi_cq.3.md)");
        assert_eq!(
            line("README.md", "f(x) `fi_cq_read(3)` poll(2)"),
            "f(x) `fi_cq_read(3)` poll(2)"
        );
    }

    #[test]
    fn figures_become_charts_in_their_order() {
        let text = "run\ton 2 cores\nrun\tlat, us\tours tcp\t2\nrun\tlat, us\toriginal\t4\nrun\tbw\tours\t-\n";
        let (files, body) = charts(text).unwrap();
        assert_eq!(files.len(), 1);
        assert!(files[0].1.contains("width=\"200\"") && files[0].1.contains("width=\"400\""));
        assert!(body.contains("on 2 cores") && body.contains("lat, us: ours tcp 2, original 4"));
        assert!(charts("a\tb\tc\n").is_err());
        assert!(chart("a<b", &[]).contains("a&lt;b"));
    }

    /// The columns of the table: what it is, the original, ours.
    #[test]
    fn the_figures_of_the_readme_are_those_of_a_bench() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let figures = read_text(&root.join("docs/figures.tsv")).unwrap();
        let measured = |whose: &str, value: &str| {
            let decimals = value.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            figures.lines().any(|line| {
                let [_, _, who, figure] = line.split('\t').collect::<Vec<_>>()[..] else {
                    return false;
                };
                let figure = figure.parse::<f64>().map(|figure| format!("{figure:.decimals$}"));
                who.starts_with(whose) && figure.as_deref() == Ok(value)
            })
        };
        let readme = read_text(&root.join("README.md")).unwrap();
        let (_, table) = readme.split_once("## Beside the original\n").unwrap();
        let rows = table.lines().skip(3).take_while(|line| line.starts_with('|'));
        let mut seen = 0;
        for row in rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()) {
            let [_, what, theirs, ours, _] = row[..] else { panic!("{row:?}") };
            assert!(measured("original, ", theirs) && measured("ours, ", ours), "{what}");
            seen += 1;
        }
        assert!(seen > 3);
    }

    /// `UPDATE_CHART=1 cargo test -p ofi-docs` writes it.
    #[test]
    fn the_chart_of_the_readme_is_that_of_the_figures() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let chart = comparison_chart(&read_text(&root.join("docs/figures.tsv")).unwrap()).unwrap();
        if env::var_os("UPDATE_CHART").is_some() {
            write_text(&root.join(COMPARISON), &chart).unwrap();
        }
        assert!(read_text(&root.join(COMPARISON)).unwrap() == chart, "{COMPARISON} is stale");
        assert!(read_text(&root.join("README.md")).unwrap().contains(COMPARISON));
    }

    #[test]
    fn readme_is_short() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let lines = read_text(&root.join("README.md")).unwrap().lines().count();
        assert!(lines <= 120, "{lines} lines");
    }

    #[test]
    fn site_contains_every_text_and_has_no_broken_links() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let figures = read_text(&root.join("docs/figures.tsv")).unwrap();
        let files = stage(&root, &figures).unwrap();
        assert!(files["src/README.md"].contains("(man/fi_doctor.1.md)"));
        assert!(files["src/man/fi_cq.3.md"].contains("ssize_t fi_cq_read("));
        assert!(files.contains_key("src/docs/chart-1.svg"));
        assert!(files.contains_key("src/docs/growth-1.svg"));
        assert!(files["src/ARCHITECTURE.md"].contains("](docs/layers.svg)"));
        assert!(files.contains_key("src/docs/layers.svg"));
        assert!(files["src/README.md"].contains("](docs/beside.svg)"));
        let charts = |page: &str| files[page].matches("](docs/chart-").count();
        assert_eq!(charts("src/README.md"), 6);
    }
}
