//! Atomic operations on elements in memory (fi_atomic(3)): data types, operations, their valid
//! combinations, and execution.
//!
//! An element of 1, 2, 4 or 8 bytes at a multiple of its size is changed by atomic instructions of
//! the processor. So the application's `__atomic` accesses are atomic with it as well. Other
//! elements are atomic among each other if the caller serializes operations, as
//! [`Opened`](crate::mr::Opened) does for the regions of a domain.
use crate::abi::fi_datatype::{self, *};
use crate::abi::fi_op::{self, *};
use crate::abi::{FI_REMOTE_READ, FI_REMOTE_WRITE};
use crate::error::{Error, Result};
use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Data types by their number.
const DATATYPES: [fi_datatype; 20] = [
    FI_INT8,
    FI_UINT8,
    FI_INT16,
    FI_UINT16,
    FI_INT32,
    FI_UINT32,
    FI_INT64,
    FI_UINT64,
    FI_FLOAT,
    FI_DOUBLE,
    FI_FLOAT_COMPLEX,
    FI_DOUBLE_COMPLEX,
    FI_LONG_DOUBLE,
    FI_LONG_DOUBLE_COMPLEX,
    FI_INT128,
    FI_UINT128,
    FI_FLOAT16,
    FI_BFLOAT16,
    FI_FLOAT8_E4M3,
    FI_FLOAT8_E5M2,
];

/// Operations by their number.
const OPS: [fi_op; 20] = [
    FI_MIN,
    FI_MAX,
    FI_SUM,
    FI_PROD,
    FI_LOR,
    FI_LAND,
    FI_BOR,
    FI_BAND,
    FI_LXOR,
    FI_BXOR,
    FI_ATOMIC_READ,
    FI_ATOMIC_WRITE,
    FI_CSWAP,
    FI_CSWAP_NE,
    FI_CSWAP_LE,
    FI_CSWAP_LT,
    FI_CSWAP_GE,
    FI_CSWAP_GT,
    FI_MSWAP,
    FI_DIFF,
];

/// The three groups of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AtomicKind {
    /// fi_atomic: nothing comes back.
    Base = 0,
    /// fi_fetch_atomic: the former values come back.
    Fetch = 1,
    /// fi_compare_atomic: compares first, and the former values come back.
    Compare = 2,
}

/// Valid combination of an operation and a data type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    kind: AtomicKind,
    datatype: fi_datatype,
    op: fi_op,
}

/// Class of data types, determining the valid operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TypeClass {
    /// Integers: all operations.
    Integer,
    /// Real numbers: all but operations on bits.
    Real,
    /// Complex numbers: neither operations on bits nor such as need an order.
    Complex,
}

/// Returns the class of a type and the size of an element in bytes. Returns `None` for a type not
/// available on this machine.
fn class(datatype: fi_datatype) -> Option<(TypeClass, usize)> {
    Some(match datatype {
        FI_INT8 | FI_UINT8 => (TypeClass::Integer, 1),
        FI_INT16 | FI_UINT16 => (TypeClass::Integer, 2),
        FI_INT32 | FI_UINT32 => (TypeClass::Integer, 4),
        FI_INT64 | FI_UINT64 => (TypeClass::Integer, 8),
        FI_INT128 | FI_UINT128 => (TypeClass::Integer, 16),
        FI_FLOAT8_E4M3 | FI_FLOAT8_E5M2 => (TypeClass::Real, 1),
        FI_FLOAT16 | FI_BFLOAT16 => (TypeClass::Real, 2),
        FI_FLOAT => (TypeClass::Real, 4),
        FI_DOUBLE => (TypeClass::Real, 8),
        FI_FLOAT_COMPLEX => (TypeClass::Complex, 8),
        FI_DOUBLE_COMPLEX => (TypeClass::Complex, 16),
        // The format of a long double is the machine's own affair.
        FI_LONG_DOUBLE if cfg!(target_arch = "x86_64") => (TypeClass::Real, 16),
        FI_LONG_DOUBLE_COMPLEX if cfg!(target_arch = "x86_64") => (TypeClass::Complex, 32),
        FI_LONG_DOUBLE | FI_LONG_DOUBLE_COMPLEX | FI_VOID => return None,
    })
}

