//! One thread of an end: its endpoints, and the loops of the measurements.
use crate::fabric::{Completion, Domain, Endpoint, Queue, Transfer};
use crate::failure::{During as _, Failure, Outcomes, fail};
use crate::memory::Contexts;
use crate::options::{EpKind, Inject, Level, Op, Parameters, Test, Waiting};
use crate::pattern::{fill, is_message, sequence_of};
use crate::stats::Histogram;
use crate::usage::Clock;
use crate::wire::Start;
use ofi::error::Error;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Length of the message confirming the arrival of others.
const ACK_LEN: usize = 4;
/// Wait of a blocking read in milliseconds, before a look at stop requests.
const BLOCK_MS: c_int = 20;
/// Time until a datagram counts as lost.
const LOST: Duration = Duration::from_millis(100);
/// Maximum number of stored latencies of a thread and size.
const MAX_SAMPLES: usize = 10_000_000;
/// Sequence number of the first byte of memory read by the peer.
const READ_SEQUENCE: u64 = 0x5eed;

/// Sizes and limits of a thread's endpoints, the same during one operation.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) op: Op,
    pub(crate) ep: EpKind,
    /// Bytes between two buffers.
    stride: usize,
    buffers: usize,
    window: u64,
    /// Number of posted receives.
    receives: usize,
    /// Bits of a number of a context within its endpoint and direction.
    slot_bits: u32,
    blocks: bool,
    verify: bool,
    acks: bool,
    pub(crate) inject_size: u64,
    inject: Inject,
    /// One-sided latencies include the delivery.
    delivers: bool,
}

/// Buffers of an endpoint by use.
#[derive(Clone, Copy)]
enum Area {
    Source,
    Target,
    Result,
    Compare,
}

impl Shape {
    pub(crate) fn new(parameters: &Parameters, op: Op) -> Self {
        let window = parameters.window;
        Self {
            op,
            ep: parameters.ep,
            stride: parameters.max_size(op).next_multiple_of(64) as usize,
            buffers: parameters.buffer_count(op) as usize,
            window,
            receives: 0,
            slot_bits: window.next_power_of_two().trailing_zeros(),
            blocks: parameters.waiting == Waiting::Block,
            verify: parameters.verify,
            acks: parameters.ack,
            inject_size: 0,
            inject: parameters.inject,
            delivers: parameters.level == Level::Default && matches!(op, Op::Write | Op::Atomic),
        }
    }

    /// Sets the number of posted receives from the provider's limit.
    pub(crate) fn set_receives(&mut self, limit: u64, consumes: bool) {
        let receives = !self.op.is_one_sided() && (self.op != Op::WriteData || consumes);
        self.receives = if receives { self.window.min(limit).max(1) as usize } else { 0 };
    }

    /// Returns the number of receives to keep posted during a step. A latency has one message in
    /// flight, or one each way: more receives in turn would take the first-level cache.
    fn receive_depth(&self, step: &Step) -> usize {
        let is_counted = matches!(self.op, Op::Msg | Op::Tagged) && self.ep != EpKind::Dgram;
        match step.test {
            Test::Latency if is_counted => self.receives.min(1 + usize::from(step.bidir)),
            _ => self.receives,
        }
    }

    pub(crate) fn memory_len(&self) -> usize {
        let areas = if self.op.is_atomic() { 4 } else { 2 };
        self.stride * self.buffers * areas
    }
    /// Returns the number of contexts of each endpoint.
    pub(crate) fn contexts(&self) -> usize {
        2 << self.slot_bits
    }
    /// Returns true if completions need length and data.
    pub(crate) fn is_detailed(&self) -> bool {
        self.verify || self.op == Op::WriteData
    }
    pub(crate) fn blocks(&self) -> bool {
        self.blocks
    }
    #[inline]
    fn offset(&self, area: Area, slot: usize) -> usize {
        // A division takes a noticeable part of the shortest latencies.
        let buffer = match self.buffers {
            1 => 0,
            buffers if slot < buffers => slot,
            buffers => slot % buffers,
        };
        (area as usize * self.buffers + buffer) * self.stride
    }
    fn context(&self, channel: usize, receives: bool, slot: usize) -> usize {
        (((channel << 1) | usize::from(receives)) << self.slot_bits) | slot
    }
}

