//! Objects of all adaptors, and the event processing between them.
//!
//! All of it is behind one lock, never held during a sleep. Objects name each other by their
//! handles, so a closed object is not found instead of being a dangling pointer.
use crate::answer::*;
use crate::fabric::*;
use crate::handles::HandleTable;
use crate::layout::*;
use crate::posted::{PostedOp, PostedOps};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prefix of connection data: providers may deliver more bytes than sent, and none reports if the
/// peer or its kernel rejected a request.
const MARK: [u8; 2] = [0xDA, 2];
/// Length of the prefix, including the length of the data.
pub(crate) const MARK_LENGTH: usize = 4;
/// Maximum bytes of an application's connection data.
pub(crate) const PRIVATE_MAX: usize = 256;
/// Maximum number of events in a dispatcher.
pub(crate) const EVD_MAX: i32 = 1 << 16;
/// Minimum number of events in the dispatcher of asynchronous ones: programs wait for one of each
/// endpoint with a shared queue, and request capacity for a few.
const ASYNC_MIN: i32 = 1 << 12;
/// The most operations of an endpoint or a shared queue.
pub(crate) const DTO_MAX: i32 = 1 << 14;
/// Time for an event with the reason of a connection's end after failed transfers.
const DOUBT: Duration = Duration::from_millis(100);
/// Number of operations of an endpoint created without attributes.
const DTO_DEFAULT: i32 = 256;

/// An interface adaptor.
pub(crate) struct DatIa {
    pub(crate) provider: usize,
    pub(crate) thread_safe: bool,
    pub(crate) name: String,
    pub(crate) info: FabricInfo,
    pub(crate) domain: Arc<FabricDomain>,
    pub(crate) address: Box<SocketAddress>,
    pub(crate) limits: FabricLimits,
    /// True for a device: its connections end with the first failure.
    is_device: bool,
    pub(crate) private_max: usize,
    pub(crate) async_evd: Handle,
    /// Endpoints with connections in progress.
    waiting: Vec<Handle>,
}

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

/// A protection zone.
pub(crate) struct DatPz {
    pub(crate) ia: Handle,
    uses: usize,
}

/// Registered memory.
pub(crate) struct DatLmr {
    pub(crate) ia: Handle,
    pub(crate) pz: Handle,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) privileges: u32,
    pub(crate) mem_type: u32,
    pub(crate) key: u32,
    /// Key for peers; 0 without remote access.
    pub(crate) remote_key: u32,
    region: FabricRegion,
    uses: usize,
}

/// A window into registered memory.
pub(crate) struct DatRmr {
    pub(crate) ia: Handle,
    pub(crate) pz: Handle,
    pub(crate) bound: Option<(Triplet, u32, u32)>,
    lmr: Handle,
    region: Option<FabricRegion>,
}

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

/// Service point, with its endpoint if it is a reserved one.
pub(crate) struct DatSp {
    pub(crate) ia: Handle,
    pub(crate) evd: Handle,
    pub(crate) conn_qual: u64,
    pub(crate) reserved: Option<Handle>,
    /// True if each request comes with an endpoint (DAT_PSP_PROVIDER_FLAG).
    pub(crate) makes_endpoints: bool,
    listener: Arc<FabricListener>,
}

/// A request for a connection.
pub(crate) struct DatCr {
    pub(crate) ia: Handle,
    pub(crate) peer: Box<SocketAddress>,
    pub(crate) data: Box<[u8]>,
    pub(crate) ep: Handle,
    /// True if this endpoint was created for the request, and is freed with its rejection.
    made: bool,
    sp: Handle,
    listener: Arc<FabricListener>,
    info: FabricInfo,
}

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
    reads: usize,
    held_requests: VecDeque<usize>,
    held_receives: VecDeque<usize>,
    data: Box<[u8]>,
    deadline: Option<Instant>,
    fabric: Option<FabricEndpoint>,
}

/// Everything.
#[derive(Default)]
pub(crate) struct DatState {
    pub(crate) handles: HandleTable,
    pub(crate) ias: HashMap<Handle, DatIa>,
    pub(crate) evds: HashMap<Handle, DatEvd>,
    pub(crate) cnos: HashMap<Handle, DatCno>,
    pub(crate) pzs: HashMap<Handle, DatPz>,
    pub(crate) lmrs: HashMap<Handle, DatLmr>,
    pub(crate) rmrs: HashMap<Handle, DatRmr>,
    pub(crate) srqs: HashMap<Handle, DatSrq>,
    pub(crate) sps: HashMap<Handle, DatSp>,
    pub(crate) crs: HashMap<Handle, DatCr>,
    pub(crate) eps: HashMap<Handle, DatEp>,
    keys: HashMap<u32, Handle>,
    next_key: u32,
    /// Number of polls of dispatchers.
    looks: u64,
    /// True if waiters have reason to poll again.
    pub(crate) has_events: bool,
    /// Sleeping threads, by their wakeup numbers.
    pub(crate) waiters: Vec<i32>,
    /// Dispatchers to report to agents after the release of the lock.
    pub(crate) upcalls: Vec<(usize, Handle)>,
}

/// Finds an object, or leaves with its subtype of DAT_INVALID_HANDLE.
macro_rules! find {
    ($map:expr, $handle:expr, $subtype:expr) => {
        match $map.get_mut(&$handle) {
            Some(object) => object,
            None => return error(INVALID_HANDLE, $subtype),
        }
    };
}

/// Data of a connection as it goes over the wire.
fn marked(data: &[u8]) -> Vec<u8> {
    let mut all = MARK.to_vec();
    all.extend((data.len() as u16).to_be_bytes());
    all.extend(data);
    all
}

/// Data of a connection as the peer gave it; none if it is no peer of ours.
fn unmarked(data: &[u8]) -> Option<&[u8]> {
    let rest = data.strip_prefix(&MARK)?;
    let (length, rest) = rest.split_first_chunk()?;
    rest.get(..u16::from_be_bytes(*length).into())
}

impl DatState {
    fn provider(&self, ia: Handle) -> usize {
        self.ias.get(&ia).map_or(0, |ia| ia.provider)
    }

    /// Returns the domain for the sleep of a waiter of this dispatcher or notification object.
    pub(crate) fn domain_of(&self, waited: Handle) -> Option<&Arc<FabricDomain>> {
        let ia = match self.evds.get(&waited) {
            Some(evd) => evd.ia,
            None => self.cnos.get(&waited)?.ia,
        };
        Some(&self.ias.get(&ia)?.domain)
    }

    fn has_ia(&mut self, ia: Handle) -> DatResult<&mut DatIa> {
        Ok(find!(self.ias, ia, HANDLE_IA))
    }

