//! Receiving: from the core's completed receives to messages in the application's buffers.
//!
//! A packet's payload is copied once, from the core's receive buffer to its target. An unexpected
//! message stays in its receive buffer, or is copied if it is small. A rendezvous message waits at
//! its sender.
use super::conn::{Partial, SegmentTarget, came_on};
use super::ep::RxmEngineEp;
use super::idle_closer;
use super::parked::ParkedPackets;
use super::pending::{
    HeaderlessMessage, MAX_UNEXPECTED, Parked, PartialUnexpected, RxmPacket, RxmUnexpected,
    only_tag,
};
use crate::provider::RXM;
use crate::wire::{Malformed, PacketKind, Parsed, RxmHeader, SegmentPart, read_segments};
use ofi_provider::abi::{FI_ADDR_NOTAVAIL, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_TAGGED};
use ofi_provider::core_provider::{CoreBuf, Done};
use ofi_provider::error::Error;
use ofi_provider::heap;
use ofi_provider::malformed;
use ofi_provider::reserved::{ONLY_TAG, WITH_DEVICES};
use ofi_provider::rx_matcher::{Envelope, Recv};
use ofi_provider::slab::NONE;

/// Memory limit in bytes of buffered messages of all unknown peers. Peers in the address vector
/// have the rest of [`MAX_UNEXPECTED`].
const MAX_OF_UNKNOWN_PEERS: usize = MAX_UNEXPECTED / 4 * 3;

