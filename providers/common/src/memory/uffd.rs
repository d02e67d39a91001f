//! Memory monitor by userfaultfd(2). The kernel reports unmapped, moved or dropped pages, and the
//! responsible call returns only after the report was read.
//!
//! Pages are registered for write protection, and never protected. This causes no faults, and
//! events arrive for everything registered.
//!
//! The report follows the removal of the pages. So a thread mapping and registering them anew
//! before the return of the unmapping call may still find the old region; the kernel interface
//! leaves this race open.
use crate::error::{Error, Result};
use crate::memory_events::{MemoryEvents, MemoryWatch};
use crate::sys::{Epoll, EventFd, Interest, check};
use crate::worker::{Worker, rest};
use core::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

const API: u64 = 0xaa;
const USER_MODE_ONLY: c_int = 1;
const REGISTER_MODE_WP: u64 = 1 << 1;
const FEATURE_WP: u64 = 1 << 0;
const FEATURE_EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6; // remap, remove, unmap
const FEATURE_WP_SHARED: u64 = 1 << 12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdRegister {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

/// `struct uffd_msg`, with the members of its union for the three events: start and end, or for a
/// move source, destination and length.
#[repr(C)]
#[derive(Clone, Copy)]
struct UffdMsg {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}
const _: () = assert!(size_of::<UffdMsg>() == 32);

const UFFDIO_API: libc::Ioctl = libc::_IOWR::<UffdApi>(0xaa, 0x3f);
const UFFDIO_REGISTER: libc::Ioctl = libc::_IOWR::<UffdRegister>(0xaa, 0x00);
const UFFDIO_UNREGISTER: libc::Ioctl = libc::_IOR::<UffdRange>(0xaa, 0x01);

/// Userfaultfd and its reader thread.
pub(crate) struct Uffd {
    fd: Arc<OwnedFd>,
    stop: Arc<EventFd>,
    reader: Worker,
}

impl Uffd {
    /// Starts watching nothing. -FI_EPERM, -FI_ENOSYS or -FI_EINVAL when the
    /// kernel does not let us, or cannot.
    pub(crate) fn start(notices: Arc<MemoryEvents>) -> Result<Self> {
        let fd = Arc::new(open(FEATURE_WP_SHARED).or_else(|_| open(0))?);
        let stop = Arc::new(EventFd::new()?);
        let epoll = Epoll::new()?;
        epoll.add(fd.as_raw_fd(), 0, Interest::READ)?;
        epoll.add(stop.as_raw_fd(), 1, Interest::READ)?;
        let of_thread = fd.clone();
        let reader = Worker::start("ofi-uffd", move || read_events(&of_thread, &epoll, &notices))?;
        Ok(Self { fd, stop, reader })
    }
}

fn open(more: u64) -> Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let open = |flags: c_int| {
        // SAFETY: takes flags, answers a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 { Err(Error::last_os()) } else { Ok(fd as c_int) }
    };
    // Without the right to handle faults in the kernel, those of the program are enough.
    let fd = open(flags).or_else(|_| open(flags | USER_MODE_ONLY))?;
    // SAFETY: just opened, and owned once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = UffdApi { api: API, features: FEATURE_WP | FEATURE_EVENTS | more, ioctls: 0 };
    // SAFETY: the kernel reads and writes that structure.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) })?;
    Ok(fd)
}

/// Reads events until the stop is requested.
fn read_events(fd: &OwnedFd, epoll: &Epoll, notices: &MemoryEvents) {
    loop {
        let (mut events, mut stop) = (false, false);
        let waited = rest(|| {
            epoll.wait(None, |event| match event.token {
                0 => events = true,
                _ => stop = true,
            })
        });
        if stop || waited.is_err() {
            return;
        }
        if events {
            // The unmapping thread continues as soon as the event is read, so look-ups are blocked
            // from before that.
            notices.report(|tell| {
                while let Some(range) = read_event(fd) {
                    tell(range)
                }
            });
        }
    }
}

/// The next report, `None` if there is no more.
fn read_event(fd: &OwnedFd) -> Option<Range<usize>> {
    let mut msg = UffdMsg { event: 0, reserved: [0; 7], arg: [0; 3] };
    let size = size_of_val(&msg);
    // SAFETY: the kernel writes one message, whose size that is.
    let n = unsafe { libc::read(fd.as_raw_fd(), (&raw mut msg).cast(), size) };
    if usize::try_from(n) != Ok(size) {
        return None;
    }
    let [a, b, c] = msg.arg.map(|arg| arg as usize);
    Some(match msg.event {
        EVENT_UNMAP | EVENT_REMOVE => a..b,
        EVENT_REMAP => a..a.saturating_add(c),
        // No other event was asked for: nothing changed.
        _ => 0..0,
    })
}

impl MemoryWatch for Uffd {
    fn watch(&self, pages: Range<usize>) -> Result {
        let range = UffdRange { start: pages.start as u64, len: pages.len() as u64 };
        let mut register = UffdRegister { range, mode: REGISTER_MODE_WP, ioctls: 0 };
        // SAFETY: the kernel reads and writes that structure; registered pages
        // behave as before, since none is ever protected.
        let ret = unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut register) };
        check(ret).map(drop)
    }

    fn unwatch(&self, pages: Range<usize>) {
        let mut range = UffdRange { start: pages.start as u64, len: pages.len() as u64 };
        // Fails where nothing is mapped any more, and then there is nothing to end.
        // SAFETY: the kernel reads that structure.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_UNREGISTER, &raw mut range) };
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        let Self { stop, reader, .. } = self;
        reader.end(|| stop.signal());
    }
}
