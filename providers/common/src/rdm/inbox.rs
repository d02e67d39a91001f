//! What an endpoint receives: posted receives, messages that came before one,
//! multi-receive buffers, peeks and claims (fi_msg(3), fi_tagged(3)).
//!
//! The inbox matches messages with receives and reports them. How the bytes of a message get to
//! a buffer, and in which form a message waits, is the provider's business, which is told of
//! every [`Meeting`] of a message and a receive.
//!
//! Endpoints that have a shared receive context (fi_endpoint(3)) have an inbox
//! each, which reports what that endpoint receives, and one lot of [`Queues`].
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_CLAIM, FI_DISCARD, FI_MORE, FI_MSG, FI_MULTI_RECV,
    FI_PEEK, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED, fi_addr_t,
};
use crate::buf::RecvBuf;
use crate::buffered::Buffering;
use crate::cq::{Completion, CompletionError, Context};
use crate::eq::FidPtr;
use crate::error::{Error, Result};
use crate::ledger::RxLedger;
use crate::matching::{Pattern, Posted, Unexpected};
pub use crate::multi_recv::Recv;
use crate::multi_recv::{KEPT, MultiBufs};
use crate::notices::is_strangers;
use crate::operation::RecvOp;
use crate::reserved::{ASIDE, ONLY_TAG, OWN_TAG};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a message is, as completions report it.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Whether the message has a tag.
    pub tagged: bool,
    /// Whether the message belongs to a collective operation, or is another of the library's
    /// own.
    pub collective: bool,
    /// The message's tag; 0 for an untagged one.
    pub tag: u64,
    /// Bytes of the message.
    pub len: usize,
    /// The message's remote CQ data, if it has any.
    pub cq_data: Option<u64>,
    /// The sender: a number that the provider chose, named by [`Inbox::set_name`].
    pub peer: u32,
}

impl About {
    /// Which of the inbox's pairs of queues the message belongs to: 0 untagged, 1 tagged, 2 of
    /// collective operations.
    #[inline]
    pub fn queue(&self) -> usize {
        usize::from(self.tagged) + usize::from(self.collective)
    }
}

/// How a message waits for a receive.
pub trait Body {
    /// The bytes of the message, if all of them are here.
    fn bytes(&self) -> Option<&[u8]>;
    /// Bytes of memory that the waiting message takes.
    fn cost(&self) -> usize;
}

/// A message that came before a receive for it.
#[derive(Debug)]
pub struct Message<B> {
    /// The message's description for completions.
    pub about: About,
    /// The form in which the message waits.
    pub body: B,
    /// The number of the endpoint the message came to ([`Inbox::new`]).
    owner: u32,
    /// The sender's fi_addr_t at that endpoint.
    source: fi_addr_t,
}

/// A waiting message has met its receive, or is to be discarded.
#[derive(Debug)]
pub struct Meeting {
    /// The queue the message is in ([`About::queue`]).
    pub queue: usize,
    /// The message's number.
    pub message: u32,
    /// The receive it met; none when the message is to be discarded.
    pub recv: Option<Recv>,
    /// The endpoint the message came to, whose inbox reports it.
    pub owner: u32,
}

/// A message that was peeked at, claimed or discarded, for [`Inbox::report_seen`].
#[derive(Debug)]
pub struct Seen {
    /// The endpoint the message came to, whose inbox reports it.
    pub owner: u32,
    about: About,
    context: Context,
    buf: usize,
    /// Flags of the call: whether it writes an entry, and whether the message counts as
    /// received.
    flags: u64,
    counts: bool,
}

/// Bytes of memory that a waiting message costs beside its own.
const MESSAGE_COST: usize = 128;

/// Pairs of queues in an inbox: untagged, tagged, and of collective operations.
pub const QUEUES: usize = 3;

/// Index of the queues of tagged messages and receives; the untagged ones have 0.
const TAGGED: usize = 1;

/// Index of the queues of collective operations.
const COLLECTIVE: usize = 2;

/// What an inbox knows of a peer.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The peer's fi_addr_t by which receives choose it, and the one that completions report.
    name: fi_addr_t,
    id: fi_addr_t,
    /// Messages of the peer that wait, and the bytes of memory they take.
    kept: u32,
    bytes: usize,
}

impl Known {
    const STRANGER: Self = Self { name: FI_ADDR_NOTAVAIL, id: FI_ADDR_NOTAVAIL, kept: 0, bytes: 0 };

    fn is_stranger(&self) -> bool {
        self.name == FI_ADDR_NOTAVAIL
    }
}

/// Receives that wait for messages, and messages that wait for receives, in [`QUEUES`] pairs.
#[derive(Debug)]
pub struct Queues<B> {
    posted: [Posted<Recv>; QUEUES],
    unexpected: [Unexpected<Message<B>>; QUEUES],
    /// Messages claimed by FI_PEEK, by the context that claimed them.
    claimed: HashMap<usize, u32>,
    multi: MultiBufs,
    min_multi_recv: usize,
    kept_bytes: usize,
}

