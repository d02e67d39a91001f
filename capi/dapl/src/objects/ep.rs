//! Endpoints: their attributes, and the operations posted on them.
use super::evd::EventSink;
use crate::adaptor::DatIa;
use crate::answer::*;
use crate::fabric::*;
use crate::layout::*;
use crate::posted::{DTO_MAX, PostedOps};
use crate::store::OfAdaptor;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of operations of an endpoint created without attributes.
const DTO_DEFAULT: i32 = 256;

/// An endpoint.
pub(crate) struct DatEp {
    pub(crate) ia: Handle,
    pub(crate) pz: Handle,
    pub(crate) recv_evd: Handle,
    pub(crate) request_evd: Handle,
    pub(crate) connect_evd: Handle,
    pub(crate) srq: Handle,
    pub(crate) attr: DatEpAttr,
    pub(crate) state: EpState,
    pub(crate) local: Box<SocketAddress>,
    pub(crate) peer: Box<SocketAddress>,
    pub(crate) conn_qual: u64,
    pub(crate) requests: PostedOps,
    pub(crate) receives: PostedOps,
    pub(crate) reads: usize,
    pub(crate) held_requests: VecDeque<usize>,
    pub(crate) held_receives: VecDeque<usize>,
    pub(crate) data: Box<[u8]>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) fabric: Option<FabricEndpoint>,
}

impl OfAdaptor for DatEp {
    fn ia(&self) -> Handle {
        self.ia
    }
}

/// Returns the attributes of an endpoint created without any.
pub(crate) fn default_attr(ia: Option<&DatIa>) -> DatEpAttr {
    let segments = ia.map_or(SEGMENTS, |ia| ia.limits.segments) as i32;
    DatEpAttr {
        service_type: 0,
        max_message_size: 0x7fff_ffff,
        max_rdma_size: 0x7fff_ffff,
        qos: 0,
        recv_completion_flags: 0,
        request_completion_flags: 0,
        max_recv_dtos: DTO_DEFAULT,
        max_request_dtos: DTO_DEFAULT,
        max_recv_iov: segments,
        max_request_iov: segments,
        max_rdma_read_in: 16,
        max_rdma_read_out: 16,
        srq_soft_hw: -1,
        max_rdma_read_iov: segments,
        max_rdma_write_iov: segments,
        ep_transport_specific_count: 0,
        ep_transport_specific: 0,
        ep_provider_specific_count: 0,
        ep_provider_specific: 0,
    }
}

pub(crate) fn check_attr(ia: Option<&DatIa>, attr: &DatEpAttr, argument: u32) -> DatResult {
    let limits = require_object(ia, HANDLE_IA)?.limits;
    let flags = COMPLETION_SUPPRESS
        | COMPLETION_UNSIGNALLED
        | COMPLETION_BARRIER_FENCE
        | COMPLETION_EVD_THRESHOLD;
    let solicited = attr.recv_completion_flags | attr.request_completion_flags;
    if solicited & COMPLETION_SOLICITED_WAIT != 0 {
        return error(MODEL_NOT_SUPPORTED, 0);
    }
    let counts = [
        attr.max_recv_dtos,
        attr.max_request_dtos,
        attr.max_recv_iov,
        attr.max_request_iov,
        attr.max_rdma_read_in,
        attr.max_rdma_read_out,
    ];
    if attr.service_type != 0 || solicited & !flags != 0 || counts.iter().any(|&n| n < 0) {
        return bad_argument(argument);
    }
    let segments = limits.segments as i32;
    if attr.max_recv_dtos > DTO_MAX
        || attr.max_request_dtos > DTO_MAX
        || attr.max_recv_iov > segments
        || attr.max_request_iov > segments
    {
        return bad_argument(argument);
    }
    Ok(())
}

impl DatEp {
    pub(crate) fn pass_on_receives(&mut self) {
        let Some(fabric) = &self.fabric else { return };
        while let Some(&number) = self.held_receives.front() {
            if let Some(op) = self.receives.get(number) {
                if fabric.receive(&op.pieces, number).is_err() {
                    return;
                }
            }
            self.held_receives.pop_front();
        }
    }

    /// Posts waiting requests to the provider in order, up to the first one that has to wait.
    /// Returns the first request rejected permanently.
    pub(crate) fn pass_on_request(&mut self) -> Option<(usize, i32)> {
        let fabric = self.fabric.as_ref()?;
        while let Some(&number) = self.held_requests.front() {
            let Some(op) = self.requests.get(number) else {
                self.held_requests.pop_front();
                continue;
            };
            if op.flags & COMPLETION_BARRIER_FENCE != 0 && self.reads > 0 {
                return None;
            }
            let answer = match op.kind {
                DTO_SEND => fabric.send(&op.pieces, number),
                DTO_RDMA_READ => fabric.access(RemoteAccess::Read, &op.pieces, op.remote, number),
                _ => fabric.access(RemoteAccess::Write, &op.pieces, op.remote, number),
            };
            if answer == Err(libc::EAGAIN) {
                return None;
            }
            self.held_requests.pop_front();
            if let Err(code) = answer {
                return Some((number, code));
            }
            op.passed_on = true;
            self.reads += usize::from(op.kind == DTO_RDMA_READ);
        }
        None
    }

    /// Ends all remaining operations of the endpoint with this handle.
    pub(crate) fn flush(&mut self, ep: Handle, events: &mut EventSink, tell: bool) {
        for (ops, evd) in
            [(&mut self.receives, self.recv_evd), (&mut self.requests, self.request_evd)]
        {
            while let Some(op) = ops.take_oldest() {
                if tell {
                    let event = DatEvent::transfer(ep, op.cookie, DTO_FLUSHED, 0, op.kind);
                    events.put(evd, event, true);
                }
            }
        }
        self.held_requests.clear();
        self.held_receives.clear();
        self.reads = 0;
    }
}
