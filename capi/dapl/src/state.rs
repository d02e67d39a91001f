//! Objects of all adaptors.
//!
//! All of it is behind one lock, never held during a sleep. Calls on objects of one class are those
//! of its store in [`objects`](crate::objects). The calls between classes are here and in
//! `endpoints`, `points` and `progress`.
use crate::adaptor::DatIa;
use crate::answer::*;
use crate::fabric::*;
use crate::handles::HandleTable;
use crate::layout::*;
use crate::objects::connect::{DatCr, DatSp, MARK_LENGTH, PRIVATE_MAX};
use crate::objects::ep::DatEp;
use crate::objects::evd::{EVD_MAX, EventSink};
use crate::objects::memory::DatMemory;
use crate::objects::srq::SharedQueues;
use crate::store::Handles;
use std::sync::Arc;

/// Minimum number of events in the dispatcher of asynchronous ones: programs wait for one of each
/// endpoint with a shared queue, and request capacity for a few.
const ASYNC_MIN: i32 = 1 << 12;

/// Everything.
#[derive(Default)]
pub(crate) struct DatState {
    pub(crate) handles: HandleTable,
    pub(crate) ias: Handles<DatIa>,
    pub(crate) events: EventSink,
    pub(crate) memory: DatMemory,
    pub(crate) srqs: SharedQueues,
    pub(crate) sps: Handles<DatSp>,
    pub(crate) crs: Handles<DatCr>,
    pub(crate) eps: Handles<DatEp>,
    /// Number of polls of dispatchers.
    pub(crate) looks: u64,
}

impl DatState {
    /// Returns the domain for the sleep of a waiter of this dispatcher or notification object.
    pub(crate) fn domain_of(&self, waited: Handle) -> Option<&Arc<FabricDomain>> {
        Some(&self.ias.get(self.events.ia_of(waited)?)?.domain)
    }

    pub(crate) fn has_ia(&mut self, ia: Handle) -> DatResult<&mut DatIa> {
        self.ias.find(ia, HANDLE_IA)
    }

    /// Opens an adaptor and, unless another has one, its dispatcher of asynchronous events.
    pub(crate) fn ia_open(
        &mut self,
        (provider, thread_safe): (usize, bool),
        name: &str,
        instance: &str,
        qlen: i32,
        evd: Handle,
    ) -> DatResult<(Handle, Handle)> {
        if qlen < 0 {
            return bad_argument(2);
        }
        if qlen > EVD_MAX {
            return exhausted(RESOURCE_MEMORY);
        }
        if evd != 0 && evd != ASYNC_EXISTS {
            self.events.check_evd(evd, EVD_ASYNC, HANDLE_EVD_ASYNC)?;
        }
        let mut words = instance.split_whitespace();
        let node = words.next().unwrap_or("lo");
        let node = interface_address(node)
            .map_err(|code| of_code(code, RESOURCE_DEVICE))?
            .unwrap_or_else(|| node.to_string());
        let wanted = words.nth(1).map(str::to_string);
        let providers: Vec<&str> =
            wanted.as_deref().map_or_else(|| vec!["verbs", "tcp"], |name| vec![name]);
        let info = FabricInfo::find(&providers, &node).map_err(|code| match code {
            libc::ENOMEM | libc::EMFILE | libc::ENFILE => of_code(code, RESOURCE_DEVICE),
            _ => DatError(PROVIDER_NOT_FOUND),
        })?;
        let (limits, is_device) = (info.limits(), info.provider() == "verbs");
        let domain = FabricDomain::open(&info).map_err(|code| of_code(code, RESOURCE_DEVICE))?;
        let listener = FabricListener::open(&domain, &info, 0, 0)
            .map_err(|code| of_code(code, RESOURCE_DEVICE))?;
        let private_max = listener.data_limit().saturating_sub(MARK_LENGTH).min(PRIVATE_MAX);
        drop(listener);
        let address = Box::new(info.address(false));
        let adaptor = DatIa {
            provider,
            thread_safe,
            name: name.to_string(),
            info,
            domain,
            address,
            limits,
            is_device,
            private_max,
            waiting: Vec::new(),
        };
        let ia = self.ias.open(&mut self.handles, (HandleKind::Ia, provider), adaptor);
        let async_evd = match evd {
            0 => self.evd_create(ia, qlen.max(ASYNC_MIN), 0, EVD_ASYNC)?,
            ASYNC_EXISTS => OUT_OF_SCOPE,
            given => given,
        };
        self.events.set_async_evd(ia, async_evd);
        Ok((ia, async_evd))
    }

