//! Paths of the engine's transfers by size, for `fi_info --protocols` (fi_info(1)).
use crate::engine::{COPY_MAX, MAX_BATCHED};
use crate::multi_rail::frame::SEGMENT_MAX;
use crate::secret::records::RECORD_MAX;
use crate::settings::{LocalSettings, RailSettings, StreamSettings};
use crate::wire::{BASE_LEN, MAX_ATOMIC};
use core::ffi::CStr;
use ofi_provider::info::TransferPath;
use ofi_provider::param;
use ofi_provider::provider::Provider;
use ofi_provider::shm_channel::{CHUNK, INLINE};

/// Carrier of a provider's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Sockets, one system call for each send, and shared memory between processes of one host.
    Sockets,
    /// Sockets through an io_uring; no shared memory.
    IoUring,
    /// Shared memory alone.
    Memory,
}

/// Settings and limits of a provider, as the source of its paths.
#[derive(Debug)]
pub struct StreamPaths<'a> {
    /// Provider naming the variables.
    pub prov: &'static Provider,
    /// Settings of the engine.
    pub settings: &'a StreamSettings,
    /// Carrier of connections.
    pub carrier: Carrier,
    /// Maximum size of injected messages in bytes.
    pub max_inject: usize,
    /// Parameter of `max_inject`, if it has one.
    pub inject_param: Option<&'static CStr>,
}

/// Text of a size without a limit.
fn size_text(size: usize) -> String {
    if size == usize::MAX { "unlimited".into() } else { size.to_string() }
}

/// Returns the largest size below a limit; no limit stays none.
fn below(limit: usize) -> usize {
    if limit == usize::MAX { usize::MAX } else { limit.saturating_sub(1) }
}

fn flag(on: bool) -> u8 {
    u8::from(on)
}