/// Returns true if calls of this kind support this operation, and if it is defined for types of
/// this class.
fn fits(kind: AtomicKind, class: TypeClass, op: fi_op) -> bool {
    let of_kind = match op {
        FI_ATOMIC_READ => kind == AtomicKind::Fetch,
        FI_CSWAP | FI_CSWAP_NE | FI_CSWAP_LE | FI_CSWAP_LT | FI_CSWAP_GE | FI_CSWAP_GT
        | FI_MSWAP => kind == AtomicKind::Compare,
        FI_NOOP => false,
        _ => kind != AtomicKind::Compare,
    };
    let of_class = match op {
        FI_BOR | FI_BAND | FI_BXOR | FI_MSWAP => class == TypeClass::Integer,
        FI_MIN | FI_MAX | FI_CSWAP_LE | FI_CSWAP_LT | FI_CSWAP_GE | FI_CSWAP_GT => {
            class != TypeClass::Complex
        }
        _ => true,
    };
    of_kind && of_class
}

/// Size of a long double.
const LONG_DOUBLE: usize = if cfg!(target_pointer_width = "64") {
    16
} else if cfg!(target_arch = "x86") {
    12
} else {
    8
};

/// Bytes of an element of the type with this number; -FI_EOPNOTSUPP if there is none.
pub(crate) fn size_of_type(datatype: u32) -> Result<usize> {
    let known = usize::try_from(datatype).ok().and_then(|number| DATATYPES.get(number));
    match known {
        // Such elements can be moved even if they cannot be combined.
        Some(FI_LONG_DOUBLE) => Ok(LONG_DOUBLE),
        Some(FI_LONG_DOUBLE_COMPLEX) => Ok(2 * LONG_DOUBLE),
        _ => known.and_then(|kind| class(*kind)).map(|(_, size)| size).ok_or(Error::OPNOTSUPP),
    }
}

impl Operation {
    /// The operation of these numbers of `enum fi_datatype` and `enum fi_op`;
    /// -FI_EOPNOTSUPP if there is none.
    pub fn new(kind: AtomicKind, datatype: u32, op: u32) -> Result<Self> {
        let find = |number: u32| usize::try_from(number).ok();
        let datatype = find(datatype).and_then(|number| DATATYPES.get(number));
        let op = find(op).and_then(|number| OPS.get(number));
        let (&datatype, &op) = datatype.zip(op).ok_or(Error::OPNOTSUPP)?;
        match class(datatype) {
            Some((class, _)) if fits(kind, class, op) => Ok(Self { kind, datatype, op }),
            _ => Err(Error::OPNOTSUPP),
        }
    }

    /// Returns the operation yielding the larger of two bytes.
    pub(crate) fn highest_byte() -> Self {
        Self { kind: AtomicKind::Base, datatype: FI_UINT8, op: FI_MAX }
    }

    /// Returns the commutative operation combining two elements into one (fi_collective(3)). Fails
    /// with -FI_EOPNOTSUPP if these numbers name none.
    pub(crate) fn reduction(datatype: u32, op: u32) -> Result<Self> {
        match Self::new(AtomicKind::Base, datatype, op)? {
            of if matches!(of.op, FI_DIFF | FI_ATOMIC_WRITE) => Err(Error::OPNOTSUPP),
            of => Ok(of),
        }
    }

    /// Returns the kind of calls with this operation.
    pub fn kind(self) -> AtomicKind {
        self.kind
    }

    /// Returns the number of the data type, below 20.
    pub fn datatype(self) -> u8 {
        self.datatype as u8
    }

    /// Returns the number of the operation, below 20.
    pub fn op(self) -> u8 {
        self.op as u8
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        class(self.datatype).map_or(1, |(_, size)| size)
    }

    /// Returns true if the operation has a first operand; a read has none.
    pub fn has_source(self) -> bool {
        self.op != FI_ATOMIC_READ
    }

    /// Returns true if the operation returns the previous values.
    pub fn fetches(self) -> bool {
        self.kind != AtomicKind::Base
    }

    /// Returns the access rights required of the region: FI_REMOTE_READ if values are returned,
    /// FI_REMOTE_WRITE if elements may change.
    pub fn rights(self) -> u64 {
        let read = if self.fetches() { FI_REMOTE_READ } else { 0 };
        read | if self.has_source() { FI_REMOTE_WRITE } else { 0 }
    }

