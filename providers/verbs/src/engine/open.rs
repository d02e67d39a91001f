//! Endpoints from opening to closing: their queue pairs, and the attributes set and read by the
//! application.
use super::ep::{QpState, Ud, VerbsEndpoint, VerbsEpLimits};
use super::request::Scratch;
use super::state::{VerbsEngine, VerbsState};
use crate::config::config;
use crate::sys::{CmId, Pd, QpSpec, Srq, UdQp, VerbsDevice};
use ofi_provider::abi::fi_addr_t;
use ofi_provider::addr::UdAddr;
use ofi_provider::api::Bindings;
use ofi_provider::eq::FidPtr;
use ofi_provider::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

impl VerbsEngine {
    /// Opens an endpoint, without a connection before [`VerbsState::set_id`]; returns its index.
    pub(crate) fn add(&self, limits: VerbsEpLimits) -> u32 {
        self.lock().eps.insert(VerbsEndpoint::new(limits))
    }

    /// Opens a shared receive context; returns its index.
    pub(crate) fn add_shared(&self, limits: VerbsEpLimits) -> Result<u32> {
        let srq = Srq::new(&self.pd, limits.rx_size as u32, limits.rx_iov as u32)?;
        let mut ep = VerbsEndpoint::new(limits);
        // posting a receive asks for no memory
        if !ep.shared.make_space(ep.limits.rx_size) {
            return Err(Error::NOMEM);
        }
        ep.srq = Some(srq);
        Ok(self.lock().eps.insert(ep))
    }

    /// Enables an endpoint: makes its queue pair, with receives of the shared context
    /// `srx` if there is one.
    pub(crate) fn enable(&self, at: u32, bindings: &Bindings, srx: Option<u32>) -> Result {
        let mut state = self.lock();
        let state = &mut *state;
        state.eps[at].bindings = bindings.clone();
        if state.eps[at].srq.is_some() {
            return Ok(());
        }
        let limits = state.eps[at].limits;
        // Every receive of a shared context may be taken by one endpoint.
        let recvs = srx.map_or(limits.rx_size, |srx| state.eps[srx].limits.rx_size);
        let slots = limits.tx_size + recvs;
        let queue = state.reserve(slots, self)?;
        let made = state.make_pair(at, queue, srx, &self.pd);
        let scratch = made.and_then(|number| {
            if let (Some(_), Some(number)) = (srx, number) {
                state.srx_users.insert(number, at);
            }
            if limits.atomics { Scratch::new(&self.pd, limits.tx_size).map(Some) } else { Ok(None) }
        });
        match scratch {
            Ok(scratch) => {
                let ep = &mut state.eps[at];
                (ep.queue, ep.scratch) = (Some(queue), scratch);
                Ok(())
            }
            Err(error) => {
                state.queues[queue].free += slots;
                Err(error)
            }
        }
    }

    /// Closes an endpoint and ends all it has posted; no completion follows.
    pub(crate) fn close(&self, at: u32) {
        let mut state = self.lock();
        if !state.eps.get_mut(at).is_some_and(|ep| ep.leave(self.settles)) {
            state.remove(at);
        }
    }
}

