//! Unit tests of `shm_channel`.
mod hostile;

use super::*;
use crate::buf::{MessageBytes, RecvBuf, SendBuf};
use crate::cma::MemoryToken;
use crate::doorbell::Doorbell;
use crate::sys::{Epoll, Interest};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

fn pair(ring: usize) -> (ShmChannel, ShmChannel) {
    let (a, fd) = ShmChannel::create(ring).unwrap();
    let b = ShmChannel::open(fd.as_fd()).unwrap();
    (a, b)
}

/// Lets both ends read this process's memory; false if the system does not.
fn with_memory(ends: [&ShmChannel; 2], token: &MemoryToken) -> bool {
    ends.iter().all(|end| {
        let own = std::process::id() as i32;
        let memory = PeerMemory::open(own, token.address(), token.value());
        memory.map(|memory| end.set_peer_memory(memory)).is_ok()
    })
}

fn peer_of(doorbell: &Doorbell) -> Arc<PeerDoorbell> {
    Arc::new(PeerDoorbell::open(doorbell.memory(), doorbell.wakeup_for_peer(), 0).unwrap())
}

fn rung(doorbell: &Doorbell) -> Vec<u32> {
    let mut out = Vec::new();
    doorbell.ready(&mut out);
    out
}

/// Reproducible pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn bytes_go_both_ways_and_come_in_order() {
    let (a, b) = pair(4096);
    let mut buf = [0; 8];
    assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
    assert_eq!((a.send(b""), b.recv(&mut [])), (Ok(0), Ok(0)));
    assert_eq!(a.send(b"hello"), Ok(5));
    assert_eq!(b.send(b"world!"), Ok(6));
    assert!(a.has_data() && b.has_data());
    assert_eq!((b.recv(&mut buf), &buf), (Ok(5), b"hello\0\0\0"));
    assert_eq!((a.recv(&mut buf[..4]), &buf[..4]), (Ok(4), &b"worl"[..]));
    assert!(a.has_data());
    assert_eq!((a.recv(&mut buf), &buf[..2]), (Ok(2), &b"d!"[..]));
    assert!(!a.has_data() && !b.has_data());
}

#[test]
fn inline_messages_of_any_length_are_read_without_a_copy() {
    let (a, b) = pair(4096);
    let source: Vec<u8> = (0..INLINE as u8).collect();
    let mut buf = [0; INLINE];
    assert_eq!(b.recv_inline(|_| true), InlineRecv::None);
    for n in 0..=INLINE {
        for more in [[None; 2], [None, Some(7)], [Some(7), None], [Some(7), Some(8)]] {
            // SAFETY: the bytes outlive the buffer.
            let body = unsafe { SendBuf::new(source.as_ptr().cast(), n) }.unwrap();
            // The second line of a cell is written first after an empty poll.
            for looks in [false, true] {
                let _ = looks.then(|| a.recv_inline(|_| true));
                assert_eq!(a.writer.has_cell(a.out()), Ok(true));
                let behind: Vec<u64> = more.into_iter().flatten().collect();
                let head = 16 + 8 * behind.len();
                let sent = a.send_header_and_body(
                    JoinedWords::new([5, 6], more),
                    body.in_one_piece().unwrap(),
                );
                assert!(sent);
                if head + n > INLINE {
                    assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
                    assert_eq!(b.recv(&mut [0; 2 * INLINE]), Ok(head + n));
                    continue;
                }
                assert_eq!(b.recv_inline(|_| false), InlineRecv::Else, "it stays");
                let taken = b.recv_inline(|short| {
                    let (words, bytes): ([_; 4], _) = (short.words(), short.all());
                    assert_eq!((words[0], words[1], bytes.len()), (5, 6, head + n));
                    assert_eq!(words[2..][..behind.len()], behind);
                    buf.fill(255);
                    // SAFETY: the room outlives the buffer.
                    let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
                    bytes.behind(head).copy_into(&to);
                    assert_eq!((bytes.behind(head).count(), to.len()), (n, n));
                    true
                });
                assert_eq!(taken, InlineRecv::Took);
                assert_eq!(&buf[..n], &source[..n]);
                assert!(buf[n..].iter().all(|byte| *byte == 255));
                assert_eq!(b.recv_inline(|_| true), InlineRecv::None);
            }
        }
    }
    // Long messages, and partially received ones, are received as before.
    assert_eq!(a.send(&[1; INLINE + 1]), Ok(INLINE + 1));
    assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
    assert_eq!((b.recv(&mut [0; 500]), a.send(b"two")), (Ok(INLINE + 1), Ok(3)));
    assert_eq!(b.recv(&mut [0; 2]), Ok(2));
    assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
    assert_eq!(b.recv(&mut [0; 2]), Ok(1));
}

