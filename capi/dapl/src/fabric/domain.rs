//! Domains, their events, and waiting for these.
use super::calls::*;
use super::info::*;
use crate::layout::Handle;
use ofi::abi::*;
use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// Object of libfabric closed with its last reference.
pub(super) struct OwnedFid(pub(super) *mut fid);
// SAFETY: libfabric's objects may be used by any thread, and ours only with the one lock held.
unsafe impl Send for OwnedFid {}
// SAFETY: as above.
unsafe impl Sync for OwnedFid {}

impl Drop for OwnedFid {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// A fabric, its domain and its event queue; they close in the order they are written in.
pub(crate) struct FabricDomain {
    pub(super) eq: OwnedFid,
    domain: OwnedFid,
    pub(super) domain_wait_set: Option<DomainWaitSet>,
    pub(super) fabric: OwnedFid,
}

/// Common wait set of all queues of a domain, and its descriptor.
pub(super) struct DomainWaitSet {
    set: OwnedFid,
    descriptor: c_int,
}

impl DomainWaitSet {
    /// One of this fabric's; none if its provider has no such thing.
    fn open(fabric: *mut fid_fabric) -> Option<Self> {
        let wait_obj = c_enum::from_raw(fi_wait_obj::FI_WAIT_FD as u32);
        let mut attr = fi_wait_attr { wait_obj, flags: 0 };
        let mut set: *mut fid_wait = null_mut();
        code(call!(-FI_ENOSYS, fabric, ops, wait_open, &mut attr, &mut set)).ok()?;
        let set = OwnedFid(set.cast());
        let mut descriptor: c_int = -1;
        let buffer = (&raw mut descriptor).cast();
        code(call!(-FI_ENOSYS, set.0, ops, control, FI_GETWAIT, buffer)).ok()?;
        (descriptor >= 0).then_some(Self { set, descriptor })
    }

    /// Returns the attributes of a queue for this wait set.
    pub(super) fn of_queue(this: Option<&Self>) -> (c_enum<fi_wait_obj>, *mut fid_wait) {
        let (kind, set) = match this {
            Some(domain_wait_set) => (fi_wait_obj::FI_WAIT_SET, domain_wait_set.set.0.cast()),
            None => (fi_wait_obj::FI_WAIT_NONE, null_mut()),
        };
        (c_enum::from_raw(kind as u32), set)
    }
}

/// Waiter blocking until an event in a domain, or a notification by another thread.
pub(crate) struct DomainWaiter {
    own: OwnedFd,
    domain: Arc<FabricDomain>,
    descriptor: c_int,
}

impl DomainWaiter {
    /// One for this domain; none if there is nothing to block on, or no descriptor.
    pub(crate) fn open(domain: &Arc<FabricDomain>) -> Option<Self> {
        let descriptor = domain.domain_wait_set.as_ref()?.descriptor;
        // SAFETY: a number and flags.
        let own = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if own < 0 {
            return None;
        }
        // SAFETY: a descriptor that was opened here.
        let own = unsafe { OwnedFd::from_raw_fd(own) };
        Some(Self { own, domain: Arc::clone(domain), descriptor })
    }

    /// Returns the number for [`wake`].
    pub(crate) fn number(&self) -> c_int {
        self.own.as_raw_fd()
    }

    /// Returns true if the thread may sleep: nothing is readable.
    pub(crate) fn is_allowed(&self) -> bool {
        let Some(domain_wait_set) = &self.domain.domain_wait_set else { return false };
        let fabric: *mut fid_fabric = self.domain.fabric.0.cast();
        let mut one = domain_wait_set.set.0;
        call!(-FI_ENOSYS, fabric, ops, trywait, &mut one, 1) == 0
    }

