//! Operations in progress and their packets.
use super::budget::Held;
use crate::wire::{
    BASE_LEN, DATA, DATA_HEAD, DATA_READ, DELIVER, DELIVERED, DataHead, MAX_HEAD, NO_OP,
    REJECT_REASON, RxdBase,
};
use ofi_provider::abi::{FI_COMPLETION, FI_FENCE, FI_INJECT, FI_REMOTE_READ};
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::{RecvBuf, SendBuf};
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::MrTable;
use ofi_provider::reserved::INTERNAL_OP;

/// Location of the data of an operation.
#[derive(Debug)]
pub(super) enum TxData {
    None,
    /// In the application's buffer, borrowed until the operation is complete.
    Exposed(SendBuf),
    /// In a copy.
    Own(Box<[u8]>),
    /// In a region read by the peer.
    Region(RemoteSegments),
}

/// Incomplete operation: one of the application, or a response to a peer.
#[derive(Debug)]
pub(super) struct RxdTx {
    pub(super) conn: u32,
    pub(super) context: Context,
    /// The flags of the completion entry.
    pub(super) flags: u64,
    pub(super) report: bool,
    /// The application has its buffer back, and need not wait for the end.
    pub(super) injected: bool,
    /// The operation starts when all before it to the same peer are complete (FI_FENCE).
    pub(super) fence: bool,
    /// The type and flags of the first packet.
    pub(super) kind: u8,
    pub(super) wire_flags: u16,
    pub(super) head: [u8; MAX_HEAD],
    pub(super) head_len: usize,
    pub(super) data: TxData,
    /// Bytes of the data, and those in the first packet.
    pub(super) total: usize,
    pub(super) first: usize,
    /// Number of packets, number of packets sent, and the number of the first.
    pub(super) packets: u64,
    pub(super) sent: u64,
    pub(super) start: u64,
    /// Number of the operation at its initiator, named by a response.
    pub(super) tx_id: u32,
    /// First packet of a response without available data at its first transmission.
    pub(super) refused_at: u64,
    /// Buffer for the peer's response, and the number of bytes received.
    pub(super) answer: Option<RecvBuf>,
    pub(super) got: usize,
    /// A peer with this library reports the match of the message.
    pub(super) deliver: bool,
    /// The peer has all of it.
    pub(super) acked: bool,
    /// It is reported, and only stays until it is acknowledged.
    pub(super) over: bool,
    /// The peer refused it.
    pub(super) error: Option<Error>,
}

impl RxdTx {
    pub(super) fn new(
        conn: u32,
        context: Context,
        flags: u64,
        call: u64,
        kind: u8,
        data: TxData,
    ) -> Self {
        let report = call & FI_COMPLETION != 0;
        Self {
            conn,
            context,
            flags: flags | (call & INTERNAL_OP),
            report,
            injected: call & FI_INJECT != 0,
            fence: call & FI_FENCE != 0,
            kind,
            wire_flags: 0,
            head: [0; MAX_HEAD],
            head_len: 0,
            data,
            total: 0,
            first: 0,
            packets: 1,
            sent: 0,
            start: 0,
            tx_id: 0,
            refused_at: u64::MAX,
            answer: None,
            got: 0,
            deliver: false,
            acked: false,
            over: false,
            error: None,
        }
    }

    /// An answer to a peer's request.
    pub(super) fn of_peer(conn: u32, tx_id: u32, data: TxData, total: usize, space: usize) -> Self {
        let op = Self::new(conn, Context::NULL, 0, 0, DATA_READ, data);
        let packets = total.div_ceil(space).max(1) as u64;
        Self { tx_id, total, packets, over: true, ..op }
    }

    /// Creates a refusal of a peer's request with this number of its first packet.
    pub(super) fn reject(conn: u32, tx_id: u32, seq: u64, error: Error) -> Self {
        let op = Self::new(conn, Context::NULL, 0, 0, REJECT_REASON, TxData::None);
        let (code, seq) = (error.code() as usize, seq as usize);
        Self { tx_id, over: true, first: code, total: seq, ..op }
    }

