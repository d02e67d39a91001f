//! Endpoints with buffered receives, for programs of API version 1.x (fi_msg(3) there). Messages
//! are reported on arrival, or when they match a tag, and then claimed or discarded.
//!
//! If a message waits at its sender, the bytes to be reported with it are read first: all of a
//! message up to the endpoint's limit, and the start of a longer one. The messages of one peer are
//! reported in the order of arrival.
use super::conn::Token;
use super::ep::RxmEngineEp;
use super::pending::{PartialUnexpected, RendezvousGet, Report, RxmUnexpected};
use crate::wire::{PacketKind, RxmHeader};
use ofi_provider::abi::FI_KEY_NOTAVAIL;
use ofi_provider::api::RecvOp;
use ofi_provider::buf::RecvBuf;
use ofi_provider::core_provider::CoreBuf;
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::rx_matcher::{Envelope, Recv};

impl RxmEngineEp {
    /// Buffers a message. `matched` is the posted tag matching the message, if receives are buffered
    /// and there is one.
    #[inline]
    pub(super) fn buffer_unexpected(
        &mut self,
        envelope: Envelope,
        body: RxmUnexpected,
        matched: Option<Recv>,
    ) -> u32 {
        let message = self.matcher.buffer_unexpected(envelope, body);
        if self.matcher.buffering().is_some() {
            self.buffered(&envelope, message, matched);
        }
        message
    }

    /// Called for a buffered message: it is to be reported, unless it waits for a tag.
    #[cold]
    fn buffered(&mut self, envelope: &Envelope, message: u32, matched: Option<Recv>) {
        match matched {
            Some(recv) => self.matcher.add_pending(envelope.queue(), message, recv.context),
            None if envelope.tagged && self.matcher.buffering().is_some() => return,
            None => {}
        }
        self.add_pending(envelope, message);
    }

    /// Posts a tag with its messages to be reported (fi_tagged(3), Buffered Tagged Receives).
    pub(crate) fn post_tag(&mut self, op: &RecvOp) {
        let Some((message, envelope)) = self.matcher.post_tag(op) else { return };
        self.matcher.add_pending(envelope.queue(), message, op.context);
        self.add_pending(&envelope, message);
    }

    /// Reports a message: now, or when enough of it is here and all messages of the same peer
    /// before it are reported.
    fn add_pending(&mut self, envelope: &Envelope, message: u32) {
        let queue = envelope.queue();
        // From now on no receive and no other tag finds the message.
        self.matcher.hide(queue, message);
        self.fetch_early(envelope, message);
        if self.matcher.buffered_envelope(queue, message).is_none() {
            // The message cannot be fetched and is lost: the next one may get its number.
            return;
        }
        if !self.reports.contains_key(&envelope.peer) && self.report_buffered(queue, message) {
            return;
        }
        self.reports.entry(envelope.peer).or_default().push_back((queue, message));
    }

    /// Starts reading the bytes to be reported with a message, if they have not been received.
    fn fetch_early(&mut self, envelope: &Envelope, message: u32) {
        let Some(wanted) = self.matcher.buffering().map(|buffering| buffering.wanted(envelope.len))
        else {
            return;
        };
        let queue = envelope.queue();
        let Some(RxmUnexpected::AtSender { conn, header, segments, .. }) =
            self.matcher.buffered_body(queue, message)
        else {
            return;
        };
        if wanted == 0 {
            return;
        }
        let (conn, header, segments) = (*conn, *header, segments.clone());
        let readable = segments.as_slice().iter().all(|segment| segment.key != FI_KEY_NOTAVAIL);
        let state = if readable {
            PartialUnexpected::Coming(wanted)
        } else {
            PartialUnexpected::Unreadable
        };
        self.set_early(queue, message, state);
        if readable {
            let report = Report { queue, message, bytes: Vec::new() };
            let recv = Recv::new(RecvBuf::none(), Context::NULL, 0);
            let fetch = RendezvousGet::new(recv, *envelope, conn, header, segments);
            let fetch = RendezvousGet { wanted, report: Some(report), ..fetch };
            let id = self.fetches.insert(fetch);
            self.start_fetch(id);
        }
    }

    fn set_early(&mut self, queue: usize, message: u32, state: PartialUnexpected) {
        self.matcher.change(queue, message, |body| {
            if let RxmUnexpected::AtSender { early, .. } = body {
                *early = state;
            }
        });
    }

