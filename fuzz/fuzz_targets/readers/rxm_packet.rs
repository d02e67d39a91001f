//! Packets and connection data of ofi_rxm, as they come from a peer.

// By path and not as a crate: a plug-in links libfabric.so, a fuzz target must not.
#[allow(dead_code, reason = "only what reads and writes is used here")]
#[path = "../../../providers/rxm/src/wire.rs"]
mod wire;
use wire::{
    Accept, HEADER_LEN, PacketKind, RejectReason, RxmConnReq, RxmHeader, read_segments,
    write_segments,
};

pub fn run(bytes: &[u8]) {
    if let Ok(call) = RxmConnReq::read(bytes) {
        // Written data is in local byte order.
        let ours = RxmConnReq { swapped: false, ..call };
        assert_eq!(RxmConnReq::read(&ours.write()), Ok(ours));
    }
    for own in [false, true] {
        if let Ok(accept) = Accept::read(bytes, own) {
            let ours = Accept { swapped: false, ..accept };
            assert_eq!(Accept::read(&ours.write(own), own), Ok(ours));
        }
    }
    if let Some(reject_reason) = RejectReason::read(bytes) {
        assert_eq!(RejectReason::read(&reject_reason.write()), Some(reject_reason));
    }
    // Only a packet of credits may be shorter than a header.
    let all = |header: &RxmHeader, payload: &[u8]| match bytes.len().checked_sub(HEADER_LEN) {
        Some(behind) => payload.len() == behind,
        None => payload.is_empty() && header.kind == PacketKind::Credit,
    };
    if let Ok((header, payload)) = RxmHeader::read_swapped(bytes) {
        assert!(all(&header, payload));
        if let Ok(segments) = read_segments(payload, true) {
            assert!(segments.total().is_ok());
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
    if let Ok(segments) = read_segments(payload, false) {
        assert!(segments.total().is_ok());
        let mut out = [0; wire::SEGMENTS_LEN];
        write_segments(&segments, &mut out);
        assert_eq!(read_segments(&out, false), Ok(segments));
    }
}