#[test]
fn long_messages_with_header_arrive_whole_at_any_ring_position() {
    let (a, b) = pair(4096);
    let source: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
    let (mut buf, mut got, mut missed) = (vec![0; 5000], Vec::new(), 0);
    let mut numbers = Numbers(7);
    for round in 0..4000 {
        let n = INLINE + numbers.below(if round % 2 == 0 { 900 } else { 2900 });
        let third = (numbers.below(2) == 0).then_some(round);
        let data = third.filter(|_| numbers.below(2) == 0);
        let behind: Vec<u64> = [third, data].into_iter().flatten().collect();
        let (head, skip) = (16 + 8 * behind.len(), numbers.below(251));
        // SAFETY: the bytes outlive the buffer.
        let body = unsafe { SendBuf::new(source[skip..].as_ptr().cast(), n) }.unwrap();
        // A reader that is behind has the writer go on in other places.
        let before = vec![1; if n < 900 { numbers.below(4) * 300 } else { 0 }];
        assert_eq!(a.send(&before), Ok(before.len()));
        let joined = a.send_header_and_body(
            JoinedWords::new([round, 6], [third, data]),
            body.in_one_piece().unwrap(),
        );
        assert_eq!(b.recv(&mut buf[..before.len()]), Ok(before.len()));
        if !joined {
            // The reader has not reported all cells read by it.
            assert_eq!((a.send(b"."), b.recv(&mut buf)), (Ok(1), Ok(1)));
            missed += 1;
            continue;
        }
        assert_eq!(b.recv_whole_message(|_, _| false), InlineRecv::Else, "it stays");
        got.clear();
        let mut take = |words: [u64; 4], bytes: usize| {
            assert_eq!((words[0], words[1], bytes), (round, 6, head + n));
            assert_eq!(words[2..][..behind.len()], behind);
            got.push(bytes);
            true
        };
        // SAFETY: the room outlives the buffer.
        let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
        let long = b.recv_whole_message(|words, bytes| {
            bytes.behind(head).copy_into(&to);
            take(words, bytes.len())
        });
        assert_eq!(long, InlineRecv::Took);
        assert_eq!(got, [head + n]);
        assert!(buf[..n] == source[skip..skip + n], "round {round}");
    }
    assert!(missed < 400, "{missed}");
    // Without room nothing is sent.
    let (a, b) = pair(4096);
    // SAFETY: the bytes outlive the buffer.
    let body = unsafe { SendBuf::new(source.as_ptr().cast(), 3000) }.unwrap();
    let body = body.in_one_piece().unwrap();
    assert!(a.send_header_and_body(JoinedWords::new([1, 2], [None; 2]), body));
    assert!(!a.send_header_and_body(JoinedWords::new([1, 2], [None; 2]), body));
    assert_eq!(b.recv(&mut [0; 8000]), Ok(3016));
    // Nor what is longer than what is shown at a time.
    let (a, _b) = pair(1 << 16);
    let long = vec![1; CHUNK];
    // SAFETY: the bytes outlive the buffer.
    let body = unsafe { SendBuf::new(long.as_ptr().cast(), long.len()) }.unwrap();
    assert!(
        !a.send_header_and_body(JoinedWords::new([1, 2], [None; 2]), body.in_one_piece().unwrap())
    );
}

