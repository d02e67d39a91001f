//! Starts of messages and of peers' accesses to local memory, announced by headers.

use super::arrival::{
    AckAt, Arrival, StreamUnexpected, UnexpectedPayload, may_allocate, wants_ack,
};
use super::conn::StreamConn;
use super::device_path::DeviceRegions;
use super::device_recv::{DeviceRecv, DeviceTarget};
use super::ep::StreamEngineEp;
use super::idle_closer::IdleCloser;
use super::incoming::{HeaderOutcome, MessageTarget, RxRequest};
use super::region_access::DEVICE_MEMORY;
use super::rx_path::RxPath;
use super::traffic::count_header;
use crate::transport::{ByteLink, ShmTransport};
use crate::wire::{COMMIT_COMPLETE, REMOTE_CQ_DATA, StreamHeader, StreamOp};
use ofi_provider::abi::{FI_ATOMIC, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA};
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::copied;
use ofi_provider::error::{Error, Result};
use ofi_provider::reserved::ONLY_TAG;
use ofi_provider::rx_matcher::{Envelope, Recv};
use ofi_provider::slab::NONE;

impl Arrival {
    /// Creates the envelope announced by this header on connection `id`; fails with -FI_EPROTO if
    /// the header is invalid.
    #[inline]
    pub(super) fn new<N: ShmTransport>(
        header: &StreamHeader,
        id: u32,
        conn: &StreamConn<N>,
        ep: &StreamEngineEp,
    ) -> Result<Self> {
        // A length that no buffer can have violates the protocol.
        let len = usize::try_from(header.len).map_err(|_| Error::PROTO)?;
        if len > isize::MAX as usize {
            return Err(Error::PROTO);
        }
        let tagged = matches!(header.op, StreamOp::Tag | StreamOp::TagRts);
        let bare = header.op == StreamOp::TaggedMsg;
        count_header(&conn.received, header);
        let envelope = Envelope {
            tagged,
            msg_tag: bare.then_some(header.tag),
            collective: tagged && ep.matcher.rules.is_internal_tag(header.tag),
            tag: if bare { 0 } else { header.tag },
            len,
            cq_data: (header.flags & REMOTE_CQ_DATA != 0).then_some(header.cq_data),
            peer: conn.peer,
        };
        Ok(Self {
            envelope,
            ack: AckAt::of(header),
            number: conn.asked,
            commit: header.flags & COMMIT_COMPLETE != 0,
            ep: conn.ep,
            conn: id,
            serial: conn.serial,
        })
    }
}

impl StreamEngineEp {
    /// Counts a completed write of a peer, and reports its data. A write without remote segments
    /// needed no key: it is neither counted nor reported.
    fn written(&mut self, envelope: &Envelope, segments: &RemoteSegments) {
        if segments.as_slice().is_empty() {
            return;
        }
        self.matcher.completions.peer_accessed(true, envelope.len);
        self.accessed(envelope, FI_RMA | FI_REMOTE_WRITE);
    }

    /// Reports a peer's access to our memory if it carries remote CQ data.
    pub(super) fn accessed(&mut self, envelope: &Envelope, flags: u64) {
        if let Some(data) = envelope.cq_data {
            self.matcher.completions.peer_notified(
                flags,
                envelope.len,
                data,
                self.matcher.senders.id_of(envelope.peer),
            );
        }
    }

    /// Removes and returns the posted receive matching a message, or the part of it needed by the
    /// message.
    #[inline]
    pub(super) fn take_posted(&mut self, envelope: &Envelope) -> Option<Recv> {
        #[cfg(any(test, feature = "sim"))]
        if ofi_simulation::injected() == Some(ofi_simulation::InjectedFault::SwappedMatch) {
            return super::sim::take_second(&mut self.matcher, envelope);
        }
        self.matcher.take_posted(envelope)
    }

    /// Keeps a message until a receive takes it; -FI_ENOMEM if there is no memory.
    pub(super) fn buffer_unexpected(
        &mut self,
        arrival: &Arrival,
        body: StreamUnexpected,
    ) -> Result<u32> {
        may_allocate()?;
        self.matcher.queues.reserve(arrival)?;
        let Arrival { envelope, ack, number, conn, serial, .. } = *arrival;
        Ok(self
            .matcher
            .buffer_unexpected(envelope, UnexpectedPayload { body, ack, number, conn, serial }))
    }

