//! Requirements of the engine on links, as unit tests for the links of a provider.
//!
//! [`check`] fails with the violated requirement if messages would be lost or would wait forever.
//! Requirements visible only through an engine are covered by the conformance suite.
use crate::transport::{
    ByteLink, LinkListener, LinkPoller, ShmLink, ShmTransport, TIMER_TOKEN, Transport,
};
use ofi_provider::addr::Addr;
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::error::{Error, Result};
use ofi_provider::sys::{Epoll, Interest, PollEvent};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum wait for an event that must happen: the watchdog of a hang.
const WATCHDOG: Duration = Duration::from_secs(30);

/// Size in bytes of the first message on a link, accepted as a whole.
const FIRST: usize = 300;
/// Number of calls more than sufficient for the shared-memory upgrade of two ends on one host.
const ENOUGH: usize = 64;
/// Progress iterations of both ends for the authentication handshake.
const HANDSHAKE_ROUNDS: usize = 3;

const LISTENER: u64 = 1 << 40;

fn byte(at: usize) -> u8 {
    (at * 31 + at / 251) as u8
}

/// Asks again until there is an answer.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < WATCHDOG, "{what}: it did not happen");
        std::thread::yield_now();
    }
}

/// Returns true if a net reports a matching event for a token now.
fn notifies<N: Transport>(net: &N, token: u64, wanted: fn(&PollEvent) -> bool) -> bool {
    let mut events = Vec::new();
    net.poll(&mut events);
    events.iter().any(|event| event.token == token && wanted(event))
}

/// Returns true if the byte count equals the bytes sent, or is one larger: an encrypted link may
/// have sent one byte without reporting it.
fn arrived(got: usize, sent: usize) -> bool {
    (sent..=sent + 1).contains(&got)
}

/// Closes a link on a thread once all of its data has left this host. Returns the number of bytes
/// sent by then.
fn close_behind<L: ByteLink>(link: L, mut sent: usize) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        eventually("what was sent leaves when the other end reads", || {
            // Longer than a system waits with the acknowledgement of a byte.
            std::thread::sleep(Duration::from_millis(100));
            let left = link.unacknowledged() > 0;
            // An engine passes bytes again until the link accepts them.
            sent += usize::from(left && link.send(&[byte(sent)]) == Ok(1));
            (!left).then_some(())
        });
        drop(link);
        sent
    })
}

/// Not an error for a moment.
fn moment<T>(result: Result<T>) -> Option<Result<T>> {
    match result {
        Err(Error::AGAIN | Error::INTR | Error::NOTCONN) => None,
        other => Some(other),
    }
}

/// Sends bytes numbered from `at` on until the link accepts no more; returns the number of bytes
/// accepted.
fn fill<L: ByteLink>(link: &L, mut at: usize) -> usize {
    let start = at;
    loop {
        let bytes: Vec<u8> = (at..at + 5000).map(byte).collect();
        let (head, tail) = bytes.split_at(777);
        let mut list = GatherList::default();
        assert!(list.push_bytes(head) && list.push_bytes(tail));
        let sent = if at % 2 == 0 {
            link.send(&bytes)
        } else {
            link.send_list(&mut list, CopyMode::Copied)
        };
        match sent {
            Ok(n) => {
                assert!(
                    n > 0 && n <= bytes.len(),
                    "a send takes some of the bytes, or says EAGAIN"
                );
                at += n;
            }
            Err(Error::AGAIN) => return at - start,
            Err(error) => panic!("a send that finds no room says EAGAIN, not {error}"),
        }
        assert!(at - start < 1 << 30, "an unread link accepts no more bytes at some time");
    }
}

/// Receives the available bytes, numbered from `at` on; returns true at the end of the stream.
fn drain<L: ByteLink>(link: &L, at: &mut usize) -> bool {
    let (mut one, mut two) = ([0; 1000], [0; 3000]);
    loop {
        let lists = *at % 2 != 0;
        let mut list = ScatterList::default();
        assert!(list.push_buf(&mut one) && list.push_buf(&mut two));
        let got = if lists { link.recv_list(&mut list) } else { link.recv(&mut two) };
        let n = match got {
            Ok(0) => return true,
            Ok(n) => n,
            Err(Error::AGAIN) => return false,
            Err(error) => panic!("a receive that finds nothing says EAGAIN, not {error}"),
        };
        let got = if lists { [&one[..], &two].concat() } else { two.to_vec() };
        let right = got[..n].iter().enumerate().all(|(index, got)| *got == byte(*at + index));
        assert!(right, "bytes come as they were sent, in order, from byte {at} on");
        *at += n;
    }
}

