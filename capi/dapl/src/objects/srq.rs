//! Shared receive queues.
use super::evd::EventSink;
use super::memory::DatMemory;
use crate::adaptor::DatIa;
use crate::answer::*;
use crate::fabric::*;
use crate::handles::HandleTable;
use crate::layout::*;
use crate::posted::{DTO_MAX, PostedOp, PostedOps};
use crate::store::{Handles, OfAdaptor};
use std::collections::VecDeque;
use std::sync::Arc;

/// A shared receive queue.
pub(crate) struct DatSrq {
    pub(crate) ia: Handle,
    pub(crate) pz: Handle,
    pub(crate) max_iov: usize,
    pub(crate) low_watermark: usize,
    armed: bool,
    pub(crate) ops: PostedOps,
    /// Operations waiting for space in the provider.
    held: VecDeque<usize>,
    receives: Arc<SharedReceives>,
    uses: usize,
}

impl OfAdaptor for DatSrq {
    fn ia(&self) -> Handle {
        self.ia
    }
}

impl DatSrq {
    /// Posts waiting operations to the provider, up to its capacity.
    pub(crate) fn pass_on(&mut self) {
        while let Some(&number) = self.held.front() {
            let Some(op) = self.ops.get(number) else {
                self.held.pop_front();
                continue;
            };
            if self.receives.receive(&op.pieces, number).is_err() {
                return;
            }
            op.passed_on = true;
            self.held.pop_front();
        }
    }
}

/// The shared receive queues of all adaptors.
#[derive(Default)]
pub(crate) struct SharedQueues {
    srqs: Handles<DatSrq>,
}

impl SharedQueues {
    pub(crate) fn get(&self, srq: Handle) -> Option<&DatSrq> {
        self.srqs.get(srq)
    }

    /// Closes all queues of an adaptor.
    pub(crate) fn close_of(&mut self, handles: &mut HandleTable, ia: Handle) {
        self.srqs.close_of(handles, ia);
    }

    /// Returns the adaptor and the zone of a queue.
    pub(crate) fn zone_of(&mut self, srq: Handle) -> DatResult<(Handle, Handle)> {
        let found = self.srqs.find(srq, HANDLE_SRQ)?;
        Ok((found.ia, found.pz))
    }

    /// Counts another endpoint of a queue.
    pub(crate) fn join(&mut self, srq: Handle) {
        if let Some(srq) = self.srqs.get_mut(srq) {
            srq.uses += 1;
        }
    }

    /// Counts an endpoint of a queue less.
    pub(crate) fn leave(&mut self, srq: Handle) {
        if let Some(srq) = self.srqs.get_mut(srq) {
            srq.uses = srq.uses.saturating_sub(1);
        }
    }

    /// Returns the provider's side of a queue, and its number of operations.
    pub(crate) fn receives(&self, srq: Handle) -> Option<(Arc<SharedReceives>, usize)> {
        self.srqs.get(srq).map(|srq| (Arc::clone(&srq.receives), srq.ops.limit()))
    }

    /// Takes a finished operation of a queue; waiting ones get its place. None if there is no queue.
    pub(crate) fn take(&mut self, srq: Handle, number: usize) -> Option<Option<PostedOp>> {
        let srq = self.srqs.get_mut(srq)?;
        let op = srq.ops.take(number);
        srq.pass_on();
        Some(op)
    }