    /// Returns true if the buffered unexpected messages of a peer reach the user's bound
    /// ([`max_saved`](crate::settings::StreamSettings::max_saved)), if there is one.
    pub(super) fn peer_is_over_bound(&self, peer: u32, bound: Option<usize>) -> bool {
        peer != NONE && bound.is_some_and(|max| self.matcher.senders.buffered_count(peer) >= max)
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Starts the operation announced by a header; `bytes` are the header's own, `behind` the bytes
    /// after it. An error ends the connection; -FI_EPROTO is a violation of the protocol.
    #[inline]
    pub(super) fn begin(
        &mut self,
        id: u32,
        header: &StreamHeader,
        bytes: &[u8],
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        if self.tx.io.conns[id].usage.has_agreed() && header.op != StreamOp::Close {
            self.tx.resume_use(id);
        }
        let wants_reply =
            matches!(header.op, StreamOp::ReadReq | StreamOp::Atomic) || wants_ack(header);
        if wants_reply && self.tx.has_many_pending(id) {
            return Ok(HeaderOutcome::CqBlocked);
        }
        match header.op {
            StreamOp::Msg if header.is_ack() => {
                let sent = self.tx.acknowledged(id, header.acked())?;
                self.conclude(sent);
                Ok(HeaderOutcome::Taken(0))
            }
            // Such a message is taken only on endpoints that report a source of their own
            // (`OPT_SOURCE`), whose user can make something of it.
            StreamOp::TaggedMsg if !self.tx.eps[self.tx.io.conns[id].ep].has_source => {
                Err(Error::PROTO)
            }
            StreamOp::Msg | StreamOp::Tag | StreamOp::TaggedMsg => {
                self.begin_message(id, header, behind)
            }
            StreamOp::TagRts => self.on_rts(id, header),
            StreamOp::Cts => {
                let sent = self.tx.clear_to_send(id, header.op_data)?;
                self.conclude(sent);
                Ok(self.tx.io.started(id, 0))
            }
            StreamOp::Write => self.begin_write(id, header, bytes, behind),
            StreamOp::WriteRefused => {
                if !self.tx.io.conns[id].knows.outcomes {
                    return Err(Error::PROTO);
                }
                let error = Error::from_code(header.op_data.into());
                let sent = self.tx.write_refused(id, header.cq_data, error)?;
                self.conclude(sent);
                Ok(self.tx.io.started(id, 0))
            }
            StreamOp::Close => {
                IdleCloser::new(self).on_step(id, header)?;
                Ok(self.tx.io.started(id, 0))
            }
            StreamOp::ReadReq => {
                let conn = &self.tx.io.conns[id];
                let segments = conn.local_segments(header, bytes)?;
                let len = segments.total()?;
                let (ep, regions) = (&self.tx.eps[conn.ep], &self.tx.regions);
                let granted = conn
                    .admit_access(ep, FI_REMOTE_READ)
                    .and_then(|()| conn.grant(regions, &segments, FI_REMOTE_READ, &[]));
                if self.tx.is_overrun(id) {
                    return Err(Error::NOBUFS);
                }
                let sent = match granted {
                    Ok(()) => self.tx.answer_read(id, segments, len)?,
                    Err(DEVICE_MEMORY) => {
                        let source =
                            self.tx.regions.open().device_source(&segments, FI_REMOTE_READ);
                        match source {
                            Ok(source) => self.tx.answer_device_read(id, segments, source),
                            Err(error) => self.tx.refuse(id, None, error),
                        }
                    }
                    Err(error) => self.tx.refuse(id, None, error),
                };
                self.conclude(sent);
                Ok(self.tx.io.started(id, 0))
            }
            StreamOp::Atomic => self.begin_atomic(id, header, bytes, behind),
            StreamOp::ReadRsp | StreamOp::AtomicRsp => {
                let conn = &mut self.tx.io.conns[id];
                let envelope = Arrival::new(header, id, conn, &self.tx.eps[conn.ep])?;
                if conn.ignores_answers {
                    if envelope.len > 0 {
                        conn.incoming =
                            Some(RxRequest { envelope, target: MessageTarget::Discard, done: 0 });
                    }
                    return Ok(HeaderOutcome::Taken(0));
                }
                let (_, asked) = conn.reads.front().ok_or(Error::PROTO)?;
                if (asked.flags & FI_ATOMIC != 0) != (header.op == StreamOp::AtomicRsp) {
                    return Err(Error::PROTO);
                }
                let (buf, finish) = conn.reads.pop_front().ok_or(Error::PROTO)?;
                let refusable = header.op == StreamOp::AtomicRsp
                    || (conn.knows.outcomes && envelope.len == 0 && !buf.is_empty());
                if refusable && header.op_data != 0 {
                    let error = Error::from_code(header.op_data.into());
                    self.tx.eps[conn.ep].finish_tx(&finish, Err(error));
                    let sent = self.tx.lift_fence(id);
                    self.conclude(sent);
                    return Ok(self.tx.io.started(id, 0));
                }
                let right_size = buf.len() == envelope.len;
                let is_copied_now = !buf.is_device() || envelope.len == 0;
                if right_size && envelope.len <= behind.len() && is_copied_now {
                    conn.answered_in = self.tx.io.poll.iterations();
                    buf.copy_from(0, &behind[..envelope.len]);
                    self.tx.eps[conn.ep].finish_tx(&finish, Ok(()));
                    let sent = self.tx.lift_fence(id);
                    self.conclude(sent);
                    return Ok(self.tx.io.started(id, envelope.len));
                }
                let target = match &self.tx.eps[conn.ep].bounce {
                    Some(pool) if buf.is_device() => {
                        let recv = DeviceRecv::new(buf, DeviceTarget::Answer(finish), pool);
                        MessageTarget::Device(Box::new(recv))
                    }
                    _ => MessageTarget::Answer(buf, finish),
                };
                conn.incoming = Some(RxRequest { envelope, target, done: 0 });
                if !right_size {
                    return Err(Error::PROTO);
                }
                Ok(HeaderOutcome::Taken(0))
            }
            StreamOp::Data => {
                let conn = &mut self.tx.io.conns[id];
                let mut incoming = conn.expected.remove(&header.op_data).ok_or(Error::PROTO)?;
                conn.announced.remove(header.op_data);
                if header.len != incoming.envelope.len as u64 {
                    conn.incoming = Some(incoming);
                    return Err(Error::PROTO);
                }
                if wants_ack(header) {
                    incoming.envelope.ack = AckAt::of(header);
                }
                incoming.envelope.number = conn.asked;
                conn.incoming = Some(incoming);
                if header.len == 0 && !self.complete_incoming(id) {
                    return Ok(HeaderOutcome::Gone);
                }
                Ok(HeaderOutcome::Taken(0))
            }
        }
    }

    /// Starts a peer's write to local memory: checks its right, and stores the available bytes.
    fn begin_write(
        &mut self,
        id: u32,
        header: &StreamHeader,
        bytes: &[u8],
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let conn = &self.tx.io.conns[id];
        let segments = conn.local_segments(header, bytes)?;
        let mut envelope = Arrival::new(header, id, conn, &self.tx.eps[conn.ep])?;
        let cq_blocked =
            envelope.cq_data.is_some() && !self.tx.eps[conn.ep].matcher.completions.has_space();
        let here = if cq_blocked { 0 } else { envelope.len.min(behind.len()) };
        let (ep, regions) = (&self.tx.eps[conn.ep], &self.tx.regions);
        let granted = conn
            .admit_access(ep, FI_REMOTE_WRITE)
            .and_then(|()| conn.grant(regions, &segments, FI_REMOTE_WRITE, &behind[..here]));
        if cq_blocked && matches!(granted, Ok(()) | Err(DEVICE_MEMORY)) {
            return Ok(HeaderOutcome::CqBlocked);
        }
        let target = match granted {
            Ok(()) if here == envelope.len => {
                self.written(&envelope, &segments);
                if envelope.ack.is_awaited() {
                    let sent = self.tx.acknowledge(id, envelope.number);
                    self.conclude(sent);
                }
                return Ok(self.tx.io.started(id, here));
            }
            Ok(()) => MessageTarget::Region(segments),
            Err(DEVICE_MEMORY) => {
                return DeviceRegions::new(self).begin_write(id, envelope, segments);
            }
            Err(error) => {
                self.refuse_write(id, &mut envelope, error);
                MessageTarget::Discard
            }
        };
        // The refusal may have ended the connection.
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return Ok(HeaderOutcome::Gone) };
        let here = envelope.len.min(behind.len());
        if here < envelope.len {
            conn.incoming = Some(RxRequest { envelope, target, done: here });
        }
        Ok(HeaderOutcome::Taken(here))
    }

