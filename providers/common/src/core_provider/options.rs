//! Options of core providers' endpoints (fi_setopt(3)) for utility providers of this library.
use crate::abi;
use crate::error::{Error, Result};
use core::ffi::c_int;

/// Option of connected endpoints (fi_setopt(3), 8 bytes): the source reported by the completions of
/// their receives, as returned by fi_cq_readfrom(3). Setting it also makes receives without a tag
/// accept tagged messages, as sent by the `tcp` of 1.17 for its `ofi_rxm`. They are reported with
/// FI_TAGGED and the tag.
pub const OPT_SOURCE: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f01;

/// Option of datagram endpoints (fi_setopt(3)): setting it sends datagrams of one length with one
/// system call; the last one may be shorter. The value is a [`DatagramBatch`] followed by their
/// bytes, reusable at the return. -FI_EAGAIN: none was sent. Any other error: send them one by one.
pub const OPT_SEND_MANY: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f02;

/// Option of datagram endpoints (fi_setopt(3), 8 bytes), to be set before a receive is posted:
/// receives accept several consecutive datagrams of one sender, if they arrive together. Their
/// length is the CQ data of the completion, 0 for a single one. The value is the size in bytes of
/// the kernel's receive buffer for the endpoint.
pub const OPT_RECEIVE_MANY: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f03;

/// Option of datagram endpoints with FI_SOURCE (fi_setopt(3), without a value): the address of a
/// sender in no address vector is stored in the last [`UNKNOWN_SOURCE_LEN`] bytes of the receive's
/// buffer, if the datagrams leave them free. The completion's source is then FI_ADDR_NOTAVAIL.
pub const OPT_UNKNOWN_SOURCES: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f04;

/// Option of connected endpoints (fi_getopt(3), 1 byte): true if the peer is known to have ended
/// the connection, even with data left to receive. While unexpected messages fill their buffer
/// space, no event reports the end.
pub const OPT_PEER_ENDED: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f05;

/// Option of passive endpoints (fi_getopt(3), 24 bytes): three numbers of 8 bytes each. The first is
/// the number of descriptors used by connections of the process, the second their maximum, and the
/// third is the number of connections waiting at the listener for space.
pub const OPT_CONN_USAGE: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f07;

/// Option of passive endpoints (fi_setopt(3), 1 byte). With [`ACCEPT_WITHIN_LIMIT`] connections wait at
/// the listener while the descriptors reach their maximum: the user of the endpoint closes idle ones.
/// With [`ACCEPT_ONE_MORE`] one of them may exceed the maximum.
pub const OPT_ACCEPT_LIMIT: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f08;

/// Value of [`OPT_ACCEPT_LIMIT`].
pub const ACCEPT_WITHIN_LIMIT: u8 = 1;

/// Value of [`OPT_ACCEPT_LIMIT`].
pub const ACCEPT_ONE_MORE: u8 = 2;

/// Option of datagram endpoints. Setting it (fi_setopt(3), without a value) makes the endpoint
/// record the destinations of datagrams to closed ports, as reported by their hosts. Reading it
/// (fi_getopt(3), [`UNKNOWN_SOURCE_LEN`] bytes) takes the oldest record, or fails with -FI_EAGAIN
/// if there is none. A forged packet can create a record.
pub const OPT_ICMP_ERRORS: c_int = abi::FI_PROV_SPECIFIC_TCP | 0x4f06;

/// Bytes of a sender's address with [`OPT_UNKNOWN_SOURCES`], padded with zeros.
pub const UNKNOWN_SOURCE_LEN: usize = crate::addr::MAX_LEN;

/// Header of the datagrams in the value of [`OPT_SEND_MANY`].
#[derive(Clone, Copy, Debug)]
pub struct DatagramBatch {
    /// Destination of the datagrams.
    pub to: abi::fi_addr_t,
    /// Their length; the last may be shorter.
    pub stride: u64,
}

impl DatagramBatch {
    /// The length of it.
    pub const LEN: usize = 16;

    /// Reads it, and the datagrams behind it; -FI_EINVAL if there are none.
    pub fn read(value: &[u8]) -> Result<(Self, &[u8])> {
        let (head, datagrams) = value.split_first_chunk::<{ Self::LEN }>().ok_or(Error::INVAL)?;
        let (to, stride) = head.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes);
        let (to, stride) = (number(to), number(stride));
        match (to, stride) {
            (Ok(to), Ok(stride)) if stride > 0 && !datagrams.is_empty() => {
                Ok((Self { to, stride }, datagrams))
            }
            _ => Err(Error::INVAL),
        }
    }

    /// Writes it.
    pub fn write(&self, buf: &mut [u8]) {
        buf[..8].copy_from_slice(&self.to.to_ne_bytes());
        buf[8..Self::LEN].copy_from_slice(&self.stride.to_ne_bytes());
    }
}
