//! Endpoints of a provider's engine for [`api`](crate::api): ordinary ones, scalable ones with
//! their contexts, and shared receive contexts (fi_endpoint(3)).
//!
//! An engine implements [`RdmEngine`] with numbered endpoints and the operations of the calls;
//! `api` creates the C tables of [`RdmEndpoint`]. All of it is monomorphised: a transfer is one
//! direct call.
use super::closing::Undelivered;
use super::contexts::{ContextIndex, ContextSide, EndpointKind, Group};
use super::hmem_options;
use super::peers::{AvObserver, AvSubscription, PeerTable};
use super::receives::PostsReceives;
use super::rx_matcher::{RxMatcher, UnexpectedBody};
use crate::abi::{
    FI_COLLECTIVE, FI_DIRECTED_RECV, FI_FENCE, FI_MULTICAST, FI_OPT_BUFFERED_LIMIT,
    FI_OPT_BUFFERED_MIN, FI_OPT_CUDA_API_PERMITTED, FI_OPT_FI_HMEM_P2P, FI_OPT_MAX_ATOMIC_SIZE,
    FI_OPT_MIN_MULTI_RECV, FI_OPT_PEER_LINKS, FI_OPT_SHARED_MEMORY_PERMITTED, FI_ORDER_ATOMIC_WAR,
    FI_ORDER_RMA_WAR, FI_ORDER_SAR, FI_ORDER_WAR, FI_PEEK, FI_SOURCE_ERR, fi_peer_links,
};
use crate::api::{
    Atomic, AtomicOp, Bindings, Cm, ContextAttr, Endpoint, Msg, ReadOp, RecvOp, Rma, RxAttr,
    SendOp, Tagged, WriteOp,
};
use crate::atomic::Operation;
use crate::av::Av;
use crate::buffered;
use crate::cq::Context;
use crate::eq::FidPtr;
use crate::error::{Error, Result};
use crate::info::InfoRef;
use crate::lock::{FastGuard, Guard, Level};
use crate::operation::FastRecv;
use crate::peer_srx::SrxOwner;
use core::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

/// Endpoint attributes requested by an application's info, independent of the transport.
#[derive(Clone, Debug, Default)]
pub struct RdmAttr {
    /// A receive's source address takes part in matching (FI_DIRECTED_RECV).
    pub directed: bool,
    /// True if a message of an unknown peer is reported as an error, with the peer's address
    /// (FI_SOURCE_ERR).
    pub source_err: bool,
    /// Tags with `OWN_TAG` are the library's own and not the application's (FI_COLLECTIVE,
    /// FI_MULTICAST).
    pub collective: bool,
    /// The endpoint takes notices of multicast groups (FI_MULTICAST).
    pub multicast: bool,
    /// Messages are reported as they come, and claimed then (FI_BUFFERED_RECV).
    pub buffered: bool,
    /// tx_attr.size: transfers under way before -FI_EAGAIN.
    pub tx_size: usize,
    /// tx_attr.inject_size: most bytes of an injected message.
    pub inject_size: usize,
    /// Flags of every message: FI_FENCE if messages must not overtake previously posted reads
    /// (FI_ORDER_SAR), else none.
    pub send_flags: u64,
    /// The same for writes and atomic operations (FI_ORDER_WAR, FI_ORDER_RMA_WAR,
    /// FI_ORDER_ATOMIC_WAR).
    pub access_flags: u64,
}

impl AsMut<RdmAttr> for RdmAttr {
    fn as_mut(&mut self) -> &mut RdmAttr {
        self
    }
}

impl RdmAttr {
    /// Returns the attributes requested by `info` of an application with this API version.
    pub fn of(info: InfoRef<'_>, api_version: u32) -> Result<Self> {
        let (tx, rx) = (info.tx().ok_or(Error::INVAL)?, info.rx().ok_or(Error::INVAL)?);
        let caps = info.caps();
        let fence = |orders| if tx.msg_order & orders != 0 { FI_FENCE } else { 0 };
        Ok(Self {
            directed: (caps | rx.caps) & FI_DIRECTED_RECV != 0,
            source_err: (caps | rx.caps) & FI_SOURCE_ERR != 0,
            collective: caps & (FI_COLLECTIVE | FI_MULTICAST) != 0,
            multicast: caps & FI_MULTICAST != 0,
            buffered: buffered::is_asked(info, api_version),
            tx_size: tx.size.max(1),
            inject_size: tx.inject_size,
            send_flags: fence(FI_ORDER_SAR),
            access_flags: fence(FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR),
        })
    }

