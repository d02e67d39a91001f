//! Unit tests of `sys`.
use super::*;

#[test]
fn a_datagram_to_a_closed_port_is_refused_by_name() {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    set_option(sender.as_fd(), libc::SOL_IP, libc::IP_RECVERR, 1).unwrap();
    let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(next_injected_error(sender.as_raw_fd()), Err(Error::AGAIN));
    sender.send_to(b"there", listener.local_addr().unwrap()).unwrap();
    assert_eq!(next_injected_error(sender.as_raw_fd()), Err(Error::AGAIN));
    let gone = listener.local_addr().unwrap();
    drop(listener);
    sender.send_to(b"gone", gone).unwrap();
    // The answer of this host is there before the call that sends returns.
    assert_eq!(next_injected_error(sender.as_raw_fd()), Ok(gone));
    assert_eq!(next_injected_error(sender.as_raw_fd()), Err(Error::AGAIN));
}

#[test]
fn a_child_has_another_number_however_it_was_forked() {
    count_forks();
    let (own, owner) = (generation(), OwnerProcess::current());
    let same = || {
        let before = owner.is_current();
        let same = generation() == own || generation() != generation();
        i32::from(same || before || owner.is_current() || !OwnerProcess::current().is_current())
    };
    assert_eq!(forked(same), 0);
    // The bare system call, after which no handler runs.
    // SAFETY: the child makes no call but the one that ends it.
    let status = unsafe {
        // s390x takes the stack before the flags.
        let first =
            if cfg!(target_arch = "s390x") { [0, libc::SIGCHLD] } else { [libc::SIGCHLD, 0] };
        match libc::syscall(libc::SYS_clone, first[0], first[1], 0, 0, 0) {
            0 => libc::_exit(same()),
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child as libc::pid_t, &raw mut status, 0), child as i32);
                status
            }
        }
    };
    assert_eq!(status, 0);
    assert!(owner.is_current() && generation() == own);
}

#[test]
fn held_signals_are_delivered_on_release_and_detected() {
    use std::sync::atomic::AtomicUsize;
    static HANDLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    let mask = || {
        let mut mask = 0u64;
        let how = (libc::SIG_BLOCK, std::ptr::null::<u64>(), &raw mut mask, size_of::<u64>());
        // SAFETY: the kernel writes eight bytes.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how.0, how.1, how.2, how.3) };
        mask
    };
    // SAFETY: the handler does nothing that it may not; a signal for this thread alone.
    let (set, raise) = unsafe {
        let handler = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
        (libc::signal(libc::SIGURG, handler), || libc::raise(libc::SIGURG))
    };
    let before = mask();
    let held = HeldSignals::hold();
    assert_eq!(mask() & 1 << (libc::SIGSEGV - 1), before & 1 << (libc::SIGSEGV - 1));
    raise();
    assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
    assert!(held.release());
    assert_eq!((HANDLED.load(Ordering::SeqCst), mask()), (1, before));
    assert!(!HeldSignals::hold().release());
    // One that is ignored ends no call.
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
    let held = HeldSignals::hold();
    raise();
    assert!(!held.release());
    HeldSignals::hold().end();
    assert_eq!((HANDLED.load(Ordering::SeqCst), mask()), (1, before));
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGURG, set) };
}

#[test]
fn an_event_fd_is_readable_from_signal_to_drain() {
    let epoll = Epoll::new().unwrap();
    let event = EventFd::new().unwrap();
    epoll.add(event.as_raw_fd(), 7, Interest::READ).unwrap();
    let ready = || {
        let mut tokens = Vec::new();
        epoll.wait(Some(Duration::ZERO), |e| tokens.push((e.token, e.readable))).unwrap();
        tokens
    };
    assert_eq!(ready(), []);
    event.signal();
    event.signal();
    assert_eq!(ready(), [(7, true)]);
    event.drain();
    assert_eq!(ready(), []);
}

#[test]
fn forked_child_does_not_change_its_parents_epoll_set() {
    let (epoll, event) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    epoll.add(event.as_raw_fd(), 7, Interest::READ).unwrap();
    let status = forked(|| {
        epoll.remove(event.as_raw_fd());
        0
    });
    assert_eq!(status, 0);
    event.signal();
    assert_eq!(epoll.wait(Some(Duration::ZERO), |_| ()), Ok(1));
    epoll.remove(event.as_raw_fd());
    assert_eq!(epoll.wait(Some(Duration::ZERO), |_| ()), Ok(0));
}

#[test]
fn memory_over_the_file_size_limit_fails_without_a_signal() {
    assert!(sealed_memory(c"test", 8192).is_ok());
    let status = forked(|| {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the limit outlives the call, which reads it.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        let made = [4096, 4097].map(|len| sealed_memory(c"test", len).map_err(Error::code));
        (made[0].is_err() || made[1].as_ref().err() != Some(&libc::EFBIG)).into()
    });
    assert_eq!(status, 0);
}

#[test]
fn thread_credentials_do_not_change_the_user_of_the_process() {
    assert_eq!(user_of([5, 5, 5], Some(0)), 5, "it has become another user");
    assert_eq!(user_of([0, 5, 0], Some(0)), 0);
    assert_eq!(user_of([5, 5, 0], Some(0)), 0);
    // A set-user-ID program.
    assert_eq!(user_of([5, 0, 0], Some(0)), 0);
    assert_eq!(user_of([5, 5, 0], Some(0)), 0);
}

#[test]
fn users_without_a_number_are_not_taken_for_each_other() {
    assert!(is_own_user(user()) && !is_own_user(user() ^ 1));
    let status = forked(|| {
        // SAFETY: no memory is involved; the child has one thread.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } < 0 {
            return 2;
        }
        is_own_user(user_ids()[1]).into()
    });
    if status != 0 {
        assert_eq!(libc::WEXITSTATUS(status), 2);
        crate::testing::skip("no namespaces of users");
    }
}

#[test]
fn a_negative_timeout_never_passes_and_a_zero_one_has() {
    assert!(!Deadline::after_ms(-1).passed());
    assert!(Deadline::after_ms(0).passed());
    assert_eq!(millis(Some(Duration::from_micros(1))), 1);
}
