//! Endpoints with buffered receives, for programs of API version 1.x (fi_msg(3) there). Messages
//! are reported on arrival, or when they match a tag, and then claimed or discarded.
//!
//! A message up to the endpoint's limit is buffered and reported when it is complete. Of a longer
//! message only the start is read. The rest waits in its connection until the application supplies
//! a buffer. If the message waits for a tag it is buffered like any unexpected message.
use super::arrival::{Arrival, StreamUnexpected};
use super::ep::StreamEngineEp;
use super::incoming::{Begun, Incoming, MessageTarget};
use super::state::StreamState;
use crate::net::Net;
use ofi_provider::api::RecvOp;
use ofi_provider::buf::RecvBuf;
use ofi_provider::error::Result;
use ofi_provider::inbox::{About, Recv};

impl StreamEngineEp {
    /// Reports a completely buffered message, unless the endpoint waits for a matching tag.
    pub(super) fn is_whole(&mut self, about: &About, id: u32) {
        let Some(buffering) = self.inbox.buffering_mut() else { return };
        let queue = about.queue();
        match buffering.take_owed(queue, id) {
            None if about.tagged => {}
            posted => self.inbox.announce(queue, id, None, posted),
        }
    }
}

impl<N: Net> StreamState<N> {
    /// Starts a message on an endpoint with buffered receives; `met` is the matching posted tag.
    #[cold]
    pub(super) fn begin_buffered(
        &mut self,
        id: u32,
        about: Arrival,
        behind: &[u8],
        met: Option<Recv>,
    ) -> Result<Begun> {
        let begun = self.keep_buffered(id, about, behind, met.as_ref());
        if let (Err(error), Some(met)) = (&begun, met) {
            // Without memory for the message the connection ends, and the tag's operation fails.
            let recv = Recv::new(RecvBuf::none(), met.context, 0);
            self.eps[about.ep].inbox.failed(&recv, &about, *error);
        }
        begun
    }

    fn keep_buffered(
        &mut self,
        id: u32,
        about: Arrival,
        behind: &[u8],
        met: Option<&Recv>,
    ) -> Result<Begun> {
        let posted = met.map(|recv| recv.context);
        let ep = &mut self.eps[about.ep];
        let Some(buffering) = ep.inbox.buffering() else { return Ok(Begun::Gone) };
        let queue = about.queue();
        let waits = posted.is_none() && about.tagged;
        if buffering.is_long(about.len) && !waits {
            let start = behind[..buffering.wanted(about.len).min(behind.len())].into();
            let message = ep.keep(&about, StreamUnexpected::Blocking)?;
            ep.inbox.announce(queue, message, Some(start), posted);
            let incoming = Incoming { about, target: MessageTarget::Kept(message), done: 0 };
            self.conns[id].incoming = Some(incoming);
            return Ok(Begun::Blocked);
        }
        let (message, begun) = self.begin_kept(id, about, behind)?;
        let ep = &mut self.eps[about.ep];
        if let Some(posted) = posted {
            ep.inbox.owe(queue, message, posted);
        }
        if matches!(begun, Begun::Taken(here) if here == about.len) {
            ep.is_whole(&about, message);
        }
        Ok(begun)
    }

    /// Posts a tag with its messages to be reported (fi_tagged(3), Buffered Tagged Receives).
    pub(super) fn post_tag(&mut self, ep_id: u32, op: &RecvOp) {
        let inbox = &mut self.eps[ep_id].inbox;
        let Some((id, about)) = inbox.post_tag(op) else { return };
        let (queue, posted) = (about.queue(), op.context);
        let (Some(buffering), Some(kept)) = (inbox.buffering(), inbox.kept_body(queue, id)) else {
            return;
        };
        // The bytes that are here: at least the start, which came with the header.
        let here = match &kept.body {
            StreamUnexpected::Whole(bytes) | StreamUnexpected::Arriving(bytes) => &bytes[..],
            StreamUnexpected::Blocking => {
                let conn = self.conns.get(kept.conn).filter(|conn| conn.serial == kept.serial);
                conn.map_or(&[][..], |conn| &conn.stash)
            }
            StreamUnexpected::AtSender(_) | StreamUnexpected::Lost => &[],
        };
        let long = buffering.is_long(about.len);
        let start = long.then(|| here[..buffering.wanted(about.len).min(here.len())].into());
        if long || matches!(kept.body, StreamUnexpected::Whole(_)) {
            inbox.announce(queue, id, start, Some(posted));
        } else {
            inbox.owe(queue, id, posted);
        }
    }
}
