//! Generated documents name the tests they are generated from, links find their sections, and
//! workflows call commands of the repository.
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

/// Returns the words of the workflow's commands after `make`.
fn make_targets(workflow: &str) -> BTreeSet<&str> {
    let is_target = |word: &&str| {
        word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
    };
    let mut targets = BTreeSet::new();
    // Lists of packages contain the word as well.
    for line in workflow.lines().filter(|line| !line.contains(" install -y ")) {
        let words: Vec<_> = line.split_whitespace().collect();
        targets.extend(
            words.windows(2).filter(|pair| pair[0] == "make").map(|pair| pair[1]).filter(is_target),
        );
    }
    targets
}

#[test]
fn workflows_call_targets_sections_and_scripts_of_the_repository() {
    let (makefile, check) = (read("Makefile"), read("ctest/check"));
    let mut found = BTreeSet::new();
    for name in files_of(".github/workflows", ".yml") {
        let workflow = read(format!(".github/workflows/{name}"));
        for target in make_targets(&workflow) {
            assert!(makefile.contains(&format!("\n{target}:")), "{name}: make {target}");
            found.insert(target.to_owned());
        }
        for sections in workflow.split("CHECK_ONLY=\"").skip(1) {
            for section in sections.split('"').next().unwrap().split(' ') {
                assert!(
                    check.contains(&format!("\nsection {section} ")),
                    "{name}: section {section}"
                );
            }
        }
        for word in workflow.split_whitespace().filter(|word| word.starts_with("fuzz/")) {
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(word).exists(), "{name}: {word}");
        }
    }
    for target in ["check", "check-packages", "rpm", "test", "docs"] {
        assert!(found.contains(target), "no workflow runs make {target}");
    }
}

#[test]
fn workflows_pin_actions_and_run_on_each_system() {
    let mut all = String::new();
    for name in files_of(".github/workflows", ".yml") {
        let workflow = read(format!(".github/workflows/{name}"));
        for line in workflow.lines().filter_map(|line| line.split_once("uses: ")) {
            let version = line.1.split_once('@').map_or("", |(_, version)| version.trim());
            let parts: Vec<_> = version.strip_prefix('v').unwrap_or("").split('.').collect();
            let is_number =
                |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            assert!(parts.len() == 3 && parts.iter().all(is_number), "{name}: {}", line.1);
        }
        assert!(workflow.contains("\npermissions:\n  contents: read\n"), "{name}");
        all += &workflow;
    }
    for part in ["debian:12", "debian:13", "ubuntu:", "rockylinux:", "fedora:", "aarch64", "cron:"]
    {
        assert!(all.contains(part), "{part}");
    }
}
