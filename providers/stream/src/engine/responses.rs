//! Responses to peers, acknowledgements in both directions, and transfers waiting for them.
use super::arrival::may_allocate;
use super::conn::StreamConn;
use super::device_path::DeviceRegions;
use super::io::EngineIo;
use super::rx_path::RxPath;
use super::transfer::{SendBody, TxCompletion, TxRequest};
use super::tx_path::{TxFailure, TxPath, TxResult};
use crate::transport::{ByteLink, ShmLink, ShmTransport};
use crate::wire::{
    AckRun, COMMIT_COMPLETE, DELIVERY_COMPLETE, MATCH_COMPLETE, StreamHeader, StreamOp,
};
use ofi_provider::abi::FI_REMOTE_READ;
use ofi_provider::api::RemoteSegments;
use ofi_provider::error::{Error, Result};

/// Maximum responses and acknowledgements queued for a peer, in addition to local transfers
/// (`tx_size`).
const MAX_ANSWERS: usize = 1 << 16;

impl<N: ShmTransport> TxPath<N> {
    /// Returns true if a connection blocked on queue space may continue.
    pub(super) fn may_be_fed(&self, id: u32) -> bool {
        self.io.conns.get(id).is_some_and(|conn| self.eps[conn.ep].matcher.completions.has_space())
            && !self.has_many_pending(id)
    }

    /// Blocks the connection until there is space in a completion queue.
    pub(super) fn starve(&mut self, id: u32) {
        if let Some(cq) =
            self.io.conns.get(id).and_then(|conn| self.eps[conn.ep].matcher.completions.cq())
        {
            cq.wait_for_space();
        }
        self.io.blocked.block_on_cq(id);
    }

    pub(super) fn send_cts(&mut self, id: u32, number: u8) -> TxResult {
        let header = StreamHeader { op_data: number, ..StreamHeader::of(StreamOp::Cts) };
        self.send_internal(id, header)
    }

    /// Responds to a peer's read of local memory, after the check of its right. Few bytes are
    /// copied into the batch now; more are gathered from the region when the link accepts them.
    pub(super) fn answer_read(
        &mut self,
        id: u32,
        segments: RemoteSegments,
        len: usize,
    ) -> Result<TxResult> {
        let header = StreamHeader { len: len as u64, ..StreamHeader::of(StreamOp::ReadRsp) };
        // A read that names no place needed no key, and does not count as an access.
        let flags = if segments.as_slice().is_empty() { 0 } else { FI_REMOTE_READ };
        let finish = TxCompletion { flags, len, ..TxCompletion::INTERNAL };
        let Some(conn) = self.io.conns.get_mut(id).filter(|conn| conn.batches_responses(len))
        else {
            let body = SendBody::Region(segments, len);
            return Ok(self.answer(id, TxRequest::new(header, body, finish)));
        };
        let dst = conn.join_answer(header, len, finish);
        self.regions.open().read(&segments, FI_REMOTE_READ, 0, dst)?;
        Ok(self.answered(id))
    }

    /// Sends a header of the provider itself, such as an acknowledgement, in order with other
    /// answers. Ends the connection if too many wait for the peer.
    pub(super) fn send_internal(&mut self, id: u32, header: StreamHeader) -> TxResult {
        if let Some(conn) = self.io.conns.get_mut(id).filter(|conn| conn.batches_responses(0)) {
            conn.join_answer(header, 0, TxCompletion::INTERNAL);
            return self.answered(id);
        }
        if self.is_overrun(id) {
            return Err(TxFailure::Connection(id, Error::NOBUFS));
        }
        self.answer(id, TxRequest::new(header, SendBody::Empty, TxCompletion::INTERNAL))
    }

    /// Acknowledges a transfer: `number` counts the connection's transfers with acknowledgement.
    /// Acknowledgements during parsing are sent together at its end.
    pub(super) fn acknowledge(&mut self, id: u32, number: u64) -> TxResult {
        let Some(conn) = self.io.conns.get_mut(id) else { return Ok(()) };
        let header = if conn.knows.outcomes && self.hearing == id {
            conn.answers = true;
            match conn.acks.add(number) {
                Some(run) => StreamHeader::ack(run),
                None => return Ok(()),
            }
        } else if conn.knows.acks {
            StreamHeader::ack(AckRun::of(number))
        } else {
            StreamHeader::ack_oldest()
        };
        self.send_internal(id, header)
    }

