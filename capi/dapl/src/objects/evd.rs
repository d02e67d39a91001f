//! Event dispatchers and consumer notification objects, and the events pushed to them.
use crate::answer::*;
use crate::handles::HandleTable;
use crate::layout::*;
use crate::store::{Handles, OfAdaptor};
use std::collections::{HashMap, VecDeque};

/// Maximum number of events in a dispatcher.
pub(crate) const EVD_MAX: i32 = 1 << 16;

/// An event dispatcher.
pub(crate) struct DatEvd {
    pub(crate) ia: Handle,
    pub(crate) flags: u32,
    pub(crate) qlen: usize,
    pub(crate) queue: VecDeque<DatEvent>,
    pub(crate) cno: Handle,
    pub(crate) enabled: bool,
    pub(crate) waitable: bool,
    pub(crate) waiters: usize,
    /// True after an event to be reported to a waiter.
    pub(crate) notified: bool,
    /// Number of objects referring to it.
    uses: usize,
    /// Endpoints whose queues it reads: of receives or of requests.
    feeders: Vec<(Handle, bool)>,
}

/// A consumer notification object.
pub(crate) struct DatCno {
    pub(crate) ia: Handle,
    pub(crate) agent: ProxyAgent,
    pub(crate) triggered: VecDeque<Handle>,
    pub(crate) waiters: usize,
}

impl OfAdaptor for DatEvd {
    fn ia(&self) -> Handle {
        self.ia
    }
}

impl OfAdaptor for DatCno {
    fn ia(&self) -> Handle {
        self.ia
    }
}

/// The dispatchers and notification objects, as receivers of events.
#[derive(Default)]
pub(crate) struct EventSink {
    evds: Handles<DatEvd>,
    cnos: Handles<DatCno>,
    /// Dispatchers of asynchronous events, by adaptors.
    asynchronous: HashMap<Handle, Handle>,
    /// True if waiters have reason to poll again.
    has_events: bool,
    /// Sleeping threads, by their wakeup numbers.
    waiters: Vec<i32>,
    /// Dispatchers to report to agents after the release of the lock.
    upcalls: Vec<(usize, Handle)>,
}

impl EventSink {
    pub(crate) fn evd(&self, evd: Handle) -> Option<&DatEvd> {
        self.evds.get(evd)
    }

    pub(crate) fn evd_mut(&mut self, evd: Handle) -> Option<&mut DatEvd> {
        self.evds.get_mut(evd)
    }

    pub(crate) fn cno(&self, cno: Handle) -> Option<&DatCno> {
        self.cnos.get(cno)
    }

    pub(crate) fn cno_mut(&mut self, cno: Handle) -> Option<&mut DatCno> {
        self.cnos.get_mut(cno)
    }

    /// Returns the adaptor of a dispatcher or a notification object.
    pub(crate) fn ia_of(&self, waited: Handle) -> Option<Handle> {
        let ia = self.evds.get(waited).map(|evd| evd.ia);
        ia.or_else(|| self.cnos.get(waited).map(|cno| cno.ia))
    }

    /// Checks a dispatcher given by the application: it must be able to have these events.
    pub(crate) fn check_evd(&mut self, evd: Handle, flag: u32, subtype: u32) -> DatResult {
        let found = self.evds.find(evd, subtype)?;
        if found.flags & flag == 0 { error(INVALID_HANDLE, subtype) } else { Ok(()) }
    }

    /// Returns true if a dispatcher has no space, or does not exist.
    pub(crate) fn is_full_or_gone(&self, evd: Handle) -> bool {
        self.evds.get(evd).is_none_or(|evd| evd.queue.len() >= evd.qlen)
    }

    /// Returns true if a dispatcher has no space.
    pub(crate) fn is_full(&self, evd: Handle) -> bool {
        self.evds.get(evd).is_some_and(|evd| evd.queue.len() >= evd.qlen)
    }

