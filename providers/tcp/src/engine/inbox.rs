//! Where receives and messages meet: an endpoint's own, or one that several
//! endpoints share (shared receive contexts, fi_endpoint(3)).
use super::conn::Conn;
use ofi_provider::abi::{FI_ADDR_UNSPEC, fi_addr_t};
use ofi_provider::error::{Error, Result};
use ofi_provider::matching::{Posted, Taken, Unexpected};
use ofi_provider::multi_recv::{MultiBufs, Recv};
use std::collections::HashMap;

/// Memory that unexpected messages in one inbox may take before reading from
/// their senders stops.
pub(super) const MAX_UNEXPECTED: usize = 256 << 20;

/// Receives that several connections share and that messages of which only a part is
/// here leave to whole ones.
const SPARE_RECEIVES: usize = 8;

/// What a small unexpected message costs beside its bytes.
const MESSAGE_COST: usize = 128;

/// Room below which a multi-receive buffer is given back, if not set
/// (FI_OPT_MIN_MULTI_RECV).
const MIN_MULTI_RECV: usize = 16384;

/// What a message is, as completions report it.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) tagged: bool,
    /// The tag of a message that is received as what has none (`Op::TaggedMsg`).
    pub(super) msg_tag: Option<u64>,
    /// It belongs to a collective operation.
    pub(super) collective: bool,
    pub(super) tag: u64,
    /// Its bytes in all.
    pub(super) len: usize,
    pub(super) cq_data: Option<u64>,
    /// Its sender waits for an acknowledgement.
    pub(super) ack: bool,
    /// It wants what was written to be durable first.
    pub(super) commit: bool,
    /// The endpoint it came to, which reports it.
    pub(super) ep: u32,
    /// Who sent it.
    pub(super) peer: u32,
    /// The connection it came on, and that connection's serial number, because
    /// its index may be another's by now.
    pub(super) conn: u32,
    pub(super) serial: u64,
}

impl About {
    /// Of a message with nothing special to it, which came on connection `id`.
    pub(super) fn plain(tagged: bool, tag: u64, len: usize, conn: &Conn, id: u32) -> Self {
        Self {
            tagged,
            msg_tag: None,
            collective: false,
            tag,
            len,
            cq_data: None,
            ack: false,
            commit: false,
            ep: conn.ep,
            peer: conn.peer,
            conn: id,
            serial: conn.serial,
        }
    }

    /// Which of the inbox's pairs it belongs to.
    #[inline]
    pub(super) fn queue(&self) -> usize {
        usize::from(self.tagged) + usize::from(self.collective)
    }
}

/// How many pairs of posted receives and unexpected messages an inbox has.
pub(super) const QUEUES: usize = 3;

/// How much of a message that came unexpectedly is here.
#[derive(Debug)]
pub(super) enum Body {
    /// All of it.
    Whole(Box<[u8]>),
    /// It is arriving.
    Arriving(Box<[u8]>),
    /// It blocks its connection.
    Blocking,
    /// It waits at its sender, under this number.
    AtSender(u8),
    /// Its connection ended before it was complete.
    Lost,
}

impl Body {
    /// Bytes kept here.
    fn kept(&self) -> usize {
        match self {
            Self::Whole(bytes) | Self::Arriving(bytes) => bytes.len(),
            Self::Blocking | Self::AtSender(_) | Self::Lost => 0,
        }
    }
}

/// A message that came before a receive for it.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) about: About,
    pub(super) body: Body,
}

/// Receives that wait for messages, and messages that wait for receives. All
/// pairs are untagged, tagged, and those of collective operations.
#[derive(Debug)]
pub(super) struct Inbox {
    /// More than one endpoint may use it.
    pub(super) shared: bool,
    pub(super) posted: [Posted<Recv>; QUEUES],
    pub(super) unexpected: [Unexpected<Message>; QUEUES],
    /// Tagged messages claimed by FI_PEEK, by the context that claimed them.
    pub(super) claimed: HashMap<usize, u32>,
    pub(super) min_multi_recv: usize,
    /// What the kept messages take, and those that are collected.
    bytes: usize,
    /// The longest receive that a message was to be collected for ([`Inbox::collects`]).
    longest: usize,
    pub(super) multi: MultiBufs,
}

impl Inbox {
    pub(super) fn new(shared: bool) -> Self {
        Self {
            shared,
            posted: Default::default(),
            unexpected: Default::default(),
            claimed: HashMap::new(),
            min_multi_recv: MIN_MULTI_RECV,
            bytes: 0,
            longest: 0,
            multi: MultiBufs::default(),
        }
    }

    /// The posted receive for a message from `src`, oldest first. Of a
    /// multi-receive buffer it gives the part the message needs.
    pub(super) fn take_posted(&mut self, src: fi_addr_t, about: &About) -> Option<Recv> {
        let taken = self.posted[about.queue()].take(src, about.tag)?;
        Some(self.part_of(taken, about))
    }

    /// What a message needs of the receive that was taken for it: all, or a part
    /// if it is a multi-receive buffer, of which the rest is put back.
    pub(super) fn part_of(&mut self, taken: Taken<Recv>, about: &About) -> Recv {
        let posted = &mut self.posted[about.queue()];
        self.multi.part_of(posted, taken, about.len, self.min_multi_recv)
    }

    /// Whether another message of `len` bytes may be kept.
    pub(super) fn may_keep(&self, len: usize) -> bool {
        self.bytes.saturating_add(len).saturating_add(MESSAGE_COST) <= MAX_UNEXPECTED
    }

    /// Whether a message of which only a part is here is to be collected until it is whole,
    /// before it takes a receive: others, whose messages are whole, must not wait for its
    /// rest, which may never come. Nothing is collected while receives are plenty. An error
    /// if no receive is as long, so that it is none of those that are wanted.
    pub(super) fn collects(&mut self, len: usize) -> Result<bool> {
        let posted = &self.posted[0];
        if posted.len() > SPARE_RECEIVES {
            return Ok(false);
        }
        if let Some(recv) = posted.first(FI_ADDR_UNSPEC, 0) {
            self.longest = self.longest.max(recv.buf.len());
        }
        if len > self.longest && self.longest > 0 {
            return Err(Error::PROTO);
        }
        let collects = self.longest > 0 && self.may_keep(len);
        if collects {
            self.bytes += MESSAGE_COST + len;
        }
        Ok(collects)
    }

    /// A message that was collected is whole, or will never be.
    pub(super) fn collected(&mut self, len: usize) {
        self.bytes -= MESSAGE_COST + len;
    }

    /// Keeps a message until a receive takes it; its number.
    pub(super) fn keep(&mut self, about: About, body: Body) -> u32 {
        self.bytes += MESSAGE_COST + body.kept();
        let queue = about.queue();
        self.unexpected[queue].push(about.tag, Message { about, body })
    }

    /// Replaces the body of a kept message.
    pub(super) fn set_body(&mut self, queue: usize, id: u32, body: Body) {
        if let Some(message) = self.unexpected[queue].get_mut(id) {
            self.bytes += body.kept();
            self.bytes -= message.body.kept();
            message.body = body;
        }
    }

    /// Takes a kept message out for good.
    pub(super) fn remove(&mut self, queue: usize, id: u32) -> Option<Message> {
        let message = self.unexpected[queue].remove(id)?;
        self.bytes -= MESSAGE_COST + message.body.kept();
        Some(message)
    }

    /// Whether somebody claimed this message by a peek.
    pub(super) fn is_claimed(&self, queue: usize, id: u32) -> bool {
        queue == 1 && self.claimed.values().any(|claimed| *claimed == id)
    }
}