impl<B> Queues<B> {
    fn new(min_multi_recv: usize) -> Self {
        Self {
            posted: Default::default(),
            unexpected: std::array::from_fn(|_| Unexpected::default()),
            claimed: HashMap::new(),
            multi: MultiBufs::default(),
            min_multi_recv,
            kept_bytes: 0,
        }
    }
}

/// The queues that endpoints share. The lock is taken for single calls of an
/// inbox only, with none but an engine's held.
type SharedQueues<B> = Arc<Mutex<Queues<B>>>;

fn locked<B>(queues: &Mutex<Queues<B>>) -> MutexGuard<'_, Queues<B>> {
    queues.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The receiving side of an endpoint: its queues, what it knows of peers, and where it reports.
#[derive(Debug)]
pub struct Inbox<B> {
    /// The endpoint's number.
    owner: u32,
    /// Where receives are reported.
    pub ledger: RxLedger,
    /// A receive's source address takes part in matching (FI_DIRECTED_RECV).
    directed: bool,
    /// Tags with `OWN_TAG` are the library's own and not the application's (FI_COLLECTIVE,
    /// FI_MULTICAST).
    collective: bool,
    own: Queues<B>,
    /// The shared receive context's queues, used instead of the endpoint's own but for
    /// collective operations.
    shared: Option<SharedQueues<B>>,
    /// State of buffered receives (FI_BUFFERED_RECV), if the endpoint has them, and the
    /// endpoint's fid.
    buffering: Option<Box<Buffering>>,
    fid: FidPtr,
    /// The shared queues that the endpoint has left ([`leave`](Self::leave)): receives of theirs
    /// may still be filled.
    left: Option<SharedQueues<B>>,
    /// The inbox is a shared receive context's own, and not an endpoint's that uses one.
    hosts: bool,
    /// What is known of peers, by their numbers.
    peers: Vec<Known>,
    /// Bytes that waiting messages of strangers take.
    of_strangers: usize,
    /// With FI_SOURCE_ERR: the addresses of peers that have no name, by their numbers.
    addrs: Option<HashMap<u32, Vec<u8>>>,
}

impl<B: Body> Inbox<B> {
    /// The inbox of the endpoint with this number, which is not enabled yet. `directed`: a
    /// receive's source takes part in matching (FI_DIRECTED_RECV); `source_err`: strangers'
    /// messages are reported as errors (FI_SOURCE_ERR); `min_multi_recv`: FI_OPT_MIN_MULTI_RECV,
    /// in bytes.
    pub fn new(owner: u32, directed: bool, source_err: bool, min_multi_recv: usize) -> Self {
        Self {
            owner,
            ledger: RxLedger::default(),
            directed,
            collective: false,
            own: Queues::new(min_multi_recv),
            shared: None,
            buffering: None,
            fid: FidPtr(std::ptr::null_mut()),
            left: None,
            hosts: false,
            peers: Vec::new(),
            of_strangers: 0,
            addrs: source_err.then(HashMap::new),
        }
    }

    /// Calls `act` with the queues that hold `queue`: the shared ones, or the endpoint's own.
    #[inline]
    fn with<R>(&mut self, queue: usize, act: impl FnOnce(&mut Queues<B>) -> R) -> R {
        match &self.shared {
            Some(shared) if queue != COLLECTIVE => act(&mut locked(shared)),
            _ => act(&mut self.own),
        }
    }

    /// Calls `look` with the queues that hold `queue`: the shared ones, or the endpoint's own.
    #[inline]
    fn look<R>(&self, queue: usize, look: impl FnOnce(&Queues<B>) -> R) -> R {
        match &self.shared {
            Some(shared) if queue != COLLECTIVE => look(&locked(shared)),
            _ => look(&self.own),
        }
    }

    /// Changes the endpoint's number.
    pub fn set_owner(&mut self, owner: u32) {
        self.owner = owner;
    }

    /// The queues of a shared receive context, for endpoints to [`join`](Self::join).
    pub fn lend(&mut self) -> SharedQueues<B> {
        self.hosts = true;
        let own = &mut self.own;
        let shared = self.shared.get_or_insert_with(|| {
            let least = own.min_multi_recv;
            Arc::new(Mutex::new(std::mem::replace(own, Queues::new(least))))
        });
        shared.clone()
    }

    /// Whether the inbox shares queues, or did: it is a shared receive context's, or of an
    /// endpoint that uses or has left one.
    pub fn is_shared(&self) -> bool {
        self.hosts || self.shared.is_some() || self.left.is_some()
    }

    /// Makes the endpoint, to which no receive was posted yet, take its receives from these
    /// queues.
    pub fn join(&mut self, queues: SharedQueues<B>) {
        self.shared = Some(queues);
    }

