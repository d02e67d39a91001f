//! The engine of a domain: all its endpoints and connections, and what makes
//! them move.
//!
//! One lock guards it all (fi_domain(3): under FI_THREAD_DOMAIN with manual progress it costs
//! nothing). Sends go out from the caller's thread when the link takes them ([`tx`]); messages are
//! matched as bytes arrive ([`rx`]) with the receives that were posted ([`post`]), in an endpoint's
//! [`Inbox`](ofi_provider::inbox::Inbox); connections are made and ended in [`cm`], those between
//! contexts of scalable endpoints with the help of [`contexts`]. Atomic operations are in
//! [`atomic`].
//!
//! A turn that finds nothing is one system call. While one connection alone moves it is *hot*: it
//! is read directly, and the poller, which tells of all others, is asked less often the longer it
//! has nothing to tell. When several move, or others want the processor and nothing moved in the turn
//! before, the poller is asked each time. Who looks in vain again and again gives way ([`courtesy`]).
//! Idle connections cost nothing. Where one call can read or write several links ([`Net::is_ring`]),
//! the poller is asked in every turn, and those calls are used ([`together`]). Connections whose bytes
//! come through memory have rules of their own ([`nearby`]).
mod adaptor;
mod arrival;
mod atomic;
mod batch;
mod buffered;
mod cm;
mod conn;
mod contexts;
mod courier;
mod endpoints;
mod ep;
mod facts;
mod incoming;
mod nearby;
mod post;
mod reclaim;
mod rx;
mod sleepers;
mod state;
mod together;
mod trace;
mod transfer;
mod tx;
mod zerocopy;

pub use cm::{ACCEPTS, BACKLOG, CONNECT_TIMEOUT, DEAF_DELAY, StreamRequest, is_shortage};
pub use courier::Courier;
pub use ep::{StreamEpKind, StreamIdentity, TargetOf};
pub use state::StreamState;

use crate::callers::Callers;
use crate::net::{ByteLink, LateVisits, LinkOp, LinkPoller, Net, Visited};
use batch::Burst;
use conn::StreamConn;
use ofi_provider::buf::{GatherList, Way, zeroed};
use ofi_provider::calls::CallPace;
use ofi_provider::closing::CloseBudget;
use ofi_provider::courtesy::{self, Courtesy, Looks};
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::imports::StartsWake;
use ofi_provider::lock::{Guard, Level, Lock};
use ofi_provider::mr::{Lender, MrTable};
use ofi_provider::progress::{Activity, Progress};
use ofi_provider::ring::ShortCells;
use ofi_provider::slab::{NONE, Slab};
use ofi_provider::sys::Interest;
use rx::PlainRead;
use sleepers::Sleepers;
use state::{TOKEN_CALLER, TOKEN_CONN, TOKEN_LISTENER};
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use transfer::CopiedPacket;

/// Most connections on the hot list (`StreamState::hot`). Only a single hot connection is read
/// without asking the poller; from two on the poller is asked, so a longer list would gain nothing.
const MAX_HOT: usize = 2;

/// Reads in a row that find nothing after which a connection leaves the hot list.
const COLD_AFTER: u32 = 4096;

/// Most turns of progress that may pass before the poller is asked again.
const MAX_POLL_GAP: u32 = 64;

/// Turns without a result, since something moved last, in which the hot connection is read
/// directly even if the application does not poll in quick succession (`Looks::are_at_once`).
const FEW: u32 = 2;

/// Looks in vain at the memory of one or two connections that count as one: such a look takes hardly
/// more than one at the clock.
const MEMORY_LOOKS: u32 = 4;

/// A connection leaves the hot list after others moved so many times while it did not.
const LEFT_BEHIND: u32 = 16;

/// How often connections are looked at that are not read, and of whose end the poller may not tell.
const UNREAD_LOOK: Duration = Duration::from_secs(1);

