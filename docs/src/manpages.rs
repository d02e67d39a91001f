//! Makes manual pages of `docs/man/NAME.SECTION.md`.
//!
//! ```text
//! manpages SOURCES TABLES DIR          write them below DIR, as man3/fi_cq.3
//! manpages SOURCES TABLES --list       say which files that would be
//! ```
//!
//! The sources are a small part of Markdown: headings, paragraphs, `-` lists,
//! fenced code, and definition lists (a line, then lines that begin with `: `).
//! The first line is `# name - summary`. A line `{include: FILE}`,
//! `{calls: NAME…}` or `{struct: NAME}` becomes an `#include`, prototypes or a
//! declaration; the two latter come from the tables that the ABI tests use, so
//! they cannot be out of date. Each call of a page gets a page of its own that
//! refers to it. It is an error when a call has no page, or two.
#![forbid(unsafe_code)]
mod tables;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use tables::{DocResult, Tables, markdown, write_text};

/// Text as troff prints it literally.
fn literal(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c => out.push(c),
        }
    }
    out
}

/// A line of text: `code` and `name(3)` become bold, *words* italic.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            let _ = write!(out, "\\fB{}\\fR", literal(part));
            continue;
        }
        for (at, part) in part.split('*').enumerate() {
            if at % 2 == 1 {
                let _ = write!(out, "\\fI{}\\fR", literal(part));
            } else {
                out.push_str(&references(part));
            }
        }
    }
    // a control character that begins a line is none
    if out.starts_with(['.', '\'']) { format!("\\&{out}") } else { out }
}

fn references(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('(') {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let start = rest[..open].rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
        let after = &rest.as_bytes()[open..];
        let refers =
            start < open && after.len() > 2 && after[1].is_ascii_digit() && after[2] == b')';
        let escape_text =
            |text: &str| text.replace('\\', "\\e").replace('~', "\\(ti").replace('^', "\\(ha");
        if refers {
            out.push_str(&escape_text(&rest[..start]));
            let _ = write!(out, "\\fB{}\\fR{}", literal(&rest[start..open]), &rest[open..open + 3]);
            rest = &rest[open + 3..];
        } else {
            out.push_str(&escape_text(&rest[..=open]));
            rest = &rest[open + 1..];
        }
    }
    out + &rest.replace('\\', "\\e").replace('~', "\\(ti").replace('^', "\\(ha")
}

/// A manual page, and the names under which it is found besides its own.
struct ManPage {
    name: String,
    section: String,
    calls: Vec<String>,
    troff: String,
}

impl ManPage {
    fn parse(name: &str, section: &str, source: &str, tables: &Tables) -> DocResult<Self> {
        let fail = |at: usize, why: &str| format!("{name}.{section}.md:{}: {why}", at + 1);
        if let Some(at) = source.lines().position(|line| !line.is_ascii()) {
            return Err(fail(at, "only ASCII, for troff's sake"));
        }
        let (heading, body) = source.split_once('\n').unwrap_or((source, ""));
        let summary = heading
            .strip_prefix("# ")
            .and_then(|rest| rest.strip_prefix(name))
            .and_then(|rest| rest.strip_prefix(" - "))
            .ok_or_else(|| fail(0, "not '# name - summary'"))?;
        let mut calls = Vec::new();
        let mut out = String::new();
        let (mut code, mut fresh) = (false, true);
        for (at, line) in body.lines().enumerate() {
            let at = at + 1;
            if line.starts_with("```") {
                code = !code;
                out.push_str(if code { ".PP\n.RS 4\n.nf\n" } else { ".fi\n.RE\n" });
                fresh = true;
            } else if code {
                let text = literal(line);
                let guard = if text.starts_with(['.', '\'']) { "\\&" } else { "" };
                let _ = writeln!(out, "{guard}{text}");
            } else if line.is_empty() {
                fresh = true;
            } else if let Some(title) = line.strip_prefix("## ") {
                let _ = writeln!(out, ".SH {}", literal(&title.to_uppercase()));
            } else if let Some(title) = line.strip_prefix("### ") {
                let _ = writeln!(out, ".SS {}", inline(title));
            } else if let Some(directive) = line.strip_prefix('{') {
                let (what, of) = directive
                    .strip_suffix('}')
                    .and_then(|directive| directive.split_once(": "))
                    .ok_or_else(|| fail(at, "not {what: of}"))?;
                out.push_str(".PP\n.nf\n");
                for of in of.split(' ') {
                    match what {
                        "include" => {
                            let _ = writeln!(out, "\\fB#include <{}>\\fR", literal(of));
                        }
                        "calls" => {
                            let text = tables.calls.get(of).ok_or_else(|| fail(at, of))?;
                            let _ = writeln!(out, "{}", literal(text));
                            calls.push(of.to_owned());
                        }
                        "struct" => {
                            let text = tables.structs.get(of).ok_or_else(|| fail(at, of))?;
                            let _ = writeln!(out, "struct {of} {{\n{}}};", literal(text));
                        }
                        _ => return Err(fail(at, "no such directive")),
                    }
                }
                out.push_str(".fi\n");
                fresh = true;
            } else if let Some(item) = line.strip_prefix("- ") {
                let _ = writeln!(out, ".IP \\(bu 2\n{}", inline(item));
                fresh = false;
            } else if let Some(text) = line.strip_prefix(": ") {
                let _ = writeln!(out, "{}", inline(text));
                fresh = false;
            } else if body.lines().nth(at).is_some_and(|next| next.starts_with(": ")) {
                let _ = writeln!(out, ".TP\n{}", inline(line));
                fresh = false;
            } else {
                if fresh {
                    out.push_str(".PP\n");
                }
                let _ = writeln!(out, "{}", inline(line.trim_start()));
                fresh = false;
            }
        }
        if code {
            return Err(fail(body.lines().count(), "a fence is open"));
        }
        let mut names = vec![name.to_owned()];
        names.extend(calls.iter().filter(|call| *call != name).cloned());
        let manual = match section {
            "1" => "Libfabric programs",
            "3" => "Libfabric calls",
            _ => "Libfabric",
        };
        let troff = format!(
            ".\\\" Made from docs/man/{name}.{section}.md: change that.\n\
             .TH {name} {section} \"\" \"libfabric\" \"{manual}\"\n\
             .nh\n.ad l\n.SH NAME\n{} \\- {}\n{out}",
            names.join(", "),
            inline(summary)
        );
        Ok(Self { name: name.to_owned(), section: section.to_owned(), calls, troff })
    }
}