    /// Refuses a peer's write, with its bytes to be discarded. Without an acknowledgement the peer
    /// takes the write for complete, and need not lose the connection over it.
    pub(super) fn refuse_write(&mut self, id: u32, envelope: &mut Arrival, error: Error) {
        let conn = &self.tx.io.conns[id];
        if envelope.ack.is_awaited() || (conn.unknown_conn.is_some() && !conn.knows.outcomes) {
            let sent = self.tx.refuse(id, Some(envelope.number), error);
            self.conclude(sent);
        }
        envelope.ack = AckAt::Never;
    }

    /// Refuses the rest of a peer's write in progress after its region was closed. Returns false if
    /// the message in progress is no such write.
    pub(super) fn refuse_rest(&mut self, id: u32, error: Error) -> bool {
        let Some(conn) = self.tx.io.conns.get_mut(id) else { return false };
        let is_write = |one: &mut RxRequest| match &one.target {
            MessageTarget::Region(_) => true,
            MessageTarget::Device(recv) => matches!(recv.target, DeviceTarget::Region(_)),
            _ => false,
        };
        let Some(mut incoming) = conn.incoming.take_if(is_write) else { return false };
        // Dropping the target of a device waits for its copies.
        incoming.target = MessageTarget::Discard;
        self.refuse_write(id, &mut incoming.envelope, error);
        if let Some(conn) = self.tx.io.conns.get_mut(id) {
            conn.incoming = Some(incoming);
        }
        true
    }