/// Requested measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) count: u64,
    pub(crate) bidir: bool,
    /// This end is the client.
    pub(crate) client: bool,
}

impl Step {
    pub(crate) fn new(start: Start, test: Test, parameters: &Parameters, client: bool) -> Self {
        Self {
            test,
            size: start.size as usize,
            count: start.count,
            bidir: parameters.bidir,
            client,
        }
    }
    fn is_initiator(&self) -> bool {
        self.client || self.bidir
    }
}

/// Requests to the threads of an end.
#[derive(Default)]
pub(crate) struct Signals {
    /// The measurement is over at both ends.
    pub(crate) stop: AtomicBool,
    /// The measurement has failed.
    pub(crate) abort: AtomicBool,
}

/// Endpoint and state of its transfers.
pub(crate) struct Channel {
    pub(crate) endpoint: Endpoint,
    /// Free contexts of transmits, in the order of their last use.
    free: VecDeque<usize>,
    /// Receives to post again.
    unposted: Vec<usize>,
    /// Sequence number of the message for each posted receive.
    expected: Vec<u64>,
    /// Number of atomic operations on each target.
    uses: Vec<u64>,
    next_receive: u64,
    next_send: u64,
    /// Sequence number of the first message of the step.
    first: u64,
    posted: u64,
    done: u64,
    received: u64,
    acked: u64,
    wrong: u64,
}

impl Channel {
    pub(crate) fn new(endpoint: Endpoint, shape: &Shape) -> Self {
        Self {
            endpoint,
            free: (0..shape.window as usize).collect(),
            unposted: (0..shape.receives).collect(),
            expected: vec![0; shape.receives],
            uses: vec![0; shape.window as usize],
            next_receive: 0,
            next_send: 0,
            first: 0,
            posted: 0,
            done: 0,
            received: 0,
            acked: 0,
            wrong: 0,
        }
    }
}

/// Measured values of a thread.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) start: Option<Instant>,
    pub(crate) end: Option<Instant>,
    pub(crate) latencies: Histogram,
    pub(crate) samples: Vec<u64>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) wrong: u64,
}

/// Endpoints of a thread. Fields are closed in their order.
pub(crate) struct Worker {
    pub(crate) channels: Vec<Channel>,
    pub(crate) queue: Queue,
    pub(crate) contexts: Contexts,
    pub(crate) domain: Domain,
    pub(crate) shape: Shape,
    clock: Clock,
    timeout: Duration,
    pub(crate) measured: Measured,
    stores_samples: bool,
    /// Number of receives to keep posted during the step.
    receive_depth: usize,
    empty: u32,
    quiet_since: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(
        domain: Domain,
        queue: Queue,
        contexts: Contexts,
        shape: Shape,
        timeout: Duration,
        stores_samples: bool,
    ) -> Self {
        Self {
            channels: Vec::new(),
            queue,
            contexts,
            domain,
            shape,
            clock: Clock::new(),
            timeout,
            measured: Measured::default(),
            stores_samples,
            receive_depth: shape.receives.min(1),
            empty: 0,
            quiet_since: None,
        }
    }

    /// Posts the first receives.
    pub(crate) fn post_receives(&mut self) -> Outcomes {
        for channel in 0..self.channels.len() {
            self.post_again(channel)?;
        }
        Ok(())
    }

    /// Prepares memory and counts for a step, before the peer may start it.
    pub(crate) fn prepare(&mut self, step: &Step) -> Outcomes {
        let shape = self.shape;
        self.measured = Measured::default();
        self.receive_depth = shape.receive_depth(step);
        for channel in 0..self.channels.len() {
            self.post_again(channel)?;
        }
        for channel in &mut self.channels {
            (channel.posted, channel.done, channel.received, channel.acked) = (0, 0, 0, 0);
            channel.wrong = 0;
            channel.first = channel.next_receive - (shape.receives - channel.unposted.len()) as u64;
            channel.uses.fill(0);
            // Slots are used in their order from the first one on.
            channel.free.make_contiguous().sort_unstable();
            if !shape.verify || !(shape.op.is_one_sided() || shape.op == Op::WriteData) {
                continue;
            }
            for slot in 0..shape.window as usize {
                let target = shape.offset(Area::Target, slot);
                channel.endpoint.memory.with(target, step.size, |bytes| match shape.op {
                    Op::Read => fill(bytes, READ_SEQUENCE + slot as u64),
                    _ if shape.op.is_atomic() => bytes.fill(0),
                    _ => bytes.fill(0xff),
                });
            }
        }
        Ok(())
    }

