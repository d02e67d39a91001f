//! Receiving: from the core's completed receives to messages in the application's buffers.
//!
//! A packet's payload is copied once, from the core's receive buffer to its target. An unexpected
//! message stays in its receive buffer, or is copied if it is small. A rendezvous message waits at
//! its sender.
use super::conn::{Partial, RxmConn, SegmentTarget, Token, came_on};
use super::ep::RxmEngineEp;
use super::pending::{
    HeaderlessMessage, MAX_UNEXPECTED, Parked, PartialUnexpected, RxmPacket, RxmUnexpected,
    only_tag,
};
use crate::provider::RXM;
use crate::wire::{Malformed, PacketKind, Parsed, RxmHeader, SegmentPart, read_segments};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA, FI_TAGGED};
use ofi_provider::core_provider::{CoreBuf, Done};
use ofi_provider::error::Error;
use ofi_provider::heap;
use ofi_provider::malformed;
use ofi_provider::rx_matcher::Envelope;
use ofi_provider::slab::NONE;

/// Memory limit in bytes of buffered messages of all unknown peers. Peers in the address vector
/// have the rest of [`MAX_UNEXPECTED`].
const MAX_OF_UNKNOWN_PEERS: usize = MAX_UNEXPECTED / 4 * 3;

const TOO_MUCH: Malformed =
    Malformed("a stranger's messages that no receive waits for are too many");

/// Maximum size of unexpected messages copied out of their receive buffer, in bytes; an eighth of
/// the buffer is also permitted. The buffer is then free for others.
const COPY_MAX: usize = 2048;

/// Maximum segmented messages of one connection arriving concurrently.
const MAX_PARTIAL: usize = 4096;

/// Returns true if memory may be allocated for data from peers; a simulator occasionally denies it.
#[inline(always)]
fn may_allocate() -> bool {
    #[cfg(test)]
    return ofi_simulation::here::memory().is_ok();
    #[cfg(not(test))]
    true
}

impl RxmEngineEp {
    /// Handles a lack of core space for reposting a shared buffer after its message.
    #[cold]
    pub(super) fn not_posted_again(&mut self, buf: CoreBuf) {
        self.rx_posted -= 1;
        self.conns.release(Some(buf));
    }

    /// Posts more buffers to the shared context from now on.
    #[cold]
    pub(super) fn want_more_shared(&mut self) {
        self.rx_wanted = (self.rx_wanted * 2).min(self.common.rx_buffers(true));
        self.post_shared();
    }

    /// Posts receive buffers to the shared context until there are enough.
    pub(super) fn post_shared(&mut self) {
        while self.rx_posted < self.rx_wanted && self.matcher.buffered_bytes() <= MAX_UNEXPECTED {
            let Ok(buf) = self.conns.buffer() else { return };
            let Some(srx) = self.core.as_ref().and_then(|core| core.srx.as_ref()) else { return };
            if let Err((_, buf)) = srx.post(buf, Token::Rx(NONE).to_u64()) {
                self.conns.release(Some(buf));
                return;
            }
            self.rx_posted += 1;
        }
    }

    /// Posts a buffer to the shared context again, if it is left and wanted there.
    #[inline]
    fn post_again(&mut self, buf: Option<CoreBuf>) {
        // The commonest case: the buffer goes back as it is.
        if let Some(buf) = buf {
            if self.rx_posted + 1 == self.rx_wanted
                && self.matcher.buffered_bytes() <= MAX_UNEXPECTED
                && let Some(srx) = self.core.as_ref().and_then(|core| core.srx.as_ref())
            {
                match srx.post(buf, Token::Rx(NONE).to_u64()) {
                    Ok(()) => self.rx_posted += 1,
                    Err((_, buf)) => self.conns.release(Some(buf)),
                }
                return;
            }
            self.conns.release(Some(buf));
        }
        self.post_shared();
    }

    /// Handles a completed receive of the core.
    #[inline]
    pub(super) fn packet_came(&mut self, conn: u32, done: Done) {
        let mut source = done.src;
        if conn == NONE {
            self.rx_posted -= 1;
            self.came += 1;
        } else if let Some(of) = self.conns.get_mut(conn) {
            of.rx_posted = of.rx_posted.saturating_sub(1);
            // The buffer belongs to this connection, so the source is known regardless of the
            // core's report.
            source = self.conns.source(conn);
        }
        let Some(buf) = done.buf else { return };
        if done.error.is_some() {
            // The receive failed because its connection ended, which the event queue reports.
            self.conns.release(Some(buf));
            self.post_shared();
            return;
        }
        if done.flags & FI_REMOTE_WRITE != 0 {
            // Some cores use up a buffer for a write with remote CQ data.
            let written = Done { token: None, buf: None, ..done };
            self.peer_wrote(&written);
            self.reuse(conn, Some(buf));
            return;
        }
        let len = done.len.min(buf.len());
        let cq_data = (done.flags & FI_REMOTE_CQ_DATA != 0).then_some(done.data);
        let bare = HeaderlessMessage { tag: done.tag, cq_data };
        let bare = (done.flags & FI_TAGGED != 0).then_some(bare);
        // A packet that ends a transfer needs no room, and may make some.
        let waits = !self.parked.is_empty() || !self.may_take();
        let packet = RxmPacket { buf, len, conn, source, bare };
        if waits && (packet.bare.is_some() || !RxmHeader::is_control(&packet.buf[..len])) {
            self.parked.push_back(Parked::Packet(packet));
            return;
        }
        self.take_packet(packet);
    }

