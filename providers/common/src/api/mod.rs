//! From Rust traits to C ops tables.
//!
//! A provider implements [`Fabric`], [`Domain`], [`Endpoint`] (with [`Msg`],
//! [`Tagged`], [`Rma`], [`Atomic`] and [`Cm`]) and [`PassiveEp`]. The tables in here are made from
//! such an implementation by monomorphisation: a call through one goes straight
//! to the provider's method, after the checks that every provider needs: null
//! pointers, flags, state, room in buffers. What an implementation does not
//! provide answers -FI_ENOSYS.
//!
//! Objects are counted: a fabric, domain, queue or vector that others use
//! answers -FI_EBUSY to fi_close. Closing twice is the caller's error and not
//! detected here: after fi_close the memory is gone.
mod atomic;
mod collective;
mod connreq;
mod domain;
mod ep;
mod fabric;
mod imported;
mod mc;
mod multicast;
mod opened;
mod pep;
mod refusing;
mod rma;
mod sep;
mod settings;
mod stx;
mod trigger;

pub use crate::attr::{ContextAttr, RxAttr, TxAttr};
pub(crate) use crate::lent::{bytes, copy_out};
pub use crate::mcast::GroupRole;
pub use crate::operation::{
    AtomicOp, PlainSend, ReadOp, RecvOp, RemoteSegment, RemoteSegments, SendOp, WriteOp,
};
pub use crate::reserved::{MULTICAST_ADDR, is_group};
pub use connreq::{ConnRequest, EndpointRequest, request_of_endpoint, take_request};
pub use domain::{DomainFid, NewDomain};
pub use ep::{Bindings, EpFid};
pub use fabric::{FabricFid, getinfo_entry, open_fabric};
pub use pep::{Announcer, NoPassiveEp, PepFid, Reject, passive_name};
pub use settings::{DomainSettings, domain_key, endpoint_key, local_addr, refuse_keys};

use crate::abi::fi_addr_t;
use crate::atomic::Operation;
use crate::cq::Context;
use crate::eq::{Eq, FidPtr};
use crate::error::{Error, Result};
use crate::imports::SrxOwner;
use crate::info::{InfoChain, InfoQuery, InfoRef};
use crate::lock::Level;
use crate::progress::Progress;
use crate::wait::WaitKind;
use core::ffi::{CStr, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// A provider's answer to fi_getinfo(3).
pub trait Getinfo {
    /// The infos for these hints; names and version are the core's to add.
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain>;
}

/// A provider's fabric: where domains and passive endpoints are opened
/// (fi_fabric(3)).
pub trait Fabric: Send + Sync + Sized + 'static {
    /// The provider's type of passive endpoints; [`NoPassiveEp`] if it has none.
    type PassiveEp: PassiveEp;

    /// Opens the fabric of this name.
    fn open(name: &CStr) -> Result<Self>;
    /// Opens a domain as `info` describes it: a [`Domain`], of which the provider may have several
    /// types.
    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain>;
    /// Opens a passive endpoint.
    fn passive_ep(&self, _info: InfoRef<'_>, _api_version: u32) -> Result<Self::PassiveEp> {
        Err(Error::NOSYS)
    }
}

/// A provider's domain (fi_domain(3)).
pub trait Domain: Send + Sync + Sized + 'static {
    /// The provider's type of endpoints.
    type Endpoint: Endpoint;

    /// The source of progress that drives everything opened on the domain.
    fn progress_source(&self) -> Arc<dyn Progress>;
    /// The settings the domain was opened with.
    fn settings(&self) -> &DomainSettings;
    /// An object was opened that the application can block on, so automatic
    /// progress needs a thread if the domain promised it. With
    /// [`WaitKind::MutexCond`] the application may sleep where no descriptor of the
    /// domain wakes it.
    fn blocking_opened(&self, kind: WaitKind) -> Result {
        match kind {
            WaitKind::MutexCond => self.need_thread(),
            _ => self.start_thread(),
        }
    }
    /// Starts the domain's progress thread, once, although progress may be manual
    /// ([`DomainSettings::need_thread`]).
    fn need_thread(&self) -> Result {
        let source = Arc::downgrade(&self.progress_source());
        self.settings().need_thread(&self.thread_name(), source)
    }
    /// Starts the domain's progress thread, once, if the domain promised automatic progress.
    fn start_thread(&self) -> Result {
        let source = Arc::downgrade(&self.progress_source());
        self.settings().start_thread(&self.thread_name(), source)
    }
    /// What the domain's progress thread is called.
    fn thread_name(&self) -> String;
    /// Whether this domain has the atomic operations that its endpoints may have.
    fn has_atomics(&self) -> bool {
        true
    }
    /// Opens an endpoint.
    fn endpoint(&self, info: InfoRef<'_>) -> Result<Self::Endpoint>;
    /// Opens a shared receive context: an endpoint of which only the receive
    /// calls, [`Endpoint::cancel`], the options and [`Endpoint::close`] are used,
    /// from now on. Endpoints that share it get it in [`Endpoint::enable`].
    fn srx_context(&self, _rx: RxAttr) -> Result<Self::Endpoint> {
        Err(Error::NOSYS)
    }
    /// Endpoints may be bound to a shared transmit context (fi_stx_context), of
    /// which only the application knows: each keeps its own queue.
    const SHARED_TX: bool = false;
    /// Endpoints may take their receives from another provider's queue
    /// ([`Endpoint::import`]).
    const IMPORTS: bool = false;
    /// Counters of the domain can count bytes (FI_CNTR_EVENTS_BYTES).
    const COUNTS_BYTES: bool = true;
    /// Opens a scalable endpoint: an address, of which only the name, the address
    /// vector, [`Endpoint::context`], [`Endpoint::enable`] and [`Endpoint::close`]
    /// are used.
    fn scalable_ep(&self, _info: InfoRef<'_>) -> Result<Self::Endpoint> {
        Err(Error::NOSYS)
    }
}

