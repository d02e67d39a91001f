//! Where receives and messages meet: an endpoint's own, or one that several
//! endpoints share (shared receive contexts, fi_endpoint(3)).
use super::conn::Conn;
use super::net::Net;
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

/// While no more receives than this are posted to a shared receive context, a message of which
/// only a part is here does not take one, so that complete messages find some.
const SPARE_RECEIVES: usize = 8;

/// Bytes of memory that an unexpected message costs beside its own: its place in tables that
/// grow by doubling, and what the allocator adds.
pub(super) const MESSAGE_COST: usize = Unexpected::<Message>::COST + 32;

/// A peer's kept messages may take up to so many times the bytes that are free beside all of
/// them: a peer alone gets most of the room, several get equal shares.
const GREED: usize = 4;

/// Bytes of kept messages that every peer with a name may have, whatever others have.
const SURE: usize = 32 << 10;

/// Strangers may take this fraction of the room for kept messages: a quarter in sum
/// (`ALL_STRANGERS`), a 256th each (`ONE_STRANGER`).
const ALL_STRANGERS: usize = 4;
const ONE_STRANGER: usize = 256;

/// Most strangers without a connection whose messages are kept.
const MAX_LEFT: usize = 4096;

/// Most bytes that are allocated for an unexpected message before any of it is here.
const FIRST_ROOM: usize = 1 << 20;

/// When more of an unexpected message comes, its room grows to so many times what is here.
const MORE_ROOM: usize = 4;

/// Default of FI_OPT_MIN_MULTI_RECV: a multi-receive buffer is given back when less than this is
/// left of it, in bytes.
const MIN_MULTI_RECV: usize = 16384;

/// What a message is, as completions report it.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) tagged: bool,
    /// The tag of a message that is received as an untagged one although it has a tag
    /// (`Op::TaggedMsg`).
    pub(super) msg_tag: Option<u64>,
    /// The message belongs to a collective operation, or is another of the library's own.
    pub(super) collective: bool,
    pub(super) tag: u64,
    /// Bytes of the message, whether they are here or not.
    pub(super) len: usize,
    pub(super) cq_data: Option<u64>,
    /// The sender waits for an acknowledgement.
    pub(super) ack: bool,
    /// The number of a message that is to be acknowledged, among those of its connection.
    pub(super) number: u64,
    /// The acknowledgement may come only when what was written is durable (FI_COMMIT_COMPLETE).
    pub(super) commit: bool,
    /// The endpoint the message came to, which reports it.
    pub(super) ep: u32,
    /// The sender's number among that endpoint's peers; `NONE` on a connected endpoint.
    pub(super) peer: u32,
    /// The connection the message came on, and its serial number, because another connection may
    /// have its index by now.
    pub(super) conn: u32,
    pub(super) serial: u64,
}

impl About {
    /// Describes a plain message that came on connection `id`.
    pub(super) fn plain<N: Net>(
        tagged: bool,
        tag: u64,
        len: usize,
        conn: &Conn<N>,
        id: u32,
    ) -> Self {
        Self {
            tagged,
            msg_tag: None,
            collective: false,
            tag,
            len,
            cq_data: None,
            ack: false,
            number: 0,
            commit: false,
            ep: conn.ep,
            peer: conn.peer,
            conn: id,
            serial: conn.serial,
        }
    }

    /// The message's sender, by which kept messages are counted.
    pub(super) fn sender(&self) -> Sender {
        (self.ep, self.peer)
    }

    /// Which of the inbox's pairs of queues the message belongs to: 0 untagged, 1 tagged, 2 of
    /// collective operations.
    #[inline]
    pub(super) fn queue(&self) -> usize {
        usize::from(self.tagged) + usize::from(self.collective)
    }
}

/// Pairs of queues, of posted receives and of unexpected messages, that an inbox has.
pub(super) const QUEUES: usize = 3;

/// How much of an unexpected message is here.
#[derive(Debug)]
pub(super) enum Body {
    /// All bytes of the message.
    Whole(Box<[u8]>),
    /// The bytes that have arrived, with room for more.
    Arriving(Box<[u8]>),
    /// None: the message blocks its connection, and its bytes wait there.
    Blocking,
    /// None: the message waits at its sender, under this number.
    AtSender(u8),
    /// The connection ended before the message was complete.
    Lost,
}

impl Body {
    /// Room for a message of `len` bytes of which `here` has come. Memory is allocated as a peer
    /// sends, not as it announces. -FI_ENOMEM if there is none.
    pub(super) fn arriving(len: usize, here: &[u8]) -> Result<Self> {
        let mut room = zeroed(len.min(FIRST_ROOM.max(here.len())))?;
        room[..here.len()].copy_from_slice(here);
        Ok(Self::Arriving(room))
    }

