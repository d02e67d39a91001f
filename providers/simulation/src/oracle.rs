//! Invariants of the operations in a simulated world, under all events.
//!
//! The oracle is notified of every operation accepted by an endpoint, and of every entry read from
//! a completion queue. It is independent of the engine.
//!
//! A scalable endpoint has several parts, and so do endpoints sharing their receives on one node.
//! Message order is guaranteed from one part to another one.
mod operation;

use ofi_provider::abi::{
    FI_ADDR_NOTAVAIL, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_TAGGED,
};
use ofi_provider::error::Error;
use std::collections::HashMap;
use std::sync::LazyLock;

pub(crate) use operation::{MessageOrder, OpId, OracleOp, TakenOperation};

/// Message not sent by any node.
pub(crate) const FORGED: OpId = usize::MAX;

/// Bytes of each node's memory reserved for reads and writes of one other node.
pub(crate) const WINDOW: usize = 8192;

/// Most parts of a node.
pub(crate) const PARTS: usize = 3;

/// Bits of a message's tag available for matching by a receive; the bits above identify the
/// message.
pub(crate) const CLASSES: u64 = 3;
const NUMBER: u32 = 8;

/// The tag of a tagged message.
pub(crate) fn tag_of(id: OpId, class: u64) -> u64 {
    (id as u64) << NUMBER | class
}

/// Returns the bytes of a message: its number, and content different from other messages.
pub(crate) fn payload(id: OpId, len: usize) -> Vec<u8> {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = crate::random::SimRandom::new(7);
        (0..128 << 10).map(|_| random.below(256) as u8).collect()
    });
    let from = id * 37 % 4093;
    let mut bytes = NOISE[from..from + len].to_vec();
    if len >= 8 {
        bytes[..8].copy_from_slice(&(id as u64).to_le_bytes());
    }
    bytes
}

/// An entry of a completion queue.
#[derive(Debug)]
pub(crate) struct ReportedEntry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) src: u64,
    pub(crate) error: Option<(Error, usize)>,
}

#[derive(Debug)]
struct OracleWindow {
    bytes: Vec<u8>,
    counter: u64,
}

#[derive(Debug, Default)]
struct OracleNode {
    life: usize,
    alive: bool,
    /// Index of each part of each other node in the address vector.
    names: Vec<[Option<u64>; PARTS]>,
    /// Names came or went since the node began to live.
    renamed: bool,
    /// Messages reported to their senders as received.
    acked: Vec<OpId>,
    /// Data of peers' writes not reported yet.
    data: Vec<(usize, u64)>,
    /// Messages to the node not received yet, and their bytes.
    coming: (usize, usize),
}

/// Returns true if the source of a receive matches a message.
fn is_from((from, part): (usize, Option<usize>), sender: usize, order: MessageOrder) -> bool {
    from == sender && part.is_none_or(|part| part == order.0)
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) ops: Vec<TakenOperation>,
    node_states: Vec<OracleNode>,
    /// Something was done to the links between two nodes, or to one of them.
    hurt: Vec<Vec<bool>>,
    windows: HashMap<(usize, usize), OracleWindow>,
    /// Receives and their matched messages, by receiver, sender, kind and message order.
    matches: HashMap<(usize, usize, bool, MessageOrder), Vec<(OpId, OpId)>>,
    /// Messages reported to nodes with buffered receives, by receiver, sender and kind.
    reported: HashMap<(usize, usize, bool), Vec<OpId>>,
    /// Messages to be delivered although their senders have closed.
    expected: Vec<OpId>,
    /// Peeks with a claimed message since the last query.
    claimed: Vec<OpId>,
    /// Parts of a node have names of their own.
    pub(crate) named_parts: bool,
    /// There is a hostile peer outside the nodes, with useless messages. All nodes know each other,
    /// so messages without a source belong to this peer.
    pub(crate) hostile: bool,
    /// Completions so far.
    pub(crate) completions: usize,
}

