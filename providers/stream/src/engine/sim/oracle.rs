//! What must be true of the operations in a simulated world, whatever happens there.
//!
//! The oracle is told of every operation that an endpoint took, and of every entry that a
//! completion queue gave. It knows nothing of the engine.
use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_TAGGED,
};
use ofi_provider::error::Error;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

/// Numbers drawn from a seed (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct SimRandom(u64);

impl SimRandom {
    pub(crate) fn new(seed: u64) -> Self {
        // Seeds next to each other must not begin alike.
        let mixed = (seed.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ mixed >> 29) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// True once in `n` times; never for 0.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// An operation's number, which is its context.
pub(super) type OpId = usize;

/// Bytes of the memory of each node that are for one other node alone to write and read.
pub(super) const WINDOW: usize = 8192;

/// Bits of a message's tag that tell what a receive may ask for; above are those that tell the
/// message.
pub(super) const CLASSES: u64 = 3;
const NUMBER: u32 = 8;

/// The tag of a tagged message.
pub(super) fn tag_of(id: OpId, class: u64) -> u64 {
    (id as u64) << NUMBER | class
}

/// The bytes of a message: its number, and others that differ from those of other messages.
pub(super) fn payload(id: OpId, len: usize) -> Vec<u8> {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = SimRandom::new(7);
        (0..128 << 10).map(|_| random.below(256) as u8).collect()
    });
    let from = id * 37 % 4093;
    let mut bytes = NOISE[from..from + len].to_vec();
    if len >= 8 {
        bytes[..8].copy_from_slice(&(id as u64).to_le_bytes());
    }
    bytes
}

/// What an operation does.
#[derive(Debug)]
pub(super) enum Deed {
    Send {
        to: usize,
        tagged: bool,
        tag: u64,
        len: usize,
        acked: bool,
        taken: bool,
    },
    Receive {
        tagged: bool,
        from: Option<usize>,
        tag: u64,
        ignore: u64,
        multi: bool,
        filled: Vec<Range<usize>>,
    },
    Write {
        to: usize,
    },
    /// `any` tells the bytes that were written after the read was posted.
    Read {
        to: usize,
        at: usize,
        expect: Vec<u8>,
        any: Vec<bool>,
    },
    Add {
        to: usize,
        before: u64,
    },
    /// A look for a tagged message, which may claim or discard it.
    Peek {
        tag: u64,
        ignore: u64,
        claims: bool,
        discards: bool,
    },
    /// A message that was claimed is received or, with `discards`, dropped.
    Claim {
        message: OpId,
        discards: bool,
    },
}

/// An operation that an endpoint has taken.
pub(super) struct TakenOperation {
    pub(super) node: usize,
    life: usize,
    pub(super) deed: Deed,
    /// A success is reported.
    reports: bool,
    fenced: bool,
    /// The application has its completion, or needs none.
    pub(super) over: bool,
    pub(super) buf: Vec<u8>,
    /// The former value that an atomic operation fetches.
    pub(super) fetched: Box<u64>,
}

impl std::fmt::Debug for TakenOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {}", self.deed, self.node)
    }
}

/// An entry of a completion queue.
#[derive(Debug)]
pub(super) struct ReportedEntry {
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: usize,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) src: u64,
    pub(super) error: Option<(Error, usize)>,
}

#[derive(Debug)]
struct Window {
    bytes: Vec<u8>,
    counter: u64,
}

#[derive(Debug, Default)]
struct OracleBuffer {
    life: usize,
    alive: bool,
    /// Index of each other node in the address vector.
    names: Vec<Option<u64>>,
    /// Names came or went since the node began to live.
    renamed: bool,
    /// Messages that senders were told are received.
    acked: Vec<OpId>,
    /// Data that peers' writes carry and that was not reported yet.
    data: Vec<(usize, u64)>,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) ops: Vec<TakenOperation>,
    places: Vec<OracleBuffer>,
    /// Something was done to the links between two nodes, or to one of them.
    hurt: Vec<Vec<bool>>,
    windows: HashMap<(usize, usize), Window>,
    /// Receives and the messages they got, by receiver, sender and kind.
    matches: HashMap<(usize, usize, bool), Vec<(OpId, OpId)>>,
    /// Looks that have claimed a message since they were asked for last.
    claimed: Vec<OpId>,
    /// Completions so far.
    pub(super) completions: usize,
}

