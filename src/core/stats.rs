//! `fi_open("stats")`: published statistics of this process (`ofi_stats`), for tools running in it
//! (fi_open(3)).
use core::ffi::{c_char, c_int, c_void};
use ofi::abi::{
    FI_ADDR_UNSPEC, FI_CLASS_UNSPEC, FI_STATS_ASLEEP, FI_STATS_BLOCKED, FI_STATS_CALLED,
    FI_STATS_CALLING, FI_STATS_CONNECTED, FI_STATS_CONNECTING, FI_STATS_ENCRYPTED, FI_STATS_MEMORY,
    FI_STATS_REFUSED, FI_STATS_RESUMING, FI_STATS_SECRET, FI_STATS_SERVES, fi_ep_type, fi_ops,
    fi_ops_stats, fi_stats_endpoint, fi_stats_peer, fid, fid_stats,
};
use ofi::boundary::ffi_guard;
use ofi::error::{Error, Result};
use ofi::fid::{FidObject, ops};
use ofi_stats::layout::{ANY, EndpointStats, PeerStats, kinds, peer_bits, states, words_text};
use ofi_stats::read::{StatsPage, StatsReadError, own_pages};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Object returned by `fi_open`, with the statistics at the last refresh.
#[repr(C)]
struct OpenStats {
    fid: fid_stats,
    published: Mutex<Vec<StatsPage>>,
}

// SAFETY: the pointers are followed only by C, from any thread; the rest has its own lock.
unsafe impl Send for OpenStats {}
// SAFETY: as above.
unsafe impl Sync for OpenStats {}
// SAFETY: `repr(C)`, a `fid_stats` first, and C gets it from `into_c` alone.
unsafe impl FidObject<fid_stats> for OpenStats {}

static STATS_FID_OPS: fi_ops = ops(close);

static STATS_OPS: fi_ops_stats = fi_ops_stats {
    size: size_of::<fi_ops_stats>(),
    look: Some(look),
    endpoint: Some(endpoint),
    peer: Some(peer),
};

/// Opens it; nothing has been looked at yet.
pub(super) fn open(context: *mut c_void) -> *mut fid {
    let fid = fid {
        fclass: FI_CLASS_UNSPEC as usize,
        context,
        ops: core::ptr::from_ref(&STATS_FID_OPS).cast_mut(),
    };
    let ops = core::ptr::from_ref(&STATS_OPS).cast_mut();
    let opened = OpenStats { fid: fid_stats { fid, ops }, published: Mutex::default() };
    Arc::new(opened).into_c().cast()
}

impl OpenStats {
    fn published(&self) -> MutexGuard<'_, Vec<StatsPage>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An endpoint by its index among all pages.
fn nth(pages: &[StatsPage], index: usize) -> Result<(&StatsPage, &EndpointStats)> {
    let all = pages.iter().flat_map(|page| page.endpoints.iter().map(move |one| (page, one)));
    all.into_iter().nth(index).ok_or(Error::INVAL)
}

/// A text in so many characters, with an end.
fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut all = [0; N];
    for (to, from) in all[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    all
}

fn endpoint_of(page: &StatsPage, of: &EndpointStats) -> fi_stats_endpoint {
    let ep_type = match of.kind {
        kinds::MSG => fi_ep_type::FI_EP_MSG as u64,
        kinds::RDM => fi_ep_type::FI_EP_RDM as u64,
        kinds::DGRAM => fi_ep_type::FI_EP_DGRAM as u64,
        _ => fi_ep_type::FI_EP_UNSPEC as u64,
    };
    let flag = |is: bool, flag| if is { flag } else { 0 };
    let [sent, sent_bytes, received, received_bytes] = page.passed(of);
    fi_stats_endpoint {
        provider: characters(&page.provider()),
        address: characters(&words_text(&of.address)),
        ep_type,
        flags: flag(of.serves != 0, FI_STATS_SERVES) | flag(of.asleep != 0, FI_STATS_ASLEEP),
        written: of.written,
        iterations: page.head.iterations.get(of.engine as usize).copied().unwrap_or(of.iterations),
        sent,
        sent_bytes,
        received,
        received_bytes,
        posted: of.posted,
        unexpected: of.unexpected,
        unexpected_bytes: of.unexpected_bytes,
        in_flight: of.in_flight,
        tx_size: of.tx_size,
        tx_queue: of.tx_queue,
        tx_queue_size: of.tx_queue_size,
        rx_queue: of.rx_queue,
        rx_queue_size: of.rx_queue_size,
        lost: of.lost[0],
        latency: of.latency,
        peers: page.peers_of(of).len() as u64,
        closed_idle: of.closed_idle,
    }
}

fn peer_of(of: &PeerStats) -> fi_stats_peer {
    let state = match of.state & 0xff {
        states::CONNECTING => FI_STATS_CONNECTING,
        states::ASKED | states::CALLING => FI_STATS_CALLED,
        states::CALLED => FI_STATS_CALLING,
        states::CONNECTED => FI_STATS_CONNECTED,
        states::RESUMING => FI_STATS_RESUMING,
        _ => FI_STATS_REFUSED,
    };
    let flag = |bits: u64, flag| if of.state & bits == bits { flag } else { 0 };
    fi_stats_peer {
        address: characters(&words_text(&of.address)),
        fi_addr: if of.name == ANY { FI_ADDR_UNSPEC } else { of.name },
        state: state as u64,
        flags: flag(peer_bits::SENDS_LOCALLY | peer_bits::RX_OVER_SHM, FI_STATS_MEMORY)
            | flag(peer_bits::SECRET, FI_STATS_SECRET)
            | flag(peer_bits::ENCRYPTED, FI_STATS_ENCRYPTED)
            | flag(peer_bits::BLOCKED, FI_STATS_BLOCKED),
        since: of.since,
        moved: of.moved,
        sent: of.sent,
        sent_bytes: of.sent_bytes,
        received: of.received,
        received_bytes: of.received_bytes,
        unsent: of.unsent,
        unacknowledged: of.unacknowledged,
        unanswered: of.unanswered,
        incomplete: of.incomplete,
        subflows: of.subflows,
        sockets: of.sockets,
        resumes: of.resumes,
        repeated_bytes: of.repeated_bytes,
    }
}

/// Writes the part of a value known to the caller's version of its type.
///
/// # Safety
/// `to` is null or has space for `size` bytes.
unsafe fn give<T: Copy>(value: T, to: *mut T, size: usize) -> Result {
    if to.is_null() {
        return Err(Error::INVAL);
    }
    let size = size.min(size_of::<T>());
    // SAFETY: by this function's contract; both are plain data.
    unsafe { core::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast(), size) };
    Ok(())
}