/// How long operations wait for the answer of a peer that has ended, where the next message before the answer waits for a
/// receive.
const ANSWER_GRACE: Duration = Duration::from_secs(3);

/// A domain's engine.
pub struct StreamEngine<N: Net> {
    state: Lock<StreamState<N>>,
    /// Readable when something happens that the engine waits for.
    wait_fd: RawFd,
    activity: Activity,
    /// Bounds the time that closing endpoints takes.
    closing: CloseBudget,
    /// Wakes threads that sleep when another provider starts a message.
    starts: StartsWake,
    /// The process that made the engine. A forked child has a copy of the engine, but shares its
    /// links and its poller with the parent ([`StreamEngine::is_copy`]).
    pid: u32,
}

/// The engines of all domains that are open.
static LIVE: Mutex<Vec<Weak<dyn Live>>> = Mutex::new(Vec::new());

/// An engine, whatever it stands on.
trait Live: Send + Sync {
    /// Sends what is held back, unless this is a forked child's copy.
    fn flush(&self);
}

/// How often a process that ends asks for an engine that another thread is using, and how long it waits each
/// time. A thread has it for a short while only, unless it is the one that ends the process.
const LAST_ASKS: usize = 100;
const LAST_PAUSE: Duration = Duration::from_micros(100);

impl<N: Net> Live for StreamEngine<N> {
    fn flush(&self) {
        // Without threads of the library's own nothing is held back.
        if self.is_copy() || !self.state.admits_visitors() {
            return;
        }
        for _ in 0..LAST_ASKS {
            if self.visited() {
                return;
            }
            std::thread::sleep(LAST_PAUSE);
        }
    }
}

fn live() -> MutexGuard<'static, Vec<Weak<dyn Live>>> {
    LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Sends what is held back in any domain of this process, as far as links take it now.
pub(crate) fn flush_all() {
    // In a forked child the lock of the list may be held for ever, by a thread that only the
    // parent has.
    let Ok(live) = LIVE.try_lock() else { return };
    live.iter().filter_map(Weak::upgrade).for_each(|engine| engine.flush());
}

impl<N: Net> std::fmt::Debug for StreamEngine<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamEngine")
    }
}

impl<N: Net> StreamEngine<N> {
    /// A new engine on `net`, for a domain with these registered regions. `level` says whether the
    /// engine's lock is needed at all (it costs nothing if the application serializes its
    /// calls); without `threads` the engine starts no thread.
    pub fn new(net: N, level: Level, threads: bool, regions: Arc<MrTable>) -> Result<Arc<Self>> {
        let wait_fd = net.wait_fd();
        let of_peers = regions.clone();
        let state = StreamState {
            net,
            conns: Slab::default(),
            eps: Slab::default(),
            listeners: HashMap::new(),
            bound: HashMap::new(),
            hot: Vec::with_capacity(MAX_HOT),
            local: Vec::new(),
            sleepers: Sleepers::default(),
            awake: 0,
            staging: zeroed(N::Link::settings().prefetch)?,
            packet: Box::new([0; size_of::<CopiedPacket>()]),
            starved: Vec::new(),
            crowded: Vec::new(),
            unread: Vec::new(),
            looked_for: Vec::new(),
            held: Vec::new(),
            courier: None,
            turns: 1,
            forsaken: 0,
            batches: 0,
            idle: 0,
            looks: Looks::default(),
            since_poll: 0,
            poll_gap: 1,
            events: Vec::with_capacity(64),
            deaf: Vec::new(),
            wakes: None,
            rooms: Vec::new(),
            left_in: 0,
            left: Burst::default(),
            callers: Callers::new(TOKEN_CALLER, usize::MAX),
            awaited: VecDeque::new(),
            calls: CallPace::default(),
            line: VecDeque::new(),
            guests: VecDeque::new(),
            leaving: VecDeque::new(),
            hearing: NONE,
            owed: 0,
            started: None,
            regions,
            facts: N::facts(),
            show_at: 0,
            visits: 0,
            serves: false,
        };
        let state = Lock::with_level(state, level.clone());
        let pid = std::process::id();
        let engine = Arc::new(Self {
            state,
            wait_fd,
            activity: Activity::default(),
            closing: CloseBudget::default(),
            starts: StartsWake::default(),
            pid,
        });
        let lender: Weak<Self> = Arc::downgrade(&engine);
        of_peers.set_lender(lender);
        let mut live = live();
        live.retain(|engine| engine.strong_count() > 0);
        let flushes: Weak<Self> = Arc::downgrade(&engine);
        live.push(flushes);
        drop(live);
        if threads && !matches!(level, Level::Serialized) && N::Link::settings().batch > 0 {
            let mut state = engine.lock();
            let visited: Weak<Self> = Arc::downgrade(&engine);
            state.courier = Some(state.net.visits(visited)?);
        }
        Ok(engine)
    }

