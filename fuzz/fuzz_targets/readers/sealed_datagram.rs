//! Datagrams to an endpoint with a pre-shared key: any datagram is rejected unless it was sealed
//! with the key, for these addresses, and arrives for the first time.
use ofi_stream::secret::PskConfig;
use ofi_stream::secret::datagrams::{
    DATAGRAM_HEAD, DATAGRAM_OVERHEAD, DatagramOpener, DatagramSealer,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

static SECRET: LazyLock<PskConfig> =
    LazyLock::new(|| PskConfig::new(b"the secret that nobody guesses", true));

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Valid datagrams except for the bytes changed by the input, in the order given by it.
fn changed(input: &[u8]) {
    let key = SECRET.key().expect("a secret");
    let mut sealer = DatagramSealer::new(key, at(1)).expect("a sealer");
    let mut opener = DatagramOpener::new(key);
    let (changes, words) = input.split_at(input.len().min(24));
    let sealed: Vec<Vec<u8>> = words
        .chunks(100)
        .take(8)
        .map(|word| {
            let mut datagram = vec![0; word.len() + DATAGRAM_OVERHEAD];
            datagram[DATAGRAM_HEAD..][..word.len()].copy_from_slice(word);
            sealer.seal(&at(2), &mut datagram).expect("it is sealed");
            datagram
        })
        .collect();
    let mut came = [false; 8];
    for change in changes.chunks_exact(4) {
        let which = usize::from(change[0]) % 8;
        let Some(datagram) = sealed.get(which) else { continue };
        let mut bytes = datagram.clone();
        let index = usize::from(change[1]) % bytes.len();
        bytes[index] ^= change[2];
        let to = at(if change[3] == 1 { 3 } else { 2 });
        let is_right = bytes == *datagram && change[3] != 1;
        match opener.open(&at(1), &to, &mut bytes) {
            Ok(message) => {
                assert!(is_right && !came[which], "what was sealed, once");
                let word = words.chunks(100).nth(which).expect("its message");
                assert_eq!(&bytes[message], word);
                came[which] = true;
            }
            Err(_) => assert!(!is_right || came[which], "what is right comes"),
        }
    }
}

pub fn run(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    if kind % 2 == 0 {
        return changed(input);
    }
    let mut opener = DatagramOpener::new(SECRET.key().expect("a secret"));
    let mut bytes = input.to_vec();
    assert!(opener.open(&at(1), &at(2), &mut bytes).is_err(), "sealed without the key");
    assert_eq!(opener.dropped(), 1);
}