    /// Finishes a peer's write with all bytes stored: makes them durable if requested, counts and
    /// reports it.
    pub(super) fn written(&mut self, envelope: &Arrival, segments: &RemoteSegments) {
        if envelope.commit {
            // A region that is closed by now need not be made durable.
            let _ = self.tx.regions.open().commit(segments, FI_REMOTE_WRITE);
        }
        self.tx.regions.written(segments);
        self.tx.eps[envelope.ep].written(envelope, segments);
    }

    #[inline]
    fn begin_message(
        &mut self,
        id: u32,
        header: &StreamHeader,
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let conn = &mut self.tx.io.conns[id];
        let ep = &mut self.tx.eps[conn.ep];
        if !ep.matcher.completions.has_space() {
            return Ok(HeaderOutcome::CqBlocked);
        }
        let envelope = Arrival::new(header, id, conn, ep)?;
        let here = envelope.len.min(behind.len());
        if let Some(buffering) = ep.matcher.buffering.state() {
            if buffering.is_long(envelope.len) && behind.len() < buffering.wanted(envelope.len) {
                return Ok(HeaderOutcome::Short);
            }
        }
        if here < envelope.len
            && ep.matcher.queues.is_shared()
            && ep.has_source
            && envelope.queue() == 0
            && ep.matcher.queues.collects(envelope.len, N::Link::settings().max_unexpected)?
        {
            conn.incoming =
                Some(RxRequest { envelope, target: MessageTarget::Collected(Vec::new()), done: 0 });
            return Ok(HeaderOutcome::Taken(0));
        }
        if let Some(recv) = ep.take_posted(&envelope) {
            if recv.flags & ONLY_TAG != 0 {
                return self.begin_buffered(id, envelope, behind, Some(recv));
            }
            if recv.buf.is_device() && envelope.len > 0 {
                let target = ep.target_of(recv);
                conn.incoming = Some(RxRequest { envelope, target, done: 0 });
                return Ok(HeaderOutcome::Taken(0));
            }
            recv.buf.copy_from(0, &behind[..here]);
            if here == envelope.len {
                ep.matcher.received(&recv, &envelope);
                if envelope.ack.is_awaited() {
                    let sent = self.tx.acknowledge(id, envelope.number);
                    self.conclude(sent);
                    if self.tx.io.conns.get(id).is_none() {
                        return Ok(HeaderOutcome::Gone);
                    }
                }
            } else {
                conn.incoming =
                    Some(RxRequest { envelope, target: MessageTarget::Posted(recv), done: here });
            }
            return Ok(HeaderOutcome::Taken(here));
        }
        self.begin_unexpected(id, envelope, behind)
    }

