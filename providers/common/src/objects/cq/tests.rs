//! Unit tests of `cq`.
use super::calls::{read, readfrom};
use super::testing::{domain, queue};
use super::*;
use crate::abi::{fi_cq_data_entry, fi_cq_entry, fi_cq_msg_entry, fi_cq_tagged_entry};
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
        // SAFETY: an entry of the queue's format.
        let (mut to, mut src) = (unsafe { std::mem::zeroed::<fi_cq_tagged_entry>() }, 0);
        // SAFETY: the room is that of an entry of the queue's format.
        let count = unsafe {
            readfrom::<{ Level::SERIALIZED }>(cq.as_c(), (&raw mut to).cast(), 1, &raw mut src)
        };
        assert_eq!((count, to.members(), src), (1, vec![0, n, n, 1, 2, n * 3], n * 4));
    }
    assert!(!cq.has_entries());
    let waits = fi_cq_attr {
        wait_obj: fi_wait_obj::FI_WAIT_FD.into(),
        ..attr(fi_cq_format::FI_CQ_FORMAT_MSG, 3)
    };
    assert!(open(Level::Serialized, waits).next_entry().is_none());
    assert!(queue().next_entry().is_none(), "other threads may read it");
}

/// Entry of a format.
trait CqEntry: Copy {
    /// Returns the members in the order of the largest format.
    fn members(&self) -> Vec<u64>;
}

impl CqEntry for fi_cq_entry {
    fn members(&self) -> Vec<u64> {
        vec![self.op_context as u64]
    }
}

impl CqEntry for fi_cq_msg_entry {
    fn members(&self) -> Vec<u64> {
        vec![self.op_context as u64, self.flags, self.len as u64]
    }
}

impl CqEntry for fi_cq_data_entry {
    fn members(&self) -> Vec<u64> {
        vec![self.op_context as u64, self.flags, self.len as u64, self.buf as u64, self.data]
    }
}

impl CqEntry for fi_cq_tagged_entry {
    fn members(&self) -> Vec<u64> {
        let buf = self.buf as u64;
        vec![self.op_context as u64, self.flags, self.len as u64, buf, self.data, self.tag]
    }
}

/// Reads entries of type `E` from a queue of this format, which writes nothing else.
fn entries_have_type<E: CqEntry>(format: fi_cq_format) {
    let cq = open(Level::Serialized, attr(format, 8));
    for n in [5, 6, 7] {
        cq.write(entry(n));
    }
    let all = |n: u64| [0, n, n, 1, 2, n * 3];
    // SAFETY: numbers and addresses.
    let mut capacity = unsafe { std::mem::zeroed::<[E; 3]>() };
    let bytes = |capacity: &mut [E; 3], index: usize| {
        let start = (&raw mut capacity[index]).cast::<u8>();
        // SAFETY: the bytes of an entry, of which those between members are initialized as well.
        unsafe { std::slice::from_raw_parts_mut(start, size_of::<E>()) }.to_vec()
    };
    let mut read = |count, expected: &[u64]| {
        let to = capacity.as_mut_ptr();
        // SAFETY: there is room for three entries.
        let read = unsafe {
            to.write_bytes(0xff, 3);
            read::<{ Level::SERIALIZED }>(cq.as_c(), to.cast(), count)
        };
        assert_eq!(read, expected.len() as isize);
        for (index, n) in expected.iter().enumerate() {
            let members = capacity[index].members();
            assert_eq!(members, all(*n)[..members.len()]);
        }
        for index in expected.len()..3 {
            assert!(bytes(&mut capacity, index).iter().all(|byte| *byte == 0xff));
        }
    };
    read(1, &[5]);
    read(3, &[6, 7]);
}

#[test]
fn entry_size_follows_from_its_format() {
    entries_have_type::<fi_cq_entry>(fi_cq_format::FI_CQ_FORMAT_CONTEXT);
    entries_have_type::<fi_cq_msg_entry>(fi_cq_format::FI_CQ_FORMAT_MSG);
    entries_have_type::<fi_cq_data_entry>(fi_cq_format::FI_CQ_FORMAT_DATA);
    entries_have_type::<fi_cq_tagged_entry>(fi_cq_format::FI_CQ_FORMAT_TAGGED);
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
