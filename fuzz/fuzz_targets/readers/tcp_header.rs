//! Transfer headers of the tcp provider, as a connection reads them.
use ofi_stream::wire::{BASE_LEN, ByteOrder, MAX_HEADER_LEN, StreamHeader};

pub fn run(bytes: &[u8]) {
    let len = match StreamHeader::len_at(bytes) {
        Ok(Some(len)) => len,
        Ok(None) => return assert!(bytes.len() < BASE_LEN),
        Err(_) => return,
    };
    assert!((BASE_LEN..=MAX_HEADER_LEN).contains(&len));
    let Some(bytes) = bytes.get(..len) else { return };
    for order in [ByteOrder::Native, ByteOrder::Network] {
        let Ok(header) = StreamHeader::parse(bytes, order) else { continue };
        // Nothing in an accepted header is lost, for either byte order.
        for other in [ByteOrder::Native, ByteOrder::Network] {
            let mut head = [0; 40];
            header.write(other, &mut head);
            let mut out = head[..header.head_len()].to_vec();
            if header.segments > 0 {
                let Ok(segments) = header.read_segments(bytes, order) else { break };
                assert_eq!(segments.as_slice().len(), header.segments as usize);
                out.extend(StreamHeader::write_segments(other, segments.as_slice()));
            }
            let n = header.wire_len();
            assert_eq!(StreamHeader::len_at(&out), Ok(Some(n)));
            assert_eq!(StreamHeader::parse(&out, other), Ok(header));
            if other == order {
                // But for the version, which connection messages have settled, and
                // a count of places in a header that names none.
                let mut bytes = bytes.to_vec();
                bytes[5] = header.segments;
                assert_eq!(out[1..n], bytes[1..]);
            }
        }
    }
}
