//! Bytes of a simulated peer violating the protocol.
use super::SimRandom;
use crate::wire::{ByteOrder, CmMessage, CmType, PeerFeatures, RdmHello, StreamHeader, StreamOp};
use ofi_provider::contexts::Contexts;

/// Returns the first bytes sent by a peer violating the protocol, possibly only later.
pub(super) fn first_sent(random: &mut SimRandom) -> Vec<u8> {
    let kinds = [CmType::Request, CmType::ContextRequest, CmType::Response, CmType::Nack];
    let kind = match random.below(8) {
        0 => {
            let len = random.below(48);
            return random.bytes(len);
        }
        1..6 => CmType::Request,
        _ => random.pick(&kinds),
    };
    let bit = |random: &mut SimRandom| random.one_in(2);
    let knows = PeerFeatures {
        atomics: bit(random),
        multicast: bit(random),
        acks: bit(random),
        local: bit(random),
        outcomes: bit(random),
        segments: bit(random),
        rails: bit(random),
        closing: bit(random),
        early: bit(random),
    };
    let contexts = Contexts { tx: random.below(4) as u16, rx: random.below(4) as u16 };
    let hello = RdmHello {
        version: random.pick(&[0, 1, 1, 1, 2, 129]),
        features: random.below(4) as u8,
        port: random.below(4) as u16,
        pid: random.below(4) as u32,
    };
    let mut encoded = CmMessage::encode_for(kind, knows, contexts, &hello.encode());
    if random.one_in(8) {
        encoded.truncate(random.below(encoded.len()));
    }
    encoded
}

/// Returns later bytes of such a peer: a header and a part of the announced data, or random bytes.
pub(super) fn later_sent(random: &mut SimRandom) -> Vec<u8> {
    let len = random.below(200);
    if random.one_in(8) {
        return random.bytes(len);
    }
    let ops = [
        StreamOp::Msg,
        StreamOp::Tag,
        StreamOp::Tag,
        StreamOp::ReadReq,
        StreamOp::ReadRsp,
        StreamOp::Write,
        StreamOp::TagRts,
        StreamOp::Cts,
        StreamOp::Data,
        StreamOp::Atomic,
        StreamOp::AtomicRsp,
        StreamOp::WriteRefused,
        StreamOp::Close,
        StreamOp::TaggedMsg,
    ];
    let op = random.pick(&ops);
    let announced = match random.below(8) {
        0 => random.next(),
        1 => 1 << random.below(34),
        _ => len as u64,
    };
    let header = StreamHeader {
        op,
        flags: random.pick(&[0, 0, 0, 1, 4, 5, 8, 20]),
        op_data: random.pick(&[0, 0, 1, 2, 3, 255]),
        segments: random.pick(&[0, 0, 1, 2]),
        cq_data: random.below(256) as u64,
        tag: random.below(1024) as u64,
        len: announced,
        ..StreamHeader::of(op)
    };
    let mut head = [0; 40];
    let written = header.write(ByteOrder::Native, &mut head);
    let mut encoded = head[..written].to_vec();
    encoded.extend(random.bytes(len));
    encoded
}