#[test]
fn whole_messages_are_read_without_a_copy() {
    let (a, b) = pair(4096);
    let source: Vec<u8> = (0..4000u32).map(|n| n as u8).collect();
    let mut buf = vec![0; 4000];
    assert_eq!(b.recv_whole_message(|_, _| true), InlineRecv::Else, "nothing has come");
    for n in [1, 8, 30, INLINE, INLINE + 1, 700, 1111, 3000, 3072, 2999, 1024] {
        assert_eq!((a.send(&source[..n]), a.send(b"next")), (Ok(n), Ok(4)));
        // It stays when it is not wanted, by the short way as well, and may be wanted later.
        assert_eq!(b.recv_whole_message(|_, _| false), InlineRecv::Else);
        assert_eq!(b.recv_inline(|_| true), InlineRecv::Else);
        let (mut lens, skip) = (Vec::new(), n / 3);
        let taken = b.recv_whole_message(|words, bytes| {
            lens.push(bytes.len());
            if lens.len() == 1 {
                let first = words.map(u64::to_ne_bytes).concat();
                assert_eq!(first[..n.min(32)], source[..n.min(32)]);
                // SAFETY: the room outlives the buffer.
                let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
                bytes.behind(skip).copy_into(&to);
                assert_eq!(bytes.behind(skip).count(), n - skip);
            }
            true
        });
        assert_eq!((taken, lens), (InlineRecv::Took, vec![n, 4]));
        assert_eq!(buf[..n - skip], source[skip..n]);
        assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
    }
    // Partially received messages are received as before.
    assert_eq!((a.send(&source[..500]), b.recv(&mut buf[..9])), (Ok(500), Ok(9)));
    assert_eq!(b.recv_whole_message(|_, _| true), InlineRecv::Else);
    assert_eq!(b.recv(&mut buf), Ok(491));
}

#[test]
fn full_ring_takes_more_once_enough_space_is_free() {
    let (a, b) = pair(4096);
    let mut sent = 0;
    while let Ok(n) = a.send(&[7; 1000]) {
        sent += n;
    }
    assert!((4096..4096 + 8192).contains(&sent), "{sent}");
    assert!(!a.has_space());
    let mut all = vec![0; sent];
    assert_eq!(b.recv(&mut all[..sent / 8]), Ok(sent / 8));
    assert!(!a.has_space());
    let mut done = sent / 8;
    while let Ok(n) = b.recv(&mut all[done..]) {
        done += n;
        if done == sent {
            break;
        }
    }
    assert!(all.iter().all(|byte| *byte == 7));
    assert_eq!((b.recv(&mut all), done), (Err(Error::AGAIN), sent));
    assert!(a.has_space());
    assert_eq!(a.send(&[1; 1000]), Ok(1000));
}

#[test]
fn switch_position_is_visible_once_published() {
    let (a, b) = pair(4096);
    assert_eq!(b.peer_switched_at(), None);
    a.switch_at(0);
    assert_eq!((b.peer_switched_at(), a.peer_switched_at()), (Some(0), None));
    b.switch_at(u64::MAX - 1);
    assert_eq!(a.peer_switched_at(), Some(u64::MAX - 1));
}

#[test]
fn doorbell_rings_for_a_reader_not_polling() {
    let (a, b) = pair(4096);
    let doorbell = Doorbell::new().unwrap();
    a.attach_peer(peer_of(&doorbell), 1029);
    assert_eq!(rung(&doorbell), [5]);
    a.send(b"x").unwrap();
    assert!(doorbell.is_ready());
    assert_eq!(rung(&doorbell), [5]);
    b.set_polled(true);
    a.send(b"x").unwrap();
    assert_eq!(rung(&doorbell), []);
    b.set_polled(false);
    assert!(b.has_data());
    let epoll = Epoll::new().unwrap();
    epoll.add(doorbell.wakeup_fd(), 0, Interest::READ).unwrap();
    let is_wakeup = || epoll.wait(Some(Duration::ZERO), |_| ()).unwrap() == 1;
    assert!(doorbell.fall_asleep());
    assert!(!is_wakeup());
    a.send(b"x").unwrap();
    assert!(is_wakeup());
    assert!(!doorbell.fall_asleep());
    doorbell.wake();
    assert_eq!(rung(&doorbell), [5]);
    silence(&doorbell);
    a.send(b"x").unwrap();
    assert!(!is_wakeup(), "no thread sleeps");
}

#[test]
fn doorbell_rings_for_a_blocked_writer_once_much_space_is_free() {
    let (a, b) = pair(4096);
    let doorbell = Doorbell::new().unwrap();
    b.attach_peer(peer_of(&doorbell), 3);
    rung(&doorbell);
    let mut buf = [0; 16384];
    a.send(&[1; 100]).unwrap();
    b.recv(&mut buf).unwrap();
    assert_eq!(rung(&doorbell), [], "no thread waits");
    let mut sent = 0;
    while let Ok(n) = a.send(&[1; 1000]) {
        sent += n;
    }
    b.recv(&mut buf[..sent / 8]).unwrap();
    assert_eq!(rung(&doorbell), [], "too little room");
    let mut left = sent - sent / 8;
    while left > 0 {
        left -= b.recv(&mut buf).unwrap();
    }
    assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
    assert_eq!(rung(&doorbell), [3]);
    assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
    assert_eq!(rung(&doorbell), [], "it was told");
}