    /// Sleeps, so long at most.
    pub(crate) fn sleep(&self, most: Duration) {
        let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [fd(self.descriptor), fd(self.number())];
        let most = libc::timespec {
            tv_sec: most.as_secs() as _,
            tv_nsec: most.subsec_nanos() as libc::c_long,
        };
        // SAFETY: two entries, and descriptors that stay open as long as this.
        unsafe { libc::ppoll(both.as_mut_ptr(), 2, &most, null()) };
        if both[1].revents != 0 {
            let mut value = 0u64;
            // SAFETY: room for a number.
            unsafe { libc::read(self.number(), (&raw mut value).cast(), size_of::<u64>()) };
        }
    }
}

/// Wakes the thread sleeping with this number.
pub(crate) fn wake(number: c_int) {
    let one = 1u64;
    // SAFETY: a descriptor of a sleep that is not over, and a number.
    unsafe { libc::write(number, (&raw const one).cast(), size_of::<u64>()) };
}

/// Event of an event queue.
pub(crate) enum FabricEvent {
    /// Connection request to a listener: the listener's owner, the info, and the data.
    Request(Handle, FabricInfo, Vec<u8>),
    Connected(Handle, Vec<u8>),
    Shutdown(Handle),
    /// A connection did not come about or failed, by this code and with this data.
    Failed(Handle, Code, Vec<u8>),
}

impl FabricDomain {
    /// All three.
    pub(crate) fn open(info: &FabricInfo) -> Result<Arc<Self>, Code> {
        let calls = calls().ok_or(FI_ENOSYS)?;
        let mut fabric: *mut fid_fabric = null_mut();
        // SAFETY: the description has its fabric, and there is room for the answer.
        code(unsafe { (calls.fabric)((*info.0).fabric_attr, &mut fabric, null_mut()) })?;
        let fabric_fid = OwnedFid(fabric.cast());
        let mut domain: *mut fid_domain = null_mut();
        code(call!(-FI_ENOSYS, fabric, ops, domain, info.0, &mut domain, null_mut()))?;
        let domain = OwnedFid(domain.cast());
        let mut eq: *mut fid_eq = null_mut();
        let mut open = |domain_wait_set: Option<&DomainWaitSet>| {
            let (wait_obj, wait_set) = DomainWaitSet::of_queue(domain_wait_set);
            let mut attr =
                fi_eq_attr { size: 1024, flags: 0, wait_obj, signaling_vector: 0, wait_set };
            code(call!(-FI_ENOSYS, fabric, ops, eq_open, &mut attr, &mut eq, null_mut()))
        };
        let domain_wait_set = DomainWaitSet::open(fabric)
            .filter(|domain_wait_set| open(Some(domain_wait_set)).is_ok());
        if domain_wait_set.is_none() {
            open(None)?;
        }
        Ok(Arc::new(Self { eq: OwnedFid(eq.cast()), domain, domain_wait_set, fabric: fabric_fid }))
    }

    pub(super) fn domain(&self) -> *mut fid_domain {
        self.domain.0.cast()
    }

    /// The next event.
    pub(crate) fn event(&self) -> Option<FabricEvent> {
        #[repr(C, align(8))]
        struct EventBuffer(fi_eq_cm_entry, [u8; EVENT_BYTES]);
        let eq: *mut fid_eq = self.eq.0.cast();
        let mut buffer = EventBuffer(
            fi_eq_cm_entry { fid: null_mut(), info: null_mut(), data: [] },
            [0; EVENT_BYTES],
        );
        let mut what = 0;
        let length = size_of::<EventBuffer>();
        let answer = call!(
            -(FI_EAGAIN as isize),
            eq,
            ops,
            read,
            &mut what,
            (&raw mut buffer).cast(),
            length,
            0
        );
        if answer == -(FI_EAVAIL as isize) {
            return self.failure();
        }
        let data = usize::try_from(answer).ok()?.checked_sub(size_of::<fi_eq_cm_entry>())?;
        let data = buffer.1[..data.min(EVENT_BYTES)].to_vec();
        // SAFETY: events of connections are of open objects of ours.
        let of = number(unsafe { (*buffer.0.fid).context });
        match what as c_int {
            FI_CONNREQ => Some(FabricEvent::Request(of, FabricInfo(buffer.0.info), data)),
            FI_CONNECTED => Some(FabricEvent::Connected(of, data)),
            FI_SHUTDOWN => Some(FabricEvent::Shutdown(of)),
            _ => None,
        }
    }

    fn failure(&self) -> Option<FabricEvent> {
        let eq: *mut fid_eq = self.eq.0.cast();
        let mut buffer = [0u8; EVENT_BYTES];
        let mut entry = fi_eq_err_entry {
            fid: null_mut(),
            context: null_mut(),
            data: 0,
            err: 0,
            prov_errno: 0,
            err_data: buffer.as_mut_ptr().cast(),
            err_data_size: buffer.len(),
        };
        let answer = call!(0, eq, ops, readerr, &mut entry, 0);
        if answer <= 0 || entry.fid.is_null() {
            return None;
        }
        let length = entry.err_data_size.min(EVENT_BYTES);
        let mut data = Vec::new();
        if !entry.err_data.is_null() {
            // SAFETY: the data has the length that the entry says, here or at the provider's.
            data =
                unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), length) }.to_vec();
        }
        // SAFETY: an open object of ours.
        let of = number(unsafe { (*entry.fid).context });
        Some(FabricEvent::Failed(of, entry.err, data))
    }
}