    /// Applies the operation to the elements in `len` bytes at `target`, in order. The operands, if
    /// the operation has any, are of the same size; `fetched` is empty or receives the previous
    /// values. If an operand is too short, elements without an operand stay unchanged.
    ///
    /// # Safety
    /// `len` bytes at `target` are readable and writable, or readable for operations that only
    /// read. All other accesses to them are atomic.
    pub(crate) unsafe fn apply(
        self,
        target: *mut u8,
        len: usize,
        source: &[u8],
        compare: &[u8],
        fetched: &mut [u8],
    ) {
        let run = match self.datatype {
            FI_INT8 => run::<i8>,
            FI_UINT8 => run::<u8>,
            FI_INT16 => run::<i16>,
            FI_UINT16 => run::<u16>,
            FI_INT32 => run::<i32>,
            FI_UINT32 => run::<u32>,
            FI_INT64 => run::<i64>,
            FI_UINT64 => run::<u64>,
            FI_INT128 => run::<i128>,
            FI_UINT128 => run::<u128>,
            FI_FLOAT => run::<f32>,
            FI_DOUBLE => run::<f64>,
            FI_FLOAT_COMPLEX => run::<Complex<f32>>,
            FI_DOUBLE_COMPLEX => run::<Complex<f64>>,
            #[cfg(target_arch = "x86_64")]
            FI_LONG_DOUBLE => run::<x87::LongDouble>,
            #[cfg(target_arch = "x86_64")]
            FI_LONG_DOUBLE_COMPLEX => run::<Complex<x87::LongDouble>>,
            FI_FLOAT16 => run::<Small<u16, 5, 10, true>>,
            FI_BFLOAT16 => run::<Small<u16, 8, 7, true>>,
            FI_FLOAT8_E4M3 => run::<Small<u8, 4, 3, false>>,
            FI_FLOAT8_E5M2 => run::<Small<u8, 5, 2, true>>,
            _ => return,
        };
        // SAFETY: by this function's contract.
        unsafe { run(self.op, target, len, source, compare, fetched) }
    }
}

/// A type of elements.
trait Element: Copy {
    /// Bytes of an element.
    const SIZE: usize;
    /// Returns the element at the start of `bytes`, a slice of at least its size.
    fn get(bytes: &[u8]) -> Self;
    /// Writes the element to the start of `bytes`, a slice of at least its size.
    fn put(self, bytes: &mut [u8]);
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// Compares two elements as C does: `None` for NaN, and for unequal complex numbers.
    fn order(self, other: Self) -> Option<Ordering>;
    /// The element 1 for true, 0 for false.
    fn from_bool(truth: bool) -> Self;
    /// Returns true if the element differs from zero.
    fn truth(self) -> bool;
    /// Combines the bits, of an integer.
    fn bitwise(self, _other: Self, _how: fn(u128, u128) -> u128) -> Self {
        self
    }
}

/// Returns the new value of `target`, or `None` if it stays unchanged.
#[inline]
fn next<T: Element>(op: fi_op, target: T, source: T, compare: T) -> Option<T> {
    let logical =
        |how: fn(bool, bool) -> bool| Some(T::from_bool(how(target.truth(), source.truth())));
    let swap_if = |test: bool| test.then_some(source);
    let order = || compare.order(target);
    match op {
        FI_MIN => swap_if(source.order(target) == Some(Less)),
        FI_MAX => swap_if(source.order(target) == Some(Greater)),
        FI_SUM => Some(target.sum(source)),
        FI_DIFF => Some(target.difference(source)),
        FI_PROD => Some(target.product(source)),
        FI_LOR => logical(|a, b| a || b),
        FI_LAND => logical(|a, b| a && b),
        FI_LXOR => logical(|a, b| a != b),
        FI_BOR => Some(target.bitwise(source, |a, b| a | b)),
        FI_BAND => Some(target.bitwise(source, |a, b| a & b)),
        FI_BXOR => Some(target.bitwise(source, |a, b| a ^ b)),
        FI_ATOMIC_READ | FI_NOOP => None,
        FI_ATOMIC_WRITE => Some(source),
        FI_CSWAP => swap_if(order() == Some(Equal)),
        FI_CSWAP_NE => swap_if(order() != Some(Equal)),
        FI_CSWAP_LE => swap_if(matches!(order(), Some(Less | Equal))),
        FI_CSWAP_LT => swap_if(order() == Some(Less)),
        FI_CSWAP_GE => swap_if(matches!(order(), Some(Greater | Equal))),
        FI_CSWAP_GT => swap_if(order() == Some(Greater)),
        FI_MSWAP => {
            let masked = target.bitwise(compare, |target, mask| target & !mask);
            let new = source.bitwise(compare, |source, mask| source & mask);
            Some(masked.bitwise(new, |masked, new| masked | new))
        }
    }
}