/// All files, by their path below the manual's directory.
fn make(sources: &Path, tables: &Tables) -> DocResult<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut owner: BTreeMap<String, String> = BTreeMap::new();
    for (file, source) in markdown(sources)? {
        let Some((name, section)) = file.rsplit_once('.') else { continue };
        let page = ManPage::parse(name, section, &source, tables)?;
        let own = format!("man{section}/{name}.{section}");
        for call in &page.calls {
            if let Some(other) = owner.insert(call.clone(), own.clone()) {
                return Err(format!("{call} is in {own} and in {other}"));
            }
            if *call != page.name {
                files.insert(format!("man{section}/{call}.{section}"), format!(".so {own}\n"));
            }
        }
        files.insert(format!("man{}/{}.{}", page.section, page.name, page.section), page.troff);
    }
    match tables.calls.keys().find(|call| !owner.contains_key(*call)) {
        Some(call) => Err(format!("no page describes {call}")),
        None => Ok(files),
    }
}

fn run() -> DocResult<()> {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let [sources, tables, to] = &args[..] else {
        return Err("usage: manpages SOURCES TABLES DIR|--list".to_owned());
    };
    let tables = Tables::read(Path::new(tables))?;
    for (file, text) in make(Path::new(sources), &tables)? {
        if to == "--list" {
            println!("{file}");
            continue;
        }
        write_text(&Path::new(to).join(&file), &text)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manpages: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tables::declare;

    fn tables() -> Tables {
        Tables::parse(
            "name\tkind\ttype\tparams\theader\tfirst\n\
             fi_a\tinline\tint (struct fid *, void **)\tfid,out\tx.h\tv1\n\
             fi_v\texport\tuint32_t (void)\t\tx.h\tv1\n\
             fi_cb\tinline\tint (int (*)(int, void *), void *)\tcall,arg\tx.h\tv1\n",
            "struct\tfield\toffset\tsize\talign\tctype\n\
             s\t(total)\t0\t8\t8\tstruct/union\n\
             s\tname\t0\t8\t8\tchar *\n\
             s\tu.x\t0\t8\t8\tint\n",
        )
    }

    #[test]
    fn prototypes_and_declarations_come_from_the_tables() {
        let tables = tables();
        assert_eq!(tables.calls["fi_a"], "int fi_a(struct fid *fid, void **out);");
        assert_eq!(tables.calls["fi_v"], "uint32_t fi_v(void);");
        assert_eq!(tables.calls["fi_cb"], "int fi_cb(int (*call)(int, void *), void *arg);");
        assert_eq!(tables.structs["s"], "    char *name;\n");
        assert_eq!(declare("uint64_t[4]", "x"), "uint64_t x[4]");
    }

    #[test]
    fn troff_control_characters_are_escaped() {
        assert_eq!(inline(".br `-1` *x* ~"), "\\&.br \\fB\\-1\\fR \\fIx\\fR \\(ti");
        assert_eq!(inline("see fi_cq(3), not f(x)"), "see \\fBfi_cq\\fR(3), not f(x)");
    }

    #[test]
    fn page_name_lists_its_calls_and_unknown_calls_fail() {
        let page =
            ManPage::parse("fi_x", "3", "# fi_x - does\n{calls: fi_a}\n", &tables()).unwrap();
        assert!(page.troff.contains(".SH NAME\nfi_x, fi_a \\- does\n"));
        assert_eq!(page.calls, ["fi_a"]);
        let refused = |source| ManPage::parse("fi_x", "3", source, &tables()).err().unwrap();
        assert_eq!(refused("# fi_x - does\n{calls: fi_z}\n"), "fi_x.3.md:2: fi_z");
        assert!(refused("no heading\n").contains("summary"));
        assert!(refused("# fi_x - does\n```\n").contains("fence"));
    }

    #[test]
    fn every_call_of_the_abi_has_a_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tables = Tables::read(&root.join("../ctest/abi")).unwrap();
        let files = make(&root.join("man"), &tables).unwrap();
        assert!(files.len() > tables.calls.len());
    }
}
