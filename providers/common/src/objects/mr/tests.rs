//! Unit tests of `mr`.
use super::*;
use crate::abi::{FI_REMOTE_READ, FI_REMOTE_WRITE};

/// Returns the address of a remote segment's first byte, if a peer has this right to all of it.
fn first_piece(table: &MrTable, segment: RemoteSegment, right: u64) -> Result<usize> {
    let opened = table.open();
    opened.check(&RemoteSegments::one(segment.addr, segment.len, segment.key), right)?;
    opened.pieces(&segment, right)?.next().unwrap().map(|piece| piece.base)
}

#[test]
fn scalable_keys_are_the_application_s_and_addresses_are_offsets() {
    let table = MrTable::new(abi::FI_MR_SCALABLE);
    assert_eq!(table.insert(0x1000, 64, FI_REMOTE_WRITE, 0, 7), Ok(7));
    assert_eq!(table.insert(0x2000, 64, FI_REMOTE_WRITE, 0, 7), Err(Error::NOKEY));
    let check =
        |key, addr, len, right| first_piece(&table, RemoteSegment { addr, len, key }, right);
    assert_eq!(check(7, 16, 48, FI_REMOTE_WRITE), Ok(0x1010));
    assert_eq!(check(7, 16, 49, FI_REMOTE_WRITE), Err(Error::ACCES));
    assert_eq!(check(7, 0, 1, FI_REMOTE_READ), Err(Error::ACCES));
    assert_eq!(check(8, 0, 1, FI_REMOTE_WRITE), Err(Error::INVAL));
    table.remove(7);
    assert_eq!(check(7, 0, 1, FI_REMOTE_WRITE), Err(Error::INVAL));
}

/// The pieces of a place, as distances from `base` and lengths.
fn pieces_of(table: &MrTable, segment: [u64; 3], base: usize) -> Result<Vec<(usize, usize)>> {
    let [addr, len, key] = segment;
    let opened = table.open();
    let pieces = opened.pieces(&RemoteSegment { addr, len, key }, FI_REMOTE_WRITE)?;
    pieces.map(|piece| piece.map(|piece| (piece.base - base, piece.len))).collect()
}

#[test]
fn offsets_go_through_the_segments_of_a_region_in_their_order() {
    let table = MrTable::new(abi::FI_MR_SCALABLE).with_segments(3);
    let at = |base: usize, len| LocalMemory { base: 0x1000 + base, len };
    let memory = [at(0x200, 8), at(0, 0), at(0x100, 24)];
    table.insert_segments(&memory, &[], FI_REMOTE_WRITE, 0, 7).unwrap();
    let pieces = |addr, len| pieces_of(&table, [addr, len, 7], 0x1000);
    assert_eq!(pieces(0, 8), Ok(vec![(0x200, 8)]));
    assert_eq!(pieces(6, 4), Ok(vec![(0x206, 2), (0x100, 2)]));
    assert_eq!(pieces(0, 32), Ok(vec![(0x200, 8), (0x100, 24)]));
    assert_eq!(pieces(8, 24), Ok(vec![(0x100, 24)]));
    assert_eq!(pieces(31, 1), Ok(vec![(0x117, 1)]));
    assert_eq!(pieces(32, 0).map(|pieces| pieces[0].1), Ok(0));
    for (addr, len) in [(0, 33), (32, 1), (33, 0), (u64::MAX, 1), (8, 25), (1, u64::MAX)] {
        assert_eq!(pieces(addr, len), Err(Error::ACCES));
    }
}

#[test]
fn with_virtual_addresses_each_segment_has_its_own() {
    let table = MrTable::new(abi::FI_MR_BASIC).with_segments(3);
    let at = |base, len| LocalMemory { base, len };
    // The last adjoins the first.
    let memory = [at(0x2000, 8), at(0x1000, 16), at(0x2008, 8)];
    let key = table.insert_segments(&memory, &[], FI_REMOTE_WRITE, 0, 0).unwrap();
    let pieces = |addr, len| pieces_of(&table, [addr, len, key], 0);
    assert_eq!(pieces(0x2000, 8), Ok(vec![(0x2000, 8)]));
    assert_eq!(pieces(0x1008, 8), Ok(vec![(0x1008, 8)]));
    assert_eq!(pieces(0x2004, 12), Ok(vec![(0x2004, 4), (0x2008, 8)]));
    for (addr, len) in [(0x1008, 9), (0x2004, 13), (0, 1), (0x1fff, 2), (0x2010, 1)] {
        assert_eq!(pieces(addr, len), Err(Error::ACCES));
    }
}

#[test]
fn atomic_changes_only_elements_whole_within_a_segment() {
    let mut memory = [0u64; 4];
    let at = memory.as_mut_ptr() as usize;
    let table = MrTable::new(abi::FI_MR_SCALABLE).with_segments(2);
    let segments = [LocalMemory { base: at + 16, len: 12 }, LocalMemory { base: at, len: 16 }];
    let right = FI_REMOTE_WRITE | FI_REMOTE_READ;
    table.insert_segments(&segments, &[], right, 0, 7).unwrap();
    let (u64s, sum) = (abi::fi_datatype::FI_UINT64 as u32, abi::fi_op::FI_SUM as u32);
    let operation = Operation::new(AtomicKind::Base, u64s, sum).unwrap();
    let add = |addr, elements: u64| {
        let source: Vec<u8> = (0..elements).flat_map(|_| 5u64.to_ne_bytes()).collect();
        let remote = RemoteSegments::one(addr, 8 * elements, 7);
        table.open().atomic(operation, &remote, &source, &[], &mut [])
    };
    assert_eq!(add(0, 1), Ok(()));
    assert_eq!(add(8, 1), Err(Error::INVAL));
    assert_eq!(add(12, 2), Ok(()));
    assert_eq!(add(20, 2), Err(Error::ACCES));
    assert_eq!(memory, [5, 5, 5, 0]);
}

