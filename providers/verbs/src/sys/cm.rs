//! Connections: identifiers of librdmacm, and their events.
use super::device::{Pd, VerbsDevice};
use super::qp::{Qp, QpSpec};
use super::ret::{check, object, set_nonblocking};
use crate::provider::VERBS;
use crate::raw::{self, rdma_cm_event_type as cm_event};
use core::ffi::{c_int, c_void};
use ofi_provider::addr::{self, Addr};
use ofi_provider::error::{Error, Result};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Timeout in milliseconds of librdmacm for resolving an address or a route.
const RESOLVE_TIMEOUT: c_int = 2000;

/// Logs the rejection of an InfiniBand address: the kernel may reject the address of an existing
/// port.
fn refused(what: &str, addr: &Addr, error: &Error) {
    if addr.is_ib() {
        ofi_provider::log!(
            &VERBS,
            WARN,
            EP_CTRL,
            "cannot {what} to {addr}: {error}; the kernel takes such addresses on ports of \
             InfiniBand, and RoCE needs IP addresses"
        );
    }
}

impl VerbsDevice {
    /// Returns the device with this local address, if there is one.
    pub(crate) fn of_address(addr: &SocketAddr) -> Option<Self> {
        let channel = Channel::new().ok()?;
        let mut any_port = Addr::Ip(*addr);
        any_port.set_port(0);
        let id = CmId::new(&channel, 0, &any_port).ok()?;
        id.bind(&any_port).ok()?;
        id.device()
    }
}

/// A connection's identifier (rdma_create_id(3)), with its queue pair once it
/// has one.
#[derive(Debug)]
pub(crate) struct CmId {
    id: NonNull<raw::rdma_cm_id>,
    channel: Arc<Channel>,
    pd: Option<Arc<Pd>>,
}

