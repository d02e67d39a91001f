//! Sending: operations become packets, and are complete when the peer has them.
//!
//! Data are read from the application's buffer for each packet, also for a retransmission. Nothing
//! is copied except for buffers returned to the application at once.
use super::conn::HandshakeState;
use super::ep::RxdEngineEp;
use super::limits::clock;
use super::op::{RxdTx, TxData};
use crate::wire::{
    ATOMIC, ATOMIC_COMPARE, ATOMIC_FETCH, ATOMIC_HEAD, DELIVER, MSG, READ_REQ, RxdOperation,
    TAGGED, WITH_TAG, WRITE,
};
use ofi_provider::abi::{
    FI_ATOMIC, FI_INJECT, FI_MATCH_COMPLETE, FI_MSG, FI_READ, FI_REMOTE_CQ_DATA, FI_RMA, FI_SEND,
    FI_TAGGED, FI_WRITE,
};
use ofi_provider::api::{AtomicOp, ReadOp, RemoteSegments, SendOp, WriteOp};
use ofi_provider::atomic::AtomicKind;
use ofi_provider::buf::SendBuf;
use ofi_provider::error::{Error, Result};

impl RxdEngineEp {
    /// fi_send and fi_tsend, in all their forms.
    pub(crate) fn send(&mut self, op: SendOp, tagged: bool) -> Result {
        self.may_start(op.flags)?;
        let len = op.buf.len();
        let data = data_of(op.buf, op.flags, self.local.identity().attr.inject_size)?;
        let conn = self.conn_to(op.dest)?;
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let kind = if tagged { TAGGED } else { MSG };
        let tx = RxdTx::new(conn, op.context, flags, op.flags, kind, data);
        // A message that the peer has acknowledged is delivered, whether it has met its receive or waits
        // for it (fi_cq(3)).
        let deliver = op.flags & FI_MATCH_COMPLETE != 0;
        let tx = RxdTx { deliver, ..tx };
        let wire_flags = if tagged { WITH_TAG } else { 0 };
        let head = RxdOperation {
            kind,
            flags: wire_flags | if deliver { DELIVER } else { 0 },
            tag: op.tag,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            total: len as u64,
            packets: 0,
            tx_id: 0,
            segments: RemoteSegments::EMPTY,
            atomic: (0, 0),
        };
        self.start(tx, head, len, op.flags)
    }

    /// fi_write, in all its forms.
    pub(crate) fn write(&mut self, op: WriteOp) -> Result {
        self.may_start(op.flags)?;
        let len = op.buf.len();
        let data = data_of(op.buf, op.flags, self.local.identity().attr.inject_size)?;
        let conn = self.conn_to(op.dest)?;
        let tx = RxdTx::new(conn, op.context, FI_RMA | FI_WRITE, op.flags, WRITE, data);
        let head = RxdOperation {
            kind: WRITE,
            flags: 0,
            tag: 0,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            total: len as u64,
            packets: 0,
            tx_id: 0,
            segments: op.remote,
            atomic: (0, 0),
        };
        self.start(tx, head, len, op.flags)
    }

    /// fi_read, in all its forms.
    pub(crate) fn read(&mut self, op: ReadOp) -> Result {
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.src)?;
        let flags = op.flags & !FI_INJECT;
        let len = op.buf.len();
        let tx = RxdTx::new(conn, op.context, FI_RMA | FI_READ, flags, READ_REQ, TxData::None);
        let tx = RxdTx { answer: Some(op.buf), ..tx };
        let head = RxdOperation {
            kind: READ_REQ,
            flags: 0,
            tag: 0,
            cq_data: None,
            total: len as u64,
            packets: 0,
            tx_id: 0,
            segments: op.remote,
            atomic: (0, 0),
        };
        self.start(tx, head, 0, flags)
    }

    /// fi_atomic, fi_fetch_atomic and fi_compare_atomic, in all their forms.
    pub(crate) fn atomic(&mut self, op: AtomicOp) -> Result {
        if op.flags & FI_INJECT != 0 && op.source.len() > self.local.identity().attr.inject_size {
            return Err(Error::INVAL);
        }
        let (kind, access) = match op.operation.kind() {
            AtomicKind::Base => (ATOMIC, FI_WRITE),
            AtomicKind::Fetch => (ATOMIC_FETCH, FI_READ),
            AtomicKind::Compare => (ATOMIC_COMPARE, FI_READ),
        };
        let mut operands = op.source.to_boxed()?.into_vec();
        operands.extend_from_slice(&op.compare.to_boxed()?);
        if operands.len().max(op.result.len()) > self.limits.packet - ATOMIC_HEAD {
            return Err(Error::MSGSIZE);
        }
        self.may_start(op.flags)?;
        let conn = self.conn_to(op.dest)?;
        // The encoded length is the length of the elements, regardless of the number of operands.
        let (total, len) = (op.remote.total()? as u64, operands.len());
        let data = TxData::Own(operands.into());
        let tx = RxdTx::new(conn, op.context, FI_ATOMIC | access, op.flags, kind, data);
        let tx = RxdTx { answer: (kind != ATOMIC).then_some(op.result), ..tx };
        let head = RxdOperation {
            kind,
            flags: 0,
            tag: 0,
            cq_data: (op.flags & FI_REMOTE_CQ_DATA != 0).then_some(op.data),
            total,
            packets: 0,
            tx_id: 0,
            segments: op.remote,
            atomic: (op.operation.datatype().into(), op.operation.op().into()),
        };
        self.start(tx, head, len, op.flags)
    }

    /// Starts an operation of the application's with so many bytes of data: makes its headers, and
    /// sends as much of it as may be sent now.
    pub(super) fn start(
        &mut self,
        tx: RxdTx,
        head: RxdOperation,
        len: usize,
        flags: u64,
    ) -> Result {
        let conn = tx.conn;
        let is_ours = self.conns.get(conn).is_some_and(|conn| conn.is_ours());
        let id = self.tx.insert(tx, head, len, flags, (self.limits.packet, is_ours))?;
        self.now = clock();
        let of = &mut self.conns[conn];
        of.ops += 1;
        of.waiting.push_back(id);
        match of.stage {
            HandshakeState::New => self.request(conn),
            HandshakeState::Waiting | HandshakeState::Asking => {}
            HandshakeState::Known => {
                if let Some(port) = &mut self.port {
                    self.tx.pump(&mut self.conns, &self.limits, &mut **port, conn, self.now);
                }
            }
        }
        Ok(())
    }
}

/// Returns the data to be sent: the application's buffer, or a copy if the buffer is returned
/// at once.
fn data_of(buf: SendBuf, flags: u64, inject_size: usize) -> Result<TxData> {
    if flags & FI_INJECT == 0 {
        return Ok(TxData::Exposed(buf));
    }
    if buf.len() > inject_size {
        return Err(Error::MSGSIZE);
    }
    buf.to_boxed().map(TxData::Own)
}