impl Oracle {
    pub(super) fn new(nodes: usize) -> Self {
        let place = || OracleBuffer { names: vec![None; nodes], ..OracleBuffer::default() };
        Self {
            ops: Vec::new(),
            places: (0..nodes).map(|_| place()).collect(),
            hurt: vec![vec![false; nodes]; nodes],
            windows: HashMap::new(),
            matches: HashMap::new(),
            claimed: Vec::new(),
            completions: 0,
        }
    }

    pub(super) fn begins(&mut self, node: usize) {
        let place = &mut self.places[node];
        (place.alive, place.renamed) = (true, false);
        place.names.fill(None);
    }

    /// A node's endpoint is closed: nothing is promised to it any more.
    pub(super) fn ends(&mut self, node: usize) {
        let place = &mut self.places[node];
        place.alive = false;
        place.life += 1;
        place.acked.clear();
        for op in self.ops.iter_mut().filter(|op| op.node == node) {
            op.over = true;
        }
        for other in 0..self.hurt.len() {
            self.hurt(node, other);
        }
    }

    /// The link between two nodes was cut.
    pub(super) fn hurt(&mut self, one: usize, other: usize) {
        (self.hurt[one][other], self.hurt[other][one]) = (true, true);
    }

    fn is_hurt(&self, one: usize, other: usize) -> bool {
        self.hurt[one][other]
    }

    /// A node's address vector knows another by this name from now on, or not any more.
    pub(super) fn named(&mut self, node: usize, other: usize, name: Option<u64>, later: bool) {
        self.places[node].names[other] = name;
        self.places[node].renamed |= later;
    }

    pub(super) fn name(&self, node: usize, other: usize) -> Option<u64> {
        self.places[node].names[other]
    }

    /// The number of the next operation.
    pub(super) fn next(&self) -> OpId {
        self.ops.len()
    }

    /// An endpoint has taken an operation.
    pub(super) fn took(
        &mut self,
        node: usize,
        deed: Deed,
        buf: Vec<u8>,
        fetched: Box<u64>,
        reports: bool,
        fenced: bool,
    ) {
        let life = self.places[node].life;
        // What reports no success is over for the application, but may fail.
        self.ops.push(TakenOperation {
            node,
            life,
            deed,
            reports,
            fenced,
            over: false,
            buf,
            fetched,
        });
    }

    fn window(&mut self, from: usize, to: usize) -> &mut Window {
        let new = || Window { bytes: vec![0; WINDOW], counter: 0 };
        self.windows.entry((from, to)).or_insert_with(new)
    }

    /// What a read of these bytes must find, all that was posted before being done.
    pub(super) fn expect(&mut self, from: usize, to: usize, at: usize, len: usize) -> Vec<u8> {
        self.window(from, to).bytes[at..at + len].to_vec()
    }

    /// A write was posted: later reads must find it, and reads that are under way may.
    pub(super) fn wrote(&mut self, from: usize, to: usize, place: usize, bytes: &[u8]) {
        self.window(from, to).bytes[place..place + bytes.len()].copy_from_slice(bytes);
        for op in self.ops.iter_mut().filter(|op| op.node == from && !op.over) {
            if let Deed::Read { to: of, at, expect, any } = &mut op.deed
                && *of == to
            {
                for index in place.max(*at)..(place + bytes.len()).min(*at + expect.len()) {
                    any[index - *at] = true;
                }
            }
        }
    }

    /// A write that carries data was posted.
    pub(super) fn tells(&mut self, from: usize, to: usize, data: u64) {
        self.places[to].data.push((from, data));
    }

    /// Something is added to the counter that is for one node alone: its former value.
    pub(super) fn adds(&mut self, from: usize, to: usize, what: u64) -> u64 {
        let counter = &mut self.window(from, to).counter;
        std::mem::replace(counter, counter.wrapping_add(what))
    }

    /// A completion queue of a node gave an entry.
    pub(super) fn told(&mut self, node: usize, entry: &ReportedEntry) {
        self.completions += 1;
        if entry.context == 0 && entry.flags & FI_REMOTE_WRITE != 0 {
            assert!(entry.error.is_none() && entry.flags & FI_REMOTE_CQ_DATA != 0, "{entry:?}");
            let data = &mut self.places[node].data;
            let at = data.iter().position(|(_, data)| *data == entry.data);
            let at = at.unwrap_or_else(|| panic!("data that nobody wrote, or twice: {entry:?}"));
            data.remove(at);
            return;
        }
        let id = entry.context.wrapping_sub(1);
        let op = self.ops.get(id).unwrap_or_else(|| panic!("nobody's completion: {entry:?}"));
        assert_eq!(op.node, node, "the completion of another node's operation: {entry:?}");
        assert_eq!(op.life, self.places[node].life, "a closed endpoint's completion: {entry:?}");
        assert!(!op.over, "operation {id} completes twice: {op:?} {entry:?}");
        match op.deed {
            Deed::Receive { .. } => self.received(id, entry),
            Deed::Peek { .. } => self.looked(id, entry),
            Deed::Claim { .. } => self.claim_is_over(id, entry),
            _ => self.done(id, entry),
        }
    }

