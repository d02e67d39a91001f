//! Safe wrappers for system calls missing in the standard library.
use crate::addr;
use crate::error::{Error, Result};
use core::ffi::CStr;
use rustix::event::EventfdFlags;
use rustix::event::epoll::CreateFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, getrlimit, test_kill_process};
use rustix::rand::GetRandomFlags;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

/// Turns a system call's -1 into the error it left in errno.
pub(crate) fn check(ret: libc::c_int) -> Result<libc::c_int> {
    if ret < 0 { Err(Error::last_os()) } else { Ok(ret) }
}

/// Returns the error of a call of `rustix`.
pub(crate) fn os_error(error: Errno) -> Error {
    Error::from_code(error.raw_os_error())
}

/// Returns true if a thread not joined yet is the calling one.
pub(crate) fn is_this_thread(thread: libc::pthread_t) -> bool {
    // SAFETY: nothing is asked of the threads.
    unsafe { libc::pthread_equal(thread, libc::pthread_self()) != 0 }
}

/// Returns a number distinguishing the calling thread from all other live threads, without
/// thread-local memory.
pub fn thread_number() -> usize {
    // SAFETY: no memory is involved.
    unsafe { libc::pthread_self() as usize }
}

/// Makes `fd`, with its number unchanged, refer to the open file of `other`.
pub fn replace(fd: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result {
    // SAFETY: both descriptors are open, and both stay so.
    check(unsafe { libc::dup3(other.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) })?;
    Ok(())
}

/// Returns a UDP socket at an address shareable with other sockets of this host.
pub fn shared_udp_socket(at: &SocketAddr) -> Result<UdpSocket> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::DGRAM, flags, None).map_err(os_error)?;
    net::sockopt::set_socket_reuseaddr(&socket, true).map_err(os_error)?;
    net::bind(&socket, at).map_err(os_error)?;
    Ok(socket.into())
}

/// Returns a unix socket of this abstract name (unix(7)). Others can connect to it and send neither
/// bytes nor descriptors. Fails with -FI_EADDRINUSE if the name is in use.
pub fn name_holder(name: &[u8]) -> Result<OwnedFd> {
    let at = SocketAddrUnix::new_abstract_name(name).map_err(os_error)?;
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = net::socket_with(family, SocketType::DGRAM, flags, None).map_err(os_error)?;
    // Before any other process can know of it.
    net::shutdown(&socket, Shutdown::Read).map_err(os_error)?;
    net::bind(&socket, &at).map_err(os_error)?;
    Ok(socket)
}

/// Sets a numeric option of a socket.
pub fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value outlives the call, which only reads it.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
    })?;
    Ok(())
}

/// User of this process at the first call of [`note_user`].
static FIRST_USER: OnceLock<u32> = OnceLock::new();

/// Records the user of the process, before its threads act for other users.
pub fn note_user() {
    FIRST_USER.get_or_init(|| user_ids()[1]);
}

/// The calling thread's real, effective and saved user (getresuid(2)).
fn user_ids() -> [u32; 3] {
    let [mut real, mut effective, mut saved] = [0; 3];
    // SAFETY: the call writes three numbers, which outlive it.
    unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) };
    [real, effective, saved]
}

/// Returns the user of this process. It is the same for all its threads, even if some temporarily
/// act for others (setfsuid(2), seteuid(2) as a system call).
pub fn user() -> u32 {
    note_user();
    let first = FIRST_USER.get().copied();
    user_of(user_ids(), first)
}

/// A process able to change back to the first user still belongs to it; any other process has
/// changed for good.
fn user_of(ids: [u32; 3], first: Option<u32>) -> u32 {
    let [_, effective, _] = ids;
    first.filter(|_| ids != [effective; 3]).unwrap_or(effective)
}

/// Returns true if a process with this user id, as reported by the kernel (SO_PEERCRED), runs as
/// the user of this process. A user namespace maps all unknown users to one number, and they cannot
/// be distinguished.
pub(crate) fn is_own_user(uid: u32) -> bool {
    let number =
        |file| std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    uid == user()
        && (uid != number("/proc/sys/kernel/overflowuid").unwrap_or(65534) || knows_all_users())
}

/// Returns true if each user of the system has a number in the namespace of this process.
fn knows_all_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count =
        |line: &str| line.split_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok());
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

