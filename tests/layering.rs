//! Layering checks: permitted imports of modules, and permitted places of `unsafe`.
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
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            // Unit tests in a file of their own are exempt.
            found.push(path);
        }
    }
    found
}

/// Returns the product code of a file: without comments, and without unit tests, located at its
/// end.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split("#[cfg(test)]\nmod ").next().unwrap_or("").to_string()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the modules of the crate named in code: `crate::name`, and each of `crate::{name, …}`.
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

/// Returns the crates of the workspace and the roots of their sources, except the tools, calling
/// the API as C programs do, and code of tests alone.
fn crates() -> Vec<(String, String)> {
    let manifest = read("Cargo.toml");
    let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    let members = members
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|member| !["tools", "providers/simulation"].contains(member));
    let named = |folder: &str| {
        let manifest = read(Path::new(folder).join("Cargo.toml"));
        let name = manifest.split("\nname = \"").nth(1).unwrap().split('"').next().unwrap();
        let roots = ["src/lib.rs", "lib.rs", "src/manpages.rs"].map(|root| {
            Path::new(folder).join(root).to_str().unwrap().trim_start_matches("./").to_string()
        });
        let root = roots
            .into_iter()
            .find(|root| Path::new(env!("CARGO_MANIFEST_DIR")).join(root).exists());
        (name.to_string(), root.unwrap_or_else(|| panic!("{folder} has no root")))
    };
    std::iter::once(".").chain(members).map(named).collect()
}

/// Returns the permitted places of `unsafe` according to a crate's own attributes: nowhere,
/// everywhere, or in modules. The compiler enforces them.
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
fn unsafe_code_matches_its_table() {
    let (text, crates) = (read("docs/unsafe-code.md"), crates());
    let sent = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.splitn(2, "` | ");
        let name = crates.iter().find(|(name, _)| Some(&**name) == cells.clone().next());
        Some((&*name?.0, cells.nth(1)?))
    });
    let sent = sent.collect::<BTreeMap<_, _>>();
    for (name, root) in &crates {
        assert_eq!(sent.get(&**name).copied(), Some(&*unsafe_of(root)), "unsafe code of {name}");
    }
}

#[test]
fn files_named_in_architecture_exist() {
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

/// Returns the texts between backquotes, outside of code blocks.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn items_named_in_the_provider_guide_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = read("docs/new-provider.md");
    let mut rust = String::new();
    for folder in ["src", "providers"] {
        let files = all_files(&root.join(folder)).into_iter();
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "rs"));
        files.for_each(|path| rust.push_str(&fs::read_to_string(path).unwrap()));
    }
    // The name of a thing ends where its declaration goes on.
    let declares = |kinds: &[&str], name: &str| {
        kinds.iter().any(|kind| {
            let start = format!("{kind} {name}");
            rust.match_indices(&start).any(|(at, _)| !rust[at + start.len()..].starts_with(is_word))
        })
    };
    let parts = ["fn", "const", "type"];
    for name in quoted(&guide) {
        let text = name.trim_start_matches("./");
        let folders = ["providers/", "ctest/", "docs/", "src/", "fuzz/", "tests/", "benches/"];
        if folders.iter().any(|folder| text.starts_with(folder)) {
            let path = text.split([' ', ':']).next().unwrap();
            // `foo` is the reader's.
            let is_there = path.starts_with("providers/foo") || root.join(path).exists();
            assert!(is_there, "the guide names {name}");
        } else if let Some((owner, part)) = name
            .trim_end_matches("()")
            .split_once("::")
            .filter(|(owner, _)| owner.starts_with(char::is_uppercase))
            .filter(|(_, part)| part.chars().all(is_word))
        {
            let is_type = part.starts_with(char::is_uppercase);
            assert!(
                declares(&["trait", "struct", "enum", "type"], owner),
                "the guide names {owner}"
            );
            assert!(is_type || declares(&parts, part), "the guide names {name}");
        }
    }
    // Each piece of a block of Rust is in the example, line for line; a line of dots is what was
    // left out.
    let example = all_files(&root.join("providers/example"));
    let example = example.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<String>();
    let blocks = guide.split("```rust\n").skip(1);
    for block in blocks.map(|block| block.split("```").next().unwrap()) {
        for piece in block.split("…\n").map(str::trim).filter(|piece| !piece.is_empty()) {
            assert!(example.contains(piece), "not in providers/example:\n{piece}");
        }
    }
}

/// Returns all files below a folder, except build outputs.
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