    /// Called when the endpoint is closed: its messages leave the queues it shares, and what
    /// comes from now on takes none of their receives. To be called with the lock held under
    /// which others post there, so that no receive meets a message of a closed endpoint.
    pub fn leave(&mut self) {
        let owner = self.owner;
        let Some(shared) = self.shared.take_if(|_| !self.hosts) else { return };
        let shared = self.left.insert(shared);
        let mut queues = locked(shared);
        for queue in [0, TAGGED] {
            for id in queues.kept_of(queue, owner, |_| true) {
                queues.take_kept(queue, id);
                if queue == TAGGED {
                    queues.claimed.retain(|_, claimed| *claimed != id);
                }
            }
        }
    }

    /// FI_OPT_MIN_MULTI_RECV: below so many bytes of room a multi-receive buffer
    /// is given back.
    pub fn min_multi_recv(&self) -> usize {
        self.look(0, |queues| queues.min_multi_recv)
    }

    /// Sets FI_OPT_MIN_MULTI_RECV.
    pub fn set_min_multi_recv(&mut self, size: usize) {
        self.with(0, |queues| queues.min_multi_recv = size);
    }

    /// Sets whether a receive's source takes part in matching (FI_DIRECTED_RECV), and whether
    /// strangers' messages are reported as errors (FI_SOURCE_ERR).
    pub fn choose_sources(&mut self, directed: bool, source_err: bool) {
        self.directed = directed;
        self.addrs = source_err.then(|| self.addrs.take().unwrap_or_default());
    }

    /// Has receives reported to this ledger.
    pub fn bind(&mut self, ledger: &RxLedger) {
        self.ledger.clone_from(ledger);
        if let Some(buffering) = &mut self.buffering {
            buffering.fix();
        }
    }

    /// Reserves tags with `OWN_TAG` for the library (FI_COLLECTIVE, FI_MULTICAST).
    pub fn set_collective(&mut self) {
        self.collective = true;
    }

    /// Whether a tag belongs to the library itself on this endpoint, not to the application
    /// (fi_collective(3)).
    #[inline]
    pub fn takes_aside(&self, tag: u64) -> bool {
        tag & OWN_TAG != 0 && self.collective
    }

    fn known(&mut self, peer: u32) -> &mut Known {
        let index = peer as usize;
        if self.peers.len() <= index {
            self.peers.resize(index + 1, Known::STRANGER);
        }
        &mut self.peers[index]
    }

    /// Names a peer, as receives choose it and as completions report it;
    /// FI_ADDR_NOTAVAIL for a stranger. The two differ with FI_AV_USER_ID.
    pub fn set_name(&mut self, peer: u32, name: fi_addr_t, id: fi_addr_t) {
        let known = self.known(peer);
        let before = std::mem::replace(known, Known { name, id, ..*known });
        match (before.is_stranger(), name == FI_ADDR_NOTAVAIL) {
            (true, false) => self.of_strangers -= before.bytes,
            (false, true) => self.of_strangers += before.bytes,
            _ => {}
        }
        if before.name != name && before.kept > 0 {
            let owner = self.owner;
            for queue in 0..QUEUES {
                self.with(queue, |queues| queues.rename(queue, owner, peer, name));
            }
        }
    }

    /// Notes a peer's address, which FI_SOURCE_ERR reports of strangers.
    pub fn set_addr(&mut self, peer: u32, addr: impl FnOnce() -> Vec<u8>) {
        if let Some(addrs) = &mut self.addrs {
            addrs.insert(peer, addr());
        }
    }

    /// Forgets what is known of a peer, whose number is to be another peer's.
    pub fn forget(&mut self, peer: u32) {
        self.set_name(peer, FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL);
        if let Some(addrs) = &mut self.addrs {
            addrs.remove(&peer);
        }
    }

    /// A peer's fi_addr_t by which receives choose it; FI_ADDR_NOTAVAIL if it has none.
    #[inline]
    pub fn name_of(&self, peer: u32) -> fi_addr_t {
        self.peers.get(peer as usize).map_or(FI_ADDR_NOTAVAIL, |known| known.name)
    }

    /// The source address that completions report for a peer.
    #[inline]
    fn id_of(&self, peer: u32) -> fi_addr_t {
        self.peers.get(peer as usize).map_or(FI_ADDR_NOTAVAIL, |known| known.id)
    }