// SAFETY: librdmacm and libibverbs may be called from any thread.
unsafe impl Send for CmId {}
// SAFETY: what changes it behind a shared reference are the calls of the
// libraries, which lock by themselves.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an identifier for addresses of this kind; its events go to `channel` with `token`.
    pub(crate) fn new(channel: &Arc<Channel>, token: usize, kind: &Addr) -> Result<Self> {
        let mut id = ptr::null_mut();
        let space = match kind {
            Addr::Ib(_) => raw::rdma_port_space::RDMA_PS_IB,
            _ => raw::rdma_port_space::RDMA_PS_TCP,
        };
        let token = token as *mut c_void;
        // SAFETY: the channel is open.
        check(unsafe { raw::rdma_create_id(channel.0.as_ptr(), &raw mut id, token, space) })?;
        Ok(Self { id: object(id)?, channel: channel.clone(), pd: None })
    }

    /// Has events of the identifier come to `channel` with `token` from now on.
    pub(crate) fn migrate(&mut self, channel: &Arc<Channel>, token: usize) -> Result {
        // SAFETY: both are open; all events were acknowledged when they were read.
        unsafe {
            (*self.id.as_ptr()).context = token as *mut c_void;
            check(raw::rdma_migrate_id(self.id.as_ptr(), channel.0.as_ptr()))?;
        }
        self.channel = channel.clone();
        Ok(())
    }

    /// Takes this local address; port 0 stands for any.
    pub(crate) fn bind(&self, to: &Addr) -> Result {
        let mut bytes = to.to_bytes();
        // SAFETY: the identifier is open; the address, which is only read, lives
        // for the call.
        check(unsafe { raw::rdma_bind_addr(self.id.as_ptr(), bytes.as_mut_ptr().cast()) })
            .inspect_err(|error| refused("bind", to, error))
    }

    /// Shares its port with other identifiers doing the same, while none listens.
    pub(crate) fn share_port(&self) -> Result {
        // RDMA_OPTION_ID and RDMA_OPTION_ID_REUSEADDR (rdma_set_option(3)).
        const OPTION: [c_int; 2] = [0, 1];
        let mut on: c_int = 1;
        let (at, len) = ((&raw mut on).cast(), size_of::<c_int>());
        // SAFETY: the identifier is open; the value lives for the call.
        check(unsafe { raw::rdma_set_option(self.id.as_ptr(), OPTION[0], OPTION[1], at, len) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Result {
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_listen(self.id.as_ptr(), backlog) })
    }

    /// Starts to resolve the route to an address.
    pub(crate) fn resolve_addr(&self, to: &Addr) -> Result {
        let mut bytes = to.to_bytes();
        let name = bytes.as_mut_ptr().cast();
        // SAFETY: as in `bind`.
        check(unsafe {
            raw::rdma_resolve_addr(self.id.as_ptr(), ptr::null_mut(), name, RESOLVE_TIMEOUT)
        })
        .inspect_err(|error| refused("connect", to, error))
    }

    /// Continues with resolving the route, after the address was resolved.
    pub(crate) fn resolve_route(&self) -> Result {
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_resolve_route(self.id.as_ptr(), RESOLVE_TIMEOUT) })
    }

    /// The device it is bound to.
    pub(crate) fn device(&self) -> Option<VerbsDevice> {
        // SAFETY: the identifier is open.
        NonNull::new(unsafe { self.id.as_ref().verbs }).map(VerbsDevice)
    }

    /// The connection's own address, if it is bound to one.
    pub(crate) fn local(&self) -> Option<Addr> {
        // SAFETY: an address starts with its family, and the storage is as long as any.
        unsafe {
            let at = &raw const self.id.as_ref().src_storage;
            Addr::from_bytes(addr::bytes_at(at.cast()).ok()?).ok()
        }
    }

    /// The peer's address, if there is one.
    pub(crate) fn peer(&self) -> Option<Addr> {
        // SAFETY: as in `local`.
        unsafe {
            let at = &raw const self.id.as_ref().dst_storage;
            Addr::from_bytes(addr::bytes_at(at.cast()).ok()?).ok()
        }
    }

    /// Creates its queue pair (rdma_create_qp(3)); returns the maximum bytes sent inline.
    pub(crate) fn create_qp(&mut self, pd: &Arc<Pd>, spec: &QpSpec<'_>) -> Result<u32> {
        let mut attr = spec.attr();
        // SAFETY: all is open; the attributes live for the call.
        check(unsafe { raw::rdma_create_qp(self.id.as_ptr(), pd.0.as_ptr(), &raw mut attr) })?;
        self.pd = Some(pd.clone());
        Ok(attr.cap.max_inline_data)
    }

    /// The connection's queue pair, once it has one.
    pub(crate) fn qp(&self) -> Result<Qp<'_>> {
        // SAFETY: the identifier is open; its queue pair lives as long.
        let qp = NonNull::new(unsafe { self.id.as_ref().qp }).ok_or(Error::NOTCONN)?;
        Ok(Qp(qp, PhantomData))
    }

    /// Returns the parameters of a request or its acceptance.
    fn param(data: &[u8]) -> raw::rdma_conn_param {
        raw::rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: data.len() as u8,
            // As much as the devices on both sides have.
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            flow_control: 1,
            retry_count: 15,
            // For ever: the receiver decides when it posts.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }

    pub(crate) fn connect(&self, data: &[u8]) -> Result {
        let mut param = Self::param(data);
        // SAFETY: the identifier is open; parameters and data live for the call.
        check(unsafe { raw::rdma_connect(self.id.as_ptr(), &raw mut param) })
    }

    pub(crate) fn accept(&self, data: &[u8]) -> Result {
        let mut param = Self::param(data);
        // SAFETY: as above.
        check(unsafe { raw::rdma_accept(self.id.as_ptr(), &raw mut param) })
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result {
        let (at, len) = (data.as_ptr().cast(), data.len() as u8);
        // SAFETY: as above.
        check(unsafe { raw::rdma_reject(self.id.as_ptr(), at, len) })
    }

    /// Reports a message received before the end of the handshake, completing the handshake in its
    /// place.
    pub(crate) fn message_came(&self) -> Result {
        let event = raw::ibv_event_type::IBV_EVENT_COMM_EST;
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_notify(self.id.as_ptr(), event) })
    }

    /// Ends the connection; posted requests are flushed.
    pub(crate) fn disconnect(&self) -> Result {
        // SAFETY: the identifier is open.
        check(unsafe { raw::rdma_disconnect(self.id.as_ptr()) })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: open, and ours; all its events are acknowledged, so the call
        // does not wait.
        unsafe {
            if !self.id.as_ref().qp.is_null() {
                raw::rdma_destroy_qp(self.id.as_ptr());
            }
            raw::rdma_destroy_id(self.id.as_ptr());
        }
    }
}

