//! What programs open on fabrics and domains: what all of these objects have in common, and the
//! calls of their tables that are not built.
pub mod object;
pub(crate) mod stubs;
