//! Calls on endpoints: creation, connection, and posting of operations.
use crate::answer::*;
use crate::fabric::*;
use crate::layout::*;
use crate::objects::connect::marked;
use crate::objects::ep::{DatEp, check_attr, default_attr};
use crate::posted::{PostedOp, PostedOps};
use crate::state::DatState;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

impl DatState {
    pub(crate) fn ep_create(
        &mut self,
        ia: Handle,
        pz: Handle,
        [recv_evd, request_evd, connect_evd]: [Handle; 3],
        srq: Option<Handle>,
        attr: Option<&DatEpAttr>,
    ) -> DatResult<Handle> {
        let found = self.has_ia(ia)?;
        let (provider, local) = (found.provider, *found.address);
        if let Some(attr) = attr {
            check_attr(self.ias.get(ia), attr, if srq.is_some() { 7 } else { 6 })?;
        }
        if let Some(srq) = srq {
            let (of_ia, of_pz) = self.srqs.zone_of(srq)?;
            if of_ia != ia {
                return error(INVALID_HANDLE, HANDLE_SRQ);
            }
            if of_pz != pz && self.memory.pz(pz).is_some() {
                return error(INVALID_STATE, 0);
            }
        }
        let attr = attr.copied().unwrap_or_else(|| DatEpAttr {
            // dat_srq_post_recv(3DAT): the default of endpoints with a shared queue
            recv_completion_flags: if srq.is_some() { COMPLETION_UNSIGNALLED } else { 0 },
            ..default_attr(self.ias.get(ia))
        });
        self.memory.use_pz(ia, pz)?;
        let evds = [
            (recv_evd, EVD_DTO, HANDLE_EVD_RECV),
            (request_evd, EVD_DTO, HANDLE_EVD_REQUEST),
            (connect_evd, EVD_CONNECTION, HANDLE_EVD_CONN),
        ];
        for (done, (evd, flag, subtype)) in evds.into_iter().enumerate() {
            if let Err(error) = self.events.use_evd(evd, flag, subtype) {
                self.memory.leave_pz(pz);
                for (evd, ..) in &evds[..done] {
                    self.events.leave_evd(*evd);
                }
                return Err(error);
            }
        }
        if let Some(srq) = srq {
            self.srqs.join(srq);
        }
        let evds = [recv_evd, request_evd, connect_evd];
        Ok(self.ep_insert((provider, ia), pz, evds, srq, attr, local))
    }

    /// Adds an endpoint with objects counting it already; each of them is optional.
    pub(crate) fn ep_insert(
        &mut self,
        (provider, ia): (usize, Handle),
        pz: Handle,
        [recv_evd, request_evd, connect_evd]: [Handle; 3],
        srq: Option<Handle>,
        attr: DatEpAttr,
        local: SocketAddress,
    ) -> Handle {
        let counts = [attr.max_request_dtos, attr.max_recv_dtos].map(|n| n.max(1) as usize);
        let ep = DatEp {
            ia,
            pz,
            recv_evd,
            request_evd,
            connect_evd,
            srq: srq.unwrap_or(0),
            attr,
            state: EpState::Unconnected,
            local: Box::new(local),
            peer: Box::new(SocketAddress::NONE),
            conn_qual: 0,
            requests: PostedOps::new(counts[0]),
            receives: PostedOps::new(counts[1]),
            reads: 0,
            held_requests: VecDeque::new(),
            held_receives: VecDeque::new(),
            data: Box::default(),
            deadline: None,
            fabric: None,
        };
        self.eps.open(&mut self.handles, (HandleKind::Ep, provider), ep)
    }

