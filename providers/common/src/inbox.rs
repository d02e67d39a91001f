//! What an endpoint receives: posted receives, messages that came before one,
//! multi-receive buffers, peeks and claims (fi_msg(3), fi_tagged(3)).
//!
//! The inbox knows what belongs together and reports it; how the bytes of a
//! message get to a buffer, and in which form a message waits, is its user's
//! business, who is told of every [`Meeting`] of a message and a receive.
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_CLAIM, FI_COMPLETION, FI_DISCARD, FI_MSG, FI_MULTI_RECV,
    FI_PEEK, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED, fi_addr_t,
};
use crate::cntr::Cntr;
use crate::cq::{Completion, CompletionError, Context, Cq};
use crate::error::{Error, Result};
use crate::glue::{Bindings, RecvOp};
use crate::later::{ASIDE, Aside, Outcome, TAG};
use crate::matching::{Pattern, Posted, Unexpected};
use crate::multi_recv::MultiBufs;
pub use crate::multi_recv::Recv;
use std::collections::HashMap;
use std::sync::Arc;

/// What a message is, as completions report it.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Whether it has a tag.
    pub tagged: bool,
    /// Whether it belongs to a collective operation.
    pub collective: bool,
    /// The tag.
    pub tag: u64,
    /// Its bytes in all.
    pub len: usize,
    /// Its remote CQ data.
    pub cq_data: Option<u64>,
    /// Who sent it: a number of the user's, named by [`Inbox::set_name`].
    pub peer: u32,
}

impl About {
    /// Which of the inbox's pairs of receives and messages it belongs to.
    #[inline]
    pub fn queue(&self) -> usize {
        usize::from(self.tagged) + usize::from(self.collective)
    }
}

/// How a message waits for a receive.
pub trait Body {
    /// All of its bytes, if they are here.
    fn bytes(&self) -> Option<&[u8]>;
    /// What it takes of memory.
    fn cost(&self) -> usize;
}

/// A message that came before a receive for it.
#[derive(Debug)]
pub struct Message<B> {
    /// What it is.
    pub about: About,
    /// How it waits.
    pub body: B,
}

/// A message that waits has its receive, or is not wanted.
#[derive(Debug)]
pub struct Meeting {
    /// Which messages: see [`About::queue`].
    pub queue: usize,
    /// The message's number.
    pub message: u32,
    /// Its receive; nothing when it is to be discarded.
    pub recv: Option<Recv>,
}

/// What a message costs beside its bytes.
const MESSAGE_COST: usize = 128;

/// Untagged, tagged, and those of collective operations.
pub const QUEUES: usize = 3;

/// The index of the tagged messages and receives; untagged ones have 0.
const TAGGED: usize = 1;

/// What an endpoint receives.
#[derive(Debug)]
pub struct Inbox<B> {
    cq: Option<Arc<Cq>>,
    cntr: Option<Arc<Cntr>>,
    later: Option<Aside>,
    /// A receive's source counts (FI_DIRECTED_RECV).
    directed: bool,
    /// Tags of the library's own are not the application's (FI_COLLECTIVE).
    collective: bool,
    posted: [Posted<Recv>; QUEUES],
    unexpected: [Unexpected<Message<B>>; QUEUES],
    /// Messages claimed by FI_PEEK, by the context that claimed them.
    claimed: HashMap<usize, u32>,
    multi: MultiBufs,
    /// Below so many bytes of room a multi-receive buffer is given back
    /// (FI_OPT_MIN_MULTI_RECV).
    pub min_multi_recv: usize,
    /// The names of peers by their numbers, and what completions call them.
    names: Vec<(fi_addr_t, fi_addr_t)>,
    /// With FI_SOURCE_ERR: the addresses of peers, for those without a name.
    addrs: Option<HashMap<u32, Vec<u8>>>,
    kept_bytes: usize,
}

impl<B: Body> Inbox<B> {
    /// An inbox of an endpoint that is not enabled yet: whether a receive's
    /// source counts (FI_DIRECTED_RECV), whether a stranger's messages are
    /// reported as errors (FI_SOURCE_ERR), and FI_OPT_MIN_MULTI_RECV.
    pub fn new(directed: bool, source_err: bool, min_multi_recv: usize) -> Self {
        Self {
            cq: None,
            cntr: None,
            later: None,
            directed,
            collective: false,
            posted: Default::default(),
            unexpected: std::array::from_fn(|_| Unexpected::default()),
            claimed: HashMap::new(),
            multi: MultiBufs::default(),
            min_multi_recv,
            names: Vec::new(),
            addrs: source_err.then(HashMap::new),
            kept_bytes: 0,
        }
    }

