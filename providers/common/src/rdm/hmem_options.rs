//! Options of endpoints with memory of devices (fi_endpoint(3)). Devices never access the network,
//! and each copy is a call of their library.
use crate::abi::{FI_HMEM_P2P_DISABLED, FI_HMEM_P2P_ENABLED, FI_HMEM_P2P_REQUIRED};
use crate::error::{Error, Result};
use core::ffi::c_int;

/// Returns true if a value of FI_OPT_FI_HMEM_P2P permits devices of peers on this host to read memory of
/// devices. Fails with -FI_EOPNOTSUPP if the network has to access memory of devices.
pub(super) fn p2p_of(value: &[u8]) -> Result<bool> {
    match value.try_into().map(c_int::from_ne_bytes) {
        Ok(FI_HMEM_P2P_REQUIRED) => Err(Error::OPNOTSUPP),
        Ok(FI_HMEM_P2P_DISABLED) => Ok(false),
        Ok(FI_HMEM_P2P_ENABLED..FI_HMEM_P2P_DISABLED) => Ok(true),
        _ => Err(Error::INVAL),
    }
}

/// Returns the value of FI_OPT_FI_HMEM_P2P.
pub(super) fn p2p(permitted: bool) -> [u8; size_of::<c_int>()] {
    let value = if permitted { FI_HMEM_P2P_ENABLED } else { FI_HMEM_P2P_DISABLED };
    value.to_ne_bytes()
}

/// Sets FI_OPT_CUDA_API_PERMITTED. Fails with -FI_EOPNOTSUPP if calls of CUDA are forbidden.
pub(super) fn set_cuda_permitted(value: &[u8]) -> Result {
    match value {
        [0] => Err(Error::OPNOTSUPP),
        [_] => Ok(()),
        _ => Err(Error::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::FI_HMEM_P2P_PREFERRED;

    #[test]
    fn options_requiring_another_path_are_refused() {
        let p2p = |value: c_int| p2p_of(&value.to_ne_bytes());
        assert_eq!(p2p(FI_HMEM_P2P_PREFERRED), Ok(true));
        assert_eq!((p2p(FI_HMEM_P2P_ENABLED), p2p(FI_HMEM_P2P_DISABLED)), (Ok(true), Ok(false)));
        assert_eq!(p2p(FI_HMEM_P2P_REQUIRED), Err(Error::OPNOTSUPP));
        assert_eq!((p2p(77), p2p_of(&[0])), (Err(Error::INVAL), Err(Error::INVAL)));
        assert_eq!(set_cuda_permitted(&[0]), Err(Error::OPNOTSUPP));
        assert_eq!(set_cuda_permitted(&[1]), Ok(()));
        assert_eq!(set_cuda_permitted(&[1; 4]), Err(Error::INVAL));
    }
}