impl Oracle {
    pub(crate) fn new(nodes: usize) -> Self {
        let node_state =
            || OracleNode { names: vec![[None; PARTS]; nodes], ..OracleNode::default() };
        Self {
            ops: Vec::new(),
            node_states: (0..nodes).map(|_| node_state()).collect(),
            hurt: vec![vec![false; nodes]; nodes],
            windows: HashMap::new(),
            matches: HashMap::new(),
            reported: HashMap::new(),
            expected: Vec::new(),
            claimed: Vec::new(),
            named_parts: false,
            hostile: false,
            completions: 0,
        }
    }

    pub(crate) fn begins(&mut self, node: usize) {
        let node_state = &mut self.node_states[node];
        (node_state.alive, node_state.renamed) = (true, false);
        node_state.names.fill([None; PARTS]);
    }

    /// Closes a node's endpoint: nothing is guaranteed to it any more. If it was `drained` before,
    /// others receive the messages injected or completed with success.
    pub(crate) fn ends(&mut self, node: usize, drained: bool) {
        let accepted = |id: &OpId| {
            let op = &self.ops[*id];
            let OracleOp::Send { to, taken: false, .. } = op.op else { return false };
            let succeeded = op.over && op.failure.is_none();
            op.node == node
                && op.life == self.node_states[node].life
                && to != node
                && (op.injected || succeeded)
                && self.node_states[to].alive
                && !self.is_hurt(node, to)
        };
        let expected: Vec<_> = match drained && !self.hostile {
            true => (0..self.ops.len()).filter(accepted).collect(),
            false => Vec::new(),
        };
        let node_state = &mut self.node_states[node];
        node_state.alive = false;
        node_state.life += 1;
        node_state.acked.clear();
        for op in self.ops.iter_mut().filter(|op| op.node == node) {
            op.over = true;
        }
        for other in 0..self.hurt.len() {
            self.hurt(node, other);
        }
        self.expected.extend(expected);
    }

    /// The link between two nodes was cut.
    pub(crate) fn hurt(&mut self, one: usize, other: usize) {
        (self.hurt[one][other], self.hurt[other][one]) = (true, true);
        let ops = &self.ops;
        let between = |id: &OpId| {
            let OracleOp::Send { to, .. } = ops[*id].op else { return false };
            [(one, other), (other, one)].contains(&(ops[*id].node, to))
        };
        self.expected.retain(|id| !between(id));
    }

    /// Checks for a cause of the end of a connection between two nodes.
    pub(crate) fn may_end(&self, one: usize, other: usize) {
        assert!(self.is_hurt(one, other), "the connection of {one} with {other} ends");
    }

    /// Closes a connected endpoint of a node: transfers from this part to the other node, and
    /// receives posted there, are no longer guaranteed.
    pub(crate) fn end_closes(
        &mut self,
        node: usize,
        (other, part): (usize, usize),
        is_posted: impl Fn(OpId) -> bool,
    ) {
        for (id, op) in self.ops.iter_mut().enumerate().filter(|(_, op)| op.node == node) {
            let goes = op.goes_to().is_some_and(|(to, order)| (to, order.0) == (other, part));
            op.over |= goes || is_posted(id);
        }
    }

    fn is_hurt(&self, one: usize, other: usize) -> bool {
        self.hurt[one][other]
    }

    /// A node's address vector knows another by this name from now on, or not any more.
    pub(crate) fn named(
        &mut self,
        node: usize,
        (other, part): (usize, usize),
        name: Option<u64>,
        later: bool,
    ) {
        self.node_states[node].names[other][part] = name;
        self.node_states[node].renamed |= later;
    }

    pub(crate) fn name(&self, node: usize, (other, part): (usize, usize)) -> Option<u64> {
        self.node_states[node].names[other][part]
    }

    /// The number of the next operation.
    pub(crate) fn next(&self) -> OpId {
        self.ops.len()
    }

    /// An endpoint has taken an operation.
    pub(crate) fn took(
        &mut self,
        node: usize,
        op: OracleOp,
        buf: Vec<u8>,
        fetched: Box<u64>,
        reports: bool,
        fenced: bool,
    ) {
        let life = self.node_states[node].life;
        if let OracleOp::Send { to, len, .. } = op {
            let (count, bytes) = &mut self.node_states[to].coming;
            (*count, *bytes) = (*count + 1, *bytes + len);
        }
        // An operation without a reported success is complete for the application, but may fail.
        self.ops.push(TakenOperation {
            node,
            life,
            op,
            reports,
            fenced,
            injected: false,
            over: false,
            failure: None,
            buf,
            on_device: 0,
            fetched,
        });
    }