    /// Posts completed receives again.
    fn post_again(&mut self, channel: usize) -> Outcomes {
        let shape = self.shape;
        let one = &mut self.channels[channel];
        while let Some(slot) = one.unposted.last().copied() {
            if shape.receives - one.unposted.len() >= self.receive_depth {
                break;
            }
            let context = shape.context(channel, true, slot);
            let to = shape.offset(Area::Target, slot);
            match one.endpoint.receive(shape.op, &self.contexts, context, to, shape.stride) {
                Ok(_) => {
                    one.unposted.pop();
                    one.expected[slot] = one.next_receive;
                    one.next_receive += 1;
                }
                Err(error) if error == Error::AGAIN => break,
                Err(error) => return Err(error).during("fi_recv"),
            }
        }
        Ok(())
    }

    /// Starts an operation of this length; false if there is no space for it.
    #[inline]
    fn start(&mut self, channel: usize, length: usize, test: Test) -> Outcomes<bool> {
        let shape = self.shape;
        let one = &mut self.channels[channel];
        let Some(slot) = one.free.front().copied() else { return Ok(false) };
        let transfer = Transfer {
            local: shape.offset(Area::Source, slot),
            length,
            remote: shape.offset(Area::Target, slot) as u64,
            result: if shape.op.is_atomic() { shape.offset(Area::Result, slot) } else { 0 },
            compare: if shape.op.is_atomic() { shape.offset(Area::Compare, slot) } else { 0 },
            context: shape.context(channel, false, slot),
            data: channel as u64,
            injected: match shape.inject {
                Inject::Yes => true,
                Inject::No => false,
                Inject::Auto => {
                    test == Test::Latency
                        && !shape.op.is_one_sided()
                        && length as u64 <= shape.inject_size
                }
            },
            delivered: shape.delivers && (test == Test::Latency || shape.verify),
        };
        if shape.verify {
            fill_source(one, &shape, slot, &transfer);
        }
        match one.endpoint.start(shape.op, &self.contexts, &transfer) {
            Ok(_) => {}
            Err(error) if error == Error::AGAIN => return Ok(false),
            Err(error) => return Err(error).during(shape.op.word()),
        }
        one.next_send += 1;
        one.posted += 1;
        one.free.pop_front();
        if transfer.injected {
            one.done += 1;
            one.free.push_back(slot);
        }
        one.uses[slot] += 1;
        Ok(true)
    }

    /// Reads completions; waits for them if `sleeps` and blocking reads are requested.
    #[inline]
    fn reap(&mut self, step: &Step, sleeps: bool) -> Outcomes<usize> {
        let wait = (sleeps && self.shape.blocks).then_some(BLOCK_MS);
        let count = self.queue.read(wait)?;
        for at in 0..count {
            let completion = self.queue.completion(at, &self.contexts);
            self.completed(step, completion)?;
        }
        Ok(count)
    }

    #[inline]
    fn completed(&mut self, step: &Step, completion: Completion) -> Outcomes {
        let shape = self.shape;
        let remote = completion.data.filter(|_| shape.op == Op::WriteData);
        if let Some(data) = remote {
            // Without FI_RX_CQ_DATA there is no receive, and its context is undefined.
            let Some(one) = self.channels.get_mut(data as usize) else {
                return fail("a remote write has wrong completion data");
            };
            one.received += 1;
            if shape.receives == 0 {
                return Ok(());
            }
        }
        let Some(index) = completion.context else {
            return fail("a completion has an unknown context");
        };
        let slot = index & ((1 << shape.slot_bits) - 1);
        let (channel, receives) =
            (index >> (shape.slot_bits + 1), index >> shape.slot_bits & 1 == 1);
        let one = &mut self.channels[channel];
        if receives {
            if shape.verify && remote.is_none() {
                one.wrong += u64::from(!is_received(one, &shape, step, slot, completion.length));
            }
            one.received += u64::from(remote.is_none());
            one.unposted.push(slot);
            return self.post_again(channel);
        }
        if shape.verify && shape.op.is_fetching() {
            one.wrong += u64::from(!is_fetched(one, &shape, step.size, slot));
        }
        one.free.push_back(slot);
        one.done += 1;
        Ok(())
    }

