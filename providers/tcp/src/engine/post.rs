//! Posting receives, and what else an application does with its inbox: look,
//! claim, discard, take back.
use super::State;
use super::ep::Ep;
use super::inbox::{About, Body, QUEUES};
use super::net::Net;
use super::rx::{Incoming, Target};
use ofi_provider::abi::{FI_CLAIM, FI_DISCARD, FI_MSG, FI_MULTI_RECV, FI_PEEK, FI_RECV, FI_TAGGED};
use ofi_provider::api::RecvOp;
use ofi_provider::buf::RecvBuf;
use ofi_provider::cq::{Completion, CompletionError, Context};
use ofi_provider::error::{Error, Result};
use ofi_provider::matching::Pattern;
use ofi_provider::multi_recv::Recv;
use ofi_provider::reserved::{ASIDE, ONLY_TAG};
use ofi_provider::slab::NONE;

/// The queue of tagged messages, the only ones that can be peeked at and claimed (fi_tagged(3)).
pub(super) const TAGGED: usize = 1;

/// Flags of a receive that keep it from being posted by the short way.
const SPECIAL: u64 = FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV | ASIDE | ONLY_TAG;

impl<N: Net> State<N> {
    /// fi_recv and fi_trecv, in all their forms.
    #[inline(always)]
    pub(crate) fn post(&mut self, ep_id: u32, op: RecvOp, tagged: bool) -> Result {
        let ep = &self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        let queue = usize::from(tagged);
        // The commonest case: no message waits, and some may still come.
        if op.flags & SPECIAL == 0 && inbox.unexpected[queue].is_empty() && !ep.ended {
            let src = ep.wanted_source(op.src, false);
            let pattern = Pattern { src, tag: op.tag, ignore: op.ignore };
            let recv = Recv::new(op.buf, op.context, op.flags);
            inbox.posted[queue].push(pattern, recv);
            return Ok(());
        }
        self.post_any(ep_id, op, tagged)
    }

