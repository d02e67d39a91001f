//! Prototypes and declarations of the ABI, from the tables that its tests use; and how sources of
//! manual pages are read.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A result whose error is a text for the user.
pub(crate) type DocResult<T> = std::result::Result<T, String>;

/// A file's text.
pub(crate) fn read_text(path: &Path) -> DocResult<String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file, and makes its folder.
pub(crate) fn write_text(path: &Path, text: &str) -> DocResult<()> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The Markdown files of a folder, by their names without `.md`.
pub(crate) fn markdown(folder: &Path) -> DocResult<BTreeMap<String, String>> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(stem) = file.strip_suffix(".md") {
            files.insert(stem.to_owned(), read_text(&path)?);
        }
    }
    Ok(files)
}

/// Prototypes and declarations, by name.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) calls: BTreeMap<String, String>,
    pub(crate) structs: BTreeMap<String, String>,
}

impl Tables {
    /// Reads `abi_functions.tsv` and `abi_layout.tsv` of this folder.
    pub(crate) fn read(folder: &Path) -> DocResult<Self> {
        let read = |name: &str| read_text(&folder.join(name));
        Ok(Self::parse(&read("abi_functions.tsv")?, &read("abi_layout.tsv")?))
    }

    /// Reads the texts of `abi_functions.tsv` and `abi_layout.tsv`.
    pub(crate) fn parse(functions: &str, layout: &str) -> Self {
        let mut tables = Self::default();
        for line in functions.lines().skip(1) {
            let columns: Vec<_> = line.split('\t').collect();
            if let [name, "export" | "inline", of, names, ..] = columns[..] {
                tables.calls.insert(name.to_owned(), prototype(name, of, names));
            }
        }
        for line in layout.lines().skip(1) {
            let columns: Vec<_> = line.split('\t').collect();
            if let [of, field, _, _, _, ctype, ..] = columns[..] {
                if !field.contains(['.', '(']) {
                    let _ = writeln!(
                        tables.structs.entry(of.to_owned()).or_default(),
                        "    {};",
                        declare(ctype, field)
                    );
                }
            }
        }
        tables
    }
}

/// `int` and `x` make `int x`, `char *` and `x` `char *x`, `int (*)(void)` and `x` `int (*x)(void)`.
pub(crate) fn declare(ctype: &str, name: &str) -> String {
    if let Some((result, rest)) = ctype.split_once("(*)") {
        return format!("{result}(*{name}){rest}");
    }
    // an array has its size behind the name
    let (ctype, size) = match ctype.find('[') {
        Some(at) => (ctype[..at].trim_end(), &ctype[at..]),
        None => (ctype, ""),
    };
    let space = if ctype.ends_with('*') { "" } else { " " };
    format!("{ctype}{space}{name}{size}")
}

/// The C prototype of a function type and the names of its parameters, broken to lines.
fn prototype(name: &str, of: &str, names: &str) -> String {
    // the parameters are what the last parenthesis closes
    let mut depth = 0;
    let open = of.char_indices().rev().find(|(_, c)| {
        depth += match c {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        depth == 0
    });
    let open = open.map_or(of.len(), |(at, _)| at);
    let params = of[open..].trim_start_matches('(');
    let params = params.strip_suffix(')').unwrap_or(params);
    let mut names = names.split(',');
    let mut out = declare(of[..open].trim_end(), name) + "(";
    let mut column = out.len();
    for (at, param) in split_params(params).iter().enumerate() {
        let text = match param.trim() {
            kind @ ("void" | "...") => kind.to_owned(),
            ctype => declare(ctype, names.next().unwrap_or_default()),
        };
        if at > 0 {
            out.push(',');
            if column + text.len() > 70 {
                out.push_str("\n    ");
                column = 4;
            } else {
                out.push(' ');
                column += 2;
            }
        }
        column += text.len();
        out.push_str(&text);
    }
    out + ");"
}

/// Splits at commas that are not within parentheses.
fn split_params(params: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in params.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&params[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&params[start..]);
    parts
}
