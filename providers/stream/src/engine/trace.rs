//! Log lines for each header sent or received, if enabled by the user.
use crate::transport::{ByteLink, peer_of};
use crate::wire::StreamHeader;
use ofi_provider::log::peer_text;

/// Logs a header, if enabled by the user ([`trace`](crate::settings::StreamSettings::trace)).
#[inline]
pub(super) fn trace<L: ByteLink>(direction: &str, link: &L, header: &StreamHeader) {
    if L::settings().trace {
        tell(direction, link, header);
    }
}

#[cold]
fn tell<L: ByteLink>(direction: &str, link: &L, header: &StreamHeader) {
    let peer = peer_text(peer_of(link));
    ofi_provider::log!(L::provider(), TRACE, EP_DATA, "{direction} {peer}: {header:?}");
}
