//! Frames of a connection with several sockets.
use ofi_stream::multi_rail::frame::{
    FRAME_LEN, FrameHeader, FrameType, Hello, JoinRequest, RailOffer,
};

pub fn run(bytes: &[u8]) {
    let Some((header, payload)) = bytes.split_first_chunk::<FRAME_LEN>() else { return };
    let Ok(parsed) = FrameHeader::parse(header) else { return };
    assert_eq!(parsed.encode(), *header);
    let Some(payload) = payload.get(..parsed.len) else { return };
    match parsed.kind {
        FrameType::Join => {
            if let Ok(request) = JoinRequest::parse(payload) {
                assert_eq!(request.encode(), [header, payload].concat());
            }
        }
        FrameType::Offer => {
            if let Ok(offer) = RailOffer::parse(payload) {
                assert_eq!(offer.encode(), [header, payload].concat());
            }
        }
        FrameType::Hello => {
            if let Ok(hello) = Hello::parse(payload) {
                assert_eq!(hello.encode(), [header, payload].concat());
            }
        }
        FrameType::Data
        | FrameType::OfferRequest
        | FrameType::Joined
        | FrameType::Rejected
        | FrameType::Ack
        | FrameType::AckRequest
        | FrameType::End => {}
    }
}