    /// Whether this engine is a forked child's copy of its parent's. Closing a copy must not touch
    /// what both processes share: the connections, and what the poller watches.
    pub fn is_copy(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Called after a turn that moved nothing: offers the processor to other threads, or sleeps,
    /// as [`courtesy`] advises.
    #[inline(always)]
    fn give_way(&self, mut state: Guard<'_, StreamState<N>>) {
        let first = state.idle == 1;
        let in_memory = state.hot.is_empty() && matches!(state.local.len(), 1 | 2);
        if in_memory && !first && !state.idle.is_multiple_of(MEMORY_LOOKS) {
            return;
        }
        let offer = state.looks.in_vain(first);
        if state.looks.last() >= state.show_at {
            state.show();
        }
        let Some(offer) = offer else { return };
        if offer != Courtesy::Processor && !state.prepare_to_block() {
            return;
        }
        drop(state);
        offer.make(self.wait_fd());
        if let Some(mut state) = self.state.lock_if_idle() {
            state.looks.offered();
        }
    }

    /// Takes the engine's lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, StreamState<N>> {
        self.state.lock()
    }
}

impl<N: Net> Visited for StreamEngine<N> {
    fn visited(&self) -> bool {
        self.state.visit(StreamState::flush_forsaken).is_some()
    }
}

impl<N: Net> Lender for StreamEngine<N> {
    fn closing(&self, key: u64) {
        if !self.is_copy() {
            self.lock().save_answers(key);
        }
    }
}

impl<N: Net> Progress for StreamEngine<N> {
    #[inline]
    fn progress(&self) {
        self.activity.another();
        if !heap::may_progress() {
            return;
        }
        // The thread that holds the lock is making progress, or about to let go of it.
        if let Some(mut state) = self.state.lock_if_idle() {
            state.look_around();
            if state.idle != 0 {
                self.give_way(state);
            }
        }
    }

    fn visit(&self) -> bool {
        let visit = self.state.visit(|state| {
            // Not without the lock: what was signalled is taken up below.
            self.starts.undo();
            state.visits += 1;
            state.turn();
            state.prepare_to_sleep()
        });
        visit.unwrap_or(false)
    }

    fn wait_fd(&self) -> RawFd {
        self.wait_fd
    }

    fn wake_fds(&self) -> [Option<RawFd>; 2] {
        [self.starts.fd(), None]
    }

    fn may_block(&self) -> bool {
        self.starts.undo();
        self.lock().prepare_to_sleep()
    }

    fn stands_back(&self) {
        // Whoever holds the lock makes progress, and this thread comes again.
        self.state.visit(StreamState::wake_up);
    }

    fn is_serialized(&self) -> bool {
        self.state.is_serialized()
    }

    fn activity(&self) -> u64 {
        self.activity.count()
    }
}

impl<N: Net> StreamState<N> {
    /// One turn of progress: feeds starved connections, sends held messages, and reads what the
    /// poller reports or the hot connection has.
    #[inline(never)]
    pub(crate) fn turn(&mut self) {
        self.look_around();
    }

