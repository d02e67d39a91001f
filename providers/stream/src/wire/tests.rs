//! Unit tests of `wire`.
use super::cm_message::KNOWS_LOCAL;
use super::*;
use ofi_provider::api::RemoteSegment;
use ofi_provider::atomic::AtomicKind;
use ofi_provider::contexts::Contexts;

const NOTHING: PeerFeatures = PeerFeatures {
    rails: false,
    atomics: false,
    multicast: false,
    acks: false,
    local: false,
    outcomes: false,
    segments: false,
    closing: false,
    early: false,
};
const ATOMICS: PeerFeatures = PeerFeatures { atomics: true, ..NOTHING };

fn written(header: &StreamHeader, order: ByteOrder) -> Vec<u8> {
    let mut out = [0xee; 40];
    let len = header.write(order, &mut out);
    out[..len].to_vec()
}

#[test]
fn acknowledgement_carries_its_run_of_messages_or_none() {
    let run = |first, count| Some(AckRun { first, count });
    for acked in [None, run(0, 1), run(1 << 40, 1), run(7, 2), run(1, MAX_ACK_RUN)] {
        let header = acked.map_or_else(StreamHeader::ack_oldest, StreamHeader::ack);
        let bytes = written(&header, ByteOrder::Network);
        assert_eq!(bytes.len(), if acked.is_some() { 24 } else { 16 });
        let header = StreamHeader::parse(&bytes, ByteOrder::Network).unwrap();
        assert_eq!((header.is_ack(), header.acked()), (true, acked));
    }
    // For one message it has the bytes known to peers without support for runs.
    assert_eq!(StreamHeader::ack(AckRun::of(9)).cq_data, 9);
}

#[test]
fn ack_run_extends_by_consecutive_numbers_up_to_its_maximum() {
    let mut run = AckRun::of(5);
    assert!(!run.extend(5) && !run.extend(7) && run.extend(6));
    assert_eq!(run, AckRun { first: 5, count: 2 });
    let mut long = AckRun { first: 0, count: MAX_ACK_RUN - 1 };
    assert!(long.extend(u64::from(MAX_ACK_RUN) - 1) && !long.extend(MAX_ACK_RUN.into()));
}

#[test]
fn closing_has_four_steps_with_the_number_of_their_request() {
    let parsed = |header: &StreamHeader| {
        StreamHeader::parse(&written(header, ByteOrder::Network), ByteOrder::Network)
    };
    let steps = [CloseStep::Request, CloseStep::Agree, CloseStep::Refuse, CloseStep::Cancel];
    for (number, step) in steps.into_iter().enumerate() {
        let header = StreamHeader::close(step, number as u64);
        assert_eq!(parsed(&header), Ok(header));
        assert_eq!((header.close_step(), header.cq_data), (Some(step), number as u64));
        for wrong in [
            StreamHeader { op_data: 0, ..header },
            StreamHeader { op_data: 5, ..header },
            StreamHeader { flags: 0, ..header },
            StreamHeader { len: 1, ..header },
        ] {
            assert!(parsed(&wrong).is_err(), "{wrong:?}");
        }
    }
}