    /// Refuses a peer's read, or a write to be acknowledged under `number`. The peer's other
    /// transfers continue. If the peer does not support refusals
    /// ([`PeerFeatures::outcomes`](crate::wire::PeerFeatures::outcomes)), nothing more is sent, so the peer sees
    /// the end of the connection. Its messages in flight are still received.
    pub(super) fn refuse(&mut self, id: u32, write: Option<u64>, error: Error) -> TxResult {
        let Some(conn) = self.io.conns.get(id) else { return Ok(()) };
        if conn.knows.outcomes {
            let code = u8::try_from(error.code()).unwrap_or(libc::EIO as u8);
            let reject_reason = match write {
                Some(number) => StreamHeader::refuse_write(number, code),
                None => StreamHeader::refuse_read(code),
            };
            return self.send_internal(id, reject_reason);
        }
        if conn.unknown_conn.is_some() {
            // An unknown peer has no messages to lose that the application waits for.
            return Err(TxFailure::Connection(id, error));
        }
        if !conn.sends_no_more {
            conn.link.end_sending();
            self.end_sending(id, error);
        }
        Ok(())
    }

    /// Queues a response awaited by a peer, and sends it now or with others.
    pub(super) fn answer(&mut self, id: u32, answer: TxRequest) -> TxResult {
        let Some(conn) = self.io.conns.get_mut(id).filter(|conn| !conn.sends_no_more) else {
            return Ok(());
        };
        self.backlog.add(&mut conn.backlog, answer.backlog());
        conn.start_exposing(answer.body.len());
        conn.push_answer(answer);
        self.answered(id)
    }

    /// Sends a newly queued response: now, or at the end of parsing if bytes of this connection are
    /// being parsed.
    fn answered(&mut self, id: u32) -> TxResult {
        let conn = &mut self.io.conns[id];
        let enough = conn.batch.is_full(N::Link::settings().batch) && conn.tx.is_empty();
        if self.hearing == id && !enough {
            conn.answers = true;
            return Ok(());
        }
        self.push_on(id)
    }

    /// Sends the responses to the requests just parsed.
    #[inline]
    pub(super) fn send_answers(&mut self, id: u32) -> TxResult {
        let Some(conn) = self.io.conns.get_mut(id) else { return Ok(()) };
        if !std::mem::take(&mut conn.answers) {
            return Ok(());
        }
        if let Some(run) = conn.acks.take() {
            self.send_internal(id, StreamHeader::ack(run))?;
        }
        if self.may_hold_answers(id) {
            self.batcher.hold(id);
            return Ok(());
        }
        self.flush_and_watch(id)
    }

    /// Returns true if responses may be sent in the next progress iteration, because local reads
    /// have completed in this one. The application is about to post others. Their requests would
    /// follow many bytes of responses otherwise, and the two directions of the connection would
    /// alternate.
    pub(super) fn may_hold_answers(&mut self, id: u32) -> bool {
        let iteration = self.io.poll.iterations();
        let both =
            |conn: &StreamConn<N>| conn.answered_in == iteration && conn.has_waiting_answers();
        self.io.conns.get(id).is_some_and(both) && self.batcher.arm(iteration)
    }

    /// Returns true if responses queued for a peer use too much memory. Its requests are then not
    /// read until it reads some responses.
    #[inline]
    pub(super) fn has_many_pending(&self, id: u32) -> bool {
        let much = |conn: &StreamConn<N>| {
            self.backlog.is_exceeded(conn.backlog, || {
                self.eps[conn.ep].matcher.senders.is_unknown_peer(conn.peer)
            })
        };
        self.io.conns.get(id).is_some_and(much)
    }

    /// Returns true if too many responses are queued for a peer, and its connection must end. The
    /// application's own transfers in the queue are bounded by tx_attr.size.
    pub(super) fn is_overrun(&self, id: u32) -> bool {
        let own = |conn: &StreamConn<N>| self.eps[conn.ep].identity.attr.tx_size;
        self.io.conns.get(id).is_some_and(|conn| conn.tx.len() >= MAX_ANSWERS + own(conn))
    }

    /// Sends a newly queued transfer if it is alone in the queue or before a fence; the rest is
    /// sent later.
    pub(super) fn push_on(&mut self, id: u32) -> TxResult {
        let tx = &self.io.conns[id].tx;
        if tx.len() <= 1 || tx.iter().take(2).any(TxRequest::is_fenced) {
            return self.flush_and_watch(id);
        }
        self.io.see_to_rest(id);
        Ok(())
    }

    /// Sends the data queued on a connection, and schedules the sending of the rest.
    fn flush_and_watch(&mut self, id: u32) -> TxResult {
        let flushed = self.flush(id);
        self.io.see_to_rest(id);
        flushed.map(|_| ())
    }

