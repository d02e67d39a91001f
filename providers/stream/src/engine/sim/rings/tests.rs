//! Unit tests of `rings`.
use super::*;
use crate::engine::sim::{SimLink, SimNet};
use crate::settings::LocalSettings;
use crate::transport::{LinkListener, ShmLink, ShmTransport};
use std::rc::Rc;

/// Returns the bytes received in total by an end, and the result of its last call. The other
/// end is about to move to shared memory; `happens` runs on it, unseen by this end, just as
/// this end starts to read.
fn received_when(
    happens: impl FnOnce(SimLink, &Mutex<StreamWorld>) -> Option<SimLink> + 'static,
) -> (usize, Result<usize>) {
    static IN_MEMORY: LazyLock<StreamSettings> = LazyLock::new(|| {
        let local = LocalSettings { enabled: true, talk: (0, 0), ..Default::default() };
        StreamSettings { local, ..Default::default() }
    });
    choose(Some(&IN_MEMORY));
    let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
    look(&world).prompt = true;
    let [server, client] = [(); 2].map(|()| SimNet::from(Rings::new(&world, false)));
    let any = Addr::from(SocketAddr::from(([10, 9, 0, 1], 0)));
    let (listener, at) = server.bind(&any).unwrap();
    let dialed = client.dial(&any, false, &at).unwrap();
    client.poller().add(dialed.id(), 7, Interest::READ).unwrap();
    let all_arrives = |world: &Mutex<StreamWorld>| while look(world).something_arrives(true) {};
    all_arrives(&world);
    let (accepted, _) = listener.accept().unwrap();
    server.poller().add(accepted.id(), 9, Interest::READ).unwrap();
    let offer = server.offer_shm_upgrade(&accepted, 9).unwrap();
    accepted.made();
    client.start_shm_upgrade(&dialed, 7, &offer);
    dialed.made();

    let (mut got, mut capacity) = (0, [0; 64]);
    let mut poll_listener = |got: &mut usize| loop {
        match accepted.recv(&mut capacity) {
            Ok(n @ 1..) => *got += n,
            end => return end,
        }
    };
    // That is enough to meet; the end that dialed moves when it sends again.
    assert_eq!(dialed.send(b"the first words"), Ok(15));
    for _ in 0..32 {
        all_arrives(&world);
        client.poll(&mut Vec::new());
        server.poll(&mut Vec::new());
        assert_eq!(poll_listener(&mut got), Err(Error::AGAIN));
    }
    assert!(got == 15 && !dialed.tx_over_shm());
    let (there, left) = (world.clone(), Rc::new(Cell::new(None)));
    let stays = left.clone();
    MEANWHILE.set(Some(Box::new(move || {
        stays.set(happens(dialed, &there));
        all_arrives(&there);
    })));
    got = 0;
    let end = poll_listener(&mut got);
    assert_eq!(poll_listener(&mut got), end);
    (got, end)
}

#[test]
fn bytes_before_a_close_arrive_though_receiver_polls_other_path() {
    let outcome = received_when(|dialed, _| {
        assert_eq!(dialed.send(b"the last words"), Ok(14));
        assert!(dialed.tx_over_shm());
        None
    });
    assert_eq!(outcome, (14, Ok(0)));
    let outcome = received_when(|dialed, world| {
        assert_eq!(dialed.send(b"the last words"), Ok(14));
        let ends = [dialed.local_addr(), dialed.peer_addr()].map(Result::unwrap);
        assert!(look(world).cut(&ends[0], &ends[1]));
        None
    });
    assert_eq!(outcome, (14, Err(Error::CONNRESET)));
}

#[test]
fn bytes_sent_behind_a_full_ring_arrive_over_the_open_link() {
    let sent = Rc::new(Cell::new(0));
    let counted = sent.clone();
    let outcome = received_when(move |dialed, _| {
        while let Ok(n) = dialed.send(&[7; 1000]) {
            counted.set(counted.get() + n);
        }
        assert!(dialed.tx_over_shm());
        dialed.send_trailing_on_socket();
        assert_eq!(dialed.send(b"the last words"), Ok(14));
        Some(dialed)
    });
    assert_eq!(outcome, (sent.get() + 14, Err(Error::AGAIN)));
}