#[test]
fn exposed_buffer_arrives_in_order_and_is_returned_after_read() {
    let (a, b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    assert!(!a.can_expose());
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    assert!(a.can_expose());
    let (large, other) = (vec![1; 100_000], vec![2; 50_000]);
    let doorbell = Doorbell::new().unwrap();
    b.attach_peer(peer_of(&doorbell), 3);
    rung(&doorbell);
    a.send(b"head").unwrap();
    let mut list = GatherList::default();
    for part in [&large[..], b"small", &other] {
        assert!(list.push_bytes(part));
    }
    assert_eq!(a.send_list(&list, CopyMode::ZeroCopy), Ok(150_005));
    a.send(b"tail").unwrap();
    assert!(a.is_exposing());
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
    // Data behind the header stays in place until a buffer is provided for it.
    let mut buf = vec![9; 200_000];
    assert_eq!((b.recv(&mut buf), &buf[..4]), (Ok(4), &b"head"[..]));
    let (first, second) = buf.split_at_mut(30_000);
    let mut segments = ScatterList::default();
    assert!(segments.push_buf(first) && segments.push_buf(second));
    assert_eq!(b.recv_list(&mut segments), Ok(100_005));
    assert!(buf[..100_000] == large && &buf[100_000..100_005] == b"small");
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
    assert_eq!(rung(&doorbell), [3]);
    assert_eq!(b.recv(&mut buf[..20_000]), Ok(20_000));
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
    assert_eq!(b.recv(&mut buf[20_000..50_100]), Ok(30_004));
    assert!(buf[..50_000] == other && &buf[50_000..50_004] == b"tail");
    assert_eq!(rung(&doorbell), [3]);
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
    assert!(!a.is_exposing());
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
    assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
}

#[test]
fn sends_without_exposed_buffers_complete_with_earlier_sends() {
    let (a, b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    let small = |pipe: &ShmChannel| {
        let mut list = GatherList::default();
        list.push_bytes(b"small");
        pipe.send_list(&list, CopyMode::ZeroCopy)
    };
    // The other end cannot fetch yet.
    assert_eq!((small(&a), small(&a)), (Ok(5), Ok(5)));
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 1 }));
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    let large = vec![1; 8192];
    let mut list = GatherList::default();
    list.push_bytes(&large);
    assert_eq!(a.send_list(&list, CopyMode::ZeroCopy), Ok(8192));
    assert_eq!((small(&a), small(&a)), (Ok(5), Ok(5)));
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
    let mut buf = [0; 10_000];
    while b.recv(&mut buf).is_ok() {}
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 2, high: 4 }));
}

#[test]
fn unfetched_exposed_buffer_is_copied_before_it_changes() {
    let (a, b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    const LEN: usize = 50_000;
    let mut memory: Vec<_> = (0..4).map(|n| vec![n as u8 + 1; LEN]).collect();
    for (key, part) in (0..).zip(&memory) {
        let mut list = GatherList::default();
        list.push_bytes(part);
        assert_eq!(a.send_list(&list, CopyMode::OfRegion(key)), Ok(LEN));
    }
    // The first was fetched, the second in part, and the fourth is not asked for.
    let mut buf = vec![0; LEN];
    assert_eq!(b.recv(&mut buf), Ok(LEN));
    assert_eq!(b.recv(&mut buf[..20_000]), Ok(20_000));
    assert_eq!(a.copy_exposed(0, LEN), Ok(0));
    assert_eq!(a.copy_exposed(1, LEN - 1), Err(Error::NOBUFS));
    for n in [1, 2] {
        assert_eq!(a.copy_exposed(n as u64, LEN), Ok(LEN));
        assert_eq!(a.copy_exposed(n as u64, LEN), Ok(0), "once");
        memory[n].fill(99);
    }
    assert_eq!((b.recv(&mut buf[20_000..]), &buf[..]), (Ok(30_000), &[2; LEN][..]));
    assert_eq!((b.recv(&mut buf), &buf[..]), (Ok(LEN), &[3; LEN][..]));
    assert_eq!((b.recv(&mut buf), &buf[..]), (Ok(LEN), &[4; LEN][..]));
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 1, high: 3 }));
    assert!(a.exposed.is_empty());
}