    /// Opens the endpoint of libfabric's behind one.
    pub(crate) fn realize(&mut self, ep: Handle, request: Option<&FabricInfo>) -> DatResult {
        let found = self.eps.find(ep, HANDLE_EP)?;
        let ia = self.ias.find(found.ia, HANDLE_IA)?;
        let shared = self.srqs.receives(found.srq);
        let receives = shared.as_ref().map_or(found.receives.limit(), |(_, limit)| *limit);
        let shared = shared.map(|(shared, _)| shared);
        let sizes = (found.requests.limit(), receives);
        let info = request.unwrap_or(&ia.info);
        let fabric = FabricEndpoint::open(&ia.domain, info, ep, sizes, shared.as_ref())
            .map_err(|code| of_code(code, RESOURCE_TEP))?;
        found.fabric = Some(fabric);
        found.pass_on_receives();
        for (evd, receives) in [(found.recv_evd, true), (found.request_evd, false)] {
            self.events.add_feeder(evd, ep, receives);
        }
        Ok(())
    }

    pub(crate) fn ep_connect(
        &mut self,
        ep: Handle,
        mut peer: SocketAddress,
        conn_qual: u64,
        timeout: u32,
        data: &[u8],
        flags: u32,
    ) -> DatResult {
        let found = self.eps.find(ep, HANDLE_EP)?;
        let ia = self.ias.find(found.ia, HANDLE_IA)?;
        if found.state != EpState::Unconnected {
            return bad_state(found.state);
        }
        if found.connect_evd == 0 {
            return error(INVALID_STATE, STATE_EP_NOTREADY);
        }
        if peer.family() != ia.address.family() {
            return error(INVALID_ADDRESS, ADDRESS_UNSUPPORTED);
        }
        if peer.is_for_many() {
            return error(INVALID_ADDRESS, ADDRESS_UNSUPPORTED);
        }
        let Some(port) = u16::try_from(conn_qual).ok().filter(|&port| port > 0) else {
            return bad_argument(3);
        };
        if data.len() > ia.private_max {
            return bad_argument(5);
        }
        if flags & !3 != 0 {
            return bad_argument(8);
        }
        if flags & 2 != 0 {
            return error(MODEL_NOT_SUPPORTED, 0);
        }
        peer.set_port(port);
        self.realize(ep, None)?;
        let found = self.eps.find(ep, HANDLE_EP)?;
        *found.peer = peer;
        found.conn_qual = conn_qual;
        let called = match &found.fabric {
            Some(fabric) => fabric.connect(&peer, &marked(data)),
            None => Err(libc::EINVAL),
        };
        if let Err(code) = called {
            self.close_fabric(ep, false);
            return Err(of_code(code, RESOURCE_TEP));
        }
        found.state = EpState::ActivePending;
        found.deadline = (timeout != TIMEOUT_INFINITE)
            .then(|| Instant::now() + Duration::from_micros(timeout.into()));
        let ia = found.ia;
        self.has_ia(ia)?.waiting.push(ep);
        Ok(())
    }

    /// Closes the endpoint of libfabric: finished operations are reported, others are flushed.
    fn close_fabric(&mut self, ep: Handle, tell: bool) {
        self.drain(ep, true, true);
        self.drain(ep, false, true);
        let Some(found) = self.eps.get_mut(ep) else { return };
        let evds = [found.recv_evd, found.request_evd];
        if let Some(fabric) = found.fabric.take() {
            let (requests, receives) = fabric.into_queues();
            while let Some(completion) = receives.read() {
                self.complete(ep, true, completion);
            }
            while let Some(completion) = requests.read() {
                self.complete(ep, false, completion);
            }
        }
        for evd in evds {
            self.events.remove_feeder(evd, ep);
        }
        if let Some(found) = self.eps.get_mut(ep) {
            found.flush(ep, &mut self.events, tell);
        }
    }