    #[inline(never)]
    fn post_any(&mut self, ep_id: u32, op: RecvOp, tagged: bool) -> Result {
        let ep = &self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        let collective = op.flags & ASIDE != 0 && tagged && ep.takes_aside(op.tag);
        let queue = usize::from(tagged) + usize::from(collective);
        let src = ep.wanted_source(op.src, collective);
        let pattern = Pattern { src, tag: op.tag, ignore: op.ignore };
        if op.flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) != 0 {
            return self.special(ep_id, op, queue, pattern);
        }
        if op.flags & ONLY_TAG != 0 {
            self.post_tag(ep_id, &op, pattern);
            return Ok(());
        }
        if op.flags & FI_MULTI_RECV != 0 && !op.buf.is_contiguous() {
            // A multi-receive buffer must be contiguous: messages get its parts front to back.
            return Err(Error::INVAL);
        }
        let recv = Recv::new(op.buf, op.context, op.flags);
        if inbox.unexpected[queue].is_empty() {
            if ep.ended {
                // No message can come any more. Posting stays possible, because
                // the application may not have read of the end yet.
                self.cancelled(ep_id, queue, &recv);
            } else {
                inbox.posted[queue].push(pattern, recv);
            }
            return Ok(());
        }
        if recv.flags & FI_MULTI_RECV != 0 {
            inbox.posted[queue].push(pattern, recv);
            self.fill_multi(ep_id, queue, pattern);
            return Ok(());
        }
        match inbox.unexpected[queue].find(pattern) {
            Some(id) => self.take_message(ep_id, queue, id, Some(recv)),
            None if ep.ended => self.cancelled(ep_id, queue, &recv),
            None => inbox.posted[queue].push(pattern, recv),
        }
        Ok(())
    }

    /// A multi-receive buffer that was just posted takes as many of the waiting
    /// messages as it can. It is the oldest fitting receive for every one of
    /// them, since what an older receive fits is not waiting.
    fn fill_multi(&mut self, ep_id: u32, queue: usize, pattern: Pattern) {
        // Without room in the completion queue as well: nobody would look again,
        // and the messages that wait must not be overtaken. Their number is bounded.
        loop {
            let inbox = &mut self.inboxes[self.eps[ep_id].inbox];
            if inbox.posted[queue].is_empty() {
                break;
            }
            let Some(id) = inbox.unexpected[queue].find(pattern) else { break };
            let Some(about) = inbox.unexpected[queue].get(id).map(|message| message.about) else {
                break;
            };
            let Some(recv) = self.eps[about.ep].take_posted(inbox, &about) else { break };
            self.take_message(ep_id, queue, id, Some(recv));
        }
        if self.eps[ep_id].ended {
            // The rest of the multi-receive buffer gets no message any more.
            self.cancel_all(ep_id);
        }
    }

    /// Gives a kept message to a receive, or drops it if there is none.
    pub(super) fn take_message(&mut self, ep_id: u32, queue: usize, id: u32, recv: Option<Recv>) {
        let inbox = &mut self.inboxes[self.eps[ep_id].inbox];
        let Some(message) = inbox.unexpected[queue].get(id) else { return };
        // The endpoint the message came to, if several share the inbox.
        let ep = &mut self.eps[message.about.ep];
        let Some(mut message) = inbox.remove(queue, id) else { return };
        let about = message.about;
        let conn = about.conn;
        // A message that is whole or lost is reported before its sender may be forgotten.
        match (&message.body, &recv) {
            (Body::Whole(bytes), Some(recv)) => {
                recv.buf.copy_from(0, bytes);
                ep.received(inbox, recv, &about);
            }
            (Body::Lost, Some(recv)) => {
                ep.receive_failed(inbox, recv, &about, Error::CONNRESET);
            }
            _ => {}
        }
        ep.message_left(about.peer);
        let target = |recv: Option<Recv>| recv.map_or(Target::Discard, Target::Posted);
        match &mut message.body {
            Body::Whole(_) => {
                if about.ack {
                    self.acknowledge_late(&about);
                }
            }
            Body::Arriving(bytes) => {
                let Some(incoming) = self.conns.get_mut(conn).and_then(|c| c.incoming.as_mut())
                else {
                    return;
                };
                if let Some(recv) = &recv {
                    recv.buf.copy_from(0, &bytes[..incoming.done]);
                }
                incoming.target = target(recv);
            }
            Body::Blocking => {
                if let Some(incoming) = self.conns.get_mut(conn).and_then(|c| c.incoming.as_mut()) {
                    incoming.target = target(recv);
                    if incoming.left() == 0 && !self.complete_incoming(conn) {
                        return;
                    }
                    self.unblock(conn);
                }
            }
            Body::AtSender(number) => {
                let number = *number;
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.at_sender.remove(&number);
                    let incoming = Incoming { about, target: target(recv), done: 0 };
                    entry.expected.insert(number, incoming);
                    self.ask_for(conn, number);
                }
            }
            Body::Lost => {}
        }
    }

    /// Acknowledges a message that was complete before its receive, if the
    /// connection it came on is still there.
    fn acknowledge_late(&mut self, about: &About) {
        if self.conns.get(about.conn).is_some_and(|conn| conn.serial == about.serial) {
            self.acknowledge(about.conn, about.number);
        }
    }

    /// FI_PEEK, FI_CLAIM and FI_DISCARD (fi_tagged(3)).
    fn special(&mut self, ep_id: u32, op: RecvOp, queue: usize, pattern: Pattern) -> Result {
        if op.flags & FI_PEEK == 0 && self.settle_announced(ep_id, &op, queue) {
            return Ok(());
        }
        if op.flags & FI_PEEK != 0 {
            return self.peek(ep_id, &op, pattern);
        }
        if op.flags & FI_CLAIM == 0 {
            // FI_DISCARD alone names only what was reported.
            let buffers = self.eps[ep_id].buffering.is_some();
            return Err(if buffers { Error::INVAL } else { Error::BADFLAGS });
        }
        let ep = &self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        let claimed = if queue == TAGGED { &mut inbox.claimed } else { return Err(Error::INVAL) };
        let id = claimed.remove(&(op.context.0 as usize)).ok_or(Error::INVAL)?;
        if op.flags & FI_DISCARD == 0 {
            // The completion is that of any receive: only buffered messages are marked with
            // FI_CLAIM.
            let recv = Recv::new(op.buf, op.context, op.flags & !FI_CLAIM);
            self.take_message(ep_id, TAGGED, id, Some(recv));
            return Ok(());
        }
        let about = inbox.unexpected[TAGGED].get(id).map(|message| message.about);
        self.take_message(ep_id, TAGGED, id, None);
        if let Some(about) = about {
            let ep = &self.eps[about.ep];
            ep.ledger.rx.done(ep.entry(&about, op.context, 0, 0), ep.ledger.rx.wants(op.flags));
        }
        Ok(())
    }

    /// FI_PEEK, alone or with FI_CLAIM or FI_DISCARD.
    fn peek(&mut self, ep_id: u32, op: &RecvOp, pattern: Pattern) -> Result {
        // The message asked for may be in a socket already.
        self.turn();
        let (claim, discard) = (op.flags & FI_CLAIM != 0, op.flags & FI_DISCARD != 0);
        if claim && discard {
            return Err(Error::BADFLAGS);
        }
        let ep = &self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        let found = inbox.unexpected[TAGGED].find(pattern);
        let Some((id, message)) =
            found.and_then(|id| Some((id, inbox.unexpected[TAGGED].get(id)?)))
        else {
            ep.no_message(op);
            return Ok(());
        };
        // As much of the message as the caller has room for, if it is here; the entry
        // names the buffer only when something was put there.
        let copied = match &message.body {
            Body::Whole(bytes) => op.buf.copy_from(0, bytes),
            _ => 0,
        };
        let buf = if copied > 0 { op.buf.address() } else { 0 };
        let owner = &self.eps[message.about.ep];
        let entry = owner.entry(&message.about, op.context, buf, 0);
        if claim {
            if inbox.claimed.contains_key(&(op.context.0 as usize)) {
                return Err(Error::INVAL);
            }
            inbox.unexpected[TAGGED].claim(id);
            inbox.claimed.insert(op.context.0 as usize, id);
        }
        owner.ledger.rx.looked_at(entry, owner.ledger.rx.wants(op.flags));
        if discard {
            self.take_message(ep_id, TAGGED, id, None);
        }
        Ok(())
    }

    /// fi_cancel: takes the receive with this context back.
    pub(crate) fn cancel(&mut self, ep_id: u32, context: Context, aside: bool) {
        let is = |recv: &Recv| recv.context == context && (recv.flags & ASIDE != 0) == aside;
        let inbox = &mut self.inboxes[self.eps[ep_id].inbox];
        for queue in 0..QUEUES {
            let found = inbox.posted[queue].take_if(is);
            if let Some(recv) = found {
                self.cancelled(ep_id, queue, &recv);
                return;
            }
        }
    }

    pub(super) fn cancelled(&mut self, ep_id: u32, queue: usize, recv: &Recv) {
        let ep = &self.eps[ep_id];
        let gives_back = self.inboxes[ep.inbox].multi.cancelled(recv);
        if recv.flags & FI_MULTI_RECV != 0 && gives_back == 0 {
            // The buffer is given back by its last part, which is being filled.
            ep.ledger.rx.part();
        }
        let extra = gives_back | (recv.flags & ASIDE);
        let flags = FI_RECV | if queue == 0 { FI_MSG } else { FI_TAGGED } | extra;
        let of = Completion { buf: recv.buf.address(), ..Completion::of(recv.context, flags, 0) };
        ep.ledger.rx.failed(CompletionError::new(of, Error::CANCELED));
    }

    /// Takes all posted receives back, as when a connection is over for good.
    pub(super) fn cancel_all(&mut self, ep_id: u32) {
        for queue in 0..QUEUES {
            let inbox = &mut self.inboxes[self.eps[ep_id].inbox];
            for recv in inbox.posted[queue].drain() {
                self.cancelled(ep_id, queue, &recv);
            }
        }
        // A buffered message that met a tag and is not complete counts as a posted receive
        // still.
        let Some(buffering) = &mut self.eps[ep_id].buffering else { return };
        for (queue, id, posted) in buffering.take_all_owed() {
            self.cancelled(ep_id, queue, &Recv::new(RecvBuf::none(), posted, 0));
            self.take_message(ep_id, queue, id, None);
        }
    }

    /// Forgets all posted receives, and what the application claimed; nothing is
    /// reported any more.
    pub(super) fn empty_inbox(&mut self, ep_id: u32) {
        self.cancel_all(ep_id);
        let ep = &mut self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        let claimed = std::mem::take(&mut inbox.claimed).into_values().map(|id| (TAGGED, id));
        let told = ep.buffering.as_mut().map(|buffering| buffering.take_all_told());
        for (queue, id) in claimed.chain(told.into_iter().flatten()) {
            self.take_message(ep_id, queue, id, None);
        }
    }

    /// From now on the endpoint takes its receives from this shared receive context.
    pub(crate) fn share_inbox(&mut self, ep_id: u32, srx: u32) {
        let shared = self.eps[srx].inbox;
        let own = std::mem::replace(&mut self.eps[ep_id].inbox, shared);
        self.inboxes.remove(own);
    }

    /// The endpoint is closed: removes its inbox, or its messages from the inbox that it shares.
    pub(super) fn leave_inbox(&mut self, ep_id: u32) {
        let ep = &mut self.eps[ep_id];
        let inbox = &mut self.inboxes[ep.inbox];
        if !inbox.shared || ep.owns_inbox() {
            self.cancel_all(ep_id);
            self.inboxes.remove(self.eps[ep_id].inbox);
            return;
        }
        let peers = ep.peers.iter().filter(|(_, peer)| peer.messages > 0).map(|(peer, _)| peer);
        // A connected endpoint has one peer, without a number.
        let senders: Vec<_> = peers.chain([NONE]).map(|peer| (ep_id, peer)).collect();
        let kept: Vec<_> = senders.into_iter().flat_map(|one| inbox.kept_of(one)).collect();
        for (queue, id) in kept {
            ep.drop_message(inbox, queue, id);
            if queue == TAGGED {
                inbox.claimed.retain(|_, claimed| *claimed != id);
            }
        }
    }
}

impl Ep {
    /// Reports a peek that found no message: an error entry with -FI_ENOMSG.
    fn no_message(&self, op: &RecvOp) {
        let of = Completion { tag: op.tag, ..Completion::of(op.context, FI_RECV | FI_TAGGED, 0) };
        self.ledger.rx.found_none(CompletionError::new(of, Error::NOMSG));
    }
}
