//! Probe points for tracers (USDT): bpftrace, perf, SystemTap; docs/tracing.md.
//!
//! The probes of a plug-in share one semaphore: a number in the memory of the process
//! ([`CALL_CONDITIONS`]), incremented by the kernel during the attachment of a tracer. Without a
//! tracer a probe point is a comparison and a branch ([`is_enabled`]); each probe itself is in a
//! function outside of all fast paths. Fast paths without their own probe points are not taken during
//! a trace.
//!
//! A probe is described by a note in the section `.note.stapsdt` of the plug-in: its address, the
//! address of the semaphore, and the registers of its arguments.
//!
//! Endpoints have the same number in all processes ([`trace_id`](crate::addr::Addr::trace_id)), so a
//! message sent can be joined with its match in another process.
use crate::call_conditions::CALL_CONDITIONS;
use core::ffi::CStr;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns true if a tracer is attached.
#[inline(always)]
pub fn is_enabled() -> bool {
    CALL_CONDITIONS.has_tracer()
}

/// Numbers of an endpoint and, if the endpoint is connected, of its peer; 0 while unknown.
#[derive(Debug, Default)]
pub struct EndpointTraceIds {
    own: AtomicU64,
    peer: AtomicU64,
}

impl EndpointTraceIds {
    /// Returns the number of the endpoint.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Returns the number of the peer of a connected endpoint; 0 for other endpoints.
    pub fn peer(&self) -> u64 {
        self.peer.load(Ordering::Relaxed)
    }

    /// Sets the number of the endpoint.
    pub fn set_own(&self, own: u64) {
        self.own.store(own, Ordering::Relaxed);
    }

    /// Sets the number of the peer of a connected endpoint.
    pub fn set_peer(&self, peer: u64) {
        self.peer.store(peer, Ordering::Relaxed);
    }
}

/// Transfer as seen by the probes `send` and `match`.
#[derive(Clone, Copy, Debug)]
pub struct TracedTransfer {
    /// Number of the endpoint.
    pub endpoint: u64,
    /// Number of the other endpoint; 0 if it is unknown.
    pub peer: u64,
    /// The tag; 0 for a transfer without one.
    pub tag: u64,
    /// Length in bytes.
    pub len: usize,
    /// Context of the operation.
    pub context: usize,
    /// Kind of the operation: FI_SEND | FI_TAGGED, FI_READ | FI_RMA …
    pub flags: u64,
    /// The peer's fi_addr_t; FI_ADDR_NOTAVAIL if it has none.
    pub fi_addr: u64,
}

/// Assembly text of a probe: a nop, and a note with its description, in the layout of SystemTap's
/// `sys/sdt.h`, version 3, without a base address. The linker drops the note together with an unused
/// function.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
macro_rules! note {
    ($name:literal, $arguments:literal) => {
        concat!(
            "990: nop\n",
            ".pushsection .note.stapsdt, \"o\", %note, {function}\n",
            ".balign 4\n",
            ".4byte 992f - 991f, 994f - 993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: .8byte 990b\n",
            ".8byte 0\n",
            ".8byte {semaphore}\n",
            ".asciz \"libfabric\"\n",
            ".asciz \"",
            $name,
            "\"\n",
            ".asciz \"",
            $arguments,
            "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
        )
    };
}

/// Defines the probe of a function with these arguments: `probe!(f, "name", "8@{a} 8@{b}", a, b)`.
#[cfg(target_arch = "x86_64")]
macro_rules! probe {
    ($function:ident, $name:literal, $arguments:literal, $($argument:ident),+) => {
        // SAFETY: the code does nothing; a tracer reads the registers, and strings in memory.
        unsafe {
            core::arch::asm!(
                note!($name, $arguments),
                function = sym $function,
                semaphore = sym CALL_CONDITIONS,
                $($argument = in(reg) $argument,)+
                options(att_syntax, nostack, preserves_flags)
            );
        }
    };
}