    /// Returns the attributes for an endpoint with one connection, to a peer chosen by the
    /// application.
    pub fn of_connected(self) -> Self {
        let Self { buffered, tx_size, inject_size, send_flags, access_flags, .. } = self;
        Self { buffered, tx_size, inject_size, send_flags, access_flags, ..Self::default() }
    }

    /// The attributes of a shared receive context.
    pub fn of_srx(rx: &RxAttr) -> Self {
        Self { directed: rx.caps & FI_DIRECTED_RECV != 0, ..Self::default() }
    }

    /// Returns the matching engine of the endpoint with the number `owner`. With buffered receives
    /// (FI_BUFFERED_RECV) `most_buffered` are the largest values of FI_OPT_BUFFERED_LIMIT and
    /// FI_OPT_BUFFERED_MIN.
    pub fn matcher<B: UnexpectedBody>(
        &self,
        owner: u32,
        min_multi_recv: usize,
        most_buffered: [usize; 2],
    ) -> RxMatcher<B> {
        let mut matcher = RxMatcher::new(self.directed, self.source_err, min_multi_recv);
        matcher.set_owner(owner);
        if self.collective {
            matcher.rules.set_collective();
        }
        if self.buffered {
            matcher.buffering.enable(most_buffered);
        }
        matcher
    }

    /// Sets the attributes of a transmit or receive context of an endpoint with this matching
    /// engine and these peers. An injected message has at most `most_inject` bytes, regardless of
    /// the application's request.
    pub fn become_context<B: UnexpectedBody, P>(
        &mut self,
        attr: &ContextAttr,
        most_inject: usize,
        matcher: &mut RxMatcher<B>,
        peers: &PeerTable<P>,
    ) {
        match attr {
            ContextAttr::Tx(tx) => {
                self.tx_size = tx.size.max(1);
                self.inject_size = tx.inject_size.min(most_inject);
            }
            ContextAttr::Rx(rx) => {
                let chosen = |cap| rx.caps & cap != 0;
                matcher.choose_sources(chosen(FI_DIRECTED_RECV), chosen(FI_SOURCE_ERR));
                for (id, peer) in peers.iter() {
                    matcher.senders.set_addr(id, || peer.addr.to_bytes());
                    matcher.senders.set_trace_id(id, peer.addr.trace_id());
                }
            }
        }
    }
}

/// Engine of reliable datagram endpoints, identified by numbers. For the engine the two contexts
/// with one index of a scalable endpoint are one endpoint.
pub trait RdmEngine: AvObserver + Sized {
    /// Properties of an endpoint set at its opening.
    type Identity: Clone + AsMut<RdmAttr>;
    /// Provider's state of an application's endpoint outside of the engine.
    type InternalOps: EndpointExt<Self> + Default;

    /// State guarded by the engine's lock.
    type State: PostsReceives;

