//! Atomic operations, supported only between peers of this library.
//!
//! A request carries the operands. The peer executes the operation when all operands have arrived,
//! under its engine's lock, and returns the result, with the former values if requested. Responses
//! arrive in the order of the requests, interleaved with the responses to reads. Injected
//! operations also get a response: a failure is reported.
use super::arrival::{Arrival, may_allocate};
use super::incoming::{AtomicRequest, HeaderOutcome, MessageTarget, RxRequest};
use super::rx_path::RxPath;
use super::state::StreamState;
use super::transfer::{SendBody, TxCompletion, TxRequest, level};
use crate::transport::{ByteLink, ShmTransport, peer_of};
use crate::wire::{AtomicWord, DELIVERY_COMPLETE, MAX_ATOMIC, StreamHeader, StreamOp};
use ofi_provider::abi::{
    FI_ATOMIC, FI_COMPLETION, FI_INJECT, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_WRITE,
};
use ofi_provider::api::AtomicOp;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::buf::zeroed;
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::reserved::INTERNAL_OP;

/// Maximum bytes of fetched values in responses queued for a peer. The connection is closed beyond
/// it. A peer reading its responses never reaches this limit.
const MAX_FETCHED: usize = 64 << 20;

impl<N: ShmTransport> StreamState<N> {
    /// fi_atomic, fi_fetch_atomic and fi_compare_atomic, in all their forms.
    pub(crate) fn atomic(&mut self, ep_id: u32, mut op: AtomicOp) -> Result {
        op.flags |= self.rx.tx.eps[ep_id].identity.attr.access_flags;
        let len = op.source.len() + op.compare.len();
        self.admit(ep_id, op.flags, len)?;
        let route = self.route(ep_id, op.dest)?;
        let kind = op.operation.kind();
        let report = op.flags & FI_COMPLETION != 0;
        let (flags, _) = level(op.flags);
        let inject = kind == AtomicKind::Base && op.flags & FI_INJECT != 0 && !report;
        let word =
            AtomicWord { kind, datatype: op.operation.datatype(), op: op.operation.op() }.to_word();
        let header = StreamHeader {
            flags: flags | DELIVERY_COMPLETE,
            segments: op.remote.as_slice().len() as u8,
            cq_data: op.data,
            tag: word,
            len: len as u64,
            ..StreamHeader::of(StreamOp::Atomic)
        };
        let finish = TxCompletion {
            context: op.context,
            flags: FI_ATOMIC
                | if kind == AtomicKind::Base { FI_WRITE } else { FI_READ }
                | (op.flags & INTERNAL_OP),
            report,
            acked: false,
            weak: false,
            len: op.remote.total()?,
            internal: false,
            inject,
            exposed: 0,
            refused: None,
        };
        if self.rx.tx.cannot_do(ep_id, route, &header, &finish) {
            return Ok(());
        }
        let mut outgoing = TxRequest::new(header, SendBody::Answer(op.result), finish);
        // Operands are small and their buffers many: they go as one copy.
        let mut bytes = self.rx.tx.encode_segments(route, &op.remote).into_vec();
        let segments = bytes.len();
        bytes.resize(segments + len, 0);
        let (source, compare) = bytes[segments..].split_at_mut(op.source.len());
        op.source.copy_to(0, source);
        op.compare.copy_to(0, compare);
        outgoing.segments = bytes.into_boxed_slice();
        let sent = self.rx.tx.enqueue(ep_id, route, outgoing, op.flags);
        self.rx.conclude(sent);
        Ok(())
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Begins a peer's atomic operation, and carries it out if all operands are here. An error
    /// ends the connection.
    pub(super) fn begin_atomic(
        &mut self,
        id: u32,
        header: &StreamHeader,
        bytes: &[u8],
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let conn = &mut self.tx.io.conns[id];
        if !conn.knows.atomics {
            return Err(Error::PROTO);
        }
        let envelope = Arrival::new(header, id, conn, &self.tx.eps[conn.ep])?;
        let segments = header.read_segments(bytes, conn.order).map_err(|_| Error::PROTO)?;
        let word = AtomicWord::from_word(header.tag).map_err(|_| Error::PROTO)?;
        let mut operation = Operation::new(word.kind, word.datatype.into(), word.op.into());
        let granted = self.tx.eps[conn.ep].identity.target.atomics;
        if let Ok(operation) = operation {
            let total = segments.total().map_err(|_| Error::PROTO)?;
            let has = [operation.has_source(), operation.kind() == AtomicKind::Compare];
            let operands = has.iter().filter(|has| **has).count();
            if total > MAX_ATOMIC || operands * total != envelope.len {
                return Err(Error::PROTO);
            }
        }
        // The answer says that the operation is not allowed: unlike a read or write, it need not
        // end the connection.
        if operation.is_ok_and(|operation| operation.rights() & !granted != 0) {
            operation = Err(Error::ACCES);
        }
        if envelope.cq_data.is_some() && !self.tx.eps[conn.ep].matcher.completions.has_space() {
            return Ok(HeaderOutcome::CqBlocked);
        }
        if conn.fetched > MAX_FETCHED || self.tx.is_overrun(id) {
            return Err(Error::NOBUFS);
        }
        let mut request = AtomicRequest { operation, segments, operands: Box::default() };
        let here = envelope.len.min(behind.len());
        if here == envelope.len {
            self.carry_out(id, &envelope, &request, &behind[..here]);
            return Ok(self.tx.io.started(id, here));
        }
        may_allocate()?;
        request.operands = zeroed(envelope.len)?;
        request.operands[..here].copy_from_slice(&behind[..here]);
        let target = MessageTarget::Atomic(Box::new(request));
        self.tx.io.conns[id].incoming = Some(RxRequest { envelope, target, done: here });
        Ok(HeaderOutcome::Taken(here))
    }

    /// Carries out a peer's atomic operation, reports it, and answers.
    pub(super) fn carry_out(
        &mut self,
        id: u32,
        envelope: &Arrival,
        request: &AtomicRequest,
        operands: &[u8],
    ) {
        let segments = &request.segments;
        let mut fetched = Vec::new();
        let result = request.operation.and_then(|operation| {
            let total = segments.total()?;
            fetched.resize(if operation.fetches() { total } else { 0 }, 0);
            let (source, compare) =
                operands.split_at(if operation.has_source() { total } else { 0 });
            let opened = self.tx.regions.open();
            opened.atomic(operation, segments, source, compare, &mut fetched)?;
            if envelope.commit {
                opened.commit(segments, operation.rights())?;
            }
            Ok(operation)
        });
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return };
        let ep = &mut self.tx.eps[conn.ep];
        let mut finish = TxCompletion::INTERNAL;
        let mut header = StreamHeader::of(StreamOp::AtomicRsp);
        if result.is_ok_and(|operation| operation.rights() & FI_REMOTE_WRITE != 0) {
            self.tx.regions.written(segments);
        }
        match result {
            Ok(operation) if operation.fetches() => {
                // A fetching operation is counted when the answer has left, like a read.
                (finish.flags, finish.len) = (FI_REMOTE_READ, fetched.len());
                ep.accessed(envelope, FI_ATOMIC | FI_REMOTE_READ);
            }
            Ok(_) => {
                ep.matcher.completions.peer_accessed(true, envelope.len);
                ep.accessed(envelope, FI_ATOMIC | FI_REMOTE_WRITE);
            }
            Err(error) => {
                fetched.clear();
                header.op_data = u8::try_from(error.code()).unwrap_or(libc::EIO as u8);
                let peer = peer_text(peer_of(&conn.link));
                ofi_provider::log!(
                    N::Link::provider(),
                    INFO,
                    EP_DATA,
                    "refusing an atomic operation ({error}) of {peer}: {segments:?}"
                );
            }
        }
        if !envelope.ack.is_awaited() {
            return;
        }
        header.len = fetched.len() as u64;
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return };
        conn.fetched += fetched.len();
        let body =
            if fetched.is_empty() { SendBody::Empty } else { SendBody::Copied(fetched.into()) };
        let sent = self.tx.answer(id, TxRequest::new(header, body, finish));
        self.conclude(sent);
    }
}
