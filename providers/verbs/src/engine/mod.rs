//! The engine of a domain: what its endpoints do with the device.
//!
//! One lock guards the state of all endpoints. What the application requests is noted
//! ([`request`]) and posted to the device ([`tx`], [`rx`]) with the segments of memory that
//! it is about ([`segments`]). The device's completion queues are emptied into those of the
//! application whenever that makes progress ([`cq`]).
//!
//! Endpoints ([`ep`]) get their queue pairs and lose them in [`open`]. A thread of the
//! domain takes in what its connections and its device report ([`events`]): connections
//! are made and ended in [`conn`], and connection requests that block are sent from
//! threads of their own ([`call`]).
mod call;
mod conn;
mod cq;
mod ep;
mod events;
mod open;
mod request;
#[allow(unsafe_code)]
mod rx;
mod segments;
#[allow(unsafe_code)]
mod tx;

pub(crate) use ep::VerbsEpLimits;
pub(crate) use events::{Connections, process_all_events};
pub(crate) use request::WorkSpec;

use crate::config::config;
use crate::device::{has_atomics, mtu};
use crate::memory::VerbsMemory;
use crate::sys::{Channel, CompChannel, Pd, VerbsDevice, WorkDone, bunch};
use call::PendingConnReq;
use core::ffi::c_int;
use cq::{DeviceQueue, SrxUsers};
use ep::VerbsEndpoint;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::Result;
use ofi_provider::lock::{Guard, Lock};
use ofi_provider::progress::Activity;
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Epoll, Interest};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The vendor number of siw, the iWARP device in software. It does not know the message by
/// which the side that connects says that it has read the acceptance (RFC 6581).
const SIW: u32 = 0x62_6d74;

/// A domain's endpoints and what they share.
pub(crate) struct VerbsEngine {
    pub(crate) device: VerbsDevice,
    pub(crate) pd: Arc<Pd>,
    memory: Arc<VerbsMemory>,
    pub(crate) channel: Arc<Channel>,
    comp: Arc<CompChannel>,
    epoll: Epoll,
    state: Lock<VerbsState>,
    /// How often a call made progress.
    activity: Activity,
    /// A thread may be asleep until the device reports a completion.
    armed: AtomicBool,
    max_msg_size: usize,
    max_datagram: usize,
    max_cqe: usize,
    /// The most segments of one read.
    read_segments: usize,
    /// The device has atomic operations.
    atomics: bool,
    /// The device is siw: the side that accepted a connection lets the other send first
    /// ([`ep::QpState::Settling`]), and a connection request blocks who sends it ([`call`]).
    settles: bool,
}

impl std::fmt::Debug for VerbsEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsEngine({:?})", self.device.name())
    }
}

/// What the engine's lock guards. Fields are dropped in this order: endpoints before the
/// completion queues that their queue pairs use.
pub(crate) struct VerbsState {
    eps: Slab<VerbsEndpoint>,
    queues: Vec<DeviceQueue>,
    /// The endpoints that take receives from a shared context, by the numbers of their
    /// queue pairs.
    srx_users: SrxUsers,
    /// Endpoints that hold requests back until the next one (FI_MORE).
    waiting: Vec<u32>,
    /// Connection requests that are to be sent: the way to the peer is known.
    calls: VecDeque<PendingConnReq>,
    /// How many threads send connection requests.
    callers: usize,
    /// Room for the completions that are taken from a queue of the device at once.
    bunch: Box<[WorkDone]>,
}

impl VerbsEngine {
    /// The engine of a domain that has opened this device.
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

    /// Whether the device has atomic operations.
    pub(crate) fn atomics(&self) -> bool {
        self.atomics
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, VerbsState> {
        self.state.lock()
    }
}

/// The engines of this process. An event of a device comes to one domain that has the
/// device open and concerns all of them.
fn engines() -> MutexGuard<'static, Vec<Weak<VerbsEngine>>> {
    static ENGINES: Mutex<Vec<Weak<VerbsEngine>>> = Mutex::new(Vec::new());
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}
