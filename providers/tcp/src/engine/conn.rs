//! One TCP connection.
use super::batch::Batch;
use super::rx::{AHEAD_OF_LARGE, DIRECT_MIN, Incoming};
use super::tx::{COPY_MAX, Finish, Outgoing, trace};
use super::zerocopy::Zerocopy;
use crate::config::config;
use crate::guests::Guest;
use crate::sock::Socket;
use crate::wire::{ByteOrder, Header, Knows};
use ofi_provider::buf::RecvBuf;
use ofi_provider::slab::NONE;
use ofi_provider::sys::Interest;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// TCP is connecting.
    Connecting,
    /// Our request is sent; the answer is awaited.
    AwaitResponse,
    /// The peer called, and is to be answered.
    Called,
    /// Messages flow.
    Connected,
}

/// A set of the numbers a byte can have.
#[derive(Debug, Default)]
pub(super) struct Numbers([u64; 4]);

impl Numbers {
    fn place(number: u8) -> (usize, u64) {
        (usize::from(number / 64), 1 << (number % 64))
    }

    /// Whether the number was not in the set.
    pub(super) fn insert(&mut self, number: u8) -> bool {
        let (word, bit) = Self::place(number);
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    pub(super) fn remove(&mut self, number: u8) {
        let (word, bit) = Self::place(number);
        self.0[word] &= !bit;
    }
}

/// A connection and everything under way on it.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(super) socket: Socket,
    pub(super) stage: Stage,
    /// Tells this connection from others that had or will have its index.
    pub(super) serial: u64,
    /// Its endpoint.
    pub(super) ep: u32,
    /// Its peer in the endpoint's table, or none yet (always none for
    /// connected endpoints).
    pub(super) peer: u32,
    pub(super) order: ByteOrder,
    /// Messages with nothing special to them may take the short ways from the socket
    /// and, if they are smaller than this, to it; 0 for none.
    pub(super) plain_below: usize,
    /// Those that were read another way may take the short one from there.
    pub(super) hears_plain: bool,
    /// What epoll watches for.
    pub(super) interest: Interest,
    /// Reading stopped: a message has nowhere to go.
    pub(super) blocked: bool,
    /// Turns without anything moving.
    pub(super) misses: u32,
    /// The peer knows messages that wait at their sender.
    pub(super) rendezvous: bool,
    /// What the peer knows.
    pub(super) knows: Knows,

    /// Small transfers that leave together, before those in `tx`.
    pub(super) batch: Batch,
    /// Answers were put down in `batch` or `tx` that leave when all that came with their
    /// requests is understood.
    pub(super) answers: bool,
    /// The turn in which a message of the application left last.
    pub(super) sent_in: u64,
    /// Messages not sent yet, in order.
    pub(super) tx: VecDeque<Outgoing>,
    /// One of them may stand behind a fence.
    pub(super) fenced: bool,
    /// The next header's number.
    pub(super) tx_id: u8,
    /// Messages sent that are complete when the peer says so, in order.
    pub(super) unacked: VecDeque<Finish>,
    /// What left without being copied, if anything may.
    pub(super) zerocopy: Option<Box<Zerocopy>>,
    /// Messages announced that wait here, by their number.
    pub(super) waiting: HashMap<u8, Outgoing>,

    /// Requests sent to read the peer's memory, or for atomic operations: where
    /// the answers go, in order.
    pub(super) reads: VecDeque<(RecvBuf, Finish)>,
    /// Bytes of former values that the peer fetched and has not taken yet.
    pub(super) fetched: usize,
    /// What answers and acknowledgements that wait for the peer take of memory.
    pub(super) owed: usize,