    /// [`StreamState::turn`], inlined into its caller.
    #[inline(always)]
    fn look_around(&mut self) {
        self.turns += 1;
        self.idle = self.idle.wrapping_add(1);
        self.facts.turn(self.turns);
        // One test for the three, of which there is nearly always none.
        if self.starved.len() | self.crowded.len() | self.held.len() != 0 {
            self.go_on_with_what_waits();
        }
        // Nearly always there is one connection to look at, with messages on it or nothing.
        let first = match self.local[..] {
            [only] if self.may_look_quickly() => {
                let came = self.read_plain_nearby(only);
                if self.is_quick(came) {
                    return;
                }
                Some(came)
            }
            _ => None,
        };
        self.look_further(first);
    }

    /// The rest of a turn. `first`: what came of the look at the one connection whose bytes come through
    /// memory, if it was looked at.
    #[inline(never)]
    fn look_further(&mut self, first: Option<ShortCells>) {
        if self.turns.is_multiple_of(facts::SHOWN_EACH) {
            self.show();
            if !self.unread.is_empty() {
                self.look_at_unread();
            }
        }
        if !self.local.is_empty() && self.look_nearby(first) {
            return;
        }
        self.since_poll += 1;
        // A look at the one connection that moves costs what a look at all by the poller does, and
        // finds what is there with one call less. But others are heard later, which matters where the
        // processor is others' in between: one that moved just now was no reason to give it away.
        let directly = || self.idle <= FEW || self.looks.are_at_once();
        if let [only] = self.hot[..]
            && self.since_poll < self.poll_gap
            && (self.idle == 1 || (directly() && !courtesy::is_shared()))
        {
            self.look_at(only);
        } else {
            self.since_poll = 0;
            self.ask_poller();
        }
    }

    /// Goes on with what waits for room, for memory, or for the next turn.
    #[inline(never)]
    fn go_on_with_what_waits(&mut self) {
        if !self.starved.is_empty() {
            self.feed_starved();
        }
        if !self.crowded.is_empty() {
            self.keep_crowded();
        }
        if !self.held.is_empty() {
            self.flush_held();
        }
    }

    /// Reads the connection that moved last.
    #[inline(always)]
    fn look_at(&mut self, id: u32) {
        let moved = match self.read_plain(id) {
            PlainRead::Done => {
                self.idle = 0;
                return;
            }
            PlainRead::Moved => true,
            PlainRead::Nothing => false,
            // Reading the link again and again would hinder the system in filling it, and take the
            // large message in small pieces; asking the poller does not.
            PlainRead::Not if self.conns.get(id).is_some_and(StreamConn::is_in_large) => {
                self.since_poll = 0;
                return self.ask_poller();
            }
            PlainRead::Not => self.service_any(id),
        };
        // `service` may have taken it off the list.
        if self.hot.first() != Some(&id) {
            return;
        }
        if moved {
            self.idle = 0;
            return;
        }
        let conn = &mut self.conns[id];
        conn.misses += 1;
        if conn.misses > COLD_AFTER {
            self.cool(id);
        }
    }

    fn ask_poller(&mut self) {
        self.take_started();
        self.wake_up();
        self.watch_looked_at();
        let mut events = std::mem::take(&mut self.events);
        self.net.poll(&mut events);
        let (mut news, mut moved) = (false, false);
        let mut ready = Vec::new();
        for event in events.drain(..) {
            let id = event.token as u32;
            match event.token & !u64::from(u32::MAX) {
                TOKEN_CONN => {
                    // The connection may be gone since the event was reported.
                    if self.conns.get(id).is_some() {
                        news |= !self.hot.contains(&id) && !self.local.contains(&id);
                        moved = true;
                        self.look_for_end(id);
                        if self.net.is_ring() {
                            ready.push(id);
                        } else if self.service(id) {
                            self.heat(id);
                        }
                    }
                }
                TOKEN_LISTENER => {
                    news = true;
                    self.accept_all(id);
                }
                TOKEN_CALLER => {
                    news = true;
                    self.hear_caller(id);
                }
                _ => {
                    news = true;
                    self.retry_refused();
                }
            }
        }
        if !ready.is_empty() {
            self.serve_together(&ready);
        }
        self.events = events;
        if !self.line.is_empty() {
            self.call_next();
        }
        if news || moved {
            self.idle = 0;
        }
        self.poll_gap = if news { 1 } else { (self.poll_gap * 2).min(MAX_POLL_GAP) };
    }