/// The address that fi_connect(3) calls: the one it was given, or that of the endpoint's info.
pub fn destination<A: Clone>(
    to: Option<&[u8]>,
    dest: Option<&A>,
    read: impl FnOnce(&[u8]) -> Result<A>,
) -> Result<A> {
    match to {
        Some(bytes) => read(bytes),
        None => dest.cloned().ok_or(Error::INVAL),
    }
}

/// What every endpoint does (fi_endpoint(3)).
pub trait Endpoint: Msg + Tagged + Rma + Atomic + Cm + Send + Sync + Sized + 'static {
    /// Whether the endpoint has buffered receives: [`Msg::recv`] and [`Tagged::trecv`] then take
    /// FI_CLAIM and FI_DISCARD with the context of a message that was reported
    /// ([`crate::buffered`]).
    const BUFFERS: bool = false;
    /// Whether writes and atomic operations with FI_DELIVERY_COMPLETE complete only when the
    /// peer has said that they are done.
    const ACKNOWLEDGES: bool = false;
    /// Tells the fid by which events name the endpoint: at opening, and when that fid is closed
    /// before an alias (fi_ep_alias).
    fn opened(&self, fid: FidPtr);
    /// Enables the endpoint with what was bound to it. With `srx`, receives come from that
    /// shared receive context. Errors: -FI_ENOCQ, -FI_ENOAV …
    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result;
    /// Counters, or an event queue, were bound after [`enable`](Self::enable), which got
    /// all the others: they count what completes from now on. -FI_EOPBADSTATE if it is too
    /// late for that.
    fn bound_late(&self, _bindings: &Bindings) -> Result {
        Err(Error::OPBADSTATE)
    }
    /// Opens a context of this scalable endpoint: an endpoint that only sends or only receives,
    /// at the scalable endpoint's address. -FI_EINVAL if there is none of this index, -FI_EBUSY
    /// if it is open.
    fn context(&self, _index: usize, _attr: &ContextAttr) -> Result<Self> {
        Err(Error::NOSYS)
    }
    /// Cancels a posted receive, which then completes with -FI_ECANCELED; it is no error if
    /// there is none. `aside`: the receive carries [`ASIDE`](crate::reserved::ASIDE) or does
    /// not.
    fn cancel(&self, context: Context, aside: bool) -> Result;
    /// Reads an option of level FI_OPT_ENDPOINT into `value`; returns its length in bytes.
    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize>;
    /// Sets an option of level FI_OPT_ENDPOINT.
    fn setopt(&self, name: c_int, value: &[u8]) -> Result;
    /// Whether operations with the flag [`ASIDE`](crate::reserved::ASIDE) keep it in their
    /// completion, which then goes to what the domain does later.
    const LATER: bool = false;
    /// Whether multicast groups are those of the network. Otherwise a message to a group is sent
    /// to each member, which takes [`LATER`](Self::LATER).
    const JOINS: bool = false;
    /// Joins a group of the network; returns its address for sends, one for which [`is_group`]
    /// is true.
    fn join(&self, _group: SocketAddr, _part: GroupRole) -> Result<fi_addr_t> {
        Err(Error::NOSYS)
    }
    /// Leaves a group of the network.
    fn leave(&self, _addr: fi_addr_t) {}
    /// Ends all connections and posted operations. No completion is written after this returns.
    fn close(&self);
    /// Has the endpoint, which is not enabled yet, take its receives from another provider's queue
    /// (fi_peer(3)).
    fn import(&self, _owner: SrxOwner) -> Result {
        Err(Error::NOSYS)
    }
    /// How many more sends (`tx`), or receives, would be taken now.
    fn size_left(&self, _tx: bool) -> Result<usize> {
        Err(Error::NOSYS)
    }
    /// The descriptor of the endpoint's connection, for the application to look at (FI_GET_FD).
    fn fd(&self) -> Result<RawFd> {
        Err(Error::NOSYS)
    }
    /// Other fi_control commands than the common ones.
    ///
    /// # Safety
    /// `arg` is what the command asks for.
    unsafe fn control(&self, _command: c_int, _arg: *mut c_void) -> Result {
        Err(Error::NOSYS)
    }
}

