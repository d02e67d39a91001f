//! Atomic operations on bytes (fi_atomic(3)): what providers do that carry
//! them out in software.
use crate::abi::{fi_datatype, fi_op};
use crate::error::{Error, Result};

/// The three groups of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// fi_atomic: changes the target.
    Write,
    /// fi_fetch_atomic: and brings back what was there.
    Fetch,
    /// fi_compare_atomic: if a comparison says so.
    Compare,
}

/// Bytes of a datatype; -FI_EOPNOTSUPP for those nobody here knows.
pub fn size_of_type(datatype: u32) -> Result<usize> {
    const SIZES: [usize; 16] = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 0, 0, 16, 16];
    let size = SIZES.get(datatype as usize).copied().unwrap_or(0);
    if size == 0 { Err(Error::OPNOTSUPP) } else { Ok(size) }
}

/// Whether there is this operation on this datatype, in this group.
pub fn check(kind: Kind, datatype: u32, op: u32) -> Result {
    let size = size_of_type(datatype)?;
    let in_group = match kind {
        Kind::Write => op <= BXOR || op == WRITE || op == DIFF,
        Kind::Fetch => op <= WRITE || op == DIFF,
        Kind::Compare => (CSWAP..=MSWAP).contains(&op),
    };
    // The elements of an array that does not matter.
    let (mut target, same) = ([0; 16], [0; 16]);
    if !in_group {
        return Err(Error::OPNOTSUPP);
    }
    apply(datatype, op, &mut target[..size], &same[..size], &same[..size])
}

const MIN: u32 = fi_op::FI_MIN as u32;
const MAX: u32 = fi_op::FI_MAX as u32;
const SUM: u32 = fi_op::FI_SUM as u32;
const PROD: u32 = fi_op::FI_PROD as u32;
const LOR: u32 = fi_op::FI_LOR as u32;
const LAND: u32 = fi_op::FI_LAND as u32;
const BOR: u32 = fi_op::FI_BOR as u32;
const BAND: u32 = fi_op::FI_BAND as u32;
const LXOR: u32 = fi_op::FI_LXOR as u32;
const BXOR: u32 = fi_op::FI_BXOR as u32;
const READ: u32 = fi_op::FI_ATOMIC_READ as u32;
const WRITE: u32 = fi_op::FI_ATOMIC_WRITE as u32;
const CSWAP: u32 = fi_op::FI_CSWAP as u32;
const CSWAP_NE: u32 = fi_op::FI_CSWAP_NE as u32;
const CSWAP_LE: u32 = fi_op::FI_CSWAP_LE as u32;
const CSWAP_LT: u32 = fi_op::FI_CSWAP_LT as u32;
const CSWAP_GE: u32 = fi_op::FI_CSWAP_GE as u32;
const CSWAP_GT: u32 = fi_op::FI_CSWAP_GT as u32;
const MSWAP: u32 = fi_op::FI_MSWAP as u32;
const DIFF: u32 = fi_op::FI_DIFF as u32;

/// A type that has an order, and a truth.
trait Number: Copy + PartialOrd {
    const ONE: Self;
    fn is_true(self) -> bool;
    fn of(truth: bool) -> Self;
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// The bits, if an operation on bits makes sense.
    fn bits(op: u32, old: Self, new: Self, mask: Self) -> Option<Self>;
}