/// A random number from the system (getrandom(2)); 0 if it has none.
pub fn random() -> u64 {
    let mut random = [0; 8];
    let _ = rustix::rand::getrandom(&mut random, GetRandomFlags::empty());
    u64::from_ne_bytes(random)
}

/// Fills a buffer with unpredictable random bytes (getrandom(2)).
pub fn fill_random(bytes: &mut [u8]) -> Result {
    let len = bytes.len();
    let filled = rustix::rand::getrandom(bytes, GetRandomFlags::empty());
    if filled == Ok(len) { Ok(()) } else { Err(Error::IO) }
}

/// Returns true if the process has more privileges than its caller (a set-user-ID program, for
/// example). Such a process shares nothing with other processes of its user.
pub fn has_more_rights() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Number of this process among a program and its forked children. Children have a copy and
/// increment it.
static FORKS: AtomicU32 = AtomicU32::new(1);

/// The same number in memory cleared by the kernel in every child, for any kind of fork
/// (MADV_WIPEONFORK of madvise(2)). Null before [`count_forks`], and on systems without such
/// memory.
static OWN_NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the number of this process among a program and its forked children: a child's number
/// differs from its parent's. Makes no system call. Requires [`count_forks`].
#[inline(always)]
pub fn generation() -> u32 {
    // SAFETY: null, or memory that stays mapped as long as the process lives.
    match unsafe { OWN_NUMBER.load(Ordering::Acquire).as_ref() } {
        Some(own) => match own.load(Ordering::Relaxed) {
            0 => number_child(own),
            number => number,
        },
        None => FORKS.load(Ordering::Relaxed),
    }
}

/// Owner of an object: a process, distinguished from its forked children with copies of the object.
#[derive(Clone, Copy, Debug)]
pub struct OwnerProcess {
    number: u32,
    current: &'static AtomicU32,
}

impl OwnerProcess {
    /// Returns the calling process. Requires [`count_forks`].
    pub fn current() -> Self {
        let number = generation();
        // SAFETY: null, or memory that stays mapped as long as the process lives.
        let own = unsafe { OWN_NUMBER.load(Ordering::Acquire).as_ref() };
        Self { number, current: own.unwrap_or(&FORKS) }
    }

    /// Returns true in the process itself, false in its forked children. Makes no system call.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        // In a child the memory is 0, or has the number of the child.
        self.current.load(Ordering::Relaxed) == self.number
    }
}

/// Gives a forked child a number of its own.
#[cold]
fn number_child(own: &AtomicU32) -> u32 {
    let number = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    let first = own.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    first.map_or_else(|other| other, |_| number)
}

/// Enables [`generation`] to distinguish children from their parents. If the kernel clears memory
/// for them, this includes children of `_Fork`(3) and of the bare system call, without
/// pthread_atfork(3) handlers.
pub fn count_forks() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler stays as long as this library does, and touches one number.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // SAFETY: new memory, a page of zeros, is asked for, which is never unmapped.
        let page = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return;
        }
        // SAFETY: the memory is that page, and nothing else uses it.
        if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: as above.
            unsafe { libc::munmap(page, PAGE) };
            return;
        }
        let own = page.cast::<AtomicU32>();
        // SAFETY: the page begins with such a number, aligned, and is never unmapped from here on.
        unsafe { &*own }.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
        OWN_NUMBER.store(own, Ordering::Release);
    });
}

/// Bytes of the smallest page of any processor of the library's.
const PAGE: usize = 4096;

/// Returns true if a file may have this many bytes. Beyond RLIMIT_FSIZE the kernel answers an
/// attempt to extend a file with a fatal signal (SIGXFSZ), and unnamed memory counts as a file.
pub fn may_have_size(len: usize) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| len as u64 <= limit)
}

/// Seals preventing the removal of pages of a memory file.
pub(crate) const FIXED_SIZE: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Returns a descriptor of zeroed memory of this length. The length is sealed ([`FIXED_SIZE`]).
pub(crate) fn sealed_memory(name: &CStr, len: usize) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let create = |flags| rustix::fs::memfd_create(name, flags);
    // A kernel before 6.3 does not know that memory need not be executable.
    let created = create(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| create(flags));
    let fd = created.map_err(os_error)?;
    if libc::off_t::try_from(len).is_err() {
        return Err(Error::INVAL);
    }
    if !may_have_size(len) {
        return Err(Error::from_code(libc::EFBIG));
    }
    rustix::fs::ftruncate(&fd, len as u64).map_err(os_error)?;
    rustix::fs::fcntl_add_seals(&fd, FIXED_SIZE).map_err(os_error)?;
    Ok(fd)
}