#[test]
fn exposed_buffer_copied_during_a_fetch_arrives_unchanged() {
    let (a, mut b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    const LEN: usize = 1 << 20;
    let mut memory = vec![0u8; LEN];
    for round in 0..200 {
        memory.fill(round as u8);
        let mut list = GatherList::default();
        list.push_bytes(&memory);
        assert_eq!(a.send_list(&list, CopyMode::OfRegion(7)), Ok(LEN));
        thread::scope(|scope| {
            let b = &mut b;
            scope.spawn(move || {
                let mut buf = vec![255; LEN];
                assert_eq!(b.recv(&mut buf), Ok(LEN));
                assert!(buf.iter().all(|byte| *byte == round as u8), "round {round}");
            });
            // From before the fetch to behind it.
            let start = std::time::Instant::now();
            while start.elapsed().as_micros() < round * 2 {}
            assert!(a.copy_exposed(7, LEN).is_ok());
            memory.fill(round as u8 ^ 85);
        });
        assert!(a.zcopy_completed().is_ok());
    }
}

/// Returns a pair of ends, each able to read the other's memory. Returns `None`, with a skip
/// note, if the kernel does not permit it.
#[track_caller]
fn exposing_pair() -> Option<(ShmChannel, ShmChannel, MemoryToken)> {
    let ((a, b), token) = (pair(4096), MemoryToken::new().unwrap());
    if !with_memory([&a, &b], &token) {
        crate::testing::skip("no process_vm_readv(2)");
        return None;
    }
    Some((a, b, token))
}

fn expose(pipe: &ShmChannel, bytes: &[u8], way: CopyMode) {
    let mut list = GatherList::default();
    assert!(list.push_bytes(bytes));
    assert_eq!(pipe.send_list(&list, way), Ok(bytes.len()));
}

/// Receives `n` bytes, arriving as the peer copies them.
fn recv_copied(a: &ShmChannel, b: &ShmChannel, n: usize) -> Vec<u8> {
    let (mut buf, mut done) = (vec![0; n], 0);
    while done < n {
        match b.recv(&mut buf[done..]) {
            Ok(n) => done += n,
            Err(error) => {
                assert_eq!((error, b.has_data()), (Error::AGAIN, false));
                assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
                assert!(b.has_data(), "after {done} bytes");
            }
        }
    }
    buf
}

#[test]
fn sender_copies_exposed_buffer_if_the_peer_lost_read_access() {
    let Some((a, b, _token)) = exposing_pair() else { return };
    let large: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    let mut of_region = vec![7; 50_000];
    expose(&a, &large, CopyMode::ZeroCopy);
    a.send(b"between").unwrap();
    expose(&a, &of_region, CopyMode::OfRegion(3));
    assert_eq!(recv_copied(&a, &b, 30_000), large[..30_000]);
    b.stop_reading();
    assert!(!a.can_expose() && b.can_expose());
    assert_eq!(recv_copied(&a, &b, 70_000), large[30_000..]);
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
    assert_eq!(recv_copied(&a, &b, 7), b"between");
    assert_eq!(recv_copied(&a, &b, 20_001), [7; 20_001]);
    // The region may be closed meanwhile.
    assert_eq!(a.copy_exposed(3, usize::MAX), Ok(50_000));
    of_region.fill(8);
    assert_eq!(recv_copied(&a, &b, 29_999), [7; 29_999]);
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 1, high: 1 }));
    // Data sent from now on is copied immediately.
    expose(&a, &large[..3000], CopyMode::ZeroCopy);
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 2, high: 2 }));
    assert_eq!(b.recv(&mut of_region), Ok(3000));
    assert_eq!(b.recv(&mut of_region), Err(Error::AGAIN));
}

#[test]
fn requested_copy_fails_after_the_buffer_is_revoked() {
    let Some((a, b, _token)) = exposing_pair() else { return };
    let large = vec![1; 8192];
    expose(&a, &large, CopyMode::ZeroCopy);
    b.stop_reading();
    assert_eq!((b.recv(&mut [0; 100]), b.has_data()), (Err(Error::AGAIN), false));
    drop(a);
    assert_eq!((b.recv(&mut [0; 100]), b.has_data()), (Err(Error::CONNRESET), true));
}

