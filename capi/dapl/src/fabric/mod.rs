//! The calls of libfabric made by the plug-in, with objects closed on drop.
//!
//! Only public calls are made, by the tables of the objects like the inlines of the headers, so any
//! `libfabric.so.1` is sufficient; it is opened with the first adaptor. Contexts of objects and
//! operations are numbers, never dereferenced.
#[macro_use]
mod calls;
mod domain;
mod endpoint;
mod info;

pub(crate) use calls::*;
pub(crate) use domain::*;
pub(crate) use endpoint::*;
pub(crate) use info::*;
