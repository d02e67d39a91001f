//! Unit tests of `cq`.
use super::calls::{read, readfrom};
use super::testing::{domain, queue};
use super::*;
use crate::buf::UntrustedBytes;
use crate::packet_sink::deliver_to;
use std::os::fd::RawFd;

fn open(level: Level, attr: fi_cq_attr) -> Arc<Cq> {
    // SAFETY: neither a peer nor a wait set.
    unsafe { Cq::open(OnDomain { level, ..domain() }, Some(&attr), std::ptr::null_mut()) }.unwrap()
}

fn attr(format: fi_cq_format, size: usize) -> fi_cq_attr {
    // SAFETY: all zeros are valid.
    let zeros = unsafe { std::mem::zeroed::<fi_cq_attr>() };
    fi_cq_attr { size, format: format.into(), ..zeros }
}

fn entry(n: u64) -> Completion {
    let len = n as usize;
    Completion { context: Context::NULL, flags: n, len, buf: 1, data: 2, tag: n * 3, src: n * 4 }
}

#[test]
fn entry_slot_is_available_only_with_space_and_no_contention() {
    let cq = open(Level::Serialized, attr(fi_cq_format::FI_CQ_FORMAT_TAGGED, 3));
    for n in 1..=3 {
        cq.next_entry().unwrap().write(entry(n));
    }
    assert!(cq.next_entry().is_none() && !cq.has_space());
    // Excess entries wait behind the ring: one of four slots was left.
    (4..=6).for_each(|n| cq.write(entry(n)));
    assert_eq!(cq.fill(), [6, 3]);
    for n in 1..=6 {
        let (mut capacity, mut src) = ([0u64; 6], 0);
        // SAFETY: the room is that of an entry of the queue's format.
        unsafe {
            let to = capacity.as_mut_ptr().cast();
            assert_eq!(readfrom::<{ Level::SERIALIZED }>(cq.as_c(), to, 1, &raw mut src), 1);
        }
        assert_eq!((capacity, src), ([0, n, n, 1, 2, n * 3], n * 4));
    }
    assert!(!cq.has_entries());
    let waits = fi_cq_attr {
        wait_obj: fi_wait_obj::FI_WAIT_FD.into(),
        ..attr(fi_cq_format::FI_CQ_FORMAT_MSG, 3)
    };
    assert!(open(Level::Serialized, waits).next_entry().is_none());
    assert!(queue().next_entry().is_none(), "other threads may read it");
}

#[test]
fn entry_size_follows_from_its_format() {
    for (format, words) in [
        (fi_cq_format::FI_CQ_FORMAT_CONTEXT, 1),
        (fi_cq_format::FI_CQ_FORMAT_MSG, 3),
        (fi_cq_format::FI_CQ_FORMAT_DATA, 5),
        (fi_cq_format::FI_CQ_FORMAT_TAGGED, 6),
    ] {
        let cq = open(Level::Serialized, attr(format, 8));
        for n in [5, 6, 7] {
            cq.write(entry(n));
        }
        let all = |n: u64| [0, n, n, 1, 2, n * 3];
        let mut capacity = [u64::MAX; 20];
        let read = |capacity: &mut [u64], count| {
            // SAFETY: there is room for three entries of any format.
            unsafe { read::<{ Level::SERIALIZED }>(cq.as_c(), capacity.as_mut_ptr().cast(), count) }
        };
        assert_eq!(read(&mut capacity, 1), 1);
        assert_eq!(capacity[..words], all(5)[..words]);
        assert!(capacity[words..].iter().all(|word| *word == u64::MAX));
        assert_eq!(read(&mut capacity, 3), 2);
        assert_eq!(capacity[..words], all(6)[..words]);
        assert_eq!(capacity[words..2 * words], all(7)[..words]);
        assert!(capacity[2 * words..].iter().all(|word| *word == u64::MAX));
    }
}

/// Source with a message of three bytes from source 7 in each progress iteration.
struct Arriving;

impl Progress for Arriving {
    fn progress(&self) {}

    fn progress_into(&self, sink: &PacketSink<'_>) {
        sink.deliver(7, &b"abc"[..]);
    }

    fn wait_fd(&self) -> RawFd {
        -1
    }

    fn activity(&self) -> u64 {
        0
    }
}

/// Reads an entry with a packet sink passing messages to `take`. Returns the return value.
fn read_into<F>(DirectRead { who, read }: DirectRead, mut take: F) -> isize
where
    F: FnMut(fi_addr_t, UntrustedBytes<'_>) -> bool,
{
    let (mut capacity, mut src) = ([0u64; 6], 0);
    // SAFETY: the queue is open, the room is that of an entry of any format, and the closure outlives the call.
    unsafe {
        let (to, context) = (capacity.as_mut_ptr().cast(), (&raw mut take).cast());
        read(who, to, 1, &raw mut src, deliver_to::<F>, context)
    }
}

#[test]
fn read_of_an_empty_queue_with_a_packet_sink_passes_messages_to_it() {
    let on_domain = OnDomain { progress: Arc::new(Arriving), ..domain() };
    // SAFETY: neither a peer nor a wait set.
    let cq = unsafe { Cq::open(on_domain, None, std::ptr::null_mut()) }.unwrap();
    let mut direct: Option<DirectRead> = None;
    // SAFETY: the command fills in the function.
    unsafe { cq.control(DELIVERS_PACKETS, (&raw mut direct).cast()) }.unwrap();
    let direct = direct.unwrap();
    let mut came = Vec::new();
    let mut take = |source, bytes: UntrustedBytes<'_>| {
        came.push((source, bytes.first_chunk::<3>()));
        true
    };
    assert_eq!(read_into(direct, &mut take), -11);
    cq.write(entry(5));
    assert_eq!(read_into(direct, &mut take), 1, "there is no progress while an entry is unread");
    assert_eq!(read_into(direct, &mut take), -11);
    assert_eq!(came, [(7, Some(*b"abc")); 2]);
}