    /// Records the number of first bytes of the last operation's buffer in memory of the device.
    pub(crate) fn located_last(&mut self, on_device: usize) {
        if let Some(op) = self.ops.last_mut() {
            op.on_device = on_device;
        }
    }

    /// Marks the last accepted operation as injected.
    pub(crate) fn injected_last(&mut self) {
        if let Some(op) = self.ops.last_mut() {
            op.injected = true;
        }
    }

    fn window(&mut self, from: usize, to: usize) -> &mut OracleWindow {
        let new = || OracleWindow { bytes: vec![0; WINDOW], counter: 0 };
        self.windows.entry((from, to)).or_insert_with(new)
    }

    /// Returns the expected result of a read of these bytes, after all operations posted before.
    pub(crate) fn expect(&mut self, from: usize, to: usize, at: usize, len: usize) -> Vec<u8> {
        self.window(from, to).bytes[at..at + len].to_vec()
    }

    /// Records a posted write: later reads must find it, and reads in progress may.
    pub(crate) fn wrote(&mut self, from: usize, to: usize, node_state: usize, bytes: &[u8]) {
        self.window(from, to).bytes[node_state..node_state + bytes.len()].copy_from_slice(bytes);
        for op in self.ops.iter_mut().filter(|op| op.node == from && !op.over) {
            if let OracleOp::Read { to: of, at, expect, any } = &mut op.op {
                if *of == to {
                    for index in
                        node_state.max(*at)..(node_state + bytes.len()).min(*at + expect.len())
                    {
                        any[index - *at] = true;
                    }
                }
            }
        }
    }

    /// Records a posted write with data.
    pub(crate) fn notifies(&mut self, from: usize, to: usize, data: u64) {
        self.node_states[to].data.push((from, data));
    }

    /// Adds a value to the counter reserved for one node; returns the former value.
    pub(crate) fn adds(&mut self, from: usize, to: usize, what: u64) -> u64 {
        let counter = &mut self.window(from, to).counter;
        std::mem::replace(counter, counter.wrapping_add(what))
    }

    /// Returns true if an entry belongs to a message not sent by any node.
    fn is_forged(&self, entry: &ReportedEntry) -> bool {
        self.hostile && entry.src == FI_ADDR_NOTAVAIL
    }

    /// A completion queue of a node gave an entry.
    pub(crate) fn reported(&mut self, node: usize, entry: &ReportedEntry) {
        self.completions += 1;
        if entry.context == 0 && entry.flags & FI_REMOTE_WRITE != 0 {
            assert!(entry.error.is_none() && entry.flags & FI_REMOTE_CQ_DATA != 0, "{entry:?}");
            if self.is_forged(entry) {
                return;
            }
            let data = &mut self.node_states[node].data;
            let at = data.iter().position(|(_, data)| *data == entry.data);
            let at = at.unwrap_or_else(|| panic!("data never written, or twice: {entry:?}"));
            data.remove(at);
            return;
        }
        let id = entry.context.wrapping_sub(1);
        let op = self.ops.get(id).unwrap_or_else(|| panic!("unknown completion: {entry:?}"));
        assert_eq!(op.node, node, "the completion of another node's operation: {entry:?}");
        assert_eq!(
            op.life, self.node_states[node].life,
            "a closed endpoint's completion: {entry:?}"
        );
        assert!(!op.over, "operation {id} completes twice: {op:?} {entry:?}");
        match op.op {
            OracleOp::Receive { .. } => self.received(id, entry),
            OracleOp::Peek { .. } => self.looked(id, entry),
            OracleOp::Claim { .. } => self.claim_is_over(id, entry),
            OracleOp::PostedTag { .. } => self.tag_fails(id, entry),
            _ => self.done(id, entry),
        }
    }