    /// A connection is over, or did not come about.
    pub(crate) fn end_connection(&mut self, ep: Handle, number: u32, data: &[u8]) {
        let Some(found) = self.eps.get_mut(ep) else { return };
        let was = found.state;
        found.state = EpState::Disconnected;
        found.deadline = None;
        self.close_fabric(ep, true);
        self.tell_connection(ep, number, data);
        let Some(found) = self.eps.get(ep) else { return };
        let (ia, shared) = (found.ia, found.srq != 0);
        if shared && matches!(was, EpState::Connected | EpState::DisconnectPending) {
            // it takes no more buffers: only now may they be counted
            self.events.push_async(ia, DatEvent::asynchronous(ASYNC_EP_BROKEN, ep, 0));
        }
        if let Some(ia) = self.ias.get_mut(ia) {
            ia.waiting.retain(|&h| h != ep);
        }
    }

    pub(crate) fn tell_connection(&mut self, ep: Handle, number: u32, data: &[u8]) {
        let Some(found) = self.eps.get_mut(ep) else { return };
        found.data = data.into();
        let event = DatEvent::connection(number, ep, data.len(), found.data.as_ptr().addr());
        let evd = found.connect_evd;
        self.events.push(evd, event, true);
    }

    pub(crate) fn ep_disconnect(&mut self, ep: Handle, flags: u32) -> DatResult {
        let found = self.eps.find(ep, HANDLE_EP)?;
        if flags > 1 {
            return bad_argument(2);
        }
        match found.state {
            EpState::Disconnected => return Ok(()),
            EpState::Connected => {}
            EpState::DisconnectPending if flags == 1 => return Ok(()),
            EpState::DisconnectPending | EpState::ActivePending | EpState::CompletionPending => {}
            state => return bad_state(state),
        }
        if flags == 1 && found.state == EpState::Connected && found.requests.used() > 0 {
            found.state = EpState::DisconnectPending;
            let ia = found.ia;
            self.has_ia(ia)?.waiting.push(ep);
            return Ok(());
        }
        self.hang_up(ep);
        Ok(())
    }

    pub(crate) fn hang_up(&mut self, ep: Handle) {
        self.drain(ep, true, true);
        self.drain(ep, false, true);
        if let Some(fabric) = self.eps.get(ep).and_then(|ep| ep.fabric.as_ref()) {
            fabric.shutdown();
        }
        self.end_connection(ep, DISCONNECTED, &[]);
    }

    pub(crate) fn ep_free(&mut self, ep: Handle) -> DatResult {
        self.eps.find(ep, HANDLE_EP)?;
        self.close_fabric(ep, false);
        let found = require_object(self.eps.close(&mut self.handles, ep), HANDLE_EP)?;
        self.memory.leave_pz(found.pz);
        for evd in [found.recv_evd, found.request_evd, found.connect_evd] {
            self.events.leave_evd(evd);
        }
        self.srqs.leave(found.srq);
        if let Some(ia) = self.ias.get_mut(found.ia) {
            ia.waiting.retain(|&h| h != ep);
        }
        Ok(())
    }

    pub(crate) fn ep_reset(&mut self, ep: Handle) -> DatResult {
        let found = self.eps.find(ep, HANDLE_EP)?;
        match found.state {
            EpState::Unconnected => Ok(()),
            EpState::Disconnected => {
                found.state = EpState::Unconnected;
                *found.peer = SocketAddress::NONE;
                Ok(())
            }
            state => bad_state(state),
        }
    }

