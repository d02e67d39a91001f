//! The dynamic symbol table of `libfabric.so`, against `ctest/abi/exports.txt`.
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

struct Symbols {
    /// `name@NODE`, or `name@@NODE` for the default version.
    defined: BTreeSet<String>,
    undefined: BTreeSet<String>,
}

fn symbols() -> Symbols {
    let library = common::library_folder().join("libfabric.so");
    let table = common::stdout(Command::new("readelf").args(["--dyn-syms", "-W"]).arg(library));
    let mut symbols = Symbols { defined: BTreeSet::new(), undefined: BTreeSet::new() };
    for line in table.lines() {
        // Num: Value Size Type Bind Vis Ndx Name
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [number, _, _, _, _, _, section, name, ..] = fields[..] else { continue };
        if number == "Num:" {
            continue;
        }
        let set = if section == "UND" { &mut symbols.undefined } else { &mut symbols.defined };
        assert!(set.insert(name.to_owned()), "{name} is there twice");
    }
    symbols
}

fn expected() -> BTreeSet<String> {
    let list = fs::read_to_string(common::root().join("ctest/abi/exports.txt")).unwrap();
    list.lines().map(str::to_owned).collect()
}

#[test]
fn every_inline_call_is_exported_in_a_node_of_our_own() {
    let ours = |name: &&String| name.contains("@FABRIC_OFI_");
    let (symbols, expected) = (symbols(), expected());
    let defined: Vec<&String> = symbols.defined.iter().filter(ours).collect();
    let expected: Vec<&String> = expected.iter().filter(ours).collect();
    assert_eq!(expected.len(), 180);
    assert_eq!(defined, expected);
}

#[test]
fn the_exported_symbols_are_the_list_and_nothing_else() {
    let (symbols, expected) = (symbols(), expected());
    let missing: Vec<_> = expected.difference(&symbols.defined).collect();
    let surplus: Vec<_> = symbols.defined.difference(&expected).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:#?}\nsurplus {surplus:#?}");
    assert_eq!(expected.len(), 39 + 180);
}

#[test]
fn the_library_needs_no_symbol_of_its_own_from_outside() {
    let undefined = symbols().undefined;
    let own: Vec<_> = undefined.iter().filter(|name| name.starts_with("fi_")).collect();
    assert!(own.is_empty(), "{own:?}");
}

#[test]
fn the_file_is_known_by_the_name_programs_look_for() {
    let folder = common::library_folder();
    let library = folder.join("libfabric.so");
    let dynamic = common::stdout(Command::new("readelf").args(["-d", "-W"]).arg(&library));
    assert!(dynamic.contains("Library soname: [libfabric.so.1]"), "{dynamic}");
    let link = folder.join("libfabric.so.1");
    assert_eq!(fs::canonicalize(&link).unwrap(), fs::canonicalize(&library).unwrap());
}
