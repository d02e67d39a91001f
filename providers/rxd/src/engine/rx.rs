//! Receiving: packets in the order of their numbers become messages, and accesses to local memory.
//!
//! A packet arriving early is stored until those before it have arrived. A packet without space for
//! its operation waits in the same store, with all packets after it. Then the peer is asked to
//! stop.
use super::arriving::{Arriving, RxdTarget, RxdUnexpected};
use super::budget::Held;
use super::conn::HandshakeState;
use super::conns::MissingSpace;
use super::ep::RxdEngineEp;
use super::indices::IndexUse;
use super::op::{RxdTx, TxData};
use super::port::PacketSource;
use crate::config::{max_atomic, max_atomic_bytes};
use crate::provider::RXD;
use crate::wire::{
    ATOMIC, ATOMIC_COMPARE, ATOMIC_FETCH, Ack, CTS, Cts, DATA, DATA_HEAD, DATA_READ, DELIVER,
    DELIVERED, DataHead, INJECTED, MSG, Malformed, NO_OP, NO_TX_COMPLETION, Parsed, PiggybackAck,
    READ_REQ, REJECT_REASON, RTS, Rts, RxdBase, RxdOperation, TAGGED, WRITE,
};
use ofi_provider::abi::{FI_ATOMIC, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA};
use ofi_provider::api::RemoteSegments;
use ofi_provider::atomic::{AtomicKind, Operation};
use ofi_provider::buf::zeroed;
use ofi_provider::error::{Error, Result};
use ofi_provider::heap;
use ofi_provider::mr::MrTable;
use ofi_provider::rx_matcher::{Envelope, MatchedMessage};

/// Memory limit of buffered messages of one endpoint; beyond it peers have to wait.
const MAX_BUFFERED: usize = if cfg!(test) { 3 << 20 } else { 256 << 20 };

/// Maximum growth step of the memory of a message being received.
const MOST_GROWTH: usize = 1 << 20;

/// Memory limit of packets received early, and of those from unknown peers among them.
const MAX_EARLY: usize = 64 << 20;
const MAX_EARLY_UNKNOWN: usize = 16 << 20;

/// Maximum bytes of a peer's read copied at once: the region may be closed before all of it is
/// sent. The rest is read from the region when it is sent.
const COPIED_READ: usize = 64 << 10;

/// Result of handling the next packet in sequence.
#[derive(PartialEq, Eq)]
enum PacketFate {
    /// It is handled. `end`: it ended an operation awaited at the sender.
    Done { end: bool },
    /// There is no space for its content.
    Wait,
    /// There is no space for a response to it, until peers have acknowledged some responses.
    HeldBack,
}

impl RxdEngineEp {
    /// Handles a packet from this source.
    pub(super) fn packet_came(&mut self, source: &PacketSource, packet: &[u8]) {
        let handled = RxdBase::read(packet).and_then(|base| match base.kind {
            RTS => self.asked(&Rts::read(packet)?, source),
            CTS => self.on_cts(&Cts::read(packet)?, source),
            kind => {
                let id = match self.conns.index_use(base.peer) {
                    Some(IndexUse::Conn(id)) => {
                        self.conns
                            .check_source(id, source, |peer, at| self.peers[peer].addr == *at)?;
                        id
                    }
                    Some(IndexUse::HalfOpen(number)) => self.confirmed(number, source)?,
                    None => return Err(Malformed("a packet of no peer that is known")),
                };
                if self.conns[id].stage != HandshakeState::Known {
                    if !self.conns[id].received_unanswered() {
                        return Ok(());
                    }
                    self.requests.ended();
                    self.conns.make_ready(id);
                }
                let conn = &mut self.conns[id];
                (conn.last_received, conn.refused) = (self.now, 0);
                if kind == crate::wire::ACK {
                    return self.acknowledged(id, base.seq, Ack::read(packet)?);
                }
                let packet = if conn.carries() {
                    let (rest, piggybacked) = PiggybackAck::split(&base, packet)?;
                    if let Some(PiggybackAck { next, window }) = piggybacked {
                        self.acknowledged(id, next, Ack { window, here: 0, taken: 0 })?;
                    }
                    rest
                } else {
                    packet
                };
                self.in_sequence(id, base, packet)
            }
        });
        if let Err(Malformed(why)) = handled {
            ofi_provider::log_sparsely!(&RXD, INFO, EP_DATA, "a packet is dropped: {why}");
        }
    }