    /// Takes the engine's lock, waiting for it if need be.
    fn state(&self) -> Guard<'_, Self::State>;
    /// Takes the lock like [`Lock::try_lock_fast`](crate::lock::Lock::try_lock_fast). Returns `None` for
    /// engines with more work for a receive.
    #[inline(always)]
    fn try_lock_fast<const LEVEL: usize>(&self) -> Option<FastGuard<'_, Self::State>> {
        None
    }
    /// Returns the level's number for it, if useful.
    fn level(&self) -> usize {
        Level::SHARED
    }
    /// Adds an endpoint, or a shared receive context.
    fn add(&self, identity: Self::Identity) -> u32;
    /// Sets the position of a new endpoint among a scalable endpoint's contexts.
    fn set_context_index(&self, ep: u32, context_index: ContextIndex);
    /// Sets the fid naming the endpoint in events.
    fn set_fid(&self, ep: u32, fid: FidPtr);
    /// Enables an endpoint, with receives from the shared receive context `srx` if given, or the
    /// shared receive context itself. It listens to its address vector already.
    fn enable(&self, ep: &RdmEndpoint<Self>, bindings: &Bindings, srx: Option<u32>) -> Result;
    /// Enables a scalable endpoint: it can be called from now on, and its contexts name
    /// themselves by its address.
    fn enable_contexts(&self, eps: &[u32], bindings: &Bindings) -> Result;
    /// Adopts the bindings of a transmit context.
    fn bind_tx(&self, ep: u32, bindings: &Bindings);
    /// Adopts the bindings of a receive context.
    fn bind_rx(&self, ep: u32, bindings: &Bindings);
    /// Adopts the bindings of an enabled endpoint.
    fn bound_late(&self, ep: u32, bindings: &Bindings) -> Result;
    /// Sets the attributes of a transmit or receive context being opened.
    fn become_context(&self, ep: u32, attr: &ContextAttr);
    /// Returns the unsent operations already complete for the application, above all injected ones,
    /// and the unsent responses awaited by peers.
    fn undelivered(&self, _ep: u32) -> Undelivered {
        Undelivered::default()
    }
    /// Drives progress before the endpoint, or its transmit context, closes, until nothing is
    /// [undelivered](Self::undelivered). Takes bounded time
    /// ([`CloseBudget`](super::closing::CloseBudget)).
    fn drain_sends(&self, _ep: u32) {}
    /// Closes an endpoint: ends its connections and drops its operations without reporting them
    /// (fi_endpoint(3), fi_close).
    fn close(&self, ep: u32);
    /// Closes a transmit context: drops its transfers without reporting them.
    fn close_tx(&self, ep: u32);
    /// Closes a receive context: drops its receives without reporting them.
    fn close_rx(&self, ep: u32);
    /// Returns true if the engine is a forked child's copy of its parent's; a close must not touch
    /// it.
    fn is_copy(&self) -> bool {
        false
    }
    /// Returns the number of further transfers acceptable now.
    fn tx_left(&self, ep: u32) -> usize;

    /// Sends a message.
    fn send(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: SendOp, tagged: bool) -> Result;
    /// True if [`send_immediate`](Self::send_immediate) is implemented.
    const SENDS_AT_ONCE: bool = false;
    /// See [`Msg::send_immediate`].
    fn send_immediate(
        &self,
        _ep: u32,
        _op: SendOp,
        _tagged: bool,
        _all_is_read: bool,
    ) -> Result<bool> {
        Err(Error::NOSYS)
    }
    /// Reads a peer's memory.
    fn read(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: ReadOp) -> Result;
    /// Writes to a peer's memory.
    fn write(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: WriteOp) -> Result;
    /// Starts an atomic operation.
    fn atomic(self: &Arc<Self>, ep: &RdmEndpoint<Self>, op: AtomicOp) -> Result;
    /// Prepares the search for a message possibly on its way (FI_PEEK). Called without the engine's
    /// lock, before [`PostsReceives::look`].
    #[inline(always)]
    fn looks(&self) {}
    /// Called after a receive was posted and the engine's lock released, for work to be done
    /// without the lock.
    #[inline(always)]
    fn posted(&self) {}
    /// Returns the maximum bytes of elements of one atomic operation of this kind.
    fn max_atomic(operation: Operation) -> usize;
    /// FI_OPT_MAX_ATOMIC_SIZE.
    fn max_atomic_bytes() -> usize;

    /// FI_OPT_SHARED_MEMORY_PERMITTED: returns true if the endpoint may use shared memory with
    /// peers of this host.
    fn memory_permitted(&self, _ep: u32) -> Result<bool> {
        Err(Error::NOPROTOOPT)
    }
    /// Sets FI_OPT_SHARED_MEMORY_PERMITTED, for connections established from then on.
    fn permit_memory(&self, _ep: u32, _permitted: bool) -> Result {
        Err(Error::NOPROTOOPT)
    }
    /// Returns true if buffers of the endpoint may be in memory of devices (FI_HMEM), copied by this
    /// library.
    fn has_devices(&self, _ep: u32) -> bool {
        false
    }

    /// FI_OPT_FI_HMEM_P2P: returns true if devices of peers on this host may read memory of devices
    /// of the endpoint.
    fn p2p_permitted(&self, _ep: u32) -> bool {
        false
    }
    /// Permits or forbids it, for transfers or connections started from then on.
    fn permit_p2p(&self, _ep: u32, _permitted: bool) {}

    /// FI_OPT_PEER_LINKS: returns the numbers of peers by kind of link.
    fn peer_links(&self, _ep: u32) -> Result<fi_peer_links> {
        Err(Error::NOPROTOOPT)
    }

    /// Has an endpoint take its receives from another provider's queue (fi_peer(3)).
    fn import(self: &Arc<Self>, _ep: u32, _owner: SrxOwner) -> Result {
        Err(Error::NOSYS)
    }

    /// The endpoint's own address.
    fn getname(&self, ep: u32) -> Result<Vec<u8>>;
    /// Chooses the endpoint's own address before it is enabled.
    fn setname(&self, ep: u32, name: &[u8]) -> Result;
}

