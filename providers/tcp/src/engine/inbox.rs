//! Where receives and messages meet: an endpoint's own, or one that several
//! endpoints share (shared receive contexts, fi_endpoint(3)).
use super::conn::Conn;
use crate::config::config;
use ofi_provider::abi::{FI_ADDR_UNSPEC, fi_addr_t};
use ofi_provider::buf::zeroed;
use ofi_provider::error::{Error, Result};
use ofi_provider::matching::{Posted, Taken, Unexpected};
use ofi_provider::multi_recv::{MultiBufs, Recv};
use ofi_provider::slab::NONE;
use std::collections::{HashMap, VecDeque};

/// Memory that unexpected messages in one inbox may take before reading from their
/// senders stops, if the user says nothing else (FI_TCP_MAX_UNEXPECTED).
pub(crate) const MAX_UNEXPECTED: usize = 256 << 20;

/// Receives that several connections share and that messages of which only a part is
/// here leave to whole ones.
const SPARE_RECEIVES: usize = 8;

/// What an unexpected message costs beside its bytes: its place in tables that grow by
/// doubling, and what the allocator adds to its bytes.
pub(super) const MESSAGE_COST: usize = Unexpected::<Message>::COST + 32;

/// A peer may fill so many times what it leaves free: alone most of the room, with others
/// as much as each of them.
const GREED: usize = 4;

/// So much every peer with a name may have, whatever others have.
const SURE: usize = 32 << 10;

/// What strangers may fill of the room, in sum and each.
const ALL_STRANGERS: usize = 4;
const ONE_STRANGER: usize = 256;

/// Strangers without a connection whose messages are kept.
const MAX_LEFT: usize = 4096;

/// So much of a message is allocated before any of it is here.
const FIRST_ROOM: usize = 1 << 20;

/// So many times what is here then, when more comes.
const MORE_ROOM: usize = 4;

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

    /// Whose it is.
    pub(super) fn sender(&self) -> Sender {
        (self.ep, self.peer)
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
    /// Room for a message of `len` bytes of which these are here. A peer that announces
    /// much gets memory as it sends it. -FI_ENOMEM if there is none.
    pub(super) fn arriving(len: usize, here: &[u8]) -> Result<Self> {
        let mut room = zeroed(len.min(FIRST_ROOM.max(here.len())))?;
        room[..here.len()].copy_from_slice(here);
        Ok(Self::Arriving(room))
    }

    /// Bytes kept here, now or when all of a message is.
    fn kept(&self, len: usize) -> usize {
        match self {
            Self::Whole(_) | Self::Arriving(_) => len,
            Self::Blocking | Self::AtSender(_) | Self::Lost => 0,
        }
    }
}

/// The room of a message of `len` bytes that has bytes up to `done`, behind these: all of
/// the rest, or as much as there is by now.
pub(super) fn room_behind(room: &mut Box<[u8]>, done: usize, len: usize) -> Result<&mut [u8]> {
    if done == room.len() && done < len {
        let mut more = zeroed(len.min(room.len() * MORE_ROOM).max(done + 1))?;
        more[..done].copy_from_slice(room);
        *room = more;
    }
    Ok(&mut room[done..])
}

/// A message that came before a receive for it.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) about: About,
    pub(super) body: Body,
    /// Among those of the same sender and queue.
    prev: u32,
    next: u32,
}

/// Who sent messages that are kept: an endpoint's number and its peer's.
type Sender = (u32, u32);

/// What is kept of one sender.
#[derive(Debug)]
struct Share {
    /// The youngest message in each queue.
    last: [u32; QUEUES],
    messages: usize,
    bytes: usize,
    stranger: bool,
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
    /// What the kept messages take, and those that are collected; of these those of
    /// strangers; and the most.
    bytes: usize,
    strangers: usize,
    most: usize,
    shares: HashMap<Sender, Share>,
    /// Strangers that left messages behind and have no connection, oldest first.
    left: VecDeque<Sender>,
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
            strangers: 0,
            most: config().max_unexpected,
            shares: HashMap::new(),
            left: VecDeque::new(),
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

    /// Whether another message of `len` bytes of this sender's may be kept. Who is in no
    /// address vector gets little: his messages wait in his connection.
    pub(super) fn may_keep(&self, sender: Sender, stranger: bool, len: usize) -> bool {
        let cost = len.saturating_add(MESSAGE_COST);
        let free = self.most.saturating_sub(self.bytes);
        let has = self.shares.get(&sender).map_or(0, |share| share.bytes);
        let sum = has.saturating_add(cost);
        if !stranger && sum <= SURE {
            return true;
        }
        if cost > free {
            return false;
        }
        if !stranger {
            return sum <= free.saturating_mul(GREED);
        }
        let free = (self.most / ALL_STRANGERS).saturating_sub(self.strangers);
        cost <= free && sum <= free.min(self.most / ONE_STRANGER).max(MESSAGE_COST)
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
        let collects = self.longest > 0 && self.has_room(len);
        if collects {
            self.bytes += MESSAGE_COST + len;
        }
        Ok(collects)
    }