    /// From now on receives are reported there.
    pub fn bind(&mut self, bindings: &Bindings) {
        self.cq.clone_from(&bindings.rx_cq);
        self.cntr.clone_from(&bindings.rx_cntr);
        self.later.clone_from(&bindings.later);
    }

    /// From now on tags of the library's own are not the application's.
    pub fn set_collective(&mut self) {
        self.collective = true;
    }

    /// Whether a tag is one of the library's own (fi_collective(3)).
    #[inline]
    pub fn takes_aside(&self, tag: u64) -> bool {
        tag & TAG != 0 && self.collective
    }

    /// Where receives are reported.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// Whether another receive can be reported.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.cq.as_ref().is_none_or(|cq| cq.has_room())
    }

    /// Names a peer, as receives choose it and as completions report it;
    /// FI_ADDR_NOTAVAIL for a stranger. The two differ with FI_AV_USER_ID.
    pub fn set_name(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t) {
        let index = peer as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, (FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL));
        }
        self.names[index] = (name, id);
    }

    /// Tells a peer's address, which FI_SOURCE_ERR reports of strangers.
    pub fn set_addr(&mut self, peer: u32, addr: impl FnOnce() -> Vec<u8>) {
        if let Some(addrs) = &mut self.addrs {
            addrs.insert(peer, addr());
        }
    }

    /// The number is to be another peer's.
    pub fn forget(&mut self, peer: u32) {
        self.set_name(peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
        if let Some(addrs) = &mut self.addrs {
            addrs.remove(&peer);
        }
    }

    /// A peer's name.
    #[inline]
    pub fn name_of(&self, peer: u32) -> fi_addr_t {
        self.names.get(peer as usize).map_or(FI_ADDR_NOTAVAIL, |(name, _)| *name)
    }

    /// What completions call a peer.
    #[inline]
    fn id_of(&self, peer: u32) -> fi_addr_t {
        self.names.get(peer as usize).map_or(FI_ADDR_NOTAVAIL, |(_, id)| *id)
    }

    /// Bytes that waiting messages take.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn entry(&self, about: &About, context: Context, buf: usize, extra: u64) -> Completion {
        let mut flags = FI_RECV | if about.tagged { FI_TAGGED } else { FI_MSG } | extra;
        if about.cq_data.is_some() {
            flags |= FI_REMOTE_CQ_DATA;
        }
        Completion {
            context,
            flags,
            len: about.len,
            buf,
            data: about.cq_data.unwrap_or(0),
            tag: about.tag,
            src: self.id_of(about.peer),
        }
    }

    #[inline]
    fn report(&self, entry: Completion, wanted: bool) {
        if entry.flags & ASIDE != 0 {
            return self.done_aside(Ok(entry));
        }
        if let Some(cntr) = &self.cntr {
            cntr.completed(entry.len);
        }
        if wanted && let Some(cq) = &self.cq {
            cq.write(entry);
        }
    }

    /// An operation that the domain needs for itself is over.
    #[cold]
    fn done_aside(&self, outcome: Outcome) {
        if let Some(later) = &self.later {
            later.done(outcome);
        }
    }

    #[cold]
    fn report_error(&self, error: CompletionError) {
        if error.of.flags & ASIDE != 0 {
            return self.done_aside(Err(error));
        }
        if let Some(cntr) = &self.cntr {
            cntr.failed();
        }
        if let Some(cq) = &self.cq {
            cq.write_error(error);
        }
    }

    /// A receive has its message: reports it.
    #[inline]
    pub fn received(&mut self, recv: &Recv, about: &About) {
        let extra = self.multi.filled(recv) | (recv.flags & ASIDE);
        let entry = self.entry(about, recv.context, recv.buf.address(), extra);
        if about.len > recv.buf.len() {
            let olen = about.len - recv.buf.len();
            let of = Completion { len: recv.buf.len(), ..entry };
            self.report_error(CompletionError { olen, ..CompletionError::new(of, Error::TRUNC) });
        } else if entry.src == FI_ADDR_NOTAVAIL
            && entry.flags & ASIDE == 0
            && let Some(addrs) = &self.addrs
        {
            // The message is there; its sender's name is not, but its address.
            let data = addrs.get(&about.peer).cloned().unwrap_or_default();
            let error = CompletionError::new(entry, Error::ADDRNOTAVAIL);
            self.report_error(CompletionError { data, ..error });
        } else {
            // That a buffer is given back is always said.
            self.report(entry, recv.flags & FI_COMPLETION != 0 || extra != 0);
        }
    }

    /// A receive gets its message no more.
    pub fn failed(&mut self, recv: &Recv, about: &About, error: Error) {
        let extra = self.multi.filled(recv) | (recv.flags & ASIDE);
        let entry = self.entry(about, recv.context, recv.buf.address(), extra);
        self.report_error(CompletionError::new(entry, error));
    }

    /// The posted receive for a message, oldest first. Of a multi-receive
    /// buffer it gives the part the message needs.
    #[inline]
    pub fn take_posted(&mut self, about: &About) -> Option<Recv> {
        let queue = about.queue();
        let src = self.name_of(about.peer);
        let posted = &mut self.posted[queue];
        let taken = posted.take(src, about.tag)?;
        Some(self.multi.part_of(posted, taken, about.len, self.min_multi_recv))
    }

    /// Keeps a message for a receive that is still to come; its number.
    pub fn keep(&mut self, about: About, body: B) -> u32 {
        self.kept_bytes += body.cost() + MESSAGE_COST;
        self.unexpected[about.queue()].push(about.tag, Message { about, body })
    }

    /// A message that waits, to change how it does.
    pub fn kept(&mut self, queue: usize, message: u32) -> Option<&mut Message<B>> {
        self.unexpected[queue].get_mut(message)
    }

    /// Changes how a message waits, and what it takes of memory.
    pub fn change(&mut self, queue: usize, message: u32, change: impl FnOnce(&mut B)) {
        if let Some(kept) = self.unexpected[queue].get_mut(message) {
            let before = kept.body.cost();
            change(&mut kept.body);
            self.kept_bytes = self.kept_bytes + kept.body.cost() - before;
        }
    }

    /// Takes a waiting message out for good.
    pub fn take_kept(&mut self, queue: usize, message: u32) -> Option<Message<B>> {
        let message = self.unexpected[queue].remove(message)?;
        self.kept_bytes -= message.body.cost() + MESSAGE_COST;
        Some(message)
    }

    /// The messages that wait, claimed ones too, of one queue.
    pub fn all_kept(&self, queue: usize) -> Vec<u32> {
        self.unexpected[queue].ids()
    }

    /// Whether messages of this peer wait.
    pub fn keeps_from(&self, peer: u32) -> bool {
        let of = |queue: &Unexpected<Message<B>>| {
            let of_peer = |id: &u32| queue.get(*id).is_some_and(|kept| kept.about.peer == peer);
            queue.ids().iter().any(of_peer)
        };
        self.unexpected.iter().any(of)
    }

    /// Whether somebody claimed this tagged message.
    pub fn is_claimed(&self, message: u32) -> bool {
        self.claimed.values().any(|claimed| *claimed == message)
    }

    fn pattern(&self, op: &RecvOp) -> Pattern {
        let src = (self.directed && op.src != FI_ADDR_UNSPEC).then_some(op.src);
        Pattern { src, tag: op.tag, ignore: op.ignore }
    }

    fn find(&self, queue: usize, pattern: Pattern) -> Option<u32> {
        self.unexpected[queue].find(pattern, |message| self.name_of(message.about.peer))
    }

    /// fi_recv and its kin. What waits for the receive goes to `meetings`, to
    /// be taken with [`take_kept`](Self::take_kept) before anything else is done.
    #[inline]
    pub fn post(&mut self, op: RecvOp, tagged: bool, meetings: &mut Vec<Meeting>) -> Result {
        let collective = op.flags & ASIDE != 0 && tagged && self.takes_aside(op.tag);
        let queue = usize::from(tagged) + usize::from(collective);
        let pattern = self.pattern(&op);
        if op.flags & FI_MULTI_RECV != 0 && !op.buf.is_contiguous() {
            // Its parts are given out front to back of one piece.
            return Err(Error::INVAL);
        }
        let recv = Recv::new(op.buf, op.context, op.flags);
        if self.unexpected[queue].is_empty() {
            self.posted[queue].push(pattern, recv);
            return Ok(());
        }
        if recv.flags & FI_MULTI_RECV != 0 {
            // It may take many of the messages that wait. It is the oldest receive
            // for all of them: what an older one fits is not waiting.
            self.posted[queue].push(pattern, recv);
            while !self.posted[queue].is_empty()
                && let Some(message) = self.find(queue, pattern)
                && let Some(about) = self.unexpected[queue].get(message).map(|m| m.about)
                && let Some(recv) = self.take_posted(&about)
            {
                self.unexpected[queue].claim(message);
                meetings.push(Meeting { queue, message, recv: Some(recv) });
            }
            return Ok(());
        }
        match self.find(queue, pattern) {
            Some(message) => meetings.push(Meeting { queue, message, recv: Some(recv) }),
            None => self.posted[queue].push(pattern, recv),
        }
        Ok(())
    }

    /// FI_PEEK, FI_CLAIM and FI_DISCARD of tagged receives; for a peek the
    /// caller makes progress first. As [`post`](Self::post) otherwise.
    pub fn special(&mut self, op: RecvOp, meetings: &mut Vec<Meeting>) -> Result {
        let (peek, claim) = (op.flags & FI_PEEK != 0, op.flags & FI_CLAIM != 0);
        let discard = op.flags & FI_DISCARD != 0;
        let report = op.flags & FI_COMPLETION != 0;
        let recv = Recv::new(op.buf.clone(), op.context, op.flags);
        let discarded = |message| Meeting { queue: TAGGED, message, recv: None };
        if peek {
            if claim && discard {
                return Err(Error::BADFLAGS);
            }
            let pattern = self.pattern(&op);
            let Some(number) = self.find(TAGGED, pattern) else {
                self.report_no_message(&op);
                return Ok(());
            };
            let Some(message) = self.unexpected[TAGGED].get(number) else { return Ok(()) };
            let about = message.about;
            if let Some(bytes) = message.body.bytes() {
                // As much of the message as the caller has room for.
                recv.buf.copy_from(0, bytes);
            }
            if claim {
                if self.claimed.contains_key(&(op.context.0 as usize)) {
                    return Err(Error::INVAL);
                }
                self.unexpected[TAGGED].claim(number);
                self.claimed.insert(op.context.0 as usize, number);
            }
            let entry = self.entry(&about, op.context, recv.buf.address(), 0);
            if report && let Some(cq) = &self.cq {
                cq.write(entry);
            }
            if discard {
                meetings.push(discarded(number));
            }
            return Ok(());
        }
        if !claim {
            // FI_DISCARD alone names no message.
            return Err(Error::BADFLAGS);
        }
        let number = self.claimed.remove(&(op.context.0 as usize)).ok_or(Error::INVAL)?;
        if discard {
            if let Some(about) = self.unexpected[TAGGED].get(number).map(|message| message.about) {
                self.report(self.entry(&about, op.context, 0, 0), report);
            }
            meetings.push(discarded(number));
        } else {
            meetings.push(Meeting { queue: TAGGED, message: number, recv: Some(recv) });
        }
        Ok(())
    }

    /// A peek found nothing.
    fn report_no_message(&self, op: &RecvOp) {
        if let Some(cq) = &self.cq {
            let of = nothing(op.context, FI_RECV | FI_TAGGED, 0, op.tag);
            cq.write_error(CompletionError::new(of, Error::NOMSG));
        }
    }

    /// fi_cancel: takes the receive with this context back.
    pub fn cancel(&mut self, context: Context, aside: bool) {
        let is = |recv: &Recv| recv.context == context && (recv.flags & ASIDE != 0) == aside;
        for queue in 0..QUEUES {
            if let Some(recv) = self.posted[queue].take_if(is) {
                self.cancelled(queue, &recv);
                return;
            }
        }
    }

    /// Takes all receives back, as when the endpoint is closed.
    pub fn cancel_all(&mut self) {
        for queue in 0..2 {
            for recv in self.posted[queue].drain() {
                self.cancelled(queue, &recv);
            }
        }
    }

    fn cancelled(&mut self, queue: usize, recv: &Recv) {
        let mut flags = FI_RECV | if queue == 0 { FI_MSG } else { FI_TAGGED };
        flags |= self.multi.cancelled(recv) | (recv.flags & ASIDE);
        let of = nothing(recv.context, flags, recv.buf.address(), 0);
        self.report_error(CompletionError::new(of, Error::CANCELED));
    }
}

fn nothing(context: Context, flags: u64, buf: usize, tag: u64) -> Completion {
    Completion { context, flags, len: 0, buf, data: 0, tag, src: FI_ADDR_NOTAVAIL }
}