#[test]
fn request_number_follows_the_further_features_and_answers_have_none() {
    let number = RequestNumber::new(0xff01_0203_0405_0607);
    assert_eq!(
        (number, RequestNumber::new(1 << 56)),
        (RequestNumber::new(0x0001_0203_0405_0607), None)
    );
    for knows in [NOTHING, PeerFeatures { closing: true, ..ATOMICS }] {
        let mut request = CmMessage::encode(CmType::Request, knows, b"data");
        let further = request[4];
        CmMessage::add_number(&mut request, number.unwrap());
        assert_eq!(request[4..12], [further | 2, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(request[16..23], *b"ofi-rs?");
        let message = CmMessage::parse(&request).unwrap();
        assert_eq!((message.number, message.knows, &*message.data), (number, knows, &b"data"[..]));
        request[1] = CmType::Response as u8;
        assert_eq!(CmMessage::parse(&request).unwrap().number, None);
    }
    // Upstream's requests have other bytes in place of the mark.
    let mut request = CmMessage::encode(CmType::Request, NOTHING, b"");
    request[4..12].copy_from_slice(&[2, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(CmMessage::parse(&request).unwrap().number, None);
}

#[test]
fn closing_and_early_data_are_features_of_a_byte_of_their_own() {
    for (knows, further) in [
        (NOTHING, 0),
        (ATOMICS, 0),
        (PeerFeatures { closing: true, ..NOTHING }, 1),
        (PeerFeatures { early: true, ..NOTHING }, 4),
    ] {
        for kind in [CmType::Request, CmType::Response] {
            let bytes = CmMessage::encode(kind, knows, b"data");
            assert_eq!((bytes[4], CmMessage::parse(&bytes).unwrap().knows), (further, knows));
        }
    }
    // Without the mark the byte is not looked at.
    let mut bytes = CmMessage::encode(CmType::Request, NOTHING, &[]);
    bytes[4] = 1;
    assert_eq!(CmMessage::parse(&bytes).unwrap().knows, NOTHING);
}

#[test]
fn rejection_carries_an_error_and_for_writes_a_number() {
    let parsed = |header: &StreamHeader| {
        StreamHeader::parse(&written(header, ByteOrder::Network), ByteOrder::Network)
    };
    let write = StreamHeader::refuse_write(77, 13);
    assert_eq!(parsed(&write), Ok(write));
    assert_eq!((write.op, write.op_data, write.cq_data), (StreamOp::WriteRefused, 13, 77));
    let read = parsed(&StreamHeader::refuse_read(0)).unwrap();
    assert_eq!((read.op, read.op_data, read.len), (StreamOp::ReadRsp, 1, 0));
    for wrong in [
        StreamHeader { op_data: 0, ..write },
        StreamHeader { flags: 0, ..write },
        StreamHeader { len: 1, ..write },
    ] {
        assert!(parsed(&wrong).is_err());
    }
}

#[test]
fn a_tagged_message_with_data_is_these_bytes() {
    let header = StreamHeader {
        op: StreamOp::Tag,
        flags: REMOTE_CQ_DATA | DELIVERY_COMPLETE,
        op_data: 0,
        segments: 0,
        id: 9,
        cq_data: 0x0102,
        tag: 0x0a0b,
        len: 64,
    };
    let bytes = written(&header, ByteOrder::Network);
    assert_eq!(
        bytes,
        [
            3, 1, 0, 5, 0, 0, 32, 9, 0, 0, 0, 0, 0, 0, 0, 96, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0,
            0, 0, 0x0a, 0x0b
        ]
    );
    assert_eq!(StreamHeader::parse(&bytes, ByteOrder::Network), Ok(header));
}

#[cfg(target_endian = "little")]
#[test]
fn message_header_between_equal_machines_has_the_known_bytes() {
    let header = StreamHeader { len: 5, ..StreamHeader::of(StreamOp::Msg) };
    let bytes = written(&header, ByteOrder::Native);
    assert_eq!(bytes, [3, 0, 0, 0, 0, 0, 16, 0, 21, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn contexts_are_named_in_the_callers_words_and_in_the_answerers() {
    let contexts = Contexts { tx: 0x0102, rx: 0x0304 };
    let request = CmMessage::encode_for(CmType::Request, ATOMICS, contexts, b"x");
    assert_eq!((request[1], &request[8..12]), (64, &[1, 2, 3, 4][..]));
    assert_eq!(request[16..24], *b"ofi-rs?\x03");
    assert_eq!(CmMessage::parse(&request).unwrap().contexts, contexts);
    // An echo of the request is no answer to it.
    let mut echo = request;
    echo[1] = CmType::Response as u8;
    assert!(CmMessage::parse(&echo).unwrap().contexts.are_first());
    let response = CmMessage::encode_for(CmType::Response, NOTHING, contexts, b"");
    let response = CmMessage::parse(&response).unwrap();
    assert_eq!((response.contexts, response.knows.atomics), (contexts, false));
    // Only a ContextRequest names contexts, and it always does.
    let mut other = CmMessage::encode_for(CmType::Request, ATOMICS, contexts, b"x");
    other[1] = CmType::Request as u8;
    assert!(CmMessage::parse(&other).unwrap().contexts.are_first());
    let mut none = CmMessage::encode(CmType::Request, ATOMICS, b"x");
    none[1] = CmType::ContextRequest as u8;
    assert!(CmMessage::parse(&none).is_err());
    let fast = CmMessage::encode_for(CmType::Request, ATOMICS, Contexts::default(), b"x");
    assert_eq!(fast, CmMessage::encode(CmType::Request, ATOMICS, b"x"));
}

#[test]
fn every_header_reads_back_as_it_was_written() {
    for op in [
        StreamOp::Msg,
        StreamOp::Tag,
        StreamOp::TagRts,
        StreamOp::Cts,
        StreamOp::Data,
        StreamOp::ReadRsp,
    ] {
        for flags in [0, REMOTE_CQ_DATA, DELIVERY_COMPLETE] {
            let len = if op == StreamOp::Cts { 0 } else { 77 };
            let op_data =
                if matches!(op, StreamOp::Msg | StreamOp::Tag | StreamOp::ReadRsp) { 0 } else { 3 };
            let tag = if matches!(op, StreamOp::Tag | StreamOp::TagRts) { 5 } else { 0 };
            let cq_data = if flags == REMOTE_CQ_DATA { 6 } else { 0 };
            let header = StreamHeader { op, flags, op_data, id: 1, segments: 0, cq_data, tag, len };
            for order in [ByteOrder::Native, ByteOrder::Network] {
                assert_eq!(StreamHeader::parse(&written(&header, order), order), Ok(header));
            }
        }
    }
}

#[test]
fn fast_header_parser_agrees_with_the_full_parser() {
    let parse_fast = |header: StreamHeader| {
        let mut bytes = written(&header, ByteOrder::Native);
        bytes.extend([7; 9]);
        let all = bytes.len();
        assert_eq!(StreamHeader::parse_fast(&bytes[..all - 1]), None, "part of it is missing");
        let mut padded = bytes.clone();
        padded.resize(32.max(all), 0);
        let word = |at: usize| u64::from_ne_bytes(padded[8 * at..][..8].try_into().unwrap());
        let words = [word(0), word(1), word(2), word(3)];
        let in_all = |all| {
            let [first, second, third, _] = words;
            let without = StreamHeader::fast_in([first, second, third], all);
            let with = StreamHeader::fast_with_data_in(words, all);
            assert!(without.is_none() || with.is_none());
            assert_eq!(without.or(with), StreamHeader::any_fast_in(words, all));
            without.or(with)
        };
        assert_eq!(in_all(all - 1), None);
        assert_eq!(in_all(all + 1), None, "another begins");
        let alone = in_all(all);
        let found = StreamHeader::parse_fast(&bytes);
        assert_eq!(found.map(|found| found.header), alone);
        let found = found?;
        assert_eq!(found.header.len, all - 9);
        assert_eq!((found.body, found.rest), (&[7; 9][..], &[][..]));
        bytes.push(8);
        let found = StreamHeader::parse_fast(&bytes)?;
        assert_eq!((found.body, found.rest), (&[7; 9][..], &[8][..]), "another begins");
        Some((found.header.tagged.then_some(found.header.tag), found.header.data))
    };
    let message = StreamHeader { len: 9, ..StreamHeader::of(StreamOp::Msg) };
    let tagged = StreamHeader { tag: 5, len: 9, ..StreamHeader::of(StreamOp::Tag) };
    assert_eq!(parse_fast(message), Some((None, None)));
    assert_eq!(parse_fast(tagged), Some((Some(5), None)));
    let with_data = |header| StreamHeader { flags: REMOTE_CQ_DATA, cq_data: 6, ..header };
    assert_eq!(parse_fast(with_data(message)), Some((None, Some(6))));
    assert_eq!(parse_fast(with_data(tagged)), Some((Some(5), Some(6))));
    assert_eq!(parse_fast(StreamHeader { op_data: ACK, ..message }), None);
    assert_eq!(parse_fast(StreamHeader { op_data: ACK, ..with_data(message) }), None);
    for flags in [DELIVERY_COMPLETE, COMMIT_COMPLETE, REMOTE_CQ_DATA | DELIVERY_COMPLETE] {
        assert_eq!(parse_fast(StreamHeader { flags, ..tagged }), None);
    }
    assert_eq!(parse_fast(StreamHeader { len: 9, ..StreamHeader::of(StreamOp::Data) }), None);
    // A size that is smaller than its header.
    let mut bytes = written(&message, ByteOrder::Native);
    bytes[8] = 15;
    assert_eq!(StreamHeader::parse_fast(&bytes), None);
    let start = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(StreamHeader::fast_in([start, 15, 0], 15), None);
}

#[test]
fn fast_header_writer_agrees_with_the_full_writer() {
    for (tag, op) in [(None, StreamOp::Msg), (Some(5), StreamOp::Tag)] {
        for data in [None, Some(6)] {
            let flags = if data.is_some() { REMOTE_CQ_DATA } else { 0 };
            let (tag_word, cq_data) = (tag.unwrap_or(0), data.unwrap_or(0));
            let of = StreamHeader { id: 200, tag: tag_word, len: 300, ..StreamHeader::of(op) };
            let header = StreamHeader { flags, cq_data, ..of };
            let mut out = [0; 40];
            let len = StreamHeader::write_fast(200, data, tag, 300, &mut out);
            assert_eq!(out[..len], written(&header, ByteOrder::Native));
        }
    }
}

#[test]
fn write_carries_segments_of_the_receivers_memory() {
    let segments = [
        RemoteSegment { addr: 0x10, len: 3, key: 7 },
        RemoteSegment { addr: 0x20, len: 4, key: 8 },
    ];
    let header = StreamHeader {
        segments: 2,
        cq_data: 5,
        flags: REMOTE_CQ_DATA,
        len: 7,
        ..StreamHeader::of(StreamOp::Write)
    };
    let order = ByteOrder::Network;
    let mut bytes = written(&header, order);
    assert_eq!(bytes.len(), 24);
    bytes.extend_from_slice(&StreamHeader::write_segments(order, &segments));
    assert_eq!((bytes.len(), bytes[5], bytes[6], bytes[15]), (72, 2, 72, 79));
    assert_eq!(
        bytes[24..48],
        [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 7]
    );
    assert_eq!(StreamHeader::parse(&bytes, order), Ok(header));
    assert_eq!(header.read_segments(&bytes, order).unwrap().as_slice(), segments);
    bytes[5] = 5;
    assert!(StreamHeader::parse(&bytes, order).is_err());
    bytes[5] = 0;
    assert!(StreamHeader::parse(&bytes, order).is_err());
}

#[test]
fn header_carries_at_most_eight_segments() {
    let list = |count: u8| {
        let numbers = (0..u64::from(count)).map(|n| RemoteSegment { addr: n, len: 1, key: n });
        numbers.collect::<Vec<_>>()
    };
    for op in [StreamOp::ReadReq, StreamOp::Write, StreamOp::Atomic] {
        for segments in 1..=9 {
            // The longest header: with CQ data, and a word if there is one.
            let (flags, tag) = if op == StreamOp::ReadReq { (0, 0) } else { (1, 7) };
            let tag = if op == StreamOp::Atomic { tag } else { 0 };
            let header = StreamHeader { flags, segments, tag, ..StreamHeader::of(op) };
            let mut bytes = written(&header, ByteOrder::Network);
            bytes.extend(StreamHeader::write_segments(ByteOrder::Network, &list(segments)));
            assert!(segments > 8 || bytes.len() <= MAX_HEADER_LEN);
            let parsed = StreamHeader::parse(&bytes, ByteOrder::Network);
            assert_eq!(parsed.is_ok(), segments <= 8, "{op:?} {segments}");
            if let Ok(parsed) = parsed {
                let named = parsed.read_segments(&bytes, ByteOrder::Network).unwrap();
                assert_eq!((parsed, named.as_slice()), (header, &list(segments)[..]));
            }
        }
    }
}

#[test]
fn peers_advertise_support_for_many_segments() {
    let many = PeerFeatures { segments: true, ..ATOMICS };
    for (kind, mark) in [(CmType::Request, b"ofi-rs?\x41"), (CmType::Response, b"ofi-rs!\x41")] {
        let message = CmMessage::encode(kind, many, b"x");
        assert_eq!(&message[16..24], mark);
        assert_eq!(CmMessage::parse(&message).unwrap().knows, many);
    }
}

#[test]
fn inconsistent_headers_are_refused() {
    let good = written(
        &StreamHeader { tag: 1, len: 8, ..StreamHeader::of(StreamOp::Tag) },
        ByteOrder::Native,
    );
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        StreamHeader::parse(&bytes, ByteOrder::Native)
    };
    assert!(with(0, VERSION).is_ok());
    assert!(with(1, 99).is_err());
    assert!(with(1, 4).is_err(), "a write that names no place");
    assert!(with(2, 1).is_err(), "CQ data announced but not there");
    assert!(with(3, 0x80).is_err());
    assert!(with(5, 1).is_ok(), "a message names no place, whatever is there");
    assert!(with(6, 15).is_err());
    assert!(with(6, 255).is_err());
    let small = if cfg!(target_endian = "little") { 8 } else { 15 };
    assert!(with(small, 3).is_err(), "size smaller than the header");
    assert!(StreamHeader::parse(&good[..20], ByteOrder::Native).is_err());
}

#[test]
fn connection_messages_are_these_bytes() {
    let bytes = CmMessage::encode(CmType::Nack, ATOMICS, b"no");
    assert_eq!(bytes[..4], [3, 6, 0, 2]);
    assert_eq!(bytes[4..24], [0; 20]);
    assert_eq!(bytes[24..32], 1u64.to_ne_bytes());
    assert_eq!(&bytes[32..], b"no");
    let message = CmMessage::parse(&bytes).unwrap();
    assert_eq!((message.kind, message.order), (CmType::Nack, ByteOrder::Native));
    assert_eq!((message.data, message.knows.atomics), (b"no".to_vec(), false));
}

#[test]
fn multicast_support_is_advertised_independently() {
    for (kind, mark) in [(CmType::Request, b"ofi-rs?\x04"), (CmType::Response, b"ofi-rs!\x04")] {
        let message = CmMessage::encode(kind, NOTHING, b"x");
        assert!(!CmMessage::parse(&message).unwrap().knows.multicast);
        let multicast = PeerFeatures { multicast: true, ..NOTHING };
        let message = CmMessage::encode(kind, multicast, b"x");
        assert_eq!(&message[16..24], mark);
        assert_eq!(CmMessage::parse(&message).unwrap().knows, multicast);
        let both = PeerFeatures { multicast: true, ..ATOMICS };
        let message = CmMessage::encode(kind, both, b"x");
        assert_eq!(CmMessage::parse(&message).unwrap().knows, both);
    }
    // A peer that only echoes the request does not say that it knows anything.
    let both = PeerFeatures { multicast: true, ..ATOMICS };
    let mut echo = CmMessage::encode(CmType::Request, both, b"");
    echo[1] = CmType::Response as u8;
    assert!(!CmMessage::parse(&echo).unwrap().knows.multicast);
}

#[test]
fn atomics_support_is_advertised_in_ignored_bytes() {
    let request = CmMessage::encode(CmType::Request, ATOMICS, b"");
    assert_eq!(request[..12], [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_ne!(request[12..16], [0; 4], "the process, at random");
    assert_eq!(&request[16..24], b"ofi-rs?\x01");
    let response = CmMessage::encode(CmType::Response, ATOMICS, b"");
    assert_eq!(&response[16..24], b"ofi-rs!\x01");
    let known = |bytes: &[u8]| CmMessage::parse(bytes).unwrap().knows.atomics;
    assert!(known(&request) && known(&response));
    let fast = CmMessage::encode(CmType::Response, NOTHING, b"");
    assert_eq!(fast[16..24], [0; 8]);
    assert!(!known(&fast));
    // Our own request, sent back to us, is no answer.
    let mut echo = response.clone();
    echo[16..24].copy_from_slice(&request[16..24]);
    assert!(!known(&echo));
    let mut swapped = response;
    swapped[24..32].reverse();
    assert!(!known(&swapped));
}

#[test]
fn an_atomic_operation_is_these_bytes() {
    let word = AtomicWord { kind: AtomicKind::Compare, datatype: 7, op: 12 };
    let header = StreamHeader {
        flags: DELIVERY_COMPLETE,
        segments: 1,
        tag: word.to_word(),
        len: 16,
        ..StreamHeader::of(StreamOp::Atomic)
    };
    let order = ByteOrder::Network;
    let mut bytes = written(&header, order);
    let segment = RemoteSegment { addr: 0x10, len: 8, key: 5 };
    bytes.extend_from_slice(&StreamHeader::write_segments(order, &[segment]));
    assert_eq!(
        bytes[..24],
        [3, 64, 0, 4, 0, 1, 48, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 2, 12, 7]
    );
    assert_eq!(StreamHeader::parse(&bytes, order), Ok(header));
    assert_eq!(header.read_segments(&bytes, order).unwrap().as_slice(), [segment]);
    assert_eq!(AtomicWord::from_word(header.tag), Ok(word));
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        StreamHeader::parse(&bytes, order)
    };
    assert!(with(21, 3).is_err(), "a kind that is none");
    assert!(with(20, 1).is_err(), "bits that mean nothing");
    assert!(with(13, 1).is_err(), "more than any operation has");
    assert!(with(5, 0).is_err(), "no place");
    assert!(with(23, 200).is_ok(), "a type of the future is refused, not malformed");
}

#[test]
fn the_answer_to_an_atomic_operation_is_these_bytes() {
    let header = StreamHeader { len: 8, ..StreamHeader::of(StreamOp::AtomicRsp) };
    let bytes = written(&header, ByteOrder::Network);
    assert_eq!(bytes, [3, 65, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 24]);
    assert_eq!(StreamHeader::parse(&bytes, ByteOrder::Network), Ok(header));
    let reject_reason = StreamHeader { op_data: 13, ..StreamHeader::of(StreamOp::AtomicRsp) };
    let mut bytes = written(&reject_reason, ByteOrder::Network);
    assert_eq!(StreamHeader::parse(&bytes, ByteOrder::Network), Ok(reject_reason));
    bytes[15] = 17;
    assert!(StreamHeader::parse(&bytes, ByteOrder::Network).is_err());
}

#[test]
fn a_message_with_a_tag_of_a_connected_endpoint_is_these_bytes() {
    let mut bytes = vec![3, 0, 0x81, 0, 0, 0, 32, 0, 41, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&[0x11, 0, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa]);
    bytes.extend_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    let mut header =
        StreamHeader { len: 9, flags: REMOTE_CQ_DATA, ..StreamHeader::of(StreamOp::TaggedMsg) };
    (header.cq_data, header.tag) = (0xaabb_ccdd_eeff_0011, 0x1122_3344_5566_7788);
    #[cfg(target_endian = "little")]
    {
        assert_eq!(StreamHeader::parse(&bytes, ByteOrder::Native), Ok(header));
        assert_eq!(written(&header, ByteOrder::Native), bytes);
    }
    (bytes[2], bytes[3]) = (0x80 | 1, 0x40);
    assert!(StreamHeader::parse(&bytes, ByteOrder::Native).is_err(), "another flag");
}

#[test]
fn foreign_peer_is_recognized_by_its_first_byte() {
    assert!(CmMessage::len_at(b"GET / HTTP/1.1").is_err());
    assert_eq!(CmMessage::len_at(&[]), Ok(None));
    assert!(CmMessage::len_at(&[3, 0, 0xff, 0xff]).is_err());
    let mut swapped = CmMessage::encode(CmType::Request, NOTHING, &[]);
    swapped[24..32].reverse();
    assert_eq!(CmMessage::parse(&swapped).unwrap().order, ByteOrder::Network);
}

#[test]
fn an_offer_is_behind_the_data_of_an_answer_and_no_part_of_them() {
    let local = PeerFeatures { local: true, ..ATOMICS };
    let request = CmMessage::encode(CmType::Request, local, b"x");
    assert_eq!(&request[16..24], b"ofi-rs?\x11");
    let request = CmMessage::parse(&request).unwrap();
    assert_eq!((request.knows, request.offer), (local, None));
    let offer: LocalOffer = std::array::from_fn(|at| at as u8);
    for data in [&b""[..], b"user", &[7; CM_DATA_MAX]] {
        let mut answer = CmMessage::encode(CmType::Response, local, data);
        CmMessage::add_offer(&mut answer, &offer);
        assert_eq!(CmMessage::len_at(&answer), Ok(Some(CM_LEN + data.len() + OFFER_LEN)));
        let parsed = CmMessage::parse(&answer).unwrap();
        assert_eq!((parsed.data.as_slice(), parsed.offer), (data, Some(offer)));
        // Without the bit they are the application's data.
        answer[23] &= !KNOWS_LOCAL;
        let parsed = CmMessage::parse(&answer);
        match data.len() + OFFER_LEN {
            ..=CM_DATA_MAX => assert_eq!(parsed.unwrap().offer, None),
            _ => assert!(parsed.is_err()),
        }
    }
    let cut = CmMessage::encode(CmType::Response, local, &[0; OFFER_LEN - 1]);
    assert!(CmMessage::parse(&cut).is_err());
    let long = CmMessage::encode(CmType::Request, NOTHING, &[0; CM_DATA_MAX]);
    assert!(CmMessage::len_at(&[3, 0, 1, 1]).is_err() && CmMessage::parse(&long).is_ok());
}

#[test]
fn a_hello_is_these_bytes() {
    let hello = RdmHello { version: 0x81, features: 0, port: 0x1234, pid: 0x0a0b_0c0d };
    assert_eq!(hello.encode(), [0x81, 0, 0x12, 0x34, 0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(RdmHello::parse(&hello.encode()), Ok(hello));
    assert!(RdmHello::parse(&[1, 0, 0]).is_err());
}
