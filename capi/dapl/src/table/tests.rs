//! Unit tests of `table`.
use super::*;

#[test]
fn mtu_attribute_is_largest_infiniband_mtu_within_packet_size() {
    for (packet, mtu) in [
        (None, c"4096"),
        (Some(65536), c"4096"),
        (Some(4095), c"2048"),
        (Some(1500), c"1024"),
        (Some(256), c"256"),
        (Some(68), c"256"),
    ] {
        let named = named_attributes(packet);
        // SAFETY: both are C texts that stay.
        let (name, value) =
            unsafe { (CStr::from_ptr(named[1].name), CStr::from_ptr(named[1].value)) };
        assert_eq!((name, value), (c"DAT_IB_TRANSPORT_MTU", mtu), "{packet:?}");
    }
}
