//! Comparison of the Rust mirror with the facts of the C ABI in `ctest/abi/*.tsv`.
//!
//! `build.rs` turns each row into a line of the included file, so a row with a struct, field or
//! constant missing in the mirror fails to compile.
use core::mem::{MaybeUninit, align_of, size_of};
use ofi::abi;

/// Values of a row and of the mirror: offset, size and, for a whole struct, alignment.
pub struct Layout {
    name: &'static str,
    expected: (usize, usize, usize),
    actual: (usize, usize, usize),
    /// The row is the second name of an unnamed C union; Rust has the first.
    alias: bool,
}

pub enum Constant {
    Number(&'static str, i64, i64),
    Text(&'static str, &'static str, &'static core::ffi::CStr),
    /// Macro of C syntax without a value.
    OnlyInC(&'static str),
}

fn total(name: &'static str, size: usize, align: usize, s: usize, a: usize) -> Layout {
    Layout { name, expected: (0, size, align), actual: (0, s, a), alias: false }
}

macro_rules! field {
    ($name:literal, $offset:literal, $size:literal, $alias:literal, $ty:ident, $($field:ident).+) => {{
        let object = MaybeUninit::<abi::$ty>::uninit();
        // SAFETY: only the address of the field is taken, within the object.
        let field = unsafe { &raw const (*object.as_ptr()).$($field).+ };
        Layout {
            name: $name,
            expected: ($offset, $size, 0),
            actual: (field.addr() - object.as_ptr().addr(), size_behind(field), 0),
            alias: $alias,
        }
    }};
}

fn size_behind<T>(_: *const T) -> usize {
    size_of::<T>()
}

macro_rules! number {
    ($name:literal, $value:literal, $constant:path) => {
        Constant::Number($name, $value, $constant as i64)
    };
}

include!(concat!(env!("OUT_DIR"), "/abi_rows.rs"));

#[test]
fn structs_and_fields_match_the_c_layout() {
    let rows = layout();
    let wrong: Vec<String> = rows
        .iter()
        .filter(|row| row.expected != row.actual)
        .map(|row| format!("{}: {:?}, should be {:?}", row.name, row.actual, row.expected))
        .collect();
    let aliases = rows.iter().filter(|row| row.alias).count();
    println!(
        "{} layout rows ({aliases} of them second names): {} differences",
        rows.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((rows.len(), aliases), (895, 2), "rows are missing from abi_layout.tsv");
}

#[test]
fn every_constant_has_its_value() {
    let rows = constants();
    let (mut wrong, mut only_in_c) = (Vec::new(), 0);
    for row in &rows {
        match row {
            Constant::Number(name, expected, actual) if expected != actual => {
                wrong.push(format!("{name}: {actual}, should be {expected}"));
            }
            Constant::Text(name, expected, actual) if actual.to_bytes() != expected.as_bytes() => {
                wrong.push(format!("{name}: {actual:?}, should be {expected:?}"));
            }
            Constant::OnlyInC(_) => only_in_c += 1,
            _ => {}
        }
    }
    println!(
        "{} constants ({only_in_c} of them C syntax): {} differences",
        rows.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!((rows.len(), only_in_c), (564, 4), "rows are missing from abi_constants.tsv");
}