    /// A message that was collected is whole, or will never be.
    pub(super) fn collected(&mut self, len: usize) {
        self.bytes -= MESSAGE_COST + len;
    }

    /// Whether there is room for a message of `len` bytes, whoever sends it.
    fn has_room(&self, len: usize) -> bool {
        self.most.saturating_sub(self.bytes) >= len.saturating_add(MESSAGE_COST)
    }

    /// Whether another message that waits at its sender may be noted: each connection has
    /// 255 at most.
    pub(super) fn may_note(&self) -> bool {
        self.has_room(0)
    }

    /// Keeps a message until a receive takes it; its number. `src`: its sender, as receives
    /// name him.
    pub(super) fn keep(
        &mut self,
        about: About,
        src: fi_addr_t,
        stranger: bool,
        body: Body,
    ) -> Result<u32> {
        let queue = about.queue();
        let unexpected = &mut self.unexpected[queue];
        self.shares.try_reserve(1).map_err(|_| Error::NOMEM)?;
        unexpected.reserve()?;
        let share = self.shares.entry(about.sender()).or_insert(Share {
            last: [NONE; QUEUES],
            messages: 0,
            bytes: 0,
            stranger,
        });
        let cost = MESSAGE_COST + body.kept(about.len);
        let prev = share.last[queue];
        let id = unexpected.push(about.tag, src, Message { about, body, prev, next: NONE });
        share.last[queue] = id;
        if let Some(before) = unexpected.get_mut(prev) {
            before.next = id;
        }
        share.messages += 1;
        share.bytes += cost;
        self.bytes += cost;
        self.strangers += if share.stranger { cost } else { 0 };
        Ok(id)
    }

    /// Replaces the body of a kept message.
    pub(super) fn set_body(&mut self, queue: usize, id: u32, body: Body) {
        let Some(message) = self.unexpected[queue].get_mut(id) else { return };
        let (sender, len) = (message.about.sender(), message.about.len);
        let (before, now) = (message.body.kept(len), body.kept(len));
        message.body = body;
        if let Some(share) = self.shares.get_mut(&sender) {
            share.bytes = share.bytes + now - before;
            self.bytes = self.bytes + now - before;
            if share.stranger {
                self.strangers = self.strangers + now - before;
            }
        }
    }

    /// Takes a kept message out for good.
    pub(super) fn remove(&mut self, queue: usize, id: u32) -> Option<Message> {
        let unexpected = &mut self.unexpected[queue];
        let message = unexpected.remove(id)?;
        let (prev, next) = (message.prev, message.next);
        if let Some(before) = unexpected.get_mut(prev) {
            before.next = next;
        }
        if let Some(behind) = unexpected.get_mut(next) {
            behind.prev = prev;
        }
        let cost = MESSAGE_COST + message.body.kept(message.about.len);
        self.bytes -= cost;
        let sender = message.about.sender();
        if let Some(share) = self.shares.get_mut(&sender) {
            if next == NONE {
                share.last[queue] = prev;
            }
            share.messages -= 1;
            share.bytes -= cost;
            self.strangers -= if share.stranger { cost } else { 0 };
            if share.messages == 0 {
                self.shares.remove(&sender);
            }
        }
        Some(message)
    }

    /// Whether somebody claimed this message by a peek.
    pub(super) fn is_claimed(&self, queue: usize, id: u32) -> bool {
        queue == 1 && self.claimed.values().any(|claimed| *claimed == id)
    }

    /// What is kept of a sender, by queue and number, youngest first.
    pub(super) fn kept_of(&self, sender: Sender) -> Vec<(usize, u32)> {
        let Some(share) = self.shares.get(&sender) else { return Vec::new() };
        let mut kept = Vec::new();
        for (queue, last) in share.last.into_iter().enumerate() {
            let mut id = last;
            while let Some(message) = self.unexpected[queue].get(id) {
                kept.push((queue, id));
                id = message.prev;
            }
        }
        kept
    }

    /// A sender of whom messages may be kept has another name, or is a stranger now.
    pub(super) fn rename(&mut self, sender: Sender, src: fi_addr_t, stranger: bool) {
        let Some(share) = self.shares.get_mut(&sender) else { return };
        match (share.stranger, stranger) {
            (false, true) => self.strangers += share.bytes,
            (true, false) => self.strangers -= share.bytes,
            _ => {}
        }
        share.stranger = stranger;
        for (queue, id) in self.kept_of(sender) {
            self.unexpected[queue].set_source(id, src);
        }
    }

    /// A stranger has no connection any more. What he said stays for a while: he may
    /// have gone because all was said.
    pub(super) fn leaves(&mut self, sender: Sender) {
        if self.shares.get(&sender).is_some_and(|share| share.stranger) {
            self.left.push_back(sender);
        }
    }

