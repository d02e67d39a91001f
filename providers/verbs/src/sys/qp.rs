//! Queue pairs, their shared receive queues, and requests.
use super::cq::HwCq;
use super::device::Pd;
use super::ret::{check_code, object};
use crate::raw;
use core::ffi::c_int;
use ofi_provider::addr::UdAddr;
use ofi_provider::buf::IOV_LIMIT;
use ofi_provider::error::{Error, Result};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A piece of registered memory (struct ibv_sge).
pub(crate) type Sge = raw::ibv_sge;

/// Receives shared by queue pairs (ibv_create_srq(3)).
#[derive(Debug)]
pub(crate) struct Srq {
    srq: NonNull<raw::ibv_srq>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(crate) fn new(pd: &Arc<Pd>, size: u32, segments: u32) -> Result<Self> {
        let mut attr = raw::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: raw::ibv_srq_attr { max_wr: size, max_sge: segments, srq_limit: 0 },
        };
        // SAFETY: the domain is open, the attributes live for the call.
        let srq = object(unsafe { raw::ibv_create_srq(pd.0.as_ptr(), &raw mut attr) })?;
        Ok(Self { srq, _pd: pd.clone() })
    }

    /// Posts a receive (ibv_post_srq_recv(3)).
    ///
    /// # Safety
    /// The memory of `to` stays the library's until the completion.
    pub(crate) unsafe fn recv(&self, wr_id: u64, to: &mut [Sge]) -> Result {
        let mut wr = recv_wr(wr_id, to);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is open; the request lives for the call.
        check_code(unsafe { raw::ibv_post_srq_recv(self.srq.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the queue pairs on it are gone: endpoints hold the context open.
        unsafe { raw::ibv_destroy_srq(self.srq.as_ptr()) };
    }
}

fn recv_wr(wr_id: u64, to: &mut [Sge]) -> raw::ibv_recv_wr {
    let sg_list = to.as_mut_ptr();
    raw::ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list, num_sge: to.len() as c_int }
}

/// Operation of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Send,
    Write { addr: u64, key: u32 },
    Read { addr: u64, key: u32 },
    FetchAdd { addr: u64, key: u32, add: u64 },
    CompareSwap { addr: u64, key: u32, compare: u64, swap: u64 },
}

/// Options of a work request.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct WorkFlags {
    /// Immediate data for the peer.
    pub(crate) data: Option<u32>,
    /// The bytes are copied by the call.
    pub(crate) inline: bool,
    /// True if success is reported as well as failure.
    pub(crate) signalled: bool,
    /// After all reads and atomic operations before it.
    pub(crate) fence: bool,
}

/// A work request to be posted.
pub(crate) struct WorkRequest {
    wr: raw::ibv_send_wr,
    /// The request's memory.
    pub(crate) sges: [Sge; IOV_LIMIT],
}

// SAFETY: its pointers are set and read by `CmId::post` alone.
unsafe impl Send for WorkRequest {}

impl Default for WorkRequest {
    #[inline]
    fn default() -> Self {
        // SAFETY: numbers and null pointers, so all zeros is a value.
        unsafe { std::mem::zeroed() }
    }
}

impl WorkRequest {
    /// Makes it a request with this number, on the first `count` of its segments.
    #[inline(always)]
    pub(crate) fn is(&mut self, wr_id: u64, verb: Verb, count: usize, how: WorkFlags) {
        use raw::ibv_send_flags as flags;
        use raw::ibv_wr_opcode::*;
        let wr = &mut self.wr;
        wr.wr_id = wr_id;
        wr.num_sge = count.min(IOV_LIMIT) as c_int;
        let on = |on: bool, flag: flags| if on { flag.0 } else { 0 };
        wr.send_flags = on(how.inline, flags::IBV_SEND_INLINE)
            | on(how.signalled, flags::IBV_SEND_SIGNALED)
            | on(how.fence, flags::IBV_SEND_FENCE);
        if let Some(data) = how.data {
            wr.imm_data = data.to_be();
        }
        let with_data = how.data.is_some();
        wr.opcode = match verb {
            Verb::Send if with_data => IBV_WR_SEND_WITH_IMM,
            Verb::Send => IBV_WR_SEND,
            Verb::Write { addr, key } => {
                wr.wr.rdma = raw::rdma_t { remote_addr: addr, rkey: key };
                if with_data { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE }
            }
            Verb::Read { addr, key } => {
                wr.wr.rdma = raw::rdma_t { remote_addr: addr, rkey: key };
                IBV_WR_RDMA_READ
            }
            Verb::FetchAdd { addr, key, add } => {
                wr.wr.atomic =
                    raw::atomic_t { remote_addr: addr, compare_add: add, swap: 0, rkey: key };
                IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Verb::CompareSwap { addr, key, compare, swap } => {
                wr.wr.atomic =
                    raw::atomic_t { remote_addr: addr, compare_add: compare, swap, rkey: key };
                IBV_WR_ATOMIC_CMP_AND_SWP
            }
        };
    }

    /// Makes it a datagram to this peer.
    pub(crate) fn goes(&mut self, way: &UdAddressHandle) {
        let (ah, remote_qpn) = (way.ah.as_ptr(), way.qpn);
        self.wr.wr.ud = raw::ud_t { ah, remote_qpn, remote_qkey: QKEY };
    }
}

/// The attributes of a queue pair to make.
#[derive(Debug)]
pub(crate) struct QpSpec<'a> {
    pub(crate) cq: &'a HwCq,
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
    pub(crate) send_segments: u32,
    pub(crate) recv_segments: u32,
    pub(crate) inline: u32,
    /// For datagrams, not for a connection.
    pub(crate) datagrams: bool,
}