#[test]
fn ended_peer_process_is_detected() {
    let (a, _b) = pair(4096);
    let doorbell = Doorbell::new().unwrap();
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: nothing is left to do.
        unsafe { libc::_exit(0) };
    }
    let peer = |process| {
        Arc::new(
            PeerDoorbell::open(doorbell.memory(), doorbell.wakeup_for_peer(), process).unwrap(),
        )
    };
    let own = peer(std::process::id() as i32);
    a.attach_peer(peer(child), 0);
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(a.peer_is_gone() && !own.is_gone() && !peer(0).is_gone());
    let Some((a, _b, _token)) = exposing_pair() else { return };
    assert!(!a.peer_is_gone());
}

#[test]
fn reader_does_not_wait_for_a_writer_unable_to_copy() {
    let Some((a, b, _token)) = exposing_pair() else { return };
    expose(&a, &[1; 8192], CopyMode::ZeroCopy);
    a.out().set_answers_not();
    b.stop_reading();
    assert_eq!(b.recv(&mut [0; 100]), Err(Error::PERM));
}

#[test]
fn only_exposed_unfetched_bytes_are_copied_on_request() {
    let Some((a, b, _token)) = exposing_pair() else { return };
    let (first, second) = (vec![1; 8192], vec![2; 8192]);
    expose(&a, &first, CopyMode::ZeroCopy);
    expose(&a, &second, CopyMode::ZeroCopy);
    let mut buf = vec![0; 8192];
    assert_eq!(b.recv(&mut buf), Ok(8192));
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
    let mut last = None;
    for (piece, from) in [(0, 0), (1, 0), (3, 0), (u32::MAX, 0), (2, 8192), (2, u64::MAX)] {
        let request = b.inbound().request_copy(piece, from, last);
        last = Some(request);
        assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
        assert!(!b.inbound().is_answered(request), "{piece} from {from} on");
    }
    let request = b.inbound().request_copy(2, 8191, last);
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN));
    assert!(b.inbound().is_answered(request));
}

#[test]
fn number_of_exposed_buffers_is_limited() {
    let (a, b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    let large = vec![1; MIN_EXPOSED];
    let expose = || {
        let mut list = GatherList::default();
        list.push_bytes(&large);
        a.send_list(&list, CopyMode::ZeroCopy)
    };
    let mut exposed = 0;
    while expose().is_ok() {
        exposed += 1;
        assert!(exposed < 1000);
    }
    assert!(!a.has_space());
    let mut buf = vec![0; MIN_EXPOSED];
    for _ in 0..exposed {
        assert_eq!(b.recv(&mut buf), Ok(MIN_EXPOSED));
    }
    assert_eq!(b.recv(&mut buf), Err(Error::AGAIN));
    assert!(a.has_space());
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: exposed - 1 }));
    assert_eq!(expose(), Ok(MIN_EXPOSED));
}

