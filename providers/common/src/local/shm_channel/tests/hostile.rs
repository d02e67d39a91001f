//! Ends whose peer writes anything, and forked children.
use super::*;

/// Offsets of the words of the ring written by the creator of a segment, and of the other one.
/// Within them: the reader's line and the cells.
const RINGS: [u64; 2] = [128, 128 + CELLS_AT + 32 * 128];
const TAKEN: u64 = 128;
const FETCHED: u64 = 132;
const CAN_FETCH: u64 = 260;
const CELLS_AT: u64 = 384;

/// Returns an end, and the memory of its pipe for a hostile writer.
fn end_of_hostile(maker: bool) -> (ShmChannel, std::fs::File, [u64; 2]) {
    let (pipe, fd) = ShmChannel::create(4096).unwrap();
    let other = ShmChannel::open(fd.as_fd()).unwrap();
    let [out, inbound] = RINGS;
    let (end, at) = if maker { (pipe, [out, inbound]) } else { (other, [inbound, out]) };
    (end, fd.into(), at)
}

fn put_word(memory: &std::fs::File, at: u64, word: u64) {
    use std::os::unix::fs::FileExt;
    memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
}

/// Writes a word of 32 bits.
fn put_half(memory: &std::fs::File, at: u64, word: u32) {
    use std::os::unix::fs::FileExt;
    memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
}

#[test]
fn invalid_reader_position_ends_the_channel() {
    for (claim, maker) in [2, 1 << 31, u32::MAX].into_iter().zip([true, false, true]) {
        let (end, memory, [out, _]) = end_of_hostile(maker);
        assert_eq!(end.send(&[1; 1000]), Ok(1000));
        put_half(&memory, out + TAKEN, claim);
        assert_eq!(end.send(&[1; 4000]), Err(Error::PROTO), "{claim:x}");
        assert!(end.has_space(), "the error is told by a send");
    }
    // Fewer than before.
    let (end, memory, [out, _]) = end_of_hostile(true);
    assert_eq!(end.send(&[1; 4000]), Ok(4000));
    put_half(&memory, out + TAKEN, 2);
    assert_eq!(end.send(&[1; 4000]), Ok(4000));
    put_half(&memory, out + TAKEN, 1);
    assert_eq!(end.send(&[1; 4000]), Err(Error::PROTO));
    // The peer reports reads of buffers that were not exposed.
    let (end, memory, [out, _]) = end_of_hostile(true);
    let mut list = GatherList::default();
    list.push_bytes(b"some");
    end.send_list(&list, CopyMode::ZeroCopy).unwrap();
    assert!(end.zcopy_completed().is_ok());
    put_half(&memory, out + CAN_FETCH, 1);
    assert!(end.can_expose());
    let large = [0; 8192];
    let mut list = GatherList::default();
    list.push_bytes(&large);
    end.send_list(&list, CopyMode::ZeroCopy).unwrap();
    put_half(&memory, out + FETCHED, 2);
    assert_eq!(end.zcopy_completed(), Err(Error::PROTO));
}

