//! Calls of simulated applications: messages, accesses and cancellations.
use super::*;
use crate::device;
use ofi_provider::reserved::WITH_DEVICES;

impl<W: SimWorld> Sim<W> {
    pub(super) fn send_something(&mut self, node: usize) {
        let Some((to, part, dest)) = self.known(node, false) else { return };
        let len = self.size();
        let (mut flags, reports) = self.op_flags();
        let tagged = self.random.below(3) > 0;
        let class = self.random.below(CLASSES as usize + 1) as u64;
        // Only this identifies a message reported by its start.
        let reported = self.plan.shape == NodeConfig::Buffered;
        if !tagged && (len < 8 || reported) || self.random.one_in(8) {
            flags |= FI_REMOTE_CQ_DATA;
        }
        let shares_memory = self.plan.shares_memory && self.random.one_in(8);
        flags |= if shares_memory { FI_MATCH_COMPLETE } else { 0 };
        let delivered = self.random.one_in(8);
        flags |= if delivered { FI_DELIVERY_COMPLETE } else { 0 };
        let inject = len <= self.plan.inject_size && self.random.one_in(3);
        flags |= if inject { FI_INJECT } else { 0 };
        let from = self.random.below(self.plan.parts);
        let acked = (shares_memory && self.plan.matched_is_received)
            || (delivered && self.plan.delivered_is_received);
        let class = tagged.then_some(class);
        self.send((node, from), (to, part, dest), (len, class), flags, (acked, reports));
    }

    /// Sends a message, tagged if it has a class; its number if it was taken.
    pub(super) fn send(
        &mut self,
        (node, from): (usize, usize),
        (to, part, dest): (usize, usize, fi_addr_t),
        (len, class): (usize, Option<u64>),
        flags: u64,
        (acked, reports): (bool, bool),
    ) -> Option<OpId> {
        let id = self.oracle.next();
        let tag = class.map_or(0, |class| tag_of(id, class));
        let mut bytes = payload(id, len);
        let is_on_device = flags & FI_INJECT == 0 && self.uses_device();
        let of = self.nodes[node].as_ref()?;
        let (buf, on_device) = source(&mut bytes, is_on_device);
        let op_flags = flags | device_flag(is_on_device);
        let op = SendOp { buf, dest, context: context(id), data: id as u64, tag, flags: op_flags };
        let ep = of.tx(from);
        let result = if class.is_some() { ep.tsend(op) } else { ep.send(op) };
        if !self.is_taken(node, result) {
            return None;
        }
        if flags & FI_INJECT != 0 {
            bytes.fill(0xee);
        }
        let (order, tagged) = ((from, part), class.is_some());
        let oracle_op = OracleOp::Send { to, order, tagged, tag, len, acked, taken: false };
        self.oracle.took(node, oracle_op, bytes, Box::default(), reports, flags & FI_FENCE != 0);
        self.oracle.located_last(on_device);
        if flags & FI_INJECT != 0 {
            self.oracle.injected_last();
        }
        Some(id)
    }

    /// Has a node send a tagged message of so many bytes to a part of another, with these flags;
    /// the number of the operation.
    pub fn send_immediately(
        &mut self,
        node: usize,
        to: (usize, usize),
        len: usize,
        flags: u64,
    ) -> usize {
        self.enter(node);
        let dest = self.dest(node, to).expect("it has a name");
        let to = (to.0, to.1, dest);
        self.send((node, 0), to, (len, Some(0)), flags, (false, true)).expect("there is room")
    }

    /// Has a part of a node receive any tagged message, of at most so many bytes; the number of
    /// the operation.
    pub fn receive_now(&mut self, (node, part): (usize, usize), capacity: usize) -> usize {
        self.enter(node);
        let id = self.oracle.next();
        self.post((node, Some(part)), true, None, (0, u64::MAX >> 1), (capacity, false));
        id
    }

