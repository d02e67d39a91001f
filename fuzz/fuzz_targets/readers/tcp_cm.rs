//! Connection messages of the tcp provider, with the data of its reliable-datagram endpoints.
use ofi_stream::wire::{ByteOrder, CM_DATA_MAX, CM_LEN, CmMessage, OFFER_LEN, RdmHello};

pub fn run(bytes: &[u8]) {
    if let Ok(hello) = RdmHello::parse(bytes) {
        assert_eq!(hello.encode(), bytes[..8]);
    }
    let Ok(Some(len)) = CmMessage::len_at(bytes) else { return };
    assert!((CM_LEN..=CM_LEN + CM_DATA_MAX + OFFER_LEN).contains(&len));
    // The length must be known from the first bytes already, and stay the same.
    assert_eq!(CmMessage::len_at(&bytes[..4]), Ok(Some(len)));
    let Some(bytes) = bytes.get(..len) else { return };
    assert!(CmMessage::parse(&bytes[..len - 1]).is_err());
    let Ok(message) = CmMessage::parse(bytes) else { return };
    let CmMessage { kind, knows, contexts, number, data, offer, .. } = message;
    let (before, behind) = bytes[CM_LEN..].split_at(data.len());
    assert_eq!(data, before);
    assert!(behind.is_empty() || behind.len() == OFFER_LEN);
    assert!(offer.is_none_or(|offer| offer == behind));
    let mut own = CmMessage::encode_for(kind, knows, contexts, &data);
    if let Some(offer) = &offer {
        CmMessage::add_offer(&mut own, offer);
    }
    if let Some(number) = number {
        CmMessage::add_number(&mut own, number);
    }
    let order = ByteOrder::Native;
    let again = CmMessage::parse(&own).unwrap();
    // That is of the process which writes it.
    let instance = again.instance;
    assert_eq!(again, CmMessage { kind, order, knows, contexts, instance, number, data, offer });
}
