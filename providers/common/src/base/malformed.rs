//! Result of parsing bytes from a peer.
use crate::log::peer_text;
use crate::provider::Provider;
use std::fmt;

/// Defect of bytes from a peer. The text is for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

/// The result of reading bytes from a peer.
pub type Parsed<T = ()> = Result<T, Malformed>;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Logs the end of a peer's connection because of malformed bytes.
pub fn log_closing(prov: &'static Provider, peer: Option<impl fmt::Display>, why: Malformed) {
    let peer = peer_text(peer);
    crate::log_sparsely!(prov, WARN, EP_DATA, "closing the connection to {peer}: {why}");
}
