//! Unit tests of `psk_transport`.
use super::*;
use crate::engine::sim::{RingCursor, Rings, SimRandom, StreamWorld};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

type RingLink = PskLink<RingCursor>;

/// Returns the ends of a new link between peers with this configuration, and its world.
fn pair(config: &PskConfig) -> (Arc<Mutex<StreamWorld>>, RingLink, RingLink) {
    let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
    let [server, client] =
        [(); 2].map(|()| PskTransport::with_config(Rings::new(&world, false), config.clone()));
    let any = Addr::from(SocketAddr::from(([10, 9, 0, 1], 0)));
    let (listener, at) = server.bind(&any).unwrap();
    let dialed = client.dial(&any, false, &at).unwrap();
    deliver(&world);
    let (accepted, _) = listener.accept().unwrap();
    (world, dialed, accepted)
}

/// Delivers everything in flight.
fn deliver(world: &Mutex<StreamWorld>) {
    while world.lock().unwrap().something_arrives(true) {}
}

fn keyed(encrypts: bool) -> PskConfig {
    PskConfig::new(b"the secret of a job", encrypts)
}

/// Runs both ends, of which only the first one has sent something, and returns the bytes received
/// by the second one.
fn received(world: &Mutex<StreamWorld>, dialed: &RingLink, accepted: &RingLink) -> Vec<u8> {
    let (mut got, mut buf) = (Vec::new(), [0; 5000]);
    for _ in 0..200 {
        deliver(world);
        assert_eq!(dialed.recv(&mut [0; 8]), Err(Error::AGAIN));
        match accepted.recv(&mut buf) {
            Ok(n) => got.extend_from_slice(&buf[..n]),
            Err(error) => assert_eq!(error, Error::AGAIN),
        }
    }
    got
}

#[test]
fn link_without_a_key_is_direct_from_its_first_byte() {
    let (world, dialed, accepted) = pair(&PskConfig::default());
    assert!(dialed.is_direct.get() && accepted.is_direct.get());
    assert_eq!(dialed.secrecy(), [false; 2]);
    assert_eq!(dialed.send(b"bytes"), Ok(5));
    assert_eq!(received(&world, &dialed, &accepted), b"bytes");
}

#[test]
fn first_message_is_taken_at_once_and_arrives_after_the_handshake() {
    for encrypts in [false, true] {
        let (world, dialed, accepted) = pair(&keyed(encrypts));
        assert_eq!(dialed.send(b"the first message"), Ok(17));
        // The next one waits for the handshake.
        assert_eq!(dialed.send(b"the second"), Err(Error::AGAIN));
        assert!(!dialed.is_direct.get() && !dialed.has_half_sent());
        assert_eq!(received(&world, &dialed, &accepted), b"the first message");
        for link in [&dialed, &accepted] {
            assert_eq!((link.is_direct.get(), link.secrecy()), (!encrypts, [true, encrypts]));
        }
    }
}

#[test]
fn list_sent_before_the_handshake_stays_behind_it() {
    for encrypts in [false, true] {
        let (world, dialed, accepted) = pair(&keyed(encrypts));
        let mut list = GatherList::default();
        assert!(list.push_bytes(b"the first ") && list.push_bytes(b"message"));
        assert_eq!(dialed.send_list(&mut list, CopyMode::Copied), Ok(17));
        assert_eq!(received(&world, &dialed, &accepted), b"the first message");
    }
}

#[test]
fn last_byte_of_a_record_sent_in_part_is_passed_again_and_arrives_once() {
    let (world, dialed, accepted) = pair(&keyed(true));
    assert_eq!(dialed.send(b"a"), Ok(1));
    assert_eq!(received(&world, &dialed, &accepted), b"a");
    let sent = dialed.send(&[7; 500_000]).unwrap();
    assert!(sent < 500_000 && dialed.has_half_sent() && dialed.unacknowledged() > 0);
    assert_eq!(dialed.set_zerocopy(), Err(Error::NOSYS));
    // The end that received all but the rest of the record gets it with the next call.
    let before = received(&world, &dialed, &accepted).len();
    assert!(before <= sent + 1);
    assert_eq!(dialed.send(&[7]), Ok(1));
    assert!(!dialed.has_half_sent());
    assert_eq!(before + received(&world, &dialed, &accepted).len(), sent + 1);
}

#[test]
fn records_sent_before_a_reset_are_reported() {
    let (world, dialed, accepted) = pair(&keyed(true));
    assert_eq!(dialed.send(b"a"), Ok(1));
    assert_eq!(received(&world, &dialed, &accepted), b"a");
    // A whole record, and a part of another one.
    world.lock().unwrap().reset_after(RECORD_MAX + 1000);
    let sent = dialed.send(&[7; 2 * RECORD_MAX]);
    let error = dialed.send(&[7; 2]);
    let mut buf = vec![0; 4 * RECORD_MAX];
    let mut got = 0;
    for _ in 0..200 {
        deliver(&world);
        got += accepted.recv(&mut buf).unwrap_or(0);
    }
    assert_eq!((got, error), (RECORD_MAX, Err(Error::CONNRESET)));
    assert!(sent.is_ok_and(|sent| sent >= got), "{got} bytes were received, {sent:?} reported");
}