    /// If a connection is not read now, since a message on it waits for a receive, and its peer has ended, what is under
    /// way to the peer ends; what came of it stays. Operations that await the peer's answer are given [`ANSWER_GRACE`]:
    /// the answer may be behind that message.
    fn look_for_end(&mut self, id: u32) {
        let Some(conn) = self.conns.get(id).filter(|conn| conn.blocked) else { return };
        let (unsent, awaits) = (conn.is_lending() || conn.has_unsent(), conn.awaits_answers());
        if !(unsent || awaits) || !conn.link.has_ended() {
            return;
        }
        if unsent {
            self.end_sending(id, Error::CONNRESET);
        }
        let now = self.net.now();
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.awaits_answers()) else {
            return;
        };
        let [came, _] = conn.received.get();
        match conn.ended_at {
            Some((at, before)) if before == came => {
                if now >= at + ANSWER_GRACE {
                    self.end_awaiting(id, Error::CONNRESET);
                }
            }
            // The application takes messages: the answer may be next.
            _ => conn.ended_at = Some((now, came)),
        }
    }

    /// Looks at the connections of whose end the poller may not tell, and again later while there are some.
    pub(super) fn look_for_hidden_ends(&mut self) {
        for (id, serial) in std::mem::take(&mut self.looked_for) {
            if self.conns.get(id).is_some_and(|conn| conn.serial == serial) {
                self.look_for_end(id);
                // Notes it again if it still is one.
                self.watch(id);
                self.look_for_later(id);
            }
        }
    }

    /// Has the timer look at a connection that is not read and has operations that await the peer's answers.
    fn look_for_later(&mut self, id: u32) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.blocked && conn.awaits_answers() {
            self.note_hidden(id, conn.serial);
        }
    }

    fn note_hidden(&mut self, id: u32, serial: u64) {
        if !self.looked_for.contains(&(id, serial)) {
            self.looked_for.push((id, serial));
            self.wake_in(UNREAD_LOOK);
        }
    }

    /// Notes a connection that is not read from now on. Operations that await answers there may be posted later, by short
    /// ways that know nothing of this: [`StreamState::look_at_unread`] finds them.
    pub(super) fn note_unread(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if !std::mem::replace(&mut conn.is_listed_unread, true) {
            self.unread.push((id, conn.serial));
        }
    }

    /// Looks through the connections that were not read when they were noted.
    #[cold]
    fn look_at_unread(&mut self) {
        for (id, serial) in std::mem::take(&mut self.unread) {
            let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.serial == serial) else {
                continue;
            };
            conn.is_listed_unread = conn.blocked;
            if conn.blocked {
                self.unread.push((id, serial));
                self.look_for_later(id);
            }
        }
    }

    /// Gives one connection a turn: goes on connecting, sends what waits, reads. Returns whether
    /// anything moved.
    #[inline(always)]
    fn service(&mut self, id: u32) -> bool {
        match self.read_plain(id) {
            PlainRead::Done | PlainRead::Moved => true,
            PlainRead::Nothing => false,
            PlainRead::Not => self.service_any(id),
        }
    }

    #[inline(never)]
    fn service_any(&mut self, id: u32) -> bool {
        let was_connected = self.conns.get(id).is_some_and(StreamConn::is_connected);
        let mut moved = self.advance(id);
        if was_connected && self.conns.get(id).is_some_and(|conn| !conn.blocked) {
            moved |= self.read(id);
        }
        if moved && let Some(conn) = self.conns.get_mut(id) {
            conn.misses = 0;
        }
        moved
    }

    /// A connection's turn but for reading: handshake, zero-copy notices, sending what waits.
    /// Returns whether anything moved.
    fn advance(&mut self, id: u32) -> bool {
        let Some(conn) = self.conns.get(id) else { return false };
        if !conn.is_connected() {
            return self.handshake(id);
        }
        let mut moved = false;
        if conn.is_lending() {
            moved |= self.reclaim(id);
        }
        if self.conns.get(id).is_some_and(StreamConn::has_unsent) {
            moved |= self.flush(id);
        }
        moved
    }

    /// Puts a connection that moved on the hot list: it is read in every turn while no other moves.
    /// Where one call reads several links no connection is hot: one call asks the poller about all,
    /// another reads all of them.
    fn heat(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.misses = 0;
        if conn.link.hears_locally() {
            return self.heat_nearby(id);
        }
        if self.hot.len() > 1 || self.hot.first().is_some_and(|only| *only != id) {
            self.leave_behind(id);
        }
        if self.hot.contains(&id) {
            return;
        }
        if self.hot.len() < MAX_HOT && !self.net.is_ring() {
            self.hot.push(id);
        } else {
            self.watch(id);
        }
    }

    /// Called when one of several hot connections, `moved`, has moved: others that have not for
    /// long ([`LEFT_BEHIND`]) leave the hot list.
    fn leave_behind(&mut self, moved: u32) {
        let mut index = 0;
        while let Some(&id) = self.hot.get(index) {
            let conn = &mut self.conns[id];
            conn.misses += u32::from(id != moved);
            if id != moved && conn.misses > LEFT_BEHIND {
                self.cool(id);
            } else {
                index += 1;
            }
        }
    }

    /// Makes the poller watch for what the connections wait for that are looked at without it.
    fn watch_looked_at(&mut self) {
        for index in (0..self.hot.len()).rev() {
            let id = self.hot[index];
            if self.conns.get(id).is_some_and(|conn| conn.link.hears_locally()) {
                self.hot.remove(index);
                self.heat_nearby(id);
            } else {
                self.watch(id);
            }
        }
        for index in 0..self.local.len() {
            self.watch(self.local[index]);
        }
    }

    fn cool(&mut self, id: u32) {
        self.hot.retain(|hot| *hot != id);
        self.watch(id);
    }

    /// Makes the poller watch for what the connection waits for.
    fn watch(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let wanted = Interest {
            read: !conn.blocked && !conn.is_connecting(),
            write: conn.is_connecting() || (conn.is_connected() && conn.has_unsent()),
        };
        // A link that waits for nothing is taken out: the poller would go on to report its end,
        // which has no effect before the link is read again. But zero-copy notices are reported
        // whatever the link is watched for, as long as it is watched at all.
        let watched = wanted != Interest::NONE || conn.is_lending();
        let unread = (conn.blocked && watched && conn.link.hides_end()).then_some(conn.serial);
        let before = (std::mem::replace(&mut conn.watched, watched), conn.interest);
        conn.interest = wanted;
        let (link, token) = (conn.link.id(), TOKEN_CONN | u64::from(id));
        let poller = self.net.poller();
        let _ = match (before, watched) {
            ((true, interest), true) if interest == wanted => Ok(()),
            ((true, _), true) => poller.modify(link, token, wanted),
            ((true, _), false) => {
                poller.remove(link);
                Ok(())
            }
            ((false, _), true) => poller.add(link, token, wanted),
            ((false, _), false) => Ok(()),
        };
        if let Some(serial) = unread {
            self.note_hidden(id, serial);
        }
    }

    /// [`StreamState::prepare_to_block`] for longer than a moment: others are shown that a thread
    /// sleeps.
    fn prepare_to_sleep(&mut self) -> bool {
        let may = self.prepare_to_block();
        if may {
            self.show();
        }
        may
    }

    /// Called before a thread sleeps on the poller's descriptor: true if every event that the
    /// engine waits for will make that descriptor readable.
    fn prepare_to_block(&mut self) -> bool {
        // What was started may be over by that, and then has to be looked at.
        if self.take_started() {
            return false;
        }
        if !self.crowded.is_empty() {
            self.keep_crowded();
        }
        if !self.held.is_empty() {
            self.flush_held();
        }
        if !self.unread.is_empty() {
            self.look_at_unread();
        }
        self.watch_looked_at();
        if !self.rest() {
            return false;
        }
        // A connection that waits for room in a queue goes on when the application reads the
        // queue, which is a call into the library.
        !self.starved.iter().any(|id| self.may_be_fed(*id))
    }

    /// Whether a connection that waited for room in a queue may go on.
    fn may_be_fed(&self, id: u32) -> bool {
        self.conns.get(id).is_some_and(|conn| self.eps[conn.ep].inbox.ledger.has_room())
            && !self.owes_much(id)
    }

    /// Goes on with connections whose completion queue has room again.
    fn feed_starved(&mut self) {
        for id in std::mem::take(&mut self.starved) {
            if self.may_be_fed(id) {
                self.unblock(id);
            } else if self.conns.get(id).is_some() {
                self.starve(id);
            }
        }
    }

    /// The connection waits for room in a completion queue.
    fn starve(&mut self, id: u32) {
        if let Some(cq) = self.conns.get(id).and_then(|conn| self.eps[conn.ep].inbox.ledger.cq()) {
            cq.wait_for_room();
        }
        self.starved.push(id);
    }

    /// Whether no message may be held back, because neither the application nor a courier would
    /// send it soon.
    #[inline(always)]
    fn nobody_looks(&self) -> bool {
        self.forsaken == self.turns || self.courier.is_none()
    }

    /// Sends held messages for the courier, and notes whether the application has done nothing
    /// since the courier was ordered (`forsaken`).
    fn flush_forsaken(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let done = self.turns + self.batches;
        if self.courier.as_ref().is_some_and(|courier| courier.is_needed(done)) {
            self.forsaken = self.turns;
        }
        // What is complete by that is told to another provider in calls of its own only: it need not be
        // ready for threads of this library, and locks nothing if its application promised so.
        let held = std::mem::take(&mut self.held);
        let (others, own) = held.into_iter().partition(|id| self.is_reported_elsewhere(*id));
        self.held = own;
        self.flush_held();
        let others: Vec<u32> = others;
        others.iter().for_each(|id| self.send_bytes(*id));
        self.held.extend(others);
    }

    /// Whether the connection's transfers are reported to another provider's queue.
    fn is_reported_elsewhere(&self, id: u32) -> bool {
        self.conns.get(id).is_some_and(|conn| self.eps[conn.ep].ledger.has_owner())
    }

    /// Sends what is held back on a connection, as far as the link takes it now, and leaves all that
    /// follows from it to the next turn.
    fn send_bytes(&mut self, id: u32) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.is_connected()) else { return };
        let mut list = GatherList::default();
        list.push_bytes(conn.batch.unsent());
        let op = LinkOp::SendList(&mut list, Way::Copied);
        // An error is found again by whoever sends the rest.
        let sent = self.net.transfer(&conn.link, op).unwrap_or(0);
        conn.batch.left_early(sent);
    }

    fn flush_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        if self.net.is_ring() {
            self.send_batches(&held);
        }
        for id in held {
            if self.conns.get(id).is_some_and(|conn| conn.is_connected()) {
                self.flush(id);
                self.heat(id);
                self.watch_unsent(id);
            }
        }
    }
}

#[cfg(any(test, feature = "sim"))]
pub mod sim;