    /// Returns the dispatcher of an adaptor's asynchronous events.
    pub(crate) fn async_evd(&self, ia: Handle) -> Handle {
        self.asynchronous.get(&ia).copied().unwrap_or(OUT_OF_SCOPE)
    }

    /// Sets the dispatcher of an adaptor's asynchronous events.
    pub(crate) fn set_async_evd(&mut self, ia: Handle, evd: Handle) {
        self.asynchronous.insert(ia, evd);
        if let Some(evd) = self.evds.get_mut(evd) {
            evd.uses += 1;
        }
    }

    /// Returns true if an adaptor has dispatchers, except for the one of its asynchronous events, or
    /// notification objects.
    pub(crate) fn has_of(&self, ia: Handle) -> bool {
        let asynchronous = self.async_evd(ia);
        self.evds.iter().any(|(handle, evd)| evd.ia == ia && handle != asynchronous)
            || self.cnos.has_of(ia)
    }

    /// Closes all dispatchers and notification objects of an adaptor.
    pub(crate) fn close_of(&mut self, handles: &mut HandleTable, ia: Handle) {
        self.cnos.close_of(handles, ia);
        if let Some(evd) = self.asynchronous.remove(&ia) {
            self.leave_evd(evd);
        }
        self.evds.close_of(handles, ia);
        self.has_events = true;
    }

    /// Lets a dispatcher read an endpoint's queue, of receives or of requests.
    pub(crate) fn add_feeder(&mut self, evd: Handle, ep: Handle, receives: bool) {
        if let Some(evd) = self.evds.get_mut(evd) {
            evd.feeders.push((ep, receives));
        }
    }

    /// Ends the reading of an endpoint's queues by a dispatcher.
    pub(crate) fn remove_feeder(&mut self, evd: Handle, ep: Handle) {
        if let Some(evd) = self.evds.get_mut(evd) {
            evd.feeders.retain(|(of, _)| *of != ep);
        }
    }

    /// Takes the queues read by a dispatcher, until they are given back.
    pub(crate) fn take_feeders(&mut self, evd: Handle) -> Vec<(Handle, bool)> {
        self.evds.get_mut(evd).map_or_else(Vec::new, |evd| std::mem::take(&mut evd.feeders))
    }

    /// Gives back the queues read by a dispatcher; others may have been added meanwhile.
    pub(crate) fn give_back_feeders(&mut self, evd: Handle, feeders: Vec<(Handle, bool)>) {
        if let Some(found) = self.evds.get_mut(evd) {
            let added = std::mem::replace(&mut found.feeders, feeders);
            found.feeders.extend(added);
        }
    }

    /// Returns the dispatchers of a notification object.
    pub(crate) fn evds_of(&self, cno: Handle) -> Vec<Handle> {
        self.evds.which(|evd| evd.cno == cno)
    }

    /// Returns true if agents are to be called.
    pub(crate) fn has_upcalls(&self) -> bool {
        !self.upcalls.is_empty()
    }

    /// Takes the agents to be called, each with its dispatcher.
    pub(crate) fn take_upcalls(&mut self) -> Vec<(ProxyAgent, Handle)> {
        let mut notified = Vec::new();
        for (cno, evd) in std::mem::take(&mut self.upcalls) {
            if let Some(cno) = self.cnos.get_mut(cno) {
                cno.triggered.retain(|&of| of != evd);
                notified.push((cno.agent, evd));
            }
        }
        notified
    }

    /// Returns true once if waiters have reason to poll again, and the sleeping ones.
    pub(crate) fn take_wakeups(&mut self) -> Option<&[i32]> {
        std::mem::take(&mut self.has_events).then_some(&self.waiters)
    }

    /// Adds a sleeping thread.
    pub(crate) fn add_waiter(&mut self, waiter: i32) {
        self.waiters.push(waiter);
    }