    /// Changes the dispatchers and the protection zone of an unconnected endpoint.
    pub(crate) fn ep_modify(&mut self, ep: Handle, mask: u64, param: &DatEpParam) -> DatResult {
        const PZ: u64 = 0x80;
        const EVDS: [u64; 3] = [0x100, 0x200, 0x400];
        const RECV_DTOS: u64 = 0x40000;
        const REQUEST_DTOS: u64 = 0x80000;
        // attributes from their first to their last bit, but for those of providers
        const ATTR: u64 = 0x07ff_f000;
        let found = self.eps.find(ep, HANDLE_EP)?;
        if mask & !(PZ | EVDS[0] | EVDS[1] | EVDS[2] | ATTR) != 0 {
            return bad_argument(2);
        }
        let open = [EpState::Unconnected, EpState::Reserved, EpState::PassivePending];
        if !open.contains(&found.state) {
            return bad_state(found.state);
        }
        let (ia, mut attr, old_pz, srq) = (found.ia, found.attr, found.pz, found.srq);
        let used = (found.receives.used(), found.requests.used());
        let new = &param.ep_attr;
        macro_rules! take {
            ($($bit:literal $field:ident),*) => {$(
                if mask & $bit != 0 {
                    attr.$field = new.$field;
                }
            )*};
        }
        take!(0x1000 service_type, 0x2000 max_message_size, 0x4000 max_rdma_size, 0x8000 qos,
            0x10000 recv_completion_flags, 0x20000 request_completion_flags,
            0x40000 max_recv_dtos, 0x80000 max_request_dtos, 0x100000 max_recv_iov,
            0x200000 max_request_iov, 0x400000 max_rdma_read_in, 0x800000 max_rdma_read_out,
            0x1000000 srq_soft_hw, 0x2000000 max_rdma_read_iov, 0x4000000 max_rdma_write_iov);
        check_attr(self.ias.get(ia), &attr, 3)?;
        // all that can be refused, before anything changes
        let sizes = [attr.max_recv_dtos, attr.max_request_dtos].map(|n| n.max(1) as usize);
        if mask & RECV_DTOS != 0 && sizes[0] < used.0
            || mask & REQUEST_DTOS != 0 && sizes[1] < used.1
        {
            return error(INVALID_STATE, 0);
        }
        let moves = mask & PZ != 0 && param.pz_handle != old_pz;
        if moves {
            if self.memory.ia_of_pz(param.pz_handle)? != ia {
                return error(INVALID_HANDLE, HANDLE_PZ);
            }
            // posted buffers are of the old zone, and a shared queue's zone is its endpoints'
            if used.0 > 0 || srq != 0 {
                return error(INVALID_STATE, 0);
            }
        }
        let evds = [
            (param.recv_evd_handle, EVD_DTO, HANDLE_EVD_RECV),
            (param.request_evd_handle, EVD_DTO, HANDLE_EVD_REQUEST),
            (param.connect_evd_handle, EVD_CONNECTION, HANDLE_EVD_CONN),
        ];
        for (k, (evd, flag, subtype)) in evds.into_iter().enumerate() {
            if mask & EVDS[k] != 0 && evd != 0 {
                self.events.check_evd(evd, flag, subtype)?;
            }
        }
        let found = self.eps.find(ep, HANDLE_EP)?;
        if mask & RECV_DTOS != 0 && found.receives.resize(sizes[0]).is_none()
            || mask & REQUEST_DTOS != 0 && found.requests.resize(sizes[1]).is_none()
        {
            return exhausted(RESOURCE_MEMORY);
        }
        if moves {
            self.memory.use_pz(ia, param.pz_handle)?;
            self.memory.leave_pz(old_pz);
            self.eps.find(ep, HANDLE_EP)?.pz = param.pz_handle;
        }
        for (k, (evd, flag, subtype)) in evds.into_iter().enumerate() {
            if mask & EVDS[k] != 0 {
                self.events.use_evd(evd, flag, subtype)?;
                let found = self.eps.find(ep, HANDLE_EP)?;
                let slot = match k {
                    0 => &mut found.recv_evd,
                    1 => &mut found.request_evd,
                    _ => &mut found.connect_evd,
                };
                let before = std::mem::replace(slot, evd);
                self.events.leave_evd(before);
            }
        }
        let found = self.eps.find(ep, HANDLE_EP)?;
        found.attr = attr;
        Ok(())
    }

