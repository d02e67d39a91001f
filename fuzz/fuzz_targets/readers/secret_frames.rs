//! Authentication frames of peers, and data of encrypted links: no peer without the pre-shared key
//! is accepted, and only sealed data is opened.
use ofi_stream::secret::PskConfig;
use ofi_stream::secret::psk_handshake::PskHandshake;
use ofi_stream::secret::records::{RECORD_MAX, RecordStream};
use std::sync::LazyLock;

static SECRET: LazyLock<PskConfig> =
    LazyLock::new(|| PskConfig::new(b"the secret that nobody guesses", true));

/// An end's part: of the caller, or of the called end.
fn end(calls: bool) -> PskHandshake {
    let key = SECRET.key().expect("a secret");
    if calls { PskHandshake::caller(key, true) } else { PskHandshake::called(key, true) }
        .expect("a handshake begins")
}

/// Passes bytes to a handshake until it needs no more, or rejects the peer. Returns false if it
/// rejects it.
fn tell(to: &mut PskHandshake, mut bytes: &[u8]) -> bool {
    while to.wants() > 0 && !bytes.is_empty() {
        let (now, later) = bytes.split_at(to.wants().min(bytes.len()));
        if to.receive(now).is_err() {
            assert!(!to.is_proven() && to.wants() == 0 && to.take_keys().is_none());
            return false;
        }
        bytes = later;
    }
    true
}

fn take_unsent(of: &mut PskHandshake) -> Vec<u8> {
    let bytes = of.unsent().to_vec();
    of.sent(bytes.len());
    bytes
}

/// Valid frames of a handshake except for the changes of the input.
fn prove(changes: &[u8]) {
    let mut ends = [end(true), end(false)];
    let mut changed = false;
    for (round, change) in (0..3).zip(changes.chunks(2).chain(std::iter::repeat(&[][..]))) {
        let mut frame = take_unsent(&mut ends[round % 2]);
        if let &[at, by] = change {
            let at = usize::from(at) % frame.len();
            frame[at] ^= by;
            changed |= by != 0;
        }
        if !tell(&mut ends[1 - round % 2], &frame) {
            break;
        }
    }
    assert_eq!(ends[1].is_proven(), !changed, "who is believed");
}

/// Valid records except for the bytes changed by the input.
fn open(input: &[u8]) {
    let mut ends = [end(true), end(false)];
    for round in 0..3 {
        let frame = take_unsent(&mut ends[round % 2]);
        assert!(tell(&mut ends[1 - round % 2], &frame));
    }
    let [mut from, mut to] = ends.map(|mut end| RecordStream::new(end.take_keys().expect("keys")));
    let (changes, words) = input.split_at(input.len().min(6));
    let mut sealed = Vec::new();
    for word in words.chunks(100) {
        from.seal(word.len(), |buf| buf.copy_from_slice(word)).expect("a record is sealed");
        sealed.extend_from_slice(from.unsent());
        from.sent(from.unsent().len());
    }
    let mut bytes = sealed.clone();
    for change in changes.chunks_exact(3) {
        let at = usize::from(change[0]) | usize::from(change[1]) << 8;
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= change[2];
        }
    }
    let (mut rest, mut opened) = (&bytes[..], Vec::new());
    // Room for less than a record, and for all of it.
    let buf = &mut [0; 200][..if input.len().is_multiple_of(2) { 64 } else { 200 }];
    loop {
        while to.has_opened() {
            let n = to.take(buf);
            opened.extend_from_slice(&buf[..n]);
        }
        let space = to.buf(buf.len());
        assert!(!space.is_empty() && space.len() <= RECORD_MAX + 16 + 5);
        let n = space.len().min(rest.len());
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        match to.came(n, buf) {
            Ok(direct) if n > 0 => opened.extend_from_slice(&buf[..direct]),
            _ => break,
        }
    }
    assert!(words.starts_with(&opened), "what was opened was sealed");
    assert!(opened == words || bytes != sealed);
}

pub fn run(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    match kind % 4 {
        0 | 1 => {
            let mut end = end(kind % 4 == 0);
            tell(&mut end, input);
            assert!(!end.is_proven(), "no peer authenticates without the key");
        }
        2 => prove(&input[..input.len().min(6)]),
        _ => open(input),
    }
}