    /// Bytes of memory that waiting messages take.
    #[inline]
    pub fn kept_bytes(&self) -> usize {
        self.own.kept_bytes + self.shared.as_ref().map_or(0, |shared| locked(shared).kept_bytes)
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

    /// A receive is filled: returns FI_MULTI_RECV if its completion gives a multi-receive buffer
    /// back, 0 otherwise.
    #[inline]
    fn part_filled(&mut self, recv: &Recv) -> u64 {
        if recv.flags & FI_MULTI_RECV == 0 {
            return 0;
        }
        let gives_back = match &self.left {
            Some(left) => locked(left).multi.filled(recv),
            None => self.with(0, |queues| queues.multi.filled(recv)),
        };
        if gives_back == 0 {
            self.ledger.part();
        }
        gives_back
    }

    /// Reports a receive whose message is complete: as a success, or as an error for a message
    /// that was truncated (-FI_ETRUNC) or, with FI_SOURCE_ERR, of an unknown source
    /// (-FI_EADDRNOTAVAIL).
    #[inline]
    pub fn received(&mut self, recv: &Recv, about: &About) {
        let extra = self.part_filled(recv) | (recv.flags & KEPT);
        let entry = self.entry(about, recv.context, recv.buf.address(), extra);
        if about.len > recv.buf.len() {
            let olen = about.len - recv.buf.len();
            let of = Completion { len: recv.buf.len(), ..entry };
            self.ledger.failed(CompletionError { olen, ..CompletionError::new(of, Error::TRUNC) });
        } else if entry.src == FI_ADDR_NOTAVAIL
            && entry.flags & ASIDE == 0
            && let Some(addrs) = &self.addrs
        {
            // The message is received, but its sender has no fi_addr_t: the error entry has its
            // address.
            let data = addrs.get(&about.peer).cloned().unwrap_or_default();
            let error = CompletionError::new(entry, Error::ADDRNOTAVAIL);
            self.ledger.failed(CompletionError { data, ..error });
        } else {
            // The entry that gives a multi-receive buffer back is always written.
            self.ledger.done(entry, self.ledger.wants(recv.flags) || extra & FI_MULTI_RECV != 0);
        }
    }

    /// The short way for the commonest case: all of a message is here, and the oldest receive
    /// matches it. `tag` is that of a tagged message. False in any other case, and then nothing
    /// has been done yet.
    #[inline(always)]
    pub fn receive_plain(&mut self, peer: u32, tag: Option<u64>, bytes: &[u8]) -> bool {
        let tagged = tag.is_some();
        let tag = tag.unwrap_or(0);
        if self.shared.is_some()
            || self.addrs.is_some()
            || (tagged && self.takes_aside(tag))
            || !self.ledger.has_room()
        {
            return false;
        }
        let Known { name, id: src, .. } =
            *self.peers.get(peer as usize).unwrap_or(&Known::STRANGER);
        let posted = &mut self.own.posted[usize::from(tagged)];
        let Some(recv) = posted.first(name, tag) else { return false };
        if recv.flags & (FI_MULTI_RECV | ASIDE | ONLY_TAG) != 0 || recv.buf.len() < bytes.len() {
            return false;
        }
        recv.buf.copy_from(0, bytes);
        let flags = FI_RECV | if tagged { FI_TAGGED } else { FI_MSG };
        let of = Completion::of(recv.context, flags, bytes.len());
        let entry = Completion { buf: recv.buf.address(), tag, src, ..of };
        let wanted = self.ledger.wants(recv.flags);
        posted.drop_first();
        self.ledger.succeeded(entry, wanted);
        true
    }

    /// Reports a receive whose message fails with `error`.
    pub fn failed(&mut self, recv: &Recv, about: &About, error: Error) {
        let extra = self.part_filled(recv) | (recv.flags & KEPT);
        let entry = self.entry(about, recv.context, recv.buf.address(), extra);
        self.ledger.failed(CompletionError::new(entry, error));
    }

    /// Takes out the oldest posted receive that matches a message. Of a multi-receive buffer it
    /// gives the part the message needs.
    #[inline]
    pub fn take_posted(&mut self, about: &About) -> Option<Recv> {
        let (queue, source) = (about.queue(), self.name_of(about.peer));
        self.with(queue, |queues| queues.take_posted(queue, source, about))
    }

    /// Whether a message that no receive waits for is dropped instead of kept: a message of the
    /// library's own whose sender is not in the address vector.
    pub fn drops(&self, about: &About) -> bool {
        about.collective
            && self.name_of(about.peer) == FI_ADDR_NOTAVAIL
            && is_strangers(
                about.tag,
                about.len,
                self.peers.get(about.peer as usize).map_or(0, |peer| peer.kept),
            )
    }

    /// Whether a stranger's message that no receive waits for is too much to keep. All strangers
    /// together may have `most` bytes here, and one of them up to half of what all of them leave
    /// free.
    pub fn is_too_much(&self, about: &About, most: usize) -> bool {
        let known = self.peers.get(about.peer as usize).copied().unwrap_or(Known::STRANGER);
        known.is_stranger() && known.bytes > most.saturating_sub(self.of_strangers) / 2
    }

    /// The waiting messages of a peer, as their queues and numbers.
    pub fn kept_from(&self, peer: u32) -> Vec<(usize, u32)> {
        let of = |queue| {
            let from = |kept: &Message<B>| kept.about.peer == peer;
            self.look(queue, |queues| queues.kept_of(queue, self.owner, from))
        };
        (0..QUEUES).flat_map(|queue| of(queue).into_iter().map(move |id| (queue, id))).collect()
    }

    /// Accounts for a change, from `before` to `after` bytes, of the memory a peer's messages
    /// take.
    fn recount(&mut self, peer: u32, before: usize, after: usize) {
        let known = self.known(peer);
        known.bytes = known.bytes + after - before;
        if known.is_stranger() {
            self.of_strangers = self.of_strangers + after - before;
        }
    }

    /// Keeps a message for a receive that is still to come; returns its number.
    pub fn keep(&mut self, about: About, body: B) -> u32 {
        self.known(about.peer).kept += 1;
        self.recount(about.peer, 0, body.cost() + MESSAGE_COST);
        let (owner, source) = (self.owner, self.name_of(about.peer));
        self.with(about.queue(), |queues| {
            queues.kept_bytes += body.cost() + MESSAGE_COST;
            let message = Message { about, body, owner, source };
            queues.unexpected[about.queue()].push(about.tag, source, message)
        })
    }

    /// Changes the form in which a message waits, and accounts for the memory it takes then.
    pub fn change(&mut self, queue: usize, message: u32, change: impl FnOnce(&mut B)) {
        let changed = self.with(queue, |queues| {
            let kept = queues.unexpected[queue].get_mut(message)?;
            let before = kept.body.cost();
            change(&mut kept.body);
            let after = kept.body.cost();
            queues.kept_bytes = queues.kept_bytes + after - before;
            Some((kept.about.peer, before, after))
        });
        if let Some((peer, before, after)) = changed {
            self.recount(peer, before, after);
        }
    }

    /// Removes a waiting message that came to this endpoint.
    pub fn take_kept(&mut self, queue: usize, message: u32) -> Option<Message<B>> {
        let message = self.with(queue, |queues| queues.take_kept(queue, message))?;
        self.known(message.about.peer).kept -= 1;
        self.recount(message.about.peer, message.body.cost() + MESSAGE_COST, 0);
        Some(message)
    }

    /// The numbers of the messages in one queue that came to this endpoint and wait in a form
    /// for which `form` is true, claimed ones included.
    pub fn kept_as(&self, queue: usize, form: impl Fn(&B) -> bool) -> Vec<u32> {
        self.look(queue, |queues| queues.kept_of(queue, self.owner, |kept| form(&kept.body)))
    }

    /// Whether messages of this peer wait.
    pub fn keeps_from(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_some_and(|known| known.kept > 0)
    }

    /// Whether the application counts on this message: it was claimed by a peek, or reported by
    /// buffered receives.
    pub fn is_claimed(&self, queue: usize, message: u32) -> bool {
        let claimed = |queues: &Queues<B>| queues.claimed.values().any(|of| *of == message);
        (queue == TAGGED && self.look(TAGGED, claimed))
            || self.buffering.as_ref().is_some_and(|buffering| buffering.has_told(queue, message))
    }

    /// Makes the endpoint one with buffered receives (FI_BUFFERED_RECV), whose queues are not
    /// shared.
    pub fn buffer(&mut self, buffering: Box<Buffering>) {
        self.buffering = Some(buffering);
    }

    /// The state of buffered receives, if the endpoint has them.
    #[inline]
    pub fn buffering(&self) -> Option<&Buffering> {
        self.buffering.as_deref()
    }

    /// The state of buffered receives, to change, if the endpoint has them.
    pub fn buffering_mut(&mut self) -> Option<&mut Buffering> {
        self.buffering.as_deref_mut()
    }

    /// Sets the fid by which the contexts of reported messages name the endpoint.
    pub fn set_fid(&mut self, fid: FidPtr) {
        self.fid = fid;
    }

    /// The description of a waiting message.
    pub fn kept_about(&self, queue: usize, message: u32) -> Option<About> {
        self.look(queue, |queues| queues.unexpected[queue].get(message).map(|kept| kept.about))
    }

    /// The form in which a message of this endpoint's own queues waits.
    pub fn kept_body(&self, queue: usize, message: u32) -> Option<&B> {
        self.own.unexpected[queue].get(message).map(|kept| &kept.body)
    }

    /// Makes a message one that no receive or peek finds any more.
    pub fn hide(&mut self, queue: usize, message: u32) {
        self.own.unexpected[queue].claim(message);
    }

    /// Reports a kept message to be claimed or discarded: all of it, or this start. `posted` is
    /// the context of the tag it met, if it waited for one.
    pub fn announce(
        &mut self,
        queue: usize,
        message: u32,
        start: Option<Box<[u8]>>,
        posted: Option<Context>,
    ) {
        let Some(kept) = self.own.unexpected[queue].get(message) else { return };
        let (at, more) = match (&start, kept.body.bytes()) {
            (Some(start), _) => (start.as_ptr(), FI_MORE),
            (None, Some(bytes)) => (bytes.as_ptr(), 0),
            (None, None) => return,
        };
        let about = kept.about;
        let Some(buffering) = &mut self.buffering else { return };
        let context = buffering.tell((queue, message), self.fid, posted, start);
        self.ledger.announced(self.entry(&about, context, at as usize, more), posted.is_some());
    }

    /// Posts a tag on an endpoint with buffered receives; returns the message that it meets, if
    /// one waits.
    pub fn post_tag(&mut self, op: RecvOp) -> Option<(u32, About)> {
        if let Some(buffering) = &mut self.buffering {
            buffering.post_tags();
        }
        let pattern = self.pattern(&op, false);
        let Some(message) = self.own.find(TAGGED, pattern) else {
            let recv = Recv::new(RecvBuf::none(), op.context, op.flags);
            self.own.posted[TAGGED].push(pattern, recv);
            return None;
        };
        Some((message, self.kept_about(TAGGED, message)?))
    }

    /// FI_CLAIM or FI_DISCARD with the context by which a message was reported; none if there is
    /// no such message.
    fn settle_told(
        &mut self,
        op: &RecvOp,
        queue: usize,
        meetings: &mut Vec<Meeting>,
    ) -> Option<Option<Seen>> {
        let (message, context) = self.buffering.as_mut()?.take(op.context, queue)?;
        let discard = op.flags & FI_DISCARD != 0;
        let recv = (!discard).then(|| Recv::new(op.buf.clone(), context, op.flags));
        self.own.meet(queue, message, recv, meetings);
        let kept = self.own.unexpected[queue].get(message).filter(|_| discard);
        // A discarded message is counted like a claimed one; the announcement was its completion
        // entry.
        Some(kept.map(|kept| Seen {
            owner: kept.owner,
            about: kept.about,
            context: op.context,
            buf: 0,
            flags: 0,
            counts: true,
        }))
    }

    /// Which messages a receive matches. A receive of the library's own is always restricted to
    /// the source it names: what a message says of its sender is not to be believed.
    fn pattern(&self, op: &RecvOp, own: bool) -> Pattern {
        let chooses = self.directed || own;
        let src = (chooses && op.src != FI_ADDR_UNSPEC).then_some(op.src);
        Pattern { src, tag: op.tag, ignore: op.ignore }
    }

    /// fi_recv and fi_trecv, in all their forms. Waiting messages that match go to `meetings`,
    /// and are to be taken with [`take_kept`](Self::take_kept) before anything else is done.
    #[inline]
    pub fn post(&mut self, op: RecvOp, tagged: bool, meetings: &mut Vec<Meeting>) -> Result {
        let collective = op.flags & ASIDE != 0 && tagged && self.takes_aside(op.tag);
        let queue = usize::from(tagged) + usize::from(collective);
        let pattern = self.pattern(&op, collective);
        if op.flags & FI_MULTI_RECV != 0 && !op.buf.is_contiguous() {
            // A multi-receive buffer must be contiguous: messages get its parts front to back.
            return Err(Error::INVAL);
        }
        let recv = Recv::new(op.buf, op.context, op.flags);
        match &self.shared {
            Some(shared) if queue != COLLECTIVE => {
                locked(shared).post_any(queue, pattern, recv, meetings);
            }
            _ if self.own.unexpected[queue].is_empty() => {
                self.own.posted[queue].push(pattern, recv);
            }
            _ => self.own.post_any(queue, pattern, recv, meetings),
        }
        Ok(())
    }

    /// FI_PEEK, FI_CLAIM and FI_DISCARD of tagged receives; with buffered receives FI_CLAIM and
    /// FI_DISCARD of untagged ones, too. For a peek the caller makes progress first. `meetings`
    /// is as in [`post`](Self::post); the inbox of its owner is to report what was seen before
    /// the meetings.
    pub fn special(
        &mut self,
        op: RecvOp,
        tagged: bool,
        meetings: &mut Vec<Meeting>,
    ) -> Result<Option<Seen>> {
        let pattern = self.pattern(&op, false);
        if op.flags & FI_PEEK == 0 {
            if let Some(settled) = self.settle_told(&op, usize::from(tagged), meetings) {
                return Ok(settled);
            }
            if self.buffering.is_some() && (!tagged || op.flags & FI_CLAIM == 0) {
                return Err(Error::INVAL);
            }
            return self.with(TAGGED, |queues| queues.settle(op, meetings));
        }
        if op.flags & FI_CLAIM != 0 && op.flags & FI_DISCARD != 0 {
            return Err(Error::BADFLAGS);
        }
        let seen = self.with(TAGGED, |queues| queues.peek(&op, pattern, meetings))?;
        if seen.is_none() {
            self.report_no_message(&op);
        }
        Ok(seen)
    }

    /// Reports a message of this endpoint that was peeked at, claimed or discarded.
    pub fn report_seen(&self, seen: &Seen) {
        let entry = self.entry(&seen.about, seen.context, seen.buf, 0);
        let wanted = self.ledger.wants(seen.flags);
        if seen.counts {
            self.ledger.done(entry, wanted);
        } else {
            self.ledger.looked_at(entry, wanted);
        }
    }

    /// Reports a peek that found no message: an error entry with -FI_ENOMSG.
    fn report_no_message(&self, op: &RecvOp) {
        let of = nothing(op.context, FI_RECV | FI_TAGGED, 0, op.tag);
        self.ledger.found_none(CompletionError::new(of, Error::NOMSG));
    }

    /// fi_cancel: takes the receive with this context back.
    pub fn cancel(&mut self, context: Context, aside: bool) {
        let is = |recv: &Recv| recv.context == context && (recv.flags & ASIDE != 0) == aside;
        for queue in 0..QUEUES {
            if let Some(recv) = self.with(queue, |queues| queues.posted[queue].take_if(is)) {
                self.cancelled(queue, &recv);
                return;
            }
        }
    }

    /// Cancels all posted receives, as when the endpoint is closed. Receives of a shared receive
    /// context stay until that one is closed.
    pub fn cancel_all(&mut self) {
        if self.shared.is_some() && !self.hosts {
            return;
        }
        for queue in 0..QUEUES {
            for recv in self.with(queue, |queues| queues.posted[queue].drain()) {
                self.cancelled(queue, &recv);
            }
        }
        // A buffered message that met a tag and is not complete counts as a posted receive
        // still.
        let Some(buffering) = &mut self.buffering else { return };
        for (queue, message, posted) in buffering.take_all_owed() {
            self.cancelled(queue, &Recv::new(RecvBuf::none(), posted, 0));
            self.take_kept(queue, message);
        }
    }

    /// Discards all messages that were claimed by a peek, or reported by buffered receives.
    pub fn discard_claimed(&mut self, meetings: &mut Vec<Meeting>) {
        self.with(TAGGED, |queues| {
            for (_, message) in std::mem::take(&mut queues.claimed) {
                queues.meet(TAGGED, message, None, meetings);
            }
        });
        let Some(buffering) = &mut self.buffering else { return };
        for (queue, message) in buffering.take_all_told() {
            self.own.meet(queue, message, None, meetings);
        }
    }

    fn cancelled(&mut self, queue: usize, recv: &Recv) {
        let mut flags = FI_RECV | if queue == 0 { FI_MSG } else { FI_TAGGED };
        flags |= recv.flags & ASIDE;
        let gives_back = self.with(0, |queues| queues.multi.cancelled(recv));
        if recv.flags & FI_MULTI_RECV != 0 && gives_back == 0 {
            // The buffer is given back by its last part, which is being filled.
            self.ledger.part();
        }
        flags |= gives_back;
        let of = nothing(recv.context, flags, recv.buf.address(), 0);
        self.ledger.failed(CompletionError::new(of, Error::CANCELED));
    }
}

impl<B: Body> Queues<B> {
    #[inline]
    fn take_posted(&mut self, queue: usize, source: fi_addr_t, about: &About) -> Option<Recv> {
        let posted = &mut self.posted[queue];
        let taken = posted.take(source, about.tag)?;
        Some(self.multi.part_of(posted, taken, about.len, self.min_multi_recv))
    }