/// Provider's state of an application's endpoint outside of the engine. It handles features of the
/// provider's own kinds of endpoint: options, and connections established by the application
/// (fi_cm(3)).
pub trait EndpointExt<E: RdmEngine<InternalOps = Self>>: Send + Sync + Sized + 'static {
    /// An option of the provider's own, into `value`: returns its length in bytes.
    fn getopt(_ep: &RdmEndpoint<E>, _name: c_int, _value: &mut [u8]) -> Result<usize> {
        Err(Error::NOPROTOOPT)
    }
    /// Sets an option of the provider's own.
    fn setopt(_ep: &RdmEndpoint<E>, _name: c_int, _value: &[u8]) -> Result {
        Err(Error::NOPROTOOPT)
    }
    /// Returns the endpoint's own address, if it is not the one known to the engine.
    fn getname(_ep: &RdmEndpoint<E>) -> Option<Result<Vec<u8>>> {
        None
    }
    /// The descriptor of the endpoint's connection ([`Endpoint::fd`]).
    fn fd(_ep: &RdmEndpoint<E>) -> Result<RawFd> {
        Err(Error::NOSYS)
    }
    /// The connected peer's address.
    fn getpeer(_ep: &RdmEndpoint<E>) -> Result<Vec<u8>> {
        Err(Error::NOSYS)
    }
    /// Starts connecting ([`Cm::connect`]).
    fn connect(_ep: &RdmEndpoint<E>, _to: Option<&[u8]>, _param: &[u8]) -> Result {
        Err(Error::NOSYS)
    }
    /// Accepts the request of the endpoint's opening.
    fn accept(_ep: &RdmEndpoint<E>, _param: &[u8]) -> Result {
        Err(Error::NOSYS)
    }
    /// Ends the connection.
    fn shutdown(_ep: &RdmEndpoint<E>) -> Result {
        Err(Error::NOSYS)
    }
    /// The endpoint is closed.
    fn closed(&self) {}
}

impl<E: RdmEngine<InternalOps = ()>> EndpointExt<E> for () {}

/// Endpoint of the application; it calls the engine for all operations.
#[derive(Debug)]
pub struct RdmEndpoint<E: RdmEngine> {
    /// The engine of the endpoint's domain.
    pub engine: Arc<E>,
    /// The endpoint's number in the engine.
    pub id: u32,
    /// Provider's state of the endpoint.
    pub ext: E::InternalOps,
    /// True for a shared receive context: a matching engine without connections.
    is_srx: bool,
    /// Subscription to changes of the address vector.
    names: OnceLock<Arc<AvSubscription<E>>>,
    /// Kind: an ordinary endpoint, a scalable one, or a context of one.
    part: EndpointKind,
}

impl<E: RdmEngine> RdmEndpoint<E> {
    /// Opens an endpoint.
    pub fn new(engine: Arc<E>, identity: E::Identity, ext: E::InternalOps) -> Self {
        let id = engine.add(identity);
        Self::part(engine, id, ext, false, EndpointKind::Whole)
    }

    /// Opens a shared receive context.
    pub fn shared_rx(engine: Arc<E>, identity: E::Identity, ext: E::InternalOps) -> Self {
        Self { is_srx: true, ..Self::new(engine, identity, ext) }
    }

    fn part(
        engine: Arc<E>,
        id: u32,
        ext: E::InternalOps,
        is_srx: bool,
        part: EndpointKind,
    ) -> Self {
        Self { engine, id, ext, is_srx, names: OnceLock::new(), part }
    }