/// The words and signs of a text, without comments and literals; `::` is one sign.
fn tokens(text: &str) -> Vec<&str> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.find("*/").map_or(rest.len(), |end| end + 4)
        } else if matches!(&rest[..word], "r" | "br" | "cr") && rest[word..].starts_with(['"', '#'])
        {
            let signs = rest[word..].chars().take_while(|&c| c == '#').count();
            match rest[word + signs..].strip_prefix('"') {
                Some(inside) => {
                    let end = inside.find(&format!("\"{}", "#".repeat(signs)));
                    word + signs + 1 + end.map_or(inside.len(), |end| end + 1 + signs)
                }
                None => word + signs, // a word like `r#type`
            }
        } else if word > 0 {
            found.push(&rest[..word]);
            word
        } else if first == '"' {
            literal(rest, '"')
        } else if first == '\''
            && (rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\''))
        {
            literal(rest, '\'')
        } else if rest.starts_with("::") {
            found.push(&rest[..2]);
            2
        } else {
            if !first.is_whitespace() {
                found.push(&rest[..first.len_utf8()]);
            }
            first.len_utf8()
        };
        at += len;
    }
    found
}

/// Returns the bytes of a literal beginning and ending with this character.
fn literal(text: &str, sign: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == sign && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

#[test]
fn tokenizer_separates_words_from_comments_and_literals() {
    let text =
        "a::b<'c> /* no */ \"no \\\" {\" '\\'' '{' r#\"no \" no\"# r\"no\" d!(); // no\n'e: f";
    let words = ["a", "::", "b", "<", "'", "c", ">", "d", "!", "(", ")", ";", "'", "e", ":", "f"];
    assert_eq!(tokens(text), words);
}

/// Returns the end of the item or the block beginning at `at`.
fn item_end(tokens: &[&str], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(*token, ";" | "}") {
            return index + 1;
        }
    }
    tokens.len()
}

/// Returns code without the parts built for tests only (`cfg(test)`, `cfg(any(test, …))`), and the
/// names of the modules of such files.
fn product<'a>(tokens: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut left, mut files, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let rest = tokens[at..].strip_prefix(&["#", "[", "cfg", "("]).unwrap_or(&[]);
        if !rest.starts_with(&["test", ")"]) && !rest.starts_with(&["any", "(", "test", ","]) {
            left.push(tokens[at]);
            at += 1;
            continue;
        }
        let end = item_end(tokens, at);
        if let [.., "mod", name, ";"] = tokens[at..end] {
            files.push(name);
        }
        at = end;
    }
    (left, files)
}

#[test]
fn unit_test_code_is_excluded() {
    let code = "a; #[cfg(any(test, feature = \"x\"))] pub mod sim; b; #[cfg(test)] mod tests { use c; } d;";
    let code = tokens(code);
    assert_eq!(product(&code), (vec!["a", ";", "b", ";", "d", ";"], vec!["sim"]));
}

/// The modules of a crate, as their names from its root on, and the files' texts.
type Modules = BTreeMap<Vec<String>, String>;

/// Returns the paths denoted by a path or a tree in braces.
fn paths_at<'a>(tokens: &[&'a str], at: &mut usize) -> Vec<Vec<&'a str>> {
    let mut path = Vec::new();
    while let Some(token) = tokens.get(*at) {
        if *token == "{" {
            *at += 1;
            let mut all = Vec::new();
            while tokens.get(*at).is_some_and(|token| *token != "}") {
                if tokens[*at] == "," {
                    *at += 1;
                    continue;
                }
                let before = *at;
                let rest = paths_at(tokens, at);
                all.extend(rest.iter().map(|rest| [&path[..], rest].concat()));
                if *at == before {
                    break;
                }
            }
            *at += 1;
            return all;
        }
        if !token.starts_with(is_word) {
            break;
        }
        path.push(*token);
        *at += 1;
        match tokens.get(*at) {
            Some(&"::") => *at += 1,
            Some(&"as") => {
                *at += 2;
                break;
            }
            _ => break,
        }
    }
    vec![path]
}

/// Returns the module named by a path from a module, or containing the named item.
fn module_of(modules: &Modules, here: &[String], path: &[&str]) -> Option<Vec<String>> {
    let mut names = here.to_vec();
    for name in path {
        match *name {
            "crate" => names.clear(),
            "super" => drop(names.pop()),
            "self" => {}
            name => names.push(name.into()),
        }
    }
    while !modules.contains_key(&names) {
        names.pop()?;
    }
    // a rest at the root belongs to another crate, re-exported there
    Some(names).filter(|names| !names.is_empty() && names != here)
}