    /// Closes an adaptor: with all of its objects, or only if there are none.
    pub(crate) fn ia_close(&mut self, ia: Handle, graceful: bool) -> DatResult {
        self.has_ia(ia)?;
        let busy = self.eps.has_of(ia)
            || self.memory.has_of(ia)
            || self.sps.has_of(ia)
            || self.crs.has_of(ia)
            || self.events.has_of(ia);
        if busy && graceful {
            return error(INVALID_STATE, STATE_IA_IN_USE);
        }
        for ep in self.eps.which(|ep| ep.ia == ia) {
            let _ = self.ep_free(ep);
        }
        self.crs.close_of(&mut self.handles, ia);
        self.sps.close_of(&mut self.handles, ia);
        self.memory.close_windows_of(&mut self.handles, ia);
        self.srqs.close_of(&mut self.handles, ia);
        self.memory.close_of(&mut self.handles, ia);
        self.events.close_of(&mut self.handles, ia);
        self.ias.close(&mut self.handles, ia);
        Ok(())
    }

    pub(crate) fn evd_create(
        &mut self,
        ia: Handle,
        qlen: i32,
        cno: Handle,
        flags: u32,
    ) -> DatResult<Handle> {
        let provider = self.has_ia(ia)?.provider;
        self.events.evd_create(&mut self.handles, (ia, provider), qlen, cno, flags)
    }

    pub(crate) fn lmr_create(
        &mut self,
        ia: Handle,
        mem_type: u32,
        region: RegionDescription,
        length: u64,
        pz: Handle,
        privileges: u32,
        va_type: u32,
    ) -> DatResult<Handle> {
        let found = self.ias.find(ia, HANDLE_IA)?;
        let of = (ia, found.provider, &found.domain);
        let handles = &mut self.handles;
        self.memory.lmr_create(handles, of, mem_type, region, length, pz, privileges, va_type)
    }

    /// Makes a part of a region known under a key of its own, or no longer with a length of 0.
    #[allow(clippy::too_many_arguments, reason = "the call has them")]
    pub(crate) fn rmr_bind(
        &mut self,
        rmr: Handle,
        lmr: Handle,
        triplet: Triplet,
        privileges: u32,
        va_type: u32,
        ep: Handle,
        cookie: u64,
        flags: u32,
    ) -> DatResult<u32> {
        let pz = self.memory.pz_of_rmr(rmr)?;
        let endpoint = self.eps.find(ep, HANDLE_EP)?;
        let (ia, evd) = (endpoint.ia, endpoint.request_evd);
        if !matches!(endpoint.state, EpState::Connected) {
            return bad_state(endpoint.state);
        }
        if endpoint.pz != pz {
            return error(PROTECTION_VIOLATION, PROTECTION_READ);
        }
        if va_type != 0 {
            return error(MODEL_NOT_SUPPORTED, 0);
        }
        let domain = Arc::clone(&self.has_ia(ia)?.domain);
        let context = self.memory.bind(rmr, lmr, triplet, privileges, &domain)?;
        if flags & COMPLETION_SUPPRESS == 0 {
            let tell = flags & COMPLETION_UNSIGNALLED == 0;
            self.events.push(evd, DatEvent::bind(rmr, cookie, DTO_SUCCESS), tell);
        }
        Ok(context)
    }
}

#[cfg(test)]
mod tests;