    /// The stranger whose messages are to make room: who left first of those that `gone`
    /// knows to be without a connection still.
    pub(super) fn oldest_left(&mut self, gone: impl Fn(Sender) -> bool) -> Option<Sender> {
        while let Some(sender) = self.left.pop_front() {
            if self.shares.get(&sender).is_some_and(|share| share.stranger) && gone(sender) {
                return Some(sender);
            }
        }
        None
    }

    /// Whether more strangers left messages than are kept.
    pub(super) fn too_many_left(&self) -> bool {
        self.left.len() > MAX_LEFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(peer: u32, tag: u64, len: usize) -> About {
        About {
            tagged: true,
            msg_tag: None,
            collective: false,
            tag,
            len,
            cq_data: None,
            ack: false,
            commit: false,
            ep: 0,
            peer,
            conn: peer,
            serial: 0,
        }
    }

    /// Fills an inbox with messages of a peer; how many it took.
    fn fill(inbox: &mut Inbox, peer: u32, stranger: bool, len: usize) -> usize {
        let mut count = 0;
        while inbox.may_keep((0, peer), stranger, len) {
            let body = Body::Whole(vec![0; 0].into_boxed_slice());
            inbox.keep(about(peer, count as u64, len), peer.into(), stranger, body).unwrap();
            count += 1;
        }
        count
    }

    fn inbox() -> Inbox {
        Inbox { most: MAX_UNEXPECTED, ..Inbox::new(false) }
    }

    #[test]
    fn one_peer_gets_most_of_the_room_and_others_still_some() {
        let mut inbox = inbox();
        assert!(fill(&mut inbox, 1, false, 1000) * 1000 > MAX_UNEXPECTED / 2);
        for peer in 2..100 {
            assert!(inbox.may_keep((0, peer), false, 64), "peer {peer}");
            fill(&mut inbox, peer, false, 1000);
        }
        assert!(inbox.bytes <= MAX_UNEXPECTED + 100 * SURE);
        // A hundred thousand small messages of a peer are nothing special.
        const { assert!(MESSAGE_COST * 100_000 < MAX_UNEXPECTED / 2) };
    }

    #[test]
    fn strangers_leave_the_room_to_peers_with_names() {
        let mut inbox = inbox();
        for peer in 0..1000 {
            fill(&mut inbox, peer, true, 8);
            assert!(inbox.shares.get(&(0, peer)).is_none_or(|s| s.bytes <= MAX_UNEXPECTED / 256));
        }
        assert!(inbox.bytes <= MAX_UNEXPECTED / 4);
        assert!(inbox.may_keep((0, 2000), false, 100 << 20));
        inbox.rename((0, 0), 7, false);
        assert!(inbox.may_keep((0, 0), false, 100 << 20), "it has a name now");
    }

    #[test]
    fn all_of_a_sender_and_nothing_else_is_found_without_a_look_at_others() {
        let mut inbox = inbox();
        let mut ids = Vec::new();
        for n in 0..100u64 {
            let body = Body::Whole(Box::default());
            ids.push(inbox.keep(about(n as u32 % 3, n, 0), 0, false, body).unwrap());
        }
        // Some go, from the ends and the middle of the sender's list.
        for gone in [0, 3, 51, 99] {
            assert!(inbox.remove(1, ids[gone]).is_some());
        }
        let mut left: Vec<_> = inbox.kept_of((0, 0)).into_iter().map(|(_, id)| id).collect();
        left.reverse();
        let wanted: Vec<_> =
            (0..100).step_by(3).filter(|n| ![0, 3, 51, 99].contains(n)).map(|n| ids[n]).collect();
        assert_eq!(left, wanted);
        for (queue, id) in inbox.kept_of((0, 0)) {
            inbox.remove(queue, id);
        }
        assert!(inbox.kept_of((0, 0)).is_empty());
        assert_eq!(inbox.shares.len(), 2);
        let rest: Vec<_> = [1, 2].into_iter().flat_map(|peer| inbox.kept_of((0, peer))).collect();
        for (queue, id) in rest {
            inbox.remove(queue, id);
        }
        assert_eq!((inbox.bytes, inbox.strangers, inbox.shares.len()), (0, 0, 0));
    }

    #[test]
    fn a_large_message_gets_its_room_as_it_comes() {
        let len = 100 << 20;
        let Body::Arriving(mut room) = Body::arriving(len, &[7; 100]).unwrap() else { panic!() };
        let (mut done, mut grown) = (100, 0);
        while done < len {
            let size = room.len();
            assert!(size <= (done * MORE_ROOM).max(FIRST_ROOM));
            let here = room_behind(&mut room, done, len).unwrap().len().min(60_000);
            done += here;
            grown += usize::from(room.len() != size);
        }
        assert_eq!((room.len(), &room[..101]), (len, &[&[7; 100][..], &[0]].concat()[..]));
        assert!(grown <= 4);
    }
}
