//! Counts of words replaced by the glossary, and of grammar avoided by the style guide
//! (docs/glossary.md, CONTRIBUTING.md).
//!
//! Replaced words are refused in identifiers. No share of relative words may exceed its number in
//! `tests/vocabulary.tsv`. `UPDATE_VOCABULARY=1 cargo test --test
//! vocabulary` writes the reduced counts.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with code.
const CODE: [&str; 10] = [
    "benches",
    "build.rs",
    "capi",
    "ctest",
    "fuzz",
    "model",
    "packaging",
    "providers",
    "src",
    "tests",
];

/// Question and relative words, as subjects or objects of a clause.
const RELATIVE: [&str; 14] = [
    "how",
    "that",
    "what",
    "whatever",
    "where",
    "whether",
    "which",
    "whichever",
    "who",
    "whoever",
    "whom",
    "whose",
    "why",
    "wherever",
];

/// First words of documentation starting with neither a verb nor a noun phrase.
const QUESTIONS: [&str; 5] = ["how", "of", "what", "where", "whether"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Adds the files below a path with one of these endings, except build outputs.
fn add_files(path: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if path.is_dir() {
        if !["target", "out", "corpus"].contains(&name) && !name.starts_with('.') {
            for entry in fs::read_dir(path).unwrap() {
                add_files(&entry.unwrap().path(), endings, found);
            }
        }
    } else if endings.iter().any(|ending| name.ends_with(ending)) {
        found.push(path.to_owned());
    }
}

fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in CODE.iter().chain(&["tools"]) {
        add_files(&root().join(part), endings, &mut found);
    }
    found.sort();
    found
}

/// The code of a text without its comments and the content of its strings.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '"' {
            string_len(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            code.push(c);
            c.len_utf8()
        };
        if skipped > c.len_utf8() {
            code.push(' ');
        }
        rest = &rest[skipped..];
    }
    code
}

/// Bytes of a string with both of its quotes.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The words of an identifier in lower case: those of `snake_case` and of `CamelCase`.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for c in identifier.chars() {
        let begins = c.is_uppercase() && lower;
        if (c == '_' || begins) && !words[words.len() - 1].is_empty() {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
        lower = c.is_lowercase() || c.is_numeric();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The words of the last table of the glossary.
fn replaced_words() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let table = text.split("## Replaced words").nth(1).unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split(", ")).map(|word| word.trim_matches('`').to_owned()).collect()
}

/// Returns the identifiers permitted although they contain replaced words: others define them.
fn permitted_identifiers() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let section = text.split("### Permitted identifiers").nth(1).unwrap();
    let table = section.split("\n#").next().unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split(", ")).map(|one| one.trim_matches('`').to_owned()).collect()
}

/// Returns the identifiers containing replaced words, with their files.
fn find_replaced_words() -> BTreeSet<String> {
    let (replaced, permitted) = (replaced_words(), permitted_identifiers());
    assert!(replaced.contains("courtesy") && replaced.contains("lent"), "{replaced:?}");
    let mut found = BTreeSet::new();
    for path in files(&[".rs", ".c", ".h"]) {
        let code = without_comments(&fs::read_to_string(&path).unwrap());
        let identifiers = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        for identifier in identifiers.filter(|one| !permitted.contains(*one)) {
            for word in words(identifier).iter().filter(|word| replaced.contains(*word)) {
                let file = path.strip_prefix(root()).unwrap().display();
                found.insert(format!("{word}: {identifier} in {file}"));
            }
        }
    }
    found
}

/// Returns the package of a file: the folder of the next `Cargo.toml` above it.
fn package(path: &Path) -> String {
    let folder =
        path.ancestors().skip(1).find(|folder| folder.join("Cargo.toml").exists()).unwrap();
    let folder = folder.strip_prefix(root()).unwrap().to_str().unwrap();
    if folder.is_empty() { "ofi".to_owned() } else { folder.to_owned() }
}

/// The documentation comments of a Rust file, each as one text, without code in it.
fn doc_comments(text: &str) -> Vec<String> {
    let mut comments = vec![String::new()];
    for line in text.lines() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        match doc.filter(|doc| !doc.starts_with('/')) {
            Some(doc) => write!(comments.last_mut().unwrap(), "{doc} ").unwrap(),
            None if !comments[comments.len() - 1].is_empty() => comments.push(String::new()),
            None => {}
        }
    }
    let prose = |comment: String| comment.split('`').step_by(2).collect::<Vec<_>>().join(" x ");
    comments.into_iter().map(prose).filter(|prose| !prose.trim().is_empty()).collect()
}

/// A number of things, out of so many.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Share {
    count: u64,
    total: u64,
}

impl Share {
    /// Returns true if the count exceeds another share, in number as well as in proportion.
    fn exceeds(self, other: Self) -> bool {
        self.count > other.count && self.count * other.total > other.count * self.total
    }
}