    /// Removes a thread after its sleep.
    pub(crate) fn remove_waiter(&mut self, waiter: i32) {
        self.waiters.retain(|&of| of != waiter);
    }

    pub(crate) fn evd_create(
        &mut self,
        handles: &mut HandleTable,
        (ia, provider): (Handle, usize),
        qlen: i32,
        cno: Handle,
        flags: u32,
    ) -> DatResult<Handle> {
        if qlen <= 0 {
            return bad_argument(2);
        }
        let known = EVD_SOFTWARE | EVD_CR | EVD_DTO | EVD_CONNECTION | EVD_RMR_BIND | EVD_ASYNC;
        if flags == 0 || flags & !known != 0 {
            return bad_argument(4);
        }
        if cno != 0 {
            self.cnos.find(cno, HANDLE_CNO)?;
        }
        if qlen > EVD_MAX {
            return exhausted(RESOURCE_MEMORY);
        }
        let qlen = qlen as usize;
        let mut queue = VecDeque::new();
        if queue.try_reserve_exact(qlen).is_err() {
            return exhausted(RESOURCE_MEMORY);
        }
        let evd = DatEvd {
            ia,
            flags,
            qlen,
            queue,
            cno,
            enabled: true,
            waitable: true,
            waiters: 0,
            notified: false,
            uses: 0,
            feeders: Vec::new(),
        };
        Ok(self.evds.open(handles, (HandleKind::Evd, provider), evd))
    }

    pub(crate) fn evd_free(&mut self, handles: &mut HandleTable, evd: Handle) -> DatResult {
        let found = self.evds.find(evd, HANDLE_1)?;
        if found.uses > 0 {
            return error(INVALID_STATE, STATE_EVD_IN_USE);
        }
        if found.waiters > 0 {
            return error(INVALID_STATE, STATE_EVD_WAITER);
        }
        self.evds.close(handles, evd);
        for cno in self.cnos.values_mut() {
            cno.triggered.retain(|&h| h != evd);
        }
        Ok(())
    }

    pub(crate) fn evd_resize(&mut self, evd: Handle, qlen: i32) -> DatResult {
        let found = self.evds.find(evd, HANDLE_1)?;
        if qlen <= 0 {
            return bad_argument(2);
        }
        if qlen > EVD_MAX {
            return exhausted(RESOURCE_MEMORY);
        }
        let qlen = qlen as usize;
        if qlen < found.queue.len() {
            return error(INVALID_STATE, 0);
        }
        if found.queue.try_reserve_exact(qlen - found.queue.len()).is_err() {
            return exhausted(RESOURCE_MEMORY);
        }
        found.qlen = qlen;
        Ok(())
    }

    pub(crate) fn evd_post(&mut self, evd: Handle, event: &DatEvent) -> DatResult {
        let found = self.evds.find(evd, HANDLE_1)?;
        if event.event_number != SOFTWARE_EVENT {
            return bad_argument(2);
        }
        if found.flags & EVD_SOFTWARE == 0 {
            return bad_argument(2);
        }
        if found.queue.len() >= found.qlen {
            return error(QUEUE_FULL, 0);
        }
        self.push(evd, *event, true);
        Ok(())
    }

    /// Takes the next event of a dispatcher.
    pub(crate) fn take_event(&mut self, evd: Handle) -> Option<DatEvent> {
        let found = self.evds.get_mut(evd)?;
        let event = found.queue.pop_front()?;
        if found.queue.is_empty() {
            found.notified = false;
        }
        Some(event)
    }

    pub(crate) fn evd_set_cno(&mut self, evd: Handle, cno: Handle) -> DatResult {
        if cno != 0 {
            self.cnos.find(cno, HANDLE_CNO)?;
        }
        let found = self.evds.find(evd, HANDLE_1)?;
        let before = std::mem::replace(&mut found.cno, cno);
        let pending = !found.queue.is_empty();
        if let Some(before) = self.cnos.get_mut(before) {
            before.triggered.retain(|&h| h != evd);
        }
        if pending {
            self.trigger(evd);
        }
        Ok(())
    }

