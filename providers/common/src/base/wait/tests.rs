//! Unit tests of `wait`.
use super::*;
use std::sync::mpsc::channel;

/// Sources of progress counting the threads about to sleep, up to one for each.
struct Sources<F> {
    may_block: F,
    awaited: AtomicUsize,
}

impl<F: Fn() -> bool> Sources<F> {
    fn new(may_block: F) -> Self {
        Self { may_block, awaited: AtomicUsize::new(0) }
    }
}

impl<F: Fn() -> bool> WakeSources for Sources<F> {
    fn may_block(&self) -> bool {
        self.awaited.store(1, Ordering::SeqCst);
        (self.may_block)()
    }

    fn end_wait(&self) {
        self.awaited.store(0, Ordering::SeqCst);
    }
}

fn blocking<T>(
    wait: Option<&Wait>,
    timeout: c_int,
    may_block: impl Fn() -> bool,
    look: impl Fn() -> Result<T>,
    ready: impl Fn() -> bool,
) -> Result<T> {
    let sources = Sources::new(may_block);
    let answer = blocking_on(&sources, wait, timeout, look, ready);
    assert_eq!(sources.awaited.load(Ordering::SeqCst), 0, "the thread counts as asleep");
    answer
}

fn blocking_on<T, S: WakeSources>(
    sources: &S,
    wait: Option<&Wait>,
    timeout: c_int,
    look: impl Fn() -> Result<T>,
    ready: impl Fn() -> bool,
) -> Result<T> {
    let mut call = Blocking::new(timeout);
    loop {
        let answer = call.look(wait, sources, &look, &ready);
        // SAFETY: threads of tests are not cancelled.
        if !unsafe { call.can_continue() } {
            return answer;
        }
    }
}

/// Takes one of `left`, waiting for ever.
fn take(wait: &Wait, left: &AtomicUsize, timeout: c_int) -> Result {
    let one = |n: usize| n.checked_sub(1);
    blocking(
        Some(wait),
        timeout,
        || true,
        || match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::AGAIN),
        },
        || left.load(Ordering::SeqCst) > 0,
    )
}

fn put(wait: &Wait, left: &AtomicUsize, count: usize) {
    left.fetch_add(count, Ordering::SeqCst);
    wait.entry_written();
}

#[test]
fn busy_polling_follows_short_waits_and_backs_off_when_empty() {
    let looking_on = BusyPollBudget::default();
    let answered = |ago: u64, looks_on| looking_on.answered(fine_now() - ago, looks_on);
    let begin = || looking_on.begin(fine_now()) != 0;
    assert!(!begin());
    answered(LOOKED_ON + 1, false);
    assert!(!begin());
    answered(0, false);
    assert!(begin());
    assert!(!begin(), "one is enough");
    answered(0, true);
    for doubled in 1..=DOUBLED_MOST + 1 {
        assert!(begin());
        looking_on.on_empty_poll();
        answered(0, false);
        let slept = 1 << doubled.min(DOUBLED_MOST);
        assert!((0..slept).all(|_| !begin()), "{slept}");
    }
    assert!(begin());
    answered(0, true);
    assert!(begin());
    looking_on.on_empty_poll();
    answered(LOOKED_ON + 1, false);
    assert!((0..10).all(|_| !begin()));
}

#[test]
fn busy_polling_call_finds_its_answer_or_finally_blocks() {
    let wait = Wait::new(WaitKind::Fd).unwrap();
    wait.looking_on.answered(fine_now(), false);
    let looks = std::cell::Cell::new(0);
    let answer_at = |at: u32| {
        looks.set(0);
        let look = || {
            looks.set(looks.get() + 1);
            if looks.get() == at { Ok(()) } else { Err(Error::AGAIN) }
        };
        blocking(Some(&wait), 50, || true, look, || false)
    };
    // The answer comes with nothing that would wake a sleeper.
    assert_eq!(answer_at(5), Ok(()));
    assert_eq!(answer_at(u32::MAX), Err(Error::AGAIN));
    assert!(looks.get() > 2 && wait.looking_on.empty_polls.load(Ordering::Relaxed) == 1);
    // This one sleeps at once.
    assert_eq!(answer_at(u32::MAX), Err(Error::AGAIN));
    assert_eq!(looks.get(), 2);
}

/// Returns the result of a call whose polls, from the second on, see a signal `at` nanoseconds
/// after the first.
fn interrupted(wait: Option<&Wait>, at: u64) -> Result {
    extern "C" fn handler(_: c_int) {}
    // SAFETY: the handler does nothing; no other test has to do with this signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGWINCH, &raw const action, std::ptr::null_mut());
    }
    let (first, looks) = (fine_now(), std::cell::Cell::new(0));
    let look = || {
        looks.set(looks.get() + 1);
        while looks.get() == 2 && fine_now() < first + at {}
        if looks.get() == 3 {
            // SAFETY: a signal for this thread alone.
            unsafe { libc::raise(libc::SIGWINCH) };
        }
        Err(Error::AGAIN)
    };
    blocking(wait, 3000, || true, look, || false)
}

