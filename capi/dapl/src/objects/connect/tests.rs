//! Unit tests of `connect`.
use super::*;

#[test]
fn private_data_survives_padding_by_a_provider() {
    for length in [0, 1, 56, PRIVATE_MAX] {
        let data = vec![7; length];
        let mut wire = marked(&data);
        assert_eq!(wire.len(), length + MARK_LENGTH);
        wire.extend([0; 50]);
        assert_eq!(unmarked(&wire), Some(&data[..]));
        assert_eq!(unmarked(&wire[..MARK_LENGTH - 1]), None);
    }
    assert_eq!(unmarked(b"GET / HTTP/1.1"), None);
    assert_eq!(unmarked(&[0xDA, 2, 1, 0, 5]), None);
}

#[test]
fn private_data_of_unknown_peers_stays_within_received_bytes() {
    let mut state = 4711u64;
    let mut byte = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    for round in 0..200_000 {
        let mut data: Vec<u8> = (0..byte() % 40).map(|_| byte()).collect();
        if round % 2 == 0 {
            data.splice(..0, MARK.iter().copied().chain([0, byte() % 48]));
        }
        if let Some(own) = unmarked(&data) {
            assert!(data.starts_with(&MARK) && own.len() <= data.len() - MARK_LENGTH);
            assert_eq!(own, &data[MARK_LENGTH..][..own.len()]);
        }
    }
}
