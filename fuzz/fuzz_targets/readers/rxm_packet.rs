//! Packets and connection data of ofi_rxm, as they come from a peer.

// By path and not as a crate: a plug-in links libfabric.so, a fuzz target must not.
#[allow(dead_code, reason = "only what reads and writes is used here")]
#[path = "../../../providers/rxm/src/wire.rs"]
mod wire;
use wire::{
    Accept, HEADER_LEN, PacketKind, Refusal, RxmCall, RxmHeader, read_places, write_places,
};

pub fn run(bytes: &[u8]) {
    if let Ok(call) = RxmCall::read(bytes) {
        // Written data is in local byte order.
        let ours = RxmCall { swapped: false, ..call };
        assert_eq!(RxmCall::read(&ours.write()), Ok(ours));
    }
    for own in [false, true] {
        if let Ok(accept) = Accept::read(bytes, own) {
            let ours = Accept { swapped: false, ..accept };
            assert_eq!(Accept::read(&ours.write(own), own), Ok(ours));
        }
    }
    if let Some(refusal) = Refusal::read(bytes) {
        assert_eq!(Refusal::read(&refusal.write()), Some(refusal));
    }
    // Only a packet of credits may be shorter than a header.
    let all = |header: &RxmHeader, payload: &[u8]| match bytes.len().checked_sub(HEADER_LEN) {
        Some(behind) => payload.len() == behind,
        None => payload.is_empty() && header.kind == PacketKind::Credit,
    };
    if let Ok((header, payload)) = RxmHeader::read_swapped(bytes) {
        assert!(all(&header, payload));
        if let Ok(places) = read_places(payload, true) {
            assert!(places.total().is_ok());
        }
        assert!(header.kind != PacketKind::Segment || header.part().is_some());
    }
    let Ok((header, payload)) = RxmHeader::read(bytes) else { return };
    assert!(all(&header, payload));
    // Nothing of an accepted header is lost.
    let mut again = bytes.to_vec();
    again.resize(bytes.len().max(HEADER_LEN), 0);
    header.write(&mut again);
    assert_eq!(RxmHeader::read(&again).map(|(header, _)| header), Ok(header));
    match header.kind {
        PacketKind::Eager => assert_eq!(header.size, payload.len() as u64),
        PacketKind::Segment => assert!(header.part().is_some()),
        _ => {}
    }
    if let Ok(places) = read_places(payload, false) {
        assert!(places.total().is_ok());
        let mut out = [0; wire::PLACES_LEN];
        write_places(&places, &mut out);
        assert_eq!(read_places(&out, false), Ok(places));
    }
}