    /// Handles a peer's acknowledgement.
    fn acknowledged(&mut self, id: u32, next: u64, ack: Ack) -> Parsed {
        let now = self.now;
        let Some(acked) = self.conns[id].take_ack(next, ack, now) else {
            return Err(Malformed("an acknowledgement of what was not sent"));
        };
        self.tx.settle_acked(&mut self.conns, id);
        self.tx.settle_taken(&mut self.conns, id, next.saturating_add(ack.taken.into()));
        if let Some(conn) = self.conns.get_mut(id) {
            conn.arm_probe(now);
            let at = conn.deadline;
            self.conns.note_deadline(at);
        }
        if acked.go_on {
            self.conns.make_ready(id);
        }
        Ok(())
    }

    /// Handles a sequenced packet.
    fn in_sequence(&mut self, id: u32, base: RxdBase, packet: &[u8]) -> Parsed {
        let window = self.limits.config.max_unacked as u64;
        let conn = &mut self.conns[id];
        let ahead = base.seq.wrapping_sub(conn.expected);
        if base.seq < conn.expected {
            // The acknowledgement is lost.
            self.conns.queue_ack(id, true);
            return Ok(());
        }
        if ahead == 0 && !conn.stalled {
            match self.take_next(id, base, packet) {
                Ok(PacketFate::Done { end }) => {
                    self.took(id, end);
                    self.take_early(id);
                    return Ok(());
                }
                Ok(fate) => self.stall(id, fate),
                Err(why) => return self.jammed(id, why),
            }
        }
        let conn = &self.conns[id];
        let most = if conn.unknown { MAX_EARLY_UNKNOWN } else { MAX_EARLY };
        if ahead < window && self.conns.store_early(id, base.seq, packet, most) {
            // Those before it may never come.
            let conn = &mut self.conns[id];
            conn.arm_probe(self.now);
            let at = conn.deadline;
            self.conns.note_deadline(at);
        }
        self.conns.queue_ack(id, true);
        Ok(())
    }