    /// Returns true if there is space to report a message, and to buffer it.
    #[inline]
    fn may_take(&self) -> bool {
        self.matcher.completions.has_space() && self.matcher.buffered_bytes() <= MAX_UNEXPECTED
    }

    /// Resumes taking messages left in the core for lack of space.
    #[inline]
    pub(super) fn go_on(&mut self) {
        if self.rx_posted < self.rx_wanted && self.parked.is_empty() {
            self.post_shared();
        }
    }

    /// Resumes packets blocked on space.
    #[cold]
    pub(super) fn unpark(&mut self) {
        while self.may_take()
            && let Some(parked) = self.parked.pop_front()
        {
            match parked {
                Parked::Packet(packet) => self.take_packet(packet),
                Parked::Written(data, len) => self.report_written(data, len),
            }
        }
        self.end_received();
    }

    #[inline]
    fn take_packet(&mut self, packet: RxmPacket) {
        let RxmPacket { buf, len, conn, source, bare } = packet;
        let left = match (came_on(&self.conns, source), bare) {
            // The connection is over.
            (None, _) => Some(buf),
            (Some((id, _)), None) => self.packet(buf, len, id),
            (Some((id, _)), Some(bare)) => {
                self.bare_message(&buf[..len], id, &bare);
                Some(buf)
            }
        };
        self.reuse(conn, left);
    }

    /// Handles a tagged message without a header.
    #[cold]
    fn bare_message(&mut self, bytes: &[u8], id: u32, bare: &HeaderlessMessage) {
        let envelope = Envelope {
            tagged: true,
            msg_tag: None,
            collective: self.matcher.is_internal_tag(bare.tag),
            tag: bare.tag,
            len: bytes.len(),
            cq_data: bare.cq_data,
            peer: self.conns[id].peer,
        };
        self.conns[id].received.one(envelope.len);
        match self.matcher.take_posted(&envelope) {
            Some(recv) if !only_tag(&recv) => {
                recv.buf.copy_from(0, bytes);
                self.matcher.received(&recv, &envelope);
            }
            None if self.matcher.drops(&envelope) => {}
            None if self.matcher.is_too_much(&envelope, MAX_OF_UNKNOWN_PEERS) => self.too_much(id),
            matched => {
                self.fetches.buffer_unexpected(
                    &mut self.matcher,
                    &mut self.conns,
                    envelope,
                    RxmUnexpected::Whole(bytes.into()),
                    matched,
                );
            }
        }
    }

    /// Reposts a receive buffer to the core: `buf` if it is still available, else another.
    #[inline]
    fn reuse(&mut self, conn: u32, buf: Option<CoreBuf>) {
        if conn == NONE {
            self.post_again(buf);
        } else {
            if let Some(RxmConn { rx_posted: 0, rx_wanted, .. }) = self.conns.get_mut(conn) {
                // The buffers were too few, as with shared ones.
                *rx_wanted = rx_wanted.saturating_mul(2);
            }
            self.conns.release(buf);
            self.conns.post_own(conn);
            self.conns.grant(conn);
        }
    }