    /// Creates a match notice for a peer's message.
    pub(super) fn delivered(conn: u32, tx_id: u32) -> Self {
        let op = Self::new(conn, Context::NULL, 0, 0, DELIVERED, TxData::None);
        Self { tx_id, over: true, ..op }
    }

    /// Returns true if it belongs to the application.
    pub(super) fn is_own(&self) -> bool {
        !matches!(self.kind, DATA_READ | REJECT_REASON | DELIVERED)
    }

    /// Returns true if the application relies on its delivery, without waiting for it.
    pub(super) fn is_injected(&self) -> bool {
        self.is_own() && self.injected && !self.over
    }

    /// Returns the resources held for a response.
    pub(super) fn held(&self) -> Held {
        match &self.data {
            _ if self.kind == DELIVERED => Held::NOTICE,
            TxData::Own(bytes) => Held::answer(bytes.len()),
            _ => Held::answer(0),
        }
    }

    /// Copies data to a packet; fails with -FI_EINVAL if their region is closed.
    pub(super) fn copy(&self, regions: &MrTable, from: usize, to: &mut [u8]) -> Result {
        match &self.data {
            // For a finished operation; the buffer has other peers' packets.
            TxData::None => to.fill(0),
            TxData::Exposed(buf) => buf.copy_to(from, to),
            TxData::Own(bytes) => to.copy_from_slice(&bytes[from..from + to.len()]),
            TxData::Region(segments) => {
                return regions.open().read(segments, FI_REMOTE_READ, from, to);
            }
        }
        Ok(())
    }

    /// Makes one of the operation's packets, for a peer of this library or not; returns its length.
    /// `again`: it was sent before.
    pub(super) fn build(
        &mut self,
        regions: &MrTable,
        (packet, again): (u64, bool),
        base: RxdBase,
        ours: bool,
        space: &mut [u8],
    ) -> usize {
        let data_space = space.len() - DATA_HEAD;
        let part = |from: usize| self.total.saturating_sub(from).min(data_space);
        let tx_id = self.tx_id;
        match self.kind {
            DATA_READ => {
                let from = packet as usize * data_space;
                let len = part(from);
                base.write(space);
                DataHead { tx_id, rx_id: 0, segment: packet }.write(space);
                match self.copy(regions, from, &mut space[DATA_HEAD..DATA_HEAD + len]) {
                    Ok(()) => DATA_HEAD + len,
                    // The application revoked the data promised to the peer. The peer is notified
                    // once, and also instead of each possibly lost packet, because the peer does
                    // not check its received data.
                    Err(error) if ours && (again || packet <= self.refused_at) => {
                        if !again {
                            self.refused_at = packet;
                        }
                        RxdBase { kind: REJECT_REASON, ..base }.write(space);
                        DataHead { tx_id, rx_id: error.code() as u32, segment: u64::MAX }
                            .write(space);
                        DATA_HEAD
                    }
                    Err(_) => {
                        RxdBase { kind: NO_OP, ..base }.write(space);
                        DATA_HEAD
                    }
                }
            }
            REJECT_REASON | DELIVERED => {
                base.write(space);
                let (rx_id, segment) = (self.first as u32, self.total as u64);
                DataHead { tx_id, rx_id, segment }.write(space);
                DATA_HEAD
            }
            _ => {
                let (data, from, len) = match packet {
                    0 => {
                        let flags = if ours { self.wire_flags } else { self.wire_flags & !DELIVER };
                        RxdBase { flags, ..base }.write(space);
                        let data = BASE_LEN + self.head_len;
                        space[BASE_LEN..data].copy_from_slice(&self.head[..self.head_len]);
                        (data, 0, self.first)
                    }
                    _ => {
                        let from = self.first + (packet as usize - 1) * data_space;
                        RxdBase { kind: DATA, ..base }.write(space);
                        DataHead { tx_id, rx_id: 0, segment: packet - 1 }.write(space);
                        (DATA_HEAD, from, part(from))
                    }
                };
                let copied = self.copy(regions, from, &mut space[data..data + len]);
                debug_assert!(copied.is_ok(), "only answers are taken from regions");
                data + len
            }
        }
    }
}
