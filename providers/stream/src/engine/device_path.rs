//! Messages and accesses of peers with memory of devices (FI_HMEM), between the link and the copies
//! of [`device_send`](super::device_send) and [`device_recv`](super::device_recv).
use super::arrival::Arrival;
use super::device_fetch::DeviceFetcher;
use super::device_recv::{DeviceRecv, DeviceTarget};
use super::device_send::DeviceSend;
use super::incoming::{Got, HeaderOutcome, MessageTarget, RxRequest};
use super::rx_path::RxPath;
use super::transfer::{SendBody, TxCompletion, TxRequest};
use super::tx_path::{TxFailure, TxPath, TxResult};
use super::zerocopy::Zerocopy;
use crate::transport::{ShmLink, ShmTransport};
use crate::wire::{StreamHeader, StreamOp};
use ofi_provider::abi::{FI_REMOTE_READ, FI_REMOTE_WRITE};
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::SendBuf;
use ofi_provider::error::{Error, Result};

/// Messages behind one without a copied byte, with copies started early.
const EARLY_MESSAGES: usize = 8;

impl<N: ShmTransport> TxPath<N> {
    /// Starts copies of the first messages on a connection, and has their ends polled.
    pub(super) fn await_tx_copies(&mut self, id: u32) {
        let conn = &mut self.io.conns[id];
        if let Some(pool) = &self.eps[conn.ep].bounce {
            for outgoing in conn.tx.iter_mut().take(EARLY_MESSAGES) {
                // An error is reported when it is the message's turn.
                let _ = outgoing.advance_copies(Some(pool));
            }
        }
        self.io.await_copies(id);
    }

    /// Sends the cells of the first message on a connection, after its head. Returns false if there is
    /// no space for one.
    #[cold]
    pub(super) fn send_cells(&mut self, id: u32) -> TxResult<bool> {
        let (mut sent, mut moved) = (0, false);
        loop {
            let conn = &mut self.io.conns[id];
            let Some(first) = conn.tx.front_mut() else { break };
            let from = first.sent - first.head_len() + sent;
            let SendBody::Device(send) = &mut first.body else { break };
            let Some(cell) = send.next_cell() else { break };
            let Some(channel) = conn.link.device_channel() else {
                // The rest goes over the socket.
                send.drop_cells(from);
                moved = true;
                break;
            };
            match channel.send_device_cell(cell, send.key()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(TxFailure::Link(id, error)),
            }
            moved = true;
            let len = send.sent_cell();
            if len > 0 {
                sent += len;
                conn.start_exposing(len);
                conn.zerocopy.get_or_insert_with(|| Zerocopy::exposing(usize::MAX));
                self.called_zcopy(id);
            }
        }
        self.account(id, &mut sent);
        Ok(moved)
    }

    /// Ends the first message on a connection after a failed copy of its bytes. If a part of it was
    /// sent, or the peer cannot be told otherwise, the connection ends.
    pub(super) fn fail_first(&mut self, id: u32, error: Error) -> TxResult {
        let conn = &mut self.io.conns[id];
        let Some(first) = conn.tx.front_mut() else { return Ok(()) };
        let is_answer = first.finish.internal;
        if first.wire_len > 0
            || first.header.op == StreamOp::Data
            || (is_answer && !conn.knows.outcomes)
        {
            return Err(TxFailure::Connection(id, error));
        }
        if is_answer {
            let code = u8::try_from(error.code()).unwrap_or(libc::EIO as u8);
            let rejection = StreamHeader::refuse_read(code);
            let backlog = first.backlog();
            *first = TxRequest::new(rejection, SendBody::Empty, TxCompletion::INTERNAL);
            self.backlog.subtract(&mut conn.backlog, backlog);
            self.backlog.add(&mut conn.backlog, first.backlog());
        } else if let Some(failed) = conn.tx.pop_front() {
            // The copies end before the application gets its buffer back.
            let finish = failed.finish;
            drop(failed);
            self.eps[conn.ep].finish_tx(&finish, Err(error));
        }
        Ok(())
    }