    /// Records the expected packet as handled.
    fn took(&mut self, id: u32, end: bool) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.expected += 1;
        conn.came += 1;
        if conn.arriving.is_some() && conn.deadline.is_none() {
            // The rest may never come.
            conn.arm_probe(self.now);
            let at = conn.deadline;
            self.conns.note_deadline(at);
        }
        let conn = &mut self.conns[id];
        let put_off =
            end && conn.carries() && conn.ack_predictor.ended(self.now) && self.helper.rouse();
        conn.ack_put_off |= put_off;
        self.conns.queue_ack(id, end && !put_off);
    }

    /// Continues with packets received early.
    fn take_early(&mut self, id: u32) {
        loop {
            let Some(packet) = self.conns.take_early(id) else { return };
            let taken = RxdBase::read(&packet).and_then(|base| self.take_next(id, base, &packet));
            match taken {
                Ok(PacketFate::Done { end }) => self.took(id, end),
                Ok(fate) => {
                    if self.conns.get(id).is_none() {
                        return;
                    }
                    self.conns.put_back_early(id, packet);
                    self.stall(id, fate);
                    return;
                }
                Err(why) => {
                    let _ = self.jammed(id, why);
                    return;
                }
            }
        }
    }

    /// Ends the connection because the next packet in sequence can never be taken, nor any after
    /// it.
    #[cold]
    fn jammed(&mut self, id: u32, why: Malformed) -> Parsed {
        if let Some(conn) = self.conns.get(id) {
            let who = self.peers[conn.peer].addr.for_people();
            let Malformed(why) = why;
            ofi_provider::log_sparsely!(
                &RXD,
                WARN,
                EP_DATA,
                "{who} sent {why}: what was under way to it fails"
            );
        }
        self.drop_conn(id, Error::PROTO);
        Err(why)
    }

    /// Blocks a connection because there is no space for the peer's data.
    fn stall(&mut self, id: u32, fate: PacketFate) {
        if let Some(cq) = self.matcher.completions.cq().filter(|cq| !cq.has_space()) {
            cq.wait_for_space();
        }
        let missing = match fate {
            PacketFate::HeldBack => MissingSpace::Responses,
            _ => MissingSpace::Application,
        };
        self.conns.stall(id, missing);
    }

    /// Resumes peers blocked on space for their packets.
    #[cold]
    pub(super) fn retry_stalled(&mut self) {
        for id in self.conns.take_stalled() {
            let Some(conn) = self.conns.get_mut(id) else { continue };
            conn.stalled = false;
            self.take_early(id);
            if let Some(conn) = self.conns.get(id) {
                if !conn.stalled && conn.stop_notified {
                    self.conns.queue_ack(id, true);
                }
            }
        }
    }

    /// Handles the next packet in sequence.
    fn take_next(&mut self, id: u32, base: RxdBase, packet: &[u8]) -> Parsed<PacketFate> {
        match base.kind {
            DATA => {
                let (_, data) = DataHead::read(packet)?;
                self.data_came(id, data)
            }
            DATA_READ => {
                let (head, data) = DataHead::read(packet)?;
                self.tx.answer_came(&mut self.conns, id, head.tx_id, data)?;
                Ok(PacketFate::Done { end: false })
            }
            REJECT_REASON => {
                let (head, _) = DataHead::read(packet)?;
                let code = i32::try_from(head.rx_id).ok().filter(|code| *code > 0);
                let error = code.map_or(Error::OTHER, Error::from_code);
                self.tx.refused(&mut self.conns, id, head.tx_id, head.segment, error);
                Ok(PacketFate::Done { end: true })
            }
            DELIVERED => {
                let (head, _) = DataHead::read(packet)?;
                self.tx.delivered(&mut self.conns, id, head.tx_id);
                Ok(PacketFate::Done { end: true })
            }
            NO_OP => Ok(PacketFate::Done { end: true }),
            kind if RxdOperation::is_one(kind) => {
                let (op, data) = RxdOperation::read(&base, packet)?;
                if self.conns[id].arriving.is_some() {
                    return Err(Malformed("an operation within another"));
                }
                let lazy = base.flags & (INJECTED | NO_TX_COMPLETION) != 0;
                self.operation_came(id, &op, data, lazy)
            }
            _ => Err(Malformed("a packet of no type")),
        }
    }

    fn operation_came(
        &mut self,
        id: u32,
        op: &RxdOperation,
        data: &[u8],
        lazy: bool,
    ) -> Parsed<PacketFate> {
        match op.kind {
            MSG | TAGGED => self.message_came(id, op, data, lazy),
            READ_REQ => Ok(self.read_came(id, op)),
            WRITE => Ok(self.write_came(id, op, data, lazy)),
            ATOMIC | ATOMIC_FETCH | ATOMIC_COMPARE => Ok(self.atomic_came(id, op, data)),
            _ => Err(Malformed("an operation of no type")),
        }
    }

    /// A message begins, and is complete if it is one packet.
    #[inline]
    fn message_came(
        &mut self,
        id: u32,
        op: &RxdOperation,
        data: &[u8],
        lazy: bool,
    ) -> Parsed<PacketFate> {
        // The amount of buffered data matters only without a posted receive.
        if !self.matcher.completions.has_space() {
            return Ok(PacketFate::Wait);
        }
        let tagged = op.kind == TAGGED;
        let envelope = Envelope {
            tagged,
            msg_tag: None,
            collective: tagged && self.matcher.rules.is_internal_tag(op.tag),
            tag: if tagged { op.tag } else { 0 },
            len: op.total as usize,
            cq_data: op.cq_data,
            peer: self.conns[id].peer,
        };
        let whole = op.packets == 1;
        let notifies = op.flags & DELIVER != 0;
        if notifies && !self.conns.admits_notice(id) {
            return Ok(PacketFate::HeldBack);
        }
        let deliver = notifies.then(|| (self.conns[id].index, op.tx_id));
        let target = match self.matcher.take_posted(&envelope) {
            Some(recv) => {
                recv.buf.copy_from(0, data);
                if whole {
                    self.matcher.received(&recv, &envelope);
                    if deliver.is_some() {
                        self.conns.hold(id, Held::NOTICE);
                    }
                    self.tx.tell(&mut self.conns, deliver);
                    return Ok(PacketFate::Done { end: !lazy });
                }
                RxdTarget::Recv(recv, envelope)
            }
            None if self.matcher.senders.drops(&envelope) => RxdTarget::Nowhere,
            None => {
                let here = Envelope { len: data.len(), ..envelope };
                if !self.matcher.may_buffer(&here, MAX_BUFFERED) {
                    return Ok(PacketFate::Wait);
                }
                let body = match whole {
                    true => RxdUnexpected::Whole(data.into(), deliver),
                    false => RxdUnexpected::Partial { bytes: data.to_vec(), conn: id },
                };
                let number = self.matcher.buffer_unexpected(envelope, body);
                RxdTarget::Buffered(envelope.queue(), number, envelope)
            }
        };
        // Space for the match notice to the sender, if requested.
        if deliver.is_some() {
            self.conns.hold(id, Held::NOTICE);
        }
        if whole {
            if let RxdTarget::Nowhere = target {
                self.tx.tell(&mut self.conns, deliver);
            }
            return Ok(PacketFate::Done { end: !lazy });
        }
        let (got, total, left) = (data.len(), envelope.len, op.packets - 1);
        self.conns[id].arriving = Some(Arriving { target, got, total, left, lazy, deliver });
        Ok(PacketFate::Done { end: false })
    }

    /// Handles more data of the operation being received.
    #[inline]
    fn data_came(&mut self, id: u32, data: &[u8]) -> Parsed<PacketFate> {
        let conn = &mut self.conns[id];
        let Some(arriving) = &mut conn.arriving else {
            return Err(Malformed("data of no operation"));
        };
        let got = arriving.got + data.len();
        let last = arriving.left == 1;
        if got > arriving.total || (last && got != arriving.total) {
            return Err(Malformed("an operation that is not as long as it said"));
        }
        let (at, deliver) = (arriving.got, arriving.deliver);
        match &mut arriving.target {
            RxdTarget::Recv(recv, _) => {
                if last && !self.matcher.completions.has_space() {
                    return Ok(PacketFate::Wait);
                }
                recv.buf.copy_from(at, data);
            }
            RxdTarget::Buffered(queue, number, envelope) => {
                let (queue, number, envelope) = (*queue, *number, *envelope);
                // Allocated explicitly, because the vector would double it regardless of the bound.
                let spare = |body: &RxdUnexpected| match body {
                    RxdUnexpected::Partial { bytes, .. } => bytes.capacity() - bytes.len(),
                    _ => usize::MAX,
                };
                let spare =
                    self.matcher.queues.buffered_as(queue, number, spare).unwrap_or(usize::MAX);
                if spare < data.len() {
                    let most = at.min(MOST_GROWTH).max(data.len()).min(arriving.total - at);
                    let may = |len: &usize| {
                        self.matcher.may_buffer(&Envelope { len: *len, ..envelope }, MAX_BUFFERED)
                    };
                    let Some(more) = [most, data.len()].into_iter().find(may) else {
                        return Ok(PacketFate::Wait);
                    };
                    let grown = self.matcher.change(queue, number, |body| match body {
                        RxdUnexpected::Partial { bytes, .. } => {
                            heap::ready().is_ok() && bytes.try_reserve_exact(more).is_ok()
                        }
                        _ => true,
                    });
                    if grown == Some(false) {
                        return Ok(PacketFate::Wait);
                    }
                }
                self.matcher.change(queue, number, |body| {
                    if let RxdUnexpected::Partial { bytes, .. } = body {
                        bytes.extend_from_slice(data);
                        if last {
                            *body = RxdUnexpected::Whole(std::mem::take(bytes).into(), deliver);
                        }
                    }
                });
            }
            RxdTarget::Memory(segments, cq_data) => {
                if last && cq_data.is_some() && !self.matcher.completions.has_space() {
                    return Ok(PacketFate::Wait);
                }
                // A region that is closed meanwhile takes nothing any more.
                let _ = self.limits.regions.open().write(segments, FI_REMOTE_WRITE, at, data);
            }
            RxdTarget::Nowhere => {}
        }
        arriving.got = got;
        arriving.left -= 1;
        if !last {
            return Ok(PacketFate::Done { end: false });
        }
        let Some(Arriving { target, total, lazy, .. }) = conn.arriving.take() else {
            return Ok(PacketFate::Done { end: true });
        };
        let peer = conn.peer;
        match target {
            RxdTarget::Recv(recv, envelope) => {
                self.matcher.received(&recv, &envelope);
                self.tx.tell(&mut self.conns, deliver);
            }
            RxdTarget::Memory(segments, cq_data) => self.written(peer, &segments, total, cq_data),
            RxdTarget::Nowhere => self.tx.tell(&mut self.conns, deliver),
            RxdTarget::Buffered(..) => {}
        }
        Ok(PacketFate::Done { end: !lazy })
    }

    /// A peer's write to our memory is complete.
    fn written(&self, peer: u32, segments: &RemoteSegments, len: usize, cq_data: Option<u64>) {
        self.limits.regions.written(segments);
        self.matcher.completions.peer_accessed(true, len);
        if let Some(data) = cq_data {
            let flags = FI_RMA | FI_REMOTE_WRITE;
            self.matcher.completions.peer_notified(flags, len, data, self.peers.id_of(peer));
        }
    }

    /// A peer reads our memory.
    fn read_came(&mut self, id: u32, op: &RxdOperation) -> PacketFate {
        if !self.may_answer(id, false) {
            return PacketFate::HeldBack;
        }
        let total = op.total as usize;
        let copies = total <= COPIED_READ && self.conns.admits_copy(id, total);
        let data = {
            let regions = self.limits.regions.open();
            if copies {
                regions.check(&op.segments, FI_REMOTE_READ).and_then(|()| {
                    let mut bytes = zeroed(total)?;
                    regions.read(&op.segments, FI_REMOTE_READ, 0, &mut bytes)?;
                    Ok(TxData::Own(bytes))
                })
            } else {
                regions
                    .check(&op.segments, FI_REMOTE_READ)
                    .map(|()| TxData::Region(op.segments.clone()))
            }
        };
        match data {
            Ok(data) => {
                self.matcher.completions.peer_accessed(false, total);
                let space = self.limits.packet - DATA_HEAD;
                self.tx.start_answer(
                    &mut self.conns,
                    RxdTx::of_peer(id, op.tx_id, data, total, space),
                );
            }
            Err(error) => self.tx.refuse(&mut self.conns, id, op.tx_id, error),
        }
        PacketFate::Done { end: false }
    }

    /// A peer writes to our memory.
    fn write_came(&mut self, id: u32, op: &RxdOperation, data: &[u8], lazy: bool) -> PacketFate {
        let whole = op.packets == 1;
        if whole && op.cq_data.is_some() && !self.matcher.completions.has_space() {
            return PacketFate::Wait;
        }
        let result = {
            let regions = self.limits.regions.open();
            regions
                .check(&op.segments, FI_REMOTE_WRITE)
                .and_then(|()| regions.write(&op.segments, FI_REMOTE_WRITE, 0, data))
        };
        let target = match result {
            Ok(()) => RxdTarget::Memory(op.segments.clone(), op.cq_data),
            Err(_) if !self.may_answer(id, true) => return PacketFate::HeldBack,
            Err(error) => {
                self.tx.refuse(&mut self.conns, id, op.tx_id, error);
                RxdTarget::Nowhere
            }
        };
        let total = op.total as usize;
        if whole {
            if matches!(target, RxdTarget::Memory(..)) {
                self.written(self.conns[id].peer, &op.segments, total, op.cq_data);
            }
            return PacketFate::Done { end: !lazy };
        }
        let (got, left) = (data.len(), op.packets - 1);
        let deliver = None;
        self.conns[id].arriving = Some(Arriving { target, got, total, left, lazy, deliver });
        PacketFate::Done { end: false }
    }

    /// A peer's atomic operation on our memory.
    fn atomic_came(&mut self, id: u32, op: &RxdOperation, data: &[u8]) -> PacketFate {
        let space = match op.kind {
            ATOMIC => self.may_answer(id, true),
            // The result is as long as the elements.
            _ => self.may_answer(id, false) && self.conns.admits_result(id, op.total as usize),
        };
        if !space {
            return PacketFate::HeldBack;
        }
        if op.cq_data.is_some() && !self.matcher.completions.has_space() {
            return PacketFate::Wait;
        }
        match carry_out(&self.limits.regions, op, data) {
            Ok((result, wrote)) => {
                let len = op.segments.total().unwrap_or(0);
                self.matcher.completions.peer_accessed(wrote, len);
                if let Some(data) = op.cq_data {
                    let source = self.peers.id_of(self.conns[id].peer);
                    let access = if wrote { FI_REMOTE_WRITE } else { FI_REMOTE_READ };
                    self.matcher.completions.peer_notified(FI_ATOMIC | access, len, data, source);
                }
                if op.kind != ATOMIC {
                    let total = result.len();
                    let space = self.limits.packet - DATA_HEAD;
                    let data = TxData::Own(result.into());
                    self.tx.start_answer(
                        &mut self.conns,
                        RxdTx::of_peer(id, op.tx_id, data, total, space),
                    );
                }
            }
            Err(error) => self.tx.refuse(&mut self.conns, id, op.tx_id, error),
        }
        PacketFate::Done { end: true }
    }

    /// Delivers a buffered message to its matching receive, or drops it if there is none.
    pub(super) fn match_message(&mut self, matched: MatchedMessage) {
        let MatchedMessage { queue, message: number, recv, .. } = matched;
        let Some(buffered) = self.matcher.take_buffered(queue, number) else { return };
        let envelope = buffered.envelope;
        match buffered.body {
            RxdUnexpected::Whole(bytes, deliver) => {
                if let Some(recv) = recv {
                    recv.buf.copy_from(0, &bytes);
                    self.matcher.received(&recv, &envelope);
                }
                self.tx.tell(&mut self.conns, deliver);
                self.peers.forget_if_unused(envelope.peer, &mut self.matcher);
            }
            RxdUnexpected::Partial { bytes, conn } => {
                let arriving = self.conns.get_mut(conn).and_then(|conn| conn.arriving.as_mut());
                let Some(arriving) = arriving else { return };
                arriving.target = match recv {
                    Some(recv) => {
                        recv.buf.copy_from(0, &bytes);
                        RxdTarget::Recv(recv, envelope)
                    }
                    None => RxdTarget::Nowhere,
                };
            }
            RxdUnexpected::Lost => {
                if let Some(recv) = recv {
                    self.matcher.failed(&recv, &envelope, Error::CONNRESET);
                }
                self.peers.forget_if_unused(envelope.peer, &mut self.matcher);
            }
        }
    }
}