/// Kind of lock on a part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileLock {
    /// Not.
    Open,
    /// Excludes exclusive locks.
    Shared,
    /// Against all others.
    Exclusive,
}

/// Locks a byte of a file, replacing the lock of this open file there. The lock belongs to the open
/// file, and the kernel releases it with the last descriptor (F_OFD_SETLK in fcntl(2)). Fails with
/// -FI_EAGAIN if it is locked by others, unless `wait` is set.
pub(crate) fn lock_file(fd: BorrowedFd<'_>, byte: i64, lock: FileLock, wait: bool) -> Result {
    let kind = match lock {
        FileLock::Open => libc::F_UNLCK,
        FileLock::Shared => libc::F_RDLCK,
        FileLock::Exclusive => libc::F_WRLCK,
    };
    let call = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: zeros are a valid `flock64`, as numbers of any kind are.
    let mut region = unsafe { std::mem::zeroed::<libc::flock64>() };
    region.l_type = kind as libc::c_short;
    region.l_whence = libc::SEEK_SET as libc::c_short;
    (region.l_start, region.l_len) = (byte, 1);
    loop {
        // SAFETY: the descriptor is open, and `region` outlives the call.
        match check(unsafe { libc::fcntl(fd.as_raw_fd(), call, &raw mut region) }) {
            Err(Error::INTR) => {}
            Err(Error::ACCES) => return Err(Error::AGAIN),
            answer => return answer.map(|_| ()),
        }
    }
}

/// Returns the number of threads of the process, or `None` if the kernel does not report it.
pub(crate) fn threads() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // The folder has one in it for each, and two links besides.
    let links = std::fs::metadata("/proc/self/task").ok()?.nlink();
    links.checked_sub(2)
}

/// Returns true if no process has this number any more; 0 is an unknown process.
pub(crate) fn is_gone(process: libc::pid_t) -> bool {
    let process = Pid::from_raw(process).filter(|process| process.as_raw_nonzero().get() > 0);
    process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// A value of sysconf(3); 0 if the system does not know it.
pub(crate) fn sysconf(what: libc::c_int) -> usize {
    // SAFETY: asks for a number; -1 if there is none.
    usize::try_from(unsafe { libc::sysconf(what) }).unwrap_or(0)
}

/// Returns the maximum number of open descriptors of the process (RLIMIT_NOFILE). A change shows
/// within a tenth of a second: engines ask in each progress iteration.
pub fn max_descriptors() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    static READ_AT: AtomicU64 = AtomicU64::new(0);
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Tenths of a second, none of them 0.
    let tenth = now.tv_sec as u64 * 10 + now.tv_nsec as u64 / 100_000_000 + 1;
    if READ_AT.load(Ordering::Acquire) != tenth {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        KNOWN.store(limit, Ordering::Relaxed);
        READ_AT.store(tenth, Ordering::Release);
    }
    KNOWN.load(Ordering::Relaxed)
}

/// Epoll instance, reporting the ready descriptors.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    /// Process that created the instance ([`generation`]). A forked child shares it and must not
    /// change the parent's interest list.
    process: u32,
}

/// Events of one descriptor, reported by [`Epoll::wait`].
#[derive(Clone, Copy, Debug)]
pub struct PollEvent {
    /// The value the descriptor was added with.
    pub token: u64,
    /// Reading would not block: data, end of stream or an error.
    pub readable: bool,
    /// Writing would not block.
    pub writable: bool,
}

/// Events of interest of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest {
    /// Wake up when it can be read.
    pub read: bool,
    /// Wake up when it can be written.
    pub write: bool,
}

impl Interest {
    /// Neither reading nor writing; the end of a stream is reported all the same.
    pub const NONE: Self = Self { read: false, write: false };
    /// Reading only, sufficient for an idle connection.
    pub const READ: Self = Self { read: true, write: false };
    /// Writing only, as while a connection is being made.
    pub const WRITE: Self = Self { read: false, write: true };

