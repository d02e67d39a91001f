//! Endpoints with buffered receives, for programs of API version 1.x (fi_msg(3) there). Messages
//! are reported on arrival, or when they match a tag, and then claimed or discarded.
//!
//! If a message waits at its sender, the bytes to be reported with it are read first: all of a
//! message up to the endpoint's limit, and the start of a longer one. The messages of one peer are
//! reported in the order of arrival.
use super::conn::Token;
use super::ep::RxmEngineEp;
use super::pending::{Early, Fetch, Report, RxmUnexpected};
use crate::wire::{PacketKind, RxmHeader};
use ofi_provider::abi::FI_KEY_NOTAVAIL;
use ofi_provider::api::RecvOp;
use ofi_provider::buf::RecvBuf;
use ofi_provider::core_provider::CoreBuf;
use ofi_provider::cq::Context;
use ofi_provider::error::{Error, Result};
use ofi_provider::inbox::{About, Recv};

impl RxmEngineEp {
    /// Buffers a message. `met` is the posted tag matching the message, if receives are buffered
    /// and there is one.
    #[inline]
    pub(super) fn keep(&mut self, about: About, body: RxmUnexpected, met: Option<Recv>) -> u32 {
        let message = self.inbox.keep(about, body);
        if self.inbox.buffering().is_some() {
            self.kept(&about, message, met);
        }
        message
    }

    /// Called when a message was kept: it is to be reported, unless it waits for a tag.
    #[cold]
    fn kept(&mut self, about: &About, message: u32, met: Option<Recv>) {
        match met {
            Some(recv) => self.inbox.owe(about.queue(), message, recv.context),
            None if about.tagged && self.inbox.buffering().is_some() => return,
            None => {}
        }
        self.owe(about, message);
    }

    /// Posts a tag with its messages to be reported (fi_tagged(3), Buffered Tagged Receives).
    pub(crate) fn post_tag(&mut self, op: &RecvOp) {
        let Some((message, about)) = self.inbox.post_tag(op) else { return };
        self.inbox.owe(about.queue(), message, op.context);
        self.owe(&about, message);
    }

    /// Reports a message: now, or when enough of it is here and all messages of the same peer
    /// before it are reported.
    fn owe(&mut self, about: &About, message: u32) {
        let queue = about.queue();
        // From now on no receive and no other tag finds the message.
        self.inbox.hide(queue, message);
        self.fetch_early(about, message);
        if self.inbox.kept_about(queue, message).is_none() {
            // The message cannot be fetched and is lost: the next one may get its number.
            return;
        }
        if !self.reports.contains_key(&about.peer) && self.report_kept(queue, message) {
            return;
        }
        self.reports.entry(about.peer).or_default().push_back((queue, message));
    }

    /// Starts reading the bytes to be reported with a message, if they have not been received.
    fn fetch_early(&mut self, about: &About, message: u32) {
        let Some(wanted) = self.inbox.buffering().map(|buffering| buffering.wanted(about.len))
        else {
            return;
        };
        let queue = about.queue();
        let Some(RxmUnexpected::AtSender { conn, header, places, .. }) =
            self.inbox.kept_body(queue, message)
        else {
            return;
        };
        if wanted == 0 {
            return;
        }
        let (conn, header, places) = (*conn, *header, places.clone());
        let readable = places.as_slice().iter().all(|place| place.key != FI_KEY_NOTAVAIL);
        let state = if readable { Early::Coming(wanted) } else { Early::Unreadable };
        self.set_early(queue, message, state);
        if readable {
            let report = Report { queue, message, bytes: Vec::new() };
            let recv = Recv::new(RecvBuf::none(), Context::NULL, 0);
            let fetch = Fetch::new(recv, *about, conn, header, places);
            let fetch = Fetch { wanted, report: Some(report), ..fetch };
            let id = self.fetches.insert(fetch);
            self.start_fetch(id);
        }
    }