    /// Handles a packet received on this connection. Returns the buffer unless it was queued as
    /// unexpected.
    #[inline]
    fn packet(&mut self, buf: CoreBuf, len: usize, id: u32) -> Option<CoreBuf> {
        let (header, payload) = match self.conns.read_packet(&buf[..len], id) {
            Ok(read) => read,
            Err(why) => {
                self.malformed(id, why);
                return Some(buf);
            }
        };
        let result = match header.kind {
            PacketKind::Eager => {
                let envelope = match self.envelope(&header, id) {
                    Ok(envelope) => envelope,
                    Err(why) => {
                        self.malformed(id, why);
                        return Some(buf);
                    }
                };
                self.conns[id].received.one(envelope.len);
                match self.matcher.take_posted(&envelope) {
                    Some(recv) if !only_tag(&recv) => {
                        recv.buf.copy_from(0, payload);
                        self.matcher.received(&recv, &envelope);
                    }
                    // No receive waits for the message, nor ever will.
                    None if self.matcher.drops(&envelope) => {}
                    None if self.matcher.is_too_much(&envelope, MAX_OF_UNKNOWN_PEERS) => {
                        self.too_much(id)
                    }
                    matched if payload.len() <= COPY_MAX.max(buf.len() / 8) => {
                        let body = RxmUnexpected::Whole(payload.into());
                        self.fetches.buffer_unexpected(
                            &mut self.matcher,
                            &mut self.conns,
                            envelope,
                            body,
                            matched,
                        );
                    }
                    matched => {
                        self.fetches.buffer_unexpected(
                            &mut self.matcher,
                            &mut self.conns,
                            envelope,
                            RxmUnexpected::InPacket(buf, len),
                            matched,
                        );
                        return None;
                    }
                }
                Ok(())
            }
            PacketKind::Segment => self.segment(id, &header, payload),
            PacketKind::RndvRequest => self.announcement(id, &header, payload),
            PacketKind::RndvReadDone | PacketKind::RndvWriteTo | PacketKind::AtomicResponse
                if self.conns.is_given_up(id) =>
            {
                Ok(())
            }
            PacketKind::RndvReadDone => {
                let known = self.tx.message_fetched(&mut self.conns, id, header.msg_id);
                known.then_some(()).ok_or(Malformed("the end of a rendezvous that is none"))
            }
            PacketKind::RndvWriteTo => {
                read_segments(payload, self.conns[id].swapped).and_then(|segments| {
                    let known = self.deliver_to(id, &header, segments);
                    known.then_some(()).ok_or(Malformed("a place for a message that is none"))
                })
            }
            PacketKind::RndvWriteDone => {
                self.fetches.written(&mut self.matcher, &mut self.conns, id, &header)
            }
            PacketKind::Credit => self.conns.granted(id, header.ctrl_data),
            PacketKind::Atomic => self.atomic_came(id, &header, payload),
            PacketKind::AtomicResponse => {
                let known = self.tx.answered(&mut self.conns, id, &header, payload);
                known.then_some(()).ok_or(Malformed("an answer nobody asked for"))
            }
        };
        if let Err(why) = result {
            self.malformed(id, why);
        }
        Some(buf)
    }

    /// Closes the connection of a peer that sent a malformed packet; no other connection is
    /// affected.
    #[cold]
    fn malformed(&mut self, conn: u32, why: Malformed) {
        let Some(of) = self.conns.get(conn) else { return };
        let peer = self.peers.get(of.peer).map(|peer| &peer.addr);
        malformed::log_closing(&RXM, peer, why);
        self.ended(conn, Error::PROTO);
    }

    /// Ends the connection of an unknown peer exceeding the buffer space of unknown peers, and
    /// drops its messages.
    #[cold]
    fn too_much(&mut self, id: u32) {
        let Some(peer) = self.conns.get(id).map(|conn| conn.peer) else { return };
        self.malformed(id, TOO_MUCH);
        for (queue, message) in self.matcher.buffered_from(peer) {
            self.fetches.drop_buffered(&mut self.matcher, queue, message, Error::PROTO);
        }
        self.peers.forget_if_unused(peer, &mut self.matcher);
    }

    #[inline]
    fn envelope(&self, header: &RxmHeader, conn: u32) -> Parsed<Envelope> {
        // A length that no buffer can have violates the protocol.
        let len = usize::try_from(header.size).ok().filter(|len| *len <= isize::MAX as usize);
        Ok(Envelope {
            tagged: header.is_tagged(),
            msg_tag: None,
            collective: header.is_tagged() && self.matcher.is_internal_tag(header.tag),
            tag: if header.is_tagged() { header.tag } else { 0 },
            len: len.ok_or(Malformed("a message longer than memory"))?,
            cq_data: header.cq_data(),
            peer: self.conns[conn].peer,
        })
    }