impl VerbsState {
    /// Creates an endpoint's queue pair, with completions in this `queue`; returns its number if it
    /// belongs to a connection.
    fn make_pair(
        &mut self,
        at: u32,
        queue: usize,
        srx: Option<u32>,
        pd: &Arc<Pd>,
    ) -> Result<Option<u32>> {
        let limits = self.eps[at].limits;
        let mut spec = QpSpec {
            cq: &self.queues[queue].cq,
            srq: None,
            sends: limits.tx_size as u32,
            recvs: limits.rx_size as u32,
            send_segments: limits.tx_iov as u32,
            recv_segments: limits.rx_iov as u32,
            inline: limits.inject as u32,
            datagrams: limits.datagrams,
        };
        if limits.datagrams {
            let pair = UdQp::new(pd, &spec, config().gid_idx)?;
            let ep = &mut self.eps[at];
            (ep.inline, ep.conn) = (pair.inline as usize, QpState::Up);
            ep.ud = Some(Ud { address_handles: HashMap::new(), pair });
            return Ok(None);
        }
        let mut id = self.eps[at].id.take().ok_or(Error::OPBADSTATE)?;
        spec.srq = srx.and_then(|srx| self.eps[srx].srq.as_ref());
        let made = Arc::get_mut(&mut id).ok_or(Error::OPBADSTATE).and_then(|id| {
            id.create_qp(pd, &spec).or_else(|_| {
                // The device's inline limit may depend on the other limits.
                spec.inline = 0;
                id.create_qp(pd, &spec)
            })
        });
        let number = id.qp().ok().map(|qp| qp.number());
        let ep = &mut self.eps[at];
        ep.id = Some(id);
        // The answer counts: a device may copy more into a request than it was asked for.
        ep.inline = if limits.hmem { 0 } else { made? as usize };
        if let Some(srx) = srx {
            // So that `VerbsEndpoint::reserved` counts the receives for which room was reserved.
            let recvs = self.eps[srx].limits.rx_size;
            self.eps[at].limits.rx_size = recvs;
        }
        Ok(number)
    }

    /// Removes an endpoint: ends its connection, if it has one, and all it has posted.
    pub(super) fn remove(&mut self, at: u32) {
        let Some(mut ep) = self.eps.remove(at) else { return };
        if let Some(number) = ep.qp().ok().map(|qp| qp.number()) {
            self.srx_users.remove(&number);
        }
        let id = ep.id.take();
        if ep.is_made() {
            if let Some(id) = &id {
                let _ = id.disconnect();
            }
        }
        drop(id);
        // The queue pair is gone now, and what it left in the completion queue is taken out
        // here.
        if let Some(queue) = ep.queue {
            self.poll();
            self.queues[queue].free += ep.reserved();
        }
    }

    /// Sets the object named by an endpoint's events.
    pub(crate) fn set_fid(&mut self, at: u32, fid: FidPtr) {
        self.eps[at].fid = Some(fid);
    }

    /// Replaces an endpoint's bindings: more is bound to it than when it was enabled.
    pub(crate) fn bind(&mut self, at: u32, bindings: &Bindings) {
        self.eps[at].bindings = bindings.clone();
    }

    /// Sets the source reported by receives of an endpoint.
    pub(crate) fn set_source(&mut self, at: u32, source: fi_addr_t) {
        self.eps[at].source = Some(source);
    }

    /// Gives an endpoint its connection at librdmacm.
    pub(crate) fn set_id(&mut self, at: u32, id: CmId) {
        self.eps[at].id = Some(Arc::new(id));
    }

    /// Replaces the connection at librdmacm of an endpoint without a queue pair by one with another
    /// address.
    pub(crate) fn rename(&mut self, at: u32, id: CmId) -> Result {
        let ep = &mut self.eps[at];
        if ep.queue.is_some() || ep.srq.is_some() {
            return Err(Error::OPBADSTATE);
        }
        ep.id = Some(Arc::new(id));
        Ok(())
    }

    /// Removes an endpoint after a failed open.
    pub(crate) fn forget(&mut self, at: u32) {
        self.eps.remove(at);
    }

    /// The address of a datagram endpoint.
    pub(crate) fn ud_name(&self, at: u32, device: VerbsDevice) -> Result<UdAddr> {
        let ud = self.eps[at].ud.as_ref().ok_or(Error::OPBADSTATE)?;
        let gid = device.gid(1, ud.pair.gid_index.into())?;
        let (lid, pkey) = (device.port(1)?.lid, device.pkey(1, 0)?);
        Ok(UdAddr { gid, qpn: ud.pair.qp().number(), lid, pkey, ..UdAddr::default() })
    }

    /// Returns the number of further sends (`tx`) or receives accepted by an endpoint.
    pub(crate) fn size_left(&self, at: u32, tx: bool) -> usize {
        let VerbsEndpoint { limits, sent, posted, .. } = &self.eps[at];
        match tx {
            true => limits.tx_size.saturating_sub(sent.items.len()),
            false => limits.rx_size.saturating_sub(posted.items.len()),
        }
    }
}