#[test]
fn invalid_cell_from_a_writer_ends_the_channel() {
    let cell = |kind: u64, len: u64| 1 << 32 | len << 2 | kind;
    let claims = [
        cell(3, 0),
        cell(3, 2),
        cell(0, 0),
        cell(1, 0),
        cell(0, 121),
        cell(0, 0x3fff_ffff),
        cell(1, 4097),
        cell(1, 0x3fff_ffff),
        cell(2, 0),
        cell(2, 2),
        cell(2, 1), // no peer may expose buffers to this end
    ];
    for claim in claims {
        let (end, memory, [_, inbound]) = end_of_hostile(true);
        put_word(&memory, inbound + CELLS_AT, claim);
        let mut buf = [7; 8192];
        assert!(end.has_data(), "the error is told by a receive");
        assert_eq!(end.recv(&mut buf), Err(Error::PROTO), "{claim:x}");
        assert!(buf.iter().all(|byte| *byte == 7));
    }
    // A cell about memory of devices has a known kind.
    let (end, memory, [_, inbound]) = end_of_hostile(true);
    put_word(&memory, inbound + CELLS_AT, cell(3, 1));
    assert_eq!(end.recv(&mut [7; 8192]), Err(DEVICE_CELL));
    for (kind, result) in [(0, Err(Error::PROTO)), (3, Err(Error::PROTO)), (2, Ok(9))] {
        put_half(&memory, inbound + CELLS_AT + 8, kind);
        put_half(&memory, inbound + CELLS_AT + 12, 9);
        assert_eq!(end.device_cell().map(|cell| cell.number), result);
    }
    // Well-formed data has the requested length, with arbitrary bytes; the number of another
    // cell is invalid.
    let (end, memory, [_, inbound]) = end_of_hostile(true);
    put_word(&memory, inbound + CELLS_AT, 2 << 32 | 4);
    let mut buf = [7; 8192];
    assert_eq!(end.recv(&mut buf), Err(Error::AGAIN));
    put_word(&memory, inbound + CELLS_AT, cell(1, 4096));
    assert_eq!(end.recv(&mut buf[..100]), Ok(100));
    assert_eq!(end.recv(&mut buf), Ok(3996));
    // Bytes are where all of them are in the memory beside the cells.
    for (position, len, good) in [(3996, 100, true), (3997, 100, false), (1, 4096, false)] {
        let segments = [position, position | 1 << 31, u32::MAX];
        for (position, good) in segments.into_iter().zip([good, false, false]) {
            let (end, memory, [_, inbound]) = end_of_hostile(true);
            put_half(&memory, inbound + CELLS_AT + 8, position);
            put_word(&memory, inbound + CELLS_AT, cell(1, len));
            for _ in 0..2 {
                assert_eq!(end.recv_inline(|_| true), InlineRecv::Else);
                // take_whole reads four words for any message length.
                assert_eq!(end.recv_whole_message(|_, _| false), InlineRecv::Else);
            }
            let wanted = if good { Ok(len as usize) } else { Err(Error::PROTO) };
            assert_eq!(end.recv(&mut buf), wanted, "{position:x}+{len}");
        }
    }
}

#[test]
fn a_writer_uses_the_near_part_alone_as_long_as_the_reader_keeps_up() {
    use crate::segment::segment_bytes;
    use std::os::unix::fs::FileExt;
    let (writer, fd) = ShmChannel::create(16384).unwrap();
    let reader = ShmChannel::open(fd.as_fd()).unwrap();
    let (file, mut numbers) = (std::fs::File::from(fd), Numbers(3));
    let source: Vec<u8> = (0..900u32).map(|n| 1 + (n % 251) as u8).collect();
    let used = || {
        let mut bytes = vec![0; 16384];
        file.read_exact_at(&mut bytes, segment_bytes(0) as u64).unwrap();
        bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
    };
    let mut buf = vec![0; 16384];
    for _ in 0..2000 {
        let lens = [0; 3].map(|_| INLINE + 1 + numbers.below(700));
        assert!(lens.iter().all(|n| writer.send(&source[..*n]) == Ok(*n)));
        for n in lens {
            assert_eq!(reader.recv(&mut buf[..n]), Ok(n));
            assert_eq!(buf[..n], source[..n]);
        }
    }
    assert!((2000..=4096).contains(&used()), "{}", used());
    // A reader that does not read has all of it filled.
    for _ in 0..100 {
        let mut sent = 0;
        while let Ok(n) = writer.send(&source) {
            sent += n;
        }
        assert!(sent > 14000, "{sent}");
        let mut got = 0;
        while let Ok(n) = reader.recv(&mut buf) {
            assert!((got..got + n).zip(&buf).all(|(at, byte)| *byte == source[at % 900]));
            got += n;
        }
        assert_eq!(got, sent);
        assert_eq!((writer.send(&source[..500]), reader.recv(&mut buf)), (Ok(500), Ok(500)));
    }
}