    fn take_kept(&mut self, queue: usize, message: u32) -> Option<Message<B>> {
        let message = self.unexpected[queue].remove(message)?;
        self.kept_bytes -= message.body.cost() + MESSAGE_COST;
        Some(message)
    }

    /// The numbers of an endpoint's messages for which the condition is true.
    fn kept_of(&self, queue: usize, owner: u32, like: impl Fn(&Message<B>) -> bool) -> Vec<u32> {
        let unexpected = &self.unexpected[queue];
        let is = |id: &u32| unexpected.get(*id).is_some_and(|m| m.owner == owner && like(m));
        unexpected.ids().into_iter().filter(is).collect()
    }

    /// Changes the name by which receives find the messages of an endpoint's peer.
    fn rename(&mut self, queue: usize, owner: u32, peer: u32, name: fi_addr_t) {
        if self.unexpected[queue].is_empty() {
            return;
        }
        for id in self.kept_of(queue, owner, |kept| kept.about.peer == peer) {
            if let Some(kept) = self.unexpected[queue].get_mut(id) {
                kept.source = name;
            }
            self.unexpected[queue].set_source(id, name);
        }
    }

    fn find(&mut self, queue: usize, pattern: Pattern) -> Option<u32> {
        self.unexpected[queue].find(pattern)
    }

