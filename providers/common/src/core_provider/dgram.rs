//! Datagram endpoints of a core provider, and the address vectors of their peers.
use super::call::{bind, call, close, code, control, set_bytes};
use super::domain::CoreDomain;
use super::memory::CoreBuf;
use super::options::{
    OPT_ICMP_ERRORS, OPT_RECEIVE_MANY, OPT_SEND_MANY, OPT_UNKNOWN_SOURCES, UNKNOWN_SOURCE_LEN,
};
use super::post::{post_first, start_send};
use super::queue::CoreCq;
use crate::abi::{self, fi_addr_t, fi_av_attr, fi_av_type, fid, fid_av, fid_ep};
use crate::error::{Error, Result};
use crate::info::InfoBuf;
use crate::stack::on_own_stack;
use core::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// A core provider's address vector.
#[derive(Debug)]
pub struct CoreAv {
    raw: NonNull<fid_av>,
    _domain: Arc<CoreDomain>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreAv {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreAv {}

impl CoreAv {
    /// Opens a vector (fi_av_open(3)).
    pub fn open(domain: &Arc<CoreDomain>) -> Result<Arc<Self>> {
        let mut raw: *mut fid_av = ptr::null_mut();
        // SAFETY: all zeros but for the type is a valid attribute, which lives for the call.
        unsafe {
            let mut attr = std::mem::zeroed::<fi_av_attr>();
            attr.r#type = fi_av_type::FI_AV_TABLE.into();
            let open = call!(domain.raw().as_ref().ops, av_open);
            code(open(domain.raw().as_ptr(), &mut attr, &mut raw, ptr::null_mut()))?;
        }
        let raw = NonNull::new(raw).ok_or(Error::OTHER)?;
        Ok(Arc::new(Self { raw, _domain: domain.clone() }))
    }

    fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// Names an address of the core's format.
    pub fn insert(&self, addr: &[u8]) -> Result<fi_addr_t> {
        let mut name = abi::FI_ADDR_NOTAVAIL;
        // An address is copied to where one of any format may be read.
        let mut name_buf = [0u64; 32];
        let bytes = name_buf.as_mut_ptr().cast::<u8>();
        let len = addr.len().min(size_of_val(&name_buf));
        // SAFETY: open; the room is longer than any address and lives for the call, as the name.
        let inserted = unsafe {
            ptr::copy_nonoverlapping(addr.as_ptr(), bytes, len);
            let insert = call!(self.raw.as_ref().ops, insert);
            insert(self.raw.as_ptr(), bytes.cast_const().cast(), 1, &mut name, 0, ptr::null_mut())
        };
        match inserted {
            1 => Ok(name),
            error if error < 0 => Err(Error::from_code(-error as c_int)),
            _ => Err(Error::INVAL),
        }
    }

    /// Forgets a name.
    pub fn remove(&self, mut name: fi_addr_t) {
        let _ = (|| {
            // SAFETY: open; the name lives for the call.
            unsafe {
                let remove = call!(self.raw.as_ref().ops, remove);
                code(remove(self.raw.as_ptr(), &mut name, 1, 0))
            }
        })();
    }
}

impl Drop for CoreAv {
    fn drop(&mut self) {
        // SAFETY: its endpoints hold a count on this, so none is left.
        let _ = unsafe { close(self.fid()) };
    }
}

/// Extensions of a core provider's datagram endpoint beyond the API.
#[derive(Clone, Copy, Debug)]
pub struct DgramMeans {
    /// Takes and sends many datagrams at a time ([`OPT_RECEIVE_MANY`]).
    pub many: bool,
    /// True if addresses of senders in no address vector are reported ([`OPT_UNKNOWN_SOURCES`]).
    pub unknown_sources: bool,
    /// True if closed ports are reported ([`OPT_ICMP_ERRORS`]).
    pub icmp_errors: bool,
}

/// A core provider's datagram endpoint.
#[derive(Debug)]
pub struct CoreDgram {
    raw: NonNull<fid_ep>,
    owner: u32,
    cq: Arc<CoreCq>,
    av: Arc<CoreAv>,
}

// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Send for CoreDgram {}
// SAFETY: an object of a domain with FI_THREAD_SAFE, which may be used from any thread.
unsafe impl Sync for CoreDgram {}

impl CoreDgram {
    /// Opens an endpoint described by `info`, and enables it.
    ///
    /// Also returns its extensions beyond the API. The kernel's receive buffer for several
    /// datagrams per call gets the given number of bytes.
    pub fn open(
        info: &InfoBuf,
        cq: &Arc<CoreCq>,
        av: &Arc<CoreAv>,
        held: usize,
    ) -> Result<(Self, DgramMeans)> {
        on_own_stack(|| Self::open_here(info, cq, av, held))
    }

    fn open_here(
        info: &InfoBuf,
        cq: &Arc<CoreCq>,
        av: &Arc<CoreAv>,
        held: usize,
    ) -> Result<(Self, DgramMeans)> {
        let raw = cq.domain().open_endpoint(info)?;
        let ep = Self { raw, owner: cq.owner(), cq: cq.clone(), av: av.clone() };
        // SAFETY: all are open and of one domain.
        unsafe {
            bind(ep.fid(), av.fid(), 0)?;
            bind(ep.fid(), cq.fid(), abi::FI_TRANSMIT | abi::FI_RECV)?;
            control(ep.fid(), abi::FI_ENABLE, ptr::null_mut())?;
        }
        // SAFETY: open.
        let many = unsafe { set_bytes(ep.raw, OPT_RECEIVE_MANY, &held.to_ne_bytes()) }.is_ok();
        // SAFETY: open.
        let unknown_sources = unsafe { set_bytes(ep.raw, OPT_UNKNOWN_SOURCES, &[]) }.is_ok();
        // SAFETY: open.
        let icmp_errors = unsafe { set_bytes(ep.raw, OPT_ICMP_ERRORS, &[]) }.is_ok();
        Ok((ep, DgramMeans { many, unknown_sources, icmp_errors }))
    }

    fn fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    /// Returns the address vector of its peers.
    pub fn av(&self) -> &Arc<CoreAv> {
        &self.av
    }

    /// The endpoint's own address.
    pub fn name(&self) -> Result<Vec<u8>> {
        let mut name = vec![0; 256];
        let mut len = name.len();
        // SAFETY: open; the room is as long as said.
        unsafe {
            let getname = call!(self.raw.as_ref().cm, getname);
            code(getname(self.fid(), name.as_mut_ptr().cast(), &mut len))?;
        }
        name.truncate(len);
        Ok(name)
    }

    /// Sends datagrams following a [`DatagramBatch`] ([`OPT_SEND_MANY`]).
    pub fn send_many(&self, value: &[u8]) -> Result {
        // SAFETY: open.
        unsafe { set_bytes(self.raw, OPT_SEND_MANY, value) }
    }

    /// Returns the next destination address with a closed port ([`OPT_ICMP_ERRORS`]).
    pub fn next_injected_error(&self) -> Result<[u8; UNKNOWN_SOURCE_LEN]> {
        let mut addr = [0; UNKNOWN_SOURCE_LEN];
        let (level, mut len) = (abi::FI_OPT_ENDPOINT as c_int, addr.len());
        // SAFETY: open; the room for the value is as long as said, and lives for the call.
        unsafe {
            let getopt = call!(self.raw.as_ref().ops, getopt);
            let value = addr.as_mut_ptr().cast();
            code(getopt(self.fid(), level, OPT_ICMP_ERRORS, value, &mut len))?;
        }
        Ok(addr)
    }

    /// Posts a buffer for a datagram.
    pub fn post(&self, buf: CoreBuf, token: u64) -> core::result::Result<(), (Error, CoreBuf)> {
        // SAFETY: open, and it reports to this queue.
        unsafe { post_first(self.raw, &self.cq, self.owner, buf, token) }
    }

    /// Sends a datagram copied by the core provider at once, without a completion.
    #[inline]
    pub fn inject(&self, bytes: &[u8], to: fi_addr_t) -> Result {
        // SAFETY: open; the bytes live for the call, which is as long as the core needs them.
        let sent = unsafe {
            let inject = call!(self.raw.as_ref().msg, inject);
            inject(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len(), to)
        };
        if sent == 0 { Ok(()) } else { Err(Error::from_code(-sent as c_int)) }
    }

    /// Sends the first `len` bytes of `buf`.
    pub fn send(
        &self,
        buf: CoreBuf,
        len: usize,
        to: fi_addr_t,
        token: u64,
    ) -> core::result::Result<(), (Error, CoreBuf)> {
        // SAFETY: open, and it reports to this queue.
        unsafe { start_send(self.raw, &self.cq, self.owner, buf, len, to, token) }
    }
}

impl Drop for CoreDgram {
    fn drop(&mut self) {
        // SAFETY: open until here.
        drop(unsafe { self.cq.close_owner(self.fid(), self.owner) });
    }
}