#[test]
fn invalid_exposed_buffer_ends_the_channel() {
    let token = MemoryToken::new().unwrap();
    let target = vec![5u8; 10_000];
    let at = target.as_ptr() as u64;
    let exposes = |addr: u64, len: u64, buf: usize| {
        let (end, memory, [_, inbound]) = end_of_hostile(false);
        if !with_memory([&end, &end], &token) {
            return None;
        }
        for (offset, word) in [(8, addr), (16, len), (0, 1 << 32 | 1 << 2 | 2)] {
            put_word(&memory, inbound + CELLS_AT + offset, word);
        }
        let mut bytes = vec![7; buf + 10];
        let got = end.recv(&mut bytes[..buf]);
        assert!(bytes[buf..].iter().all(|byte| *byte == 7), "more than was asked for");
        Some(got)
    };
    if exposes(at, 1, 1).is_none() {
        return crate::testing::skip("no process_vm_readv(2)");
    }
    for (addr, len) in [(at, 0), (at, u64::MAX), (u64::MAX - 1, 2), (at, 1 << 63), (8, 100)] {
        assert_eq!(exposes(addr, len, 1000), Some(Err(Error::PROTO)), "{addr:x}+{len:x}");
    }
    // No more is read than there is room for.
    assert_eq!(exposes(at, 1 << 62, 1000), Some(Ok(1000)));
    assert_eq!(exposes(at, 500, 1000), Some(Ok(500)));
}

#[test]
fn unsealed_memory_and_malformed_segments_are_refused() {
    use crate::segment::SharedMemory;
    let len = 4096 * 3 + 2 * 4096;
    let open = |fd: &OwnedFd| ShmChannel::open(fd.as_fd()).map(drop);
    let (memory, fd) = SharedMemory::create(len).unwrap();
    drop(memory);
    assert_eq!(open(&fd), Err(Error::PROTO), "nothing says that it is a segment");
    let header = |magic: u64, ring| {
        let (_memory, fd) = SharedMemory::create(len).unwrap();
        let file = std::fs::File::from(fd.try_clone().unwrap());
        put_word(&file, 0, magic);
        put_word(&file, 8, ring);
        open(&fd)
    };
    let magic = u64::from_le_bytes(*b"ofiring4");
    assert_eq!(header(magic, 4096), Ok(()));
    assert_eq!(header(magic, 8192), Err(Error::PROTO));
    assert_eq!(header(magic + 1, 4096), Err(Error::PROTO));
    for wrong in [8, 4096, 4096 * 3, len - 4096, len + 1, len + 4096, 1 << 21] {
        let fd = SharedMemory::create(wrong).unwrap().1;
        put_word(&fd.try_clone().unwrap().into(), 0, magic);
        assert_eq!(open(&fd), Err(Error::PROTO), "{wrong} bytes");
    }
    // Without seals, and with some.
    let seals = [0, libc::F_SEAL_SHRINK, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL];
    for seals in seals {
        // SAFETY: a C string, flags and numbers; the descriptor is owned once.
        let fd = unsafe {
            use std::os::fd::{AsRawFd, FromRawFd};
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
            let fd = OwnedFd::from_raw_fd(fd);
            assert_eq!(libc::ftruncate64(fd.as_raw_fd(), len as i64), 0);
            assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
            fd
        };
        let file = std::fs::File::from(fd.try_clone().unwrap());
        put_word(&file, 0, magic);
        put_word(&file, 8, 4096);
        assert_eq!(open(&fd), Err(Error::PROTO), "seals {seals}");
    }
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(open(&socket.into()), Err(Error::PROTO));
    // Sealed memory cannot be truncated.
    let (_pipe, fd) = ShmChannel::create(4096).unwrap();
    assert!(std::fs::File::from(fd).set_len(0).is_err());
    for ring in [0, 2048, 4097, 12288, 32 << 20] {
        assert_eq!(ShmChannel::create(ring).map(drop), Err(Error::INVAL));
    }
}

