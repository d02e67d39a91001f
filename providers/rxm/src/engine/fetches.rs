//! Messages read from their senders, or written by them, and messages to be reported.
//!
//! Reports are those of endpoints with buffered receives, for programs of API version 1.x (fi_msg(3) there). Messages
//! are reported on arrival, or when they match a tag, and then claimed or discarded.
//!
//! If a message waits at its sender, the bytes to be reported with it are read first: all of a
//! message up to the endpoint's limit, and the start of a longer one. The messages of one peer are
//! reported in the order of arrival.
use super::common::Common;
use super::conn::{Partial, RxmConn, SegmentTarget, Token, Waiting};
use super::conns::RxmConns;
use super::device_copies::{DeviceCopies, MessageCopies};
use super::pending::{PartialUnexpected, RendezvousGet, Report, Reports, RxmUnexpected};
use super::transmit::is_end;
use crate::wire::{Malformed, PacketKind, Parsed, RxmHeader};
use ofi_provider::abi::{FI_KEY_NOTAVAIL, FI_READ, FI_REMOTE_WRITE, FI_WRITE};
use ofi_provider::api::{RecvOp, RemoteSegment, RemoteSegments};
use ofi_provider::buf::RecvBuf;
use ofi_provider::core_provider::CoreBuf;
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::peers::PeerTable;
use ofi_provider::rx_matcher::{Envelope, MatchedMessage, Recv, RxMatcher};
use ofi_provider::slab::{NONE, Slab};
use std::sync::Arc;

/// Messages of an endpoint being read from their senders, and messages to be reported.
pub(super) struct RxmFetches {
    common: Arc<Common>,
    fetches: Slab<RendezvousGet>,
    /// Messages to be reported, on an endpoint with buffered receives.
    reports: Reports,
    /// Messages with copies to memory of devices in progress.
    pub(super) copies: DeviceCopies,
}

impl RendezvousGet {
    /// Returns the connection for the reads.
    fn via(&mut self, conns: &mut RxmConns) -> u32 {
        if self.via == NONE {
            self.via =
                if conns.get(self.conn).is_some() { conns.spread(self.conn) } else { self.conn };
        }
        self.via
    }

    /// Handles a failed read on a connection ended without an event yet: the first connection is
    /// tried next.
    fn leave_via(&mut self, error: Error) -> Error {
        if self.via == self.conn || self.outstanding > 0 || !is_end(error) {
            return error;
        }
        self.via = self.conn;
        Error::AGAIN
    }
}

impl RxmFetches {
    pub(super) fn new(common: Arc<Common>) -> Self {
        let (fetches, copies) = (Slab::default(), DeviceCopies::default());
        Self { common, fetches, reports: Reports::new(), copies }
    }