/// Kind of a connection event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CmKind {
    AddrResolved,
    RouteResolved,
    Request,
    Established,
    Rejected,
    /// The connection could not be made: no listener, no route, or no answer.
    Failed,
    Disconnected,
    /// The device goes away.
    Removed,
    Other,
}

/// An event of a connection.
#[derive(Debug)]
pub(crate) struct CmEvent {
    pub(crate) kind: CmKind,
    /// Token of the event's identifier; for a request, of the listener.
    pub(crate) token: usize,
    /// The new connection, for a request.
    pub(crate) request: Option<CmId>,
    /// 0, a negative errno, or the reason of a rejection.
    pub(crate) status: c_int,
    /// Private data sent by the peer.
    pub(crate) data: Vec<u8>,
}

/// Event channel of connections (rdma_create_event_channel(3)).
#[derive(Debug)]
pub(crate) struct Channel(NonNull<raw::rdma_event_channel>);

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // SAFETY: no memory is passed.
        let channel = object(unsafe { raw::rdma_create_event_channel() })?;
        let channel = Arc::new(Self(channel));
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: open until this is dropped.
        unsafe { self.0.as_ref().fd }
    }

    /// The next event, if there is one.
    pub(crate) fn next(self: &Arc<Self>) -> Option<CmEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open and does not block; what it answers is an
        // event until it is acknowledged, and its private data is as long as it says.
        unsafe {
            if raw::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) != 0 || event.is_null() {
                return None;
            }
            let of = &*event;
            let conn = of.conn;
            let data = match conn.private_data.is_null() {
                true => Vec::new(),
                false => {
                    let len = usize::from(conn.private_data_len);
                    std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
                }
            };
            let kind = match of.event {
                cm_event::RDMA_CM_EVENT_ADDR_RESOLVED => CmKind::AddrResolved,
                cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED => CmKind::RouteResolved,
                cm_event::RDMA_CM_EVENT_CONNECT_REQUEST => CmKind::Request,
                cm_event::RDMA_CM_EVENT_ESTABLISHED => CmKind::Established,
                cm_event::RDMA_CM_EVENT_REJECTED => CmKind::Rejected,
                cm_event::RDMA_CM_EVENT_DISCONNECTED => CmKind::Disconnected,
                cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL => CmKind::Removed,
                cm_event::RDMA_CM_EVENT_ADDR_ERROR
                | cm_event::RDMA_CM_EVENT_ROUTE_ERROR
                | cm_event::RDMA_CM_EVENT_CONNECT_ERROR
                | cm_event::RDMA_CM_EVENT_UNREACHABLE => CmKind::Failed,
                _ => CmKind::Other,
            };
            let (status, id) = (of.status, NonNull::new(of.id));
            let token = id.map_or(0, |id| id.as_ref().context as usize);
            raw::rdma_ack_cm_event(event);
            // Only after that may the new identifier move to another channel.
            let request = match (kind, id) {
                (CmKind::Request, Some(id)) => Some(CmId { id, channel: self.clone(), pd: None }),
                _ => None,
            };
            Some(CmEvent { kind, token, request, status, data })
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifiers hold counts on it, so none is left.
        unsafe { raw::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}