    /// Makes a node claim any waiting tagged message; returns the number of the operation. The
    /// message is received, or dropped, when the claim is [read](Self::read).
    pub fn claim_now(&mut self, node: usize) -> usize {
        self.enter(node);
        let (id, buf) = (self.oracle.next(), vec![0xbb; 64]);
        let (tag, ignore) = (0, u64::MAX >> 1);
        let oracle_op = OracleOp::Peek { at: Some(0), tag, ignore, claims: true, discards: false };
        self.oracle.took(node, oracle_op, buf, Box::default(), true, false);
        self.look(node, id, (tag, ignore), FI_COMPLETION | FI_PEEK | FI_CLAIM);
        id
    }

    pub(super) fn receive(&mut self, node: usize) {
        let at = self.receiver();
        let tagged = self.random.below(3) > 0;
        let multi = self.random.one_in(10);
        let capacity = match multi {
            true => 512 + self.random.below(4 * self.plan.largest),
            false => self.random.pick(&[64, 2000, self.plan.largest.max(64)]),
        };
        let mut source = None;
        if self.plan.directed && self.random.one_in(3) {
            let (other, names) = (self.someone(), self.names());
            let part = self.random.below(names);
            let of = (other, (names > 1).then_some(part));
            source = self.oracle.name(node, (other, part)).map(|name| (name, of));
        }
        let pattern = self.pattern();
        self.post((node, at), tagged, source, pattern, (capacity, multi));
    }

    #[allow(clippy::type_complexity)]
    pub(super) fn post(
        &mut self,
        (node, at): (usize, Option<usize>),
        tagged: bool,
        source: Option<(fi_addr_t, (usize, Option<usize>))>,
        (tag, ignore): (u64, u64),
        (capacity, multi): (usize, bool),
    ) {
        let is_on_device = self.uses_device();
        let Some(of) = &self.nodes[node] else { return };
        let id = self.oracle.next();
        let (tag, ignore) = if tagged { (tag, ignore) } else { (0, 0) };
        let mut bytes = vec![0xdd; capacity];
        let (buf, first) = match self.plan.split && !multi {
            true => (half_space(&mut bytes), capacity / 2),
            false => (space_to_receive(&mut bytes), capacity),
        };
        let (buf, on_device) = target(buf, first, is_on_device);
        let flags = FI_COMPLETION | if multi { FI_MULTI_RECV } else { 0 };
        let (src, from) = source.map_or((FI_ADDR_UNSPEC, None), |(src, from)| (src, Some(from)));
        let oracle_op =
            OracleOp::Receive { at, tagged, from, tag, ignore, multi, filled: Vec::new() };
        self.oracle.took(node, oracle_op, bytes, Box::default(), true, false);
        self.oracle.located_last(on_device);
        let flags = flags | device_flag(is_on_device);
        let op = RecvOp { buf, src, tag, ignore, context: context(id), flags };
        let ep = of.rx(at);
        if tagged { ep.trecv(op) } else { ep.recv(op) }.unwrap();
        self.note_shortage(node);
    }

    /// Returns true if the next buffer is in memory of the device.
    fn uses_device(&mut self) -> bool {
        self.world.has_devices() && self.random.one_in(2)
    }