/// Adds relative words among all words of documentation, and comments beginning with a question
/// word, by package.
fn measure_docs(counts: &mut BTreeMap<String, Share>) {
    for path in files(&[".rs"]) {
        let package = package(&path);
        let mut add = |name: &str, count: usize, total: usize| {
            let sum = counts.entry(format!("{name} {package}")).or_default();
            sum.count += count as u64;
            sum.total += total as u64;
        };
        for comment in doc_comments(&fs::read_to_string(&path).unwrap()) {
            let words = comment.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
            let words = words.map(str::to_lowercase).collect::<Vec<_>>();
            let is_one_of = |list: &[&str], word: &String| list.contains(&&**word);
            add(
                "relative",
                words.iter().filter(|word| is_one_of(&RELATIVE, word)).count(),
                words.len(),
            );
            add(
                "question",
                words.iter().take(1).filter(|word| is_one_of(&QUESTIONS, word)).count(),
                1,
            );
        }
    }
}

/// The lines of the baseline: a name and two numbers.
fn parse_baseline(text: &str) -> BTreeMap<String, Share> {
    let parse_line = |line: &str| {
        let mut cells = line.split('\t');
        let name = cells.next().unwrap().to_owned();
        let [count, total] = [(); 2].map(|()| cells.next().unwrap().parse().unwrap());
        (name, Share { count, total })
    };
    text.lines().filter(|line| !line.starts_with('#')).map(parse_line).collect()
}

/// Returns the permitted share of a package without a baseline: the goals of the style guide.
fn goal(name: &str) -> Share {
    Share { count: 20, total: if name.starts_with("relative") { 1_000 } else { 400 } }
}

#[test]
fn identifiers_have_no_replaced_words() {
    let found = find_replaced_words();
    assert!(found.is_empty(), "docs/glossary.md has standard terms: {found:#?}");
}

#[test]
fn shares_of_relative_and_question_words_do_not_grow() {
    let mut counts = BTreeMap::new();
    measure_docs(&mut counts);
    let path = root().join("tests/vocabulary.tsv");
    let baseline = parse_baseline(&fs::read_to_string(&path).unwrap_or_default());
    let limit = |name: &str| baseline.get(name).copied().unwrap_or_else(|| goal(name));
    if std::env::var_os("UPDATE_VOCABULARY").is_some() {
        let mut text = String::from(
            "# Limits of tests/vocabulary.rs. word: uses of a replaced word in identifiers. relative: relative words among the words of\n\
             # a package's documentation comments. question: comments that begin with a question word, among all of them.\n",
        );
        for (name, count) in counts.iter().filter(|(_, share)| share.count > 0) {
            let buffered =
                baseline.get(name).filter(|limit| count.exceeds(**limit)).unwrap_or(count);
            writeln!(text, "{name}\t{}\t{}", buffered.count, buffered.total).unwrap();
        }
        fs::write(&path, text).unwrap();
        return;
    }
    let grown = counts.iter().filter(|(name, share)| share.exceeds(limit(name)));
    let grown = grown.map(|(name, share)| format!("{name}: {share:?}, allowed {:?}", limit(name)));
    let grown = grown.collect::<Vec<_>>();
    assert!(
        grown.is_empty(),
        "more than tests/vocabulary.tsv allows (docs/glossary.md has standard terms): {grown:#?}"
    );
}

#[test]
fn shares_grow_in_number_and_in_proportion() {
    let share = |count, total| Share { count, total };
    assert!(share(3, 10).exceeds(share(2, 10)));
    assert!(!share(3, 20).exceeds(share(2, 10)));
    assert!(!share(2, 8).exceeds(share(2, 10)));
    assert!(share(21, 100).exceeds(goal("question tools")));
}

#[test]
fn identifiers_are_split_and_comments_left_out() {
    assert_eq!(words("CoreCq_of_lent2"), ["core", "cq", "of", "lent2"]);
    assert_eq!(words("MAX_SIZE"), ["max", "size"]);
    assert_eq!(words("_"), [""; 0]);
    let code = "a // door\nb /* door */ c \"door \\\" door\" d '\"' e";
    assert_eq!(
        without_comments(code).split_whitespace().collect::<Vec<_>>(),
        ["a", "b", "c", "d", "e"]
    );
}

#[test]
fn documentation_comments_are_read_whole() {
    let text =
        "//! One\n//! `two` three.\nfn f() {} // no\n    /// Four.\n    /// Five.\n//// no\n";
    let comments = doc_comments(text);
    let words = comments.iter().map(|comment| comment.split_whitespace().collect::<Vec<_>>());
    assert_eq!(words.collect::<Vec<_>>(), [["One", "x", "three."].as_slice(), &["Four.", "Five."]]);
}