/// Memory limit in bytes of early segments of an unknown peer.
const MAX_EARLY_OF_UNKNOWN_PEERS: usize = 16 << 20;

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
    /// Handles a completed receive of the core.
    #[inline]
    pub(super) fn packet_came(&mut self, conn: u32, done: Done) {
        let mut source = done.src;
        if conn == NONE {
            self.shared.note_used();
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
            self.shared.post(self.core.as_ref(), &mut self.conns, &self.matcher);
            return;
        }
        if done.flags & FI_REMOTE_WRITE != 0 {
            // Some cores use up a buffer for a write with remote CQ data.
            let written = Done { token: None, buf: None, ..done };
            self.parked.peer_wrote(&self.matcher, &written);
            let core = self.core.as_ref();
            self.shared.reuse(core, &mut self.conns, &self.matcher, conn, Some(buf));
            return;
        }
        let len = done.len.min(buf.len());
        let cq_data = (done.flags & FI_REMOTE_CQ_DATA != 0).then_some(done.data);
        let bare = HeaderlessMessage { tag: done.tag, cq_data };
        let bare = (done.flags & FI_TAGGED != 0).then_some(bare);
        // A packet that ends a transfer needs no room, and may make some.
        let waits = self.parked.must_wait(&self.matcher);
        let packet = RxmPacket { buf, len, conn, source, bare };
        if waits && (packet.bare.is_some() || !RxmHeader::is_control(&packet.buf[..len])) {
            self.parked.push(packet);
            return;
        }
        self.take_packet(packet);
    }

    /// Resumes taking messages left in the core for lack of space.
    #[inline]
    pub(super) fn go_on(&mut self) {
        if self.shared.is_short() && self.parked.is_empty() {
            self.shared.post(self.core.as_ref(), &mut self.conns, &self.matcher);
        }
    }

    /// Resumes packets blocked on space.
    #[cold]
    pub(super) fn unpark(&mut self) {
        while let Some(parked) = self.parked.pop(&self.matcher) {
            match parked {
                Parked::Packet(packet) => self.take_packet(packet),
                Parked::Written(data, len) => {
                    ParkedPackets::report_written(&self.matcher, data, len)
                }
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
        let core = self.core.as_ref();
        self.shared.reuse(core, &mut self.conns, &self.matcher, conn, left);
    }

    /// Handles a tagged message without a header.
    #[cold]
    fn bare_message(&mut self, bytes: &[u8], id: u32, bare: &HeaderlessMessage) {
        let envelope = Envelope {
            tagged: true,
            msg_tag: None,
            collective: self.matcher.rules.is_internal_tag(bare.tag),
            tag: bare.tag,
            len: bytes.len(),
            cq_data: bare.cq_data,
            peer: self.conns[id].peer,
        };
        self.conns[id].received.one(envelope.len);
        match self.matcher.take_posted(&envelope) {
            Some(recv) if recv.flags & (ONLY_TAG | WITH_DEVICES) == 0 => {
                recv.buf.copy_from(0, bytes);
                self.matcher.received(&recv, &envelope);
            }
            Some(recv) if !only_tag(&recv) => deliver_to_device(self, recv, envelope, bytes),
            None if self.matcher.senders.drops(&envelope) => {}
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
        let came = id;
        let Some(id) = self.conns.first_of(came) else { return Some(buf) };
        let result = match header.kind {
            PacketKind::Eager => {
                let envelope = match self.conns.envelope(&self.matcher, &header, id) {
                    Ok(envelope) => envelope,
                    Err(why) => {
                        self.malformed(id, why);
                        return Some(buf);
                    }
                };
                self.conns[id].received.one(envelope.len);
                match self.matcher.take_posted(&envelope) {
                    Some(recv) if recv.flags & (ONLY_TAG | WITH_DEVICES) == 0 => {
                        recv.buf.copy_from(0, payload);
                        self.matcher.received(&recv, &envelope);
                    }
                    Some(recv) if !only_tag(&recv) => {
                        deliver_to_device(self, recv, envelope, payload)
                    }
                    // No receive waits for the message, nor ever will.
                    None if self.matcher.senders.drops(&envelope) => {}
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
            PacketKind::Segment => {
                let mut result = self.segment(id, &header, payload);
                while result.is_ok() {
                    let Some(next) = self.conns.take_early(id, header.msg_id) else { break };
                    result = self.segment(id, &next.header, &next.payload);
                }
                result
            }
            PacketKind::RndvRequest => self.announcement(id, &header, payload),
            PacketKind::RndvReadDone | PacketKind::RndvWriteTo | PacketKind::AtomicResponse
                if self.conns.is_given_up(id) =>
            {
                Ok(())
            }
            PacketKind::RndvReadDone => {
                let known = self.tx.message_fetched(&mut self.conns, id, &header);
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
            PacketKind::Close => idle_closer::on_step(self, id, &header),
            PacketKind::Credit => self.conns.granted(came, header.ctrl_data),
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
        let conn = self.conns.first_of(conn).unwrap_or(conn);
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

    /// Handles a segment of a message.
    fn segment(&mut self, id: u32, header: &RxmHeader, payload: &[u8]) -> Parsed {
        if self.conns.is_early(id, header) {
            let is_unknown = self.peers.name_of(self.conns[id].peer) == FI_ADDR_NOTAVAIL;
            let most = if is_unknown { MAX_EARLY_OF_UNKNOWN_PEERS } else { MAX_UNEXPECTED };
            return self.conns.buffer_early(id, header, payload, most);
        }
        let envelope = self.conns.envelope(&self.matcher, header, id)?;
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
                    Some(recv) if !only_tag(&recv) => SegmentTarget::of(recv),
                    None if self.matcher.senders.drops(&envelope) => SegmentTarget::Nowhere,
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
        match &mut partial.target {
            SegmentTarget::Recv(recv) => {
                recv.buf.copy_from(done, payload);
            }
            SegmentTarget::Device(recv, copies) => {
                copies.add(&self.common, &recv.buf, done, payload);
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
            match partial.target {
                SegmentTarget::Recv(recv) => self.matcher.received(&recv, &of),
                SegmentTarget::Device(recv, copies) => {
                    self.fetches.copies.add(&mut self.matcher, recv, of, *copies);
                    self.look_now = true;
                }
                SegmentTarget::Buffered(_) | SegmentTarget::Nowhere => {}
            }
        }
        if self.fetches.has_reports() {
            self.fetches.report_due(&mut self.matcher, of.peer);
        }
        Ok(())
    }

    /// Handles the RTS of a rendezvous message.
    fn announcement(&mut self, id: u32, header: &RxmHeader, payload: &[u8]) -> Parsed {
        let envelope = self.conns.envelope(&self.matcher, header, id)?;
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
            None if self.matcher.senders.drops(&envelope) => {
                self.conns.not_wanted(id, header.msg_id)
            }
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
}

/// Starts the copies of a message to a receive in memory of a device.
#[cold]
fn deliver_to_device(ep: &mut RxmEngineEp, recv: Recv, envelope: Envelope, bytes: &[u8]) {
    ep.fetches.deliver(&mut ep.matcher, recv, envelope, bytes);
    ep.look_now = true;
}