    /// Returns the messages being read, each by its connection with its bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (u32, usize)> {
        self.fetches.iter().map(|(_, fetch)| (fetch.conn, fetch.wanted))
    }

    /// Returns true if messages are read over a further connection.
    pub(super) fn has_via(&self, conn: u32) -> bool {
        self.fetches.iter().any(|(_, fetch)| fetch.via == conn)
    }

    /// Starts the copies of a message to a receive in memory of a device.
    #[cold]
    pub(super) fn deliver(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        recv: Recv,
        envelope: Envelope,
        bytes: &[u8],
    ) {
        let mut copies = MessageCopies::default();
        copies.add(&self.common, &recv.buf, 0, bytes);
        self.copies.add(matcher, recv, envelope, copies);
    }

    /// Stores a buffered message in its receive, and reports it.
    fn store(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        recv: Recv,
        envelope: &Envelope,
        bytes: &[u8],
    ) {
        if recv.buf.is_device() {
            return self.deliver(matcher, recv, *envelope, bytes);
        }
        recv.buf.copy_from(0, bytes);
        matcher.received(&recv, envelope);
    }

    /// Returns true if messages wait to be reported.
    pub(super) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Fails the messages read over a closed connection.
    pub(super) fn fail_of(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        conn: u32,
        error: Error,
    ) {
        for fetch in self.fetches.indices(|fetch| fetch.conn == conn) {
            if let Some(fetch) = self.fetches.get_mut(fetch) {
                fetch.outstanding = 0;
            }
            self.fetch_failed(matcher, conns, fetch, error);
        }
    }

    /// Buffers a message. `matched` is the posted tag matching the message, if receives are buffered
    /// and there is one.
    #[inline]
    pub(super) fn buffer_unexpected(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        envelope: Envelope,
        body: RxmUnexpected,
        matched: Option<Recv>,
    ) -> u32 {
        let message = matcher.buffer_unexpected(envelope, body);
        if matcher.buffering.state().is_some() {
            self.buffered(matcher, conns, &envelope, message, matched);
        }
        message
    }

    /// Called for a buffered message: it is to be reported, unless it waits for a tag.
    #[cold]
    pub(super) fn buffered(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        envelope: &Envelope,
        message: u32,
        matched: Option<Recv>,
    ) {
        match matched {
            Some(recv) => matcher.add_pending(envelope.queue(), message, recv.context),
            None if envelope.tagged && matcher.buffering.state().is_some() => return,
            None => {}
        }
        self.add_pending(matcher, conns, envelope, message);
    }

    /// Posts a tag with its messages to be reported (fi_tagged(3), Buffered Tagged Receives).
    pub(super) fn post_tag(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        op: &RecvOp,
    ) {
        let Some((message, envelope)) = matcher.post_tag(op) else { return };
        matcher.add_pending(envelope.queue(), message, op.context);
        self.add_pending(matcher, conns, &envelope, message);
    }

    /// Reports a message: now, or when enough of it is here and all messages of the same peer
    /// before it are reported.
    pub(super) fn add_pending(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        envelope: &Envelope,
        message: u32,
    ) {
        let queue = envelope.queue();
        // From now on no receive and no other tag finds the message.
        matcher.queues.hide(queue, message);
        self.fetch_early(matcher, conns, envelope, message);
        if matcher.queues.buffered_envelope(queue, message).is_none() {
            // The message cannot be fetched and is lost: the next one may get its number.
            return;
        }
        if !self.reports.contains_key(&envelope.peer)
            && Self::report_buffered(matcher, queue, message)
        {
            return;
        }
        self.reports.entry(envelope.peer).or_default().push_back((queue, message));
    }

    /// Starts reading the bytes to be reported with a message, if they have not been received.
    pub(super) fn fetch_early(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        envelope: &Envelope,
        message: u32,
    ) {
        let Some(wanted) =
            matcher.buffering.state().map(|buffering| buffering.wanted(envelope.len))
        else {
            return;
        };
        let queue = envelope.queue();
        let Some(RxmUnexpected::AtSender { conn, header, segments, .. }) =
            matcher.queues.buffered_body(queue, message)
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
        Self::set_early(matcher, queue, message, state);
        if readable {
            let report = Report { queue, message, bytes: Vec::new() };
            let recv = Recv::new(RecvBuf::none(), Context::NULL, 0);
            let fetch = RendezvousGet::new(recv, *envelope, conn, header, segments);
            let fetch = RendezvousGet { wanted, report: Some(report), ..fetch };
            let id = self.fetches.insert(fetch);
            self.start_fetch(matcher, conns, id);
        }
    }

    pub(super) fn set_early(
        matcher: &mut RxMatcher<RxmUnexpected>,
        queue: usize,
        message: u32,
        state: PartialUnexpected,
    ) {
        matcher.change(queue, message, |body| {
            if let RxmUnexpected::AtSender { early, .. } = body {
                *early = state;
            }
        });
    }

    /// Requests the next part of the bytes to be reported with a message. Fails with -FI_EAGAIN if
    /// the core has no space.
    pub(super) fn advance_early(&mut self, conns: &mut RxmConns, id: u32) -> Result {
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
        let via = fetch.via(conns);
        let link = conns.get(via).and_then(|conn| conn.ep.as_ref());
        let link = link.ok_or(Error::NOTCONN)?;
        link.read_own(buf, &[segment], 0, Token::RendezvousGet(id).to_u64())
            .map_err(|(error, _)| fetch.leave_via(error))?;
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
    pub(super) fn early_done(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        fetch: RendezvousGet,
    ) {
        let Some(Report { queue, message, bytes }) = fetch.report else { return };
        let envelope = fetch.envelope;
        if let Some(error) = fetch.error {
            self.drop_buffered(matcher, queue, message, error);
            return;
        }
        if bytes.len() < envelope.len {
            Self::set_early(matcher, queue, message, PartialUnexpected::Here(bytes.into()));
        } else {
            // All of the message was fetched: its sender is done with it.
            matcher.change(queue, message, |body| *body = RxmUnexpected::Whole(bytes.into()));
            if let Some(conn) = conns.get_mut(fetch.conn) {
                conn.announced -= 1;
            }
            let mut done = RxmHeader::of(PacketKind::RndvReadDone, 0);
            done.msg_id = fetch.header.msg_id;
            conns.send_control(fetch.conn, done, None);
        }
        self.report_due(matcher, envelope.peer);
    }

    /// Reports the messages of a peer with enough bytes received, in order.
    #[cold]
    pub(super) fn report_due(&mut self, matcher: &mut RxMatcher<RxmUnexpected>, peer: u32) {
        while let Some(reports) = self.reports.get(&peer) {
            match reports.front() {
                Some(&(queue, message)) => {
                    if !Self::report_buffered(matcher, queue, message) {
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
    pub(super) fn report_buffered(
        matcher: &mut RxMatcher<RxmUnexpected>,
        queue: usize,
        message: u32,
    ) -> bool {
        let (Some(buffering), Some(body)) =
            (matcher.buffering.state(), matcher.queues.buffered_body(queue, message))
        else {
            return true;
        };
        let Some(envelope) = matcher.queues.buffered_envelope(queue, message) else { return true };
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
        let posted = matcher.buffering.state_mut().and_then(|b| b.take_pending(queue, message));
        matcher.announce(queue, message, start, posted);
        true
    }

    /// Ends a buffered message with missing bytes; the application is notified if it knows the
    /// message.
    pub(super) fn drop_buffered(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        queue: usize,
        message: u32,
        error: Error,
    ) {
        let envelope = matcher.queues.buffered_envelope(queue, message);
        matcher.lose(queue, message, |body| *body = RxmUnexpected::Lost, error);
        if let Some(Envelope { peer, .. }) = envelope {
            if let Some(reports) = self.reports.get_mut(&peer) {
                reports.retain(|of| *of != (queue, message));
                self.report_due(matcher, peer);
            }
        }
    }

    /// Begins to fetch an announced message to its receive.
    pub(super) fn fetch(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        recv: Recv,
        envelope: Envelope,
        conn: u32,
        header: RxmHeader,
        segments: RemoteSegments,
    ) {
        let unnamed = |segment: &RemoteSegment| segment.key == FI_KEY_NOTAVAIL;
        let by_write = self.common.config.rndv_write || segments.as_slice().iter().any(unnamed);
        let fetch = RendezvousGet {
            by_write,
            ..RendezvousGet::new(recv, envelope, conn, header, segments)
        };
        let id = self.fetches.insert(fetch);
        self.start_fetch(matcher, conns, id);
    }

    /// Requests a message, or more of it, now or when there is space.
    pub(super) fn start_fetch(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        id: u32,
    ) {
        let Some(conn) = self.fetches.get(id).map(|fetch| fetch.conn) else { return };
        if conns.is_ready_for_urgent(conn) {
            match self.advance_fetch(matcher, conns, id) {
                Ok(()) => return,
                Err(Error::AGAIN) => {}
                Err(error) => {
                    self.fetch_failed(matcher, conns, id, error);
                    return;
                }
            }
            conns.stall(conn);
        }
        conns[conn].urgent.push_back(Waiting::RendezvousGet(id));
    }

    /// Requests the parts of a message not requested yet. Fails with -FI_EAGAIN if the core has no
    /// space.
    pub(super) fn advance_fetch(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        id: u32,
    ) -> Result {
        let common = self.common.clone();
        let Some(fetch) = self.fetches.get_mut(id) else { return Ok(()) };
        let domain = &common.domain;
        if fetch.report.is_some() {
            return self.advance_early(conns, id);
        }
        if fetch.by_write && fetch.wanted > 0 {
            let part = fetch.recv.buf.part(0, fetch.wanted);
            fetch.regions = domain.register_recv(&part, FI_REMOTE_WRITE, || common.key())?;
            let mut segments = RemoteSegments::EMPTY;
            for region in &fetch.regions {
                let (addr, len) = (region.base(), region.len() as u64);
                segments.push(RemoteSegment { addr, len, key: region.key() })?;
            }
            fetch.outstanding = 1;
            let mut header = RxmHeader::of(PacketKind::RndvWriteTo, 0);
            header.msg_id = fetch.header.msg_id;
            header.ctrl_data = u64::from(id);
            let conn = fetch.conn;
            conns.send_control(conn, header, Some(&segments));
            return Ok(());
        }
        while fetch.asked < fetch.wanted {
            let Some(mut segment) = fetch.segments.as_slice().get(fetch.next).copied() else {
                break;
            };
            segment.len = segment.len.min((fetch.wanted - fetch.asked) as u64);
            let part = fetch.recv.buf.part(fetch.asked, segment.len as usize);
            let mut regions = Vec::new();
            if domain.wants_local() {
                regions = domain.register_recv(&part, FI_READ | FI_WRITE, || common.key())?;
            }
            let via = fetch.via(conns);
            let link = conns.get(via).and_then(|conn| conn.ep.as_ref());
            let link = link.ok_or(Error::NOTCONN)?;
            link.read(&part, &regions, &[segment], 0, Token::RendezvousGet(id).to_u64())
                .map_err(|error| fetch.leave_via(error))?;
            fetch.regions.append(&mut regions);
            fetch.outstanding += 1;
            fetch.asked += part.len();
            fetch.next += 1;
        }
        if fetch.outstanding == 0 {
            self.fetched(matcher, conns, id);
        }
        Ok(())
    }

    /// Called when a part of a message is here, or will never be.
    pub(super) fn fetch_part_done(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        id: u32,
        buf: Option<CoreBuf>,
        error: Option<Error>,
    ) {
        let Some(fetch) = self.fetches.get_mut(id) else { return };
        fetch.outstanding -= 1;
        fetch.error = fetch.error.or(error);
        if let Some(report) = &mut fetch.report {
            Self::early_came(report, buf);
        }
        if fetch.outstanding == 0 && (fetch.asked == fetch.wanted || fetch.error.is_some()) {
            self.fetched(matcher, conns, id);
        } else if fetch.report.is_some() {
            self.start_fetch(matcher, conns, id);
        }
    }

    /// Called when all parts of a message have been received: notifies the sender and the
    /// application.
    pub(super) fn fetched(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        id: u32,
    ) {
        let Some(fetch) = self.fetches.remove(id) else { return };
        // The buffer must not be registered any more when the application has it back.
        drop(fetch.regions);
        if fetch.report.is_some() {
            return self.early_done(matcher, conns, RendezvousGet { regions: Vec::new(), ..fetch });
        }
        // With its connection the sender learns of the failure anyway.
        let is_lost = |error| is_end(error) || error == Error::CANCELED;
        if (!fetch.by_write || fetch.wanted == 0) && !fetch.error.is_some_and(is_lost) {
            let header = RxmHeader::read_done(fetch.header.msg_id, fetch.error);
            conns.send_control(fetch.conn, header, None);
        }
        match fetch.error {
            Some(error) => matcher.failed(&fetch.recv, &fetch.envelope, error),
            None => matcher.received(&fetch.recv, &fetch.envelope),
        }
    }

    /// Fails the receive of a message after a failed read.
    pub(super) fn fetch_failed(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        id: u32,
        error: Error,
    ) {
        let Some(fetch) = self.fetches.get_mut(id) else { return };
        fetch.error = Some(error);
        if fetch.outstanding == 0 {
            self.fetched(matcher, conns, id);
        }
    }

    /// Handles a sender's notification of its completed write of the message.
    pub(super) fn written(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        conn: u32,
        header: &RxmHeader,
    ) -> Parsed {
        let mut fetches = self.fetches.iter();
        let found = fetches.find(|(_, fetch)| {
            // A sender can write only after it has received the address.
            let notified = fetch.by_write && fetch.outstanding > 0;
            fetch.conn == conn && notified && fetch.header.msg_id == header.msg_id
        });
        let Some((id, _)) = found else {
            return Err(Malformed("the end of a write that is none"));
        };
        drop(fetches);
        if let Some(fetch) = self.fetches.get_mut(id) {
            fetch.outstanding = 0;
        }
        self.fetched(matcher, conns, id);
        Ok(())
    }

    /// Delivers a buffered message to its matching receive, or drops it if there is none.
    pub(super) fn match_message(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        peers: &mut PeerTable<()>,
        matched: MatchedMessage,
    ) {
        let MatchedMessage { queue, message: number, recv, .. } = matched;
        let Some(buffered) = matcher.take_buffered(queue, number) else { return };
        let envelope = buffered.envelope;
        match buffered.body {
            RxmUnexpected::Whole(bytes) => {
                if let Some(recv) = recv {
                    self.store(matcher, recv, &envelope, &bytes);
                }
                peers.forget_if_unused(envelope.peer, matcher);
            }
            RxmUnexpected::InPacket(buf, len) => {
                if let Some(recv) = recv {
                    self.store(matcher, recv, &envelope, &buf[crate::wire::HEADER_LEN..len]);
                }
                conns.release(Some(buf));
                peers.forget_if_unused(envelope.peer, matcher);
            }
            RxmUnexpected::Partial { bytes, conn, msg_id } => {
                let Some(conn) = conns.get_mut(conn) else { return };
                let of = |partial: &&mut Partial| {
                    partial.msg_id == msg_id
                        && matches!(partial.target, SegmentTarget::Buffered(buffered) if buffered == number)
                };
                let Some(partial) = conn.partial.iter_mut().find(of) else { return };
                partial.target = match recv {
                    Some(recv) => {
                        let mut target = SegmentTarget::of(recv);
                        match &mut target {
                            SegmentTarget::Device(recv, copies) => {
                                copies.add(&self.common, &recv.buf, 0, &bytes);
                            }
                            SegmentTarget::Recv(recv) => _ = recv.buf.copy_from(0, &bytes),
                            SegmentTarget::Buffered(_) | SegmentTarget::Nowhere => {}
                        }
                        target
                    }
                    None => SegmentTarget::Nowhere,
                };
            }
            RxmUnexpected::AtSender { conn, header, segments, early: _ } => {
                if let Some(conn) = conns.get_mut(conn) {
                    conn.announced -= 1;
                }
                match recv {
                    Some(recv) => {
                        self.fetch(matcher, conns, recv, envelope, conn, header, segments)
                    }
                    // The message is not wanted, and its sender is done with it.
                    None => conns.not_wanted(conn, header.msg_id),
                }
            }
            RxmUnexpected::Lost => {
                if let Some(recv) = recv {
                    matcher.failed(&recv, &envelope, Error::CONNRESET);
                }
                peers.forget_if_unused(envelope.peer, matcher);
            }
        }
    }

    /// Drops the operations arriving on a closed connection.
    pub(super) fn lose_messages_of(
        &mut self,
        matcher: &mut RxMatcher<RxmUnexpected>,
        conns: &mut RxmConns,
        (id, conn): (u32, &mut RxmConn),
        error: Error,
    ) {
        let mut waits = conn.announced > 0;
        for partial in conn.partial.drain(..) {
            waits |= matches!(partial.target, SegmentTarget::Buffered(_));
            match partial.target {
                SegmentTarget::Recv(recv) => matcher.failed(&recv, &partial.envelope, error),
                SegmentTarget::Device(recv, copies) => {
                    // The copies end before the application gets its buffer back.
                    drop(copies);
                    matcher.failed(&recv, &partial.envelope, error);
                }
                SegmentTarget::Buffered(_) | SegmentTarget::Nowhere => {}
            }
        }
        self.fail_of(matcher, conns, id, error);
        // Buffered messages are searched only if some wait.
        let buffered = if waits { matcher.buffered_from(conn.peer) } else { Vec::new() };
        for (queue, number) in buffered {
            let lost = |body: &RxmUnexpected| match body {
                RxmUnexpected::Partial { conn, .. } | RxmUnexpected::AtSender { conn, .. } => {
                    *conn == id
                }
                _ => false,
            };
            if matcher.queues.buffered_as(queue, number, lost) == Some(true) {
                self.drop_buffered(matcher, queue, number, error);
            }
        }
    }
}
