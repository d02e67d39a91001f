//! Packets of ofi_rxd, as they come from a peer.

// By path and not as a crate: a plug-in links libfabric.so, a fuzz target must not.
#[allow(dead_code, reason = "only what reads and writes is used here")]
#[path = "../../../providers/rxd/src/wire.rs"]
mod wire;
use wire::{
    ACK, Ack, BASE_LEN, CTS, Cts, DATA, DATA_READ, DataHead, MAX_HEAD, RTS, Rts, RxdBase,
    RxdOperation,
};

pub fn run(bytes: &[u8]) {
    let Ok(base) = RxdBase::read(bytes) else { return };
    let mut again = bytes.to_vec();
    base.write(&mut again);
    assert_eq!(RxdBase::read(&again), Ok(base));
    match base.kind {
        RTS => {
            let _ = Rts::read(bytes);
        }
        CTS => {
            if let Ok(cts) = Cts::read(bytes) {
                let (packet, len) = cts.packet();
                assert_eq!(Cts::read(&packet[..len]), Ok(cts));
            }
        }
        ACK => {
            if let Ok(ack) = Ack::read(bytes) {
                assert_eq!(Ack::read(&ack.packet(base.peer, base.seq)), Ok(ack));
            }
        }
        DATA | DATA_READ => {
            if let Ok((head, data)) = DataHead::read(bytes) {
                head.write(&mut again);
                assert_eq!(DataHead::read(&again), Ok((head, data)));
            }
        }
        kind if RxdOperation::is_one(kind) => {
            let Ok((op, data)) = RxdOperation::read(&base, bytes) else { return };
            assert!(op.packets > 0 && data.len() <= bytes.len());
            let mut head = [0; MAX_HEAD];
            let len = op.write(&mut head);
            let again = [&bytes[..BASE_LEN], &head[..len], data].concat();
            assert_eq!(RxdOperation::read(&base, &again), Ok((op, data)));
        }
        _ => {}
    }
}