    pub(crate) fn srq_create(
        &mut self,
        handles: &mut HandleTable,
        memory: &mut DatMemory,
        (ia, found): (Handle, &DatIa),
        pz: Handle,
        attr: &DatSrqAttr,
    ) -> DatResult<Handle> {
        let (provider, limits) = (found.provider, found.limits);
        if attr.max_recv_dtos <= 0
            || attr.max_recv_iov <= 0
            || attr.low_watermark < 0
            || attr.low_watermark > attr.max_recv_dtos
        {
            return bad_argument(3);
        }
        if attr.max_recv_dtos > DTO_MAX || attr.max_recv_iov as usize > limits.segments {
            return exhausted(RESOURCE_SRQ);
        }
        let size = attr.max_recv_dtos as usize;
        let mut held = VecDeque::new();
        let ops = PostedOps::ready(size).filter(|_| held.try_reserve(size).is_ok());
        let Some(ops) = ops else { return exhausted(RESOURCE_MEMORY) };
        let receives = SharedReceives::open(&found.domain, &found.info, size.min(limits.receives))
            .map_err(|code| of_code(code, RESOURCE_SRQ))?;
        memory.use_pz(ia, pz)?;
        let srq = DatSrq {
            ia,
            pz,
            max_iov: attr.max_recv_iov as usize,
            low_watermark: attr.low_watermark as usize,
            armed: attr.low_watermark > 0,
            ops,
            held,
            receives,
            uses: 0,
        };
        Ok(self.srqs.open(handles, (HandleKind::Srq, provider), srq))
    }

    pub(crate) fn srq_free(
        &mut self,
        handles: &mut HandleTable,
        memory: &mut DatMemory,
        srq: Handle,
    ) -> DatResult {
        let found = self.srqs.find(srq, HANDLE_SRQ)?;
        if found.uses > 0 {
            return error(INVALID_STATE, STATE_SRQ_IN_USE);
        }
        let pz = found.pz;
        self.srqs.close(handles, srq);
        memory.leave_pz(pz);
        Ok(())
    }

    pub(crate) fn srq_resize(&mut self, srq: Handle, size: i32) -> DatResult {
        let found = self.srqs.find(srq, HANDLE_SRQ)?;
        if size <= 0 {
            return bad_argument(2);
        }
        if size > DTO_MAX {
            return exhausted(RESOURCE_SRQ);
        }
        let size = size as usize;
        if size < found.low_watermark || size < found.ops.used() {
            return error(INVALID_STATE, 0);
        }
        let more = size.saturating_sub(found.held.len());
        if found.held.try_reserve(more).is_err() || found.ops.resize(size).is_none() {
            return exhausted(RESOURCE_MEMORY);
        }
        Ok(())
    }

    pub(crate) fn srq_set_lw(
        &mut self,
        events: &mut EventSink,
        srq: Handle,
        mark: i32,
    ) -> DatResult {
        let found = self.srqs.find(srq, HANDLE_SRQ)?;
        if mark < 0 || mark as usize > found.ops.limit() {
            return bad_argument(2);
        }
        found.low_watermark = mark as usize;
        found.armed = mark > 0;
        self.look_at_mark(events, srq);
        Ok(())
    }

    /// Reports once a number of buffers below the low-water mark.
    pub(crate) fn look_at_mark(&mut self, events: &mut EventSink, srq: Handle) {
        let Some(found) = self.srqs.get_mut(srq) else { return };
        if found.armed && found.ops.used() < found.low_watermark {
            found.armed = false;
            let ia = found.ia;
            let number = ASYNC_PROVIDER_INTERNAL_ERROR;
            events.push_async(ia, DatEvent::asynchronous(number, srq, SRQ_LOW_WATERMARK));
        }
    }

    pub(crate) fn srq_post(
        &mut self,
        memory: &DatMemory,
        srq: Handle,
        iov: &[Triplet],
        cookie: u64,
    ) -> DatResult {
        let found = self.srqs.find(srq, HANDLE_SRQ)?;
        if iov.len() > found.max_iov {
            return bad_argument(2);
        }
        let of = (found.ia, found.pz);
        let (pieces, length) = memory.pieces(of, iov, PRIV_LOCAL_WRITE)?;
        let op = PostedOp {
            cookie,
            kind: DTO_RECEIVE,
            flags: 0,
            length,
            pieces,
            remote: (0, 0),
            passed_on: false,
        };
        let found = self.srqs.find(srq, HANDLE_SRQ)?;
        let Some(number) = found.ops.add(op) else { return exhausted(RESOURCE_SRQ) };
        found.held.push_back(number);
        found.pass_on();
        Ok(())
    }
}