/// Returns the imports of each module.
fn imports_of(modules: &Modules) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let mut of = BTreeMap::new();
    let mut for_tests = Vec::new();
    for (here, text) in modules {
        let (code, files) = product_of(text);
        for_tests.extend(files.iter().map(|name| [&here[..], std::slice::from_ref(name)].concat()));
        let code = code.iter().map(String::as_str).collect::<Vec<_>>();
        let mut reached = BTreeSet::new();
        for at in 0..code.len() {
            let absolute = matches!(code[at], "crate" | "super" | "self");
            let next = code.get(at + 1);
            let begins = at == 0 || code[at - 1] != "::";
            if absolute && begins && next == Some(&"::") {
                for path in paths_at(&code, &mut at.clone()) {
                    reached.extend(module_of(modules, here, &path));
                }
            } else if code[at] == "use" && !matches!(next, Some(&("crate" | "super" | "self"))) {
                // re-exports of a module from the ones in its folder: `pub use ep::StreamEp`
                for path in paths_at(&code, &mut (at + 1)) {
                    let inside = module_of(modules, here, &path);
                    reached.extend(inside.filter(|names| names.len() > here.len()));
                }
            }
        }
        of.insert(here.clone(), reached);
    }
    of.retain(|module, _| !for_tests.iter().any(|test| module.starts_with(test)));
    of
}

fn product_of(text: &str) -> (Vec<String>, Vec<String>) {
    let tokens = tokens(text);
    let (code, files) = product(&tokens);
    (code.into_iter().map(String::from).collect(), files.into_iter().map(String::from).collect())
}

/// Returns the largest set of modules all importing each other, directly or through others.
fn largest_circle(modules: &Modules) -> Vec<String> {
    let imports = imports_of(modules);
    let reached_from = |start: &Vec<String>| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
        while let Some(module) = todo.pop() {
            let next = imports.get(module).into_iter().flatten();
            todo.extend(next.filter(|next| seen.insert((*next).clone())));
        }
        seen
    };
    let reach =
        imports.keys().map(|start| (start, reached_from(start))).collect::<BTreeMap<_, _>>();
    let circles = reach.iter().map(|(start, reached)| {
        let back =
            reached.iter().filter(|other| reach.get(other).is_some_and(|r| r.contains(*start)));
        back.map(|names| names.join("::")).collect::<Vec<_>>()
    });
    circles.max_by_key(Vec::len).unwrap_or_default()
}

#[test]
fn a_circle_of_modules_is_found() {
    let modules = |texts: [(&str, &str); 5]| {
        let names = |path: &str| path.split_terminator('/').map(String::from).collect::<Vec<_>>();
        Modules::from(texts.map(|(path, text)| (names(path), text.to_string())))
    };
    let one_way = modules([
        ("", "mod a; mod b; use a::A;"),
        ("a", "use crate::b::{c::C, d}; // crate::a"),
        ("b", "mod c; pub use c::C; pub mod d; #[cfg(test)] mod tests { use crate::a; }"),
        ("b/c", "use super::d::D; fn f() { \"crate::a::A\" }"),
        ("b/d", "fn f() { other::crate_::a() }"),
    ]);
    assert_eq!(largest_circle(&one_way), [""; 0]);
    let mut round = one_way;
    round.insert(vec!["b".into(), "d".into()], "fn f() -> crate::a::A { todo!() }".into());
    assert_eq!(largest_circle(&round), ["a", "b::c", "b::d"]);
}

/// Maximum number of modules of an engine's crate importing each other in a cycle.
const LARGEST_CIRCLE: usize = 4;

#[test]
fn modules_of_the_engines_import_each_other_in_no_large_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["providers/stream/src", "providers/inet/src", "providers/rxm/src"] {
        let folder = root.join(folder);
        let modules = sources(&folder).into_iter().map(|path| {
            let inside = path.strip_prefix(&folder).unwrap().with_extension("");
            let mut names = inside.iter().map(|name| name.to_str().unwrap().to_string());
            let mut names = names.by_ref().collect::<Vec<_>>();
            if names.last().is_some_and(|name| matches!(&**name, "mod" | "lib")) {
                names.pop();
            }
            (names, fs::read_to_string(&path).unwrap())
        });
        let modules = modules.collect::<Modules>();
        let edges = imports_of(&modules).values().map(BTreeSet::len).sum::<usize>();
        assert!(edges > modules.len(), "only {edges} imports were found in {}", folder.display());
        let circle = largest_circle(&modules);
        assert!(circle.len() <= LARGEST_CIRCLE, "{}: {circle:#?}", folder.display());
    }
}