    /// A send, write, read or atomic operation has completed.
    fn done(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let node = op.node;
        let Some((to, _)) = op.goes_to() else { return };
        if let Some((error, _)) = entry.error {
            assert!(
                self.is_hurt(node, to),
                "operation {id} failed without a cause ({error}): {op:?}"
            );
            (self.ops[id].over, self.ops[id].failure) = (true, Some(error));
            return;
        }
        assert!(op.reports, "a success without a request for it: {op:?}");
        if op.fenced && !self.is_hurt(node, to) {
            let same = |before: &TakenOperation| before.goes_to() == op.goes_to();
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
        match &op.op {
            OracleOp::Send { acked: true, .. } if sound => self.node_states[to].acked.push(id),
            OracleOp::Read { expect, any, .. } if sound => {
                let bytes = op.bytes();
                for (index, byte) in expect.iter().enumerate() {
                    assert!(any[index] || bytes[index] == *byte, "read {id} at {index}: {op:?}");
                }
            }
            OracleOp::Add { before, .. } if sound && op.buf.is_empty() => {
                assert_eq!(*op.fetched, *before, "operation {id} fetched something else");
            }
            _ => {}
        }
        let op = &mut self.ops[id];
        op.over = true;
        if matches!(op.op, OracleOp::Send { .. } | OracleOp::Write { .. }) {
            // The application puts something else there.
            op.buf.fill(0xee);
        }
    }

    fn received(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let node = op.node;
        let OracleOp::Receive { at: part, tagged, from, tag, ignore, multi, ref filled } = op.op
        else {
            return;
        };
        assert_eq!(entry.flags & FI_TAGGED != 0, tagged, "{entry:?}");
        assert!(entry.flags & FI_RECV != 0, "{entry:?}");
        let gives_back = !multi || entry.flags & FI_MULTI_RECV != 0;
        if let Some((Error::CANCELED, _)) = entry.error {
            self.ops[id].over = gives_back;
            return;
        }
        if self.is_forged(entry) {
            self.ops[id].over = gives_back;
            return;
        }
        let base = op.buf.as_ptr() as usize;
        let at = if multi { entry.buf.wrapping_sub(base) } else { 0 };
        assert!(at <= op.buf.len(), "{entry:?} is not in the buffer of receive {id}");
        let bytes = &op.bytes()[at..];
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
            // Message with its link cut during the transfer; its sender is not always known.
            let any = (0..self.hurt.len()).any(|other| self.is_hurt(node, other));
            assert!(any, "receive {id} failed without a cause: {entry:?}");
        };
        if let Some((error, _)) = entry.error {
            if error != Error::TRUNC {
                lost(entry);
                self.ops[id].over = gives_back;
                return;
            }
        }
        let of = self.ops.get(message).unwrap_or_else(|| panic!("no such message: {entry:?}"));
        let sender = of.node;
        let OracleOp::Send { to, order, tagged: of_tagged, tag: of_tag, len, taken, .. } = of.op
        else {
            panic!("receive {id} got operation {message}, which is no message: {entry:?}");
        };
        assert!(!taken, "message {message} was received twice, now by {id}");
        assert_eq!(
            (to, of_tagged, part.unwrap_or(order.1)),
            (node, tagged, order.1),
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
        let steady = !self.node_states[node].renamed;
        if let Some(from) = from.filter(|_| steady) {
            assert!(is_from(from, sender, order), "receive {id} takes messages of one source only");
        }
        if steady && !self.is_hurt(node, sender) {
            let name = self.node_states[node].names[sender][self.source_part(order)];
            let name = name.unwrap_or(FI_ADDR_NOTAVAIL);
            assert_eq!(entry.src, name, "message {message} of {sender} to {node}");
        }
        let part = at..at + entry.len;
        let twice = filled.iter().any(|other| other.start < part.end && part.start < other.end);
        assert!(!twice, "{part:?} of the buffer of receive {id} has two messages");
        let capacity = bytes.len();
        assert_eq!(
            entry.len,
            len.min(capacity),
            "message {message} of {len} in {capacity}: {entry:?}"
        );
        let over = len.saturating_sub(capacity);
        let error = (over > 0).then_some((Error::TRUNC, over));
        assert_eq!(entry.error, error, "message {message} of {len} in {capacity}: {entry:?}");
        let sent = payload(message, len);
        assert!(
            bytes[..entry.len] == sent[..entry.len],
            "the bytes of message {message}: {entry:?}"
        );
        self.check_order(id, message);
        self.take(message);
        let op = &mut self.ops[id];
        op.over = gives_back;
        if let OracleOp::Receive { filled, .. } = &mut op.op {
            filled.push(part);
        }
    }

    /// Checks the completion of a peek.
    fn looked(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let node = op.node;
        let OracleOp::Peek { at, tag, ignore, claims, discards } = op.op else { return };
        if let Some((error, _)) = entry.error {
            assert_eq!(error, Error::NOMSG, "{op:?}");
            self.ops[id].over = true;
            return;
        }
        if self.is_forged(entry) {
            self.ops[id].over = !claims;
            if claims {
                self.ops[id].op = OracleOp::Claim { at, message: FORGED, discards: false };
                self.claimed.push(id);
            }
            return;
        }
        let message = (entry.tag >> NUMBER) as usize;
        let of = self.ops.get(message).unwrap_or_else(|| panic!("no such message: {entry:?}"));
        let OracleOp::Send { to, order, tagged, tag: of_tag, len, taken, .. } = of.op else {
            panic!("{op:?} found operation {message}, which is no message: {entry:?}");
        };
        assert_eq!(at.unwrap_or(order.1), order.1, "{op:?} found {of:?}");
        assert_eq!((to, tagged, taken), (node, true, false), "{op:?} found {message}, {of:?}");
        assert_eq!((of_tag, (of_tag ^ tag) & !ignore), (entry.tag, 0), "{op:?} found {of:?}");
        assert_eq!(entry.len, len, "{op:?} found {of:?}");
        if discards {
            self.take(message);
        }
        if claims {
            self.ops[id].op = OracleOp::Claim { at, message, discards: false };
            self.claimed.push(id);
        } else {
            self.ops[id].over = true;
        }
    }

    fn take(&mut self, message: OpId) {
        if let OracleOp::Send { to, len, taken, .. } = &mut self.ops[message].op {
            assert!(!*taken, "message {message} is received twice");
            *taken = true;
            let (count, bytes) = &mut self.node_states[*to].coming;
            (*count, *bytes) = (*count - 1, *bytes - *len);
        }
    }

    /// Returns the peeks of a node with a claimed message since the last call.
    pub(crate) fn claims(&mut self, node: usize) -> Vec<OpId> {
        let (its, others) = std::mem::take(&mut self.claimed)
            .into_iter()
            .partition(|id| self.ops[*id].node == node);
        self.claimed = others;
        its
    }

    /// Returns the part of a receive's or peek's node.
    pub(crate) fn receiver_of(&self, id: OpId) -> Option<usize> {
        match self.ops[id].op {
            OracleOp::Receive { at, .. }
            | OracleOp::Peek { at, .. }
            | OracleOp::Claim { at, .. } => at,
            _ => None,
        }
    }

    /// A claimed message is to be dropped.
    pub(crate) fn discards(&mut self, id: OpId) {
        if let OracleOp::Claim { discards, .. } = &mut self.ops[id].op {
            *discards = true;
        }
    }

    /// Handles the failure of a posted tag: it was cancelled, or its matching message is lost.
    fn tag_fails(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let any = (0..self.hurt.len()).any(|other| self.is_hurt(op.node, other));
        match entry.error {
            Some((Error::CANCELED, _)) => {}
            Some(_) if any => {}
            _ => panic!("tag {id} fails without a cause: {entry:?}"),
        }
        self.ops[id].over = true;
    }

    /// Handles the report of a message to a node with buffered receives. It matched a posted tag,
    /// or needed none. Returns the message.
    pub(crate) fn on_rts(
        &mut self,
        node: usize,
        entry: &ReportedEntry,
        posted: Option<OpId>,
    ) -> OpId {
        self.completions += 1;
        let tagged = entry.flags & FI_TAGGED != 0;
        if self.is_forged(entry) {
            if let Some(id) = posted {
                self.ops[id].over = true;
            }
            return FORGED;
        }
        let message = if tagged { entry.tag >> NUMBER } else { entry.data } as usize;
        let of = self.ops.get(message).unwrap_or_else(|| panic!("no such message: {entry:?}"));
        let OracleOp::Send { to, tagged: of_tagged, tag, len, taken, .. } = of.op else {
            panic!("{node} is told of operation {message}, which is no message: {entry:?}");
        };
        assert_eq!((to, of_tagged, taken), (node, tagged, false), "{node} is told of {of:?}");
        assert_eq!((entry.len, entry.error), (len, None), "{entry:?} of {of:?}");
        let sender = of.node;
        if !self.node_states[node].renamed && !self.is_hurt(node, sender) {
            let name = self.node_states[node].names[sender][0].unwrap_or(FI_ADDR_NOTAVAIL);
            assert_eq!(entry.src, name, "message {message} of {sender} to {node}");
        }
        let reported = self.reported.entry((node, sender, tagged)).or_default();
        assert!(!reported.contains(&message), "{node} is told twice of {message}");
        let younger = posted.is_none() && reported.iter().any(|other| *other > message);
        reported.push(message);
        assert!(!younger || self.is_hurt(node, sender), "{node} is told of {message} late");
        if let Some(id) = posted {
            let op = &mut self.ops[id];
            let OracleOp::PostedTag { tag: wanted, ignore } = op.op else {
                panic!("operation {id}, {op:?}, met {message}");
            };
            assert!(!op.over && op.node == node && tagged, "tag {id}, {op:?}, met {message}");
            assert_eq!((tag ^ wanted) & !ignore, 0, "tag {id}, {op:?}, met {message}");
            op.over = true;
        }
        message
    }

    /// Records the drop of a reported message.
    pub(crate) fn dropped(&mut self, message: OpId) {
        if message != FORGED {
            self.take(message);
        }
    }

    fn claim_is_over(&mut self, id: OpId, entry: &ReportedEntry) {
        let op = &self.ops[id];
        let OracleOp::Claim { message, discards, .. } = op.op else { return };
        if message == FORGED {
            self.ops[id].over = true;
            return;
        }
        let of = &self.ops[message];
        let OracleOp::Send { len, tag, .. } = of.op else { return };
        let capacity = op.buf.len();
        match entry.error {
            None => {
                assert_eq!((entry.tag, entry.len), (tag, len), "{op:?} of {of:?}: {entry:?}");
                assert!(discards || op.buf[..len] == payload(message, len)[..], "{op:?}: bytes");
                self.take(message);
            }
            Some((Error::TRUNC, over)) => {
                assert!(!discards && capacity + over == len, "{op:?} of {of:?}: {entry:?}");
                assert!(op.buf[..] == payload(message, len)[..capacity], "{op:?}: bytes");
                self.take(message);
            }
            Some((error, _)) => {
                assert!(self.is_hurt(op.node, of.node), "{op:?} fails without a cause: {error}");
            }
        }
        self.ops[id].over = true;
    }

    /// Returns the part named as a message's source.
    fn source_part(&self, order: MessageOrder) -> usize {
        if self.named_parts { order.0 } else { 0 }
    }

    fn accepts(&self, receive: OpId, message: OpId) -> bool {
        let (op, of) = (&self.ops[receive], &self.ops[message]);
        let OracleOp::Receive { at, tagged, from, tag, ignore, .. } = op.op else { return false };
        let OracleOp::Send { to, order, tagged: of_tagged, tag: of_tag, .. } = of.op else {
            return false;
        };
        let steady = !self.node_states[op.node].renamed;
        to == op.node
            && tagged == of_tagged
            && at.is_none_or(|at| at == order.1)
            && (!tagged || (of_tag ^ tag) & !ignore == 0)
            && from.is_none_or(|from| is_from(from, of.node, order) && steady)
    }

    /// Checks the order: of two messages of one sender and two receives matching the first message,
    /// the older receive gets it.
    fn check_order(&mut self, receive: OpId, message: OpId) {
        let (node, sender) = (self.ops[receive].node, self.ops[message].node);
        let OracleOp::Receive { tagged, .. } = self.ops[receive].op else { return };
        let OracleOp::Send { order, .. } = self.ops[message].op else { return };
        if self.is_hurt(node, sender) {
            return;
        }
        let key = (node, sender, tagged, order);
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
    pub(crate) fn cq_is_drained(&mut self, node: usize) {
        for id in std::mem::take(&mut self.node_states[node].acked) {
            let OracleOp::Send { taken, .. } = self.ops[id].op else { continue };
            let hurt = self.is_hurt(self.ops[id].node, node);
            assert!(taken || hurt, "message {id} counts as received and is not");
        }
    }

    /// Returns the number of messages of a kind possibly still to arrive at a part of a node, and
    /// their bytes.
    pub(crate) fn waiting(&self, node: usize, at: Option<usize>, tagged: bool) -> (usize, usize) {
        let waiting = self.ops.iter().filter_map(|op| match op.op {
            OracleOp::Send { to, order, tagged: of, len, taken: false, .. }
                if to == node && of == tagged && at.is_none_or(|at| at == order.1) =>
            {
                Some(len)
            }
            _ => None,
        });
        waiting.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len))
    }

