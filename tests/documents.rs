//! Generated documents name the tests they are generated from, and links find their sections.
use std::collections::BTreeSet;
use std::path::Path;

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the tests of the conformance suite, as `suite: test`, from the tables at the end of its
/// sources.
fn conformance_tests() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ctest/conformance");
    let mut tests = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let suite = path.file_stem().unwrap().to_str().unwrap();
        let source = read(&path);
        let table =
            source.split_once("static const struct ct_test ").map_or("", |(_, table)| table);
        let names = table.lines().filter_map(|line| line.trim().strip_prefix("{ \""));
        tests.extend(names.filter_map(|row| Some(format!("{suite}: {}", row.split_once('"')?.0))));
    }
    tests
}

#[test]
fn each_conformance_test_has_a_row_in_its_document() {
    let document = read("docs/conformance.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows: BTreeSet<String> = rows.map(|(name, _)| name.to_string()).collect();
    let tests = conformance_tests();
    assert!(tests.len() > 500, "{} tests", tests.len());
    let missing: Vec<_> = tests.difference(&rows).collect();
    assert!(missing.is_empty(), "no row in docs/conformance.md (make conformance): {missing:#?}");
}

/// Returns the names of the files of a folder with this ending.
fn files_of(folder: &str, extension: &str) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(extension))
        .collect();
    names.sort();
    names
}

/// Returns the anchor of a heading, as sites of repositories and mdBook generate it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let characters = text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    characters.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn each_link_to_a_section_finds_its_heading() {
    let mut pages: Vec<_> =
        files_of("docs", ".md").iter().map(|name| format!("docs/{name}")).collect();
    pages.extend(files_of(".", ".md"));
    let mut links = 0;
    for page in &pages {
        for target in read(page).split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let Some((path, section)) = target.0.split_once('#') else { continue };
            if path.contains("://") {
                continue;
            }
            let folder = Path::new(page).parent().unwrap();
            let other = if path.is_empty() { page.into() } else { folder.join(path) };
            let text = read(&other);
            let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
            assert!(headings.into_iter().any(|one| one == section), "{page}: {}", target.0);
            links += 1;
        }
    }
    assert!(links > 3, "{links} links");
}