    /// A send, write, read or atomic operation has completed.
    fn done(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let node = op.node;
        let to = match op.deed {
            Deed::Send { to, .. } | Deed::Write { to } | Deed::Read { to, .. } => to,
            Deed::Add { to, .. } => to,
            Deed::Receive { .. } | Deed::Peek { .. } | Deed::Claim { .. } => return,
        };
        if let Some((error, _)) = entry.error {
            assert!(
                self.is_hurt(node, to),
                "operation {id} failed without a cause ({error}): {op:?}"
            );
            self.ops[id].over = true;
            return;
        }
        assert!(op.reports, "a success that nobody asked for: {op:?}");
        if op.fenced && !self.is_hurt(node, to) {
            let same = |before: &TakenOperation| match before.deed {
                Deed::Send { to: of, .. } | Deed::Write { to: of } | Deed::Read { to: of, .. } => {
                    of == to
                }
                Deed::Add { to: of, .. } => of == to,
                _ => false,
            };
            let early = self.ops[..id].iter().position(|before| {
                before.node == node
                    && before.life == op.life
                    && !before.over
                    && before.reports
                    && same(before)
            });
            if let Some(early) = early {
                let of = &self.ops[early];
                panic!(
                    "operation {id}, {op:?}, did not wait for {early}, {of:?}, before its fence"
                );
            }
        }
        let sound = !self.is_hurt(node, to);
        match &op.deed {
            Deed::Send { acked: true, .. } if sound => self.places[to].acked.push(id),
            Deed::Read { expect, any, .. } if sound => {
                for (index, byte) in expect.iter().enumerate() {
                    assert!(any[index] || op.buf[index] == *byte, "read {id} at {index}: {op:?}");
                }
            }
            Deed::Add { before, .. } if sound && op.buf.is_empty() => {
                assert_eq!(*op.fetched, *before, "operation {id} fetched something else");
            }
            _ => {}
        }
        let op = &mut self.ops[id];
        op.over = true;
        if matches!(op.deed, Deed::Send { .. } | Deed::Write { .. }) {
            // The application puts something else there.
            op.buf.fill(0xee);
        }
    }

    fn received(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let node = op.node;
        let Deed::Receive { tagged, from, tag, ignore, multi, ref filled } = op.deed else {
            return;
        };
        assert_eq!(entry.flags & FI_TAGGED != 0, tagged, "{entry:?}");
        assert!(entry.flags & FI_RECV != 0, "{entry:?}");
        let gives_back = !multi || entry.flags & FI_MULTI_RECV != 0;
        if let Some((Error::CANCELED, _)) = entry.error {
            self.ops[id].over = gives_back;
            return;
        }
        let base = op.buf.as_ptr() as usize;
        let at = if multi { entry.buf.wrapping_sub(base) } else { 0 };
        assert!(at <= op.buf.len(), "{entry:?} is not in the buffer of receive {id}");
        let bytes = &op.buf[at..];
        // Which message is it?
        let message = if tagged {
            (entry.tag >> NUMBER) as usize
        } else if entry.flags & FI_REMOTE_CQ_DATA != 0 {
            entry.data as usize
        } else {
            let head = bytes.first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
            head as usize
        };
        let lost = |entry: &ReportedEntry| {
            // A message whose link was cut while it came; who sent it is not always known.
            let any = (0..self.hurt.len()).any(|other| self.is_hurt(node, other));
            assert!(any, "receive {id} failed without a cause: {entry:?}");
        };
        if let Some((error, _)) = entry.error
            && error != Error::TRUNC
        {
            lost(entry);
            self.ops[id].over = gives_back;
            return;
        }
        let of = self.ops.get(message).unwrap_or_else(|| panic!("no such message: {entry:?}"));
        let sender = of.node;
        let Deed::Send { to, tagged: of_tagged, tag: of_tag, len, taken, .. } = of.deed else {
            panic!("receive {id} got operation {message}, which is no message: {entry:?}");
        };
        assert!(!taken, "message {message} was received twice, now by {id}");
        assert_eq!(
            (to, of_tagged),
            (node, tagged),
            "message {message} went to receive {id}: {entry:?}"
        );
        if tagged {
            assert_eq!(entry.tag, of_tag, "{entry:?}");
            assert_eq!(
                (of_tag ^ tag) & !ignore,
                0,
                "receive {id} does not match {message}: {op:?}"
            );
        }
        let steady = !self.places[node].renamed;
        if let Some(from) = from.filter(|_| steady) {
            assert_eq!(sender, from, "receive {id} takes messages of one source only");
        }
        if steady && !self.is_hurt(node, sender) {
            let name = self.places[node].names[sender].unwrap_or(FI_ADDR_NOTAVAIL);
            assert_eq!(entry.src, name, "message {message} of {sender} to {node}");
        }
        let part = at..at + entry.len;
        let twice = filled.iter().any(|other| other.start < part.end && part.start < other.end);
        assert!(!twice, "{part:?} of the buffer of receive {id} has two messages");
        let room = bytes.len();
        assert_eq!(entry.len, len.min(room), "message {message} of {len} in {room}: {entry:?}");
        let over = len.saturating_sub(room);
        let error = (over > 0).then_some((Error::TRUNC, over));
        assert_eq!(entry.error, error, "message {message} of {len} in {room}: {entry:?}");
        let sent = payload(message, len);
        assert!(
            bytes[..entry.len] == sent[..entry.len],
            "the bytes of message {message}: {entry:?}"
        );
        self.check_order(id, message);
        let Deed::Send { taken, .. } = &mut self.ops[message].deed else { return };
        *taken = true;
        let op = &mut self.ops[id];
        op.over = gives_back;
        if let Deed::Receive { filled, .. } = &mut op.deed {
            filled.push(part);
        }
    }