/// Begins a link from `from` to the listener; both ends, when both are made.
fn made<N: Transport>(
    [server, client]: [&N; 2],
    listener: &N::Listener,
    from: &Addr,
    at: &Addr,
) -> (N::Link, N::Link, Addr) {
    let dialed = client.dial(from, false, at).expect("a link to a listener can be begun");
    client.poller().add(dialed.id(), 7, Interest::WRITE).expect("a new link can be watched");
    let first: Vec<u8> = (0..FIRST).map(byte).collect();
    let sent = eventually("a link to a listener is made", || {
        dialed.take_error().expect("a link to a listener has no error");
        moment(dialed.send(&first))
    });
    assert_eq!(sent, Ok(FIRST), "the first message on a link is taken whole");
    eventually("a net tells of callers at a listener", || {
        notifies(server, LISTENER, |event| event.readable).then_some(())
    });
    let (accepted, from) =
        eventually("who called is accepted", || moment(listener.accept())).expect("a caller");
    // Ends with a secret say something to each other first.
    for _ in 0..HANDSHAKE_ROUNDS {
        let nothing = [accepted.recv(&mut []), dialed.recv(&mut [])];
        assert!(nothing.iter().all(|got| matches!(got, Ok(0) | Err(Error::AGAIN))), "{nothing:?}");
    }
    (dialed, accepted, from)
}

/// Tests the links of a provider: listens at an address chosen by `server` if `any` leaves it open,
/// and connects from `client`. Each net is configured as for a separate engine.
pub fn check<N: Transport>(server: &N, client: &N, any: &Addr) {
    let (listener, at) = server.bind(any).expect("an address that is left open is found");
    assert!(!at.is_any(), "a listener's address is one that can be called");
    assert_eq!(
        Addr::from_application(at.format(), &at.to_bytes()),
        Ok(at.clone()),
        "its bytes are the address"
    );
    listener.listen(16).expect("a listener listens");
    let taken = server.bind(&at).and_then(|(listener, _)| listener.listen(16));
    assert!(taken.is_err(), "an address has one listener at a time");
    server.poller().add(listener.id(), LISTENER, Interest::READ).expect("a listener is watched");
    assert_eq!(listener.accept().err(), Some(Error::AGAIN), "no pending connection");

    // The connecting end, and the events of its connection.
    let (own, of_caller) = client.bind(any).expect("a second address is found");
    let (dialed, accepted, from) = made([server, client], &listener, &of_caller, &at);
    let known = from.at_port(of_caller.port()).identity();
    assert_eq!(known, of_caller.clone().identity(), "a link comes from the endpoint that began it");
    assert_eq!(dialed.peer_addr(), Ok(at.clone()), "the other end of a link is what was called");
    assert!(accepted.local_addr().is_ok() && accepted.peer_addr().is_ok());
    server.poller().add(accepted.id(), 9, Interest::READ).expect("an accepted link is watched");

    // Bytes, until there is no room, and on when there is some.
    let mut got = 0;
    let mut sent = FIRST + fill(&dialed, FIRST);
    assert!(notifies(server, 9, |event| event.readable), "a net tells of what can be read");
    assert!(notifies(server, 9, |event| event.readable), "and again as long as it is not");
    assert!(!drain(&accepted, &mut got), "the link has not ended");
    eventually("a net tells of room to write", || {
        assert!(!drain(&accepted, &mut got));
        notifies(client, 7, |event| event.writable).then_some(())
    });
    sent += fill(&dialed, sent);
    client.poller().modify(dialed.id(), 7, Interest::NONE).expect("a link can be left alone");
    assert!(!notifies(client, 7, |event| event.writable), "an unrequested event is not reported");

    // Sent data arrives although the link is closed afterwards, if it is closed with nothing
    // unacknowledged; then the end of the stream arrives.
    let closing = close_behind(dialed, sent);
    eventually("the end of a link is told, behind its last byte", || {
        let over = drain(&accepted, &mut got);
        (over && notifies(server, 9, |event| event.readable)).then_some(())
    });
    let sent = closing.join().expect("a link is closed");
    assert!(arrived(got, sent), "all bytes arrive that were sent before the link was closed");
    server.poller().remove(accepted.id());
    drop(accepted);

    let (dialed, accepted, _) = made([server, client], &listener, &of_caller, &at);
    accepted.shutdown();
    let mut all = 0;
    eventually("shutdown ends a link at the other end", || match dialed.recv(&mut [0; 64]) {
        Ok(0) | Err(Error::CONNRESET) => Some(()),
        Ok(n) => panic!("{n} bytes never sent"),
        Err(_) => None,
    });
    assert!(drain(&accepted, &mut all) || all == FIRST, "and at this one");
    drop((dialed, accepted));

    // A send to an end that is closed fails, although there is something left to receive.
    let (dialed, accepted, _) = made([server, client], &listener, &of_caller, &at);
    drop(dialed);
    eventually("a send fails when the other end is closed", || {
        accepted.send(b"x").err().filter(|error| ![Error::AGAIN, Error::INTR].contains(error))
    });
    drop(accepted);

    // No process listens there.
    server.poller().remove(listener.id());
    drop(listener);
    if let Ok(no_peer) = client.dial(&of_caller, false, &at) {
        let refused = eventually("a call without a listener fails", || {
            no_peer.take_error().err().or_else(|| moment(no_peer.send(b"x"))?.err())
        });
        assert_ne!(refused, Error::AGAIN);
    }
    drop(own);

    // The timer.
    client.set_timer(Duration::from_millis(1));
    let expired = |event: &PollEvent| event.readable;
    eventually("the timer expires", || notifies(client, TIMER_TOKEN, expired).then_some(()));
    client.clear_timer();
    assert!(!notifies(client, TIMER_TOKEN, expired), "the timer expires once");
}

