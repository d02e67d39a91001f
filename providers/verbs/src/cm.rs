//! The data of connection requests, acceptances and rejections: one byte that
//! says how long the user's part is, and that. Devices pad what they carry, so
//! the length is not to be had otherwise.
use ofi_provider::error::{Error, Result};

/// What librdmacm carries on every kind of device.
const PRIVATE_DATA: usize = 56;

/// The most that a user's part has (FI_OPT_CM_DATA_SIZE).
pub(crate) const DATA_MAX: usize = PRIVATE_DATA - 1;

/// What goes over the wire.
pub(crate) fn pack(data: &[u8]) -> Result<Vec<u8>> {
    if data.len() > DATA_MAX {
        return Err(Error::INVAL);
    }
    let mut packed = vec![data.len() as u8];
    packed.extend_from_slice(data);
    Ok(packed)
}

/// What the user gets of what came; a peer may claim more than it sent.
pub(crate) fn unpack(packed: &[u8]) -> Vec<u8> {
    match packed.split_first() {
        Some((len, rest)) => rest[..usize::from(*len).min(rest.len())].to_vec(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_out_as_it_went_in_however_much_is_padded() {
        for len in 0..=DATA_MAX {
            let data: Vec<u8> = (0..len as u8).collect();
            let mut packed = pack(&data).unwrap();
            assert!(packed.len() <= PRIVATE_DATA);
            assert_eq!(unpack(&packed), data);
            packed.resize(196, 0);
            assert_eq!(unpack(&packed), data);
        }
        assert_eq!(pack(&[0; DATA_MAX + 1]), Err(Error::INVAL));
    }

    #[test]
    fn a_length_that_is_not_there_is_not_believed() {
        assert_eq!(unpack(&[]), []);
        assert_eq!(unpack(&[9]), []);
        assert_eq!(unpack(&[255, 1, 2]), [1, 2]);
    }
}