    /// A look for a message has come to an end.
    fn looked(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let node = op.node;
        let Deed::Peek { tag, ignore, claims, discards } = op.deed else { return };
        if let Some((error, _)) = entry.error {
            assert_eq!(error, Error::NOMSG, "{op:?}");
            self.ops[id].over = true;
            return;
        }
        let message = (entry.tag >> NUMBER) as usize;
        let of = self.ops.get(message).unwrap_or_else(|| panic!("no such message: {entry:?}"));
        let Deed::Send { to, tagged, tag: of_tag, len, taken, .. } = of.deed else {
            panic!("{op:?} found operation {message}, which is no message: {entry:?}");
        };
        assert_eq!((to, tagged, taken), (node, true, false), "{op:?} found {message}, {of:?}");
        assert_eq!((of_tag, (of_tag ^ tag) & !ignore), (entry.tag, 0), "{op:?} found {of:?}");
        assert_eq!(entry.len, len, "{op:?} found {of:?}");
        if discards {
            self.take(message);
        }
        if claims {
            self.ops[id].deed = Deed::Claim { message, discards: false };
            self.claimed.push(id);
        } else {
            self.ops[id].over = true;
        }
    }

    fn take(&mut self, message: OpId) {
        if let Deed::Send { taken, .. } = &mut self.ops[message].deed {
            assert!(!*taken, "message {message} is received twice");
            *taken = true;
        }
    }

    /// The looks of a node that have claimed messages since this was asked last.
    pub(super) fn claims(&mut self, node: usize) -> Vec<OpId> {
        let (its, others) = std::mem::take(&mut self.claimed)
            .into_iter()
            .partition(|id| self.ops[*id].node == node);
        self.claimed = others;
        its
    }

    /// A claimed message is to be dropped.
    pub(super) fn discards(&mut self, id: OpId) {
        if let Deed::Claim { discards, .. } = &mut self.ops[id].deed {
            *discards = true;
        }
    }

    fn claim_is_over(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let Deed::Claim { message, discards } = op.deed else { return };
        let of = &self.ops[message];
        let Deed::Send { len, tag, .. } = of.deed else { return };
        let room = op.buf.len();
        match entry.error {
            None => {
                assert_eq!((entry.tag, entry.len), (tag, len), "{op:?} of {of:?}: {entry:?}");
                assert!(discards || op.buf[..len] == payload(message, len)[..], "{op:?}: bytes");
                self.take(message);
            }
            Some((Error::TRUNC, over)) => {
                assert!(!discards && room + over == len, "{op:?} of {of:?}: {entry:?}");
                assert!(op.buf[..] == payload(message, len)[..room], "{op:?}: bytes");
                self.take(message);
            }
            Some((error, _)) => {
                assert!(self.is_hurt(op.node, of.node), "{op:?} fails without a cause: {error}");
            }
        }
        self.ops[id].over = true;
    }