/// Creates a link and completes its shared-memory upgrade while bytes flow in both directions. The
/// client, the connecting end, uses token 7; the server uses token 9.
fn upgraded_pair<N: ShmTransport>(
    [server, client]: [&N; 2],
    listener: &N::Listener,
    from: &Addr,
    at: &Addr,
    seed: usize,
) -> (N::Link, N::Link) {
    let (dialed, accepted, _) = made([server, client], listener, from, at);
    client.poller().modify(dialed.id(), 7, Interest::READ).expect("a link can be read");
    server.poller().add(accepted.id(), 9, Interest::READ).expect("an accepted link is watched");
    let mut first = 0;
    eventually("the first message arrives", || {
        assert!(!drain(&accepted, &mut first));
        (first == FIRST).then_some(())
    });
    assert!(client.may_be_local(&dialed), "both ends are here");
    let offer =
        server.offer_shm_upgrade(&accepted, 9).expect("an end that is here is offered to meet");
    accepted.made();
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    let mut round = seed;
    eventually("bytes go through memory when the ends have met", || {
        round += 1;
        if round == seed + 3 {
            client.start_shm_upgrade(&dialed, 7, &offer);
            dialed.made();
        }
        // Only one end writes before the other may.
        for (which, link) in [&accepted, &dialed].into_iter().enumerate() {
            if which == 1 && round < seed + 3 {
                continue;
            }
            let bytes: Vec<u8> =
                (0..round * 37 % 5000).map(|index| byte(sent[which] + index)).collect();
            match link.send(&bytes) {
                Ok(n) => sent[which] += n,
                Err(error) => assert_eq!(error, Error::AGAIN),
            }
        }
        if round > seed + 3 {
            notifies(client, 7, |event| event.readable);
            assert!(!drain(&dialed, &mut got[0]));
        }
        notifies(server, 9, |event| event.readable);
        assert!(!drain(&accepted, &mut got[1]));
        let moved = [&dialed, &accepted].map(|link| link.rx_over_shm() && link.tx_over_shm());
        (moved == [true; 2] && round > seed + 40).then_some(())
    });
    eventually("what was sent arrives", || {
        assert!(!drain(&dialed, &mut got[0]) && !drain(&accepted, &mut got[1]));
        (got == sent).then_some(())
    });
    for (net, token) in [(client, 7), (server, 9)] {
        eventually("what is read is not told of any more", || {
            (!notifies(net, token, |event| event.readable)).then_some(())
        });
    }
    (dialed, accepted)
}

