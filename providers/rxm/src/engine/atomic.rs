//! The target's side of atomic operations, which our software carries out.
use super::ep::Ep;
use crate::wire::{
    ANSWER_LEN, AtomicHeader, HEADER_LEN, Header, Kind, Malformed, OP_ATOMIC, OP_ATOMIC_COMPARE,
    OP_ATOMIC_FETCH, Parsed, read_iocs, write_answer,
};
use ofi_provider::abi::{FI_REMOTE_READ, FI_REMOTE_WRITE, fi_op};
use ofi_provider::atomic;
use ofi_provider::error::{Error, Result};
use ofi_provider::glue::{RemoteSegment, RemoteSegments};

/// One operation, as its packet has it.
struct Operation<'a> {
    what: AtomicHeader,
    kind: atomic::Kind,
    /// Bytes of one element.
    size: usize,
    places: RemoteSegments,
    operand: &'a [u8],
    compare: &'a [u8],
}

impl Ep {
    /// Carries out a peer's atomic operation on our memory, and answers.
    pub(super) fn atomic_came(&mut self, conn: u32, header: &Header, payload: &[u8]) -> Parsed {
        let what = AtomicHeader::from_tag(header.tag);
        let kind = match header.op {
            OP_ATOMIC => atomic::Kind::Write,
            OP_ATOMIC_FETCH => atomic::Kind::Fetch,
            OP_ATOMIC_COMPARE => atomic::Kind::Compare,
            _ => return Err(Malformed("an atomic operation of no group")),
        };
        if header.size != payload.len() as u64 {
            return Err(Malformed("an atomic operation that is not as long as it says"));
        }
        let (places, elements) = read_iocs(payload, what.places)?;
        let compares = kind == atomic::Kind::Compare;
        let half = if compares { elements.len() / 2 } else { elements.len() };
        let (operand, compare) = elements.split_at(half);
        let size = atomic::size_of_type(u32::from(what.datatype)).unwrap_or(0);
        let operation = Operation { what, kind, size, places, operand, compare };

        // Without memory for an answer the peer waits until the connection ends.
        let Ok(mut buf) = self.buffer() else { return Ok(()) };
        let room = &mut buf[HEADER_LEN + ANSWER_LEN..];
        let (status, len) = match self.carry_out(&operation, room) {
            Ok(len) => (0, len),
            Err(error) => (error.code(), 0),
        };
        if status == 0 {
            self.count_remote(kind == atomic::Kind::Write);
        }
        write_answer(status, len as u32, &mut buf[HEADER_LEN..]);
        let answer = Header {
            msg_id: header.msg_id,
            op: header.op,
            size: (ANSWER_LEN + len) as u64,
            tag: AtomicHeader { op: 0, places: 0, ..what }.to_tag(),
            ..Header::of(Kind::AtomicResponse, 0)
        };
        self.send_made(conn, answer, buf, ANSWER_LEN + len);
        Ok(())
    }

    /// What was there goes to `room`; its length.
    fn carry_out(&self, operation: &Operation<'_>, room: &mut [u8]) -> Result<usize> {
        let Operation { what, kind, size, places, operand, compare } = operation;
        let (datatype, op) = (u32::from(what.datatype), u32::from(what.op));
        atomic::check(*kind, datatype, op)?;
        let reads = op == fi_op::FI_ATOMIC_READ as u32;
        let right = match kind {
            _ if reads => FI_REMOTE_READ,
            atomic::Kind::Write => FI_REMOTE_WRITE,
            _ => FI_REMOTE_READ | FI_REMOTE_WRITE,
        };
        let fetches = *kind != atomic::Kind::Write;
        // In bytes from here on; all of it is checked before anything is changed.
        let mut bytes = RemoteSegments::EMPTY;
        for place in places.as_slice() {
            let len = place.len.checked_mul(*size as u64).ok_or(Error::INVAL)?;
            bytes.push(RemoteSegment { len, ..*place })?;
        }
        let total = bytes.total()?;
        let short = |array: &[u8]| array.len() != total;
        if (!reads && short(operand)) || (*kind == atomic::Kind::Compare && short(compare)) {
            return Err(Error::INVAL);
        }
        if fetches && total > room.len() {
            return Err(Error::MSGSIZE);
        }
        let regions = self.common.regions.open();
        regions.check(&bytes, right)?;
        let mut done = 0;
        for place in bytes.as_slice() {
            let end = done + place.len as usize;
            let part = |array: &&[u8]| array.get(done..end).map(<[u8]>::to_vec).unwrap_or_default();
            let (new, old) = (part(operand), part(compare));
            regions.update(place, right, |target| {
                if fetches {
                    room[done..end].copy_from_slice(target);
                }
                atomic::apply(datatype, op, target, &new, &old)
            })?;
            done = end;
        }
        Ok(if fetches { total } else { 0 })
    }
}