#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
macro_rules! probe {
    ($function:ident, $name:literal, $arguments:literal, $($argument:ident),+) => {
        // SAFETY: the code does nothing; a tracer reads the registers, and strings in memory.
        unsafe {
            core::arch::asm!(
                note!($name, $arguments),
                function = sym $function,
                semaphore = sym CALL_CONDITIONS,
                $($argument = in(reg) $argument,)+
                options(nostack, preserves_flags)
            );
        }
    };
}

/// Other processors have no probes.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
macro_rules! probe {
    ($function:ident, $name:literal, $arguments:literal, $($argument:ident),+) => {
        let _ = ($($argument,)+);
    };
}

/// Defines a probe with the fields of a [`TracedTransfer`].
macro_rules! probe_transfer {
    ($function:ident, $name:literal, $transfer:ident) => {
        let TracedTransfer { endpoint, peer, tag, len, context, flags, fi_addr } = *$transfer;
        probe!(
            $function,
            $name,
            "8@{endpoint} 8@{peer} 8@{tag} 8@{len} 8@{context} 8@{flags} 8@{fi_addr}",
            endpoint,
            peer,
            tag,
            len,
            context,
            flags,
            fi_addr
        );
    };
}

/// Returns a text as a C string without control characters.
fn c_string(text: &str) -> CString {
    let printable = |byte: u8| if byte.is_ascii_control() { b'?' } else { byte };
    CString::new(text.bytes().map(printable).collect::<Vec<_>>()).unwrap_or_default()
}

/// Probe `enable`: an endpoint has its address.
#[cold]
#[inline(never)]
pub fn enabled(endpoint: u64, address: &str) {
    let text = c_string(address);
    let address = CStr::as_ptr(&text);
    probe!(enabled, "enable", "8@{endpoint} 8@{address}", endpoint, address);
    drop(text);
}

/// Probe `send`: a message, read, write or atomic operation is being posted.
#[cold]
#[inline(never)]
pub fn sent(transfer: &TracedTransfer) {
    probe_transfer!(sent, "send", transfer);
}

/// Probe `refuse`: the operation of the thread's last probe `send` was not accepted.
#[cold]
#[inline(never)]
pub fn refused(endpoint: u64, context: usize, error: i64) {
    probe!(refused, "refuse", "8@{endpoint} 8@{context} -8@{error}", endpoint, context, error);
}

/// Probe `match`: a message has its receive.
#[cold]
#[inline(never)]
pub fn matched(transfer: &TracedTransfer) {
    probe_transfer!(matched, "match", transfer);
}

/// Probe `complete`: an operation is over, with an error unless `error` is 0.
#[cold]
#[inline(never)]
pub fn completed(endpoint: u64, context: usize, flags: u64, len: usize, error: i64, queue: usize) {
    probe!(
        completed,
        "complete",
        "8@{endpoint} 8@{context} 8@{flags} 8@{len} -8@{error} 8@{queue}",
        endpoint,
        context,
        flags,
        len,
        error,
        queue
    );
}

/// Probe `connect`: a connection is established.
#[cold]
#[inline(never)]
pub fn connected(endpoint: u64, peer: u64, address: &str) {
    let text = c_string(address);
    let address = CStr::as_ptr(&text);
    probe!(connected, "connect", "8@{endpoint} 8@{peer} 8@{address}", endpoint, peer, address);
    drop(text);
}

/// Probe `lose`: an established connection has ended with an error.
#[cold]
#[inline(never)]
pub fn lost(endpoint: u64, error: i64, address: &str) {
    let text = c_string(address);
    let address = CStr::as_ptr(&text);
    probe!(lost, "lose", "8@{endpoint} -8@{error} 8@{address}", endpoint, error, address);
    drop(text);
}

/// Returns the FNV-1a hash of bytes. It is the same in every process.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_tracer_no_probe_is_enabled() {
        assert!(!is_enabled());
    }

    #[test]
    fn text_of_a_probe_has_no_control_characters() {
        assert_eq!(c_string("a\0b\tc\n").as_bytes(), b"a?b?c?");
    }

    #[test]
    fn hash_of_no_bytes_and_of_one_byte_are_those_of_fnv() {
        assert_eq!(hash([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(*b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