    fn bits(self) -> u32 {
        let mut bits = 0;
        if self.read {
            bits |= libc::EPOLLIN | libc::EPOLLRDHUP;
        }
        if self.write {
            bits |= libc::EPOLLOUT;
        }
        bits as u32
    }
}

impl Epoll {
    /// A new, empty instance.
    pub fn new() -> Result<Self> {
        count_forks();
        let fd = rustix::event::epoll::create(CreateFlags::CLOEXEC).map_err(os_error)?;
        Ok(Self { fd, process: generation() })
    }

    /// Returns true in a forked child, with its parent's instance.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != generation()
    }

    fn ctl(&self, op: libc::c_int, fd: RawFd, token: u64, events: u32) -> Result {
        if self.is_inherited() {
            return Ok(());
        }
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` outlives the call, which copies it.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &raw mut event) })?;
        Ok(())
    }

    /// Starts watching `fd`; its events carry `token`.
    pub fn add(&self, fd: RawFd, token: u64, interest: Interest) -> Result {
        self.ctl(libc::EPOLL_CTL_ADD, fd, token, interest.bits())
    }

    /// Starts watching `fd` for reading, edge-triggered: each write to it is reported once, even if
    /// unread.
    pub fn add_edge(&self, fd: RawFd, token: u64) -> Result {
        self.ctl(libc::EPOLL_CTL_ADD, fd, token, (libc::EPOLLIN | libc::EPOLLET) as u32)
    }

    /// Changes the events of interest of a watched `fd`.
    pub fn modify(&self, fd: RawFd, token: u64, interest: Interest) -> Result {
        self.ctl(libc::EPOLL_CTL_MOD, fd, token, interest.bits())
    }

    /// Changes the event of interest of a watched socket `fd` to the end of the peer's data,
    /// without the data before it.
    pub fn modify_to_end(&self, fd: RawFd, token: u64) -> Result {
        self.ctl(libc::EPOLL_CTL_MOD, fd, token, libc::EPOLLRDHUP as u32)
    }

    /// Stops watching `fd`. A closed descriptor is forgotten by itself, so a
    /// failure here means there is nothing left to do.
    pub fn remove(&self, fd: RawFd) {
        let _ = self.ctl(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits up to `timeout` (`None`: for ever, zero: not at all) and hands each
    /// event to `each`; the number of events. A signal counts as no event.
    pub fn wait(
        &self,
        timeout: Option<Duration>,
        mut each: impl FnMut(PollEvent),
    ) -> Result<usize> {
        // Not zeroed first: zeroing would take as long as the rest of an empty poll.
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; 64];
        // SAFETY: the kernel writes at most `events.len()` entries.
        let n = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                events.as_mut_ptr().cast(),
                events.len() as libc::c_int,
                millis(timeout),
            )
        };
        let n = match check(n) {
            Ok(n) => n as usize,
            Err(Error::INTR) => 0,
            Err(error) => return Err(error),
        };
        const READ: u32 =
            (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        const WRITE: u32 = (libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        for event in &events[..n] {
            // SAFETY: the kernel has written the first `n`.
            let event = unsafe { event.assume_init_read() };
            let (bits, token) = (event.events, event.u64);
            each(PollEvent { token, readable: bits & READ != 0, writable: bits & WRITE != 0 });
        }
        Ok(n)
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Returns the timeout for poll(2) in milliseconds, rounded up so a wait never ends early and
/// spins; -1 is for ever.
pub(crate) fn millis(timeout: Option<Duration>) -> libc::c_int {
    match timeout {
        None => -1,
        Some(timeout) => {
            timeout.as_nanos().div_ceil(1_000_000).min(libc::c_int::MAX as u128) as libc::c_int
        }
    }
}

/// Sleeps until `fd` is readable or so many nanoseconds are over; a signal ends it, too.
pub(crate) fn sleep_on(fd: RawFd, nanos: u64) {
    const SECOND: u64 = 1_000_000_000;
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec {
        // 68 years at most: the type has 32 or 64 bits.
        tv_sec: (nanos / SECOND).min(i32::MAX as u64) as _,
        tv_nsec: (nanos % SECOND) as libc::c_long,
    };
    // SAFETY: both outlive the call, which reads one and writes the other; no signal
    // mask is given.
    unsafe { libc::ppoll(&raw mut polled, 1, &raw const limit, std::ptr::null()) };
}

/// True if the kernel runs io_uring completions as task work in the threads of this process.
static HAS_TASK_WORK: AtomicBool = AtomicBool::new(false);

/// Records an io_uring of the process. The kernel interrupts sleeps for its task work with EINTR,
/// as for a signal. From now on EINTR does not prove a signal handler ran.
pub fn note_task_work() {
    HAS_TASK_WORK.store(true, Ordering::Relaxed);
}

/// Returns true if a sleep ended with EINTR because of a signal.
pub(crate) fn is_signal(interrupted: bool) -> bool {
    interrupted && !HAS_TASK_WORK.load(Ordering::Relaxed)
}

/// Signals of a thread, blocked while the thread polls instead of sleeping.
///
/// A signal ends a sleep, and the blocking call with it. A signal before the sleep would be handled
/// unnoticed, and the call would sleep on. So the thread unblocks signals at a point able to detect
/// a pending one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldSignals {
    /// The thread's signal mask before, in the kernel's form.
    mask: u64,
}

impl HeldSignals {
    /// All signals except the ones caused by the thread itself, and those of the C library:
    /// cancellation and the change of user ids.
    const HELD: u64 = {
        let answers = [
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGSYS,
        ];
        let (mut held, mut i) = (!0, 0);
        while i < answers.len() {
            held &= !(1u64 << (answers[i] - 1));
            i += 1;
        }
        held & !(1 << (32 - 1)) & !(1 << (33 - 1))
    };

    /// Holds signals back from the calling thread.
    pub(crate) fn hold() -> Self {
        let (held, mut mask) = (Self::HELD, 0u64);
        // SAFETY: the kernel reads one mask of eight bytes and writes another.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                &raw const held,
                &raw mut mask,
                size_of::<u64>(),
            )
        };
        Self { mask }
    }

    /// Unblocks signals. Returns true if a handler ran for a blocked one.
    pub(crate) fn release(self) -> bool {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: no descriptors; the kernel reads the mask, and writes the time that is left to a copy of ours.
        let handled = unsafe {
            let mut limit = none;
            let n = libc::syscall(
                libc::SYS_ppoll,
                std::ptr::null_mut::<libc::pollfd>(),
                0,
                &raw mut limit,
                &raw const self.mask,
                size_of::<u64>(),
            );
            n < 0 && Error::last_os() == Error::INTR
        };
        self.end();
        is_signal(handled)
    }

    /// Lets signals through without looking for one.
    pub(crate) fn end(self) {
        // SAFETY: the kernel reads one mask of eight bytes.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const self.mask,
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
    }

    /// Ends the thread if it was cancelled, with its own signal mask.
    ///
    /// # Safety
    /// No frame from the caller's to the program's own has anything to clean up.
    pub(crate) unsafe fn end_if_cancelled(&self) {
        // SAFETY: by this function's contract; the mask outlives the call.
        unsafe { ofi_end_if_cancelled(&raw const self.mask) };
    }
}

unsafe extern "C-unwind" {
    /// Ends the thread if it was cancelled, with this signal mask (`c/cancel.c`).
    fn ofi_end_if_cancelled(mask: *const u64);
}

/// Returns true if a descriptor is non-blocking (O_NONBLOCK). Another process sharing it may change
/// this.
pub(crate) fn is_nonblocking(fd: RawFd) -> Result<bool> {
    // SAFETY: no memory is involved.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// Runs `work` in a forked child and returns the child's exit status.
#[cfg(test)]
pub(crate) fn forked(work: impl FnOnce() -> libc::c_int) -> libc::c_int {
    // SAFETY: the child ends without coming back.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(work()) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Descriptor that is readable from its signalling until it is drained.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new descriptor, not signalled.
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map(Self).map_err(os_error)
    }

    /// Wraps an eventfd.
    pub(crate) fn from_owned(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Makes the descriptor readable, if it is not already.
    pub fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Signals a descriptor shared with other processes, like [`signal`](Self::signal). Does
    /// nothing if one of them has made it blocking and its counter is full. The check costs less
    /// than poll(2).
    pub(crate) fn signal_shared(&self) {
        if is_nonblocking(self.0.as_raw_fd()) == Ok(true) {
            self.signal();
        }
    }

    /// Makes the descriptor not readable.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Descriptor that is readable after some time.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Returns a new, disarmed timer.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        timerfd_create(TimerfdClockId::Monotonic, flags).map(Self).map_err(os_error)
    }

    /// Sleeps until the timer expires.
    pub fn wait(&self) {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call. Waking early does no harm.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
    }

    /// Makes the timer expire after `delay`; zero turns it off.
    pub fn set(&self, delay: Duration) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec::try_from(delay).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let spec = Itimerspec { it_interval: zero, it_value: value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec);
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The nanoseconds of one of the system's clocks.
pub(crate) fn nanos_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes `now`, which outlives it.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Returns nanoseconds of a monotonic clock (CLOCK_MONOTONIC), for frequent callers unable to
/// afford the two parts of an `Instant`.
pub fn fine_now() -> u64 {
    nanos_of(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of CLOCK_MONOTONIC, coarse, without a call of the system.
pub fn coarse_now() -> u64 {
    nanos_of(libc::CLOCK_MONOTONIC_COARSE)
}

/// A point in time to give up at, from a timeout in milliseconds as the API
/// has it: negative waits for ever.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` milliseconds from now; negative: never.
    pub fn after_ms(timeout: i32) -> Self {
        Self((timeout >= 0).then(|| Instant::now() + Duration::from_millis(timeout as u64)))
    }

    /// Returns the remaining time, `None` for no limit.
    pub fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns true if the deadline has passed.
    pub fn passed(self) -> bool {
        self.left() == Some(Duration::ZERO)
    }
}

