//! The traits implemented by providers for the objects of the API.
use super::bindings::Bindings;
use super::new_domain::NewDomain;
use super::settings::DomainSettings;
use crate::abi::fi_addr_t;
use crate::atomic::Operation;
use crate::attr::{ContextAttr, RxAttr};
use crate::core_provider::PeerTransfers;
use crate::cq::Context;
use crate::eq::{Eq, FidPtr};
use crate::error::{Error, Result};
use crate::info::{InfoChain, InfoQuery, InfoRef};
use crate::lock::Level;
use crate::mcast::GroupRole;
use crate::operation::{AtomicOp, FastRecv, ReadOp, RecvOp, SendOp, WriteOp};
use crate::peer_srx::SrxOwner;
use crate::progress::Progress;
use crate::wait::WaitKind;
use core::ffi::{CStr, c_int, c_void};
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// A provider's answer to fi_getinfo(3).
pub trait Getinfo {
    /// The infos for these hints; names and version are the core's to add.
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain>;
}

/// Fabric of a provider, the parent of domains and passive endpoints (fi_fabric(3)).
pub trait Fabric: Send + Sync + Sized + 'static {
    /// The provider's type of passive endpoints; [`NoPassiveEp`] if it has none.
    type PassiveEp: PassiveEp;

    /// Opens the fabric of this name.
    fn open(name: &CStr) -> Result<Self>;
    /// Opens a domain described by `info`: a [`Domain`], of one of the types of the provider.
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

    /// Returns the progress source driving everything opened on the domain.
    fn progress_source(&self) -> Arc<dyn Progress>;
    /// The settings the domain was opened with.
    fn settings(&self) -> &DomainSettings;
    /// Records the open of an object for blocking calls: automatic progress needs a thread if the
    /// domain promised it. With [`WaitKind::MutexCond`] the application may sleep without a wakeup
    /// by any descriptor of the domain.
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
    /// Returns the name of the domain's progress thread.
    fn thread_name(&self) -> String;
    /// Returns true if this domain has the atomic operations of its endpoints.
    fn has_atomics(&self) -> bool {
        true
    }
    /// Opens an endpoint.
    fn endpoint(&self, info: InfoRef<'_>) -> Result<Self::Endpoint>;
    /// Opens a shared receive context: an endpoint used only for the receive calls,
    /// [`Endpoint::cancel`], the options and [`Endpoint::close`], from now on. Endpoints sharing it
    /// get it in [`Endpoint::enable`].
    fn srx_context(&self, _rx: RxAttr) -> Result<Self::Endpoint> {
        Err(Error::NOSYS)
    }
    /// True if endpoints may be bound to a shared transmit context (fi_stx_context). It exists for
    /// the application only: each endpoint keeps its own queue.
    const SHARED_TX: bool = false;
    /// Endpoints may take their receives from another provider's queue
    /// ([`Endpoint::import`]).
    const IMPORTS: bool = false;
    /// Counters of the domain can count bytes (FI_CNTR_EVENTS_BYTES).
    const COUNTS_BYTES: bool = true;
    /// Opens an endpoint with transfers made by another provider's endpoint
    /// ([`Endpoint::TRANSFERS`]). `owner` is the info of the owner's endpoint, if given.
    fn transfer_endpoint(
        &self,
        _owner: Option<InfoRef<'_>>,
        _transfers: Arc<PeerTransfers>,
    ) -> Result<Self::Endpoint> {
        Err(Error::NOSYS)
    }
    /// Opens a scalable endpoint: an address, used only for the name, the address vector,
    /// [`Endpoint::context`], [`Endpoint::enable`] and [`Endpoint::close`].
    fn scalable_ep(&self, _info: InfoRef<'_>) -> Result<Self::Endpoint> {
        Err(Error::NOSYS)
    }
}

/// Returns the destination of fi_connect(3): its argument, or the address in the endpoint's info.
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