    fn accepts(&self, receive: OpId, message: OpId) -> bool {
        let (op, of) = (&self.ops[receive], &self.ops[message]);
        let Deed::Receive { tagged, from, tag, ignore, .. } = op.deed else { return false };
        let Deed::Send { to, tagged: of_tagged, tag: of_tag, .. } = of.deed else { return false };
        to == op.node
            && tagged == of_tagged
            && (!tagged || (of_tag ^ tag) & !ignore == 0)
            && from.is_none_or(|from| from == of.node && !self.places[op.node].renamed)
    }

    /// Of two messages of one sender and two receives that both could take the first message, the
    /// older receive gets it.
    fn check_order(&mut self, receive: OpId, message: OpId) {
        let (node, sender) = (self.ops[receive].node, self.ops[message].node);
        let Deed::Receive { tagged, .. } = self.ops[receive].deed else { return };
        if self.is_hurt(node, sender) {
            return;
        }
        let key = (node, sender, tagged);
        for &(other, of) in self.matches.get(&key).into_iter().flatten() {
            let wrong = (receive < other && of < message && self.accepts(receive, of))
                || (other < receive && message < of && self.accepts(other, message));
            assert!(
                !wrong,
                "of {sender} to {node}: receive {other} got message {of}, receive {receive} got \
                 {message}"
            );
        }
        self.matches.entry(key).or_default().push((receive, message));
    }

    /// All entries of a node's queues are read.
    pub(super) fn all_is_read(&mut self, node: usize) {
        for id in std::mem::take(&mut self.places[node].acked) {
            let Deed::Send { taken, .. } = self.ops[id].deed else { continue };
            let hurt = self.is_hurt(self.ops[id].node, node);
            assert!(taken || hurt, "message {id} counts as received and is not");
        }
    }

    /// Messages to a node that it may still get: how many of each kind, and their bytes.
    pub(super) fn waiting(&self, node: usize, tagged: bool) -> (usize, usize) {
        let waiting = self.ops.iter().filter_map(|op| match op.deed {
            Deed::Send { to, tagged: of, len, taken: false, .. } if to == node && of == tagged => {
                Some(len)
            }
            _ => None,
        });
        waiting.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len))
    }

    /// Nothing moves any more: what is not over now will never be.
    pub(super) fn check_end(&self) {
        for (id, op) in self.ops.iter().enumerate() {
            let alive = |node: usize| self.places[node].alive;
            if !alive(op.node) || op.life != self.places[op.node].life {
                continue;
            }
            match op.deed {
                Deed::Receive { .. } => {
                    for (&(node, _, _), matches) in &self.matches {
                        if node != op.node || op.over {
                            continue;
                        }
                        let younger =
                            matches.iter().find(|(other, of)| id < *other && self.accepts(id, *of));
                        assert!(younger.is_none(), "receive {id} was passed over: {younger:?}");
                    }
                }
                Deed::Send { to, taken, .. } => {
                    assert!(op.over || !op.reports, "send {id} never completes: {op:?}");
                    assert!(
                        taken || self.is_hurt(op.node, to) || !alive(to),
                        "message {id} was lost: {op:?}"
                    );
                }
                _ => assert!(op.over || !op.reports, "operation {id} never completes: {op:?}"),
            }
        }
        for (node, place) in self.places.iter().enumerate() {
            let lost = place.data.iter().find(|(from, _)| !self.is_hurt(*from, node));
            assert!(lost.is_none() || !place.alive, "data for {node} never came: {lost:?}");
        }
    }

    /// What a node's memory holds for another must be what the other wrote there.
    pub(super) fn check_memory(&self, node: usize, memory: &[u8], counters: &[u8]) {
        for (&(from, to), window) in &self.windows {
            if to != node || self.is_hurt(from, to) {
                continue;
            }
            let bytes = &memory[from * WINDOW..(from + 1) * WINDOW];
            assert!(bytes == &window.bytes[..], "what {from} wrote to {to}");
            let counter = counters[from * 8..].first_chunk().copied().map(u64::from_ne_bytes);
            assert_eq!(counter, Some(window.counter), "what {from} added at {to}");
        }
    }

    /// The receives of a node that have not completed.
    pub(super) fn receives(&self, node: usize) -> Vec<OpId> {
        let life = self.places[node].life;
        let of = |op: &TakenOperation| {
            op.node == node
                && op.life == life
                && !op.over
                && matches!(op.deed, Deed::Receive { .. })
        };
        (0..self.ops.len()).filter(|id| of(&self.ops[*id])).collect()
    }
}