/// Messages (fi_msg(3)).
pub trait Msg {
    /// Whether there is [`send_at_once`](Self::send_at_once).
    const SENDS_AT_ONCE: bool = false;
    /// Sends a message, tagged or not, for another provider that reports it: true if the message is
    /// complete, and nothing is reported here. False if it is under way, and will be reported.
    fn send_at_once(&self, _op: SendOp, _tagged: bool, _all_is_read: bool) -> Result<bool> {
        Err(Error::NOSYS)
    }
    /// Sends a message; -FI_EAGAIN when there is no room, after progress.
    fn send(&self, _op: SendOp) -> Result {
        Err(Error::NOSYS)
    }
    /// Posts a receive.
    fn recv(&self, _op: RecvOp) -> Result {
        Err(Error::NOSYS)
    }
    /// The number of the level of the locks that a receive needs, for [`post_at_once`](Self::post_at_once).
    fn level(&self) -> usize {
        Level::SHARED
    }
    /// Posts a receive, tagged or not, if that takes no call and cannot panic, and `LEVEL` is the
    /// [`level`](Self::level). False in any other case, and then nothing has been done.
    #[inline(always)]
    fn post_at_once<const LEVEL: usize>(&self, _op: RecvOp, _tagged: bool) -> bool {
        false
    }
}

/// Tagged messages (fi_tagged(3)).
pub trait Tagged {
    /// Sends a message with `op.tag`.
    fn tsend(&self, _op: SendOp) -> Result {
        Err(Error::NOSYS)
    }
    /// Posts a receive; peeks, claims and discards by `op.flags`.
    fn trecv(&self, _op: RecvOp) -> Result {
        Err(Error::NOSYS)
    }
}

/// Remote memory access (fi_rma(3)).
pub trait Rma {
    /// Reads a peer's memory.
    fn read(&self, _op: ReadOp) -> Result {
        Err(Error::NOSYS)
    }
    /// Writes to a peer's memory.
    fn write(&self, _op: WriteOp) -> Result {
        Err(Error::NOSYS)
    }
}

/// Atomic operations (fi_atomic(3)).
pub trait Atomic {
    /// Whether endpoints of this type have atomic operations.
    const OFFERED: bool = false;
    /// Most bytes of elements that one such operation can have; 0 if the operation is not
    /// supported.
    fn max_bytes(_operation: Operation) -> usize {
        0
    }
    /// Starts an atomic operation.
    fn atomic(&self, _op: AtomicOp) -> Result {
        Err(Error::NOSYS)
    }
}

/// Addresses and connections (fi_cm(3)).
pub trait Cm {
    /// The endpoint's own address.
    fn getname(&self) -> Result<Vec<u8>> {
        Err(Error::NOSYS)
    }
    /// Chooses the own address before the endpoint is enabled.
    fn setname(&self, _addr: &[u8]) -> Result {
        Err(Error::NOSYS)
    }
    /// The connected peer's address.
    fn getpeer(&self) -> Result<Vec<u8>> {
        Err(Error::NOSYS)
    }
    /// Starts connecting; `addr` null stands for the info's destination.
    fn connect(&self, _addr: Option<&[u8]>, _param: &[u8]) -> Result {
        Err(Error::NOSYS)
    }
    /// Accepts the request the endpoint was opened with.
    fn accept(&self, _param: &[u8]) -> Result {
        Err(Error::NOSYS)
    }
    /// Ends the connection.
    fn shutdown(&self) -> Result {
        Err(Error::NOSYS)
    }
}

/// A listening endpoint (fi_endpoint(3), fi_cm(3)).
pub trait PassiveEp: Send + Sync + Sized + 'static {
    /// The type in which connection requests are kept until they are answered ([`Request`]).
    type Request: Reject;

    /// Starts listening; requests go to `eq`, naming `fid`.
    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result;
    /// The source of progress that drives the passive endpoint.
    fn progress_source(&self) -> Arc<dyn Progress>;
    /// The passive endpoint's own address.
    fn getname(&self) -> Result<Vec<u8>>;
    /// Chooses the address before the endpoint listens.
    fn setname(&self, addr: &[u8]) -> Result;
    /// How many requests may wait in the system's queue (FI_BACKLOG).
    fn set_backlog(&self, backlog: c_int) -> Result;
    /// Bytes of user data a request or answer can carry (FI_OPT_CM_DATA_SIZE).
    fn cm_data_size(&self) -> usize;
    /// Stops listening.
    fn close(&self);
}