    /// Handles the peer's acknowledgement of these transfers, or of the oldest unacknowledged one.
    /// Fails with -FI_EPROTO if there are none.
    pub(super) fn acknowledged(&mut self, id: u32, run: Option<AckRun>) -> Result<TxResult> {
        match run {
            None => self.settle(id, None, None)?,
            Some(AckRun { first, count }) => {
                let last = first.saturating_add(count.into()).saturating_sub(1);
                if self.io.conns.get(id).is_some_and(|conn| !conn.is_sent(last)) {
                    // None of them: the header may be parsed again.
                    return Err(Error::PROTO);
                }
                for number in first..first.saturating_add(count.into()) {
                    self.settle(id, Some(number), None)?;
                }
            }
        }
        Ok(self.lift_fence(id))
    }

    /// The peer refused the write of this number; -FI_EPROTO if there is none.
    pub(super) fn write_refused(&mut self, id: u32, number: u64, error: Error) -> Result<TxResult> {
        self.settle(id, Some(number), Some(error))?;
        Ok(self.lift_fence(id))
    }

    /// Ends the transfer of this number, or the oldest one, among those awaiting an
    /// acknowledgement. Fails with -FI_EPROTO if there is none.
    fn settle(&mut self, id: u32, number: Option<u64>, refused: Option<Error>) -> Result {
        let Some(conn) = self.io.conns.get_mut(id) else { return Ok(()) };
        if conn.ignores_answers {
            return Ok(());
        }
        if let Some(finish) = conn.settle(number, refused)? {
            self.eps[conn.ep].finish_tx(&finish, Ok(()));
        }
        Ok(())
    }

    /// Sends fenced transfers waiting for the operation just completed.
    pub(super) fn lift_fence(&mut self, id: u32) -> TxResult {
        if self.io.conns.get(id).is_some_and(|conn| !conn.tx.is_empty() && conn.has_unsent()) {
            return self.push_on(id);
        }
        Ok(())
    }

    /// The peer asks for the announced message of this number: sends it. -FI_EPROTO if there is
    /// none.
    pub(super) fn clear_to_send(&mut self, id: u32, number: u8) -> Result<TxResult> {
        let conn = &mut self.io.conns[id];
        if conn.ignores_answers {
            return Ok(Ok(()));
        }
        let waiting = conn.waiting.remove(&number).ok_or(Error::PROTO)?;
        let header = StreamHeader {
            op: StreamOp::Data,
            flags: waiting.header.flags & (DELIVERY_COMPLETE | COMMIT_COMPLETE | MATCH_COMPLETE),
            op_data: number,
            id: 0,
            segments: 0,
            cq_data: 0,
            tag: 0,
            len: waiting.body.len() as u64,
        };
        Ok(self.answer(id, TxRequest::new(header, waiting.body, waiting.finish)))
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Copies responses still reading from a memory region about to be closed, so peers get the
    /// data as of their request. Without memory for the copies, or beyond the limit of the [`Backlog`](super::backlog::Backlog), the peers'
    /// connections end, because the protocol has no refusal.
    pub(super) fn save_answers(&mut self, key: u64) {
        if self.tx.regions.interfaces().is_some() {
            DeviceRegions::new(self).release(key);
        }
        self.copy_exposed(key);
        if self.tx.backlog.total() == 0 {
            return;
        }
        let reads =
            |conn: &StreamConn<N>| conn.backlog > 0 && conn.tx.iter().any(|one| one.reads(key));
        let ids: Vec<u32> =
            self.tx.io.conns.iter().filter(|(_, conn)| reads(conn)).map(|(id, _)| id).collect();
        for id in ids {
            let TxPath { io: EngineIo { conns, .. }, regions, backlog, .. } = &mut self.tx;
            let opened = regions.open();
            let conn = &mut conns[id];
            let mut saved = Ok(());
            for answer in conn.tx.iter_mut().filter(|one| one.reads(key)) {
                saved = saved.and_then(|()| {
                    let more = answer.save(&opened, backlog.left())?;
                    backlog.add(&mut conn.backlog, more);
                    Ok(())
                });
            }
            drop(opened);
            if let Err(error) = saved {
                self.fail(id, error);
            }
        }
    }

    /// Copies exposed responses of a region, not read by the peers yet, to other memory.
    fn copy_exposed(&mut self, key: u64) {
        for id in self.tx.io.conns.indices(StreamConn::is_exposing) {
            let conn = &mut self.tx.io.conns[id];
            let most = self.tx.backlog.left();
            match may_allocate().and_then(|()| conn.link.copy_exposed(key, most)) {
                Ok(retained) => {
                    conn.retained += retained;
                    self.tx.backlog.add(&mut conn.backlog, retained);
                }
                Err(error) => self.fail(id, error),
            }
        }
    }
}