unsafe extern "C" fn look(stats: *mut fid_stats, count: *mut usize) -> c_int {
    ffi_guard("look", || -> Result {
        // SAFETY: these operations belong to what `open` made, which is open.
        let stats = unsafe { OpenStats::from_c(stats) }?;
        // SAFETY: fi_open(3): null, or a number to write to.
        let count = unsafe { count.as_mut() }.ok_or(Error::INVAL)?;
        let pages = own_pages().map_err(|why| match why {
            StatsReadError::None => Error::NODATA,
            StatsReadError::NotAllowed => Error::ACCES,
            _ => Error::IO,
        })?;
        *count = pages.iter().map(|page| page.endpoints.len()).sum();
        *stats.published() = pages;
        Ok(())
    })
}

unsafe extern "C" fn endpoint(
    stats: *mut fid_stats,
    index: usize,
    to: *mut fi_stats_endpoint,
    size: usize,
) -> c_int {
    ffi_guard("endpoint", || -> Result {
        // SAFETY: these operations belong to what `open` made, which is open.
        let stats = unsafe { OpenStats::from_c(stats) }?;
        let published = stats.published();
        let (page, of) = nth(&published, index)?;
        // SAFETY: fi_open(3): null, or so many bytes.
        unsafe { give(endpoint_of(page, of), to, size) }
    })
}

unsafe extern "C" fn peer(
    stats: *mut fid_stats,
    endpoint: usize,
    index: usize,
    to: *mut fi_stats_peer,
    size: usize,
) -> c_int {
    ffi_guard("peer", || -> Result {
        // SAFETY: these operations belong to what `open` made, which is open.
        let stats = unsafe { OpenStats::from_c(stats) }?;
        let published = stats.published();
        let (page, of) = nth(&published, endpoint)?;
        let of = page.peers_of(of).get(index).ok_or(Error::INVAL)?;
        // SAFETY: fi_open(3): null, or so many bytes.
        unsafe { give(peer_of(of), to, size) }
    })
}

unsafe extern "C" fn close(stats: *mut fid) -> c_int {
    ffi_guard("fi_close", || -> Result {
        if stats.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: these operations belong to what `open` made, closed once.
        drop(unsafe { OpenStats::take(stats.cast()) });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_stats::layout::text_words;

    #[test]
    fn older_callers_get_only_the_members_of_their_struct() {
        let page = StatsPage::default();
        let of = EndpointStats { kind: kinds::RDM, serves: 1, in_flight: 9, ..Default::default() };
        let value = endpoint_of(&page, &of);
        let mut to = fi_stats_endpoint { flags: 77, written: 77, ..value };
        let size = core::mem::offset_of!(fi_stats_endpoint, written);
        // SAFETY: the room is there.
        unsafe { give(value, &raw mut to, size) }.unwrap();
        assert_eq!((to.flags, to.written), (FI_STATS_SERVES, 77));
        // SAFETY: nothing is written to null.
        assert_eq!(unsafe { give(value, core::ptr::null_mut(), size) }, Err(Error::INVAL));
    }

    #[test]
    fn texts_have_an_end() {
        assert_eq!(characters::<4>("abcdef"), [b'a', b'b', b'c', 0].map(|byte| byte as c_char));
        let peer = PeerStats {
            address: text_words(&"x".repeat(64)),
            state: states::CALLING | peer_bits::SENDS_LOCALLY,
            name: ANY,
            ..Default::default()
        };
        let peer = peer_of(&peer);
        assert_eq!((peer.address[62], peer.address[63]), (b'x' as c_char, 0));
        assert_eq!((peer.state, peer.flags), (FI_STATS_CALLED as u64, 0));
        assert_eq!(peer.fi_addr, FI_ADDR_UNSPEC);
    }
}