#[test]
fn signal_during_busy_polling_interrupts_the_call() {
    // A thread that gets no processor at the wrong moment sleeps before its third look, or has
    // the signal before it holds signals back.
    for kind in [Some(WaitKind::Fd), Some(WaitKind::Yield), None] {
        let ends = (0..20).any(|_| {
            let wait = kind.map(|kind| Wait::new(kind).unwrap());
            wait.iter().for_each(|wait| wait.looking_on.answered(fine_now(), false));
            interrupted(wait.as_ref(), 2 * HELD_AFTER) == Err(Error::INTR)
        });
        assert!(ends, "{kind:?}");
    }
}

#[test]
fn a_caller_sleeps_on_until_an_entry_although_another_gave_up_meanwhile() {
    let (wait, left) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
    let (tell, notified) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| tell.send(take(&wait, &left, -1)));
        while wait.armed.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(take(&wait, &left, 20), Err(Error::AGAIN));
        put(&wait, &left, 1);
        let answer = notified.recv_timeout(Duration::from_secs(20));
        // Ends a sleeper that missed it, so that the test can fail.
        put(&wait, &left, 1);
        wait.signal();
        assert_eq!(answer, Ok(Ok(())));
    });
}

#[test]
fn every_one_of_many_callers_gets_its_entry() {
    const CALLERS: usize = 6;
    let (wait, left) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
    let (tell, notified) = channel();
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            let tell = tell.clone();
            let (wait, left) = (&wait, &left);
            scope.spawn(move || {
                for _ in 0..50 {
                    let _ = tell.send(take(wait, left, -1));
                }
            });
        }
        for round in 0..CALLERS * 50 / 3 {
            put(&wait, &left, 3);
            for _ in 0..3 {
                let answer = notified.recv_timeout(Duration::from_secs(20));
                if answer != Ok(Ok(())) {
                    left.fetch_add(CALLERS * 50, Ordering::SeqCst);
                    wait.signal();
                }
                assert_eq!(answer, Ok(Ok(())), "in round {round}");
            }
        }
    });
}

#[test]
fn waiters_for_different_things_all_wake_up() {
    let (wait, value) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
    let reach = |goal: usize| {
        let there = || value.load(Ordering::SeqCst) >= goal;
        let look = || if there() { Ok(()) } else { Err(Error::AGAIN) };
        blocking(Some(&wait), 20_000, || true, look, there)
    };
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (1..=4)
            .map(|nth| scope.spawn(move || (1..=50).try_for_each(|n| reach(n * nth))))
            .collect();
        for _ in 0..200 {
            value.fetch_add(1, Ordering::SeqCst);
            wait.entry_written();
            std::thread::yield_now();
        }
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
    });
}

#[test]
fn entries_signal_the_descriptor_once_until_it_is_armed_again() {
    let wait = Wait::new(WaitKind::Fd).unwrap();
    let readable = || {
        let mut readable = false;
        wait.epoll.wait(Some(Duration::ZERO), |_| readable = true).unwrap();
        readable
    };
    wait.entry_written();
    assert!(!readable());
    for _ in 0..2 {
        wait.arm().unwrap();
        wait.entry_written();
        assert!(readable());
        // Taken back unnoticed, to see that the next one does not signal.
        wait.event.drain();
        wait.entry_written();
        assert!(!readable());
    }
    wait.signal();
    wait.arm().unwrap();
    assert!(!readable());
}

#[test]
fn armed_descriptor_reports_entries_left_by_a_blocking_call() {
    let (wait, left) = (Wait::new(WaitKind::Fd).unwrap(), AtomicUsize::new(0));
    wait.arm().unwrap();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| take(&wait, &left, -1));
        while wait.armed.load(Ordering::SeqCst) == APPLICATION {
            std::thread::yield_now();
        }
        put(&wait, &left, 2);
        assert_eq!(taker.join().unwrap(), Ok(()));
    });
    let events = wait.epoll.wait(Some(Duration::ZERO), |_| ()).unwrap();
    assert_eq!((left.load(Ordering::SeqCst), events), (1, 1));
}

#[test]
fn thread_counts_as_asleep_only_within_its_call() {
    let wait = Wait::new(WaitKind::Fd).unwrap();
    let looks = std::cell::Cell::new(0);
    // The second look finds what the first did not, without progress of the sources.
    let second = |answer: Result| {
        looks.set(0);
        let look = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 { Err(Error::AGAIN) } else { answer }
        };
        let sources = Sources::new(|| {
            wait.entry_written();
            true
        });
        let answer = blocking_on(&sources, Some(&wait), -1, look, || false);
        assert_eq!((looks.get(), sources.awaited.into_inner()), (2, 0));
        answer
    };
    assert_eq!(second(Ok(())), Ok(()));
    assert_eq!(second(Err(Error::AVAIL)), Err(Error::AVAIL));
    // Something came between the preparations of two sources.
    assert_eq!(
        blocking(Some(&wait), 0, || false, || Err::<(), _>(Error::AGAIN), || false),
        Err(Error::AGAIN)
    );
    let sources = Sources::new(|| {
        wait.signal();
        false
    });
    let nothing = || Err::<(), _>(Error::AGAIN);
    assert_eq!(blocking_on(&sources, Some(&wait), -1, nothing, || false), Err(Error::AGAIN));
    assert_eq!(sources.awaited.into_inner(), 0);
}
