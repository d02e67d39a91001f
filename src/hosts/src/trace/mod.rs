//! Traces of transfers: the lines printed by the bpftrace script of fi_trace(1), and their conversion
//! to the JSON format of trace viewers (Chrome, Perfetto).
//!
//! [`line`] parses lines of any content. [`order`] reads them from several files in the order of their
//! times. [`convert`] joins the events of a transfer, in one process and between processes, and writes
//! JSON. [`align`] finds the differences between the clocks of several hosts. Input of any length is
//! read once by each of them, with bounded memory.
pub mod align;
pub mod convert;
mod join;
pub mod line;
pub mod order;
#[cfg(test)]
mod tests;