    /// Responds to a peer's read of regions with memory of devices.
    pub(super) fn answer_device_read(
        &mut self,
        id: u32,
        segments: RemoteSegments,
        source: SendBuf,
    ) -> TxResult {
        let len = source.len();
        let header = StreamHeader { len: len as u64, ..StreamHeader::of(StreamOp::ReadRsp) };
        let finish = TxCompletion { flags: FI_REMOTE_READ, len, ..TxCompletion::INTERNAL };
        let body = match len {
            0 => SendBody::Empty,
            _ => SendBody::Device(Box::new(DeviceSend::new(source, Some(segments)))),
        };
        self.answer(id, TxRequest::new(header, body, finish))
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Stores bytes behind a message with copies in progress until they have ended; nothing if the
    /// connection waits for no copies.
    #[cold]
    pub(super) fn pause_for_copies(&mut self, id: u32, behind: &[u8]) {
        let Some(conn) = self.tx.io.conns.get(id) else { return };
        let is_device = |target: &MessageTarget| matches!(target, MessageTarget::Device(_));
        if conn.incoming.as_ref().is_some_and(|incoming| is_device(&incoming.target))
            && self.block(id, behind)
        {
            self.tx.io.await_copies(id);
            self.tx.io.watch(id);
        }
    }

    /// Handles a cell about memory of devices, next on a link.
    #[cold]
    pub(super) fn device_cell(&mut self, id: u32) -> Got {
        DeviceFetcher::new(self).handle_cell(id)
    }

    /// Finishes a message for memory of a device after its copies have ended. Returns true if the
    /// peer is to get its acknowledgement.
    pub(super) fn complete_device(
        &mut self,
        id: u32,
        envelope: &Arrival,
        recv: DeviceRecv,
    ) -> bool {
        let (target, result) = recv.finish();
        let conn = &mut self.tx.io.conns[id];
        let ep = &mut self.tx.eps[conn.ep];
        match (target, result) {
            (DeviceTarget::Posted(recv), Ok(())) => ep.matcher.received(&recv, envelope),
            (DeviceTarget::Posted(recv), Err(error)) => ep.matcher.failed(&recv, envelope, error),
            (DeviceTarget::Region(segments), Ok(())) => self.written(envelope, &segments),
            (DeviceTarget::Region(_), Err(error)) => {
                self.refuse_write(id, &mut envelope.clone(), error);
                return false;
            }
            (DeviceTarget::Answer(finish), result) => {
                conn.answered_in = self.tx.io.poll.iterations();
                ep.finish_tx(&finish, result);
                let sent = self.tx.lift_fence(id);
                self.conclude(sent);
            }
        }
        true
    }
}

/// Accesses of peers to regions with memory of devices.
pub(super) struct DeviceRegions<'a, N: ShmTransport> {
    rx: &'a mut RxPath<N>,
}

impl<'a, N: ShmTransport> DeviceRegions<'a, N> {
    pub(super) fn new(rx: &'a mut RxPath<N>) -> Self {
        Self { rx }
    }

    /// Starts a peer's write to memory of devices.
    #[cold]
    pub(super) fn begin_write(
        &mut self,
        id: u32,
        mut envelope: Arrival,
        segments: RemoteSegments,
    ) -> Result<HeaderOutcome> {
        let found = self.rx.tx.regions.open().device_target(&segments, FI_REMOTE_WRITE);
        let pool = self.rx.tx.eps[envelope.ep].bounce.clone();
        let target = match (found, pool) {
            (Ok(buf), Some(pool)) => {
                let recv = DeviceRecv::new(buf, DeviceTarget::Region(segments), &pool);
                MessageTarget::Device(Box::new(recv))
            }
            (found, _) => {
                self.rx.refuse_write(id, &mut envelope, found.err().unwrap_or(Error::OPNOTSUPP));
                MessageTarget::Discard
            }
        };
        let Some(conn) = self.rx.tx.io.conns.get_mut(id) else { return Ok(HeaderOutcome::Gone) };
        let is_empty = envelope.len == 0;
        conn.incoming = Some(RxRequest { envelope, target, done: 0 });
        match is_empty && !self.rx.complete_incoming(id) {
            true => Ok(HeaderOutcome::Gone),
            false => Ok(HeaderOutcome::Taken(0)),
        }
    }

    /// Ends the accesses of peers to a region with memory of a device before it closes: responses
    /// are copied, and the rest of a write is refused.
    pub(super) fn release(&mut self, key: u64) {
        let ids: Vec<u32> = self.rx.tx.io.conns.iter().map(|(id, _)| id).collect();
        for id in ids {
            let TxPath { io, eps, backlog, .. } = &mut self.rx.tx;
            let Some(conn) = io.conns.get_mut(id) else { continue };
            let Some(pool) = &eps[conn.ep].bounce else { continue };
            let mut saved = Ok(());
            for outgoing in &mut conn.tx {
                let from = outgoing.sent.saturating_sub(outgoing.head_len());
                let SendBody::Device(send) = &mut outgoing.body else { continue };
                if !send.reads(key) || saved.is_err() {
                    continue;
                }
                let len = send.len();
                saved = match len <= backlog.left() {
                    true => send.copy_rest(from, pool).map(|bytes| {
                        let before = outgoing.backlog();
                        outgoing.body = SendBody::Copied(bytes);
                        backlog.add(
                            &mut conn.backlog,
                            outgoing.backlog() - before.min(outgoing.backlog()),
                        );
                    }),
                    false => Err(Error::NOBUFS),
                };
            }
            let is_written = |target: &MessageTarget| match target {
                MessageTarget::Device(recv) => recv.writes(key),
                _ => false,
            };
            let is_written =
                conn.incoming.as_ref().is_some_and(|incoming| is_written(&incoming.target));
            if let Err(error) = saved {
                self.rx.fail(id, error);
            } else if is_written {
                self.rx.refuse_rest(id, Error::INVAL);
                if self.rx.tx.io.conns.get(id).is_some_and(|conn| conn.left() == 0)
                    && self.rx.complete_incoming(id)
                {
                    self.rx.unblock(id);
                }
            }
        }
    }
}