    fn set_early(&mut self, queue: usize, message: u32, state: Early) {
        self.inbox.change(queue, message, |body| {
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
        let mut places = fetch.places.as_slice()[fetch.next..].iter();
        let Some(skipped) = places.position(|place| place.len > 0) else {
            return Err(Error::PROTO);
        };
        let next = fetch.next + skipped;
        let mut place = fetch.places.as_slice()[next];
        place.len = place.len.min(left);
        let len = place.len as usize;
        let buf = common.domain.buffer(len, || common.key())?;
        let link = self.conns.get(fetch.conn).and_then(|conn| conn.ep.as_ref());
        let link = link.ok_or(Error::NOTCONN)?;
        link.read_own(buf, &[place], 0, Token::Fetch(id).to_u64()).map_err(|(error, _)| error)?;
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
    pub(super) fn early_done(&mut self, fetch: Fetch) {
        let Some(Report { queue, message, bytes }) = fetch.report else { return };
        let about = fetch.about;
        if let Some(error) = fetch.error {
            self.lose_kept(queue, message, error);
            return;
        }
        if bytes.len() < about.len {
            self.set_early(queue, message, Early::Here(bytes.into()));
        } else {
            // All of the message was fetched: its sender is done with it.
            self.inbox.change(queue, message, |body| *body = RxmUnexpected::Whole(bytes.into()));
            if let Some(conn) = self.conns.get_mut(fetch.conn) {
                conn.announced -= 1;
            }
            let mut done = RxmHeader::of(PacketKind::RndvReadDone, 0);
            done.msg_id = fetch.header.msg_id;
            self.send_control(fetch.conn, done, None);
        }
        self.report_due(about.peer);
    }

    /// Reports the messages of a peer with enough bytes received, in order.
    #[cold]
    pub(super) fn report_due(&mut self, peer: u32) {
        while let Some(reports) = self.reports.get(&peer) {
            match reports.front() {
                Some(&(queue, message)) => {
                    if !self.report_kept(queue, message) {
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
    fn report_kept(&mut self, queue: usize, message: u32) -> bool {
        let (Some(buffering), Some(body)) =
            (self.inbox.buffering(), self.inbox.kept_body(queue, message))
        else {
            return true;
        };
        let Some(about) = self.inbox.kept_about(queue, message) else { return true };
        let wanted = buffering.wanted(about.len);
        let long = buffering.is_long(about.len);
        let start = |bytes: &[u8]| Some(bytes[..wanted.min(bytes.len())].into());
        let start: Option<Box<[u8]>> = match body {
            RxmUnexpected::Whole(bytes) if long => start(bytes),
            RxmUnexpected::InPacket(..) if long => {
                let bytes = ofi_provider::inbox::UnexpectedBody::bytes(body);
                bytes.and_then(start)
            }
            RxmUnexpected::Whole(_) | RxmUnexpected::InPacket(..) => None,
            RxmUnexpected::Partial { bytes, .. } if long && bytes.len() >= wanted => start(bytes),
            RxmUnexpected::AtSender { early: Early::Here(bytes), .. } => start(bytes),
            // A sender that writes its messages gives no start of one.
            RxmUnexpected::AtSender { early: Early::Unreadable, .. } => start(&[]),
            RxmUnexpected::AtSender { early: Early::None, .. } if wanted == 0 => start(&[]),
            RxmUnexpected::Partial { .. } | RxmUnexpected::AtSender { .. } => return false,
            RxmUnexpected::Lost => return true,
        };
        let posted = self.inbox.buffering_mut().and_then(|b| b.take_owed(queue, message));
        self.inbox.announce(queue, message, start, posted);
        true
    }

    /// Ends a buffered message with missing bytes; the application is notified if it knows the
    /// message.
    pub(super) fn lose_kept(&mut self, queue: usize, message: u32, error: Error) {
        let about = self.inbox.kept_about(queue, message);
        self.inbox.lose(queue, message, |body| *body = RxmUnexpected::Lost, error);
        if let Some(About { peer, .. }) = about
            && let Some(reports) = self.reports.get_mut(&peer)
        {
            reports.retain(|of| *of != (queue, message));
            self.report_due(peer);
        }
    }
}