    pub(crate) fn ep_post_recv(
        &mut self,
        ep: Handle,
        iov: &[Triplet],
        cookie: u64,
        flags: u32,
    ) -> DatResult {
        let found = self.eps.find(ep, HANDLE_EP)?;
        if found.srq != 0 {
            return bad_state(found.state);
        }
        if found.recv_evd == 0 {
            return error(INVALID_STATE, STATE_EP_NOTREADY);
        }
        if iov.len() > SEGMENTS.min(found.attr.max_recv_iov.max(1) as usize) {
            return bad_argument(2);
        }
        if flags & !(COMPLETION_UNSIGNALLED | COMPLETION_SUPPRESS) != 0 {
            return bad_argument(5);
        }
        let of = (found.ia, found.pz);
        let (pieces, length) = self.memory.pieces(of, iov, PRIV_LOCAL_WRITE)?;
        let op = PostedOp {
            cookie,
            kind: DTO_RECEIVE,
            flags: flags & COMPLETION_UNSIGNALLED,
            length,
            pieces,
            remote: (0, 0),
            passed_on: false,
        };
        let found = self.eps.find(ep, HANDLE_EP)?;
        let Some(number) = found.receives.add(op) else { return exhausted(RESOURCE_MEMORY) };
        if found.state == EpState::Disconnected {
            found.flush(ep, &mut self.events, true);
            return Ok(());
        }
        found.held_receives.push_back(number);
        found.pass_on_receives();
        Ok(())
    }

    pub(crate) fn ep_post_request(
        &mut self,
        ep: Handle,
        kind: u32,
        iov: &[Triplet],
        cookie: u64,
        remote: Option<&Triplet>,
        flags: u32,
    ) -> DatResult {
        if self.eps.get(ep).is_some_and(|ep| ep.requests.used() >= ep.requests.limit()) {
            // with suppressed successes the application need not poll
            self.drain(ep, false, false);
        }
        let found = self.eps.find(ep, HANDLE_EP)?;
        let flags_argument = if remote.is_some() { 6 } else { 5 };
        if !matches!(found.state, EpState::Connected | EpState::Disconnected) {
            return bad_state(found.state);
        }
        if found.request_evd == 0 {
            return error(INVALID_STATE, STATE_EP_NOTREADY);
        }
        if iov.len() > SEGMENTS.min(found.attr.max_request_iov.max(1) as usize) {
            return bad_argument(2);
        }
        if flags & !0x0f != 0 {
            return bad_argument(flags_argument);
        }
        let of = (found.ia, found.pz);
        let read = kind == DTO_RDMA_READ;
        let privilege = if read { PRIV_LOCAL_WRITE } else { PRIV_LOCAL_READ };
        let (mut pieces, mut length) = self.memory.pieces(of, iov, privilege)?;
        if let Some(remote) = remote {
            let short =
                if read { length < remote.segment_length } else { length > remote.segment_length };
            if short {
                return error(LENGTH_ERROR, 0);
            }
            if read {
                pieces.shorten(remote.segment_length);
                length = remote.segment_length;
            }
        }
        let op = PostedOp {
            cookie,
            kind,
            flags,
            length,
            pieces,
            remote: remote.map_or((0, 0), |r| (r.virtual_address, r.context.into())),
            passed_on: false,
        };
        let found = self.eps.find(ep, HANDLE_EP)?;
        let Some(number) = found.requests.add(op) else { return exhausted(RESOURCE_MEMORY) };
        if found.state == EpState::Disconnected {
            found.flush(ep, &mut self.events, true);
            return Ok(());
        }
        found.held_requests.push_back(number);
        self.pass_on_requests(ep);
        Ok(())
    }

    pub(crate) fn pass_on_requests(&mut self, ep: Handle) {
        let Some(found) = self.eps.get_mut(ep) else { return };
        let Some((number, code)) = found.pass_on_request() else { return };
        // refused for good: it fails as any other does, and the next one's turn has come
        let failed = FabricCompletion { context: number, length: 0, code };
        self.complete(ep, false, failed);
        self.pass_on_requests(ep);
    }
}