    /// Requests the next part of the bytes to be reported with a message. Fails with -FI_EAGAIN if
    /// the core has no space.
    pub(super) fn advance_early(&mut self, id: u32) -> Result {
        let common = self.common.clone();
        let Some(fetch) = self.fetches.get_mut(id) else { return Ok(()) };
        if fetch.outstanding > 0 {
            return Ok(());
        }
        let left = (fetch.wanted - fetch.asked) as u64;
        let mut segments = fetch.segments.as_slice()[fetch.next..].iter();
        let Some(skipped) = segments.position(|segment| segment.len > 0) else {
            return Err(Error::PROTO);
        };
        let next = fetch.next + skipped;
        let mut segment = fetch.segments.as_slice()[next];
        segment.len = segment.len.min(left);
        let len = segment.len as usize;
        let buf = common.domain.buffer(len, || common.key())?;
        let link = self.conns.get(fetch.conn).and_then(|conn| conn.ep.as_ref());
        let link = link.ok_or(Error::NOTCONN)?;
        link.read_own(buf, &[segment], 0, Token::RendezvousGet(id).to_u64())
            .map_err(|(error, _)| error)?;
        (fetch.next, fetch.asked, fetch.outstanding) = (next + 1, fetch.asked + len, 1);
        Ok(())
    }

    /// Stores a part of the bytes to be reported with a message.
    pub(super) fn early_came(report: &mut Report, buf: Option<CoreBuf>) {
        if let Some(buf) = buf {
            report.bytes.extend_from_slice(&buf);
        }
    }

    /// Ends reading the bytes to be reported with a message: all of them have arrived, or will
    /// never arrive.
    pub(super) fn early_done(&mut self, fetch: RendezvousGet) {
        let Some(Report { queue, message, bytes }) = fetch.report else { return };
        let envelope = fetch.envelope;
        if let Some(error) = fetch.error {
            self.drop_buffered(queue, message, error);
            return;
        }
        if bytes.len() < envelope.len {
            self.set_early(queue, message, PartialUnexpected::Here(bytes.into()));
        } else {
            // All of the message was fetched: its sender is done with it.
            self.matcher.change(queue, message, |body| *body = RxmUnexpected::Whole(bytes.into()));
            if let Some(conn) = self.conns.get_mut(fetch.conn) {
                conn.announced -= 1;
            }
            let mut done = RxmHeader::of(PacketKind::RndvReadDone, 0);
            done.msg_id = fetch.header.msg_id;
            self.conns.send_control(fetch.conn, done, None);
        }
        self.report_due(envelope.peer);
    }

    /// Reports the messages of a peer with enough bytes received, in order.
    #[cold]
    pub(super) fn report_due(&mut self, peer: u32) {
        while let Some(reports) = self.reports.get(&peer) {
            match reports.front() {
                Some(&(queue, message)) => {
                    if !self.report_buffered(queue, message) {
                        return;
                    }
                    if let Some(reports) = self.reports.get_mut(&peer) {
                        reports.pop_front();
                    }
                }
                None => {
                    self.reports.remove(&peer);
                }
            }
        }
    }

    /// Reports a message if enough of it has been received. Returns true if the message is done:
    /// reported, or no longer buffered.
    fn report_buffered(&mut self, queue: usize, message: u32) -> bool {
        let (Some(buffering), Some(body)) =
            (self.matcher.buffering(), self.matcher.buffered_body(queue, message))
        else {
            return true;
        };
        let Some(envelope) = self.matcher.buffered_envelope(queue, message) else { return true };
        let wanted = buffering.wanted(envelope.len);
        let long = buffering.is_long(envelope.len);
        let start = |bytes: &[u8]| Some(bytes[..wanted.min(bytes.len())].into());
        let start: Option<Box<[u8]>> = match body {
            RxmUnexpected::Whole(bytes) if long => start(bytes),
            RxmUnexpected::InPacket(..) if long => {
                let bytes = ofi_provider::rx_matcher::UnexpectedBody::bytes(body);
                bytes.and_then(start)
            }
            RxmUnexpected::Whole(_) | RxmUnexpected::InPacket(..) => None,
            RxmUnexpected::Partial { bytes, .. } if long && bytes.len() >= wanted => start(bytes),
            RxmUnexpected::AtSender { early: PartialUnexpected::Here(bytes), .. } => start(bytes),
            // A sender that writes its messages gives no start of one.
            RxmUnexpected::AtSender { early: PartialUnexpected::Unreadable, .. } => start(&[]),
            RxmUnexpected::AtSender { early: PartialUnexpected::None, .. } if wanted == 0 => {
                start(&[])
            }
            RxmUnexpected::Partial { .. } | RxmUnexpected::AtSender { .. } => return false,
            RxmUnexpected::Lost => return true,
        };
        let posted = self.matcher.buffering_mut().and_then(|b| b.take_pending(queue, message));
        self.matcher.announce(queue, message, start, posted);
        true
    }

    /// Ends a buffered message with missing bytes; the application is notified if it knows the
    /// message.
    pub(super) fn drop_buffered(&mut self, queue: usize, message: u32, error: Error) {
        let envelope = self.matcher.buffered_envelope(queue, message);
        self.matcher.lose(queue, message, |body| *body = RxmUnexpected::Lost, error);
        if let Some(Envelope { peer, .. }) = envelope
            && let Some(reports) = self.reports.get_mut(&peer)
        {
            reports.retain(|of| *of != (queue, message));
            self.report_due(peer);
        }
    }
}