#[test]
fn a_region_without_rights_for_peers_takes_no_key() {
    for mode in [abi::FI_MR_SCALABLE, abi::FI_MR_PROV_KEY, abi::FI_MR_VIRT_ADDR] {
        let table = MrTable::new(mode);
        for access in [abi::FI_SEND | abi::FI_RECV, abi::FI_READ | abi::FI_WRITE, abi::FI_SEND] {
            assert_eq!(table.insert(0x1000, 64, access, 0, 7), Ok(FI_KEY_NOTAVAIL));
        }
        let key = table.insert(0x1000, 64, FI_REMOTE_READ, 0, 7).unwrap();
        assert_eq!(key == 7, mode & abi::FI_MR_PROV_KEY == 0);
        table.remove(FI_KEY_NOTAVAIL);
        assert!(table.keys().regions.contains_key(&key));
    }
}

#[test]
fn keys_of_ours_cannot_be_guessed() {
    let key = |table: &MrTable| table.insert(0x1000, 64, FI_REMOTE_READ, 0, 0).unwrap();
    let tables = [MrTable::new(abi::FI_MR_PROV_KEY), MrTable::new(abi::FI_MR_PROV_KEY)];
    let keys: Vec<u64> = (0..100).map(|n| key(&tables[n % 2])).collect();
    let distances = keys.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
    assert!(distances.min() > Some(1 << 32), "{keys:?}");
}

#[test]
fn basic_keys_are_ours_and_addresses_are_virtual() {
    let table = MrTable::new(abi::FI_MR_BASIC);
    let key = table.insert(0x1000, 64, FI_REMOTE_READ, 0, 7).unwrap();
    let check = |addr, len| {
        let segment = RemoteSegment { addr, len, key };
        first_piece(&table, segment, FI_REMOTE_READ)
    };
    assert_eq!(check(0x1020, 32), Ok(0x1020));
    assert_eq!(check(0x0fff, 1), Err(Error::ACCES));
    assert_eq!(check(u64::MAX, 2), Err(Error::ACCES));
    assert_eq!(table.insert(0x1000, 64, abi::FI_SEND, 0, 7), Ok(FI_KEY_NOTAVAIL));
}

fn attr(iov: *const libc::iovec, count: usize) -> fi_mr_attr {
    // SAFETY: numbers and null pointers.
    let zero = unsafe { std::mem::zeroed::<fi_mr_attr>() };
    fi_mr_attr { mr_iov: iov, iov_count: count, access: abi::FI_SEND, ..zero }
}

#[test]
fn dmabuf_region_starts_at_base_plus_offset_and_needs_fi_hmem() {
    let dmabuf = |offset, len, base: usize| fi_mr_dmabuf {
        fd: 5,
        offset,
        len,
        base_addr: base as *mut c_void,
    };
    let wanted = |dmabuf: &fi_mr_dmabuf, hmem| {
        let attr = attr(std::ptr::from_ref(dmabuf).cast(), 1);
        // SAFETY: with the flag it is what it points to.
        unsafe { wanted(&attr, abi::FI_MR_DMABUF, hmem, 1) }.map(|(request, _)| request)
    };
    let good = wanted(&dmabuf(0x2000, 64, 0x10000), true).unwrap();
    assert_eq!((good.base, good.len), (0x12000, 64));
    let range = DmabufRange { fd: 5, offset: 0x2000, len: 64, base_addr: 0x10000 };
    assert_eq!(good.kind, MemoryKind::Dmabuf(range));
    assert_eq!(wanted(&dmabuf(0x2000, 64, 0), true).unwrap().base, 0x2000);
    assert_eq!(wanted(&dmabuf(0, 64, 0), false).unwrap_err(), Error::BADFLAGS);
    for bad in [dmabuf(u64::MAX, 1, 2), dmabuf(0, usize::MAX, 2)] {
        assert_eq!(wanted(&bad, true).unwrap_err(), Error::INVAL);
    }
    // SAFETY: null is allowed.
    let none = unsafe { super::wanted(&attr(std::ptr::null(), 0), abi::FI_MR_DMABUF, true, 1) };
    assert_eq!(none.err(), Some(Error::INVAL));
}

#[test]
fn interface_selects_device_memory_only_with_fi_hmem() {
    let iov = libc::iovec { iov_base: 0x1000 as *mut c_void, iov_len: 64 };
    let segment = |iface: fi_hmem_iface, flags, hmem| {
        let attr = fi_mr_attr { iface: iface.into(), ..attr(&raw const iov, 1) };
        // SAFETY: one vector.
        unsafe { wanted(&attr, flags, hmem, 1) }.unwrap().0.kind
    };
    let cuda = fi_hmem_iface::FI_HMEM_CUDA;
    assert_eq!(segment(cuda, 0, true), MemoryKind::Device(cuda.into()));
    assert_eq!(segment(cuda, 0, false), MemoryKind::System);
    assert_eq!(segment(cuda, abi::FI_HMEM_HOST_ALLOC, true), MemoryKind::System);
    assert_eq!(segment(fi_hmem_iface::FI_HMEM_SYSTEM, 0, true), MemoryKind::System);
}