impl QpSpec<'_> {
    pub(super) fn attr(&self) -> raw::ibv_qp_init_attr {
        let cq = self.cq.cq.as_ptr();
        raw::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: self.srq.map_or(ptr::null_mut(), |srq| srq.srq.as_ptr()),
            cap: raw::ibv_qp_cap {
                max_send_wr: self.sends,
                max_recv_wr: if self.srq.is_some() { 0 } else { self.recvs },
                max_send_sge: self.send_segments,
                max_recv_sge: self.recv_segments,
                max_inline_data: self.inline,
            },
            qp_type: match self.datagrams {
                true => raw::ibv_qp_type::IBV_QPT_UD,
                false => raw::ibv_qp_type::IBV_QPT_RC,
            },
            sq_sig_all: 0,
        }
    }

    /// Returns true if the device can create such a queue pair.
    pub(crate) fn is_possible(&self, pd: &Arc<Pd>) -> bool {
        let mut attr = self.attr();
        // SAFETY: domain and queues are open; a pair that was made is destroyed.
        unsafe {
            let qp = raw::ibv_create_qp(pd.0.as_ptr(), &raw mut attr);
            !qp.is_null() && raw::ibv_destroy_qp(qp) == 0
        }
    }
}

/// An open queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp<'a>(pub(super) NonNull<raw::ibv_qp>, pub(super) PhantomData<&'a ()>);