    fn meet(&self, queue: usize, message: u32, recv: Option<Recv>, meetings: &mut Vec<Meeting>) {
        if let Some(Message { owner, .. }) = self.unexpected[queue].get(message) {
            meetings.push(Meeting { queue, message, recv, owner: *owner });
        }
    }

    #[inline(never)]
    fn post_any(
        &mut self,
        queue: usize,
        pattern: Pattern,
        recv: Recv,
        meetings: &mut Vec<Meeting>,
    ) {
        if self.unexpected[queue].is_empty() {
            self.posted[queue].push(pattern, recv);
            return;
        }
        if recv.flags & FI_MULTI_RECV != 0 {
            // A multi-receive buffer may take many waiting messages. It is the oldest matching
            // receive for all of them: what an older one matches is not waiting.
            self.posted[queue].push(pattern, recv);
            while !self.posted[queue].is_empty()
                && let Some(number) = self.find(queue, pattern)
                && let Some(kept) = self.unexpected[queue].get(number)
                && let (about, source) = (kept.about, kept.source)
                && let Some(recv) = self.take_posted(queue, source, &about)
            {
                self.unexpected[queue].claim(number);
                self.meet(queue, number, Some(recv), meetings);
            }
            return;
        }
        match self.find(queue, pattern) {
            Some(message) => self.meet(queue, message, Some(recv), meetings),
            None => self.posted[queue].push(pattern, recv),
        }
    }