    /// A write, a read or an atomic operation.
    pub(super) fn access(&mut self, node: usize) {
        let Some((to, _, dest)) = self.known(node, true) else { return };
        let id = self.oracle.next();
        let (mut flags, reports) = self.op_flags();
        let written = !self.plan.ordered_accesses && self.unordered_writes.contains(&(node, to));
        flags |= if written { FI_FENCE } else { 0 };
        let fenced = flags & FI_FENCE != 0;
        let len = self.size().min(WINDOW);
        let at = self.random.below(WINDOW - len + 1);
        let remote = RemoteSegments::one((node * WINDOW + at) as u64, len as u64, KEY);
        let context = context(id);
        let kind = self.random.below(3);
        let reported = kind == 0 && self.random.one_in(4) && len > 0;
        let amount = self.random.next();
        let is_on_device = self.uses_device();
        let Some(of) = &self.nodes[node] else { return };
        let ep = of.tx(0);
        match kind {
            0 => {
                let mut bytes = payload(id, len);
                let inject = len <= self.plan.inject_size && amount % 3 == 0;
                flags |= if inject { FI_INJECT } else { 0 };
                flags |= if reported { FI_REMOTE_CQ_DATA } else { 0 };
                flags |= if amount % 4 == 0 { FI_DELIVERY_COMPLETE } else { 0 };
                let data = id as u64;
                let written = bytes.clone();
                let (buf, on_device) = source(&mut bytes, is_on_device && !inject);
                let result = ep.write(WriteOp { buf, remote, dest, context, data, flags });
                if self.is_taken(node, result) {
                    self.unordered_writes.insert((node, to));
                    self.oracle.wrote(node, to, at, &written);
                    if reported {
                        self.oracle.notifies(node, to, data);
                    }
                    if inject {
                        bytes.fill(0xee);
                    }
                    let oracle_op = OracleOp::Write { to };
                    self.oracle.took(node, oracle_op, bytes, Box::default(), reports, fenced);
                    self.oracle.located_last(on_device);
                }
            }
            1 => {
                let mut bytes = vec![0xcc; len];
                let (buf, on_device) = target(space_to_receive(&mut bytes), len, is_on_device);
                let result = ep.read(ReadOp { buf, remote, src: dest, context, flags });
                if self.is_taken(node, result) {
                    if fenced {
                        self.unordered_writes.remove(&(node, to));
                    }
                    let expect = self.oracle.expect(node, to, at, len);
                    let oracle_op = OracleOp::Read { to, at, expect, any: vec![false; len] };
                    self.oracle.took(node, oracle_op, bytes, Box::default(), reports, fenced);
                    self.oracle.located_last(on_device);
                }
            }
            _ => {
                let (bytes, mut fetched) = (amount.to_ne_bytes().to_vec(), Box::new(0u64));
                let fetches = amount % 2 == 0;
                let atomic = if fetches { AtomicKind::Fetch } else { AtomicKind::Base };
                let (datatype, sum) = (fi_datatype::FI_UINT64 as u32, fi_op::FI_SUM as u32);
                let operation = Operation::new(atomic, datatype, sum).unwrap();
                let counter = (self.plan.nodes * WINDOW + node * 8) as u64;
                let source = bytes_to_send(&bytes);
                // SAFETY: the oracle keeps the box; one that is moved does not move what is in it.
                let (compare, result) = unsafe {
                    (
                        SendBuf::new(std::ptr::null(), 0).unwrap(),
                        match fetches {
                            true => RecvBuf::new((&raw mut *fetched).cast(), 8).unwrap(),
                            false => RecvBuf::none(),
                        },
                    )
                };
                let remote = RemoteSegments::one(counter, 8, KEY);
                let op = AtomicOp {
                    operation,
                    source,
                    compare,
                    result,
                    remote,
                    dest,
                    context,
                    data: 0,
                    flags,
                };
                let result = ep.atomic(op);
                if self.is_taken(node, result) {
                    let before = self.oracle.adds(node, to, amount);
                    let oracle_op = OracleOp::Add { to, before };
                    let buf = if fetches { Vec::new() } else { bytes };
                    self.oracle.took(node, oracle_op, buf, fetched, reports, fenced);
                }
            }
        }
    }

    pub(super) fn cancel(&mut self, node: usize) {
        let receives = self.oracle.receives(node);
        if !receives.is_empty() {
            let one = self.random.pick(&receives);
            self.cancel_one(node, one);
        }
    }

    pub(super) fn cancel_one(&mut self, node: usize, id: OpId) {
        if let Some(of) = &self.nodes[node] {
            of.rx(self.oracle.receiver_of(id)).cancel(context(id), false).unwrap();
        }
    }