    /// Starts a message without a matching receive: buffers it, reports it (buffered receives), or
    /// drops it.
    fn begin_unexpected(
        &mut self,
        id: u32,
        envelope: Arrival,
        behind: &[u8],
    ) -> Result<HeaderOutcome> {
        let matcher = &self.tx.eps[envelope.ep].matcher;
        if matcher.buffering.state().is_some() {
            return self.begin_buffered(id, envelope, behind, None);
        }
        if matcher.senders.drops(&envelope) {
            let here = envelope.len.min(behind.len());
            self.tx.io.conns[id].incoming =
                Some(RxRequest { envelope, target: MessageTarget::Discard, done: here });
            return match here < envelope.len || self.complete_incoming(id) {
                true => Ok(HeaderOutcome::Taken(here)),
                false => Ok(HeaderOutcome::Gone),
            };
        }
        Ok(self.start_buffered(id, envelope, behind)?.1)
    }

    /// Buffers an unexpected message with its first bytes in `behind`. Without buffer space it
    /// blocks its connection. Returns its number in the matching engine.
    pub(super) fn start_buffered(
        &mut self,
        id: u32,
        envelope: Arrival,
        behind: &[u8],
    ) -> Result<(u32, HeaderOutcome)> {
        let mut envelope = envelope;
        let has_space = self.tx.eps.make_space(&envelope, N::Link::settings().max_unexpected);
        let conn = &mut self.tx.io.conns[id];
        let ep = &mut self.tx.eps[conn.ep];
        let here = envelope.len.min(behind.len());
        if !has_space || ep.peer_is_over_bound(conn.peer, N::Link::settings().max_saved) {
            let message = ep.buffer_unexpected(&envelope, StreamUnexpected::Blocking)?;
            conn.incoming =
                Some(RxRequest { envelope, target: MessageTarget::Buffered(message), done: 0 });
            self.tx.io.blocked.block_on_buffer((id, envelope.serial));
            return Ok((message, HeaderOutcome::Blocked));
        }
        if here == envelope.len {
            let delivered = envelope.ack.take_delivery();
            let message =
                ep.buffer_unexpected(&envelope, StreamUnexpected::Whole(copied(&behind[..here])?))?;
            if delivered {
                let sent = self.tx.acknowledge(id, envelope.number);
                self.conclude(sent);
            }
            return Ok((message, self.tx.io.started(id, here)));
        }
        let message = ep.buffer_unexpected(
            &envelope,
            StreamUnexpected::arriving(envelope.len, &behind[..here])?,
        )?;
        conn.incoming =
            Some(RxRequest { envelope, target: MessageTarget::Buffered(message), done: here });
        Ok((message, HeaderOutcome::Taken(here)))
    }

    /// Starts a rendezvous message ([`StreamOp::TagRts`]): requests it if a receive matches, or
    /// records it in the matching engine.
    fn on_rts(&mut self, id: u32, header: &StreamHeader) -> Result<HeaderOutcome> {
        let conn = &mut self.tx.io.conns[id];
        let ep = &mut self.tx.eps[conn.ep];
        if !ep.matcher.completions.has_space() {
            return Ok(HeaderOutcome::CqBlocked);
        }
        if ep.matcher.buffering.state().is_some() {
            // An endpoint with buffered receives offered protocol version 0, which has no such
            // messages.
            return Err(Error::PROTO);
        }
        let envelope = Arrival::new(header, id, conn, ep)?;
        // The number is taken until the message arrives, whether it is asked for yet or not.
        if !conn.announced.insert(header.op_data) {
            return Err(Error::PROTO);
        }
        let target = match ep.take_posted(&envelope) {
            Some(recv) => ep.target_of(recv),
            None if ep.matcher.senders.drops(&envelope) => MessageTarget::Discard,
            None if ep.matcher.queues.may_note(N::Link::settings().max_unexpected) => {
                let message =
                    ep.buffer_unexpected(&envelope, StreamUnexpected::AtSender(header.op_data))?;
                conn.at_sender.insert(header.op_data, (envelope.queue(), message));
                return Ok(HeaderOutcome::Taken(0));
            }
            // There is no room even for notes of announced messages.
            None => return Err(Error::PROTO),
        };
        conn.expected.insert(header.op_data, RxRequest { envelope, target, done: 0 });
        let sent = self.tx.send_cts(id, header.op_data);
        self.conclude(sent);
        Ok(self.tx.io.started(id, 0))
    }
}
