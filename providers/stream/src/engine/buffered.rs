//! Endpoints with buffered receives, for programs of API version 1.x (fi_msg(3) there). Messages
//! are reported on arrival, or when they match a tag, and then claimed or discarded.
//!
//! A message up to the endpoint's limit is buffered and reported when it is complete. Of a longer
//! message only the start is read. The rest waits in its connection until the application supplies
//! a buffer. If the message waits for a tag it is buffered like any unexpected message.
use super::arrival::{Arrival, StreamUnexpected};
use super::ep::StreamEngineEp;
use super::incoming::{HeaderOutcome, MessageTarget, RxRequest};
use super::rx_path::RxPath;
use crate::transport::ShmTransport;
use ofi_provider::api::RecvOp;
use ofi_provider::buf::RecvBuf;
use ofi_provider::error::Result;
use ofi_provider::rx_matcher::{Envelope, Recv};

impl StreamEngineEp {
    /// Reports a completely buffered message, unless the endpoint waits for a matching tag.
    pub(super) fn is_whole(&mut self, envelope: &Envelope, id: u32) {
        let Some(buffering) = self.matcher.buffering.state_mut() else { return };
        let queue = envelope.queue();
        match buffering.take_pending(queue, id) {
            None if envelope.tagged => {}
            posted => self.matcher.announce(queue, id, None, posted),
        }
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Starts a message on an endpoint with buffered receives; `matched` is the matching posted tag.
    #[cold]
    pub(super) fn begin_buffered(
        &mut self,
        id: u32,
        envelope: Arrival,
        behind: &[u8],
        matched: Option<Recv>,
    ) -> Result<HeaderOutcome> {
        let started = self.keep_buffered(id, envelope, behind, matched.as_ref());
        if let (Err(error), Some(matched)) = (&started, matched) {
            // Without memory for the message the connection ends, and the tag's operation fails.
            let recv = Recv::new(RecvBuf::none(), matched.context, 0);
            self.tx.eps[envelope.ep].matcher.failed(&recv, &envelope, *error);
        }
        started
    }

    fn keep_buffered(
        &mut self,
        id: u32,
        envelope: Arrival,
        behind: &[u8],
        matched: Option<&Recv>,
    ) -> Result<HeaderOutcome> {
        let posted = matched.map(|recv| recv.context);
        let ep = &mut self.tx.eps[envelope.ep];
        let Some(buffering) = ep.matcher.buffering.state() else { return Ok(HeaderOutcome::Gone) };
        let queue = envelope.queue();
        let waits = posted.is_none() && envelope.tagged;
        if buffering.is_long(envelope.len) && !waits {
            let start = behind[..buffering.wanted(envelope.len).min(behind.len())].into();
            let message = ep.buffer_unexpected(&envelope, StreamUnexpected::Blocking)?;
            ep.matcher.announce(queue, message, Some(start), posted);
            let incoming =
                RxRequest { envelope, target: MessageTarget::Buffered(message), done: 0 };
            self.tx.io.conns[id].incoming = Some(incoming);
            return Ok(HeaderOutcome::Blocked);
        }
        let (message, started) = self.start_buffered(id, envelope, behind)?;
        let ep = &mut self.tx.eps[envelope.ep];
        if let Some(posted) = posted {
            ep.matcher.add_pending(queue, message, posted);
        }
        if matches!(started, HeaderOutcome::Taken(here) if here == envelope.len) {
            ep.is_whole(&envelope, message);
        }
        Ok(started)
    }

    /// Posts a tag with its messages to be reported (fi_tagged(3), Buffered Tagged Receives).
    pub(super) fn post_tag(&mut self, ep_id: u32, op: &RecvOp) {
        let matcher = &mut self.tx.eps[ep_id].matcher;
        let Some((id, envelope)) = matcher.post_tag(op) else { return };
        let (queue, posted) = (envelope.queue(), op.context);
        let (Some(buffering), Some(buffered)) =
            (matcher.buffering.state(), matcher.queues.buffered_body(queue, id))
        else {
            return;
        };
        // The bytes that are here: at least the start, which came with the header.
        let here = match &buffered.body {
            StreamUnexpected::Whole(bytes) | StreamUnexpected::Arriving(bytes) => &bytes[..],
            StreamUnexpected::Blocking => {
                let conn = self
                    .tx
                    .io
                    .conns
                    .get(buffered.conn)
                    .filter(|conn| conn.serial == buffered.serial);
                conn.map_or(&[][..], |conn| &conn.stash)
            }
            StreamUnexpected::AtSender(_) | StreamUnexpected::Lost(_) => &[],
        };
        let long = buffering.is_long(envelope.len);
        let start = long.then(|| here[..buffering.wanted(envelope.len).min(here.len())].into());
        if long || matches!(buffered.body, StreamUnexpected::Whole(_)) {
            matcher.announce(queue, id, start, Some(posted));
        } else {
            matcher.add_pending(queue, id, posted);
        }
    }
}
