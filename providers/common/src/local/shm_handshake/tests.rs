//! Unit tests of `shm_handshake`.
use super::*;
use std::io::Read;

const PAGES: RingMemory = RingMemory { ring: 4096, most: usize::MAX / 4 };

#[test]
fn rings_get_smaller_with_their_number_until_there_are_none() {
    let rings = RingMemory { ring: 64 << 10, most: 64 << 20 };
    let (mut made, mut sizes) = (0, Vec::new());
    while let Ok(ring) = rings.next(made) {
        made += segment_bytes(ring);
        sizes.push(ring);
    }
    assert!(made <= rings.most && made + segment_bytes(8 << 10) > rings.most);
    assert!(sizes.is_sorted_by(|one, next| one >= next));
    assert_eq!((sizes[0], sizes.last()), (64 << 10, Some(&(8 << 10))));
    assert!(sizes.len() > 4 * (rings.most / segment_bytes(rings.ring)) / 2);
    let few = RingMemory { ring: 4096, most: 0 };
    assert_eq!(few.next(0), Err(Error::NOMEM));
}

fn host() -> ShmUpgradeListener {
    let mut host = ShmUpgradeListener::new(PAGES, true).unwrap();
    assert!(host.open().unwrap().is_some() && host.open().unwrap().is_none());
    host
}

/// Returns the handshakes of a listener: upgraded links, and failed ones.
fn poll_upgrades(host: &mut ShmUpgradeListener) -> (Vec<(u32, ShmChannel)>, Vec<(u32, Error)>) {
    let (mut upgraded, mut failed) = (Vec::new(), Vec::new());
    host.receive(
        |_| (),
        |link, pipe| upgraded.push((link, pipe)),
        |link, e| failed.push((link, e)),
    )
    .unwrap();
    (upgraded, failed)
}

fn no_peer_arrives(host: &mut ShmUpgradeListener) {
    let (upgraded, failed) = poll_upgrades(host);
    assert!(upgraded.is_empty() && failed.is_empty(), "{upgraded:?} {failed:?}");
}

/// Performs a valid handshake for link 7 of `host`, called 9 by the other side.
fn upgrades(host: &mut ShmUpgradeListener, offer: &[u8; SHM_OFFER_LEN]) {
    let mut other = ShmUpgradeListener::new(PAGES, true).unwrap();
    let (mut call, theirs) = other.call(offer, 9, |_| Ok(())).unwrap();
    assert_eq!(other.accept(&mut call).err(), Some(Error::AGAIN));
    let (mut upgraded, failed) = poll_upgrades(host);
    assert_eq!((upgraded.len(), failed.len()), (1, 0));
    let (link, ours) = upgraded.pop().unwrap();
    assert_eq!(link, 7);
    let peer = other.accept(&mut call).unwrap();
    assert_eq!(peer.index, 7);
    // Nothing is sent before: the peer may fail to map the doorbell of the response.
    assert!(ShmPeer::has_joined(&theirs) && !ShmPeer::has_joined(&ours));
    peer.join(&theirs);
    assert!(ShmPeer::has_joined(&ours));
    let mut buf = [0; 8];
    assert_eq!((theirs.send(b"there"), ours.recv(&mut buf)), (Ok(5), Ok(5)));
    assert_eq!((ours.send(b"back"), theirs.recv(&mut buf)), (Ok(4), Ok(4)));
    let mut rung = [Vec::new(), Vec::new()];
    host.doorbell().ready(&mut rung[0]);
    other.doorbell().ready(&mut rung[1]);
    assert_eq!(rung, [[7], [9]]);
    // Both are this process, which may read its own memory where there is process_vm_readv(2).
    let own = MemoryToken::new().unwrap();
    let reads = PeerMemory::open(std::process::id() as i32, own.address(), own.value()).is_ok();
    assert_eq!((ours.can_expose(), theirs.can_expose()), (reads, reads));
}