/// Writes memory back from the processor's caches to persistent memory, as far as it is of this
/// kind.
///
/// # Safety
/// `len` bytes at `base` are valid.
pub(crate) unsafe fn persist(base: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_clflush, _mm_sfence};
        const LINE: usize = 64;
        let start = base as usize & !(LINE - 1);
        for line in (start..base as usize + len).step_by(LINE) {
            // SAFETY: every line holds at least one valid byte; writing a line
            // back changes nothing. The instruction is in every x86_64.
            unsafe { _mm_clflush(line as *const u8) };
        }
        // SAFETY: it orders stores and does nothing else.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: no memory is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = base as usize & !(page - 1);
        // SAFETY: the pages hold valid bytes; msync writes them back.
        unsafe { libc::msync(start as *mut _, base as usize + len - start, libc::MS_SYNC) };
    }
}

/// Maximum number of errors taken by one call of [`next_injected_error`].
const MOST_ERRORS: usize = 256;

/// Returns the destination of a datagram to a closed port, as reported by its host (ICMP, port
/// unreachable), from the error queue of a socket with IP_RECVERR or IPV6_RECVERR. Other errors are
/// removed from the queue and ignored. Fails with -FI_EAGAIN if the queue is empty.
pub fn next_injected_error(fd: RawFd) -> Result<SocketAddr> {
    // A flood of errors keeps no thread here.
    for _ in 0..MOST_ERRORS {
        let mut control = [0u64; 64];
        let mut name = [0u64; size_of::<libc::sockaddr_storage>() / 8];
        // SAFETY: all zeros is a valid msghdr: no name, no data.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = size_of_val(&name) as _;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the kernel writes a name and control data within `name` and `control`, which are aligned for them, and
        // says in `message` how much.
        check(unsafe {
            libc::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        } as libc::c_int)?;
        // SAFETY: `message` describes the control data that the kernel just wrote.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !header.is_null() {
            // SAFETY: the kernel's control data are whole headers with their data.
            let kind = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
            let of_errors =
                [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
            let is_known = of_errors.contains(&kind).then(|| {
                // SAFETY: the data of these kinds are a sock_extended_err.
                let error = unsafe { libc::CMSG_DATA(header).cast::<libc::sock_extended_err>() };
                // SAFETY: as above.
                unsafe { error.read_unaligned() }.ee_errno
            });
            if is_known == Some(libc::ECONNREFUSED as u32) {
                let len = (message.msg_namelen as usize).min(size_of_val(&name));
                // SAFETY: the kernel wrote so many bytes of the name.
                let bytes = unsafe { std::slice::from_raw_parts(name.as_ptr().cast::<u8>(), len) };
                if let Ok(addr) = addr::from_bytes(bytes) {
                    return Ok(addr);
                }
            }
            // SAFETY: as above.
            header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
        }
    }
    Err(Error::AGAIN)
}

#[cfg(test)]
mod tests;