    /// Reads completions until something happens; checks for the end of the measurement.
    #[inline]
    fn poll(&mut self, step: &Step, signals: &Signals, sleeps: bool) -> Outcomes<usize> {
        let count = self.reap(step, sleeps)?;
        if count > 0 {
            (self.empty, self.quiet_since) = (0, None);
            return Ok(count);
        }
        self.empty = self.empty.wrapping_add(1);
        if self.shape.blocks || self.empty % 1024 == 0 {
            self.poll_slow(signals)?;
        }
        Ok(0)
    }

    #[cold]
    fn poll_slow(&mut self, signals: &Signals) -> Outcomes {
        if signals.abort.load(Ordering::Relaxed) {
            return fail("stopped");
        }
        for channel in 0..self.channels.len() {
            self.post_again(channel)?;
        }
        if signals.stop.load(Ordering::Relaxed) {
            self.quiet_since = None;
            return Ok(());
        }
        let since = *self.quiet_since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.timeout {
            return fail(format!("no transfer has completed for {} s", self.timeout.as_secs_f64()));
        }
        Ok(())
    }

    /// Starts an operation as soon as there is space for it.
    #[inline]
    fn start_when_possible(
        &mut self,
        channel: usize,
        length: usize,
        step: &Step,
        signals: &Signals,
    ) -> Outcomes {
        while !self.start(channel, length, step.test)? {
            let sleeps = self.channels[channel].free.is_empty();
            self.poll(step, signals, sleeps)?;
        }
        Ok(())
    }

