//! State of a domain's engine.
use super::ep::VerbsEndpoint;
use super::queue::{DeviceQueue, SrxUsers};
use super::request::PendingConnReq;
use crate::config::config;
use crate::device::{has_atomics, mtu};
use crate::memory::VerbsMemory;
use crate::sys::{Channel, CompChannel, Pd, VerbsDevice, WorkDone, bunch};
use core::ffi::c_int;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::Result;
use ofi_provider::lock::{Guard, Lock};
use ofi_provider::progress::Activity;
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Epoll, Interest};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Vendor number of siw, the iWARP device in software. It lacks the message of the connecting side
/// confirming the acceptance (RFC 6581).
const SIW: u32 = 0x62_6d74;

/// Endpoints of a domain and their shared state.
pub(crate) struct VerbsEngine {
    pub(crate) device: VerbsDevice,
    pub(crate) pd: Arc<Pd>,
    pub(super) memory: Arc<VerbsMemory>,
    pub(crate) channel: Arc<Channel>,
    pub(super) comp: Arc<CompChannel>,
    pub(super) epoll: Epoll,
    pub(super) state: Lock<VerbsState>,
    /// Number of calls with progress.
    pub(super) activity: Activity,
    /// A thread may be asleep until the device reports a completion.
    pub(super) armed: AtomicBool,
    pub(super) max_msg_size: usize,
    pub(super) max_datagram: usize,
    pub(super) max_cqe: usize,
    /// The most segments of one read.
    pub(super) read_segments: usize,
    /// The device has atomic operations.
    pub(super) atomics: bool,
    /// The device is siw: the accepting side lets the other send first ([`QpState::Settling`](super::ep::QpState::Settling)),
    /// and sending a connection request blocks the thread ([`call`](super::call)).
    pub(super) settles: bool,
}

impl std::fmt::Debug for VerbsEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsEngine({:?})", self.device.name())
    }
}

/// State guarded by the engine's lock. Fields are dropped in this order: endpoints before the
/// completion queues used by their queue pairs.
pub(crate) struct VerbsState {
    pub(super) eps: Slab<VerbsEndpoint>,
    pub(super) queues: Vec<DeviceQueue>,
    /// Endpoints using receives of a shared context, by the numbers of their queue pairs.
    pub(super) srx_users: SrxUsers,
    /// Endpoints holding back requests until the next one (FI_MORE).
    pub(super) waiting: Vec<u32>,
    /// Connection requests to be sent: the route to the peer is known.
    pub(super) calls: VecDeque<PendingConnReq>,
    /// Number of threads sending connection requests.
    pub(super) callers: usize,
    /// Buffer for the completions taken from a queue of the device at once.
    pub(super) bunch: Box<[WorkDone]>,
}

impl VerbsEngine {
    /// Creates the engine of a domain on this open device.
    pub(crate) fn new(
        device: VerbsDevice,
        pd: Arc<Pd>,
        memory: Arc<VerbsMemory>,
    ) -> Result<Arc<Self>> {
        let (channel, comp, epoll) = (Channel::new()?, CompChannel::new(device)?, Epoll::new()?);
        epoll.add(comp.fd(), 0, Interest::READ)?;
        device.unblock_events()?;
        let (attr, port) = (device.attr()?, device.port(1)?);
        let size = |n: c_int| usize::try_from(n).unwrap_or(0);
        let engine = Arc::new(Self {
            device,
            pd,
            memory,
            channel,
            comp,
            epoll,
            state: Lock::new(VerbsState {
                eps: Slab::default(),
                queues: Vec::new(),
                srx_users: SrxUsers::default(),
                waiting: Vec::new(),
                calls: VecDeque::new(),
                callers: 0,
                bunch: bunch(config().cqread_bunch_size),
            }),
            activity: Activity::default(),
            armed: AtomicBool::new(false),
            max_msg_size: port.max_msg_sz as usize,
            max_datagram: mtu(&port),
            max_cqe: size(attr.max_cqe),
            atomics: has_atomics(&attr),
            settles: device.is_iwarp() && attr.vendor_id == SIW,
            read_segments: size(attr.max_sge_rd).clamp(1, IOV_LIMIT),
        });
        let mut engines = engines();
        engines.retain(|known| known.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Returns true if the device has atomic operations.
    pub(crate) fn atomics(&self) -> bool {
        self.atomics
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, VerbsState> {
        self.state.lock()
    }
}

/// Returns the engines of this process. An event of a device arrives at one domain with the device
/// open, and concerns all of them.
pub(super) fn engines() -> MutexGuard<'static, Vec<Weak<VerbsEngine>>> {
    static ENGINES: Mutex<Vec<Weak<VerbsEngine>>> = Mutex::new(Vec::new());
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}