    /// Returns true for a shared receive context.
    pub fn is_srx(&self) -> bool {
        self.is_srx
    }

    /// Subscribes to changes of the address vector.
    fn listen(&self, av: Option<&Arc<Av>>) {
        if let Some(av) = av {
            self.names.get_or_init(|| AvSubscription::listen(&self.engine, self.id, av));
        }
    }

    /// Adopts the bindings of a transmit or receive context.
    fn bind_half(&self, half: ContextSide, bindings: &Bindings) {
        match half {
            ContextSide::Transmit => self.engine.bind_tx(self.id, bindings),
            ContextSide::Receive => self.engine.bind_rx(self.id, bindings),
        }
    }

    /// Enables a scalable endpoint: peers can reach it from now on.
    fn enable_contexts(&self, group: &Group, bindings: &Bindings) -> Result {
        for id in group.ids() {
            if let Some(av) = &bindings.av {
                group.keep(AvSubscription::listen(&self.engine, *id, av));
            }
        }
        self.engine.enable_contexts(group.ids(), bindings)
    }
}

impl<E: RdmEngine> RdmEndpoint<E> {
    /// Returns the engine's endpoints represented by this one.
    fn ids(&self) -> &[u32] {
        match &self.part {
            EndpointKind::Scalable(group) => group.ids(),
            _ => std::slice::from_ref(&self.id),
        }
    }

    /// Opens a scalable endpoint with the numbers of transmit and receive contexts in `info`. They
    /// are in no multicast groups.
    pub fn scalable(engine: Arc<E>, mut identity: E::Identity, info: InfoRef<'_>) -> Result<Self> {
        identity.as_mut().multicast = false;
        let counts = info.ep().map(|ep| [ep.tx_ctx_cnt, ep.rx_ctx_cnt]).ok_or(Error::INVAL)?;
        let group = Group::new(counts, |count, receivers| {
            let ids: Vec<u32> = (0..count).map(|_| engine.add(identity.clone())).collect();
            let indices = ContextIndex::all(&ids, receivers);
            indices.for_each(|(id, context_index)| engine.set_context_index(id, context_index));
            ids
        })?;
        let id = group.ids()[0];
        Ok(Self::part(
            engine,
            id,
            E::InternalOps::default(),
            false,
            EndpointKind::Scalable(Arc::new(group)),
        ))
    }
}

/// Puts a number into the value of an option.
pub fn put_number(size: usize, value: &mut [u8]) -> Result<usize> {
    put_bytes(&size.to_ne_bytes(), value)
}

/// Returns the FI_OPT_PEER_LINKS value of connections; each item is true for one over shared
/// memory.
pub fn count_links(in_memory: impl Iterator<Item = bool>) -> fi_peer_links {
    in_memory.fold(fi_peer_links::default(), |mut links, memory| {
        *if memory { &mut links.memory } else { &mut links.network } += 1;
        links
    })
}