#[test]
fn hostile_ring_writes_cause_no_access_outside_own_memory() {
    let token = MemoryToken::new().unwrap();
    let target = vec![5u8; 1 << 16];
    for seed in 0..400 {
        let mut numbers = Numbers(seed);
        let (end, memory, [out, inbound]) = end_of_hostile(seed % 2 == 0);
        with_memory([&end, &end], &token);
        let source = vec![3; 20_000];
        let mut buf = vec![7; 20_100];
        for _ in 0..200 {
            let in_words = numbers.below((CELLS_AT as usize + 32 * 128) / 8) as u64 * 8;
            let position = [out, inbound][numbers.below(2)] + in_words;
            let position = [position, inbound + CELLS_AT, inbound + CELLS_AT + 128, out + TAKEN]
                [numbers.below(4)];
            let word = match numbers.below(5) {
                0 => numbers.0,
                1 => target.as_ptr() as u64 + numbers.below(1 << 16) as u64,
                2 => numbers.below(70_000) as u64,
                3 => {
                    let number = numbers.below(40) as u64;
                    let what = numbers.below(5000) as u64;
                    put_word(&memory, inbound + CELLS_AT + 128 * number, (number + 1) << 32 | what);
                    continue;
                }
                _ => (numbers.below(40) as u64) << 32 | numbers.below(10_000) as u64,
            };
            put_word(&memory, position, word);
            let n = numbers.below(20_000);
            let result = match numbers.below(7) {
                0 => end.send(&source[..n]),
                6 => {
                    // SAFETY: the room outlives the buffer.
                    let to = unsafe { RecvBuf::new(buf.as_mut_ptr().cast(), n) }.unwrap();
                    end.recv_whole_message(|_, bytes| {
                        bytes.copy_into(&to);
                        n % 3 != 0
                    });
                    continue;
                }
                1 | 2 => {
                    let mut list = GatherList::default();
                    list.push_bytes(&source[..n / 2]);
                    list.push_bytes(&source[n / 2..n]);
                    end.send_list(&list, [CopyMode::Copied, CopyMode::ZeroCopy][numbers.below(2)])
                }
                3 => end.recv(&mut buf[..n]),
                4 => {
                    let (first, second) = buf[..n].split_at_mut(n / 3);
                    let mut list = ScatterList::default();
                    list.push_buf(first);
                    list.push_buf(second);
                    end.recv_list(&mut list)
                }
                _ => {
                    let _ = (end.has_data(), end.has_space(), end.can_expose());
                    let wants = numbers.below(2) == 0;
                    end.recv_inline(|short| {
                        assert!(short.all().len() <= INLINE);
                        wants
                    });
                    let _ = end.zcopy_completed();
                    end.peer_switched_at().map_or(Ok(0), |_| Ok(0))
                }
            };
            match result {
                Ok(done) => assert!(done <= n),
                Err(error) => {
                    assert!([Error::AGAIN, Error::PROTO, Error::CONNRESET].contains(&error))
                }
            }
            assert!(buf[n..].iter().skip(20_000 - n).all(|byte| *byte == 7));
        }
    }
}

#[test]
fn a_childs_copy_of_an_end_touches_nothing() {
    let (a, b) = pair(4096);
    let large = vec![1; 8192];
    let token = MemoryToken::new().unwrap();
    let memory = with_memory([&a, &b], &token);
    let mut list = GatherList::default();
    list.push_bytes(&large);
    assert!(a.send_list(&list, CopyMode::ZeroCopy).is_ok());
    let mut buf = [0; 8192];
    // SAFETY: the child ends without coming back.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((a, b, token));
        // SAFETY: nothing is left to do.
        unsafe { libc::_exit(0) };
    }
    let mut status = 1;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let n = if memory { 8192 } else { 4096 };
    assert_eq!(b.recv(&mut buf), Ok(n), "the memory was not taken back");
}