    /// The last message was large, and so will be the next: its beginning is enough
    /// to find the place that the rest can be read to.
    pub(super) large: bool,
    /// The message being received.
    pub(super) incoming: Option<Incoming>,
    /// Numbers of messages that wait, or waited until asked for, at the peer.
    pub(super) announced: Numbers,
    /// Those of them that are not asked for yet: where they are noted.
    pub(super) at_sender: HashMap<u8, (usize, u32)>,
    /// Messages asked for that waited at the peer, by their number.
    pub(super) expected: HashMap<u8, Incoming>,
    /// Bytes received and not understood yet: part of a header or of a
    /// connection message, or what came behind a message that blocks.
    pub(super) stash: Vec<u8>,
    /// The user data to send with our request.
    pub(super) param: Vec<u8>,
    /// It called, and is in no address vector.
    pub(super) guest: Option<Guest>,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Conn {
    pub(super) fn new(socket: Socket, stage: Stage, ep: u32) -> Self {
        Self {
            socket,
            stage,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            ep,
            peer: NONE,
            order: ByteOrder::Native,
            plain_below: 0,
            hears_plain: false,
            interest: if stage == Stage::Connecting { Interest::WRITE } else { Interest::READ },
            blocked: false,
            misses: 0,
            rendezvous: false,
            knows: Knows::default(),
            batch: Batch::default(),
            answers: false,
            sent_in: 0,
            tx: VecDeque::new(),
            fenced: false,
            tx_id: 0,
            unacked: VecDeque::new(),
            zerocopy: None,
            waiting: HashMap::new(),
            reads: VecDeque::new(),
            fetched: 0,
            owed: 0,
            large: false,
            incoming: None,
            announced: Numbers::default(),
            at_sender: HashMap::new(),
            expected: HashMap::new(),
            stash: Vec::new(),
            param: Vec::new(),
            guest: None,
        }
    }

    /// Messages may flow, `by_ring` or by a call for each, to an endpoint that
    /// `buffers` them or not; the peer's byte order is known.
    pub(super) fn connected(&mut self, by_ring: bool, buffers: bool) {
        self.stage = Stage::Connected;
        self.socket.set_peer_timeout(config().peer_timeout);
        self.socket.set_no_network();
        self.zerocopy = Zerocopy::new(&self.socket);
        self.hears_plain = self.order.is_native() && !config().trace && !buffers;
        if self.hears_plain && self.zerocopy.is_none() && !by_ring {
            let max = if self.rendezvous { config().max_saved_size } else { usize::MAX };
            self.plain_below = max.min(COPY_MAX) + 1;
        }
    }

    #[inline]
    pub(super) fn is_connected(&self) -> bool {
        self.stage == Stage::Connected
    }

    /// Whether something could be sent if the socket took it.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.batch.is_empty()
            || self.tx.front().is_some_and(|first| !first.is_fenced() || self.is_settled())
    }

    /// Whether the peer has done all it was asked to, as far as it answers.
    pub(super) fn is_settled(&self) -> bool {
        let answering = matches!(&self.incoming, Some(incoming) if incoming.is_answer());
        self.unacked.is_empty() && self.reads.is_empty() && self.waiting.is_empty() && !answering
    }

    /// Bytes to come of the message that is being received.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.incoming.as_ref().map_or(0, Incoming::left)
    }

    /// Whether the rest of a large message is to come.
    #[inline]
    pub(super) fn is_in_large(&self) -> bool {
        self.left() >= DIRECT_MIN
    }

    /// Copies the stash to the start of `staging`; the room behind it for what is
    /// read next, as much of it as is worth reading.
    #[inline]
    pub(super) fn room_in<'r>(&self, staging: &'r mut [u8]) -> &'r mut [u8] {
        let (stash, room) = staging.split_at_mut(self.stash.len());
        stash.copy_from_slice(&self.stash);
        let worth = if self.large { room.len().min(AHEAD_OF_LARGE) } else { room.len() };
        &mut room[..worth]
    }

    /// Takes out what waits to be sent, in order.
    pub(super) fn unsent(&mut self) -> impl Iterator<Item = Finish> {
        let (batch, reads) = std::mem::take(&mut self.batch).into_finishes();
        let reads = self.reads.split_off(self.reads.len().saturating_sub(reads));
        let batch = batch.into_iter().chain(reads.into_iter().map(|(_, finish)| finish));
        batch.chain(self.tx.drain(..).map(|outgoing| outgoing.finish))
    }

    pub(super) fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// Queues what the peer waits for: before a fence, which may wait for what
    /// the peer sends behind it.
    pub(super) fn push_answer(&mut self, answer: Outgoing) {
        if self.fenced {
            if let Some(fence) = self.tx.iter().position(Outgoing::is_fenced) {
                return self.tx.insert(fence, answer);
            }
            self.fenced = false;
        }
        self.tx.push_back(answer);
    }

    /// Whether an answer of `len` bytes may leave with others: none waits in the queue, and
    /// not so many are there already that the socket does not take.
    #[inline]
    pub(super) fn answers_together(&self, len: usize) -> bool {
        len <= COPY_MAX && self.is_clear() && !self.batch.is_full()
    }

    /// Puts such an answer down; gives the room for its bytes.
    #[inline]
    pub(super) fn join_answer(
        &mut self,
        mut header: Header,
        len: usize,
        finish: Finish,
    ) -> &mut [u8] {
        let mut wire = [0; 40];
        let wire_len = self.write_header(&mut header, &mut wire);
        self.batch.push(&wire[..wire_len], len, finish)
    }

    /// Queues what waited without this connection.
    pub(super) fn take_over(&mut self, waiting: VecDeque<Outgoing>) {
        self.fenced = true;
        self.tx.extend(waiting);
    }

    /// Numbers a header that leaves now or with the batch, and writes it to the
    /// start of `wire`; how many bytes it is.
    #[inline(always)]
    pub(super) fn write_header(&mut self, header: &mut Header, wire: &mut [u8; 40]) -> usize {
        header.id = self.tx_id;
        self.tx_id = header.id.wrapping_add(1);
        trace("to", &self.socket, header);
        header.write(self.order, wire)
    }

    /// Whether a message may leave at once: nothing waits before it.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.tx.is_empty() && self.is_connected()
    }
}