impl StreamPaths<'_> {
    /// Returns the rows.
    pub fn rows(&self) -> Vec<TransferPath> {
        let mut rows = vec![self.inject()];
        if self.carrier != Carrier::Memory {
            rows.extend(self.over_sockets());
            rows.extend(self.over_rails(&self.settings.rails));
            rows.extend(self.encrypted());
        }
        rows.extend(self.over_memory(&self.settings.local));
        rows.push(self.rendezvous());
        rows.extend(self.others());
        rows
    }

    fn variable(&self, name: &CStr) -> String {
        param::variable(self.prov, name)
    }

    fn inject(&self) -> TransferPath {
        let row = TransferPath::new("inject", "copied", "the buffer is free when the call returns");
        let row = row.of(0, self.max_inject);
        match self.inject_param {
            Some(name) => row.limit(self.variable(name), self.max_inject),
            None => row,
        }
    }

    fn over_sockets(&self) -> Vec<TransferPath> {
        let batch = self.settings.batch;
        let zerocopy = self.settings.zerocopy_size;
        let batched = match (self.carrier, batch) {
            (Carrier::IoUring, _) => "passed to the kernel through the io_uring".to_owned(),
            (_, 0) => "one system call for each message".to_owned(),
            _ => format!(
                "one system call; messages sent back to back share one, up to {MAX_BATCHED} of them"
            ),
        };
        let copied = TransferPath::new("messages, writes", "eager, copied", batched)
            .of(0, COPY_MAX.min(below(zerocopy)))
            .limit(self.variable(c"staging_sbuf_size"), batch);
        let gathered = "header and application's buffer in one system call; the kernel copies";
        let gathered = TransferPath::new("messages, writes", "eager, gathered", gathered)
            .of(COPY_MAX + 1, below(zerocopy));
        let zero = "MSG_ZEROCOPY: the kernel sends from the application's buffer, if it can";
        let zero = TransferPath::new("messages, writes", "zero copy", zero)
            .limit(self.variable(c"zerocopy_size"), size_text(zerocopy));
        let is_off = zerocopy == usize::MAX;
        let zero = if is_off { zero.of_none() } else { zero.of(zerocopy, usize::MAX) };
        vec![copied, gathered, zero]
    }

    fn over_rails(&self, rails: &RailSettings) -> Vec<TransferPath> {
        let (count, segment) = (rails.count(), rails.segment.min(SEGMENT_MAX));
        let several = |text| TransferPath::new("messages, writes", "several sockets", text);
        let several = if count > 1 {
            let text = format!(
                "{count} sockets from {} bytes of traffic in {} ms on, if the peer permits several; frames \
                 of {segment} bytes in turn, smaller sends on the first socket",
                rails.threshold,
                rails.window / 1_000_000,
            );
            several(text).of(segment + 1, usize::MAX)
        } else {
            several("a connection has one socket".to_owned()).of_none()
        };
        let several = several
            .limit(self.variable(c"streams"), rails.streams)
            .limit(self.variable(c"streams_threshold"), rails.threshold);
        let mut rows = vec![several];
        if rails.resume > 0 {
            let path = |path, text: &str| TransferPath::new("messages, writes", path, text);
            let copied = path("stored", "copied for being sent again after the loss of a socket");
            let retained = path(
                "retained",
                "sent again from the application's buffer after the loss of a socket",
            );
            rows.push(
                copied
                    .of(0, rails.retain - 1)
                    .limit(self.variable(c"resume"), rails.resume)
                    .limit(self.variable(c"resume_memory"), rails.resume_memory),
            );
            rows.push(retained.of(rails.retain, usize::MAX));
        }
        rows
    }

    fn encrypted(&self) -> Option<TransferPath> {
        let text = format!("records of at most {RECORD_MAX} bytes, copied by their encryption");
        let row = TransferPath::new("all, between hosts", "encrypted", text);
        self.settings.secret.encrypts().then(|| row.limit(self.variable(c"encrypt"), 1))
    }

    fn over_memory(&self, local: &LocalSettings) -> Vec<TransferPath> {
        let transfers = "messages, writes, reads, same host";
        let (is_socket, is_ring) =
            (self.carrier == Carrier::Sockets, self.carrier == Carrier::IoUring);
        let enabled = self.variable(c"local");
        if self.carrier != Carrier::Memory && (is_ring || !local.enabled) {
            let text = "peers of this host are connected by sockets as well";
            let row = TransferPath::new(transfers, "shared memory", text).of_none();
            let row = row.limit(enabled, flag(local.enabled));
            let io_uring = || self.variable(c"io_uring");
            return vec![if is_ring { row.limit(io_uring(), 1) } else { row }];
        }
        let mut rows = Vec::new();
        if is_socket {
            let (bytes, calls) = local.talk;
            let text = format!(
                "processes of one user and host move from their socket to shared memory after {bytes} \
                 bytes or {calls} calls"
            );
            rows.push(
                TransferPath::new("all, same host", "shared-memory upgrade", text)
                    .limit(enabled, flag(local.enabled)),
            );
        }
        // A tag needs eight bytes more, and segments of a peer's memory 24 each.
        let inline = INLINE - BASE_LEN;
        let exposed_from = if local.reads { local.min } else { usize::MAX };
        let ring = |row: TransferPath| row.limit(self.variable(c"local_ring"), local.ring);
        let text = format!("in a cell of the ring, with a header of {BASE_LEN} bytes (tagged: 24)");
        rows.push(TransferPath::new(transfers, "shared memory, inline", text).of(0, inline));
        let text = "copied to the ring and from there, each once";
        let one_copy = CHUNK - BASE_LEN;
        let most = one_copy.min(below(exposed_from));
        rows.push(ring(
            TransferPath::new(transfers, "shared memory, copied", text).of(inline + 1, most),
        ));
        let text = format!(
            "copied by both processes at the same time, in chunks of {CHUNK} bytes of the ring"
        );
        let row = TransferPath::new(transfers, "shared memory, cooperative copy", text);
        rows.push(ring(row.of(one_copy + 1, below(exposed_from))));
        let text = "the receiver reads the sender's buffer (process_vm_readv); without permission the \
                    ring is used";
        let row = TransferPath::new(transfers, "shared memory, exposed buffer", text);
        let row = if local.reads { row.of(local.min, usize::MAX) } else { row.of_none() };
        rows.push(
            row.limit(self.variable(c"local_min"), local.min)
                .limit(self.variable(c"local_cma"), flag(local.reads)),
        );
        rows
    }

    fn rendezvous(&self) -> TransferPath {
        let max = self.settings.max_saved_size;
        let text =
            "tagged messages of FI_EP_RDM wait at their sender for a receive, unless injected";
        let row = TransferPath::new("tagged", "rendezvous", text);
        let row = if max == usize::MAX { row.of_none() } else { row.of(max + 1, usize::MAX) };
        row.limit(self.variable(c"max_saved_size"), size_text(max))
    }

    fn others(&self) -> Vec<TransferPath> {
        let text = "a message without a receive is stored at its receiver, within this memory";
        let unexpected = TransferPath::new("unexpected messages", "buffered", text)
            .limit(self.variable(c"max_unexpected"), self.settings.max_unexpected);
        let text = "operands in one message; the target computes";
        let atomics = TransferPath::new("atomics", "eager, copied", text).of(0, MAX_ATOMIC);
        let text = "with FI_HMEM, memory of devices is copied through host memory";
        let devices = TransferPath::new("device memory", "bounce buffers", text)
            .limit(self.variable(c"hmem_bounce"), self.settings.hmem_bounce);
        vec![unexpected, atomics, devices]
    }
}