impl Qp<'_> {
    /// The queue pair's number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: open.
        unsafe { self.0.as_ref().qp_num }
    }

    /// Posts a receive (ibv_post_recv(3)).
    ///
    /// # Safety
    /// The memory of `to` stays the library's until the completion.
    pub(crate) unsafe fn recv(&self, wr_id: u64, to: &mut [Sge]) -> Result {
        let mut wr = recv_wr(wr_id, to);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is open; the request lives for the call.
        check_code(unsafe { raw::ibv_post_recv(self.0.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Posts work requests, in this order and with one doorbell (ibv_post_send(3)). On failure,
    /// also returns the number of requests posted nevertheless.
    ///
    /// # Safety
    /// The requests' memory stays the library's until their completion, or until the return for
    /// those sent inline.
    #[inline(always)]
    pub(crate) unsafe fn post(
        &self,
        work: &mut [WorkRequest],
    ) -> core::result::Result<(), (Error, usize)> {
        let mut next: *mut raw::ibv_send_wr = ptr::null_mut();
        for work in work.iter_mut().rev() {
            work.wr.sg_list = work.sges.as_mut_ptr();
            work.wr.next = next;
            next = &raw mut work.wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is open; the requests live for the call.
        let posted = check_code(unsafe { raw::ibv_post_send(self.0.as_ptr(), next, &raw mut bad) });
        posted.map_err(|error| {
            let at = |work: &WorkRequest| ptr::eq(&raw const work.wr, bad);
            (error, work.iter().position(at).unwrap_or(0))
        })
    }

    /// Sets the delay until a peer may retry after finding no posted receive.
    pub(crate) fn set_rnr_timer(&self, timer: u8) -> Result {
        // SAFETY: numbers and plain structures, so all zeros is a value; the queue
        // pair is open.
        unsafe {
            let mut attr: raw::ibv_qp_attr = std::mem::zeroed();
            attr.min_rnr_timer = timer;
            let mask = raw::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as c_int;
            check_code(raw::ibv_modify_qp(self.0.as_ptr(), &raw mut attr, mask))
        }
    }

    /// Flushes the posted requests without a connection to end.
    pub(crate) fn fail(&self) -> Result {
        // SAFETY: as above.
        unsafe {
            let mut attr: raw::ibv_qp_attr = std::mem::zeroed();
            attr.qp_state = raw::ibv_qp_state::IBV_QPS_ERR;
            let mask = raw::ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
            check_code(raw::ibv_modify_qp(self.0.as_ptr(), &raw mut attr, mask))
        }
    }

    fn modify(&self, attr: &mut raw::ibv_qp_attr, mask: raw::ibv_qp_attr_mask) -> Result {
        // SAFETY: open; the attributes live for the call.
        check_code(unsafe { raw::ibv_modify_qp(self.0.as_ptr(), attr, mask.0 as c_int) })
    }
}

/// Queue key shared by the datagram endpoints of upstream libfabric and this library.
const QKEY: u32 = 0x1111_1111;

/// A queue pair for datagrams (IBV_QPT_UD), on the first port.
#[derive(Debug)]
pub(crate) struct UdQp {
    qp: NonNull<raw::ibv_qp>,
    pd: Arc<Pd>,
    /// Index of the port's GID used as source of datagrams.
    pub(crate) gid_index: u8,
    /// Maximum bytes sent inline.
    pub(crate) inline: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for UdQp {}
// SAFETY: as above.
unsafe impl Sync for UdQp {}

impl UdQp {
    /// Creates a queue pair for datagrams, ready to send and receive. Without a `gid_index` of the
    /// user's, its address is the [GID suitable for datagrams](super::device::VerbsDevice::datagram_gid).
    pub(crate) fn new(pd: &Arc<Pd>, spec: &QpSpec<'_>, gid_index: Option<u8>) -> Result<Self> {
        let gid_index = gid_index.unwrap_or_else(|| pd.1.datagram_gid(1));
        let mut attr = spec.attr();
        // SAFETY: all is open; the attributes live for the call.
        let qp = object(unsafe { raw::ibv_create_qp(pd.0.as_ptr(), &raw mut attr) })?;
        let inline = attr.cap.max_inline_data;
        let pair = Self { qp, pd: pd.clone(), gid_index, inline };
        use raw::ibv_qp_attr_mask as mask;
        // SAFETY: numbers and plain structures, so all zeros is a value.
        let mut attr: raw::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.port_num = 1;
        attr.qkey = QKEY;
        attr.qp_state = raw::ibv_qp_state::IBV_QPS_INIT;
        let port = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY;
        pair.qp().modify(&mut attr, mask::IBV_QP_STATE | port)?;
        attr.qp_state = raw::ibv_qp_state::IBV_QPS_RTR;
        pair.qp().modify(&mut attr, mask::IBV_QP_STATE)?;
        attr.qp_state = raw::ibv_qp_state::IBV_QPS_RTS;
        pair.qp().modify(&mut attr, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN)?;
        Ok(pair)
    }

    pub(crate) fn qp(&self) -> Qp<'_> {
        Qp(self.qp, PhantomData)
    }

    /// The way to another queue pair.
    pub(crate) fn address_handle_of(&self, to: &UdAddr) -> Result<UdAddressHandle> {
        // SAFETY: numbers only, so all zeros is a value.
        let mut attr: raw::ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.grh.dgid = raw::ibv_gid { raw: to.gid };
        attr.grh.sgid_index = self.gid_index;
        attr.grh.hop_limit = 64;
        attr.is_global = 1;
        attr.dlid = to.lid;
        attr.sl = to.sl;
        attr.port_num = 1;
        // SAFETY: open; the attributes live for the call.
        let ah = object(unsafe { raw::ibv_create_ah(self.pd.0.as_ptr(), &raw mut attr) })?;
        Ok(UdAddressHandle { ah, qpn: to.qpn, _pd: self.pd.clone() })
    }
}

impl Drop for UdQp {
    fn drop(&mut self) {
        // SAFETY: open, and ours.
        unsafe { raw::ibv_destroy_qp(self.qp.as_ptr()) };
    }
}

/// The way to a peer's queue pair for datagrams (ibv_create_ah(3)).
#[derive(Debug)]
pub(crate) struct UdAddressHandle {
    ah: NonNull<raw::ibv_ah>,
    qpn: u32,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for UdAddressHandle {}
// SAFETY: as above.
unsafe impl Sync for UdAddressHandle {}

impl Drop for UdAddressHandle {
    fn drop(&mut self) {
        // SAFETY: open, and requests that use it were copied when they were posted.
        unsafe { raw::ibv_destroy_ah(self.ah.as_ptr()) };
    }
}
