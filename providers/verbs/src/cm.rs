//! Data of connection requests, acceptances and rejections: one byte with the length of the user's
//! part, and this part. Devices pad the data, so the length is not available otherwise.
//!
//! A request between IP addresses has a header of librdmacm before it, with these addresses.
//! Between InfiniBand addresses there is none, so this provider writes one itself: position and
//! length of the data stay the same.
use ofi_provider::addr::Addr;

/// Size in bytes of the private data supported by librdmacm on every kind of device.
const PRIVATE_DATA: usize = 56;

/// Maximum size of the user's part (FI_OPT_CM_DATA_SIZE).
pub(crate) const DATA_MAX: usize = PRIVATE_DATA - 1;

/// Bytes of a header.
const HEADER: usize = 36;

/// Encodes the private data of a request from an address to another.
pub(crate) fn pack_request(from: &Addr, to: &Addr, data: &[u8]) -> Vec<u8> {
    let (Addr::Ib(from), Addr::Ib(to)) = (from, to) else { return pack(data) };
    // The header's version, and the version of IP that addresses of 16 bytes look like.
    let mut packed = vec![0, 6 << 4];
    packed.extend(from.port().to_be_bytes());
    packed.extend(from.gid.iter().chain(&to.gid));
    packed.extend(pack(data));
    packed
}

/// Extracts the user data from the private data of a request received at an address.
pub(crate) fn unpack_request(to: Option<&Addr>, packed: &[u8]) -> Vec<u8> {
    match to.is_some_and(Addr::is_ib) {
        true => unpack(packed.get(HEADER..).unwrap_or_default()),
        false => unpack(packed),
    }
}

/// Encodes the private data of a response: the data are cut to their maximum ([`DATA_MAX`]).
pub(crate) fn pack(data: &[u8]) -> Vec<u8> {
    let data = &data[..data.len().min(DATA_MAX)];
    let mut packed = vec![data.len() as u8];
    packed.extend_from_slice(data);
    packed
}

/// Extracts the user data from received private data; a peer may claim more than it sent.
pub(crate) fn unpack(packed: &[u8]) -> Vec<u8> {
    match packed.split_first() {
        Some((len, rest)) => rest[..usize::from(*len).min(rest.len())].to_vec(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::info::ib::IbAddr;

    #[test]
    fn data_comes_out_as_it_went_in_however_much_is_padded() {
        for len in 0..=DATA_MAX {
            let data: Vec<u8> = (0..len as u8).collect();
            let mut packed = pack(&data);
            assert!(packed.len() <= PRIVATE_DATA);
            assert_eq!(unpack(&packed), data);
            packed.resize(196, 0);
            assert_eq!(unpack(&packed), data);
        }
        assert_eq!(pack(&[0; DATA_MAX + 1]), pack(&[0; DATA_MAX]));
    }

    #[test]
    fn infiniband_connection_request_contains_addresses_and_fits() {
        let [mut from, to] = [[1; 16], [2; 16]].map(|gid| IbAddr::new(gid, 0xffff));
        from.set_port(0x1234);
        let [from, to] = [from, to].map(Addr::Ib);
        let packed = pack_request(&from, &to, &[9; DATA_MAX]);
        assert_eq!(packed[..4], [0, 0x60, 0x12, 0x34]);
        assert_eq!((&packed[4..20], &packed[20..36]), (&[1; 16][..], &[2; 16][..]));
        // The private data of a request of InfiniBand's.
        assert_eq!(packed.len(), 92);
        assert_eq!(unpack_request(Some(&to), &packed), [9; DATA_MAX]);
        assert_eq!(unpack_request(Some(&to), &packed[..35]), []);
        assert_eq!(pack_request(&from, &to, &[9; DATA_MAX + 1]), packed);
        let ip = Addr::Ip("192.0.2.1:5".parse().unwrap());
        assert_eq!(pack_request(&ip, &ip, b"data"), pack(b"data"));
        assert_eq!(unpack_request(Some(&ip), b"\x02data"), *b"da");
    }

    #[test]
    fn length_field_beyond_the_data_is_clamped() {
        assert_eq!(unpack(&[]), []);
        assert_eq!(unpack(&[9]), []);
        assert_eq!(unpack(&[255, 1, 2]), [1, 2]);
    }
}
