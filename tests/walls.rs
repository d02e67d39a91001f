//! The walls inside the house: which module may import which, and where `unsafe` may be.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // another package's
            if !path.join("Cargo.toml").exists() {
                found.extend(sources(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file that is built into the product: no comments, and no unit tests, which
/// are at its end.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split("#[cfg(test)]\nmod ").next().unwrap_or("").to_string()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The modules of the crate that a code names: `crate::name`, and each of `crate::{name, …}`.
fn imported(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let rest = &code[at + found.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.insert(rest.chars().take_while(|&c| is_word(c)).collect());
            continue;
        };
        let (mut depth, mut name, mut first) = (0, String::new(), true);
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    names.insert(std::mem::take(&mut name));
                    first = true;
                }
                c if depth == 0 && first && is_word(c) => name.push(c),
                c if depth == 0 && !c.is_whitespace() => first = false,
                _ => {}
            }
        }
        names.insert(name);
    }
    names
}

#[test]
fn imports_are_read_from_every_form_of_them() {
    let code = "use crate::one::{A, B};\nuse crate::{two::C, three::{self, D}, four};\n$crate::five! xcrate::no";
    let names = ["one", "two", "three", "four", "five"].map(String::from);
    assert_eq!(imported(code), BTreeSet::from(names));
}

#[test]
fn no_module_of_the_common_crate_imports_from_a_shelf_above_its_own() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("providers/common/src");
    let root = fs::read_to_string(folder.join("lib.rs")).unwrap();
    let order = root
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    let order = order.collect::<Vec<_>>();
    // a shelf whose modules others name by it is one module
    let whole = ["core_provider", "api"];
    let mut files = Vec::new();
    let mut shelves = BTreeMap::new();
    for path in sources(&folder) {
        let inside = path.strip_prefix(&folder).unwrap().with_extension("");
        let mut names = inside.iter().map(|name| name.to_str().unwrap());
        let shelf = names.next().unwrap();
        let module = names.next().filter(|_| !whole.contains(&shelf)).unwrap_or(shelf);
        if shelf == "lib" || module == "mod" {
            continue;
        }
        let number = order.iter().position(|name| *name == shelf);
        let number = number.unwrap_or_else(|| panic!("lib.rs lacks {shelf}"));
        shelves.insert(module.to_string(), number);
        files.push((module.to_string(), path));
    }
    let mut back = BTreeSet::new();
    for (module, path) in &files {
        for name in imported(&code(&fs::read_to_string(path).unwrap())) {
            assert!(!order.contains(&&*name) || whole.contains(&&*name), "{module} names {name}");
            if shelves.get(&name).is_some_and(|other| *other > shelves[module]) {
                back.insert((module.clone(), name));
            }
        }
    }
    assert!(back.is_empty(), "imports from a shelf above: {back:?}");
}

/// The crates and the folders of their sources, their roots first.
const CRATES: [(&str, &str); 16] = [
    ("ofi", "src/lib.rs"),
    ("ofi-core", "src/core/lib.rs"),
    ("ofi-capi", "capi/src/lib.rs"),
    ("ofi-provider", "providers/common/src/lib.rs"),
    ("ofi-stream", "providers/stream/src/lib.rs"),
    ("tcp-fi", "providers/tcp/src/lib.rs"),
    ("udp-fi", "providers/udp/src/lib.rs"),
    ("rxm-fi", "providers/rxm/src/lib.rs"),
    ("verbs-fi", "providers/verbs/src/lib.rs"),
    ("ofi-hook", "providers/hook/src/lib.rs"),
    ("hook_noop-fi", "providers/hook/noop/src/lib.rs"),
    ("hook_perf-fi", "providers/hook/perf/src/lib.rs"),
    ("hook_profile-fi", "providers/hook/profile/src/lib.rs"),
    ("hook_trace-fi", "providers/hook/trace/src/lib.rs"),
    ("hook_debug-fi", "providers/hook/debug/src/lib.rs"),
    ("ofi-docs", "docs/src/manpages.rs"),
];

/// Where a crate's own attributes say that `unsafe` may be: nowhere, everywhere, or in modules.
/// The compiler holds it to them.
fn unsafe_of(root: &str) -> String {
    let head = read(root);
    if head.contains("forbid(unsafe_code)") {
        return "none".into();
    }
    if !head.contains("deny(unsafe_code)") {
        return "all of it".into();
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let folder = folder.parent().unwrap();
    let mut modules = BTreeSet::new();
    for path in sources(folder) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("#![allow(unsafe_code)]"), "{} allows itself", path.display());
        let inside = path.strip_prefix(folder).unwrap().with_extension("");
        let inside = inside.to_str().unwrap();
        let inside = inside.strip_suffix("mod").or(inside.strip_suffix("lib"));
        for after in text.split("#[allow(unsafe_code)]\n").skip(1) {
            let line = after.lines().find(|line| !line.starts_with("#[")).unwrap();
            let (_, name) = line.split_once("mod ").expect("unsafe is for whole modules");
            modules.insert(format!("{}{}", inside.unwrap(), name.trim_end_matches(';')));
        }
    }
    let modules = modules.iter().map(|module| format!("`{module}`")).collect::<Vec<_>>();
    modules.join(", ")
}

#[test]
fn unsafe_is_where_the_architecture_says_and_nowhere_else() {
    let text = read("ARCHITECTURE.md");
    let said = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.splitn(2, "` | ");
        let name = CRATES.iter().find(|(name, _)| Some(*name) == cells.clone().next());
        Some((name?.0, cells.nth(1)?))
    });
    let said = said.collect::<BTreeMap<_, _>>();
    for (name, root) in CRATES {
        assert_eq!(said.get(name).copied(), Some(&*unsafe_of(root)), "unsafe code of {name}");
    }
}

#[test]
fn files_that_the_architecture_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "capi", "providers", "tools", "docs", "model", "tests"] {
        files.extend(all_files(&root.join(folder)));
    }
    let named = read("ARCHITECTURE.md");
    let named = named.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
    for name in named {
        let end = format!("/{name}");
        let there = files.iter().any(|path| path.to_str().is_some_and(|path| path.ends_with(&end)));
        assert!(there, "ARCHITECTURE.md names {name}");
    }
}

/// All files below a folder, but for what a build has put there.
fn all_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            found.push(path);
        } else if !path.ends_with("target") {
            found.extend(all_files(&path));
        }
    }
    found
}
