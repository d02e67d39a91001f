//! What the log tells of each header that leaves or comes, if the user wants that.
use crate::net::ByteLink;
use crate::wire::StreamHeader;

/// Writes a line to the log about a header, if the user wants that
/// ([`trace`](crate::settings::StreamSettings::trace)).
#[inline]
pub(super) fn trace<L: ByteLink>(direction: &str, link: &L, header: &StreamHeader) {
    if L::settings().trace {
        tell(direction, link, header);
    }
}

#[cold]
fn tell<L: ByteLink>(direction: &str, link: &L, header: &StreamHeader) {
    let peer = link.peer_addr().ok();
    let peer = peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string());
    ofi_provider::log!(L::provider(), TRACE, EP_DATA, "{direction} {peer}: {header:?}");
}
