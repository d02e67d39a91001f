use core::ffi::c_uint;
use core::fmt;
use core::marker::PhantomData;

/// Declares the values of an unnamed C enum, as constants of their C type. `build.rs` makes the C
/// enum of the same list.
macro_rules! unnamed_enum {
    (
        $(#[$_doc:meta])*
        enum {
            $($(#[$attribute:meta])* $name:ident = $value:expr),+ $(,)?
        }
    ) => {
        $($(#[$attribute])* pub const $name: ::core::ffi::c_int = $value;)+
    };
}

/// A C `enum E` as it lies in a struct or an argument: any `unsigned int`, not
/// only E's values, because a C caller may store anything there.
#[repr(transparent)]
pub struct c_enum<E>(c_uint, PhantomData<E>);

impl<E> c_enum<E> {
    /// The value as C stores it.
    pub const fn raw(self) -> c_uint {
        self.0
    }

    /// Returns a value, possibly none of E's.
    pub const fn from_raw(raw: c_uint) -> Self {
        Self(raw, PhantomData)
    }
}

impl<E> Clone for c_enum<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for c_enum<E> {}

impl<E> PartialEq for c_enum<E> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<E> Eq for c_enum<E> {}

impl<E> Default for c_enum<E> {
    /// Zero, named "unspecified" or the first value in every enum of the API.
    fn default() -> Self {
        Self::from_raw(0)
    }
}

impl<E> fmt::Debug for c_enum<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Lets an enum of the API be stored in, and compared with, its C field.
macro_rules! c_enums {
    ($($ty:ty),+ $(,)?) => {$(
        impl From<$ty> for c_enum<$ty> {
            fn from(value: $ty) -> Self {
                Self::from_raw(value as ::core::ffi::c_uint)
            }
        }
        impl PartialEq<$ty> for c_enum<$ty> {
            fn eq(&self, other: &$ty) -> bool {
                self.raw() == *other as ::core::ffi::c_uint
            }
        }
    )+};
}