/// Gives the value of an option; returns its length.
fn put_bytes(bytes: &[u8], value: &mut [u8]) -> Result<usize> {
    value.get_mut(..bytes.len()).ok_or(Error::TOOSMALL)?.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Returns the numeric value of an option.
fn number(value: &[u8]) -> Result<usize> {
    Ok(usize::from_ne_bytes(value.try_into().map_err(|_| Error::INVAL)?))
}

impl<E: RdmEngine> Endpoint for RdmEndpoint<E> {
    const BUFFERS: bool = true;
    const ACKNOWLEDGES: bool = true;
    const LATER: bool = true;

    fn opened(&self, fid: FidPtr) {
        // The two contexts of an index are one to the engine, which names the
        // one that receives.
        if !matches!(
            self.part,
            EndpointKind::Scalable(_) | EndpointKind::Context(_, ContextSide::Transmit, _)
        ) {
            self.engine.set_fid(self.id, fid);
        }
    }

    fn enable(&self, bindings: &Bindings, srx: Option<&Self>) -> Result {
        match &self.part {
            EndpointKind::Scalable(group) => return self.enable_contexts(group, bindings),
            EndpointKind::Context(_, half, _) => {
                self.bind_half(*half, bindings);
                return Ok(());
            }
            EndpointKind::Whole => {}
        }
        if srx.is_some_and(|srx| self.is_srx || !Arc::ptr_eq(&self.engine, &srx.engine)) {
            return Err(Error::INVAL);
        }
        if !self.is_srx {
            // Before any peer can connect: an address inserted after its look-up must be reported.
            self.listen(bindings.av.as_ref());
        }
        self.engine.enable(self, bindings, srx.map(|srx| srx.id))
    }

    fn bound_late(&self, bindings: &Bindings) -> Result {
        match &self.part {
            EndpointKind::Whole => self.engine.bound_late(self.id, bindings),
            EndpointKind::Context(_, half, _) => {
                self.bind_half(*half, bindings);
                Ok(())
            }
            EndpointKind::Scalable(_) => Err(Error::OPBADSTATE),
        }
    }

    fn context(&self, index: usize, attr: &ContextAttr) -> Result<Self> {
        let EndpointKind::Scalable(group) = &self.part else { return Err(Error::INVAL) };
        let (id, half) = group.take(index, attr)?;
        self.engine.become_context(id, attr);
        let part = EndpointKind::Context(group.clone(), half, index);
        Ok(Self::part(self.engine.clone(), id, E::InternalOps::default(), false, part))
    }

    fn cancel(&self, context: Context, ext: bool) -> Result {
        if !matches!(self.part, EndpointKind::Context(_, ContextSide::Transmit, _)) {
            // A transmit context has no receives: those of the engine's endpoint are the receive
            // context's.
            self.engine.state().matcher(self.id).cancel(context, ext);
        }
        Ok(())
    }

    fn getopt(&self, name: c_int, value: &mut [u8]) -> Result<usize> {
        match name {
            FI_OPT_MIN_MULTI_RECV => {
                put_number(self.engine.state().matcher(self.id).queues.min_multi_recv(), value)
            }
            FI_OPT_MAX_ATOMIC_SIZE if !self.is_srx => put_number(E::max_atomic_bytes(), value),
            FI_OPT_SHARED_MEMORY_PERMITTED if !self.is_srx => {
                put_bytes(&[self.engine.memory_permitted(self.id)?.into()], value)
            }
            FI_OPT_PEER_LINKS if !self.is_srx => {
                let [mut network, mut memory] = [0; 2];
                for id in self.ids() {
                    let links = self.engine.peer_links(*id)?;
                    (network, memory) = (network + links.network, memory + links.memory);
                }
                put_bytes([network, memory].map(usize::to_ne_bytes).as_flattened(), value)
            }
            FI_OPT_BUFFERED_LIMIT | FI_OPT_BUFFERED_MIN => {
                put_number(self.engine.state().matcher(self.id).buffering.option(name)?, value)
            }
            FI_OPT_FI_HMEM_P2P if self.engine.has_devices(self.id) => {
                put_bytes(&hmem_options::p2p(self.engine.p2p_permitted(self.id)), value)
            }
            _ => E::InternalOps::getopt(self, name, value),
        }
    }

    fn setopt(&self, name: c_int, value: &[u8]) -> Result {
        match name {
            FI_OPT_MIN_MULTI_RECV => {
                let size = number(value)?;
                self.engine.state().matcher(self.id).queues.set_min_multi_recv(size);
                Ok(())
            }
            FI_OPT_SHARED_MEMORY_PERMITTED if !self.is_srx => match value {
                [permitted] => self
                    .ids()
                    .iter()
                    .try_for_each(|id| self.engine.permit_memory(*id, *permitted != 0)),
                _ => Err(Error::INVAL),
            },
            FI_OPT_BUFFERED_LIMIT | FI_OPT_BUFFERED_MIN => {
                let size = number(value)?;
                self.engine.state().matcher(self.id).buffering.set_option(name, size)
            }
            FI_OPT_FI_HMEM_P2P if self.engine.has_devices(self.id) => {
                let permitted = hmem_options::p2p_of(value)?;
                self.ids().iter().for_each(|id| self.engine.permit_p2p(*id, permitted));
                Ok(())
            }
            FI_OPT_CUDA_API_PERMITTED if self.engine.has_devices(self.id) => {
                hmem_options::set_cuda_permitted(value)
            }
            _ => E::InternalOps::setopt(self, name, value),
        }
    }

    fn fd(&self) -> Result<RawFd> {
        E::InternalOps::fd(self)
    }

    fn close(&self) {
        if self.engine.is_copy() {
            // In a forked child only the domain's closing closes the descriptors.
            return;
        }
        match &self.part {
            EndpointKind::Whole => {
                self.engine.drain_sends(self.id);
                self.engine.close(self.id);
            }
            EndpointKind::Scalable(group) => {
                group.ids().iter().for_each(|id| self.engine.drain_sends(*id));
                group.ids().iter().for_each(|id| self.engine.close(*id));
            }
            EndpointKind::Context(group, half, index) => {
                group.give_back(*half, *index, |id| match half {
                    ContextSide::Transmit => {
                        self.engine.drain_sends(id);
                        self.engine.close_tx(id);
                    }
                    ContextSide::Receive => self.engine.close_rx(id),
                });
            }
        }
        self.ext.closed();
    }

    fn import(&self, owner: SrxOwner) -> Result {
        match self.part {
            EndpointKind::Whole if !self.is_srx => self.engine.import(self.id, owner),
            _ => Err(Error::INVAL),
        }
    }

    fn size_left(&self, tx: bool) -> Result<usize> {
        if tx { Ok(self.engine.tx_left(self.id)) } else { Err(Error::NOSYS) }
    }
}

impl<E: RdmEngine> Msg for RdmEndpoint<E> {
    const SENDS_AT_ONCE: bool = E::SENDS_AT_ONCE;
    #[inline(always)]
    fn send_immediate(&self, op: SendOp, tagged: bool, cq_is_drained: bool) -> Result<bool> {
        self.engine.send_immediate(self.id, op, tagged, cq_is_drained)
    }
    #[inline(always)]
    fn send(&self, op: SendOp) -> Result {
        self.engine.send(self, op, false)
    }
    #[inline(always)]
    fn recv(&self, op: RecvOp) -> Result {
        let posted = self.engine.state().post(self.id, op, false);
        self.engine.posted();
        posted
    }
    fn level(&self) -> usize {
        self.engine.level()
    }
    #[inline(always)]
    fn try_post_fast<const LEVEL: usize>(&self, op: FastRecv, tagged: bool) -> bool {
        let Some(mut state) = self.engine.try_lock_fast::<LEVEL>() else { return false };
        let Some(matcher) = state.matcher_if_open(self.id) else { return false };
        matcher.try_post_fast(op, tagged)
    }
}

impl<E: RdmEngine> Tagged for RdmEndpoint<E> {
    #[inline(always)]
    fn tsend(&self, op: SendOp) -> Result {
        self.engine.send(self, op, true)
    }
    #[inline(always)]
    fn trecv(&self, op: RecvOp) -> Result {
        if op.flags & FI_PEEK != 0 {
            self.engine.looks();
        }
        let posted = self.engine.state().post(self.id, op, true);
        self.engine.posted();
        posted
    }
}

impl<E: RdmEngine> Rma for RdmEndpoint<E> {
    fn read(&self, op: ReadOp) -> Result {
        self.engine.read(self, op)
    }
    fn write(&self, op: WriteOp) -> Result {
        self.engine.write(self, op)
    }
}

impl<E: RdmEngine> Atomic for RdmEndpoint<E> {
    const OFFERED: bool = true;
    fn max_bytes(operation: Operation) -> usize {
        E::max_atomic(operation)
    }
    fn atomic(&self, op: AtomicOp) -> Result {
        self.engine.atomic(self, op)
    }
}

impl<E: RdmEngine> Cm for RdmEndpoint<E> {
    fn getname(&self) -> Result<Vec<u8>> {
        if self.is_srx {
            return Err(Error::NOSYS);
        }
        E::InternalOps::getname(self).unwrap_or_else(|| self.engine.getname(self.id))
    }

    fn setname(&self, name: &[u8]) -> Result {
        self.engine.setname(self.id, name)
    }

    fn getpeer(&self) -> Result<Vec<u8>> {
        E::InternalOps::getpeer(self)
    }

    fn connect(&self, to: Option<&[u8]>, param: &[u8]) -> Result {
        E::InternalOps::connect(self, to, param)
    }

    fn accept(&self, param: &[u8]) -> Result {
        E::InternalOps::accept(self, param)
    }

    fn shutdown(&self) -> Result {
        E::InternalOps::shutdown(self)
    }
}

#[cfg(test)]
mod tests;
