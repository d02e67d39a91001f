//! Reports of matches to tracers.
use ofi_provider::addr::Addr;
use ofi_provider::api::Bindings;
use ofi_provider::cq::Completion;
use ofi_provider::datagram_io::Datagram;
use ofi_provider::probes::{self, TracedTransfer};

/// Reports the match of a datagram and a receive to a tracer.
#[cold]
pub(super) fn trace_match(bound: &Bindings, of: &Completion, datagram: &Datagram) {
    probes::matched(&TracedTransfer {
        endpoint: bound.completions.rx.trace_ids().map_or(0, |ids| ids.own()),
        peer: datagram.from.map_or(0, |from| Addr::Ip(from).trace_id()),
        tag: 0,
        len: datagram.len,
        context: of.context.0 as usize,
        flags: of.flags,
        fi_addr: of.src,
    });
}