    /// Bytes that the message of `len` bytes takes here, counted in full while it arrives.
    fn kept(&self, len: usize) -> usize {
        match self {
            Self::Whole(_) | Self::Arriving(_) => len,
            Self::Blocking | Self::AtSender(_) | Self::Lost => 0,
        }
    }
}

/// The room behind the first `done` bytes of a message of `len`: for all of the rest, or for as
/// much as is allocated by now, which is more than nothing. -FI_ENOMEM if there is no memory.
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
    /// Neighbours in the list of messages of the same sender and queue.
    prev: u32,
    next: u32,
}

/// The sender of kept messages: the endpoint's number, and the peer's number there.
type Sender = (u32, u32);

/// The account of one sender's kept messages.
#[derive(Debug)]
struct Share {
    /// The youngest message in each queue.
    last: [u32; QUEUES],
    messages: usize,
    bytes: usize,
    stranger: bool,
}

/// Receives that wait for messages, and messages that wait for receives, in three pairs of
/// queues: untagged, tagged, and of collective operations.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Several endpoints may share the inbox (it is a shared receive context's).
    pub(super) shared: bool,
    pub(super) posted: [Posted<Recv>; QUEUES],
    pub(super) unexpected: [Unexpected<Message>; QUEUES],
    /// Tagged messages claimed by FI_PEEK, by the context that claimed them.
    pub(super) claimed: HashMap<usize, u32>,
    pub(super) min_multi_recv: usize,
    /// Bytes of memory that kept and collected messages take; those of strangers among them
    /// (`strangers`); and the bound (`most`, FI_TCP_MAX_UNEXPECTED).
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

    /// What a message needs of the receive that was taken for it: all of it, or a part of a
    /// multi-receive buffer, whose rest is put back.
    pub(super) fn part_of(&mut self, taken: Taken<Recv>, about: &About) -> Recv {
        let posted = &mut self.posted[about.queue()];
        self.multi.part_of(posted, taken, about.len, self.min_multi_recv)
    }

    /// Whether another message of `len` bytes of this sender may be kept. A stranger gets little
    /// room: its further messages wait in its connection.
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
    /// before it takes a receive: complete messages must not wait for its rest, which may never
    /// come. Nothing is collected while receives are plenty. -FI_EPROTO if the message is longer
    /// than any receive was.
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

    /// Gives back the room of a collected message of `len` bytes, which is complete or lost.
    pub(super) fn collected(&mut self, len: usize) {
        self.bytes -= MESSAGE_COST + len;
    }

    /// Whether the inbox has room for a message of `len` bytes, whoever sends it.
    fn has_room(&self, len: usize) -> bool {
        self.most.saturating_sub(self.bytes) >= len.saturating_add(MESSAGE_COST)
    }

    /// Whether another message that waits at its sender may be noted. Each connection has at
    /// most 255 of them.
    pub(super) fn may_note(&self) -> bool {
        self.has_room(0)
    }

    /// Keeps a message until a receive takes it; returns its number. `src` is its sender as
    /// receives name it. -FI_ENOMEM if there is no memory.
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

    /// Replaces the body of a kept message, and accounts for the difference in size.
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

    /// Removes a kept message and takes it off its sender's account.
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

    /// Whether the application claimed this message by FI_PEEK with FI_CLAIM.
    pub(super) fn is_claimed(&self, queue: usize, id: u32) -> bool {
        queue == 1 && self.claimed.values().any(|claimed| *claimed == id)
    }

    /// The kept messages of a sender, as queue and number, youngest first in each queue.
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

    /// A sender's fi_addr_t has changed, or it has become a stranger: its kept messages take
    /// that over.
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

    /// A stranger has no connection any more. Its messages stay for a while: it may have ended
    /// because it had sent all.
    pub(super) fn leaves(&mut self, sender: Sender) {
        if self.shares.get(&sender).is_some_and(|share| share.stranger) {
            self.left.push_back(sender);
        }
    }

    /// The stranger whose messages are to make room: the first that lost its connection, of
    /// those that `gone` says have none still.
    pub(super) fn oldest_left(&mut self, gone: impl Fn(Sender) -> bool) -> Option<Sender> {
        while let Some(sender) = self.left.pop_front() {
            if self.shares.get(&sender).is_some_and(|share| share.stranger) && gone(sender) {
                return Some(sender);
            }
        }
        None
    }

    /// Whether more than [`MAX_LEFT`] strangers without a connection have left messages.
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
            number: 0,
            commit: false,
            ep: 0,
            peer,
            conn: peer,
            serial: 0,
        }
    }

    /// Fills an inbox with messages of a peer; returns how many it took.
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