/// Executes an atomic operation; returns the former values, and true if it counts as a write.
fn carry_out(regions: &MrTable, op: &RxdOperation, data: &[u8]) -> Result<(Vec<u8>, bool)> {
    let kind = match op.kind {
        ATOMIC => AtomicKind::Base,
        ATOMIC_FETCH => AtomicKind::Fetch,
        _ => AtomicKind::Compare,
    };
    let operation = Operation::new(kind, op.atomic.0, op.atomic.1)?;
    let total = op.segments.total()?;
    if total > max_atomic(operation) {
        return Err(if total > max_atomic_bytes() { Error::MSGSIZE } else { Error::OPNOTSUPP });
    }
    let (operand, compare) = match kind {
        AtomicKind::Compare if data.len() == 2 * total => data.split_at(total),
        AtomicKind::Compare => return Err(Error::INVAL),
        // An operation that only reads may carry elements, which are ignored.
        _ if !operation.has_source() => (&[][..], &[][..]),
        _ => (data, &[][..]),
    };
    let mut former = vec![0; if operation.fetches() { total } else { 0 }];
    regions.open().atomic(operation, &op.segments, operand, compare, &mut former)?;
    if operation.rights() & FI_REMOTE_WRITE != 0 {
        regions.written(&op.segments);
    }
    Ok((former, kind == AtomicKind::Base))
}
