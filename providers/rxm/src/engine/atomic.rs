//! Target side of atomic operations, executed by this library.
use super::ep::RxmEngineEp;
use crate::config::max_atomic;
use crate::wire::{
    ANSWER_LEN, AtomicHeader, HEADER_LEN, Malformed, OP_ATOMIC, OP_ATOMIC_COMPARE, OP_ATOMIC_FETCH,
    PacketKind, Parsed, RxmHeader, read_iocs, write_answer,
};
use ofi_provider::abi::FI_REMOTE_WRITE;
use ofi_provider::api::{RemoteSegment, RemoteSegments};
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::error::{Error, Result};
use ofi_provider::mr::MrTable;

/// A peer's atomic operation, as its packet has it.
struct RxmAtomicRequest<'a> {
    what: AtomicHeader,
    kind: AtomicKind,
    segments: RemoteSegments,
    operand: &'a [u8],
    compare: &'a [u8],
}

impl RxmEngineEp {
    /// Carries out a peer's atomic operation on our memory, and answers.
    pub(super) fn atomic_came(&mut self, conn: u32, header: &RxmHeader, payload: &[u8]) -> Parsed {
        let what = AtomicHeader::from_tag(header.tag);
        let kind = match header.op {
            OP_ATOMIC => AtomicKind::Base,
            OP_ATOMIC_FETCH => AtomicKind::Fetch,
            OP_ATOMIC_COMPARE => AtomicKind::Compare,
            _ => return Err(Malformed("an atomic operation of no group")),
        };
        if header.size != payload.len() as u64 {
            return Err(Malformed("an atomic operation that is not as long as it says"));
        }
        let (segments, elements) = read_iocs(payload, what.segments)?;
        let compares = kind == AtomicKind::Compare;
        let half = if compares { elements.len() / 2 } else { elements.len() };
        let (operand, compare) = elements.split_at(half);
        let request = RxmAtomicRequest { what, kind, segments, operand, compare };

        // Without memory for an answer there is none, and the peer waits until the connection ends.
        let Ok(mut buf) = self.conns.buffer() else { return Ok(()) };
        let reply = &mut buf[HEADER_LEN + ANSWER_LEN..];
        // Elements in the other byte order are not understood.
        let result = match self.conns[conn].swapped {
            true => Err(Error::OPNOTSUPP),
            false => carry_out(&self.common.regions, &request, reply),
        };
        let (status, len) = match result {
            Ok(len) => (0, len),
            Err(error) => (error.code(), 0),
        };
        if status == 0 {
            self.matcher.completions.peer_accessed(kind == AtomicKind::Base, 0);
        }
        write_answer(status, len as u32, &mut buf[HEADER_LEN..]);
        let answer = RxmHeader {
            msg_id: header.msg_id,
            op: header.op,
            size: (ANSWER_LEN + len) as u64,
            tag: AtomicHeader { op: 0, segments: 0, ..what }.to_tag(),
            ..RxmHeader::of(PacketKind::AtomicResponse, 0)
        };
        self.conns.send_made(conn, answer, buf, ANSWER_LEN + len);
        Ok(())
    }
}

/// Carries out the operation; the former values go to `reply`. Returns their length.
fn carry_out(regions: &MrTable, request: &RxmAtomicRequest<'_>, reply: &mut [u8]) -> Result<usize> {
    let RxmAtomicRequest { what, kind, segments, operand, compare } = request;
    let operation = Operation::new(*kind, u32::from(what.datatype), u32::from(what.op))?;
    if max_atomic(operation) == 0 {
        return Err(Error::OPNOTSUPP);
    }
    // From here on lengths are in bytes.
    let mut bytes = RemoteSegments::EMPTY;
    for segment in segments.as_slice() {
        let len = segment.len.checked_mul(operation.size() as u64).ok_or(Error::INVAL)?;
        bytes.push(RemoteSegment { len, ..*segment })?;
    }
    let fetched = if operation.fetches() { bytes.total()? } else { 0 };
    let reply = reply.get_mut(..fetched).ok_or(Error::MSGSIZE)?;
    // An operation that only reads may carry elements, which are ignored.
    let operand = if operation.has_source() { *operand } else { &[] };
    regions.open().atomic(operation, &bytes, operand, compare, reply)?;
    if operation.rights() & FI_REMOTE_WRITE != 0 {
        regions.written(&bytes);
    }
    Ok(fetched)
}
