//! What the log tells of each header that leaves or comes, if the user wants that.
use crate::net::{ByteLink, peer_of};
use crate::wire::StreamHeader;
use ofi_provider::log::peer_text;

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
    let peer = peer_text(peer_of(link));
    ofi_provider::log!(L::provider(), TRACE, EP_DATA, "{direction} {peer}: {header:?}");
}