macro_rules! integers {
    ($($t:ty),+) => {$(
        impl Number for $t {
            const ONE: Self = 1;
            fn is_true(self) -> bool { self != 0 }
            fn of(truth: bool) -> Self { Self::from(truth) }
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            fn difference(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn bits(op: u32, old: Self, new: Self, mask: Self) -> Option<Self> {
                match op {
                    BOR => Some(old | new),
                    BAND => Some(old & new),
                    BXOR => Some(old ^ new),
                    MSWAP => Some((new & mask) | (old & !mask)),
                    _ => None,
                }
            }
        }
    )+};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);

macro_rules! reals {
    ($($t:ty),+) => {$(
        impl Number for $t {
            const ONE: Self = 1.0;
            fn is_true(self) -> bool { self != 0.0 }
            fn of(truth: bool) -> Self { if truth { Self::ONE } else { 0.0 } }
            fn sum(self, other: Self) -> Self { self + other }
            fn difference(self, other: Self) -> Self { self - other }
            fn product(self, other: Self) -> Self { self * other }
            fn bits(_op: u32, _old: Self, _new: Self, _mask: Self) -> Option<Self> { None }
        }
    )+};
}
reals!(f32, f64);

/// The element that takes the place of `old`, `None` for no such operation.
fn number<T: Number>(op: u32, old: T, new: T, compare: T) -> Option<T> {
    let swap = |when: bool| Some(if when { new } else { old });
    match op {
        MIN => swap(new < old),
        MAX => swap(new > old),
        SUM => Some(old.sum(new)),
        DIFF => Some(old.difference(new)),
        PROD => Some(old.product(new)),
        LOR => Some(T::of(old.is_true() || new.is_true())),
        LAND => Some(T::of(old.is_true() && new.is_true())),
        LXOR => Some(T::of(old.is_true() != new.is_true())),
        READ => Some(old),
        WRITE => Some(new),
        CSWAP => swap(compare == old),
        CSWAP_NE => swap(compare != old),
        CSWAP_LE => swap(compare <= old),
        CSWAP_LT => swap(compare < old),
        CSWAP_GE => swap(compare >= old),
        CSWAP_GT => swap(compare > old),
        _ => T::bits(op, old, new, compare),
    }
}

/// As [`number`], for complex numbers, which have no order.
fn complex<T: Number>(op: u32, old: [T; 2], new: [T; 2], compare: [T; 2]) -> Option<[T; 2]> {
    let truth = |value: [T; 2]| value[0].is_true() || value[1].is_true();
    let of = |truth: bool| Some([T::of(truth), T::of(false)]);
    let each = |change: fn(T, T) -> T| Some([change(old[0], new[0]), change(old[1], new[1])]);
    let swap = |when: bool| Some(if when { new } else { old });
    match op {
        SUM => each(T::sum),
        DIFF => each(T::difference),
        PROD => Some([
            old[0].product(new[0]).difference(old[1].product(new[1])),
            old[0].product(new[1]).sum(old[1].product(new[0])),
        ]),
        LOR => of(truth(old) || truth(new)),
        LAND => of(truth(old) && truth(new)),
        LXOR => of(truth(old) != truth(new)),
        READ => Some(old),
        WRITE => Some(new),
        CSWAP => swap(compare == old),
        CSWAP_NE => swap(compare != old),
        _ => None,
    }
}

/// Carries out an operation: `target` becomes what it makes of each element,
/// of `operand` and, where there is a comparison, of `compare`. All are arrays
/// of the datatype; `operand` and `compare` may be shorter than `target` only if
/// the operation does not look at them. -FI_EOPNOTSUPP: there is no such
/// operation on such elements.
pub fn apply(datatype: u32, op: u32, target: &mut [u8], operand: &[u8], compare: &[u8]) -> Result {
    let size = size_of_type(datatype)?;
    let compares = (CSWAP..=MSWAP).contains(&op);
    if (op != READ && operand.len() < target.len()) || (compares && compare.len() < target.len()) {
        return Err(Error::INVAL);
    }
    macro_rules! each {
        ($t:ty) => {
            elements(size, target, operand, compare, |old, new, compare| {
                let read = |bytes: [u8; 16]| {
                    let mut own = [0; size_of::<$t>()];
                    own.copy_from_slice(&bytes[..size_of::<$t>()]);
                    <$t>::from_ne_bytes(own)
                };
                let value = number(op, read(old), read(new), read(compare))?;
                let mut out = [0; 16];
                out[..size_of::<$t>()].copy_from_slice(&value.to_ne_bytes());
                Some(out)
            })
        };
    }
    macro_rules! each_complex {
        ($t:ty) => {
            elements(size, target, operand, compare, |old, new, compare| {
                let half = |bytes: &[u8]| {
                    let mut own = [0; size_of::<$t>()];
                    own.copy_from_slice(&bytes[..size_of::<$t>()]);
                    <$t>::from_ne_bytes(own)
                };
                let read = |bytes: [u8; 16]| [half(&bytes), half(&bytes[size_of::<$t>()..])];
                let value = complex(op, read(old), read(new), read(compare))?;
                let mut out = [0; 16];
                for (out, value) in out.chunks_exact_mut(size_of::<$t>()).zip(value) {
                    out.copy_from_slice(&value.to_ne_bytes());
                }
                Some(out)
            })
        };
    }
    match datatype {
        t if t == fi_datatype::FI_INT8 as u32 => each!(i8),
        t if t == fi_datatype::FI_UINT8 as u32 => each!(u8),
        t if t == fi_datatype::FI_INT16 as u32 => each!(i16),
        t if t == fi_datatype::FI_UINT16 as u32 => each!(u16),
        t if t == fi_datatype::FI_INT32 as u32 => each!(i32),
        t if t == fi_datatype::FI_UINT32 as u32 => each!(u32),
        t if t == fi_datatype::FI_INT64 as u32 => each!(i64),
        t if t == fi_datatype::FI_UINT64 as u32 => each!(u64),
        t if t == fi_datatype::FI_INT128 as u32 => each!(i128),
        t if t == fi_datatype::FI_UINT128 as u32 => each!(u128),
        t if t == fi_datatype::FI_FLOAT as u32 => each!(f32),
        t if t == fi_datatype::FI_DOUBLE as u32 => each!(f64),
        t if t == fi_datatype::FI_FLOAT_COMPLEX as u32 => each_complex!(f32),
        t if t == fi_datatype::FI_DOUBLE_COMPLEX as u32 => each_complex!(f64),
        _ => Err(Error::OPNOTSUPP),
    }
}

/// Replaces each element of `size` bytes of `target`.
fn elements(
    size: usize,
    target: &mut [u8],
    operand: &[u8],
    compare: &[u8],
    change: impl Fn([u8; 16], [u8; 16], [u8; 16]) -> Option<[u8; 16]>,
) -> Result {
    let element = |array: &[u8], at: usize| {
        let mut out = [0; 16];
        if let Some(bytes) = array.get(at..at + size) {
            out[..size].copy_from_slice(bytes);
        }
        out
    };
    for at in (0..target.len()).step_by(size) {
        let value = change(element(target, at), element(operand, at), element(compare, at));
        let value = value.ok_or(Error::OPNOTSUPP)?;
        let room = target.get_mut(at..at + size).ok_or(Error::INVAL)?;
        room.copy_from_slice(&value[..size]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i32s(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn on_i32(op: u32, target: &[i32], operand: &[i32], compare: &[i32]) -> Result<Vec<u8>> {
        let mut bytes = i32s(target);
        apply(4, op, &mut bytes, &i32s(operand), &i32s(compare)).map(|()| bytes)
    }

    #[test]
    fn integers_are_changed_as_the_manual_says() {
        for (op, operand, compare, expected) in [
            (MIN, 3, 0, -5),
            (MAX, 3, 0, 3),
            (SUM, 3, 0, -2),
            (DIFF, 3, 0, -8),
            (PROD, 3, 0, -15),
            (LOR, 0, 0, 1),
            (LAND, 0, 0, 0),
            (LXOR, 7, 0, 0),
            (BOR, 3, 0, -5 | 3),
            (BAND, 6, 0, -5 & 6),
            (BXOR, 6, 0, -5 ^ 6),
            (READ, 9, 0, -5),
            (WRITE, 9, 0, 9),
            (CSWAP, 9, -5, 9),
            (CSWAP, 9, 5, -5),
            (CSWAP_NE, 9, 5, 9),
            (CSWAP_LE, 9, -5, 9),
            (CSWAP_LT, 9, -5, -5),
            (CSWAP_GE, 9, -4, 9),
            (CSWAP_GT, 9, -5, -5),
            (MSWAP, 0b1010, 0b0011, (0b1010 & 0b0011) | (-5 & !0b0011)),
        ] {
            let got = on_i32(op, &[-5, -5], &[operand; 2], &[compare; 2]);
            assert_eq!(got, Ok(i32s(&[expected; 2])), "operation {op}");
        }
        assert_eq!(on_i32(SUM, &[i32::MAX], &[1], &[]), Ok(i32s(&[i32::MIN])));
    }

    #[test]
    fn arrays_that_are_too_short_and_operations_that_make_no_sense_are_refused() {
        assert_eq!(on_i32(SUM, &[1, 2], &[1], &[]), Err(Error::INVAL));
        assert_eq!(on_i32(CSWAP, &[1], &[1], &[]), Err(Error::INVAL));
        assert_eq!(on_i32(READ, &[1], &[], &[]), Ok(i32s(&[1])));
        assert_eq!(on_i32(20, &[1], &[1], &[1]), Err(Error::OPNOTSUPP));
        let mut odd = [0; 5];
        assert_eq!(apply(4, SUM, &mut odd, &[0; 8], &[]), Err(Error::INVAL));
        assert_eq!(check(Kind::Write, 8, BOR), Err(Error::OPNOTSUPP));
        assert_eq!(check(Kind::Fetch, 12, SUM), Err(Error::OPNOTSUPP));
        assert_eq!(check(Kind::Write, 4, READ), Err(Error::OPNOTSUPP));
        assert_eq!(check(Kind::Fetch, 4, READ), Ok(()));
        assert_eq!(check(Kind::Compare, 11, CSWAP), Ok(()));
        assert_eq!(check(Kind::Compare, 11, CSWAP_LE), Err(Error::OPNOTSUPP));
    }

    #[test]
    fn complex_numbers_multiply_as_such() {
        let c = |re: f32, im: f32| [re.to_ne_bytes(), im.to_ne_bytes()].concat();
        let mut target = c(1.0, 2.0);
        apply(10, PROD, &mut target, &c(3.0, -1.0), &[]).unwrap();
        assert_eq!(target, c(5.0, 5.0));
    }
}