#[test]
fn connect_sends_no_hello_if_its_reply_cannot_be_watched() {
    let mut host = host();
    let offer = host.offer(7).unwrap();
    let other = ShmUpgradeListener::new(PAGES, true).unwrap();
    let mut watched = None;
    let called = other.call(&offer, 9, |fd| {
        // A request sent before would be answered.
        let (upgraded, failed) = poll_upgrades(&mut host);
        watched = Some((fd, upgraded.len() + failed.len()));
        Err(Error::NOSPC)
    });
    assert_eq!(called.err(), Some(Error::NOSPC));
    assert!(matches!(watched, Some((0.., 0))), "{watched:?}");
    no_peer_arrives(&mut host);
}

/// Creates a socket of an unknown peer at the address of an offer.
fn unknown_peer(offer: &[u8; SHM_OFFER_LEN]) -> ShmHandshakeSocket {
    let socket = ShmHandshakeSocket::new().unwrap();
    let at = system_name(offer[..16].first_chunk().unwrap());
    // SAFETY: the kernel reads the address's bytes, which outlive the call.
    check(unsafe {
        let len = at.len() as libc::socklen_t;
        libc::connect(socket.fd.as_raw_fd(), at.as_ptr().cast(), len)
    })
    .unwrap();
    socket
}

fn hello(offer: &[u8; SHM_OFFER_LEN]) -> [u8; HELLO_LEN] {
    let mut hello = [0; HELLO_LEN];
    hello[..8].copy_from_slice(&HELLO_MARK);
    hello[8..32].copy_from_slice(&offer[16..]);
    hello
}

fn is_hung_up_on(socket: &ShmHandshakeSocket) {
    assert_eq!(socket.look::<2>(&mut [0; ANSWER_LEN]).err(), Some(Error::CONNRESET));
}

#[test]
fn cookie_is_accepted_once() {
    let mut host = host();
    let offer = host.offer(7).unwrap();
    upgrades(&mut host, &offer);
    assert_eq!(host.open_offers(), 0);
    let mut late = ShmUpgradeListener::new(PAGES, false).unwrap();
    let (mut call, _) = late.call(&offer, 1, |_| Ok(())).unwrap();
    no_peer_arrives(&mut host);
    assert_eq!(late.accept(&mut call).err(), Some(Error::CONNRESET), "a cookie that is used up");
    let offer = host.offer(7).unwrap();
    upgrades(&mut host, &offer);
    let offer = host.offer(7).unwrap();
    host.withdraw(7);
    let (mut call, _) = late.call(&offer, 1, |_| Ok(())).unwrap();
    no_peer_arrives(&mut host);
    assert_eq!(late.accept(&mut call).err(), Some(Error::CONNRESET), "a link that has ended");
    drop(host);
    assert_eq!(late.call(&offer, 1, |_| Ok(())).err(), Some(Error::CONNREFUSED));
}

#[test]
fn links_to_one_engine_share_one_doorbell() {
    let (mut host, mut other) = (host(), ShmUpgradeListener::new(PAGES, true).unwrap());
    let mut doorbells = Vec::new();
    for link in 0..2 {
        let offer = host.offer(link).unwrap();
        let (mut call, _pipe) = other.call(&offer, link, |_| Ok(())).unwrap();
        assert_eq!(poll_upgrades(&mut host).0.len(), 1);
        doorbells.push(other.accept(&mut call).unwrap().doorbell);
    }
    assert!(Arc::ptr_eq(&doorbells[0], &doorbells[1]));
    let third = ShmUpgradeListener::new(PAGES, true).unwrap();
    let received = |fd: BorrowedFd<'_>| ReceivedFd::new(fd.try_clone_to_owned().unwrap());
    let [memory, own] = [&host, &third].map(|host| received(host.doorbell().memory()));
    let wakeup = || received(third.doorbell().wakeup());
    let process = std::process::id() as i32;
    assert!(!Arc::ptr_eq(&doorbells[0], &other.doorbell_of(process, own, wakeup()).unwrap()));
    let claimed = other.doorbell_of(process + 1, memory, wakeup()).unwrap();
    assert!(!Arc::ptr_eq(&doorbells[0], &claimed), "another process may not stand in for one");
}

