//! What the engine relies on of links, tried on a provider's own: for its unit tests.
//!
//! [`check`] fails, with the sentence that does not hold, where messages would be lost or wait for
//! ever. What only an engine can show is tried by the conformance suite.
use crate::net::{ByteLink, LinkListener, LinkPoller, Net, TIMER_TOKEN};
use ofi_provider::addr::Addr;
use ofi_provider::buf::{GatherList, ScatterList, Way};
use ofi_provider::error::{Error, Result};
use ofi_provider::sys::{Interest, PollEvent};
use std::time::{Duration, Instant};

/// How long something is waited for that must happen: the watchdog of a hang.
const WATCHDOG: Duration = Duration::from_secs(30);

/// Bytes of the first message on a link, which is taken whole.
const FIRST: usize = 300;

const LISTENER: u64 = 1 << 40;

fn byte(at: usize) -> u8 {
    (at * 31 + at / 251) as u8
}

/// Asks again until there is an answer.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < WATCHDOG, "{what}: it did not happen");
        std::thread::yield_now();
    }
}

/// Whether a net tells of a token, now.
fn tells<N: Net>(net: &N, token: u64, wanted: fn(&PollEvent) -> bool) -> bool {
    let mut events = Vec::new();
    net.poll(&mut events);
    events.iter().any(|event| event.token == token && wanted(event))
}

/// Not an error for a moment.
fn moment<T>(result: Result<T>) -> Option<Result<T>> {
    match result {
        Err(Error::AGAIN | Error::INTR | Error::NOTCONN) => None,
        other => Some(other),
    }
}

/// Sends bytes numbered from `at` on until the link takes no more; how many it took.
fn fill<L: ByteLink>(link: &L, mut at: usize) -> usize {
    let start = at;
    loop {
        let bytes: Vec<u8> = (at..at + 5000).map(byte).collect();
        let (head, tail) = bytes.split_at(777);
        let mut list = GatherList::default();
        assert!(list.push_bytes(head) && list.push_bytes(tail));
        let sent = if at.is_multiple_of(2) {
            link.send(&bytes)
        } else {
            link.send_list(&mut list, Way::Copied)
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
        assert!(at - start < 1 << 30, "a link that nobody reads takes no more at some time");
    }
}

/// Receives what is there: bytes numbered from `at` on; whether it was the end.
fn drain<L: ByteLink>(link: &L, at: &mut usize) -> bool {
    let (mut one, mut two) = ([0; 1000], [0; 3000]);
    loop {
        let lists = !at.is_multiple_of(2);
        let mut list = ScatterList::default();
        assert!(list.push_room(&mut one) && list.push_room(&mut two));
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
fn made<N: Net>(
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
        tells(server, LISTENER, |event| event.readable).then_some(())
    });
    let (accepted, from) =
        eventually("who called is accepted", || moment(listener.accept())).expect("a caller");
    (dialed, accepted, from)
}

/// Tries a provider's links: listens at an address that `server` chooses where `any` leaves it open,
/// and calls from `client`. Each of the nets is as for an engine of its own.
pub fn check<N: Net>(server: &N, client: &N, any: &Addr) {
    let (listener, at) = server.bind(any).expect("an address that is left open is found");
    assert!(!at.is_any(), "a listener's address is one that can be called");
    assert_eq!(
        Addr::told(at.format(), &at.to_bytes()),
        Ok(at.clone()),
        "its bytes are the address"
    );
    listener.listen(16).expect("a listener listens");
    let taken = server.bind(&at).and_then(|(listener, _)| listener.listen(16));
    assert!(taken.is_err(), "an address has one listener at a time");
    server.poller().add(listener.id(), LISTENER, Interest::READ).expect("a listener is watched");
    assert_eq!(listener.accept().err(), Some(Error::AGAIN), "nobody has called");

    // Who calls, and what is heard of it.
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
    assert!(tells(server, 9, |event| event.readable), "a net tells of what can be read");
    assert!(tells(server, 9, |event| event.readable), "and again as long as it is not");
    assert!(!drain(&accepted, &mut got), "the link has not ended");
    eventually("a net tells of room to write", || {
        assert!(!drain(&accepted, &mut got));
        tells(client, 7, |event| event.writable).then_some(())
    });
    sent += fill(&dialed, sent);
    client.poller().modify(dialed.id(), 7, Interest::NONE).expect("a link can be left alone");
    assert!(!tells(client, 7, |event| event.writable), "what nobody asked for is not told");

    // What was sent arrives although the link is closed behind it; then comes the end.
    drop(dialed);
    eventually("the end of a link is told, behind its last byte", || {
        let over = drain(&accepted, &mut got);
        (over && tells(server, 9, |event| event.readable)).then_some(())
    });
    assert_eq!(got, sent, "all bytes arrive that were sent before the link was closed");
    server.poller().remove(accepted.id());
    drop(accepted);

    let (dialed, accepted, _) = made([server, client], &listener, &of_caller, &at);
    accepted.shutdown();
    let mut all = 0;
    eventually("shutdown ends a link at the other end", || match dialed.recv(&mut [0; 64]) {
        Ok(0) | Err(Error::CONNRESET) => Some(()),
        Ok(n) => panic!("{n} bytes that nobody sent"),
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

    // Nobody is there.
    server.poller().remove(listener.id());
    drop(listener);
    if let Ok(nobody) = client.dial(&of_caller, false, &at) {
        let refused = eventually("a call that nobody takes fails", || {
            nobody.take_error().err().or_else(|| moment(nobody.send(b"x"))?.err())
        });
        assert_ne!(refused, Error::AGAIN);
    }
    drop(own);

    // The timer.
    client.set_timer(Duration::from_millis(1));
    let expired = |event: &PollEvent| event.readable;
    eventually("the timer expires", || tells(client, TIMER_TOKEN, expired).then_some(()));
    client.clear_timer();
    assert!(!tells(client, TIMER_TOKEN, expired), "the timer expires once");
}