    /// Handles a segment of a message.
    fn segment(&mut self, id: u32, header: &RxmHeader, payload: &[u8]) -> Parsed {
        let envelope = self.envelope(header, id)?;
        let queue = envelope.queue();
        let part = header.part();
        let known = self.conns[id].partial.iter().position(|p| p.msg_id == header.msg_id);
        let at = match (known, part) {
            (Some(at), Some(SegmentPart::Middle | SegmentPart::Last)) => at,
            (None, Some(SegmentPart::First)) => {
                if self.conns[id].partial.len() >= MAX_PARTIAL {
                    return Err(Malformed("more segmented messages than there can be"));
                }
                let msg_id = header.msg_id;
                self.conns[id].received.one(envelope.len);
                let target = match self.matcher.take_posted(&envelope) {
                    Some(recv) if !only_tag(&recv) => SegmentTarget::Recv(recv),
                    None if self.matcher.drops(&envelope) => SegmentTarget::Nowhere,
                    None if self.matcher.is_too_much(&envelope, MAX_OF_UNKNOWN_PEERS) => {
                        self.too_much(id);
                        return Ok(());
                    }
                    matched => {
                        let body = RxmUnexpected::Partial { bytes: Vec::new(), conn: id, msg_id };
                        SegmentTarget::Buffered(self.fetches.buffer_unexpected(
                            &mut self.matcher,
                            &mut self.conns,
                            envelope,
                            body,
                            matched,
                        ))
                    }
                };
                let partial = &mut self.conns[id].partial;
                partial.push(Partial { msg_id, envelope, done: 0, next: 0, target });
                partial.len() - 1
            }
            _ => return Err(Malformed("a segment out of order")),
        };
        let partial = &mut self.conns[id].partial[at];
        let (done, of) = (partial.done, partial.envelope);
        if header.seg_no != partial.next || payload.len() > of.len - done {
            return Err(Malformed("a segment that does not follow"));
        }
        partial.next += 1;
        partial.done += payload.len();
        let last = part == Some(SegmentPart::Last);
        if last != (partial.done == of.len) {
            return Err(Malformed("a message shorter or longer than it says"));
        }
        match &partial.target {
            SegmentTarget::Recv(recv) => {
                recv.buf.copy_from(done, payload);
            }
            SegmentTarget::Buffered(message) => {
                let (message, mut fits) = (*message, true);
                self.matcher.change(queue, message, |body| {
                    if let RxmUnexpected::Partial { bytes, .. } = body {
                        // The peer decides how long the message becomes, so memory is allocated as
                        // it comes.
                        fits = may_allocate()
                            && heap::ready().is_ok()
                            && bytes.try_reserve(payload.len()).is_ok();
                        if !fits {
                            return;
                        }
                        bytes.extend_from_slice(payload);
                        if last {
                            *body = RxmUnexpected::Whole(std::mem::take(bytes).into_boxed_slice());
                        }
                    }
                });
                if !fits {
                    // Later segments are still received before the connection ends, and must not
                    // complete the message.
                    partial.target = SegmentTarget::Nowhere;
                    self.fetches.drop_buffered(&mut self.matcher, queue, message, Error::NOMEM);
                    return Err(Malformed("more than there is memory for"));
                }
            }
            SegmentTarget::Nowhere => {}
        }
        if last {
            let partial = self.conns[id].partial.swap_remove(at);
            if let SegmentTarget::Recv(recv) = partial.target {
                self.matcher.received(&recv, &of);
            }
        }
        if self.fetches.has_reports() {
            self.fetches.report_due(&mut self.matcher, of.peer);
        }
        Ok(())
    }

    /// Handles the RTS of a rendezvous message.
    fn announcement(&mut self, id: u32, header: &RxmHeader, payload: &[u8]) -> Parsed {
        let envelope = self.envelope(header, id)?;
        let segments = read_segments(payload, self.conns[id].swapped)?;
        if segments.total() != Ok(envelope.len) {
            return Err(Malformed("a rendezvous of another length than its message"));
        }
        self.conns[id].received.one(envelope.len);
        match self.matcher.take_posted(&envelope) {
            Some(recv) if !only_tag(&recv) => self.fetches.fetch(
                &mut self.matcher,
                &mut self.conns,
                recv,
                envelope,
                id,
                *header,
                segments,
            ),
            // The message is not wanted, and its sender is done with it.
            None if self.matcher.drops(&envelope) => self.conns.not_wanted(id, header.msg_id),
            None if self.matcher.is_too_much(&envelope, MAX_OF_UNKNOWN_PEERS) => self.too_much(id),
            matched => {
                self.conns[id].announced += 1;
                let early = PartialUnexpected::None;
                self.fetches.buffer_unexpected(
                    &mut self.matcher,
                    &mut self.conns,
                    envelope,
                    RxmUnexpected::AtSender { conn: id, header: *header, segments, early },
                    matched,
                );
            }
        }
        Ok(())
    }

    /// Reports a peer's write to local memory with data for the completion queue.
    pub(super) fn peer_wrote(&mut self, done: &Done) {
        if done.flags & FI_REMOTE_CQ_DATA == 0 {
            return;
        }
        if self.parked.is_empty() && self.matcher.completions.has_space() {
            self.report_written(done.data, done.len);
        } else {
            self.parked.push_back(Parked::Written(done.data, done.len));
        }
    }

    fn report_written(&self, data: u64, len: usize) {
        let flags = FI_RMA | FI_REMOTE_WRITE;
        self.matcher.completions.peer_notified(flags, len, data, FI_ADDR_NOTAVAIL);
    }
}