    /// Checks the number of messages buffered by an engine for a node, and their memory; each costs
    /// `cost` in addition to its bytes.
    pub(crate) fn check_buffered(&self, node: usize, buffered: (usize, usize), cost: usize) {
        if self.hostile {
            return;
        }
        let (count, bytes) = self.node_states[node].coming;
        assert!(
            buffered.0 <= count,
            "{node} keeps {} messages, of {count} it has not got",
            buffered.0
        );
        let most = bytes + count * cost;
        assert!(buffered.1 <= most, "{node} keeps {} bytes of messages of {most}", buffered.1);
    }

    /// Checks the final state, without further events: all operations must be complete.
    pub(crate) fn check_end(&self) {
        for id in &self.expected {
            let op = &self.ops[*id];
            let OracleOp::Send { taken, .. } = op.op else { continue };
            assert!(taken, "message {id} was accepted, and lost when its sender closed: {op:?}");
        }
        for (id, op) in self.ops.iter().enumerate() {
            let alive = |node: usize| self.node_states[node].alive;
            if !alive(op.node) || op.life != self.node_states[op.node].life {
                continue;
            }
            match op.op {
                OracleOp::Receive { .. } => {
                    for (&(node, ..), matches) in &self.matches {
                        if node != op.node || op.over {
                            continue;
                        }
                        let younger =
                            matches.iter().find(|(other, of)| id < *other && self.accepts(id, *of));
                        assert!(younger.is_none(), "receive {id} was passed over: {younger:?}");
                    }
                }
                OracleOp::PostedTag { .. } => {}
                OracleOp::Send { to, taken, .. } => {
                    assert!(op.over || !op.reports, "send {id} never completes: {op:?}");
                    assert!(
                        taken || self.is_hurt(op.node, to) || !alive(to),
                        "message {id} was lost: {op:?}"
                    );
                }
                _ => assert!(op.over || !op.reports, "operation {id} never completes: {op:?}"),
            }
        }
        for (node, node_state) in self.node_states.iter().enumerate() {
            let lost = node_state.data.iter().find(|(from, _)| !self.is_hurt(*from, node));
            assert!(lost.is_none() || !node_state.alive, "data for {node} never came: {lost:?}");
        }
    }

    /// Compares a node's memory for another node with the data written by the latter.
    pub(crate) fn check_memory(&self, node: usize, memory: &[u8], counters: &[u8]) {
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

    /// Returns the incomplete receives of a node.
    pub(crate) fn receives(&self, node: usize) -> Vec<OpId> {
        let life = self.node_states[node].life;
        let of = |op: &TakenOperation| {
            op.node == node
                && op.life == life
                && !op.over
                && matches!(op.op, OracleOp::Receive { .. } | OracleOp::PostedTag { .. })
        };
        (0..self.ops.len()).filter(|id| of(&self.ops[*id])).collect()
    }
}
