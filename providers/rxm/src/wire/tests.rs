//! Unit tests of `wire`.
use super::*;

/// Bytes in hex, spaces ignored.
fn hex(text: &str) -> Vec<u8> {
    let text: String = text.split_whitespace().collect();
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
#[cfg(target_endian = "little")]
fn connection_data_are_those_of_the_original() {
    let bytes = hex("01020403 b996 02 00 00400000 00100000 00000000c32f0000");
    let call = RxmConnReq {
        port: 0x96b9,
        flow_control: FlowControl::Off,
        eager_limit: 16384,
        rx_size: 4096,
        conn_id: 0x2fc3 << 32,
        index: 0,
        contexts: Contexts::default(),
        key: Vec::new(),
        own: false,
        swapped: false,
        ours: false,
        multicast: false,
        closes: false,
    };
    assert_eq!(RxmConnReq::read(&bytes).as_ref(), Ok(&call));
    assert_eq!(call.write()[..], bytes);
    let multicast = RxmConnReq { ours: true, multicast: true, ..call.clone() };
    assert_eq!((multicast.write()[7], multicast.write()[23]), (0, 0x67));
    assert_eq!(RxmConnReq::read(&multicast.write()), Ok(multicast));
    let mut others = call.write();
    others[23] = 0xff;
    assert_eq!(RxmConnReq::read(&others).as_ref(), Ok(&call), "no number of a process is so large");
    let ours = RxmConnReq { ours: true, ..call.clone() };
    assert_eq!((ours.write()[7], ours.write()[23]), (0, 0x68));
    assert_eq!(RxmConnReq::read(&ours.write()), Ok(ours));
    let contexts = Contexts { tx: 0x0102, rx: 0x0304 };
    let call = RxmConnReq { contexts, key: vec![7, 8, 9], own: true, ..call };
    let mut bytes = call.write();
    let own = "81020403 b996 02 00 00400000 00100000 00000000c32f0000 02010403 03070809";
    assert_eq!(bytes[..], hex(own));
    assert_eq!(RxmConnReq::read(&bytes).as_ref(), Ok(&call));
    bytes.pop();
    assert!(RxmConnReq::read(&bytes).is_err());
    let bytes = hex("010000007f390000 00100000 02000000");
    let accept = Accept {
        conn_id: 0x397f << 32 | 1,
        rx_size: 4096,
        flow_control: FlowControl::Off,
        swapped: false,
        ours: false,
        multicast: false,
        closes: false,
    };
    assert_eq!(Accept::read(&bytes, false), Ok(accept));
    assert_eq!(Accept::read(&bytes, true), Ok(accept));
    assert_eq!(accept.write(false)[..], bytes);
    assert_eq!(accept.write(true)[..], hex("010000007f390000 00100000 02020000"));
    let ours = Accept { ours: true, ..accept };
    assert_eq!(ours.write(false)[..], hex("010000007f390000 00100000 02006800"));
    assert_eq!(Accept::read(&ours.write(true), true), Ok(ours));
    let accept = Accept { ours: true, multicast: true, ..accept };
    assert_eq!(accept.write(false)[..], hex("010000007f390000 00100000 02006700"));
    assert_eq!(Accept::read(&accept.write(true), true), Ok(accept));
    assert_eq!(RejectReason::Already.write(), [1, 2]);
    assert_eq!(RejectReason::OtherKey.write()[..2], RejectReason::Refused.write());
    for why in [
        RejectReason::Refused,
        RejectReason::Already,
        RejectReason::OtherKey,
        RejectReason::OtherOrder,
    ] {
        assert_eq!(RejectReason::read(&why.write()), Some(why));
    }
    assert_eq!(RejectReason::read(&[1, 0]), Some(RejectReason::Unspecified));
    assert_eq!(RejectReason::read(&[]), None);
}

/// Bit 55 is a mark of this library alone. With any other sender it belongs to the number, returned
/// unchanged in the packets for the sender.
#[test]
#[cfg(target_endian = "little")]
fn mark_for_closes_is_that_of_this_library_alone() {
    let accept = |closes, ours| Accept {
        conn_id: 0x397f << 32 | 1 | if ours { 0 } else { CLOSES },
        rx_size: 4096,
        flow_control: FlowControl::Off,
        swapped: false,
        ours,
        multicast: ours,
        closes,
    };
    for (accept, golden) in [
        (accept(true, true), "010000007f398000 00100000 02006700"),
        (accept(false, true), "010000007f390000 00100000 02006700"),
        (accept(false, false), "010000007f398000 00100000 02000000"),
    ] {
        assert_eq!(accept.write(false)[..], hex(golden));
        assert_eq!(Accept::read(&hex(golden), false), Ok(accept));
    }
    let [others, ours] = ["00", "67"].map(|kin| {
        let bytes = hex(&format!("01020403 b996 02 00 00400000 00100000 00000000c32f80{kin}"));
        let call = RxmConnReq::read(&bytes).unwrap();
        assert_eq!(call.write()[..], bytes);
        (call.conn_id, call.closes)
    });
    assert_eq!((others, ours), ((0x802fc3 << 32, false), (0x2fc3 << 32, true)));
}

#[test]
fn fast_parser_accepts_whole_messages_only_and_agrees_with_slow() {
    let mut fast = 0;
    for kind in 0..=9 {
        for (op, flags, len) in [(OP_MSG, 0, 3), (OP_TAGGED, 0, 3), (OP_TAGGED, 0, 0)]
            .into_iter()
            .chain([(OP_TAGGED, REMOTE_CQ_DATA, 3), (OP_TAGGED, 0, 2), (OP_ATOMIC, 0, 3)])
        {
            let header = RxmHeader {
                op,
                flags,
                size: len,
                tag: 7,
                conn_id: 5,
                ..RxmHeader::of(PacketKind::Eager, 0)
            };
            let mut packet = vec![b'x'; HEADER_LEN + if len == 0 { 0 } else { 3 }];
            header.write(&mut packet);
            packet[1] = kind;
            let long = RxmHeader::read(&packet);
            let (head, rest) = packet.split_first_chunk().unwrap();
            let Some(found) = RxmHeader::parse_fast(head, rest.len()) else {
                assert!(kind != 0 || flags != 0 || long.is_err());
                continue;
            };
            let (read, body) = long.unwrap();
            assert_eq!(
                (read.kind, read.flags, read.conn_id),
                (PacketKind::Eager, 0, found.conn_id)
            );
            let tag = if found.tagged { read.tag } else { 0 };
            assert_eq!((found.tagged, found.tag), (read.is_tagged(), tag));
            assert_eq!(rest, body);
            fast += 1;
        }
    }
    assert_eq!(fast, 3);
}

#[test]
fn malformed_connection_requests_are_refused() {
    let call = RxmConnReq {
        port: 1,
        flow_control: FlowControl::Off,
        eager_limit: 1,
        rx_size: 1,
        conn_id: 1,
        index: 0,
        contexts: Contexts::default(),
        key: Vec::new(),
        own: false,
        swapped: false,
        ours: false,
        multicast: false,
        closes: false,
    };
    for at in 0..4 {
        let mut bytes = call.write();
        bytes[at] ^= 0xff;
        assert!(RxmConnReq::read(&bytes).is_err(), "byte {at}");
    }
    assert!(RxmConnReq::read(&call.write()[..23]).is_err());
}

#[test]
#[cfg(target_endian = "little")]
fn a_peer_of_the_other_byte_order_is_understood_if_it_is_ours() {
    let call = hex("81010403 96b9 02 00 00004000 00001000 00002fc300000000 01020304 00");
    let read = RxmConnReq::read(&call).unwrap();
    assert_eq!((read.port, read.eager_limit, read.rx_size), (0x96b9, 16384, 4096));
    assert_eq!((read.conn_id, read.swapped), (0x2fc3 << 32, true));
    assert_eq!(read.contexts, Contexts { tx: 0x0102, rx: 0x0304 });
    let fast = [&[CM_VERSION], &call[1..24]].concat();
    assert_eq!(RxmConnReq::read(&fast), Err(BadCall::OtherOrder));
    let accept = hex("0000397f00000001 00001000 02010000");
    let read = Accept::read(&accept, true).unwrap();
    assert_eq!((read.conn_id, read.rx_size), (0x397f << 32 | 1, 4096));
    assert!(read.swapped && !Accept::read(&accept, false).unwrap().swapped);
    let segment = hex("0401400000000003 0000000000000001 0000000000000007 0000000000000003
         0200010000020000 0000000000010000 0000000000000005 00000000000004d2");
    let mut packet = segment.clone();
    packet.resize(HEADER_LEN + 16384, 9);
    assert!(RxmHeader::read(&packet).is_err());
    let (header, payload) = RxmHeader::read_swapped(&packet).unwrap();
    assert_eq!((header.seg_size, header.seg_no, payload.len()), (16384, 3, 16384));
    assert_eq!((header.conn_id, header.msg_id, header.part()), (1, 7, Some(SegmentPart::Last)));
    assert_eq!((header.cq_data(), header.size, header.tag), (Some(5), 65536, 1234));
    let mut segments = hex("0000000000000001 0000000000040000 0000000080000000");
    segments.resize(96, 0);
    segments.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    let one = RemoteSegments::one(1, 0x40000, 0x8000_0000);
    assert_eq!(read_segments(&segments, true), Ok(one));
    // The operation of an atomic is bytes in either order.
    packet.resize(HEADER_LEN + 100, 0);
    packet[1] = PacketKind::Atomic as u8;
    packet[56..].fill(0);
    packet[56..59].copy_from_slice(&[5, 0, 1]);
    let what = AtomicHeader { datatype: 5, op: 0, segments: 1 };
    let (header, _) = RxmHeader::read_swapped(&packet).unwrap();
    assert_eq!(AtomicHeader::from_tag(header.tag), what);
}

#[test]
#[cfg(target_endian = "little")]
fn packets_are_those_of_the_original() {
    let segment = hex("0401004003000000 0100000000000000 0700000000000000 0300000000000000
         0200010000000200 0000010000000000 0500000000000000 d204000000000000");
    let header = RxmHeader {
        seg_size: 16384,
        seg_no: 3,
        msg_id: 7,
        ctrl_data: SegmentPart::Last as u64,
        op: OP_TAGGED,
        flags: REMOTE_CQ_DATA,
        size: 65536,
        data: 5,
        tag: 1234,
        ..RxmHeader::of(PacketKind::Segment, 1)
    };
    let mut bytes = [0; HEADER_LEN];
    header.write(&mut bytes);
    assert_eq!(bytes[..], segment);
    let mut packet = bytes.to_vec();
    packet.resize(HEADER_LEN + 16384, 9);
    assert_eq!(RxmHeader::read(&packet).unwrap().0, header);
    packet.pop();
    assert!(RxmHeader::read(&packet).is_err());
}

#[test]
#[cfg(target_endian = "little")]
fn rendezvous_segments_have_the_upstream_layout() {
    let mut segments = RemoteSegments::one(0, 0x40000, 0x8000_0000);
    let bytes = hex(&format!(
        "0000000000000000 0000040000000000 0000008000000000 {} 0100000000000000",
        "00".repeat(72)
    ));
    let mut written = [0xff; SEGMENTS_LEN];
    write_segments(&segments, &mut written);
    assert_eq!(written[..], bytes);
    assert_eq!(read_segments(&bytes, false), Ok(segments.clone()));
    segments.push(RemoteSegment { addr: 1, len: 2, key: 3 }).unwrap();
    write_segments(&segments, &mut written);
    assert_eq!(read_segments(&written, false), Ok(segments));
    written[96] = 5;
    assert!(read_segments(&written, false).is_err());
    assert!(read_segments(&written[..103], false).is_err());
}

#[test]
#[cfg(target_endian = "little")]
fn atomic_operations_are_those_of_the_original() {
    let packet = hex(&format!(
        "0404000000000000 0000000000000000 0000000000000000 0000000000000000
         0200060000000000 6400000000000000 0000000000000000 0500010000000000
         0000000000000000 0100000000000000 dec0000000000000 {} 07000000",
        "00".repeat(72)
    ));
    let (header, payload) = RxmHeader::read(&packet).unwrap();
    assert_eq!((header.kind, header.op, header.size), (PacketKind::Atomic, OP_ATOMIC, 100));
    let what = AtomicHeader { datatype: 5, op: 0, segments: 1 };
    assert_eq!(AtomicHeader::from_tag(header.tag), what);
    assert_eq!(what.to_tag(), header.tag);
    let segments = RemoteSegments::one(0, 1, 0xc0de);
    assert_eq!(read_iocs(payload, 1), Ok((segments.clone(), &[7, 0, 0, 0][..])));
    let mut written = [0xff; IOCS_LEN];
    write_iocs(&segments, &mut written);
    assert_eq!(written[..], payload[..IOCS_LEN]);
    assert!(read_iocs(payload, 5).is_err());
    assert!(read_iocs(&payload[..95], 1).is_err());
    let mut answer = [0; 12];
    write_answer(22, 4, &mut answer);
    assert_eq!(answer[..], hex("00000016 00000004 00000000"));
    assert_eq!(read_answer(&answer), Ok((22, &[0; 4][..])));
    assert!(read_answer(&answer[..11]).is_err());
}

#[test]
fn malformed_packet_headers_are_refused() {
    let mut bytes = [0; HEADER_LEN];
    RxmHeader::of(PacketKind::Eager, 1).write(&mut bytes);
    assert!(RxmHeader::read(&bytes).is_ok());
    assert!(RxmHeader::read(&bytes[..63]).is_err());
    for (at, value) in [(0, 3), (1, 9), (32, 1), (34, 2), (40, 1)] {
        let mut bytes = bytes;
        bytes[at] = value;
        assert!(RxmHeader::read(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn failed_read_is_reported_to_the_sender() {
    let errors = [None, Some(Error::IO), Some(Error::CONNRESET)];
    for error in errors {
        let header = RxmHeader::read_done(7, error);
        let mut bytes = [0; HEADER_LEN];
        header.write(&mut bytes);
        let (read, _) = RxmHeader::read(&bytes).unwrap();
        assert_eq!((read.kind, read.msg_id), (PacketKind::RndvReadDone, 7));
        assert_eq!(read.fetch_error(), error.map(|error| error.code()));
    }
}