    /// FI_PEEK, alone or with FI_CLAIM or FI_DISCARD.
    fn peek(
        &mut self,
        op: &RecvOp,
        pattern: Pattern,
        meetings: &mut Vec<Meeting>,
    ) -> Result<Option<Seen>> {
        let Some(number) = self.find(TAGGED, pattern) else { return Ok(None) };
        let Some(message) = self.unexpected[TAGGED].get(number) else { return Ok(None) };
        // As much of the message as the caller has room for, if it is here; the entry
        // names the buffer only when something was put there.
        let copied = message.body.bytes().map_or(0, |bytes| op.buf.copy_from(0, bytes));
        let seen = Seen {
            owner: message.owner,
            about: message.about,
            context: op.context,
            buf: if copied > 0 { op.buf.address() } else { 0 },
            flags: op.flags,
            counts: false,
        };
        if op.flags & FI_CLAIM != 0 {
            if self.claimed.contains_key(&(op.context.0 as usize)) {
                return Err(Error::INVAL);
            }
            self.unexpected[TAGGED].claim(number);
            self.claimed.insert(op.context.0 as usize, number);
        }
        if op.flags & FI_DISCARD != 0 {
            self.meet(TAGGED, number, None, meetings);
        }
        Ok(Some(seen))
    }

    /// FI_CLAIM of a message that was claimed by a peek, to receive or to drop it.
    fn settle(&mut self, op: RecvOp, meetings: &mut Vec<Meeting>) -> Result<Option<Seen>> {
        if op.flags & FI_CLAIM == 0 {
            // FI_DISCARD alone names no message.
            return Err(Error::BADFLAGS);
        }
        let number = self.claimed.remove(&(op.context.0 as usize)).ok_or(Error::INVAL)?;
        if op.flags & FI_DISCARD == 0 {
            // The completion is that of any receive: only buffered messages are marked with
            // FI_CLAIM.
            let recv = Recv::new(op.buf, op.context, op.flags & !FI_CLAIM);
            self.meet(TAGGED, number, Some(recv), meetings);
            return Ok(None);
        }
        self.meet(TAGGED, number, None, meetings);
        Ok(self.unexpected[TAGGED].get(number).map(|message| Seen {
            owner: message.owner,
            about: message.about,
            context: op.context,
            buf: 0,
            flags: op.flags,
            counts: true,
        }))
    }
}

fn nothing(context: Context, flags: u64, buf: usize, tag: u64) -> Completion {
    Completion { context, flags, len: 0, buf, data: 0, tag, src: FI_ADDR_NOTAVAIL }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Body for usize {
        fn bytes(&self) -> Option<&[u8]> {
            None
        }
        fn cost(&self) -> usize {
            *self
        }
    }

    fn from(peer: u32) -> About {
        About { tagged: false, collective: false, tag: 0, len: 0, cq_data: None, peer }
    }

    #[test]
    fn strangers_leave_half_of_what_others_of_them_left_over_and_named_peers_any_number() {
        const MOST: usize = 1_000_000;
        let mut inbox = Inbox::<usize>::new(0, false, false, 64);
        inbox.set_name(2, 7, 7);
        let fill = |inbox: &mut Inbox<usize>, peer| {
            let mut kept = Vec::new();
            while !inbox.is_too_much(&from(peer), MOST) && kept.len() < 10_000 {
                kept.push(inbox.keep(from(peer), 1000));
            }
            kept
        };
        let (one, two) = (fill(&mut inbox, 0), fill(&mut inbox, 1));
        assert!(one.len() > two.len() && one.len() < 400 && two.len() > 100, "{}", one.len());
        assert_eq!(fill(&mut inbox, 2).len(), 10_000);
        assert!(inbox.of_strangers <= MOST);
        assert_eq!(inbox.kept_from(1).len(), two.len());
        // What has a name now is no stranger's, and what is taken is nobody's.
        inbox.set_name(0, 8, 8);
        assert_eq!(inbox.of_strangers, inbox.peers[1].bytes);
        for message in two {
            inbox.change(0, message, |body| *body = 5);
            assert!(inbox.take_kept(0, message).is_some());
        }
        assert_eq!((inbox.of_strangers, inbox.peers[1].bytes), (0, 0));
        inbox.forget(0);
        assert_eq!(inbox.of_strangers, inbox.peers[0].bytes);
    }
}