/// Returns true if the descriptor of a net is readable now.
fn is_polling<N: Transport>(net: &N) -> bool {
    let mut count = 0;
    let epoll = Epoll::new().expect("an epoll instance");
    epoll.add(net.wait_fd(), 0, Interest::READ).expect("a descriptor to sleep on");
    epoll.wait(Some(Duration::ZERO), |_| count += 1).expect("a look");
    count > 0
}

/// Tests links between two ends on one host with the upgrade to shared memory ([`ShmTransport::offer_shm_upgrade`]), in
/// one process; otherwise like [`check`].
pub fn check_local<N: ShmTransport>(server: &N, client: &N, any: &Addr) {
    let (listener, at) = server.bind(any).expect("an address that is left open is found");
    listener.listen(16).expect("a listener listens");
    server.poller().add(listener.id(), LISTENER, Interest::READ).expect("a listener is watched");
    let (_own, from) = client.bind(any).expect("a second address is found");
    let nets = [server, client];
    let make = |seed| upgraded_pair(nets, &listener, &from, &at, seed);

    // Signs, and sleep.
    let (dialed, accepted) = make(1);
    let (mut sent, mut got) = (0, 0);
    let mut send = || {
        assert_eq!(dialed.send(&[byte(sent)]), Ok(1));
        sent += 1;
    };
    assert!(server.has_local() && !server.is_rung());
    send();
    assert!(server.is_rung(), "an end gives a sign");
    assert!(notifies(server, 9, |event| event.readable), "of which the net tells");
    assert!(notifies(server, 9, |event| event.readable), "as long as nothing is read");
    assert!(!server.rest(), "no thread sleeps over it");
    assert!(!drain(&accepted, &mut got));
    server.wake();
    eventually("an end may rest", || {
        notifies(server, 9, |event| event.readable);
        drain(&accepted, &mut got);
        let rests = server.rest() && !is_polling(server);
        rests.then_some(())
    });
    send();
    assert!(is_polling(server), "a sign wakes who sleeps");
    assert!(notifies(server, 9, |event| event.readable));
    assert!(!drain(&accepted, &mut got));
    send();
    assert!(is_polling(server), "whatever another thread sees meanwhile");
    server.wake();
    assert!(notifies(server, 9, |event| event.readable) && !drain(&accepted, &mut got));
    accepted.set_polled(true);
    send();
    assert!(!server.is_rung(), "who is looked at gives no sign");
    accepted.set_polled(false);
    assert!(accepted.is_ready(true, false) && !accepted.is_ready(false, false));
    assert!(!drain(&accepted, &mut got));
    assert!(!accepted.is_ready(true, false));
    assert_eq!(got, sent);

    // No room, and room again.
    client.poller().modify(dialed.id(), 7, Interest::WRITE).expect("a link can be watched");
    sent += fill(&dialed, sent);
    assert!(!dialed.is_ready(false, true), "there is no room");
    notifies(client, 7, |event| event.writable);
    assert!(!notifies(client, 7, |event| event.writable), "which is not told of again and again");
    eventually("a net tells of room to write", || {
        drain(&accepted, &mut got);
        notifies(client, 7, |event| event.writable).then_some(())
    });
    assert!(dialed.is_ready(false, true), "there is some");

    // Data in shared memory at the close of an end is read, and also its trailing data on the
    // socket.
    sent += fill(&dialed, sent);
    dialed.send_trailing_on_socket();
    sent += fill(&dialed, sent);
    let closing = close_behind(dialed, sent);
    eventually("the end of a link is told, behind its last byte", || {
        let notified = notifies(server, 9, |event| event.readable);
        (drain(&accepted, &mut got) && notified).then_some(())
    });
    let sent = closing.join().expect("a link is closed");
    assert!(arrived(got, sent), "all bytes arrive that were sent before the link was closed");
    drop(accepted);

    // The same for a receiver polling by itself, without trailing data on the socket.
    let (dialed, accepted) = make(20);
    accepted.set_polled(true);
    let (sent, mut got) = (fill(&dialed, 0), 0);
    drop(dialed);
    eventually("the end of a link is told, behind its last byte", || {
        notifies(server, 9, |event| event.readable);
        drain(&accepted, &mut got).then_some(())
    });
    assert_eq!(got, sent);
    drop(accepted);

    // An end blocked on buffer space without reading is notified of the disconnect.
    let (dialed, accepted) = make(30);
    assert_eq!(dialed.send(b"x"), Ok(1));
    fill(&accepted, 0);
    server.poller().modify(accepted.id(), 9, Interest::WRITE).expect("a link can be watched");
    notifies(server, 9, |event| event.writable);
    assert!(!notifies(server, 9, |event| event.writable));
    drop(dialed);
    eventually("the end is told", || notifies(server, 9, |_| true).then_some(()));
    eventually("a send fails when the other end is closed, and there is no room", || {
        accepted.send(&[0; 300]).err().filter(|error| *error != Error::AGAIN)
    });
    assert_eq!(accepted.recv(&mut [0; 8]), Ok(1), "though there is something to receive");
    drop(accepted);

    // A link that ends before the upgrade leaves no state behind for others.
    for client_comes in [false, true] {
        let (dialed, accepted, _) = made(nets, &listener, &from, &at);
        server.poller().add(accepted.id(), 9, Interest::READ).expect("a link is watched");
        let offer = server.offer_shm_upgrade(&accepted, 9).expect("an offer");
        drop(accepted);
        if client_comes {
            client.start_shm_upgrade(&dialed, 7, &offer);
            dialed.made();
        }
        notifies(server, 9, |_| true);
        eventually("the end is told", || {
            notifies(client, 7, |_| true);
            matches!(dialed.recv(&mut [0; 8]), Ok(0) | Err(Error::CONNRESET)).then_some(())
        });
        assert!(!dialed.tx_over_shm());
    }
    // An end that sends nothing, and reads everything before the other's response, frees space as
    // well.
    let (dialed, accepted, _) = made(nets, &listener, &from, &at);
    client.poller().modify(dialed.id(), 7, Interest::READ).expect("a link can be read");
    server.poller().add(accepted.id(), 9, Interest::READ).expect("a link is watched");
    let mut first = 0;
    eventually("the first message arrives", || {
        assert!(!drain(&accepted, &mut first));
        (first == FIRST).then_some(())
    });
    let offer = server.offer_shm_upgrade(&accepted, 9).expect("an offer");
    accepted.made();
    client.start_shm_upgrade(&dialed, 7, &offer);
    dialed.made();
    let (mut sent, mut got) = (0, 0);
    eventually("an end sends through memory", || {
        notifies(server, 9, |event| event.readable);
        match accepted.send(&[byte(sent)]) {
            Ok(n) => sent += n,
            Err(error) => assert!(error == Error::AGAIN && server.is_due()),
        }
        assert!(!drain(&dialed, &mut got));
        if sent >= ENOUGH {
            // The handshake, with the response to it.
            notifies(client, 7, |_| true);
        }
        accepted.tx_over_shm().then_some(())
    });
    sent += fill(&accepted, sent);
    server.poller().modify(accepted.id(), 9, Interest::WRITE).expect("a link can be watched");
    notifies(server, 9, |event| event.writable);
    eventually("all is read", || {
        assert!(!drain(&dialed, &mut got));
        (got == sent).then_some(())
    });
    eventually("a net tells of room to write", || {
        notifies(client, 7, |event| event.readable);
        assert!(!drain(&dialed, &mut got));
        notifies(server, 9, |event| event.writable).then_some(())
    });
    server.poller().modify(accepted.id(), 9, Interest::READ).expect("a link can be read");
    eventually("an end to which nothing is sent is not told of its sign again and again", || {
        assert!(!drain(&accepted, &mut 0));
        (!notifies(server, 9, |_| true)).then_some(())
    });
    drop((dialed, accepted));

    // Data received by a formerly busy-polling end, not read since, is reported once the end is to
    // read again.
    let (dialed, accepted) = make(40);
    accepted.set_polled(true);
    server.poller().modify(accepted.id(), 9, Interest::NONE).expect("a link need not be read");
    assert_eq!(dialed.send(b"x"), Ok(1));
    accepted.set_polled(false);
    assert!(!notifies(server, 9, |event| event.readable), "which is not told to who does not read");
    server.poller().modify(accepted.id(), 9, Interest::READ).expect("a link can be read");
    assert!(notifies(server, 9, |event| event.readable), "but when he reads again");
    assert_eq!(accepted.recv(&mut [0; 8]), Ok(1));
}