    /// Posts receives for all waiting messages; returns false if there are none.
    pub(super) fn receive_all(&mut self) -> bool {
        let mut any = false;
        for node in 0..self.plan.nodes {
            for part in 0..self.plan.parts {
                let at = (self.plan.shape != NodeConfig::Shared).then_some(part);
                for tagged in [false, true] {
                    let (count, bytes) = self.oracle.waiting(node, at, tagged);
                    if self.plan.shape == NodeConfig::Buffered {
                        let tags = if tagged { count } else { 0 };
                        (0..tags).for_each(|_| self.post_tag(node, (0, u64::MAX >> 1)));
                    } else if count > 0 && self.nodes[node].is_some() && (at.is_some() || part == 0)
                    {
                        let capacity = (bytes + 512 + 1024, true);
                        self.post((node, at), tagged, None, (0, u64::MAX >> 1), capacity);
                        any = true;
                    }
                }
            }
        }
        any
    }

    /// Posts a tag on a node with buffered receives, or claims or drops a message reported to it.
    pub(super) fn receive_buffered(&mut self, node: usize) {
        let its: Vec<_> =
            (0..self.reported.len()).filter(|at| self.reported[*at].0 == node).collect();
        if !its.is_empty() && self.random.one_in(2) {
            let one = self.random.pick(&its);
            self.settle_notified(one);
        } else if self.plan.tags {
            let pattern = self.pattern();
            self.post_tag(node, pattern);
        }
    }

    pub(super) fn post_tag(&mut self, node: usize, (tag, ignore): (u64, u64)) {
        let Some(of) = &self.nodes[node] else { return };
        let id = self.oracle.next();
        let oracle_op = OracleOp::PostedTag { tag, ignore };
        self.oracle.took(node, oracle_op, Vec::new(), Box::default(), true, false);
        let (buf, src, flags) = (RecvBuf::none(), FI_ADDR_UNSPEC, FI_COMPLETION | ONLY_TAG);
        let op = RecvOp { buf, src, tag, ignore, context: context(id), flags };
        of.rx(None).trecv(op).unwrap();
        self.note_shortage(node);
    }

    /// Receives or drops a claimed message.
    pub(super) fn claim(&mut self, node: usize, id: OpId) {
        let discards = self.random.one_in(4);
        if discards {
            self.oracle.discards(id);
        }
        let flags = FI_COMPLETION | FI_CLAIM | if discards { FI_DISCARD } else { 0 };
        self.look(node, id, (0, 0), flags);
    }

    /// Returns a part with its own receives; none if all parts share theirs.
    pub(super) fn receiver(&mut self) -> Option<usize> {
        let parts = self.plan.parts;
        (self.plan.shape != NodeConfig::Shared).then(|| self.random.below(parts))
    }

    /// Posts a peek for a tagged message.
    pub(super) fn peek(&mut self, node: usize) {
        let id = self.oracle.next();
        let at = self.receiver();
        let (tag, ignore) = self.pattern();
        let (claims, discards) = self.random.pick(&[(false, false), (true, false), (false, true)]);
        let buf = vec![0xbb; self.random.pick(&[0, 64, self.plan.largest])];
        let oracle_op = OracleOp::Peek { at, tag, ignore, claims, discards };
        self.oracle.took(node, oracle_op, buf, Box::default(), true, false);
        let flags = FI_COMPLETION
            | FI_PEEK
            | if claims { FI_CLAIM } else { 0 }
            | if discards { FI_DISCARD } else { 0 };
        self.look(node, id, (tag, ignore), flags);
    }
}

/// Returns a buffer with these bytes to be sent, in memory of the device or not, and the number of bytes
/// there.
fn source(bytes: &mut [u8], is_on_device: bool) -> (SendBuf, usize) {
    if !is_on_device {
        return (bytes_to_send(bytes), 0);
    }
    device::mask(bytes);
    (bytes_to_send(bytes).with_locations(device::locations()), bytes.len())
}

/// Returns the flag of an operation with memory of the device, or none.
fn device_flag(is_on_device: bool) -> u64 {
    if is_on_device { WITH_DEVICES } else { 0 }
}

/// Returns a receive buffer with its first segment, of `len` bytes, in memory of the device or not, and
/// the number of bytes there.
fn target(buf: RecvBuf, len: usize, is_on_device: bool) -> (RecvBuf, usize) {
    if is_on_device { (buf.with_locations(device::locations()), len) } else { (buf, 0) }
}
