//! Service points, connection requests, and the data of connections.
use crate::fabric::*;
use crate::layout::*;
use crate::store::OfAdaptor;
use std::sync::Arc;

/// Prefix of connection data: providers may deliver more bytes than sent, and none reports if the
/// peer or its kernel rejected a request.
const MARK: [u8; 2] = [0xDA, 2];
/// Length of the prefix, including the length of the data.
pub(crate) const MARK_LENGTH: usize = 4;
/// Maximum bytes of an application's connection data.
pub(crate) const PRIVATE_MAX: usize = 256;

/// Service point, with its endpoint if it is a reserved one.
pub(crate) struct DatSp {
    pub(crate) ia: Handle,
    pub(crate) evd: Handle,
    pub(crate) conn_qual: u64,
    pub(crate) reserved: Option<Handle>,
    /// True if each request comes with an endpoint (DAT_PSP_PROVIDER_FLAG).
    pub(crate) makes_endpoints: bool,
    pub(crate) listener: Arc<FabricListener>,
}

/// A request for a connection.
pub(crate) struct DatCr {
    pub(crate) ia: Handle,
    pub(crate) peer: Box<SocketAddress>,
    pub(crate) data: Box<[u8]>,
    pub(crate) ep: Handle,
    /// True if this endpoint was created for the request, and is freed with its rejection.
    pub(crate) made: bool,
    pub(crate) sp: Handle,
    pub(crate) listener: Arc<FabricListener>,
    pub(crate) info: FabricInfo,
}

impl OfAdaptor for DatSp {
    fn ia(&self) -> Handle {
        self.ia
    }
}

impl OfAdaptor for DatCr {
    fn ia(&self) -> Handle {
        self.ia
    }
}

/// Data of a connection as it goes over the wire.
pub(crate) fn marked(data: &[u8]) -> Vec<u8> {
    let mut all = MARK.to_vec();
    all.extend((data.len() as u16).to_be_bytes());
    all.extend(data);
    all
}

/// Data of a connection as the peer gave it; none if it is no peer of ours.
pub(crate) fn unmarked(data: &[u8]) -> Option<&[u8]> {
    let rest = data.strip_prefix(&MARK)?;
    let (length, rest) = rest.split_first_chunk()?;
    rest.get(..u16::from_be_bytes(*length).into())
}

#[cfg(test)]
mod tests;