    // ---- adaptors

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
            let given = find!(self.evds, evd, HANDLE_EVD_ASYNC);
            if given.flags & EVD_ASYNC == 0 {
                return error(INVALID_HANDLE, HANDLE_EVD_ASYNC);
            }
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
        let ia = self.handles.open(HandleKind::Ia, provider);
        let address = Box::new(info.address(false));
        self.ias.insert(
            ia,
            DatIa {
                provider,
                thread_safe,
                name: name.to_string(),
                info,
                domain,
                address,
                limits,
                is_device,
                private_max,
                async_evd: OUT_OF_SCOPE,
                waiting: Vec::new(),
            },
        );
        let async_evd = match evd {
            0 => self.evd_create(ia, qlen.max(ASYNC_MIN), 0, EVD_ASYNC)?,
            ASYNC_EXISTS => OUT_OF_SCOPE,
            given => given,
        };
        if let Some(evd) = self.evds.get_mut(&async_evd) {
            evd.uses += 1;
        }
        self.has_ia(ia)?.async_evd = async_evd;
        Ok((ia, async_evd))
    }

    /// Closes an adaptor: with all of its objects, or only if there are none.
    pub(crate) fn ia_close(&mut self, ia: Handle, graceful: bool) -> DatResult {
        let async_evd = self.has_ia(ia)?.async_evd;
        let own = self.evds.get(&async_evd).is_some_and(|evd| evd.ia == ia);
        let busy = self.eps.values().any(|ep| ep.ia == ia)
            || self.evds.iter().any(|(&h, evd)| evd.ia == ia && h != async_evd)
            || self.pzs.values().any(|pz| pz.ia == ia)
            || self.sps.values().any(|sp| sp.ia == ia)
            || self.crs.values().any(|cr| cr.ia == ia)
            || self.cnos.values().any(|cno| cno.ia == ia);
        if busy && graceful {
            return error(INVALID_STATE, STATE_IA_IN_USE);
        }
        macro_rules! clear {
            ($($map:ident),*) => {$(
                let gone: Vec<Handle> =
                    self.$map.iter().filter(|(_, o)| o.ia == ia).map(|(&h, _)| h).collect();
                for handle in gone {
                    self.handles.close(handle);
                    self.$map.remove(&handle);
                }
            )*};
        }
        let eps: Vec<Handle> =
            self.eps.iter().filter(|(_, ep)| ep.ia == ia).map(|(&h, _)| h).collect();
        for ep in eps {
            let _ = self.ep_free(ep);
        }
        clear!(crs, sps, rmrs, srqs, lmrs, pzs, cnos);
        self.keys.retain(|_, lmr| self.lmrs.contains_key(lmr));
        if !own && let Some(evd) = self.evds.get_mut(&async_evd) {
            evd.uses = evd.uses.saturating_sub(1);
        }
        clear!(evds);
        self.has_events = true;
        self.handles.close(ia);
        self.ias.remove(&ia);
        Ok(())
    }

    // ---- event dispatchers

    pub(crate) fn evd_create(
        &mut self,
        ia: Handle,
        qlen: i32,
        cno: Handle,
        flags: u32,
    ) -> DatResult<Handle> {
        let provider = self.has_ia(ia)?.provider;
        if qlen <= 0 {
            return bad_argument(2);
        }
        let known = EVD_SOFTWARE | EVD_CR | EVD_DTO | EVD_CONNECTION | EVD_RMR_BIND | EVD_ASYNC;
        if flags == 0 || flags & !known != 0 {
            return bad_argument(4);
        }
        if cno != 0 {
            find!(self.cnos, cno, HANDLE_CNO);
        }
        if qlen > EVD_MAX {
            return exhausted(RESOURCE_MEMORY);
        }
        let qlen = qlen as usize;
        let mut queue = VecDeque::new();
        if queue.try_reserve_exact(qlen).is_err() {
            return exhausted(RESOURCE_MEMORY);
        }
        let evd = self.handles.open(HandleKind::Evd, provider);
        self.evds.insert(
            evd,
            DatEvd {
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
            },
        );
        Ok(evd)
    }

    pub(crate) fn evd_free(&mut self, evd: Handle) -> DatResult {
        let found = find!(self.evds, evd, HANDLE_1);
        if found.uses > 0 {
            return error(INVALID_STATE, STATE_EVD_IN_USE);
        }
        if found.waiters > 0 {
            return error(INVALID_STATE, STATE_EVD_WAITER);
        }
        self.evds.remove(&evd);
        for cno in self.cnos.values_mut() {
            cno.triggered.retain(|&h| h != evd);
        }
        self.handles.close(evd);
        Ok(())
    }

    pub(crate) fn evd_resize(&mut self, evd: Handle, qlen: i32) -> DatResult {
        let found = find!(self.evds, evd, HANDLE_1);
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
        let found = find!(self.evds, evd, HANDLE_1);
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

    /// Returns the next event, for a caller not waiting.
    pub(crate) fn evd_dequeue(&mut self, evd: Handle) -> DatResult<DatEvent> {
        let found = find!(self.evds, evd, HANDLE_1);
        if found.waiters > 0 {
            return error(INVALID_STATE, STATE_EVD_WAITER);
        }
        if found.queue.is_empty() {
            self.progress(evd);
        }
        match self.take_event(evd) {
            Some(event) => Ok(event),
            None => error(QUEUE_EMPTY, 0),
        }
    }

    /// Takes the next event of a dispatcher.
    pub(crate) fn take_event(&mut self, evd: Handle) -> Option<DatEvent> {
        let found = self.evds.get_mut(&evd)?;
        let event = found.queue.pop_front()?;
        if found.queue.is_empty() {
            found.notified = false;
        }
        Some(event)
    }

    pub(crate) fn evd_set_cno(&mut self, evd: Handle, cno: Handle) -> DatResult {
        if cno != 0 {
            find!(self.cnos, cno, HANDLE_CNO);
        }
        let found = find!(self.evds, evd, HANDLE_1);
        let before = std::mem::replace(&mut found.cno, cno);
        let pending = !found.queue.is_empty();
        if let Some(before) = self.cnos.get_mut(&before) {
            before.triggered.retain(|&h| h != evd);
        }
        if pending {
            self.trigger(evd);
        }
        Ok(())
    }

    /// Enables or disables notification of waiters of events.
    pub(crate) fn evd_enable(&mut self, evd: Handle, enabled: bool) -> DatResult {
        let found = find!(self.evds, evd, HANDLE_1);
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
        find!(self.evds, evd, HANDLE_1).waitable = waitable;
        self.has_events = true;
        Ok(())
    }

    /// Signals the notification object of a dispatcher.
    fn trigger(&mut self, evd: Handle) {
        self.has_events = true;
        let Some(found) = self.evds.get(&evd) else { return };
        if !found.enabled {
            return;
        }
        let Some(cno) = self.cnos.get_mut(&found.cno) else { return };
        if cno.agent.function != 0 {
            self.upcalls.push((found.cno, evd));
        }
        if !cno.triggered.contains(&evd) {
            cno.triggered.push_back(evd);
        }
    }

    /// Appends an event to a dispatcher, if there is one.
    fn put(&mut self, evd: Handle, mut event: DatEvent, tell: bool) {
        let Some(found) = self.evds.get_mut(&evd) else { return };
        event.evd_handle = evd;
        found.queue.push_back(event);
        found.notified |= tell;
        self.has_events = true;
        if tell {
            self.trigger(evd);
        }
    }

    /// Appends an event, unless the queue is full; this is reported by another event.
    fn push(&mut self, evd: Handle, event: DatEvent, tell: bool) -> bool {
        let Some(found) = self.evds.get(&evd) else { return false };
        if found.queue.len() < found.qlen {
            self.put(evd, event, tell);
            return true;
        }
        let ia = found.ia;
        self.push_async(ia, DatEvent::asynchronous(ASYNC_EVD_OVERFLOW, evd, 0));
        false
    }

    /// Appends an asynchronous event; it is lost without space.
    fn push_async(&mut self, ia: Handle, event: DatEvent) {
        let Some(evd) = self.ias.get(&ia).map(|ia| ia.async_evd) else { return };
        if self.evds.get(&evd).is_some_and(|found| found.queue.len() < found.qlen) {
            self.put(evd, event, true);
        }
    }

    // ---- notification objects

    pub(crate) fn cno_create(&mut self, ia: Handle, agent: ProxyAgent) -> DatResult<Handle> {
        let provider = self.has_ia(ia)?.provider;
        let cno = self.handles.open(HandleKind::Cno, provider);
        self.cnos.insert(cno, DatCno { ia, agent, triggered: VecDeque::new(), waiters: 0 });
        Ok(cno)
    }

    pub(crate) fn cno_free(&mut self, cno: Handle) -> DatResult {
        let found = find!(self.cnos, cno, HANDLE_CNO);
        if found.waiters > 0 || self.evds.values().any(|evd| evd.cno == cno) {
            return error(INVALID_STATE, STATE_CNO_IN_USE);
        }
        self.cnos.remove(&cno);
        self.handles.close(cno);
        Ok(())
    }

    /// Returns a dispatcher with a new event, if there is one.
    pub(crate) fn cno_look(&mut self, cno: Handle) -> DatResult<Option<Handle>> {
        let found = find!(self.cnos, cno, HANDLE_CNO);
        if let Some(evd) = found.triggered.pop_front() {
            return Ok(Some(evd));
        }
        let evds: Vec<Handle> =
            self.evds.iter().filter(|(_, evd)| evd.cno == cno).map(|(&h, _)| h).collect();
        for evd in evds {
            self.progress(evd);
        }
        Ok(find!(self.cnos, cno, HANDLE_CNO).triggered.pop_front())
    }

    // ---- zones and memory

    pub(crate) fn pz_create(&mut self, ia: Handle) -> DatResult<Handle> {
        let provider = self.has_ia(ia)?.provider;
        let pz = self.handles.open(HandleKind::Pz, provider);
        self.pzs.insert(pz, DatPz { ia, uses: 0 });
        Ok(pz)
    }

    pub(crate) fn pz_free(&mut self, pz: Handle) -> DatResult {
        if find!(self.pzs, pz, HANDLE_PZ).uses > 0 {
            return error(INVALID_STATE, STATE_PZ_IN_USE);
        }
        self.pzs.remove(&pz);
        self.handles.close(pz);
        Ok(())
    }

    fn use_pz(&mut self, ia: Handle, pz: Handle) -> DatResult {
        let found = find!(self.pzs, pz, HANDLE_PZ);
        if found.ia != ia {
            return error(INVALID_HANDLE, HANDLE_PZ);
        }
        found.uses += 1;
        Ok(())
    }

    fn leave_pz(&mut self, pz: Handle) {
        if let Some(pz) = self.pzs.get_mut(&pz) {
            pz.uses = pz.uses.saturating_sub(1);
        }
    }

    /// Registers memory. Returns a unique 32-bit key, and the key used by peers. They may differ: a
    /// device chooses the second, and two devices may choose the same.
    fn register(
        &mut self,
        ia: Handle,
        address: u64,
        length: u64,
        privileges: u32,
    ) -> DatResult<(FabricRegion, u32, u32)> {
        use ofi::abi::{FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE};
        let mut access = FI_SEND | FI_WRITE;
        if privileges & PRIV_LOCAL_WRITE != 0 {
            access |= FI_RECV | FI_READ;
        }
        if privileges & PRIV_REMOTE_READ != 0 {
            access |= FI_REMOTE_READ;
        }
        if privileges & PRIV_REMOTE_WRITE != 0 {
            access |= FI_REMOTE_WRITE;
        }
        let domain = Arc::clone(&self.has_ia(ia)?.domain);
        loop {
            self.next_key = self.next_key.wrapping_add(1).max(1);
            if !self.keys.contains_key(&self.next_key) {
                break;
            }
        }
        let region = FabricRegion::register(&domain, address, length, access, self.next_key)
            .map_err(|code| match code {
                libc::EINVAL | libc::EFAULT => DatError(INVALID_PARAMETER | (ARG_1 + 2)),
                _ => DatError(INSUFFICIENT_RESOURCES | RESOURCE_MEMORY_REGION),
            })?;
        // a region that peers may not touch need not have a key for them
        let remote = privileges & (PRIV_REMOTE_READ | PRIV_REMOTE_WRITE) != 0;
        match u32::try_from(region.key()) {
            Ok(key) => Ok((region, self.next_key, key)),
            Err(_) if !remote => Ok((region, self.next_key, 0)),
            Err(_) => error(INTERNAL_ERROR, 0),
        }
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
        let provider = self.has_ia(ia)?.provider;
        let (mut address, mut length) = (region.first as u64, length);
        match mem_type {
            0 => {}
            1 => {
                let of = find!(self.lmrs, region.first, HANDLE_LMR);
                (address, length) = (of.address, of.length);
            }
            2 => return error(MODEL_NOT_SUPPORTED, 0),
            _ => return bad_argument(2),
        }
        if va_type != 0 {
            return if va_type == 1 { error(MODEL_NOT_SUPPORTED, 0) } else { bad_argument(7) };
        }
        if privileges & !PRIV_ALL != 0 {
            return bad_argument(6);
        }
        if length == 0 || address == 0 || address.checked_add(length).is_none() {
            return bad_argument(if length == 0 { 4 } else { 3 });
        }
        self.use_pz(ia, pz)?;
        let made = self.register(ia, address, length, privileges);
        let (region, key, remote_key) = match made {
            Ok(made) => made,
            Err(error) => {
                self.leave_pz(pz);
                return Err(error);
            }
        };
        let lmr = self.handles.open(HandleKind::Lmr, provider);
        self.keys.insert(key, lmr);
        let uses = 0;
        self.lmrs.insert(
            lmr,
            DatLmr { ia, pz, address, length, privileges, mem_type, key, remote_key, region, uses },
        );
        Ok(lmr)
    }

    pub(crate) fn lmr_free(&mut self, lmr: Handle) -> DatResult {
        let found = find!(self.lmrs, lmr, HANDLE_LMR);
        if found.uses > 0 {
            return error(INVALID_STATE, STATE_LMR_IN_USE);
        }
        let (key, pz) = (found.key, found.pz);
        self.keys.remove(&key);
        self.lmrs.remove(&lmr);
        self.leave_pz(pz);
        self.handles.close(lmr);
        Ok(())
    }

    /// The segments of an application as the provider takes them, and their length in sum.
    fn pieces(
        &self,
        (ia, pz): (Handle, Handle),
        iov: &[Triplet],
        privilege: u32,
    ) -> DatResult<(LocalPieces, u32)> {
        let (mut all, mut total) = (LocalPieces::default(), 0u32);
        let (write, subtypes) = (
            privilege == PRIV_LOCAL_WRITE,
            [(PROTECTION_READ, PRIVILEGES_READ), (PROTECTION_WRITE, PRIVILEGES_WRITE)],
        );
        let (protection, privileges) = subtypes[usize::from(write)];
        for segment in iov.iter().filter(|segment| segment.segment_length > 0) {
            let lmr = self.keys.get(&segment.context).and_then(|lmr| self.lmrs.get(lmr));
            let Some(lmr) = lmr.filter(|lmr| lmr.ia == ia) else {
                return error(PRIVILEGES_VIOLATION, privileges);
            };
            if lmr.pz != pz {
                return error(PROTECTION_VIOLATION, protection);
            }
            // as with devices, the right to register memory includes reading it
            if write && lmr.privileges & privilege == 0 {
                return error(PRIVILEGES_VIOLATION, privileges);
            }
            let inside = segment.virtual_address.checked_sub(lmr.address).is_some_and(|offset| {
                offset <= lmr.length && u64::from(segment.segment_length) <= lmr.length - offset
            });
            if !inside {
                return bad_argument(3);
            }
            let Some(sum) = total.checked_add(segment.segment_length) else {
                return bad_argument(3);
            };
            total = sum;
            all.pieces[all.count] = LocalPiece {
                address: segment.virtual_address,
                length: segment.segment_length,
                descriptor: lmr.region.descriptor(),
            };
            all.count += 1;
        }
        Ok((all, total))
    }

    pub(crate) fn rmr_create(&mut self, pz: Handle) -> DatResult<Handle> {
        let ia = find!(self.pzs, pz, HANDLE_PZ).ia;
        self.use_pz(ia, pz)?;
        let rmr = self.handles.open(HandleKind::Rmr, self.provider(ia));
        self.rmrs.insert(rmr, DatRmr { ia, pz, bound: None, lmr: 0, region: None });
        Ok(rmr)
    }

    fn unbind(&mut self, rmr: Handle) {
        let Some(found) = self.rmrs.get_mut(&rmr) else { return };
        found.region = None;
        found.bound = None;
        let lmr = std::mem::take(&mut found.lmr);
        if let Some(lmr) = self.lmrs.get_mut(&lmr) {
            lmr.uses = lmr.uses.saturating_sub(1);
        }
    }

    pub(crate) fn rmr_free(&mut self, rmr: Handle) -> DatResult {
        let pz = find!(self.rmrs, rmr, HANDLE_RMR).pz;
        self.unbind(rmr);
        self.rmrs.remove(&rmr);
        self.leave_pz(pz);
        self.handles.close(rmr);
        Ok(())
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
        let pz = find!(self.rmrs, rmr, HANDLE_RMR).pz;
        let endpoint = find!(self.eps, ep, HANDLE_EP);
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
        let mut context = 0;
        if triplet.segment_length == 0 {
            self.unbind(rmr);
        } else {
            let of = find!(self.lmrs, lmr, HANDLE_LMR);
            if of.pz != pz {
                return error(PROTECTION_VIOLATION, PROTECTION_READ);
            }
            if privileges & PRIV_REMOTE_WRITE != 0 && of.privileges & PRIV_LOCAL_WRITE == 0 {
                return error(PRIVILEGES_VIOLATION, PRIVILEGES_WRITE);
            }
            let (length, at) = (u64::from(triplet.segment_length), triplet.virtual_address);
            let inside = at
                .checked_sub(of.address)
                .is_some_and(|offset| offset <= of.length && length <= of.length - offset);
            if !inside {
                return bad_argument(3);
            }
            let (region, _, key) = self.register(ia, at, length, privileges)?;
            self.unbind(rmr);
            find!(self.lmrs, lmr, HANDLE_LMR).uses += 1;
            let found = find!(self.rmrs, rmr, HANDLE_RMR);
            (found.lmr, found.region) = (lmr, Some(region));
            found.bound = Some((triplet, privileges, key));
            context = key;
        }
        if flags & COMPLETION_SUPPRESS == 0 {
            let tell = flags & COMPLETION_UNSIGNALLED == 0;
            self.push(evd, DatEvent::bind(rmr, cookie, DTO_SUCCESS), tell);
        }
        Ok(context)
    }

    // ---- shared receive queues

    pub(crate) fn srq_create(
        &mut self,
        ia: Handle,
        pz: Handle,
        attr: &DatSrqAttr,
    ) -> DatResult<Handle> {
        let found = self.has_ia(ia)?;
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
        self.use_pz(ia, pz)?;
        let srq = self.handles.open(HandleKind::Srq, provider);
        self.srqs.insert(
            srq,
            DatSrq {
                ia,
                pz,
                max_iov: attr.max_recv_iov as usize,
                low_watermark: attr.low_watermark as usize,
                armed: attr.low_watermark > 0,
                ops,
                held,
                receives,
                uses: 0,
            },
        );
        Ok(srq)
    }

    pub(crate) fn srq_free(&mut self, srq: Handle) -> DatResult {
        let found = find!(self.srqs, srq, HANDLE_SRQ);
        if found.uses > 0 {
            return error(INVALID_STATE, STATE_SRQ_IN_USE);
        }
        let pz = found.pz;
        self.srqs.remove(&srq);
        self.leave_pz(pz);
        self.handles.close(srq);
        Ok(())
    }

    pub(crate) fn srq_resize(&mut self, srq: Handle, size: i32) -> DatResult {
        let found = find!(self.srqs, srq, HANDLE_SRQ);
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

    pub(crate) fn srq_set_lw(&mut self, srq: Handle, mark: i32) -> DatResult {
        let found = find!(self.srqs, srq, HANDLE_SRQ);
        if mark < 0 || mark as usize > found.ops.limit() {
            return bad_argument(2);
        }
        found.low_watermark = mark as usize;
        found.armed = mark > 0;
        self.look_at_mark(srq);
        Ok(())
    }

    /// Reports once a number of buffers below the low-water mark.
    fn look_at_mark(&mut self, srq: Handle) {
        let Some(found) = self.srqs.get_mut(&srq) else { return };
        if found.armed && found.ops.used() < found.low_watermark {
            found.armed = false;
            let ia = found.ia;
            let number = ASYNC_PROVIDER_INTERNAL_ERROR;
            self.push_async(ia, DatEvent::asynchronous(number, srq, SRQ_LOW_WATERMARK));
        }
    }

    pub(crate) fn srq_post(&mut self, srq: Handle, iov: &[Triplet], cookie: u64) -> DatResult {
        let found = find!(self.srqs, srq, HANDLE_SRQ);
        if iov.len() > found.max_iov {
            return bad_argument(2);
        }
        let of = (found.ia, found.pz);
        let (pieces, length) = self.pieces(of, iov, PRIV_LOCAL_WRITE)?;
        let op = PostedOp {
            cookie,
            kind: DTO_RECEIVE,
            flags: 0,
            length,
            pieces,
            remote: (0, 0),
            passed_on: false,
        };
        let found = find!(self.srqs, srq, HANDLE_SRQ);
        let Some(number) = found.ops.add(op) else { return exhausted(RESOURCE_SRQ) };
        found.held.push_back(number);
        found.pass_on();
        Ok(())
    }

    // ---- endpoints

    fn use_evd(&mut self, evd: Handle, flag: u32, subtype: u32) -> DatResult {
        if evd == 0 {
            return Ok(());
        }
        let found = find!(self.evds, evd, subtype);
        if found.flags & flag == 0 {
            return error(INVALID_HANDLE, subtype);
        }
        found.uses += 1;
        Ok(())
    }

    fn leave_evd(&mut self, evd: Handle) {
        if let Some(evd) = self.evds.get_mut(&evd) {
            evd.uses = evd.uses.saturating_sub(1);
        }
    }

    /// Returns the attributes of an endpoint created without any.
    pub(crate) fn default_attr(&self, ia: Handle) -> DatEpAttr {
        let segments = self.ias.get(&ia).map_or(SEGMENTS, |ia| ia.limits.segments) as i32;
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

    pub(crate) fn check_attr(&self, ia: Handle, attr: &DatEpAttr, argument: u32) -> DatResult {
        let limits = match self.ias.get(&ia) {
            Some(ia) => ia.limits,
            None => return error(INVALID_HANDLE, HANDLE_IA),
        };
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
            self.check_attr(ia, attr, if srq.is_some() { 7 } else { 6 })?;
        }
        if let Some(srq) = srq {
            let found = find!(self.srqs, srq, HANDLE_SRQ);
            if found.ia != ia {
                return error(INVALID_HANDLE, HANDLE_SRQ);
            }
            if found.pz != pz && self.pzs.contains_key(&pz) {
                return error(INVALID_STATE, 0);
            }
        }
        let attr = attr.copied().unwrap_or_else(|| DatEpAttr {
            // dat_srq_post_recv(3DAT): the default of endpoints with a shared queue
            recv_completion_flags: if srq.is_some() { COMPLETION_UNSIGNALLED } else { 0 },
            ..self.default_attr(ia)
        });
        self.use_pz(ia, pz)?;
        let evds = [
            (recv_evd, EVD_DTO, HANDLE_EVD_RECV),
            (request_evd, EVD_DTO, HANDLE_EVD_REQUEST),
            (connect_evd, EVD_CONNECTION, HANDLE_EVD_CONN),
        ];
        for (done, (evd, flag, subtype)) in evds.into_iter().enumerate() {
            if let Err(error) = self.use_evd(evd, flag, subtype) {
                self.leave_pz(pz);
                for (evd, ..) in &evds[..done] {
                    self.leave_evd(*evd);
                }
                return Err(error);
            }
        }
        if let Some(srq) = srq {
            find!(self.srqs, srq, HANDLE_SRQ).uses += 1;
        }
        let evds = [recv_evd, request_evd, connect_evd];
        Ok(self.ep_insert((provider, ia), pz, evds, srq, attr, local))
    }

    /// Adds an endpoint with objects counting it already; each of them is optional.
    fn ep_insert(
        &mut self,
        (provider, ia): (usize, Handle),
        pz: Handle,
        [recv_evd, request_evd, connect_evd]: [Handle; 3],
        srq: Option<Handle>,
        attr: DatEpAttr,
        local: SocketAddress,
    ) -> Handle {
        let ep = self.handles.open(HandleKind::Ep, provider);
        let counts = [attr.max_request_dtos, attr.max_recv_dtos].map(|n| n.max(1) as usize);
        self.eps.insert(
            ep,
            DatEp {
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
            },
        );
        ep
    }

    /// Opens the endpoint of libfabric's behind one.
    fn realize(&mut self, ep: Handle, request: Option<&FabricInfo>) -> DatResult {
        let found = find!(self.eps, ep, HANDLE_EP);
        let ia = find!(self.ias, found.ia, HANDLE_IA);
        let shared = self.srqs.get(&found.srq).map(|srq| Arc::clone(&srq.receives));
        let receives = self.srqs.get(&found.srq).map_or(found.receives.limit(), |s| s.ops.limit());
        let sizes = (found.requests.limit(), receives);
        let info = request.unwrap_or(&ia.info);
        let fabric = FabricEndpoint::open(&ia.domain, info, ep, sizes, shared.as_ref())
            .map_err(|code| of_code(code, RESOURCE_TEP))?;
        found.fabric = Some(fabric);
        found.pass_on_receives();
        for (evd, receives) in [(found.recv_evd, true), (found.request_evd, false)] {
            if let Some(evd) = self.evds.get_mut(&evd) {
                evd.feeders.push((ep, receives));
            }
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
        let found = find!(self.eps, ep, HANDLE_EP);
        let ia = find!(self.ias, found.ia, HANDLE_IA);
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
        let found = find!(self.eps, ep, HANDLE_EP);
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
        let Some(found) = self.eps.get_mut(&ep) else { return };
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
            if let Some(evd) = self.evds.get_mut(&evd) {
                evd.feeders.retain(|(of, _)| *of != ep);
            }
        }
        self.flush(ep, tell);
    }

    /// Ends all remaining operations of an endpoint.
    fn flush(&mut self, ep: Handle, tell: bool) {
        for receives in [true, false] {
            loop {
                let Some(found) = self.eps.get_mut(&ep) else { return };
                let (ops, evd) = if receives {
                    (&mut found.receives, found.recv_evd)
                } else {
                    (&mut found.requests, found.request_evd)
                };
                let Some(op) = ops.take_oldest() else { break };
                if tell {
                    let event = DatEvent::transfer(ep, op.cookie, DTO_FLUSHED, 0, op.kind);
                    self.put(evd, event, true);
                }
            }
        }
        if let Some(found) = self.eps.get_mut(&ep) {
            found.held_requests.clear();
            found.held_receives.clear();
            found.reads = 0;
        }
    }

    /// A connection is over, or did not come about.
    fn end_connection(&mut self, ep: Handle, number: u32, data: &[u8]) {
        let Some(found) = self.eps.get_mut(&ep) else { return };
        let was = found.state;
        found.state = EpState::Disconnected;
        found.deadline = None;
        self.close_fabric(ep, true);
        self.tell_connection(ep, number, data);
        let Some(found) = self.eps.get(&ep) else { return };
        let (ia, shared) = (found.ia, found.srq != 0);
        if shared && matches!(was, EpState::Connected | EpState::DisconnectPending) {
            // it takes no more buffers: only now may they be counted
            self.push_async(ia, DatEvent::asynchronous(ASYNC_EP_BROKEN, ep, 0));
        }
        if let Some(ia) = self.ias.get_mut(&ia) {
            ia.waiting.retain(|&h| h != ep);
        }
    }

    fn tell_connection(&mut self, ep: Handle, number: u32, data: &[u8]) {
        let Some(found) = self.eps.get_mut(&ep) else { return };
        found.data = data.into();
        let event = DatEvent::connection(number, ep, data.len(), found.data.as_ptr().addr());
        let evd = found.connect_evd;
        self.push(evd, event, true);
    }

    pub(crate) fn ep_disconnect(&mut self, ep: Handle, flags: u32) -> DatResult {
        let found = find!(self.eps, ep, HANDLE_EP);
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

    fn hang_up(&mut self, ep: Handle) {
        self.drain(ep, true, true);
        self.drain(ep, false, true);
        if let Some(fabric) = self.eps.get(&ep).and_then(|ep| ep.fabric.as_ref()) {
            fabric.shutdown();
        }
        self.end_connection(ep, DISCONNECTED, &[]);
    }

    pub(crate) fn ep_free(&mut self, ep: Handle) -> DatResult {
        find!(self.eps, ep, HANDLE_EP);
        self.close_fabric(ep, false);
        let Some(found) = self.eps.remove(&ep) else { return error(INVALID_HANDLE, HANDLE_EP) };
        self.leave_pz(found.pz);
        for evd in [found.recv_evd, found.request_evd, found.connect_evd] {
            self.leave_evd(evd);
        }
        if let Some(srq) = self.srqs.get_mut(&found.srq) {
            srq.uses = srq.uses.saturating_sub(1);
        }
        if let Some(ia) = self.ias.get_mut(&found.ia) {
            ia.waiting.retain(|&h| h != ep);
        }
        self.handles.close(ep);
        Ok(())
    }

    pub(crate) fn ep_reset(&mut self, ep: Handle) -> DatResult {
        let found = find!(self.eps, ep, HANDLE_EP);
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
        let found = find!(self.eps, ep, HANDLE_EP);
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
        self.check_attr(ia, &attr, 3)?;
        // all that can be refused, before anything changes
        let sizes = [attr.max_recv_dtos, attr.max_request_dtos].map(|n| n.max(1) as usize);
        if mask & RECV_DTOS != 0 && sizes[0] < used.0
            || mask & REQUEST_DTOS != 0 && sizes[1] < used.1
        {
            return error(INVALID_STATE, 0);
        }
        let moves = mask & PZ != 0 && param.pz_handle != old_pz;
        if moves {
            if find!(self.pzs, param.pz_handle, HANDLE_PZ).ia != ia {
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
            if mask & EVDS[k] != 0 && evd != 0 && find!(self.evds, evd, subtype).flags & flag == 0 {
                return error(INVALID_HANDLE, subtype);
            }
        }
        let found = find!(self.eps, ep, HANDLE_EP);
        if mask & RECV_DTOS != 0 && found.receives.resize(sizes[0]).is_none()
            || mask & REQUEST_DTOS != 0 && found.requests.resize(sizes[1]).is_none()
        {
            return exhausted(RESOURCE_MEMORY);
        }
        if moves {
            self.use_pz(ia, param.pz_handle)?;
            self.leave_pz(old_pz);
            find!(self.eps, ep, HANDLE_EP).pz = param.pz_handle;
        }
        for (k, (evd, flag, subtype)) in evds.into_iter().enumerate() {
            if mask & EVDS[k] != 0 {
                self.use_evd(evd, flag, subtype)?;
                let found = find!(self.eps, ep, HANDLE_EP);
                let slot = match k {
                    0 => &mut found.recv_evd,
                    1 => &mut found.request_evd,
                    _ => &mut found.connect_evd,
                };
                let before = std::mem::replace(slot, evd);
                self.leave_evd(before);
            }
        }
        let found = find!(self.eps, ep, HANDLE_EP);
        found.attr = attr;
        Ok(())
    }

    // ---- data transfers

    pub(crate) fn ep_post_recv(
        &mut self,
        ep: Handle,
        iov: &[Triplet],
        cookie: u64,
        flags: u32,
    ) -> DatResult {
        let found = find!(self.eps, ep, HANDLE_EP);
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
        let (pieces, length) = self.pieces(of, iov, PRIV_LOCAL_WRITE)?;
        let op = PostedOp {
            cookie,
            kind: DTO_RECEIVE,
            flags: flags & COMPLETION_UNSIGNALLED,
            length,
            pieces,
            remote: (0, 0),
            passed_on: false,
        };
        let found = find!(self.eps, ep, HANDLE_EP);
        let Some(number) = found.receives.add(op) else { return exhausted(RESOURCE_MEMORY) };
        if found.state == EpState::Disconnected {
            self.flush(ep, true);
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
        if self.eps.get(&ep).is_some_and(|ep| ep.requests.used() >= ep.requests.limit()) {
            // with suppressed successes the application need not poll
            self.drain(ep, false, false);
        }
        let found = find!(self.eps, ep, HANDLE_EP);
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
        let (mut pieces, mut length) = self.pieces(of, iov, privilege)?;
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
        let found = find!(self.eps, ep, HANDLE_EP);
        let Some(number) = found.requests.add(op) else { return exhausted(RESOURCE_MEMORY) };
        if found.state == EpState::Disconnected {
            self.flush(ep, true);
            return Ok(());
        }
        found.held_requests.push_back(number);
        self.pass_on_requests(ep);
        Ok(())
    }

    fn pass_on_requests(&mut self, ep: Handle) {
        let Some(found) = self.eps.get_mut(&ep) else { return };
        let Some((number, code)) = found.pass_on_request() else { return };
        // refused for good: it fails as any other does, and the next one's turn has come
        let failed = FabricCompletion { context: number, length: 0, code };
        self.complete(ep, false, failed);
        self.pass_on_requests(ep);
    }

    /// Moves completions of an endpoint's queue to its dispatcher, while this has space.
    fn drain(&mut self, ep: Handle, receives: bool, all: bool) {
        loop {
            let Some(found) = self.eps.get(&ep) else { return };
            let Some(fabric) = &found.fabric else { return };
            let evd = if receives { found.recv_evd } else { found.request_evd };
            let full = self.evds.get(&evd).is_some_and(|evd| evd.queue.len() >= evd.qlen);
            if full && !all {
                return;
            }
            let queue = if receives { &fabric.receives } else { &fabric.requests };
            let Some(completion) = queue.read() else { break };
            self.complete(ep, receives, completion);
        }
        if let Some(found) = self.eps.get_mut(&ep) {
            if receives {
                found.pass_on_receives();
                if !found.held_requests.is_empty() {
                    // an application waiting for a response does not poll the completions of
                    // requests
                    self.drain(ep, false, false);
                }
            } else if !found.held_requests.is_empty() {
                self.pass_on_requests(ep);
            }
        }
    }

    /// Reports a finished operation.
    fn complete(&mut self, ep: Handle, receives: bool, completion: FabricCompletion) {
        let Some(found) = self.eps.get_mut(&ep) else { return };
        let (evd, srq) = (found.recv_evd, found.srq);
        let (op, evd) = if !receives {
            let op = found.requests.take(completion.context);
            if op.is_some_and(|op| op.kind == DTO_RDMA_READ && op.passed_on) {
                found.reads = found.reads.saturating_sub(1);
            }
            (op, found.request_evd)
        } else if srq == 0 {
            (found.receives.take(completion.context), evd)
        } else {
            let Some(srq) = self.srqs.get_mut(&srq) else { return };
            let op = srq.ops.take(completion.context);
            srq.pass_on();
            (op, evd)
        };
        let Some(op) = op else { return };
        let status = match completion.code {
            0 => DTO_SUCCESS,
            libc::ECANCELED => DTO_FLUSHED,
            ofi::abi::FI_ETRUNC | libc::EMSGSIZE => DTO_LOCAL_LENGTH,
            libc::EACCES
            | libc::EPERM
            | libc::EFAULT
            | ofi::abi::FI_EKEYREJECTED
            | libc::EREMOTEIO => DTO_REMOTE_ACCESS,
            // an operation passed on was valid locally: the target does not know the region
            libc::EINVAL if op.passed_on && op.remote != (0, 0) => DTO_REMOTE_ACCESS,
            libc::EINVAL => DTO_LOCAL_PROTECTION,
            _ if receives => DTO_FLUSHED,
            libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ENOTCONN
            | libc::EPIPE
            | libc::ESHUTDOWN => DTO_FLUSHED,
            _ => DTO_TRANSPORT,
        };
        self.doubt(ep, status);
        let length = if op.kind == DTO_RECEIVE { completion.length as u32 } else { op.length };
        let silent = op.flags & COMPLETION_SUPPRESS != 0 && status == DTO_SUCCESS;
        if !silent {
            let event = DatEvent::transfer(ep, op.cookie, status, length, op.kind);
            let tell = op.flags & COMPLETION_UNSIGNALLED == 0 || status != DTO_SUCCESS;
            self.put(evd, event, tell);
        }
        if receives && srq != 0 {
            self.look_at_mark(srq);
        }
    }

    /// Notes a possible end of the connection after a failed transfer: a device ends it with the
    /// first one, and the peer's kernel does not know of it. An event with more information has
    /// priority.
    fn doubt(&mut self, ep: Handle, status: u32) {
        let Some(found) = self.eps.get_mut(&ep) else { return };
        let Some(ia) = self.ias.get_mut(&found.ia) else { return };
        let over = status == DTO_FLUSHED || status != DTO_SUCCESS && ia.is_device;
        if over && found.state == EpState::Connected && found.deadline.is_none() {
            found.deadline = Some(Instant::now() + DOUBT);
            ia.waiting.push(ep);
        }
    }

    // ---- service points and requests

    /// Creates a service point at a port, 0 for any; for one endpoint or for all requests, with or
    /// without an endpoint for each.
    pub(crate) fn sp_create(
        &mut self,
        ia: Handle,
        conn_qual: u64,
        evd: Handle,
        reserved: Option<Handle>,
        makes_endpoints: bool,
    ) -> DatResult<(Handle, u64)> {
        self.has_ia(ia)?;
        let Ok(port) = u16::try_from(conn_qual) else { return bad_argument(2) };
        let found = find!(self.evds, evd, HANDLE_EVD_CR);
        if found.flags & EVD_CR == 0 {
            return error(INVALID_HANDLE, HANDLE_EVD_CR);
        }
        if let Some(ep) = reserved {
            let found = find!(self.eps, ep, HANDLE_EP);
            if found.state != EpState::Unconnected {
                return bad_state(found.state);
            }
        }
        let found = find!(self.ias, ia, HANDLE_IA);
        let kind = if reserved.is_some() { HandleKind::Rsp } else { HandleKind::Psp };
        let sp = self.handles.open(kind, found.provider);
        let listener = match FabricListener::open(&found.domain, &found.info, port, sp) {
            Ok(listener) => listener,
            Err(code) => {
                self.handles.close(sp);
                return Err(match code {
                    libc::EADDRINUSE if port == 0 => DatError(CONN_QUAL_UNAVAILABLE),
                    libc::EADDRINUSE | libc::EACCES => DatError(CONN_QUAL_IN_USE),
                    _ => of_code(code, RESOURCE_DEVICE),
                });
            }
        };
        let conn_qual = if port == 0 { listener.port().into() } else { conn_qual };
        if let Some(ep) = reserved {
            find!(self.eps, ep, HANDLE_EP).state = EpState::Reserved;
        }
        find!(self.evds, evd, HANDLE_EVD_CR).uses += 1;
        self.sps.insert(sp, DatSp { ia, evd, conn_qual, reserved, makes_endpoints, listener });
        Ok((sp, conn_qual))
    }

    pub(crate) fn sp_free(&mut self, sp: Handle, reserved: bool) -> DatResult {
        let subtype = if reserved { HANDLE_RSP } else { HANDLE_PSP };
        if find!(self.sps, sp, subtype).reserved.is_some() != reserved {
            return error(INVALID_HANDLE, subtype);
        }
        let Some(found) = self.sps.remove(&sp) else { return error(INVALID_HANDLE, subtype) };
        if let Some(ep) = found.reserved.and_then(|ep| self.eps.get_mut(&ep))
            && ep.state == EpState::Reserved
        {
            ep.state = EpState::Unconnected;
        }
        self.leave_evd(found.evd);
        self.handles.close(sp);
        Ok(())
    }

    /// Handles a connection request to a service point.
    fn request(&mut self, ia: Handle, sp: Handle, info: FabricInfo, data: &[u8]) {
        let Some(found) = self.sps.get(&sp) else {
            // the point was freed, and listens only until its requests are answered
            if let Some(cr) = self.crs.values().find(|cr| cr.sp == sp) {
                cr.listener.reject(&info, &[]);
            }
            return;
        };
        let listener = Arc::clone(&found.listener);
        let Some(data) = unmarked(data) else { return listener.reject(&info, &[]) };
        let (evd, conn_qual, reserved) = (found.evd, found.conn_qual, found.reserved);
        let made = found.makes_endpoints;
        let Some(adaptor) = self.ias.get(&ia) else { return };
        let (provider, own) = (adaptor.provider, *adaptor.address);
        let local = std::ptr::from_ref(&*adaptor.address).addr();
        if self.evds.get(&evd).is_none_or(|evd| evd.queue.len() >= evd.qlen) {
            listener.reject(&info, &[]);
            let overflow = DatEvent::asynchronous(ASYNC_EVD_OVERFLOW, evd, 0);
            return self.push_async(ia, overflow);
        }
        if let Some(ep) = reserved {
            // the point is gone with its one request
            let _ = self.sp_free(sp, true);
            if let Some(ep) = self.eps.get_mut(&ep) {
                ep.state = EpState::PassivePending;
            }
        }
        let cr = self.handles.open(HandleKind::Cr, provider);
        let peer = Box::new(info.address(true));
        let ep = if made {
            // without a zone and dispatchers: the application gives it some before it accepts
            let attr = self.default_attr(ia);
            let ep = self.ep_insert((provider, ia), 0, [0; 3], None, attr, own);
            if let Some(ep) = self.eps.get_mut(&ep) {
                ep.state = EpState::PassivePending;
            }
            ep
        } else {
            reserved.unwrap_or(0)
        };
        self.crs.insert(cr, DatCr { ia, peer, data: data.into(), ep, made, sp, listener, info });
        let named = if reserved.is_some() { 0 } else { sp };
        self.put(evd, DatEvent::request(named, local, conn_qual, cr, false), true);
    }

    pub(crate) fn cr_accept(&mut self, cr: Handle, ep: Handle, data: &[u8]) -> DatResult {
        let request = find!(self.crs, cr, HANDLE_CR);
        let ep = match (request.ep, ep) {
            (0, ep) => ep,
            (own, 0) => own,
            (own, ep) if own == ep => ep,
            _ => return error(INVALID_HANDLE, HANDLE_EP),
        };
        let own = request.ep != 0;
        let found = find!(self.eps, ep, HANDLE_EP);
        let wanted = if own { EpState::PassivePending } else { EpState::Unconnected };
        if found.ia != request.ia {
            return error(INVALID_HANDLE, HANDLE_EP);
        }
        if found.state != wanted {
            return bad_state(found.state);
        }
        if found.connect_evd == 0 {
            return error(INVALID_STATE, STATE_EP_NOTREADY);
        }
        if data.len() > find!(self.ias, request.ia, HANDLE_IA).private_max {
            return bad_argument(3);
        }
        let Some(request) = self.crs.remove(&cr) else { return error(INVALID_HANDLE, HANDLE_CR) };
        self.handles.close(cr);
        if let Err(error) = self.realize(ep, Some(&request.info)) {
            request.listener.reject(&request.info, &[]);
            if error != DatError(INTERNAL_ERROR) {
                find!(self.eps, ep, HANDLE_EP).state = EpState::Unconnected;
                return Err(error);
            }
            // for a disconnected peer a device creates no endpoint: this is an event as well
            find!(self.eps, ep, HANDLE_EP).state = EpState::CompletionPending;
            self.end_connection(ep, ACCEPT_COMPLETION_ERROR, &[]);
            return Ok(());
        }
        let found = find!(self.eps, ep, HANDLE_EP);
        *found.peer = *request.peer;
        let answer = match &found.fabric {
            Some(fabric) => fabric.accept(&marked(data)),
            None => Err(libc::EINVAL),
        };
        // the peer may have gone: that is an event, as it would be a moment later
        found.state = EpState::CompletionPending;
        if answer.is_err() {
            self.end_connection(ep, ACCEPT_COMPLETION_ERROR, &[]);
        }
        Ok(())
    }

    pub(crate) fn cr_reject(&mut self, cr: Handle, data: &[u8]) -> DatResult {
        let request = find!(self.crs, cr, HANDLE_CR);
        if data.len() > find!(self.ias, request.ia, HANDLE_IA).private_max {
            return bad_argument(2);
        }
        request.listener.reject(&request.info, &marked(data));
        let (ep, made) = (request.ep, request.made);
        self.crs.remove(&cr);
        self.handles.close(cr);
        if made {
            let _ = self.ep_free(ep);
        } else if let Some(ep) = self.eps.get_mut(&ep) {
            ep.state = EpState::Unconnected;
        }
        Ok(())
    }

    // ---- progress

    /// Polls all sources of a dispatcher.
    pub(crate) fn progress(&mut self, evd: Handle) {
        let Some(found) = self.evds.get_mut(&evd) else { return };
        let (ia, connections) = (found.ia, found.flags & (EVD_CONNECTION | EVD_ASYNC) != 0);
        let feeders = std::mem::take(&mut found.feeders);
        for &(ep, receives) in &feeders {
            self.drain(ep, receives, false);
        }
        if let Some(found) = self.evds.get_mut(&evd) {
            let added = std::mem::replace(&mut found.feeders, feeders);
            found.feeders.extend(added);
        }
        self.looks = self.looks.wrapping_add(1);
        if connections && self.looks.is_multiple_of(64) {
            // some providers notice the end of a connection only where its transfers are looked for
            let of = |ep: &DatEp| ep.ia == ia && ep.state == EpState::Connected;
            let eps: Vec<Handle> =
                self.eps.iter().filter(|(_, ep)| of(ep)).map(|(&h, _)| h).collect();
            for ep in eps {
                self.drain(ep, true, false);
            }
        }
        self.events(ia);
    }

    /// Polls all sources of every dispatcher of the adaptor of this dispatcher or notification
    /// object.
    pub(crate) fn poll_once_inner(&mut self, waited: Handle) {
        let ia = self.evds.get(&waited).map(|evd| evd.ia);
        let Some(ia) = ia.or_else(|| self.cnos.get(&waited).map(|cno| cno.ia)) else { return };
        let eps: Vec<Handle> =
            self.eps.iter().filter(|(_, ep)| ep.ia == ia).map(|(&h, _)| h).collect();
        for ep in eps {
            self.drain(ep, true, false);
            self.drain(ep, false, false);
        }
        self.events(ia);
    }

    /// Processes the events of an adaptor's connections, and connections in progress.
    pub(crate) fn events(&mut self, ia: Handle) {
        for _ in 0..64 {
            let Some(found) = self.ias.get(&ia) else { return };
            let Some(event) = found.domain.event() else { break };
            match event {
                FabricEvent::Request(sp, info, data) => self.request(ia, sp, info, &data),
                FabricEvent::Connected(ep, data) => {
                    let Some(found) = self.eps.get_mut(&ep) else { continue };
                    if !matches!(found.state, EpState::ActivePending | EpState::CompletionPending) {
                        continue;
                    }
                    found.state = EpState::Connected;
                    found.deadline = None;
                    if let Some(fabric) = &found.fabric {
                        *found.local = fabric.address(false);
                    }
                    if let Some(ia) = self.ias.get_mut(&ia) {
                        ia.waiting.retain(|&h| h != ep);
                    }
                    let data = unmarked(&data).unwrap_or(&[]);
                    self.tell_connection(ep, ESTABLISHED, data);
                }
                FabricEvent::Shutdown(ep) => {
                    let Some(found) = self.eps.get(&ep) else { continue };
                    let number = match found.state {
                        EpState::Connected | EpState::DisconnectPending => DISCONNECTED,
                        EpState::CompletionPending => ACCEPT_COMPLETION_ERROR,
                        EpState::ActivePending => NON_PEER_REJECTED,
                        _ => continue,
                    };
                    self.end_connection(ep, number, &[]);
                }
                FabricEvent::Failed(ep, code, data) => {
                    let Some(found) = self.eps.get(&ep) else { continue };
                    let ours = unmarked(&data);
                    let number = match (found.state, code) {
                        (EpState::ActivePending, libc::ECONNREFUSED) if ours.is_some() => {
                            PEER_REJECTED
                        }
                        (EpState::ActivePending, libc::ECONNREFUSED) => NON_PEER_REJECTED,
                        (EpState::ActivePending, libc::ETIMEDOUT) => TIMED_OUT,
                        (EpState::ActivePending, _) => UNREACHABLE,
                        (EpState::CompletionPending, _) => ACCEPT_COMPLETION_ERROR,
                        (EpState::Connected | EpState::DisconnectPending, _) => BROKEN,
                        _ => continue,
                    };
                    let data = ours.unwrap_or(&[]).to_vec();
                    self.end_connection(ep, number, &data);
                }
            }
        }
        self.look_at_waiting(ia);
    }

    fn look_at_waiting(&mut self, ia: Handle) {
        let Some(found) = self.ias.get(&ia) else { return };
        if found.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        for ep in found.waiting.clone() {
            self.drain(ep, false, false);
            let Some(found) = self.eps.get(&ep) else { continue };
            match found.state {
                EpState::ActivePending if found.deadline.is_some_and(|at| at <= now) => {
                    self.end_connection(ep, TIMED_OUT, &[]);
                }
                EpState::Connected if found.deadline.is_some_and(|at| at <= now) => {
                    if let Some(fabric) = &found.fabric {
                        fabric.shutdown();
                    }
                    self.end_connection(ep, BROKEN, &[]);
                }
                EpState::DisconnectPending if found.requests.used() == 0 => self.hang_up(ep),
                _ => {}
            }
        }
    }
}

impl DatSrq {
    /// Posts waiting operations to the provider, up to its capacity.
    fn pass_on(&mut self) {
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

impl DatEp {
    fn pass_on_receives(&mut self) {
        let Some(fabric) = &self.fabric else { return };
        while let Some(&number) = self.held_receives.front() {
            if let Some(op) = self.receives.get(number)
                && fabric.receive(&op.pieces, number).is_err()
            {
                return;
            }
            self.held_receives.pop_front();
        }
    }

    /// Posts waiting requests to the provider in order, up to the first one that has to wait.
    /// Returns the first request rejected permanently.
    fn pass_on_request(&mut self) -> Option<(usize, i32)> {
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
}

#[cfg(test)]
mod tests;