/// # Safety
/// As [`Operation::apply`].
unsafe fn run<T: Element>(
    op: fi_op,
    target: *mut u8,
    len: usize,
    source: &[u8],
    compare: &[u8],
    fetched: &mut [u8],
) {
    // An operand that the operation does not have is not looked at.
    let nothing = [0; 32];
    let operand = |bytes: &[u8], at: usize| match bytes.get(at..at + T::SIZE) {
        Some(bytes) => T::get(bytes),
        None => T::get(&nothing),
    };
    for at in (0..len / T::SIZE).map(|index| index * T::SIZE) {
        let (source, compare) = (operand(source, at), operand(compare, at));
        // SAFETY: the element lies in the `len` bytes at `target`.
        let old =
            unsafe { update::<T>(target.add(at), |target| next(op, target, source, compare)) };
        if let Some(to) = fetched.get_mut(at..at + T::SIZE) {
            old.put(to);
        }
    }
}

/// Replaces one element by the result of `next`, atomically if the processor can, and returns the
/// previous value.
///
/// # Safety
/// The element at `at` is readable, and writable if `next` returns a value. All other accesses to
/// it are atomic.
#[inline]
unsafe fn update<T: Element>(at: *mut u8, next: impl Fn(T) -> Option<T>) -> T {
    macro_rules! in_one_step {
        ($atomic:ty, $bits:ty) => {{
            // SAFETY: by this function's contract; aligned, as was checked.
            let element = unsafe { <$atomic>::from_ptr(at.cast()) };
            let mut bits = element.load(Acquire);
            loop {
                let old = T::get(&bits.to_ne_bytes());
                let Some(new) = next(old) else { return old };
                let mut bytes = bits.to_ne_bytes();
                new.put(&mut bytes);
                let new = <$bits>::from_ne_bytes(bytes);
                match element.compare_exchange_weak(bits, new, AcqRel, Acquire) {
                    Ok(_) => return old,
                    Err(now) => bits = now,
                }
            }
        }};
    }
    let aligned = (at as usize) % T::SIZE == 0;
    match T::SIZE {
        1 => in_one_step!(AtomicU8, u8),
        2 if aligned => in_one_step!(AtomicU16, u16),
        4 if aligned => in_one_step!(AtomicU32, u32),
        8 if aligned => in_one_step!(AtomicU64, u64),
        size => {
            let mut bytes = [0u8; 32];
            // SAFETY: by this function's contract; no element is longer than `bytes`.
            unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), size) };
            let old = T::get(&bytes);
            if let Some(new) = next(old) {
                new.put(&mut bytes);
                // SAFETY: by this function's contract; no element is longer than `bytes`.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, size) };
            }
            old
        }
    }
}