#[test]
fn malformed_hello_is_disconnected_without_side_effects() {
    let mut host = host();
    let offer = host.offer(7).unwrap();
    let good = hello(&offer);
    let with = |at: usize| {
        let mut wrong = good;
        wrong[at] ^= 1;
        wrong.to_vec()
    };
    let long = [&good[..], b"x"].concat();
    for bytes in [
        b"GET / HTTP/1.1\r\n".to_vec(),
        long,
        good[..HELLO_LEN - 1].to_vec(),
        with(0),
        with(8),
        with(16),
        with(31),
    ] {
        let (reader, given) = rustix::pipe::pipe().unwrap();
        let mut reader = std::fs::File::from(reader);
        let socket = unknown_peer(&offer);
        socket.send(&bytes, &[given.as_fd(); 3]).unwrap();
        drop(given);
        no_peer_arrives(&mut host);
        is_hung_up_on(&socket);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "descriptors are closed");
    }
    for count in [0, 1, 2, 4, MAX_FDS] {
        let (reader, given) = rustix::pipe::pipe().unwrap();
        let mut reader = std::fs::File::from(reader);
        let socket = unknown_peer(&offer);
        socket.send(&good, &vec![given.as_fd(); count]).unwrap();
        drop(given);
        no_peer_arrives(&mut host);
        is_hung_up_on(&socket);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "{count} descriptors are closed");
    }
    // A connection closed at once, too.
    drop(unknown_peer(&offer));
    no_peer_arrives(&mut host);
    upgrades(&mut host, &offer);
}

#[test]
fn invalid_descriptors_fail_only_their_own_upgrade() {
    let mut host = host();
    let other = ShmUpgradeListener::new(PAGES, true).unwrap();
    let (_pipe, segment) = ShmChannel::create(4096).unwrap();
    let (_end, blocking) = rustix::pipe::pipe().unwrap();
    let (segment, doorbell, wakeup) =
        (segment.as_fd(), other.doorbell().memory(), other.doorbell().wakeup());
    let (blocking, pipe) = (blocking.as_fd(), rustix::pipe::pipe().unwrap().1);
    // SAFETY: no memory is involved. Owner signals would be raised in its writers.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    for fds in [
        [doorbell, doorbell, wakeup],
        [wakeup, doorbell, wakeup],
        [segment, segment, wakeup],
        [segment, wakeup, wakeup],
        [segment, doorbell, blocking],
        [segment, doorbell, pipe.as_fd()],
    ] {
        let offer = host.offer(7).unwrap();
        let socket = unknown_peer(&offer);
        socket.send(&hello(&offer), &fds).unwrap();
        let (upgraded, failed) = poll_upgrades(&mut host);
        assert_eq!((upgraded.len(), failed.len(), host.open_offers()), (0, 1, 0));
        assert_eq!(failed[0].0, 7);
        is_hung_up_on(&socket);
    }
    // The other way round.
    let offer = host.offer(7).unwrap();
    let mut caller = ShmUpgradeListener::new(PAGES, true).unwrap();
    for (mark, fds) in [(b"ofimeet?", [doorbell, wakeup]), (&ANSWER_MARK, [doorbell, doorbell])] {
        let (mut call, _pipe) = caller.call(&offer, 9, |_| Ok(())).unwrap();
        let pending_socket = host.listen_addr.as_ref().unwrap().accept().unwrap();
        let mut answer = [0; ANSWER_LEN];
        answer[..8].copy_from_slice(mark);
        pending_socket.send(&answer, &fds).unwrap();
        assert!(!matches!(caller.accept(&mut call), Ok(_) | Err(Error::AGAIN)));
    }
}

