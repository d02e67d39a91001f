//! Generated documents name the tests they are generated from.
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