    /// Waits until a count of this endpoint is reached; false if a datagram was lost.
    #[inline]
    fn wait_for(
        &mut self,
        channel: usize,
        step: &Step,
        signals: &Signals,
        is_there: impl Fn(&Channel) -> bool,
    ) -> Outcomes<bool> {
        let mut since = None;
        while !is_there(&self.channels[channel]) {
            if self.poll(step, signals, true)? == 0
                && self.shape.ep == EpKind::Dgram
                && (self.shape.blocks || self.empty % 1024 == 0)
            {
                let late = since.get_or_insert_with(Instant::now).elapsed() > LOST;
                if late || signals.stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Sends messages and waits for each answer, or answers (two-sided), or waits for each
    /// completion (one-sided).
    fn measure_latency(&mut self, step: &Step, signals: &Signals) -> Outcomes {
        let one_sided = self.shape.op.is_one_sided();
        if !step.is_initiator() {
            return if one_sided { Ok(()) } else { self.answer(step, signals) };
        }
        let (mut last, mut ended) = (self.clock.ticks(), None);
        for _ in 0..step.count {
            for channel in 0..self.channels.len() {
                self.start_when_possible(channel, step.size, step, signals)?;
                // Counted while the next operation is in flight, so no latency includes it.
                self.record(&mut ended);
                let one = &self.channels[channel];
                let arrived = if one_sided {
                    let target = one.posted;
                    self.wait_for(channel, step, signals, |one| one.done >= target)?
                } else {
                    let target =
                        if self.shape.ep == EpKind::Dgram { one.received + 1 } else { one.posted };
                    self.wait_for(channel, step, signals, |one| one.received >= target)?
                };
                let now = self.clock.ticks();
                ended = arrived.then_some(now.wrapping_sub(last));
                last = now;
            }
        }
        self.record(&mut ended);
        self.wait_for_transmits(step, signals)
    }

    /// Adds a latency to the results.
    #[inline]
    fn record(&mut self, latency: &mut Option<u64>) {
        let Some(ticks) = latency.take() else { return };
        self.measured.latencies.record(ticks);
        if self.stores_samples && self.measured.samples.len() < MAX_SAMPLES {
            self.measured.samples.push(ticks);
        }
    }

    /// Answers each message with one.
    fn answer(&mut self, step: &Step, signals: &Signals) -> Outcomes {
        let mut answered = 0;
        loop {
            for channel in 0..self.channels.len() {
                if self.shape.ep == EpKind::Dgram {
                    // Any number of messages may arrive.
                    if signals.stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    self.poll(step, signals, true)?;
                    while self.channels[channel].acked < self.channels[channel].received {
                        self.start_when_possible(channel, step.size, step, signals)?;
                        self.channels[channel].acked += 1;
                    }
                    continue;
                }
                if answered == step.count {
                    return self.wait_for_transmits(step, signals);
                }
                self.wait_for(channel, step, signals, |one| one.received > answered)?;
                self.start_when_possible(channel, step.size, step, signals)?;
            }
            answered += 1;
        }
    }

    fn wait_for_transmits(&mut self, step: &Step, signals: &Signals) -> Outcomes {
        for channel in 0..self.channels.len() {
            self.wait_for(channel, step, signals, |one| one.done >= one.posted)?;
        }
        Ok(())
    }

    /// Sends and receives with `window` transfers in flight.
    fn stream(&mut self, step: &Step, signals: &Signals) -> Outcomes {
        let shape = self.shape;
        let two_sided = !shape.op.is_one_sided();
        let reliable = shape.ep != EpKind::Dgram;
        let sends = if step.is_initiator() { step.count } else { 0 };
        let receives = if two_sided && (!step.client || step.bidir) { step.count } else { 0 };
        let acks = match (two_sided && reliable, shape.acks) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => step.count.div_ceil(shape.window),
        };
        let (acks_in, acks_out) =
            (if sends > 0 { acks } else { 0 }, if receives > 0 { acks } else { 0 });
        let ack_len = if shape.op == Op::WriteData { 0 } else { ACK_LEN };
        loop {
            let (mut open, mut sleeps, mut progressed) = (false, true, false);
            for channel in 0..self.channels.len() {
                loop {
                    let one = &self.channels[channel];
                    let windows = if two_sided { one.received } else { one.done / shape.window };
                    let allowed = if shape.acks { (windows + 1) * shape.window } else { u64::MAX };
                    let sent = one.posted - one.acked;
                    if sent >= sends.min(allowed) || one.posted - one.done >= shape.window {
                        break;
                    }
                    if !self.start(channel, step.size, step.test)? {
                        sleeps = false;
                        break;
                    }
                    progressed = true;
                }
                let one = &self.channels[channel];
                let due = if one.received >= receives
                    && one.posted - one.acked >= sends
                    && one.done >= one.posted
                {
                    acks_out
                } else if shape.acks && receives > 0 {
                    (one.received / shape.window).min(acks_out)
                } else {
                    0
                };
                if one.acked < due {
                    if self.start(channel, ack_len, step.test)? {
                        self.channels[channel].acked += 1;
                        progressed = true;
                    } else {
                        sleeps = false;
                    }
                }
                let one = &self.channels[channel];
                let complete = one.posted - one.acked >= sends
                    && one.done >= one.posted
                    && one.acked >= acks_out
                    && (!reliable || one.received >= receives + acks_in);
                open |= !complete;
            }
            if !open {
                return Ok(());
            }
            let _ = progressed;
            self.poll(step, signals, sleeps)?;
        }
    }

    /// Runs a step. `finished` is called at the end of the own part; then the thread continues to
    /// progress the endpoints until the stop request.
    pub(crate) fn run(&mut self, step: &Step, signals: &Signals, finished: impl Fn()) -> Outcomes {
        (self.empty, self.quiet_since) = (0, None);
        let start = Instant::now();
        let outcome = match step.test {
            Test::Latency => self.measure_latency(step, signals),
            Test::Bandwidth | Test::Rate => self.stream(step, signals),
        };
        (self.measured.start, self.measured.end) = (Some(start), Some(Instant::now()));
        finished();
        outcome?;
        while !signals.stop.load(Ordering::Relaxed) {
            self.quiet_since = None;
            self.poll(step, signals, true)?;
        }
        if self.shape.ep == EpKind::Dgram {
            self.drain(step)?;
        }
        self.check_targets(step);
        for one in &self.channels {
            self.measured.sent +=
                one.posted - if self.shape.ep == EpKind::Dgram { 0 } else { one.acked };
            self.measured.received += one.received;
            self.measured.wrong += one.wrong;
        }
        Ok(())
    }

    /// Takes datagrams still on their way.
    fn drain(&mut self, step: &Step) -> Outcomes {
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(10) {
            if self.reap(step, false)? > 0 {
                quiet = Instant::now();
            }
        }
        Ok(())
    }

    /// Checks memory written by the peer.
    fn check_targets(&mut self, step: &Step) {
        let (shape, peer_writes) = (self.shape, !step.client || step.bidir);
        let is_target = shape.op.is_one_sided() || shape.op == Op::WriteData;
        if !shape.verify || !is_target || shape.op == Op::Read || !peer_writes {
            return;
        }
        for one in &mut self.channels {
            let mut sum = 0;
            for slot in 0..(shape.window.min(step.count)) as usize {
                let target = shape.offset(Area::Target, slot);
                let good = one.endpoint.memory.with(target, step.size, |bytes| {
                    if shape.op.is_atomic() {
                        let cells = bytes.chunks_exact(8).filter_map(sequence_of);
                        let first = cells.clone().next().unwrap_or(0);
                        sum += first;
                        return cells.into_iter().all(|cell| cell == first);
                    }
                    is_written(bytes, step.count)
                });
                one.wrong += u64::from(!good);
            }
            if shape.op.is_atomic() && step.size >= 8 {
                one.wrong += sum.abs_diff(step.count);
            }
        }
    }
}

/// Writes the data of an operation to its source buffer.
fn fill_source(one: &mut Channel, shape: &Shape, slot: usize, transfer: &Transfer) {
    // The target of a write knows the numbers of this step.
    let is_write = shape.op.is_one_sided() || shape.op == Op::WriteData;
    let sequence = if is_write { one.posted } else { one.next_send };
    let uses = one.uses[slot];
    let memory = &mut one.endpoint.memory;
    let set = |bytes: &mut [u8], value: u64| {
        bytes.chunks_exact_mut(8).for_each(|cell| cell.copy_from_slice(&value.to_le_bytes()));
    };
    match shape.op {
        Op::Read => memory.with(transfer.local, transfer.length, |bytes| bytes.fill(0xff)),
        Op::Atomic | Op::Fetch => {
            memory.with(transfer.local, transfer.length, |bytes| set(bytes, 1))
        }
        Op::Cswap => {
            memory.with(transfer.local, transfer.length, |bytes| set(bytes, uses + 1));
            memory.with(transfer.compare, transfer.length, |bytes| set(bytes, uses));
        }
        _ => memory.with(transfer.local, transfer.length, |bytes| fill(bytes, sequence)),
    }
}

/// Returns true if a received message has the right length and content.
fn is_received(one: &mut Channel, shape: &Shape, step: &Step, slot: usize, length: usize) -> bool {
    let number = one.expected[slot];
    let data = match (step.test, step.client, step.bidir) {
        (Test::Latency, ..) | (_, false, _) | (_, _, true) => step.count,
        _ => 0,
    };
    let is_data = number.wrapping_sub(one.first) < data || shape.ep == EpKind::Dgram;
    if length != if is_data { step.size } else { ACK_LEN } {
        return false;
    }
    let from = shape.offset(Area::Target, slot);
    one.endpoint.memory.with(from, length, |bytes| match shape.ep {
        // Some datagrams may be lost, so their numbers are unknown.
        EpKind::Dgram => sequence_of(bytes).is_none_or(|sequence| is_message(bytes, sequence)),
        _ => is_message(bytes, number),
    })
}

/// Returns true if the data of a completed read or fetching atomic is right.
fn is_fetched(one: &mut Channel, shape: &Shape, size: usize, slot: usize) -> bool {
    let before = one.uses[slot] - 1;
    if shape.op == Op::Read {
        let local = shape.offset(Area::Source, slot);
        let sequence = READ_SEQUENCE + slot as u64;
        return one.endpoint.memory.with(local, size, |bytes| is_message(bytes, sequence));
    }
    let result = shape.offset(Area::Result, slot);
    let is_right = |bytes: &mut [u8]| {
        bytes.chunks_exact(8).filter_map(sequence_of).all(|value| value == before)
    };
    one.endpoint.memory.with(result, size, is_right)
}

/// Returns true if memory has the content of one of the first `count` messages. Short ones have
/// the first bytes of its number only.
fn is_written(bytes: &[u8], count: u64) -> bool {
    if let Some(sequence) = sequence_of(bytes) {
        return sequence < count && is_message(bytes, sequence);
    }
    let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    number < count || count >= 1 << (8 * bytes.len())
}

/// Returns an error naming a thread's failure.
pub(crate) fn thread_failed() -> Failure {
    Failure("a thread has ended unexpectedly".into())
}