/// The bytes of a number at the start of `bytes`.
macro_rules! bytes_of_number {
    ($type:ty) => {
        const SIZE: usize = size_of::<$type>();
        #[inline]
        fn get(bytes: &[u8]) -> Self {
            let mut own = [0; size_of::<$type>()];
            own.copy_from_slice(&bytes[..size_of::<$type>()]);
            Self::from_ne_bytes(own)
        }
        #[inline]
        fn put(self, bytes: &mut [u8]) {
            bytes[..size_of::<$type>()].copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! integers {
    ($($type:ty),+) => {$(
        impl Element for $type {
            bytes_of_number!($type);
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn difference(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn order(self, other: Self) -> Option<Ordering> {
                Some(self.cmp(&other))
            }
            fn from_bool(truth: bool) -> Self {
                truth.into()
            }
            fn truth(self) -> bool {
                self != 0
            }
            fn bitwise(self, other: Self, how: fn(u128, u128) -> u128) -> Self {
                // Widened and narrowed again: each bit is by itself.
                how(self as u128, other as u128) as Self
            }
        }
    )+};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);

macro_rules! floats {
    ($($type:ty),+) => {$(
        impl Element for $type {
            bytes_of_number!($type);
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn difference(self, other: Self) -> Self {
                self - other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn order(self, other: Self) -> Option<Ordering> {
                self.partial_cmp(&other)
            }
            fn from_bool(truth: bool) -> Self {
                f32::from(u8::from(truth)).into()
            }
            fn truth(self) -> bool {
                self != 0.0
            }
        }
    )+};
}

floats!(f32, f64);

/// A complex number: real part, imaginary part.
#[derive(Clone, Copy)]
struct Complex<T>(T, T);

impl<T: Element> Element for Complex<T> {
    const SIZE: usize = 2 * T::SIZE;
    fn get(bytes: &[u8]) -> Self {
        Self(T::get(bytes), T::get(&bytes[T::SIZE..]))
    }
    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
        self.1.put(&mut bytes[T::SIZE..]);
    }
    fn sum(self, other: Self) -> Self {
        Self(self.0.sum(other.0), self.1.sum(other.1))
    }
    fn difference(self, other: Self) -> Self {
        Self(self.0.difference(other.0), self.1.difference(other.1))
    }
    fn product(self, other: Self) -> Self {
        let real = self.0.product(other.0).difference(self.1.product(other.1));
        Self(real, self.0.product(other.1).sum(self.1.product(other.0)))
    }
    fn order(self, other: Self) -> Option<Ordering> {
        let equal = |a: T, b: T| a.order(b) == Some(Equal);
        (equal(self.0, other.0) && equal(self.1, other.1)).then_some(Equal)
    }
    fn from_bool(truth: bool) -> Self {
        Self(T::from_bool(truth), T::from_bool(false))
    }
    fn truth(self) -> bool {
        self.0.truth() || self.1.truth()
    }
}

/// Small floating point number: a sign, `EXP` bits of exponent, `MAN` bits of mantissa. With `INF`
/// the largest exponent is for infinity and NaN as in IEEE 754. Without it there is no infinity,
/// and NaN is the number of all ones. Calculations use double precision. Double precision has more
/// than twice as many bits, so double rounding does no harm.
#[derive(Clone, Copy)]
struct Small<B, const EXP: u32, const MAN: u32, const INF: bool>(B);

impl<B: Into<u32>, const EXP: u32, const MAN: u32, const INF: bool> Small<B, EXP, MAN, INF> {
    const BIAS: i32 = (1 << (EXP - 1)) - 1;
    const MAX_EXP: u32 = (1 << EXP) - 1;
    const SIGN: u32 = 1 << (EXP + MAN);
    const NAN: u32 = Self::SIGN - 1;
    /// The first pattern behind those of finite numbers.
    const TOO_LARGE: u32 = if INF { Self::MAX_EXP << MAN } else { Self::NAN };

    fn value(self) -> f64 {
        let bits = self.0.into();
        let (exp, man) = ((bits >> MAN) & Self::MAX_EXP, bits & ((1 << MAN) - 1));
        let size = match (bits & Self::NAN).cmp(&Self::TOO_LARGE) {
            Equal if INF => f64::INFINITY,
            Equal | Greater => f64::NAN,
            Less if exp == 0 => f64::from(man) * power(1 - Self::BIAS - MAN as i32),
            Less => f64::from(man | 1 << MAN) * power(exp as i32 - Self::BIAS - MAN as i32),
        };
        if bits & Self::SIGN != 0 { -size } else { size }
    }

    /// The bits of the nearest number, of two the even one.
    fn bits(value: f64) -> u32 {
        let sign = if value.is_sign_negative() { Self::SIGN } else { 0 };
        let size = value.abs();
        if size.is_nan() {
            return sign | Self::NAN;
        }
        if size.is_infinite() {
            return sign | Self::TOO_LARGE;
        }
        // The exponent field of a double; those of numbers next to zero are all
        // far below the smallest exponent of ours.
        let exp = (size.to_bits() >> 52) as i32 - 1023;
        let field = (exp + Self::BIAS).max(1);
        let steps = size / power(field - Self::BIAS - MAN as i32);
        // A mantissa that is rounded up to the next power of two carries over
        // into the exponent, as it should.
        let bits = (f64::from(field - 1) * power(MAN as i32)) + steps.round_ties_even();
        sign | if bits >= f64::from(Self::TOO_LARGE) { Self::TOO_LARGE } else { bits as u32 }
    }
}

/// Returns 2 to a power within the range of normal doubles.
fn power(of: i32) -> f64 {
    f64::from_bits(((1023 + of) as u64) << 52)
}

macro_rules! small_floats {
    ($($bits:ty),+) => {$(
        impl<const EXP: u32, const MAN: u32, const INF: bool> Element
            for Small<$bits, EXP, MAN, INF>
        {
            const SIZE: usize = size_of::<$bits>();
            fn get(bytes: &[u8]) -> Self {
                Self(<$bits>::get(bytes))
            }
            fn put(self, bytes: &mut [u8]) {
                self.0.put(bytes);
            }
            fn sum(self, other: Self) -> Self {
                Self(Self::bits(self.value() + other.value()) as $bits)
            }
            fn difference(self, other: Self) -> Self {
                Self(Self::bits(self.value() - other.value()) as $bits)
            }
            fn product(self, other: Self) -> Self {
                Self(Self::bits(self.value() * other.value()) as $bits)
            }
            fn order(self, other: Self) -> Option<Ordering> {
                self.value().partial_cmp(&other.value())
            }
            fn from_bool(truth: bool) -> Self {
                Self(Self::bits(truth.into()) as $bits)
            }
            fn truth(self) -> bool {
                self.value() != 0.0
            }
        }
    )+};
}

small_floats!(u8, u16);

/// The long double of x86: 80 bits in 16 bytes, without a type in Rust.
#[cfg(target_arch = "x86_64")]
mod x87 {
    use super::{Element, Equal, Greater, Less, Ordering};
    use std::arch::asm;

    /// A long double as it lies in memory; the six bytes behind the first ten mean nothing.
    #[derive(Clone, Copy)]
    pub(super) struct LongDouble([u8; 16]);

    /// Defines a function storing the result of one floating point instruction on two numbers.
    macro_rules! binary {
        ($name:ident, $instruction:literal) => {
            fn $name(self, other: Self) -> Self {
                let mut result = [0; 16];
                // SAFETY: ten bytes are read from each of two and written to one
                // array of 16; the unit's stack, which is empty in between by the
                // calling convention, is empty again.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{a}]",
                        "fld tbyte ptr [{b}]",
                        $instruction,
                        "fstp tbyte ptr [{result}]",
                        a = in(reg) self.0.as_ptr(),
                        b = in(reg) other.0.as_ptr(),
                        result = in(reg) result.as_mut_ptr(),
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                Self(result)
            }
        };
    }

    impl Element for LongDouble {
        const SIZE: usize = 16;
        fn get(bytes: &[u8]) -> Self {
            let mut own = [0; 16];
            own.copy_from_slice(&bytes[..16]);
            Self(own)
        }
        fn put(self, bytes: &mut [u8]) {
            bytes[..16].copy_from_slice(&self.0);
        }
        binary!(sum, "faddp st(1), st");
        binary!(difference, "fsubp st(1), st");
        binary!(product, "fmulp st(1), st");
        fn order(self, other: Self) -> Option<Ordering> {
            let (above, equal, unordered): (u8, u8, u8);
            // SAFETY: ten bytes are read from each of two arrays of 16; the stack
            // is left as it was.
            unsafe {
                asm!(
                    "fld tbyte ptr [{b}]",
                    "fld tbyte ptr [{a}]",
                    "fucomip st, st(1)",
                    "seta {above}",
                    "sete {equal}",
                    "setp {unordered}",
                    "fstp st(0)",
                    a = in(reg) self.0.as_ptr(),
                    b = in(reg) other.0.as_ptr(),
                    above = out(reg_byte) above,
                    equal = out(reg_byte) equal,
                    unordered = out(reg_byte) unordered,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack, readonly),
                );
            }
            match (unordered, equal, above) {
                (1, ..) => None,
                (_, 1, _) => Some(Equal),
                (_, _, 1) => Some(Greater),
                _ => Some(Less),
            }
        }
        fn from_bool(truth: bool) -> Self {
            let mut bytes = [0; 16];
            if truth {
                // 1.0: the mantissa's highest bit, and the bias as exponent.
                bytes[7] = 0x80;
                bytes[8..10].copy_from_slice(&0x3fffu16.to_le_bytes());
            }
            Self(bytes)
        }
        fn truth(self) -> bool {
            self.order(Self::from_bool(false)) != Some(Equal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the new value of `old`, and the fetched value.
    fn apply<T: Copy>(
        kind: AtomicKind,
        datatype: fi_datatype,
        op: fi_op,
        old: T,
        a: T,
        b: T,
    ) -> (T, T) {
        let operation = Operation::new(kind, datatype as u32, op as u32).unwrap();
        assert_eq!(operation.size(), size_of::<T>());
        let bytes = |value: &T| {
            let start = std::ptr::from_ref(value).cast::<u8>();
            // SAFETY: the tests' values are numbers without padding.
            unsafe { std::slice::from_raw_parts(start, size_of::<T>()) }.to_vec()
        };
        let (mut target, mut fetched) = (old, vec![0; size_of::<T>()]);
        let to = (&raw mut target).cast();
        // SAFETY: the target is ours.
        unsafe { operation.apply(to, size_of::<T>(), &bytes(&a), &bytes(&b), &mut fetched) };
        // SAFETY: as many bytes as a T has, of any alignment.
        (target, unsafe { fetched.as_ptr().cast::<T>().read_unaligned() })
    }

    fn base<T: Copy>(datatype: fi_datatype, op: fi_op, old: T, a: T) -> T {
        apply(AtomicKind::Base, datatype, op, old, a, a).0
    }

    #[test]
    fn every_datatype_has_a_size() {
        let types = DATATYPES.len() as u32;
        assert!((0..types).all(|number| size_of_type(number).is_ok()));
        assert_eq!(size_of_type(types), Err(Error::OPNOTSUPP));
        // C aligns it to its size, or to that of an address.
        let size = size_of_type(FI_LONG_DOUBLE as u32).unwrap();
        assert!(size % size_of::<usize>() == 0 && size >= size_of::<f64>());
    }

    #[test]
    fn integers_wrap_around_and_differ_by_sign() {
        assert_eq!(base(FI_INT8, FI_SUM, 127i8, 1), -128);
        assert_eq!(base(FI_UINT8, FI_DIFF, 0u8, 1), 255);
        assert_eq!(base(FI_INT16, FI_MIN, 1i16, -1), -1);
        assert_eq!(base(FI_UINT16, FI_MIN, 1u16, 0xffff), 1);
        assert_eq!(base(FI_UINT32, FI_PROD, 0x8000_0001u32, 2), 2);
        assert_eq!(base(FI_INT64, FI_MAX, -5i64, -4), -4);
        assert_eq!(base(FI_INT128, FI_BXOR, -1i128, 1), -2);
        assert_eq!(base(FI_UINT128, FI_SUM, u64::MAX.into(), 1u128), 1 << 64);
        assert_eq!(base(FI_UINT64, FI_LAND, 4u64, 8), 1);
        assert_eq!(base(FI_UINT64, FI_LXOR, 4u64, 8), 0);
    }

    #[test]
    fn compare_operations_compare_the_operand_with_the_target() {
        let swap = |op, compare: i32| apply(AtomicKind::Compare, FI_INT32, op, 5, 9, compare);
        assert_eq!(swap(FI_CSWAP, 5), (9, 5));
        assert_eq!(swap(FI_CSWAP, 4), (5, 5));
        assert_eq!(swap(FI_CSWAP_NE, 4), (9, 5));
        assert_eq!(swap(FI_CSWAP_LE, 5), (9, 5));
        assert_eq!(swap(FI_CSWAP_LT, 5), (5, 5));
        assert_eq!(swap(FI_CSWAP_GE, 4), (5, 5));
        assert_eq!(swap(FI_CSWAP_GT, 6), (9, 5));
        assert_eq!(swap(FI_MSWAP, 0b1100), (0b1001, 5));
        let nan = apply(AtomicKind::Compare, FI_DOUBLE, FI_CSWAP_NE, f64::NAN, 1.0, f64::NAN);
        assert_eq!(nan.0.to_bits(), 1f64.to_bits());
    }

    #[test]
    fn unaligned_elements_change_and_adjacent_bytes_do_not() {
        let mut memory = [0xffu8; 24];
        let operation = Operation::new(AtomicKind::Fetch, FI_UINT64 as u32, FI_SUM as u32).unwrap();
        let source: Vec<u8> = [2u64, 3].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut fetched = [0; 16];
        for at in 1..8 {
            memory.fill(0xff);
            // SAFETY: 16 bytes of ours.
            unsafe { operation.apply(memory.as_mut_ptr().add(at), 16, &source, &[], &mut fetched) };
            let mut wanted = [0xff; 24];
            wanted[at..at + 8].copy_from_slice(&1u64.to_ne_bytes());
            wanted[at + 8..at + 16].copy_from_slice(&2u64.to_ne_bytes());
            assert_eq!((memory, fetched), (wanted, [0xff; 16]));
        }
    }

    #[test]
    fn complex_numbers_multiply() {
        let product = base(FI_DOUBLE_COMPLEX, FI_PROD, [1.0f64, 2.0], [3.0, 4.0]);
        assert_eq!(product.map(f64::to_bits), [-5.0f64, 10.0].map(f64::to_bits));
        let truth = base(FI_FLOAT_COMPLEX, FI_LAND, [0.0f32, 2.0], [3.0, 0.0]);
        assert_eq!(truth.map(f32::to_bits), [1.0f32, 0.0].map(f32::to_bits));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_long_double_has_eighty_bits() {
        // One, one plus its last bit, and minus three.
        let one = 0x3fff_8000_0000_0000_0000u128;
        let next = one + 1;
        let minus_three = 0xc000_c000_0000_0000_0000u128;
        let last_bit = 0x3fc0_8000_0000_0000_0000u128;
        let nan = 0x7fff_c000_0000_0000_0000u128;
        assert_eq!(base(FI_LONG_DOUBLE, FI_DIFF, next, one), last_bit);
        assert_eq!(base(FI_LONG_DOUBLE, FI_SUM, one, last_bit), next);
        assert_eq!(base(FI_LONG_DOUBLE, FI_PROD, minus_three, one), minus_three);
        assert_eq!(base(FI_LONG_DOUBLE, FI_MIN, one, minus_three), minus_three);
        assert_eq!(base(FI_LONG_DOUBLE, FI_MIN, one, nan), one);
        assert_eq!(base(FI_LONG_DOUBLE, FI_LAND, next, minus_three), one);
        let product = base(FI_LONG_DOUBLE_COMPLEX, FI_PROD, [0, one], [0, minus_three]);
        assert_eq!(product, [0x4000_c000_0000_0000_0000, 0]);
    }

    #[test]
    fn small_floats_round_to_the_nearest_even() {
        // 2048 + 1 in half precision is 2048, 2050 + 1 is 2052.
        assert_eq!(base(FI_FLOAT16, FI_SUM, 0x6800u16, 0x3c00), 0x6800);
        assert_eq!(base(FI_FLOAT16, FI_SUM, 0x6801u16, 0x3c00), 0x6802);
        // The largest and as much again; the smallest and its half.
        assert_eq!(base(FI_FLOAT16, FI_SUM, 0x7bffu16, 0x7bff), 0x7c00);
        assert_eq!(base(FI_FLOAT16, FI_PROD, 0x0001u16, 0x3800), 0);
        assert_eq!(base(FI_FLOAT16, FI_SUM, 0x03ffu16, 0x0001), 0x0400);
        assert_eq!(base(FI_BFLOAT16, FI_SUM, 0x3f80u16, 0x3f80), 0x4000);
        assert_eq!(base(FI_BFLOAT16, FI_PROD, 0xbf80u16, 0x0001), 0x8001);
        // 448 is the largest of e4m3, which has no infinity.
        assert_eq!(base(FI_FLOAT8_E4M3, FI_SUM, 0x7eu8, 0x7e), 0x7f);
        assert_eq!(base(FI_FLOAT8_E4M3, FI_MAX, 0x38u8, 0x7e), 0x7e);
        assert_eq!(base(FI_FLOAT8_E5M2, FI_SUM, 0x7bu8, 0x7b), 0x7c);
        assert_eq!(base(FI_FLOAT8_E5M2, FI_LOR, 0u8, 0x80), 0);
    }

    #[test]
    fn every_small_float_reads_back_as_it_was_written() {
        fn check<B: Into<u32> + TryFrom<u32>, const E: u32, const M: u32, const INF: bool>() {
            let bits = 0..1u32 << (1 + E + M);
            for bits in bits {
                let Ok(raw) = B::try_from(bits) else { panic!("{bits} is too much") };
                let value = Small::<B, E, M, INF>(raw).value();
                let back = Small::<B, E, M, INF>::bits(value);
                assert!(back == bits || value.is_nan(), "{bits:#x} {value} {back:#x}");
            }
        }
        check::<u16, 5, 10, true>();
        check::<u16, 8, 7, true>();
        check::<u8, 4, 3, false>();
        check::<u8, 5, 2, true>();
    }

    #[test]
    fn invalid_datatype_and_operation_pairs_are_refused() {
        let new = |kind, datatype: fi_datatype, op: fi_op| {
            Operation::new(kind, datatype as u32, op as u32).is_ok()
        };
        assert!(new(AtomicKind::Fetch, FI_INT8, FI_ATOMIC_READ));
        assert!(!new(AtomicKind::Base, FI_INT8, FI_ATOMIC_READ));
        assert!(!new(AtomicKind::Base, FI_FLOAT, FI_BOR));
        assert!(!new(AtomicKind::Compare, FI_DOUBLE, FI_MSWAP));
        assert!(!new(AtomicKind::Compare, FI_DOUBLE_COMPLEX, FI_CSWAP_LE));
        assert!(new(AtomicKind::Compare, FI_DOUBLE_COMPLEX, FI_CSWAP_NE));
        assert!(!new(AtomicKind::Base, FI_INT8, FI_CSWAP));
        assert!(!new(AtomicKind::Base, FI_VOID, FI_SUM));
        assert!(!new(AtomicKind::Base, FI_INT8, FI_NOOP));
        assert!(Operation::new(AtomicKind::Base, 20, 0).is_err());
        assert!(Operation::new(AtomicKind::Base, 0, u32::MAX).is_err());
    }

    #[test]
    fn threads_and_operations_add_up() {
        let sum = AtomicU32::new(0);
        let operation = Operation::new(AtomicKind::Base, FI_FLOAT as u32, FI_SUM as u32).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let one = 1f32.to_ne_bytes();
                        // SAFETY: all threads access it atomically.
                        unsafe { operation.apply(sum.as_ptr().cast(), 4, &one, &[], &mut []) };
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 20_000f32.to_bits());
    }
}