#[test]
fn received_rings_count_toward_the_memory_limit() {
    let mut host = host();
    let other = ShmUpgradeListener::new(PAGES, true).unwrap();
    // Other tests have rings meanwhile.
    for (most, upgraded) in [(segment_bytes(16 << 20), 0), (usize::MAX / 4, 1)] {
        host.rings.most = most;
        let offer = host.offer(7).unwrap();
        let (_pipe, segment) = ShmChannel::create(16 << 20).unwrap();
        let socket = unknown_peer(&offer);
        let fds = [segment.as_fd(), other.doorbell().memory(), other.doorbell().wakeup()];
        socket.send(&hello(&offer), &fds).unwrap();
        let (came, failed) = poll_upgrades(&mut host);
        assert_eq!((came.len(), failed.len()), (upgraded, 1 - upgraded));
        assert!(failed.iter().all(|(_, error)| *error == Error::NOMEM));
    }
}

#[test]
fn silent_connections_and_unused_offers_are_bounded() {
    let mut host = host();
    let first = host.offer(7).unwrap();
    let mut silent: Vec<_> = (0..3 * MAX_UNKNOWN_CONNS).map(|_| unknown_peer(&first)).collect();
    for _ in 0..silent.len().div_ceil(MAX_ACCEPTS) {
        no_peer_arrives(&mut host);
    }
    upgrades(&mut host, &first);
    no_peer_arrives(&mut host);
    no_peer_arrives(&mut host);
    assert_eq!(host.pending_sockets.len(), MAX_UNKNOWN_CONNS);
    is_hung_up_on(&silent[0]);
    // One that was slow.
    let offer = host.offer(8).unwrap();
    let slow = silent.pop().unwrap();
    let other = ShmUpgradeListener::new(PAGES, true).unwrap();
    let (_pipe, segment) = ShmChannel::create(4096).unwrap();
    let fds = [segment.as_fd(), other.doorbell().memory(), other.doorbell().wakeup()];
    slow.send(&hello(&offer), &fds).unwrap();
    assert_eq!(poll_upgrades(&mut host).0.len(), 1);
    let offers: Vec<_> = (0..=MAX_OFFERS).map(|_| host.offer(7).unwrap()).collect();
    assert_eq!(host.open_offers(), MAX_OFFERS);
    let mut late = ShmUpgradeListener::new(PAGES, false).unwrap();
    let (mut call, _) = late.call(&offers[0], 1, |_| Ok(())).unwrap();
    no_peer_arrives(&mut host);
    assert_eq!(late.accept(&mut call).err(), Some(Error::CONNRESET), "the oldest is withdrawn");
    upgrades(&mut host, &offers[1]);
}

/// Runs `work` in a thread acting for another user. Returns `None` if this process may not.
fn as_other_user<R: Send>(work: impl FnOnce() -> R + Send) -> Option<R> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: no memory is involved. The call is for this thread alone.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_533, -1) };
            (done == 0).then(work)
        });
        thread.join().unwrap()
    })
}

#[test]
fn shared_memory_upgrade_is_refused_to_another_user() {
    let mut host = host();
    let offer = host.offer(7).unwrap();
    let Some(calling) = as_other_user(|| {
        let socket = unknown_peer(&offer);
        let other = ShmUpgradeListener::new(PAGES, true).unwrap();
        let (_pipe, segment) = ShmChannel::create(4096).unwrap();
        let fds = [segment.as_fd(), other.doorbell().memory(), other.doorbell().wakeup()];
        socket.send(&hello(&offer), &fds).unwrap();
        socket
    }) else {
        return;
    };
    no_peer_arrives(&mut host);
    is_hung_up_on(&calling);
    let (theirs, offered) = as_other_user(|| {
        let mut theirs = self::host();
        let offer = theirs.offer(7).unwrap();
        (theirs, offer)
    })
    .unwrap();
    assert_eq!(host.call(&offered, 1, |_| Ok(())).err(), Some(Error::ACCES));
    drop(theirs);
    upgrades(&mut host, &offer);
}