    /// Enables or disables notification of waiters of events.
    pub(crate) fn evd_enable(&mut self, evd: Handle, enabled: bool) -> DatResult {
        let found = self.evds.find(evd, HANDLE_1)?;
        let pending = enabled && !found.enabled && !found.queue.is_empty();
        found.enabled = enabled;
        found.notified |= pending;
        self.has_events = true;
        if pending {
            self.trigger(evd);
        }
        Ok(())
    }

    pub(crate) fn evd_waitable(&mut self, evd: Handle, waitable: bool) -> DatResult {
        self.evds.find(evd, HANDLE_1)?.waitable = waitable;
        self.has_events = true;
        Ok(())
    }

    /// Signals the notification object of a dispatcher.
    fn trigger(&mut self, evd: Handle) {
        self.has_events = true;
        let Some(found) = self.evds.get(evd) else { return };
        if !found.enabled {
            return;
        }
        let Some(cno) = self.cnos.get_mut(found.cno) else { return };
        if cno.agent.function != 0 {
            self.upcalls.push((found.cno, evd));
        }
        if !cno.triggered.contains(&evd) {
            cno.triggered.push_back(evd);
        }
    }

    /// Appends an event to a dispatcher, if there is one.
    pub(crate) fn put(&mut self, evd: Handle, mut event: DatEvent, tell: bool) {
        let Some(found) = self.evds.get_mut(evd) else { return };
        event.evd_handle = evd;
        found.queue.push_back(event);
        found.notified |= tell;
        self.has_events = true;
        if tell {
            self.trigger(evd);
        }
    }

    /// Appends an event, unless the queue is full; this is reported by another event.
    pub(crate) fn push(&mut self, evd: Handle, event: DatEvent, tell: bool) -> bool {
        let Some(found) = self.evds.get(evd) else { return false };
        if found.queue.len() < found.qlen {
            self.put(evd, event, tell);
            return true;
        }
        let ia = found.ia;
        self.push_async(ia, DatEvent::asynchronous(ASYNC_EVD_OVERFLOW, evd, 0));
        false
    }

    /// Appends an asynchronous event; it is lost without space.
    pub(crate) fn push_async(&mut self, ia: Handle, event: DatEvent) {
        let Some(&evd) = self.asynchronous.get(&ia) else { return };
        if self.evds.get(evd).is_some_and(|found| found.queue.len() < found.qlen) {
            self.put(evd, event, true);
        }
    }

    pub(crate) fn use_evd(&mut self, evd: Handle, flag: u32, subtype: u32) -> DatResult {
        if evd == 0 {
            return Ok(());
        }
        let found = self.evds.find(evd, subtype)?;
        if found.flags & flag == 0 {
            return error(INVALID_HANDLE, subtype);
        }
        found.uses += 1;
        Ok(())
    }

    pub(crate) fn leave_evd(&mut self, evd: Handle) {
        if let Some(evd) = self.evds.get_mut(evd) {
            evd.uses = evd.uses.saturating_sub(1);
        }
    }

    pub(crate) fn cno_create(
        &mut self,
        handles: &mut HandleTable,
        (ia, provider): (Handle, usize),
        agent: ProxyAgent,
    ) -> Handle {
        let cno = DatCno { ia, agent, triggered: VecDeque::new(), waiters: 0 };
        self.cnos.open(handles, (HandleKind::Cno, provider), cno)
    }

    pub(crate) fn cno_free(&mut self, handles: &mut HandleTable, cno: Handle) -> DatResult {
        let found = self.cnos.find(cno, HANDLE_CNO)?;
        if found.waiters > 0 || self.evds.values().any(|evd| evd.cno == cno) {
            return error(INVALID_STATE, STATE_CNO_IN_USE);
        }
        self.cnos.close(handles, cno);
        Ok(())
    }
}