#[test]
fn unmapped_exposed_memory_ends_the_channel() {
    let (a, b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    let expose = |at: usize, len| {
        let mut list = GatherList::default();
        assert!(list.push_raw(at as *mut u8, len));
        a.send_list(&list, CopyMode::ZeroCopy)
    };
    assert_eq!(expose(4096, 8192), Ok(8192));
    let mut buf = [0; 16384];
    assert_eq!(b.recv(&mut buf), Err(Error::PROTO));
    assert_eq!(b.recv(&mut buf), Err(Error::PROTO), "it does not get better");
    assert!(buf.iter().all(|byte| *byte == 0));
}

#[test]
fn revoked_exposed_buffer_is_not_delivered() {
    let (a, b) = pair(4096);
    let token = MemoryToken::new().unwrap();
    if !with_memory([&a, &b], &token) {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    let large = vec![1; 8192];
    let mut list = GatherList::default();
    list.push_bytes(&large);
    a.send(b"before").unwrap();
    a.send_list(&list, CopyMode::ZeroCopy).unwrap();
    drop(a);
    let mut buf = [0; 8192];
    assert_eq!(b.recv(&mut buf), Ok(6));
    assert_eq!(b.recv(&mut buf), Err(Error::CONNRESET));
}

#[test]
fn another_process_of_the_same_number_is_not_read() {
    let token = MemoryToken::new().unwrap();
    let own = std::process::id() as i32;
    if PeerMemory::open(own, token.address(), token.value()).is_err() {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    let wrong = PeerMemory::open(own, token.address(), token.value() ^ 1);
    assert_eq!(wrong.unwrap_err(), Error::CONNRESET);
    assert_eq!(PeerMemory::open(0, token.address(), token.value()).unwrap_err(), Error::PERM);
    assert_eq!(PeerMemory::open(own, 4096, 1).unwrap_err(), Error::PROTO);
}

/// Clears the doorbell's eventfd; engines receive each signal only once.
fn silence(doorbell: &Doorbell) {
    let mut times = 0_u64;
    // SAFETY: eight bytes are written to `times`, which outlives the call.
    unsafe { libc::read(doorbell.wakeup_fd(), (&raw mut times).cast(), 8) };
}

/// Emulates an engine: an end sleeping if it finds nothing to do.
fn sleep_unless(doorbell: &Doorbell, pipe: &ShmChannel, look: impl Fn(&ShmChannel) -> bool) {
    pipe.set_polled(false);
    if doorbell.fall_asleep() && !pipe.has_data() && !look(pipe) {
        // A missing signal is a failure; the wait is limited.
        let mut polled =
            libc::pollfd { fd: doorbell.wakeup_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 60_000) }, 1, "no doorbell rang");
    }
    doorbell.wake();
    silence(doorbell);
    rung(doorbell);
}

/// Sends random parts of `from` in random ways, and receives `all` in random parts; both ends
/// do both.
fn talk(
    pipe: &ShmChannel,
    doorbell: &Doorbell,
    (out, inbound): (u64, u64),
    total: usize,
    source: &[u8],
    sleeps: bool,
) {
    let (mut out, mut inbound, mut own) = (Numbers(out), Numbers(inbound), Numbers(out ^ 77));
    // Unsent and unreceived rests of the current part of the source.
    let (mut sending, mut receiving) = (&source[..0], &source[..0]);
    let (mut sent, mut received) = (0, 0);
    let mut buf = vec![0; 200_000];
    let next = |numbers: &mut Numbers| {
        let most = [40, 200, 9000, 100_000][numbers.below(4)];
        let (at, len) = (numbers.below(source.len() - most), 1 + numbers.below(most));
        &source[at..at + len]
    };
    if sleeps {
        pipe.set_polled(true);
    }
    while sent < total || received < total || pipe.is_exposing() {
        let mut idle = true;
        if sending.is_empty() && sent < total {
            let part = next(&mut out);
            sending = &part[..part.len().min(total - sent)];
        }
        let mut list = GatherList::default();
        let cut = own.below(sending.len() + 1);
        list.push_bytes(&sending[..cut]);
        list.push_bytes(&sending[cut..]);
        let result = match own.below(3) {
            _ if sending.is_empty() => Err(Error::AGAIN),
            0 => pipe.send(sending),
            1 => pipe.send_list(&list, CopyMode::Copied),
            _ => pipe.send_list(&list, CopyMode::ZeroCopy),
        };
        match result {
            Ok(n) => {
                (sending, idle) = (&sending[n..], false);
                sent += n;
            }
            Err(error) => assert_eq!(error, Error::AGAIN),
        }
        let n = 1 + own.below(buf.len());
        let (first, second) = buf[..n].split_at_mut(own.below(n + 1));
        let result = if own.below(2) == 0 {
            let mut list = ScatterList::default();
            list.push_buf(first);
            list.push_buf(second);
            pipe.recv_list(&mut list)
        } else {
            pipe.recv(&mut buf[..n])
        };
        match result {
            Ok(n) => {
                idle = false;
                received += n;
                if received > total / 2 {
                    // The system does not let it from here on.
                    pipe.stop_reading();
                }
                let mut got = &buf[..n];
                while !got.is_empty() {
                    if receiving.is_empty() {
                        receiving = next(&mut inbound);
                    }
                    let n = got.len().min(receiving.len());
                    assert!(got[..n] == receiving[..n], "other bytes after {received}");
                    (got, receiving) = (&got[n..], &receiving[n..]);
                }
            }
            Err(error) => assert_eq!(error, Error::AGAIN),
        }
        match pipe.zcopy_completed() {
            Ok(_) => idle = false,
            Err(error) => assert_eq!(error, Error::AGAIN),
        }
        if idle && sleeps {
            let waits = sent < total || !sending.is_empty();
            sleep_unless(doorbell, pipe, |pipe| {
                (waits && pipe.has_space())
                    || (pipe.is_exposing() && pipe.zcopy_completed().is_ok())
            });
            pipe.set_polled(true);
        } else if idle {
            thread::yield_now();
        }
    }
}

fn talks(ring: usize, total: usize, sleeps: bool) {
    let (a, b) = pair(ring);
    let token = MemoryToken::new().unwrap();
    with_memory([&a, &b], &token);
    let doorbells = [Doorbell::new().unwrap(), Doorbell::new().unwrap()];
    a.attach_peer(peer_of(&doorbells[1]), 1);
    b.attach_peer(peer_of(&doorbells[0]), 2);
    let mut numbers = Numbers(ring as u64);
    let source = (0..300_000).map(|_| numbers.below(256) as u8).collect::<Vec<_>>();
    thread::scope(|scope| {
        let ([own, other], source) = (&doorbells, &source);
        scope.spawn(move || talk(&a, own, (1, 2), total, source, sleeps));
        talk(&b, other, (2, 1), total, source, sleeps);
    });
}

#[test]
fn byte_stream_arrives_intact_through_rings_of_any_size() {
    for ring in [4096, 16384, 65536] {
        talks(ring, 8 << 20, false);
    }
}

#[test]
fn blocked_ends_wake_for_bytes_space_and_exposed_buffers() {
    for ring in [4096, 65536] {
        talks(ring, 4 << 20, true);
    }
}

#[test]
fn cells_of_devices_keep_their_position_in_the_stream() {
    let (a, b) = pair(4096);
    let handle =
        crate::device_allocation::DeviceHandle { device: [3; 16], bytes: [4; 64], file: Some(6) };
    let allocation = DeviceCell::allocation(7, 1, 5000, handle);
    let buffer = DeviceCell::buffer(7, 10, 4000);
    assert_eq!(a.send(b"head"), Ok(4));
    assert_eq!(a.send_device_cell(&allocation, None), Ok(true));
    assert_eq!(a.send_device_cell(&buffer, Some(5)), Ok(true));
    assert_eq!((a.send(b"tail"), a.zcopy_completed()), (Ok(4), Err(Error::AGAIN)));
    let mut buf = [0; 500];
    assert_eq!((b.recv(&mut buf), b.recv(&mut buf)), (Ok(4), Err(DEVICE_CELL)));
    assert_eq!((b.device_cell(), a.allocation_is_mapped(7)), (Ok(allocation), None));
    b.took_announcement(7, true);
    assert_eq!((a.allocation_is_mapped(7), a.allocation_is_mapped(6)), (Some(true), None));
    assert_eq!((b.recv(&mut buf), b.device_cell()), (Err(DEVICE_CELL), Ok(buffer)));
    assert_eq!(a.zcopy_completed(), Err(Error::AGAIN), "the buffer is in use");
    assert_eq!((b.took_device_buffer(), b.recv(&mut buf)), (Ok(()), Ok(4)));
    assert_eq!(a.zcopy_completed(), Ok(ZcopyCompletion { low: 0, high: 0 }));
    assert_eq!(b.device_cell(), Err(Error::PROTO), "there is none");
    // The end of an allocation has no answer.
    assert_eq!(a.send_device_cell(&DeviceCell::ended(7), None), Ok(true));
    assert_eq!((b.recv(&mut buf), b.device_cell().unwrap().ended), (Err(DEVICE_CELL), 7));
    b.took_announcement(0, false);
    assert_eq!((a.allocation_is_mapped(7), b.recv(&mut buf)), (Some(true), Err(Error::AGAIN)));
}

#[test]
fn a_buffer_of_a_closed_region_or_an_ended_pipe_is_not_valid() {
    let (a, b) = pair(4096);
    let mut buf = [0; 500];
    for key in [5, 6] {
        assert_eq!(a.send_device_cell(&DeviceCell::buffer(7, 0, 400), Some(key)), Ok(true));
    }
    assert_eq!((b.recv(&mut buf), a.copy_exposed(5, 0)), (Err(DEVICE_CELL), Ok(0)));
    assert_eq!(b.took_device_buffer(), Err(Error::CANCELED));
    assert_eq!(b.recv(&mut buf), Err(DEVICE_CELL));
    assert_eq!(b.took_device_buffer(), Ok(()), "the other region is open");
    assert_eq!(a.send_device_cell(&DeviceCell::buffer(7, 0, 400), None), Ok(true));
    drop(a);
    assert_eq!(b.recv(&mut buf), Err(DEVICE_CELL));
    assert_eq!(b.took_device_buffer(), Err(Error::CONNRESET));
}