/// Operations of every endpoint (fi_endpoint(3)).
pub trait Endpoint: Msg + Tagged + Rma + Atomic + Cm + Send + Sync + Sized + 'static {
    /// True if the endpoint has buffered receives: [`Msg::recv`] and [`Tagged::trecv`] then accept
    /// FI_CLAIM and FI_DISCARD with the context of a reported message ([`crate::buffered`]).
    const BUFFERS: bool = false;
    /// True if writes and atomic operations with FI_DELIVERY_COMPLETE complete only after the
    /// peer's acknowledgement.
    const ACKNOWLEDGES: bool = false;
    /// Sets the fid naming the endpoint in events: at opening, and when this fid is closed before
    /// an alias (fi_ep_alias).
    fn opened(&self, fid: FidPtr);
    /// Enables the endpoint with its bound objects. With `srx`, receives come from this shared
    /// receive context. Fails with -FI_ENOCQ, -FI_ENOAV …
    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result;
    /// Binds counters, or an event queue, after [`enable`](Self::enable) got all the others: they
    /// count completions from now on. Fails with -FI_EOPBADSTATE if it is too late.
    fn bound_late(&self, _bindings: &Bindings) -> Result {
        Err(Error::OPBADSTATE)
    }
    /// Opens a context of this scalable endpoint: an endpoint for sends or for receives only, at
    /// the scalable endpoint's address. Fails with -FI_EINVAL if there is none with this index, and
    /// with -FI_EBUSY if it is open.
    fn context(&self, _index: usize, _attr: &ContextAttr) -> Result<Self> {
        Err(Error::NOSYS)
    }
    /// Cancels a posted receive; it then completes with -FI_ECANCELED. A missing one is no error.
    /// `internal`: true if the receive carries [`INTERNAL_OP`](crate::reserved::INTERNAL_OP).
    fn cancel(&self, context: Context, internal: bool) -> Result;
    /// Reads an option of level FI_OPT_ENDPOINT into `value`; returns its length in bytes.
    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize>;
    /// Sets an option of level FI_OPT_ENDPOINT.
    fn setopt(&self, name: c_int, value: &[u8]) -> Result;
    /// True if operations with the flag [`INTERNAL_OP`](crate::reserved::INTERNAL_OP) keep it in their
    /// completion, so it goes to the domain's deferred work.
    const LATER: bool = false;
    /// True if multicast groups are those of the network. Otherwise a message to a group is sent to
    /// each member, and this requires [`LATER`](Self::LATER).
    const JOINS: bool = false;
    /// True if other providers' endpoints make the transfers (FI_PEER_TRANSFER of fi_peer(3)).
    /// Such endpoints are opened by [`Domain::transfer_endpoint`] alone, and have
    /// [`transfers`](Self::transfers).
    const TRANSFERS: bool = false;
    /// Returns the transfers made by another provider's endpoint for this one.
    fn transfers(&self) -> Option<&PeerTransfers> {
        None
    }
    /// Joins a group of the network and returns its address for sends, recognized by [`is_group`].
    fn join(&self, _group: SocketAddr, _part: GroupRole) -> Result<fi_addr_t> {
        Err(Error::NOSYS)
    }
    /// Leaves a group of the network.
    fn leave(&self, _addr: fi_addr_t) {}
    /// Ends all connections and posted operations. No completion is written after this returns.
    fn close(&self);
    /// Makes the endpoint, not enabled yet, take its receives from another provider's queue
    /// (fi_peer(3)).
    fn import(&self, _owner: SrxOwner) -> Result {
        Err(Error::NOSYS)
    }
    /// Returns the number of further sends (`tx`), or receives, acceptable now.
    fn size_left(&self, _tx: bool) -> Result<usize> {
        Err(Error::NOSYS)
    }
    /// Returns the descriptor of the endpoint's connection, for the application (FI_GET_FD).
    fn fd(&self) -> Result<RawFd> {
        Err(Error::NOSYS)
    }
    /// Handles fi_control commands other than the common ones.
    ///
    /// # Safety
    /// `arg` is valid for the command.
    unsafe fn control(&self, _command: c_int, _arg: *mut c_void) -> Result {
        Err(Error::NOSYS)
    }
}

/// Messages (fi_msg(3)).
pub trait Msg {
    /// True if [`send_immediate`](Self::send_immediate) is implemented.
    const SENDS_AT_ONCE: bool = false;
    /// Sends a message, tagged or not, for another provider reporting it. Returns true if the
    /// message is complete, without a report here. Returns false if it is in flight, and will be
    /// reported.
    fn send_immediate(&self, _op: SendOp, _tagged: bool, _all_is_read: bool) -> Result<bool> {
        Err(Error::NOSYS)
    }
    /// Sends a message. Returns -FI_EAGAIN if there is no space, even after progress.
    fn send(&self, _op: SendOp) -> Result {
        Err(Error::NOSYS)
    }
    /// Posts a receive.
    fn recv(&self, _op: RecvOp) -> Result {
        Err(Error::NOSYS)
    }
    /// Returns the number of the level of the locks needed by a receive, for
    /// [`try_post_fast`](Self::try_post_fast).
    fn level(&self) -> usize {
        Level::SHARED
    }
    /// Posts a receive, tagged or not, if no call and no panic is possible and `LEVEL` is the
    /// [`level`](Self::level). Returns false in any other case, without any effect.
    #[inline(always)]
    fn try_post_fast<const LEVEL: usize>(&self, _op: FastRecv, _tagged: bool) -> bool {
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
    /// True if endpoints of this type have atomic operations.
    const OFFERED: bool = false;
    /// Returns the maximum bytes of elements of one such operation; 0 if it is not supported.
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

/// Connection request with support for a rejection.
pub trait Reject: Any + Send {
    /// Refuses the request, sending `param` along.
    fn reject(self, param: &[u8]) -> Result;
}

/// A listening endpoint (fi_endpoint(3), fi_cm(3)).
pub trait PassiveEp: Send + Sync + Sized + 'static {
    /// Type of pending connection requests ([`Request`]).
    type Request: Reject;

    /// Starts listening; requests go to `eq`, naming `fid`.
    fn listen(&self, eq: Arc<Eq>, fid: FidPtr) -> Result;
    /// Returns the progress source driving the passive endpoint.
    fn progress_source(&self) -> Arc<dyn Progress>;
    /// The passive endpoint's own address.
    fn getname(&self) -> Result<Vec<u8>>;
    /// Chooses the address before the endpoint listens.
    fn setname(&self, addr: &[u8]) -> Result;
    /// Sets the maximum number of pending requests in the kernel's queue (FI_BACKLOG).
    fn set_backlog(&self, backlog: c_int) -> Result;
    /// Bytes of user data a request or answer can carry (FI_OPT_CM_DATA_SIZE).
    fn cm_data_size(&self) -> usize;
    /// Reads an option of this provider (fi_getopt(3)); returns its length in bytes.
    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        let _ = (name, value);
        Err(Error::NOPROTOOPT)
    }
    /// Sets an option of this provider (fi_setopt(3)).
    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        let _ = (name, value);
        Err(Error::NOPROTOOPT)
    }
    /// Stops listening.
    fn close(&self);
}
